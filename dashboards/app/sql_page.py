"""The page that asks in SQL: in a process of its own with limits, which reads only and is killed at its time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.store.named_queries import query_names, query_text
from dashboards.app.query_processes import Answered
from dashboards.app.site import answer, site_of
from dashboards.app.store_view import Row, View

STATEMENT = 100_000
"""The longest statement, characters. Our choice."""
FIRST = "SELECT name, status, turns, cost_usd\nFROM sessions\nORDER BY started_ns DESC\nLIMIT 20"
"""What stands there before anything was asked."""
GIVEN = "value_"
"""How the names of the fields begin that hold the values of parameters."""

_PARAMETER = re.compile(r"(?<![\w$])\$([A-Za-z_]\w{0,63})")


def typed(text: str) -> Any:
    """Return the value that the text of a parameter means, as `agentobs sql --param` does; nothing is NULL."""
    if not text.strip():
        return None
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


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
        site = site_of(request)
        answered = site.questions.ask(site.home, sql, values)
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
        limits=site.questions.limits,
        prefix=GIVEN,
    )


def _question(name: str) -> str:
    """Return what a named query asks, as its first line says."""
    return query_text(name).partition("\n")[0].removeprefix("--").strip()


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
