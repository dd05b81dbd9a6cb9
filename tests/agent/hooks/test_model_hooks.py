"""Hooks that call a model: one LLM request, or an agent that inspects the environment before it answers."""

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
from tests.agent.agent_runs import of_kind, recorded, result_of
from tests.agent.provider import (
    Provider,
    Reply,
    call,
    cut_after,
    error,
    message,
    streamed,
    text,
    unstreamed,
)

from .live_runs import SMALL, run_agent

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


def hook_answer(**answer: Any) -> Reply:
    return unstreamed(message(call("j", "answer", **answer), model=SMALL, stop_reason="tool_use"))


def structured_output(**answer: Any) -> Reply:
    return streamed(message(call("o", "structured_output", **answer), model=SMALL))


def hook_outcome(events: list[Any]) -> tuple[str, str]:
    (ran_event,) = of_kind(events, HookRan)
    return ran_event.outcome, ran_event.reason


PROMPT = Hook("pre_tool_use", PromptHook("Is it safe?"), name="judge")
AGENT = Hook("pre_tool_use", AgentHook("Is it safe?"), name="agent")


def test_a_prompt_hook_calls_a_small_model_once() -> None:
    """A prompt hook sends the event to a small model, which must answer through a tool; a veto of the model blocks the
    call.
    """
    replies = [WRITES, hook_answer(outcome="blocking", reason="It is rude."), DONE]
    with Provider(replies) as provider, recorded() as records:
        events = run_agent(provider, tools=[write], hooks=table([PROMPT]))
    assert hook_outcome(events) == ("blocking", "It is rude.")
    request = provider.requests[1]
    assert (request["model"], request["tool_choice"]) == (SMALL, {"type": "tool", "name": "answer"})
    (user_message,) = request["messages"]
    before, _, payload = user_message["content"].partition("What happens:\n\n")
    assert before.startswith("Is it safe?")
    assert json.loads(payload)["tool_input"] == {"what": "x"}
    lanes = {str(r.lane) for r in records if isinstance(r, SpanStart) and r.name == "llm_request"}
    assert {is_inside_answer(lane) for lane in lanes} == {False, True}


def test_usage_of_a_prompt_hook_counts() -> None:
    """The answer of a prompt hook contains the usage of the small model, which the meter of the run includes."""
    with Provider([WRITES, hook_answer(reason="Fine."), DONE]) as provider:
        events = run_agent(provider, tools=[write], hooks=table([PROMPT]))
    (result,) = of_kind(events, Result)
    assert result.meter.by_model()["claude-1-small"].calls == 1
    assert hook_outcome(events) == ("success", "Fine.")


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (unstreamed(message(text("Yes."))), "gave no answer"),
        (unstreamed(message(call("j", "other"))), "gave no answer"),
        (unstreamed(message(call("j", "answer", reason="x"), stop_reason="max_tokens")), "cut"),
        (hook_answer(outcome="maybe", reason="x"), "field outcome"),
    ],
)
def test_an_invalid_answer_of_a_small_model_blocks_nothing(reply: Reply, found: str) -> None:
    """If the small model gives no valid answer, this is an error of the hook that does not block the call."""
    with Provider([WRITES, reply, DONE]) as provider:
        events = run_agent(provider, tools=[write], hooks=table([PROMPT]))
    outcome, reason = hook_outcome(events)
    assert outcome == "non_blocking_error"
    assert found in reason
    assert [done.answer.outcome for done in of_kind(events, ToolDone)] == ["executed"]


def test_an_agent_hook_uses_tools_and_answers() -> None:
    """An agent hook gets only read-only tools and answers through a structured output; its tool calls run no hooks."""
    look_reply = streamed(message(call("b", "look", where="box"), model=SMALL))
    fired: list[str] = []
    hooks = table(
        [AGENT, Hook("post_tool_use", lambda payload: fired.append(payload["tool_name"]))]
    )
    replies = [
        WRITES,
        look_reply,
        structured_output(outcome="blocking", reason="The box is empty."),
        DONE,
    ]
    with Provider(replies) as provider, recorded() as records:
        events = run_agent(provider, tools=[write, look], hooks=hooks)
    assert hook_outcome(events) == ("blocking", "The box is empty.")
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


def test_an_agent_hook_at_its_turn_limit_is_cancelled() -> None:
    """An agent hook that reaches its turn limit sends no further request and does not block the call; its outcome is
    `cancelled`.
    """
    look_reply = [
        streamed(message(call(f"b{at}", "look", where="box"), model=SMALL)) for at in range(3)
    ]
    agent = Hook("pre_tool_use", AgentHook("Is it safe?", max_turns=3), name="agent")
    with Provider([WRITES, *look_reply, DONE]) as provider:
        events = run_agent(provider, tools=[write, look], hooks=table([agent]))
    assert hook_outcome(events) == ("cancelled", "its agent did not answer within 3 turns")
    assert len(provider.requests) == 5


