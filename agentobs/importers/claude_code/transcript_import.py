"""Transcript import: each logged session becomes a segment, which is written completely or not at all.

The segment ID is a digest of the log's contents. Importing a log again therefore finds the segment and changes nothing,
no matter when an earlier import was interrupted. A log that has grown becomes a new segment, which replaces the earlier
one. A log with less data than is already stored, such as an old copy or only some files of a session, replaces nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from agentobs import world
from agentobs.importers.claude_code.session_records import Rebuilt, our_id, rebuild
from agentobs.importers.claude_code.transcript_entries import (
    Entry,
    OtherLine,
    is_known,
    read_log,
)
from agentobs.importers.line_files import (
    LINE_BYTES_MAX,
    BadLine,
    Unreadable,
    files_under,
    lines_in,
    reason,
)
from agentobs.importers.segment_builder import segment_lines
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.recording.journal.segment_import import ImportedLine, clear_staging, import_segment
from agentobs.recording.journal.segments import facts_path, file_exists
from agentobs.records.facts import Attempt, Fact, UsageRow
from agentobs.records.labels import Label

RemoveSession = Callable[[Home, str], None]
"""A function that removes all records of a session, given its ID in agentobs, from a home and its store."""
RecordedMessages = Callable[[], frozenset[str]]
"""A function that returns the message IDs of all responses that a proxy recorded for a client with logs."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome for one session of the logs."""

    client_id: str
    """The client's ID of the session."""
    session_id: str
    """Its ID in agentobs."""
    is_new: bool
    """Whether it was written; False if it was imported before."""
    responses: int
    tool_calls: int
    agents: int
    not_replayable: str
    """A readable description of the data that is missing in the logged requests."""
    is_kept: bool = False
    """Whether the stored session was kept because it has more data than these logs."""
    unlogged: Mapping[str, int] = field(default_factory=dict)
    """The number of tokens that the client counted in addition to those of the logged responses, by kind."""


@dataclass(slots=True)
class ImportReport:
    """The result of an import."""

    sessions: list[Imported] = field(default_factory=list)
    bad_lines: list[BadLine] = field(default_factory=list)
    """Lines that could not be read and were skipped."""
    unreadable: list[Unreadable] = field(default_factory=list)
    """Files that could not be read."""
    without_responses: int = 0
    """Number of sessions without a response of the model, which were skipped."""
    recorded: int = 0
    """Number of sessions that a proxy recorded completely, which were skipped."""
    unknown_lines: Counter[str] = field(default_factory=Counter)
    """Number of lines of each type that this version of agentobs does not know. They are not imported."""
    session_files: set[Path] = field(default_factory=set)
    """The files that contain a session, new or not."""


