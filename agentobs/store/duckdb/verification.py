"""Verification: read all files back, and report each damage, its location and the data that is lost.

Every line of every segment is checked, every content ID in a fact is looked up, and the published file is compared with
its manifest and with the segments from which it was built.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from agentobs.errors import DamagedError, ForeignError
from agentobs.recording.journal.compression import compressed_path, segment_of
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import (
    REPLACED_KINDS,
    Damage,
    Line,
    content_path,
    facts_path,
    file_exists,
    file_size,
    is_alive,
    read,
    segment_ids,
    tail,
)
from agentobs.recording.journal.unfinished_attempts import ATTEMPT_KINDS, crashed_attempts
from agentobs.records.facts import TABLES, Pruning
from agentobs.store.duckdb import generations
from agentobs.store.duckdb.archives import united
from agentobs.store.duckdb.journal_tail import Mark
from agentobs.store.duckdb.loader import read_marks
from agentobs.store.duckdb.schema import SETTINGS
from agentobs.store.duckdb.segment_rewrite import FRAME, session_of
from agentobs.store.text_index import NAME as TEXTS
from agentobs.store.text_index import index_damage

_TABLES = frozenset(TABLES.values())
_CONTENT_FIELDS = {
    "session_starts": ("arguments_content",),
    "session_ends": ("end_content",),
    "attempts": ("request_content", "response_content"),
    "tool_results": ("content",),
    "world_answers": ("content",),
}
"""The fields of facts that contain content IDs."""
_NOTHING = "nothing. Delete the file; the next ingest rebuilds it from the segments"
_ONLY_IN_STORE = (
    "nothing, as long as the store file exists. agentobs repair restores the records from it"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a file."""

    path: Path
    offset: int | None
    """The position in the file, in bytes; None if the problem affects the entire file."""
    found: str
    """A description of the problem."""
    lost: str
    """A description of the lost data."""
    sessions: tuple[str, ...] = ()
    """The sessions that are or may be affected; empty if unknown."""
    records: int = 0
    """The number of lost records according to the sequence numbers; 0 if unknown."""

    def __str__(self) -> str:
        place = f"{self.path}" if self.offset is None else f"{self.path} at byte {self.offset}"
        return f"{place}: {self.found}; lost: {self.lost}"


