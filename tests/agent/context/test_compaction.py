"""Compaction of a conversation that gets too long, over real HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.agent.compaction.overflow import compact
from agentobs.agent.context import Context
from agentobs.agent.context.reduction import DROPPED, is_trimmed
from agentobs.agent.events import Compaction, Degraded, RequestStart, Result
from agentobs.agent.hooks import Hook, table
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool import tool
from agentobs.errors import UsageError
from agentobs.provider.dialect import text_of
from agentobs.records.exchanges import WorldQuestion
from agentobs.records.facts import Event as EventFact
from agentobs.world import Abort
from tests.agent.context.playing import (
    DONE,
    SMALL,
    SUMMARY,
    THOUGHT,
    TOO_LARGE,
    TOO_LONG,
    before,
    blocks_of,
    heavy,
    look,
    looks,
    peek,
    played,
    results,
    said,
)
from tests.agent.provider import Provider, Reply, call, error, message, streamed, text
from tests.agent.scene import (
    events_of,
    in_loop,
    of_kind,
    options,
    recorded,
    result_of,
    spans,
    ticking_world,
)


def test_below_the_threshold_nothing_happens() -> None:
    """A conversation that fits is sent unchanged."""
    events, requests = played([*looks(100, 900), DONE])
    assert not of_kind(events, Compaction)
    assert len(requests) == 3
    assert not any(is_trimmed(block) for block in results(requests[-1]))


def test_old_results_are_trimmed_first() -> None:
    """At the threshold old results become notes, and nothing else happens if that is enough; the new result stays."""
    events, requests = played([*looks(100, 820, 1540), DONE])
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.methods, done.turn) == ("auto", ("trim",), 4)
    assert done.tokens_before >= done.threshold == 2000 > done.tokens_after
    assert (done.messages_before, done.messages_after) == (7, 7)
    assert (done.kept_from, done.turns_since_last, done.files) == ("toolu_c", None, 0)
    trimmed = [is_trimmed(content) for content in results(requests[-1])]
    assert trimmed == [True, True, False]
    assert len(requests) == 4, "nobody was asked for a summary"
    assert requests[-1]["messages"][1]["content"][0] == THOUGHT


def test_then_the_oldest_groups_are_dropped() -> None:
    """If nothing can be trimmed, a few old groups are dropped; the first prompt stays, and each
    call has its result.
    """
    long = [text("z" * 80)]
    replies = [said(100 + 30 * n, *long, call(f"t{n}", "peek", where="here")) for n in range(60)]
    events, requests = played([*replies, said(2000, *long, call("last", "peek", where="x")), DONE])
    done = of_kind(events, Compaction)[0]
    assert done.methods == ("drop",)
    first, *rest = requests[-1]["messages"]
    assert text_of(first["content"]) == f"Hello\n{DROPPED}"
    assert rest[0]["role"] == "assistant"
    assert done.tokens_after < 1600 < 2000 <= done.tokens_before


def test_what_is_remembered_takes_the_place_of_a_summary() -> None:
    """If the session's memory is enough, no model is asked for a summary."""
    talk = Conversation()
    with Provider(heavy(2)) as provider:
        world = {"memory": lambda: "They looked for the key."}
        events = events_of(
            provider, "Hello", tools=[peek], conversation=talk, world=world, context=SMALL
        )
    (done,) = of_kind(events, Compaction)
    assert done.methods == ("memory",)
    first = provider.requests[-1]["messages"][0]
    assert "They looked for the key." in text_of(first["content"])
    assert len(provider.requests) == 3


def test_a_summary_is_asked_for_at_last() -> None:
    """It is requested with tools forbidden, and the conversation continues from it and the last group."""
    *replies, done_ = heavy(2)
    with recorded() as records:
        events, requests = played([*replies, SUMMARY, done_])
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.methods, done.kept_from) == ("auto", ("summary",), "toolu_1")
    asked, last = requests[2:]
    assert asked["tool_choice"] == {"type": "none"}
    assert (asked["max_tokens"], asked["tools"]) == (500, last["tools"])
    assert asked["messages"][-1]["content"][-1]["text"].startswith("Stop here.")
    assert "thinking" not in {b["type"] for m in asked["messages"] for b in blocks_of(m)}
    first, answer, outcome = last["messages"]
    assert "They looked at files." in text_of(first["content"])
    assert answer["content"][0] == THOUGHT
    assert outcome["content"][0]["tool_use_id"] == "toolu_1"
    assert [e.source for e in of_kind(events, RequestStart)] == ["main"] * 3
    assert result_of(events).usage["claude-test-1"].output_tokens == 40, "the summary is paid, too"
    assert ("compaction", "auto", "interaction", "ok") in spans(records)
    told = {str(r.kind): r for r in of_kind(records, EventFact)}
    assert told["compaction"].numbers["summary"] == 1
    assert told["compaction_kept"].label == "toolu_1"


