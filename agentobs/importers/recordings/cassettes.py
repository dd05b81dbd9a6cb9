"""Cassettes: HTTP exchanges that vcrpy, Ruby's VCR or go-vcr recorded, as YAML or JSON.

    vcrpy          interactions:       request (method, uri, headers, body), response (status, headers, body)
    Ruby's VCR     http_interactions:  the same, each with recorded_at
    go-vcr         interactions:       request (method, url, headers, body), response (code, headers, body, duration)
    langchain      requests, responses: the two halves of vcrpy's exchanges in two lists

pytest-recording writes cassettes of vcrpy. Serializers of other projects store bodies as parsed JSON (`parsed_body`).
Sources: vcrpy 9.4 (`vcr/serialize.py`), VCR 6.4, go-vcr 4, langchain-tests 1.1, pydantic-ai, November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentobs.errors import ForeignError
from agentobs.importers.exchange_sessions import recorded_time
from agentobs.importers.recordings.json_arrays import json_document
from agentobs.importers.recordings.stored_exchanges import (
    StoredExchange,
    from_base64,
    header_values,
    headers_of,
)
from agentobs.importers.recordings.yaml_items import yaml_items

_KEYS = ("interactions", "http_interactions", "requests", "responses")
_DURATION = re.compile(r"([0-9.]+)(h|ms|m|s|us|µs|ns)")
_UNITS_NS = {"h": 3_600e9, "m": 60e9, "s": 1e9, "ms": 1e6, "us": 1e3, "µs": 1e3, "ns": 1.0}
"""The units of durations in Go (package time, `Duration.String`), in nanoseconds."""


def cassette_exchanges(data: bytes) -> Iterator[StoredExchange]:
    """Yield the exchanges of a cassette, in the order of the file.

    Raises:
        ForeignError: it is not a cassette, or is damaged.
    """
    requests: list[Any] = []
    number = 0
    is_cassette = False
    for key, item in _items(data):
        is_cassette |= key in _KEYS
        if key == "requests":
            requests.append(item)
        elif key in _KEYS:
            number += 1
            try:
                if key != "responses":
                    yield _exchange(item)
                elif number <= len(requests):
                    yield _exchange({"request": requests[number - 1], "response": item})
                else:
                    raise ForeignError("a response without a request")
            except ForeignError as error:
                raise ForeignError(f"exchange {number}: {error.found}") from error
    if not is_cassette:
        raise ForeignError("not a cassette: it has no list of interactions")
    if requests and number < len(requests):
        raise ForeignError(f"{len(requests)} requests, but {number} responses")


def _items(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the exchanges, each with the key of its list, and the other values of the document."""
    if not data.lstrip().startswith(b"{"):
        yield from yaml_items(data, _KEYS)
        return
    document = json_document(data, (), _KEYS)
    for key, value in document.head.items():
        places = document.places.get(key, ())
        if not places:
            # An empty list is a list without exchanges.
            if not (isinstance(value, list) and key in _KEYS):
                yield ("other" if key in _KEYS else key), value
            else:
                yield "empty", value
        for number in range(len(places)):
            yield key, document.element(key, number)


def _exchange(item: Any) -> StoredExchange:
    request, response = _part(item, "request"), _part(item, "response")
    url = request.get("uri", request.get("url"))
    if not isinstance(url, str):
        raise ForeignError("a request without a URL")
    method = request.get("method")
    if not isinstance(method, str) or not method:
        raise ForeignError("a request without a method")
    headers = headers_of(response.get("headers"))
    at_ns = recorded_time(item.get("recorded_at")) or recorded_time(headers.get("date"))
    return StoredExchange(
        method=method.upper(),
        url=url,
        request_headers=headers_of(request.get("headers")),
        request_body=_body(request),
        status=_status(response),
        response_headers=headers,
        response_body=_body(response),
        started_ns=at_ns,
        duration_ns=_duration_ns(response.get("duration")),
    )


def _part(item: Any, name: str) -> Mapping[str, Any]:
    part = item.get(name) if isinstance(item, Mapping) else None
    if not isinstance(part, Mapping):
        raise ForeignError(f"it has no {name}")
    return part


def _status(response: Mapping[str, Any]) -> int:
    """Return the status: `status.code`, or `code` in cassettes of go-vcr, or `status_code` in those of older tools."""
    status = response.get("status")
    code = status.get("code") if isinstance(status, Mapping) else None
    for found in (code, response.get("code"), response.get("status_code"), status):
        if isinstance(found, int) and not isinstance(found, bool):
            return found
        if isinstance(found, str) and re.fullmatch(r"[0-9]{3}", found):
            return int(found)
    raise ForeignError("a response without a status")


def _body(part: Mapping[str, Any]) -> bytes | None:
    """Return a body; empty if it is null, because requests without a body are stored like this."""
    if "parsed_body" in part:
        return _json(part["parsed_body"])
    value = part.get("body")
    if isinstance(value, Mapping):
        if "base64_string" in value:
            return from_base64(header_values(value["base64_string"]))
        value = value.get("string", value.get("content"))
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return _json(value)


def _json(value: Any) -> bytes:
    """Return parsed JSON as text.

    Raises:
        ForeignError: it contains values that JSON does not have.
    """
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ForeignError("a parsed body that is not JSON") from error
    return text.encode("utf-8", "surrogatepass")


def _duration_ns(value: Any) -> int:
    """Return a duration, given as Go writes it, such as `1.2s`; 0 if it is missing."""
    if not isinstance(value, str):
        return 0
    return sum(
        int(float(n) * _UNITS_NS[unit])
        for n, unit in _DURATION.findall(value)
        if n.count(".") <= 1 and n != "."
    )
