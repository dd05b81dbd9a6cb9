"""The cost of durability: turns and tool calls by sync mode, journal size, and agents that share a home."""

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
from benchmarks.conversation import Size, history, request_body, response_chunks
from benchmarks.measure import Cost, compare, cost_of, milliseconds, ratio
from benchmarks.provider import HEADERS
from benchmarks.report import Section

SIZE = Size(deltas=300, result_bytes=12_000)
"""As in the recorder benchmark: 200 turns are 2.7 MB of new content."""
TURNS = 200
AGENTS = 16
SYNCS: tuple[Sync, ...] = ("process", "interval", "always")


def sections() -> Iterator[Section]:
    """Measure the cost of durability."""
    yield _sync_modes()
    yield _journal_size()
    yield _concurrent_agents()


def _turn(session_id: str, turn: int, messages: list[dict[str, Any]]) -> ModelExchange:
    chunks = tuple(
        Chunk(chunk, 1_000_000 * n) for n, chunk in enumerate(response_chunks(turn, SIZE))
    )
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


def _sync_modes() -> Section:
    """Compare the sync modes: CPU time of the calling thread, and of the process until all records are written."""
    rounds: dict[str, list[dict[str, Cost]]] = {"a turn": [], "a tool call": []}
    with tempfile.TemporaryDirectory() as folder:
        recorders = {
            sync: Recorder(open_home(Path(folder) / sync), Options(sync=sync)) for sync in SYNCS
        }
        histories = [history(turn, SIZE) for turn in range(1, 61)]
        turns = {
            sync: {n: _turn(sync, n, messages) for n, messages in enumerate(histories)}
            for sync in SYNCS
        }

        def record(sync: Sync, subject: str, number: int) -> Cost:
            recorder = recorders[sync]
            item = turns[sync][number] if subject == "a turn" else _tool(sync, number)
            return cost_of(partial(recorder, item), partial(recorder.flush, 60.0))

        for subject, results in rounds.items():
            variants = {str(sync): partial(record, sync, subject) for sync in SYNCS}
            results += compare(variants, range(60))
        for recorder in recorders.values():
            recorder.close(60)
    rows = tuple(
        (
            f"{subject}, `{sync}`",
            f"{milliseconds(results, sync, 'thread_ns') * 1000:.0f} us",
            f"{milliseconds(results, sync, 'process_ns'):.2f} ms",
            f"{ratio(results, sync, 'process', 'process_ns'):.2f}",
        )
        for subject, results in rounds.items()
        for sync in SYNCS
    )
    return Section(
        "The cost of a turn and a tool call by `Options.sync`",
        f"60 rounds of turns with {SIZE.deltas} deltas in one conversation, and of tool results of "
        f"{SIZE.result_bytes // 1000} KB. CPU of the calling thread; CPU of the process until the record is written "
        "(with `always`, until it is synced to disk); and the latter as a multiple of `process`.",
        ("", "caller", "process", "x `process`"),
        rows,
    )


def _journal_size() -> Section:
    """Compare the sizes of the requests and responses of a session of 200 turns with the size of its segment."""
    with tempfile.TemporaryDirectory() as folder:
        home = open_home(folder)
        recorder = Recorder(home)
        request_bytes = response_bytes = 0
        messages: list[dict[str, Any]] = []
        for turn in range(1, TURNS + 1):
            messages = history(turn, SIZE)
            exchange = _turn("session", turn, messages)
            request_bytes += len(exchange.question.body)
            response_bytes += len(exchange.answer.body)
            recorder(exchange)
            recorder.flush(60)
        recorder.close(60)
        new = len(request_body(messages))
        plain = _size_of(home.segments)
        ingest(home)
        compressed = _size_of(existing_home(folder).segments)
    rows = (
        ("all requests", f"{request_bytes / 1e6:.1f} MB", ""),
        ("all responses", f"{response_bytes / 1e6:.1f} MB", ""),
        ("the new part of both", f"{(new + response_bytes) / 1e6:.1f} MB", "1.00"),
        (
            "the segment, uncompressed",
            f"{plain / 1e6:.1f} MB",
            f"{plain / (new + response_bytes):.2f}",
        ),
        (
            "the segment after an ingest",
            f"{compressed / 1e6:.2f} MB",
            f"{compressed / (new + response_bytes):.2f}",
        ),
    )
    return Section(
        f"The size of a session of {TURNS} turns in the journal",
        "Facts and content together. Responses are recorded exactly, with each event of the stream.",
        ("", "bytes", "x new part"),
        rows,
    )


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _concurrent_agents() -> Section:
    """Measure the time until a record is written while other agents and an ingest are running."""
    with tempfile.TemporaryDirectory() as folder:
        measured = {
            "alone": _waits(folder, 1, has_ingest=False),
            "alone, repeated": _waits(folder, 1, has_ingest=False),
            f"with {AGENTS - 1} other agents": _waits(folder, AGENTS, has_ingest=False),
            f"with {AGENTS - 1} other agents and an ingest": _waits(
                folder, AGENTS, has_ingest=True
            ),
        }
    floor = median(measured["alone"][0])
    rows = tuple(
        (
            name,
            f"{median(call_ns) / 1000:.0f} us",
            f"{sorted(call_ns)[int(len(call_ns) * 0.99)] / 1000:.0f} us",
            f"{median(call_ns) / floor:.2f}",
            f"{median(written_ns) / 1e6:.2f} ms",
        )
        for name, (call_ns, written_ns) in measured.items()
    )
    return Section(
        f"{AGENTS} concurrent agents in one home",
        "Each agent is a process that records 20 turns of 300 deltas at intervals of 250 ms. Wall time of the call of "
        "the recorder, which is all that an agent waits for, and wall time until the record is written.",
        ("", "call, median", "call, 99th percentile", "x alone", "written, median"),
        rows,
    )


def _waits(folder: str, agents: int, *, has_ingest: bool) -> tuple[list[int], list[int]]:
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    stop: Any = context.Event()
    agent_processes = [
        context.Process(target=_agent, args=(folder, n, results)) for n in range(agents)
    ]
    ingest_processes = (
        [context.Process(target=_ingest_until, args=(folder, stop))] if has_ingest else []
    )
    for process in (*ingest_processes, *agent_processes):
        process.start()
    found = [results.get() for _ in agent_processes]
    stop.set()
    for process in (*agent_processes, *ingest_processes):
        process.join()
    return [n for call_ns, _ in found for n in call_ns], [
        n for _, written_ns in found for n in written_ns
    ]


def _agent(folder: str, number: int, results: Any) -> None:
    recorder = Recorder(open_home(folder))
    call_ns, written_ns = [], []
    messages = history(20, SIZE)
    for turn in range(20):
        exchange = _turn(f"{number}", turn, messages)
        started = time.perf_counter_ns()
        recorder(exchange)
        call_ns.append(time.perf_counter_ns() - started)
        recorder.flush(60)
        written_ns.append(time.perf_counter_ns() - started)
        time.sleep(0.25)
    recorder.close(60)
    results.put((call_ns, written_ns))


def _ingest_until(folder: str, stop: Any) -> None:
    while not stop.is_set():
        ingest(open_home(folder))
