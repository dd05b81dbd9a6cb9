"""Senders: one OTLP message to one collector, over HTTP or gRPC, with a timeout.

OpenTelemetry's own exporters follow redirects, take addresses and keys from the environment, read responses of any
length, and do not report rejected items. So only its encoders are used, and sending is implemented here. Neither sent
data nor headers are ever printed: not in a warning, an error or a repr.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from agentobs import world
from agentobs.errors import UsageError
from agentobs.records.labels import Label, is_label
from exporters.conventions.intervals import digest_of
from exporters.otlp.outbox import Sent, Signal

ANSWER_BYTES = 64 * 1024
"""How much of a response is read. Source: the project's list of attacks, 62."""

RETRYABLE = frozenset({429, 502, 503, 504})
"""https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes"""
_RETRYABLE_CODES = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
"""https://opentelemetry.io/docs/specs/otlp/#failures; RESOURCE_EXHAUSTED only with a delay."""

_RESPONSES: Mapping[Signal, type[Message]] = {
    "traces": ExportTraceServiceResponse,
    "logs": ExportLogsServiceResponse,
    "metrics": ExportMetricsServiceResponse,
}
_STUBS: Mapping[Signal, Any] = {
    "traces": TraceServiceStub,
    "logs": LogsServiceStub,
    "metrics": MetricsServiceStub,
}
_REJECTED: Mapping[Signal, tuple[str, str]] = {
    "traces": ("rejected_spans", "rejectedSpans"),
    "logs": ("rejected_log_records", "rejectedLogRecords"),
    "metrics": ("rejected_data_points", "rejectedDataPoints"),
}
_IDS = frozenset({"traceId", "spanId", "parentSpanId"})


