"""Edits: the differences between a request and the previous one, part by part, with equal text omitted.

Pure functions over two JSON bodies. The work is bounded as in `agentobs.records.differences`, and so is the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agentobs.provider.dialect import Block, Dialect
from agentobs.provider.registry import DIALECTS, dialect_of_body
from agentobs.records.canonical_json import Json
from agentobs.records.differences import Difference, common, differences, unequal
from dashboards.content.message_view import messages_of
from dashboards.content.visible_text import text_of, visible

MOST_EDITS = 60
MOST_LINES = 120
LINE = 400
"""The maximum numbers of edits per part, lines per edit and characters per line. Our choice."""
AROUND = 2
"""The number of equal lines shown before and after a difference."""
MOST_MARKS = 40
"""The maximum number of listed cache breakpoints; the provider accepts four per request."""

Sign = Literal["same", "added", "removed", "left"]
Change = Literal["changed", "added", "removed", "reordered"]


class Piece(NamedTuple):
    """A part of a line."""

    text: str
    is_changed: bool


class Line(NamedTuple):
    """A line of a difference; a `left` line describes what is omitted."""

    sign: Sign
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One difference."""

    path: str
    change: Change
    lines: tuple[Line, ...]
    more: int
    """The number of lines that are not shown."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a request: its options, tools, system prompt or messages."""

    name: str
    says: str
    """A summary of its changes."""
    edits: tuple[Edit, ...]
    more: int
    """The number of edits that are not shown."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The places of the cache breakpoints in both requests."""

    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edits:
    """The differences between two requests."""

    parts: tuple[Part, ...]
    marks: Marks


def edits(before: Json, after: Json) -> Edits:
    """Return the differences between two request bodies."""
    old, new = (each if isinstance(each, dict) else {"body": each} for each in (before, after))
    dialect = dialect_of_body(new)
    keys = dialect.head_keys
    parts = (
        _part("options", _options(old, dialect), _options(new, dialect)),
        *(
            _part(name, _only(old, keys[name], dialect), _only(new, keys[name], dialect))
            for name in _HEAD
            if name in keys
        ),
        _messages(old, new, dialect),
    )
    return Edits(parts, Marks(tuple(_marks(old, dialect)), tuple(_marks(new, dialect))))


_HEAD: tuple[Literal["tools", "system"], ...] = ("tools", "system")


def text_lines(old: str, new: str) -> list[Line]:
    """Return a line diff of two texts; equal lines are omitted, except around changes."""
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


def _options(body: Mapping[str, Json], dialect: Dialect) -> Json:
    others = {dialect.history_key, *dialect.head_keys.values()}
    return {k: v for k, v in body.items() if k not in others}


def _only(body: Mapping[str, Json], key: str, dialect: Dialect) -> Json:
    return {key: dialect.without_breakpoints(body[key])} if key in body else {}


def _part(name: str, old: Json, new: Json) -> Part:
    if old == new:
        return Part(name, "unchanged" if old else "absent in both", (), 0)
    found = differences(old, new)
    return _summarized(name, found, f"{_count(len(found), 'place')} changed")


def _messages(old: Mapping[str, Json], new: Mapping[str, Json], dialect: Dialect) -> Part:
    before, after = (
        [dialect.without_breakpoints(each) for each in messages_of(body)] for body in (old, new)
    )
    key = dialect.history_key
    found = differences({key: before}, {key: after})
    fresh = sum(each.change == "added" and len(each.keys) == 2 for each in found)
    gone = sum(each.change == "removed" and len(each.keys) == 2 for each in found)
    touched = {each.keys[1] for each in found if len(each.keys) > 2}
    same = max(len(after) - fresh - len(touched), 0)
    says = [f"{same:,} of {_count(len(before), 'message')} unchanged"]
    says += [f"{fresh:,} added"] if fresh else []
    says += [f"{len(touched):,} changed"] if touched else []
    says += [f"{gone:,} removed"] if gone else []
    return _summarized("messages", found, ", ".join(says), dialect)


def _summarized(
    name: str, found: Sequence[Difference], says: str, dialect: Dialect = DIALECTS[0]
) -> Part:
    made = tuple(_edit(each, dialect) for each in found[:MOST_EDITS])
    return Part(name, says, made, max(len(found) - MOST_EDITS, 0))


def _edit(found: Difference, dialect: Dialect) -> Edit:
    if found.change == "changed":
        lines = text_lines(text_of(found.expected), text_of(found.actual))
    elif found.change == "reordered":
        lines = [_left("same elements, different order")]
        lines += text_lines(_names(found.expected), _names(found.actual))
    else:
        value = found.actual if found.change == "added" else found.expected
        sign: Sign = "added" if found.change == "added" else "removed"
        lines = [_line(sign, each) for each in _readable(value, dialect).split("\n")]
    more = max(len(lines) - MOST_LINES, 0)
    return Edit(visible(found.path), found.change, tuple(lines[:MOST_LINES]), more)


def _readable(value: Json, dialect: Dialect) -> str:
    """Return a message as readable text, and anything else as JSON."""
    turn = dialect.turn(value)
    if turn.role == "other" or not turn.blocks:
        return text_of(value)
    return "\n".join([f"{turn.role}:", *map(_block, turn.blocks)])


def _block(block: Block) -> str:
    match block.kind:
        case "text" if block.text:
            return block.text
        case "reasoning" if block.text:
            return f"thinks: {block.text}"
        case "call":
            return f"calls {block.name} ({block.id or ''}): {text_of(block.value)}"
        case "result":
            failed = "error" if block.is_error else "result"
            return f"{failed} of {block.id}: {text_of('' if block.value is None else block.value)}"
        case _:
            return text_of(dict(block.raw))


def _names(value: Json) -> str:
    listed = value if isinstance(value, list) else [value]
    return "\n".join(
        str(each["name"]) if isinstance(each, dict) and "name" in each else text_of(each)
        for each in listed
    )


def _equal(lines: Sequence[str], *, is_first: bool, is_last: bool = False) -> Iterator[Line]:
    """Yield the equal lines near a change, and the number of omitted lines."""
    before = 0 if is_first else AROUND
    behind = 0 if is_last else AROUND
    if len(lines) <= before + behind + 1:
        yield from (_line("same", each) for each in lines)
        return
    yield from (_line("same", each) for each in lines[:before])
    yield _left(f"{len(lines) - before - behind:,} equal lines")
    yield from (_line("same", each) for each in lines[len(lines) - behind :])


def _changed(old: str, new: str) -> Iterator[Line]:
    """Yield a changed line before and after, with the change highlighted; long equal ends are omitted."""
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


def _marks(value: Json, dialect: Dialect) -> Iterator[str]:
    """Yield the places of cache breakpoints."""
    waiting: list[tuple[str, Json]] = [("", value)]
    found = 0
    while waiting and found < MOST_MARKS:
        at, inner = waiting.pop()
        if isinstance(inner, dict):
            lifetime = dialect.breakpoint_of(inner)
            if lifetime is not None:
                found += 1
                yield visible(f"{at or 'request'}{f' ({lifetime})' if lifetime else ''}")
            waiting += [
                (f"{at}.{key}" if at else str(key), each)
                for key, each in reversed(inner.items())
                if isinstance(each, dict | list) and key != "input"
            ]
        elif isinstance(inner, list):
            waiting += [(f"{at}[{n}]", inner[n]) for n in reversed(range(len(inner)))]
