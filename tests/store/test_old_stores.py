"""Old stores: what any earlier version wrote is migrated with its data, and its segments are read as they are.

`fixtures/old/stores/<layout>/` was written by the project when that layout was its newest: two sessions that were
ingested, a third that was not. They are never changed, and the next layout gets a folder of its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentobs.recording.journal import compression
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.schema import newest
from agentobs.store.duckdb.verification import verify
from tests.store.making import ROOT, everything, plain, session_id

STORES = ROOT / "fixtures" / "old" / "stores"
LAYOUTS = sorted(path.name for path in STORES.iterdir())
EXPECTED = [
    (session_id(1), "story", "completed", 2, 1, 20, 40),
    (session_id(2), "story", "completed", 2, 0, 20, 40),
    (session_id(3), "story", "failed", 1, 0, 10, 20),
]
"""Of each session: id, name, status, turns, tool calls, input and output tokens."""


def unpacked(layout: str, tmp_path: Path) -> Home:
    """Return a copy of an old home, as its owner would have it."""
    home = Home(tmp_path / "home")
    shutil.copytree(STORES / layout, home.path)
    packed = home.path / "agentobs.duckdb.zst"
    home.database.write_bytes(compression._inflated(packed.read_bytes(), 64 * 1024 * 1024)[0])
    packed.unlink()
    home.database.chmod(0o400)
    return home


def test_each_layout_has_a_store() -> None:
    """Whoever adds a layout leaves a store of the one before it here."""
    assert [str(number) for number in range(1, newest())] == LAYOUTS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_store_of_each_layout_is_migrated_with_its_data(tmp_path: Path, layout: str) -> None:
    """Its rows stay, what it had not ingested comes in, and its answers are those of a store that is built anew from
    the same segments; its content reads back."""
    home = unpacked(layout, tmp_path)
    with plain(home) as connection:
        assert connection.execute("SELECT max(number) FROM migrations").fetchone() == (int(layout),)
        before = connection.execute("SELECT attempt_id, usage.* FROM usage ORDER BY ALL").fetchall()
    with connect(home, ingest=False) as connection:
        live = everything(connection)
    report = ingest(home)
    assert report.set_aside is None
    with plain(home) as connection:
        assert connection.execute("SELECT max(number) FROM migrations").fetchone() == (newest(),)
        after = everything(connection)
        ids = {row[0] for row in connection.execute("SELECT attempt_id FROM usage").fetchall()}
        assert {row[0] for row in before} < ids
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT session_id, name, status, turns, tool_calls, input_tokens, output_tokens FROM sessions ORDER BY ALL"
        )
        assert rows.fetchall() == EXPECTED
        unpriced = connection.execute(
            "SELECT count(*) FROM costs WHERE cost_usd IS NULL"
        ).fetchone()
        assert unpriced == (0,)
    home.database.unlink()
    home.manifest.unlink()
    ingest(home)
    with plain(home) as connection:
        anew = everything(connection)
    for table in after:
        assert after[table] == anew[table], table
        assert live[table] == anew[table], table
    assert verify(home).findings == []
    whole = read_session(home, session_id(1), segment_ids(home))
    assert [type(each).__name__ for each in whole.exchanges] == [
        "ModelExchange",
        "ToolExchange",
        "ModelExchange",
    ]
