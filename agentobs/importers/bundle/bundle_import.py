"""Importing a bundle: everything is validated first; then each session becomes a segment, completely or not at all.

A session that exists already, because it was recorded here or imported in another way, is not changed. A session that
was imported without content is replaced if the bundle has its content. Deleted sessions stay deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from agentobs import world
from agentobs.errors import AgentobsError, DamagedError, UsageError
from agentobs.importers.bundle import container
from agentobs.importers.bundle.container import Bundle, Entry, Money, segment_of
from agentobs.importers.bundle.validation import BadLine, Contents, Facts, check_fact, lines_of
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.recording.journal.segment_import import Landed, clear_staging, land
from agentobs.recording.journal.segments import content_path, facts_path, is_there, read
from agentobs.recording.vault.vault import read_session
from agentobs.records.facts import TABLES, SessionStart
from agentobs.store.backend import open_store

Replace = Callable[[Home, str], None]
"""Removes everything that was recorded of a session, by its ID, from a home and its store."""

State = Literal["new", "replaced", "there", "kept", "deleted"]
"""It was imported; it replaced a session without content; it was imported before; a session with its ID exists
that did not come from this bundle, and is kept; it was deleted here, and stays deleted.
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome for one session of a bundle."""

    session_id: str
    state: State
    has_content: bool
    money: Money | None
    """Its cost on the machine where it was recorded."""


@dataclass(slots=True)
class BundleReport:
    """What an import did."""

    digest: str
    sessions: list[Taken] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Known:
    """A session that was imported from a bundle earlier."""

    segment_id: str
    has_content: bool
    becomes: str | None = None
    """The segment that replaces it, while that is in progress."""


def import_bundle(
    home: Home,
    path: Path,
    *,
    take_out: Replace,
    digest: str | None = None,
    told: Callable[[Taken], None] = lambda _: None,
) -> BundleReport:
    """Import the sessions of a bundle; sessions that were imported before are not changed.

    Args:
        home: the home that receives them.
        path: the bundle.
        take_out: removes a session from the home that was imported without its content.
        digest: the digest that `agentobs bundle` printed; None if it is unknown.
        told: is called with each session when it is done.

    Raises:
        ForeignError: it is not a bundle, or has a newer version.
        DamagedError: the bundle is damaged or invalid; nothing was imported.
        UsageError: its digest differs.
        OSError: it cannot be read, or the home cannot be written; finished sessions are kept.
    """
    bundle = container.open_bundle(path)
    if digest is not None and digest != bundle.digest:
        raise UsageError(
            f"the digest of the bundle is {bundle.digest}",
            where=str(path),
            todo="It does not match the expected digest: nothing was imported",
        )
    clear_staging(home)
    staging = Home(home.path / f".landing-{world.new_id()}")
    staging.segments.mkdir(mode=0o700, parents=True)
    staging.path.chmod(0o700)
    try:
        for session_id in bundle.session_ids:
            _check(bundle, session_id, staging)
        here, gone = _here(home, bundle.session_ids)
        report = BundleReport(bundle.digest)
        for session_id in bundle.session_ids:
            is_here, is_gone = session_id in here, session_id in gone - here
            done = _take(home, bundle, session_id, staging, is_here, is_gone, take_out)
            report.sessions.append(done)
            told(done)
    finally:
        shutil.rmtree(staging.path, ignore_errors=True)
    return report


def _check(bundle: Bundle, session_id: str, staging: Home) -> None:
    """Extract the files of a session from a bundle, and validate every line.

    Raises:
        DamagedError: a line is invalid.
    """
    facts, content = bundle.of(session_id, "facts"), bundle.of(session_id, "content")
    assert facts is not None
    found, contents = Facts(), Contents(session_id)
    with _named(bundle, facts):
        told = facts_path(staging, facts.segment_id)
        container.take_out(bundle, facts, told.with_name(told.name + ".zst"))
        segment_id = segment_of(_checked(staging, session_id, facts, found), content is not None)
        if segment_id != facts.segment_id:
            raise BadLine("its facts do not match the ID of its segment")
        if found.starts > 1:
            raise BadLine("the session starts twice")
    if content is None:
        if found.named:
            raise _bad(bundle, facts, "it references content that is missing")
        return
    with _named(bundle, content):
        said = content_path(staging, content.segment_id)
        container.take_out(bundle, content, said.with_name(said.name + ".zst"))
        for line in lines_of(read(said)):
            contents.check(line)
        contents.check_whole(found)
        # Read as `freeze` would read it, except for the requests, whose sizes are known to be right.
        read_session(staging, session_id, [content.segment_id], bodies=())


def _checked(
    staging: Home, session_id: str, entry: Entry, found: Facts
) -> Iterator[tuple[str, bytes]]:
    for line in lines_of(read(facts_path(staging, entry.segment_id))):
        check_fact(line, session_id, found)
        yield line.kind, line.payload


class _named:
    """Names the entry in which an error was found."""

    def __init__(self, bundle: Bundle, entry: Entry) -> None:
        self._bundle, self._entry = bundle, entry

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, AgentobsError) and error.where != str(self._bundle.path):
            raise _bad(self._bundle, self._entry, error.found) from error
        if isinstance(error, ValueError | KeyError | TypeError | AttributeError | RecursionError):
            raise _bad(self._bundle, self._entry, container.told_of(error)) from error


def _bad(bundle: Bundle, entry: Entry, found: str) -> DamagedError:
    return DamagedError(
        f"{entry}: {found}",
        where=str(bundle.path),
        todo="Nothing was imported; request the bundle again",
    )


def _here(home: Home, session_ids: list[str]) -> tuple[set[str], set[str]]:
    """Return which sessions exist in a home, and which were deleted there."""
    with open_store(home) as store:
        here = store.rows("internal/sessions_present", session_ids=session_ids).rows
        gone = store.rows("internal/deleted_sessions").rows
    return {row[0] for row in here}, {row[0] for row in gone}


def _take(
    home: Home,
    bundle: Bundle,
    session_id: str,
    staging: Home,
    is_here: bool,
    is_gone: bool,
    take_out: Replace,
) -> Taken:
    """Import one session, unless it exists or was deleted here."""
    facts, content = bundle.of(session_id, "facts"), bundle.of(session_id, "content")
    assert facts is not None
    has_content = content is not None
    money = next((each for each in bundle.money if each.session_id == session_id), None)
    known = _known(home, session_id)
    state: State = "new"
    was_taken = known is not None and known.segment_id == facts.segment_id
    if is_gone and (known is None or known.becomes != facts.segment_id):
        return Taken(session_id, "deleted", has_content, money)
    if was_taken or is_there(facts_path(home, facts.segment_id)):
        state = "there"
    elif known is not None and has_content and not known.has_content:
        state = "replaced"
        if is_here:
            # If the process dies in between, the session does not count as deleted, and the next import continues.
            _remember(home, session_id, replace(known, becomes=facts.segment_id))
            take_out(home, session_id)
    elif is_here or known is not None:
        state = "kept"
    if state in ("new", "replaced"):
        land(home, facts.segment_id, _landed(staging, session_id, facts.segment_id, has_content))
    if state != "kept":
        _remember(home, session_id, _Known(facts.segment_id, has_content))
    return Taken(session_id, state, has_content, money)


def _landed(staging: Home, session_id: str, segment_id: str, has_content: bool) -> Iterator[Landed]:
    """Yield the lines of a session's segment, content first."""
    if has_content:
        for line in lines_of(read(content_path(staging, segment_id))):
            yield Landed(line.kind, line.value(), is_content=True)
    else:
        # A reader of the content then learns that it was pruned, not that it is damaged.
        gone = {"from": 2, "sessions": [session_id], "pruned_ns": world.now()}
        yield Landed("pruned", gone, is_content=True)
    for line in lines_of(read(facts_path(staging, segment_id))):
        value = line.value()
        if line.kind == TABLES[SessionStart]:
            # Which telemetry was sent there says nothing about what was sent from here.
            value = {**value, "live_exports": None}
        yield Landed(line.kind, value, is_content=False)


def _folder(home: Home) -> Path:
    return home.path / "imports" / "bundles"


def _known(home: Home, session_id: str) -> _Known | None:
    try:
        told = json.loads((_folder(home) / f"{_name(session_id)}.json").read_text("utf-8"))
        return _Known(str(told["segment_id"]), bool(told["has_content"]), told.get("becomes"))
    except FileNotFoundError:
        return None


def _name(session_id: str) -> str:
    """Return a session ID as a file name: a label may contain a path."""
    return hashlib.blake2b(session_id.encode(), digest_size=16).hexdigest()


def _remember(home: Home, session_id: str, known: _Known) -> None:
    folder = _folder(home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    told = asdict(known)
    place = folder / f"{_name(session_id)}.json"
    draft = folder / f".{world.new_id()}"
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(told, file)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(place)
    sync_directory(folder)
