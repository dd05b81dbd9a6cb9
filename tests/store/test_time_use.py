"""Time use: the critical path of an interaction, and the named queries about time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.records.exchanges import Chunk, Ending, ModelExchange, Place, ToolAnswer
from agentobs.records.facts import Event, InteractionEnd, InteractionStart, SpanEnd, SpanStart
from agentobs.records.labels import Label
from agentobs.store.analysis.wall_time import (
    PARTS,
    Interval,
    Part,
    critical_path,
    has_unseen_waits,
    interaction_times,
)
from agentobs.store.backend import open_store
from agentobs.store.duckdb.connection import connect, named
from tests.provider_script import call as called
from tests.provider_script import streamed, text
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    permission,
    record,
    session_id,
    start,
    tool,
    write_facts,
)
from tests.store.wire_conversations import WireConversation

INTERACTION = "1" * 32
DENIED = ToolAnswer("no", is_error=True, outcome="denied")
WHOLE = Interval("whole", None, "own", "interaction", None, "main", 0, 100)
Query = Callable[..., list[dict[str, Any]]]


def interval(
    name: str, part: Part | None, started: int, ended: int | None, parent: str = "whole"
) -> Interval:
    return Interval(name, parent, part, name, None, "main", started, ended)


def shares(*inside: Interval) -> dict[str, int]:
    """Return the time of each category in an interaction with a duration of 100."""
    spent: Counter[str] = Counter()
    for piece in critical_path(WHOLE, inside, 100):
        spent[piece.part] += piece.ended_ns - piece.started_ns
    return dict(spent)


@pytest.mark.parametrize(
    ("inside", "spent"),
    [
        ([], {"own": 100}),
        ([("a", "model", 0, 100)], {"model": 100}),
        ([("a", "model", 10, 40), ("b", "tool", 50, 90)], {"model": 30, "tool": 40, "own": 30}),
        # Concurrent operations: the operation that ended last counts, and before its start, the other one counts.
        ([("a", "tool", 0, 60), ("b", "model", 40, 80)], {"tool": 40, "model": 40, "own": 20}),
        ([("a", "tool", 0, 80), ("b", "model", 40, 60)], {"tool": 80, "own": 20}),
        ([("a", "tool", 0, 80), ("b", "hook", 0, 80)], {"tool": 80, "own": 20}),
        # An unknown end: the operation lasts as long as the interaction.
        ([("a", "tool", 30, None), ("b", "model", 0, 40)], {"tool": 70, "model": 30}),
        # Operations outside of the interaction, with a negative duration, or with duration 0.
        ([("a", "tool", -50, 20), ("b", "model", 90, 500)], {"tool": 20, "own": 70, "model": 10}),
        ([("a", "tool", 60, 40), ("b", "model", 50, 50), ("c", "hook", 200, 300)], {"own": 100}),
    ],
)  # fmt: skip
def test_the_critical_path(inside: list[Any], spent: dict[str, int]) -> None:
    """Each instant of an interaction belongs to exactly one operation: the one that the interaction waited for."""
    assert shares(*(interval(*each) for each in inside)) == spent


def test_children_refine_the_category() -> None:
    """The time of a call is split into its approval wait and its execution; the rest is the program's own time."""
    call = interval("tool", "tool", 10, 90)
    asked = interval("blocked_on_user", "person", 20, 50, "tool")
    ran = interval("execution", "tool", 55, 85, "tool")
    assert shares(call) == {"own": 20, "tool": 80}
    assert shares(call, asked) == {"own": 20, "tool": 50, "person": 30}
    assert shares(call, asked, ran) == {"own": 40, "person": 30, "tool": 30}


def test_waits_and_hooks_include_their_children() -> None:
    """The time of LLM requests inside a hook counts as hook time."""
    hook = interval("hook", "hook", 10, 60)
    assert shares(hook, interval("ask", "model", 20, 50, "hook")) == {"own": 50, "hook": 50}


