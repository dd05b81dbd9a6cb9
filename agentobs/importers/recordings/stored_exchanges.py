"""Stored exchanges: HTTP exchanges as other tools stored them, and their conversion to recorded exchanges.

Other tools store requests to all hosts, often without some headers, or with placeholders in them, and sometimes without
a body. Only headers that agentobs records itself are kept, so no credential is written. What a file does not contain is
counted.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from agentobs.errors import ForeignError
from agentobs.importers.exchange_sessions import UNKNOWN_PLACE
from agentobs.provider.content_encoding import decoded
from agentobs.provider.registry import (
    ANTHROPIC,
    credentials,
    dialect_of,
    is_stored_call,
    meaningful_headers,
    recorded_request_headers,
    recorded_response_headers,
)
from agentobs.records.exchanges import (
    UNRECORDED_HEADERS,
    Answer,
    Chunk,
    Ending,
    Failure,
    ModelExchange,
    Question,
)

_PLACEHOLDER = re.compile(
    r"<[^<>]*>|\W*(?:redacted|filtered|masked|scrubbed|removed|hidden|dummy|fake|mock|test|placeholder|null|none)\W*"
    r"|[*.x_-]*|.*-XXX+|.*\*\*\*.*|.*\b(?:redacted|filtered)\b.*",
    re.IGNORECASE,
)
"""Matches texts that tools put in place of a header. Collected from the cassettes of public repositories, 2026-11."""
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""The first bytes of compressed bodies, and their content encoding (RFC 1952, RFC 8878)."""
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")


@dataclass(slots=True)
class StoredExchange:
    """One HTTP exchange in a file of another tool."""

    method: str
    url: str = field(repr=False)
    """The URL, or only its path."""
    request_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The request headers, with names in lower case."""
    request_body: bytes | None = field(default=b"", repr=False)
    """The body; None if the file does not contain it."""
    status: int | None = None
    """HTTP status; None if no response arrived."""
    response_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The response headers, with names in lower case."""
    response_body: bytes | None = field(default=b"", repr=False)
    """The body, with or without its content encoding; None if the file does not contain it."""
    started_ns: int | None = None
    """When the request was sent, in nanoseconds since 1970; None if unknown."""
    headers_ns: int | None = None
    """When the headers of the response arrived, in nanoseconds after the request; None if unknown."""
    duration_ns: int = 0
    """The duration of the exchange; 0 if the file does not contain it."""
    ending: Ending = "complete"
    failure: Failure | None = None
    is_provider: bool = False
    """Whether the tool itself knows that it is a request to the provider."""

    @property
    def host(self) -> str:
        """The host name in lower case; empty if the file contains only a path."""
        try:
            return (urlsplit(self.url).hostname or "").lower()
        except ValueError:
            return ""

    @property
    def path(self) -> str:
        """The path with the query."""
        try:
            parts = urlsplit(self.url)
        except ValueError:
            return "/"
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    @property
    def goes_to_provider(self) -> bool:
        """Whether it is a request to a provider that agentobs knows. The preflight requests of browsers are not."""
        if self.is_provider or self.method == "OPTIONS":
            return self.is_provider
        path = self.path.partition("?")[0]
        return is_stored_call(path, self.request_headers, self.host, self.request_body)


@dataclass(frozen=True, slots=True)
class Converted:
    """A stored exchange as a recorded exchange, and what the file does not contain."""

    exchange: ModelExchange
    lacks_request: bool
    """Whether the body of the request is missing."""
    lacks_response: bool
    """Whether the body of the response is missing, or cannot be read."""
    lacks_headers: bool
    """Whether headers that affect the response are missing."""

    @property
    def is_complete(self) -> bool:
        """Whether both bodies are there."""
        return not (self.lacks_request or self.lacks_response)


def converted(stored: StoredExchange, number: int) -> Converted:
    """Return a stored exchange as a recorded exchange, without a session.

    Args:
        stored: the exchange.
        number: its number in the file, which distinguishes it from the others.
    """
    headers, unrecorded = _request_headers(stored)
    secrets = tuple(
        value.encode("utf-8", "surrogatepass")
        for value in dict.fromkeys(credentials(stored.request_headers))
        if len(value) >= 16 and not is_placeholder(value)
    )
    answer = _answer(stored)
    lacks_response = stored.response_body is None or (
        not answer.chunks and (bool(stored.response_body) or _needs_response(stored))
    )
    exchange = ModelExchange(
        place=UNKNOWN_PLACE,
        attempt_id=f"{number:032x}",
        started_ns=stored.started_ns or 0,
        headers_ns=stored.headers_ns,
        ended_ns=stored.duration_ns,
        question=Question(stored.method, stored.path, headers, stored.request_body or b"", secrets),
        answer=answer,
        secrets=secrets,
        lost_bytes=int(lacks_response or stored.request_body is None),
    )
    return Converted(exchange, _lacks_request(stored), lacks_response, bool(unrecorded))


def is_placeholder(value: str) -> bool:
    """Return whether a header was replaced by a placeholder."""
    return _PLACEHOLDER.fullmatch(value.strip()) is not None


