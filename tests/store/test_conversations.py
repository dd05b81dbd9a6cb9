"""Conversations: the sessions of a resumed conversation belong together, and their costs are summed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from agentobs.records.exchanges import SessionCall
from agentobs.records.facts import Event, Relation
from agentobs.records.labels import Label
from agentobs.store.duckdb.connection import connect, named
from tests import queries
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    record,
    session_id,
    start,
    write_facts,
)


def continued(number: int, earlier: int, relation: Relation = "resume") -> SessionCall:
    call = start(number, at=T0 + number * SECOND)
    fact = dataclasses.replace(
        call.start, continues_session_id=Label(session_id(earlier)), relation=relation
    )
    return dataclasses.replace(call, start=fact)


def parts(home: Path) -> list[tuple[Any, ...]]:
    return queries.query(
        "SELECT session_id, conversation_id, continues_session_id, relation FROM sessions ORDER BY session_id",
        home=home,
    )


@pytest.mark.slow
def test_a_conversation_resumed_several_times(tmp_path: Path) -> None:
    """A conversation that is resumed several times has the ID of its first session; a fork starts another conversation.

    Each session counts once.
    """
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), end(1)])
    record(home, [continued(2, 1), attempt(2, 1), attempt(2, 2)])
    record(home, [continued(3, 2), attempt(3, 1)])
    record(home, [continued(4, 2, "fork"), attempt(4, 1)])
    record(home, [continued(5, 4), attempt(5, 1)])
    one, two, three, four, five = (session_id(number) for number in range(1, 6))
    assert parts(home.path) == [
        (one, one, None, None),
        (two, one, one, "resume"),
        (three, one, two, "resume"),
        (four, four, two, "fork"),
        (five, four, four, "resume"),
    ]
    with connect(home, ingest=False) as connection:
        found = named(connection, "conversation_sessions", session_id=two).fetchall()
        costs = named(connection, "cost_by_conversation").fetchall()
    assert [(row[0], row[7]) for row in found] == [(one, 1), (two, 2), (three, 1)]
    assert [(row[0], row[1], row[2]) for row in costs] == [(one, 3, 4), (four, 2, 2)]
    [(whole,)] = queries.query("SELECT sum(cost_usd) FROM costs", home=home.path)
    assert sum(row[7] for row in costs) == whole


def test_the_loop_records_the_earlier_session(tmp_path: Path) -> None:
    """If the start of a session does not contain the link to the earlier session, the `resumed` event of the agent loop
    provides it.
    """
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), end(1), start(2), attempt(2, 1)])
    event = Event(
        session_id=session_id(2),
        interaction_id=None,
        lane=Label("main"),
        turn=None,
        at_ns=T0,
        kind=Label("resumed"),
        label=Label(session_id(1)),
        numbers={"turns": 1},
    )
    write_facts(home, [event])
    assert parts(home.path)[1] == (session_id(2), session_id(1), session_id(1), "resume")


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [1, 2, 99])
def test_cyclic_and_external_links(earlier: int, tmp_path: Path) -> None:
    """A session is listed once even if it continues itself, its own continuation, or a session of another home."""
    home = a_home(tmp_path)
    record(home, [continued(1, earlier), attempt(1, 1), continued(2, 1), attempt(2, 1)])
    found = parts(home.path)
    assert [row[0] for row in found] == [session_id(1), session_id(2)]
    assert found[0][1] == (session_id(99) if earlier == 99 else session_id(1))