def test_an_agent_inside_a_call() -> None:
    """The time of an agent that runs inside a call is split in the same way as an interaction."""
    call = interval("tool", "tool", 0, 100)
    agent = interval("sub_agent", "own", 10, 90, "tool")
    asks = interval("llm_request", "model", 20, 80, "sub_agent")
    assert shares(call, agent, asks) == {"own": 40, "model": 60}


def test_a_span_of_the_users_code() -> None:
    """A span of the user's code has the category of its parent, and its children have their own categories."""
    call, runs = interval("tool", "own", 0, 90), interval("execution", "tool", 10, 80, "tool")
    mine = interval("mine", None, 20, 70, "execution")
    asks = interval("llm_request", "model", 30, 40, "mine")
    assert shares(call, runs, mine, asks) == {"own": 30, "tool": 60, "model": 10}
    assert shares(interval("mine", None, 20, 70)) == {"own": 100}


def test_cyclic_parents_and_repeated_ids() -> None:
    """Cyclic parents and repeated IDs cause no endless loop, and the parts still add up."""
    ring = [interval("a", "tool", 0, 50, "b"), interval("b", "tool", 0, 50, "a")]
    assert shares(*ring, interval("c", "hook", 0, 10, "c"), interval("whole", "tool", 0, 9)) == {
        "own": 100
    }
    assert shares(interval("d", "model", 0, 50, "nowhere")) == {"model": 50, "own": 50}
    again = [
        interval("e", "tool", 0, 50),
        interval("f", "model", 0, 50, "e"),
        interval("e", "hook", 0, 50, "f"),
    ]
    assert shares(*again) == {"model": 50, "own": 50}


TIMES = st.integers(-20, 120)


@st.composite
def trees(draw: st.DrawFn) -> list[Interval]:
    """Intervals of all kinds, each a child of an earlier interval, of the interaction, or of an unknown parent."""
    made: list[Interval] = []
    for number in range(draw(st.integers(0, 8))):
        parents = ["whole", "nowhere", *(each.id for each in made)]
        made.append(
            interval(
                f"i{number}",
                draw(st.sampled_from(PARTS)),
                draw(TIMES),
                draw(st.none() | TIMES),
                draw(st.sampled_from(parents)),
            )
        )
    return draw(st.permutations(made))


@pytest.mark.slow
@given(trees())
def test_parts_are_disjoint_and_add_up(inside: Sequence[Interval]) -> None:
    """In every tree, the segments of the critical path follow each other without a gap from start to end."""
    path = critical_path(WHOLE, inside, 100)
    assert (path[0].started_ns, path[-1].ended_ns) == (0, 100)
    assert all(before.ended_ns == after.started_ns for before, after in pairwise(path))
    assert all(piece.started_ns < piece.ended_ns for piece in path)
    assert sum(shares(*inside).values()) == 100


@given(trees(), st.data())
def test_shorter_concurrent_work_changes_nothing(
    inside: Sequence[Interval], data: st.DataObject
) -> None:
    """A concurrent operation that starts later and ends earlier than another one does not change the critical path."""
    longer = data.draw(st.sampled_from(list(inside) or [interval("i0", "tool", 10, 90)]))
    inside = list(inside) or [longer]
    last = 100 if longer.ended_ns is None else longer.ended_ns
    begun = data.draw(st.integers(longer.started_ns, max(longer.started_ns, last)))
    over = data.draw(st.integers(begun, max(begun, last)))
    part = data.draw(st.sampled_from(PARTS))
    beside = replace(longer, id="beside", part=part, name="beside", started_ns=begun, ended_ns=over)
    if (begun, over) != (longer.started_ns, last) and part not in _parent_categories(
        inside, longer
    ):
        assert shares(*inside, beside) == shares(*inside)


def _parent_categories(inside: Sequence[Interval], of: Interval) -> set[str | None]:
    """Return the categories of the parent of an interval, which a child with a more precise category can change."""
    return {each.part for each in inside if each.id == of.parent_id}


