"""Maintenance requests that a run makes in addition to its turns, such as the summary of a
compaction.

Each has its own lane and counts toward the run's cost. Its retries depend on the source: a turn needs the summary of a
compaction, while a background request has an alternative.
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
class MaintenanceRequest:
    """One maintenance request of a run, and its response."""

    arguments: dict[str, Any]
    """Arguments of the SDK's `messages.create`; the response is streamed, so it may be long."""
    source: QuerySource
    """The source of the request."""
    lane: str
    """Its own lane, see `lane_under`."""
    point: str
    """The point at which the run may be stopped, `TURN:NAME` and unique, such as `3:compaction`."""
    answer: Json | None = None
    """The response; None if failed attempts have used up the budget."""


async def upkeep(
    this: Run, wanted: MaintenanceRequest, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Send one maintenance request of a run; `wanted.answer` is the response.

    Retries and waits are yielded as events. The text is not, because it is not part of the run's
    response.

    Args:
        this: the run; its meters count the response, and its abort interrupts it.
        wanted: the request.
        here: the place in the turn.

    Raises:
    error_classes.PROVIDER_ERRORS: there is no response. Background requests have few retries, and none
    if the provider is overloaded.
        Stopped: the run was aborted.
    """
    with telemetry.span(
        "llm_request",
        this.asking(here, wanted.source, lane=wanted.lane),
        wanted.arguments["model"],
    ) as inside:
        request = Request(
            turn=this.state.turn,
            point=wanted.point,
            arguments={**wanted.arguments, "stream": True},
            inside=inside,
            source=wanted.source,
            transition=this.state.transition,
        )
        try:
            async with aclosing(answer(this, request, None, here)) as events:
                async for event in events:
                    if isinstance(event, Retry | Heartbeat | Degraded | BudgetReached):
                        yield event
        except Stopped:
            this.broken.append({})  # the partial response is not part of the conversation
            raise
    if this.subtype != "success":
        return
    this.counted(request.message, "exact")
    this.upkept.append(request.message)
    wanted.answer = request.message
