"""Real failures and unfinished responses: how each is classified, and how the agent loop handles each kind.

The recorded bytes are served over loopback HTTP. Failures that do not occur in recorded traffic are tested in
`tests/agent/test_recovery.py` with synthetic responses.
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
from tests.agent.agent_runs import events_of, of_kind, result_of
from tests.agent.provider import MODEL, Provider, Reply, message, streamed, text
from tests.agent.test_recovery import RECORDED_CLASSES
from tests.wire import corpus
from tests.wire.corpus import Exchange

DONE = message(text("Done."))
REQUEST = httpx2.Request("POST", "http://localhost/v1/messages")


def failures() -> Iterator[Exchange]:
    """Yield every recorded failure of a model request."""
    for tag in ("status_400", "status_401", "status_404", "status_429", "status_529"):
        yield from _failed(tag)
    yield from _failed("error_event_mid_stream")


def _failed(tag: str) -> list[Exchange]:
    found = (each for name in corpus.files(tag) for each in corpus.read(name).exchanges)
    return [each for each in found if each.error and each.is_model_request]


def error_of(exchange: Exchange) -> anthropic.APIStatusError:
    """Return the error that the SDK raises for a recorded failure."""
    headers = {k: v for k, v in exchange.headers.items() if k != "content-length"}
    response = httpx2.Response(exchange.status, headers=headers, request=REQUEST)
    body = {"type": "error", "error": exchange.error}
    return anthropic.APIStatusError("recorded", response=response, body=body)


def expected(exchange: Exchange) -> ErrorClass:
    """Return the expected class of a recorded failure, derived from the exchange alone."""
    error = exchange.error or {}
    error_text = str(error["message"])
    if "prompt is too long" in error_text or "too many total text bytes" in error_text:
        return "too_long"
    if exchange.status == 400 and "image" in error_text:
        return "image"
    by_type: dict[str, ErrorClass] = {
        "authentication_error": "unauthorized",
        "invalid_request_error": "bad_request",
        "not_found_error": "not_found",
        "overloaded_error": "overloaded",
        "rate_limit_error": "rate_limit",
    }
    return by_type[error["type"]]


def test_every_recorded_failure_is_classified() -> None:
    """Each recorded failure has the class that follows from its error type and text, and each class of real failures
    occurs.
    """
    seen: dict[ErrorClass, int] = {}
    for exchange in failures():
        error, kind = error_of(exchange), expected(exchange)
        assert classify(error) == kind, exchange.text
        assert (terminal_reason(error) == "prompt_too_long") is (kind == "too_long")
        failure = failure_of(error, has_content=False, now_ns=0)
        headers = exchange.headers if exchange.status >= 400 else {}
        provider_may_retry = {"true": True, "false": False}.get(headers.get("x-should-retry", ""))
        wait = float(headers["retry-after"]) if "retry-after" in headers else None
        assert failure == Failure(kind, provider_may_retry, wait, None)
        seen[kind] = seen.get(kind, 0) + 1
    assert seen.keys() == RECORDED_CLASSES
    assert sum(seen.values()) >= 40


def served(exchange: Exchange) -> Reply:
    """Return the exact recorded response."""
    headers = {k: v for k, v in exchange.headers.items() if k != "content-length"}
    content_type = "text/event-stream" if exchange.is_stream else "application/json"
    return Reply(
        (exchange.text.encode(),), exchange.status, {"content-type": content_type, **headers}
    )


def failure_kinds() -> list[Exchange]:
    """Return one recorded failure of each kind: each combination of status, class and retry headers."""
    found: dict[Any, Exchange] = {}
    for exchange in failures():
        headers = exchange.headers
        retry_headers = (headers.get("x-should-retry"), "retry-after" in headers)
        found.setdefault((exchange.status, expected(exchange), *retry_headers), exchange)
    return list(found.values())


def test_the_loop_handles_each_kind_of_failure() -> None:
    """The loop retries a transient failure after the requested wait; after any other failure, the run ends with its
    error.
    """
    for exchange in failure_kinds():
        headers = exchange.headers if exchange.status >= 400 else {}
        should_retry, wait = headers.get("x-should-retry"), float(headers.get("retry-after", 0.5))
        is_retried = should_retry == "true" or (
            should_retry is None and expected(exchange) == "overloaded"
        )
        waits: list[float] = []
        with Provider([served(exchange), streamed(DONE)]) as provider:
            events = events_of(provider, waits=waits)
        result, error = result_of(events), exchange.error or {}
        if is_retried:
            assert waits == [wait]
            assert of_kind(events, Retry) == [Retry(1, 1, wait, error["type"], exchange.status)]
            assert result.text == "Done."
        else:
            assert (waits, len(provider.requests)) == ([], 1)
            assert (result.error, result.error_text) == (error["type"], error["message"])
            reasons = {"too_long": "prompt_too_long", "image": "image_error"}
            assert result.terminal_reason == reasons.get(expected(exchange), "model_error")


def test_a_real_401_is_retried_once_with_new_credentials() -> None:
    """A 401 is retried once with new credentials, although the provider states that the request must not be retried."""
    rejection = served(_failed("status_401")[-1])
    with Provider([rejection, streamed(DONE)]) as provider:
        events = events_of(provider, world={"refresh": lambda: True})
    assert (len(provider.requests), result_of(events).text) == (2, "Done.")


def test_real_overloads_switch_to_the_fallback_model() -> None:
    """After three consecutive overloads, by status or inside a stream, the loop uses the fallback model."""
    by_status, in_stream = _failed("status_529")[0], _failed("error_event_mid_stream")[0]
    replies = [served(each) for each in (by_status, in_stream, by_status)]
    with Provider([*replies, streamed(DONE)]) as provider:
        events = events_of(provider, fallback_model="claude-other-1")
    assert of_kind(events, Fallback) == [Fallback(1, MODEL, "claude-other-1")]
    assert result_of(events).text == "Done."


def test_an_unattended_run_retries_real_overloads() -> None:
    """In an unattended run, the loop retries more than ten times."""
    overload = served(_failed("status_529")[0])
    with Provider([*[overload] * 15, streamed(DONE)]) as provider:
        events = events_of(provider, unattended=True)
    assert (len(of_kind(events, Retry)), result_of(events).text) == (15, "Done.")


def unfinished_responses(reason: str) -> list[Exchange]:
    """Return the recorded responses that have the given stop reason and do not call tools."""
    found = (
        each for name in corpus.files(f"stop:{reason}") for each in corpus.read(name).exchanges
    )
    responses = [each for each in found if each.is_model_request and each.message]
    return [each for each in responses if _stop_reason(each) == reason and not each.calls]


def _stop_reason(exchange: Exchange) -> str | None:
    return None if exchange.message is None else exchange.message.get("stop_reason")


def response_text(exchange: Exchange) -> str:
    content = exchange.message["content"] if exchange.message else []
    return "\n".join(block["text"] for block in content if block["type"] == "text")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_the_loop_continues_every_truncated_response(number: int) -> None:
    """The first truncated response is discarded and requested again with a higher limit; the second truncated response
    is continued.
    """
    for exchange in unfinished_responses("max_tokens")[number::4]:
        replies = [served(exchange), served(exchange), streamed(DONE)]
        with Provider(replies) as provider:
            events = events_of(provider, stream=exchange.is_stream)
        assert [e.is_void for e in of_kind(events, Continuation)] == [True, False]
        limit = 64_000 if exchange.is_stream else 21_333
        assert [r["max_tokens"] for r in provider.requests] == [100, limit, limit]
        result = result_of(events)
        assert (result.subtype, result.text) == ("success", f"{response_text(exchange)}Done.")


def test_the_loop_continues_every_paused_response() -> None:
    """The loop sends a paused response back unchanged, and the model continues it."""
    count = 0
    for exchange in unfinished_responses("pause_turn"):
        with Provider([served(exchange), streamed(DONE)]) as provider:
            events = events_of(provider, stream=exchange.is_stream)
        (first, _) = of_kind(events, Message)
        messages = provider.requests[1]["messages"]
        assert [m["role"] for m in messages] == ["user", "assistant"]
        assert messages[1]["content"] == [b for b in first.message["content"] if b != text("")]
        assert result_of(events).text == f"{response_text(exchange)}\nDone."
        count += 1
    assert count == 2


def test_a_fallback_by_the_provider_is_a_normal_response() -> None:
    """If the provider used another model as a fallback, the loop handles its response like any other."""
    (name,) = corpus.files("fallback")
    exchange = next(each for each in corpus.read(name).exchanges if each.message)
    assert json.dumps(exchange.message).count("fallback") >= 1
    replies = itertools.repeat(served(exchange), 1 + 1 + output_limits.CONTINUATIONS_MAX)
    with Provider(list(replies)) as provider:
        events = events_of(provider, stream=exchange.is_stream)
    assert not of_kind(events, Fallback)
    assert result_of(events).terminal_reason == "max_output_tokens"
    assert response_text(exchange) in result_of(events).text
