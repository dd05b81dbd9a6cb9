"""Resume and fork: a session that ended in any way continues in another session."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs import wiring
from agentobs.agent import Budget, BudgetReached, Conversation, Result, complete, live_world
from agentobs.agent.sessions.reconstruction import (
    conversation_of,
    interrupted_agent,
    unreported_agent,
)
from agentobs.agent.sessions.resumption import conversation_from, forked, resumed
from agentobs.agent.state import INTERRUPTED
from agentobs.errors import AgentobsError, RecordingError, UsageError
from agentobs.ledger import Meter
from agentobs.provider.anthropic.messages import conversation_error
from agentobs.recording.journal.segments import content_path, segment_ids
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    Exchange,
    ModelExchange,
    Place,
    Question,
    Recording,
    ToolAnswer,
    ToolExchange,
    ToolQuestion,
    WorldExchange,
    WorldQuestion,
)
from agentobs.records.facts import UsageRow
from agentobs.store.duckdb.connection import connect, named
from tests import queries
from tests.store.recordings import T0, a_home, attempt, end, record, session_id, start, usage_row

from .agent_runs import events_of, in_loop, of_kind, options, result_of, ticking_world
from .provider import MODEL, Provider, call, message, streamed, text

ROOT = Path(__file__).parents[2]
USAGE = {"input_tokens": 1000, "output_tokens": 1000, "cache_read_input_tokens": 0}
PRICED: dict[str, Any] = {"model": "claude-sonnet-4-6", "usage": USAGE}
RESPONSE_COST = Decimal("0.018")
"""The cost of a response with 1,000 tokens at $3 and 1,000 at $15 per million."""
USER: Json = {"role": "user", "content": "Hello"}
SESSION = "5" * 32


# A killed process.


def process(provider: Provider, home: Path, when: str, *session: str) -> tuple[int, Any]:
    """Run an agent in a separate process; return its exit code and its output."""
    environment = {**os.environ, "AGENTOBS_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.agent.killed_agent", provider.base_url, when, *session]
    ended = subprocess.run(
        command, env=environment, capture_output=True, timeout=60, check=False, cwd=home.parent
    )
    assert b"Traceback" not in ended.stderr, ended.stderr.decode()
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else None


def newest(home: Path) -> str:
    [(session_id,)] = queries.query(
        "SELECT session_id FROM sessions ORDER BY started_ns DESC LIMIT 1", home=home
    )
    return str(session_id)


@pytest.mark.crash
def test_process_killed_between_a_call_and_its_result(tmp_path: Path) -> None:
    """A session whose process was killed is resumed: finished calls have real results, and other calls have results
    that say that they were interrupted.

    The process is killed twice: before any tool ran, and while an agent was running after another tool had ended. The
    provider accepts each next request, and the spending of the three sessions counts each LLM request once.
    """
    home = tmp_path / "home"
    replies = [
        message(call("a", "write", what="x"), call("b", "write", what="y"), **PRICED),
        message(
            call("c", "write", what="z"), call("d", "agent", agent="scout", prompt="Go"), **PRICED
        ),
        message(call("e", "crash"), **PRICED),
        message(text("Done."), **PRICED),
    ]
    with Provider([streamed(reply) for reply in replies]) as provider:
        assert process(provider, home, "answered")[0] == -9
        first = newest(home)
        assert process(provider, home, "later", first)[0] == -9
        second = newest(home)
        code, output = process(provider, home, "later", second)
        messages = provider.requests[-1]["messages"]
    assert (code, output["text"]) == (0, "Done.")
    assert [block["content"] for block in messages[2]["content"]] == [INTERRUPTED.content] * 2
    assert [(b["content"], b.get("is_error")) for b in messages[-2]["content"]] == [
        ("wrote z", None),
        (interrupted_agent("d").content, True),
    ]
    [(agent, agent_messages)] = output["agents"].items()
    assert (agent, agent_messages[-1]["content"][0]["content"]) == ("d", INTERRUPTED.content)
    assert (Decimal(output["before"]), Decimal(output["after"])) == (
        3 * RESPONSE_COST,
        4 * RESPONSE_COST,
    )
    with connect(home) as connection:
        rows = named(connection, "conversation_sessions", session_id=second).fetchall()
    third = output["session_id"]
    assert [(row[0], row[3], row[8]) for row in rows] == [
        (first, None, RESPONSE_COST),
        (second, first, 2 * RESPONSE_COST),
        (third, second, RESPONSE_COST),
    ]
    assert [row[2] for row in rows] == ["crashed", "crashed", "completed"]


@pytest.mark.slow
def test_a_session_that_ended_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that has just ended in the same event loop is resumed completely, and both sessions belong to one
    conversation.
    """
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()
    replies = [streamed(message(text(word), **PRICED)) for word in ("One.", "Two.")]

    async def main(provider: Provider) -> tuple[str, Conversation]:
        async with provider.client() as client:
            world = live_world(agentobs.record(client), load=wiring.load_conversation)
            run_arguments: Any = {"world": world, "options": options(model=PRICED["model"])}
            async with agentobs.session("first") as first:
                await complete("Hello", **run_arguments)
            async with agentobs.session("second", resume=first.session_id):
                conversation = await resumed(world, first.session_id)
                await complete("Go on", **run_arguments, conversation=conversation)
        return first.session_id, conversation

    try:
        with Provider(replies) as provider:
            first, conversation = in_loop(main(provider))
    finally:
        assert agentobs.stop_recorder()
    assert [m["role"] for m in conversation.messages] == ["user", "assistant"] * 2
    assert conversation.meter.total().usd == 2 * RESPONSE_COST
    rows = queries.query(
        "SELECT conversation_id, relation FROM sessions ORDER BY started_ns", home=tmp_path / "home"
    )
    assert rows == [(first, None), (first, "resume")]


