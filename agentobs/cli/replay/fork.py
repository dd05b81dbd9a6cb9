"""The command that replays a session up to a turn and then continues live: `fork`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.api_key import has_api_key
from agentobs.cli.terminal.aws_option import aws_signer, sign_aws_option
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.optional_packages import needed_packages
from agentobs.errors import AgentobsError, UsageError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentobs.sink import Record
    from replay.fixture.format import Fixture


@click.command()
@click.argument("source", metavar="FIXTURE|SESSION")
@click.option(
    "--at",
    "turn",
    type=click.IntRange(min=1),
    required=True,
    help="The last turn whose response comes from the recording. Its tools run live.",
)
@click.option("--model", help="The model of the live requests.")
@click.option(
    "--system", help="The system prompt of the live requests; @FILE reads it from a file."
)
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
    "--in-place",
    is_flag=True,
    help="Run a recorded command in the current directory instead of in a copy of it.",
)
@sign_aws_option
@click.pass_context
def fork(
    context: click.Context,
    source: str,
    turn: int,
    model: str | None,
    system: str | None,
    options: tuple[str, ...],
    in_place: bool,
    signs_aws: bool,
) -> None:
    """Replay a fixture or a session up to a turn, then continue live.

    FIXTURE is the folder of a fixture, or its recording.jsonl. SESSION is the ID of a session, the start or end of the
    ID (4 characters or more), or its name.

    The fork is recorded as a new session. The replayed part sends nothing and costs nothing. In it, the agent gets the
    provider's original responses instead of the masked responses of the fixture, if the provider requires them. A
    recorded command runs in a copy of the current directory; its live requests use the base URL and the credentials of
    the environment.
    """
    from agentobs.determinism.entry import is_command
    from agentobs.recording.session import start_recorder, stop_recorder
    from replay import DivergenceError, Fork, Replayer, ReplayOptions

    changes = dict(_option(each) for each in options)
    chosen = Fork(turn, model, _text(system), changes)
    loaded = _loaded(home_option(context), source, turn)
    if is_command(loaded.header["entry"]):
        from agentobs.cli.replay.command_output import fork_command

        with needed_packages("a fork of a command", "proxy"):
            from replay import Live
        sign = aws_signer(is_wanted=signs_aws)
        place = "in this directory" if in_place else "in a copy of this directory"
        click.echo(
            f"live    all tools of the command run for real, {place}; after turn {turn}, the provider answers",
            err=True,
        )
        _announce_placeholders(loaded, turn)
        live = Live(home_option(context), model, _text(system), changes, sign)
        fork_command(loaded, turn, live, in_place=in_place)
    for name, is_given in (("--in-place", in_place), ("--sign-aws", signs_aws)):
        if is_given:
            raise UsageError(
                "this option is for commands, and the session was recorded from a Python agent",
                where=name,
                todo="Leave it out",
            )
    forked = Replayer(loaded, ReplayOptions(fork=chosen))
    _announce(loaded, turn)
    start_recorder(home_option(context))
    failure: Exception | None = None
    try:
        with forked:
            result = forked.run()
        click.echo(printable(str(result)))
    except DivergenceError as error:
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
        stop_recorder()
    click.echo(
        f"forked  {printable(loaded.name)} after turn {turn}, {forked.later_requests} live requests",
        err=True,
    )
    if (session_id := _session_of(forked.records)) is not None:
        click.echo(f"next    agentobs show {session_id} | agentobs freeze {session_id}", err=True)
    if failure is not None:
        raise UsageError(f"the agent failed: {type(failure).__name__}: {printable(str(failure))}")


def _loaded(home: str | None, source: str, turn: int) -> Fixture:
    """Return the fixture to fork, with the original responses of its session if the provider requires them.

    Raises:
        RecordingError: the provider would refuse the history, and the original responses cannot be read.
        UsageError: no fixture or session has that name.
    """
    from agentobs.cli.terminal.recordings import load_recording
    from replay import load
    from replay.fixture.original_answers import (
        check_sendable,
        fixture_of,
        unsendable,
        with_originals,
    )
    from replay.freeze.conversion import versions

    path = Path(source)
    if not (path.exists() or path.name != source):
        fixture = fixture_of(load_recording(home, source, has_ended=True), versions())
        check_sendable(fixture, turn)
        return fixture
    fixture, why = load(path), ""
    if fixture.session_id is not None and unsendable(fixture, turn):
        try:
            fixture = with_originals(fixture, load_recording(home, fixture.session_id))
        except AgentobsError as error:
            why = str(error)
    check_sendable(fixture, turn, why)
    return fixture


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
