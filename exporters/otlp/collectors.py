"""Senders: each call sends one OTLP message to a collector, over HTTP or gRPC, with a timeout.

OpenTelemetry's own exporters follow redirects, take addresses and keys from the environment, read responses of any
length, and do not report rejected items. Therefore only its encoders are used, and sending is implemented here. Sent
data and headers are never printed, not even in a warning, an error or a repr.
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
from agentobs.records.whole_numbers import whole_number
from exporters.conventions.identities import digest_of
from exporters.otlp.outbox import Sent, Signal

RESPONSE_BYTES_MAX = 64 * 1024
"""The maximum number of bytes that are read of a response. Our choice: OTLP responses are short."""

RETRYABLE = frozenset({429, 502, 503, 504})
"""Source: https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes"""
_RETRYABLE_CODES = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
"""Source: https://opentelemetry.io/docs/specs/otlp/#failures. RESOURCE_EXHAUSTED is retried only if the response
contains a delay.
"""

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
    """A file of trusted certificates. Default: the certificates of the system."""

    @property
    def address(self) -> str:
        """Host and port, for messages to the user."""
        host = str(self.url.hostname)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def destination(self) -> Label:
        """The address as a label, which sessions record. A path is digested, because it may contain a key."""
        path = self.url.path.strip("/")
        address = f"{self.url.hostname}:{self.port}" + (f"/{digest_of(path, 8)}" if path else "")
        return Label(address) if is_label(address) else Label(digest_of(address, 16))

    @property
    def port(self) -> int:
        """The port of the URL, or the default port of its scheme."""
        return self.url.port or (443 if self.url.scheme == "https" else 80)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """A TLS context with the trusted certificates if the scheme is https; otherwise None."""
        if self.url.scheme != "https":
            return None
        return ssl.create_default_context(cafile=self.certificate)


def parse_collector(
    endpoint: str, headers: Mapping[str, str], timeout_seconds: float, certificate: str | None
) -> Collector:
    """Validate the options of a collector and return it.

    Raises:
        UsageError: the endpoint is not a valid URL, or a header is invalid. The value of the header is not printed.
    """
    try:
        url = urlsplit(endpoint)
        is_valid = url.scheme in ("http", "https") and url.hostname and (url.port or True)
    except ValueError:
        is_valid = False
    if not is_valid or url.query or url.fragment or url.username or url.password:
        raise UsageError(
            "the address of the collector is not valid",
            where="endpoint",
            todo="Use http://host:port or https://host:port, and pass credentials as headers",
        )
    prefix, _, signal = url.path.rstrip("/").rpartition("/v1/")
    if signal in _RESPONSES:
        raise UsageError(
            f"the endpoint ends in /v1/{signal}, but agentobs appends the path of each signal itself",
            where="endpoint",
            todo=f"Remove the path: {url.scheme}://{url.netloc}{prefix}",
        )
    for name, value in headers.items():
        if not _is_token(name) or not value.isascii() or not value.isprintable():
            raise UsageError(
                f"the header {name[:40]!r} is invalid: expected a token as its name, and printable ASCII as its value",
                where="headers",
                todo="Check it for a line break or a space that was copied by mistake",
            )
    return Collector(url, {k.lower(): v for k, v in headers.items()}, timeout_seconds, certificate)


class HttpSender:
    """Sends over HTTP, as protobuf or as JSON, on a persistent connection."""

    def __init__(self, collector: Collector, *, is_json: bool) -> None:
        """Use a collector; no connection is opened before the first message."""
        self._collector, self._is_json = collector, is_json
        self._tls = collector.tls
        self._connection: http.client.HTTPConnection | None = None

    def after_fork(self) -> None:
        """Forget the connection in a child process, because it belongs to the parent."""
        self._connection = None

    def close(self) -> None:
        """Close the connection; the next message opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __call__(self, signal: Signal, message: Message) -> Sent:
        """Send one message; never raises."""
        body = as_json(message) if self._is_json else message.SerializeToString()
        was_connected = self._connection is not None
        try:
            return self._post(signal, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not was_connected or isinstance(error, TimeoutError):
                return self._unreachable(error)
        # The server may have closed the persistent connection in the meantime, so try a new one.
        try:
            return self._post(signal, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return self._unreachable(error)

    def _unreachable(self, error: Exception) -> Sent:
        return Sent("later", why=_failure_text(error, self._collector), is_unreachable=True)

    def _post(self, signal: Signal, body: bytes) -> Sent:
        deadline_ns = world.monotonic() + int(self._collector.timeout_seconds * 1e9)
        connection = self._connection_until(deadline_ns)
        content_type = "application/json" if self._is_json else "application/x-protobuf"
        path = f"{self._collector.url.path.rstrip('/')}/v1/{signal}"
        headers = {
            "user-agent": "agentobs",
            **self._collector.headers,
            "content-type": content_type,
        }
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        try:
            response_body = response.read(RESPONSE_BYTES_MAX)
        except (OSError, http.client.HTTPException):
            # The body cannot be read, but the status is known.
            response_body = b""
        if response.will_close or not response.isclosed():
            self.close()
        return self._result(signal, response, response_body)

    def _connection_until(self, deadline_ns: int) -> http.client.HTTPConnection:
        """Return a connection with one deadline for all its waits."""
        connection = self._connection
        if connection is None:
            host, port = str(self._collector.url.hostname), self._collector.port
            connection = http.client.HTTPConnection(host, port)
            raw = socket.create_connection((host, port), timeout=_remaining_s(deadline_ns))
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                raw = self._tls.wrap_socket(raw, server_hostname=host)
            connection.sock = cast(socket.socket, _DeadlineSocket(raw))
            self._connection = connection
        timed: Any = connection.sock
        timed.deadline_ns = deadline_ns
        return connection

    def _result(self, signal: Signal, response: http.client.HTTPResponse, body: bytes) -> Sent:
        status = response.status
        if 200 <= status < 300:
            rejected = _rejected_count(signal, body, response.getheader("content-type"))
            if rejected is None:
                return Sent(
                    "refused",
                    why=f"the server does not seem to be an OTLP collector: it responded with status {status} and a "
                    "body that is not an OTLP response",
                )
            return Sent("accepted", rejected=rejected)
        if status in RETRYABLE:
            retry_after_s = _retry_after(response.getheader("retry-after"))
            is_throttled = status == 429 or (status == 503 and retry_after_s is not None)
            return Sent(
                "later", 0, retry_after_s, is_throttled, f"it responded with status {status}"
            )
        if status == 413:
            return Sent("too_large", why="a message is too large for it")
        if 300 <= status < 400:
            return Sent(
                "refused", why=f"it responded with status {status}, and redirects are not followed"
            )
        return Sent("refused", why=f"it responded with status {status}")


class GrpcSender:
    """Sends over gRPC."""

    def __init__(self, collector: Collector) -> None:
        """Use a collector; no connection is opened before the first message."""
        self._collector = collector
        self._channel: Any = None
        self._stubs: Mapping[Signal, Any] = {}
        self._is_child = False

    def after_fork(self) -> None:
        """Stop sending in a child process: gRPC's threads do not exist there, so its channels do not work."""
        self._is_child = True

    def __call__(self, signal: Signal, message: Message) -> Sent:
        """Send one message; never raises."""
        if self._is_child:
            return Sent("refused", why="gRPC does not work in a forked process; http/protobuf does")
        if self._channel is None:
            self._channel = self._open_channel()
            self._stubs = {each: stub(self._channel) for each, stub in _STUBS.items()}
        metadata = tuple(self._collector.headers.items())
        try:
            response = self._stubs[signal].Export(
                message, metadata=metadata, timeout=self._collector.timeout_seconds
            )
        except grpc.RpcError as error:
            return _rpc_result(error, self._collector)
        return Sent("accepted", rejected=_field(response.partial_success, _REJECTED[signal][0]))

    def close(self) -> None:
        """Close the channel; the next message opens another one."""
        channel, self._channel = self._channel, None
        if channel is not None and not self._is_child:
            channel.close()

    def _open_channel(self) -> Any:
        options = (
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
            ("grpc.primary_user_agent", "agentobs"),
        )
        if self._collector.url.scheme == "https":
            roots = _read(self._collector.certificate) if self._collector.certificate else None
            credentials = grpc.ssl_channel_credentials(root_certificates=roots)
            return grpc.secure_channel(self._collector.address, credentials, options)
        return grpc.insecure_channel(self._collector.address, options)


def as_json(message: Message) -> bytes:
    """Return a message as OTLP JSON: IDs as hex digits, enums as numbers (opentelemetry.io, OTLP/HTTP JSON)."""
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


class _DeadlineSocket:
    """A socket with one deadline for all its waits, so that a slow response is aborted in time."""

    def __init__(self, raw: socket.socket) -> None:
        """Wrap a socket; `deadline_ns` is set before each message."""
        self._raw = raw
        self.deadline_ns = 0

    def sendall(self, data: Any) -> None:
        """Send all data before the deadline."""
        self._raw.settimeout(_remaining_s(self.deadline_ns))
        self._raw.sendall(data)

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        """Return a buffered reader of the socket."""
        return io.BufferedReader(_SocketReader(self))

    def read_into(self, buffer: Any) -> int:
        """Read the available data into a buffer."""
        self._raw.settimeout(_remaining_s(self.deadline_ns))
        return self._raw.recv_into(buffer)

    def close(self) -> None:
        """Close the socket."""
        self._raw.close()


class _SocketReader(io.RawIOBase):
    """Raw reader of a socket with a deadline."""

    def __init__(self, timed: _DeadlineSocket) -> None:
        super().__init__()
        self._timed = timed

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the available data into a buffer."""
        return self._timed.read_into(buffer)


def _remaining_s(deadline_ns: int) -> float:
    """Return the remaining seconds.

    Raises:
        TimeoutError: the deadline has passed.
    """
    remaining_s = (deadline_ns - world.monotonic()) / 1e9
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s


def _failure_text(error: Exception, collector: Collector) -> str:
    """Return why a collector cannot be reached: the class of the error, because its text may contain anything."""
    if isinstance(error, TimeoutError):
        return f"{collector.address} did not respond in time"
    return f"{collector.address} cannot be reached ({type(error).__name__})"


def _rejected_count(signal: Signal, body: bytes, content_type: str | None) -> int | None:
    """Return how many items of a message the collector rejected; None if the response is not an OTLP response.

    Another server at a wrong address, such as a login page, may respond to everything with status 200.
    """
    protobuf_name, json_name = _REJECTED[signal]
    if not (content_type or "").startswith("application/json"):
        try:
            response = _RESPONSES[signal].FromString(body)
        except DecodeError:
            pass  # Some collectors respond in JSON without the content type of JSON.
        else:
            return _field(getattr(response, "partial_success", None), protobuf_name)
    elif not body:
        return 0
    try:
        partial = json.loads(body).get("partialSuccess") or {}
        return int(partial.get(json_name) or 0)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _field(partial: Any, name: str) -> int:
    return int(getattr(partial, name, 0))


def _rpc_result(error: grpc.RpcError, collector: Collector) -> Sent:
    code = error.code().name
    retry_after_s = _retry_info(error)
    if code == "RESOURCE_EXHAUSTED":
        if retry_after_s is None:
            return Sent("too_large", why="a message is too large for it, or its queue is full")
        return Sent("later", 0, retry_after_s, True, "its queue is full")
    if code in _RETRYABLE_CODES:
        is_unreachable = code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        why = f"it responded with {code}"
        if code == "UNAVAILABLE":
            why = f"{collector.address} cannot be reached ({code})"
        elif code == "DEADLINE_EXCEEDED":
            why = f"{collector.address} did not respond in time"
        return Sent("later", 0, retry_after_s, retry_after_s is not None, why, is_unreachable)
    return Sent("refused", why=f"it responded with {code}")


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
    """Return the value of a `Retry-After` header in seconds: a number, or a date (RFC 9110, section 10.2.3)."""
    if value is None:
        return None
    if (seconds := whole_number(value.strip())) is not None:
        return float(seconds)
    try:
        return max(parsedate_to_datetime(value).timestamp() - world.now() / 1e9, 0.0)
    except (ValueError, TypeError, OverflowError):
        return None


def _is_token(name: str) -> bool:
    return bool(name) and name.isascii() and name.replace("-", "").replace("_", "").isalnum()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
