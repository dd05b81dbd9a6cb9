"""Trace files, read with Perfetto's protobuf classes."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

import agentobs
from agentobs.cli import cli
from agentobs.errors import UsageError
from exporters import perfetto
from tests.exporters.sample_agents import recording, run_agent, run_delegation
from tests.exporters.test_otlp import emit_facts, ended, facts, opened, started

ROOT = Path(__file__).parent.parent.parent


class Read:
    """A trace as Perfetto interprets it, with packets sorted by time and nested slices on each track."""

    def __init__(self, data: bytes) -> None:
        trace = Trace.FromString(data)
        self.tracks: dict[int, str] = {}
        self.parents: dict[int, int] = {}
        self.slices: list[dict[str, Any]] = []
        self.counters: dict[str, list[float]] = {}
        self.flows: dict[int, list[tuple[int, str]]] = {}
        for packet in trace.packet:
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor.name
                self.parents[packet.track_descriptor.uuid] = packet.track_descriptor.parent_uuid
        stacks: dict[int, list[dict[str, Any]]] = {}
        events = [packet for packet in trace.packet if packet.HasField("track_event")]
        for packet in sorted(events, key=lambda packet: packet.timestamp):
            self._lay(packet, stacks.setdefault(packet.track_event.track_uuid, []))
        self.open = [each["name"] for stack in stacks.values() for each in stack]

    def _lay(self, packet: Any, stack: list[dict[str, Any]]) -> None:
        event, at = packet.track_event, packet.timestamp
        notes = {each.name: each for each in event.debug_annotations}
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            made = {"name": event.name, "start": at, "end": None, "depth": len(stack)}
            made |= {"track": self.tracks[event.track_uuid], "notes": notes}
            made["in"] = stack[-1]["name"] if stack else None
            self.slices.append(made)
            stack.append(made)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            closed = stack.pop()
            closed["end"] = at
            closed["notes"] |= notes
        elif event.type == TrackEvent.TYPE_COUNTER:
            value = event.double_counter_value or event.counter_value
            self.counters.setdefault(self.tracks[event.track_uuid], []).append(value)
        for flow in (*event.flow_ids, *event.terminating_flow_ids):
            here = stack[-1]["name"] if stack else event.name
            self.flows.setdefault(flow, []).append((at, here))

    def named(self, name: str) -> dict[str, Any]:
        [found] = [each for each in self.slices if each["name"] == name]
        return found


def drawn(tmp_path: Path, what: Any = run_agent) -> Read:
    backend = perfetto.trace_file(tmp_path / "traces")
    with recording(tmp_path / "home", backend):
        what()
    assert backend.failed == 0
    assert backend.statistics().dropped == {}
    [path] = (tmp_path / "traces").iterdir()
    return Read(path.read_bytes())


@pytest.mark.slow
def test_slices_are_nested_like_the_recorded_spans(tmp_path: Path) -> None:
    """Slices are nested like the spans, at the recorded times; concurrent operations are on separate tracks."""
    read = drawn(tmp_path)
    nested = {(each["name"], each["in"]) for each in read.slices}
    assert {
        ("invoke_agent main", None),
        ("chat claude-test-1", "invoke_agent main"),
        ("agentobs.llm_request.retry_wait", "chat claude-test-1"),
        ("agentobs.tool.execution", "execute_tool look"),
        ("agentobs.tool.execution", "execute_tool write"),
        ("agentobs.hook", "execute_tool look"),
    } <= nested
    assert read.open == []
    starts = {
        fact["span_id"]: fact["started_ns"] for fact in facts(tmp_path / "home", "span_starts")
    }
    ends = {fact["span_id"]: fact["ended_ns"] for fact in facts(tmp_path / "home", "span_ends")}
    assert sorted((s["start"], s["end"]) for s in read.slices) == sorted(
        (starts[span_id], ends[span_id]) for span_id in starts
    )
    assert set(read.tracks.values()) >= {"acting", "main", "context tokens, main"}


@pytest.mark.slow
def test_arrows_lead_from_a_response_to_its_tool_calls(tmp_path: Path) -> None:
    """Each call has one flow, from the slice of the request to the start of the tool."""
    read = drawn(tmp_path)
    ends = []
    for flow in read.flows.values():
        (first_at, first), (last_at, last) = flow
        assert first == "chat claude-test-1"
        assert first_at < last_at
        ends.append(last)
    assert sorted(ends) == ["execute_tool look", "execute_tool write"]


READERS = ["classes", *(["processor"] if os.environ.get("TRACE_PROCESSOR") else [])]
"""Perfetto's trace processor also reads the file if an environment variable contains its path."""


