"""Hooks that call a model: once, or as an agent that inspects the environment first."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from agentobs.agent import Abort, HookRan, Permissions, Result, Rule, ToolDone, tool
from agentobs.agent.hooks import AgentHook, Hook, PromptHook, table
from agentobs.records.exchanges import ToolExchange, WorldExchange, is_inside_answer
from agentobs.records.facts import SpanStart
from tests.agent.provider import (
    Provider,
    Reply,
    call,
    cut_after,
    error,
    message,
    streamed,
    text,
    whole,
)
from tests.agent.scene import of_kind, recorded, result_of

from .playing import SMALL, played

DONE = streamed(message(text("Done.")))
WRITES = streamed(message(call("a", "write", what="x"), stop_reason="tool_use"))


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool(read_only=True, paths=("file",), subject="file")
def read(file: str) -> str:
    """Read a file."""
    return Path(file).name


def answered(**answer: Any) -> Reply:
    return whole(message(call("j", "answer", **answer), model=SMALL, stop_reason="tool_use"))


def given(**answer: Any) -> Reply:
    return streamed(message(call("o", "structured_output", **answer), model=SMALL))


def ran(events: list[Any]) -> tuple[str, str]:
    (told,) = of_kind(events, HookRan)
    return told.outcome, told.reason


PROMPT = Hook("pre_tool_use", PromptHook("Is it safe?"), name="judge")
AGENT = Hook("pre_tool_use", AgentHook("Is it safe?"), name="agent")


def test_a_prompt_hook_asks_a_small_model_once() -> None:
    """It sees the event, and must answer through a tool; its veto blocks the call."""
    replies = [WRITES, answered(outcome="blocking", reason="It is rude."), DONE]
    with Provider(replies) as provider, recorded() as records:
        events = played(provider, tools=[write], hooks=table([PROMPT]))
    assert ran(events) == ("blocking", "It is rude.")
    asked = provider.requests[1]
    assert (asked["model"], asked["tool_choice"]) == (SMALL, {"type": "tool", "name": "answer"})
    (said,) = asked["messages"]
    before, _, payload = said["content"].partition("What happens:\n\n")
    assert before.startswith("Is it safe?")
    assert json.loads(payload)["tool_input"] == {"what": "x"}
    lanes = {str(r.lane) for r in records if isinstance(r, SpanStart) and r.name == "llm_request"}
    assert {is_inside_answer(lane) for lane in lanes} == {False, True}


def test_what_it_used_counts() -> None:
    """The answer carries the usage of the small model, and the run's meter includes it."""
    with Provider([WRITES, answered(reason="Fine."), DONE]) as provider:
        events = played(provider, tools=[write], hooks=table([PROMPT]))
    (result,) = of_kind(events, Result)
    assert result.meter.by_model()["claude-1-small"].calls == 1
    assert ran(events) == ("success", "Fine.")


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (whole(message(text("Yes."))), "gave no answer"),
        (whole(message(call("j", "other"))), "gave no answer"),
        (whole(message(call("j", "answer", reason="x"), stop_reason="max_tokens")), "cut"),
        (answered(outcome="maybe", reason="x"), "field outcome"),
        (error(529, "overloaded_error"), "the model call failed"),
        (Reply((b"{",)), "the model call failed"),
    ],
)
def test_a_small_model_that_fails_hurts_nobody(reply: Reply, found: str) -> None:
    """No answer, a broken one, an invalid one: an error that blocks nothing."""
    with Provider([WRITES, reply, DONE]) as provider:
        events = played(provider, tools=[write], hooks=table([PROMPT]))
    outcome, reason = ran(events)
    assert outcome == "non_blocking_error"
    assert found in reason
    assert [done.answer.outcome for done in of_kind(events, ToolDone)] == ["executed"]


def test_an_agent_hook_looks_around_and_answers() -> None:
    """It gets the read-only tools, and answers through a structured tool; its calls run no hooks."""
    looks = streamed(message(call("b", "look", where="box"), model=SMALL))
    fired: list[str] = []
    hooks = table([AGENT, Hook("post_tool_use", lambda told: fired.append(told["tool_name"]))])
    replies = [WRITES, looks, given(outcome="blocking", reason="The box is empty."), DONE]
    with Provider(replies) as provider, recorded() as records:
        events = played(provider, tools=[write, look], hooks=hooks)
    assert ran(events) == ("blocking", "The box is empty.")
    names = [each["name"] for each in provider.requests[1]["tools"]]
    assert names == ["look", "structured_output"]
    assert fired == []
    assert [str(e.question.name) for e in records if isinstance(e, ToolExchange)] == [
        "look",
        "structured_output",
        "write",
    ]
    meter = result_of(events).meter
    assert meter.by_model()["claude-1-small"].calls == 2


