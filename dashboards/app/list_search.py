"""The search of the session list: in facts, in titles and, if asked for, in all texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.errors import AgentobsError
from agentobs.recording.journal.home import Home
from agentobs.records.labels import digest_label
from agentobs.runtime import process
from agentobs.store.analysis import attention
from agentobs.store.analysis.session_search import Found, SessionTexts
from dashboards.app.store_view import View

MOST_WORDS = 10
"""The maximum number of words that are searched separately; a longer text is searched as a whole. Our choice."""
SEARCH_SECONDS = 3.0
"""How long a search reads the texts of sessions that were not searched before, in seconds. The page shows how many are
left, and the next search continues. Our choice.
"""
RECENT_SECONDS = 10.0
"""How long the result of the last search in all texts is shown again, in seconds. Our choice."""


@dataclass(frozen=True, slots=True)
class ListSearch:
    """A search as the queries of the list need it, and what it could not cover."""

    parameters: dict[str, Any] = field(default_factory=dict)
    """The parameters of the named queries; empty without a search text."""
    unread: int = 0
    """The number of sessions that were not searched, because the time limit was reached before they were read."""
    unreadable: int = 0
    """The number of sessions whose content cannot be read."""


class RecentSearches:
    """The last results of searches in all texts, with their times; a live page repeats its search with each update."""

    def __init__(self) -> None:
        self.found: dict[tuple[Path, str], tuple[int, Found]] = {}


def list_search(view: View, text: str, *, all_text: bool, key: bytes | None) -> ListSearch:
    """Return the search for a text, ignoring case. Titles become part of the searchable text of the list first.

    A session matches if it contains the whole text, or each of its words. The store contains digests of names and tags
    that are not labels. If the text index cannot be used, for example because the home is read-only, only facts are
    searched.

    Args:
        view: the state of the store.
        text: the text; empty for no search.
        all_text: whether to also search prompts, responses, and inputs and results of tools.
        key: the key of the home; None if it has no key yet, and thus no digests.
    """
    if not text:
        return ListSearch()
    texts = SessionTexts(view.store, view.texts)
    found = _in_all_texts(texts, text, view.store.home) if all_text else None
    unread = view.titles.complete(texts, view.store, 0 if found else SEARCH_SECONDS)
    values: dict[str, Any] = {
        "text": text.casefold(),
        "digests": _digests(key, text),
        "found": found.session_ids if found else None,
    }
    words = text.split()
    if 1 < len(words) <= MOST_WORDS:
        values["words"] = [word.casefold() for word in words]
        values["word_digests"] = [_digests(key, word) for word in words]
    if found:
        return ListSearch(values, found.unread, found.unreadable)
    return ListSearch(values, unread)


def found_classes(view: View, session_ids: Sequence[str], text: str) -> dict[str, list[str]]:
    """Return the error classes that the search for a text found, by session ID; only of sessions with any.

    Args:
        view: the state of the store.
        session_ids: the sessions.
        text: the text; empty for no search.
    """
    if not text:
        return {}
    words = text.split()
    wanted = {text, *(words if len(words) <= MOST_WORDS else ())}
    rows = view.named("internal/error_classes", session_ids=list(session_ids))
    return attention.found_classes(view.texts.replace_in_dicts(rows), wanted)


def _in_all_texts(texts: SessionTexts, text: str, home: Home) -> Found | None:
    """Return the sessions in whose content a text occurs; None if the index cannot be used."""
    recent, key = process.state(RecentSearches).found, (home.path, text)
    at_ns, found = recent.get(key, (0, None))
    is_recent = world.monotonic() - at_ns < RECENT_SECONDS * 1e9
    if found is not None and is_recent and not found.unread:
        return found
    try:
        found = texts.search(text, all_text=True, seconds=SEARCH_SECONDS)
    except (AgentobsError, OSError):
        return None
    recent.clear()
    recent[key] = world.monotonic(), found
    return found


def _digests(key: bytes | None, text: str) -> list[str]:
    """Return the digests with which the store replaces a text that is not a declared name, as a name and as a tag."""
    if key is None:
        return []
    tag, has_value, value = text.partition("=")
    tags = [f"{tag.lower()}={digest_label(value, key)}"] if has_value else []
    return [str(digest_label(text, key)), *tags]
