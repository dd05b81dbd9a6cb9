"""Spans: each span ends exactly once, has the right parent, and never affects the agent."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic import Anthropic, APIStatusError, BadRequestError

import agentobs
from agentobs import runtime, tracing, world
from agentobs.errors import UsageError
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from agentobs.recording.options import Options
from agentobs.recording.session import flush
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import Place
from agentobs.records.facts import SpanEnd, SpanStart
from agentobs.records.labels import Label
from agentobs.records.span_names import RESERVED_SPAN_NAMES
from agentobs.sink import Record
from agentobs.store.duckdb.connection import connect
from tests.marks import mark_all_but_first
from tests.provider_script import refused, script, streamed, text

SESSION, INTERACTION = "5" * 32, "1" * 32
SECOND = 1_000_000_000
KEY = "sk-ant-api03-another-key-for-the-tests-0123"
ASK: dict[str, Any] = {
    "model": "claude-sonnet-5",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "x"}],
}


@contextlib.contextmanager
def recorded() -> Iterator[list[Record]]:
    """Collect the records that are emitted inside a block, whose place is in an interaction."""
    records: list[Record] = []
    with runtime.replaced(consumer=records.append), tracing.at(Place(SESSION, INTERACTION)):
        yield records


def starts(records: Sequence[Record]) -> dict[str, SpanStart]:
    return {str(r.name): r for r in records if isinstance(r, SpanStart)}


def tree(records: Sequence[Record]) -> dict[str, str | None]:
    """Return the name of the parent of each span, by name."""
    names = {r.span_id: name for name, r in starts(records).items()}
    return {name: names.get(r.parent_span_id or "") for name, r in starts(records).items()}


def ends(records: Sequence[Record]) -> list[tuple[str, str, str | None]]:
    """Return (name, status, error) of each end, in order."""
    names = {r.span_id: name for name, r in starts(records).items()}
    return [(names[r.span_id], r.status, r.error_type) for r in records if isinstance(r, SpanEnd)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()
    yield tmp_path / "home"
    agentobs.stop_recorder()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Replace the clocks of the world by clocks that only move when the test moves them."""
    at = [1000 * SECOND]
    monkeypatch.setattr(world, "monotonic", lambda: at[0])
    monkeypatch.setattr(world, "now", lambda: 1_790_000_000 * SECOND + at[0])

    def move(seconds: float) -> None:
        at[0] += int(seconds * SECOND)

    return move


def facts(path: Path, kind: str) -> list[dict[str, Any]]:
    home = existing_home(path)
    lines = [line for each in segment_ids(home) for line in read(facts_path(home, each))]
    return [line.value() for line in lines if isinstance(line, Line) and line.kind == kind]


def spans_of(path: Path, columns: str = "name, status") -> list[tuple[Any, ...]]:
    with connect(existing_home(path)) as connection:
        return connection.execute(f"SELECT {columns} FROM spans ORDER BY started_ns").fetchall()


# The position of a span in the tree.


def test_blocks_nest() -> None:
    """A span that is opened inside a block is a child of the block's span; after the block, the previous span is
    current again.
    """
    with recorded() as records:
        with agentobs.span("a"):
            with agentobs.span("b"):
                agentobs.open_span("handle").close()
            with agentobs.span("c"):
                pass
        assert tracing.place() == Place(SESSION, INTERACTION)
    assert tree(records) == {"a": None, "b": "a", "handle": "b", "c": "a"}
    assert {r.trace_id for r in starts(records).values()} == {INTERACTION}
    assert [name for name, *_ in ends(records)] == ["handle", "b", "c", "a"]


def test_a_block_records_how_it_ended() -> None:
    """The status of a block is `ok`, an error with its class but not its text, or `cancelled`; the exception
    propagates.
    """
    with recorded() as records:
        for name, raised in [
            ("bad", ValueError("content")),
            ("stopped", KeyboardInterrupt()),
        ]:
            with pytest.raises(type(raised)), agentobs.span(name):
                raise raised
        with agentobs.span("good"):
            pass
    assert ends(records) == [
        ("bad", "error", "ValueError"),
        ("stopped", "cancelled", "KeyboardInterrupt"),
        ("good", "ok", None),
    ]
    assert "content" not in repr(records)


