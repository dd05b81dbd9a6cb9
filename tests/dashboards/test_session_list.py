"""The list of sessions over HTTP: what is searched, filtered and sorted is what SQL says, one page at a time."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import duckdb
import pytest

from agentobs.recording.journal.home import Home, open_home
from agentobs.records.labels import label
from agentobs.sink import Record
from agentobs.store.duckdb.connection import connect
from agentobs.store.port import Store
from dashboards.app import fleet_page, store_view
from dashboards.app.session_list import COLUMNS, PAGE, Asked, asked_of, chosen
from dashboards.panels.panels import Panel, fleet_panels
from tests.dashboards.opening import Client, opened
from tests.store.making import (
    MODEL,
    SECOND,
    T0,
    attempt,
    end,
    record,
    session_id,
    start,
    write_facts,
)
from tests.store.talking import Talk

pytestmark = pytest.mark.xdist_group("dashboards_listing")

HOUR = 3_600 * SECOND
SESSIONS = 130
COUNT = SESSIONS + 4
EVIL = "<script>alert(1)</script>\u202e\x1b[31m"


def made(number: int) -> list[Record]:
    """Return a session: names, models, days, turns and ends repeat with their own periods."""
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
    return [start(number, name, at, **tags), *turns, *ends]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    found = open_home(tmp_path_factory.mktemp("listed") / "home")
    records = [each for number in range(1, SESSIONS + 1) for each in made(number)]
    talk = Talk(900)
    for _ in range(4):
        [call] = talk.calls(("look", {"at": "the same thing, each time anew"}))
        talk.result(call)
    talk.says("done")
    record(found, [*records, *talk.whole(), start(901, label("Grüße an alle", found.key()), T0)])
    record(found, [start(902, "tagged", T0, note="two words"), end(902)])
    # The recorder writes labels alone; what another program put into a segment is not believed.
    write_facts(found, [start(903, f"hostile {EVIL}", T0, **{"tag": EVIL, EVIL: "tag"}).start])
    return found


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with opened(home) as made:
        yield made


def listed(client: Client, **asked: object) -> list[str]:
    """Return the ids of the sessions on a page, in their order."""
    got = client.get(f"/?{urlencode(asked)}")
    assert got.status == 200
    return re.findall(r'<input type="checkbox" name="of" value="([^"]*)"', got.html)


def every(client: Client, **asked: object) -> list[str]:
    """Return the ids of the sessions on all pages."""
    found: list[str] = []
    for page in range(1, 99):
        part = listed(client, page=page, **asked)
        if set(part) <= set(found):
            return found
        found += part
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
    [
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
    ],
)  # fmt: skip
def test_what_is_found_is_what_sql_says(
    store: duckdb.DuckDBPyConnection, client: Client, asked: dict[str, str], where: str
) -> None:
    """Search and filters find the sessions that SQL finds, all of them, each once, on pages of PAGE."""
    client_has_signatures(client)
    found = every(client, **asked)
    assert sorted(found) == says(store, where)
    assert len(set(found)) == len(found)
    assert len(listed(client, **asked)) == min(PAGE, len(found))
    words = client.get(f"/?{urlencode(asked)}").words
    if not asked:
        assert f"Sessions {COUNT} " in words
    elif found:
        assert f"{len(found)} of {COUNT}" in words
    else:
        assert "No matching sessions" in words


def client_has_signatures(client: Client) -> None:
    while "still being computed" in client.get("/?signature=repeated_calls").words:
        pass


ORDERS = {
    "name": "name", "status": "status", "started": "started_ns", "duration": "duration_ns", "turns": "turns",
    "tools": "tool_calls", "cost": "cost_usd", "signatures": "session_id = '" + session_id(900) + "'",
    "tokens": "input_tokens + output_tokens + cache_read_tokens + cache_write_tokens",
    "model": "(SELECT min(model) FROM attempts a WHERE a.session_id = sessions.session_id)",
}  # fmt: skip


@pytest.mark.parametrize("column", [each.name for each in COLUMNS])
def test_each_column_sorts_both_ways(
    store: duckdb.DuckDBPyConnection, client: Client, column: str
) -> None:
    """Each head sorts all sessions, not the page alone, what is not known last, and says how in the table."""
    client_has_signatures(client)
    for sign, way, aria in (("", "ASC", "ascending"), ("-", "DESC", "descending")):
        order = f"{ORDERS[column]} {way} NULLS LAST, session_id {way}"
        assert every(client, sort=f"{sign}{column}") == says(store, "true", order)
        html = client.get(f"/?sort={sign}{column}").html
        assert re.findall(r'aria-sort="(\w+)"', html) == [aria]
    links = client.get(f"/?q=coder&sort=-{column}&page=1").links("/?")
    back = "/?q=coder" if column == "started" else f"/?q=coder&sort={column}"
    assert (f"{back}&sort={column}" if column == "started" else back) in links


def test_pages_are_linked_and_keep_what_was_asked(client: Client) -> None:
    """Next, previous, first and last keep search and order in the address; a page beyond the last is the last."""
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


def test_the_totals_are_of_what_is_found(home: Home, client: Client) -> None:
    """Count, money, tokens and failures are of all sessions that are found, with how sure the money is."""
    with connect(home) as store:
        row = store.execute(
            "SELECT count(*), sum(cost_usd), sum(output_tokens), "
            "count(*) FILTER (WHERE status IN ('failed', 'crashed')) FROM sessions WHERE name = 'coder'"
        ).fetchone()
    assert row
    words = client.get("/?q=coder").words
    assert f"Sessions {row[0]} of {COUNT}" in words
    assert f"Failed {row[3]} " in words
    assert f"Cost ${row[1]:,.4f} " in words
    assert f"Output tokens {row[2]:,}" in words


def test_money_that_is_not_sure_says_so(tmp_path: Path) -> None:
    """A sum that leaves out calls without a price says at least, in its row and in the total."""
    home = open_home(tmp_path / "home")
    unpriced = attempt(1, 2, model="a-model-that-nobody-knows")
    record(home, [start(1), attempt(1, 1), unpriced, end(1)])
    with opened(home) as client:
        words = client.get("/").words
    assert words.count("at least") == 2


def test_what_means_nothing_is_left_out_and_said(client: Client) -> None:
    """An amount or a day that is none is named, and filters nothing; so does no other nonsense."""
    words = client.get("/?cost_from=cheap&day_to=soon").words
    assert "“cheap” is not an amount in dollars" in words
    assert "“soon” is not a day" in words
    assert len(every(client, cost_from="cheap", day_to="soon", sort="nix")) == COUNT
    for asked in (
        {"cost_from": "nan"}, {"cost_to": "-inf"}, {"cost_from": "1e999999999"},
        {"cost_to": "1e-999999999"}, {"day_from": "9999-12-31", "day_to": "9999-12-31"},
        {"status": "x' OR true --"}, {"q": "\x00'\"\\"}, {"model": "a" * 9999},
        {"day_from": "0001-01-01"}, {"q": "\ud7ff💥"},
    ):  # fmt: skip
        assert client.get(f"/?{urlencode(asked)}").status == 200


@pytest.mark.parametrize("path", ["/", "/fleet"])
def test_a_day_that_no_clock_can_tell_is_no_day(client: Client, path: str) -> None:
    """A day before 1970 or beyond what a column of times can hold is said to be none; the outermost are days."""
    for name in ("day_from", "day_to"):
        for day in ("0001-01-01", "1969-12-31", "2262-04-11", "9999-12-31"):
            got = client.get(f"{path}?{name}={day}")
            assert (got.status, f"“{day}” is not a day" in got.words) == (200, True), day
        for day in ("1970-01-01", "2262-04-10"):
            got = client.get(f"{path}?{name}={day}")
            assert (got.status, "is not a day" in got.words) == (200, False), day


def test_names_and_tags_are_text(client: Client) -> None:
    """What an author called a session stands in the page as text, control and direction characters as escapes."""
    got = client.get("/?q=hostile")
    assert "<script>alert" not in got.html
    assert "\u202e" not in got.html
    assert "\x1b" not in got.html
    assert "<script>alert(1)</script>\\u202e\\u001b[31m" in got.words
    searched = client.get(f"/?q={quote(EVIL)}")
    assert "<script>alert" not in searched.html


def test_two_that_are_ticked_are_compared(client: Client) -> None:
    """The two sessions that are ticked are what is compared; any other number is told."""
    first, second = listed(client)[:2]
    got = client.get(f"/compare/ticked?of={first}&of={second}")
    assert (got.status, got.headers["location"]) == (303, f"/compare?a={first}&b={second}")
    for query in ("", f"of={first}", f"of={first}&of={second}&of=x"):
        got = client.get(f"/compare/ticked?{query}")
        assert got.status == 404
        assert "select exactly two sessions to compare" in got.words


def test_each_session_is_linked(client: Client) -> None:
    """A row leads to the page of its session."""
    [first] = listed(client, q=session_id(5))
    links = client.get(f"/?q={first}").links("/sessions/")
    assert links == [f"/sessions/{first}"]
    assert client.get(links[0]).status == 200


def test_an_empty_home_says_what_to_do_first(tmp_path: Path) -> None:
    """Without sessions the page says how to get one."""
    with opened(open_home(tmp_path / "home")) as client:
        got = client.get("/")
        assert got.status == 200
        assert "No sessions yet" in got.words
        assert "agentobs --home" in got.words
        assert "demo" in got.words
        assert client.get("/fleet").status == 200
        assert client.get("/sql").status == 200


def test_the_fleet_is_of_the_days_that_are_asked_for(home: Home, client: Client) -> None:
    """The fleet tells of the last days where none are named, and of the named ones alone where some are."""
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
    assert "is not a day" in client.get("/fleet?day_from=x").words


def test_a_fleet_is_made_once_for_each_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range is worked out once while nothing is recorded, and follows what is new only where that is quick."""
    home = open_home(tmp_path / "home")
    record(home, made(1))
    ranges: list[object] = []

    def counted(store: Store, **bounds: Any) -> list[Panel]:
        ranges.append(bounds["until_ns"])
        return fleet_panels(store, **bounds)

    monkeypatch.setattr(fleet_page, "fleet_panels", counted)
    monkeypatch.setattr(fleet_page, "FOLLOWED_NS", 10**15)
    with opened(home) as client:
        for _ in range(3):
            assert "agentobs-revision" in client.get("/fleet").html
        client.get("/fleet?day_to=2026-10-01")
        assert len(ranges) == 2
        monkeypatch.setattr(fleet_page, "FOLLOWED_NS", 0)
        slow = client.get("/fleet")
        assert "agentobs-revision" not in slow.html
        assert "Not live, because there is too much data" in slow.words
        assert len(ranges) == 2
        for day in range(2, 9):
            client.get(f"/fleet?day_to=2026-10-0{day}")
        client.get("/fleet?day_to=2026-10-01")
        assert len(ranges) == 10