class Seen:
    """The state of the logs that were read, so that the next import reads only sessions with changed files."""

    def __init__(self) -> None:
        """Start without any files."""
        self._files: dict[Path, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def changed_sessions(
        self,
        paths: Iterable[Path],
        report: ImportReport,
        is_outdated: Callable[[str], bool] = lambda _: False,
    ) -> dict[str, list[Path]]:
        """Return all files of each session with changed files, by the client's ID of the session.

        Args:
            paths: all logs.
            report: receives the files that contain a session, and those that cannot be read.
            is_outdated: returns whether a session, given the client's ID, is returned although no file has changed.
        """
        changed: dict[str, None] = {}
        files: dict[Path, tuple[tuple[int, ...], tuple[str, ...]]] = {}
        for path in paths:
            try:
                # Get the stamp before reading, so that the next call notices data that is written during the read.
                stamp = _stamp(path)
                before, named = self._files.get(path, ((), ()))
                if stamp != before:
                    now = _sessions_in(path)
                    changed |= dict.fromkeys((*named, *now))
                    named = now
            except OSError as error:
                report.unreadable.append(Unreadable(path, reason(error)))
                continue
            files[path] = stamp, named
            changed |= dict.fromkeys(each for each in named if is_outdated(each))
            if named:
                report.session_files.add(path)
        self._files = files
        return {
            client_id: [path for path, (_, named) in files.items() if client_id in named]
            for client_id in changed
        }


def logs_in(paths: Iterable[Path]) -> list[Path]:
    """Return the given files, and the logs in the given directories; logs of main agents before logs of sub-agents.

    Raises:
        UsageError: a path does not exist.
    """
    todo = "Pass a log of Claude Code (*.jsonl), or a directory such as ~/.claude/projects"
    found = files_under(paths, todo)
    return sorted(found, key=lambda path: ("agent-" in path.name, str(path)))


def import_logs(
    home: Home,
    paths: Sequence[Path],
    *,
    remove_session: RemoveSession,
    recorded_messages: RecordedMessages = frozenset,
    seen: Seen | None = None,
    on_imported: Callable[[Imported], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ImportReport:
    """Import all sessions of logs; sessions that were imported before are not changed.

    Lines and files that cannot be read are reported and skipped. Each session is written completely or not at all.

    Args:
        home: the home into which they are imported.
        paths: the logs, from `logs_in`; sub-agents of a session may have separate files.
        remove_session: a function that removes a session from the home; called for a session that was imported when
            its log was shorter, before it is replaced.
        recorded_messages: a function that returns the message IDs of the responses that a proxy recorded. They do not
            count in imported sessions; an earlier import of them is replaced.
        seen: the state after earlier imports; unchanged files are not read again.
        on_imported: a function that is called with the outcome of each session when the session is finished.
        progress: a function that is called with the number of finished sessions and the total.

    Raises:
        OSError: the home cannot be written; finished sessions are kept.
    """
    report = ImportReport()
    clear_staging(home)
    known = _Known(home)
    bad: dict[tuple[Path, int], BadLine] = {}
    recorded = recorded_messages()
    by_session = (seen or Seen()).changed_sessions(
        paths, report, lambda client_id: known.has_any(our_id(client_id), recorded)
    )
    for number, (client_id, files) in enumerate(by_session.items(), 1):
        progress(number, len(by_session))
        entries: list[Entry] = []
        others: list[OtherLine] = []
        for each in (each for path in files for each in _read(path, report)):
            if isinstance(each, BadLine):
                bad[each.path, each.line] = each
            elif each.session_id == client_id:
                (entries if isinstance(each, Entry) else others).append(each)  # type: ignore[arg-type]
                if not is_known(each.kind):
                    report.unknown_lines[each.kind] += 1
        in_other_session = known.in_other_session(our_id(client_id), recorded)
        rebuilt = rebuild(client_id, entries, in_other_session, others)
        if rebuilt is None:
            _skip(home, our_id(client_id), entries, recorded, report, known, remove_session)
            continue
        left_out = recorded.intersection(_message_ids(entries))
        version = _StoredVersion(_digest(client_id, entries, left_out), _marks(entries))
        state = _import(home, rebuilt, version, known, remove_session)
        imported = Imported(
            client_id,
            rebuilt.session_id,
            state == "new",
            len(rebuilt.message_ids),
            rebuilt.tool_calls,
            rebuilt.agents,
            rebuilt.missing,
            state == "kept",
            rebuilt.unlogged,
        )
        report.sessions.append(imported)
        on_imported(imported)
    report.bad_lines = list(bad.values())
    return report


def _skip(
    home: Home,
    session_id: str,
    entries: Sequence[Entry],
    recorded: frozenset[str],
    report: ImportReport,
    known: _Known,
    remove_session: RemoveSession,
) -> None:
    """Count a session that has no responses, and remove an import of responses that were recorded since."""
    if recorded.isdisjoint(_message_ids(entries)):
        report.without_responses += 1
        return
    report.recorded += 1
    if known.has_any(session_id, recorded):
        remove_session(home, session_id)
        known.forget(session_id)


def _message_ids(entries: Iterable[Entry]) -> set[str]:
    """Return the message IDs of the model's responses in a log."""
    return {e.message.id for e in entries if e.kind == "assistant" and e.message.id is not None}


_SESSION = re.compile(rb'"sessionId" ?: ?"([^"\\]{1,200})"')


def _sessions_in(path: Path) -> tuple[str, ...]:
    """Return the sessions in a log, by the client's IDs."""
    found: dict[str, None] = {}
    for _, line, _ in lines_in(path, LINE_BYTES_MAX):
        found |= dict.fromkeys(name.decode("utf-8", "replace") for name in _SESSION.findall(line))
    return tuple(found)


def _read(path: Path, report: ImportReport) -> Iterator[Entry | OtherLine | BadLine]:
    try:
        yield from read_log(path)
    except OSError as error:
        report.unreadable.append(Unreadable(path, reason(error)))


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


@dataclass(frozen=True, slots=True)
class _StoredVersion:
    """The imported version of a session's logs."""

    segment_id: str
    """A digest of the logs."""
    marks: frozenset[str]
    """A short digest of the ID of each entry. Logs that contain all of these entries can replace this version."""


class _Known:
    """The sessions that were imported before, each with its segment and its responses.

    If an older client resumed a session, the log of the new session starts with a copy of the previous log. The copied
    responses count only in the session that was imported first.
    """

    def __init__(self, home: Home) -> None:
        """Read the files about earlier imports."""
        self._folder = home.path / "imports"
        self.versions: dict[str, _StoredVersion] = {}
        self._owners: dict[str, str] = {}
        self._messages: dict[str, frozenset[str]] = {}
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            value = json.loads(path.read_text("utf-8"))
            version = _StoredVersion(value["segment_id"], frozenset(value.get("entries", ())))
            self._note(path.stem, version, value["message_ids"])

    def in_other_session(self, session_id: str, recorded: frozenset[str]) -> Callable[[str], bool]:
        """Return a function that returns whether a response, given its message ID, belongs to another session.

        Args:
            session_id: the imported session.
            recorded: the message IDs of recorded responses, which belong to the recorded sessions.
        """
        return lambda message_id: (
            message_id in recorded or self._owners.get(message_id, session_id) != session_id
        )

    def has_any(self, session_id: str, message_ids: frozenset[str]) -> bool:
        """Return whether the imported version of a session contains any of these responses."""
        return not message_ids.isdisjoint(self._messages.get(session_id, ()))

    def forget(self, session_id: str) -> None:
        """Forget that a session was imported."""
        (self._folder / f"{session_id}.json").unlink(missing_ok=True)
        del self.versions[session_id]
        for message_id in self._messages.pop(session_id):
            if self._owners.get(message_id) == session_id:
                del self._owners[message_id]

    def remember(
        self, session_id: str, version: _StoredVersion, message_ids: Sequence[str]
    ) -> None:
        """Record that a session was imported."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        value = {
            "segment_id": version.segment_id,
            "message_ids": list(message_ids),
            "entries": sorted(version.marks),
        }
        _put(self._folder / f"{session_id}.json", json.dumps(value))
        self._note(session_id, version, message_ids)

    def _note(self, session_id: str, version: _StoredVersion, message_ids: Sequence[str]) -> None:
        self.versions[session_id] = version
        self._messages[session_id] = frozenset(message_ids)
        self._owners |= dict.fromkeys(message_ids, session_id)


def _digest(client_id: str, entries: Sequence[Entry], left_out: Iterable[str]) -> str:
    """Return a digest of a session's log contents and of the responses that are left out, 32 hex digits."""
    hashed = hashlib.blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=16)
    for entry in entries:
        line = json.dumps([entry.agent_id, entry.started_by, entry.value], sort_keys=True)
        hashed.update(line.encode("utf-8", "surrogatepass") + b"\n")
    for message_id in sorted(left_out):
        hashed.update(message_id.encode("utf-8", "surrogatepass") + b"\n")
    return hashed.hexdigest()


def _marks(entries: Iterable[Entry]) -> frozenset[str]:
    """Return a mark for each entry: a digest of its ID, 16 hex digits."""
    ids = (f"{entry.agent_id} {entry.uuid}".encode("utf-8", "surrogatepass") for entry in entries)
    return frozenset(hashlib.blake2b(each, digest_size=8).hexdigest() for each in ids)


def _import(
    home: Home,
    rebuilt: Rebuilt,
    version: _StoredVersion,
    known: _Known,
    remove_session: RemoveSession,
) -> Literal["new", "there", "kept"]:
    """Write a session's segment, unless it already exists or the stored version has more data."""
    before = known.versions.get(rebuilt.session_id)
    if before is not None:
        if before.segment_id == version.segment_id:
            return "there"
        is_stored = file_exists(facts_path(home, before.segment_id))
        if is_stored and not before.marks <= version.marks:
            return "kept"
        remove_session(home, rebuilt.session_id)
    if not file_exists(facts_path(home, version.segment_id)):
        import_segment(home, version.segment_id, _lines(home, rebuilt))
    known.remember(rebuilt.session_id, version, rebuilt.message_ids)
    return "new"


def _lines(home: Home, rebuilt: Rebuilt) -> Iterator[ImportedLine]:
    """Yield the lines of a session's segment."""
    return segment_lines(
        home,
        rebuilt.records,
        lambda fact: _as_logged(fact, rebuilt.uncounted),
        session_id=rebuilt.session_id,
        # At least one response is missing.
        lost=int(bool(rebuilt.unlogged)),
    )


def _as_logged(fact: Fact, uncounted: frozenset[str]) -> Fact:
    """Adapt a fact to the data in a log: the time of the first chunk is unknown, and counts may be lower bounds."""
    if isinstance(fact, Attempt):
        return replace(fact, first_chunk_ns=None)
    if isinstance(fact, UsageRow) and fact.attempt_id in uncounted and fact.certainty == "exact":
        return replace(fact, certainty=Label("lower_bound"))
    return fact


def _put(path: Path, text: str) -> None:
    """Write a small file completely or not at all."""
    draft = path.with_name(f"{path.name}.{world.new_id()}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync_directory(path.parent)
