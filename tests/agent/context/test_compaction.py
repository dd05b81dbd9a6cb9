"""Compaction of a conversation that gets too long, over real HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.agent.compaction.overflow import compact
from agentobs.agent.context import Context
from agentobs.agent.context.reduction import DROPPED, is_trimmed
from agentobs.agent.events import Compaction, Degraded, RequestStart
from agentobs.agent.hooks import Hook, table
from agentobs.agent.run_result import Result
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool import tool
from agentobs.errors import UsageError
from agentobs.provider.dialect import text_of
from agentobs.records.exchanges import WorldQuestion
from agentobs.records.facts import Event as EventFact
from agentobs.world import Abort
from tests.agent.agent_runs import (
    events_of,
    in_loop,
    of_kind,
    options,
    recorded,
    result_of,
    spans,
    ticking_world,
)
from tests.agent.context.long_conversations import (
    DONE,
    SMALL,
    SUMMARY,
    THOUGHT,
    TOO_LARGE,
    TOO_LONG,
    before,
    blocks_of,
    long_responses,
    look,
    look_responses,
    peek,
    response_of,
    results,
    run_agent,
)
from tests.agent.provider import Provider, Reply, call, error, message, streamed, text


def test_no_compaction_below_the_threshold() -> None:
    """A conversation below the threshold is sent unchanged."""
    events, requests = run_agent([*look_responses(100, 900), DONE])
    assert not of_kind(events, Compaction)
    assert len(requests) == 3
    assert not any(is_trimmed(block) for block in results(requests[-1]))


def test_old_results_are_trimmed_first() -> None:
    """At the threshold, old results are replaced by notes and the new result is kept; if that is enough, nothing else
    changes.
    """
    events, requests = run_agent([*look_responses(100, 820, 1540), DONE])
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.methods, done.turn) == ("auto", ("trim",), 4)
    assert done.tokens_before >= done.threshold == 2000 > done.tokens_after
    assert (done.messages_before, done.messages_after) == (7, 7)
    assert (done.kept_from, done.turns_since_last, done.files) == ("toolu_c", None, 0)
    trimmed = [is_trimmed(content) for content in results(requests[-1])]
    assert trimmed == [True, True, False]
    assert len(requests) == 4, "a summary was requested"
    assert requests[-1]["messages"][1]["content"][0] == THOUGHT


@pytest.mark.slow
def test_the_oldest_groups_are_dropped_second() -> None:
    """If no result can be trimmed, a few of the oldest groups are dropped; the first prompt stays, and each remaining
    call has its result.
    """
    long = [text("z" * 80)]
    replies = [
        response_of(100 + 30 * n, *long, call(f"t{n}", "peek", where=f"here {n}"))
        for n in range(60)
    ]
    events, requests = run_agent(
        [*replies, response_of(2000, *long, call("last", "peek", where="x")), DONE]
    )
    done = of_kind(events, Compaction)[0]
    assert done.methods == ("drop",)
    first, *rest = requests[-1]["messages"]
    assert text_of(first["content"]) == f"Hello\n{DROPPED}"
    assert rest[0]["role"] == "assistant"
    assert done.tokens_after < 1600 < 2000 <= done.tokens_before


def test_the_sessions_memory_replaces_a_summary() -> None:
    """If the session's memory can replace a summary, no summary is requested."""
    conversation = Conversation()
    with Provider(long_responses(2)) as provider:
        world = {"memory": lambda: "They looked for the key."}
        events = events_of(
            provider, "Hello", tools=[peek], conversation=conversation, world=world, context=SMALL
        )
    (done,) = of_kind(events, Compaction)
    assert done.methods == ("memory",)
    first = provider.requests[-1]["messages"][0]
    assert "They looked for the key." in text_of(first["content"])
    assert len(provider.requests) == 3


def test_a_summary_is_requested_last() -> None:
    """If trimming and dropping are not enough, a summary is requested without tool use, and the conversation continues
    with the summary and the last group.
    """
    *replies, final_reply = long_responses(2)
    with recorded() as records:
        events, requests = run_agent([*replies, SUMMARY, final_reply])
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.methods, done.kept_from) == ("auto", ("summary",), "toolu_1")
    request, last = requests[2:]
    assert request["tool_choice"] == {"type": "none"}
    assert (request["max_tokens"], request["tools"]) == (500, last["tools"])
    assert request["messages"][-1]["content"][-1]["text"].startswith("Stop here.")
    assert "thinking" not in {b["type"] for m in request["messages"] for b in blocks_of(m)}
    first, answer, outcome = last["messages"]
    assert "They looked at files." in text_of(first["content"])
    assert answer["content"][0] == THOUGHT
    assert outcome["content"][0]["tool_use_id"] == "toolu_1"
    assert [e.source for e in of_kind(events, RequestStart)] == ["main"] * 3
    assert result_of(events).usage["claude-test-1"].output_tokens == 40, (
        "the cost of the summary is missing"
    )
    assert ("compaction", "auto", "interaction", "ok") in spans(records)
    facts = {str(r.kind): r for r in of_kind(records, EventFact)}
    assert facts["compaction"].numbers["summary"] == 1
    assert facts["compaction_kept"].label == "toolu_1"


