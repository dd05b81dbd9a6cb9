"""Compaction in hard cases: nothing to summarize, no summary available, and runs that fail after one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs import wiring
from agentobs.agent import complete, live_world
from agentobs.agent.compaction.overflow import compact
from agentobs.agent.context import Context
from agentobs.agent.context.reduction import is_trimmed
from agentobs.agent.events import Compaction, Degraded, RequestStart, Retry
from agentobs.agent.sessions.resumption import resumed
from agentobs.agent.state import Conversation
from agentobs.provider.dialect import text_of
from agentobs.records.facts import Event as EventFact
from agentobs.world import Abort
from tests.agent.context.playing import (
    DONE,
    SUMMARY,
    THOUGHT,
    TOO_LARGE,
    TOO_LONG,
    before,
    heavy,
    looks,
    peek,
    played,
    results,
    said,
)
from tests.agent.provider import MODEL, Provider, Reply, call, error, message, streamed, text
from tests.agent.scene import events_of, in_loop, of_kind, options, recorded, result_of

OVERLOADED = error(529, "overloaded_error")
MANY = said(300, *(call(f"toolu_{n}", "look", where=f"{n}.txt") for n in range(20)))
"""Calls whose results have 14,000 tokens together."""


@pytest.mark.parametrize(("kept", "stay"), [(3, 3), (10, 0)])
def test_many_results_at_once_in_the_first_turn(kept: int, stay: int) -> None:
    """If there is nothing to summarize yet, results that the model has not seen are trimmed; the
    last ones stay if they fit.
    """
    context = Context(window_tokens=6000, summary_tokens=500, reserve_tokens=500, kept_results=kept)
    events, requests = played([MANY, DONE], context=context)
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.methods, done.kept_from) == ("auto", ("trim",), None)
    assert done.tokens_after < done.threshold <= done.tokens_before
    assert len(requests) == 2, "nobody was asked for a summary"
    trimmed = [is_trimmed(content) for content in results(requests[-1])]
    assert trimmed == [True] * (20 - stay) + [False] * stay
    assert result_of(events).text == "Done."


@pytest.mark.parametrize("refusal", [TOO_LONG, TOO_LARGE])
def test_many_results_at_once_that_the_provider_refuses(refusal: Reply) -> None:
    """The same after a refusal: the request is repeated with the rest."""
    events, requests = played([MANY, refusal, DONE], context=Context())
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.methods) == ("reactive", ("trim",))
    trimmed = [is_trimmed(content) for content in results(requests[-1])]
    assert trimmed == [True] * 17 + [False] * 3
    assert result_of(events).text == "Done."


def test_after_a_refusal_more_results_go() -> None:
    """If the count is known to be wrong, the conversation must shrink to half; otherwise all results are trimmed."""
    context = Context(kept_results=12)
    events, requests = played([MANY, TOO_LARGE, DONE], context=context)
    (done,) = of_kind(events, Compaction)
    assert done.tokens_after < done.tokens_before / 2
    assert [is_trimmed(content) for content in results(requests[-1])] == [True] * 20


def test_a_summary_that_is_not_to_be_had_now() -> None:
    """A refused prompt whose summary fails ends the run with that failure, and the next run tries again."""
    talk = Conversation(messages=tuple(before(3)), turns=3)
    events, requests = played([TOO_LARGE, OVERLOADED], talk=talk, context=Context(), max_retries=0)
    assert len(requests) == 2
    result = result_of(events)
    assert (result.terminal_reason, result.error) == ("model_error", "overloaded_error")
    assert talk.context.failures == 0
    assert talk.messages == tuple(before(3))
    events, _ = played([TOO_LARGE, SUMMARY, DONE], talk=talk, context=Context())
    assert [done.trigger for done in of_kind(events, Compaction)] == ["reactive"]
    assert result_of(events).text == "Done."


def test_a_summary_that_is_refused() -> None:
    """If the provider refuses the summary itself, the run ends with that error, and nothing is retried."""
    talk = Conversation(messages=tuple(before(3)), turns=3)
    denied = error(403, "permission_error")
    events, _ = played([TOO_LARGE, denied], talk=talk, context=Context())
    result = result_of(events)
    assert (result.terminal_reason, result.error) == ("model_error", "permission_error")
    assert talk.context.failures == 1
    events, requests = played([TOO_LARGE], talk=talk, context=Context())
    assert len(requests) == 1
    assert result_of(events).terminal_reason == "prompt_too_long"


@pytest.mark.parametrize(
    "state", [OVERLOADED, error(429, "rate_limit_error"), error(503, "api_error")]
)
def test_the_state_of_the_provider_is_no_failure(state: Reply) -> None:
    """Summaries that fail because of the provider's state do not disable compaction, however often."""
    turns = heavy(6)[:-1]
    failing = [reply for turn in turns[1:5] for reply in (turn, state)]
    talk = Conversation()
    events, requests = played(
        [turns[0], *failing, turns[5], SUMMARY, DONE], talk=talk, max_retries=0
    )
    assert not of_kind(events, Degraded)
    assert [done.methods for done in of_kind(events, Compaction)] == [("summary",)]
    assert (len(requests), talk.context.failures) == (12, 0)
    assert result_of(events).text == "Done."


