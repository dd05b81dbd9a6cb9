"""Derivation: the facts about turns, tools, usage and interactions that follow from HTTP attempts.

A `SessionView` follows one session. The agent loop of agentobs names the position of its requests. For any other
client, the position is derived (see `positions`), and a `tool_result` answers a call of an earlier response.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agentobs.provider.dialect import Dialect, ResponseFacts, json_bytes
from agentobs.provider.registry import dialect_of
from agentobs.recording.facts.answer_claims import characters, claim_of, error_kind, says_timeout
from agentobs.recording.facts.effect_links import EffectLinks
from agentobs.recording.facts.input_similarity import similarity
from agentobs.recording.facts.line_changes import change_of_input
from agentobs.recording.facts.low_limits import LowLimits
from agentobs.recording.facts.managed_sessions import ManagedAgents
from agentobs.recording.facts.open_calls import OpenCalls
from agentobs.recording.facts.positions import Position, Positions
from agentobs.recording.facts.prompt_prefixes import Prefixes
from agentobs.recording.facts.provider_tools import ProviderTools
from agentobs.recording.facts.request_spans import Requests
from agentobs.recording.facts.sent_turns import SentTurns, sent_turns
from agentobs.recording.facts.tool_failures import cause_of_answer, cause_of_result
from agentobs.recording.vault.body_deltas import Body
from agentobs.records.clear_text import class_label
from agentobs.records.exchanges import (
    Answer,
    ErrorCause,
    ModelExchange,
    Place,
    ToolAnswer,
    ToolExchange,
    WorldExchange,
)
from agentobs.records.facts import (
    Attempt,
    Event,
    Fact,
    ToolResult,
    ToolUse,
    UsageRow,
    WorldAnswer,
)
from agentobs.records.labels import Label, constant_label, is_label
from agentobs.records.usage import Usage

Labeller = Callable[[str], Label]
"""Returns a name as a label; a name that cannot be a label is replaced by a keyed digest."""

K = TypeVar("K")
V = TypeVar("V")


_RetryKey = tuple[int, object, int | str]
"""Identifies an LLM request among the failed ones: the client, the task or thread that sends it, and a hash of its
body; or the client, the span, and an empty text.
"""


@dataclass(slots=True)
class SessionView:
    """The state of one session that is needed to derive facts while it is recorded."""

    session_id: str
    label: Labeller
    new_id: Callable[[], str]
    prefixes: Prefixes
    _positions: Positions = field(init=False)
    _ran_early: dict[tuple[str, str], str] = field(default_factory=dict)
    """Calls whose results were recorded before the end of the response that contains the call."""
    _open_calls: OpenCalls = field(default_factory=OpenCalls)
    _attempt_of: dict[str, str] = field(default_factory=dict)
    _retries: dict[_RetryKey, tuple[str, int]] = field(default_factory=dict)
    _requests: Requests = field(default_factory=Requests)
    _provider_tools: ProviderTools = field(init=False)
    _agents: ManagedAgents = field(init=False)
    _low_limits: LowLimits = field(default_factory=LowLimits)
    effects: EffectLinks = field(default_factory=EffectLinks)
    """The links of commands and MCP calls to tool calls."""

    def __post_init__(self) -> None:
        """Start without positions."""
        self._positions = Positions(self.session_id, self.new_id, self.prefixes)
        self._provider_tools = ProviderTools(self.session_id, self.label)
        self._agents = ManagedAgents(
            self.session_id,
            self.label,
            self.new_id,
            self._positions.take_turn,
            self._usage_row,
            self.prefixes.key,
        )

    def attempt(
        self, exchange: ModelExchange, body: Body, contents: tuple[str | None, str | None]
    ) -> Iterator[Fact]:
        """Yield the facts of an attempt; `contents` are the content IDs of its request and response, if stored."""
        dialect = dialect_of(exchange.question.path)
        response = dialect.facts(exchange.answer)
        sent = sent_turns(body, dialect)
        continued = self._continues(body, dialect, sent)
        position = self._positions.of(exchange, body, sent, dialect, continued)
        position, ends_and_start = self._positions.enter(position, exchange)
        yield from ends_and_start
        yield from self._results(exchange, position, sent)
        request = self._llm_request(exchange, response.outcome)
        fact = self._fact(
            exchange, body, contents, position, response, request, dialect, sent, continued
        )
        yield fact
        yield from self._low_limits.follow(fact)
        if exchange.lost_bytes and fact.origin == "live":
            yield _truncated(fact, exchange.lost_bytes)
        yield from self._usage(exchange, fact, response, dialect)
        # The usage of an attempt precedes the end of its span, because backends export the span with its cost.
        yield from self._requests.attempt(exchange, fact)
        if position.makes_turn and body.message_count:
            yield from self._prefix(exchange, body, fact, response, dialect)
        elif body.message_count:
            self.prefixes.histories(body, dialect)
        if position.makes_turn and response.is_message:
            _remember(self._attempt_of, str(response.id), fact.attempt_id)
            _remember(self._attempt_of, f"body:{body.content_id}", fact.attempt_id)
            for block_id in response.block_ids:
                _remember(self._attempt_of, f"block:{block_id}", fact.attempt_id)
            yield from self._calls(exchange, position.place, response)
        if response.provider_calls or response.provider_results:
            limits = dialect.call_limits(body.settings)
            yield from self._provider_tools.attempt(exchange, fact, response, limits)
        self._provider_tools.limit_batch(
            dialect.batch_limits(exchange.question, body.settings, exchange.answer)
        )
        results = dialect.batch_results(exchange.question, exchange.answer)
        yield from self._provider_tools.batch(exchange, fact, results)
        yield from self._positions.leave(position, exchange, response, dialect)
        for traffic in self._agents.rest(exchange, dialect):
            yield from self._agents.exchange(exchange, fact, traffic, dialect)
        yield from self.effects.settle(exchange.started_ns)

    def drafts(
        self, exchange: ModelExchange, body: Body, contents: tuple[str | None, str | None]
    ) -> Iterator[Fact]:
        """Yield drafts of the facts of an attempt in progress, which are valid if the attempt never ends.

        This does not change the state of the session.
        """
        dialect = dialect_of(exchange.question.path)
        response = dialect.facts(exchange.answer)
        request_id, number = exchange.attempt_id, 0
        if self._retries:
            request_id, number = self._retries.get(_retry_key(exchange), (request_id, number))
        request = request_id, number + 1
        sent = sent_turns(body, dialect)
        continued = self._continues(body, dialect, sent)
        position = self._positions.of(exchange, body, sent, dialect, continued)
        fact = self._fact(exchange, body, contents, position, response, request, dialect, sent)
        fact = replace(fact, continues_attempt_id=continued)
        yield replace(fact, outcome="crashed", error_type=None)
        yield from self._usage(exchange, fact, response, dialect)

    def agent_events(self, exchange: ModelExchange, body: Body) -> list[Fact]:
        """Return the facts that follow from the events in a stream of a managed agent that have arrived since the last
        call, preceded by a draft of the stream's own attempt; an empty list if there are none.

        Args:
            exchange: the part of the exchange that has arrived.
            body: the body of its request.
        """
        dialect = dialect_of(exchange.question.path)
        traffic = self._agents.arrived(exchange, dialect)
        if traffic is None:
            return []
        started = replace(exchange, answer=replace(exchange.answer, chunks=()))
        fact = next(
            each for each in self.drafts(started, body, (None, None)) if isinstance(each, Attempt)
        )
        return [fact, *self._agents.exchange(exchange, fact, traffic, dialect)]

    def agent_drafts(self) -> Iterator[Fact]:
        """Yield drafts of the requests that a managed agent has started since the last call."""
        return self._agents.drafts()

    def forget_drafts(self) -> None:
        """Forget which drafts are written, because a segment starts."""
        self._agents.forget_drafts()

    def tool(self, exchange: ToolExchange, content: str | None) -> Iterator[Fact]:
        """Yield the facts of a tool call that the agent loop of agentobs executed."""
        lane, called_id = exchange.place.lane, exchange.called_id or exchange.question.tool_use_id
        reported_turn = exchange.place.turn
        closed = self._close_call(exchange.place, reported_turn, called_id)
        attempt_id, ordinal = closed[1:] if closed else (None, None)
        lane = closed[0] if closed else lane
        if attempt_id is None:
            _remember(self._ran_early, (lane, called_id), "")
        elif exchange.called_id:
            # The next request contains the call under its new ID.
            block = f"block:{exchange.question.tool_use_id}"
            _remember(self._attempt_of, block, attempt_id)
        result_ns = exchange.started_ns + exchange.duration_ns
        cause = cause_of_answer(exchange.answer)
        result = ToolResult(
            session_id=self.session_id,
            tool_use_id=self.label(exchange.question.tool_use_id),
            started_ns=exchange.started_ns,
            duration_ns=exchange.duration_ns,
            result_ns=result_ns,
            source="run",
            outcome=Label(exchange.answer.outcome),
            is_error=exchange.answer.is_error,
            result_bytes=json_bytes(exchange.answer.content),
            content=content,
            attempts=exchange.answer.attempts,
            lane=self.label(lane),
            text_characters=characters(exchange.answer.content),
            error_kind=_kind_of_answer(exchange.answer),
            span_id=exchange.place.span_id,
            attempt_id=attempt_id,
            ordinal=ordinal,
            **_error_fields(cause),
            lines_added=exchange.lines[0] if exchange.lines else None,
            lines_removed=exchange.lines[1] if exchange.lines else None,
        )
        yield result
        yield from self.effects.note_result(result)

    def world(self, exchange: WorldExchange, content: str | None) -> WorldAnswer:
        """Return the fact of an exchange of the agent loop with the outside world."""
        place, question = exchange.place, exchange.question
        return WorldAnswer(
            session_id=self.session_id,
            interaction_id=place.interaction_id,
            lane=self.label(place.lane),
            turn=place.turn,
            kind=Label(question.kind),
            key=self.label(question.key),
            started_ns=exchange.started_ns,
            duration_ns=exchange.duration_ns,
            answer_bytes=json_bytes(exchange.answer),
            content=content,
        )

    def end_session(self, at_ns: int) -> Iterator[Fact]:
        """Yield the ends of the requests and interactions that are open when the session ends."""
        yield from self.effects.settle()
        yield from self._requests.end_all()
        yield from self._agents.end_session(at_ns)
        yield from self._positions.end_session(at_ns)

    def _results(
        self, exchange: ModelExchange, position: Position, sent: SentTurns
    ) -> Iterator[Fact]:
        """Yield a result for each open tool call that this request answers."""
        for turn in sent.new:
            for block in turn.results:
                closed = self._close_call(position.place, exchange.place.turn, str(block.id))
                if closed is None:
                    continue
                lane, attempt_id, ordinal = closed
                result = ToolResult(
                    session_id=self.session_id,
                    tool_use_id=self.label(str(block.id)),
                    started_ns=None,
                    duration_ns=None,
                    result_ns=exchange.started_ns,
                    source="wire",
                    outcome=Label("failed" if block.is_error else "executed"),
                    is_error=block.is_error,
                    result_bytes=json_bytes(block.value),
                    content=None,
                    lane=self.label(lane),
                    text_characters=characters(block.value),
                    error_kind=error_kind(block),
                    attempt_id=attempt_id,
                    ordinal=ordinal,
                    **_error_fields(cause_of_result(block)),
                )
                yield result
                yield from self.effects.note_result(result)

    def _close_call(
        self, place: Place, reported_turn: int | None, tool_use_id: str
    ) -> tuple[str, str, int] | None:
        """Close an open call, and return its lane, its attempt, and its position in the response; None if the call is
        unknown.

        The agent loop of agentobs, the only client that names its turn, sends results in the lane of the call. Other
        clients may send them in another lane.
        """
        lanes = [place.lane]
        if reported_turn is None:
            lanes += self._open_calls.lanes(tool_use_id)
        for lane in lanes:
            if found := self._open_calls.take(lane, tool_use_id):
                return lane, *found
        return None

    def _fact(
        self,
        exchange: ModelExchange,
        body: Body,
        contents: tuple[str | None, str | None],
        position: Position,
        response: ResponseFacts,
        request: tuple[str, int],
        dialect: Dialect,
        sent: SentTurns,
        continued: str | None = None,
    ) -> Attempt:
        question, answer, place = exchange.question, exchange.answer, position.place
        request_id, number = request
        named = dialect.model_in(question.path)
        model = body.settings.get("model") or named
        return Attempt(
            session_id=self.session_id,
            interaction_id=place.interaction_id,
            lane=self.label(place.lane),
            turn=place.turn,
            llm_request_id=request_id,
            attempt_id=exchange.attempt_id,
            attempt=number,
            continues_attempt_id=continued,
            span_id=place.span_id,
            started_ns=exchange.started_ns,
            headers_ns=exchange.headers_ns,
            first_chunk_ns=answer.chunks[0].after_ns if answer.chunks else None,
            duration_ns=exchange.ended_ns,
            method=self.label(question.method),
            endpoint=dialect.endpoint(question.path),
            makes_turns=position.makes_turn,
            streamed=dialect.is_stream(answer.headers),
            model_requested=self.label(model) if isinstance(model, str) else None,
            model=self._optional_label(response.model or (named if response.is_message else None)),
            status=answer.status,
            outcome=response.outcome,
            error_type=self._error_type(response, answer),
            stop_reason=self._optional_label(response.stop_reason),
            message_id=self._optional_label(response.id) if response.is_message else None,
            request_id=self._optional_label(dialect.request_id(answer.headers)),
            retry_after_ms=dialect_of(exchange.question.path).retry_after_ms(answer.headers),
            message_count=body.message_count,
            tool_use_count=len(response.calls),
            request_bytes=body.size,
            response_bytes=sum(len(chunk.data) for chunk in answer.chunks),
            chunk_count=len(answer.chunks),
            redactions=len(body.redactions),
            request_content=contents[0],
            response_content=contents[1],
            query_source=Label(place.query_source),
            chain_id=place.chain_id,
            depth=place.depth,
            claims_success=None if response.calls else claim_of(answer, sent.last, dialect),
            adopted_span=exchange.adopted_span,
            origin=Label("replayed" if exchange.is_replayed else "live"),
            parameters=self._parameters(dialect.parameters(body.settings)),
            reported_lane=self.label(position.reported_lane) if position.reported_lane else None,
            **_timing_and_limits(answer, dialect),
        )

    def _error_type(self, response: ResponseFacts, answer: Answer) -> Label | None:
        """Return the type of the error: a class of the program's transport, or the type that the server reports."""
        if answer.failure is not None and response.error_type == answer.failure.name:
            return class_label(answer.failure.name)
        return self._optional_label(response.error_type)

    def _llm_request(self, exchange: ModelExchange, outcome: str) -> tuple[str, int]:
        """Return the ID of the LLM request that an attempt belongs to, and the number of the attempt in it, from 1.

        The SDK counts its retries in a header; the agent loop of agentobs retries under one span.
        """
        may_be_retried = outcome not in ("ok", "cancelled")
        if not self._retries and not may_be_retried:
            return exchange.attempt_id, 1  # the key, a hash of the body, is not needed
        key = _retry_key(exchange)
        if not _is_from_agent_loop(exchange) and not _retry_number(exchange):
            self._retries.pop(key, None)
        request_id, number = self._retries.pop(key, (exchange.attempt_id, 0))
        if may_be_retried:
            _remember(self._retries, key, (request_id, number + 1))
        return request_id, number + 1

    def _continues(self, body: Body, dialect: Dialect, sent: SentTurns) -> str | None:
        """Return the ID of the attempt whose response a request continues; None if it continues none."""
        if (response_id := dialect.continues(body.settings)) is not None:
            return self._attempt_of.get(response_id)
        for turn in reversed(sent.later):
            for block in turn.blocks:
                if found := self._attempt_of.get(f"block:{block.id}"):
                    return found
        if any(turn.role == "assistant" for turn in sent.later):
            return self._attempt_of.get(f"body:{body.origin}")
        return None

    def _usage(
        self, exchange: ModelExchange, fact: Attempt, response: ResponseFacts, dialect: Dialect
    ) -> Iterator[Fact]:
        rows = dialect.usage(exchange.question, exchange.answer, response, fact.model_requested)
        yield from (self._usage_row(exchange, fact, row) for row in rows)

    def _prefix(
        self,
        exchange: ModelExchange,
        body: Body,
        fact: Attempt,
        response: ResponseFacts,
        dialect: Dialect,
    ) -> Iterator[Fact]:
        """Yield the zones of a prompt, and the change in its cached prefix with the reason for a cache miss."""
        prompt, before, zones = self.prefixes.prompt_of(
            body, exchange.question.headers, self.session_id, fact.attempt_id, fact.lane, dialect
        )
        yield zones
        if response.is_message:
            found = self.prefixes.compare(
                body, self.session_id, prompt, before, response.cache_miss, self.label
            )
            if found:
                yield found

    def _usage_row(self, exchange: ModelExchange, fact: Attempt, row: Usage) -> UsageRow:
        return UsageRow(
            session_id=self.session_id,
            attempt_id=fact.attempt_id,
            at_ns=exchange.started_ns,
            iteration=row.iteration,
            kind=self.label(row.kind),
            billed=row.billed and not exchange.is_replayed,
            model=self.label(row.model),
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            reasoning_tokens=row.reasoning_tokens,
            cache_read_tokens=row.cache_read_tokens,
            cache_write_5m_tokens=row.cache_write_5m_tokens,
            cache_write_1h_tokens=row.cache_write_1h_tokens,
            web_search_requests=row.web_search_requests,
            service_tier=self._optional_label(row.service_tier),
            inference_geo=self._optional_label(row.inference_geo),
            speed=self._optional_label(row.speed),
            certainty=Label(row.certainty),
            web_fetch_requests=row.web_fetch_requests,
            code_execution_requests=row.code_execution_requests,
            server_requests=self._labeled_counts(row.server_requests),
            other_counts=self._labeled_counts(row.other_counts),
            note=self._optional_label(row.note),
            batch_result_id=self._optional_label(row.batch_result_id),
        )

    def _labeled_counts(self, counts: Mapping[str, int]) -> dict[str, int] | None:
        return {self.label(name): count for name, count in counts.items()} or None

    def _calls(
        self, exchange: ModelExchange, place: Place, response: ResponseFacts
    ) -> Iterator[Fact]:
        requested_ns = exchange.started_ns + exchange.ended_ns
        for ordinal, call in enumerate(response.calls, 1):
            tool_use_id = call.id
            change = change_of_input(call.input)
            key = place.lane, tool_use_id
            if self._ran_early.pop(key, None) is None:
                self._open_calls.add(*key, exchange.attempt_id, ordinal)
            use = ToolUse(
                session_id=self.session_id,
                interaction_id=place.interaction_id,
                lane=self.label(place.lane),
                turn=place.turn,
                attempt_id=exchange.attempt_id,
                tool_use_id=self.label(tool_use_id),
                name=self.label(call.name),
                ordinal=ordinal,
                requested_ns=requested_ns,
                input_bytes=call.input_bytes,
                input_similarity=similarity(call.input, self.prefixes.key),
                lines_added=change.added if change else None,
                lines_removed=change.removed if change else None,
            )
            yield use
            self.effects.note_call(use, call.input, exchange.started_ns)

    def _parameters(self, found: Mapping[str, bool | int | float | str]) -> dict[str, Label] | None:
        """Return the parameters of a request as labels; a text that cannot be a label becomes a digest."""
        return {Label(name): self._parameter(value) for name, value in found.items()} or None

    def _parameter(self, value: bool | int | float | str) -> Label:
        if isinstance(value, str):
            return self.label(value)
        text = json.dumps(value).replace("+", "")  # `1e+18` is not a label
        return Label(text) if is_label(text) else self.label(text)

    def _optional_label(self, value: object) -> Label | None:
        return self.label(value) if isinstance(value, str) and value else None


