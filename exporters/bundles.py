"""Writes bundles: each bundle contains sessions of a home in one portable file.

Facts are copied unchanged, but without references to content if content is left out. Lines of content are decrypted,
and organization IDs are removed from values that the provider signed. The ID of a session's segment is a digest of its
facts, so the same session always results in the same bytes.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentobs.errors import RecordingError, UsageError
from agentobs.importers.bundle.container import Money, Writer, segment_of
from agentobs.importers.bundle.validation import CONTENT_FIELDS, KINDS
from agentobs.recording.journal import segments
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import (
    Damage,
    content_path,
    facts_path,
    file_exists,
    line_of,
    read,
)
from agentobs.recording.vault.body_deltas import rebuild
from agentobs.recording.vault.content_lines import text_of
from agentobs.recording.vault.encryption import decrypted_line
from agentobs.recording.vault.vault import Vault, text_bytes
from agentobs.store.port import Store
from exporters.new_files import new_file

FindSecrets = Callable[[str, dict[str, Any]], Iterable[str]]
"""Searches one line of content, given its kind and the line, and returns descriptions of possible secrets."""
Clean = Callable[[bytes], bytes]
"""Removes organization IDs from a text without changing its length."""

KEPT_BODIES = 32
"""The number of request bodies in memory. Our choice: twice as many as a recorder can refer back to."""
FINDINGS_MAX = 20
"""The maximum number of reported findings. Our choice."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One session of a written bundle."""

    session_id: str
    name: str
    has_content: bool
    opted_in: bool
    """Whether the session was recorded with `content="export"`."""
    plain_bytes: int
    packed_bytes: int


@dataclass(frozen=True, slots=True)
class _Session:
    """A session to write."""

    session_id: str
    name: str
    status: str
    mode: str | None
    """The content mode; None if the start of the session is missing."""
    segment_ids: tuple[str, ...]


def pack(
    store: Store,
    session_ids: Sequence[str],
    path: Path,
    *,
    with_content: bool = False,
    find_secrets: FindSecrets = lambda *_: (),
    clean: Clean = lambda text: text,
    force: bool = False,
) -> tuple[str, list[Packed]]:
    """Write sessions into a bundle; return its digest and its sessions.

    Args:
        store: the store of the home that contains the sessions.
        session_ids: the full IDs of the sessions.
        path: the file. Only its owner can read it, and it appears only when it is complete.
        with_content: whether to include prompts, responses and results.
        find_secrets: searches content for secrets again; if it finds one, nothing is written.
        clean: see `Clean`; only for content.
        force: replace an existing file.

    Raises:
        UsageError: a session is still running, or the file cannot be written.
        RecordingError: content is requested, but is missing or contains a possible secret.
    """
    home = store.home
    sessions = [_session(store, each) for each in dict.fromkeys(session_ids)]
    packed: list[Packed] = []
    with new_file(path, force=force) as draft, draft.open("wb") as out:
        writer = Writer(out)
        for each in sessions:
            segment_id, began_ns = _digest(_facts(home, each, with_content), with_content)
            lines = _lines(segment_id, _facts(home, each, with_content), began_ns)
            entries = [writer.add(each.session_id, segment_id, "facts", lines)]
            if with_content:
                contents = _checked_for_secrets(
                    _content_lines(home, each, clean), each, find_secrets
                )
                lines = _lines(segment_id, contents, began_ns)
                entries.append(writer.add(each.session_id, segment_id, "content", lines))
            plain, size = sum(e.plain for e in entries), sum(e.packed for e in entries)
            opted_in = each.mode == "export"
            packed.append(Packed(each.session_id, each.name, with_content, opted_in, plain, size))
        digest = writer.close([_recorded_cost(store, each.session_id) for each in sessions])
    return digest, packed


def _session(store: Store, session_id: str) -> _Session:
    [(name, status, mode)] = store.rows("internal/session_to_bundle", session_id=session_id).rows
    if status is None:
        raise UsageError("no session with this ID", where=session_id)
    if status == "running":
        raise UsageError(
            f"session {session_id} is still running",
            todo="Bundle it after it has ended, because later records would be missing",
        )
    segments_held = store.rows("session_segments", session_id=session_id).rows
    segment_ids = tuple(str(row[0]) for row in segments_held)
    return _Session(session_id, name or session_id, status, mode, segment_ids)


