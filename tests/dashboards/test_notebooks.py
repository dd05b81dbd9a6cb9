"""Figures and sessions for notebooks: each function reads a home and returns what a notebook shows."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plotly.graph_objects as go
import pytest

import agentobs
import dashboards
from agentobs.errors import HomeError, UsageError
from agentobs.store.duckdb.query_rows import SHOWN, QueryRows
from tests.shared_stores import shared_store
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    consent,
    end,
    permission,
    record,
    session_id,
    start,
    tool,
)

CALL = [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}]
OF_SESSION = ("waterfall", "session_turns", "context_growth", "time_split")
OF_RANGE = (
    "cost_by_model", "cost_by_agent", "cost_by_day", "cost_by_name", "cache_efficiency", "cache_waste", "tool_latency",
    "tool_errors", "blocked_on_user", "first_token", "failure_signatures",
)  # fmt: skip
PRIVATE = "Refund of Ms. Smith"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a failed session that has a call and an approval, and a completed one with a private name."""
    home = a_home(tmp_path_factory.mktemp("notebooks"))
    record(home, [
        start(1, "refund-loop"), attempt(1, 1, content=CALL, cache_creation_input_tokens=5_000),
        consent(1, "toolu_1", at=T0 + 2 * SECOND), permission(1, "toolu_1", at=T0 + 3 * SECOND),
        tool(1, "toolu_1", "weather", at=T0 + 4 * SECOND), attempt(1, 2, cache_read_input_tokens=5_000),
        end(1, failed=True),
    ])  # fmt: skip
    record(
        home,
        [
            start(2, PRIVATE, at=T0 + 86_400 * SECOND),
            attempt(2, 1, at=T0 + 86_401 * SECOND),
            end(2, at=T0 + 86_410 * SECOND),
        ],
    )
    with shared_store(home.path):
        yield home.path


def figure(name: str) -> Callable[..., go.Figure]:
    found: Callable[..., go.Figure] = getattr(dashboards, name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "session"),
    [
        *((name, "refund-loop") for name in OF_SESSION),
        ("time_split", session_id(1)),
        ("time_split", session_id(1)[:8]),
        ("time_split", SimpleNamespace(session_id=session_id(1))),
    ],
)
def test_a_figure_of_a_session(home: Path, name: str, session: object) -> None:
    """A session is specified by its name, its ID, a prefix of the ID, or an object that has an ID."""
    shown = figure(name)(session, home=home)
    assert isinstance(shown, go.Figure)
    assert shown.data


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_RANGE)
def test_a_figure_of_a_home(home: Path, name: str) -> None:
    """Figures of all sessions can be restricted to a range; outside of all sessions, they state that they are empty."""
    shown = figure(name)(home=home)
    assert isinstance(shown, go.Figure)
    nothing = figure(name)(home=home, until=datetime(2020, 1, 1, tzinfo=UTC))
    assert len(nothing.data) <= len(shown.data)
    assert "Bern" not in shown.to_json()


