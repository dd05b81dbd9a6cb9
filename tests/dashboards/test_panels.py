"""Panels are shown if they have data, ranges neither overlap nor have gaps, and sums show their certainty."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from agentobs.records import display
from agentobs.sink import Record
from agentobs.store.analysis.wall_time import PARTS, Part, Split, TimeSlice
from agentobs.store.backend import Store, open_store
from dashboards.figures import tool_errors
from dashboards.figures.days import Calendar
from dashboards.figures.durations import BUCKETS
from dashboards.figures.phrases import money
from dashboards.panels import panels
from dashboards.panels.panels import SHOWN, fleet_panels, panel, rows_of, session_panels
from dashboards.panels.templates import _environment, cell, cost
from dashboards.report.html_report import range_report, session_report
from dashboards.style import layout
from tests.marks import mark_all_but_first
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    record,
    session_id,
    start,
    tool,
    usage_row,
    write_facts,
)

pytestmark = pytest.mark.xdist_group("dashboards_panels")
DAY = 86_400 * SECOND
COUNTED = {
    "cost_by_model": "calls",
    "cost_by_day": "calls",
    "cost_by_name": "calls",
    "cost_by_agent": "calls",
    "cache_by_name": "sessions",
    "cache_waste": "calls",
    "cache_misses": "missed_tokens",
    "tool_latency": "calls",
    "first_token_by_model": "calls",
    "waits_for_people": "answered",
    "sessions_by_day": "sessions",
    "signatures_by_day": "sessions",
}
"""The queries that have a time range, each with a column that adds up over adjacent ranges."""
EMPTY_QUERIES = {
    "cache_waste",
    "cache_misses",
    "first_token_by_model",
    "waits_for_people",
    "signatures_by_day",
}
"""Queries that return no rows for this store."""


def weather_session(number: int, name: str, at: int) -> list[Record]:
    """A session of three turns; the first turn calls a tool."""
    use = {"type": "tool_use", "id": f"toolu_{number}", "name": "look", "input": {}}
    return [
        start(number, name, at),
        attempt(number, 1, at=at + SECOND, content=[use]),
        tool(number, f"toolu_{number}", "look", at=at + 2 * SECOND),
        attempt(number, 2, at=at + 4 * SECOND),
        attempt(number, 3, at=at + 5 * SECOND),
        end(number, at + 6 * SECOND),
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with two sessions of the same name on different days, and a third one with another name."""
    home = a_home(tmp_path_factory.mktemp("panels"))
    record(home, weather_session(1, "loop", T0))
    record(home, weather_session(2, "loop", T0 + DAY))
    record(home, weather_session(3, "other", T0 + DAY))
    with open_store(home) as opened:
        yield opened


@pytest.mark.parametrize("name", mark_all_but_first(COUNTED, pytest.mark.slow, kept=5))
def test_adjacent_ranges_add_up(store: Store, name: str) -> None:
    """The data before and since an instant add up to all data, and each part is smaller than the total."""

    def counted(**given: int) -> int:
        return sum(row[COUNTED[name]] for row in rows_of(store, name, **given))

    middle = T0 + DAY
    before, since = counted(until_ns=middle), counted(since_ns=middle)
    assert before + since == counted()
    if name not in EMPTY_QUERIES:
        assert 0 < before < since


def test_sessions_with_the_same_name_are_one_row(store: Store) -> None:
    """Sessions with the same name share a row with the sums of their costs and savings."""
    names = {row["name"]: row for row in rows_of(store, "cost_by_name")}
    each = rows_of(store, "cost_by_session")
    assert {name: row["sessions"] for name, row in names.items()} == {"loop": 2, "other": 1}
    for name, row in names.items():
        own = [other for other in each if other["name"] == name]
        assert row["cost_usd"] == sum(other["cost_usd"] for other in own)
    caches = rows_of(store, "cache_by_name")
    saved = [row["saved_usd"] for row in rows_of(store, "cache_by_session")]
    assert sum(row["saved_usd"] for row in caches) == sum(saved)


