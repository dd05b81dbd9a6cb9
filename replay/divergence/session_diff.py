"""Session diff: the comparison of two sessions step by step, with the time, tokens and cost of each step.

Steps are aligned by what they do, turn by turn, not by their position (see `step_alignment`). So an inserted or removed
step shifts no other step. Facts are enough for this, so that sessions without content can be compared. If texts or
their digests are given, they decide which of several similar steps are aligned, and differences of texts are included.
IDs that are new in each run are not a difference if each ID of one session corresponds to exactly one ID of the other
(see `provider.run_ids`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from agentobs.provider.dialect import Block, Turn
from agentobs.provider.registry import dialect_of_body, history
from agentobs.provider.run_ids import PairedIds, shape_of
from agentobs.records.canonical_json import canonical, digest
from agentobs.records.differences import Difference, differences, shortened
from replay.comparison.placeholders import bare
from replay.divergence.step_alignment import AlignedStep, Details, aligned_steps

StepKind = Literal["request", "tool_call", "decision"]
Retried = Literal["succeeded", "failed"]
CostStatus = Literal["exact", "lower_bound", "estimated"]
Change = Literal["same", "changed", "removed", "added"]
VERSION = 1
"""The version of the JSON. Within a version, keys may be added, but not changed or removed."""
MEASURES = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost_usd",
    "duration_ns",
)
"""The usage of a step. Usage is shown and summed, but a different usage is not a change, because usage varies in each
run.
"""
COMPARED = (
    "name",
    "model",
    "outcome",
    "stop_reason",
    "calls",
    "input_bytes",
    "result_bytes",
)
"""The facts that are compared: if one of them differs, the step has changed."""
TEXTS_SHOWN = 3
"""The maximum number of differences of two texts that are shown."""
DIGESTED = (
    "system_prompt",
    "tools",
    "parameters",
    "beta_headers",
    "messages",
    "response",
    "input",
    "result",
)
"""The parts of a step that can be compared by digest. The first four are parts of the prompt."""
PROMPT = DIGESTED[:4]
_BYTES = {"input_bytes": "input", "result_bytes": "result"}
"""The sizes of content. They do not matter if the content is equal, because IDs may have different lengths."""


@dataclass(frozen=True, slots=True)
class Part:
    """One step of a session."""

    kind: StepKind
    lane: str
    """The lane, named after the calls that started it and their order, because call IDs differ in each run."""
    turn: int | None
    name: str
    """The endpoint of a request, or the name of the tool."""
    model: str | None = None
    outcome: str | None = None
    """The outcome. The outcome of an approval is the decision, and who made the decision."""
    stop_reason: str | None = None
    calls: str | None = None
    """The names of the tools that a response calls, separated by spaces; None if it calls none."""
    input_bytes: int | None = None
    """The size of a tool's input, in bytes."""
    result_bytes: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: Decimal | None = None
    """None if the price of the model is not known, or if steps of this kind have no cost."""
    cost_status: str | None = None
    """The certainty of the cost: `exact`, `lower_bound` or `estimated`; None if there is none."""
    counts_status: str | None = None
    """`lower_bound` if the response ended before its last counts, so that its output tokens are a lower bound."""
    duration_ns: int | None = None
    id: str | None = None
    """The ID of the attempt, or of the tool call; None for a request in a fixture."""
    agent_lane: str | None = None
    """The lane, named after the types of the sub-agents instead of the calls that started them; None if unknown."""
    agent: str | None = None
    """The display name of the lane in its session (see `agentobs.store.analysis.lane_names`); None in a fixture."""
    retried: Retried | None = None
    """Of a failed attempt: whether the last attempt of the same request `succeeded` or `failed`; None if this is the
    last one. It is determined by `compared`.
    """
    digests: Mapping[str, str] | None = field(default=None, repr=False)
    """The digests of the parts in `DIGESTED` that are known. They are compared, but never shown or written."""
    ids: Mapping[str, tuple[str, ...]] | None = field(default=None, repr=False)
    """The IDs in the content behind each digest, in order, from `content_digest`. They are never shown or written."""
    texts: dict[str, Any] | None = field(default=None, repr=False)
    """The texts, if content is compared: `input` and `result` of a call; `asked` (see `new_in_request`) and `answer` of
    a request.
    """


