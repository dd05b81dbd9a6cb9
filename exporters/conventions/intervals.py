"""Intervals: the spans of a session, assembled from the facts about them.

The start and the end of a span, and its details (the model call, its tokens and cost, the tool's result) are separate
facts. A `Follower` takes facts one by one and yields which intervals open and close, for each backend to write in its
own format. Calls, tools and interactions of agents that open no spans get intervals here, and so do the attempts of an
LLM request that was retried.

Memory is bounded: when the table is full, the oldest open interval is closed as abandoned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentobs.ledger import Meter, Spent
from agentobs.records.backend import ExchangeContent, WrittenFact
from agentobs.records.facts import (
    Attempt,
    InteractionEnd,
    InteractionStart,
    ProviderToolResult,
    ProviderToolUse,
    SessionEnd,
    SessionStart,
    SpanEnd,
    SpanStart,
    ToolResult,
    ToolUse,
    UsageRow,
)
from exporters.conventions.bounded_dict import BoundedDict
from exporters.conventions.identities import digest_of
from exporters.conventions.interval import (
    Interval,
    Tokens,
    Transition,
    provider_tool_interval,
)
from exporters.conventions.kept_content import (
    KeptContent,
    agent_content,
    call_inputs,
    call_results,
)

SAME_ID_MAX = 64
"""The maximum number of pending calls with the same ID. Our choice: some servers use one ID for all calls."""


@dataclass(slots=True)
class _Call:
    """A tool call of the model."""

    use: ToolUse
    trace_id: str
    span_id: str
    parent_span_id: str | None


@dataclass(slots=True)
class _ProviderCall:
    """A call of a tool that the provider runs."""

    use: ProviderToolUse
    request: Interval


@dataclass(slots=True)
class _HeldAttempt:
    """An attempt whose span may still open."""

    interval: Interval
    attempt_id: str


@dataclass(slots=True)
class Follower:
    """Assembles intervals from the facts of one process; for one thread at a time."""

    hidden: frozenset[str] = frozenset()
    """Names of spans that are not exported; the parent of such a span becomes the parent of its children."""
    open: BoundedDict[str, Interval] = field(default_factory=BoundedDict)
    """The open intervals, by span ID."""
    late_ends: int = 0
    """The number of span ends that came too late: the span was exported as abandoned before, and no backend accepts a
    second end.
    """
    _conversations: BoundedDict[str, str] = field(default_factory=BoundedDict)
    _prompts: BoundedDict[str, InteractionStart] = field(default_factory=BoundedDict)
    """Interactions that have no span yet."""
    _roots: BoundedDict[str, Interval] = field(default_factory=BoundedDict)
    """The intervals that were created here for interactions without a span, by trace."""
    _ending: BoundedDict[str, Interval] = field(default_factory=BoundedDict)
    """Intervals of interactions whose span has ended but whose own end is not known yet, by trace."""
    _by_attempt: BoundedDict[str, Interval] = field(default_factory=BoundedDict)
    _by_request: BoundedDict[str, Interval] = field(default_factory=BoundedDict)
    """The intervals of LLM requests, by the ID of the request, which all its attempts have."""
    _calls: BoundedDict[tuple[str, int], _Call] = field(default_factory=BoundedDict)
    """Calls that have no result yet, by attempt ID and position in the response. Call IDs are not unique."""
    _call_positions: BoundedDict[tuple[str, str, str], deque[tuple[str, int]]] = field(
        default_factory=BoundedDict
    )
    """The keys of `_calls` by session, lane and call ID, for results that do not name the attempt."""
    _provider_calls: BoundedDict[tuple[str, int], _ProviderCall] = field(
        default_factory=BoundedDict
    )
    """Calls of tools of the provider without a result, by attempt ID and position in the response."""
    _traces: BoundedDict[str, str] = field(default_factory=BoundedDict)
    _last_activity: BoundedDict[str, int] = field(default_factory=BoundedDict)
    """The time of the last activity of each session."""
    _held_attempt: _HeldAttempt | None = None
    _held_tools: list[Interval] = field(default_factory=list)
    """Tool calls whose results are in the request that the next attempt sends."""
    _content: KeptContent = field(default_factory=KeptContent)
    _agent_lanes: BoundedDict[str, str] = field(default_factory=BoundedDict)
    """The lane of each agent with content, by the ID of its interaction or span."""

    def follow(self, written: WrittenFact) -> Iterator[Transition]:
        """Yield the intervals that a fact opens and closes, in order. The content of closed intervals is dropped."""
        for transition in self._transitions(written):
            yield from self._with_content(transition)

    def _transitions(self, written: WrittenFact) -> Iterator[Transition]:
        fact = written.fact
        yield from self._complete_held_attempt(fact)
        if not isinstance(fact, ToolResult):
            yield from self._complete_held_tools(written)
        match fact:
            case SessionStart():
                self._start_session(fact)
            case InteractionStart():
                self._prompts.put(fact.interaction_id, fact)
            case SpanStart():
                yield from self._open_span(fact)
            case SpanEnd():
                yield from self._close_span(fact)
            case Attempt():
                yield from self._add_attempt(fact, written.content)
            case UsageRow():
                self._add_usage(fact)
            case ToolUse():
                self._add_tool_call(fact)
            case ToolResult():
                yield from self._add_tool_result(fact, written.content)
            case ProviderToolUse():
                if (request := self._by_attempt.get(fact.attempt_id)) is not None:
                    call = _ProviderCall(fact, request)
                    self._provider_calls.put((fact.attempt_id, fact.ordinal), call)
            case ProviderToolResult():
                yield from self._add_provider_result(fact)
            case InteractionEnd():
                yield from self._end_interaction(fact)
            case SessionEnd():
                yield from self._end_session(fact)
            case _:
                pass

    def abandon(self) -> Iterator[Transition]:
        """Yield the ends of all open intervals, because no more facts will come."""
        for transition in self._ends_of_all():
            yield from self._with_content(transition)

    def _ends_of_all(self) -> Iterator[Transition]:
        yield from self._complete_held_tools(None)
        if self._held_attempt is not None:
            yield from self._emit_complete(self._held_attempt.interval)
            self._held_attempt = None
        for interval in list(self._ending.values()):
            yield Transition("closes", interval)
        self._ending.clear()
        for interval in reversed(list(self.open.values())):
            yield from self._abandon_interval(interval)
        self.open.clear()
        self._roots.clear()

    def trace_of(self, span_id: str | None) -> str | None:
        """Return the trace of a recently opened span, or None."""
        return self._traces.get(span_id) if span_id else None

    def call_of(self, attempt_id: str) -> Interval | None:
        """Return the interval of the call of a recent attempt, or None."""
        return self._by_attempt.get(attempt_id)

    def conversation_of(self, session_id: str) -> str:
        """Return the session that a session resumes, or the session itself."""
        return self._conversations.get(session_id, session_id)

    def set_conversation(self, session_id: str, conversation_id: str) -> None:
        """Set the conversation of an earlier session whose facts this follower does not receive."""
        self._conversations.put(session_id, conversation_id)

    def enclosing(self, span_id: str | None, name: str) -> Interval | None:
        """Return the nearest open interval with this name, starting at a span and going up."""
        seen: set[str] = set()
        while span_id is not None and span_id not in seen:
            seen.add(span_id)
            interval = self.open.get(span_id)
            if interval is None or interval.name == name:
                return interval
            span_id = interval.parent_span_id
        return None

    def _start_session(self, start: SessionStart) -> None:
        earlier = start.continues_session_id if start.relation == "resume" else None
        known = self._conversations.get(earlier, earlier) if earlier else start.session_id
        self._conversations.put(start.session_id, known)

    def _open_span(self, fact: SpanStart) -> Iterator[Transition]:
        parent = self._exported_parent(fact.parent_span_id)
        if fact.name == "interaction":
            self._prompts.pop(fact.trace_id, None)
        elif parent is None:
            root, transitions = self._root(fact.trace_id)
            yield from transitions
            parent = root.span_id if root else None
        elif fact.interaction_id and fact.interaction_id in self._prompts:
            _, transitions = self._root(fact.interaction_id, started_in=fact.parent_span_id)
            yield from transitions
        interval = self._interval(fact, parent)
        if self._held_attempt is not None:
            self._merge_attempt(interval, self._held_attempt.interval)
            self._held_attempt = None
        yield from self._add_open(interval)

    def _interval(self, fact: SpanStart, parent_span_id: str | None) -> Interval:
        links = []
        linked_trace = self._traces.get(fact.linked_span_id or "")
        if fact.linked_span_id and linked_trace:
            links.append((linked_trace, fact.linked_span_id))
        if fact.remote_parent:
            links.append((fact.remote_parent[3:35], fact.remote_parent[36:52]))
        return Interval(
            session_id=fact.session_id,
            conversation_id=self.conversation_of(fact.session_id),
            trace_id=fact.trace_id,
            span_id=fact.span_id,
            parent_span_id=parent_span_id,
            lane=fact.lane,
            name=fact.name,
            label=fact.label,
            started_ns=fact.started_ns,
            links=tuple(links),
            metadata={**(fact.numbers or {}), **(fact.labels or {})},
            linked_span_id=None if linked_trace else fact.linked_span_id,
            interaction_id=fact.interaction_id,
        )

    def _add_open(self, interval: Interval) -> Iterator[Transition]:
        self._traces.put(interval.span_id, interval.trace_id)
        self._note_activity(interval.session_id, interval.started_ns)
        forgotten = self.open.put(interval.span_id, interval)
        if interval.name not in self.hidden:
            yield Transition("opens", interval)
        if forgotten is not None:
            yield from self._abandon_interval(forgotten)

    def _close_span(self, fact: SpanEnd) -> Iterator[Transition]:
        interval = self.open.pop(fact.span_id, None)
        if interval is None:
            if fact.late:
                self.late_ends += 1
            return
        self._note_activity(fact.session_id, fact.ended_ns)
        interval.ended_ns, interval.status = fact.ended_ns, fact.status
        interval.error_type = fact.error_type
        if interval.tool is not None and interval.tool.is_error and interval.status == "ok":
            interval.status, interval.error_type = "error", _tool_error_type(interval.tool)
        interval.last_activity_ns = getattr(fact, "last_activity_ns", None)
        if interval.name == "interaction" and interval.status != "orphaned":
            previous = self._ending.pop(interval.trace_id, None)
            forgotten = self._ending.put(interval.trace_id, interval)
            yield from (
                Transition("closes", each) for each in (previous, forgotten) if each is not None
            )
        elif interval.name not in self.hidden:
            yield Transition("closes", interval)

    def _add_attempt(self, fact: Attempt, content: ExchangeContent | None) -> Iterator[Transition]:
        request = self._open_request(fact)
        if request is not None:
            before = request.attempt
            self._count_attempt(request, fact, content)
            if before is not None:
                yield from self._attempt_spans(request, before)
            return
        created = Interval(
            session_id=fact.session_id,
            conversation_id=self.conversation_of(fact.session_id),
            trace_id=self.trace_of(fact.span_id) or fact.interaction_id or fact.session_id,
            span_id=fact.attempt_id[16:],
            parent_span_id=self._exported_parent(fact.span_id),
            lane=fact.lane,
            name="llm_request",
            label=fact.model_requested,
            started_ns=fact.started_ns,
            has_recorded_span=False,
            ended_ns=fact.started_ns + fact.duration_ns,
            status=_status(fact),
            error_type=fact.error_type,
            interaction_id=fact.interaction_id,
        )
        self._count_attempt(created, fact, content)
        self._held_attempt = _HeldAttempt(created, fact.attempt_id)

    def _open_request(self, fact: Attempt) -> Interval | None:
        """Return the open interval of the LLM request that an attempt belongs to, or None.

        The attempts of the agent loop name its span. Attempts of other clients have the ID of the LLM request only.
        """
        enclosing_span = self.open.get(fact.span_id or "")
        if enclosing_span is not None and enclosing_span.name == "llm_request":
            return enclosing_span
        known = self._by_request.get(fact.llm_request_id)
        return known if known is not None and self.open.get(known.span_id) is known else None

    def _attempt_spans(self, request: Interval, before: Attempt) -> Iterator[Transition]:
        """Yield an interval for the attempt that was counted last, and for the first attempt if this is the second."""
        attempts = [request.attempt] if request.attempts > 2 else [before, request.attempt]
        for fact in attempts:
            if fact is not None:
                yield from self._emit_complete(_attempt_interval(request, fact))

    def _count_attempt(
        self, interval: Interval, fact: Attempt, content: ExchangeContent | None
    ) -> None:
        interval.attempts += 1
        interval.attempt = fact
        self._by_attempt.put(fact.attempt_id, interval)
        self._by_request.put(fact.llm_request_id, interval)
        if content is not None:
            self._content.put(interval.span_id, content)
            self._keep_calls(fact, content)
            self._keep_agent_content(fact, content)

    def _add_usage(self, row: UsageRow) -> None:
        interval = self._by_attempt.get(row.attempt_id)
        if interval is None or not row.billed:
            return
        interval.tokens = interval.tokens or Tokens()
        interval.tokens.add(row)
        interval.spent = interval.spent + cost_of(row) if interval.spent else cost_of(row)

    def _merge_attempt(self, interval: Interval, held: Interval) -> None:
        """Move the details of a held attempt to the span that was opened for it."""
        interval.attempts, interval.attempt = held.attempts, held.attempt
        interval.tokens, interval.spent = held.tokens, held.spent
        if held.attempt is not None:
            self._by_attempt.put(held.attempt.attempt_id, interval)
            self._by_request.put(held.attempt.llm_request_id, interval)

    def _complete_held_attempt(self, fact: object) -> Iterator[Transition]:
        """Yield the interval of a held attempt if this fact shows that no span will be opened for it."""
        held = self._held_attempt
        if held is None or (isinstance(fact, UsageRow) and fact.attempt_id == held.attempt_id):
            return
        if isinstance(fact, SpanStart) and fact.span_id == held.interval.span_id:
            return
        self._held_attempt = None
        yield from self._emit_complete(held.interval)

    def _emit_complete(self, interval: Interval) -> Iterator[Transition]:
        """Yield both transitions of an interval that was created here."""
        if interval.parent_span_id is None:
            root, transitions = self._root(interval.trace_id)
            yield from transitions
            interval.parent_span_id = root.span_id if root else None
        if interval.name in self.hidden:
            return
        self._traces.put(interval.span_id, interval.trace_id)
        yield Transition("opens", interval)
        yield Transition("closes", interval)

    def _complete_held_tools(self, written: WrittenFact | None) -> Iterator[Transition]:
        """Yield the tool calls whose results the preceding facts reported; the next attempt contains their content."""
        held, self._held_tools = self._held_tools, []
        content = written.content if written is not None else None
        results = call_results(content) if held and content is not None else {}
        for interval in held:
            call = self._content.pop(interval.span_id)
            outputs = results.get(str(interval.tool.tool_use_id)) if interval.tool else None
            if call is not None and outputs:
                call = ExchangeContent(call.question, outputs.popleft())
                self._content.put(interval.span_id, call)
            yield from self._emit_complete(interval)

    def _keep_calls(self, fact: Attempt, content: ExchangeContent) -> None:
        """Keep the inputs of the tool calls in a response, which `_add_tool_result` reads."""
        if fact.tool_use_count:
            for ordinal, value in enumerate(call_inputs(fact.endpoint, content), 1):
                key = f"call {fact.attempt_id} {ordinal}"
                self._content.put(key, ExchangeContent(value, b""))

    def _keep_agent_content(self, fact: Attempt, content: ExchangeContent) -> None:
        """Keep the prompt and the last response of the agent that sent a request; auxiliary requests have neither."""
        if not fact.makes_turns or fact.query_source not in ("main", "sub_agent"):
            return
        agent = self.enclosing(fact.span_id, "sub_agent")
        is_sub_agent = agent is not None and agent.name == "sub_agent"
        key = agent.span_id if agent is not None and is_sub_agent else fact.interaction_id
        if key is None or self._agent_lanes.get(key, fact.lane) != fact.lane:
            return
        self._agent_lanes.put(key, fact.lane)
        before = self._content.get(key)
        if fact.outcome == "ok" or before is None:
            self._content.put(key, agent_content(content, before))

    def _with_content(self, transition: Transition) -> Iterator[Transition]:
        """Yield a transition; the interval has its content while it closes."""
        change, interval = transition
        if change == "opens":
            yield transition
            return
        key = interval.trace_id if interval.name == "interaction" else interval.span_id
        interval.content = self._content.pop(key)
        try:
            yield transition
        finally:
            interval.content = None

    def _add_tool_call(self, fact: ToolUse) -> None:
        request = self._by_attempt.get(fact.attempt_id)
        if request is not None:
            call = _Call(fact, request.trace_id, request.span_id, request.parent_span_id)
            self._calls.put((fact.attempt_id, fact.ordinal), call)
            call_key = (fact.session_id, str(fact.lane), str(fact.tool_use_id))
            positions = self._call_positions.get(call_key) or deque(maxlen=SAME_ID_MAX)
            positions.append((fact.attempt_id, fact.ordinal))
            self._call_positions.put(call_key, positions)

    def _add_tool_result(
        self, fact: ToolResult, content: ExchangeContent | None
    ) -> Iterator[Transition]:
        call = self._call_of(fact)
        requested = self._content.pop(_call_key(call)) if call is not None else None
        enclosing_span = self.enclosing(fact.span_id, "tool")
        if enclosing_span is not None:
            enclosing_span.tool = fact
            if content is not None:
                self._content.put(enclosing_span.span_id, content)
            enclosing_span.called_from = (call.span_id, call.use.requested_ns) if call else None
        elif call is not None:
            interval = self._tool_interval(fact, call)
            if (known := content or requested) is not None:
                self._content.put(interval.span_id, known)
            if fact.source == "wire":
                self._held_tools.append(interval)
            else:
                yield from self._emit_complete(interval)

    def _tool_interval(self, fact: ToolResult, call: _Call) -> Interval:
        """Return the interval of a tool call without a span."""
        return Interval(
            session_id=fact.session_id,
            conversation_id=self.conversation_of(fact.session_id),
            trace_id=call.trace_id,
            span_id=_span_of(call),
            parent_span_id=call.parent_span_id,
            lane=call.use.lane,
            name="tool",
            label=call.use.name,
            started_ns=fact.started_ns or call.use.requested_ns,
            has_recorded_span=False,
            ended_ns=max(fact.result_ns, call.use.requested_ns),
            status="error" if fact.is_error else "ok",
            error_type=_tool_error_type(fact) if fact.is_error else None,
            tool=fact,
            called_from=(call.span_id, call.use.requested_ns),
            interaction_id=call.use.interaction_id,
        )

    def _add_provider_result(self, fact: ProviderToolResult) -> Iterator[Transition]:
        """Yield the interval of a tool that the provider ran."""
        call = self._provider_calls.pop((fact.attempt_id or "", fact.ordinal or 0), None)
        if call is not None:
            conversation_id = self.conversation_of(fact.session_id)
            yield from self._emit_complete(
                provider_tool_interval(call.use, fact, call.request, conversation_id)
            )

    def _call_of(self, fact: ToolResult) -> _Call | None:
        """Return the call that a result belongs to, and remove it from the pending calls."""
        if fact.attempt_id is not None and fact.ordinal is not None:
            return self._calls.pop((fact.attempt_id, fact.ordinal), None)
        call_key = (fact.session_id, str(fact.lane or "main"), str(fact.tool_use_id))
        turn = fact.turn if fact.source == "run" else None
        for position in reversed(self._call_positions.get(call_key, ())):
            call = self._calls.get(position)
            if call is not None and turn in (None, call.use.turn):
                return self._calls.pop(position)
        return None

    def _root(
        self, trace_id: str, started_in: str | None = None
    ) -> tuple[Interval | None, tuple[Transition, ...]]:
        """Return the interval of an interaction without a span, and its transition if it is opened now.

        `started_in` is the span in which its first call was created, if that span belongs to another trace.
        """
        if root := self._roots.get(trace_id):
            return root, ()
        start = self._prompts.pop(trace_id, None)
        if start is None:
            return None, ()
        outer_trace = self.trace_of(started_in)
        root = Interval(
            session_id=start.session_id,
            conversation_id=self.conversation_of(start.session_id),
            trace_id=trace_id,
            span_id=trace_id[16:] or trace_id,
            parent_span_id=None,
            lane=start.lane,
            name="interaction",
            label=None,
            started_ns=start.started_ns,
            has_recorded_span=False,
            links=((outer_trace, started_in),) if started_in and outer_trace else (),
            interaction_id=trace_id,
        )
        self._roots.put(trace_id, root)
        return root, tuple(self._add_open(root))

    def _end_interaction(self, fact: InteractionEnd) -> Iterator[Transition]:
        self._note_activity(fact.session_id, fact.ended_ns)
        interval = self._ending.pop(fact.interaction_id, None)
        if interval is None:
            interval, transitions = self._root(fact.interaction_id)
            yield from transitions
            if interval is None:
                return
            self._roots.pop(fact.interaction_id, None)
            self.open.pop(interval.span_id, None)
            interval.ended_ns = fact.ended_ns
        interval.end = fact
        if fact.is_error and interval.status == "ok":
            interval.status, interval.error_type = "error", fact.result
        yield Transition("closes", interval)

    def _end_session(self, fact: SessionEnd) -> Iterator[Transition]:
        for trace_id, interval in list(self._ending.items()):
            if interval.session_id == fact.session_id:
                yield Transition("closes", self._ending.pop(trace_id))
        self._note_activity(fact.session_id, fact.ended_ns)

    def _abandon_interval(self, interval: Interval) -> Iterator[Transition]:
        last = self._last_activity.get(interval.session_id, interval.started_ns)
        interval.last_activity_ns = max(last, interval.started_ns)
        interval.ended_ns, interval.status = interval.last_activity_ns, "orphaned"
        if interval.name not in self.hidden:
            yield Transition("closes", interval)

    def _exported_parent(self, span_id: str | None) -> str | None:
        """Return the span itself if it is exported, otherwise its nearest exported ancestor."""
        while span_id is not None and (interval := self.open.get(span_id)):
            if interval.name not in self.hidden:
                return span_id
            span_id = interval.parent_span_id
        return span_id

    def _note_activity(self, session_id: str, at_ns: int) -> None:
        self._last_activity.put(session_id, max(at_ns, self._last_activity.get(session_id, 0)))


def cost_of(row: UsageRow) -> Spent:
    """Return the cost of one row of usage, at the prices in force."""
    meter = Meter()
    meter.add_facts((row,))
    return meter.total()


def tokens_of(row: UsageRow) -> Tokens:
    """Return the token counts of one row of usage."""
    tokens = Tokens()
    tokens.add(row)
    return tokens


def _status(fact: Attempt) -> str:
    if fact.outcome == "ok":
        return "ok"
    return "cancelled" if fact.outcome == "cancelled" else "error"


def _tool_error_type(tool: ToolResult) -> str:
    """Return the error class of a failed tool call."""
    return tool.error_class or tool.error_kind or tool.outcome


def _attempt_interval(request: Interval, fact: Attempt) -> Interval:
    """Return the interval of one attempt of a retried LLM request. It has no tokens, because they belong to the
    request.
    """
    return Interval(
        session_id=fact.session_id,
        conversation_id=request.conversation_id,
        trace_id=request.trace_id,
        span_id=digest_of(f"attempt {fact.attempt_id}", 16),
        parent_span_id=request.span_id,
        lane=fact.lane,
        name="attempt",
        label=None,
        started_ns=fact.started_ns,
        has_recorded_span=False,
        ended_ns=fact.started_ns + fact.duration_ns,
        status=_status(fact),
        error_type=fact.error_type,
        attempt=fact,
        interaction_id=fact.interaction_id,
    )


def _call_key(call: _Call) -> str:
    """Return the key under which the input of a call is kept."""
    return f"call {call.use.attempt_id} {call.use.ordinal}"


def _span_of(call: _Call) -> str:
    """Return a span ID for a call without a span: 16 hex digits, the same for the same call."""
    return digest_of(f"{call.span_id} {call.use.ordinal} {call.use.tool_use_id}", 16)
