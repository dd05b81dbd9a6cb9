"""Spans, events and metrics over OTLP, as a collector receives them."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from opentelemetry import _logs, metrics, trace
from opentelemetry.context import attach, detach

import agentobs
from agentobs.cli.run import PROFILES
from agentobs.errors import UsageError
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.backend import Backend, WrittenFact
from agentobs.records.facts import Fact, SessionStart, SpanEnd, SpanStart
from agentobs.records.labels import Label
from exporters import otlp
from exporters.conventions import semconv
from exporters.conventions.bounded_dict import REMEMBERED_MAX
from exporters.otlp.outbox import Limits
from tests.agent.provider import Provider, call, message, streamed, text
from tests.exporters.collector import Collector, Span, values
from tests.exporters.sample_agents import calls, look, play, recording, run_agent, run_delegation
from tests.provider_script import call as called
from tests.provider_script import script
from tests.provider_script import streamed as answered
from tests.provider_script import text as text_block

PROTOCOLS = ("http/protobuf", "http/json", "grpc")
GOOD = {"model": "claude-sonnet-5"}

TOOLS: Any = [{"name": n, "input_schema": {"type": "object"}} for n in ("look", "peek", "write")]


def facts(home: Path, kind: str) -> list[dict[str, Any]]:
    known = existing_home(home)
    lines = [line for each in segment_ids(known) for line in read(facts_path(known, each))]
    return [line.value() for line in lines if isinstance(line, Line) and line.kind == kind]


def collected(
    tmp_path: Path,
    action: Callable[[], Any],
    *,
    protocol: str = "http/protobuf",
    beta: bool = False,
) -> Collector:
    """Run an action with an exporting backend, and return its collector."""
    with Collector(protocol) as collector:
        make: Any = otlp.beta if beta else otlp.standard
        backend = make(collector.endpoint, protocol=protocol)
        with recording(tmp_path / "home", backend):
            action()
            assert agentobs.recording.session.flush()
            assert backend.flush(20)
        assert backend.failed == 0
        assert backend.statistics().dropped == {}
    return collector


def parents(collector: Collector) -> list[tuple[str, str]]:
    names = {span.span_id: span.name for span in collector.spans()}
    return [(span.name, names.get(span.parent, "")) for span in collector.spans()]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_are_nested_as_in_the_recording(tmp_path: Path, protocol: str) -> None:
    """An interaction is one trace with its requests, tools and their child spans, with the recorded IDs and times."""
    collector = collected(tmp_path, run_agent, protocol=protocol)
    found = parents(collector)
    assert sorted(found) == sorted(
        [
            ("agentobs.llm_request.attempt", "chat claude-test-1"),
            ("agentobs.llm_request.attempt", "chat claude-test-1"),
            ("agentobs.llm_request.retry_wait", "chat claude-test-1"),
            ("chat claude-test-1", "invoke_agent main"),
            ("agentobs.tool.execution", "execute_tool look"),
            ("execute_tool look", "invoke_agent main"),
            ("agentobs.tool.queued", "execute_tool write"),
            ("agentobs.tool.execution", "execute_tool write"),
            ("execute_tool write", "invoke_agent main"),
            ("chat claude-test-1", "invoke_agent main"),
            ("invoke_agent main", ""),
        ]
    )
    starts = {fact["span_id"]: fact for fact in facts(tmp_path / "home", "span_starts")}
    ends = {fact["span_id"]: fact for fact in facts(tmp_path / "home", "span_ends")}
    for span in collector.spans():
        if span.name == "agentobs.llm_request.attempt":
            continue  # its ID and times are those of the attempt
        start, end = starts[span.span_id], ends[span.span_id]
        assert (span.trace_id, span.start, span.end) == (
            start["trace_id"],
            start["started_ns"],
            end["ended_ns"],
        )


def test_a_model_call_has_its_usage_cost_and_times(tmp_path: Path) -> None:
    """Input includes cached tokens, tokens written to the cache have their old and new names, and cost and times are
    set.
    """
    usage = {
        "input_tokens": 10,
        "output_tokens": 50,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 6,
        "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 2},
        "output_tokens_details": {"thinking_tokens": 20},
    }
    answer = message(text("Done."), model=GOOD["model"], usage=usage)

    def once() -> None:
        async def main(provider: Provider) -> None:
            async with provider.client() as client:
                await play(client, **GOOD)

        with Provider([streamed(answer)]) as provider, agentobs.session("one"):
            asyncio.run(main(provider))

    collector = collected(tmp_path, once)
    span = collector.span("chat claude-sonnet-5")
    usage_attributes = {name: value for name, value in span.attributes.items() if "usage" in name}
    assert usage_attributes == {
        "gen_ai.usage.input_tokens": 19,
        "gen_ai.usage.output_tokens": 50,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.cache_write.input_tokens": 6,
        "gen_ai.usage.cache_creation.input_tokens": 6,
        "gen_ai.usage.reasoning.output_tokens": 20,
        "anthropic.usage.cache_creation.ephemeral_5m_input_tokens": 4,
        "anthropic.usage.cache_creation.ephemeral_1h_input_tokens": 2,
    }
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert span.attributes["gen_ai.provider.name"] == "anthropic"
    assert span.attributes["gen_ai.request.model"] == GOOD["model"]
    assert span.attributes["gen_ai.response.model"] == GOOD["model"]
    assert span.attributes["gen_ai.response.id"] == "msg_1"
    assert span.attributes["gen_ai.response.finish_reasons"] == ["end_turn"]
    assert span.attributes["gen_ai.request.stream"] is True
    assert 0 < span.attributes["gen_ai.response.time_to_first_chunk"] < 60
    # $2 and $10 per million tokens; cache reads cost a tenth of input, cache writes 1.25 or 2 times as much as input.
    assert span.attributes["agentobs.cost.usd"] == pytest.approx(
        (10 * 2 + 50 * 10 + 3 * 0.2 + 4 * 2.5 + 2 * 4) / 1e6
    )
    assert span.attributes["agentobs.cost.status"] == "exact"
    metric = collector.metrics()
    tokens = {
        values(p.attributes)["gen_ai.token.type"]: p.sum
        for p in metric["gen_ai.client.token.usage"].histogram.data_points
    }
    assert tokens == {"input": 19, "output": 50}
    [cost] = metric["agentobs.cost"].sum.data_points
    assert cost.as_double == pytest.approx(span.attributes["agentobs.cost.usd"])


@pytest.mark.slow
def test_metrics_have_the_conventions_units_and_buckets_and_no_ids(tmp_path: Path) -> None:
    """Durations are in seconds, with the recommended buckets; the attributes do not grow with the number of calls."""
    collector = collected(tmp_path, lambda: (run_agent(), run_delegation()))
    metric = collector.metrics()
    units = {name: each.unit for name, each in metric.items()}
    assert units == {
        "gen_ai.client.token.usage": "{token}",
        "gen_ai.client.operation.duration": "s",
        "gen_ai.client.operation.time_to_first_chunk": "s",
        "gen_ai.execute_tool.duration": "s",
        "gen_ai.invoke_agent.duration": "s",
    }
    [point] = metric["gen_ai.client.operation.duration"].histogram.data_points
    assert list(point.explicit_bounds)[:3] == [0.01, 0.02, 0.04]
    assert point.explicit_bounds[-1] == 81.92
    assert point.count == 5
    tokens = metric["gen_ai.client.token.usage"].histogram.data_points[0]
    assert list(tokens.explicit_bounds) == [4**power for power in range(14)]
    on_tokens = values(tokens.attributes)
    assert on_tokens["gen_ai.request.model"] == values(point.attributes)["gen_ai.request.model"]
    ids = {span.span_id for span in collector.spans()} | {s.trace_id for s in collector.spans()}
    sessions = {span.attributes["session.id"] for span in collector.spans()}
    written = str(list(metric.values()))
    assert not [each for each in ids | sessions if each in written]


def test_ids_come_first_and_content_last(tmp_path: Path) -> None:
    """In each span, IDs are the first attributes and content the last, so that a limit on attributes drops no IDs."""
    collector = collected(tmp_path, lambda: run_agent(content="export"))
    for span in collector.spans():
        names = [each.key for each in span.proto.attributes]
        assert names[:3] == ["gen_ai.conversation.id", "session.id", "agentobs.interaction.id"]
        endings = ("messages", "definitions", "arguments", "result")
        content = [name for name in names if name.endswith(endings)]
        content = [name for name in content if name.startswith("gen_ai")]
        assert names[len(names) - len(content) :] == content
    assert any(
        name.endswith("input.messages") for span in collector.spans() for name in span.attributes
    )


def test_sub_agents_are_nested_in_the_tool_call_that_started_them(tmp_path: Path) -> None:
    """The agent, its sub-agent and the calls of both are in one trace."""
    found = parents(collected(tmp_path, run_delegation))
    assert ("agentobs.subagent.spawn", "execute_tool agent") in found
    assert ("chat claude-test-1", "agentobs.subagent.spawn") in found
    assert ("execute_tool agent", "invoke_agent main") in found


@pytest.mark.slow
def test_only_the_beta_backend_exports_hooks(tmp_path: Path) -> None:
    """Only the beta backend exports hook spans and additional attributes; spans inside a hook are always exported."""
    standard = collected(tmp_path / "one", run_agent)
    beta = collected(tmp_path / "two", run_agent, beta=True)
    assert "agentobs.hook" not in {name for name, _ in parents(standard)}
    hooks = [parent for name, parent in parents(beta) if name == "agentobs.hook"]
    assert sorted(hooks) == ["execute_tool look", "execute_tool write"]
    assert "agentobs.chain_id" not in standard.span("execute_tool look").attributes
    [first, _] = [s for s in beta.spans() if s.name.startswith("chat")]
    assert first.attributes["agentobs.query_source"] == "main"
    assert first.attributes["agentobs.depth"] == 1


def test_children_of_a_hidden_span_move_to_its_parent() -> None:
    """Without hook spans, a span inside a hook becomes a child of the hook's parent, so every parent is exported."""
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint)
        emit_facts(
            backend,
            *opened("interaction", "1"),
            *opened("tool", "2", parent="1"),
            *opened("hook", "3", parent="2"),
            *opened("llm_request", "4", parent="3"),
            *(ended(each) for each in "4321"),
        )
        assert backend.close(20)
        by_id = {span.span_id: span for span in collector.spans()}
        assert by_id[span_id("4")].parent == span_id("2")
        assert span_id("3") not in by_id