@pytest.mark.parametrize("reader", READERS)
def test_perfetto_reads_the_recorded_data(tmp_path: Path, reader: str) -> None:
    """Each reader finds the recorded slices, arrows, counters and tracks."""
    read = drawn(tmp_path, lambda: run_agent(model="claude-sonnet-5"))
    [path] = (tmp_path / "traces").iterdir()
    slices = sorted(
        (s["name"], s["start"], s["end"] - s["start"], s["depth"], s["track"]) for s in read.slices
    )
    arrows, spent = len(read.flows), read.counters["cost"]
    if reader == "processor":
        slices, arrows, spent = queried(path)
    assert len(slices) == len(facts(tmp_path / "home", "span_starts"))
    assert {each[4] for each in slices} <= {"main", "main +1"}
    depths = {name: depth for name, _, _, depth, track in slices if track == "main"}
    assert (depths["invoke_agent main"], depths["chat claude-sonnet-5"]) == (0, 1)
    assert arrows == 2
    assert len(spent) == 2
    assert 0 < spent[0] < spent[1]


def queried(path: Path) -> tuple[list[Any], int, list[float]]:
    """Return the results of Perfetto's trace processor: slices, arrows and the cost counter."""
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    config = TraceProcessorConfig(bin_path=os.environ["TRACE_PROCESSOR"])
    with TraceProcessor(trace=str(path), config=config) as processor:
        sliced = processor.query(
            "SELECT s.name, s.ts, s.dur, s.depth, t.name AS track FROM slice AS s JOIN track AS t ON s.track_id = t.id "
            "WHERE s.dur > 0 OR s.name != 'calls'"
        )
        slices = sorted(
            (r.name, r.ts, r.dur, r.depth, r.track) for r in sliced if r.name != "calls"
        )
        arrows = next(iter(processor.query("SELECT count(*) AS n FROM flow"))).n
        counted = processor.query(
            "SELECT c.value FROM counter AS c JOIN track AS t ON c.track_id = t.id WHERE t.name = 'cost' ORDER BY c.ts"
        )
        return slices, arrows, [row.value for row in counted]


@pytest.mark.slow
@pytest.mark.parametrize("what", [run_agent, run_delegation])
def test_the_trace_of_a_recorded_session_equals_the_live_trace(tmp_path: Path, what: Any) -> None:
    """Both traces have the same slices, arrows, counters and notes.

    An existing file is replaced only with `--force`.
    """
    live_read = drawn(tmp_path, what)
    [live] = (tmp_path / "traces").iterdir()
    name = "acting" if what is run_agent else "delegating"
    command = [
        "--home",
        str(tmp_path / "home"),
        "export",
        "perfetto",
        name,
        "-o",
        str(tmp_path / "after"),
    ]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.exception
    after = tmp_path / "after" / live.name
    read = Read(after.read_bytes())
    assert without_types(read) == without_types(live_read)
    assert stat.S_IMODE(after.stat().st_mode) == 0o600
    assert "the file exists" in str(CliRunner().invoke(cli, command).exception)
    assert CliRunner().invoke(cli, [*command, "--force"]).exit_code == 0
    assert [each.name for each in after.parent.iterdir()] == [live.name]


def without_types(read: Read) -> dict[str, Any]:
    """Return the contents of a trace with all numbers as floats, because the store returns floats."""
    notes = [sorted((n, _value(v)) for n, v in each["notes"].items()) for each in read.slices]
    slices = [
        {**each, "notes": typeless_notes}
        for each, typeless_notes in zip(read.slices, notes, strict=True)
    ]
    return {**vars(read), "slices": slices}


def _value(note: Any) -> Any:
    value = getattr(note, note.WhichOneof("value"))
    return value if isinstance(value, str) else float(value)


def test_counters_show_the_context_and_the_cost(tmp_path: Path) -> None:
    """The counters contain the tokens of each call and the running total of the cost."""
    read = drawn(tmp_path, lambda: run_agent(model="claude-sonnet-5"))
    assert read.counters["context tokens, main"] == [18, 18]
    one, two = read.counters["cost"]
    assert 0 < one < two


