"""A collector for tests, which receives messages over HTTP or gRPC, keeps all bytes, and parses them strictly."""

from __future__ import annotations

import base64
import gzip
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.loopback import LoopbackServer

REQUESTS: dict[str, Any] = {
    "traces": ExportTraceServiceRequest,
    "logs": ExportLogsServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}
RESPONSES: dict[str, Any] = {
    "traces": ExportTraceServiceResponse,
    "logs": ExportLogsServiceResponse,
    "metrics": ExportMetricsServiceResponse,
}
SERVICES = {
    "opentelemetry.proto.collector.trace.v1.TraceService": "traces",
    "opentelemetry.proto.collector.logs.v1.LogsService": "logs",
    "opentelemetry.proto.collector.metrics.v1.MetricsService": "metrics",
}


@dataclass(frozen=True)
class Response:
    """The response to one message."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None
    """An event to wait for before the response is sent."""


@dataclass(frozen=True)
class ReceivedMessage:
    """One received message."""

    signal: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> Any:
        """The parsed message; a name that OTLP does not define is an error."""
        kind, body = REQUESTS[self.signal], self.body
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.headers.get("content-type", "").startswith("application/json"):
            return Parse(json.dumps(_with_base64_ids(json.loads(body))), kind())
        return kind.FromString(body)


class Collector:
    """Receives messages while its context is open.

    `respond` returns the response to the n-th message of a signal.
    """

    def __init__(
        self,
        protocol: str = "http/protobuf",
        respond: Callable[[str, int], Response | None] | None = None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self.received: list[ReceivedMessage] = []
        self._respond, self._counts = (
            respond or (lambda signal, number: None),
            dict.fromkeys(REQUESTS, 0),
        )
        self._lock = threading.Lock()
        self.protocol = protocol
        if protocol == "grpc":
            self._grpc = grpc.server(ThreadPoolExecutor(4))
            self._grpc.add_generic_rpc_handlers((_Raw(self),))
            port = self._grpc_port(tls)
        else:
            self._http = LoopbackServer(_handler(self))
            port = self._http.server_port
            if tls is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*tls)
                self._http.socket = context.wrap_socket(
                    self._http.socket, server_side=True, do_handshake_on_connect=False
                )
        self.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{port}"

    def _grpc_port(self, tls: tuple[Path, Path] | None) -> int:
        if tls is None:
            return int(self._grpc.add_insecure_port("127.0.0.1:0"))
        certificate, key = (each.read_bytes() for each in tls)
        shown = grpc.ssl_server_credentials([(key, certificate)])
        return int(self._grpc.add_secure_port("127.0.0.1:0", shown))

    def __enter__(self) -> Collector:
        if self.protocol == "grpc":
            self._grpc.start()
        else:
            self._http.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.protocol == "grpc":
            self._grpc.stop(0)
        else:
            self._http.stop()

    def receive(self, signal: str, headers: dict[str, str], body: bytes) -> Response:
        with self._lock:
            self._counts[signal] += 1
            answer = self._respond(signal, self._counts[signal]) or Response()
            self.received.append(ReceivedMessage(signal, headers, body))
        if answer.hold is not None:
            answer.hold.wait(30)
        return answer

    @property
    def bytes(self) -> bytes:
        """All received bytes, including headers."""
        return b"\n".join(json.dumps(each.headers).encode() + each.body for each in self.received)

    def spans(self) -> list[Span]:
        """All spans in the order in which they arrived."""
        return [Span(each, resource) for resource, each in self._each("traces", "spans")]

    def span(self, name: str) -> Span:
        """The only span with this name."""
        [found] = [each for each in self.spans() if each.name == name]
        return found

    def logs(self) -> list[tuple[str, dict[str, Any], Any]]:
        """(event name, attributes, record) of all log records."""
        return [
            (each.event_name, values(each.attributes), each)
            for _, each in self._each("logs", "log_records")
        ]

    def metrics(self) -> dict[str, Any]:
        """The last received version of each metric, by name."""
        return {each.name: each for _, each in self._each("metrics", "metrics")}

    def _each(self, signal: str, inner: str) -> Iterator[tuple[dict[str, Any], Any]]:
        for received in list(self.received):
            if received.signal != signal:
                continue
            message = received.message
            for outer in getattr(message, message.DESCRIPTOR.fields[0].name):
                for scope in getattr(outer, f"scope_{'logs' if signal == 'logs' else inner}"):
                    for each in getattr(scope, inner):
                        yield values(outer.resource.attributes), each


class Span:
    """A span with attributes as a dict and IDs as hex digits."""

    def __init__(self, proto: Any, resource: dict[str, Any]) -> None:
        self.proto, self.resource = proto, resource
        self.name: str = proto.name
        self.trace_id, self.span_id = proto.trace_id.hex(), proto.span_id.hex()
        self.parent = proto.parent_span_id.hex()
        self.start, self.end = proto.start_time_unix_nano, proto.end_time_unix_nano
        self.attributes = values(proto.attributes)
        self.status: int = proto.status.code
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in proto.links]


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = collector.receive(self.path.rpartition("/")[2], headers, body)
            self.send_response(answer.status)
            kind = self.headers["content-type"]
            for name, value in {"content-type": kind, **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def do_GET(self) -> None:
            collector.receive("traces", {"followed": "a redirect"}, self.path.encode())
            self.send_error(404)

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler


class _Raw(grpc.GenericRpcHandler):
    """Receives each call as raw bytes."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def service(self, details: Any) -> Any:
        service, _, method = details.method.strip("/").partition("/")
        assert (service in SERVICES, method) == (True, "Export")
        signal = SERVICES[service]
        headers = {each.key: str(each.value) for each in details.invocation_metadata}

        def export(body: bytes, context: Any) -> bytes:
            answer = self._collector.receive(signal, headers, body)
            if answer.status != 200:
                context.set_trailing_metadata(
                    tuple(
                        (k, v.encode("latin-1") if k.endswith("-bin") else v)
                        for k, v in answer.headers.items()
                    )
                )
                context.abort(CODES[answer.status], "no")
            return answer.body

        return grpc.unary_unary_rpc_method_handler(export)


CODES = {
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    401: grpc.StatusCode.UNAUTHENTICATED,
}


def _with_base64_ids(value: Any) -> Any:
    """Return OTLP JSON with IDs in base64, as protobuf's JSON parser expects; OTLP uses hex digits."""
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(inner)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else _with_base64_ids(inner)
            for key, inner in value.items()
        }
    return [_with_base64_ids(each) for each in value] if isinstance(value, list) else value
