"""Which recorded requests must come after which, seen from what is written of it."""

from __future__ import annotations

import json
from typing import Any

from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from replay.fixture.order_rules import together
from tests.provider_script import call, text

MS = 1_000_000


def asked(
    number: int, said: list[Any], answer: dict[str, Any], ms: int = 5, **body: Any
) -> ModelExchange:
    """Return request `number`, sent 10 ms after the one before and answered within so many, by whom is not known."""
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": [answer]}
    heard = Answer(
        200,
        {"content-type": "application/json"},
        (Chunk(json.dumps(message).encode(), 0),),
        "complete",
    )
    question = Question("POST", "/v1/messages", {}, json.dumps({"messages": said, **body}).encode())
    return ModelExchange(
        Place("s"), f"{number:032x}", 10 * number * MS, None, ms * MS, question, heard
    )


def user(words: str) -> dict[str, Any]:
    return {"role": "user", "content": words}


def test_a_history_that_several_had_binds_none() -> None:
    """Two began with the same words and had the same answer: which of them goes on is not known."""
    begun, then = user("Ready?"), {"role": "assistant", "content": "OK"}
    lane = [
        asked(1, [begun], text("OK"), ms=15),
        asked(2, [user("Beside.")], text("There.")),
        asked(3, [begun], text("OK")),
        asked(4, [begun, then, user("Then do A.")], text("did A")),
        asked(5, [user("Alone."), {"role": "assistant", "content": "There."}], text("yes")),
        asked(6, [user("Beside."), {"role": "assistant", "content": "There."}], text("yes")),
    ]
    told = together(lane)
    assert told[4]["after"] == []
    assert told[5]["after"] == []
    assert told[6]["after"] == [2]


def test_a_thread_that_goes_on_from_nothing_comes_after_nothing() -> None:
    """An answer without an id is not the message that a thread without one goes on from."""
    nameless = Answer(200, {"content-type": "application/json"}, (Chunk(b"{}", 0),), "complete")
    first = asked(1, [user("Count.")], text(""), ms=15)
    first = ModelExchange(
        first.place, first.attempt_id, first.started_ns, None, 15 * MS, first.question, nameless
    )
    begins = asked(2, [user("Go.")], text("Gone."), thread={"previous_message_id": None})
    goes_on = asked(3, [user("On.")], text("Yes."), thread={"previous_message_id": "msg_2"})
    told = together([first, begins, goes_on])
    assert (told[2]["after"], told[3]["after"]) == ([], [2])


def test_conversations_that_end_with_a_call_are_over() -> None:
    """Each answers by a tool, as for an output of a type: they came one after the other, and are held to that."""
    lane = [
        asked(n, [user(f"Classify text {n}.")], call(n, "label", value="x")) for n in range(1, 9)
    ]
    assert together(lane) == {}
