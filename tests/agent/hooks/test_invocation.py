"""Matching hooks run concurrently, and no hook affects other hooks or the loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentobs import tracing
from agentobs.agent.hooks import Hook, HookEvent, Occasion, Verdict, fire, table
from agentobs.errors import ReplayEnd
from agentobs.records.exchanges import (
    WorldExchange,
    WorldQuestion,
    answer_lane,
    child_lane,
    is_inside_answer,
)
from agentobs.records.facts import Event as Fact
from agentobs.records.labels import is_label
from agentobs.world import Abort, World
from tests.agent.agent_runs import recorded, spans

from .live_hooks import NO_CLIENT


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


def fire_hooks(hooks: list[Hook], answers: dict[str, Any], abort: Abort | None = None) -> Any:
    """Run hooks in a world with scripted answers; return the result of `fire`, the questions, and the records."""
    questions: list[WorldQuestion] = []

    async def ask(question: WorldQuestion) -> Any:
        questions.append(question)
        answer = answers[question.payload["hook"]]
        if isinstance(answer, BaseException):
            raise answer
        return await answer() if callable(answer) else answer

    async def run_tool(question: Any) -> Any:
        raise AssertionError

    world = World(client=NO_CLIENT, run_tool=run_tool, ask=ask, abort=abort or Abort())
    with recorded() as records:
        found = asyncio.run(fire(world, table(hooks), CALL, tracing.place()))
    return found, questions, records


def test_the_world_is_not_called_if_no_hook_matches() -> None:
    """If no hook matches an event, the world is not called."""
    found, questions, records = fire_hooks([hook("a", when="write"), hook("b", "stop")], {})
    assert found == (Verdict(), (), frozenset())
    assert (questions, records) == ([], [])


def test_the_questions_and_records_of_hooks() -> None:
    """The payload of a hook contains only values that are the same in a replay; each hook has a span, a fact, an
    exchange and an event.
    """
    answers = {"a": {"outcome": "blocking", "reason": "No."}, "b": {}}
    (verdict, events, done), questions, records = fire_hooks(
        [hook("a", once=True), hook("b", background=True)], answers
    )
    assert (verdict.blocked, verdict.reason, done) == (True, "No.", {"a"})
    assert [(each.key, each.payload) for each in questions] == [
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
    assert [(e.turn, e.event, e.hook, e.outcome, e.tool_use_id, e.reason) for e in events] == [
        (3, "pre_tool_use", "a", "blocking", "toolu_1", "No."),
        (3, "pre_tool_use", "b", "success", "toolu_1", ""),
    ]
    assert spans(records) == [("hook", "a", None, "ok"), ("hook", "b", None, "ok")]
    facts = [(str(r.kind), r.label) for r in records if isinstance(r, Fact)]
    assert facts == [("hook", "blocking"), ("hook", "success")]
    assert len([r for r in records if isinstance(r, WorldExchange)]) == 2


def test_hooks_run_concurrently() -> None:
    """Hooks of one event run concurrently: two hooks that wait for each other both end."""
    both = asyncio.Barrier(2)

    async def meets() -> Any:
        async with both:
            return {"context": "met"}

    (verdict, _, _), _, _ = fire_hooks([hook("a"), hook("b")], {"a": meets, "b": meets})
    assert verdict.context == ("met", "met")


def test_a_hook_whose_call_raises_affects_no_other_hook() -> None:
    """If the call of a hook raises, the outcome contains the error, and the other hooks are not affected."""
    answers = {"a": RuntimeError("ouch"), "b": {"decision": "deny"}, "c": "nonsense"}
    (verdict, events, _), _, _ = fire_hooks([hook("a"), hook("b"), hook("c")], answers)
    assert [each.outcome for each in events] == [
        "non_blocking_error",
        "blocking",
        "non_blocking_error",
    ]
    assert verdict.blocked


def test_a_divergence_stops_concurrent_hooks() -> None:
    """A divergence in one hook propagates unchanged, and the other hooks are stopped."""

    async def waits() -> Any:
        await asyncio.sleep(0.01)
        return {}

    with pytest.raises(ReplayEnd):
        fire_hooks([hook("a"), hook("b")], {"a": ReplayEnd(), "b": waits})


def test_an_abort_cancels_running_hooks() -> None:
    """An abort cancels the running hooks; answers that arrived before the abort are kept."""
    abort = Abort()

    async def stop_run() -> Any:
        abort.stop()
        await asyncio.Event().wait()

    answers = {"a": {"outcome": "blocking"}, "b": stop_run}
    (verdict, events, _), _, _ = fire_hooks([hook("a"), hook("b")], answers, abort)
    assert [each.outcome for each in events] == ["blocking", "cancelled"]
    assert verdict.blocked


def test_an_overridden_change_is_reported() -> None:
    """If two hooks change the same input, neither sees the change of the other; the change of the last hook in the
    table is used, and the other is reported.
    """
    answers = {"a": {"input": {"where": "a"}}, "b": {"input": {"where": "b"}, "reason": "better"}}
    (verdict, events, _), _, records = fire_hooks([hook("a"), hook("b")], answers)
    assert verdict.input == {"where": "b"}
    assert events[0].reason == "(Another hook's change replaced its own.)"
    assert events[1].reason == "better"
    numbers = [r.numbers["overridden"] for r in records if isinstance(r, Fact)]
    assert numbers == [True, False]


def test_lanes_of_hook_requests_are_labels() -> None:
    """The lane of a hook's requests is a label at any depth and with any name, and a replay recognizes the lane to skip
    its requests.
    """
    lane = "main"
    for number in range(12):
        lane = answer_lane(lane, "hook", f"{number}:pre_tool_use:toolu_{'x' * 60}:ä")
        assert is_label(lane)
        assert is_inside_answer(lane)
        below = child_lane(lane, "toolu_ä b")
        assert is_label(below)
        assert is_inside_answer(below)
    assert not is_inside_answer(child_lane("main", "x" * 200))
    assert is_label(child_lane("main", "x" * 200))
