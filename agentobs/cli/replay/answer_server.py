"""`agentobs serve`: serve the responses of a recording over loopback HTTP."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.recordings import servable_recording
from agentobs.errors import UsageError

if TYPE_CHECKING:
    from agentobs.recording.wire.provider_server import Script
    from agentobs.records.exchanges import Recording


class _Match(click.Choice[str]):
    """The ways to match; `question`, the earlier name of `strict`, is still accepted."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a way to match by its current name."""
        return super().convert("strict" if value == "question" else value, param, ctx)


@click.command()
@click.argument("recording")
@click.option("--port", default=0, show_default="a free port", help="The port on 127.0.0.1.")
@click.option(
    "--match",
    type=_Match(["spine", "strict", "order"]),
    default="spine",
    show_default=True,
    help=(
        "How to choose a recorded response: by the conversation of the request (`spine`), by its complete body "
        "(`strict`), or in order."
    ),
)
@click.option(
    "--chunk",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Send bodies in chunks of this size.",
)
@click.option(
    "--pace",
    type=click.FloatRange(min=0),
    default=0.0,
    help=(
        "Playback speed: 1 is the recorded speed, 2 is twice as fast, 0 (default) sends chunks "
        "without pauses."
    ),
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="WHAT@N",
    help="A fault to inject, such as status:529@2 or cut:3@1. May be repeated.",
)
@click.option(
    "--strict",
    is_flag=True,
    help=(
        "Reject conversations that the real provider would reject, and exit with 1 if a request was "
        "rejected, not recorded or ambiguous."
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.option(
    "--explain",
    is_flag=True,
    help="With --match spine: print each request that is not exact, with the values that differ.",
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
    as_json: bool,
    explain: bool,
) -> None:
    """Serve the responses of a recording over loopback HTTP, in place of the provider.

    RECORDING is a recorded session, a fixture, or a file of exchanges (JSON lines). Stop with Ctrl-C or SIGTERM; the
    last line then shows how many exchanges were served.
    """
    from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions, parse_fault

    if explain and match != "spine":
        raise UsageError("requires --match spine", where="--explain", todo="Leave it out")
    parsed_faults = tuple(parse_fault(fault) for fault in faults)
    options = ServeOptions(
        "order" if match == "order" else "strict", chunk, pace, parsed_faults, strict
    )
    loaded = servable_recording(home_option(context), recording)
    provider = ServedProvider(loaded, options, port, _script(loaded, match))
    click.echo(f"serving {len(provider.script.exchanges)} exchanges; stop with Ctrl-C")
    click.echo(f"export ANTHROPIC_BASE_URL={provider.url} NO_PROXY=127.0.0.1")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        provider.serve_forever()
    script = provider.script
    if as_json:
        click.echo(json.dumps(script.counts(), ensure_ascii=False))
    click.echo(_explanation(script) if explain else script.verdict(), err=True)
    failed = script.missed or script.rejected or script.counts().get("ambiguous")
    sys.exit(1 if strict and failed else 130)


def _script(recording: Recording, match: str) -> Script | None:
    """Return the script that matches by conversation; None for the other ways to match."""
    from replay.served.spine_script import SpineScript

    return SpineScript(recording) if match == "spine" else None


def _explanation(script: Script) -> str:
    from replay.served.spine_script import SpineScript

    return script.result().explanation() if isinstance(script, SpineScript) else script.verdict()
