"""Decide whether a failed attempt is retried, after which backoff, and what is changed first.

Pure: numbers in, a decision out. The loop owns all retries (the SDK's are off), and waits by the
world's clock.
"""

from __future__ import annotations

import email.utils
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from anthropic import APIStatusError

from agentobs.agent.model.error_classes import FOLLOWS, ErrorClass, Step, classify, room
from agentobs.records.exchanges import QuerySource

RETRIES_MAX = 10
"""Maximum retries of one request after a transient failure, outside unattended waits. Specified."""

BACKGROUND_RETRIES = 2
"""The same for a background request. Our choice."""

FIRST_WAIT_S, LONGEST_WAIT_S, JITTER = 0.5, 32.0, 0.25
"""The backoff doubles from the first to the longest; random jitter adds up to a quarter. Specified:
the SDK (2.12) stops doubling at 8 s, which is short for an overload that lasts minutes.
"""

LONGEST_ASKED_S = 300.0
"""Maximum single wait. If the provider asks for more, the request fails or, in an unattended run, is retried after this
time. Specified for unattended runs; our choice for others.
"""

UNATTENDED_S = 6 * 3600.0
"""Maximum total wait of a request in an unattended run. Specified."""

PIECE_S = 30.0
"""An unattended wait is split into parts of this length, each reported by a heartbeat. Specified."""

OVERLOADS, CUTS = 3, 3
"""After this many consecutive overloads a request falls back to another model (specified). After this many consecutive
streams that broke before any content it is sent without streaming (our choice).
"""

UNSTREAMED_MAX = 21_333
"""Maximum `max_tokens` without streaming: what takes ten minutes at 128,000 an hour, by the SDK
(2.12, `_calculate_nonstreaming_timeout`).
"""

FOREGROUND: frozenset[QuerySource] = frozenset(("main", "sub_agent", "compaction"))
"""Sources whose requests block the run: a turn also waits for the summary of its conversation. All
other requests are made in the background and fail fast.
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """The retry limits of a request."""

    max_retries: int = RETRIES_MAX
    is_background: bool = False
    is_unattended: bool = False
    has_fallback: bool = False
    """Whether there is a fallback model."""
    may_unstream: bool = False
    """Whether it is streamed, but could be sent without streaming."""

    @property
    def retries(self) -> int:
        """Its maximum number of retries."""
        most = BACKGROUND_RETRIES if self.is_background else RETRIES_MAX
        return max(min(self.max_retries, most), 0)


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed."""

    kind: ErrorClass
    told: bool | None = None
    """Whether the provider says that the same request may succeed; None if it does not say."""
    asked_s: float | None = None
    """The wait that the provider asks for, in seconds."""
    room: int | None = None
    """The `max_tokens` that fits, if the requested value was too high."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The history of a request so far."""

    retries: int = 0
    overloads: int = 0
    """Consecutive overloads, up to the last attempt."""
    cuts: int = 0
    """Consecutive streams that broke before any content, up to the last attempt."""
    waited_s: float = 0.0
    """Total wait without jitter."""
    steps: frozenset[Step] = frozenset()
    """The changes made to the request; each is made at most once per model."""


@dataclass(frozen=True, slots=True)
class Next:
    """The next attempt."""

    tried: Tried
    wait_s: float = 0.0
    """The backoff before it, in seconds, without jitter."""
    jitter_s: float = 0.0
    """The random jitter to add."""
    step: Step | None = None
    """The change to make first."""


def failure_of(error: Exception, *, has_content: bool, now_ns: int) -> Failure:
    """Return the failure for an error. `now_ns` is the wall clock, for a `retry-after` that is a date."""
    kind = classify(error, has_content=has_content)
    retryable = requested_s = None
    if isinstance(error, APIStatusError) and not error.response.is_success:
        headers = error.response.headers
        retryable = {"true": True, "false": False}.get(headers.get("x-should-retry", ""))
        requested_s = asked_wait_s(headers, now_ns)
    return Failure(
        kind, retryable, requested_s, room(error) if FOLLOWS[kind].step == "lower" else None
    )


def after(failure: Failure, tried: Tried, policy: Policy, chance: float) -> Next | None:
    """Return the next attempt after a failure, or None if the request is given up.

    `chance` is a number in [0, 1). A wait that the provider asks for gets no jitter.
    """
    follows = FOLLOWS[failure.kind]
    tried = replace(
        tried,
        overloads=tried.overloads + 1 if failure.kind == "overloaded" else 0,
        cuts=tried.cuts + 1 if failure.kind == "cut_before_content" else 0,
    )
    step = _step(failure, tried, policy)
    if step is not None:
        # Another model starts over with the original request; refreshed credentials stay.
        before = tried.steps & {"refresh"} if step == "fall_back" else tried.steps
        tried = replace(tried, steps=before | {step}, overloads=0, cuts=0)
    if step is not None and step != "unstream":
        return Next(tried, step=step)
    may_pass = follows.is_retried if failure.told is None else failure.told
    if not may_pass or (policy.is_background and follows.fails_fast):
        return None
    is_waited_for = policy.is_unattended and not policy.is_background and follows.is_waited_for
    if tried.retries < policy.retries and (failure.asked_s or 0.0) <= LONGEST_ASKED_S:
        wait_s, jitter_s = _short(failure.asked_s, tried.retries, chance)
    elif is_waited_for:
        wait_s, jitter_s = _long(failure.asked_s, tried.retries), 0.0
    else:
        return None
    if is_waited_for:
        wait_s = min(wait_s, UNATTENDED_S - tried.waited_s)
        if wait_s <= 0:
            return None
    tried = replace(tried, retries=tried.retries + 1, waited_s=tried.waited_s + wait_s)
    return Next(tried, wait_s, jitter_s, step)


