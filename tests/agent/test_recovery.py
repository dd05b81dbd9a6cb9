"""Error classes: the class of each failure, whether it is retried, the backoff, and the change made first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import anthropic
import httpx2
import pytest

from agentobs.agent.model.error_classes import (
    FOLLOWS,
    CircuitOpenError,
    CutError,
    ErrorClass,
    WindowFullError,
    classify,
    is_too_long,
    may_have_cost,
    name_of,
    room,
    status_of,
    terminal_reason,
    text_of,
)
from agentobs.agent.model.output_limits import of_use
from agentobs.agent.model.retry import (
    LONGEST_ASKED_S,
    UNATTENDED_S,
    Breaker,
    Failure,
    Next,
    Policy,
    Tried,
    after,
    asked_wait_s,
    background_retry,
    failure_of,
    is_dated,
    pieces,
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
def test_each_failure_is_of_one_class(error: Exception, kind: ErrorClass) -> None:
    """A failure's class follows from its type, status, code and, for real 400s without a code, its text."""
    assert classify(error) == kind


def test_a_cut_stream_is_told_apart_by_what_had_come() -> None:
    """A stream that broke before any content has another class than one that broke later."""
    cuts = [CutError(request=REQUEST), httpx2.ReadError("cut")]
    assert [classify(cut, has_content=True) for cut in cuts] == ["cut_after_content"] * 2


def test_the_table_has_a_row_for_each_class() -> None:
    """The table has a reaction for every class."""
    assert list(FOLLOWS) == list(get_args(ErrorClass))


def decided(
    failure: Failure, tried: Tried | None = None, chance: float = 0.0, **policy: Any
) -> Any:
    """Return the wait before the next attempt, the name of the change, or None for giving up."""
    found = after(failure, tried or Tried(), Policy(**policy), chance)
    return found if found is None else found.step or found.wait_s + found.jitter_s


@pytest.mark.parametrize("kind", get_args(ErrorClass))
def test_what_may_pass_is_tried_again(kind: ErrorClass) -> None:
    """If the provider says nothing, the table decides; otherwise the provider does."""
    follows = FOLLOWS[kind]
    expected = 0.5 if follows.is_retried else "refresh" if kind == "unauthorized" else None
    assert decided(Failure(kind)) == expected
    assert decided(Failure(kind, told=True)) == (expected or 0.5)
    assert decided(Failure(kind, told=False)) == ("refresh" if kind == "unauthorized" else None)


@pytest.mark.parametrize("kind", get_args(ErrorClass))
def test_the_background_fails_fast(kind: ErrorClass) -> None:
    """In the background, an overload or a rate limit is given up immediately, and there are at most three attempts."""
    follows = FOLLOWS[kind]
    if follows.is_retried:
        assert decided(Failure(kind), is_background=True) == (None if follows.fails_fast else 0.5)
    assert decided(Failure(kind, told=True), Tried(retries=2), is_background=True) in (
        None,
        "refresh",
    )


def test_requests_beside_a_run() -> None:
    """Requests of hooks and the classifier are retried like background requests; without changes or long waits."""

    def waits(error: Exception, retries: int = 0) -> float | None:
        tried = Tried(retries=retries)
        found = background_retry(error, tried, 30.0, 0.5, has_content=False, now_ns=NOON_NS)
        return None if found is None else found.wait_s + found.jitter_s

    assert [waits(refused(500), n) for n in range(3)] == [0.5625, 1.125, None]
    assert waits(refused(500, retry_after="29")) == 29.0
    gone = [refused(500, retry_after="30"), refused(529), refused(429), refused(401), refused(400)]
    assert [waits(each) for each in gone] == [None] * 5


def test_waits_double_up_to_a_bound_and_jitter_only_adds() -> None:
    """Backoffs are 0.5, 1, 2 ... 32 seconds, jitter adds up to a quarter, and there are at most ten."""
    waits = [decided(Failure("server_error"), Tried(retries=n)) for n in range(11)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 32, 32, 32, None]
    assert decided(Failure("server_error"), Tried(retries=9), chance=0.5) == 36
    assert decided(Failure("server_error"), Tried(retries=10), max_retries=50) is None
    assert decided(Failure("server_error"), Tried(retries=2), max_retries=2) is None
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
def test_the_wait_that_a_refusal_asks_for(headers: dict[str, str], wait: float | None) -> None:
    """In seconds, in milliseconds or as a date; an invalid value is ignored, as is any value with a 200."""
    assert asked_wait_s(headers, NOON_NS) == wait
    assert is_dated(headers) == ("GMT" in str(headers) and wait is not None)
    named = {name.replace("-", "_"): value for name, value in headers.items()}
    beside = [refused(429, **named), refused(200, "overloaded_error", **named)]
    found = [failure_of(e, has_content=False, now_ns=NOON_NS).asked_s for e in beside]
    assert found == [wait, None]


