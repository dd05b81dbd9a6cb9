"""The trace of a session: the tree of its steps, and the facts of the selected step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from agentobs.errors import UsageError
from agentobs.records.display import listed
from agentobs.records.labels import DIGEST
from agentobs.records.whole_numbers import whole_number
from agentobs.store.analysis.cause_texts import effect_text
from agentobs.store.analysis.effect_causes import CauseNode, SessionCauses
from agentobs.store.analysis.failed_steps import counted_failures, group_failed_steps
from agentobs.store.analysis.failure import Failure
from agentobs.store.analysis.lane_names import name_of_lane
from dashboards.app.site import first_of
from dashboards.app.store_view import Row, View
from dashboards.figures.phrases import count, times
from dashboards.panels.trace_tree import Node, TraceTree, trace_tree

MOST_CHARACTERS = 200
"""The maximum length of a filter, in characters. Our choice."""
MOST_MATCHES = 200
"""The maximum number of matches of a filter that are shown. Our choice."""
MOST_NAMES = 3
"""The maximum number of tools that a sentence names. Our choice: one line of text."""


NO_STEP: Row = dict.fromkeys(
    (
        "outcome", "calls", "runs_on", "input_bytes", "result_bytes", "changed_by", "cost_usd", "cost_status",
        "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
    )
)  # fmt: skip
"""A row without facts."""


@dataclass(frozen=True, slots=True)
class ShownNode:
    """A node of the tree with the texts of its labels."""

    node: Node
    label: str
    lane: str
    """The display name of the lane."""
    agent: str
    """The display name of the sub-agent that it started; empty if it started none."""
    detail: str
    is_expanded: bool


@dataclass(frozen=True, slots=True)
class ShownStep:
    """The selected step, for its page."""

    node: Node
    label: str
    lane: str
    """The display name of the lane."""
    agent: str
    """The display name of the sub-agent that it started; empty if it started none."""
    detail: str
    path: Sequence[tuple[str, str]]
    """The IDs and labels of its ancestors, the root first."""
    attempt: Row | None = None
    """The row of the attempt of a request, or of the attempt that requested a tool call."""
    step: Row = field(default_factory=lambda: NO_STEP)
    """The row of `session_steps`, with the original texts; NO_STEP if there is none."""
    changed_zones: str | None = None
    """What changed in the cached prefix since the previous request of the agent; None if unknown."""
    is_first_request: bool = False
    """Whether it is a request without a previous request of the same agent."""
    error: Row | None = None
    """The row of `errors` of a failed step."""


def tree_of(
    rows: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    failure: Failure | None,
    causes: SessionCauses,
) -> TraceTree:
    """Return the tree of a session, given its rows of `session_waterfall`, its steps and its causes."""
    effects = [_effect_row(causes, each) for each in causes.effect_nodes]
    return trace_tree([*rows, *effects], steps, failure.row if failure else None)


def _effect_row(causes: SessionCauses, node: CauseNode) -> Row:
    """Return an effect as a row of the tree."""
    name, detail = effect_text(node)
    took = node.row.get("duration_ns")
    ended = node.at_ns + took if node.at_ns is not None and took is not None else None
    return {
        "kind": node.kind,
        "id": node.node_id,
        "interaction_id": node.row["interaction_id"],
        "lane": node.lane,
        "turn": node.turn,
        "label": name,
        "started_ns": node.at_ns,
        "ended_ns": ended,
        "state": "failed" if _is_failed(node) else "ok",
        "detail": detail,
        "cause": causes.cause_of(node.node_id),
    }


def _is_failed(node: CauseNode) -> bool:
    """Return whether an effect failed.

    A command failed if it was not started, ended by a signal, or has another exit code than 0. An MCP call failed if it
    has an error or no response.
    """
    match node.kind:
        case "command":
            outcome = node.row["outcome"]
            return outcome in ("signaled", "not_started") or bool(node.row["exit_code"])
        case "mcp_call":
            return bool(node.row["outcome"] != "ok")
        case _:
            return False


def selected_number(tree: TraceTree, query: Mapping[str, str]) -> int | None:
    """Return the number of the step in the URL; without one, of the step that failed the session.

    Raises:
        UsageError: the step does not exist.
    """
    if "number" in query:
        number = whole_number(query["number"])
        if number is not None:
            try:
                return tree.node(number).number
            except LookupError:
                pass
        raise UsageError("no step with this number", where=query["number"][:80])
    step_id = query.get("step")
    if not step_id:
        return tree.important
    if step_id not in tree.by_id:
        raise UsageError(
            "no step with this ID",
            where=step_id[:80],
            todo="The step may belong to another session; open the session without ?step=",
        )
    return tree.by_id[step_id]


def turns_by_lane(tree: TraceTree) -> dict[str, tuple[int, int]]:
    """Return the numbers of the first and the last turn of each agent that has turns, by lane, the main agent first."""
    turns: dict[str, list[int]] = {"main": []}
    for node in map(tree.node, tree.order):
        if node.kind == "request" and node.turn is not None:
            turns.setdefault(node.lane, []).append(node.turn)
    return {lane: (min(known), max(known)) for lane, known in turns.items() if known}


def step_of_turn(tree: TraceTree, text: str, lane: str = "main") -> str:
    """Return the ID of the request of a turn of an agent.

    Raises:
        UsageError: the agent has no such turn.
    """
    requests = [
        node
        for node in map(tree.node, tree.order)
        if node.kind == "request" and node.lane == lane and str(node.turn) == text.strip()
    ]
    # The last attempt of a turn got its response.
    if requests:
        return requests[-1].step_id
    turns = turns_by_lane(tree).get(lane)
    todo = f"Its turns are {turns[0]:,} to {turns[1]:,}" if turns else ""
    agent = "the main agent" if lane == "main" else "this agent"
    raise UsageError(f"{agent} has no such turn", where=f"turn {text[:20]}", todo=todo)


def shown_nodes(
    view: View, nodes: Sequence[Node], expanded: set[int], agents: Mapping[str, str]
) -> list[ShownNode]:
    """Return nodes with the texts of their labels, and the display names of their lanes."""
    rows = [{"label": each.label, "detail": each.detail} for each in nodes]
    texts = view.texts.replace_in_dicts(rows)
    return [
        ShownNode(
            node,
            text["label"],
            name_of_lane(node.lane, agents),
            _started_agent(node, agents),
            text["detail"],
            node.number in expanded,
        )
        for node, text in zip(nodes, texts, strict=True)
    ]


def _started_agent(node: Node, agents: Mapping[str, str]) -> str:
    """Return the display name of the sub-agent that a node started; empty if it started none."""
    if node.kind == "sub_agent":
        return name_of_lane(node.lane, agents)
    if node.kind == "agent" and node.step is not None:
        return agents.get(node.agent_lane, "")
    return ""


def earlier_failures(
    view: View, tree: TraceTree, agents: Mapping[str, str]
) -> tuple[str, Sequence[str]]:
    """Return the tool calls and request attempts that failed before the step that the banner names: a sentence, and
    their step IDs.

    Calls that contain this step are left out, because they failed later. The sentence is empty if there are none.
    """
    if tree.important is None:
        return "", ()
    last, around = tree.node(tree.important), tree.path(tree.important)
    failed = [
        node
        for node in map(tree.node, tree.failed)
        if node.kind in ("tool", "agent", "request")
        and node.number not in (last.number, *around)
        and (node.started_ns or 0) < (last.started_ns or 0)
    ]
    failed.sort(key=lambda node: node.started_ns or 0)
    shown = shown_nodes(view, failed, set(), agents)
    if not shown:
        return "", ()
    named: dict[str, list[ShownNode]] = {}
    for each in shown:
        verb = "was denied" if each.node.is_denied else "failed"
        named.setdefault(f"{_failing(each)} {verb}", []).append(each)
    ordered = sorted(named.items(), key=lambda item: -len(item[1]))
    listed = [f"{name} {times(len(found))}{_classes(found)}" for name, found in ordered]
    kept = listed[:MOST_NAMES]
    if rest := [each.node for _, found in ordered[MOST_NAMES:] for each in found]:
        kept.append(f"and {count(len(rest), 'more step')} {_verb_of(rest)}")
    text = f"Before it, {', '.join(kept)}{_agents_of(failed, agents)}."
    return text, [node.step_id for node in failed]


def _verb_of(nodes: Sequence[Node]) -> str:
    """Return what happened to steps, as a verb after their number: `failed`, `were denied`, or both."""
    denied = "was denied" if len(nodes) == 1 else "were denied"
    verbs = {denied if each.is_denied else "failed" for each in nodes}
    return " or ".join(sorted(verbs))


def _failing(shown: ShownNode) -> str:
    """Return the name of what failed: the tool, or the model of a request."""
    if shown.node.kind == "request":
        return "a request" if shown.label.startswith(DIGEST) else f"request {shown.label}"
    return "an unnamed tool" if shown.label.startswith(DIGEST) else shown.label


def _classes(failed: Sequence[ShownNode]) -> str:
    """Return how calls of a tool failed, in parentheses, with numbers if they differ; empty if unknown."""
    reasons = Counter(each.detail for each in failed if not each.detail.startswith(DIGEST))
    for unspecific in ("", "failed", "denied"):
        del reasons[unspecific]
    if not reasons:
        return ""
    if reasons.total() == len(failed) and len(reasons) == 1:
        return f" ({next(iter(reasons))})"
    return f" ({', '.join(f'{number:,} {why}' for why, number in reasons.most_common())})"


def _agents_of(nodes: Sequence[Node], agents: Mapping[str, str]) -> str:
    """Return in which agents steps ran, in words; empty if the main agent and sub-agents ran them."""
    lanes = {node.lane for node in nodes}
    if "main" in lanes:
        return " in the main agent" if len(lanes) == 1 else ""
    if len(lanes) == 1:
        return f" in {name_of_lane(lanes.pop(), agents)}"
    return f" in {len(lanes):,} sub-agents"


class Matches(NamedTuple):
    """The nodes that match a filter."""

    nodes: Sequence[ShownNode]
    """Those that are shown."""
    summary: str
    """The number of steps that match, in one or two short sentences."""


def matching_nodes(
    view: View,
    tree: TraceTree,
    words: str,
    agents: Mapping[str, str],
    *,
    only_failed: bool,
    errors: Sequence[Mapping[str, Any]],
    arguments: Mapping[int, str] = MappingProxyType({}),
    among: Collection[int] | None = None,
) -> Matches:
    """Return the nodes that match a filter.

    Args:
        view: the state of the store.
        tree: the tree of the session.
        words: the words that a node must contain.
        agents: the display names of the lanes.
        only_failed: whether only failed nodes match.
        errors: the rows of `session_errors`.
        arguments: the main arguments of calls, by the numbers of their nodes, if content may be searched.
        among: the numbers of the nodes that may match; None for all.
    """
    every = [tree.node(number) for number in tree.order if among is None or number in among]
    shown = shown_nodes(view, every, set(), agents)
    wanted = words.casefold().split()
    found = [
        each
        for each in shown
        if each.node.kind != "group"
        and (each.node.is_failed or not only_failed)
        and _contains(each, wanted, arguments)
    ]
    more = max(len(found) - MOST_MATCHES, 0)
    counted = f"{len(found):,} {'step matches' if len(found) == 1 else 'steps match'}"
    if only_failed and found:
        counted = _failures_in_words([each.node for each in found], errors)
    left_out = f"; {more:,} more {'is' if more == 1 else 'are'} not shown" if more else ""
    return Matches(found[:MOST_MATCHES], f"{counted}{left_out}.")


def _failures_in_words(failed: Sequence[Node], errors: Sequence[Mapping[str, Any]]) -> str:
    """Return how many of the tool calls and request attempts failed or were denied, as `agentobs show` counts them, and
    how many other steps are marked as failed, such as the interaction that one of them ended.

    Args:
        failed: the nodes that are marked as failed.
        errors: the rows of `session_errors`.
    """
    known = {(row["lane"], row["turn"], row["id"]): row for row in errors}
    counted, others = [], Counter[str]()
    for each in failed:
        noun = _FAILURES.get(each.kind, each.kind.replace("_", " "))
        step = each.step
        if step is None:
            others[noun] += 1
        elif error := known.get((step["lane"], step["turn"], step["id"])):
            counted.append(error)
        else:
            # It is not an error: the tree marks it for another reason.
            others[f"other {noun}"] += 1
    own = counted_failures(group_failed_steps(counted, ()))
    if not others:
        return own
    rest = listed([count(number, noun) for noun, number in sorted(others.items(), reverse=True)])
    marked = f"marked as failed: {rest}"
    return f"{own}; also {marked}" if own else f"No tool call or request attempt failed; {marked}"


_FAILURES = {
    "tool": "tool call",
    "agent": "tool call",
    "request": "request attempt",
    "sub_agent": "sub-agent",
    "mcp_call": "MCP call",
}
"""What a failed node counts as; other kinds are their own words."""


def shown_step(
    view: View,
    tree: TraceTree,
    number: int | None,
    agents: Mapping[str, str],
    errors: Callable[[], Sequence[Mapping[str, Any]]],
) -> ShownStep | None:
    """Return the selected step with its facts; None if no step is selected.

    Args:
        view: the state of the store.
        tree: the tree of the session.
        number: the number of the selected step.
        agents: the display names of the lanes.
        errors: returns the rows of `session_errors`; only called for a failed step.
    """
    if number is None:
        return None
    node = tree.node(number)
    way = [tree.node(each) for each in tree.path(number)]
    texts = shown_nodes(view, [*way, node], set(), agents)
    error = _error(node, errors)
    step = view.texts.replace_in_dicts([node.step])[0] if node.step else NO_STEP
    attempt_id = node.step["attempt_id"] if node.step else None
    attempt = (
        first_of(view.named("internal/attempt", attempt_id=attempt_id)) if attempt_id else None
    )
    changed, is_first = None, False
    if attempt and node.kind == "request":
        key = {"session_id": attempt["session_id"], "attempt_id": attempt["attempt_id"]}
        zones = view.named("internal/zone_changes", **key)
        near = view.named("internal/adjacent_attempts", **key, lane=attempt["lane"])
        # The recorder may have compared the first prompt of an agent with the prompt of another agent.
        is_first = not zones[0]["is_own_lane"] if zones else bool(near and not near[0]["before_id"])
        changed = str(zones[0]["zones_changed"] or "") if zones and not is_first else None
    return ShownStep(
        node,
        texts[-1].label,
        texts[-1].lane,
        texts[-1].agent,
        texts[-1].detail,
        [(each.node.step_id, _name(each)) for each in texts[:-1]],
        attempt,
        step,
        changed,
        is_first,
        view.texts.replace_in_dicts([error])[0] if error else None,
    )


def _error(
    node: Node, errors: Callable[[], Sequence[Mapping[str, Any]]]
) -> Mapping[str, Any] | None:
    """Return the row of `session_errors` of a failed step; None if it is unknown."""
    if not node.is_failed or node.step is None:
        return None
    step = node.step
    place = (step["lane"], step["turn"], step["id"])
    found = (row for row in errors() if (row["lane"], row["turn"], row["id"]) == place)
    return next(found, None)


def _name(shown: ShownNode) -> str:
    node = shown.node
    if node.kind == "request" and node.turn is not None:
        return f"turn {node.turn:,}"
    if node.kind == "group":
        return shown.label
    if shown.agent:
        return shown.agent
    if node.kind == "interaction":
        return f"interaction {node.ordinal:,}"
    return shown.label or node.kind.replace("_", " ")


def _contains(shown: ShownNode, words: Sequence[str], arguments: Mapping[int, str]) -> bool:
    text = f"{_searchable(shown)}\n{arguments.get(shown.node.number, '').casefold()}"
    return all(word in text for word in words)


def _searchable(shown: ShownNode) -> str:
    """Return the text in which a filter searches, without case."""
    node = shown.node
    step: Mapping[str, Any] = node.step or {}
    turn = "" if node.turn is None else f"turn {node.turn} turn={node.turn}"
    kind = node.kind.replace("_", " ")
    words = (
        kind if node.ordinal is None else f"{kind} {node.ordinal}",
        shown.label, shown.lane, node.lane, shown.agent, shown.detail, node.step_id, turn,
        step.get("outcome"), step.get("stop_reason"), "failed" if node.is_failed else "",
    )  # fmt: skip
    return "\n".join(str(word) for word in words if word).casefold()
