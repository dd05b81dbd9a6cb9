"""The list of sessions and the fleet page over HTTP: search, filters and order agree with SQL on every page."""

from __future__ import annotations

import csv
import io
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import duckdb
import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.recording.journal.home import Home, open_home
from agentobs.records.exchanges import Failure, ToolAnswer, child_lane
from agentobs.records.labels import Label, digest_label
from agentobs.sink import Record
from agentobs.store.analysis.failed_steps import FailedCalls
from agentobs.store.duckdb.connection import connect
from agentobs.store.port import Store
from dashboards.app import fleet_page, session_list, store_view
from dashboards.app.queries.downloads import csv_cell
from dashboards.app.queries.saved_items import read_saved
from dashboards.app.session_list import COLUMNS, PAGE_SIZE, ListQuery, filter_of, list_query
from dashboards.panels.panels import Panel, fleet_panels
from tests.browser.store_builders import recording
from tests.browser.synthetic_sessions import Lane, SyntheticSession, text
from tests.dashboards.live_app import Client, Response, serving
from tests.marks import mark_all_but_first
from tests.store.recordings import (
    MODEL,
    SECOND,
    T0,
    attempt,
    end,
    record,
    session_id,
    start,
    tool,
    write_facts,
)
from tests.store.wire_conversations import WireConversation

pytestmark = pytest.mark.xdist_group("dashboards_listing")

HOUR = 3_600 * SECOND
SESSIONS = 130
COUNT = SESSIONS + 4
NO = ToolAnswer("No.", is_error=True, outcome="denied")
EVIL = "<script>alert(1)</script>\u202e\x1b[31m"


def made_session(number: int) -> list[Record]:
    """Return a session. Names, models, days, turns and outcomes repeat with different periods."""
    name = ("support", "coder", "triage")[number % 3]
    at = T0 + number * 6 * HOUR
    tags = {"team": f"t{number % 5}"}
    turns = [
        attempt(
            number, turn, at=at + turn * SECOND,
            model="claude-opus-5-5" if number % 4 == 0 else MODEL,
            input_tokens=1000 * number, output_tokens=7,
        )
        for turn in range(1, 2 + number % 3)
    ]  # fmt: skip
    ends = [] if number % 10 == 9 else [end(number, at + number * SECOND, failed=number % 7 == 3)]
    called = [replace(tool(number, "call", "look", at=at), answer=NO)] if number == 40 else []
    return [start(number, name, at, **tags), *turns, *called, *ends]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    found = open_home(tmp_path_factory.mktemp("listed") / "home")
    records = [each for number in range(1, SESSIONS + 1) for each in made_session(number)]
    talk = WireConversation(900)
    for _ in range(4):
        [call] = talk.calls(("look", {"at": "the same thing, each time anew"}))
        talk.result(call)
    talk.says("done")
    record(
        found, [*records, *talk.whole(), start(901, digest_label("Grüße an alle", found.key()), T0)]
    )
    record(found, [start(902, "tagged", T0, note="two words"), end(902)])
    # The recorder writes only labels, but another program may have written other texts into a segment.
    write_facts(found, [start(903, f"hostile {EVIL}", T0, **{"tag": EVIL, EVIL: "tag"}).start])
    return found


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with serving(home, findings=True) as made:
        while "still being computed" in made.get("/?signature=repeated_calls").words:
            time.sleep(0.1)
        yield made


def listed(client: Client, **asked: object) -> list[str]:
    """Return the IDs of the sessions on a page, in their order."""
    return ids_of(client.get(f"/?{urlencode(asked)}"))


def ids_of(got: Response) -> list[str]:
    """Return the IDs of the sessions on a loaded page, in their order."""
    assert got.status == 200
    return re.findall(r'<input type="checkbox" name="of" value="([^"]*)"', got.html)


def all_listed(client: Client, *, first: Response | None = None, **asked: object) -> list[str]:
    """Return the IDs of the sessions on all pages; `first` is the first page if it is loaded."""
    found: list[str] = []
    for page in range(1, 99):
        part = ids_of(first) if first and page == 1 else listed(client, page=page, **asked)
        assert len(part) <= PAGE_SIZE
        assert set(part).isdisjoint(found)
        found += part
        if len(part) < PAGE_SIZE:
            return found
    raise AssertionError("there is no last page")


@pytest.fixture(scope="module")
def store(home: Home) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(home) as made:
        yield made


def says(store: duckdb.DuckDBPyConnection, where: str, order: str = "session_id") -> list[str]:
    sql = f"SELECT session_id FROM sessions WHERE {where} ORDER BY {order}"
    return [row[0] for row in store.execute(sql).fetchall()]


