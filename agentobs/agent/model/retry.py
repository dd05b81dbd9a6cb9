"""Decide whether a failed attempt is retried, after which backoff, and what is changed first.

The functions are pure: they only map values to a decision. The loop handles all retries, because the
SDK's own retries are disabled, and it waits by the world's clock.
"""

from __future__ import annotations

import email.utils
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from anthropic import APIStatusError

from agentobs.agent.model.error_classes import (
    REACTIONS,
    ErrorClass,
    Step,
    classify,
    max_tokens_available,
)
from agentobs.records.exchanges import QuerySource

RETRIES_MAX = 10
"""Maximum retries of one request after a transient failure. The long waits of an unattended run are not limited by this
number, but by their total length. From the specification of the agent loop.
"""

BACKGROUND_RETRIES = 2
"""Maximum retries of a background request after a transient failure. Our choice."""

FIRST_WAIT_S, LONGEST_WAIT_S, JITTER = 0.5, 32.0, 0.25
"""The backoff doubles from the first value to the longest; random jitter adds up to a quarter. From the specification
of the agent loop. The SDK (2.12) stops doubling at 8 s, which is too short for an overload that lasts minutes.
"""

LONGEST_SINGLE_WAIT_S = 300.0
"""Maximum single wait. If the provider requests a longer wait, the request fails or, in an unattended run, is retried
after this time. The specification of the agent loop sets it for unattended runs; for other runs it is our choice.
"""

UNATTENDED_WAIT_S = 6 * 3600.0
"""Maximum total wait of a request in an unattended run. From the specification of the agent loop."""

WAIT_PART_S = 30.0
"""An unattended wait is split into parts of this length, and a heartbeat reports each of them. From the specification
of the agent loop.
"""

OVERLOADS, CUTS = 3, 3
"""After `OVERLOADS` consecutive overloads, a request falls back to another model (from the specification of the agent
loop). After `CUTS` consecutive streams that broke before any content, it is sent without streaming (our choice).
"""

FAST_WAIT_S = 20.0
"""If the provider requests a longer wait than this for a request in fast mode, requests are sent at standard speed
until the wait has passed. Our choice: after a shorter wait, fast mode can continue with its prompt cache, which a
change of the speed invalidates.
"""

UNSTREAMED_TOKENS_MAX = 21_333
"""Maximum `max_tokens` without streaming: the SDK (2.12, `_calculate_nonstreaming_timeout`) expects 128,000 tokens per
hour, and refuses a request that would take more than ten minutes.
"""

FOREGROUND: frozenset[QuerySource] = frozenset(("main", "sub_agent", "compaction"))
"""Sources whose requests block the run. A compaction is one of them, because the turn waits for the
summary. All other requests are background requests, which fail fast.
"""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The retry limits of a request."""

    max_retries: int = RETRIES_MAX
    is_background: bool = False
    is_unattended: bool = False
    has_fallback: bool = False
    """Whether there is a fallback model."""
    may_unstream: bool = False
    """Whether the request is streamed, but could be sent without streaming."""
    is_fast: bool = False
    """Whether the request is sent in fast mode."""

    @property
    def retries(self) -> int:
        """The maximum number of retries."""
        retries_max = BACKGROUND_RETRIES if self.is_background else RETRIES_MAX
        return max(min(self.max_retries, retries_max), 0)


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed."""

    kind: ErrorClass
    provider_may_retry: bool | None = None
    """Whether the same request may succeed, according to a header of the provider; None if the header is missing."""
    requested_wait_s: float | None = None
    """The wait that the provider requests, in seconds; None if it requests none."""
    max_tokens_available: int | None = None
    """The highest `max_tokens` that fits, if the requested value was too high."""


@dataclass(frozen=True, slots=True)
class RetryHistory:
    """The retries of a request so far."""

    retries: int = 0
    overloads: int = 0
    """Consecutive overloads, up to the last attempt."""
    cuts: int = 0
    """Consecutive streams that broke before any content, up to the last attempt."""
    waited_s: float = 0.0
    """Total wait without jitter."""
    steps: frozenset[Step] = frozenset()
    """The changes that were made to the request; each is made at most once per model."""


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """The next attempt."""

    history: RetryHistory
    """The history, including this attempt."""
    wait_s: float = 0.0
    """The backoff before the attempt, in seconds, without jitter."""
    jitter_s: float = 0.0
    """The random jitter to add."""
    step: Step | None = None
    """The change to make before the attempt; None if the request is sent unchanged."""