def header_values(value: object) -> str:
    """Return the value of a header, which some tools store as a list."""
    if isinstance(value, list | tuple):
        return ", ".join(header_values(each) for each in value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return "" if value is None else str(value)


def headers_of(value: object) -> dict[str, str]:
    """Return headers with names in lower case, given a dictionary, or a list of objects with name and value.

    Raises:
        ForeignError: it is neither.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {str(name).lower(): header_values(text) for name, text in value.items()}
    if isinstance(value, list):
        found: dict[str, str] = {}
        for each in value:
            if isinstance(each, Mapping) and isinstance(each.get("name"), str):
                name = each["name"].lower()
                text = header_values(each.get("value"))
                found[name] = f"{found[name]}, {text}" if name in found else text
        return found
    raise ForeignError("headers that are neither an object nor a list")


def from_base64(text: str) -> bytes:
    """Return the bytes of a base64 text.

    Raises:
        ForeignError: it is not base64.
    """
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ForeignError("a body that is not base64") from error


def _request_headers(stored: StoredExchange) -> tuple[dict[str, str], list[str]]:
    """Return the headers that are recorded, and the names of those that affect the response and are unknown."""
    headers = {
        name: text
        for name, text in recorded_request_headers(stored.request_headers).items()
        if not is_placeholder(text)
    }
    # Each request has the version, so if it is missing, the tool did not keep the headers.
    are_kept = ANTHROPIC.version_header in headers
    unrecorded = [
        name
        for name in meaningful_headers()
        if name not in headers and (name in stored.request_headers or not are_kept)
    ]
    if unrecorded:
        headers[UNRECORDED_HEADERS] = ",".join(unrecorded)
    return headers, unrecorded


def _answer(stored: StoredExchange) -> Answer:
    """Return the response, decoded."""
    body = _without_chunk_sizes(stored.response_headers, stored.response_body or b"")
    encoding = _encoding(stored.response_headers, body)
    headers = {
        name: text
        for name, text in recorded_response_headers(stored.response_headers).items()
        if not is_placeholder(text)
    }
    chunks = (Chunk(body, stored.duration_ns),) if body else ()
    answer = Answer(stored.status, headers, chunks, stored.ending, stored.failure, encoding)
    answer = _decoded(answer)
    return replace(answer, headers={**_content_type(answer.body), **headers})


def _decoded(answer: Answer) -> Answer:
    """Return a response without its content encoding: as it is if it is not encoded after all, and without a body if it
    is certainly encoded, but cannot be decoded.
    """
    if not answer.encoding:
        return answer
    empty = Question("GET", "/", {}, b"")
    exchange = ModelExchange(UNKNOWN_PLACE, "", 0, None, 0, empty, answer)
    result = decoded(exchange)
    if result.answer.chunks and not result.lost_bytes:
        return result.answer
    is_encoded = result.lost_bytes or answer.body.startswith(tuple(_MAGIC))
    return replace(answer, chunks=() if is_encoded else answer.chunks, encoding="")


def _encoding(headers: Mapping[str, str], body: bytes) -> str:
    """Return the content encoding of a body as it is stored. Many tools store the decoded body, and keep the header."""
    for magic, name in _MAGIC.items():
        if body.startswith(magic):
            return name
    declared = headers.get("content-encoding", "").strip().lower()
    if not declared or not body or _is_text(body):
        return ""
    # A placeholder hides the encoding. Brotli has no magic bytes.
    return declared if declared in ("br", "deflate") else "br" if is_placeholder(declared) else ""


def _is_text(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in body


def _without_chunk_sizes(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a body without the sizes of HTTP/1.1 chunks, which some proxies store as a part of it (RFC 9112, 7.1)."""
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        return body
    parts: list[bytes] = []
    at = 0
    while (size_line := _CHUNK.match(body, at)) is not None:
        size = int(size_line[1], 16)
        start = size_line.end()
        if size == 0:
            return b"".join(parts)
        parts.append(body[start : start + size])
        at = start + size
        if body[at : at + 2] != b"\r\n":
            return body
        at += 2
    return b"".join(parts) if parts and at == len(body) else body


def _content_type(body: bytes) -> dict[str, str]:
    """Return the header for the apparent content type of a body, because some tools remove this header."""
    start = body[:64].lstrip()
    if start.startswith((b"event:", b"data:")):
        return {"content-type": "text/event-stream; charset=utf-8"}
    return {"content-type": "application/json"} if start.startswith((b"{", b"[")) else {}


def _lacks_request(stored: StoredExchange) -> bool:
    if stored.request_body is None:
        return True
    is_turn = dialect_of(stored.path).makes_turns(stored.path.partition("?")[0])
    return is_turn and stored.method == "POST" and not stored.request_body


def _needs_response(stored: StoredExchange) -> bool:
    """Return whether a response must have a body: the response to a turn, unless none arrived."""
    if stored.status is None or stored.ending != "complete":
        return False
    return dialect_of(stored.path).makes_turns(stored.path.partition("?")[0])
