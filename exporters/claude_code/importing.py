"""Importing: logged sessions become recorded ones, each as a segment of its own that appears as a whole.

The segment's id is a digest of what the log tells: importing a log again finds the segment there and changes
nothing, wherever an earlier import died. A log that has grown gives another segment, which takes the place of the
one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentobs import world
from agentobs.errors import UsageError
from agentobs.recording.home import Home, sync_directory
from agentobs.recording.journal import facts_path
from agentobs.recording.landing import Landed, clear_staging, land
from agentobs.records.facts import Attempt, Fact, UsageRow
from agentobs.records.labels import Label
from exporters.claude_code.reading import LINE_BYTES_MAX, BadLine, Entry, read_log
from exporters.claude_code.rebuilding import Rebuilt, our_id, rebuild
from exporters.retelling import retold

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


@dataclass(slots=True)
class ImportReport:
    """What an import did."""

    sessions: list[Imported] = field(default_factory=list)
    bad_lines: list[BadLine] = field(default_factory=list)
    """What could not be read and was left out."""
    without_answers: int = 0
    """Sessions in which no model answered; nothing of them is written."""


def logs_in(paths: Iterable[Path]) -> list[Path]:
    """Return the logs among some files and directories, those of main agents before those of the agents they started.

    Raises:
        UsageError: one of the paths does not exist.
    """
    found: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise UsageError(
                "no such file or directory",
                where=str(path),
                todo="Name a log of Claude Code (*.jsonl), or a directory such as ~/.claude/projects",
            )
        found |= set(path.rglob("*.jsonl")) if path.is_dir() else {path}
    return sorted(found, key=lambda path: ("agent-" in path.name, str(path)))


def import_logs(
    home: Home,
    paths: Sequence[Path],
    *,
    take_out: Replace,
    told: Callable[[Imported], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ImportReport:
    """Import all sessions of some logs; what was imported before changes nothing.

    Lines that cannot be read are reported and left out. Each session is written as a whole or not at all.

    Args:
        home: where to.
        paths: the logs, see `logs_in`; what the agents of a session did may stand in files of their own.
        take_out: takes a session out of the home that was imported when its log was shorter.
        told: hears of each session when it is done.
        progress: hears how many sessions are done, and how many there are.

    Raises:
        OSError: a log cannot be read, or the home cannot be written; sessions that are done stay.
    """
    report = ImportReport()
    clear_staging(home)
    known = _Known(home)
    bad: dict[tuple[Path, int], BadLine] = {}
    by_session = _by_session(paths)
    for number, (client_id, files) in enumerate(by_session.items(), 1):
        progress(number, len(by_session))
        entries = []
        for each in (each for path in files for each in read_log(path)):
            if isinstance(each, BadLine):
                bad[each.path, each.line] = each
            elif each.session_id == client_id:
                entries.append(each)
        rebuilt = rebuild(client_id, entries, known.elsewhere(our_id(client_id)))
        if rebuilt is None:
            report.without_answers += 1
            continue
        is_new = _import(home, rebuilt, _digest(client_id, entries), known, take_out)
        done = Imported(
            client_id,
            rebuilt.session_id,
            is_new,
            len(rebuilt.message_ids),
            rebuilt.tool_calls,
            rebuilt.agents,
            rebuilt.lacks,
        )
        report.sessions.append(done)
        told(done)
    report.bad_lines = list(bad.values())
    return report


_SESSION = re.compile(rb'"sessionId" ?: ?"([^"\\]{1,200})"')


def _by_session(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the logs that tell of each session, by the client's id of it."""
    found: dict[str, dict[Path, None]] = {}
    for path in paths:
        with path.open("rb") as file:
            for line in file:
                for name in _SESSION.findall(line, 0, LINE_BYTES_MAX):
                    found.setdefault(name.decode("utf-8", "replace"), {})[path] = None
    return {client_id: list(files) for client_id, files in found.items()}


class _Known:
    """The sessions that were imported before: the segment of each, and whose answers of the model are in it.

    A session that was resumed by an older client begins with a copy of the one before: its answers count once, where
    they were imported first.
    """

    def __init__(self, home: Home) -> None:
        """Read what is known."""
        self._folder = home.path / "imports"
        self.segments: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            told = json.loads(path.read_text("utf-8"))
            self._note(path.stem, told["segment_id"], told["message_ids"])

    def elsewhere(self, session_id: str) -> Callable[[str], bool]:
        """Return what tells whether an answer, by its message id, is in another session already."""
        return lambda message_id: self._owners.get(message_id, session_id) != session_id

    def remember(self, session_id: str, segment_id: str, message_ids: Sequence[str]) -> None:
        """Write down that a session was imported."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        told = {"segment_id": segment_id, "message_ids": list(message_ids)}
        _put(self._folder / f"{session_id}.json", json.dumps(told))
        self._note(session_id, segment_id, message_ids)

    def _note(self, session_id: str, segment_id: str, message_ids: Sequence[str]) -> None:
        self.segments[session_id] = segment_id
        self._owners |= dict.fromkeys(message_ids, session_id)


def _digest(client_id: str, entries: Sequence[Entry]) -> str:
    """Return a digest of what the logs tell of a session, 32 hex digits."""
    hashed = hashlib.blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=16)
    for entry in entries:
        line = json.dumps([entry.agent_id, entry.started_by, entry.value], sort_keys=True)
        hashed.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return hashed.hexdigest()


def _import(
    home: Home, rebuilt: Rebuilt, segment_id: str, known: _Known, take_out: Replace
) -> bool:
    """Write a session's segment where it is not there yet; returns whether it was written."""
    before = known.segments.get(rebuilt.session_id)
    if before == segment_id:
        return False
    if before is not None:
        take_out(home, rebuilt.session_id)
    if not facts_path(home, segment_id).exists():
        land(home, segment_id, _lines(home, rebuilt))
    known.remember(rebuilt.session_id, segment_id, rebuilt.message_ids)
    return True


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
