"""Generations: a file that is ours is replaced whole or rebuilt; one that is not is never touched."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import duckdb
import pytest

from agentobs.errors import ForeignError
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import facts_path, file_size
from agentobs.store.duckdb import generations
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.store.making import (
    a_home,
    conversation,
    counts,
    everything,
    finish,
    plain,
    python,
    record,
)


def recorded(tmp_path: Path) -> Home:
    home = a_home(tmp_path)
    record(home, [*conversation(1), *conversation(2)])
    ingest(home)
    return home


def test_the_published_file_and_its_manifest(tmp_path: Path) -> None:
    """The file cannot be written by a stray client; the manifest has its number, size and digest."""
    home = recorded(tmp_path)
    found = home.database.stat()
    assert stat.S_IMODE(found.st_mode) == 0o400
    manifest = json.loads(home.manifest.read_text())
    [generation] = manifest["generations"]
    assert generation["number"] == 1
    assert generation["bytes"] == found.st_size
    assert generation["digest"] == generations.file_digest(home.database)
    assert generation["published_ns"] > 0
    [(segment_id, size)] = generation["read"].items()
    assert generation["facts_bytes"] == size == file_size(facts_path(home, segment_id))
    assert sorted(p.name for p in home.path.iterdir()) == [
        "agentobs.duckdb",
        "ingest.lock",
        "key",
        "manifest.json",
        "segments",
    ]


def test_a_file_that_is_not_ours_is_never_touched(tmp_path: Path) -> None:
    """Text, a stranger's database and a link in the place of the store are refused by name, unchanged."""
    strangers = tmp_path / "strangers.duckdb"
    with duckdb.connect(str(strangers)) as connection:
        connection.execute("CREATE TABLE meta (a INTEGER); INSERT INTO meta VALUES (1)")
    home = a_home(tmp_path)
    record(home, conversation(1))
    for content, found in (
        (b"my notes\n" * 1000, "not a database that agentobs wrote"),
        (b"", "not a database that agentobs wrote"),
        (strangers.read_bytes(), "a DuckDB file that agentobs did not write"),
    ):
        home.database.write_bytes(content)
        for use in (ingest, connect):
            with pytest.raises(ForeignError) as refused:
                use(home)
            assert refused.value.found == found
            assert refused.value.where == str(home.database)
        assert home.database.read_bytes() == content
        home.database.unlink()
    home.database.symlink_to(strangers)
    with pytest.raises(ForeignError, match="not a regular file"):
        ingest(home)


def test_a_strangers_database_in_a_home_that_had_its_own(tmp_path: Path) -> None:
    """Where a manifest says that there was a store, a database of somebody else is refused all the same."""
    home = recorded(tmp_path)
    home.database.unlink()
    with duckdb.connect(str(home.database)) as connection:
        connection.execute("CREATE TABLE precious AS SELECT 1 AS a")
    with pytest.raises(ForeignError, match="did not write"):
        ingest(home)
    with duckdb.connect(str(home.database)) as connection:
        assert connection.execute("FROM precious").fetchall() == [(1,)]


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """A layout that this version does not know is neither read nor rebuilt."""
    home = recorded(tmp_path)
    home.database.chmod(0o600)
    with duckdb.connect(str(home.database)) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    before = home.database.read_bytes()
    for use in (ingest, connect):
        with pytest.raises(ForeignError, match="layout 99"):
            use(home)
    assert home.database.read_bytes() == before


LEAVING = """
import duckdb, os, sys

connection = duckdb.connect(sys.argv[1])
connection.execute("INSERT INTO usage FROM usage")
os._exit(0)
"""


@pytest.mark.parametrize(
    "damage", ["cut", "flipped", "rotten", "changed by a client", "left half written", "older"]
)
def test_a_damaged_generation_is_set_aside_and_built_anew(tmp_path: Path, damage: str) -> None:
    """Whatever happened to the file, the next reader has the same answers, and the report says so."""
    home = recorded(tmp_path)
    with plain(home) as connection:
        before = everything(connection)
    data = home.database.read_bytes()
    home.database.chmod(0o600)
    if damage == "cut":
        home.database.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        home.database.write_bytes(data[:-1000] + bytes([data[-1000] ^ 1]) + data[-999:])
    elif damage == "rotten":  # with size and time as before
        times = home.database.stat()
        home.database.write_bytes(data[:16384] + bytes(byte ^ 255 for byte in data[16384:]))
        os.utime(home.database, ns=(times.st_atime_ns, times.st_mtime_ns))
        record(home, conversation(3))
        fresh = a_home(tmp_path / "fresh")
        shutil.copytree(home.segments, fresh.segments, dirs_exist_ok=True)
        with connect(fresh) as connection:
            before = everything(connection)
    elif damage == "changed by a client":
        with duckdb.connect(str(home.database)) as connection:
            connection.execute("DELETE FROM attempts")
    elif damage == "left half written":
        finish(python(LEAVING, home.database))
        assert home.database.with_name("agentobs.duckdb.wal").exists()
    else:
        older = tmp_path / "older"
        shutil.copyfile(home.database, older)
        for number in (3, 4):
            record(home, conversation(number))
            ingest(home)
        with plain(home) as connection:
            before = everything(connection)
        home.database.chmod(0o600)
        shutil.copyfile(older, home.database)
        os.utime(home.database, (1, 1))
    with connect(home, ingest=False) as connection:
        assert everything(connection) == before
    report = ingest(home)
    assert report.published
    assert report.set_aside is not None
    assert report.set_aside.name.startswith("agentobs.duckdb.damaged-")
    assert "rebuilt" in report.lines()[-1]
    with connect(home) as connection:
        assert everything(connection) == before
    with plain(home) as connection:
        assert everything(connection) == before


def test_a_deleted_store_is_built_anew(tmp_path: Path) -> None:
    """The store can be thrown away: the segments give the same answers again."""
    home = recorded(tmp_path)
    with plain(home) as connection:
        before = everything(connection)
    home.database.unlink()
    report = ingest(home)
    assert (report.generation, report.set_aside) == (2, None)
    with plain(home) as connection:
        assert everything(connection) == before


def test_a_copy_of_the_file_alone(tmp_path: Path) -> None:
    """The file is complete in itself: somebody who was sent it asks it like a home of their own."""
    home = recorded(tmp_path)
    sent = tmp_path / "sent"
    sent.mkdir()
    shutil.copyfile(home.database, sent / "agentobs.duckdb")
    with connect(home) as ours, connect(sent) as theirs:
        assert everything(ours) == everything(theirs)
    (sent / "segments").mkdir()
    record(Home(sent), conversation(5))
    assert ingest(Home(sent)).set_aside is None
    with connect(sent) as connection:
        assert counts(connection)["session_starts"] == 3


def test_readers_keep_what_they_opened(tmp_path: Path) -> None:
    """A generation that is replaced goes on answering those who opened it."""
    home = recorded(tmp_path)
    with plain(home) as stranger, connect(home) as reader:
        record(home, conversation(3))
        ingest(home)
        for connection in (stranger, reader):
            assert counts(connection)["session_starts"] == 2
        with connect(home) as another:
            assert counts(another)["session_starts"] == 3
