"""Flame graphs: stacks that add up, to the nanosecond and to the picodollar, in forms that others read."""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result

from agentobs.cli import cli
from agentobs.recording.journal.home import Home
from agentobs.store.analysis.wall_time import interaction_times
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.store import DuckStore
from exporters import flame_graphs
from exporters.flame_graphs import DEPTH_MAX, SCHEMA, profiles_of
from tests.exporters.acting import act, delegate, recording
from tests.store.recordings import T0, a_home, attempt, end, record, session_id, start


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Three sessions: calls side by side, an agent that starts another one, and a model that nobody knows."""
    path = tmp_path_factory.mktemp("flames") / "home"
    with recording(path):
        act(model="claude-sonnet-5")
        delegate()
    with recording(path):
        act("twice", model="claude-sonnet-5")
    return Home(path)


@pytest.fixture
def connection(home: Home) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(home) as connection:
        yield connection


def run(home: Home, *arguments: object) -> Result:
    return CliRunner().invoke(cli, ["--home", str(home.path), *map(str, arguments)])


def port_of(connection: duckdb.DuckDBPyConnection) -> DuckStore:
    """Return the store of a connection; its home is not read."""
    return DuckStore(connection, Home(Path()))


def id_of(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    row = connection.execute("SELECT session_id FROM sessions WHERE name = ?", [name]).fetchone()
    assert row
    return str(row[0])


def covered(rows: list[tuple[int, int]]) -> int:
    """Return how much time some stretches cover, each instant once."""
    whole, until = 0, 0
    for start_ns, end_ns in sorted(rows):
        whole += max(0, end_ns - max(start_ns, until))
        until = max(until, end_ns)
    return whole


@pytest.mark.parametrize("name", ["acting", "delegating"])
def test_time_adds_up_to_that_of_the_lanes(
    connection: duckdb.DuckDBPyConnection, name: str
) -> None:
    """The self-times of a lane are its wall time: what its interactions and its agent's spans cover, once."""
    session = id_of(connection, name)
    told = {profile.name: profile.total for profile in profiles_of(port_of(connection), [session])}
    [split] = interaction_times(port_of(connection), session)
    expected = {f"{name}, main": split.wall_ns}
    if name == "delegating":
        asked = "SELECT started_ns, ended_ns FROM spans WHERE session_id = ? AND name = 'sub_agent'"
        spans = connection.execute(asked, [session]).fetchall()
        expected["delegating, main/toolu_1"] = covered(spans)
    assert told == expected
    assert all(told.values())


def test_money_adds_up_to_that_of_the_session(connection: duckdb.DuckDBPyConnection) -> None:
    """To the picodollar, with how sure it is; under the frames of what asked for it."""
    session = id_of(connection, "acting")
    [profile] = profiles_of(port_of(connection), [session], "cost")
    row = connection.execute(
        "SELECT cost_usd FROM sessions WHERE session_id = ?", [session]
    ).fetchone()
    assert row
    assert profile.total == row[0] * 10**12 > 0
    assert profile.name == "acting, cost in 1e-12 USD, exact"
    assert {stack[0] for stack, _ in profile.stacks} == {"interaction"}
    assert {stack[-2:] for stack, _ in profile.stacks} == {
        ("message claude-sonnet-5", each) for each in ("input", "output", "cache_read")
    }  # fmt: skip


def test_a_model_without_a_price_is_said(connection: duckdb.DuckDBPyConnection) -> None:
    """Its calls have no weight, are counted, and the rest is a lower bound."""
    [profile] = profiles_of(port_of(connection), [id_of(connection, "delegating")], "cost")
    assert profile.total == 0
    assert profile.name.endswith("lower_bound, 3 calls without a price")


def test_what_ran_side_by_side_counts_once() -> None:
    """Of two calls of one answer the one that ended last was waited for; what it outlived has no time."""
    rows = [
        ("i", None, "interaction", 0, 100),
        ("span", "i", "interaction", 0, 100),
        ("t1", "span", "one", 10, 50),
        ("t2", "span", "two", 20, 80),
        ("x2", "t2", "execution", 30, 70),
        ("open", "span", "open", 90, None),
    ]
    assert swept(rows) == [
        (("interaction",), 10),
        (("interaction", "one"), 10),
        (("interaction", "two"), 10),
        (("interaction", "two", "execution"), 40),
        (("interaction", "two"), 10),
        (("interaction",), 10),
        (("interaction", "open"), 10),
    ]