def test_metadata_by_type(home: Path) -> None:
    """Booleans, numbers and labels are stored as metadata of a span; other types are rejected."""
    with agentobs.session("metadata"):
        with agentobs.span("load", rows=3, share=0.5, cached=True, none=None, table=Label("users")):
            pass
    for bad in ("a text", [1], b"x", object()):
        with pytest.raises(TypeError, match=r"agentobs\.Label"):
            agentobs.span("bad", value=bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"agentobs\.Label"):
            agentobs.open_span("bad", value=bad)  # type: ignore[arg-type]
    for not_finite in (float("nan"), float("inf"), 10**400):
        with pytest.raises(ValueError, match="finite"):
            agentobs.span("bad", value=not_finite)
    with pytest.raises(ValueError, match="not a label"):
        agentobs.span("bad", **{"a name that was said": 1})
    assert agentobs.stop_recorder()
    found = spans_of(home, "name, numbers, labels")
    assert found == [("load", {"rows": 3.0, "share": 0.5, "cached": 1.0}, {"table": "users"})]


@pytest.mark.parametrize("name", sorted(RESERVED_SPAN_NAMES))
def test_names_of_built_in_spans_are_reserved(name: str) -> None:
    """Users cannot use the names of built-in spans, because they determine how time is categorized; the document lists
    them all.
    """
    with pytest.raises(ValueError, match=f"use app.{name}"):
        agentobs.span(name)
    with pytest.raises(ValueError, match=f"use app.{name}"):
        agentobs.open_span(name)
    assert f"| `{name}` |" in (Path(__file__).parents[2] / "docs/spans.md").read_text()


def test_a_reused_thread_id_does_not_matter(home: Path) -> None:
    """A thread that is started during an open session belongs to it, even if it has the ID of an earlier thread."""
    go, numbers = threading.Event(), set()
    early = [threading.Thread(target=go.wait) for _ in range(8)]
    for each in early:
        each.start()
        numbers.add(each.ident)
    found: list[tuple[bool, str | None]] = []

    def late() -> None:
        here = tracing.place()
        found.append((threading.get_ident() in numbers, here.session_id if here else None))

    with agentobs.session("threads") as opened:
        go.set()
        for each in early:
            each.join()
        for _ in range(100):
            thread = threading.Thread(target=late)
            thread.start()
            thread.join()
            if found[-1][0]:
                break
    assert {place for _, place in found} == {opened.session_id}
    assert found[-1][0]


@pytest.mark.slow
def test_stopping_the_recorder_ends_open_sessions(home: Path, tmp_path: Path) -> None:
    """Stopping the recorder ends open sessions; their later records are counted, and are not written to another
    home.
    """
    with agentobs.session("long"):
        held = agentobs.open_span("before")
        assert agentobs.stop_recorder()
        before = agentobs.statistics().sink.dropped
        with agentobs.span("between"):
            pass
        assert agentobs.start(str(tmp_path / "other"))
        with agentobs.span("after"):
            held.close()
        assert agentobs.statistics().sink.dropped == before + 5
        with agentobs.session("second"), agentobs.span("own"):
            pass
    assert agentobs.stop_recorder()
    ended = "SELECT name, status, reason FROM sessions"
    with connect(existing_home(home)) as connection:
        assert connection.sql(ended).fetchall() == [("long", "interrupted", "stop_recorder")]
    with connect(existing_home(tmp_path / "other")) as connection:
        assert connection.sql(ended).fetchall() == [("second", "completed", None)]
        assert connection.sql("SELECT name FROM spans").fetchall() == [("own",)]


def test_a_name_that_is_not_a_label_is_a_digest(home: Path) -> None:
    """A name that is not a label may be content, so the store contains only its digest; the program is not
    interrupted.
    """
    with agentobs.session("names"), agentobs.span("what Ada said"):
        pass
    assert agentobs.stop_recorder()
    [(name, status)] = spans_of(home)
    assert (name.partition(":")[0], status) == ("digest", "ok")


