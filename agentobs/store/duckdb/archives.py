"""Archives: sessions of past months are stored in separate files, so that an ingest copies only recent data.

The published file is copied for each generation. If it has grown beyond `ARCHIVE_BYTES`, the rows of sessions that
ended in a past month move to `archive/YYYY-MM.duckdb`, and the next generation is published without them. An archive is
synced to disk before the generation that lists it is published, and it never changes afterwards. If its layout changes
or one of its sessions is pruned, a new file with another name replaces it. Therefore each generation has its own
archives, readers keep the archives that they opened, and the next ingest deletes the archives that the current
generation does not list. Archives contain only tables; prices and watermarks stay in the published file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from agentobs import world
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.records.facts import TABLES, Pruning
from agentobs.store.disk_usage import bytes_in
from agentobs.store.duckdb import generations
from agentobs.store.duckdb.generations import ARCHIVE_NAME, ARCHIVES, Archive
from agentobs.store.duckdb.schema import (
    SETTINGS,
    create_temporary_costs,
    newest,
    remember,
    transaction,
)
from agentobs.store.fact_columns import fact_columns

VARIABLE = "AGENTOBS_ARCHIVE_BYTES"
ARCHIVE_BYTES = 1_000_000_000
"""The size of the published file above which past months are archived, unless `AGENTOBS_ARCHIVE_BYTES` sets another
size. Our choice: a file of this size is copied in a few seconds.
"""
SHARE = 10
"""Sessions are archived only if they have at least a tenth of all rows, because the rest of the file has to be
rewritten. Our choice.
"""

MOVED = tuple(table for table in TABLES.values() if table != TABLES[Pruning])
"""The tables whose rows move to archives. Prunings stay in the published file."""


def is_large(path: Path) -> bool:
    """Return whether a published file is so large that past months are archived."""
    return path.stat().st_size > bytes_in(VARIABLE, ARCHIVE_BYTES)


def sessions_by_month(path: Path) -> dict[str, list[str]]:
    """Return the sessions of a draft that should be archived, by the month (UTC) of their last activity.

    These sessions have no activity in the current month and no open segment. The result is empty if they have too few
    rows to make archiving worthwhile.
    """
    with duckdb.connect(str(path), read_only=True, config=SETTINGS) as connection:
        rows = connection.execute(_SESSIONS, {"month_ns": _month_ns(world.now())}).fetchall()
        counted = connection.execute(_ROWS).fetchone()
    by_month: dict[str, list[str]] = {}
    for session_id, month, _ in rows:
        by_month.setdefault(month, []).append(session_id)
    is_worth_it = counted and sum(row[2] for row in rows) * SHARE >= counted[0]
    return by_month if is_worth_it else {}


def seal(home: Home, path: Path, by_month: Mapping[str, Sequence[str]]) -> tuple[Archive, ...]:
    """Write the rows of some sessions of a draft to new archives, one per month.

    Raises:
        OSError, duckdb.Error: an archive could not be written.
    """
    condition = "WHERE session_id IN (SELECT unnest($sessions))"
    return tuple(
        _written(home, month, path, condition, {"sessions": list(sessions)})
        for month, sessions in sorted(by_month.items())
    )


def renewed(home: Home, archives: Sequence[Archive]) -> tuple[Archive, ...]:
    """Return the archives; an archive with an older layout is replaced by a new file.

    Raises:
        DamagedError: an archive cannot be read.
        OSError, duckdb.Error: an archive could not be written.
    """
    if not archives:
        return ()
    with duckdb.connect(config=SETTINGS) as connection:
        layouts = list(generations.attach_archives(connection, home, archives).values())
    result = []
    for archive, layout in zip(archives, layouts, strict=True):
        if layout < newest():
            draft = generations.draft(home, copy=True, of=home.archive / archive.name)
            with transaction(draft, is_bare=True):
                pass
            archive = _placed(home, archive.name[:7], draft)
        result.append(archive)
    return tuple(result)


def without(
    home: Home, archives: Sequence[Archive], pruned: Collection[tuple[str, str]]
) -> tuple[tuple[Archive, ...], int]:
    """Return the archives without the rows of pruned sessions, and the number of removed rows. Archives that had such
    rows are replaced by new files.

    Args:
        home: the home of the archives.
        archives: the archives of the current generation.
        pruned: pairs of segment ID and session ID.

    Raises:
        OSError, duckdb.Error: an archive could not be written.
    """
    if not pruned:
        return tuple(archives), 0
    kept: list[Archive] = []
    removed = 0
    parameters = {
        "segments": [each for each, _ in pruned],
        "sessions": [each for _, each in pruned],
    }
    condition = f"WHERE (segment_id, session_id) NOT IN ({_PRUNED})"
    for archive in archives:
        path = home.archive / archive.name
        with duckdb.connect(str(path), read_only=True, config=SETTINGS) as connection:
            matching, others = connection.execute(_MATCHING, parameters).fetchone() or (0, 0)
        if not matching:
            kept.append(archive)
        elif others:
            kept.append(_written(home, archive.name[:7], path, condition, parameters))
        removed += matching
    return tuple(kept), removed


def note(connection: duckdb.DuckDBPyConnection, archives: Sequence[Archive]) -> None:
    """Store the list of its archives in a draft."""
    remember(connection, ARCHIVES, json.dumps([dataclasses.asdict(each) for each in archives]))


def clear(home: Home, kept: Sequence[Archive]) -> None:
    """Delete all archives except `kept`; the caller holds the lock."""
    if home.archive.is_symlink() or not home.archive.is_dir():
        return
    names = {archive.name for archive in kept}
    for path in home.archive.iterdir():
        if ARCHIVE_NAME.fullmatch(path.name) and path.name not in names:
            path.unlink(missing_ok=True)
    if not names:
        with contextlib.suppress(OSError):  # it contains files that agentobs did not write
            home.archive.rmdir()


@contextlib.contextmanager
def costs_of_all(
    connection: duckdb.DuckDBPyConnection, archived: Collection[str]
) -> Iterator[None]:
    """Include attached archives in the view `costs` of the connection to a draft, while the context is open."""
    if not archived:
        yield
        return
    # `main` alone would resolve to the schema of the temporary views.
    row = connection.execute("SELECT current_database()").fetchone()
    draft_schema = '"' + str(row[0] if row else "").replace('"', '""') + '".main'
    connection.execute(f"CREATE TEMP VIEW usage AS {united('usage', archived, draft_schema)}")
    create_temporary_costs(connection)
    yield
    connection.execute("DROP VIEW temp.costs")
    connection.execute("DROP VIEW temp.usage")


def united(table: str, archived: Collection[str], first: str = "") -> str:
    """Return the SQL for the rows of a table in a database and in attached archives.

    Args:
        table: the name of the table.
        archived: the names under which the archives are attached.
        first: the schema of the database, by default `main`.
    """
    places = [first or "main", *(f"{name}.main" for name in archived)]
    return " UNION ALL BY NAME ".join(f"FROM {place}.{table}" for place in places)


def _written(
    home: Home, month: str, source: Path, condition: str, parameters: Mapping[str, object]
) -> Archive:
    """Write the rows of a database that meet a condition to a new archive."""
    draft = generations.draft(home, copy=False)
    quoted = str(source).replace("'", "''")
    with transaction(draft, is_bare=True) as connection:
        connection.execute(f"ATTACH '{quoted}' AS source (READ_ONLY)")
        for table in MOVED:
            connection.execute(
                f"INSERT INTO main.{table} BY NAME FROM source.main.{table} {condition}", parameters
            )
    return _placed(home, month, draft)


def _placed(home: Home, month: str, draft: Path) -> Archive:
    """Sync a draft to disk and move it to its final path. No generation lists it yet."""
    home.archive.mkdir(mode=0o700, exist_ok=True)
    found = generations.made_durable(draft)
    name = _free_name(home, month)
    archive = Archive(name, found.st_size, generations.file_digest(draft), found.st_mtime_ns)
    draft.rename(home.archive / name)
    sync_directory(home.archive)
    sync_directory(home.path)
    return archive


def _free_name(home: Home, month: str) -> str:
    """Return the name of the next archive of a month. Its number is higher than those of all existing archives, which
    may be open in other processes.
    """
    found = [ARCHIVE_NAME.fullmatch(path.name) for path in home.archive.iterdir()]
    numbers = [int(each[2] or 1) for each in found if each and each[1] == month]
    return f"{month}.{max(numbers) + 1}.duckdb" if numbers else f"{month}.duckdb"


def _month_ns(now_ns: int) -> int:
    """Return the start of the month (UTC) that contains a time, in nanoseconds since 1970."""
    now = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC)
    return int(datetime(now.year, now.month, 1, tzinfo=UTC).timestamp()) * 1_000_000_000


def _last(table: str) -> str:
    """Return the SQL for the latest time in a row.

    It is the maximum of all `_ns` columns; durations and offsets are always smaller than times since 1970.
    """
    names = [name for name in fact_columns(table) if name.endswith("_ns")]
    return f"greatest({', '.join(['0::BIGINT', *names])})"


_SEEN = " UNION ALL ".join(
    f"SELECT session_id, segment_id, {_last(table)} AS at_ns FROM {table}" for table in MOVED
)
_ROWS = f"SELECT count(*) FROM ({_SEEN})"
_SESSIONS = f"""
    SELECT session_id, strftime(make_timestamp_ns(max(at_ns)), '%Y-%m'), count(*)
    FROM ({_SEEN}) LEFT JOIN segments USING (segment_id)
    WHERE session_id IS NOT NULL
    GROUP BY session_id
    HAVING max(at_ns) > 0 AND max(at_ns) < $month_ns AND NOT bool_or(coalesce(state, 'open') = 'open')
    ORDER BY session_id
"""
_PRUNED = "SELECT unnest($segments), unnest($sessions)"
_MATCHING = f"""
    SELECT count(*) FILTER (WHERE is_pruned), count(*) FILTER (WHERE NOT is_pruned)
    FROM (SELECT (segment_id, session_id) IN ({_PRUNED}) AS is_pruned FROM ({_SEEN}))
"""
