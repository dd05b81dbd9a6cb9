"""Edits: what one request has otherwise than the one before it, part by part, with equal text left out.

Pure functions over two JSON bodies. The work is bounded as in `agentobs.records.differences`, and so is what is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agentobs.records.canonical_json import Json
from agentobs.records.differences import Difference, common, differences, unequal
from dashboards.content.message_view import messages_of, unmarked
from dashboards.content.visible_text import text_of, visible

MOST_EDITS = 60
MOST_LINES = 120
LINE = 400
"""How many edits of a part, lines of an edit and characters of a line are shown. Our choice."""
AROUND = 2
"""How many equal lines are shown before and behind those that differ."""
MOST_MARKS = 40
"""How many marks of the cache are listed; the provider takes four in a request."""

Sign = Literal["same", "added", "removed", "left"]
Change = Literal["changed", "added", "removed", "reordered"]


class Piece(NamedTuple):
    """A part of a line."""

    text: str
    is_changed: bool


class Line(NamedTuple):
    """A line of a difference; `left` says what is left out."""

    sign: Sign
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One place where the two differ."""

    path: str
    change: Change
    lines: tuple[Line, ...]
    more: int
    """How many lines it has beyond those."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a request: its options, tools, system prompt or messages."""

    name: str
    says: str
    """What became of it, in words."""
    edits: tuple[Edit, ...]
    more: int
    """How many edits there are beyond those."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Where the marks of the cache stand in the two."""

    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edits:
    """What one request has otherwise than another."""

    parts: tuple[Part, ...]
    marks: Marks


def edits(before: Json, after: Json) -> Edits:
    """Return what `after` has otherwise than `before`; both are bodies of requests."""
    old, new = (each if isinstance(each, dict) else {"body": each} for each in (before, after))
    parts = (
        _part("options", _options(old), _options(new)),
        _part("tools", _only(old, "tools"), _only(new, "tools")),
        _part("system", _only(old, "system"), _only(new, "system")),
        _messages(old, new),
    )
    return Edits(parts, Marks(tuple(_marks(old)), tuple(_marks(new))))


def text_lines(old: str, new: str) -> list[Line]:
    """Return two texts as one, line by line, equal lines left out but for those around."""
    a, b = old.split("\n"), new.split("\n")
    lines: list[Line] = []
    at_a = 0
    for a1, a2, b1, b2 in unequal(a, b):
        lines += _equal(a[at_a:a1], is_first=at_a == 0)
        if a2 - a1 == b2 - b1:
            for one, other in zip(a[a1:a2], b[b1:b2], strict=True):
                lines += _changed(one, other)
        else:
            lines += [_line("removed", each) for each in a[a1:a2]]
            lines += [_line("added", each) for each in b[b1:b2]]
        at_a = a2
    return [*lines, *_equal(a[at_a:], is_first=not lines, is_last=True)]


def _options(body: Mapping[str, Json]) -> Json:
    return {k: v for k, v in body.items() if k not in ("tools", "system", "messages")}


def _only(body: Mapping[str, Json], key: str) -> Json:
    return {key: unmarked(body[key])} if key in body else {}


def _part(name: str, old: Json, new: Json) -> Part:
    if old == new:
        return Part(name, "the same" if old else "none in either", (), 0)
    found = differences(old, new)
    return _told(name, found, f"{_count(len(found), 'place')} changed")


def _messages(old: Mapping[str, Json], new: Mapping[str, Json]) -> Part:
    before, after = unmarked(messages_of(old)), unmarked(messages_of(new))
    found = differences({"messages": before}, {"messages": after})
    fresh = sum(each.change == "added" and len(each.keys) == 2 for each in found)
    gone = sum(each.change == "removed" and len(each.keys) == 2 for each in found)
    touched = {each.keys[1] for each in found if len(each.keys) > 2}
    same = max(len(after) - fresh - len(touched), 0)
    says = [f"{same:,} of {_count(len(before), 'message')} as before"]
    says += [f"{fresh:,} added"] if fresh else []
    says += [f"{len(touched):,} changed"] if touched else []
    says += [f"{gone:,} removed"] if gone else []
    return _told("messages", found, ", ".join(says))


def _told(name: str, found: Sequence[Difference], says: str) -> Part:
    made = tuple(_edit(each) for each in found[:MOST_EDITS])
    return Part(name, says, made, max(len(found) - MOST_EDITS, 0))


