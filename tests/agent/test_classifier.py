"""Automatic approval: a classifier that answers in addition to a person, or in place of one."""

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
from agentobs.agent.execution.daemon_threads import LEFT_MAX
from agentobs.agent.execution.live_answers import LiveAnswers
from agentobs.agent.execution.live_answers import Reply as Said
from agentobs.agent.execution.tool_runner import live_tools
from agentobs.agent.hooks import Hook, table
from agentobs.agent.permissions import Denials
from agentobs.errors import UsageError
from agentobs.records.exchanges import WorldExchange, WorldQuestion, is_inside_answer
from agentobs.records.facts import SpanStart

from .hooks.playing import SMALL, played
from .provider import Provider, Reply, call, error, message, streamed, text, whole
from .scene import of_kind, recorded, result_of

DONE = streamed(message(text("Done.")))
ASKS = Permissions()
CLASSIFIER = Classifier(SMALL)


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


def writes(*ids: str, what: str = "x") -> Reply:
    calls = [call(each, "write", what=what) for each in ids]
    return streamed(message(*calls, stop_reason="tool_use"))


def says(behavior: Any, reason: Any = "So it is.") -> Reply:
    answer = call("j", "answer", behavior=behavior, reason=reason)
    return whole(message(answer, model=SMALL, stop_reason="tool_use"))


def held(reply: Reply) -> tuple[Reply, threading.Event]:
    """The same reply, which does not end before it is released."""
    hold = threading.Event()
    return Reply(reply.pieces, hold=hold), hold


def deciders(events: list[Any]) -> list[tuple[str, str]]:
    return [(p.decision.behavior, p.decision.resolver) for p in of_kind(events, Permission)]


def outcomes(events: list[Any]) -> list[str]:
    return [done.answer.outcome for done in of_kind(events, ToolDone)]


class Person:
    """A person who answers after a number of requests, or never; records whether the prompt was cancelled."""

    def __init__(
        self,
        provider: Provider,
        answer: Any = None,
        after: int = 0,
        heard: threading.Event | None = None,
    ) -> None:
        self.provider, self.answer, self.after = provider, answer, after
        self.heard = heard or threading.Event()
        """Set when the person was asked."""
        self.asked, self.withdrawn = list[Consent](), 0

    async def __call__(self, consent: Consent) -> Any:
        self.asked.append(consent)
        self.heard.set()
        try:
            while self.answer is None or len(self.provider.requests) < self.after:
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_the_classifier_is_first_and_allows() -> None:
    """Its answer decides and is recorded with its name; the person's prompt is withdrawn; its request counts."""
    reply, hold = held(says("allow"))
    with Provider([writes("a"), reply, DONE]) as provider, recorded() as records:
        person = Person(provider, heard=hold)
        events = played(
            provider, tools=[write], permissions=ASKS, person=person, classifier=CLASSIFIER
        )
    assert deciders(events) == [("allow", "classifier")]
    assert outcomes(events) == ["executed"]
    assert (len(person.asked), person.withdrawn) == (1, 1)
    (answer,) = [r.answer for r in records if isinstance(r, WorldExchange)]
    assert (answer["behavior"], answer["resolver"], answer["usage"][0]["model"]) == (
        "allow",
        "classifier",
        SMALL,
    )
    assert result_of(events).meter.by_model()["claude-1-small"].calls == 1
    lanes = {str(r.lane) for r in records if isinstance(r, SpanStart) and r.name == "llm_request"}
    assert {is_inside_answer(lane) for lane in lanes} == {False, True}


def test_the_person_is_first() -> None:
    """The classifier's request is cancelled without an answer; its usage counts as far as it is known."""
    reply, hold = held(says("deny"))
    with Provider([writes("a"), reply, DONE]) as provider, recorded() as records:
        person = Person(provider, Said(True, "session"), after=2)
        events = played(
            provider, tools=[write], permissions=ASKS, person=person, classifier=CLASSIFIER
        )
        hold.set()
    assert deciders(events) == [("allow", "person")]
    (answer,) = [r.answer for r in records if isinstance(r, WorldExchange)]
    usage = answer.pop("usage")
    assert answer == {"behavior": "allow", "resolver": "person", "scope": "session", "reason": ""}
    assert usage == [{"model": SMALL, "usage": {}, "certainty": "lower_bound"}]
    assert result_of(events).meter.by_model()["claude-1-small"].calls == 1


