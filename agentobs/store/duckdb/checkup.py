"""Checkup: find problems of a home and its recordings, with their location and a remedy.

A checkup does not repair or write anything, not even a generation of the store.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import duckdb

from agentobs.errors import AgentobsError, DamagedError, HomeError
from agentobs.recording.journal.home import ENVIRONMENT, Home, existing_home, is_home
from agentobs.store.duckdb.connection import connect, named
from agentobs.store.duckdb.generations import current

Level = Literal["ok", "note", "wrong"]
"""`ok`: nothing to do; `note`: worth knowing; `wrong`: a problem that should be fixed."""

LARGE_BYTES = 10 * 1024**3
"""Homes above this size are reported; it is about ten thousand sessions of 60 turns (1.1 MB each). Our choice."""

SHOWN = 3
"""The maximum number of items that are listed by name."""

RECORD = (
    "Record a session first (agentobs demo creates one), or choose another home with --home or "
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    """The name of the check, one word."""
    level: Level
    found: str
    """A description of the result."""
    where: str
    """The file, directory, session, table or variable that it concerns."""
    todo: str
    """The remedy; empty if there is nothing to do."""


def check_home(path: Path, now_ns: int, since_ns: int) -> list[Finding]:
    """Return the findings for a home and its recordings, one or more for each check.

    Args:
        path: the home; it need not exist.
        now_ns: the current time.
        since_ns: problems of recordings, such as losses and orphans, are reported only if they occurred at or after
            this time; damage is always reported.
    """
    try:
        home = existing_home(path)
    except AgentobsError as error:
        what = "the directory is empty" if path.is_dir() else "it does not exist"
        if path.is_dir() and any(path.iterdir()):
            what = error.found
        return [
            Finding("home", "wrong", f"no recordings: {what}", str(path), f"{RECORD}{ENVIRONMENT}")
        ]
    if not is_home(home) and not home.database.is_file():
        text = "no recordings: the directory contains other files"
        return [Finding("home", "wrong", text, str(path), f"{RECORD}{ENVIRONMENT}")]
    found = [*_directory(home), *_key(home), *_size(home), *_published(home)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            connection = connect(home, ingest=False)
        except (AgentobsError, OSError, duckdb.Error) as error:
            return [*found, _unreadable(error, home)]
    with connection:
        found += _newer([str(each.message) for each in warned])
        found += _recent_findings(connection, now_ns, since_ns)
        found += _empty(connection, since_ns)
        found += _damaged(connection)
        found += _lost(connection, since_ns)
        found += _orphans(connection, since_ns)
        found += _clock(connection, now_ns, since_ns)
        found += _unpriced(connection, since_ns)
    return found


def _unreadable(error: Exception, home: Home) -> Finding:
    if isinstance(error, AgentobsError):
        return Finding("store", "wrong", error.found, error.where or str(home.path), error.todo)
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return Finding("store", "wrong", text, str(home.database), "agentobs verify shows details")


def _directory(home: Home) -> Iterator[Finding]:
    """Check whether the home is writable, and whether other users can read it."""
    if not home.segments.exists():
        text = "this is a copy of the store file without its recordings: it can be queried, but not rebuilt"
        yield Finding("home", "note", text, str(home.path), "Keep the home that it was copied from")
    elif not os.access(home.segments, os.W_OK | os.X_OK):
        text = "recordings cannot be written here: it is not writable"
        yield Finding("home", "wrong", text, str(home.segments), "Restore its mode: chmod 700")
    else:
        yield Finding("home", "ok", "recordings can be written here", str(home.path), "")
    try:
        home.check_key()
    except AgentobsError as error:
        text = f"recordings cannot be written here: {error.found}"
        yield Finding("key", "wrong", text, error.where, error.todo)
    paths = [home.path, home.segments, home.path / "key", *_files(home)]
    open_paths = [path for path in paths if _mode(path) & 0o077]
    if open_paths:
        text = f"other users can read {_several(len(open_paths), 'path')} in this home"
        todo = f"Revoke their access: chmod -R go= {home.path}"
        yield Finding("permissions", "wrong", text, _some(map(str, open_paths)), todo)
    else:
        yield Finding("permissions", "ok", "only you can read it", str(home.path), "")


def _key(home: Home) -> Iterator[Finding]:
    """Check whether the key for digests of names exists and is valid."""
    place = home.path / "key"
    try:
        home.check_key()
    except HomeError as error:
        yield Finding("key", "wrong", error.found, error.where or str(place), error.todo)
    except OSError as error:
        text = f"it cannot be read: {error.strerror or type(error).__name__}"
        yield Finding("key", "wrong", text, str(place), "Restore its mode: chmod 600")
    else:
        if not place.exists() and _files(home):
            text = (
                "it is missing, although there are recordings: new recordings will have different digests "
                "for the same names"
            )
            todo = "Restore it from a copy; otherwise new recordings use a new key"
            yield Finding("key", "wrong", text, str(place), todo)
        else:
            yield Finding("key", "ok", "the key is present and valid", str(place), "")


def _published(home: Home) -> Iterator[Finding]:
    """Check whether the published store is intact; if it is not, queries read the segments instead."""
    try:
        current(home)
    except DamagedError as error:
        text = f"the published store is damaged: {error.found}; queries read the segments instead"
        todo = error.todo or "agentobs ingest rebuilds it from the segments"
        yield Finding("store", "wrong", text, error.where or str(home.database), todo)
    except (AgentobsError, OSError, duckdb.Error):
        return  # `check_home` reports this error when it connects.


def _files(home: Home) -> list[Path]:
    return sorted(home.segments.iterdir()) if home.segments.is_dir() else []


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.lstat().st_mode)
    except OSError:
        return 0


def _size(home: Home) -> Iterator[Finding]:
    total = sum(_bytes(path) for path in home.path.rglob("*"))
    level: Level = "note" if total > LARGE_BYTES else "ok"
    todo = (
        "agentobs prune --older-than 30d --content-only deletes the content of old sessions"
        if level == "note"
        else ""
    )
    yield Finding("size", level, f"{total / 1024**2:,.1f} MiB", str(home.path), todo)


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _newer(warned: list[str]) -> Iterator[Finding]:
    newer = [text for text in warned if "newer version" in text]
    if newer:
        text = f"not included in results: {_several(len(newer), 'file')} of a newer version"
        todo = "Install that version of agentobs-kit here"
        yield Finding("versions", "wrong", text, _some(newer), todo)


def _recent_findings(
    connection: duckdb.DuckDBPyConnection, now_ns: int, since_ns: int
) -> Iterator[Finding]:
    [row] = _rows(connection, "recorded_lately", since_ns=since_ns) or [_NOTHING]
    if not row["sessions"]:
        days = (now_ns - (row["last_ns"] or now_ns)) / 86_400e9
        last = f"; the last one started {days:.1f} days ago" if row["last_ns"] else ""
        text = f"no recent sessions, {row['all_sessions']} older{last}"
        todo = (
            f"On the agent's machine, check that {ENVIRONMENT} is this home and that "
            "agentobs.record is called"
        )
        yield Finding("recorded", "note", text, "session_starts", todo)
        return
    contents = ", ".join(each for each in row["contents"] or [] if each)
    text = f"{_several(row['sessions'], 'recent session')}, with content: {contents}"
    yield Finding("recorded", "ok", text, "session_starts", "")


_NOTHING: dict[str, Any] = {"sessions": 0, "all_sessions": 0, "last_ns": None, "contents": []}


def _empty(connection: duckdb.DuckDBPyConnection, since_ns: int) -> Iterator[Finding]:
    """Report sessions that completed without a request, because their client may not be recorded."""
    rows = _rows(connection, "internal/empty_sessions", since_ns=since_ns)
    if rows:
        text = f"{_several(len(rows), 'session')} completed without a recorded request"
        todo = (
            "If the agent sent requests, its client is not recorded: pass it to agentobs.record, or use "
            "agentobs.record_all(); see docs/agents.md"
        )
        yield Finding("requests", "note", text, _sessions(rows), todo)


def _lost(connection: duckdb.DuckDBPyConnection, since_ns: int) -> Iterator[Finding]:
    rows = _rows(connection, "losses", since_ns=since_ns)
    if not rows:
        yield Finding("losses", "ok", "nothing was dropped", "session_ends, gaps, events", "")
        return
    why = _some(str(row["what"] or "unknown") for row in rows)
    text = f"dropped: {_several(sum(row['records'] for row in rows), 'record')} ({why})"
    todo = (
        "ENOSPC: free disk space. queue_full: the machine is too busy, or the disk too slow. These sessions are "
        "incomplete and cannot be frozen"
    )
    yield Finding("losses", "wrong", text, _sessions(rows), todo)


def _damaged(connection: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
    rows = _rows(connection, "damaged_segments")
    if not rows:
        yield Finding("damage", "ok", "all segments are readable", "segments", "")
        return
    missing = sum(row["missing_records"] or 0 for row in rows)
    text = f"damaged: {_several(len(rows), 'segment')}, with {_several(missing, 'record')} missing"
    names = _some(str(row["segment_id"]) for row in rows)
    yield Finding(
        "damage",
        "wrong",
        text,
        names,
        "agentobs verify shows where, and which sessions are affected",
    )


def _orphans(connection: duckdb.DuckDBPyConnection, since_ns: int) -> Iterator[Finding]:
    rows = _rows(connection, "open_at_death", since_ns=since_ns)
    if not rows:
        yield Finding("orphans", "ok", "no operations were left open", "spans", "")
        return
    names = _some(str(row["name"]) for row in rows)
    text = f"never ended: {_several(len(rows), 'span or call', 'spans and calls')} ({names})"
    todo = "Their process died or did not end them: agentobs orphans SESSION lists them"
    yield Finding("orphans", "wrong", text, _sessions(rows), todo)


def _clock(connection: duckdb.DuckDBPyConnection, now_ns: int, since_ns: int) -> Iterator[Finding]:
    rows = _rows(connection, "clock_jumps", since_ns=since_ns, now_ns=now_ns)
    if not rows:
        yield Finding("clock", "ok", "the wall clock did not jump", "events, spans", "")
        return
    most = max(row["jump_ns"] for row in rows)
    text = (
        f"the wall clock jumped by up to {most / 1e9:,.1f} s: {_some(row['what'] for row in rows)}"
    )
    todo = "Times of these sessions cannot be compared. Configure the clock to be slewed, not set, while agents run"
    yield Finding("clock", "wrong", text, _sessions(rows), todo)


def _unpriced(connection: duckdb.DuckDBPyConnection, since_ns: int) -> Iterator[Finding]:
    rows = _rows(connection, "unpriced_models", since_ns=since_ns)
    if not rows:
        yield Finding("prices", "ok", "every model has a price", "prices", "")
        return
    calls = sum(row["calls"] for row in rows)
    models = _some(str(row["model"] or "an unnamed model") for row in rows)
    text = f"without a price: {_several(calls, 'call')} ({models})"
    todo = "Add a price in prices.toml (docs/prices.md), or install a newer genai-prices. Sums omit these calls"
    yield Finding("prices", "wrong", text, "costs", todo)


def _rows(
    connection: duckdb.DuckDBPyConnection, query: str, **parameters: Any
) -> list[dict[str, Any]]:
    result = named(connection, query, **parameters)
    columns = [str(column[0]) for column in result.description or []]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]


def _sessions(rows: list[dict[str, Any]]) -> str:
    return "session " + _some(str(row["session_id"]) for row in rows)


def _some(names: Iterable[str]) -> str:
    """Return the first few distinct names, and the number of the other names."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - SHOWN:,} more" if len(known) > SHOWN else ""
    return ", ".join(known[:SHOWN]) + more


def _several(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
