"""The failures of a session in groups: failed sub-agents with why they ended, and errors by tool, class and place.

Pure functions of the tree of a session and of the rows of its errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentobs.records.labels import DIGEST
from agentobs.records.request_failures import request_failure
from agentobs.store.analysis.failed_steps import NO_CLASS
from dashboards.figures.phrases import count, times
from dashboards.panels.failure_words import run_result
from dashboards.panels.panels import RestoreNames
from dashboards.panels.trace_tree import Node, TraceTree

Row = Mapping[str, Any]
MOST_GROUPS = 3
"""The maximum number of groups that a banner lists. Our choice: three lines."""
MOST_NAMES = 3
"""The maximum number of sub-agents that a headline names. Our choice: one line."""
_UNSPECIFIC = ("failed", "error", "executed", "ok")
"""Outcomes that say no more than that a step failed."""
_RANKS = {"agent": 0, "interaction": 0, "tool": 1, "request": 1}


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed steps with the same name, error and place. Its texts may be digests until `restored`."""

    kind: str
    """`agent`, `interaction`, `tool` or `request`."""
    name: str
    """The sub-agent, the tool or the model."""
    error: str
    """The class of the error or the outcome; for a sub-agent, why it ended. Empty if unknown."""
    file: str
    line: int | None
    status: int | None
    """The HTTP status of a request."""
    agent: str
    """The sub-agent in which the steps failed; empty for the main agent, and if there are several agents."""
    numbers: Sequence[int]
    """The numbers of the failed nodes, in the order of their start."""
    own_lane: str
    """The lane of the failed sub-agent; empty for other steps, and if there are several sub-agents."""
    lane: str
    """The lane in which the steps failed; empty if there are several."""
    calls: int
    """The number of all calls of the tool; 0 for other steps."""
    is_repaired: bool
    """Whether a retry of each of them succeeded: of a tool call, a later call with the same input."""
    is_denied: bool = False
    """Whether they are calls that were denied, and did not fail."""

    @property
    def text(self) -> str:
        """The group in one line."""
        number = len(self.numbers)
        where = (
            f" at {self.file}{'' if self.line is None else f':{self.line}'}" if self.file else ""
        )
        inside = f", in sub-agent {_name(self.agent)}" if self.agent else ""
        repair = ""
        if self.is_repaired:
            repair = "; a retry succeeded" if number == 1 else "; a retry of each succeeded"
        match self.kind:
            case "agent":
                often = "" if number == 1 else f" {times(number)}"
                why = f": {self.error}" if self.error else ""
                return f"Sub-agent {_name(self.name)} failed{often}{why}{where}{inside}{repair}"
            case "interaction":
                ended = f" with {self.error}" if self.error else ""
                return f"{count(number, 'interaction')} failed{ended}"
            case "request":
                error = self.error or "error"
                if " " in error:
                    requests = count(number, "request")
                    return f"{requests} to {_name(self.name)} failed: {error}{inside}{repair}"
                status = "" if self.status in (None, 200) else f" (HTTP {self.status})"
                return f"{number:,} × {error}{status} of {_name(self.name)}{inside}{repair}"
            case _ if self.is_denied:
                return f"{_name(self.name)} was denied {times(number)}{inside}{repair}"
            case _:
                error = f"{number:,} × {self.error} in " if self.error else ""
                calls = "" if self.error else f" failed {times(number)}"
                unknown = f", {NO_CLASS}" if number > 1 and not self.error else ""
                return f"{error}{_name(self.name)}{calls}{where}{inside}{unknown}{repair}"

    def first_error_heading(self, *, have_equal_texts: bool) -> str:
        """Return the heading of the text of the first error: whether the others are the same; empty without others.

        Args:
            have_equal_texts: whether the texts of all of them are known to be equal.
        """
        number = len(self.numbers)
        if number == 1:
            return ""
        if have_equal_texts:
            return f"{number:,} times the same {'result' if self.is_denied else 'error'}:"
        if self.is_denied:
            both = "Both" if number == 2 else f"All {number:,}"
            return f"{both} were denied. Result of the first:"
        if not self.error:
            other = "the other" if number == 2 else "the others"
            return f"Error of the first of {number:,}; {other} may differ:"
        both = "Both" if number == 2 else f"All {number:,}"
        return f"{both} failed with {self.error}. Error of the first:"


