"""Session search: the titles of sessions, and the sessions in which a text occurs.

Texts are read from the content of sessions once, newest sessions first, and kept in the text index of the home.
Sessions that recorded no content, or whose content was pruned, have neither a title nor texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from agentobs import world
from agentobs.errors import AgentobsError, UsageError
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from agentobs.store.port import Store
from agentobs.store.session_texts import content_text, first_prompts
from agentobs.store.text_index import IndexedText, TextIndex

BATCH = 50
"""The number of sessions whose titles are read before they are written to the index. Our choice."""
FEW = 1_000
"""Up to this number of sessions, titles are looked up one by one. Our choice."""
BATCH_SECONDS = 1.0
"""How long texts are read before they are written to the index, in seconds. Our choice."""

Progress = Callable[[int, int], None]
"""Is called with the number of sessions that have been read, and the total."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search."""

    session_ids: tuple[str, ...]
    """The sessions in whose title or texts the text occurs, newest first."""
    searched: int
    """The number of sessions whose texts were searched."""
    unread: int
    """The number of sessions that were not searched, because the time limit was reached before they were read."""
    unreadable: int
    """The number of sessions whose content cannot be read: it is damaged, or encrypted with a missing key."""


@dataclass(frozen=True, slots=True)
class Titles:
    """The titles of all sessions."""

    folded: dict[str, str]
    """The case-folded title of each session that has one, by session ID."""
    unread: int
    """The number of sessions whose title is unknown or outdated, because the time limit was reached before it was read.
    """


class _Listed(NamedTuple):
    """A session with content. A named tuple, because a search creates one for each session."""

    session_id: str
    stamp: str
    title: str | None
    """The digest of the title that was set, or None."""


class SessionTexts:
    """The titles and texts of the sessions of one store."""

    def __init__(self, store: Store, labels: LabelTexts | None = None) -> None:
        """Use a store; `labels` resolves the titles that were set."""
        self._store = store
        self._labels = labels or LabelTexts(store)

    def titles(self, session_ids: Sequence[str]) -> dict[str, str]:
        """Return the title of each session that has one: the title that was set last, else its first prompt.

        If the index cannot be used, for example because the home is read-only, the content is read each time.
        """
        if not session_ids:
            return {}
        listed = self._listed(session_ids)
        try:
            with TextIndex(self._store.home) as index:
                found, _ = self._read_titles(index, listed, _few(listed), None)
        except (AgentobsError, OSError):
            found = self._current_titles(listed)
        return {each.session_id: each.text for each in found if each.text}

    def all_titles(self, *, seconds: float | None = None) -> Titles:
        """Return the titles of all sessions, for a search that ignores case.

        Args:
            seconds: how long sessions that are not in the index yet may be read; None for no limit.

        Raises:
            DamagedError: the index is damaged.
            OSError: the index cannot be created.
        """
        listed = self._listed(None)
        with TextIndex(self._store.home) as index:
            found, unread = self._read_titles(index, listed, None, _until_ns(seconds))
        return Titles(
            {each.session_id: each.text.casefold() for each in found if each.text}, unread
        )

    def search(
        self,
        text: str,
        *,
        all_text: bool = False,
        seconds: float | None = None,
        progress: Progress = lambda *_: None,
    ) -> Found:
        """Return the sessions in whose title a text occurs, ignoring case; with `all_text` also in its content.

        Args:
            text: the text. White space matches exactly.
            all_text: whether to also search prompts, responses, and inputs and results of tools.
            seconds: how long sessions that are not in the index yet may be read; None for no limit.
            progress: is called while such sessions are read.

        Raises:
            UsageError: the text is empty.
            DamagedError: the index is damaged.
        """
        needle = text.casefold().strip()
        if not needle:
            raise UsageError("the text to search for is empty", where="search", todo="Pass a text")
        until_ns = _until_ns(seconds)
        listed = self._listed(None)
        with TextIndex(self._store.home) as index:
            titles, unread = self._read_titles(index, listed, None, until_ns, progress)
            hits = {each.session_id for each in titles if needle in each.text.casefold()}
            unreadable = 0
            if all_text:
                unreadable = self._read_texts(index, listed, until_ns, progress)
                hits |= index.containing("content", needle)
                known = index.stamps("content")
                unread = sum(each.session_id not in known for each in listed) - unreadable
        return Found(
            tuple(each.session_id for each in listed if each.session_id in hits),
            len(listed) - unread - unreadable,
            unread,
            unreadable,
        )

    def _listed(self, session_ids: Sequence[str] | None) -> list[_Listed]:
        rows = self._store.rows(
            "internal/sessions_with_text",
            session_ids=None if session_ids is None else list(session_ids),
        ).rows
        return list(map(_Listed._make, rows))

    def _read_titles(
        self,
        index: TextIndex,
        listed: Sequence[_Listed],
        session_ids: Sequence[str] | None,
        until_ns: int | None,
        progress: Progress = lambda *_: None,
    ) -> tuple[list[IndexedText], int]:
        """Return the titles of sessions, empty for a session without one, and the number of titles that are missing.

        Titles that are not in the index yet are read from the content and added to it, until the time limit.

        Args:
            index: the index.
            listed: the sessions.
            session_ids: the IDs to look up in the index; None reads all of it.
            until_ns: the time limit, as monotonic time.
            progress: is called while titles are read.
        """
        stored = {each.session_id: each for each in index.texts("title", session_ids)}
        missing = [each for each in listed if not _is_current(stored.get(each.session_id), each)]
        unread = len(missing)
        for start in range(0, len(missing), BATCH):
            if start and _is_over(until_ns):
                break
            progress(start, len(missing))
            titles = self._current_titles(missing[start : start + BATCH])
            index.put("title", titles)
            stored.update((each.session_id, each) for each in titles)
            unread -= len(titles)
        if missing or session_ids is None:
            for session_id in self._forget_pruned(index, stored, is_changed=bool(missing)):
                del stored[session_id]
        return [stored[each.session_id] for each in listed if each.session_id in stored], unread

    def _current_titles(self, listed: Sequence[_Listed]) -> list[IndexedText]:
        """Return the titles of sessions, read from their content; empty if a session has none."""
        given = self._labels.texts_of(each.title for each in listed if each.title)
        others = [each.session_id for each in listed if each.title not in given]
        prompts = first_prompts(self._store, others) if others else {}
        return [
            IndexedText(
                each.session_id,
                _stamp(each, has_prompt=bool(prompts.get(each.session_id))),
                given.get(each.title or "") or prompts.get(each.session_id, ""),
            )
            for each in listed
        ]

    def _read_texts(
        self,
        index: TextIndex,
        listed: Sequence[_Listed],
        until_ns: int | None,
        progress: Progress,
    ) -> int:
        """Add the texts of sessions that are not in the index yet; return how many sessions cannot be read."""
        known = index.stamps("content")
        missing = [each for each in listed if known.get(each.session_id) != each.stamp]
        unreadable, batch = 0, list[IndexedText]()
        written_ns = world.monotonic()
        for number, each in enumerate(missing):
            if number and _is_over(until_ns):
                break
            progress(number, len(missing))
            try:
                text = content_text(self._store, each.session_id)
                batch.append(IndexedText(each.session_id, each.stamp, text.casefold()))
            except (AgentobsError, OSError, ValueError, LookupError, TypeError):
                unreadable += 1
            if world.monotonic() - written_ns > BATCH_SECONDS * 1e9:
                index.put("content", batch)
                batch, written_ns = [], world.monotonic()
        index.put("content", batch)
        self._forget_pruned(index, index.stamps("content"), is_changed=bool(missing))
        return unreadable

    def _forget_pruned(
        self, index: TextIndex, held: Collection[str], *, is_changed: bool
    ) -> set[str]:
        """Delete the texts of sessions that were pruned while they were read, and return these sessions.

        Later prunings delete the texts themselves.

        Args:
            index: the index.
            held: the sessions whose texts are in the index.
            is_changed: whether texts have just been added. Then the store is opened again, because a session may have
                been pruned since this one was opened.
        """
        if is_changed:
            with open_store(self._store.home, ingest=False) as now:
                rows = now.rows("internal/pruned_sessions").rows
        else:
            rows = self._store.rows("internal/pruned_sessions").rows
        if pruned := {str(row[0]) for row in rows}.intersection(held):
            index.forget(pruned)
        return pruned