def _edit(found: Difference) -> Edit:
    if found.change == "changed":
        lines = text_lines(text_of(found.expected), text_of(found.actual))
    elif found.change == "reordered":
        lines = [_left("the same elements in another order")]
        lines += text_lines(_names(found.expected), _names(found.actual))
    else:
        value = found.actual if found.change == "added" else found.expected
        sign: Sign = "added" if found.change == "added" else "removed"
        lines = [_line(sign, each) for each in _readable(value).split("\n")]
    more = max(len(lines) - MOST_LINES, 0)
    return Edit(visible(found.path), found.change, tuple(lines[:MOST_LINES]), more)


def _readable(value: Json) -> str:
    """Return a message with its blocks as they read, and anything else as JSON."""
    if not (isinstance(value, dict) and isinstance(value.get("content"), list)):
        return text_of(value)
    return "\n".join([f"{value.get('role', '')}:", *map(_block, value["content"])])


def _block(block: Json) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "thinking", "thinking": str(text)}:
            return f"thinks: {text}"
        case {"type": "tool_use", "name": name, "input": given}:
            return f"calls {name} ({block.get('id', '')}): {text_of(given)}"
        case {"type": "tool_result", "tool_use_id": call}:
            failed = "error" if block.get("is_error") else "result"
            return f"{failed} of {call}: {text_of(block.get('content', ''))}"
        case _:
            return text_of(block)


def _names(value: Json) -> str:
    listed = value if isinstance(value, list) else [value]
    return "\n".join(
        str(each["name"]) if isinstance(each, dict) and "name" in each else text_of(each)
        for each in listed
    )


def _equal(lines: Sequence[str], *, is_first: bool, is_last: bool = False) -> Iterator[Line]:
    """Yield equal lines: those that are near a change, and how many are left out."""
    before = 0 if is_first else AROUND
    behind = 0 if is_last else AROUND
    if len(lines) <= before + behind + 1:
        yield from (_line("same", each) for each in lines)
        return
    yield from (_line("same", each) for each in lines[:before])
    yield _left(f"{len(lines) - before - behind:,} equal lines")
    yield from (_line("same", each) for each in lines[len(lines) - behind :])


def _changed(old: str, new: str) -> Iterator[Line]:
    """Yield two lines that stand for each other, what is other in them marked; equal ends of long ones left out."""
    start = common(old, new)
    end = common(old[start:][::-1], new[start:][::-1])
    signs: tuple[tuple[Sign, str], ...] = (("removed", old), ("added", new))
    for sign, text in signs:
        head, middle, tail = text[:start], text[start : len(text) - end], text[len(text) - end :]
        yield Line(
            sign,
            (
                Piece(_ending(head), False),
                Piece(_middle(middle), True),
                Piece(_beginning(tail), False),
            ),
        )


def _ending(text: str) -> str:
    kept = text[-LINE // 4 :]
    return (
        visible(kept) if len(kept) == len(text) else f"… {_left_out(text, kept)} …{visible(kept)}"
    )


def _beginning(text: str) -> str:
    kept = text[: LINE // 4]
    return (
        visible(kept) if len(kept) == len(text) else f"{visible(kept)}… {_left_out(text, kept)} …"
    )


def _middle(text: str) -> str:
    if len(text) <= LINE:
        return visible(text)
    first, last = text[: LINE // 2], text[-LINE // 2 :]
    return f"{visible(first)}… {_left_out(text, first + last)} …{visible(last)}"


def _line(sign: Sign, text: str) -> Line:
    return Line(sign, (Piece(_middle(text), False),))


def _left(text: str) -> Line:
    return Line("left", (Piece(text, False),))


def _left_out(text: str, kept: str) -> str:
    return _count(len(text) - len(kept), "character")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _marks(value: Json, path: str = "") -> Iterator[str]:
    """Yield the places that carry a mark of the cache."""
    waiting: list[tuple[str, Json]] = [(path, value)]
    found = 0
    while waiting and found < MOST_MARKS:
        at, inner = waiting.pop()
        if isinstance(inner, dict):
            if isinstance(inner.get("cache_control"), dict):
                found += 1
                lifetime = inner["cache_control"].get("ttl")
                yield visible(f"{at or 'request'}{f' ({lifetime})' if lifetime else ''}")
            waiting += [
                (f"{at}.{key}" if at else str(key), each)
                for key, each in reversed(inner.items())
                if isinstance(each, dict | list) and key != "input"
            ]
        elif isinstance(inner, list):
            waiting += [(f"{at}[{n}]", inner[n]) for n in reversed(range(len(inner)))]