def test_errors_are_named_by_their_class(tmp_path: Path) -> None:
    """A failed model call and a failed tool call have the status error and an `error.type`, but no error text."""

    def fails() -> None:
        from tests.agent.provider import error

        async def main(provider: Provider) -> None:
            async with provider.client() as client:
                await play(client, tools=(look,), max_retries=0)

        wrong = [
            calls(call("toolu_1", "look", nowhere="x")),
            error(400, "invalid_request_error", text="it is no good"),
        ]
        with Provider(wrong) as provider, agentobs.session("fails"):
            asyncio.run(main(provider))

    collector = collected(tmp_path, fails)
    by_status = {
        (s.name, s.attributes.get("error.type")) for s in collector.spans() if s.status == 2
    }
    assert by_status == {
        ("execute_tool look", "invalid"),
        ("chat claude-test-1", "invalid_request_error"),
        ("invoke_agent main", "BadRequestError"),
    }
    assert b"it is no good" not in collector.bytes


def test_a_client_without_spans_has_complete_traces(tmp_path: Path) -> None:
    """If an agent opens no spans itself, its interactions, calls and tools are exported."""

    def foreign() -> None:
        answers = (answered(called(1, "look", where="box")), answered(text_block("ok"), number=2))
        with ServedProvider(script(*answers), ServeOptions(match="order")) as provider:
            client = agentobs.record(Anthropic(api_key="made-up", base_url=provider.url))
            with agentobs.session("foreign"):
                ask: dict[str, Any] = {"model": "claude-sonnet-5", "max_tokens": 64, "tools": TOOLS}
                first: Any = {"role": "user", "content": "Hello"}
                with client.messages.stream(**ask, messages=[first]) as stream:
                    answer = stream.get_final_message()
                result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "nothing"}
                made: Any = {"role": "assistant", "content": answer.content}
                tool_result: Any = {"role": "user", "content": [result]}
                with client.messages.stream(**ask, messages=[first, made, tool_result]) as stream:
                    stream.until_done()

    collector = collected(tmp_path, foreign)
    assert sorted(parents(collector)) == [
        ("chat claude-sonnet-5", "invoke_agent"),
        ("chat claude-sonnet-5", "invoke_agent"),
        ("execute_tool look", "invoke_agent"),
        ("invoke_agent", ""),
    ]
    tool = collector.span("execute_tool look")
    assert tool.attributes["gen_ai.tool.call.id"] == "toolu_1"
    assert tool.attributes["agentobs.tool.source"] == "wire"
    chats = [span for span in collector.spans() if span.name.startswith("chat")]
    assert all(span.attributes["gen_ai.usage.output_tokens"] == 7 for span in chats)
    [root] = [span for span in collector.spans() if span.name == "invoke_agent"]
    assert len({span.trace_id for span in collector.spans()}) == 1
    assert root.start <= min(span.start for span in collector.spans())


