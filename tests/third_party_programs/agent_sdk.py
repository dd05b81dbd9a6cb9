"""An agent of the Claude Agent SDK for Python, which starts its own copy of Claude Code."""

import asyncio
import json
import os
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query


async def main(prompt: str) -> None:
    """Print the result of the task."""
    options = ClaudeAgentOptions(
        permission_mode="bypassPermissions",
        model="claude-sonnet-5",
        mcp_servers=json.loads(os.environ.get("AGENT_MCP_SERVERS", "{}")),
    )
    async for message in query(prompt=prompt, options=options):
        if isinstance(message, ResultMessage):
            print(message.result)


asyncio.run(main(sys.argv[1]))