def test_an_address_and_what_it_asks_for_are_one() -> None:
    """What is asked comes back from its own address, and what is as always is not in it."""
    asked = Asked(q="a b&c", status="failed", cost_from="0.5", sort="cost", page=3)
    pairs = dict(part.split("=") for part in asked.query().split("&"))
    assert pairs == {"q": "a+b%26c", "status": "failed", "cost_from": "0.5", "sort": "cost", "page": "3"}  # fmt: skip
    assert (
        asked_of(
            {"q": "a b&c", "status": "failed", "cost_from": "0.5", "sort": "cost", "page": "3"}
        )
        == asked
    )
    assert Asked().query() == ""
    assert not Asked(sort="cost", page=2).is_filtered
    assert Asked(q="a").is_filtered


def test_values_are_parameters() -> None:
    """Nothing of what was typed becomes a part of the statement."""
    choice = chosen(
        Asked(
            q="q'x", model="m'x", status="s'x", signature="f'x", cost_from="1", day_to="2026-10-02"
        ),
        "d'x",
    )
    assert choice.parameters == {
        "text": "q'x", "digest": "d'x", "model": "m'x", "status": "s'x", "signature": "f'x", "cost_from": Decimal(1),
        "until_ns": 1_790_985_600_000_000_000,
    }  # fmt: skip