def test_recent_files_are_attached_again() -> None:
    """The text of files read before the summary is attached again, as far as there is room."""

    @tool(read_only=True, paths=("where",))
    def read(where: str) -> str:
        """Read."""
        return f"contents of {where}"

    replies = [
        said(300, call("toolu_a", "read", where="a.txt"), text("z" * 3000)),
        said(1200, call("toolu_b", "read", where="b.txt"), text("z" * 3000)),
        said(2100, call("toolu_c", "read", where="c.txt")),
    ]
    events, requests = played([*replies, SUMMARY, DONE], tools=[read])
    (done,) = of_kind(events, Compaction)
    assert done.files == 2
    said_ = text_of(requests[-1]["messages"][0]["content"])
    assert said_.index("contents of b.txt") < said_.index("contents of a.txt")
    assert "contents of c.txt" not in said_


@pytest.mark.parametrize("refusal", [TOO_LONG, TOO_LARGE])
def test_a_refused_prompt_is_made_shorter_once(refusal: Reply) -> None:
    """If the provider refuses a prompt as too long, the conversation is compacted and the request repeated, once."""
    talk = Conversation(messages=tuple(before(3)), turns=3)
    events, _ = played([refusal, SUMMARY, DONE, refusal], talk=talk, context=Context())
    (done,) = of_kind(events, Compaction)
    assert done.trigger == "reactive"
    transitions = [e.transition for e in of_kind(events, RequestStart)]
    assert transitions == ["start", "reactive_compaction"]
    assert result_of(events).text == "Done."
    later = [*looks(300, 1000, 1700, 2400), refusal, SUMMARY, DONE]
    events, requests = played(later, talk=talk, context=Context())
    assert not of_kind(events, Compaction)
    assert len(requests) == 5, (
        "there was enough that could be made shorter, and nobody was asked to"
    )
    assert result_of(events).terminal_reason == "prompt_too_long"


def test_an_answer_that_fills_the_window() -> None:
    """It is void, and the request is repeated once with a shorter conversation.

    The stop reason is synthetic: no recorded traffic has one.
    """
    full = said(2990, text("So the"), stop_reason="model_context_window_exceeded")
    talk = Conversation(messages=tuple(before(3)), turns=3)
    events, requests = played([full, SUMMARY, DONE, full], talk=talk, context=Context())
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.turn) == ("reactive", 4)
    assert result_of(events).text == "Done."
    assert "So the" not in str(requests[2]["messages"])
    later = [*looks(300, 1000, 1700, 2400), full, SUMMARY, DONE]
    events, requests = played(later, talk=talk, context=Context())
    assert not of_kind(events, Compaction)
    assert len(requests) == 5
    assert result_of(events).terminal_reason == "prompt_too_long"


def test_stopped_while_a_summary_is_asked_for() -> None:
    """The run ends gracefully, the conversation is unchanged, and its next run continues."""
    abort, talk = Abort(), Conversation()

    def remembered() -> None:
        abort.stop()

    with Provider([*heavy(2)[:-1], SUMMARY, DONE]) as provider:
        events = events_of(
            provider,
            tools=[peek],
            conversation=talk,
            world={"memory": remembered, "abort": abort},
            context=SMALL,
        )
        assert len(provider.requests) == 2
        assert result_of(events).terminal_reason == "aborted_streaming"
        assert not of_kind(events, Compaction)
        assert len(talk.messages) == 5
        assert talk.context.failures == 0
        events = events_of(provider, "Go on", tools=[peek], conversation=talk, context=SMALL)
    assert [e.methods for e in of_kind(events, Compaction)] == [("summary",)]
    assert result_of(events).text == "Done."