def asked(home: Any, query: str, **parameters: Any) -> list[dict[str, Any]]:
    with connect(home, ingest=False) as connection:
        answered = named(connection, query, **parameters)
        names = [column[0] for column in answered.description]
        return [dict(zip(names, row, strict=True)) for row in answered.fetchall()]


def span_of(
    name: str, started: float, ended: float | None, span: int, parent: int | None, **more: Any
) -> list[Any]:
    """Return the start and the end of a span, in seconds from the beginning."""
    values = {"lane": Label("main"), "label": None, **more}
    ids = f"{span:016x}", f"{parent:016x}" if parent else None
    began = SpanStart(
        session_id(1),
        INTERACTION,
        *ids,
        values["lane"],
        Label(name),
        values["label"],
        T0 + int(started * SECOND),
    )
    if ended is None:
        return [began]
    return [began, SpanEnd(session_id(1), ids[0], T0 + int(ended * SECOND), "ok", None)]


def loop_session() -> list[Any]:
    """Two turns of the agent loop: a request with a retry, and two concurrent calls, one of which requires approval."""
    session, lane = session_id(1), Label("main")
    here = Place(session, INTERACTION, turn=1, span_id=f"{2:016x}")
    first, again = (
        replace(attempt(1, 1, at=T0 + at * SECOND, status=status), ended_ns=2 * SECOND, place=here)
        for at, status in ((1, 529), (6, 200))
    )
    return [
        start(1),
        InteractionStart(session, INTERACTION, lane, T0),
        *span_of("interaction", 0, 40, 1, None),
        *span_of("llm_request", 1, 8, 2, 1),
        first,
        *span_of("retry_wait", 3, 6, 3, 2),
        again,
        *span_of("tool", 8, 30, 4, 1),
        *span_of("blocked_on_user", 9, 19, 5, 4, label=Label("send")),
        *span_of("execution", 20, 30, 6, 4),
        *span_of("tool", 8, 35, 7, 1),
        *span_of("queued", 8, 30, 8, 7),
        *span_of("hook", 30, 31, 9, 7),
        *span_of("execution", 31, 34, 10, 7),
        InteractionEnd(session, INTERACTION, T0 + 40 * SECOND, Label("success"), False),
        end(1),
    ]


def test_an_interaction_of_the_agent_loop(tmp_path: Path) -> None:
    """In an interaction of the agent loop, the spans determine the categories, and retry backoffs are separate from
    model time.
    """
    home = a_home(tmp_path)
    record(home, loop_session())
    with open_store(home, ingest=False) as store:
        [split] = interaction_times(store, session_id(1))
    assert (split.timing_source, split.has_ended, split.wall_ns) == ("spans", True, 40 * SECOND)
    seconds = {part: getattr(split, f"{part}_ns") / SECOND for part in PARTS}
    assert seconds == {
        "model": 4, "retry_wait": 3, "queued": 22, "person": 0, "hook": 1, "tool": 3, "own": 7,
    }  # fmt: skip
    assert [(piece.part, piece.name) for piece in split.path][:4] == [
        ("own", "interaction"),
        ("model", "attempt"),
        ("retry_wait", "retry_wait"),
        ("model", "attempt"),
    ]


def test_an_interaction_that_never_ended(tmp_path: Path) -> None:
    """An interaction that never ended lasts until its last known activity, and so do its open spans."""
    home = a_home(tmp_path)
    record(home, [start(1), InteractionStart(session_id(1), INTERACTION, Label("main"), T0),
        *span_of("interaction", 0, None, 1, None), *span_of("llm_request", 1, 5, 2, 1), *span_of("tool", 5, None, 3, 1),
        *span_of("blocked_on_user", 6, None, 4, 3)])  # fmt: skip
    with open_store(home, ingest=False) as store:
        [split] = interaction_times(store, session_id(1))
    assert (split.has_ended, split.wall_ns, split.model_ns) == (False, 6 * SECOND, 4 * SECOND)
    assert (split.own_ns, split.tool_ns) == (SECOND, SECOND)


