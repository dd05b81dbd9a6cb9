"""Error classes of LLM requests and the reaction to each, in one table; `retry` decides how long to
wait.

Nothing here waits or does I/O. `docs/recovery.md` shows the texts of the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import httpx2
from anthropic import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    RetryableError,
)

from agentobs.agent.events import TerminalReason
from agentobs.records.canonical_json import Json
from agentobs.records.labels import is_label

PROVIDER_ERRORS = (APIError, RetryableError, httpx2.RequestError)
"""The errors that an attempt may end with through no fault of the agent.

A connection that breaks in the middle of a stream raises the bare exception of httpx2. Any other
`AnthropicError`, such as a replay that differs from its recording, is never retried and leaves the
loop unchanged.
"""


class CutError(APIConnectionError):
    """The stream of a response ended cleanly, but before its last event."""


class WindowFullError(APIError):
    """The response filled the model's context window, so the conversation cannot continue."""


class PausedError(APIError):
    """The model paused its response too often in a row."""


class CircuitOpenError(APIError):
    """No request was sent, because the provider has failed too often in a row."""


ErrorClass = Literal[
    "overflow",
    "beyond_model",
    "too_long",
    "too_large",
    "window_full",
    "image",
    "bad_request",
    "unauthorized",
    "forbidden",
    "not_found",
    "timeout",
    "conflict",
    "rate_limit",
    "server_error",
    "overloaded",
    "connection",
    "cut_before_content",
    "cut_after_content",
    "error_in_stream",
    "unreadable",
    "circuit_open",
]

Step = Literal["refresh", "lower", "fall_back", "unstream", "shorten"]
"""What is changed so that the next attempt may succeed: the credentials, `max_tokens`, the model,
streaming, or the conversation. The loop itself changes the conversation.
"""


@dataclass(frozen=True, slots=True)
class Follows:
    """The reaction to an error class."""

    when: str
    """How the class is recognized."""
    is_retried: bool = False
    """Whether the same request may succeed a moment later, unless the provider says otherwise."""
    step: Step | None = None
    """A change that may help, made once per request."""
    fails_fast: bool = False
    """Whether a background request gives up immediately."""
    is_waited_for: bool = False
    """Whether an unattended run waits for hours."""
    is_down: bool = False
    """Whether the error indicates that the provider is down, which the circuit breaker counts."""
    reason: TerminalReason = "model_error"
    """The terminal reason of a run that ends with it."""


FOLLOWS: Mapping[ErrorClass, Follows] = MappingProxyType(
    {
        "overflow": Follows(
            "400 whose message contains prompt + `max_tokens` > window",
            step="lower",
            reason="prompt_too_long",
        ),
        "beyond_model": Follows(
            "400 whose message contains `max_tokens` > the model's limit", step="lower"
        ),
        "too_long": Follows(
            "400 whose message says that the prompt, or its text, is too long",
            step="shorten",
            reason="prompt_too_long",
        ),
        "too_large": Follows("413, or its type or code", step="shorten", reason="prompt_too_long"),
        "window_full": Follows(
            "200 that stopped with `model_context_window_exceeded`, without a call",
            step="shorten",
            reason="prompt_too_long",
        ),
        "image": Follows("400 whose message or code concerns an image", reason="image_error"),
        "bad_request": Follows("any other 400, and any status below 500 not listed here"),
        "unauthorized": Follows("401", step="refresh"),
        "forbidden": Follows("403"),
        "not_found": Follows("404"),
        "timeout": Follows(
            "408, no response in time, or a `timeout_error` in a 200 stream",
            is_retried=True,
            is_waited_for=True,
            is_down=True,
        ),
        "conflict": Follows("409", is_retried=True),
        "rate_limit": Follows(
            "429, or a `rate_limit_error` in a 200 stream",
            is_retried=True,
            fails_fast=True,
            is_waited_for=True,
        ),
        "server_error": Follows(
            "500 to 599 but 529, or an `api_error` in a 200 stream",
            is_retried=True,
            is_waited_for=True,
            is_down=True,
        ),
        "overloaded": Follows(
            "529, or an `overloaded_error` at any status or in a 200 stream",
            is_retried=True,
            step="fall_back",
            fails_fast=True,
            is_waited_for=True,
            is_down=True,
        ),
        "connection": Follows(
            "no connection, or one that was reset before a response arrived",
            is_retried=True,
            is_waited_for=True,
            is_down=True,
        ),
        "cut_before_content": Follows(
            "a stream that ended early, before any content",
            is_retried=True,
            step="unstream",
            is_waited_for=True,
            is_down=True,
        ),
        "cut_after_content": Follows(
            "a stream that ended early, after some content",
            is_retried=True,
            is_waited_for=True,
            is_down=True,
        ),
        "error_in_stream": Follows("an error event of any other type in a 200 stream"),
        "unreadable": Follows("a 200 that is not a message, or is incomplete"),
        "circuit_open": Follows("not sent: the circuit breaker is open"),
    }
)
"""The transient statuses are those of the SDK (2.12, `_should_retry`): 408, 409, 429 and all from
500. The types of errors inside a 200 stream are from https://docs.anthropic.com/en/api/errors.
"""

