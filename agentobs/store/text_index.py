"""The text index: a file of a home with the titles and texts of its sessions, so that searches do not read all content.

The index is content. It is created by the first search, contains only sessions whose content can be read, and is
readable by its owner only. If content is encrypted, each text in it is encrypted as well. Pruning a session deletes its
texts, and SQLite overwrites the deleted bytes. The file can be deleted at any time; the next search creates it again.

A search reads every text. For 100,000 sessions with 10,000 characters each, this takes about 3 s of CPU time, and the
file has 440 MB (November 2026). Rejected: DuckDB's full-text extension, because it has to be downloaded, and matches
words instead of parts of words; an index of words or trigrams, because it would take more space than the texts and
would have to be encrypted as a whole.
"""

from __future__ import annotations

import base64
import contextlib
import sqlite3
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from agentobs.errors import AgentobsError, DamagedError
from agentobs.recording.journal.home import Home, create
from agentobs.recording.vault.encryption import Sealer, content_key

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NAME = "texts.sqlite"
"""The name of the file in the home."""
LOCK_SECONDS = 30.0
"""How long to wait for another process that writes the index. Our choice."""
LEVEL = 3
"""The zstd level. Our choice: texts shrink to a quarter."""

COMPRESSED_MIN = 512
"""Shorter texts, such as titles, are not compressed, because decompressing them would take most of the time of a
search. Our choice.
"""

Part = Literal["title", "content"]
"""`title`: the title of a session; `content`: its prompts, responses, and inputs and results of tools."""


class IndexedText(NamedTuple):
    """A text of a session. A named tuple, because a search creates one for each session."""

    session_id: str
    stamp: str
    """Identifies the state of the session when the text was read."""
    text: str