def test_an_interaction_of_another_client(tmp_path: Path) -> None:
    """In an interaction without spans, the time from a response with calls to the next request is tool time."""
    talk = WireConversation()
    for call in talk.calls(("read", {}), ("list", {})):
        talk.result(call)
    [call] = talk.calls(("read", {}), takes=SECOND // 4)
    talk.result(call)
    talk.says("Hm.")
    home = a_home(tmp_path)
    record(home, talk.whole())
    with open_store(home, ingest=False) as store:
        [split] = interaction_times(store, session_id(1))
    assert (split.timing_source, split.wall_ns) == ("wire", 2 * SECOND + SECOND // 2)
    # What the client does not record is unknown.
    assert (split.queued_ns, split.person_ns, split.hook_ns, split.retry_wait_ns) == (
        None,
        None,
        None,
        0,
    )
    assert has_unseen_waits([split])
    tools = asked(home, "slowest_tools", session_id=session_id(1))
    assert {row["name"]: row["unseen_waits"] for row in tools} == {"list": 1, "read": 2}
    assert (split.model_ns, split.tool_ns, split.own_ns) == (
        SECOND + SECOND // 4,
        SECOND + SECOND // 4,
        0,
    )


TASKS = {1: "Study Rome", 2: "Study Oslo"}


class Delegation:
    """A client without spans, whose main agent starts sub-agents with the calls `toolu_1` and `toolu_2`."""

    def __init__(self) -> None:
        self.records: list[Any] = [start(1)]

    def request(
        self, started: float, ended: float, messages: list[Any], *content: dict[str, Any]
    ) -> list[Any]:
        """Add a request and its response, in seconds from the beginning; return the messages including it."""
        exchange = attempt(1, 1, at=T0 + int(started * SECOND), content=list(content))
        asked = {**json.loads(exchange.question.body), "messages": messages}
        question = replace(exchange.question, body=json.dumps(asked).encode())
        took = int((ended - started) * SECOND)
        self.records.append(replace(exchange, question=question, ended_ns=took))
        return [*messages, {"role": "assistant", "content": list(content)}]

    def agent(self, number: int, first: tuple[float, float], second: tuple[float, float]) -> None:
        """Add a sub-agent with two requests, each given by start and end. The response to the first calls a tool."""
        look = 10 + number
        messages = self.request(*first, [user(TASKS[number])], called(look, "look"))
        self.request(*second, [*messages, results(look)], text("Seen."))

    def run(self, number: int, started: float, ended: float) -> None:
        """Add the recorded run of a call."""
        took, at = int((ended - started) * SECOND), T0 + int(started * SECOND)
        self.records.append(tool(1, f"toolu_{number}", "agent", at=at, took=took))


def user(words: str) -> dict[str, Any]:
    return {"role": "user", "content": words}


def results(*numbers: int) -> dict[str, Any]:
    content = [
        {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": "ok"} for n in numbers
    ]
    return {"role": "user", "content": content}


@pytest.mark.parametrize("has_runs", [True, False])
def test_the_sub_agents_of_another_client(tmp_path: Path, has_runs: bool) -> None:
    """Without spans, the time of a call that started a sub-agent is split among the requests and calls of the agent.

    If the runs of the calls are unknown, both end with the next request. The agent that was active last counts.
    """
    talk = Delegation()
    calls = [called(number, "agent", task=task) for number, task in TASKS.items()]
    messages = talk.request(1, 2, [user("Go.")], *calls)
    talk.agent(1, (2.25, 3), (3.5, 4))
    talk.agent(2, (2.5, 6), (7, 9))
    if has_runs:
        talk.run(1, 2, 4.25)
        talk.run(2, 2.25, 9.5)
    talk.request(10, 11, [*messages, results(1, 2)], text("Done."))
    home = a_home(tmp_path)
    record(home, [*talk.records, end(1)])
    with open_store(home, ingest=False) as store:
        [split] = interaction_times(store, session_id(1))
    assert split.timing_source == "wire"
    path = [
        (piece.part, (piece.ended_ns - T0) / SECOND, piece.lane)
        for piece in split.path
        if piece.part != "own"
    ]
    first = [("model", 2.5, "main/toolu_1")]
    assert path == [
        ("model", 2, "main"), *([] if has_runs else first), ("model", 6, "main/toolu_2"),
        ("tool", 7, "main/toolu_2"), ("model", 9, "main/toolu_2"), ("model", 11, "main"),
    ]  # fmt: skip


def test_a_sub_agent_of_another_client_that_outlives_its_call(tmp_path: Path) -> None:
    """If a call starts a sub-agent and returns at once, the later requests of the agent are not part of the call.

    They count until the interaction ends.
    """
    talk = Delegation()
    messages = talk.request(1, 2, [user("Go.")], called(1, "agent", task=TASKS[1]))
    talk.agent(1, (2.25, 3), (3.5, 8))
    talk.run(1, 2, 2.5)
    talk.request(4, 5, [*messages, results(1)], text("Started."))
    home = a_home(tmp_path)
    record(home, [*talk.records, end(1)])
    with open_store(home, ingest=False) as store:
        [split] = interaction_times(store, session_id(1))
    assert [(piece.part, (piece.ended_ns - T0) / SECOND, piece.lane) for piece in split.path] == [
        ("model", 2, "main"), ("own", 2.25, "main"), ("model", 3, "main/toolu_1"),
        ("tool", 3.5, "main/toolu_1"), ("model", 5, "main/toolu_1"),
    ]  # fmt: skip


def test_the_slowest_tools(tmp_path: Path) -> None:
    """The percentiles of tools are exact; the approval wait of an agent that a tool runs does not count for the
    tool.
    """
    talk = WireConversation()
    ids = talk.calls(*[("fast", {})] * 20, ("agent", {}), ("seen", {}), ("fast", {}))
    no = replace(tool(1, ids[22], "fast", at=T0 + 2 * SECOND, took=0), answer=DENIED)
    talk.records.append(no)
    for at, call in enumerate(ids[:20]):
        talk.records.append(tool(1, call, "fast", at=T0 + 2 * SECOND, took=(at + 1) * SECOND))
    talk.records.append(tool(1, ids[20], "agent", at=T0 + 2 * SECOND, took=50 * SECOND))
    lane = Label(f"main/{ids[20]}")
    talk.records += span_of("blocked_on_user", 5, 47, 9, None, lane=lane)
    for call in ids:
        talk.result(call)
    talk.says("Hm.")
    home = a_home(tmp_path)
    record(home, talk.whole())
    rows = {row["name"]: row for row in asked(home, "slowest_tools", session_id=session_id(1))}
    found = {name: [row[f"p{p}_ns"] / SECOND for p in (50, 95, 99)] for name, row in rows.items()}
    assert found == {"fast": [10, 19, 20], "agent": [8, 8, 8], "seen": [0.5, 0.5, 0.5]}
    assert list(rows) == ["fast", "agent", "seen"]
    assert [row["timed_calls"] for row in rows.values()] == [20, 1, 0]
    assert rows["fast"]["calls"] == 21


def test_approval_waits(tmp_path: Path) -> None:
    """Approval waits have one row for each tool and resolver, with the durations and the number of waits that never
    ended.
    """
    home = a_home(tmp_path)
    waits = [0.5, 9.9, 10, 59, 600]
    facts = [
        permission(1, f"toolu_{at}", at=T0 + at, approval_wait_ns=int(each * SECOND))
        for at, each in enumerate(waits)
    ]
    denied = permission(1, "toolu_9", at=T0, behavior="deny", approval_wait_ns=SECOND)
    silent = permission(
        1, "toolu_8", at=T0, approval_requested=False, resolver="rule", approval_wait_ns=0
    )
    write_facts(home, [*facts, denied, silent, *span_of("blocked_on_user", 1, 3, 7, None, label=Label("budget")),
        *span_of("blocked_on_user", 5, None, 8, None, label=Label("send"))])  # fmt: skip
    rows = asked(home, "waits_for_people", session_id=session_id(1))
    assert [
        (r["about"], r["resolver"], r["answered"], r["unanswered"], r["denied"]) for r in rows
    ] == [
        ("weather", "person", 6, 0, 1),
        ("budget", "person", 1, 0, 0),
        ("send", "unattended", 0, 1, 0),
    ]
    buckets = [
        rows[0][name] for name in ("under_1s", "under_10s", "under_1min", "under_10min", "longer")
    ]
    assert buckets == [1, 2, 2, 0, 1]
    assert (rows[0]["p50_ns"], rows[0]["max_ns"]) == (int(9.9 * SECOND), 600 * SECOND)


def test_hook_outcomes(tmp_path: Path) -> None:
    """Hook outcomes have one row for each hook and outcome, with the duration and the number of changes."""
    home = a_home(tmp_path)

    def hook(outcome: str, seconds: float, **numbers: float) -> Event:
        given = {"duration_ns": seconds * SECOND, "requests": 0.0, **numbers}
        event = Event(
            session_id(1), None, Label("main"), 1, T0, Label("hook"), Label(outcome), given
        )
        return replace(event, labels={"hook": Label("guard")})

    write_facts(home, [hook("success", 1), hook("success", 3, rewrites=1.0), hook("blocking", 2)])
    found = asked(home, "hook_outcomes", session_id=session_id(1))
    assert [(r["hook"], r["outcome"], r["times"], r["rewrites"], r["max_ns"]) for r in found] == [
        ("guard", "success", 2, 1, 3 * SECOND),
        ("guard", "blocking", 1, 0, 2 * SECOND),
    ]


def test_the_first_token_by_model(tmp_path: Path) -> None:
    """The time to the first token is measured from complete streams, by the model in the response."""

    def stream(turn: int, seconds: int, chunks: int | None = None) -> ModelExchange:
        answer = streamed(text("Hm."))
        late = tuple(Chunk(chunk.data, seconds * SECOND) for chunk in answer.chunks[:chunks])
        ending: Ending = "cut" if chunks else "complete"
        return replace(attempt(1, turn), answer=replace(answer, chunks=late, ending=ending))

    home = a_home(tmp_path)
    asks = [stream(at, at) for at in range(1, 5)]
    record(home, [start(1), *asks, stream(5, 99, chunks=2), attempt(1, 6), end(1)])
    [found] = asked(home, "first_token_by_model", session_id=session_id(1))
    assert (found["calls"], found["p50_ns"], found["p95_ns"]) == (4, 2 * SECOND, 4 * SECOND)


def test_operations_open_at_death(tmp_path: Path) -> None:
    """After a crash, spans that never ended and calls without a result last from their start to the last known
    activity.
    """
    talk = WireConversation()
    done, left = talk.calls(("read", {}), ("send", {}))
    talk.records.append(tool(1, done, "read", at=T0 + 2 * SECOND))
    talk.records += span_of("tool", 4, None, 1, None, label=Label("send"))
    talk.records += span_of("tool", 2, 9, 2, None, label=Label("read"))
    home = a_home(tmp_path)
    record(home, talk.records)
    rows = asked(home, "open_at_death", session_id=session_id(1))
    assert [(r["kind"], r["name"], r["label"], r["id"], r["open_ns"]) for r in rows] == [
        ("tool_call", "send", None, left, 7 * SECOND + SECOND // 2),
        ("span", "tool", "send", f"{1:016x}", 5 * SECOND),
    ]
    record(home, [end(1)])
    assert [row["kind"] for row in asked(home, "open_at_death")] == ["span"]
