"""Generations: how a DuckDB file replaces the one before it, and how a file is known to be ours.

A generation is prepared beside the published file and renamed over it, so that readers keep the one that
they opened. The manifest names the last two generations and is written before the rename: whenever a
process dies, the file in place is one of the two. Only the process that holds the home's lock publishes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from agentobs import world
from agentobs.errors import DamagedError, ForeignError
from agentobs.recording.home import Home, create, sync_directory
from agentobs.store.schema import layout, newest

DRAFT = ".ingest-"
"""How the names of files begin that are not published yet."""
POLL_SECONDS = 0.02
"""How often a held lock is tried again."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One published state of the store, as the manifest describes it."""

    number: int
    """Counts from 1; 0 for a file that came without a manifest."""
    bytes: int
    """Size of the file."""
    digest: str
    """Digest of the file."""
    modified_ns: int
    """Its modification time: while this and the size are the same, the digest is not computed again."""
    published_ns: int
    """When it was published, nanoseconds since 1970."""
    facts_bytes: int
    """How much of the segments' facts it holds."""
    read: Mapping[str, int] = field(default_factory=dict)
    """How much of the facts of each segment that was not compressed yet, by segment."""


@contextlib.contextmanager
def locked(home: Home, wait_seconds: float) -> Iterator[bool]:
    """Hold the home's lock; gives False where another process held it for all of the time.

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
    """Return the generations that the manifest names, newest first; none where it cannot be read."""
    try:
        entries = json.loads(home.manifest.read_bytes())["generations"]
        return [Generation(**entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def glance(home: Home) -> Generation | None:
    """Return the published generation by size and time alone; None where nothing matches."""
    try:
        found = home.database.lstat()
    except OSError:
        return None
    if _wal(home).exists():
        return None
    for generation in generations(home):
        if (generation.bytes, generation.modified_ns) == (found.st_size, found.st_mtime_ns):
            return generation
    return None


def current(home: Home) -> Generation | None:
    """Return the published generation, or None where there is no file.

    A file of ours that came without a manifest, because it was copied here alone, is taken as it is.

    Raises:
        ForeignError: the file is not ours.
        DamagedError: the file is ours, and not as it was published.
    """
    if not _is_there(home.database):
        return None
    if generation := glance(home):
        return generation
    if _wal(home).exists():
        # DuckDB would play it back into every answer, and refuse the next generation because of it.
        raise DamagedError("another client has written beside it", where=str(home.database))
    named = generations(home)
    size, digest = home.database.stat().st_size, file_digest(home.database)
    for generation in named:
        if (generation.bytes, generation.digest) == (size, digest):
            return generation
    with duckdb.connect() as connection:
        attach(connection, home)
    if named:
        raise DamagedError("not the generation that was published", where=str(home.database))
    return Generation(0, size, digest, 0, 0, 0)


def attach(connection: duckdb.DuckDBPyConnection, home: Home) -> int:
    """Attach the published file read-only as `published`, and return its layout.

    Raises:
        ForeignError: it is not ours, or a newer version wrote it.
        DamagedError: it does not open, and the manifest says that it was ours.
    """
    path = str(home.database).replace("'", "''")
    try:
        connection.execute(f"ATTACH '{path}' AS published (READ_ONLY)")
        found = layout(connection, "published")
    except duckdb.Error as error:
        if generations(home):
            raise DamagedError(
                f"does not open: {first_line(error)}", where=str(home.database)
            ) from error
        raise _foreign(home.database, "not a database that agentobs wrote") from error
    if found is None:
        raise _foreign(home.database, "a DuckDB file that agentobs did not write")
    if found > newest():
        raise ForeignError(
            f"a store of layout {found}; this version of agentobs reads up to {newest()}",
            where=str(home.database),
            todo="Install the version that wrote it, or a newer one",
        )
    return found


def draft(home: Home, *, copy: bool) -> Path:
    """Return the path of a new draft, with a copy of the published file in it where asked for."""
    path = home.path / f"{DRAFT}{world.new_id()}.duckdb"
    if copy:
        create(path)
        shutil.copyfile(home.database, path)
    return path


def clear_drafts(home: Home) -> None:
    """Delete what ingesters that were killed left behind; the caller holds the lock, so nobody uses it."""
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
) -> Generation:
    """Make a draft, closed and whole, the published file in place of another; return what it is now.

    Raises:
        OSError: it could not be made durable; what was published before still is.
    """
    path.chmod(0o400)
    _sync(path)
    found = path.stat()
    before = generations(home)
    generation = Generation(
        number=1 + max((g.number for g in before), default=0),
        bytes=found.st_size,
        digest=file_digest(path),
        modified_ns=found.st_mtime_ns,
        published_ns=world.now(),
        facts_bytes=facts_bytes,
        read=dict(read or {}),
    )
    _write_manifest(home, [generation, replaced] if replaced else [generation])
    _move(_wal(home), _aside(home, ".wal"))
    path.replace(home.database)
    sync_directory(home.path)
    return generation


def set_aside(home: Home, place: Path | None = None) -> Path:
    """Rename the published file out of the way, and return its new place."""
    place = place or _aside(home)
    _move(_wal(home), place.with_name(f"{place.name}.wal"))
    home.database.rename(place)
    sync_directory(home.path)
    return place


def file_digest(path: Path) -> str:
    """Return the digest of a file, in the form of `records.canonical.digest`."""
    with path.open("rb") as file:
        hashed = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
    return "b2:" + hashed.hexdigest()


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, without a final stop."""
    return str(error).partition("\n")[0].rstrip(".")


def _wal(home: Home) -> Path:
    """Return where DuckDB keeps what a client wrote and did not check in; a generation has none."""
    return home.database.with_name(f"{home.database.name}.wal")


def _aside(home: Home, ending: str = "") -> Path:
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
        todo="It was left as it is: move it away, or name another home with --home",
    )
