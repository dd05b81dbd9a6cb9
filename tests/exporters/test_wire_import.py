"""Imports of exchanges that other tools recorded: their sessions can be queried, priced, frozen and replayed."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from click.testing import CliRunner, Result

import agentobs
from agentobs.cli import cli
from agentobs.importers import wire_files
from agentobs.importers.wire_files import WireReport, files_in, import_wire
from agentobs.recording.journal import segment_import
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.store.duckdb.connection import connect, named
from agentobs.store.duckdb.retention import prune
from agentobs.store.duckdb.verification import verify
from agentobs.store.named_queries import query_names, query_text
from replay import Replayer, load
from replay.freeze.conversion import freeze
from tests.wire import corpus
from tests.wire.sdk_requests import send

NEEDED = pytest.mark.skipif(
    not (corpus.folder() / "manifest.json").is_file(), reason=corpus.HINT.format(corpus.folder())
)
NAMES = (
    "0xPlaygrounds__rig/messages_sessions_sequential_tool_calls_streaming.9819d205.jsonl",
    "crewAIInc__crewAI/utilities_TestAnthropicStructuredPlanning.test_anthropic_research_workflow_generates_steps.e9e08914.jsonl",
)
WORD = "Kanarien vogel"
KEY = "internal-gateway-key-" + "7" * 12
"""A key of an unknown form, which is recognized because it is in a header."""


def run(home: Home, *arguments: object) -> Result:
    return CliRunner().invoke(cli, ["--home", str(home.path), *map(str, arguments)])


def bring_in(home: Home, *paths: Path) -> WireReport:
    return import_wire(home, files_in(paths))


def line(number: int, recorded_at: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return a line in the format of these files."""
    messages = [{"role": "user", "content": f"{WORD} {n}"} for n in range(2 * number - 1)]
    for each in messages[1::2]:
        each["role"] = "assistant"
    answer = {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": WORD}], "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 1000, "output_tokens": 10},
    }  # fmt: skip
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages}
    request = {"method": "POST", "path": "/v1/messages", "headers": {}, "body": body}
    response = {"status": 200, "headers": {}, "body_text": json.dumps(answer)}
    source = {"recorded_at": recorded_at} if recorded_at else {}
    return {"request": request, "response": response, "source": source, **changes}


def written(path: Path, *lines: Any) -> Path:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("".join(f"{each}\n" for each in texts), "utf-8")
    return path


@pytest.mark.slow
@NEEDED
@pytest.mark.parametrize("name", NAMES)
def test_an_imported_file_is_frozen_and_replayed(tmp_path: Path, name: str) -> None:
    """In a replay, the SDK receives the recorded bytes for each request."""
    home = open_home(tmp_path / "home")
    [done] = bring_in(home, corpus.folder() / name).files
    frozen_files = freeze(
        read_session(home, done.session_id, segment_ids(home)), tmp_path / "fixture", {}
    )
    file = corpus.read(name)
    assert frozen_files.requests == len(file.exchanges) == done.exchanges
    client = Anthropic(api_key="k", base_url="http://127.0.0.1:9", max_retries=0)
    with Replayer(load(tmp_path / "fixture")) as replayed:
        agentobs.record(client)
        with agentobs.session("again"):
            heard = [send(client, exchange) for exchange in file.exchanges]
    assert heard == [(e.status, e.text.encode()) for e in file.exchanges]
    assert replayed.progress.requests_matched == len(file.exchanges)


@pytest.mark.slow
@NEEDED
def test_an_imported_file_is_in_every_query(tmp_path: Path) -> None:
    """Queries about sessions, calls or costs contain the imported data; all other queries run without an error."""
    home = open_home(tmp_path / "home")
    path = corpus.folder() / NAMES[0]
    [done] = bring_in(home, path).files
    exchanges = corpus.read(NAMES[0]).exchanges
    calls = sum(len(exchange.calls) for exchange in exchanges)
    with connect(home) as connection:
        for name in query_names():
            about = (
                {"session_id": done.session_id}
                if re.search(r"\$session_id\b", query_text(name))
                else {}
            )
            rows = named(connection, name, **about).fetchall()
            if name in ALWAYS:
                assert rows, name
        row = connection.execute(
            "SELECT turns, tool_calls, cost_usd > 0, unpriced_calls, incomplete, tags FROM sessions"
        ).fetchone()
    assert row == (len(exchanges), calls, True, 0, False, {"imported": "wire"})
    assert verify(home).ok


ALWAYS = frozenset(
    (
        "cache_by_session", "cache_efficiency", "conversation_sessions", "cost_by_agent", "cost_by_conversation",
        "cost_by_day", "cost_by_model", "cost_by_model_and_day", "cost_by_session", "cost_by_source", "diagnosable",
        "interaction_intervals", "recorded_lately", "session_range", "session_segments", "session_timeline",
        "session_turns", "sessions", "slowest_requests", "slowest_tools", "tool_latency", "usage_by_model_day",
    )
)  # fmt: skip
"""The queries that return a row for every session with responses and tool calls."""


