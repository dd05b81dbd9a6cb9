"""Managed agents: the events of a session that the provider runs, from its stream or from a list.

Format: anthropic 2.12, `resources/beta/sessions` and `types/beta/sessions`.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentobs.provider.agent_events import AgentEvent, AgentEventKind, AgentStream, ManagedTraffic
from agentobs.provider.anthropic.messages import turn
from agentobs.provider.anthropic.terms import AGENT_ENDINGS
from agentobs.provider.anthropic.usage import sums_of_session, usage_rows
from agentobs.provider.dialect import Block, Turn, json_bytes, text_of
from agentobs.provider.server_events import (
    EVENT_MARK_BYTES,
    is_stream,
    last_event_end,
    server_events,
)
from agentobs.records.exchanges import Answer
from agentobs.records.usage import Usage, unreported_usage

MODEL_REQUEST = "/v1/sessions/:id/model_request"
"""The endpoint of the requests to a model that the provider sends for an agent; no client can send them."""

_EVENTS = re.compile(
    r"/v1/sessions/(?P<session>[^/]+)(?:/threads/(?P<thread>[^/]+))?/(?:events(?:/stream)?|stream)\Z"
)
"""Matches the routes whose responses contain events."""
_OBJECTS = re.compile(r"/v1/sessions(?:/[^/]+(?:/threads(?:/[^/]+)?)?)?\Z")
"""Matches the routes whose responses contain sessions and threads, which name their model."""
_PREVIEWS = frozenset(("event_start", "event_delta"))
"""Events that announce parts of a later event; they have no ID of their own and contain no facts."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

_KINDS: Mapping[str, AgentEventKind] = {
    "user.message": "prompt",
    "span.model_request_start": "request_start",
    "span.model_request_end": "request_end",
    "span.outcome_evaluation_start": "request_start",
    "span.outcome_evaluation_end": "request_end",
    "agent.tool_use": "call",
    "agent.mcp_tool_use": "call",
    "agent.custom_tool_use": "call",
    "agent.tool_result": "result",
    "agent.mcp_tool_result": "result",
    "user.custom_tool_result": "result",
    "user.tool_result": "result",
    "session.status_idle": "idle",
    "session.status_terminated": "end",
    "session.deleted": "end",
    "session.error": "error",
    "workflow_run.error": "error",
}
_REFERENCES = (
    "model_request_start_id",
    "outcome_evaluation_start_id",
    "custom_tool_use_id",
    "mcp_tool_use_id",
    "tool_use_id",
)
"""The fields with the ID of the event to which an event refers."""
_LABELS = {
    "outcome_id": "managed_outcome_id",
    "workflow_run_id": "managed_workflow_run_id",
    "evaluated_permission": "managed_permission",
    "session_thread_id": "managed_thread_id",
}
"""Further fields that are IDs or terms, with the names of their labels."""


def managed_traffic(route: str, answer: Answer) -> ManagedTraffic | None:
    """Return what a response reveals about sessions of managed agents; None if it belongs to another API.

    Args:
        route: the path that the provider defines, with or without the query.
        answer: the response, even if only a part of it arrived.
    """
    path = route.partition("?")[0]
    if not _may_show_events(path, answer):
        return None
    if found := _EVENTS.match(path):
        thread_id = found["thread"]
        events = list(_parsed(_values(answer), thread_id))
        if not is_stream(answer.headers) and _is_reversed(events):
            events.reverse()
        return ManagedTraffic(found["session"], thread_id, _in_order(events))
    if _OBJECTS.match(path):
        objects = list(_values(answer))
        models = {each["id"]: model for each in objects if (model := _model(each))}
        primary = (
            str(each["id"])
            for each in objects
            if each.get("type") == "session_thread" and each.get("parent_thread_id") is None
        )
        return ManagedTraffic(models=models, primary_threads=frozenset(primary))
    return None


def received_messages(route: str, answer: Answer) -> list[Turn]:
    """Return the messages, tool calls and results in the events of a response; none if it has no events.

    Args:
        route: the path that the provider defines, with or without the query.
        answer: the response.
    """
    path = route.partition("?")[0]
    is_shown = _EVENTS.match(path) is not None and _may_show_events(path, answer)
    return list(_messages(_values(answer))) if is_shown else []


