"""Request spans: the spans of LLM requests, derived from attempts, for clients that do not open spans themselves.

A request that may be retried stays open until no retry can follow. The time between its attempts is a span as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentobs.provider.registry import dialect_of
from agentobs.records.exchanges import ModelExchange
from agentobs.records.facts import Attempt, Fact, SpanEnd, SpanStart, SpanStatus
from agentobs.records.labels import Label
from agentobs.tracing import remote_parent, trace_of

RETRY_NS = 120 * 1_000_000_000
"""After this time without another attempt, no retry is expected. The SDK (2.12, `_calculate_retry_timeout`) waits at
most a minute, or 8 s if the provider names no time; this is twice the maximum.
"""

OPEN_MAX = 1_000
"""The maximum number of requests of a session that may be waiting for a retry; beyond this number, the oldest are
ended. Our choice.
"""

_RETRIED = frozenset((408, 409, 429))
"""The statuses below 500 that the SDK (2.12, `_should_retry`) retries."""


@dataclass(slots=True)
class _Request:
    """A request that may be retried."""

    span_id: str
    trace_id: str
    last: Attempt

    @property
    def ended_ns(self) -> int:
        """When its last attempt ended."""
        return self.last.started_ns + self.last.duration_ns


@dataclass(slots=True)
class Requests:
    """The requests of one session."""

    _open: dict[str, _Request] = field(default_factory=dict)
    """Requests that may be retried, by ID, oldest first."""

    def attempt(self, exchange: ModelExchange, fact: Attempt) -> Iterator[Fact]:
        """Yield the starts and ends of spans that follow from an attempt."""
        yield from self._ends_of_old(fact.started_ns)
        if exchange.place.interaction_id:
            return  # the agent loop of agentobs opens its own spans
        known = self._open.pop(fact.llm_request_id, None)
        if known is None:
            known = _Request(exchange.attempt_id[16:], _trace_of(exchange, fact), fact)
            yield _start(exchange, fact, known)
        else:
            yield from _wait(exchange, fact, known)
            known.last = fact
        if _may_be_retried(exchange, fact):
            self._open[fact.llm_request_id] = known
        else:
            yield _end(known)

    def end_all(self) -> Iterator[Fact]:
        """Yield the ends of all requests that are still open."""
        while self._open:
            yield _end(self._open.pop(next(iter(self._open))))

    def _ends_of_old(self, now_ns: int) -> Iterator[Fact]:
        """Yield the ends of requests for which a retry is no longer expected."""
        for request_id, each in list(self._open.items()):
            if now_ns - each.ended_ns > RETRY_NS or len(self._open) >= OPEN_MAX:
                yield _end(self._open.pop(request_id))


def _may_be_retried(exchange: ModelExchange, fact: Attempt) -> bool:
    """Return whether the SDK would retry an attempt, unless it has reached its limit."""
    if fact.outcome == "no_response":
        return True
    if fact.outcome != "http_error" or fact.status is None:
        return False
    may_retry = dialect_of(exchange.question.path).may_retry(exchange.answer.headers)
    if may_retry is not None:
        return may_retry
    return fact.status in _RETRIED or fact.status >= 500


def _trace_of(exchange: ModelExchange, fact: Attempt) -> str:
    """Return the trace ID of a request: that of the enclosing span, or of its derived interaction."""
    if exchange.place.span_id is not None:
        return trace_of(exchange.place)
    return fact.interaction_id or fact.session_id


def _start(exchange: ModelExchange, fact: Attempt, known: _Request) -> SpanStart:
    parent_span_id = exchange.place.span_id
    return SpanStart(
        session_id=fact.session_id,
        trace_id=known.trace_id,
        span_id=known.span_id,
        parent_span_id=parent_span_id,
        lane=fact.lane,
        name=Label("llm_request"),
        label=fact.model_requested,
        started_ns=exchange.started_ns,
        remote_parent=remote_parent(fact.session_id) if parent_span_id is None else None,
        interaction_id=fact.interaction_id,
    )


def _wait(exchange: ModelExchange, fact: Attempt, known: _Request) -> Iterator[Fact]:
    """Yield the span of the wait before another attempt."""
    if exchange.started_ns <= known.ended_ns:
        return
    span_id = fact.attempt_id[16:]
    yield SpanStart(
        session_id=fact.session_id,
        trace_id=known.trace_id,
        span_id=span_id,
        parent_span_id=known.span_id,
        lane=fact.lane,
        name=Label("retry_wait"),
        label=known.last.error_type,
        started_ns=known.ended_ns,
        interaction_id=fact.interaction_id,
    )
    yield SpanEnd(fact.session_id, span_id, exchange.started_ns, "ok", None)


def _end(known: _Request) -> SpanEnd:
    last = known.last
    status: SpanStatus = "error"
    if last.outcome in ("ok", "cancelled"):
        status = "ok" if last.outcome == "ok" else "cancelled"
    return SpanEnd(last.session_id, known.span_id, known.ended_ns, status, last.error_type)
