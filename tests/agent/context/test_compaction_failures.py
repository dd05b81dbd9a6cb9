"""Compaction in difficult cases: nothing to summarize, no summary available, and runs that fail after a compaction."""

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
from tests import queries
from tests.agent.agent_runs import events_of, in_loop, of_kind, options, recorded, result_of
from tests.agent.context.long_conversations import (
    DONE,
    SUMMARY,
    THOUGHT,
    TOO_LARGE,
    TOO_LONG,
    before,
    long_responses,
    look_responses,
    peek,
    response_of,
    results,
    run_agent,
)
from tests.agent.provider import MODEL, Provider, Reply, call, error, message, streamed, text

OVERLOADED = error(529, "overloaded_error")
MANY_CALLS = response_of(300, *(call(f"toolu_{n}", "look", where=f"{n}.txt") for n in range(20)))
"""Calls whose results have 14,000 tokens together."""


@pytest.mark.parametrize(("kept", "untrimmed"), [(3, 3), (10, 0)])
def test_many_results_in_the_first_turn(kept: int, untrimmed: int) -> None:
    """If there is nothing to summarize yet, results that the model has not seen are trimmed, except the last results
    that fit.
    """
    context = Context(window_tokens=6000, summary_tokens=500, reserve_tokens=500, kept_results=kept)
    events, requests = run_agent([MANY_CALLS, DONE], context=context)
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.methods, done.kept_from) == ("auto", ("trim",), None)
    assert done.tokens_after < done.threshold <= done.tokens_before
    assert len(requests) == 2, "a summary was requested"
    trimmed = [is_trimmed(content) for content in results(requests[-1])]
    assert trimmed == [True] * (20 - untrimmed) + [False] * untrimmed
    assert result_of(events).text == "Done."


@pytest.mark.parametrize("refusal", [TOO_LONG, TOO_LARGE])
def test_many_results_that_the_provider_rejects(refusal: Reply) -> None:
    """If the provider rejects a request with many results, some are trimmed, and the request is repeated with the
    others.
    """
    events, requests = run_agent([MANY_CALLS, refusal, DONE], context=Context())
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.methods) == ("reactive", ("trim",))
    trimmed = [is_trimmed(content) for content in results(requests[-1])]
    assert trimmed == [True] * 17 + [False] * 3
    assert result_of(events).text == "Done."


def test_after_a_rejection_more_results_are_trimmed() -> None:
    """After a rejection, which proves the token count wrong, the conversation must shrink to half; if necessary, all
    results are trimmed.
    """
    context = Context(kept_results=12)
    events, requests = run_agent([MANY_CALLS, TOO_LARGE, DONE], context=context)
    (done,) = of_kind(events, Compaction)
    assert done.tokens_after < done.tokens_before / 2
    assert [is_trimmed(content) for content in results(requests[-1])] == [True] * 20


def test_a_summary_that_cannot_be_obtained() -> None:
    """If a prompt is rejected and no summary can be obtained, the run ends with that failure; the next run requests a
    summary again.
    """
    conversation = Conversation(messages=tuple(before(3)), turns=3)
    events, requests = run_agent(
        [TOO_LARGE, OVERLOADED], conversation=conversation, context=Context(), max_retries=0
    )
    assert len(requests) == 2
    result = result_of(events)
    assert (result.terminal_reason, result.error) == ("model_error", "overloaded_error")
    assert conversation.context.failures == 0
    assert conversation.messages == tuple(before(3))
    events, _ = run_agent([TOO_LARGE, SUMMARY, DONE], conversation=conversation, context=Context())
    assert [done.trigger for done in of_kind(events, Compaction)] == ["reactive"]
    assert result_of(events).text == "Done."


def test_a_rejected_summary_request() -> None:
    """If the provider rejects the summary request, the run ends with that error and without a retry."""
    conversation = Conversation(messages=tuple(before(3)), turns=3)
    denied = error(403, "permission_error")
    events, _ = run_agent([TOO_LARGE, denied], conversation=conversation, context=Context())
    result = result_of(events)
    assert (result.terminal_reason, result.error) == ("model_error", "permission_error")
    assert conversation.context.failures == 1
    events, requests = run_agent([TOO_LARGE], conversation=conversation, context=Context())
    assert len(requests) == 1
    assert result_of(events).terminal_reason == "prompt_too_long"


@pytest.mark.parametrize(
    "failure", [OVERLOADED, error(429, "rate_limit_error"), error(503, "api_error")]
)
def test_provider_failures_do_not_disable_compaction(failure: Reply) -> None:
    """However many summaries fail because the provider is unavailable, automatic compaction is not disabled."""
    turns = long_responses(6)[:-1]
    failing = [reply for turn in turns[1:5] for reply in (turn, failure)]
    conversation = Conversation()
    events, requests = run_agent(
        [turns[0], *failing, turns[5], SUMMARY, DONE], conversation=conversation, max_retries=0
    )
    assert not of_kind(events, Degraded)
    assert [done.methods for done in of_kind(events, Compaction)] == [("summary",)]
    assert (len(requests), conversation.context.failures) == (12, 0)
    assert result_of(events).text == "Done."