@pytest.mark.parametrize("hook", [PROMPT, AGENT])
@pytest.mark.parametrize("reply", [error(400, "invalid_request_error"), Reply((b"{",))])
def test_a_gate_whose_model_fails_is_a_veto(hook: Hook, reply: Reply) -> None:
    """If the model of a hook that could veto sends no response, the call does not run."""
    with Provider([WRITES, reply, DONE]) as provider:
        events = run_agent(provider, tools=[write, look], hooks=table([hook]))
    outcome, reason = hook_outcome(events)
    assert outcome == "blocking"
    assert "the model call failed" in reason
    assert [done.answer.outcome for done in of_kind(events, ToolDone)] == ["blocked"]


def small_model_calls(events: list[Any], records: list[Any]) -> tuple[int, list[Any]]:
    """Return how many calls of the small model the run counts, and the certainty of each usage in the hook's answer."""
    exchanges = [r for r in records if isinstance(r, WorldExchange) and r.question.kind == "hook"]
    [answer] = [each.answer for each in exchanges]
    calls = result_of(events).meter.by_model()["claude-1-small"].calls
    return calls, [each.get("certainty") for each in answer["usage"]]


@pytest.mark.slow
def test_usage_of_an_agent_hook_that_timed_out_counts() -> None:
    """If an agent hook times out, the usage of its complete responses counts, and so does the known usage of its
    partial response.
    """
    look_reply, hold = message(call("b", "look", where="box"), model=SMALL), threading.Event()
    late = streamed(message(text("Hm."), model=SMALL), hold=hold)
    agent = Hook("pre_tool_use", AgentHook("Is it safe?"), name="agent", timeout_s=2)
    with Provider([WRITES, streamed(look_reply), late, DONE]) as provider, recorded() as records:
        events = run_agent(provider, tools=[write, look], hooks=table([agent]))
        hold.set()
    assert hook_outcome(events) == ("cancelled", "no response within 2 seconds")
    assert small_model_calls(events, records) == (2, [None, "lower_bound"])
    assert result_of(events).usage[SMALL].input_tokens == 20


def test_usage_of_a_prompt_hook_that_timed_out_counts() -> None:
    """If a prompt hook times out before any usage arrived, its request counts with a lower bound."""
    hold = threading.Event()
    late = Reply(hook_answer(reason="Fine.").chunks, hold=hold)
    hook = Hook("pre_tool_use", PromptHook("Is it safe?"), name="judge", timeout_s=0.5)
    with Provider([WRITES, late, DONE]) as provider, recorded() as records:
        events = run_agent(provider, tools=[write], hooks=table([hook]))
        hold.set()
    assert hook_outcome(events)[0] == "cancelled"
    assert small_model_calls(events, records) == (1, ["lower_bound"])


def test_broken_attempts_of_an_agent_hook_count() -> None:
    """A broken attempt of an agent hook counts in addition to the complete response, because it may have been
    billed.
    """
    broken = cut_after(message(text("Hm."), model=SMALL), 3)
    replies = [WRITES, broken, structured_output(outcome="success", reason="ok"), DONE]
    with Provider(replies) as provider, recorded() as records:
        events = run_agent(provider, tools=[write, look], hooks=table([AGENT]))
    assert hook_outcome(events)[0] == "success"
    assert small_model_calls(events, records) == (2, ["lower_bound", None])


def test_an_agent_hook_cannot_write_or_leave_the_roots(tmp_path: Path) -> None:
    """An agent hook has no writing tools, cannot request approval, and is denied any path outside of the roots."""
    calls = message(
        call("b", "write", what="y"),
        call("c", "read", file="/etc/passwd"),
        call("d", "look", where="box"),
        model=SMALL,
    )
    denied = Permissions(mode="dontAsk", rules=(Rule.parse("look", "deny", "user"),))
    agent = Hook("pre_tool_use", AgentHook("Is it safe?", permissions=denied), name="agent")
    replies = [WRITES, streamed(calls), structured_output(outcome="success", reason="ok"), DONE]
    with Provider(replies) as provider:
        run_agent(provider, tools=[write, look, read], hooks=table([agent]), roots=[tmp_path])
    blocks = provider.requests[2]["messages"][-1]["content"]
    results = [block["content"] for block in blocks if block["type"] == "tool_result"]
    assert ["no tool" in results[0].lower() or "unknown" in results[0].lower()] == [True]
    assert "outside" in results[1]
    assert "denies" in results[2]


def test_an_abort_cancels_a_hook() -> None:
    """If a run is stopped while a hook runs, the hook is cancelled and the run ends."""
    abort = Abort()

    async def stop_run(payload: Any) -> None:
        abort.stop()
        await asyncio.Event().wait()

    hook = Hook("pre_tool_use", stop_run, name="stop_run")
    with Provider([WRITES]) as provider:
        events = run_agent(provider, tools=[write], hooks=table([hook]), abort=abort)
    assert hook_outcome(events) == ("cancelled", "the run was stopped")
    assert result_of(events).terminal_reason in ("aborted_tools", "aborted_streaming")
