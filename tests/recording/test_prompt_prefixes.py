"""Digests of prompts: which messages of a request are known by them."""

from __future__ import annotations

from dataclasses import replace

from agentobs.recording.facts.interpreter import Interpreter
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place
from agentobs.records.facts import Zones
from tests.store.recordings import attempt, session_id


def token_count(exchange: ModelExchange) -> ModelExchange:
    """Return an exchange that counts the tokens of the same request."""
    chunk = Chunk(b'{"input_tokens": 9}', 1)
    return replace(
        exchange,
        question=replace(exchange.question, path="/v1/messages/count_tokens"),
        answer=Answer(200, {"content-type": "application/json"}, (chunk,), "complete"),
    )


def test_a_token_count_keeps_the_digests_of_messages() -> None:
    """If only the tokens of the messages in between were counted, later messages still have digests."""
    plain, counted = Interpreter(b"k" * 16), Interpreter(b"k" * 16)
    place = Place(session_id(1), interaction_id="0" * 16)
    exchanges = [replace(attempt(1, turn), place=place) for turn in (1, 2, 3)]
    zones: list[list[Zones]] = []
    for interpreter, sent in (
        (plain, exchanges),
        (counted, [exchanges[0], token_count(exchanges[1]), exchanges[2]]),
    ):
        facts = [each.fact for record in sent for each in interpreter.interpret(record).facts]
        zones.append([fact for fact in facts if isinstance(fact, Zones)])
    assert [len(each) for each in zones] == [3, 2]
    assert zones[0][-1].messages == zones[1][-1].messages is not None