def test_an_open_circuit_does_not_disable_compaction() -> None:
    """If a summary is not requested because the circuit is open, this does not count as a failed compaction."""
    conversation = Conversation(messages=chat_messages(15), turns=15)
    context = Context(window_tokens=7000, summary_tokens=500, reserve_tokens=500)
    with Provider([error(503, "api_error")] * 5) as provider:
        for _ in range(4):
            events = events_of(provider, conversation=conversation, context=context, max_retries=0)
    assert len(provider.requests) == 5
    assert result_of(events).error == "CircuitOpenError"
    assert (conversation.context.failures, conversation.context.started_compactions) == (0, 4)


def test_a_summary_request_is_retried_after_an_overload() -> None:
    """If the provider is overloaded, a summary request is retried, and the retries are reported."""
    conversation = Conversation(messages=tuple(before(3)), turns=3)
    replies = [TOO_LARGE, OVERLOADED, SUMMARY, DONE]
    events, _ = run_agent(replies, conversation=conversation, context=Context())
    assert [retry.error for retry in of_kind(events, Retry)] == ["overloaded_error"]
    assert len(of_kind(events, Compaction)) == 1
    assert result_of(events).text == "Done."


def test_abort_during_a_reactive_compaction() -> None:
    """A run that is stopped during a reactive compaction can compact the conversation reactively when it is
    continued.
    """
    abort, conversation = Abort(), Conversation(messages=tuple(before(3)), turns=3)

    def remembered() -> None:
        abort.stop()

    with Provider([TOO_LARGE, TOO_LARGE, SUMMARY, DONE]) as provider:
        world = {"memory": remembered, "abort": abort}
        events = events_of(provider, tools=[peek], conversation=conversation, world=world)
        assert result_of(events).terminal_reason == "aborted_streaming"
        events = events_of(provider, "Go on", tools=[peek], conversation=conversation)
    assert [done.trigger for done in of_kind(events, Compaction)] == ["reactive"]
    assert result_of(events).text == "Done."


TRUNCATED_SUMMARY = response_of(2500, text("They looked at"), stop_reason="max_tokens")


def test_a_truncated_summary_is_requested_again() -> None:
    """A truncated summary is not used: a shorter summary is requested once, with which the conversation continues."""
    *replies, final_reply = long_responses(2)
    events, requests = run_agent([*replies, TRUNCATED_SUMMARY, SUMMARY, final_reply])
    assert [done.methods for done in of_kind(events, Compaction)] == [("summary",)]
    first, second, last = requests[2:]
    assert "at most 250 words" not in text_of(first["messages"][-1]["content"])
    assert text_of(second["messages"][-1]["content"]).endswith("at most 250 words.")
    assert "They looked at files." in text_of(last["messages"][0]["content"])


def test_a_summary_that_is_truncated_twice_is_a_failure() -> None:
    """If the second summary is also truncated, the failure is reported and the conversation continues unchanged."""
    *replies, final_reply = long_responses(2)
    conversation = Conversation()
    with recorded() as records:
        events, requests = run_agent(
            [*replies, TRUNCATED_SUMMARY, TRUNCATED_SUMMARY, final_reply], conversation=conversation
        )
    assert not of_kind(events, Compaction)
    assert len(requests) == 5
    (fact,) = [r for r in of_kind(records, EventFact) if r.kind == "compaction_failed"]
    assert (fact.label, fact.numbers["cut"], fact.numbers["failures"]) == ("auto", 1, 1)
    assert "They looked at" not in json.dumps(requests[-1]["messages"])
    assert result_of(events).text == "Done."


