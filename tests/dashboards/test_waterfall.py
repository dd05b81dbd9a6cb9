"""The waterfall of a session draws each interval once, at its time and in its lane, without overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.records.exchanges import Place
from agentobs.records.facts import Event, InteractionEnd, InteractionStart, SpanEnd, SpanStart
from agentobs.records.labels import Label, unchecked
from agentobs.store.analysis.wall_time import PARTS, Part, TimeSlice, interaction_times
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.store import DuckStore
from dashboards.figures import session_waterfall
from dashboards.figures.elapsed_time import HOUR, MINUTE, SECOND, elapsed, ticks
from dashboards.figures.lane_tracks import GROUPS, MANY_LANES, MOST_OWN_TRACKS
from dashboards.figures.timeline import PALEST
from dashboards.figures.tracks import Interval, merge_narrow, merge_overlapping, pack
from dashboards.style import INK, RED
from tests.dashboards.figure_checks import assert_valid, hostile, rows_of, rows_of_nulls
from tests.exporters.sample_session import sample_home
from tests.store.recordings import (
    T0,
    a_home,
    attempt,
    end,
    record,
    session_id,
    start,
    tool,
    write_facts,
)
from tests.store.wire_conversations import WireConversation

INTERACTION = "1" * 32
Rows = list[dict[str, Any]]
WaterfallData = tuple[Rows, list[TimeSlice]]
Bar = dict[str, Any]


def waterfall_data(home: Any, session: str = session_id(1)) -> WaterfallData:
    """Return the rows and the critical path of a session, as the page queries them."""
    with connect(home, ingest=False) as connection:
        rows = rows_of(connection, "session_waterfall", session_id=session)
        splits = interaction_times(DuckStore(connection, home), session)
    return rows, [piece for split in splits for piece in split.path]


def bars(figure: go.Figure) -> list[Bar]:
    """Return the bars of a figure by track and time."""
    names = {each.y: each.text for each in figure.layout.annotations if each.yref != "paper"}
    found = [
        {
            "y": y, "track": names.get(y), "at": at, "wide": wide, "count": number[0], "says": says, "part": trace.name,
            "line": (color, width),
        }
        for trace in figure.data
        if trace.type == "bar" and trace.customdata is not None
        for y, at, wide, number, says, color, width in zip(
            trace.y, trace.base, trace.x, trace.customdata, trace.hovertext, trace.marker.line.color,
            trace.marker.line.width, strict=True,
        )
    ]  # fmt: skip
    return sorted(found, key=lambda each: (each["y"], each["at"]))


def marked_points(figure: go.Figure, name: str) -> list[Any]:
    """Return the points of a trace without the gaps."""
    return [
        (x, y)
        for trace in figure.data
        if trace.name == name and trace.type == "scatter"
        for x, y in zip(trace.x, trace.y, strict=True)
        if x is not None
    ]


def track_names(figure: go.Figure) -> list[str]:
    """Return the names of the tracks, from top to bottom."""
    beside = [each for each in figure.layout.annotations if each.yref != "paper"]
    return [each.text for each in sorted(beside, key=lambda each: each.y)]


def span(
    name: str,
    started: float,
    ended: float | None,
    number: int,
    parent: int | None = None,
    **more: Any,
) -> Iterator[Any]:
    """Yield the facts of a span; its start and end are in seconds after the beginning."""
    trace, lane = more.get("trace", INTERACTION), unchecked(more.get("lane", "main"))
    ids = f"{number:016x}", f"{parent:016x}" if parent else None
    label = Label(more["label"]) if "label" in more else None
    yield SpanStart(
        session_id(1), trace, *ids, lane, unchecked(name), label, T0 + int(started * SECOND)
    )
    if ended is not None:
        ended_ns = T0 + int(ended * SECOND)
        yield SpanEnd(session_id(1), ids[0], ended_ns, more.get("status", "ok"), None)


def row(kind: str, started: float, ended: float | None, **more: Any) -> dict[str, Any]:
    """Return a row as the query returns it, with times in seconds after the beginning."""
    parts = {
        "request": "model",
        "upkeep": "model",
        "tool": "tool",
        "person": "person",
        "queued": "queued",
    }
    values: dict[str, Any] = {
        "kind": kind, "id": f"{kind} {started}", "interaction_id": INTERACTION, "lane": "main", "is_upkeep": False,
        "turn": None, "label": kind, "part": parts.get(kind, "own"), "started_ns": T0 + int(started * SECOND),
        "ended_ns": None if ended is None else T0 + int(ended * SECOND), "state": "ok", "detail": None,
        "prompt_tokens": None, "output_tokens": None,
    }  # fmt: skip
    assert more.keys() <= values.keys()
    return values | more


@pytest.fixture(scope="module")
def rich_session(tmp_path_factory: pytest.TempPathFactory) -> WaterfallData:
    """The rows of a session of our agent loop with a failed attempt, tools, an approval, a hook and a sub-agent."""
    home = sample_home(tmp_path_factory.mktemp("sample"))
    with connect(home) as connection:
        [(session,)] = connection.execute("SELECT session_id FROM sessions").fetchall()
    return waterfall_data(home, session)


@pytest.mark.slow
def test_a_session_of_our_loop(rich_session: WaterfallData) -> None:
    """Each lane has its tracks, and each row is drawn once, from its start to its end, in the color of its part."""
    rows, path = rich_session
    figure = session_waterfall(rows, path)
    assert_valid(figure)
    assert track_names(figure) == [
        "critical path",
        "main", "requests", "tools", "sub-agent calls", "waits for the user", "queued", "retry backoff",
        "hooks",
        "helper", "requests",
    ]  # fmt: skip
    below = [each for each in bars(figure) if each["y"] > 1]
    assert sum(each["count"] for each in below) == len(rows) - 1
    zero = rows[0]["started_ns"]
    [waited] = [each for each in rows if each["kind"] == "retry_wait"]
    [drawn] = [each for each in below if each["part"] == "retry backoff"]
    assert drawn["at"] == pytest.approx((waited["started_ns"] - zero) / SECOND)
    assert drawn["wide"] == pytest.approx((waited["ended_ns"] - waited["started_ns"]) / SECOND)
    assert "overloaded_error" in drawn["says"]
    assert figure.layout.xaxis.title.text == "time since the start of the session"


@pytest.mark.slow
def test_failures_are_marked_by_more_than_color(rich_session: WaterfallData) -> None:
    """A failed bar has an outline, a cross and a text."""
    rows, path = rich_session
    figure = session_waterfall(rows, path)
    failed = [each for each in bars(figure) if "failed" in each["says"]]
    assert len(failed) == sum(each["state"] == "failed" for each in rows) == 2
    assert [each["y"] for each in failed] == [y for _, y in marked_points(figure, "failed")]
    assert all(each["line"][0] == RED for each in failed)
    assert "http error 529 overloaded error" in failed[0]["says"]


def test_the_critical_path(rich_session: WaterfallData) -> None:
    """The critical path is drawn on top, as long as the interactions; the intervals on it have an outline."""
    rows, path = rich_session
    figure = session_waterfall(rows, path)
    on_top = [each for each in bars(figure) if each["y"] == 0]
    assert sum(each["wide"] for each in on_top) == pytest.approx(
        sum(piece.ended_ns - piece.started_ns for piece in path) / SECOND, rel=0.01
    )
    [waited] = [each for each in bars(figure) if each["track"] == "retry backoff"]
    assert waited["line"][0] == INK
    assert "on the critical path" in waited["says"]
    assert not any(each["line"][0] == INK for each in bars(session_waterfall(rows)))


def test_the_last_of_concurrent_calls_is_critical() -> None:
    """Of concurrent calls in separate tracks, the call that ended last is on the critical path."""
    rows = [
        row("interaction", 0, 10),
        row("tool", 1, 5, label="short"),
        row("tool", 2, 9, label="long"),
    ]
    path = [TimeSlice("tool", "execution", "long", "main", T0 + 2 * SECOND, T0 + 9 * SECOND)]
    figure = session_waterfall(rows, path)
    [short], [long] = (
        [b for b in bars(figure) if b["says"].startswith(name) and b["y"] > 1]
        for name in ("short", "long")
    )
    assert long["y"] == short["y"] + 1
    assert (short["line"][0] == INK, long["line"][0] == INK) == (False, True)


def test_the_query_returns_all_kinds_of_intervals(tmp_path: Path) -> None:
    """The query returns requests by attempt, calls with their outcome, waits, and custom spans by lane."""
    lane, inside = Label("main"), Label("main/toolu_2")
    session = session_id(1)
    home = a_home(tmp_path)
    here = Place(session, INTERACTION, turn=1, span_id=f"{2:016x}")
    content = [
        {"type": "tool_use", "id": each, "name": name, "input": {}}
        for each, name in (("toolu_1", "look"), ("toolu_2", "agent"), ("toolu_3", "lost"))
    ]
    asked = replace(attempt(1, 1, at=T0 + SECOND, content=content), ended_ns=2 * SECOND, place=here)
    looked = tool(1, "toolu_1", "look", at=T0 + 4 * SECOND)
    record(home, [
        start(1), InteractionStart(session, INTERACTION, lane, T0), *span("interaction", 0, 20, 1, label="clerk"),
        *span("llm_request", 1, 3, 2, 1), asked, *span("tool", 3, 6, 3, 1),
        *span("blocked_on_user", 3, 4, 4, 3, label="look"), replace(looked, place=replace(here, span_id=None)),
        *span("execution", 4, 5, 5, 3), *span("hook", 5, 6, 6, 3, label="watch"),
        *span("tool", 6, 12, 7, 1), *span("queued", 6, 7, 8, 7),
        *span("sub_agent", 7, 12, 9, 7, lane=inside, label="scout"), *span("llm_request", 8, 11, 10, 9, lane=inside),
        *span(Label("load"), 13, 14, 11, 1), *span("compaction", 15, 16, 12, 1, label="auto", status="error"),
        *span("llm_request", 15, None, 13, 12, lane="main/compaction:1"),
        InteractionEnd(session, INTERACTION, T0 + 20 * SECOND, Label("success"), False), end(1),
    ])  # fmt: skip
    rows, _ = waterfall_data(home)
    found = [
        (
            each["kind"], each["lane"], each["is_upkeep"], each["label"], each["part"],
            (each["started_ns"] - T0) / SECOND,
            None if each["ended_ns"] is None else (each["ended_ns"] - T0) / SECOND, each["state"],
        )
        for each in rows
    ]  # fmt: skip
    assert found == [
        ("session", None, False, "story", "own", 0, 60, "ok"),
        ("interaction", "main", False, "clerk", "own", 0, 20, "ok"),
        ("request", "main", False, "claude-sonnet-5-5", "model", 1, 3, "ok"),
        ("person", "main", False, "look", "person", 3, 4, "ok"),
        ("agent", "main", False, "agent", "own", 3, 3, "stopped"),
        ("tool", "main", False, "lost", "tool", 3, 3, "stopped"),
        ("tool", "main", False, "look", "tool", 4, 5, "ok"),
        ("hook", "main", False, "watch", "hook", 5, 6, "ok"),
        ("queued", "main", False, None, "queued", 6, 7, "ok"),
        ("sub_agent", "main/toolu_2", False, "scout", "own", 7, 12, "ok"),
        ("request", "main/toolu_2", False, None, "model", 8, 11, "ok"),
        ("span", "main", False, "load", "own", 13, 14, "ok"),
        ("compaction", "main", False, "auto", "own", 15, 16, "failed"),
        ("request", "main", True, None, "model", 15, 20, "orphaned"),
    ]  # fmt: skip
    figure = session_waterfall(rows)
    assert_valid(figure)
    assert track_names(figure)[-3:] == ["custom spans", "scout", "requests"]


def test_an_agent_whose_call_has_an_unknown_form_of_id_has_a_lane(tmp_path: Path) -> None:
    """The name of such a lane ends with a digest, which is not a kind of auxiliary requests."""
    session, inside = session_id(1), "main/our-call-7"
    home = a_home(tmp_path)
    record(home, [
        start(1), InteractionStart(session, INTERACTION, Label("main"), T0), *span("interaction", 0, 20, 1),
        *span("sub_agent", 7, 12, 9, 1, lane=inside, label="scout"), *span("llm_request", 8, 11, 10, 9, lane=inside),
        InteractionEnd(session, INTERACTION, T0 + 20 * SECOND, Label("success"), False), end(1),
    ])  # fmt: skip
    rows, _ = waterfall_data(home)
    lanes = {each["lane"] for each in rows if each["kind"] in ("sub_agent", "request")}
    assert all(lane.startswith("main/digest:") for lane in lanes), lanes
    assert not any(each["is_upkeep"] for each in rows)
    assert track_names(session_waterfall(rows))[-2:] == ["scout", "requests"]


def test_a_crashed_process(tmp_path: Path) -> None:
    """Open intervals end at the last known time with a dotted edge, and are described as never ended."""
    home = a_home(tmp_path)
    record(home, [start(1), InteractionStart(session_id(1), INTERACTION, Label("main"), T0),
        *span("interaction", 0, None, 1), *span("llm_request", 1, 5, 2, 1), *span("tool", 5, None, 3, 1),
        *span("execution", 6, None, 5, 3, label="send"),
        *span("blocked_on_user", 6, None, 4, 3, label="send")])  # fmt: skip
    rows, path = waterfall_data(home)
    figure = session_waterfall(rows, path)
    assert_valid(figure)
    lost = [each for each in bars(figure) if "never ended" in each["says"]]
    at_last = pytest.approx(6, abs=0.02)
    assert [(each["track"], each["at"]) for each in lost] == [
        ("main", 0), ("tools", at_last), ("waits for the user", at_last),
    ]  # fmt: skip
    assert len(marked_points(figure, "the end is unknown")) == 2 * len(lost)


def test_an_open_call_of_a_crashed_process(tmp_path: Path) -> None:
    """An open call of a crashed process has no result, and its duration is unknown."""
    talk = WireConversation()
    talk.calls(("read", {}))
    home = a_home(tmp_path)
    record(home, talk.records)
    rows, _ = waterfall_data(home)
    [call] = [each for each in rows if each["kind"] == "tool"]
    assert (call["state"], call["ended_ns"], call["detail"]) == ("orphaned", None, "no result")


def test_a_running_session() -> None:
    """In a running session, open intervals extend to the edge, are described as not ended, and add no busy time."""
    rows = [
        row("interaction", 0, None, state="open"),
        row("request", 0, 4),
        row("tool", 4, None, state="open"),
    ]
    figure = session_waterfall([row("session", 0, 10, state="open"), *rows])
    reaching = [each for each in bars(figure) if "has not ended yet" in each["says"]]
    assert [each["at"] + each["wide"] for each in reaching] == [10, 10]


def test_a_session_of_another_client(tmp_path: Path) -> None:
    """Requests and calls of a client other than our agent loop are drawn; a call without a result has no duration."""
    talk = WireConversation()
    [read, _lost] = talk.calls(("read", {}), ("lost", {}))
    talk.result(read, is_error=True)
    talk.says("Hm.")
    home = a_home(tmp_path)
    record(home, talk.whole())
    rows, path = waterfall_data(home)
    assert [
        (each["kind"], each["label"], each["state"]) for each in rows[1:] if each["kind"] == "tool"
    ] == [
        ("tool", "read", "failed"),
        ("tool", "lost", "stopped"),
    ]
    figure = session_waterfall(rows, path)
    assert track_names(figure) == ["critical path", "main", "requests", "tools"]


def test_a_session_without_interactions(tmp_path: Path) -> None:
    """If a program makes no model requests, its spans are drawn, and instants are visible."""
    home = a_home(tmp_path)
    trace = session_id(1)
    compacted = Event(
        session_id(1),
        None,
        Label("main"),
        None,
        T0 + 3 * SECOND,
        Label("compaction"),
        Label("auto"),
        {},
    )
    write_facts(
        home,
        [start(1).start, *span("load", 1, 3.5, 1, trace=trace), compacted, end(1, T0 + 4 * SECOND)],
    )
    rows, path = waterfall_data(home)
    assert path == []
    figure = session_waterfall(rows, path)
    assert track_names(figure) == ["main", "compaction", "custom spans"]
    [made, load] = bars(figure)
    assert (load["at"], load["wide"]) == (1, 2.5)
    assert made["at"] == 3
    assert made["wide"] > 0


def test_long_idle_periods_are_cut_out() -> None:
    """Hours without activity become a strip with their length, and later ticks show the true time."""
    night = 8 * 3600
    rows = [
        each
        for at in (0, 10 + night)
        for each in (
            row("interaction", at, at + 10),
            row("request", at, at + 9),
            row("tool", at + 9, at + 10),
        )
    ]
    figure = session_waterfall(rows)
    assert [each.text for each in figure.layout.annotations if each.yref == "paper"] == ["idle 8 h"]
    low, high = figure.layout.xaxis.range
    assert high - low < 25
    assert "8 h 10 s" in figure.layout.xaxis.ticktext
    late = [each for each in bars(figure) if "at 8 h" in each["says"]]
    assert [round(each["wide"]) for each in late] == [10, 9, 1]


def test_a_window_shows_only_its_range() -> None:
    """Intervals outside of the window are not drawn, and others are clipped at its edge.

    Times are relative to the start of the session.
    """
    rows = [row("session", 0, 100), *(row("tool", at, at + 8) for at in range(0, 100, 10))]
    figure = session_waterfall(rows, window=(T0 + 35 * SECOND, T0 + 52 * SECOND))
    assert [(each["at"], each["wide"]) for each in bars(figure)] == [(0, 3), (5, 8), (15, 2)]
    assert "at 50.00 s" in bars(figure)[-1]["says"]
    assert figure.layout.xaxis.ticktext[0].endswith(" s")
    assert figure.layout.xaxis.ticktext[0] != "0 s"
    assert not bars(session_waterfall(rows, window=(T0 + 8 * SECOND + 1, T0 + 9 * SECOND)))


TURN: tuple[tuple[Part, str, float, float], ...] = (
    ("model", "attempt", 0, 2),
    ("tool", "execution", 2, 3),
    ("own", "interaction", 3, 3.5),
)
"""The critical path of a turn, in seconds after its beginning."""


def long_session(turns: int = 1000, agents: int = 40) -> WaterfallData:
    """Return the rows and the path of a session with five intervals per turn."""
    rows: Rows = [row("session", 0, turns * 4)]
    path = []
    for turn in range(turns):
        at = turn * 4
        rows += [
            row("request", at, at + 2, id=f"r{turn}"),
            row("interaction", at, at + 3.5, id=f"i{turn}"),
        ]
        state = "failed" if turn % 9 == 0 else "ok"
        rows += [
            row("tool", at + 2, at + 3, id=f"t{turn}{n}", label=f"t{n}", state=state) for n in "ab"
        ]
        rows.append(row("queued", at + 2, at + 2.5, id=f"q{turn}"))
        path += [
            TimeSlice(part, name, "x", "main", T0 + int((at + low) * SECOND), T0 + int((at + high) * SECOND))
            for part, name, low, high in TURN
        ]  # fmt: skip
    for agent in range(agents):
        # All agents run concurrently.
        rows.append(
            row("sub_agent", agent, turns * 4, lane=f"main/a{agent}", id=f"a{agent}", label="scout")
        )
    return rows, path


@pytest.mark.slow
def test_a_thousand_turns_have_bounded_bars() -> None:
    """Of 5,000 intervals, at most the allowed number of bars is drawn; their counts add up, and hover texts
    show them.
    """
    rows, path = long_session()
    figure = session_waterfall(rows, path)
    assert_valid(figure)
    drawn = bars(figure)
    assert len(drawn) <= 1000
    on_top = sum(each["count"] for each in drawn if each["y"] == 0)
    assert on_top == len(path)
    assert sum(each["count"] for each in drawn) == on_top + len(rows) - 1
    assert any("tool calls" in each["says"] and "failed" in each["says"] for each in drawn)
    assert figure.layout.height < 2500
    few = bars(session_waterfall(rows, path, most=200))
    assert len(few) <= 200
    assert sum(each["count"] for each in few) == sum(each["count"] for each in drawn)


def test_successful_sessions_are_bounded_too() -> None:
    """If no interval failed, the number of bars is bounded as well."""
    rows, path = long_session(agents=0)
    figure = session_waterfall([each | {"state": "ok"} for each in rows], path, most=200)
    assert 100 < len(bars(figure)) <= 200
    shared = [each["says"] for each in bars(figure) if "in total" in each["says"]]
    assert shared
    assert all("zoom" not in text and "too short to be drawn separately" in text for text in shared)


def test_merged_bars_are_as_pale_as_their_intervals_are_short() -> None:
    """A bar that represents many short intervals is paler than a single interval, so a track of them is not solid."""
    rows = [row("session", 0, 100)]
    rows += [row("tool", at / 10, at / 10 + 0.001, id=f"t{at}") for at in range(900)]
    rows += [row("tool", 95, 99, id="long")]
    figure = session_waterfall(rows)
    assert_valid(figure)
    [trace] = [each for each in figure.data if each.type == "bar" and each.customdata is not None]
    opacities = {
        data[0] > 1: opacity
        for data, opacity in zip(trace.customdata, trace.marker.opacity, strict=True)
    }
    assert opacities == {True: PALEST, False: 1.0}
    # If the intervals cover half of a bar, its opacity is about a half.
    rows = [row("session", 0, 100)]
    rows += [row("tool", at / 10, at / 10 + 0.05, id=f"t{at}") for at in range(1000)]
    [trace] = [each for each in session_waterfall(rows).data if each.customdata is not None]
    assert all(0.5 <= opacity < 0.56 for opacity in trace.marker.opacity)


def test_many_agents_share_lanes() -> None:
    """Agents that did not overlap share a lane; concurrent agents share one only if there are too many of them."""
    shared = [
        row("sub_agent", at, at + 1, lane=f"main/a{at}", label="scout")
        for at in range(MANY_LANES + 1)
    ]
    assert track_names(session_waterfall([row("request", 0, 20), *shared])) == [
        "main",
        "requests",
        f"scout x {MANY_LANES + 1}",
    ]
    beside = [row("sub_agent", at, 50, lane=f"main/a{at}", label="scout") for at in range(40)]
    result = track_names(session_waterfall([row("request", 0, 50), *beside]))
    assert result[2:] == [
        *(f"scout {n + 1}" for n in range(MOST_OWN_TRACKS - 1)),
        f"and {40 - MOST_OWN_TRACKS + 1} more agents",
    ]


def test_lanes_are_below_their_parents() -> None:
    """The main lane is first; each agent is below its parent, in the order of the agents' starts."""
    lanes = {"main/b": 5, "main": 3, "main/b/x": 7, "main/a": 6, "main/b/w": 8, "other": 1}
    rows = [row("sub_agent", at, at + 20, lane=lane, label=lane) for lane, at in lanes.items()]
    assert track_names(session_waterfall(rows)) == [
        "main",
        "main/b",
        "main/b/x",
        "main/b/w",
        "main/a",
        "other",
    ]


