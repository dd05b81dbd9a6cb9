"""The searchable text of the session list: facts, and the titles and errors that are known later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from agentobs.records.labels import Label, unchecked
from agentobs.store.backend import open_store
from agentobs.store.duckdb import session_listing
from agentobs.store.port import QueryError, Store
from tests.store.recordings import T0, a_home, attempt, end, record, session_id, start


def found(store: Store, text: str, *words: str) -> list[str]:
    """Return the sessions that a search finds."""
    rows = store.rows(
        "listing/page",
        text=text,
        digests=[],
        words=list(words) or None,
        word_digests=[[] for _ in words],
        sort="started",
        limit=10,
        offset=0,
    )
    sessions = store.rows("listing/totals", text=text, words=list(words) or None).dicts()
    assert sessions[0]["sessions"] == len(rows.rows)
    return [str(row["session_id"]) for row in rows.dicts()]


@pytest.mark.slow
@pytest.mark.parametrize("titles_first", [True, False])
def test_titles_and_errors_are_searched_whatever_comes_first(
    tmp_path: Path, titles_first: bool
) -> None:
    """A search finds facts, the last error and the title of a session, and several words in different ones of these.

    A later title replaces the earlier one. The rows of the list do not contain the searchable text.
    """
    home = a_home(tmp_path)
    record(home, [start(1, "coder"), attempt(1, 1), end(1, T0 + 1, failed=True)])
    record(home, [start(2, "coder"), attempt(2, 1), end(2)])
    with open_store(home, ingest=False) as store:
        store.prepare_listing()
        titles = {session_id(1): "mend the lamp", session_id(2): "sell the lamp"}
        if titles_first:
            store.add_titles(titles)
        assert store.complete_findings()
        if not titles_first:
            store.add_titles(titles)
        rows = store.rows("listing/page", sort="started", limit=10, offset=0).dicts()
        [error] = [row["error"] for row in rows if row["error"]]
        assert found(store, "coder") == [session_id(1), session_id(2)]
        assert found(store, "the lamp") == [session_id(1), session_id(2)]
        assert found(store, error.lower()) == [session_id(1)]
        assert found(store, "absent", "coder", "sell") == [session_id(2)]
        assert found(store, "absent", error.lower(), "mend") == [session_id(1)]
        assert found(store, "absent", "lamp", "the", "mend") == [session_id(1)]
        assert found(store, "absent", "lamp", "the", "nowhere") == []
        store.add_titles({session_id(1): "paint the lamp"})
        assert found(store, "mend") == []
        assert found(store, error.lower()) == found(store, "paint") == [session_id(1)]
        assert "lamp" not in str(
            store.rows("listing/page", sort="started", limit=10, offset=0).rows
        )


def test_findings_are_listed_even_if_the_first_attempt_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If findings were computed but not added to the list, for example without memory, the next attempt adds them."""
    home = a_home(tmp_path)
    record(home, [start(1, "coder"), attempt(1, 1), end(1, T0 + 1, failed=True)])
    with open_store(home, ingest=False) as store:
        store.prepare_listing()

        def fails(_: object) -> None:
            raise duckdb.OutOfMemoryException("full")

        with monkeypatch.context() as patched:
            patched.setattr(session_listing, "update_listing", fails)
            with pytest.raises(QueryError):
                store.complete_findings()
        assert not store.complete_findings()
        [row] = store.rows("listing/page", sort="started", limit=10, offset=0).dicts()
        assert found(store, row["error"].lower()) == [session_id(1)]


def test_a_word_is_also_found_as_a_digest(tmp_path: Path) -> None:
    """Of several words, one may be in the facts of a session as a digest, and another one in its title."""
    home = a_home(tmp_path)
    digest = f"digest:{'0' * 24}"
    record(home, [start(1, digest), end(1)])
    record(home, [start(2, "coder"), end(2)])
    with open_store(home, ingest=False) as store:
        store.prepare_listing()
        store.add_titles({session_id(1): "mend the lamp", session_id(2): "mend the lamp"})
        values = {"text": "absent", "words": ["lamp", "private"], "word_digests": [[], [digest]]}
        rows = store.rows("listing/page", **values, sort="started", limit=10, offset=0).dicts()
        assert [row["session_id"] for row in rows] == [session_id(1)]
        assert store.rows("listing/totals", **values).dicts()[0]["sessions"] == 1


def test_the_last_error_is_also_found_as_a_digest(tmp_path: Path) -> None:
    """The class of the last error may be the only text of a session that the store replaced by a digest."""
    home = a_home(tmp_path)
    record(home, [start(1, "coder"), replace(end(1, failed=True), error_class=unchecked("a b"))])
    with open_store(home, ingest=False) as store:
        store.prepare_listing()
        store.complete_findings()
        [row] = store.rows("listing/page", sort="started", limit=10, offset=0).dicts()
        assert row["error"].startswith("digest:")
        assert row["error"] not in f"{row['reason']} {row['signature']}"
        values = {"text": "a b", "digests": [row["error"]]}
        assert (
            len(store.rows("listing/page", **values, sort="started", limit=1, offset=0).rows) == 1
        )
        assert store.rows("listing/totals", **values).dicts()[0]["sessions"] == 1


def test_names_are_folded_as_the_search_text(tmp_path: Path) -> None:
    """A search finds a name in capital and small letters, even if `str.casefold` changes more than these."""
    home = a_home(tmp_path)
    for number, name in enumerate(("Straße", "λόγος"), 1):
        record(home, [start(number, Label.reviewed(name, reason="a constant")), end(number)])
    with open_store(home, ingest=False) as store:
        store.prepare_listing()
        for number, texts in enumerate((("Straße", "STRASSE", "straße"), ("λόγος", "ΛΌΓΟΣ")), 1):
            for text in texts:
                assert found(store, text.casefold()) == [session_id(number)]
