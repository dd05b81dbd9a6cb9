"""The receivers: exporters of OpenTelemetry, both encodings, hostile requests, and records that are sent again."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import agentobs
from agentobs.collector import http_receiver, otlp_requests
from agentobs.collector.http_receiver import BODY_BYTES_MAX
from agentobs.collector.otlp_requests import parse_request, records_in
from agentobs.collector.telemetry_collector import Collector
from agentobs.errors import UsageError
from agentobs.recording.session import current_recorder
from tests.collector.telemetry import (
    CLIENT_SESSION,
    JSON,
    api_request,
    collecting,
    counter,
    log,
    logs,
    send,
    span,
    spans,
)
from tests.marks import mark_all_but_first


def rows(home: Path, query: str) -> list[Any]:
    with agentobs.connect(str(home)) as store:
        return store.sql(query).fetchall()


@pytest.mark.slow
@pytest.mark.parametrize("is_grpc", [False, True])
def test_spans_of_an_opentelemetry_exporter(tmp_path: Path, is_grpc: bool) -> None:
    """The exporters of OpenTelemetry's SDK send over HTTP and gRPC, with the conventions for generative AI."""
    with collecting(tmp_path, grpc=is_grpc) as collector:
        exporter = (
            GrpcExporter(endpoint=collector.grpc_url, insecure=True)
            if is_grpc
            else HttpExporter(endpoint=f"{collector.url}/v1/traces")
        )
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("test")
        with tracer.start_as_current_span("outer"), tracer.start_as_current_span("chat") as inner:
            inner.set_attributes(
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": "claude-sonnet-5",
                    "gen_ai.usage.input_tokens": 12,
                }
            )
        trace_id = f"{inner.get_span_context().trace_id:032x}"
        provider.shutdown()
    found = rows(
        tmp_path,
        "SELECT signal, name, trace_id, labels['operation'], labels['requested_model'], "
        "numbers['gen_ai.usage.input_tokens'], parent_span_id IS NULL, duration_ns > 0 "
        "FROM telemetry ORDER BY numbers['gen_ai.usage.input_tokens'] NULLS LAST",
    )
    assert found == [
        ("span", None, trace_id, "chat", "claude-sonnet-5", 12.0, False, True),
        ("span", None, trace_id, None, None, None, True, True),
    ]


def test_both_encodings_contain_the_same_records() -> None:
    """IDs are hexadecimal in JSON and bytes in the binary encoding, so that a record is the same in both."""
    for signal, request in (
        ("log", logs(api_request("req_1"))),
        ("span", spans(span("llm_request", input_tokens=3))),
        ("metric", counter("claude_code.cost.usage", 0.25)),
    ):
        parsed = parse_request(signal, json.dumps(request).encode(), is_json=True)  # type: ignore[arg-type]
        binary = parse_request(signal, parsed.SerializeToString(), is_json=False)  # type: ignore[arg-type]
        [first], [second] = records_in(signal, parsed), records_in(signal, binary)  # type: ignore[arg-type]
        assert first == second
        if signal != "metric":
            assert first.trace_id == "56a04b1e3b507a3855d356243069d7da"
    assert first.numbers == {"value": 0.25, "is_cumulative": 0.0}


