"""The layout of the store: migrations, which are applied once, and views, which are recreated when their text changes.

The SQL is in `migrations/` and `views/`, both applied in the order of their file names. A released migration is never
edited; changes go into the next migration. The views do not name a schema, so that the same text can create them in the
published file and in a live connection, where the fact tables are views as well. Changes to views need no migration.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb

from agentobs import world
from agentobs.recording.journal.home import VIEWS_PREFIX, create
from agentobs.records.canonical_json import digest
from agentobs.runtime import process

APPLICATION = "agentobs"
"""The value in the table `meta` that identifies a file as written by agentobs."""

SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    # Otherwise, a name in a query could refer to a variable of this program.
    "python_enable_replacements": False,
    # Rows are read from paths like /proc/self/fd/7, which denote a different file each time.
    "enable_external_file_cache": False,
}
"""The settings of all connections."""

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from a layout to the next."""

    number: int
    """Its number in the order of migrations, from 1."""
    name: str
    """The name of its file, without the suffix."""
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations in their order."""
    paths = sorted((_HERE / "migrations").glob("*.sql"))
    return tuple(Migration(int(p.stem[:4]), p.stem, p.read_text("utf-8")) for p in paths)


def newest() -> int:
    """Return the number of the layout that this code reads and writes."""
    return migrations()[-1].number


def layout(connection: duckdb.DuckDBPyConnection, database: str) -> int | None:
    """Return the layout number of an attached database, or None if agentobs did not write it."""
    try:
        rows = connection.execute(f"SELECT key, value FROM {database}.main.meta").fetchall()
    except (duckdb.CatalogException, duckdb.BinderException):
        return None
    known = dict(rows)
    form = known.get("format")
    if known.get("application") != APPLICATION or not isinstance(form, str) or not form.isdecimal():
        return None
    return int(form)


def migrate(
    connection: duckdb.DuckDBPyConnection,
    *,
    has_layout: bool | None = None,
    is_bare: bool = False,
    bound: Path | None = None,
) -> None:
    """Migrate the database in use to the newest layout, within the caller's transaction.

    Args:
        connection: the connection to the database.
        has_layout: whether the database has a layout; None to look in its catalog, which takes a hundredth of a second
            in a file.
        is_bare: whether to create only tables, because comments and views take more time than tables.
        bound: a file with bound views, which are copied into a database that has none; None to bind the views.
    """
    if has_layout is None:
        has_layout = _has_migrations(connection)
    before = _applied(connection) if has_layout else 0
    for migration in migrations():
        if migration.number <= before:
            continue
        connection.execute(_without_comments(migration.sql) if is_bare else migration.sql)
        connection.execute(
            "INSERT INTO migrations VALUES (?, ?, ?)",
            [migration.number, migration.name, world.now()],
        )
        remember(connection, "application", APPLICATION)
        remember(connection, "format", str(migration.number))
    if not is_bare and _recall(connection, "views") != digest(_views().encode()):
        if bound is None:
            connection.execute(_views())
        else:
            _copy_views(connection, bound)
            connection.execute(_only_comments(_views()))
        remember(connection, "views", digest(_views().encode()))


@contextlib.contextmanager
def transaction(path: Path, *, is_bare: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a draft in one transaction; on exit, commit, checkpoint and close it."""
    if not path.exists():
        create(path)
        path.write_bytes(_blank(path, is_bare))
    with _changed(path, is_bare) as connection:
        yield connection


