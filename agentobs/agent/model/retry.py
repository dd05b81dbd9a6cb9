"""Retrying: whether a failed attempt is followed by another, after how long, and what is changed first.

Pure: numbers in, a decision out. The loop owns all retries (the SDK's are off), and waits by the world's clock.
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
"""The most that one request is tried again after a failure that may pass, where it is not waited for. Specified."""

BACKGROUND_RETRIES = 2
"""The same for a request that nobody waits for. Our choice."""

FIRST_WAIT_S, LONGEST_WAIT_S, JITTER = 0.5, 32.0, 0.25
"""The wait doubles from the first to the longest; chance adds up to a quarter. Specified: the SDK (2.12)
stops doubling at 8 s, which is soon for an overload that lasts minutes."""

LONGEST_ASKED_S = 300.0
"""The longest single wait. A provider that asks for more is given up, or, where nobody attends, asked again after
so long. Specified for runs that nobody attends; our choice for others."""

UNATTENDED_S = 6 * 3600.0
"""The longest that a request waits in all where nobody attends. Specified."""

PIECE_S = 30.0
"""A wait that nobody attends is cut into pieces of this length, each of them told. Specified."""

OVERLOADS, CUTS = 3, 3
"""So many overloads in a row make a request fall back to another model (specified), and so many streams in a row
that broke before any content make it ask for its answer in one piece (our choice)."""

UNSTREAMED_MAX = 21_333
"""The most `max_tokens` that is asked for in one piece: what takes ten minutes at 128,000 an hour, by the SDK
(2.12, `_calculate_nonstreaming_timeout`)."""

FOREGROUND: frozenset[QuerySource] = frozenset(("main", "sub_agent", "compaction"))
"""Who asks for somebody that waits: a turn hangs on the summary that its conversation is to go on from. All other
requests are made in the background, and fail fast."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How far a request may go."""

    max_retries: int = RETRIES_MAX
    is_background: bool = False
    is_unattended: bool = False
    has_fallback: bool = False
    """Whether there is another model to ask."""
    may_unstream: bool = False
    """Whether it is streamed, and need not be."""

    @property
    def retries(self) -> int:
        """How often it is tried again."""
        most = BACKGROUND_RETRIES if self.is_background else RETRIES_MAX
        return max(min(self.max_retries, most), 0)


@dataclass(frozen=True, slots=True)
class Failure:
    """What an attempt ended with."""

    kind: ErrorClass
    told: bool | None = None
    """Whether the provider says that the same request may succeed; None where it says nothing."""
    asked_s: float | None = None
    """The wait that it asks for, in seconds."""
    room: int | None = None
    """The `max_tokens` that fits, where too much was asked for."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a request so far."""

    retries: int = 0
    overloads: int = 0
    """Overloads in a row, up to the last attempt."""
    cuts: int = 0
    """Streams in a row, up to the last attempt, that broke before any content."""
    waited_s: float = 0.0
    """So long was waited, chance left out."""
    steps: frozenset[Step] = frozenset()
    """What was changed about what is asked; nothing is changed twice for one model."""


@dataclass(frozen=True, slots=True)
class Next:
    """Another attempt."""

    tried: Tried
    wait_s: float = 0.0
    """The wait before it, in seconds, chance left out."""
    jitter_s: float = 0.0
    """What chance adds."""
    step: Step | None = None
    """What is changed first."""


def failure_of(error: Exception, *, has_content: bool, now_ns: int) -> Failure:
    """Return what decides of an error. `now_ns` is the wall clock, for a `retry-after` that is a date."""
    kind = classify(error, has_content=has_content)
    told = asked = None
    if isinstance(error, APIStatusError) and not error.response.is_success:
        headers = error.response.headers
        told = {"true": True, "false": False}.get(headers.get("x-should-retry", ""))
        asked = asked_wait_s(headers, now_ns)
    return Failure(kind, told, asked, room(error) if FOLLOWS[kind].step == "lower" else None)


def after(failure: Failure, tried: Tried, policy: Policy, chance: float) -> Next | None:
    """Return how a request goes on after a failure, or None where it is given up.

    `chance` is a number in [0, 1). A wait that the provider asks for is kept without jitter.
    """
    follows = FOLLOWS[failure.kind]
    tried = replace(
        tried,
        overloads=tried.overloads + 1 if failure.kind == "overloaded" else 0,
        cuts=tried.cuts + 1 if failure.kind == "cut_before_content" else 0,
    )
    step = _step(failure, tried, policy)
    if step is not None:
        # Another model is asked anew, with all that was asked for at first; credentials stay.
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


