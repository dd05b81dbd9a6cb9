"""LLM requests of the loop when the provider fails, cuts or pauses a response, or a fallback model takes over."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic import AccessToken

from agentobs.agent.agent_run import Run
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
from agentobs.agent.requests.maintenance_request import MaintenanceRequest, upkeep
from agentobs.agent.state import Conversation, begin
from agentobs.agent.tools.tool import tool
from agentobs.records.exchanges import ModelExchange, Place, QuerySource, WorldExchange, lane_under
from agentobs.records.facts import Event as Fact
from agentobs.world import Abort

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
    whole,
)
from .provider import Reply as Sent
from .scene import SESSION, events_of, in_loop, of_kind, options, recorded, result_of, ticking_world

DONE = message(text("Done."))
OVERLOADED = error(529, "overloaded_error")
OTHER = "claude-other-1"
OVERFLOW = (
    "input length and `max_tokens` exceed context limit: {} + {} > 200000, decrease input length"
)
THOUGHT = {"type": "thinking", "thinking": "Hm, so", "signature": "c2ln"}
BUDGET = {"type": "enabled", "budget_tokens": 1024}
ALONE: dict[str, Any] = {"unattended": True}


def cut(words: str, **more: Any) -> dict[str, Any]:
    """A response that was cut at its limit."""
    return message(text(words), stop_reason="max_tokens", **more)


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def facts(records: list[Any]) -> list[tuple[str, str | None]]:
    return [(str(r.kind), r.label) for r in records if isinstance(r, Fact) and r.kind != "context"]


# Credentials


def test_new_credentials_are_used() -> None:
    """After a 401 the credentials are refreshed, and the same request is sent with them; none is recorded."""
    with Provider([error(401, "authentication_error", retry="false"), streamed(DONE)]) as provider:
        events, records, clients = in_loop(_refreshing(provider, True))
    assert [h["authorization"][-6:] for h in provider.headers] == ["first!", "second"]
    assert of_kind(events, Retry) == [Retry(1, 1, 0.0, "authentication_error", 401)]
    assert result_of(events).text == "Done."
    asked = [r for r in records if isinstance(r, WorldExchange)]
    assert [
        (a.question.kind, a.question.key, a.answer) for a in asked if a.question.kind == "refresh"
    ] == [("refresh", "1:1", True)]
    exchanges = [r for r in records if isinstance(r, ModelExchange)]
    assert "first!" not in repr(asked) + repr(exchanges)
    assert all(b"second" not in e.question.body for e in exchanges)
    assert clients == 1


def test_the_loop_owns_retries_with_new_credentials_as_well() -> None:
    """Later failures are retried only by the loop."""
    replies = [error(401, "authentication_error"), error(500, "api_error"), streamed(DONE)]
    with Provider(replies) as provider:
        events, _, _ = in_loop(_refreshing(provider, True))
    assert [h["x-stainless-retry-count"] for h in provider.headers] == ["0"] * 3
    assert [e.status for e in of_kind(events, Retry)] == [401, 500]
    assert result_of(events).text == "Done."


@pytest.mark.parametrize(("made", "requests"), [(False, 1), (True, 2)])
def test_credentials_that_stay_refused(made: bool, requests: int) -> None:
    """They are refreshed once per request; another 401 is final, and so is one if the refresh failed."""
    refusals = [error(401, "authentication_error")] * 3
    with Provider(refusals) as provider:
        events, _, _ = in_loop(_refreshing(provider, made))
    assert len(provider.requests) == requests
    assert (result_of(events).error, result_of(events).terminal_reason) == (
        "authentication_error",
        "model_error",
    )


async def _refreshing(provider: Provider, made: bool) -> tuple[list[Any], list[Any], int]:
    """Run with a first key; refreshing gives the client a second one."""
    refreshed = []
    with recorded() as records:
        async with provider.client() as client:
            client.api_key = "first!"

            def refresh() -> bool:
                refreshed.append(1)
                client.api_key = "second"
                return made

            world = ticking_world(client, refresh=refresh)
            events = [event async for event in run("Hello", world=world, options=options())]
    return events, records, len(refreshed)


def test_a_client_with_credentials_asks_them_for_another_token() -> None:
    """If the client has a token provider, no refresh function is needed."""
    forced: list[bool] = []

    async def credentials(*, force_refresh: bool = False) -> AccessToken:
        forced.append(force_refresh)
        return AccessToken("token-2" if force_refresh else "token-1")

    async def asked(url: str) -> Any:
        async with anthropic.AsyncAnthropic(credentials=credentials, base_url=url) as client:
            return await complete("Hello", world=live_world(client), options=options())

    with Provider([error(401, "authentication_error"), streamed(DONE)]) as provider:
        result = in_loop(asked(provider.base_url))
    assert [h["authorization"] for h in provider.headers] == ["Bearer token-1", "Bearer token-2"]
    assert (result.text, forced) == ("Done.", [False, True])


# A response limit that is too high


def test_the_room_that_is_left_is_used() -> None:
    """If prompt and `max_tokens` exceed the window, the request is repeated with exactly what fits,
    which is reported.
    """
    refused = error(400, "invalid_request_error", text=OVERFLOW.format(190_000, 20_000))
    waits: list[float] = []
    with Provider([refused, streamed(DONE)]) as provider:
        events = events_of(provider, waits=waits, max_tokens=20_000)
    assert [r["max_tokens"] for r in provider.requests] == [20_000, 9_000]
    assert of_kind(events, Degraded) == [Degraded("answer_length", "overflow")]
    assert (waits, result_of(events).text) == ([], "Done.")


@pytest.mark.parametrize("prompt", [196_001, 250_000])
def test_too_little_room_is_a_prompt_that_is_too_long(prompt: int) -> None:
    """Below 3,000 tokens a response is useless."""
    refused = error(400, "invalid_request_error", text=OVERFLOW.format(prompt, 20_000))
    with Provider([refused]) as provider:
        result = result_of(events_of(provider, max_tokens=20_000))
    assert (len(provider.requests), result.terminal_reason) == (1, "prompt_too_long")


def test_room_is_lowered_once() -> None:
    """A request that does not fit again is too long; a field set by the caller is lowered in place."""
    refused = error(400, "invalid_request_error", text=OVERFLOW.format(190_000, 20_000))
    with Provider([refused, refused]) as provider:
        result = result_of(events_of(provider, extra={"max_tokens": 20_000}))
    assert [r["max_tokens"] for r in provider.requests] == [20_000, 9_000]
    assert result.terminal_reason == "prompt_too_long"


# Fallback models


def test_another_model_after_three_overloads() -> None:
    """It is used for the rest of the run; the first model's thinking is left out, because it is signed."""
    asking = message(THOUGHT, text("See"), call("a", "look", where="box"))
    broken = error_in_stream("overloaded_error")
    answers = [streamed(asking), OVERLOADED, broken, OVERLOADED, streamed(DONE), streamed(DONE)]
    talk = Conversation()
    with Provider(answers) as provider, recorded() as records:
        events = events_of(provider, tools=[look], conversation=talk, fallback_model=OTHER)
        assert of_kind(events, Fallback) == [Fallback(2, MODEL, OTHER)]
        assert [(e.transition, e.model) for e in of_kind(events, RequestStart)] == [
            ("start", MODEL),
            ("next_turn", MODEL),
            ("next_turn", MODEL),
            ("next_turn", MODEL),
            ("model_fallback", OTHER),
        ]
        assert provider.requests[4]["messages"][1]["content"] == asking["content"][1:]
        assert ("fallback", OTHER) in facts(records)
        assert [e.wait_s for e in of_kind(events, Retry)] == [0.5, 1.0, 0.0]
        assert result_of(events).subtype == "success"
    assert [r["model"] for r in provider.requests] == [MODEL] * 4 + [OTHER]