def swept(rows: list[tuple[Any, ...]]) -> list[tuple[Any, int]]:
    """Return the stacks of some intervals, through the public door: a query that says just these."""
    names = ("id", "parent_id", "name", "started_ns", "ended_ns")
    told = [
        {**dict(zip(names, row, strict=True)), "interaction_id": "i", "lane": "main", "label": None}
        for row in rows
    ]
    return list(flame_graphs._lane_stacks(list(flame_graphs._nodes(told).values())))


def test_38_a_deep_trace_has_an_end() -> None:
    """Parents 20,000 deep, and parents in a circle, are drawn; no stack is deeper than the bound."""
    rows: list[tuple[Any, ...]] = [("i", None, "interaction", 0, 1_000_000)]
    rows += [(f"s{n}", f"s{n - 1}" if n else "i", "s", n, 1_000_000 - n) for n in range(20_000)]
    stacks = swept(rows)
    assert sum(weight for _, weight in stacks) == 1_000_000
    assert max(len(stack) for stack, _ in stacks) == DEPTH_MAX + 1
    circle = [rows[0], ("c1", "c2", "c", 0, 9), ("c2", "c1", "c", 0, 9), ("x", "x", "x", 0, 9)]
    assert swept(circle) == [(("interaction", "c"), 9), (("interaction",), 999_991)]


def test_speedscope_reads_it(home: Home, tmp_path: Path) -> None:
    """The file is what the schema of speedscope says: frames, and profiles whose samples name them by number."""
    path = tmp_path / "x.speedscope.json"
    told = run(home, "export", "speedscope", "acting", "delegating", "-o", path)
    assert told.exit_code == 0, told.exception
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    value = json.loads(path.read_text())
    assert value["$schema"] == SCHEMA
    assert value["activeProfileIndex"] == 0
    frames = value["shared"]["frames"]
    assert all(set(frame) == {"name"} and frame["name"] for frame in frames)
    assert len(value["profiles"]) == 3
    for profile in value["profiles"]:
        assert (profile["type"], profile["unit"], profile["startValue"]) == (
            "sampled",
            "nanoseconds",
            0,
        )
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
        assert all(0 <= number < len(frames) for stack in profile["samples"] for number in stack)
    names = {profile["name"] for profile in value["profiles"]}
    assert names == {"acting, main", "delegating, main", "delegating, main/toolu_1"}


@pytest.mark.parametrize("of", ["time", "cost"])
def test_folded_stacks_add_up_alike(home: Home, tmp_path: Path, of: str) -> None:
    """Each line consists of frames and an integer; the integers add up to the totals of all selected sessions."""
    path = tmp_path / "x.folded"
    told = run(home, "export", "folded", "acting", "twice", "--of", of, "-o", path)
    assert told.exit_code == 0, told.exception
    sums: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        stack, _, weight = line.rpartition(" ")
        assert int(weight) > 0
        sums[stack.split(";")[0].partition(",")[0]] += int(weight)
    with connect(home) as connection:
        expected: Counter[str] = Counter()
        for name in ("acting", "twice"):
            for profile in profiles_of(port_of(connection), [id_of(connection, name)], of):  # type: ignore[arg-type]
                expected[name] += profile.total
    assert sums == expected
    shown = [line.partition("  ")[0] for line in told.output.splitlines()[:-1]]
    if of == "cost":
        assert [Decimal(usd) for usd in shown] == [
            Decimal(each).scaleb(-12) for each in sums.values()
        ]
    else:
        assert shown == [f"{each / 1e9:,.3f} s" for each in sums.values()]


def test_what_is_there_is_not_overwritten(home: Home, tmp_path: Path) -> None:
    """An existing file stays but with --force; a session that is not there is said; nothing is left behind."""
    path = tmp_path / "x.folded"
    path.write_text("mine")
    assert "the file exists" in str(run(home, "export", "folded", "acting", "-o", path).exception)
    assert path.read_text() == "mine"
    assert run(home, "export", "folded", "acting", "-o", path, "--force").exit_code == 0
    assert "no session" in str(run(home, "export", "folded", "nobody", "-o", path).exception)
    assert [each.name for each in tmp_path.iterdir()] == ["x.folded"]


def test_calls_outside_of_interactions_are_in_the_money(tmp_path: Path) -> None:
    """Whatever was billed is in it, whether anything says what it was a part of or not."""
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1, model="claude-sonnet-5"), end(1, T0 + 10**10)])
    with connect(home) as connection:
        [profile] = profiles_of(port_of(connection), [session_id(1)], "cost")
        row = connection.execute("SELECT sum(cost_usd) FROM costs").fetchone()
    assert row
    assert profile.total == row[0] * 10**12 > 0
