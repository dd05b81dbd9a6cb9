"""Rendering of a divergence for people: one line first, the difference, then facts, each after its label."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from agentobs.records.display import listed
from replay.agent_code.call_sites import Site
from replay.comparison.alignment import aligned, safe, width
from replay.comparison.difference_kinds import NATURES
from replay.divergence.divergence_facts import DivergenceFacts, Left, Waiting

DIFFER = "the requests differ"
"""The summary that needs no line, because the difference is shown."""
COMPUTES = "computes"
"""The activity of a thread that waits for nothing, in `Waiting.what`."""
COLUMNS = 100
"""The default width of a report. Our choice: it fits into every review tool."""
COLUMNS_MIN = 60
"""Below this width each line would hold one word."""
MARGIN = 13
"""Columns before the text of a fact: two blanks, its label, a blank."""
SHOWN = 6
"""How many lanes, tasks and earlier facts are shown; of the rest, only the number."""


def told(found: DivergenceFacts, columns: int = COLUMNS) -> str:
    """Return the report of a divergence, with no line longer than `columns` except commands."""
    columns = max(columns, COLUMNS_MIN)
    lines = [*_head(found, columns), ""]
    if not found.differences or found.summary != DIFFER:
        lines += [*_wrapped(found.summary, 2, columns), ""]
    for difference in found.differences:
        lines += _wrapped(difference.path, 2, columns)
        lines += [f"    {line}" for line in aligned(difference, columns - 4)]
        lines.append("")
    if found.more:
        lines += [f"  and {found.more:,} more difference{'s' * (found.more != 1)}", ""]
    for name, facts in _facts(found):
        for at, (fact, site) in enumerate(facts):
            shown = [fact] if name == "next" else _wrapped(fact, MARGIN, columns, site)
            first = f"  {name if at == 0 else '':<10} {shown[0].strip()}"
            lines += [first, *shown[1:]]
    return "\n".join(line.rstrip() for line in lines)


def explanation(found: DivergenceFacts, columns: int = COLUMNS) -> str:
    """Return the trace from a difference to its origin, one step per line."""
    columns = max(columns, COLUMNS_MIN)
    lines = ["", "  causal chain"]
    for at, link in enumerate(found.chain):
        lead = "    " if at == 0 else f"    {'  ' * (at - 1)}<- "
        wrapped = _wrapped(link.what, len(lead), columns, link.site)
        lines += [lead + wrapped[0].strip(), *wrapped[1:]]
    if not found.chain:
        lines.append("    the chain ends here")
    if found.left.following:
        lines += ["", "  next in the recording"]
        lines += [line for each in found.left.following for line in _wrapped(each, 4, columns)]
    return "\n".join(line.rstrip() for line in lines)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 call`, `2 calls`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _head(found: DivergenceFacts, columns: int) -> list[str]:
    p = found.progress
    parts = [f"{p.requests_matched} of {p.requests} requests"]
    parts += [f"{p.tools_matched} of {p.tools} tool calls"] if p.tools else []
    parts += [f"{p.answers_matched} of {p.answers} other questions"] if p.answers else []
    attempt = f", attempt {found.attempt}" if found.attempt > 1 else ""
    turn = f", turn {found.turn}" if found.turn else ""
    where = f"{safe(found.lane)}, request {found.number} of {found.of}{attempt}{turn}"
    if found.number > found.of:
        where = f"{safe(found.lane)}, after request {found.of} of {found.of}"
    if not found.of:
        where = f"{safe(found.lane)}, which has no request in the recording"
    first = f"DIVERGED  {safe(found.fixture)}  {where}"
    matched = f"({listed(parts)} matched)"
    if width(first) + 3 + len(matched) <= columns:
        return [f"{first}   {matched}"]
    return [_short(first, columns), *_wrapped(matched, 10, columns)]


Fact = tuple[str, Site | None]
"""A fact, and the place in the code that is shown after it."""


def _facts(found: DivergenceFacts) -> Iterator[tuple[str, list[Fact]]]:
    """Yield the known facts, each with its label."""
    cause = found.cause
    site = cause.site if cause else None
    yield from _present("why", [_why(found)], site)
    yield from _present("kind", [_kind(found)])
    yield from _present("rules", _proposed(found))
    yield from _present("hidden", [listed(found.normalized)])
    changed = [f"{v.package} {v.recorded} then, {v.now} now" for v in found.versions]
    yield from _present("versions", [listed(changed)])
    yield from _present(
        "asked at", [safe(found.sent.text) if found.sent != site and found.sent else ""]
    )
    yield from _present("earlier", _some([safe(each.text) for each in found.suspicions]))
    lanes = [f"{safe(each.lane)} {each.asked} of {each.of}" for each in found.lanes]
    yield from _present("lanes", [listed(_some(lanes))] if len(lanes) > 1 else [])
    yield from _present("waiting", _some(_waits(found)))
    yield from _present("after it", [after(found.left)])
    yield from _present("next", list(found.commands))


def _present(
    name: str, facts: Iterable[str], site: Site | None = None
) -> Iterator[tuple[str, list[Fact]]]:
    known = [(fact, site) for fact in facts if fact]
    if known:
        yield name, known


def _some(facts: list[str]) -> list[str]:
    left = len(facts) - SHOWN
    return [*facts[:SHOWN], f"{left} more"] if left > 0 else facts


def _why(found: DivergenceFacts) -> str:
    cause = found.cause
    if cause is None:
        return ""
    holds = f"; it contains {cause.contains}" if cause.contains else ""
    return f"{cause.text}{holds}"


def _kind(found: DivergenceFacts) -> str:
    words = [found.kind, *([NATURES[found.nature]] if found.nature else [])]
    return ", ".join(words)


def _proposed(found: DivergenceFacts) -> list[str]:
    """Return the rules that would hide differences with what each hides, and how to enable them."""
    if not found.proposals:
        return []
    names = json.dumps([each.rule for each in found.proposals])
    hidden = [safe(each.text) for each in found.proposals]
    return [f"would hide it: {'; '.join(hidden)}", f"to add: normalizers={names}"]


def _waits(found: DivergenceFacts) -> list[str]:
    """Return where tasks wait, each place once; with what they wait for, if known."""
    places = Counter(each.site for each in found.waiting if not each.what)
    known = [
        f"{safe(each.task)} {_doing(each)} at {safe(each.site.text)}"
        for each in found.waiting
        if each.what
    ]
    return [
        *known,
        *(f"{count(number, 'task')} at {safe(site.text)}" for site, number in places.items()),
    ]


def _doing(waiting: Waiting) -> str:
    return waiting.what if waiting.what == COMPUTES else f"waits for {safe(waiting.what)}"


def after(left: Left) -> str:
    """Return the unused part of the recording, in a sentence; empty if nothing is left."""
    parts = [count(left.requests, "recorded request")] if left.requests > 0 else []
    parts += [count(left.tools, "tool call")] if left.tools > 0 else []
    parts += [count(left.answers, "other question")] if left.answers > 0 else []
    return f"{listed(parts)} never made" if parts else ""


def _wrapped(text: str, margin: int, columns: int, site: Site | None = None) -> list[str]:
    """Return text in lines of at most `columns`, each after a margin; words that are too long are broken.

    A place in the code follows the text, or gets a line of its own, and is never broken, so that editors recognize it.
    """
    room, lines, line = columns - margin, list[str](), ""
    for word in _words(text, room):
        joined = f"{line}{word}" if line else word.lstrip(" ")
        if width(joined.rstrip(" ")) > room and line:
            lines.append(line)
            joined = word.lstrip(" ")
        line = joined
    at = safe(site.text) if site else ""
    if at and width(line) + 3 + width(at) <= room:
        line, at = f"{line}   {at}", ""
    return [" " * margin + each.rstrip(" ") for each in [*lines, line, *([at] if at else [])]]


def _words(text: str, room: int) -> Iterator[str]:
    """Yield words with the blanks before them, none wider than `columns`."""
    word = ""
    for character in safe(text):
        if (character == " " and word.strip(" ")) or width(word.strip(" ") + character) > room:
            yield word
            word = ""
        word += character
    yield word


def _short(text: str, columns: int) -> str:
    while width(text) > columns:
        text = text[: max(len(text) - 2, 1)].rstrip("…") + "…"
    return text