@dataclass(frozen=True, slots=True)
class Collector:
    """The destination of telemetry, and its credentials."""

    url: SplitResult = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    timeout_seconds: float
    certificate: str | None = None
    """A file of trusted certificates; default the system's."""

    @property
    def to(self) -> str:
        """Host and port for messages: no user, no path."""
        host = str(self.url.hostname)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def destination(self) -> Label:
        """The same as a label, which sessions record; a path, which may contain a key, is digested."""
        path = self.url.path.strip("/")
        place = f"{self.url.hostname}:{self.port}" + (f"/{digest_of(path, 8)}" if path else "")
        return Label(place) if is_label(place) else Label(digest_of(place, 16))

    @property
    def port(self) -> int:
        """The port, given or the scheme's."""
        return self.url.port or (443 if self.url.scheme == "https" else 80)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The trusted certificates, if the scheme is https."""
        if self.url.scheme != "https":
            return None
        return ssl.create_default_context(cafile=self.certificate)


def collector(
    endpoint: str, headers: Mapping[str, str], timeout_seconds: float, certificate: str | None
) -> Collector:
    """Return the destination.

    Raises:
        UsageError: the endpoint is not the address of a server, or a header is invalid; its value is not printed.
    """
    try:
        url = urlsplit(endpoint)
        known = url.scheme in ("http", "https") and url.hostname and (url.port or True)
    except ValueError:
        known = False
    if not known or url.query or url.fragment or url.username or url.password:
        raise UsageError(
            "the address of the collector is not valid",
            where="endpoint",
            todo="Say http://host:port or https://host:port, and pass credentials as headers",
        )
    before, _, signal = url.path.rstrip("/").rpartition("/v1/")
    if signal in _RESPONSES:
        raise UsageError(
            f"the address is that of {signal} only: it ends in /v1/{signal}, which is added to it for each signal",
            where="endpoint",
            todo=f"Leave that part out: {url.scheme}://{url.netloc}{before}",
        )
    for name, value in headers.items():
        if not _is_token(name) or not value.isascii() or not value.isprintable():
            raise UsageError(
                f"the header {name[:40]!r} cannot be sent: names are words, values plain printable text",
                where="headers",
                todo="Check for a line break or a space that was copied with it",
            )
    return Collector(url, {k.lower(): v for k, v in headers.items()}, timeout_seconds, certificate)


class HttpSender:
    """Sends over HTTP, as protobuf or as JSON, on a persistent connection."""

    def __init__(self, to: Collector, *, is_json: bool) -> None:
        """Send to a collector; nothing is opened before the first message."""
        self._to, self._is_json = to, is_json
        self._tls = to.tls
        self._connection: http.client.HTTPConnection | None = None

    def forked(self) -> None:
        """In a child process, leave the parent's connection alone."""
        self._connection = None

    def close(self) -> None:
        """Close the connection; the next message opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __call__(self, signal: Signal, message: Message) -> Sent:
        """Send one message; never raises."""
        body = as_json(message) if self._is_json else message.SerializeToString()
        is_kept = self._connection is not None
        try:
            return self._post(signal, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not is_kept or isinstance(error, TimeoutError):
                return Sent("later", why=_why(error))
        # A persistent connection may have been closed by the server meanwhile.
        try:
            return self._post(signal, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Sent("later", why=_why(error))

    def _post(self, signal: Signal, body: bytes) -> Sent:
        until_ns = world.monotonic() + int(self._to.timeout_seconds * 1e9)
        connection = self._connected(until_ns)
        kind = "application/json" if self._is_json else "application/x-protobuf"
        path = f"{self._to.url.path.rstrip('/')}/v1/{signal}"
        headers = {"user-agent": "agentobs", **self._to.headers, "content-type": kind}
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        try:
            said = answer.read(ANSWER_BYTES)
        except (OSError, http.client.HTTPException):
            # The rest of the response cannot be read; whether the message was accepted is known.
            said = b""
        if answer.will_close or not answer.isclosed():
            self.close()
        return self._judged(signal, answer, said)

    def _connected(self, until_ns: int) -> http.client.HTTPConnection:
        """Return a connection with one deadline for all its waits."""
        connection = self._connection
        if connection is None:
            host, port = str(self._to.url.hostname), self._to.port
            connection = http.client.HTTPConnection(host, port)
            raw = socket.create_connection((host, port), timeout=_left(until_ns))
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                raw = self._tls.wrap_socket(raw, server_hostname=host)
            connection.sock = cast(socket.socket, _Timed(raw))
            self._connection = connection
        timed: Any = connection.sock
        timed.until_ns = until_ns
        return connection

    def _judged(self, signal: Signal, answer: http.client.HTTPResponse, said: bytes) -> Sent:
        status = answer.status
        if 200 <= status < 300:
            rejected = _rejected(signal, said, answer.getheader("content-type"))
            if rejected is None:
                return Sent(
                    "refused",
                    why=f"the server is not a collector: it answers {status}, which OTLP does not define",
                )
            return Sent("taken", rejected=rejected)
        if status in RETRYABLE:
            after = _retry_after(answer.getheader("retry-after"))
            is_throttled = status == 429 or (status == 503 and after is not None)
            return Sent("later", 0, after, is_throttled, f"it answers {status}")
        if status == 413:
            return Sent("too_large", why="a message is too large for it")
        if 300 <= status < 400:
            return Sent("refused", why=f"it answers {status}, and redirects are not followed")
        return Sent("refused", why=f"it answers {status}")


class GrpcSender:
    """Sends over gRPC."""

    def __init__(self, to: Collector) -> None:
        """Send to a collector; nothing is opened before the first message."""
        self._to = to
        self._channel: Any = None
        self._stubs: Mapping[Signal, Any] = {}
        self._is_child = False

    def forked(self) -> None:
        """In a child process, send nothing: gRPC's threads do not exist there, and its channels do not work."""
        self._is_child = True

    def __call__(self, signal: Signal, message: Message) -> Sent:
        """Send one message; never raises."""
        if self._is_child:
            return Sent("refused", why="gRPC does not work in a forked process; http/protobuf does")
        if self._channel is None:
            self._channel = self._opened()
            self._stubs = {each: stub(self._channel) for each, stub in _STUBS.items()}
        metadata = tuple(self._to.headers.items())
        try:
            answer = self._stubs[signal].Export(
                message, metadata=metadata, timeout=self._to.timeout_seconds
            )
        except grpc.RpcError as error:
            return _of_rpc(error)
        return Sent("taken", rejected=_field(answer.partial_success, _REJECTED[signal][0]))

    def close(self) -> None:
        """Close the channel; the next message opens another one."""
        channel, self._channel = self._channel, None
        if channel is not None and not self._is_child:
            channel.close()

    def _opened(self) -> Any:
        options = (
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", ANSWER_BYTES),
            ("grpc.primary_user_agent", "agentobs"),
        )
        if self._to.url.scheme == "https":
            roots = _read(self._to.certificate) if self._to.certificate else None
            credentials = grpc.ssl_channel_credentials(root_certificates=roots)
            return grpc.secure_channel(self._to.to, credentials, options)
        return grpc.insecure_channel(self._to.to, options)