def _facts(
    home: Home, session: _Session, with_content: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and value of each fact of a session, and a `lost` line for each segment with missing facts."""
    id_bytes = session.session_id.encode()
    for segment_id in session.segment_ids:
        is_complete = True
        for item in read(facts_path(home, segment_id)):
            if isinstance(item, Damage) or item.kind == "lost":
                is_complete = False
            elif item.kind in KINDS and id_bytes in item.payload:
                value = item.value()
                if value.get("session_id") == session.session_id:
                    yield item.kind, value if with_content else _without_content(item.kind, value)
        if not is_complete:
            yield "lost", {"reason": "could not be read back on the machine that recorded it"}


def _without_content(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return a fact without references to content; the content mode stays, because it describes the recording."""
    return {
        name: None
        if name in CONTENT_FIELDS and (name, kind) != ("content", "session_starts")
        else inner
        for name, inner in value.items()
    }


def _digest(records: Iterable[tuple[str, dict[str, Any]]], with_content: bool) -> tuple[str, int]:
    """Return the segment ID for these facts, and the earliest time in them."""
    began_ns = 0

    def payloads() -> Iterator[tuple[str, bytes]]:
        nonlocal began_ns
        for kind, value in records:
            began_ns = began_ns or value.get("started_ns") or 0
            yield kind, json_of(value)

    return segment_of(payloads(), with_content), began_ns


def json_of(value: dict[str, Any]) -> bytes:
    """Return a value as a line of the journal."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def _lines(
    segment_id: str, records: Iterable[tuple[str, dict[str, Any]]], opened_ns: int
) -> Iterator[bytes]:
    """Yield the lines of a segment file, including its first line and its seal."""
    seed, sequence = zlib.crc32(segment_id.encode()), 1
    first = {"format": segments.FORMAT, "segment_id": segment_id, "opened_ns": opened_ns}
    yield line_of(seed, 1, "segment", json_of(first))
    for kind, value in records:
        sequence += 1
        yield line_of(seed, sequence, kind, json_of(value))
    yield line_of(seed, sequence + 1, "seal", json_of({"lines": sequence}))


def _content_lines(
    home: Home, session: _Session, clean: Clean
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kind and the value of each content line of a session.

    Raises:
        RecordingError: the content is missing, or cannot be decrypted.
    """
    if session.mode == "off":
        raise RecordingError(
            f"session {session.session_id} was recorded without content",
            todo="Bundle it without --with-content: its costs, spans and events are complete",
        )
    if session.mode is None:
        raise _content_error(session, "its start is missing")
    id_bytes, found = session.session_id.encode(), 0
    for segment_id in session.segment_ids:
        path = content_path(home, segment_id)
        if not file_exists(path):
            continue
        cleaner = _Cleaner(Vault(home, segment_id, session.session_id), clean)
        for item in read(path):
            if isinstance(item, Damage):
                raise _content_error(session, f"the content is damaged at byte {item.start}")
            if item.kind == "pruned" and id_bytes in item.payload:
                raise _content_error(session, "the content was pruned")
            if id_bytes in item.payload and item.kind not in ("segment", "seal", "lost"):
                value = decrypted_line(item.value(), segment_id, str(path))
                if value.get("session_id") == session.session_id:
                    found += 1
                    yield item.kind, cleaner.clean_line(item.kind, value)
    if not found:
        raise _content_error(session, "there is no content")


def _content_error(session: _Session, why: str) -> RecordingError:
    return RecordingError(
        f"session {session.session_id}: {why}",
        todo="Bundle it without --with-content; agentobs verify shows what is damaged",
    )


class _Cleaner:
    """Cleans content line by line, so that each request can still be rebuilt from its base request."""

    def __init__(self, vault: Vault, clean: Clean) -> None:
        self._vault, self._clean = vault, clean
        self._bodies: OrderedDict[str, bytes] = OrderedDict()

    def clean_line(self, kind: str, value: dict[str, Any]) -> dict[str, Any]:
        text = text_bytes(value)
        cleaned = self._clean(text)
        if kind == "request":
            return self._request(value, cleaned)
        return value if cleaned == text else _with_text(value, cleaned)

    def _request(self, value: dict[str, Any], insert: bytes) -> dict[str, Any]:
        """Return a cleaned request. If it can no longer be rebuilt from its base, it contains the complete body."""
        content_id, base = value["content_id"], value["base"]
        expected = self._clean(self._vault.body(content_id))
        base_body = self._bodies.get(base) if base is not None else b""
        rebuilt = None
        if base_body is not None:
            rebuilt = rebuild(base_body, value["prefix"], value["suffix"], insert)
        self._bodies[content_id] = expected
        while len(self._bodies) > KEPT_BODIES:
            self._bodies.popitem(last=False)
        if rebuilt == expected:
            return _with_text(value, insert)
        return _with_text({**value, "base": None, "prefix": 0, "suffix": 0}, expected)


def _with_text(value: dict[str, Any], text: bytes) -> dict[str, Any]:
    rest = {name: inner for name, inner in value.items() if name not in ("text", "base64")}
    return {**rest, **text_of(text)}


def _checked_for_secrets(
    contents: Iterable[tuple[str, dict[str, Any]]], session: _Session, find_secrets: FindSecrets
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield content; at its end, raise an error if it contains a possible secret."""
    found: list[str] = []
    for kind, value in contents:
        if len(found) < FINDINGS_MAX:
            found += find_secrets(kind, value)
        yield kind, value
    if found:
        raise RecordingError(
            f"a possible secret was not redacted: {'; '.join(dict.fromkeys(found))}",
            where=f"session {session.session_id}",
            todo="Nothing was written. Bundle it without --with-content, or record the session again with a rule that "
            "finds it: agentobs.Options(redactors=...)",
        )


def _recorded_cost(store: Store, session_id: str) -> Money:
    [(usd, prices)] = store.rows("internal/session_cost", session_id=session_id).rows
    return Money(session_id, None if usd is None else f"{usd:f}", prices)
