"""Intervals: the spans of a run, assembled from the facts about them.

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
from agentobs.provider.registry import samples
from agentobs.records.backend import Said, Told
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

KNOWN = 10_000
"""How many open intervals, and names of closed ones, are remembered. Our choice: about 20 MB at most."""

SAME_ID = 64
"""How many calls with one ID may wait for their results at once. Our choice: some servers use one ID for all."""

SAID_BYTES = 16 * 1024 * 1024
"""How much content is kept until its intervals end, if sessions opted in. Our choice."""

K = TypeVar("K")
V = TypeVar("V")


class Known(dict[K, V], Generic[K, V]):
    """A mapping that drops its oldest entry above a maximum number of entries."""

    def __init__(self, most: int = KNOWN) -> None:
        """Keep at most `most` entries."""
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> V | None:
        """Set a key, as the newest; return the value that was dropped for it."""
        self.pop(key, None)
        self[key] = value
        return self.pop(next(iter(self))) if len(self) > self._most else None


@dataclass(slots=True)
class Tokens:
    """The token counts of one call, in disjoint classes; only billed rows."""

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
    """One span of a run: what is known of it so far."""

    session_id: str
    conversation_id: str
    """The session that this one resumes; else its own ID."""
    trace_id: str
    span_id: str
    parent_span_id: str | None
    """The nearest exported ancestor."""
    lane: str
    name: str
    """Its kind: `interaction`, `llm_request`, `tool`, `queued`, `hook` ..."""
    label: str | None
    """The name of the agent, model, tool or hook."""
    started_ns: int
    links: tuple[tuple[str, str], ...] = ()
    """The trace and the span that started it in another trace, or in another program."""
    linked_span_id: str | None = None
    """The span that started it, if the trace of that one is no longer known."""
    interaction_id: str | None = None
    """The interaction that it belongs to. Its trace is another one if it is inside a span around the interaction."""
    metadata: Mapping[str, float | str] = field(default_factory=dict)
    """The attributes that the program set: numbers and labels."""
    is_ours: bool = True
    """Whether the program or the loop opened this span; else it was created here."""
    ended_ns: int = 0
    status: str = "ok"
    """`ok`, `error`, `cancelled` or `orphaned`."""
    error_type: str | None = None
    last_activity_ns: int | None = None
    """The time of the last activity in it, if it was orphaned."""
    attempts: int = 0
    """The number of HTTP attempts of the call so far."""
    attempt: Attempt | None = None
    """The last of them."""
    tokens: Tokens | None = None
    """The usage of all attempts."""
    spent: Spent | None = None
    """The cost of all attempts."""
    tool: ToolResult | None = None
    """The outcome of the call."""
    asked: tuple[str, int] | None = None
    """The span of the response that contains this call, and the time of the call."""
    end: InteractionEnd | None = None
    """How the interaction ended."""
    said: Said | None = None
    """The content of the last attempt, if the session opted in."""

    @property
    def is_chat(self) -> bool:
        """Whether a model answers this request."""
        if self.name != "llm_request":
            return False
        if self.attempt is None:
            return True
        return samples(self.attempt.endpoint)


class Move(NamedTuple):
    """An interval opens or closes."""

    way: Literal["opens", "closes"]
    interval: Interval


@dataclass(slots=True)
class _Call:
    """A tool call of the model."""

    use: ToolUse
    trace_id: str
    span_id: str
    parent_span_id: str | None


@dataclass(slots=True)
class _Held:
    """An attempt whose span is not known yet."""

    interval: Interval
    attempt_id: str


@dataclass(slots=True)
class Follower:
    """Assembles intervals from the facts of one process; for one thread at a time."""

    hidden: frozenset[str] = frozenset()
    """Names of spans that are not exported: their children get their parents."""
    open: Known[str, Interval] = field(default_factory=Known)
    """The open intervals, by span ID."""
    unknown_ends: int = 0
    """Ends of spans without a known start."""
    late_ends: int = 0
    """Ends of spans that had been swept: each was exported as abandoned, and no backend accepts a second end."""
    _conversations: Known[str, str] = field(default_factory=Known)
    _prompts: Known[str, InteractionStart] = field(default_factory=Known)
    """Interactions without an opened span yet."""
    _roots: Known[str, Interval] = field(default_factory=Known)
    """Interactions that got an interval here, by trace."""
    _ending: Known[str, Interval] = field(default_factory=Known)
    """Interactions whose span has ended, before the end of the interaction itself, by trace."""
    _by_attempt: Known[str, Interval] = field(default_factory=Known)
    _calls: Known[tuple[str, int], _Call] = field(default_factory=Known)
    """Calls that wait for their result, by the response that contains them and their position: IDs of calls may recur.
    """
    _named: Known[tuple[str, str, str], deque[tuple[str, int]]] = field(default_factory=Known)
    """The same by session, lane and ID, for results that do not name the response."""
    _traces: Known[str, str] = field(default_factory=Known)
    _last: Known[str, int] = field(default_factory=Known)
    """The last activity of each session."""
    _held: _Held | None = None
    _saying: dict[int, Interval] = field(default_factory=dict)
    """The intervals with content, oldest first."""
    _said_bytes: int = 0

    def follow(self, told: Told) -> Iterator[Move]:
        """Yield which intervals a fact opens and closes, in order; content is dropped after the end of its interval."""
        for move in self._followed(told):
            try:
                yield move
            finally:
                if move.way == "closes":
                    self._forget_said(move.interval)

    def _followed(self, told: Told) -> Iterator[Move]:
        fact = told.fact
        yield from self._settled(fact)
        match fact:
            case SessionStart():
                self._begun(fact)
            case InteractionStart():
                self._prompts.put(fact.interaction_id, fact)
            case SpanStart():
                yield from self._opened(fact)
            case SpanEnd():
                yield from self._closed(fact)
            case Attempt():
                self._tried(fact, told.said)
            case UsageRow():
                self._used(fact)
            case ToolUse():
                self._asked(fact)
            case ToolResult():
                yield from self._answered(fact, told.said)
            case InteractionEnd():
                yield from self._answered_all(fact)
            case SessionEnd():
                yield from self._over(fact)
            case _:
                pass

    def abandon(self) -> Iterator[Move]:
        """Yield the ends of all open intervals: no more facts will come."""
        if self._held is not None:
            yield from self._made(self._held.interval)
            self._held = None
        for interval in list(self._ending.values()):
            yield Move("closes", interval)
        self._ending.clear()
        for interval in reversed(list(self.open.values())):
            yield from self._abandoned(interval)
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

    def goes_on(self, session_id: str, conversation_id: str) -> None:
        """Set the conversation of a session that is not followed here, but continued by another one."""
        self._conversations.put(session_id, conversation_id)

    def above(self, span_id: str | None, name: str) -> Interval | None:
        """Return the open interval with a name that is a span or an ancestor of it."""
        seen: set[str] = set()
        while span_id is not None and span_id not in seen:
            seen.add(span_id)
            interval = self.open.get(span_id)
            if interval is None or interval.name == name:
                return interval
            span_id = interval.parent_span_id
        return None

    def _begun(self, start: SessionStart) -> None:
        earlier = start.continues_session_id if start.relation == "resume" else None
        known = self._conversations.get(earlier, earlier) if earlier else start.session_id
        self._conversations.put(start.session_id, known)

    def _opened(self, fact: SpanStart) -> Iterator[Move]:
        parent = self._told_parent(fact.parent_span_id)
        if fact.name == "interaction":
            self._prompts.pop(fact.trace_id, None)
        elif parent is None:
            root, moves = self._root(fact.trace_id)
            yield from moves
            parent = root.span_id if root else None
        elif fact.interaction_id and fact.interaction_id in self._prompts:
            _, moves = self._root(fact.interaction_id, started_in=fact.parent_span_id)
            yield from moves
        interval = self._interval(fact, parent)
        if self._held is not None:
            self._join(interval, self._held.interval)
            self._held = None
        yield from self._keep(interval)

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

    def _keep(self, interval: Interval) -> Iterator[Move]:
        self._traces.put(interval.span_id, interval.trace_id)
        self._happened(interval.session_id, interval.started_ns)
        forgotten = self.open.put(interval.span_id, interval)
        if interval.name not in self.hidden:
            yield Move("opens", interval)
        if forgotten is not None:
            yield from self._abandoned(forgotten)

    def _closed(self, fact: SpanEnd) -> Iterator[Move]:
        interval = self.open.pop(fact.span_id, None)
        if interval is None:
            if fact.late:
                self.late_ends += 1
            else:
                self.unknown_ends += 1
            return
        self._happened(fact.session_id, fact.ended_ns)
        interval.ended_ns, interval.status = fact.ended_ns, fact.status
        interval.error_type = fact.error_type
        if interval.tool is not None and interval.tool.is_error and interval.status == "ok":
            interval.status, interval.error_type = "error", _wrong(interval.tool)
        interval.last_activity_ns = getattr(fact, "last_activity_ns", None)
        if interval.name == "interaction" and interval.status != "orphaned":
            before = self._ending.pop(interval.trace_id, None)
            forgotten = self._ending.put(interval.trace_id, interval)
            yield from (Move("closes", each) for each in (before, forgotten) if each is not None)
        elif interval.name not in self.hidden:
            yield Move("closes", interval)

    def _tried(self, fact: Attempt, said: Said | None) -> None:
        at = self.open.get(fact.span_id or "")
        if at is not None and at.name == "llm_request":
            self._count(at, fact, said)
            return
        made = Interval(
            session_id=fact.session_id,
            conversation_id=self.conversation_of(fact.session_id),
            trace_id=self.trace_of(fact.span_id) or fact.interaction_id or fact.session_id,
            span_id=fact.attempt_id[16:],
            parent_span_id=self._told_parent(fact.span_id),
            lane=fact.lane,
            name="llm_request",
            label=fact.model_requested,
            started_ns=fact.started_ns,
            is_ours=False,
            ended_ns=fact.started_ns + fact.duration_ns,
            status=_status(fact),
            error_type=fact.error_type,
            interaction_id=fact.interaction_id,
        )
        self._count(made, fact, said)
        self._held = _Held(made, fact.attempt_id)

    def _count(self, interval: Interval, fact: Attempt, said: Said | None) -> None:
        interval.attempts += 1
        interval.attempt = fact
        self._keep_said(interval, said)
        self._by_attempt.put(fact.attempt_id, interval)

    def _used(self, row: UsageRow) -> None:
        interval = self._by_attempt.get(row.attempt_id)
        if interval is None or not row.billed:
            return
        interval.tokens = interval.tokens or Tokens()
        interval.tokens.add(row)
        interval.spent = interval.spent + cost_of(row) if interval.spent else cost_of(row)

    def _join(self, interval: Interval, held: Interval) -> None:
        """Add the details of an attempt to the span that opens for it."""
        interval.attempts, interval.attempt = held.attempts, held.attempt
        interval.tokens, interval.spent = held.tokens, held.spent
        self._keep_said(interval, held.said)
        self._forget_said(held)
        if held.attempt is not None:
            self._by_attempt.put(held.attempt.attempt_id, interval)

    def _settled(self, fact: object) -> Iterator[Move]:
        """Yield the interval of an attempt without a span, when it is complete."""
        held = self._held
        if held is None or (isinstance(fact, UsageRow) and fact.attempt_id == held.attempt_id):
            return
        if isinstance(fact, SpanStart) and fact.span_id == held.interval.span_id:
            return
        self._held = None
        yield from self._made(held.interval)

    def _made(self, interval: Interval) -> Iterator[Move]:
        """Yield an interval that was created here, complete."""
        if interval.parent_span_id is None:
            root, moves = self._root(interval.trace_id)
            yield from moves
            interval.parent_span_id = root.span_id if root else None
        self._traces.put(interval.span_id, interval.trace_id)
        yield Move("opens", interval)
        yield Move("closes", interval)

    def _asked(self, fact: ToolUse) -> None:
        request = self._by_attempt.get(fact.attempt_id)
        if request is not None:
            call = _Call(fact, request.trace_id, request.span_id, request.parent_span_id)
            self._calls.put((fact.attempt_id, fact.ordinal), call)
            named = (fact.session_id, str(fact.lane), str(fact.tool_use_id))
            places = self._named.get(named) or deque(maxlen=SAME_ID)
            places.append((fact.attempt_id, fact.ordinal))
            self._named.put(named, places)

    def _answered(self, fact: ToolResult, said: Said | None) -> Iterator[Move]:
        call = self._call_of(fact)
        at = self.above(fact.span_id, "tool")
        if at is not None:
            at.tool = fact
            self._keep_said(at, said)
            at.asked = (call.span_id, call.use.requested_ns) if call else None
        elif call is not None:
            yield from self._made(
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
                    is_ours=False,
                    ended_ns=max(fact.result_ns, call.use.requested_ns),
                    status="error" if fact.is_error else "ok",
                    error_type=_wrong(fact) if fact.is_error else None,
                    tool=fact,
                    asked=(call.span_id, call.use.requested_ns),
                    said=said,
                    interaction_id=call.use.interaction_id,
                )
            )

    def _call_of(self, fact: ToolResult) -> _Call | None:
        """Return the call that a result belongs to, and remove it from the waiting ones."""
        if fact.attempt_id is not None and fact.ordinal is not None:
            return self._calls.pop((fact.attempt_id, fact.ordinal), None)
        named = (fact.session_id, str(fact.lane or "main"), str(fact.tool_use_id))
        turn = fact.turn if fact.source == "run" else None
        for place in reversed(self._named.get(named, ())):
            call = self._calls.get(place)
            if call is not None and turn in (None, call.use.turn):
                return self._calls.pop(place)
        return None

    def _root(
        self, trace_id: str, started_in: str | None = None
    ) -> tuple[Interval | None, tuple[Move, ...]]:
        """Return the interval of an interaction without a span, and its opening if it is new.

        `started_in` is the span that its first call was made in, if that is of another trace.
        """
        if root := self._roots.get(trace_id):
            return root, ()
        start = self._prompts.pop(trace_id, None)
        if start is None:
            return None, ()
        around = self.trace_of(started_in)
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
            is_ours=False,
            links=((around, started_in),) if started_in and around else (),
            interaction_id=trace_id,
        )
        self._roots.put(trace_id, root)
        return root, tuple(self._keep(root))

    def _answered_all(self, fact: InteractionEnd) -> Iterator[Move]:
        self._happened(fact.session_id, fact.ended_ns)
        interval = self._ending.pop(fact.interaction_id, None)
        if interval is None:
            interval, moves = self._root(fact.interaction_id)
            yield from moves
            if interval is None:
                return
            self._roots.pop(fact.interaction_id, None)
            self.open.pop(interval.span_id, None)
            interval.ended_ns = fact.ended_ns
        interval.end = fact
        if fact.is_error and interval.status == "ok":
            interval.status, interval.error_type = "error", fact.result
        yield Move("closes", interval)

    def _over(self, fact: SessionEnd) -> Iterator[Move]:
        for trace_id, interval in list(self._ending.items()):
            if interval.session_id == fact.session_id:
                yield Move("closes", self._ending.pop(trace_id))
        self._happened(fact.session_id, fact.ended_ns)

    def _abandoned(self, interval: Interval) -> Iterator[Move]:
        last = self._last.get(interval.session_id, interval.started_ns)
        interval.last_activity_ns = max(last, interval.started_ns)
        interval.ended_ns, interval.status = interval.last_activity_ns, "orphaned"
        if interval.name not in self.hidden:
            yield Move("closes", interval)

    def _keep_said(self, interval: Interval, said: Said | None) -> None:
        """Keep the content of an interval until its end; if there is too much, drop that of the oldest one."""
        self._forget_said(interval)
        if said is not None:
            interval.said = said
            self._saying[id(interval)] = interval
            self._said_bytes += len(said.question) + len(said.answer)
        while self._said_bytes > SAID_BYTES and len(self._saying) > 1:
            self._forget_said(next(iter(self._saying.values())))

    def _forget_said(self, interval: Interval) -> None:
        said, interval.said = interval.said, None
        if said is not None and self._saying.pop(id(interval), None) is not None:
            self._said_bytes -= len(said.question) + len(said.answer)

    def _told_parent(self, span_id: str | None) -> str | None:
        """Return the nearest exported span at or above one."""
        while span_id is not None and (interval := self.open.get(span_id)):
            if interval.name not in self.hidden:
                return span_id
            span_id = interval.parent_span_id
        return span_id

    def _happened(self, session_id: str, at_ns: int) -> None:
        self._last.put(session_id, max(at_ns, self._last.get(session_id, 0)))


def cost_of(row: UsageRow) -> Spent:
    """Return the cost of one row of usage, at the prices in force."""
    meter = Meter()
    meter.add_facts((row,))
    return meter.total()


def tokens_of(row: UsageRow) -> Tokens:
    """Return the counts of one row."""
    tokens = Tokens()
    tokens.add(row)
    return tokens


def _status(fact: Attempt) -> str:
    if fact.outcome == "ok":
        return "ok"
    return "cancelled" if fact.outcome == "cancelled" else "error"


def _wrong(tool: ToolResult) -> str:
    """Return the error class of a failed tool call."""
    return tool.error_kind or tool.outcome


def _span_of(call: _Call) -> str:
    """Return a span ID for a call without a span: 16 hex digits, the same for the same call."""
    return digest_of(f"{call.span_id} {call.use.ordinal} {call.use.tool_use_id}", 16)


def digest_of(text: str, digits: int) -> str:
    """Return a digest of a text with this many hex digits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=digits // 2).hexdigest()


def identity(text: str, digits: int) -> str:
    """Return an ID as this many hex digits: the ID itself if it has that form, else its digest; never all zeros."""
    plain = len(text) == digits and not set(text) - _HEX
    return text if plain and int(text, 16) else digest_of(text, digits)


_HEX = frozenset("0123456789abcdef")
