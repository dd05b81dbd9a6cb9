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
    events: list[bytes] = []
    start = 0
    # Only the marks that occur: the search for another one would read the rest of the stream for each event.
    marks = [mark for mark in (b"\n\n", b"\r\n\r\n") if mark in body]
    while (end := _event_end(body, start, marks)) != -1:
        events.append(body[start:end])
        start = end
    if start < len(body):
        events.append(body[start:])
    return events


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


_LINE_END = re.compile(r"\r\n|\n|\r")
"""The line ends of a stream. `str.splitlines` also splits at other characters, such as U+2028, which JSON may contain.
"""


def is_stream(headers: Mapping[str, str]) -> bool:
    """Return whether the response headers announce server-sent events."""
    return headers.get("content-type", "").startswith("text/event-stream")


def _event_end(body: bytes, start: int, marks: Sequence[bytes]) -> int:
    ends = [at + len(mark) for mark in marks if (at := body.find(mark, start)) != -1]
    return min(ends, default=-1)