def test_calls_with_the_same_id_have_separate_spans(tmp_path: Path) -> None:
    """If a server uses one ID for all calls, each call still has a separate span with its tool and result."""

    def foreign() -> None:
        def same(name: str) -> dict[str, Any]:
            return {**called(1, name, where="box"), "id": "toolu_1"}

        answers = (
            answered(same("look"), same("peek")),
            answered(same("write"), number=2),
            answered(text_block("ok"), number=3),
        )
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "nothing"}
        with ServedProvider(script(*answers), ServeOptions(match="order")) as provider:
            client = agentobs.record(Anthropic(api_key="made-up", base_url=provider.url))
            messages: list[Any] = [{"role": "user", "content": "Hello"}]
            with agentobs.session("foreign"):
                for results in (2, 1, 0):
                    with client.messages.stream(
                        model="claude-sonnet-5", max_tokens=64, messages=messages, tools=TOOLS
                    ) as stream:
                        answer = stream.get_final_message()
                    messages.append({"role": "assistant", "content": answer.content})
                    messages.append({"role": "user", "content": [result] * results})

    collector = collected(tmp_path, foreign)
    tools = [span for span in collector.spans() if span.name.startswith("execute_tool")]
    assert sorted(span.name for span in tools) == [
        "execute_tool look",
        "execute_tool peek",
        "execute_tool write",
    ]
    assert len({span.span_id for span in tools}) == 3


