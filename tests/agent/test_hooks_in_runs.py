"""Hooks in the loop: when hooks run, and what their answers change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from agentobs.agent.budget import Budget
from agentobs.agent.context import Context
from agentobs.agent.events import (
    Compaction,
    Event,
    HookRan,
    Message,
    Permission,
    RequestStart,
    ToolDispatch,
    ToolDone,
)
from agentobs.agent.execution.live_answers import Reply
from agentobs.agent.hooks import Hook, HookEvent, table
from agentobs.agent.lifecycle_hooks import STOP_BLOCKS_MAX, end
from agentobs.agent.loop import complete
from agentobs.agent.permissions import Permissions, Rule
from agentobs.agent.state import Conversation
from agentobs.agent.sub_agents.starter import sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.agent.tools.tool import tool
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import WorldQuestion
from agentobs.records.facts import Event as EventFact
from agentobs.records.facts import SpanStart
from agentobs.world import Abort

from .agent_runs import (
    events_of,
    in_loop,
    of_kind,
    options,
    recorded,
    result_of,
    spans,
    ticking_world,
)
from .provider import Provider, call, error, message, streamed, text

DONE = message(text("Done."))
Answers = Mapping[str, Any]
"""The answers of hooks by name: each one is a value, or a function of the payload."""


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


def hook(event: HookEvent, name: str, **more: Any) -> Hook:
    return Hook(event, lambda payload: None, name=name, **more)


class ScriptedAnswers:
    """Answers questions about hooks from a script, and keeps the payloads of the questions."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.seen = answers, list[Json]()

    async def __call__(self, question: WorldQuestion) -> Json:
        self.seen.append(question.payload)
        answer = self.answers[question.payload["hook"]]
        return answer(question.payload) if callable(answer) else answer

    @property
    def events(self) -> list[str]:
        return [each["event"] for each in self.seen]


def run_with_hooks(
    provider: Provider, hooks: list[Hook], answers: Answers, **more: Any
) -> tuple[list[Event], ScriptedAnswers]:
    """Run an agent with hooks; return its events and the scripted answers."""
    scripted = ScriptedAnswers(answers)
    world = {"hooks": scripted, **more.pop("world", {})}
    return events_of(provider, hooks=table(hooks), world=world, **more), scripted


def results_in(request: Json) -> list[tuple[str, Any]]:
    """Return the ID and content of each result in the last message of a request."""
    blocks = request["messages"][-1]["content"]
    return [(b["tool_use_id"], b["content"]) for b in blocks if b["type"] == "tool_result"]


def texts_in(request: Json) -> list[str]:
    content = request["messages"][-1]["content"]
    return [content] if isinstance(content, str) else [b["text"] for b in content if "text" in b]


WRITES = message(call("a", "write", what="x"), stop_reason="tool_use")
LOOK_CALLS = message(call("a", "look", where="box"), call("b", "look", where="bag"))


def test_a_veto_blocks_a_call() -> None:
    """If a hook vetoes a call, the tool does not run, its result contains the reason, and the decision is attributed to
    the hook.
    """
    guard = hook("pre_tool_use", "guard", when="write")
    with Provider([streamed(WRITES), streamed(DONE)]) as provider, recorded() as records:
        answers = {"guard": {"outcome": "blocking", "reason": "Not on a Sunday."}}
        events, scripted = run_with_hooks(provider, [guard], answers, tools=[write])
    (done,) = of_kind(events, ToolDone)
    assert (done.answer.outcome, of_kind(events, ToolDispatch)) == ("blocked", [])
    ((_, content),) = results_in(provider.requests[1])
    assert content == "A hook blocks this call of write. Its reason: Not on a Sunday."
    (permission,) = of_kind(events, Permission)
    assert (permission.decision.resolver, permission.decision.reason_type) == ("hook", "hook")
    assert [denial.tool_use_id for denial in result_of(events).denials] == ["a"]
    (ran,) = of_kind(events, HookRan)
    assert (ran.event, ran.hook, ran.outcome, ran.tool_use_id) == (
        "pre_tool_use",
        "guard",
        "blocking",
        "a",
    )
    assert scripted.seen[0]["tool_input"] == {"what": "x"}
    assert ("hook", "guard", "tool", "ok") in spans(records)


