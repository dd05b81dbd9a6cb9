"""A client with the package mcp: calls the servers of the file after `--mcp-config`."""

# mypy: ignore-errors
import asyncio
import json
import sys

from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client


def connect(server):
    """Return the connection of a server, as a context manager."""
    if "url" in server:
        return streamable_http_client(server["url"])
    return stdio_client(StdioServerParameters(command=server["command"], args=server["args"]))


async def main():
    """Call both tools of each server."""
    with open(sys.argv[sys.argv.index("--mcp-config") + 1]) as file:
        servers = json.load(file)["mcpServers"]
    for server in servers.values():
        async with connect(server) as (read, write, *_), ClientSession(read, write) as client:
            await client.initialize()
            await client.list_tools()
            added = await client.call_tool("add", {"a": 1, "b": 2})
            failed = await client.call_tool("fail", {"why": "because"})
            print(added.content[0].text, failed.is_error)


asyncio.run(main())