@pytest.mark.slow
def test_the_panels_of_a_session(store: Store) -> None:
    """The panels of a session are in a fixed order; panels without data are omitted."""
    found = {each.name: each for each in session_panels(store, session_id(1))}
    assert list(found) == ["waterfall", "turns", "context", "time", "tools", "tool-errors"]
    assert found["turns"].summary.startswith("3 turns used ")
    assert found["tool-errors"].summary.endswith("calls failed (0.0%).")
    for each in found.values():
        assert set(each.columns) <= set(each.rows[0])
        assert each.title
        assert each.summary
        assert each.figure.data
    assert session_panels(store, "nobody") == []


@pytest.mark.slow
def test_the_panels_of_a_fleet(store: Store) -> None:
    """The panels of a range contain only data of this range."""
    found = {each.name: each for each in fleet_panels(store)}
    assert list(found)[:4] == ["cost-by-day", "signatures", "cost-by-model", "cost-by-name"]
    assert found["cost-by-name"].summary.startswith("Sessions with 2 different names cost $")
    [day] = [p for p in fleet_panels(store, until_ns=T0 + DAY) if p.name == "cost-by-name"]
    assert day.summary.startswith("The sessions all have the same name and cost $")
    assert fleet_panels(store, since_ns=T0 + 9 * DAY) == []


@pytest.mark.slow
def test_rows_and_bars_open_the_same_list(store: Store) -> None:
    """The rows of a table, and the bars with their names, represent the same filters of the list of sessions."""
    found = {each.name: each for each in fleet_panels(store)}
    for name, parameter in (
        ("cost-by-model", "model"),
        ("cost-by-name", "q"),
        ("cache", "q"),
        ("tools", "q"),
        ("tool-errors", "q"),
    ):
        meta, labels = found[name].figure.layout.meta, found[name].figure.layout.yaxis.ticktext
        assert meta["parameter"] == parameter
        assert [{parameter: value} for value in meta["rows"]] == list(found[name].filters)
        assert [label.startswith(row) for label, row in zip(labels, meta["rows"], strict=True)] == [
            True
        ] * len(labels)
    days = found["cost-by-day"]
    opened = sorted([each["day_from"], each["day_to"]] for each in days.filters)
    assert opened == list(days.figure.layout.meta["days"].values())
    assert set(days.figure.data[0].x) == set(days.figure.layout.meta["days"])
    # A report has no list.
    assert '<a href="/' not in range_report(store, since_ns=None, until_ns=None, made_ns=0)


def test_a_bar_of_a_period_opens_all_of_its_days() -> None:
    """If a figure groups days by week, month or year, a bar represents all days of its period."""
    weeks = Calendar("week", date(2026, 1, 5), date(2026, 3, 2))
    assert weeks.periods([date(2026, 1, 5)]) == {"2026-01-08": ["2026-01-05", "2026-01-11"]}
    months = Calendar("month", date(2026, 2, 1), date(2026, 3, 1))
    assert months.periods([date(2026, 2, 1)]) == {"2026-02-16": ["2026-02-01", "2026-02-28"]}
    years = Calendar("year", date(2024, 1, 1), date(2026, 1, 1))
    assert list(years.periods([date(2024, 1, 1)]).values()) == [["2024-01-01", "2024-12-31"]]


def test_a_name_that_is_not_unicode_opens_no_list() -> None:
    """A name that cannot be in an address is not a filter."""
    rows = [{"name": name, "calls": 1, "errors": 0} for name in ("a", None, "\ud800")]
    shown = panel("x", "X", "", go.Figure(), ("name",), rows, listed_by={"name": "q"})
    assert shown.filters == [{"q": "a"}, {}, {}]
    assert set(tool_errors(rows).layout.meta["rows"]) == {"a", None}


def test_money_is_written_in_one_way() -> None:
    """Figures, texts and the terminal show the same digits of an amount; the sign precedes the currency."""
    for value, text in (
        ("1.7102", "$1.7102"),
        ("1234.5", "$1,234.5000"),
        ("-2", "-$2.0000"),
        ("0.00001", "$0.00001"),
        ("0", "$0.0000"),
    ):
        assert money(Decimal(value)) == display.money(Decimal(value)) == text
    assert money(None) == "no price"


def test_the_table_of_a_panel_is_bounded() -> None:
    """The table has a maximum number of rows, and the number of the other rows is known."""
    made = panel(
        "x", "X", "Says.", go.Figure(layout=layout()), ("a",), [{"a": n} for n in range(999)]
    )
    assert (len(made.rows), made.more) == (SHOWN, 999 - SHOWN)


