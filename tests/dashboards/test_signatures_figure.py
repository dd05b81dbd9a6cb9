"""The figure of failure signatures shows the number of sessions per day in which each signature was found."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from agentobs.records.facts import Event
from agentobs.records.labels import Label
from agentobs.store.duckdb.connection import connect
from dashboards.figures.signatures import MOST_SIGNATURES, failure_signatures
from tests.dashboards.figure_checks import (
    Rows,
    assert_valid,
    figure_text,
    hostile,
    rows_of,
    rows_of_nulls,
)
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    end,
    permission,
    record,
    session_id,
    start,
    write_facts,
)

pytestmark = pytest.mark.xdist_group("dashboards_signatures")
DAY = 86_400 * SECOND


def canceled_hook(number: int, at: int) -> Event:
    """Return a hook that was canceled while the action continued."""
    hook, label = Label("hook"), Label("cancelled")
    return Event(session_id(number), None, Label("main"), None, at, hook, label, {})


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, Rows, Rows]:
    """Signatures and sessions by day, for three sessions on the first day and one session three days later.

    The third item contains only the signatures since the later day.
    """
    home = a_home(tmp_path_factory.mktemp("signatures"))
    later = T0 + 3 * DAY
    record(
        home,
        [start(1), end(1), start(2), end(2, failed=True), start(3), end(3), start(4, at=later)],
    )
    facts = [
        permission(1, "a", at=T0 + 30 * SECOND, approval_wait_ns=20 * SECOND),
        permission(1, "b", at=T0 + 60 * SECOND, approval_wait_ns=20 * SECOND),
        permission(2, "a", at=T0 + 30 * SECOND, approval_wait_ns=20 * SECOND),
        permission(4, "a", at=later + 30 * SECOND, approval_wait_ns=20 * SECOND),
        canceled_hook(2, T0 + SECOND),
    ]
    write_facts(home, facts)
    with connect(home) as connection:
        [bounds] = rows_of(connection, "session_range", since_ns=later)
        assert rows_of(connection, "signatures_by_day", until_ns=T0) == []
        return (
            rows_of(connection, "signatures_by_day"),
            rows_of(connection, "sessions_by_day"),
            rows_of(connection, "signatures_by_day", since_ns=later, **bounds),
        )


@pytest.mark.slow
def test_a_session_counts_once_per_day_and_signature(rows: tuple[Rows, Rows, Rows]) -> None:
    """A session counts once per signature, even if the signature was found repeatedly.

    A session with two signatures counts for both, and ranges of time are respected.
    """
    fired, days, since = rows
    first, last = date(2026, 9, 21), date(2026, 9, 24)
    assert [tuple(row.values()) for row in fired] == [
        (first, "long_waits", 2, 3),
        (first, "silent_hook_cancels", 1, 1),
        (last, "long_waits", 1, 1),
    ]
    assert since == fired[-1:]
    assert [(row["day"], row["sessions"], row["completed"], row["failed"]) for row in days] == [
        (first, 3, 2, 1),
        (last, 1, 0, 1),
    ]


def test_bars_have_the_height_of_their_counts(rows: tuple[Rows, Rows, Rows]) -> None:
    """Each row has its own scale and baseline; days without sessions are empty."""
    figure = failure_signatures(*rows[:2])
    assert_valid(figure)
    failed, others, waits, hooks = figure.data
    assert (list(failed.customdata), list(others.customdata)) == ([1, 1], [2])
    assert [a / b for a, b in zip(failed.y, (1, 1), strict=True)] == [others.y[0] / 2] * 2
    assert list(others.base) == [pytest.approx(failed.base[0] + failed.y[0])]
    assert list(waits.customdata) == [2, 1]
    assert waits.y[0] == pytest.approx(2 * waits.y[1])
    assert list(waits.x) == ["2026-09-21", "2026-09-24"]
    assert list(hooks.customdata) == [1]
    assert hooks.y[0] == waits.y[0] < 1
    assert (waits.base[0], hooks.base[0]) == (-3, -4)
    assert figure.layout.yaxis.ticktext == ("all sessions", "long waits", "silent hook cancels")
    notes = [note.text for note in figure.layout.annotations]
    assert "peak: 3 per day<br>2 failed<br>of 4" in notes
    assert "peak: 2 per day<br>3 sessions" in notes


def test_no_signatures_found(rows: tuple[Rows, Rows, Rows]) -> None:
    """Without any signature, the figure has a message; without sessions, it is empty."""
    figure = failure_signatures([], rows[1])
    assert_valid(figure)
    assert "no failure signatures found" in figure_text(figure)
    assert not failure_signatures([]).data
    assert_valid(failure_signatures([]))
    assert_valid(failure_signatures(rows[0]))


def test_many_signatures_share_the_last_row(rows: tuple[Rows, Rows, Rows]) -> None:
    """The last row represents all further signatures, and no session is missing."""
    row = rows[0][0]
    many = [
        {**row, "signature": f"s{n}", "day": row["day"] + timedelta(days=m)}
        for n in range(50)
        for m in range(200)
    ]
    days = [{**rows[1][0], "day": row["day"] + timedelta(days=m)} for m in range(200)]
    figure = failure_signatures(many, days)
    assert_valid(figure)
    assert len(figure.layout.yaxis.ticktext) == MOST_SIGNATURES + 1
    assert figure.layout.yaxis.ticktext[-1] == "39 more"
    drawn = sum(sum(each.customdata) for each in figure.data)
    assert drawn == sum(each["sessions"] for each in (*many, *days))


def test_missing_values_and_markup(rows: tuple[Rows, Rows, Rows]) -> None:
    """Rows of nulls are drawn without an error, and names with markup are shown as text."""
    fired, days, _ = rows
    assert_valid(failure_signatures(rows_of_nulls(fired), rows_of_nulls(days)))
    assert_valid(failure_signatures([*rows_of_nulls(fired), *fired], [*rows_of_nulls(days), *days]))
    assert_valid(failure_signatures(hostile(fired) * 1_000, hostile(days) * 1_000))
