"""Hooks change the messages of an LLM request, but not the stored conversation.

Each conversation is run through `agentobs.Agent`, frozen and replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.agent import Hook, HookRan, Result, tool
from agentobs.agent.requests.request_hooks import stored_difference
from agentobs.records.exchanges import WorldExchange
from tests.marks import mark_all_but_first

from .agent_runs import ALLOW_ALL, of_kind
from .provider import call, error, message, streamed, text
from .recorded_agents import DONE, Conversation, calling, options, record

SEEN: list[Any] = []
AGENTS: list[agentobs.Agent] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    SEEN.clear()
    AGENTS.clear()


@tool(read_only=True)
def lookup(who: str) -> str:
    """Look someone up."""
    return f"{who} lives in Oslo"


def start_with(*hooks: Hook, **changes: Any) -> Callable[[Any], agentobs.Agent]:
    def start(client: Any) -> agentobs.Agent:
        settings = options(permissions=ALLOW_ALL, **changes)
        AGENTS.append(agentobs.Agent(client, options=settings, tools=[lookup], hooks=hooks))
        return AGENTS[-1]

    return start


def hook(answer: Callable[[list[Any]], Any], name: str = "change") -> Hook:
    """Return a hook whose answer depends on the messages."""

    def run(payload: dict[str, Any]) -> Any:
        SEEN.append(payload["messages"])
        return answer(payload["messages"])

    return Hook("pre_request", run, name=name)


def replacing(words: str) -> Callable[[list[Any]], Any]:
    return lambda _: {"messages": [{"role": "user", "content": words}]}


def without_city(messages: list[Any]) -> Any:
    """Remove a word from the results."""
    changed = [dict(each) for each in messages]
    for each in changed:
        if isinstance(each["content"], list):
            each["content"] = [
                {**b, "content": "redacted"} if b["type"] == "tool_result" else b
                for b in each["content"]
            ]
    return {"messages": changed}


LOOKS_UP = calling(call("t1", "lookup", who="Ann"))


def check_replay(conversation: Conversation, tmp_path: Path) -> None:
    seen, stored = list(SEEN), AGENTS[-1].conversation.messages
    again = conversation.replayed(tmp_path / f"fixture-{conversation.session_id}")
    assert [e.text for e in of_kind(again, Result)] == [
        e.text for e in of_kind(conversation.events, Result)
    ]
    assert AGENTS[-1].conversation.messages == stored
    assert seen == SEEN


def test_a_hook_replaces_the_messages_of_a_request(tmp_path: Path) -> None:
    """The provider gets the changed messages; the conversation and later payloads contain the stored messages."""
    done = record(
        tmp_path, [LOOKS_UP, DONE, DONE], start_with(hook(without_city)), prompts=("A", "B")
    )
    stored = AGENTS[-1].conversation.messages
    assert stored[2]["content"][0]["content"] == "Ann lives in Oslo"
    for request in done.requests[1:]:
        assert request["messages"][2]["content"][0]["content"] == "redacted"
    assert [each[2]["content"][0]["content"] for each in SEEN[1:]] == ["Ann lives in Oslo"] * 2
    events = (
        "SELECT label, labels['by'], numbers['before_bytes'] > numbers['after_bytes'] FROM events"
    )
    assert done.rows(f"{events} WHERE kind = 'rewritten'") == [("messages", "hook", True)] * 2
    hooks = "SELECT labels['event'], numbers['rewrites'] FROM events WHERE kind = 'hook'"
    assert done.rows(hooks) == [("pre_request", 1.0)] * 3
    check_replay(done, tmp_path)


@pytest.mark.slow
def test_the_messages_are_not_recorded_twice(tmp_path: Path) -> None:
    """The question of the hook contains no messages, because the request contains them."""
    done = record(tmp_path, [LOOKS_UP, DONE], start_with(hook(lambda _: None)))
    asked = [e.question for e in of_kind(done.recording.exchanges, WorldExchange)]
    hooks = [each.payload for each in asked if each.kind == "hook"]
    assert [sorted(each) for each in hooks] == [["event", "hook", "model", "turn"]] * 2
    assert [e.outcome for e in of_kind(done.events, HookRan)] == ["success"] * 2
    check_replay(done, tmp_path)


def test_a_hook_adds_context_to_a_request(tmp_path: Path) -> None:
    """Context is the last block of this request, and is not stored."""
    replies = [LOOKS_UP, DONE]
    done = record(tmp_path, replies, start_with(hook(lambda m: {"context": f"{len(m)} messages"})))
    first, second = (each["messages"] for each in done.requests)
    assert first[0]["content"] == [text("Hello"), text("1 messages")]
    assert [each.get("text") for each in second[2]["content"]] == [None, "3 messages"]
    assert second[0]["content"] == "Hello"
    assert len(AGENTS[-1].conversation.messages[2]["content"]) == 1
    check_replay(done, tmp_path)


def test_the_last_hook_in_the_table_replaces_the_messages(tmp_path: Path) -> None:
    """If several hooks replace the messages, the last one is used, and the others are overridden."""
    hooks = [hook(replacing(each), each) for each in "ab"]
    done = record(tmp_path, [DONE], start_with(*hooks))
    assert done.requests[0]["messages"] == [{"role": "user", "content": "b"}]
    overridden = (
        "SELECT labels['hook'], numbers['overridden'] FROM events WHERE kind = 'hook' ORDER BY ALL"
    )
    assert done.rows(overridden) == [("a", 1.0), ("b", 0.0)]
    check_replay(done, tmp_path)


@pytest.mark.parametrize(
    ("change", "expected"),
    mark_all_but_first([
        (lambda m: [], "not a list of messages"),
        (lambda m: [*m, {"role": "tool", "content": "x"}], "not a list of messages"),
        (lambda m: [*m, {"role": "user", "content": " "}], "not a list of messages"),
        (lambda m: m[1:], "first and its last message must be from the user"),
        (lambda m: m[:2], "first and its last message must be from the user"),
        (lambda m: [m[0], m[2]], "unexpected `tool_use_id`"),
        (lambda m: [*m[:2], m[0]], "`tool_use` ids were found without `tool_result`"),
        (
            lambda m: [
                m[0],
                {**m[1], "content": [{"type": "thinking", "thinking": "x", "signature": "y"}, *m[1]["content"]]},
                m[2],
            ],
            "thinking that is not in the conversation",
        ),
    ], pytest.mark.slow),
)  # fmt: skip
def test_invalid_messages_are_not_sent(
    tmp_path: Path, change: Callable[[list[Any]], list[Any]], expected: str
) -> None:
    """Messages that the provider would reject are not sent, and the hook counts as failed."""

    def answer(messages: list[Any]) -> Any:
        return {"messages": change(messages)} if len(messages) == 3 else None

    done = record(tmp_path, [LOOKS_UP, DONE], start_with(hook(answer)))
    ran = of_kind(done.events, HookRan)[1]
    assert (ran.outcome, expected in ran.reason) == ("non_blocking_error", True), ran.reason
    assert done.requests[1]["messages"] == list(AGENTS[-1].conversation.messages[:3])
    check_replay(done, tmp_path)


def test_thinking_can_be_removed(tmp_path: Path) -> None:
    """A hook may keep or remove thinking of the conversation; stored thinking is unchanged."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    replies = [
        streamed(message(thought, call("t1", "lookup", who="Ann"), stop_reason="tool_use")),
        DONE,
    ]

    def answer(messages: list[Any]) -> Any:
        if len(messages) != 3:
            return {"messages": messages}
        content = messages[1]["content"][1:]
        return {"messages": [messages[0], {**messages[1], "content": content}, messages[2]]}

    done = record(tmp_path, replies, start_with(hook(answer)))
    assert [b["type"] for b in done.requests[1]["messages"][1]["content"]] == ["tool_use"]
    assert AGENTS[-1].conversation.messages[1]["content"][0] == thought
    assert [e.outcome for e in of_kind(done.events, HookRan)] == ["success"] * 2
    check_replay(done, tmp_path)


