"""Turns and tool calls are counted in the same way by the results of runs, the list of sessions, and the pages."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from agentobs.agent import Event, Result, SubAgent
from agentobs.cli.demo import refund_agent
from agentobs.recording.journal.home import Home
from agentobs.records.facts import SessionStart
from agentobs.sink import Record
from agentobs.store.duckdb.connection import connect, named
from replay import Replayer, load
from tests import queries
from tests.agent.replayed_scenarios import collected, shared_replay
from tests.agent.scenarios import FIXTURES, SCENARIOS
from tests.dashboards.live_app import serving
from tests.store.recordings import a_home, record

pytestmark = pytest.mark.xdist_group("scenarios")

ALL = [*SCENARIOS, "refund-loop"]


Counts = dict[str, dict[str, tuple[int, int]]]
"""Turns and tool calls, by session and lane."""


def replayed(name: str) -> tuple[list[Event], list[Record]]:
    """Replay a committed fixture; return the events of the agent loop, and the records of the session."""
    if name != "refund-loop":
        shared = shared_replay(name)
        return shared.events, shared.records
    replayer = Replayer(load(FIXTURES.parent / name))
    records = collected(replayer)
    with replayer as opened:
        opened.run(refund_agent.answer, **opened.fixture.header["arguments"])
    return [], records


def results_by_lane(events: list[Event]) -> dict[str, tuple[int, int]]:
    """Return the turns and tool calls of the results of all runs, by lane; lanes without turns are left out."""
    turns, calls = Counter[str](), Counter[str]()
    for event in events:
        inner = event.event if isinstance(event, SubAgent) else event
        if isinstance(inner, Result):
            lane = event.lane if isinstance(event, SubAgent) else "main"
            turns[lane] += inner.num_turns
            calls[lane] += inner.num_tool_calls
    return {lane: (turns[lane], calls[lane]) for lane in turns if turns[lane]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "has_all_pages", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["quick", "all pages"]
)
def test_all_counts_agree_for_each_committed_fixture(has_all_pages: bool, tmp_path: Path) -> None:
    """For every committed fixture, the results of the runs and sub-agents, the list of sessions, the view by lane and
    the view of turns show the same numbers.

    The table of turns and the page of the session also show them. They take as long as a replay, so they are read for
    only some sessions.
    """
    home, expected, all_records = a_home(tmp_path), Counts(), list[Record]()
    for name in ALL:
        events, records = replayed(name)
        all_records += records
        if name != "refund-loop":  # the demo passes no events on
            expected[name] = results_by_lane(events)
        assert any(isinstance(getattr(each, "start", None), SessionStart) for each in records), name
    record(home, all_records)
    found = counted(home)
    assert set(found) == set(ALL)
    for name, lanes in expected.items():
        assert found[name] == lanes, name
    shown = set(ALL) if has_all_pages else with_extreme_counts(found)
    check_pages(home, found, check_lists(home, found, shown))


def counted(home: Home) -> Counts:
    """Return the counts of the view."""
    rows = queries.query(
        "SELECT name, lane, counts.turns, counts.tool_calls FROM sessions LEFT JOIN turn_counts AS counts "
        "USING (session_id)",
        home=home.path,
    )
    found: Counts = {}
    for name, lane, turns, calls in rows:
        found.setdefault(name, {}).update({lane: (turns, calls)} if lane is not None else {})
    return found


def sums(counts: Counts) -> dict[str, tuple[int, ...]]:
    """Return the sums by session: turns and tool calls."""
    return {
        name: tuple(map(sum, zip((0, 0), *lanes.values(), strict=True)))
        for name, lanes in counts.items()
    }


def with_extreme_counts(counts: Counts) -> set[str]:
    """Return the names of the sessions with the most lanes, and with the fewest and the most turns and tool calls."""
    total = sums(counts)
    return {
        max(counts, key=lambda name: len(counts[name])),
        *(
            choose(total, key=lambda name: total[name][at])
            for choose in (min, max)
            for at in (0, 1)
        ),
    }


def check_lists(home: Home, counts: Counts, shown: set[str]) -> dict[str, str]:
    """Check that the list of sessions and the view of turns contain the sums of the counts, and that the query of turns
    returns them for the sessions `shown`; return the IDs of these sessions by name.
    """
    view = sums(counts)
    ids = {}
    with connect(home) as connection:
        listed = named(connection, "sessions")
        columns = [column[0] for column in listed.description]
        rows = [dict(zip(columns, row, strict=True)) for row in listed.fetchall()]
        assert {row["name"] for row in rows} == set(view)
        counted = "SELECT session_id, count(*) FROM turns GROUP BY ALL"
        turns = dict(connection.execute(counted).fetchall())
        for row in rows:
            assert (row["turns"], row["tool_calls"]) == view[row["name"]]
            assert turns.get(row["session_id"], 0) == row["turns"]
            if row["name"] in shown:
                ids[row["name"]] = row["session_id"]
                found = named(connection, "session_turns", session_id=row["session_id"])
                assert len(found.fetchall()) == row["turns"]
    assert set(ids) == shown
    return ids


def check_pages(home: Home, counts: Counts, sessions: dict[str, str]) -> None:
    """Check that the pages of sessions show the sums of the view."""
    view = sums(counts)
    with serving(home) as client:
        for name, session_id in sessions.items():
            words = client.get(f"/sessions/{session_id}").words
            shown = re.search(
                r"Turns (\d+) (?:\((\d+) (?:cut|without a response)\) )?.*?Tool calls (\d+)", words
            )
            assert shown is not None, name
            turns, unfinished, calls = (int(number or 0) for number in shown.groups())
            assert (turns - unfinished, calls) == view[name], name
