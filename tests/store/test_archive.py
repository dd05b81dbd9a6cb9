"""Archives: past months are in separate files, and all query results stay the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from agentobs import world
from agentobs.cli import cli
from agentobs.recording.journal.home import Home
from agentobs.records.facts import TABLES
from agentobs.store.duckdb import archives, generations, schema
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.repair import repair
from agentobs.store.duckdb.retention import prune
from agentobs.store.duckdb.schema import newest
from agentobs.store.duckdb.verification import verify
from tests.marks import mark_all_but_first
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    copied,
    end,
    everything,
    python,
    record,
    session_id,
    start,
    usage_row,
    write_facts,
)

DAY = 86_400 * SECOND
AUGUST, SEPTEMBER = T0 - 31 * DAY, T0


def story(number: int, at: int, *, turns: int = 2, until: int | None = None) -> list[Any]:
    """Return the records of a session that starts at a given time."""
    asked = [attempt(number, n + 1, at=at + n * SECOND) for n in range(turns)]
    return [start(number, at=at), *asked, end(number, at=until or at + 60 * SECOND)]


def recorded(tmp_path: Path) -> Home:
    """Return a home with sessions of two past months, one of which spans both months, and one session of today."""
    home = a_home(tmp_path)
    record(home, [*story(1, AUGUST), *story(2, SEPTEMBER)])
    record(home, story(3, AUGUST, until=SEPTEMBER))
    record(home, story(4, world.now()))
    return home


@pytest.fixture(scope="module")
def ingested_once(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The ingested home; tests use copies of it."""
    home = recorded(tmp_path_factory.mktemp("ingested"))
    ingest(home)
    return home


