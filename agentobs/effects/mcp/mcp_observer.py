"""The observer of MCP servers: tees in a copy of a recorded command's configuration, or a patch of this process."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentobs import world
from agentobs.effects.mcp.client_config import with_tees
from agentobs.effects.mcp.config_copies import ConfigCopies
from agentobs.effects.mcp.http_traffic import HttpTraffic
from agentobs.effects.mcp.json_rpc import Moment, RpcExchange, Sender, StdioTraffic
from agentobs.effects.mcp.mcp_records import McpServer
from agentobs.effects.mcp.process_clients import leave_clients, observe_clients
from agentobs.effects.mcp.stdio_tee import VERSION
from agentobs.effects.observation import Scope
from agentobs.effects.report_socket import ReportSocket
from agentobs.errors import UsageError, warn_once
from agentobs.provider.content_encoding import decoded
from agentobs.provider.registry import dialect_of
from agentobs.records.backend import WrittenFact
from agentobs.records.display import printable
from agentobs.records.exchanges import ModelExchange, ObservedEffect
from agentobs.records.facts import ToolUse
from agentobs.records.labels import DIGEST
from agentobs.runtime import process, without
from agentobs.sink import sink

SOCKET_VARIABLE = "AGENTOBS_MCP_SOCKET"
"""The socket that receives reports of `agentobs mcp-tee`."""
CREDENTIALS = frozenset(("authorization", "x-api-key", "api-key"))
"""The headers with the credentials of a server, in lower case."""
TOOL_PREFIX, TOOL_SEPARATOR = "mcp", "__"
"""How the names of MCP tools start, and what separates the prefix, the server and the tool. Source: Claude Code 2.1."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
FLUSH_SECONDS = 5.0
"""How long the end waits until the last responses are recorded, in seconds. Our choice."""
WAITING_MAX = 1000
"""The maximum number of exchanges that wait for the first session. Our choice."""


class McpObserver:
    """Observes the MCP servers of an agent."""

    def __init__(self) -> None:
        """Prepare to observe."""
        self._scope: Scope | None = None
        self._directory: Path | None = None
        """The directory of the socket."""
        self._copies: ConfigCopies | None = None
        self._socket: ReportSocket | None = None
        self._waiting: list[tuple[McpServer, RpcExchange]] = []
        self._lock = threading.Lock()
        self._traffic: list[HttpTraffic] = []
        self._seen: set[str] = set()
        """The servers with observed exchanges."""
        self.has_unnamed = False
        """Whether a tee has no name for its server, so that the name in the client's configuration is not known."""
        self._called: Counter[str] = Counter()
        """The number of tools of each server that the model has called, if their names contain a server."""

    def start(self, scope: Scope) -> None:
        """Add tees to the servers of a recorded command.

        Raises:
            UsageError: the socket that receives reports, or a copy of the configuration, cannot be created.
        """
        self._scope = scope
        if scope.environment is None or scope.command is None:
            observe_clients(scope)
            return
        try:
            self._directory = Path(tempfile.mkdtemp(prefix="agentobs-"))
            path = self._directory / "socket"
            self._socket = ReportSocket(path, lambda: _Tee(self), "agentobs-mcp")
        except OSError as error:
            self._remove()
            raise UsageError(
                f"the socket that receives MCP calls cannot be created: {error}",
                where="TMPDIR",
                todo="Set TMPDIR to a directory with a short path that can be written",
            ) from error

        def wrap(name: str, server: dict[str, Any]) -> dict[str, Any] | None:
            return _with_stdio_tee(name, server, path) or self._with_http_tee(name, server, scope)

        try:
            self._copies = ConfigCopies(scope.home)
            with_tees(scope.command, scope.directory, scope.environment, self._copies.write, wrap)
        except OSError as error:
            self._socket.stop()
            self._remove()
            raise UsageError(
                f"the MCP configuration cannot be copied: {error.strerror or error}",
                where=str(scope.home.path),
                todo="Check the disk and the permissions of the home, or leave out `mcp`",
            ) from error
        scope.environment[SOCKET_VARIABLE] = str(path)
        process.record_listeners += (self._recorded,)

    def stop(self) -> None:
        """Record what has arrived, and delete the copies of the configuration."""
        if self._socket is not None:
            self._socket.stop()
            for each in self._traffic:
                each.close()
            self._emit_waiting()
            self._warn_of_others()
            process.record_listeners = without(process.record_listeners, self._recorded)
        elif self._scope is not None:
            leave_clients(self._scope)
        self._remove()

    def receive(self, server: McpServer, exchange: RpcExchange) -> None:
        """Record an exchange, or keep it until there is a session."""
        with self._lock:
            self._seen.add(server.name)
            self._waiting.append((server, exchange))
            del self._waiting[:-WAITING_MAX]
        self._emit_waiting()

    def _with_http_tee(
        self, name: str, server: dict[str, Any], scope: Scope
    ) -> dict[str, Any] | None:
        """Return the configuration of a server behind the proxy; None if that may change what the client does.

        Clients bind OAuth tokens to the URL of a server, so only servers without OAuth are observed: those of this
        machine, and those whose configuration has the credentials.
        """
        url = server.get("url")
        if scope.forward is None or not isinstance(url, str) or not needs_no_oauth(url, server):
            return None
        known = self.server(name, "http")
        traffic = HttpTraffic(lambda exchange: self.receive(known, exchange))
        self._traffic.append(traffic)
        return {**server, "url": scope.forward(url, traffic)}

    def server(self, name: str, transport: Any) -> McpServer:
        """Return the known facts about the server of a new connection: only its name."""
        assert self._scope is not None
        return McpServer(name, transport, self._scope.keeps_content)

    def _emit_waiting(self) -> None:
        assert self._scope is not None
        place = self._scope.place()
        if place is None:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for server, exchange in waiting:
            record: ObservedEffect = server.record(place, exchange)
            sink.emit(record)

    def _recorded(self, record: object, facts: Sequence[WrittenFact]) -> None:
        """Count the calls of MCP tools; called in the recorder's thread."""
        if not isinstance(record, ModelExchange):
            return
        # Clients that list tools later call tools that the request does not list. Their names are digests in facts.
        if any(
            _may_be_mcp(str(each.fact.name)) for each in facts if isinstance(each.fact, ToolUse)
        ):
            found = dialect_of(record.question.path).facts(decoded(record).answer)
            for call in found.calls:
                prefix, _, rest = call.name.partition(TOOL_SEPARATOR)
                server, separator, _ = rest.partition(TOOL_SEPARATOR)
                if prefix == TOOL_PREFIX and separator:
                    self._called[server] += 1

    def _warn_of_others(self) -> None:
        """Print which servers the model has used without being observed."""
        sink.flush(FLUSH_SECONDS)
        if (recorder := process.exchange_observer) is not None:
            recorder.wait(FLUSH_SECONDS)
        seen = {tool_name_part(each) for each in self._seen}
        if self.has_unnamed:
            return
        others = {name: count for name, count in self._called.items() if name not in seen}
        if others:
            named = ", ".join(f"{name} ({count})" for name, count in sorted(others.items()))
            warn_once(
                f"MCP servers that were called but not observed: {printable(named)}. Their configuration could not be "
                "changed; put `agentobs mcp-tee` in front of them (docs/effects.md)",
                about="effects mcp servers",
            )

    def _remove(self) -> None:
        if self._copies is not None:
            self._copies.remove()
            self._copies = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