def test_concurrent_tasks_have_separate_spans() -> None:
    """Each task has its own current span, which concurrent and sibling tasks do not change."""

    async def work(name: str, gate: asyncio.Barrier) -> None:
        async with agentobs.span(name):
            await gate.wait()
            async with agentobs.span(f"{name}.inner"):
                await gate.wait()

    async def run() -> None:
        gate = asyncio.Barrier(3)
        async with agentobs.span("all"):
            await asyncio.gather(*(work(name, gate) for name in "abc"))

    with recorded() as records:
        asyncio.run(run())
    assert tree(records) == {
        "all": None, "a": "all", "b": "all", "c": "all", "a.inner": "a", "b.inner": "b", "c.inner": "c",
    }  # fmt: skip


def test_carried_functions_in_threads() -> None:
    """A carried function runs at the place where it was carried, in any thread; in other threads, a plain function has
    no place.
    """
    gate = threading.Barrier(3)

    def work(name: str) -> str | None:
        gate.wait()
        with agentobs.span(name) as opened:
            gate.wait()
            return opened.span_id

    async def work_async(name: str) -> None:
        with agentobs.span(name):
            await asyncio.sleep(0)

    with recorded() as records, ThreadPoolExecutor(3) as pool:
        with agentobs.span("outer"):
            carried = agentobs.carried(work)
            later = agentobs.carried(work_async)
        assert len(set(pool.map(carried, "abc"))) == 3
        with agentobs.span("other"):
            assert list(pool.map(work, "xyz")) == [None] * 3
            asyncio.run(later("d"))
        assert tracing.place() == Place(SESSION, INTERACTION)
    # The enclosing span has ended: a new span is in the nearest open enclosing span, and linked to the ended one.
    assert tree(records) == {
        "outer": None,
        "a": None,
        "b": None,
        "c": None,
        "other": None,
        "d": None,
    }
    outer = starts(records)["outer"].span_id
    assert {starts(records)[name].linked_span_id for name in "abcd"} == {outer}


def test_task_groups_and_threads_of_anyio() -> None:
    """Task groups and worker threads of anyio are inside the span in which they were started."""

    def in_thread() -> None:
        with agentobs.span("thread"):
            pass

    async def in_task() -> None:
        async with agentobs.span("task"):
            await anyio.to_thread.run_sync(in_thread)

    async def run() -> None:
        async with agentobs.span("all"), anyio.create_task_group() as group:
            group.start_soon(in_task)

    with recorded() as records:
        anyio.run(run)
    assert tree(records) == {"all": None, "task": "all", "thread": "task"}


# Spans of generators.


async def steps(name: str, log: list[str]) -> AsyncIterator[int]:
    try:
        with agentobs.span(name):
            for step in range(9):
                yield step
    finally:
        log.append("closed")


def test_a_generator_that_is_closed_by_another_task() -> None:
    """If another task closes a generator, its span ends as cancelled, no error is raised, and the place of its consumer
    does not change.
    """

    async def run() -> None:
        log: list[str] = []
        running = steps("generator", log)
        with agentobs.span("consumer") as consumer:
            await anext(running)
            await asyncio.create_task(running.aclose())  # type: ignore[attr-defined]  # a generator
            here = tracing.place()
            assert here is not None
            assert here.span_id == consumer.span_id
            with agentobs.span("after"):
                pass
        assert log == ["closed"]
        assert tracing.place() == Place(SESSION, INTERACTION)

    with recorded() as records:
        asyncio.run(run())
    assert ("generator", "cancelled", "GeneratorExit") in ends(records)
    assert tree(records) == {"consumer": None, "generator": "consumer", "after": "consumer"}