def test_a_profile_is_chosen_by_its_name() -> None:
    """Each profile can be chosen by name, in code and on the command line; an unknown name gives an error that lists
    them.
    """
    assert list(semconv.PROFILES) == list(PROFILES)
    with pytest.raises(UsageError, match="profile: unknown profile") as raised:
        otlp.standard(profile="genai-0.1")
    assert "genai-1.41" in str(raised.value.todo)
    backend = otlp.beta(profile="openinference")
    assert (str(backend.profile), repr(backend)) == (
        "openinference-beta",
        "Backend(openinference-beta)",
    )
    backend.close()


def test_events_are_log_records(tmp_path: Path) -> None:
    """Each event of the catalog is a log record in its trace, with its numbers; failures have the severity error."""
    collector = collected(tmp_path, run_agent)
    kinds = [name for name, _, _ in collector.logs()]
    assert kinds[:2] == ["agentobs.session", "agentobs.interaction"]
    assert kinds[-1] == "agentobs.session_end"
    assert {"agentobs.retry", "agentobs.permission", "agentobs.tool", "agentobs.hook"} <= set(kinds)
    [retry] = [attributes for name, attributes, _ in collector.logs() if name == "agentobs.retry"]
    assert retry["agentobs.label"] == "overloaded_error"
    assert retry["agentobs.attempt"] == 1
    [root] = [span for span in collector.spans() if span.name == "invoke_agent main"]
    attempts = [record for name, _, record in collector.logs() if name == "agentobs.attempt"]
    assert {record.trace_id.hex() for record in attempts} == {root.trace_id}
    assert [record.severity_text for record in attempts] == ["ERROR", "INFO", "INFO"]


def test_a_resumed_session_keeps_the_conversation_id() -> None:
    """`gen_ai.conversation.id` is the ID of the resumed session; the session's own ID is a separate attribute."""
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint)
        for name, earlier in (("a" * 32, None), ("b" * 32, "a" * 32), ("c" * 32, "b" * 32)):
            backend(WrittenFact(started(name, earlier), 1))
            emit_facts(
                backend,
                *opened("interaction", name[0], trace=name, session=name),
                ended(name[0], session=name),
            )
        assert backend.close(20)
        attributes_by_session = {
            s.attributes["session.id"]: s.attributes for s in collector.spans()
        }
        assert {each["gen_ai.conversation.id"] for each in attributes_by_session.values()} == {
            "a" * 32
        }
        assert set(attributes_by_session) == {"a" * 32, "b" * 32, "c" * 32}


