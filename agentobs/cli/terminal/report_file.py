"""Report files: where a report is written, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentobs.errors import UsageError


def reports() -> Any:
    """Return the module that makes reports.

    Raises:
        UsageError: what it needs is not installed.
    """
    try:
        from dashboards.report import html_report as report
        from dashboards.report import path_reports

        assert path_reports, "the pages of two paths need what the application needs"
    except ImportError as error:
        raise UsageError(
            f"reports need a package that is not installed: {error.name}",
            todo="pip install 'agentobs-kit[dashboards]'",
        ) from error
    return report


def now() -> int:
    """Return the instant at which a report is made."""
    from agentobs import world

    return world.now()


def check_report(output: Path, force: bool) -> None:
    """Refuse a place where no file can be, and a set-up that makes no reports, before any work is done.

    Raises:
        UsageError: it exists, it is no file, or a package is not installed.
    """
    from exporters.new_files import check_place

    reports()
    if str(output) == "-":
        raise UsageError(
            "a report is a file, and is not printed", where="-", todo="Name a file: -o report.html"
        )
    check_place(output, force=force)


def write(output: Path, text: str, *, force: bool, content: bool) -> None:
    """Write a report to a file that only its owner can read, whole or not at all, and say what it holds."""
    from agentobs.records.display import printable
    from exporters.new_files import write_text

    write_text(output.absolute(), text, force=force)
    holds = "with what was said: mind who gets it" if content else "without what was said"
    click.echo(f"wrote {printable(str(output))}  {len(text) / 1e6:.1f} MB, {holds}")
