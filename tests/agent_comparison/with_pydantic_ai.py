"""The agent that pays, with pydantic-ai."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.capabilities import HandleDeferredToolCalls, Hooks
from pydantic_ai.exceptions import ApprovalRequired, SkipToolExecution, UsageLimitExceeded
from pydantic_ai.usage import UsageLimits

hooks = Hooks[Any]()
scout = Agent("anthropic:claude-sonnet-5", instructions="Be brief.")


@hooks.on.before_tool_execute(tools=["pay"])
async def guard(ctx: RunContext[Any], *, call: Any, tool_def: Any, args: Any) -> Any:
    if args["to"] == "Mallory":
        raise SkipToolExecution("Mallory is blocked")
    return args


async def answer(prompt: str, ask: Callable[[str], bool]) -> str:
    async def approve(_: Any, requests: DeferredToolRequests) -> DeferredToolResults:
        return requests.build_results(
            approvals={c.tool_call_id: ask(c.args_as_dict()["to"]) for c in requests.approvals}
        )

    agent = Agent(
        "anthropic:claude-sonnet-5", capabilities=[hooks, HandleDeferredToolCalls(approve)]
    )

    @agent.tool
    def pay(ctx: RunContext[Any], to: str) -> str:
        """Pay someone."""
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return f"paid {to}"

    @agent.tool
    async def scouting(ctx: RunContext[Any], prompt: str) -> str:
        """Find people."""
        return (await scout.run(prompt, usage=ctx.usage)).output

    try:
        result = await agent.run(prompt, usage_limits=UsageLimits(cost_limit=Decimal(1)))
    except UsageLimitExceeded:
        return ""
    return result.output