def _timing_and_limits(answer: Answer, dialect: Dialect) -> dict[str, Any]:
    """Return the fields of an attempt about its first token and its rate limits; their names are constants."""
    hit = dialect.limit_hit(answer)
    limits = dialect.rate_limits(answer.headers)
    return {
        "first_token_ns": dialect.first_token_ns(answer),
        "rate_limits": {constant_label(name): value for name, value in limits.items()} or None,
        "limit_hit": constant_label(hit) if hit is not None else None,
    }


def _error_fields(cause: ErrorCause | None) -> dict[str, Any]:
    """Return the fields of a tool result that describe why the call failed."""
    if cause is None:
        return {}
    return {
        "error_origin": cause.origin,
        "error_class": cause.name,
        "error_file": cause.file,
        "error_line": cause.line,
    }


def _is_from_agent_loop(exchange: ModelExchange) -> bool:
    """Return whether a request was made by the agent loop of agentobs, the only client that names its position."""
    return exchange.place.interaction_id is not None


def _retry_key(exchange: ModelExchange) -> _RetryKey:
    """Return the key of an LLM request, so that equal requests of concurrent tasks are not taken for retries."""
    if _is_from_agent_loop(exchange):
        return exchange.client, exchange.place.span_id, ""
    origin = exchange.question.origin
    return exchange.client, origin.job if origin else None, hash(exchange.question.body)


def _retry_number(exchange: ModelExchange) -> int:
    return dialect_of(exchange.question.path).retry_number(exchange.question.headers)


def _truncated(fact: Attempt, lost_bytes: int) -> Event:
    """Return the event that a body of an attempt was not recorded completely."""
    return Event(
        session_id=fact.session_id,
        interaction_id=fact.interaction_id,
        lane=fact.lane,
        turn=fact.turn,
        at_ns=fact.started_ns + fact.duration_ns,
        kind=Label("body_truncated"),
        label=Label(fact.attempt_id),
        numbers={
            "kept_bytes": (fact.request_bytes or 0) + (fact.response_bytes or 0),
            "lost_bytes": lost_bytes,
        },
        query_source=fact.query_source,
        chain_id=fact.chain_id,
        depth=fact.depth,
    )


def _remember(known: dict[K, V], key: K, value: V, most: int = 10_000) -> None:
    """Set a key; if there are more than `most` keys, forget the oldest one."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]


def _kind_of_answer(answer: ToolAnswer) -> Label | None:
    """Return `timeout` if a tool that ran failed because something took too long; None otherwise."""
    ran = answer.is_error and answer.outcome in ("failed", "executed", "substituted")
    return Label("timeout") if ran and says_timeout(answer.content) else None
