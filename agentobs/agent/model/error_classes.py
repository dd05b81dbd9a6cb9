"""Error classes of LLM requests, and one table with the reaction to each class.

The module `retry` decides how long to wait. Nothing in this module waits or does I/O.
`docs/recovery.md` shows the texts of the table.
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

from agentobs.agent.run_result import TerminalReason
from agentobs.records.canonical_json import Json
from agentobs.records.clear_text import class_label
from agentobs.records.labels import is_label

PROVIDER_ERRORS = (APIError, RetryableError, httpx2.RequestError)
"""The errors of an attempt that are not caused by the agent.

A connection that breaks in the middle of a stream raises an exception of httpx2, which the SDK does
not wrap. Any other `AnthropicError`, such as the divergence of a replay, is never retried, and the
loop raises it unchanged.
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

Step = Literal["refresh", "lower", "fall_back", "unstream", "slow_down", "shorten"]
"""A change that lets the next attempt succeed: refresh the credentials, lower `max_tokens`, use the
fallback model, switch off streaming, leave fast mode, or shorten the conversation. `shorten` is not a retry: the
loop compacts the conversation and sends a new request.
"""


@dataclass(frozen=True, slots=True)
class Reaction:
    """The reaction to an error class."""

    when: str
    """How the class is recognized."""
    is_retried: bool = False
    """Whether the same request is retried, unless a header of the provider decides otherwise."""
    step: Step | None = None
    """A change that may help; it is made at most once per request."""
    fails_fast: bool = False
    """Whether a background request gives up immediately."""
    waits_unattended: bool = False
    """Whether an unattended run waits for hours."""
    counts_as_outage: bool = False
    """Whether the error indicates that the provider is down, which the circuit breaker counts."""
    slows_down: bool = False
    """Whether a request in fast mode is sent at standard speed if the provider requests a long wait."""
    loses_connection: bool = False
    """Whether the connection was lost, so that the next attempt uses a new connection."""
    reason: TerminalReason = "model_error"
    """The terminal reason of a run that ends with an error of this class."""


REACTIONS: Mapping[ErrorClass, Reaction] = MappingProxyType(
    {
        "overflow": Reaction(
            "400 whose message contains prompt + `max_tokens` > window",
            step="lower",
            reason="prompt_too_long",
        ),
        "beyond_model": Reaction(
            "400 whose message contains `max_tokens` > the model's limit", step="lower"
        ),
        "too_long": Reaction(
            "400 whose message states that the prompt or its text is too long",
            step="shorten",
            reason="prompt_too_long",
        ),
        "too_large": Reaction(
            "413, or the error type or code of a 413", step="shorten", reason="prompt_too_long"
        ),
        "window_full": Reaction(
            "200 with stop reason `model_context_window_exceeded` and no tool call",
            step="shorten",
            reason="prompt_too_long",
        ),
        "image": Reaction("400 whose message or code concerns an image", reason="image_error"),
        "bad_request": Reaction("any other 400, and any status below 500 that is not listed here"),
        "unauthorized": Reaction("401", step="refresh"),
        "forbidden": Reaction("403", step="refresh"),
        "not_found": Reaction("404"),
        "timeout": Reaction(
            "408, no response in time, or a `timeout_error` in a 200 stream",
            is_retried=True,
            waits_unattended=True,
            counts_as_outage=True,
            loses_connection=True,
        ),
        "conflict": Reaction("409", is_retried=True),
        "rate_limit": Reaction(
            "429, or a `rate_limit_error` in a 200 stream",
            is_retried=True,
            slows_down=True,
            fails_fast=True,
            waits_unattended=True,
        ),
        "server_error": Reaction(
            "500 to 599 except 529, or an `api_error` in a 200 stream",
            is_retried=True,
            waits_unattended=True,
            counts_as_outage=True,
        ),
        "overloaded": Reaction(
            "529, or an `overloaded_error` at any status or in a 200 stream",
            is_retried=True,
            step="fall_back",
            slows_down=True,
            fails_fast=True,
            waits_unattended=True,
            counts_as_outage=True,
        ),
        "connection": Reaction(
            "no connection, or a connection that was reset before a response arrived",
            is_retried=True,
            waits_unattended=True,
            counts_as_outage=True,
            loses_connection=True,
        ),
        "cut_before_content": Reaction(
            "a 200 stream that ended early, before any content",
            is_retried=True,
            step="unstream",
            waits_unattended=True,
            counts_as_outage=True,
            loses_connection=True,
        ),
        "cut_after_content": Reaction(
            "a 200 stream that ended early, after some content",
            is_retried=True,
            waits_unattended=True,
            counts_as_outage=True,
            loses_connection=True,
        ),
        "error_in_stream": Reaction("a 200 stream with an error event of any other type"),
        "unreadable": Reaction("a 200 whose body is not a message, or is incomplete"),
        "circuit_open": Reaction("not sent, because the circuit breaker is open"),
    }
)
"""The reaction to each error class. The retried statuses are those of the SDK (2.12, `_should_retry`):
408, 409, 429, and 500 and above. The types of errors inside a 200 stream are from
https://docs.anthropic.com/en/api/errors.
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
"""Stable codes in the details of an error; a subset of the codes in the SDK (2.12)."""

_OVERFLOW = re.compile(r"exceed context limit: ([\d,]+) \+ ([\d,]+) > ([\d,]+)")
"""The groups are the prompt, `max_tokens` and the window, all in tokens."""
_BEYOND_MODEL = re.compile(r"max_tokens: ([\d,]+) > ([\d,]+)")
"""The groups are `max_tokens` and the maximum of the model."""
_TOO_LONG = re.compile(
    r"prompt is too long|exceed.{0,20} context limit|too many total text bytes|request_too_large",
    re.I,
)
"""The provider's messages for a prompt that is too long. The first and the third are from real 400 responses."""
_IMAGE = re.compile(r"\bimages?\b", re.I)