def test_another_model_cannot_begin_to_think_between_tools() -> None:
    """It gets no thinking budget until the tools are done, because the provider refuses that; afterwards it does."""
    asking = message(THOUGHT, text("See"), call("a", "look", where="box"))
    asking_again = message(call("b", "look", where="bag"))
    answers = [streamed(asking), *[OVERLOADED] * 3, streamed(asking_again), *[streamed(DONE)] * 2]
    hows: list[dict[str, Any]] = [{"thinking": Budgeted(1024)}, {"extra": {"thinking": BUDGET}}]
    for how in hows:
        talk, asked = Conversation(), {**how, "max_tokens": 2000, "tools": [look]}
        with Provider(answers) as provider:
            events = events_of(provider, conversation=talk, fallback_model=OTHER, **asked)
            later = events_of(provider, conversation=talk, model=OTHER, **asked)
        assert [r.get("thinking") for r in provider.requests] == [*[BUDGET] * 4, None, None, BUDGET]
        assert (result_of(events).text, result_of(later).text) == ("Done.", "Done.")


def test_an_answer_of_the_first_model_is_void() -> None:
    """The partial response and the started call are void; the other model's call runs."""
    asking = message(call("a", "look", where="box"), text("So"))
    begun = streamed(asking).pieces[:7]
    overload = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}\n\n'
    broken = Sent((*begun, overload), headers=streamed(asking).headers)
    again = streamed(message(call("b", "look", where="bag")))
    with Provider([OVERLOADED, OVERLOADED, broken, again, streamed(DONE)]) as provider:
        events = events_of(provider, tools=[look], fallback_model=OTHER)
    assert of_kind(events, Tombstone, Fallback) == [
        Tombstone(1, 3, ("a",)),
        Fallback(1, MODEL, OTHER),
    ]
    assert [e.question.tool_use_id for e in of_kind(events, ToolDispatch)] == ["a", "b"]
    assert [e.question.tool_use_id for e in of_kind(events, ToolDone)] == ["b"]
    assert result_of(events).text == "Done."


