"""The required order of recorded requests, which is derived from their content."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agentobs.records.exchanges import (
    Answer,
    Chunk,
    ModelExchange,
    Place,
    Question,
    RecordedJob,
)
from replay.fixture.order_rules import order_keys
from tests.provider_script import call, text

MS = 1_000_000


def exchange(
    number: int, messages: list[Any], answer: dict[str, Any], ms: int = 5, **body: Any
) -> ModelExchange:
    """Return request `number`, sent 10 ms after the previous one and completed after `ms`, with an unknown caller."""
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": [answer]}
    response = Answer(
        200,
        {"content-type": "application/json"},
        (Chunk(json.dumps(message).encode(), 0),),
        "complete",
    )
    question = Question(
        "POST", "/v1/messages", {}, json.dumps({"messages": messages, **body}).encode()
    )
    return ModelExchange(
        Place("s"), f"{number:032x}", 10 * number * MS, None, ms * MS, question, response
    )


def user(words: str) -> dict[str, Any]:
    return {"role": "user", "content": words}


def test_a_shared_history_requires_no_order() -> None:
    """If two requests had the same prompt and response, a request that continues from this history is not ordered after
    either.
    """
    prompt, reply = user("Ready?"), {"role": "assistant", "content": "OK"}
    lane = [
        exchange(1, [prompt], text("OK"), ms=15),
        exchange(2, [user("Beside.")], text("There.")),
        exchange(3, [prompt], text("OK")),
        exchange(4, [prompt, reply, user("Then do A.")], text("did A")),
        exchange(5, [user("Alone."), {"role": "assistant", "content": "There."}], text("yes")),
        exchange(6, [user("Beside."), {"role": "assistant", "content": "There."}], text("yes")),
    ]
    keys = order_keys(lane)
    assert keys[4]["after"] == []
    assert keys[5]["after"] == []
    assert keys[6]["after"] == [2]


def test_a_thread_without_a_previous_message_has_no_predecessor() -> None:
    """The first request of a message thread has no predecessor, even if an earlier response has no message ID."""
    without_id = Answer(200, {"content-type": "application/json"}, (Chunk(b"{}", 0),), "complete")
    first = exchange(1, [user("Count.")], text(""), ms=15)
    first = ModelExchange(
        first.place, first.attempt_id, first.started_ns, None, 15 * MS, first.question, without_id
    )
    first_of_thread = exchange(
        2, [user("Go.")], text("Gone."), thread={"previous_message_id": None}
    )
    second_of_thread = exchange(
        3, [user("On.")], text("Yes."), thread={"previous_message_id": "msg_2"}
    )
    keys = order_keys([first, first_of_thread, second_of_thread])
    assert (keys[2]["after"], keys[3]["after"]) == ([], [2])


def test_sequential_conversations_that_end_with_a_tool_call_keep_their_order() -> None:
    """Sequential conversations that each end with a tool call, as for structured output, must stay sequential."""
    lane = [
        exchange(n, [user(f"Classify text {n}.")], call(n, "label", value="x")) for n in range(1, 9)
    ]
    assert order_keys(lane) == {}


def of_jobs(*serials: int | None) -> list[ModelExchange]:
    """Return sequential requests that continue nothing, each sent by a job; None if the job is unknown."""
    paths = [None if each is None else (("0", 1, 1), (str(each), each, each)) for each in serials]
    return [
        replace(
            exchange(n, [user(f"Prompt {n}.")], text("OK")),
            job=RecordedJob(path, is_worker=False) if path else None,
        )
        for n, path in enumerate(paths, 1)
    ]


@pytest.mark.parametrize(
    ("serials", "after"),
    [((2, 3), {1: [], 2: []}), ((2, 2), {}), ((2, 3, None), {}), ((None, None), {})],
)
def test_requests_of_several_jobs_are_not_ordered_by_time(
    serials: tuple[int | None, ...], after: dict[int, list[int]]
) -> None:
    """Requests of several jobs may be sent in any order; those of one job or of unknown jobs keep their order."""
    keys = order_keys(of_jobs(*serials))
    assert {number: each["after"] for number, each in keys.items()} == after