def failure_of(error: Exception, *, has_content: bool, now_ns: int) -> Failure:
    """Describe an error as a failure.

    Args:
        error: one of the `PROVIDER_ERRORS`.
        has_content: whether part of the response had arrived.
        now_ns: the wall clock, for a `retry-after` that is a date.
    """
    kind = classify(error, has_content=has_content)
    retryable = requested_s = None
    if isinstance(error, APIStatusError) and not error.response.is_success:
        headers = error.response.headers
        retryable = {"true": True, "false": False}.get(headers.get("x-should-retry", ""))
        requested_s = requested_wait_s(headers, now_ns)
    return Failure(
        kind,
        retryable,
        requested_s,
        max_tokens_available(error) if REACTIONS[kind].step == "lower" else None,
    )


def next_attempt(
    failure: Failure, history: RetryHistory, policy: RetryPolicy, chance: float
) -> NextAttempt | None:
    """Return the next attempt after a failure, or None if the request is given up.

    Args:
        failure: the failure of the last attempt.
        history: the retries before it.
        policy: the limits of the request.
        chance: a random number in [0, 1), for the jitter. A wait that the provider requests gets no
            jitter.
    """
    reaction = REACTIONS[failure.kind]
    history = replace(
        history,
        overloads=history.overloads + 1 if failure.kind == "overloaded" else 0,
        cuts=history.cuts + 1 if failure.kind == "cut_before_content" else 0,
    )
    step = _step(failure, history, policy)
    if step is not None:
        # The other model starts over with the original request, except for refreshed credentials.
        steps = history.steps & {"refresh"} if step == "fall_back" else history.steps
        history = replace(history, steps=steps | {step}, overloads=0, cuts=0)
    if step is not None and step != "unstream":
        return NextAttempt(history, step=step)
    is_retried = failure.provider_may_retry
    if is_retried is None:
        is_retried = reaction.is_retried
    if not is_retried or (policy.is_background and reaction.fails_fast):
        return None
    is_foreground = not policy.is_background
    waits_long = policy.is_unattended and is_foreground and reaction.waits_unattended
    if (
        history.retries < policy.retries
        and (failure.requested_wait_s or 0.0) <= LONGEST_SINGLE_WAIT_S
    ):
        wait_s, jitter_s = _attended_wait(failure.requested_wait_s, history.retries, chance)
    elif waits_long:
        wait_s, jitter_s = _unattended_wait(failure.requested_wait_s, history.retries), 0.0
    else:
        return None
    if waits_long:
        wait_s = min(wait_s, UNATTENDED_WAIT_S - history.waited_s)
        if wait_s <= 0:
            return None
    history = replace(history, retries=history.retries + 1, waited_s=history.waited_s + wait_s)
    return NextAttempt(history, wait_s, jitter_s, step)


def background_retry(
    error: Exception,
    history: RetryHistory,
    seconds: float,
    chance: float,
    *,
    has_content: bool,
    now_ns: int,
) -> NextAttempt | None:
    """Return the next attempt of a background request outside a run, or None if it is given up.

    The request is never changed, and each wait is shorter than the response timeout of `seconds`.
    The other arguments are those of `failure_of` and `next_attempt`.
    """
    failure = failure_of(error, has_content=has_content, now_ns=now_ns)
    following = next_attempt(failure, history, RetryPolicy(is_background=True), chance)
    if following is None or following.step is not None or following.wait_s >= seconds:
        return None
    return following


def _step(failure: Failure, history: RetryHistory, policy: RetryPolicy) -> Step | None:
    """Return the change to make, if it can help and was not made yet.

    A change has precedence over `Failure.provider_may_retry`, which is about the unchanged request.
    However, a fallback needs three consecutive overloads, so after an earlier overload, the request is given up if the
    provider does not allow retries.
    """
    reaction = REACTIONS[failure.kind]
    is_long = (failure.requested_wait_s or 0.0) > FAST_WAIT_S
    if policy.is_fast and reaction.slows_down and is_long:
        return "slow_down"
    step = reaction.step
    if step is None or step in history.steps:
        return None
    match step:
        case "refresh":
            helps = True
        case "lower":
            helps = failure.max_tokens_available is not None
        case "fall_back":
            helps = policy.has_fallback and history.overloads >= OVERLOADS
        case "unstream":
            helps = policy.may_unstream and history.cuts >= CUTS
        case "slow_down" | "shorten":
            helps = False
    return step if helps else None


