"""What an agent thought goes back as it came, where it may, and nowhere else."""

from __future__ import annotations

from agentobs.agent.thinking import without_thinking
from agentobs.records.messages import fault

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "xyz"}
CALL = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "3"}


def said(role: str, *blocks: dict[str, object]) -> dict[str, object]:
    return {"role": role, "content": list(blocks)}


def test_without_thinking_a_conversation_stays_valid() -> None:
    """Both sorts of thinking are taken out, answers of nothing else with them; the rest is untouched."""
    first, results = said("user", {"type": "text", "text": "Add."}), said("user", RESULT)
    messages = [
        first,
        said("assistant", THOUGHT, HIDDEN, CALL),
        results,
        said("assistant", THOUGHT),
        said("user", {"type": "text", "text": "Well?"}),
        {"role": "assistant", "content": "3"},
    ]
    bare = without_thinking(messages)
    assert bare == (first, said("assistant", CALL), results, messages[4], messages[5])
    assert bare[0] is first
    assert fault(bare) is None
    assert without_thinking(bare) == bare
