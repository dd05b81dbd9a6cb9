"""The trace file: read back by Perfetto's own classes, as Perfetto reads it."""

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
from tests.exporters.acting import act, delegate, recording
from tests.exporters.test_otlp import ended, facts, opened, started, tell

ROOT = Path(__file__).parent.parent.parent


class Read:
    """A trace as Perfetto lays it out: packets sorted by time, slices nested track by track."""

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


def drawn(tmp_path: Path, what: Any = act) -> Read:
    backend = perfetto.trace_file(tmp_path / "traces")
    with recording(tmp_path / "home", backend):
        what()
    assert backend.failed == 0
    assert backend.statistics().dropped == {}
    [path] = (tmp_path / "traces").iterdir()
    return Read(path.read_bytes())


def test_what_lay_in_each_other_does_so_in_the_trace(tmp_path: Path) -> None:
    """Slices nest as spans did, at the recorded times; what ran side by side stands on lines of its own."""
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


def test_arrows_lead_from_an_answer_to_the_tools_that_it_called(tmp_path: Path) -> None:
    """Each call has one flow: it starts within the request's slice and ends where the tool begins."""
    read = drawn(tmp_path)
    ends = []
    for flow in read.flows.values():
        (first_at, first), (last_at, last) = flow
        assert first == "chat claude-test-1"
        assert first_at < last_at
        ends.append(last)
    assert sorted(ends) == ["execute_tool look", "execute_tool write"]


READERS = ["classes", *(["processor"] if os.environ.get("TRACE_PROCESSOR") else [])]
"""Perfetto's own trace processor reads the file too, where a variable names its binary."""


@pytest.mark.parametrize("reader", READERS)
def test_perfetto_answers_what_was_recorded(tmp_path: Path, reader: str) -> None:
    """Slices, arrows, counters and tracks are as many, as long and as deep by whoever reads the file."""
    read = drawn(tmp_path, lambda: act(model="claude-sonnet-5"))
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
    """Return what Perfetto's trace processor answers: slices, arrows and the counter of money."""
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


@pytest.mark.parametrize("what", [act, delegate])
def test_what_was_recorded_is_drawn_as_it_was_live(tmp_path: Path, what: Any) -> None:
    """The trace of a recorded session has the slices, arrows, counters and notes of the live one; a file that exists
    stays but with --force.
    """
    live_read = drawn(tmp_path, what)
    [live] = (tmp_path / "traces").iterdir()
    name = "acting" if what is act else "delegating"
    command = [
        "--home",
        str(tmp_path / "home"),
        "export",
        "perfetto",
        name,
        "-o",
        str(tmp_path / "after"),
    ]
    told = CliRunner().invoke(cli, command)
    assert told.exit_code == 0, told.exception
    after = tmp_path / "after" / live.name
    read = Read(after.read_bytes())
    assert without_types(read) == without_types(live_read)
    assert stat.S_IMODE(after.stat().st_mode) == 0o600
    assert "the file exists" in str(CliRunner().invoke(cli, command).exception)
    assert CliRunner().invoke(cli, [*command, "--force"]).exit_code == 0
    assert [each.name for each in after.parent.iterdir()] == [live.name]


def without_types(read: Read) -> dict[str, Any]:
    """Return what a trace says; a number that was read back from the store is a float."""
    notes = [sorted((n, _value(v)) for n, v in each["notes"].items()) for each in read.slices]
    slices = [{**each, "notes": told} for each, told in zip(read.slices, notes, strict=True)]
    return {**vars(read), "slices": slices}


def _value(note: Any) -> Any:
    told = getattr(note, note.WhichOneof("value"))
    return told if isinstance(told, str) else float(told)


def test_counters_show_the_context_and_the_cost(tmp_path: Path) -> None:
    """Tokens of each call as they were counted; the cost adds up."""
    read = drawn(tmp_path, lambda: act(model="claude-sonnet-5"))
    assert read.counters["context tokens, main"] == [18, 18]
    one, two = read.counters["cost"]
    assert 0 < one < two


def test_a_sub_agent_is_a_lane_of_its_own(tmp_path: Path) -> None:
    """Its slices stand on the track of its lane, under the session."""
    read = drawn(tmp_path, delegate)
    spawned = read.named("agentobs.subagent.spawn")
    assert spawned["track"] == "main/toolu_1"
    assert read.named("execute_tool agent")["track"] == "main"
    root = next(uuid for uuid, name in read.tracks.items() if name == "delegating")
    assert {read.parents[uuid] for uuid in read.tracks if uuid != root} == {root}


def test_what_overlaps_never_shares_a_line(tmp_path: Path) -> None:
    """Siblings at once, a child that outlives its parent, and calls told late: each keeps its own times."""
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
            tell(backend, *opened(name, own, parent=parent, at=1_000 + at))
        else:
            tell(backend, ended(own, at=1_000 + at))
    backend.close()
    [path] = tmp_path.iterdir()
    read = Read(path.read_bytes())
    spans = sorted((each["start"] - 1_000, each["end"] - 1_000) for each in read.slices)
    # The child that outlives its parent is cut at the parent's end, and goes on elsewhere.
    assert spans == [(0, 100), (10, 50), (20, 60), (30, 50), (50, 80), (70, 90)]
    for each in read.slices:
        for other in read.slices:
            if each["track"] == other["track"] and each["start"] < other["start"] < each["end"]:
                assert other["end"] <= each["end"]


