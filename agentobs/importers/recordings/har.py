"""HAR files: HTTP exchanges that a browser or a proxy exported as JSON.

Format: HTTP Archive 1.2 (http://www.softwareishard.com/blog/har-12-spec). Tools differ in what they leave out:

    Chrome, Edge  a body is missing if the page was left; a canceled request has the status 0 and `_error`; the events
                  of a stream may be in `_eventSourceMessages` instead of its body
    Firefox       bodies are missing or cut above a limit
    Playwright    bodies may be files in the folder of the HAR file (`_file`); the mode `minimal` has no times and sizes
    mitmproxy, Charles, Proxyman  binary bodies are base64; some keep the content encoding
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from agentobs.errors import ForeignError
from agentobs.importers.exchange_sessions import recorded_time
from agentobs.importers.line_files import FAR_NS, file_bytes
from agentobs.importers.recordings.json_arrays import json_document
from agentobs.importers.recordings.stored_exchanges import StoredExchange, from_base64, headers_of
from agentobs.records.exchanges import Ending, Failure

BODY_FILE_BYTES = 64 * 1024 * 1024
"""The maximum size of a body in a separate file. Our choice: twice the size of a request that a provider accepts."""

_BODY_FILE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
"""Matches the name of a body's file in the folder of the HAR file; Playwright names it after a digest of the body."""


def har_exchanges(data: bytes, folder: Path) -> Iterator[StoredExchange]:
    """Yield the exchanges of a HAR file, in the order of the file.

    Args:
        data: the file.
        folder: the folder of the file, which may contain bodies.

    Raises:
        ForeignError: it is not a HAR file, or is damaged.
    """
    document = json_document(data, ("log",), ("entries",))
    log = document.head.get("log")
    if not isinstance(log, dict) or not isinstance(log.get("entries"), list):
        raise ForeignError("not a HAR file: it has no `log.entries`")
    for number in range(len(document.places.get("entries", ()))):
        try:
            yield _exchange(document.element("entries", number), folder)
        except ForeignError as error:
            raise ForeignError(f"entry {number + 1}: {error.found}") from error


def _exchange(entry: Any, folder: Path) -> StoredExchange:
    request, response = _dict(entry).get("request"), _dict(entry).get("response")
    if not isinstance(request, dict) or not isinstance(response, dict):
        raise ForeignError("it has no request or no response")
    method, url = request.get("method"), request.get("url")
    if not isinstance(method, str) or not isinstance(url, str) or not method:
        raise ForeignError("a request without a method or a URL")
    status = response.get("status")
    if not isinstance(status, int) or isinstance(status, bool):
        raise ForeignError("a response without a status")
    has_response = 0 < status < 1000
    ending, failure = ("complete", None) if has_response else _failure(response)
    headers = headers_of(response.get("headers"))
    mime_type = _dict(response.get("content")).get("mimeType")
    if has_response and isinstance(mime_type, str) and mime_type and mime_type != "x-unknown":
        headers.setdefault("content-type", mime_type)
    return StoredExchange(
        method=method.upper(),
        url=url,
        request_headers=headers_of(request.get("headers")),
        request_body=_request_body(method.upper(), request, folder),
        status=status if has_response else None,
        response_headers=headers,
        response_body=_response_body(entry, response, folder) if has_response else b"",
        started_ns=recorded_time(entry.get("startedDateTime")),
        headers_ns=_headers_ns(entry) if has_response else None,
        duration_ns=_ns(entry.get("time")),
        ending=ending,
        failure=failure,
    )


def _failure(response: Mapping[str, Any]) -> tuple[Ending, Failure | None]:
    """Return how an exchange without a response ended."""
    error = str(response.get("_error") or "")
    if "abort" in error.lower() or "cancel" in error.lower():
        return "cancelled", None
    return "error", Failure("TransportError", error or "no response")


def _request_body(method: str, request: Mapping[str, Any], folder: Path) -> bytes | None:
    data = request.get("postData")
    if not isinstance(data, dict):
        # A size of -1 is unknown.
        return b"" if method in ("GET", "HEAD", "OPTIONS") or request.get("bodySize") == 0 else None
    if isinstance(data.get("_file"), str):
        return _file_body(folder, data["_file"])
    text = data.get("text")
    if isinstance(text, str) and text:
        is_base64 = "base64" in (data.get("encoding"), data.get("_encoding"))
        return from_base64(text) if is_base64 else text.encode("utf-8", "surrogatepass")
    params = data.get("params")
    if isinstance(params, list) and params:
        pairs = [(each.get("name", ""), each.get("value", "")) for each in map(_dict, params)]
        return urlencode(pairs).encode()
    return b"" if request.get("bodySize") == 0 else None


def _response_body(
    entry: Mapping[str, Any], response: Mapping[str, Any], folder: Path
) -> bytes | None:
    content = _dict(response.get("content"))
    if isinstance(content.get("_file"), str):
        return _file_body(folder, content["_file"])
    text = content.get("text")
    if isinstance(text, str) and text:
        if content.get("encoding") == "base64":
            return from_base64(text)
        return text.encode("utf-8", "surrogatepass")
    events = entry.get("_eventSourceMessages")
    if isinstance(events, list) and events:
        return b"".join(map(_event, events))
    size = content.get("size")
    has_body = isinstance(size, int) and size > 0
    return None if has_body or (text is None and size != 0) else b""


def _event(message: Any) -> bytes:
    """Return an event of a stream with the framing of server-sent events."""
    name, data = _dict(message).get("eventName"), _dict(message).get("data")
    if not isinstance(name, str) or not isinstance(data, str):
        raise ForeignError("an event of a stream without a name or data")
    lines = [f"event: {name}", *(f"data: {line}" for line in data.split("\n"))]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "surrogatepass")


def _file_body(folder: Path, name: str) -> bytes | None:
    """Return a body that is a file in the folder of the HAR file; None if the file is missing."""
    if not _BODY_FILE.fullmatch(name):
        raise ForeignError("a body whose file is not in the folder of the HAR file")
    try:
        return file_bytes(folder / name, BODY_FILE_BYTES)
    except OSError:
        return None


def _headers_ns(entry: Mapping[str, Any]) -> int | None:
    """Return when the response started, from the times of the phases before it; None if they are missing."""
    timings = _dict(entry.get("timings"))
    wait = timings.get("wait")
    if not isinstance(wait, int | float) or isinstance(wait, bool) or wait < 0:
        return None
    phases = ("blocked", "dns", "connect", "send", "wait")  # `ssl` is a part of `connect`
    return min(sum(_ns(timings.get(name)) for name in phases), _ns(entry.get("time")))


def _ns(milliseconds: Any) -> int:
    """Return a duration in nanoseconds; 0 if it is missing, or if it is -1, which means that it does not apply."""
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return 0
    return int(milliseconds * 1e6) if 0 < milliseconds < FAR_NS / 1e7 else 0


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