# Conversations from recordings.


def llm_exchange(
    turn: int,
    messages: list[Json],
    answer: Json | None = None,
    *,
    at: int,
    lane: str = "main",
    ending: Any = "complete",
    body: bytes | None = None,
    interaction: str = "1" * 32,
    **fields: Any,
) -> ModelExchange:
    """Return an LLM exchange at a time, with its response; the response None stands for an error response."""
    body = json.dumps({"model": MODEL, "messages": messages, **fields}).encode()
    refused = {"type": "error", "error": {"type": "overloaded_error", "message": "Sorry"}}
    response_body = json.dumps(answer or refused).encode()
    return ModelExchange(
        place=Place(SESSION, interaction, lane, turn),
        attempt_id=f"{at:032x}",
        started_ns=T0 + at,
        headers_ns=None,
        ended_ns=1,
        question=Question("POST", "/v1/messages", {}, body),
        answer=Answer(200 if answer else 529, {}, (Chunk(response_body, 0),), ending),
    )


def tool_exchange(
    tool_use_id: str, result_text: str, *, at: int, lane: str = "main", tool_input: Any = None
) -> ToolExchange:
    question = ToolQuestion(tool_use_id, "look", tool_input or {})
    return ToolExchange(Place(SESSION, None, lane), T0 + at, 1, question, ToolAnswer(result_text))


def world_exchange(kind: Any, texts: Any, *, at: int, key: str = "1:end") -> WorldExchange:
    return WorldExchange(
        Place(SESSION, None, "main", 1), T0 + at, 1, WorldQuestion(kind, key), texts
    )


def recording(*exchanges: Exchange) -> Recording:
    return Recording(SESSION, "s", None, None, "crashed", None, None, 0, exchanges)


def spent(at: int, **changes: Any) -> UsageRow:
    row = usage_row(1, attempt_id=f"{at:032x}", **changes)
    return dataclasses.replace(row, session_id=SESSION, at_ns=T0 + at)


def rebuilt_conversation(*exchanges: Exchange, **arguments: Any) -> Conversation:
    """Return the conversation of a recording, as the world returns it after a JSON round trip.

    Checks that the provider would accept the conversation.
    """
    answer = json.loads(json.dumps(conversation_of(recording(*exchanges), **arguments)))
    conversation = conversation_from(answer)
    for each in (conversation, *conversation.children.values()):
        assert conversation_error(each.messages) is None
    return conversation


LOOK = message(call("a", "look"))
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "nothing"}
LOOK_HISTORY: list[Json] = [
    USER,
    {"role": "assistant", "content": LOOK["content"]},
    {"role": "user", "content": [RESULT]},
]


