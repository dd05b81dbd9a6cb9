"""The dialects that agentobs knows, and the choice of one for a recorded request."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from agentobs.provider.anthropic.dialect import Anthropic
from agentobs.provider.bedrock.dialect import Converse
from agentobs.provider.dialect import Block, DeltaShape, Dialect, Message, SealedShape, Turn
from agentobs.records.canonical_json import canonical, digest, parse
from agentobs.records.exchanges import Answer, Chunk

ANTHROPIC = Anthropic()
DIALECTS: tuple[Dialect, ...] = (ANTHROPIC, Converse())
"""All dialects; requests that no dialect owns are read by the first one. Add a provider here."""


def dialect_of(path: str) -> Dialect:
    """Return the dialect of a recorded request by its path, with or without a query."""
    return next((each for each in reversed(DIALECTS) if each.owns(path)), DIALECTS[0])


def terms() -> frozenset[str]:
    """Return the words of all providers that facts may contain, see `Dialect.terms`."""
    return frozenset().union(*(each.terms for each in DIALECTS))


def dialect_of_body(body: Any) -> Dialect:
    """Return the dialect of a parsed request body whose path is unknown, based on its history."""
    if isinstance(body, dict):
        found = [each for each in DIALECTS if isinstance(body.get(each.history_key), list)]
        for each in found[1:]:
            if each.reads_history(body[each.history_key]):
                return each
        return found[0] if found else DIALECTS[0]
    return DIALECTS[0]


def is_model_call(
    path: str, headers: Mapping[str, str], host: str = "", body: bytes | None = None
) -> bool:
    """Return whether an HTTP request goes to a provider, so that it is recorded.

    Args:
        path: the path, without the query.
        headers: the request headers; names are looked up in lower case.
        host: the host name, without the port; empty if unknown.
        body: the request body; None if it is unknown.
    """
    if any(each.is_model_call(path, headers) for each in DIALECTS):
        return True
    dialect = next((each for each in reversed(DIALECTS) if each.makes_turns(path)), None)
    if dialect is None:
        return False
    return is_provider_host(host) or (body is not None and dialect.is_request(body))


def may_be_model_call(path: str, headers: Mapping[str, str], host: str = "") -> bool:
    """Return whether `is_model_call` may return True once the body of a request is known."""
    has_route = any(each.makes_turns(path) for each in DIALECTS)
    return has_route or is_model_call(path, headers, host)


def is_stored_call(
    path: str, headers: Mapping[str, str], host: str = "", body: bytes | None = None
) -> bool:
    """Return whether a request that another tool stored goes to a provider, even if its headers were removed.

    Args:
        path: the path, without the query.
        headers: the request headers, with names in lower case.
        host: the host name, without the port; empty if unknown.
        body: the request body; None if it is unknown.
    """
    if is_model_call(path, headers, host, body):
        return True
    dialect = dialect_of(path)
    return (
        is_provider_host(host)
        and dialect.owns(path)
        and dialect.platform(dialect.endpoint(path)) is None
    )


def is_provider_host(host: str) -> bool:
    """Return whether a host belongs to a provider, or to a platform that offers its models."""
    return any(pattern.fullmatch(host.lower()) for each in DIALECTS for pattern in each.hosts)


def history(body: Any) -> list[Any]:
    """Return the history of a parsed request body as it was sent; empty if it has none."""
    found = body.get(dialect_of_body(body).history_key) if isinstance(body, dict) else None
    return found if isinstance(found, list) else []


def turns(body: Any) -> list[Turn]:
    """Return the conversation in a parsed request body, without entries that are not objects."""
    dialect = dialect_of_body(body)
    return [dialect.turn(each) for each in history(body) if isinstance(each, dict)]


def sent_messages(body: Any) -> list[Turn]:
    """Return the messages in a parsed request body: its conversation, or messages of another kind if it has none."""
    found = turns(body)
    if found or not isinstance(body, dict):
        return found
    return next((sent for each in DIALECTS if (sent := each.sent_messages(body))), [])


def received_messages(path: str, answer: Answer) -> list[Turn]:
    """Return the messages in a recorded response that is not itself a message, such as the results of a batch."""
    return dialect_of(path).received_messages(path, answer)


def message_of(path: str, answer: Answer) -> Message:
    """Return a recorded response, reassembled if it was streamed."""
    return dialect_of(path).message(answer.headers, answer.body)


def redacted_binary(path: str, answer: Answer, redact: Callable[[bytes], bytes]) -> Answer | None:
    """Return a binary stream with its message redacted; None if a response is not binary, or cannot be read.

    Its bytes have checksums and may be encoded, so the stream is written again if its message contains a secret. All
    parts of it then have the arrival time of the last chunk.

    Args:
        path: the path of the request.
        answer: the response.
        redact: replaces the secrets in JSON.
    """
    dialect = dialect_of(path)
    if not answer.chunks or not dialect.is_binary(answer.headers):
        return None
    body = answer.body
    if dialect.message(answer.headers, body).role != "assistant":
        return None
    clean = dialect.redacted_stream(answer.headers, body, redact)
    if clean is None:
        return answer
    parts = dialect.stream_chunks(answer.headers, clean)
    return replace(answer, chunks=tuple(Chunk(part, answer.chunks[-1].after_ns) for part in parts))


def calls_of(path: str, answer: Answer) -> list[Block]:
    """Return the tool calls of a recorded response that the client must run."""
    return message_of(path, answer).calls


def meaningful_headers() -> tuple[str, ...]:
    """Return the request headers that change what a provider does, in the order of the dialects."""
    return tuple(dict.fromkeys(name for each in DIALECTS for name in each.meaningful_headers))


def recorded_request_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the request headers that may be recorded, with names in lower case."""
    lower = {name.lower(): value for name, value in headers.items()}
    return {name: lower[name] for name in _recorded_headers(DIALECTS).request if name in lower}