@pytest.mark.slow
def test_cost_uses_the_prices_of_the_recorded_day(tmp_path: Path) -> None:
    """An exchange is priced at its time in the file; without a time, it gets the time of the previous exchange."""
    home = open_home(tmp_path / "home")
    path = written(
        tmp_path / "times.jsonl", line(1), line(2, "2026-02-03T04:05:06Z"), line(3),
        line(4, "Wed, 04 Feb 2026 00:00:00 GMT"), line(5, "2020-01-01T00:00:00Z"), line(6, "soon"),
    )  # fmt: skip
    bring_in(home, path)
    with connect(home) as connection:
        sql = "SELECT sent_at::VARCHAR, cost_usd FROM costs ORDER BY at_ns"
        rows = connection.execute(sql).fetchall()
    assert [at[:23] for at, _ in rows] == [
        "2026-02-03 04:05:06", "2026-02-03 04:05:06.001", "2026-02-03 04:05:06.002",
        "2026-02-04 00:00:00", "2026-02-04 00:00:00.001", "2026-02-04 00:00:00.002",
    ]  # fmt: skip
    assert {str(usd) for _, usd in rows} == {"0.003150000000"}


@pytest.mark.slow
@pytest.mark.parametrize("far", ["9999-12-31T00:00:00Z", "2300-01-01T00:00:00Z"])
def test_an_impossible_time_is_replaced(tmp_path: Path, far: str) -> None:
    """An exchange whose year the store cannot represent is treated as an exchange without a time."""
    home = open_home(tmp_path / "home")
    bring_in(home, written(tmp_path / "a.jsonl", line(1, "2026-02-03T04:05:06Z"), line(2, far)))
    with connect(home) as connection:
        rows = connection.execute("SELECT sent_at::VARCHAR FROM costs ORDER BY at_ns").fetchall()
    assert [at[:23] for (at,) in rows] == ["2026-02-03 04:05:06", "2026-02-03 04:05:06.001"]


@pytest.mark.slow
def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    """An unchanged file is not imported again: not from another path, and not after its session was deleted.

    A changed file is a new session.
    """
    home = open_home(tmp_path / "home")
    path = written(tmp_path / "a.jsonl", line(1), line(2))
    [first] = bring_in(home, path).files
    before = {each: each.read_bytes() for each in home.path.rglob("*") if each.is_file()}
    copied = tmp_path / "elsewhere"
    copied.mkdir()
    shutil.copy(path, copied / "b.jsonl")
    assert [each.is_new for each in bring_in(home, path, copied).files] == [False, False]
    assert {each: each.read_bytes() for each in home.path.rglob("*") if each.is_file()} == before
    written(path, line(1), line(2), line(3))
    [third] = bring_in(home, path).files
    assert (third.is_new, third.session_id != first.session_id) == (True, True)
    prune(home, sessions=[third.session_id])
    assert [each.is_new for each in bring_in(home, path).files] == [False]


@pytest.mark.slow
def test_only_invalid_lines_are_skipped(tmp_path: Path) -> None:
    """An invalid line is reported with its file and number; other lines are imported into an incomplete session."""
    home = open_home(tmp_path / "home")
    deep = '{"request":' + "[" * 100_000
    path = written(
        tmp_path / "a.jsonl", line(1), "{not json", "", {"request": None, "response": {}}, deep, line(2)
    )  # fmt: skip
    nothing = written(tmp_path / "b.jsonl", "[]")
    result = run(home, "import", "wire", path, nothing)
    assert result.exit_code == 1
    assert "2 exchanges, not replayable: 3 lines are missing" in result.output
    error_lines = [each.rpartition("/")[2] for each in result.stderr.splitlines()]
    assert [each.partition(": ")[0] for each in error_lines] == [
        "a.jsonl:2",
        "a.jsonl:4",
        "a.jsonl:5",
        "b.jsonl:1",
    ]
    with connect(home) as connection:
        sql = "SELECT attempts, incomplete, dropped FROM sessions"
        assert connection.execute(sql).fetchall() == [(2, True, 3)]
    frozen = run(home, "freeze", "a", "-o", tmp_path / "fixture")
    assert "incomplete" in str(frozen.exception)


