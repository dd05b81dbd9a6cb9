"""Kills in the middle of real work: of a client's streams, and of whoever ingests or prunes."""

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
from agentobs.store.duckdb.retention import What, prune
from agentobs.store.duckdb.verification import verify
from tests.agent.provider import Provider, Reply, message, streamed, text
from tests.store.making import T0, a_home, conversation, everything, python, record, session_id

STREAMING = """
import os, sys
import anthropic, agentobs
from agentobs.recording.session import start_recorder
agentobs.start(home=sys.argv[1])
client = agentobs.record(anthropic.Anthropic(api_key="made-up", base_url=sys.argv[2], max_retries=0))
with agentobs.session("streaming"):
    while True:
        asked = [{"role": "user", "content": "Hello"}]
        with client.messages.stream(model="claude-sonnet-5", max_tokens=64, messages=asked) as stream:
            answer = stream.get_final_message()
        if start_recorder().flush(30):
            os.write(1, f"{answer.id}\\n".encode())
"""
WORKING = """
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
WORKS: tuple[tuple[What | None, tuple[int, ...]], ...] = (
    (None, ()),
    ("all", (1, 3)),
    ("content", (2,)),
)
"""What is killed: an ingest, or a prune of something of some sessions."""


def kill_streams(home: Path, chance: random.Random, kills: int) -> None:
    """Kill clients in the middle of streams, with an ingest now and then: each answer that was acknowledged is there,
    once, and what was under way is marked."""
    acknowledged: set[str] = set()
    numbers = itertools.count(1)
    for _ in range(kills):
        with Provider(_answers(numbers)) as provider:  # type: ignore[arg-type]
            process = python(STREAMING, home, provider.base_url)
            assert process.stdout is not None
            acknowledged.add(process.stdout.readline().strip())
            if chance.random() < 0.5:
                ingest(existing_home(home))
            threading.Event().wait(chance.uniform(0, 0.5))
            process.kill()
            said, told = process.communicate()
            acknowledged |= {line for line in said.splitlines() if line}
            assert "Traceback" not in told
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
    assert [each for each in found if "no whole record" not in each] == []


def _answers(numbers: Iterator[int]) -> Iterator[Reply]:
    for number in numbers:
        blocks = [text(f"{number} {part} " * 40) for part in range(20)]
        yield streamed({**message(*blocks), "id": f"msg_{number}"})


def kill_works(folder: Path, chance: random.Random, kills: int) -> None:
    """Kill an ingest or a prune anywhere: at once nothing is damaged, the next ingest ends it, and all is as before or
    as after; a store that is built anew agrees."""
    source = a_home(folder)
    for number in range(1, 5):
        record(source, conversation(number, turns=chance.randint(1, 6), at=T0 + number))
        if number == 3:
            ingest(source)
    ends: dict[What | None, list[dict[str, Any]]] = {}
    for what, numbers in WORKS:
        home = _copied(source, folder / "work")
        _do(home, what, [])
        before = _state(home)
        _do(home, what, [session_id(number) for number in numbers])
        ends[what] = [before, _state(home)]
    for _ in range(kills):
        what, numbers = chance.choice(WORKS)
        home = _copied(source, folder / "work")
        sessions = [session_id(number) for number in numbers]
        process = python(WORKING, home.path, what or "ingest", *sessions)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        threading.Event().wait(chance.uniform(0, 0.6))
        process.kill()
        process.communicate()
        assert verify(home).findings == []
        _do(home, what, [])
        found = _state(home)
        assert found in ends[what]
        assert verify(home).lines()[1:] == []
        home.database.unlink()
        assert ingest(home).set_aside is None
        assert _state(home) == found


def _do(home: Home, what: What | None, sessions: list[str]) -> None:
    ingest(home)
    if sessions and what:
        prune(home, sessions=sessions, what=what)


def _copied(source: Home, place: Path) -> Home:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source.path, place)
    return existing_home(place)


def _state(home: Home) -> dict[str, Any]:
    """Return what the store says, but for when something was pruned."""
    with connect(home, ingest=False) as connection:
        rows = everything(connection)
    pruned = [(row[2], row[4]) for row in rows.pop("prunings")]
    return {**rows, "pruned": sorted(pruned)}
