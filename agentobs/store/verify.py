"""Verify: read everything back, and say what is damaged, where, and what is lost with it.

Every line of every segment is checked, every content id that a fact names is looked for, and the
published file is held against its manifest and against the segments that it was made from.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from agentobs.errors import DamagedError, ForeignError
from agentobs.recording.compressed import compressed_path, segment_of
from agentobs.recording.crashes import TELLING, crashed
from agentobs.recording.home import Home
from agentobs.recording.journal import (
    SPANS,
    Damage,
    Line,
    content_path,
    facts_path,
    file_size,
    is_alive,
    is_there,
    read,
    segment_ids,
    tail,
)
from agentobs.records.facts import TABLES, Pruning
from agentobs.store import publish
from agentobs.store.ingest import SETTINGS
from agentobs.store.load import read_marks
from agentobs.store.rewriting import FRAME, session_of
from agentobs.store.tail import Mark

_TABLES = frozenset(TABLES.values())
_CONTENT_FIELDS = {
    "session_starts": ("arguments_content",),
    "attempts": ("request_content", "response_content"),
    "tool_results": ("content",),
    "world_answers": ("content",),
}
"""The fields of facts that name content."""
_NOTHING = "nothing: delete the file, and the next ingest makes it anew from the segments"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it was written."""

    path: Path
    offset: int | None
    """Where in the file, bytes; None where it concerns the whole file."""
    found: str
    """What is wrong, for people."""
    lost: str
    """What is lost with it, for people."""
    sessions: tuple[str, ...] = ()
    """The sessions that it is or may be of, where that can be known."""
    records: int = 0
    """How many records are lost, where their numbers tell."""

    def __str__(self) -> str:
        place = f"{self.path}" if self.offset is None else f"{self.path} at byte {self.offset}"
        return f"{place}: {self.found}; lost: {self.lost}"


@dataclass(slots=True)
class VerifyReport:
    """What was read, and what was found."""

    segments: int = 0
    """Segments that were read."""
    records: int = 0
    """Lines of facts that read back."""
    contents: int = 0
    """Lines of content that read back."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything reads back as it was written."""
        return not self.findings

    def lines(self) -> list[str]:
        """Return the report as lines for people: what was read, then each finding."""
        read_back = f"{self.segments} segments, {self.records} records, {self.contents} contents"
        if self.ok:
            return [f"{read_back}: all as written"]
        return [f"{read_back}: {len(self.findings)} findings", *map(str, self.findings)]


@dataclass(slots=True)
class _Facts:
    """What the facts of one segment say."""

    size: int = 0
    """Size of the file, of the plain one where it was compressed, bytes."""
    is_original: bool = True
    """Whether it is what the process wrote: nothing was pruned, and no repair left a gap."""
    named: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    """The content ids that they name, with offset, kind and session of the first record that does."""
    sessions: set[str] = field(default_factory=set)
    """The sessions of their records."""
    pruned: dict[str, str] = field(default_factory=dict)
    """The sessions that were pruned by them, and what of each."""
    ingested: Counter[str] = field(default_factory=Counter)
    """Records by table, up to the watermark."""


def verify(home: Home) -> VerifyReport:
    """Read a home from end to end; nothing is changed."""
    report = VerifyReport()
    counted: dict[str, _Facts] = {}
    # The watermarks come first, so that everything up to them is in the segments that are read below.
    with _published(home, report) as (connection, marks):
        for segment_id in segment_ids(home):
            report.segments += 1
            mark = marks.get(segment_id) or Mark(segment_id)
            counted[segment_id] = _read_facts(facts_path(home, segment_id), mark, report)
        pruned = {s: what for facts in counted.values() for s, what in facts.pruned.items()}
        for segment_id, facts in counted.items():
            _check_content(home, segment_id, facts, pruned, report)
            report.findings += _not_pruned(home, segment_id, facts, pruned)
        for path in sorted(home.segments.glob("*.content*")):
            if segment_of(path) not in counted:
                lost = "what it holds can be reached from no record"
                report.findings.append(Finding(path, None, "its facts are missing", lost))
        if connection is not None:
            found = [*_unreadable(connection), *_miscounted(connection, marks, counted)]
            report.findings += [Finding(home.database, None, text, _NOTHING) for text in found]
    return report


