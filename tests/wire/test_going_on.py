"""Recorded conversations of other clients: each can be gone on with, from its end and from each of its turns."""

from __future__ import annotations

import pytest

from agentobs.agent.sessions.reconstruction import MESSAGES, conversation_of
from agentobs.agent.sessions.resumption import conversation_from
from agentobs.provider.anthropic.messages import fault, tool_results, tool_uses
from agentobs.recording.wire.exchange_file import read_wire_file
from agentobs.records.exchanges import ModelExchange
from tests.wire.corpus import BATCHES, batch


@pytest.mark.parametrize("number", range(BATCHES))
def test_a_conversation_goes_on(number: int) -> None:
    """The provider would take it: each call has a result, the one that was sent where that is recorded."""
    found = 0
    for file in batch(number):
        recording = read_wire_file(file.path)
        asks = [
            each
            for each in recording.exchanges
            if isinstance(each, ModelExchange) and each.question.path.partition("?")[0] == MESSAGES
        ]
        for after in [*asks[1:], None] if asks else []:
            until_ns = after.started_ns if after else None
            talk = conversation_from(conversation_of(recording, until_ns=until_ns))
            assert fault(talk.messages) is None, file.path.name
            *_, before, last = [{}, *talk.messages]
            called = {call["id"] for call in tool_uses(before)}
            assert called <= {result["tool_use_id"] for result in tool_results(last)}
            found += 1
    assert found > 50