@pytest.fixture(scope="module")
def archived_once(ingested_once: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The home after its past months were archived; tests use copies of it."""
    home = copied(ingested_once, tmp_path_factory.mktemp("archived"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        archive(home, monkeypatch)
    return home


@pytest.fixture(scope="module")
def archived_rows(archived_once: Home) -> dict[str, list[Any]]:
    """All rows of the archived home."""
    return answers(archived_once)


@pytest.fixture
def made(ingested_once: Home, tmp_path: Path) -> Home:
    """An ingested home with sessions of two past months and one session of today, without archives."""
    return copied(ingested_once, tmp_path)


@pytest.fixture
def archived(archived_once: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with two archives; every store exceeds the limit for archives."""
    monkeypatch.setenv(archives.VARIABLE, "1")
    return copied(archived_once, tmp_path)


def archive(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ingest new data with a limit that every store exceeds."""
    monkeypatch.setenv(archives.VARIABLE, "1")
    record(home, story(5, world.now(), turns=1))
    report = ingest(home)
    assert report.damaged_moved_to is None
    assert report.archived_sessions > 0


def names(home: Home) -> list[str]:
    return sorted(path.name for path in home.archive.iterdir()) if home.archive.exists() else []


def sessions_in(path: Path) -> list[str]:
    """Return the sessions of a DuckDB file, read with plain DuckDB."""
    with duckdb.connect(str(path), read_only=True) as connection:
        sql = " UNION ".join(f"SELECT session_id FROM {table}" for table in TABLES.values())
        rows = connection.execute(f"SELECT DISTINCT session_id FROM ({sql}) ORDER BY 1").fetchall()
    return [row[0] for row in rows]


def answers(home: Home, *, views: bool = False) -> dict[str, list[Any]]:
    """Return all rows of all tables, prices and watermarks included, and of the views of costs and turns, or of all
    views.

    The other views only depend on these rows.
    """
    with connect(home, ingest=False) as connection:
        return answers_of(connection, views=views)


def answers_of(
    connection: duckdb.DuckDBPyConnection, *, views: bool = False
) -> dict[str, list[Any]]:
    """Return the rows of `answers`, read with an open connection."""
    names = {*TABLES.values(), "segments", "prices", "costs", "turns"}
    if views:
        found = connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main' "
            "AND database_name = current_database()"
        ).fetchall()
        names |= {name for (name,) in found}
    return {
        name: sorted(connection.execute(f"FROM {name}").fetchall(), key=repr)
        for name in sorted(names)
    }


def rows(home: Home, table: str) -> list[Any]:
    """Return all rows of one table or view."""
    with connect(home, ingest=False) as connection:
        return sorted(connection.execute(f"FROM {table}").fetchall(), key=repr)


def rebuilt(home: Home, *, archive_bytes: int = 1_000_000_000) -> dict[str, list[Any]]:
    """Return the rows of a store that was rebuilt from the segments, by default without archives."""
    home.database.unlink()
    home.manifest.unlink()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv(archives.VARIABLE, str(archive_bytes))
        assert ingest(home).damaged_moved_to is None
    return answers(home)


def ids(*numbers: int) -> list[str]:
    return [session_id(number) for number in numbers]


@pytest.mark.slow
def test_archiving_changes_no_rows(made: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Archiving does not change the rows of any table or view.

    Each month has a file, a session that spans two months is completely in the later one, and the current month stays
    in the published file. A connection that was opened before its archives were created, replaced or deleted keeps its
    data.
    """
    record(made, story(5, world.now(), turns=1))
    with connect(made, ingest=False) as first:
        before = answers(made, views=True)
        assert len(before["sessions"]) == 5
        monkeypatch.setenv(archives.VARIABLE, "1")
        assert ingest(made).archived_sessions == 3
        assert names(made) == ["2026-08.duckdb", "2026-09.duckdb"]
        assert sessions_in(made.archive / "2026-08.duckdb") == ids(1)
        assert sessions_in(made.archive / "2026-09.duckdb") == ids(2, 3)
        assert sessions_in(made.database) == ids(4, 5)
        assert answers(made, views=True) == before
        assert verify(made).findings == []
        with connect(made, ingest=False) as second:
            prune(made, sessions=ids(1, 2, 3))
            assert names(made) == []
            kept = everything(second)
        assert kept == {name: before[name] for name in kept}
        assert everything(first) == kept


@pytest.mark.slow
def test_new_records_and_rebuilt_stores_have_the_same_rows(archived: Home) -> None:
    """Queries return the rows of archives and records that are not ingested yet; a store rebuilt from the segments has
    the same rows.

    This holds with and without archives.
    """
    record(archived, story(6, SEPTEMBER, turns=1))
    before = answers(archived)
    assert len(before["session_starts"]) == 6
    assert rebuilt(archived, archive_bytes=1) == before
    assert sessions_in(archived.archive / "2026-09.duckdb") == ids(2, 3, 6)
    assert rebuilt(archived) == before
    assert names(archived) == []


@pytest.mark.slow
def test_an_archive_matches_the_manifest(ingested_once: Home, archived_once: Home) -> None:
    """An archive is read-only, contains no content, and has the size and digest that the manifest lists; no files are
    left next to it.

    If the store is smaller than the limit, there are no archives.
    """
    assert names(ingested_once) == []
    home = archived_once
    listed = json.loads(home.manifest.read_text())["generations"][0]["archives"]
    assert [each["name"] for each in listed] == names(home)
    for each in listed:
        path = home.archive / each["name"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
        assert (path.stat().st_size, generations.file_digest(path)) == (
            each["bytes"],
            each["digest"],
        )
        assert b"line 0 of session" not in path.read_bytes()
    assert stat.S_IMODE(home.archive.stat().st_mode) == 0o700


@pytest.mark.slow
def test_a_running_session_is_not_archived(made: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of a past month that still has an open segment stays in the published file with all its rows."""
    row = usage_row(1, session_id=session_id(1), at_ns=AUGUST)
    running = write_facts(made, [row], close=False)
    try:
        archive(made, monkeypatch)
        assert names(made) == ["2026-09.duckdb"]
        assert session_id(1) in sessions_in(made.database)
    finally:
        running.close()
    record(made, story(8, AUGUST, turns=9))
    before = rows(made, "usage")
    ingest(made)
    assert sessions_in(made.archive / "2026-08.duckdb") == ids(1, 8)
    assert rows(made, "usage") == before


@pytest.mark.slow
def test_later_data_of_an_archived_month(archived: Home) -> None:
    """Later data of an archived month goes to another file if there is enough of it; sealed archives are not changed.

    This holds even if an archived session continued.
    """
    sealed = {name: (archived.archive / name).read_bytes() for name in names(archived)}
    record(archived, [*story(7, world.now(), turns=40)])
    write_facts(archived, [usage_row(1, session_id=session_id(2))])
    assert ingest(archived).archived_sessions == 0
    record(archived, [*story(8, SEPTEMBER, turns=20), attempt(1, 9, at=SEPTEMBER)])
    before = answers(archived)
    assert ingest(archived).archived_sessions == 3
    assert names(archived) == [*sorted([*sealed, "2026-09.2.duckdb"])]
    assert sessions_in(archived.archive / "2026-09.2.duckdb") == ids(1, 2, 8)
    assert all((archived.archive / name).read_bytes() == data for name, data in sealed.items())
    assert answers(archived) == before
    assert rebuilt(archived) == before


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb import archives, generations, ingest

def die(*arguments, **options):
    if condition(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)

name, count = sys.argv[2], [0]
conditions = {
    "archives.seal": lambda *a: True,
    "archives._placed": lambda *a: True,
    "archives.sync_directory": lambda *a: count.append(0) or len(count) > 3,
    "ingest._compacted": lambda *a: True,
    "generations.publish": lambda *a: True,
    "generations._write_manifest": lambda *a: True,
    "Path.replace": lambda *a: not str(a[1]).endswith(".json"),
    "archives.clear": lambda *a: count.append(0) or len(count) > 2,
}
condition = conditions[name]
owner = {"archives": archives, "ingest": ingest, "generations": generations, "Path": Path}[name.split(".")[0]]
real = getattr(owner, name.split(".")[1])
setattr(owner, name.split(".")[1], die)
ingest.ingest(Home(Path(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    mark_all_but_first(
        [
            "archives.seal",  # the draft is complete, no archive exists
            "archives.sync_directory",  # the first archive is in its final place
            "ingest._compacted",  # all archives exist, the draft still has their rows
            "generations.publish",  # the next generation is ready
            "Path.replace",  # the manifest is written, the file is not replaced
            "archives.clear",  # everything is published
        ],
        pytest.mark.crash,
    ),
)
def test_a_kill_at_any_step(made: Home, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """If archiving is killed at any step, no row is lost or counted twice, before and after the next ingest, and no
    file is left over.
    """
    record(made, story(5, world.now(), turns=1))
    before = answers(made)
    monkeypatch.setenv(archives.VARIABLE, "1")
    process = python(KILLED_AT, made.path, place)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    assert generations.quick_current(made) is not None
    assert answers(made) == before
    assert ingest(made).damaged_moved_to is None
    assert answers(made) == before
    assert names(made) == ["2026-08.duckdb", "2026-09.duckdb"]
    assert list(made.path.glob(f"{generations.DRAFT}*")) == []


def test_unlisted_archives_are_deleted(archived: Home) -> None:
    """The next ingest deletes archives that no generation lists, and no other files."""
    kept = names(archived)
    shutil.copy(archived.archive / kept[0], archived.archive / "2026-08.7.duckdb")
    (archived.archive / "notes.txt").write_text("mine")
    ingest(archived)
    assert names(archived) == [*kept, "notes.txt"]


@pytest.mark.slow
def test_a_session_is_pruned_from_its_archive(archived: Home) -> None:
    """If a session in an archive is pruned, its archive is rewritten without it.

    Other archives are unchanged, no block of any file contains the session, and a rebuilt store has the same rows.
    """
    sealed = (archived.archive / "2026-08.duckdb").read_bytes()
    before = answers(archived)
    gone = ids(3)
    prune(archived, sessions=gone)
    assert names(archived) == ["2026-08.duckdb", "2026-09.2.duckdb"]
    assert (archived.archive / "2026-08.duckdb").read_bytes() == sealed
    assert sessions_in(archived.archive / "2026-09.2.duckdb") == ids(2)
    for each in gone:
        for name in names(archived):
            assert each.encode() not in (archived.archive / name).read_bytes()
    after = answers(archived)
    for table in ("attempts", "usage", "costs", "session_starts", "turns"):
        left = [row for row in before[table] if not any(each in repr(row) for each in gone)]
        assert after[table] == left
    assert [row[2] for row in after["prunings"]] == gone
    assert verify(archived).findings == []
    assert rebuilt(archived) == after


@pytest.mark.slow
def test_prices_of_archived_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices that are only used by archived calls are kept, and are deleted together with the calls."""
    home = a_home(tmp_path)
    first: list[Any] = [start(1, at=SEPTEMBER), attempt(1, 1, at=SEPTEMBER, model="mine-1"), end(1)]
    record(home, [*first, start(2), attempt(2, 1, model="mine-1"), end(2)])
    archive(home, monkeypatch)
    assert len(rows(home, "costs")) == 3
    before = {row[0] for row in rows(home, "prices")}
    assert "mine-1" in before
    prune(home, sessions=ids(2))
    assert {row[0] for row in rows(home, "prices")} == before
    prune(home, sessions=ids(1))
    after = answers(home)
    assert "mine-1" not in {row[0] for row in after["prices"]}
    assert rebuilt(home) == after


@pytest.mark.slow
def test_price_changes_apply_to_archived_calls(
    archived: Home, archived_rows: dict[str, list[Any]]
) -> None:
    """When prices change, archived calls have new costs immediately, and the report about the change includes these
    calls.
    """
    archived.manifest.unlink()
    archived.database.chmod(0o600)
    with duckdb.connect(str(archived.database)) as connection:
        connection.execute("UPDATE prices SET price_version = 'older', input_usd_per_million = 0")
    assert answers(archived) == archived_rows
    told = f"from older to .*: {len(archived_rows['costs'])} calls"
    with pytest.warns(RuntimeWarning, match=told):
        assert ingest(archived).damaged_moved_to is None
    assert answers(archived) == archived_rows


def damage_missing(path: Path) -> None:
    path.unlink()


def damage_flipped(path: Path) -> None:
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_cut(path: Path) -> None:
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size // 2)


def damage_wal(path: Path) -> None:
    path.with_name(f"{path.name}.wal").write_bytes(b"something")


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    mark_all_but_first([damage_missing, damage_flipped, damage_cut, damage_wal], pytest.mark.crash),
)
def test_a_damaged_archive_is_rebuilt(
    archived: Home, archived_rows: dict[str, list[Any]], damage: Any
) -> None:
    """If an archive is damaged, readers still have all rows, and `verify` names the file.

    The next ingest moves the store and its archives away, and rebuilds both from the segments.
    """
    damaged = archived.archive / "2026-09.duckdb"
    damage(damaged)
    assert answers(archived) == archived_rows
    assert [finding.path for finding in verify(archived).findings] == [damaged]
    report = ingest(archived)
    assert report.damaged_moved_to is not None
    aside = report.damaged_moved_to.with_name(f"{report.damaged_moved_to.name}.archive")
    assert (aside / "2026-08.duckdb").exists()
    assert answers(archived) == archived_rows
    assert verify(archived).findings == []
    assert names(archived) == ["2026-08.duckdb", "2026-09.duckdb"]


@pytest.mark.slow
def test_damage_with_unchanged_size_and_time(
    archived: Home, archived_rows: dict[str, list[Any]]
) -> None:
    """`verify` finds a flipped bit even if the size and the modification time of the file are unchanged, and `repair`
    fixes it.
    """
    path = archived.archive / "2026-09.duckdb"
    found = path.stat()
    damage_flipped(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert [finding.path for finding in verify(archived).findings] == [path]
    repair(archived)
    assert verify(archived).findings == []
    assert answers(archived) == archived_rows


@pytest.mark.slow
def test_repair_restores_facts_from_an_archive(
    archived: Home, archived_rows: dict[str, list[Any]]
) -> None:
    """Facts that cannot be read in their segment are restored from the archive that contains their rows."""
    facts = sorted(archived.segments.glob("*.facts*"))[0]
    assert facts.suffix == ".zst"
    data = bytearray(facts.read_bytes())
    data[100] ^= 255
    facts.write_bytes(data)
    assert verify(archived).findings != []
    assert any("from the published file" in line for line in repair(archived).done)
    assert verify(archived).findings == []
    for table in ("attempts", "costs"):
        assert rows(archived, table) == archived_rows[table]


@pytest.mark.slow
def test_a_copied_home(archived: Home, archived_rows: dict[str, list[Any]], tmp_path: Path) -> None:
    """A copied home can be used, even if its modification times differ or its manifest is missing."""
    copy = Home(tmp_path / "copy")
    shutil.copytree(archived.path, copy.path, copy_function=shutil.copyfile)
    assert answers(copy) == archived_rows
    copy.manifest.unlink()
    assert answers(copy) == archived_rows
    shutil.rmtree(copy.segments)
    copy.segments.mkdir()
    assert ingest(copy).damaged_moved_to is None
    assert rows(copy, "costs") == archived_rows["costs"]


@pytest.mark.slow
def test_an_archive_list_with_a_path_outside(
    archived: Home, archived_rows: dict[str, list[Any]]
) -> None:
    """If the list of archives names a file outside of the archive directory, the store counts as damaged, and the file
    is not opened.
    """
    archived.manifest.unlink()
    archived.database.chmod(0o600)
    with duckdb.connect(str(archived.database)) as connection:
        sql = (
            "UPDATE meta SET value = replace(value, '2026-09', '../2026-09') WHERE key = 'archives'"
        )
        connection.execute(sql)
    assert answers(archived) == archived_rows
    assert ingest(archived).damaged_moved_to is not None
    assert answers(archived) == archived_rows


@pytest.mark.slow
def test_a_reader_during_an_ingest(archived: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a reader has opened the published file and an ingest then replaces the archives, the reader opens the next
    generation.
    """
    real = generations.listed
    met: list[object] = []

    def listed(connection: duckdb.DuckDBPyConnection) -> tuple[generations.Archive, ...]:
        found = real(connection)
        if not met:
            met.append(found)
            prune(archived, sessions=ids(3))
        return found

    monkeypatch.setattr(generations, "listed", listed)
    with connect(archived, ingest=False) as connection:
        seen = answers_of(connection)
        attached = connection.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal")
        assert attached.fetchone() == (4,)  # memory, the published file and two archives
    monkeypatch.undo()
    assert seen == answers(archived)


def make_older(path: Path) -> None:
    """Replace an archive by an archive of the previous layout, with the rows that this layout can contain."""
    new = path.with_name("older")
    with duckdb.connect(str(new)) as connection:
        for migration in schema.migrations()[:-1]:
            connection.execute(migration.sql)
            sql = "INSERT INTO migrations VALUES (?, ?, 0)"
            connection.execute(sql, [migration.number, migration.name])
        given = {"application": "agentobs", "format": str(newest() - 1)}
        for key, value in given.items():
            connection.execute("INSERT INTO meta VALUES (?, ?)", [key, value])
        connection.execute(f"ATTACH '{path}' AS source (READ_ONLY)")
        sql = "SELECT table_name, list(column_name) FROM duckdb_columns() WHERE database_name = ? GROUP BY 1"
        for table, columns in connection.execute(sql, [new.stem]).fetchall():
            if table in archives.MOVED:
                chosen = ", ".join(columns)
                sql = f"INSERT INTO {table} BY NAME SELECT {chosen} FROM source.main.{table}"
                connection.execute(sql)
    new.replace(path)


@pytest.mark.slow
def test_an_archive_of_an_older_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers have all rows even if an archive of an older layout lacks columns.

    The next ingest replaces it by an archive of the newest layout with the same rows.
    """
    sql = "ALTER TABLE attempts ADD COLUMN rack VARCHAR;"
    added = schema.Migration(newest() + 1, "made_up", sql)
    shipped = schema.migrations()
    monkeypatch.setattr(schema, "migrations", lambda: (*shipped, added))
    home = a_home(tmp_path)
    record(home, [*story(1, AUGUST), *story(2, SEPTEMBER)])
    archive(home, monkeypatch)
    before = answers(home)
    path = home.archive / "2026-09.duckdb"
    make_older(path)
    found, digest = path.stat(), generations.file_digest(path)
    changed = {"bytes": found.st_size, "digest": digest, "modified_ns": found.st_mtime_ns}
    home.manifest.unlink()
    home.database.chmod(0o600)
    with duckdb.connect(str(home.database)) as connection:
        row = connection.execute("SELECT value FROM meta WHERE key = 'archives'").fetchone()
        assert row is not None
        listed = json.loads(row[0])
        assert listed[1]["name"] == path.name
        listed[1] |= changed
        connection.execute("UPDATE meta SET value = ? WHERE key = 'archives'", [json.dumps(listed)])
    assert answers(home) == before
    record(home, story(7, world.now(), turns=1))
    assert ingest(home).damaged_moved_to is None
    assert names(home) == ["2026-08.duckdb", "2026-09.2.duckdb"]
    with duckdb.connect(str(home.archive / "2026-09.2.duckdb"), read_only=True) as connection:
        row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        assert row == (str(newest()),)
        left = connection.execute("SELECT DISTINCT session_id FROM attempts").fetchall()
    assert left == [(session_id(2),)]
    assert len(rows(home, "attempts")) == len(before["attempts"]) + 1


@pytest.mark.slow
def test_sql_sees_archived_sessions(archived: Home) -> None:
    """A SQL worker can query archived sessions, because it attaches the archives before it gives up its rights."""
    sql = "SELECT session_id FROM attempts GROUP BY 1 ORDER BY 1"
    result = CliRunner().invoke(cli, ["--home", str(archived.path), "sql", "--json", sql])
    assert result.exit_code == 0, result.output
    for each in ids(1, 2, 3, 4, 5):
        assert each in result.output
    with connect(archived) as connection, pytest.raises(duckdb.Error):
        connection.execute("DELETE FROM archive_1.main.usage")
