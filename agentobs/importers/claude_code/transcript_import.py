"""Import of logs: each logged session becomes a segment, which appears completely or not at all.

The segment ID is a digest of the log's contents: importing a log again finds the segment and changes
nothing, wherever an earlier import was interrupted. A log that has grown yields another segment, which replaces the
earlier one. A log with less data than is already stored, such as a part of its files or an old copy, replaces nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from agentobs import world
from agentobs.importers.claude_code.session_records import Rebuilt, our_id, rebuild
from agentobs.importers.claude_code.transcript_entries import Entry, read_log
from agentobs.importers.line_files import (
    LINE_BYTES_MAX,
    BadLine,
    Unreadable,
    files_under,
    lines_in,
    reason,
)
from agentobs.importers.segment_builder import retold
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.recording.journal.segment_import import Landed, clear_staging, land
from agentobs.recording.journal.segments import facts_path, is_there
from agentobs.records.facts import Attempt, Fact, UsageRow
from agentobs.records.labels import Label

Replace = Callable[[Home, str], None]
"""Removes everything that was recorded of a session, by its ID in agentobs, from a home and its store."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome for one session of the logs."""

    client_id: str
    """The client's ID of the session."""
    session_id: str
    """Our id of it."""
    is_new: bool
    """Whether it was written: False if it was imported before."""
    responses: int
    tool_calls: int
    agents: int
    not_replayable: str
    """What is missing in the logged requests, for people."""
    is_kept: bool = False
    """Whether the home has more of it than these logs, so that it is kept."""


@dataclass(slots=True)
class ImportReport:
    """What an import did."""

    sessions: list[Imported] = field(default_factory=list)
    bad_lines: list[BadLine] = field(default_factory=list)
    """Lines that could not be read and were skipped."""
    unreadable: list[Unreadable] = field(default_factory=list)
    """Files that could not be read."""
    without_answers: int = 0
    """Sessions without a response of the model; nothing of them is written."""
    telling: set[Path] = field(default_factory=set)
    """The files of a session, whether it is new or not."""


class Seen:
    """The state of the logs that were read, so that a later look reads only sessions with changed files."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._files: dict[Path, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def look(self, paths: Iterable[Path], report: ImportReport) -> dict[str, list[Path]]:
        """Return the sessions with changed files, by the client's IDs, and all files of each."""
        changed: dict[str, None] = {}
        files: dict[Path, tuple[tuple[int, ...], tuple[str, ...]]] = {}
        for path in paths:
            try:
                # Data that is written from here on is seen at the next look.
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
            if named:
                report.telling.add(path)
        self._files = files
        return {
            client_id: [path for path, (_, named) in files.items() if client_id in named]
            for client_id in changed
        }


def logs_in(paths: Iterable[Path]) -> list[Path]:
    """Return the logs among files and directories, those of main agents before those of the agents that they started.

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
    take_out: Replace,
    seen: Seen | None = None,
    told: Callable[[Imported], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ImportReport:
    """Import all sessions of logs; sessions that were imported before are not changed.

    Lines and files that cannot be read are reported and skipped. Each session is written completely or not at all.

    Args:
        home: the home that receives them.
        paths: the logs, see `logs_in`; the agents of a session may have files of their own.
        take_out: removes a session from the home that was imported when its log was shorter.
        seen: the state of earlier imports; unchanged files are not read again.
        told: is called with each session when it is done.
        progress: is called with the number of finished sessions and the total.

    Raises:
        OSError: the home cannot be written; finished sessions are kept.
    """
    report = ImportReport()
    clear_staging(home)
    known = _Known(home)
    bad: dict[tuple[Path, int], BadLine] = {}
    by_session = (seen or Seen()).look(paths, report)
    for number, (client_id, files) in enumerate(by_session.items(), 1):
        progress(number, len(by_session))
        entries = []
        for each in (each for path in files for each in _read(path, report)):
            if isinstance(each, BadLine):
                bad[each.path, each.line] = each
            elif each.session_id == client_id:
                entries.append(each)
        rebuilt = rebuild(client_id, entries, known.elsewhere(our_id(client_id)))
        if rebuilt is None:
            report.without_answers += 1
            continue
        what = _Held(_digest(client_id, entries), _marks(entries))
        state = _import(home, rebuilt, what, known, take_out)
        done = Imported(
            client_id,
            rebuilt.session_id,
            state == "new",
            len(rebuilt.message_ids),
            rebuilt.tool_calls,
            rebuilt.agents,
            rebuilt.lacks,
            state == "kept",
        )
        report.sessions.append(done)
        told(done)
    report.bad_lines = list(bad.values())
    return report


_SESSION = re.compile(rb'"sessionId" ?: ?"([^"\\]{1,200})"')


def _sessions_in(path: Path) -> tuple[str, ...]:
    """Return the sessions in a log, by the client's IDs."""
    found: dict[str, None] = {}
    for _, line, _ in lines_in(path, LINE_BYTES_MAX):
        found |= dict.fromkeys(name.decode("utf-8", "replace") for name in _SESSION.findall(line))
    return tuple(found)