def test_the_turn_count_continues() -> None:
    """The complete conversation is resumed, with its number of turns."""
    conversation = rebuilt_conversation(
        llm_exchange(1, [USER], LOOK, at=1),
        tool_exchange("a", "nothing", at=2),
        llm_exchange(2, LOOK_HISTORY, message(text("So.")), at=3),
    )
    assert conversation.messages == (*LOOK_HISTORY, {"role": "assistant", "content": [text("So.")]})
    assert (conversation.turns, conversation.tool_turns) == (2, 1)


def test_unsent_messages_are_kept() -> None:
    """Results and new messages that had not been sent yet are part of the resumed conversation."""
    conversation = rebuilt_conversation(
        llm_exchange(1, [USER], LOOK, at=1),
        tool_exchange("a", "nothing", at=2),
        world_exchange("steering", ["Faster"], at=3),
    )
    assert conversation.messages[-1] == {"role": "user", "content": [RESULT, text("Faster")]}
    quiet = rebuilt_conversation(
        llm_exchange(1, [USER], message(text("So.")), at=1),
        world_exchange("follow_up", ["And then?"], at=3),
    )
    assert quiet.messages[-1] == {"role": "user", "content": [text("And then?")]}


def test_a_stopped_response_is_partly_kept() -> None:
    """Of a stopped response, the content that the provider accepts is kept, as in the loop; a failed response is
    dropped.
    """
    part = streamed(message(text("Hello you"), call("a", "look")))
    body = b"".join(part.chunks[:4])
    first = llm_exchange(1, [USER], {}, at=1)
    stopped = Answer(200, {"content-type": "text/event-stream"}, (Chunk(body, 0),), "cancelled")
    conversation = rebuilt_conversation(dataclasses.replace(first, answer=stopped))
    assert conversation.messages[1:] == ({"role": "assistant", "content": [text("Hell")]},)
    cut = dataclasses.replace(stopped, ending="cut")
    failed = rebuilt_conversation(dataclasses.replace(first, answer=cut))
    assert (failed.messages, failed.turns) == ((USER,), 0)


def test_an_unanswered_prompt_is_kept() -> None:
    """If the provider did not answer a prompt, the prompt is kept, and its turn is repeated."""
    conversation = rebuilt_conversation(
        llm_exchange(1, [USER], at=1), llm_exchange(1, [USER], at=2)
    )
    assert (conversation.messages, conversation.turns) == ((USER,), 0)


def test_cache_breakpoints_are_removed() -> None:
    """The cache breakpoints of the recorded requests are removed, because the next request sets its own, and the number
    is limited.
    """
    marked = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    inner = {**RESULT, "content": [{**text("nothing"), "cache_control": {"type": "ephemeral"}}]}
    history = [
        {"role": "user", "content": [marked]},
        LOOK_HISTORY[1],
        {"role": "user", "content": [inner]},
    ]
    conversation = rebuilt_conversation(llm_exchange(2, history, message(text("So.")), at=1))
    assert "cache_control" not in json.dumps(conversation.messages)
    assert conversation.messages[0] == {"role": "user", "content": "Hello"}


def test_maintenance_requests_are_not_in_the_conversation() -> None:
    """A summary request is not part of the resumed conversation, but its cost is counted."""
    conversation = rebuilt_conversation(
        llm_exchange(1, [USER], message(text("So.")), at=1),
        llm_exchange(
            1,
            [{"role": "user", "content": "Sum up"}],
            message(text("All.")),
            at=2,
            lane="main/compaction:1",
        ),
        usage=[spent(1), spent(2)],
    )
    assert conversation.messages == (USER, {"role": "assistant", "content": [text("So.")]})
    assert conversation.meter.total().calls == 2


def test_the_last_of_two_conversations_is_resumed() -> None:
    """If a session had two runs with separate conversations, the last conversation is resumed."""
    other = {"role": "user", "content": "Another"}
    conversation = rebuilt_conversation(
        llm_exchange(1, [USER], LOOK, at=1),
        llm_exchange(2, LOOK_HISTORY, message(text("So.")), at=2),
        llm_exchange(1, [other], message(text("Yes.")), at=3, interaction="2" * 32),
    )
    assert (conversation.messages[0], conversation.turns, conversation.tool_turns) == (other, 1, 0)


def test_a_fork_contains_nothing_after_its_turn() -> None:
    """A fork contains the messages and the cost up to the results of its turn, and nothing later."""
    exchanges = (
        llm_exchange(1, [USER], LOOK, at=10),
        world_exchange("steering", ["Faster"], at=15),
        llm_exchange(2, LOOK_HISTORY, message(text("So.")), at=20),
    )
    conversation = rebuilt_conversation(*exchanges, usage=[spent(10), spent(20)], until_ns=T0 + 20)
    assert (list(conversation.messages), conversation.turns, conversation.tool_turns) == (
        LOOK_HISTORY,
        1,
        1,
    )
    assert conversation.meter.total().calls == 1