def test_an_agent_hook_that_runs_out_is_cancelled() -> None:
    """After its turns no request is sent, it does not block the call, and the outcome is visible."""
    looks = [streamed(message(call(f"b{at}", "look", where="box"), model=SMALL)) for at in range(3)]
    agent = Hook("pre_tool_use", AgentHook("Is it safe?", max_turns=3), name="agent")
    with Provider([WRITES, *looks, DONE]) as provider:
        events = played(provider, tools=[write, look], hooks=table([agent]))
    assert ran(events) == ("cancelled", "its agent did not answer within 3 turns")
    assert len(provider.requests) == 5


def test_an_agent_hook_whose_model_fails_is_cancelled() -> None:
    """The failure is reported."""
    with Provider([WRITES, error(400, "invalid_request_error"), DONE]) as provider:
        events = played(provider, tools=[write, look], hooks=table([AGENT]))
    outcome, reason = ran(events)
    assert outcome == "cancelled"
    assert "its agent failed" in reason


def small(events: list[Any], records: list[Any]) -> tuple[int, list[Any]]:
    """The number of calls of the small model, as the run counts them, and the certainty of each
    count in the answer.
    """
    asked = [r for r in records if isinstance(r, WorldExchange) and r.question.kind == "hook"]
    [answer] = [each.answer for each in asked]
    calls = result_of(events).meter.by_model()["claude-1-small"].calls
    return calls, [each.get("certainty") for each in answer["usage"]]


def test_what_an_agent_hook_used_counts_when_its_time_is_up() -> None:
    """Its complete responses, and the partial one as far as its usage is known."""
    looks, hold = message(call("b", "look", where="box"), model=SMALL), threading.Event()
    late = streamed(message(text("Hm."), model=SMALL), hold=hold)
    agent = Hook("pre_tool_use", AgentHook("Is it safe?"), name="agent", timeout_s=2)
    with Provider([WRITES, streamed(looks), late, DONE]) as provider, recorded() as records:
        events = played(provider, tools=[write, look], hooks=table([agent]))
        hold.set()
    assert ran(events) == ("cancelled", "no response within 2 seconds")
    assert small(events, records) == (2, [None, "lower_bound"])
    assert result_of(events).usage[SMALL].input_tokens == 20


def test_what_a_prompt_hook_used_counts_when_its_time_is_up() -> None:
    """Nothing had arrived, so the usage is a lower bound."""
    hold = threading.Event()
    late = Reply(answered(reason="Fine.").pieces, hold=hold)
    hook = Hook("pre_tool_use", PromptHook("Is it safe?"), name="judge", timeout_s=0.5)
    with Provider([WRITES, late, DONE]) as provider, recorded() as records:
        events = played(provider, tools=[write], hooks=table([hook]))
        hold.set()
    assert ran(events)[0] == "cancelled"
    assert small(events, records) == (1, ["lower_bound"])


def test_attempts_that_broke_inside_an_agent_hook_count() -> None:
    """The attempt before the complete response was billed as well."""
    broken = cut_after(message(text("Hm."), model=SMALL), 3)
    replies = [WRITES, broken, given(outcome="success", reason="ok"), DONE]
    with Provider(replies) as provider, recorded() as records:
        events = played(provider, tools=[write, look], hooks=table([AGENT]))
    assert ran(events)[0] == "success"
    assert small(events, records) == (2, ["lower_bound", None])


def test_an_agent_hook_changes_nothing_and_leaves_no_root(tmp_path: Path) -> None:
    """A writing tool is unknown to it, a path outside is denied, and it cannot request approval."""
    calls = message(
        call("b", "write", what="y"),
        call("c", "read", file="/etc/passwd"),
        call("d", "look", where="box"),
        model=SMALL,
    )
    denied = Permissions(mode="dontAsk", rules=(Rule.parse("look", "deny", "user"),))
    agent = Hook("pre_tool_use", AgentHook("Is it safe?", permissions=denied), name="agent")
    replies = [WRITES, streamed(calls), given(outcome="success", reason="ok"), DONE]
    with Provider(replies) as provider:
        played(provider, tools=[write, look, read], hooks=table([agent]), roots=[tmp_path])
    blocks = provider.requests[2]["messages"][-1]["content"]
    told = [block["content"] for block in blocks if block["type"] == "tool_result"]
    assert ["no tool" in told[0].lower() or "unknown" in told[0].lower()] == [True]
    assert "outside" in told[1]
    assert "denies" in told[2]


def test_an_abort_cancels_a_hook() -> None:
    """A run that is stopped while a hook runs ends, and the hook is cancelled."""
    abort = Abort()

    async def stops(payload: Any) -> None:
        abort.stop()
        await asyncio.Event().wait()

    hook = Hook("pre_tool_use", stops, name="stops")
    with Provider([WRITES]) as provider:
        events = played(provider, tools=[write], hooks=table([hook]), abort=abort)
    assert ran(events) == ("cancelled", "the run was stopped")
    assert result_of(events).terminal_reason in ("aborted_tools", "aborted_streaming")
