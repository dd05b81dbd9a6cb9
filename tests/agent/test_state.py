"""State: pure transitions from a prompt to a request, and from a response to the next request."""

from __future__ import annotations

from agentobs.agent.events import ToolDone
from agentobs.agent.run_result import Tokens, billed_tokens
from agentobs.agent.state import (
    AgentOptions,
    Conversation,
    State,
    after_partial_response,
    after_response,
    calls,
    initial_state,
    next_turn,
    prompted_again,
    request_arguments,
    with_unique_ids,
)
from agentobs.agent.tools.tool import declared
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolAnswer, ToolQuestion

from .provider import call, message, text

HELLO = {"role": "user", "content": "Hello"}


def awaiting_state(*messages: Json, turn: int = 1) -> State:
    return State("awaiting_model", messages or (HELLO,), turn, 0, 0, "start")


def test_a_request_contains_the_options() -> None:
    """A request contains only configured fields, and additional fields unchanged."""
    state = initial_state(Conversation(), "Hello")
    plain = request_arguments(state, AgentOptions("m", 50, stream=False, cache=None), [])
    assert plain == {"model": "m", "max_tokens": 50, "messages": [HELLO]}
    look = declared({"name": "look", "input_schema": {"type": "object"}}, print)
    options = AgentOptions(
        "m",
        50,
        "Be kind.",
        cache=None,
        betas=("a-1", "b-2"),
        extra={"temperature": 0, "new_field": [1]},
    )
    assert request_arguments(state, options, [look]) == {
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
    """The state after the tools has the response, then one message with all results in the order of the calls; errors
    are marked.
    """
    answer = message(text("Let me look."), call("a", "look"), call("b", "look", at=1))
    first, second = calls(answer)
    assert (first, second) == (ToolQuestion("a", "look", {}), ToolQuestion("b", "look", {"at": 1}))
    dispatching = after_response(awaiting_state(turn=3), answer)
    assert (dispatching.phase, dispatching.turn) == ("dispatching_tools", 3)
    results = [
        ToolDone(first, ToolAnswer("fine"), 1),
        ToolDone(second, ToolAnswer([text("bad")], is_error=True, outcome="failed"), 1),
    ]
    next_state = next_turn(dispatching, results)
    assert next_state == State(
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
    steered = next_turn(dispatching, results, ["Stop!"])
    assert steered.transition == "steering"
    assert steered.messages[-1]["content"] == [
        *next_state.messages[-1]["content"],
        text("Stop!"),
    ]


def test_continuation_without_tools() -> None:
    """After a response without calls, a new message becomes the next user message, or is appended to the last user
    message.
    """
    ended = after_response(awaiting_state(), message(text("Done.")))
    next_state = prompted_again(ended, ["More"], "follow_up")
    assert next_state.messages[-1] == {"role": "user", "content": [text("More")]}
    assert (next_state.turn, next_state.tool_turns, next_state.transition) == (2, 0, "follow_up")
    empty_state = after_response(awaiting_state(), message())
    retried = prompted_again(empty_state, ["The output!"], "structured_output_retry")
    assert retried.messages == ({"role": "user", "content": [text("Hello"), text("The output!")]},)
    assert retried.output_retries == 1


def test_a_stopped_response() -> None:
    """Of a stopped response, complete blocks and partial text are kept, and content that the provider would reject is
    removed.
    """
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
    state, open_calls = after_partial_response(awaiting_state(), message(*kept, *cut))
    assert state.messages[-1] == {"role": "assistant", "content": kept}
    assert open_calls == [ToolQuestion("a", "look", {})]
    assert after_partial_response(awaiting_state(), {"content": cut})[0].messages == (HELLO,)
    assert after_partial_response(awaiting_state(), {"content": []})[1] == []


def test_ids_are_made_unique() -> None:
    """A call whose ID was already used gets a unique ID; a response without duplicate IDs is unchanged."""
    unique_message = message(call("a", "look"), call("b", "look"))
    assert with_unique_ids(unique_message, frozenset("x"))[0] is unique_message
    duplicate_message = message(call("a", "look"), text("a"), call("a", "look"), call("b", "look"))
    unique, original_ids = with_unique_ids(duplicate_message, frozenset(("b", "b_2")))
    assert [block.get("id") for block in unique["content"]] == ["a", None, "a_2", "b_3"]
    assert original_ids == {"a_2": "a", "b_3": "b"}
    assert [block.get("id") for block in duplicate_message["content"]] == ["a", None, "a", "b"]


def test_notes_about_a_stream_are_not_sent_back() -> None:
    """Our notes about truncated input and unknown deltas are not sent back; validation gets the truncated text."""
    cut = {**call("a", "look"), "partial_json": '{"at": '}
    annotated_block = {**text("x"), "unknown_deltas": [{"type": "new"}]}
    assert after_response(awaiting_state(), message(annotated_block, cut)).messages[1:] == (
        {"role": "assistant", "content": [text("x"), call("a", "look")]},
    )
    assert calls(message(cut)) == [ToolQuestion("a", "look", '{"at": ')]


def test_an_empty_response_is_not_sent_back() -> None:
    """A response without content is not added to the conversation, because the provider would reject it."""
    assert after_response(awaiting_state(), message()).messages == (HELLO,)


def test_interrupted_calls_get_results_with_the_next_prompt() -> None:
    """If a conversation was stopped before its calls had results, the next prompt adds results for the calls without
    one.
    """
    stopped = {"role": "assistant", "content": [call("a", "look"), call("b", "look")]}
    state = initial_state(Conversation((HELLO, stopped), turns=1), "Never mind")
    interrupted = "The run was interrupted before this tool finished."
    assert (state.turn, state.messages[:2]) == (2, (HELLO, stopped))
    assert state.messages[2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": interrupted, "is_error": True},
            {"type": "tool_result", "tool_use_id": "b", "content": interrupted, "is_error": True},
            text("Never mind"),
        ],
    }
    results = [{"type": "tool_result", "tool_use_id": "a", "content": "seen"}]
    assert initial_state(Conversation((HELLO, stopped), turns=1), results).messages[2][
        "content"
    ] == [
        {"type": "tool_result", "tool_use_id": "b", "content": interrupted, "is_error": True},
        *results,
    ]
    assert initial_state(Conversation((HELLO,)), "Again").messages == (
        HELLO,
        {"role": "user", "content": "Again"},
    )


def test_usage_is_summed_by_model() -> None:
    """Tokens are summed per model in disjoint buckets; if a response lists iterations, the iterations are counted."""
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
    assert billed_tokens("m", answers) == {
        "m": Tokens(8, 10, 3, 4, 5, 6),
        "n": Tokens(9, 10, 0, 0, 0, 0),
    }
