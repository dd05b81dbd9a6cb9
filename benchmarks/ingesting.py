"""What keeping costs: segments into the published file, against DuckDB's own JSON reader, and what they weigh."""

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
from agentobs.recording.journal.compression import deflated
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import Line, content_path, facts_path, read, segment_ids
from agentobs.recording.session import start_recorder
from agentobs.recording.vault.vault import text_bytes
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.loader import read_marks
from agentobs.store.duckdb.segment_compression import compress_ended
from agentobs.store.duckdb.segment_rewrite import line_of
from benchmarks.conversation import Size, answer, run
from benchmarks.provider import Canned, client
from benchmarks.report import Section, Verdict

TURNS = 200
SIZE = Size(deltas=300, result_bytes=12_000)
COPIES = 150
"""How often the facts of the session are repeated: 200,000 records."""
ROUNDS = 7
TARGET = 300_000


def sections() -> Iterator[Section]:
    """Measure an ingest, and what a session weighs."""
    with tempfile.TemporaryDirectory() as folder:
        home = _recorded(Path(folder) / "home")
        [segment_id] = segment_ids(home)
        lines = [line for line in read(facts_path(home, segment_id)) if isinstance(line, Line)]
        facts = [line for line in lines if line.kind not in ("segment", "seal")]
        yield _speed(Path(folder), facts)
        yield _weight(home, len(facts))


def _recorded(path: Path) -> Home:
    """Record one session of our own size, each answer another."""
    http = httpx2.Client(transport=Canned([answer(n, SIZE) for n in range(1, TURNS + 1)]))
    agentobs.record(http, home=str(path))
    recorder = start_recorder(str(path))
    assert recorder is not None
    try:
        with agentobs.session("session"):
            run(client(http), TURNS, SIZE)
    finally:
        agentobs.stop_recorder()
    assert recorder.statistics().dropped == 0
    return Home(path)


def _speed(folder: Path, facts: list[Line]) -> Section:
    home = open_home(folder / "large")
    segment_id = f"{1:032x}"
    opened = {"format": 1, "segment_id": segment_id, "opened_ns": 1}
    seed = zlib.crc32(segment_id.encode())
    told = [("segment", json.dumps(opened).encode())]
    told += [(line.kind, line.payload) for line in facts] * COPIES
    data = b"".join(line_of(seed, n, *each) for n, each in enumerate(told, 1))
    facts_path(home, segment_id).write_bytes(data)
    plain = folder / "plain.json"
    plain.write_bytes(b"".join(b'{"fact":"%s",%s\n' % (k.encode(), p[1:]) for k, p in told[1:]))

    def anew() -> None:
        home.database.unlink(missing_ok=True)
        home.manifest.unlink(missing_ok=True)
        assert ingest(home, is_awaited=True).records == len(told) - 1

    def duckdbs() -> None:
        database = folder / "theirs.duckdb"
        database.unlink(missing_ok=True)
        with duckdb.connect(str(database), config={"threads": 1}) as connection:
            source = f"read_json('{plain}', format = 'newline_delimited')"
            connection.execute(f"CREATE TABLE facts AS FROM {source}")
            connection.execute("CHECKPOINT")

    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(_cpu(anew))
        theirs.append(_cpu(duckdbs))
    count = len(told) - 1
    share = median(a / b for a, b in zip(ours, theirs, strict=True))
    rate = count / median(ours)
    why = (
        f"DuckDB's own reader makes {count / median(theirs):,.0f} rows a second of the same records, without check "
        f"sums, and a record has {len(data) / count:.0f} bytes and up to 40 columns."
    )
    return Section(
        "Segments into the published file",
        f"{ROUNDS} rounds; {count:,} facts of a session of {TURNS} turns, {len(data) / 1e6:.0f} MB, CPU of the "
        "process. Ours checks every line, types it into the tables of a new store, prices it and publishes; DuckDB "
        "reads the same records from a file of JSON lines into one table, on one thread.",
        ("", "rows/s", "MB/s", "x DuckDB"),
        (
            (
                "agentobs ingest",
                f"{rate:,.0f}",
                f"{len(data) / median(ours) / 1e6:.0f}",
                f"{share:.2f}",
            ),
            (
                "DuckDB's read_json into a table",
                f"{count / median(theirs):,.0f}",
                f"{plain.stat().st_size / median(theirs) / 1e6:.0f}",
                "1.00",
            ),
        ),
        (Verdict("ingest, CPU for a fact", 1e6 / TARGET, 1e6 / rate, "{:.2f} us", why=why),),
    )


def _weight(home: Home, facts: int) -> Section:
    """Compare what a session weighs with its new words in one zstd stream."""
    [segment_id] = segment_ids(home)
    new: list[bytes] = []
    for line in read(content_path(home, segment_id)):
        if isinstance(line, Line) and line.kind == "request":
            new.append(text_bytes(line.value()))
        elif isinstance(line, Line) and line.kind == "response":
            new.append(_said(text_bytes(line.value())))
    ideal = len(deflated(b"".join(new)))
    before = {path.suffix: path.stat().st_size for path in home.segments.iterdir()}
    ingest(home)
    with duckdb.connect(str(home.database), read_only=True) as connection:
        compress_ended(home, read_marks(connection, "segments"))
    after = {path.name.split(".")[1]: path.stat().st_size for path in home.segments.iterdir()}
    content, told = after["content"], after["facts"]
    return Section(
        f"What a session of {TURNS} turns weighs, compressed",
        f"New words are {len(b''.join(new)) / 1e6:.1f} MB, and {ideal / 1e6:.2f} MB as one zstd stream: the ideal. "
        "Ours holds every byte of the streams, and the time of each chunk in nanoseconds.",
        ("", "plain", "compressed", ""),
        (
            (
                "content",
                f"{before['.content']:,}",
                f"{content:,}",
                f"{content / ideal:.2f} x ideal",
            ),
            ("facts", f"{before['.facts']:,}", f"{told:,}", f"{told / facts:.1f} bytes a fact"),
        ),
        (
            Verdict(
                "content of 200 turns, compressed, over the ideal",
                1.2,
                content / ideal,
                "{:.2f}",
                why="Each of 60,000 deltas has its own JSON, event name and arrival time, and each answer stands there "
                "twice: as the stream that came, in pieces, and as what the next request repeats of it.",
            ),
            Verdict("a fact, compressed", 68, told / facts, "{:.1f} bytes"),
        ),
    )


def _said(stream: bytes) -> bytes:
    """Return the words of a stream, without what frames them."""
    said = []
    for line in stream.split(b"\n"):
        if line.startswith(b"data:"):
            delta = json.loads(line[5:]).get("delta", {})
            said.append(str(delta.get("text") or delta.get("partial_json") or ""))
    return "".join(said).encode()


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
