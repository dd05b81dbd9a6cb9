"""SQL queries from the page: each in a process with limits, few in parallel, all killed at shutdown."""

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

AT_ONCE = 2
"""The maximum number of concurrent queries. Our choice: each has a process with memory of its own."""
CELL = 2_000
"""The maximum number of characters shown per value. Our choice: 200 rows of such cells can still be scrolled."""
SHOWN_BYTES = 1024 * 1024
"""The maximum amount of text of a result in a page. Our choice."""
LIMITS = Limits(timeout_seconds=30.0, rows=200, columns=200, answer_bytes=16 * 1024**2)
"""The limits of a query. Our choice: as much as fits a page; use `agentobs sql` for more."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcome of a query."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """Values as readable text."""
    numbers: Sequence[bool] = ()
    """Whether each column contains numbers."""
    note: str = ""
    """The reason why rows are missing, or why the query failed."""
    failed: bool = False
    took_ns: int = 0
    """From the start of the process to the last row."""


class Questions:
    """Runs queries, and kills the running ones when it is closed."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        """Prepare for queries with these limits."""
        self.limits = limits
        self._lock = threading.Lock()
        self._running: set[Worker] = set()
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._is_closed = False

    def ask(self, home: Home, sql: str, values: Mapping[str, Any]) -> Answered:
        """Run one query and return its result for display; an error is in the note."""
        if not sql.strip():
            return Answered(note="The statement is empty.", failed=True)
        if not self._places.acquire(blocking=False):
            return Answered(
                note=f"{AT_ONCE} queries are already running. Wait until one ends.", failed=True
            )
        started_ns = world.monotonic()
        columns: list[str] = []
        rows: list[tuple[Any, ...]] = []
        note, failed = "", False
        try:
            with Worker(home, self.limits, ingest=False) as worker:
                self._begin(worker)
                try:
                    came = worker.ask(sql, values or None)
                    columns = came.columns
                    rows.extend(came.rows)
                finally:
                    with self._lock:
                        self._running.discard(worker)
        except UsageError as error:
            # If a limit was reached, the rows before it are shown.
            note, failed = _message(error), not rows
        except AgentobsError as error:
            note, failed = _message(error), True
        finally:
            self._places.release()
        return _answered(columns, rows, note, failed, world.monotonic() - started_ns)

    def close(self) -> None:
        """Kill the running queries, and those that start later."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for worker in running:
            # Only send the signal: the thread that started the query notices the end, and cleans up.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if worker.is_alive:
                    os.killpg(worker.process_id, signal.SIGKILL)

    def _begin(self, worker: Worker) -> None:
        with self._lock:
            if self._is_closed:
                raise UsageError("the application is closing")
            self._running.add(worker)


def cell(value: Any) -> str:
    """Return a value as text; a long value is cut, with its length."""
    text = "NULL" if value is None else display.text(value)
    return text if len(text) <= CELL else f"{text[:CELL]}… ({len(text):,} characters)"


def _answered(
    columns: Sequence[str], rows: list[tuple[Any, ...]], note: str, failed: bool, took_ns: int
) -> Answered:
    """Return a result for display: as many complete rows as fit a page."""
    texts: list[list[str]] = []
    left = SHOWN_BYTES
    for row in rows:
        made = [cell(value) for value in row]
        left -= sum(map(len, made))
        if left < 0 and texts:
            note = f"{note} Only the first {len(texts):,} rows are shown, because the result is too large.".strip()
            break
        texts.append(made)
    numbers = [
        all(_is_number(row[at]) for row in rows) and bool(rows) for at in range(len(columns))
    ]
    return Answered(columns, texts, numbers, note, failed, took_ns)


def _is_number(value: Any) -> bool:
    return value is None or (
        isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    )


def _message(error: AgentobsError) -> str:
    found = error.found[:1].upper() + error.found[1:]
    return f"{found}. {error.todo}." if error.todo else f"{found}."