def test_recent_files_are_attached_again() -> None:
    """After a summary, the contents of the files that were read before it are attached again if there is space."""

    @tool(read_only=True, paths=("where",))
    def read(where: str) -> str:
        """Read."""
        return f"contents of {where}"

    replies = [
        response_of(300, call("toolu_a", "read", where="a.txt"), text("z" * 3000)),
        response_of(1200, call("toolu_b", "read", where="b.txt"), text("z" * 3000)),
        response_of(2100, call("toolu_c", "read", where="c.txt")),
    ]
    events, requests = run_agent([*replies, SUMMARY, DONE], tools=[read])
    (done,) = of_kind(events, Compaction)
    assert done.files == 2
    first_text = text_of(requests[-1]["messages"][0]["content"])
    assert first_text.index("contents of b.txt") < first_text.index("contents of a.txt")
    assert "contents of c.txt" not in first_text


@pytest.mark.parametrize("refusal", [TOO_LONG, TOO_LARGE])
def test_a_rejected_prompt_is_compacted_once(refusal: Reply) -> None:
    """If the provider rejects a prompt as too long, the conversation is compacted and the request repeated, but only
    once.
    """
    conversation = Conversation(messages=tuple(before(3)), turns=3)
    events, _ = run_agent(
        [refusal, SUMMARY, DONE, refusal], conversation=conversation, context=Context()
    )
    (done,) = of_kind(events, Compaction)
    assert done.trigger == "reactive"
    transitions = [e.transition for e in of_kind(events, RequestStart)]
    assert transitions == ["start", "reactive_compaction"]
    assert result_of(events).text == "Done."
    later = [*look_responses(300, 1000, 1700, 2400), refusal, SUMMARY, DONE]
    events, requests = run_agent(later, conversation=conversation, context=Context())
    assert not of_kind(events, Compaction)
    assert len(requests) == 5, "a summary was requested although trimming was enough"
    assert result_of(events).terminal_reason == "prompt_too_long"


def test_a_response_that_fills_the_window_is_requested_again() -> None:
    """A response that fills the window is void, and the request is repeated once with a shorter conversation.

    The stop reason is synthetic: no recorded traffic contains it.
    """
    full = response_of(2990, text("So the"), stop_reason="model_context_window_exceeded")
    conversation = Conversation(messages=tuple(before(3)), turns=3)
    events, requests = run_agent(
        [full, SUMMARY, DONE, full], conversation=conversation, context=Context()
    )
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.turn) == ("reactive", 4)
    assert result_of(events).text == "Done."
    assert "So the" not in str(requests[2]["messages"])
    later = [*look_responses(300, 1000, 1700, 2400), full, SUMMARY, DONE]
    events, requests = run_agent(later, conversation=conversation, context=Context())
    assert not of_kind(events, Compaction)
    assert len(requests) == 5
    assert result_of(events).terminal_reason == "prompt_too_long"


def test_abort_during_a_summary_request() -> None:
    """A run that is stopped during a summary request ends normally with an unchanged conversation, which the next run
    continues.
    """
    abort, conversation = Abort(), Conversation()

    def remembered() -> None:
        abort.stop()

    with Provider([*long_responses(2)[:-1], SUMMARY, DONE]) as provider:
        events = events_of(
            provider,
            tools=[peek],
            conversation=conversation,
            world={"memory": remembered, "abort": abort},
            context=SMALL,
        )
        assert len(provider.requests) == 2
        assert result_of(events).terminal_reason == "aborted_streaming"
        assert not of_kind(events, Compaction)
        assert len(conversation.messages) == 5
        assert conversation.context.failures == 0
        events = events_of(
            provider, "Go on", tools=[peek], conversation=conversation, context=SMALL
        )
    assert [e.methods for e in of_kind(events, Compaction)] == [("summary",)]
    assert result_of(events).text == "Done."