@pytest.mark.parametrize(
    ("asked", "where"),
    mark_all_but_first([
        ({}, "true"),
        ({"q": "coder"}, "name = 'coder'"),
        ({"q": "CODE"}, "name = 'coder'"),
        ({"q": session_id(17)}, f"session_id = '{session_id(17)}'"),
        ({"q": session_id(17)[4:14]}, f"session_id LIKE '%{session_id(17)[4:14]}%'"),
        ({"q": "t3"}, "tags['team'] = 't3'"),
        ({"q": "valueerror"}, "status = 'failed'"),
        ({"q": "%"}, "false"),
        ({"q": "Grüße an alle"}, f"session_id = '{session_id(901)}'"),
        ({"q": "two words"}, f"session_id = '{session_id(902)}'"),
        ({"status": "failed"}, "status = 'failed'"),
        ({"status": "crashed"}, "status = 'crashed'"),
        ({"model": "claude-opus-5-5"}, "session_id IN (SELECT session_id FROM turns WHERE model = 'claude-opus-5-5')"),
        ({"signature": "repeated_calls"}, f"session_id = '{session_id(900)}'"),
        ({"cost_from": "0.3"}, "cost_usd >= 0.3"),
        ({"cost_from": "0.1", "cost_to": "$0.3"}, "cost_usd BETWEEN 0.1 AND 0.3"),
        ({"day_from": "2026-10-01"}, "started_at >= '2026-10-01'"),
        ({"day_from": "2026-10-01", "day_to": "2026-10-02"},
         "started_at >= '2026-10-01' AND started_at < '2026-10-03'"),
        ({"q": "coder", "status": "failed", "cost_from": "0.1"},
         "name = 'coder' AND status = 'failed' AND cost_usd >= 0.1"),
    ], pytest.mark.slow),
)  # fmt: skip
def test_search_and_filters_agree_with_sql(
    home: Home,
    store: duckdb.DuckDBPyConnection,
    client: Client,
    asked: dict[str, str],
    where: str,
) -> None:
    """Search and filters find the same sessions as SQL, each on one page of at most PAGE_SIZE sessions."""
    where = where.replace("'t3'", f"'{digest_label('t3', home.key())}'")  # the value of a tag
    first = client.get(f"/?{urlencode(asked)}")
    found = all_listed(client, first=first, **asked)
    assert sorted(found) == says(store, where)
    assert len(set(found)) == len(found)
    words = first.words
    if not asked:
        assert f"Sessions {COUNT} " in words
    elif found:
        assert f"{len(found)} of {COUNT}" in words
    else:
        assert "No matching sessions" in words


ORDERS = {
    "name": "name", "status": "status", "started": "started_ns", "duration": "duration_ns", "turns": "turns",
    "requests": "llm_requests", "input": "input_tokens", "cache_read": "cache_read_tokens",
    "cache_write": "cache_write_tokens", "output": "output_tokens", "tools": "tool_calls", "cost": "cost_usd",
    "signatures": "session_id = '" + session_id(900) + "'",
    "tokens": "input_tokens + output_tokens + cache_read_tokens + cache_write_tokens",
    "model": "(SELECT min(model) FROM attempts a WHERE a.session_id = sessions.session_id)",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "column",
    # Costs may be unknown, and signatures are not a column of SQL.
    mark_all_but_first(
        sorted(
            (each.name for each in COLUMNS),
            key=lambda name: name not in ("started", "cost", "signatures"),
        ),
        pytest.mark.crash,
        kept=3,
    ),
)
def test_each_column_sorts_both_ways(
    store: duckdb.DuckDBPyConnection, client: Client, column: str
) -> None:
    """The header of each column sorts the complete list, with unknown values last, and shows the direction."""
    every = "&columns=" + ",".join(each.name for each in COLUMNS)
    for sign, way, aria in (("", "ASC", "ascending"), ("-", "DESC", "descending")):
        order = f"{ORDERS[column]} {way} NULLS LAST, session_id {way}"
        first = client.get(f"/?sort={sign}{column}{every}")
        assert re.findall(r'aria-sort="(\w+)"', first.html) == [aria]
        found = all_listed(client, first=first, sort=f"{sign}{column}")
        assert found == says(store, "true", order)
    links = client.get(f"/?q=coder&sort=-{column}&page=1{every}").links("/?")
    links = [link.partition("&columns=")[0] for link in links]
    back = "/?q=coder" if column == "started" else f"/?q=coder&sort={column}"
    assert (f"{back}&sort={column}" if column == "started" else back) in links


@pytest.mark.slow
def test_page_links_keep_the_query(client: Client) -> None:
    """The links to the next, previous, first and last page keep search and order.

    A page number after the last page gives the last page.
    """
    got = client.get("/?q=coder&sort=cost")
    assert "/?q=coder&sort=cost" in got.links("/?")[0] or got.links("/?")
    everything = client.get("/?sort=cost&page=2")
    assert "51 – 100 of 134" in everything.words
    for link in ("/?sort=cost", "/?sort=cost&page=3"):
        assert link in everything.links("/?")
    assert 'rel="prev"' in everything.html
    assert 'rel="next"' in everything.html
    assert listed(client, page=99) == listed(client, page=3)
    for page in ("0", "-1", "x", "9" * 400, "2.5", "٣"):
        assert listed(client, page=page)


@pytest.mark.slow
def test_totals_are_of_the_matching_sessions(home: Home, client: Client) -> None:
    """Count, cost, tokens and failures are the totals of all matching sessions, and the cost has its certainty."""
    with connect(home) as store:
        row = store.execute(
            "SELECT count(*), sum(cost_usd), sum(output_tokens), "
            "count(*) FILTER (WHERE status IN ('failed', 'crashed')), count(*) FILTER (WHERE status = 'failed'), "
            "count(*) FILTER (WHERE status = 'crashed') FROM sessions WHERE name = 'coder'"
        ).fetchone()
    assert row
    assert row[5]
    words = client.get("/?q=coder").words
    assert f"Sessions {row[0]} of {COUNT}" in words
    assert f"Failed {row[3]} incl. {row[5]} crashed; " in words
    assert f"Cost ${row[1]:,.4f} " in words
    assert f"Output tokens {row[2]:,}" in words


