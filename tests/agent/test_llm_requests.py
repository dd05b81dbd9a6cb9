"""LLM requests of the loop if the provider fails, a response is truncated or paused, or a fallback model is used."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic import AccessToken

from agentobs.agent.agent_run import Run, RunInputs
from agentobs.agent.events import (
    Continuation,
    Degraded,
    Fallback,
    Heartbeat,
    Message,
    RequestStart,
    Retry,
    Tombstone,
    ToolDispatch,
    ToolDone,
)
from agentobs.agent.interruption import Stopped
from agentobs.agent.loop import complete, live_world, run
from agentobs.agent.model import output_limits
from agentobs.agent.model.error_classes import PROVIDER_ERRORS
from agentobs.agent.model.thinking import Budgeted
from agentobs.agent.requests.maintenance_request import MaintenanceRequest, send_maintenance_request
from agentobs.agent.state import Conversation, initial_state
from agentobs.agent.tools.tool import tool
from agentobs.records.exchanges import ModelExchange, Place, QuerySource, WorldExchange, child_lane
from agentobs.records.facts import Event as Fact
from agentobs.world import Abort

from .agent_runs import (
    SESSION,
    events_of,
    in_loop,
    of_kind,
    options,
    recorded,
    result_of,
    ticking_world,
)
from .provider import (
    MODEL,
    Provider,
    call,
    cut_after,
    error,
    error_in_stream,
    message,
    streamed,
    text,
    unstreamed,
)
from .provider import Reply as ProviderReply

DONE = message(text("Done."))
OVERLOADED = error(529, "overloaded_error")
OTHER = "claude-other-1"
OVERFLOW = (
    "input length and `max_tokens` exceed context limit: {} + {} > 200000, decrease input length"
)
THOUGHT = {"type": "thinking", "thinking": "Hm, so", "signature": "c2ln"}
BUDGET = {"type": "enabled", "budget_tokens": 1024}
UNATTENDED: dict[str, Any] = {"unattended": True}


def truncated(words: str, **more: Any) -> dict[str, Any]:
    """Return a response that was truncated at its limit."""
    return message(text(words), stop_reason="max_tokens", **more)


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def facts(records: list[Any]) -> list[tuple[str, str | None]]:
    return [(str(r.kind), r.label) for r in records if isinstance(r, Fact) and r.kind != "context"]


# Credentials


def test_new_credentials_are_used() -> None:
    """After a 401 the credentials are refreshed, and the same request is sent with the new credentials, which are not
    recorded.
    """
    with Provider([error(401, "authentication_error", retry="false"), streamed(DONE)]) as provider:
        events, records, clients = in_loop(_refreshing(provider, True))
    assert [h["authorization"][-6:] for h in provider.headers] == ["first!", "second"]
    assert of_kind(events, Retry) == [Retry(1, 1, 0.0, "authentication_error", 401)]
    assert result_of(events).text == "Done."
    world_exchanges = [r for r in records if isinstance(r, WorldExchange)]
    assert [
        (a.question.kind, a.question.key, a.answer)
        for a in world_exchanges
        if a.question.kind == "refresh"
    ] == [("refresh", "1:1", True)]
    exchanges = [r for r in records if isinstance(r, ModelExchange)]
    assert "first!" not in repr(world_exchanges) + repr(exchanges)
    assert all(b"second" not in e.question.body for e in exchanges)
    assert clients == 1


def test_only_the_loop_retries_after_a_credential_refresh() -> None:
    """After a credential refresh, only the loop retries failures, not the SDK client."""
    replies = [error(401, "authentication_error"), error(500, "api_error"), streamed(DONE)]
    with Provider(replies) as provider:
        events, _, _ = in_loop(_refreshing(provider, True))
    assert [h["x-stainless-retry-count"] for h in provider.headers] == ["0"] * 3
    assert [e.status for e in of_kind(events, Retry)] == [401, 500]
    assert result_of(events).text == "Done."


@pytest.mark.parametrize(("has_refresh", "requests"), [(False, 1), (True, 2)])
def test_credentials_that_are_rejected_again(has_refresh: bool, requests: int) -> None:
    """Credentials are refreshed once per request; a second 401, or a 401 after a failed refresh, ends the run."""
    refusals = [error(401, "authentication_error")] * 3
    with Provider(refusals) as provider:
        events, _, _ = in_loop(_refreshing(provider, has_refresh))
    assert len(provider.requests) == requests
    assert (result_of(events).error, result_of(events).terminal_reason) == (
        "authentication_error",
        "model_error",
    )


async def _refreshing(provider: Provider, has_refresh: bool) -> tuple[list[Any], list[Any], int]:
    """Run an agent with a first key that a refresh replaces; return the events, the records and the number of
    refreshes.
    """
    refreshed = []
    with recorded() as records:
        async with provider.client() as client:
            client.api_key = "first!"

            def refresh() -> bool:
                refreshed.append(1)
                client.api_key = "second"
                return has_refresh

            world = ticking_world(client, refresh=refresh)
            events = [event async for event in run("Hello", world=world, options=options())]
    return events, records, len(refreshed)


def test_a_token_provider_of_the_client_is_used() -> None:
    """If the client has a token provider, credentials are refreshed without a refresh function."""
    forced_flags: list[bool] = []

    async def credentials(*, force_refresh: bool = False) -> AccessToken:
        forced_flags.append(force_refresh)
        return AccessToken("token-2" if force_refresh else "token-1")

    async def run_client(url: str) -> Any:
        async with anthropic.AsyncAnthropic(credentials=credentials, base_url=url) as client:
            return await complete("Hello", world=live_world(client), options=options())

    with Provider([error(401, "authentication_error"), streamed(DONE)]) as provider:
        result = in_loop(run_client(provider.base_url))
    assert [h["authorization"] for h in provider.headers] == ["Bearer token-1", "Bearer token-2"]
    assert (result.text, forced_flags) == ("Done.", [False, True])


# Response limits that do not fit the window


def test_max_tokens_is_lowered_to_what_fits() -> None:
    """If the prompt and `max_tokens` exceed the window, the request is repeated with the `max_tokens` that fits, which
    is reported.
    """
    refused = error(400, "invalid_request_error", text=OVERFLOW.format(190_000, 20_000))
    waits: list[float] = []
    with Provider([refused, streamed(DONE)]) as provider:
        events = events_of(provider, waits=waits, max_tokens=20_000)
    assert [r["max_tokens"] for r in provider.requests] == [20_000, 9_000]
    assert of_kind(events, Degraded) == [Degraded("answer_length", "overflow")]
    assert (waits, result_of(events).text) == ([], "Done.")


@pytest.mark.parametrize("prompt", [196_001, 250_000])
def test_a_prompt_that_leaves_few_tokens_is_too_long(prompt: int) -> None:
    """If a prompt leaves fewer than 3,000 tokens for the response, it counts as too long."""
    refused = error(400, "invalid_request_error", text=OVERFLOW.format(prompt, 20_000))
    with Provider([refused]) as provider:
        result = result_of(events_of(provider, max_tokens=20_000))
    assert (len(provider.requests), result.terminal_reason) == (1, "prompt_too_long")


def test_max_tokens_is_lowered_once() -> None:
    """`max_tokens` is lowered once, even if the caller set it in `extra`; if the request still does not fit, its prompt
    is too long.
    """
    refused = error(400, "invalid_request_error", text=OVERFLOW.format(190_000, 20_000))
    with Provider([refused, refused]) as provider:
        result = result_of(events_of(provider, extra={"max_tokens": 20_000}))
    assert [r["max_tokens"] for r in provider.requests] == [20_000, 9_000]
    assert result.terminal_reason == "prompt_too_long"


# Fallback models


def test_the_fallback_model_after_three_overloads() -> None:
    """After three consecutive overloads, the rest of the run uses the fallback model, without thinking that is signed
    for the first model.
    """
    call_message = message(THOUGHT, text("See"), call("a", "look", where="box"))
    broken = error_in_stream("overloaded_error")
    answers = [
        streamed(call_message),
        OVERLOADED,
        broken,
        OVERLOADED,
        streamed(DONE),
        streamed(DONE),
    ]
    conversation = Conversation()
    with Provider(answers) as provider, recorded() as records:
        events = events_of(provider, tools=[look], conversation=conversation, fallback_model=OTHER)
        assert of_kind(events, Fallback) == [Fallback(2, MODEL, OTHER)]
        assert [(e.transition, e.model) for e in of_kind(events, RequestStart)] == [
            ("start", MODEL),
            ("next_turn", MODEL),
            ("next_turn", MODEL),
            ("next_turn", MODEL),
            ("model_fallback", OTHER),
        ]
        assert provider.requests[4]["messages"][1]["content"] == call_message["content"][1:]
        assert ("fallback", OTHER) in facts(records)
        assert [e.wait_s for e in of_kind(events, Retry)] == [0.5, 1.0, 0.0]
        assert result_of(events).subtype == "success"
    assert [r["model"] for r in provider.requests] == [MODEL] * 4 + [OTHER]


def test_the_fallback_model_does_not_start_to_think_between_tools() -> None:
    """The fallback model gets no thinking budget until the tools are done, because the provider rejects thinking that
    starts between tools.
    """
    call_message = message(THOUGHT, text("See"), call("a", "look", where="box"))
    second_call_message = message(call("b", "look", where="bag"))
    answers = [
        streamed(call_message),
        *[OVERLOADED] * 3,
        streamed(second_call_message),
        *[streamed(DONE)] * 2,
    ]
    variants: list[dict[str, Any]] = [{"thinking": Budgeted(1024)}, {"extra": {"thinking": BUDGET}}]
    for variant in variants:
        conversation, run_options = Conversation(), {**variant, "max_tokens": 2000, "tools": [look]}
        with Provider(answers) as provider:
            events = events_of(
                provider, conversation=conversation, fallback_model=OTHER, **run_options
            )
            later = events_of(provider, conversation=conversation, model=OTHER, **run_options)
        assert [r.get("thinking") for r in provider.requests] == [*[BUDGET] * 4, None, None, BUDGET]
        assert (result_of(events).text, result_of(later).text) == ("Done.", "Done.")


def test_a_partial_response_of_the_first_model_is_void() -> None:
    """If the fallback model takes over, the partial response of the first model and its started call are void, and the
    call of the fallback model runs.
    """
    call_message = message(call("a", "look", where="box"), text("So"))
    first_chunks = streamed(call_message).chunks[:7]
    overload = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}\n\n'
    broken = ProviderReply((*first_chunks, overload), headers=streamed(call_message).headers)
    second_reply = streamed(message(call("b", "look", where="bag")))
    with Provider([OVERLOADED, OVERLOADED, broken, second_reply, streamed(DONE)]) as provider:
        events = events_of(provider, tools=[look], fallback_model=OTHER)
    assert of_kind(events, Tombstone, Fallback) == [
        Tombstone(1, 3, ("a",)),
        Fallback(1, MODEL, OTHER),
    ]
    assert [e.question.tool_use_id for e in of_kind(events, ToolDispatch)] == ["a", "b"]
    assert [e.question.tool_use_id for e in of_kind(events, ToolDone)] == ["b"]
    assert result_of(events).text == "Done."


def test_a_later_run_with_the_first_model() -> None:
    """If a later run uses the first model again, the thinking of the fallback model is removed."""
    conversation = Conversation()
    thought = message(THOUGHT, text("Yes."))
    with Provider(
        [OVERLOADED] * 3 + [streamed(thought), streamed(thought), streamed(DONE)]
    ) as provider:
        events_of(provider, conversation=conversation, fallback_model=OTHER)
        events_of(provider, conversation=conversation, model=OTHER)
        events_of(provider, conversation=conversation)
    assert provider.requests[4]["messages"][1]["content"] == thought["content"]
    assert provider.requests[5]["messages"][1]["content"] == thought["content"][1:]
    assert provider.requests[5]["model"] == MODEL


def test_the_fallback_model_has_its_own_response_limit() -> None:
    """The fallback model starts with the original response limit, which is then lowered separately."""
    first = error(400, "invalid_request_error", text=OVERFLOW.format(190_000, 20_000))
    other = error(400, "invalid_request_error", text=OVERFLOW.format(194_000, 20_000))
    with Provider([first, *[OVERLOADED] * 3, other, streamed(DONE)]) as provider:
        events = events_of(provider, max_tokens=20_000, fallback_model=OTHER)
    assert [(r["model"], r["max_tokens"]) for r in provider.requests] == [
        (MODEL, 20_000),
        *[(MODEL, 9_000)] * 3,
        (OTHER, 20_000),
        (OTHER, 5_000),
    ]
    assert result_of(events).text == "Done."


def test_streams_of_the_fallback_model_are_counted_separately() -> None:
    """The fallback model starts with streaming; its own three broken streams disable streaming for it."""
    breaks = [cut_after(DONE, 2)] * 3
    with Provider([*breaks, *[OVERLOADED] * 3, *breaks, unstreamed(DONE)]) as provider:
        events = events_of(provider, fallback_model=OTHER)
    streams = [True] * 3 + [False] * 3 + [True] * 3 + [False]
    assert ["stream" in r for r in provider.requests] == streams
    assert result_of(events).text == "Done."


# Streams


def test_no_streaming_after_three_broken_streams() -> None:
    """If three consecutive streams break before any content, the request is repeated without streaming, which is
    reported.
    """
    with Provider([cut_after(DONE, 2)] * 3 + [unstreamed(DONE)]) as provider:
        events = events_of(provider)
    assert ["stream" in r for r in provider.requests] == [True, True, True, False]
    assert of_kind(events, Degraded) == [Degraded("streaming", "broken_streams")]
    assert result_of(events).text == "Done."


def test_a_connection_that_is_reset_or_refused() -> None:
    """Reset and refused connections are retried; a refused connection costs nothing."""
    with Provider([ProviderReply(is_reset=True), streamed(DONE)]) as provider:
        events = events_of(provider)
        base_url = provider.base_url
    assert of_kind(events, Retry) == [Retry(1, 1, 0.5, "APIConnectionError", None)]
    assert (len(provider.requests), result_of(events).text) == (2, "Done.")
    provider.base_url = base_url  # no server listens on this port anymore
    refused = events_of(provider, max_retries=2)
    assert [e.error for e in of_kind(refused, Retry)] == ["APIConnectionError"] * 2
    result = result_of(refused)
    assert (result.error, result.terminal_reason) == ("APIConnectionError", "model_error")
    assert result.meter.total().calls == 0


# Response limits


def test_a_truncated_response_is_requested_again_with_a_higher_limit() -> None:
    """Once per turn, a truncated response is void, and the request is repeated with a higher limit; the usage of both
    counts.
    """
    with Provider([streamed(truncated("Once upon")), streamed(DONE)]) as provider:
        events = events_of(provider)
    assert [r["max_tokens"] for r in provider.requests] == [100, 64_000]
    assert provider.requests[0]["messages"] == provider.requests[1]["messages"]
    assert of_kind(events, Tombstone, Continuation, RequestStart, Message) == [
        RequestStart(1, 1, "start", "main", MODEL),
        Tombstone(1, 1, ()),
        Continuation(1, 1, 64_000, is_void=True),
        RequestStart(1, 2, "max_output_tokens_raised", "main", MODEL),
        Message(1, DONE),
    ]
    result = result_of(events)
    assert (result.text, result.num_turns, result.usage[MODEL].output_tokens) == ("Done.", 1, 10)


def test_a_truncated_response_is_continued_three_times() -> None:
    """A truncated response is continued three times; then the run ends with an error, the partial text and a complete
    conversation.
    """
    conversation = Conversation()
    words = ["void", "One, ", "two, ", "three, ", "four"]
    with Provider([streamed(truncated(each)) for each in words]) as provider:
        events = events_of(provider, conversation=conversation)
    assert [r["max_tokens"] for r in provider.requests] == [100] + [64_000] * 4
    assert [(e.number, e.is_void) for e in of_kind(events, Continuation)] == [
        (1, True),
        (1, False),
        (2, False),
        (3, False),
    ]
    result = result_of(events)
    assert (result.subtype, result.terminal_reason, result.stop_reason) == (
        "error_during_execution",
        "max_output_tokens",
        "max_tokens",
    )
    assert result.text == "One, two, three, four"
    assert [m["role"] for m in conversation.messages] == ["user", "assistant"] * 4
    assert conversation.messages[2]["content"] == [text(output_limits.CONTINUE_PROMPT)]


def test_a_response_in_several_parts() -> None:
    """The result contains the text of all parts of a response, and each new response may raise the limit again."""
    parts = [
        truncated("void"),
        truncated("Half "),
        message(text("whole"), call("a", "look", where="box")),
    ]
    later = [truncated("void"), message(text("The end."))]
    with Provider([streamed(each) for each in (*parts, *later)]) as provider:
        events = events_of(provider, tools=[look])
    assert [r["max_tokens"] for r in provider.requests] == [100, 64_000, 64_000, 100, 64_000]
    assert result_of(events).text == "The end."
    with Provider(
        [streamed(truncated("void")), streamed(truncated("Half ")), streamed(DONE)]
    ) as provider:
        assert result_of(events_of(provider)).text == "Half Done."


@pytest.mark.parametrize("raised", [None, 100, 50])
def test_raising_the_limit_can_be_disabled(raised: int | None) -> None:
    """If raising the limit is disabled, the model continues even the first truncated response."""
    with Provider([streamed(truncated("Half ")), streamed(DONE)]) as provider:
        events = events_of(provider, max_tokens_raised=raised)
    assert [r["max_tokens"] for r in provider.requests] == [100, 100]
    assert result_of(events).text == "Half Done."


def test_the_raised_limit_without_streaming() -> None:
    """Without streaming, the limit is raised to the maximum that the SDK allows."""
    with Provider([unstreamed(truncated("void")), unstreamed(DONE)]) as provider:
        events = events_of(provider, stream=False)
    assert [r["max_tokens"] for r in provider.requests] == [100, 21_333]
    assert result_of(events).text == "Done."


def test_a_raised_limit_beyond_the_models_maximum() -> None:
    """If the raised limit exceeds the model's maximum, the request is repeated with that maximum."""
    refused = error(
        400, "invalid_request_error", text="max_tokens: 64000 > 8192, which is the maximum allowed"
    )
    with Provider([streamed(truncated("void")), refused, streamed(DONE)]) as provider:
        events = events_of(provider)
    assert [r["max_tokens"] for r in provider.requests] == [100, 64_000, 8_192]
    assert result_of(events).text == "Done."


