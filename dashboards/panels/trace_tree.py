"""The tree of a session: interactions, requests, tool calls and sub-agents, with the path to each failure.

Pure functions of the rows of `session_waterfall`. The position of a row is the number of its node: the waterfall bar
and the tree node of an operation have the same number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs.store.analysis.failed_steps import is_denied

Row = Mapping[str, Any]

MANY_CHILDREN = 100
"""If a node has more children than this, they are grouped. Our choice: two screens."""
GROUP_SIZE = 50
"""The number of children of a group. Our choice: one screen."""
EFFECTS = ("command", "mcp_call", "file_change")
"""The kinds of the nodes of observed effects; `session_waterfall` does not contain them."""
FEW_NODES = 150
"""Up to this number of nodes, the tree is expanded completely. Our choice: such a tree is small enough to scroll."""


@dataclass(slots=True)
class Node:
    """One operation of a session, or a group of neighbors."""

    number: int
    """The position of its row; groups have the numbers after the last row."""
    step_id: str
    """The ID in the URL: of the attempt, the tool call, the span or the interaction."""
    kind: str
    """The kind, as in `session_waterfall`, or `group`, or one of `EFFECTS`."""
    label: str
    lane: str
    turn: int | None
    started_ns: int | None
    duration_ns: int | None
    """None if the operation has no known end."""
    state: str
    detail: str
    step: Row | None = None
    """The row of `session_steps` of a request or a tool call."""
    decision: Row | None = None
    """The row of `session_steps` of the permission decision about a tool call."""
    parent: int | None = None
    children: list[int] = field(default_factory=list)
    depth: int = 1
    is_failed: bool = False
    failures: int = 0
    """The number of failed operations below it, without denied calls."""
    denials: int = 0
    """The number of denied calls below it."""
    is_on_error_path: bool = False
    """Whether it is the step that failed the session, or contains it."""
    agent: str = ""
    """The label of the sub-agent that it is or started; empty if unknown."""
    agent_lane: str = ""
    """The lane of the sub-agent that it is or started."""
    is_estimated: bool = False
    """Whether its duration is the time until the request with its result, because its run was not recorded."""
    ordinal: int | None = None
    """The number of an interaction in its session, from 1."""

    @property
    def is_denied(self) -> bool:
        """Whether a tool call was denied, according to its outcome."""
        return self.step is not None and is_denied(self.step)

    @property
    def denial(self) -> str:
        """That the call was denied, and the reason if the decision is known: `denied (person)`."""
        by = str(self.decision["outcome"]).partition(" ")[2] if self.decision is not None else ""
        return f"denied ({by})" if by else "denied"


@dataclass(frozen=True, slots=True)
class TraceTree:
    """The tree of a session."""

    nodes: Sequence[Node | None]
    """The nodes by number; None if a row has no node, as the session itself."""
    roots: Sequence[int]
    order: Sequence[int]
    """The numbers of all nodes from top to bottom."""
    failed: Sequence[int]
    """The numbers of the failed nodes and of the denied calls from top to bottom."""
    by_id: Mapping[str, int]
    failing: int | None
    """The number of the step that failed the session; None if the session did not fail, or no step did."""
    last_failed: int | None
    """If the session failed and no step is known to have caused it, the number of the step that failed last."""

    @property
    def important(self) -> int | None:
        """The number of the step that is selected at first; None for no step."""
        return self.last_failed if self.failing is None else self.failing

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.order)

    def node(self, number: int) -> Node:
        """Return a node.

        Raises:
            LookupError: no node has this number.
        """
        node = self.nodes[number] if 0 <= number < len(self.nodes) else None
        if node is None:
            raise LookupError(number)
        return node

    def step_of_evidence(self, row: Row) -> str | None:
        """Return the step ID of a finding: of the attempt, the interaction or the tool call; None if none is known."""
        evidence_id = row["evidence_id"]
        if evidence_id in self.by_id:
            return str(evidence_id)
        for number in self.order:
            node = self.node(number)
            step = node.step
            if step is None or (step["id"], step["lane"]) != (evidence_id, row["lane"]):
                continue
            if row["turn"] in (None, step["turn"]):
                return node.step_id
        return None

    def path(self, number: int) -> list[int]:
        """Return the numbers of the ancestors of a node, the root first."""
        found: list[int] = []
        parent = self.node(number).parent
        while parent is not None:
            found.append(parent)
            parent = self.node(parent).parent
        return found[::-1]

    def expanded(self, selected: int | None) -> set[int]:
        """Return the numbers of the nodes that are expanded at first: all, or those on the way to what matters."""
        if len(self.order) <= FEW_NODES:
            return {number for number in self.order if self.node(number).children}
        important = [each for each in (self.important, selected) if each is not None]
        found = {number for each in important for number in self.path(each)}
        # Without anything to lead to, the first interaction is expanded.
        return found or {number for number in self.roots[:1] if self.node(number).children}

    def visible(self, expanded: set[int]) -> Iterator[Node]:
        """Yield the visible nodes from top to bottom."""
        yield from self._below(self.roots, expanded)

    def below(self, number: int) -> Iterator[Node]:
        """Yield the children of a node, which are collapsed."""
        yield from self._below(self.node(number).children, set())

    def _below(self, numbers: Sequence[int], expanded: set[int]) -> Iterator[Node]:
        pending = list(reversed(numbers))
        while pending:
            node = self.node(pending.pop())
            yield node
            if node.number in expanded:
                pending.extend(reversed(node.children))

    def adjacent_failures(self, number: int | None) -> tuple[Node | None, Node | None]:
        """Return the failed nodes before and after a node, from top to bottom."""
        if number is None:
            return None, self.node(self.failed[0]) if self.failed else None
        place = {each: at for at, each in enumerate(self.order)}
        at = place[number]
        before = [each for each in self.failed if place[each] < at]
        after = [each for each in self.failed if place[each] > at]
        return (
            self.node(before[-1]) if before else None,
            self.node(after[0]) if after else None,
        )


def trace_tree(rows: Sequence[Row], steps: Sequence[Row], failure: Row | None = None) -> TraceTree:
    """Return the tree of a session.

    Args:
        rows: the rows of the query `session_waterfall`, and one for each effect, whose `cause` is the ID of the effect
            or the tool call that caused it, or None.
        steps: the steps of the session, with `attempt_id` and `is_failed`.
        failure: the row of `failures`, or None if the session did not fail.
    """
    by_step = {_step_key(step): step for step in steps if step["kind"] != "decision"}
    decisions = {
        (step["lane"], step["turn"], step["id"]): step
        for step in steps
        if step["kind"] == "decision"
    }
    nodes: list[Node | None] = [_node(number, row, by_step) for number, row in enumerate(rows)]
    for node in filter(None, nodes):
        if node.step is not None and node.kind != "request":
            place = (node.step["lane"], node.step["turn"], node.step["id"])
            node.decision = decisions.get(place)
            node.is_failed = node.is_failed or node.is_denied
    interactions = [each for each in filter(None, nodes) if each.kind == "interaction"]
    for ordinal, node in enumerate(interactions, 1):
        node.ordinal = ordinal
    _set_turns_of_waits(nodes)
    _set_parents(nodes, rows)
    for node in filter(None, nodes):
        if node.parent is not None and (above := nodes[node.parent]) is not None:
            above.children.append(node.number)
    roots = [each.number for each in nodes if each is not None and each.parent is None]
    roots = _grouped(nodes, None, roots)
    for parent in list(filter(None, nodes)):
        if parent.kind != "group":
            parent.children = _grouped(nodes, parent, parent.children)
    failing = _failing(nodes, failure)
    order = _order(nodes, roots)
    _count_failures(nodes, order, failing)
    shown = [(number, each) for number in order if (each := nodes[number]) is not None]
    return TraceTree(
        nodes,
        roots,
        order,
        [number for number, each in shown if each.is_failed],
        {each.step_id: number for number, each in reversed(shown)},
        failing,
        _last_failed(shown) if failure is not None and failing is None else None,
    )


def _last_failed(nodes: Sequence[tuple[int, Node]]) -> int | None:
    """Return the number of the request or tool call that failed last."""
    failed = [each for _, each in nodes if each.is_failed and each.step is not None]
    return max(failed, key=lambda each: each.started_ns or 0).number if failed else None


def _step_key(step: Row) -> str:
    """Return the ID that `session_waterfall` gives to a step."""
    if step["kind"] == "request":
        return str(step["id"])
    parts = (step["attempt_id"], step["ordinal"], step["id"])
    return " ".join(str(part) for part in parts if part is not None)


def _node(number: int, row: Row, by_step: Mapping[str, Row]) -> Node | None:
    if row["kind"] == "session":
        return None
    step = by_step.get(row["id"]) if row["kind"] in ("request", "tool", "agent") else None
    # The lane of the step: auxiliary requests have the lane that they serve in the waterfall.
    lane = str((step["lane"] if step else row["lane"]) or "main")
    started, ended = row["started_ns"], row["ended_ns"]
    is_over = ended is not None and started is not None and row["state"] not in ("open", "orphaned")
    return Node(
        number,
        str(row["id"]),
        row["kind"],
        str(row["label"] or ""),
        lane,
        row["turn"],
        started,
        max(ended - started, 0) if is_over else None,
        row["state"],
        str(row["detail"] or ""),
        step,
        is_failed=bool(step["is_failed"]) if step else row["state"] == "failed",
        agent_lane=row.get("agent_lane") or (f"{lane}/{step['id']}" if step else lane),
        is_estimated=bool(row.get("is_estimated")),
    )


def _set_turns_of_waits(nodes: Sequence[Node | None]) -> None:
    """Set the turn of each wait for the user: the turn of the last request before it in its lane."""
    turns: dict[str, int | None] = {}
    for node in filter(None, nodes):
        if node.kind == "request":
            turns[node.lane] = node.turn
        elif node.kind == "person" and node.turn is None:
            node.turn = turns.get(node.lane)


def _set_parents(nodes: list[Node | None], rows: Sequence[Row]) -> None:
    """Set the parent of each node; a sub-agent whose call is known has no node besides the call."""
    requests, interactions, agents = dict[str, int](), dict[str, int](), dict[str, int]()
    for node in filter(None, nodes):
        if node.kind == "request":
            requests[node.step_id] = node.number
        elif node.kind == "interaction":
            interactions[node.step_id] = node.number
        elif node.kind == "agent" and node.step is not None:
            agents[node.agent_lane] = node.number
    for node in list(filter(None, nodes)):
        if node.kind == "sub_agent":
            node.agent = node.label
            if node.lane in agents:
                caller = nodes[agents[node.lane]]
                assert caller is not None
                caller.agent = caller.agent or node.label
                nodes[node.number] = None
            else:
                agents[node.lane] = node.number
    waits = _requests_of_waits(nodes)
    causes = {each.step_id: each.number for each in filter(None, nodes) if each.kind in EFFECTS}
    for node in filter(None, nodes):
        if node.kind in ("tool", "agent") and node.step is not None:
            place = f"tool_call:{node.step['attempt_id']}:{node.step['ordinal']}"
            causes.setdefault(place, node.number)
    for child in filter(None, nodes):
        attempt_id = child.step["attempt_id"] if child.step else None
        if child.kind in ("tool", "agent") and attempt_id in requests:
            child.parent = requests[attempt_id]
            continue
        if child.number in waits:
            child.parent = waits[child.number]
            continue
        if child.kind in EFFECTS and (cause := causes.get(rows[child.number]["cause"])) is not None:
            child.parent = cause
            continue
        lane = child.lane.rpartition("/")[0] if child.kind == "sub_agent" else child.lane
        interaction = interactions.get(str(rows[child.number]["interaction_id"]))
        child.parent = next(
            (agents[each] for each in _lanes_upward(lane) if each in agents),
            None if child.kind == "interaction" else interaction,
        )


def _requests_of_waits(nodes: Sequence[Node | None]) -> dict[int, int]:
    """Return the number of the request whose response contains the call that waited, by the number of the wait.

    A wait about something else, such as a budget, is part of no request.
    """
    called = {
        (each.step["attempt_id"], each.label)
        for each in filter(None, nodes)
        if each.step is not None and each.kind in ("tool", "agent")
    }
    last: dict[str, Node] = {}
    found: dict[int, int] = {}
    for node in filter(None, nodes):
        if node.kind == "request":
            last[node.lane] = node
        request = last.get(node.lane)
        is_wait = node.kind in ("person", "queued")
        if is_wait and request is not None and (request.step_id, node.label) in called:
            found[node.number] = request.number
    return found


def _lanes_upward(lane: str) -> Iterator[str]:
    """Yield a lane and the lanes that contain it."""
    while lane:
        yield lane
        lane = lane.rpartition("/")[0]


def _grouped(nodes: list[Node | None], parent: Node | None, children: list[int]) -> list[int]:
    """Return the children of a node; if there are many, groups that contain them."""
    if len(children) <= MANY_CHILDREN:
        return children
    groups = []
    for start in range(0, len(children), GROUP_SIZE):
        part = children[start : start + GROUP_SIZE]
        first, last = nodes[part[0]], nodes[part[-1]]
        assert first is not None
        assert last is not None
        number = len(nodes)
        label = f"{start + 1:,} to {start + len(part):,} of {len(children):,}"
        group = Node(
            number,
            f"from {first.step_id}",
            "group",
            label,
            first.lane,
            None,
            first.started_ns,
            None,
            "ok",
            "",
            parent=None if parent is None else parent.number,
            children=part,
        )
        nodes.append(group)
        groups.append(number)
        for each in part:
            child = nodes[each]
            assert child is not None
            child.parent = number
    return groups


def _order(nodes: Sequence[Node | None], roots: Sequence[int]) -> list[int]:
    """Return the numbers of the nodes from top to bottom, and set their depths."""
    order: list[int] = []
    pending = [(number, 1) for number in reversed(roots)]
    while pending:
        number, depth = pending.pop()
        node = nodes[number]
        assert node is not None
        node.depth = depth
        order.append(number)
        pending.extend((child, depth + 1) for child in reversed(node.children))
    return order


def _count_failures(
    nodes: Sequence[Node | None], order: Sequence[int], failing: int | None
) -> None:
    for number in reversed(order):
        node = nodes[number]
        assert node is not None
        if node.parent is not None and (parent := nodes[node.parent]) is not None:
            parent.failures += node.failures + (node.is_failed and not node.is_denied)
            parent.denials += node.denials + node.is_denied
    at = failing
    while at is not None:
        on_path = nodes[at]
        assert on_path is not None
        on_path.is_on_error_path = True
        at = on_path.parent


def _failing(nodes: Sequence[Node | None], failure: Row | None) -> int | None:
    """Return the number of the step that failed the session."""
    if failure is None or failure["step_id"] is None:
        return None
    place = (failure["step_lane"], failure["step_turn"])
    for node in reversed(list(filter(None, nodes))):
        step = node.step
        is_step = step is not None and step["id"] == failure["step_id"]
        if is_step and step is not None and (step["lane"], step["turn"]) == place:
            node.is_failed = True
            return node.number
    return None