@pytest.mark.slow
def test_inexact_costs_are_marked(tmp_path: Path) -> None:
    """A sum without the calls that have no price is marked as a lower bound, in its row and in the total."""
    home = open_home(tmp_path / "home")
    unpriced = attempt(1, 2, model="a-model-that-nobody-knows")
    record(home, [start(1), attempt(1, 1), unpriced, end(1)])
    with serving(home) as client:
        words = client.get("/").words
    assert words.count("≥ $") == 2
    assert "at least" not in words


@pytest.mark.slow
def test_invalid_inputs_are_ignored_and_named(client: Client) -> None:
    """An invalid amount or day is ignored and named in a warning; other invalid values are ignored."""
    words = client.get("/?cost_from=cheap&day_to=soon").words
    assert "“cheap”: expected an amount in dollars, such as 0.25 (ignored)." in words
    assert "“soon”: expected a date, such as 2026-11-22 (ignored)." in words
    assert len(all_listed(client, cost_from="cheap", day_to="soon", sort="nix")) == COUNT
    for asked in (
        {"cost_from": "nan"}, {"cost_to": "-inf"}, {"cost_from": "1e999999999"},
        {"cost_to": "1e-999999999"}, {"day_from": "9999-12-31", "day_to": "9999-12-31"},
        {"status": "x' OR true --"}, {"q": "\x00'\"\\"}, {"model": "a" * 9999},
        {"day_from": "0001-01-01"}, {"q": "\ud7ff💥"},
    ):  # fmt: skip
        assert client.get(f"/?{urlencode(asked)}").status == 200


EXPECTED_DATE = {
    "/": "“{}”: expected a date, such as 2026-11-22 (ignored).",
    "/fleet": "“{}” was ignored: expected a date such as 2026-11-22.",
}
"""The warning about an invalid day, by path."""


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/fleet"])
def test_days_outside_the_range_are_invalid(client: Client, path: str) -> None:
    """A day before 1970 or after the last day that a time column can store is invalid."""
    for days in (
        ("0001-01-01", "9999-12-31"), ("9999-12-31", "0001-01-01"),
        ("1969-12-31", "2262-04-11"), ("2262-04-11", "1969-12-31"),
    ):  # fmt: skip
        got = client.get(f"{path}?day_from={days[0]}&day_to={days[1]}")
        assert got.status == 200
        assert [day for day in days if EXPECTED_DATE[path].format(day) not in got.words] == []
    for days in (("1970-01-01", "2262-04-10"), ("2262-04-10", "1970-01-01")):
        got = client.get(f"{path}?day_from={days[0]}&day_to={days[1]}")
        assert (got.status, "expected a date" in got.words) == (200, False), days


def test_names_and_tags_are_text(client: Client) -> None:
    """Names and tags are shown as text, with control and bidirectional characters as escapes."""
    got = client.get("/?q=hostile")
    assert "<script>alert" not in got.html
    assert "\u202e" not in got.html
    assert "\x1b" not in got.html
    assert "<script>alert(1)</script>\\u202e\\u001b[31m" in got.words
    searched = client.get(f"/?q={quote(EVIL)}")
    assert "<script>alert" not in searched.html


def test_two_selected_sessions_are_compared(client: Client) -> None:
    """Two selected sessions are compared; any other number of selected sessions is an error."""
    first, second = listed(client)[:2]
    got = client.get(f"/compare/ticked?of={first}&of={second}")
    assert (got.status, got.headers["location"]) == (303, f"/compare?a={first}&b={second}")
    for query in ("", f"of={first}", f"of={first}&of={second}&of=x"):
        got = client.get(f"/compare/ticked?{query}")
        assert got.status == 404
        assert "select exactly two sessions to compare" in got.words


@pytest.mark.slow
def test_each_session_is_linked(client: Client) -> None:
    """Each row has a link to the page of its session."""
    [first] = listed(client, q=session_id(5))
    links = client.get(f"/?q={first}").links("/sessions/")
    assert links == [f"/sessions/{first}"]
    assert client.get(links[0]).status == 200


@pytest.mark.slow
def test_an_empty_home_shows_how_to_start(tmp_path: Path) -> None:
    """Without sessions, the page shows how to record one."""
    with serving(open_home(tmp_path / "home")) as client:
        got = client.get("/")
        assert got.status == 200
        assert "No sessions yet" in got.words
        assert "agentobs --home" in got.words
        assert "demo" in got.words
        assert client.get("/fleet").status == 200
        assert client.get("/sql").status == 200


