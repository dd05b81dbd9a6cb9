"""The simulated disk: a real directory, and which of its changes a power loss may undo.

The real directory is what running programs see. In addition, the disk remembers the last synced contents of each file,
and the changes of names that no sync of a directory has made durable. A power loss keeps any subset of the unsynced
sectors. Of the unsynced name changes, it keeps either the first ones, as on file systems with a journal, or any subset.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
"""The number of bytes that a disk writes atomically."""
_os_link, _os_unlink = os.link, os.unlink


@dataclass(eq=False)
class Node:
    """A file or a directory, regardless of its names."""

    copy: Path | None = None
    """Another name of the file, so that its bytes can be read after it was unlinked; None for a directory."""
    synced: bytes = b""
    """The bytes that the last sync made durable."""
    failed: list[tuple[int, int]] = field(default_factory=list)
    """The ranges that a failed sync has not written. The operating system considers them written, so that no later sync
    makes them durable.
    """
    entries: dict[str, Node] = field(default_factory=dict)
    """The current names in the directory."""
    durable: dict[str, Node] = field(default_factory=dict)
    """The names that survive a power loss for certain."""


Change = tuple[Node, str, Node | None]
"""A name in a directory, and the node to which it refers from now on; None if it is removed."""


class Disk:
    """A directory whose changes are observed."""

    def __init__(self, root: Path, copies: Path) -> None:
        """Start with the files that exist below `root`; all of them are durable. `copies` holds the other names."""
        self.root, self._copies = root, copies
        self._numbers = 0
        self.top = Node()
        self._pending: list[list[Change]] = []
        """The changes of names that are not durable yet; each is atomic."""
        self._start()

    def _start(self) -> None:
        shutil.rmtree(self._copies, ignore_errors=True)
        self._copies.mkdir(parents=True)
        self.top, self._pending = Node(), []
        for path in sorted(self.root.rglob("*")):
            node = self._new(path)
            parent = self.node(path.parent)
            assert parent is not None
            parent.entries[path.name] = parent.durable[path.name] = node
            if node.copy is not None:
                node.synced = path.read_bytes()

    def _new(self, path: Path) -> Node:
        if path.is_dir():
            return Node()
        self._numbers += 1
        copy = self._copies / str(self._numbers)
        _os_link(path, copy)
        return Node(copy)

    def node(self, path: Path) -> Node | None:
        """Return the node of a path; None if the disk has not seen it."""
        node: Node | None = self.top
        for part in path.relative_to(self.root).parts:
            node = None if node is None else node.entries.get(part)
        return node

    def created(self, path: Path) -> Node:
        """Note that a file or a directory exists now; return its node."""
        found = self.node(path)
        if found is None:
            found = self._new(path)
            self._change((self._parent(path), path.name, found))
        return found

    def removed(self, path: Path) -> None:
        """Note that a name was removed."""
        if self.node(path) is not None:
            self._change((self._parent(path), path.name, None))

    def linked(self, path: Path, other: Path) -> None:
        """Note that `other` is now another name of a file."""
        self._change((self._parent(other), other.name, self.created(path)))

    def renamed(self, path: Path, other: Path) -> None:
        """Note that a file or a directory was renamed; call this after the rename."""
        node = self.node(path)
        if node is None:  # DuckDB has created it
            self.removed(other)
            self.created(other)
            return
        self._change((self._parent(path), path.name, None), (self._parent(other), other.name, node))

    def synced(self, path: Path, node: Node | None = None) -> None:
        """Note that a file or a directory was synced."""
        node = node or self.created(path)
        if node.copy is not None:
            data = bytearray(node.copy.read_bytes())
            for start, end in node.failed:
                data[start:end] = bytes(len(data[start:end]))
            node.synced = bytes(data)
            return
        for changes in [each for each in self._pending if any(c[0] is node for c in each)]:
            self._pending.remove(changes)
            _apply(changes)

    def sync_failed(self, path: Path, node: Node | None) -> None:
        """Note that a sync has failed: what was not durable before may be lost for good."""
        node = node or self.created(path)
        if node.copy is not None:
            node.failed.append((len(node.synced), node.copy.stat().st_size))

    def _parent(self, path: Path) -> Node:
        parent = self.node(path.parent)
        return self.created(path.parent) if parent is None else parent

    def _change(self, *changes: Change) -> None:
        for directory, name, node in changes:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node
        self._pending.append(list(changes))

    def lose_power(self, chance: random.Random) -> None:
        """Replace the directory by one of the states in which a power loss could have left it."""
        for path in sorted(self.root.rglob("*")):  # files that DuckDB has created
            self.created(path)
        if chance.random() < 0.7:
            kept = self._pending[: chance.randint(0, len(self._pending))]
        else:
            share = chance.random()
            kept = [each for each in self._pending if chance.random() < share]
        for changes in kept:
            sources = [(d, n) for d, n, node in changes if node is None]
            moved = next((node for _, _, node in changes if node is not None), None)
            # A rename can only be durable if the name that it removes is.
            if moved is None or all(d.durable.get(n) is moved for d, n in sources):
                _apply(changes)
        contents: dict[Path, bytes] = {}
        folders: list[Path] = []
        times: dict[Path, int] = {}
        self._image(self.top, self.root, chance, contents, folders, times)
        for path in self.root.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for folder in folders:
            folder.mkdir(mode=0o700)
        for path, data in contents.items():
            path.write_bytes(data)
            path.chmod(0o400 if path.suffix == ".duckdb" else 0o600)
            os.utime(path, ns=(times[path], times[path]))
        self._start()

    def _image(
        self,
        node: Node,
        place: Path,
        chance: random.Random,
        contents: dict[Path, bytes],
        folders: list[Path],
        times: dict[Path, int],
    ) -> None:
        for name, each in sorted(node.durable.items()):
            path = place / name
            if each.copy is None:
                folders.append(path)
                self._image(each, path, chance, contents, folders, times)
            else:
                contents[path] = _remaining(each.synced, each.copy.read_bytes(), chance)
                times[path] = each.copy.stat().st_mtime_ns


def _apply(changes: list[Change]) -> None:
    for directory, name, node in changes:
        if node is None:
            directory.durable.pop(name, None)
        else:
            directory.durable[name] = node


def _remaining(synced: bytes, current: bytes, chance: random.Random) -> bytes:
    """Return the bytes of a file after a power loss: the synced bytes, with some of the sectors that have changed."""
    if synced == current:
        return synced
    low, high = sorted((len(synced), len(current)))
    size = chance.choice([low, high, chance.randint(low, high)])
    remaining = bytearray(synced[:size]).ljust(size, b"\0")
    share = chance.choice([0.0, 0.5, 0.9, 1.0])
    for start in range(0, min(size, len(current)), SECTOR):
        end = min(start + SECTOR, size, len(current))
        if remaining[start:end] != current[start:end] and chance.random() < share:
            remaining[start:end] = current[start:end]
    return bytes(remaining)