def test_an_abandoned_generator() -> None:
    """The span of an abandoned generator ends when it is garbage collected, whether or not an event loop closes it."""

    async def run() -> None:
        running = steps("looped", [])
        await anext(running)
        del running
        gc.collect()
        await asyncio.sleep(0)

    with recorded() as records:
        asyncio.run(run())
        running = steps("loopless", [])
        with contextlib.suppress(StopIteration):
            anext(running).__await__().__next__()  # iterated manually, so no event loop closes it
        del running
        gc.collect()
        with agentobs.span("after"):
            pass
    found = {name: status for name, status, _ in ends(records)}
    assert found == {"looped": "cancelled", "loopless": "cancelled", "after": "ok"}
    assert tree(records)["after"] is None


def test_a_generator_whose_consumer_is_cancelled() -> None:
    """If the consumer of a generator is cancelled, the span of the generator also ends as cancelled."""

    async def consume() -> None:
        async for _ in steps("generator", []):
            await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.create_task(consume())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gc.collect()

    with recorded() as records:
        asyncio.run(run())
    assert ends(records) == [("generator", "cancelled", "GeneratorExit")]


def test_a_consumer_keeps_its_own_span_when_its_generator_ends() -> None:
    """If a consumer opens a span and then closes its generator, the consumer stays inside its own span."""
    with recorded() as records:

        def generate() -> Iterator[None]:
            with agentobs.span("generator"):
                yield

        running = generate()
        next(running)
        with agentobs.span("own"):
            running.close()  # type: ignore[attr-defined]
            with agentobs.span("inner"):
                pass
        with agentobs.span("after"):
            pass
    assert (tree(records)["inner"], tree(records)["after"]) == ("own", None)


def test_suspended_generators_do_not_outlive_a_block() -> None:
    """A generator that is suspended when its enclosing block ends is not a parent of later spans, and no chain of
    frames grows.
    """

    def generate(name: str) -> Iterator[None]:
        with agentobs.span(name):
            yield

    with recorded() as records:
        with agentobs.span("block"):
            running = generate("suspended")
            next(running)
        with agentobs.span("after"):
            pass
        for number in range(50):
            dropped = generate(f"dropped-{number}")
            next(dropped)
            contextvars.copy_context().run(dropped.close)  # type: ignore[attr-defined]
        with agentobs.span("last"):
            pass
        frame = tracing.places._frame.get()
        depth = 0
        while frame is not None:
            frame, depth = frame.outer, depth + 1
        running.close()  # type: ignore[attr-defined]
    assert tree(records)["after"] is None
    assert tree(records)["last"] is None
    assert depth < 5


# How spans end.


def test_closing_again_changes_nothing() -> None:
    """A span ends once, even if its handle is closed repeatedly and by several threads concurrently."""
    with recorded() as records:
        handle = agentobs.open_span("once")
        gate = threading.Barrier(8)

        def close() -> bool:
            gate.wait()
            return handle.close(ValueError("late"))

        with ThreadPoolExecutor(8) as pool:
            results = [future.result() for future in [pool.submit(close) for _ in range(8)]]
        assert handle.close() is False
    assert results.count(True) == 1
    assert ends(records) == [("once", "error", "ValueError")]


def test_a_handle_makes_its_span_current() -> None:
    """A handle can make its span current for a block of code, even if other code ends the span."""
    with recorded() as records:
        handle = agentobs.open_span("held")
        with agentobs.span("beside"):
            pass
        with handle.current(), agentobs.span("inside"):
            pass
        assert [name for name, *_ in ends(records)] == ["beside", "inside"]
        handle.close()
    assert tree(records) == {"held": None, "beside": None, "inside": "held"}


def test_a_handle_that_is_garbage_collected() -> None:
    """If a handle is garbage collected, its span ends as orphaned immediately, because no code can end it."""
    before = tracing.statistics()
    with recorded() as records:
        handle = agentobs.open_span("lost")
        del handle
        gc.collect()
    assert ends(records) == [("lost", "orphaned", None)]
    assert tracing.statistics().orphaned == before.orphaned + 1


