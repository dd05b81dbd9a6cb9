"""Packing: sessions of a home become a bundle.

Facts go as they are; where content stays behind, nothing names it any more. Of content each line goes as it was
written, opened where it was sealed, without the ids of organisations that are readable in what a provider has sealed.
The id of a session's segment is a digest of its facts, so that the same session gives the same entry, byte for byte.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from agentobs.errors import RecordingError, UsageError
from agentobs.importers.bundle.container import Money, Writer, segment_of
from agentobs.importers.bundle.validation import CONTENT_FIELDS, KINDS
from agentobs.recording.journal import segments
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Damage, content_path, facts_path, is_there, read
from agentobs.recording.vault.body_deltas import rebuild
from agentobs.recording.vault.content_lines import text_of
from agentobs.recording.vault.encryption import opened
from agentobs.recording.vault.vault import Vault, text_bytes
from agentobs.store.duckdb.segment_rewrite import line_of
from agentobs.store.named_queries import named
from exporters.new_files import new_file

Look = Callable[[str, dict[str, Any]], Iterable[str]]
"""Looks at one line of content (its kind, the line) and tells what in it looks like a secret."""
Clean = Callable[[bytes], bytes]
"""Takes the ids of organisations out of a text; its length stays."""

KEPT_BODIES = 32
"""How many requests are at hand to be compared with; a recorder goes back 16."""
FOUND_MAX = 20
"""How many findings are told."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One session of a bundle that was written."""

    session_id: str
    name: str
    has_content: bool
    opted_in: bool
    """Whether the session said itself that its content may leave: `content="export"`."""
    plain_bytes: int
    packed_bytes: int


@dataclass(frozen=True, slots=True)
class _Session:
    """A session that is to be packed."""

    session_id: str
    name: str
    status: str
    mode: str | None
    """Where its content may go; None where its start is not there."""
    segment_ids: tuple[str, ...]


def pack(
    home: Home,
    connection: duckdb.DuckDBPyConnection,
    session_ids: Sequence[str],
    path: Path,
    *,
    with_content: bool = False,
    look: Look = lambda *_: (),
    clean: Clean = lambda text: text,
    force: bool = False,
) -> tuple[str, list[Packed]]:
    """Write sessions into a bundle; return its digest, and what is in it.

    Args:
        home: where they were recorded.
        connection: to the store of that home.
        session_ids: their full ids.
        path: the file, for its owner alone; there when it is whole.
        with_content: whether what was said goes along.
        look: looks once more for secrets in content; where it finds any, nothing is written.
        clean: see `Clean`; for content alone.
        force: replace the file where it exists.

    Raises:
        UsageError: a session still runs, or the file cannot be written there.
        RecordingError: content is wanted, and is not there or holds something that looks like a secret.
    """
    sessions = [_session(connection, each) for each in dict.fromkeys(session_ids)]
    packed: list[Packed] = []
    with new_file(path, force=force) as draft, draft.open("wb") as out:
        writer = Writer(out)
        for each in sessions:
            segment_id, began_ns = _digest(_facts(home, each, with_content), with_content)
            lines = _lines(segment_id, _facts(home, each, with_content), began_ns)
            entries = [writer.add(each.session_id, segment_id, "facts", lines)]
            if with_content:
                said = _looked_at(_contents(home, each, clean), each, look)
                lines = _lines(segment_id, said, began_ns)
                entries.append(writer.add(each.session_id, segment_id, "content", lines))
            plain, size = sum(e.plain for e in entries), sum(e.packed for e in entries)
            opted_in = each.mode == "export"
            packed.append(Packed(each.session_id, each.name, with_content, opted_in, plain, size))
        digest = writer.close([_money(connection, each.session_id) for each in sessions])
    return digest, packed


def _session(connection: duckdb.DuckDBPyConnection, session_id: str) -> _Session:
    sql = """
        SELECT any_value(s.name), any_value(s.status), any_value(t.content)
        FROM sessions AS s LEFT JOIN session_starts AS t USING (session_id) WHERE session_id = ?
    """
    row = connection.execute(sql, [session_id]).fetchone()
    if row is None or row[1] is None:
        raise UsageError("no session of that id", where=session_id)
    if row[1] == "running":
        raise UsageError(
            f"session {session_id} still runs",
            todo="Bundle it when it has ended: what comes later would be missing",
        )
    held = named(connection, "session_segments", session_id=session_id).fetchall()
    return _Session(
        session_id, row[0] or session_id, row[1], row[2], tuple(str(r[0]) for r in held)
    )


