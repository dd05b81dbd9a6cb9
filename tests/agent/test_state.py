"""State: pure transitions from a prompt to a request, and from a response to the next one."""

from __future__ import annotations

from agentobs.agent.events import Tokens, ToolDone, billed
from agentobs.agent.state import (
    Conversation,
    Options,
    State,
    answered,
    begin,
    broken_off,
    calls,
    go_on,
    next_turn,
    request,
    told_apart,
)
from agentobs.agent.tools.tool import declared
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolAnswer, ToolQuestion

from .provider import call, message, text

HELLO = {"role": "user", "content": "Hello"}


def asking(*messages: Json, turn: int = 1) -> State:
    return State("awaiting_model", messages or (HELLO,), turn, 0, 0, "start")


def test_a_request_says_what_the_options_say() -> None:
    """Only configured fields are sent; additional fields are passed unchanged."""
    state = begin(Conversation(), "Hello")
    plain = request(state, Options("m", 50, stream=False, cache=None), [])
    assert plain == {"model": "m", "max_tokens": 50, "messages": [HELLO]}
    look = declared({"name": "look", "input_schema": {"type": "object"}}, print)
    options = Options(
        "m",
        50,
        "Be kind.",
        cache=None,
        betas=("a-1", "b-2"),
        extra={"temperature": 0, "new_field": [1]},
    )
    assert request(state, options, [look]) == {
        "model": "m",
        "max_tokens": 50,
        "messages": [HELLO],
        "system": "Be kind.",
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "stream": True,
        "extra_headers": {"anthropic-beta": "a-1,b-2"},
        "extra_body": {"temperature": 0, "new_field": [1]},
    }


def test_results_follow_their_calls_in_one_message() -> None:
    """The next state has the response and all results in the order of the calls, errors marked."""
    answer = message(text("Let me look."), call("a", "look"), call("b", "look", at=1))
    first, second = calls(answer)
    assert (first, second) == (ToolQuestion("a", "look", {}), ToolQuestion("b", "look", {"at": 1}))
    heard = answered(asking(turn=3), answer)
    assert (heard.phase, heard.turn) == ("dispatching_tools", 3)
    results = [
        ToolDone(first, ToolAnswer("fine"), 1),
        ToolDone(second, ToolAnswer([text("bad")], is_error=True, outcome="failed"), 1),
    ]
    following = next_turn(heard, results)
    assert following == State(
        phase="awaiting_model",
        messages=(
            HELLO,
            {"role": "assistant", "content": answer["content"]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "fine"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "b",
                        "content": [text("bad")],
                        "is_error": True,
                    },
                ],
            },
        ),
        turn=4,
        tool_turns=1,
        output_retries=0,
        transition="next_turn",
    )
    steered = next_turn(heard, results, ["Stop!"])
    assert steered.transition == "steering"
    assert steered.messages[-1]["content"] == [
        *following.messages[-1]["content"],
        text("Stop!"),
    ]


def test_going_on_without_tools() -> None:
    """A message after a response without calls is the next user message, or is appended to the last."""
    ended = answered(asking(), message(text("Done.")))
    following = go_on(ended, ["More"], "follow_up")
    assert following.messages[-1] == {"role": "user", "content": [text("More")]}
    assert (following.turn, following.tool_turns, following.transition) == (2, 0, "follow_up")
    silent = answered(asking(), message())
    owed = go_on(silent, ["The output!"], "structured_output_retry")
    assert owed.messages == ({"role": "user", "content": [text("Hello"), text("The output!")]},)
    assert owed.output_retries == 1


def test_an_answer_that_was_stopped() -> None:
    """Complete blocks and partial text stay; anything that the provider would refuse is removed."""
    thought = {"type": "thinking", "thinking": "Hm", "signature": "c2ln"}
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    kept = [thought, text("So"), search, found, call("a", "look")]
    cut = [
        {**search, "id": "t"},
        {**call("b", "look"), "partial_json": '{"x'},
        {"type": "thinking", "thinking": "Hm", "signature": ""},
        text("  "),
        thought,
    ]
    state, owing = broken_off(asking(), message(*kept, *cut))
    assert state.messages[-1] == {"role": "assistant", "content": kept}
    assert owing == [ToolQuestion("a", "look", {})]
    assert broken_off(asking(), {"content": cut})[0].messages == (HELLO,)
    assert broken_off(asking(), {"content": []})[1] == []


def test_ids_are_told_apart() -> None:
    """A call with a used ID gets a unique one; responses without such calls are unchanged."""
    clean = message(call("a", "look"), call("b", "look"))
    assert told_apart(clean, frozenset("x"))[0] is clean
    doubled = message(call("a", "look"), text("a"), call("a", "look"), call("b", "look"))
    apart, doubles = told_apart(doubled, frozenset(("b", "b_2")))
    assert [block.get("id") for block in apart["content"]] == ["a", None, "a_2", "b_3"]
    assert doubles == {"a_2": "a", "b_3": "b"}
    assert [block.get("id") for block in doubled["content"]] == ["a", None, "a", "b"]


def test_what_folding_noted_is_not_sent_back() -> None:
    """Notes about cut input and unknown deltas are not sent; validation sees the cut text."""
    cut = {**call("a", "look"), "partial_json": '{"at": '}
    odd = {**text("x"), "unknown_deltas": [{"type": "new"}]}
    assert answered(asking(), message(odd, cut)).messages[1:] == (
        {"role": "assistant", "content": [text("x"), call("a", "look")]},
    )
    assert calls(message(cut)) == [ToolQuestion("a", "look", '{"at": ')]


def test_an_empty_answer_is_not_sent_back() -> None:
    """A response without content does not enter the conversation, because the provider would refuse it."""
    assert answered(asking(), message()).messages == (HELLO,)


def test_calls_that_were_interrupted_are_answered_with_the_next_prompt() -> None:
    """A conversation that was stopped before its tool results can continue; given results are used."""
    stopped = {"role": "assistant", "content": [call("a", "look"), call("b", "look")]}
    state = begin(Conversation((HELLO, stopped), turns=1), "Never mind")
    said = "The run was interrupted before this tool had finished."
    assert (state.turn, state.messages[:2]) == (2, (HELLO, stopped))
    assert state.messages[2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": said, "is_error": True},
            {"type": "tool_result", "tool_use_id": "b", "content": said, "is_error": True},
            text("Never mind"),
        ],
    }
    given = [{"type": "tool_result", "tool_use_id": "a", "content": "seen"}]
    assert begin(Conversation((HELLO, stopped), turns=1), given).messages[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "b", "content": said, "is_error": True},
        *given,
    ]
    assert begin(Conversation((HELLO,)), "Again").messages == (
        HELLO,
        {"role": "user", "content": "Again"},
    )


def test_usage_adds_up_by_model() -> None:
    """Tokens are summed in disjoint buckets; if iterations are listed, they are billed."""
    cached = {
        "input_tokens": 1,
        "output_tokens": 2,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 9,
        "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 5},
        "server_tool_use": {"web_search_requests": 6},
    }
    advised = {
        "input_tokens": 100,
        "output_tokens": 100,
        "iterations": [
            {"type": "message", "input_tokens": 7, "output_tokens": 8},
            {"type": "advisor_message", "model": "n", "input_tokens": 9, "output_tokens": 10},
        ],
    }
    answers = [{"model": "m", "usage": cached}, {"usage": advised}, {}, {"usage": {}}]
    assert billed("m", answers) == {
        "m": Tokens(8, 10, 3, 4, 5, 6),
        "n": Tokens(9, 10, 0, 0, 0, 0),
    }
