"""Streams of agents that the provider runs: facts appear while a stream arrives, and are the same as those of a stream
that is read at its end.
"""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs.recording.facts.interpreter import Interpreter
from agentobs.recording.journal.home import existing_home
from agentobs.recording.session import flush
from agentobs.recording.wire import response_progress
from agentobs.records.exchanges import Answer, Chunk, ModelExchange
from agentobs.records.facts import Attempt, Event, InteractionStart, UsageRow
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.verification import verify
from exporters import otlp
from tests.dashboards.live_app import serving
from tests.exporters.collector import Collector
from tests.exporters.sample_agents import recording
from tests.recording.test_managed_agents import (
    ALL,
    DONE,
    FIRST,
    MODEL,
    RESOURCE,
    SECOND,
    SESSION,
    SNAPSHOT,
    event,
    listed,
    request,
    resource,
    stream,
    streamed,
)
from tests.replay.raw_provider import JSON, SSE, Call, Play, play_chunks, raw_provider
from tests.store.recordings import a_home, end, record, start

PREVIEW: dict[str, Any] = {
    "type": "event_start",
    "event": {"id": "sevt_0030", "type": "agent.message"},
}
UNTIMED = event(50, "user.message", None, content=[{"type": "text", "text": "Another prompt"}])
LAST = event(51, "user.message", None, content=[])
EVENTS = [*ALL[:8], PREVIEW, *ALL[8:], UNTIMED, *request(60, 11, 300), *FIRST, LAST]
"""All kinds of events; some have no time, or are in the stream twice."""


def part(exchange: ModelExchange, count: int) -> ModelExchange:
    """Return the part of an exchange that has arrived with its first chunks."""
    answer = dataclasses.replace(
        exchange.answer, chunks=exchange.answer.chunks[:count], ending="cut"
    )
    return dataclasses.replace(exchange, answer=answer)


def in_chunks(exchange: ModelExchange, size: int, *, is_gzip: bool = False) -> ModelExchange:
    """Return an exchange with chunks of a size."""
    body = exchange.answer.body
    body = gzip.compress(body) if is_gzip else body
    chunks = tuple(
        Chunk(body[at : at + size], number)
        for number, at in enumerate(range(0, len(body), size), 1)
    )
    answer: Answer = dataclasses.replace(
        exchange.answer, chunks=chunks, encoding="gzip" if is_gzip else ""
    )
    return dataclasses.replace(exchange, answer=answer)


class Facts:
    """The facts of one session, with interactions named by their start."""

    def __init__(self) -> None:
        self.interpreter = Interpreter(b"k" * 32)
        self.found: list[Any] = []
        self.drafts: list[Any] = []
        self.add(start(1))
        self.add(resource())

    def add(self, record: Any) -> None:
        self.found += [each.fact for each in self.interpreter.interpret(record).facts]

    def add_part(self, exchange: ModelExchange) -> None:
        if (partial := self.interpreter.interpret_partial(exchange)) is not None:
            self.found += [each.fact for each in partial.facts]
            self.drafts += [each.fact for each in partial.drafts]

    def ended(self) -> Counter[str]:
        """End the session, and return its facts in any order."""
        self.add(end(1, at=1_800_000_000_000_000_000))
        names = {
            each.interaction_id: str(each.started_ns)
            for each in self.found
            if isinstance(each, InteractionStart)
        }
        rows = []
        for each in self.found:
            if (known := getattr(each, "interaction_id", None)) is not None:
                each = dataclasses.replace(each, interaction_id=names[known])
            rows.append(repr(each))
        return Counter(rows)


