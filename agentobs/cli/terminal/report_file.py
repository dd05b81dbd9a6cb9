"""The file of a report: checks and writing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from agentobs.cli.terminal.optional_packages import needed_packages
from agentobs.errors import UsageError


def reports() -> Any:
    """Return the module that creates reports.

    Raises:
        UsageError: a package that the module needs is not installed.
    """
    with needed_packages("a report", "dashboards"):
        from dashboards.report import html_report as report
        from dashboards.report import path_reports

        assert path_reports, (
            "the divergence and comparison reports need the packages of the dashboards"
        )
    return report


def light_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--light`, which is the default, and `--interactive`, as one parameter `light`: True, False, or None if
    neither was given.
    """
    return click.option(
        "--light/--interactive",
        "light",
        default=None,
        help=(
            "A small file without scripts: static figures, times in UTC (the default). With "
            "--interactive, the file has scripts (zoomable figures, local times) and takes about 5 MB."
        ),
    )(command)


def now() -> int:
    """Return the current time, as the creation time of a report."""
    from agentobs import world

    return world.now()


def check_report(output: Path, force: bool) -> None:
    """Check that a report can be written, before any work is done.

    Raises:
        UsageError: the file exists, the path is not usable, or a package is not installed.
    """
    from exporters.new_files import check_new_path

    reports()
    if str(output) == "-":
        raise UsageError(
            "a report is written to a file, not to standard output",
            where="-",
            todo="Pass a file: -o report.html",
        )
    check_new_path(output, force=force)


def write(output: Path, text: str, *, force: bool, content: bool) -> None:
    """Write a report atomically to a file that only its owner can read, and print whether it includes content."""
    from agentobs.records.display import printable
    from exporters.new_files import write_text

    write_text(output.absolute(), text, force=force)
    content_note = (
        "includes prompts and responses: share with care"
        if content
        else "without prompts and responses"
    )
    click.echo(f"wrote {printable(str(output))}  {len(text) / 1e6:.1f} MB, {content_note}")