@contextlib.contextmanager
def _changed(
    path: Path, is_bare: bool, bound: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    has_layout = path.exists()
    # Use one thread: the files with rows are too small to be split, so a second thread only adds overhead.
    with duckdb.connect(str(path), config={**SETTINGS, "threads": 1}) as connection:
        connection.begin()
        migrate(connection, has_layout=has_layout, is_bare=is_bare, bound=bound)
        yield connection
        connection.commit()
        connection.execute("CHECKPOINT")


class State:
    """Empty databases that this process has created."""

    def __init__(self) -> None:
        self.blanks: dict[tuple[bool, str], bytes] = {}


def _blank(path: Path, is_bare: bool) -> bytes:
    """Return an empty database of the newest layout, created next to `path` at the first call in this process.

    Creating a database takes a fifth of a second, mostly for comments; copying its megabyte takes a hundredth of that
    time. Binding the views takes as long, so they are copied from the same file as the cached views.
    """
    state = process.state(State)
    key = is_bare, digest(_views().encode() + repr(migrations()).encode())
    if key not in state.blanks:
        draft = path.with_name(f"{path.stem}.blank{path.suffix}")
        bound = None if is_bare else path.with_name(f"{path.stem}.views{path.suffix}")
        try:
            if bound is not None:
                create(bound)
                bound.write_bytes(_bound_views())
            with _changed(draft, is_bare, bound):
                pass
            state.blanks[key] = draft.read_bytes()
        finally:
            if bound is not None:
                bound.unlink(missing_ok=True)
            draft.unlink(missing_ok=True)
            draft.with_name(f"{draft.name}.wal").unlink(missing_ok=True)
    return state.blanks[key]


def create_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the tables of the newest layout in an empty database, without comments."""
    for migration in migrations():
        connection.execute(_without_comments(migration.sql))


def create_views(connection: duckdb.DuckDBPyConnection, cache: Path | None = None) -> None:
    """Create the views in the database in use, without comments.

    Binding all views takes a seventh of a second of CPU time, because each view also binds the views that it uses.
    Copying them from a file with bound views takes a hundredth of a second.

    Args:
        connection: the connection to an in-memory database that has the tables.
        cache: the file with bound views, from `cached_views`; None to bind the views.
    """
    if cache is not None:
        try:
            _copy_views(connection, cache)
            connection.execute("DETACH bound_views")
            return
        except duckdb.Error:
            # The file is damaged, or was written by another version of DuckDB. The next process writes it again, unless
            # the home cannot be written.
            with contextlib.suppress(OSError):
                cache.unlink()
            connection.execute("DETACH DATABASE IF EXISTS bound_views")
    connection.execute(_without_comments(_views()))


def _copy_views(connection: duckdb.DuckDBPyConnection, file: Path) -> None:
    """Copy the views of a file with bound views to the database in use. The file stays attached as `bound_views`."""
    row = connection.execute("SELECT current_database()").fetchone()
    assert row is not None
    connection.execute(f"ATTACH '{_quoted(file)}' AS bound_views (READ_ONLY)")
    connection.execute(f'COPY FROM DATABASE bound_views TO "{row[0]}" (SCHEMA)')


def cached_views(directory: Path, *, write: bool) -> Path | None:
    """Return the file that contains the bound views of this version; None if there is no such file.

    Args:
        directory: the directory of the file, whose name depends on the views and on DuckDB's version.
        write: whether to create the file if it is missing; errors are ignored.
    """
    version = digest((_views() + duckdb.__version__).encode()).rpartition(":")[2]
    path = directory / f"{VIEWS_PREFIX}{version[:16]}.duckdb"
    if path.is_file():
        return path
    if not write:
        return None
    draft = directory / f"{VIEWS_PREFIX}{world.new_id()}"
    try:
        create(draft)
        draft.write_bytes(_bound_views())  # not synced: a damaged file is written again
        draft.replace(path)
    except (OSError, duckdb.Error):
        draft.unlink(missing_ok=True)
        return None
    return path


@cache
def _bound_views() -> bytes:
    """Return a database that contains only the views."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "views.duckdb")
        with duckdb.connect(config=SETTINGS) as connection:
            create_tables(connection)
            connection.execute(f"ATTACH '{_quoted(path)}' AS bound_views")
            connection.execute("SET search_path = 'bound_views.main,memory.main'")
            connection.execute(_without_comments(_views()))
            connection.execute("SET search_path = 'memory.main'")
            connection.execute("DETACH bound_views")
        return path.read_bytes()


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def create_temporary_costs(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the view `costs` as a temporary view, so that it uses the temporary view `usage` of this connection."""
    sql = _without_comments((_HERE / "views" / "00_costs.sql").read_text("utf-8"))
    connection.execute(sql.replace("CREATE OR REPLACE VIEW", "CREATE OR REPLACE TEMP VIEW"))


def _without_comments(sql: str) -> str:
    """Remove the COMMENT statements (one per line), which take six times as long as the other statements."""
    lines = sql.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("COMMENT ON"))


def _only_comments(sql: str) -> str:
    """Return the COMMENT statements."""
    lines = sql.splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("COMMENT ON"))


@cache
def _views() -> str:
    """Return the SQL of all views; a file may use the views of earlier files."""
    paths = sorted((_HERE / "views").glob("*.sql"))
    return "\n".join(path.read_text("utf-8") for path in paths)


def _has_migrations(connection: duckdb.DuckDBPyConnection) -> bool:
    """Return whether the database has the table of migrations.

    A query of a missing table would abort the caller's transaction.
    """
    found = connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'migrations'")
    return found.fetchone() is not None


def _applied(connection: duckdb.DuckDBPyConnection) -> int:
    """Return the number of the last applied migration of a database that has a layout."""
    row = connection.execute("SELECT max(number) FROM migrations").fetchone()
    return row[0] or 0 if row else 0


def _recall(connection: duckdb.DuckDBPyConnection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
    return row[0] if row else None


def remember(connection: duckdb.DuckDBPyConnection, key: str, value: str) -> None:
    """Store a property of the file in its table `meta`."""
    connection.execute("DELETE FROM meta WHERE key = ?", [key])
    connection.execute("INSERT INTO meta VALUES (?, ?)", [key, value])