def beside_a_run(
    error: Exception, tried: Tried, seconds: float, chance: float, *, has_content: bool, now_ns: int
) -> Next | None:
    """Return how a request in the background goes on that no run makes, or None where it is given up.

    Nothing is changed about it, and no wait is as long as its answer may take, which is so many `seconds`.
    """
    failure = failure_of(error, has_content=has_content, now_ns=now_ns)
    following = after(failure, tried, Policy(is_background=True), chance)
    if following is None or following.step is not None or following.wait_s >= seconds:
        return None
    return following


def _step(failure: Failure, tried: Tried, policy: Policy) -> Step | None:
    """Return what is to be changed, if that can help and was not done yet.

    Whether the *same* request may succeed is no matter then, but for an overload that the provider says will not
    pass: such a request is given up before it has three of them.
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
    """Return a wait that may be attended, and what chance adds to it."""
    if asked_s is not None:
        return asked_s, 0.0
    wait_s = doubled(retries, LONGEST_WAIT_S)
    return wait_s, wait_s * JITTER * chance


def _long(asked_s: float | None, retries: int) -> float:
    """Return a wait that nobody attends. Chance has spread the ten before it, and need not lengthen this one.

    It is never shorter than the longest that is attended, whatever the provider asks for: six hours hold some
    hundred attempts then.
    """
    wait_s = doubled(retries, LONGEST_ASKED_S) if asked_s is None else asked_s
    return min(max(wait_s, LONGEST_WAIT_S), LONGEST_ASKED_S)


def doubled(retries: int, longest_s: float) -> float:
    """Return the wait before a retry, in seconds: 0.5, 1, 2 ... up to the longest. `retries` came before it."""
    return min(FIRST_WAIT_S * 2.0 ** min(retries, 16), longest_s)  # a power that stays finite


def pieces(step: Next, *, is_unattended: bool) -> Iterator[float]:
    """Return the pieces of a wait, in seconds; their number does not depend on chance."""
    left = step.wait_s
    while is_unattended and left > PIECE_S:
        left -= PIECE_S
        yield PIECE_S
    yield left + step.jitter_s


def asked_wait_s(headers: Mapping[str, str], now_ns: int) -> float | None:
    """Return the wait that the headers of a failed response ask for, in seconds, or None.

    Not for a 200 that carries an error: real ones hold a `retry-after` of up to a minute beside whole
    answers, so it tells of the rate limit's window and not of the error.
    """
    in_ms = _number(headers.get("retry-after-ms"))
    if in_ms is not None:
        return in_ms / 1000
    in_s = _number(headers.get("retry-after"))
    date_s = _date_s(headers) if in_s is None else None
    return in_s if date_s is None else max(date_s - now_ns / 1e9, 0.0)


def is_dated(headers: Mapping[str, str]) -> bool:
    """Return whether the wait that they ask for depends on the clock."""
    numbers = [headers.get("retry-after-ms"), headers.get("retry-after")]
    return all(_number(text) is None for text in numbers) and _date_s(headers) is not None


def _date_s(headers: Mapping[str, str]) -> float | None:
    """Return the date that `retry-after` gives, in seconds since 1970."""
    try:
        date = email.utils.parsedate_tz(headers.get("retry-after") or "")
        return None if date is None else float(email.utils.mktime_tz(date))
    except (ValueError, OverflowError):  # a year of no calendar
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


FAILURES, COOL_DOWN_S = 5, 60.0
"""After so many requests in a row that failed for good the next ones fail at once, until the last failure lies so
many seconds back. Our choice."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Keeps a conversation from asking a provider that is down. Replaced whole."""

    failures: int = 0
    """Requests in a row that failed for good because the provider was down."""
    since_ns: int = 0
    """When the last of them failed, nanoseconds since 1970."""
    refused: int = 0
    """Requests that were not made because of it, or not at once."""

    @property
    def is_open(self) -> bool:
        """Whether nothing is asked before it has cooled down."""
        return self.failures >= FAILURES

    def left_s(self, now_ns: int) -> float:
        """Return after how many whole seconds one request may find out how it stands; 0 where it may now."""
        left_s = math.ceil(COOL_DOWN_S - (now_ns - self.since_ns) / 1e9)
        return float(min(max(left_s, 0), COOL_DOWN_S))  # also where the clock was put back

    def failed(self, kind: ErrorClass, now_ns: int) -> Breaker:
        """Return what it is after a request that failed for good."""
        if kind == "circuit_open":
            return replace(self, refused=self.refused + 1)
        if not FOLLOWS[kind].is_down:
            return replace(self, failures=0)
        return replace(self, failures=self.failures + 1, since_ns=now_ns)

    def succeeded(self) -> Breaker:
        """Return what it is after an answer."""
        return replace(self, failures=0) if self.failures else self
