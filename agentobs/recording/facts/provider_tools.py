"""Provider tools: the calls of tools that the provider runs, and their results.

The result is usually in the same response. If the provider pauses a turn, it is in the response to the request that
continues the turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from agentobs.provider.dialect import CallLimits, ProviderResult, ResponseFacts
from agentobs.recording.facts.open_calls import OpenCalls
from agentobs.records.exchanges import ModelExchange
from agentobs.records.facts import Attempt, Fact, ProviderToolResult, ProviderToolUse
from agentobs.records.labels import Label

_NO_LIMITS = CallLimits(None, None)


@dataclass(slots=True)
class ProviderTools:
    """The calls of one session that the provider runs."""

    session_id: str
    label: Callable[[str], Label]
    _open: OpenCalls = field(default_factory=OpenCalls)

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
        ended_ns = exchange.started_ns + exchange.ended_ns
        uses: Counter[str] = Counter()
        started: dict[int, int] = {}
        for ordinal, call in enumerate(response.provider_calls, 1):
            uses[call.name] += 1
            limit = limits.get(call.name, _NO_LIMITS)
            self._open.add(fact.lane, call.id, exchange.attempt_id, ordinal)
            if call.after_ns is not None:
                started[ordinal] = exchange.started_ns + call.after_ns
            yield ProviderToolUse(
                session_id=self.session_id,
                interaction_id=fact.interaction_id,
                lane=fact.lane,
                turn=fact.turn,
                attempt_id=exchange.attempt_id,
                tool_use_id=self.label(call.id),
                name=self.label(call.name),
                server=self._optional(call.server),
                ordinal=ordinal,
                requested_ns=started.get(ordinal, ended_ns),
                is_timed=ordinal in started,
                input_bytes=call.input_bytes,
                use=uses[call.name],
                max_uses=limit.max_uses,
                max_result_tokens=limit.max_result_tokens,
                caller_id=self._optional(call.caller_id),
            )
        for result in response.provider_results:
            yield self._result(exchange, fact, result, started)

    def _result(
        self,
        exchange: ModelExchange,
        fact: Attempt,
        result: ProviderResult,
        started: Mapping[int, int],
    ) -> ProviderToolResult:
        """Return a result.

        Args:
            exchange: the attempt.
            fact: the fact of the attempt, with its position.
            result: the result.
            started: when the calls of the same response started, by their position in it; nanoseconds since 1970.
        """
        attempt_id, ordinal = self._close(fact.lane, result.id)
        result_ns = exchange.started_ns + (
            exchange.ended_ns if result.after_ns is None else result.after_ns
        )
        started_ns = started.get(ordinal or 0) if attempt_id == exchange.attempt_id else None
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
        )

    def _close(self, lane: str, tool_use_id: str) -> tuple[str | None, int | None]:
        """Close a call; return its attempt and its position in the response, or nothing if the call is unknown."""
        for each in (lane, *self._open.lanes(tool_use_id)):
            if found := self._open.take(each, tool_use_id):
                return found
        return None, None

    def _optional(self, text: str | None) -> Label | None:
        return self.label(text) if text else None