@pytest.mark.slow
@pytest.mark.parametrize("is_gzip", [False, True])
@pytest.mark.parametrize("size", [1, 97, 1000, 100_000])
def test_facts_in_pieces_are_those_of_the_whole(
    size: int, is_gzip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is read whenever a chunk arrives has the same facts as one that is read at its end, even if a
    segment starts in between, and however the stream ends.
    """
    if size == 1:  # drafts of each beginning of a stream take minutes
        monkeypatch.setattr(response_progress, "FIRST_BYTES", 500)
    endings = ("complete", "cut")
    complete, cut = (
        in_chunks(stream(2, EVENTS, ending=each), size, is_gzip=is_gzip) for each in endings
    )
    pieces, arriving, counts = Facts(), complete, list[int]()
    for count in range(len(arriving.answer.chunks) + 1):
        pieces.add_part(part(arriving, count))
        if count % 50 == 49:
            pieces.interpreter.forget_bodies()
        counts.append(len(pieces.found))
    assert counts[-1] > counts[0] + 10
    for ended in (complete, cut):
        found, expected = copy.deepcopy(pieces), Facts()
        found.add(ended)
        expected.add(stream(2, EVENTS, ending=ended.answer.ending))
        assert without_stream(found.ended()) == without_stream(expected.ended())


def without_stream(rows: Counter[str]) -> Counter[str]:
    """Return facts without the attempts of the program, whose chunks and size differ."""
    own = {row for row in rows if row.startswith("Attempt(") and "origin='live'" in row}
    assert len(own) == 2
    return Counter({row: count for row, count in rows.items() if row not in own})


def test_streams_at_once_a_reconnect_and_a_list_count_once() -> None:
    """The events of two streams in progress, of a stream after a reconnect, and of a list count once."""
    one, other, again = stream(2, ALL), stream(3, ALL), stream(4, ALL[3:])
    facts = Facts()
    for count in range(1, 9):
        facts.add_part(part(one, count))
        facts.add_part(part(other, count - 1))
    facts.add(part(one, 9))
    for count in range(1, len(again.answer.chunks)):
        facts.add_part(part(again, count))
    facts.add(again)
    facts.add(listed(5, ALL))
    facts.add(other)
    facts.ended()
    events = [each for each in facts.found if isinstance(each, Event)]
    assert len(events) == len(ALL)
    assert [each.input_tokens for each in facts.found if isinstance(each, UsageRow)] == [100, 200]
    turns = [each for each in facts.found if isinstance(each, Attempt) and each.origin == "managed"]
    assert [(each.turn, each.outcome) for each in turns] == [(1, "ok"), (2, "ok")]


@pytest.mark.slow
def test_each_event_is_read_once() -> None:
    """The work for a new event does not depend on the events before it."""
    many = [event(1000 + n, "agent.thinking", n / 100) for n in range(2000)]
    exchange = stream(2, many)
    facts, sizes = Facts(), []
    for count in range(0, len(many) + 1, 10):
        before = len(facts.found)
        facts.add_part(part(exchange, count))
        sizes.append(len(facts.found) - before)
    assert sizes == [0, *[10] * 200]


def test_a_request_in_progress_has_a_draft_in_each_segment() -> None:
    """A request that has started is a draft once in each segment, and none if it has ended."""
    exchange, facts = stream(2, [*FIRST, SECOND[0], DONE]), Facts()
    drafted = []
    for count in (1, 1, 2, 3, 3):
        facts.drafts.clear()
        facts.add_part(part(exchange, count))
        drafted.append(
            [
                (each.turn, each.outcome)
                for each in facts.drafts
                if isinstance(each, Attempt) and each.origin == "managed"
            ]
        )
        if count == 2:
            facts.interpreter.forget_bodies()
    facts.interpreter.forget_bodies()
    facts.drafts.clear()
    facts.add_part(part(exchange, 3))
    assert drafted == [[(1, "crashed")], [], [], [(2, "crashed")], []]
    again = [
        each.turn for each in facts.drafts if isinstance(each, Attempt) and each.origin == "managed"
    ]
    assert again == [2]


def waiting_stream(before: Sequence[Any], after: Sequence[Any], until: threading.Event) -> Play:
    """Return a play that sends events, waits for the test, and sends the other events."""

    def send(call: Call) -> None:
        call.send_headers(200, SSE)
        call.send(*streamed(before))
        until.wait()
        call.send(*streamed(after))
        call.end()

    return send


def json_body(value: dict[str, Any]) -> Play:
    return play_chunks(200, JSON, json.dumps(value).encode())


@pytest.mark.slow
def test_backends_the_store_and_pages_show_a_stream_in_progress(tmp_path: Path) -> None:
    """Turns, calls and costs are there before the stream ends, and not twice after it has ended."""
    go_on, shown = threading.Event(), threading.Event()
    facts: list[Any] = []

    def receive(written: Any) -> None:
        facts.append(written.fact)
        if isinstance(written.fact, Event) and written.fact.label == "agent.mcp_tool_result":
            shown.set()

    backend = agentobs.receiving(["*"], receive)
    before, after = ALL[:8], ALL[8:]
    plays = [json_body(RESOURCE), waiting_stream(before, after, go_on)]
    rows = "SELECT turn, cost_usd > 0 FROM turns JOIN audited_costs USING (session_id, attempt_id)"
    calls = "SELECT name, outcome FROM tool_calls WHERE runs_on = 'provider' ORDER BY requested_ns"
    home_path = tmp_path / "home"
    with raw_provider(plays) as provider, recording(home_path, backend):
        client: Any = agentobs.record(Anthropic(api_key="sk-ant-made-up", base_url=provider.url))
        try:
            with agentobs.session("managed"):
                client.beta.sessions.create(agent="agent_1", environment_id="env_1")
                with client.beta.sessions.events.stream(SESSION) as opened:
                    events = iter(opened)
                    assert [next(events).id for _ in before] == [each["id"] for each in before]
                    shown.wait()
                    home = existing_home(home_path)
                    with connect(home) as database:
                        assert database.execute(rows).fetchall() == [(1, True)]
                        [one, two] = database.execute(calls).fetchall()
                        assert (one, two[1]) == (("bash", "executed"), "failed")
                        [(session,)] = database.execute(
                            "SELECT session_id FROM sessions"
                        ).fetchall()
                    with serving(home) as page:
                        steps = page.get(f"/sessions/{session}?tab=steps").html.partition(
                            'id="steps"'
                        )[2]
                    assert MODEL in steps
                    assert "bash" in steps
                    go_on.set()
                    assert [each.id for each in events][-1] == SNAPSHOT["id"]
        finally:
            go_on.set()
            client.close()
    managed = [each for each in facts if isinstance(each, Attempt) and each.origin == "managed"]
    assert [each.turn for each in managed] == [1, 2]
    with connect(existing_home(home_path)) as database:
        assert database.execute(f"{rows} ORDER BY turn").fetchall() == [(1, True), (2, True)]
        assert len(database.execute(calls).fetchall()) == 2
        assert database.execute(
            "SELECT count(*), count(DISTINCT labels['managed_event_id']) FROM events WHERE kind = 'managed_agent'"
        ).fetchall() == [(len(ALL), len(ALL))]
    assert verify(existing_home(home_path)).findings == []


def test_spans_of_a_stream_in_progress_are_those_of_a_stream_that_has_ended(
    tmp_path: Path,
) -> None:
    """Exporters get the same spans, whether facts arrive during the stream or at its end."""
    spans = exported(tmp_path / "one", before=[])
    assert spans == exported(tmp_path / "two", before=ALL[:8])
    assert len(spans) == 6


def exported(folder: Path, before: Sequence[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """Return the name, the parent and the duration of each span; the stream waits until `before` is recorded."""
    go_on, shown = threading.Event(), threading.Event()

    def receive(written: Any) -> None:
        if isinstance(written.fact, Event):
            shown.set()

    plays = [json_body(RESOURCE), waiting_stream(before, ALL[len(before) :], go_on)]
    with Collector() as collector:
        exporter = otlp.standard(collector.endpoint)
        backend = agentobs.receiving(["*"], receive)
        with raw_provider(plays) as provider, recording(folder, backend, exporter):
            client: Any = agentobs.record(Anthropic(api_key="sk-ant-x", base_url=provider.url))
            with agentobs.session("managed"):
                client.beta.sessions.create(agent="agent_1", environment_id="env_1")
                if not before:
                    go_on.set()
                try:
                    with client.beta.sessions.events.stream(SESSION) as opened:
                        events = iter(opened)
                        for _ in before:
                            next(events)
                        assert not before or shown.wait()
                        go_on.set()
                        list(events)
                finally:
                    go_on.set()
                    client.close()
            assert flush()
            assert exporter.flush(20)
        spans = collector.spans()
    # The digests of names differ, because each home has its own key.
    names = {span.span_id: span.name.partition(" digest:")[0] for span in spans}
    managed = [each for each in spans if each.end - each.start >= 10**9 or "tool" in each.name]
    return sorted(
        (names[each.span_id], names.get(each.parent, ""), each.end - each.start) for each in managed
    )


KILLED = """
import os, signal, sys
import agentobs
from anthropic import Anthropic
from agentobs.recording.options import Options
from agentobs.recording.session import start_recorder
from agentobs.records.facts import Event

def receive(written):
    fact = written.fact
    if isinstance(fact, Event) and (fact.labels or {}).get("managed_event_id") == "sevt_0030":
        os.kill(os.getpid(), signal.SIGKILL)

options = Options(backends=(agentobs.receiving(["*"], receive),))
assert start_recorder(sys.argv[2], options) is not None
client = agentobs.record(Anthropic(api_key="sk-ant-made-up", base_url=sys.argv[1]))
with agentobs.session("killed"):
    client.beta.sessions.create(agent="agent_1", environment_id="env_1")
    with client.beta.sessions.events.stream(SESSION) as opened:
        list(opened)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_during_a_stream_has_its_facts(tmp_path: Path) -> None:
    """After a kill, the recording contains the turns, calls and costs so far, and the request in progress; a list in
    another session adds only what is missing.
    """
    until = threading.Event()
    plays = [json_body(RESOURCE), waiting_stream([*ALL[:10], SECOND[0]], [], until)]
    home = a_home(tmp_path)
    with raw_provider(plays) as provider:
        command = [sys.executable, "-c", KILLED.replace("SESSION", repr(SESSION)), provider.url]
        run = subprocess.run(
            [*command, str(home.path)], capture_output=True, text=True, check=False
        )
        until.set()
    assert run.returncode == -signal.SIGKILL, run.stderr
    ingest(home)
    turns = "SELECT turn, outcome, input_tokens FROM attempts JOIN usage USING (session_id, attempt_id) ORDER BY ALL"
    with connect(home) as database:
        assert database.execute(turns).fetchall() == [(1, "ok", 100), (2, "crashed", 0)]
        assert database.execute(
            "SELECT count(*) FROM tool_calls WHERE outcome IS NOT NULL"
        ).fetchall() == [(3,)]
        assert database.execute(
            "SELECT events, requests, cost_usd > 0, cost_status FROM managed_sessions"
        ).fetchall() == [(11, 2, True, "lower_bound")]
    record(home, [start(7), resource(1, session=7), listed(2, ALL, session=7), end(7)])
    ingest(home)
    with connect(home) as database:
        counted = "SELECT sum(input_tokens) FROM costs"
        assert database.execute(counted).fetchall() == [(300,)]
        assert database.execute("SELECT status FROM sessions WHERE name = 'killed'").fetchall() == [
            ("crashed",)
        ]
    assert verify(home).findings == []


def test_drafts_are_followed_by_new_ones_only_if_the_start_of_a_response_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that lasts for hours is not searched for usage again and again."""
    derived: list[int] = []
    facts = Facts()
    view: Any = facts.interpreter._view(start(1).start.session_id)
    exchange = stream(2, [event(1000 + n, "agent.thinking", n / 1000) for n in range(2000)])
    drafts: Callable[..., Any] = type(view).drafts

    def count(self: Any, started: ModelExchange, *more: Any) -> Any:
        derived.append(len(started.answer.chunks))
        return drafts(self, started, *more)

    monkeypatch.setattr(type(view), "drafts", count)
    for number in (1, 1, 1, 1990, 2000):
        facts.add_part(part(exchange, number))
    of_starts = [count for count in derived if count]  # the others are for the place of new events
    assert of_starts[0] == 1
    assert len(of_starts) == 2
