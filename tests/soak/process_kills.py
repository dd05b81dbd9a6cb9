"""Kills of busy processes: clients that stream responses, and processes that ingest or prune."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agentobs
from agentobs.recording.journal.home import Home, existing_home
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.retention import Scope, prune
from agentobs.store.duckdb.verification import verify
from tests.agent.provider import Provider, Reply, message, streamed, text
from tests.store.recordings import T0, a_home, conversation, everything, python, record, session_id

CLIENT = """
import os, sys
import anthropic, agentobs
from agentobs.recording.session import start_recorder
agentobs.start(home=sys.argv[1])
client = agentobs.record(anthropic.Anthropic(api_key="made-up", base_url=sys.argv[2], max_retries=0))
with agentobs.session("streaming"):
    while True:
        messages = [{"role": "user", "content": "Hello"}]
        with client.messages.stream(model="claude-sonnet-5", max_tokens=64, messages=messages) as stream:
            answer = stream.get_final_message()
        if start_recorder().flush(30):
            os.write(1, f"{answer.id}\\n".encode())
"""
COMMAND = """
import os, sys
from pathlib import Path
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.retention import prune
os.write(1, b"ready\\n")
home = Home(Path(sys.argv[1]))
if sys.argv[2] == "ingest":
    ingest(home)
else:
    prune(home, sessions=sys.argv[3:], what=sys.argv[2])
"""
COMMANDS: tuple[tuple[Scope | None, tuple[int, ...]], ...] = (
    (None, ()),
    ("all", (1, 3)),
    ("content", (2,)),
)
"""The commands to kill: an ingest (None), or a prune of all data or of the content of some sessions."""


def kill_streaming_clients(home: Path, chance: random.Random, kills: int) -> None:
    """Kill clients in the middle of streams, with occasional ingests.

    Check that each acknowledged response is in the store exactly once, and that each session has the status `crashed`.
    """
    acknowledged: set[str] = set()
    numbers = itertools.count(1)
    for _ in range(kills):
        with Provider(_answers(numbers)) as provider:  # type: ignore[arg-type]
            process = python(CLIENT, home, provider.base_url)
            assert process.stdout is not None
            acknowledged.add(process.stdout.readline().strip())
            if chance.random() < 0.5:
                ingest(existing_home(home))
            threading.Event().wait(chance.uniform(0, 0.5))
            process.kill()
            output, errors = process.communicate()
            acknowledged |= {line for line in output.splitlines() if line}
            assert "Traceback" not in errors
    ingest(existing_home(home))
    rows = agentobs.query(
        "SELECT message_id, count(*), any_value(outcome) FROM attempts GROUP BY 1", home=home
    )
    counts = {message_id: count for message_id, count, _ in rows if message_id}
    assert acknowledged - {""} <= counts.keys()
    assert set(counts.values()) <= {1}
    statuses = agentobs.query("SELECT status, count(*) FROM sessions GROUP BY 1", home=home)
    assert statuses == [("crashed", kills)]
    found = [str(each) for each in verify(existing_home(home)).findings]
    assert [each for each in found if "not a complete record" not in each] == []


def _answers(numbers: Iterator[int]) -> Iterator[Reply]:
    for number in numbers:
        blocks = [text(f"{number} {part} " * 40) for part in range(20)]
        yield streamed({**message(*blocks), "id": f"msg_{number}"})


def kill_ingests_and_prunes(folder: Path, chance: random.Random, kills: int) -> None:
    """Kill ingests and prunes at random points.

    Check that nothing is damaged right after the kill. After the next ingest, the store must be in the state before or
    after the prune, and a rebuilt store must have the same contents.
    """
    source = a_home(folder)
    for number in range(1, 5):
        record(source, conversation(number, turns=chance.randint(1, 6), at=T0 + number))
        if number == 3:
            ingest(source)
    valid_states: dict[Scope | None, list[dict[str, Any]]] = {}
    for scope, numbers in COMMANDS:
        home = _copy(source, folder / "work")
        _run(home, scope, [])
        before = _state(home)
        _run(home, scope, [session_id(number) for number in numbers])
        valid_states[scope] = [before, _state(home)]
    for _ in range(kills):
        scope, numbers = chance.choice(COMMANDS)
        home = _copy(source, folder / "work")
        sessions = [session_id(number) for number in numbers]
        process = python(COMMAND, home.path, scope or "ingest", *sessions)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        threading.Event().wait(chance.uniform(0, 0.6))
        process.kill()
        process.communicate()
        assert verify(home).findings == []
        _run(home, scope, [])
        found = _state(home)
        assert found in valid_states[scope]
        assert verify(home).lines()[1:] == []
        home.database.unlink()
        assert ingest(home).damaged_moved_to is None
        assert _state(home) == found


def _run(home: Home, scope: Scope | None, sessions: list[str]) -> None:
    ingest(home)
    if sessions and scope:
        prune(home, sessions=sessions, what=scope)


def _copy(source: Home, folder: Path) -> Home:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source.path, folder)
    return existing_home(folder)


def _state(home: Home) -> dict[str, Any]:
    """Return all rows of the store, without the times of prunings."""
    with connect(home, ingest=False) as connection:
        rows = everything(connection)
    prunings = [(row[2], row[4]) for row in rows.pop("prunings")]
    return {**rows, "prunings": sorted(prunings)}
