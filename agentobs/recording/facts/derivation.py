"""From exchanges to facts: what one HTTP attempt says about turns, tools, usage and interactions.

A `SessionView` follows one session. Our own loop says where it is; of any other client the same things
are read off the wire: a request that goes on from an earlier answer continues its conversation, a new
prompt opens an interaction, a `tool_result` answers the call that an earlier answer made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, TypeVar
from urllib.parse import unquote

from agentobs.provider.cloud_frames import is_framed
from agentobs.provider.endpoints import endpoint
from agentobs.provider.messages import blocks, is_stream, tool_results
from agentobs.provider.response_facts import ResponseFacts, input_of, json_bytes, read_response
from agentobs.recording.facts.answer_claims import characters, claim_of, error_kind
from agentobs.recording.facts.input_similarity import similarity
from agentobs.recording.facts.open_calls import OpenCalls
from agentobs.recording.facts.prompt_prefixes import Prefixes
from agentobs.recording.facts.request_spans import Requests
from agentobs.recording.vault.body_deltas import Body
from agentobs.records.exchanges import ModelExchange, Place, ToolExchange, WorldExchange
from agentobs.records.facts import (
    Attempt,
    Fact,
    InteractionEnd,
    InteractionStart,
    ToolResult,
    ToolUse,
    UsageRow,
    WorldAnswer,
)
from agentobs.records.labels import Label, unchecked
from agentobs.records.usage import (
    Certainty,
    Usage,
    batch_results,
    not_told,
    on_platform,
    platform_of,
    usage_rows,
)

Labeller = Callable[[str], Label]
"""Makes a label of a name; what is none becomes a keyed digest."""

MESSAGES = "/v1/messages"
"""The path of the questions that make turns."""

_BATCH_RESULTS = re.compile(r"/v1/messages/batches/(?P<batch_id>[^/?]+)/results(?:\?|\Z)")
"""Where the results of a batch are fetched, as JSON lines, as often as somebody likes."""

_SAMPLING = re.compile(
    r"/v1/(?:messages|complete)(?:\?|\Z)"
    r"|/model/(?P<bedrock>[^/?]+)/invoke(?:-with-response-stream)?(?:\?|\Z)"
    r"|.*/models/(?!count-tokens:)(?P<vertex>[^/?:]+):(?:streamR|r)awPredict(?:\?|\Z)"
)
"""The paths of the questions that a model answers, and that cost: the provider's, and those of the platforms."""

