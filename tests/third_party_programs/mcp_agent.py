"""An agent with the packages anthropic and mcp, which observes the effects of its session."""

# mypy: ignore-errors
import asyncio
import contextlib
import sys
from pathlib import Path

from anthropic import AsyncAnthropic
from mcp.client.client import Client
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

import agentobs

SERVER, URL, HOME = sys.argv[1:4]


async def main():
    """Run tools of both servers and write a file, until a response calls no tool."""
    client = agentobs.record(AsyncAnthropic(max_retries=0))
    messages = [{"role": "user", "content": "Add the sums."}]
    parameters = StdioServerParameters(command=sys.executable, args=[SERVER])
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(agentobs.session("sums", effects=["files", "mcp"]))
        read, write = await stack.enter_async_context(stdio_client(parameters))
        # The first server is called with a session of the older protocol, the second one with the client of the newer.
        calc = await stack.enter_async_context(ClientSession(read, write))
        await calc.initialize()
        servers = {"calc": calc, "web": await stack.enter_async_context(Client(URL))}
        tools = [
            {"name": "Write", "input_schema": {"type": "object"}},
            *[
                {"name": f"mcp__{server}__{tool.name}", "input_schema": tool.input_schema}
                for server, session in servers.items()
                for tool in (await session.list_tools()).tools
            ],
        ]

        async def run(call):
            if call.name == "Write":
                Path(call.input["file_path"]).write_text(call.input["content"])
                return "written"
            _, server, tool = call.name.split("__")
            result = await servers[server].call_tool(tool, call.input)
            return result.content[0].text

        while True:
            request = {
                "model": "claude-sonnet-5",
                "max_tokens": 100,
                "system": f"Primary working directory: {Path.cwd()}",
                "messages": messages,
                "tools": tools,
            }
            async with client.messages.stream(**request) as stream:
                response = await stream.get_final_message()
            calls = [each for each in response.content if each.type == "tool_use"]
            if not calls:
                break
            results = await asyncio.gather(*map(run, calls))
            messages += [
                {"role": "assistant", "content": [each.model_dump() for each in response.content]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": call.id, "content": result}
                        for call, result in zip(calls, results, strict=True)
                    ],
                },
            ]
        print(response.content[0].text)


agentobs.start(HOME)
asyncio.run(main())
agentobs.stop_recorder()
