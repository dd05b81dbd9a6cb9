"""The home: the directory that holds a journal and its store.

.agentobs/            mode 0700
  key                 32 random bytes for keyed digests
  segments/           <segment id>.facts and <segment id>.content, with the suffix .zst if compressed
  sessions/           <session id>/results/: tool results that were too long for the model
  agentobs.duckdb     the published generation, mode 0400
  archive/            YYYY-MM.duckdb: sessions of past months that belong to that generation, mode 0400
  manifest.json       size and digest of that generation, and of the archive files
  saved.json          views and queries that users saved in the dashboard
  logs/               session logs of other programs that were archived, without their secrets
  workspaces/         <workspace id>/: a shadow git repository with the recorded states of a workspace
  mcp/                copies of MCP configurations, while a command is recorded
  forks/              <ID>.json: a temporary directory in which forks have worked, and the sessions of these forks
  ingest.lock         held by the one process that publishes
  views-*.duckdb      the views of the store, prepared for the next reader; can be deleted at any time
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from agentobs import world
from agentobs.errors import HomeError

ENVIRONMENT = "AGENTOBS_HOME"
DEFAULT = ".agentobs"
VIEWS_PREFIX = "views-"
"""The prefix of the names of files that hold prepared views."""
_KEY_NAME = re.compile(r"key(\.[0-9a-f]{32})?")
"""The name of the key, or of its draft."""
KEY_BYTES = 32
"""The length of a home's key. Our choice: too long to be guessed; BLAKE2b takes up to 64 bytes (RFC 7693)."""


@dataclass(frozen=True, slots=True)
class Home:
    """A home directory that exists and may be used."""

    path: Path

    @property
    def segments(self) -> Path:
        """The directory of the journal's segments."""
        return self.path / "segments"

    @property
    def database(self) -> Path:
        """The published DuckDB file."""
        return self.path / "agentobs.duckdb"

    @property
    def archive(self) -> Path:
        """The directory of the archive files, which belong to the published file."""
        return self.path / "archive"

    @property
    def manifest(self) -> Path:
        """The file with the expected size and digest of the published file and of its archive files."""
        return self.path / "manifest.json"

    @property
    def lock(self) -> Path:
        """The file that the publishing process locks."""
        return self.path / "ingest.lock"

    def key(self) -> bytes:
        """Return the home's key for keyed digests; it is created at first use.

        Raises:
            HomeError: there is no key and none can be written, or the key file is damaged.
        """
        path = self.path / "key"
        with contextlib.suppress(FileNotFoundError):
            return _read_key(path)
        # The file is linked when it is complete, so another starting process reads either the complete key or nothing.
        draft = self.path / f"key.{world.new_id()}"
        try:
            create(draft, world.random_bytes(KEY_BYTES))
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            draft.unlink()
            sync_directory(self.path)
            return _read_key(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise _unusable(path, error.strerror or str(error)) from error

    def check_key(self) -> None:
        """Check that the key can be used, without creating one.

        Raises:
            HomeError: the key is damaged.
        """
        with contextlib.suppress(FileNotFoundError):
            _read_key(self.path / "key")


def locate(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the home: `path`, else `AGENTOBS_HOME`, else `.agentobs` in the current directory."""
    return Path(path or world.environ(ENVIRONMENT) or DEFAULT).absolute()


def open_home(path: str | os.PathLike[str] | None = None) -> Home:
    """Return the home, created with mode 0700 if it does not exist.

    An existing directory is used only if it is already a home, or empty.

    Raises:
        HomeError: the path is not a directory, belongs to another user, contains other files, or is not writable.
    """
    home = Home(locate(path))
    try:
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(home.path)
        # Checked again because another process may have created the home in the meantime.
        if not is_home(home) and _has_other_files(home) and not is_home(home):
            raise _unusable(home.path, "the directory contains other files and no recordings")
        home.segments.mkdir(mode=0o700, exist_ok=True)
        _check(home.segments)
        for folder in (home.path, home.segments):
            if stat.S_IMODE(folder.lstat().st_mode) & 0o077:
                folder.chmod(0o700)
    except OSError as error:
        raise _unusable(home.path, error.strerror or str(error)) from error
    if not os.access(home.segments, os.W_OK | os.X_OK):
        raise _unusable(home.segments, "it is not writable")
    return home


def _has_other_files(home: Home) -> bool:
    """Return whether a directory contains anything but keys; a power loss may have left only these of a new home."""
    return any(not _KEY_NAME.fullmatch(path.name) for path in home.path.iterdir())


def _check(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise _unusable(path, "it is not a directory (symbolic links are not followed)")
    if found.st_uid != os.getuid():
        raise _unusable(path, "it belongs to another user")


def is_home(home: Home) -> bool:
    """Return whether a directory is a home: it contains segments, or nothing that agentobs did not create."""
    if not home.segments.is_dir():
        return False
    if (home.path / "key").is_file():
        return True
    segments = list(home.segments.iterdir())
    if not segments:
        return all(_belongs_to_agentobs(path.name) for path in home.path.iterdir())
    return all(path.suffix in (".facts", ".content", ".zst") for path in segments)


_NAMES = frozenset(
    (
        *("segments", "sessions", "archive", "imports", "damaged", "ingest.lock", "logs"),
        *("workspaces", "mcp", "forks"),
    )
)
"""Other entries of a home besides its key and the published file."""
_DRAFTS = (
    "key.",
    "agentobs.duckdb",
    "manifest.json",
    "texts.sqlite",
    "saved.json",
    VIEWS_PREFIX,
    ".",
)
"""Prefixes of the names of files that another process may be writing at this moment."""


def _belongs_to_agentobs(name: str) -> bool:
    return name in _NAMES or name.startswith(_DRAFTS)


def existing_home(path: str | os.PathLike[str] | None = None) -> Home:
    """Return a home that readers can use.

    Raises:
        HomeError: there is no home at that path.
    """
    path = locate(path)
    if not (path / "segments").is_dir() and not (path / "agentobs.duckdb").is_file():
        raise HomeError(
            "no recordings found",
            where=str(path),
            todo=f"Record a session first (agentobs demo creates one), or choose another home with "
            f"--home or {ENVIRONMENT}",
        )
    return Home(path)


def create(path: Path, data: bytes = b"", mode: int = 0o600) -> None:
    """Create a new file with exactly this mode and content, without following a link.

    Raises:
        FileExistsError: the file exists already.
        OSError: not all of the data could be written; the incomplete file stays.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(descriptor, mode)
        if data:
            rest = memoryview(data)
            while rest:  # the system may write only a part
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)  # after a power loss, an empty key file would look like a key
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that the names in it survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_key(path: Path) -> bytes:
    """Return the key in a file.

    Raises:
        FileNotFoundError: the file does not exist.
        HomeError: the key cannot be read, or has a wrong length; with an empty key, anyone could guess digests.
    """
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    if len(key) != KEY_BYTES:
        raise HomeError(
            f"the key of this home is damaged: it has {len(key)} bytes, not {KEY_BYTES}",
            where=str(path),
            todo="Restore it from a backup, or delete it: a new one is created, and digests of "
            "names change from then on",
        )
    return key


def _unusable(path: Path, why: str) -> HomeError:
    return HomeError(
        f"cannot record here: {why}",
        where=str(path),
        todo=f"Choose a directory of your own with --home or {ENVIRONMENT}",
    )