def test_a_plain_person_who_does_not_answer_is_asked_once() -> None:
    """The classifier is faster each time: a single thread hangs, and further approvals still work."""
    let_go, asked = threading.Event(), list[Consent]()

    def person(consent: Consent) -> bool:
        asked.append(consent)
        let_go.wait(60)
        return True

    names = [f"c{at}" for at in range(LEFT_MAX + 6)]
    replies = [writes(*names), *[says("allow") for _ in names], DONE]
    with Provider(replies) as provider:
        events = played(
            provider, tools=[write], permissions=ASKS, person=person, classifier=CLASSIFIER
        )
        let_go.set()
    assert deciders(events) == [("allow", "classifier")] * len(names)
    assert len(asked) == 1


def test_the_classifier_denies_and_the_model_hears_why() -> None:
    """Without a person it decides alone."""
    with Provider([writes("a"), says("deny", "It is rude."), DONE]) as provider:
        events = played(provider, tools=[write], permissions=ASKS, classifier=CLASSIFIER)
    assert deciders(events) == [("deny", "classifier")]
    (told,) = [b for b in provider.requests[2]["messages"][-1]["content"] if "tool_use_id" in b]
    assert told["content"].startswith("The classifier has denied this call. It says: It is rude.")


FAILURES = [
    says("maybe"),
    says("Allow"),
    says("allow", 3),
    says(True),
    whole(message(call("j", "answer", behavior="allow"), stop_reason="tool_use")),
    whole(message(call("j", "answer", behavior="allow", reason="", sure=True))),
    whole(message(call("j", "answer", behavior="allow", reason=""), stop_reason="max_tokens")),
    whole(message(call("j", "other", behavior="allow", reason=""))),
    whole(message(text("allow"))),
    error(529, "overloaded_error"),
    error(401, "authentication_error"),
    Reply((b"allow",)),
]


@pytest.mark.parametrize("reply", FAILURES)
def test_a_classifier_that_fails_has_not_answered(reply: Reply) -> None:
    """It fails closed: without a person, the answer is no."""
    with Provider([writes("a"), reply, DONE]) as provider:
        events = played(provider, tools=[write], permissions=ASKS, classifier=CLASSIFIER)
    assert deciders(events) == [("deny", "unattended")]
    assert "The classifier gave no answer" in of_kind(events, Permission)[0].decision.reason


def test_where_it_fails_the_person_decides() -> None:
    """However long that takes."""
    with Provider([writes("a"), says("maybe"), DONE]) as provider:
        person = Person(provider, True, after=2)
        events = played(
            provider, tools=[write], permissions=ASKS, person=person, classifier=CLASSIFIER
        )
    assert deciders(events) == [("allow", "person")]


def test_where_asking_the_person_fails_the_classifier_decides() -> None:
    """A broken prompt is not an answer either."""
    with Provider([writes("a"), says("allow"), DONE]) as provider:
        person = Person(provider, RuntimeError("no terminal"))
        events = played(
            provider, tools=[write], permissions=ASKS, person=person, classifier=CLASSIFIER
        )
    assert deciders(events) == [("allow", "classifier")]


def test_a_classifier_that_takes_too_long() -> None:
    """After its timeout it has given no answer."""
    reply, hold = held(says("allow"))
    with Provider([writes("a"), reply, DONE]) as provider:
        events = played(
            provider,
            tools=[write],
            permissions=ASKS,
            classifier=Classifier(SMALL, timeout_s=0.2),
        )
        hold.set()
    assert deciders(events) == [("deny", "unattended")]


def test_a_call_that_is_too_long_is_not_judged() -> None:
    """The part cut off could matter."""
    with Provider([writes("a", what="x" * CALL_CHARS_MAX), DONE]) as provider:
        events = played(provider, tools=[write], permissions=ASKS, classifier=CLASSIFIER)
    assert deciders(events) == [("deny", "unattended")]
    assert len(provider.requests) == 2


