"""Label texts: the original texts that the facts contain only as digests.

A text that people or models wrote is content. Facts contain its keyed digest; the text is in the content of its
session. Commands and pages on this machine show the text, or the digest if the content was not recorded, was pruned or
cannot be opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentobs.errors import AgentobsError
from agentobs.recording.journal.line_lookup import small_lines
from agentobs.recording.journal.segments import content_path
from agentobs.recording.vault.encryption import decrypted_line
from agentobs.recording.vault.vault import text_bytes
from agentobs.store.port import Store

DIGEST = re.compile(r"digest:[0-9a-f]{24}(?![0-9a-f])")
"""The form of a digest that replaces a text in the facts."""
MAX_SESSIONS = 3
"""The maximum number of sessions, newest first, in which the text of a digest is looked up. Our choice."""

Cell = Any


class LabelTexts:
    """The label texts of one store, read on demand and cached in this object."""

    def __init__(self, store: Store, known: dict[str, str | None] | None = None) -> None:
        """Look texts up in the content of a store's home.

        Args:
            store: the store.
            known: the cache to use and extend: the text of each digest, None if it cannot be read.
        """
        self._store = store
        self._known = {} if known is None else known

    def replace_in_rows(self, rows: Sequence[Sequence[Cell]]) -> list[tuple[Cell, ...]]:
        """Return the rows with each digest replaced by its text, if the text is known."""
        texts = self.texts_of(_digests_in(cell for row in rows for cell in row))
        if not texts:
            return [tuple(row) for row in rows]
        return [tuple(_with_texts(cell, texts) for cell in row) for row in rows]

    def replace_in_dicts(self, rows: Sequence[Mapping[str, Cell]]) -> list[dict[str, Cell]]:
        """Like `replace_in_rows`, for rows that are mappings from column name to value."""
        texts = self.texts_of(_digests_in(cell for row in rows for cell in row.values()))
        if not texts:
            return [dict(row) for row in rows]
        return [{name: _with_texts(cell, texts) for name, cell in row.items()} for row in rows]

    def texts_of(self, digests: Iterable[str]) -> dict[str, str]:
        """Return the known texts, by digest."""
        wanted = set(digests)
        if new := wanted - self._known.keys():
            self._known |= {**dict.fromkeys(new), **self._read(new)}
        return {each: text for each in wanted if (text := self._known[each]) is not None}

    def _read(self, digests: set[str]) -> dict[str, str]:
        """Read texts from the content of the sessions whose facts have these digests."""
        rows = self._store.rows(
            "internal/label_texts", digests=sorted(digests), most=MAX_SESSIONS
        ).rows
        found: dict[str, str] = {}
        for rank in range(1, MAX_SESSIONS + 1):
            remaining = [row for row in rows if row[4] == rank and row[0] not in found]
            for segment_id in {row[2] for row in remaining}:
                places = [(row[0], row[1], row[3]) for row in remaining if row[2] == segment_id]
                found |= self._in_segment(str(segment_id), places)
        return found

    def _in_segment(
        self, segment_id: str, places: Sequence[tuple[str, str, str]]
    ) -> dict[str, str]:
        path = content_path(self._store.home, segment_id)
        found: dict[str, str] = {}
        try:
            lines = small_lines(path, {content_id for _, _, content_id in places})
        except (AgentobsError, OSError):
            return found
        for digest, field, content_id in places:
            if content_id not in lines:
                continue
            try:
                value = decrypted_line(json.loads(lines[content_id]), segment_id, str(path))
                text = _field_of(json.loads(text_bytes(value)), field)
            except (AgentobsError, ValueError, KeyError, TypeError, RecursionError):
                continue  # encrypted with a missing key, or damaged: `agentobs verify` reports it
            if isinstance(text, str):
                found[digest] = text
        return found


def _field_of(content: Any, path: str) -> Any:
    """Return the field of a content line at a path: `name`, or `tags.KEY`."""
    outer, _, inner = path.partition(".")
    value = content.get(outer)
    return value.get(inner) if inner and isinstance(value, dict) else value


def _digests_in(cells: Iterable[Cell]) -> set[str]:
    found: set[str] = set()
    for cell in cells:
        if isinstance(cell, str):
            if "digest:" in cell:
                found.update(DIGEST.findall(cell))
        elif isinstance(cell, dict):
            found |= _digests_in(cell) | _digests_in(cell.values())
        elif isinstance(cell, list):
            found |= _digests_in(cell)
    return found


def _with_texts(cell: Cell, texts: Mapping[str, str]) -> Cell:
    if isinstance(cell, str):
        return DIGEST.sub(lambda m: texts.get(m[0], m[0]), cell) if "digest:" in cell else cell
    if isinstance(cell, dict):
        return {_with_texts(key, texts): _with_texts(inner, texts) for key, inner in cell.items()}
    return [_with_texts(each, texts) for each in cell] if isinstance(cell, list) else cell
