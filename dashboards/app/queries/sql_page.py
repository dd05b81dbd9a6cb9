"""The page that runs SQL queries: read-only, in a separate process with limits and a timeout."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agentobs.errors import AgentobsError, UsageError
from agentobs.store.named_queries import bare_text, query_names, query_text
from agentobs.store.session_lookup import as_stored
from dashboards.app.queries.downloads import csv_download, json_download
from dashboards.app.queries.query_processes import (
    EXPORT_LIMITS,
    MOST_EXPORTED,
    Answer,
    QueryResult,
)
from dashboards.app.queries.saved_items import MOST_NAME, delete, save, shown_items
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


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form with the statement."""

    sql: str
    values: Mapping[str, str] = field(default_factory=dict)
    """The texts of the parameters."""
    query: str = ""
    """The name of the included query that was loaded, or empty."""
    name: str = ""
    """The name under which the statement is saved, or was saved."""


def sql_page(request: Request) -> Response:
    """Respond with the query form; if a query was selected, with its statement. Nothing runs."""
    name, saved_name = (request.query_params.get(key, "") for key in ("query", "saved"))
    if saved_name:
        saved = shown_items(site_of(request).home, "queries")
        if not saved.error and saved_name not in saved.texts:
            raise UsageError(
                f"no saved query “{saved_name[:MOST_NAME]}”", todo="It may have been deleted"
            )
        return _page(request, Form(saved.texts.get(saved_name, INITIAL_STATEMENT), name=saved_name))
    return _page(request, Form(query_text(name) if name else INITIAL_STATEMENT, query=name))


async def query_page(request: Request) -> Response:
    """Run a query and respond with its result."""
    form = await _form(request)

    def run() -> Response:
        site = site_of(request)
        return _page(request, form, site.queries.run(site.home, form.sql, _values(request, form)))

    return await run_in_threadpool(run)


async def export_page(request: Request) -> Response:
    """Run a query and send its result as CSV or JSON; if it fails, respond with the page and the error."""
    form = await _form(request)
    ending = request.url.path.rpartition(".")[2]

    def run() -> Response:
        site = site_of(request)
        values = _values(request, form)
        answer = site.queries.answer(site.home, form.sql, values, EXPORT_LIMITS)
        if answer.failed:
            return _page(request, form, QueryResult(note=answer.note, failed=True))
        return _export(ending, answer)

    return await run_in_threadpool(run)


async def saved_query_page(request: Request) -> Response:
    """Save the statement under a name, or delete a saved query."""
    async with request.form(max_files=0, max_fields=100) as fields:
        is_delete = "delete" in fields
    form = await _form(request)
    home = site_of(request).home

    def respond() -> Response:
        try:
            if is_delete:
                delete(home, "queries", form.name)
                return RedirectResponse("/sql", 303)
            save(home, "queries", form.name, form.sql)
        except AgentobsError as error:
            return _page(request, form, notice=str(error))
        return RedirectResponse(f"/sql?{urlencode({'saved': form.name.strip()})}", 303)

    return await run_in_threadpool(respond)


async def _form(request: Request) -> Form:
    async with request.form(max_files=0, max_fields=100) as form:
        texts = {key: value for key, value in form.items() if isinstance(value, str)}
    sql = texts.get("sql", "").replace("\r\n", "\n")[:MOST_STATEMENT]
    names = {name for name in _PARAMETER.findall(sql) if VALUE_PREFIX + name in texts}
    value_texts = {name: texts[VALUE_PREFIX + name] for name in names}
    return Form(sql, value_texts, texts.get("query", ""), texts.get("name", ""))


def _values(request: Request, form: Form) -> Mapping[str, Any]:
    """Return the parameters of a query; names that the store contains as digests are replaced."""
    site = site_of(request)
    values = {name: parameter_value(text) for name, text in form.values.items()}
    key = known_key(site.home) if values else None
    if key is not None:
        with site.reader.view() as view:
            return as_stored(view.store, values, key)
    return values


def _export(ending: str, answer: Answer) -> Response:
    """Return the rows as a file; the name of an incomplete one contains the number of its rows."""
    name = f"query-first-{len(answer.rows)}-rows" if answer.note else "query"
    columns = _unique(answer.columns)
    if ending == "csv":
        return csv_download(name, columns, answer.rows)
    rows = [dict(zip(columns, row, strict=True)) for row in answer.rows]
    return json_download(name, {"rows": rows, "is_complete": not answer.note, "note": answer.note})


def _unique(names: Sequence[str]) -> list[str]:
    """Return column names without duplicates, so that each is a key of a row."""
    found: list[str] = []
    for name in names:
        number = 1
        while (unique := name if number == 1 else f"{name}_{number}") in found:
            number += 1
        found.append(unique)
    return found


def tables_page(request: Request) -> Response:
    """Respond with the list of all tables and views, and their columns."""
    with site_of(request).reader.view() as view:
        return page_response(
            request, "tables.html", nav_item="sql", tables=tables_of(view), columns=columns_of(view)
        )


def _page(
    request: Request, form: Form, result: QueryResult | None = None, notice: str = ""
) -> Response:
    """Respond with the form and a result; `notice` is an error of saving."""
    site = site_of(request)
    with site.reader.view() as view:
        tables = tables_of(view)
    names = query_names()
    saved = shown_items(site.home, "queries")
    return page_response(
        request,
        "sql.html",
        status=409 if notice else 200,
        nav_item="sql",
        sql=form.sql,
        parameters=list(dict.fromkeys(_PARAMETER.findall(form.sql))),
        value_texts=form.values,
        result=result,
        query=form.query if form.query in names else "",
        named_queries={name: _description(name) for name in names},
        saved_queries=list(saved.texts),
        saved_error="" if notice else saved.error,
        notice=notice,
        name=form.name,
        most_name=MOST_NAME,
        tables=tables,
        limits=site.queries.limits,
        most_exported=MOST_EXPORTED,
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
    Route("/sql/query.csv", export_page, methods=["POST"]),
    Route("/sql/query.json", export_page, methods=["POST"]),
    Route("/sql/queries", saved_query_page, methods=["POST"]),
    Route("/sql/tables", tables_page),
]
