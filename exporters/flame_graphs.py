"""Flame graphs: the time and the cost of sessions, as stacks that add up exactly to the total.

Two formats: speedscope's (https://www.speedscope.app/file-format-schema.json), for speedscope.app, which reads the file
in the browser, and folded stacks, as for flamegraph.pl: each line contains a stack and its weight.

*Time* is measured per lane, in nanoseconds. A lane is like a thread: it has one stack at each point in time. If several
operations run concurrently in one lane, the time belongs to the operation that ended last, because the others were not
waited for at that point. Therefore, the weights add up to the wall time of each lane's interactions and agents. Time
between them, in which the lane was idle, is not shown.

*Cost* is in picodollars (1e-12 USD), so that each part of a call's cost is an integer, and the weights add up to the
cost of the session. The name of the profile contains the certainty of the cost, and the number of calls without a
price. These calls have no weight.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.metadata import version
from typing import Any, Literal

from agentobs.errors import UsageError
from agentobs.store.port import Store

Of = Literal["time", "cost"]
Stack = tuple[str, ...]

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
DEPTH_MAX = 200
"""The maximum depth of a stack; deeper frames are attached to the last one. Our choice: parents may be cyclic."""
PARTS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "server_tools")
"""The parts of the cost of a call, see the view `costs`."""
_PICO = Decimal(10) ** 12


@dataclass(frozen=True, slots=True)
class Profile:
    """Stacks with a common total."""

    name: str
    unit: Literal["nanoseconds", "picodollars"]
    stacks: tuple[tuple[Stack, int], ...]
    """Stacks with their weights; stacks of time are in chronological order and may repeat."""

    @property
    def total(self) -> int:
        """The sum of the weights."""
        return sum(weight for _, weight in self.stacks)


@dataclass(slots=True)
class _Node:
    """An operation."""

    id: str
    frame: str
    """The name in the stack; empty for the span of an interaction, because the interaction itself has a frame."""
    lane: str
    started_ns: int
    ended_ns: int
    interaction: _Node | None = None
    """The interaction that the operation belongs to; None for an interaction."""
    parent: _Node | None = None
    depth: int = 0
    active: list[tuple[int, int, str]] = field(default_factory=list)
    """A heap of its active children, latest end first: (-end, start, ID)."""


def profiles_of(store: Store, session_ids: Sequence[str], of: Of = "time") -> list[Profile]:
    """Return the profiles of some sessions: one per lane for time, one per session for cost.

    Raises:
        UsageError: a session has invalid records, for example without a time.
    """
    profiles_of_session = _time_profiles if of == "time" else _cost_profiles
    found: list[Profile] = []
    for each in session_ids:
        try:
            found += profiles_of_session(store, each)
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise UsageError(
                f"the flame graph cannot be created: {type(error).__name__}",
                where=each,
                todo="Leave the session out; agentobs verify shows whether its recording is damaged",
            ) from error
    return found


def speedscope(profiles: Sequence[Profile]) -> str:
    """Return profiles in speedscope's file format."""
    frames: dict[str, int] = {}
    entries = []
    for profile in profiles:
        samples = [
            [frames.setdefault(frame, len(frames)) for frame in stack]
            for stack, _ in profile.stacks
        ]
        entries.append(
            {
                "type": "sampled",
                "name": profile.name,
                # The format has no unit for money.
                "unit": "nanoseconds" if profile.unit == "nanoseconds" else "none",
                "startValue": 0,
                "endValue": profile.total,
                "samples": samples,
                "weights": [weight for _, weight in profile.stacks],
            }
        )
    document = {
        "$schema": SCHEMA,
        "exporter": f"agentobs {version('agentobs-kit')}",
        "name": "agentobs",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": entries,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def folded(profiles: Sequence[Profile]) -> str:
    """Return profiles as folded stacks, `frame;frame;frame weight`. The first frame is the name of the profile."""
    weights: Counter[Stack] = Counter()
    for profile in profiles:
        for stack, weight in profile.stacks:
            weights[profile.name, *stack] += weight
    lines = [
        f"{';'.join(map(_folded_name, stack))} {weight}"
        for stack, weight in weights.items()
        if weight
    ]
    return "".join(f"{line}\n" for line in sorted(lines))


def _folded_name(frame: str) -> str:
    """Return the name of a frame without characters that separate frames or lines."""
    return frame.replace(";", ":").replace("\n", " ")


def _time_profiles(store: Store, session_id: str) -> Iterator[Profile]:
    name = _name(store, session_id)
    nodes = _nodes(store.rows("interaction_intervals", session_id=session_id).dicts())
    lanes: dict[str, list[_Node]] = {}
    for node in nodes.values():
        lanes.setdefault(node.lane, []).append(node)
    for lane in sorted(lanes, key=lambda lane: (lane != "main", lane)):
        yield Profile(f"{name}, {lane}", "nanoseconds", tuple(_lane_stacks(lanes[lane])))


def _nodes(rows: Sequence[Mapping[str, Any]]) -> dict[str, _Node]:
    """Return the intervals of a session by ID; each is cut to its parent if both are in the same lane.

    An interval without an end lasts until the last known time. If its parent is unknown, the parent is its interaction.
    """
    last = max((row["ended_ns"] or row["started_ns"] for row in rows), default=0)
    nodes: dict[str, _Node] = {}
    parents: dict[str, tuple[str | None, str]] = {}
    for row in rows:
        if (id := str(row["id"])) not in nodes:
            end = last if row["ended_ns"] is None else row["ended_ns"]
            is_duplicate = row["name"] == "interaction" and row["parent_id"] is not None
            frame = "" if is_duplicate else " ".join(filter(None, (row["name"], row["label"])))
            nodes[id] = _Node(id, frame, str(row["lane"]), row["started_ns"], end)
            parents[id] = row["parent_id"], str(row["interaction_id"])
    for id, (parent_id, interaction_id) in parents.items():
        if id != interaction_id:
            nodes[id].interaction = nodes[interaction_id]
            nodes[id].parent = nodes.get(parent_id or "", nodes[interaction_id])
    for node in _parents_first(nodes):
        if node.parent is not None and node.parent.lane == node.lane:
            node.started_ns = max(node.started_ns, node.parent.started_ns)
            node.ended_ns = min(node.ended_ns, node.parent.ended_ns)
        node.ended_ns = max(node.ended_ns, node.started_ns)
    return nodes


def _parents_first(nodes: Mapping[str, _Node]) -> list[_Node]:
    """Return nodes, each after its parent. Nodes with cyclic parents or too great a depth get a higher parent."""
    children: dict[str, list[_Node]] = {}
    for node in nodes.values():
        children.setdefault(node.parent.id if node.parent else "", []).append(node)
    ordered, reached = list(children.get("", ())), set[str]()
    for node in ordered:
        reached.add(node.id)
        for child in children.get(node.id, ()):
            child.depth = node.depth + 1
            ordered.append(child)
    for node in nodes.values():
        if node.id not in reached:
            node.parent, node.depth = node.interaction, 1
            ordered.append(node)
    for node in ordered:
        while node.parent is not None and node.parent.depth >= DEPTH_MAX:
            node.parent = node.parent.parent
    return ordered


def _lane_stacks(nodes: Sequence[_Node]) -> Iterator[tuple[Stack, int]]:
    """Yield the stacks of one lane in chronological order, each with its duration."""
    known = {node.id: node for node in nodes}
    top = _Node("", "", "", 0, 0)
    changes = sorted(
        [(node.started_ns, 1, node.depth, node.id) for node in nodes]
        + [(node.ended_ns, 0, -node.depth, node.id) for node in nodes]
    )
    open_ids: set[str] = set()
    stack: Stack = ()
    previous_at = weight = 0
    for at, opens, _, id in changes:
        if at > previous_at and open_ids:
            current = _stack_of(top, known, open_ids)
            if current != stack and weight:
                yield stack, weight
                weight = 0
            stack, weight = current, weight + at - previous_at
        previous_at = at
        node = known[id]
        if not opens:
            open_ids.discard(id)
        elif node.ended_ns > node.started_ns:
            open_ids.add(id)
            parent = node.parent if node.parent and node.parent.id in known else top
            heapq.heappush(parent.active, (-node.ended_ns, node.started_ns, id))
    if weight:
        yield stack, weight


def _stack_of(top: _Node, known: Mapping[str, _Node], open_ids: set[str]) -> Stack:
    """Return the current stack: at each level the open child that ends last."""
    stack: list[str] = []
    node = top
    while True:
        while node.active and node.active[0][2] not in open_ids:
            heapq.heappop(node.active)
        if not node.active:
            return tuple(stack)
        node = known[node.active[0][2]]
        if node.frame:
            stack.append(node.frame)


def _cost_profiles(store: Store, session_id: str) -> Iterator[Profile]:
    name = _name(store, session_id)
    nodes = _nodes(store.rows("interaction_intervals", session_id=session_id).dicts())
    stacks: Counter[Stack] = Counter()
    statuses: set[str] = set()
    unpriced = 0
    for row in store.rows("internal/call_costs_with_spans", session_id=session_id).dicts():
        statuses.add(row["cost_status"])
        if row["cost_usd"] is None:
            unpriced += 1
            continue
        node = nodes.get(row["attempt_id"]) or nodes.get(row["span_id"] or row["interaction_id"])
        path = _path(node) if node else (str(row["lane"]),)
        for part in PARTS:
            weight = int(row[f"{part}_usd"] * _PICO)
            stacks[(*path, f"{row['kind']} {row['canonical_model']}", part)] += weight
    certainty = _certainty(statuses, unpriced)
    weighted = tuple((stack, weight) for stack, weight in stacks.items() if weight)
    yield Profile(f"{name}, cost in 1e-12 USD, {certainty}", "picodollars", weighted)


def _path(node: _Node) -> Stack:
    path: list[str] = []
    at: _Node | None = node
    while at is not None and len(path) < DEPTH_MAX:
        path.insert(0, at.frame)
        at = at.parent
    return tuple(frame for frame in path if frame)


def _certainty(statuses: set[str], unpriced: int) -> str:
    """Return the certainty of the total cost of some calls, with the same words as `conversation_sessions`."""
    if not statuses:
        return "nothing was billed"
    for word in ("estimated", "lower_bound"):
        if word in statuses:
            break
    else:
        word = "lower_bound" if unpriced else "exact"
    return f"{word}, {unpriced} calls without a price" if unpriced else word


def _name(store: Store, session_id: str) -> str:
    summary = store.rows("internal/session_summary", session_id=session_id).first() or {}
    return session_id[:12] if summary.get("name") is None else str(summary["name"])
