"""The tree of a session: what contains what, which path failed, and how large sessions are divided."""

from __future__ import annotations

from typing import Any

import pytest

from dashboards.panels.trace_tree import FEW_NODES, GROUP_SIZE, Node, TraceTree, trace_tree

SECOND = 1_000_000_000


def row(kind: str, id: str, at: int, **changes: Any) -> dict[str, Any]:
    """Return a row of `session_waterfall`."""
    usual = {
        "kind": kind, "id": id, "interaction_id": "i1", "lane": "main", "is_upkeep": False, "turn": None, "label": id,
        "part": "own", "started_ns": at * SECOND, "ended_ns": (at + 1) * SECOND, "state": "ok", "detail": None,
        "prompt_tokens": None, "output_tokens": None,
    }  # fmt: skip
    return {**usual, **changes}


def step(kind: str, attempt_id: str, id: str, **changes: Any) -> dict[str, Any]:
    """Return a step with its attempt."""
    usual = {
        "kind": kind, "attempt_id": attempt_id, "id": id, "lane": "main", "turn": 1, "ordinal": 1, "outcome": "ok",
        "stop_reason": None, "is_failed": False,
    }  # fmt: skip
    return {**usual, **changes}


def example(failure: dict[str, Any] | None = None) -> TraceTree:
    """Return the tree of an interaction with two turns, a sub-agent and a failed call."""
    inner = {"lane": "main/call2"}
    rows = [
        row("session", "s", 0, lane=None, interaction_id=None),
        row("interaction", "i1", 0),
        row("request", "a1", 1, turn=1),
        row("tool", "a1 1 call1", 2, turn=1),
        row("agent", "a1 2 call2", 3, turn=1),
        row("sub_agent", "span", 3, **inner),
        row("request", "b1", 4, turn=1, **inner),
        row("tool", "b1 1 call3", 5, turn=1, state="failed", **inner),
        row("request", "a2", 6, turn=2),
        row("hook", "h", 7),
    ]
    steps = [
        step("request", "a1", "a1"),
        step("tool_call", "a1", "call1"),
        step("decision", "a1", "call1", outcome="allow"),
        step("tool_call", "a1", "call2", ordinal=2),
        step("request", "b1", "b1", **inner),
        step("tool_call", "b1", "call3", outcome="failed", is_failed=True, **inner),
        step("request", "a2", "a2", turn=2),
    ]
    return trace_tree(rows, steps, failure)


def outline(tree: TraceTree) -> list[str]:
    """Return the nodes from top to bottom, indented."""
    return [f"{'  ' * (node.depth - 1)}{node.step_id}" for node in map(tree.node, tree.order)]


def test_operations_are_below_what_started_them() -> None:
    """Calls are below their request, the requests of a sub-agent below its call, and the rest below the interaction."""
    assert outline(example()) == [
        "i1",
        "  a1",
        "    a1 1 call1",
        "    a1 2 call2",
        "      b1",
        "        b1 1 call3",
        "  a2",
        "  h",
    ]


def test_a_node_has_the_number_of_its_row() -> None:
    """The number of a node is the position of its row, so that the bars of the waterfall can refer to it."""
    tree = example()
    assert tree.node(2).step_id == "a1"
    assert tree.node(7).step_id == "b1 1 call3"
    for number in (0, 5, 99):
        with pytest.raises(LookupError):
            tree.node(number)


def test_interactions_are_numbered() -> None:
    """Interactions have the numbers 1, 2 and so on in the order in which they started; other steps have none."""
    rows = [
        row("session", "s", 0, lane=None, interaction_id=None),
        row("interaction", "i1", 0),
        row("request", "a1", 1, turn=1),
        row("interaction", "i2", 2, interaction_id="i2"),
    ]
    tree = trace_tree(rows, [step("request", "a1", "a1")])
    ordinals = {node.step_id: node.ordinal for node in map(tree.node, tree.order)}
    assert ordinals == {"i1": 1, "a1": None, "i2": 2}


def test_the_error_path_leads_to_the_failed_step() -> None:
    """The step that failed the session and its ancestors are marked, and each counts the failures below it."""
    failure = {"step_id": "call3", "step_lane": "main/call2", "step_turn": 1}
    tree = example(failure)
    assert tree.failing == 7
    marked = [node.step_id for node in map(tree.node, tree.order) if node.is_on_error_path]
    assert marked == ["i1", "a1", "a1 2 call2", "b1", "b1 1 call3"]
    assert [tree.node(number).failures for number in (1, 2, 3, 7)] == [1, 1, 0, 0]
    assert example({**failure, "step_lane": "main"}).failing is None


def test_a_decision_belongs_to_its_call() -> None:
    """The permission decision about a tool call is a fact of the call."""
    decision = example().node(3).decision
    assert decision is not None
    assert decision["outcome"] == "allow"


@pytest.mark.parametrize(("outcome", "failed"), [("denied", ["a1 1 call1"]), ("ok", [])])
def test_a_denied_call_is_marked(outcome: str, failed: list[str]) -> None:
    """A call whose outcome is a denial is marked. A call that was executed is not, whatever a decision about it was."""
    decision = step("decision", "a1", "call1", outcome="deny person", is_failed=True)
    made = step("tool_call", "a1", "call1", outcome=outcome)
    rows = [row("request", "a1", 1), row("tool", "a1 1 call1", 2, state="stopped")]
    tree = trace_tree(rows, [step("request", "a1", "a1"), made, decision])
    assert [tree.node(number).step_id for number in tree.failed] == failed


