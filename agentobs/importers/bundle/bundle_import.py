"""Importing a bundle: all of it is looked at first; then each session becomes a segment, as a whole or not at all.

A session that is here already, because it was recorded here or came another way, stays as it is. One that came in a
bundle before and comes with its content now takes the place of what was without. What was deleted stays deleted.
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
from agentobs.store.duckdb.connection import connect

Replace = Callable[[Home, str], None]
"""Takes all that was recorded of a session, by its id, out of a home and its store."""

State = Literal["new", "replaced", "there", "kept", "deleted"]
"""It was imported; it took the place of one without content; it had been imported before; a session of its id is here
that did not come from this bundle, and stays; it was deleted here, and stays so."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of one session of a bundle."""

    session_id: str
    state: State
    has_content: bool
    money: Money | None
    """What it cost where it was recorded."""


@dataclass(slots=True)
class BundleReport:
    """What an import did."""

    digest: str
    sessions: list[Taken] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Known:
    """A session that came in a bundle before."""

    segment_id: str
    has_content: bool
    becomes: str | None = None
    """The segment that takes its place, while that is done."""


def import_bundle(
    home: Home,
    path: Path,
    *,
    take_out: Replace,
    digest: str | None = None,
    told: Callable[[Taken], None] = lambda _: None,
) -> BundleReport:
    """Import the sessions of a bundle; what was imported before changes nothing.

    Args:
        home: where to.
        path: the bundle.
        take_out: takes a session out of the home that had come without its content.
        digest: what `agentobs bundle` said when it was made; None where nobody knows.
        told: hears of each session when it is done.

    Raises:
        ForeignError: it is no bundle, or one of a newer version.
        DamagedError: something in it is not as it was written, or cannot be; nothing was imported.
        UsageError: its digest is another one.
        OSError: it cannot be read, or the home cannot be written; sessions that are done stay.
    """
    bundle = container.open_bundle(path)
    if digest is not None and digest != bundle.digest:
        raise UsageError(
            f"the digest of the bundle is {bundle.digest}",
            where=str(path),
            todo="It is not the one that was meant: nothing was imported",
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
    """Take the files of a session out of a bundle, and look at every line.

    Raises:
        DamagedError: one of them is not as it was written.
    """
    facts, content = bundle.of(session_id, "facts"), bundle.of(session_id, "content")
    assert facts is not None
    found, contents = Facts(), Contents(session_id)
    with _named(bundle, facts):
        told = facts_path(staging, facts.segment_id)
        container.take_out(bundle, facts, told.with_name(told.name + ".zst"))
        segment_id = segment_of(_checked(staging, session_id, facts, found), content is not None)
        if segment_id != facts.segment_id:
            raise BadLine("its facts are not those that its segment is named for")
        if found.starts > 1:
            raise BadLine("the session starts twice")
    if content is None:
        if found.named:
            raise _bad(bundle, facts, "it names content that is not there")
        return
    with _named(bundle, content):
        said = content_path(staging, content.segment_id)
        container.take_out(bundle, content, said.with_name(said.name + ".zst"))
        for line in lines_of(read(said)):
            contents.check(line)
        contents.check_whole(found)
        # Read as a freeze would read it, but for the requests, whose sizes are known to be right.
        read_session(staging, session_id, [content.segment_id], bodies=())


def _checked(
    staging: Home, session_id: str, entry: Entry, found: Facts
) -> Iterator[tuple[str, bytes]]:
    for line in lines_of(read(facts_path(staging, entry.segment_id))):
        check_fact(line, session_id, found)
        yield line.kind, line.payload


class _named:
    """Says of which entry it is that something is wrong with."""

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
        todo="Nothing was imported; ask for the bundle once more",
    )


def _here(home: Home, session_ids: list[str]) -> tuple[set[str], set[str]]:
    """Return which of some sessions are in a home, and which were deleted there at some time."""
    sql = """
        SELECT DISTINCT session_id FROM (
            SELECT session_id FROM session_starts UNION ALL SELECT session_id FROM attempts
            UNION ALL SELECT session_id FROM events UNION ALL SELECT session_id FROM span_starts
        ) WHERE session_id IN (SELECT unnest($sessions))
    """
    deleted = "SELECT DISTINCT session_id FROM prunings WHERE what = 'all'"
    with connect(home) as connection:
        here = connection.execute(sql, {"sessions": session_ids}).fetchall()
        gone = connection.execute(deleted).fetchall()
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
    """Import one session, where it is not here and was not deleted here."""
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
            # Where this dies in between, it was not deleted: the next import goes on.
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
        # Whoever asks for what was said hears that it is not there any more, not that it is damaged.
        gone = {"from": 2, "sessions": [session_id], "pruned_ns": world.now()}
        yield Landed("pruned", gone, is_content=True)
    for line in lines_of(read(facts_path(staging, segment_id))):
        value = line.value()
        if line.kind == TABLES[SessionStart]:
            # Where telemetry went there says nothing of what was sent from here.
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
    """Return a session's id as the name of a file: a label may hold what leads elsewhere."""
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
