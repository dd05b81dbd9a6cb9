"""Resume and fork: a session that ended, in whatever way, continues in another one."""

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
from agentobs.agent.sessions.reconstruction import conversation_of, interrupted, unheard
from agentobs.agent.sessions.resumption import conversation_from, forked, resumed
from agentobs.agent.state import INTERRUPTED
from agentobs.errors import AgentobsError, RecordingError, UsageError
from agentobs.ledger import Meter
from agentobs.provider.anthropic.messages import fault
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
from tests.store.making import T0, a_home, attempt, end, record, session_id, start, usage_row

from .provider import MODEL, Provider, call, message, streamed, text
from .scene import events_of, in_loop, of_kind, options, result_of, ticking_world

ROOT = Path(__file__).parents[2]
USED = {"input_tokens": 1000, "output_tokens": 1000, "cache_read_input_tokens": 0}
PRICED: dict[str, Any] = {"model": "claude-sonnet-4-6", "usage": USED}
EACH = Decimal("0.018")
"""The cost of such a response: 1,000 tokens at $3 and 1,000 at $15 a million."""
USER: Json = {"role": "user", "content": "Hello"}
SESSION = "5" * 32


# A killed process.


def process(provider: Provider, home: Path, when: str, *session: str) -> tuple[int, Any]:
    """Run an agent in its own process; return its exit status and its output."""
    environment = {**os.environ, "AGENTOBS_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.agent.killed", provider.base_url, when, *session]
    ended = subprocess.run(
        command, env=environment, capture_output=True, timeout=60, check=False, cwd=home.parent
    )
    assert b"Traceback" not in ended.stderr, ended.stderr.decode()
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else None


def newest(home: Path) -> str:
    [(session_id,)] = agentobs.query(
        "SELECT session_id FROM sessions ORDER BY started_ns DESC LIMIT 1", home=home
    )
    return str(session_id)


@pytest.mark.crash
def test_killed_between_a_call_and_its_result(tmp_path: Path) -> None:
    """Twice: before any tool ran, and while an agent was running after another tool had ended.

    Finished calls have real results, the others say that they were interrupted. The provider
    accepts each next request, and the spending of three sessions counts each call once.
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
        code, told = process(provider, home, "later", second)
        messages = provider.requests[-1]["messages"]
    assert (code, told["text"]) == (0, "Done.")
    assert [block["content"] for block in messages[2]["content"]] == [INTERRUPTED.content] * 2
    assert [(b["content"], b.get("is_error")) for b in messages[-2]["content"]] == [
        ("wrote z", None),
        (interrupted("d").content, True),
    ]
    [(agent, said)] = told["agents"].items()
    assert (agent, said[-1]["content"][0]["content"]) == ("d", INTERRUPTED.content)
    assert (Decimal(told["before"]), Decimal(told["after"])) == (3 * EACH, 4 * EACH)
    with connect(home) as connection:
        rows = named(connection, "conversation_sessions", session_id=second).fetchall()
    third = told["session_id"]
    assert [(row[0], row[3], row[8]) for row in rows] == [
        (first, None, EACH),
        (second, first, 2 * EACH),
        (third, second, EACH),
    ]
    assert [row[2] for row in rows] == ["crashed", "crashed", "completed"]


def test_a_session_that_ended_a_moment_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same process and event loop: nothing is missing, and the sessions are one conversation."""
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()
    replies = [streamed(message(text(word), **PRICED)) for word in ("One.", "Two.")]

    async def main(provider: Provider) -> tuple[str, Conversation]:
        async with provider.client() as client:
            world = live_world(agentobs.record(client), load=wiring.load_conversation)
            given: Any = {"world": world, "options": options(model=PRICED["model"])}
            async with agentobs.session("first") as first:
                await complete("Hello", **given)
            async with agentobs.session("second", resume=first.session_id):
                talk = await resumed(world, first.session_id)
                await complete("Go on", **given, conversation=talk)
        return first.session_id, talk

    try:
        with Provider(replies) as provider:
            first, talk = in_loop(main(provider))
    finally:
        assert agentobs.stop_recorder()
    assert [m["role"] for m in talk.messages] == ["user", "assistant"] * 2
    assert talk.meter.total().usd == 2 * EACH
    rows = agentobs.query(
        "SELECT conversation_id, relation FROM sessions ORDER BY started_ns", home=tmp_path / "home"
    )
    assert rows == [(first, None), (first, "resume")]


