"""Migrations: a store of an earlier layout gets the newest layout and keeps all data.

Only one layout has been released so far, so the tests add a second one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentobs.recording.journal.home import Home
from agentobs.recording.vault.vault import read_session
from agentobs.store.duckdb import schema
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.schema import Migration, newest
from agentobs.store.duckdb.verification import verify
from tests.store.recordings import a_home, conversation, everything, plain, record, session_id

SECOND_MIGRATION = """
ALTER TABLE segments ADD COLUMN rack VARCHAR;
COMMENT ON COLUMN segments.rack IS 'Made up for this test.';
CREATE TABLE racks AS SELECT DISTINCT segment_id FROM segments;
COMMENT ON TABLE racks IS 'Made up for this test.';
COMMENT ON COLUMN racks.segment_id IS 'The segment.';
"""


@pytest.fixture
def add_migration(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that adds a second migration to the code."""
    shipped = schema.migrations()

    def add() -> None:
        added = Migration(shipped[-1].number + 1, "0002_racks", SECOND_MIGRATION)
        monkeypatch.setattr(schema, "migrations", lambda: (*shipped, added))

    return add


def applied(home: Home) -> list[tuple[int, str]]:
    with plain(home) as connection:
        return connection.execute("SELECT number, name FROM migrations ORDER BY 1").fetchall()


@pytest.mark.slow
def test_a_store_of_an_earlier_layout_is_migrated_with_its_data(
    tmp_path: Path, add_migration: Callable[[], None]
) -> None:
    """A store of an earlier layout keeps its rows, gets the missing records, and has the same rows as a rebuilt store.

    Its content can still be read.
    """
    home = a_home(tmp_path)
    record(home, [*conversation(1), *conversation(2)])
    ingest(home)
    first = applied(home)
    with plain(home) as connection:
        segments = connection.execute("SELECT segment_id FROM segments").fetchall()
        before = set(connection.execute("SELECT attempt_id FROM usage").fetchall())
    whole = read_session(home, session_id(1), [each for [each] in segments])
    record(home, conversation(3))
    add_migration()
    with connect(home, ingest=False) as connection:
        live = everything(connection)
    assert ingest(home).damaged_moved_to is None
    assert applied(home) == [*first, (newest(), "0002_racks")]
    with plain(home) as connection:
        after = everything(connection)
        assert connection.execute("FROM racks").fetchall() == segments
        assert before < set(connection.execute("SELECT attempt_id FROM usage").fetchall())
    home.database.unlink()
    home.manifest.unlink()
    ingest(home)
    with plain(home) as connection:
        again = everything(connection)
    assert after == again
    assert {table: live[table] for table in again} == again
    assert verify(home).findings == []
    assert read_session(home, session_id(1), [each for [each] in segments]) == whole
