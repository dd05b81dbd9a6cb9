"""Log archive: keeps the session logs that Claude Code deletes after some time, without the secrets in them.

Claude Code 2.1 deletes logs whose last entry is older than `cleanupPeriodDays`, by default 30 days
(https://code.claude.com/docs/en/settings). A log usually only grows: its copy is replaced when the log continues it,
and stays when the log is gone or shorter. If a log no longer begins like its copy, both are kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentobs import world
from agentobs.errors import UsageError
from agentobs.importers.line_files import LINE_BYTES_MAX, Unreadable, lines_in, reason
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.redaction import Redactor

FOLDER = "logs/claude-code"
"""The folder in the home that contains the archived logs."""
_INDEX = "index.json"
"""The file with the state of each archived log when it was archived, by its path in the folder."""
_LOCK = "archive.lock"
"""The file that is locked by the process that archives."""
_DRAFTS = ".drafts"
"""The folder of unfinished files, which a process that was killed leaves behind."""
DAYS = 30
"""After how many days Claude Code deletes a log by default."""
SETTING = "cleanupPeriodDays"
_MANAGED = (
    Path("/etc/claude-code/managed-settings.json"),
    Path("/Library/Application Support/ClaudeCode/managed-settings.json"),
)
"""The settings of an administrator, which have precedence over those of a user. Files in the folder
`managed-settings.d` next to them have precedence over them, the last one first.
"""
_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Retention:
    """How long Claude Code keeps its logs."""

    days: int
    source: str
    """The file that sets it, or `default`."""


@dataclass(frozen=True, slots=True)
class LogState:
    """The size and the last change of a log, which change whenever it is written."""

    size: int
    """[bytes]"""
    changed_ns: int
    """[ns since 1970 UTC]"""


@dataclass(slots=True)
class ArchiveReport:
    """The result of archiving."""

    new: int = 0
    """Number of logs that were not archived before."""
    grown: int = 0
    """Number of logs that were archived again because they have grown."""
    unchanged: int = 0
    kept: list[Path] = field(default_factory=list)
    """Logs that are shorter than their copies; the copies are kept."""
    replaced: list[Path] = field(default_factory=list)
    """Logs that no longer begin like their copies; the old copies are kept under another name."""
    long_lines: int = 0
    """Number of lines that were too long to be archived."""
    unreadable: list[Unreadable] = field(default_factory=list)


def claude_folder(variables: Mapping[str, str]) -> Path:
    """Return the folder of Claude Code's settings and logs: `CLAUDE_CONFIG_DIR`, or `~/.claude`."""
    named = variables.get("CLAUDE_CONFIG_DIR")
    return Path(named) if named else Path("~/.claude").expanduser()


def retention(folder: Path, managed: Sequence[Path] = _MANAGED) -> Retention:
    """Return the time for which Claude Code keeps its logs, according to the settings of the administrator and of the
    user.

    Settings of a project, and settings that an organization sends, are not considered.
    """
    paths: list[Path] = []
    for path in managed:
        parts = path.with_suffix(".d")
        paths += [*sorted(parts.glob("*.json"), reverse=True), path]
    for path in (*paths, folder / "settings.json"):
        try:
            value = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        days = value.get(SETTING) if isinstance(value, dict) else None
        if isinstance(days, int) and not isinstance(days, bool) and days >= 1:
            return Retention(days, str(path))
    return Retention(DAYS, "default")


def logs_in(root: Path) -> tuple[dict[Path, LogState], list[Unreadable]]:
    """Return the logs below a folder, and what cannot be read.

    Symbolic links are followed, to each folder once. Only regular files are logs, so nothing waits for a pipe.
    """
    logs: dict[Path, LogState] = {}
    unreadable: list[Unreadable] = []
    visited: set[tuple[int, int]] = set()

    def note(error: OSError) -> None:
        unreadable.append(Unreadable(Path(os.fsdecode(error.filename or root)), reason(error)))

    with contextlib.suppress(OSError):  # os.walk reports it
        found = root.stat()
        visited.add((found.st_dev, found.st_ino))
    for name, folders, files in os.walk(root, onerror=note, followlinks=True):
        folder = Path(name)
        for each in list(folders):
            try:
                found = (folder / each).stat()
            except OSError:
                continue  # os.walk reports it
            if (found.st_dev, found.st_ino) in visited:
                folders.remove(each)
            visited.add((found.st_dev, found.st_ino))
        for path in (folder / each for each in files if each.endswith(".jsonl")):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # it was deleted, or it is a link to a file that was
            except OSError as error:
                note(error)
                continue
            if stat.S_ISREG(found.st_mode):
                logs[path] = LogState(found.st_size, found.st_mtime_ns)
    return dict(sorted(logs.items())), unreadable