def test_a_sub_agent_has_a_separate_track(tmp_path: Path) -> None:
    """The slices of a sub-agent are on the track of its lane, below the session."""
    read = drawn(tmp_path, run_delegation)
    spawned = read.named("agentobs.subagent.spawn")
    assert spawned["track"] == "main/toolu_1"
    assert read.named("execute_tool agent")["track"] == "main"
    root = next(uuid for uuid, name in read.tracks.items() if name == "delegating")
    assert {read.parents[uuid] for uuid in read.tracks if uuid != root} == {root}


def test_overlapping_intervals_never_share_a_track(tmp_path: Path) -> None:
    """Concurrent siblings, a child that outlives its parent, and calls that are reported late keep their times."""
    backend = perfetto.trace_file(tmp_path)
    times = {
        "1": ("interaction", None, 0, 100),
        "2": ("tool", "1", 10, 50),
        "3": ("tool", "1", 20, 60),
        "4": ("hook", "2", 30, 80),
        "5": ("tool", "1", 70, 90),
    }
    moves = [(start, "open", own) for own, (_, _, start, _) in times.items()]
    moves += [(end, "close", own) for own, (_, _, _, end) in times.items()]
    for at, way, own in sorted(moves):
        name, parent, _, _ = times[own]
        if way == "open":
            emit_facts(backend, *opened(name, own, parent=parent, at=1_000 + at))
        else:
            emit_facts(backend, ended(own, at=1_000 + at))
    backend.close()
    [path] = tmp_path.iterdir()
    read = Read(path.read_bytes())
    spans = sorted((each["start"] - 1_000, each["end"] - 1_000) for each in read.slices)
    # The child that outlives its parent is cut at the parent's end, and continues on another track.
    assert spans == [(0, 100), (10, 50), (20, 60), (30, 50), (50, 80), (70, 90)]
    for each in read.slices:
        for other in read.slices:
            if each["track"] == other["track"] and each["start"] < other["start"] < each["end"]:
                assert other["end"] <= each["end"]


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    """The modes of file and folder are 0600 and 0700 regardless of the umask, and links are not followed."""
    before = os.umask(0)
    try:
        drawn(tmp_path)
    finally:
        os.umask(before)
    [path] = (tmp_path / "traces").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    backend = perfetto.trace_file(tmp_path / "other")
    (tmp_path / "other" / f"{'a' * 32}{perfetto.SUFFIX}").symlink_to(victim)
    with pytest.warns(RuntimeWarning, match="a trace was not written"):
        emit_facts(backend, *opened("tool", "1"), ended("1"))
    assert victim.read_bytes() == b""
    assert backend.statistics().dropped["OSError"] > 0


def test_a_session_id_never_becomes_a_path(tmp_path: Path) -> None:
    """A session ID is used as a file name only if it has the format of agentobs."""
    backend = perfetto.trace_file(tmp_path / "traces")
    for session_id in ("../../escaped", "/etc/passwd", ".."):
        emit_facts(backend, started(session_id, None))
    assert len(list((tmp_path / "traces").iterdir())) == 3
    assert sorted(each.name for each in tmp_path.iterdir()) == ["traces"]


def test_a_full_file_and_a_full_disk_are_counted(tmp_path: Path) -> None:
    """If the file or the disk is full, dropped packets are counted.

    No error is raised, and no packet is written partially.
    """
    backend = perfetto.trace_file(tmp_path / "small", file_bytes=600)
    for number in range(20):
        emit_facts(backend, *opened("tool", f"{number:x}"), ended(f"{number:x}"))
    statistics = backend.statistics()
    assert statistics.dropped["file_full"] > 0
    [path] = (tmp_path / "small").iterdir()
    assert path.stat().st_size <= 600
    assert len(Trace.FromString(path.read_bytes()).packet) == statistics.packets


def test_an_unusable_directory_is_rejected(tmp_path: Path) -> None:
    """The error names the directory."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the trace directory is not writable"):
        perfetto.trace_file(tmp_path / "file" / "traces")


KILLED = """
import os, signal, sys
from exporters import perfetto
from tests.exporters.test_otlp import ended, opened, emit_facts

backend = perfetto.trace_file(sys.argv[1])
emit_facts(backend, *opened("interaction", "1"), *opened("tool", "2", parent="1"), ended("2"))
emit_facts(backend, *opened("tool", "3", parent="1"))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_a_readable_trace(tmp_path: Path) -> None:
    """After a kill, ended spans have an end in the file, and open spans have none."""
    ran = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False)
    assert ran.returncode == -signal.SIGKILL
    [path] = tmp_path.iterdir()
    read = Read(path.read_bytes())
    assert [each["end"] for each in read.slices if each["name"] == "execute_tool x"] == [
        2_000,
        None,
    ]
    assert sorted(read.open) == ["execute_tool x", "invoke_agent x"]


