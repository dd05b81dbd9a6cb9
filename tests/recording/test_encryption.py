"""Content that is encrypted, not recorded, or deleted: who can read it, and what works without it."""

from __future__ import annotations

import base64
import json
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import agentobs
from agentobs import errors
from agentobs.errors import AgentobsError, DamagedError, RecordingError
from agentobs.recording.journal.home import Home, existing_home, open_home
from agentobs.recording.journal.segments import (
    Line,
    SegmentFile,
    content_path,
    facts_path,
    read,
    segment_ids,
)
from agentobs.recording.options import Options
from agentobs.recording.session import start_recorder
from agentobs.recording.vault.encryption import Sealer, content_key, decrypted_line, key_id
from agentobs.recording.vault.vault import read_session
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ModelExchange, Recording
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from replay.freeze.conversion import freeze
from tests.provider_script import script
from tests.replay.agents import Agent, answers

KEY = bytes(range(32)).hex()
OTHER = bytes(range(1, 33)).hex()
CANARY = "canary-of-the-agent"


@pytest.fixture(autouse=True)
def fresh_warnings() -> Iterator[None]:
    """Reset the warnings that were already reported, so that each test receives its own."""
    errors._reported.clear()
    agentobs.stop_recorder()
    yield
    agentobs.stop_recorder()


def run(home: Path, options: Options | None = None) -> None:
    """Record an agent whose prompts, responses and tool results contain canaries."""
    agent = Agent(
        weather={"Oslo": f"{CANARY}-result " + "rain " * 400, "Rome": "sun"},
        system=f"{CANARY}-system",
    )
    with ServedProvider(script(*answers()), ServeOptions(match="order")) as provider:
        start_recorder(str(home), options)
        try:
            Agent(provider.url, **agent.changes).answer(f"{CANARY}-prompt")
        finally:
            agentobs.stop_recorder()


def only_session(home: Path) -> Recording:
    """Return the only session of a home."""
    with connect(existing_home(home)) as store:
        [(session_id,)] = store.execute("SELECT session_id FROM sessions").fetchall()
    return read_session(existing_home(home), session_id, segment_ids(existing_home(home)))


def bytes_of(home: Path, pattern: str = "**/*") -> bytes:
    return b"".join(path.read_bytes() for path in sorted(home.glob(pattern)) if path.is_file())


def lines(path: Path) -> list[Line]:
    return [line for line in read(path) if isinstance(line, Line)]


def contents(home: Path) -> list[tuple[str, Line]]:
    found = existing_home(home)
    return [
        (segment_id, line)
        for segment_id in segment_ids(found)
        for line in read(content_path(found, segment_id))
        if isinstance(line, Line) and line.kind not in ("segment", "seal")
    ]


def test_encrypted_content_is_read_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file contains readable content; with the key, the session equals an unencrypted one."""
    run(tmp_path / "plain")
    monkeypatch.setenv("AGENTOBS_CONTENT_KEY", KEY)
    run(tmp_path / "sealed")
    assert CANARY.encode() in bytes_of(tmp_path / "plain")
    assert CANARY.encode() not in bytes_of(tmp_path / "sealed")
    assert bytes.fromhex(KEY) not in bytes_of(tmp_path / "sealed")
    requests = [
        [e.question.body for e in only_session(home).exchanges if isinstance(e, ModelExchange)]
        for home in (tmp_path / "plain", tmp_path / "sealed")
    ]
    assert requests[0] == requests[1]
    assert CANARY.encode() in requests[0][-1]
    freeze(only_session(tmp_path / "sealed"), tmp_path / "frozen", {})


@pytest.mark.parametrize(
    ("key", "error_text"),
    [("", "sealed, and there is no key"), (OTHER, "sealed with a different key")],
)
def test_encrypted_content_cannot_be_read_without_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, error_text: str
) -> None:
    """Without the key, reading content raises one error that names the required key; costs, spans and events are
    available.
    """
    monkeypatch.setenv("AGENTOBS_CONTENT_KEY", KEY)
    run(tmp_path)
    monkeypatch.setenv("AGENTOBS_CONTENT_KEY", key)
    with pytest.raises(RecordingError, match=error_text) as caught:
        only_session(tmp_path)
    assert key_id(bytes.fromhex(KEY)) in caught.value.todo
    ingest(existing_home(tmp_path))
    with connect(existing_home(tmp_path)) as store:
        assert store.execute("SELECT count(*) FROM attempts").fetchall() == [(3,)]
        assert store.execute("SELECT count(*) FROM usage").fetchall() == [(3,)]


def test_an_encrypted_line_cannot_replace_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that was changed, moved to another segment, or given another number, kind or ID cannot be decrypted; no
    two lines have the same nonce.
    """
    monkeypatch.setenv("AGENTOBS_CONTENT_KEY", KEY)
    run(tmp_path)
    lines = contents(tmp_path)
    nonces = {base64.b64decode(line.value()["sealed"])[:12] for _, line in lines}
    assert len(nonces) == len(lines) > 6
    segment_id, line = lines[0]
    value = line.value()
    assert (value["line"], value["kind"]) == (line.sequence, line.kind)
    assert "redactions" in decrypted_line(value, segment_id, "")
    flipped = (
        value["sealed"][:40] + ("A" if value["sealed"][40] != "A" else "B") + value["sealed"][41:]
    )
    changed: list[tuple[str, dict[str, Any]]] = [
        (segment_id, {**value, "sealed": flipped}),
        ("0" * 32, value),
        *((segment_id, {**value, each: "x"}) for each in ("content_id", "kind", "line", "sealed")),
    ]
    for other_id, other in changed:
        with pytest.raises(DamagedError, match="cannot be decrypted"):
            decrypted_line(other, other_id, "")


