"""Intervals: the spans of a session, assembled from the facts about them.

The start and the end of a span, and its details (the model call, its tokens and cost, the tool's result) are separate
facts. A `Follower` takes facts one by one and yields which intervals open and close, for each backend to write in its
own format. Calls, tools and interactions of agents that open no spans get intervals here.

Memory is bounded: when the table is full, the oldest open interval is closed as abandoned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, Literal, NamedTuple, TypeVar

from agentobs.ledger import Meter, Spent
from agentobs.provider.registry import runs_model
from agentobs.records.backend import ExchangeContent, WrittenFact
from agentobs.records.facts import (
    Attempt,
    InteractionEnd,
    InteractionStart,
    SessionEnd,
    SessionStart,
    SpanEnd,
    SpanStart,
    ToolResult,
    ToolUse,
    UsageRow,
)

REMEMBERED_MAX = 10_000
"""The maximum size of each table of a `Follower`, such as open intervals. Our choice: about 20 MB."""

SAME_ID_MAX = 64
"""The maximum number of pending calls with the same ID. Our choice: some servers use one ID for all calls."""

CONTENT_BYTES_MAX = 16 * 1024 * 1024
"""The maximum size of the content that is kept until its intervals end, if sessions opted in. Our choice."""

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V], Generic[K, V]):
    """A mapping that drops its oldest entry above a maximum number of entries."""

    def __init__(self, max_entries: int = REMEMBERED_MAX) -> None:
        """Keep `max_entries` entries at most."""
        super().__init__()
        self._max_entries = max_entries

    def put(self, key: K, value: V) -> V | None:
        """Set a key as the newest entry; return the value of the entry that was dropped, or None."""
        self.pop(key, None)
        self[key] = value
        return self.pop(next(iter(self))) if len(self) > self._max_entries else None


@dataclass(slots=True)
class Tokens:
    """The billed token counts of one call, in disjoint classes."""

    input: int = 0
    """Input that was neither read from nor written to the cache."""
    output: int = 0
    """Output, reasoning included."""
    reasoning: int | None = None
    """The part of output spent on thinking, if the provider reports it."""
    cache_read: int = 0
    """Input read from the cache."""
    cache_write_5m: int = 0
    """Input written to the cache for 5 minutes."""
    cache_write_1h: int = 0
    """Input written to the cache for 1 hour."""

    @property
    def prompt(self) -> int:
        """All input, cached or not."""
        return self.input + self.cache_read + self.cache_write

    @property
    def cache_write(self) -> int:
        """Input written to the cache, for any lifetime."""
        return self.cache_write_5m + self.cache_write_1h

    def add(self, row: UsageRow) -> None:
        """Add the counts of a row."""
        self.input += row.input_tokens
        self.output += row.output_tokens
        self.cache_read += row.cache_read_tokens
        self.cache_write_5m += row.cache_write_5m_tokens
        self.cache_write_1h += row.cache_write_1h_tokens
        if row.reasoning_tokens is not None:
            self.reasoning = (self.reasoning or 0) + row.reasoning_tokens


@dataclass(slots=True, eq=False)
class Interval:
    """One span of a session, with all details that are known so far."""

    session_id: str
    conversation_id: str
    """The ID of the session that this session resumes; otherwise its own ID."""
    trace_id: str
    span_id: str
    parent_span_id: str | None
    """The ID of the nearest exported ancestor."""
    lane: str
    name: str
    """The kind of the span: `interaction`, `llm_request`, `tool`, `queued`, `hook` ..."""
    label: str | None
    """The name of the agent, model, tool or hook."""
    started_ns: int
    links: tuple[tuple[str, str], ...] = ()
    """Trace ID and span ID of the spans in another trace, or in another program, that started this span."""
    linked_span_id: str | None = None
    """The ID of the span that started this span, if the trace of that span is no longer known."""
    interaction_id: str | None = None
    """The interaction that the span belongs to. The trace ID differs from this ID if a span encloses the interaction.
    """
    metadata: Mapping[str, float | str] = field(default_factory=dict)
    """The attributes that the program set: numbers and labels."""
    has_recorded_span: bool = True
    """Whether the program or the agent loop opened this span. If not, it was created here."""
    ended_ns: int = 0
    status: str = "ok"
    """`ok`, `error`, `cancelled` or `orphaned`."""
    error_type: str | None = None
    last_activity_ns: int | None = None
    """The time of the last activity in the session, if the span was orphaned."""
    attempts: int = 0
    """The number of HTTP attempts of the call so far."""
    attempt: Attempt | None = None
    """The last HTTP attempt of the call."""
    tokens: Tokens | None = None
    """The usage of all attempts."""
    spent: Spent | None = None
    """The cost of all attempts."""
    tool: ToolResult | None = None
    """The outcome of the tool call."""
    called_from: tuple[str, int] | None = None
    """The ID of the span whose response contains this tool call, and the time of the call."""
    end: InteractionEnd | None = None
    """The end of the interaction, with its result."""
    content: ExchangeContent | None = None
    """The content of the last attempt, if the session opted in."""

    @property
    def is_chat(self) -> bool:
        """Whether this is a request to a model."""
        if self.name != "llm_request":
            return False
        if self.attempt is None:
            return True
        return runs_model(self.attempt.endpoint)


class Transition(NamedTuple):
    """An interval opens or closes."""

    change: Literal["opens", "closes"]
    interval: Interval


@dataclass(slots=True)
class _Call:
    """A tool call of the model."""

    use: ToolUse
    trace_id: str
    span_id: str
    parent_span_id: str | None


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
    _calls: BoundedDict[tuple[str, int], _Call] = field(default_factory=BoundedDict)
    """Calls that have no result yet, by attempt ID and position in the response. Call IDs are not unique."""
    _call_positions: BoundedDict[tuple[str, str, str], deque[tuple[str, int]]] = field(
        default_factory=BoundedDict
    )
    """The keys of `_calls` by session, lane and call ID, for results that do not name the attempt."""
    _traces: BoundedDict[str, str] = field(default_factory=BoundedDict)
    _last_activity: BoundedDict[str, int] = field(default_factory=BoundedDict)
    """The time of the last activity of each session."""
    _held_attempt: _HeldAttempt | None = None
    _with_content: dict[int, Interval] = field(default_factory=dict)
    """The intervals with content, oldest first."""
    _content_bytes: int = 0

    def follow(self, written: WrittenFact) -> Iterator[Transition]:
        """Yield the intervals that a fact opens and closes, in order. The content of closed intervals is dropped."""
        for transition in self._transitions(written):
            try:
                yield transition
            finally:
                if transition.change == "closes":
                    self._drop_content(transition.interval)

    def _transitions(self, written: WrittenFact) -> Iterator[Transition]:
        fact = written.fact
        yield from self._complete_held_attempt(fact)
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
                self._add_attempt(fact, written.content)
            case UsageRow():
                self._add_usage(fact)
            case ToolUse():
                self._add_tool_call(fact)
            case ToolResult():
                yield from self._add_tool_result(fact, written.content)
            case InteractionEnd():
                yield from self._end_interaction(fact)
            case SessionEnd():
                yield from self._end_session(fact)
            case _:
                pass

    def abandon(self) -> Iterator[Transition]:
        """Yield the ends of all open intervals, because no more facts will come."""
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

    def _add_attempt(self, fact: Attempt, content: ExchangeContent | None) -> None:
        enclosing_span = self.open.get(fact.span_id or "")
        if enclosing_span is not None and enclosing_span.name == "llm_request":
            self._count_attempt(enclosing_span, fact, content)
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

    def _count_attempt(
        self, interval: Interval, fact: Attempt, content: ExchangeContent | None
    ) -> None:
        interval.attempts += 1
        interval.attempt = fact
        self._keep_content(interval, content)
        self._by_attempt.put(fact.attempt_id, interval)

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
        self._keep_content(interval, held.content)
        self._drop_content(held)
        if held.attempt is not None:
            self._by_attempt.put(held.attempt.attempt_id, interval)

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
        self._traces.put(interval.span_id, interval.trace_id)
        yield Transition("opens", interval)
        yield Transition("closes", interval)

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
        enclosing_span = self.enclosing(fact.span_id, "tool")
        if enclosing_span is not None:
            enclosing_span.tool = fact
            self._keep_content(enclosing_span, content)
            enclosing_span.called_from = (call.span_id, call.use.requested_ns) if call else None
        elif call is not None:
            yield from self._emit_complete(
                Interval(
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
                    content=content,
                    interaction_id=call.use.interaction_id,
                )
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

    def _keep_content(self, interval: Interval, content: ExchangeContent | None) -> None:
        """Keep the content of an interval until its end. If there is too much content, drop the oldest."""
        self._drop_content(interval)
        if content is not None:
            interval.content = content
            self._with_content[id(interval)] = interval
            self._content_bytes += len(content.question) + len(content.answer)
        while self._content_bytes > CONTENT_BYTES_MAX and len(self._with_content) > 1:
            self._drop_content(next(iter(self._with_content.values())))

    def _drop_content(self, interval: Interval) -> None:
        content, interval.content = interval.content, None
        if content is not None and self._with_content.pop(id(interval), None) is not None:
            self._content_bytes -= len(content.question) + len(content.answer)

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
    return tool.error_kind or tool.outcome


def _span_of(call: _Call) -> str:
    """Return a span ID for a call without a span: 16 hex digits, the same for the same call."""
    return digest_of(f"{call.span_id} {call.use.ordinal} {call.use.tool_use_id}", 16)


def digest_of(text: str, digits: int) -> str:
    """Return a digest of a text with this many hex digits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=digits // 2).hexdigest()


def identity(text: str, digits: int) -> str:
    """Return an ID with this many hex digits: the ID itself if it is valid and not zero, otherwise its digest."""
    plain = len(text) == digits and not set(text) - _HEX
    return text if plain and int(text, 16) else digest_of(text, digits)


_HEX = frozenset("0123456789abcdef")
