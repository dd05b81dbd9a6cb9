"""Exchanges with the outside world: recorded like tool calls, without secrets, and read back unchanged."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import content_path, facts_path, segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import Place, WorldExchange, WorldQuestion, queue_bytes
from agentobs.store.duckdb.connection import connect
from tests.store.recordings import T0, attempt, end, record, session_id, start

SECRET = "ghp_" + "Zz9" * 12


def world_exchange(kind: Any, key: str, question: Any, answer: Any) -> WorldExchange:
    place = Place(session_id(1), "1" * 32, turn=1)
    return WorldExchange(place, T0, 5, WorldQuestion(kind, key, question), answer)


def read_back(tmp_path: Path, *exchanges: WorldExchange) -> tuple[Home, list[WorldExchange]]:
    home = open_home(tmp_path / "home")
    record(home, [start(1), attempt(1, 1), *exchanges, end(1)])
    recorded = read_session(home, session_id(1), segment_ids(home)).exchanges
    return home, [e for e in recorded if isinstance(e, WorldExchange)]


@pytest.mark.parametrize(
    ("kind", "question", "answer"),
    [
        (
            "consent",
            {"tool": "mail", "input": {"to": "a@b.c"}},
            {"behavior": "allow", "resolver": "you"},
        ),
        ("check", {"n": 1.5}, None),
        ("path", ["../x", "\udce9"], [{"path": "/x", "inside": False}]),
        ("tool_set", ["browser"], []),
        ("steering", None, ["stop, please \u202e"]),
        ("abort", None, {"count": 12}),
    ],
)
def test_world_exchanges_are_read_back(
    tmp_path: Path, kind: str, question: Any, answer: Any
) -> None:
    """The place, times, question and answer of every kind of exchange are read back unchanged."""
    exchange = world_exchange(kind, "toolu_1 and what is no label", question, answer)
    assert read_back(tmp_path, exchange)[1] == [exchange]


def test_a_secret_in_an_answer_is_in_no_file(tmp_path: Path) -> None:
    """A secret in an answer is redacted, and the facts contain no part of the answer."""
    exchange = world_exchange("steering", f"1 {SECRET}", None, [f"use {SECRET} for the upload"])
    home, [back] = read_back(tmp_path, exchange)
    assert len(back.answer) == 1
    assert re.fullmatch(r"use \[redacted:github_token:[0-9a-f]{8}\] for the upload", back.answer[0])
    [name] = segment_ids(home)
    written = facts_path(home, name).read_bytes() + content_path(home, name).read_bytes()
    assert SECRET.encode() not in written
    assert b"upload" not in facts_path(home, name).read_bytes()


def test_the_size_of_questions_and_answers_counts() -> None:
    """The size of a record in the queue includes the texts of its question and its answer."""
    assert (
        queue_bytes(world_exchange("consent", "k", {"input": ["x" * 5_000]}, ["y" * 3_000]))
        == 1024 + 8_000
    )


def test_the_query_source_is_recorded(tmp_path: Path) -> None:
    """Each attempt contains the source of its request: the agent itself or, for example, a compaction."""
    home = open_home(tmp_path / "home")
    upkeep = Place(session_id(1), turn=1, query_source="compaction")
    record(home, [start(1), attempt(1, 1), replace(attempt(1, 2), place=upkeep), end(1)])
    exchanges = read_session(home, session_id(1), segment_ids(home)).exchanges
    assert [exchange.place.query_source for exchange in exchanges] == ["main", "compaction"]
    with connect(home) as connection:
        rows = connection.execute("SELECT query_source FROM attempts ORDER BY started_ns")
        assert rows.fetchall() == [("main",), ("compaction",)]