def test_an_orphan_is_abandoned() -> None:
    """An orphaned span has the status error, the time of its last activity, and the attribute `abandoned`."""
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint)
        emit_facts(
            backend, *opened("tool", "1"), ended("1", status="orphaned", last_activity_ns=1_500)
        )
        assert backend.close(20)
        [span] = collector.spans()
        assert (span.status, span.attributes["abandoned"]) == (2, True)
        assert span.attributes["agentobs.last_activity_ns"] == 1_500
        assert span.attributes["error.type"] == "orphaned"


def test_a_late_end_is_counted() -> None:
    """An abandoned span is sent once; its late end is counted."""
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint)
        emit_facts(
            backend, *opened("tool", "1"), ended("1", status="orphaned", last_activity_ns=1_500)
        )
        emit_facts(backend, ended("1", at=9_000, late=True), ended("2"))
        assert backend.close(20)
        assert [span.end for span in collector.spans()] == [2_000]
        assert (backend.late_ends, backend.failed) == (1, 0)


def test_a_call_is_linked_to_the_programs_own_span(tmp_path: Path) -> None:
    """If a call was made in an OpenTelemetry span of the program, the exported span has a link to it, and no parent."""
    context = trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
    around = trace.set_span_in_context(trace.NonRecordingSpan(context))

    def run_in_span() -> None:
        token = attach(around)
        try:
            run_agent()
        finally:
            detach(token)

    collector = collected(tmp_path, run_in_span)
    links = {span.name: span.links for span in collector.spans() if span.links}
    assert links == {"chat claude-test-1": [(f"{0xABC:032x}", f"{0xDEF:016x}")]}


