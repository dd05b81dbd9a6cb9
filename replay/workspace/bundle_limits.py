"""Size limits for the files in a bundle. A bundle may come from an untrusted source, and a small bundle can expand to a
huge tree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentobs.effects.workspaces.shadow_git import ShadowGit
from agentobs.effects.workspaces.snapshots import FILES_MAX, SNAPSHOT_BYTES_MAX
from agentobs.effects.workspaces.tree_objects import tree_entries
from agentobs.errors import UsageError

TREE_BYTES_MAX = 256 * 1024 * 1024
"""The maximum size of all directory listings, in bytes. Our choice: 500,000 files have about 20 MB."""
DEPTH_MAX = 500
"""The maximum depth of directories. Our choice: a path of 4,096 bytes can have more, but no project does."""


@dataclass(slots=True)
class Reached:
    """The directory listings and files that some trees consist of."""

    children: dict[str, Sequence[tuple[bool, str]]] = field(default_factory=dict)
    """The entries of each listing: whether the entry is a directory, and its object ID."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The size of each file, in bytes."""
    missing: dict[str, None] = field(default_factory=dict)
    """The IDs of the objects that cannot be read."""

    @property
    def objects(self) -> list[str]:
        """The IDs of all objects that can be read."""
        return [*self.children, *self.sizes]


def checked_objects(shadow: ShadowGit, trees: Sequence[str], where: Path) -> Reached:
    """Return the objects of trees, after a check that no tree is larger than a snapshot may be. Nothing is written.

    Args:
        shadow: a repository that can read the objects.
        trees: the trees to check.
        where: the bundle, for the error.

    Raises:
        UsageError: a tree has too many files, too many bytes, or too many nested directories.
        ShadowGitError: git failed.
    """
    reached = _listings(shadow, trees, where)
    files = {
        name for entries in reached.children.values() for is_tree, name in entries if not is_tree
    }
    reached.sizes = object_sizes(shadow, files, "blob")
    reached.missing |= dict.fromkeys(files - reached.sizes.keys())
    known: dict[str, tuple[int, int]] = {}
    for each in trees:
        count, total = _expanded(each, reached.children, reached.sizes, known, where)
        if count > FILES_MAX or total > SNAPSHOT_BYTES_MAX:
            raise _too_large(where)
    return reached


def object_sizes(shadow: ShadowGit, names: Collection[str], *kinds: str) -> dict[str, int]:
    """Return the sizes of the objects that a repository has, in bytes, by their IDs.

    Args:
        shadow: the repository.
        names: the IDs.
        kinds: `tree`, `blob` or `commit`; objects of other kinds count as missing.

    Raises:
        ShadowGitError: git failed.
    """
    if not names:
        return {}
    text = "".join(f"{each}\n" for each in sorted(names)).encode()
    lines = shadow.run("cat-file", "--batch-check", text=text).decode().splitlines()
    found = (each.split(" ") for each in lines)
    return {each[0]: int(each[2]) for each in found if each[1] in kinds}


def _listings(shadow: ShadowGit, trees: Sequence[str], where: Path) -> Reached:
    """Return all directory listings of some trees, one level of directories after another."""
    reached, listed, pending = Reached(), 0, dict.fromkeys(trees)
    for _ in range(DEPTH_MAX + 1):
        if not pending:
            return reached
        sizes = object_sizes(shadow, pending, "tree")
        reached.missing |= dict.fromkeys(each for each in pending if each not in sizes)
        listed += sum(sizes.values())
        if listed > TREE_BYTES_MAX:
            break
        found = dict(_children(shadow, list(sizes)))
        reached.children |= found
        inner = (name for entries in found.values() for is_tree, name in entries if is_tree)
        seen = reached.children.keys() | reached.missing.keys()
        pending = dict.fromkeys(each for each in inner if each not in seen)
    raise _too_large(where)


def _expanded(
    tree: str,
    children: Mapping[str, Sequence[tuple[bool, str]]],
    sizes: Mapping[str, int],
    known: dict[str, tuple[int, int]],
    where: Path,
    depth: int = 0,
) -> tuple[int, int]:
    """Return the number of files and directories below a tree, and the size of the files, in bytes."""
    if depth > DEPTH_MAX:
        raise _too_large(where)
    if tree not in known:
        count = total = 0
        for is_tree, name in children.get(tree, ()):
            count += 1
            if is_tree:
                inner, inner_bytes = _expanded(name, children, sizes, known, where, depth + 1)
                count, total = count + inner, total + inner_bytes
            else:
                total += sizes.get(name, 0)
        known[tree] = count, total
    return known[tree]


def _children(
    shadow: ShadowGit, trees: Sequence[str]
) -> Iterator[tuple[str, list[tuple[bool, str]]]]:
    """Yield the entries of each tree: whether the entry is a tree, and its object ID."""
    if not trees:
        return
    output = shadow.run("cat-file", "--batch", text="".join(f"{e}\n" for e in trees).encode())
    at = 0
    for tree in trees:
        start = output.index(b"\n", at) + 1
        at = start + int(output[at:start].split()[2])
        yield tree, list(tree_entries(output[start:at]))
        at += 1


def _too_large(where: Path) -> UsageError:
    return UsageError(
        f"the recorded files have more than {FILES_MAX:,} files, {SNAPSHOT_BYTES_MAX // 1024**3} GiB or {DEPTH_MAX} "
        "nested directories",
        where=str(where),
        todo="Do not use this fixture unless you know where it comes from",
    )


__all__ = ["Reached", "checked_objects", "object_sizes"]