def test_missing_values_and_markup(rich_session: WaterfallData) -> None:
    """Without rows, the figure contains a message; rows of nulls, and texts with markup, are drawn safely."""
    assert "nothing to show" in session_waterfall([]).layout.annotations[0].text
    assert "nothing to show" in session_waterfall([row("session", 0, 1)]).layout.annotations[0].text
    assert (
        "nothing to show"
        in session_waterfall(rows_of_nulls(rich_session[0])).layout.annotations[0].text
    )
    figure = session_waterfall(hostile(rich_session[0]), rich_session[1])
    assert_valid(figure)
    assert sum(each["count"] for each in bars(figure) if each["y"] > 0) == len(rich_session[0])


TIMES = st.integers(0, 60) | st.integers(0, 10**6)
KINDS = [kind for kind, _, _ in GROUPS] + ["interaction", "sub_agent"]


@st.composite
def sessions(draw: st.DrawFn) -> Rows:
    """Generate rows of all kinds, in several lanes, of any length, some of them without an end."""
    found = []
    for number in range(draw(st.integers(1, 30))):
        started = draw(TIMES)
        ended = draw(st.none() | TIMES)
        found.append(
            row(
                draw(st.sampled_from(KINDS)), started, None if ended is None else started + ended, id=str(number),
                lane=draw(st.sampled_from(["main", "main/a", "main/a/b", "main/c"])),
                part=draw(st.sampled_from(PARTS)),
                state=draw(st.sampled_from(["ok", "failed", "stopped", "open", "orphaned"])),
            )
        )  # fmt: skip
    return found


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(sessions(), st.integers(1, 60))
def test_every_interval_is_drawn_once_without_overlaps(rows: Rows, most: int) -> None:
    """The bars of a track do not overlap, and their counts add up to the number of intervals."""
    figure = session_waterfall(rows, most=most)
    drawn = bars(figure)
    assert sum(each["count"] for each in drawn) == len(rows)
    width = figure.layout.xaxis.range[1]
    for before, after in pairwise(drawn):
        assert (
            before["y"] < after["y"] or before["at"] + before["wide"] <= after["at"] + 1e-9 * width
        )
    assert all(each["wide"] >= 0 for each in drawn)
    tracks = len({each["y"] for each in drawn})
    assert len(drawn) <= max(most, tracks)


