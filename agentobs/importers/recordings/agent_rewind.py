"""Traces of agent-rewind: calls of SDKs and tools, one JSON object per line (`*.rewind`, also compressed with gzip).

    {"rewind_format": 1, "created_at": ..., "meta": {}}
    {"seq", "kind": "llm" | "tool" | "memory", "name", "request": {"args", "kwargs"}, "response", "error",
     "duration_ms", "ts"}

The tool stores arguments and results of the SDK's methods, so requests and responses are rebuilt from them, and headers
are unknown. Large texts may be files in `<trace>.blobs`. Source: agent-rewind 0.8.0, formats 1 and 2 (`trace.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentobs.errors import ForeignError
from agentobs.importers.line_files import FAR_NS, LINE_BYTES_MAX, file_bytes
from agentobs.importers.recordings.json_arrays import parsed_json
from agentobs.importers.recordings.stored_exchanges import StoredExchange
from agentobs.provider.registry import ANTHROPIC
from agentobs.records.exchanges import Ending, Failure

FORMAT_MAX = 2
"""The newest format that is known."""

_STREAM, _CUT, _FAILED = (
    "__rewind_stream__",
    "__rewind_stream_truncated__",
    "__rewind_stream_error__",
)
_BLOB, _LITERAL = "__rewind_blob__", "__rewind_literal__"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def rewind_exchanges(data: bytes, path: Path) -> Iterator[StoredExchange | None]:
    """Yield the exchange of each model call in a trace, in the order of their ends; None for each other event.

    Args:
        data: the trace, not compressed.
        path: its file; texts may be in a folder next to it.

    Raises:
        ForeignError: it is not a trace, is damaged, or has a newer format.
    """
    lines = data.split(b"\n")
    header = parsed_json(lines[0], "line 1")
    version = header.get("rewind_format") if isinstance(header, dict) else None
    if not isinstance(version, int):
        raise ForeignError("not a trace of agent-rewind: its first line has no `rewind_format`")
    if version > FORMAT_MAX:
        raise ForeignError(
            f"unsupported format {version} of agent-rewind: only formats up to {FORMAT_MAX} can be read"
        )
    if lines[-1].strip():
        raise ForeignError(
            f"line {len(lines)} is cut: the recorder was probably killed while it wrote the line"
        )
    blobs = path.with_name(path.name.removesuffix(".gz") + ".blobs")
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        event = parsed_json(line, f"line {number}")
        if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
            raise ForeignError(f"line {number} is not an event of agent-rewind")
        try:
            yield _exchange(event, blobs) if event["kind"] == "llm" else None
        except ForeignError as error:
            raise ForeignError(f"line {number}: {error.found}") from error
        except (ValueError, RecursionError) as error:
            raise ForeignError(f"line {number} has arguments that are not JSON") from error


def _exchange(event: Mapping[str, Any], blobs: Path) -> StoredExchange | None:
    """Return the exchange of a call; None if it goes to another provider."""
    request = _revived(event.get("request"), blobs)
    arguments = request.get("kwargs") if isinstance(request, dict) else None
    if not isinstance(arguments, dict):
        return None
    name = str(event.get("name"))
    result, error = _revived(event.get("response"), blobs), event.get("error")
    is_stream = isinstance(result, dict) and isinstance(result.get(_STREAM), list)
    if not (
        ANTHROPIC.composition.is_sdk_call(arguments, result[_STREAM] if is_stream else result)
    ) and not (isinstance(error, dict) and name.startswith("anthropic.")):
        return None
    sent = ANTHROPIC.composition.sdk_request(
        arguments, is_stream=name.endswith(".stream") or bool(arguments.get("stream"))
    )
    duration_ns = _ns(event.get("duration_ms"), 1e6)
    ended_ns = _ns(event.get("ts"), 1e9)
    exchange = StoredExchange(
        method="POST",
        url=sent.path,
        request_headers=sent.headers,
        request_body=sent.body,
        status=200,
        started_ns=ended_ns - duration_ns if ended_ns > duration_ns else None,
        duration_ns=duration_ns,
        is_provider=True,
    )
    if is_stream:
        exchange.response_headers = {"content-type": "text/event-stream; charset=utf-8"}
        exchange.response_body = ANTHROPIC.composition.sdk_events(result[_STREAM])
        exchange.ending = _ending(result)
    elif isinstance(error, dict):
        _fail(exchange, error)
    else:
        exchange.response_headers = {"content-type": "application/json"}
        exchange.response_body = ANTHROPIC.composition.sdk_response(result)
    return exchange


def _ending(stream: Mapping[str, Any]) -> Ending:
    if stream.get(_CUT):
        return "cancelled"
    return "cut" if stream.get(_FAILED) else "complete"


def _fail(exchange: StoredExchange, error: Mapping[str, Any]) -> None:
    """Set the response of a call that failed: the error of the API, or none if no response arrived."""
    attributes = error.get("attrs")
    details: Mapping[str, Any] = attributes if isinstance(attributes, dict) else {}
    status = details.get("status_code")
    if isinstance(status, int) and not isinstance(status, bool):
        response = details.get("response")
        headers = response.get("headers") if isinstance(response, dict) else None
        body = details.get("body")
        exchange.status = status
        exchange.response_headers = (
            {str(name).lower(): str(value) for name, value in headers.items()}
            if isinstance(headers, dict)
            else {}
        )
        exchange.response_body = (
            None
            if body is None
            else json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        )
        return
    exchange.status, exchange.ending = None, "error"
    exchange.failure = Failure("TransportError", str(error.get("message") or "no response"))


def _revived(value: Any, blobs: Path) -> Any:
    """Return a value with the texts of separate files inserted, and without the markers of the format."""
    if isinstance(value, list):
        return [_revived(each, blobs) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        blob, literal = value.get(_BLOB), value.get(_LITERAL)
        if isinstance(blob, dict):
            return _blob(blob, blobs)
        if isinstance(literal, dict):
            return {name: _revived(each, blobs) for name, each in literal.items()}
    return {name: _revived(each, blobs) for name, each in value.items()}


def _blob(blob: Mapping[str, Any], blobs: Path) -> str:
    name = blob.get("sha256")
    if not isinstance(name, str) or not _SHA256.fullmatch(name):
        raise ForeignError("a text in a file without a valid name")
    try:
        return file_bytes(blobs / name, LINE_BYTES_MAX).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise ForeignError(
            f"the text in {blobs.name}/{name} cannot be read; keep this folder next to the trace"
        ) from error


def _ns(value: Any, unit: float) -> int:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0
    return int(value * unit) if 0 < value < FAR_NS / unit else 0