@dataclass(frozen=True, slots=True)
class SessionFailures:
    """The failures of a session that completed, or of a sub-agent."""

    groups: Sequence[FailureGroup]
    """The most important group first."""

    @property
    def first(self) -> int:
        """The number of the node that failed first in the most important group."""
        return self.groups[0].numbers[0]

    @property
    def is_repaired(self) -> bool:
        """Whether only requests failed, and a retry of each succeeded."""
        return all(each.is_repaired and each.kind == "request" for each in self.groups)

    @property
    def headline(self) -> str:
        """What failed, in one short sentence after `Completed, but`."""
        top = self.groups[0]
        same = [each for each in self.groups if each.kind == top.kind]
        match top.kind:
            case "agent":
                names = list(dict.fromkeys(_name(each.name) for each in same))
                listed = _listed(names, f"{len(names) - MOST_NAMES:,} more")
                return f"sub-agent{'s' * (len(names) > 1)} {listed} failed"
            case "tool":
                parts = _tools_in_words(same)
                return _listed(parts, count(len(parts) - MOST_NAMES, "other tool"))
            case _:
                lost = [each for each in same if each.is_repaired == top.is_repaired]
                return f"{count(sum(len(each.numbers) for each in lost), top.kind)} failed"

    @property
    def repeats_headline(self) -> bool:
        """Whether the only group, of one tool call, says no more than the headline."""
        top = self.groups[0]
        has_error = bool(top.error) and not top.is_denied
        is_bare = top.kind == "tool" and not (has_error or top.file or top.agent or top.is_repaired)
        return len(self.groups) == 1 and is_bare and len(top.numbers) == 1

    @property
    def listed(self) -> Sequence[FailureGroup]:
        """The groups that a banner lists."""
        return self.groups[:MOST_GROUPS]

    @property
    def more(self) -> int:
        """The number of failures in groups that are not listed."""
        return sum(len(each.numbers) for each in self.groups[MOST_GROUPS:])

    def restored(self, restore_names: RestoreNames, names_of: Mapping[str, str]) -> SessionFailures:
        """Return the groups with the original texts, and with the display names of sub-agents, given by lane."""
        names = ("name", "error", "file", "agent")
        rows = [{name: getattr(each, name) for name in names} for each in self.groups]
        groups = [
            replace(
                each,
                name=names_of.get(each.own_lane, row["name"]),
                error=row["error"],
                file=row["file"],
                agent="" if each.lane in ("", "main") else names_of.get(each.lane, row["agent"]),
            )
            for each, row in zip(self.groups, restore_names(rows), strict=True)
        ]
        return SessionFailures(groups)


def session_failures(
    tree: TraceTree, errors: Sequence[Row], ends: Sequence[Row], inside: str = ""
) -> SessionFailures | None:
    """Return the failures of a session in groups; None if no step failed.

    Args:
        tree: the tree of the session.
        errors: its rows of `session_errors`.
        ends: its rows of `internal/agent_ends`.
        inside: the lane of a sub-agent; only failures in it are returned. Default: all.
    """
    failed = [
        node
        for node in map(tree.node, tree.failed)
        if _kind(node) and (not inside or f"{node.lane}/".startswith(f"{inside}/"))
    ]
    if not failed:
        return None
    by_step = {(row["lane"], row["turn"], row["id"]): row for row in errors}
    end_of = {row["lane"]: row for row in ends}
    agents = {node.agent_lane: node.agent for node in map(tree.node, tree.order) if node.agent}
    succeeded = _last_successes(tree)
    calls = Counter(
        node.label
        for node in map(tree.node, tree.order)
        if node.kind == "tool" and (not inside or f"{node.lane}/".startswith(f"{inside}/"))
    )
    groups: dict[tuple[Any, ...], list[Node]] = {}
    for node in sorted(failed, key=lambda each: each.started_ns or 0):
        error = error_of(node, by_step)
        why = reason(node, error, end_of)
        file = str(error.get("error_file") or "")
        is_repaired = (node.started_ns or 0) < succeeded.get(_successor_key(node), 0)
        key = (
            _kind(node), node.agent or node.label, why, file, error.get("error_line"),
            error.get("status"), is_repaired, node.is_denied,
        )  # fmt: skip
        groups.setdefault(key, []).append(node)
    found = []
    for (kind, name, why, file, line, status, is_repaired, denied), nodes in groups.items():
        lanes = {node.lane for node in nodes}
        lane = lanes.pop() if len(lanes) == 1 else ""
        own = nodes[0].agent_lane if kind == "agent" and len(nodes) == 1 else ""
        numbers = [node.number for node in nodes]
        agent = agents.get(lane, "")
        found.append(
            FailureGroup(
                kind,
                name,
                why,
                file,
                line,
                status,
                agent,
                numbers,
                own,
                lane,
                calls[name] if kind == "tool" else 0,
                is_repaired,
                denied,
            )
        )
    found.sort(key=lambda each: (each.is_repaired, _RANKS[each.kind], -len(each.numbers)))
    return SessionFailures(found)


def error_of(node: Node, by_step: Mapping[tuple[Any, ...], Row]) -> Row:
    """Return the row of the error of a node; an empty row if it is unknown."""
    step = node.step
    return {} if step is None else by_step.get((step["lane"], step["turn"], step["id"]), {})


