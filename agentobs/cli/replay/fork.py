"""The command that replays a session up to a turn and then continues live: `fork`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.replay.live_options import at_option, system_option
from agentobs.cli.replay.workspace_choice import (
    dollars,
    kept_directory,
    new_directory,
    print_exactness,
    with_links,
)
from agentobs.cli.terminal.api_key import has_api_key
from agentobs.cli.terminal.aws_option import aws_signer, sign_aws_option
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.optional_packages import needed_packages
from agentobs.errors import AgentobsError, UsageError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentobs.cli.replay.fork_result import ForkResult
    from agentobs.sink import Record
    from replay import Fork
    from replay.fixture.format import Fixture
    from replay.workspace.recorded_workspace import RecordedWorkspace


@click.command()
@click.argument("source", metavar="FIXTURE|SESSION")
@at_option
@click.option("--model", help="The model of the live requests.")
@system_option
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="KEY=JSON",
    help=(
        "Another field of the live requests, such as max_tokens=2000; null removes the "
        "field. May be repeated."
    ),
)
@click.option(
    "--prompt",
    metavar="TEXT",
    help="A text for the model, sent with the tool results of turn N; @FILE reads it from a file.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="For a session with recorded files: the new directory in which the fork works. Default: a temporary "
    "directory, which is deleted when the fork is pruned.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Link a path of the current directory into this directory, such as node_modules, which is not recorded. May "
    "be repeated.",
)
@click.option(
    "--max-usd",
    type=str,
    metavar="X",
    help="Send no request that could bring the cost above this number of dollars.",
)
@click.option(
    "--in-place",
    is_flag=True,
    help="Run a recorded command in the current directory instead of in a copy of it, or a session with recorded files "
    "instead of in a new directory.",
)
@click.option("--result-file", type=click.Path(path_type=Path), hidden=True)
@sign_aws_option
@click.pass_context
def fork(
    context: click.Context,
    source: str,
    turn: int,
    model: str | None,
    system: str | None,
    options: tuple[str, ...],
    prompt: str | None,
    output: Path | None,
    links: tuple[Path, ...],
    max_usd: str | None,
    in_place: bool,
    result_file: Path | None,
    signs_aws: bool,
) -> None:
    """Replay a fixture or a session up to a turn, then continue live.

    FIXTURE is the folder of a fixture, or its recording.jsonl. SESSION is the ID of a session, the start or end of the
    ID (4 characters or more), or its name.

    The fork is recorded as a new session. The replayed part sends nothing and costs nothing. If the provider requires
    it, the replayed part uses the provider's original responses instead of the masked ones of the fixture. A recorded
    command runs in a copy of the current directory; its live requests use the base URL and the credentials of the
    environment.

    If the files of the session were recorded (`--effects files`), the fork runs in a new directory instead: it starts
    with the files at the start of the session, and has those of turn N when it goes live.
    """
    from agentobs.cli.replay.fork_result import ForkResult
    from agentobs.determinism.entry import is_command
    from replay import Fork
    from replay.scenario.live_meter import LiveMeter
    from replay.workspace.recorded_workspace import KEY

    changes = dict(_option(each) for each in options)
    loaded, workspace = fork_source(home_option(context), source, turn)
    meter = LiveMeter(dollars(max_usd))
    result = ForkResult(result_file, meter)
    had_files = workspace is not None
    if in_place or workspace is None:
        _check_unused({"--output": output, "--link": links}, in_place=in_place)
        loaded.header.pop(KEY, None)
        workspace = None
    else:
        workspace.at_turn(turn)
        print_exactness(workspace, turn)
        workspace = with_links(workspace, links)
        if output is None:
            result.kept = kept_directory(home_option(context), "agentobs-fork-")
            output = result.kept.path / workspace.name
        else:
            output = new_directory(output)
        result.directory = output
    with result.written():
        if is_command(loaded.header["entry"]):
            from agentobs.cli.replay.command_output import fork_command

            with needed_packages("a fork of a command", "proxy"):
                from replay import Live
            sign = aws_signer(is_wanted=signs_aws)
            _announce_command(turn, in_place=in_place, has_files=workspace is not None)
            _announce_placeholders(loaded, turn)
            system, prompt = _text(system), _text(prompt)
            live = Live(home_option(context), model, system, changes, sign, prompt, meter)
            fork_command(
                loaded,
                turn,
                live,
                in_place=in_place,
                workspace=workspace,
                output=output,
                result=result,
            )
        for name, is_given in (
            ("--in-place", in_place and not had_files),
            ("--sign-aws", signs_aws),
        ):
            if is_given:
                raise UsageError(
                    "this option is for commands, and the session was recorded from a Python agent",
                    where=name,
                    todo="Leave it out",
                )
        chosen = Fork(turn, model, _text(system), changes, _text(prompt), workspace, output, meter)
        _fork_agent(context, loaded, chosen, result)


def _fork_agent(context: click.Context, loaded: Fixture, chosen: Fork, result: ForkResult) -> None:
    """Fork a session of a Python agent, and print where it continued."""
    from agentobs.recording.options import Options
    from agentobs.recording.session import start_recorder, stop_recorder
    from replay import DivergenceError, Replayer, ReplayOptions

    assert chosen.meter is not None
    turn = chosen.turn
    forked = Replayer(loaded, ReplayOptions(fork=chosen))
    _announce(loaded, turn)
    start_recorder(home_option(context), Options(backends=(chosen.meter,)))
    failure: Exception | None = None
    try:
        with forked:
            returned = forked.run()
        click.echo(printable(str(returned)))
    except DivergenceError as error:
        result.problem = error.divergence.summary
        click.echo(error.divergence.text())
        if error.divergence.kind == "missing" and not has_api_key():
            click.echo(
                "note    the environment contains no API key; if the agent reads its key from there, set "
                "ANTHROPIC_API_KEY",
                err=True,
            )
        sys.exit(1)
    except AgentobsError:
        raise
    except Exception as error:  # raised by the agent; the new session has ended with this exception
        failure = error
    finally:
        result.restored = forked.workspace.restored
        if (session_id := _session_of(forked.records)) is not None:
            result.session_ids = [session_id]
        stop_recorder()
    click.echo(
        f"forked  {printable(loaded.name)} after turn {turn}, {forked.later_requests} live requests",
        err=True,
    )
    result.print_files(turn)
    if session_id is not None:
        click.echo(f"next    agentobs show {session_id} | agentobs freeze {session_id}", err=True)
    if failure is not None:
        raise UsageError(f"the agent failed: {type(failure).__name__}: {printable(str(failure))}")


def _check_unused(options: Mapping[str, Any], *, in_place: bool) -> None:
    """Check that no option is set that is only for sessions with recorded files.

    Raises:
        UsageError: one is set.
    """
    for name, value in options.items():
        if value:
            why = "the fork runs in place" if in_place else "this session recorded no files"
            raise UsageError(
                why,
                where=name,
                todo="Leave it out"
                if in_place
                else "Record files with `agentobs record --effects files`, or leave it out",
            )


def fork_source(
    home: str | None, source: str, turn: int
) -> tuple[Fixture, RecordedWorkspace | None]:
    """Return the fixture to fork, with the original responses of its session if the provider requires them; and its
    recorded files, or those of the session.

    Raises:
        RecordingError: the provider would refuse the history, and the original responses cannot be read.
        UsageError: no fixture or session has that name.
    """
    from agentobs.cli.replay.workspace_choice import session_workspace
    from agentobs.cli.terminal.recordings import load_recording
    from replay import load
    from replay.fixture.original_answers import (
        check_sendable,
        fixture_of,
        unsendable,
        with_originals,
    )
    from replay.freeze.conversion import versions
    from replay.workspace.recorded_workspace import workspace_of

    path = Path(source)
    if not (path.exists() or path.name != source):
        recording = load_recording(home, source, has_ended=True)
        fixture = fixture_of(recording, versions())
        check_sendable(fixture, turn)
        return fixture, session_workspace(home, recording)
    fixture, why = load(path), ""
    if fixture.session_id is not None and unsendable(fixture, turn):
        try:
            fixture = with_originals(fixture, load_recording(home, fixture.session_id))
        except AgentobsError as error:
            why = str(error)
    check_sendable(fixture, turn, why)
    return fixture, workspace_of(fixture)


def _announce_command(turn: int, *, in_place: bool, has_files: bool) -> None:
    """Print that all tools run for real, and where."""
    place = "in this directory" if in_place else "in a copy of this directory"
    if has_files:
        place = "in a new directory with the recorded files"
    click.echo(
        f"live    all tools of the command run for real, {place}; after turn {turn}, the provider answers",
        err=True,
    )


def _announce(fixture: Fixture, turn: int) -> None:
    """Print which tools run live first, and which secrets in the history are placeholders."""
    from replay.scenario.fork_plan import tools_of

    if names := tools_of(fixture, turn):
        shown = printable(", ".join(names))
        click.echo(
            f"live    from turn {turn} on, tools execute for real, starting with {shown}", err=True
        )
    _announce_placeholders(fixture, turn)


def _announce_placeholders(fixture: Fixture, turn: int) -> None:
    """Print which secrets in the history are placeholders."""
    from replay.fixture.original_answers import placeholders

    if secrets := placeholders(fixture, turn):
        kinds = ", ".join(f"{count} {kind}" for kind, count in secrets.items())
        click.echo(
            f"note    the recorded responses contain placeholders instead of secrets ({kinds}), and the provider "
            "and live tools get these placeholders",
            err=True,
        )


def _option(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    try:
        if not (name and sign):
            raise ValueError
        return name, json.loads(value)
    except ValueError:
        raise UsageError(
            f"expected KEY=JSON, got {text!r}",
            where="--set",
            todo="For example, pass max_tokens=2000 or service_tier='\"auto\"'",
        ) from None


def _text(given: str | None) -> str | None:
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the file: {error}", where=given[1:]) from error


def _session_of(records: Iterable[Record]) -> str | None:
    from agentobs.records.exchanges import SessionCall

    return next((r.start.session_id for r in records if isinstance(r, SessionCall)), None)
