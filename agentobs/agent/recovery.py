"""Recovery: whether a failed attempt is tried again, and after how long. Decisions only, no waiting."""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Mapping

import httpx2
from anthropic import APIConnectionError, APIError, APIStatusError, RetryableError

from agentobs.agent.events import TerminalReason
from agentobs.records.labels import is_label

PROVIDER_ERRORS = (APIError, RetryableError, httpx2.RequestError)
"""What an attempt may end with through no fault of the agent.

A connection that breaks in the middle of a stream shows as the bare exception of httpx2. Any other
`AnthropicError`, such as a replay that differs from its recording, is never tried again and leaves the
loop as it is.
"""

FIRST_WAIT_S, LONGEST_WAIT_S, JITTER = 0.5, 32.0, 0.25
"""The wait doubles from the first to the longest; chance adds up to a quarter. Our choice: the SDK (2.12)
stops doubling at 8 s, which is soon for an overload that lasts minutes."""

RETRIED_STATUSES = (408, 409, 429)
"""Besides every status from 500: timeout, lock timeout, rate limit. As in the SDK (2.12, `_should_retry`)."""

RETRIED_TYPES = ("api_error", "overloaded_error", "rate_limit_error", "timeout_error")
"""Error types that may pass, for errors inside a 200 stream (https://docs.anthropic.com/en/api/errors)."""


BACKGROUND_RETRIES = 2
"""How often a request is tried again that nobody waits for. Our choice."""

LONGEST_ASKED_S = 300.0
"""The longest wait that a provider may ask for; beyond it there is no use in waiting. Our choice."""


def wait_s(
    error: Exception,
    attempt: int,
    *,
    max_retries: int,
    is_background: bool = False,
    chance: float,
    now_ns: int,
) -> float | None:
    """Return the seconds to wait before the next attempt, or None to give up.

    `attempt` is the one that failed, from 1; `chance` a number in [0, 1); `now_ns` the wall clock, for a
    `retry-after` that is a date. A wait that the provider asks for is kept without jitter.
    """
    if is_background:
        max_retries = min(max_retries, BACKGROUND_RETRIES)
    if attempt > max_retries or not may_pass(error) or (is_background and is_overload(error)):
        return None
    asked = None
    if isinstance(error, APIStatusError) and not error.response.is_success:
        asked = asked_wait_s(error.response.headers, now_ns)
    if asked is not None and asked > LONGEST_ASKED_S:
        return None
    return backoff_s(attempt, chance) if asked is None else asked


def may_pass(error: Exception) -> bool:
    """Return whether the same request may succeed a moment later."""
    if not isinstance(error, APIStatusError):
        return isinstance(error, APIConnectionError | RetryableError | httpx2.RequestError)
    if error.response.is_success:
        return error.type in RETRIED_TYPES
    told = error.response.headers.get("x-should-retry")
    if told in ("true", "false"):
        return bool(told == "true")
    return error.status_code in RETRIED_STATUSES or error.status_code >= 500


def is_overload(error: Exception) -> bool:
    """Return whether the provider has too much to do, or we asked it too much."""
    return isinstance(error, APIStatusError) and (
        error.status_code in (429, 529) or error.type in ("overloaded_error", "rate_limit_error")
    )


def asked_wait_s(headers: Mapping[str, str], now_ns: int) -> float | None:
    """Return the wait that the headers of a failed response ask for, in seconds, or None.

    Not for a 200 that carries an error: real ones hold a `retry-after` of up to a minute beside whole
    answers, so it tells of the rate limit's window and not of the error.
    """
    in_ms = _number(headers.get("retry-after-ms"))
    if in_ms is not None:
        return in_ms / 1000
    text = headers.get("retry-after")
    in_s = _number(text)
    if in_s is not None or text is None:
        return in_s
    try:
        date = email.utils.parsedate_tz(text)
        return None if date is None else max(email.utils.mktime_tz(date) - now_ns / 1e9, 0.0)
    except (ValueError, OverflowError):  # a year of no calendar
        return None


def backoff_s(attempt: int, chance: float) -> float:
    """Return the wait after a failed attempt, in seconds: 0.5, 1, 2 ... 32, and up to a quarter more."""
    doublings = min(
        attempt - 1, 16
    )  # a power that stays finite; the longest wait is reached long before
    return min(FIRST_WAIT_S * 2.0**doublings, LONGEST_WAIT_S) * (1 + JITTER * chance)


_NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


def may_have_cost(error: Exception) -> bool:
    """Return whether the model may have worked for an attempt that failed and told no usage.

    What the provider refused costs nothing, and so does what never reached it.
    """
    if isinstance(error, APIStatusError):
        return False
    return not isinstance(error.__cause__ or error, _NOT_SENT)


def name_of(error: Exception) -> str:
    """Return the provider's type of an error, such as `overloaded_error`, or else its class."""
    kind = error.type if isinstance(error, APIStatusError) else None
    return kind if isinstance(kind, str) and is_label(kind) else type(error).__name__


_TOO_LONG = re.compile(r"prompt is too long|exceed.{0,20} context limit|request_too_large", re.I)
"""What the provider says of a prompt that does not fit (real 400s; 413 has a type of its own)."""
_IMAGE = re.compile(r"\bimages?\b", re.I)


def terminal_reason(error: Exception) -> TerminalReason:
    """Return what it means for a run that an error of the provider ended it."""
    if isinstance(error, APIStatusError):
        if error.status_code == 413:
            return "prompt_too_long"
        if error.status_code == 400 and _TOO_LONG.search(text_of(error)):
            return "prompt_too_long"
        if error.status_code == 400 and _IMAGE.search(text_of(error)):
            return "image_error"
    return "model_error"


def text_of(error: Exception) -> str:
    """Return what the provider says of an error, or else what the exception says; content."""
    return (error.api_message if isinstance(error, APIStatusError) else None) or str(error)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status behind an error, or None where no response came."""
    return error.status_code if isinstance(error, APIStatusError) else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