def test_text_is_compressed_before_encryption() -> None:
    """Repetitive text takes less space encrypted than in plain text; short text is not compressed."""
    sealer = Sealer(bytes.fromhex(KEY), "a" * 32)
    long = sealer.seal("tool", {"content_id": "c", "text": "rain " * 4000}, 3)
    assert len(long["sealed"]) < 1000
    assert sealer.open(long, "")["text"] == "rain " * 4000
    short = sealer.seal("tool", {"content_id": "c", "text": "\ud800"}, 4)
    assert sealer.open(short, "") == {"content_id": "c", "text": "\ud800"}


def test_the_key_comes_from_a_private_file(tmp_path: Path) -> None:
    """The key is read from the file in the options, and a file that others can read, or that contains no key, is
    rejected.
    """
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    assert content_key(file) == bytes.fromhex(KEY)
    run(tmp_path / "home", Options(seal_key=file))
    assert CANARY.encode() not in bytes_of(tmp_path / "home")
    for change in (lambda: file.chmod(0o640), lambda: _written(file, "short"), file.unlink):
        change()
        with pytest.raises(AgentobsError) as caught:
            content_key(file)
        assert caught.value.where == str(file)


def _written(path: Path, text: str) -> None:
    path.chmod(0o600)
    path.write_text(text)


def test_nothing_is_recorded_with_an_unusable_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the key is unusable, the agent continues, one warning states the reason, and nothing is written in plain
    text.
    """
    monkeypatch.setenv("AGENTOBS_CONTENT_KEY", "no key")
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        run(tmp_path / "home")
    [warning] = [
        str(each.message) for each in caught_warnings if "not recording" in str(each.message)
    ]
    assert "a content key must have 64 hex digits" in warning
    assert CANARY.encode() not in bytes_of(tmp_path)


def test_content_that_is_off_is_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `content="off"`, no content file is created, costs, spans and events are available, and one error states why
    the session cannot be replayed.
    """
    monkeypatch.setenv("AGENTOBS_CONTENT", "off")
    run(tmp_path / "home")
    assert not list((tmp_path / "home").glob("**/*.content*"))
    assert CANARY.encode() not in bytes_of(tmp_path)
    with pytest.raises(RecordingError, match="recorded without content") as caught:
        only_session(tmp_path / "home")
    assert 'content="vault"' in caught.value.todo
    with connect(existing_home(tmp_path / "home")) as store:
        [(count, cost)] = store.execute("SELECT count(*), sum(cost_usd) FROM costs").fetchall()
    assert (count, cost > 0) == (3, True)


@pytest.mark.slow
def test_content_files_can_be_deleted(tmp_path: Path) -> None:
    """Deleting the content files does not change the store; only reading content raises an error."""
    run(tmp_path)
    home = existing_home(tmp_path)
    ingest(home)
    before = _answers(home)
    for path in tmp_path.glob("segments/*.content*"):
        path.unlink()
    home.database.unlink()
    ingest(home)
    assert _answers(home) == before
    with pytest.raises(RecordingError, match="was pruned completely"):
        only_session(tmp_path)


def _answers(home: Home) -> list[Any]:
    with connect(home) as store:
        return [
            store.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall()
            for table in ("sessions", "attempts", "usage", "tool_results")
        ]


def test_the_store_contains_no_content(tmp_path: Path) -> None:
    """No prompt, response, tool input, result or name is in the DuckDB file or in the facts."""
    run(tmp_path)
    ingest(existing_home(tmp_path))
    store = existing_home(tmp_path).database.read_bytes()
    found = existing_home(tmp_path)
    facts, content = (
        b"".join(line.payload for each in segment_ids(found) for line in lines(path(found, each)))
        for path in (facts_path, content_path)
    )
    with duckdb.connect(existing_home(tmp_path).database, read_only=True) as connection:
        tables = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        rows = [connection.execute(f'SELECT * FROM "{name}"').fetchall() for (name,) in tables]
    for suffix in ("-prompt", "-result", "-system"):
        assert (CANARY + suffix).encode() in content
        assert (CANARY + suffix).encode() not in store
        assert (CANARY + suffix).encode() not in facts
        assert CANARY + suffix not in json.dumps(rows, default=str)


def _symlink(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def _hard_link(path: Path, outside: Path) -> None:
    path.hardlink_to(outside)


def _fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    "there", [_symlink, _hard_link, _fifo], ids=["symlink", "hard link", "FIFO"]
)
def test_existing_paths_are_never_written_to(
    tmp_path: Path, there: Callable[[Path, Path], None]
) -> None:
    """If the path of a new segment file is already a link, a FIFO or another file, the path is neither followed nor
    written to.
    """
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    path = open_home(tmp_path / "home").segments / f"{'a' * 32}.content"
    there(path, outside)
    with pytest.raises(OSError, match="exists"):
        SegmentFile(path, "a" * 32)
    assert outside.read_text() == "untouched"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """With any umask, only the owner can access files and directories, even directories that had a wider mode
    before.
    """
    home = tmp_path / "home"
    home.mkdir(mode=0o777)
    home.chmod(0o777)
    before = os.umask(0)
    try:
        run(home)
        ingest(existing_home(home))
    finally:
        os.umask(before)
    for path in (home, *home.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode & 0o077 == 0, path
    assert stat.S_IMODE((home / "segments").stat().st_mode) == 0o700
