"""Automatic approval: a classifier decides concurrently with a person, or instead of a person."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.agent import (
    Abort,
    Consent,
    Conversation,
    Permission,
    Permissions,
    Rule,
    ToolDone,
    tool,
)
from agentobs.agent.execution.classifier import CALL_CHARS_MAX, Classifier
from agentobs.agent.execution.daemon_threads import ABANDONED_MAX
from agentobs.agent.execution.live_answers import LiveAnswers
from agentobs.agent.execution.live_answers import Reply as Said
from agentobs.agent.execution.tool_runner import live_tools
from agentobs.agent.hooks import Hook, table
from agentobs.agent.permissions import Denials
from agentobs.errors import UsageError
from agentobs.records.exchanges import WorldExchange, WorldQuestion, is_inside_answer
from agentobs.records.facts import SpanStart

from .agent_runs import of_kind, recorded, result_of
from .hooks.live_runs import SMALL, run_agent
from .provider import Provider, Reply, call, error, message, streamed, text, unstreamed

DONE = streamed(message(text("Done.")))
DEFAULT_MODE = Permissions()
CLASSIFIER = Classifier(SMALL)


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


def writes(*ids: str, what: str = "x") -> Reply:
    calls = [call(each, "write", what=what) for each in ids]
    return streamed(message(*calls, stop_reason="tool_use"))


def classifier_reply(behavior: Any, reason: Any = "So it is.") -> Reply:
    answer = call("j", "answer", behavior=behavior, reason=reason)
    return unstreamed(message(answer, model=SMALL, stop_reason="tool_use"))


def held_back(reply: Reply) -> tuple[Reply, threading.Event]:
    """Return the reply, which does not end before an event is set, and the event."""
    hold = threading.Event()
    return Reply(reply.chunks, hold=hold), hold


def deciders(events: list[Any]) -> list[tuple[str, str]]:
    return [(p.decision.behavior, p.decision.resolver) for p in of_kind(events, Permission)]


def outcomes(events: list[Any]) -> list[str]:
    return [done.answer.outcome for done in of_kind(events, ToolDone)]


class Person:
    """A person who answers after a number of requests to the provider, or never, and who counts withdrawn approval
    requests.
    """

    def __init__(
        self,
        provider: Provider,
        answer: Any = None,
        after: int = 0,
        is_prompted: threading.Event | None = None,
    ) -> None:
        self.provider, self.answer, self.after = provider, answer, after
        self.is_prompted = is_prompted or threading.Event()
        """Set when approval was requested."""
        self.consents, self.withdrawn = list[Consent](), 0

    async def __call__(self, consent: Consent) -> Any:
        self.consents.append(consent)
        self.is_prompted.set()
        try:
            while self.answer is None or len(self.provider.requests) < self.after:
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_the_classifier_is_faster_and_allows() -> None:
    """If the classifier answers first, its answer decides and is recorded with its name, the approval request is
    withdrawn, and its LLM request counts.
    """
    reply, hold = held_back(classifier_reply("allow"))
    with Provider([writes("a"), reply, DONE]) as provider, recorded() as records:
        person = Person(provider, is_prompted=hold)
        events = run_agent(
            provider, tools=[write], permissions=DEFAULT_MODE, person=person, classifier=CLASSIFIER
        )
    assert deciders(events) == [("allow", "classifier")]
    assert outcomes(events) == ["executed"]
    assert (len(person.consents), person.withdrawn) == (1, 1)
    (answer,) = [r.answer for r in records if isinstance(r, WorldExchange)]
    assert (answer["behavior"], answer["resolver"], answer["usage"][0]["model"]) == (
        "allow",
        "classifier",
        SMALL,
    )
    assert result_of(events).meter.by_model()["claude-1-small"].calls == 1
    lanes = {str(r.lane) for r in records if isinstance(r, SpanStart) and r.name == "llm_request"}
    assert {is_inside_answer(lane) for lane in lanes} == {False, True}


def test_the_person_is_faster() -> None:
    """If the person answers first, the classifier's request is cancelled, and its known usage counts as a lower
    bound.
    """
    reply, hold = held_back(classifier_reply("deny"))
    with Provider([writes("a"), reply, DONE]) as provider, recorded() as records:
        person = Person(provider, Said(True, "session"), after=2)
        events = run_agent(
            provider, tools=[write], permissions=DEFAULT_MODE, person=person, classifier=CLASSIFIER
        )
        hold.set()
    assert deciders(events) == [("allow", "person")]
    (answer,) = [r.answer for r in records if isinstance(r, WorldExchange)]
    usage = answer.pop("usage")
    assert answer == {"behavior": "allow", "resolver": "person", "scope": "session", "reason": ""}
    assert usage == [{"model": SMALL, "usage": {}, "certainty": "lower_bound"}]
    assert result_of(events).meter.by_model()["claude-1-small"].calls == 1


@pytest.mark.slow
def test_a_person_who_does_not_answer_is_prompted_once() -> None:
    """If a sync approval function never returns, it is called once and blocks only one thread; the classifier still
    approves all calls.
    """
    release, consents = threading.Event(), list[Consent]()

    def person(consent: Consent) -> bool:
        consents.append(consent)
        release.wait(60)
        return True

    names = [f"c{at}" for at in range(ABANDONED_MAX + 6)]
    replies = [writes(*names), *[classifier_reply("allow") for _ in names], DONE]
    with Provider(replies) as provider:
        events = run_agent(
            provider, tools=[write], permissions=DEFAULT_MODE, person=person, classifier=CLASSIFIER
        )
        release.set()
    assert deciders(events) == [("allow", "classifier")] * len(names)
    assert len(consents) == 1


def test_the_classifier_denies_with_a_reason() -> None:
    """Without a person, the classifier can deny a call, and the model gets its reason."""
    with Provider([writes("a"), classifier_reply("deny", "It is rude."), DONE]) as provider:
        events = run_agent(provider, tools=[write], permissions=DEFAULT_MODE, classifier=CLASSIFIER)
    assert deciders(events) == [("deny", "classifier")]
    (result,) = [b for b in provider.requests[2]["messages"][-1]["content"] if "tool_use_id" in b]
    assert result["content"].startswith("The classifier denied this call. Its reason: It is rude.")


FAILURES = [
    classifier_reply("maybe"),
    classifier_reply("Allow"),
    classifier_reply("allow", 3),
    classifier_reply(True),
    unstreamed(message(call("j", "answer", behavior="allow"), stop_reason="tool_use")),
    unstreamed(message(call("j", "answer", behavior="allow", reason="", sure=True))),
    unstreamed(message(call("j", "answer", behavior="allow", reason=""), stop_reason="max_tokens")),
    unstreamed(message(call("j", "other", behavior="allow", reason=""))),
    unstreamed(message(text("allow"))),
    error(529, "overloaded_error"),
    error(401, "authentication_error"),
    Reply((b"allow",)),
]


@pytest.mark.parametrize("reply", FAILURES)
def test_a_classifier_that_fails_does_not_allow(reply: Reply) -> None:
    """If the classifier fails and there is no person, the call is denied."""
    with Provider([writes("a"), reply, DONE]) as provider:
        events = run_agent(provider, tools=[write], permissions=DEFAULT_MODE, classifier=CLASSIFIER)
    assert deciders(events) == [("deny", "unattended")]
    assert "The classifier gave no answer" in of_kind(events, Permission)[0].decision.reason


def test_if_the_classifier_fails_the_person_decides() -> None:
    """If the classifier fails, the call waits for the answer of the person."""
    with Provider([writes("a"), classifier_reply("maybe"), DONE]) as provider:
        person = Person(provider, True, after=2)
        events = run_agent(
            provider, tools=[write], permissions=DEFAULT_MODE, person=person, classifier=CLASSIFIER
        )
    assert deciders(events) == [("allow", "person")]


def test_if_the_approval_request_fails_the_classifier_decides() -> None:
    """If the approval request raises an exception, the answer of the classifier decides."""
    with Provider([writes("a"), classifier_reply("allow"), DONE]) as provider:
        person = Person(provider, RuntimeError("no terminal"))
        events = run_agent(
            provider, tools=[write], permissions=DEFAULT_MODE, person=person, classifier=CLASSIFIER
        )
    assert deciders(events) == [("allow", "classifier")]


def test_a_classifier_that_times_out() -> None:
    """If the classifier times out and there is no person, the call is denied."""
    reply, hold = held_back(classifier_reply("allow"))
    with Provider([writes("a"), reply, DONE]) as provider:
        events = run_agent(
            provider,
            tools=[write],
            permissions=DEFAULT_MODE,
            classifier=Classifier(SMALL, timeout_s=0.2),
        )
        hold.set()
    assert deciders(events) == [("deny", "unattended")]


def test_a_call_that_is_too_long_is_not_classified() -> None:
    """A call that is too long for the classifier is not classified, because the truncated part could matter."""
    with Provider([writes("a", what="x" * CALL_CHARS_MAX), DONE]) as provider:
        events = run_agent(provider, tools=[write], permissions=DEFAULT_MODE, classifier=CLASSIFIER)
    assert deciders(events) == [("deny", "unattended")]
    assert len(provider.requests) == 2


def test_three_denials_in_a_row_escalate() -> None:
    """After three consecutive denials by the classifier, only a person may approve calls; without a person they are
    denied.
    """
    denied = [reply for at in range(3) for reply in (writes(f"c{at}"), classifier_reply("deny"))]
    with Provider([*denied, writes("d"), writes("e"), DONE]) as provider:
        conversation = Conversation()
        events = run_agent(
            provider,
            tools=[write],
            permissions=DEFAULT_MODE,
            classifier=CLASSIFIER,
            conversation=conversation,
        )
    assert deciders(events) == [("deny", "classifier")] * 3 + [("deny", "unattended")] * 2
    assert conversation.denials == Denials(3, 3)
    assert conversation.denials.escalates


def test_only_denials_by_the_classifier_are_counted() -> None:
    """Only denials by the classifier are counted, and only an approval by the classifier ends a sequence of denials."""
    answers = [
        ("deny", "classifier", Denials(1, 1)),
        ("deny", "person", Denials(1, 1)),
        ("deny", "unattended", Denials(1, 1)),
        ("deny", "classifier", Denials(2, 2)),
        ("allow", "person", Denials(2, 2)),
        ("allow", "classifier", Denials(0, 2)),
    ]
    counted = Denials()
    for behavior, by, after in answers:
        counted = counted.after_answer({"behavior": behavior, "resolver": by})
        assert counted == after
    for behavior in (*("deny", "deny", "allow") * 8, "deny", "deny"):
        assert not counted.escalates
        counted = counted.after_answer({"behavior": behavior, "resolver": "classifier"})
    assert counted == Denials(2, 20)
    assert counted.escalates


@given(st.none() | st.booleans() | st.text() | st.dictionaries(st.text(), st.text()))
def test_any_answer_can_be_counted(answer: Any) -> None:
    """Any answer of the world can be counted without an exception."""
    assert Denials(1, 2).after_answer(answer).in_all >= 2


def test_an_ask_rule_requires_a_person() -> None:
    """If an ask rule requires approval, the classifier is not called."""
    rules = Permissions(rules=(Rule.parse("write", "ask", "user"),))
    with Provider([writes("a"), DONE]) as provider:
        person = Person(provider, True)
        events = run_agent(
            provider, tools=[write], permissions=rules, person=person, classifier=CLASSIFIER
        )
    assert deciders(events) == [("allow", "person")]
    assert len(provider.requests) == 2


def test_a_hook_that_asks_requires_a_person() -> None:
    """If a hook requires approval, the classifier is not called."""
    hooks = table([Hook("pre_tool_use", lambda payload: {"decision": "ask"})])
    allowed = Permissions(rules=(Rule.parse("write", "allow", "user"),))
    with Provider([writes("a"), DONE]) as provider:
        events = run_agent(
            provider, tools=[write], hooks=hooks, permissions=allowed, classifier=CLASSIFIER
        )
    assert deciders(events) == [("deny", "unattended")]


def test_a_hook_and_the_mode_that_ask_require_a_person() -> None:
    """If a hook requires approval, the classifier is not called, although the mode alone would allow it to decide."""
    hooks = table([Hook("pre_tool_use", lambda payload: {"decision": "ask"})])
    with Provider([writes("a"), DONE]) as provider:
        events = run_agent(
            provider, tools=[write], hooks=hooks, permissions=DEFAULT_MODE, classifier=CLASSIFIER
        )
    assert deciders(events) == [("deny", "unattended")]
    assert len(provider.requests) == 2


def test_only_a_person_can_exceed_a_budget() -> None:
    """If approval is requested to exceed a budget, the classifier is not called."""

    async def classify(question: WorldQuestion) -> Any:
        raise AssertionError("the classifier was called")

    answers = LiveAnswers((), live_tools(()), classify=classify)
    question = WorldQuestion("consent", "1", {"about": {"limit": "day_usd"}, "reason": "Used up."})
    assert asyncio.run(answers.ask(question))["resolver"] == "unattended"


def test_an_abort_cancels_person_and_classifier() -> None:
    """An abort cancels both the approval request and the request of the classifier."""
    abort = Abort()
    reply, hold = held_back(classifier_reply("allow"))
    with Provider([writes("a"), reply]) as provider:
        person = Person(provider)

        async def stop_run(consent: Consent) -> Any:
            while len(provider.requests) < 2:
                await asyncio.sleep(0.01)
            abort.stop()
            return await person(consent)

        events = run_agent(
            provider,
            tools=[write],
            permissions=DEFAULT_MODE,
            person=stop_run,
            classifier=CLASSIFIER,
            abort=abort,
        )
        hold.set()
    assert deciders(events) == [("deny", "unattended")]
    assert person.withdrawn == 1


@pytest.mark.parametrize(
    "invalid", [{"model": ""}, {"instructions": " "}, {"timeout_s": 0}, {"timeout_s": float("inf")}]
)
def test_an_invalid_classifier_is_rejected(invalid: dict[str, Any]) -> None:
    """A classifier with invalid settings is rejected when it is created."""
    with pytest.raises(UsageError):
        Classifier(**{"model": SMALL, **invalid})
