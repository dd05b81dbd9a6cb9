"""Spans of the loop: each interval has one owner and the right parent, and ends exactly once."""

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

from .hooks.asked import NOBODY
from .provider import MODEL, Provider, call, error, message, streamed, text
from .scene import events_of, of_kind, options, recorded, spans, ticking_world

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
    """(start, end, parent) of each span of a name, in order."""
    ends = {r.span_id: r.ended_ns for r in records if isinstance(r, SpanEnd)}
    return [
        (r.started_ns, ends[r.span_id], r.parent_span_id)
        for r in records
        if isinstance(r, SpanStart) and r.name == name
    ]


def test_a_call_is_queued_asked_about_and_executed() -> None:
    """The three follow each other under the call without overlap; queued ends when the call is examined."""

    def person(consent: Consent) -> Reply:
        return Reply(True)

    hooks = table([Hook("pre_tool_use", lambda payload: None, name="first")])
    answers = {"person": person, "hooks": LiveHooks(hooks, NOBODY).answer}
    asking = message(call("a", "write", what="x"), call("b", "write", what="y"))
    with Provider([streamed(asking), streamed(DONE)]) as provider, recorded() as records:
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
    asked, ran = intervals(records, "blocked_on_user"), intervals(records, "execution")
    assert queued[2] == asked[1][2] == ran[1][2] != asked[0][2]
    assert first[0] <= asked[0][0] <= asked[0][1] <= ran[0][0] <= ran[0][1] <= first[1]
    assert (
        second[0] <= queued[0] <= ran[0][1] <= queued[1] <= asked[1][0] <= asked[1][1] <= ran[1][0]
    )
    assert ran[1][1] <= second[1]
    assert queued[1] <= intervals(records, "hook")[1][0]


def test_calls_beyond_ten_wait_for_room() -> None:
    """If ten calls run, the others are queued until one has ended; each call at most once."""
    asking = message(*[call(f"c{n}", "look", where=str(n)) for n in range(13)])
    with Provider([streamed(asking), streamed(DONE)]) as provider, recorded() as records:
        events_of(provider, tools=[look])
    assert len(intervals(records, "tool")) == len(intervals(records, "execution")) == 13
    parents = [parent for *_, parent in intervals(records, "queued")]
    assert len(parents) == len(set(parents)) >= 2
    for start, end, parent in intervals(records, "queued"):
        [ran] = [each for each in intervals(records, "execution") if each[2] == parent]
        assert start <= end <= ran[0]


def test_calls_that_never_run() -> None:
    """A call that was aborted while queued has a span and a cancelled wait; none is executed."""
    abort = Abort()

    @tool
    def stops(what: str) -> str:
        abort.stop()
        return what

    asking = message(call("a", "stops", what="x"), call("b", "stops", what="y"))
    with Provider([streamed(asking)]) as provider, recorded() as records:
        events_of(provider, tools=[stops], world={"abort": abort})
    assert spans(records)[2:] == [
        ("tool", "stops", "interaction", "ok"),
        ("tool", "stops", "interaction", "ok"),
        ("queued", "stops", "tool", "cancelled"),
        ("execution", "stops", "tool", "ok"),
    ]


def test_what_a_tool_does_lies_under_its_execution() -> None:
    """Spans opened by a tool in its thread, and its trace context, are inside its execution."""
    told: list[dict[str, str]] = []

    @tool
    def works() -> str:
        with agentobs.span("query", rows=3):
            told.append(agentobs.trace_context())
        return "done"

    with Provider([streamed(message(call("a", "works"))), streamed(DONE)]) as provider:
        with recorded() as records:
            events_of(provider, tools=[works])
    assert ("query", None, "execution", "ok") in spans(records)
    [inner] = [r for r in of_kind(records, SpanStart) if r.name == "query"]
    assert told == [{"traceparent": f"00-{inner.trace_id}-{inner.span_id}-01"}]


def test_waits_between_attempts() -> None:
    """Each wait before another attempt is a span of the request; if stopped, it is cancelled."""
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


def test_a_person_who_takes_a_night_leaves_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    """During an approval wait, the question, the call and the interaction may be silent, but not for a day."""
    real, passed = world.monotonic, [0]
    monkeypatch.setattr(world, "monotonic", lambda: real() + passed[0])
    swept: list[int] = []

    def person(consent: Consent) -> Reply:
        for hours in (10, 15):
            passed[0] += hours * 3600 * 1_000_000_000
            swept.append(tracing.sweep(1800))
        return Reply(True)

    with Provider([streamed(message(call("a", "write", what="x"))), streamed(DONE)]) as provider:
        with recorded() as records:
            tracing.sweep(0)
            events_of(provider, tools=[write], permissions=Permissions(), world={"person": person})
    assert swept == [0, 3]
    late = [r.status for r in records if isinstance(r, SpanEnd) and r.late]
    assert late == ["ok"] * 3


def test_a_hook_that_nobody_waits_for_is_linked() -> None:
    """Its work is a separate trace, linked to the span of the hook, which ends immediately."""
    began, go_on = threading.Event(), threading.Event()

    def slow(payload: Json) -> None:
        began.set()
        go_on.wait(10)
        with agentobs.span("work"):
            pass

    hooks = table([Hook("stop", slow, name="slow", background=True)])
    live = LiveHooks(hooks, NOBODY)

    with Provider([streamed(DONE)]) as provider, recorded() as records:

        async def run() -> None:
            async with provider.client() as client:
                here = ticking_world(client, hooks=live.answer)
                async for _ in play("Hello", world=here, options=options(hooks=hooks)):
                    pass
                go_on.set()
                await live.settled()

        asyncio.run(run())
    fired, apart = [r for r in of_kind(records, SpanStart) if r.name == "hook"]
    assert apart.parent_span_id is None
    assert apart.linked_span_id == fired.span_id
    assert apart.trace_id != fired.trace_id
    [work] = [r for r in of_kind(records, SpanStart) if r.name == "work"]
    assert (work.parent_span_id, work.trace_id) == (apart.span_id, apart.trace_id)
    assert "open" not in {status for *_, status in spans(records)}


def test_programs_of_hooks_know_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook's program sees the span that it runs in, not that of our parent process."""
    monkeypatch.setenv("TRACEPARENT", "00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    hooks = table([Hook("stop", Command('printf %s "$TRACEPARENT" > told'), name="tells")])
    live = LiveHooks(hooks, NOBODY, roots=[tmp_path])
    with Provider([streamed(DONE)]) as provider, recorded() as records:
        events_of(provider, hooks=hooks, world={"hooks": live.answer})
    [fired] = [r for r in of_kind(records, SpanStart) if r.name == "hook"]
    assert (tmp_path / "told").read_text() == f"00-{fired.trace_id}-{fired.span_id}-01"