def test_a_prevented_end_does_not_allow_a_second_compaction() -> None:
    """If a hook prevents the end of a run, the run does not compact its conversation a second time after another
    rejection.
    """
    hook = Hook("stop", lambda payload: None, name="more")

    async def object_to_end(question: WorldQuestion) -> dict[str, Any]:
        return {"outcome": "blocking", "reason": "More!"}

    conversation = Conversation(messages=tuple(before(3)), turns=3)
    later = [*look_responses(300, 1000, 1700, 2400), TOO_LARGE, SUMMARY, DONE]
    with Provider([TOO_LARGE, SUMMARY, DONE, *later]) as provider:
        events = events_of(
            provider,
            tools=[look],
            conversation=conversation,
            world={"hooks": object_to_end},
            hooks=table([hook]),
        )
    requests = provider.requests
    assert len(of_kind(events, Compaction)) == 1
    assert len(requests) == 3 + 5
    assert result_of(events).terminal_reason == "prompt_too_long"


def test_a_prompt_that_stays_too_long_ends_the_run() -> None:
    """If the prompt is still too long after a compaction, the run ends with the provider's error."""
    events, requests = run_agent([TOO_LONG])
    result = result_of(events)
    assert (result.subtype, result.terminal_reason) == ("error_during_execution", "prompt_too_long")
    assert len(requests) == 1, "a conversation of one prompt was compacted"


def test_a_summary_request_that_is_too_long_drops_its_oldest_groups() -> None:
    """A summary request that is too long is repeated with fewer messages at most three times; then the compaction
    fails.
    """
    history = tuple(before(8, size=300, response_chars=6000))
    conversation = Conversation(messages=history, turns=8)
    replies = [TOO_LONG, *[error(400, "invalid_request_error", text="prompt is too long")] * 4]
    events, requests = run_agent(replies, conversation=conversation, context=Context())
    sizes = [len(request["messages"]) for request in requests]
    assert len(requests) == 5
    assert sizes[1] > sizes[2] > sizes[3] > sizes[4]
    assert result_of(events).terminal_reason == "prompt_too_long"
    assert conversation.messages == history, "messages were lost"


def test_three_failures_disable_automatic_compaction() -> None:
    """After three consecutive failures, automatic compaction is disabled, which is reported once."""
    refused = error(400, "invalid_request_error", text="no")
    turns = long_responses(6)[:-1]
    replies = [turns[0], turns[1], refused, turns[2], refused, turns[3], refused, *turns[4:], DONE]
    conversation = Conversation()
    events, requests = run_agent(replies, conversation=conversation)
    assert of_kind(events, Degraded) == [Degraded("compaction", "failures")]
    assert len(requests) == len(replies)
    assert conversation.context.failures == 3
    assert result_of(events).text == "Done."


def test_a_success_resets_the_count_of_failures() -> None:
    """A successful compaction resets the count of failures, so that only consecutive failures disable compaction."""
    refused = error(400, "invalid_request_error", text="no")
    one, two, three, done = long_responses(3)
    conversation = Conversation()
    events, _ = run_agent([one, two, refused, three, SUMMARY, done], conversation=conversation)
    assert conversation.context.failures == 0
    assert len(of_kind(events, Compaction)) == 1


def test_images_and_documents_become_text_in_a_summary_request() -> None:
    """In a summary request, images and documents are replaced by text, even within results."""
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/x.png"}}
    document = {
        "type": "document",
        "title": "Plan",
        "source": {"type": "url", "url": "https://x/y"},
    }
    outcome = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    messages = (
        {"role": "user", "content": [image, document, text("What is it?")]},
        {"role": "assistant", "content": [call("t", "look", where="x")]},
        {"role": "user", "content": [outcome]},
        {"role": "assistant", "content": [text("A key.")]},
    )
    conversation = Conversation(messages=messages, turns=2)
    _, requests = run_agent([SUMMARY, DONE], conversation=conversation)
    sent_text = str(requests[0]["messages"])
    assert "'image'" not in sent_text
    assert "[document: Plan]" in sent_text
    assert "[image]" in sent_text


def test_a_manual_compaction() -> None:
    """A user can have a conversation compacted, with instructions for the summary; a later run continues the compacted
    conversation.
    """
    conversation = Conversation(messages=tuple(before(2)), turns=3)
    with Provider([SUMMARY, DONE]) as provider:

        async def compact_by_hand() -> Compaction | None:
            async with provider.client() as client:
                return await compact(
                    conversation,
                    world=ticking_world(client, [look]),
                    options=options(),
                    tools=[look],
                    instructions="Mind the key.",
                )

        done = in_loop(compact_by_hand())
        events = events_of(provider, "And now?", tools=[look], conversation=conversation)
    assert done is not None
    assert (done.trigger, done.methods) == ("manual", ("summary",))
    assert provider.requests[0]["messages"][-1]["content"][-1]["text"].endswith("Mind the key.")
    first, answer, prompt = provider.requests[1]["messages"]
    assert "They looked at files." in text_of(first["content"])
    assert text_of(answer["content"]).startswith("Not found.")
    assert prompt["content"] == "And now?"
    assert result_of(events).text == "Done."


