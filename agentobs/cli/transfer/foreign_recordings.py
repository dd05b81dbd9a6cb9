"""Commands that import recordings of other tools: `import vcr`, `har`, `agent-rewind` and `orca`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.progress_line import Progress
from agentobs.records.display import text

if TYPE_CHECKING:
    from agentobs.importers.file_formats import Format
    from agentobs.importers.recordings.recording_import import ImportedRecording, RecordingReport


@click.command(
    "vcr", short_help="Import cassettes of vcrpy, pytest-recording, VCR for Ruby or go-vcr."
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_context
def vcr(context: click.Context, paths: tuple[Path, ...]) -> None:
    """Import the cassettes at PATHS: YAML or JSON files, or folders of them. Each file becomes a session.

    Cassettes of vcrpy, pytest-recording, VCR for Ruby and go-vcr can be read, plain or compressed with gzip. Requests
    to other hosts are skipped. Headers that the cassette lacks are not compared in a replay.
    """
    _run(context, paths, "vcr")


@click.command("har", short_help="Import HAR files of a browser or a proxy.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_context
def har(context: click.Context, paths: tuple[Path, ...]) -> None:
    """Import the HAR files at PATHS, or all *.har in folders. Each file becomes a session.

    HAR files of browsers, Playwright, mitmproxy, Charles and Proxyman can be read. Requests to other hosts are
    skipped. If bodies are missing, the session is incomplete and cannot be replayed.
    """
    _run(context, paths, "har")


@click.command("agent-rewind", short_help="Import traces of agent-rewind.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_context
def agent_rewind(context: click.Context, paths: tuple[Path, ...]) -> None:
    """Import the traces at PATHS, or all *.rewind in folders. Each trace becomes a session.

    Requests and responses are rebuilt from the stored arguments and results of the SDK. Calls of other providers and
    of functions are skipped. Tool calls are read from the requests.
    """
    _run(context, paths, "agent-rewind")


@click.command("orca", short_help="Import traces of OrcaReplay.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_context
def orca(context: click.Context, paths: tuple[Path, ...]) -> None:
    """Import the traces at PATHS: folders of runs, such as .orca/runs, or files `events.jsonl`.

    Each run becomes a session. The requests to models are imported. Commands, files and MCP messages of the trace are
    not.
    """
    _run(context, paths, "orca")


COMMANDS = (vcr, har, agent_rewind, orca)
"""The commands of this module."""

_OTHERS: dict[Format, str] = {
    "vcr": "requests to other hosts",
    "har": "requests to other hosts",
    "agent-rewind": "calls of functions and of other providers",
    "orca": "requests to other hosts",
}
"""The parts of a file that are skipped, by format."""


def _run(context: click.Context, paths: tuple[Path, ...], kind: Format) -> None:
    from agentobs.importers.recordings.recording_import import import_recordings, recordings_in
    from agentobs.recording.journal.home import open_home
    from agentobs.store.maintenance import ingest

    home = open_home(home_option(context))
    files = recordings_in(paths, kind)
    with Progress("files") as progress:
        report = import_recordings(
            home,
            files,
            kind,
            named=frozenset(paths),
            on_imported=lambda done: _print_imported(done, kind),
            progress=progress,
        )
    ingest(home)
    empty = [path for path in paths if not any(path in (file, *file.parents) for file in files)]
    sys.exit(0 if _summarize(report, paths, empty, kind) else 1)


def _print_imported(done: ImportedRecording, kind: Format) -> None:
    if not done.is_new:
        return
    others = f"; {done.others} {_OTHERS[kind]} skipped" if done.others else ""
    click.echo(
        f"{done.session_id}  {done.exchanges} exchanges, {_state(done)}{others}  {text(done.path.name)}"
    )


def _state(done: ImportedRecording) -> str:
    missing = [
        f"{count} {name} are missing"
        for count, name in (
            (done.without_request, "request bodies"),
            (done.without_response, "response bodies"),
        )
        if count
    ]
    if missing:
        return f"not replayable: {', '.join(missing)}"
    if done.without_headers:
        return f"replayable; the headers of {done.without_headers} requests are unknown and are not compared"
    return "replayable"


def _summarize(
    report: RecordingReport, named: Iterable[Path], empty: Iterable[Path], kind: Format
) -> bool:
    """Print a summary of an import; return whether everything that was named was imported."""
    new = sum(each.is_new for each in report.files)
    click.echo(
        f"{new:,} session{'s' * (new != 1)} imported, {len(report.files) - new} already imported"
    )
    names = set(named)
    alone = {path: count for path, count in report.others.items() if path in names}
    for path, count in alone.items():
        skipped = f" ({count} {_OTHERS[kind]})" if count else ""
        click.echo(
            f"skipped: {text(str(path))}: it contains no request to the provider{skipped}", err=True
        )
    if len(report.others) > len(alone):
        files = len(report.others) - len(alone)
        count = sum(report.others.values()) - sum(alone.values())
        click.echo(
            f"{files} files without a request to the provider skipped ({count} {_OTHERS[kind]})"
        )
    if report.unrelated:
        click.echo(f"{len(report.unrelated)} files with another format skipped")
    for path in empty:
        click.echo(f"skipped: {text(str(path))}: it contains no file of this format", err=True)
    for each in report.unreadable:
        click.echo(f"skipped: {text(str(each))}", err=True)
    return not (report.unreadable or alone or tuple(empty))
