"""Bundle import: validate the complete bundle, then import each session as a segment, completely or not at all.

A session that already exists in the home, because it was recorded or imported there, is not changed. Exception: a
session that was imported without content is replaced if the bundle contains its content. Deleted sessions are not
imported again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from agentobs import world
from agentobs.errors import AgentobsError, DamagedError, UsageError
from agentobs.importers.bundle import container
from agentobs.importers.bundle.container import Bundle, Entry, Money, segment_of
from agentobs.importers.bundle.validation import BadLine, Contents, Facts, check_fact, lines_of
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.recording.journal.segment_import import ImportedLine, clear_staging, import_segment
from agentobs.recording.journal.segments import content_path, facts_path, file_exists, read
from agentobs.recording.vault.vault import read_session
from agentobs.records.facts import TABLES, SessionStart
from agentobs.store.backend import open_store

RemoveSession = Callable[[Home, str], None]
"""A function that removes all records of a session, given its ID, from a home and its store."""

State = Literal["new", "replaced", "there", "kept", "deleted"]
"""`new`: imported; `replaced`: replaced a session without content; `there`: already imported; `kept`: the home has a
different session with this ID, which was kept; `deleted`: deleted earlier in this home, so not imported.
"""


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """The outcome for one session of a bundle."""

    session_id: str
    state: State
    has_content: bool
    money: Money | None
    """Its cost on the machine where it was recorded."""


@dataclass(slots=True)
class BundleReport:
    """The result of an import."""

    digest: str
    sessions: list[ImportedSession] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Known:
    """A session that was imported from a bundle before."""

    segment_id: str
    """The ID of its segment; empty until its first import has finished."""
    has_content: bool
    becomes: str | None = None
    """While the session is being replaced, the ID of the new segment; else None."""
    file: str | None = None
    """The name of the bundle file; None if it was imported before names were stored."""
    imported_ns: int | None = None
    """When it was imported; None if it was imported before times were stored."""


@dataclass(frozen=True, slots=True)
class BundleOrigin:
    """The bundle from which a session was imported."""

    file: str | None
    """The name of the file, without its folder; None if it is unknown."""
    imported_ns: int | None
    """The time of the import, in nanoseconds since 1970; None if it is unknown."""


def bundle_origin(home: Home, session_id: str) -> BundleOrigin | None:
    """Return the bundle from which a session was imported; None if it was not imported from a bundle."""
    known = _known(home, session_id)
    return None if known is None else BundleOrigin(known.file, known.imported_ns)


def import_bundle(
    home: Home,
    path: Path,
    *,
    remove_session: RemoveSession,
    digest: str | None = None,
    on_imported: Callable[[ImportedSession], None] = lambda _: None,
) -> BundleReport:
    """Import the sessions of a bundle; sessions that were imported before are not changed.

    Args:
        home: the home into which they are imported.
        path: the bundle.
        remove_session: a function that removes a session from the home; called for a session that was imported without
            content, before it is replaced.
        digest: the digest that `agentobs bundle` printed; None if it is unknown.
        on_imported: a function that is called with the outcome of each session when the session is finished.

    Raises:
        ForeignError: the file is not a bundle, or has a newer version.
        DamagedError: the bundle is damaged or invalid; nothing was imported.
        UsageError: the bundle's digest is not `digest`.
        OSError: the bundle cannot be read, or the home cannot be written; finished sessions are kept.
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
        present, deleted = _present_and_deleted(home, bundle.session_ids)
        report = BundleReport(bundle.digest)
        for session_id in bundle.session_ids:
            outcome = _import_session(
                home,
                bundle,
                session_id,
                staging,
                is_present=session_id in present,
                is_deleted=session_id in deleted - present,
                remove_session=remove_session,
            )
            report.sessions.append(outcome)
            on_imported(outcome)
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
    with _error_context(bundle, facts):
        path = facts_path(staging, facts.segment_id)
        container.extract(bundle, facts, path.with_name(path.name + ".zst"))
        segment_id = segment_of(_checked(staging, session_id, facts, found), content is not None)
        if segment_id != facts.segment_id:
            raise BadLine("its facts do not match the ID of its segment")
        if found.starts > 1:
            raise BadLine("the session starts twice")
    if content is None:
        if found.named:
            raise _bad(bundle, facts, "it references content that is missing")
        return
    with _error_context(bundle, content):
        path = content_path(staging, content.segment_id)
        container.extract(bundle, content, path.with_name(path.name + ".zst"))
        for line in lines_of(read(path)):
            contents.check(line)
        contents.check_consistency(found)
        # Read the session as `freeze` would, but skip request bodies: their sizes and references were checked above.
        read_session(staging, session_id, [content.segment_id], bodies=())


