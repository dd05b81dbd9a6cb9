"""The cost of an ingest, compared with DuckDB's own JSON reader, and the size of compressed segments."""

from __future__ import annotations

import json
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import duckdb
import httpx2

import agentobs
from agentobs.recording.journal.compression import compressed
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import (
    Line,
    content_path,
    facts_path,
    line_of,
    read,
    segment_ids,
)
from agentobs.recording.session import start_recorder
from agentobs.recording.vault.vault import text_bytes
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.loader import read_marks
from agentobs.store.duckdb.segment_compression import compress_ended
from benchmarks.conversation import Size, response_chunks, steps
from benchmarks.provider import Canned, client
from benchmarks.report import Section, Verdict

TURNS = 200
SIZE = Size(deltas=300, result_bytes=12_000)
COPIES = 150
"""The number of copies of the session's facts, which results in 200,000 records."""
ROUNDS = 7
TARGET = 300_000


def sections() -> Iterator[Section]:
    """Measure the speed of an ingest, and the size of a session."""
    with tempfile.TemporaryDirectory() as folder:
        home = _record(Path(folder) / "home")
        [segment_id] = segment_ids(home)
        lines = [line for line in read(facts_path(home, segment_id)) if isinstance(line, Line)]
        facts = [line for line in lines if line.kind not in ("segment", "seal")]
        yield _speed(Path(folder), facts)
        yield _size(home, len(facts))


def _record(path: Path) -> Home:
    """Record one session of `TURNS` turns with different responses."""
    http = httpx2.Client(transport=Canned([response_chunks(n, SIZE) for n in range(1, TURNS + 1)]))
    agentobs.record(http, home=str(path))
    recorder = start_recorder(str(path))
    assert recorder is not None
    try:
        with agentobs.session("session"):
            for number, _ in enumerate(steps(client(http), TURNS, SIZE)):
                # This agent does not wait for a provider, so the queue would overflow.
                if number % 10 == 0:
                    recorder.flush()
    finally:
        agentobs.stop_recorder()
    assert recorder.statistics().dropped == 0
    return Home(path)


def _speed(folder: Path, facts: list[Line]) -> Section:
    home = open_home(folder / "large")
    segment_id = f"{1:032x}"
    header = {"format": 1, "segment_id": segment_id, "opened_ns": 1}
    seed = zlib.crc32(segment_id.encode())
    records = [("segment", json.dumps(header).encode())]
    records += [(line.kind, line.payload) for line in facts] * COPIES
    data = b"".join(line_of(seed, n, *each) for n, each in enumerate(records, 1))
    facts_path(home, segment_id).write_bytes(data)
    plain = folder / "plain.json"
    plain.write_bytes(b"".join(b'{"fact":"%s",%s\n' % (k.encode(), p[1:]) for k, p in records[1:]))

    def ingest_again() -> None:
        home.database.unlink(missing_ok=True)
        home.manifest.unlink(missing_ok=True)
        assert ingest(home, is_awaited=True).records == len(records) - 1

    def read_with_duckdb() -> None:
        database = folder / "floor.duckdb"
        database.unlink(missing_ok=True)
        with duckdb.connect(str(database), config={"threads": 1}) as connection:
            source = f"read_json('{plain}', format = 'newline_delimited')"
            connection.execute(f"CREATE TABLE facts AS FROM {source}")
            connection.execute("CHECKPOINT")

    ingest_times, floor_times = [], []
    for _ in range(ROUNDS):
        ingest_times.append(_cpu(ingest_again))
        floor_times.append(_cpu(read_with_duckdb))
    count = len(records) - 1
    share = median(a / b for a, b in zip(ingest_times, floor_times, strict=True))
    rate = count / median(ingest_times)
    why = (
        f"DuckDB's own reader processes {count / median(floor_times):,.0f} of these records per second, without "
        f"checksums; a record has {len(data) / count:.0f} bytes and up to 40 columns."
    )
    return Section(
        "Ingest of segments",
        f"{ROUNDS} rounds of {count:,} facts from a session of {TURNS} turns, {len(data) / 1e6:.0f} MB; CPU of the "
        "process. agentobs verifies every line, inserts it into the typed tables of a new store, calculates costs, and "
        "publishes the store. DuckDB reads the same records from a file of JSON lines into one table, on one thread.",
        ("", "rows/s", "MB/s", "x DuckDB"),
        (
            (
                "agentobs ingest",
                f"{rate:,.0f}",
                f"{len(data) / median(ingest_times) / 1e6:.0f}",
                f"{share:.2f}",
            ),
            (
                "DuckDB's read_json into a table",
                f"{count / median(floor_times):,.0f}",
                f"{plain.stat().st_size / median(floor_times) / 1e6:.0f}",
                "1.00",
            ),
        ),
        (Verdict("ingest, CPU per fact", 1e6 / TARGET, 1e6 / rate, "{:.2f} us", why=why),),
    )


def _size(home: Home, facts: int) -> Section:
    """Compare the size of a session with the size of its new text in one zstd stream."""
    [segment_id] = segment_ids(home)
    new: list[bytes] = []
    for line in read(content_path(home, segment_id)):
        if isinstance(line, Line) and line.kind == "request":
            new.append(text_bytes(line.value()))
        elif isinstance(line, Line) and line.kind == "response":
            new.append(_stream_text(text_bytes(line.value())))
    ideal = len(compressed(b"".join(new)))
    before = {path.suffix: path.stat().st_size for path in home.segments.iterdir()}
    ingest(home)
    with duckdb.connect(str(home.database), read_only=True) as connection:
        compress_ended(home, read_marks(connection, "segments"))
    after = {path.name.split(".")[1]: path.stat().st_size for path in home.segments.iterdir()}
    content_bytes, facts_bytes = after["content"], after["facts"]
    return Section(
        f"The compressed size of a session of {TURNS} turns",
        f"The new text of the session is {len(b''.join(new)) / 1e6:.1f} MB, and {ideal / 1e6:.2f} MB as one zstd "
        "stream, which is the ideal. The segment also contains every byte of the streams, and the time of each "
        "chunk in nanoseconds.",
        ("", "plain", "compressed", ""),
        (
            (
                "content",
                f"{before['.content']:,}",
                f"{content_bytes:,}",
                f"{content_bytes / ideal:.2f} x ideal",
            ),
            (
                "facts",
                f"{before['.facts']:,}",
                f"{facts_bytes:,}",
                f"{facts_bytes / facts:.1f} bytes per fact",
            ),
        ),
        (
            Verdict(
                "content of 200 turns, compressed, divided by the ideal",
                1.2,
                content_bytes / ideal,
                "{:.2f}",
                why="Each of the 60,000 deltas has its own JSON, event name and arrival time, and each response is "
                "contained twice: as a stream, and as a message of the next request.",
            ),
            Verdict("a fact, compressed", 68, facts_bytes / facts, "{:.1f} bytes"),
        ),
    )


def _stream_text(stream: bytes) -> bytes:
    """Return the text of a stream without its framing."""
    texts = []
    for line in stream.split(b"\n"):
        if line.startswith(b"data:"):
            delta = json.loads(line[5:]).get("delta", {})
            texts.append(str(delta.get("text") or delta.get("partial_json") or ""))
    return "".join(texts).encode()


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
