"""Questions in SQL from the page: each in a process of its own with limits, few at once, and all killed at the end."""

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
from agentobs.store.duckdb.sql_worker import Limits, Worker

AT_ONCE = 2
"""How many run at once. Our choice: each has a process with memory of its own."""
CELL = 2_000
"""How many characters of a value are shown. Our choice: 200 rows of such cells can still be scrolled."""
SHOWN_BYTES = 1024 * 1024
"""How much text an answer may have in a page. Our choice."""
LIMITS = Limits(timeout_seconds=30.0, rows=200, columns=200, answer_bytes=16 * 1024**2)
"""What a question may cost. Our choice: what can be looked at; more is for `agentobs sql`."""


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


class Questions:
    """Asks them, and kills what still runs when it is closed."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        """Make it for questions with these limits."""
        self.limits = limits
        self._lock = threading.Lock()
        self._running: set[Worker] = set()
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._is_closed = False

    def ask(self, home: Home, sql: str, values: Mapping[str, Any]) -> Answered:
        """Ask one question, and return what can be shown of its answer; what is wrong with it is in the note."""
        if not sql.strip():
            return Answered(note="There is no statement.", failed=True)
        if not self._places.acquire(blocking=False):
            return Answered(
                note=f"{AT_ONCE} questions are running. Wait for one of them.", failed=True
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
            # Where a limit was met, what came before counts.
            note, failed = _said(error), not rows
        except AgentobsError as error:
            note, failed = _said(error), True
        finally:
            self._places.release()
        return _answered(columns, rows, note, failed, world.monotonic() - started_ns)

    def close(self) -> None:
        """Kill what runs, and what is begun after."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for worker in running:
            # Only the signal: the thread that asked it sees its end, and clears up.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if worker.is_alive:
                    os.killpg(worker.process_id, signal.SIGKILL)

    def _begin(self, worker: Worker) -> None:
        with self._lock:
            if self._is_closed:
                raise UsageError("the application is closing")
            self._running.add(worker)


def cell(value: Any) -> str:
    """Return a value as text; of a long one its beginning, and how long it is."""
    text = "NULL" if value is None else display.text(value)
    return text if len(text) <= CELL else f"{text[:CELL]}… ({len(text):,} characters)"


def _answered(
    columns: Sequence[str], rows: list[tuple[Any, ...]], note: str, failed: bool, took_ns: int
) -> Answered:
    """Return an answer as it is shown: whole rows, as many as a page can hold."""
    texts: list[list[str]] = []
    left = SHOWN_BYTES
    for row in rows:
        made = [cell(value) for value in row]
        left -= sum(map(len, made))
        if left < 0 and texts:
            note = (
                f"{note} The first {len(texts):,} rows are shown: the others are too long.".strip()
            )
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


def _said(error: AgentobsError) -> str:
    found = error.found[:1].upper() + error.found[1:]
    return f"{found}. {error.todo}." if error.todo else f"{found}."
