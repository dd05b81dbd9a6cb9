"""Error classes: the class of each failure, whether it is retried, the backoff, and changes of the request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import anthropic
import httpx2
import pytest

from agentobs.agent.model.error_classes import (
    REACTIONS,
    CircuitOpenError,
    CutError,
    ErrorClass,
    WindowFullError,
    classify,
    is_too_long,
    max_tokens_available,
    may_have_cost,
    name_of,
    status_of,
    terminal_reason,
    text_of,
)
from agentobs.agent.model.output_limits import useful_limit
from agentobs.agent.model.retry import (
    LONGEST_SINGLE_WAIT_S,
    UNATTENDED_WAIT_S,
    CircuitBreaker,
    Failure,
    NextAttempt,
    RetryHistory,
    RetryPolicy,
    background_retry,
    depends_on_clock,
    failure_of,
    next_attempt,
    requested_wait_s,
    wait_parts,
)

REQUEST = httpx2.Request("POST", "http://localhost/v1/messages")
NOON_NS = 1_793_275_200 * 10**9  # 2026-10-29 12:00:00 UTC
OVERFLOW = "input length and `max_tokens` exceed context limit: {} + {} > {}, decrease input length or `max_tokens`"
DOCUMENT = Path(__file__).parents[2] / "docs" / "recovery.md"


def refused(
    status: int, kind: str = "some_error", text: str = "Sorry", code: str = "", **headers: str
) -> anthropic.APIStatusError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx2.Response(status, headers=named, request=REQUEST)
    details = {"error_code": code} if code else None
    error = {"type": kind, "message": text, "details": details}
    return anthropic.APIStatusError(text, response=response, body={"type": "error", "error": error})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refused(400, text=OVERFLOW.format("190000", "21333", "200000")), "overflow"),
        (refused(400, text="max_tokens: 64000 > 8192, which is the maximum"), "beyond_model"),
        (refused(400, text="prompt is too long: 210000 tokens > 200000 maximum"), "too_long"),
        (refused(400, text="too many total text bytes: 10000002 > 9000000"), "too_long"),
        (refused(200, text="prompt is too long: 210000 tokens > 200000 maximum"), "too_long"),
        (refused(413), "too_large"),
        (refused(400, "request_too_large"), "too_large"),
        (refused(400, code="request_body_too_large_after_decoding"), "too_large"),
        (refused(400, text="image exceeds 5 MB maximum"), "image"),
        (refused(400, code="image_dimensions_too_large"), "image"),
        (refused(400, text="temperature: range: 0..1"), "bad_request"),
        (refused(422), "bad_request"),
        (refused(401), "unauthorized"),
        (refused(403), "forbidden"),
        (refused(404), "not_found"),
        (refused(408), "timeout"),
        (refused(409), "conflict"),
        (refused(429), "rate_limit"),
        (refused(500), "server_error"),
        (refused(503), "server_error"),
        (refused(529), "overloaded"),
        (refused(503, "overloaded_error"), "overloaded"),
        (refused(200, "overloaded_error"), "overloaded"),
        (refused(200, "rate_limit_error"), "rate_limit"),
        (refused(200, "api_error"), "server_error"),
        (refused(200, "timeout_error"), "timeout"),
        (refused(200, "invalid_request_error"), "error_in_stream"),
        (refused(200, 3), "error_in_stream"),  # type: ignore[arg-type]
        (anthropic.APIConnectionError(request=REQUEST), "connection"),
        (anthropic.RetryableError("middleware asks"), "connection"),
        (anthropic.APITimeoutError(request=REQUEST), "timeout"),
        (CutError(request=REQUEST), "cut_before_content"),
        (httpx2.ReadError("cut"), "cut_before_content"),
        (httpx2.RemoteProtocolError("cut"), "cut_before_content"),
        (
            anthropic.APIResponseValidationError(httpx2.Response(200, request=REQUEST), None),
            "unreadable",
        ),
        (WindowFullError("full", REQUEST, body=None), "window_full"),
        (CircuitOpenError("open", REQUEST, body=None), "circuit_open"),
    ],
)
def test_each_failure_has_one_class(error: Exception, kind: ErrorClass) -> None:
    """The class of a failure follows from its type, status and code; for a 400 without a code, as in real traffic, it
    follows from the text.
    """
    assert classify(error) == kind


def test_broken_streams_have_two_classes() -> None:
    """A stream that breaks before any content has another class than a stream that breaks later."""
    cuts = [CutError(request=REQUEST), httpx2.ReadError("cut")]
    assert [classify(cut, has_content=True) for cut in cuts] == ["cut_after_content"] * 2


def test_the_table_has_a_row_for_each_class() -> None:
    """The table of policies has a row for every class."""
    assert list(REACTIONS) == list(get_args(ErrorClass))


def decided(
    failure: Failure, history: RetryHistory | None = None, chance: float = 0.0, **policy: Any
) -> Any:
    """Return the wait before the next attempt, or the name of the change of the request; None if the request is given
    up.
    """
    found = next_attempt(failure, history or RetryHistory(), RetryPolicy(**policy), chance)
    return found if found is None else found.step or found.wait_s + found.jitter_s


@pytest.mark.parametrize("kind", get_args(ErrorClass))
def test_transient_failures_are_retried(kind: ErrorClass) -> None:
    """The table decides which failures are retried, unless the provider's response decides."""
    policy = REACTIONS[kind]
    expected = 0.5 if policy.is_retried else "refresh" if policy.step == "refresh" else None
    assert decided(Failure(kind)) == expected
    assert (expected == "refresh") is (kind in ("unauthorized", "forbidden"))
    assert decided(Failure(kind, provider_may_retry=True)) == (expected or 0.5)
    assert decided(Failure(kind, provider_may_retry=False)) == (
        "refresh" if policy.step == "refresh" else None
    )