# From a recording to a conversation.


def asked(
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
    """A request at an instant, with its response; None is a refusal."""
    body = json.dumps({"model": MODEL, "messages": messages, **fields}).encode()
    refused = {"type": "error", "error": {"type": "overloaded_error", "message": "Sorry"}}
    came = json.dumps(answer or refused).encode()
    return ModelExchange(
        place=Place(SESSION, interaction, lane, turn),
        attempt_id=f"{at:032x}",
        started_ns=T0 + at,
        headers_ns=None,
        ended_ns=1,
        question=Question("POST", "/v1/messages", {}, body),
        answer=Answer(200 if answer else 529, {}, (Chunk(came, 0),), ending),
    )


def ran(
    tool_use_id: str, said: str, *, at: int, lane: str = "main", given: Any = None
) -> ToolExchange:
    question = ToolQuestion(tool_use_id, "look", given or {})
    return ToolExchange(Place(SESSION, None, lane), T0 + at, 1, question, ToolAnswer(said))


def said(kind: Any, texts: Any, *, at: int, key: str = "1:end") -> WorldExchange:
    return WorldExchange(
        Place(SESSION, None, "main", 1), T0 + at, 1, WorldQuestion(kind, key), texts
    )


def recording(*exchanges: Exchange) -> Recording:
    return Recording(SESSION, "s", None, None, "crashed", None, None, 0, exchanges)


def spent(at: int, **changes: Any) -> UsageRow:
    row = usage_row(1, attempt_id=f"{at:032x}", **changes)
    return dataclasses.replace(row, session_id=SESSION, at_ns=T0 + at)


def talk_of(*exchanges: Exchange, **how: Any) -> Conversation:
    """The conversation of a recording, through JSON, as the world returns it; the provider would accept it."""
    answer = json.loads(json.dumps(conversation_of(recording(*exchanges), **how)))
    talk = conversation_from(answer)
    for each in (talk, *talk.children.values()):
        assert fault(each.messages) is None
    return talk


LOOK = message(call("a", "look"))
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "nothing"}
LOOKED: list[Json] = [
    USER,
    {"role": "assistant", "content": LOOK["content"]},
    {"role": "user", "content": [RESULT]},
]


def test_turns_count_on() -> None:
    """The whole conversation, and its number of turns."""
    talk = talk_of(
        asked(1, [USER], LOOK, at=1),
        ran("a", "nothing", at=2),
        asked(2, LOOKED, message(text("So.")), at=3),
    )
    assert talk.messages == (*LOOKED, {"role": "assistant", "content": [text("So.")]})
    assert (talk.turns, talk.tool_turns) == (2, 1)


def test_what_was_never_sent_is_not_lost() -> None:
    """An existing result and new messages are in the next request."""
    talk = talk_of(
        asked(1, [USER], LOOK, at=1), ran("a", "nothing", at=2), said("steering", ["Faster"], at=3)
    )
    assert talk.messages[-1] == {"role": "user", "content": [RESULT, text("Faster")]}
    quiet = talk_of(
        asked(1, [USER], message(text("So.")), at=1), said("follow_up", ["And then?"], at=3)
    )
    assert quiet.messages[-1] == {"role": "user", "content": [text("And then?")]}


def test_an_answer_that_was_stopped_is_kept_as_far_as_it_came() -> None:
    """As in the loop: what the provider would accept stays, and nothing of a failed response."""
    part = streamed(message(text("Hello you"), call("a", "look")))
    body = b"".join(part.pieces[:4])
    first = asked(1, [USER], {}, at=1)
    stopped = Answer(200, {"content-type": "text/event-stream"}, (Chunk(body, 0),), "cancelled")
    talk = talk_of(dataclasses.replace(first, answer=stopped))
    assert talk.messages[1:] == ({"role": "assistant", "content": [text("Hell")]},)
    cut = dataclasses.replace(stopped, ending="cut")
    failed = talk_of(dataclasses.replace(first, answer=cut))
    assert (failed.messages, failed.turns) == ((USER,), 0)


def test_a_prompt_that_was_never_answered_is_kept() -> None:
    """The provider was down: the prompt stays, and its turn is repeated."""
    talk = talk_of(asked(1, [USER], at=1), asked(1, [USER], at=2))
    assert (talk.messages, talk.turns) == ((USER,), 0)


