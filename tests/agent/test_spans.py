"""Spans of the loop: each interval has one span with the right parent, and the span ends exactly once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import agentobs
from agentobs import tracing, world
from agentobs.agent.events import Event, Retry
from agentobs.agent.execution.hook_runner import LiveHooks
from agentobs.agent.execution.live_answers import Consent, Reply
from agentobs.agent.hooks import Command, Hook
from agentobs.agent.hooks.declarations import table
from agentobs.agent.loop import run as play
from agentobs.agent.permissions import Permissions
from agentobs.agent.tools.tool import tool
from agentobs.records.canonical_json import Json
from agentobs.records.facts import SpanEnd, SpanStart
from agentobs.sink import Record
from agentobs.world import Abort

from .agent_runs import events_of, of_kind, options, recorded, spans, ticking_world
from .hooks.live_hooks import NO_CLIENT
from .provider import MODEL, Provider, call, error, message, streamed, text

DONE = message(text("Done."))


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in the {where}"


@tool
def write(what: str) -> str:
    """Write something."""
    return what


def intervals(records: Sequence[Record], name: str) -> list[tuple[int, int, str | None]]:
    """Return (start, end, parent) of each span with the given name, in order."""
    ends = {r.span_id: r.ended_ns for r in records if isinstance(r, SpanEnd)}
    return [
        (r.started_ns, ends[r.span_id], r.parent_span_id)
        for r in records
        if isinstance(r, SpanStart) and r.name == name
    ]


def test_a_call_is_queued_approved_and_executed() -> None:
    """The spans `queued`, approval and execution follow each other within the span of the call, without overlap.

    `queued` ends when the permissions of the call are checked.
    """

    def person(consent: Consent) -> Reply:
        return Reply(True)

    hooks = table([Hook("pre_tool_use", lambda payload: None, name="first")])
    answers = {"person": person, "hooks": LiveHooks(hooks, NO_CLIENT).answer}
    call_message = message(call("a", "write", what="x"), call("b", "write", what="y"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events_of(provider, tools=[write], permissions=Permissions(), hooks=hooks, world=answers)
    assert spans(records)[2:-1] == [
        ("tool", "write", "interaction", "ok"),
        ("tool", "write", "interaction", "ok"),
        ("queued", "write", "tool", "ok"),
        ("hook", "first", "tool", "ok"),
        ("blocked_on_user", "write", "tool", "ok"),
        ("execution", "write", "tool", "ok"),
        ("hook", "first", "tool", "ok"),
        ("blocked_on_user", "write", "tool", "ok"),
        ("execution", "write", "tool", "ok"),
    ]
    (first, second) = intervals(records, "tool")
    [queued] = intervals(records, "queued")
    approval_waits, ran = intervals(records, "blocked_on_user"), intervals(records, "execution")
    assert queued[2] == approval_waits[1][2] == ran[1][2] != approval_waits[0][2]
    assert (
        first[0]
        <= approval_waits[0][0]
        <= approval_waits[0][1]
        <= ran[0][0]
        <= ran[0][1]
        <= first[1]
    )
    assert (
        second[0]
        <= queued[0]
        <= ran[0][1]
        <= queued[1]
        <= approval_waits[1][0]
        <= approval_waits[1][1]
        <= ran[1][0]
    )
    assert ran[1][1] <= second[1]
    assert queued[1] <= intervals(records, "hook")[1][0]


def test_calls_beyond_ten_are_queued() -> None:
    """If ten calls are running, further calls are queued until a call has ended, and each call is queued at
    most once.
    """
    call_message = message(*[call(f"c{n}", "look", where=str(n)) for n in range(13)])
    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events_of(provider, tools=[look])
    assert len(intervals(records, "tool")) == len(intervals(records, "execution")) == 13
    parents = [parent for *_, parent in intervals(records, "queued")]
    assert len(parents) == len(set(parents)) >= 2
    for start, end, parent in intervals(records, "queued"):
        [ran] = [each for each in intervals(records, "execution") if each[2] == parent]
        assert start <= end <= ran[0]


def test_queued_calls_that_never_run() -> None:
    """A call that is aborted while it is queued has a span and a cancelled `queued` span, but no execution."""
    abort = Abort()

    @tool
    def stop_run(what: str) -> str:
        abort.stop()
        return what

    call_message = message(call("a", "stop_run", what="x"), call("b", "stop_run", what="y"))
    with Provider([streamed(call_message)]) as provider, recorded() as records:
        events_of(provider, tools=[stop_run], world={"abort": abort})
    assert spans(records)[2:] == [
        ("tool", "stop_run", "interaction", "ok"),
        ("tool", "stop_run", "interaction", "ok"),
        ("queued", "stop_run", "tool", "cancelled"),
        ("execution", "stop_run", "tool", "ok"),
    ]


def test_spans_of_a_tool_are_inside_its_execution() -> None:
    """The spans that a tool opens in its thread are inside the execution of the tool, and its trace context refers to
    them.
    """
    contexts: list[dict[str, str]] = []

    @tool
    def works() -> str:
        with agentobs.span("query", rows=3):
            contexts.append(agentobs.trace_context())
        return "done"

    with Provider([streamed(message(call("a", "works"))), streamed(DONE)]) as provider:
        with recorded() as records:
            events_of(provider, tools=[works])
    assert ("query", None, "execution", "ok") in spans(records)
    [inner] = [r for r in of_kind(records, SpanStart) if r.name == "query"]
    assert contexts == [{"traceparent": f"00-{inner.trace_id}-{inner.span_id}-01"}]


def test_waits_between_attempts() -> None:
    """Each wait between two attempts is a span of the request, which is cancelled if the wait is stopped."""
    abort = Abort()

    def on(event: Event) -> None:
        if isinstance(event, Retry) and event.attempt == 2:
            abort.stop()

    replies = [error(529, "overloaded_error"), error(529, "overloaded_error")]
    with Provider(replies) as provider, recorded() as records:
        events_of(provider, world={"abort": abort}, on=on)
    assert spans(records) == [
        ("interaction", "main", None, "ok"),
        ("llm_request", MODEL, "interaction", "cancelled"),
        ("retry_wait", None, "llm_request", "ok"),
        ("retry_wait", None, "llm_request", "cancelled"),
    ]


def test_a_long_approval_wait_is_not_orphaned(monkeypatch: pytest.MonkeyPatch) -> None:
    """During an approval wait, open spans are not swept after hours without records, but only after a day."""
    real, passed = world.monotonic, [0]
    monkeypatch.setattr(world, "monotonic", lambda: real() + passed[0])
    swept_counts: list[int] = []

    def person(consent: Consent) -> Reply:
        for hours in (10, 15):
            passed[0] += hours * 3600 * 1_000_000_000
            swept_counts.append(tracing.sweep(1800))
        return Reply(True)

    with Provider([streamed(message(call("a", "write", what="x"))), streamed(DONE)]) as provider:
        with recorded() as records:
            tracing.sweep(0)
            events_of(provider, tools=[write], permissions=Permissions(), world={"person": person})
    assert swept_counts == [0, 3]
    late = [r.status for r in records if isinstance(r, SpanEnd) and r.late]
    assert late == ["ok"] * 3


def test_a_background_hook_is_linked() -> None:
    """The work of a background hook is a separate trace that is linked to the span of the hook, which ends
    immediately.
    """
    began, may_finish = threading.Event(), threading.Event()

    def slow(payload: Json) -> None:
        began.set()
        may_finish.wait(10)
        with agentobs.span("work"):
            pass

    hooks = table([Hook("stop", slow, name="slow", background=True)])
    live = LiveHooks(hooks, NO_CLIENT)

    with Provider([streamed(DONE)]) as provider, recorded() as records:

        async def run() -> None:
            async with provider.client() as client:
                here = ticking_world(client, hooks=live.answer)
                async for _ in play("Hello", world=here, options=options(hooks=hooks)):
                    pass
                may_finish.set()
                await live.wait_for_background()

        asyncio.run(run())
    fired, background_hook = [r for r in of_kind(records, SpanStart) if r.name == "hook"]
    assert background_hook.parent_span_id is None
    assert background_hook.linked_span_id == fired.span_id
    assert background_hook.trace_id != fired.trace_id
    [work] = [r for r in of_kind(records, SpanStart) if r.name == "work"]
    assert (work.parent_span_id, work.trace_id) == (
        background_hook.span_id,
        background_hook.trace_id,
    )
    assert "open" not in {status for *_, status in spans(records)}


def test_hook_programs_get_the_trace_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program of a hook gets the trace context of the hook's span, not of the span in which our own process was
    started.
    """
    monkeypatch.setenv("TRACEPARENT", "00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    hooks = table([Hook("stop", Command('printf %s "$TRACEPARENT" > traceparent'), name="trace")])
    live = LiveHooks(hooks, NO_CLIENT, roots=[tmp_path])
    with Provider([streamed(DONE)]) as provider, recorded() as records:
        events_of(provider, hooks=hooks, world={"hooks": live.answer})
    [fired] = [r for r in of_kind(records, SpanStart) if r.name == "hook"]
    assert (tmp_path / "traceparent").read_text() == f"00-{fired.trace_id}-{fired.span_id}-01"