def holds_what_it_should(home: Home) -> bool:
    """Return whether the published file is as it was published, reads back, and has the rows of the segments."""
    return not any(finding.path == home.database for finding in verify(home).findings)


def _lines(path: Path, report: VerifyReport) -> Iterator[Line]:
    """Yield the lines of a file that read back, and report everything else."""
    # An empty file is not locked yet; to ask whether its process lives could get in the way of that.
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
        report.findings.append(Finding(path, None, error.found, "all of it, for this version"))
        return
    if not alive and (torn := tail(path)):
        found = f"its last {torn} bytes are no whole record"
        lost = "one record, which was being written when its process ended or the power failed"
        report.findings.append(Finding(path, file_size(path) - torn, found, lost))
    is_counted = last and last.kind == "seal"
    if last and is_counted and _value(last).get("lines") != last.sequence - 1:
        report.findings.append(
            Finding(path, last.start, "its last line counts otherwise", "unknown")
        )


def _finding(path: Path, damage: Damage) -> Finding:
    """Return what is damaged, and what was lost with it as far as that can be known."""
    place = _place(path)
    held = damage.held
    if held is None:
        lost = "one record or a part of one" if damage.end > damage.start else "as said"
        return Finding(place, damage.start, damage.reason, lost, records=damage.missing)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(held.kinds.items()))
    lost = (
        "as said"
        if damage.missing
        else f"what is missing of records {held.first} to {held.last}: {kinds}"
    )
    return Finding(place, damage.start, damage.reason, lost, held.sessions, damage.missing)


def _place(path: Path) -> Path:
    """Return the file that is there: the compressed one, or the plain one."""
    packed = compressed_path(path)
    return packed if packed.exists() else path


def _read_facts(path: Path, mark: Mark, report: VerifyReport) -> _Facts:
    facts = _Facts(size=file_size(path))
    told: list[Line] = []
    for line in _lines(path, report):
        report.records += 1
        facts.is_original = facts.is_original and line.kind not in SPANS
        if line.sequence <= mark.sequence:
            facts.ingested[line.kind] += 1
        if line.kind in TELLING:
            told.append(line)
        session = None if line.kind in FRAME else session_of(line)
        if line.kind == TABLES[Pruning]:
            facts.pruned[str(session)] = str(_value(line).get("what"))
        elif session:
            facts.sessions.add(session)
        if line.kind in _CONTENT_FIELDS:
            value = _value(line)
            for name in _CONTENT_FIELDS[line.kind]:
                if content_id := value.get(name):
                    session_id = str(value.get("session_id"))
                    facts.named.setdefault(str(content_id), (line.start, line.kind, session_id))
    if mark.state != "open":
        facts.ingested.update(each.kind for each in crashed(told))
    return facts


def _not_pruned(
    home: Home, segment_id: str, facts: _Facts, pruned: Mapping[str, str]
) -> Iterator[Finding]:
    """Find sessions that were pruned and are there: whoever did it was killed."""
    for session_id in sorted(facts.sessions):
        if pruned.get(session_id) == "all":
            found = f"holds records of session {session_id}, which was pruned"
            lost = "nothing: the next ingest takes them out"
            yield Finding(_place(facts_path(home, segment_id)), None, found, lost, (session_id,))