def test_the_file_is_this_users_alone(tmp_path: Path) -> None:
    """0600 in 0700, whatever the umask; a link in its place is not followed."""
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
        tell(backend, *opened("tool", "1"), ended("1"))
    assert victim.read_bytes() == b""
    assert backend.statistics().dropped["OSError"] > 0


def test_no_name_makes_a_path(tmp_path: Path) -> None:
    """A session id is a file's name only where it has the form of one of ours."""
    backend = perfetto.trace_file(tmp_path / "traces")
    for session_id in ("../../escaped", "/etc/passwd", ".."):
        tell(backend, started(session_id, None))
    assert len(list((tmp_path / "traces").iterdir())) == 3
    assert sorted(each.name for each in tmp_path.iterdir()) == ["traces"]


def test_a_full_file_and_a_full_disk_are_counted(tmp_path: Path) -> None:
    """Nothing is raised, nothing is written by half."""
    backend = perfetto.trace_file(tmp_path / "small", file_bytes=600)
    for number in range(20):
        tell(backend, *opened("tool", f"{number:x}"), ended(f"{number:x}"))
    told = backend.statistics()
    assert told.dropped["file_full"] > 0
    [path] = (tmp_path / "small").iterdir()
    assert path.stat().st_size <= 600
    assert len(Trace.FromString(path.read_bytes()).packet) == told.packets


def test_a_directory_that_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    """One clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the trace directory is not writable"):
        perfetto.trace_file(tmp_path / "file" / "traces")


KILLED = """
import os, signal, sys
from exporters import perfetto
from tests.exporters.test_otlp import ended, opened, tell

backend = perfetto.trace_file(sys.argv[1])
tell(backend, *opened("interaction", "1"), *opened("tool", "2", parent="1"), ended("2"))
tell(backend, *opened("tool", "3", parent="1"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_a_trace_that_can_be_read(tmp_path: Path) -> None:
    """What had ended has its end; what was open is there, without one."""
    ran = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False)
    assert ran.returncode == -signal.SIGKILL
    [path] = tmp_path.iterdir()
    read = Read(path.read_bytes())
    assert [each["end"] for each in read.slices if each["name"] == "execute_tool x"] == [
        2_000,
        None,
    ]
    assert sorted(read.open) == ["execute_tool x", "invoke_agent x"]


def test_a_child_process_writes_files_of_its_own(tmp_path: Path) -> None:
    """Two processes never write into one trace."""
    backend = perfetto.trace_file(tmp_path)
    tell(backend, *opened("tool", "1"))
    child = os.fork()
    if child == 0:
        try:
            tell(backend, *opened("tool", "2"), ended("2"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    tell(backend, ended("1"))
    sizes = {path.name.count("-"): path for path in tmp_path.iterdir()}
    assert len(sizes) == 2
    for path in sizes.values():
        [only] = Read(path.read_bytes()).slices
        assert only["end"] == 2_000


def test_a_number_of_any_size_is_drawn(tmp_path: Path) -> None:
    """What 64 bits do not hold is a float, in the span, in the event, and begins and ends as the others do."""
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


def test_what_cannot_be_drawn_has_no_end_either(tmp_path: Path) -> None:
    """A span whose beginning cannot be written costs itself; what it lay in still ends where it did."""
    backend = perfetto.trace_file(tmp_path)
    numbers: Any = {"n": object()}
    strange = dataclasses.replace(opened("tool", "2", parent="1", at=1_100)[0], numbers=numbers)
    tell(backend, *opened("interaction", "1"), strange)
    tell(backend, ended("2", at=1_200), ended("1", at=1_300))
    backend.close()
    assert backend.failed == 1
    [path] = tmp_path.iterdir()
    read = Read(path.read_bytes())
    assert [(each["name"], each["end"]) for each in read.slices] == [("invoke_agent x", 1_300)]
    assert read.open == []


def test_a_session_that_was_forgotten_goes_on_in_its_file(tmp_path: Path) -> None:
    """Beyond 1,000 sessions the oldest is forgotten: what was open ends, and more of it has one head and one bound."""
    backend = perfetto.trace_file(tmp_path, file_bytes=3_000)
    tell(backend, *opened("interaction", "0", session=f"{1:032x}"))
    for number in range(2, 1_003):
        tell(backend, started(f"{number:032x}", None))
    for number in range(1, 50):
        tell(backend, *opened("tool", f"{number:x}", session=f"{1:032x}", at=1_500))
    path = min(tmp_path.iterdir())
    assert path.stat().st_size <= 3_000
    told = backend.statistics()
    assert (told.files, backend.failed) == (1_002, 0)
    assert told.dropped["file_full"] > 0
    trace = Trace.FromString(path.read_bytes())
    assert sum(packet.HasField("clock_snapshot") for packet in trace.packet) == 1
    read = Read(path.read_bytes())
    assert "invoke_agent x" not in read.open
    assert read.named("invoke_agent x")["end"] == 1_000


def test_a_late_end_is_counted(tmp_path: Path) -> None:
    """A span that was swept and ends after all has one end in the file, and is counted apart."""
    backend = perfetto.trace_file(tmp_path)
    tell(backend, *opened("tool", "1"), ended("1", status="orphaned", last_activity_ns=1_500))
    tell(backend, ended("1", at=9_000, late=True))
    assert (backend.late_ends, backend.failed) == (1, 0)
    [path] = tmp_path.iterdir()
    assert [each["end"] for each in Read(path.read_bytes()).slices] == [2_000]