def test_spans_without_activity_are_swept(clock: Callable[[float], None]) -> None:
    """After half an hour without activity, a span ends as orphaned, and its end is the time of its last activity."""
    with recorded() as records:
        outer = agentobs.open_span("outer")
        clock(500)
        with outer.current():
            inner = agentobs.open_span("inner")
            clock(100)
            inner.close()
        clock(1799)
        assert tracing.sweep(1800) == 0
        clock(1)
        assert tracing.sweep(1800) == 1
        outer.close()
    orphaned, late = [r for r in records if isinstance(r, SpanEnd)][-2:]
    assert (orphaned.status, orphaned.ended_ns - starts(records)["outer"].started_ns) == (
        "orphaned", 2400 * SECOND,
    )  # fmt: skip
    assert orphaned.last_activity_ns == starts(records)["outer"].started_ns + 600 * SECOND
    assert (late.status, late.late) == ("ok", True)


def test_long_turns_are_not_swept(clock: Callable[[float], None]) -> None:
    """Activity in a span, or an expected time without activity, keeps its enclosing spans from being swept."""
    with recorded() as records:
        here = tracing.place()
        assert here
        outer = tracing.begin("interaction", here)
        assert outer.place
        person = tracing.begin("blocked_on_user", outer.place, expected_s=86_400)
        silent = tracing.begin("tool", outer.place)
        clock(5 * 3600)
        assert tracing.sweep(1800) == 1
        assert ends(records) == [("tool", "orphaned", None)]
        assert tracing.sweep(1800, {person.span_id or "": world.monotonic()}) == 0
        clock(86_400)
        assert tracing.sweep(1800) == 2
        silent.close()
        person.close()
        outer.close()
    assert [name for name, status, _ in ends(records) if status == "orphaned"] == [
        "tool", "blocked_on_user", "interaction",
    ]  # fmt: skip


def test_a_late_end_is_counted_once(home: Path) -> None:
    """A span that is swept and closed later has one row, with its real end."""
    before = tracing.statistics()
    with agentobs.session("late"):
        handle = agentobs.open_span("slow")
        tracing.sweep(0)
        assert tracing.statistics().orphaned == before.orphaned + 1
        assert handle.close() is True
        assert handle.close() is False
    assert agentobs.statistics().spans.late == before.late + 1
    assert agentobs.stop_recorder()
    assert spans_of(home, "name, status, late, duration_ns > 0") == [("slow", "ok", True, True)]
    with connect(existing_home(home)) as connection:
        sql = "SELECT spans, open_spans, orphaned_spans, late_spans FROM span_health"
        assert connection.execute(sql).fetchall() == [(1, 0, 0, 1)]


def test_the_recorder_sweeps_periodically(home: Path) -> None:
    """While a span is open, the recorder's thread sweeps spans at the interval in the options, without being called."""
    assert agentobs.start(options=Options(span_sweep_seconds=0.01, span_orphan_seconds=0.05))
    with agentobs.session("swept"):
        held = agentobs.open_span("silent")
        before = tracing.statistics().orphaned
        while tracing.statistics().orphaned == before:
            threading.Event().wait(0.01)
    assert agentobs.stop_recorder()
    assert spans_of(home) == [("silent", "orphaned")]
    del held


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["span_sweep_seconds", "span_orphan_seconds"])
def test_invalid_sweep_intervals_are_rejected(name: str, seconds: float) -> None:
    """An invalid sweep interval is rejected when the options are created, before it could cause a busy loop or an error
    in a thread.
    """
    with pytest.raises(UsageError, match=name):
        Options(**{name: seconds})  # type: ignore[arg-type]  # one of its floats


def test_open_spans_are_orphaned_at_the_end(home: Path) -> None:
    """The end of the recording ends every open span as orphaned; the start of a span is written when the span
    starts.
    """
    with agentobs.session("open"):
        held = agentobs.open_span("held")
        assert flush()
        assert [fact["name"] for fact in facts(home, "span_starts")] == ["held"]
        assert facts(home, "span_ends") == []
    assert agentobs.stop_recorder()
    assert [fact["status"] for fact in facts(home, "span_ends")] == ["orphaned"]
    assert spans_of(home) == [("held", "orphaned")]
    del held