@pytest.mark.slow
def test_only_unreadable_files_are_skipped(tmp_path: Path) -> None:
    """Pipes, dangling links and empty directories are reported; the other files are imported."""
    home, files, empty = open_home(tmp_path / "home"), tmp_path / "files", tmp_path / "empty"
    (files / "folder.jsonl").mkdir(parents=True)
    empty.mkdir()
    written(files / "a.jsonl", line(1))
    assert run(home, "import", "wire", files).exit_code == 0
    os.mkfifo(files / "pipe.jsonl")
    (files / "lost.jsonl").symlink_to(tmp_path / "nowhere")
    written(files / "z.jsonl", line(2))
    result = run(home, "import", "wire", files, empty)
    assert result.exit_code == 1
    assert "1 session imported, 1 already imported" in result.output
    assert result.stderr.splitlines() == [
        f"skipped: {empty}: it contains no *.jsonl file",
        f"skipped: {files}/lost.jsonl: no such file or directory",
        f"skipped: {files}/pipe.jsonl: not a regular file",
    ]


@pytest.mark.slow
def test_a_file_that_changes_during_the_import_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes during an import is not imported; the next import reads the changed file."""
    home, path = open_home(tmp_path / "home"), written(tmp_path / "a.jsonl", line(1))
    real = segment_import.import_segment

    def growing(*arguments: Any) -> None:
        with path.open("a") as file:
            file.write(json.dumps(line(2)) + "\n")
        real(*arguments)

    monkeypatch.setattr(wire_files, "import_segment", growing)
    report = bring_in(home, path)
    assert [str(each) for each in report.unreadable] == [f"{path}: it changed while it was read"]
    assert (report.files, segment_ids(home)) == ([], [])
    monkeypatch.undo()
    assert [each.exchanges for each in bring_in(home, path).files] == [2]


def test_the_length_of_lines_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line above the limit is reported with its length.

    Two files that differ only in this line are two sessions.
    """
    monkeypatch.setattr(wire_files, "LINE_BYTES_MAX", 2000)
    home = open_home(tmp_path / "home")
    paths = [written(tmp_path / f"{x}.jsonl", line(1), x * 9999, line(2)) for x in "xy"]
    report = bring_in(home, *paths)
    assert [each.found for each in report.bad_lines] == ["a line of 10,000 bytes"] * 2
    assert [(each.is_new, each.exchanges) for each in report.files] == [(True, 2), (True, 2)]


def test_facts_contain_no_text_names_or_secrets(tmp_path: Path) -> None:
    """Facts and the store contain neither content, nor file names that are not labels, nor secrets.

    Secrets are not in the content, either.
    """
    home = open_home(tmp_path / "home")
    secret = "ghp_" + "Ab1" * 12
    exchange = line(1)
    exchange["request"]["body"]["system"] = f"use {secret} and {KEY}"
    exchange["request"]["headers"] = {
        "X-Api-Key": KEY,
        "Authorization": f"Bearer {KEY}",
        "cookie": KEY,
    }
    exchange["response"]["headers"] = {"set-cookie": KEY}
    bring_in(home, written(tmp_path / f"{WORD}.jsonl", exchange))
    facts = b"".join(each.read_bytes() for each in home.segments.glob("*.facts"))
    content = b"".join(each.read_bytes() for each in home.segments.glob("*.content"))
    assert WORD.encode() in content
    assert run(home, "ingest").exit_code == 0
    for where in (facts, home.database.read_bytes()):
        assert b"Kanarien" not in where
    assert secret.encode() not in content + facts
    home_bytes = b"".join(each.read_bytes() for each in home.path.rglob("*") if each.is_file())
    assert KEY.encode() not in content + facts + home_bytes


@pytest.mark.slow
def test_progress_is_not_shown_without_a_terminal(tmp_path: Path) -> None:
    """Without a terminal, an import prints no control characters."""
    home = open_home(tmp_path / "home")
    path = written(tmp_path / "a.jsonl", line(1))
    seen: list[tuple[int, int]] = []
    import_wire(home, files_in([path]), progress=lambda *far: seen.append(far))
    assert seen == [(1, 1)]
    result = run(home, "import", "wire", path)
    assert result.exit_code == 0
    assert result.output == "0 sessions imported, 1 already imported\n"
    assert "\r" not in result.output + result.stderr


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    """If the file is missing, the error gives the reason."""
    result = run(open_home(tmp_path / "home"), "import", "wire", tmp_path / "nothing")
    assert "no such file" in str(result.exception)


@pytest.mark.slow
def test_files_without_headers_are_reported(tmp_path: Path) -> None:
    """If a file contains no headers, the import reports this, because a replay compares recorded headers."""
    home = open_home(tmp_path / "home")
    exchange = line(1)
    exchange["request"]["headers"] = {"anthropic-version": "2023-06-01"}
    bare = run(home, "import", "wire", written(tmp_path / "a.jsonl", line(1), exchange))
    complete = run(home, "import", "wire", written(tmp_path / "b.jsonl", exchange))
    note = (
        "a replay will report an added header: 1 requests were recorded without anthropic-version"
    )
    assert f"replayable, but {note}" in bare.output
    assert "1 exchanges, replayable  b.jsonl" in complete.output
