"""Importing: logged sessions become recorded ones, each as a segment of its own that appears as a whole.

The segment's id is a digest of what the log tells: importing a log again finds the segment there and changes
nothing, wherever an earlier import died. A log that has grown gives another segment, which takes the place of the
one before it. What holds less than is here, such as a part of its files or an old copy, takes the place of nothing.
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
"""Takes all that was recorded of a session, by our id of it, out of a home and its store."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one session of the logs."""

    client_id: str
    """The client's id of it."""
    session_id: str
    """Our id of it."""
    is_new: bool
    """Whether something was written: False where it was imported before."""
    responses: int
    tool_calls: int
    agents: int
    not_replayable: str
    """What its log lacks of the requests, for people."""
    is_kept: bool = False
    """Whether more of it is here than these logs hold, so that it stays as it is."""


@dataclass(slots=True)
class ImportReport:
    """What an import did."""

    sessions: list[Imported] = field(default_factory=list)
    bad_lines: list[BadLine] = field(default_factory=list)
    """What could not be read and was left out."""
    unreadable: list[Unreadable] = field(default_factory=list)
    """Files that could not be read."""
    without_answers: int = 0
    """Sessions in which no model answered; nothing of them is written."""
    telling: set[Path] = field(default_factory=set)
    """The files that tell of a session, whether it is new or not."""


class Seen:
    """What was read of some logs: whoever looks again reads those sessions of which a file has changed."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._files: dict[Path, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def look(self, paths: Iterable[Path], report: ImportReport) -> dict[str, list[Path]]:
        """Return the sessions of which a file has changed, by the client's ids, and all files that tell of each."""
        changed: dict[str, None] = {}
        files: dict[Path, tuple[tuple[int, ...], tuple[str, ...]]] = {}
        for path in paths:
            try:
                # What is written from here on is seen at the next look.
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
    """Return the logs among some files and directories, those of main agents before those of the agents they started.

    Raises:
        UsageError: one of the paths does not exist.
    """
    todo = "Name a log of Claude Code (*.jsonl), or a directory such as ~/.claude/projects"
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
    """Import all sessions of some logs; what was imported before changes nothing.

    Lines and files that cannot be read are reported and left out. Each session is written as a whole or not at all.

    Args:
        home: where to.
        paths: the logs, see `logs_in`; what the agents of a session did may stand in files of their own.
        take_out: takes a session out of the home that was imported when its log was shorter.
        seen: what was read before; of that nothing is read again.
        told: hears of each session when it is done.
        progress: hears how many sessions are done, and how many there are.

    Raises:
        OSError: the home cannot be written; sessions that are done stay.
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
    """Return the sessions that a log names, by the client's ids of them."""
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
    """What of a session is in the home."""

    segment_id: str
    """A digest of what its logs tell."""
    marks: frozenset[str]
    """A short digest of the id of each entry: who has all of them has no less."""


class _Known:
    """The sessions that were imported before: the segment of each, and whose answers of the model are in it.

    A session that was resumed by an older client begins with a copy of the one before: its answers count once, where
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
        """Return what tells whether an answer, by its message id, is in another session already."""
        return lambda message_id: self._owners.get(message_id, session_id) != session_id

    def remember(self, session_id: str, what: _Held, message_ids: Sequence[str]) -> None:
        """Write down that a session was imported."""
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
    """Return a digest of what the logs tell of a session, 32 hex digits."""
    hashed = hashlib.blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=16)
    for entry in entries:
        line = json.dumps([entry.agent_id, entry.started_by, entry.value], sort_keys=True)
        hashed.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return hashed.hexdigest()


def _marks(entries: Iterable[Entry]) -> frozenset[str]:
    """Return a mark for each entry, 16 hex digits of its id."""
    ids = (f"{entry.agent_id} {entry.uuid}".encode("utf-8", "surrogatepass") for entry in entries)
    return frozenset(hashlib.blake2b(each, digest_size=8).hexdigest() for each in ids)


def _import(
    home: Home, rebuilt: Rebuilt, what: _Held, known: _Known, take_out: Replace
) -> Literal["new", "there", "kept"]:
    """Write a session's segment where it is not there yet, and nothing of what is there would be gone."""
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
    """Take back what a log does not tell: when the first piece of an answer came, and counts that may have grown."""
    if isinstance(fact, Attempt):
        return replace(fact, first_chunk_ns=None)
    if isinstance(fact, UsageRow) and fact.attempt_id in uncounted and fact.certainty == "exact":
        return replace(fact, certainty=Label("lower_bound"))
    return fact


def _put(path: Path, text: str) -> None:
    """Write a small file whole, or not at all."""
    draft = path.with_name(f"{path.name}.{world.new_id()}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync_directory(path.parent)