def test_the_first_model_again() -> None:
    """A later run with the first model leaves out the other model's thinking."""
    talk = Conversation()
    thought = message(THOUGHT, text("Yes."))
    with Provider(
        [OVERLOADED] * 3 + [streamed(thought), streamed(thought), streamed(DONE)]
    ) as provider:
        events_of(provider, conversation=talk, fallback_model=OTHER)
        events_of(provider, conversation=talk, model=OTHER)
        events_of(provider, conversation=talk)
    assert provider.requests[4]["messages"][1]["content"] == thought["content"]
    assert provider.requests[5]["messages"][1]["content"] == thought["content"][1:]
    assert provider.requests[5]["model"] == MODEL


def test_another_model_is_given_its_own_limit() -> None:
    """The limit that was lowered for the first model is reset, and lowered again for the other one."""
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


def test_another_model_may_break_off_its_streams_as_well() -> None:
    """It starts with streaming, and stops streaming once three streams broke."""
    breaks = [cut_after(DONE, 2)] * 3
    with Provider([*breaks, *[OVERLOADED] * 3, *breaks, whole(DONE)]) as provider:
        events = events_of(provider, fallback_model=OTHER)
    streams = [True] * 3 + [False] * 3 + [True] * 3 + [False]
    assert ["stream" in r for r in provider.requests] == streams
    assert result_of(events).text == "Done."


# Streams


def test_streams_that_break_are_no_longer_asked_for() -> None:
    """After three consecutive streams that broke before any content the request is not streamed, which is reported."""
    with Provider([cut_after(DONE, 2)] * 3 + [whole(DONE)]) as provider:
        events = events_of(provider)
    assert ["stream" in r for r in provider.requests] == [True, True, True, False]
    assert of_kind(events, Degraded) == [Degraded("streaming", "broken_streams")]
    assert result_of(events).text == "Done."


def test_a_connection_that_is_reset_before_any_answer() -> None:
    """It is retried; so is a refused connection, which costs nothing."""
    with Provider([Sent(is_reset=True), streamed(DONE)]) as provider:
        events = events_of(provider)
        base_url = provider.base_url
    assert of_kind(events, Retry) == [Retry(1, 1, 0.5, "APIConnectionError", None)]
    assert (len(provider.requests), result_of(events).text) == (2, "Done.")
    provider.base_url = base_url  # where nothing listens any more
    refused = events_of(provider, max_retries=2)
    assert [e.error for e in of_kind(refused, Retry)] == ["APIConnectionError"] * 2
    result = result_of(refused)
    assert (result.error, result.terminal_reason) == ("APIConnectionError", "model_error")
    assert result.meter.total().calls == 0


# Response limits


def test_a_cut_answer_is_asked_for_again_with_more_room() -> None:
    """Once per turn it is void, and the request is repeated with the raised limit; its cost counts."""
    with Provider([streamed(cut("Once upon")), streamed(DONE)]) as provider:
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


def test_the_model_goes_on_from_a_cut_answer_three_times() -> None:
    """Then the run ends with an error and the partial text; the conversation is complete."""
    talk = Conversation()
    words = ["void", "One, ", "two, ", "three, ", "four"]
    with Provider([streamed(cut(each)) for each in words]) as provider:
        events = events_of(provider, conversation=talk)
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
    assert [m["role"] for m in talk.messages] == ["user", "assistant"] * 4
    assert talk.messages[2]["content"] == [text(output_limits.GO_ON)]


