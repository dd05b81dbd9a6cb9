"""Flame graphs: stacks add up exactly to nanoseconds and picodollars, in the formats of other tools."""

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
from tests.exporters.sample_agents import recording, run_agent, run_delegation
from tests.store.recordings import T0, a_home, attempt, end, record, session_id, start


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with three sessions, concurrent calls, a sub-agent, and a model without a price."""
    path = tmp_path_factory.mktemp("flames") / "home"
    with recording(path):
        run_agent(model="claude-sonnet-5")
        run_delegation()
    with recording(path):
        run_agent("twice", model="claude-sonnet-5")
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


def covered_ns(rows: list[tuple[int, int]]) -> int:
    """Return the total time that some periods cover; overlaps count once."""
    total, last_end = 0, 0
    for start_ns, end_ns in sorted(rows):
        total += max(0, end_ns - max(start_ns, last_end))
        last_end = max(last_end, end_ns)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("name", ["acting", "delegating"])
def test_time_adds_up_to_the_wall_time_of_each_lane(
    connection: duckdb.DuckDBPyConnection, name: str
) -> None:
    """The weights of a lane add up to its wall time, which is the time that interactions or sub-agent spans cover."""
    session = id_of(connection, name)
    totals = {
        profile.name: profile.total for profile in profiles_of(port_of(connection), [session])
    }
    [split] = interaction_times(port_of(connection), session)
    expected = {f"{name}, main": split.wall_ns}
    if name == "delegating":
        sql = "SELECT started_ns, ended_ns FROM spans WHERE session_id = ? AND name = 'sub_agent'"
        spans = connection.execute(sql, [session]).fetchall()
        expected["delegating, main/toolu_1"] = covered_ns(spans)
    assert totals == expected
    assert all(totals.values())


@pytest.mark.slow
def test_cost_adds_up_to_the_cost_of_the_session(connection: duckdb.DuckDBPyConnection) -> None:
    """The stacks add up to the session's cost, exact to the picodollar; the name states the certainty.

    Costs are below the frames of their call.
    """
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


def test_calls_without_a_price_are_counted_in_the_name(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """Calls without a price have no weight and are counted; the total is a lower bound."""
    [profile] = profiles_of(port_of(connection), [id_of(connection, "delegating")], "cost")
    assert profile.total == 0
    assert profile.name.endswith("lower_bound, 3 calls without a price")


def test_concurrent_operations_count_once() -> None:
    """If two calls are concurrent, the time belongs to the call that ended last."""
    rows = [
        ("i", None, "interaction", 0, 100),
        ("span", "i", "interaction", 0, 100),
        ("t1", "span", "one", 10, 50),
        ("t2", "span", "two", 20, 80),
        ("x2", "t2", "execution", 30, 70),
        ("open", "span", "open", 90, None),
    ]
    assert stacks_of(rows) == [
        (("interaction",), 10),
        (("interaction", "one"), 10),
        (("interaction", "two"), 10),
        (("interaction", "two", "execution"), 40),
        (("interaction", "two"), 10),
        (("interaction",), 10),
        (("interaction", "open"), 10),
    ]


def stacks_of(rows: list[tuple[Any, ...]]) -> list[tuple[Any, int]]:
    """Return the stacks of some intervals."""
    names = ("id", "parent_id", "name", "started_ns", "ended_ns")
    intervals = [
        {**dict(zip(names, row, strict=True)), "interaction_id": "i", "lane": "main", "label": None}
        for row in rows
    ]
    return list(flame_graphs._lane_stacks(list(flame_graphs._nodes(intervals).values())))


@pytest.mark.slow
def test_the_depth_of_stacks_is_limited() -> None:
    """Chains of 20,000 parents and cyclic parents are drawn, and no stack is deeper than the limit."""
    rows: list[tuple[Any, ...]] = [("i", None, "interaction", 0, 1_000_000)]
    rows += [(f"s{n}", f"s{n - 1}" if n else "i", "s", n, 1_000_000 - n) for n in range(20_000)]
    stacks = stacks_of(rows)
    assert sum(weight for _, weight in stacks) == 1_000_000
    assert max(len(stack) for stack, _ in stacks) == DEPTH_MAX + 1
    circle = [rows[0], ("c1", "c2", "c", 0, 9), ("c2", "c1", "c", 0, 9), ("x", "x", "x", 0, 9)]
    assert stacks_of(circle) == [(("interaction", "c"), 9), (("interaction",), 999_991)]


def test_the_speedscope_file_follows_the_schema(home: Home, tmp_path: Path) -> None:
    """The file follows speedscope's schema: it has frames, and profiles whose samples refer to frames by index."""
    path = tmp_path / "x.speedscope.json"
    result = run(home, "export", "speedscope", "acting", "delegating", "-o", path)
    assert result.exit_code == 0, result.exception
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


@pytest.mark.slow
@pytest.mark.parametrize("of", ["time", "cost"])
def test_folded_stacks_add_up_to_the_totals(home: Home, tmp_path: Path, of: str) -> None:
    """Each line consists of frames and an integer; the integers add up to the totals of all selected sessions."""
    path = tmp_path / "x.folded"
    result = run(home, "export", "folded", "acting", "twice", "--of", of, "-o", path)
    assert result.exit_code == 0, result.exception
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
    shown = [line.partition("  ")[0] for line in result.output.splitlines()[:-1]]
    if of == "cost":
        assert [Decimal(usd) for usd in shown] == [
            Decimal(each).scaleb(-12) for each in sums.values()
        ]
    else:
        assert shown == [f"{each / 1e9:,.3f} s" for each in sums.values()]


@pytest.mark.slow
def test_an_existing_file_is_not_overwritten(home: Home, tmp_path: Path) -> None:
    """An existing file is replaced only with `--force`, and an unknown session leaves no file."""
    path = tmp_path / "x.folded"
    path.write_text("mine")
    assert "the file exists" in str(run(home, "export", "folded", "acting", "-o", path).exception)
    assert path.read_text() == "mine"
    assert run(home, "export", "folded", "acting", "-o", path, "--force").exit_code == 0
    assert "no session" in str(run(home, "export", "folded", "nobody", "-o", path).exception)
    assert [each.name for each in tmp_path.iterdir()] == ["x.folded"]


def test_calls_outside_of_interactions_are_in_the_cost(tmp_path: Path) -> None:
    """All billed calls are included, even if they belong to no interaction."""
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1, model="claude-sonnet-5"), end(1, T0 + 10**10)])
    with connect(home) as connection:
        [profile] = profiles_of(port_of(connection), [session_id(1)], "cost")
        row = connection.execute("SELECT sum(cost_usd) FROM costs").fetchone()
    assert row
    assert profile.total == row[0] * 10**12 > 0
