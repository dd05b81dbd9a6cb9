"""Commands that import sessions that were recorded elsewhere: `import`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.progress_line import Progress, Spinner
from agentobs.cli.transfer.foreign_recordings import COMMANDS
from agentobs.errors import UsageError
from agentobs.records.display import text

if TYPE_CHECKING:
    from agentobs.importers.bundle import BundleReport, ImportedSession
    from agentobs.importers.claude_code.transcript_import import Imported, ImportReport, Seen
    from agentobs.importers.wire_files import ImportedFile
    from agentobs.recording.journal.home import Home


@click.group("import")
def import_() -> None:
    """Import sessions that were recorded elsewhere. Importing them again changes nothing."""


for _command in COMMANDS:
    import_.add_command(_command)


@import_.command("claude-code", short_help="Import Claude Code's session logs.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--follow", is_flag=True, help="Keep importing new log entries until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="With --follow: seconds between checks.",
)
@click.pass_context
def claude_code(
    context: click.Context, paths: tuple[Path, ...], follow: bool, interval: float
) -> None:
    """Import the logs at PATHS, files or directories such as ~/.claude/projects.

    Logs do not contain full requests, so imported sessions can be queried but not replayed. The reason is shown for
    each session. Unreadable lines are reported and skipped.
    """
    from agentobs import world
    from agentobs.importers.claude_code.transcript_import import Seen, logs_in
    from agentobs.recording.journal.home import open_home

    home, seen = open_home(home_option(context)), Seen()
    report = _import_logs(home, logs_in(paths), seen)
    without_sessions = _summarize(report, paths)
    unreadable = report.unreadable
    while follow:
        world.pause(interval)
        try:
            logs = logs_in(path for path in paths if path.exists())
        except FileNotFoundError:
            # The client deleted a directory while it was listed; the next check lists again.
            continue
        report = _import_logs(home, logs, seen)
        if report.sessions or report.unreadable != unreadable:
            _summarize(report, ())
        unreadable = report.unreadable
    is_kept = any(each.is_kept for each in report.sessions)
    sys.exit(1 if report.bad_lines or report.unreadable or without_sessions or is_kept else 0)


@import_.command("wire", short_help="Import HTTP exchanges that another tool recorded.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_context
def wire(context: click.Context, paths: tuple[Path, ...]) -> None:
    """Import the files at PATHS, or all *.jsonl in directories. Each file becomes a session that can be frozen.

    A line is {"request": {"method", "path", "headers", "body"}, "response": {"status", "headers", "body_text"}}.
    Invalid lines are reported and skipped. Sessions with skipped lines are incomplete and cannot be replayed.
    """
    from agentobs.importers.wire_files import files_in, import_wire
    from agentobs.recording.journal.home import open_home
    from agentobs.store.maintenance import ingest

    home = open_home(home_option(context))
    files = files_in(paths)
    with Progress("files") as progress:
        report = import_wire(home, files, on_imported=_print_wire, progress=progress)
    with Spinner("loading new records"):
        ingest(home)
    new = sum(each.is_new for each in report.files)
    click.echo(
        f"{new:,} session{'s' * (new != 1)} imported, {len(report.files) - new} already imported"
    )
    for path in set(report.without_exchanges) - {bad.path for bad in report.bad_lines}:
        click.echo(f"skipped: {text(str(path))}: it contains no exchange", err=True)
    empty = [path for path in paths if not any(path in (file, *file.parents) for file in files)]
    for path in empty:
        click.echo(f"skipped: {text(str(path))}: it contains no *.jsonl file", err=True)
    for bad in (*report.unreadable, *report.bad_lines):
        click.echo(f"skipped: {text(str(bad))}", err=True)
    is_complete = not (report.bad_lines or report.without_exchanges or report.unreadable or empty)
    sys.exit(0 if is_complete else 1)


def _print_wire(done: ImportedFile) -> None:
    from agentobs.provider.registry import ANTHROPIC

    if done.is_new:
        state = "replayable"
        if done.bare:
            state = (
                f"replayable, but a replay will report an added header: {done.bare} requests were "
                f"recorded without {ANTHROPIC.version_header}"
            )
        if done.bad:
            state = f"not replayable: {done.bad} lines are missing"
        click.echo(
            f"{done.session_id}  {done.exchanges} exchanges, {state}  {text(done.path.name)}"
        )


@import_.command("bundle", short_help="Import the sessions of a bundle from another machine.")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--digest",
    metavar="b2:...",
    help="Reject the file unless it has this digest (printed by `agentobs bundle`).",
)
@click.pass_context
def bundle(context: click.Context, path: Path, digest: str | None) -> None:
    """Import the sessions in FILE. The whole file is checked first; if anything is invalid, nothing is imported."""
    from agentobs.importers.bundle import import_bundle
    from agentobs.recording.journal.home import open_home
    from agentobs.store.maintenance import ingest

    home = open_home(home_option(context))
    try:
        report = import_bundle(
            home, path, remove_session=_delete_session, digest=digest, on_imported=_print_bundled
        )
    except FileNotFoundError as error:
        raise UsageError("no such file", where=str(path)) from error
    ingest(home)
    _compare_money(home, report)


_BUNDLED = {
    "new": "imported",
    "replaced": "imported; it replaces a version without content",
    "there": "already imported",
    "deleted": "skipped: this session was deleted from this home",
    "kept": "skipped: a session with this ID exists and does not come from this bundle",
}


def _print_bundled(done: ImportedSession) -> None:
    contents = "with content" if done.has_content else "no content, not replayable"
    click.echo(f"{done.session_id}  {_BUNDLED[done.state]}, {contents}")


def _compare_money(home: Home, report: BundleReport) -> None:
    """Print sessions whose cost at local prices differs from their cost on the machine that recorded them."""
    from agentobs.store.backend import open_store

    with open_store(home) as store:
        for done in report.sessions:
            row = store.rows("internal/session_cost", session_id=done.session_id).rows[0]
            usd = None if row[0] is None else f"{row[0]:f}"
            if (
                done.money is None
                or done.state in ("kept", "deleted")
                or usd == done.money.cost_usd
            ):
                continue
            original, local = (
                f"{each} USD" if each else "an unknown amount"
                for each in (done.money.cost_usd, usd)
            )
            click.echo(
                f"{done.session_id}  costs {local} at local prices ({text(row[1])}), {text(original)} "
                f"at the prices of the machine that recorded it ({text(done.money.price_version)})",
                err=True,
            )


def _delete_session(home: Home, session_id: str) -> None:
    from agentobs.store.maintenance import prune

    prune(home, sessions=[session_id])


def _recorded_messages(home: Home) -> frozenset[str]:
    from agentobs.store.backend import open_store
    from agentobs.store.label_texts import LabelTexts

    with open_store(home) as store:
        # The log contains the IDs, but facts contain digests of IDs of unknown forms.
        rows = LabelTexts(store).replace_in_rows(store.rows("internal/proxied_messages").rows)
        return frozenset(str(row[0]) for row in rows)


def _import_logs(home: Home, logs: list[Path], seen: Seen) -> ImportReport:
    from agentobs.importers.claude_code.transcript_import import import_logs
    from agentobs.store.maintenance import ingest

    def print_imported(done: Imported) -> None:
        if done.is_new:
            agents = f", {done.agents} agents" if done.agents else ""
            unlogged = (
                f"; not in the log: {sum(done.unlogged.values()):,} tokens that the client counted"
                if done.unlogged
                else ""
            )
            click.echo(
                f"{done.session_id}  {done.responses} responses, {done.tool_calls} tool calls{agents}; "
                f"not replayable: {done.not_replayable}{unlogged}"
            )

    with Progress("sessions") as progress:
        report = import_logs(
            home,
            logs,
            remove_session=_delete_session,
            recorded_messages=lambda: _recorded_messages(home),
            seen=seen,
            on_imported=print_imported,
            progress=progress,
        )
    if any(each.is_new for each in report.sessions):
        ingest(home)
    return report


def _summarize(report: ImportReport, named: tuple[Path, ...]) -> list[Path]:
    """Print a summary of an import, and return the given paths that contain no session."""
    new = sum(each.is_new for each in report.sessions)
    kept = [each for each in report.sessions if each.is_kept]
    click.echo(
        f"{new:,} session{'s' * (new != 1)} imported, {len(report.sessions) - new - len(kept)} already imported"
        + (f", {report.without_responses} without a response" if report.without_responses else "")
        + (f", {report.recorded} recorded by a proxy" if report.recorded else "")
    )
    for each in kept:
        click.echo(
            f"skipped: {each.session_id}: these logs contain less than a previous import. "
            "Import all files of the session together, or delete the session first: agentobs prune --session "
            f"{each.session_id}",
            err=True,
        )
    if report.unknown_lines:
        kinds = ", ".join(f"{kind:.40} ({n})" for kind, n in report.unknown_lines.most_common(5))
        count = report.unknown_lines.total()
        click.echo(f"{count} lines of unknown types were not imported: {text(kinds)}")
    for bad in (*report.unreadable, *report.bad_lines):
        click.echo(f"skipped: {text(str(bad))}", err=True)
    read = {*report.session_files, *(each.path for each in report.unreadable)}
    without_sessions = [
        path for path in named if not any(path in (log, *log.parents) for log in read)
    ]
    for path in without_sessions:
        click.echo(f"skipped: {text(str(path))}: it contains no session", err=True)
    return without_sessions
