"""The steps of sessions from the facts that a process writes: requests, tool calls, results, failures and costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.ledger import Meter, PriceBook
from agentobs.recording.journal.followed_segments import Appended
from agentobs.records.display import COST_MARKS, certain_money, seconds
from agentobs.records.facts import UsageRow
from agentobs.records.request_failures import request_failure

_USAGE_FIELDS = frozenset(each.name for each in dataclasses.fields(UsageRow))
_TOKENS = (
    ("in", ("input_tokens",)),
    ("out", ("output_tokens",)),
    ("cache read", ("cache_read_tokens",)),
    ("cache write", ("cache_write_5m_tokens", "cache_write_1h_tokens")),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a session, as one line."""

    at_ns: int
    """When the step ended, in nanoseconds since 1970."""
    session_id: str
    lane: str
    turn: int | None
    kind: str
    """`session`, `request`, `call`, `result`, `permission` or `lost`."""
    text: str
    """What happened, without content; names may be digests."""
    state: str = ""
    """`failed`, `denied`, `completed` or empty; it selects the color."""
    segment_id: str = ""
    source: tuple[str, dict[str, Any]] | None = None
    """The table and the fact of the step, from which its content can be read."""


class LiveSteps:
    """Turns appended facts into steps. It remembers the names of open calls and the cost of each session."""

    def __init__(self, session_id: str | None, book: PriceBook) -> None:
        """Start without facts.

        Args:
            session_id: only steps of this session; None for all.
            book: the prices.
        """
        self._session_id, self._book = session_id, book
        self._meters: dict[str, Meter] = {}
        self._requests: dict[str, int] = {}
        self._tools: dict[tuple[str, str, str], str] = {}
        self._names: dict[str, str] = {}
        self._lanes: dict[str, dict[str, tuple[int, str | None]]] = {}
        """The lanes of each session, each with its first start and the type of its agent."""
        self._is_partial: set[str] = set()
        """The sessions with usage that could not be read, so that their cost is a lower bound."""
        self.ended: set[str] = set()
        """The sessions that have ended."""
        self.segments: set[str] = set()
        """The segments with facts of the chosen sessions."""

    def steps(self, appended: Iterable[Appended]) -> list[Step]:
        """Return the steps of facts that were appended together, in the order in which the steps ended."""
        facts = [
            (each.segment_id, each.line.kind, value)
            for each in appended
            if each.line.kind in _KINDS and self._is_chosen(value := _value(each))
        ]
        usage: dict[str, list[UsageRow]] = {}
        for segment_id, kind, value in facts:
            self.segments.add(segment_id)
            if kind == "usage":
                try:
                    row = UsageRow(**{k: v for k, v in value.items() if k in _USAGE_FIELDS})
                except TypeError:
                    self._is_partial.add(value["session_id"])
                    continue
                usage.setdefault(row.attempt_id, []).append(row)
                self._meter(row.session_id).add_facts([row])
        found = [
            dataclasses.replace(step, segment_id=segment_id, source=(kind, value))
            for segment_id, kind, value in facts
            for step in self._readable_steps(kind, value, usage)
        ]
        return sorted(_calls_first(found), key=lambda step: step.at_ns)

    def name_of(self, session_id: str) -> str:
        """Return the name of a session, which may be a digest; empty if its start was not read."""
        return self._names.get(session_id, "")

    def lanes_of(self, session_id: str) -> list[tuple[str, str | None]]:
        """Return the lanes of a session in the order of their first start, each with the type of its agent, which may
        be a digest; None if it is unknown.
        """
        lanes = self._lanes.get(session_id, {})
        started = sorted((start, lane) for lane, (start, _) in lanes.items())
        return [(lane, lanes[lane][1]) for _, lane in started]

    def _note_lane(self, kind: str, value: dict[str, Any]) -> None:
        """Note the lane of a request or a span. Requests are written when they end, not when they start."""
        if kind not in _STARTS or value.get("lane") is None:
            return
        lanes = self._lanes.setdefault(value["session_id"], {})
        is_agent = kind == "span_starts" and value["name"] in ("sub_agent", "interaction")
        named = value.get("label") if is_agent else None
        start, known = lanes.get(value["lane"], (value["started_ns"], None))
        lanes[value["lane"]] = min(start, value["started_ns"]), known or named

    def _is_chosen(self, value: dict[str, Any]) -> bool:
        return bool(value) and self._session_id in (None, value["session_id"])

    def _meter(self, session_id: str) -> Meter:
        if session_id not in self._meters:
            self._meters[session_id] = Meter(self._book)
        return self._meters[session_id]

    def _readable_steps(
        self, kind: str, value: dict[str, Any], usage: dict[str, list[UsageRow]]
    ) -> list[Step]:
        """Return the steps of a fact; none if fields are missing, as in facts of other versions."""
        try:
            self._note_lane(kind, value)
            return list(self._steps(kind, value, usage))
        except (KeyError, TypeError):
            return []

    def _steps(
        self, kind: str, value: dict[str, Any], usage: dict[str, list[UsageRow]]
    ) -> Iterator[Step]:
        match kind:
            case "session_starts":
                self._names[value["session_id"]] = value["name"]
                yield _step(value, value["started_ns"], "session", f"{value['name']} started")
            case "session_ends":
                yield self._session_end(value)
            case "attempts" if value.get("origin") != "managed":
                self._requests[value["session_id"]] = self._requests.get(value["session_id"], 0) + 1
                yield self._request(value, usage.get(value["attempt_id"], []))
            case "tool_uses" | "provider_tool_uses":
                self._tools[_call(value)] = value["name"]
                size = f"{value['input_bytes']:,} bytes of input"
                yield _step(value, value["requested_ns"], "call", f"{value['name']}  {size}")
            case "tool_results" | "provider_tool_results":
                yield self._result(value)
            case "permissions" if value["approval_requested"] or value["behavior"] == "deny":
                yield _permission(value)
            case "command_runs" if value["parent_command_id"] is None:
                yield _command(value)
            case "mcp_requests" if value["method"] == "tools/call":
                yield _mcp_call(value)
            case "gaps":
                text = f"{value['records']:,} records were not written: {value['reason']}"
                yield _step(value, value["at_ns"], "lost", text, "failed")

    def _session_end(self, value: dict[str, Any]) -> Step:
        session_id = value["session_id"]
        self.ended.add(session_id)
        spent = self._meter(session_id).total()
        status = "lower_bound" if session_id in self._is_partial else spent.status
        cost = certain_money(spent.usd, status) or "unknown cost"
        reason = value.get("signature") or value.get("reason")
        outcome = f"{value['outcome']}: {reason}" if reason else value["outcome"]
        requests = self._requests.get(session_id, 0)
        text = f"{outcome}  {requests:,} request{'s' * (requests != 1)}, {cost}"
        return _step(value, value["ended_ns"], "session", text, value["outcome"])

    def _request(self, value: dict[str, Any], usage: Sequence[UsageRow]) -> Step:
        failed = value["outcome"] != "ok"
        error = _error(value) if failed else ""
        counts = {
            name: sum(getattr(row, each) for row in usage if row.billed for each in fields)
            for name, fields in _TOKENS
        }
        is_low = any(row.certainty == "lower_bound" for row in usage)
        marks = {"out": COST_MARKS["lower_bound"] if is_low else ""}
        tokens = ", ".join(
            f"{name} {marks.get(name, '')}{count:,}" for name, count in counts.items() if count
        )
        parts = [
            value["model"] or value["model_requested"] or value["endpoint"],
            error,
            value["stop_reason"] or "",
            self._cost(usage),
            seconds(value["duration_ns"]) or "",
            tokens,
        ]
        at_ns = value["started_ns"] + value["duration_ns"]
        text = "  ".join(part for part in parts if part)
        return _step(value, at_ns, "request", text, "failed" if failed else "")

    def _cost(self, usage: Sequence[UsageRow]) -> str:
        if not usage:
            return ""
        meter = Meter(self._book)
        meter.add_facts(usage)
        spent = meter.total()
        return certain_money(spent.usd, spent.status) or "no price"

    def _result(self, value: dict[str, Any]) -> Step:
        from agentobs.store.analysis.failed_steps import is_denied

        name = value.get("tool") or self._tools.get(_call(value)) or value.get("type") or "a tool"
        failed = value["is_error"]
        origin = " ".join(
            str(value[each])
            for each in ("error_class", "error_kind", "error_code", "error_origin")
            if value.get(each)
        )
        place = f"at {value['error_file']}:{value['error_line']}" if value.get("error_file") else ""
        outcome = value["outcome"] if failed or value["outcome"] != "executed" else ""
        size = f"{value['result_bytes']:,} bytes"
        parts = [name, outcome, origin, place, size, seconds(value.get("duration_ns")) or ""]
        text = "  ".join(part for part in parts if part)
        is_call_denied = is_denied({"kind": "tool_call", "outcome": value["outcome"]})
        state = "denied" if is_call_denied else "failed" if failed else ""
        return _step(value, value["result_ns"], "result", text, state)


