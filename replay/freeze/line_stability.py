"""Line stability: freezing a session again changes only the lines whose content has changed.

In each recording, a response arrives in different chunks and at different times. If nothing else in a response has
changed, the chunks and times of the existing fixture are kept.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator

from agentobs.records.canonical_json import digest

_OTHERS = ("request", "tool", "world", "end")
"""The kinds of lines that come after the lines of a response."""


def stabilized(data: bytes, old: bytes | None) -> bytes:
    """Return the bytes of a fixture without unnecessary changes to the older version `old`.

    If only the session ID, the day and the versions of the recording differ, `old` is returned.
    """
    if old is None:
        return data
    known: defaultdict[str, deque[object]] = defaultdict(deque)
    try:
        for response in _responses(old):
            known[_response_key(response)].append(json.loads(response[0]).get("chunks"))
    except (ValueError, AttributeError):
        return data  # the old file is not a fixture
    lines = data.splitlines(keepends=True)
    for at, response in zip(_positions(lines), list(_responses(data)), strict=True):
        chunks = known[_response_key(response)]
        if chunks:
            value = {**json.loads(response[0]), "chunks": chunks.popleft()}
            lines[at] = _line(value)
    body = b"".join(lines[:-1])
    new = body + _line({**json.loads(lines[-1]), "digest": digest(body)})
    return old if _without_origin(new) == _without_origin(old) else new


def _responses(data: bytes) -> Iterator[list[bytes]]:
    """Yield the lines of each response."""
    lines = data.splitlines(keepends=True)
    for at in _positions(lines):
        end = at + 1
        while end < len(lines) and not _is_of(lines[end], _OTHERS):
            end += 1
        yield lines[at:end]


def _positions(lines: list[bytes]) -> list[int]:
    return [at for at, line in enumerate(lines) if _is_of(line, ("response",))]


def _is_of(line: bytes, kinds: tuple[str, ...]) -> bool:
    return line.startswith(tuple(f'{{"{kind}": '.encode() for kind in kinds))


def _response_key(lines: list[bytes]) -> str:
    """Return the content of a response without its number, its chunks and its times."""
    first = json.loads(lines[0])
    kept = {key: value for key, value in first.items() if key not in ("response", "chunks")}
    return json.dumps([kept, *(line.decode("utf-8", "surrogateescape") for line in lines[1:])])


def _without_origin(data: bytes) -> list[bytes]:
    """Return the lines of a fixture, without the day, the versions and the session ID in the first line."""
    first, *others = data.splitlines()
    header = json.loads(first)
    kept = {
        key: header[key]
        for key in header
        if key not in ("recorded_on", "recorded_with", "session_id")
    }
    return [json.dumps(kept).encode(), *others[:-1]]


def _line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
