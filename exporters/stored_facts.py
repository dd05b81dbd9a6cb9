"""Facts of recorded sessions, read from the store in the order in which they were emitted.

The facts of a session are in several tables and possibly in several segments. They are read page by page, so
memory use does not grow with the size of a session. Small sessions share a page.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentobs.errors import AgentobsError
from agentobs.recording.journal.home import Home
from agentobs.recording.vault.vault import Vault, text_bytes
from agentobs.records.backend import ExchangeContent
from agentobs.records.facts import Attempt, Fact, ToolResult
from agentobs.store.port import SegmentRange, Store

PAGE = 5_000
"""The maximum number of facts in memory. Our choice: about 10 MB."""
VAULTS = 2
"""The maximum number of open content files. Our choice."""


@dataclass(frozen=True, slots=True)
class Part:
    """The facts of a session in one segment."""

    segment_id: str
    last: int
    """The sequence number of the last fact."""
    facts: int


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """A recorded session."""

    session_id: str
    started_ns: int | None
    """The start of the session; None if it was not recorded."""
    parts: tuple[Part, ...]
    """Oldest segment first."""
    is_over: bool
    """Whether the session is complete: no process has an open segment with records of it."""
    version: str
    """The version of this package that recorded it."""
    content: str
    """The content mode of the session."""
    live: Mapping[str, str]
    """The destinations to which its telemetry was sent live, each with its profile."""

    @property
    def facts(self) -> int:
        """The number of facts of the session."""
        return sum(part.facts for part in self.parts)


@dataclass(frozen=True, slots=True)
class Row:
    """One fact and its position."""

    session: RecordedSession
    segment_id: str
    sequence: int
    """The number of the record within its segment."""
    fact: Fact


def recorded_sessions(
    store: Store,
    *,
    since_ns: int | None = None,
    session_ids: Sequence[str] = (),
) -> list[RecordedSession]:
    """Return sessions, oldest first: all, those that started at or after a time, or those with the given IDs."""
    found: dict[str, list[Any]] = {}
    for session_id, *details, segment_id, last, facts in store.fact_ranges(
        since_ns=since_ns, session_ids=session_ids or None
    ):
        _, parts = found.setdefault(session_id, [details, []])
        parts.append(Part(segment_id, last, facts))
    return [
        RecordedSession(session_id, started, tuple(parts), is_over, version, content, live or {})
        for session_id, ((started, is_over, version, content, live), parts) in found.items()
    ]


def conversations(store: Store) -> dict[str, str]:
    """Return, for each session that resumes another or is resumed, the first session of its conversation."""
    earlier: dict[str, str] = dict(store.rows("internal/resumed_sessions").rows)
    roots: dict[str, str] = {}
    for session_id in earlier:
        root, seen = session_id, set()
        while root in earlier and root not in seen:
            seen.add(root)
            root = earlier[root]
        roots |= dict.fromkeys((*seen, root), root)
    return roots


def facts_of(store: Store, sessions: Sequence[RecordedSession]) -> Iterator[Row]:
    """Yield the facts of some sessions, session by session, in the order in which they were emitted."""
    page: list[RecordedSession] = []
    page_facts = 0
    for session in sessions:
        if page and page_facts + session.facts > PAGE:
            yield from _facts_of_small_sessions(store, page)
            page, page_facts = [], 0
        if session.facts > PAGE:
            yield from _facts_of_large_session(store, session)
            continue
        page.append(session)
        page_facts += session.facts
    if page:
        yield from _facts_of_small_sessions(store, page)


def _facts_of_small_sessions(store: Store, sessions: Sequence[RecordedSession]) -> Iterator[Row]:
    """Yield the facts of some small sessions."""
    order = {session.session_id: n for n, session in enumerate(sessions)}
    rows = [
        Row(sessions[order[fact.session_id]], segment_id, sequence, fact)
        for segment_id, sequence, fact in store.facts(list(order))
    ]
    rows.sort(key=lambda row: (order[row.session.session_id], row.segment_id, row.sequence))
    yield from rows


def _facts_of_large_session(store: Store, session: RecordedSession) -> Iterator[Row]:
    """Yield the facts of a large session, a page at a time."""
    for part in session.parts:
        after, width = 0, PAGE
        while after < part.last:
            within = SegmentRange(session.session_id, part.segment_id, after, after + width)
            # A range may contain facts of other sessions, so the number of its facts is not known.
            while (facts := store.count_facts(within)) > PAGE and width > 1:
                width //= 2
                within = replace(within, last=after + width)
            rows = [Row(session, *each) for each in store.facts_in(within)]
            rows.sort(key=lambda row: row.sequence)
            yield from rows
            after += width
            width *= 2 if facts <= PAGE // 2 else 1


class RecordedContent:
    """Reads the content of sessions that opted in from the content files."""

    def __init__(self, home: Home) -> None:
        """Use a home; files are opened when their content is needed."""
        self._home = home
        self._vaults: OrderedDict[tuple[str, str], Vault] = OrderedDict()
        self.missing = 0
        """The number of exchanges whose content cannot be read: pruned, damaged, or encrypted with a missing key."""

    def content_of(self, row: Row) -> ExchangeContent | None:
        """Return the content of an attempt, or of a tool call; None if the session did not opt in."""
        fact = row.fact
        if row.session.content != "export":
            return None
        try:
            if isinstance(fact, Attempt) and fact.request_content and fact.response_content:
                vault = self._vault(row)
                chunks = vault.answer(fact.response_content).chunks
                return ExchangeContent(
                    vault.body(fact.request_content), b"".join(c.data for c in chunks)
                )
            if isinstance(fact, ToolResult) and fact.source == "run" and fact.content:
                call = json.loads(text_bytes(self._vault(row).value(fact.content)))
                return ExchangeContent(_json(call["input"]), _json(call["result"]))
        except (AgentobsError, OSError, ValueError, LookupError, TypeError):
            self.missing += 1
        return None

    def _vault(self, row: Row) -> Vault:
        key = row.segment_id, row.session.session_id
        vault = self._vaults.pop(key, None) or Vault(self._home, *key)
        self._vaults[key] = vault
        while len(self._vaults) > VAULTS:
            self._vaults.popitem(last=False)
        return vault


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
