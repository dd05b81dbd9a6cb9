"""Repair: readable data is kept, losses are reported, and no byte is destroyed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentobs.recording.journal.compression import compressed_path
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import (
    Line,
    content_path,
    facts_path,
    read,
    segment_ids,
)
from agentobs.recording.vault.vault import read_session
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.repair import repair
from agentobs.store.duckdb.verification import verify
from agentobs.store.text_index import NAME as TEXTS
from agentobs.store.text_index import IndexedText, TextIndex
from tests.store.recordings import (
    a_home,
    conversation,
    everything,
    record,
    session_id,
    usage_row,
    write_facts,
)


def made(tmp_path: Path, *, is_ingested: bool) -> tuple[Home, str]:
    home = a_home(tmp_path)
    record(home, [*conversation(1), *conversation(2)])
    if is_ingested:
        ingest(home)
    [segment_id] = segment_ids(home)
    return home, segment_id


def spoil(path: Path, at: float) -> bytes:
    """Flip a bit; return the damaged file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 4
    path.write_bytes(data)
    return bytes(data)


def damaged_files(home: Home) -> list[bytes]:
    return [path.read_bytes() for path in (home.path / "damaged").iterdir()]


@pytest.mark.slow
def test_nothing_to_repair(tmp_path: Path) -> None:
    """An intact home is not changed."""
    home, _ = made(tmp_path, is_ingested=True)
    before = {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()}
    assert repair(home).lines() == ["nothing to repair"]
    assert {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_facts_are_restored_from_the_published_file(tmp_path: Path) -> None:
    """If a block of facts is damaged, the facts are restored from their rows in the published file; the rows stay the
    same.

    This also holds in a store that is rebuilt from the segments.
    """
    home, segment_id = made(tmp_path, is_ingested=True)
    with connect(home) as connection:
        before = everything(connection)
    damaged = spoil(compressed_path(facts_path(home, segment_id)), 0.3)
    assert not verify(home).ok
    report = repair(home)
    assert "from the published file" in report.lines()[0]
    assert damaged in damaged_files(home)
    assert verify(home).findings == []
    with connect(home) as connection:
        after = everything(connection)
    assert after["attempts"] == before["attempts"]
    assert after["usage"] == before["usage"]
    assert after["span_starts"] == before["span_starts"]
    home.database.unlink()
    with connect(home) as connection:
        assert everything(connection) == after
    assert repair(home).lines() == ["nothing to repair"]


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_a_record_after_a_damaged_one_is_not_doubled(tmp_path: Path, damaged: int) -> None:
    """If one record is damaged and the store has the next one, the repaired file contains each record once."""
    home, segment_id = made(tmp_path, is_ingested=False)
    path = facts_path(home, segment_id)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[damaged - 1] = lines[damaged - 1].replace(b'"', b"'", 1)
    path.write_bytes(b"".join(lines))
    ingest(home)
    with connect(home, ingest=False) as connection:
        before = everything(connection)
    [line, *_] = repair(home).lines()
    assert "records recovered, 1 are lost; original" in line
    assert [each.sequence for each in read(path) if isinstance(each, Line)] == [
        *range(1, len(lines) + 1)
    ]
    assert verify(home).findings == []
    with connect(home, ingest=False) as connection:
        assert everything(connection) == before


@pytest.mark.slow
@pytest.mark.parametrize("form", ["plain", "compressed"])
def test_losses_are_reported(tmp_path: Path, form: str) -> None:
    """If lost facts have no rows, the readable records keep their numbers, and the session is incomplete, now and after
    a rebuild.
    """
    home, segment_id = made(tmp_path, is_ingested=form == "compressed")
    path = facts_path(home, segment_id)
    if form == "compressed":
        home.database.unlink()
    damaged = spoil(path if form == "plain" else compressed_path(path), 0.5)
    report = repair(home)
    assert "are lost" in report.lines()[0]
    assert damaged in damaged_files(home)
    assert verify(home).findings == []
    with connect(home) as connection:
        after = everything(connection)
        lost = connection.execute(
            "SELECT missing_records, damaged_records FROM segments"
        ).fetchall()
    assert lost[0][0] > 0
    home.database.unlink()
    with connect(home) as connection:
        assert everything(connection) == after


def test_a_torn_end_is_cut_and_a_dead_segment_closed(tmp_path: Path) -> None:
    """An incomplete record at the end of a killed process's segment is moved to the directory of damaged files.

    Segments of running processes are skipped.
    """
    home = a_home(tmp_path)
    segment = write_facts(home, [usage_row(1)], close=False)
    alive = write_facts(home, [usage_row(2)], close=False)
    segment.abandon()
    path = segment.facts.path
    with path.open("ab") as file:
        file.write(b'0badc0de 3 usage {"atte')
    torn, living = path.read_bytes(), alive.facts.path.read_bytes()
    assert "an incomplete record of 23 bytes at the end was removed" in repair(home).lines()[0]
    assert torn in damaged_files(home)
    assert alive.facts.path.read_bytes() == living
    assert verify(home).findings == []
    with connect(home) as connection:
        rows = connection.execute("SELECT state FROM segments ORDER BY state").fetchall()
        assert rows == [("dead",), ("open",)]
    alive.close()


@pytest.mark.slow
def test_damaged_content(tmp_path: Path) -> None:
    """A session with damaged content cannot be read, with a clear error; the other session can be read, and facts are
    unchanged.
    """
    home, segment_id = made(tmp_path, is_ingested=False)
    path = content_path(home, segment_id)
    lines = path.read_bytes().splitlines(keepends=True)
    place = sum(map(len, lines[:3])) + 100
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    repair(home)
    assert bytes(data) in damaged_files(home)
    assert read_session(home, session_id(2), [segment_id]).outcome == "completed"
    findings = verify(home).findings
    assert {each.sessions for each in findings if each.sessions} == {(session_id(1),)}
    assert repair(home).done == []


@pytest.mark.slow
def test_a_damaged_generation(tmp_path: Path) -> None:
    """A published file that does not match the manifest is moved away and rebuilt with the same rows."""
    home, segment_id = made(tmp_path, is_ingested=True)
    with connect(home) as connection:
        before = everything(connection)
    home.database.chmod(0o600)
    damaged = spoil(home.database, 0.5)
    report = repair(home)
    assert damaged in damaged_files(home)
    assert any("moved to" in line for line in report.lines())
    with connect(home) as connection:
        assert everything(connection) == before
    for path in (content_path(home, segment_id), facts_path(home, segment_id)):
        assert not path.exists()
    compressed_path(facts_path(home, segment_id)).unlink()
    assert any("restored from the published file" in line for line in repair(home).lines())
    with connect(home) as connection:
        assert everything(connection) == before
    assert verify(home).ok


def test_content_without_facts(tmp_path: Path) -> None:
    """Content whose facts exist neither in a segment nor in the published file is moved away."""
    home, segment_id = made(tmp_path, is_ingested=False)
    facts_path(home, segment_id).unlink()
    assert any("its facts are missing" in line for line in repair(home).lines())


@pytest.mark.slow
def test_a_damaged_index_of_texts(tmp_path: Path) -> None:
    """`verify` reports it without a change, and `repair` deletes it, because the next search creates it again."""
    home, session_id = made(tmp_path, is_ingested=True)
    with TextIndex(home) as index:
        index.put("title", [IndexedText(session_id, "1", "a title")])
    assert verify(home).ok
    path = home.path / TEXTS
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"x" * 900 + data[4996:])
    before = path.read_bytes()
    [finding] = verify(home).findings
    assert (finding.path, finding.lost[:8]) == (path, "nothing.")
    assert path.read_bytes() == before
    assert [line for line in repair(home).lines() if line.startswith(TEXTS)]
    assert not path.exists()
    assert verify(home).ok


@pytest.mark.slow
def test_a_missing_segment_is_restored_from_the_published_file(tmp_path: Path) -> None:
    """If all files of a segment are missing, its facts are restored from the rows of the published file.

    `verify` refers to repair and does not advise to delete the store, which holds the only copy.
    """
    home, segment_id = made(tmp_path, is_ingested=True)
    with connect(home, ingest=False) as connection:
        before = everything(connection)
    for path in home.segments.iterdir():
        path.unlink()
    [finding] = verify(home).findings
    assert finding.found.startswith(f"segment {segment_id} is missing")
    assert "agentobs repair restores" in finding.lost
    report = repair(home)
    assert report.unrepaired == []
    assert "records restored from the published file" in report.done[0]
    with connect(home, ingest=False) as connection:
        assert everything(connection) == before
    assert {each.found.partition(" ")[0] for each in verify(home).findings} == {"references"}, (
        "the content is lost"
    )


def test_a_store_without_records(tmp_path: Path) -> None:
    """A store without records is not damaged."""
    home = a_home(tmp_path)
    ingest(home)
    assert repair(home).lines() == ["nothing to repair"]