def test_the_range_is_exact(home: Path) -> None:
    """`since` includes and `until` excludes; a time without a zone is local."""
    first, second = (datetime.fromtimestamp(T0 // SECOND + at, UTC) for at in (1, 86_401))

    def models(**bounds: datetime) -> Any:
        shown = dashboards.cost_by_name(home=home, names=True, **bounds).to_json()
        return [name in shown for name in ("refund-loop", "Ms. Smith")]

    assert models() == [True, True]
    assert models(since=second) == [False, True]
    assert models(until=second) == [True, False]
    assert models(since=first.replace(tzinfo=None), until=second.replace(tzinfo=None)) == [
        True,
        False,
    ]


@pytest.mark.parametrize("at", [date(2026, 11, 1), "2026-11-01", 0])
def test_a_bound_that_is_not_a_datetime_is_one_error(home: Path, at: Any) -> None:
    """The error names what was passed, and what to pass."""
    with pytest.raises(UsageError, match=rf"expected a datetime, got a {type(at).__name__}"):
        dashboards.cost_by_model(since=at, home=home)


def test_every_figure_is_public() -> None:
    """Each figure of `dashboards.figures` can be called with a session or a home, or with the JSON that it draws."""
    functions = {
        name
        for name in dashboards.figures.__all__
        if inspect.isfunction(getattr(dashboards.figures, name))
    }
    assert functions - {"session_waterfall"} <= set(dashboards.__all__)
    assert {*OF_SESSION, *OF_RANGE, "divergence", "two_sessions"} <= set(dashboards.__all__)
    assert isinstance(dashboards.divergence({}), go.Figure)


@pytest.mark.slow
def test_names_are_digests_unless_they_are_requested(home: Path) -> None:
    """A notebook is often shared, so a name that a person wrote is shown only with `names=True`."""
    assert "Smith" not in dashboards.cost_by_name(home=home).to_json()
    assert "Smith" in dashboards.cost_by_name(home=home, names=True).to_json()
    html = dashboards.session(session_id(2), home=home)._repr_html_()
    assert "Smith" not in html
    assert "Smith" in dashboards.session(PRIVATE, home=home, names=True)._repr_html_()


def test_a_session_shows_its_failure_first(home: Path) -> None:
    """The HTML of a session begins with its state and its failure, and contains its exact cost, but no content."""
    found = dashboards.session("refund-loop", home=home)
    html = found._repr_html_()
    assert html.index("failed") < html.index("ValueError") < html.index(session_id(1))
    assert found.facts["cost_usd"] == Decimal(str(found.facts["cost_usd"]))
    assert f"${found.facts['cost_usd']:.4f}" in html
    for content in ("line 0", "Bern", "sunny", "done"):
        assert content not in html
    assert dashboards.waterfall(found, home=home).data


@pytest.mark.parametrize(
    ("cause", "outcome", "label"),
    [
        ("exception", "failed", "failed step"),
        ("exception", "denied", "denied step"),
        ("result", "denied", "last denied step"),
    ],
)
def test_a_denied_step_is_not_called_failed(
    home: Path, cause: str, outcome: str, label: str
) -> None:
    """The step of a failure is called denied if it was, and the last one if a limit ended the session."""
    found = dashboards.session("refund-loop", home=home)
    step = {"step_kind": "tool_call", "step_name": "send", "step_lane": "main", "step_turn": 2}
    failure = {"summary": "stopped", "cause": cause, "step_outcome": outcome, **step}
    assert f">{label}<" in replace(found, failure=failure)._repr_html_()


@pytest.mark.parametrize("name", [*OF_SESSION, "session"])
def test_an_unknown_session_is_one_error(home: Path, name: str) -> None:
    """A session that does not exist is named in the error."""
    with pytest.raises(UsageError, match="nobody: no session with that ID or name"):
        figure(name)("nobody", home=home)


def test_a_missing_home_is_one_error(tmp_path: Path) -> None:
    """A home without recordings is named in the error, and nothing is created."""
    with pytest.raises(HomeError, match="no recordings"):
        dashboards.cost_by_day(home=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_rows_of_a_query(home: Path) -> None:
    """The result of a query is a list of tuples, with the names of the columns; its DataFrame has exact money."""
    rows = agentobs.query(
        "SELECT session_id, cost_usd FROM sessions ORDER BY session_id", home=home
    )
    assert isinstance(rows, list)
    assert [row[0] for row in rows] == [session_id(1), session_id(2)]
    frame = rows.df()
    assert list(frame.columns) == rows.columns == ["session_id", "cost_usd"]
    assert [tuple(row) for row in frame.itertuples(index=False)] == list(rows)
    assert isinstance(frame.cost_usd[0], Decimal)


def test_rows_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pandas, the error names it and the command that installs it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        UsageError, match=r"needs a package that is not installed: pandas.*notebooks\]"
    ):
        QueryRows(["a"], [(1,)]).df()


def test_rows_as_html() -> None:
    """A notebook shows the first rows as text, and states how many there are."""
    html = QueryRows(["<b>"], [("<script>",)] * (SHOWN + 2))._repr_html_()
    assert html.count("<tr>") == 1 + SHOWN
    assert "<script>" not in html
    assert "<b>" not in html
    assert "and 2 more rows" in html


def test_a_running_session_as_html(tmp_path: Path) -> None:
    """The HTML of a session object shows the session's name as text, its state and its cost."""
    try:
        with agentobs.session("<i>agent</i>", home=str(tmp_path / "home")) as running:
            html = running._repr_html_()
            assert "&lt;i&gt;agent&lt;/i&gt;" in html
            assert "running" in html
            assert "$0.0000 for 0 calls" in html
        assert "ended" in running._repr_html_()
        running.fail("because")
    finally:
        agentobs.stop_recorder()


_NOTEBOOK = """
import sys, types
module = types.ModuleType("IPython")
module.get_ipython = lambda: types.SimpleNamespace(config={"IPKernelApp": 1})
sys.modules["IPython"] = module
import agentobs
with agentobs.connect(sys.argv[1]) as connection:
    print(connection.execute("SELECT count(*) FROM sessions").fetchone()[0])
"""
"""A program that DuckDB takes for a notebook without ipywidgets."""


@pytest.mark.slow
def test_a_notebook_without_widgets_can_read_the_store(home: Path) -> None:
    """DuckDB refuses to change the progress bar in a notebook without ipywidgets; the store is opened all the same."""
    ran = subprocess.run(
        [sys.executable, "-c", _NOTEBOOK, str(home)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "2\n"), ran.stderr
