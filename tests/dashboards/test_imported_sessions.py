"""The page of a session that was imported from a log states this, and offers nothing that needs a recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentobs.importers.claude_code.transcript_import import import_logs, logs_in
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.ingest import ingest
from dashboards.content.message_view import new_input
from tests.cli.test_archive import write_log
from tests.dashboards.live_app import Client, only_session, query_rows, serving
from tests.exporters.sample_session import sample_home
from tests.store.recordings import a_home


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Client]]:
    """A home with a session that was imported from a log."""
    path = tmp_path_factory.mktemp("imported")
    home = a_home(path)
    write_log(path / "projects" / "x.jsonl", 2)
    import_logs(home, logs_in([path / "projects"]), remove_session=lambda *_: None)
    ingest(home)
    with serving(home) as made:
        yield home, made


@pytest.mark.slow
def test_an_imported_session_is_marked(imported: tuple[Home, Client]) -> None:
    """The top of the page states what was imported. No HTTP status, freeze or fork is shown."""
    home, client = imported
    [[attempt_id]] = query_rows(home, "SELECT max(attempt_id) FROM attempts")
    page = f"/sessions/{only_session(home)}"
    words = client.get(f"{page}?step={attempt_id}").words
    assert "Imported from a log of claude-code, not recorded: HTTP statuses" in words
    assert "Request, reconstructed" in words
    assert [each for each in ("HTTP status 200", "Fork from here") if each in words] == []
    overview = client.get(f"{page}?tab=overview").words
    assert "agentobs show" in overview
    assert "agentobs freeze" not in overview
    assert "HTTP 200" not in client.get(f"/attempts/{attempt_id}").words


@pytest.mark.slow
def test_nothing_is_claimed_about_the_cached_prefix(imported: tuple[Home, Client]) -> None:
    """A log has only parts of the requests, so no page calls the cached prefix of an imported request unchanged."""
    home, client = imported
    attempts = query_rows(
        home, "SELECT attempt_id FROM zones WHERE compared_attempt_id IS NOT NULL"
    )
    assert attempts
    for [attempt_id] in attempts:
        step = client.get(f"/sessions/{only_session(home)}?step={attempt_id}").words
        assert "cached prefix" not in step
        assert "unchanged" not in client.get(f"/attempts/{attempt_id}/diff").words


def test_only_parts_of_a_request_are_called_unchanged() -> None:
    """The system prompt and the tools are called unchanged only if the request has them and repeats them."""
    first: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello."}]}
    second = {"messages": [*first["messages"], {"role": "user", "content": "And?"}]}
    assert new_input(first, None, second).unchanged == ""
    system, tools = {"system": "Be brief."}, {"tools": [{"name": "look", "input_schema": {}}]}
    assert new_input(first | system, None, second | system).unchanged == "system prompt"
    both = system | tools
    assert new_input(first | both, None, second | both).unchanged == "system prompt and tools"
    assert new_input(first, None, second | both).unchanged == ""


@pytest.mark.slow
def test_a_recorded_session_is_not_marked(tmp_path: Path) -> None:
    """The page of a recorded session has the HTTP status, and offers to freeze and to fork the session."""
    home = sample_home(tmp_path)
    [[attempt_id]] = query_rows(home, "SELECT min(attempt_id) FROM attempts WHERE status = 200")
    with serving(home) as client:
        page = f"/sessions/{only_session(home)}"
        words = client.get(f"{page}?step={attempt_id}").words
        assert "Imported from" not in words
        assert "HTTP status 200" in words
        assert "agentobs freeze" in client.get(f"{page}?tab=overview").words