def _attended_wait(
    requested_wait_s: float | None, retries: int, chance: float
) -> tuple[float, float]:
    """Return the wait and its jitter, in seconds, if a person is waiting."""
    if requested_wait_s is not None:
        return requested_wait_s, 0.0
    wait_s = backoff_s(retries, LONGEST_WAIT_S)
    return wait_s, wait_s * JITTER * chance


def _unattended_wait(requested_wait_s: float | None, retries: int) -> float:
    """Return the wait of an unattended run, in seconds.

    It needs no jitter, because the ten shorter waits before it have spread the requests of
    different runs. It is never shorter than the longest attended wait, whatever the provider
    requests, so six hours contain only a few hundred attempts.
    """
    wait_s = (
        backoff_s(retries, LONGEST_SINGLE_WAIT_S) if requested_wait_s is None else requested_wait_s
    )
    return min(max(wait_s, LONGEST_WAIT_S), LONGEST_SINGLE_WAIT_S)


def backoff_s(retries: int, longest_s: float) -> float:
    """Return the backoff after a number of retries, in seconds: 0.5, 1, 2 ... up to the longest."""
    return min(FIRST_WAIT_S * 2.0 ** min(retries, 16), longest_s)  # 16 avoids an overflow


def wait_parts(attempt: NextAttempt, *, is_unattended: bool) -> Iterator[float]:
    """Yield the parts of the wait before an attempt, in seconds. Their number does not depend on the jitter."""
    remaining_s = attempt.wait_s
    while is_unattended and remaining_s > WAIT_PART_S:
        remaining_s -= WAIT_PART_S
        yield WAIT_PART_S
    yield remaining_s + attempt.jitter_s


def requested_wait_s(headers: Mapping[str, str], now_ns: int) -> float | None:
    """Return the wait that the headers of a failed response request, in seconds, or None.

    Not used for an error in a 200 stream: the provider also sends a `retry-after` of up to a minute with complete
    responses, so in a 200 the header describes the window of the rate limit and not the error.
    """
    in_ms = _positive_number(headers.get("retry-after-ms"))
    if in_ms is not None:
        return in_ms / 1000
    in_s = _positive_number(headers.get("retry-after"))
    date_s = _date_s(headers) if in_s is None else None
    return in_s if date_s is None else max(date_s - now_ns / 1e9, 0.0)


def depends_on_clock(headers: Mapping[str, str]) -> bool:
    """Return whether the wait in the headers is a date, so that its length depends on the clock."""
    numbers = [headers.get("retry-after-ms"), headers.get("retry-after")]
    return all(_positive_number(text) is None for text in numbers) and _date_s(headers) is not None


def _date_s(headers: Mapping[str, str]) -> float | None:
    """Return the date in `retry-after`, in seconds since 1970; None if it is not a date."""
    try:
        date = email.utils.parsedate_tz(headers.get("retry-after") or "")
        return None if date is None else float(email.utils.mktime_tz(date))
    except (ValueError, OverflowError):  # a year that does not exist
        return None


def _positive_number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


FAILURES, COOL_DOWN_S = 5, 60.0
"""After `FAILURES` consecutive final failures, requests fail immediately until `COOL_DOWN_S` seconds
have passed since the last failure. Our choice.
"""


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Circuit breaker that blocks requests to a provider that is down. Immutable."""

    failures: int = 0
    """Number of consecutive requests that finally failed because the provider was down."""
    since_ns: int = 0
    """Time of the last of these failures, in nanoseconds since 1970."""
    refused: int = 0
    """Number of requests that the breaker blocked or delayed."""

    @property
    def is_open(self) -> bool:
        """Whether requests are blocked until the cool-down has passed."""
        return self.failures >= FAILURES

    def remaining_s(self, now_ns: int) -> float:
        """Return the seconds until one request may probe the provider, rounded up; 0 if it may now."""
        remaining_s = math.ceil(COOL_DOWN_S - (now_ns - self.since_ns) / 1e9)
        return float(min(max(remaining_s, 0), COOL_DOWN_S))  # The clock may have been set back.

    def failed(self, kind: ErrorClass, now_ns: int) -> CircuitBreaker:
        """Return the breaker after a request that finally failed with an error of this class."""
        if kind == "circuit_open":
            return replace(self, refused=self.refused + 1)
        if not REACTIONS[kind].counts_as_outage:
            return replace(self, failures=0)
        return replace(self, failures=self.failures + 1, since_ns=now_ns)

    def succeeded(self) -> CircuitBreaker:
        """Return the breaker after a response."""
        return replace(self, failures=0) if self.failures else self
