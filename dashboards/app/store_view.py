"""A store that agents are writing to, read without stopping them and without waiting for them.

One connection holds the state that is shown. One thread looks, while somebody reads, whether there is more by now, and
opens the next connection beside; requests go on with the one before until the next is ready, and the last of them
closes it. So nobody who reads waits for an opening, and nobody who writes is asked for anything: the store is a file
that is replaced, never changed, and the segments are read as far as they go.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import duckdb

from agentobs import world
from agentobs.errors import AgentobsError, DamagedError, UsageError, error_kind
from agentobs.recording.journal.home import Home, existing_home
from agentobs.recording.journal.segments import facts_path, forms, is_alive
from agentobs.store.duckdb.connection import connected
from agentobs.store.label_texts import Texts
from agentobs.store.named_queries import named
from dashboards.app.list_tables import make_tables, take_over, tell_signatures

PAUSE_SECONDS = 1.0
"""How long nothing is looked for after a look. Our choice: agents take turns of seconds."""
SHARE = 5
"""After an opening that took long the pause is so many times as long, so that a large store does not take a core."""
PATIENCE_SECONDS = 1.0
"""How long a reader who comes after a pause waits for what is new, before it gets what was. Our choice."""
MEMORY_BYTES = 2 * 1024**3
"""What DuckDB may take for one connection; a page over 100,000 sessions takes a twentieth of it."""
MOST_OPEN = 3
"""How many connections there are at most: the one that is shown, and those before it that somebody still reads."""
MOST_KEPT = 4
"""How many answers that took long are kept of a state: ranges that somebody goes back to. Our choice."""
MOST_MAKING = 2
"""How many requests may make what takes long, or wait for another to make it: each holds a thread, and much memory."""
TURN_SECONDS = 0.5
"""How long a request waits to be one of these, before it is told to come again. Our choice."""
MOST_WATCHED = 1_000
"""Of how many running processes it is noticed that they died without a word."""

Row = dict[str, Any]
T = TypeVar("T")


class BusyError(AgentobsError):
    """What was asked for takes long, and others are waiting for such pages already."""


class Kept:
    """What is worked out once for a state of the store and shown again; the oldest goes where there is too much."""

    def __init__(self, places: threading.Semaphore | None = None) -> None:
        """Make it empty.

        Args:
            places: of those who make something or wait for it, shared with other states.
        """
        self._found: dict[Any, Any] = {}
        self._places = places or threading.BoundedSemaphore(MOST_MAKING)
        self._making = threading.Lock()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """Return what was made for a key; one is made at a time, for it takes seconds and all cores.

        Raises:
            BusyError: nothing is there yet, and others are making or waiting.
        """
        if key not in self._found:
            if not self._places.acquire(timeout=TURN_SECONDS):
                raise BusyError(
                    "other pages that take long are being made",
                    todo="Load this one again in a few seconds",
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

    connection: duckdb.DuckDBPyConnection
    revision: int
    stamp: _Stamp
    open_segments: tuple[str, ...]
    """Segments whose process lived when it was opened."""
    kept: Kept
    texts: dict[str, str | None] = field(default_factory=dict)
    """Names and reasons as they were written, by the digests that stand for them; None if that cannot be read."""
    readers: set[duckdb.DuckDBPyConnection] = field(default_factory=set)
    """The cursors of the requests that read it now."""
    is_old: bool = False
    """Whether there is a newer one, so that the last reader closes it."""
    has_signatures: bool = False
    """Whether the table `fired` is whole."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What a home looks like from outside: while this is the same, nothing is new."""

    published: tuple[int, int, int] | None
    """Inode, time and size of the published file."""
    segments: Mapping[str, int]
    """Sizes of the facts of each segment that is not compressed; -1 for a compressed one."""


