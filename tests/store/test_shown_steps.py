"""The steps of a session that its timeline shows."""

from __future__ import annotations

from typing import Any

from agentobs.store.analysis.shown_steps import shown_steps


def row(kind: str, name: str, started_ns: int, duration_ns: int, **more: Any) -> dict[str, Any]:
    fixed = {
        "id": f"{kind} {started_ns}",
        "parent_id": None,
        "lane": "main",
        "label": None,
        "outcome": "allow",
    }
    return {
        **fixed,
        "kind": kind,
        "name": name,
        "started_ns": started_ns,
        "duration_ns": duration_ns,
        **more,
    }


def test_a_decision_takes_the_place_of_its_approval_wait() -> None:
    """The span of an approval wait is not shown if a decision on the same tool covers it; other waits are shown."""
    waits = [
        row("span", "blocked_on_user", 11, 8, label="write"),
        row("span", "blocked_on_user", 31, 8, label="write"),
        row("span", "blocked_on_user", 51, 8, label="write"),
        row("span", "blocked_on_user", 11, 8, label="look"),
    ]
    decisions = [row("permission", "write", 10, 30), row("permission", "write", 12, 1)]
    shown = shown_steps([*waits, *decisions])
    spans = [each for each in shown if each["kind"] == "span"]
    assert [(each["started_ns"], each["label"]) for each in spans] == [(51, "write"), (11, "look")]
    assert [each["what"] for each in shown if each["kind"] == "permission"] == [
        "permission write"
    ] * 2