@pytest.mark.slow
def test_the_fleet_page_shows_the_requested_days(home: Home, client: Client) -> None:
    """The fleet page shows the last days, or only the days in its parameters."""
    usual = client.get("/fleet")
    assert usual.status == 200
    assert "30 days up to the last session" in usual.words
    assert 'class="figure-data"' in usual.html
    named = client.get("/fleet?day_from=2026-10-01&day_to=2026-10-02")
    assert named.status == 200
    with connect(home) as store:
        row = store.execute(
            "SELECT sum(cost_usd) FROM sessions WHERE started_at >= '2026-10-01' AND started_at < '2026-10-03'"
        ).fetchone()
    assert row
    assert f"${row[0]:,.4f}" in named.words
    assert (
        "No data in this range" in client.get("/fleet?day_from=1999-01-01&day_to=1999-01-02").words
    )
    assert EXPECTED_DATE["/fleet"].format("x") in client.get("/fleet?day_from=x").words


@pytest.mark.slow
def test_fleet_panels_are_computed_once_per_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The panels of a range are computed once as long as nothing is recorded.

    Live updates happen only if the computation is fast.
    """
    home = open_home(tmp_path / "home")
    record(home, made_session(1))
    ranges: list[object] = []
    panels: list[Panel] = []

    def counted(store: Store, **bounds: Any) -> list[Panel]:
        ranges.append(bounds["until_ns"])
        # The same panels serve for all ranges, because only the computations are counted.
        if not panels:
            panels.extend(fleet_panels(store, **bounds))
        return panels

    monkeypatch.setattr(fleet_page, "fleet_panels", counted)
    monkeypatch.setattr(fleet_page, "MOST_LIVE_NS", 10**15)
    with serving(home) as client:
        for _ in range(3):
            assert "agentobs-revision" in client.get("/fleet").html
        client.get("/fleet?day_to=2026-10-01")
        assert len(ranges) == 2
        monkeypatch.setattr(fleet_page, "MOST_LIVE_NS", 0)
        slow = client.get("/fleet")
        assert "agentobs-revision" not in slow.html
        assert "Not live, because there is too much data" in slow.words
        assert len(ranges) == 2
        for day in range(2, 9):
            client.get(f"/fleet?day_to=2026-10-0{day}")
        client.get("/fleet?day_to=2026-10-01")
        assert len(ranges) == 10


def test_a_query_string_round_trips() -> None:
    """A query that is converted to a URL and back stays the same, and its defaults are omitted from the URL."""
    asked = ListQuery(q="a b&c", status="failed", cost_from="0.5", sort="cost", page=3)
    pairs = dict(part.split("=") for part in asked.query_string().split("&"))
    assert pairs == {"q": "a+b%26c", "status": "failed", "cost_from": "0.5", "sort": "cost", "page": "3"}  # fmt: skip
    assert (
        list_query(
            {"q": "a b&c", "status": "failed", "cost_from": "0.5", "sort": "cost", "page": "3"}
        )
        == asked
    )
    assert ListQuery().query_string() == ""
    assert not ListQuery(sort="cost", page=2).is_filtered
    assert ListQuery(q="a").is_filtered


def test_inputs_are_parameters() -> None:
    """All inputs are parameters, and never a part of the SQL statement."""
    choice = filter_of(
        ListQuery(
            q="q'x", model="m'x", status="s'x", signature="f'x", cost_from="1", day_to="2026-10-02"
        ),
        {"text": "q'x", "digests": ["d'x"], "found": ["i'x"]},
    )
    assert choice.parameters == {
        "text": "q'x", "digests": ["d'x"], "found": ["i'x"],
        "model": "m'x", "status": "s'x", "signature": "f'x", "cost_from": Decimal(1),
        "until_ns": 1_790_985_600_000_000_000,
    }  # fmt: skip


class SlowPanels:
    """Computes the panels of a fleet page only after a release, and counts the calls."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.count = 0

    def __call__(self, connection: duckdb.DuckDBPyConnection, **_: Any) -> list[Panel]:
        self.count += 1
        self.begun.release()
        assert self.go.wait(60)
        return []


