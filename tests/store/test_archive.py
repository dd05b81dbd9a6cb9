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
AUGUST, SEPTEMBER, OCTOBER = T0 - 31 * DAY, T0, T0 + 20 * DAY


def story(number: int, at: int, *, turns: int = 2, until: int | None = None) -> list[Any]:
    """Return the records of a session that starts at a given time."""
    asked = [attempt(number, n + 1, at=at + n * SECOND) for n in range(turns)]
    return [start(number, at=at), *asked, end(number, at=until or at + 60 * SECOND)]


def made(tmp_path: Path) -> Home:
    """Return an ingested home with sessions of three past months, one of which spans two months, and one session of
    today.
    """
    home = a_home(tmp_path)
    record(home, [*story(1, AUGUST), *story(2, SEPTEMBER)])
    record(home, [*story(3, SEPTEMBER, until=OCTOBER), *story(4, OCTOBER)])
    record(home, story(5, world.now()))
    ingest(home)
    return home


def archive(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ingest new data with a limit that every store exceeds."""
    monkeypatch.setenv(archives.VARIABLE, "1")
    record(home, story(6, world.now(), turns=1))
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
    """Return all rows of all tables and of the main views, or of all views; includes prices and watermarks."""
    with connect(home, ingest=False) as connection:
        more = connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main' "
            "AND database_name = current_database() ORDER BY 1"
        ).fetchall()
        found = everything(connection)
        for (view,) in [*(more if views else ()), ("segments",), ("prices",)]:
            rows = connection.execute(f"SELECT * FROM {view} ORDER BY ALL").fetchall()
            found[view] = sorted(rows, key=repr)
    return found


def rebuilt(home: Home) -> dict[str, list[Any]]:
    """Return the rows of a store that was rebuilt from the segments."""
    home.database.unlink()
    home.manifest.unlink()
    assert ingest(home).damaged_moved_to is None
    return answers(home)


def ids(*numbers: int) -> list[str]:
    return [session_id(number) for number in numbers]


def test_archiving_changes_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tables and views have the same rows before and after archiving.

    Each month has a file, a session that spans two months is completely in the later one, and the current month stays
    in the published file.
    """
    home = made(tmp_path)
    record(home, story(6, world.now(), turns=1))
    before = answers(home, views=True)
    assert len(before["sessions"]) == 6
    monkeypatch.setenv(archives.VARIABLE, "1")
    assert ingest(home).archived_sessions == 4
    assert names(home) == ["2026-08.duckdb", "2026-09.duckdb", "2026-10.duckdb"]
    assert sessions_in(home.archive / "2026-08.duckdb") == ids(1)
    assert sessions_in(home.archive / "2026-09.duckdb") == ids(2)
    assert sessions_in(home.archive / "2026-10.duckdb") == ids(3, 4)
    assert sessions_in(home.database) == ids(5, 6)
    assert answers(home, views=True) == before
    assert verify(home).findings == []


def test_new_records_and_rebuilt_stores_have_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results include records that are not ingested yet in addition to archives.

    A store that is rebuilt from the segments has the same rows, with and without archives.
    """
    home = made(tmp_path)
    archive(home, monkeypatch)
    record(home, story(7, SEPTEMBER, turns=1))
    before = answers(home)
    assert len(before["sessions"]) == 7
    assert rebuilt(home) == before
    assert sessions_in(home.archive / "2026-09.duckdb") == ids(2, 7)
    monkeypatch.setenv(archives.VARIABLE, "1000000000")
    assert rebuilt(home) == before
    assert names(home) == []


def test_an_archive_matches_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive is read-only, contains no content, has no files next to it, and its size and digest are in the
    manifest. Below the limit there are no archives.
    """
    home = made(tmp_path)
    assert names(home) == []
    archive(home, monkeypatch)
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


def test_a_running_session_is_not_archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a session of a past month that has an open segment stay in the published file."""
    home = made(tmp_path)
    running = write_facts(home, [usage_row(1, session_id=session_id(2))], close=False)
    try:
        archive(home, monkeypatch)
        assert names(home) == ["2026-08.duckdb", "2026-10.duckdb"]
        assert session_id(2) in sessions_in(home.database)
    finally:
        running.close()
    record(home, story(8, SEPTEMBER, turns=9))
    before = answers(home)
    ingest(home)
    assert sessions_in(home.archive / "2026-09.duckdb") == ids(2, 8)
    assert answers(home)["usage"] == before["usage"]


def test_later_data_of_an_archived_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later data of an archived month goes to another file if there is enough of it; sealed files are not changed, even
    if an archived session continued.
    """
    home = made(tmp_path)
    archive(home, monkeypatch)
    sealed = {name: (home.archive / name).read_bytes() for name in names(home)}
    record(home, [*story(7, world.now(), turns=40)])
    write_facts(home, [usage_row(1, session_id=session_id(2))])
    assert ingest(home).archived_sessions == 0
    record(home, [*story(8, SEPTEMBER, turns=20), attempt(1, 9, at=SEPTEMBER)])
    before = answers(home)
    assert ingest(home).archived_sessions == 3
    assert names(home) == [*sorted([*sealed, "2026-09.2.duckdb"])]
    assert sessions_in(home.archive / "2026-09.2.duckdb") == ids(1, 2, 8)
    assert all((home.archive / name).read_bytes() == data for name, data in sealed.items())
    assert answers(home) == before
    assert rebuilt(home) == before


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


@pytest.mark.parametrize(
    "place",
    mark_all_but_first(
        [
            "archives.seal",  # the draft is complete, no archive is written
            "archives.sync_directory",  # the first archive is in its final place
            "ingest._compacted",  # all archives exist, the draft still has their rows
            "generations.publish",  # the next generation is ready
            "Path.replace",  # the manifest is written, the file is not replaced
            "archives.clear",  # everything is published
        ],
        pytest.mark.crash,
    ),
)
def test_a_kill_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """SIGKILL at each step of archiving: nothing is counted twice or lost, before and after the next ingest, and no
    file is left over.
    """
    home = made(tmp_path)
    record(home, story(6, world.now(), turns=1))
    before = answers(home)
    monkeypatch.setenv(archives.VARIABLE, "1")
    process = python(KILLED_AT, home.path, place)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    assert generations.quick_current(home) is not None
    assert answers(home) == before
    assert ingest(home).damaged_moved_to is None
    assert answers(home) == before
    assert names(home) == ["2026-08.duckdb", "2026-09.duckdb", "2026-10.duckdb"]
    assert list(home.path.glob(f"{generations.DRAFT}*")) == []


def test_unlisted_archives_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ingest deletes archives that no generation lists, and no other files."""
    home = made(tmp_path)
    archive(home, monkeypatch)
    kept = names(home)
    shutil.copy(home.archive / kept[0], home.archive / "2026-08.7.duckdb")
    (home.archive / "notes.txt").write_text("mine")
    ingest(home)
    assert names(home) == [*kept, "notes.txt"]


def test_a_session_is_pruned_from_its_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is rewritten without the session, or deleted if it contains nothing else.

    Other archives are unchanged, no block of any file contains the session, and a rebuilt store has the same rows.
    """
    home = made(tmp_path)
    archive(home, monkeypatch)
    sealed = (home.archive / "2026-09.duckdb").read_bytes()
    before = answers(home)
    prune(home, sessions=ids(1, 4))
    assert names(home) == ["2026-09.duckdb", "2026-10.2.duckdb"]
    assert (home.archive / "2026-09.duckdb").read_bytes() == sealed
    assert sessions_in(home.archive / "2026-10.2.duckdb") == ids(3)
    for each in ids(1, 4):
        for name in names(home):
            assert each.encode() not in (home.archive / name).read_bytes()
    after = answers(home)
    gone = ids(1, 4)
    for table in ("attempts", "usage", "costs", "session_starts", "turns"):
        left = [row for row in before[table] if not any(each in repr(row) for each in gone)]
        assert after[table] == left
    assert [row[2] for row in after["prunings"]] == gone
    assert verify(home).findings == []
    assert rebuilt(home) == after


def test_prices_of_archived_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices that only an archived call uses are kept, and are deleted together with the call."""
    home = a_home(tmp_path)
    first: list[Any] = [start(1, at=SEPTEMBER), attempt(1, 1, at=SEPTEMBER, model="mine-1"), end(1)]
    record(home, [*first, start(2), attempt(2, 1, model="mine-1"), end(2)])
    record(home, story(5, world.now()))
    archive(home, monkeypatch)
    before = answers(home)
    assert len(before["costs"]) == 5
    prune(home, sessions=ids(2))
    assert {row[0] for row in answers(home)["prices"]} == {row[0] for row in before["prices"]}
    prune(home, sessions=ids(1))
    after = answers(home)
    assert "mine-1" not in {row[0] for row in after["prices"]}
    assert rebuilt(home) == after


def test_price_changes_apply_to_archived_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When prices change, archived calls immediately have new costs, and the report about the change includes them."""
    home = made(tmp_path)
    archive(home, monkeypatch)
    before = answers(home)
    home.manifest.unlink()
    home.database.chmod(0o600)
    with duckdb.connect(str(home.database)) as connection:
        connection.execute("UPDATE prices SET price_version = 'older', input_usd_per_million = 0")
    assert answers(home) == before
    told = f"from older to .*: {len(before['costs'])} calls"
    with pytest.warns(RuntimeWarning, match=told):
        assert ingest(home).damaged_moved_to is None
    assert answers(home) == before


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


@pytest.mark.parametrize(
    "damage",
    mark_all_but_first([damage_missing, damage_flipped, damage_cut, damage_wal], pytest.mark.crash),
)
def test_a_damaged_archive_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any
) -> None:
    """Readers immediately have all rows, verify names the file, and the next ingest moves the store and its archives
    away and rebuilds both from the segments.
    """
    home = made(tmp_path)
    archive(home, monkeypatch)
    before = answers(home)
    damaged = home.archive / "2026-09.duckdb"
    damage(damaged)
    assert answers(home) == before
    assert [finding.path for finding in verify(home).findings] == [damaged]
    report = ingest(home)
    assert report.damaged_moved_to is not None
    aside = report.damaged_moved_to.with_name(f"{report.damaged_moved_to.name}.archive")
    assert (aside / "2026-10.duckdb").exists()
    assert answers(home) == before
    assert verify(home).findings == []
    assert names(home) == ["2026-08.duckdb", "2026-09.duckdb", "2026-10.duckdb"]