def chat_messages(turns: int, size: int = 2000) -> tuple[dict[str, Any], ...]:
    """Return a conversation without tool calls."""
    return tuple(
        {"role": role, "content": f"{role} {n} " + "word " * (size // 5)}
        for n in range(turns)
        for role in ("user", "assistant")
    )


@pytest.mark.parametrize("is_kept_apart", [True, False])
def test_an_unanswered_prompt_is_not_kept(is_kept_apart: bool) -> None:
    """If a run fails after a compaction, its prompt is removed from the compacted conversation, as after any failed
    run.
    """
    size = 60 if is_kept_apart else 2000
    context = Context(window_tokens=7000, summary_tokens=500, reserve_tokens=500)
    messages = (*chat_messages(15), *chat_messages(2, size))
    for conversation, replies in (
        (Conversation(messages=messages, turns=17), [SUMMARY, error(403, "permission_error")]),
        (Conversation(), [error(403, "permission_error")]),
    ):
        with Provider([*replies, DONE]) as provider:
            events = events_of(provider, "Delete it.", conversation=conversation, context=context)
            assert result_of(events).error == "permission_error"
            assert len(of_kind(events, Compaction)) == len(replies) - 1
            assert "Delete it." not in json.dumps(conversation.messages)
            events = events_of(provider, "Delete it.", conversation=conversation, context=context)
        assert result_of(events).text == "Done."
        sent_text = json.dumps(provider.requests[-1]["messages"])
        assert sent_text.count("Delete it.") == 1
        assert sent_text.count("They looked at files.") == len(replies) - 1


def test_tool_results_are_kept_after_a_failed_run() -> None:
    """If a run fails after a compaction, its tool results stay in the conversation."""
    conversation = Conversation()
    denied = error(403, "permission_error")
    events, _ = run_agent([*look_responses(100, 820, 1540), denied], conversation=conversation)
    assert len(of_kind(events, Compaction)) == 1
    assert len(conversation.messages) == 7
    assert [is_trimmed(c) for c in results({"messages": conversation.messages})] == [
        True,
        True,
        False,
    ]


def test_a_compaction_boundary_without_a_call() -> None:
    """If the kept messages contain no call, the event contains the number of kept messages instead of a call ID."""
    context = Context(window_tokens=7000, summary_tokens=500, reserve_tokens=500)
    question = ({"role": "user", "content": "word " * 1000},)
    for messages, kept in (
        (chat_messages(15), "message:3"),
        ((*chat_messages(16), *question), "message:1"),
    ):
        conversation = Conversation(messages=messages, turns=15)
        with recorded() as records:
            events, _ = run_agent(
                [SUMMARY, DONE], conversation=conversation, context=context, tools=()
            )
        (done,) = of_kind(events, Compaction)
        assert done.kept_from == kept
        (fact,) = [r for r in of_kind(records, EventFact) if r.kind == "compaction_kept"]
        assert fact.label == kept


def test_a_prompt_after_removed_thinking_is_counted() -> None:
    """If a response with only thinking is removed, the tokens of the prompt that takes its place are counted."""
    conversation = Conversation(messages=tuple(before(3)), turns=3)
    run_agent([response_of(5000, THOUGHT)], conversation=conversation, context=Context())
    conversation.fell_back_to = MODEL
    events, _ = run_agent(
        [TOO_LARGE, SUMMARY, DONE],
        conversation=conversation,
        context=Context(),
        model="claude-other-1",
        prompt="z" * 350_000,
    )
    (done,) = of_kind(events, Compaction)
    assert done.tokens_before > 100_000


def test_the_provider_pauses_after_its_own_compaction() -> None:
    """If the provider pauses after its own compaction, its response is sent back unchanged, and earlier messages are no
    longer counted.
    """
    block = {"type": "compaction", "content": "They looked for the key."}
    rounds = [{"type": "compaction", "input_tokens": 1900, "output_tokens": 50}]
    used = {"input_tokens": 1900, "output_tokens": 50, "cache_read_input_tokens": 0}
    usage = {**used, "iterations": rounds}
    paused = streamed(message(block, usage=usage, stop_reason="compaction"))
    conversation = Conversation()
    replies = [response_of(1900, text("z" * 6000)), paused, response_of(100, text("Done."))]
    with recorded() as records:
        run_agent(replies[:1], conversation=conversation, tools=())
        events, requests = run_agent(replies[1:], conversation=conversation, tools=())
    assert result_of(events).text == "Done."
    assert not of_kind(events, Compaction)
    assert requests[1]["messages"][-1] == {"role": "assistant", "content": [block]}
    starts = of_kind(events, RequestStart)
    assert [start.transition for start in starts] == ["start", "pause_turn"]
    context_tokens = [
        r.numbers["tokens"] for r in of_kind(records, EventFact) if r.kind == "context"
    ]
    assert context_tokens[1] > 1900
    assert context_tokens[2] < 100
    assert [message["role"] for message in conversation.messages[-2:]] == ["assistant"] * 2


@pytest.mark.slow
def test_a_manual_compaction_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that ended with a manual compaction is resumed with the compacted conversation, even if the user also
    compacted another conversation of the session.
    """
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()

    async def main(provider: Provider) -> tuple[Conversation, Conversation]:
        async with provider.client() as client:
            world = live_world(agentobs.record(client), load=wiring.load_conversation)
            conversation, other = Conversation(), Conversation()
            async with agentobs.session("first") as first:
                for each in (other, conversation):
                    for prompt in ("Hello", "And now?"):
                        await complete(prompt, world=world, options=options(), conversation=each)
                for each in (conversation, other):
                    assert await compact(each, world=world, options=options()) is not None
            async with agentobs.session("second"):
                return conversation, await resumed(world, first.session_id)

    long, longer = (streamed(message(text(letter * 30_000))) for letter in "zy")
    other_reply = streamed(message(text("Of another matter.")))
    try:
        with Provider([longer, longer, long, long, SUMMARY, other_reply]) as provider:
            conversation, resumed_conversation = in_loop(main(provider))
    finally:
        assert agentobs.stop_recorder()
    assert "They looked at files." in json.dumps(conversation.messages)
    assert resumed_conversation.messages == conversation.messages
    assert (resumed_conversation.turns, resumed_conversation.meter.total().calls) == (2, 6)
    rows = queries.query(
        "SELECT query_source, count(*) FROM attempts GROUP BY ALL ORDER BY 1",
        home=tmp_path / "home",
    )
    assert rows == [("main", 4), ("summary", 2)]
