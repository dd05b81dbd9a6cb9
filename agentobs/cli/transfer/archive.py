"""Commands that keep the logs of other programs: `archive`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.progress_line import Progress
from agentobs.errors import UsageError
from agentobs.records.display import text


@click.group("archive")
def archive() -> None:
    """Keep the session logs that other programs delete."""


@archive.command("claude-code", short_help="Keep Claude Code's session logs.")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.pass_context
def claude_code(context: click.Context, folder: Path | None) -> None:
    """Copy new and grown logs from FOLDER (default: ~/.claude/projects) into the home.

    Secrets are replaced by placeholders. Claude Code deletes its logs after 30 days by default. Run this command more
    often than that, for example daily from cron. The copies can be imported with `agentobs import claude-code`.
    """
    from agentobs.importers.claude_code.log_archive import FOLDER, archive_logs, claude_folder
    from agentobs.importers.line_files import reason
    from agentobs.recording.journal.home import open_home

    folder = folder or claude_folder(os.environ) / "projects"
    if not folder.is_dir():
        raise UsageError(
            "no such folder",
            where=str(folder),
            todo="Pass the folder with the logs, such as ~/.claude/projects",
        )
    home = open_home(home_option(context))
    try:
        with Progress("logs") as progress:
            report = archive_logs(home, folder, progress=progress)
    except OSError as error:
        raise UsageError(
            f"the archive cannot be written: {reason(error)}",
            where=str(error.filename or home.path / FOLDER),
            todo="Free disk space or correct the permissions, and run the command again",
        ) from error
    again = report.grown + len(report.replaced)
    click.echo(
        f"{report.new} log{'s' * (report.new != 1)} archived, {again} archived again, {report.unchanged} unchanged: "
        f"{text(str(home.path / FOLDER))}"
    )
    for path in report.kept:
        click.echo(f"kept: {text(str(path))} is shorter than its archived copy", err=True)
    for path in report.replaced:
        click.echo(f"kept: {text(str(path))} is another log than its old copy", err=True)
    if report.long_lines:
        lines = f"{report.long_lines} lines are" if report.long_lines > 1 else "1 line is"
        click.echo(f"skipped: {lines} too long", err=True)
    for unreadable in report.unreadable:
        click.echo(f"skipped: {text(str(unreadable))}", err=True)
    sys.exit(1 if report.unreadable or report.long_lines else 0)