def test_damage_with_unchanged_size_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` finds a flipped bit that changes neither the size nor the modification time, and `repair` fixes it."""
    home = made(tmp_path)
    archive(home, monkeypatch)
    before = answers(home)
    path = home.archive / "2026-09.duckdb"
    found = path.stat()
    damage_flipped(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert [finding.path for finding in verify(home).findings] == [path]
    repair(home)
    assert verify(home).findings == []
    assert answers(home) == before


def test_repair_restores_facts_from_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts that cannot be read in their segment are restored from the archive that has their rows."""
    home = made(tmp_path)
    archive(home, monkeypatch)
    before = answers(home)
    facts = sorted(home.segments.glob("*.facts*"))[0]
    assert facts.suffix == ".zst"
    data = bytearray(facts.read_bytes())
    data[100] ^= 255
    facts.write_bytes(data)
    assert verify(home).findings != []
    assert any("from the published file" in line for line in repair(home).done)
    assert verify(home).findings == []
    assert answers(home)["attempts"] == before["attempts"]
    assert answers(home)["costs"] == before["costs"]


def test_a_copied_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy with different modification times, and a copy without a manifest, are used as they are."""
    home = made(tmp_path)
    archive(home, monkeypatch)
    before = answers(home)
    copy = Home(tmp_path / "copy")
    shutil.copytree(home.path, copy.path, copy_function=shutil.copyfile)
    assert answers(copy) == before
    copy.manifest.unlink()
    assert answers(copy) == before
    shutil.rmtree(copy.segments)
    copy.segments.mkdir()
    assert ingest(copy).damaged_moved_to is None
    assert answers(copy)["costs"] == before["costs"]


def test_an_archive_list_with_a_path_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the list of archives names a file outside of the archive directory, the store counts as damaged, and the file
    is not opened.
    """
    home = made(tmp_path)
    archive(home, monkeypatch)
    before = answers(home)
    home.manifest.unlink()
    home.database.chmod(0o600)
    with duckdb.connect(str(home.database)) as connection:
        sql = (
            "UPDATE meta SET value = replace(value, '2026-09', '../2026-09') WHERE key = 'archives'"
        )
        connection.execute(sql)
    assert answers(home) == before
    assert ingest(home).damaged_moved_to is not None
    assert answers(home) == before


def test_readers_keep_the_generation_that_they_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older connection, and a connection to archives that were replaced later, keep their data."""
    home = made(tmp_path)
    with connect(home, ingest=False) as first:
        before = everything(first)
        archive(home, monkeypatch)
        assert everything(first) == before
        with connect(home, ingest=False) as second:
            archived = everything(second)
            prune(home, sessions=ids(1, 2, 3, 4))
            assert names(home) == []
            assert everything(second) == archived
        assert everything(first) == before


def test_a_reader_during_an_ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another generation replaces the archives after a reader has opened the published file, the reader opens the
    next generation.
    """
    home = made(tmp_path)
    archive(home, monkeypatch)
    real = generations.listed
    met: list[object] = []

    def listed(connection: duckdb.DuckDBPyConnection) -> tuple[generations.Archive, ...]:
        found = real(connection)
        if not met:
            met.append(found)
            prune(home, sessions=ids(1, 4))
        return found

    monkeypatch.setattr(generations, "listed", listed)
    with connect(home, ingest=False) as connection:
        seen = everything(connection)
        attached = connection.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal")
        assert attached.fetchone() == (4,)  # memory, the published file and two archives
    monkeypatch.undo()
    now = answers(home)
    assert seen == {name: now[name] for name in seen}


def make_older(path: Path) -> None:
    """Replace an archive by one of the previous layout, with the rows that this layout can contain."""
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


def test_an_archive_of_an_older_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers have all rows although an archive lacks newer columns.

    The next ingest replaces it by an archive of the newest layout with the same rows.
    """
    sql = "ALTER TABLE attempts ADD COLUMN rack VARCHAR;"
    added = schema.Migration(newest() + 1, "made_up", sql)
    shipped = schema.migrations()
    monkeypatch.setattr(schema, "migrations", lambda: (*shipped, added))
    home = made(tmp_path)
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
        listed[1] |= changed
        connection.execute("UPDATE meta SET value = ? WHERE key = 'archives'", [json.dumps(listed)])
    assert answers(home) == before
    record(home, story(7, world.now(), turns=1))
    assert ingest(home).damaged_moved_to is None
    assert names(home) == ["2026-08.duckdb", "2026-09.2.duckdb", "2026-10.duckdb"]
    with duckdb.connect(str(home.archive / "2026-09.2.duckdb"), read_only=True) as connection:
        row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        assert row == (str(newest()),)
        left = connection.execute("SELECT DISTINCT session_id FROM attempts").fetchall()
    assert left == [(session_id(2),)]
    after = answers(home)
    assert len(after["attempts"]) == len(before["attempts"]) + 1


def test_sql_sees_archived_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SQL worker attaches the archives before it gives up its rights."""
    home = made(tmp_path)
    archive(home, monkeypatch)
    sql = "SELECT session_id FROM attempts GROUP BY 1 ORDER BY 1"
    result = CliRunner().invoke(cli, ["--home", str(home.path), "sql", "--json", sql])
    assert result.exit_code == 0, result.output
    for each in ids(1, 2, 3, 4, 5, 6):
        assert each in result.output
    with connect(home) as connection, pytest.raises(duckdb.Error):
        connection.execute("DELETE FROM archive_1.main.usage")