@pytest.fixture(scope="module")
def uncertain_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with every certainty of cost: estimated, partly known and estimated, unpriced, and with lost records."""
    home = a_home(tmp_path_factory.mktemp("doubtful"))
    stated = [("estimated",), ("lower_bound", "estimated"), ("exact",)]
    facts: list[Any] = []
    for number, each in enumerate(stated, 1):
        facts.append(start(number, f"name {number}").start)
        facts += [
            usage_row(
                10 * number + at,
                session_id=session_id(number),
                certainty=certainty,
                model="nobody" if number == 3 else "claude-sonnet-5-5",
            )
            for at, certainty in enumerate(each)
        ]
    write_facts(home, facts)
    record(home, [start(4, "lost"), attempt(4, 1)])
    write_facts(home, [replace(end(4), dropped=7)])
    with open_store(home) as opened:
        yield opened


def words_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"cost_status": "exact", "unpriced_calls": 0}, "$0.5000"),
        ({}, "$0.5000"),
        ({"cost_status": "lower_bound"}, "≥ $0.5000"),
        ({"cost_status": "unknown_model"}, "≥ $0.5000"),
        ({"cost_status": "exact", "unpriced_calls": 2}, "≥ $0.5000"),
        ({"cost_status": "estimated", "unpriced_calls": 0}, "≈ $0.5000 estimated"),
        ({"cost_status": "estimated", "unpriced_calls": 2}, "≥ ≈ $0.5000 estimated"),
        ({"cost_status": "estimated", "lower_bound_calls": 1}, "≥ ≈ $0.5000 estimated"),
        ({"cost_usd": None, "cost_status": "unknown_model"}, "unknown"),
        ({"cost_usd": None, "cost_status": None}, "–"),
    ],
)
def test_costs_are_formatted_with_their_certainty(row: dict[str, Any], expected: str) -> None:
    """Lower bounds and estimates are marked, and a cost that is both has both marks, including in table cells."""
    whole = {"cost_usd": Decimal("0.5"), **row}
    assert words_of(cost(whole)).strip() == expected
    assert cell("cost_usd", whole["cost_usd"], whole) == cost(whole)


@pytest.mark.slow
def test_sentences_tables_and_figures_show_the_same_certainty(uncertain_store: Store) -> None:
    """Sentences, tables and figures mark estimates and lower bounds in the same way."""
    found = {each.name: each for each in fleet_panels(uncertain_store)}
    assert "cost at least about $" in found["cost-by-name"].summary
    assert "cost at least about $" in found["cost-by-day"].summary
    notes = {
        note.text.partition("$")[0] for note in found["cost-by-name"].figure.layout.annotations
    }
    assert notes == {"about ", "at least about ", "at least ", "no price"}
    assert "cost_status" in found["cache"].columns
    [turns] = [p for p in session_panels(uncertain_store, session_id(4)) if p.name == "turns"]
    assert "cost at least $" in turns.summary
    assert any("at least $" in text for text in turns.figure.data[-1].hovertext)


@pytest.mark.slow
def test_reports_show_the_certainty(uncertain_store: Store) -> None:
    """In reports, each session of a range and each step of a session is marked if its cost is inexact."""
    html = range_report(uncertain_store, since_ns=None, until_ns=None, made_ns=T0, light=True)
    assert re.search(r"Cost ≥ ≈ \$[\d.]+ estimated", words_of(html))
    _, _, most_expensive = html.partition('id="most-expensive"')
    rows = {
        name: words_of(most_expensive.split(name)[1].split("</tr>")[0])
        for name in ("name 1", "name 2", "lost")
    }
    assert re.search(r"≈ \$[\d.]+ estimated", rows["name 1"])
    assert "≥" not in rows["name 1"]
    assert re.search(r"≥ ≈ \$[\d.]+ estimated", rows["name 2"])
    assert re.search(r"≥ \$[\d.]+", rows["lost"])
    one = session_report(uncertain_store, session_id(4), made_ns=T0, light=True)
    _, _, steps = one.partition('id="steps"')
    assert re.search(r"≥ \$[\d.]+", words_of(steps.partition("</section>")[0]))


def waste_row(usd: str | None, unpriced: int) -> dict[str, Any]:
    """Return a row of `cache_waste`."""
    return {
        "reason": "expired",
        "reason_source": "gap",
        "calls": 1,
        "sessions": 1,
        "missed_tokens": 1_000,
        "wasted_usd": usd if usd is None else Decimal(usd),
        "unpriced_calls": unpriced,
    }


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([waste_row("0.5", 0)], "an extra cost of about $0.5000."),
        ([waste_row(None, 1)], "an extra cost of an unknown amount."),
        ([waste_row("0.5", 0), waste_row(None, 1)], "an extra cost of at least about $0.5000."),
    ],
)
def test_waste_without_prices_is_unknown(rows: list[dict[str, Any]], expected: str) -> None:
    """Without any price, the extra cost is unknown; with some prices, it is a lower bound."""
    made = panels._waste(rows)
    assert made is not None
    assert made.summary.endswith(expected)


def test_waste_is_named_by_reason() -> None:
    """If cache misses have several reasons, the summary has the extra cost of each, the most expensive first; requests
    after compactions are not cache misses.
    """
    rows = [
        {**waste_row("0.25", 0), "reason": "compaction"},
        {**waste_row("0.5", 0), "calls": 2},
        {**waste_row("0.5", 0), "reason_source": "provider"},
        {**waste_row(None, 1), "reason": "tools_changed"},
    ]
    made = panels._waste(rows)
    assert made is not None
    assert made.summary.endswith(
        "In 4 cache misses, cached tokens were billed again, at an extra cost of at least about $1.0000: expired "
        "before the next call $1.0000 (3), tools changed an unknown amount (1). The first request after 1 compaction "
        "cost about $0.2500 more than reads from the cache."
    )


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        (["0.5"], "Caching saved $0.5000 net of cache writes: 50% of"),
        (["-0.5"], "Cache writes cost $0.5000 more than cache reads saved: 50% of"),
        ([None], "Cache savings are unknown, because prices are missing: 50% of"),
        (
            ["0.5", None],
            "Caching saved $0.5000 net of cache writes (not including 1 call without a price): 50% of",
        ),
    ],
)
def test_savings_without_prices_are_unknown(saved: list[str | None], expected: str) -> None:
    """Unknown savings are not shown as zero, and negative savings are described as a loss."""
    rows = [
        {
            "name": "a",
            "sessions": 1,
            "calls": 1,
            "input_tokens": 50,
            "cache_read_tokens": 50,
            "cache_write_tokens": 0,
            "hit_ratio": 0.5,
            "saved_usd": usd if usd is None else Decimal(usd),
            "cost_usd": usd,
            "cost_status": "exact" if usd else "unknown_model",
            "unpriced_calls": int(usd is None),
        }
        for usd in saved
    ]
    made = panels._efficiency(rows)
    assert made is not None
    assert made.summary.startswith(expected)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], "an unknown amount"),
        ([{"cost_usd": None, "cost_status": "unknown_model"}], "an unknown amount"),
        ([{"cost_usd": Decimal(1)}], "$1.0000"),
        ([{"cost_usd": Decimal(1), "cost_status": "estimated"}], "about $1.0000"),
        (
            [{"cost_usd": Decimal(1), "cost_status": "estimated"}, {"cost_usd": None, "unpriced_calls": 1}],
            "at least about $1.0000",
        ),
        ([{"cost_usd": Decimal(1)}, {"cost_usd": None, "cost_status": None}], "$1.0000"),
        ([{"cost_usd": Decimal(1)}, {"cost_usd": None, "cost_status": "unknown_model"}], "at least $1.0000"),
    ],
)  # fmt: skip
def test_inexact_sums_are_marked(rows: list[dict[str, Any]], expected: str) -> None:
    """Sums with estimates, unknown prices or rows without cost are marked accordingly."""
    assert panels._sum(rows) == expected


def test_sentences_have_correct_grammar() -> None:
    """Sentences use singular and plural, `never` instead of `0 times`, and `unnamed` for a missing name."""
    request = {"context_tokens": 1, "compacted": False, "window_tokens": None, "lane": "main"}
    often = [{**request, "compacted": "auto"}] * 3
    model = {
        "model": None,
        "calls": 1,
        **dict.fromkeys(("p50_ns", "p95_ns", "p99_ns", "max_ns"), SECOND),
    }
    tool = {
        "name": "x",
        "calls": 2,
        "errors": 0,
        "timed_calls": 2,
        "total_ns": 0,
        "unseen_waits": 0,
    }
    back = {**tool, **dict.fromkeys(("p50_ns", "p90_ns", "p99_ns", "max_ns"), -5 * SECOND)}
    wait = {
        **dict.fromkeys(BUCKETS, 0),
        "about": "x",
        "resolver": "unattended",
        "answered": 0,
        "total_ns": None,
    }
    made = [
        panels._context([request]),
        panels._context(often),
        panels._first_token([model]),
        panels._latency([back]),
        panels._waits([{**wait, "unanswered": 1}]),
        panels._waits([{**wait, "unanswered": 2, "answered": 1, "total_ns": SECOND}]),
    ]
    assert [each.summary for each in made if each is not None] == [
        "The largest prompt has 1 token; the conversation was never compacted.",
        "The largest prompt has 1 token; the conversation was compacted 3 times.",
        "Half of the responses of an unnamed model started within 1.00 s.",
        "Total time by tool: x less than 1 µs (2 calls).",
        "1 approval request was never answered.",
        "1 approval request waited 1.00 s in total; 2 approval requests were never answered.",
    ]


def test_an_empty_session_has_no_panels(tmp_path: Path) -> None:
    """Without data, a session has no panels."""
    home = a_home(tmp_path)
    record(home, [start(1), end(1)])
    with open_store(home) as opened:
        assert session_panels(opened, session_id(1)) == []


def test_sentences_contain_no_invisible_characters() -> None:
    """Invisible and bidirectional characters in names are escaped."""
    made = panel("x", "X", "The slowest is \u202etac\x1b[31m.", go.Figure(layout=layout()), (), ())
    assert made.summary == "The slowest is \\u202etac\\u001b[31m."


def test_the_summary_of_a_window_is_about_that_window() -> None:
    """The sentence and the table about a window of the waterfall are limited to that window."""

    def piece(part: Part, name: str, low: int, high: int) -> TimeSlice:
        return TimeSlice(part, name, None, "main", T0 + low * SECOND, T0 + high * SECOND)

    path = (piece("model", "attempt", 0, 8), piece("tool", "execution", 8, 10))
    spent = {f"{part}_ns": 0 for part in PARTS}
    one = Split(
        "1", "main", T0, 10 * SECOND, **spent, has_ended=True, timing_source="spans", path=path
    )
    other = replace(one, started_ns=T0 + 20 * SECOND, path=())
    row = {
        "kind": "tool", "id": "a", "lane": "main", "label": "x", "part": "tool", "state": "ok", "detail": None,
        "turn": 1, "prompt_tokens": None, "output_tokens": None, "is_upkeep": False, "started_ns": T0,
        "ended_ns": T0 + 10 * SECOND,
    }  # fmt: skip
    whole = panels._waterfall([row], [one, other], None, {})
    part = panels._waterfall([row], [one, other], (T0 + 7 * SECOND, T0 + 12 * SECOND), {})
    assert whole is not None
    assert part is not None
    assert whole.summary == "2 interactions took 10.00 s; 80% of the critical path is the model."
    assert part.summary == (
        "In the selected range: 1 interaction took 3.00 s; 67% of the critical path is tools."
    )
    assert [row["duration_ns"] for row in part.rows] == [SECOND, 2 * SECOND]


def test_times_are_aligned_to_the_left() -> None:
    """Columns of times are aligned to the left like text; durations and counts are aligned to the right."""
    made = panel(
        "x",
        "X",
        "Says.",
        go.Figure(layout=layout()),
        ("at_ns", "p50_ns"),
        [{"at_ns": T0, "p50_ns": 5}],
    )
    source = '{% import "macros.html" as m %}{{ m.table(made.columns, made.rows, "x") }}'
    table = _environment().from_string(source).render(made=made)
    assert table.count('class="num"') == 2
    assert '<td class="num">5 ns</td>' in table