def test_nothing_to_compact() -> None:
    """The compaction of a conversation that has only just started changes nothing and sends no request."""
    conversation = Conversation(messages=({"role": "user", "content": "Hello"},), turns=0)
    with Provider([]) as provider:

        async def compact_by_hand() -> Compaction | None:
            async with provider.client() as client:
                world = ticking_world(client)
                return await compact(conversation, world=world, options=options())

        assert in_loop(compact_by_hand()) is None
    assert provider.requests == []


def test_turns_since_the_previous_compaction() -> None:
    """A compaction reports the number of turns since the previous compaction."""
    later = [
        response_of(900, call("d", "look", where="d")),
        response_of(1620, call("e", "look", where="e")),
    ]
    events, _ = run_agent([*look_responses(100, 820, 1540), *later, DONE])
    assert [done.turns_since_last for done in of_kind(events, Compaction)] == [None, 2]


def test_automatic_compaction_can_be_disabled() -> None:
    """If automatic compaction is disabled, a long conversation is sent unchanged."""
    context = Context(
        window_tokens=3000, summary_tokens=500, reserve_tokens=500, is_automatic=False
    )
    events, requests = run_agent([*look_responses(100, 2820, 3540), DONE], context=context)
    assert not of_kind(events, Compaction)
    assert len(requests) == 4


@pytest.mark.parametrize(
    "wrong",
    [{"window_tokens": 33_000}, {"summary_tokens": 0}, {"kept_results": -1}],
)
def test_settings_that_leave_no_space_are_rejected(wrong: dict[str, Any]) -> None:
    """A window that is too small for any conversation is rejected with one clear error."""
    with pytest.raises(UsageError):
        Context(**wrong)


def test_context_size_is_reported() -> None:
    """Each turn reports the length of the conversation and its parts."""
    with recorded() as records:
        run_agent([*look_responses(100, 820), DONE])
    contexts = [dict(r.numbers) for r in of_kind(records, EventFact) if r.kind == "context"]
    assert [each["messages"] for each in contexts] == [1, 3, 5]
    assert [each["window"] for each in contexts] == [3000] * 3
    assert [each["threshold"] for each in contexts] == [2000] * 3
    first, second, third = (each["tokens"] for each in contexts)
    assert first < second < third
    assert 800 < second < 830


@pytest.mark.parametrize(
    ("context", "model", "threshold"),
    [
        (Context(), "claude-sonnet-4-5", 167_000),
        (Context(), "claude-sonnet-4-6", 967_000),
        (Context(window_tokens=40_000), "claude-sonnet-4-6", 7_000),
    ],
)
def test_the_threshold_is_the_window_minus_the_reserve(
    context: Context, model: str, threshold: int
) -> None:
    """The threshold is the window minus 20,000 tokens for a summary and another 13,000 tokens of reserve."""
    with recorded() as records:
        run_agent([DONE], context=context, model=model)
    (numbers,) = [r.numbers for r in of_kind(records, EventFact) if r.kind == "context"]
    assert numbers["window"] - numbers["threshold"] == 20_000 + 13_000
    assert numbers["threshold"] == threshold


def test_unseen_results_are_trimmed_last() -> None:
    """A result that the model has not seen is trimmed only if it fills the window and nothing else can be removed; the
    turn continues.
    """

    @tool(read_only=True)
    def flood() -> str:
        """Say too much."""
        return "y" * 12_000

    replies = [response_of(300, text("z" * 3600), call("toolu_1", "peek", where="x"))]
    replies.append(response_of(1400, call("toolu_2", "flood")))
    events, requests = run_agent([*replies, SUMMARY, DONE], tools=[flood, peek])
    (done,) = of_kind(events, Compaction)
    assert done.methods == ("summary", "trim")
    assert [is_trimmed(content) for content in results(requests[-1])] == [True]
    assert result_of(events).text == "Done."


def test_the_budget_is_checked_after_a_summary() -> None:
    """If a summary uses up the budget, the run ends before the next LLM request."""
    from decimal import Decimal

    from agentobs.agent.budget import Budget

    usage = {"input_tokens": 100_000, "output_tokens": 10}
    expensive = streamed(message(text("So."), model="claude-sonnet-4-6", usage=usage))
    conversation = Conversation(messages=tuple(before(4)), turns=4)
    events, requests = run_agent(
        [expensive],
        conversation=conversation,
        model="claude-sonnet-4-6",
        budget=Budget(interaction_usd=Decimal("0.2")),
    )
    assert len(requests) == 1
    assert isinstance(events[-1], Result)
    assert events[-1].terminal_reason == "max_budget"
