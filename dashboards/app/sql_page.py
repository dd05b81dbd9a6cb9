"""The page that runs SQL queries: read-only, in a separate process with limits and a timeout."""

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

from agentobs.store.named_queries import bare_text, query_names, query_text
from dashboards.app.query_processes import Answered
from dashboards.app.site import answer, site_of
from dashboards.app.store_view import Row, View

STATEMENT = 100_000
"""The maximum length of a statement, in characters. Our choice."""
FIRST = bare_text("internal/first_example")
"""The initial statement."""
GIVEN = "value_"
"""The prefix of the form fields with parameter values."""

_PARAMETER = re.compile(r"(?<![\w$])\$([A-Za-z_]\w{0,63})")


def typed(text: str) -> Any:
    """Return the value of a parameter from its text, as `agentobs sql --param` does; an empty text is NULL."""
    if not text.strip():
        return None
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def tables_of(view: View) -> list[Row]:
    """Return all views and tables, views first; with comments if the store was ever published."""
    return view.named("internal/relations")


def columns_of(view: View) -> dict[str, list[Row]]:
    """Return the columns of all views and tables, by name."""
    found: dict[str, list[Row]] = {}
    for row in view.named("internal/relation_columns"):
        found.setdefault(row["of"], []).append(row)
    return found


def sql_page(request: Request) -> Response:
    """Respond with the page without a result, with the statement of a named query if one was selected."""
    name = request.query_params.get("query", "")
    sql = query_text(name) if name else FIRST
    return _page(request, sql, {}, None, name)


async def ask_page(request: Request) -> Response:
    """Run a query and respond with its result."""
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
    """Respond with all tables and views, and their columns."""
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
    """Return the description of a named query, from its first line."""
    return query_text(name).partition("\n")[0].removeprefix("--").strip()


def _refuse(text: str) -> None:
    raise ValueError(text)  # NaN and Infinity are not valid JSON


routes = [
    Route("/sql", sql_page, methods=["GET"]),
    Route("/sql", ask_page, methods=["POST"]),
    Route("/sql/tables", tables_page),
]
