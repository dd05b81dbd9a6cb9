"""The command that replays a session up to a turn and goes on live from there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli import home_option
from agentobs.errors import UsageError
from agentobs.records.shown import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentobs.sink import Record


@click.command(help="Replay a fixture up to a turn, and go on live from there.")
@click.argument("fixture", type=click.Path(path_type=Path))
@click.option(
    "--at",
    "turn",
    type=click.IntRange(min=1),
    required=True,
    help="The turn whose answer is the last recorded one. Its tools run for real.",
)
@click.option("--model", help="The model to ask from then on.")
@click.option("--system", help="The system prompt from then on; @FILE reads it from a file.")
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="KEY=JSON",
    help="Another option of requests, such as max_tokens=2000; null takes it away. May be repeated.",
)
@click.pass_context
def fork(
    context: click.Context,
    fixture: Path,
    turn: int,
    model: str | None,
    system: str | None,
    options: tuple[str, ...],
) -> None:
    """Fork FIXTURE, a folder or its recording.jsonl. All of it is recorded as a new session."""
    from agentobs.recording.session import start_recorder, stop_recorder
    from replay import DivergenceError, Fork, Replayer, ReplayOptions, load
    from replay.forking import tools_of

    loaded = load(fixture)
    changes = dict(_option(each) for each in options)
    chosen = Fork(turn, model, _text(system), changes)
    forked = Replayer(loaded, ReplayOptions(fork=chosen))
    if names := tools_of(loaded, turn):
        told = printable(", ".join(names))
        click.echo(f"live    from turn {turn} on tools run for real; first of all {told}", err=True)
    start_recorder(home_option(context))
    failure: Exception | None = None
    try:
        with forked:
            result = forked.run()
        click.echo(printable(str(result)))
    except DivergenceError as error:
        click.echo(error.divergence.text())
        sys.exit(1)
    except UsageError:
        raise
    except Exception as error:  # the agent's own, which the new session has ended with
        failure = error
    finally:
        stop_recorder()
    click.echo(
        f"forked  {printable(loaded.name)} after turn {turn}, {forked.beyond} live requests",
        err=True,
    )
    if (session_id := _session_of(forked.records)) is not None:
        click.echo(f"next    agentobs show {session_id} | agentobs freeze {session_id}", err=True)
    if failure is not None:
        raise UsageError(f"the agent failed: {type(failure).__name__}: {printable(str(failure))}")


def _option(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    try:
        if not (name and sign):
            raise ValueError
        return name, json.loads(value)
    except ValueError:
        raise UsageError(
            f"{text!r} sets no option",
            where="--set",
            todo="Write KEY=JSON, such as max_tokens=2000 or service_tier='\"auto\"'",
        ) from None


def _text(given: str | None) -> str | None:
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read it: {error}", where=given[1:]) from error


def _session_of(records: Iterable[Record]) -> str | None:
    from agentobs.records.exchanges import SessionCall

    return next((r.start.session_id for r in records if isinstance(r, SessionCall)), None)