def test_a_hook_that_keeps_the_run_does_not_make_it_two() -> None:
    """A run that a hook kept from ending does not compact its conversation a second time after another refusal."""
    hook = Hook("stop", lambda payload: None, name="more")

    async def objects(question: WorldQuestion) -> dict[str, Any]:
        return {"outcome": "blocking", "reason": "More!"}

    talk = Conversation(messages=tuple(before(3)), turns=3)
    later = [*looks(300, 1000, 1700, 2400), TOO_LARGE, SUMMARY, DONE]
    with Provider([TOO_LARGE, SUMMARY, DONE, *later]) as provider:
        events = events_of(
            provider,
            tools=[look],
            conversation=talk,
            world={"hooks": objects},
            hooks=table([hook]),
        )
    requests = provider.requests
    assert len(of_kind(events, Compaction)) == 1
    assert len(requests) == 3 + 5
    assert result_of(events).terminal_reason == "prompt_too_long"


def test_a_prompt_that_stays_too_long_ends_the_run() -> None:
    """If no compaction helps, the run ends with the provider's refusal."""
    events, requests = played([TOO_LONG])
    result = result_of(events)
    assert (result.subtype, result.terminal_reason) == ("error_during_execution", "prompt_too_long")
    assert len(requests) == 1, "a prompt alone cannot be made shorter"


def test_a_summary_that_is_too_long_drops_its_oldest_groups() -> None:
    """It is requested again with fewer messages, at most three times; then the compaction has failed."""
    said_before = tuple(before(8, size=300, said_=6000))
    talk = Conversation(messages=said_before, turns=8)
    replies = [TOO_LONG, *[error(400, "invalid_request_error", text="prompt is too long")] * 4]
    events, requests = played(replies, talk=talk, context=Context())
    sizes = [len(request["messages"]) for request in requests]
    assert len(requests) == 5
    assert sizes[1] > sizes[2] > sizes[3] > sizes[4]
    assert result_of(events).terminal_reason == "prompt_too_long"
    assert talk.messages == said_before, "nothing was lost"


def test_after_three_failures_nothing_is_tried_any_more() -> None:
    """Three consecutive failed compactions disable automatic compaction, which is reported once."""
    refused = error(400, "invalid_request_error", text="no")
    turns = heavy(6)[:-1]
    replies = [turns[0], turns[1], refused, turns[2], refused, turns[3], refused, *turns[4:], DONE]
    talk = Conversation()
    events, requests = played(replies, talk=talk)
    assert of_kind(events, Degraded) == [Degraded("compaction", "failures")]
    assert len(requests) == len(replies)
    assert talk.context.failures == 3
    assert result_of(events).text == "Done."


def test_a_failure_is_forgotten_after_a_success() -> None:
    """Only consecutive failures count."""
    refused = error(400, "invalid_request_error", text="no")
    one, two, three, done = heavy(3)
    talk = Conversation()
    events, _ = played([one, two, refused, three, SUMMARY, done], talk=talk)
    assert talk.context.failures == 0
    assert len(of_kind(events, Compaction)) == 1


def test_images_and_documents_are_words_in_the_request_for_a_summary() -> None:
    """They are replaced before summarizing, also in results; the kept part still has its own."""
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/x.png"}}
    page = {"type": "document", "title": "Plan", "source": {"type": "url", "url": "https://x/y"}}
    outcome = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    messages = (
        {"role": "user", "content": [image, page, text("What is it?")]},
        {"role": "assistant", "content": [call("t", "look", where="x")]},
        {"role": "user", "content": [outcome]},
        {"role": "assistant", "content": [text("A key.")]},
    )
    talk = Conversation(messages=messages, turns=2)
    _, requests = played([SUMMARY, DONE], talk=talk)
    asked = str(requests[0]["messages"])
    assert "'image'" not in asked
    assert "[document: Plan]" in asked
    assert "[image]" in asked


def test_somebody_wants_it_now() -> None:
    """A conversation can be compacted by hand, with instructions for the summary; a later run continues from there."""
    talk = Conversation(messages=tuple(before(2)), turns=3)
    with Provider([SUMMARY, DONE]) as provider:

        async def by_hand() -> Compaction | None:
            async with provider.client() as client:
                return await compact(
                    talk,
                    world=ticking_world(client, [look]),
                    options=options(),
                    tools=[look],
                    instructions="Mind the key.",
                )

        done = in_loop(by_hand())
        events = events_of(provider, "And now?", tools=[look], conversation=talk)
    assert done is not None
    assert (done.trigger, done.methods) == ("manual", ("summary",))
    assert provider.requests[0]["messages"][-1]["content"][-1]["text"].endswith("Mind the key.")
    first, answer, prompt = provider.requests[1]["messages"]
    assert "They looked at files." in text_of(first["content"])
    assert text_of(answer["content"]).startswith("Not found.")
    assert prompt["content"] == "And now?"
    assert result_of(events).text == "Done."