KILLED = """
import os, signal
import agentobs
from agentobs.recording.session import flush
with agentobs.session("killed"):
    outer = agentobs.open_span("outer")
    with outer.current():
        agentobs.open_span("done").close()
        inner = agentobs.open_span("inner")
    flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_spans_of_a_killed_process(home: Path) -> None:
    """If a process is killed, its open spans are shown as orphaned, and end with the last record of their session."""
    died = subprocess.run(
        [sys.executable, "-c", KILLED], check=False, cwd=Path(__file__).parents[2]
    )
    assert died.returncode == -signal.SIGKILL
    rows = spans_of(home, "name, status, ended_ns, last_activity_ns, started_ns")
    assert [row[:2] for row in rows] == [
        ("outer", "orphaned"),
        ("done", "ok"),
        ("inner", "orphaned"),
    ]
    last = rows[2][4]
    assert {row[2:4] for row in rows if row[1] == "orphaned"} == {(last, last)}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_does_not_end_spans_of_its_parent(home: Path) -> None:
    """The spans of a forked child are inside those of its parent, and only the parent ends its own spans."""
    with agentobs.session("forked"):
        with agentobs.span("parent"):
            child = os.fork()
            if child == 0:
                with agentobs.span("child"):
                    pass
                tracing.sweep(0)
                agentobs.stop_recorder()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    assert agentobs.stop_recorder()
    names = {row[1]: row[0] for row in spans_of(home, "name, span_id")}
    rows = spans_of(home, "name, status, parent_span_id, late")
    assert {(name, status, names.get(parent), late) for name, status, parent, late in rows} == {
        ("parent", "ok", None, False),
        ("child", "ok", "parent", False),
    }


def test_activity_in_a_linked_trace_counts_for_the_enclosing_span(
    clock: Callable[[float], None],
) -> None:
    """Activity in a trace that is part of an enclosing span counts for that span; activity in a background trace does
    not.
    """
    with recorded() as records:
        outer, unrelated = agentobs.open_span("around"), agentobs.open_span("left")
        assert outer.place
        assert unrelated.place
        inside = tracing.begin("interaction", outer.place, trace_id=INTERACTION, is_within=True)
        behind = tracing.begin("interaction", unrelated.place, trace_id="2" * 32)
        clock(100)
        tracing.touch(inside.span_id)
        tracing.touch(behind.span_id)
        assert tracing.sweep(50) == 1
        for each in (behind, inside, outer):
            each.close()
    ended = [(r.span_id, r.status) for r in records if isinstance(r, SpanEnd)]
    assert ended[0] == (unrelated.span_id, "orphaned")
    assert [r.linked_span_id for r in records if isinstance(r, SpanStart)][2:] == [
        outer.span_id,
        unrelated.span_id,
    ]


def test_work_that_outlives_its_span_is_linked() -> None:
    """If a task continues after all its enclosing spans have ended, its spans are a separate trace that is linked to
    its origin.
    """

    async def run() -> None:
        ended = asyncio.Event()

        async def later() -> None:
            await ended.wait()
            with agentobs.span("later"), agentobs.span("inner"):
                pass

        with agentobs.span("outer"), agentobs.span("starter"):
            task = asyncio.create_task(later())
        ended.set()
        await task

    with recorded() as records:
        asyncio.run(run())
    found = starts(records)
    assert tree(records) == {"outer": None, "starter": "outer", "later": None, "inner": "later"}
    assert found["later"].linked_span_id == found["starter"].span_id
    assert found["later"].trace_id not in (INTERACTION, SESSION)
    assert found["inner"].trace_id == found["later"].trace_id
    assert found["inner"].linked_span_id is None


def test_spans_outside_every_session(home: Path) -> None:
    """A span outside of every session is recorded in the process session if that is recorded; otherwise it is not
    recorded and costs nothing.
    """
    with agentobs.span("nowhere") as opened:
        assert (opened.span_id, agentobs.trace_context()) == (None, {})
    assert opened.close() is False
    assert agentobs.start()
    with agentobs.span("process"):
        pass
    assert agentobs.stop_recorder()
    assert spans_of(home) == [("process", "ok")]


def test_statistics_are_one_value(home: Path) -> None:
    """The statistics of records and spans are one frozen value."""
    before = agentobs.statistics()
    assert before.recorder is None
    with agentobs.session("counted"), agentobs.span("one"):
        statistics = agentobs.statistics()
    assert statistics.spans.open >= 1
    assert statistics.recorder is not None
    assert statistics.sink.dropped == before.sink.dropped
    assert statistics.sink.emitted > before.sink.emitted


def test_the_code_of_the_document_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The code in docs/spans.md runs unchanged, and opens the spans that the document shows."""
    text_of = (Path(__file__).parents[2] / "docs/spans.md").read_text()
    variables: dict[str, Any] = {}
    exec(text_of.split("```python\n")[1].split("```")[0], variables)
    assert agentobs.stop_recorder()
    assert spans_of(home) == [("load", "ok"), ("upload", "ok")]
    assert variables["headers"]["traceparent"].startswith("00-")
    assert "inside of" in capsys.readouterr().out