@dataclass(frozen=True, slots=True)
class View:
    """What one request reads: one state of the store, whatever is recorded meanwhile. For one thread."""

    connection: duckdb.DuckDBPyConnection
    """With all tables and views of the store, and two tables more: `app.listing` and `app.fired`."""
    revision: int
    """Which state it is; another number is another state."""
    has_signatures: bool
    """Whether `app.fired` is whole: failure signatures over all sessions are told a while after the rest."""
    kept: Kept
    """What other requests worked out about this state."""
    texts: Texts
    """Names and reasons as they were written."""

    def named(self, name: str, /, **parameters: Any) -> list[Row]:
        """Return the rows of a named query with names as they were written, see `agentobs.store.named_queries`."""
        return self.texts.shown_dicts(_dicts(named(self.connection, name, **parameters)))

    def select(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[Row]:
        """Return the rows of a statement of ours, with names and reasons as they were written."""
        answered = self.connection.execute(sql, parameters or None)
        return self.texts.shown_dicts(_dicts(answered))


class Reader:
    """The state of a home that is shown, kept up to date while somebody reads it."""

    def __init__(self, home: Home) -> None:
        """Begin to open the store, in a thread of its own.

        Args:
            home: where the recordings are. That they are there is asked at each look, not here.
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
        self._telling: duckdb.DuckDBPyConnection | None = None
        self._places = threading.BoundedSemaphore(MOST_MAKING)
        self._thread = threading.Thread(target=self._watch, name="agentobs-reader", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def view(self) -> Iterator[View]:
        """Give what there is now; it stays as it is while the context is open.

        Raises:
            HomeError, ForeignError, DamagedError: the store cannot be read, as for `agentobs.connect`.
        """
        opened, cursor = self._taken()
        try:
            texts = Texts(cursor, self._home, opened.texts)
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
        """Return which state would be read, after a look where the last one is long ago; waits as `view` does."""
        with self._changed:
            self._await_look()
            return self._revision

    def stop(self, view: View) -> None:
        """Stop what is asked right now by one request, which nobody waits for."""
        with self._changed:
            if any(view.connection in each.readers for each in self._all()):
                view.connection.interrupt()

    def interrupt(self) -> None:
        """Stop what is asked right now, and let nobody ask more."""
        with self._changed:
            self._is_closed = True
            asked = [each for opened in self._all() for each in opened.readers]
            for cursor in [*asked, *([self._telling] if self._telling else [])]:
                cursor.interrupt()
            self._changed.notify_all()

    def close(self) -> None:
        """Close what nobody reads; the rest is closed by its last reader."""
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

    def _taken(self) -> tuple[_Opened, duckdb.DuckDBPyConnection]:
        """Return the state to read, after a look where the last one is long ago and this one comes soon."""
        with self._changed:
            self._await_look()
            self._changed.wait_for(lambda: self._opened or self._error or self._is_closed)
            if self._is_closed:
                raise UsageError("the application is closing")
            if self._error or not self._opened:
                raise self._error or DamagedError("nothing could be opened")
            cursor = self._opened.connection.cursor()
            self._opened.readers.add(cursor)
            return self._opened, cursor

    def _await_look(self) -> None:
        # A look that has begun already may have looked before what this request is about was written.
        number = self._begun + 1
        if self._want():
            self._changed.wait_for(lambda: self._is_over(number), PATIENCE_SECONDS)

    def _is_over(self, number: int) -> bool:
        return self._over >= number or self._is_closed

    def _want(self) -> bool:
        """Have it looked for something new, unless that was done just now; returns whether it will be."""
        if world.monotonic() - self._looked_ns < max(self._rest_ns, int(PAUSE_SECONDS * 1e9)):
            return False
        self._is_wanted = True
        self._changed.notify_all()
        return True

    def _close_unread(self) -> None:
        for each in [each for each in self._older if not each.readers]:
            self._older.remove(each)
            each.connection.close()
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
            self._survived(self._tell_signatures)
            with self._changed:
                self._looked_ns = world.monotonic()
                self._rest_ns = SHARE * (self._looked_ns - started_ns)

    def _survived(self, step: Callable[[], None]) -> None:
        """Take a step; whatever goes wrong is told on the pages, and the next look may do better."""
        try:
            step()
        except Exception as found:
            self._tell(self._fault(found))

    def _fault(self, found: Exception) -> AgentobsError:
        return DamagedError(f"cannot be read: {error_kind(found)}", where=str(self._home.path))

    def _tell(self, error: AgentobsError | None) -> None:
        with self._changed:
            if str(error) != str(self._error):
                self._revision += 1
            self._error = error
            self._changed.notify_all()

    def _look(self) -> None:
        """Open the store anew where there is something new; an error stands until a look that has none."""
        error: AgentobsError | None = None
        try:
            existing_home(self._home.path)
            before = _stamp(self._home)
            opened = self._opened
            if opened is None or self._error or _is_changed(self._home, opened, before):
                self._open(before)
        except AgentobsError as found:
            error = found
        except Exception as found:  # whatever it is, the next look may do better
            error = self._fault(found)
        self._tell(error)

    def _open(self, before: _Stamp) -> None:
        with self._changed:
            # Who reads an old state for long keeps the next from being opened, but nobody else waits for that.
            if len(self._older) >= MOST_OPEN - 1:
                return
        connection = connected(self._home, ingest=True, memory_bytes=MEMORY_BYTES)
        try:
            make_tables(connection)
            after = _stamp(self._home)
            same = after.segments == before.segments
            opened = _Opened(
                connection,
                self._revision + 1,
                after if same else before,  # what was ingested by this opening is nothing new
                _open_segments(connection),
                Kept(self._places),
            )
            if self._opened:
                with self._opened.connection.cursor() as before_it:
                    take_over(before_it, connection)
        except BaseException:
            connection.close()
            raise
        with self._changed:
            if self._opened:
                self._opened.is_old = True
                self._older.append(self._opened)
            self._opened = opened
            self._revision = opened.revision
            self._close_unread()

    def _tell_signatures(self) -> None:
        """Complete the table `fired` of the state that is shown."""
        with self._changed:
            opened = self._opened
            if opened is None or opened.has_signatures or self._is_closed:
                return
            cursor = self._telling = opened.connection.cursor()
        try:
            is_new = tell_signatures(cursor)
        except duckdb.Error:  # not enough memory, or closed: the list is told without them
            return
        finally:
            with self._changed:
                self._telling = None
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
    """Return whether anything was written since a state was opened, or a process died that had been alive."""
    if now != opened.stamp:
        return True
    return not all(is_alive(facts_path(home, name)) for name in opened.open_segments)


def _open_segments(connection: duckdb.DuckDBPyConnection) -> tuple[str, ...]:
    sql = "SELECT segment_id FROM segments WHERE state = 'open' LIMIT ?"
    return tuple(row[0] for row in connection.execute(sql, [MOST_WATCHED]).fetchall())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _dicts(answered: duckdb.DuckDBPyConnection) -> list[Row]:
    columns = [str(column[0]) for column in answered.description or []]
    return [dict(zip(columns, row, strict=True)) for row in answered.fetchall()]
