"""Rendering of a divergence as text: a summary line, the differences, and labeled facts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from agentobs.records.display import listed
from replay.agent_code.call_sites import Site
from replay.comparison.alignment import aligned, safe, width
from replay.comparison.difference_kinds import NATURES
from replay.divergence.divergence_facts import DivergenceFacts, UnusedExchanges, Waiting

DIFFER = "the requests differ"
"""The summary that is not printed, because the difference itself is shown."""
COMPUTES = "computes"
"""The value of `Waiting.what` for a thread that is not waiting."""
COLUMNS = 100
"""The default width of a report. Our choice, so that reports fit into code review tools."""
COLUMNS_MIN = 60
"""The minimum width; in narrower reports, each line would contain only one word."""
MARGIN = 13
"""The number of columns before the text of a fact: two spaces, the label, and a space."""
SHOWN = 6
"""The maximum number of lanes, tasks and earlier events that are shown; the others are counted."""
FILE_LINES = 40
"""The maximum number of lines of the diff of files that a report shows; `--explain` shows more. Our choice."""


def report_text(found: DivergenceFacts, columns: int = COLUMNS) -> str:
    """Return the report of a divergence. No line is longer than `columns`, except for commands."""
    columns = max(columns, COLUMNS_MIN)
    lines = [*_first_lines(found, columns), ""]
    if not found.differences or found.summary != DIFFER:
        lines += [*_wrapped(found.summary, 2, columns), ""]
    for difference in found.differences:
        lines += _wrapped(difference.path, 2, columns)
        lines += [f"    {line}" for line in aligned(difference, columns - 4)]
        lines.append("")
    if found.file_diff:
        shown = _limited(list(found.file_diff), FILE_LINES)
        lines += [*(f"    {each}" for each in shown), ""]
    if found.more:
        lines += [f"  and {found.more:,} more difference{'s' * (found.more != 1)}", ""]
    for name, facts in _facts(found):
        for at, (fact, site) in enumerate(facts):
            shown = [fact] if name == "next" else _wrapped(fact, MARGIN, columns, site)
            first = f"  {name if at == 0 else '':<10} {shown[0].strip()}"
            lines += [first, *shown[1:]]
    return "\n".join(line.rstrip() for line in lines)


def explanation(found: DivergenceFacts, columns: int = COLUMNS) -> str:
    """Return the causal chain from a difference to its origin, one step per line, and the next recorded steps."""
    columns = max(columns, COLUMNS_MIN)
    lines = ["", "  files", *(f"    {each}" for each in found.file_diff)] if found.file_diff else []
    lines += ["", "  causal chain"]
    for at, link in enumerate(found.chain):
        indent = "    " if at == 0 else f"    {'  ' * (at - 1)}<- "
        wrapped = _wrapped(link.what, len(indent), columns, link.site)
        lines += [indent + wrapped[0].strip(), *wrapped[1:]]
    if not found.chain:
        lines.append("    unknown")
    if found.left.following:
        lines += ["", "  next in the recording"]
        lines += [line for each in found.left.following for line in _wrapped(each, 4, columns)]
    return "\n".join(line.rstrip() for line in lines)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 call`, `2 calls`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _first_lines(found: DivergenceFacts, columns: int) -> list[str]:
    p = found.progress
    parts = [f"{p.requests_matched} of {p.requests} requests"]
    parts += [f"{p.tools_matched} of {p.tools} tool calls"] if p.tools else []
    parts += [f"{p.answers_matched} of {p.answers} other exchanges"] if p.answers else []
    attempt = f", attempt {found.attempt}" if found.attempt > 1 else ""
    turn = f", turn {found.turn}" if found.turn else ""
    where = f"{safe(found.lane)}, request {found.number} of {found.of}{attempt}{turn}"
    if found.number > found.of:
        where = f"{safe(found.lane)}, after request {found.of} of {found.of}"
    if not found.of:
        where = f"{safe(found.lane)}, which has no requests in the recording"
    first = f"DIVERGED  {safe(found.fixture)}  {where}"
    matched = f"({listed(parts)} matched)"
    if width(first) + 3 + len(matched) <= columns:
        return [f"{first}   {matched}"]
    return [_short(first, columns), *_wrapped(matched, 10, columns)]


_CONNECTION_FIX = (
    "decorate the tool with agentobs.record_tool, or pass its HTTP client to agentobs.record(), and record the session "
    "again; ReplayOptions(network=True) permits connections"
)

Fact = tuple[str, Site | None]
"""A fact, and the place in the code that is shown after it."""


def _facts(found: DivergenceFacts) -> Iterator[tuple[str, list[Fact]]]:
    """Yield the known facts, each with its label."""
    cause = found.cause
    site = cause.site if cause else None
    yield from _present("why", [_why(found)], site)
    yield from _present("kind", [_kind(found)])
    yield from _present("fix", [_CONNECTION_FIX if found.kind == "network" else ""])
    yield from _present("rules", _proposed(found))
    yield from _present("hidden", [listed(found.normalized)])
    changed = [f"{v.package} {v.recorded} (recorded), {v.now} (now)" for v in found.versions]
    yield from _present("versions", [listed(changed)])
    yield from _present(
        "sent at", [safe(found.sent.text) if found.sent != site and found.sent else ""]
    )
    yield from _present("earlier", _limited([safe(each.text) for each in found.suspicions]))
    lanes = [f"{safe(each.lane)} {each.asked} of {each.of}" for each in found.lanes]
    yield from _present("lanes", [listed(_limited(lanes))] if len(lanes) > 1 else [])
    yield from _present("waiting", _limited(_waiting(found)))
    yield from _present("unused", [unused_text(found.left)])
    yield from _present("next", list(found.commands))


def _present(
    name: str, facts: Iterable[str], site: Site | None = None
) -> Iterator[tuple[str, list[Fact]]]:
    known = [(fact, site) for fact in facts if fact]
    if known:
        yield name, known


def _limited(facts: list[str], shown: int = SHOWN) -> list[str]:
    hidden = len(facts) - shown
    return [*facts[:shown], f"{hidden} more"] if hidden > 0 else facts


def _why(found: DivergenceFacts) -> str:
    cause = found.cause
    if cause is None:
        return ""
    contains = f"; the new value contains {cause.contains}" if cause.contains else ""
    return f"{cause.text}{contains}"


def _kind(found: DivergenceFacts) -> str:
    words = [found.kind, *([NATURES[found.nature]] if found.nature else [])]
    return ", ".join(words)


def _proposed(found: DivergenceFacts) -> list[str]:
    """Return the rules that would hide differences, with the values that each of them hides, and how to add them."""
    if not found.proposals:
        return []
    names = json.dumps([each.rule for each in found.proposals])
    texts = [safe(each.text) for each in found.proposals]
    them = "them" if len(texts) > 1 else "it"
    return ["; ".join(texts), f"to add {them}: normalizers={names}"]


def _waiting(found: DivergenceFacts) -> list[str]:
    """Return the places where tasks wait, without duplicates; or what each task waits for, if that is known."""
    places = Counter(each.site for each in found.waiting if not each.what)
    known = [
        f"{safe(each.task)} {_activity(each)} at {safe(each.site.text)}"
        for each in found.waiting
        if each.what
    ]
    return [
        *known,
        *(f"{count(number, 'task')} at {safe(site.text)}" for site, number in places.items()),
    ]


def _activity(waiting: Waiting) -> str:
    return waiting.what if waiting.what == COMPUTES else f"waits for {safe(waiting.what)}"


def unused_text(unused: UnusedExchanges) -> str:
    """Return the numbers of unused recorded exchanges as text; empty if all were used."""
    parts = [count(unused.requests, "recorded request")] if unused.requests > 0 else []
    parts += [count(unused.tools, "recorded tool call")] if unused.tools > 0 else []
    parts += [count(unused.answers, "other exchange")] if unused.answers > 0 else []
    return listed(parts)


def _wrapped(text: str, margin: int, columns: int, site: Site | None = None) -> list[str]:
    """Wrap text into lines of at most `columns`, each with a margin. Words that are too long are broken.

    A place in the code is put after the text or on a separate line. The text is never wrapped, so that editors
    recognize it.
    """
    width_max, lines, line = columns - margin, list[str](), ""
    for word in _words(text, width_max):
        joined = f"{line}{word}" if line else word.lstrip(" ")
        if width(joined.rstrip(" ")) > width_max and line:
            lines.append(line)
            joined = word.lstrip(" ")
        line = joined
    at = safe(site.text) if site else ""
    if at and width(line) + 3 + width(at) <= width_max:
        line, at = f"{line}   {at}", ""
    return [" " * margin + each.rstrip(" ") for each in [*lines, line, *([at] if at else [])]]


def _words(text: str, columns: int) -> Iterator[str]:
    """Yield words with the spaces before them; no word is wider than `columns`."""
    word = ""
    for character in safe(text):
        if (character == " " and word.strip(" ")) or width(word.strip(" ") + character) > columns:
            yield word
            word = ""
        word += character
    yield word


def _short(text: str, columns: int) -> str:
    while width(text) > columns:
        text = text[: max(len(text) - 2, 1)].rstrip("…") + "…"
    return text
