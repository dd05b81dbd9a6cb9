"""Hooks in the loop: when they run, and the effects of their answers."""

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
from agentobs.agent.tools.agent_definitions import Agent
from agentobs.agent.tools.tool import tool
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import WorldQuestion
from agentobs.records.facts import Event as EventFact
from agentobs.records.facts import SpanStart
from agentobs.world import Abort

from .provider import Provider, call, error, message, streamed, text
from .scene import (
    events_of,
    in_loop,
    of_kind,
    options,
    recorded,
    result_of,
    spans,
    ticking_world,
)

DONE = message(text("Done."))
Answers = Mapping[str, Any]
"""The answers of hooks by name: a value, or a function of the payload."""


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


class Asked:
    """Scripted answers for hooks; keeps their payloads."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.seen = answers, list[Json]()

    async def __call__(self, question: WorldQuestion) -> Json:
        self.seen.append(question.asked)
        answer = self.answers[question.asked["hook"]]
        return answer(question.asked) if callable(answer) else answer

    @property
    def events(self) -> list[str]:
        return [each["event"] for each in self.seen]


def hooked(
    provider: Provider, hooks: list[Hook], answers: Answers, **more: Any
) -> tuple[list[Event], Asked]:
    """Run an agent with hooks; return its events and the hooks' payloads."""
    asked = Asked(answers)
    world = {"hooks": asked, **more.pop("world", {})}
    return events_of(provider, hooks=table(hooks), world=world, **more), asked


def results_in(request: Json) -> list[tuple[str, Any]]:
    """The results in the last message of a request: ID and content."""
    blocks = request["messages"][-1]["content"]
    return [(b["tool_use_id"], b["content"]) for b in blocks if b["type"] == "tool_result"]


def texts_in(request: Json) -> list[str]:
    content = request["messages"][-1]["content"]
    return [content] if isinstance(content, str) else [b["text"] for b in content if "text" in b]


WRITES = message(call("a", "write", what="x"), stop_reason="tool_use")
LOOKS = message(call("a", "look", where="box"), call("b", "look", where="bag"))


def test_a_veto_blocks_a_call() -> None:
    """The tool does not run; the model is told why, and the decision is the hook's."""
    guard = hook("pre_tool_use", "guard", when="write")
    with Provider([streamed(WRITES), streamed(DONE)]) as provider, recorded() as records:
        answers = {"guard": {"outcome": "blocking", "reason": "Not on a Sunday."}}
        events, asked = hooked(provider, [guard], answers, tools=[write])
    (done,) = of_kind(events, ToolDone)
    assert (done.answer.outcome, of_kind(events, ToolDispatch)) == ("blocked", [])
    ((_, told),) = results_in(provider.requests[1])
    assert told == "A hook blocks this call of write. It says: Not on a Sunday."
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
    assert asked.seen[0]["tool_input"] == {"what": "x"}
    assert ("hook", "guard", "tool", "ok") in spans(records)


def test_one_veto_among_many_blocks() -> None:
    """One veto is enough, whatever the others answer."""
    hooks = [hook("pre_tool_use", name) for name in ("yes", "no", "crash")]
    answers = {
        "yes": {"decision": "allow"},
        "no": {"outcome": "blocking", "reason": "No."},
        "crash": "nonsense",
    }
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        events, _ = hooked(provider, hooks, answers, tools=[write])
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["blocked"]
    assert [ran.outcome for ran in of_kind(events, HookRan)] == [
        "success",
        "blocking",
        "non_blocking_error",
    ]


def test_a_hook_changes_the_input() -> None:
    """The changed input is executed; the conversation keeps the model's input."""
    changing = hook("pre_tool_use", "change")
    with Provider([streamed(WRITES), streamed(DONE)]) as provider, recorded() as records:
        answers = {"change": {"input": {"what": "y"}}}
        events, _ = hooked(provider, [changing], answers, tools=[write])
    assert provider.requests[1]["messages"][1]["content"] == [call("a", "write", what="x")]
    assert results_in(provider.requests[1]) == [("a", "wrote y")]
    assert [d.question.input for d in of_kind(events, ToolDispatch)] == [{"what": "y"}]
    told = [(str(r.kind), r.label) for r in records if isinstance(r, EventFact)]
    assert ("rewritten", "input") in told