BEYOND_MAXIMUM = error(
    400, "invalid_request_error", text="max_tokens: 64000 > 8192, which is the maximum allowed"
)


def test_the_reported_output_limit_is_remembered() -> None:
    """If the provider reports an output limit, later requests of the conversation use it."""
    conversation = Conversation()
    replies: list[Any] = [
        truncated("void"),
        BEYOND_MAXIMUM,
        truncated("One "),
        DONE,
        truncated("void"),
        DONE,
    ]
    with Provider(
        [r if isinstance(r, ProviderReply) else streamed(r) for r in replies]
    ) as provider:
        events = events_of(provider, conversation=conversation)
        events += events_of(provider, conversation=conversation)
        events_of(provider, conversation=conversation, max_tokens=9_000)
    limits_asked = [r["max_tokens"] for r in provider.requests]
    assert limits_asked == [100, 64_000, 8_192, 8_192, 100, 8_192, 8_192]
    assert [(e.max_tokens, e.is_void) for e in of_kind(events, Continuation)] == [
        (64_000, True),
        (8_192, False),
        (8_192, True),
    ]


def test_a_truncated_response_at_the_models_maximum_is_continued() -> None:
    """A response that was truncated at the model's maximum is continued instead of requested again, so that no billed
    response is void.
    """
    conversation = Conversation()
    answers: list[Any] = [
        truncated("One "),
        BEYOND_MAXIMUM,
        truncated("two "),
        DONE,
        truncated("Half "),
        DONE,
    ]
    with Provider(
        [r if isinstance(r, ProviderReply) else streamed(r) for r in answers]
    ) as provider:
        first = events_of(provider, conversation=conversation, max_tokens=8_192)
        second = events_of(provider, conversation=conversation, max_tokens=8_192)
    limits = [r["max_tokens"] for r in provider.requests]
    assert limits == [8_192, 64_000, 8_192, 8_192, 8_192, 8_192]
    assert [(e.number, e.max_tokens, e.is_void) for e in of_kind(first, Continuation)] == [
        (1, 64_000, True),
        (1, 8_192, False),
        (2, 8_192, False),
    ]
    result = result_of(first)
    assert (result.text, result.num_turns) == ("One two Done.", 3)
    assert result.usage[MODEL].output_tokens == 15
    assert of_kind(second, Tombstone) == []
    assert result_of(second).text == "Half Done."