@pytest.mark.parametrize("kind", get_args(ErrorClass))
def test_background_failures_are_given_up_fast(kind: ErrorClass) -> None:
    """A background request is not retried after an overload or a rate limit, and has at most three attempts."""
    policy = REACTIONS[kind]
    if policy.is_retried:
        assert decided(Failure(kind), is_background=True) == (None if policy.fails_fast else 0.5)
    assert decided(
        Failure(kind, provider_may_retry=True), RetryHistory(retries=2), is_background=True
    ) in (
        None,
        "refresh",
    )


def test_requests_outside_the_loop() -> None:
    """Requests of hooks and of the classifier are retried like background requests, but never changed, and never after
    a long wait.
    """

    def waits(error: Exception, retries: int = 0) -> float | None:
        history = RetryHistory(retries=retries)
        found = background_retry(error, history, 30.0, 0.5, has_content=False, now_ns=NOON_NS)
        return None if found is None else found.wait_s + found.jitter_s

    assert [waits(refused(500), n) for n in range(3)] == [0.5625, 1.125, None]
    assert waits(refused(500, retry_after="29")) == 29.0
    final_errors = [
        refused(500, retry_after="30"),
        refused(529),
        refused(429),
        refused(401),
        refused(400),
    ]
    assert [waits(each) for each in final_errors] == [None] * 5


