"""The agent that pays, with the Claude Agent SDK."""

from collections.abc import Callable
from typing import Any

from claude_agent_sdk import (
    AgentDefinition,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
    create_sdk_mcp_server,
    tool,
)


@tool("pay", "Pay someone.", {"to": str})
async def pay(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"paid {arguments['to']}"}]}


async def guard(payload: Any, tool_use_id: str | None, context: Any) -> Any:
    if payload["tool_input"].get("to") != "Mallory":
        return {}
    denied = {"permissionDecision": "deny", "permissionDecisionReason": "Mallory is blocked"}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **denied}}


async def answer(prompt: str, ask: Callable[[str], bool]) -> str:
    async def approve(name: str, arguments: dict[str, Any], context: Any) -> Any:
        agrees = ask(arguments["to"])
        return PermissionResultAllow() if agrees else PermissionResultDeny(message="denied")

    options = ClaudeAgentOptions(
        model="claude-sonnet-5",
        max_budget_usd=1,
        mcp_servers={"bank": create_sdk_mcp_server("bank", tools=[pay])},
        hooks={"PreToolUse": [HookMatcher("mcp__bank__pay", [guard])]},
        agents={"scout": AgentDefinition("Finds people.", "Be brief.", tools=[])},
        can_use_tool=approve,
    )
    async with ClaudeSDKClient(options) as client:
        await client.query(prompt)
        async for message in client.receive_response():
            if isinstance(message, ResultMessage):
                return message.result or ""
    return ""
