"""Commands that bring in what was recorded elsewhere: import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.errors import UsageError
from agentobs.records.display import text

if TYPE_CHECKING:
    from agentobs.importers.bundle import BundleReport, Taken
    from agentobs.importers.claude_code.transcript_import import Imported, ImportReport, Seen
    from agentobs.importers.wire_files import ImportedFile
    from agentobs.recording.journal.home import Home


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

    A log does not hold its requests whole, so that the sessions can be asked about, but not replayed: of each it is
    said why. Lines that cannot be read are named and left out.
    """
    from agentobs import world
    from agentobs.importers.claude_code.transcript_import import Seen, logs_in
    from agentobs.recording.journal.home import open_home

    home, seen = open_home(home_option(context)), Seen()
    report = _bring_in(home, logs_in(paths), seen)
    silent = _summarise(report, paths)
    told = report.unreadable
    while follow:
        world.pause(interval)
        report = _bring_in(home, logs_in(path for path in paths if path.exists()), seen)
        if report.sessions or report.unreadable != told:
            _summarise(report, ())
        told = report.unreadable
    is_kept = any(each.is_kept for each in report.sessions)
    sys.exit(1 if report.bad_lines or report.unreadable or silent or is_kept else 0)


@import_.command("wire", help="Import HTTP exchanges that another tool recorded.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_context
def wire(context: click.Context, paths: tuple[Path, ...]) -> None:
    """Import the files at PATHS, or all *.jsonl in directories: each becomes a session that can be frozen.

    A line is {"request": {"method", "path", "headers", "body"}, "response": {"status", "headers", "body_text"}}. Lines
    that are none are named and left out; their session is incomplete then, and cannot be replayed.
    """
    from agentobs.importers.wire_files import files_in, import_wire
    from agentobs.recording.journal.home import open_home
    from agentobs.store.duckdb.ingest import ingest

    home = open_home(home_option(context))
    files = files_in(paths)
    with _Progress("files") as progress:
        report = import_wire(home, files, told=_tell_wire, progress=progress)
    ingest(home)
    new = sum(each.is_new for each in report.files)
    click.echo(f"{new} sessions imported, {len(report.files) - new} were there already")
    for path in set(report.without_exchanges) - {bad.path for bad in report.bad_lines}:
        click.echo(f"left out: {text(str(path))}: there is no exchange in it", err=True)
    empty = [path for path in paths if not any(path in (file, *file.parents) for file in files)]
    for path in empty:
        click.echo(f"left out: {text(str(path))}: there is no *.jsonl in it", err=True)
    for bad in (*report.unreadable, *report.bad_lines):
        click.echo(f"left out: {text(str(bad))}", err=True)
    is_whole = not (report.bad_lines or report.without_exchanges or report.unreadable or empty)
    sys.exit(0 if is_whole else 1)


def _tell_wire(done: ImportedFile) -> None:
    if done.is_new:
        said = "replayable"
        if done.bare:
            said = (
                f"replayable, but for headers: {done.bare} requests are without anthropic-version"
            )
        if done.bad:
            said = f"not replayable: {done.bad} lines are missing"
        click.echo(f"{done.session_id}  {done.exchanges} exchanges, {said}  {text(done.path.name)}")


class _Progress:
    """Shows on a terminal how far an import is; where nobody looks, nothing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> Callable[[int, int], None]:
        """Return what is to be told how many are done, and of how many."""
        return self._show

    def __exit__(self, *_: object) -> None:
        """Take the line away."""
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _show(self, done: int, of: int) -> None:
        if self._is_shown:
            click.echo(f"\r\x1b[K{done} of {of} {self._what}", nl=False, err=True)


@import_.command("bundle", help="Import the sessions of a bundle that another machine made.")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--digest", metavar="b2:...", help="What `agentobs bundle` said when it was made.")
@click.pass_context
def bundle(context: click.Context, path: Path, digest: str | None) -> None:
    """Import the sessions in FILE. All of it is looked at first: where anything is wrong, nothing is imported."""
    from agentobs.importers.bundle import import_bundle
    from agentobs.recording.journal.home import open_home
    from agentobs.store.duckdb.ingest import ingest

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
    "deleted": "left out: was deleted here",
    "kept": "left out: a session of this id is here and did not come from this bundle",
}


def _tell_bundled(done: Taken) -> None:
    said = "with content" if done.has_content else "no content, not replayable"
    click.echo(f"{done.session_id}  {_BUNDLED[done.state]}, {said}")


def _compare_money(home: Home, report: BundleReport) -> None:
    """Say where the prices in force here make other money of a session than those where it was recorded."""
    from agentobs.store.duckdb.connection import connect

    sql = "SELECT sum(cost_usd), max(price_version) FROM costs WHERE session_id = ?"
    with connect(home) as connection:
        for done in report.sessions:
            row = connection.execute(sql, [done.session_id]).fetchone()
            usd = None if row is None or row[0] is None else f"{row[0]:f}"
            if (
                done.money is None
                or done.state in ("kept", "deleted")
                or usd == done.money.cost_usd
            ):
                continue
            there, here = (each or "no price" for each in (done.money.cost_usd, usd))
            click.echo(
                f"{done.session_id}  costs {here} USD by the prices here ({text(row and row[1])}), "
                f"{text(there)} by those where it was recorded ({text(done.money.price_version)})",
                err=True,
            )


def _take_out(home: Home, session_id: str) -> None:
    from agentobs.store.duckdb.retention import prune

    prune(home, sessions=[session_id])


def _bring_in(home: Home, logs: list[Path], seen: Seen) -> ImportReport:
    from agentobs.importers.claude_code.transcript_import import import_logs
    from agentobs.store.duckdb.ingest import ingest

    def tell(done: Imported) -> None:
        if done.is_new:
            agents = f", {done.agents} agents" if done.agents else ""
            click.echo(
                f"{done.session_id}  {done.responses} responses, {done.tool_calls} tool calls{agents}; "
                f"not replayable: {done.not_replayable}"
            )

    with _Progress("sessions") as progress:
        report = import_logs(
            home, logs, take_out=_take_out, seen=seen, told=tell, progress=progress
        )
    if any(each.is_new for each in report.sessions):
        ingest(home)
    return report


def _summarise(report: ImportReport, named: tuple[Path, ...]) -> list[Path]:
    """Say what an import did; return what was named and tells of no session."""
    new = sum(each.is_new for each in report.sessions)
    kept = [each for each in report.sessions if each.is_kept]
    click.echo(
        f"{new} sessions imported, {len(report.sessions) - new - len(kept)} were there already"
        + (f", {report.without_answers} without an answer" if report.without_answers else "")
    )
    for each in kept:
        click.echo(
            f"left out: {each.session_id}: these logs hold less than what is here. Name all of its files at once, or "
            f"take what is here out first: agentobs prune --session {each.session_id}",
            err=True,
        )
    for bad in (*report.unreadable, *report.bad_lines):
        click.echo(f"left out: {text(str(bad))}", err=True)
    read = {*report.telling, *(each.path for each in report.unreadable)}
    silent = [path for path in named if not any(path in (log, *log.parents) for log in read)]
    for path in silent:
        click.echo(f"left out: {text(str(path))}: there is no session in it", err=True)
    return silent
