"""Check a run against its budget, and act if a limit is reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import get_args

from agentobs.agent import budget, telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.conversation_hooks import occasion
from agentobs.agent.events import BudgetReached, HookRan, Limit
from agentobs.ledger import RISING_TURNS, runaway
from agentobs.records.exchanges import Place

LOOKED_AT = RISING_TURNS + 1
"""How many of the last turns are checked for a runaway."""


async def within_budget(
    this: Run, here: Place | None, key: str
) -> AsyncGenerator[BudgetReached | HookRan, None]:
    """Check whether a limit is reached and act on it; at a hard limit, the run ends.

    `key` distinguishes this check from others in the lane.
    """
    allowed = this.options.budget
    if allowed.day_usd is not None:
        spent = await telemetry.ask(this.world, here, "spent_today", key)
        this.day_usd = Decimal(spent) if spent is not None else Decimal(0)
    limit = await _reached(this, here, key)
    if limit is None or limit in this.goes_beyond:
        return
    continues = allowed.at_limit == "warn"
    if allowed.at_limit == "ask":
        facts = {"kind": "budget", "reason": f"The budget {limit} is used up."}
        rung = occasion("notification", this.state.turn, key, facts)
        for ran in (await this.hooks.fire(rung, here))[1]:
            yield ran
        continues = await _may_go_beyond(this, here, key, limit)
        if this.world.abort.reached(f"{key.partition(':')[0]}:beginning", 0):
            return  # no answer
    telemetry.event(this.world, here, "budget", limit, {"continues": continues})
    if continues:
        this.goes_beyond.add(limit)
    elif limit == "session_turns":
        this.ended("error_max_turns", "max_turns")
    else:
        this.ended("error_max_budget_usd", "max_budget")
    yield BudgetReached(limit, continues)


async def _may_go_beyond(this: Run, here: Place | None, key: str, limit: Limit) -> bool:
    """Request approval from a person to continue beyond a limit."""
    question = {"about": {"limit": limit}, "reason": f"The budget {limit} is used up."}
    with telemetry.span(
        "blocked_on_user", here, "budget", expected_s=telemetry.PERSON_S
    ) as blocked:
        answer = await telemetry.ask(this.world, blocked, "consent", f"{key}:{limit}", question)
    return isinstance(answer, dict) and answer.get("behavior") == "allow"


async def is_over_budget(this: Run, here: Place | None) -> bool:
    """Return whether the response that requests these tools has used up the budget, so that none may run."""
    allowed = this.options.budget
    if allowed.at_limit != "stop":
        return False
    limit = await _reached(this, here, f"{this.state.turn}:tools")
    return limit in ("interaction_usd", "session_usd", "day_usd")


async def _reached(this: Run, here: Place | None, key: str) -> Limit | None:
    """Return the limit that was reached. If runs share a budget, the result is recorded and replayed."""
    limit = budget.reached(this.options.budget, await _spent(this))
    if this.shares and this.options.budget != budget.Budget():
        recorded = await telemetry.ask(this.world, here, "limit", key, limit)
        limit = recorded if recorded in get_args(Limit) else None
    return limit


async def _spent(this: Run) -> budget.Spent:
    """Return the amounts spent; money only if a limit needs it, computed outside the event loop's thread."""
    turns, day_usd = this.talks[-1].tool_turns, this.day_usd
    if not this.options.budget.is_priced:
        return budget.Spent(day_usd=day_usd, session_turns=turns)
    return await asyncio.to_thread(_priced, this, day_usd, turns)


def _priced(this: Run, day_usd: Decimal, turns: int) -> budget.Spent:
    talk, last = this.talks[-1].meter.total(), this.latest[-LOOKED_AT:]
    costs = [meter.total().usd for meter, _ in last]
    return budget.Spent(
        interaction_usd=this.purse.total().usd or Decimal(0),
        session_usd=talk.usd or Decimal(0),
        day_usd=day_usd,
        session_turns=turns,
        unpriced_calls=talk.unpriced_calls,
        runaway=runaway(costs, [output_tokens for _, output_tokens in last]),
    )