def test_an_open_circuit_is_no_failure() -> None:
    """A summary that is not requested because the provider is down does not disable compaction."""
    talk = Conversation(messages=chat(15), turns=15)
    context = Context(window_tokens=7000, summary_tokens=500, reserve_tokens=500)
    with Provider([error(503, "api_error")] * 5) as provider:
        for _ in range(4):
            events = events_of(provider, conversation=talk, context=context, max_retries=0)
    assert len(provider.requests) == 5
    assert result_of(events).error == "CircuitOpenError"
    assert (talk.context.failures, talk.context.begun) == (0, 4)


def test_an_overload_is_waited_out() -> None:
    """A summary requested while the provider is overloaded is retried, and the retries are reported."""
    talk = Conversation(messages=tuple(before(3)), turns=3)
    replies = [TOO_LARGE, OVERLOADED, SUMMARY, DONE]
    events, _ = played(replies, talk=talk, context=Context())
    assert [retry.error for retry in of_kind(events, Retry)] == ["overloaded_error"]
    assert len(of_kind(events, Compaction)) == 1
    assert result_of(events).text == "Done."


def test_stopped_while_a_refused_prompt_is_made_shorter() -> None:
    """A run stopped during compaction has not used up the conversation's single reactive compaction."""
    abort, talk = Abort(), Conversation(messages=tuple(before(3)), turns=3)

    def remembered() -> None:
        abort.stop()

    with Provider([TOO_LARGE, TOO_LARGE, SUMMARY, DONE]) as provider:
        world = {"memory": remembered, "abort": abort}
        events = events_of(provider, tools=[peek], conversation=talk, world=world)
        assert result_of(events).terminal_reason == "aborted_streaming"
        events = events_of(provider, "Go on", tools=[peek], conversation=talk)
    assert [done.trigger for done in of_kind(events, Compaction)] == ["reactive"]
    assert result_of(events).text == "Done."


CUT = said(2500, text("They looked at"), stop_reason="max_tokens")


def test_a_summary_that_was_cut_is_asked_for_again() -> None:
    """A cut summary is not used: a shorter one is requested once, and the conversation continues from that."""
    *replies, done_ = heavy(2)
    events, requests = played([*replies, CUT, SUMMARY, done_])
    assert [done.methods for done in of_kind(events, Compaction)] == [("summary",)]
    first, second, last = requests[2:]
    assert "at most 250 words" not in text_of(first["messages"][-1]["content"])
    assert text_of(second["messages"][-1]["content"]).endswith("at most 250 words.")
    assert "They looked at files." in text_of(last["messages"][0]["content"])


def test_a_summary_that_is_cut_twice_is_a_failure() -> None:
    """It is reported as a failure, and the conversation continues unchanged."""
    *replies, done_ = heavy(2)
    talk = Conversation()
    with recorded() as records:
        events, requests = played([*replies, CUT, CUT, done_], talk=talk)
    assert not of_kind(events, Compaction)
    assert len(requests) == 5
    (told,) = [r for r in of_kind(records, EventFact) if r.kind == "compaction_failed"]
    assert (told.label, told.numbers["cut"], told.numbers["failures"]) == ("auto", 1, 1)
    assert "They looked at" not in json.dumps(requests[-1]["messages"])
    assert result_of(events).text == "Done."