def test_backoff_doubles_up_to_a_maximum() -> None:
    """The backoff doubles from 0.5 to 32 seconds, jitter adds up to a quarter, and there are at most ten retries."""
    waits = [decided(Failure("server_error"), RetryHistory(retries=n)) for n in range(11)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 32, 32, 32, None]
    assert decided(Failure("server_error"), RetryHistory(retries=9), chance=0.5) == 36
    assert decided(Failure("server_error"), RetryHistory(retries=10), max_retries=50) is None
    assert decided(Failure("server_error"), RetryHistory(retries=2), max_retries=2) is None
    assert decided(Failure("server_error"), max_retries=-1) is None


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Thu, 29 Oct 2026 12:00:09 GMT"}, 9.0),
        ({"retry-after": "Thu, 29 Oct 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "Fri, 01 Jan 99999 00:00:00 GMT"}, None),
        ({}, None),
    ],
)
def test_the_wait_that_a_response_requests(headers: dict[str, str], wait: float | None) -> None:
    """A response may request a wait in seconds, in milliseconds or as a date; an invalid value, or any value in a 200,
    is ignored.
    """
    assert requested_wait_s(headers, NOON_NS) == wait
    assert depends_on_clock(headers) == ("GMT" in str(headers) and wait is not None)
    named = {name.replace("-", "_"): value for name, value in headers.items()}
    refused_errors = [refused(429, **named), refused(200, "overloaded_error", **named)]
    found = [
        failure_of(e, has_content=False, now_ns=NOON_NS).requested_wait_s for e in refused_errors
    ]
    assert found == [wait, None]


def test_a_requested_wait_is_exact() -> None:
    """A requested wait is followed exactly, up to five minutes; attended runs do not wait longer."""
    assert decided(Failure("rate_limit", requested_wait_s=7.0), chance=0.9) == 7.0
    assert decided(Failure("rate_limit", requested_wait_s=300.0)) == 300.0
    assert decided(Failure("rate_limit", requested_wait_s=301.0)) is None


@pytest.mark.parametrize(
    ("header", "expected"), [("true", True), ("false", False), ("maybe", None)]
)
def test_x_should_retry_is_followed(header: str, expected: bool | None) -> None:
    """The `x-should-retry` header decides about a retry; in a 200 it is ignored, because it does not refer to the
    error.
    """
    errors = [refused(400, x_should_retry=header), refused(200, x_should_retry=header)]
    found = [failure_of(e, has_content=False, now_ns=NOON_NS).provider_may_retry for e in errors]
    assert found == [expected, None]


def test_unattended_waits() -> None:
    """Unattended runs retry rate limits and outages for six hours in total, with waits from 32 seconds to five
    minutes.
    """
    outages = [(kind, None) for kind, policy in REACTIONS.items() if policy.counts_as_outage]
    assert len(outages) == 6
    for kind, wait_s in (*outages, ("rate_limit", 0.001), ("rate_limit", 1e9)):
        failure = Failure(kind, requested_wait_s=wait_s)
        history, waits = RetryHistory(), list[float]()
        while found := next_attempt(failure, history, RetryPolicy(is_unattended=True), 0.9):
            history, waits = found.history, [*waits, found.wait_s]
            assert found.wait_s + found.jitter_s <= LONGEST_SINGLE_WAIT_S
        assert sum(waits) == UNATTENDED_WAIT_S
        assert min(waits[10:-1]) >= 32
        assert len(waits) <= 10 + 6 * 3600 / 32
    assert decided(Failure("conflict"), RetryHistory(retries=10), is_unattended=True) is None
    background = {"is_unattended": True, "is_background": True}
    assert decided(Failure("overloaded"), RetryHistory(retries=10), **background) is None


def test_a_long_wait_has_several_parts() -> None:
    """An unattended wait is split into parts of 30 seconds; the number of parts does not depend on jitter."""
    wait = NextAttempt(RetryHistory(), 70.0, 2.5)
    assert list(wait_parts(wait, is_unattended=True)) == [30, 30, 12.5]
    assert list(wait_parts(NextAttempt(RetryHistory(), 60.0), is_unattended=True)) == [30, 30]
    assert list(wait_parts(wait, is_unattended=False)) == [72.5]


