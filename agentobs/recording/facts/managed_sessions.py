"""Managed agents: the turns, tool calls and usage of agents that the provider runs, derived from their events.

A program may see an event several times: in several streams, after a reconnect, and in lists. An event counts once, by
its ID. Times are those of the provider's clock, because a list contains no others. The events of a stream are followed
while it arrives, because an agent may run for hours.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from agentobs.provider.agent_events import AgentEvent, AgentStream, ManagedTraffic
from agentobs.provider.content_encoding import StreamDecoder
from agentobs.provider.dialect import Dialect
from agentobs.recording.facts.input_similarity import similarity
from agentobs.records.exchanges import ModelExchange, child_lane
from agentobs.records.facts import (
    Attempt,
    AttemptOutcome,
    Event,
    Fact,
    InteractionEnd,
    InteractionStart,
    ProviderToolResult,
    ProviderToolUse,
    ToolResult,
    ToolUse,
    UsageRow,
)
from agentobs.records.labels import Label
from agentobs.records.usage import Usage, unreported_usage

EVENTS_MAX = 100_000
"""The maximum number of events of a session that are remembered by ID; beyond this number, the oldest are forgotten.
Our choice.
"""

UNKNOWN_MODEL = "unknown"
"""The model of an agent whose session was not seen; no price is known for it."""

_SUCCESS, _INTERRUPTED = Label("success"), Label("interrupted")

UsageRowOf = Callable[[ModelExchange, Attempt, Usage], UsageRow]


@dataclass(slots=True, order=True)
class _Request:
    """A request that the provider sent to a model."""

    started_ns: int
    attempt_id: str
    start: AgentEvent = field(compare=False)
    """Its first event; the event of its end if the start was not seen."""
    lane: str = field(compare=False)
    turn: int | None = field(compare=False)
    interaction_id: str = field(compare=False)
    uses: Counter[str] = field(default_factory=Counter, compare=False)
    """The calls of each tool so far."""
    calls: Counter[str] = field(default_factory=Counter, compare=False)
    """The calls so far, by where they run."""


@dataclass(slots=True)
class _Call:
    """A tool call without a result."""

    request: _Request
    ordinal: int
    runs_on: str
    at_ns: int


@dataclass(slots=True, order=True)
class _Interaction:
    started_ns: int
    interaction_id: str
    ended_ns: int | None = field(default=None, compare=False)

    def contains(self, at_ns: int) -> bool:
        """Return whether a time is in the interaction."""
        return self.started_ns <= at_ns and (self.ended_ns is None or at_ns <= self.ended_ns)


@dataclass(slots=True)
class _Agent:
    """One session of an agent that the provider runs."""

    id: str
    lane: str
    """The lane of the program that observes it."""
    dialect: Dialect
    observed: tuple[ModelExchange, Attempt]
    """The last exchange that contained its events."""
    interactions: list[_Interaction] = field(default_factory=list)
    requests: dict[str | None, list[_Request]] = field(default_factory=dict)
    """The requests of each thread, by the time of their start."""
    open: dict[str, _Request] = field(default_factory=dict)
    """The requests that have not ended, by the ID of their start."""
    calls: dict[str, _Call] = field(default_factory=dict)
    early_results: dict[str, tuple[AgentEvent, int]] = field(default_factory=dict)
    """Results whose calls were not seen yet, by the ID of the call, with their times."""
    last_error: tuple[int, str] | None = None
    """The time and the type of its last error."""
    unanswered: tuple[ModelExchange, Attempt] | None = None
    """The exchange that sent a prompt, until a request is seen."""


@dataclass(slots=True)
class _ArrivingStream:
    """The reader of an event stream that has not ended."""

    reader: AgentStream
    decoder: StreamDecoder
    chunks: int = 0
    """The number of chunks that were read."""


@dataclass(slots=True)
class ManagedAgents:
    """The agents that the provider runs, according to the exchanges of one session."""

    session_id: str
    label: Callable[[str], Label]
    new_id: Callable[[], str]
    take_turn: Callable[[str], int]
    usage_row: UsageRowOf
    key: bytes
    _agents: dict[str, _Agent] = field(default_factory=dict)
    _models: dict[str, str] = field(default_factory=dict)
    _primary: set[str] = field(default_factory=set)
    _seen: dict[tuple[str, str], None] = field(default_factory=dict)
    _streams: dict[str, _ArrivingStream] = field(default_factory=dict)
    """The streams that have not ended, by the attempt of their request."""
    _drafted: set[str] = field(default_factory=set)
    """The requests that have not ended, and whose drafts are in the current segment."""

    def arrived(self, exchange: ModelExchange, dialect: Dialect) -> ManagedTraffic | None:
        """Return the events of a stream in progress that have arrived since the last call; None if there are none."""
        stream = self._streams.get(exchange.attempt_id)
        if stream is None:
            reader = dialect.agent_stream(exchange.question, exchange.answer)
            if reader is None:
                return None
            stream = _ArrivingStream(reader, StreamDecoder(exchange.answer.encoding))
            self._streams[exchange.attempt_id] = stream
        new = exchange.answer.chunks[stream.chunks :]
        stream.chunks += len(new)
        data = b"".join(part for chunk in new for part in stream.decoder.decode(chunk.data))
        traffic = stream.reader.read(data) if data else None
        return traffic if traffic is not None and traffic.events else None

    def rest(self, exchange: ModelExchange, dialect: Dialect) -> list[ManagedTraffic]:
        """Return what an exchange that has ended reveals, without the events that have been returned before."""
        stream = self._streams.pop(exchange.attempt_id, None)
        if stream is None:
            traffic = dialect.managed_traffic(exchange.question, exchange.answer)
            return [] if traffic is None else [traffic]
        rest = exchange.answer.body[stream.reader.size :]
        return [stream.reader.read(rest), stream.reader.end()]

    def exchange(
        self, exchange: ModelExchange, fact: Attempt, traffic: ManagedTraffic, dialect: Dialect
    ) -> Iterator[Fact]:
        """Yield the facts that follow from the new events in an exchange.

        Args:
            exchange: the exchange.
            fact: its attempt.
            traffic: what it reveals.
            dialect: the dialect of its path.
        """
        self._models.update(traffic.models)
        self._primary |= traffic.primary_threads
        if traffic.session_id is None:
            return
        agent = self._agents.get(traffic.session_id)
        if agent is None:
            observed = _without_body(exchange), fact
            agent = _Agent(traffic.session_id, fact.lane, dialect, observed)
            self._agents[traffic.session_id] = agent
        agent.observed = _without_body(exchange), fact
        for event in traffic.events:
            key = agent.id, event.id
            if key in self._seen:
                continue
            self._seen[key] = None
            if len(self._seen) > EVENTS_MAX:
                del self._seen[next(iter(self._seen))]
            at_ns = exchange.started_ns if event.at_ns is None else event.at_ns
            yield from self._follow(agent, event, at_ns)

    def drafts(self) -> Iterator[Fact]:
        """Yield the attempts that have started since the last call, as if the process had ended during them."""
        for agent in self._agents.values():
            for request in agent.open.values():
                if request.attempt_id not in self._drafted:
                    self._drafted.add(request.attempt_id)
                    yield from self._end_request(
                        agent, request, request.start, request.started_ns, "crashed"
                    )

    def forget_drafts(self) -> None:
        """Forget which drafts are written, because a segment starts."""
        self._drafted.clear()

    def end_session(self, at_ns: int) -> Iterator[Fact]:
        """Yield the requests that have not ended, prompts whose usage was not seen, and the ends of interactions."""
        for agent in self._agents.values():
            for request in list(agent.open.values()):
                yield from self._end_request(agent, request, request.start, at_ns, "cut")
            agent.open.clear()
            if agent.unanswered is not None:
                model = self._models.get(agent.id, UNKNOWN_MODEL)
                yield self.usage_row(*agent.unanswered, unreported_usage(model))
            for each in agent.interactions:
                if each.ended_ns is None:
                    yield self._end_interaction(agent, each, max(at_ns, each.started_ns))

    def _follow(self, agent: _Agent, event: AgentEvent, at_ns: int) -> Iterator[Fact]:
        attempt_id = None
        match event.kind:
            case "prompt":
                if not any(agent.requests.values()):
                    agent.unanswered = agent.observed
                yield from self._interaction(agent, at_ns)[1]
            case "request_start":
                request, facts = self._start_request(agent, event, at_ns)
                attempt_id = request.attempt_id
                yield from facts
                agent.open[event.id] = request
            case "request_end":
                known = agent.open.pop(event.refers_to or "", None)
                facts = []
                if known is None:
                    known, facts = self._start_request(agent, event, at_ns)
                attempt_id = known.attempt_id
                yield from facts
                outcome: AttemptOutcome = "stream_error" if event.is_error else "ok"
                yield from self._end_request(agent, known, event, at_ns, outcome)
            case "call":
                request, facts = self._request_at(agent, event, at_ns)
                attempt_id = request.attempt_id
                yield from facts
                yield self._call(agent, request, event, at_ns)
                if (early := agent.early_results.pop(event.id, None)) is not None:
                    yield self._result(agent.calls.pop(event.id), *early)
            case "result":
                if (call := agent.calls.pop(event.refers_to or "", None)) is not None:
                    attempt_id = call.request.attempt_id
                    yield self._result(call, event, at_ns)
                elif len(agent.early_results) < EVENTS_MAX:
                    agent.early_results[event.refers_to or ""] = event, at_ns
            case "error":
                agent.last_error = at_ns, event.word or event.type
            case "idle" | "end":
                yield from self._stop(agent, event, at_ns)
            case _:
                pass
        yield self._event(agent, event, at_ns, attempt_id)

    def _interaction(self, agent: _Agent, at_ns: int) -> tuple[_Interaction, list[Fact]]:
        """Return the interaction at a time, with its start if it is new."""
        for each in reversed(agent.interactions):
            if each.contains(at_ns):
                return each, []
        new = _Interaction(at_ns, self.new_id())
        insort(agent.interactions, new)
        lane = self.label(agent.lane)
        return new, [InteractionStart(self.session_id, new.interaction_id, lane, at_ns)]

    def _stop(self, agent: _Agent, event: AgentEvent, at_ns: int) -> Iterator[Fact]:
        """Yield the end of the interaction that an agent has finished."""
        if event.kind == "idle" and event.ending is None:
            return
        found = next((each for each in agent.interactions if each.contains(at_ns)), None)
        if found is None or found.ended_ns is not None:
            return
        if event.ending is not None:
            name, is_error = event.ending
            result = _SUCCESS if name == _SUCCESS else self.label(name)
        else:
            result = Label("terminated")
            is_error = agent.last_error is not None and found.contains(agent.last_error[0])
        yield self._end_interaction(agent, found, at_ns, result, is_error=is_error)

    def _end_interaction(
        self,
        agent: _Agent,
        interaction: _Interaction,
        at_ns: int,
        result: Label = _INTERRUPTED,
        *,
        is_error: bool = True,
    ) -> InteractionEnd:
        interaction.ended_ns = at_ns
        return InteractionEnd(
            self.session_id,
            interaction.interaction_id,
            at_ns,
            result,
            is_error,
            lane=self.label(agent.lane),
        )

    def _start_request(
        self, agent: _Agent, event: AgentEvent, at_ns: int
    ) -> tuple[_Request, list[Fact]]:
        interaction, facts = self._interaction(agent, at_ns)
        lane, agent.unanswered = self._lane(agent, event), None
        name = f"{self.session_id} {agent.id} {event.refers_to or event.id}"
        request = _Request(
            at_ns,
            hashlib.blake2b(name.encode(), digest_size=16).hexdigest(),
            event,
            lane,
            None if event.is_evaluation else self.take_turn(lane),
            interaction.interaction_id,
        )
        insort(agent.requests.setdefault(event.thread_id, []), request)
        return request, facts

    def _request_at(
        self, agent: _Agent, event: AgentEvent, at_ns: int
    ) -> tuple[_Request, list[Fact]]:
        """Return the request whose response contains a call: the last one of its thread before the call."""
        for each in reversed(agent.requests.get(event.thread_id, ())):
            if each.started_ns <= at_ns and each.turn is not None:
                return each, []
        return self._start_request(agent, event, at_ns)

    def _lane(self, agent: _Agent, event: AgentEvent) -> str:
        if event.thread_id is None or event.thread_id in self._primary:
            return agent.lane
        return child_lane(agent.lane, event.thread_id)

    def _end_request(
        self,
        agent: _Agent,
        request: _Request,
        event: AgentEvent,
        at_ns: int,
        outcome: AttemptOutcome,
    ) -> Iterator[Fact]:
        """Yield the attempt of a request, and its usage."""
        if outcome != "crashed":
            self._drafted.discard(request.attempt_id)
        exchange, observed = agent.observed
        model = self._models.get(event.thread_id or "") or self._models.get(agent.id)
        error = agent.last_error if outcome == "stream_error" else None
        fact = Attempt(
            session_id=self.session_id,
            interaction_id=request.interaction_id,
            lane=self.label(request.lane),
            turn=request.turn,
            llm_request_id=request.attempt_id,
            attempt_id=request.attempt_id,
            attempt=1,
            continues_attempt_id=None,
            span_id=None,
            started_ns=request.started_ns,
            headers_ns=None,
            first_chunk_ns=None,
            duration_ns=max(at_ns - request.started_ns, 0),
            method=observed.method,
            endpoint=agent.dialect.managed_endpoint or observed.endpoint,
            makes_turns=request.turn is not None,
            streamed=False,
            model_requested=self.label(model) if model else None,
            model=self.label(model) if model else None,
            status=None,
            outcome=outcome,
            error_type=self.label(error[1]) if error and error[0] >= request.started_ns else None,
            stop_reason=None,
            message_id=None,
            request_id=None,
            retry_after_ms=None,
            message_count=None,
            tool_use_count=request.calls["client"],
            request_bytes=None,
            response_bytes=None,
            chunk_count=None,
            redactions=None,
            request_content=None,
            response_content=None,
            query_source=self._source(agent, request),
            origin=Label("managed"),
        )
        yield fact
        for row in agent.dialect.managed_usage(agent.id, event, model or UNKNOWN_MODEL):
            yield _at(self.usage_row(exchange, fact, row), request.started_ns)

    def _source(self, agent: _Agent, request: _Request) -> Label:
        if request.turn is None:
            return Label("side")
        return Label("main" if request.lane == agent.lane else "sub_agent")

    def _call(self, agent: _Agent, request: _Request, event: AgentEvent, at_ns: int) -> Fact:
        request.calls[event.runs_on] += 1
        request.uses[event.name] += 1
        ordinal = request.calls[event.runs_on]
        agent.calls[event.id] = _Call(request, ordinal, event.runs_on, at_ns)
        shared: dict[str, Any] = {
            "session_id": self.session_id,
            "interaction_id": request.interaction_id,
            "lane": self.label(request.lane),
            "turn": request.turn,
            "attempt_id": request.attempt_id,
            "tool_use_id": self.label(event.id),
            "name": self.label(event.name),
            "ordinal": ordinal,
            "requested_ns": at_ns,
            "input_bytes": event.input_bytes,
            "query_source": self._source(agent, request),
        }
        if event.runs_on == "client":
            return ToolUse(**shared, input_similarity=similarity(event.input, self.key))
        return ProviderToolUse(
            **shared,
            server=self.label(event.server) if event.server else None,
            is_timed=True,
            use=request.uses[event.name],
            max_uses=None,
            max_result_tokens=None,
            caller_id=None,
        )

    def _result(self, call: _Call, event: AgentEvent, at_ns: int) -> Fact:
        request = call.request
        shared: dict[str, Any] = {
            "session_id": self.session_id,
            "interaction_id": request.interaction_id,
            "lane": self.label(request.lane),
            "turn": request.turn,
            "attempt_id": request.attempt_id,
            "ordinal": call.ordinal,
            "tool_use_id": self.label(event.refers_to or ""),
            "outcome": Label("failed" if event.is_error else "executed"),
            "is_error": event.is_error,
            "result_ns": at_ns,
            "result_bytes": event.result_bytes,
            "query_source": Label("main"),
        }
        if call.runs_on == "client":
            return ToolResult(
                **shared, started_ns=None, duration_ns=None, source="wire", content=None
            )
        return ProviderToolResult(
            **shared,
            result_attempt_id=request.attempt_id,
            type=self.label(event.type),
            duration_ns=max(at_ns - call.at_ns, 0),
            error_code=None,
            items=event.items,
            return_code=None,
            stop_reason=None,
            iteration=None,
            by_client=event.runs_on == "client",
        )

    def _event(self, agent: _Agent, event: AgentEvent, at_ns: int, attempt_id: str | None) -> Event:
        found = next((each for each in agent.interactions if each.contains(at_ns)), None)
        labels = {
            "managed_session_id": agent.id,
            "managed_event_id": event.id,
            "managed_thread_id": event.thread_id,
            "attempt_id": attempt_id,
            "managed_word": event.word,
            **event.labels,
        }
        return Event(
            session_id=self.session_id,
            interaction_id=found.interaction_id if found else None,
            lane=self.label(self._lane(agent, event)),
            turn=None,
            at_ns=at_ns,
            kind=Label("managed_agent"),
            label=self.label(event.type),
            numbers={Label(name): float(value) for name, value in event.numbers.items()},
            labels={Label(name): self.label(text) for name, text in labels.items() if text},
        )


def _without_body(exchange: ModelExchange) -> ModelExchange:
    """Return an exchange that does not keep the bytes of its response in memory."""
    return replace(exchange, answer=replace(exchange.answer, chunks=()))


def _at(row: UsageRow, at_ns: int) -> UsageRow:
    """Return a usage row with the time of its request, which determines the price."""
    return replace(row, at_ns=at_ns)
