"""SQL queries of the page. Each query runs in a process with limits, only a few run in parallel, and all end at
shutdown.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from agentobs import world
from agentobs.errors import AgentobsError, UsageError
from agentobs.recording.journal.home import Home
from agentobs.records import display
from agentobs.store.maintenance import Limits, Worker

MOST_QUERIES = 2
"""The maximum number of concurrent queries. Our choice: each query has a separate process with its own memory."""
MOST_CHARACTERS = 2_000
"""The maximum number of characters shown per value. Our choice: a page with 200 such rows still scrolls well."""
MOST_SHOWN = 1024 * 1024
"""The maximum length of the text of a result in a page, in characters. Our choice."""
MOST_EXPORTED = 10_000
"""The maximum number of rows of an export. Our choice; use `agentobs sql` for larger results."""
LONGEST_ID = 200
"""The maximum number of characters of an ID that becomes a link. Our choice."""
LIMITS = Limits(timeout_seconds=30.0, rows=200, columns=200, answer_bytes=16 * 1024**2)
"""The limits of a query. Our choice: a result that fits a page; use `agentobs sql` for larger results."""


EXPORT_LIMITS = replace(LIMITS, rows=MOST_EXPORTED)
"""The limits of a query whose result is exported."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query, as its process returned them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str
    """The reason why rows are missing, or why the query failed; empty if the result is complete."""
    failed: bool
    took_ns: int
    """The time from the start of the process to the last row."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The outcome of a query."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """The values as readable text."""
    numbers: Sequence[bool] = ()
    """Whether each column contains numbers."""
    links: Sequence[Sequence[str]] = ()
    """For each value, the path of the page that it refers to, such as a session page; empty if there is none."""
    note: str = ""
    """The reason why rows are missing, or why the query failed."""
    failed: bool = False
    took_ns: int = 0
    """The time from the start of the process to the last row."""


class QueryRunner:
    """Runs queries, and kills the running ones when it is closed."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        """Store the limits; processes are started on demand."""
        self.limits = limits
        self._lock = threading.Lock()
        self._running: set[Worker] = set()
        self._slots = threading.BoundedSemaphore(MOST_QUERIES)
        self._is_closed = False

    def run(self, home: Home, sql: str, values: Mapping[str, Any]) -> QueryResult:
        """Run one query and return its result for display. The note contains the error if it failed."""
        answer = self.answer(home, sql, values, self.limits)
        return _query_result(answer)

    def answer(self, home: Home, sql: str, values: Mapping[str, Any], limits: Limits) -> Answer:
        """Run one query and return its rows. The note contains the error if it failed."""
        if not sql.strip():
            return Answer((), (), "The statement is empty.", True, 0)
        if not self._slots.acquire(blocking=False):
            note = f"{MOST_QUERIES} queries are already running. Wait until one ends."
            return Answer((), (), note, True, 0)
        started_ns = world.monotonic()
        columns: Sequence[str] = ()
        rows: list[tuple[Any, ...]] = []
        note, failed = "", False
        try:
            with Worker(home, limits, ingest=False) as worker:
                self._register(worker)
                try:
                    result = worker.run(sql, values or None)
                    columns = result.columns
                    rows.extend(result.rows)
                finally:
                    with self._lock:
                        self._running.discard(worker)
        except UsageError as error:
            # If a limit was reached, the rows before it are kept.
            note, failed = _message(error), not rows
        except AgentobsError as error:
            note, failed = _message(error), True
        finally:
            self._slots.release()
        return Answer(columns, rows, note, failed, world.monotonic() - started_ns)

    def close(self) -> None:
        """Kill the running queries, and any query that starts later."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for worker in running:
            # Only send the signal: the thread that started the query notices the end of the process and cleans up.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if worker.is_alive:
                    os.killpg(worker.process_id, signal.SIGKILL)

    def _register(self, worker: Worker) -> None:
        with self._lock:
            if self._is_closed:
                raise UsageError("the dashboard is shutting down")
            self._running.add(worker)


def cell(value: Any) -> str:
    """Return a value as text. A long value is cut, and its length is added."""
    text = "NULL" if value is None else display.text(value)
    return (
        text
        if len(text) <= MOST_CHARACTERS
        else f"{text[:MOST_CHARACTERS]}… ({len(text):,} characters)"
    )


def page_of(column: str, value: Any, row: Mapping[str, Any]) -> str:
    """Return the path of the page that an ID names; empty if a value is not an ID of a page.

    Interactions and tool calls are steps of their session. The row must contain the other parts of their address.
    """
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID:
        return ""
    if column.endswith("session_id"):
        return f"/sessions/{quote(value, safe='')}"
    if column.endswith("attempt_id"):
        return f"/attempts/{quote(value, safe='')}"
    step = _step_of(column, value, row)
    if step and (session := page_of("session_id", row.get("session_id"), row)):
        return f"{session}?step={quote(step, safe='')}"
    return ""


def _step_of(column: str, value: str, row: Mapping[str, Any]) -> str:
    """Return the ID of the step that a value names, as in `session_waterfall`; empty if it names none."""
    if column == "interaction_id":
        return value
    attempt_id, ordinal = row.get("attempt_id"), row.get("ordinal")
    is_call = column == "tool_use_id" and isinstance(attempt_id, str) and isinstance(ordinal, int)
    return f"{attempt_id} {ordinal} {value}" if is_call else ""


def _query_result(answer: Answer) -> QueryResult:
    """Return a result for display, with as many complete rows as fit a page."""
    texts: list[list[str]] = []
    links: list[list[str]] = []
    note, columns, rows = answer.note, answer.columns, answer.rows
    characters_left = MOST_SHOWN
    for row in rows:
        shown_row = [cell(value) for value in row]
        characters_left -= sum(map(len, shown_row))
        if characters_left < 0 and texts:
            note = f"{note} Only the first {len(texts):,} rows are shown, because the result is too large.".strip()
            break
        texts.append(shown_row)
        named = dict(zip(columns, row, strict=True))
        links.append(
            [page_of(name, value, named) for name, value in zip(columns, row, strict=True)]
        )
    numbers = [
        all(_is_number(row[at]) for row in rows) and bool(rows) for at in range(len(columns))
    ]
    return QueryResult(columns, texts, numbers, links, note, answer.failed, answer.took_ns)


def _is_number(value: Any) -> bool:
    return value is None or (
        isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    )


def _message(error: AgentobsError) -> str:
    found = error.found[:1].upper() + error.found[1:]
    return f"{found}. {error.todo}." if error.todo else f"{found}."