_NOT_SENT = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "PoolTimeout",
        "ProxyError",
        "UnsupportedProtocol",
        "LocalProtocolError",
    }
)
"""Failures of the transport that come before a request has left."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Lane:
    turns: int = 0
    interaction_id: str | None = None
    derived: bool = False


@dataclass(slots=True)
class SessionView:
    """What the recorder knows of one session while it is recorded."""

    session_id: str
    label: Labeller
    new_id: Callable[[], str]
    prefixes: Prefixes
    _lanes: dict[str, _Lane] = field(default_factory=dict)
    _ran_early: dict[tuple[str, str], str] = field(default_factory=dict)
    """Calls whose result was there before the answer that makes them had ended."""
    _open_calls: OpenCalls = field(default_factory=OpenCalls)
    _attempt_of: dict[str, str] = field(default_factory=dict)
    _retries: dict[tuple[int, str], tuple[str, int]] = field(default_factory=dict)
    _requests: Requests = field(default_factory=Requests)

    def attempt(
        self, exchange: ModelExchange, body: Body, contents: tuple[str | None, str | None]
    ) -> Iterator[Fact]:
        """Yield the facts of one attempt; `contents` are the content ids of its two bodies, where they are kept."""
        lane = self._lanes.setdefault(exchange.place.lane, _Lane())
        response = read_response(exchange.answer)
        asks = exchange.question.path.partition("?")[0] == MESSAGES
        yield from self._interaction(exchange, body, lane, asks)
        yield from self._answered(exchange, body)
        turn = exchange.place.turn or (lane.turns + 1 if asks else None)
        place = self._place(exchange, lane, turn)
        request = self._llm_request(exchange, body, response.outcome)
        fact = self._fact(exchange, body, contents, place, response, request)
        yield fact
        yield from self._usage(exchange, fact, response)
        # The cost of an attempt is reported before the end of its span.
        yield from self._requests.attempt(exchange, fact)
        if asks and body.message_count:
            yield from self._prefix(exchange, body, fact, response)
        elif body.message_count:
            self.prefixes.know(body)
        if asks and _is_message(response):
            lane.turns = max(lane.turns, turn or 0)
            _remember(self._attempt_of, str(response.message.get("id")), fact.attempt_id)
            _remember(self._attempt_of, f"body:{body.content_id}", fact.attempt_id)
            for block_id in response.block_ids:
                _remember(self._attempt_of, f"block:{block_id}", fact.attempt_id)
            yield from self._calls(exchange, place, response)
            yield from self._finished(exchange, lane, response)

    def so_far(
        self, exchange: ModelExchange, body: Body, contents: tuple[str | None, str | None]
    ) -> Iterator[Fact]:
        """Yield an attempt that has not ended, and what it used, as they would be if it never did.

        Nothing is kept in mind of it: its end will be told as if this had never been asked.
        """
        lane = self._lanes.get(exchange.place.lane, _Lane())
        response = read_response(exchange.answer)
        asks = exchange.question.path.partition("?")[0] == MESSAGES
        turn = exchange.place.turn or (lane.turns + 1 if asks else None)
        known, number = self._retries.get(self._retry_key(exchange, body), (exchange.attempt_id, 0))
        place, request = self._place(exchange, lane, turn), (known, number + 1)
        fact = self._fact(exchange, body, contents, place, response, request)
        yield replace(fact, outcome="crashed", error_type=None)
        yield from self._usage(exchange, fact, response)

    def tool(self, exchange: ToolExchange, content: str | None) -> Iterator[Fact]:
        """Yield the facts of a tool call that our own loop ran."""
        call = exchange.place.lane, exchange.called_id or exchange.question.tool_use_id
        attempt_id, ordinal = self._open_calls.take(*call) or (None, None)
        if attempt_id is None:
            _remember(self._ran_early, call, "")
        elif exchange.called_id:
            # The next request has it by its new id.
            block = f"block:{exchange.question.tool_use_id}"
            _remember(self._attempt_of, block, attempt_id)
        answered = exchange.started_ns + exchange.duration_ns
        yield ToolResult(
            session_id=self.session_id,
            tool_use_id=self.label(exchange.question.tool_use_id),
            started_ns=exchange.started_ns,
            duration_ns=exchange.duration_ns,
            answered_ns=answered,
            source="run",
            outcome=Label(exchange.answer.outcome),
            is_error=exchange.answer.is_error,
            result_bytes=json_bytes(exchange.answer.content),
            content=content,
            tries=exchange.answer.tries,
            lane=self.label(exchange.place.lane),
            text_characters=characters(exchange.answer.content),
            span_id=exchange.place.span_id,
            attempt_id=attempt_id,
            ordinal=ordinal,
        )

    def world(self, exchange: WorldExchange, content: str | None) -> WorldAnswer:
        """Return the fact of a question to the world that our own loop asked."""
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

    def ended(self, at_ns: int) -> Iterator[Fact]:
        """Yield the ends of the calls and interactions that are open when the session ends."""
        yield from self._requests.ended()
        for name, lane in self._lanes.items():
            if lane.derived and lane.interaction_id:
                ended = self._end(lane, at_ns, "interrupted", True)
                yield replace(ended, lane=self.label(name))

    def _place(self, exchange: ModelExchange, lane: _Lane, turn: int | None) -> Place:
        interaction_id = exchange.place.interaction_id or lane.interaction_id
        return replace(
            exchange.place, session_id=self.session_id, interaction_id=interaction_id, turn=turn
        )

    def _interaction(
        self, exchange: ModelExchange, body: Body, lane: _Lane, asks: bool
    ) -> Iterator[Fact]:
        """Open an interaction for a client that does not say where it is, when a new prompt comes."""
        if exchange.place.interaction_id or not asks:
            return
        if lane.interaction_id and not _is_prompt(body):
            return
        if lane.interaction_id and lane.derived and self._is_retry(exchange, body):
            return
        if lane.interaction_id and lane.derived:
            yield self._end(lane, exchange.started_ns, "interrupted", True)
        lane.interaction_id, lane.derived = self.new_id(), True
        yield InteractionStart(
            self.session_id,
            lane.interaction_id,
            unchecked(exchange.place.lane),
            exchange.started_ns,
        )

    def _finished(
        self, exchange: ModelExchange, lane: _Lane, response: ResponseFacts
    ) -> Iterator[Fact]:
        if lane.derived and lane.interaction_id and not response.calls:
            yield self._end(lane, exchange.started_ns + exchange.ended_ns, "success", False)

    def _end(self, lane: _Lane, at_ns: int, result: str, is_error: bool) -> InteractionEnd:
        ended = InteractionEnd(
            self.session_id, lane.interaction_id or "", at_ns, Label(result), is_error
        )
        lane.interaction_id, lane.derived = None, False
        return ended

    def _answered(self, exchange: ModelExchange, body: Body) -> Iterator[Fact]:
        """Yield a result for each open tool call that this request answers."""
        for message in body.new_messages:
            for block in tool_results(message) if isinstance(message, dict) else ():
                closed = self._closed(exchange.place, str(block.get("tool_use_id")))
                if closed is None:
                    continue
                lane, attempt_id, ordinal = closed
                yield ToolResult(
                    session_id=self.session_id,
                    tool_use_id=self.label(str(block["tool_use_id"])),
                    started_ns=None,
                    duration_ns=None,
                    answered_ns=exchange.started_ns,
                    source="wire",
                    outcome=Label("failed" if block.get("is_error") else "executed"),
                    is_error=bool(block.get("is_error")),
                    result_bytes=json_bytes(block.get("content")),
                    content=None,
                    lane=self.label(lane),
                    text_characters=characters(block.get("content")),
                    error_kind=error_kind(block),
                    attempt_id=attempt_id,
                    ordinal=ordinal,
                )

    def _closed(self, place: Place, tool_use_id: str) -> tuple[str, str, int] | None:
        """Close an open call, and return its lane, attempt and place in it; None where there is none.

        Our own loop, which alone says its turn, answers a call where it was made; others may do so elsewhere.
        """
        lanes = [place.lane]
        if place.turn is None:
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
        place: Place,
        response: ResponseFacts,
        request: tuple[str, int],
    ) -> Attempt:
        question, answer = exchange.question, exchange.answer
        request_id, number = request
        model = body.head.get("model")
        return Attempt(
            session_id=self.session_id,
            interaction_id=place.interaction_id,
            lane=self.label(place.lane),
            turn=place.turn,
            llm_request_id=request_id,
            attempt_id=exchange.attempt_id,
            attempt=number,
            continues_attempt_id=self._continues(body),
            span_id=place.span_id,
            started_ns=exchange.started_ns,
            headers_ns=exchange.headers_ns,
            first_chunk_ns=answer.chunks[0].after_ns if answer.chunks else None,
            duration_ns=exchange.ended_ns,
            method=self.label(question.method),
            endpoint=endpoint(question.path),
            streamed=is_stream(answer.headers) or is_framed(answer.headers),
            model_requested=self.label(model) if isinstance(model, str) else None,
            model=self._maybe(response.message.get("model")),
            status=answer.status,
            outcome=response.outcome,
            error_type=self._maybe(response.error_type),
            stop_reason=self._maybe(response.message.get("stop_reason")),
            message_id=self._maybe(response.message.get("id")) if _is_message(response) else None,
            request_id=self._maybe(answer.headers.get("request-id")),
            retry_after_ms=_retry_after(answer.headers),
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
            claims_success=None if response.calls else claim_of(answer, _said_last(body)),
            adopted_span=exchange.adopted_span,
            origin=Label("replayed" if exchange.is_replayed else "live"),
        )

    def _llm_request(self, exchange: ModelExchange, body: Body, outcome: str) -> tuple[str, int]:
        """Return the logical request that this attempt belongs to, and its number within, from 1.

        The SDK counts its retries in a header; our own loop retries under one span.
        """
        key = self._retry_key(exchange, body)
        if not _is_ours(exchange) and _retry_count(exchange) == "0":
            self._retries.pop(key, None)
        request_id, number = self._retries.pop(key, (exchange.attempt_id, 0))
        if outcome not in ("ok", "cancelled"):
            _remember(self._retries, key, (request_id, number + 1))
        return request_id, number + 1

    def _is_retry(self, exchange: ModelExchange, body: Body) -> bool:
        return _retry_count(exchange) != "0" and self._retry_key(exchange, body) in self._retries

    def _retry_key(self, exchange: ModelExchange, body: Body) -> tuple[int, str]:
        if _is_ours(exchange):
            return exchange.client, str(exchange.place.span_id)
        return exchange.client, f"{body.message_count} messages, {body.size} bytes"

    def _continues(self, body: Body) -> str | None:
        """Return the attempt whose answer this request goes on from."""
        thread = body.head.get("thread")
        if isinstance(thread, dict) and "previous_message_id" in thread:
            return self._attempt_of.get(str(thread["previous_message_id"]))
        later = [message for message in body.later_messages if isinstance(message, dict)]
        for message in reversed(later):
            for block in blocks(message):
                block_id = block.get("tool_use_id") or block.get("id")
                if found := self._attempt_of.get(f"block:{block_id}"):
                    return found
        if any(message.get("role") == "assistant" for message in later):
            return self._attempt_of.get(f"body:{body.origin}")
        return None

    def _usage(
        self, exchange: ModelExchange, fact: Attempt, response: ResponseFacts
    ) -> Iterator[Fact]:
        counts = response.message.get("usage")
        if found := _BATCH_RESULTS.match(exchange.question.path):
            rows = list(self._batched(exchange, found["batch_id"]))
        elif isinstance(counts, dict) and _is_message(response):
            model = fact.model or self._asked_model(exchange, fact)
            rows = usage_rows(model, counts, response.certainty)
        elif _is_untold(exchange, response):
            rows = [not_told(self._asked_model(exchange, fact))]
        else:
            return
        platform = platform_of(exchange.question.path, fact.model_requested or "")
        yield from (self._usage_row(exchange, fact, on_platform(row, platform)) for row in rows)

    def _batched(self, exchange: ModelExchange, batch_id: str) -> Iterator[Usage]:
        # Of a file that broke off, nobody knows what else it had.
        whole = exchange.answer.ending == "complete"
        certainty: Certainty = "exact" if whole else "lower_bound"
        for custom_id, message in batch_results(exchange.answer.body):
            result_id = f"{batch_id}/{custom_id}"
            model = str(message.get("model"))
            yield from usage_rows(model, message["usage"], certainty, result_id)

    def _asked_model(self, exchange: ModelExchange, fact: Attempt) -> Label:
        """Return the model that was asked for; the platforms have it in their paths."""
        if fact.model_requested:
            return fact.model_requested
        found = _SAMPLING.match(exchange.question.path)
        model = found and (found["bedrock"] or found["vertex"])
        return self.label(unquote(model)) if model else Label("unknown")

    def _prefix(
        self, exchange: ModelExchange, body: Body, fact: Attempt, response: ResponseFacts
    ) -> Iterator[Fact]:
        """Say what the prompt was made of, what changed before what is new in it, and why the cache missed."""
        betas = exchange.question.headers.get("anthropic-beta")
        prompt, before, zones = self.prefixes.see(
            body, betas, self.session_id, fact.attempt_id, fact.lane
        )
        yield zones
        if _is_message(response):
            found = self.prefixes.compare(
                body, self.session_id, prompt, before, response.message, self.label
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
            service_tier=self._maybe(row.service_tier),
            inference_geo=self._maybe(row.inference_geo),
            speed=self._maybe(row.speed),
            certainty=Label(row.certainty),
            web_fetch_requests=row.web_fetch_requests,
            code_execution_requests=row.code_execution_requests,
            server_requests=self._named(row.server_requests),
            other_counts=self._named(row.other_counts),
            note=self._maybe(row.note),
            batch_result_id=self._maybe(row.batch_result_id),
        )

    def _named(self, counts: Mapping[str, int]) -> dict[str, int] | None:
        return {self.label(name): count for name, count in counts.items()} or None

    def _calls(
        self, exchange: ModelExchange, place: Place, response: ResponseFacts
    ) -> Iterator[Fact]:
        asked_ns = exchange.started_ns + exchange.ended_ns
        for ordinal, call in enumerate(response.calls, 1):
            tool_use_id = str(call.get("id"))
            made = exchange.place.lane, tool_use_id
            if self._ran_early.pop(made, None) is None:
                self._open_calls.add(*made, exchange.attempt_id, ordinal)
            yield ToolUse(
                session_id=self.session_id,
                interaction_id=place.interaction_id,
                lane=self.label(place.lane),
                turn=place.turn,
                attempt_id=exchange.attempt_id,
                tool_use_id=self.label(tool_use_id),
                name=self.label(str(call.get("name"))),
                ordinal=ordinal,
                asked_ns=asked_ns,
                input_bytes=call["input_bytes"],
                input_similarity=similarity(input_of(call), self.prefixes.key),
            )

    def _maybe(self, value: object) -> Label | None:
        return self.label(value) if isinstance(value, str) and value else None


def _is_message(response: ResponseFacts) -> bool:
    """Return whether an answer is the model's message, not a batch, a file or an error."""
    return response.message.get("role") == "assistant"


