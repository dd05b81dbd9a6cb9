"""Commands that bring in what was recorded elsewhere: import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentobs.cli import home_option
from agentobs.cli.tables import text
from agentobs.errors import UsageError

if TYPE_CHECKING:
    from agentobs.recording.home import Home
    from exporters.bundle import BundleReport, Taken
    from exporters.claude_code.importing import Imported, ImportReport


@click.group("import", help="Bring in sessions that were recorded elsewhere.")
def import_() -> None:
    """Bring in sessions that were recorded elsewhere; what was brought in before changes nothing."""


@import_.command("claude-code", help="Import Claude Code's session logs.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--follow", is_flag=True, help="Go on importing what the logs gain, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="Seconds between two looks, with --follow.",
)
@click.pass_context
def claude_code(
    context: click.Context, paths: tuple[Path, ...], follow: bool, interval: float
) -> None:
    """Import the logs at PATHS, files or directories such as ~/.claude/projects.

    A log does not hold the system prompt and the tools of the requests, so that the sessions can be asked about, but
    not replayed. Lines that cannot be read are named and left out.
    """
    from agentobs import world
    from agentobs.recording.home import open_home
    from exporters.claude_code.importing import logs_in

    home = open_home(home_option(context))
    stamps: dict[Path, tuple[int, int]] = {}
    while True:
        logs = logs_in(paths)
        now = {path: _stamp(path) for path in logs}
        if now != stamps:
            report = _bring_in(home, logs)
            _summarise(report)
            stamps = now
        if not follow:
            sys.exit(1 if report.bad_lines else 0)
        world.pause(interval)


@import_.command("bundle", help="Import the sessions of a bundle that another machine made.")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--digest", metavar="b2:...", help="What `agentobs bundle` said when it was made.")
@click.pass_context
def bundle(context: click.Context, path: Path, digest: str | None) -> None:
    """Import the sessions in FILE. All of it is looked at first: where anything is wrong, nothing is imported."""
    from agentobs.recording.home import open_home
    from agentobs.store.ingest import ingest
    from exporters.bundle import import_bundle

    home = open_home(home_option(context))
    try:
        report = import_bundle(home, path, take_out=_take_out, digest=digest, told=_tell_bundled)
    except FileNotFoundError as error:
        raise UsageError("no such file", where=str(path)) from error
    ingest(home)
    _compare_money(home, report)


_BUNDLED = {
    "new": "imported",
    "replaced": "imported, in the place of what came without content",
    "there": "was imported before",
    "kept": "left out: a session of this id is here and did not come from this bundle",
}


def _tell_bundled(done: Taken) -> None:
    said = "with content" if done.has_content else "no content, not replayable"
    click.echo(f"{done.session_id}  {_BUNDLED[done.state]}, {said}")


def _compare_money(home: Home, report: BundleReport) -> None:
    """Say where the prices in force here make other money of a session than those where it was recorded."""
    from agentobs.store.database import connect

    sql = "SELECT sum(cost_usd), max(price_version) FROM costs WHERE session_id = ?"
    with connect(home) as connection:
        for done in report.sessions:
            row = connection.execute(sql, [done.session_id]).fetchone()
            usd = None if row is None or row[0] is None else f"{row[0]:f}"
            if done.money is None or done.state == "kept" or usd == done.money.cost_usd:
                continue
            there, here = (each or "no price" for each in (done.money.cost_usd, usd))
            click.echo(
                f"{done.session_id}  costs {here} USD by the prices here ({text(row and row[1])}), "
                f"{text(there)} by those where it was recorded ({text(done.money.price_version)})",
                err=True,
            )


def _take_out(home: Home, session_id: str) -> None:
    from agentobs.store.pruning import prune

    prune(home, sessions=[session_id])


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _bring_in(home: Home, logs: list[Path]) -> ImportReport:
    from agentobs.store.ingest import ingest
    from exporters.claude_code.importing import import_logs

    def tell(done: Imported) -> None:
        if done.is_new:
            agents = f", {done.agents} agents" if done.agents else ""
            click.echo(
                f"{done.session_id}  {done.responses} responses, {done.tool_calls} tool calls{agents}"
            )

    report = import_logs(home, logs, take_out=_take_out, told=tell)
    ingest(home)
    return report


def _summarise(report: ImportReport) -> None:
    new = sum(each.is_new for each in report.sessions)
    click.echo(
        f"{new} sessions imported, {len(report.sessions) - new} were there already"
        + (f", {report.without_answers} without an answer" if report.without_answers else "")
    )
    if new:
        click.echo("None of them can be replayed: the logs do not hold the requests whole.")
    for bad in report.bad_lines:
        click.echo(f"left out: {text(str(bad))}", err=True)