# Trace contexts of other programs.

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("variable", "recorded_parent"),
    mark_all_but_first(
        [
            (PARENT, PARENT),
            (PARENT.replace("00-", "cc-", 1) + "-and-more", PARENT),
            (PARENT + "-and-more", None),
            (PARENT.replace("00-", "ff-", 1), None),
            (PARENT.upper(), None),
            (PARENT.replace("b7ad6b7169203331", "0" * 16), None),
            (PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32), None),
            (PARENT + "\n", None),
            (" " + PARENT, None),
            (PARENT.replace("-01", "-1"), None),
            (PARENT.replace("0af7", "०af7"), None),
            ("cc-" + PARENT[3:] + "-" + "x" * 10_000, None),
            ("https://evil.example/?key=" + "a" * 40, None),
        ],
        pytest.mark.slow,
        kept=4,
    ),
)
def test_a_trace_context_is_read_strictly(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, recorded_parent: str | None
) -> None:
    """A session that is started in the trace of another program records that trace; a malformed trace context is
    ignored.
    """
    monkeypatch.setenv("TRACEPARENT", variable)
    monkeypatch.setenv("BAGGAGE", "key=value")
    with agentobs.session("child"):
        monkeypatch.setenv("TRACEPARENT", PARENT.replace("0af7", "beef"))  # read once
        with agentobs.span("root"), agentobs.span("inner"):
            pass
    assert agentobs.stop_recorder()
    assert spans_of(home, "name, remote_parent") == [("root", recorded_parent), ("inner", None)]


def test_the_trace_context_is_propagated() -> None:
    """Headers and environment variables for other programs contain the current span in the W3C format."""
    with recorded() as records:
        assert agentobs.trace_context() == {}
        with agentobs.span("app.tool") as opened:
            headers = agentobs.trace_context()
            assert agentobs.trace_environment() == {"TRACEPARENT": headers["traceparent"]}
    assert headers == {"traceparent": f"00-{INTERACTION}-{opened.span_id}-01"}
    assert tracing.propagation.parsed(headers["traceparent"]) == headers["traceparent"]
    del records


@pytest.mark.parametrize("propagate", [False, True])
def test_the_trace_context_is_sent_to_the_provider_only_on_request(
    home: Path, propagate: bool
) -> None:
    """Requests to the provider contain the trace context of the current span only if the options request it."""
    answers = script(streamed(text("ok")))
    assert agentobs.start(options=Options(propagate=propagate))
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url))
        headers = sent(client)
        with agentobs.session("told"), agentobs.span("step") as opened:
            list(client.messages.create(**ASK, stream=True))
    [found] = headers
    expected = opened.span_id if propagate else None
    assert (found.get("traceparent") or "---").split("-")[2] == (expected or "")


def sent(client: Anthropic) -> list[Any]:
    """Collect the headers that each request has below the transport of agentobs."""
    headers: list[Any] = []
    inner = client._client._transport._inner  # type: ignore[attr-defined]
    handle = inner.handle_request

    def handle_request(request: Any) -> Any:
        headers.append(request.headers)
        return handle(request)

    inner.handle_request = handle_request
    return headers