def _error(value: dict[str, Any]) -> str:
    """Return why a request failed: the HTTP error, or in words what happened to the response."""
    outcome, status, error_type = value["outcome"], value["status"], value["error_type"]
    if outcome in ("cut", "no_response", "stream_error"):
        return request_failure(outcome, error_type, status)
    return " ".join(str(each) for each in (outcome, status, error_type) if each is not None)


def _calls_first(steps: Sequence[Step]) -> list[Step]:
    """Return steps in which no call is later than the start of its execution.

    A tool may run while the response that calls it is still being received.
    """
    started: dict[tuple[str, str, str], int] = {}
    for step in steps:
        if step.kind == "result" and step.source is not None:
            value = step.source[1]
            at_ns = step.at_ns - (value.get("duration_ns") or 0)
            started[_call(value)] = min(at_ns, started.get(_call(value), at_ns))
    found = []
    for step in steps:
        if step.kind == "call" and step.source is not None:
            at_ns = min(step.at_ns, started.get(_call(step.source[1]), step.at_ns))
            step = dataclasses.replace(step, at_ns=at_ns)
        found.append(step)
    return sorted(found, key=lambda step: step.kind == "result")


def _permission(value: dict[str, Any]) -> Step:
    reason = " ".join(dict.fromkeys(filter(None, (value["reason_type"], value["resolver"]))))
    wait = seconds(value["approval_wait_ns"]) if value["approval_requested"] else None
    waited = f"  waited {wait}" if wait else ""
    text = f"{value['tool']}  {value['behavior']} ({reason}){waited}"
    state = "denied" if value["behavior"] == "deny" else ""
    return _step(value, value["at_ns"], "permission", text, state)