@dataclass(slots=True)
class VerifyReport:
    """The result of a verification."""

    segments: int = 0
    """Number of segments that were read."""
    records: int = 0
    """Number of readable lines of facts."""
    contents: int = 0
    """Number of readable lines of content."""
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Descriptions of work in progress, which is not damage and requires no action."""

    @property
    def ok(self) -> bool:
        """Whether no damage was found."""
        return not self.findings

    def lines(self) -> list[str]:
        """Return the report as lines: a summary, then the findings and the notes."""
        read_back = f"{self.segments} segments, {self.records} records, {self.contents} contents"
        if self.ok:
            return [f"{read_back}: all intact", *self.notes]
        found = f"{read_back}: {len(self.findings)} findings"
        return [found, *map(str, self.findings), *self.notes]


@dataclass(slots=True)
class _Facts:
    """The facts of one segment."""

    size: int = 0
    """Size of the uncompressed file in bytes."""
    is_original: bool = True
    """Whether the file was not rewritten: nothing was pruned, and no repair left a gap."""
    named: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    """Its content IDs, each with the offset, kind and session of the first record that contains it."""
    sessions: set[str] = field(default_factory=set)
    """The sessions of its records."""
    opened_ns: int = 0
    """When the segment was started, nanoseconds since 1970."""
    pruned: set[_Pruned] = field(default_factory=set)
    """The prunings recorded in the segment."""
    ingested: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    """The number of ingested records (up to the watermark), by table and session."""


_Pruned = tuple[str, str, int]
"""A pruning: the session ID, the scope (`all` or `content`), and the time in nanoseconds since 1970."""


def verify(
    home: Home, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> VerifyReport:
    """Read all files of a home and check them; nothing is changed.

    Args:
        home: the home.
        progress: is called with the number of segments whose facts or content were read, and twice their number.
    """
    report = VerifyReport()
    counted: dict[str, _Facts] = {}
    missing: list[Finding] = []
    if damage := index_damage(home):
        lost = "nothing. Delete the file; the next search creates it again"
        report.findings.append(Finding(home.path / TEXTS, None, damage, lost))
    # List the content files before the segments: a writer creates the facts file first, so the segment of each of these
    # files is in the later list, even if an agent starts in the meantime.
    contents = sorted(home.segments.glob("*.content*"))
    # Read the watermarks first, so that the segments that are read below contain all records up to them.
    with _published(home, report) as (connection, archived, marks):
        ids = segment_ids(home)
        for segment_id in ids:
            progress(report.segments, 2 * len(ids))
            report.segments += 1
            mark = marks.get(segment_id) or Mark(segment_id)
            counted[segment_id] = _read_facts(facts_path(home, segment_id), mark, report)
        for number, (segment_id, facts) in enumerate(counted.items()):
            progress(len(ids) + number, 2 * len(ids))
            missing += _check_content(home, segment_id, facts, report)
        # Read the prunings after the records, because a pruning is recorded before its first record is removed.
        pruned = _prunings(home, counted)
        pending = pruned - _applied(connection)
        report.notes += [_pending_note(each) for each in sorted(pending)]
        report.findings += [each for each in missing if not _is_pruned(each, counted, pruned)]
        for segment_id, facts in counted.items():
            is_ended = segment_id in marks and marks[segment_id].state != "open"
            unpruned = list(_not_pruned(home, segment_id, facts, pruned, pending))
            if is_ended:
                report.findings += unpruned
            else:
                report.notes += [
                    f"{each.path}: {each.found}; it is still open" for each in unpruned
                ]
        for path in contents:
            # A segment may have been pruned in the meantime.
            if segment_of(path) not in counted and path.exists():
                lost = "no record references its content"
                report.findings.append(Finding(path, None, "its facts are missing", lost))
        if connection is not None:
            places = {"published": home.database, **archived}
            report.findings += [
                Finding(place, None, text, _NOTHING)
                for name, place in places.items()
                for text in _unreadable(connection, name)
            ]
            in_progress = {session_id for session_id, scope, _ in pending if scope == "all"}
            wrong = _miscounted(home, connection, archived, marks, counted, in_progress)
            report.findings += [Finding(home.database, None, *each) for each in wrong]
    return report


def is_store_readable(home: Home) -> bool:
    """Return whether there is a published file that can be read completely, with all its archives."""
    report = VerifyReport()
    with _published(home, report) as (connection, archived, _):
        if report.findings or not home.database.exists():
            return False
        names = ("published", *archived)
        return connection is None or not any(  # a store without rows has no connection
            text for name in names for text in _unreadable(connection, name)
        )


def is_store_intact(home: Home) -> bool:
    """Return whether the published file and its archives are undamaged, readable, and consistent with the segments."""
    findings = verify(home).findings
    return not any(
        home.database == each.path or home.archive in each.path.parents for each in findings
    )


def _lines(path: Path, report: VerifyReport) -> Iterator[Line]:
    """Yield the readable lines of a file, and report everything else."""
    # An empty file is not locked yet; checking whether its process is alive could prevent the process from locking it.
    alive = file_size(path) == 0 or is_alive(path)
    last = None
    try:
        for item in read(path):
            if isinstance(item, Line):
                last = item
                yield item
            else:
                report.findings.append(_finding(path, item))
    except FileNotFoundError:
        return
    except ForeignError as error:
        lost = "nothing, but this version cannot read the file; install a newer version"
        report.findings.append(Finding(_place(path), None, error.found, lost))
        return
    if not alive and (torn := tail(path)):
        found = f"its last {torn} bytes are not a complete record"
        lost = "one record, which was being written when the process ended or the power failed"
        report.findings.append(Finding(_place(path), file_size(path) - torn, found, lost))
    is_counted = last and last.kind == "seal"
    if last and is_counted and _value(last).get("lines") != last.sequence - 1:
        report.findings.append(
            Finding(
                _place(path),
                last.start,
                "the line count in its last line does not match the file",
                "unknown",
            )
        )


def _finding(path: Path, damage: Damage) -> Finding:
    """Describe the damage and, if known, the loss."""
    place = _place(path)
    summary = damage.summary
    if summary is None:
        lost = "one record or a part of one" if damage.end > damage.start else "see above"
        return Finding(place, damage.start, damage.reason, lost, records=damage.missing)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.kinds.items()))
    lost = (
        "see above"
        if damage.missing
        else f"the unreadable records between {summary.first} and {summary.last}; this block contained {kinds}"
    )
    return Finding(place, damage.start, damage.reason, lost, summary.sessions, damage.missing)


def _place(path: Path) -> Path:
    """Return the existing file: the compressed one, or the plain one."""
    packed = compressed_path(path)
    return packed if packed.exists() else path


def _read_facts(path: Path, mark: Mark, report: VerifyReport) -> _Facts:
    facts = _Facts(size=file_size(path))
    attempts: list[Line] = []
    for line in _lines(path, report):
        report.records += 1
        facts.is_original = facts.is_original and line.kind not in REPLACED_KINDS
        session = None if line.kind in FRAME else session_of(line)
        if line.sequence <= mark.sequence:
            facts.ingested[line.kind, session] += 1
        if line.kind in ATTEMPT_KINDS:
            attempts.append(line)
        if line.kind == "segment":
            facts.opened_ns = _number(line, "opened_ns")
        if line.kind == TABLES[Pruning]:
            facts.pruned.add(_pruned(line))
        elif session:
            facts.sessions.add(session)
        if line.kind in _CONTENT_FIELDS:
            value = _value(line)
            for name in _CONTENT_FIELDS[line.kind]:
                if content_id := value.get(name):
                    session_id = str(value.get("session_id"))
                    facts.named.setdefault(str(content_id), (line.start, line.kind, session_id))
    if mark.state != "open":
        facts.ingested.update((each.kind, session_of(each)) for each in crashed_attempts(attempts))
    return facts


def _prunings(home: Home, counted: Mapping[str, _Facts]) -> set[_Pruned]:
    """Return the prunings in all segments, including segments that were created since the others were read."""
    found = {each for facts in counted.values() for each in facts.pruned}
    for segment_id in segment_ids(home):
        if segment_id not in counted:
            with contextlib.suppress(FileNotFoundError, ForeignError):
                items = read(facts_path(home, segment_id))
                lines = (each for each in items if isinstance(each, Line))
                found |= {_pruned(each) for each in lines if each.kind == TABLES[Pruning]}
    return found


def _applied(connection: duckdb.DuckDBPyConnection | None) -> set[_Pruned]:
    """Return the prunings that the published file contains."""
    if connection is None:
        return set()
    try:
        sql = "SELECT session_id, scope, pruned_ns FROM published.main.prunings"
        return {
            (str(each), str(scope), at_ns)
            for each, scope, at_ns in connection.execute(sql).fetchall()
        }
    except duckdb.Error:
        return set()  # `_unreadable` reports this


def _pending_note(pruned: _Pruned) -> str:
    session_id, scope, _ = pruned
    target = f"session {session_id}" if scope == "all" else f"the content of session {session_id}"
    return f"{target} is being pruned, or the prune was killed; the next ingest completes it"


def _not_pruned(
    home: Home, segment_id: str, facts: _Facts, pruned: set[_Pruned], pending: set[_Pruned]
) -> Iterator[Finding]:
    """Find pruned sessions that a segment still contains. A segment that started after the pruning may contain them."""
    done = [each for each in pruned if each[1] == "all" and each[2] >= facts.opened_ns]
    in_progress = {session_id for session_id, _, _ in pending}
    for session_id in sorted(facts.sessions & {each[0] for each in done} - in_progress):
        found = f"contains records of session {session_id}, which was pruned"
        lost = "nothing. agentobs prune removes these records"
        yield Finding(_place(facts_path(home, segment_id)), None, found, lost, (session_id,))


def _is_pruned(finding: Finding, counted: Mapping[str, _Facts], pruned: set[_Pruned]) -> bool:
    """Return whether content is missing because it was pruned."""
    opened_ns = counted[segment_of(finding.path)].opened_ns
    return any(each[0] in finding.sessions and each[2] >= opened_ns for each in pruned)


def _check_content(
    home: Home, segment_id: str, facts: _Facts, report: VerifyReport
) -> Iterator[Finding]:
    """Find missing content that facts reference, and missing request bodies on which other bodies are based."""
    path = content_path(home, segment_id)
    known: set[str] = set()
    bases: dict[str, int] = {}
    if file_exists(path):
        for line in _lines(path, report):
            report.contents += 1
            value = _value(line)
            known.add(str(value.get("content_id")))
            if base := value.get("base"):
                bases.setdefault(str(base), line.start)
    for content_id, (offset, kind, session_id) in facts.named.items():
        if content_id not in known:
            found = f"references content {content_id}, which is missing"
            lost = f"the text of this record ({kind} of session {session_id})"
            place = _place(facts_path(home, segment_id))
            yield Finding(place, offset, found, lost, (session_id,))
    for base, offset in bases.items():
        if base not in known:
            found = f"is based on content {base}, which is missing"
            lost = "the text of this request and of all requests based on it"
            yield Finding(_place(path), offset, found, lost)


@contextlib.contextmanager
def _published(
    home: Home, report: VerifyReport
) -> Iterator[tuple[duckdb.DuckDBPyConnection | None, dict[str, Path], dict[str, Mark]]]:
    """Open the published file. Yield its connection (None if there is no readable file), its archives by the names
    under which they are attached, and its watermarks.
    """
    connection = None
    archived: dict[str, Path] = {}
    marks: dict[str, Mark] = {}
    try:
        if _as_published(home):
            connection = duckdb.connect(config=SETTINGS)
            generations.attach(connection, home)
            named = generations.listed(connection)
            attached = generations.attach_archives(connection, home, named)
            archived = {
                name: home.archive / each.name for name, each in zip(attached, named, strict=True)
            }
            marks = read_marks(connection, "published.main.segments")
    except (DamagedError, ForeignError) as error:
        lost = _NOTHING if isinstance(error, DamagedError) else "results of queries"
        place = Path(error.where) if error.where else home.database
        report.findings.append(Finding(place, None, error.found, lost))
    except duckdb.Error as error:
        found = f"table segments cannot be read: {generations.first_line(error)}"
        report.findings.append(Finding(home.database, None, found, _NOTHING))
    try:
        yield (connection if marks else None), archived, marks
    finally:
        if connection is not None:
            connection.close()


def _as_published(home: Home) -> bool:
    """Return whether there is a published file. The digests of the file and of its archives are recomputed from their
    complete contents.

    Raises:
        ForeignError: the file was not written by agentobs.
        DamagedError: the file or an archive does not match its digest.
    """
    generation = generations.current(home)
    if generation is None:
        return False
    files = {home.database: generation.digest}
    files |= {home.archive / each.name: each.digest for each in generation.archives}
    for path, digest in files.items():
        same = path.exists() and generations.file_digest(path) == digest
        # If another generation was published in the meantime, the current generation differs.
        if not same and generations.current(home) == generation:
            expected = "the published generation" if path == home.database else "the sealed archive"
            raise DamagedError(f"this file is not {expected}", where=str(path))
    return True


def _unreadable(connection: duckdb.DuckDBPyConnection, database: str) -> Iterator[str]:
    """Read every column of every table, so that DuckDB checks all blocks; yield the errors."""
    for table in sorted(_TABLES):
        try:
            connection.execute(
                f"SELECT max(hash(COLUMNS(*))) FROM {database}.main.{table}"
            ).fetchall()
        except duckdb.Error as error:
            yield f"table {table} cannot be read: {generations.first_line(error)}"


def _miscounted(
    home: Home,
    connection: duckdb.DuckDBPyConnection,
    archived: Collection[str],
    marks: dict[str, Mark],
    counted: dict[str, _Facts],
    in_progress: Collection[str],
) -> Iterator[tuple[str, str]]:
    """Compare the rows of each segment with its lines up to the watermark, except for sessions being pruned.

    Yield descriptions of each difference and of the lost data.
    """
    try:
        rows = {table: _rows(connection, table, archived, in_progress) for table in sorted(_TABLES)}
        all_rows = {
            table: _rows(connection, table, archived, ())
            for table in sorted(_TABLES)
            if in_progress
        }
    except duckdb.Error:
        return  # `_unreadable` reports this
    for segment_id, mark in marks.items():
        facts = counted.get(segment_id)
        total = sum(each[segment_id] for each in rows.values())
        if not total and any(each[segment_id] for each in all_rows.values()):
            continue  # all of its rows are being pruned
        if facts is None or not file_exists(facts_path(home, segment_id)):
            found = f"segment {segment_id} is missing; the rows of its {mark.sequence} records still exist"
            yield found, _ONLY_IN_STORE
            continue
        is_shorter = facts.is_original and facts.size < mark.facts_offset
        if is_shorter:
            yield f"segment {segment_id} is shorter than when it was ingested", _ONLY_IN_STORE
        lines_of: Counter[str] = Counter()
        for (kind, session_id), number in facts.ingested.items():
            lines_of[kind] += number if session_id not in in_progress else 0
        for table, counts in rows.items():
            count, lines = counts[segment_id], lines_of[table]
            if count != lines:
                text = f"table {table} has {count} rows of segment {segment_id}, expected {lines}"
                yield text, _ONLY_IN_STORE if is_shorter else _NOTHING


def _rows(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    archived: Collection[str],
    without: Collection[str],
) -> Counter[str]:
    """Count the rows of a table by segment, except for the rows of some sessions."""
    stored = united(table, archived, "published.main")
    sql = (
        f"SELECT segment_id, count(*) FROM ({stored}) "
        "WHERE session_id IS NULL OR session_id NOT IN (SELECT unnest($without)) GROUP BY segment_id"
    )
    return Counter(dict(connection.execute(sql, {"without": list(without)}).fetchall()))


def _pruned(line: Line) -> _Pruned:
    value = _value(line)
    return str(value.get("session_id")), str(value.get("scope")), _number(line, "pruned_ns")


def _number(line: Line, name: str) -> int:
    value = _value(line).get(name)
    return value if isinstance(value, int) else 0


def _value(line: Line) -> dict[str, Any]:
    """Return the parsed payload; an empty dict if it is not a JSON object."""
    try:
        value = line.value()
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