def test_the_changed_input_is_what_is_decided_on() -> None:
    """A rule that denies the changed input denies the call, and a changed input may be invalid."""
    denying = Permissions(
        mode="bypassPermissions",
        bypass_confirmed=True,
        rules=(Rule.parse("write(y)", "deny", "user"),),
    )
    changing = hook("pre_tool_use", "change")
    for changed, outcome in (({"what": "y"}, "denied"), ({"who": "y"}, "invalid")):
        with Provider([streamed(WRITES), streamed(DONE)]) as provider:
            answers = {"change": {"input": changed, "decision": "allow"}}
            events, _ = hooked(provider, [changing], answers, tools=[write], permissions=denying)
        assert [d.answer.outcome for d in of_kind(events, ToolDone)] == [outcome]


ASKING = Permissions(mode="default")
WITH_RULE = Permissions(mode="default", rules=(Rule.parse("write", "ask", "user"),))
DENYING = Permissions(mode="default", rules=(Rule.parse("write", "deny", "user"),))


@pytest.mark.parametrize("event", ["pre_tool_use", "permission_request"])
@pytest.mark.parametrize(
    ("permissions", "outcome"),
    [(ASKING, "executed"), (WITH_RULE, "denied"), (DENYING, "denied")],
    ids=["no rule", "a rule to ask", "a rule to deny"],
)
def test_a_hook_stands_for_a_person_where_no_rule_wants_one(
    event: HookEvent, permissions: Permissions, outcome: str
) -> None:
    """It may allow undecided calls, but never a call that a rule denies or for which it requires a person."""
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        answers = {"allow": {"decision": "allow"}}
        events, _ = hooked(
            provider, [hook(event, "allow")], answers, tools=[write], permissions=permissions
        )
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == [outcome]


def test_a_hook_wants_a_person_to_be_asked() -> None:
    """An otherwise allowed call needs approval, and runs when the person approves."""
    people: list[Any] = []

    def person(consent: Any) -> Reply:
        people.append(consent.reason)
        return Reply(True)

    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        hooks, answers = [hook("pre_tool_use", "ask")], {"ask": {"decision": "ask"}}
        events, _ = hooked(provider, hooks, answers, tools=[write], world={"person": person})
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["executed"]
    assert people == ["A hook asks for consent to this call of write."]


def test_where_nobody_is_asked_a_hook_cannot_ask() -> None:
    """In the mode `dontAsk` a call for which a hook requires approval is denied without a prompt."""
    rules = (Rule.parse("write", "allow", "user"),)
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        hooks, answers = [hook("pre_tool_use", "ask")], {"ask": {"decision": "ask"}}
        events, _ = hooked(
            provider,
            hooks,
            answers,
            tools=[write],
            permissions=Permissions(mode="dontAsk", rules=rules),
            world={"person": lambda consent: pytest.fail("a person was asked")},
        )
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["blocked"]


def test_denials_and_waits_are_told_to_hooks() -> None:
    """Notification hooks run when approval is requested, denial hooks when a call is denied."""
    hooks = [hook("notification", "ring"), hook("permission_denied", "note", when="write")]
    answers = {"ring": {}, "note": {"context": "Ask for less."}}
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        _, asked = hooked(
            provider,
            hooks,
            answers,
            tools=[write],
            permissions=ASKING,
            world={"person": lambda consent: Reply(False)},
        )
    assert asked.events == ["notification", "permission_denied"]
    assert texts_in(provider.requests[1]) == ["Ask for less."]


def test_a_hook_changes_the_output() -> None:
    """The model sees the changed output; the event also has the original."""
    hooks = [hook("post_tool_use", "mask", when="write")]
    answers = {"mask": {"output": "wrote ***", "context": "It was masked."}}
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        events, asked = hooked(provider, hooks, answers, tools=[write])
    (done,) = of_kind(events, ToolDone)
    assert (done.answer.content, done.came.content) == ("wrote ***", "wrote x")
    assert results_in(provider.requests[1]) == [("a", "wrote ***")]
    assert texts_in(provider.requests[1]) == ["It was masked."]
    assert asked.seen[0]["tool_output"] == "wrote x"


def test_a_hook_objects_to_a_result() -> None:
    """The result stays, and the model is told of the objection after all results."""
    hooks = [hook("post_tool_use", "lint")]
    answers = {"lint": {"outcome": "blocking", "reason": "Two spaces."}}
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        hooked(provider, hooks, answers, tools=[write])
    assert results_in(provider.requests[1]) == [("a", "wrote x")]
    assert texts_in(provider.requests[1]) == ["A hook objects to the result of write: Two spaces."]


