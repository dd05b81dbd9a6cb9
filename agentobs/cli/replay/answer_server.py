"""agentobs serve: answer over loopback HTTP from a recording."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.recordings import _servable

if TYPE_CHECKING:
    pass


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
    from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions, parse_fault

    made = tuple(parse_fault(fault) for fault in faults)
    options = ServeOptions(match, chunk, pace, made, strict)
    provider = ServedProvider(_servable(home_option(context), recording), options, port)
    click.echo(f"serving {len(provider.script.exchanges)} exchanges; stop with Ctrl-C")
    click.echo(f"export ANTHROPIC_BASE_URL={provider.url} NO_PROXY=127.0.0.1")
    sys.stdout.flush()
    provider.serve_forever()