def sent_messages(body: Mapping[str, Any]) -> list[Turn]:
    """Return the messages and tool results in a request that sends events to an agent."""
    listed = body.get("events")
    return list(_messages(listed if isinstance(listed, list) else ()))


def _messages(events: Iterable[Any]) -> Iterator[Turn]:
    for event in events:
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            continue
        match _KINDS.get(kind):
            case "call":
                name, value = str(event.get("name")), event.get("input")
                yield Turn("assistant", (Block("call", kind, name=name, value=value),))
            case "result":
                text = text_of(event.get("content"))
                yield Turn("user", (Block("result", kind, text=text),))
            case _ if "content" in event:
                yield turn({**event, "role": "user" if kind.startswith("user.") else "assistant"})


def agent_stream(route: str, answer: Answer) -> AgentStream | None:
    """Return a reader for a stream of events; None for another response.

    Args:
        route: the path that the provider defines, with or without the query.
        answer: the start of the response.
    """
    path = route.partition("?")[0]
    found = _EVENTS.match(path)
    if found is None or not _may_show_events(path, answer) or not is_stream(answer.headers):
        return None
    return _Stream(found["session"], found["thread"])


@dataclass(slots=True)
class _Stream:
    """Reads the events of a stream while it arrives.

    An event without a time waits for the next event with a time, as in `_in_order`.
    """

    session_id: str
    thread_id: str | None
    size: int = 0
    _unread: bytearray = field(default_factory=bytearray, repr=False)
    """The start of an event that has not arrived completely."""
    _waiting: list[AgentEvent] = field(default_factory=list)

    def read(self, data: bytes) -> ManagedTraffic:
        searched = max(len(self._unread) - EVENT_MARK_BYTES, 0)
        self.size += len(data)
        self._unread += data
        end = last_event_end(self._unread, searched)
        complete = bytes(self._unread[:end])
        del self._unread[:end]
        values = _with_id(_json(each.data) for each in server_events(complete))
        self._waiting += _parsed(values, self.thread_id)
        timed = [at for at, each in enumerate(self._waiting, 1) if each.at_ns is not None]
        return self._take(timed[-1] if timed else 0)

    def end(self) -> ManagedTraffic:
        return self._take(len(self._waiting))

    def _take(self, count: int) -> ManagedTraffic:
        events, self._waiting = self._waiting[:count], self._waiting[count:]
        return ManagedTraffic(self.session_id, self.thread_id, _in_order(events))


def _may_show_events(path: str, answer: Answer) -> bool:
    is_read = bool(answer.chunks) and (answer.status or 400) < 400
    return is_read and path.startswith("/v1/sessions")


def is_agent_event(event: Mapping[str, Any]) -> bool:
    """Return whether an event of a stream belongs to a session of a managed agent."""
    kind = event.get("type")
    return isinstance(kind, str) and ("." in kind or kind in _PREVIEWS)


def managed_usage(session_id: str, event: AgentEvent, model: str) -> list[Usage]:
    """Return the usage rows of a request that the provider sent to a model for an agent.

    The cost is a lower bound, because the provider also bills the time in which the agent runs. An event counts once,
    by its ID, even if several exchanges and sessions contain it.

    Args:
        session_id: the provider's ID of the agent's session.
        event: the end of the request; its start if the end was not seen.
        model: the model of the agent, or `unknown`.
    """
    if event.usage is None:
        rows = [unreported_usage(model)]
    else:
        rows = usage_rows(model, event.usage, "exact")
    kind = "outcome_evaluation" if event.is_evaluation else "message"
    return [
        replace(
            row,
            kind=kind,
            certainty="lower_bound" if row.certainty == "exact" else row.certainty,
            note=row.note or "active_seconds:unpriced",
            batch_result_id=f"{session_id}/{event.id}",
        )
        for row in rows
    ]