def as_json(message: Message) -> bytes:
    """Return a message as OTLP's JSON: IDs as hex digits, enums as numbers (opentelemetry.io, OTLP/HTTP JSON)."""
    value = _as_otlp(MessageToDict(message, use_integers_for_enums=True))
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _as_otlp(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _field_as_otlp(key, inner) for key, inner in value.items()}
    return [_as_otlp(inner) for inner in value] if isinstance(value, list) else value


def _field_as_otlp(key: str, value: Any) -> Any:
    if key in _IDS and isinstance(value, str):
        return base64.b64decode(value).hex()
    # The specification allows numbers or strings of digits; rotel silently drops histograms with strings.
    if key == "bucketCounts" and isinstance(value, list):
        return [int(each) for each in value]
    if key == "count" and isinstance(value, str):
        return int(value)
    return _as_otlp(value)


class _Timed:
    """A socket with one deadline for all its waits, so that a slow response is aborted in time."""

    def __init__(self, raw: socket.socket) -> None:
        """Wrap a socket; `until_ns` is set before each message."""
        self._raw = raw
        self.until_ns = 0

    def sendall(self, data: Any) -> None:
        """Send all of it."""
        self._raw.settimeout(_left(self.until_ns))
        self._raw.sendall(data)

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        """Return its reader."""
        return io.BufferedReader(_Reading(self))

    def read_into(self, buffer: Any) -> int:
        """Read what is there."""
        self._raw.settimeout(_left(self.until_ns))
        return self._raw.recv_into(buffer)

    def close(self) -> None:
        """Close it."""
        self._raw.close()


class _Reading(io.RawIOBase):
    """The reading side of a timed socket."""

    def __init__(self, timed: _Timed) -> None:
        super().__init__()
        self._timed = timed

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there."""
        return self._timed.read_into(buffer)


def _left(until_ns: int) -> float:
    """Return the remaining seconds.

    Raises:
        TimeoutError: none remain.
    """
    left = (until_ns - world.monotonic()) / 1e9
    if left <= 0:
        raise TimeoutError
    return left


def _why(error: Exception) -> str:
    """Return why a collector cannot be reached, by the class of the error: its text may contain anything."""
    return "it did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__


def _rejected(signal: Signal, said: bytes, kind: str | None) -> int | None:
    """Return how many items a collector that accepted a message rejected; None if the response is not a collector's.

    A login page, or any other server at a wrong address, answers everything with 200.
    """
    ours, theirs = _REJECTED[signal]
    if not (kind or "").startswith("application/json"):
        try:
            answer = _RESPONSES[signal].FromString(said)
        except DecodeError:
            pass  # Some answer in JSON and do not say so.
        else:
            return _field(getattr(answer, "partial_success", None), ours)
    elif not said:
        return 0
    try:
        partial = json.loads(said).get("partialSuccess") or {}
        return int(partial.get(theirs) or 0)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _field(partial: Any, name: str) -> int:
    return int(getattr(partial, name, 0))


def _of_rpc(error: grpc.RpcError) -> Sent:
    code = error.code().name
    after = _retry_info(error)
    if code == "RESOURCE_EXHAUSTED":
        if after is None:
            return Sent("too_large", why="a message is too large for it, or its queue is full")
        return Sent("later", 0, after, True, "its queue is full")
    if code in _RETRYABLE_CODES:
        is_late = code == "DEADLINE_EXCEEDED"
        why = "it did not answer in time" if is_late else f"it answers {code}"
        return Sent("later", 0, after, after is not None, why)
    return Sent("refused", why=f"it answers {code}")


def _retry_info(error: grpc.RpcError) -> float | None:
    """Return the seconds after which a collector accepts a retry, or None."""
    for key, value in error.trailing_metadata() or ():
        try:
            if key == "google.rpc.retryinfo-bin":
                return _delay(RetryInfo.FromString(value))
            if key == "grpc-status-details-bin":
                for detail in Status.FromString(value).details:
                    info = RetryInfo()
                    if detail.Unpack(info):
                        return _delay(info)
        except (DecodeError, TypeError):
            continue
    return None


def _delay(info: Any) -> float:
    return max(float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9), 0.0)


def _retry_after(value: str | None) -> float | None:
    """Return the value of a header in seconds: a number, or a date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    if value.strip().isdigit() and len(value) < 10:
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - world.now() / 1e9, 0.0)
    except (ValueError, TypeError, OverflowError):
        return None


def _is_token(name: str) -> bool:
    return bool(name) and name.isascii() and name.replace("-", "").replace("_", "").isalnum()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