def test_marks_of_the_cache_stay_behind() -> None:
    """The next request sets its own; together with the old ones there would be too many."""
    marked = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    inner = {**RESULT, "content": [{**text("nothing"), "cache_control": {"type": "ephemeral"}}]}
    history = [
        {"role": "user", "content": [marked]},
        LOOKED[1],
        {"role": "user", "content": [inner]},
    ]
    talk = talk_of(asked(2, history, message(text("So.")), at=1))
    assert "cache_control" not in json.dumps(talk.messages)
    assert talk.messages[0] == {"role": "user", "content": "Hello"}


def test_requests_for_upkeep_are_not_the_conversation() -> None:
    """A request for a summary is not repeated; its cost is counted."""
    talk = talk_of(
        asked(1, [USER], message(text("So.")), at=1),
        asked(
            1,
            [{"role": "user", "content": "Sum up"}],
            message(text("All.")),
            at=2,
            lane="main/compaction:1",
        ),
        usage=[spent(1), spent(2)],
    )
    assert talk.messages == (USER, {"role": "assistant", "content": [text("So.")]})
    assert talk.meter.total().calls == 2


def test_of_two_conversations_the_last() -> None:
    """Of two runs with separate conversations, the last one counts."""
    other = {"role": "user", "content": "Another"}
    talk = talk_of(
        asked(1, [USER], LOOK, at=1),
        asked(2, LOOKED, message(text("So.")), at=2),
        asked(1, [other], message(text("Yes.")), at=3, interaction="2" * 32),
    )
    assert (talk.messages[0], talk.turns, talk.tool_turns) == (other, 1, 0)


def test_a_fork_has_the_turns_until_there() -> None:
    """Messages up to the results of that turn, no later messages, and only the cost of those turns."""
    exchanges = (
        asked(1, [USER], LOOK, at=10),
        said("steering", ["Faster"], at=15),
        asked(2, LOOKED, message(text("So.")), at=20),
    )
    talk = talk_of(*exchanges, usage=[spent(10), spent(20)], until_ns=T0 + 20)
    assert (list(talk.messages), talk.turns, talk.tool_turns) == (LOOKED, 1, 1)
    assert talk.meter.total().calls == 1


def agents() -> tuple[Exchange, ...]:
    """An agent that started two others; one of them had started a third when the process was killed."""
    both = message(call("x", "agent"), call("y", "agent"))
    return (
        asked(1, [USER], both, at=1),
        asked(1, [USER], message(call("z", "agent")), at=2, lane="main/x"),
        asked(1, [USER], LOOK, at=3, lane="main/x/z"),
        asked(1, [USER], message(text("Found.")), at=4, lane="main/y"),
        ran("y", "Found.", at=4),
        ran("a", "nothing", at=5, lane="main/x/z"),
    )


def test_agents_that_it_had_started_come_along() -> None:
    """Each with its conversation; the result of a call whose agent was running says so, with the agent's ID."""
    rows = [spent(1), spent(2), spent(3), spent(4)]
    talk = talk_of(*agents(), usage=rows)
    results = {b["tool_use_id"]: b["content"] for b in talk.messages[-1]["content"]}
    assert results == {"x": interrupted("x").content, "y": "Found."}
    assert set(talk.children) == {"x", "y"}
    third = talk.children["x"].children["z"]
    assert third.messages[-1]["content"][0]["content"] == "nothing"
    counted = [each.meter.total().calls for each in (talk, talk.children["x"], third)]
    assert counted == [4, 2, 1]


def test_an_agent_that_was_gone_on_with_is_one() -> None:
    """It has one ID per call; its cost counts once."""
    again = message({**call("y", "agent"), "input": {"resume": "x"}})
    mine = [USER, {"role": "assistant", "content": [text("One.")]}, USER]
    talk = talk_of(
        asked(1, [USER], message(call("x", "agent")), at=1),
        asked(1, [USER], message(text("One.")), at=2, lane="main/x"),
        ran("x", "One.", at=3),
        asked(2, [USER], again, at=4),
        asked(2, mine, message(text("Two.")), at=5, lane="main/y", interaction="2" * 32),
        usage=[spent(1), spent(2), spent(4), spent(5)],
    )
    assert talk.children["x"] is talk.children["y"]
    assert (talk.children["x"].turns, len(talk.children["x"].messages)) == (2, 4)
    assert talk.meter.total().calls == 4
    assert talk.children["y"].meter.total().calls == 2