@dataclass(frozen=True, slots=True)
class Pair:
    """A step of the first session and the aligned step of the second session."""

    change: Change
    a: Part | None
    b: Part | None
    differs: tuple[str, ...] = ()
    """The names of the facts that differ, from `COMPARED`; those in `DIGESTED` whose digests differ; `texts` if the
    texts differ.
    """
    differences: tuple[Difference, ...] = field(default=(), repr=False)
    """The first differences of the texts."""


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
    """The cost of all requests with a known price; None if there are none."""
    unpriced: int
    """The number of requests with usage but without a known price."""
    cost_status: CostStatus
    """The certainty of the cost; a lower bound if there are unpriced requests."""
    lower_bound_calls: int
    """The number of requests whose output tokens are a lower bound."""
    duration_ns: int
    """The sum of the durations of all steps, including concurrent steps."""
    models: tuple[str, ...] = ()
    """The models of all requests, in the order of their first requests."""


class ModelChange(NamedTuple):
    """Aligned requests that went to different models."""

    a: str
    b: str
    requests: int
    """The number of pairs of requests."""
    step: int
    """The number of the first of them among all steps, from 1. Steps of the main agent come first."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two sessions."""

    pairs: tuple[Pair, ...]
    a: Totals
    b: Totals

    @property
    def changes(self) -> int:
        """The number of steps that differ."""
        return sum(pair.change != "same" for pair in self.pairs)

    @property
    def has_identical_step(self) -> bool:
        """Whether a step is the same in both sessions, or neither has a step."""
        return not self.pairs or any(pair.change == "same" for pair in self.pairs)

    @property
    def model_changes(self) -> list[ModelChange]:
        """The pairs of different models of aligned requests, in the order of the steps."""
        found: dict[tuple[str, str], list[int]] = {}
        for number, pair in enumerate(self.pairs, start=1):
            if pair.a and pair.b and pair.a.model and pair.b.model and "model" in pair.differs:
                found.setdefault((pair.a.model, pair.b.model), []).append(number)
        return [ModelChange(*models, len(each), each[0]) for models, each in found.items()]

    @property
    def has_texts(self) -> bool:
        """Whether content was also compared."""
        return any(part.texts is not None for x in self.pairs for part in (x.a, x.b) if part)

    def json(self, a: dict[str, Any], b: dict[str, Any]) -> str:
        """Return the comparison as JSON, with costs as decimal strings. `a` and `b` identify the sessions."""
        value = {
            "agentobs_diff": VERSION,
            "a": {**a, **asdict(self.a)},
            "b": {**b, **asdict(self.b)},
            "content": self.has_texts,
            "model_changes": [each._asdict() for each in self.model_changes],
            "steps": [_without_none(_step_of(pair)) for pair in self.pairs],
        }
        return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def compared(a: Sequence[Part], b: Sequence[Part]) -> Comparison:
    """Align the steps of two sessions, lane by lane, in the order of the lanes of the first session."""
    sides = [_with_retries([_with_shape(part) for part in side]) for side in _with_lanes(a, b)]
    lanes = list(dict.fromkeys(part.lane for side in sides for part in side))
    pairs: list[Pair] = []
    for lane in lanes:
        in_lane = _aligned(*([part for part in side if part.lane == lane] for side in sides))
        pairs += _with_prompt_changes(list(in_lane))
    return Comparison(tuple(_with_id_changes(pairs)), totals(a), totals(b))


