"""Real failures and unfinished answers: how each is classified, and what the loop does when it meets each kind.

The recorded bytes are served over loopback HTTP. What recorded traffic lacks is made up elsewhere, and called made.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import pytest

from agentobs.agent.events import Continuation, Fallback, Message, Retry
from agentobs.agent.model import output_limits
from agentobs.agent.model.error_classes import ErrorClass, classify, terminal_reason
from agentobs.agent.model.retry import Failure, failure_of
from tests.agent.provider import MODEL, Provider, Reply, message, streamed, text
from tests.agent.scene import events_of, of_kind, result_of
from tests.agent.test_recovery import REAL
from tests.wire import corpus
from tests.wire.corpus import Exchange

DONE = message(text("Done."))
REQUEST = httpx2.Request("POST", "http://localhost/v1/messages")


def failures() -> Iterator[Exchange]:
    """Every recorded failure of a request to the model."""
    for tag in ("status_400", "status_401", "status_404", "status_429", "status_529"):
        yield from _failed(tag)
    yield from _failed("error_event_mid_stream")


def _failed(tag: str) -> list[Exchange]:
    found = (each for name in corpus.files(tag) for each in corpus.read(name).exchanges)
    return [each for each in found if each.error and each.asks_model]


def error_of(exchange: Exchange) -> anthropic.APIStatusError:
    """The error that the SDK makes of a recorded failure."""
    headers = {k: v for k, v in exchange.headers.items() if k != "content-length"}
    response = httpx2.Response(exchange.status, headers=headers, request=REQUEST)
    body = {"type": "error", "error": exchange.error}
    return anthropic.APIStatusError("recorded", response=response, body=body)


def expected(exchange: Exchange) -> ErrorClass:
    """The class of a recorded failure, read from the exchange alone."""
    error = exchange.error or {}
    said = str(error["message"])
    if "prompt is too long" in said or "too many total text bytes" in said:
        return "too_long"
    if exchange.status == 400 and "image" in said:
        return "image"
    named: dict[str, ErrorClass] = {
        "authentication_error": "unauthorized",
        "invalid_request_error": "bad_request",
        "not_found_error": "not_found",
        "overloaded_error": "overloaded",
        "rate_limit_error": "rate_limit",
    }
    return named[error["type"]]


def test_every_recorded_failure_is_classified() -> None:
    """Each of the recorded failures is of the class that its own words name, and all real classes are there."""
    seen: dict[ErrorClass, int] = {}
    for exchange in failures():
        error, kind = error_of(exchange), expected(exchange)
        assert classify(error) == kind, exchange.text
        assert (terminal_reason(error) == "prompt_too_long") is (kind == "too_long")
        failure = failure_of(error, has_content=False, now_ns=0)
        beside = exchange.headers if exchange.status >= 400 else {}
        told = {"true": True, "false": False}.get(beside.get("x-should-retry", ""))
        wait = float(beside["retry-after"]) if "retry-after" in beside else None
        assert failure == Failure(kind, told, wait, None)
        seen[kind] = seen.get(kind, 0) + 1
    assert seen.keys() == REAL
    assert sum(seen.values()) >= 40


def served(exchange: Exchange) -> Reply:
    """The recorded answer, byte by byte."""
    headers = {k: v for k, v in exchange.headers.items() if k != "content-length"}
    content_type = "text/event-stream" if exchange.is_stream else "application/json"
    return Reply(
        (exchange.text.encode(),), exchange.status, {"content-type": content_type, **headers}
    )


def kinds() -> list[Exchange]:
    """One recorded failure of each kind: its status, its type and what its headers say of another try."""
    found: dict[Any, Exchange] = {}
    for exchange in failures():
        headers = exchange.headers
        what = (headers.get("x-should-retry"), "retry-after" in headers)
        found.setdefault((exchange.status, expected(exchange), *what), exchange)
    return list(found.values())


def test_the_loop_meets_each_kind_of_failure() -> None:
    """What the provider says will pass is tried again after its wait; all else ends the run, and says why."""
    for exchange in kinds():
        headers = exchange.headers if exchange.status >= 400 else {}
        told, wait = headers.get("x-should-retry"), float(headers.get("retry-after", 0.5))
        passes = told == "true" or (told is None and expected(exchange) == "overloaded")
        waits: list[float] = []
        with Provider([served(exchange), streamed(DONE)]) as provider:
            events = events_of(provider, waits=waits)
        result, error = result_of(events), exchange.error or {}
        if passes:
            assert waits == [wait]
            assert of_kind(events, Retry) == [Retry(1, 1, wait, error["type"], exchange.status)]
            assert result.text == "Done."
        else:
            assert (waits, len(provider.requests)) == ([], 1)
            assert (result.error, result.error_text) == (error["type"], error["message"])
            reasons = {"too_long": "prompt_too_long", "image": "image_error"}
            assert result.terminal_reason == reasons.get(expected(exchange), "model_error")


def test_a_real_401_is_refreshed_once() -> None:
    """Though it says that the same request will not pass: with other credentials it is another one."""
    refusal = served(_failed("status_401")[-1])
    with Provider([refusal, streamed(DONE)]) as provider:
        events = events_of(provider, world={"refresh": lambda: True})
    assert (len(provider.requests), result_of(events).text) == (2, "Done.")


def test_real_overloads_make_another_model_answer() -> None:
    """Three of them in a row, by status and inside a stream, are enough."""
    by_status, inside = _failed("status_529")[0], _failed("error_event_mid_stream")[0]
    replies = [served(each) for each in (by_status, inside, by_status)]
    with Provider([*replies, streamed(DONE)]) as provider:
        events = events_of(provider, fallback_model="claude-other-1")
    assert of_kind(events, Fallback) == [Fallback(1, MODEL, "claude-other-1")]
    assert result_of(events).text == "Done."


def test_real_overloads_where_nobody_attends() -> None:
    """They are waited for beyond ten retries."""
    overload = served(_failed("status_529")[0])
    with Provider([*[overload] * 15, streamed(DONE)]) as provider:
        events = events_of(provider, unattended=True)
    assert (len(of_kind(events, Retry)), result_of(events).text) == (15, "Done.")


def unfinished(reason: str) -> list[Exchange]:
    """The recorded answers that stopped for a reason and call no tool."""
    found = (
        each for name in corpus.files(f"stop:{reason}") for each in corpus.read(name).exchanges
    )
    answers = [each for each in found if each.asks_model and each.message]
    return [each for each in answers if _stopped(each) == reason and not each.calls]


def _stopped(exchange: Exchange) -> str | None:
    return None if exchange.message is None else exchange.message.get("stop_reason")


def words(exchange: Exchange) -> str:
    content = exchange.message["content"] if exchange.message else []
    return "\n".join(block["text"] for block in content if block["type"] == "text")


@pytest.mark.parametrize("number", range(4))
def test_the_loop_meets_every_answer_that_was_cut(number: int) -> None:
    """Each recorded one is void once, and asked for with more room; the second time the model goes on from it."""
    for exchange in unfinished("max_tokens")[number::4]:
        replies = [served(exchange), served(exchange), streamed(DONE)]
        with Provider(replies) as provider:
            events = events_of(provider, stream=exchange.is_stream)
        assert [e.is_void for e in of_kind(events, Continuation)] == [True, False]
        limit = 64_000 if exchange.is_stream else 21_333
        assert [r["max_tokens"] for r in provider.requests] == [100, limit, limit]
        result = result_of(events)
        assert (result.subtype, result.text) == ("success", f"{words(exchange)}Done.")


def test_the_loop_meets_every_answer_that_was_paused() -> None:
    """Each recorded one goes back as it came, and the model goes on from it."""
    met = 0
    for exchange in unfinished("pause_turn"):
        with Provider([served(exchange), streamed(DONE)]) as provider:
            events = events_of(provider, stream=exchange.is_stream)
        (first, _) = of_kind(events, Message)
        said = provider.requests[1]["messages"]
        assert [m["role"] for m in said] == ["user", "assistant"]
        assert said[1]["content"] == [b for b in first.message["content"] if b != text("")]
        assert result_of(events).text == f"{words(exchange)}\nDone."
        met += 1
    assert met == 2


def test_a_recorded_fallback_of_the_provider_is_an_answer() -> None:
    """Where the provider itself asked another model the answer is one like any other."""
    (name,) = corpus.files("fallback")
    exchange = next(each for each in corpus.read(name).exchanges if each.message)
    assert json.dumps(exchange.message).count("fallback") >= 1
    rest = itertools.repeat(served(exchange), 1 + 1 + output_limits.CONTINUATIONS_MAX)
    with Provider(list(rest)) as provider:
        events = events_of(provider, stream=exchange.is_stream)
    assert not of_kind(events, Fallback)
    assert result_of(events).terminal_reason == "max_output_tokens"
    assert words(exchange) in result_of(events).text