def test_three_overloads_in_a_row() -> None:
    """After three consecutive overloads, a request switches to the fallback model, once; any other outcome resets the
    count.
    """

    def run(kinds: list[ErrorClass], **policy: Any) -> list[str | None]:
        history, steps = RetryHistory(), list[str | None]()
        for kind in kinds:
            found = next_attempt(Failure(kind), history, RetryPolicy(**policy), 0.0)
            assert found is not None
            history, steps = found.history, [*steps, found.step]
        return steps

    overloaded: ErrorClass = "overloaded"
    assert run([overloaded] * 6, has_fallback=True) == [None, None, "fall_back", None, None, None]
    assert (
        run([overloaded, overloaded, "server_error", overloaded, overloaded], has_fallback=True)
        == [None] * 5
    )
    assert run([overloaded] * 6) == [None] * 6
    assert decided(Failure(overloaded), RetryHistory(retries=2, overloads=2), max_retries=2) is None
    last = RetryHistory(retries=2, overloads=2)
    assert decided(Failure(overloaded), last, max_retries=2, has_fallback=True) == "fall_back"


def test_three_streams_that_broke_before_content() -> None:
    """After three consecutive streams that broke before any content, the request is sent without streaming if its
    response limit allows this.
    """
    history = RetryHistory(retries=2, cuts=2)
    assert decided(Failure("cut_before_content"), history, may_unstream=True) == "unstream"
    assert decided(Failure("cut_before_content"), history) == 2.0
    assert decided(Failure("cut_after_content"), history, may_unstream=True) == 2.0


def test_credentials_are_refreshed_once() -> None:
    """Credentials are refreshed once per request; a second 401 is final."""
    assert decided(Failure("unauthorized")) == "refresh"
    assert decided(Failure("unauthorized"), RetryHistory(steps=frozenset({"refresh"}))) is None


@pytest.mark.parametrize(
    ("text", "least", "fits"),
    [
        (OVERFLOW.format("190,000", "21,333", "200,000"), 9_000, 9_000),
        (OVERFLOW.format("196000", "21333", "200000"), 3_000, 3_000),
        (OVERFLOW.format("196001", "21333", "200000"), None, None),
        (OVERFLOW.format("250000", "100", "200000"), None, None),
        ("max_tokens: 64000 > 8192, which is the maximum", 8_192, 8_192),
        ("max_tokens: 64000 > 0, which is the maximum", None, None),
        ("prompt is too long", None, None),
    ],
)
def test_the_max_tokens_that_fits(text: str, least: int | None, fits: int | None) -> None:
    """The `max_tokens` that fits is the remaining window minus 1,000 tokens; below 3,000 the prompt is too long."""
    error = refused(400, text=text)
    assert max_tokens_available(error) == least
    failure = failure_of(error, has_content=False, now_ns=NOON_NS)
    assert useful_limit(failure, {"max_tokens": 64_000}) == fits
    assert decided(Failure(failure.kind, max_tokens_available=fits)) == ("lower" if fits else None)


@pytest.mark.parametrize("where", ["arguments", "extra"])
def test_max_tokens_is_not_changed_if_this_does_not_help(where: str) -> None:
    """`max_tokens` is not changed if the fitting value is not lower than the current value, or does not exceed the
    thinking budget.
    """
    failure = Failure("overflow", max_tokens_available=9_000)
    for fields in (
        {"max_tokens": 9_000},
        {"max_tokens": 20_000, "thinking": {"budget_tokens": 9_000}},
    ):
        request_fields = fields if where == "arguments" else {"max_tokens": 1, "extra_body": fields}
        assert useful_limit(failure, request_fields) is None


def test_end_reasons_of_failures() -> None:
    """The end reason distinguishes prompts that are too long, and invalid images, from other failures."""
    too_long = [kind for kind, policy in REACTIONS.items() if policy.reason == "prompt_too_long"]
    assert too_long == ["overflow", "too_long", "too_large", "window_full"]
    assert terminal_reason(refused(413)) == "prompt_too_long"
    assert terminal_reason(refused(400, text="image exceeds 5 MB")) == "image_error"
    assert terminal_reason(refused(529)) == "model_error"
    assert is_too_long(refused(413))
    assert is_too_long({"stop_reason": "model_context_window_exceeded"})
    assert not is_too_long({"stop_reason": "max_tokens"})
    assert not is_too_long(refused(529))


