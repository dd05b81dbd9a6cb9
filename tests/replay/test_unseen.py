"""Replay where no later request shows what changed: the calls of the last turn, and how a run ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from pydantic import BaseModel, field_validator
from syrupy.assertion import SnapshotAssertion

import agentobs
from agentobs.agent.events import Event, Message, ToolDispatch, ToolDone
from agentobs.agent.loop import complete, live_world, run
from agentobs.agent.permissions import Permissions, Rule
from agentobs.agent.state import Options
from agentobs.agent.tools.structured_output import declaration
from agentobs.agent.tools.tool import Tool, tool
from agentobs.records.canonical_json import digest
from agentobs.records.exchanges import Answer
from replay import Divergence, DivergenceError, Fixture, Replayer, ReplayOptions, load
from replay.agent_code import leftover_state
from tests.provider_script import MODEL, call, cut, streamed, text
from tests.replay.agents import KEY, frozen, recorded, report, weather
from tests.replay.mailer import SEND, Mailer, made, mails

ALLOWED = Permissions(rules=(Rule.parse("send", "allow", "user"),))
DENIED = Permissions(rules=(Rule.parse("send", "deny", "policy"),))
ONE: dict[str, Any] = {"max_turns": 1}


def mailing(permissions: Permissions, **options: Any) -> dict[str, Any]:
    """The changes of a mailer that has these permissions."""
    return {"options": {**ONE, "permissions": permissions, **options}}


def replayed(fixture: Fixture, changes: dict[str, Any], tools: Any = "recorded") -> Replayer:
    with Replayer(fixture, ReplayOptions(tools=tools)) as replay:
        replay.run(Mailer(**changes).answer, "Mail them.")
    return replay


def diverges(fixture: Fixture, changes: dict[str, Any], tools: Any = "recorded") -> Divergence:
    leftover_state.forget()  # each replay stands for a process of its own
    with pytest.raises(DivergenceError) as raised:
        replayed(fixture, changes, tools)
    return raised.value.divergence


def shown(divergence: Divergence) -> str:
    return report(divergence)


def rewritten(fixture: Fixture, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Fixture:
    """Return a fixture whose lines are changed, with a digest that holds."""
    told = [change(json.loads(line)) for line in fixture.path.read_text().splitlines()]
    data = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in told[:-1])
    path = fixture.path.with_name("rewritten.jsonl")
    path.write_bytes(data + json.dumps({**told[-1], "digest": digest(data)}).encode() + b"\n")
    return load(path)


def test_a_last_call_that_is_denied_now_diverges(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """Nothing is asked after it, and yet it ran when it was recorded and does not now."""
    fixture, _, _ = made(tmp_path, mails("ann")[:1], **mailing(ALLOWED))
    assert replayed(fixture, mailing(ALLOWED)).progress.tools_matched == 1
    found = diverges(fixture, mailing(DENIED))
    assert (found.kind, found.number, found.turn) == ("tool", 1, 1)
    assert shown(found) == snapshot


def test_a_live_call_that_is_denied_now_diverges(tmp_path: Path) -> None:
    """A call that would run for real and is not let run is no live call."""
    fixture, _, _ = made(tmp_path, mails("ann")[:1], **mailing(ALLOWED))
    assert diverges(fixture, mailing(DENIED), "live").kind == "tool"


@pytest.mark.parametrize("tools", ["live", ["send"]])
def test_a_last_call_that_runs_live_may_answer_otherwise(tmp_path: Path, tools: Any) -> None:
    """What a live tool answers is its own affair."""
    fixture, _, _ = made(tmp_path, mails("ann")[:1], **mailing(ALLOWED))
    other = tool(name="send")(_other)
    agent = {**mailing(ALLOWED, extra={"tools": [SEND.declaration]}), "tools": (other,)}
    told = {**mailing(ALLOWED, extra={"tools": [SEND.declaration]}), "tools": (SEND,)}
    again, _, _ = made(tmp_path / "again", mails("ann")[:1], **told)
    assert replayed(again, agent, tools).progress.tools_matched == 1
    assert replayed(fixture, mailing(ALLOWED)).progress.tools_matched == 1


def _other(to: str, body: str = "") -> str:
    """Send a mail."""
    return f"{to} was sent {body or 'nothing'}"


def test_other_words_of_the_loop_to_a_last_call_diverge(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """A call that was denied and still is, for another reason that the model is told."""
    fixture, _, _ = made(tmp_path, mails("ann")[:1], **mailing(DENIED))
    by_user = Permissions(rules=(Rule.parse("send", "deny", "user"),))
    assert shown(diverges(fixture, mailing(by_user))) == snapshot


class Order(BaseModel):
    """An order."""

    order: str


class PickyOrder(BaseModel):
    """An order."""

    order: str

    @field_validator("order")
    @classmethod
    def known(cls, value: str) -> str:
        raise ValueError("no such order")


PickyOrder.__name__ = "Order"


def test_a_call_beside_the_output_that_is_denied_now_diverges(tmp_path: Path) -> None:
    """The output ends the run, so that nobody hears what became of the call beside it."""
    calls = [call(1, "send", to="ann"), call(2, "structured_output", order="A")]
    given = [streamed(*calls, number=1)]
    fixture, _, _ = made(tmp_path, given, **mailing(ALLOWED, output=Order))
    assert replayed(fixture, mailing(ALLOWED, output=Order)).progress.tools_matched == 2
    found = diverges(fixture, mailing(DENIED, output=Order))
    assert "a deny rule of policy (send) denies it now" in found.why


def test_an_output_that_is_refused_now_diverges(tmp_path: Path) -> None:
    """The loop answers the call of the output itself: its answer is compared as well."""
    given = [streamed(call(1, "structured_output", order="A"), number=1)]
    options = {"output": Order, "max_output_retries": 0}
    fixture, _, _ = made(tmp_path, given, options=options)
    found = diverges(fixture, {"options": {**options, "output": PickyOrder}})
    assert found.kind == "tool"
    assert next((d.path, d.expected, d.actual) for d in found.differences) == (
        "$.structured_output.outcome", "executed", "invalid",
    )  # fmt: skip


class Leaving:
    """An agent that stops listening to its run at the first event of a kind."""

    def __init__(self, url: str | None, kind: type[Event], tools: Sequence[Tool] = (SEND,)) -> None:
        self.url, self.kind, self.tools = url, kind, tools

    async def answer(self) -> None:
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=self.url, max_retries=0))
        world = live_world(client, self.tools)
        options = Options(model=MODEL, max_tokens=99, permissions=ALLOWED, max_turns=1)
        with agentobs.session("leaving"):
            running = run("Mail them.", world=world, options=options, tools=self.tools)
            async with contextlib.aclosing(running) as events:
                async for event in events:
                    if isinstance(event, self.kind):
                        return


def left(tmp_path: Path, kind: type[Event], given: Sequence[Answer]) -> Fixture:

    return frozen(
        tmp_path,
        recorded(tmp_path, lambda url: asyncio.run(Leaving(url, kind).answer()), given),
        "leaving",
    )


def test_a_last_call_that_never_came_diverges(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """The agent leaves its run before the call, which it did not when it was recorded."""
    fixture, _, _ = made(tmp_path, mails("ann", "bob")[:1], tools=(SEND,), **mailing(ALLOWED))
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(Leaving(None, ToolDone).answer)
    assert raised.value.divergence.kind == "missing"
    assert shown(raised.value.divergence) == snapshot


def test_how_far_the_calls_of_a_run_came_that_was_left_nobody_knows(tmp_path: Path) -> None:
    """A run that was left when it was recorded may be left before its call: when it ends is chance."""
    fixture = left(tmp_path, ToolDone, mails("ann")[:1])
    assert fixture.interaction_results == {"main": ["cancelled"]}
    for kind, came in ((ToolDone, 1), (ToolDispatch, 0), (Message, 0)):
        with Replayer(fixture) as replay:
            replay.run(Leaving(None, kind).answer)
        assert replay.progress.tools_matched == came


def test_an_early_call_of_an_answer_that_broke_off_need_not_come(tmp_path: Path) -> None:
    """It may begin while its answer comes, and is forgotten with it; the calls of whole answers are not."""
    broken = cut(streamed(call(1, "look"), text("And"), number=1), 6)
    given = [broken, streamed(call(2, "send", to="ann"), number=2)]
    look = tool(read_only=True, name="look")(_two)
    fixture, _, _ = made(tmp_path, given, tools=(SEND, look), **mailing(ALLOWED))
    assert [each.question.name for each in fixture.tools] == ["look", "send"]
    slow = tool(name="look")(_two)
    changes = {"tools": (SEND, slow)}
    assert replayed(fixture, {**changes, **mailing(ALLOWED)}).progress.tools_matched == 1
    assert diverges(fixture, {**changes, **mailing(DENIED)}).why.startswith("send (")


def _two() -> str:
    return "two mails"


def test_until_a_turn_its_calls_are_not_judged(tmp_path: Path) -> None:
    """What a call comes to in that turn is for the test to say."""
    fixture, _, _ = made(tmp_path, mails("ann")[:1], **mailing(ALLOWED))
    with Replayer(fixture) as replay:
        step = replay.until(Mailer(**mailing(DENIED)).answer, "Mail them.", turn=1)
    assert step.now.outcome == "failed"


TOLD: dict[str, Any] = {"extra": {"tools": [declaration(Order)]}}
"""What makes an agent that owes an output ask what one asks that owes none."""
OWING: dict[str, Any] = {"output": Order, "max_output_retries": 0}


class Twice:
    """An agent of two interactions, with switches for each, that may fail on its own after them."""

    def __init__(self, url: str | None, *options: dict[str, Any], fails: bool = False) -> None:
        self.url, self.options, self.fails = url, options, fails

    async def answer(self) -> None:
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=self.url, max_retries=0))
        world = live_world(client)
        with agentobs.session("twice"):
            for each in self.options:
                options = Options(model=MODEL, max_tokens=99, **TOLD, **each)
                await complete("Hello", world=world, options=options)
            if self.fails:
                raise ValueError("on its own")


def twice(tmp_path: Path, *options: dict[str, Any], fails: bool = False) -> Fixture:

    def play(url: str) -> None:
        with contextlib.suppress(ValueError):
            asyncio.run(Twice(url, *options, fails=fails).answer())

    given = [streamed(text("Done."), number=number) for number in (1, 2)]
    return frozen(tmp_path, recorded(tmp_path, play, given), "twice")


def test_an_interaction_that_ends_otherwise_diverges(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """The first of two, after which the session ends as it ended."""
    fixture = twice(tmp_path, {}, {})
    assert fixture.header["interaction_results"] == {"main": ["success", "success"]}
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(Twice(None, OWING, {}).answer)
    assert raised.value.divergence.kind == "outcome"
    assert shown(raised.value.divergence) == snapshot


def test_a_last_interaction_that_ends_otherwise_diverges(tmp_path: Path) -> None:
    """The session fails on its own after it, then and now, so that its outcome does not tell."""
    fixture = twice(tmp_path, {}, {}, fails=True)
    assert fixture.header["reason"] == "ValueError"
    with Replayer(fixture) as same:
        same.run(Twice(None, {}, {}, fails=True).answer)
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(Twice(None, {}, OWING, fails=True).answer)
    assert [(d.path, d.expected, d.actual) for d in raised.value.divergence.differences] == [
        ("$.main.interaction_2", "success", "error_max_structured_output_retries")
    ]


def test_a_fixture_without_results_is_judged_by_its_outcome(tmp_path: Path) -> None:
    """What was frozen before results were kept goes on replaying."""
    fixture = twice(tmp_path, {}, {})
    old = rewritten(
        fixture, lambda line: {k: v for k, v in line.items() if k != "interaction_results"}
    )
    with Replayer(old) as replay:
        replay.run(Twice(None, OWING, {}).answer)
    with pytest.raises(DivergenceError) as raised, Replayer(old) as replay:
        replay.run(Twice(None, {}, OWING).answer)
    assert raised.value.divergence.summary == "the session ended differently"


def test_interactions_of_other_clients_have_no_results(tmp_path: Path) -> None:
    """They are derived from what was asked, and a replay tells of none."""
    assert "interaction_results" not in weather(tmp_path).header


def test_another_reason_for_the_same_decision_is_the_same_path(tmp_path: Path) -> None:
    """A call that a rule allowed, and the mode allows now, ran then and runs now."""
    fixture, _, _ = made(tmp_path, mails("ann"), options={"permissions": ALLOWED})
    free = Permissions(mode="bypassPermissions", bypass_confirmed=True)
    assert replayed(fixture, {"options": {"permissions": free}}).progress.tools_matched == 1
