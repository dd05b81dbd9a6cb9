"""Why requests to a model failed, in words: pages and the terminal share them."""

from __future__ import annotations

import re

_CLOSED = (
    "RemoteProtocolError", "ReadError", "WriteError", "IncompleteRead", "IncompleteReadError", "ChunkedEncodingError",
    "ProtocolError", "ConnectionResetError", "BrokenPipeError", "ClientPayloadError", "ServerDisconnectedError",
    "ClientConnectionResetError",
)  # fmt: skip
"""Errors of HTTP clients whose connection was closed too early."""
_TIMEOUTS = (
    "ReadTimeout", "ReadTimeoutError", "TimeoutError", "APITimeoutError", "SocketTimeoutError", "ServerTimeoutError",
)  # fmt: skip
"""Errors of HTTP clients that waited too long for data."""
UNFINISHED_OUTCOMES = ("cut", "no_response", "stream_error")
"""The outcomes of requests without a complete response; an HTTP status of them is that of a success."""
_FAILED_OUTCOME = re.compile(
    r"(cut|no_response|stream_error|http_error|crashed)(?: (\d+))?(?: (\S+))?"
)


def request_failure(outcome: str, error_class: str | None, status: int | None) -> str:
    """Return in words how an attempt failed: `the response was cut: the connection was closed`.

    Args:
        outcome: the outcome of the attempt, such as `cut`.
        error_class: the class of its error; None if unknown.
        status: its HTTP status.
    """
    cause = error_class
    if error_class in _CLOSED:
        cause = "the connection was closed"
    elif error_class in _TIMEOUTS:
        cause = "no data arrived in time"
    match outcome:
        case "cut":
            words = "the response was cut"
        case "no_response":
            words = "no response"
        case "stream_error":
            words = "error in the response"
        case "http_error":
            words = "HTTP error" if status is None else f"HTTP {status}"
        case "crashed":
            return "the process ended during the request"
        case _:
            words = outcome.replace("_", " ")
    return f"{words}: {cause}" if cause else words


def outcome_words(outcome: str) -> str:
    """Return the outcome of a request in words, from the text in `session_steps`, such as `cut 200 ReadError`.

    Other outcomes are returned unchanged.
    """
    found = _FAILED_OUTCOME.fullmatch(outcome)
    if found is None:
        return outcome
    return request_failure(found[1], found[3], int(found[2]) if found[2] else None)
