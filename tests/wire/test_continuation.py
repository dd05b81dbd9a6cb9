"""Recorded conversations of other clients can be resumed, from their end and from each of their turns."""

from __future__ import annotations

import pytest

from agentobs.agent.sessions.reconstruction import conversation_of
from agentobs.agent.sessions.resumption import conversation_from
from agentobs.provider.anthropic.messages import conversation_error, tool_results, tool_uses
from agentobs.provider.registry import ANTHROPIC
from agentobs.recording.wire.exchange_file import read_wire_file
from agentobs.records.exchanges import ModelExchange
from tests.wire.corpus import BATCHES, batch


@pytest.mark.parametrize("number", range(BATCHES))
def test_every_conversation_can_be_resumed(number: int) -> None:
    """A conversation that is resumed from its end or any turn is valid for the provider: each tool call has a
    result.
    """
    found = 0
    for file in batch(number):
        recording = read_wire_file(file.path)
        attempts = [
            each
            for each in recording.exchanges
            if isinstance(each, ModelExchange)
            and each.question.path.partition("?")[0] == ANTHROPIC.turn_path
        ]
        for next_attempt in [*attempts[1:], None] if attempts else []:
            until_ns = next_attempt.started_ns if next_attempt else None
            conversation = conversation_from(conversation_of(recording, until_ns=until_ns))
            assert conversation_error(conversation.messages) is None, file.path.name
            *_, previous, last = [{}, *conversation.messages]
            called = {call["id"] for call in tool_uses(previous)}
            assert called <= {result["tool_use_id"] for result in tool_results(last)}
            found += 1
    assert found > 50
