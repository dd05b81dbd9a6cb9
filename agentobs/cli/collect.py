"""`agentobs collect`: receive the telemetry of other programs."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.optional_packages import needed_packages


@click.command(short_help="Receive the telemetry (OTLP) of Claude Code and other programs.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=4318,
    show_default=True,
    help="Port for OTLP over HTTP; 0 uses any free port.",
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    default=4317,
    show_default=True,
    help="Port for OTLP over gRPC; 0 uses any free port.",
)
@click.option("--no-grpc", is_flag=True, help="Receive only OTLP over HTTP.")
@click.pass_context
def collect(context: click.Context, port: int, grpc_port: int, no_grpc: bool) -> None:
    """Receive telemetry (OTLP) on this machine until Ctrl-C. The variables to set for Claude Code are printed first.

    Log records, spans and metrics become events next to the recorded requests. Only numbers, IDs and known words are
    stored. The views `telemetry`, `telemetry_requests` and `telemetry_differences` show them.
    """
    with needed_packages("the collector", "otlp,proxy"):
        from agentobs.collector.telemetry_collector import Collector, claude_code_variables
    from agentobs.proxy.client_variables import without_proxy
    from agentobs.recording.journal.home import open_home
    from agentobs.recording.session import start, stop_recorder

    home = open_home(home_option(context))
    collector = Collector(port, None if no_grpc else grpc_port)
    start(str(home.path))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with collector, contextlib.suppress(KeyboardInterrupt):
        click.echo(f"collecting into {home.path}; stop with Ctrl-C")
        if collector.grpc_url:
            click.echo(f"OTLP over gRPC: {collector.grpc_url}")
        click.echo(f"OTLP over HTTP: {collector.url}")
        click.echo("For Claude Code:")
        variables = claude_code_variables(collector.url) | without_proxy(os.environ)
        for name, value in variables.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        collector.wait()
    collector.sessions.close()
    stop_recorder()
    counts = collector.sessions.records
    click.echo(
        f"agentobs: received {_several(counts['log'], 'log record')}, {_several(counts['span'], 'span')} and "
        f"{_several(counts['metric'], 'data point')} of metrics",
        err=True,
    )
    sys.exit(130)


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
