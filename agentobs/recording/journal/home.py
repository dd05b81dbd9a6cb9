"""The home: the directory that holds a journal and its store.

.agentobs/            mode 0700
  key                 32 random bytes for keyed digests
  segments/           <segment id>.facts and <segment id>.content, with .zst behind where they were compressed
  sessions/           <session id>/results/: what tools returned and was too long for the model
  agentobs.duckdb     the published generation, mode 0400
  archive/            YYYY-MM.duckdb: sessions of past months that belong to that generation, mode 0400
  manifest.json       size and digest of that generation, and of what is in the archive
  ingest.lock         held by the one process that publishes
  views-*.duckdb      the views of the store, prepared for the next reader; can be deleted at any time
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from agentobs import world
from agentobs.errors import HomeError

ENVIRONMENT = "AGENTOBS_HOME"
DEFAULT = ".agentobs"
VIEWS_PREFIX = "views-"
"""The start of the names of files that hold prepared views."""
KEY_BYTES = 32
"""How long a home's key is. Our choice: nobody can try out so many; BLAKE2b takes up to 64 (RFC 7693)."""


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
        """The directory of past months, which belong to the published file."""
        return self.path / "archive"

    @property
    def manifest(self) -> Path:
        """What the published file must look like."""
        return self.path / "manifest.json"

    @property
    def lock(self) -> Path:
        """The file that the publishing process locks."""
        return self.path / "ingest.lock"

    def key(self) -> bytes:
        """Return the home's own key for keyed digests, made at first use.

        Raises:
            HomeError: there is none, and none can be written; or what is there is no key.
        """
        path = self.path / "key"
        with contextlib.suppress(FileNotFoundError):
            return _read_key(path)
        # Linked when it is whole: a process that starts at the same moment reads all of it or none.
        draft = self.path / f"key.{world.new_id()}"
        try:
            create(draft, world.random_bytes(KEY_BYTES))
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            draft.unlink()
            sync_directory(self.path)
            return _read_key(path)
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from error

    def check_key(self) -> None:
        """Look whether what is named by the key can be, without making one.

        Raises:
            HomeError: there is a key that cannot be used.
        """
        with contextlib.suppress(FileNotFoundError):
            _read_key(self.path / "key")


def locate(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the home's path: the one given, else `AGENTOBS_HOME`, else `.agentobs` here."""
    return Path(given or world.environ(ENVIRONMENT) or DEFAULT).absolute()


def open_home(given: str | os.PathLike[str] | None = None) -> Home:
    """Return the home, made with mode 0700 where it does not exist.

    A directory that was there before is taken only where it is a home already, or empty.

    Raises:
        HomeError: it is no directory, belongs to another user, holds other things, or cannot be written.
    """
    home = Home(locate(given))
    try:
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(home.path)
        # Asked again: another process may have made it a home meanwhile.
        if not is_home(home) and any(home.path.iterdir()) and not is_home(home):
            raise _unusable(home.path, "the directory holds other things and no recordings")
        home.segments.mkdir(mode=0o700, exist_ok=True)
        _check(home.segments)
        for path in (home.path, home.segments):
            if stat.S_IMODE(path.lstat().st_mode) & 0o077:
                path.chmod(0o700)
    except OSError as error:
        raise _unusable(home.path, error.strerror or str(error)) from error
    if not os.access(home.segments, os.W_OK | os.X_OK):
        raise _unusable(home.segments, "it is not writable")
    return home


def _check(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise _unusable(path, "it is not a directory (a link is not followed)")
    if found.st_uid != os.getuid():
        raise _unusable(path, "it belongs to another user")


def is_home(home: Home) -> bool:
    """Return whether a directory is a home: it has segments, and they are ours, or it holds nothing else yet."""
    if not home.segments.is_dir():
        return False
    if (home.path / "key").is_file():
        return True
    segments = list(home.segments.iterdir())
    if not segments:
        return all(_is_ours(path.name) for path in home.path.iterdir())
    return all(path.suffix in (".facts", ".content", ".zst") for path in segments)


_NAMES = frozenset(("segments", "sessions", "archive", "imports", "damaged", "ingest.lock"))
"""What lies in a home beside its key and the published file."""
_DRAFTS = ("key.", "agentobs.duckdb", "manifest.json", VIEWS_PREFIX, ".")
"""How the names begin of what another process may be writing there right now."""


def _is_ours(name: str) -> bool:
    return name in _NAMES or name.startswith(_DRAFTS)


def existing_home(given: str | os.PathLike[str] | None = None) -> Home:
    """Return a home that readers can use.

    Raises:
        HomeError: there is none at that place.
    """
    path = locate(given)
    if not (path / "segments").is_dir() and not (path / "agentobs.duckdb").is_file():
        raise HomeError(
            "no recordings here",
            where=str(path),
            todo=f"Record a session first (agentobs demo makes one), or name another home with --home or {ENVIRONMENT}",
        )
    return Home(path)


def create(path: Path, data: bytes = b"", mode: int = 0o600) -> None:
    """Create a file that did not exist, whatever the umask, without following a link.

    Raises:
        FileExistsError: something is there already.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(descriptor, mode)
        if data:
            os.write(descriptor, data)
            os.fsync(descriptor)  # a key that a power loss emptied would be taken for one
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_key(path: Path) -> bytes:
    """Return the key in a file.

    Raises:
        FileNotFoundError: there is no such file.
        HomeError: it cannot be read, or holds something else: a digest with an empty key could be guessed by anybody.
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
            todo="Put it back from a backup, or delete it: another is made, and names that are digests are not the "
            "same as before from then on",
        )
    return key


def _unusable(path: Path, why: str) -> HomeError:
    return HomeError(
        f"cannot record here: {why}",
        where=str(path),
        todo=f"Name a directory of your own with --home or {ENVIRONMENT}",
    )