def test_an_answer_that_is_finished_in_parts() -> None:
    """Its text is that of all parts; the next cut response of the run may get a raised limit again."""
    parts = [cut("void"), cut("Half "), message(text("whole"), call("a", "look", where="box"))]
    later = [cut("void"), message(text("The end."))]
    with Provider([streamed(each) for each in (*parts, *later)]) as provider:
        events = events_of(provider, tools=[look])
    assert [r["max_tokens"] for r in provider.requests] == [100, 64_000, 64_000, 100, 64_000]
    assert result_of(events).text == "The end."
    with Provider([streamed(cut("void")), streamed(cut("Half ")), streamed(DONE)]) as provider:
        assert result_of(events_of(provider)).text == "Half Done."


@pytest.mark.parametrize("raised", [None, 100, 50])
def test_more_room_can_be_turned_off(raised: int | None) -> None:
    """Then the model continues the first cut response."""
    with Provider([streamed(cut("Half ")), streamed(DONE)]) as provider:
        events = events_of(provider, max_tokens_raised=raised)
    assert [r["max_tokens"] for r in provider.requests] == [100, 100]
    assert result_of(events).text == "Half Done."


def test_more_room_in_one_piece() -> None:
    """Without streaming, the limit is the SDK's maximum."""
    with Provider([whole(cut("void")), whole(DONE)]) as provider:
        events = events_of(provider, stream=False)
    assert [r["max_tokens"] for r in provider.requests] == [100, 21_333]
    assert result_of(events).text == "Done."


def test_more_room_than_the_model_has() -> None:
    """The request is repeated with the model's lower maximum."""
    refused = error(
        400, "invalid_request_error", text="max_tokens: 64000 > 8192, which is the maximum allowed"
    )
    with Provider([streamed(cut("void")), refused, streamed(DONE)]) as provider:
        events = events_of(provider)
    assert [r["max_tokens"] for r in provider.requests] == [100, 64_000, 8_192]
    assert result_of(events).text == "Done."


BEYOND = error(
    400, "invalid_request_error", text="max_tokens: 64000 > 8192, which is the maximum allowed"
)


def test_what_the_model_may_say_is_kept() -> None:
    """It is not exceeded again in the conversation, and the reported limit is used."""
    talk = Conversation()
    replies: list[Any] = [cut("void"), BEYOND, cut("One "), DONE, cut("void"), DONE]
    with Provider([r if isinstance(r, Sent) else streamed(r) for r in replies]) as provider:
        events = events_of(provider, conversation=talk)
        events += events_of(provider, conversation=talk)
        events_of(provider, conversation=talk, max_tokens=9_000)
    limits_asked = [r["max_tokens"] for r in provider.requests]
    assert limits_asked == [100, 64_000, 8_192, 8_192, 100, 8_192, 8_192]
    assert [(e.max_tokens, e.is_void) for e in of_kind(events, Continuation)] == [
        (64_000, True),
        (8_192, False),
        (8_192, True),
    ]


def test_a_cut_answer_is_not_asked_for_again_with_the_same_room() -> None:
    """At the model's maximum the response is continued instead, so nothing that was billed is void."""
    talk = Conversation()
    answers: list[Any] = [cut("One "), BEYOND, cut("two "), DONE, cut("Half "), DONE]
    with Provider([r if isinstance(r, Sent) else streamed(r) for r in answers]) as provider:
        first = events_of(provider, conversation=talk, max_tokens=8_192)
        second = events_of(provider, conversation=talk, max_tokens=8_192)
    asked = [r["max_tokens"] for r in provider.requests]
    assert asked == [8_192, 64_000, 8_192, 8_192, 8_192, 8_192]
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


