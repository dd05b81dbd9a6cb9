"""Convert the framed stream of a cloud platform to the server-sent events in its frames.

`application/vnd.amazon.eventstream`: each frame has a prelude (the length of the frame and of its headers, with a
checksum), headers, a payload and a checksum. The payload of an event is JSON that contains the provider's event in
base64. An exception has its name in a header. Reading ends at a frame with a wrong length or checksum, because the
stream was cut there.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping

FRAMES = "application/vnd.amazon.eventstream"
"""The content type."""

_PRELUDE = struct.Struct(">III")
"""The length of the frame, the length of its headers, and the checksum of both."""
_TEXT = 7
"""The type of a header with a text value, the only type in a stream of messages."""


def is_framed(headers: Mapping[str, str]) -> bool:
    """Return whether the response headers announce frames."""
    return headers.get("content-type", "").startswith(FRAMES)


def unframe(body: bytes) -> bytes:
    """Return the server-sent events in the frames of a body, up to the first frame that is incomplete or damaged."""
    return b"".join(b"data:" + event + b"\n\n" for event in _events(body))


def _events(body: bytes) -> Iterator[bytes]:
    for headers, payload in frames(body):
        failed = headers.get(":exception-type") or headers.get(":error-code")
        if failed:
            yield json.dumps({"type": "error", "error": {"type": failed}}).encode()
            continue
        try:
            yield base64.b64decode(json.loads(payload)["bytes"]).replace(b"\n", b" ")
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
            continue


def frames(body: bytes) -> Iterator[tuple[dict[str, str], bytes]]:
    """Yield the headers and the payload of each frame, up to the first frame that is incomplete or damaged."""
    for frame in split_frames(body):
        size, header_size, check = _PRELUDE.unpack_from(frame.ljust(_PRELUDE.size, b"\0"))
        if len(frame) < size or size < header_size + 16 or zlib.crc32(frame[:8]) != check:
            return
        if zlib.crc32(frame[:-4]) != int.from_bytes(frame[-4:], "big"):
            return
        yield _headers(frame[12 : 12 + header_size]), frame[12 + header_size : -4]


def split_frames(body: bytes) -> list[bytes]:
    """Split a body into its frames; the joined parts are the same bytes. The last one may be incomplete."""
    parts, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        end = at + size if size >= _PRELUDE.size + 4 else len(body)
        parts.append(body[at:end])
        at = end
    return parts


def framed(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return a frame with text headers and a payload."""
    encoded = b"".join(
        bytes([len(name)])
        + name.encode()
        + bytes([_TEXT])
        + struct.pack(">H", len(value))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", len(encoded) + len(payload) + 16, len(encoded))
    frame = prelude + struct.pack(">I", zlib.crc32(prelude)) + encoded + payload
    return frame + struct.pack(">I", zlib.crc32(frame))


def enframe(events: Iterable[bytes]) -> bytes:
    """Return the frames of events that are JSON; `unframe` is the reverse."""
    headers = {
        ":event-type": "chunk",
        ":content-type": "application/json",
        ":message-type": "event",
    }
    payloads = (json.dumps({"bytes": base64.b64encode(each).decode()}).encode() for each in events)
    return b"".join(framed(headers, payload) for payload in payloads)


def _headers(data: bytes) -> dict[str, str]:
    """Return the headers before the first header whose value is not text."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        if data[name_end : name_end + 1] != bytes([_TEXT]):
            break
        size = int.from_bytes(data[name_end + 1 : name_end + 3], "big")
        name = data[at + 1 : name_end].decode("utf-8", "replace")
        at = name_end + 3 + size
        found[name] = data[name_end + 3 : at].decode("utf-8", "replace")
    return found
