"""Saved views and queries: kept in one bounded file of the home, which damage never breaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.errors import DamagedError, HomeError, UsageError
from agentobs.recording.journal.home import Home, is_home, open_home
from dashboards.app.queries import saved_items
from dashboards.app.queries.saved_items import (
    MOST_BYTES,
    MOST_ITEMS,
    MOST_NAME,
    MOST_TEXT,
    NAME,
    delete,
    read_saved,
    save,
    shown_items,
)
from tests.dashboards.live_app import serving
from tests.store.recordings import conversation, record


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


def test_items_are_kept_in_order_and_apart(home: Home) -> None:
    """Views and queries are separate, in the order in which they were saved, and only their owner can read the file."""
    save(home, "views", " b ", "status=failed")
    save(home, "views", "a", "")
    save(home, "queries", "a", "SELECT 1")
    found = read_saved(home)
    assert list(found["views"].items()) == [("b", "status=failed"), ("a", "")]
    assert found["queries"] == {"a": "SELECT 1"}
    delete(home, "views", "b")
    delete(home, "views", "b")
    assert read_saved(home) == {"views": {"a": ""}, "queries": {"a": "SELECT 1"}}
    assert (home.path / NAME).stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in home.path.iterdir()) == [NAME, "segments"]
    assert is_home(home)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("", "", "the name is empty"),
        ("x" * (MOST_NAME + 1), "", "the name has 61 characters, at most 60 are allowed"),
        ("a\u202eb", "", "the name contains invisible characters"),
        ("a", "x" * (MOST_TEXT + 1), "the text has 20,001 characters, at most 20,000 are allowed"),
        ("a", "\ud800", "the text is not valid Unicode"),
        ("used", "", "the name “used” is used"),
    ],
)
def test_invalid_items_are_rejected(home: Home, name: str, text: str, found: str) -> None:
    """An invalid item is one error, and nothing is written."""
    save(home, "views", "used", "")
    before = (home.path / NAME).read_bytes()
    with pytest.raises(UsageError, match=found):
        save(home, "views", name, text)
    assert (home.path / NAME).read_bytes() == before


def test_number_and_size_are_bounded(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are at most MOST_ITEMS items of a kind, and at most MOST_BYTES bytes."""
    monkeypatch.setattr(saved_items, "MOST_ITEMS", 2)
    save(home, "views", "1", "")
    save(home, "views", "2", "")
    with pytest.raises(UsageError, match="there are 2 saved views"):
        save(home, "views", "3", "")
    monkeypatch.setattr(saved_items, "MOST_BYTES", 200)
    with pytest.raises(UsageError, match="would take more than 200 bytes"):
        save(home, "queries", "3", "x" * 200)
    assert read_saved(home)["queries"] == {}


DAMAGED = {
    "cut": b'{"format": 1, "views": {"a"',
    "other format": b'{"format": 2, "views": {}, "queries": {}}',
    "list": b"[]",
    "no views": b'{"format": 1, "queries": {}}',
    "number": b'{"format": 1, "views": {"a": 1}, "queries": {}}',
    "surrogate": b'{"format": 1, "views": {"a": "\\ud800"}, "queries": {}}',
    "bytes": b"\xff\xfe\x00",
    "deep": b"[" * 200_000,
    "large": b" " * (MOST_BYTES + 1),
    "many": json.dumps(
        {"format": 1, "views": {str(n): "" for n in range(MOST_ITEMS + 1)}, "queries": {}}
    ).encode(),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_one_error_and_stays(home: Home, kind: str) -> None:
    """A damaged file is one error with its path, and saving does not replace it."""
    (home.path / NAME).write_bytes(DAMAGED[kind])
    with pytest.raises(DamagedError, match="Repair the file") as found:
        save(home, "views", "new", "")
    assert str(home.path / NAME) in str(found.value)
    assert (home.path / NAME).read_bytes() == DAMAGED[kind]
    assert shown_items(home, "views").texts == {}


def test_links_and_directories_are_not_read(home: Home) -> None:
    """The file is never a link or a directory."""
    (home.path / NAME).symlink_to(home.path / "key")
    with pytest.raises(HomeError, match="cannot be read"):
        read_saved(home)
    (home.path / NAME).unlink()
    (home.path / NAME).mkdir()
    with pytest.raises(HomeError, match="it is not a file"):
        read_saved(home)


@settings(max_examples=25)
@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.dictionaries(
            st.text(max_size=3),
            st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
            max_size=2,
        ).map(
            lambda value: json.dumps({"format": 1, "views": {}, "queries": {}, **value}).encode()
        ),
    )
)
def test_any_content_is_read_or_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    """Any content of the file is either read, or raises one error of agentobs."""
    home = Home(tmp_path_factory.getbasetemp())
    (home.path / NAME).write_bytes(data)
    try:
        found = read_saved(home)
    except DamagedError:
        return
    assert set(found) == {"views", "queries"}


@pytest.mark.slow
def test_pages_show_the_error_of_a_damaged_file(home: Home) -> None:
    """Pages with saved items are shown, with one error. Saving is an error on the page, which keeps the statement."""
    record(home, conversation(1))
    (home.path / NAME).write_bytes(b"{")
    with serving(home) as client:
        for path in ("/", "/sql"):
            got = client.get(path)
            assert got.status == 200
            assert got.words.count("the saved views and queries cannot be read") == 1
        pressed = client.press("/sql/queries", part=False, name="mine", sql="SELECT 41")
        assert pressed.status == 409
        assert "SELECT 41" in pressed.words
    assert (home.path / NAME).read_bytes() == b"{"
