"""Compression: the files of an ended segment become smaller, keep their contents, and always exist in at least one
form.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from agentobs.errors import RecordingError
from agentobs.recording.journal import compression, segments
from agentobs.recording.journal.compression import compressed_path
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import (
    Damage,
    Line,
    Segment,
    content_path,
    facts_path,
    file_size,
    read,
    segment_ids,
    tail,
)
from agentobs.recording.vault.vault import Vault, read_session
from agentobs.records.exchanges import Answer, Chunk, ModelExchange
from agentobs.sink import Record
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.verification import verify
from tests.marks import mark_all_but_first
from tests.store.recordings import (
    a_home,
    attempt,
    conversation,
    end,
    everything,
    finish,
    python,
    record,
    session_id,
    start,
    usage_row,
    write_facts,
)


def streamed(number: int, turn: int, words: int = 40) -> ModelExchange:
    """Return an exchange with a streamed response, one delta per chunk."""
    chosen = random.Random(turn)
    pieces = [
        '"}}\n\nevent: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        f'"delta":{{"type":"text_delta","text":"{chosen.getrandbits(40):x} é'
        for _ in range(words)
    ]
    chunks = [Chunk(piece.encode(), 10**6 + n * 12_345_678) for n, piece in enumerate(pieces)]
    exchange = attempt(number, turn)
    headers = {"content-type": "text/event-stream"}
    answer = Answer(200, headers, tuple(chunks), "complete")
    return ModelExchange(
        **{f: getattr(exchange, f) for f in exchange.__slots__} | {"answer": answer}
    )


def a_session(number: int = 1, turns: int = 4) -> list[Record]:
    return [start(number), *(streamed(number, n + 1) for n in range(turns)), end(number)]


def payloads(path: Path) -> list[tuple[int, str, bytes]]:
    return [(i.sequence, i.kind, i.payload) for i in read(path) if isinstance(i, Line)]


def made(tmp_path: Path) -> tuple[Home, str]:
    home = a_home(tmp_path)
    record(home, a_session())
    [segment_id] = segment_ids(home)
    return home, segment_id


@pytest.mark.slow
def test_compression_keeps_all_contents(tmp_path: Path) -> None:
    """An ingest compresses both files of a segment; all lines, query results and the complete session are the same as
    before.
    """
    home, segment_id = made(tmp_path)
    paths = facts_path(home, segment_id), content_path(home, segment_id)
    before = [(payloads(path), file_size(path)) for path in paths]
    whole = read_session(home, session_id(1), [segment_id])
    with connect(home, ingest=False) as connection:
        rows = everything(connection)
    report = ingest(home)
    assert report.compressed.files == 2
    assert report.compressed.after < report.compressed.before / 3
    assert sorted(p.name for p in home.segments.iterdir()) == [
        f"{segment_id}.content.zst",
        f"{segment_id}.facts.zst",
    ]
    assert [(payloads(path), file_size(path)) for path in paths] == before
    assert read_session(home, session_id(1), [segment_id]) == whole
    home.database.unlink()
    with connect(home, ingest=False) as connection:
        assert everything(connection) == rows
    assert verify(home).ok
    assert ingest(home).compressed.files == 0


def test_reading_one_record_decompresses_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading one content of a large compressed segment decompresses only one block."""
    from agentobs.recording.journal import segment_blocks

    monkeypatch.setattr(segment_blocks, "BLOCK_BYTES", 4096)
    home = a_home(tmp_path)
    record(home, a_session(turns=12))
    [segment_id] = segment_ids(home)
    wanted = [
        line.value()["content_id"]
        for line in read(content_path(home, segment_id))
        if isinstance(line, Line) and line.kind == "response"
    ]
    ingest(home)
    opened: list[int] = []
    real = compression.read_block

    def counted(file, index, block):
        opened.append(block.at)
        return real(file, index, block)

    monkeypatch.setattr(compression, "read_block", counted)
    answer = Vault(home, segment_id).answer(wanted[7])
    assert answer.chunks == streamed(1, 8).answer.chunks
    assert len(opened) == 1
    file, index = compression.read_index(compressed_path(content_path(home, segment_id)))
    file.close()
    assert len(index.blocks) > 5


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb import ingest, segment_compression

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
where = sys.argv[2]
setattr(Path if where == "unlink" else segment_compression, where, die)
ingest.ingest(Home(Path(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", mark_all_but_first(["_check", "sync_directory", "unlink"], pytest.mark.crash)
)
def test_a_kill_leaves_one_readable_copy(tmp_path: Path, place: str) -> None:
    """If compression is killed at any step, everything is readable and counted once, and the next ingest completes the
    work.
    """
    home, segment_id = made(tmp_path)
    with connect(home, ingest=False) as connection:
        before = everything(connection)
    process = python(KILLED_AT, home.path, place)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    with connect(home, ingest=False) as connection:
        assert everything(connection) == before
    assert verify(home).ok
    assert read_session(home, session_id(1), [segment_id]).exchanges
    ingest(home)
    assert {path.suffix for path in home.segments.iterdir()} == {".zst"}
    assert [p.name for p in home.path.iterdir() if p.name.startswith(".")] == []
    with connect(home, ingest=False) as connection:
        assert everything(connection) == before
    home.database.unlink()
    with connect(home) as connection:
        assert everything(connection) == before


def test_segments_of_running_processes_are_not_compressed(tmp_path: Path) -> None:
    """A segment is compressed only after its process has ended, whether or not it was closed."""
    home = a_home(tmp_path)
    segment = write_facts(home, [usage_row(1)], close=False)
    assert ingest(home).compressed.files == 0
    segment.abandon()
    assert ingest(home).compressed.files == 1
    with connect(home) as connection:
        assert connection.execute("SELECT state FROM segments").fetchall() == [("dead",)]
        assert connection.execute("SELECT count(*) FROM usage").fetchall() == [(1,)]


def test_a_reader_of_an_older_generation(tmp_path: Path) -> None:
    """A reader of an older generation reads records that are missing in it, once, from a segment that was compressed
    later.
    """
    home = a_home(tmp_path)
    segment = write_facts(home, [usage_row(1), usage_row(2)], close=False)
    ingest(home)
    older = home.database.read_bytes(), home.manifest.read_bytes()
    times = home.database.stat()
    for number in (3, 4):
        write_line(segment, number)
    segment.close()
    ingest(home)
    assert compressed_path(facts_path(home, segment.segment_id)).exists()
    home.database.chmod(0o600)
    home.database.write_bytes(older[0])
    os.utime(home.database, ns=(times.st_atime_ns, times.st_mtime_ns))
    home.manifest.write_bytes(older[1])
    with connect(home, ingest=False) as connection:
        rows = connection.execute("SELECT attempt_id FROM usage ORDER BY sequence").fetchall()
        assert rows == [(f"{number:032x}",) for number in (1, 2, 3, 4)]
        marks = connection.execute("SELECT missing_records, damaged_records FROM segments")
        assert marks.fetchall() == [(0, 0)]


def write_line(segment: Segment, number: int) -> None:
    from agentobs.records.facts import columns

    segment.facts.append("usage", columns(usage_row(number)))


@pytest.mark.slow
@pytest.mark.parametrize("side", ["facts", "content"])
def test_every_flipped_bit_of_a_compressed_file_is_noticed(tmp_path: Path, side: str) -> None:
    """A flipped bit in any byte of a compressed file is detected, and the reader returns no wrong data."""
    home = a_home(tmp_path)
    record(home, [start(1), streamed(1, 1, words=4)])
    ingest(home)
    home.database.unlink()
    [segment_id] = segment_ids(home)
    plain = facts_path(home, segment_id) if side == "facts" else content_path(home, segment_id)
    path, before = compressed_path(plain), set(payloads(plain))
    data = path.read_bytes()
    for offset in range(len(data)):
        changed = bytearray(data)
        changed[offset] ^= 1 << (offset * 5 % 8)
        path.write_bytes(changed)
        found = list(read(plain))
        assert any(isinstance(each, Damage) for each in found), offset
        assert {(i.sequence, i.kind, i.payload) for i in found if isinstance(i, Line)} <= before


def mutations(data: bytes, other: bytes, count: int) -> list[bytes]:
    """Return changed copies of a file: with swapped words and sectors, with parts of another file, and truncated."""
    chosen = random.Random(8)
    changed = []
    for _ in range(count):
        for size in (8, 512):
            places = sorted(chosen.sample(range(0, len(data) // size), 2))
            a, b = (place * size for place in places)
            swapped = bytearray(data)
            swapped[a : a + size], swapped[b : b + size] = data[b : b + size], data[a : a + size]
            changed.append(bytes(swapped))
        at, length = chosen.randrange(len(data)), chosen.randrange(1, 2000)
        start = chosen.randrange(len(other))
        changed.append(data[:at] + other[start : start + length] + data[at + length :])
        changed.append(data[:at] + data[at + length :])
        changed.append(data[:at])
    return [each for each in changed if each != data]


@pytest.mark.parametrize("form", ["plain", "compressed"])
@pytest.mark.parametrize("side", ["facts", "content"])
def test_moved_cut_or_spliced_data_is_detected(tmp_path: Path, side: str, form: str) -> None:
    """Swapped words and sectors, parts of another session's file, and truncation are detected, and the reader returns
    no wrong data.
    """
    home = a_home(tmp_path)
    for number in (1, 2):
        record(home, a_session(number, turns=9))
    one, two = segment_ids(home)
    if form == "compressed":
        ingest(home)
    pick = facts_path if side == "facts" else content_path
    plain, other = pick(home, one), pick(home, two)
    path = compressed_path(plain) if form == "compressed" else plain
    source = compressed_path(other) if form == "compressed" else other
    before, data = payloads(plain), path.read_bytes()
    for number, changed in enumerate(mutations(data, source.read_bytes(), 15)):
        path.write_bytes(changed)
        found = list(read(plain))
        lines = [(i.sequence, i.kind, i.payload) for i in found if isinstance(i, Line)]
        noticed = any(isinstance(each, Damage) for each in found) or not found or tail(plain) > 0
        is_cut = form == "plain" and data.startswith(changed)  # like the file of a killed process
        assert noticed or (is_cut and lines == before[: len(lines)]), number
        assert set(lines) <= set(before), number


def test_damage_in_a_block_affects_only_its_sessions(tmp_path: Path) -> None:
    """If a block is damaged, the finding names its sessions, which cannot be read; the other sessions of the segment
    can be read.
    """
    from agentobs.recording.journal import segment_blocks

    home = a_home(tmp_path)
    before = segment_blocks.BLOCK_BYTES
    segment_blocks.BLOCK_BYTES = 2048
    try:
        record(home, [*conversation(1), *conversation(2), *conversation(3)])
        ingest(home)
    finally:
        segment_blocks.BLOCK_BYTES = before
    [segment_id] = segment_ids(home)
    path = compressed_path(facts_path(home, segment_id))
    file, index = compression.read_index(path)
    file.close()
    block = next(b for b in index.blocks if b.summary.sessions == (session_id(2),))
    data = bytearray(path.read_bytes())
    data[block.at + block.compressed_bytes // 2] ^= 1
    path.write_bytes(data)
    finding = verify(home).findings[0]
    assert (finding.path, finding.sessions) == (path, (session_id(2),))
    assert all(f"{count} {kind}" in finding.lost for kind, count in block.summary.kinds.items())
    for number in (1, 3):
        assert read_session(home, session_id(number), [segment_id]).outcome == "completed"
    with pytest.raises(RecordingError, match="damaged"):
        read_session(home, session_id(2), [segment_id])


def test_the_readable_part_of_a_block_is_salvaged() -> None:
    """The start of an incomplete block is salvaged, and at most the permitted size of a block that is too large."""
    data = random.Random(1).randbytes(300_000)
    part = b"".join(compression.salvage(compression.compressed(data)[:200_000]))
    assert part == data[: len(part)]
    assert len(part) > 65_536
    bomb = compression.compressed(bytes(2 * compression.ANY_RATIO_BYTES))
    assert sum(map(len, compression.salvage(bomb))) == compression.ANY_RATIO_BYTES


@pytest.mark.slow
def test_a_decompression_bomb_is_rejected(tmp_path: Path) -> None:
    """If a file decompresses to far more than it states, or than a record can have, decompression stops at the
    limit.
    """
    import json
    import tracemalloc
    import zlib

    home, segment_id = made(tmp_path)
    ingest(home)
    path = compressed_path(content_path(home, segment_id))
    bomb = compression.compressed(bytes(400 * 1024 * 1024))
    seed = zlib.crc32(segment_id.encode())
    for stated_bytes in (1000, 400 * 1024 * 1024):
        summary = [1, 2, {}, [], []]
        value = {
            "format": 1, "segment_id": segment_id, "bytes": stated_bytes, "digest": "", "torn": 0,
            "rewritten": False,
            "blocks": [[0, stated_bytes, 0, len(bomb), zlib.crc32(bomb, seed), *summary]],
        }  # fmt: skip
        text = compression.compressed(json.dumps(value).encode())
        end = compression._END.pack(len(text), zlib.crc32(text, seed), b"agentobs")
        head = compression._SKIPPABLE.pack(compression._SKIPPABLE_MAGIC, len(text) + len(end))
        path.write_bytes(bomb + head + text + end)
        tracemalloc.start()
        found = list(read(content_path(home, segment_id)))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(found[0], Damage)
        assert [each for each in found if isinstance(each, Line)] == []
        assert most < 100 * 1024 * 1024


@pytest.mark.slow
def test_highly_compressible_bodies_are_kept(tmp_path: Path) -> None:
    """Repetitive bodies are compressed and can be read back, even if their compression ratio exceeds the limit."""
    home = a_home(tmp_path)
    repetitive = "the same words again and again " * 600_000
    segment = Segment(home)
    segment.content.append("start", {"content_id": "c", "session_id": "s", "text": "a" * 4_500_000})
    segment.content.append("start", {"content_id": "d", "session_id": "s", "text": repetitive})
    segment.facts.append("usage", {"attempt_id": "x"})
    segment.close()
    assert ingest(home).compressed.files == 2
    assert Vault(home, segment.segment_id).value("c")["text"] == "a" * 4_500_000
    assert Vault(home, segment.segment_id).value("d")["text"] == repetitive
    packed = compressed_path(content_path(home, segment.segment_id))
    assert packed.stat().st_size < len(repetitive) / 150
    assert verify(home).ok


WRITING = """
import sys
from pathlib import Path
from agentobs.recording.journal.home import open_home
from tests.store.recordings import conversation, record
home = open_home(sys.argv[1])
for number in range(int(sys.argv[2]), int(sys.argv[2]) + 8):
    record(home, conversation(number))
"""
INGESTING = """
import sys
from pathlib import Path
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.ingest import ingest
for _ in range(12):
    ingest(Home(Path(sys.argv[1])))
"""


@pytest.mark.crash
def test_readers_during_compression(tmp_path: Path) -> None:
    """While two processes write and another one ingests and compresses, no reader sees fewer records than before."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    workers = [python(WRITING, home.path, 100), python(WRITING, home.path, 200)]
    workers.append(python(INGESTING, home.path))
    seen = 0
    while any(worker.poll() is None for worker in workers):
        with connect(home) as connection:
            row = connection.execute("SELECT count(*) FROM attempts").fetchone()
            assert row is not None
            assert row[0] >= seen
            seen = row[0]
    for worker in workers:
        finish(worker)
    ingest(home)
    with connect(home) as connection:
        assert connection.execute("SELECT count(*) FROM attempts").fetchone() == (17 * 3,)
    assert verify(home).ok


@pytest.mark.slow
def test_a_plain_file_that_lost_its_end_does_not_replace_the_compressed_file(
    tmp_path: Path,
) -> None:
    """If both forms exist after a power loss and the plain file is damaged, the compressed file is kept."""
    home, segment_id = made(tmp_path)
    path = facts_path(home, segment_id)
    plain = path.read_bytes()
    ingest(home)
    with connect(home, ingest=False) as connection:
        before = everything(connection)
    compressed = compressed_path(path).read_bytes()
    for rest in (plain[: plain.rfind(b"\n", 0, -1) + 1], plain[:-60] + bytes(60)):
        path.write_bytes(rest)
        ingest(home)
        assert not path.exists()
        assert compressed_path(path).read_bytes() == compressed
    home.database.unlink()
    with connect(home) as connection:
        assert everything(connection) == before


def test_findings_contain_paths_of_compressed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` reports the compressed file, because the plain file no longer exists."""
    home = a_home(tmp_path)
    record(home, [start(1), streamed(1, 1, words=4)])
    ingest(home)
    home.database.unlink()
    [segment_id] = segment_ids(home)
    facts, content = (compressed_path(of(home, segment_id)) for of in (facts_path, content_path))
    for path in (facts, content):
        before = path.read_bytes()
        path.write_bytes(before[:50] + bytes([before[50] ^ 1]) + before[51:])
        found = verify(home).findings
        assert path in {each.path for each in found}
        assert all(each.path.exists() for each in found)
        path.write_bytes(before)
    with monkeypatch.context() as patched:
        patched.setattr(segments, "FORMAT", 0)
        assert {each.path for each in verify(home).findings} == {facts, content}
    content.unlink()
    assert {each.path for each in verify(home).findings} == {facts}