@pytest.mark.slow
def test_slow_pages_do_not_block_other_pages(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """While slow pages are computed, at most two requests wait, and others get a 503.

    Lists and revisions still get a response.
    """
    slow = SlowPanels()
    monkeypatch.setattr(fleet_page, "fleet_panels", slow)
    monkeypatch.setattr(store_view, "SLOT_SECONDS", 0.01)
    statuses: list[int] = []
    with serving(home) as client:

        def ask(day: int) -> None:
            got = client.get(f"/fleet?day_from=2026-10-{day:02}")
            statuses.append(got.status)
            if got.status == 503:
                assert got.headers["retry-after"] == "5"
                assert "Reload this page in a few seconds" in got.words

        asking = [threading.Thread(target=ask, args=(day,)) for day in range(1, 13)]
        for thread in asking:
            thread.start()
        while len(statuses) < len(asking) - store_view.MOST_COMPUTING:
            assert client.get("/").status == 200
            assert client.get("/revision").status == 200
        assert statuses == [503] * 10
        assert slow.count == 1
        slow.go.set()
        for thread in asking:
            thread.join(60)
        assert sorted(statuses) == [200] * 2 + [503] * 10
        assert client.get("/fleet?day_from=2026-10-13").status == 200


@pytest.mark.slow
def test_abandoned_pages_are_interrupted(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the client disconnects, its query is interrupted, so that the next page can be computed."""
    begun, over = threading.Event(), threading.Event()

    def forever(connection: duckdb.DuckDBPyConnection, **_: Any) -> list[Panel]:
        begun.set()
        try:
            connection.execute(
                "SELECT count(*) FROM range(1000000) a, range(10000000) b"
            ).fetchall()
        finally:
            over.set()
        raise AssertionError("it was not stopped")

    with serving(home) as client:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fleet_page, "fleet_panels", forever)
            with socket.create_connection((client.host, client.port)) as line:
                head = f"Host: {client.named}\r\nCookie: {client.cookie}\r\n\r\n"
                line.sendall(f"GET /fleet?day_from=2026-10-01 HTTP/1.1\r\n{head}".encode())
                assert begun.wait(60)
            assert over.wait(60)
        assert client.get("/fleet?day_from=2026-10-01").status == 200


def test_what_needs_attention_comes_first(client: Client, store: duckdb.DuckDBPyConnection) -> None:
    """Failed sessions come first, by day; then those with failed calls, then those with signatures. The most expensive
    of a day or a group is first, and a failed session of unknown cost is the first of its day.
    """
    failed = "status IN ('failed', 'crashed', 'incomplete')"
    calls = "SELECT session_id FROM errors WHERE kind = 'tool_call'"
    order = (
        f"CASE WHEN {failed} THEN 3 WHEN session_id IN ({calls}) THEN 2 "
        f"WHEN session_id = '{session_id(900)}' THEN 1 ELSE 0 END DESC, "
        f"CASE WHEN {failed} THEN started_at::DATE END DESC, {failed} AND cost_usd IS NULL DESC, "
        "cost_usd DESC NULLS LAST, started_ns DESC, session_id DESC"
    )
    assert all_listed(client, sort="-attention") == says(store, "true", order)
    assert "/?sort=-attention" in client.get("/").links("/?")
    assert "/?" in client.get("/?sort=-attention").links("/?")


@pytest.mark.slow
def test_the_list_names_the_session_to_look_at_first(client: Client) -> None:
    """One line above the table links to the first session of the order `Needs attention first` and states the reason.

    It keeps the filters. It is missing if the list has this order, or if no failed session is shown.
    """
    for filters in ({"status": "failed"}, {"q": "coder"}):
        first = listed(client, sort="-attention", **filters)[0]
        html = client.get(f"/?{urlencode(filters)}").html
        line = re.search(r'<span id="first-to-open">(.*?)</span>', html)
        assert line is not None
        assert f'href="/sessions/{first}"' in line[1]
        assert re.search(r"</a>, (failed|crashed|ended without a record)", line[1])
        assert re.search(
            r"\(the newest of \d+ failed sessions"
            r"|\(the most expensive of the last day with failures; \d+ sessions failed in all\)",
            line[1],
        )
        newest = listed(client, sort="-started", **{**filters, "status": "failed"})[0]
        if newest != first:
            named = rf'newest failure: <a href="/sessions/{newest}">\w+ …\w{{8}}</a>, failed: ValueError'
            assert re.search(rf'{named}[^<]*, started <time datetime="', line[1])
    assert (
        "Order: failed sessions, newest day (UTC) first; then"
        in client.get("/?sort=-attention").words
    )
    assert "failed: ValueError" in client.get("/?status=failed").words
    assert "first-to-open" not in client.get("/?sort=-attention").html
    assert "first-to-open" not in client.get("/?status=completed").html
    assert 'title="Order: failed sessions, newest day (UTC) first; then' in client.get("/").html


@pytest.mark.slow
def test_the_newest_failure_is_named_if_another_page_lists_it(tmp_path: Path) -> None:
    """The line above the list has the name, the reason and the time of the newest failure, but never its title."""
    home = open_home(tmp_path / "home")
    day = T0 - T0 % (24 * HOUR) + 48 * HOUR
    old = [each for number in range(4, 54) for each in (start(number, at=T0), end(number, T0 + 1))]
    failed: list[list[Record]] = [
        [start(number, "coder", at), *tried, end(number, at + HOUR, failed=True)]
        for number, at, tried in (
            (1, T0 - HOUR, []),
            (2, day, [attempt(2, turn, at=day + turn * SECOND) for turn in (1, 2)]),
            (3, day + HOUR, [attempt(3, 1, at=day + HOUR)]),
        )
    ]
    record(home, [*old, *(each for records in failed for each in records)])
    with serving(home, findings=True) as client:
        while "being computed" in (got := client.get("/?sort=started")).words:
            time.sleep(0.1)
    line = re.search(r'<span id="first-to-open">(.*?)</span>', got.html)
    assert session_id(3) not in ids_of(got)
    assert line is not None
    assert f'first: <a href="/sessions/{session_id(2)}"' in line[1]
    assert "(the most expensive of the last day with failures; 3 sessions failed in all)" in line[1]
    named = rf'newest failure: <a href="/sessions/{session_id(3)}">coder …\w{{8}}</a>'
    assert re.search(rf"{named}, failed: [^<]+, started <time", line[1])


@pytest.mark.slow
def test_findings_that_are_not_computed_yet_are_marked(home: Home, client: Client) -> None:
    """Signatures and causes that are not known yet are not shown as if there were none; an export has no value."""
    words = "being computed"
    with serving(home) as early:
        got = early.get("/?status=failed")
        exported = json.loads(early.get("/sessions.json?status=failed").body)["sessions"]
    rows = len(ids_of(got))
    assert got.words.count(f"signatures: {words}") == got.words.count(f"cause: {words}") == rows
    assert {each["signatures"] for each in exported} == {None}
    assert words not in client.get("/?status=failed").words
    completed = client.get("/?status=completed").words
    assert words not in completed


def test_rows_show_the_last_error(client: Client) -> None:
    """The row of a failed session shows the error that ended it, and a click on it lists all sessions with it.

    A tooltip contains the whole text, because a narrow column cuts it.
    """
    failed = client.get("/?status=failed")
    whole = re.findall(r'class="row-error" title="([^"]*)">(.*?)</small>', failed.html)
    assert [title for title, _ in whole] == [re.sub("<[^>]*>", "", html) for _, html in whole]
    errors = re.findall(r'class="row-error"[^>]*><a [^>]*>([^<]*)<', failed.html)
    assert set(errors) == {"ValueError"}
    assert len(errors) == len(whole) == len(listed(client, status="failed"))
    assert "/?q=ValueError&status=failed" in failed.links("/?")
    assert sorted(all_listed(client, q="valueerror")) == sorted(all_listed(client, status="failed"))


@pytest.mark.slow
def test_a_completed_session_shows_its_failed_calls(tmp_path: Path) -> None:
    """The row of a session that completed shows how many of its tool calls failed."""
    home = open_home(tmp_path / "home")
    called = [{"type": "tool_use", "id": f"toolu_{n}", "name": "look", "input": {}} for n in (1, 2)]
    failed = ToolAnswer("no", is_error=True, outcome="failed")
    runs = [
        replace(tool(1, str(each["id"]), "look", at=T0 + 2 * SECOND), answer=failed)
        for each in called
    ]
    record(home, [start(1), attempt(1, 1, content=called), *runs, end(1)])
    record(home, [start(2), attempt(2, 1), end(2)])
    with serving(home) as client:
        assert re.findall(r">(\d+ calls? [a-z ]*failed)<", client.get("/").html) == [
            "2 calls of look failed"
        ]


@pytest.mark.slow
def test_a_row_shows_the_error_class_that_the_search_found(tmp_path: Path) -> None:
    """A search that finds the class of an earlier error shows this class, but not that of the last error again."""
    home = open_home(tmp_path / "home")
    with recording(home) as emit:
        run = SyntheticSession(emit, "refunds", T0)
        with run.interaction("Refund my order."):
            run.turn(text("Sorry."), fails=("overloaded_error",))
        run.end()
    record(home, [start(1, "broken"), attempt(1, 1), end(1, failed=True)])
    with serving(home) as client:
        marks = {
            words: re.findall(r"<mark [^>]*>([^<]*)</mark>", client.get(f"/?q={words}").html)
            for words in ("Overloaded_Error", "refunds+overloaded", "refunds", "valueerror")
        }
    assert marks == {
        "Overloaded_Error": ["overloaded_error"],
        "refunds+overloaded": ["overloaded_error"],
        "refunds": [],
        "valueerror": [],
    }


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (FailedCalls(3, "refund", 2), "3 tool calls failed, 2 of refund"),
        (FailedCalls(2, "refund", 1), "2 tool calls failed"),
        (FailedCalls(1, "refund", 1), "1 call of refund failed"),
        (FailedCalls(2, None, 0), "2 tool calls failed"),
        (FailedCalls(2, None, 0, 1), "2 tool calls failed; 1 request failed"),
        (FailedCalls(0, None, 0, 3), "3 requests failed"),
        (
            FailedCalls(denied=5, denied_tool="refund", of_denied_tool=5),
            "5 calls of refund were denied",
        ),
        (
            FailedCalls(2, "look", 1, 1, denied=1, denied_tool="refund", of_denied_tool=1),
            "2 tool calls failed; 1 call of refund was denied; 1 request failed",
        ),
    ],
)
def test_the_tool_that_failed_most_often_is_named(calls: FailedCalls, words: str) -> None:
    """A tool is named if it failed more than once, or if it is the only one."""
    assert calls.words == words


@pytest.mark.slow
def test_a_crashed_session_says_why_it_ended(tmp_path: Path) -> None:
    """A session without an end has the words of `agentobs sessions`, before its failed calls."""
    home = open_home(tmp_path / "home")
    with recording(home) as emit:
        run = SyntheticSession(emit, "refunds", T0)
        with run.interaction("Refund my order."):
            call = dict(type="tool_use", id=run.call_id(), name="refund", input={})
            run.turn(call)
            run.results(run.run_call(call, "no", is_error=True))
            run.turn(text("Sorry."))
    cause = "the process ended without an end of the session"
    with serving(home) as client:
        page = client.get("/")
        assert f"crashed: {cause} (the only failed session)" in page.words
        assert f'title="{cause}; 1 call of refund failed"' in page.html
    printed = CliRunner().invoke(cli, ["--home", str(home.path), "sessions", "--csv"])
    assert cause in printed.stdout


@pytest.mark.slow
def test_the_model_of_the_main_agent_comes_first(tmp_path: Path) -> None:
    """Models are in the order of the requests of the main agent; the prefix that most have is not shown."""
    home = open_home(tmp_path / "home")
    with recording(home) as emit:
        run = SyntheticSession(emit, "refunds", T0, model="claude-opus-5-5")
        with run.interaction("Refund my order."):
            call = dict(type="tool_use", id=run.call_id(), name="agent", input={})
            run.turn(call)
            outer, run.model = run.lane, "claude-haiku-5-5"
            run.lane = Lane(child_lane(outer.name, str(call["id"])))
            for _ in range(3):
                run.turn(text("Done."))
            run.lane, run.model = outer, "claude-opus-5-5"
            run.results(run.run_call(call, "Done."))
            run.turn(text("Done."))
        run.end()
    with serving(home) as client:
        html = client.get("/").html
        [row] = json.loads(client.get("/sessions.json").body)["sessions"]
    assert row["models"] == ["claude-opus-5-5", "claude-haiku-5-5"]
    assert re.search(r'title="claude-opus-5-5"[^>]*>opus-5-5</a>', html)


@pytest.mark.slow
def test_the_last_error_is_described_in_words(tmp_path: Path) -> None:
    """The row of a session whose response was cut states this, and a failed call without an error class is named before
    its outcome; so does the line above the table.
    """
    home = open_home(tmp_path / "home")
    cut = attempt(1, 1)
    answer = replace(cut.answer, ending="cut", failure=Failure("RemoteProtocolError", "closed"))
    ended = replace(end(1, failed=True), reason=Label("RemoteProtocolError"))
    record(home, [start(1), replace(cut, answer=answer), ended])
    called = [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]
    late = replace(
        tool(2, "toolu_1", "look", at=T0 + 2 * SECOND),
        answer=ToolAnswer("no", is_error=True, outcome="timeout"),
    )
    limited = replace(
        end(2, failed=True), signature=Label("result:max_turns"), reason=Label("max_turns")
    )
    record(home, [start(2), attempt(2, 1, content=called), late, limited])
    with serving(home, findings=True) as client:
        while "still being computed" in client.get("/?signature=repeated_calls").words:
            time.sleep(0.1)
        page = client.get("/")
        texts = re.findall(r'class="row-error" title="([^"]*)">(.*?)</small>', page.html)
        assert [title for title, _ in texts] == [
            "max_turns; last error: call look timed out",
            f"the response was cut: the connection was closed ({MODEL})",
        ]
        assert [title for title, _ in texts] == [re.sub("<[^>]*>", "", html) for _, html in texts]
        assert "/?q=RemoteProtocolError" in page.links("/?")
        assert "/?q=timeout" in page.links("/?")


def test_filters_are_one_click_away(client: Client) -> None:
    """Statuses, time ranges, signatures, tags and models are links that set a filter, and remove it again."""
    got = client.get("/?q=coder")
    links = got.links("/?")
    for link in (
        "/?q=coder&status=failed",
        "/?q=coder&since=7d",
        "/?q=coder&signature=repeated_calls",
        "/?q=team%3Dt0",
        f"/?q=coder&model={MODEL}",
    ):
        assert link in links
    again = client.get("/?q=coder&status=failed")
    assert "/?q=coder" in again.links("/?")
    assert 'aria-current="true"' in again.html


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("team=t3", "tags['team'] = 't3'"),
        ("look", "session_id IN (SELECT session_id FROM tool_calls WHERE name = 'look')"),
        ("LOOK Go.", "session_id IN (SELECT session_id FROM tool_calls WHERE name = 'look')"),
        ("claude-opus", "session_id IN (SELECT session_id FROM attempts WHERE model LIKE 'claude-opus%')"),
        ("t3 coder", "tags['team'] = 't3' AND name = 'coder'"),
        ("coder  nothing", "false"),
    ],
)  # fmt: skip
def test_several_words_tags_and_models_are_found(
    home: Home, client: Client, store: duckdb.DuckDBPyConnection, text: str, where: str
) -> None:
    """A search finds a tag with its value, a part of a model, a tool, and sessions with all of several words."""
    where = where.replace("'t3'", f"'{digest_label('t3', home.key())}'")  # the value of a tag
    expected = says(store, where)
    assert sorted(all_listed(client, q=text)) == expected
    assert bool(expected) == (where != "false")


@pytest.mark.slow
def test_words_are_found_in_titles_and_tags(tmp_path: Path) -> None:
    """A session is found if one word is in its title and another one in a tag, even in a filtered list."""
    home = open_home(tmp_path / "home")
    records: list[Record] = []
    for number, branch, prompt in (
        (1, "main", "Where is order 7?"),
        (2, "other", "Cancel order 7"),
    ):
        talk = WireConversation(number)
        talk.records[:] = [start(number, branch=branch)]
        talk.messages[0]["content"] = prompt
        talk.says("done")
        records += talk.whole()
    record(home, records)
    with serving(home) as client:
        assert len(listed(client)) == 2
        assert listed(client, q="branch=main") == [session_id(1)]
        assert sorted(listed(client, q="order 7")) == [session_id(1), session_id(2)]
        assert listed(client, q="cancel branch=other") == [session_id(2)]
        assert listed(client, q="cancel branch=main") == []


def test_relative_time_ranges(client: Client) -> None:
    """A relative range ends now; an unknown one is ignored and named."""
    assert listed(client, since="1h") == []
    assert "expected one of 1h, 24h, 7d, 30d (ignored)" in client.get("/?since=soon").words


@pytest.mark.slow
def test_the_list_is_exported(client: Client, store: duckdb.DuckDBPyConnection) -> None:
    """The matching sessions are sent as JSON and as CSV, in the order of the list; names of people are digests."""
    got = client.get("/sessions.json?status=failed&sort=-cost")
    assert got.headers["content-disposition"] == 'attachment; filename="sessions.json"'
    exported = json.loads(got.body)
    ids = all_listed(client, status="failed", sort="-cost")
    assert [row["session_id"] for row in exported["sessions"]] == ids
    assert exported["not_included"] == 0
    total = sum(Decimal(row["cost_usd"]) for row in exported["sessions"])
    [(expected,)] = store.execute(
        "SELECT sum(cost_usd) FROM sessions WHERE status = 'failed'"
    ).fetchall()
    assert total == expected
    assert {row["error"] for row in exported["sessions"]} == {"ValueError"}
    rows = list(csv.DictReader(io.StringIO(client.get("/sessions.csv").body.decode())))
    assert len(rows) == COUNT
    assert {row["session_id"] for row in rows} == set(all_listed(client))
    assert "Grüße" not in json.dumps(rows, ensure_ascii=False)
    for row in rows:
        at = datetime.fromisoformat(row["started"])
        assert at.tzinfo is not None
        assert round(at.timestamp() * 1_000) == int(row["started_ns"]) // 1_000_000
        assert row["failed_calls"] == "0"


def test_a_bounded_export_is_announced(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an export does not contain all matching sessions, the page and the JSON say so."""
    assert "the first" not in client.get("/").words
    monkeypatch.setattr(session_list, "MOST_EXPORTED", 10)
    assert "Export: CSV JSON (the first 10)" in client.get("/").words
    exported = json.loads(client.get("/sessions.json").body)
    assert len(exported["sessions"]) == 10
    assert exported["not_included"] == COUNT - 10


def test_an_exported_text_is_no_formula() -> None:
    """Spreadsheets do not run a text of an export."""
    assert [csv_cell(text) for text in ("=1+1", "\t=1+1", "@x", "\uff1d1", "name", 5, ["a", "b"])] == [
        "'=1+1", "'\t=1+1", "'@x", "'\uff1d1", "name", 5, "a b",
    ]  # fmt: skip


def test_columns_are_chosen_in_the_address(client: Client) -> None:
    """The address contains the shown columns, and each link and the filter form keep them; unknown ones are ignored."""
    got = client.get("/?columns=cost,status,nonsense&q=coder")
    heads = re.findall(r'<th scope="col"[^>]*>\s*<a [^>]*>(.*?)(?:<|$)', got.html)
    assert heads == ["Session", "Status", "Cost"]
    assert '<input type="hidden" name="columns" value="status,cost">' in got.html
    links = [link for link in got.links("/?") if link.startswith("/?q=coder")]
    assert len(links) > 10
    # One link sets the default columns.
    assert [link for link in links if "columns=status,cost" not in link] == ["/?q=coder"]
    by_form = client.get("/?q=coder&columns=status&columns=cost")
    assert (by_form.status, by_form.headers["location"]) == (303, "/?q=coder&columns=status,cost")
    every = ",".join(column.name for column in COLUMNS)
    wide = client.get(f"/?columns={every}")
    assert wide.html.count('<th scope="col"') == len(COLUMNS) + 1
    row = wide.html.partition("<tbody>")[2].partition("</tr>")[0]
    assert row.count("<td") == len(COLUMNS) + 1
    assert client.get("/").html.count('<th scope="col"') == 1 + sum(c.is_default for c in COLUMNS)


@pytest.mark.slow
def test_a_view_is_saved_and_shared(home: Home, client: Client) -> None:
    """A saved view has a name and contains filters, order and columns; everyone who opens the home sees it."""
    evil = "<b>x</b>"
    saved = client.press(
        "/views", part=False, name=evil, query="status=failed&columns=cost&sort=-cost&page=2&x=1"
    )
    assert saved.status == 303
    with serving(home) as colleague:
        page = colleague.get("/")
        assert "/?status=failed&sort=-cost&columns=cost" in page.links("/?")
        assert "&lt;b&gt;x&lt;/b&gt;</a>" in page.html
        assert evil not in page.html
        again = colleague.press("/views", part=False, name=evil, query="q=1")
        assert again.status == 409
        assert "the name “<b>x</b>” is used" in again.words
        assert colleague.press("/views", part=False, name=evil, query="", delete="1").status == 303
    assert "Views (" not in client.get("/").words
    assert (home.path / "saved.json").stat().st_mode & 0o777 == 0o600


def test_a_view_is_saved_only_from_a_page_of_the_dashboard(home: Home, client: Client) -> None:
    """A page of another origin, or a link, saves nothing."""
    headers = {"content-type": "application/x-www-form-urlencoded", "origin": "http://evil.example"}
    assert client.post("/views?name=x&query=", headers).status == 403
    assert client.get("/views?name=x&query=").status in (404, 405)
    assert read_saved(home)["views"] == {}