def test_failures_have_hooks_of_their_own() -> None:
    """A failed call runs the hooks for failures, and not those for results."""

    @tool(read_only=True)
    def fall() -> str:
        """Fall."""
        raise RuntimeError("ouch")

    hooks = [hook("post_tool_use", "done"), hook("post_tool_use_failure", "failed")]
    falls = message(call("a", "fall"), stop_reason="tool_use")
    with Provider([streamed(falls), streamed(DONE)]) as provider:
        _, asked = hooked(provider, hooks, {"done": {}, "failed": {}}, tools=[fall])
    assert asked.events == ["post_tool_use_failure"]
    assert asked.seen[0]["outcome"] == "failed"


def test_a_call_with_hooks_does_not_begin_early() -> None:
    """A reader with hooks waits for the whole response, as do calls next to it; others start early."""
    for when, early in (("look(box)", []), ("look(attic)", ["a", "b"])):
        guard = Hook("pre_tool_use", lambda payload: None, name="guard", when=when)
        with Provider([streamed(LOOKS), streamed(DONE)]) as provider:
            events, _ = hooked(provider, [guard], {"guard": {}}, tools=[searching])
        steps = of_kind(events, ToolDispatch, Message)
        before = steps[: next(at for at, e in enumerate(steps) if isinstance(e, Message))]
        assert [step.question.tool_use_id for step in before] == early


