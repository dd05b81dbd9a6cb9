"""Recorded responses with replaced values, including values that a stream splits between deltas.

The texts of the deltas of one block are joined, and values are replaced in the joined text. A replacement is in the
delta in which the recorded value starts; the rest of that value is removed from the later deltas. Events without a
replaced value, and whole responses without one, keep their bytes. Thinking is never changed, because it is signed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentobs.provider.dialect import Block, DeltaShape
from agentobs.provider.registry import dialect_of, message_of
from agentobs.records.exchanges import Answer, Chunk
from replay.served.substitutions import Span, mapped

FindSpans = Callable[[str, Block | None], Sequence[Span]]
"""Returns the replacements for a text. The block is a call if the text is the JSON of its input; otherwise None."""


def with_replacements(answer: Answer, path: str, find: FindSpans) -> Answer:
    """Return a response with replaced values; the same object if nothing is replaced."""
    dialect = dialect_of(path)
    if not answer.chunks:
        return answer
    if dialect.is_binary(answer.headers):
        return _binary(answer, path, find)
    if not dialect.is_stream(answer.headers):
        return _whole(answer, path, find)
    shape, body = dialect.delta_shape, answer.body
    events = dialect.stream_chunks(answer.headers, body)
    if shape is None or len(events) < 2:
        return answer
    blocks = message_of(path, answer).blocks
    kinds = (*_CALLS, "reasoning")
    special = {at: block for at, block in enumerate(blocks) if block.kind in kinds}
    changed = _changed_events(events, shape, special, find)
    return replace(answer, chunks=_chunks(answer, events, changed)) if changed else answer


_CALLS = ("call", "provider_call")


def replaced(text: str, spans: Sequence[Span]) -> str:
    """Return a text with its replacements, which are in order and do not overlap."""
    parts, at = [], 0
    for start, end, new in spans:
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


def _whole(answer: Answer, path: str, find: FindSpans) -> Answer:
    """Return a response that is not streamed with replaced values."""
    data = _changed_message(answer.body, answer, path, find)
    if data == answer.body:
        return answer
    return replace(answer, chunks=(Chunk(data, answer.chunks[-1].after_ns),))


def _binary(answer: Answer, path: str, find: FindSpans) -> Answer:
    """Return a stream of frames with replaced values, as one chunk. Its events cannot be changed one by one, because
    they are encoded.
    """
    data = dialect_of(path).redacted_stream(
        answer.headers, answer.body, lambda text: _changed_message(text, answer, path, find)
    )
    if data is None:
        return answer
    return replace(answer, chunks=(Chunk(data, answer.chunks[-1].after_ns),))


def _changed_message(text: bytes, answer: Answer, path: str, find: FindSpans) -> bytes:
    """Return the JSON text of a message with replaced values; the same text if nothing is replaced."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    kinds = (*_CALLS, "reasoning")
    special = [block for block in message_of(path, answer).blocks if block.kind in kinds]
    new = _with_inputs(value, special, find)
    if new == value:
        return text
    return json.dumps(new, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def _with_inputs(value: Any, special: Sequence[Block], find: FindSpans) -> Any:
    """Return a JSON value with replaced texts. The input of a call is replaced as JSON text, as in a stream.

    `special` contains the calls, and the thinking, which is not changed.
    """
    if isinstance(value, list):
        return [_with_inputs(each, special, find) for each in value]
    if isinstance(value, dict):
        if any(each.kind == "reasoning" and each.raw == value for each in special):
            return value
        calls = (each for each in special if each.kind in _CALLS and each.id is not None)
        call = next((each for each in calls if value.get("id") == each.id), None)
        return {
            key: _input(inner, call, find)
            if call is not None and inner == call.value and isinstance(inner, dict)
            else _with_inputs(inner, special, find)
            for key, inner in value.items()
        }
    return mapped(value, lambda text: replaced(text, find(text, None)))


def _input(value: dict[str, Any], call: Block, find: FindSpans) -> Any:
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(replaced(text, find(text, call)))


@dataclass(slots=True)
class _Deltas:
    """The deltas of one block: their texts, and the event of each."""

    texts: list[str] = field(default_factory=list)
    events: list[int] = field(default_factory=list)


def _changed_events(
    events: Sequence[bytes], shape: DeltaShape, special: dict[int, Block], find: FindSpans
) -> dict[int, bytes]:
    """Return the events that change, by their position; `special` contains the calls and the thinking, by index."""
    changed: dict[int, bytes] = {}
    by_block: dict[int, _Deltas] = {}
    for at, event in enumerate(events):
        index = shape.index.search(event) if shape.index is not None else None
        block = special.get(int(index[1])) if index else None
        if block is not None and block.kind == "reasoning":
            continue
        text = _delta(event, shape)
        if text is None:
            if (new := _without_delta(event, find)) != event:
                changed[at] = new
            continue
        deltas = by_block.setdefault(int(index[1]) if index else 0, _Deltas())
        deltas.texts.append(text)
        deltas.events.append(at)
    for index_number, deltas in by_block.items():
        spans = find("".join(deltas.texts), special.get(index_number))
        for at, old, new_text in zip(
            deltas.events, deltas.texts, _distributed(deltas.texts, spans), strict=True
        ):
            if new_text != old:
                changed[at] = _with_delta(events[at], shape, new_text)
    return changed


def _delta(event: bytes, shape: DeltaShape) -> str | None:
    """Return the text of a delta; None if an event has none."""
    if shape.marker not in event:
        return None
    found = _field(event, shape)
    if found is None:
        return None
    try:
        text = json.loads(b'"' + found[1] + b'"', strict=False)
    except ValueError:
        return None
    return str(text)


def _field(event: bytes, shape: DeltaShape) -> re.Match[bytes] | None:
    return shape.text.search(event) or shape.field.search(event)


def _with_delta(event: bytes, shape: DeltaShape, text: str) -> bytes:
    found = _field(event, shape)
    assert found is not None  # the event has a delta
    start, end = found.span(1)
    return event[:start] + json.dumps(text)[1:-1].encode() + event[end:]


def _without_delta(event: bytes, find: FindSpans) -> bytes:
    """Return an event that is not a delta, such as the start of a block, with replaced values."""
    lines = event.split(b"\n")
    for at, line in enumerate(lines):
        if not line.startswith(b"data:"):
            continue
        try:
            value = json.loads(line[5:])
        except (ValueError, RecursionError):
            continue
        new = mapped(value, lambda text: replaced(text, find(text, None)))
        if new != value:
            lines[at] = b"data: " + json.dumps(new, separators=(",", ":")).encode()
    return b"\n".join(lines)


def _distributed(texts: Sequence[str], spans: Sequence[Span]) -> list[str]:
    """Return the texts of deltas with the replacements of their joined text."""
    found: list[str] = []
    start = 0
    for text in texts:
        end = start + len(text)
        parts, at = [], start
        for span in spans:
            is_insertion = span.start == span.end
            starts_here = start <= span.start < end
            if span.end < start or span.start >= end or (span.end == start and not is_insertion):
                continue
            if starts_here:
                parts += [text[at - start : span.start - start], span.text]
            at = min(max(at, span.end), end)
        parts.append(text[at - start :])
        found.append("".join(parts))
        start = end
    return found


def _chunks(
    answer: Answer, events: Sequence[bytes], changed: dict[int, bytes]
) -> tuple[Chunk, ...]:
    """Return one chunk for each event, with the time at which the last byte of the event arrived."""
    made: list[Chunk] = []
    ends: list[tuple[int, int]] = []
    size = 0
    for chunk in answer.chunks:
        size += len(chunk.data)
        ends.append((size, chunk.after_ns))
    at, position = 0, 0
    for number, event in enumerate(events):
        position += len(event)
        while at < len(ends) - 1 and ends[at][0] < position:
            at += 1
        made.append(Chunk(changed.get(number, event), ends[at][1]))
    return tuple(made)