def _is_untold(exchange: ModelExchange, response: ResponseFacts) -> bool:
    """Return whether a model may have worked for this, and nobody said how much.

    What the provider refused costs nothing: an error as the status, or as the first event of a stream.
    """
    answer = exchange.answer
    if exchange.question.method != "POST" or not _SAMPLING.match(exchange.question.path):
        return False
    if answer.status is None:
        return answer.failure is None or answer.failure.name not in _NOT_SENT
    has_error = bool(response.error_type) and not answer.failure
    return 200 <= answer.status < 300 and (not has_error or _is_message(response))


def _said_last(body: Body) -> list[dict[str, Any]]:
    """Return what was said after the last answer, the latest first."""
    messages = [m for m in body.new_messages if isinstance(m, dict)]
    return list(takewhile(lambda m: m.get("role") != "assistant", reversed(messages)))


def _is_prompt(body: Body) -> bool:
    """Return whether a person speaks last: what was said after the last answer answers no tool call.

    Clients may say it in several messages, such as results in one and what to do with them in the next.
    """
    said = _said_last(body)
    spoken = any(message.get("role") == "user" for message in said)
    return spoken and not any(tool_results(message) for message in said)


def _is_ours(exchange: ModelExchange) -> bool:
    """Return whether the client said where it is: our own loop does, others do not."""
    return exchange.place.interaction_id is not None


def _retry_count(exchange: ModelExchange) -> str:
    return exchange.question.headers.get("x-stainless-retry-count", "0")


def _remember(known: dict[K, V], key: K, value: V, most: int = 10_000) -> None:
    """Set a key, and forget the oldest one beyond `most`."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]


def _retry_after(headers: dict[str, str]) -> float | None:
    for name, factor in (("retry-after-ms", 1.0), ("retry-after", 1000.0)):
        try:
            wait_ms = float(headers[name]) * factor
        except (KeyError, ValueError):
            continue
        if math.isfinite(wait_ms):
            return wait_ms
    return None
