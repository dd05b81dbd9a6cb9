"""Size limits for the files in a bundle. A bundle may come from an untrusted source, and a small bundle can expand to a
huge tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentobs.effects.workspaces.shadow_git import ShadowGit
from agentobs.effects.workspaces.snapshots import FILES_MAX, SNAPSHOT_BYTES_MAX
from agentobs.errors import UsageError

TREE_BYTES_MAX = 256 * 1024 * 1024
"""The maximum size of all directory listings, in bytes. Our choice: 500,000 files have about 20 MB."""
DEPTH_MAX = 500
"""The maximum depth of directories. Our choice: a path of 4,096 bytes can have more, but no project does."""
_ID_BYTES = 20
_TREE_MODE = b"40000"


def check_limits(shadow: ShadowGit, trees: Sequence[str], where: Path) -> None:
    """Check that trees are not larger than a snapshot may be. Nothing is written.

    Args:
        shadow: the repository that contains all objects of the bundle.
        trees: the trees to check.
        where: the bundle, for the error.

    Raises:
        UsageError: a tree has too many files, too many bytes, or too many nested directories.
        ShadowGitError: git failed.
    """
    sizes: dict[str, int] = {}
    listings: dict[str, int] = {}
    objects = shadow.run(
        "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype) %(objectsize)"
    )
    for line in objects.decode().splitlines():
        name, kind, size = line.split(" ")
        (listings if kind == "tree" else sizes)[name] = int(size)
    if sum(listings.values()) > TREE_BYTES_MAX:
        raise _too_large(where)
    children = dict(_children(shadow, list(listings)))
    known: dict[str, tuple[int, int]] = {}
    for each in trees:
        files, total = _expanded(each, children, sizes, known, where)
        if files > FILES_MAX or total > SNAPSHOT_BYTES_MAX:
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
        yield tree, list(_entries(output[start:at]))
        at += 1


def _entries(listing: bytes) -> Iterator[tuple[bool, str]]:
    """Yield the entries of a tree object: `MODE NAME`, a NUL byte, and 20 bytes of the object ID."""
    at = 0
    while at < len(listing):
        end = listing.index(b"\0", at) + 1
        name = listing[end : end + _ID_BYTES].hex()
        yield listing[at:end].partition(b" ")[0].lstrip(b"0") == _TREE_MODE, name
        at = end + _ID_BYTES


def _too_large(where: Path) -> UsageError:
    return UsageError(
        f"the recorded files have more than {FILES_MAX:,} files, {SNAPSHOT_BYTES_MAX // 1024**3} GiB or {DEPTH_MAX} "
        "nested directories",
        where=str(where),
        todo="Do not use this fixture unless you know where it comes from",
    )


__all__ = ["check_limits"]
