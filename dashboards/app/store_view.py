"""Reads a store that agents are writing to, without blocking them or waiting for them.

One connection holds the current state. While pages are requested, one thread checks for new data and opens the next
connection in parallel. Requests continue with the previous connection until the next is ready, and the last of them
closes it. So readers never wait for an opening, and writers are not involved: the store is a file that is replaced,
never changed, and the segments are read up to their current end.
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
from agentobs.store.backend import open_store
from agentobs.store.label_texts import Texts
from agentobs.store.port import QueryError, Store

PAUSE_SECONDS = 1.0
"""The minimum pause between two checks for new data. Our choice: turns of agents take seconds."""
SHARE = 5
"""After a slow opening the pause is this many times as long, so that a large store does not occupy a core."""
PATIENCE_SECONDS = 1.0
"""How long a request after a pause waits for the new state before it gets the previous one. Our choice."""
MEMORY_BYTES = 2 * 1024**3
"""The memory limit of DuckDB per connection; a page about 100,000 sessions uses a twentieth of it."""
MOST_OPEN = 3
"""The maximum number of connections: the current one, and older ones that are still being read."""
MOST_KEPT = 4
"""The number of slow results cached per state, such as recently viewed ranges. Our choice."""
MOST_MAKING = 2
"""The number of requests that may compute a slow result or wait for one: each holds a thread and much memory."""
TURN_SECONDS = 0.5
"""How long a request waits to be one of these, before it gets a 503. Our choice."""
MOST_WATCHED = 1_000
"""The maximum number of running processes that are checked for a crash."""

Row = dict[str, Any]
T = TypeVar("T")


class BusyError(AgentobsError):
    """The page is slow to render, and too many such pages are being rendered already."""


class Kept:
    """A cache of results computed from one state of the store; the oldest are dropped first."""

    def __init__(self, places: threading.Semaphore | None = None) -> None:
        """Start empty.

        Args:
            places: limits the requests that compute or wait, shared with other states.
        """
        self._found: dict[Any, Any] = {}
        self._places = places or threading.BoundedSemaphore(MOST_MAKING)
        self._making = threading.Lock()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """Return the result for a key; only one is computed at a time, because it takes seconds and all cores.

        Raises:
            BusyError: there is no result yet, and too many requests compute or wait.
        """
        if key not in self._found:
            if not self._places.acquire(timeout=TURN_SECONDS):
                raise BusyError(
                    "other slow pages are being rendered",
                    todo="Reload this page in a few seconds",
                )
            try:
                with self._making:
                    return self._made(key, make)
            finally:
                self._places.release()
        return self._made(key, make)

    def _made(self, key: Any, make: Callable[[], T]) -> T:
        try:
            kept: T = self._found[key]
        except KeyError:
            kept = make()
            while len(self._found) >= MOST_KEPT:
                self._found.pop(next(iter(self._found)), None)
            self._found[key] = kept
        return kept


@dataclass(slots=True)
class _Opened:
    """One state of the store, open."""

    store: Store
    revision: int
    stamp: _Stamp
    open_segments: tuple[str, ...]
    """Segments whose process was running when the state was opened."""
    kept: Kept
    texts: dict[str, str | None] = field(default_factory=dict)
    """Original names and reasons, by their digests; None if they cannot be read."""
    readers: set[Store] = field(default_factory=set)
    """The cursors of the requests that are reading it."""
    is_old: bool = False
    """Whether there is a newer state, so that the last reader closes this one."""
    has_signatures: bool = False
    """Whether the table `fired` is complete."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """File sizes and times of a home: if they are unchanged, there is no new data."""

    published: tuple[int, int, int] | None
    """Inode, modification time and size of the published file."""
    segments: Mapping[str, int]
    """The size of the facts of each segment; -1 if compressed."""


@dataclass(frozen=True, slots=True)
class View:
    """The state of the store that one request reads; unaffected by new data. For one thread."""

    store: Store
    """Has all tables and views of the store, plus the tables `app.listing` and `app.fired`."""
    revision: int
    """The number of the state; it changes with each new state."""
    has_signatures: bool
    """Whether `app.fired` is complete: failure signatures of all sessions are computed after the rest."""
    kept: Kept
    """Results of other requests about this state."""
    texts: Texts
    """The original names and reasons."""

    def named(self, name: str, /, **parameters: Any) -> list[Row]:
        """Return the rows of a named query with the original names, see `agentobs.store.named_queries`."""
        return self.texts.shown_dicts(self.store.rows(name, **parameters).dicts())


class Reader:
    """The current state of a home, kept up to date while pages are requested."""

    def __init__(self, home: Home) -> None:
        """Start to open the store in a thread of its own.

        Args:
            home: the home with the recordings. Its existence is checked later, at each check for new data.
        """
        self._home = home
        self._changed = threading.Condition()
        self._opened: _Opened | None = None
        self._older: list[_Opened] = []
        self._error: AgentobsError | None = None
        self._begun = self._over = 0
        self._looked_ns = 0
        self._rest_ns = 0
        self._revision = 0
        self._is_wanted = True
        self._is_closed = False
        self._signature_cursor: Store | None = None
        self._places = threading.BoundedSemaphore(MOST_MAKING)
        self._thread = threading.Thread(target=self._watch, name="agentobs-reader", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def view(self) -> Iterator[View]:
        """Yield the current state; it does not change while the context is open.

        Raises:
            HomeError, ForeignError, DamagedError: the store cannot be read, as for `agentobs.connect`.
        """
        opened, cursor = self._taken()
        try:
            texts = Texts(cursor, opened.texts)
            yield View(cursor, opened.revision, opened.has_signatures, opened.kept, texts)
        finally:
            with self._changed:
                opened.readers.discard(cursor)
                cursor.close()
                self._close_unread()

    def revision(self) -> int:
        """Return which state would be read now, and have it looked for a newer one; waits for nothing."""
        with self._changed:
            self._want()
            return self._revision

    def latest(self) -> int:
        """Return the current revision, after a check for new data if the last one is old; waits as `view` does."""
        with self._changed:
            self._await_look()
            return self._revision

    def stop(self, view: View) -> None:
        """Interrupt the running query of an abandoned request."""
        with self._changed:
            if any(view.store in each.readers for each in self._all()):
                view.store.interrupt()

    def interrupt(self) -> None:
        """Interrupt all running queries, and reject new ones."""
        with self._changed:
            self._is_closed = True
            cursors = [each for opened in self._all() for each in opened.readers]
            for cursor in [*cursors, *([self._signature_cursor] if self._signature_cursor else [])]:
                cursor.interrupt()
            self._changed.notify_all()

    def close(self) -> None:
        """Close all unused connections; the others are closed by their last reader."""
        self.interrupt()
        self._thread.join()
        with self._changed:
            if self._opened:
                self._older.append(self._opened)
                self._opened = None
            for each in self._older:
                each.is_old = True
            self._close_unread()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _all(self) -> list[_Opened]:
        return [*self._older, *([self._opened] if self._opened else [])]

    def _taken(self) -> tuple[_Opened, Store]:
        """Return the state to read, after a check for new data if the last one is old and the check is fast."""
        with self._changed:
            self._await_look()
            self._changed.wait_for(lambda: self._opened or self._error or self._is_closed)
            if self._is_closed:
                raise UsageError("the application is closing")
            if self._error or not self._opened:
                raise self._error or DamagedError("no connection could be opened")
            cursor = self._opened.store.cursor()
            self._opened.readers.add(cursor)
            return self._opened, cursor

    def _await_look(self) -> None:
        # A check that is already running may have started before the data of this request was written.
        number = self._begun + 1
        if self._want():
            self._changed.wait_for(lambda: self._is_over(number), PATIENCE_SECONDS)

    def _is_over(self, number: int) -> bool:
        return self._over >= number or self._is_closed

    def _want(self) -> bool:
        """Request a check for new data, unless one was just done; return whether one will be done."""
        if world.monotonic() - self._looked_ns < max(self._rest_ns, int(PAUSE_SECONDS * 1e9)):
            return False
        self._is_wanted = True
        self._changed.notify_all()
        return True

    def _close_unread(self) -> None:
        for each in [each for each in self._older if not each.readers]:
            self._older.remove(each)
            each.store.close()
        self._changed.notify_all()

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_wanted or self._is_closed)
                if self._is_closed:
                    return
                self._is_wanted = False
                self._begun += 1
            started_ns = world.monotonic()
            self._survived(self._look)
            with self._changed:
                self._looked_ns = world.monotonic()
                self._over = self._begun
                self._changed.notify_all()
            self._survived(self._complete_signatures)
            with self._changed:
                self._looked_ns = world.monotonic()
                self._rest_ns = SHARE * (self._looked_ns - started_ns)

    def _survived(self, step: Callable[[], None]) -> None:
        """Run a step; errors are shown on the pages, and the next check may succeed."""
        try:
            step()
        except Exception as found:
            self._set_error(self._fault(found))

    def _fault(self, found: Exception) -> AgentobsError:
        return DamagedError(f"cannot be read: {error_kind(found)}", where=str(self._home.path))

    def _set_error(self, error: AgentobsError | None) -> None:
        with self._changed:
            if str(error) != str(self._error):
                self._revision += 1
            self._error = error
            self._changed.notify_all()

    def _look(self) -> None:
        """Open the store again if there is new data; an error is shown until a check succeeds."""
        error: AgentobsError | None = None
        try:
            existing_home(self._home.path)
            before = _stamp(self._home)
            opened = self._opened
            if opened is None or self._error or _is_changed(self._home, opened, before):
                self._open(before)
        except AgentobsError as found:
            error = found
        except Exception as found:  # the next check may succeed
            error = self._fault(found)
        self._set_error(error)

    def _open(self, before: _Stamp) -> None:
        with self._changed:
            # A request that reads an old state for long delays the next opening, but not the other requests.
            if len(self._older) >= MOST_OPEN - 1:
                return
        store = open_store(self._home, memory_bytes=MEMORY_BYTES)
        try:
            store.prepare_listing()
            after = _stamp(self._home)
            same = after.segments == before.segments
            opened = _Opened(
                store,
                self._revision + 1,
                after if same else before,  # data that this opening ingested is not new
                _open_segments(store),
                Kept(self._places),
            )
            if self._opened:
                store.adopt_findings(self._opened.store)
        except BaseException:
            store.close()
            raise
        with self._changed:
            if self._opened:
                self._opened.is_old = True
                self._older.append(self._opened)
            self._opened = opened
            self._revision = opened.revision
            self._close_unread()

    def _complete_signatures(self) -> None:
        """Complete the table `fired` of the current state."""
        with self._changed:
            opened = self._opened
            if opened is None or opened.has_signatures or self._is_closed:
                return
            cursor = self._signature_cursor = opened.store.cursor()
        try:
            is_new = cursor.complete_findings()
        except QueryError:  # not enough memory, or closed: the list is shown without signatures
            return
        finally:
            with self._changed:
                self._signature_cursor = None
                cursor.close()
        with self._changed:
            opened.has_signatures = True
            if is_new:
                self._revision += 1
                opened.revision = self._revision


def _stamp(home: Home) -> _Stamp:
    found = forms(home)
    sizes = {
        name: -1 if packed else _size(facts_path(home, name)) for name, packed in found.items()
    }
    published = None
    with contextlib.suppress(OSError):
        file = home.database.lstat()
        published = (file.st_ino, file.st_mtime_ns, file.st_size)
    return _Stamp(published, sizes)


def _is_changed(home: Home, opened: _Opened, now: _Stamp) -> bool:
    """Return whether data was written since a state was opened, or a process died since."""
    if now != opened.stamp:
        return True
    return not all(is_alive(facts_path(home, name)) for name in opened.open_segments)


def _open_segments(store: Store) -> tuple[str, ...]:
    return tuple(row[0] for row in store.rows("internal/open_segments", limit=MOST_WATCHED).rows)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
