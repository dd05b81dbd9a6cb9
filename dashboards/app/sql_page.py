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
from agentobs.store.session_lookup import as_stored
from dashboards.app.query_processes import QueryResult
from dashboards.app.site import known_key, page_response, site_of
from dashboards.app.store_view import Row, View

MOST_STATEMENT = 100_000
"""The maximum length of a statement, in characters. Our choice."""
INITIAL_STATEMENT = bare_text("internal/first_example")
"""The initial statement."""
VALUE_PREFIX = "value_"
"""The prefix of form fields that contain parameter values."""

_PARAMETER = re.compile(r"(?<![\w$])\$([A-Za-z_]\w{0,63})")


def parameter_value(text: str) -> Any:
    """Return the value of a parameter from its text, as `agentobs sql --param` does. Empty text means NULL."""
    if not text.strip():
        return None
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text


def tables_of(view: View) -> list[Row]:
    """Return all views and tables, views first. Comments are included if the store was published at least once."""
    return view.named("internal/relations")


def columns_of(view: View) -> dict[str, list[Row]]:
    """Return the columns of all views and tables, by name."""
    found: dict[str, list[Row]] = {}
    for row in view.named("internal/relation_columns"):
        found.setdefault(row["of"], []).append(row)
    return found


def sql_page(request: Request) -> Response:
    """Respond with the query form; if a named query was selected, with its statement."""
    name = request.query_params.get("query", "")
    sql = query_text(name) if name else INITIAL_STATEMENT
    return _page(request, sql, {}, None, name)


async def query_page(request: Request) -> Response:
    """Run a query and respond with its result."""
    async with request.form(max_files=0, max_fields=100) as form:
        texts = {key: value for key, value in form.items() if isinstance(value, str)}
    sql = texts.get("sql", "").replace("\r\n", "\n")[:MOST_STATEMENT]
    names = {name for name in _PARAMETER.findall(sql) if VALUE_PREFIX + name in texts}
    value_texts = {name: texts[VALUE_PREFIX + name] for name in names}

    def run() -> Response:
        values = {name: parameter_value(text) for name, text in value_texts.items()}
        site = site_of(request)
        key = known_key(site.home) if values else None
        if key is not None:
            with site.reader.view() as view:
                values = as_stored(view.store, values, key)
        result = site.queries.run(site.home, sql, values)
        return _page(request, sql, value_texts, result, texts.get("query", ""))

    return await run_in_threadpool(run)


def tables_page(request: Request) -> Response:
    """Respond with the list of all tables and views, and their columns."""
    with site_of(request).reader.view() as view:
        return page_response(
            request, "tables.html", nav_item="sql", tables=tables_of(view), columns=columns_of(view)
        )


def _page(
    request: Request,
    sql: str,
    value_texts: Mapping[str, str],
    result: QueryResult | None,
    query: str,
) -> Response:
    site = site_of(request)
    with site.reader.view() as view:
        tables = tables_of(view)
    names = query_names()
    return page_response(
        request,
        "sql.html",
        nav_item="sql",
        sql=sql,
        parameters=list(dict.fromkeys(_PARAMETER.findall(sql))),
        value_texts=value_texts,
        result=result,
        query=query if query in names else "",
        saved_queries={name: _description(name) for name in names},
        tables=tables,
        limits=site.queries.limits,
        prefix=VALUE_PREFIX,
    )


def _description(name: str) -> str:
    """Return the description of a named query, from its first line."""
    return query_text(name).partition("\n")[0].removeprefix("--").strip()


def _reject_constant(text: str) -> None:
    raise ValueError(text)  # NaN and Infinity are not valid JSON


routes = [
    Route("/sql", sql_page, methods=["GET"]),
    Route("/sql", query_page, methods=["POST"]),
    Route("/sql/tables", tables_page),
]
