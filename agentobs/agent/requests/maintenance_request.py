"""Maintenance requests that a run makes in addition to its turns, such as the summary of a
compaction.

Each request has its own lane and counts toward the cost of the run. Its retries depend on its source: a turn needs the
summary of a compaction, but the run can continue without a background request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.events import (
    BudgetLevel,
    BudgetReached,
    Degraded,
    Event,
    Heartbeat,
    Retry,
    SpeedChange,
)
from agentobs.agent.interruption import Stopped
from agentobs.agent.requests.llm_request import LlmRequest, send
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource

_REPORTED = (Retry, Heartbeat, Degraded, BudgetReached, BudgetLevel, SpeedChange)
"""The events of a maintenance request that the run emits."""


@dataclass(slots=True)
class MaintenanceRequest:
    """One maintenance request of a run, and its response."""

    arguments: dict[str, Any]
    """Arguments of the SDK's `messages.create`. The response is streamed, so it may be long."""
    source: QuerySource
    """The source of the request."""
    lane: str
    """The lane of this request alone, see `child_lane`."""
    point: str
    """The point at which the run may be stopped: `TURN:NAME`, unique in the run, such as `3:compaction`."""
    response: Json | None = None
    """The response; None if failed attempts have used up the budget."""


async def send_maintenance_request(
    run: Run, maintenance: MaintenanceRequest, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Send one maintenance request of a run; `maintenance.response` is the response.

    Retries and waits are yielded as events. The text is not recorded, because it is not part of the response of the
    run.

    Args:
        run: the run. Its meters count the response, and its abort interrupts the request.
        maintenance: the request.
        here: the place of the turn.

    Raises:
        error_classes.PROVIDER_ERRORS: there is no response. Background requests are retried only a
            few times, and never if the provider is overloaded.
        Stopped: the run was aborted.
    """
    with telemetry.span(
        "llm_request",
        run.request_place(here, maintenance.source, lane=maintenance.lane),
        maintenance.arguments["model"],
    ) as place:
        request = LlmRequest(
            turn=run.progress.state.turn,
            point=maintenance.point,
            arguments=run.at_current_speed({**maintenance.arguments, "stream": True}),
            place=place,
            source=maintenance.source,
            transition=run.progress.state.transition,
        )
        try:
            async with aclosing(send(run, request, None, here)) as events:
                async for event in events:
                    if isinstance(event, _REPORTED):
                        yield event
        except Stopped:
            # The loop stores the last void response in the conversation; this one is not part of it.
            run.totals.void_responses.append({})
            raise
    if run.progress.subtype != "success":
        return
    run.count_usage(request.message, "exact")
    run.totals.maintenance_responses.append(request.message)
    maintenance.response = request.message