def archived_logs(home: Home) -> dict[str, LogState]:
    """Return the state of each archived log when it was archived, by its path relative to its root.

    Logs whose copies are gone are left out.
    """
    folder = home.path / FOLDER
    try:
        value = json.loads((folder / _INDEX).read_text("utf-8"))
        found = {str(name): LogState(int(size), int(at)) for name, (size, at) in value.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: state for name, state in found.items() if (folder / name).is_file()}


def archive_logs(
    home: Home,
    root: Path,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ArchiveReport:
    """Archive all logs below a folder.

    Each log is archived completely or not at all. Secrets in it are replaced by placeholders. A last line that is still
    being written is left for the next time.

    Args:
        home: the home with the archive.
        root: the folder with the logs, such as `~/.claude/projects`.
        progress: a function that is called with the number of finished logs and the total.

    Raises:
        UsageError: another process archives at this moment.
        OSError: the archive cannot be written; archived logs are kept.
    """
    folder = home.path / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder):
        for draft in (folder / _DRAFTS).glob("*"):
            draft.unlink()
        states, redactor = archived_logs(home), Redactor(home.key())
        logs, unreadable = logs_in(root)
        report = ArchiveReport(unreadable=unreadable)
        try:
            for number, (path, state) in enumerate(logs.items(), 1):
                progress(number, len(logs))
                name = path.relative_to(root).as_posix()
                if states.get(name) == state:
                    report.unchanged += 1
                    continue
                try:
                    _archive(path, folder, name, state, redactor, report)
                except _ReadError as error:
                    report.unreadable.append(Unreadable(path, reason(error.cause)))
                else:
                    states[name] = state
        finally:
            _write_index(folder, states)
    return report


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(
        folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                "another process archives logs at this moment",
                where=str(folder),
                todo="Wait until it has ended",
            ) from error
        yield
    finally:
        os.close(descriptor)


def _archive(
    path: Path,
    folder: Path,
    name: str,
    state: LogState,
    redactor: Redactor,
    report: ArchiveReport,
) -> None:
    """Archive one log that is not archived in this state.

    Raises:
        _ReadError: it cannot be read.
    """
    copy = folder / name
    with _draft(folder) as draft:
        skipped = _redact(path, draft, redactor)
        os.utime(draft, ns=(state.changed_ns, state.changed_ns))
        match _relation(draft, copy):
            case "new":
                report.new += 1
            case "same":
                report.unchanged += 1
            case "longer":
                report.grown += 1
            case "shorter":
                report.kept.append(path)
                return
            case "other":
                copy.rename(_free_name(copy))
                report.replaced.append(path)
        report.long_lines += skipped
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.rename(copy)
    sync_directory(copy.parent)


class _ReadError(Exception):
    """A log cannot be read."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


def _redact(path: Path, draft: Path, redactor: Redactor) -> int:
    """Write the lines of a log to a new file, without secrets; return how many were too long."""
    skipped = 0
    lines = lines_in(path, LINE_BYTES_MAX)
    with draft.open("wb") as file:
        while True:
            try:
                line = next(lines)
            except StopIteration:
                break
            except OSError as error:
                raise _ReadError(error) from error
            if not line.text:
                skipped += 1
            elif line.text.endswith(b"\n") or _is_json(line.text):
                # A part of a line can contain a part of a secret, which is not recognized.
                file.write(redactor.redact(line.text))
        file.flush()
        os.fsync(file.fileno())
    return skipped


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _relation(draft: Path, copy: Path) -> str:
    """Return how a file compares to its copy: `new` (without a copy), `same`, `longer`, `shorter` or `other`."""
    try:
        sizes = draft.stat().st_size, copy.stat().st_size
    except FileNotFoundError:
        return "new"
    left = min(sizes)
    with draft.open("rb") as one, copy.open("rb") as other:
        while left:
            size = min(left, _CHUNK_BYTES)
            if one.read(size) != other.read(size):
                return "other"
            left -= size
    if sizes[0] == sizes[1]:
        return "same"
    return "longer" if sizes[0] > sizes[1] else "shorter"


def _free_name(copy: Path) -> Path:
    names = (copy.with_name(f"{copy.stem}.{number}.jsonl") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


@contextlib.contextmanager
def _draft(folder: Path) -> Iterator[Path]:
    """Create a file that only the user can read; if it is not renamed at the end, it is deleted."""
    (folder / _DRAFTS).mkdir(mode=0o700, exist_ok=True)
    draft = folder / _DRAFTS / world.new_id()
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(draft, flags, 0o600))
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _write_index(folder: Path, states: Mapping[str, LogState]) -> None:
    value = {name: [state.size, state.changed_ns] for name, state in sorted(states.items())}
    with _draft(folder) as draft:
        with draft.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(folder / _INDEX)
    sync_directory(folder)
