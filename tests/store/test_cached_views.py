"""Cached views: a reader copies bound views from a file in the home instead of binding them; the file is optional."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from agentobs.recording.journal.home import VIEWS_PREFIX, Home, open_home
from agentobs.store.duckdb import schema
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.marks import mark_all_but_first
from tests.store.recordings import T0, attempt, end, record, start

VIEWS = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal ORDER BY ALL"
ASKED = ("sessions", "cost_by_model", "event_log", "spans")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = open_home(tmp_path / "home")
    record(made, [start(1), attempt(1, 1), attempt(1, 2), end(1, at=T0 + 60_000_000_000)])
    return made


def prepared(home: Home) -> list[Path]:
    return sorted(home.path.glob(f"{VIEWS_PREFIX}*"))


def answers(home: Home, **options: bool) -> object:
    """Return the views and some of their rows, read through a second cursor, as a program with threads would."""
    with connect(home, **options) as connection, connection.cursor() as cursor:
        views = cursor.execute(VIEWS).fetchall()
        return views, [cursor.execute(f"SELECT count(*) FROM {name}").fetchall() for name in ASKED]


def bound(home: Home, monkeypatch: pytest.MonkeyPatch) -> object:
    """Return the same rows from views that this connection has bound itself."""
    with monkeypatch.context() as patch:
        patch.setattr("agentobs.store.duckdb.connection.cached_views", lambda *_, **__: None)
        return answers(home)


@pytest.mark.slow
def test_copied_views_equal_bound_views(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reader writes the file of cached views, and later readers use it; all rows are the same, with and
    without a store.
    """
    expected = bound(home, monkeypatch)
    assert prepared(home) == []
    assert answers(home) == expected
    [file] = prepared(home)
    monkeypatch.setattr(schema, "_views", lambda: pytest.fail("bound again"))
    monkeypatch.setattr("agentobs.store.duckdb.connection.cached_views", lambda *_, **__: file)
    assert answers(home, ingest=False) == expected


@pytest.mark.slow
@pytest.mark.parametrize("size", mark_all_but_first([100_000, 0, 1], pytest.mark.crash))
def test_a_damaged_file_is_written_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """If the file of cached views is damaged, the views are bound, and the file is written again."""
    expected = answers(home)
    [file] = prepared(home)
    whole = file.read_bytes()
    file.write_bytes(whole[:size])
    assert answers(home) == expected
    assert prepared(home) == []
    assert answers(home) == expected
    assert file.stat().st_size == len(whole)


@pytest.mark.slow
def test_a_damaged_file_in_a_read_only_home_is_ignored(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the damaged file of cached views cannot be deleted, the views are bound instead."""
    expected = answers(home)
    [file] = prepared(home)
    file.write_bytes(b"damaged")

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        assert answers(home, ingest=False) == expected
    assert prepared(home) == [file]


@pytest.mark.slow
def test_a_foreign_file_is_not_used(home: Home) -> None:
    """A foreign database in place of the cached views does not change any rows."""
    expected = answers(home)
    [file] = prepared(home)
    file.unlink()
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE usage (x INTEGER)")
    assert answers(home) == expected


@pytest.mark.slow
def test_a_read_only_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a read-only home, the file of cached views cannot be written, so the views are bound."""
    expected = bound(home, monkeypatch)

    def refuse(path: Path, data: bytes = b"", mode: int = 0o600) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(schema, "create", refuse)
    assert answers(home) == expected
    assert prepared(home) == []


@pytest.mark.slow
def test_nothing_is_written_next_to_a_copied_store(home: Home, tmp_path: Path) -> None:
    """A store file that was copied without its home is read without creating another file."""
    ingest(home)
    place = tmp_path / "elsewhere"
    place.mkdir()
    shutil.copy(home.database, place)
    with connect(place) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchall() == [(1,)]
    assert [each.name for each in place.iterdir()] == ["agentobs.duckdb"]


def test_a_home_with_only_cached_views(tmp_path: Path) -> None:
    """If an empty home is read first, which writes its cached views, an agent can still record into it."""
    home = open_home(tmp_path / "home")
    connect(home).close()
    assert len(prepared(home)) == 1
    assert open_home(home.path) == home