def background_retry(
    error: Exception, tried: Tried, seconds: float, chance: float, *, has_content: bool, now_ns: int
) -> Next | None:
    """Return the next attempt of a background request outside a run, or None if it is given up.

    Nothing is changed about it, and each wait is shorter than the response timeout of `seconds`.
    """
    failure = failure_of(error, has_content=has_content, now_ns=now_ns)
    following = after(failure, tried, Policy(is_background=True), chance)
    if following is None or following.step is not None or following.wait_s >= seconds:
        return None
    return following


def _step(failure: Failure, tried: Tried, policy: Policy) -> Step | None:
    """Return the change to make, if it can help and was not made yet.

    The provider's statement about the *same* request is then irrelevant, except that an overload
    which it calls permanent is given up before there are three of them.
    """
    step = FOLLOWS[failure.kind].step
    if step is None or step in tried.steps:
        return None
    match step:
        case "refresh":
            helps = True
        case "lower":
            helps = failure.room is not None
        case "fall_back":
            helps = policy.has_fallback and tried.overloads >= OVERLOADS
        case "unstream":
            helps = policy.may_unstream and tried.cuts >= CUTS
        case "shorten":
            helps = False
    return step if helps else None


def _short(asked_s: float | None, retries: int, chance: float) -> tuple[float, float]:
    """Return an attended wait and its jitter."""
    if asked_s is not None:
        return asked_s, 0.0
    wait_s = doubled(retries, LONGEST_WAIT_S)
    return wait_s, wait_s * JITTER * chance


def _long(asked_s: float | None, retries: int) -> float:
    """Return an unattended wait. It has no jitter, because the ten waits before it have spread the
    requests.

    It is never shorter than the longest attended wait, whatever the provider asks for, so six hours
    contain only a few hundred attempts.
    """
    wait_s = doubled(retries, LONGEST_ASKED_S) if asked_s is None else asked_s
    return min(max(wait_s, LONGEST_WAIT_S), LONGEST_ASKED_S)


def doubled(retries: int, longest_s: float) -> float:
    """Return the backoff before a retry, in seconds: 0.5, 1, 2 ... up to the longest. `retries` precede it."""
    return min(FIRST_WAIT_S * 2.0 ** min(retries, 16), longest_s)  # a finite power


def pieces(step: Next, *, is_unattended: bool) -> Iterator[float]:
    """Yield the parts of a wait, in seconds; their number does not depend on the jitter."""
    left = step.wait_s
    while is_unattended and left > PIECE_S:
        left -= PIECE_S
        yield PIECE_S
    yield left + step.jitter_s


def asked_wait_s(headers: Mapping[str, str], now_ns: int) -> float | None:
    """Return the wait that the headers of a failed response ask for, in seconds, or None.

    Not used for a 200 that carries an error: real complete responses have a `retry-after` of up to a minute, so it
    describes the rate limit's window and not the error.
    """
    in_ms = _number(headers.get("retry-after-ms"))
    if in_ms is not None:
        return in_ms / 1000
    in_s = _number(headers.get("retry-after"))
    date_s = _date_s(headers) if in_s is None else None
    return in_s if date_s is None else max(date_s - now_ns / 1e9, 0.0)


def is_dated(headers: Mapping[str, str]) -> bool:
    """Return whether the wait in the headers depends on the clock."""
    numbers = [headers.get("retry-after-ms"), headers.get("retry-after")]
    return all(_number(text) is None for text in numbers) and _date_s(headers) is not None


def _date_s(headers: Mapping[str, str]) -> float | None:
    """Return the date in `retry-after`, in seconds since 1970."""
    try:
        date = email.utils.parsedate_tz(headers.get("retry-after") or "")
        return None if date is None else float(email.utils.mktime_tz(date))
    except (ValueError, OverflowError):  # an impossible year
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


FAILURES, COOL_DOWN_S = 5, 60.0
"""After this many consecutive final failures, requests fail immediately until the last failure is
this many seconds ago. Our choice.
"""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Circuit breaker that stops requests to a provider that is down. Immutable."""

    failures: int = 0
    """Consecutive requests that finally failed because the provider was down."""
    since_ns: int = 0
    """Time of the last of those failures, nanoseconds since 1970."""
    refused: int = 0
    """Requests that it blocked or delayed."""

    @property
    def is_open(self) -> bool:
        """Whether requests are blocked until it has cooled down."""
        return self.failures >= FAILURES

    def left_s(self, now_ns: int) -> float:
        """Return the whole seconds until one request may probe the provider; 0 if it may now."""
        left_s = math.ceil(COOL_DOWN_S - (now_ns - self.since_ns) / 1e9)
        return float(min(max(left_s, 0), COOL_DOWN_S))  # also if the clock was set back

    def failed(self, kind: ErrorClass, now_ns: int) -> Breaker:
        """Return the breaker after a request that finally failed."""
        if kind == "circuit_open":
            return replace(self, refused=self.refused + 1)
        if not FOLLOWS[kind].is_down:
            return replace(self, failures=0)
        return replace(self, failures=self.failures + 1, since_ns=now_ns)

    def succeeded(self) -> Breaker:
        """Return the breaker after a response."""
        return replace(self, failures=0) if self.failures else self