def test_a_child_process_writes_separate_files(tmp_path: Path) -> None:
    """Two processes never write to the same trace."""
    backend = perfetto.trace_file(tmp_path)
    emit_facts(backend, *opened("tool", "1"))
    child = os.fork()
    if child == 0:
        try:
            emit_facts(backend, *opened("tool", "2"), ended("2"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    emit_facts(backend, ended("1"))
    sizes = {path.name.count("-"): path for path in tmp_path.iterdir()}
    assert len(sizes) == 2
    for path in sizes.values():
        [only] = Read(path.read_bytes()).slices
        assert only["end"] == 2_000


def test_a_number_of_any_size_is_drawn(tmp_path: Path) -> None:
    """Numbers that do not fit into 64 bits are floats, in spans and events; the slice starts and ends as usual."""
    backend = perfetto.trace_file(tmp_path / "traces")
    with recording(tmp_path / "home", backend), agentobs.session("numbers"):
        with agentobs.span("outer"):
            for name, number in (("big", 2**63), ("low", -(2**70)), ("most", 2**63 - 1)):
                with agentobs.span(name, n=number):
                    agentobs.event(f"my.{name}", n=number)
    assert (backend.failed, backend.statistics().dropped) == (0, {})
    [path] = (tmp_path / "traces").iterdir()
    read = Read(path.read_bytes())
    assert [(each["name"], each["in"]) for each in read.slices] == [
        ("outer", None), ("big", "outer"), ("low", "outer"), ("most", "outer"),
    ]  # fmt: skip
    assert read.open == []
    notes = [each["notes"]["agentobs.metadata.n"] for each in read.slices[1:]]
    assert [each.double_value for each in notes[:2]] == [2.0**63, -(2.0**70)]
    assert notes[2].int_value == 2**63 - 1


def test_a_span_without_a_written_start_has_no_written_end(tmp_path: Path) -> None:
    """If the start of a span cannot be written, neither is its end; the enclosing span ends correctly."""
    backend = perfetto.trace_file(tmp_path)
    numbers: Any = {"n": object()}
    strange = dataclasses.replace(opened("tool", "2", parent="1", at=1_100)[0], numbers=numbers)
    emit_facts(backend, *opened("interaction", "1"), strange)
    emit_facts(backend, ended("2", at=1_200), ended("1", at=1_300))
    backend.close()
    assert backend.failed == 1
    [path] = tmp_path.iterdir()
    read = Read(path.read_bytes())
    assert [(each["name"], each["end"]) for each in read.slices] == [("invoke_agent x", 1_300)]
    assert read.open == []


def test_a_dropped_session_is_continued_in_its_file(tmp_path: Path) -> None:
    """Above 1,000 sessions, the oldest session is dropped and its open spans end.

    Later facts of this session are appended to the same file.
    """
    backend = perfetto.trace_file(tmp_path, file_bytes=3_000)
    emit_facts(backend, *opened("interaction", "0", session=f"{1:032x}"))
    for number in range(2, 1_003):
        emit_facts(backend, started(f"{number:032x}", None))
    for number in range(1, 50):
        emit_facts(backend, *opened("tool", f"{number:x}", session=f"{1:032x}", at=1_500))
    path = min(tmp_path.iterdir())
    assert path.stat().st_size <= 3_000
    statistics = backend.statistics()
    assert (statistics.files, backend.failed) == (1_002, 0)
    assert statistics.dropped["file_full"] > 0
    trace = Trace.FromString(path.read_bytes())
    assert sum(packet.HasField("clock_snapshot") for packet in trace.packet) == 1
    read = Read(path.read_bytes())
    assert "invoke_agent x" not in read.open
    assert read.named("invoke_agent x")["end"] == 1_000


def test_a_late_end_is_counted(tmp_path: Path) -> None:
    """An abandoned span that ends later has one end in the file; its late end is counted."""
    backend = perfetto.trace_file(tmp_path)
    emit_facts(backend, *opened("tool", "1"), ended("1", status="orphaned", last_activity_ns=1_500))
    emit_facts(backend, ended("1", at=9_000, late=True))
    assert (backend.late_ends, backend.failed) == (1, 0)
    [path] = tmp_path.iterdir()
    assert [each["end"] for each in Read(path.read_bytes()).slices] == [2_000]