def test_the_window_has_no_more_room() -> None:
    """The remaining window is not larger than the cut response: the model continues it."""
    full = error(400, "invalid_request_error", text=OVERFLOW.format(190_000, 64_000))
    with Provider([streamed(cut("One ")), full, streamed(DONE)]) as provider:
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
def test_a_cut_answer_outlives_the_one_that_was_to_replace_it(failure: Sent, reason: str) -> None:
    """If the repeated request finally fails, the result and the conversation have the cut response, counted once."""
    talk = Conversation()
    with Provider([streamed(cut("Half")), failure, streamed(DONE)]) as provider:
        events = events_of(provider, conversation=talk)
        result = result_of(events)
        assert (result.text, result.terminal_reason, result.num_turns) == ("Half", reason, 1)
        assert [m.message["content"] for m in of_kind(events, Message)] == [[text("Half")]]
        assert talk.messages[1:] == ({"role": "assistant", "content": [text("Half")]},)
        assert result.usage[MODEL].output_tokens in (5, 10)
        assert result.meter.total().calls == result.usage[MODEL].output_tokens // 5
        assert result_of(events_of(provider, conversation=talk)).text == "Done."


@pytest.mark.parametrize(
    "content",
    [
        [{**call("a", "look"), "cut_input": '{"where": "bo'}],
        [text("So "), {**call("a", "look"), "cut_input": '{"where": "bo'}],
        [THOUGHT],
        [],
    ],
)
def test_what_is_whole_of_a_cut_answer_stays(content: list[Any]) -> None:
    """A cut call and trailing thinking are removed; the provider accepts the conversation."""
    answer = message(*content, stop_reason="max_tokens")
    with Provider([streamed(answer), streamed(answer), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[look])
    kept = [block for block in content if block["type"] == "text"]
    said = provider.requests[2]["messages"]
    assert [block for m in said if m["role"] == "assistant" for block in m["content"]] == kept
    assert result_of(events).subtype == "success"


def test_the_window_is_full() -> None:
    """A response that filled the window is void, and the run ends, because the conversation must
    shrink (synthetic).
    """
    full = message(text("And then"), stop_reason="model_context_window_exceeded")
    with Provider([streamed(full)]) as provider:
        events = events_of(provider)
    assert of_kind(events, Tombstone) == [Tombstone(1, 1, ())]
    result = result_of(events)
    assert (result.error, result.terminal_reason) == ("WindowFullError", "prompt_too_long")
    assert result.usage[MODEL].output_tokens == 5


@pytest.mark.parametrize("content", [[text(" \n")], [text("\t"), text("")], []])
def test_a_blank_answer_is_left_out(content: list[Any]) -> None:
    """The provider refuses a message of only blank text, but accepts it together with a call."""
    talk = Conversation()
    with Provider([whole(message(*content)), whole(DONE)]) as provider:
        events_of(provider, conversation=talk, stream=False)
        assert result_of(events_of(provider, conversation=talk, stream=False)).text == "Done."
    assert [m["role"] for m in provider.requests[1]["messages"]] == ["user", "user"]


def test_blank_text_beside_a_call_stays() -> None:
    """It is sent back unchanged."""
    asking = message(text(" "), call("a", "look", where="box"))
    with Provider([streamed(asking), streamed(DONE)]) as provider:
        events_of(provider, tools=[look])
    assert provider.requests[1]["messages"][1]["content"] == asking["content"]


def test_a_paused_answer_goes_back_as_it_is() -> None:
    """The model continues it; its text is that of both parts."""
    searching = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    paused = message(text("Looking."), searching, stop_reason="pause_turn")
    with Provider([whole(paused), whole(DONE)]) as provider:
        events = events_of(provider, stream=False)
    assert provider.requests[1]["messages"][1:] == [
        {"role": "assistant", "content": paused["content"]}
    ]
    assert [e.transition for e in of_kind(events, RequestStart)] == ["start", "pause_turn"]
    assert result_of(events).text == "Looking.\nDone."


def test_pauses_are_bounded() -> None:
    """A model that only pauses ends the run."""
    paused = message(text("."), stop_reason="pause_turn")
    with Provider([whole(paused)] * 40) as provider:
        result = result_of(events_of(provider, stream=False))
    assert (result.terminal_reason, len(provider.requests)) == (
        "too_many_pauses",
        output_limits.PAUSES_MAX + 1,
    )
    assert (result.error, result.error_text) == (
        "PausedError",
        "The model has paused its answer 21 times in a row.",
    )


# Unattended runs


def test_an_unattended_run_waits_in_pieces() -> None:
    """A long wait is split into parts of 30 seconds; each completed part is reported."""
    limited = error(429, "rate_limit_error", retry_after="100")
    waits: list[float] = []
    with Provider([limited, streamed(DONE)]) as provider:
        events = events_of(provider, waits=waits, **ALONE)
    assert waits == [30, 30, 30, 10]
    assert of_kind(events, Heartbeat) == [Heartbeat(1, 1, n, 100.0) for n in (30.0, 60.0, 90.0)]
    assert of_kind(events, Retry) == [Retry(1, 1, 100.0, "rate_limit_error", 429)]


def test_an_unattended_run_waits_for_hours() -> None:
    """An overload is waited for beyond ten retries, six hours in total, in waits of up to five minutes."""
    waits: list[float] = []
    with Provider([error(529, "overloaded_error", retry_after="3600")] * 100) as provider:
        events = events_of(provider, waits=waits, **ALONE)
    assert (sum(waits), max(waits)) == (6 * 3600, 30)
    assert {e.wait_s for e in of_kind(events, Retry)} == {300.0}
    assert (len(provider.requests), result_of(events).error) == (73, "overloaded_error")


@pytest.mark.parametrize(
    "down",
    [error(500, "api_error"), error_in_stream("api_error"), cut_after(DONE, 2), cut_after(DONE, 5)],
)
def test_an_unattended_run_survives_an_outage(down: Sent) -> None:
    """Any sign of an outage is waited for beyond ten retries."""
    with Provider([down] * 14 + [streamed(DONE)] * 2) as provider:
        events = events_of(provider, stream=True, **ALONE, max_tokens=30_000)
    assert len(provider.requests) == 15
    assert len(of_kind(events, Heartbeat)) > 0
    assert result_of(events).text == "Done."


def test_an_unattended_run_waits_until_the_circuit_has_cooled_down() -> None:
    """In reported parts; the length depends on the clock, so it comes from the world."""
    talk, waits = Conversation(), list[float]()
    down = error(503, "api_error", retry="false")
    with Provider([down] * 5 + [streamed(DONE)]) as provider, recorded() as records:
        for _ in range(5):
            events_of(provider, conversation=talk, **ALONE)
        events = events_of(provider, conversation=talk, waits=waits, **ALONE)
        asked = [
            r for r in records if isinstance(r, WorldExchange) and r.question.kind == "elapsed"
        ]
    assert ([round(wait) for wait in waits], asked[0].question.key) == ([30, 30], "1:circuit:0")
    assert sum(waits) == asked[0].answer
    assert of_kind(events, Degraded) == [Degraded("provider", "circuit_open")]
    assert of_kind(events, Heartbeat) == [Heartbeat(1, 0, 30.0, asked[0].answer)]
    assert (result_of(events).text, talk.breaker.failures) == ("Done.", 0)


def test_a_wait_until_a_date() -> None:
    """Its length depends on the clock, so it comes from the world; a past date means now."""
    past = error(429, "rate_limit_error", retry_after="Wed, 31 Dec 1969 23:59:00 GMT")
    soon = error(429, "rate_limit_error", retry_after="Thu, 01 Jan 1970 00:00:09 GMT")
    waits: list[float] = []
    with Provider([past, soon, streamed(DONE)]) as provider, recorded() as records:
        events_of(provider, waits=waits)
        asked = [
            r for r in records if isinstance(r, WorldExchange) and r.question.kind == "elapsed"
        ]
    assert [round(wait) for wait in waits] == [9]
    assert [a.question.key for a in asked] == ["1:retry-after:2"]


# The circuit breaker


def test_a_provider_that_is_down_is_not_asked() -> None:
    """After five consecutive final failures the next request fails immediately; after a minute one is sent."""
    talk = Conversation()
    down = error(503, "api_error", retry="false")
    with Provider([down] * 5 + [streamed(DONE)]) as provider:
        for _ in range(5):
            events_of(provider, conversation=talk)
        refused = events_of(provider, conversation=talk)
        assert len(provider.requests) == 5
        talk.breaker = dataclasses.replace(talk.breaker, since_ns=-(10**12))
        closed = events_of(provider, conversation=talk)
    assert of_kind(refused, RequestStart, Degraded) == [Degraded("provider", "circuit_open")]
    assert result_of(refused).error == "CircuitOpenError"
    assert "5 requests in a row failed" in str(result_of(refused).error_text)
    assert (result_of(closed).text, talk.breaker.failures) == ("Done.", 0)


# Maintenance requests


def upkept(
    provider: Provider,
    abort: Abort | None = None,
    waits: list[float] | None = None,
    watch: Callable[[Run], None] = lambda run: None,
    source: QuerySource = "compaction",
    **changes: Any,
) -> tuple[Any, Run, list[Any]]:
    """Send one maintenance request; return its response or error, the run and the events."""

    async def make() -> tuple[Any, Run, list[Any]]:
        async with provider.client() as client:
            talk, world = Conversation(), ticking_world(client, waits=waits, abort=abort)
            run = Run(world, options(**changes), (), None, talk, begin(talk, "Hello"), world.now())
            here = Place(SESSION, lane="main", turn=1)
            arguments = {
                "model": MODEL,
                "max_tokens": 50,
                "messages": [{"role": "user", "content": "Sum up"}],
            }
            lane = lane_under("main", "compaction:1")
            watch(run)
            wanted, events = (
                MaintenanceRequest(arguments, source, lane, "1:compaction"),
                list[Any](),
            )
            try:
                events += [event async for event in upkeep(run, wanted, here)]
                said: Any = wanted.answer
            except (*PROVIDER_ERRORS, Stopped) as failure:
                said = failure
            return said, run, events

    with recorded():
        return asyncio.run(make())


def test_upkeep_is_a_request_of_its_own() -> None:
    """It has its own lane, source and span, and counts in the meters of run and conversation."""
    with Provider([streamed(DONE)]) as provider:
        said, run, _ = upkept(provider)
    assert said["content"] == DONE["content"]
    assert provider.requests[0]["stream"] is True
    assert (run.meter.total().calls, run.talk.meter.total().calls) == (1, 1)
    assert run.result(None).usage[MODEL].output_tokens == 5
    assert (run.answers, run.text, run.talk.messages) == ([], "", ())


def test_a_turn_waits_for_its_summary() -> None:
    """A compaction's request is retried like a turn, because the turn needs it, and its retries are reported."""
    limited = error(429, "rate_limit_error", retry_after="7")
    waits: list[float] = []
    with Provider([OVERLOADED, limited, error(500, "api_error"), streamed(DONE)]) as provider:
        said, _, events = upkept(provider, waits=waits)
    assert said["content"] == DONE["content"]
    assert waits == [0.5, 7.0, 2.0]
    assert [type(event) for event in events] == [Retry] * 3


def test_an_unattended_run_waits_for_its_summary() -> None:
    """The wait is split into parts like that of a turn, and each is reported."""
    limited = error(429, "rate_limit_error", retry_after="100")
    waits: list[float] = []
    with Provider([limited, streamed(DONE)]) as provider:
        said, _, events = upkept(provider, waits=waits, **ALONE)
    assert said["content"] == DONE["content"]
    assert waits == [30, 30, 30, 10]
    assert of_kind(events, Heartbeat) == [Heartbeat(1, 1, n, 100.0) for n in (30.0, 60.0, 90.0)]


@pytest.mark.parametrize("refusal", [OVERLOADED, error(429, "rate_limit_error", retry_after="1")])
def test_the_background_fails_fast(refusal: Sent) -> None:
    """If the provider is overloaded, there is no retry; other failures are retried twice."""
    with Provider([refusal] * 4) as provider:
        said, _, _ = upkept(provider, source="memory", **ALONE)
    assert (len(provider.requests), isinstance(said, anthropic.APIStatusError)) == (1, True)
    with Provider([error(500, "api_error")] * 4) as provider:
        upkept(provider, source="memory")
    assert len(provider.requests) == 3


def test_upkeep_is_stopped_with_its_run() -> None:
    """Its partial response is not part of the conversation."""
    abort = Abort()
    abort.stop()
    with Provider([streamed(DONE)]) as provider:
        said, run, _ = upkept(provider, abort)
    assert isinstance(said, Stopped)
    assert (said.point, said.count, run.broken[-1]) == ("1:compaction:asking:1", 0, {})
    assert provider.requests == []


def test_the_background_respects_the_circuit_breaker() -> None:
    """It does not open the circuit, and is not sent while the circuit is open."""

    def open_it(run: Run) -> None:
        for _ in range(5):
            run.talk.breaker = run.talk.breaker.failed("overloaded", 10**18)

    with Provider([]) as provider:
        said, _, _ = upkept(provider, watch=open_it, source="memory")
    assert (type(said).__name__, provider.requests) == ("CircuitOpenError", [])
    with Provider([OVERLOADED]) as provider:
        _, run, _ = upkept(provider, source="memory")
    assert run.talk.breaker.failures == 0
