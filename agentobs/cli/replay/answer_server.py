"""`agentobs serve`: serve the responses of a recording over loopback HTTP."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.recordings import servable_recording


@click.command(
    help="Serve the responses of a recording over loopback HTTP, in place of the provider."
)
@click.argument("recording")
@click.option("--port", default=0, show_default="a free port", help="The port on 127.0.0.1.")
@click.option(
    "--match",
    type=click.Choice(["question", "order"]),
    default="question",
    show_default=True,
    help="How to choose a recorded response: by the matching request (`question`), or in order.",
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
        "rejected or not recorded."
    ),
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
    """Serve RECORDING: a recorded session, a fixture, or a file of exchanges (JSON lines).

    Stop with Ctrl-C or SIGTERM; the last line then shows how many exchanges were served.
    """
    from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions, parse_fault

    parsed_faults = tuple(parse_fault(fault) for fault in faults)
    options = ServeOptions(match, chunk, pace, parsed_faults, strict)
    provider = ServedProvider(servable_recording(home_option(context), recording), options, port)
    click.echo(f"serving {len(provider.script.exchanges)} exchanges; stop with Ctrl-C")
    click.echo(f"export ANTHROPIC_BASE_URL={provider.url} NO_PROXY=127.0.0.1")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        provider.serve_forever()
    script = provider.script
    click.echo(script.verdict(), err=True)
    sys.exit(1 if strict and (script.missed or script.rejected) else 130)