class TextIndex:
    """The open index of a home. Close it after use; it is also a context manager."""

    def __init__(self, home: Home) -> None:
        """Open the index, or create it.

        Raises:
            DamagedError: the file is not an index, or is damaged.
            UsageError: the key that encrypts content cannot be used.
            OSError: the file cannot be created.
        """
        self._key = content_key()
        self._path = home.path / NAME
        if not self._path.exists():
            with contextlib.suppress(FileExistsError):
                create(self._path)
        with _damage(self._path):
            self._connection = sqlite3.connect(
                self._path, timeout=LOCK_SECONDS, isolation_level=None
            )
            self._connection.execute("PRAGMA secure_delete = ON")
            self._connection.execute(_TABLE)

    def stamps(self, part: Part, session_ids: Sequence[str] | None = None) -> dict[str, str]:
        """Return the stamp of each session whose text is in the index and can be read; of all sessions if no IDs are
        given.
        """
        with _damage(self._path):
            if session_ids is None:
                return dict(self._connection.execute(_STAMPS, [part, self._key_id()]).fetchall())
            found: dict[str, str] = {}
            for session_id in session_ids:
                found |= self._connection.execute(
                    f"{_STAMPS} AND session_id = ?", [part, self._key_id(), session_id]
                ).fetchall()
            return found

    def texts(self, part: Part, session_ids: Sequence[str] | None = None) -> Iterator[IndexedText]:
        """Yield the texts of sessions that can be read, of all sessions if no IDs are given."""
        with _damage(self._path):
            if session_ids is None:
                yield from self._decoded(_TEXTS, [part, self._key_id()])
                return
            for session_id in session_ids:
                yield from self._decoded(
                    f"{_TEXTS} AND session_id = ?", [part, self._key_id(), session_id]
                )

    def containing(self, part: Part, text: str) -> set[str]:
        """Return the sessions whose text contains a text; case matters."""
        needle = text.encode("utf-8", "replace")
        with _damage(self._path):
            rows = self._connection.execute(_TEXTS, [part, self._key_id()])
            return {
                session_id
                for session_id, _, key_id, data in rows
                if needle in self._plain(session_id, key_id, data)
            }

    def put(self, part: Part, texts: Iterable[IndexedText]) -> None:
        """Add texts, or replace them."""
        key_id = self._key_id()
        rows = [(each.session_id, part, each.stamp, key_id, self._encoded(each)) for each in texts]
        with _damage(self._path), self._transaction():
            self._connection.executemany(
                "INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?, ?)", rows
            )

    def forget(self, session_ids: Collection[str]) -> None:
        """Delete all texts of some sessions; the deleted bytes are overwritten."""
        with _damage(self._path), self._transaction():
            self._connection.executemany(
                "DELETE FROM texts WHERE session_id = ?", [(each,) for each in session_ids]
            )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> TextIndex:
        """Return the index."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _decoded(self, sql: str, values: Sequence[str]) -> Iterator[IndexedText]:
        for session_id, stamp, key_id, data in self._connection.execute(sql, values):
            is_plain = (
                not key_id and data[:1] == _PLAIN
            )  # almost every title; a call would double its time
            plain = data[1:] if is_plain else self._plain(session_id, key_id, data)
            yield IndexedText(session_id, stamp, plain.decode("utf-8", "replace"))

    def _plain(self, session_id: str, key_id: str, data: bytes) -> bytes:
        """Return the text of a row, decrypted and decompressed."""
        if key_id:
            assert self._key is not None
            line = {"content_id": session_id, "key": key_id, "line": 1, "kind": "texts"}
            sealed = {**line, "sealed": data.decode()}
            data = base64.b64decode(Sealer(self._key, _NAMESPACE).open(sealed, "")["text"])
        return zstd.decompress(data[1:]) if data[:1] == _COMPRESSED else data[1:]

    def _encoded(self, text: IndexedText) -> bytes:
        """Return a text as it is stored: compressed if it is long, and encrypted if there is a key."""
        data = text.text.encode("utf-8", "replace")
        is_long = len(data) >= COMPRESSED_MIN
        data = _COMPRESSED + zstd.compress(data, LEVEL) if is_long else _PLAIN + data
        if self._key is None:
            return data
        value = {"content_id": text.session_id, "text": base64.b64encode(data).decode()}
        sealed: str = Sealer(self._key, _NAMESPACE).seal("texts", value, 1)["sealed"]
        return sealed.encode()

    def _key_id(self) -> str:
        """Return the ID of the key that encrypts texts; empty if they are not encrypted."""
        return "" if self._key is None else Sealer(self._key, _NAMESPACE).key_id


def forget_texts(home: Home, session_ids: Collection[str]) -> None:
    """Delete the texts of some sessions from the index of a home, if it has one.

    Raises:
        OSError: the index could neither be changed nor deleted.
    """
    path = home.path / NAME
    if not session_ids or not path.exists():
        return
    try:
        with TextIndex(home) as index:
            index.forget(session_ids)
    except AgentobsError:
        # It is damaged, locked, or its key cannot be used. It can be created again, so it is deleted.
        delete_index(home)


def index_damage(home: Home) -> str | None:
    """Return what is wrong with the index of a home; None if it is intact, or if there is none."""
    path = home.path.absolute() / NAME
    if not path.exists() or path.with_name(f"{NAME}-journal").exists():
        return None  # a journal belongs to a write in progress, or the next search rolls it back
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=LOCK_SECONDS)
        try:
            [(found,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        return str(error)
    return None if found == "ok" else str(found)


def delete_index(home: Home) -> None:
    """Delete the index of a home, if it has one."""
    for name in (NAME, f"{NAME}-journal"):
        (home.path / name).unlink(missing_ok=True)


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Translate errors of SQLite."""
    try:
        yield
    except (sqlite3.Error, zstd.ZstdError) as error:
        raise DamagedError(
            f"the index of texts cannot be used: {error}",
            where=str(path),
            todo="Delete the file; the next search creates it again",
        ) from error


_PLAIN, _COMPRESSED = b"\0", b"\1"
_NAMESPACE = "texts"
"""Distinguishes the key of the index from the keys of segments."""
_TABLE = """
    CREATE TABLE IF NOT EXISTS texts (
        session_id TEXT, part TEXT, stamp TEXT, key TEXT, data BLOB, PRIMARY KEY (session_id, part)
    )
"""
_STAMPS = "SELECT session_id, stamp FROM texts WHERE part = ? AND (key = '' OR key = ?)"
_TEXTS = "SELECT session_id, stamp, key, data FROM texts WHERE part = ? AND (key = '' OR key = ?)"
