"""Comparing: two sessions side by side, step by step, with what each step took and cost.

Steps are aligned by what is known without content: of which kind they are, what they call, and how much was said. So
sessions are compared that were recorded without content, and two runs whose words differ everywhere still find
together. Where texts are given, too, they tell which of two equal looking steps belong together, and are shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Literal

from agentobs.provider.messages import blocks
from agentobs.records.canonical_json import digest
from agentobs.records.differences import Difference, differences, shortened, unequal
from replay.comparison.placeholders import bare

StepKind = Literal["request", "tool_call", "decision"]
CostStatus = Literal["exact", "lower_bound", "estimated"]
Change = Literal["same", "changed", "removed", "added"]
VERSION = 1
"""The version of a comparison's JSON. Within one, keys are only added."""
MEASURES = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost_usd",
    "duration_ns",
)
"""What a step took. It is shown and summed, and is no change by itself: it varies from run to run."""
COMPARED = (
    "name",
    "model",
    "outcome",
    "stop_reason",
    "calls",
    "input_bytes",
    "result_bytes",
)
"""What a step is: where one of these differs, the step has changed."""
TEXTS_SHOWN = 3
"""How many places of two texts are shown that differ."""


@dataclass(frozen=True, slots=True)
class Part:
    """One step of a session."""

    kind: StepKind
    lane: str
    """Its lane, by the places of the calls that started it: ids differ from run to run."""
    turn: int | None
    name: str
    """The endpoint of a request; else the tool."""
    model: str | None = None
    outcome: str | None = None
    """How it ended; of a decision what was decided, and by whom."""
    stop_reason: str | None = None
    calls: str | None = None
    """The tools that an answer calls, by name, with a blank between two; None for none."""
    input_bytes: int | None = None
    """How much a tool was given, in bytes."""
    result_bytes: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: Decimal | None = None
    """None where the model has no known price, and for what costs nothing by itself."""
    cost_status: str | None = None
    """How sure that is: `exact`, `lower_bound` or `estimated`; None where nothing is known of it."""
    duration_ns: int | None = None
    texts: dict[str, Any] | None = field(default=None, repr=False)
    """What was said, where it is to be compared: `input` and `result` of a call; `asked`, see `asked_since`, and
    `answer` of a request."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A step of one session beside that of the other one."""

    change: Change
    a: Part | None
    b: Part | None
    differs: tuple[str, ...] = ()
    """The names of what differs, of `COMPARED`; and `texts`."""
    differences: tuple[Difference, ...] = field(default=(), repr=False)
    """Where the texts differ."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a session did and took in all."""

    requests: int
    tool_calls: int
    decisions: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: Decimal | None
    """Of all requests with a known price; None where none has one."""
    unpriced: int
    """Requests that used tokens and whose price is not known."""
    cost_status: CostStatus
    """How sure the money is; without those it is a lower bound."""
    duration_ns: int
    """The durations of all steps together, beside each other or not."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sessions side by side."""

    pairs: tuple[Pair, ...]
    a: Totals
    b: Totals

    @property
    def changes(self) -> int:
        """How many steps are not the same."""
        return sum(pair.change != "same" for pair in self.pairs)

    @property
    def has_texts(self) -> bool:
        """Whether what was asked and said was compared, too."""
        return any(part.texts is not None for x in self.pairs for part in (x.a, x.b) if part)

    def json(self, a: dict[str, Any], b: dict[str, Any]) -> str:
        """Return all of it as JSON, money as decimal text; `a` and `b` say which sessions they are."""
        value = {
            "agentobs_diff": VERSION,
            "a": {**a, **asdict(self.a)},
            "b": {**b, **asdict(self.b)},
            "content": self.has_texts,
            "steps": [_bare(asdict(pair)) for pair in self.pairs],
        }
        return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def compared(a: Sequence[Part], b: Sequence[Part]) -> Comparison:
    """Align two sessions by step, lane by lane; lanes are in the order of the first session."""
    lanes = list(dict.fromkeys(part.lane for part in (*a, *b)))
    pairs: list[Pair] = []
    for lane in lanes:
        own = [part for part in a if part.lane == lane]
        pairs += _aligned(own, [part for part in b if part.lane == lane])
    return Comparison(tuple(pairs), totals(a), totals(b))


def totals(parts: Sequence[Part]) -> Totals:
    """Return what steps took together."""
    priced = [part.cost_usd for part in parts if part.cost_usd is not None]
    used = [part for part in parts if part.input_tokens or part.output_tokens]
    kinds = [part.kind for part in parts]
    return Totals(
        kinds.count("request"),
        kinds.count("tool_call"),
        kinds.count("decision"),
        sum(part.input_tokens or 0 for part in parts),
        sum(part.output_tokens or 0 for part in parts),
        sum(part.cache_read_tokens or 0 for part in parts),
        sum(part.cache_write_tokens or 0 for part in parts),
        sum(priced, Decimal(0)) if priced else None,
        sum(part.cost_usd is None for part in used),
        _cost_status(used),
        sum(part.duration_ns or 0 for part in parts if part.kind != "decision"),
    )


def _cost_status(used: Sequence[Part]) -> CostStatus:
    states = {part.cost_status for part in used}
    if "estimated" in states:
        return "estimated"
    return "exact" if states <= {"exact"} else "lower_bound"


