"""Tool calls with repeated IDs: each call has its own result and decision, and counts once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.agent import tool
from agentobs.records.facts import ToolResult, ToolUse
from agentobs.records.labels import Label
from agentobs.store.duckdb.connection import connect
from tests import queries
from tests.agent.provider import Provider, call, message, streamed
from tests.exporters.sample_agents import DONE, play
from tests.store.recordings import SECOND, T0, a_home, record, session_id, write_facts
from tests.store.wire_conversations import WireConversation

ID = "call_0"


def test_a_server_that_uses_one_id_for_all_calls(tmp_path: Path) -> None:
    """If all calls have the same ID, each call gets the next result with this ID, even if it failed.

    This holds even if a response contains two calls.
    """
    talk = WireConversation(call_id=ID)
    for failed in (False, True):
        talk.calls(("look", {"failed": failed}))
        talk.result(ID, is_error=failed)
    talk.calls(("look", {}), ("write", {}))
    talk.result(ID)
    talk.result(ID, is_error=True)
    talk.calls(("look", {}))
    home = a_home(tmp_path)
    record(home, talk.whole())
    with connect(home, ingest=False) as connection:
        calls = connection.execute("SELECT turn, ordinal, is_error FROM tool_calls ORDER BY ALL")
        assert calls.fetchall() == [
            (1, 1, False),
            (2, 1, True),
            (3, 1, False),
            (3, 2, True),
            (4, 1, None),
        ]
        handled = connection.execute(
            "SELECT requested_name, outcome FROM tool_handling ORDER BY ALL"
        )
        assert handled.fetchall() == [
            ("look", "executed"),
            ("look", "executed"),
            ("look", "executed"),
            ("write", "executed"),
        ]


def use(turn: int, at_s: int) -> ToolUse:
    return ToolUse(
        session_id(1), None, Label("main"), turn, f"{turn:032x}", Label(ID), Label("look"), 1,
        T0 + at_s * SECOND, 2,
    )  # fmt: skip


def result(at_s: int, size: int, **changes: Any) -> ToolResult:
    values: dict[str, Any] = {"source": "wire", "started_ns": None, "duration_ns": None, **changes}
    return ToolResult(
        session_id=session_id(1),
        tool_use_id=Label(ID),
        result_ns=T0 + at_s * SECOND,
        outcome=Label("executed"),
        is_error=False,
        result_bytes=size,
        content=None,
        **values,
    )


def test_results_without_an_attempt(tmp_path: Path) -> None:
    """A result without an attempt belongs to the nearest previous call; a result that was available early belongs to
    the call of its turn.
    """
    home = a_home(tmp_path)
    early = {"source": "run", "started_ns": T0, "duration_ns": 1, "lane": Label("main"), "turn": 4}
    write_facts(
        home,
        [use(1, 1), result(2, 10), use(2, 3), use(3, 5), result(6, 30), result(7, 40, **early), use(4, 8)],
    )  # fmt: skip
    with connect(home, ingest=False) as connection:
        calls = connection.execute("SELECT turn, result_bytes FROM tool_calls ORDER BY turn")
        assert calls.fetchall() == [(1, 10), (2, None), (3, 30), (4, 40)]


@tool(read_only=True)
def look(where: str) -> str:
    """Look there."""
    return f"nothing {where}"


@pytest.mark.slow
def test_the_loop_replaces_a_repeated_id(tmp_path: Path) -> None:
    """If the agent loop replaces a repeated ID, the call with the model's ID and the result with the loop's ID are
    joined.

    Each call has one decision.
    """
    replies = [
        *(streamed(message(call("t1", "look", where=w), stop_reason="tool_use")) for w in "abc"),
        streamed(DONE),
    ]

    async def main(provider: Provider) -> None:
        async with provider.client() as client:
            await play(client, tools=(look,))

    home = tmp_path / "home"
    assert agentobs.start(str(home))
    with Provider(replies) as provider, agentobs.session("again"):
        asyncio.run(main(provider))
    assert agentobs.stop_recorder()
    rows = queries.query(
        "SELECT turn, tool_use_id, result_id, outcome, permission FROM tool_calls "
        "JOIN answered_calls USING (session_id, attempt_id, ordinal) ORDER BY turn",
        home=home,
    )
    assert rows == [
        (1, "t1", "t1", "executed", "allow"),
        (2, "t1", "t1_2", "executed", "allow"),
        (3, "t1", "t1_3", "executed", "allow"),
    ]
    for view in ("tool_results", "tool_calls", "tool_handling", "permission_decisions"):
        assert queries.query(f"SELECT count(*) FROM {view}", home=home) == [(3,)], view