@pytest.mark.parametrize("asks", [{"run_in_background": True}, {}])
@pytest.mark.parametrize("told", [False, True])
def test_an_agent_in_the_background_that_never_reported(told: bool, asks: Json) -> None:
    """The model waits for its report, so it is told that none will arrive, unless it already has.

    A hook may have decided that it runs in the background.
    """
    begun = message({**call("x", "agent"), "input": asks})
    talk = talk_of(
        asked(1, [USER], begun, at=1),
        asked(1, [USER], message(text("One.")), at=2, lane="main/x"),
        ran("x", "It works in the background.", at=2, given={"run_in_background": True}),
        *([said("background", ["x"], at=3)] if told else []),
        asked(2, [USER], message(text("Waiting.")), at=4),
    )
    last = text(unheard("x")) if not told else text("Waiting.")
    assert talk.messages[-1]["content"] == [last]


def test_an_agent_that_a_hook_wants_to_be_gone_on_with() -> None:
    """The call ran with another input than the model's: the agent is the earlier one, under both IDs."""
    again = [USER, {"role": "assistant", "content": [text("One.")]}, USER]
    hook = WorldQuestion(
        "hook",
        "2:pre_tool_use:y:same",
        {"event": "pre_tool_use", "hook": "same", "turn": 2, "tool_use_id": "y"},
    )
    talk = talk_of(
        asked(1, [USER], message(call("x", "agent")), at=1),
        asked(1, [USER], message(text("One.")), at=2, lane="main/x"),
        ran("x", "One.", at=2),
        asked(2, [USER], message(call("y", "agent")), at=4),
        WorldExchange(Place(SESSION, None, "main", 2), T0 + 5, 1, hook, {"input": {"resume": "x"}}),
        asked(2, again, message(text("Two.")), at=6, lane="main/y"),
    )
    assert talk.children["x"] is talk.children["y"]


def test_an_agent_whose_request_has_no_body() -> None:
    """It sent a request after the bodies were chosen: the conversation is restored, the agent as far as known."""
    known: list[Exchange] = [
        asked(1, [USER], LOOK, at=1),
        ran("a", "nothing", at=2),
        asked(1, [USER], message(text("One.")), at=3, lane="main/a"),
    ]
    last = asked(2, [USER], message(text("Two.")), at=4, lane="main/a")
    bare = dataclasses.replace(last, question=dataclasses.replace(last.question, body=b""))
    assert len(talk_of(*known, bare).children["a"].messages) == 2
    assert talk_of(*known[:2], bare).children == {}


def test_a_session_that_was_resumed_itself() -> None:
    """The conversation that it continued is part of it: turns, cost and agents, each counted once."""
    first = conversation_of(recording(*agents()), [spent(1), spent(2), spent(3), spent(4)])
    history = [*first["messages"], {"role": "user", "content": "Go on"}]
    talk = talk_of(
        said("conversation", first, at=8, key="resume:1"),
        asked(2, history, message(text("So.")), at=9, interaction="2" * 32),
        usage=[spent(9)],
    )
    assert (talk.turns, talk.tool_turns, talk.meter.total().calls) == (2, 3, 5)
    assert talk.children["x"].children["z"].turns == 1
    unused = talk_of(said("conversation", first, at=8, key="resume:1"))
    assert (unused.turns, unused.meter.total().calls) == (1, 4)


def test_money_is_dated_at_its_own_instants() -> None:
    """It is priced as of the day it was spent, not the day of the resume."""
    rows = [
        spent(1, model="claude-sonnet-4-6", cache_read_tokens=7, certainty="lower_bound"),
        spent(2),
    ]
    meter = Meter()
    meter.add_facts(rows)
    talk = talk_of(asked(1, [USER], message(text("So.")), at=1), usage=rows, lost=2)
    found, expected = talk.meter.total(), meter.total()
    assert (found.usd, found.tokens, found.uncertain) == (
        expected.usd,
        expected.tokens,
        expected.uncertain,
    )
    assert (found.lost, found.status) == (2, "lower_bound")


@pytest.mark.parametrize(
    ("exchanges", "words"),
    [
        ((), "no request of its main agent"),
        (
            (asked(1, [USER], LOOK, at=1, thread={"previous_message_id": "m"}),),
            "reference the previous response",
        ),
        ((asked(1, [USER, {"role": "user", "content": [RESULT]}], LOOK, at=1),), "would refuse"),
        ((asked(1, "nonsense", LOOK, at=1),), "contains no messages"),  # type: ignore[arg-type]
        (
            (asked(1, [USER], message({"type": "tool_use", "id": "a", "input": {}}), at=1),),
            "no name",
        ),
    ],
)
def test_what_cannot_be_gone_on_with(exchanges: tuple[Exchange, ...], words: str) -> None:
    """One clear error, and no request is sent."""
    with pytest.raises(RecordingError, match=words):
        conversation_of(recording(*exchanges))


