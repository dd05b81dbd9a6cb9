"""Changes that no later request shows: the tool calls of the last turn, and the end of a run."""

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
from agentobs.agent.state import AgentOptions
from agentobs.agent.tools.structured_output import declaration
from agentobs.agent.tools.tool import Tool, tool
from agentobs.records.canonical_json import digest
from agentobs.records.exchanges import Answer
from replay import Divergence, DivergenceError, Fixture, Replayer, ReplayOptions, load
from replay.agent_code import leftover_state
from tests.provider_script import MODEL, call, cut, streamed, text
from tests.replay.agents import KEY, frozen, recorded, report, weather
from tests.replay.mailer import SEND, Mailer, mails, recorded_fixture

ALLOWED = Permissions(rules=(Rule.parse("send", "allow", "user"),))
DENIED = Permissions(rules=(Rule.parse("send", "deny", "policy"),))
ONE: dict[str, Any] = {"max_turns": 1}


def mailing(permissions: Permissions, **options: Any) -> dict[str, Any]:
    """Return the options of a mailer with these permissions."""
    return {"options": {**ONE, "permissions": permissions, **options}}


def replayed(fixture: Fixture, changes: dict[str, Any], tools: Any = "recorded") -> Replayer:
    with Replayer(fixture, ReplayOptions(tools=tools)) as replay:
        replay.run(Mailer(**changes).answer, "Mail them.")
    return replay


def divergence_of(fixture: Fixture, changes: dict[str, Any], tools: Any = "recorded") -> Divergence:
    leftover_state.forget()  # as if each replay ran in a separate process
    with pytest.raises(DivergenceError) as raised:
        replayed(fixture, changes, tools)
    return raised.value.divergence


def shown(divergence: Divergence) -> str:
    return report(divergence)


def rewritten(fixture: Fixture, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Fixture:
    """Return a fixture with changed lines and a correct digest."""
    changed_lines = [change(json.loads(line)) for line in fixture.path.read_text().splitlines()]
    data = b"".join(
        json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in changed_lines[:-1]
    )
    path = fixture.path.with_name("rewritten.jsonl")
    path.write_bytes(
        data + json.dumps({**changed_lines[-1], "digest": digest(data)}).encode() + b"\n"
    )
    return load(path)


def test_a_denied_last_call_diverges(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """A call of the last turn that ran in the recording and is now denied diverges, although no request follows it."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann")[:1], **mailing(ALLOWED))
    assert replayed(fixture, mailing(ALLOWED)).progress.tools_matched == 1
    found = divergence_of(fixture, mailing(DENIED))
    assert (found.kind, found.number, found.turn) == ("tool", 1, 1)
    assert shown(found) == snapshot


def test_a_denied_live_call_diverges(tmp_path: Path) -> None:
    """A call of the last turn that is now denied diverges even if tools run live."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann")[:1], **mailing(ALLOWED))
    assert divergence_of(fixture, mailing(DENIED), "live").kind == "tool"


@pytest.mark.slow
@pytest.mark.parametrize("tools", ["live", ["send"]])
def test_a_live_last_call_may_return_a_different_result(tmp_path: Path, tools: Any) -> None:
    """A tool of the last turn that runs live may return a different result."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann")[:1], **mailing(ALLOWED))
    other = tool(name="send")(_other)
    agent = {**mailing(ALLOWED, extra={"tools": [SEND.declaration]}), "tools": (other,)}
    options = {**mailing(ALLOWED, extra={"tools": [SEND.declaration]}), "tools": (SEND,)}
    second_fixture, _, _ = recorded_fixture(tmp_path / "again", mails("ann")[:1], **options)
    assert replayed(second_fixture, agent, tools).progress.tools_matched == 1
    assert replayed(fixture, mailing(ALLOWED)).progress.tools_matched == 1


def _other(to: str, body: str = "") -> str:
    """Send a mail."""
    return f"{to} was sent {body or 'nothing'}"


def test_a_changed_denial_of_a_last_call_diverges(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """A call of the last turn that is denied for a different reason diverges, because the model receives the reason."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann")[:1], **mailing(DENIED))
    by_user = Permissions(rules=(Rule.parse("send", "deny", "user"),))
    assert shown(divergence_of(fixture, mailing(by_user))) == snapshot


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


