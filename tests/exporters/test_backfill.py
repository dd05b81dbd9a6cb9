"""A backfill sends the same items as a live export, and sends each record once."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import shutil
import signal as signals
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import agentobs
from agentobs import world
from agentobs.cli import cli
from agentobs.cli import main as run_cli
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home, existing_home, open_home
from agentobs.records.facts import (
    Attempt,
    InteractionEnd,
    InteractionStart,
    SessionStart,
    SpanEnd,
    SpanStart,
)
from agentobs.records.labels import Label
from agentobs.store.backend import open_store
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.retention import prune
from exporters import otlp, stored_facts
from exporters.conventions.semconv import profile_named
from exporters.otlp import backfill, sending
from exporters.otlp.backfill import Report, send_recorded
from exporters.otlp.outbox import Limits
from exporters.otlp.send_positions import export_lock
from tests.agent.provider import Provider, message, streamed, text
from tests.exporters.collector import RESPONSES, Collector, Response, Span
from tests.exporters.sample_agents import play, recording, run_agent, run_delegation
from tests.exporters.test_delivery import always
from tests.store.recordings import write_facts

ONCE = Limits(tries=1)
QUICK = Limits(tries=3, backoff_seconds=0.001)
SMALL = Limits(tries=1, batch_items=3)
CONTENT = "gen_ai.input.messages"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Collector, str]:
    """A home with three sessions (one opted in to content), the collector of its live export, and its label."""
    folder = tmp_path_factory.mktemp("acted")
    with Collector() as live:
        backend = otlp.standard(live.endpoint)
        with recording(folder / "home", backend):
            run_agent(model="claude-sonnet-5")
            run_agent(content="export")
            run_delegation()
            assert agentobs.recording.session.flush()
            assert backend.flush(20)
        backend.close()
        ingest(existing_home(folder / "home"))
        return folder / "home", live, str(backend.destination)


@pytest.fixture
def home(recorded: tuple[Path, Collector, str], tmp_path: Path) -> Home:
    """A copy of the recorded home."""
    shutil.copytree(recorded[0], tmp_path / "home")
    return existing_home(tmp_path / "home")


def send(home: Home, collector: Collector, profile: str = "both", **options: Any) -> Report:
    """Send the recordings of a home, as the command `export otlp` does."""
    name = options.pop("name", None)
    with (
        sending(collector.endpoint, collector.protocol) as to,  # type: ignore[arg-type]
        open_store(home) as store,
    ):
        semconv_profile = profile_named(profile, is_beta=options.pop("beta", False))
        return send_recorded(store, to.send, semconv_profile, to.named(name), **options)


def shape(span: Span) -> tuple[Any, ...]:
    """Return all properties of a span except its resource."""
    attributes = tuple(sorted((name, str(value)) for name, value in span.attributes.items()))
    ids = (span.trace_id, span.span_id, span.parent, span.start, span.end, span.status)
    return (span.name, *ids, tuple(span.links), span.proto.kind, attributes)


def logged(collector: Collector) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            *(name, record.trace_id, record.span_id, record.time_unix_nano, record.severity_number),
            *sorted((key, str(value)) for key, value in attributes.items()),
        )
        for name, attributes, record in collector.logs()
    )


def spans(collector: Collector) -> Counter[tuple[Any, ...]]:
    return Counter(map(shape, collector.spans()))


def points(collector: Collector) -> list[tuple[str, Any, Any]]:
    """Return (name, metric, point) of all received data points."""
    return [
        (metric.name, metric, point)
        for _, metric in collector._each("metrics", "metrics")
        for point in (metric.histogram.data_points or metric.sum.data_points)
    ]


def test_a_backfill_sends_the_same_items_as_the_live_export(
    recorded: tuple[Path, Collector, str], home: Home
) -> None:
    """The spans and events of a backfill equal those of the live export, with content only for the opted-in session."""
    with Collector() as collector:
        report = send(home, collector)
        assert report.is_complete
        assert spans(collector) == spans(recorded[1])
        assert logged(collector) == logged(recorded[1])
        assert (
            len({s.attributes["session.id"] for s in collector.spans() if CONTENT in s.attributes})
            == 1
        )
        assert report.accepted["traces"] == len(collector.spans())
        assert report.accepted["logs"] == len(collector.logs())


def test_metrics_are_deltas_over_the_times_of_the_recording(
    recorded: tuple[Path, Collector, str], home: Home
) -> None:
    """The sums of the metrics equal the live metrics.

    Each data point covers the time of one session, and contains no IDs.
    """
    with Collector() as collector:
        send(home, collector)
        data_points = points(collector)
        live = recorded[1].metrics()
        for name, metric in live.items():
            if name == "agentobs.cost":
                sums = [sum(p.as_double for p in metric.sum.data_points), 0.0]
                sums[1] = sum(point.as_double for n, _, point in data_points if n == name)
                assert sums[0] == pytest.approx(sums[1])
                continue
            then = sum(p.count for p in metric.histogram.data_points)
            assert then == sum(point.count for n, _, point in data_points if n == name), name
            assert [*metric.histogram.data_points[0].explicit_bounds] == [
                *next(point for n, _, point in data_points if n == name).explicit_bounds
            ]
        kinds = {
            (m.histogram or m.sum).aggregation_temporality
            for _, m, _ in data_points
            if m.unit == "s"
        }
        assert kinds == {1}  # AGGREGATION_TEMPORALITY_DELTA
        begun = min(span.start for span in collector.spans())
        ended = max(span.end for span in collector.spans())
        for _, _, point in data_points:
            assert (
                begun - 10**10 < point.start_time_unix_nano < point.time_unix_nano < ended + 10**10
            )
        sources = {
            resource["service.instance.id"] for resource, _ in collector._each("metrics", "metrics")
        }
        assert len(sources) == 3
        ids = {span.span_id for span in collector.spans()} | sources
        assert not [each for each in ids if each in str([point for _, _, point in data_points])]


@pytest.mark.slow
def test_each_record_is_sent_once(home: Home) -> None:
    """A second backfill sends only new recordings, even if the store was rebuilt."""
    with Collector() as collector:
        assert send(home, collector).sessions == 3
        before = spans(collector)
        assert max(before.values()) == 1
        home.database.unlink(missing_ok=True)
        home.manifest.unlink(missing_ok=True)
        ingest(home)
        with recording(home.path):
            run_agent("later")
        report = send(home, collector)
        assert (report.sessions, report.already_sent) == (1, 3)
        assert max(spans(collector).values()) == 1
        assert len(spans(collector)) == len(before) + report.accepted["traces"]
        prune(home, sessions=[collector.spans()[0].attributes["session.id"]])
        with connect(home) as connection:
            [[left]] = connection.sql("SELECT count(DISTINCT session_id) FROM exports").fetchall()
        assert left == 3


def test_an_interrupted_backfill_is_continued(
    recorded: tuple[Path, Collector, str], home: Home
) -> None:
    """If the collector fails at a message, the next backfill sends the remaining items, and no item is sent twice."""
    failing = {"traces": 3, "logs": 5, "metrics": 1}
    with Collector(
        respond=lambda signal, number: Response(503) if number == failing[signal] else None
    ) as collector:
        first = send(home, collector, limits=SMALL)
        assert not first.is_complete
        assert set(first.stopped) == {"traces", "logs", "metrics"}
        assert "it responded with status 503" in first.lines()[-1]
        refused = list(collector.received)
        again = send(home, collector, limits=SMALL)
        assert again.is_complete
        for signal, number in failing.items():
            of_it = [received for received in refused if received.signal == signal]
            assert len(of_it) == number
            collector.received.remove(of_it[-1])
        assert spans(collector) == spans(recorded[1])
        assert logged(collector) == logged(recorded[1])
        calls = sum(p.count for n, _, p in points(collector) if n.endswith("operation.duration"))
        assert calls == 7


@pytest.mark.slow
def test_a_killed_backfill_is_continued(home: Home, recorded: tuple[Path, Collector, str]) -> None:
    """If a backfill is killed between two messages, the next backfill sends the remaining items.

    At most one message is sent twice.
    """
    code = (
        "import sys; from exporters import otlp; from exporters.otlp import backfill\n"
        "from exporters.otlp.outbox import Limits\n"
        "from agentobs.recording.journal.home import existing_home\n"
        "from agentobs.store.backend import open_store\n"
        "from exporters.conventions.semconv import profile_named\n"
        "home = existing_home(sys.argv[1])\n"
        "with otlp.sending(sys.argv[2]) as to, open_store(home) as store:\n"
        "    backfill.send_recorded(store, to.send, profile_named('both'), to.named('there'),"
        " signals=('traces',), limits=Limits(batch_items=3))\n"
    )
    killed: list[int] = []

    def kill(signal: str, number: int) -> Response | None:
        if number == 4 and not killed:
            killed.append(child.pid)
            os.kill(child.pid, signals.SIGKILL)
        return None

    with Collector(respond=kill) as collector:
        child = subprocess.Popen([sys.executable, "-c", code, str(home.path), collector.endpoint])
        assert child.wait(60) == -signals.SIGKILL
        report = send(home, collector, name="there", signals=("traces",))
        assert report.is_complete
        found = spans(collector)
        assert set(found) == set(spans(recorded[1]))
        assert sum(found.values()) <= len(found) + 3


def test_all_spans_that_one_record_completes_are_sent(tmp_path: Path) -> None:
    """If a record completes two spans and the second one is not accepted, the next backfill sends the second span."""
    begun_ns, requested_ns, session_id, interaction_id = 10**18, 10**18 + 1000, "5" * 32, "7" * 32
    nothing: dict[str, Any] = {field.name: None for field in dataclasses.fields(Attempt)}
    numbers = {field.name: 0 for field in dataclasses.fields(Attempt) if field.type == "int"}
    made = {**nothing, **numbers, "session_id": session_id, "interaction_id": interaction_id}
    made |= {
        "lane": "main",
        "query_source": "main",
        "started_ns": requested_ns,
        "duration_ns": 1000,
    }
    made |= {"method": "POST", "endpoint": "/v1/messages", "model_requested": "claude-test-1"}
    made |= {"attempt_id": "1" * 32, "llm_request_id": "1" * 32, "outcome": "ok", "streamed": True}
    made |= {"makes_turns": True}
    facts = [
        InteractionStart(session_id, interaction_id, Label("main"), begun_ns),
        Attempt(**made),
        InteractionEnd(session_id, interaction_id, requested_ns + 2000, Label("success"), False),
    ]
    write_facts(open_home(tmp_path / "home"), facts)
    parted = Limits(tries=1, batch_items=1)
    with Collector(
        respond=lambda signal, number: Response(503) if (signal, number) == ("traces", 2) else None
    ) as collector:
        home = existing_home(tmp_path / "home")
        assert not send(home, collector, limits=parted).is_complete
        assert send(home, collector, limits=parted).is_complete
        del collector.received[
            [received.signal for received in collector.received].index("traces") + 1
        ]
        names = {span.name for span in collector.spans()}
        assert names == {"chat claude-test-1", "invoke_agent"}


def test_rejected_items_are_reported(home: Home) -> None:
    """Items that the collector rejects by partial success are reported and recorded, and the exit code is 1.

    They are not sent again.
    """
    partial = RESPONSES["traces"]()
    partial.partial_success.rejected_spans = 4
    partial_success = Response(body=partial.SerializeToString())
    with Collector(
        respond=lambda signal, number: partial_success if signal == "traces" else None
    ) as collector:
        arguments = ["--home", str(home.path), "export", "otlp", "--endpoint", collector.endpoint]
        ran = CliRunner().invoke(cli, arguments)
        assert ran.exit_code == 1, ran.output
        assert "24 spans, 54 log records" in ran.output
        assert "rejected: 4 spans, rejected; they are not sent again" in ran.output
        with connect(home) as connection:
            sql = (
                "SELECT sum(rejected)::INT, bool_or(complete) FROM exports WHERE signal = 'traces'"
            )
            assert connection.sql(sql).fetchall() == [(4, True)]
        ran = CliRunner().invoke(cli, arguments)
        assert (ran.exit_code, ran.output) == (
            0,
            "0 sessions sent: nothing\n3 sessions were already sent\n",
        )


@pytest.mark.slow
def test_a_backfill_waits_for_an_overloaded_collector(home: Home) -> None:
    """Temporary failures are retried a limited number of times; unsent items are not marked as sent."""
    with Collector(
        respond=lambda signal, number: (
            Response(503, headers={"retry-after": "0"}) if number < 3 else None
        ),
    ) as collector:
        assert send(home, collector, limits=QUICK).is_complete
    with Collector(respond=always(Response(503))) as collector:
        report = send(home, collector, limits=QUICK, resend=True, name="away")
        assert set(report.stopped) == {"traces", "logs", "metrics"}
        assert not report.accepted
        assert len(collector.received) == 9
    with connect(home) as connection:
        assert connection.sql("SELECT * FROM exports WHERE destination = 'away'").fetchall() == []


def test_an_address_without_a_collector_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names the address of a collector that never responds.

    The backfill tries the first signal four times and the other signals once.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    waits: list[str] = []
    pauses: list[float] = []
    monkeypatch.setattr(world, "pause", pauses.append)
    with open_store(home) as store, sending(f"http://{address}") as to:
        profile, name = profile_named("both"), Label("nobody")
        report = send_recorded(
            store,
            to.send,
            profile,
            name,
            limits=Limits(backoff_seconds=2),
            report_wait=waits.append,
        )
    reason = f"{address} cannot be reached (ConnectionRefusedError)"
    assert report.stopped == dict.fromkeys(("traces", "logs", "metrics"), reason)
    assert len(pauses) == len(waits) == 3
    assert all(each.startswith(f"{reason}: retrying in ") for each in waits)


def test_a_rejected_signal_does_not_stop_the_others(home: Home) -> None:
    """A collector that accepts only spans receives them; rejected signals are reported and can be excluded."""
    with Collector(
        respond=lambda signal, number: None if signal == "traces" else Response(404)
    ) as collector:
        report = send(home, collector)
        assert report.accepted == Counter(traces=28)
        assert set(report.stopped) == {"logs", "metrics"}
        assert len(collector.received) == 1 + 2 * 2
        assert send(home, collector, signals=("traces",), name="other").is_complete


def test_only_the_rejected_span_is_lost(home: Home) -> None:
    """If a collector rejects one span, all others are sent. The rejected span is counted and not sent again."""
    with Collector() as collector:

        def respond(signal: str, number: int) -> Response | None:
            return Response(400) if b"subagent.spawn" in bodies[-1] else None

        bodies: list[bytes] = [b""]
        receive = collector.receive

        def listen(signal: str, headers: dict[str, str], body: bytes) -> Response:
            bodies.append(body)
            return receive(signal, headers, body)

        collector.receive, collector._respond = listen, respond  # type: ignore[method-assign]
        report = send(home, collector, signals=("traces",))
        assert report.lost == Counter({("traces", "refused"): 1})
        assert report.accepted["traces"] == 27
        assert not report.stopped
        assert send(home, collector, signals=("traces",)).sessions == 0


def test_only_the_span_that_is_too_large_is_lost(home: Home) -> None:
    """A message that is too large is split into halves, until only the span that is too large is lost."""
    with Collector(respond=lambda s, n: Response(413) if n == 1 else None) as collector:
        report = send(home, collector, signals=("traces",))
        assert report.is_complete
        assert max(Counter(map(shape, collector.spans()[28:])).values()) == 1
        assert len(collector.spans()[28:]) == 28


def test_sessions_that_were_exported_live_are_skipped(
    recorded: tuple[Path, Collector, str], home: Home
) -> None:
    """Sessions that were exported live are skipped and counted unless `resend` is set."""
    with Collector() as collector:
        report = send(home, collector, name=recorded[2])
        assert (report.live, report.sessions, collector.received) == (3, 0, [])
        assert "--again" in report.lines()[-1]
        assert send(home, collector, name=recorded[2], resend=True).sessions == 3
    with connect(home) as connection:
        found = connection.sql("SELECT DISTINCT live_exports FROM session_starts").fetchall()
    assert found == [({recorded[2]: "both"},)]


def test_ended_spans_of_a_running_session_are_sent(tmp_path: Path) -> None:
    """Spans that have ended are sent. Open spans are sent once they have ended, complete and not as abandoned."""
    with Collector() as collector, recording(tmp_path / "home"), agentobs.session("runs"):
        with agentobs.span("outer"):
            with agentobs.span("inner"):
                pass
            assert agentobs.recording.session.flush()
            report = send(existing_home(tmp_path / "home"), collector)
            assert [span.name for span in collector.spans()] == ["inner"]
            assert report.is_complete
        assert agentobs.recording.session.flush()
        send(existing_home(tmp_path / "home"), collector)
        assert [span.name for span in collector.spans()] == ["inner", "outer"]
        inner, outer = collector.spans()
        assert (inner.parent, outer.status) == (outer.span_id, 1)
        names = [name for name, _, _ in collector.logs()]
        assert names == ["agentobs.session"]


@pytest.mark.slow
def test_open_spans_of_a_killed_process_are_sent_as_abandoned(tmp_path: Path) -> None:
    """An open span is sent once, as abandoned, if its process was killed and can never end it."""
    code = (
        "import sys, os, signal, agentobs\n"
        "from agentobs.recording.session import flush\n"
        "agentobs.start(sys.argv[1])\n"
        "with agentobs.session('killed'), agentobs.span('left'):\n"
        "    flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "home")], check=False, timeout=60)
    home = existing_home(tmp_path / "home")
    with Collector() as collector:
        assert send(home, collector).is_complete
        [span] = collector.spans()
        assert (span.name, span.attributes["abandoned"]) == ("left", True)
        assert send(home, collector).sessions == 0


@pytest.mark.slow
def test_the_page_size_does_not_change_the_output(
    recorded: tuple[Path, Collector, str], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any page size, the same items are sent. Sessions are sent in sequence, and metrics once per page."""
    monkeypatch.setattr(stored_facts, "PAGE", 7)
    monkeypatch.setattr(backfill, "PAGE", 7)
    with Collector() as collector:
        assert send(home, collector, limits=SMALL).is_complete
        assert spans(collector) == spans(recorded[1])
        assert logged(collector) == logged(recorded[1])
        calls = sum(p.count for n, _, p in points(collector) if n.endswith("operation.duration"))
        assert calls == 7
        by_source: dict[str, list[tuple[int, int]]] = {}
        for resource, metric in collector._each("metrics", "metrics"):
            if metric.name == "gen_ai.client.operation.duration":
                for point in metric.histogram.data_points:
                    stretch = point.start_time_unix_nano, point.time_unix_nano
                    by_source.setdefault(resource["service.instance.id"], []).append(stretch)
        for stretches in by_source.values():
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(stretches))


