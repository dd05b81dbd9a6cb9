"""IDs that a recorder would never create, but that a store of another origin may contain."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from agentobs.recording.journal.home import Home
from agentobs.store.duckdb import generations
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.schema import SETTINGS
from dashboards.panels.templates import segment
from tests.dashboards.live_app import attempts, serving
from tests.store.recordings import a_home, attempt, end, record, session_id, start

ODD, ASKS = "a/b?c=%2f#d&e\"'/../f", "x/y?z=1#/%2e"


@pytest.mark.slow
def test_ids_may_contain_slashes_and_url_characters(tmp_path: Path) -> None:
    """All links and buttons work on the pages of a session, and of its requests, if the IDs have special characters."""
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), attempt(1, 2), end(1)])
    ingest(home)
    _rename(home, {session_id(1): ODD, attempts(home)[-1]: ASKS})
    with serving(home) as client:
        [link] = client.get("/").links("/sessions/")
        page = client.get(link)
        assert f"agentobs show {ODD}" in client.get(f"{link}?tab=overview").words
        others = {each.partition("?")[0] for each in page.links("/sessions/")}
        assert others == {link, f"{link}/ledger"}
        for each in page.links(f"{link}?"):
            assert client.get(each).status == 200
        step = next(each for each in page.links(f"{link}?step=") if segment(ASKS) in each)
        assert ASKS in client.get(step.replace("?step=", "/step?step=")).html
        assert client.get(f"{link}/ledger").links("/sessions/") == [link]
        path = client.get(f"{link}?tab=steps").links("/attempts/")[-1]
        shown = client.get(path)
        assert ASKS in shown.words
        assert shown.links("/sessions/") == [link]
        assert client.get(shown.links("/attempts/")[-1]).links("/attempts/")[0] == path
        for button in (f"{path}/exchange", f"{path}/diff/words", f"{link}/transcript"):
            assert client.press(button).status == 200
            assert client.press(button, part=False).links(button.rpartition("/")[0])
            assert client.get(button).headers["location"] == button.rpartition("/")[0]
        found = client.get(f"/sessions/{session_id(1)[:4]}")
        assert found.status == 404
        assert client.get(f"/sessions/{segment(ODD[-8:])}").headers["location"] == link


def _rename(home: Home, names: dict[str, str]) -> None:
    """Replace the IDs of the sessions and attempts in the published file."""
    draft = home.path / "renamed"
    shutil.copy(home.database, draft)
    draft.chmod(0o600)
    columns = "SELECT table_name, column_name FROM duckdb_columns() JOIN duckdb_tables() USING (table_name)"
    with duckdb.connect(str(draft), config=SETTINGS) as connection:
        for table, column in connection.execute(columns).fetchall():
            if column in ("session_id", "attempt_id"):
                for old, new in names.items():
                    sql = f"UPDATE {table} SET {column} = ? WHERE {column} = ?"
                    connection.execute(sql, [new, old])
        connection.execute("CHECKPOINT")
    generation = generations.quick_current(home)
    assert generation is not None
    with generations.locked(home, 10):
        generations.publish(home, draft, generation.facts_bytes, generation, generation.read)
