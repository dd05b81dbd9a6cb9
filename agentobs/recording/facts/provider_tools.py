"""Provider tools: the calls of tools that the provider runs, and their results.

The result is usually in the same response. If the provider pauses a turn, it is in the response to the request that
continues the turn. The results of a batch contain one response for each of its requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from agentobs.provider.dialect import (
    BatchResult,
    CallLimits,
    ProviderCall,
    ProviderResult,
    ResponseFacts,
)
from agentobs.recording.facts.open_calls import OpenCalls
from agentobs.records.exchanges import ModelExchange
from agentobs.records.facts import Attempt, Fact, ProviderToolResult, ProviderToolUse
from agentobs.records.labels import Label

V = TypeVar("V")

_NO_LIMITS = CallLimits(None, None)

BATCH_RESULTS_MAX = 100_000
"""The maximum number of results of batches that are remembered. Source: the largest batch,
https://docs.claude.com/en/api, 2026-11.
"""


@dataclass(slots=True)
class _Response:
    """A response whose calls and results become facts: that of an attempt, or one result of a batch."""

    exchange: ModelExchange
    fact: Attempt
    batch_result_id: str | None = None
    started: dict[int, int] = field(default_factory=dict)
    """When the calls of the response started, by their position in it; nanoseconds since 1970."""

    @property
    def ended_ns(self) -> int:
        """When the response had arrived, in nanoseconds since 1970."""
        return self.exchange.started_ns + self.exchange.ended_ns

    @property
    def lane(self) -> str:
        """The lane of the calls of the response. Each result of a batch has its own lane."""
        return self.batch_result_id or self.fact.lane


@dataclass(slots=True)
class ProviderTools:
    """The calls of one session that the provider runs."""

    session_id: str
    label: Callable[[str], Label]
    _open: OpenCalls = field(default_factory=OpenCalls)
    _batch_limits: dict[str, Mapping[str, CallLimits]] = field(default_factory=dict)
    """The limits of the requests of batches, by the ID of the result."""
    _batch_results: dict[str, None] = field(default_factory=dict)
    """The results of batches that have facts; a program may fetch them again."""

    def attempt(
        self,
        exchange: ModelExchange,
        fact: Attempt,
        response: ResponseFacts,
        limits: Mapping[str, CallLimits],
    ) -> Iterator[Fact]:
        """Yield the calls and results in a response.

        Args:
            exchange: the attempt.
            fact: the fact of the attempt, with its position.
            response: the response.
            limits: the limits that the request sets, by the name of the tool.
        """
        calls, results = response.provider_calls, response.provider_results
        yield from self._facts(_Response(exchange, fact), calls, results, limits)

    def limit_batch(self, limits: Mapping[str, Mapping[str, CallLimits]]) -> None:
        """Remember the limits of the requests of a batch, by the ID of the result."""
        for result_id, each in limits.items():
            _remember(self._batch_limits, result_id, each)

    def batch(
        self, exchange: ModelExchange, fact: Attempt, results: Iterable[BatchResult]
    ) -> Iterator[Fact]:
        """Yield the calls and results in the results of a batch, each only the first time that it is fetched.

        Args:
            exchange: the attempt that fetched the results.
            fact: the fact of the attempt, with its position.
            results: the results.
        """
        calls = 0
        for each in results:
            if each.id in self._batch_results:
                continue
            _remember(self._batch_results, each.id, None)
            limits = self._batch_limits.get(each.id, {})
            response = _Response(exchange, fact, each.id)
            yield from self._facts(response, each.calls, each.results, limits, calls)
            calls += len(each.calls)

    def _facts(
        self,
        response: _Response,
        calls: Iterable[ProviderCall],
        results: Iterable[ProviderResult],
        limits: Mapping[str, CallLimits],
        calls_before: int = 0,
    ) -> Iterator[Fact]:
        uses: Counter[str] = Counter()
        for ordinal, call in enumerate(calls, calls_before + 1):
            uses[call.name] += 1
            limit = limits.get(call.name, _NO_LIMITS)
            yield self._use(response, call, ordinal, uses[call.name], limit)
        for result in results:
            yield self._result(response, result)

    def _use(
        self, response: _Response, call: ProviderCall, ordinal: int, use: int, limit: CallLimits
    ) -> ProviderToolUse:
        exchange, fact = response.exchange, response.fact
        self._open.add(response.lane, call.id, exchange.attempt_id, ordinal)
        if call.after_ns is not None:
            response.started[ordinal] = exchange.started_ns + call.after_ns
        return ProviderToolUse(
            session_id=self.session_id,
            interaction_id=fact.interaction_id,
            lane=fact.lane,
            turn=fact.turn,
            attempt_id=exchange.attempt_id,
            tool_use_id=self.label(call.id),
            name=self.label(call.name),
            server=self._optional(call.server),
            ordinal=ordinal,
            requested_ns=response.started.get(ordinal, response.ended_ns),
            is_timed=ordinal in response.started,
            input_bytes=call.input_bytes,
            use=use,
            max_uses=limit.max_uses,
            max_result_tokens=limit.max_result_tokens,
            caller_id=self._optional(call.caller_id),
            batch_result_id=self._optional(response.batch_result_id),
        )

    def _result(self, response: _Response, result: ProviderResult) -> ProviderToolResult:
        exchange, fact = response.exchange, response.fact
        attempt_id, ordinal = self._close(response.lane, result.id)
        result_ns = (
            response.ended_ns if result.after_ns is None else exchange.started_ns + result.after_ns
        )
        is_same = attempt_id == exchange.attempt_id
        started_ns = response.started.get(ordinal or 0) if is_same else None
        return ProviderToolResult(
            session_id=self.session_id,
            interaction_id=fact.interaction_id,
            lane=fact.lane,
            turn=fact.turn,
            attempt_id=attempt_id,
            ordinal=ordinal,
            result_attempt_id=exchange.attempt_id,
            tool_use_id=self.label(result.id),
            type=self.label(result.type),
            result_ns=result_ns,
            duration_ns=None if started_ns is None else result_ns - started_ns,
            outcome=Label("failed" if result.is_error else "executed"),
            is_error=result.is_error,
            error_code=self._optional(result.error_code),
            result_bytes=result.result_bytes,
            items=result.items,
            return_code=result.return_code,
            stop_reason=self._optional(result.stop_reason),
            iteration=result.iteration,
            batch_result_id=self._optional(response.batch_result_id),
        )

    def _close(self, lane: str, tool_use_id: str) -> tuple[str | None, int | None]:
        """Close a call; return its attempt and its position in the response, or nothing if the call is unknown."""
        for each in (lane, *self._open.lanes(tool_use_id)):
            if found := self._open.take(each, tool_use_id):
                return found
        return None, None

    def _optional(self, text: str | None) -> Label | None:
        return self.label(text) if text else None


def _remember(known: dict[str, V], result_id: str, value: V) -> None:
    """Set a key; if there are too many keys, forget the oldest one."""
    known[result_id] = value
    if len(known) > BATCH_RESULTS_MAX:
        del known[next(iter(known))]
