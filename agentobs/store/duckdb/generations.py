"""Generations: how a new DuckDB file replaces the published file, and how a file is recognized as written by agentobs.

A generation is prepared next to the published file and renamed over it, so that readers keep the file that they opened.
The manifest lists the last two generations and is written before the rename. Therefore, no matter when a process dies,
the published file is one of the two. Only the process that holds the home's lock publishes.

Past months may be in archives, which are files with the same layout (`archives.py`). Each generation contains the list
of its archives, so that one rename switches all rows at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from agentobs import world
from agentobs.errors import DamagedError, ForeignError
from agentobs.recording.journal.home import Home, create, sync_directory
from agentobs.recording.journal.segments import segment_ids
from agentobs.store.duckdb.schema import layout, newest

DRAFT = ".ingest-"
"""The prefix of files that are not published yet."""
POLL_SECONDS = 0.02
"""The time between attempts to acquire a lock that another process holds."""
ARCHIVES = "archives"
"""The key of the list of archives (JSON) in the table `meta` of a published file."""
ARCHIVE_NAME = re.compile(r"([0-9]{4}-[0-9]{2})(?:\.([0-9]{1,6}))?\.duckdb")
"""The name of an archive: its month (UTC), followed by a number if it is not the first file of that month."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A file with the sessions of a past month; it belongs to a generation and never changes."""

    name: str
    """Its name in the archive directory."""
    bytes: int
    """Its size."""
    digest: str
    """Its digest."""
    modified_ns: int
    """Its modification time. While this time and the size are unchanged, the digest is not computed again."""

    def __post_init__(self) -> None:
        if not ARCHIVE_NAME.fullmatch(self.name):
            raise ValueError("not the name of an archive")


@dataclass(frozen=True, slots=True)
class Generation:
    """One published state of the store, as described in the manifest."""

    number: int
    """The number of the generation, from 1; 0 for a file without a manifest."""
    bytes: int
    """Size of the file."""
    digest: str
    """Digest of the file."""
    modified_ns: int
    """Its modification time. While this time and the size are unchanged, the digest is not computed again."""
    published_ns: int
    """When it was published, nanoseconds since 1970."""
    facts_bytes: int
    """The total number of ingested bytes of all facts files."""
    read: Mapping[str, int] = field(default_factory=dict)
    """The number of ingested bytes of each facts file that is not compressed, by segment."""
    archives: tuple[Archive, ...] = ()
    """The archives that belong to it."""


