"""Commands that bring a session back: freeze it, replay it, serve it."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli import home_option
from agentobs.cli.tables import printable
from agentobs.errors import UsageError

if TYPE_CHECKING:
    from agentobs.records.exchanges import Recording
    from replay.fixture import Fixture


@click.command(help="Make a recorded session a fixture and a test.")
@click.argument("session", required=False)
@click.option("--last-failed", is_flag=True, help="Take the newest session that failed.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The folder to write. Default: fixtures/NAME.",
)
@click.pass_context
def freeze(
    context: click.Context, session: str | None, last_failed: bool, output: Path | None
) -> None:
    """Freeze SESSION: its id, an end of it of at least 4 characters, or its name."""
    from replay.freeze import freeze as write

    if bool(session) == last_failed:
        raise UsageError("one session is needed", todo="Name a SESSION, or say --last-failed")
    recording = recorded(home_option(context), session)
    folder = output or Path("fixtures") / _folder_name(recording.name)
    frozen = write(recording, folder, _versions())
    click.echo(f"froze  {recording.session_id}  {frozen.asks} requests, {frozen.tools} tool calls")
    for redacted in frozen.redacted:
        click.echo(f"took out  {printable(redacted.text())}")
    click.echo(f"wrote  {frozen.fixture}")
    click.echo(f"{'kept ' if frozen.test_kept else 'wrote'}  {frozen.test}")
    click.echo(f"next   pytest {frozen.test}")


@click.command(help="Rerun an agent against a fixture and show where it parts from it.")
@click.argument("fixture", type=click.Path(path_type=Path))
@click.option(
    "--tools",
    default="recorded",
    show_default=True,
    help="`recorded`: no tool runs; `live`: all run; or names of tools that run, with commas.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a divergence as JSON.")
@click.option("--explain", is_flag=True, help="Follow a divergence back, step by step.")
@click.option(
    "--accept-from",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write what is asked now into the fixture, from its request N on; the recorded answers stay.",
)
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--trajectory", is_flag=True, help="Print what the agent did, one line a step.")
def replay(
    fixture: Path,
    tools: str,
    as_json: bool,
    explain: bool,
    accept_from: int | None,
    yes: bool,
    trajectory: bool,
) -> None:
    """Replay FIXTURE, a folder or its recording.jsonl. Exits with 1 where the path parts."""
    from agentobs.cli.parting import offer, tell
    from replay import DivergenceError, Replayer, ReplayOptions, load

    loaded = load(fixture)
    options = ReplayOptions(tools=_policy(tools, loaded), accept_from=accept_from)
    replayed = Replayer(loaded, options)
    try:
        with replayed:
            replayed.run()
    except DivergenceError as error:
        tell(error.divergence, as_json=as_json, explain=explain)
        sys.exit(1)
    if accept_from is not None:
        offer(replayed, yes=yes)
    done = replayed.progress
    if trajectory:
        click.echo(replayed.trajectory, nl=False)
    click.echo(
        f"MATCHED  {printable(loaded.name)}  {done.requests_matched} of {done.requests} requests, "
        f"{done.tools_matched} of {done.tools} tool calls"
    )


@click.command(help="Answer over loopback HTTP from a recording, in the provider's place.")
@click.argument("recording")
@click.option("--port", default=0, show_default="a free one", help="The port on 127.0.0.1.")
@click.option(
    "--match",
    type=click.Choice(["question", "order"]),
    default="question",
    show_default=True,
    help="Answer the exchange that asks the same, or simply the next one.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Send bodies in pieces of so many bytes.",
)
@click.option(
    "--pace",
    type=click.FloatRange(min=0),
    default=0.0,
    help="1 waits between chunks as long as recorded, 2 half as long, 0 (default) not at all.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="WHAT@N",
    help="status:529@2 or cut:3@1; may be repeated.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse conversations that the real provider would not take either.",
)
@click.pass_context
def serve(
    context: click.Context,
    recording: str,
    port: int,
    match: Any,
    chunk: int | None,
    pace: float,
    faults: tuple[str, ...],
    strict: bool,
) -> None:
    """Serve RECORDING: a recorded session, a fixture, or a file of exchanges (JSON lines)."""
    from agentobs.recording.serve import ServedProvider, ServeOptions, parse_fault

    made = tuple(parse_fault(fault) for fault in faults)
    options = ServeOptions(match, chunk, pace, made, strict)
    provider = ServedProvider(_servable(home_option(context), recording), options, port)
    click.echo(f"serving {len(provider.script.exchanges)} exchanges; stop with Ctrl-C")
    click.echo(f"export ANTHROPIC_BASE_URL={provider.url} NO_PROXY=127.0.0.1")
    sys.stdout.flush()
    provider.serve_forever()


def _policy(tools: str, fixture: Fixture) -> Any:
    """Return which tools run, as a replay wants to know it.

    Raises:
        UsageError: a named tool is not in the fixture.
    """
    if tools in ("recorded", "live"):
        return tools
    named, known = set(tools.split(",")), {tool.question.name for tool in fixture.tools}
    if unknown := sorted(named - known):
        raise UsageError(
            f"no tool {', '.join(unknown)} in the recording",
            where="--tools",
            todo=f"It has {', '.join(sorted(known)) or 'none'}; or say recorded or live",
        )
    return frozenset(named)


def recorded(home: str | None, session: str | None) -> Recording:
    """Return a recorded session whole; None means the newest one that failed.

    Raises:
        UsageError: there is no such session.
    """
    from agentobs.recording.home import existing_home
    from agentobs.recording.vault import read_session
    from agentobs.store.database import connect, find_session, named

    found = existing_home(home)
    with connect(found) as connection:
        if session is None:
            failed = named(connection, "last_failed").fetchone()
            if failed is None:
                raise UsageError(
                    "no session failed", where=str(found.path), todo="agentobs sessions lists them"
                )
            session_id = str(failed[0])
        else:
            session_id = find_session(connection, session, key=found.key())
        segments = [
            row[0]
            for row in named(connection, "session_segments", session_id=session_id).fetchall()
        ]
    return read_session(found, session_id, segments)


def _servable(home: str | None, named: str) -> Recording:
    path = Path(named)
    if path.is_file() and not _is_fixture(path):
        from agentobs.recording.wirefile import read_wire_file

        return read_wire_file(path)
    if path.exists():
        from replay.fixture import as_recording, load

        return as_recording(load(path))
    return recorded(home, named)


def _is_fixture(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b'{"agentobs_fixture"')


def _folder_name(name: str) -> str:
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.")
    return safe or "session"


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("agentobs-kit", "anthropic")}