def exchanges_of_agents() -> tuple[Exchange, ...]:
    """Return the exchanges of an agent that started two others, one of which started a third before the process was
    killed.
    """
    both = message(call("x", "agent"), call("y", "agent"))
    return (
        llm_exchange(1, [USER], both, at=1),
        llm_exchange(1, [USER], message(call("z", "agent")), at=2, lane="main/x"),
        llm_exchange(1, [USER], LOOK, at=3, lane="main/x/z"),
        llm_exchange(1, [USER], message(text("Found.")), at=4, lane="main/y"),
        tool_exchange("y", "Found.", at=4),
        tool_exchange("a", "nothing", at=5, lane="main/x/z"),
    )


def test_sub_agents_are_resumed() -> None:
    """Each sub-agent is resumed with its conversation; the result of a call whose agent was running states this and
    contains the agent's ID.
    """
    rows = [spent(1), spent(2), spent(3), spent(4)]
    conversation = rebuilt_conversation(*exchanges_of_agents(), usage=rows)
    results = {b["tool_use_id"]: b["content"] for b in conversation.messages[-1]["content"]}
    assert results == {"x": interrupted_agent("x").content, "y": "Found."}
    assert set(conversation.children) == {"x", "y"}
    third = conversation.children["x"].children["z"]
    assert third.messages[-1]["content"][0]["content"] == "nothing"
    counted = [
        each.meter.total().calls for each in (conversation, conversation.children["x"], third)
    ]
    assert counted == [4, 2, 1]


def test_a_continued_agent_counts_once() -> None:
    """A sub-agent has one ID for each call that started or continued it, but its cost counts once."""
    resume_call = message({**call("y", "agent"), "input": {"resume": "x"}})
    mine = [USER, {"role": "assistant", "content": [text("One.")]}, USER]
    conversation = rebuilt_conversation(
        llm_exchange(1, [USER], message(call("x", "agent")), at=1),
        llm_exchange(1, [USER], message(text("One.")), at=2, lane="main/x"),
        tool_exchange("x", "One.", at=3),
        llm_exchange(2, [USER], resume_call, at=4),
        llm_exchange(2, mine, message(text("Two.")), at=5, lane="main/y", interaction="2" * 32),
        usage=[spent(1), spent(2), spent(4), spent(5)],
    )
    assert conversation.children["x"] is conversation.children["y"]
    assert (conversation.children["x"].turns, len(conversation.children["x"].messages)) == (2, 4)
    assert conversation.meter.total().calls == 4
    assert conversation.children["y"].meter.total().calls == 2


@pytest.mark.parametrize("call_input", [{"run_in_background": True}, {}])
@pytest.mark.parametrize("is_reported", [False, True])
def test_a_background_agent_that_never_reported(is_reported: bool, call_input: Json) -> None:
    """If a background agent never reported, a note tells the model so, unless the model already knows.

    The call may also have been moved to the background by a hook.
    """
    background_call = message({**call("x", "agent"), "input": call_input})
    conversation = rebuilt_conversation(
        llm_exchange(1, [USER], background_call, at=1),
        llm_exchange(1, [USER], message(text("One.")), at=2, lane="main/x"),
        tool_exchange(
            "x", "It works in the background.", at=2, tool_input={"run_in_background": True}
        ),
        *([world_exchange("background", ["x"], at=3)] if is_reported else []),
        llm_exchange(2, [USER], message(text("Waiting.")), at=4),
    )
    last = text(unreported_agent("x")) if not is_reported else text("Waiting.")
    assert conversation.messages[-1]["content"] == [last]