class Slow:
    """Makes the panels of a fleet when it is told to, and counts them."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.count = 0

    def __call__(self, connection: duckdb.DuckDBPyConnection, **_: Any) -> list[Panel]:
        self.count += 1
        self.begun.release()
        assert self.go.wait(60)
        return []


def test_a_few_long_pages_keep_nobody_from_the_others(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While ranges are made, two wait at most, others are told to come again, and lists and revisions are answered."""
    slow = Slow()
    monkeypatch.setattr(fleet_page, "fleet_panels", slow)
    monkeypatch.setattr(store_view, "TURN_SECONDS", 0.01)
    statuses: list[int] = []
    with opened(home) as client:

        def ask(day: int) -> None:
            got = client.get(f"/fleet?day_from=2026-10-{day:02}")
            statuses.append(got.status)
            if got.status == 503:
                assert got.headers["retry-after"] == "5"
                assert "Reload this page in a few seconds" in got.words

        asking = [threading.Thread(target=ask, args=(day,)) for day in range(1, 13)]
        for thread in asking:
            thread.start()
        while len(statuses) < len(asking) - store_view.MOST_MAKING:
            assert client.get("/").status == 200
            assert client.get("/revision").status == 200
        assert statuses == [503] * 10
        assert slow.count == 1
        slow.go.set()
        for thread in asking:
            thread.join(60)
        assert sorted(statuses) == [200] * 2 + [503] * 10
        assert client.get("/fleet?day_from=2026-10-13").status == 200


def test_what_nobody_waits_for_is_not_made(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range whose reader has gone is stopped while the store is asked, so that the next can be made."""
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

    with opened(home) as client:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fleet_page, "fleet_panels", forever)
            with socket.create_connection((client.host, client.port)) as line:
                head = f"Host: {client.named}\r\nCookie: {client.cookie}\r\n\r\n"
                line.sendall(f"GET /fleet?day_from=2026-10-01 HTTP/1.1\r\n{head}".encode())
                assert begun.wait(60)
            assert over.wait(60)
        assert client.get("/fleet?day_from=2026-10-01").status == 200
