"""Session diff: two sessions side by side, step by step, with the time, tokens and cost of each step.

Steps are aligned by facts without content: their kind, their tool calls, and their sizes. So sessions without content
can be compared, and two runs with different texts are still aligned. If texts are given, they decide which of several
similar steps belong together, and are shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Literal

from agentobs.provider.dialect import Block, Turn
from agentobs.provider.registry import dialect_of_body, history
from agentobs.records.canonical_json import digest
from agentobs.records.differences import Difference, differences, shortened, unequal
from replay.comparison.placeholders import bare

StepKind = Literal["request", "tool_call", "decision"]
CostStatus = Literal["exact", "lower_bound", "estimated"]
Change = Literal["same", "changed", "removed", "added"]
VERSION = 1
"""The version of a comparison's JSON. Within a version, keys are only added."""
MEASURES = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost_usd",
    "duration_ns",
)
"""What a step used. It is shown and summed, but is not a change by itself, because it varies from run to run."""
COMPARED = (
    "name",
    "model",
    "outcome",
    "stop_reason",
    "calls",
    "input_bytes",
    "result_bytes",
)
"""The identity of a step: if one of these differs, the step has changed."""
TEXTS_SHOWN = 3
"""How many differences of two texts are shown."""


@dataclass(frozen=True, slots=True)
class Part:
    """One step of a session."""

    kind: StepKind
    lane: str
    """Its lane, by the positions of the calls that started it, because IDs differ from run to run."""
    turn: int | None
    name: str
    """The endpoint of a request, or the tool."""
    model: str | None = None
    outcome: str | None = None
    """How it ended; for an approval, the decision, and who made it."""
    stop_reason: str | None = None
    calls: str | None = None
    """The tools that a response calls, by name, separated by blanks; None for none."""
    input_bytes: int | None = None
    """The size of a tool's input, in bytes."""
    result_bytes: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: Decimal | None = None
    """None if the model has no known price, and for steps that have no cost of their own."""
    cost_status: str | None = None
    """The certainty of the cost: `exact`, `lower_bound` or `estimated`; None if there is none."""
    duration_ns: int | None = None
    texts: dict[str, Any] | None = field(default=None, repr=False)
    """The texts, if they are compared: `input` and `result` of a call; `asked`, see `asked_since`, and
    `answer` of a request.
    """


@dataclass(frozen=True, slots=True)
class Pair:
    """A step of one session next to that of the other one."""

    change: Change
    a: Part | None
    b: Part | None
    differs: tuple[str, ...] = ()
    """The names of what differs, from `COMPARED`; and `texts`."""
    differences: tuple[Difference, ...] = field(default=(), repr=False)
    """Where the texts differ."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a session."""

    requests: int
    tool_calls: int
    decisions: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: Decimal | None
    """Of all requests with a known price; None if there is none."""
    unpriced: int
    """Requests with usage but without a known price."""
    cost_status: CostStatus
    """The certainty of the cost; with unpriced requests it is a lower bound."""
    duration_ns: int
    """The sum of the durations of all steps, also of concurrent ones."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sessions side by side."""

    pairs: tuple[Pair, ...]
    a: Totals
    b: Totals

    @property
    def changes(self) -> int:
        """How many steps differ."""
        return sum(pair.change != "same" for pair in self.pairs)

    @property
    def has_texts(self) -> bool:
        """Whether content was compared as well."""
        return any(part.texts is not None for x in self.pairs for part in (x.a, x.b) if part)

    def json(self, a: dict[str, Any], b: dict[str, Any]) -> str:
        """Return all of it as JSON, costs as decimal text; `a` and `b` identify the sessions."""
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
    """Return the totals of steps."""
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


def answer_of(turn: Turn) -> list[Any]:
    """Return the model's response without IDs, which differ in each run."""
    return [_said(block) for block in turn.blocks]


def _said(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text" | "reasoning":
            return {"type": block.type, "text": block.text}
        case "call" | "provider_call":
            return {"type": block.type, "name": block.name, "input": block.value}
        case _:
            return {"type": block.type}


def asked_since(before: Any, body: Any, answer: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the part of a request that is new since the previous one of its lane, without IDs, which differ in each
    run.

    That is each changed part (system, tools, options), and the messages after those of the previous request; all of
    them if the history was changed. The previous response, `answer`, is omitted if it is repeated unchanged. So a
    difference is shown where it arises, and only there.
    """
    old, new = _without_ids(before), _without_ids(body)
    if not isinstance(new, dict):
        return {} if new is None else {"text": new}
    old = old if isinstance(old, dict) else {}
    since = {key: value for key, value in new.items() if key not in old or old[key] != value}
    since |= {key: None for key in old if key not in new}
    dialect = dialect_of_body(new)
    key, told, former = dialect.history_key, history(new), history(old)
    if isinstance(old.get(key), list) and key in since:
        known = [dialect.without_breakpoints(each) for each in told[: len(former)]]
        if known == [dialect.without_breakpoints(each) for each in former]:
            more = told[len(former) :]
            echoes = bool(more) and answer_of(dialect.turn(more[0])) == answer
            since[key] = more[1:] if echoes else more
    return since


def _without_ids(value: Any) -> Any:
    """Return a request without IDs of blocks, and with all secrets looking the same."""
    return _bared(dialect_of_body(value).without_ids(value))


def _bared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_bared(each) for each in value]
    return bare(value) if isinstance(value, str) else value


def plain_lanes(lanes: Sequence[str], calls: dict[str, str]) -> dict[str, str]:
    """Return names for lanes that are the same in each agent run.

    Args:
        lanes: the recorded names of the lanes, each after its parent.
        calls: the tool of each call, by its ID.
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
    """Yield aligned steps: first those that are identical, then, between those, the ones of one kind."""
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
    """Return a value without unknown fields: most steps have few facts."""
    if isinstance(value, dict):
        return {k: _bare(v) for k, v in value.items() if v is not None}
    return [_bare(each) for each in value] if isinstance(value, list | tuple) else value
