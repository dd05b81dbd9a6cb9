"""The SQL page over HTTP: queries are read-only, and results are bounded and shown as text.

No process outlives the application.
"""

from __future__ import annotations

import html
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agentobs.recording.journal.home import Home, open_home
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.sql_worker import Limits
from agentobs.store.named_queries import query_names
from dashboards.app.queries import query_processes, sql_page
from dashboards.app.queries.query_processes import (
    LIMITS,
    MOST_CHARACTERS,
    MOST_QUERIES,
    MOST_SHOWN,
    QueryRunner,
)
from dashboards.app.queries.sql_page import parameter_value
from tests.dashboards.live_app import Client, Response, serving
from tests.store.recordings import conversation, record, session_id
from tests.store.wire_conversations import WireConversation

pytestmark = pytest.mark.xdist_group("dashboards_asking")

EVIL = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    found = open_home(tmp_path_factory.mktemp("asked") / "home")
    record(found, [*conversation(1, name="first"), *conversation(2, name="second")])
    ingest(found)
    record(found, conversation(3, name="third"))
    return found


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with serving(home) as made:
        yield made


def run_query(client: Client, sql: str, **values: str) -> Response:
    """Submit the form of the SQL page."""
    fields = {f"value_{name}": value for name, value in values.items()}
    got = client.press("/sql", part=False, sql=sql, **fields)
    assert got.status == 200
    return got


