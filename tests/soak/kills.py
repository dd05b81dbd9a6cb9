"""Processes that record, ingest and read one home, and are killed at random.

`python -m tests.soak.kills HOME SEED KILLS MOST`: with at most so many recorders at once.

Every process is forked from this one, which has no thread. A recorder says through a pipe which records were
acknowledged; all of them must be in the journal, once. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentobs.recording.facts.interpreter import session_of
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from agentobs.recording.options import Options
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import ModelExchange, ToolExchange
from agentobs.sink import Record
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.verification import verify
from tests.store.making import T0, attempt, end, start, tool

Said = Callable[[str], None]


@dataclass
class Outcome:
    """What was found after some kills."""

    seed: int
    kills: int = 0
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rows in SQL and records in the journal, by table, where they differ."""


@dataclass
class Victim:
    """A process to be killed."""

    process_id: int
    pipe: int
    dies: float
    heard: bytes = b""


def forked(work: Callable[[Said], None]) -> tuple[int, int]:
    """Run something in a child; return its process id, and the pipe in which it speaks."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        os.close(reading)
        work(partial(_say, writing))
    except BaseException as error:
        _say(writing, f"error {error!r}")
    finally:
        os._exit(0)


def _say(pipe: int, text: str) -> None:
    os.write(pipe, f"{text}\n".encode())


def recording(home: Path, seed: int, say: Said) -> None:
    """Record sessions for ever, and say of records that they are written once they are."""
    chance = random.Random(seed)
    sync: Any = chance.choice(["process", "interval", "interval", "always"])
    recorder = Recorder(open_home(home), Options(sync=sync))
    number = seed * 1_000
    while True:
        number += 1
        waiting: list[str] = []
        for record in story(number, chance):
            recorder(record)
            waiting.append(name_of(record))
            if chance.random() < 0.4:
                waiting = acknowledged(recorder, waiting, say)
        acknowledged(recorder, waiting, say)


def acknowledged(recorder: Recorder, waiting: list[str], say: Said) -> list[str]:
    if recorder.flush(30):
        for each in waiting:
            say(each)
    return []


def story(number: int, chance: random.Random) -> list[Record]:
    """The records of a session; some have no end."""
    made: list[Record] = [start(number)]
    for turn in range(1, chance.randint(2, 5)):
        content = [{"type": "text", "text": "word " * chance.randint(1, 2_000)}]
        made += [attempt(number, turn, content=content)]
        made += [tool(number, f"t{turn}", "weather", at=T0 + turn)]
    return [*made, end(number)] if chance.random() < 0.7 else made


def name_of(record: Record) -> str:
    match record:
        case ModelExchange():
            return f"attempts {record.attempt_id}"
        case ToolExchange():
            return f"tool_results {session_of(record)} {record.question.tool_use_id}"
        case _:
            kind = "session_ends" if hasattr(record, "outcome") else "session_starts"
            return f"{kind} {session_of(record)}"


def name_of_line(line: Line) -> str | None:
    value = line.value()
    match line.kind:
        case "attempts":
            return f"attempts {value['attempt_id']}"
        case "tool_results":
            return f"tool_results {value['session_id']} {value['tool_use_id']}"
        case "session_starts" | "session_ends":
            return f"{line.kind} {value['session_id']}"
        case _:
            return None


def ingesting(home: Path, say: Said) -> None:
    while True:
        ingest(open_home(home), wait_seconds=0)


def reading(home: Path, say: Said) -> None:
    """Count the attempts again and again: they never become fewer."""
    before = 0
    while True:
        with connect(home, ingest=False) as connection:
            [count] = connection.execute("SELECT count(*) FROM attempts").fetchone() or (0,)
        if count < before:
            say(f"error {count} attempts after {before}")
        before = count


def a_round(home: Path, seed: int, most: int, outcome: Outcome) -> None:
    """Start everybody, kill everybody, and look whether what was acknowledged is there, once."""
    chance = random.Random(seed)
    recorders = chance.randint(3, max(most, 3))
    works: list[Callable[[Said], None]] = [
        partial(recording, home, seed * 100 + n) for n in range(recorders)
    ]
    works += [partial(ingesting, home), partial(reading, home)]
    begun = time.monotonic()
    victims = [
        Victim(*forked(work), dies=begun + chance.uniform(0.05, 0.25 * len(works)))
        for work in works
    ]
    while victims:
        kill_and_hear(victims, outcome)


def kill_and_hear(victims: list[Victim], outcome: Outcome) -> None:
    ready, _, _ = select.select([each.pipe for each in victims], [], [], 0.005)
    for victim in list(victims):
        if victim.dies and time.monotonic() >= victim.dies:
            os.kill(victim.process_id, signal.SIGKILL)
            victim.dies = 0
            outcome.kills += 1
        if victim.pipe not in ready:
            continue
        data = os.read(victim.pipe, 65536)
        victim.heard += data
        if not data:
            os.waitpid(victim.process_id, 0)
            os.close(victim.pipe)
            victims.remove(victim)
            heard = victim.heard.decode().splitlines()
            outcome.errors += [line for line in heard if line.startswith("error")]
            acknowledgments.update(line for line in heard if not line.startswith("error"))


acknowledgments: set[str] = set()


def check(home: Home, outcome: Outcome) -> None:
    """Compare the journal with what was acknowledged, and the store with the journal."""
    lines = [line for each in segment_ids(home) for line in read(facts_path(home, each))]
    there = Counter(name_of_line(each) for each in lines if isinstance(each, Line))
    outcome.acknowledged = len(acknowledgments)
    outcome.lost = sorted(acknowledgments - there.keys())
    outcome.doubled = [name for name, count in there.items() if name and count > 1]
    ingest(home)
    ingest(home)
    outcome.findings = [
        str(each) for each in verify(home).findings if "no whole record" not in each.found
    ]
    kinds = Counter(each.kind for each in lines if isinstance(each, Line))
    with connect(home) as connection:
        for table in ("session_starts", "session_ends", "attempts", "tool_results", "usage"):
            [count] = connection.execute(f"SELECT count(*) FROM {table}").fetchone() or (0,)
            if count != kinds[table]:
                outcome.rows[table] = (count, kinds[table])


def main(home: str, seed: str, kills: str, most: str) -> None:
    outcome = Outcome(int(seed))
    made = open_home(home)
    made.key()
    number = int(seed) * 10
    while outcome.kills < int(kills):
        number += 1
        a_round(made.path, number, int(most), outcome)
    check(made, outcome)
    print(json.dumps(vars(outcome)))


if __name__ == "__main__":
    main(*sys.argv[1:])