# Calls of clients that open no spans of the agent.


@pytest.mark.slow
def test_retries_of_the_sdk_are_in_one_span(home: Path) -> None:
    """A call of a client with retries is one span inside the current span of the program, with wait spans between its
    attempts.
    """
    overloaded = refused(529, retry_after_ms="1")
    answers = script(overloaded, streamed(text("ok")), refused(400, "invalid_request_error"))
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url))
        with agentobs.session("foreign"):
            with agentobs.span("step"):
                list(client.messages.create(**ASK, stream=True))
            with pytest.raises(BadRequestError):
                client.messages.create(**{**ASK, "max_tokens": 8})
    assert agentobs.stop_recorder()
    names = {row[1]: row[0] for row in spans_of(home, "name, span_id")}
    rows = spans_of(home, "name, status, parent_span_id, label")
    assert [(name, status, names.get(parent), label) for name, status, parent, label in rows] == [
        ("step", "ok", None, None),
        ("llm_request", "ok", "step", "claude-sonnet-5"),
        ("retry_wait", "ok", "llm_request", "overloaded_error"),
        ("llm_request", "error", None, "claude-sonnet-5"),
    ]
    traces = dict(spans_of(home, "name, trace_id"))
    assert traces["step"] == traces["retry_wait"]


def test_a_call_that_is_not_retried_ends_with_its_last_attempt(home: Path) -> None:
    """If a failed call is not retried, its span ends as an error, at the latest when the session ends."""
    answers = script(*[refused(529, retry_after_ms="1")] * 2)
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        made = Anthropic(api_key=KEY, base_url=provider.url, max_retries=1)
        client = agentobs.record(made)
        with agentobs.session("foreign"), pytest.raises(APIStatusError):
            client.messages.create(**ASK)
    assert agentobs.stop_recorder()
    rows = spans_of(home, "name, status, error_type")
    assert rows[0] == ("llm_request", "error", "overloaded_error")
    assert [name for name, *_ in rows] == ["llm_request", "retry_wait"]


# The span that the SDK opens for a call.

OWNERS = Path(__file__).with_name("span_owners.py")


@pytest.mark.slow
@pytest.mark.parametrize("exports", [False, True])
def test_each_call_has_one_span_owner(home: Path, tmp_path: Path, exports: bool) -> None:
    """If the program has a global tracer provider, each call is at most one span in the program's telemetry.

    It is the span of the SDK, which the recorded attempt refers to; if a backend exports spans of agentobs, there is no
    span of the SDK. This holds for sync, async and streamed calls and for copies of the client. The environment
    variables of other tools, all of which are set, add no content and send nothing to the LLM provider.
    """
    others = {
        "ANTHROPIC_OPEN_TELEMETRY": "true",
        "ANTHROPIC_OPEN_TELEMETRY_TRACES_CONTENT_MODE": "content",
        "ANTHROPIC_OPEN_TELEMETRY_TRACES_MAX_CONTENT_BYTES": "1000000",
        "ANTHROPIC_OPEN_TELEMETRY_PROPAGATION": "true",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_AND_EVENT",
        "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
        "OTEL_SERVICE_NAME": "somebody",
        "OTEL_TRACES_SAMPLER": "always_on",
        "OTEL_PROPAGATORS": "tracecontext,baggage",
        "TRACELOOP_TRACE_CONTENT": "true",
    }
    output = tmp_path / "output.json"
    done = subprocess.run(
        [sys.executable, str(OWNERS), str(output), "exports" if exports else "none"],
        env={**os.environ, **others, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    calls = found["calls"]
    assert calls == 6
    assert len(found["sdk"]) == (0 if exports else calls)
    assert "canary" not in output.read_text()
    assert found["traceparents"] == []
    adopted = [row["adopted_span"] for row in facts(home, "attempts")]
    assert len(adopted) == calls
    assert sorted(filter(None, adopted)) == sorted(found["sdk"])
    assert (
        len([fact for fact in facts(home, "span_starts") if fact["name"] == "llm_request"]) == calls
    )
