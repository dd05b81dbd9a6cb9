"""Edits: the differences between a request and the previous one, part by part, with equal text omitted.

Pure functions of two JSON bodies. Time is bounded as in `agentobs.records.differences`; the output is bounded as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agentobs.provider.dialect import Block, Dialect
from agentobs.provider.registry import DIALECTS, dialect_of_body
from agentobs.records.canonical_json import Json
from agentobs.records.differences import Difference, common_prefix, differences, unequal_spans
from dashboards.content.message_view import messages_of
from dashboards.content.visible_text import text_of, visible

MOST_EDITS = 60
MOST_LINES = 120
MOST_CHARACTERS = 400
"""The maximum numbers of edits per part, of lines per edit, and of characters per line. Our choice."""
CONTEXT_LINES = 2
"""The number of unchanged lines shown before and after a change."""
MOST_WORDS = 5_000
"""The maximum number of words of a text that are compared one by one. Our choice."""
LEAST_SHARE = 0.3
"""If a smaller share of the characters of two texts is equal, the texts are shown as completely different. Our
choice.
"""
MOST_BREAKPOINTS = 40
"""The maximum number of listed cache breakpoints; the provider accepts four per request."""

Sign = Literal["same", "added", "removed", "omitted"]
Change = Literal["changed", "added", "removed", "reordered"]


class Fragment(NamedTuple):
    """A part of a line."""

    text: str
    is_changed: bool


class Line(NamedTuple):
    """A line of a difference; an `omitted` line describes the lines that are left out."""

    sign: Sign
    fragments: tuple[Fragment, ...]


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
    summary: str
    """A summary of the changes in this part."""
    edits: tuple[Edit, ...]
    more: int
    """The number of edits that are not shown."""


@dataclass(frozen=True, slots=True)
class Breakpoints:
    """The places of the cache breakpoints in both requests."""

    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edits:
    """The differences between two requests."""

    parts: tuple[Part, ...]
    breakpoints: Breakpoints


def edits(before: Json, after: Json) -> Edits:
    """Return the differences between two request bodies."""
    old, new = (each if isinstance(each, dict) else {"body": each} for each in (before, after))
    dialect = dialect_of_body(new)
    keys = dialect.prompt_keys
    parts = (
        _part("options", _options(old, dialect), _options(new, dialect)),
        *(
            _part(
                name, _cached_part(old, keys[name], dialect), _cached_part(new, keys[name], dialect)
            )
            for name in _CACHED_PARTS
            if name in keys
        ),
        _messages(old, new, dialect),
    )
    return Edits(
        parts, Breakpoints(tuple(_breakpoints(old, dialect)), tuple(_breakpoints(new, dialect)))
    )


_CACHED_PARTS: tuple[Literal["tools", "system"], ...] = ("tools", "system")


def text_lines(old: str, new: str) -> list[Line]:
    """Return a line diff of two texts, with the changed words marked. Unchanged lines are omitted, except near
    changes.
    """
    a, b = old.split("\n"), new.split("\n")
    lines: list[Line] = []
    at_a = 0
    for a1, a2, b1, b2 in unequal_spans(a, b):
        lines += _unchanged_lines(a[at_a:a1], is_first=at_a == 0)
        if a2 - a1 == b2 - b1:
            for one, other in zip(a[a1:a2], b[b1:b2], strict=True):
                lines += _changed_lines(one, other)
        elif a1 == a2 or b1 == b2:
            lines += [_line("removed", each) for each in a[a1:a2]]
            lines += [_line("added", each) for each in b[b1:b2]]
        else:
            lines += _changed_lines("\n".join(a[a1:a2]), "\n".join(b[b1:b2]))
        at_a = a2
    return [*lines, *_unchanged_lines(a[at_a:], is_first=not lines, is_last=True)]


def _options(body: Mapping[str, Json], dialect: Dialect) -> Json:
    others = {dialect.history_key, *dialect.prompt_keys.values()}
    return {k: v for k, v in body.items() if k not in others}


def _cached_part(body: Mapping[str, Json], key: str, dialect: Dialect) -> Json:
    return {key: dialect.without_breakpoints(body[key])} if key in body else {}


def _part(name: str, old: Json, new: Json) -> Part:
    if old == new:
        return Part(name, "unchanged" if old else "not set in either request", (), 0)
    found = differences(old, new)
    return _summarized(name, found, _count(len(found), "change"))


def _messages(old: Mapping[str, Json], new: Mapping[str, Json], dialect: Dialect) -> Part:
    before, after = (
        [dialect.without_breakpoints(each) for each in messages_of(body)] for body in (old, new)
    )
    key = dialect.history_key
    found = differences({key: before}, {key: after})
    added = sum(each.change == "added" and len(each.keys) == 2 for each in found)
    removed = sum(each.change == "removed" and len(each.keys) == 2 for each in found)
    changed = {each.keys[1] for each in found if len(each.keys) > 2}
    unchanged = max(len(after) - added - len(changed), 0)
    phrases = [f"{unchanged:,} of {_count(len(before), 'message')} unchanged"]
    phrases += [f"{added:,} added"] if added else []
    phrases += [f"{len(changed):,} changed"] if changed else []
    phrases += [f"{removed:,} removed"] if removed else []
    return _summarized("messages", found, ", ".join(phrases), dialect)


def _summarized(
    name: str, found: Sequence[Difference], summary: str, dialect: Dialect = DIALECTS[0]
) -> Part:
    edits_shown = tuple(_edit(each, dialect) for each in found[:MOST_EDITS])
    return Part(name, summary, edits_shown, max(len(found) - MOST_EDITS, 0))


def _edit(found: Difference, dialect: Dialect) -> Edit:
    if found.change == "changed":
        lines = text_lines(text_of(found.expected), text_of(found.actual))
    elif found.change == "reordered":
        lines = [_omission("same elements, different order")]
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
            return f"thinking: {block.text}"
        case "call":
            return f"calls {block.name} ({block.id or ''}): {text_of(block.value)}"
        case "result":
            failed = "error" if block.is_error else "result"
            return (
                f"{failed} from {block.id}: {text_of('' if block.value is None else block.value)}"
            )
        case _:
            return text_of(dict(block.raw))


def _names(value: Json) -> str:
    listed = value if isinstance(value, list) else [value]
    return "\n".join(
        str(each["name"]) if isinstance(each, dict) and "name" in each else text_of(each)
        for each in listed
    )


def _unchanged_lines(
    lines: Sequence[str], *, is_first: bool, is_last: bool = False
) -> Iterator[Line]:
    """Yield the unchanged lines near a change, and the number of omitted lines."""
    lines_before = 0 if is_first else CONTEXT_LINES
    lines_after = 0 if is_last else CONTEXT_LINES
    if len(lines) <= lines_before + lines_after + 1:
        yield from (_line("same", each) for each in lines)
        return
    yield from (_line("same", each) for each in lines[:lines_before])
    yield _omission(f"{len(lines) - lines_before - lines_after:,} unchanged lines")
    yield from (_line("same", each) for each in lines[len(lines) - lines_after :])


_WORDS = re.compile(r"\w+|\s+|[^\w\s]")


def _changed_lines(old: str, new: str) -> Iterator[Line]:
    """Yield the old and the new version of some lines, with the changed words marked. Long texts are shortened."""
    start = common_prefix(old, new)
    end = common_prefix(old[start:][::-1], new[start:][::-1])
    signs: tuple[tuple[Sign, list[Fragment]], ...] = (("removed", []), ("added", []))
    for fragments, text in zip((each for _, each in signs), (old, new), strict=True):
        fragments += [Fragment(text[:start], False), Fragment(text[start : len(text) - end], True)]
        fragments.append(Fragment(text[len(text) - end :], False))
    words = _words(old, new)
    if words is not None:
        for (_, fragments), found in zip(signs, words, strict=True):
            fragments[:] = found
    for sign, fragments in signs:
        for line in _split(fragments):
            shown = enumerate(line)
            yield Line(sign, tuple(_shortened(at, len(line), each) for at, each in shown))


def _words(old: str, new: str) -> tuple[list[Fragment], list[Fragment]] | None:
    """Return two texts as changed and unchanged words; None if they are too long, or have too little in common."""
    a, b = (_WORDS.findall(each) for each in (old[: 20 * MOST_WORDS], new[: 20 * MOST_WORDS]))
    if max(len(a), len(b)) > MOST_WORDS or max(len(old), len(new)) > 20 * MOST_WORDS:
        return None
    sides: tuple[list[Fragment], list[Fragment]] = ([], [])
    at_a, equal = 0, 0
    for a1, a2, b1, b2 in [*unequal_spans(a, b), (len(a), len(a), len(b), len(b))]:
        same = "".join(a[at_a:a1])
        equal += len(same.strip())
        for fragments, changed in zip(sides, (a[a1:a2], b[b1:b2]), strict=True):
            fragments += [Fragment(same, False), Fragment("".join(changed), True)]
        at_a = a2
    return sides if equal >= LEAST_SHARE * max(len(old), len(new)) else None


def _split(fragments: Sequence[Fragment]) -> list[list[Fragment]]:
    """Return the lines of a text, each as a list of fragments."""
    lines: list[list[Fragment]] = [[]]
    for text, is_changed in fragments:
        first, *others = text.split("\n")
        lines[-1].append(Fragment(first, is_changed))
        lines += [[Fragment(each, is_changed)] for each in others]
    return [[each for each in line if each.text] for line in lines]


def _shortened(at: int, count: int, fragment: Fragment) -> Fragment:
    """Return the fragment at a position of a line, shortened where it is far from a change."""
    if fragment.is_changed or count == 1:
        return Fragment(_shortened_middle(fragment.text), fragment.is_changed)
    shorten = (
        _shortened_start if at == 0 else _shortened_end if at == count - 1 else _shortened_middle
    )
    return Fragment(shorten(fragment.text), False)


def _shortened_start(text: str) -> str:
    kept = text[-MOST_CHARACTERS // 4 :]
    return (
        visible(kept)
        if len(kept) == len(text)
        else f"… {_omitted_characters(text, kept)} …{visible(kept)}"
    )


def _shortened_end(text: str) -> str:
    kept = text[: MOST_CHARACTERS // 4]
    return (
        visible(kept)
        if len(kept) == len(text)
        else f"{visible(kept)}… {_omitted_characters(text, kept)} …"
    )


def _shortened_middle(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return visible(text)
    first, last = text[: MOST_CHARACTERS // 2], text[-MOST_CHARACTERS // 2 :]
    return f"{visible(first)}… {_omitted_characters(text, first + last)} …{visible(last)}"


def _line(sign: Sign, text: str) -> Line:
    return Line(sign, (Fragment(_shortened_middle(text), False),))


def _omission(text: str) -> Line:
    return Line("omitted", (Fragment(text, False),))


def _omitted_characters(text: str, kept: str) -> str:
    return _count(len(text) - len(kept), "character")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _breakpoints(value: Json, dialect: Dialect) -> Iterator[str]:
    """Yield the places of cache breakpoints."""
    pending: list[tuple[str, Json]] = [("", value)]
    found = 0
    while pending and found < MOST_BREAKPOINTS:
        path, inner = pending.pop()
        if isinstance(inner, dict):
            lifetime = dialect.breakpoint_of(inner)
            if lifetime is not None:
                found += 1
                yield visible(f"{path or 'request'}{f' ({lifetime})' if lifetime else ''}")
            pending += [
                (f"{path}.{key}" if path else str(key), each)
                for key, each in reversed(inner.items())
                if isinstance(each, dict | list) and key != "input"
            ]
        elif isinstance(inner, list):
            pending += [(f"{path}[{n}]", inner[n]) for n in reversed(range(len(inner)))]
