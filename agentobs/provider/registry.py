"""The dialects that agentobs knows, and the choice of one for a recorded request."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentobs.provider.anthropic.dialect import Anthropic
from agentobs.provider.dialect import Block, DeltaShape, Dialect, Message, SealedShape, Turn
from agentobs.records.canonical_json import canonical, digest, parse
from agentobs.records.exchanges import Answer

ANTHROPIC = Anthropic()
DIALECTS: tuple[Dialect, ...] = (ANTHROPIC,)
"""All dialects; the first one reads whatever none of them claims. Add a provider here."""


def dialect_of(path: str) -> Dialect:
    """Return the dialect of a recorded request by its path, with or without a query."""
    return next((each for each in reversed(DIALECTS) if each.owns(path)), DIALECTS[0])


def dialect_of_body(body: Any) -> Dialect:
    """Return the dialect of a parsed request body whose path is unknown: by the key of its history."""
    if isinstance(body, dict):
        for each in DIALECTS:
            if isinstance(body.get(each.history_key), list):
                return each
    return DIALECTS[0]


def is_model_call(path: str, headers: Mapping[str, str]) -> bool:
    """Return whether an HTTP request goes to a provider, so that it is recorded."""
    return any(each.is_model_call(path, headers) for each in DIALECTS)


def history(body: Any) -> list[Any]:
    """Return the history of a parsed request body as it was sent; empty if it has none."""
    found = body.get(dialect_of_body(body).history_key) if isinstance(body, dict) else None
    return found if isinstance(found, list) else []


def turns(body: Any) -> list[Turn]:
    """Return the conversation that a parsed request body sends; entries that are not objects are left out."""
    dialect = dialect_of_body(body)
    return [dialect.turn(each) for each in history(body) if isinstance(each, dict)]


def message_of(path: str, answer: Answer) -> Message:
    """Return a recorded response, its stream added up."""
    return dialect_of(path).message(answer.headers, answer.body)


def calls_of(path: str, answer: Answer) -> list[Block]:
    """Return the tool calls of a recorded response that the client has to run."""
    return message_of(path, answer).calls


def meaningful_headers() -> tuple[str, ...]:
    """Return the request headers that change what a provider does, in the order of the dialects."""
    return tuple(dict.fromkeys(name for each in DIALECTS for name in each.meaningful_headers))


def kept_request_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the request headers that may be written, names in lower case."""
    lower = {name.lower(): value for name, value in headers.items()}
    return {name: lower[name] for name in _kept(DIALECTS).request if name in lower}


def kept_response_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the response headers that may be written, names in lower case, sorted."""
    lower = {name.lower(): value for name, value in headers.items()}
    kept = _kept(DIALECTS)
    return {
        name: lower[name]
        for name in sorted(lower)
        if name in kept.response or name.startswith(kept.prefixes)
    }


class _Kept(NamedTuple):
    request: tuple[str, ...]
    response: frozenset[str]
    prefixes: tuple[str, ...]


@functools.cache
def _kept(dialects: tuple[Dialect, ...]) -> _Kept:
    """Return the names of the headers that may be written; the callers of a client wait for this."""
    named = [name for each in dialects for name in each.response_headers]
    return _Kept(
        tuple(dict.fromkeys(name for each in dialects for name in each.request_headers)),
        frozenset(name for name in named if not name.endswith("*")),
        tuple(name[:-1] for name in named if name.endswith("*")),
    )


def credentials(headers: Mapping[str, str]) -> list[str]:
    """Return the values of the headers that hold credentials; empty strings for missing ones."""
    names = dict.fromkeys(name for each in DIALECTS for name in each.credential_headers)
    found = [headers.get(name, "") for name in names]
    return [*found, headers.get("authorization", "").removeprefix("Bearer ")]


def question_digest(method: str, path: str, headers: dict[str, str], body: bytes) -> str:
    """Return the digest of a request to the provider: method, path, meaningful headers and body."""
    try:
        text = canonical(parse(body)) if body else ""
    except (ValueError, RecursionError):
        return digest(b"\0".join((method.encode(), path.encode(), meaning(headers).encode(), body)))
    return digest(
        "\0".join((method, path, meaning(headers), text)).encode("utf-8", "surrogatepass")
    )


def meaning(headers: dict[str, str]) -> str:
    """Return the meaningful headers as one canonical text."""
    return canonical({name: headers[name] for name in meaningful_headers() if name in headers})


def turn_paths() -> list[str]:
    """Return the paths of the requests that are turns, of all providers."""
    return [each.turn_path for each in DIALECTS]


def samples(endpoint: str) -> bool:
    """Return whether a model answers the requests to an endpoint."""
    return any(each.samples(endpoint) for each in DIALECTS)


def field_names() -> frozenset[str]:
    """Return the names that the providers give to the parts of requests."""
    return frozenset(name for each in DIALECTS for name in each.field_names)


def call_types() -> frozenset[str]:
    """Return the `type` of the objects that hold the ID of a tool call, in the client libraries of all providers."""
    return frozenset(name for each in DIALECTS for name in each.call_types)


def call_id_prefixes() -> tuple[str, ...]:
    """Return what the IDs of tool calls start with, of all providers."""
    return tuple(dict.fromkeys(prefix for each in DIALECTS for prefix in each.call_id_prefixes))


def sealed_shapes() -> list[SealedShape]:
    """Return how the sealed values of all providers look."""
    return [shape for each in DIALECTS if (shape := each.sealed_shape) is not None]


def delta_shapes() -> list[DeltaShape]:
    """Return how the streams of all providers contain the pieces of a text."""
    return [shape for each in DIALECTS if (shape := each.delta_shape) is not None]