def test_there_is_nothing_to_make_shorter() -> None:
    """A conversation that has hardly started stays unchanged, and no request is sent."""
    talk = Conversation(messages=({"role": "user", "content": "Hello"},), turns=0)
    with Provider([]) as provider:

        async def by_hand() -> Compaction | None:
            async with provider.client() as client:
                world = ticking_world(client)
                return await compact(talk, world=world, options=options())

        assert in_loop(by_hand()) is None
    assert provider.requests == []


def test_turns_since_the_last_one() -> None:
    """A compaction reports how many turns ago the previous one was."""
    later = [said(900, call("d", "look", where="d")), said(1620, call("e", "look", where="e"))]
    events, _ = played([*looks(100, 820, 1540), *later, DONE])
    assert [done.turns_since_last for done in of_kind(events, Compaction)] == [None, 2]


def test_it_can_be_switched_off() -> None:
    """Without automatic compaction a long conversation is sent unchanged."""
    context = Context(
        window_tokens=3000, summary_tokens=500, reserve_tokens=500, is_automatic=False
    )
    events, requests = played([*looks(100, 2820, 3540), DONE], context=context)
    assert not of_kind(events, Compaction)
    assert len(requests) == 4


@pytest.mark.parametrize(
    "wrong",
    [{"window_tokens": 33_000}, {"summary_tokens": 0}, {"kept_results": -1}],
)
def test_settings_that_leave_no_room_are_refused(wrong: dict[str, Any]) -> None:
    """A window without room for a conversation is one clear error."""
    with pytest.raises(UsageError):
        Context(**wrong)


def test_context_growth_can_be_asked_for() -> None:
    """Each turn reports the length of the conversation and its parts."""
    with recorded() as records:
        played([*looks(100, 820), DONE])
    told = [dict(r.numbers) for r in of_kind(records, EventFact) if r.kind == "context"]
    assert [each["messages"] for each in told] == [1, 3, 5]
    assert [each["window"] for each in told] == [3000] * 3
    assert [each["threshold"] for each in told] == [2000] * 3
    first, second, third = (each["tokens"] for each in told)
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
def test_the_threshold_is_the_window_less_what_is_kept_free(
    context: Context, model: str, threshold: int
) -> None:
    """20,000 tokens for a summary and 13,000 more are reserved."""
    with recorded() as records:
        played([DONE], context=context, model=model)
    (told,) = [r.numbers for r in of_kind(records, EventFact) if r.kind == "context"]
    assert told["window"] - told["threshold"] == 20_000 + 13_000
    assert told["threshold"] == threshold


def test_what_was_not_seen_yet_goes_last() -> None:
    """A result that alone fills the window is trimmed if nothing else is left, and the turn continues."""

    @tool(read_only=True)
    def flood() -> str:
        """Say too much."""
        return "y" * 12_000

    replies = [said(300, text("z" * 3600), call("toolu_1", "peek", where="x"))]
    replies.append(said(1400, call("toolu_2", "flood")))
    events, requests = played([*replies, SUMMARY, DONE], tools=[flood, peek])
    (done,) = of_kind(events, Compaction)
    assert done.methods == ("summary", "trim")
    assert [is_trimmed(content) for content in results(requests[-1])] == [True]
    assert result_of(events).text == "Done."


def test_the_budget_is_looked_at_after_a_summary() -> None:
    """A run whose summary has used up its budget ends before the next LLM request."""
    from decimal import Decimal

    from agentobs.agent.budget import Budget

    usage = {"input_tokens": 100_000, "output_tokens": 10}
    dear = streamed(message(text("So."), model="claude-sonnet-4-6", usage=usage))
    talk = Conversation(messages=tuple(before(4)), turns=4)
    events, requests = played(
        [dear], talk=talk, model="claude-sonnet-4-6", budget=Budget(interaction_usd=Decimal("0.2"))
    )
    assert len(requests) == 1
    assert isinstance(events[-1], Result)
    assert events[-1].terminal_reason == "max_budget"
