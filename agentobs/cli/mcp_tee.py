"""The command `mcp-tee`: runs an MCP server and records its traffic."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from agentobs.cli.terminal.home_option import home_option


@click.command(
    "mcp-tee", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option(
    "--server", default="", help="Name of the server. Default: the name that the server reports."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def mcp_tee(context: click.Context, server: str, command: tuple[str, ...]) -> None:
    """Run an MCP server and record its requests and responses.

    Write `agentobs mcp-tee -- COMMAND ARGUMENTS...` in place of the server in the configuration of a client. All bytes
    of standard input and output are forwarded unchanged. Within `agentobs record --effects mcp`, the calls belong to
    the recorded session; otherwise they are recorded as a separate session.
    """
    from agentobs.effects.mcp.json_rpc import RpcExchange, StdioTraffic
    from agentobs.effects.mcp.mcp_observer import SOCKET_VARIABLE
    from agentobs.effects.mcp.mcp_records import McpServer
    from agentobs.effects.mcp.stdio_tee import SocketReport, run_tee, start_error
    from agentobs.recording.session import session, stop_recorder
    from agentobs.sink import sink

    try:
        if socket := os.environ.get(SOCKET_VARIABLE):
            sys.exit(run_tee(command, SocketReport(socket, server)))
        name = server or Path(command[0]).name
        with session(f"mcp {name}", home=home_option(context)) as opened:
            known = McpServer(server, "stdio", opened.content != "off")

            def receive(exchange: RpcExchange) -> None:
                sink.emit(known.record(opened.place(), exchange))

            traffic = StdioTraffic(receive)
            code = run_tee(command, traffic)
            traffic.close()
            opened.result({"exit_code": code})
    except OSError as error:
        message, code = start_error(command[0], error)
        click.echo(message, err=True)
    stop_recorder()
    sys.exit(code)
