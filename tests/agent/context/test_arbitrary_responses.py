"""Complete runs with arbitrary responses: every request is valid, and every run ends."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentobs.agent.context import Context
from agentobs.agent.events import Compaction, RequestStart
from agentobs.agent.state import Conversation, initial_state
from agentobs.agent.tools.tool import tool
from agentobs.provider.anthropic.messages import conversation_error
from tests.agent.agent_runs import events_of, of_kind, result_of
from tests.agent.context.generated_conversations import Message, conversations
from tests.agent.provider import (
    Provider,
    Reply,
    call,
    cut_after,
    error,
    error_in_stream,
    message,
    streamed,
    text,
)

SMALL = Context(window_tokens=3000, summary_tokens=500, reserve_tokens=500, kept_results=1)
TURNS = 4
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "c2lnbmVkIQ=="}


@tool(read_only=True, paths=("where",))
def look(where: str) -> str:
    """Look into a file."""
    return "y" * (len(where) * 300)


_NUMBERS = itertools.count()


def response_of(tokens: int, *content: Message, **more: Any) -> Reply:
    usage = {"input_tokens": tokens, "output_tokens": 10}
    return streamed(message(*content, usage=usage, **more))


def calling(tokens: int, size: int) -> Reply:
    calls = [call(f"toolu_{next(_NUMBERS)}", "look", where="x" * size) for _ in range(2)]
    return response_of(tokens, THOUGHT, text("So."), *calls)


REPLIES = st.one_of(
    st.builds(calling, st.integers(50, 2500), st.integers(1, 12)),
    st.builds(response_of, st.integers(50, 2500), st.just(text("Well."))),
    st.builds(
        lambda n: response_of(n, text("We"), stop_reason="max_tokens"), st.integers(50, 2500)
    ),
    st.sampled_from(
        [
            error(
                400, "invalid_request_error", text="prompt is too long: 9000 tokens > 3000 maximum"
            ),
            error(400, "invalid_request_error", text="prompt is too long"),
            error(413, "request_too_large"),
            error(529, "overloaded_error"),
            error_in_stream("overloaded_error"),
            cut_after(message(call("toolu_cut", "look", where="x"), text("So")), 7),
            response_of(2900, text("And"), stop_reason="model_context_window_exceeded"),
            response_of(100),
        ]
    ),
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(conversations(4), st.lists(REPLIES, min_size=1, max_size=10), st.booleans())
def test_every_request_is_valid_and_every_run_ends(
    before: tuple[Message, ...], replies: list[Reply], remembers: bool
) -> None:
    """Whatever the responses and the length of the conversation are, each request is valid and the run ends.

    The last response is repeated as often as necessary. The test provider fails on every request that the real provider
    would refuse. At most one compaction is reactive, and the conversation can be continued.
    """
    answer = {"role": "assistant", "content": [text("So far.")]}
    conversation = Conversation(messages=(*before, answer), turns=1)
    script: Any = itertools.chain(replies, itertools.repeat(replies[-1]))
    world = {"memory": lambda: "They looked."} if remembers else {}
    with Provider(script) as provider:
        for prompt in ("Look.", "And again."):
            events = events_of(
                provider,
                prompt,
                tools=[look],
                conversation=conversation,
                world=world,
                context=SMALL,
                max_turns=TURNS,
                max_retries=1,
                token_budget=300,
            )
            result_of(events)
            assert conversation_error(initial_state(conversation, "More.").messages) is None
            assert conversation_error(conversation.messages) is None
            starts = of_kind(events, RequestStart)
            assert len(starts) <= 60
    reactive = [e for e in of_kind(events, Compaction) if e.trigger == "reactive"]
    assert len(reactive) <= 1
    assert len(provider.requests) <= 200
