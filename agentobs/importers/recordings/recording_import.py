"""Recording import: each file of another tool becomes a session, which is written completely or not at all.

The session ID is a digest of the file's bytes, so a file is imported only once, independent of its path and its
compression, and a changed file becomes another session. A damaged file is reported, and nothing of it is imported.
Requests to other hosts are counted and skipped. If the file lacks bodies, the session is imported, is marked as
incomplete, and its tags list the missing parts.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentobs.errors import ForeignError, UsageError
from agentobs.importers.exchange_sessions import (
    in_order,
    placed,
    session_end,
    session_start,
    without_first_chunk_time,
)
from agentobs.importers.file_formats import Format, foreign_content, format_of
from agentobs.importers.line_files import Unreadable, file_bytes, reason
from agentobs.importers.recordings.agent_rewind import rewind_exchanges
from agentobs.importers.recordings.cassettes import cassette_exchanges
from agentobs.importers.recordings.har import har_exchanges
from agentobs.importers.recordings.orca_traces import EVENTS, orca_exchanges
from agentobs.importers.recordings.stored_exchanges import StoredExchange, converted
from agentobs.importers.segment_builder import segment_lines
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segment_import import clear_staging, import_segment
from agentobs.recording.journal.segments import facts_path, file_exists
from agentobs.records.exchanges import ModelExchange
from agentobs.records.labels import Label
from agentobs.sink import Record
from agentobs.store.backend import open_store

FILE_BYTES_MAX = 512 * 1024 * 1024
"""The maximum size of a file, before and after decompression. Our choice: HAR files of a long day have 300 MB."""

ENDINGS: Mapping[Format, tuple[str, ...]] = {
    "vcr": (".yaml", ".yml", ".json", ".yaml.gz", ".yml.gz", ".json.gz"),
    "har": (".har", ".har.gz"),
    "agent-rewind": (".rewind", ".rewind.gz"),
    "orca": (EVENTS,),
}
"""The suffixes of the file names of each format. Folders are searched for them."""


_DAMAGED = "Nothing of it was imported. Record or export it again, or pass another file"


@dataclass(frozen=True, slots=True)
class ImportedRecording:
    """The outcome for one file."""

    path: Path
    session_id: str
    is_new: bool
    """Whether a session was written; False if the file was imported before."""
    exchanges: int
    others: int
    """Number of requests to other hosts, which were skipped."""
    without_request: int
    """Number of exchanges whose request body the file does not contain."""
    without_response: int
    """Number of exchanges whose response body the file does not contain."""
    without_headers: int
    """Number of requests whose headers that affect the response the file does not contain. A replay does not compare
    them.
    """

    @property
    def is_complete(self) -> bool:
        """Whether the session can be replayed."""
        return not (self.without_request or self.without_response)


@dataclass(slots=True)
class RecordingReport:
    """The result of an import."""

    files: list[ImportedRecording] = field(default_factory=list)
    others: dict[Path, int] = field(default_factory=dict)
    """The files that contain only requests to other hosts, with their number; such files are not imported."""
    unrelated: list[Path] = field(default_factory=list)
    """Files in folders that have another format."""
    unreadable: list[Unreadable] = field(default_factory=list)
    """Files that could not be read, or that are damaged."""


def recordings_in(paths: Iterable[Path], kind: Format) -> list[Path]:
    """Return the given files, and the files in the given folders whose names fit the format.

    Raises:
        UsageError: a path does not exist.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            todo = f"Pass a file ({', '.join(f'*{each}' for each in ENDINGS[kind])}), or a folder of them"
            raise UsageError("no such file or directory", where=str(path), todo=todo)
        if path.is_dir():
            files = (each for each in path.rglob("*") if not each.is_dir())
            found |= dict.fromkeys(
                sorted(each for each in files if each.name.endswith(ENDINGS[kind]))
            )
        else:
            found[path] = None
    return list(found)


