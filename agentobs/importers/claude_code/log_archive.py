"""Log archive: keeps the session logs that Claude Code deletes after some time, without the secrets in them.

Claude Code 2.1 deletes logs whose last entry is older than `cleanupPeriodDays`, by default 30 days
(https://code.claude.com/docs/en/settings). A log only grows, so an archived log is replaced when the log has grown, and
kept when the log is gone or shorter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentobs import world
from agentobs.importers.line_files import LINE_BYTES_MAX, Unreadable, lines_in, reason
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.redaction import Redactor

FOLDER = "logs/claude-code"
"""The folder in the home that contains the archived logs."""
_INDEX = "index.json"
"""The file with the size of each archived log when it was archived, in bytes, by its path in the folder."""
DAYS = 30
"""After how many days Claude Code deletes a log by default."""
SETTING = "cleanupPeriodDays"
_MANAGED = (
    Path("/etc/claude-code/managed-settings.json"),
    Path("/Library/Application Support/ClaudeCode/managed-settings.json"),
)
"""The settings of an administrator, which have precedence over those of a user."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long Claude Code keeps its logs."""

    days: int
    source: str
    """The file that sets it, or `default`."""


@dataclass(slots=True)
class ArchiveReport:
    """The result of archiving."""

    new: int = 0
    """Number of logs that were not archived before."""
    grown: int = 0
    """Number of logs that were archived again because they have grown."""
    unchanged: int = 0
    kept: list[Path] = field(default_factory=list)
    """Logs that are shorter than when they were archived; the archived ones are kept."""
    long_lines: int = 0
    """Number of lines that were too long to be archived."""
    unreadable: list[Unreadable] = field(default_factory=list)


def claude_folder(variables: Mapping[str, str]) -> Path:
    """Return the folder of Claude Code's settings and logs: `CLAUDE_CONFIG_DIR`, or `~/.claude`."""
    named = variables.get("CLAUDE_CONFIG_DIR")
    return Path(named) if named else Path("~/.claude").expanduser()


def retention(folder: Path, managed: Sequence[Path] = _MANAGED) -> Retention:
    """Return how long Claude Code keeps its logs, according to the settings of the administrator and of the user.

    Settings of a project, and settings that an organization sends, are not considered.
    """
    for path in (*managed, folder / "settings.json"):
        try:
            value = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        days = value.get(SETTING) if isinstance(value, dict) else None
        if isinstance(days, int) and not isinstance(days, bool) and days >= 0:
            return Retention(days, str(path))
    return Retention(DAYS, "default")


def logs_by_age(folder: Path) -> list[tuple[float, Path]]:
    """Return the logs in Claude Code's folder with the time of their last change in seconds, the oldest first."""
    found = []
    for path in (folder / "projects").rglob("*.jsonl"):
        try:
            found.append((path.stat().st_mtime, path))
        except OSError:
            continue
    return sorted(found)


def archived_sizes(home: Home) -> dict[str, int]:
    """Return the size of each archived log when it was archived, in bytes, by its path relative to its root."""
    try:
        value = json.loads((home.path / FOLDER / _INDEX).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): int(size) for name, size in value.items()}


def archive_logs(
    home: Home,
    root: Path,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ArchiveReport:
    """Archive all logs below a folder.

    Each log is archived completely or not at all. Secrets in it are replaced by placeholders.

    Args:
        home: the home with the archive.
        root: the folder with the logs, such as `~/.claude/projects`.
        progress: a function that is called with the number of finished logs and the total.

    Raises:
        OSError: the archive cannot be written; archived logs are kept.
    """
    report, sizes = ArchiveReport(), archived_sizes(home)
    redactor = Redactor(home.key())
    paths = sorted(path for path in root.rglob("*.jsonl") if path.is_file())
    try:
        for number, path in enumerate(paths, 1):
            progress(number, len(paths))
            try:
                _archive(home, path, path.relative_to(root).as_posix(), sizes, redactor, report)
            except _ReadError as error:
                report.unreadable.append(Unreadable(path, reason(error.cause)))
    finally:
        _write(home.path / FOLDER / _INDEX, [json.dumps(sizes, sort_keys=True).encode()])
    return report


def _archive(
    home: Home,
    path: Path,
    name: str,
    sizes: dict[str, int],
    redactor: Redactor,
    report: ArchiveReport,
) -> None:
    """Archive one log if it has changed.

    Raises:
        _ReadError: it cannot be read.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise _ReadError(error) from error
    if found.st_size == sizes.get(name):
        report.unchanged += 1
    elif found.st_size < sizes.get(name, 0):
        report.kept.append(path)
    else:
        lines = _redacted(path, redactor, report)
        _write(home.path / FOLDER / name, lines, found.st_mtime_ns)
        if name in sizes:
            report.grown += 1
        else:
            report.new += 1
        sizes[name] = found.st_size


class _ReadError(Exception):
    """A log cannot be read."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


def _redacted(path: Path, redactor: Redactor, report: ArchiveReport) -> Iterator[bytes]:
    lines = lines_in(path, LINE_BYTES_MAX)
    while True:
        try:
            line = next(lines)
        except StopIteration:
            return
        except OSError as error:
            raise _ReadError(error) from error
        if line.text:
            yield redactor.redact(line.text)
        else:
            report.long_lines += 1


def _write(path: Path, lines: Iterable[bytes], changed_ns: int | None = None) -> None:
    """Write a file completely or not at all, readable only by the user."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{world.new_id()}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if changed_ns is not None:
            os.utime(draft, ns=(changed_ns, changed_ns))
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