@pytest.mark.slow
def test_a_denied_call_next_to_the_structured_output_diverges(tmp_path: Path) -> None:
    """A call that is denied next to the structured output diverges, although the structured output ends the run."""
    calls = [call(1, "send", to="ann"), call(2, "structured_output", order="A")]
    responses = [streamed(*calls, number=1)]
    fixture, _, _ = recorded_fixture(tmp_path, responses, **mailing(ALLOWED, output=Order))
    assert replayed(fixture, mailing(ALLOWED, output=Order)).progress.tools_matched == 2
    found = divergence_of(fixture, mailing(DENIED, output=Order))
    assert "a deny rule of policy (send) denies it now" in found.why


def test_a_rejected_structured_output_diverges(tmp_path: Path) -> None:
    """A structured output that was accepted in the recording and is now rejected diverges."""
    responses = [streamed(call(1, "structured_output", order="A"), number=1)]
    options = {"output": Order, "max_output_retries": 0}
    fixture, _, _ = recorded_fixture(tmp_path, responses, options=options)
    found = divergence_of(fixture, {"options": {**options, "output": PickyOrder}})
    assert found.kind == "tool"
    assert next((d.path, d.expected, d.actual) for d in found.differences) == (
        "$.structured_output.outcome", "executed", "invalid",
    )  # fmt: skip


class Leaving:
    """An agent that stops iterating over its run at the first event of a given kind."""

    def __init__(self, url: str | None, kind: type[Event], tools: Sequence[Tool] = (SEND,)) -> None:
        self.url, self.kind, self.tools = url, kind, tools

    async def answer(self) -> None:
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=self.url, max_retries=0))
        world = live_world(client, self.tools)
        options = AgentOptions(model=MODEL, max_tokens=99, permissions=ALLOWED, max_turns=1)
        with agentobs.session("leaving"):
            running = run("Mail them.", world=world, options=options, tools=self.tools)
            async with contextlib.aclosing(running) as events:
                async for event in events:
                    if isinstance(event, self.kind):
                        return


def abandoned_run(tmp_path: Path, kind: type[Event], responses: Sequence[Answer]) -> Fixture:

    return frozen(
        tmp_path,
        recorded(tmp_path, lambda url: asyncio.run(Leaving(url, kind).answer()), responses),
        "leaving",
    )


