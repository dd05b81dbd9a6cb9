"""Line stability: freezing a session again changes only the lines of what changed.

A response arrives in other chunks and at other times in each recording. If everything else is unchanged, its
chunks and times stay those of the existing fixture.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator

from agentobs.records.canonical_json import digest

_OTHERS = ("request", "tool", "world", "end")
"""The lines that end a response."""


def settled(data: bytes, old: bytes | None) -> bytes:
    """Return the bytes of a fixture without unnecessary changes against an older one.

    If only the session, the day and the versions of the recording differ, the older one is returned.
    """
    if old is None:
        return data
    known: defaultdict[str, deque[object]] = defaultdict(deque)
    try:
        for answer in _answers(old):
            known[_essence(answer)].append(json.loads(answer[0]).get("chunks"))
    except (ValueError, AttributeError):
        return data  # it is not a fixture
    lines = data.splitlines(keepends=True)
    for at, answer in zip(_places(lines), list(_answers(data)), strict=True):
        chunks = known[_essence(answer)]
        if chunks:
            value = {**json.loads(answer[0]), "chunks": chunks.popleft()}
            lines[at] = _line(value)
    body = b"".join(lines[:-1])
    new = body + _line({**json.loads(lines[-1]), "digest": digest(body)})
    return old if _without_day(new) == _without_day(old) else new


def _answers(data: bytes) -> Iterator[list[bytes]]:
    """Yield each answer's lines."""
    lines = data.splitlines(keepends=True)
    for at in _places(lines):
        end = at + 1
        while end < len(lines) and not _is_of(lines[end], _OTHERS):
            end += 1
        yield lines[at:end]


def _places(lines: list[bytes]) -> list[int]:
    return [at for at, line in enumerate(lines) if _is_of(line, ("response",))]


def _is_of(line: bytes, kinds: tuple[str, ...]) -> bool:
    return line.startswith(tuple(f'{{"{kind}": '.encode() for kind in kinds))


def _essence(answer: list[bytes]) -> str:
    """Return a response without its number, its chunks and its times."""
    head = json.loads(answer[0])
    told = {key: value for key, value in head.items() if key not in ("response", "chunks")}
    return json.dumps([told, *(line.decode("utf-8", "surrogateescape") for line in answer[1:])])


def _without_day(data: bytes) -> list[bytes]:
    """Return the lines of a fixture, the first one without the time, versions and session of the recording."""
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