def _with_retries(parts: Sequence[Part]) -> list[Part]:
    """Return the steps of a session with `retried` of each failed attempt that another attempt followed."""
    attempts: dict[tuple[str, int, str], list[int]] = {}
    for at, part in enumerate(parts):
        if part.kind == "request" and part.turn is not None:
            attempts.setdefault((part.lane, part.turn, part.name), []).append(at)
    found = list(parts)
    for *earlier, last in attempts.values():
        result: Retried = "failed" if _has_failed(parts[last]) else "succeeded"
        for at in earlier:
            if _has_failed(parts[at]):
                found[at] = replace(parts[at], retried=result)
    return found


def _has_failed(request: Part) -> bool:
    return request.outcome not in ("ok", None)


def _with_lanes(a: Sequence[Part], b: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Yield the steps of both sides, with lanes named after the types of sub-agents if this pairs at least as many
    lanes.
    """
    by_call = {part.lane for part in a} & {part.lane for part in b}
    by_type = {part.agent_lane for part in a} & {part.agent_lane for part in b} - {None}
    for side in (a, b):
        if len(by_type) < len(by_call):
            yield [replace(part, agent_lane=None) for part in side]
        else:
            yield [
                replace(part, lane=part.agent_lane or part.lane, agent_lane=None) for part in side
            ]


def _with_shape(part: Part) -> Part:
    """Return a step with the digest of its texts, and the IDs in them, if content is compared."""
    if part.texts is None:
        return part
    found, ids = content_digest(part.texts)
    return replace(
        part,
        digests={**(part.digests or {}), "texts": found},
        ids={**(part.ids or {}), "texts": ids},
    )


def _with_id_changes(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield the pairs; a pair is changed if an ID in its texts corresponds to another ID elsewhere."""
    paired = PairedIds(
        (pair.a.id, pair.b.id)
        for pair in pairs
        if pair.a and pair.b and pair.a.kind == "tool_call" and pair.a.id and pair.b.id
    )
    for pair in pairs:
        yield _with_id_change(pair, paired)


def _with_id_change(pair: Pair, paired: PairedIds) -> Pair:
    if pair.a is None or pair.b is None or not (pair.a.ids and pair.b.ids):
        return pair
    a, b = pair.a.ids, pair.b.ids
    found = [
        name
        for name in a
        if name in b
        and name not in (*PROMPT, *pair.differs)
        and (name == "texts" or not ("texts" in a and "texts" in b))
        and not paired.match(a[name], b[name])
    ]
    if not found:
        return pair
    shown = pair.differences
    if "texts" in found:
        shown = tuple(map(shortened, differences(pair.a.texts, pair.b.texts)[:TEXTS_SHOWN]))
    return replace(pair, change="changed", differs=(*pair.differs, *found), differences=shown)


def totals(parts: Sequence[Part]) -> Totals:
    """Return the totals of some steps."""
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
        sum(part.counts_status == "lower_bound" for part in parts),
        sum(part.duration_ns or 0 for part in parts if part.kind != "decision"),
        tuple(dict.fromkeys(part.model for part in parts if part.model)),
    )


def _cost_status(used: Sequence[Part]) -> CostStatus:
    states = {part.cost_status for part in used}
    if "estimated" in states:
        return "estimated"
    return "exact" if states <= {"exact"} else "lower_bound"


def response_parts(turn: Turn) -> list[Any]:
    """Return the blocks of a response. IDs are removed, because they differ in each run."""
    return [_without_id(block) for block in turn.blocks]