def test_a_truncated_response_is_continued_if_the_window_has_no_space() -> None:
    """If the rest of the window is not larger than the truncated response, the model continues the response."""
    full = error(400, "invalid_request_error", text=OVERFLOW.format(190_000, 64_000))
    with Provider([streamed(truncated("One ")), full, streamed(DONE)]) as provider:
        events = events_of(provider, max_tokens=9_000)
    assert [r["max_tokens"] for r in provider.requests] == [9_000, 64_000, 9_000]
    assert result_of(events).text == "One Done."


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (error(500, "api_error", retry="false"), "model_error"),
        (error(413, "request_too_large"), "prompt_too_long"),
        (
            streamed(message(text("x"), stop_reason="model_context_window_exceeded")),
            "prompt_too_long",
        ),
    ],
)
def test_a_truncated_response_is_kept_if_its_replacement_fails(
    failure: ProviderReply, reason: str
) -> None:
    """If the request for a longer response fails, the truncated response is kept in the result and the conversation,
    and its usage counts once.
    """
    conversation = Conversation()
    with Provider([streamed(truncated("Half")), failure, streamed(DONE)]) as provider:
        events = events_of(provider, conversation=conversation)
        result = result_of(events)
        assert (result.text, result.terminal_reason, result.num_turns) == ("Half", reason, 1)
        assert [m.message["content"] for m in of_kind(events, Message)] == [[text("Half")]]
        assert conversation.messages[1:] == ({"role": "assistant", "content": [text("Half")]},)
        assert result.usage[MODEL].output_tokens in (5, 10)
        assert result.meter.total().calls == result.usage[MODEL].output_tokens // 5
        assert result_of(events_of(provider, conversation=conversation)).text == "Done."