@contextlib.contextmanager
def locked(home: Home, wait_seconds: float) -> Iterator[bool]:
    """Hold the home's lock while the context is open. Yield False if another process still holds it at the end of the
    wait.

    Raises:
        OSError: the home cannot be written.
    """
    with contextlib.suppress(FileExistsError):
        create(home.lock)
    descriptor = os.open(home.lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        yield _lock(descriptor, wait_seconds)
    finally:
        os.close(descriptor)


def generations(home: Home) -> list[Generation]:
    """Return the generations in the manifest, newest first; an empty list if it cannot be read."""
    try:
        entries = json.loads(home.manifest.read_bytes())["generations"]
        return [_generation(entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def quick_current(home: Home) -> Generation | None:
    """Return the published generation, identified only by sizes and modification times; None if no entry matches."""
    try:
        found = home.database.lstat()
    except OSError:
        return None
    if _wal(home.database).exists():
        return None
    for generation in generations(home):
        if (generation.bytes, generation.modified_ns) == (found.st_size, found.st_mtime_ns):
            same = all(_is_stamped(home, archive) for archive in generation.archives)
            return generation if same else None
    return None


def current(home: Home) -> Generation | None:
    """Return the published generation, or None if there is no file.

    A store file without a manifest, such as a copy of only this file, is used as it is.

    Raises:
        ForeignError: the file was not written by agentobs.
        DamagedError: the file was written by agentobs, but it or one of its archives was changed.
    """
    if not _is_there(home.database):
        return None
    if generation := quick_current(home):
        return generation
    if _wal(home.database).exists():
        # DuckDB would apply this write-ahead log to all query results, and could not open the next generation.
        raise DamagedError("another client has written to the database", where=str(home.database))
    named = generations(home)
    size, digest = home.database.stat().st_size, file_digest(home.database)
    for generation in named:
        if (generation.bytes, generation.digest) == (size, digest):
            check_archives(home, generation.archives)
            return generation
    with duckdb.connect() as connection:
        attach(connection, home)
        if named:
            raise DamagedError(
                "this file is not the published generation", where=str(home.database)
            )
        archives = listed(connection)
    check_archives(home, archives)
    return Generation(0, size, digest, 0, 0, 0, archives=archives)


def attach(connection: duckdb.DuckDBPyConnection, home: Home) -> int:
    """Attach the published file read-only as `published`, and return its layout number.

    Raises:
        ForeignError: the file was not written by agentobs, or was written by a newer version.
        DamagedError: the file cannot be opened, although there is a manifest: agentobs has published a file here. The
            manifest may be damaged as well.
    """
    path = str(home.database).replace("'", "''")
    try:
        connection.execute(f"ATTACH '{path}' AS published (READ_ONLY)")
        found = layout(connection, "published")
    except duckdb.Error as error:
        if os.path.lexists(home.manifest):
            raise DamagedError(
                f"cannot be opened: {first_line(error)}", where=str(home.database)
            ) from error
        raise _foreign(
            home.database, "this file was not written by agentobs, or it is damaged"
        ) from error
    if found is None:
        raise _foreign(home.database, "this DuckDB file was not written by agentobs")
    if found > newest():
        raise ForeignError(
            f"a store of layout {found}; this version of agentobs reads up to {newest()}",
            where=str(home.database),
            todo="Install the version that wrote it, or a newer one",
        )
    return found


def listed(connection: duckdb.DuckDBPyConnection) -> tuple[Archive, ...]:
    """Return the archives that the attached published file lists.

    Raises:
        DamagedError: the list cannot be read.
    """
    sql = "SELECT value FROM published.main.meta WHERE key = ?"
    try:
        row = connection.execute(sql, [ARCHIVES]).fetchone()
        return tuple(Archive(**entry) for entry in json.loads(row[0])) if row else ()
    except (duckdb.Error, ValueError, TypeError) as error:
        raise DamagedError("its list of archives cannot be read") from error


def attach_archives(
    connection: duckdb.DuckDBPyConnection, home: Home, archives: Sequence[Archive]
) -> dict[str, int]:
    """Attach archives read-only, and return the layout number of each, by the name under which it is attached.

    Raises:
        DamagedError: an archive is missing, was changed, or cannot be opened.
    """
    check_archives(home, archives)
    found: dict[str, int] = {}
    for number, archive in enumerate(archives, 1):
        path, name = home.archive / archive.name, f"archive_{number}"
        quoted = str(path).replace("'", "''")
        try:
            connection.execute(f"ATTACH '{quoted}' AS {name} (READ_ONLY)")
            known = layout(connection, name)
        except duckdb.Error as error:
            raise DamagedError(f"cannot be opened: {first_line(error)}", where=str(path)) from error
        if known is None:
            raise DamagedError("this archive was not written by agentobs", where=str(path))
        found[name] = known
    return found


def check_archives(home: Home, archives: Sequence[Archive]) -> None:
    """Check that archives are unchanged, by size and modification time, and by digest if one of these differs.

    Raises:
        DamagedError: an archive is missing or was changed.
    """
    for archive in archives:
        path = home.archive / archive.name
        if _wal(path).exists():
            raise DamagedError("another client has written to the database", where=str(path))
        try:
            same = _is_stamped(home, archive) or file_digest(path) == archive.digest
        except OSError as error:
            raise DamagedError("an archive of the store is missing", where=str(path)) from error
        if not same:
            raise DamagedError("its content does not match its digest", where=str(path))


def draft(home: Home, *, copy: bool, of: Path | None = None) -> Path:
    """Return the path of a new draft. If `copy` is set, create it as a copy of `of` (default: the published file)."""
    path = home.path / f"{DRAFT}{world.new_id()}.duckdb"
    if copy:
        create(path)
        shutil.copyfile(of or home.database, path)
    return path


def clear_drafts(home: Home) -> None:
    """Delete drafts of ingests that were killed. The caller holds the lock, so no process uses them."""
    for path in home.path.glob(f"{DRAFT}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def publish(
    home: Home,
    path: Path,
    facts_bytes: int,
    replaced: Generation | None,
    read: Mapping[str, int] | None = None,
    archives: Sequence[Archive] = (),
) -> Generation:
    """Publish a finished, closed draft in place of the current file; return its generation.

    Raises:
        OSError: the draft could not be synced or renamed; the current file stays published.
    """
    found = made_durable(path)
    before = generations(home)
    generation = Generation(
        number=1 + max((g.number for g in before), default=0),
        bytes=found.st_size,
        digest=file_digest(path),
        modified_ns=found.st_mtime_ns,
        published_ns=world.now(),
        facts_bytes=facts_bytes,
        read=dict(read or {}),
        archives=tuple(archives),
    )
    _write_manifest(home, [generation, replaced] if replaced else [generation])
    _move(_wal(home.database), _damaged_path(home, ".wal"))
    path.replace(home.database)
    sync_directory(home.path)
    return generation


def made_durable(path: Path) -> os.stat_result:
    """Make a finished, closed draft read-only and sync it to disk; return its `stat` result."""
    path.chmod(0o400)
    _sync(path)
    return path.stat()


def refuse_without_segments(home: Home) -> None:
    """Refuse to replace an unreadable store file if there are no segments from which it could be rebuilt.

    Raises:
        DamagedError: there is a store file but no segment, for example because the file was copied without its home.
    """
    if not _is_there(home.database) or segment_ids(home):
        return
    raise DamagedError(
        "the store file is damaged, and there are no segments from which it could be rebuilt; it was left unchanged",
        where=str(home.database),
        todo="Copy it again from the home that it belongs to, or restore it from a backup",
    )


def move_damaged(home: Home, place: Path | None = None) -> Path:
    """Move the published file and its archives to another path, by default next to it; return the new path."""
    place = place or _damaged_path(home)
    # Move the archives first: a published file without archives is detected as damaged.
    _move(home.archive, place.with_name(f"{place.name}.archive"))
    _move(_wal(home.database), place.with_name(f"{place.name}.wal"))
    home.database.rename(place)
    sync_directory(home.path)
    return place


def file_digest(path: Path) -> str:
    """Return the digest of a file, in the form of `records.canonical_json.digest`."""
    with path.open("rb") as file:
        hashed = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
    return "b2:" + hashed.hexdigest()


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, without a final period."""
    return str(error).partition("\n")[0].rstrip(".")


def _generation(entry: dict[str, Any]) -> Generation:
    archives = tuple(Archive(**each) for each in entry.get("archives", ()))
    return Generation(**(entry | {"archives": archives}))


def _is_stamped(home: Home, archive: Archive) -> bool:
    """Return whether an archive is a file with the listed size and modification time."""
    try:
        found = (home.archive / archive.name).lstat()
    except OSError:
        return False
    same = (found.st_size, found.st_mtime_ns) == (archive.bytes, archive.modified_ns)
    is_alone = not _wal(home.archive / archive.name).exists()
    return same and is_alone and stat.S_ISREG(found.st_mode)


def _wal(path: Path) -> Path:
    """Return the path of DuckDB's write-ahead log for a file. agentobs never leaves one behind."""
    return path.with_name(f"{path.name}.wal")


def _damaged_path(home: Home, ending: str = "") -> Path:
    return home.database.with_name(f"{home.database.name}.damaged-{world.new_id()}{ending}")


def _move(path: Path, place: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.rename(place)


def _write_manifest(home: Home, found: list[Generation]) -> None:
    path = home.path / f"{DRAFT}{world.new_id()}.json"
    text = json.dumps({"generations": [dataclasses.asdict(g) for g in found]}, indent=2)
    create(path, text.encode() + b"\n")
    _sync(path)
    path.replace(home.manifest)


def _lock(descriptor: int, wait_seconds: float) -> bool:
    until = world.monotonic() + int(wait_seconds * 1e9)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if world.monotonic() >= until:
                return False
        threading.Event().wait(POLL_SECONDS)


def _is_there(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode):
        raise _foreign(path, "not a regular file")
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _foreign(path: Path, found: str) -> ForeignError:
    return ForeignError(
        found,
        where=str(path),
        todo="It was not changed: move it away, or choose another home with --home",
    )