@pytest.mark.slow
def test_sessions_are_selected_by_time_or_id(home: Home) -> None:
    """Sessions can be selected by start time or ID; if no session is selected, nothing is sent."""
    with connect(home) as connection:
        sql = "SELECT session_id, started_ns FROM session_starts ORDER BY started_ns"
        [(first, _), (_, middle), _] = connection.sql(sql).fetchall()
    with Collector() as collector:
        assert send(home, collector, since_ns=middle).sessions == 2
        assert first not in {span.attributes["session.id"] for span in collector.spans()}
        assert send(home, collector, session_ids=[first]).sessions == 1
        assert send(home, collector).sessions == 0


def test_a_resumed_session_keeps_the_conversation_id(tmp_path: Path) -> None:
    """A resumed session has the conversation ID of the earlier session, even if another process recorded it."""

    async def main(provider: Provider) -> None:
        async with provider.client() as client:
            await play(client)

    ids: list[str] = []
    for _ in range(3):
        resumed: dict[str, Any] = {"resume": ids[-1]} if ids else {}
        with (
            recording(tmp_path / "home"),
            Provider([streamed(message(text("Done.")))]) as provider,
            agentobs.session("again", **resumed) as session,
        ):
            ids.append(session.session_id)
            asyncio.run(main(provider))
    with Collector() as collector:
        send(existing_home(tmp_path / "home"), collector, session_ids=[ids[2]])
        assert {s.attributes["gen_ai.conversation.id"] for s in collector.spans()} == {ids[0]}
        assert {s.attributes["session.id"] for s in collector.spans()} == {ids[2]}