@pytest.mark.parametrize(
    "content",
    [
        [{**call("a", "look"), "cut_input": '{"where": "bo'}],
        [text("So "), {**call("a", "look"), "cut_input": '{"where": "bo'}],
        [THOUGHT],
        [],
    ],
)
def test_complete_blocks_of_a_truncated_response_are_kept(content: list[Any]) -> None:
    """A truncated response is kept without an incomplete call and without trailing thinking, so that the provider
    accepts the conversation.
    """
    answer = message(*content, stop_reason="max_tokens")
    with Provider([streamed(answer), streamed(answer), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[look])
    kept = [block for block in content if block["type"] == "text"]
    messages = provider.requests[2]["messages"]
    assert [block for m in messages if m["role"] == "assistant" for block in m["content"]] == kept
    assert result_of(events).subtype == "success"


def test_a_response_that_fills_the_window() -> None:
    """A response that fills the window is void, and the run ends because the conversation is too long.

    The stop reason is synthetic.
    """
    full = message(text("And then"), stop_reason="model_context_window_exceeded")
    with Provider([streamed(full)]) as provider:
        events = events_of(provider)
    assert of_kind(events, Tombstone) == [Tombstone(1, 1, ())]
    result = result_of(events)
    assert (result.error, result.terminal_reason) == ("WindowFullError", "prompt_too_long")
    assert result.usage[MODEL].output_tokens == 5


@pytest.mark.parametrize("content", [[text(" \n")], [text("\t"), text("")], []])
def test_a_blank_response_is_omitted(content: list[Any]) -> None:
    """A response of only blank text is not sent back, because the provider would reject it."""
    conversation = Conversation()
    with Provider([unstreamed(message(*content)), unstreamed(DONE)]) as provider:
        events_of(provider, conversation=conversation, stream=False)
        assert (
            result_of(events_of(provider, conversation=conversation, stream=False)).text == "Done."
        )
    assert [m["role"] for m in provider.requests[1]["messages"]] == ["user", "user"]


def test_blank_text_with_a_call_is_kept() -> None:
    """Blank text next to a call is sent back unchanged."""
    call_message = message(text(" "), call("a", "look", where="box"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        events_of(provider, tools=[look])
    assert provider.requests[1]["messages"][1]["content"] == call_message["content"]


def test_a_paused_response_is_sent_back_unchanged() -> None:
    """A paused response is sent back unchanged, and the model continues it; the result contains the text of
    both parts.
    """
    searching = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    paused = message(text("Looking."), searching, stop_reason="pause_turn")
    with Provider([unstreamed(paused), unstreamed(DONE)]) as provider:
        events = events_of(provider, stream=False)
    assert provider.requests[1]["messages"][1:] == [
        {"role": "assistant", "content": paused["content"]}
    ]
    assert [e.transition for e in of_kind(events, RequestStart)] == ["start", "pause_turn"]
    assert result_of(events).text == "Looking.\nDone."


def test_pauses_are_limited() -> None:
    """If the model only pauses, the run ends after a maximum number of pauses."""
    paused = message(text("."), stop_reason="pause_turn")
    with Provider([unstreamed(paused)] * 40) as provider:
        result = result_of(events_of(provider, stream=False))
    assert (result.terminal_reason, len(provider.requests)) == (
        "too_many_pauses",
        output_limits.PAUSES_MAX + 1,
    )
    assert (result.error, result.error_text) == (
        "PausedError",
        "The model has paused its response 21 times in a row.",
    )


# Unattended runs


def test_an_unattended_run_waits_in_short_periods() -> None:
    """An unattended run splits a long wait into parts of 30 seconds, and reports each completed part except the
    last.
    """
    limited = error(429, "rate_limit_error", retry_after="100")
    waits: list[float] = []
    with Provider([limited, streamed(DONE)]) as provider:
        events = events_of(provider, waits=waits, **UNATTENDED)
    assert waits == [30, 30, 30, 10]
    assert of_kind(events, Heartbeat) == [Heartbeat(1, 1, n, 100.0) for n in (30.0, 60.0, 90.0)]
    assert of_kind(events, Retry) == [Retry(1, 1, 100.0, "rate_limit_error", 429)]


def test_an_unattended_run_waits_for_hours() -> None:
    """An unattended run retries an overload for six hours in total, with waits of up to five minutes."""
    waits: list[float] = []
    with Provider([error(529, "overloaded_error", retry_after="3600")] * 100) as provider:
        events = events_of(provider, waits=waits, **UNATTENDED)
    assert (sum(waits), max(waits)) == (6 * 3600, 30)
    assert {e.wait_s for e in of_kind(events, Retry)} == {300.0}
    assert (len(provider.requests), result_of(events).error) == (73, "overloaded_error")


@pytest.mark.parametrize(
    "down",
    [error(500, "api_error"), error_in_stream("api_error"), cut_after(DONE, 2), cut_after(DONE, 5)],
)
def test_an_unattended_run_survives_an_outage(down: ProviderReply) -> None:
    """An unattended run retries any failure that indicates an outage more than ten times."""
    with Provider([down] * 14 + [streamed(DONE)] * 2) as provider:
        events = events_of(provider, stream=True, **UNATTENDED, max_tokens=30_000)
    assert len(provider.requests) == 15
    assert len(of_kind(events, Heartbeat)) > 0
    assert result_of(events).text == "Done."


def test_an_unattended_run_waits_until_the_circuit_closes() -> None:
    """An unattended run waits in reported parts until the circuit closes; the length of the wait comes from the world,
    because it depends on the clock.
    """
    conversation, waits = Conversation(), list[float]()
    down = error(503, "api_error", retry="false")
    with Provider([down] * 5 + [streamed(DONE)]) as provider, recorded() as records:
        for _ in range(5):
            events_of(provider, conversation=conversation, **UNATTENDED)
        events = events_of(provider, conversation=conversation, waits=waits, **UNATTENDED)
        questions = [
            r for r in records if isinstance(r, WorldExchange) and r.question.kind == "elapsed"
        ]
    assert ([round(wait) for wait in waits], questions[0].question.key) == ([30, 30], "1:circuit:0")
    assert sum(waits) == questions[0].answer
    assert of_kind(events, Degraded) == [Degraded("provider", "circuit_open")]
    assert of_kind(events, Heartbeat) == [Heartbeat(1, 0, 30.0, questions[0].answer)]
    assert (result_of(events).text, conversation.breaker.failures) == ("Done.", 0)


def test_a_wait_until_a_date() -> None:
    """If `retry-after` is a date, the length of the wait comes from the world, because it depends on the clock; a past
    date means no wait.
    """
    past_date = error(429, "rate_limit_error", retry_after="Wed, 31 Dec 1969 23:59:00 GMT")
    near_date = error(429, "rate_limit_error", retry_after="Thu, 01 Jan 1970 00:00:09 GMT")
    waits: list[float] = []
    with Provider([past_date, near_date, streamed(DONE)]) as provider, recorded() as records:
        events_of(provider, waits=waits)
        questions = [
            r for r in records if isinstance(r, WorldExchange) and r.question.kind == "elapsed"
        ]
    assert [round(wait) for wait in waits] == [9]
    assert [a.question.key for a in questions] == ["1:retry-after:2"]


# The circuit breaker


def test_the_circuit_breaker_stops_requests() -> None:
    """After five consecutive failures the next request fails without being sent; a minute later, a request is sent
    again.
    """
    conversation = Conversation()
    down = error(503, "api_error", retry="false")
    with Provider([down] * 5 + [streamed(DONE)]) as provider:
        for _ in range(5):
            events_of(provider, conversation=conversation)
        refused = events_of(provider, conversation=conversation)
        assert len(provider.requests) == 5
        conversation.breaker = dataclasses.replace(conversation.breaker, since_ns=-(10**12))
        closed = events_of(provider, conversation=conversation)
    assert of_kind(refused, RequestStart, Degraded) == [Degraded("provider", "circuit_open")]
    assert result_of(refused).error == "CircuitOpenError"
    assert "5 requests in a row failed" in str(result_of(refused).error_text)
    assert (result_of(closed).text, conversation.breaker.failures) == ("Done.", 0)


# Maintenance requests


def run_maintenance(
    provider: Provider,
    abort: Abort | None = None,
    waits: list[float] | None = None,
    watch: Callable[[Run], None] = lambda run: None,
    source: QuerySource = "compaction",
    **changes: Any,
) -> tuple[Any, Run, list[Any]]:
    """Send one maintenance request; return its response or error, the run, and the events."""

    async def make() -> tuple[Any, Run, list[Any]]:
        async with provider.client() as client:
            conversation, world = Conversation(), ticking_world(client, waits=waits, abort=abort)
            inputs = RunInputs(world, options(**changes), (), world.now())
            run = Run(inputs, conversation, initial_state(conversation, "Hello"))
            here = Place(SESSION, lane="main", turn=1)
            arguments = {
                "model": MODEL,
                "max_tokens": 50,
                "messages": [{"role": "user", "content": "Sum up"}],
            }
            lane = child_lane("main", "compaction:1")
            watch(run)
            wanted, events = (
                MaintenanceRequest(arguments, source, lane, "1:compaction"),
                list[Any](),
            )
            try:
                events += [event async for event in send_maintenance_request(run, wanted, here)]
                outcome: Any = wanted.response
            except (*PROVIDER_ERRORS, Stopped) as failure:
                outcome = failure
            return outcome, run, events

    with recorded():
        return asyncio.run(make())


def test_a_maintenance_request_is_separate() -> None:
    """A maintenance request counts in the meters of the run and of the conversation, and adds nothing to the messages
    or the text of the run.
    """
    with Provider([streamed(DONE)]) as provider:
        outcome, run, _ = run_maintenance(provider)
    assert outcome["content"] == DONE["content"]
    assert provider.requests[0]["stream"] is True
    conversation = run.progress.conversation
    assert (run.totals.meter.total().calls, conversation.meter.total().calls) == (1, 1)
    assert run.result(None).usage[MODEL].output_tokens == 5
    assert (run.totals.responses, run.progress.text) == ([], "")
    assert run.progress.conversation.messages == ()


def test_a_summary_request_is_retried_like_a_turn() -> None:
    """A summary request is retried like the request of a turn, because the turn needs it, and the retries are
    reported.
    """
    limited = error(429, "rate_limit_error", retry_after="7")
    waits: list[float] = []
    with Provider([OVERLOADED, limited, error(500, "api_error"), streamed(DONE)]) as provider:
        outcome, _, events = run_maintenance(provider, waits=waits)
    assert outcome["content"] == DONE["content"]
    assert waits == [0.5, 7.0, 2.0]
    assert [type(event) for event in events] == [Retry] * 3


def test_an_unattended_run_waits_for_its_summary() -> None:
    """An unattended run also splits the wait for a summary into parts of 30 seconds, and reports them."""
    limited = error(429, "rate_limit_error", retry_after="100")
    waits: list[float] = []
    with Provider([limited, streamed(DONE)]) as provider:
        outcome, _, events = run_maintenance(provider, waits=waits, **UNATTENDED)
    assert outcome["content"] == DONE["content"]
    assert waits == [30, 30, 30, 10]
    assert of_kind(events, Heartbeat) == [Heartbeat(1, 1, n, 100.0) for n in (30.0, 60.0, 90.0)]


@pytest.mark.parametrize("refusal", [OVERLOADED, error(429, "rate_limit_error", retry_after="1")])
def test_background_requests_fail_fast(refusal: ProviderReply) -> None:
    """A background request is not retried after an overload, and at most twice after other failures."""
    with Provider([refusal] * 4) as provider:
        outcome, _, _ = run_maintenance(provider, source="memory", **UNATTENDED)
    assert (len(provider.requests), isinstance(outcome, anthropic.APIStatusError)) == (1, True)
    with Provider([error(500, "api_error")] * 4) as provider:
        run_maintenance(provider, source="memory")
    assert len(provider.requests) == 3


def test_a_maintenance_request_is_stopped_with_its_run() -> None:
    """If a run is stopped, its maintenance request is stopped, and the partial response is void."""
    abort = Abort()
    abort.stop()
    with Provider([streamed(DONE)]) as provider:
        outcome, run, _ = run_maintenance(provider, abort)
    assert isinstance(outcome, Stopped)
    assert (outcome.point, outcome.count, run.totals.void_responses[-1]) == (
        "1:compaction:asking:1",
        0,
        {},
    )
    assert provider.requests == []


def test_background_requests_respect_the_circuit_breaker() -> None:
    """A background request does not open the circuit, and is not sent while the circuit is open."""

    def open_it(run: Run) -> None:
        for _ in range(5):
            conversation = run.progress.conversation
            conversation.breaker = conversation.breaker.failed("overloaded", 10**18)

    with Provider([]) as provider:
        outcome, _, _ = run_maintenance(provider, watch=open_it, source="memory")
    assert (type(outcome).__name__, provider.requests) == ("CircuitOpenError", [])
    with Provider([OVERLOADED]) as provider:
        _, run, _ = run_maintenance(provider, source="memory")
    assert run.progress.conversation.breaker.failures == 0
