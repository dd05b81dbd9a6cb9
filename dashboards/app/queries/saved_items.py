"""Saved views of the list and saved queries. They are kept in the home, so that everyone who opens it sees them.

The file `saved.json` has mode 0600 and contains what users saved: names, filters and SQL statements. It is written
only on request, and replaced as a whole, so a reader never sees a part of it. A damaged file is never replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentobs import world
from agentobs.errors import DamagedError, HomeError, UsageError
from agentobs.recording.journal.home import Home, create, sync_directory
from agentobs.records.display import printable

NAME = "saved.json"
"""The name of the file in the home."""
FORMAT = 1
"""The version of the file format."""
MOST_ITEMS = 100
"""The maximum number of views, and of queries. Our choice: a menu that can still be read."""
MOST_NAME = 60
"""The maximum length of a name, in characters. Our choice."""
MOST_TEXT = 20_000
"""The maximum length of a filter or a statement, in characters. Our choice."""
MOST_BYTES = 1024 * 1024
"""The maximum size of the file, in bytes. Our choice."""

Kind = Literal["views", "queries"]
"""What was saved: a query string of the list, or an SQL statement."""
_KINDS: tuple[Kind, ...] = ("views", "queries")
Saved = Mapping[Kind, Mapping[str, str]]
"""The saved texts by name, in the order in which they were saved."""


@dataclass(frozen=True, slots=True)
class SavedItems:
    """The saved items of a page, or the reason why they cannot be read."""

    texts: Mapping[str, str]
    """The saved texts by name."""
    error: str = ""
    """Why they cannot be read; empty if they can."""


def shown_items(home: Home, kind: Kind) -> SavedItems:
    """Return the items of a kind for a page. An unreadable file is an error on the page; the page is still shown."""
    try:
        return SavedItems(read_saved(home)[kind])
    except (DamagedError, HomeError) as error:
        return SavedItems({}, str(error))


def read_saved(home: Home) -> Saved:
    """Return all saved items of a home; there are none if nothing was saved.

    Raises:
        DamagedError: the file is not what `save` writes.
        HomeError: the file cannot be read.
    """
    path = home.path / NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return {kind: {} for kind in _KINDS}
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unreadable(path, "it is not a file")
    with open(descriptor, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"has more than {MOST_BYTES:,} bytes")
        return _decoded(json.loads(data))
    except (ValueError, RecursionError) as error:
        # The message of a JSON error contains a position, but no data.
        raise DamagedError(
            f"the saved views and queries cannot be read: {error}",
            where=str(path),
            todo="Repair the file, or move it away to start without saved items",
        ) from error


def save(home: Home, kind: Kind, name: str, text: str) -> None:
    """Save a text under a new name.

    Raises:
        UsageError: the name or the text is not valid, the name is used, or there are too many items.
        DamagedError: the file is damaged; it stays unchanged.
        HomeError: the file cannot be read or written.
    """
    name = name.strip()
    if problem := _problem(name, text):
        raise UsageError(f"not saved: {problem}", where="name")
    with _locked(home):
        saved = read_saved(home)
        if name in saved[kind]:
            raise UsageError(
                f"not saved: the name “{name}” is used",
                todo="Choose another name, or delete the existing one first",
            )
        if len(saved[kind]) >= MOST_ITEMS:
            raise UsageError(
                f"not saved: there are {MOST_ITEMS} saved {kind}", todo="Delete one first"
            )
        _write(home, {**saved, kind: {**saved[kind], name: text}})


def delete(home: Home, kind: Kind, name: str) -> None:
    """Delete an item. It is not an error if another page deleted it before.

    Raises:
        DamagedError: the file is damaged; it stays unchanged.
        HomeError: the file cannot be read or written.
    """
    with _locked(home):
        saved = read_saved(home)
        if name in saved[kind]:
            rest = {key: text for key, text in saved[kind].items() if key != name}
            _write(home, {**saved, kind: rest})


def _problem(name: str, text: str) -> str:
    """Describe why a name or a text is not valid; empty if both are valid."""
    if not name:
        return "the name is empty"
    if len(name) > MOST_NAME:
        return f"the name has {len(name):,} characters, at most {MOST_NAME} are allowed"
    if printable(name) != name:
        return "the name contains invisible characters"
    if len(text) > MOST_TEXT:
        return f"the text has {len(text):,} characters, at most {MOST_TEXT:,} are allowed"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "the text is not valid Unicode"
    return ""


def _decoded(value: Any) -> Saved:
    """Return the items in the content of a file.

    Raises:
        ValueError: the content has another structure, or an invalid item.
    """
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f"expected an object with format {FORMAT}")
    return {kind: _items(kind, value.get(kind)) for kind in _KINDS}


def _items(kind: Kind, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MOST_ITEMS:
        raise ValueError(f"expected up to {MOST_ITEMS} {kind} in an object")
    for number, (name, text) in enumerate(value.items(), 1):
        problem = "expected a string" if not isinstance(text, str) else _problem(name, text)
        if problem:
            raise ValueError(f"item {number} of {kind}: {problem}")
    return value


def _write(home: Home, saved: Saved) -> None:
    text = json.dumps({"format": FORMAT, **saved}, ensure_ascii=False, indent=1) + "\n"
    data = text.encode()
    if len(data) > MOST_BYTES:
        raise UsageError(
            f"not saved: the saved items would take more than {MOST_BYTES:,} bytes",
            todo="Delete one first",
        )
    path = home.path / NAME
    draft = home.path / f"{NAME}.{world.new_id()}"
    try:
        create(draft, data)
        draft.replace(path)
        sync_directory(home.path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise _unwritable(home, error) from error


@contextlib.contextmanager
def _locked(home: Home) -> Iterator[None]:
    """Hold the lock of the file. The directory is locked, because the file itself is replaced."""
    try:
        descriptor = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unwritable(home, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unreadable(path: Path, why: str) -> HomeError:
    found = f"the saved views and queries cannot be read: {why}"
    return HomeError(found, where=str(path), todo="Move it away to start without saved items")


def _unwritable(home: Home, error: OSError) -> HomeError:
    return HomeError(f"not saved: {error.strerror}", where=str(home.path / NAME))
