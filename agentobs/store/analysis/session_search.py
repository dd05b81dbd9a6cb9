"""Session search: the titles of sessions, and the sessions in which a text occurs.

Texts are read from the content of sessions once, newest sessions first, and kept in the text index of the home.
Sessions that recorded no content, or whose content was pruned, have neither a title nor texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
class _Listed:
    """A session with content."""

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
                if self._read_titles(index, listed, None, lambda *_: None):
                    self._forget_pruned(index)
                return self._titles_of(index, listed)
        except (AgentobsError, OSError):
            return {
                each.session_id: each.text for each in self._current_titles(listed) if each.text
            }

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
        until_ns = None if seconds is None else world.monotonic() + int(seconds * 1e9)
        listed = self._listed(None)
        with TextIndex(self._store.home) as index:
            self._read_titles(index, listed, until_ns, progress)
            hits = {
                session_id
                for session_id, title in self._titles_of(index, listed).items()
                if needle in title.casefold()
            }
            known, unreadable = index.stamps("title"), 0
            if all_text:
                unreadable = self._read_texts(index, listed, until_ns, progress)
                present = {each.session_id for each in listed}
                hits |= index.containing("content", needle) & present
                known = index.stamps("content")
            self._forget_pruned(index)
        searched = sum(each.session_id in known for each in listed)
        return Found(
            tuple(each.session_id for each in listed if each.session_id in hits),
            searched,
            len(listed) - searched - unreadable,
            unreadable,
        )

    def titled(self, words: Sequence[str]) -> list[list[str]]:
        """Return for each word the sessions in whose title it occurs, ignoring case.

        Titles that `search` and `titles` have not read yet are not searched.

        Raises:
            DamagedError: the index is damaged.
        """
        needles = [word.casefold() for word in words]
        hits: list[list[str]] = [[] for _ in needles]
        with TextIndex(self._store.home) as index:
            for session_id, title in self._titles_of(index, self._listed(None)).items():
                text = title.casefold()
                for needle, found in zip(needles, hits, strict=True):
                    if needle in text:
                        found.append(session_id)
        return hits

    def _listed(self, session_ids: Sequence[str] | None) -> list[_Listed]:
        rows = self._store.rows(
            "internal/sessions_with_text",
            session_ids=None if session_ids is None else list(session_ids),
        ).rows
        return [_Listed(*row) for row in rows]

    def _titles_of(self, index: TextIndex, listed: Sequence[_Listed]) -> dict[str, str]:
        """Return the titles of sessions that are in the index."""
        wanted = {each.session_id for each in listed}
        return {
            each.session_id: each.text
            for each in index.texts("title", _few(listed))
            if each.text and each.session_id in wanted
        }

    def _read_titles(
        self,
        index: TextIndex,
        listed: Sequence[_Listed],
        until_ns: int | None,
        progress: Progress,
    ) -> bool:
        """Add the titles of sessions to the index that are not in it yet; return whether there were any."""
        known = index.stamps("title", _few(listed))
        missing = [each for each in listed if not _is_current(known.get(each.session_id), each)]
        for start in range(0, len(missing), BATCH):
            if start and _is_over(until_ns):
                break
            progress(start, len(missing))
            index.put("title", self._current_titles(missing[start : start + BATCH]))
        return bool(missing)

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
        return unreadable

    def _forget_pruned(self, index: TextIndex) -> None:
        """Delete the texts of sessions that were pruned while they were read. Later prunings delete them themselves."""
        with open_store(self._store.home, ingest=False) as now:
            pruned = {str(row[0]) for row in now.rows("internal/pruned_sessions").rows}
        held = (index.stamps("title").keys() | index.stamps("content").keys()) & pruned
        if held:
            index.forget(held)


def _few(listed: Sequence[_Listed]) -> list[str] | None:
    """Return the IDs of sessions if there are few enough to look them up one by one; None for all sessions."""
    return [each.session_id for each in listed] if len(listed) <= FEW else None


def _stamp(listed: _Listed, *, has_prompt: bool) -> str:
    """Return the stamp of a title. The first prompt never changes, so its stamp is constant."""
    return listed.title or ("prompt" if has_prompt else listed.stamp)


def _is_current(stamp: str | None, listed: _Listed) -> bool:
    """Return whether the title with a stamp is the title of a session."""
    return stamp is not None and (
        stamp == listed.title if listed.title else stamp in ("prompt", listed.stamp)
    )


def _is_over(until_ns: int | None) -> bool:
    return until_ns is not None and world.monotonic() >= until_ns