def test_one_veto_among_many_blocks() -> None:
    """One veto blocks the call, whatever the answers of the other hooks are."""
    hooks = [hook("pre_tool_use", name) for name in ("yes", "no", "crash")]
    answers = {
        "yes": {"decision": "allow"},
        "no": {"outcome": "blocking", "reason": "No."},
        "crash": "nonsense",
    }
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        events, _ = run_with_hooks(provider, hooks, answers, tools=[write])
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["blocked"]
    assert [ran.outcome for ran in of_kind(events, HookRan)] == [
        "success",
        "blocking",
        "non_blocking_error",
    ]


def test_a_hook_changes_the_input() -> None:
    """If a hook changes the input of a call, the changed input is executed, and the conversation keeps the model's
    input.
    """
    changing = hook("pre_tool_use", "change")
    with Provider([streamed(WRITES), streamed(DONE)]) as provider, recorded() as records:
        answers = {"change": {"input": {"what": "y"}}}
        events, _ = run_with_hooks(provider, [changing], answers, tools=[write])
    assert provider.requests[1]["messages"][1]["content"] == [call("a", "write", what="x")]
    assert results_in(provider.requests[1]) == [("a", "wrote y")]
    assert [d.question.input for d in of_kind(events, ToolDispatch)] == [{"what": "y"}]
    facts = [(str(r.kind), r.label) for r in records if isinstance(r, EventFact)]
    assert ("rewritten", "input") in facts


def test_permissions_apply_to_the_changed_input() -> None:
    """If a hook changes the input of a call, permissions and validation apply to the changed input."""
    denying = Permissions(
        mode="bypassPermissions",
        bypass_confirmed=True,
        rules=(Rule.parse("write(y)", "deny", "user"),),
    )
    changing = hook("pre_tool_use", "change")
    for changed, outcome in (({"what": "y"}, "denied"), ({"who": "y"}, "invalid")):
        with Provider([streamed(WRITES), streamed(DONE)]) as provider:
            answers = {"change": {"input": changed, "decision": "allow"}}
            events, _ = run_with_hooks(
                provider, [changing], answers, tools=[write], permissions=denying
            )
        assert [d.answer.outcome for d in of_kind(events, ToolDone)] == [outcome]


DEFAULT_MODE = Permissions(mode="default")
WITH_RULE = Permissions(mode="default", rules=(Rule.parse("write", "ask", "user"),))
DENYING = Permissions(mode="default", rules=(Rule.parse("write", "deny", "user"),))


@pytest.mark.parametrize("event", ["pre_tool_use", "permission_request"])
@pytest.mark.parametrize(
    ("permissions", "outcome"),
    [(DEFAULT_MODE, "executed"), (WITH_RULE, "denied"), (DENYING, "denied")],
    ids=["no rule", "a rule to ask", "a rule to deny"],
)
def test_a_hook_can_approve_if_no_rule_requires_a_person(
    event: HookEvent, permissions: Permissions, outcome: str
) -> None:
    """A hook can approve a call that no rule decides, but not a call that a rule denies or for which a rule requires a
    person.
    """
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        answers = {"allow": {"decision": "allow"}}
        events, _ = run_with_hooks(
            provider, [hook(event, "allow")], answers, tools=[write], permissions=permissions
        )
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == [outcome]


def test_a_hook_can_require_approval() -> None:
    """A hook can require approval for a call that would otherwise be allowed; the call runs if the person
    approves it.
    """
    people: list[Any] = []

    def person(consent: Any) -> Reply:
        people.append(consent.reason)
        return Reply(True)

    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        hooks, answers = [hook("pre_tool_use", "ask")], {"ask": {"decision": "ask"}}
        events, _ = run_with_hooks(
            provider, hooks, answers, tools=[write], world={"person": person}
        )
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["executed"]
    assert people == ["A hook requires approval for this call of write."]


def test_a_hook_that_requires_approval_in_dont_ask_mode() -> None:
    """If a hook requires approval in the mode `dontAsk`, the call is denied and no approval is requested."""
    rules = (Rule.parse("write", "allow", "user"),)
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        hooks, answers = [hook("pre_tool_use", "ask")], {"ask": {"decision": "ask"}}
        events, _ = run_with_hooks(
            provider,
            hooks,
            answers,
            tools=[write],
            permissions=Permissions(mode="dontAsk", rules=rules),
            world={"person": lambda consent: pytest.fail("approval was requested")},
        )
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["blocked"]


