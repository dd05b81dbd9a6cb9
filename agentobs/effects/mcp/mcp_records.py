"""MCP records: converts exchanges with MCP servers into records of a session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from agentobs import world
from agentobs.effects.mcp.json_rpc import RpcExchange
from agentobs.records.clear_text import declared_label
from agentobs.records.effect_facts import McpCall, McpOutcome
from agentobs.records.exchanges import ObservedEffect, Place
from agentobs.records.labels import Label, unchecked

METHODS = frozenset(
    (
        "completion/complete", "elicitation/create", "initialize", "logging/setLevel", "ping", "prompts/get",
        "prompts/list", "resources/list", "resources/read", "resources/subscribe", "resources/templates/list",
        "resources/unsubscribe", "roots/list", "sampling/createMessage", "server/discover", "subscriptions/listen",
        "tasks/cancel", "tasks/get", "tasks/list", "tasks/result", "tools/call", "tools/list",
    )
)  # fmt: skip
"""The methods of requests. Source: mcp-types 2.3, 2026-11."""
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
"""The key in the metadata of results with which servers of the protocol of 2026-07-28 state who they are. Source:
mcp-types 2.3, 2026-11.
"""
KEPT_CHARACTERS = 256 * 1024
"""The longest request or response that is kept completely, as JSON. Our choice."""
CUT_CHARACTERS = 32 * 1024
"""How much of the start and the end of a longer one is kept. Our choice."""
TOOLS_MAX = 10_000
"""The maximum number of tool names that are remembered for one server. Our choice."""


@dataclass(slots=True)
class McpServer:
    """The known facts about the server of one connection."""

    name: str
    transport: Literal["stdio", "http", "process"]
    keeps_content: bool = True
    tools: set[str] = field(default_factory=set)
    """The tools that the server has listed."""

    def record(
        self,
        place: Place,
        exchange: RpcExchange,
        spans: tuple[str, ...] = (),
        *,
        is_own: bool = False,
    ) -> ObservedEffect:
        """Return the record of an exchange.

        Args:
            place: where it belongs.
            exchange: the exchange.
            spans: the open spans around the caller.
            is_own: whether the place is that of the caller, and not only its session.
        """
        response = exchange.response
        self._learn(exchange)
        params = exchange.request.get("params")
        params = params if isinstance(params, dict) else {}
        ended = exchange.ended
        duration_ns = ended.clock_ns - exchange.started.clock_ns if ended else None
        method = exchange.method
        outcome, code = _outcome(response)
        is_call = method == "tools/call"
        fact = McpCall(
            session_id=place.session_id,
            interaction_id=place.interaction_id if is_own else None,
            lane=unchecked(place.lane) if is_own else None,
            turn=place.turn if is_own else None,
            call_id=world.new_id(),
            span_id=place.span_id if is_own else None,
            server=declared_label(self.name),
            transport=self.transport,
            sender=exchange.sender,
            method=Label(method) if method in METHODS else unchecked(method),
            tool=self._tool(params.get("name")) if is_call else None,
            started_ns=exchange.started.wall_ns,
            ended_ns=exchange.started.wall_ns + duration_ns if duration_ns is not None else None,
            duration_ns=duration_ns,
            outcome=outcome,
            error_code=code,
            request_bytes=exchange.request_bytes,
            response_bytes=exchange.response_bytes,
        )
        content = None
        if self.keeps_content:
            content = {
                "request": _bounded(exchange.request),
                **({"response": _bounded(response)} if response is not None else {}),
            }
        ids = tuple(_texts(params.get("_meta"))) if is_call else ()
        arguments = params.get("arguments") if is_call else None
        return ObservedEffect(fact, ids, arguments, spans, content)

    def _tool(self, name: object) -> Label | None:
        if not isinstance(name, str):
            return None
        return declared_label(name) if name in self.tools else unchecked(name)

    def _learn(self, exchange: RpcExchange) -> None:
        """Remember the tools of the server, and its name if the configuration has none."""
        result = (exchange.response or {}).get("result")
        if exchange.sender != "client" or not isinstance(result, dict):
            return
        if not self.name:
            self.name = _stated_name(exchange.method, result)
        listed = result.get("tools") if exchange.method == "tools/list" else None
        for each in listed if isinstance(listed, list) else ():
            name = each.get("name") if isinstance(each, dict) else None
            if isinstance(name, str) and len(self.tools) < TOOLS_MAX:
                self.tools.add(name)


def _stated_name(method: str, result: dict[str, Any]) -> str:
    """Return the name that a server states at the start of a connection; empty if it states none."""
    holder: Any = result if method == "initialize" else result.get("_meta")
    key = "serverInfo" if method == "initialize" else SERVER_INFO
    info = holder.get(key) if isinstance(holder, dict) else None
    name = info.get("name") if isinstance(info, dict) else None
    return name if isinstance(name, str) else ""


def _outcome(response: dict[str, Any] | None) -> tuple[McpOutcome, int | None]:
    if response is None:
        return "no_response", None
    error = response.get("error")
    if error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        is_code = isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**31
        return "error", code if is_code else None
    result = response.get("result")
    is_error = isinstance(result, dict) and result.get("isError") is True
    return "tool_error" if is_error else "ok", None


def _bounded(value: dict[str, Any]) -> Any:
    """Return a value, or its start and its end as texts if it is too long."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= KEPT_CHARACTERS:
        return value
    return {
        "characters": len(text),
        "start": text[:CUT_CHARACTERS].rpartition(" ")[0],
        "end": text[-CUT_CHARACTERS:].partition(" ")[2],
    }


def _texts(value: object) -> Iterator[str]:
    """Yield the texts of metadata, in which some clients name the ID of the tool call."""
    for each in value.values() if isinstance(value, dict) else ():
        if isinstance(each, str):
            yield each


__all__ = ["McpServer"]
