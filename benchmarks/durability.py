"""What durability costs: a turn and a tool call, bytes of the journal, and agents beside each other and an ingest."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from agentobs.recording.journal.home import existing_home, open_home
from agentobs.recording.options import Options, Sync
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    ModelExchange,
    Place,
    Question,
    ToolAnswer,
    ToolExchange,
    ToolQuestion,
)
from agentobs.store.duckdb.ingest import ingest
from benchmarks.conversation import Size, answer, history, request_body
from benchmarks.measure import Cost, compare, cost_of, milliseconds, ratio
from benchmarks.provider import HEADERS
from benchmarks.report import Section

SIZE = Size(deltas=300, result_bytes=12_000)
"""As in the benchmark of recording: 200 turns are 2.7 MB of new content."""
TURNS = 200
AGENTS = 16
SYNCS: tuple[Sync, ...] = ("process", "interval", "always")


def sections() -> Iterator[Section]:
    """Measure everything about durability."""
    yield _handing_in()
    yield _bytes()
    yield _beside()


def _turn(session_id: str, turn: int, messages: list[dict[str, Any]]) -> ModelExchange:
    chunks = tuple(Chunk(piece, 1_000_000 * n) for n, piece in enumerate(answer(turn, SIZE)))
    return ModelExchange(
        place=Place(session_id),
        attempt_id=os.urandom(16).hex(),
        started_ns=time.time_ns(),
        headers_ns=1,
        ended_ns=1_000_000_000,
        question=Question("POST", "/v1/messages", {}, request_body(messages)),
        answer=Answer(200, dict(HEADERS), chunks, "complete"),
    )


def _tool(session_id: str, number: int) -> ToolExchange:
    question = ToolQuestion(f"toolu_{number}", "read_file", {"path": "src/app.py"})
    return ToolExchange(
        Place(session_id), time.time_ns(), 1_000_000, question, ToolAnswer("x" * SIZE.result_bytes)
    )


def _handing_in() -> Section:
    """Compare the modes of syncing, for whoever hands in and for the process, until all of it is written."""
    rounds: dict[str, list[dict[str, Cost]]] = {"a turn": [], "a tool call": []}
    with tempfile.TemporaryDirectory() as folder:
        recorders = {
            sync: Recorder(open_home(Path(folder) / sync), Options(sync=sync)) for sync in SYNCS
        }
        longer = [history(turn, SIZE) for turn in range(1, 61)]
        turns = {
            sync: {n: _turn(sync, n, messages) for n, messages in enumerate(longer)}
            for sync in SYNCS
        }

        def hand_in(sync: Sync, what: str, number: int) -> Cost:
            recorder = recorders[sync]
            record = turns[sync][number] if what == "a turn" else _tool(sync, number)
            return cost_of(partial(recorder, record), partial(recorder.flush, 60.0))

        for what, found in rounds.items():
            variants = {str(sync): partial(hand_in, sync, what) for sync in SYNCS}
            found += compare(variants, range(60))
        for recorder in recorders.values():
            recorder.close(60)
    rows = tuple(
        (
            f"{what}, `{sync}`",
            f"{milliseconds(found, sync, 'thread_ns') * 1000:.0f} us",
            f"{milliseconds(found, sync, 'process_ns'):.2f} ms",
            f"{ratio(found, sync, 'process', 'process_ns'):.2f}",
        )
        for what, found in rounds.items()
        for sync in SYNCS
    )
    return Section(
        "What a turn and a tool call cost the recorder, by `Options.sync`",
        f"60 rounds; turns of {SIZE.deltas} deltas that go on one conversation, tool results of "
        f"{SIZE.result_bytes // 1000} KB. CPU of whoever hands the record in; CPU of the process until it is written, "
        "with `always` until it is durable; that as a multiple of `process`.",
        ("", "caller", "process", "x `process`"),
        rows,
    )


def _bytes() -> Section:
    """Weigh a session of 200 turns: what went over the wire, and what its segment holds."""
    with tempfile.TemporaryDirectory() as folder:
        home = open_home(folder)
        recorder = Recorder(home)
        asked = answered = 0
        messages: list[dict[str, Any]] = []
        for turn in range(1, TURNS + 1):
            messages = history(turn, SIZE)
            exchange = _turn("session", turn, messages)
            asked += len(exchange.question.body)
            answered += len(exchange.answer.body)
            recorder(exchange)
            recorder.flush(60)
        recorder.close(60)
        new = len(request_body(messages))
        plain = _held(home.segments)
        ingest(home)
        packed = _held(existing_home(folder).segments)
    rows = (
        ("requests as sent", f"{asked / 1e6:.1f} MB", ""),
        ("answers as they came", f"{answered / 1e6:.1f} MB", ""),
        ("what is new in them", f"{(new + answered) / 1e6:.1f} MB", "1.00"),
        (
            "the segment while it is written",
            f"{plain / 1e6:.1f} MB",
            f"{plain / (new + answered):.2f}",
        ),
        (
            "the segment after an ingest",
            f"{packed / 1e6:.2f} MB",
            f"{packed / (new + answered):.2f}",
        ),
    )
    return Section(
        f"What a session of {TURNS} turns takes in the journal",
        "Facts and content together. Answers are kept as they came, each event of the stream.",
        ("", "bytes", "x what is new"),
        rows,
    )


def _held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _beside() -> Section:
    """Time how long a record takes until it is written, with other agents and an ingest at work."""
    with tempfile.TemporaryDirectory() as folder:
        spent = {
            "alone": _waits(folder, 1, ingesting=False),
            "alone, again": _waits(folder, 1, ingesting=False),
            f"beside {AGENTS - 1} others": _waits(folder, AGENTS, ingesting=False),
            f"beside {AGENTS - 1} others and an ingest": _waits(folder, AGENTS, ingesting=True),
        }
    floor = median(spent["alone"][0])
    rows = tuple(
        (
            name,
            f"{median(handed) / 1000:.0f} us",
            f"{sorted(handed)[int(len(handed) * 0.99)] / 1000:.0f} us",
            f"{median(handed) / floor:.2f}",
            f"{median(written) / 1e6:.2f} ms",
        )
        for name, (handed, written) in spent.items()
    )
    return Section(
        f"What {AGENTS} agents cost each other",
        "Each a process of its own that hands in 20 turns of 300 deltas, 250 ms apart, into one home: wall time of "
        "handing one in, which is all that an agent waits for, and until it is written.",
        ("", "handed in, median", "99 %", "x alone", "written, median"),
        rows,
    )


def _waits(folder: str, agents: int, *, ingesting: bool) -> tuple[list[int], list[int]]:
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    over: Any = context.Event()
    working = [context.Process(target=_agent, args=(folder, n, results)) for n in range(agents)]
    beside = [context.Process(target=_ingesting, args=(folder, over))] if ingesting else []
    for process in (*beside, *working):
        process.start()
    found = [results.get() for _ in working]
    over.set()
    for process in (*working, *beside):
        process.join()
    return [n for handed, _ in found for n in handed], [n for _, written in found for n in written]


def _agent(folder: str, number: int, results: Any) -> None:
    recorder = Recorder(open_home(folder))
    handed, written = [], []
    messages = history(20, SIZE)
    for turn in range(20):
        exchange = _turn(f"{number}", turn, messages)
        begun = time.perf_counter_ns()
        recorder(exchange)
        handed.append(time.perf_counter_ns() - begun)
        recorder.flush(60)
        written.append(time.perf_counter_ns() - begun)
        time.sleep(0.25)
    recorder.close(60)
    results.put((handed, written))


def _ingesting(folder: str, over: Any) -> None:
    while not over.is_set():
        ingest(open_home(folder))