def test_hooks_for_notifications_and_denials() -> None:
    """Notification hooks run when approval is requested, and denial hooks when a call is denied."""
    hooks = [hook("notification", "ring"), hook("permission_denied", "note", when="write")]
    answers = {"ring": {}, "note": {"context": "Ask for less."}}
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        _, scripted = run_with_hooks(
            provider,
            hooks,
            answers,
            tools=[write],
            permissions=DEFAULT_MODE,
            world={"person": lambda consent: Reply(False)},
        )
    assert scripted.events == ["notification", "permission_denied"]
    assert texts_in(provider.requests[1]) == ["Ask for less."]


def test_a_hook_changes_the_output() -> None:
    """If a hook changes the output of a tool, the model gets the changed output, and the event also contains the
    original output.
    """
    hooks = [hook("post_tool_use", "mask", when="write")]
    answers = {"mask": {"output": "wrote ***", "context": "It was masked."}}
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        events, scripted = run_with_hooks(provider, hooks, answers, tools=[write])
    (done,) = of_kind(events, ToolDone)
    assert (done.answer.content, done.original_result.content) == ("wrote ***", "wrote x")
    assert results_in(provider.requests[1]) == [("a", "wrote ***")]
    assert texts_in(provider.requests[1]) == ["It was masked."]
    assert scripted.seen[0]["tool_output"] == "wrote x"


def test_a_hook_objects_to_a_result() -> None:
    """If a hook objects to a result, the result is kept, and the objection is added after all results."""
    hooks = [hook("post_tool_use", "lint")]
    answers = {"lint": {"outcome": "blocking", "reason": "Two spaces."}}
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        run_with_hooks(provider, hooks, answers, tools=[write])
    assert results_in(provider.requests[1]) == [("a", "wrote x")]
    assert texts_in(provider.requests[1]) == ["A hook objects to the result of write: Two spaces."]


def test_failed_calls_run_other_hooks() -> None:
    """A failed call runs the `post_tool_use_failure` hooks and no `post_tool_use` hooks."""

    @tool(read_only=True)
    def fall() -> str:
        """Fall."""
        raise RuntimeError("ouch")

    hooks = [hook("post_tool_use", "done"), hook("post_tool_use_failure", "failed")]
    falls = message(call("a", "fall"), stop_reason="tool_use")
    with Provider([streamed(falls), streamed(DONE)]) as provider:
        _, scripted = run_with_hooks(provider, hooks, {"done": {}, "failed": {}}, tools=[fall])
    assert scripted.events == ["post_tool_use_failure"]
    assert scripted.seen[0]["outcome"] == "failed"


def test_a_call_with_hooks_does_not_start_early() -> None:
    """A reader with hooks, and the calls next to it, start after the complete response; other readers start early."""
    for when, early in (("look(box)", []), ("look(attic)", ["a", "b"])):
        guard = Hook("pre_tool_use", lambda payload: None, name="guard", when=when)
        with Provider([streamed(LOOK_CALLS), streamed(DONE)]) as provider:
            events, _ = run_with_hooks(provider, [guard], {"guard": {}}, tools=[searching])
        steps = of_kind(events, ToolDispatch, Message)
        before = steps[: next(at for at, e in enumerate(steps) if isinstance(e, Message))]
        assert [step.question.tool_use_id for step in before] == early