def test_concurrent_backfills_are_rejected(home: Home) -> None:
    """A backfill fails if another one is running, because both would send each record."""
    with Collector() as collector, export_lock(home):
        with pytest.raises(UsageError, match="another process is exporting"):
            send(home, collector)
        assert collector.received == []


@pytest.mark.slow
def test_the_command_reads_headers_from_a_named_variable(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Headers are read from the named environment variable, so keys are neither on the command line nor in messages.

    OpenTelemetry's standard variables are not read unless they are named.
    """
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=hush%20hush, x-team=a")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("BROKEN", "hush")
    with Collector() as collector:
        command = ["--home", str(home.path), "export", "otlp", "--endpoint", collector.endpoint]
        command += ["--signal", "traces"]
        for more in (
            ["--as", "one"],
            ["--as", "two", "--headers-env", "OTEL_EXPORTER_OTLP_HEADERS"],
        ):
            with pytest.raises(SystemExit) as ended:
                run_cli([*command, *more])
            assert ended.value.code == 0
        assert [received.headers.get("x-key") for received in collector.received] == [
            None,
            "hush hush",
        ]
        for wrong in (["--headers-env", "BROKEN"], ["--headers-env", "UNSET"], ["--as", "a b"]):
            with pytest.raises(SystemExit) as ended:
                run_cli([*command, *wrong])
            assert ended.value.code == 1
        out, err = capsys.readouterr()
        assert "hush" not in out + err
        assert err.count("error: ") == 3


@pytest.mark.slow
def test_content_without_an_opt_in_is_not_sent(home: Home) -> None:
    """In every beta profile, only the spans of the opted-in session have content; send positions have none."""
    words = ("nothing in", "Hello", "wrote x", "Look somewhere", "Done.")
    with connect(home) as connection:
        sql = "SELECT session_id FROM session_starts WHERE content = 'export'"
        [[opted]] = connection.sql(sql).fetchall()
    for profile in ("both", "genai-latest", "genai-1.41", "openinference"):
        with Collector() as collector:
            report = send(home, collector, profile, beta=True, name=profile)
            assert (report.sessions, report.without_content) == (3, 0)
            for received in collector.received:
                if received.signal != "traces":
                    assert not [each for each in words if each.encode() in received.body], profile
            by_session: dict[str, str] = {}
            for span in collector.spans():
                of = span.attributes.get("agentobs.session.id") or span.attributes["session.id"]
                by_session[of] = by_session.get(of, "") + str(span.proto)
            assert {
                s for s, span_texts in by_session.items() if any(w in span_texts for w in words)
            } == {opted}
            assert all(word in by_session[opted] for word in words)
    marks = b"".join(path.read_bytes() for path in home.segments.glob("*.facts"))
    assert b"both-beta" in marks
    assert not [each for each in words if each.encode() in marks]


def begun(number: int, at_ns: int | None, session_id: str = "5" * 32) -> SpanStart:
    """Return the start of a span that never ends."""
    ids = (session_id, "6" * 32, f"{number:016x}", None)
    return SpanStart(*ids, Label("main"), Label("mine"), None, at_ns)  # type: ignore[arg-type]


def session_start(session_id: str = "5" * 32) -> SessionStart:
    """Return the start of a session."""
    made: dict[str, Any] = {field.name: None for field in dataclasses.fields(SessionStart)}
    made |= {"session_id": session_id, "name": "made", "started_ns": 10**18, "tags": {}}
    return SessionStart(**{**made, "agentobs_version": "1"})


@pytest.mark.slow
def test_orphaned_spans_are_sent_once(tmp_path: Path) -> None:
    """Several orphaned spans share one send position. If a later message fails, accepted spans are not sent again."""
    home = open_home(tmp_path / "home")
    write_facts(home, [session_start(), *(begun(n, 10**18 + n) for n in range(1, 41))])
    failing = {2, 5}
    with Collector(
        respond=lambda signal, number: Response(503) if number in failing else None
    ) as collector:
        small = Limits(tries=1, batch_items=10)
        for _ in range(3):
            report = send(home, collector, signals=("traces",), limits=small)
        assert report.is_complete
        assert send(home, collector, signals=("traces",)).sessions == 0
        for number in sorted(failing, reverse=True):
            del collector.received[number - 1]
        assert len(collector.spans()) == 40
        assert len({span.span_id for span in collector.spans()}) == 40


@pytest.mark.slow
def test_a_span_that_was_sent_as_abandoned_is_not_sent_again(tmp_path: Path) -> None:
    """If an abandoned span has an end in another segment, the end is only counted.

    Spans that started since the last backfill are sent.
    """
    home = open_home(tmp_path / "home")
    write_facts(home, [session_start(), begun(1, 10**18), begun(2, 10**18)])
    with Collector() as collector:
        assert send(home, collector).accepted["traces"] == 2
        ends = [SpanEnd("5" * 32, f"{n:016x}", 10**18 + 9, "ok", error_type=None) for n in (1, 3)]
        write_facts(home, [begun(3, 10**18 + 1), begun(4, 10**18 + 2), *ends])
        report = send(home, collector)
        assert (report.late_ends, report.accepted["traces"], report.is_complete) == (1, 2, True)
        assert "1 spans were exported as abandoned and ended later" in "\n".join(report.lines())
        is_abandoned = {
            span.span_id: span.attributes.get("abandoned") for span in collector.spans()
        }
        assert [is_abandoned[f"{n:016x}"] for n in (1, 2, 3, 4)] == [True, True, None, True]
        assert len(collector.spans()) == 4
        assert send(home, collector).sessions == 0


@pytest.mark.slow
def test_only_a_record_without_a_time_is_skipped(tmp_path: Path) -> None:
    """If a record has no time, all other records of its session and later sessions are sent.

    Each export command reports the record and exits with 1.
    """
    home = open_home(tmp_path / "home")
    odd, good = "5" * 32, "8" * 32
    write_facts(home, [session_start(odd), begun(1, None, odd), begun(2, 10**18, odd)])
    write_facts(home, [session_start(good), begun(3, 10**18, good)])
    with Collector() as collector:
        arguments = ["--home", str(home.path), "export", "otlp", "--endpoint", collector.endpoint]
        ran = CliRunner().invoke(cli, arguments)
        assert (
            ran.exit_code,
            "not sent: 1 records, because required fields are missing" in ran.output,
        ) == (1, True), ran.output
        assert {span.span_id for span in collector.spans()} == {f"{n:016x}" for n in (2, 3)}
        assert CliRunner().invoke(cli, arguments).exit_code == 0
    arguments = ["--home", str(home.path), "export", "perfetto", odd, good]
    ran = CliRunner().invoke(cli, [*arguments, "-o", str(tmp_path / "traces")])
    assert isinstance(ran.exception, UsageError)
    assert "the trace would be incomplete" in str(ran.exception)
    assert [path.name.partition(".")[0] for path in (tmp_path / "traces").iterdir()] == [good]


def test_a_session_recorded_with_a_disabled_sdk_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that was recorded with `OTEL_SDK_DISABLED` is sent, because it was not exported live.

    The same applies to a session that was recorded in a child process with gRPC.
    """
    with Collector() as collector:
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        backend = otlp.standard(collector.endpoint)
        with (
            recording(tmp_path / "home", backend),
            agentobs.session("silent"),
            agentobs.span("one"),
        ):
            pass
        backend.close()
        monkeypatch.delenv("OTEL_SDK_DISABLED")
        report = send(existing_home(tmp_path / "home"), collector)
        assert (report.live, report.sessions, report.accepted["traces"]) == (0, 1, 1)
    grpc = otlp.standard("http://127.0.0.1:9", protocol="grpc")
    assert grpc.destination is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if grpc.destination is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    grpc.close()


def test_only_the_invalid_session_is_missing_in_a_flame_graph(tmp_path: Path) -> None:
    """The flame graph contains all selected sessions except the invalid session, which the error names."""
    home, odd, good = open_home(tmp_path / "home"), "5" * 32, "8" * 32
    nowhen: Any = None
    prompt = InteractionStart(odd, "7" * 32, Label("main"), nowhen)
    write_facts(home, [session_start(odd), prompt, begun(1, None, odd), begun(2, 10**18, odd)])
    write_facts(home, [session_start(good), begun(3, 10**18, good)])
    drawn = tmp_path / "cost.json"
    arguments = ["--home", str(home.path), "export", "speedscope", odd, good, "--of", "cost"]
    ran = CliRunner().invoke(cli, [*arguments, "-o", str(drawn)])
    assert isinstance(ran.exception, UsageError)
    assert "the flame graph cannot be created" in str(ran.exception)
    assert len(json.loads(drawn.read_text())["profiles"]) == 1
