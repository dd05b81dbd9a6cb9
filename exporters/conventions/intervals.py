"""Intervals: the spans of a run, put together from the facts that tell of them.

A span's start, its end, and what is known of it (the model call, its tokens and cost, the tool's result) come as facts
of their own. A `Follower` takes them one by one and says which intervals open and close, for any backend to write in
its own language. Calls, tools and interactions of agents that open no spans get intervals of their own here.

What is kept is bounded: an interval that nobody ends leaves the table when it is full, as abandoned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, Literal, NamedTuple, TypeVar

from agentobs.ledger import Meter, Spent
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
"""How many open intervals, and names of closed ones, are remembered. Our choice: some 20 MB at most."""

SAME_ID = 64
"""How many calls of one id may wait for their results at once. Our choice: some servers have one id for all."""

SAID_BYTES = 16 * 1024 * 1024
"""How much of what was said is kept until the intervals it belongs to end, where sessions opted in. Our choice."""

CHAT_ENDPOINTS = ("/v1/messages", "/v1/complete")
"""Where a model is asked; the paths of the platforms end in the words of `_PLATFORMS`."""
_PLATFORMS = ("invoke", "invoke-with-response-stream")

K = TypeVar("K")
V = TypeVar("V")


class Known(dict[K, V], Generic[K, V]):
    """A mapping that forgets its oldest entry beyond a number of them."""

    def __init__(self, most: int = KNOWN) -> None:
        """Keep at most `most` entries."""
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> V | None:
        """Set a key, as the newest; returns the value that was forgotten for it."""
        self.pop(key, None)
        self[key] = value
        return self.pop(next(iter(self))) if len(self) > self._most else None


@dataclass(slots=True)
class Tokens:
    """What the provider counted for one call, in disjoint buckets; billed rows alone."""

    input: int = 0
    """Input that was neither read from nor written to the cache."""
    output: int = 0
    """Output, reasoning included."""
    reasoning: int | None = None
    """The part of output spent on thinking, where the provider says."""
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
        """Input written to the cache, for whatever time."""
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
    """The session that this one goes on from, where it was resumed; else its own id."""
    trace_id: str
    span_id: str
    parent_span_id: str | None
    """The nearest span above it that is told."""
    lane: str
    name: str
    """What it is: `interaction`, `llm_request`, `tool`, `queued`, `hook` ..."""
    label: str | None
    """Whose it is: the agent, the model, the tool, the hook."""
    started_ns: int
    links: tuple[tuple[str, str], ...] = ()
    """The trace and the span of what started it in another trace, or in another program."""
    linked_span_id: str | None = None
    """The span that started it, where its trace is not known any more."""
    interaction_id: str | None = None
    """The interaction that it is a part of. Its trace is another one where it lies in a span around that."""
    metadata: Mapping[str, float | str] = field(default_factory=dict)
    """What whoever opened it wants to be known of it: numbers and labels."""
    is_ours: bool = True
    """Whether somebody opened this span; else it was put together here."""
    ended_ns: int = 0
    status: str = "ok"
    """`ok`, `error`, `cancelled` or `orphaned`."""
    error_type: str | None = None
    last_activity_ns: int | None = None
    """When something last happened in it, where it was orphaned."""
    attempts: int = 0
    """How many HTTP tries the call took so far."""
    attempt: Attempt | None = None
    """The last of them."""
    tokens: Tokens | None = None
    """What all of them used."""
    spent: Spent | None = None
    """What all of them cost."""
    tool: ToolResult | None = None
    """What became of the call."""
    asked: tuple[str, int] | None = None
    """The span of the model's answer that made this call, and when it made it."""
    end: InteractionEnd | None = None
    """How the interaction ended."""
    said: Said | None = None
    """What was said, of the last try, where the session opted in."""

    @property
    def is_chat(self) -> bool:
        """Whether it is a question that a model answers."""
        if self.name != "llm_request":
            return False
        endpoint = self.attempt.endpoint if self.attempt else CHAT_ENDPOINTS[0]
        return endpoint in CHAT_ENDPOINTS or endpoint.rpartition("/")[2] in _PLATFORMS


class Move(NamedTuple):
    """An interval opens, or closes."""

    way: Literal["opens", "closes"]
    interval: Interval


