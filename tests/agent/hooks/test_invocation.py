"""Matching hooks run in parallel, and none of them affects the others or the loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentobs import tracing
from agentobs.agent.hooks import Hook, HookEvent, Occasion, Verdict, fire, table
from agentobs.errors import ReplaySays
from agentobs.records.exchanges import (
    WorldExchange,
    WorldQuestion,
    is_inside_answer,
    lane_inside,
    lane_under,
)
from agentobs.records.facts import Event as Fact
from agentobs.records.labels import is_label
from agentobs.world import Abort, World
from tests.agent.scene import recorded, spans

from .asked import NOBODY


def nothing(payload: Any) -> None:
    pass


def hook(name: str, event: HookEvent = "pre_tool_use", **more: Any) -> Hook:
    return Hook(event, nothing, name=name, **more)


CALL = Occasion(
    "pre_tool_use",
    3,
    "3:pre_tool_use:toolu_1",
    {"tool_name": "look", "tool_use_id": "toolu_1", "tool_input": {"where": "box"}},
    tool="look",
)


def fired(hooks: list[Hook], answers: dict[str, Any], abort: Abort | None = None) -> Any:
    """Run hooks in a world with scripted answers; return the result of `fire`, the questions, and the records."""
    asked: list[WorldQuestion] = []

    async def ask(question: WorldQuestion) -> Any:
        asked.append(question)
        answer = answers[question.asked["hook"]]
        if isinstance(answer, BaseException):
            raise answer
        return await answer() if callable(answer) else answer

    async def run_tool(question: Any) -> Any:
        raise AssertionError

    world = World(client=NOBODY, run_tool=run_tool, ask=ask, abort=abort or Abort())
    with recorded() as records:
        found = asyncio.run(fire(world, table(hooks), CALL, tracing.place()))
    return found, asked, records


def test_nothing_is_asked_where_no_hook_is_fired() -> None:
    """Conditions are checked before anything is started."""
    found, asked, records = fired([hook("a", when="write"), hook("b", "stop")], {})
    assert found == (Verdict(), (), frozenset())
    assert (asked, records) == ([], [])


def test_what_the_world_is_asked_and_what_is_told() -> None:
    """The payload has no values that differ in a replay; each hook has a span, a fact, an exchange and an event."""
    answers = {"a": {"outcome": "blocking", "reason": "No."}, "b": {}}
    (verdict, told, done), asked, records = fired(
        [hook("a", once=True), hook("b", background=True)], answers
    )
    assert (verdict.blocked, verdict.reason, done) == (True, "No.", {"a"})
    assert [(each.key, each.asked) for each in asked] == [
        (
            "3:pre_tool_use:toolu_1:a",
            {
                "event": "pre_tool_use",
                "hook": "a",
                "turn": 3,
                "tool_name": "look",
                "tool_use_id": "toolu_1",
                "tool_input": {"where": "box"},
            },
        ),
        (
            "3:pre_tool_use:toolu_1:b",
            {
                "event": "pre_tool_use",
                "hook": "b",
                "turn": 3,
                "tool_name": "look",
                "tool_use_id": "toolu_1",
                "tool_input": {"where": "box"},
                "background": True,
            },
        ),
    ]
    assert [(e.turn, e.event, e.hook, e.outcome, e.tool_use_id, e.reason) for e in told] == [
        (3, "pre_tool_use", "a", "blocking", "toolu_1", "No."),
        (3, "pre_tool_use", "b", "success", "toolu_1", ""),
    ]
    assert spans(records) == [("hook", "a", None, "ok"), ("hook", "b", None, "ok")]
    facts = [(str(r.kind), r.label) for r in records if isinstance(r, Fact)]
    assert facts == [("hook", "blocking"), ("hook", "success")]
    assert len([r for r in records if isinstance(r, WorldExchange)]) == 2


def test_hooks_run_together() -> None:
    """Each waits for the other here: sequentially they would never end."""
    both = asyncio.Barrier(2)

    async def meets() -> Any:
        async with both:
            return {"context": "met"}

    (verdict, _, _), _, _ = fired([hook("a"), hook("b")], {"a": meets, "b": meets})
    assert verdict.context == ("met", "met")


def test_a_hook_that_crashes_the_asking_hurts_nobody() -> None:
    """Its own outcome shows the error; the others are not affected."""
    answers = {"a": RuntimeError("ouch"), "b": {"decision": "deny"}, "c": "nonsense"}
    (verdict, told, _), _, _ = fired([hook("a"), hook("b"), hook("c")], answers)
    assert [each.outcome for each in told] == [
        "non_blocking_error",
        "blocking",
        "non_blocking_error",
    ]
    assert verdict.blocked


def test_a_divergence_leaves_as_it_is_and_leaves_nothing_behind() -> None:
    """Parallel hooks are stopped."""

    async def waits() -> Any:
        await asyncio.sleep(0.01)
        return {}

    with pytest.raises(ReplaySays):
        fired([hook("a"), hook("b")], {"a": ReplaySays(), "b": waits})


def test_an_abort_cancels_those_that_run() -> None:
    """Answers that arrived earlier are kept."""
    abort = Abort()

    async def stops() -> Any:
        abort.stop()
        await asyncio.Event().wait()

    answers = {"a": {"outcome": "blocking"}, "b": stops}
    (verdict, told, _), _, _ = fired([hook("a"), hook("b")], answers, abort)
    assert [each.outcome for each in told] == ["blocking", "cancelled"]
    assert verdict.blocked


def test_a_change_that_was_overtaken_is_told() -> None:
    """Two hooks never see each other's change; the last one in the table is used."""
    answers = {"a": {"input": {"where": "a"}}, "b": {"input": {"where": "b"}, "reason": "better"}}
    (verdict, told, _), _, records = fired([hook("a"), hook("b")], answers)
    assert verdict.input == {"where": "b"}
    assert told[0].reason == "(Another hook's change took the place of its own.)"
    assert told[1].reason == "better"
    numbers = [r.numbers["overridden"] for r in records if isinstance(r, Fact)]
    assert numbers == [True, False]


def test_the_lanes_inside_of_answers_can_always_be_told() -> None:
    """A replay skips them, however deep and whatever their name; each is a label."""
    lane = "main"
    for number in range(12):
        lane = lane_inside(lane, "hook", f"{number}:pre_tool_use:toolu_{'x' * 60}:ä")
        assert is_label(lane)
        assert is_inside_answer(lane)
        below = lane_under(lane, "toolu_ä b")
        assert is_label(below)
        assert is_inside_answer(below)
    assert not is_inside_answer(lane_under("main", "x" * 200))
    assert is_label(lane_under("main", "x" * 200))
