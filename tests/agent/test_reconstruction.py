"""A conversation rebuilt from a recording equals the conversation that the loop kept."""

from __future__ import annotations

import json

import pytest

from agentobs.agent import Conversation, Result
from agentobs.agent.sessions.reconstruction import conversation_of, without_breakpoints
from agentobs.agent.sessions.resumption import conversation_from
from agentobs.provider.anthropic.messages import conversation_error
from agentobs.records.exchanges import ModelExchange, Recording, ToolExchange, WorldExchange
from tests.agent.replayed_scenarios import shared_replay
from tests.agent.scenarios import SCENARIOS
from tests.marks import mark_all_but_first

pytestmark = pytest.mark.xdist_group("scenarios")


def replayed(name: str) -> tuple[Conversation, Recording, str | None]:
    """Replay a scenario; return the loop's conversation, the recording, and the last error."""
    replay = shared_replay(name)
    kinds = (ModelExchange, ToolExchange, WorldExchange)
    exchanges = [each for each in replay.exchanges if isinstance(each, kinds)]
    exchanges.sort(key=lambda each: each.started_ns)
    recording = Recording("s", "s", None, None, "completed", None, None, 0, tuple(exchanges))
    *_, error = [event.error for event in replay.events if isinstance(event, Result)]
    return replay.conversation, recording, error


@pytest.mark.parametrize("name", mark_all_but_first(SCENARIOS, pytest.mark.slow, kept=5))
def test_every_scenario_is_reconstructed(name: str) -> None:
    """The messages, turns and agents of every scenario are reconstructed, whether its runs ended normally or were
    stopped.

    If the last request was never answered, the loop drops the prompt, because its caller still has the prompt, but the
    recording keeps it. A recording also shows which background agents never reported.
    """
    conversation, recording, error = replayed(name)
    found = conversation_from(json.loads(json.dumps(conversation_of(recording))))
    kept = [without_breakpoints(message) for message in conversation.messages]
    asks = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    [*_, last] = [each for each in asks if each.place.lane == "main"]
    is_answered = last.answer.status == 200 and error is None
    if is_answered and not conversation.background:
        assert list(found.messages) == kept
        assert (found.turns, found.tool_turns) == (conversation.turns, conversation.tool_turns)
    else:
        assert list(found.messages)[: len(kept)] == kept
        assert {message["role"] for message in found.messages[len(kept) :]} <= {"user"}
    assert set(found.children) == {*conversation.children, *conversation.background}
    assert conversation_error(found.messages) is None