def classify(error: Exception, *, has_content: bool = False) -> ErrorClass:
    """Return the class of one of the `PROVIDER_ERRORS`.

    `has_content` is whether part of the response had arrived.
    """
    match error:
        case CircuitOpenError():
            return "circuit_open"
        case WindowFullError():
            return "window_full"
        case APIStatusError():
            return _class_of_status(error)
        case APITimeoutError():
            return "timeout"
        case CutError() | httpx2.RequestError():
            return "cut_after_content" if has_content else "cut_before_content"
        case APIConnectionError() | RetryableError():
            return "connection"
        case _:
            return "unreadable"


def _class_of_status(error: APIStatusError) -> ErrorClass:
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
        return _class_of_400(error)
    if error.status_code in _STATUSES:
        return _STATUSES[error.status_code]
    return "server_error" if error.status_code >= 500 else "bad_request"


def _class_of_400(error: APIStatusError) -> ErrorClass:
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


OVERFLOW_MARGIN = 1_000
"""Safety margin, in tokens, if a response limit is lowered to fit into the window, because our counts are not exact.
Our choice.
"""

RESPONSE_TOKENS_MIN = 3_000
"""If fewer tokens than this remain for the response, the prompt counts as too long. From the specification of the agent
loop.
"""


def max_tokens_available(error: Exception) -> int | None:
    """Return the highest `max_tokens` that fits, according to an error; None if unknown or too small to be useful."""
    text = text_of(error)
    if found := _OVERFLOW.search(text):
        prompt, _, window = (int(digits.replace(",", "")) for digits in found.groups())
        remaining = window - prompt - OVERFLOW_MARGIN
        return remaining if remaining >= RESPONSE_TOKENS_MIN else None
    if found := _BEYOND_MODEL.search(text):
        return int(found[2].replace(",", "")) or None
    return None


def may_have_cost(error: Exception) -> bool:
    """Return whether a failed attempt without reported usage may have cost money.

    A request costs nothing if the provider refused it or never received it.
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
    return kind if isinstance(kind, str) and is_label(kind) else class_label(type(error).__name__)


def terminal_reason(error: Exception) -> TerminalReason:
    """Return the terminal reason of a run that ends with a provider error."""
    return REACTIONS[classify(error)].reason


def has_lost_connection(error: Exception) -> bool:
    """Return whether the connection of a failed attempt was lost, so that other idle connections may also be dead."""
    return REACTIONS[classify(error)].loses_connection


def exceeds_max_tokens(error: Exception) -> bool:
    """Return whether the provider refused a request because `max_tokens` was too high."""
    return REACTIONS[classify(error)].step == "lower"


def is_too_long(outcome: Exception | Json) -> bool:
    """Return whether the conversation must become shorter, according to an error or a response."""
    if isinstance(outcome, Exception):
        return terminal_reason(outcome) == "prompt_too_long"
    return bool(outcome.get("stop_reason") == "model_context_window_exceeded")


def text_of(error: Exception) -> str:
    """Return the provider's error message, or else the text of the exception. The text is content."""
    return (error.api_message if isinstance(error, APIStatusError) else None) or str(error)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of an error, or None if no response arrived."""
    return error.status_code if isinstance(error, APIStatusError) else None