_STATUSES: dict[int, ErrorClass] = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    429: "rate_limit",
    529: "overloaded",
}
_TYPES: dict[str, ErrorClass] = {
    "api_error": "server_error",
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate_limit",
    "request_too_large": "too_large",
    "timeout_error": "timeout",
}
_CODES: dict[str, ErrorClass] = {
    "image_dimensions_too_large": "image",
    "request_body_too_large_after_decoding": "too_large",
}
"""Stable codes in an error's details, a subset of those in the SDK (2.12)."""

_OVERFLOW = re.compile(r"exceed context limit: ([\d,]+) \+ ([\d,]+) > ([\d,]+)")
"""Prompt, `max_tokens`, window; in tokens."""
_BEYOND_MODEL = re.compile(r"max_tokens: ([\d,]+) > ([\d,]+)")
"""`max_tokens`, and the model's maximum."""
_TOO_LONG = re.compile(
    r"prompt is too long|exceed.{0,20} context limit|too many total text bytes|request_too_large",
    re.I,
)
"""The provider's messages for a prompt that is too long (from real 400s, except the second and the last)."""
_IMAGE = re.compile(r"\bimages?\b", re.I)


def classify(error: Exception, *, has_content: bool = False) -> ErrorClass:
    """Return the class of one of the `PROVIDER_ERRORS`.

    `has_content` tells whether part of the response had arrived.
    """
    match error:
        case CircuitOpenError():
            return "circuit_open"
        case WindowFullError():
            return "window_full"
        case APIStatusError():
            return _of_status(error)
        case APITimeoutError():
            return "timeout"
        case CutError() | httpx2.RequestError():
            return "cut_after_content" if has_content else "cut_before_content"
        case APIConnectionError() | RetryableError():
            return "connection"
        case _:
            return "unreadable"


def _of_status(error: APIStatusError) -> ErrorClass:
    kind = error.type if isinstance(error.type, str) else ""
    if error.response.is_success:
        error_class = _TYPES.get(kind, "error_in_stream")
        return (
            error_class
            if error_class != "error_in_stream" or not _says_too_long(error)
            else "too_long"
        )
    if error.error_code in _CODES:
        return _CODES[error.error_code]
    if kind in ("overloaded_error", "request_too_large"):
        return _TYPES[kind]
    if error.status_code == 400:
        return _of_400(error)
    if error.status_code in _STATUSES:
        return _STATUSES[error.status_code]
    return "server_error" if error.status_code >= 500 else "bad_request"


def _of_400(error: APIStatusError) -> ErrorClass:
    text = text_of(error)
    if _OVERFLOW.search(text):
        return "overflow"
    if _BEYOND_MODEL.search(text):
        return "beyond_model"
    if _says_too_long(error):
        return "too_long"
    return "image" if _IMAGE.search(text) else "bad_request"


def _says_too_long(error: APIStatusError) -> bool:
    return _TOO_LONG.search(text_of(error)) is not None


OVERFLOW_SPARE = 1_000
"""Safety margin in tokens when a response limit is lowered to fit, for anything that we do not count exactly. Our
choice.
"""

ANSWER_LEAST = 3_000
"""A lower limit for the response than this is useless: the prompt is too long. Specified."""


def room(error: Exception) -> int | None:
    """Return the `max_tokens` that fits according to an error; None if it says nothing or the rest is too small."""
    text = text_of(error)
    if found := _OVERFLOW.search(text):
        prompt, _, window = (int(digits.replace(",", "")) for digits in found.groups())
        left = window - prompt - OVERFLOW_SPARE
        return left if left >= ANSWER_LEAST else None
    if found := _BEYOND_MODEL.search(text):
        return int(found[2].replace(",", "")) or None
    return None


def may_have_cost(error: Exception) -> bool:
    """Return whether a failed attempt without reported usage may have cost money.

    A request that the provider refused, or that never reached it, costs nothing.
    """
    if isinstance(error, APIStatusError | CircuitOpenError):
        return False
    return not isinstance(error.__cause__ or error, _NOT_SENT)


_NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


def name_of(error: Exception) -> str:
    """Return the provider's error type, such as `overloaded_error`, or else the exception's class."""
    kind = error.type if isinstance(error, APIStatusError) else None
    return kind if isinstance(kind, str) and is_label(kind) else type(error).__name__


def terminal_reason(error: Exception) -> TerminalReason:
    """Return the terminal reason of a run that ends with a provider error."""
    return FOLLOWS[classify(error)].reason


def is_beyond(error: Exception) -> bool:
    """Return whether an error says that `max_tokens` was too high."""
    return FOLLOWS[classify(error)].step == "lower"


def is_too_long(what: Exception | Json) -> bool:
    """Return whether an error or a response says that the conversation must become shorter."""
    if isinstance(what, Exception):
        return terminal_reason(what) == "prompt_too_long"
    return bool(what.get("stop_reason") == "model_context_window_exceeded")


def text_of(error: Exception) -> str:
    """Return the provider's error message, or else the exception's text; content."""
    return (error.api_message if isinstance(error, APIStatusError) else None) or str(error)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of an error, or None if no response arrived."""
    return error.status_code if isinstance(error, APIStatusError) else None