def test_a_hook_continues_an_earlier_agent() -> None:
    """If a hook changed a call so that it continued an earlier agent, the agent is known under both IDs."""
    second_history = [USER, {"role": "assistant", "content": [text("One.")]}, USER]
    hook = WorldQuestion(
        "hook",
        "2:pre_tool_use:y:same",
        {"event": "pre_tool_use", "hook": "same", "turn": 2, "tool_use_id": "y"},
    )
    conversation = rebuilt_conversation(
        llm_exchange(1, [USER], message(call("x", "agent")), at=1),
        llm_exchange(1, [USER], message(text("One.")), at=2, lane="main/x"),
        tool_exchange("x", "One.", at=2),
        llm_exchange(2, [USER], message(call("y", "agent")), at=4),
        WorldExchange(Place(SESSION, None, "main", 2), T0 + 5, 1, hook, {"input": {"resume": "x"}}),
        llm_exchange(2, second_history, message(text("Two.")), at=6, lane="main/y"),
    )
    assert conversation.children["x"] is conversation.children["y"]


def test_an_agent_without_a_request_body() -> None:
    """If the recording lacks the last request body of an agent, the agent is resumed with the known part."""
    known: list[Exchange] = [
        llm_exchange(1, [USER], LOOK, at=1),
        tool_exchange("a", "nothing", at=2),
        llm_exchange(1, [USER], message(text("One.")), at=3, lane="main/a"),
    ]
    last = llm_exchange(2, [USER], message(text("Two.")), at=4, lane="main/a")
    bare = dataclasses.replace(last, question=dataclasses.replace(last.question, body=b""))
    assert len(rebuilt_conversation(*known, bare).children["a"].messages) == 2
    assert rebuilt_conversation(*known[:2], bare).children == {}


def test_a_resumed_session_is_resumed_again() -> None:
    """If a resumed session is resumed again, the turns, cost and agents of the earlier session count once."""
    first = conversation_of(
        recording(*exchanges_of_agents()), [spent(1), spent(2), spent(3), spent(4)]
    )
    history = [*first["messages"], {"role": "user", "content": "Go on"}]
    conversation = rebuilt_conversation(
        world_exchange("conversation", first, at=8, key="resume:1"),
        llm_exchange(2, history, message(text("So.")), at=9, interaction="2" * 32),
        usage=[spent(9)],
    )
    assert (conversation.turns, conversation.tool_turns, conversation.meter.total().calls) == (
        2,
        3,
        5,
    )
    assert conversation.children["x"].children["z"].turns == 1
    unused = rebuilt_conversation(world_exchange("conversation", first, at=8, key="resume:1"))
    assert (unused.turns, unused.meter.total().calls) == (1, 4)


def test_costs_use_the_prices_of_their_day() -> None:
    """Usage is priced with the prices of the day on which it was incurred, not of the day on which the session is
    resumed.
    """
    rows = [
        spent(1, model="claude-sonnet-4-6", cache_read_tokens=7, certainty="lower_bound"),
        spent(2),
    ]
    meter = Meter()
    meter.add_facts(rows)
    conversation = rebuilt_conversation(
        llm_exchange(1, [USER], message(text("So.")), at=1), usage=rows, lost=2
    )
    found, expected = conversation.meter.total(), meter.total()
    assert (found.usd, found.tokens, found.uncertain) == (
        expected.usd,
        expected.tokens,
        expected.uncertain,
    )
    assert (found.lost, found.status) == (2, "lower_bound")


@pytest.mark.parametrize(
    ("exchanges", "words"),
    [
        ((), "no request of the main agent was recorded"),
        (
            (llm_exchange(1, [USER], LOOK, at=1, thread={"previous_message_id": "m"}),),
            "the requests refer to the previous response",
        ),
        (
            (llm_exchange(1, [USER, {"role": "user", "content": [RESULT]}], LOOK, at=1),),
            "would refuse",
        ),
        ((llm_exchange(1, "nonsense", LOOK, at=1),), "contains no messages"),  # type: ignore[arg-type]
        (
            (llm_exchange(1, [USER], message({"type": "tool_use", "id": "a", "input": {}}), at=1),),
            "no name",
        ),
    ],
)
def test_sessions_that_cannot_be_resumed(exchanges: tuple[Exchange, ...], words: str) -> None:
    """If a session cannot be resumed, one clear error is raised, and no request is sent."""
    with pytest.raises(RecordingError, match=words):
        conversation_of(recording(*exchanges))


# Resuming in the loop.


def resumed_in(load: Any, *, fork: int | None = None, relation: str = "resume") -> Conversation:
    async def main() -> Conversation:
        with Provider([]) as provider:
            client = provider.client()
            world = ticking_world(client, **({"load": load} if load else {}))
            if relation == "fork":
                return await forked(world, SESSION, turn=fork)
            return await resumed(world, SESSION)

    return in_loop(main())


