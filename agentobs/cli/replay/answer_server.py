"""agentobs serve: answer over loopback HTTP from a recording."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.recordings import _servable

if TYPE_CHECKING:
    pass


@click.command(help="Act as the provider over loopback HTTP, with the responses of a recording.")
@click.argument("recording")
@click.option("--port", default=0, show_default="a free port", help="The port on 127.0.0.1.")
@click.option(
    "--match",
    type=click.Choice(["question", "order"]),
    default="question",
    show_default=True,
    help="How to pick a recorded response: by matching request, or in order.",
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
        "Factor of the recorded speed between chunks: 1 is as recorded, 2 twice as fast, 0 "
        "(default) without pauses."
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
    help="Refuse conversations that the real provider would refuse.",
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
    from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions, parse_fault

    made = tuple(parse_fault(fault) for fault in faults)
    options = ServeOptions(match, chunk, pace, made, strict)
    provider = ServedProvider(_servable(home_option(context), recording), options, port)
    click.echo(f"serving {len(provider.script.exchanges)} exchanges; stop with Ctrl-C")
    click.echo(f"export ANTHROPIC_BASE_URL={provider.url} NO_PROXY=127.0.0.1")
    sys.stdout.flush()
    provider.serve_forever()
