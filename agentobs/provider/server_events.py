"""Server-sent events: the framing of streamed responses, independent of the provider.

Format: the HTML standard, section "Server-sent events".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One server-sent event."""

    name: str
    """The `event:` field; `message` if it is missing."""
    data: str
    """The `data:` fields, joined with newlines."""


def split_events(body: bytes) -> list[bytes]:
    """Split a stream after each blank line; the joined events are the same bytes.

    The last item is an unfinished event if the stream does not end with a blank line.
    """
    # Only the marks that occur: the search for another one would read the rest of the stream for each event.
    marks = [mark for mark in _MARKS if mark in body]
    if len(marks) == 1:
        *complete, rest = body.split(marks[0])
        events = [each + marks[0] for each in complete]
        return [*events, rest] if rest else events
    events = []
    start = 0
    while (end := _event_end(body, start, marks)) != -1:
        events.append(body[start:end])
        start = end
    if start < len(body):
        events.append(body[start:])
    return events


def last_event_end(body: bytes | bytearray, start: int = 0) -> int:
    """Return where the last complete event of a stream ends; 0 if there is none.

    Args:
        body: the stream so far.
        start: where the search starts; the end of an event may be up to `EVENT_MARK_BYTES` long.
    """
    found = ((body.rfind(mark, start), len(mark)) for mark in _MARKS)
    return max((at + size for at, size in found if at >= 0), default=0)


def server_events(body: bytes) -> Iterator[ServerEvent]:
    """Parse the complete events of a stream; an unfinished last event is left out."""
    for event_bytes in split_events(body):
        if not event_bytes.endswith((b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n")):
            return
        name, data = "message", []
        for line in _LINE_END.split(event_bytes.decode("utf-8", "replace")):
            field, _, value = line.partition(":")
            if field == "event":
                name = value.removeprefix(" ")
            elif field == "data":
                data.append(value.removeprefix(" "))
        if data:
            yield ServerEvent(name, "\n".join(data))


_MARKS = (b"\n\n", b"\r\n\r\n")
"""The sequences that end an event."""
EVENT_MARK_BYTES = max(map(len, _MARKS))
"""The length of the longest sequence that ends an event."""
_LINE_END = re.compile(r"\r\n|\n|\r")
"""The line ends of a stream. `str.splitlines` also splits at other characters, such as U+2028, which JSON may contain.
"""


def is_stream(headers: Mapping[str, str]) -> bool:
    """Return whether the response headers announce server-sent events."""
    return headers.get("content-type", "").startswith("text/event-stream")


def _event_end(body: bytes, start: int, marks: Sequence[bytes]) -> int:
    ends = [at + len(mark) for mark in marks if (at := body.find(mark, start)) != -1]
    return min(ends, default=-1)
