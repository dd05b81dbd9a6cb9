"""Flame graphs: the time and the cost of sessions, as stacks that add up exactly to the total.

Two formats: speedscope's (https://www.speedscope.app/file-format-schema.json), for speedscope.app, which reads the file
in the browser, and folded stacks, one line each with its weight, as for flamegraph.pl.

*Time* is that of lanes, in nanoseconds: a lane is like a thread, and one stack describes each point of its time. Of
concurrent operations in one lane, the one that ended last was waited for, and gets the time. So the weights add up to
the wall time of each lane's interactions and agents. Time between them, in which the lane was idle, is not drawn.

*Cost* is in picodollars (1e-12 USD), so that each part of a call's cost is an integer, and the weights add up to the
cost of the session. Its certainty is in the first frame, with the number of calls without a price, which have no
weight.
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
"""The maximum depth of a stack; deeper frames count for the last one. Our choice: parents may be cyclic."""
PARTS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "server_tools")
"""The parts of the cost of a call, see the view `costs`."""
_PICO = Decimal(10) ** 12


@dataclass(frozen=True, slots=True)
class Profile:
    """Stacks with a common total."""

    name: str
    unit: Literal["nanoseconds", "picodollars"]
    stacks: tuple[tuple[Stack, int], ...]
    """Each with its weight; stacks of time are in order, and recur."""

    @property
    def total(self) -> int:
        """The unit of the weights."""
        return sum(weight for _, weight in self.stacks)


@dataclass(slots=True)
class _Node:
    """An operation."""

    id: str
    frame: str
    """Empty for the span of an interaction, which is drawn already."""
    lane: str
    started_ns: int
    ended_ns: int
    whole: _Node | None = None
    """The interaction that it belongs to; None if it is one."""
    parent: _Node | None = None
    depth: int = 0
    active: list[tuple[int, int, str]] = field(default_factory=list)
    """Its active children, latest end first: (-end, start, ID)."""


def profiles_of(store: Store, session_ids: Sequence[str], of: Of = "time") -> list[Profile]:
    """Return the profiles of some sessions: of time one for each lane, of cost one for each session.

    Raises:
        UsageError: a session has invalid records, for example without a time.
    """
    make = _time_of if of == "time" else _money_of
    found: list[Profile] = []
    for each in session_ids:
        try:
            found += make(store, each)
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise UsageError(
                f"the session cannot be drawn: {type(error).__name__}",
                where=each,
                todo="Leave it out; agentobs verify shows whether its recording is damaged",
            ) from error
    return found


def speedscope(profiles: Sequence[Profile]) -> str:
    """Return profiles in speedscope's file format."""
    frames: dict[str, int] = {}
    told = []
    for profile in profiles:
        samples = [
            [frames.setdefault(frame, len(frames)) for frame in stack]
            for stack, _ in profile.stacks
        ]
        told.append(
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
    whole = {
        "$schema": SCHEMA,
        "exporter": f"agentobs {version('agentobs-kit')}",
        "name": "agentobs",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": told,
    }
    return json.dumps(whole, separators=(",", ":")) + "\n"


def folded(profiles: Sequence[Profile]) -> str:
    """Return profiles as folded stacks: `frame;frame;frame weight`, each stack once, under its profile's name."""
    weights: Counter[Stack] = Counter()
    for profile in profiles:
        for stack, weight in profile.stacks:
            weights[profile.name, *stack] += weight
    lines = [
        f"{';'.join(map(_unfolded, stack))} {weight}" for stack, weight in weights.items() if weight
    ]
    return "".join(f"{line}\n" for line in sorted(lines))


def _unfolded(frame: str) -> str:
    """Return a frame's name without separators; labels contain none."""
    return frame.replace(";", ":").replace("\n", " ")


def _time_of(store: Store, session_id: str) -> Iterator[Profile]:
    name = _name(store, session_id)
    nodes = _nodes(store.rows("interaction_intervals", session_id=session_id).dicts())
    lanes: dict[str, list[_Node]] = {}
    for node in nodes.values():
        lanes.setdefault(node.lane, []).append(node)
    for lane in sorted(lanes, key=lambda lane: (lane != "main", lane)):
        yield Profile(f"{name}, {lane}", "nanoseconds", tuple(_swept(lanes[lane])))


def _nodes(rows: Sequence[Mapping[str, Any]]) -> dict[str, _Node]:
    """Return the intervals of a session by ID; each is within its parent in its lane.

    An interval without an end lasts until the last known time. One with an unknown parent belongs to its interaction.
    """
    last = max((row["ended_ns"] or row["started_ns"] for row in rows), default=0)
    nodes: dict[str, _Node] = {}
    above: dict[str, tuple[str | None, str]] = {}
    for row in rows:
        if (id := str(row["id"])) not in nodes:
            end = last if row["ended_ns"] is None else row["ended_ns"]
            is_drawn = row["name"] == "interaction" and row["parent_id"] is not None
            frame = "" if is_drawn else " ".join(filter(None, (row["name"], row["label"])))
            nodes[id] = _Node(id, frame, str(row["lane"]), row["started_ns"], end)
            above[id] = row["parent_id"], str(row["interaction_id"])
    for id, (parent_id, interaction_id) in above.items():
        if id != interaction_id:
            nodes[id].whole = nodes[interaction_id]
            nodes[id].parent = nodes.get(parent_id or "", nodes[interaction_id])
    for node in _from_above(nodes):
        if node.parent is not None and node.parent.lane == node.lane:
            node.started_ns = max(node.started_ns, node.parent.started_ns)
            node.ended_ns = min(node.ended_ns, node.parent.ended_ns)
        node.ended_ns = max(node.ended_ns, node.started_ns)
    return nodes


def _from_above(nodes: Mapping[str, _Node]) -> list[_Node]:
    """Return nodes, each after its parent; cyclic and too deep ones are attached higher."""
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
            node.parent, node.depth = node.whole, 1
            ordered.append(node)
    for node in ordered:
        while node.parent is not None and node.parent.depth >= DEPTH_MAX:
            node.parent = node.parent.parent
    return ordered


def _swept(nodes: Sequence[_Node]) -> Iterator[tuple[Stack, int]]:
    """Yield the stacks of one lane in order, each with its time, without gaps or overlaps within an interval."""
    known = {node.id: node for node in nodes}
    top = _Node("", "", "", 0, 0)
    changes = sorted(
        [(node.started_ns, 1, node.depth, node.id) for node in nodes]
        + [(node.ended_ns, 0, -node.depth, node.id) for node in nodes]
    )
    open_ids: set[str] = set()
    stack: Stack = ()
    before = weight = 0
    for at, opens, _, id in changes:
        if at > before and open_ids:
            now = _stack_of(top, known, open_ids)
            if now != stack and weight:
                yield stack, weight
                weight = 0
            stack, weight = now, weight + at - before
        before = at
        node = known[id]
        if not opens:
            open_ids.discard(id)
        elif node.ended_ns > node.started_ns:
            open_ids.add(id)
            above = node.parent if node.parent and node.parent.id in known else top
            heapq.heappush(above.active, (-node.ended_ns, node.started_ns, id))
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


def _money_of(store: Store, session_id: str) -> Iterator[Profile]:
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
        above = _path(node) if node else (str(row["lane"]),)
        for part in PARTS:
            weight = int(row[f"{part}_usd"] * _PICO)
            stacks[(*above, f"{row['kind']} {row['canonical_model']}", part)] += weight
    said = _certainty(statuses, unpriced)
    told = tuple((stack, weight) for stack, weight in stacks.items() if weight)
    yield Profile(f"{name}, cost in 1e-12 USD, {said}", "picodollars", told)


def _path(node: _Node) -> Stack:
    path: list[str] = []
    at: _Node | None = node
    while at is not None and len(path) < DEPTH_MAX:
        path.insert(0, at.frame)
        at = at.parent
    return tuple(frame for frame in path if frame)


def _certainty(statuses: set[str], unpriced: int) -> str:
    """Return the certainty of the cost of some calls, in the words of `conversation_sessions`."""
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