def test_a_wait_for_the_user_has_the_turn_of_the_request_before_it() -> None:
    """A wait has the turn of the last request before it in its lane; a wait before any request has none."""
    rows = [
        row("interaction", "i1", 0),
        row("person", "w1", 1),
        row("request", "a1", 2, turn=7),
        row("request", "b1", 3, turn=1, lane="main/call2"),
        row("person", "w2", 4),
    ]
    tree = trace_tree(rows, [])
    assert [tree.node(number).turn for number in (1, 4)] == [None, 7]


def test_a_wait_for_an_approval_is_beside_its_call() -> None:
    """An approval wait is below the request whose response has the call, before the call; other waits are not."""
    rows = [
        row("interaction", "i1", 0),
        row("person", "w1", 1, label="budget"),
        row("request", "a1", 2, turn=1),
        row("person", "w2", 3, label="refund"),
        row("queued", "q1", 4, label="refund"),
        row("tool", "a1 1 call1", 5, turn=1, label="refund"),
        row("person", "w3", 6, label="budget"),
    ]
    steps = [step("request", "a1", "a1"), step("tool_call", "a1", "call1")]
    assert outline(trace_tree(rows, steps)) == [
        "i1", "  w1", "  a1", "    w2", "    q1", "    a1 1 call1", "  w3",
    ]  # fmt: skip


def test_failures_before_and_after() -> None:
    """From any step, the previous and the next failed step are known; without a step, the first one."""

    def ids(number: int | None) -> tuple[str | None, str | None]:
        before, after = example().adjacent_failures(number)
        return (before.step_id if before else None, after.step_id if after else None)

    assert ids(None) == (None, "b1 1 call3")
    assert ids(2) == (None, "b1 1 call3")
    assert ids(7) == (None, None)
    assert ids(8) == ("b1 1 call3", None)


def test_a_sub_agent_without_a_call_contains_its_requests() -> None:
    """If the call that started a sub-agent is unknown, the sub-agent itself is a node."""
    rows = [
        row("interaction", "i1", 0),
        row("sub_agent", "span", 1, lane="main/x"),
        row("request", "b1", 2, lane="main/x"),
    ]
    assert outline(trace_tree(rows, [step("request", "b1", "b1", lane="main/x")])) == [
        "i1",
        "  span",
        "    b1",
    ]


def test_a_call_with_an_id_of_an_unknown_form_is_its_sub_agent() -> None:
    """If the lane of a sub-agent does not end with the ID of the call in the facts, they still are one node."""
    rows = [
        row("interaction", "i1", 0),
        row("request", "a1", 1, turn=1),
        row("agent", "a1 1 digest:1", 2, turn=1, agent_lane="main/.2"),
        row("sub_agent", "span", 2, lane="main/.2", label="scout"),
        row("request", "b1", 3, lane="main/.2"),
    ]
    steps = [
        step("request", "a1", "a1"),
        step("tool_call", "a1", "digest:1"),
        step("request", "b1", "b1", lane="main/.2"),
    ]
    tree = trace_tree(rows, steps)
    assert outline(tree) == ["i1", "  a1", "    a1 1 digest:1", "      b1"]
    assert tree.node(2).agent == "scout"


def long_tree(turns: int = 1_000) -> TraceTree:
    rows = [row("interaction", "i1", 0)]
    rows += [row("request", f"a{n}", n + 1, turn=n) for n in range(turns)]
    rows[701] |= {"state": "failed"}
    return trace_tree(rows, [])


def test_many_children_are_grouped() -> None:
    """A node with many children has groups; each step is in one group, and a group knows its failures."""
    tree = long_tree()
    groups = [tree.node(number) for number in tree.node(0).children]
    assert {each.kind for each in groups} == {"group"}
    assert [len(each.children) for each in groups] == [GROUP_SIZE] * 20
    assert groups[14].label == "701 to 750 of 1,000"
    assert [each.failures for each in groups if each.failures] == [1]
    assert len(set(tree.order)) == len(tree.order) == 1_021


def test_at_first_a_long_tree_shows_the_way_to_what_matters() -> None:
    """A small tree is expanded completely; a long one only on the way to the failed and to the selected step."""

    def shown(tree: TraceTree, selected: int | None) -> list[Node]:
        return list(tree.visible(tree.expanded(selected)))

    small = example()
    assert len(shown(small, None)) == len(small) < FEW_NODES
    tree = long_tree()
    assert len(shown(tree, None)) == 21
    around = shown(tree, tree.by_id["a700"])
    assert len(around) == 21 + GROUP_SIZE
    assert "a700" in {node.step_id for node in around}


def test_without_a_known_cause_the_last_failed_step_is_selected() -> None:
    """If a session failed and no step is known to have caused it, the step that failed last is selected at first."""
    tree = example({"step_id": None, "step_lane": None, "step_turn": None})
    assert tree.failing is None
    assert tree.important is not None
    assert tree.node(tree.important).step_id == "b1 1 call3"
    assert example().important is None