@pytest.mark.slow
def test_records_that_are_sent_again_count_once(tmp_path: Path) -> None:
    """This holds even if the collector was restarted in between."""
    for _ in range(2):
        with collecting(tmp_path) as collector:
            for is_compressed in (False, True):
                request = logs(api_request("req_1"), api_request("req_2"))
                response = send(collector.url, "/v1/logs", request, is_compressed=is_compressed)
                assert (response.status_code, response.json()) == (200, {})
    assert rows(tmp_path, "SELECT request_id FROM telemetry ORDER BY ALL") == [
        ("req_1",),
        ("req_2",),
    ]
    assert rows(tmp_path, "SELECT count(*) FROM events WHERE kind = 'telemetry'") == [(8,)]
    tags = "SELECT DISTINCT name, tags['telemetry_session'] FROM session_starts"
    assert rows(tmp_path, tags) == [("telemetry", CLIENT_SESSION)]


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    mark_all_but_first(
        [
            (b"{", JSON, (400, 3, "the body is not an OTLP request for logs")),
            (b"[" * 100_000, JSON, (400, 3, "the body is not an OTLP request for logs")),
            (b'{"resourceLogs": 5}', JSON, (400, 3, "the body is not an OTLP request for logs")),
            (b"", {"content-type": "text/plain"}, (415, 3, "send application/x-protobuf or")),
            (
                b"no gzip",
                {**JSON, "content-encoding": "gzip"},
                (400, 3, "the body is not valid gzip"),
            ),
            (
                gzip.compress(b"{}", mtime=0)[:-2],
                {**JSON, "content-encoding": "gzip"},
                (400, 3, "the compressed body is cut off"),
            ),
            (
                gzip.compress(b"{}", mtime=0) * 2,
                {**JSON, "content-encoding": "gzip"},
                (400, 3, "the compressed body has more than one part"),
            ),
            (b"x", {**JSON, "content-encoding": "br"}, (415, 3, "only be compressed with gzip")),
            (
                gzip.compress(b" " * (BODY_BYTES_MAX + 1), mtime=0),
                {**JSON, "content-encoding": "gzip"},
                (413, 8, "the decompressed body is longer than 67,108,864 bytes"),
            ),
        ],
        pytest.mark.slow,
    ),
    ids=["json", "nested", "shape", "type", "no_gzip", "cut_off", "two_parts", "brotli", "bomb"],
)
def test_a_request_that_is_refused(
    tmp_path: Path, body: bytes, headers: dict[str, str], expected: tuple[int, int, str]
) -> None:
    """The response has the status and the `google.rpc.Status` of the specification, and nothing is recorded."""
    with collecting(tmp_path) as collector:
        response = httpx2.post(f"{collector.url}/v1/logs", content=body, headers=headers)
        assert send(collector.url, "/v1/logs", logs(log("user_prompt"))).status_code == 200
    status, code, message = expected
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert message in response.json()["message"]
    assert rows(tmp_path, "SELECT name FROM telemetry") == [("claude_code.user_prompt",)]