@dataclass(slots=True)
class _Call:
    """A call that the model made."""

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
    """Puts intervals together from the facts of one process; for one thread at a time."""

    hidden: frozenset[str] = frozenset()
    """Names of spans that are not told: what lies in them hangs on what is above."""
    open: Known[str, Interval] = field(default_factory=Known)
    """The intervals that have not ended, by span id."""
    unknown_ends: int = 0
    """Ends of spans whose start was not heard, or was forgotten."""
    late_ends: int = 0
    """Ends of spans that had been swept: each was told as abandoned, and nobody takes a second end of a span."""
    _conversations: Known[str, str] = field(default_factory=Known)
    _prompts: Known[str, InteractionStart] = field(default_factory=Known)
    """Interactions for which nobody has opened a span yet."""
    _roots: Known[str, Interval] = field(default_factory=Known)
    """Interactions that got an interval here, by trace."""
    _ending: Known[str, Interval] = field(default_factory=Known)
    """Interactions whose span has ended and whose end is still to come, by trace."""
    _by_attempt: Known[str, Interval] = field(default_factory=Known)
    _calls: Known[tuple[str, int], _Call] = field(default_factory=Known)
    """Calls that wait for their result, by the answer that makes them and their place in it: ids of calls recur."""
    _named: Known[tuple[str, str, str], deque[tuple[str, int]]] = field(default_factory=Known)
    """The same by session, lane and id, for results that do not say whose they are."""
    _traces: Known[str, str] = field(default_factory=Known)
    _last: Known[str, int] = field(default_factory=Known)
    """When something last happened in a session."""
    _held: _Held | None = None
    _saying: dict[int, Interval] = field(default_factory=dict)
    """The intervals that hold what was said in them, eldest first."""
    _said_bytes: int = 0

    def follow(self, told: Told) -> Iterator[Move]:
        """Yield what a fact opens and closes, in its order; what was said in an interval is gone after its end."""
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
        """Yield the ends of all that is open: nothing more will be heard."""
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
        """Return the trace of a span that was opened not too long ago, or None."""
        return self._traces.get(span_id) if span_id else None

    def call_of(self, attempt_id: str) -> Interval | None:
        """Return the interval of the call that an attempt was made for, not too long ago, or None."""
        return self._by_attempt.get(attempt_id)

    def conversation_of(self, session_id: str) -> str:
        """Return the session that a session goes on from, or itself."""
        return self._conversations.get(session_id, session_id)

    def goes_on(self, session_id: str, conversation_id: str) -> None:
        """Say which conversation a session belongs to that is not heard of here, but gone on from."""
        self._conversations.put(session_id, conversation_id)

    def above(self, span_id: str | None, name: str) -> Interval | None:
        """Return the open interval of a name at a span, or above it."""
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
        """Give a span that opens for an attempt what is known of the attempt."""
        interval.attempts, interval.attempt = held.attempts, held.attempt
        interval.tokens, interval.spent = held.tokens, held.spent
        self._keep_said(interval, held.said)
        self._forget_said(held)
        if held.attempt is not None:
            self._by_attempt.put(held.attempt.attempt_id, interval)

    def _settled(self, fact: object) -> Iterator[Move]:
        """Yield the interval of an attempt that opened none, once nothing more is said of it."""
        held = self._held
        if held is None or (isinstance(fact, UsageRow) and fact.attempt_id == held.attempt_id):
            return
        if isinstance(fact, SpanStart) and fact.span_id == held.interval.span_id:
            return
        self._held = None
        yield from self._made(held.interval)

    def _made(self, interval: Interval) -> Iterator[Move]:
        """Yield an interval that was put together here, whole."""
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
            at.asked = (call.span_id, call.use.asked_ns) if call else None
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
                    started_ns=fact.started_ns or call.use.asked_ns,
                    is_ours=False,
                    ended_ns=max(fact.answered_ns, call.use.asked_ns),
                    status="error" if fact.is_error else "ok",
                    error_type=_wrong(fact) if fact.is_error else None,
                    tool=fact,
                    asked=(call.span_id, call.use.asked_ns),
                    said=said,
                    interaction_id=call.use.interaction_id,
                )
            )

    def _call_of(self, fact: ToolResult) -> _Call | None:
        """Return the call that a result answers, which then waits no more."""
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
        """Return the interval of an interaction that opens no span, and its opening where it is new.

        `started_in` is the span that its first call was made in, where that is of another trace.
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
        """Keep what was said in an interval until it ends, and forget that of the eldest when it is too much."""
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
        """Return the nearest span at or above one that is told."""
        while span_id is not None and (interval := self.open.get(span_id)):
            if interval.name not in self.hidden:
                return span_id
            span_id = interval.parent_span_id
        return span_id

    def _happened(self, session_id: str, at_ns: int) -> None:
        self._last.put(session_id, max(at_ns, self._last.get(session_id, 0)))


def cost_of(row: UsageRow) -> Spent:
    """Return what one row of usage costs, at the prices in force."""
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
    """Return the class of a tool's failure."""
    return tool.error_kind or tool.outcome


def _span_of(call: _Call) -> str:
    """Return a span id for a call that nobody opened a span for: the same for the same call, of 16 hex digits."""
    return digest_of(f"{call.span_id} {call.use.ordinal} {call.use.tool_use_id}", 16)


def digest_of(text: str, digits: int) -> str:
    """Return so many hex digits that stand for a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=digits // 2).hexdigest()


def identity(text: str, digits: int) -> str:
    """Return an id as so many hex digits: itself where it has that form, else its digest; never all zeros."""
    plain = len(text) == digits and not set(text) - _HEX
    return text if plain and int(text, 16) else digest_of(text, digits)


_HEX = frozenset("0123456789abcdef")
