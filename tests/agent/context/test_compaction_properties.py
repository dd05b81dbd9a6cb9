"""Properties of compacted conversations that hold for any content."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.agent.compaction import summary
from agentobs.agent.context import reduction, token_counts
from agentobs.agent.context.message_groups import (
    count_unanswered_blocks,
    flattened,
    merged,
    split_groups,
    without_last_blocks,
)
from agentobs.agent.context.recent_files import File, attachments, recent_files
from agentobs.agent.context.window_policy import TokenCount
from agentobs.agent.state import AgentOptions, State
from agentobs.agent.tools.tool import tool
from agentobs.provider.anthropic.messages import blocks, conversation_error, tool_results
from tests.agent.context.generated_conversations import Message, check_derived, conversations

Messages = tuple[Message, ...]
QUICK = settings(max_examples=40, deadline=None)


@tool(read_only=True, paths=("where",))
def look(where: str) -> str:
    """Look into a file."""
    return where


@QUICK
@given(conversations())
def test_groups_contain_all_messages(messages: Messages) -> None:
    """The start of a conversation and its groups contain all messages, and each group can follow the first prompt."""
    all_groups = split_groups(messages)
    assert (*all_groups.start, *flattened(all_groups.groups)) == messages
    for group in all_groups.groups:
        assert conversation_error([all_groups.start[0], *group]) is None


@QUICK
@given(conversations(), st.integers(0, 4), st.booleans())
def test_trimming_changes_only_old_results(messages: Messages, kept: int, spares_new: bool) -> None:
    """Trimming changes only old results: all messages and calls remain, and the conversation never becomes longer."""
    trimmed = reduction.trim(messages, kept, spares_new=spares_new)
    check_derived(messages, trimmed)
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
def test_dropping_removes_a_few_of_the_oldest_groups(messages: Messages, tokens: int) -> None:
    """Dropping frees enough tokens, at most a third, from the oldest groups; the first prompt and the last group are
    kept.
    """
    dropped = reduction.drop(messages, tokens)
    if dropped is None:
        return
    check_derived(messages, merged(dropped))
    last = blocks(messages[-1])
    assert blocks(dropped[-1])[-len(last) :] == last
    freed = token_counts.estimate(messages) - token_counts.estimate(dropped)
    assert freed >= tokens
    all_groups = split_groups(messages)
    assert freed <= reduction.DROP_SHARE * sum(map(token_counts.estimate, all_groups.groups)) + 1
    first = blocks(messages[0])
    assert blocks(dropped[0])[: len(first)] == first


@QUICK
@given(conversations(), st.integers(1, 3))
def test_dropping_twice_leaves_one_note(messages: Messages, count: int) -> None:
    """However often groups are dropped, a single note replaces them."""
    once = reduction.without_oldest(messages, count)
    twice = reduction.without_oldest(once, count)
    for each in (once, twice):
        check_derived(messages, each)
        assert json.dumps(each).count(reduction.DROPPED) == 1


@QUICK
@given(conversations(), st.integers(0, 3000))
def test_a_summary_replaces_all_except_the_latest_groups(messages: Messages, tokens: int) -> None:
    """A summary replaces all except the latest groups; the new conversation is valid and ends with the same results."""
    summarized, kept = summary.split(messages, tokens)
    assert (*summarized, *kept) == messages
    assert kept
    continued = summary.continued_from("All is well.", [], kept)
    check_derived(messages, continued)
    assert tool_results(continued[-1]) == tool_results(messages[-1])


@QUICK
@given(conversations(), st.integers(0, 3000))
def test_a_summary_request_is_valid(messages: Messages, tokens: int) -> None:
    """A summary request contains no image, document, thinking or beta feature, and it declares tools if it contains
    calls.
    """
    summarized, _ = summary.split(messages, tokens)
    state = State("awaiting_model", messages, 1, 0, 0, "start")
    for _ in range(summary.DROPS_MAX + 1):
        request = summary.summary_request(
            summarized, state, AgentOptions("claude-test-1"), (), None
        )
        assert conversation_error(request["messages"]) is None
        kinds = {
            block["type"] for message in request["messages"] for block in inner(message["content"])
        }
        assert kinds <= {"text", "tool_use", "tool_result", "tool_reference"}
        assert ("tools" in request) == ("tool_use" in kinds)
        fewer = summary.with_fewer_groups(summarized, None)
        if fewer is None:
            break
        assert len(split_groups(fewer).groups) < len(split_groups(summarized).groups)
        summarized = fewer


def inner(content: object) -> list[Message]:
    """Yield all blocks of a content, including blocks within results."""
    found: list[Message] = []
    for block in content if isinstance(content, list) else []:
        found += [block, *inner(block.get("content"))]
    return found


@QUICK
@given(conversations(), st.integers(0, 40_000))
def test_attached_files_are_limited(messages: Messages, tokens: int) -> None:
    """At most five files are attached, each of them once and all within the available tokens."""
    summarized, kept = summary.split(messages, 0)
    files = recent_files(summarized, kept, [look])
    assert len({file.path for file in files}) == len(files) <= 5
    attached = attachments(files, tokens)
    sizes = [token_counts.text_tokens(block["text"]) for block in attached]
    assert sum(sizes) <= tokens


@QUICK
@given(conversations(), st.integers(1, 10**6))
def test_token_counts(messages: Messages, counted_tokens: int) -> None:
    """The reported token count of a conversation is used unchanged, other messages are estimated, and no result is
    negative.
    """
    covered = token_counts.tokens_of(
        messages, TokenCount(counted_tokens, len(messages), messages[-1]), 10
    )
    assert covered == counted_tokens
    estimated = token_counts.estimate(messages)
    assert token_counts.tokens_of(messages, None, 10) == 10 + estimated
    assert token_counts.tokens_after(counted_tokens, estimated, estimated) == counted_tokens
    assert token_counts.tokens_after(counted_tokens, estimated, 0) >= 0


def test_an_attached_file_has_at_most_5000_tokens() -> None:
    """An attached file of more than 5,000 tokens, including the text around it, is truncated at the end."""
    (block,) = attachments([File("a.txt", "z" * 100_000, False)], 10**6)
    assert block["text"].count("z") == 17_500
    assert 5_000 <= token_counts.text_tokens(block["text"]) < 5_050


def test_attached_files_have_at_most_50000_tokens() -> None:
    """The attached blocks, including the paths of the files, have at most 50,000 tokens together.

    Only long paths can reach this limit: five files without their paths have at most 25,000 tokens.
    """
    files = [File(f"{number}/" + "p" * 50_000, "z" * 17_500, False) for number in range(3)]
    sizes = [token_counts.text_tokens(block["text"]) for block in attachments(files, 10**6)]
    assert len(sizes) == 2
    assert sum(sizes) < 50_000 < sum(sizes) + sizes[0] < 60_000


@QUICK
@given(conversations(), st.data())
def test_new_messages_are_always_counted(messages: Messages, data: st.DataObject) -> None:
    """Even if an earlier message was removed or replaced, the newest message is counted."""
    count = TokenCount(7, len(messages), messages[-1])
    new = {"role": "user", "content": "word " * 100}
    index = data.draw(st.integers(0, len(messages) - 1))
    fewer = (*messages[:index], *messages[index + 1 :], new)
    for each in (fewer, (*messages[:-1], {**messages[-1]}, new), (*messages, new)):
        assert token_counts.tokens_of(each, count, 0) >= token_counts.estimate([new])


@QUICK
@given(conversations())
def test_unanswered_messages(messages: Messages) -> None:
    """Unanswered messages can be counted and removed, even if the prompt was merged into the message with the
    results.
    """
    prompt = {"role": "user", "content": "And now?"}
    with_prompt = merged((*messages, prompt))
    assert count_unanswered_blocks((*messages, prompt), messages) == 1
    assert [blocks(each) for each in without_last_blocks(with_prompt, 1)] == [
        blocks(each) for each in messages
    ]
    assert count_unanswered_blocks(messages, messages) == 0
    assert count_unanswered_blocks(with_prompt, messages) == (
        1 if messages[-1]["role"] == "assistant" else 0
    )
