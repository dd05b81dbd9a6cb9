"""Session lookup: find the session that a user's text denotes, and convert names and reasons to their stored form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import takewhile
from typing import Any

from agentobs.errors import UsageError
from agentobs.records.clear_text import is_provider_id
from agentobs.records.labels import digest_label
from agentobs.redaction import Redactor
from agentobs.store.named_queries import suggested
from agentobs.store.port import Store

SHORTEST = 4
"""The minimum length of an abbreviated ID."""
READABLE = 8
"""The minimum length of an ID in a table. Our choice: as in git, with a margin."""


def find_session(store: Store, text: str, *, key: bytes | None = None) -> str:
    """Return the ID of the session that `text` denotes.

    The text can be a full ID, a name (the latest session with this name is returned), or a prefix or suffix of exactly
    one ID, at least four characters long.

    Args:
        store: the store of the sessions.
        text: the text that the user typed.
        key: the home's key, which is required to find names that are not labels.

    Raises:
        UsageError: no session matches, or several do.
    """
    for name in names_in_facts(text, key):
        if found := store.rows("internal/session_by_id_or_name", text=text, name=name).rows:
            return str(found[0][0])
    if len(text) >= SHORTEST:
        found = store.rows("internal/sessions_by_part", text=text.lower()).rows
    if len(found) == 1:
        return str(found[0][0])
    if found:
        listed = ", ".join(f"{session_id} ({name})" for session_id, name in found[:5])
        raise UsageError(
            f"{len(found)} sessions match",
            where=text,
            todo=f"Use more characters of the ID: {listed}",
        )
    pruned = store.rows("internal/pruned_by_part", text=text.lower(), shortest=SHORTEST).rows
    if pruned:
        [(session_id, day)] = pruned[:1]
        raise UsageError(
            f"session {session_id} was pruned on {day}: no data is left",
            where=text,
            todo="Fixtures frozen from it still replay; agentobs sessions lists the remaining ones",
        )
    known = store.rows("internal/latest_sessions").rows
    words = list(dict.fromkeys(str(word) for row in known for word in row if word))
    latest = ", ".join(f"{each} ({name})" if name else each for each, name in known[:3])
    raise UsageError(
        "no session with that ID or name",
        where=text,
        todo=suggested(text, words, f"The latest are {latest}"),
    )


def shortest_prefixes(store: Store, session_ids: Collection[str]) -> dict[str, str]:
    """Return the shortest prefix of each session ID that no other ID of the store starts with, by session ID.

    A prefix has at least `READABLE` characters.
    """
    neighbors = store.rows("internal/neighboring_sessions", session_ids=sorted(session_ids)).rows
    return {
        session_id: session_id[: max(READABLE, _common(session_id, before, after) + 1)]
        for session_id, before, after in neighbors
    }


def _common(text: str, *others: str | None) -> int:
    """Return the length of the longest prefix that a text shares with one of the others."""
    pairs = (zip(text, other or "", strict=False) for other in others)
    return max(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], each)) for each in pairs)


def names_in_facts(text: str, key: bytes | None) -> tuple[str, ...]:
    """Return the forms in which facts may contain a name: the name itself, and its digest.

    Args:
        text: the name.
        key: the home's key; without it, only the name itself is returned.
    """
    return (text, str(digest_label(Redactor(key).redact_text(text), key))) if key else (text,)


def id_in_facts(text: str, key: bytes) -> str:
    """Return an ID of a client or a provider as facts contain it: unchanged in a known form, else as its digest."""
    return text if is_provider_id(text) else str(digest_label(Redactor(key).redact_text(text), key))


def as_stored(store: Store, parameters: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    """Return query parameters with the names and reasons of recorded sessions in their stored form, as digests."""
    redactor = Redactor(key)
    texts = [each for each in parameters.values() if isinstance(each, str)]
    digests = {text: str(digest_label(redactor.redact_text(text), key)) for text in texts}
    known = {row[0] for row in store.rows("internal/stored_texts", texts=[*digests.values()]).rows}
    stored = {text: digest for text, digest in digests.items() if digest in known}
    return {
        name: stored.get(each, each) if isinstance(each, str) else each
        for name, each in parameters.items()
    }
