"""MCP clients of the agent's own process: `ClientSession.send_request` of the package mcp is patched.

The package is not imported here. If the program imports it later, it is patched then.
"""

from __future__ import annotations

import itertools
import json
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentobs import world
from agentobs.effects.mcp.json_rpc import Moment, RpcExchange
from agentobs.effects.mcp.mcp_records import McpServer
from agentobs.effects.observation import Scope
from agentobs.effects.process_scopes import scope_here, spans_here
from agentobs.errors import error_kind, warn_once
from agentobs.recording.wire.http_libraries import ImportWatch
from agentobs.runtime import process
from agentobs.sink import sink

MODULE = "mcp.client.session"


@dataclass(slots=True)
class PatchedClients:
    """The patch of this process, and the sessions that need it."""

    scopes: list[Scope] = field(default_factory=list)
    original: Callable[..., Any] | None = None
    watch: ImportWatch | None = None
    servers: weakref.WeakKeyDictionary[Any, McpServer] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    """The known facts about the server of each client."""
    ids: Any = field(default_factory=itertools.count)


def observe_clients(scope: Scope) -> None:
    """Start observing the MCP clients of this process in the session of a scope."""
    patched = process.state(PatchedClients)
    patched.scopes.append(scope)
    if MODULE in sys.modules:
        _patch(patched)
    elif patched.watch is None:
        patched.watch = ImportWatch([MODULE], lambda: _patch(patched))


def leave_clients(scope: Scope) -> None:
    """Stop observing the clients of a scope."""
    patched = process.state(PatchedClients)
    patched.scopes = [each for each in patched.scopes if each is not scope]
    if patched.scopes:
        return
    if patched.watch is not None:
        patched.watch.stop()
        patched.watch = None
    if patched.original is not None:
        sys.modules[MODULE].ClientSession.send_request = patched.original
        patched.original = None


def _patch(patched: PatchedClients) -> None:
    client: Any = getattr(sys.modules.get(MODULE), "ClientSession", None)
    original = getattr(client, "send_request", None)
    if original is None or patched.original is not None or not patched.scopes:
        return
    patched.original = original

    async def send_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        started = Moment(world.now(), world.monotonic())
        try:
            result = await original(self, request, *args, **kwargs)
        except Exception as error:
            _report(patched, self, request, started, _error(error))
            raise
        except BaseException:
            _report(patched, self, request, started, None)
            raise
        _report(patched, self, request, started, lambda: {"result": _json(result)})
        return result

    client.send_request = send_request


def _report(
    patched: PatchedClients,
    client: Any,
    request: Any,
    started: Moment,
    response: Callable[[], dict[str, Any]] | None,
) -> None:
    try:
        found = scope_here(patched.scopes)
        if found is None:
            return
        scope, place = found
        server = patched.servers.setdefault(client, McpServer("", "process", scope.keeps_content))
        # Clients of the protocol of 2026-07-28 do not ask for it with `send_request`.
        stated = getattr(getattr(client, "server_info", None), "name", None)
        if not server.name and isinstance(stated, str):
            server.name = stated
        sent = {"jsonrpc": "2.0", "id": next(patched.ids), **_json(request)}
        got = {"jsonrpc": "2.0", "id": sent["id"], **response()} if response else None
        exchange = RpcExchange(
            "client",
            str(sent.get("method")),
            sent,
            len(json.dumps(sent)),
            started,
            got,
            len(json.dumps(got)) if got is not None else None,
            Moment(world.now(), world.monotonic()) if got is not None else None,
        )
        sink.emit(server.record(place, exchange, spans_here(), is_own=True))
    except Exception as error:
        warn_once(f"an MCP call is not recorded: {error_kind(error)}", about="effects mcp")


def _json(model: Any) -> dict[str, Any]:
    value: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return value


def _error(error: Exception) -> Callable[[], dict[str, Any]] | None:
    """Return the JSON-RPC error of an exception; None if the server did not send it."""
    sent = getattr(error, "error", None)
    if not hasattr(sent, "code"):
        return None
    return lambda: {"error": _json(sent)}


__all__ = ["leave_clients", "observe_clients"]