def test_a_number_of_any_size_is_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers that do not fit into 64 bits are sent as floats in spans and events, and nothing is logged."""

    def count() -> None:
        with agentobs.session("numbers"), agentobs.span("big", n=2**70):
            agentobs.event("my.big", n=2**70, m=2**53)

    collector = collected(tmp_path, count)
    [span] = [each for each in collector.spans() if each.name == "big"]
    assert span.attributes["agentobs.metadata.n"] == 2.0**70
    [noted] = [attributes for name, attributes, _ in collector.logs() if name == "agentobs.my.big"]
    assert (noted["agentobs.n"], noted["agentobs.m"]) == (2.0**70, 2**53)
    assert caplog.records == []


@pytest.mark.slow
def test_open_spans_are_limited_and_sent_as_abandoned() -> None:
    """The number of open spans is limited: the oldest are sent as abandoned.

    The others are sent when the backend is closed.
    """
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint, limits=Limits(queue_bytes=64 * 1024 * 1024))
        for number in range(REMEMBERED_MAX + 5):
            emit_facts(backend, *opened("tool", f"{number:x}"))
        assert backend.open_spans == REMEMBERED_MAX
        assert backend.statistics().handed == 5
        assert backend.close(30)
        assert backend.open_spans == 0
        assert backend.statistics().delivered == REMEMBERED_MAX + 5
        assert all(span.attributes["abandoned"] for span in collector.spans())


def test_work_that_outlives_its_interaction_is_linked() -> None:
    """A background agent is a separate trace with a link to the span that started it."""
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint)
        emit_facts(
            backend,
            *opened("interaction", "1", trace="aa" * 16),
            *opened("interaction", "2", trace="bb" * 16, linked="1"),
            ended("1"),
            ended("2"),
        )
        assert backend.close(20)
        by_id = {span.span_id: span for span in collector.spans()}
        assert by_id[span_id("2")].links == [("aa" * 16, span_id("1"))]
        assert by_id[span_id("2")].parent == ""


@pytest.mark.slow
def test_no_global_provider_is_set_or_used(tmp_path: Path) -> None:
    """The export changes no global provider of OpenTelemetry, and uses none."""
    before = trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider()
    collected(tmp_path, run_agent)
    after = trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider()
    assert before == after


@pytest.mark.slow
def test_environment_variables_do_not_affect_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environment variables of OpenTelemetry and of other products do not affect the export."""
    plain = collected(tmp_path / "one", run_agent)
    elsewhere = "http://127.0.0.1:9"
    for name, value in {
        "OTEL_EXPORTER_OTLP_ENDPOINT": elsewhere,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": elsewhere,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-leak=1",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "0",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
        "OTEL_RESOURCE_ATTRIBUTES": "leak=1,service.name=leak",
        "OTEL_SERVICE_NAME": "leak",
        "OTEL_TRACES_SAMPLER": "always_off",
        "OTEL_ATTRIBUTE_COUNT_LIMIT": "1",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "1",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "1",
        "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT": "1",
        "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT": "1",
        "OTEL_METRICS_EXEMPLAR_FILTER": "always_on",
        "OTEL_BSP_MAX_QUEUE_SIZE": "1",
        "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true",
        "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_AND_EVENT",
        "TRACELOOP_TRACE_CONTENT": "true",
        "OPENINFERENCE_HIDE_INPUTS": "false",
        "ANTHROPIC_OPEN_TELEMETRY": "true",
    }.items():
        monkeypatch.setenv(name, value)
    loud = collected(tmp_path / "two", lambda: run_agent())
    assert sorted(map(span_shape, loud.spans())) == sorted(map(span_shape, plain.spans()))
    assert b"leak" not in loud.bytes
    assert loud.metrics().keys() == plain.metrics().keys()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_proxy_is_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, protocol: Any
) -> None:
    """Proxies in the environment are ignored, and telemetry is sent directly to the endpoint."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "nowhere")
    with Collector(protocol) as collector:
        backend = otlp.standard(collector.endpoint, protocol=protocol)
        emit_facts(backend, *opened("tool", "1"), ended("1"))
        assert backend.close(20)
        assert [span.name for span in collector.spans()] == ["execute_tool x"]


def test_otel_sdk_disabled_prevents_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `OTEL_SDK_DISABLED`, nothing is sent and a warning is printed."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setattr("agentobs.errors._reported", set())
    with pytest.warns(RuntimeWarning, match="OTEL_SDK_DISABLED is set"):
        collector = collected(tmp_path, run_agent)
    assert collector.received == []


@pytest.mark.parametrize(
    ("arguments", "error_text"),
    [
        ({"endpoint": "localhost:4318"}, "endpoint: the address of the collector is not valid"),
        ({"endpoint": "ftp://localhost"}, "endpoint: the address of the collector is not valid"),
        (
            {"endpoint": "http://user:hush@host"},
            "endpoint: the address of the collector is not valid",
        ),
        ({"endpoint": "http://host:99999"}, "endpoint: the address of the collector is not valid"),
        (
            {"endpoint": "http://h:1/v1/traces"},
            "endpoint: the endpoint ends in /v1/traces, but agentobs appends",
        ),
        (
            {"endpoint": "http://h:1/x/v1/logs/"},
            "endpoint: the endpoint ends in /v1/logs, but agentobs appends",
        ),
        (
            {"endpoint": "http://h/v1/metrics"},
            "endpoint: the endpoint ends in /v1/metrics, but agentobs appends",
        ),
        ({"headers": {"authorization": "hush\r\nx: y"}}, "headers: the header 'authorization'"),
        ({"headers": {"a b": "hush"}}, "headers: the header 'a b' is invalid: expected a token"),
        ({"protocol": "smoke"}, "protocol: unknown protocol: 'smoke'"),
        ({"endpoint": "https://h", "certificate": "/not/there"}, "/not/there: the certificates"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, Any], error_text: str) -> None:
    """Invalid arguments give a specific error that contains no secret."""
    with pytest.raises(UsageError) as raised:
        otlp.standard(**arguments)
    assert str(raised.value).startswith(error_text)
    assert raised.value.todo
    assert "hush" not in str(raised.value)


def test_a_secret_header_is_never_shown(tmp_path: Path) -> None:
    """A secret in a header is sent to the collector, and is not part of any repr."""
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint, headers={"Authorization": "Bearer hush"})
        with recording(tmp_path / "home", backend):
            run_agent()
            assert backend.flush(20)
        assert {received.headers["authorization"] for received in collector.received} == {
            "Bearer hush"
        }
        shown = repr(backend) + repr(backend._sender) + repr(backend._sender._collector)
        assert "hush" not in shown


def test_an_invalid_id_is_replaced_by_its_digest() -> None:
    """An ID that is not in hex digits, or has only zeros, is always replaced by the same digest of it."""
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint)
        emit_facts(
            backend,
            *opened("interaction", "strange", trace="my-trace", raw=True),
            *opened("tool", "0" * 16, trace="my-trace", parent="strange", raw=True),
            ended("0" * 16, raw=True),
            ended("strange", raw=True),
        )
        assert backend.close(20)
        tool, root = collector.spans()
        assert tool.parent == root.span_id
        assert tool.trace_id == root.trace_id
        assert int(tool.span_id, 16) > 0


def test_the_example_in_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first example in docs/exporting.md works unchanged."""
    document = (Path(__file__).parent.parent.parent / "docs" / "exporting.md").read_text()
    first = re.findall(r"```python\n(.*?)```", document, flags=re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    exec(compile(first, "docs/exporting.md", "exec"), {})
    with agentobs.session("documented"):
        pass
    assert agentobs.stop_recorder()
    assert len(list((tmp_path / "traces").iterdir())) == 1
    measures = [each for each in vars(semconv).values() if isinstance(each, semconv.Measure)]
    assert [each.name for each in measures if f"`{each.name}`" not in document] == []


def test_convention_names_are_in_one_module() -> None:
    """Only `exporters/conventions/semconv.py`, and the collector that reads them, contain `gen_ai.*` names."""
    root = Path(__file__).parent.parent.parent
    holding = [
        path.relative_to(root).as_posix()
        for package in ("agentobs", "replay", "exporters", "dashboards")
        for path in (root / package).rglob("*.py")
        if re.search(r"[\"']gen_ai\.", path.read_text())
    ]
    assert sorted(holding) == [
        "agentobs/collector/telemetry_events.py",
        "exporters/conventions/semconv.py",
    ]


@pytest.mark.slow
def test_a_missing_extra_is_reported() -> None:
    """Without the extra, the import raises an error that names the package to install."""
    hide = "import sys; sys.modules[{hidden!r}] = None; import {module}"
    for hidden, module, extra in (
        ("opentelemetry.sdk.trace", "exporters.otlp", "[otlp]'"),
        ("grpc", "exporters.otlp", "[otlp]'"),
        ("perfetto.protos", "exporters.perfetto", "[perfetto]'"),
    ):
        code = hide.format(hidden=hidden, module=module)
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ran.returncode == 1
        last = ran.stderr.strip().splitlines()[-1]
        assert last.startswith("agentobs.errors.UsageError: ")
        assert extra in last


def emit_facts(backend: Backend, *facts: Fact) -> None:
    for fact in facts:
        backend(WrittenFact(fact, 1))


def span_shape(span: Span) -> tuple[str, list[str]]:
    return span.name, sorted(span.attributes)


def span_id(name: str) -> str:
    return f"{int(name, 16) + 1:016x}"


def opened(
    name: str,
    own: str,
    *,
    parent: str | None = None,
    trace: str = "aa" * 16,
    session: str = "a" * 32,
    linked: str | None = None,
    raw: bool = False,
    at: int = 1_000,
) -> tuple[SpanStart, ...]:
    made = (lambda each: each) if raw else span_id
    return (
        SpanStart(
            session_id=session,
            trace_id=trace,
            span_id=made(own),
            parent_span_id=made(parent) if parent else None,
            lane=Label("main"),
            name=Label(name),
            label=Label("x"),
            started_ns=at,
            linked_span_id=made(linked) if linked else None,
        ),
    )


def ended(
    own: str, *, session: str = "a" * 32, raw: bool = False, at: int = 2_000, **more: Any
) -> SpanEnd:
    usual: dict[str, Any] = {"status": "ok", "error_type": None, **more}
    return SpanEnd(session, own if raw else span_id(own), at, **usual)


def started(session_id: str, earlier: str | None) -> SessionStart:
    word = Label("x")
    return SessionStart(
        session_id, word, 1_000, None, word, None, word, word, {}, None,
        Label(earlier) if earlier else None, "resume" if earlier else None,
    )  # fmt: skip
