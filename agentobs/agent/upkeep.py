"""Upkeep: requests that a run makes for itself beside its turns, such as the summary of a compaction.

Each is made in a lane of its own, counts in the run's money, and fails fast: whoever needs it has another way.
"""

from __future__ import annotations

from typing import Any

from agentobs.agent import telling
from agentobs.agent.interrupt import Stopped
from agentobs.agent.running import Run
from agentobs.agent.trying import Request, answer
from agentobs.records.canonical import Json
from agentobs.records.exchanges import Place, QuerySource


async def upkeep(
    this: Run,
    arguments: dict[str, Any],
    here: Place | None,
    source: QuerySource,
    lane: str,
    point: str,
) -> Json:
    """Make one request for the upkeep of a run, and return its answer.

    Args:
        this: the run; its meters count the answer, and its abort interrupts it.
        arguments: those of the SDK's `messages.create`; the answer is streamed, so that it may be long.
        here: the place in the turn.
        source: who asks.
        lane: the lane of its own, see `lane_under`.
        point: where the run may be stopped, `TURN:NAME` and unique within it, such as `3:compaction`.

    Raises:
        recovery.PROVIDER_ERRORS: there is no answer. Retries are few, and none where the provider is overloaded.
        Stopped: the run was aborted.
    """
    with telling.span(
        "llm_request", this.asking(here, source, lane=lane), arguments["model"]
    ) as inside:
        asked = Request(
            turn=this.state.turn,
            point=point,
            arguments={**arguments, "stream": True},
            inside=inside,
            source=source,
            transition=this.state.transition,
        )
        try:
            async for _ in answer(this, asked, None, here):
                pass
        except Stopped:
            this.broken.append({})  # what came of it is no part of the conversation
            raise
    this.counted(asked.message, "exact")
    this.upkept.append(asked.message)
    return asked.message
