"""Generated conversations that the provider would accept, and checks of conversations derived from them."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st

from agentobs.provider.anthropic.messages import blocks, conversation_error

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
USER_CONTENTS = st.one_of(
    WORDS,
    WORDS.map(lambda text: [{"type": "text", "text": text}]),
    st.just([IMAGE, {"type": "text", "text": "What is it?"}]),
    st.just([DOCUMENT, {"type": "text", "text": "Read it."}]),
)


@st.composite
def conversations(draw: st.DrawFn, steps: int = 8) -> tuple[Message, ...]:
    """Draw a conversation of prompts, responses, calls with results, thinking and media that ends with a user
    message.
    """
    messages: list[Message] = [{"role": "user", "content": draw(USER_CONTENTS)}]
    for number in range(draw(st.integers(0, steps))):
        kind = draw(st.sampled_from(("talk", "calls", "calls", "calls", "compaction")))
        thought: list[Message] = []
        if draw(st.booleans()):
            thought = [{"type": "thinking", "thinking": draw(WORDS), "signature": f"s{number}"}]
        if kind == "compaction":
            thought = [SUMMARY, *thought]
        text_blocks = [{"type": "text", "text": draw(WORDS)}]
        if kind == "talk":
            messages += [
                {"role": "assistant", "content": [*thought, *text_blocks]},
                {"role": "user", "content": draw(USER_CONTENTS)},
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
            {"role": "assistant", "content": [*thought, *text_blocks, *uses]},
            {"role": "user", "content": results},
        ]
    assert conversation_error(messages) is None
    return tuple(messages)


def pairs(messages: Any) -> dict[str, bool]:
    """Return each call's ID, and whether the message of the call contains thinking."""
    found: dict[str, bool] = {}
    for message in messages:
        own = blocks(message)
        thinks = any(block["type"] == "thinking" for block in own)
        found |= {block["id"]: thinks for block in own if block["type"] == "tool_use"}
    return found


def check_derived(before: Any, after: Any) -> None:
    """Check that the provider accepts a derived conversation, and that each call in it has kept its thinking."""
    assert conversation_error(after) is None
    assert after[0]["role"] == "user"
    earlier_calls = pairs(before)
    for tool_use_id, thinks in pairs(after).items():
        assert earlier_calls[tool_use_id] == thinks
    roles = [message["role"] for message in after]
    assert all(one != other for one, other in itertools.pairwise(roles))
