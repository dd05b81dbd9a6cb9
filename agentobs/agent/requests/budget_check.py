"""Check a run against its budget, and act if a limit is reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import get_args

from agentobs.agent import budget, telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.conversation_hooks import turn_occasion
from agentobs.agent.events import BudgetLevel, BudgetReached, HookRan, Limit
from agentobs.ledger import RISING_TURNS, runaway
from agentobs.records.exchanges import Place

RUNAWAY_TURNS = RISING_TURNS + 1
"""The number of most recent turns that are checked for a runaway."""


async def enforce_budget(
    run: Run, here: Place | None, key: str
) -> AsyncGenerator[BudgetReached | BudgetLevel | HookRan, None]:
    """Check whether a limit of the budget is reached. If so, end the run or emit that it continues.

    If a large share of a limit is spent, emit that once.

    `key` distinguishes this check from other checks in the lane.
    """
    limits = run.inputs.options.budget
    if limits.day_usd is not None:
        spent = await telemetry.ask(run.inputs.world, here, "spent_today", key)
        run.totals.day_usd = Decimal(spent) if spent is not None else Decimal(0)
    amounts = await _spent(run)
    limit = await _reached(run, here, key, amounts)
    if limit is None or limit in run.progress.exceeded_limits:
        for level_event in await _report_level(run, here, key, amounts):
            yield level_event
        return
    continues = limits.at_limit == "warn"
    if limits.at_limit == "ask":
        facts = {"kind": "budget", "reason": f"The budget {limit} is used up."}
        occasion = turn_occasion("notification", run.progress.state.turn, key, facts)
        for hook_event in (await run.hooks.fire(occasion, here))[1]:
            yield hook_event
        continues = await _may_exceed(run, here, key, limit)
        if run.inputs.world.abort.should_stop(f"{key.partition(':')[0]}:beginning", 0):
            return  # The approval request was not answered.
    telemetry.event(run.inputs.world, here, "budget", limit, {"continues": continues})
    if continues:
        run.progress.exceeded_limits.add(limit)
    elif limit == "session_turns":
        run.end("error_max_turns", "max_turns")
    elif limit == "repeated_calls":
        run.end("error_max_turns", "max_turns")
        run.progress.limit_reason = (
            f"{limits.repeated_turns} turns in a row made the same calls and got the same results"
        )
    else:
        run.end("error_max_budget_usd", "max_budget")
    yield BudgetReached(limit, continues)


async def _may_exceed(run: Run, here: Place | None, key: str, limit: Limit) -> bool:
    """Request a person's approval to continue beyond a limit; return whether it was given."""
    question = {"about": {"limit": limit}, "reason": f"The budget {limit} is used up."}
    with telemetry.span(
        "blocked_on_user", here, "budget", expected_s=telemetry.APPROVAL_SECONDS
    ) as place:
        answer = await telemetry.ask(run.inputs.world, place, "consent", f"{key}:{limit}", question)
    return isinstance(answer, dict) and answer.get("behavior") == "allow"


async def is_over_budget(run: Run, here: Place | None) -> bool:
    """Return whether the last response has used up the budget, so that none of its tool calls may run."""
    limits = run.inputs.options.budget
    if limits.at_limit != "stop":
        return False
    limit = await _reached(run, here, f"{run.progress.state.turn}:tools", await _spent(run))
    return limit in ("interaction_usd", "session_usd", "day_usd")


async def _report_level(
    run: Run, here: Place | None, key: str, amounts: budget.Spent
) -> tuple[BudgetLevel | HookRan, ...]:
    """Report that a large share of a spending limit is used. Report it again only after the share has fallen.

    Returns the events that the caller has to yield.

    The world confirms the share and the amount: if runs share a budget, timing determines which run reports it and what
    the other runs have spent by then. A recording without this report replays without it.
    """
    limits = run.inputs.options.budget
    levels = budget.reached_levels(limits, amounts)
    # With a shared budget, the recording decides: a limit that is used up here may not have been used up there.
    if not levels and not (run.shares_budget and limits.limits_money):
        return ()
    reported = run.conversations[-1].budget_levels
    new = next(
        (
            [name, now, str(getattr(amounts, name))]
            for name, now in levels.items()
            if now > reported.get(name, 0)
        ),
        None,
    )
    for name, now in levels.items():
        if now < reported.get(name, 0):
            reported[name] = now
    if new is None and not run.shares_budget:
        return ()
    key = f"{key}:budget"
    match await telemetry.ask(run.inputs.world, here, "threshold", key, new):
        case [str(limit), int(percent), str(amount)] if limit in budget.MONEY_LIMITS:
            spent_usd = Decimal(amount)
        case [str(limit), int(percent)] if limit in budget.MONEY_LIMITS:
            # Recordings of earlier versions do not contain the amount.
            spent_usd = getattr(amounts, limit)
        case _:
            return ()
    reported[limit] = percent
    telemetry.event(run.inputs.world, here, "budget_level", limit, {"percent": percent})
    reached = BudgetLevel(limit, percent, spent_usd, getattr(limits, limit))
    facts = {"kind": "budget", "reason": f"{percent}% of the budget {limit} is spent."}
    occasion = turn_occasion("notification", run.progress.state.turn, key, facts)
    _, hook_events = await run.hooks.fire(occasion, here)
    return (reached, *hook_events)


async def _reached(run: Run, here: Place | None, key: str, amounts: budget.Spent) -> Limit | None:
    """Return the limit that was reached, or None. If runs share a budget, the limit is recorded and replayed."""
    allowed = run.progress.exceeded_limits
    limit = budget.reached(run.inputs.options.budget, amounts, allowed)
    if run.shares_budget and run.inputs.options.budget != budget.Budget():
        recorded = await telemetry.ask(run.inputs.world, here, "limit", key, limit)
        limit = recorded if recorded in get_args(Limit) else None
    return limit


async def _spent(run: Run) -> budget.Spent:
    """Return the amounts spent so far.

    Money is only computed if a limit needs it, and in a thread, because prices are loaded first.
    """
    turns, day_usd = run.conversations[-1].tool_turns, run.totals.day_usd
    if not run.inputs.options.budget.is_priced:
        return budget.Spent(
            day_usd=day_usd, session_turns=turns, repeated_turns=run.progress.repeated_turns
        )
    return await asyncio.to_thread(_priced, run, day_usd, turns)


def _priced(run: Run, day_usd: Decimal, turns: int) -> budget.Spent:
    session = run.conversations[-1].meter.total()
    last_turns = run.totals.turn_usage[-RUNAWAY_TURNS:]
    costs = [meter.total().usd for meter, _ in last_turns]
    return budget.Spent(
        interaction_usd=run.totals.interaction_meter.total().usd or Decimal(0),
        session_usd=session.usd or Decimal(0),
        day_usd=day_usd,
        session_turns=turns,
        repeated_turns=run.progress.repeated_turns,
        unpriced_calls=session.unpriced_calls,
        runaway=runaway(costs, [output_tokens for _, output_tokens in last_turns]),
    )