STRETCHES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)), max_size=25).map(
    lambda each: [
        Interval("tool", "tool", "x", "main", at, at + took, took_ns=took) for at, took in each
    ]
)


@pytest.mark.slow
@given(STRETCHES, st.integers(1, 6))
def test_tracks_are_as_few_as_possible(intervals: list[Interval], most: int) -> None:
    """There are as many tracks as the maximum number of concurrent intervals, and no track has two at a time."""
    tracks = pack(intervals, most)
    beside = max(
        (sum(e.started_ns <= at.started_ns < max(e.ended_ns, e.started_ns) for e in intervals) for at in intervals),
        default=0,
    )  # fmt: skip
    assert len(tracks) <= max(beside, bool(intervals)) + 1
    assert len(tracks) <= most + 1
    assert all(a.ended_ns <= b.started_ns for track in tracks for a, b in pairwise(track))
    assert sum(each.count for track in tracks for each in track) == len(intervals)


@given(STRETCHES, st.integers(0, 100))
def test_merged_bars_add_up(intervals: list[Interval], narrow: int) -> None:
    """A merged bar has the total duration of its intervals; its start is the start of one of them, and its end the end
    of one of them.
    """
    for made in (
        [merge_overlapping(intervals)],
        [merge_narrow(each, narrow) for each in pack(intervals, 100)],
        [merge_narrow(merge_overlapping(intervals), narrow)],
    ):
        whole = [each for track in made for each in track]
        assert sum(each.took_ns for each in whole) == sum(each.took_ns for each in intervals)
        assert sum(each.count for each in whole) == len(intervals)
        assert {each.started_ns for each in whole} <= {each.started_ns for each in intervals}
        assert {each.ended_ns for each in whole} <= {each.ended_ns for each in intervals}
        assert all(0 <= each.gap_ns <= each.ended_ns - each.started_ns for each in whole)
    # The intervals of a track do not overlap, so they and the gaps between them fill the whole bar.
    for track in pack(intervals, 100):
        for each in merge_narrow(track, narrow):
            assert each.took_ns + each.gap_ns == each.ended_ns - each.started_ns


