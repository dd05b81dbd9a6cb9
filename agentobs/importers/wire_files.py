"""Wire files: recorded HTTP exchanges of other tools become sessions that have costs and can be frozen.

A file (format: `agentobs/recording/wire/exchange_file.py`) is one session, whose ID is a digest of its bytes: it is
imported once, wherever it is, and a changed file is another recording. The time of an exchange is its
`source.recorded_at` if it exists, otherwise it is derived from its neighbors, otherwise from the file's modification
time, because costs depend on the day. Such files contain no durations, so each counts as zero, and the time to the
first chunk is unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from agentobs.errors import ForeignError
from agentobs.importers.line_files import (
    LINE_BYTES_MAX,
    BadLine,
    Unreadable,
    files_under,
    instant_ns,
    lines_in,
    reason,
)
from agentobs.importers.segment_builder import retold
from agentobs.provider.registry import ANTHROPIC
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segment_import import clear_staging, land
from agentobs.recording.journal.segments import facts_path, is_there
from agentobs.recording.wire.exchange_file import exchange_of
from agentobs.records.exchanges import ModelExchange, Place, SessionCall
from agentobs.records.facts import Attempt, Fact, SessionEnd, SessionStart
from agentobs.records.labels import Label, unchecked
from agentobs.sink import Record
from agentobs.store.backend import open_store

_STEP_NS = 1_000_000
"""The offset from the exchange before it if nothing else is known. Our choice: a millisecond."""


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """The outcome for one file."""

    path: Path
    session_id: str
    is_new: bool
    """Whether it was written: False if it was imported before."""
    exchanges: int
    bad: int
    """Lines that were skipped: the session is then incomplete, and cannot be replayed."""
    bare: int
    """Requests without `anthropic-version`, which every client sends: the recording tool kept no headers, and a
    replay will report an added header.
    """


@dataclass(slots=True)
class WireReport:
    """What an import did."""

    files: list[ImportedFile] = field(default_factory=list)
    bad_lines: list[BadLine] = field(default_factory=list)
    without_exchanges: list[Path] = field(default_factory=list)
    """Files without exchanges; nothing of them is written."""
    unreadable: list[Unreadable] = field(default_factory=list)
    """Files that could not be read."""


@dataclass(slots=True)
class _Scanned:
    """The description of a file, before any of it is stored."""

    session_id: str
    times: list[int] = field(default_factory=list)
    """The time of each exchange, nanoseconds since 1970; each later than the one before."""
    bad: list[BadLine] = field(default_factory=list)
    bare: int = 0
    """Requests without a header that names the version."""


class _Changed(Exception):
    """A file has changed since it was described."""


def files_in(paths: Iterable[Path]) -> list[Path]:
    """Return the wire files among files and directories; in directories, all `.jsonl` files.

    Raises:
        UsageError: a path does not exist.
    """
    todo = "Pass a file of recorded exchanges (*.jsonl), or a directory of them"
    return sorted(files_under(paths, todo))


def import_wire(
    home: Home,
    paths: Sequence[Path],
    *,
    told: Callable[[ImportedFile], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> WireReport:
    """Import files of exchanges, each as a session; files that were imported before change nothing.

    Lines that are not exchanges and files that cannot be read are reported and skipped. Each session is written
    completely or not at all.

    Args:
        home: the home that receives them.
        paths: the files, see `files_in`.
        told: is called with each file when it is done.
        progress: is called with the number of finished files and the total.

    Raises:
        OSError: the home cannot be written; finished sessions are kept.
    """
    report = WireReport()
    clear_staging(home)
    with open_store(home, ingest=False) as store:
        # What was deleted stays deleted.
        gone = {row[0] for row in store.rows("internal/deleted_sessions").rows}
    for number, path in enumerate(paths, 1):
        done = _import(home, path, report, gone)
        progress(number, len(paths))
        if done is not None:
            report.files.append(done)
            told(done)
    return report


def _import(
    home: Home, path: Path, report: WireReport, gone: Container[str]
) -> ImportedFile | None:
    try:
        scanned = _scan(path)
    except OSError as error:
        report.unreadable.append(Unreadable(path, reason(error)))
        return None
    report.bad_lines += scanned.bad
    if not scanned.times:
        report.without_exchanges.append(path)
        return None
    session_id, lost = scanned.session_id, len(scanned.bad)
    is_new = session_id not in gone and not is_there(facts_path(home, session_id))
    if is_new:
        records = _records(path, scanned)
        lines = retold(home, records, _as_told, session_id=session_id, lost=lost)
        try:
            land(home, session_id, lines)
        except _Changed:
            report.unreadable.append(Unreadable(path, "it changed while it was read"))
            return None
    return ImportedFile(path, session_id, is_new, len(scanned.times), lost, scanned.bare)


def _scan(path: Path) -> _Scanned:
    """Read a file once: which of its lines are exchanges, and their times."""
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
    return _Scanned(hashed.hexdigest(), _in_order(times, changed_ns), bad, bare)


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(b"wire file", digest_size=16)


def _in_order(times: Sequence[int | None], otherwise_ns: int) -> list[int]:
    """Return increasing times; unknown ones follow their predecessors."""
    known = next((at for at in times if at is not None), otherwise_ns)
    found: list[int] = []
    for at in times:
        least = found[-1] + _STEP_NS if found else known
        found.append(max(at if at is not None else least, least))
    return found


def _recorded_ns(line: bytes) -> int | None:
    """Return the recording time of an exchange from its file: ISO 8601 or an HTTP date."""
    source = json.loads(line.decode("utf-8")).get("source")
    told = source.get("recorded_at") if isinstance(source, dict) else None
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = parse(str(told))
        except (ValueError, TypeError):
            continue
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return instant_ns(at)
    return None


def _records(path: Path, scanned: _Scanned) -> Iterator[Record]:
    """Yield the records that a recorder would have received.

    Raises:
        _Changed: the file has changed; nothing of it may be stored.
    """
    session_id, times = scanned.session_id, scanned.times
    bad = {each.line for each in scanned.bad}
    yield SessionCall(_start(session_id, path.stem, times[0]), None)
    hashed, at = _hash(), iter(times)
    try:
        for number, line, _ in lines_in(path, LINE_BYTES_MAX, hashed.update):
            if line.strip() and number not in bad:
                yield _placed(exchange_of(line, number), session_id, next(at))
    except (StopIteration, ForeignError, OSError) as error:
        raise _Changed from error
    if hashed.hexdigest() != session_id:
        raise _Changed
    yield SessionEnd(session_id, times[-1], "completed", None, None, 0)


def _placed(exchange: ModelExchange, session_id: str, at_ns: int) -> ModelExchange:
    number = f"{session_id} {exchange.attempt_id}".encode()
    attempt_id = hashlib.blake2b(number, digest_size=16).hexdigest()
    return replace(exchange, place=Place(session_id), attempt_id=attempt_id, started_ns=at_ns)


def _start(session_id: str, name: str, at_ns: int) -> SessionStart:
    unknown = Label("unknown")
    tags: dict[str, Any] = {"imported": "wire"}
    return SessionStart(
        session_id=session_id,
        name=unchecked(name),
        started_ns=at_ns,
        entry=None,
        agentobs_version=unknown,
        sdk_version=None,
        python_version=unknown,
        platform=unknown,
        tags=tags,
        arguments_content=None,
    )


def _as_told(fact: Fact) -> Fact:
    """Remove the time of the first chunk, which such a file does not contain."""
    return replace(fact, first_chunk_ns=None) if isinstance(fact, Attempt) else fact