def chat(turns: int, size: int = 2000) -> tuple[dict[str, Any], ...]:
    """A conversation without any calls."""
    return tuple(
        {"role": role, "content": f"{role} {n} " + "word " * (size // 5)}
        for n in range(turns)
        for role in ("user", "assistant")
    )


@pytest.mark.parametrize("is_kept_apart", [True, False])
def test_a_prompt_without_answer_is_not_kept(is_kept_apart: bool) -> None:
    """A run that fails after a compaction leaves the compacted conversation without its prompt,
    like any failed run.
    """
    size = 60 if is_kept_apart else 2000
    context = Context(window_tokens=7000, summary_tokens=500, reserve_tokens=500)
    messages = (*chat(15), *chat(2, size))
    for talk, replies in (
        (Conversation(messages=messages, turns=17), [SUMMARY, error(403, "permission_error")]),
        (Conversation(), [error(403, "permission_error")]),
    ):
        with Provider([*replies, DONE]) as provider:
            events = events_of(provider, "Delete it.", conversation=talk, context=context)
            assert result_of(events).error == "permission_error"
            assert len(of_kind(events, Compaction)) == len(replies) - 1
            assert "Delete it." not in json.dumps(talk.messages)
            events = events_of(provider, "Delete it.", conversation=talk, context=context)
        assert result_of(events).text == "Done."
        asked = json.dumps(provider.requests[-1]["messages"])
        assert asked.count("Delete it.") == 1
        assert asked.count("They looked at files.") == len(replies) - 1


def test_results_of_tools_are_kept_in_any_case() -> None:
    """Tool results stay in the conversation of a run that fails after a compaction."""
    talk = Conversation()
    denied = error(403, "permission_error")
    events, _ = played([*looks(100, 820, 1540), denied], talk=talk)
    assert len(of_kind(events, Compaction)) == 1
    assert len(talk.messages) == 7
    assert [is_trimmed(c) for c in results({"messages": talk.messages})] == [True, True, False]


def test_the_boundary_has_an_id_without_any_call() -> None:
    """If the kept part contains no call, the event has the number of its messages."""
    context = Context(window_tokens=7000, summary_tokens=500, reserve_tokens=500)
    asked = ({"role": "user", "content": "word " * 1000},)
    for messages, kept in ((chat(15), "message:3"), ((*chat(16), *asked), "message:1")):
        talk = Conversation(messages=messages, turns=15)
        with recorded() as records:
            events, _ = played([SUMMARY, DONE], talk=talk, context=context, tools=())
        (done,) = of_kind(events, Compaction)
        assert done.kept_from == kept
        (told,) = [r for r in of_kind(records, EventFact) if r.kind == "compaction_kept"]
        assert told.label == kept


def test_a_count_does_not_hide_a_prompt() -> None:
    """If a response with only thinking is removed, the prompt in its place is counted."""
    talk = Conversation(messages=tuple(before(3)), turns=3)
    played([said(5000, THOUGHT)], talk=talk, context=Context())
    talk.fell_back_to = MODEL
    events, _ = played(
        [TOO_LARGE, SUMMARY, DONE],
        talk=talk,
        context=Context(),
        model="claude-other-1",
        prompt="z" * 350_000,
    )
    (done,) = of_kind(events, Compaction)
    assert done.tokens_before > 100_000


def test_the_provider_pauses_after_a_compaction_of_its_own() -> None:
    """Such a response is sent back unchanged and continued; everything before it is no longer counted."""
    block = {"type": "compaction", "content": "They looked for the key."}
    rounds = [{"type": "compaction", "input_tokens": 1900, "output_tokens": 50}]
    used = {"input_tokens": 1900, "output_tokens": 50, "cache_read_input_tokens": 0}
    usage = {**used, "iterations": rounds}
    paused = streamed(message(block, usage=usage, stop_reason="compaction"))
    talk = Conversation()
    replies = [said(1900, text("z" * 6000)), paused, said(100, text("Done."))]
    with recorded() as records:
        played(replies[:1], talk=talk, tools=())
        events, requests = played(replies[1:], talk=talk, tools=())
    assert result_of(events).text == "Done."
    assert not of_kind(events, Compaction)
    assert requests[1]["messages"][-1] == {"role": "assistant", "content": [block]}
    starts = of_kind(events, RequestStart)
    assert [start.transition for start in starts] == ["start", "pause_turn"]
    told = [r.numbers["tokens"] for r in of_kind(records, EventFact) if r.kind == "context"]
    assert told[1] > 1900
    assert told[2] < 100
    assert [message["role"] for message in talk.messages[-2:]] == ["assistant"] * 2


def test_what_somebody_made_shorter_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session whose conversation was compacted by hand at its end is resumed in that state.

    A manual compaction of another conversation in the same session is not used instead.
    """
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()

    async def main(provider: Provider) -> tuple[Conversation, Conversation]:
        async with provider.client() as client:
            world = live_world(agentobs.record(client), load=wiring.load_conversation)
            talk, other = Conversation(), Conversation()
            async with agentobs.session("first") as first:
                for each in (other, talk):
                    for prompt in ("Hello", "And now?"):
                        await complete(prompt, world=world, options=options(), conversation=each)
                for each in (talk, other):
                    assert await compact(each, world=world, options=options()) is not None
            async with agentobs.session("second"):
                return talk, await resumed(world, first.session_id)

    long, longer = (streamed(message(text(letter * 30_000))) for letter in "zy")
    others = streamed(message(text("Of another matter.")))
    try:
        with Provider([longer, longer, long, long, SUMMARY, others]) as provider:
            talk, again = in_loop(main(provider))
    finally:
        assert agentobs.stop_recorder()
    assert "They looked at files." in json.dumps(talk.messages)
    assert again.messages == talk.messages
    assert (again.turns, again.meter.total().calls) == (2, 6)
    rows = agentobs.query(
        "SELECT query_source, count(*) FROM attempts GROUP BY ALL ORDER BY 1",
        home=tmp_path / "home",
    )
    assert rows == [("main", 4), ("summary", 2)]
