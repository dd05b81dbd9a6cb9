"""The SQL page over HTTP: it reads only, its answers are bounded and shown as text, and nothing outlives it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agentobs.recording.journal.home import Home, open_home
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.sql_worker import Limits
from agentobs.store.named_queries import query_names
from dashboards.app import query_processes
from dashboards.app.query_processes import AT_ONCE, CELL, LIMITS, SHOWN_BYTES, Questions
from dashboards.app.sql_page import typed
from tests.dashboards.opening import Client, Got, opened
from tests.store.making import conversation, record, session_id

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
    with opened(home) as made:
        yield made


def ask(client: Client, sql: str, **values: str) -> Got:
    """Press the button of the page."""
    fields = {f"value_{name}": value for name, value in values.items()}
    got = client.press("/sql", part=False, sql=sql, **fields)
    assert got.status == 200
    return got


def cells(got: Got) -> list[list[str]]:
    """Return the rows of the answer, as they stand in the page."""
    answer = got.html.partition('id="answer"')[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", answer.partition("<tbody>")[2], re.DOTALL)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]


def test_a_question_is_answered_with_what_was_recorded_just_now(client: Client) -> None:
    """The answer stands in a table, with what has not been ingested yet; the statement stays in the page."""
    sql = "SELECT name, turns FROM sessions ORDER BY name"
    got = ask(client, sql)
    assert cells(got) == [["first", "3"], ["second", "3"], ["third", "3"]]
    assert "3 rows in" in got.words
    assert sql in got.words


def test_values_come_through_parameters(client: Client) -> None:
    """A field is there for each parameter; text is text, JSON has its type, and nothing is NULL."""
    sql = "SELECT $text AS a, $number + 1 AS b, $nothing IS NULL AS c, typeof($list) AS d"
    shown = ask(client, sql)
    assert "Query failed" in shown.words
    for name in ("text", "number", "nothing", "list"):
        assert f'name="value_{name}"' in shown.html
    got = ask(client, sql, text="'; DROP", number="0.5", nothing=" ", list="[1, 2]")
    assert cells(got) == [["&#39;; DROP", "1.5", "yes", "INTEGER[]"]]
    assert 'name="value_number" value="0.5"' in got.html
    assert typed("0042") == "0042"
    assert typed("NaN") == "NaN"
    assert typed("[" * 100_000) == "[" * 100_000


REFUSED = (
    "DELETE FROM attempts",
    "SELECT 1; SELECT 2",
    "SET memory_limit = '90GB'",
    "COPY sessions TO '/tmp/stolen.csv'",
    "SELECT * FROM read_text('/etc/passwd')",
    "ATTACH '/tmp/other.duckdb'",
    "INSTALL httpfs",
    "SELEC",
    "SELECT nothing FROM nowhere",
    "",
    "   ",
    "\x00",
    "WITH a AS (DELETE FROM attempts RETURNING *) SELECT * FROM a",
    "SELECT getenv('PATH')",
    "SELECT '" + "(" * 20_000,
)


def test_anything_but_a_question_is_refused_in_words(client: Client) -> None:
    """What writes, reads files, or is no SQL is told as text in the page, with no traceback, and changes nothing."""
    for sql in REFUSED:
        got = ask(client, sql)
        assert "Query failed" in got.words, sql
        assert 'class="warning"' in got.html, sql
        assert "Traceback" not in got.words, sql
    assert cells(ask(client, "SELECT count(*) FROM attempts")) == [["9"]]
    assert not Path("/tmp/stolen.csv").exists()


def test_an_answer_is_text(client: Client) -> None:
    """Values and names of columns that look like HTML, hide text or steer a terminal are shown, and do nothing."""
    sql = 'SELECT $evil AS "<b onclick=x>", [$evil] AS list, {"a": $evil} AS struct'
    got = ask(client, sql, evil=EVIL)
    assert "<script>alert" not in got.html
    assert "<img" not in got.html
    assert "<b onclick" not in got.html
    answer = got.html.partition('id="answer"')[2]
    assert "\u202e" not in answer
    assert "\x1b" not in answer
    assert "\\u202e\\u001b[31m" in answer
    failed = ask(client, f"SELECT '{EVIL}'::INTEGER")
    assert "<script>alert" not in failed.html
    assert "\u202e" not in failed.html.partition('id="answer"')[2]


def test_an_answer_is_bounded(client: Client) -> None:
    """Of many rows, wide rows and long values a page holds a bounded part, and says that there is more."""
    many = ask(client, "SELECT range FROM range(100000)")
    assert len(cells(many)) == LIMITS.rows
    assert f"more than {LIMITS.rows} rows" in many.words
    long = ask(client, "SELECT repeat('x', 1000000) AS a")
    assert len(cells(long)[0][0]) < CELL + 50
    assert "(1,000,000 characters)" in long.words
    wide = ask(
        client,
        "SELECT "
        + ", ".join(f"repeat('y', 1900) AS c{n}" for n in range(150))
        + " FROM range(200)",
    )
    assert len(wide.body) < 2 * SHOWN_BYTES
    assert "because the result is too large" in wide.words
    large = ask(client, "SELECT repeat('x', 100000000) AS a")
    assert "larger than" in large.words
    columns = ask(client, "SELECT " + ", ".join(f"{n} AS c{n}" for n in range(300)))
    assert "300 columns" in columns.words


def test_values_of_every_type_are_shown(client: Client) -> None:
    """Whatever DuckDB can answer stands in the page in some form."""
    got = ask(
        client,
        "SELECT NULL AS a, true AS b, 1.50::DECIMAL(9, 2) AS c, 'x'::BLOB AS d, DATE '2026-11-22' AS e, "
        "TIMESTAMPTZ '2026-11-22 10:00:00+00' AS f, INTERVAL 3 DAY AS g, [1, NULL] AS h, MAP {'k': 1} AS i, "
        "{'s': [1]} AS j, uuid() AS k, 'NaN'::DOUBLE AS l, 170141183460469231731687303715884105727::HUGEINT AS m, "
        "1e300 AS n, TIME '10:00' AS o",
    )
    [row] = cells(got)
    assert row[:3] == ["NULL", "yes", "1.5"]
    assert len(row) == 15


def test_each_named_question_can_be_picked(client: Client) -> None:
    """The page offers all named queries with what they ask; a picked one stands in the page, and runs as it stands."""
    page = client.get("/sql").html
    for name in query_names():
        assert f'<option value="{name}">' in page
    for name in ("cost_by_day", "session_turns"):
        got = client.get(f"/sql?query={name}")
        sql = got.html.partition("<textarea")[2].partition(">")[2].partition("</textarea>")[0]
        fields = re.findall(r'name="value_(\w+)"', got.html)
        values = {field: session_id(1) if field == "session_id" else "" for field in fields}
        answered = ask(
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


def test_all_tables_and_columns_are_told(client: Client) -> None:
    """The reference names each view and table with its columns, and what they mean."""
    got = client.get("/sql/tables")
    assert got.status == 200
    for name in ("sessions", "attempts", "usage", "costs", "diagnoses"):
        assert f'id="{name}"' in got.html
    assert "One row for each session." in got.words
    assert "cost_usd" in got.words
    assert "app.listing" not in got.words
    assert "fingerprint" not in got.words


def test_a_question_takes_its_time_and_no_more(home: Home) -> None:
    """A question that would run for ever is stopped at its time, and the place is free again."""
    asks = Questions(Limits(timeout_seconds=0.3))
    endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE hash(a, b) = 7"
    for _ in range(AT_ONCE + 1):
        answered = asks.ask(home, endless, {})
        assert answered.failed
        assert "was stopped" in answered.note
    assert [list(row) for row in asks.ask(home, "SELECT 1", {}).rows] == [["1"]]


def test_few_run_at_once_and_all_end_with_the_application(home: Home) -> None:
    """Beside AT_ONCE that run, one more is sent away; when the application ends, their processes are killed."""
    asks = Questions(LIMITS)
    endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE hash(a, b) = 7"
    answers: list[Any] = []

    def run() -> None:
        answers.append(asks.ask(home, endless, {}))

    threads = [threading.Thread(target=run) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    while len(asks._running) < AT_ONCE:
        time.sleep(0.01)
    processes = [worker.process_id for worker in asks._running]
    beside = asks.ask(home, "SELECT 1", {})
    assert (beside.failed, "are already running" in beside.note) == (True, True)
    asks.close()
    for thread in threads:
        thread.join(60)
    assert [each.failed for each in answers] == [True] * AT_ONCE
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    after = asks.ask(home, "SELECT 1", {})
    assert "closing" in after.note


def test_a_long_statement_is_cut_and_a_link_asks_nothing(client: Client) -> None:
    """A GET with a statement in it runs nothing; a form that is too long is refused."""
    assert 'id="answer"' not in client.get(f"/sql?sql={quote('SELECT 42')}").html
    assert client.press("/sql", part=False, sql="x" * 2_000_000).status == 413
    assert query_processes.LIMITS.rows == 200
