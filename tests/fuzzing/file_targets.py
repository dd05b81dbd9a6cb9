"""Targets that read files: fixtures, segments, bundles, prices, logs of Claude Code, and recordings of other tools."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from agentobs.effects.workspaces.tree_objects import tree_entries
from agentobs.errors import ForeignError
from agentobs.importers.bundle import bundle_import, container
from agentobs.importers.exchange_sessions import session_start, without_first_chunk_time
from agentobs.importers.file_formats import Format, described, foreign_content
from agentobs.importers.recordings import recording_import
from agentobs.importers.recordings.stored_exchanges import converted
from agentobs.importers.segment_builder import segment_lines
from agentobs.importers.wire_files import import_wire
from agentobs.ledger import overlay
from agentobs.ledger.price_book import PriceBook
from agentobs.ledger.rates import Context
from agentobs.recording.facts.interpreter import Interpreter
from agentobs.recording.journal import compression
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import (
    Line,
    content_path,
    facts_path,
    line_of,
    read,
    read_runs,
    segment_ids,
    tail,
)
from agentobs.recording.vault.vault import read_session
from agentobs.records.canonical_json import digest
from agentobs.records.labels import Label
from agentobs.store.backend import open_store
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.verification import verify
from exporters.bundles import pack
from replay.fixture.format import as_recording, parse
from replay.workspace.bundle_file import pack_position
from tests.fuzzing.runner import Opened
from tests.importers.recorded_agent import (
    Pair,
    cassette,
    har,
    lines,
    orca_events,
    recorded_pairs,
    rewind_trace,
)
from tests.importers.test_claude_code_bad_lines import records_of
from tests.importers.test_claude_code_requests import main_log
from tests.store.recordings import conversation, record, session_id

ROOT = Path(__file__).parents[2]
FIXTURES = ("refusal", "unattended", "retries", "agent-denied", "consent", "refreshed-credentials")
T0 = 1_790_000_000_000_000_000


@contextlib.contextmanager
def fixtures(folder: Path) -> Iterator[Opened]:
    """Fixtures; a sealed one has a correct digest."""
    paths = [ROOT / "fixtures" / "loop" / name / "recording.jsonl" for name in FIXTURES]

    def run(data: bytes) -> None:
        as_recording(parse(folder / "recording.jsonl", data))

    yield Opened([path.read_bytes() for path in paths], run, _sealed_fixture)


@contextlib.contextmanager
def recorded_files(_: Path) -> Iterator[Opened]:
    """The parts of the files of a fixture that are not read by git: the header of a bundle, and directory listings."""
    name = b"0123456789abcdef0123"
    listing = b"40000 src\0" + name + b"100644 a.py\0" + name + b"160000 vendor\0" + name
    commit = b"a" * 40
    header = b"# v2 git bundle\n-" + commit + b"\n" + commit + b" refs/trees/x\n\nPACK"

    def run(data: bytes) -> None:
        if data.startswith(b"#"):
            pack_position(io.BytesIO(data))
        else:
            list(tree_entries(data))

    yield Opened([listing, header], run)


def _sealed_fixture(data: bytes) -> bytes:
    body, _, last = data.rstrip(b"\n").rpartition(b"\n")
    body += b"\n"
    try:
        end = json.loads(last)
        return body + json.dumps({**end, "digest": digest(body)}).encode() + b"\n"
    except (ValueError, TypeError, RecursionError):
        return data


@contextlib.contextmanager
def segments(folder: Path) -> Iterator[Opened]:
    """Plain segments; the lines of a sealed one have correct checksums."""
    home, seeds = recorded(folder)
    path = facts_path(home, segment_ids(home)[0])

    def run(data: bytes) -> None:
        path.write_bytes(data)
        for each in read(path):
            if isinstance(each, Line):
                _ = each.first
        list(read_runs(path, wanted=(b"attempts", b"usage")))
        tail(path)

    yield Opened(seeds, run, sealer(zlib.crc32(path.stem.encode())))


def recorded(folder: Path) -> tuple[Home, list[bytes]]:
    """Record two sessions; return the home, and the facts and the content of the first segment."""
    home = open_home(folder / "home")
    record(home, [*conversation(1, turns=2), *conversation(2, turns=1)])
    [segment] = segment_ids(home)
    return home, [path(home, segment).read_bytes() for path in (facts_path, content_path)]


def sealer(seed: int) -> Callable[[bytes], bytes]:
    """Return a function that corrects the checksums of the lines of a segment."""

    def sealed(data: bytes) -> bytes:
        found = []
        for line in data.split(b"\n"):
            _, space, rest = line.partition(b" ")
            found.append(b"%08x %s" % (zlib.crc32(rest, seed), rest) if space else line)
        return b"\n".join(found)

    return sealed


@contextlib.contextmanager
def compressed_segments(folder: Path) -> Iterator[Opened]:
    """Compressed segments; the index of a sealed one has a correct checksum."""
    home, seeds = recorded(folder)
    path = facts_path(home, segment_ids(home)[0])
    small = compression.compressed_path(path)
    ingest(home)
    seeds = [
        small.read_bytes(),
        content_path(home, path.stem).with_name(f"{path.stem}.content.zst").read_bytes(),
    ]
    seed = zlib.crc32(path.stem.encode())

    def run(data: bytes) -> None:
        small.write_bytes(data)
        list(read(path))
        tail(path)

    def sealed(data: bytes) -> bytes:
        length = int.from_bytes(data[-16:-12], "little")
        text = data[-16 - length : -16]
        return data[:-16] + struct.pack("<II8s", len(text), zlib.crc32(text, seed), b"agentobs")

    yield Opened(seeds, run, sealed)


@contextlib.contextmanager
def segment_indexes(folder: Path) -> Iterator[Opened]:
    """The index of a compressed segment, as JSON with a correct checksum, after blocks that are intact."""
    home, _ = recorded(folder)
    path = facts_path(home, segment_ids(home)[0])
    small = compression.compressed_path(path)
    ingest(home)
    whole, seed = small.read_bytes(), zlib.crc32(path.stem.encode())
    length = int.from_bytes(whole[-16:-12], "little")
    blocks = whole[: -16 - length - 8]
    index = compression._decompressed(whole[-16 - length : -16], 2**20)[0]

    def run(data: bytes) -> None:
        text = compression.compressed(data)
        end = struct.pack("<II8s", len(text), zlib.crc32(text, seed), b"agentobs")
        small.write_bytes(blocks + struct.pack("<II", 0x184D2A5A, len(text) + 16) + text + end)
        list(read(path))
        tail(path)

    yield Opened([index], run)


@contextlib.contextmanager
def stores(folder: Path) -> Iterator[Opened]:
    """Homes with a changed segment: an ingest, a check, queries, and the content of a session."""
    home, [facts, content] = recorded(folder)
    [segment] = segment_ids(home)
    seed = zlib.crc32(segment.encode())

    def run(data: bytes) -> None:
        for each in folder.glob("home/*.duckdb*"):
            each.unlink()
        for each in home.segments.iterdir():
            each.unlink()
        is_content = b" request {" in data
        facts_path(home, segment).write_bytes(facts if is_content else data)
        content_path(home, segment).write_bytes(data if is_content else content)
        verify(home)
        ingest(home)
        with connect(home) as connection:
            for table in ("sessions", "turns", "call_costs", "spans", "tool_calls", "diagnoses"):
                connection.execute(f"SELECT * FROM {table}").fetchall()
        with contextlib.suppress(KeyError):
            read_session(home, session_id(1), [segment])

    yield Opened([facts, content], run, sealer(seed))


@contextlib.contextmanager
def bundles(folder: Path) -> Iterator[Opened]:
    """Bundles; the manifest of a sealed one has a correct digest and length."""
    home, _ = recorded(folder)
    path = folder / "x.bundle"
    seeds = []
    with open_store(home) as store:
        for with_content in (False, True):
            pack(store, [session_id(1), session_id(2)], path, with_content=with_content, force=True)
            seeds.append(path.read_bytes())
    staging = Home(folder / "staging")

    def run(data: bytes) -> None:
        path.write_bytes(data)
        staging.segments.mkdir(parents=True, exist_ok=True)
        for each in staging.segments.iterdir():
            each.unlink()
        bundle = container.open_bundle(path)
        for session in bundle.session_ids:
            bundle_import._check(bundle, session, staging)

    yield Opened(seeds, run, _sealed_bundle)


def _sealed_bundle(data: bytes) -> bytes:
    body = data[:-59]
    start = body.rfind(b'{"entries"')
    if start < 0:
        return data
    return body + b"%016x %b agentobs\n" % (
        len(body) - start,
        hashlib.blake2b(body[start:], digest_size=16).hexdigest().encode(),
    )


@contextlib.contextmanager
def bundled_lines(folder: Path) -> Iterator[Opened]:
    """The lines of a bundle: a bundle with correct digests that contains the changed facts and content."""
    home, _ = recorded(folder)
    path = folder / "x.bundle"
    with open_store(home) as store:
        pack(store, [session_id(1)], path, with_content=True)
    staging = Home(folder / "staging")
    staging.segments.mkdir(parents=True)
    bundle = container.open_bundle(path)
    bundle_import._check(bundle, session_id(1), staging)
    parts = []
    for side in (facts_path, content_path):
        found = [
            each
            for each in read(side(staging, bundle.entries[0].segment_id))
            if isinstance(each, Line)
        ]
        inner = found[1:] if found[0].kind == "segment" else found
        parts.append(
            [
                b"%s %s\n" % (each.kind.encode(), each.payload)
                for each in inner
                if each.kind != "seal"
            ]
        )
    seeds = [b"".join(parts[0]) + b"---\n" + b"".join(parts[1])]

    def run(data: bytes) -> None:
        facts, _, content = data.partition(b"---\n")
        sides = [
            [line.partition(b" ")[::2] for line in part.split(b"\n") if line]
            for part in (facts, content)
        ]
        segment = container.segment_of(
            [(kind.decode("utf-8", "replace"), payload) for kind, payload in sides[0]],
            bool(content),
        )
        with path.open("wb") as out:
            writer = container.Writer(out)
            for side, rows in zip(("facts", "content"), sides, strict=True):
                if rows or side == "facts":
                    writer.add(session_id(1), segment, side, _segment_lines(segment, rows))  # type: ignore[arg-type]
            writer.close([])
        for each in staging.segments.iterdir():
            each.unlink()
        opened = container.open_bundle(path)
        bundle_import._check(opened, session_id(1), staging)

    yield Opened(seeds, run)


def _segment_lines(segment: str, rows: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    seed = zlib.crc32(segment.encode())
    header = {"format": 1, "segment_id": segment, "opened_ns": T0}
    yield line_of(seed, 1, "segment", header)
    count = 1
    for kind, payload in rows:
        count += 1
        rest = b"%d %s %s" % (count, kind, payload)
        yield b"%08x %s\n" % (zlib.crc32(rest, seed), rest)
    yield line_of(seed, count + 1, "seal", {"lines": count})


@contextlib.contextmanager
def prices(folder: Path) -> Iterator[Opened]:
    """Price files, and the prices of a call according to them."""
    example = (
        (ROOT / "docs/prices.md").read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    )
    built_in = (ROOT / "agentobs/ledger/overlay.toml").read_bytes()
    context = Context("claude-opus-5-5", "batch", None, None)

    def run(data: bytes) -> None:
        overlay.parse(data, "prices.toml")
        book = PriceBook(data, "prices.toml")
        book.overlays()
        book.at(context, T0, 300_000)

    yield Opened([example.encode(), built_in[:2_000].rpartition(b"\n\n")[0]], run)


@contextlib.contextmanager
def claude_code(folder: Path) -> Iterator[Opened]:
    """Logs of Claude Code."""
    path = folder / "log.jsonl"

    def run(data: bytes) -> bool:
        path.write_bytes(data)
        return records_of(path) > 0

    yield Opened([lines(main_log().lines)], run)


def wire_lines(*, stream: bool = False) -> bytes:
    """Return a file of exchanges."""
    return lines(
        [
            {
                "request": {
                    "method": "POST",
                    "path": "/v1/messages",
                    "headers": pair.request_headers,
                    "body": json.loads(pair.request_body),
                },
                "response": {
                    "status": 200,
                    "headers": pair.response_headers,
                    "body_text": pair.response_body.decode(),
                },
                "source": {"recorded_at": "2026-02-04T00:00:00Z"},
            }
            for pair in recorded_pairs(stream=stream)
        ]
    )


@contextlib.contextmanager
def wire(folder: Path) -> Iterator[Opened]:
    """Files of exchanges, with the facts and the content that are derived from them."""
    from agentobs.importers import wire_files

    path, home = folder / "x.jsonl", open_home(folder / "home")

    def run(data: bytes) -> bool:
        if foreign_content(data[:65536], "wire") is not None:
            return False
        path.write_bytes(data)
        scanned = wire_files._scan(path)
        if not scanned.times:
            return False
        records = wire_files._records(path, scanned)
        list(segment_lines(home, records, without_first_chunk_time))
        return True

    yield Opened([wire_lines(), wire_lines(stream=True)], run)


@contextlib.contextmanager
def wire_imports(folder: Path) -> Iterator[Opened]:
    """The complete import of a file of exchanges, and queries of its session."""
    path = folder / "x.jsonl"

    def run(data: bytes) -> bool:
        home = open_home(folder / "home")
        path.write_bytes(data)
        report = import_wire(home, [path])
        if report.files:
            with connect(home) as connection:
                connection.execute("SELECT * FROM call_costs").fetchall()
            for each in (*home.segments.iterdir(), *folder.glob("home/*.duckdb*")):
                each.unlink()
        return bool(report.files)

    yield Opened([wire_lines(), wire_lines(stream=True)], run)


def recordings_of(kind: Format) -> Callable[[Path], contextlib.AbstractContextManager[Opened]]:
    """Return the opener of the target for a format of another tool."""

    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Opened]:
        home = open_home(folder / "home")
        (folder / "manifest.json").write_bytes(b'{"schema_version": "0.1.0"}')
        path = folder / recording_import.ENDINGS[kind][0].lstrip("*")

        def run(data: bytes) -> bool:
            path.write_bytes(data)
            try:
                content = recording_import._content(path)
            except OSError:
                return False
            if (other := foreign_content(content, kind)) is not None:
                raise other
            found = [
                each
                for each in recording_import._exchanges(content, path, kind)
                if each is not None and each.goes_to_provider
            ]
            outcomes = [converted(each, number) for number, each in enumerate(found)]
            if not outcomes:
                return False
            interpreter = Interpreter(home.key())
            interpreter.interpret(session_start("imported", "x", T0, Label(kind)))
            recording_import._times(found, kind, path)
            for each in outcomes:
                interpreter.interpret(each.exchange)
            return True

        yield Opened(_recordings(kind), run)

    return opened


def _recordings(kind: Format) -> list[bytes]:
    found = []
    for stream in (False, True):
        pairs: list[Pair] = recorded_pairs(stream=stream)
        match kind:
            case "vcr":
                found += [yaml.dump(cassette(pairs)).encode(), json.dumps(cassette(pairs)).encode()]
            case "har":
                found.append(json.dumps(har(pairs)).encode())
            case "agent-rewind":
                found.append(lines(rewind_trace(pairs)))
            case _:
                found.append(lines(orca_events(pairs)))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write(found[0])
    return [*found, packed.getvalue()]


@contextlib.contextmanager
def unknown_files(folder: Path) -> Iterator[Opened]:
    """Descriptions of files whose format is not known in advance."""
    seeds = [each for kind in ("vcr", "har", "agent-rewind", "orca") for each in _recordings(kind)]

    def run(data: bytes) -> None:
        described(data)
        with contextlib.suppress(ForeignError):
            if (error := foreign_content(data, "bundle")) is not None:
                raise error

    yield Opened([*seeds, wire_lines(), lines(main_log().lines)], run)