def test_a_missing_last_call_diverges(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """A replay diverges if the agent abandons its run before a call that was made in the recording."""
    fixture, _, _ = recorded_fixture(
        tmp_path, mails("ann", "bob")[:1], tools=(SEND,), **mailing(ALLOWED)
    )
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(Leaving(None, ToolDone).answer)
    assert raised.value.divergence.kind == "missing"
    assert shown(raised.value.divergence) == snapshot


def test_the_calls_of_an_abandoned_run_may_be_missing(tmp_path: Path) -> None:
    """If the run was abandoned in the recording, it may be abandoned before its call in the replay."""
    fixture = abandoned_run(tmp_path, ToolDone, mails("ann")[:1])
    assert fixture.interaction_results == {"main": ["cancelled"]}
    for kind, came in ((ToolDone, 1), (ToolDispatch, 0), (Message, 0)):
        with Replayer(fixture) as replay:
            replay.run(Leaving(None, kind).answer)
        assert replay.progress.tools_matched == came


@pytest.mark.slow
def test_an_early_call_of_a_cut_response_may_be_missing(tmp_path: Path) -> None:
    """A call that started before its response was cut off may be missing; a call of a complete response may not."""
    broken = cut(streamed(call(1, "look"), text("And"), number=1), 6)
    responses = [broken, streamed(call(2, "send", to="ann"), number=2)]
    look = tool(read_only=True, name="look")(_two)
    fixture, _, _ = recorded_fixture(tmp_path, responses, tools=(SEND, look), **mailing(ALLOWED))
    assert [each.question.name for each in fixture.tools] == ["look", "send"]
    slow = tool(name="look")(_two)
    changes = {"tools": (SEND, slow)}
    assert replayed(fixture, {**changes, **mailing(ALLOWED)}).progress.tools_matched == 1
    assert divergence_of(fixture, {**changes, **mailing(DENIED)}).why.startswith("send (")


def _two() -> str:
    return "two mails"


def test_until_does_not_compare_the_calls_of_its_turn(tmp_path: Path) -> None:
    """`until` does not compare the tool calls of its turn, which the test checks itself."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann")[:1], **mailing(ALLOWED))
    with Replayer(fixture) as replay:
        step = replay.until(Mailer(**mailing(DENIED)).answer, "Mail them.", turn=1)
    assert step.now.outcome == "failed"


SAME_REQUESTS: dict[str, Any] = {"extra": {"tools": [declaration(Order)]}}
"""Options with which an agent without structured output sends the same requests as an agent with structured output."""
WITH_OUTPUT: dict[str, Any] = {"output": Order, "max_output_retries": 0}


class Twice:
    """An agent with two interactions, each with its own options; with `fails`, it raises an error afterwards."""

    def __init__(self, url: str | None, *options: dict[str, Any], fails: bool = False) -> None:
        self.url, self.options, self.fails = url, options, fails

    async def answer(self) -> None:
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=self.url, max_retries=0))
        world = live_world(client)
        with agentobs.session("twice"):
            for each in self.options:
                options = AgentOptions(model=MODEL, max_tokens=99, **SAME_REQUESTS, **each)
                await complete("Hello", world=world, options=options)
            if self.fails:
                raise ValueError("on its own")


def twice(tmp_path: Path, *options: dict[str, Any], fails: bool = False) -> Fixture:

    def play(url: str) -> None:
        with contextlib.suppress(ValueError):
            asyncio.run(Twice(url, *options, fails=fails).answer())

    responses = [streamed(text("Done."), number=number) for number in (1, 2)]
    return frozen(tmp_path, recorded(tmp_path, play, responses), "twice")


def test_a_changed_end_of_an_interaction_diverges(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """An interaction that ends differently diverges even if the outcome of the session is the same."""
    fixture = twice(tmp_path, {}, {})
    assert fixture.header["interaction_results"] == {"main": ["success", "success"]}
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(Twice(None, WITH_OUTPUT, {}).answer)
    assert raised.value.divergence.kind == "outcome"
    assert shown(raised.value.divergence) == snapshot


def test_a_changed_end_of_the_last_interaction_diverges(tmp_path: Path) -> None:
    """The last interaction is compared even if the session fails afterwards in the same way as in the recording."""
    fixture = twice(tmp_path, {}, {}, fails=True)
    assert fixture.header["reason"] == "ValueError"
    with Replayer(fixture) as same:
        same.run(Twice(None, {}, {}, fails=True).answer)
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(Twice(None, {}, WITH_OUTPUT, fails=True).answer)
    assert [(d.path, d.expected, d.actual) for d in raised.value.divergence.differences] == [
        ("$.main.interaction_2", "success", "error_max_structured_output_retries")
    ]


def test_a_fixture_without_results_is_compared_by_its_outcome(tmp_path: Path) -> None:
    """A fixture that was frozen before interaction results were recorded is compared by the session's outcome."""
    fixture = twice(tmp_path, {}, {})
    old = rewritten(
        fixture, lambda line: {k: v for k, v in line.items() if k != "interaction_results"}
    )
    with Replayer(old) as replay:
        replay.run(Twice(None, WITH_OUTPUT, {}).answer)
    with pytest.raises(DivergenceError) as raised, Replayer(old) as replay:
        replay.run(Twice(None, {}, WITH_OUTPUT).answer)
    assert raised.value.divergence.summary == "the session ended differently"


def test_interactions_of_third_party_agents_have_no_results(tmp_path: Path) -> None:
    """Fixtures of third-party agents have no interaction results, because their interactions are derived from
    requests.
    """
    assert "interaction_results" not in weather(tmp_path).header


def test_a_different_reason_for_the_same_decision_matches(tmp_path: Path) -> None:
    """A call that a rule allowed in the recording matches if the permission mode allows it now."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"), options={"permissions": ALLOWED})
    free = Permissions(mode="bypassPermissions", bypass_confirmed=True)
    assert replayed(fixture, {"options": {"permissions": free}}).progress.tools_matched == 1