class SearchableTitles:
    """The titles in the searchable text of the session list; the first search in a state of the store adds them.

    For 100,000 sessions, reading the titles takes most of the time of a search, so it happens once per state.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_complete = False

    def complete(self, texts: SessionTexts, store: Store, seconds: float) -> int:
        """Add the titles that are not searchable yet; return the number of sessions whose titles are still unread.

        If the text index cannot be used, for example because the home is read-only, there are no titles.

        Args:
            texts: the texts of the state.
            store: a reader of the state.
            seconds: how long titles that were not read before may be read.
        """
        with self._lock:
            if self._is_complete:
                return 0
            try:
                titles = texts.all_titles(seconds=seconds)
                store.add_titles(titles.folded)
            except (AgentobsError, OSError):
                return 0
            self._is_complete = not titles.unread
            return titles.unread


def _few(listed: Sequence[_Listed]) -> list[str] | None:
    """Return the IDs of sessions if there are few enough to look them up one by one; None for all sessions."""
    return [each.session_id for each in listed] if len(listed) <= FEW else None


def _stamp(listed: _Listed, *, has_prompt: bool) -> str:
    """Return the stamp of a title. The first prompt never changes, so its stamp is constant."""
    return listed.title or ("prompt" if has_prompt else listed.stamp)


def _is_current(stored: IndexedText | None, listed: _Listed) -> bool:
    """Return whether a stored title is the title of a session."""
    if stored is None:
        return False
    if listed.title:
        return stored.stamp == listed.title
    return stored.stamp in ("prompt", listed.stamp)


def _until_ns(seconds: float | None) -> int | None:
    return None if seconds is None else world.monotonic() + int(seconds * 1e9)


def _is_over(until_ns: int | None) -> bool:
    return until_ns is not None and world.monotonic() >= until_ns