class _Tee:
    """The connection of one tee."""

    def __init__(self, observer: McpObserver) -> None:
        self._observer = observer
        self._server: McpServer | None = None
        self._traffic = StdioTraffic(self._receive)

    def message(self, kind: bytes, fields: list[bytes]) -> None:
        """Receive a message of the tee: its start, or data of one direction."""
        if kind == b"M":
            version, name = fields
            if version != VERSION:
                raise ValueError("another version")
            self._observer.has_unnamed |= not name
            self._server = self._observer.server(name.decode("utf-8", "replace"), "stdio")
        elif kind in (b"c", b"s"):
            clock, data = fields
            sender: Sender = "client" if kind == b"c" else "server"
            # The wall clock of another process may have jumped.
            self._traffic(sender, data, Moment(world.at(int(clock)), int(clock)))

    def closed(self, *, by_sender: bool) -> None:
        """Receive the end of the connection."""
        self._traffic.close()

    def _receive(self, exchange: RpcExchange) -> None:
        if self._server is not None:
            self._observer.receive(self._server, exchange)


def _may_be_mcp(name: str) -> bool:
    return name.startswith((TOOL_PREFIX + TOOL_SEPARATOR, DIGEST))


def tool_name_part(server: str) -> str:
    """Return the name of a server as it is in the names of its tools, such as `my_server` in `mcp__my_server__add`."""
    return _NOT_IN_NAMES.sub("_", server)


def needs_no_oauth(url: str, server: dict[str, Any]) -> bool:
    headers = server.get("headers")
    names = {str(each).lower() for each in headers} if isinstance(headers, dict) else set()
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    is_stream = server.get("type", "http") in ("http", "streamable-http")
    is_here = host in ("localhost", "::1") or host.startswith("127.")
    is_http = parts.scheme in ("http", "https")
    return is_http and is_stream and (is_here or not names.isdisjoint(CREDENTIALS))


def _with_stdio_tee(name: str, server: dict[str, Any], socket: Path) -> dict[str, Any] | None:
    """Return the configuration of a server that is started through a tee; None if the client does not start it."""
    command, arguments = server.get("command"), server.get("args", [])
    if not isinstance(command, str) or not isinstance(arguments, list):
        return None
    tee = ["-m", "agentobs.effects.mcp.stdio_tee", "--socket", str(socket), "--server", name, "--"]
    return {**server, "command": sys.executable, "args": [*tee, command, *arguments]}


__all__ = ["SOCKET_VARIABLE", "McpObserver"]
