"""Upkeep: requests that a run makes for itself beside its turns, such as the summary of a compaction.

Each is made in a lane of its own, and counts in the run's money. How long it is tried depends on who asks: a turn
hangs on the summary of a compaction; whoever asks in the background has another way.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.events import BudgetReached, Degraded, Event, Heartbeat, Retry
from agentobs.agent.interruption import Stopped
from agentobs.agent.requests.llm_request import Request, answer
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource


@dataclass(slots=True)
class Upkeep:
    """One request for the upkeep of a run, and what comes of it."""

    arguments: dict[str, Any]
    """Those of the SDK's `messages.create`; the answer is streamed, so that it may be long."""
    source: QuerySource
    """Who asks."""
    lane: str
    """The lane of its own, see `lane_under`."""
    point: str
    """Where the run may be stopped, `TURN:NAME` and unique within it, such as `3:compaction`."""
    answer: Json | None = None
    """The answer; None where attempts that failed have used up the budget."""


async def upkeep(this: Run, wanted: Upkeep, here: Place | None) -> AsyncGenerator[Event, None]:
    """Make one request for the upkeep of a run; `wanted.answer` is its answer then.

    Its retries and its waiting are told. What it says is not, for that is no part of the run's answer.

    Args:
        this: the run; its meters count the answer, and its abort interrupts it.
        wanted: what is asked.
        here: the place in the turn.

    Raises:
        recovery.PROVIDER_ERRORS: there is no answer. In the background retries are few, and none where the
            provider is overloaded.
        Stopped: the run was aborted.
    """
    with telemetry.span(
        "llm_request",
        this.asking(here, wanted.source, lane=wanted.lane),
        wanted.arguments["model"],
    ) as inside:
        asked = Request(
            turn=this.state.turn,
            point=wanted.point,
            arguments={**wanted.arguments, "stream": True},
            inside=inside,
            source=wanted.source,
            transition=this.state.transition,
        )
        try:
            async with aclosing(answer(this, asked, None, here)) as events:
                async for event in events:
                    if isinstance(event, Retry | Heartbeat | Degraded | BudgetReached):
                        yield event
        except Stopped:
            this.broken.append({})  # what came of it is no part of the conversation
            raise
    if this.subtype != "success":
        return
    this.counted(asked.message, "exact")
    this.upkept.append(asked.message)
    wanted.answer = asked.message
