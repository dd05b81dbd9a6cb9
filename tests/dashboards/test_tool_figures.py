"""Figures of tools show latency percentiles at their values, and error rates with confidence intervals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.store.duckdb.connection import connect
from dashboards.figures.tool_statistics import MOST_TOOLS, tool_errors, tool_latency, wilson
from tests.dashboards.figure_checks import (
    Rows,
    assert_valid,
    figure_text,
    hostile,
    rows_of,
    rows_of_nulls,
)
from tests.store.recordings import SECOND, T0, a_home, attempt, end, record, session_id, start, tool

pytestmark = pytest.mark.xdist_group("dashboards_tools")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The rows about ten calls of 1 to 10 s, one call of a fast tool, and one call of unknown duration."""
    home = a_home(tmp_path_factory.mktemp("tools"))
    names = [*["slow"] * 10, "quick", "unseen"]
    calls = [
        {"type": "tool_use", "id": f"t{n}", "name": name, "input": {}}
        for n, name in enumerate(names)
    ]
    took = [*(n * SECOND for n in range(1, 11)), 400]
    ran = [tool(1, f"t{n}", names[n], at=T0 + 2 * SECOND, took=each) for n, each in enumerate(took)]
    record(home, [start(1), attempt(1, 1, content=calls), *ran, end(1)])
    with connect(home) as connection:
        assert rows_of(connection, "tool_latency", since_ns=T0 + 60 * SECOND) == []
        assert rows_of(connection, "tool_latency", until_ns=T0) == []
        return rows_of(connection, "tool_latency", session_id=session_id(1))


def test_percentiles_are_at_their_values(rows: Rows) -> None:
    """The slowest tool is on top, a logarithmic axis has readable labels, and untimed tools have a note."""
    figure = tool_latency(rows)
    assert_valid(figure)
    line, *percentiles = figure.data
    assert [(list(each.x), list(each.y)) for each in percentiles] == [
        ([5_000, 0.001], [0, 1]),
        ([9_000, 0.001], [0, 1]),
        ([10_000, 0.001], [0, 1]),
    ]
    assert list(line.x)[:3] == [5_000, 10_000, None]
    assert figure.layout.yaxis.ticktext == ("slow (10 calls)", "quick (1 call)", "unseen (1 call)")
    assert figure.layout.xaxis.type == "log"
    assert "1 s" in figure.layout.xaxis.ticktext
    assert [(note.text, note.y) for note in figure.layout.annotations] == [
        ("no execution time recorded", 2)
    ]
    assert "with fewer than 100, p99 is the maximum" in figure.data[3].hovertext[0]
    assert "less than 1 µs" in figure_text(figure)


def test_error_rates_have_counts_and_intervals(rows: Rows) -> None:
    """The interval is wide for few calls, the counts are at its end, and the most certain failures are on top."""
    calls = [("a", 2, 2), ("b", 1_000, 500), ("c", 5, 0), ("d", 0, 0)]
    made = [{**rows[0], "name": name, "calls": n, "errors": bad} for name, n, bad in calls]
    figure = tool_errors(made)
    assert_valid(figure)
    [drawn] = figure.data
    assert figure.layout.yaxis.ticktext == ("b", "a", "c")
    assert list(drawn.x) == [50, 100, 0]
    assert [note.text for note in figure.layout.annotations] == ["500 of 1,000", "2 of 2", "0 of 5"]
    # from statsmodels' proportion_confint(method="wilson"): (0.469, 0.531), (0.342, 1), (0, 0.434)
    low = [x - less for x, less in zip(drawn.x, drawn.error_x.arrayminus, strict=True)]
    high = [x + more for x, more in zip(drawn.x, drawn.error_x.array, strict=True)]
    assert low == [pytest.approx(46.9, abs=0.05), pytest.approx(34.2, abs=0.05), 0]
    assert high == [pytest.approx(53.1, abs=0.05), 100, pytest.approx(43.4, abs=0.05)]


@settings(deadline=None)
@given(st.integers(1, 10**9), st.data())
def test_intervals_contain_the_rate(calls: int, data: st.DataObject) -> None:
    """For any counts, the interval contains the observed rate and is between 0 and 100%."""
    failed = data.draw(st.integers(0, calls))
    low, high = wilson(failed, calls)
    assert 0 <= low <= failed / calls <= high <= 1
    assert low < high


@pytest.mark.slow
@pytest.mark.parametrize("draw", [tool_latency, tool_errors])
def test_missing_values_and_markup(draw: object, rows: Rows) -> None:
    """Rows of nulls are drawn without an error, names are shown as text, and tools above the maximum are counted."""
    assert callable(draw)
    many = [{**rows[0], "name": f"t{n}"} for n in range(10_000)]
    for odd in (
        [],
        rows_of_nulls(rows),
        hostile(rows),
        [*rows_of_nulls(rows), *hostile(rows)] * 2_000,
        many,
    ):
        assert_valid(draw(odd))
    figure = draw(many)
    assert figure.layout.yaxis.ticktext[-1] == f"and {10_000 - MOST_TOOLS:,} more tools"
