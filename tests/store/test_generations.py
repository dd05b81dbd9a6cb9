"""Generations: files of agentobs are replaced or rebuilt completely; foreign files are never changed."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import duckdb
import pytest

from agentobs.errors import DamagedError, ForeignError
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import facts_path, file_size
from agentobs.store.duckdb import generations
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.repair import repair
from agentobs.store.duckdb.schema import cached_views
from tests.marks import mark_all_but_first
from tests.store.recordings import (
    a_home,
    conversation,
    copied,
    counts,
    everything,
    finish,
    plain,
    python,
    record,
)


@pytest.fixture(scope="module")
def recorded_once(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """An ingested home with two sessions; tests use copies of it."""
    home = a_home(tmp_path_factory.mktemp("recorded"))
    record(home, [*conversation(1), *conversation(2)])
    ingest(home)
    return home


@pytest.fixture
def home(recorded_once: Home, tmp_path: Path) -> Home:
    return copied(recorded_once, tmp_path)


def test_the_published_file_and_its_manifest(home: Home) -> None:
    """The published file is read-only, and the manifest has its number, size and digest."""
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
    views = cached_views(home.path, write=False)
    assert views is not None
    assert sorted(p.name for p in home.path.iterdir()) == [
        "agentobs.duckdb",
        "ingest.lock",
        "key",
        "manifest.json",
        "segments",
        views.name,
    ]


def test_a_foreign_file_is_never_changed(tmp_path: Path) -> None:
    """A text file, a foreign database or a link in place of the store is refused, unchanged, and named in the error."""
    strangers = tmp_path / "strangers.duckdb"
    with duckdb.connect(str(strangers)) as connection:
        connection.execute("CREATE TABLE meta (a INTEGER); INSERT INTO meta VALUES (1)")
    home = a_home(tmp_path)
    record(home, conversation(1))
    for content, found in (
        (b"my notes\n" * 1000, "this file was not written by agentobs, or it is damaged"),
        (b"", "this file was not written by agentobs, or it is damaged"),
        (strangers.read_bytes(), "this DuckDB file was not written by agentobs"),
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


def test_a_foreign_database_in_place_of_a_published_store(home: Home) -> None:
    """A foreign database is refused even if the manifest lists a generation."""
    home.database.unlink()
    with duckdb.connect(str(home.database)) as connection:
        connection.execute("CREATE TABLE precious AS SELECT 1 AS a")
    with pytest.raises(ForeignError, match="was not written by agentobs"):
        ingest(home)
    with duckdb.connect(str(home.database)) as connection:
        assert connection.execute("FROM precious").fetchall() == [(1,)]


def test_a_store_of_a_newer_version_is_refused(home: Home) -> None:
    """A store whose layout is newer than this version is neither read nor rebuilt."""
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    mark_all_but_first(
        [
            "cut, and the manifest too",
            "rotten",
            "cut",
            "flipped",
            "changed by a client",
            "left half written",
            "older",
        ],
        pytest.mark.crash,
        kept=2,
    ),
)
def test_a_damaged_generation_is_moved_and_rebuilt(home: Home, tmp_path: Path, damage: str) -> None:
    """If the published file is damaged in any way, the next reader has the same rows, and the report of the ingest
    mentions the damage.
    """
    with plain(home) as connection:
        before = everything(connection)
    data = home.database.read_bytes()
    home.database.chmod(0o600)
    if damage == "cut":
        home.database.write_bytes(data[: len(data) // 2])
    elif damage == "cut, and the manifest too":
        home.database.write_bytes(data[: len(data) // 2])
        home.manifest.write_bytes(home.manifest.read_bytes()[:40])
    elif damage == "flipped":
        home.database.write_bytes(data[:-1000] + bytes([data[-1000] ^ 1]) + data[-999:])
    elif damage == "rotten":  # with the same size and time
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
    assert report.damaged_moved_to is not None
    assert report.damaged_moved_to.name.startswith("agentobs.duckdb.damaged-")
    assert "rebuilt" in report.lines()[-1]
    with connect(home) as connection:
        assert everything(connection) == before
    with plain(home) as connection:
        assert everything(connection) == before


MANIFESTS = [
    '{"generations": [{}]}', '{"generations": [3]}', '{"generations": 3}', "null", "[]", "{", "",
]  # fmt: skip


@pytest.mark.parametrize("text", mark_all_but_first(MANIFESTS, pytest.mark.crash))
def test_a_damaged_manifest_lists_no_generations(home: Home, text: str) -> None:
    """Whatever the manifest contains, an intact store is used as it is, and the next ingest adds to it."""
    for each in (*MANIFESTS, text):
        home.manifest.write_text(each)
        assert generations.generations(home) == []
    record(home, conversation(3))
    report = ingest(home)
    assert (report.published, report.damaged_moved_to) == (True, None)
    with plain(home) as connection:
        assert counts(connection)["session_starts"] == 3


def test_a_deleted_store_is_rebuilt(home: Home) -> None:
    """If the store file is deleted, it is rebuilt from the segments with the same rows."""
    with plain(home) as connection:
        before = everything(connection)
    home.database.unlink()
    report = ingest(home)
    assert (report.generation, report.damaged_moved_to) == (2, None)
    with plain(home) as connection:
        assert everything(connection) == before


def test_a_file_without_a_manifest_has_no_number(home: Home, tmp_path: Path) -> None:
    """The generation of a file without a manifest has the number 0, and only its size and digest are known."""
    published = generations.current(home)
    assert published is not None
    sent = Home(tmp_path / "sent")
    sent.path.mkdir()
    shutil.copyfile(home.database, sent.database)
    found = generations.current(sent)
    assert found == generations.Generation(
        number=0,
        bytes=published.bytes,
        digest=published.digest,
        modified_ns=0,
        published_ns=0,
        facts_bytes=0,
    )


@pytest.mark.slow
def test_a_copy_of_the_file_alone(home: Home, tmp_path: Path) -> None:
    """A store file that was copied to another machine without its home can be queried there like a home."""
    sent = tmp_path / "sent"
    sent.mkdir()
    shutil.copyfile(home.database, sent / "agentobs.duckdb")
    with connect(home) as ours, connect(sent) as theirs:
        assert everything(ours) == everything(theirs)
    (sent / "segments").mkdir()
    record(Home(sent), conversation(5))
    assert ingest(Home(sent)).damaged_moved_to is None
    with connect(sent) as connection:
        assert counts(connection)["session_starts"] == 3


def test_readers_keep_their_generation(home: Home) -> None:
    """A connection to a generation that was replaced keeps working."""
    with plain(home) as stranger, connect(home) as reader:
        record(home, conversation(3))
        ingest(home)
        for connection in (stranger, reader):
            assert counts(connection)["session_starts"] == 2
        with connect(home) as another:
            assert counts(another)["session_starts"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("places", [5, pytest.param(24, marks=pytest.mark.crash)])
def test_a_damaged_copy_of_the_store_alone_is_refused(
    home: Home, tmp_path: Path, places: int
) -> None:
    """If a copied store file without its home has a flipped bit, each command returns the right result or fails; the
    file stays.

    Queries never return an empty result, and ingest and repair never replace the file by an empty store.
    """
    with connect(home) as connection:
        expected = counts(connection)
    intact = home.database.read_bytes()
    views = cached_views(home.path, write=False)
    assert views is not None
    copy = Home(tmp_path / "copy")
    refusals = 0
    for at in range(13, len(intact), len(intact) // places):
        damaged = bytearray(intact)
        damaged[at] ^= 4
        copy.path.mkdir(mode=0o700)
        shutil.copy(views, copy.path)  # a store without segments does not write them
        copy.database.write_bytes(damaged)
        for action in (counts_of, ingest, repair):
            try:
                found = action(copy)
            except (DamagedError, ForeignError, duckdb.Error):
                refusals += 1
                assert copy.database.read_bytes() == damaged
                assert not copy.manifest.exists()
            else:
                assert action is not counts_of or found == expected
        shutil.rmtree(copy.path)
    assert refusals > places


def counts_of(home: Home) -> dict[str, int]:
    with connect(home) as connection:
        return counts(connection)