def test_a_body_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused while it is received."""
    monkeypatch.setattr(http_receiver, "BODY_BYTES_MAX", 1000)
    with collecting(tmp_path) as collector:
        response = send(collector.url, "/v1/logs", logs(log("user_prompt", prompt="x" * 1000)))
    assert (response.status_code, response.json()["code"]) == (413, 8)


def test_other_paths_methods_and_hosts(tmp_path: Path) -> None:
    """A page that resolves its own name to this machine cannot add records."""
    with collecting(tmp_path) as collector:
        assert send(collector.url, "/v1/other", {}).status_code == 404
        assert httpx2.get(f"{collector.url}/v1/logs").status_code == 405
        assert httpx2.options(f"{collector.url}/v1/logs").status_code == 405
        headers = {**JSON, "host": "attacker.example"}
        response = httpx2.post(f"{collector.url}/v1/logs", content=b"{}", headers=headers)
        assert response.status_code == 400
        assert not collector.sessions.records


def test_records_that_are_not_written_are_requested_again(tmp_path: Path) -> None:
    """If the journal cannot be written, the response asks for the records again."""
    with collecting(tmp_path) as collector:
        collector.sessions.write = lambda seconds: False
        response = send(collector.url, "/v1/logs", logs(log("user_prompt")))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


def test_a_port_in_use() -> None:
    """Both receivers refuse it with one error, and the other port is free again."""
    with Collector() as first:
        with pytest.raises(UsageError, match="cannot listen on this address"):
            Collector(first.http_port)
        with pytest.raises(UsageError, match="--grpc-port"):
            Collector(0, first.grpc_port)


def test_cumulative_metrics_keep_the_last_point(tmp_path: Path) -> None:
    """Points of a cumulative counter replace each other; points of a delta counter add up."""
    with collecting(tmp_path) as collector:
        for temporality, name in ((1, "claude_code.cost.usage"), (2, "claude_code.token.usage")):
            labels = {"type": "input", "model": "claude-sonnet-5"}
            request = counter(name, 1, 3, 4, temporality=temporality, **labels)
            assert send(collector.url, "/v1/metrics", request).status_code == 200
    assert rows(
        tmp_path, "SELECT name, type, model, total FROM telemetry_metrics ORDER BY ALL"
    ) == [
        ("claude_code.cost.usage", "input", "claude-sonnet-5", 8.0),
        ("claude_code.token.usage", "input", "claude-sonnet-5", 4.0),
    ]


def test_gauges_keep_the_last_point_and_resets_add_up(tmp_path: Path) -> None:
    """Points of a gauge replace each other; a counter that starts again is another series, in whatever order."""
    gauge = counter("gen_ai.server.request.duration", 5, 2)
    [metric] = gauge["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    metric["gauge"] = {"dataPoints": metric.pop("sum")["dataPoints"]}
    later = counter("claude_code.token.usage", 1, 7, temporality=2)
    for point in later["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["sum"]["dataPoints"]:
        for name in ("startTimeUnixNano", "timeUnixNano"):
            point[name] = str(int(point[name]) + 10**9)
    earlier = counter("claude_code.token.usage", 3, 4, temporality=2)
    with collecting(tmp_path) as collector:
        for request in (gauge, later, earlier):
            assert send(collector.url, "/v1/metrics", request).status_code == 200
    assert rows(tmp_path, "SELECT name, total FROM telemetry_metrics ORDER BY ALL") == [
        ("claude_code.token.usage", 11.0),
        ("gen_ai.server.request.duration", 2.0),
    ]


def test_a_write_that_fails(tmp_path: Path) -> None:
    """If the disk refuses a write, the records are requested again, and a later request is recorded."""
    with collecting(tmp_path) as collector:
        assert send(collector.url, "/v1/logs", logs(log("user_prompt"))).status_code == 200
        recorder = current_recorder()
        assert recorder is not None
        [session] = collector.sessions.sessions
        recorder._stop_session(session.session_id)
        response = send(collector.url, "/v1/logs", logs(api_request("req_1")))
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert send(collector.url, "/v1/logs", logs(api_request("req_1"))).status_code == 200
    assert rows(tmp_path, "SELECT request_id FROM telemetry ORDER BY ALL") == [("req_1",), (None,)]
    assert rows(tmp_path, "SELECT count(*) FROM session_starts") == [(2,)]


def test_a_malformed_grpc_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The status is that of the specification, and no traceback is printed."""
    with collecting(tmp_path, grpc=True) as collector:
        with grpc.insecure_channel(f"127.0.0.1:{collector.grpc_port}") as channel:
            method = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
            export = channel.unary_unary(method)
            with pytest.raises(grpc.RpcError) as refused:
                export(b"\xff\xff")
            status = refused.value.code()
            assert status is grpc.StatusCode.INVALID_ARGUMENT
            assert export(b"") == b""
    assert caplog.records == []


def test_too_many_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small compressed body can have millions of empty records; nothing of it is recorded."""
    monkeypatch.setattr(otlp_requests, "RECORDS_MAX", 3)
    with collecting(tmp_path) as collector:
        response = send(collector.url, "/v1/logs", logs(*[log("user_prompt")] * 4))
        assert (response.status_code, response.json()["code"]) == (413, 8)
        request = counter("claude_code.cost.usage", 1, 2, 3, 4)
        assert send(collector.url, "/v1/metrics", request).status_code == 413
        request = spans(*[span("tool")] * 4)
        assert send(collector.url, "/v1/traces", request).status_code == 413
        assert send(collector.url, "/v1/logs", logs(*[log("user_prompt")] * 3)).status_code == 200
    assert rows(tmp_path, "SELECT signal FROM telemetry") == [("log",)]


@pytest.mark.slow
def test_long_bodies_of_many_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long bodies are received one after another, next to short ones; all are recorded."""
    monkeypatch.setattr(http_receiver, "SMALL_BYTES", 100)
    requests = [logs(api_request(f"req_{number}", prompt="x" * 300_000)) for number in range(8)]
    with collecting(tmp_path) as collector, ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda each: send(collector.url, "/v1/logs", each), requests))
    assert [each.status_code for each in answers] == [200] * 8
    assert rows(tmp_path, "SELECT count(*) FROM telemetry_requests") == [(8,)]