def _values(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield the objects in a response: the events of a stream, the items of a list, or the only object."""
    if is_stream(answer.headers):
        return _with_id(_json(each.data) for each in server_events(answer.body))
    value = _json(answer.body)
    listed = value.get("data") if isinstance(value, dict) else None
    return _with_id(listed if isinstance(listed, list) else [value])


def _with_id(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for each in values:
        if isinstance(each, dict) and isinstance(each.get("id"), str) and each["id"]:
            yield each


def _parsed(values: Iterable[dict[str, Any]], thread_id: str | None) -> Iterator[AgentEvent]:
    for value in values:
        kind = value.get("type")
        if isinstance(kind, str) and is_agent_event(value) and kind not in _PREVIEWS:
            yield _event(value, kind, thread_id)


def _is_reversed(events: list[AgentEvent]) -> bool:
    """Return whether a list contains the last event first."""
    known = [each.at_ns for each in events if each.at_ns is not None]
    return bool(known) and known[0] > known[-1]


def _in_order(events: list[AgentEvent]) -> list[AgentEvent]:
    """Return events in the order in which they happened; an event without a time happened before the next one."""
    filled: list[AgentEvent] = []
    next_ns: int | None = None
    for each in reversed(events):
        next_ns = each.at_ns if each.at_ns is not None else next_ns
        filled.append(replace(each, at_ns=next_ns))
    filled.reverse()
    filled.sort(key=lambda each: (each.at_ns is None, each.at_ns or 0))
    return filled


def _event(value: Mapping[str, Any], type_name: str, thread_id: str | None) -> AgentEvent:
    error, usage = _object(value.get("error")), value.get("model_usage")
    is_evaluation = type_name.startswith("span.outcome_evaluation_")
    content, is_client = value.get("content"), type_name.startswith("user.")
    if type_name == "agent.custom_tool_use":
        is_client = True
    kind = _KINDS.get(type_name, "other")
    return AgentEvent(
        id=str(value["id"]),
        type=type_name,
        kind=kind,
        at_ns=_time(value.get("processed_at")),
        thread_id=(_text(value.get("session_thread_id")) if kind in ("call", "result") else None)
        or thread_id,
        refers_to=next((text for name in _REFERENCES if (text := _text(value.get(name)))), None),
        usage=_object(value.get("usage") if is_evaluation else usage) or None,
        is_evaluation=is_evaluation,
        is_error=value.get("is_error") is True,
        name=_text(value.get("name")) or "",
        server=_text(value.get("mcp_server_name")),
        input=value.get("input"),
        input_bytes=json_bytes(value.get("input")) if kind == "call" else 0,
        runs_on="client" if is_client else "provider",
        result_bytes=json_bytes(content) if kind == "result" else 0,
        items=len(content) if kind == "result" and isinstance(content, list) else None,
        word=_word(value, error),
        ending=_ending(_word(value, error)) if kind == "idle" else None,
        labels=dict(_labels(value, error)),
        numbers=dict(_numbers(value)),
    )


def _ending(reason: str | None) -> tuple[str, bool] | None:
    """Return how an interaction ended; None if the agent waits for a result or for a permission."""
    if reason == "requires_action":
        return None
    return AGENT_ENDINGS.get(reason or "", (reason or "success", False))


def _word(value: Mapping[str, Any], error: Mapping[str, Any]) -> str | None:
    """Return why the agent stopped, the type of an error, or the verdict of an evaluation or of a workflow."""
    result = value.get("result")
    stated = _object(value.get("stop_reason")) or error or _object(result)
    return _text(stated.get("type")) or _text(result)


def _labels(value: Mapping[str, Any], error: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, name in _LABELS.items():
        if text := _text(value.get(key)):
            yield name, text
    if text := _text(_object(error.get("retry_status")).get("type")):
        yield "managed_retry_status", text


def _numbers(value: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of an event; those of a snapshot are sums since the start of the session."""
    if type(number := value.get("iteration")) is int:
        yield "iteration", number
    if value.get("type") != "session.usage":
        return
    yield from sums_of_session(_object(value.get("usage")))


def _model(value: Mapping[str, Any]) -> str | None:
    """Return the model of a session or of a thread."""
    model = _object(value.get("agent")).get("model")
    return _text(_object(model).get("id")) or _text(model)


def _time(text: object) -> int | None:
    """Return a time in RFC 3339 as nanoseconds since 1970; None if it is not one."""
    if not isinstance(text, str):
        return None
    try:
        parsed = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    if parsed.tzinfo is None:
        return None
    return (parsed - _EPOCH) // dt.timedelta(microseconds=1) * 1000


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
