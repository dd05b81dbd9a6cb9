"""Wire files: import HTTP exchanges that other tools recorded, as sessions that have costs and can be frozen.

Each file (format: `agentobs/recording/wire/exchange_file.py`) becomes one session. The session ID is a digest of the
file's bytes, so a file is imported only once, independent of its path, and a changed file becomes another session.
Costs depend on the day, so each exchange needs a time: its `source.recorded_at`, else a time derived from the
neighboring exchanges, else the file's modification time. Such files contain no durations, so all durations are 0, and
the time to the first chunk is unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentobs.errors import ForeignError
from agentobs.importers.exchange_sessions import (
    in_order,
    placed,
    recorded_time,
    session_end,
    session_start,
    without_first_chunk_time,
)
from agentobs.importers.file_formats import foreign_content
from agentobs.importers.line_files import (
    LINE_BYTES_MAX,
    BadLine,
    Unreadable,
    file_start,
    files_under,
    lines_in,
    reason,
)
from agentobs.importers.segment_builder import segment_lines
from agentobs.provider.registry import ANTHROPIC
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segment_import import clear_staging, import_segment
from agentobs.recording.journal.segments import facts_path, file_exists
from agentobs.recording.wire.exchange_file import exchange_of
from agentobs.records.labels import Label
from agentobs.sink import Record
from agentobs.store.backend import open_store

KIND = Label("wire")
"""The value of the tag `imported`."""
_HEAD_BYTES = 64 * 1024
"""How much of a file is read to recognize other formats."""


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """The outcome for one file."""

    path: Path
    session_id: str
    is_new: bool
    """Whether a session was written; False if the file was imported before."""
    exchanges: int
    bad: int
    """Number of skipped lines. If there are any, the session is incomplete and cannot be replayed."""
    bare: int
    """Number of requests without the header `anthropic-version`, which every client sends. The recording tool did not
    store these headers, so a replay will report an added header.
    """


@dataclass(slots=True)
class WireReport:
    """The result of an import."""

    files: list[ImportedFile] = field(default_factory=list)
    bad_lines: list[BadLine] = field(default_factory=list)
    without_exchanges: list[Path] = field(default_factory=list)
    """Files without exchanges, which were skipped."""
    unreadable: list[Unreadable] = field(default_factory=list)
    """Files that could not be read."""


@dataclass(slots=True)
class _Scanned:
    """The results of a first pass over a file, before any of it is stored."""

    session_id: str
    times: list[int] = field(default_factory=list)
    """The time of each exchange in nanoseconds since 1970, strictly increasing."""
    bad: list[BadLine] = field(default_factory=list)
    bare: int = 0
    """Number of requests without the header `anthropic-version`."""


class _Changed(Exception):
    """A file has changed since the first pass."""


def files_in(paths: Iterable[Path]) -> list[Path]:
    """Return the given files, and all `.jsonl` files in the given directories.

    Raises:
        UsageError: a path does not exist.
    """
    todo = "Pass a file of recorded exchanges (*.jsonl), or a directory of them"
    return sorted(files_under(paths, todo))


def import_wire(
    home: Home,
    paths: Sequence[Path],
    *,
    on_imported: Callable[[ImportedFile], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> WireReport:
    """Import files of exchanges, each as a session; files that were imported before are not imported again.

    Lines that are not exchanges and files that cannot be read are reported and skipped. Each session is written
    completely or not at all.

    Args:
        home: the home into which they are imported.
        paths: the files, from `files_in`.
        on_imported: a function that is called with the outcome of each file when the file is finished.
        progress: a function that is called with the number of finished files and the total.

    Raises:
        OSError: the home cannot be written; finished sessions are kept.
    """
    report = WireReport()
    clear_staging(home)
    with open_store(home, ingest=False) as store:
        # Do not import deleted sessions again.
        deleted = {row[0] for row in store.rows("internal/deleted_sessions").rows}
    for number, path in enumerate(paths, 1):
        outcome = _import(home, path, report, deleted)
        progress(number, len(paths))
        if outcome is not None:
            report.files.append(outcome)
            on_imported(outcome)
    return report


def _import(
    home: Home, path: Path, report: WireReport, deleted: Container[str]
) -> ImportedFile | None:
    try:
        if (other := foreign_content(file_start(path, _HEAD_BYTES), "wire")) is not None:
            report.unreadable.append(Unreadable(path, other.found, other.todo))
            return None
        scanned = _scan(path)
    except OSError as error:
        report.unreadable.append(Unreadable(path, reason(error)))
        return None
    report.bad_lines += scanned.bad
    if not scanned.times:
        report.without_exchanges.append(path)
        return None
    session_id, lost = scanned.session_id, len(scanned.bad)
    is_new = session_id not in deleted and not file_exists(facts_path(home, session_id))
    if is_new:
        records = _records(path, scanned)
        lines = segment_lines(
            home, records, without_first_chunk_time, session_id=session_id, lost=lost
        )
        try:
            import_segment(home, session_id, lines)
        except _Changed:
            report.unreadable.append(Unreadable(path, "it changed while it was read"))
            return None
    return ImportedFile(path, session_id, is_new, len(scanned.times), lost, scanned.bare)


def _scan(path: Path) -> _Scanned:
    """Read a file once, to find out which of its lines are exchanges, and their times."""
    hashed = _hash()
    times: list[int | None] = []
    bad: list[BadLine] = []
    bare = 0
    for number, line, size in lines_in(path, LINE_BYTES_MAX, hashed.update):
        if size <= LINE_BYTES_MAX and not line.strip():
            continue
        try:
            if size > LINE_BYTES_MAX:
                raise ForeignError(f"a line of {size:,} bytes")
            question = exchange_of(line, number).question
            bare += not ANTHROPIC.is_model_call("", question.headers)
            times.append(_recorded_ns(line))
        except ForeignError as error:
            bad.append(BadLine(path, number, error.found))
    changed_ns = path.stat().st_mtime_ns
    return _Scanned(hashed.hexdigest(), in_order(times, changed_ns), bad, bare)


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(b"wire file", digest_size=16)


def _recorded_ns(line: bytes) -> int | None:
    """Return the recording time in a line; None if it is missing or invalid."""
    source = json.loads(line.decode("utf-8")).get("source")
    return recorded_time(source.get("recorded_at") if isinstance(source, dict) else None)


def _records(path: Path, scanned: _Scanned) -> Iterator[Record]:
    """Yield the records that a recorder would have received.

    Raises:
        _Changed: the file has changed; discard all of its records.
    """
    session_id, times = scanned.session_id, scanned.times
    bad = {each.line for each in scanned.bad}
    yield session_start(session_id, path.stem, times[0], KIND)
    hashed, at = _hash(), iter(times)
    try:
        for number, line, _ in lines_in(path, LINE_BYTES_MAX, hashed.update):
            if line.strip() and number not in bad:
                yield placed(exchange_of(line, number), session_id, next(at))
    except (StopIteration, ForeignError, OSError) as error:
        raise _Changed from error
    if hashed.hexdigest() != session_id:
        raise _Changed
    yield session_end(session_id, times[-1])