def _facts(
    home: Home, session: _Session, with_content: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the facts of a session, kind and value; a line `lost` where some may be missing."""
    mark = session.session_id.encode()
    for segment_id in session.segment_ids:
        is_whole = True
        for item in read(facts_path(home, segment_id)):
            if isinstance(item, Damage) or item.kind == "lost":
                is_whole = False
            elif item.kind in KINDS and mark in item.payload:
                value = item.value()
                if value.get("session_id") == session.session_id:
                    yield item.kind, value if with_content else _without_content(item.kind, value)
        if not is_whole:
            yield "lost", {"reason": "did not read back where it was recorded"}


def _without_content(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return a fact that names no content; where that may go stays, for it says what was recorded."""
    return {
        name: None
        if name in CONTENT_FIELDS and (name, kind) != ("content", "session_starts")
        else inner
        for name, inner in value.items()
    }


def _digest(told: Iterable[tuple[str, dict[str, Any]]], with_content: bool) -> tuple[str, int]:
    """Return the id for a segment of these facts, and when the first of them that has a time began."""
    began_ns = 0

    def payloads() -> Iterator[tuple[str, bytes]]:
        nonlocal began_ns
        for kind, value in told:
            began_ns = began_ns or value.get("started_ns") or 0
            yield kind, json_of(value)

    return segment_of(payloads(), with_content), began_ns


def json_of(value: dict[str, Any]) -> bytes:
    """Return a value as a line of the journal has it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def _lines(
    segment_id: str, told: Iterable[tuple[str, dict[str, Any]]], opened_ns: int
) -> Iterator[bytes]:
    """Yield the lines of a segment file, its first one and its seal included."""
    seed, sequence = zlib.crc32(segment_id.encode()), 1
    first = {"format": segments.FORMAT, "segment_id": segment_id, "opened_ns": opened_ns}
    yield line_of(seed, 1, "segment", json_of(first))
    for kind, value in told:
        sequence += 1
        yield line_of(seed, sequence, kind, json_of(value))
    yield line_of(seed, sequence + 1, "seal", json_of({"lines": sequence}))


def _contents(home: Home, session: _Session, clean: Clean) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the content of a session, kind and line.

    Raises:
        RecordingError: it is not there, or does not open.
    """
    if session.mode == "off":
        raise RecordingError(
            f"session {session.session_id} was recorded without its content",
            todo="Bundle it without --with-content: its money, spans and events are there",
        )
    if session.mode is None:
        raise _gone(session, "its start is not there")
    mark, found = session.session_id.encode(), 0
    for segment_id in session.segment_ids:
        path = content_path(home, segment_id)
        if not is_there(path):
            continue
        cleaner = _Cleaner(Vault(home, segment_id, session.session_id), clean)
        for item in read(path):
            if isinstance(item, Damage):
                raise _gone(session, f"the content is damaged at byte {item.start}")
            if item.kind == "pruned" and mark in item.payload:
                raise _gone(session, "the content was pruned")
            if mark in item.payload and item.kind not in ("segment", "seal", "lost"):
                value = opened(item.value(), segment_id, str(path))
                if value.get("session_id") == session.session_id:
                    found += 1
                    yield item.kind, cleaner.cleaned(item.kind, value)
    if not found:
        raise _gone(session, "there is no content")


def _gone(session: _Session, why: str) -> RecordingError:
    return RecordingError(
        f"session {session.session_id}: {why}",
        todo="Bundle it without --with-content; agentobs verify tells what is damaged",
    )


class _Cleaner:
    """Cleans content line by line, so that each request is still put together from the one that it differs from."""

    def __init__(self, vault: Vault, clean: Clean) -> None:
        self._vault, self._clean = vault, clean
        self._bodies: OrderedDict[str, bytes] = OrderedDict()

    def cleaned(self, kind: str, value: dict[str, Any]) -> dict[str, Any]:
        text = text_bytes(value)
        cleaned = self._clean(text)
        if kind == "request":
            return self._request(value, cleaned)
        return value if cleaned == text else _with_text(value, cleaned)

    def _request(self, value: dict[str, Any], insert: bytes) -> dict[str, Any]:
        """Return a request; where something begins in what it repeats and ends in what is new, it goes whole."""
        content_id, base = value["content_id"], value["base"]
        wanted = self._clean(self._vault.body(content_id))
        before = self._bodies.get(base) if base is not None else b""
        got = None
        if before is not None:
            got = rebuild(before, value["prefix"], value["suffix"], insert)
        self._bodies[content_id] = wanted
        while len(self._bodies) > KEPT_BODIES:
            self._bodies.popitem(last=False)
        if got == wanted:
            return _with_text(value, insert)
        return _with_text({**value, "base": None, "prefix": 0, "suffix": 0}, wanted)


def _with_text(value: dict[str, Any], text: bytes) -> dict[str, Any]:
    rest = {name: inner for name, inner in value.items() if name not in ("text", "base64")}
    return {**rest, **text_of(text)}


def _looked_at(
    contents: Iterable[tuple[str, dict[str, Any]]], session: _Session, look: Look
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield content; at its end raise where something in it looks like a secret."""
    found: list[str] = []
    for kind, value in contents:
        if len(found) < FOUND_MAX:
            found += look(kind, value)
        yield kind, value
    if found:
        raise RecordingError(
            f"something that looks like a secret is left: {'; '.join(dict.fromkeys(found))}",
            where=f"session {session.session_id}",
            todo="Nothing was written. Bundle it without --with-content, or give agentobs.Options(redactors=...) a "
            "rule that finds it, and record again",
        )


def _money(connection: duckdb.DuckDBPyConnection, session_id: str) -> Money:
    sql = "SELECT sum(cost_usd), max(price_version) FROM costs WHERE session_id = ?"
    row = connection.execute(sql, [session_id]).fetchone()
    usd, prices = row if row else (None, None)
    return Money(session_id, None if usd is None else f"{usd:f}", prices)
