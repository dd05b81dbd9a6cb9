"""Reads a store that agents are writing to, without blocking them or waiting for them.

One connection holds the current state. While pages are requested, one thread checks for new data and opens the next
connection in parallel. Requests use the previous connection until the next one is ready, and the last request that uses
a connection closes it. So requests do not wait for a connection to open. Writers are not involved: the store is a file
that is replaced but never changed, and segments are read up to their current end.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from agentobs import world
from agentobs.errors import AgentobsError, DamagedError, UsageError, error_kind
from agentobs.recording.journal.home import Home, existing_home
from agentobs.recording.journal.segments import facts_path, forms, is_alive
from agentobs.store.analysis.session_search import SearchableTitles
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from agentobs.store.port import QueryError, Store

PAUSE_SECONDS = 0.4
"""The minimum pause between two checks for new data. Our choice: an open page shows new data within two seconds."""
MOST_PAUSE_SECONDS = 2.0
"""The maximum pause between two checks. Up to it, the pause is as long as the last check, so that a large store, whose
checks take seconds, uses at most about half of the time. Our choice.
"""
PAUSE_FACTOR = 5
"""The minimum pause between two computations of failure signatures, as a multiple of the duration of the last one."""
CHECK_SECONDS = 1.0
"""How long a request waits for a check for new data before it uses the previous state. Our choice."""
MEMORY_BYTES = 2 * 1024**3
"""The memory limit of DuckDB per connection; a page that shows 100,000 sessions needs one twentieth of it."""
MOST_OPEN = 3
"""The maximum number of connections: the current one, and older ones that requests still use."""
MOST_RESULTS = 4
"""The number of slow results that are cached per state, such as recently viewed ranges. Our choice."""
MOST_COMPUTING = 2
"""The number of requests that may compute a slow result or wait for one: each needs a thread and much memory."""
SLOT_SECONDS = 0.5
"""The maximum time that a request waits for one of these MOST_COMPUTING slots before it gets a 503. Our choice."""
MOST_WATCHED = 1_000
"""The maximum number of open segments whose processes are checked for a crash."""

Row = dict[str, Any]
T = TypeVar("T")


class BusyError(AgentobsError):
    """Too many slow pages are already being rendered."""


class ResultCache:
    """A cache of results that were computed from one state of the store; the oldest results are dropped first."""

    def __init__(self, slots: threading.Semaphore | None = None) -> None:
        """Start empty.

        Args:
            slots: limits the number of requests that compute or wait; shared with the caches of other states.
        """
        self._results: dict[Any, Any] = {}
        self._slots = slots or threading.BoundedSemaphore(MOST_COMPUTING)
        self._computing = threading.Lock()

    def get(self, key: Any, compute: Callable[[], T]) -> T:
        """Return the result for a key; only one is computed at a time, because it takes seconds and all cores.

        Raises:
            BusyError: the result is not cached, and too many requests are computing or waiting.
        """
        if key not in self._results:
            if not self._slots.acquire(timeout=SLOT_SECONDS):
                raise BusyError(
                    "other slow pages are being rendered",
                    todo="Reload this page in a few seconds",
                )
            try:
                with self._computing:
                    return self._cached(key, compute)
            finally:
                self._slots.release()
        return self._cached(key, compute)

    def _cached(self, key: Any, compute: Callable[[], T]) -> T:
        try:
            result: T = self._results[key]
        except KeyError:
            result = compute()
            while len(self._results) >= MOST_RESULTS:
                self._results.pop(next(iter(self._results)), None)
            self._results[key] = result
        return result


@dataclass(slots=True)
class _OpenState:
    """An open state of the store."""

    store: Store
    revision: int
    fingerprint: _Fingerprint
    open_segments: tuple[str, ...]
    """Segments whose process was running when the state was opened."""
    cache: ResultCache
    texts: dict[str, str | None] = field(default_factory=dict)
    """Original names and reasons, by their digests; None if a text cannot be read."""
    results: dict[Any, Any] = field(default_factory=dict)
    """The results about running sessions that were shown last."""
    summaries: dict[Any, Any] = field(default_factory=dict)
    """The results about all sessions that the list shows on each page."""
    titles: SearchableTitles = field(default_factory=SearchableTitles)
    """The titles that a search of the list covers."""
    readers: set[Store] = field(default_factory=set)
    """The cursors of the requests that use this state."""
    is_old: bool = False
    """Whether there is a newer state; the last request that uses this state then closes it."""
    has_signatures: bool = False
    """Whether the table `fired` is complete."""


@dataclass(frozen=True, slots=True)
class _Fingerprint:
    """The file sizes and times of a home: if they are unchanged, there is no new data."""

    published: tuple[int, int, int] | None
    """Inode, modification time and size of the published file."""
    segments: Mapping[str, int]
    """The size of the facts file of each segment, in bytes; -1 if it is compressed."""


@dataclass(frozen=True, slots=True)
class View:
    """The state of the store for one request, unaffected by new data. Not thread-safe."""

    store: Store
    """All tables and views of the store, and the tables `app.listing` and `app.found_signatures`."""
    revision: int
    """The number of the state; each new state has a higher number."""
    has_signatures: bool
    """Whether `app.found_signatures` is complete. The failure signatures of all sessions are computed last."""
    cache: ResultCache
    """Cached results about this state, shared with other requests."""
    texts: LabelTexts
    """The original names and reasons."""
    results: dict[Any, Any] = field(default_factory=dict)
    """Cached results about running sessions, shared with other requests."""
    summaries: dict[Any, Any] = field(default_factory=dict)
    """Cached results about all sessions, shared with other requests."""
    titles: SearchableTitles = field(default_factory=SearchableTitles)
    """The titles that a search of the list covers, shared with other requests."""

    def summary(self, name: str, compute: Callable[[], T]) -> T:
        """Return a quick result about all sessions, which is computed once per state, and again with all signatures."""
        key = name, self.has_signatures
        if key not in self.summaries:
            self.summaries[key] = compute()
        result: T = self.summaries[key]
        return result

    def named(self, name: str, /, **parameters: Any) -> list[Row]:
        """Return the rows of a named query (see `agentobs.store.named_queries`), with the original names."""
        return self.texts.replace_in_dicts(self.store.rows(name, **parameters).dicts())


@dataclass(frozen=True, slots=True)
class ReaderState:
    """A reader's view of the recordings at some time."""

    revision: int
    """The revision of the current state."""
    age_ns: int
    """The time since the start of the check that confirmed it. Later data may not be included."""
    is_closed: bool
    """Whether the application is closing."""