def cells(got: Response) -> list[list[str]]:
    """Return the cells of the result by row, as they are in the page."""
    answer = got.html.partition('id="result"')[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", answer.partition("<tbody>")[2], re.DOTALL)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]


@pytest.mark.slow
def test_a_query_sees_data_that_was_just_recorded(client: Client) -> None:
    """The result is a table that includes data that has not been ingested yet, and the page keeps the statement."""
    sql = "SELECT name, turns FROM sessions ORDER BY name"
    got = run_query(client, sql)
    assert cells(got) == [["first", "3"], ["second", "3"], ["third", "3"]]
    assert "3 rows in" in got.words
    assert sql in got.words


@pytest.mark.slow
def test_parameters_have_form_fields(client: Client) -> None:
    """Each parameter has a field.

    Text is passed as text, JSON values have their type, and an empty field is NULL.
    """
    sql = "SELECT $text AS a, $number + 1 AS b, $nothing IS NULL AS c, typeof($list) AS d"
    shown = run_query(client, sql)
    assert "Query failed" in shown.words
    for name in ("text", "number", "nothing", "list"):
        assert f'name="value_{name}"' in shown.html
    got = run_query(client, sql, text="'; DROP", number="0.5", nothing=" ", list="[1, 2]")
    assert cells(got) == [["&#39;; DROP", "1.5", "yes", "INTEGER[]"]]
    assert 'name="value_number" value="0.5"' in got.html
    assert parameter_value("0042") == "0042"
    assert parameter_value("NaN") == "NaN"
    assert parameter_value("[" * 100_000) == "[" * 100_000


REFUSED = (
    "DELETE FROM attempts",
    "COPY sessions TO '/tmp/stolen.csv'",
    "SELECT * FROM read_text('/etc/passwd')",
    "",
    "SELEC",
)
REFUSED_TOO = ("SELECT nothing FROM nowhere", "   ", "\x00", "SELECT '" + "(" * 20_000)
"""More statements; most of them are run in a new process. tests/store/test_lock_down.py has all attacks."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "refused",
    [REFUSED, pytest.param(REFUSED_TOO, marks=pytest.mark.crash)],
    ids=["some", "more"],
)
def test_statements_other_than_queries_are_rejected(client: Client, refused: Sequence[str]) -> None:
    """A statement that writes, reads files or is not SQL shows an error without a traceback, and changes nothing."""
    for sql in refused:
        got = run_query(client, sql)
        assert "Query failed" in got.words, sql
        assert 'class="warning"' in got.html, sql
        assert "Traceback" not in got.words, sql
    assert cells(run_query(client, "SELECT count(*) FROM attempts")) == [["9"]]
    assert not Path("/tmp/stolen.csv").exists()


@pytest.mark.slow
def test_a_result_is_text(client: Client) -> None:
    """Values and column names that look like HTML, hide text or control a terminal are shown as text."""
    sql = 'SELECT $evil AS "<b onclick=x>", [$evil] AS list, {"a": $evil} AS struct'
    got = run_query(client, sql, evil=EVIL)
    assert "<script>alert" not in got.html
    assert "<img" not in got.html
    assert "<b onclick" not in got.html
    answer = got.html.partition('id="result"')[2]
    assert "\u202e" not in answer
    assert "\x1b" not in answer
    assert "\\u202e\\u001b[31m" in answer
    failed = run_query(client, f"SELECT '{EVIL}'::INTEGER")
    assert "<script>alert" not in failed.html
    assert "\u202e" not in failed.html.partition('id="result"')[2]


@pytest.mark.slow
def test_a_result_is_bounded(client: Client) -> None:
    """Of many rows, wide rows and long values, a page shows a bounded part and a note about the rest."""
    many = run_query(client, "SELECT range FROM range(100000)")
    assert len(cells(many)) == LIMITS.rows
    assert f"more than {LIMITS.rows} rows" in many.words
    long = run_query(client, "SELECT repeat('x', 1000000) AS a")
    assert len(cells(long)[0][0]) < MOST_CHARACTERS + 50
    assert "(1,000,000 characters)" in long.words
    wide = run_query(
        client,
        "SELECT " + ", ".join(f"repeat('y', 1900) AS c{n}" for n in range(150)) + " FROM range(20)",
    )
    assert len(wide.body) < 2 * MOST_SHOWN
    assert "because the result is too large" in wide.words
    large = run_query(client, "SELECT repeat('x', 100000000) AS a")
    assert "larger than" in large.words
    columns = run_query(client, "SELECT " + ", ".join(f"{n} AS c{n}" for n in range(300)))
    assert "300 columns" in columns.words


@pytest.mark.slow
def test_values_of_every_type_are_shown(client: Client) -> None:
    """The page shows values of every DuckDB type."""
    got = run_query(
        client,
        "SELECT NULL AS a, true AS b, 1.50::DECIMAL(9, 2) AS c, 'x'::BLOB AS d, DATE '2026-11-22' AS e, "
        "TIMESTAMPTZ '2026-11-22 10:00:00+00' AS f, INTERVAL 3 DAY AS g, [1, NULL] AS h, MAP {'k': 1} AS i, "
        "{'s': [1]} AS j, uuid() AS k, 'NaN'::DOUBLE AS l, 170141183460469231731687303715884105727::HUGEINT AS m, "
        "1e300 AS n, TIME '10:00' AS o",
    )
    [row] = cells(got)
    assert row[:3] == ["NULL", "yes", "1.5"]
    assert len(row) == 15


@pytest.mark.slow
def test_each_saved_query_can_be_loaded(client: Client) -> None:
    """The page lists all named queries with their descriptions; a loaded query is editable and runs unchanged."""
    page = client.get("/sql").html
    for name in query_names():
        assert f'<option value="{name}">' in page
    for name in ("cost_by_day", "session_turns"):
        got = client.get(f"/sql?query={name}")
        sql = got.html.partition("<textarea")[2].partition(">")[2].partition("</textarea>")[0]
        fields = re.findall(r'name="value_(\w+)"', got.html)
        values = {field: session_id(1) if field == "session_id" else "" for field in fields}
        answered = run_query(
            client,
            sql.replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&#39;", "'")
            .replace("&#34;", '"'),
            **values,
        )
        assert "No answer" not in answered.words, answered.words
    missing = client.get("/sql?query=nothing")
    assert missing.status == 404
    assert "no query has that name" in missing.words


def test_all_tables_and_columns_are_listed(client: Client) -> None:
    """The reference lists each view and table with its columns and their meaning."""
    got = client.get("/sql/tables")
    assert got.status == 200
    for name in ("sessions", "attempts", "usage", "costs", "diagnoses"):
        assert f'id="{name}"' in got.html
    assert "One row for each session." in got.words
    assert "cost_usd" in got.words
    assert "app.listing" not in got.words
    assert "fingerprint" not in got.words


@pytest.mark.slow
def test_a_query_is_stopped_at_its_timeout(home: Home) -> None:
    """An endless query is stopped at its timeout, and another query can then run."""
    asks = QueryRunner(Limits(timeout_seconds=0.3))
    endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE hash(a, b) = 7"
    for _ in range(MOST_QUERIES + 1):
        answered = asks.run(home, endless, {})
        assert answered.failed
        assert "was stopped" in answered.note
    assert [list(row) for row in asks.run(home, "SELECT 1", {}).rows] == [["1"]]


def test_concurrent_queries_are_limited_and_killed_at_shutdown(home: Home) -> None:
    """While MOST_QUERIES queries run, a further query is rejected.

    When the application ends, the processes of the queries are killed.
    """
    asks = QueryRunner(LIMITS)
    endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE hash(a, b) = 7"
    answers: list[Any] = []

    def run() -> None:
        answers.append(asks.run(home, endless, {}))

    threads = [threading.Thread(target=run) for _ in range(MOST_QUERIES)]
    for thread in threads:
        thread.start()
    while len(asks._running) < MOST_QUERIES:
        time.sleep(0.01)
    processes = [worker.process_id for worker in asks._running]
    beside = asks.run(home, "SELECT 1", {})
    assert (beside.failed, "are already running" in beside.note) == (True, True)
    asks.close()
    for thread in threads:
        thread.join(60)
    assert [each.failed for each in answers] == [True] * MOST_QUERIES
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    after = asks.run(home, "SELECT 1", {})
    assert "shutting down" in after.note


def test_long_statements_and_links_with_statements_run_nothing(client: Client) -> None:
    """A GET with a statement runs nothing, and a form that is too long is rejected."""
    assert 'id="result"' not in client.get(f"/sql?sql={quote('SELECT 42')}").html
    assert client.press("/sql", part=False, sql="x" * 2_000_000).status == 413
    assert query_processes.LIMITS.rows == 200


@pytest.mark.slow
def test_ids_are_links(tmp_path: Path) -> None:
    """IDs of sessions and attempts are links to their pages, and a tool call to its step; other texts are not links."""
    home = open_home(tmp_path / "home")
    talk = WireConversation(5)
    [call] = talk.calls(("look", {}))
    talk.result(call)
    talk.says("done")
    record(home, talk.whole())
    with serving(home) as client:
        got = run_query(
            client,
            "SELECT session_id, attempt_id, ordinal, tool_use_id, interaction_id, name, 'x' AS my_id FROM tool_calls",
        )
        links = [
            html.unescape(each) for each in re.findall(r'<td[^>]*><a href="([^"]*)"', got.html)
        ]
        assert [link.partition("/")[2].partition("/")[0] for link in links] == [
            "sessions", "attempts", "sessions", "sessions",
        ]  # fmt: skip
        assert all("?step=" in link for link in links[2:])
        pages = [client.get(link) for link in links]
        assert [page.status for page in pages] == [200] * 4
        assert "look" in pages[2].words
        hostile = run_query(
            client,
            "SELECT '../\"><script>' AS session_id, 5 AS attempt_id, repeat('x', 500) AS parent_session_id",
        )
        assert hostile.links("/sessions/") == ["/sessions/..%2F%22%3E%3Cscript%3E"]
        assert hostile.links("/attempts/") == []


@pytest.mark.slow
def test_a_result_is_exported(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is a CSV or a JSON file. A file with a part of the rows states this, and no file is sent for an
    error.
    """
    sql = "SELECT name, 1.50 AS usd, '=1+1' AS formula, NULL AS none, 'nan'::DOUBLE AS n, 2 AS n "
    sql += "FROM sessions ORDER BY name"
    got = client.press("/sql/query.json", part=False, sql=sql)
    assert got.headers["content-disposition"] == 'attachment; filename="query.json"'
    found = json.loads(got.body)
    assert found["is_complete"]
    assert found["rows"][0] == {
        "name": "first", "usd": "1.50", "formula": "=1+1", "none": None, "n": "nan", "n_2": 2,
    }  # fmt: skip
    assert len(found["rows"]) == 3
    text = client.press("/sql/query.csv", part=False, sql=sql).body.decode()
    assert text.splitlines()[:2] == ["name,usd,formula,none,n,n_2", "first,1.50,'=1+1,,nan,2"]
    monkeypatch.setattr(sql_page, "EXPORT_LIMITS", replace(LIMITS, rows=2))
    part = client.press("/sql/query.json", part=False, sql=sql)
    assert part.headers["content-disposition"] == 'attachment; filename="query-first-2-rows.json"'
    assert "more than 2 rows" in json.loads(part.body)["note"]
    failed = client.press("/sql/query.csv", part=False, sql="SELECT nothing")
    assert "content-disposition" not in failed.headers
    assert "Query failed" in failed.words


@pytest.mark.slow
def test_a_query_is_saved_and_shared(home: Home, client: Client) -> None:
    """A saved query can be opened by its address, by everyone who opens the home, and opening it runs nothing."""
    evil = "a/b <i>?&"
    saved = client.press("/sql/queries", part=False, name=evil, sql="SELECT 42\r\nAS x")
    assert saved.status == 303
    with serving(home) as colleague:
        [link] = colleague.get("/sql").links("/sql?saved=")
        page = colleague.get(link)
        assert "SELECT 42\nAS x</textarea>" in page.html
        assert "<i>" not in page.html
        assert 'id="result"' not in page.html
        used = colleague.press("/sql/queries", part=False, name=evil, sql="SELECT 43")
        assert used.status == 409
        assert "SELECT 43" in used.words
        assert colleague.press("/sql/queries", part=False, name=evil, delete="1").status == 303
        assert colleague.get(link).status == 404
    assert client.get("/sql").links("/sql?saved=") == []