def _check_content(
    home: Home, segment_id: str, facts: _Facts, pruned: Mapping[str, str], report: VerifyReport
) -> None:
    """Look for all content that the facts name, and for the body that each difference starts from."""
    path = content_path(home, segment_id)
    known: set[str] = set()
    bases: dict[str, int] = {}
    if is_there(path):
        for line in _lines(path, report):
            report.contents += 1
            value = _value(line)
            known.add(str(value.get("content_id")))
            if base := value.get("base"):
                bases.setdefault(str(base), line.start)
    for content_id, (offset, kind, session_id) in facts.named.items():
        if content_id not in known and session_id not in pruned:
            found = f"names content {content_id}, which is missing"
            lost = f"the text of this record ({kind} of session {session_id})"
            place = _place(facts_path(home, segment_id))
            report.findings.append(Finding(place, offset, found, lost, (session_id,)))
    for base, offset in bases.items():
        if base not in known:
            found = f"differs from content {base}, which is missing"
            lost = "the text of this request and of all that go on from it"
            report.findings.append(Finding(path, offset, found, lost))


@contextlib.contextmanager
def _published(
    home: Home, report: VerifyReport
) -> Iterator[tuple[duckdb.DuckDBPyConnection | None, dict[str, Mark]]]:
    """Open the published file and give its watermarks; None where there is none that can be read."""
    connection = None
    marks: dict[str, Mark] = {}
    try:
        if _as_published(home):
            connection = duckdb.connect(config=SETTINGS)
            publish.attach(connection, home)
            marks = read_marks(connection, "published.main.segments")
    except (DamagedError, ForeignError) as error:
        lost = _NOTHING if isinstance(error, DamagedError) else "the answers of the store"
        report.findings.append(Finding(home.database, None, error.found, lost))
    except duckdb.Error as error:
        found = f"table segments does not read back: {publish.first_line(error)}"
        report.findings.append(Finding(home.database, None, found, _NOTHING))
    try:
        yield (connection if marks else None), marks
    finally:
        if connection is not None:
            connection.close()


def _as_published(home: Home) -> bool:
    """Return whether there is a published file; its whole digest is computed.

    Raises:
        ForeignError: it is not ours.
        DamagedError: it is not as its manifest says.
    """
    generation = publish.current(home)
    if generation is None:
        return False
    same = generation.digest == publish.file_digest(home.database)
    # Another generation may have been published in between; then the manifest has another entry.
    if not same and publish.current(home) == generation:
        raise DamagedError("not the generation that was published", where=str(home.database))
    return True


def _unreadable(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Read every column of every table, so that DuckDB checks each of its blocks."""
    for table in sorted(_TABLES):
        try:
            connection.execute(
                f"SELECT max(hash(COLUMNS(*))) FROM published.main.{table}"
            ).fetchall()
        except duckdb.Error as error:
            yield f"table {table} does not read back: {publish.first_line(error)}"


def _miscounted(
    connection: duckdb.DuckDBPyConnection, marks: dict[str, Mark], counted: dict[str, _Facts]
) -> Iterator[str]:
    """Compare the rows of each segment with its lines up to the watermark."""
    try:
        rows = {table: _rows(connection, table) for table in sorted(_TABLES)}
    except duckdb.Error:
        return  # reported as unreadable
    for segment_id, mark in marks.items():
        facts = counted.get(segment_id)
        if facts is None:
            yield f"segment {segment_id} is gone; the rows of its {mark.sequence} records are still here"
            continue
        if facts.is_original and facts.size < mark.facts_offset:
            yield f"segment {segment_id} is shorter than what was read of it"
        for table, found in rows.items():
            count, lines = found[segment_id], facts.ingested[table]
            if count != lines:
                yield f"table {table} has {count} rows of segment {segment_id} for {lines} records"


def _rows(connection: duckdb.DuckDBPyConnection, table: str) -> Counter[str]:
    sql = f"SELECT segment_id, count(*) FROM published.main.{table} GROUP BY segment_id"
    return Counter(dict(connection.execute(sql).fetchall()))


def _value(line: Line) -> dict[str, Any]:
    """Return the parsed payload, empty where it is no JSON object."""
    try:
        value = line.value()
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
