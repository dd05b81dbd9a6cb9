"""Spans: intervals that always end.

A start is recorded immediately. The code that opens a span holds its handle and closes it, from any task or thread;
closing it again has no effect. If a handle is garbage collected without having been closed, its span ends immediately
as `orphaned`. `sweep` ends spans whose handles are still held but that had no activity for too long. If such a span is
closed later, this is recorded as a late end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import FrameType, TracebackType

from agentobs import world
from agentobs.records.clear_text import class_label, declared_label
from agentobs.records.exchanges import Place
from agentobs.records.facts import SpanEnd, SpanStart, SpanStatus
from agentobs.records.labels import Label
from agentobs.records.metadata import Metadata, numbers_and_labels
from agentobs.records.record_factory import maker
from agentobs.records.span_names import RESERVED_SPAN_NAMES
from agentobs.runtime import process
from agentobs.sink import sink
from agentobs.tracing.places import (
    Frame,
    Opened,
    leave,
    nearest,
    open_spans,
    opened_here,
    place,
    step_in,
)
from agentobs.tracing.propagation import remote_parent


@dataclass(frozen=True, slots=True)
class SpanStatistics:
    """Counts of the spans of this process."""

    open: int
    """Spans that have not ended."""
    orphaned: int
    """Spans that were not closed: `sweep` ended them, or their handles were garbage collected."""
    late: int
    """The orphaned spans that were closed later."""


class State:
    """The counts of spans of this process."""

    def __init__(self) -> None:
        self.swept: dict[str, None] = {}
        """The spans that `sweep` has ended and whose handles still exist, by ID."""
        self.orphaned = self.late = 0
        self.lock = threading.RLock()
        """Guards the counts. Reentrant, because a finalizer or a signal handler may end a span while the lock is held.
        """


_place, _span_start, _span_end = maker(Place), maker(SpanStart), maker(SpanEnd)


class Span:
    """The handle of a span; its holder must call `close`."""

    __slots__ = ("__weakref__", "_opened")

    def __init__(self, opened: Opened | None) -> None:
        """Create the handle of a span; `opened` is None if the span is not recorded."""
        self._opened = opened

    @property
    def span_id(self) -> str | None:
        """The ID of the span, 16 hex digits; None if it is not recorded."""
        return self._opened.span_id if self._opened else None

    @property
    def place(self) -> Place | None:
        """The place inside the span; None if it is not recorded."""
        return self._opened.place if self._opened else None

    def close(self, error: BaseException | None = None, *, cancelled: bool = False) -> bool:
        """End the span, from any task or thread; return whether this call ended it. A second call has no effect.

        Args:
            error: the exception that ended the span; only its class is recorded, never its text.
            cancelled: whether the work in the span was stopped from outside.
        """
        opened = self._opened
        if opened is None or opened.has_ended:
            return False
        status: SpanStatus = "cancelled" if cancelled else "error" if error is not None else "ok"
        return _end(opened, status, error)

    @contextlib.contextmanager
    def current(self) -> Iterator[Span]:
        """Make the span the current one while the context is active; this does not end it."""
        if self._opened is None:
            yield self
            return
        frame = step_in(self._opened, is_generators=False)
        try:
            yield self
        finally:
            leave(frame)

    def __del__(self) -> None:
        """End the span as orphaned if it was not closed."""
        try:
            if self._opened is not None and not self._opened.has_ended:
                _end_collected(self._opened)
        except Exception:  # the interpreter may be shutting down
            pass


class SpanBlock:
    """A context manager, sync or async, that opens a span; see `span`."""

    __slots__ = ("_frame", "_labels", "_name", "_numbers", "_span")

    def __init__(
        self, name: str, numbers: dict[str, float] | None, labels: dict[str, Label] | None
    ) -> None:
        """Prepare a block; the span starts when the block is entered."""
        self._name, self._numbers, self._labels = name, numbers, labels
        _check(name)
        self._span: Span | None = None
        self._frame: Frame | None = None

    def __enter__(self) -> Span:
        """Start the span and enter it."""
        return self._enter(sys._getframe(1))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the span.

        Its status is `error` if an `Exception` propagates, and `cancelled` if any other exception does, such as a task
        cancellation or the closing of a generator.
        """
        if self._frame is not None:
            leave(self._frame)
        if self._span is not None:
            self._span.close(error, cancelled=not isinstance(error, Exception | None))
        self._span = self._frame = None

    async def __aenter__(self) -> Span:
        """Start the span and enter it."""
        return self._enter(sys._getframe(1))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the span, like `__exit__`."""
        self.__exit__(kind, error, traceback)

    def _enter(self, caller: FrameType | None) -> Span:
        self._span = opened = _opened_here(self._name, self._numbers, self._labels)
        if opened._opened is not None:
            flags = caller.f_code.co_flags if caller is not None else 0
            is_generators = flags & (CO_GENERATOR | CO_ASYNC_GENERATOR) != 0
            self._frame = step_in(opened._opened, is_generators=is_generators)
        return opened


def span(name: str, /, **metadata: Metadata) -> SpanBlock:
    """Return a context manager, sync or async, that opens a span; everything in the block belongs to the span.

    The span ends with the block, with the status `ok`, `error` or `cancelled`. In a generator, it ends with the
    generator, even if other code closes the generator. Outside a session, it belongs to the session of the process, if
    this process records.

    Args:
        name: the name of the span, `[A-Za-z0-9._:-]{1,128}`; for other names, the store shows a digest. Reserved
            span names are not allowed.
        metadata: attributes: booleans, numbers and labels. A plain string is not a label, see `agentobs.Label`.

    Raises:
        TypeError: a value may contain content.
        ValueError: a number is not finite, or the name is reserved.
    """
    return SpanBlock(name, *numbers_and_labels(metadata))


def open_span(name: str, /, **metadata: Metadata) -> Span:
    """Open a span under the current span, and return its handle, which the caller must close.

    The span does not become the current span; use `with handle.current():` for that.

    Args:
        name: the name of the span, `[A-Za-z0-9._:-]{1,128}`; for other names, the store shows a digest. Reserved
            span names are not allowed.
        metadata: attributes: booleans, numbers and labels. A plain string is not a label, see `agentobs.Label`.

    Raises:
        TypeError: a value may contain content.
        ValueError: a number is not finite, or the name is reserved.
    """
    _check(name)
    return _opened_here(name, *numbers_and_labels(metadata))


def _check(name: str) -> None:
    """Check that a name is not reserved for built-in spans.

    Raises:
        ValueError: the name is reserved.
    """
    if name in RESERVED_SPAN_NAMES:
        raise ValueError(
            f"{name} is reserved for agentobs' own spans (docs/spans.md): use app.{name}"
        )


def begin(
    name: str,
    here: Place,
    *,
    label: Label | None = None,
    trace_id: str | None = None,
    is_within: bool = False,
    expected_s: float = 0.0,
) -> Span:
    """Open a built-in span under the span at `here`, and return its handle.

    Args:
        name: a built-in span name, see `docs/spans.md`.
        here: the place of the span.
        label: the label of the span, such as the model or the tool.
        trace_id: the ID of a separate trace, which is linked to the span at `here`; by default, the new span belongs to
            the trace of that span.
        is_within: whether the separate trace ends before the span at `here`. If so, its activity counts as activity of
            that span.
        expected_s: the additional time for which the span may have no activity, compared with other spans, in seconds.
    """
    opened = open_spans.get(here.span_id) if here.span_id else None
    if trace_id is None:
        return _opened(_named(name), here, opened, label=label, expected_s=expected_s)
    return _opened(
        _named(name),
        replace(here, span_id=None),
        None,
        label=label,
        linked_span_id=here.span_id,
        trace_id=trace_id,
        enclosing=opened if is_within else None,
        expected_s=expected_s,
    )


@functools.cache
def _named(name: str) -> Label:
    """Return a built-in span name as a label; cached, because there are few of them."""
    return Label(name)


def _opened_here(
    name: str, numbers: dict[str, float] | None, labels: dict[str, Label] | None
) -> Span:
    here, current = place(), opened_here()
    if here is None:
        here = process.span_place_outside() if process.span_place_outside else None
    if here is None:
        return Span(None)
    return _opened(declared_label(name), here, current, numbers=numbers, labels=labels)


def _opened(
    name: Label,
    here: Place,
    current: Opened | None,
    *,
    label: Label | None = None,
    linked_span_id: str | None = None,
    trace_id: str | None = None,
    enclosing: Opened | None = None,
    expected_s: float = 0.0,
    numbers: Mapping[str, float] | None = None,
    labels: Mapping[str, Label] | None = None,
) -> Span:
    """Open a span under the nearest open span.

    If the current span has ended, the new span links to it. If no enclosing span is open, the new span is the root of a
    separate trace, because an operation that outlives an interaction is not a part of that interaction.

    Args:
        name: the name of the span.
        here: the place of the span.
        current: the current span, even if it has ended; None if there is none.
        label: the label of the span.
        linked_span_id: a span of another trace to link to.
        trace_id: the ID of a separate trace.
        enclosing: the span that outlives the separate trace, and whose activity includes that of the trace.
        expected_s: see `begin`.
        numbers: its attributes that are numbers.
        labels: its attributes that are labels.
    """
    now_ns, parent_span_id = world.monotonic(), here.span_id
    parent = nearest(current)
    if parent is not None:
        parent_span_id, trace_id = parent.span_id, parent.trace_id
        if parent.last_ns < now_ns:
            parent.last_ns = now_ns
    elif current is not None:
        parent_span_id, trace_id = None, world.new_id()
    if current is not None and parent is not current:
        linked_span_id = linked_span_id or current.span_id
    trace_id = trace_id or here.interaction_id or here.session_id
    span_id = world.new_span_id()
    inside = _place(
        here.session_id,
        here.interaction_id,
        here.lane,
        here.turn,
        span_id,
        here.query_source,
        here.chain_id,
        here.depth,
    )
    opened = Opened(inside, span_id, trace_id, parent or enclosing, now_ns, name)
    if expected_s:
        opened.due_ns += int(expected_s * 1e9)
    is_root = parent_span_id is None and linked_span_id is None
    start = _span_start(
        here.session_id,
        trace_id,
        span_id,
        parent_span_id,
        here.lane,
        name,
        label,
        world.now(),
        linked_span_id,
        remote_parent(here.session_id) if is_root else None,
        numbers,
        labels,
        here.interaction_id,
        here.turn,
        here.query_source,
        here.chain_id,
        here.depth,
    )
    handle = Span(opened)
    open_spans[span_id] = opened
    sink.emit(start)
    return handle


def _end(opened: Opened, status: SpanStatus, error: BaseException | None) -> bool:
    """End a span; return whether it was open, or was ended by `sweep` before."""
    state = process.state(State)
    is_late = False
    if open_spans.pop(opened.span_id, None) is None:
        is_late = state.swept.pop(opened.span_id, _NOT_SWEPT) is None
        if not is_late:
            opened.has_ended = True
            return False
        with state.lock:
            state.late += 1
    opened.has_ended = True
    now_ns, parent = world.monotonic(), opened.parent
    if parent is not None and parent.last_ns < now_ns:
        parent.last_ns = now_ns
    error_type = class_label(type(error).__name__) if error is not None else None
    sink.emit(
        _span_end(
            opened.place.session_id,
            opened.span_id,
            world.now(),
            status,
            error_type,
            None,
            is_late,
        )
    )
    return True


_NOT_SWEPT = object()


def _end_collected(opened: Opened) -> None:
    """End a span as orphaned because its handle was garbage collected, so it can no longer be closed."""
    state = process.state(State)
    opened.has_ended = True
    state.swept.pop(opened.span_id, None)
    if open_spans.pop(opened.span_id, None) is not None:
        _orphan(opened, opened.last_ns)


def _orphan(opened: Opened, last_ns: int) -> None:
    """Emit the end of an orphaned span, and count it; `last_ns` is the time of its last activity."""
    state = process.state(State)
    with state.lock:
        state.orphaned += 1
    if opened.parent is not None:
        opened.parent.last_ns = max(opened.parent.last_ns, last_ns)
    now_ns = world.now()
    sink.emit(
        SpanEnd(
            session_id=opened.place.session_id,
            span_id=opened.span_id,
            ended_ns=now_ns,
            status="orphaned",
            error_type=None,
            last_activity_ns=now_ns - max(world.monotonic() - last_ns, 0),
        )
    )


def touch(span_id: str | None) -> None:
    """Note activity in a span, at this moment."""
    opened = open_spans.get(span_id) if span_id else None
    if opened is not None:
        opened.last_ns = max(opened.last_ns, world.monotonic())


def sweep(silent_s: float, active: Mapping[str, int] | None = None) -> int:
    """End spans without activity for too long as orphaned; return their number.

    Activity in a span counts for all enclosing spans. If a span may be inactive for longer than other spans, so may its
    enclosing spans.

    Args:
        silent_s: the maximum time without activity, in seconds; 0 ends all spans.
        active: the times of other activity, such as arriving chunks, by span ID, on the monotonic clock.
    """
    state = process.state(State)
    known = _open_spans()
    last = {each: max(each.last_ns, (active or {}).get(each.span_id, 0)) for each in known}
    due = {each: max(each.due_ns, last[each]) for each in known}
    for each in reversed(known):  # enclosed spans first
        if each.parent in last:
            last[each.parent] = max(last[each.parent], last[each])
            due[each.parent] = max(due[each.parent], due[each])
    now_ns, count = world.monotonic(), 0
    for each in reversed(known):
        if silent_s > 0 and now_ns - due[each] < silent_s * 1e9:
            continue
        # Added first, so that a concurrent close finds it in `swept` or in `open_spans`.
        state.swept[each.span_id] = None
        if open_spans.pop(each.span_id, None) is None:
            state.swept.pop(each.span_id, None)
            continue
        _orphan(each, last[each])
        count += 1
    return count


def statistics() -> SpanStatistics:
    """Return the counts so far."""
    state = process.state(State)
    return SpanStatistics(len(open_spans), state.orphaned, state.late)


def is_any_open() -> bool:
    """Return whether any span has not ended."""
    return bool(open_spans)


def _open_spans() -> list[Opened]:
    """Return the open spans, oldest first. Other threads may open and end spans at the same time."""
    for _ in range(100):
        with contextlib.suppress(RuntimeError):  # another thread has opened or ended a span
            return list(open_spans.values())
    return []


def _reset_in_child() -> None:
    """In a child process, forget all spans, because they belong to the parent."""
    state = process.state(State)
    state.lock, state.orphaned, state.late = threading.RLock(), 0, 0
    open_spans.clear()
    state.swept.clear()


os.register_at_fork(after_in_child=_reset_in_child)
