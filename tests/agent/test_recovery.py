"""Recovery: which failures are tried again, and after how long."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import pytest

from agentobs.agent.recovery import backoff_s, name_of, status_of, text_of, wait_s

REQUEST = httpx2.Request("POST", "http://localhost/v1/messages")
NOON_NS = 1_793_275_200 * 10**9  # 2026-10-29 12:00:00 UTC


def refused(status: int, kind: str = "some_error", **headers: str) -> anthropic.APIStatusError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx2.Response(status, headers=named, request=REQUEST)
    body = {"type": "error", "error": {"type": kind, "message": "Sorry"}}
    return anthropic.APIStatusError("Sorry", response=response, body=body)


def judged(error: Exception, attempt: int = 1, **more: Any) -> float | None:
    given: dict[str, Any] = {"max_retries": 10, "chance": 0.0, "now_ns": NOON_NS, **more}
    return wait_s(error, attempt, **given)


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (refused(408), 0.5),
        (refused(409), 0.5),
        (refused(429), 0.5),
        (refused(500), 0.5),
        (refused(529), 0.5),
        (refused(400), None),
        (refused(401), None),
        (refused(404), None),
        (refused(413), None),
        (refused(400, x_should_retry="true"), 0.5),
        (refused(529, x_should_retry="false"), None),
        (refused(429, retry_after="7"), 7.0),
        (refused(429, retry_after="7", retry_after_ms="250"), 0.25),
        (refused(429, retry_after="Thu, 29 Oct 2026 12:00:09 GMT"), 9.0),
        (refused(429, retry_after="Thu, 29 Oct 2026 11:00:00 GMT"), 0.0),
        (refused(429, retry_after="soon"), 0.5),
        (refused(429, retry_after="inf"), 0.5),
        (refused(429, retry_after="-3"), 0.5),
        (refused(200, "overloaded_error"), 0.5),
        (refused(200, "overloaded_error", retry_after="41"), 0.5),
        (refused(200, "invalid_request_error"), None),
        (anthropic.APIConnectionError(request=REQUEST), 0.5),
        (anthropic.APITimeoutError(request=REQUEST), 0.5),
        (httpx2.ReadError("cut"), 0.5),
        (httpx2.RemoteProtocolError("cut"), 0.5),
        (anthropic.RetryableError("middleware asks"), 0.5),
        (anthropic.APIResponseValidationError(httpx2.Response(200, request=REQUEST), None), None),
        (anthropic.AnthropicError("a replay that differs"), None),
    ],
)
def test_each_failure_is_tried_again_or_not(error: Exception, wait: float | None) -> None:
    """What may pass is tried again, after the wait that a refusal asks for; what cannot pass is given up.

    A `retry-after` beside a 200 is not obeyed.
    """
    assert judged(error) == wait


def test_waits_double_up_to_a_bound_and_jitter_only_adds() -> None:
    """Waits go 0.5, 1, 2 ... 32 seconds, and chance adds up to a quarter, however many attempts there were."""
    assert [backoff_s(n, 0.0) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 32, 32]
    assert backoff_s(1, 0.5) == 0.5625
    assert backoff_s(10_000, 1.0) == 40


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        ("300", 300.0),
        ("301", None),
        ("1e300", None),
        ("Fri, 01 Jan 99999 00:00:00 GMT", 0.5),
        ("nan", 0.5),
    ],
)
def test_a_provider_that_asks_for_nonsense(asked: str, wait: float | None) -> None:
    """Nobody waits longer than five minutes, and nothing that a header holds raises."""
    assert judged(refused(529, retry_after=asked)) == wait


def test_attempts_are_bounded() -> None:
    """After `max_retries` retries the error stands."""
    assert judged(refused(529), 2, max_retries=2) == 1.0
    assert judged(refused(529), 3, max_retries=2) is None
    assert judged(refused(529), 1, max_retries=0) is None


def test_errors_have_names_without_content() -> None:
    """A name is the provider's type where that is a label, else the class; the text is said apart from it."""
    named = [refused(200, "overloaded_error"), refused(500, "has blanks"), httpx2.ReadError("cut")]
    assert [(name_of(e), status_of(e), text_of(e)) for e in named] == [
        ("overloaded_error", 200, "Sorry"),
        ("APIStatusError", 500, "Sorry"),
        ("ReadError", None, "cut"),
    ]