def test_three_denials_in_a_row_escalate() -> None:
    """From then on only a person may approve; without a person, the call is denied."""
    denied = [reply for at in range(3) for reply in (writes(f"c{at}"), says("deny"))]
    with Provider([*denied, writes("d"), writes("e"), DONE]) as provider:
        talk = Conversation()
        events = played(provider, tools=[write], permissions=ASKS, classifier=CLASSIFIER, talk=talk)
    assert deciders(events) == [("deny", "classifier")] * 3 + [("deny", "unattended")] * 2
    assert talk.denials == Denials(3, 3)
    assert talk.denials.escalates


def test_only_its_own_denials_are_counted() -> None:
    """A person's denials do not count; an approval by the classifier ends the sequence."""
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
        counted = counted.after({"behavior": behavior, "resolver": by})
        assert counted == after
    for behavior in (*("deny", "deny", "allow") * 8, "deny", "deny"):
        assert not counted.escalates
        counted = counted.after({"behavior": behavior, "resolver": "classifier"})
    assert counted == Denials(2, 20)
    assert counted.escalates


@given(st.none() | st.booleans() | st.text() | st.dictionaries(st.text(), st.text()))
def test_counting_never_fails(answer: Any) -> None:
    """For every answer of the world."""
    assert Denials(1, 2).after(answer).in_all >= 2


def test_what_a_rule_asks_about_is_a_persons_to_answer() -> None:
    """The classifier is not called at all."""
    rules = Permissions(rules=(Rule.parse("write", "ask", "user"),))
    with Provider([writes("a"), DONE]) as provider:
        person = Person(provider, True)
        events = played(
            provider, tools=[write], permissions=rules, person=person, classifier=CLASSIFIER
        )
    assert deciders(events) == [("allow", "person")]
    assert len(provider.requests) == 2


def test_what_a_hook_asks_about_is_a_persons_to_answer() -> None:
    """A hook that requires approval requires a person, not a model."""
    hooks = table([Hook("pre_tool_use", lambda told: {"decision": "ask"})])
    allowed = Permissions(rules=(Rule.parse("write", "allow", "user"),))
    with Provider([writes("a"), DONE]) as provider:
        events = played(
            provider, tools=[write], hooks=hooks, permissions=allowed, classifier=CLASSIFIER
        )
    assert deciders(events) == [("deny", "unattended")]


def test_money_is_a_persons_to_spend() -> None:
    """A classifier cannot approve exceeding a budget."""

    async def classify(question: WorldQuestion) -> Any:
        raise AssertionError("it was asked")

    answers = LiveAnswers((), live_tools(()), classify=classify)
    asked = WorldQuestion("consent", "1", {"about": {"limit": "day_usd"}, "reason": "Used up."})
    assert asyncio.run(answers.ask(asked))["resolver"] == "unattended"


def test_an_abort_ends_both() -> None:
    """Both are cancelled when the run is stopped."""
    abort = Abort()
    reply, hold = held(says("allow"))
    with Provider([writes("a"), reply]) as provider:
        person = Person(provider)

        async def stops(consent: Consent) -> Any:
            while len(provider.requests) < 2:
                await asyncio.sleep(0.01)
            abort.stop()
            return await person(consent)

        events = played(
            provider,
            tools=[write],
            permissions=ASKS,
            person=stops,
            classifier=CLASSIFIER,
            abort=abort,
        )
        hold.set()
    assert deciders(events) == [("deny", "unattended")]
    assert person.withdrawn == 1


@pytest.mark.parametrize(
    "wrong", [{"model": ""}, {"instructions": " "}, {"timeout_s": 0}, {"timeout_s": float("inf")}]
)
def test_a_classifier_that_could_never_answer(wrong: dict[str, Any]) -> None:
    """The error is raised when it is created."""
    with pytest.raises(UsageError):
        Classifier(**{"model": SMALL, **wrong})