def test_a_wait_that_is_asked_for_is_kept() -> None:
    """It is waited for exactly, up to five minutes; attended runs wait no longer."""
    assert decided(Failure("rate_limit", asked_s=7.0), chance=0.9) == 7.0
    assert decided(Failure("rate_limit", asked_s=300.0)) == 300.0
    assert decided(Failure("rate_limit", asked_s=301.0)) is None


@pytest.mark.parametrize(("said", "told"), [("true", True), ("false", False), ("maybe", None)])
def test_the_provider_says_whether_to_try_again(said: str, told: bool | None) -> None:
    """`x-should-retry` is honored, except with a 200, where it does not refer to the error."""
    errors = [refused(400, x_should_retry=said), refused(200, x_should_retry=said)]
    found = [failure_of(e, has_content=False, now_ns=NOON_NS).told for e in errors]
    assert found == [told, None]


def test_nobody_attends() -> None:
    """Rate limits and outages are waited for, six hours in total, each wait from 32 seconds to five minutes."""
    down = [(kind, None) for kind, follows in FOLLOWS.items() if follows.is_down]
    assert len(down) == 6
    for kind, asked_s in (*down, ("rate_limit", 0.001), ("rate_limit", 1e9)):
        failure = Failure(kind, asked_s=asked_s)
        tried, waits = Tried(), list[float]()
        while found := after(failure, tried, Policy(is_unattended=True), 0.9):
            tried, waits = found.tried, [*waits, found.wait_s]
            assert found.wait_s + found.jitter_s <= LONGEST_ASKED_S
        assert sum(waits) == UNATTENDED_S
        assert min(waits[10:-1]) >= 32
        assert len(waits) <= 10 + 6 * 3600 / 32
    assert decided(Failure("conflict"), Tried(retries=10), is_unattended=True) is None
    lone = {"is_unattended": True, "is_background": True}
    assert decided(Failure("overloaded"), Tried(retries=10), **lone) is None


def test_a_long_wait_has_pieces() -> None:
    """An unattended wait is split into parts of 30 seconds, whose number does not depend on jitter."""
    wait = Next(Tried(), 70.0, 2.5)
    assert list(pieces(wait, is_unattended=True)) == [30, 30, 12.5]
    assert list(pieces(Next(Tried(), 60.0), is_unattended=True)) == [30, 30]
    assert list(pieces(wait, is_unattended=False)) == [72.5]


def test_three_overloads_in_a_row() -> None:
    """Then the fallback model is used, once per request; any other outcome resets the count."""

    def run(kinds: list[ErrorClass], **policy: Any) -> list[str | None]:
        tried, steps = Tried(), list[str | None]()
        for kind in kinds:
            found = after(Failure(kind), tried, Policy(**policy), 0.0)
            assert found is not None
            tried, steps = found.tried, [*steps, found.step]
        return steps

    over: ErrorClass = "overloaded"
    assert run([over] * 6, has_fallback=True) == [None, None, "fall_back", None, None, None]
    assert run([over, over, "server_error", over, over], has_fallback=True) == [None] * 5
    assert run([over] * 6) == [None] * 6
    assert decided(Failure(over), Tried(retries=2, overloads=2), max_retries=2) is None
    last = Tried(retries=2, overloads=2)
    assert decided(Failure(over), last, max_retries=2, has_fallback=True) == "fall_back"


def test_three_streams_that_broke_before_content() -> None:
    """Then the request is sent without streaming, if the response limit allows it."""
    tried = Tried(retries=2, cuts=2)
    assert decided(Failure("cut_before_content"), tried, may_unstream=True) == "unstream"
    assert decided(Failure("cut_before_content"), tried) == 2.0
    assert decided(Failure("cut_after_content"), tried, may_unstream=True) == 2.0


def test_credentials_are_made_anew_once() -> None:
    """A second 401 of the same request is final."""
    assert decided(Failure("unauthorized")) == "refresh"
    assert decided(Failure("unauthorized"), Tried(steps=frozenset({"refresh"}))) is None


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
def test_the_room_that_is_left(text: str, least: int | None, fits: int | None) -> None:
    """The `max_tokens` that fits is computed exactly, minus 1,000; below 3,000 the prompt is too long."""
    error = refused(400, text=text)
    assert room(error) == least
    failure = failure_of(error, has_content=False, now_ns=NOON_NS)
    assert of_use(failure, {"max_tokens": 64_000}) == fits
    assert decided(Failure(failure.kind, room=fits)) == ("lower" if fits else None)