def test_budgets_include_earlier_sessions() -> None:
    """Budgets include the cost of all earlier sessions of a conversation; a person's grants are not carried over."""
    first = conversation_of(
        recording(llm_exchange(1, [USER], message(text("So.")), at=1)),
        [spent(1, model="claude-sonnet-4-6", input_tokens=0, output_tokens=10_000)],
    )
    conversation = resumed_in(lambda question: first)
    assert not conversation.grants
    with Provider([]) as provider:
        budget = Budget(session_usd=Decimal("0.1"))
        events = events_of(
            provider, conversation=conversation, budget=budget, model="claude-sonnet-4-6"
        )
    assert [each.limit for each in of_kind(events, BudgetReached)] == ["session_usd"]
    assert result_of(events).subtype == "error_max_budget_usd"


def test_the_question_to_the_world() -> None:
    """The question to the world contains the session, the relation and the turn of the fork; an invalid turn is
    rejected before the question.
    """
    seen: list[Json] = []
    first = conversation_of(recording(llm_exchange(1, [USER], message(text("So.")), at=1)))

    def load(question: Json) -> Json:
        seen.append(question)
        return first

    resumed_in(load)
    resumed_in(load, relation="fork", fork=2)
    assert seen == [
        {"session_id": SESSION, "turn": None, "relation": "resume"},
        {"session_id": SESSION, "turn": 2, "relation": "fork"},
    ]
    with pytest.raises(UsageError, match="0 is not a turn number"):
        resumed_in(load, relation="fork", fork=0)


def fails(question: Json) -> Json:
    raise RecordingError("pruned", where="here", todo="Weep")


def breaks(question: Json) -> Json:
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("load", "error"),
    [
        (fails, RecordingError("pruned", where="here", todo="Weep")),
        (breaks, RecordingError("the earlier session could not be read: OSError: no disk")),
        (None, UsageError("this world cannot read earlier sessions")),
        (lambda question: None, RecordingError("the earlier session could not be read")),
    ],
)
def test_errors_of_loading_propagate(load: Any, error: AgentobsError) -> None:
    """An error of the loader is raised in the agent unchanged."""
    with pytest.raises(type(error)) as raised:
        resumed_in(load)
    assert raised.value.found.startswith(error.found)
    assert raised.value.todo if not error.todo else raised.value.todo == error.todo


def test_a_resumed_conversation_continues() -> None:
    """The next turn of a resumed conversation has the next number, and its request contains all earlier messages."""
    first = conversation_of(recording(llm_exchange(1, [USER], LOOK, at=1)))
    with Provider([streamed(message(text("Done.")))]) as provider:
        events = events_of(provider, "Go on", conversation=resumed_in(lambda question: first))
    assert isinstance(result_of(events), Result)
    assert [m["role"] for m in provider.requests[0]["messages"]] == [
        "user",
        "assistant",
        "user",
        "user",
    ]


@pytest.mark.parametrize("same", [True, False])
def test_thinking_stays_with_its_model(same: bool) -> None:
    """If the resumed session used the same model, its thinking is sent back unchanged; otherwise it is removed."""
    thought = {"type": "thinking", "thinking": "Hm", "signature": "s"}
    first = conversation_of(
        recording(
            llm_exchange(
                1, [USER], message(thought, text("So.")), at=1, model=MODEL if same else "m"
            )
        )
    )
    with Provider([streamed(message(text("Done.")))]) as provider:
        events_of(provider, "Go on", conversation=resumed_in(lambda question: first))
        content = provider.requests[0]["messages"][1]["content"]
    assert content == ([thought, text("So.")] if same else [text("So.")])


def test_a_fork_of_a_session_whose_content_was_pruned(tmp_path: Path) -> None:
    """If the content of a session was pruned, a fork raises one error that states this, and no request is sent."""
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), end(1)])
    for each in segment_ids(home):
        content_path(home, each).unlink()
    load = functools.partial(wiring.load_conversation, home=home.path)

    async def main(provider: Provider) -> Conversation:
        world = ticking_world(provider.client(), load=load)
        return await forked(world, session_id(1), turn=1)

    with Provider([]) as provider:
        with pytest.raises(RecordingError, match=r"content .* was pruned") as raised:
            in_loop(main(provider))
        assert provider.requests == []
    assert "agentobs verify" in raised.value.todo