def answer_of(message: dict[str, Any]) -> list[Any]:
    """Return what the model said, without ids, which are others in each run."""
    kept = ("type", "text", "thinking", "name", "input")
    return [{k: each[k] for k in kept if k in each} for each in blocks(message)]


def asked_since(before: Any, body: Any, answer: Sequence[Any] = ()) -> dict[str, Any]:
    """Return what a request asks that the one before it in its lane did not, without ids, which differ in each run.

    That is each part of it that is another one now (system, tools, options), and the messages behind those that stood
    there before; all of them where the history was changed. The `answer` to that one, as it was given, is not told
    again. So a difference is told where it arises, and only there.
    """
    old, new = _without_ids(before), _without_ids(body)
    if not isinstance(new, dict):
        return {} if new is None else {"text": new}
    old = old if isinstance(old, dict) else {}
    since = {key: value for key, value in new.items() if key not in old or old[key] != value}
    since |= {key: None for key in old if key not in new}
    told, former = new.get("messages"), old.get("messages")
    if isinstance(told, list) and isinstance(former, list) and "messages" in since:
        known = [_unmarked(each) for each in told[: len(former)]]
        if known == [_unmarked(each) for each in former]:
            more = told[len(former) :]
            echoes = bool(more) and isinstance(more[0], dict) and answer_of(more[0]) == answer
            since["messages"] = more[1:] if echoes else more
    return since


_IDS = {"id", "tool_use_id", "signature", "data"}
"""Keys of blocks whose values are made anew in each run: ids, and what the provider has sealed."""


def _without_ids(value: Any, within: str = "") -> Any:
    """Return a request without ids of blocks, and secrets without what tells one from another."""
    if isinstance(value, dict):
        is_block = "type" in value and within == "content"
        return {
            key: _without_ids(inner, "content" if key == "content" else "")
            for key, inner in value.items()
            if not (is_block and key in _IDS and isinstance(inner, str))
        }
    if isinstance(value, list):
        return [_without_ids(each, within) for each in value]
    return bare(value) if isinstance(value, str) else value


def _unmarked(value: Any) -> Any:
    """Return a message without its marks of the cache, which move from turn to turn."""
    if isinstance(value, dict):
        return {k: _unmarked(v) for k, v in value.items() if k != "cache_control"}
    return [_unmarked(each) for each in value] if isinstance(value, list) else value


def plain_lanes(lanes: Sequence[str], calls: dict[str, str]) -> dict[str, str]:
    """Return names for lanes that are the same in each run of an agent.

    Args:
        lanes: the lanes as they are named, each behind the one it lies under.
        calls: the tool that each call used, by its id.
    """
    named: dict[str, str] = {}
    counts: dict[str, int] = {}
    for lane in sorted(lanes, key=lambda each: each.count("/")):
        parent, _, started_by = lane.rpartition("/")
        if not parent:
            named[lane] = lane
            continue
        what = calls.get(started_by) or started_by.partition(":")[0]
        what = what if started_by in calls or ":" in started_by else "agent"
        under = f"{named.get(parent, parent)}/{what}"
        counts[under] = counts.get(under, 0) + 1
        named[lane] = f"{under}#{counts[under]}"
    return named


def _aligned(a: Sequence[Part], b: Sequence[Part]) -> Iterator[Pair]:
    """Yield steps side by side: first those that are the same in all, then, between those, the ones of one sort."""
    at_a = at_b = 0
    for a1, a2, b1, b2 in unequal([_mark(x) for x in a], [_mark(x) for x in b]):
        yield from map(_pair, a[at_a:a1], b[at_b:b1])
        yield from _sorted(a[a1:a2], b[b1:b2])
        at_a, at_b = a2, b2
    yield from map(_pair, a[at_a:], b[at_b:])


def _sorted(a: Sequence[Part], b: Sequence[Part]) -> Iterator[Pair]:
    at_a = at_b = 0
    for a1, a2, b1, b2 in unequal([_sort(x) for x in a], [_sort(x) for x in b]):
        yield from map(_pair, a[at_a:a1], b[at_b:b1])
        yield from (Pair("removed", part, None) for part in a[a1:a2])
        yield from (Pair("added", None, part) for part in b[b1:b2])
        at_a, at_b = a2, b2
    yield from map(_pair, a[at_a:], b[at_b:])


def _sort(part: Part) -> tuple[str, ...]:
    return part.kind, part.name


def _mark(part: Part) -> tuple[Any, ...]:
    said = json.dumps(part.texts, sort_keys=True, default=str) if part.texts else ""
    facts = (getattr(part, name) for name in COMPARED)
    return part.kind, *facts, digest(said.encode("utf-8", "surrogatepass"))


def _pair(a: Part, b: Part) -> Pair:
    differs = [name for name in COMPARED if getattr(a, name) != getattr(b, name)]
    found = differences(a.texts, b.texts) if a.texts is not None and b.texts is not None else []
    if found:
        differs.append("texts")
    shown = tuple(map(shortened, found[:TEXTS_SHOWN]))
    return Pair("changed" if differs else "same", a, b, tuple(differs), shown)


def _bare(value: Any) -> Any:
    """Return a value without what is not known: most steps have few of the facts."""
    if isinstance(value, dict):
        return {k: _bare(v) for k, v in value.items() if v is not None}
    return [_bare(each) for each in value] if isinstance(value, list | tuple) else value