@pytest.mark.parametrize("where", ["arguments", "extra"])
def test_room_that_is_of_no_use(where: str) -> None:
    """A limit not below the requested one changes nothing, and a response must be longer than its thinking."""
    failure = Failure("overflow", room=9_000)
    for fields in (
        {"max_tokens": 9_000},
        {"max_tokens": 20_000, "thinking": {"budget_tokens": 9_000}},
    ):
        given = fields if where == "arguments" else {"max_tokens": 1, "extra_body": fields}
        assert of_use(failure, given) is None


def test_what_ends_a_run() -> None:
    """A prompt that does not fit is distinguished from other failures, whatever the error; so is an image."""
    too_long = [kind for kind, follows in FOLLOWS.items() if follows.reason == "prompt_too_long"]
    assert too_long == ["overflow", "too_long", "too_large", "window_full"]
    assert terminal_reason(refused(413)) == "prompt_too_long"
    assert terminal_reason(refused(400, text="image exceeds 5 MB")) == "image_error"
    assert terminal_reason(refused(529)) == "model_error"
    assert is_too_long(refused(413))
    assert is_too_long({"stop_reason": "model_context_window_exceeded"})
    assert not is_too_long({"stop_reason": "max_tokens"})
    assert not is_too_long(refused(529))


def test_errors_have_names_without_content() -> None:
    """A name is the provider's type if that is a label, else the class; the text is separate."""
    named = [refused(200, "overloaded_error"), refused(500, "has blanks"), httpx2.ReadError("cut")]
    assert [(name_of(e), status_of(e), text_of(e)) for e in named] == [
        ("overloaded_error", 200, "Sorry"),
        ("APIStatusError", 500, "Sorry"),
        ("ReadError", None, "cut"),
    ]


def test_what_may_have_cost() -> None:
    """A refused or unsent request costs nothing; a connection that broke later may have a cost."""
    unsent = anthropic.APIConnectionError(request=REQUEST)
    unsent.__cause__ = httpx2.ConnectError("refused")
    free = [refused(529), unsent, CircuitOpenError("open", REQUEST, body=None)]
    assert [may_have_cost(error) for error in free] == [False] * 3
    assert may_have_cost(httpx2.ReadError("cut"))


def test_the_circuit_breaker() -> None:
    """Five consecutive failures of a provider that is down open it for a minute; one response closes it."""
    breaker = Breaker()
    for number in range(5):
        assert not breaker.is_open
        breaker = breaker.failed("overloaded", number * 10**9)
    assert breaker.is_open
    refusing = breaker.failed("circuit_open", 50 * 10**9)
    assert (refusing.refused, refusing.since_ns, refusing.is_open) == (1, 4 * 10**9, True)
    assert [refusing.left_s(int(at * 10**9)) for at in (0, 62.1, 63, 64, 99)] == [60, 2, 1, 0, 0]
    assert refusing.failed("server_error", 70 * 10**9).is_open
    assert not refusing.succeeded().is_open
    assert not breaker.failed("bad_request", 5).is_open


REAL: frozenset[ErrorClass] = frozenset(
    ("too_long", "image", "bad_request", "unauthorized", "not_found", "rate_limit", "overloaded")
)
"""The classes in recorded traffic, as found by `tests/wire/test_recovery.py`. The others are synthetic."""


def table() -> str:
    """Return the document's table, generated from the code."""
    lines = [
        "| class | how it is recognized | tried again | wait | what follows | evidence |",
        "| --- " * 6 + "|",
    ]
    return "\n".join([*lines, *(row(kind) for kind in FOLLOWS)])


def row(kind: ErrorClass) -> str:
    follows = FOLLOWS[kind]
    step = {
        None: "",
        "refresh": "once with new credentials",
        "lower": "once with a `max_tokens` that fits",
        "fall_back": "after three in a row the fallback model",
        "unstream": "after three in a row in one piece",
        "shorten": "the conversation is made shorter",
    }[follows.step]
    wait = "backoff" if follows.is_retried else "-"
    more = [step] if step else []
    more += ["fails fast in the background"] * follows.fails_fast
    more += ["is waited for where nobody attends"] * follows.is_waited_for
    more += ["counts for the circuit breaker"] * follows.is_down
    again = "yes" if follows.is_retried else "no"
    following = "; ".join([*more, f"ends with `{follows.reason}`"])
    evidence = "real" if kind in REAL else "made"
    cells = [f"`{kind}`", follows.when, again, wait, following, evidence]
    return f"| {' | '.join(cells)} |"


def test_the_document_says_what_the_table_says() -> None:
    """`docs/recovery.md` shows each class as in the code."""
    found = re.search(r"\| class .*?\n\n", DOCUMENT.read_text(encoding="utf-8"), re.S)
    assert found is not None
    assert found[0].strip() == table()
