"""gRPC receiver: the OTLP/gRPC server.

Source: https://opentelemetry.io/docs/specs/otlp/#otlpgrpc.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from agentobs.collector.collected_sessions import CollectedSessions, NotWritten
from agentobs.collector.http_receiver import BODY_BYTES_MAX, RESPONSES
from agentobs.collector.otlp_requests import (
    RECORDS_MAX,
    MalformedRequest,
    Signal,
    TooManyRecords,
    parse_request,
    records_in,
)
from agentobs.errors import UsageError

THREADS = 4
"""The maximum number of requests that are read at the same time. Our choice; they are recorded one after another."""
_SERVICES: dict[Signal, str] = {
    "log": "opentelemetry.proto.collector.logs.v1.LogsService",
    "span": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metric": "opentelemetry.proto.collector.metrics.v1.MetricsService",
}


def grpc_server(sessions: CollectedSessions, port: int) -> tuple[grpc.Server, int]:
    """Return a server that listens on 127.0.0.1, not yet started, and its port.

    Args:
        sessions: records the telemetry.
        port: the port; 0 means any free port.

    Raises:
        UsageError: the port is in use.
    """
    server = grpc.server(
        ThreadPoolExecutor(THREADS, "agentobs-otlp"),
        options=[
            ("grpc.max_receive_message_length", BODY_BYTES_MAX),
            # Otherwise two servers could share a port.
            ("grpc.so_reuseport", 0),
        ],
    )
    for signal, service in _SERVICES.items():
        handler = grpc.unary_unary_rpc_method_handler(
            _export(sessions, signal),
            response_serializer=RESPONSES[signal].SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {"Export": handler}),)
        )
    try:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError:
        bound = 0
    if not bound:
        server.stop(None)
        raise UsageError(
            "cannot listen on this address",
            where=f"127.0.0.1 port {port}",
            todo="Choose another port with --grpc-port; --grpc-port 0 uses any free port",
        )
    return server, bound


def _export(sessions: CollectedSessions, signal: Signal) -> Any:
    # The body is parsed here, because grpc would log a malformed one with its traceback.
    def export(body: bytes, context: grpc.ServicerContext) -> Any:
        try:
            sessions.add(records_in(signal, parse_request(signal, body, is_json=False)))
        except MalformedRequest as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TooManyRecords:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the request has more than {RECORDS_MAX:,} records",
            )
        except NotWritten:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the records were not written")
        return RESPONSES[signal]()

    return export
