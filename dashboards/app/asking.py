"""The page that asks in SQL: in a process of its own with limits, which reads only and is killed at its time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from threading import BoundedSemaphore
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs import world
from agentobs.errors import AgentobsError, UsageError
from agentobs.records import shown
from agentobs.store.asking import query_names, query_text
from agentobs.store.worker import Worker
from dashboards.app.reading import Row, View
from dashboards.app.site import Site, answer, site_of

AT_ONCE = BoundedSemaphore(2)
"""Held while a question runs: each has a process with memory of its own. Our choice."""
CELL = 2_000
"""How many characters of a value are shown. Our choice: 200 rows of such cells can still be scrolled."""
STATEMENT = 100_000
"""The longest statement, characters. Our choice."""
FIRST = "SELECT name, status, turns, cost_usd\nFROM sessions\nORDER BY started_ns DESC\nLIMIT 20"
"""What stands there before anything was asked."""
GIVEN = "value_"
"""How the names of the fields begin that hold the values of parameters."""

_PARAMETER = re.compile(r"(?<![\w$])\$([A-Za-z_]\w{0,63})")


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a question."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """As text, for people."""
    numbers: Sequence[bool] = ()
    """Which columns hold numbers."""
    note: str = ""
    """Why there are no more rows, or none at all."""
    failed: bool = False
    took_ns: int = 0
    """From the start of the process to the last row."""


def typed(text: str) -> Any:
    """Return the value that the text of a parameter means, as `agentobs sql --param` does; nothing is NULL."""
    if not text.strip():
        return None
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def asked(site: Site, sql: str, values: Mapping[str, Any]) -> Answered:
    """Ask one question, and return what can be shown of its answer."""
    if not sql.strip():
        return Answered(note="There is no statement.", failed=True)
    if not AT_ONCE.acquire(blocking=False):
        return Answered(note="Two questions are running. Wait for one of them.", failed=True)
    started_ns = world.monotonic()
    columns: list[str] = []
    rows: list[tuple[Any, ...]] = []
    note, failed = "", False
    try:
        with Worker(site.home, site.limits, ingest=False) as worker:
            came = worker.ask(sql, values or None)
            columns = came.columns
            rows.extend(came.rows)
    except UsageError as error:
        # Where a limit was met, what came before counts.
        note, failed = _said(error), not rows
    except AgentobsError as error:
        note, failed = _said(error), True
    finally:
        AT_ONCE.release()
    took_ns = world.monotonic() - started_ns
    first = rows[0] if rows else ()
    numbers = [isinstance(v, int | float | Decimal) and not isinstance(v, bool) for v in first]
    texts = [[cell(value) for value in row] for row in rows]
    return Answered(columns, texts, numbers, note, failed, took_ns)


def cell(value: Any) -> str:
    """Return a value as text; of a long one its beginning, and how long it is."""
    text = shown.text(value) if value is not None else "NULL"
    return text if len(text) <= CELL else f"{text[:CELL]}… ({len(text):,} characters)"


def tables_of(view: View) -> list[Row]:
    """Return each view and table with what it holds, views first; in words where the store was published once."""
    return view.select(_TABLES)


def columns_of(view: View) -> dict[str, list[Row]]:
    """Return the columns of each view and table by its name."""
    found: dict[str, list[Row]] = {}
    for row in view.select(_COLUMNS):
        found.setdefault(row["of"], []).append(row)
    return found


def sql_page(request: Request) -> Response:
    """Answer with the page before anything was asked, with a named query in it where one was picked."""
    name = request.query_params.get("query", "")
    sql = query_text(name) if name else FIRST
    return _page(request, sql, {}, None, name)


async def ask_page(request: Request) -> Response:
    """Answer a question."""
    async with request.form(max_files=0, max_fields=100) as form:
        texts = {key: value for key, value in form.items() if isinstance(value, str)}
    sql = texts.get("sql", "").replace("\r\n", "\n")[:STATEMENT]
    names = {name for name in _PARAMETER.findall(sql) if GIVEN + name in texts}
    given = {name: texts[GIVEN + name] for name in names}

    def ask() -> Response:
        values = {name: typed(text) for name, text in given.items()}
        answered = asked(site_of(request), sql, values)
        return _page(request, sql, given, answered, texts.get("query", ""))

    return await run_in_threadpool(ask)


def tables_page(request: Request) -> Response:
    """Answer with all tables and views, and their columns."""
    with site_of(request).reader.view() as view:
        return answer(
            request, "tables.html", here="sql", tables=tables_of(view), columns=columns_of(view)
        )


def _page(
    request: Request, sql: str, given: Mapping[str, str], answered: Answered | None, query: str
) -> Response:
    site = site_of(request)
    with site.reader.view() as view:
        tables = tables_of(view)
    names = query_names()
    return answer(
        request,
        "sql.html",
        here="sql",
        sql=sql,
        parameters=list(dict.fromkeys(_PARAMETER.findall(sql))),
        given=given,
        answered=answered,
        query=query if query in names else "",
        questions={name: _question(name) for name in names},
        tables=tables,
        limits=site.limits,
        prefix=GIVEN,
    )


def _question(name: str) -> str:
    """Return what a named query asks, as its first line says."""
    return query_text(name).partition("\n")[0].removeprefix("--").strip()


def _said(error: AgentobsError) -> str:
    return f"{error.found}. {error.todo}." if error.todo else f"{error.found}."


def _refuse(text: str) -> None:
    raise ValueError(text)  # NaN and Infinity are no JSON


routes = [
    Route("/sql", sql_page, methods=["GET"]),
    Route("/sql", ask_page, methods=["POST"]),
    Route("/sql/tables", tables_page),
]

_TABLES = """
    WITH listed AS (
        SELECT view_name AS name, true AS is_view FROM duckdb_views()
        WHERE database_name = 'memory' AND schema_name = 'main' AND NOT internal
        UNION
        SELECT table_name, false FROM duckdb_tables() WHERE database_name = 'memory' AND schema_name = 'main'
    ), told AS (
        SELECT view_name AS name, comment, true AS is_view FROM duckdb_views() WHERE database_name = 'published'
        UNION ALL
        SELECT table_name, comment, false FROM duckdb_tables() WHERE database_name = 'published'
    )
    SELECT name, coalesce(told.is_view, listed.is_view) AS is_view, comment
    FROM listed
    LEFT JOIN told USING (name)
    ORDER BY is_view DESC, name
"""
_COLUMNS = """
    SELECT live.table_name AS of, live.column_name AS name, live.data_type AS type, told.comment
    FROM duckdb_columns() AS live
    LEFT JOIN duckdb_columns() AS told
        ON told.database_name = 'published' AND told.table_name = live.table_name
        AND told.column_name = live.column_name
    WHERE live.database_name = 'memory' AND live.schema_name = 'main' AND NOT live.internal
    ORDER BY live.table_name, live.column_index
"""