def _command(value: dict[str, Any]) -> Step:
    ending = value["signal"] or value["exit_code"]
    outcome = value["outcome"] if ending is None else f"{value['outcome']} {ending}"
    took = f"  {seconds(value['duration_ns'])}" if value["duration_ns"] is not None else ""
    sizes = [value[name] for name in ("stdout_bytes", "stderr_bytes") if value[name] is not None]
    size = f"  {sum(sizes):,} bytes" if sizes else ""
    state = "failed" if ending else ""
    at_ns = value["ended_ns"] or value["started_ns"]
    return _step(value, at_ns, "command", f"{value['program']}  {outcome}{took}{size}", state)


def _mcp_call(value: dict[str, Any]) -> Step:
    took = f"  {seconds(value['duration_ns'])}" if value["duration_ns"] is not None else ""
    text = f"{value['server']} {value['tool']}  {value['outcome']}{took}"
    state = "" if value["outcome"] == "ok" else "failed"
    return _step(value, value["ended_ns"] or value["started_ns"], "mcp", text, state)


_KINDS = frozenset(
    ("session_starts", "session_ends", "attempts", "usage", "tool_uses", "tool_results", "provider_tool_uses",
     "provider_tool_results", "permissions", "gaps",
     "command_runs", "mcp_requests", "span_starts", "attempts_starts")
)  # fmt: skip
"""The tables whose facts are steps, belong to one, or name an agent."""
_STARTS = frozenset(("attempts", "attempts_starts", "span_starts"))
"""The tables with the starts of lanes."""


def _value(appended: Appended) -> dict[str, Any]:
    """Return the fields of a fact; none if it has no session, or is not an object."""
    try:
        value = appended.line.value()
    except ValueError:
        return {}
    return value if isinstance(value, dict) and "session_id" in value else {}


def _call(value: dict[str, Any]) -> tuple[str, str, str]:
    return value["session_id"], value.get("lane") or "main", value["tool_use_id"]


def _step(value: dict[str, Any], at_ns: int, kind: str, text: str, state: str = "") -> Step:
    lane = value.get("lane") or "main"
    return Step(at_ns, value["session_id"], lane, value.get("turn"), kind, text, state)