class Reader:
    """The current state of a home, kept up to date while pages are requested."""

    def __init__(self, home: Home) -> None:
        """Start to open the store in a separate thread.

        Args:
            home: the home with the recordings. It may not exist: errors are raised by `view`.
        """
        self._home = home
        self._condition = threading.Condition()
        self._current: _OpenState | None = None
        self._older_states: list[_OpenState] = []
        self._error: AgentobsError | None = None
        self._checks_started = self._checks_finished = 0
        self._checked_ns = 0
        self._confirmed_ns = world.monotonic()
        self._pause_ns = 0
        self._signatures_due_ns = 0
        self._revision = 0
        self._is_check_requested = True
        self._is_closed = False
        self._signature_cursor: Store | None = None
        self._slots = threading.BoundedSemaphore(MOST_COMPUTING)
        self._thread = threading.Thread(target=self._watch, name="agentobs-reader", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def view(self) -> Iterator[View]:
        """Yield the current state; it does not change while the context is open.

        Raises:
            HomeError, ForeignError, DamagedError: the store cannot be read, as for `agentobs.connect`.
        """
        opened, cursor = self._current_state()
        try:
            texts = LabelTexts(cursor, opened.texts)
            yield View(
                cursor,
                opened.revision,
                opened.has_signatures,
                opened.cache,
                texts,
                opened.results,
                opened.summaries,
                opened.titles,
            )
        finally:
            with self._condition:
                opened.readers.discard(cursor)
                cursor.close()
                self._close_unused()

    def revision(self) -> int:
        """Return the current revision, and request a check for new data without waiting for it."""
        with self._condition:
            self._request_check()
            return self._revision

    def latest(self) -> int:
        """Return the current revision. If the last check for new data is old, wait for a new check, as `view` does."""
        with self._condition:
            self._await_check()
            return self._revision

    def state(self) -> ReaderState:
        """Return the current revision and its age; waits for a check as `latest` does."""
        with self._condition:
            self._await_check()
            age_ns = max(world.monotonic() - self._confirmed_ns, 0)
            return ReaderState(self._revision, age_ns, self._is_closed)

    def stop(self, view: View) -> None:
        """Interrupt the running query of an abandoned request."""
        with self._condition:
            if any(view.store in each.readers for each in self._all()):
                view.store.interrupt()

    def interrupt(self) -> None:
        """Interrupt all running queries, and reject new ones."""
        with self._condition:
            self._is_closed = True
            cursors = [each for opened in self._all() for each in opened.readers]
            for cursor in [*cursors, *([self._signature_cursor] if self._signature_cursor else [])]:
                cursor.interrupt()
            self._condition.notify_all()

    def close(self) -> None:
        """Close all unused connections; the others are closed by their last reader."""
        self.interrupt()
        self._thread.join()
        with self._condition:
            if self._current:
                self._older_states.append(self._current)
                self._current = None
            for each in self._older_states:
                each.is_old = True
            self._close_unused()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _all(self) -> list[_OpenState]:
        return [*self._older_states, *([self._current] if self._current else [])]

    def _current_state(self) -> tuple[_OpenState, Store]:
        """Return the current state and a cursor.

        If the last check is old, wait for a new check, unless the check is slow.
        """
        with self._condition:
            self._await_check()
            self._condition.wait_for(lambda: self._current or self._error or self._is_closed)
            if self._is_closed:
                raise UsageError("the dashboard is shutting down")
            if self._error or not self._current:
                raise self._error or DamagedError("no connection could be opened")
            cursor = self._current.store.cursor()
            self._current.readers.add(cursor)
            return self._current, cursor

    def _await_check(self) -> None:
        # Wait for the next check: a check that is already running may have started before the newest data was written.
        number = self._checks_started + 1
        if self._request_check():
            self._condition.wait_for(lambda: self._is_check_finished(number), CHECK_SECONDS)

    def _is_check_finished(self, number: int) -> bool:
        return self._checks_finished >= number or self._is_closed

    def _request_check(self) -> bool:
        """Request a check for new data unless the last check is recent; return whether there will be a check."""
        if world.monotonic() - self._checked_ns < max(self._pause_ns, int(PAUSE_SECONDS * 1e9)):
            return False
        self._is_check_requested = True
        self._condition.notify_all()
        return True

    def _close_unused(self) -> None:
        for each in [each for each in self._older_states if not each.readers]:
            self._older_states.remove(each)
            each.store.close()
        self._condition.notify_all()

    def _watch(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_check_requested or self._is_closed)
                if self._is_closed:
                    return
                self._is_check_requested = False
                self._checks_started += 1
            started_ns = world.monotonic()
            self._run_step(self._check)
            with self._condition:
                self._checked_ns = world.monotonic()
                # Data that was written after the start of the check may be missing.
                self._confirmed_ns = started_ns
                self._pause_ns = min(self._checked_ns - started_ns, int(MOST_PAUSE_SECONDS * 1e9))
                self._checks_finished = self._checks_started
                self._condition.notify_all()
            # Signatures take longer than a check, so not every check computes them.
            if self._checked_ns >= self._signatures_due_ns:
                self._run_step(self._complete_signatures)
                finished_ns = world.monotonic()
                took_ns = finished_ns - self._checked_ns
                self._signatures_due_ns = finished_ns + PAUSE_FACTOR * took_ns

    def _run_step(self, step: Callable[[], None]) -> None:
        """Run a step of a check. Pages show its errors; the next check may succeed."""
        try:
            step()
        except Exception as found:
            self._set_error(self._read_error(found))

    def _read_error(self, found: Exception) -> AgentobsError:
        return DamagedError(f"cannot be read: {error_kind(found)}", where=str(self._home.path))

    def _set_error(self, error: AgentobsError | None) -> None:
        with self._condition:
            if str(error) != str(self._error):
                self._revision += 1
            self._error = error
            self._condition.notify_all()

    def _check(self) -> None:
        """Open the store again if there is new data. Pages show an error until a check succeeds."""
        error: AgentobsError | None = None
        try:
            existing_home(self._home.path)
            now = _fingerprint(self._home)
            opened = self._current
            if opened is None or self._error or _is_changed(self._home, opened, now):
                self._open(now)
        except AgentobsError as found:
            error = found
        except Exception as found:  # the next check may succeed
            error = self._read_error(found)
        self._set_error(error)

    def _open(self, previous: _Fingerprint) -> None:
        with self._condition:
            # A long-running request that uses an old state delays the next state, but not the other requests.
            if len(self._older_states) >= MOST_OPEN - 1:
                return
        store = open_store(self._home, memory_bytes=MEMORY_BYTES)
        try:
            store.prepare_listing()
            now = _fingerprint(self._home)
            is_unchanged = now.segments == previous.segments
            opened = _OpenState(
                store,
                self._revision + 1,
                now if is_unchanged else previous,  # data that this opening ingested is not new
                _open_segments(store),
                ResultCache(self._slots),
            )
            if self._current:
                store.adopt_findings(self._current.store)
        except BaseException:
            store.close()
            raise
        with self._condition:
            if self._current:
                self._current.is_old = True
                self._older_states.append(self._current)
            self._current = opened
            self._revision = opened.revision
            self._close_unused()

    def _complete_signatures(self) -> None:
        """Complete the table `fired` of the current state."""
        with self._condition:
            opened = self._current
            if opened is None or opened.has_signatures or self._is_closed:
                return
            cursor = self._signature_cursor = opened.store.cursor()
        try:
            is_new = cursor.complete_findings()
        except QueryError:  # not enough memory, or closed: the list is shown without signatures
            return
        finally:
            with self._condition:
                self._signature_cursor = None
                cursor.close()
        with self._condition:
            opened.has_signatures = True
            if is_new:
                self._revision += 1
                opened.revision = self._revision


def _fingerprint(home: Home) -> _Fingerprint:
    found = forms(home)
    sizes = {
        name: -1 if packed else _size(facts_path(home, name)) for name, packed in found.items()
    }
    published = None
    with contextlib.suppress(OSError):
        file = home.database.lstat()
        published = (file.st_ino, file.st_mtime_ns, file.st_size)
    return _Fingerprint(published, sizes)


def _is_changed(home: Home, opened: _OpenState, now: _Fingerprint) -> bool:
    """Return whether data was written, or a process died, since a state was opened."""
    if now != opened.fingerprint:
        return True
    return not all(is_alive(facts_path(home, name)) for name in opened.open_segments)


def _open_segments(store: Store) -> tuple[str, ...]:
    return tuple(row[0] for row in store.rows("internal/open_segments", limit=MOST_WATCHED).rows)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
