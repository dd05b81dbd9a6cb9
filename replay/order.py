"""Which recorded requests must come after which: all in their order, but for those that were in flight together.

And how they are written down: those of agents that ran beside each other, as if they had run one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from agentobs.records.canonical import canonical
from agentobs.records.exchanges import ModelExchange, is_beside, lane_under
from agentobs.records.messages import assemble, tool_results, tool_uses
from replay.pieces import value_of


def afters(models: list[ModelExchange]) -> dict[int, list[int]]:
    """Return, for lanes whose requests overlapped, the asks that each ask must come after.

    When nothing overlapped, every request of a lane comes after all earlier ones, and nothing is said.
    Where some were in flight together, their order was chance: an ask then comes only after those whose
    answers its body goes on from.
    """
    lanes: dict[str, list[tuple[int, ModelExchange]]] = {}
    for number, exchange in enumerate(models, 1):
        lanes.setdefault(exchange.place.lane, []).append((number, exchange))
    found: dict[int, list[int]] = {}
    for lane in lanes.values():
        if any(_overlap(a, b) for (_, a), (_, b) in itertools.pairwise(lane)):
            found |= _continued(lane)
    return found


def by_calls(models: list[ModelExchange]) -> list[ModelExchange]:
    """Return requests with those of each sub-agent behind the request whose answer started it, in order of the calls.

    Which of several that ran beside each other came first was chance, and is not to be seen in a fixture.
    """
    issuers: dict[str, int] = {}
    for number, exchange in enumerate(models):
        for call in tool_uses(assemble(exchange.answer.headers, exchange.answer.body)):
            issuers[lane_under(exchange.place.lane, str(call.get("id")))] = number
    started: dict[int, dict[str, list[int]]] = {}
    apart: list[int] = []
    for number, exchange in enumerate(models):
        lane = _started_lane(exchange.place.lane, issuers)
        if lane is None or issuers[lane] >= number:
            apart.append(number)
        else:
            started.setdefault(issuers[lane], {}).setdefault(lane, []).append(number)
    order, left = list[ModelExchange](), list(reversed(apart))
    while left:
        number = left.pop()
        order.append(models[number])
        lanes = started.get(number, {})
        calls = sorted(lanes, key=list(issuers).index)
        left += reversed([inner for lane in calls for inner in lanes[lane]])
    return order


def _started_lane(lane: str, issuers: dict[str, int]) -> str | None:
    """Return the nearest lane at or above this one that a call started."""
    while lane not in issuers:
        if not is_beside(lane):
            return None
        lane = lane.rpartition("/")[0]
    return lane


def _overlap(earlier: ModelExchange, later: ModelExchange) -> bool:
    return later.started_ns < earlier.started_ns + earlier.ended_ns


def _continued(lane: list[tuple[int, ModelExchange]]) -> dict[int, list[int]]:
    issued: dict[str, int] = {}
    asked: dict[str, int] = {}
    found: dict[int, list[int]] = {}
    for number, exchange in lane:
        body = value_of(exchange.question.body)
        listed = body.get("messages") if isinstance(body, dict) else None
        messages = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
        found[number] = sorted({*_answers_heard(messages, issued), *_histories(messages, asked)})
        message = assemble(exchange.answer.headers, exchange.answer.body)
        issued |= {str(call.get("id")): number for call in tool_uses(message)}
        asked[canonical(messages)] = number
    return found


def _answers_heard(messages: list[dict[str, Any]], issued: dict[str, int]) -> Iterator[int]:
    """Yield the asks whose tool calls a body answers."""
    for message in messages:
        for result in tool_results(message):
            if number := issued.get(str(result.get("tool_use_id"))):
                yield number


def _histories(messages: list[dict[str, Any]], asked: dict[str, int]) -> Iterator[int]:
    """Yield the asks whose messages a body repeats before an answer of the model."""
    for at, message in enumerate(messages):
        if message.get("role") == "assistant" and (number := asked.get(canonical(messages[:at]))):
            yield number
