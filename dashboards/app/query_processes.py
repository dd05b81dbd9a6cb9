"""SQL queries of the page. Each query runs in a process with limits, only a few run in parallel, and all end at
shutdown.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

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
LIMITS = Limits(timeout_seconds=30.0, rows=200, columns=200, answer_bytes=16 * 1024**2)
"""The limits of a query. Our choice: a result that fits a page; use `agentobs sql` for larger results."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The outcome of a query."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """The values as readable text."""
    numbers: Sequence[bool] = ()
    """Whether each column contains numbers."""
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
        if not sql.strip():
            return QueryResult(note="The statement is empty.", failed=True)
        if not self._slots.acquire(blocking=False):
            return QueryResult(
                note=f"{MOST_QUERIES} queries are already running. Wait until one ends.",
                failed=True,
            )
        started_ns = world.monotonic()
        columns: list[str] = []
        rows: list[tuple[Any, ...]] = []
        note, failed = "", False
        try:
            with Worker(home, self.limits, ingest=False) as worker:
                self._register(worker)
                try:
                    answer = worker.run(sql, values or None)
                    columns = answer.columns
                    rows.extend(answer.rows)
                finally:
                    with self._lock:
                        self._running.discard(worker)
        except UsageError as error:
            # If a limit was reached, the rows before it are shown.
            note, failed = _message(error), not rows
        except AgentobsError as error:
            note, failed = _message(error), True
        finally:
            self._slots.release()
        return _query_result(columns, rows, note, failed, world.monotonic() - started_ns)

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
                raise UsageError("the application is closing")
            self._running.add(worker)


def cell(value: Any) -> str:
    """Return a value as text. A long value is cut, and its length is added."""
    text = "NULL" if value is None else display.text(value)
    return (
        text
        if len(text) <= MOST_CHARACTERS
        else f"{text[:MOST_CHARACTERS]}… ({len(text):,} characters)"
    )


def _query_result(
    columns: Sequence[str], rows: list[tuple[Any, ...]], note: str, failed: bool, took_ns: int
) -> QueryResult:
    """Return a result for display, with as many complete rows as fit a page."""
    texts: list[list[str]] = []
    characters_left = MOST_SHOWN
    for row in rows:
        shown_row = [cell(value) for value in row]
        characters_left -= sum(map(len, shown_row))
        if characters_left < 0 and texts:
            note = f"{note} Only the first {len(texts):,} rows are shown, because the result is too large.".strip()
            break
        texts.append(shown_row)
    numbers = [
        all(_is_number(row[at]) for row in rows) and bool(rows) for at in range(len(columns))
    ]
    return QueryResult(columns, texts, numbers, note, failed, took_ns)


def _is_number(value: Any) -> bool:
    return value is None or (
        isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    )


def _message(error: AgentobsError) -> str:
    found = error.found[:1].upper() + error.found[1:]
    return f"{found}. {error.todo}." if error.todo else f"{found}."