# In the loop.


def resumed_in(load: Any, *, fork: int | None = None, relation: str = "resume") -> Conversation:
    async def main() -> Conversation:
        with Provider([]) as provider:
            client = provider.client()
            world = ticking_world(client, **({"load": load} if load else {}))
            if relation == "fork":
                return await forked(world, SESSION, turn=fork)
            return await resumed(world, SESSION)

    return in_loop(main())


def test_budgets_count_what_was_spent_before() -> None:
    """The spending of a conversation counts across its sessions; a person's grants do not carry over."""
    first = conversation_of(
        recording(asked(1, [USER], message(text("So.")), at=1)),
        [spent(1, model="claude-sonnet-4-6", input_tokens=0, output_tokens=10_000)],
    )
    talk = resumed_in(lambda asked: first)
    assert not talk.grants
    with Provider([]) as provider:
        budget = Budget(session_usd=Decimal("0.1"))
        events = events_of(provider, conversation=talk, budget=budget, model="claude-sonnet-4-6")
    assert [each.limit for each in of_kind(events, BudgetReached)] == ["session_usd"]
    assert result_of(events).subtype == "error_max_budget_usd"


def test_what_the_world_is_asked() -> None:
    """The session, the relation, and the last turn; an invalid turn is refused before."""
    seen: list[Json] = []
    first = conversation_of(recording(asked(1, [USER], message(text("So.")), at=1)))

    def load(question: Json) -> Json:
        seen.append(question)
        return first

    resumed_in(load)
    resumed_in(load, relation="fork", fork=2)
    assert seen == [
        {"session_id": SESSION, "turn": None, "relation": "resume"},
        {"session_id": SESSION, "turn": 2, "relation": "fork"},
    ]
    with pytest.raises(UsageError, match="0 is not a turn"):
        resumed_in(load, relation="fork", fork=0)


def fails(asked: Json) -> Json:
    raise RecordingError("pruned", where="here", todo="Weep")


def breaks(asked: Json) -> Json:
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("load", "error"),
    [
        (fails, RecordingError("pruned", where="here", todo="Weep")),
        (breaks, RecordingError("the earlier session was not read: OSError: no disk")),
        (None, UsageError("this world cannot read earlier sessions")),
        (lambda asked: None, RecordingError("the earlier session was not read")),
    ],
)
def test_errors_come_through(load: Any, error: AgentobsError) -> None:
    """The loader's error is raised in the agent, unchanged."""
    with pytest.raises(type(error)) as raised:
        resumed_in(load)
    assert raised.value.found.startswith(error.found)
    assert raised.value.todo if not error.todo else raised.value.todo == error.todo


def test_a_resumed_conversation_goes_on() -> None:
    """The next turn has the next number, and its request contains everything before."""
    first = conversation_of(recording(asked(1, [USER], LOOK, at=1)))
    with Provider([streamed(message(text("Done.")))]) as provider:
        events = events_of(provider, "Go on", conversation=resumed_in(lambda asked: first))
    assert isinstance(result_of(events), Result)
    assert [m["role"] for m in provider.requests[0]["messages"]] == [
        "user",
        "assistant",
        "user",
        "user",
    ]


@pytest.mark.parametrize("same", [True, False])
def test_thinking_stays_with_its_model(same: bool) -> None:
    """A model's thinking goes back to it unchanged; another model continues without it, as after a fallback."""
    thought = {"type": "thinking", "thinking": "Hm", "signature": "s"}
    first = conversation_of(
        recording(
            asked(1, [USER], message(thought, text("So.")), at=1, model=MODEL if same else "m")
        )
    )
    with Provider([streamed(message(text("Done.")))]) as provider:
        events_of(provider, "Go on", conversation=resumed_in(lambda asked: first))
        said = provider.requests[0]["messages"][1]["content"]
    assert said == ([thought, text("So.")] if same else [text("So.")])


def test_a_fork_of_a_session_whose_content_was_pruned(tmp_path: Path) -> None:
    """Its facts still exist, its content does not: one error says so, and no request is sent."""
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