def test_errors_have_names_without_content() -> None:
    """The name of an error is the provider's error type if that is a label, or else its class; the text is separate."""
    named = [refused(200, "overloaded_error"), refused(500, "has blanks"), httpx2.ReadError("cut")]
    assert [(name_of(e), status_of(e), text_of(e)) for e in named] == [
        ("overloaded_error", 200, "Sorry"),
        ("APIStatusError", 500, "Sorry"),
        ("ReadError", None, "cut"),
    ]


def test_attempts_that_may_be_billed() -> None:
    """A request that was rejected or not sent costs nothing; a request whose connection broke later may have been
    billed.
    """
    unsent = anthropic.APIConnectionError(request=REQUEST)
    unsent.__cause__ = httpx2.ConnectError("refused")
    free = [refused(529), unsent, CircuitOpenError("open", REQUEST, body=None)]
    assert [may_have_cost(error) for error in free] == [False] * 3
    assert may_have_cost(httpx2.ReadError("cut"))


def test_the_circuit_breaker() -> None:
    """Five consecutive failures that indicate an outage open the circuit for a minute; one success closes it."""
    breaker = CircuitBreaker()
    for number in range(5):
        assert not breaker.is_open
        breaker = breaker.failed("overloaded", number * 10**9)
    assert breaker.is_open
    refusing = breaker.failed("circuit_open", 50 * 10**9)
    assert (refusing.refused, refusing.since_ns, refusing.is_open) == (1, 4 * 10**9, True)
    assert [refusing.remaining_s(int(at * 10**9)) for at in (0, 62.1, 63, 64, 99)] == [
        60,
        2,
        1,
        0,
        0,
    ]
    assert refusing.failed("server_error", 70 * 10**9).is_open
    assert not refusing.succeeded().is_open
    assert not breaker.failed("bad_request", 5).is_open


RECORDED_CLASSES: frozenset[ErrorClass] = frozenset(
    ("too_long", "image", "bad_request", "unauthorized", "not_found", "rate_limit", "overloaded")
)
"""The classes that occur in recorded traffic, found by `tests/wire/test_recovery.py`; other rows are synthetic."""


def table() -> str:
    """Return the table of the document as generated from the code."""
    lines = [
        "| class | recognized by | retried | delay | other reactions | terminal reason | evidence |",
        "| --- " * 7 + "|",
    ]
    return "\n".join([*lines, *(row(kind) for kind in REACTIONS)])


def row(kind: ErrorClass) -> str:
    policy = REACTIONS[kind]
    step = {
        None: "",
        "refresh": "sent again with new credentials",
        "lower": "sent again with a `max_tokens` that fits",
        "fall_back": "after three in a row, switches to the fallback model",
        "unstream": "after three in a row, requested without streaming",
        "shorten": "the conversation is compacted",
        "slow_down": "",
    }[policy.step]
    wait = "backoff" if policy.is_retried else "-"
    more = [step] if step else []
    more += ["in fast mode, sent at standard speed if `retry-after` is long"] * policy.slows_down
    more += ["background requests are not retried"] * policy.fails_fast
    more += ["in unattended runs, retried for up to six hours"] * policy.waits_unattended
    more += ["retried on a new connection"] * policy.loses_connection
    more += ["counts toward the circuit breaker"] * policy.counts_as_outage
    retried = "yes" if policy.is_retried else "no"
    following = "; ".join(more) or "-"
    evidence = "real" if kind in RECORDED_CLASSES else "made"
    cells = [f"`{kind}`", policy.when, retried, wait, following, f"`{policy.reason}`", evidence]
    return f"| {' | '.join(cells)} |"


def test_the_document_matches_the_table() -> None:
    """`docs/recovery.md` contains the table that is generated from the code."""
    found = re.search(r"\| class .*?\n\n", DOCUMENT.read_text(encoding="utf-8"), re.S)
    assert found is not None
    assert found[0].strip() == table()
