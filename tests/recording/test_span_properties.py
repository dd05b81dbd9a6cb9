"""Properties of spans that hold for any order of opening, closing, carrying, dropping and sweeping."""

from __future__ import annotations

import contextvars
import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentobs
from agentobs import runtime, tracing
from agentobs.records.exchanges import Place
from agentobs.records.facts import SpanEnd, SpanStart
from agentobs.sink import Record
from agentobs.tracing import Span, SpanBlock

SESSION, INTERACTION = "5" * 32, "1" * 32
NUMBER = st.integers(0, 7)
STEP = st.one_of(
    st.tuples(st.just("enter"), NUMBER, NUMBER),
    st.tuples(st.just("exit"), NUMBER, NUMBER),
    st.tuples(st.just("open"), NUMBER, NUMBER),
    st.tuples(st.just("close"), NUMBER, NUMBER),
    st.tuples(st.just("drop"), NUMBER, NUMBER),
    st.tuples(st.just("task"), NUMBER, NUMBER),
    st.tuples(st.just("sweep"), NUMBER, NUMBER),
)


@dataclass
class Task:
    """A context, and the spans whose blocks were entered in it, innermost last."""

    context: contextvars.Context
    inside: list[str]
    blocks: list[tuple[SpanBlock, str]] = field(default_factory=list)


@dataclass
class Model:
    """The steps so far, and their expected result."""

    pool: ThreadPoolExecutor
    tasks: list[Task]
    handles: list[tuple[Span, str]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    parents: dict[str, str | None] = field(default_factory=dict)

    def expected(self, task: Task) -> str | None:
        """Return the innermost span of a context that has not ended."""
        return next((name for name in reversed(task.inside) if name not in self.ended), None)

    def do(self, step: tuple[str, int, int]) -> None:
        what, one, other = step
        task = self.tasks[one % len(self.tasks)]
        name = f"span{len(self.parents)}"
        if what == "enter":
            self.parents[name] = self.expected(task)
            block = agentobs.span(name)
            task.context.run(block.__enter__)
            task.blocks.append((block, name))
            task.inside = [each for each in task.inside if each not in self.ended] + [name]
        elif what == "exit" and task.blocks:
            # The block ends in its own context or in another one, like a generator that another task closes.
            where = self.tasks[other % len(self.tasks)] if other % 2 else task
            block, name = task.blocks.pop()
            where.context.run(block.__exit__, None, None, None)
            self.ended.add(name)
        elif what == "open":
            self.parents[name] = self.expected(task)
            self.handles.append((task.context.run(agentobs.open_span, name), name))
        elif what == "close" and self.handles:
            handle, name = self.handles[other % len(self.handles)]
            self.pool.submit(handle.close).result()  # in a thread without this context
            self.ended.add(name)
        elif what == "drop" and self.handles:
            handle, name = self.handles.pop(other % len(self.handles))
            del handle
            self.ended.add(name)
        elif what == "task":
            inside = list(task.inside)
            self.tasks.append(Task(task.context.run(contextvars.copy_context), inside))
        elif what == "sweep":
            tracing.sweep(0)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_spans_end_once_and_have_the_right_parent(steps: list[tuple[str, int, int]]) -> None:
    """Each span ends exactly once, or a second time if it was swept before, and has the right parent.

    The parent is the innermost open span of the context that opened the span. No span is open after a sweep.
    """
    records: list[Record] = []
    tracing.sweep(0)  # end spans that other tests have left open
    with runtime.replaced(consumer=records.append), ThreadPoolExecutor(1) as pool:
        with tracing.at(Place(SESSION, INTERACTION)):
            model = Model(pool, [Task(contextvars.copy_context(), [])])
        for step in steps:
            model.do(step)
        tracing.sweep(0)
        assert tracing.statistics().open == 0
        for task in model.tasks:
            for block, _ in reversed(task.blocks):
                task.context.run(block.__exit__, None, None, None)
        del model.handles[:]
        gc.collect()
    starts = {r.span_id: r for r in records if isinstance(r, SpanStart)}
    ends = [r for r in records if isinstance(r, SpanEnd) and not r.late and r.span_id in starts]
    late = [r for r in records if isinstance(r, SpanEnd) and r.late]
    assert Counter(r.span_id for r in ends) == dict.fromkeys(starts, 1)
    assert max(Counter(r.span_id for r in late).values(), default=1) == 1
    assert {r.span_id for r in late} <= {r.span_id for r in ends if r.status == "orphaned"}
    found = {
        str(r.name): str(starts[r.parent_span_id].name) if r.parent_span_id else None
        for r in starts.values()
    }
    assert found == model.parents
    for each in starts.values():
        if each.parent_span_id:
            assert each.trace_id == starts[each.parent_span_id].trace_id
    order = [r.span_id for r in records if isinstance(r, SpanStart)]
    assert all(
        order.index(r.parent_span_id) < order.index(r.span_id)
        for r in starts.values()
        if r.parent_span_id
    )
