"""The page of a session that was imported from a log states this, and offers nothing that needs a recording."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentobs.importers.claude_code.transcript_import import import_logs, logs_in
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.ingest import ingest
from dashboards.content.message_view import new_input
from tests.cli.test_archive import write_log
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import Client, only_session, query_rows, serving
from tests.exporters.sample_session import sample_home
from tests.store.recordings import SECOND, a_home


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
def test_an_imported_session_is_marked(
    imported: tuple[Home, Client], capsys: pytest.CaptureFixture[str]
) -> None:
    """The top of the page states what was imported. No HTTP status, freeze or fork is shown, and no success of
    requests whose statuses are unknown.
    """
    home, client = imported
    [[attempt_id]] = query_rows(home, "SELECT max(attempt_id) FROM attempts")
    page = f"/sessions/{only_session(home)}"
    words = client.get(f"{page}?step={attempt_id}").words
    assert "Imported from a log of claude-code, not recorded: HTTP statuses" in words
    assert "Request, reconstructed" in words
    sentence = "No failure is recorded: the HTTP statuses of 2 requests were not recorded"
    assert f"{sentence}." in words
    assert "Nothing failed" not in words
    assert sentence in Shell(home.path, capsys)("show", only_session(home)).out
    assert [each for each in ("HTTP status 200", "Fork from here") if each in words] == []
    overview = client.get(f"{page}?tab=overview").words
    assert "agentobs show" in overview
    assert "agentobs freeze" not in overview
    assert "HTTP 200" not in client.get(f"/attempts/{attempt_id}").words
    messages = client.press(f"/attempts/{attempt_id}/messages").words
    assert "The log does not contain the system prompt and tools of this request." in messages


def test_the_terminal_names_what_the_log_does_not_contain(
    imported: tuple[Home, Client], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a turn starts with the system prompt and the tools, `agentobs show --turn` states that they are missing."""
    home, _ = imported
    shown = Shell(home.path, capsys)("show", only_session(home), "--turn", "1", "--content").out
    assert "\nsystem prompt: not in the log\ntools: not in the log\nmessages: " in shown


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


def log_with_call() -> str:
    """Return a log with a call whose result came after 150 s, as after a wait for approval."""
    common = {"sessionId": "5a3ffba3-7d40-4f67-8a5a-0f2f5d6f3c1f", "version": "2.1.332"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.txt"}
    said = {"type": "text", "text": "One file."}

    def response(number: int, block: dict[str, Any]) -> dict[str, Any]:
        usage = {"input_tokens": 3, "output_tokens": 5}
        return {
            "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-sonnet-5",
            "content": [block], "stop_reason": "end_turn", "usage": usage,
        }  # fmt: skip

    said_or_done: list[tuple[str, str, Any]] = [
        ("user", "10:00:00", {"role": "user", "content": "Which files?"}),
        ("assistant", "10:00:02", response(1, call)),
        ("user", "10:02:32", {"role": "user", "content": [result]}),
        ("assistant", "10:02:34", response(2, said)),
    ]
    lines = []
    for number, (kind, at, message) in enumerate(said_or_done):
        parent = {"parentUuid": f"u{number - 1}"} if number else {}
        line = {**common, **parent, "type": kind, "uuid": f"u{number}", "message": message}
        lines.append(json.dumps({**line, "timestamp": f"2026-11-01T{at}Z"}) + "\n")
    return "".join(lines)


@pytest.mark.slow
def test_waits_that_a_log_does_not_contain_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log has no waits for approval: they are unknown, not 0, and a note states that tool times include them."""
    home = a_home(tmp_path)
    path = tmp_path / "projects" / "x.jsonl"
    path.parent.mkdir()
    path.write_text(log_with_call())
    import_logs(home, logs_in([path.parent]), remove_session=lambda *_: None)
    ingest(home)
    session = only_session(home)
    note = "including any wait for approval (not recorded)"
    included = "include any wait for approval (not recorded)"
    with serving(home) as client:
        page = f"/sessions/{session}"
        times = client.get(f"{page}?tab=time").words
        assert f"tools 2 min 30 s (97%), {note}" in times
        assert f"The times {included}." in times
        assert f"The times of calls {included}." in times
        overview = client.get(f"{page}?tab=overview").words
        assert "Could not be checked: long waits (this client does not record waits" in overview
        assert "long waits" not in overview.partition("Not found:")[2].partition("Could not")[0]
        assert (
            "Waits for approval are not in the log, so the time of a tool includes them."
            in overview
        )
        [[attempt_id]] = query_rows(home, "SELECT attempt_id FROM tool_uses")
        call = client.get(f"{page}?step={attempt_id}%201%20toolu_1").words
        assert f"Duration 2 min 30 s, {note}" in call
    shell = Shell(home.path, capsys)
    [row] = [json.loads(line) for line in shell("time", session, "--json").out.splitlines()]
    unseen = {name for name, value in row.items() if value is None}
    assert (row["timing_source"], row["tool_ns"]) == ("log", 150 * SECOND)
    assert unseen == {"queued_ns", "person_ns", "hook_ns", "retry_wait_ns"}
    assert f"tools 97%, {note}" in shell("time", session).out
    assert f"the times of 1 call {included}" in shell("tools").out
    shown = shell("show", session).out
    assert f"tools 97%, {note}" in shown
    assert f"the times of calls {included}" in shown
    diagnosed = shell("diagnose", session).out
    assert "could not be checked: long_waits (this client does not record waits" in diagnosed
    assert "could not be checked: silent_hook_cancels" in diagnosed
    assert "could not be checked: failed_summaries" in diagnosed


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
    assert new_input(first, None, second).missing == "system prompt and tools"
    assert new_input(first, None, second | system).missing == "tools"
    assert new_input(first, None, second | both).missing == ""


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
