"""Verification: every change in a home is found and reported with its file and location."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Line, content_path, facts_path, read, segment_ids
from agentobs.records.facts import Pruning
from agentobs.store.duckdb import generations, verification
from agentobs.store.duckdb import repair as repair_module
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.verification import verify
from tests.marks import mark_all_but_first
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    conversation,
    counts,
    end,
    record,
    session_id,
    start,
    tool,
    usage_row,
    write_facts,
)

WEATHER = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}


def recorded(tmp_path: Path) -> tuple[Home, str]:
    """Return a home with one small segment that has every kind of content."""
    home = a_home(tmp_path)
    record(
        home,
        [
            start(1),
            attempt(1, 1, content=[WEATHER]),
            tool(1, "toolu_1", "weather", at=T0 + 2 * SECOND),
            attempt(1, 3),
            end(1),
        ],
    )
    [segment_id] = segment_ids(home)
    return home, segment_id


def intact(path: Path) -> list[bytes]:
    return [line.payload for line in read(path) if isinstance(line, Line)]


def test_an_intact_home(tmp_path: Path) -> None:
    """`verify` has no findings in an unchanged home, whether or not it is published or a process is recording."""
    home, _ = recorded(tmp_path)
    assert verify(home).ok
    ingest(home)
    record(home, conversation(2))
    segment = write_facts(home, [usage_row(1)], close=False)
    report = verify(home)
    assert report.findings == []
    assert (report.segments, report.ok) == (3, True)
    assert report.lines() == ["3 segments, 47 records, 17 contents: all intact"]
    segment.close()


@pytest.mark.slow
@pytest.mark.parametrize("side", ["facts", "content"])
def test_every_flipped_bit_is_noticed(tmp_path: Path, side: str) -> None:
    """If a bit in any byte of a segment is flipped, `verify` finds it, and at most its record and one neighbor are
    affected.
    """
    home = a_home(tmp_path)
    if side == "facts":
        write_facts(home, [start(1).start, usage_row(1)])
    else:
        record(home, [start(1), attempt(1, 1)])
    [segment_id] = segment_ids(home)
    path = facts_path(home, segment_id) if side == "facts" else content_path(home, segment_id)
    data, before = path.read_bytes(), intact(path)
    for offset in range(len(data)):
        changed = bytearray(data)
        changed[offset] ^= 1 << (offset * 5 % 8)
        path.write_bytes(changed)
        report = verify(home)
        assert any(f.path == path and f.offset is not None for f in report.findings), offset
        after = intact(path)
        assert len(after) >= len(before) - 2, offset
        assert set(after) <= set(before), offset


@pytest.mark.slow
def test_a_flipped_bit_affects_only_its_record(tmp_path: Path) -> None:
    """A damaged segment is ingested with all its recorded rows, except those of the damaged record."""
    home, segment_id = recorded(tmp_path)
    path = facts_path(home, segment_id)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    for number in range(0, len(lines) - 1, 4):
        changed = bytearray(data)
        changed[len(b"".join(lines[:number])) + len(lines[number]) // 2] ^= 4
        path.write_bytes(changed)
        with connect(home, ingest=False) as connection:
            assert sum(counts(connection).values()) == len(lines) - 2 - (number > 0)
            sql = "SELECT damaged_records, missing_records FROM segments"
            assert connection.execute(sql).fetchall() == [(1, 1)]


def test_a_line_of_another_segment_is_noticed(tmp_path: Path) -> None:
    """A line that was copied from another segment is not accepted."""
    home, segment_id = recorded(tmp_path)
    other = write_facts(home, [usage_row(1)])
    foreign = other.facts.path.read_bytes().splitlines(keepends=True)[1]
    path = facts_path(home, segment_id)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], foreign, *lines[2:]]))
    [finding] = verify(home).findings
    assert (finding.path, finding.offset) == (path, len(lines[0]) + len(lines[1]))
    assert finding.found == "its checksum does not match"
    with connect(home) as connection:
        assert counts(connection)["usage"] == 3
    path.rename(path.with_name(f"{'e' * 32}.facts"))
    assert not verify(home).ok


def test_missing_lines_are_found(tmp_path: Path) -> None:
    """Missing lines are found because they leave a gap in the numbers; content that no fact references is not
    damage.
    """
    home, segment_id = recorded(tmp_path)
    path = facts_path(home, segment_id)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], *lines[5:]]))
    [finding] = verify(home).findings
    assert finding.found == "2 records missing before record 6"
    assert str(finding) == (
        f"{path} at byte {len(b''.join(lines[:3]))}: 2 records missing before record 6; lost: see above"
    )


def test_a_torn_tail(tmp_path: Path) -> None:
    """An incomplete record at the end of a dead segment is reported with a description."""
    home = a_home(tmp_path)
    segment = write_facts(home, [usage_row(1)], close=False)
    segment.abandon()
    with segment.facts.path.open("ab") as file:
        file.write(b'0badc0de 3 usage {"atte')
    [finding] = verify(home).findings
    assert finding.found == "its last 23 bytes are not a complete record"
    assert finding.offset == segment.facts.path.stat().st_size - 23


def content_lines(home: Home, segment_id: str) -> Iterator[tuple[str, dict[str, object]]]:
    for line in read(content_path(home, segment_id)):
        if isinstance(line, Line):
            yield line.kind, line.value()


def test_missing_content_is_found(tmp_path: Path) -> None:
    """`verify` finds a record that references missing content, and a body whose base is missing."""
    home, segment_id = recorded(tmp_path)
    content = content_path(home, segment_id)
    values = list(content_lines(home, segment_id))
    base = next(value["base"] for kind, value in values if kind == "request" and value["base"])
    kept = content.read_bytes().splitlines(keepends=True)
    content.write_bytes(
        b"".join(line for line in kept if f'"content_id":"{base}"'.encode() not in line)
    )
    found = [finding.found for finding in verify(home).findings]
    assert found == [
        "1 record missing before record 4",
        f"references content {base}, which is missing",
        f"is based on content {base}, which is missing",
    ]
    content.unlink()
    report = verify(home)
    assert len(report.findings) == 6
    assert {finding.path for finding in report.findings} == {facts_path(home, segment_id)}
    facts_path(home, segment_id).rename(tmp_path / "elsewhere")
    content.write_bytes(b"".join(kept))
    [finding] = verify(home).findings
    assert (finding.path, finding.found) == (content, "its facts are missing")


@pytest.mark.parametrize(("delay_ns", "is_found"), [(0, False), (-1, True)])
def test_missing_content_of_a_pruned_session(tmp_path: Path, delay_ns: int, is_found: bool) -> None:
    """Missing content was pruned if its session was pruned after the segment was opened; otherwise it is a finding."""
    home, segment_id = recorded(tmp_path)
    lines = (each for each in read(facts_path(home, segment_id)) if isinstance(each, Line))
    opened_ns = next(line.value()["opened_ns"] for line in lines if line.kind == "segment")
    content_path(home, segment_id).unlink()
    write_facts(home, [Pruning(session_id(1), opened_ns + delay_ns, "content")])
    assert bool(verify(home).findings) is is_found


def test_a_seal_with_wrong_counts(tmp_path: Path) -> None:
    """`verify` finds a seal (the last line) whose counts do not match the lines before it."""
    home = a_home(tmp_path)
    segment = write_facts(home, [usage_row(1)], close=False)
    segment.facts.append("seal", {"lines": 7})
    segment.abandon()
    [finding] = verify(home).findings
    assert finding.found == "the line count in its last line does not match the file"


def change(home: Home, sql: str) -> None:
    """Change the published file, and update the manifest so that both match."""
    home.database.chmod(0o600)
    with duckdb.connect(str(home.database)) as connection:
        connection.execute(sql)
    draft = home.path / "changed.duckdb"
    home.database.rename(draft)
    generations.publish(home, draft, 0, None)


@pytest.mark.parametrize(
    ("sql", "found"),
    mark_all_but_first(
        [
            (
                "DELETE FROM attempts WHERE turn = 1",
                "table attempts has 1 rows of segment {}, expected 2",
            ),
            ("INSERT INTO usage FROM usage", "table usage has 4 rows of segment {}, expected 2"),
            (
                "UPDATE segments SET facts_offset = 10000000",
                "segment {} is shorter than when it was ingested",
            ),
            ("DROP VIEW sessions; DROP TABLE span_ends", "table span_ends cannot be read: "),
        ],
        pytest.mark.slow,
    ),
)
def test_rows_are_compared_with_the_segments(tmp_path: Path, sql: str, found: str) -> None:
    """`verify` finds missing or duplicate rows in the published file, even if its digest matches."""
    home, segment_id = recorded(tmp_path)
    ingest(home)
    change(home, sql)
    [finding] = verify(home).findings
    assert finding.path == home.database
    assert finding.found.startswith(found.format(segment_id))
    advice = "agentobs repair" if "shorter" in found else "Delete the file"
    assert advice in finding.lost
    home.database.unlink()
    ingest(home)
    assert verify(home).ok


def test_the_published_file_is_compared_with_its_manifest(tmp_path: Path) -> None:
    """`verify` finds a flipped bit in the published file, even if its size and time are unchanged, and a table that was
    added to it.
    """
    import os

    home, _ = recorded(tmp_path)
    ingest(home)
    found = home.database.stat()
    published = home.database.read_bytes()
    data = bytearray(published)
    data[len(data) // 2] ^= 1
    home.database.chmod(0o600)
    home.database.write_bytes(data)
    os.utime(home.database, ns=(found.st_atime_ns, found.st_mtime_ns))
    [finding] = verify(home).findings
    assert finding.found == "this file is not the published generation"
    home.database.write_bytes(published)
    with duckdb.connect(home.database) as connection:
        connection.execute("CREATE TABLE mine (number INTEGER)")
    [finding] = verify(home).findings
    assert finding.found == "this file is not the published generation"
    home.database.write_bytes(b"my notes")
    [finding] = verify(home).findings
    assert finding.found.startswith("cannot be opened")


def test_missing_segments(tmp_path: Path) -> None:
    """`verify` reports rows whose segment is missing."""
    home, segment_id = recorded(tmp_path)
    ingest(home)
    for path in home.segments.iterdir():
        path.unlink()
    [finding] = verify(home).findings
    assert finding.found.startswith(f"segment {segment_id} is missing")


def test_a_valid_line_that_is_not_json(tmp_path: Path) -> None:
    """A payload that is not JSON, in a line with a valid checksum, causes no errors in readers."""
    home = a_home(tmp_path)
    segment = write_facts(home, [usage_row(1)], close=False)
    segment.abandon()
    rest = b"3 attempts nonsense"
    line = b"%08x %s\n" % (zlib.crc32(rest, zlib.crc32(segment.segment_id.encode())), rest)
    with segment.facts.path.open("ab") as file:
        file.write(line)
    assert verify(home).ok
    assert ingest(home).misfit_records == 1
    [finding] = verify(home).findings
    assert finding.found.endswith(f"has 0 rows of segment {segment.segment_id}, expected 1")


def test_a_segment_created_during_verification_is_not_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is created while a home is verified or repaired is neither reported nor moved away."""
    home, _ = recorded(tmp_path)
    for module in (verification, repair_module):
        listed = module.segment_ids

        def listed_before_another(
            place: Home, listed: Callable[[Home], list[str]] = listed
        ) -> list[str]:
            found = listed(place)
            record(home, [start(len(found) + 1), attempt(len(found) + 1, 1)])
            return found

        monkeypatch.setattr(module, "segment_ids", listed_before_another)
    assert verify(home).findings == []
    repair_module.repair(home)
    assert not (home.path / "damaged").exists()
    monkeypatch.undo()
    assert verify(home).ok
