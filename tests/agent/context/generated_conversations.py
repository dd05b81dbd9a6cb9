"""Generated conversations that the provider would accept, and the properties of anything derived from them."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st

from agentobs.provider.anthropic.messages import blocks, fault

Message = dict[str, Any]

WORDS = st.integers(0, 2000).map(lambda size: "word " * (size // 5) + "x")
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
DOCUMENT = {"type": "document", "title": "A page", "source": {"type": "url", "url": "https://x/y"}}
SUMMARY = {"type": "compaction", "content": "Before this nothing happened."}
CONTENTS = st.one_of(
    WORDS,
    WORDS.map(lambda text: [{"type": "text", "text": text}]),
    st.just([{"type": "text", "text": "see"}, IMAGE]),
    st.just([{"type": "tool_reference", "tool_name": "look"}]),
)
SAID = st.one_of(
    WORDS,
    WORDS.map(lambda text: [{"type": "text", "text": text}]),
    st.just([IMAGE, {"type": "text", "text": "What is it?"}]),
    st.just([DOCUMENT, {"type": "text", "text": "Read it."}]),
)


@st.composite
def conversations(draw: st.DrawFn, steps: int = 8) -> tuple[Message, ...]:
    """A conversation that ends with the user's turn: prompts, responses, calls with results, thinking, media."""
    messages: list[Message] = [{"role": "user", "content": draw(SAID)}]
    for number in range(draw(st.integers(0, steps))):
        kind = draw(st.sampled_from(("talk", "calls", "calls", "calls", "compaction")))
        thought: list[Message] = []
        if draw(st.booleans()):
            thought = [{"type": "thinking", "thinking": draw(WORDS), "signature": f"s{number}"}]
        if kind == "compaction":
            thought = [SUMMARY, *thought]
        said = [{"type": "text", "text": draw(WORDS)}]
        if kind == "talk":
            messages += [
                {"role": "assistant", "content": [*thought, *said]},
                {"role": "user", "content": draw(SAID)},
            ]
            continue
        ids = [f"toolu_{number}_{each}" for each in range(draw(st.integers(1, 3)))]
        uses = [
            {"type": "tool_use", "id": i, "name": "look", "input": {"where": f"{i}.txt"}}
            for i in ids
        ]
        results: list[Message] = [
            {"type": "tool_result", "tool_use_id": i, "content": draw(CONTENTS)} for i in ids
        ]
        if draw(st.booleans()):
            results.append({"type": "text", "text": "Hurry."})
        messages += [
            {"role": "assistant", "content": [*thought, *said, *uses]},
            {"role": "user", "content": results},
        ]
    assert fault(messages) is None
    return tuple(messages)


def pairs(messages: Any) -> dict[str, bool]:
    """The calls by ID, and whether each has its thinking."""
    found: dict[str, bool] = {}
    for message in messages:
        own = blocks(message)
        thinks = any(block["type"] == "thinking" for block in own)
        found |= {block["id"]: thinks for block in own if block["type"] == "tool_use"}
    return found


def holds(before: Any, after: Any) -> None:
    """The provider accepts the derived conversation, and no call in it has lost its thinking."""
    assert fault(after) is None
    assert after[0]["role"] == "user"
    whole = pairs(before)
    for tool_use_id, thinks in pairs(after).items():
        assert whole[tool_use_id] == thinks
    roles = [message["role"] for message in after]
    assert all(one != other for one, other in itertools.pairwise(roles))