def reason(node: Node, error: Row, end_of: Mapping[str, Row]) -> str:
    """Return why a node failed: how its sub-agent ended, the class of its error, or its outcome; empty if unknown."""
    if node.is_denied:
        return "denied"
    end = end_of.get(node.agent_lane) if node.kind in ("agent", "sub_agent") else None
    if end is not None and end["result"] not in (None, "success"):
        return run_result(str(end["result"]), end["turns"])
    error_class, outcome = error.get("error_class"), error.get("outcome")
    if node.kind == "request" and outcome not in (None, "http_error"):
        return request_failure(str(outcome), error_class, error.get("status"))
    if error_class:
        return str(error_class)
    outcome = outcome or (node.step or {}).get("outcome") or node.detail
    return "" if outcome in (None, "", *_UNSPECIFIC) else run_result(str(outcome))


def failures_of_failed_agent(
    tree: TraceTree, errors: Sequence[Row], ends: Sequence[Row]
) -> SessionFailures | None:
    """Return what failed in the sub-agent whose call failed the session; None if no such call did, or nothing failed.

    Failures that were repaired are left out.
    """
    failing = None if tree.failing is None else tree.node(tree.failing)
    if failing is None or failing.kind != "agent":
        return None
    found = session_failures(tree, errors, ends, failing.agent_lane)
    groups = [each for each in found.groups if not each.is_repaired] if found else []
    return SessionFailures(groups) if groups else None


def add_reasons(tree: TraceTree, errors: Sequence[Row], ends: Sequence[Row]) -> None:
    """Replace the outcomes of failed steps, such as `failed`, by the reasons, if these are known."""
    by_step = {(row["lane"], row["turn"], row["id"]): row for row in errors}
    end_of = {row["lane"]: row for row in ends}
    for node in map(tree.node, tree.failed):
        error = error_of(node, by_step)
        words = reason(node, error, end_of)
        if node.kind == "request" and error.get("outcome") == "http_error":
            words = request_failure("http_error", error.get("error_class"), error.get("status"))
        # The class of an error is a digest if the program did not declare it. Only `detail` can be restored.
        if not words or words.startswith(DIGEST) or node.is_denied:
            continue
        node.detail = words
        if node.step is not None:
            node.step = {**node.step, "outcome": words}


def _kind(node: Node) -> str:
    """Return the kind of the group of a failed node; empty if the node is in none, such as an effect of a call."""
    if node.kind in ("tool", "request") and node.step is not None:
        return node.kind
    if node.kind in ("agent", "sub_agent"):
        return "agent"
    return node.kind if node.kind == "interaction" else ""


def _last_successes(tree: TraceTree) -> dict[tuple[Any, ...], int]:
    """Return when the last success of each retried request and call started."""
    found: dict[tuple[Any, ...], int] = {}
    for node in map(tree.node, tree.order):
        if _kind(node) and not node.is_failed and node.state == "ok" and node.started_ns:
            key = _successor_key(node)
            found[key] = max(found.get(key, 0), node.started_ns)
    return found


def _successor_key(node: Node) -> tuple[Any, ...]:
    """Return what a failed node has in common with the node that repairs it.

    Only a call with the same input is a retry: another page that was fetched does not replace the missing page.
    """
    step = node.step
    if node.kind == "request":
        # A request without a turn has no retry that could be recognized.
        return ("request", node.lane, node.turn if node.turn is not None else node.step_id)
    if step is not None and (similarity := step.get("input_similarity")) is not None:
        # The hash ignores punctuation, so the size must match as well.
        return ("call", node.lane, node.label, similarity, step.get("input_bytes"))
    return (node.kind, node.step_id)


def _listed(names: Sequence[str], more: str) -> str:
    """Return up to `MOST_NAMES` names as a list in words, and `more` if there are others."""
    listed = [*names[:MOST_NAMES], *([more] if len(names) > MOST_NAMES else [])]
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def _tools_in_words(groups: Sequence[FailureGroup]) -> list[str]:
    """Return of each tool how often it failed and was denied, in words; a verb is not repeated."""
    tools: dict[str, Counter[str]] = {}
    for each in groups:
        verb = "was denied" if each.is_denied else "failed"
        tools.setdefault(_name(each.name), Counter())[verb] += len(each.numbers)
    calls = {_name(each.name): each.calls for each in groups}
    parts, before = [], ""
    for name, numbers in tools.items():
        ways = []
        for verb, number in numbers.items():
            shown = verb if verb != before else ""
            ways.append(" ".join(filter(None, (shown, _times_of(number, calls[name])))))
            before = verb
        parts.append(f"{name} {' and '.join(ways)}")
    return parts


def _times_of(failed: int, calls: int) -> str:
    """Return how often a tool failed, of how many calls."""
    return f"in {failed:,} of {calls:,} calls" if calls > 1 else times(failed)


def _name(label: str) -> str:
    return "without a name" if not label or label.startswith(DIGEST) else label