def _without_id(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text" | "reasoning":
            return {"type": block.type, "text": block.text}
        case "call" | "provider_call":
            return {"type": block.type, "name": block.name, "input": block.value}
        case _:
            return {"type": block.type}


def prompt_messages(body: Any, *, is_first: bool) -> list[Any]:
    """Return the messages of a request that a prompt adds, without results of tools, which are parts of their calls.

    Args:
        body: the parsed request.
        is_first: whether it is the first request of its conversation, so that all of its messages are new. Otherwise,
            the messages after the last response are new.
    """
    dialect = dialect_of_body(body)
    sent = [
        dialect.turn(dialect.without_breakpoints(each))
        for each in history(body)
        if isinstance(each, dict)
    ]
    if not is_first:
        after = (at for at in range(len(sent), 0, -1) if sent[at - 1].role == "assistant")
        sent = sent[next(after, 0) :]
    return [
        {"role": turn.role, "blocks": blocks}
        for turn in sent
        if (blocks := [_sent_block(each) for each in turn.blocks if each.kind != "result"])
    ]


def _sent_block(block: Block) -> Any:
    return dict(block.raw) or [block.type, block.text, block.name, block.value]


def new_in_request(previous: Any, body: Any, response: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the part of a request that is new since the previous request of its lane, without IDs.

    It contains each part that has changed (system, tools, options), and the messages after the messages of the previous
    request, or all messages if the history was changed. The previous response is left out if it is repeated unchanged.
    So a difference is shown only in the step in which it arises.
    """
    old, new = _without_ids(previous), _without_ids(body)
    if not isinstance(new, dict):
        return {} if new is None else {"text": new}
    old = old if isinstance(old, dict) else {}
    added = {key: value for key, value in new.items() if key not in old or old[key] != value}
    added |= {key: None for key in old if key not in new}
    dialect = dialect_of_body(new)
    key, messages, old_messages = dialect.history_key, history(new), history(old)
    if isinstance(old.get(key), list) and key in added:
        shared = [dialect.without_breakpoints(each) for each in messages[: len(old_messages)]]
        if shared == [dialect.without_breakpoints(each) for each in old_messages]:
            more = messages[len(old_messages) :]
            repeats = bool(more) and response_parts(dialect.turn(more[0])) == response
            added[key] = more[1:] if repeats else more
    return added


def _without_ids(value: Any) -> Any:
    """Return a request without IDs of blocks, and with the same placeholder for all secrets."""
    return _with_equal_placeholders(dialect_of_body(value).without_ids(value))


def _with_equal_placeholders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_equal_placeholders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_equal_placeholders(each) for each in value]
    return bare(value) if isinstance(value, str) else value


def stable_lane_names(
    lanes: Sequence[str], calls: Mapping[str, str], agents: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return names for lanes that are the same in each run of the agent.

    Args:
        lanes: the recorded names of the lanes.
        calls: the name of the tool of each call, by the ID of the call.
        agents: the types of the sub-agents by which lanes are named, if known, by the recorded name of the lane.
    """
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for lane in sorted(lanes, key=lambda each: each.count("/")):
        parent, _, started_by = lane.rpartition("/")
        if not parent:
            names[lane] = lane
            continue
        starter = calls.get(started_by) or started_by.partition(":")[0]
        starter = starter if started_by in calls or ":" in started_by else "agent"
        if agents and lane in agents:
            starter = agents[lane].replace("/", " ").replace("#", " ")
        path = f"{names.get(parent, parent)}/{starter}"
        counts[path] = counts.get(path, 0) + 1
        names[lane] = f"{path}#{counts[path]}"
    return names


def content_digest(value: Any, session_ids: Sequence[str] = ()) -> tuple[str, tuple[str, ...]]:
    """Return a digest of content, and the IDs in it.

    The digest depends neither on which secrets were redacted nor on IDs that are new in each run. It has no key, so it
    must not be written or shown.

    Args:
        value: the content.
        session_ids: the IDs of the session.
    """
    shape = shape_of(bare(canonical(value)), session_ids)
    return digest(shape.text.encode("utf-8", "surrogatepass")), shape.ids


def _aligned(a: Sequence[Part], b: Sequence[Part]) -> Iterator[Pair]:
    """Yield the aligned steps of a lane."""
    for at_a, at_b in aligned_steps([_aligned_step(x) for x in a], [_aligned_step(x) for x in b]):
        one, other = (None if at_a is None else a[at_a]), (None if at_b is None else b[at_b])
        if one is not None and other is not None:
            yield _pair(one, other)
        else:
            yield Pair("added" if one is None else "removed", one, other)


def _aligned_step(part: Part) -> AlignedStep:
    """Return what decides with which step a step is aligned."""
    known = part.digests or {}
    calls = tuple((part.calls or "").split())
    if part.kind != "request":
        calls = (part.name,)
    details = Details(
        sent=calls if part.kind == "request" else known.get("input", part.input_bytes),
        outcome=(part.outcome, part.stop_reason),
        response=known.get("response", known.get("texts")),
        result=known.get("result", part.result_bytes),
        messages=known.get("messages"),
        model=part.model,
    )
    is_retried = part.retried is not None
    return AlignedStep(part.turn, part.kind, part.name, calls, details, is_retried)


def _with_prompt_changes(pairs: list[Pair]) -> list[Pair]:
    """Return the pairs of a lane with the changed parts of the prompt, at the first request that both sides have.

    Later requests repeat the prompt, so they would all be reported. If this request is the first one of only one side,
    the first messages of both sides are compared.
    """
    for at, pair in enumerate(pairs):
        if pair.a is None or pair.b is None or pair.a.kind != "request":
            continue
        if pair.a.texts is not None and pair.b.texts is not None:  # they contain the prompts
            break
        found = _differing_digests(pair.a, pair.b, PROMPT)
        first = [
            next(
                (each for part in side if part and (each := (part.digests or {}).get("messages"))),
                None,
            )
            for side in ([each.a for each in pairs], [each.b for each in pairs])
        ]
        if None not in first and first[0] != first[1] and "messages" not in pair.differs:
            found.append("messages")
        if found:
            pairs[at] = replace(pair, change="changed", differs=(*pair.differs, *found))
        break
    return pairs


def _differing_digests(a: Part, b: Part, names: Sequence[str]) -> list[str]:
    """Return the names of the parts whose digests are known on both sides and differ."""
    old, new = a.digests or {}, b.digests or {}
    return [name for name in names if name in old and name in new and old[name] != new[name]]


def _pair(a: Part, b: Part) -> Pair:
    differs = [
        name
        for name in COMPARED
        if getattr(a, name) != getattr(b, name) and not _is_equal_content(a, b, name)
    ]
    if a.texts is None or b.texts is None:  # otherwise the texts themselves are compared
        differs += _differing_digests(a, b, [name for name in DIGESTED if name not in PROMPT])
    found: list[Difference] = []
    if _differing_digests(a, b, ["texts"]):
        found = [each for each in differences(a.texts, b.texts) if not _is_only_ids(each)]
    if found:
        differs.append("texts")
    shown = tuple(map(shortened, found[:TEXTS_SHOWN]))
    return Pair("changed" if differs else "same", a, b, tuple(differs), shown)


def _is_equal_content(a: Part, b: Part, name: str) -> bool:
    """Return whether a fact is the size of content that is known to be equal."""
    if name not in _BYTES:
        return False
    old, new = a.digests or {}, b.digests or {}
    return any(each in old and old[each] == new.get(each) for each in (_BYTES[name], "texts"))


def _is_only_ids(difference: Difference) -> bool:
    """Return whether two values differ only in IDs that are new in each run."""
    if difference.change != "changed":
        return False
    old, new = difference.expected, difference.actual
    return content_digest(old)[0] == content_digest(new)[0]


def _step_of(pair: Pair) -> dict[str, Any]:
    """Return a pair as a mapping, without digests and the IDs in texts."""
    sides = [part and replace(part, digests=None, ids=None) for part in (pair.a, pair.b)]
    return asdict(replace(pair, a=sides[0], b=sides[1]))


def _without_none(value: Any) -> Any:
    """Return a value without the fields that are None, because most fields do not apply to a step."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value