@tool(name="look", read_only=True, subject="where")
def searching(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def test_a_once_hook_runs_once_per_conversation() -> None:
    """Of two concurrent calls, only the first runs a `once` hook, which does not run again in a later run of the
    conversation.
    """
    hooks = [hook("post_tool_use", "first", once=True)]
    repeated_call = message(call("c", "look", where="box"))
    conversation, seen = Conversation(), list[list[str]]()
    for call_message in (LOOK_CALLS, repeated_call):
        with Provider([streamed(call_message), streamed(DONE)]) as provider:
            _, scripted = run_with_hooks(
                provider, hooks, {"first": {}}, tools=[look], conversation=conversation
            )
        seen.append([each["tool_use_id"] for each in scripted.seen])
    assert seen == [["a"], []]


def test_a_hook_rejects_a_prompt() -> None:
    """If a hook rejects a prompt, no request is sent, the conversation is unchanged, and the result names the hook as
    the reason.
    """
    conversation = Conversation()
    with Provider([]) as provider:
        events, scripted = run_with_hooks(
            provider,
            [hook("user_prompt_submit", "guard")],
            {"guard": {"outcome": "blocking", "reason": "No secrets."}},
            conversation=conversation,
        )
    result = result_of(events)
    assert (result.subtype, result.terminal_reason) == ("error_during_execution", "hook_stopped")
    assert (provider.requests, conversation.messages, scripted.seen[0]["prompt"]) == (
        [],
        (),
        "Hello",
    )


def test_hooks_add_context_to_a_prompt() -> None:
    """The context of start and prompt hooks is added after the prompt; start hooks run once per conversation."""
    hooks = [hook("session_start", "begin"), hook("user_prompt_submit", "date")]
    answers = {"begin": {"context": "Be brief."}, "date": {"context": "It is Sunday."}}
    conversation = Conversation()
    with Provider([streamed(DONE), streamed(DONE)]) as provider:
        run_with_hooks(provider, hooks, answers, conversation=conversation)
        _, scripted = run_with_hooks(provider, hooks, answers, conversation=conversation)
    assert texts_in(provider.requests[0]) == ["Hello", "Be brief.", "It is Sunday."]
    assert scripted.events == ["user_prompt_submit"]


def test_a_hook_prevents_the_end_of_a_run() -> None:
    """If a hook prevents the end of a run, the model is called again with the reason, which does not count as a turn
    with tools.
    """
    refuse = iter([True, True, False])
    answers = {
        "tests": lambda payload: (
            {"outcome": "blocking", "reason": f"Not yet ({payload['blocked_before']})."}
            if next(refuse)
            else {}
        )
    }
    with Provider([streamed(WRITES), *[streamed(DONE)] * 3]) as provider:
        events, _ = run_with_hooks(
            provider, [hook("stop", "tests")], answers, tools=[write], max_turns=2
        )
    assert result_of(events).terminal_reason == "completed"
    assert [e.transition for e in of_kind(events, RequestStart)] == [
        "start",
        "next_turn",
        "stop_hook_blocking",
        "stop_hook_blocking",
    ]
    assert [texts_in(request) for request in provider.requests[2:]] == [
        ["Not yet (0)."],
        ["Not yet (1)."],
    ]


def test_prevented_ends_are_limited() -> None:
    """If a hook prevents the end of a run too often, the hook is ignored, and the result reports this."""
    with Provider([streamed(DONE)] * (STOP_BLOCKS_MAX + 1)) as provider:
        events, _ = run_with_hooks(
            provider, [hook("stop", "never")], {"never": {"outcome": "blocking"}}
        )
    assert result_of(events).terminal_reason == "stop_hook_prevented"
    assert len(provider.requests) == STOP_BLOCKS_MAX + 1


class Answer(BaseModel):
    """An answer."""

    word: str


def test_a_hook_objects_to_an_output() -> None:
    """If a hook objects to a structured output, the output is not accepted, and the model provides another output."""
    outputs = [message(call(f"o{n}", "structured_output", word=w)) for n, w in ((1, "a"), (2, "b"))]
    answers = iter([{"outcome": "blocking", "reason": "Another word."}, {}])
    with Provider([streamed(each) for each in outputs]) as provider:
        events, _ = run_with_hooks(
            provider, [hook("stop", "check")], {"check": lambda _: next(answers)}, output=Answer
        )
    assert result_of(events).output == Answer(word="b")
    assert of_kind(events, RequestStart)[1].transition == "stop_hook_blocking"
    assert texts_in(provider.requests[1]) == ["Another word."]


def test_provider_failures_run_other_hooks() -> None:
    """If the provider fails, `stop_failure` hooks run instead of `stop` hooks, and cannot change the outcome."""
    hooks = [hook("stop", "end"), hook("stop_failure", "failed")]
    with Provider([error(400, "invalid_request_error")]) as provider:
        events, scripted = run_with_hooks(
            provider, hooks, {"end": {}, "failed": {"outcome": "blocking"}}
        )
    assert scripted.events == ["stop_failure"]
    assert scripted.seen[0]["reason"] == "model_error"
    assert result_of(events).terminal_reason == "model_error"


def test_a_hook_ends_the_run() -> None:
    """If a hook ends the run, running tools finish and their results are kept, and no further request is sent."""
    conversation = Conversation()
    with Provider([streamed(WRITES)]) as provider:
        events, _ = run_with_hooks(
            provider,
            [hook("post_tool_use", "enough")],
            {"enough": {"stop": True}},
            tools=[write],
            conversation=conversation,
        )
    assert result_of(events).terminal_reason == "hook_stopped"
    assert conversation.messages[-1]["content"][0]["content"] == "wrote x"


def test_usage_of_hooks_is_counted() -> None:
    """An LLM request of a hook counts once in its run and once in the conversation."""
    usage = {"input_tokens": 1000, "output_tokens": 7}
    answers = {"judge": {"usage": [{"model": "claude-haiku-4-5", "usage": usage}]}}
    conversation = Conversation()
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        events, _ = run_with_hooks(
            provider,
            [hook("pre_tool_use", "judge")],
            answers,
            tools=[write],
            conversation=conversation,
            budget=Budget(),
        )
    run = result_of(events).meter.by_model()
    assert run.keys() == conversation.meter.by_model().keys()
    assert (len(run), run["claude-haiku-4-5"].calls) == (2, 1)


def test_an_abort_cancels_hooks() -> None:
    """If a run is stopped while a hook hangs, the hook is cancelled, its call does not run, and the run ends with a
    result.
    """
    abort = Abort()

    async def hang(question: WorldQuestion) -> Json:
        abort.stop()
        await asyncio.Event().wait()

    with Provider([streamed(WRITES)]) as provider:
        events = events_of(
            provider,
            hooks=table([hook("pre_tool_use", "hang")]),
            world={"hooks": hang, "abort": abort},
            tools=[write],
        )
    assert [ran.outcome for ran in of_kind(events, HookRan)] == ["cancelled"]
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["aborted"]
    assert result_of(events).terminal_reason == "aborted_tools"


def test_hook_spans_are_inside_the_span_of_their_call() -> None:
    """Hooks before and after a call have spans inside the span of the call, which ends after them."""
    hooks = [hook("pre_tool_use", "before"), hook("post_tool_use", "after")]
    with Provider([streamed(WRITES), streamed(DONE)]) as provider, recorded() as records:
        run_with_hooks(provider, hooks, {"before": {}, "after": {}}, tools=[write])
    assert [each for each in spans(records) if each[0] == "hook"] == [
        ("hook", "before", "tool", "ok"),
        ("hook", "after", "tool", "ok"),
    ]
    assert len([r for r in records if isinstance(r, SpanStart) and r.name == "tool"]) == 1


def test_end_hooks_run_once() -> None:
    """End hooks run once if the conversation is explicitly ended; start hooks run again in a later run."""
    hooks = table([hook("session_start", "begin"), hook("session_end", "end")])
    scripted, conversation = ScriptedAnswers({"begin": {}, "end": {}}), Conversation()

    async def play() -> None:
        async with provider.client() as client:
            world = ticking_world(client, hooks=scripted)
            for prompt in ("Hello", "And now?"):
                run_options = options(hooks=hooks)
                await complete(prompt, world=world, options=run_options, conversation=conversation)
                for _ in range(2):
                    await end(conversation, world=world, options=run_options)

    with Provider([streamed(DONE), streamed(DONE)]) as provider:
        in_loop(play())
    assert scripted.events == ["session_start", "session_end"] * 2


def test_hooks_of_a_compaction() -> None:
    """A hook can prevent a compaction, add context to the instructions for the summary, or add context after the
    compaction.
    """
    small = Context(window_tokens=3000, summary_tokens=500, reserve_tokens=500)
    long = message(text("y" * 9000), usage={"input_tokens": 2400, "output_tokens": 10})
    hooks = [hook("pre_compact", "before"), hook("post_compact", "after")]
    veto = {"before": {"outcome": "blocking"}, "after": {}}
    adding = {"before": {"context": "Keep the names."}, "after": {"context": "Files changed."}}
    for answers, compactions, expected in (
        (veto, 0, ["pre_compact"]),
        (adding, 1, ["pre_compact", "post_compact"]),
    ):
        conversation = Conversation()
        with Provider([streamed(long), *[streamed(DONE)] * (1 + compactions)]) as provider:
            for _ in range(2):
                events, scripted = run_with_hooks(
                    provider, hooks, answers, context=small, conversation=conversation
                )
        assert len(of_kind(events, Compaction)) == compactions
        assert scripted.events == expected
    assert "Keep the names." in str(provider.requests[1])
    assert texts_in(provider.requests[2])[-1] == "Files changed."


def test_a_budget_question_runs_notification_hooks() -> None:
    """Notification hooks run if approval is requested to exceed a budget."""
    hooks, budget = [hook("notification", "ring")], Budget(session_turns=1, at_limit="ask")
    asks = [message(call(name, "write", what="x")) for name in ("a", "b")]
    with Provider([*map(streamed, asks), streamed(DONE)]) as provider:
        events, scripted = run_with_hooks(
            provider,
            hooks,
            {"ring": {}},
            tools=[write],
            budget=budget,
            world={"person": lambda consent: Reply(True)},
        )
    assert [each["kind"] for each in scripted.seen] == ["budget"]
    assert result_of(events).terminal_reason == "completed"


@tool
def store(what: str) -> str:
    """Store something."""
    return f"stored {what}"


LOUDER_HOOK = hook("pre_tool_use", "louder")


def louder(payload: Json) -> Json:
    return {"input": {"what": payload["tool_input"]["what"] + "!"}}


def test_a_repeated_call_runs_once_even_if_a_hook_changes_it() -> None:
    """Two calls with the same original input are identical and run once, even if a hook changes the input."""
    double = message(call("t1", "store", what="a"), call("t1", "store", what="a"))
    with Provider([streamed(double), streamed(DONE)]) as provider:
        events, _ = run_with_hooks(provider, [LOUDER_HOOK], {"louder": louder}, tools=[store])
    assert [(d.answer.outcome, d.answer.content[:9]) for d in of_kind(events, ToolDone)] == [
        ("executed", "stored a!"),
        ("deduplicated", "This call"),
    ]


def test_concurrency_is_checked_again_after_a_change() -> None:
    """If a hook changes a call so that it is no longer safe to run concurrently, the call waits for earlier calls and
    runs alone.
    """
    now: list[str] = []
    most: list[int] = []

    async def go(kind: str) -> str:
        """Go."""
        now.append(kind)
        most.append(len(now))
        for _ in range(50):
            await asyncio.sleep(0)
        now.remove(kind)
        return kind

    walk = tool(concurrent=lambda arguments: arguments["kind"] == "read")(go)
    calls = [call(name, "go", kind="read") for name in "abc"]

    def second(payload: Json) -> Json:
        return {"input": {"kind": "write"}} if payload["tool_use_id"] == "b" else {}

    with Provider([streamed(message(*calls)), streamed(DONE)]) as provider:
        events, _ = run_with_hooks(
            provider, [hook("pre_tool_use", "second")], {"second": second}, tools=[walk]
        )
    assert most == [1, 1, 1]
    assert [d.answer.content for d in of_kind(events, ToolDone)] == ["read", "write", "read"]
    with Provider([streamed(message(*calls)), streamed(DONE)]) as provider:
        run_with_hooks(provider, [hook("pre_tool_use", "none")], {"none": {}}, tools=[walk])
    assert most[3:] == [1, 2, 3]


def test_the_reason_of_a_veto_is_reported() -> None:
    """If a hook rejects a prompt, the result contains the reason; if a hook rejects a sub-agent, the model of its
    starter gets the reason.
    """
    veto = {"outcome": "blocking", "reason": "No scouts today."}
    with Provider([]) as provider:
        events, _ = run_with_hooks(provider, [hook("user_prompt_submit", "no")], {"no": veto})
    result = result_of(events)
    assert (result.error, result.error_text) == ("hook_stopped", "No scouts today.")
    start = sub_agents([AgentDefinition("scout", "Looks around.")])
    sent = message(call("a", "agent", agent="scout", prompt="Look."))
    with Provider([streamed(sent), streamed(DONE)]) as provider:
        run_with_hooks(provider, [hook("sub_agent_start", "no")], {"no": veto}, tools=[start])
    report = provider.requests[-1]["messages"][-1]["content"][0]["content"]
    assert report.startswith("The agent did not finish: a hook stopped it: No scouts today.")


def test_the_reason_of_a_hook_that_ends_a_run() -> None:
    """If a hook ends a run after its tools, the result contains the reason."""
    stop = {"stop": True, "reason": "Enough."}
    with Provider([streamed(message(call("a", "look", where="box")))]) as provider:
        events, _ = run_with_hooks(
            provider, [hook("post_tool_use", "enough")], {"enough": stop}, tools=[look]
        )
    result = result_of(events)
    assert (result.terminal_reason, result.error_text) == ("hook_stopped", "Enough.")