def recorded_response_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the response headers that may be recorded, sorted, with names in lower case."""
    lower = {name.lower(): value for name, value in headers.items()}
    kept = _recorded_headers(DIALECTS)
    return {
        name: lower[name]
        for name in sorted(lower)
        if name in kept.response or name.startswith(kept.prefixes)
    }


class _RecordedHeaders(NamedTuple):
    request: tuple[str, ...]
    response: frozenset[str]
    prefixes: tuple[str, ...]


@functools.cache
def _recorded_headers(dialects: tuple[Dialect, ...]) -> _RecordedHeaders:
    """Return the names of the headers that may be recorded; cached, because each recorded request needs them."""
    response_names = [name for each in dialects for name in each.response_headers]
    return _RecordedHeaders(
        tuple(dict.fromkeys(name for each in dialects for name in each.request_headers)),
        frozenset(name for name in response_names if not name.endswith("*")),
        tuple(name[:-1] for name in response_names if name.endswith("*")),
    )


def credentials(headers: Mapping[str, str]) -> list[str]:
    """Return the values of the headers that contain credentials; an empty string for each missing header."""
    names = dict.fromkeys(name for each in DIALECTS for name in each.credential_headers)
    found = [headers.get(name, "") for name in names]
    return [*found, headers.get("authorization", "").removeprefix("Bearer ")]


def question_digest(method: str, path: str, headers: dict[str, str], body: bytes) -> str:
    """Return the digest of a request to the provider: method, path, meaningful headers and body."""
    try:
        text = canonical(parse(body)) if body else ""
    except (ValueError, RecursionError):
        return digest(
            b"\0".join((method.encode(), path.encode(), canonical_headers(headers).encode(), body))
        )
    return digest(
        "\0".join((method, path, canonical_headers(headers), text)).encode("utf-8", "surrogatepass")
    )


def canonical_headers(headers: dict[str, str]) -> str:
    """Return the meaningful headers as canonical JSON."""
    return canonical({name: headers[name] for name in meaningful_headers() if name in headers})


def runs_model(endpoint: str) -> bool:
    """Return whether requests to an endpoint are answered by a model."""
    return any(each.runs_model(endpoint) for each in DIALECTS)


def field_names() -> frozenset[str]:
    """Return the field names of requests, for all providers."""
    return frozenset(name for each in DIALECTS for name in each.field_names)


def call_types() -> frozenset[str]:
    """Return the values of `type` in the client libraries' objects that contain the ID of a tool call."""
    return frozenset(name for each in DIALECTS for name in each.call_types)


def call_id_prefixes() -> tuple[str, ...]:
    """Return the prefixes of tool call IDs, for all providers."""
    return tuple(dict.fromkeys(prefix for each in DIALECTS for prefix in each.call_id_prefixes))


def sealed_shapes() -> list[SealedShape]:
    """Return the forms of sealed values, for all providers."""
    return [shape for each in DIALECTS if (shape := each.sealed_shape) is not None]


def delta_shapes() -> list[DeltaShape]:
    """Return the forms of text deltas in streams, for all providers."""
    return [shape for each in DIALECTS if (shape := each.delta_shape) is not None]
