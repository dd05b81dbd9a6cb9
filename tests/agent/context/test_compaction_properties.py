"""Properties of every compacted conversation, whatever its content."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.agent.compaction import summary
from agentobs.agent.context import reduction, token_counts
from agentobs.agent.context.message_groups import flat, joined, parts, unanswered, without_last
from agentobs.agent.context.recent_files import File, attached, recent_files
from agentobs.agent.context.window_policy import Counted
from agentobs.agent.state import Options, State
from agentobs.agent.tools.tool import tool
from agentobs.provider.anthropic.messages import blocks, fault, tool_results
from tests.agent.context.conversations import Message, conversations, holds

Messages = tuple[Message, ...]
QUICK = settings(max_examples=40, deadline=None)


@tool(read_only=True, paths=("where",))
def look(where: str) -> str:
    """Look into a file."""
    return where


@QUICK
@given(conversations())
def test_groups_are_the_conversation(messages: Messages) -> None:
    """Head and groups together are the conversation, and each group except prompts starts with a response."""
    whole = parts(messages)
    assert (*whole.head, *flat(whole.groups)) == messages
    for group in whole.groups:
        assert fault([whole.head[0], *group]) is None


@QUICK
@given(conversations(), st.integers(0, 4), st.booleans())
def test_trimming_keeps_everything_but_old_results(
    messages: Messages, kept: int, spares_new: bool
) -> None:
    """A trimmed conversation has the same messages and calls; it is never longer; new results stay."""
    trimmed = reduction.trim(messages, kept, spares_new=spares_new)
    holds(messages, trimmed)
    assert len(trimmed) == len(messages)
    assert token_counts.estimate(trimmed) <= token_counts.estimate(messages)
    assert reduction.trim(trimmed, kept, spares_new=spares_new) == trimmed
    if spares_new:
        assert trimmed[-1] is messages[-1]
    before = [block["content"] for message in messages for block in tool_results(message)]
    after = [block["content"] for message in trimmed for block in tool_results(message)]
    if kept:
        assert before[-kept:] == after[-kept:]


@QUICK
@given(conversations(), st.integers(0, 4000))
def test_dropping_takes_the_oldest_and_few(messages: Messages, tokens: int) -> None:
    """The dropped part is large enough, at most a third, the oldest, and never the first prompt or the last group."""
    dropped = reduction.drop(messages, tokens)
    if dropped is None:
        return
    holds(messages, joined(dropped))
    last = blocks(messages[-1])
    assert blocks(dropped[-1])[-len(last) :] == last
    freed = token_counts.estimate(messages) - token_counts.estimate(dropped)
    assert freed >= tokens
    whole = parts(messages)
    assert freed <= reduction.DROP_SHARE * sum(map(token_counts.estimate, whole.groups)) + 1
    first = blocks(messages[0])
    assert blocks(dropped[0])[: len(first)] == first


@QUICK
@given(conversations(), st.integers(1, 3))
def test_dropping_twice_leaves_one_note(messages: Messages, count: int) -> None:
    """However often groups are dropped, a single note replaces them."""
    once = reduction.without_oldest(messages, count)
    twice = reduction.without_oldest(once, count)
    for each in (once, twice):
        holds(messages, each)
        assert json.dumps(each).count(reduction.DROPPED) == 1


@QUICK
@given(conversations(), st.integers(0, 3000))
def test_a_summary_takes_the_place_of_all_but_the_latest(messages: Messages, tokens: int) -> None:
    """The conversation after a summary is valid and has the same end, and the summarized part is the rest."""
    gone, kept = summary.split(messages, tokens)
    assert (*gone, *kept) == messages
    assert kept
    made = summary.continued_from("All is well.", [], kept)
    holds(messages, made)
    assert tool_results(made[-1]) == tool_results(messages[-1])


@QUICK
@given(conversations(), st.integers(0, 3000))
def test_a_request_for_a_summary_is_valid(messages: Messages, tokens: int) -> None:
    """It contains no image, document or thinking, nothing that needs a beta, and declares tools if it calls any."""
    gone, _ = summary.split(messages, tokens)
    state = State("awaiting_model", messages, 1, 0, 0, "start")
    for _ in range(summary.DROPS_MAX + 1):
        asked = summary.request(gone, state, Options("claude-test-1"), (), None)
        assert fault(asked["messages"]) is None
        kinds = {
            block["type"] for message in asked["messages"] for block in inner(message["content"])
        }
        assert kinds <= {"text", "tool_use", "tool_result", "tool_reference"}
        assert ("tools" in asked) == ("tool_use" in kinds)
        fewer = summary.shorter(gone, None)
        if fewer is None:
            break
        assert len(parts(fewer).groups) < len(parts(gone).groups)
        gone = fewer


def inner(content: object) -> list[Message]:
    """All blocks of a content, including those within results."""
    found: list[Message] = []
    for block in content if isinstance(content, list) else []:
        found += [block, *inner(block.get("content"))]
    return found


@QUICK
@given(conversations(), st.integers(0, 40_000))
def test_files_are_few_and_bounded(messages: Messages, tokens: int) -> None:
    """At most five files are attached, each once, all within the available room."""
    gone, kept = summary.split(messages, 0)
    files = recent_files(gone, kept, [look])
    assert len({file.path for file in files}) == len(files) <= 5
    made = attached(files, tokens)
    sizes = [token_counts.text_tokens(block["text"]) for block in made]
    assert sum(sizes) <= tokens


@QUICK
@given(conversations(), st.integers(1, 10**6))
def test_counting(messages: Messages, told: int) -> None:
    """The counted part is exact, later messages add up, and the rest is never estimated below its share."""
    covered = token_counts.tokens_of(messages, Counted(told, len(messages), messages[-1]), 10)
    assert covered == told
    estimated = token_counts.estimate(messages)
    assert token_counts.tokens_of(messages, None, 10) == 10 + estimated
    assert token_counts.after(told, estimated, estimated) == told
    assert token_counts.after(told, estimated, 0) >= 0


def test_a_file_has_5000_tokens() -> None:
    """A longer file is truncated at the end, with the surrounding text."""
    (block,) = attached([File("a.txt", "z" * 100_000, False)], 10**6)
    assert block["text"].count("z") == 17_500
    assert 5_000 <= token_counts.text_tokens(block["text"]) < 5_050


def test_all_files_have_50000_tokens() -> None:
    """The total of the blocks, paths included: five files alone have no more than 25,000."""
    files = [File(f"{number}/" + "p" * 50_000, "z" * 17_500, False) for number in range(3)]
    sizes = [token_counts.text_tokens(block["text"]) for block in attached(files, 10**6)]
    assert len(sizes) == 2
    assert sum(sizes) < 50_000 < sum(sizes) + sizes[0] < 60_000


@QUICK
@given(conversations(), st.data())
def test_a_count_never_hides_what_is_new(messages: Messages, data: st.DataObject) -> None:
    """If any earlier message is removed or replaced, the newest one is still counted."""
    count = Counted(7, len(messages), messages[-1])
    new = {"role": "user", "content": "word " * 100}
    gone = data.draw(st.integers(0, len(messages) - 1))
    fewer = (*messages[:gone], *messages[gone + 1 :], new)
    for each in (fewer, (*messages[:-1], {**messages[-1]}, new), (*messages, new)):
        assert token_counts.tokens_of(each, count, 0) >= token_counts.estimate([new])


@QUICK
@given(conversations())
def test_what_the_model_has_not_answered(messages: Messages) -> None:
    """Unanswered messages can be identified and removed; an addition to stored results belongs to them."""
    prompt = {"role": "user", "content": "And now?"}
    made = joined((*messages, prompt))
    assert unanswered((*messages, prompt), messages) == 1
    assert [blocks(each) for each in without_last(made, 1)] == [blocks(each) for each in messages]
    assert unanswered(messages, messages) == 0
    assert unanswered(made, messages) == (1 if messages[-1]["role"] == "assistant" else 0)
