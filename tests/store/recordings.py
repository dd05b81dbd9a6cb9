"""Recordings for tests of the store, written to segments by the real recorder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb

from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import Segment
from agentobs.recording.recorder import Recorder
from agentobs.records.clear_text import declared_label
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    ModelExchange,
    Place,
    Question,
    SessionCall,
    ToolAnswer,
    ToolExchange,
    ToolQuestion,
    WorldExchange,
    WorldQuestion,
)
from agentobs.records.facts import TABLES, Permission, SessionEnd, SessionStart, UsageRow, columns
from agentobs.records.labels import Label
from agentobs.sink import Record
from agentobs.store.duckdb.schema import cached_views

ROOT = Path(__file__).parent.parent.parent
T0 = 1_790_000_000_000_000_000
"""2026-09-21, the start of these sessions."""
SECOND = 1_000_000_000
MODEL = "claude-sonnet-5-5"


def session_id(number: int) -> str:
    return f"{number:08x}" + f"{number:04x}" * 6


def start(number: int, name: str = "story", at: int = T0, **tags: str) -> SessionCall:
    fact = SessionStart(
        session_id=session_id(number),
        name=declared_label(name),
        started_ns=at,
        entry=Label("stories:run"),
        agentobs_version=Label("0.1.0"),
        sdk_version=Label("2.12.0"),
        python_version=Label("3.11.7"),
        platform=Label("linux"),
        tags={declared_label(key): value for key, value in tags.items()},
        arguments_content=None,
    )
    return SessionCall(fact, {"order": number})


def end(number: int, at: int = T0 + 60 * SECOND, *, failed: bool = False) -> SessionEnd:
    return SessionEnd(
        session_id=session_id(number),
        ended_ns=at,
        outcome="failed" if failed else "completed",
        reason=Label("ValueError") if failed else None,
        signature=Label("exception:ValueError@stories:run") if failed else None,
        dropped=0,
    )


def question(number: int, turn: int, model: str = MODEL) -> Question:
    """Return the request of a turn, which repeats the earlier messages of the conversation."""
    messages = [{"role": "user", "content": f"line {n} of session {number}"} for n in range(turn)]
    tools = [
        {"name": name}
        for name in (
            "weather",
            "read",
            "look",
            "send",
            "agent",
            "slow",
            "quick",
            "unseen",
            "canary-tool",
            "lost",
        )
    ]
    request = {"model": model, "max_tokens": 100, "messages": messages, "tools": tools}
    body = json.dumps(request).encode()
    return Question("POST", "/v1/messages", {"content-type": "application/json"}, body)


def attempt(
    number: int,
    turn: int,
    *,
    at: int | None = None,
    status: int = 200,
    content: list[dict[str, Any]] | None = None,
    **usage: Any,
) -> ModelExchange:
    """Return a complete exchange: the response of one turn, or an error of the provider."""
    message = {
        "id": f"msg_{number}_{turn}",
        "type": "message",
        "role": "assistant",
        "model": usage.pop("model", MODEL),
        "content": content or [{"type": "text", "text": "done"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 20, **usage},
    }
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}
    body = json.dumps(message if status == 200 else error).encode()
    started = T0 + turn * SECOND if at is None else at
    return ModelExchange(
        place=Place(session_id(number)),
        attempt_id=f"{number:08x}{turn:08x}{started:016x}",
        started_ns=started,
        headers_ns=1_000_000,
        ended_ns=5_000_000,
        question=question(number, turn, message["model"]),
        answer=Answer(
            status, {"content-type": "application/json"}, (Chunk(body, 2_000_000),), "complete"
        ),
    )


def tool(number: int, tool_use_id: str, name: str, *, at: int, took: int = SECOND) -> ToolExchange:
    return ToolExchange(
        place=Place(session_id(number)),
        started_ns=at,
        duration_ns=took,
        question=ToolQuestion(tool_use_id, name, {"city": "Bern"}),
        answer=ToolAnswer("sunny"),
    )


def consent(number: int, tool_use_id: str, *, at: int, took: int = SECOND) -> WorldExchange:
    """Return the exchange in which a person approves a tool call."""
    payload = {"tool": "weather", "input": {"city": "Bern"}}
    question = WorldQuestion("consent", tool_use_id, payload)
    place = Place(session_id(number), "1" * 32, turn=1)
    return WorldExchange(place, at, took, question, {"behavior": "allow", "resolver": "person"})


def permission(number: int, tool_use_id: str, *, at: int, **changes: Any) -> Permission:
    """Return the permission decision on a call; by default, a person allowed the call within a second."""
    values: dict[str, Any] = {
        "session_id": session_id(number),
        "interaction_id": "1" * 32,
        "lane": "main",
        "turn": 1,
        "tool_use_id": tool_use_id,
        "tool": "weather",
        "at_ns": at,
        "behavior": "allow",
        "reason_type": Label("person"),
        "source": None,
        "resolver": Label("person"),
        "rule": None,
        "approval_requested": True,
        "approval_wait_ns": SECOND,
    }
    return Permission(**{**values, **changes})


def usage_row(number: int, **changes: Any) -> UsageRow:
    """Return a usage fact; the defaults can be replaced by keyword."""
    values: dict[str, Any] = {
        "session_id": session_id(1),
        "attempt_id": f"{number:032x}",
        "at_ns": T0,
        "iteration": 0,
        "kind": "message",
        "billed": True,
        "model": MODEL,
        "input_tokens": 100,
        "output_tokens": 10,
        "reasoning_tokens": None,
        "cache_read_tokens": 1000,
        "cache_write_5m_tokens": 50,
        "cache_write_1h_tokens": 5,
        "web_search_requests": 0,
        "service_tier": "standard",
        "inference_geo": None,
        "speed": None,
        "certainty": "exact",
    }
    return UsageRow(**{**values, **changes})


def conversation(number: int, turns: int = 3, **options: Any) -> list[Record]:
    """Return the records of a complete session."""
    return [start(number, **options), *(attempt(number, n + 1) for n in range(turns)), end(number)]


def record(home: Home, records: Iterable[Record]) -> None:
    """Write records with a new recorder, and seal its segment."""
    recorder = Recorder(home)
    for each in records:
        recorder(each)
    assert recorder.close(30)
    assert recorder.statistics().dropped == 0


def write_facts(home: Home, facts: Iterable[Any], *, close: bool = True) -> Segment:
    """Write facts unchanged to a new segment."""
    segment = Segment(home)
    for fact in facts:
        segment.facts.append(TABLES[type(fact)], columns(fact))
    if close:
        segment.close()
    return segment


def a_home(tmp_path: Path) -> Home:
    """Return a new home with cached views, because binding all views takes longer than most tests."""
    home = open_home(tmp_path / "home")
    cached_views(home.path, write=True)
    return home


def counts(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Return the rows of each fact table."""
    found = {}
    for table in TABLES.values():
        row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        found[table] = row[0] if row else 0
    return found


def copied(home: Home, directory: Path) -> Home:
    """Return a copy of a home with the same modification times, because copying is cheaper than an ingest."""
    shutil.copytree(home.path, directory / "home")
    return Home(directory / "home")


def everything(
    connection: duckdb.DuckDBPyConnection, without: str | None = None
) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all fact tables and views, in an order that does not depend on storage.

    `without` is a regular expression for the names of columns to omit.
    """
    columns = f"COLUMNS(lambda name: NOT regexp_full_match(name, '{without}'))" if without else "*"
    names = [*TABLES.values(), "sessions", "costs", "turns", "llm_requests", "tool_calls", "spans"]
    rows = {name: connection.execute(f"SELECT {columns} FROM {name}").fetchall() for name in names}
    return {name: sorted(found, key=repr) for name, found in rows.items()}


def plain(home: Home) -> duckdb.DuckDBPyConnection:
    """Open the published file with plain DuckDB."""
    return duckdb.connect(str(home.database), read_only=True)


def python(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start a Python process that runs `code` with the arguments in `sys.argv[1:]`."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a process that must succeed, and return its output."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out