def _checked(
    staging: Home, session_id: str, entry: Entry, found: Facts
) -> Iterator[tuple[str, bytes]]:
    for line in lines_of(read(facts_path(staging, entry.segment_id))):
        check_fact(line, session_id, found)
        yield line.kind, line.payload


class _error_context:
    """A context manager that adds the name of an entry to errors."""

    def __init__(self, bundle: Bundle, entry: Entry) -> None:
        self._bundle, self._entry = bundle, entry

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, AgentobsError) and error.where != str(self._bundle.path):
            raise _bad(self._bundle, self._entry, error.found) from error
        if isinstance(error, ValueError | KeyError | TypeError | AttributeError | RecursionError):
            raise _bad(self._bundle, self._entry, container.error_text(error)) from error


def _bad(bundle: Bundle, entry: Entry, found: str) -> DamagedError:
    return DamagedError(
        f"{entry}: {found}",
        where=str(bundle.path),
        todo="Nothing was imported; request the bundle again",
    )


def _present_and_deleted(home: Home, session_ids: list[str]) -> tuple[set[str], set[str]]:
    """Return the sessions that exist in a home, and the sessions that were deleted there."""
    with open_store(home) as store:
        present = store.rows("internal/sessions_present", session_ids=session_ids).rows
        deleted = store.rows("internal/deleted_sessions").rows
    return {row[0] for row in present}, {row[0] for row in deleted}


def _import_session(
    home: Home,
    bundle: Bundle,
    session_id: str,
    staging: Home,
    *,
    is_present: bool,
    is_deleted: bool,
    remove_session: RemoveSession,
) -> ImportedSession:
    """Import one session, unless it already exists in the home or was deleted there."""
    facts, content = bundle.of(session_id, "facts"), bundle.of(session_id, "content")
    assert facts is not None
    has_content = content is not None
    money = next((each for each in bundle.money if each.session_id == session_id), None)
    known = _known(home, session_id)
    if known is not None and not known.segment_id:
        known = None  # its import has not finished
    name = bundle.path.name
    state: State = "new"
    was_imported = known is not None and known.segment_id == facts.segment_id
    if is_deleted and (known is None or known.becomes != facts.segment_id):
        return ImportedSession(session_id, "deleted", has_content, money)
    if was_imported or file_exists(facts_path(home, facts.segment_id)):
        state = "there"
    elif known is not None and has_content and not known.has_content:
        state = "replaced"
        if is_present:
            # If the process dies after the removal, this entry tells the next import to continue, although the session
            # then looks deleted.
            _remember(home, session_id, replace(known, becomes=facts.segment_id))
            remove_session(home, session_id)
    elif is_present or known is not None:
        state = "kept"
    if state == "new":
        # If the process dies after the import, this entry tells where the session came from.
        _remember(home, session_id, _Known("", has_content, None, name, world.now()))
    if state in ("new", "replaced"):
        import_segment(
            home,
            facts.segment_id,
            _imported_lines(staging, session_id, facts.segment_id, has_content),
        )
    is_remembered = was_imported and known is not None and known.becomes is None
    if state != "kept" and not is_remembered:
        _remember(home, session_id, _Known(facts.segment_id, has_content, None, name, world.now()))
    return ImportedSession(session_id, state, has_content, money)


def _imported_lines(
    staging: Home, session_id: str, segment_id: str, has_content: bool
) -> Iterator[ImportedLine]:
    """Yield the lines of a session's segment, content first."""
    if has_content:
        for line in lines_of(read(content_path(staging, segment_id))):
            yield ImportedLine(line.kind, line.value(), is_content=True)
    else:
        # Readers of the content then report that it was pruned, not that it is damaged.
        value = {"from": 2, "sessions": [session_id], "pruned_ns": world.now()}
        yield ImportedLine("pruned", value, is_content=True)
    for line in lines_of(read(facts_path(staging, segment_id))):
        value = line.value()
        if line.kind == TABLES[SessionStart]:
            # This field lists the telemetry that was sent from the other machine; nothing was sent from this one.
            value = {**value, "live_exports": None}
        yield ImportedLine(line.kind, value, is_content=False)


def _folder(home: Home) -> Path:
    return home.path / "imports" / "bundles"


def _known(home: Home, session_id: str) -> _Known | None:
    try:
        value = json.loads((_folder(home) / f"{_name(session_id)}.json").read_text("utf-8"))
        return _Known(**{each.name: value.get(each.name) for each in fields(_Known)})
    except FileNotFoundError:
        return None


def _name(session_id: str) -> str:
    """Return a file name for a session ID. A digest is used because an ID may contain slashes."""
    return hashlib.blake2b(session_id.encode(), digest_size=16).hexdigest()


def _remember(home: Home, session_id: str, known: _Known) -> None:
    folder = _folder(home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    value = asdict(known)
    place = folder / f"{_name(session_id)}.json"
    draft = folder / f".{world.new_id()}"
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(place)
    sync_directory(folder)
