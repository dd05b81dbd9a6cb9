"""The collector: the HTTP and the gRPC receiver on ports of this machine, while it is open."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

import uvicorn

from agentobs.collector.collected_sessions import CollectedSessions
from agentobs.collector.grpc_receiver import grpc_server
from agentobs.collector.http_receiver import application
from agentobs.proxy.listening import Address, listening_socket

HTTP_PORT, GRPC_PORT = 4318, 4317
"""The standard ports of OTLP (https://opentelemetry.io/docs/specs/otlp/)."""
STOP_SECONDS = 2
"""How long requests in progress may continue when the collector is stopped. Our choice."""
IDLE_SECONDS = 1800.0
"""A session ends after this time without a record, in seconds. Our choice."""
CHECK_SECONDS = 60.0


class Collector:
    """Receives telemetry on 127.0.0.1; a context manager that serves while it is open."""

    def __init__(self, http_port: int = 0, grpc_port: int | None = 0) -> None:
        """Listen on both ports.

        Args:
            http_port: the port of the HTTP receiver; 0 means any free port.
            grpc_port: the port of the gRPC receiver; None means that there is none.

        Raises:
            UsageError: a port is in use.
        """
        self.sessions = CollectedSessions()
        self._socket = listening_socket(Address(port=http_port))
        self.http_port: int = self._socket.getsockname()[1]
        self._grpc, self.grpc_port = None, None
        if grpc_port is not None:
            try:
                self._grpc, self.grpc_port = grpc_server(self.sessions, grpc_port)
            except BaseException:
                self._socket.close()
                raise
        self._server = uvicorn.Server(_config(self.sessions))
        self._has_stopped = threading.Event()
        # In a thread, uvicorn leaves the handling of signals to the main thread.
        self._thread = threading.Thread(target=self._serve, name="agentobs-collector", daemon=True)

    @property
    def url(self) -> str:
        """The endpoint of the HTTP receiver."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str | None:
        """The endpoint of the gRPC receiver; None if there is none."""
        return None if self.grpc_port is None else f"http://127.0.0.1:{self.grpc_port}"

    def __enter__(self) -> Collector:
        """Start to serve; connections that arrive earlier wait."""
        self._thread.start()
        if self._grpc is not None:
            self._grpc.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop; requests in progress have `STOP_SECONDS` to end."""
        self._server.should_exit = True
        stopped = None if self._grpc is None else self._grpc.stop(STOP_SECONDS)
        self._has_stopped.wait()
        if stopped is not None:
            stopped.wait()
        self._socket.close()

    def wait(self) -> None:
        """Serve until this thread is interrupted."""
        self._has_stopped.wait()

    def _serve(self) -> None:
        try:
            asyncio.run(self._serve_until_stopped())
        finally:
            self._has_stopped.set()

    async def _serve_until_stopped(self) -> None:
        checks = asyncio.ensure_future(self._close_idle_sessions())
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            checks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await checks

    async def _close_idle_sessions(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await asyncio.to_thread(self.sessions.close_idle, IDLE_SECONDS)


def claude_code_variables(endpoint: str, protocol: str = "http/protobuf") -> dict[str, str]:
    """Return the environment variables with which Claude Code sends its telemetry to an endpoint.

    Source: https://code.claude.com/docs/en/monitoring-usage. Spans are a beta of Claude Code 2.1.
    """
    return {
        "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
        "CLAUDE_CODE_ENHANCED_TELEMETRY_BETA": "1",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORTER": "otlp",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
    }


def _config(sessions: CollectedSessions) -> uvicorn.Config:
    return uvicorn.Config(
        application(sessions),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