def test_a_resumed_session_continues_the_stored_conversation(tmp_path: Path) -> None:
    """The conversation of a resumed session contains the stored messages, not those that were sent."""

    def shortened(messages: list[Any]) -> Any:
        if len(messages) < 5:
            return {"context": "Be brief."}
        return {"messages": [{"role": "user", "content": "A summary."}, *messages[3:]]}

    start = start_with(hook(shortened))
    done = record(tmp_path, [LOOKS_UP, DONE, DONE], start, prompts=("One", "Two"))
    stored = AGENTS[-1].conversation.messages
    assert [each["content"] for each in done.requests[2]["messages"][:1]] == ["A summary."]

    def resuming(client: Any) -> agentobs.Agent:
        return start(client).resume(done.session_id)

    second = record(tmp_path, [DONE], resuming, prompts=("Three",))
    assert AGENTS[-1].conversation.messages[: len(stored)] == stored
    assert SEEN[-1][:-1] == list(stored)
    check_replay(second, tmp_path)


@pytest.mark.slow
def test_a_fork_contains_the_stored_results(tmp_path: Path) -> None:
    """A fork contains the results of its last turn as they are stored, not as a hook changed them for the request."""
    start = start_with(hook(without_city))
    done = record(tmp_path, [LOOKS_UP, DONE], start)
    assert done.results[0]["content"] == "redacted"

    def forking(client: Any) -> agentobs.Agent:
        return start(client).fork(done.session_id, turn=1)

    second = record(tmp_path, [DONE], forking, prompts=("Go on",))
    assert AGENTS[-1].conversation.messages[2]["content"][0]["content"] == "Ann lives in Oslo"
    check_replay(second, tmp_path)


@pytest.mark.slow
def test_cache_breakpoints_and_retries(tmp_path: Path) -> None:
    """Changed messages get cache breakpoints, and each attempt of the request sends them."""
    replies = [error(529, "overloaded_error"), LOOKS_UP, DONE]
    done = record(tmp_path, replies, start_with(hook(without_city), cache="5m"))
    blocks = [block for each in done.requests[2]["messages"] for block in each["content"]]
    assert blocks[-1]["cache_control"] == {"type": "ephemeral"}
    assert blocks[-1]["content"] == "redacted"
    assert done.requests[0]["messages"] == done.requests[1]["messages"]
    assert len(SEEN) == 2
    check_replay(done, tmp_path)


def test_the_difference_between_stored_and_sent_messages() -> None:
    """The stored messages follow from the sent ones and the difference."""
    stored = [{"n": n} for n in range(6)]
    for sent in (
        stored,
        stored[:3],
        stored[2:],
        [],
        [{"n": 9}],
        [*stored, {"n": 9}],
        [*stored[:2], {"n": 9}, *stored[4:]],
        [*stored[:3], *stored[:3], *stored[3:]],
    ):
        found = stored_difference(stored, sent)
        middle = found.get("messages", sent[found["start"] : len(sent) - found["end"]])
        assert [*sent[: found["start"]], *middle, *sent[len(sent) - found["end"] :]] == stored
        assert ("messages" in found) == (stored != sent)
