"""HTTP receiver: the OTLP/HTTP server, for the binary and the JSON encoding.

Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import Any

from google.protobuf.json_format import MessageToJson
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.collector.collected_sessions import CollectedSessions, NotWritten
from agentobs.collector.otlp_requests import (
    RECORDS_MAX,
    MalformedRequest,
    Signal,
    TooManyRecords,
    parse_request,
    records_in,
)

BODY_BYTES_MAX = 64 * 1024 * 1024
"""The longest body, before and after decompression. Our choice: three times the default of the OpenTelemetry
Collector's HTTP receiver, because Claude Code can send the bodies of its requests.
"""
SMALL_BYTES = 1024 * 1024
"""Longer bodies are received one after another, to limit the memory that they use. Our choice."""
RETRY_SECONDS = 1
"""After how many seconds a client should resend records that were not written. Our choice."""
BINARY, JSON = "application/x-protobuf", "application/json"
RESPONSES: dict[Signal, Any] = {
    "log": ExportLogsServiceResponse,
    "span": ExportTraceServiceResponse,
    "metric": ExportMetricsServiceResponse,
}
"""The response to an export request, by signal."""
_PATHS: dict[str, Signal] = {"/v1/logs": "log", "/v1/traces": "span", "/v1/metrics": "metric"}
_CODES = {400: 3, 413: 8, 415: 3, 503: 14}
"""The gRPC status of each HTTP status: INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE."""


class _Refused(Exception):
    """A request is refused, with this HTTP status and this message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def application(sessions: CollectedSessions) -> Starlette:
    """Return the server. It responds when the records are in the journal."""
    # A parsed body needs up to 30 times its size, so one request is parsed at a time.
    long_bodies, parsing = asyncio.Lock(), asyncio.Lock()

    async def receive(request: Request) -> Response:
        signal = _PATHS[request.url.path]
        encoding = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if encoding not in (BINARY, JSON):
                raise _Refused(415, f"send {BINARY} or {JSON}")
            is_compressed = _is_compressed(request)
            async with contextlib.AsyncExitStack() as turn:
                body = await _body(request, long_bodies, turn)
                await turn.enter_async_context(parsing)
                await asyncio.to_thread(
                    _record, sessions, signal, body, encoding == JSON, is_compressed
                )
        except _Refused as refusal:
            return _refusal(refusal.status, str(refusal), encoding)
        except ClientDisconnect:
            return Response(status_code=400)
        return Response(_encoded(RESPONSES[signal](), encoding), media_type=encoding)

    # A page in a browser must not add records under a name that it resolves to this machine.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    routes = [Route(path, receive, methods=["POST"]) for path in _PATHS]
    return Starlette(routes=routes, middleware=[hosts])


def _record(
    sessions: CollectedSessions,
    signal: Signal,
    body: bytes | bytearray,
    is_json: bool,
    is_compressed: bool,
) -> None:
    """Record the telemetry in a body.

    Raises:
        _Refused: the body is malformed or too long, or the records were not written.
    """
    body = _decompressed(body) if is_compressed else bytes(body)
    try:
        sessions.add(records_in(signal, parse_request(signal, body, is_json=is_json)))
    except MalformedRequest as error:
        raise _Refused(400, str(error)) from error
    except TooManyRecords as error:
        raise _Refused(413, f"the request has more than {RECORDS_MAX:,} records") from error
    except NotWritten as error:
        raise _Refused(503, "the records were not written; send them again") from error


def _is_compressed(request: Request) -> bool:
    """Return whether the body is compressed with gzip.

    Raises:
        _Refused: it is compressed in another way.
    """
    compression = request.headers.get("content-encoding", "identity").strip().lower()
    if compression not in ("gzip", "identity", ""):
        raise _Refused(415, "the body may only be compressed with gzip")
    return compression == "gzip"


async def _body(
    request: Request, long_bodies: asyncio.Lock, turn: contextlib.AsyncExitStack
) -> bytearray:
    """Return the body as it was sent.

    Args:
        request: the request.
        long_bodies: held from the point at which the body is no longer small.
        turn: releases the lock.

    Raises:
        _Refused: it is too long.
    """
    body = bytearray()
    is_long = False
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise _Refused(413, f"the body is longer than {BODY_BYTES_MAX:,} bytes")
        if len(body) > SMALL_BYTES and not is_long:
            is_long = True
            await turn.enter_async_context(long_bodies)
    return body


def _decompressed(body: bytes | bytearray) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    try:
        plain = decompressor.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise _Refused(400, "the body is not valid gzip") from error
    if len(plain) > BODY_BYTES_MAX:
        raise _Refused(413, f"the decompressed body is longer than {BODY_BYTES_MAX:,} bytes")
    if not decompressor.eof:
        raise _Refused(400, "the compressed body is cut off")
    if decompressor.unused_data:
        raise _Refused(400, "the compressed body has more than one part")
    return plain


def _refusal(status: int, message: str, encoding: str) -> Response:
    """Return an error as OTLP/HTTP requires it: a `google.rpc.Status` in the encoding of the request."""
    encoding = encoding if encoding in (BINARY, JSON) else JSON
    headers = {"retry-after": str(RETRY_SECONDS)} if status == 503 else {}
    body = _encoded(Status(code=_CODES[status], message=message), encoding)
    return Response(body, status, headers, encoding)


def _encoded(message: Any, encoding: str) -> bytes:
    if encoding == JSON:
        return str(MessageToJson(message, indent=None)).encode()
    return bytes(message.SerializeToString())