def _read(path: Path, report: ImportReport) -> Iterator[Entry | BadLine]:
    try:
        yield from read_log(path)
    except OSError as error:
        report.unreadable.append(Unreadable(path, reason(error)))


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


@dataclass(frozen=True, slots=True)
class _Held:
    """The stored state of a session."""

    segment_id: str
    """A digest of its logs."""
    marks: frozenset[str]
    """A short digest of the ID of each entry: a log that contains all of them is complete."""


class _Known:
    """The sessions that were imported before: the segment of each, and the responses in it.

    A session that an older client resumed starts with a copy of the one before: its responses count once, where
    they were imported first.
    """

    def __init__(self, home: Home) -> None:
        """Read what is known."""
        self._folder = home.path / "imports"
        self.held: dict[str, _Held] = {}
        self._owners: dict[str, str] = {}
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            told = json.loads(path.read_text("utf-8"))
            what = _Held(told["segment_id"], frozenset(told.get("entries", ())))
            self._note(path.stem, what, told["message_ids"])

    def elsewhere(self, session_id: str) -> Callable[[str], bool]:
        """Return a function that tells whether a response, by its message ID, is already in another session."""
        return lambda message_id: self._owners.get(message_id, session_id) != session_id

    def remember(self, session_id: str, what: _Held, message_ids: Sequence[str]) -> None:
        """Store that a session was imported."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        told = {
            "segment_id": what.segment_id,
            "message_ids": list(message_ids),
            "entries": sorted(what.marks),
        }
        _put(self._folder / f"{session_id}.json", json.dumps(told))
        self._note(session_id, what, message_ids)

    def _note(self, session_id: str, what: _Held, message_ids: Sequence[str]) -> None:
        self.held[session_id] = what
        self._owners |= dict.fromkeys(message_ids, session_id)


def _digest(client_id: str, entries: Sequence[Entry]) -> str:
    """Return a digest of a session's log contents, 32 hex digits."""
    hashed = hashlib.blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=16)
    for entry in entries:
        line = json.dumps([entry.agent_id, entry.started_by, entry.value], sort_keys=True)
        hashed.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return hashed.hexdigest()


def _marks(entries: Iterable[Entry]) -> frozenset[str]:
    """Return a mark for each entry, 16 hex digits of a digest of its ID."""
    ids = (f"{entry.agent_id} {entry.uuid}".encode("utf-8", "surrogatepass") for entry in entries)
    return frozenset(hashlib.blake2b(each, digest_size=8).hexdigest() for each in ids)


def _import(
    home: Home, rebuilt: Rebuilt, what: _Held, known: _Known, take_out: Replace
) -> Literal["new", "there", "kept"]:
    """Write a session's segment if it does not exist yet and replaces nothing that has more data."""
    before = known.held.get(rebuilt.session_id)
    if before is not None:
        if before.segment_id == what.segment_id:
            return "there"
        is_here = is_there(facts_path(home, before.segment_id))
        if is_here and not before.marks <= what.marks:
            return "kept"
        take_out(home, rebuilt.session_id)
    if not is_there(facts_path(home, what.segment_id)):
        land(home, what.segment_id, _lines(home, rebuilt))
    known.remember(rebuilt.session_id, what, rebuilt.message_ids)
    return "new"


def _lines(home: Home, rebuilt: Rebuilt) -> Iterator[Landed]:
    """Yield the lines of a session's segment."""
    return retold(home, rebuilt.records, lambda fact: _as_logged(fact, rebuilt.uncounted))


def _as_logged(fact: Fact, uncounted: frozenset[str]) -> Fact:
    """Remove facts that a log does not contain: the time of the first chunk, and counts that may have grown."""
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