@tool(name="look", read_only=True, subject="where")
def searching(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def test_once_is_once_in_a_conversation() -> None:
    """Of two parallel calls the first gets it, and a later run of the conversation does not run it again."""
    hooks = [hook("post_tool_use", "first", once=True)]
    again = message(call("c", "look", where="box"))
    talk, seen = Conversation(), list[list[str]]()
    for asking in (LOOKS, again):
        with Provider([streamed(asking), streamed(DONE)]) as provider:
            _, asked = hooked(provider, hooks, {"first": {}}, tools=[look], conversation=talk)
        seen.append([each["tool_use_id"] for each in asked.seen])
    assert seen == [["a"], []]


def test_a_hook_refuses_a_prompt() -> None:
    """No request is sent, nothing enters the conversation, and the result says what ended it."""
    talk = Conversation()
    with Provider([]) as provider:
        events, asked = hooked(
            provider,
            [hook("user_prompt_submit", "guard")],
            {"guard": {"outcome": "blocking", "reason": "No secrets."}},
            conversation=talk,
        )
    result = result_of(events)
    assert (result.subtype, result.terminal_reason) == ("error_during_execution", "hook_stopped")
    assert (provider.requests, talk.messages, asked.seen[0]["prompt"]) == ([], (), "Hello")


def test_hooks_add_to_a_prompt() -> None:
    """Context from start and prompt hooks follows the prompt; start hooks run once per conversation."""
    hooks = [hook("session_start", "begin"), hook("user_prompt_submit", "date")]
    answers = {"begin": {"context": "Be brief."}, "date": {"context": "It is Sunday."}}
    talk = Conversation()
    with Provider([streamed(DONE), streamed(DONE)]) as provider:
        hooked(provider, hooks, answers, conversation=talk)
        _, asked = hooked(provider, hooks, answers, conversation=talk)
    assert texts_in(provider.requests[0]) == ["Hello", "Be brief.", "It is Sunday."]
    assert asked.events == ["user_prompt_submit"]


def test_a_hook_keeps_the_run_from_ending() -> None:
    """The model is called again with the reason; this does not count as a turn that used tools."""
    refuse = iter([True, True, False])
    answers = {
        "tests": lambda asked: (
            {"outcome": "blocking", "reason": f"Not yet ({asked['blocked_before']})."}
            if next(refuse)
            else {}
        )
    }
    with Provider([streamed(WRITES), *[streamed(DONE)] * 3]) as provider:
        events, _ = hooked(provider, [hook("stop", "tests")], answers, tools=[write], max_turns=2)
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


def test_no_hook_holds_a_run_for_ever() -> None:
    """A hook that always objects is ignored after a number of times, and the result says so."""
    with Provider([streamed(DONE)] * (STOP_BLOCKS_MAX + 1)) as provider:
        events, _ = hooked(provider, [hook("stop", "never")], {"never": {"outcome": "blocking"}})
    assert result_of(events).terminal_reason == "stop_hook_prevented"
    assert len(provider.requests) == STOP_BLOCKS_MAX + 1


class Answer(BaseModel):
    """An answer."""

    word: str


def test_a_hook_objects_to_an_output() -> None:
    """The output is not accepted, and the model provides another one."""
    gives = [message(call(f"o{n}", "structured_output", word=w)) for n, w in ((1, "a"), (2, "b"))]
    answers = iter([{"outcome": "blocking", "reason": "Another word."}, {}])
    with Provider([streamed(each) for each in gives]) as provider:
        events, _ = hooked(
            provider, [hook("stop", "check")], {"check": lambda _: next(answers)}, output=Answer
        )
    assert result_of(events).output == Answer(word="b")
    assert of_kind(events, RequestStart)[1].transition == "stop_hook_blocking"
    assert texts_in(provider.requests[1]) == ["Another word."]


def test_errors_of_the_provider_fire_other_hooks() -> None:
    """Stop hooks do not run after a provider failure; failure hooks do, and cannot change it."""
    hooks = [hook("stop", "end"), hook("stop_failure", "failed")]
    with Provider([error(400, "invalid_request_error")]) as provider:
        events, asked = hooked(provider, hooks, {"end": {}, "failed": {"outcome": "blocking"}})
    assert asked.events == ["stop_failure"]
    assert asked.seen[0]["reason"] == "model_error"
    assert result_of(events).terminal_reason == "model_error"


def test_a_hook_ends_the_run() -> None:
    """After the running tools, each with its result, no further request is sent."""
    talk = Conversation()
    with Provider([streamed(WRITES)]) as provider:
        events, _ = hooked(
            provider,
            [hook("post_tool_use", "enough")],
            {"enough": {"stop": True}},
            tools=[write],
            conversation=talk,
        )
    assert result_of(events).terminal_reason == "hook_stopped"
    assert talk.messages[-1]["content"][0]["content"] == "wrote x"


def test_what_hooks_used_is_counted() -> None:
    """Requests made by hooks count in the run and in the conversation, each once."""
    usage = {"input_tokens": 1000, "output_tokens": 7}
    answers = {"judge": {"usage": [{"model": "claude-haiku-4-5", "usage": usage}]}}
    talk = Conversation()
    with Provider([streamed(WRITES), streamed(DONE)]) as provider:
        events, _ = hooked(
            provider,
            [hook("pre_tool_use", "judge")],
            answers,
            tools=[write],
            conversation=talk,
            budget=Budget(),
        )
    run = result_of(events).meter.by_model()
    assert run.keys() == talk.meter.by_model().keys()
    assert (len(run), run["claude-haiku-4-5"].calls) == (2, 1)


def test_an_abort_cancels_hooks() -> None:
    """A hanging hook is cancelled when the run is stopped, the call does not run, and the result arrives."""
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


def test_hook_spans_lie_in_the_span_of_their_call() -> None:
    """Hooks before and after a call are recorded inside its span, which ends after them."""
    hooks = [hook("pre_tool_use", "before"), hook("post_tool_use", "after")]
    with Provider([streamed(WRITES), streamed(DONE)]) as provider, recorded() as records:
        hooked(provider, hooks, {"before": {}, "after": {}}, tools=[write])
    assert [each for each in spans(records) if each[0] == "hook"] == [
        ("hook", "before", "tool", "ok"),
        ("hook", "after", "tool", "ok"),
    ]
    assert len([r for r in records if isinstance(r, SpanStart) and r.name == "tool"]) == 1


def test_the_end_of_a_conversation_is_told_once() -> None:
    """End hooks run when the conversation is ended explicitly; a later run starts it again."""
    hooks = table([hook("session_start", "begin"), hook("session_end", "end")])
    asked, talk = Asked({"begin": {}, "end": {}}), Conversation()

    async def play() -> None:
        async with provider.client() as client:
            world = ticking_world(client, hooks=asked)
            for prompt in ("Hello", "And now?"):
                told = options(hooks=hooks)
                await complete(prompt, world=world, options=told, conversation=talk)
                for _ in range(2):
                    await end(talk, world=world, options=told)

    with Provider([streamed(DONE), streamed(DONE)]) as provider:
        in_loop(play())
    assert asked.events == ["session_start", "session_end"] * 2


def test_hooks_of_a_compaction() -> None:
    """A hook may prevent it; context is added to the summary's instructions, or follows the conversation."""
    small = Context(window_tokens=3000, summary_tokens=500, reserve_tokens=500)
    long = message(text("y" * 9000), usage={"input_tokens": 2400, "output_tokens": 10})
    hooks = [hook("pre_compact", "before"), hook("post_compact", "after")]
    veto = {"before": {"outcome": "blocking"}, "after": {}}
    adding = {"before": {"context": "Keep the names."}, "after": {"context": "Files changed."}}
    for answers, compactions, asked in (
        (veto, 0, ["pre_compact"]),
        (adding, 1, ["pre_compact", "post_compact"]),
    ):
        talk = Conversation()
        with Provider([streamed(long), *[streamed(DONE)] * (1 + compactions)]) as provider:
            for _ in range(2):
                events, heard = hooked(provider, hooks, answers, context=small, conversation=talk)
        assert len(of_kind(events, Compaction)) == compactions
        assert heard.events == asked
    assert "Keep the names." in str(provider.requests[1])
    assert texts_in(provider.requests[2])[-1] == "Files changed."


def test_a_person_who_is_asked_for_more_money_is_told_of() -> None:
    """A notification hook also runs for the question about a budget."""
    hooks, budget = [hook("notification", "ring")], Budget(session_turns=1, at_limit="ask")
    asks = [message(call(name, "write", what="x")) for name in ("a", "b")]
    with Provider([*map(streamed, asks), streamed(DONE)]) as provider:
        events, heard = hooked(
            provider,
            hooks,
            {"ring": {}},
            tools=[write],
            budget=budget,
            world={"person": lambda consent: Reply(True)},
        )
    assert [each["kind"] for each in heard.seen] == ["budget"]
    assert result_of(events).terminal_reason == "completed"


@tool
def store(what: str) -> str:
    """Store something."""
    return f"stored {what}"


LOUDER = hook("pre_tool_use", "louder")


def louder(asked: Json) -> Json:
    return {"input": {"what": asked["tool_input"]["what"] + "!"}}


def test_a_doubled_call_runs_once_though_a_hook_rewrites_it() -> None:
    """Two calls are identical if the model requested the same, whatever the first one executed."""
    double = message(call("t1", "store", what="a"), call("t1", "store", what="a"))
    with Provider([streamed(double), streamed(DONE)]) as provider:
        events, _ = hooked(provider, [LOUDER], {"louder": louder}, tools=[store])
    assert [(d.answer.outcome, d.answer.content[:9]) for d in of_kind(events, ToolDone)] == [
        ("executed", "stored a!"),
        ("deduplicated", "This call"),
    ]


def test_a_rewritten_call_runs_beside_others_only_where_it_may() -> None:
    """Concurrency is checked again: a call changed by hooks waits for earlier calls, and runs alone."""
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

    walk = tool(concurrent=lambda given: given["kind"] == "read")(go)
    calls = [call(name, "go", kind="read") for name in "abc"]

    def second(asked: Json) -> Json:
        return {"input": {"kind": "write"}} if asked["tool_use_id"] == "b" else {}

    with Provider([streamed(message(*calls)), streamed(DONE)]) as provider:
        events, _ = hooked(
            provider, [hook("pre_tool_use", "second")], {"second": second}, tools=[walk]
        )
    assert most == [1, 1, 1]
    assert [d.answer.content for d in of_kind(events, ToolDone)] == ["read", "write", "read"]
    with Provider([streamed(message(*calls)), streamed(DONE)]) as provider:
        hooked(provider, [hook("pre_tool_use", "none")], {"none": {}}, tools=[walk])
    assert most[3:] == [1, 2, 3]


def test_a_veto_says_why() -> None:
    """For a prompt, in the result. For a sub-agent, to the model of its starter."""
    veto = {"outcome": "blocking", "reason": "No scouts today."}
    with Provider([]) as provider:
        events, _ = hooked(provider, [hook("user_prompt_submit", "no")], {"no": veto})
    result = result_of(events)
    assert (result.error, result.error_text) == ("hook_stopped", "No scouts today.")
    start = sub_agents([Agent("scout", "Looks around.")])
    sent = message(call("a", "agent", agent="scout", prompt="Look."))
    with Provider([streamed(sent), streamed(DONE)]) as provider:
        hooked(provider, [hook("sub_agent_start", "no")], {"no": veto}, tools=[start])
    told = provider.requests[-1]["messages"][-1]["content"][0]["content"]
    assert told.startswith("The agent did not finish: a hook stopped it: No scouts today.")


def test_a_hook_that_stops_says_why() -> None:
    """The result has the reason of the hook that ended the run after its tools."""
    stop = {"stop": True, "reason": "Enough."}
    with Provider([streamed(message(call("a", "look", where="box")))]) as provider:
        events, _ = hooked(
            provider, [hook("post_tool_use", "enough")], {"enough": stop}, tools=[look]
        )
    result = result_of(events)
    assert (result.terminal_reason, result.error_text) == ("hook_stopped", "Enough.")