def import_recordings(
    home: Home,
    paths: Sequence[Path],
    kind: Format,
    *,
    named: Container[Path] = (),
    on_imported: Callable[[ImportedRecording], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> RecordingReport:
    """Import files of other tools, each as a session; files that were imported before are not imported again.

    Args:
        home: the home into which they are imported.
        paths: the files, from `recordings_in`.
        kind: their format.
        named: the files that the user named, which must have this format; other files are skipped if they have not.
        on_imported: a function that is called with the outcome of each file when the file is finished.
        progress: a function that is called with the number of finished files and the total.

    Raises:
        OSError: the home cannot be written; finished sessions are kept.
        UsageError: a library that is needed for the format is not installed.
    """
    report = RecordingReport()
    clear_staging(home)
    with open_store(home, ingest=False) as store:
        # Do not import deleted sessions again.
        deleted = {row[0] for row in store.rows("internal/deleted_sessions").rows}
    for number, path in enumerate(paths, 1):
        try:
            outcome = _import(home, path, kind, path in named, report, deleted)
        except ForeignError as error:
            report.unreadable.append(Unreadable(path, error.found, error.todo or _DAMAGED))
            outcome = None
        progress(number, len(paths))
        if outcome is not None:
            report.files.append(outcome)
            on_imported(outcome)
    return report


def _import(
    home: Home,
    path: Path,
    kind: Format,
    is_named: bool,
    report: RecordingReport,
    deleted: Container[str],
) -> ImportedRecording | None:
    try:
        data = _content(path)
    except OSError as error:
        report.unreadable.append(Unreadable(path, reason(error)))
        return None
    found = format_of(data)
    if found != kind and not is_named and (found is not None or kind == "vcr"):
        report.unrelated.append(path)
        return None
    if (other := foreign_content(data, kind)) is not None:
        raise other
    session_id = hashlib.blake2b(kind.encode() + b"\0" + data, digest_size=16).hexdigest()
    exchanges: list[StoredExchange] = []
    others = 0
    for exchange in _exchanges(data, path, kind):
        if exchange is not None and exchange.goes_to_provider:
            exchanges.append(exchange)
        else:
            others += 1
    if not exchanges:
        report.others[path] = others
        return None
    del data
    outcomes = [converted(each, number) for number, each in enumerate(exchanges)]
    done = ImportedRecording(
        path,
        session_id,
        session_id not in deleted and not file_exists(facts_path(home, session_id)),
        len(exchanges),
        others,
        sum(each.lacks_request for each in outcomes),
        sum(each.lacks_response for each in outcomes),
        sum(each.lacks_headers for each in outcomes),
    )
    if done.is_new:
        times = _times(exchanges, kind, path)
        lines = segment_lines(
            home,
            _records(done, kind, [each.exchange for each in outcomes], times),
            without_first_chunk_time,
            session_id=session_id,
            lost=sum(not each.is_complete for each in outcomes),
        )
        import_segment(home, session_id, lines)
    return done


def _content(path: Path) -> bytes:
    """Return the content of a file without its compression.

    Raises:
        OSError: the file cannot be read, or is too large.
        ForeignError: its compression is damaged.
    """
    data = file_bytes(path, FILE_BYTES_MAX)
    if data.startswith(b"\x1f\x8b"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ForeignError("a gzip file that is truncated or damaged") from error
        if len(data) > FILE_BYTES_MAX:
            raise OSError(0, f"larger than {FILE_BYTES_MAX // 1024**2} MiB when decompressed")
    return data.removeprefix(b"\xef\xbb\xbf")


def _exchanges(data: bytes, path: Path, kind: Format) -> Iterator[StoredExchange | None]:
    match kind:
        case "vcr":
            yield from cassette_exchanges(data)
        case "har":
            yield from har_exchanges(data, path.parent)
        case "agent-rewind":
            yield from rewind_exchanges(data, path)
        case "orca":
            yield from orca_exchanges(data, path.parent)
        case _:
            raise ValueError(kind)


def _times(exchanges: Sequence[StoredExchange], kind: Format, path: Path) -> list[int]:
    """Return the start of each exchange. Only cassettes lack start times: they contain the second of the response."""
    times = [each.started_ns for each in exchanges]
    known = [at for at in times if at is not None]
    if kind != "vcr" and len(known) == len(times):
        return known
    return in_order(times, path.stat().st_mtime_ns)


def _records(
    done: ImportedRecording, kind: Format, exchanges: Sequence[ModelExchange], times: Sequence[int]
) -> Iterator[Record]:
    """Yield the records that a recorder would have received: the exchanges in the order of their ends."""
    tags = {
        name: Label(str(count))
        for name, count in (
            ("missing_request_bodies", done.without_request),
            ("missing_response_bodies", done.without_response),
            ("missing_headers", done.without_headers),
        )
        if count
    }
    path = done.path
    name = path.parent.name if kind == "orca" else path.name.partition(".")[0]
    yield session_start(done.session_id, name or Label(kind), min(times), Label(kind), tags)
    placed_exchanges = [
        placed(exchange, done.session_id, at) for exchange, at in zip(exchanges, times, strict=True)
    ]
    # The sort is stable: cassettes, whose exchanges have no durations, keep the order of the file.
    placed_exchanges.sort(key=lambda each: each.started_ns + each.ended_ns)
    yield from placed_exchanges
    last = placed_exchanges[-1]
    yield session_end(done.session_id, last.started_ns + last.ended_ns)