BUSY = st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 500)), max_size=12)


@given(BUSY)
def test_an_axis_is_monotonic(busy: Sequence[tuple[int, int]]) -> None:
    """Later times are never drawn before earlier ones, only idle time is cut out, and ticks show true times."""
    spans = [(T0 + at * SECOND, T0 + (at + took) * SECOND) for at, took in busy]
    axis = elapsed(T0, T0, T0 + 10**6 * SECOND, spans)
    instants = sorted({axis.started_ns, axis.ended_ns, *(each for pair in spans for each in pair)})
    places = [axis.at(each) for each in instants]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] == pytest.approx(axis.drawn_ns / SECOND)
    for cut in axis.cuts:
        assert all(high <= cut.started_ns or low >= cut.ended_ns for low, high in spans)
    for low, high in spans:
        assert axis.at(high) - axis.at(low) == pytest.approx((high - low) / SECOND, abs=1e-6)
    at, texts = ticks(axis)
    assert at == sorted(at)
    assert len(at) == len(texts) == len(set(at))


def test_the_labels_of_ticks() -> None:
    """Labels of ticks are only as precise as the distance of the ticks, and use days and hours."""

    def texts(ns: int) -> list[str]:
        return ticks(elapsed(T0, T0, T0 + ns, [(T0, T0 + ns)]))[1]

    assert texts(SECOND // 20)[:3] == ["0 s", "10 ms", "20 ms"]
    assert texts(2 * SECOND)[:3] == ["0 s", "0.5 s", "1.0 s"]
    assert texts(50 * SECOND)[:3] == ["0 s", "10 s", "20 s"]
    assert texts(4 * MINUTE)[:4] == ["0 s", "30 s", "1 min", "1 min 30 s"]
    assert ticks(replace(elapsed(T0, T0, T0 + MINUTE, []), zero_ns=T0 - 50 * HOUR))[1][:2] == [
        "2 d 2 h",
        "2 d 2 h 15 s",
    ]
    assert texts(30 * HOUR)[-2:] == ["1 d", "1 d 6 h"]
