"""Processes that record, ingest and read one home are killed at random times.

`python -m tests.soak.kills HOME SEED KILLS MAX_RECORDERS` prints one JSON object. MAX_RECORDERS is the maximum number
of concurrent recorders. Every process is forked from this one, which has only one thread. Each recorder reports
acknowledged records through a pipe; each of these records must be in the journal exactly once.
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
from tests.store.recordings import T0, attempt, end, start, tool

Report = Callable[[str], None]
LIFE_SECONDS = 0.15
"""How long a process lives at most, for each process of its round, because they share the cores. Our choice."""


@dataclass
class Outcome:
    """The result of some kills."""

    seed: int
    kills: int = 0
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The numbers of rows in SQL and of records in the journal, for each table in which they differ."""


@dataclass
class Victim:
    """A process that will be killed."""

    process_id: int
    pipe: int
    dies: float
    """The time of its kill by the monotonic clock; 0 afterward."""
    output: bytes = b""


def fork(work: Callable[[Report], None]) -> tuple[int, int]:
    """Run a function in a child process; return its process ID and the pipe through which it reports."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(write_end)
        return child, read_end
    try:
        os.close(read_end)
        work(partial(_write, write_end))
    except BaseException as error:
        _write(write_end, f"error {error!r}")
    finally:
        os._exit(0)


def _write(pipe: int, text: str) -> None:
    os.write(pipe, f"{text}\n".encode())


def record_forever(home: Path, seed: int, report: Report) -> None:
    """Record sessions endlessly, and report records as soon as they are acknowledged."""
    chance = random.Random(seed)
    sync: Any = chance.choice(["process", "interval", "interval", "always"])
    recorder = Recorder(open_home(home), Options(sync=sync))
    number = seed * 1_000
    while True:
        number += 1
        unacknowledged: list[str] = []
        for record in session_records(number, chance):
            recorder(record)
            unacknowledged.append(name_of(record))
            if chance.random() < 0.4:
                unacknowledged = acknowledge(recorder, unacknowledged, report)
        acknowledge(recorder, unacknowledged, report)


def acknowledge(recorder: Recorder, names: list[str], report: Report) -> list[str]:
    """Report the records if they can be flushed; return an empty list of records that are still to be acknowledged."""
    if recorder.flush(30):
        for each in names:
            report(each)
    return []


def session_records(number: int, chance: random.Random) -> list[Record]:
    """Return the records of a session; some sessions have no end."""
    records: list[Record] = [start(number)]
    for turn in range(1, chance.randint(2, 5)):
        content = [{"type": "text", "text": "word " * chance.randint(1, 2_000)}]
        records += [attempt(number, turn, content=content)]
        records += [tool(number, f"t{turn}", "weather", at=T0 + turn)]
    return [*records, end(number)] if chance.random() < 0.7 else records


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


def ingest_forever(home: Path, report: Report) -> None:
    while True:
        ingest(open_home(home), wait_seconds=0)


def read_forever(home: Path, report: Report) -> None:
    """Count the attempts again and again; report an error if the count decreases."""
    previous = 0
    while True:
        with connect(home, ingest=False) as connection:
            [count] = connection.execute("SELECT count(*) FROM attempts").fetchone() or (0,)
        if count < previous:
            report(f"error {count} attempts after {previous}")
        previous = count


def run_round(home: Path, seed: int, max_recorders: int, outcome: Outcome) -> None:
    """Start all processes, kill each at a random time, and collect the acknowledged records."""
    chance = random.Random(seed)
    recorders = chance.randint(3, max(max_recorders, 3))
    works: list[Callable[[Report], None]] = [
        partial(record_forever, home, seed * 100 + n) for n in range(recorders)
    ]
    works += [partial(ingest_forever, home), partial(read_forever, home)]
    started = time.monotonic()
    victims = [
        Victim(*fork(work), dies=started + chance.uniform(0.05, LIFE_SECONDS * len(works)))
        for work in works
    ]
    while victims:
        kill_and_collect(victims, outcome)


def kill_and_collect(victims: list[Victim], outcome: Outcome) -> None:
    ready, _, _ = select.select([each.pipe for each in victims], [], [], 0.005)
    for victim in list(victims):
        if victim.dies and time.monotonic() >= victim.dies:
            os.kill(victim.process_id, signal.SIGKILL)
            victim.dies = 0
            outcome.kills += 1
        if victim.pipe not in ready:
            continue
        data = os.read(victim.pipe, 65536)
        victim.output += data
        if not data:
            os.waitpid(victim.process_id, 0)
            os.close(victim.pipe)
            victims.remove(victim)
            lines = victim.output.decode().splitlines()
            outcome.errors += [line for line in lines if line.startswith("error")]
            acknowledgments.update(line for line in lines if not line.startswith("error"))


acknowledgments: set[str] = set()


def check(home: Home, outcome: Outcome) -> None:
    """Compare the journal with the acknowledged records, and the store with the journal."""
    lines = [line for each in segment_ids(home) for line in read(facts_path(home, each))]
    recorded = Counter(name_of_line(each) for each in lines if isinstance(each, Line))
    outcome.acknowledged = len(acknowledgments)
    outcome.lost = sorted(acknowledgments - recorded.keys())
    outcome.doubled = [name for name, count in recorded.items() if name and count > 1]
    ingest(home)
    ingest(home)
    outcome.findings = [
        str(each) for each in verify(home).findings if "not a complete record" not in each.found
    ]
    kinds = Counter(each.kind for each in lines if isinstance(each, Line))
    with connect(home) as connection:
        for table in ("session_starts", "session_ends", "attempts", "tool_results", "usage"):
            [count] = connection.execute(f"SELECT count(*) FROM {table}").fetchone() or (0,)
            if count != kinds[table]:
                outcome.rows[table] = (count, kinds[table])


def main(home: str, seed: str, kills: str, max_recorders: str) -> None:
    outcome = Outcome(int(seed))
    opened = open_home(home)
    opened.key()
    number = int(seed) * 10
    while outcome.kills < int(kills):
        number += 1
        run_round(opened.path, number, int(max_recorders), outcome)
    check(opened, outcome)
    print(json.dumps(vars(outcome)))


if __name__ == "__main__":
    main(*sys.argv[1:])
