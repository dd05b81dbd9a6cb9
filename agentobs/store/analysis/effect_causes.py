"""Causes: the graph of a session from prompts to requests, tool calls, commands, MCP calls and changed files.

Nodes and edges are facts of the store: they contain no content, and names that people or models chose are digests.
Each edge is either recorded (a message contains the cause, or an observer saw it) or inferred by a rule, which
docs/causes.md describes. An effect without a known cause has an edge from a node of the kind `unknown`, which states
why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from agentobs.effects.workspaces.attribution import Call, candidates
from agentobs.errors import UsageError
from agentobs.records.exchanges import child_lane
from agentobs.store.port import Store

NodeKind = Literal[
    "prompt", "request", "tool_call", "command", "mcp_call", "file_change", "unknown"
]
Certainty = Literal["recorded", "inferred"]
EdgeRule = str
"""The rule of an edge: `same_interaction`, `reported_lane`, `derived_lane`, `in_response`, `in_next_request`,
`parent_command`, `only_command`, `none_known`, or a rule of `effect_links` or `file_changes`.
"""
Row = Mapping[str, Any]

RESULT: EdgeRule = "in_next_request"
"""The rule of the edge from a tool call to the request with its result."""
UNKNOWN: EdgeRule = "none_known"
"""The rule of the edge from a node of the kind `unknown`."""
SWITCHES = "`agentobs record --effects all`, or `agentobs.session(..., effects=['all'])`"


@dataclass(frozen=True, slots=True)
class CauseNode:
    """A step of a session, or an effect."""

    node_id: str
    """Unique within the session: the kind and an ID or a number."""
    kind: NodeKind
    name: str
    """The model, the tool, the program, the server and its tool, or the path; names may be digests."""
    lane: str | None
    turn: int | None
    at_ns: int | None
    """When it started; for a file change, when the change was found."""
    row: Row = field(repr=False)
    """The row of its query."""


@dataclass(frozen=True, slots=True)
class CauseEdge:
    """A node that caused another one."""

    source: str
    target: str
    certainty: Certainty
    rule: EdgeRule


@dataclass(frozen=True, slots=True)
class CauseGraph:
    """A part of the causes of a session, in the order of the session."""

    session_id: str
    nodes: tuple[CauseNode, ...]
    edges: tuple[CauseEdge, ...]
    wanted: frozenset[str]
    """The requested nodes."""

    def outline(self) -> list[OutlineStep]:
        """Return the nodes in the order of a tree, each below its nearest cause.

        A request that only matters because it contains a result has a place below each of the tool calls.
        """
        into: dict[str, list[CauseEdge]] = {each.node_id: [] for each in self.nodes}
        results: dict[str, list[CauseEdge]] = {}
        for edge in self.edges:
            if edge.rule == RESULT:
                results.setdefault(edge.source, []).append(edge)
            else:
                into[edge.target].append(edge)
        by_id = {each.node_id: each for each in self.nodes}
        only_results = {
            each.target
            for edges in results.values()
            for each in edges
            if not into[each.target] and each.target not in self.wanted
        }
        below: dict[str | None, list[CauseNode]] = {}
        for node in self.nodes:
            # The last cause is the nearest one: a command, not its tool call.
            above = into[node.node_id]
            if node.node_id not in only_results:
                below.setdefault(above[-1].source if above else None, []).append(node)
        found: list[OutlineStep] = []
        pending = [(0, each) for each in reversed(below.get(None, []))]
        while pending:
            depth, node = pending.pop()
            found.append(OutlineStep(depth, node, tuple(into[node.node_id])))
            for edge in results.get(node.node_id, ()):
                found.append(OutlineStep(depth + 1, by_id[edge.target], (edge,), is_result=True))
            pending += [(depth + 1, each) for each in reversed(below.get(node.node_id, []))]
        return found


@dataclass(frozen=True, slots=True)
class OutlineStep:
    """A node in the outline of a graph."""

    depth: int
    node: CauseNode
    edges: tuple[CauseEdge, ...]
    """The edges that lead to it; the nearest cause last."""
    is_result: bool = False
    """Whether it is the request with the result of the tool call above it."""


class SessionCauses:
    """All nodes and edges of one session."""

    def __init__(self, store: Store, session_id: str) -> None:
        """Read the facts of a session.

        Args:
            store: the store.
            session_id: the full ID of the session.
        """
        self.session_id = session_id

        def rows(name: str) -> list[dict[str, Any]]:
            return store.rows(f"internal/cause_{name}", session_id=session_id).dicts()

        self.requests, self.calls = rows("requests"), rows("calls")
        self.effects, self.changes = rows("effects"), rows("changes")
        self._nodes: dict[str, CauseNode] = {}
        self._edges: list[CauseEdge] = []
        self._add_requests()
        self._add_calls()
        self._add_effects()
        self._add_changes()

    def node(self, node_id: str) -> CauseNode:
        """Return a node.

        Raises:
            UsageError: there is no such node.
        """
        if node_id not in self._nodes:
            raise UsageError("the session has no such step", where=node_id[:80])
        return self._nodes[node_id]

    @property
    def commands(self) -> list[CauseNode]:
        """The observed commands, by number."""
        return [each for each in self._nodes.values() if each.kind == "command"]

    @property
    def effect_nodes(self) -> list[CauseNode]:
        """All effects: commands and MCP calls in the order of their starts, then the changes of files."""
        kinds = ("command", "mcp_call", "file_change")
        return [each for each in self._nodes.values() if each.kind in kinds]

    @property
    def file_changes(self) -> list[CauseNode]:
        """The changes of files, by number."""
        return [each for each in self._nodes.values() if each.kind == "file_change"]

    def cause_of(self, node_id: str) -> str | None:
        """Return the ID of the nearest known cause of an effect; None if it is unknown."""
        above = [each.source for each in self._into.get(node_id, ()) if each.rule != UNKNOWN]
        return above[-1] if above else None

    def call_of(self, node_id: str) -> CauseNode | None:
        """Return the tool call of an effect; None if it is unknown."""
        above = [self._nodes[edge.source] for edge in self._into.get(node_id, ())]
        return next((each for each in above if each.kind == "tool_call"), None)

    def of_turn(self, turn: int, lane: str = "main") -> CauseGraph:
        """Return the causes and the effects of a turn.

        Raises:
            UsageError: the session has no such turn.
        """
        found = [
            row
            for row in self.requests
            if row["makes_turns"] and (row["turn"], row["lane"]) == (turn, lane)
        ]
        if not found:
            turns = [row["turn"] for row in self.requests if row["lane"] == lane and row["turn"]]
            lanes = ", ".join(dict.fromkeys(str(row["lane"]) for row in self.requests))
            known = f"it has turns {min(turns)} to {max(turns)}" if turns else "it has none"
            raise UsageError(
                f"the session has no turn {turn} of lane {lane}: {known}",
                where=self.session_id,
                todo=f"Choose another turn, or another lane with --lane: {lanes or 'none'}",
            )
        return self.graph([f"request:{found[-1]['attempt_id']}"])

    def of_command(self, number: int) -> CauseGraph:
        """Return the causes and the effects of a command, by its number from 1.

        Raises:
            UsageError: the session has no such command, or observed none.
        """
        if not self.commands:
            raise UsageError(
                "no commands were observed in this session",
                where=self.session_id,
                todo=f"Switch the effect `commands` on: {SWITCHES}",
            )
        if not 1 <= number <= len(self.commands):
            raise UsageError(
                f"the session has no command {number}",
                where=self.session_id,
                todo=f"Choose a command from 1 to {len(self.commands)}; `agentobs why {self.session_id}` lists them",
            )
        return self.graph([f"command:{self.commands[number - 1].row['effect_id']}"])

    def of_path(self, path: str) -> CauseGraph:
        """Return the causes of all changes of a file, including changes under its former names.

        Args:
            path: the path as the facts contain it: a digest.

        Raises:
            UsageError: the session did not change the file, or recorded no files.
        """
        if not self.changes:
            raise UsageError(
                "no changes of files were recorded in this session",
                where=self.session_id,
                todo=f"Switch the effect `files` on: {SWITCHES}",
            )
        names, found = {path}, []
        # Earlier names are found backward from the last change, later names forward from the first one.
        for row in reversed(self.changes):
            if row["path"] in names and row["previous_path"]:
                names.add(row["previous_path"])
        for row in self.changes:
            if row["previous_path"] in names:
                names.add(row["path"])
        for row in self.changes:
            if row["path"] in names or row["previous_path"] in names:
                found.append(f"file_change:{row['number']}")
        if not found:
            raise UsageError(
                "this file was not changed in the session",
                where=self.session_id,
                todo=f"`agentobs why {self.session_id}` lists the changed files",
            )
        return self.graph(found)

    def graph(self, wanted: Collection[str]) -> CauseGraph:
        """Return the nodes with all of their causes, their effects, and the requests that contain the results.

        Raises:
            UsageError: there is no such node.
        """
        nodes = {self.node(each).node_id for each in wanted}
        pending = list(nodes)
        while pending:  # the causes; the results of earlier turns are not among them
            for edge in self._into.get(pending.pop(), ()):
                if edge.rule != RESULT and edge.source not in nodes:
                    nodes.add(edge.source)
                    pending.append(edge.source)
        pending = list(wanted)
        while pending:
            for edge in self._from.get(pending.pop(), ()):
                if edge.rule != RESULT and edge.target not in nodes:
                    nodes.add(edge.target)
                    if self._nodes[edge.target].kind != "request":
                        pending.append(edge.target)
        causes = set(nodes)
        for node_id in [each for each in nodes if self._nodes[each].kind == "tool_call"]:
            nodes |= {edge.target for edge in self._from.get(node_id, ()) if edge.rule == RESULT}
        return CauseGraph(
            self.session_id,
            tuple(each for each in self._nodes.values() if each.node_id in nodes),
            tuple(
                each
                for each in self._edges
                if each.source in nodes
                and each.target in nodes
                and (each.rule == RESULT or each.target in causes)
                # A requested node is not shown as the result of the turn before.
                and not (each.rule == RESULT and each.target in wanted)
            ),
            frozenset(wanted),
        )

    @cached_property
    def _into(self) -> Mapping[str, Sequence[CauseEdge]]:
        return _grouped((each.target, each) for each in self._edges)

    @cached_property
    def _from(self) -> Mapping[str, Sequence[CauseEdge]]:
        return _grouped((each.source, each) for each in self._edges)

    def _add(self, node_id: str, kind: NodeKind, name: object, row: Row, at: str) -> None:
        lane, turn = row.get("lane"), row.get("turn")
        self._nodes[node_id] = CauseNode(node_id, kind, str(name), lane, turn, row.get(at), row)

    def _link(self, source: str, target: str, certainty: Certainty, rule: EdgeRule) -> None:
        if source in self._nodes:
            self._edges.append(CauseEdge(source, target, certainty, rule))

    def _add_requests(self) -> None:
        lanes = {
            child_lane(str(row["lane"]), str(row["tool_use_id"])): _call_id(row)
            for row in self.calls
        }
        for row in self.requests:
            prompt = f"prompt:{row['interaction_id']}"
            if row["interaction_id"] is not None and prompt not in self._nodes:
                self._add(prompt, "prompt", "prompt", {**row, "turn": None}, "started_ns")
            node_id = f"request:{row['attempt_id']}"
            self._add(node_id, "request", row["model"] or "request", row, "started_ns")
            # A sub-agent that a call starts again has a lane with a number after the name.
            lane = str(row["lane"])
            started_by = lanes.get(lane) or lanes.get(lane.rpartition(".")[0])
            if started_by is not None:
                is_derived = bool(row["is_lane_derived"])
                self._edges.append(
                    CauseEdge(
                        started_by,
                        node_id,
                        "inferred" if is_derived else "recorded",
                        "derived_lane" if is_derived else "reported_lane",
                    )
                )
            else:
                self._link(prompt, node_id, "recorded", "same_interaction")

    def _add_calls(self) -> None:
        answered: dict[str, list[str]] = {}
        for row in self.requests:
            if row["continues_attempt_id"] is not None:
                answered.setdefault(str(row["continues_attempt_id"]), []).append(
                    f"request:{row['attempt_id']}"
                )
        for row in self.calls:
            node_id, request = _call_id(row), f"request:{row['attempt_id']}"
            self._add(node_id, "tool_call", row["name"], row, "started_ns")
            self._link(request, node_id, "recorded", "in_response")
            if row["result_ns"] is not None:
                for later in answered.get(str(row["attempt_id"]), ()):
                    self._link(node_id, later, "recorded", RESULT)
        self._edges = [e for e in self._edges if e.source in self._nodes]

    def _add_effects(self) -> None:
        for row in self.effects:
            node_id = f"{row['kind']}:{row['effect_id']}"
            self._add(node_id, row["kind"], row["name"], row, "started_ns")
        for row in self.effects:
            node_id, call = f"{row['kind']}:{row['effect_id']}", _call_id(row)
            parent = f"command:{row['parent_command_id']}"
            if row["attempt_id"] is not None and call in self._nodes:
                certainty: Certainty = "recorded" if row["link"] == "observed" else "inferred"
                self._link(call, node_id, certainty, str(row["link_rule"]))
            elif parent not in self._nodes:
                self._add_unknown(node_id, {**row, "reason": "no_call"})
            self._link(parent, node_id, "recorded", "parent_command")

    def _add_changes(self) -> None:
        roots: dict[str, list[str]] = {}
        for row in self.effects:
            if (
                row["kind"] == "command"
                and f"command:{row['parent_command_id']}" not in self._nodes
            ):
                roots.setdefault(_call_id(row), []).append(f"command:{row['effect_id']}")
        for row in self.changes:
            node_id, call = f"file_change:{row['number']}", _call_id(row)
            self._add(node_id, "file_change", row["path"], row, "at_ns")
            if row["attempt_id"] is None or call not in self._nodes:
                self._add_unknown(node_id, {**row, "reason": "candidates", "open": self._open(row)})
                continue
            certainty: Certainty = "recorded" if row["certainty"] == "observed" else "inferred"
            self._link(call, node_id, certainty, str(row["rule"]))
            if len(roots.get(call, ())) == 1:
                self._link(roots[call][0], node_id, "inferred", "only_command")

    def _add_unknown(self, target: str, row: Row) -> None:
        node_id = f"unknown:{target}"
        self._add(node_id, "unknown", "unknown", row, "started_ns")
        self._link(node_id, target, "inferred", UNKNOWN)

    def _open(self, change: Row) -> tuple[tuple[str, int | None], ...]:
        """Return the tools and turns of the calls that may have made a change; none if another number was counted."""
        if change["since_ns"] is None or change["until_ns"] is None:
            return ()
        found = candidates(
            self._known_calls, self._lanes, int(change["since_ns"]), int(change["until_ns"])
        )
        if len(found) != change["candidates"]:
            return ()
        return tuple((each.name, each.turn) for each in found)

    @cached_property
    def _lanes(self) -> list[str]:
        return list(dict.fromkeys(str(row["lane"]) for row in self.requests))

    @cached_property
    def _known_calls(self) -> list[Call]:
        started = {row["attempt_id"]: row["response_ns"] for row in self.requests}
        return [
            Call(
                session_id=self.session_id,
                attempt_id=str(row["attempt_id"]),
                ordinal=int(row["ordinal"]),
                tool_use_id=str(row["tool_use_id"]),
                name=str(row["name"]),
                input=None,
                lane=str(row["lane"]),
                turn=row["turn"],
                interaction_id=row["interaction_id"],
                opened_ns=int(started.get(row["attempt_id"]) or row["started_ns"]),
                closed_ns=row["result_ns"],
            )
            for row in self.calls
            if row["runs_on"] == "client"
        ]


def _call_id(row: Row) -> str:
    if row.get("runs_on", "client") != "client":
        return f"tool_call:{row['attempt_id']}:{row['runs_on']}:{row['ordinal']}"
    return f"tool_call:{row['attempt_id']}:{row['ordinal']}"


def _grouped(pairs: Iterable[tuple[str, CauseEdge]]) -> dict[str, list[CauseEdge]]:
    found: dict[str, list[CauseEdge]] = {}
    for key, edge in pairs:
        found.setdefault(key, []).append(edge)
    return found


__all__ = [
    "RESULT", "SWITCHES", "UNKNOWN", "CauseEdge", "CauseGraph", "CauseNode", "Certainty", "EdgeRule", "NodeKind",
    "OutlineStep", "SessionCauses",
]  # fmt: skip
