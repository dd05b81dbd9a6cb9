"""Differences: which files differ between two states of a workspace."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agentobs.effects.workspaces.shadow_git import ShadowGit
from agentobs.effects.workspaces.snapshots import Snapshot, Uncaptured

ChangeKind = Literal["added", "modified", "deleted", "renamed"]
_KINDS: Mapping[str, ChangeKind] = {
    "A": "added",
    "M": "modified",
    "T": "modified",
    "D": "deleted",
    "R": "renamed",
}
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The ID of the tree without files, which every repository knows. Source: object-file.c of git."""
_SETTINGS = {"core.bigFileThreshold": "8m"}
"""Larger files are compared as binary files."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file that differs between two states."""

    kind: ChangeKind
    path: str
    """The path in the later state; for a deleted file, the path in the earlier one. As the file system has it."""
    old_path: str | None = None
    """The path in the earlier state of a renamed file; else None."""
    old_blob: str | None = None
    """The content in the earlier state; None if there was no file, or if its content is not captured."""
    new_blob: str | None = None
    """The content in the later state; None if there is no file, or if its content is not captured."""
    old_mode: str | None = None
    """The mode in the earlier state: `100644`, `100755` (executable) or `120000` (symbolic link)."""
    new_mode: str | None = None
    """The mode in the later state."""
    old_bytes: int | None = None
    """The size in the earlier state; None if there was no file."""
    new_bytes: int | None = None
    """The size in the later state; None if there is no file."""
    lines_added: int | None = None
    """Lines that were added; None for binary files and files without content."""
    lines_removed: int | None = None
    """Lines that were removed; None for binary files and files without content."""


def changes(shadow: ShadowGit, before: Snapshot | None, after: Snapshot) -> list[Change]:
    """Return the files that differ between two states, by path.

    Args:
        shadow: the shadow repository of both.
        before: the earlier state; None for a workspace without files.
        after: the later state.

    Raises:
        ShadowGitError: git failed.
    """
    found = tree_changes(shadow, before.tree if before is not None else EMPTY_TREE, after.tree)
    notes = (before.uncaptured if before is not None else (), after.uncaptured)
    return sorted(_with_uncaptured(found, *notes), key=lambda each: each.path)


def tree_changes(
    shadow: ShadowGit, before: str, after: str, *, renames: bool = True
) -> list[Change]:
    """Return the files that differ between two trees.

    Args:
        shadow: the shadow repository of both.
        before: the earlier tree.
        after: the later tree.
        renames: whether a renamed file is one change, instead of a deleted and an added file.

    Raises:
        ShadowGitError: git failed.
    """
    if before == after:
        return []
    listed = shadow.run(
        *(
            "diff-tree",
            "-r",
            "-z",
            "-M" if renames else "--no-renames",
            "--raw",
            "--numstat",
            "--no-ext-diff",
            "--no-textconv",
            before,
            after,
        ),
        settings=_SETTINGS,
    )
    found = list(_parsed(listed.split(b"\0")))
    blobs = {blob for each in found for blob in (each.old_blob, each.new_blob) if blob is not None}
    sizes = _sizes(shadow, sorted(blobs))
    return [
        replace(
            each,
            old_bytes=sizes.get(each.old_blob) if each.old_blob else None,
            new_bytes=sizes.get(each.new_blob) if each.new_blob else None,
        )
        for each in found
    ]


def tree_size(shadow: ShadowGit, tree: str) -> tuple[int, int]:
    """Return the number of the files of a tree, and their size in bytes.

    Raises:
        ShadowGitError: git failed.
    """
    files = total = 0
    for entry in shadow.run("ls-tree", "-r", "-z", "-l", tree).split(b"\0"):
        if entry:
            files += 1
            total += int(entry.split(b"\t", 1)[0].split()[3])
    return files, total


def patch(shadow: ShadowGit, before: str, after: str, paths: Sequence[str] = ()) -> bytes:
    """Return the difference between two trees as a readable patch.

    Args:
        shadow: the shadow repository of both.
        before: the earlier tree.
        after: the later tree.
        paths: only these files; empty for all.

    Raises:
        ShadowGitError: git failed.
    """
    return shadow.run(
        *(
            "diff-tree",
            "-r",
            "-p",
            "-M",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            before,
            after,
            "--",
            *paths,
        ),
        settings=_SETTINGS,
    )


def _parsed(parts: Sequence[bytes]) -> Iterator[Change]:
    """Yield the changes in the output of `git diff-tree -z --raw --numstat`."""
    counts: dict[str, tuple[int | None, int | None]] = {}
    raw: list[Change] = []
    waiting = iter(parts)
    for part in waiting:
        if part.startswith(b":"):
            old_mode, new_mode, old_blob, new_blob, status = part[1:].decode().split(" ")
            kind = _KINDS[status[0]]
            path = os.fsdecode(next(waiting))
            old_path = path if kind == "renamed" else None
            raw.append(
                Change(
                    kind,
                    os.fsdecode(next(waiting)) if kind == "renamed" else path,
                    old_path,
                    None if kind == "added" else old_blob,
                    None if kind == "deleted" else new_blob,
                    None if kind == "added" else old_mode,
                    None if kind == "deleted" else new_mode,
                )
            )
        elif part:
            added, removed, name = part.split(b"\t", 2)
            if not name:  # renamed: the old and the new path follow
                next(waiting)
                name = next(waiting)
            is_text = added != b"-"
            counts[os.fsdecode(name)] = (int(added), int(removed)) if is_text else (None, None)
    for each in raw:
        lines_added, lines_removed = counts.get(each.path, (None, None))
        yield replace(each, lines_added=lines_added, lines_removed=lines_removed)


def _sizes(shadow: ShadowGit, blobs: Sequence[str]) -> dict[str, int]:
    if not blobs:
        return {}
    asked = "".join(f"{each}\n" for each in blobs).encode()
    lines = shadow.run("cat-file", "--batch-check=%(objectname) %(objectsize)", text=asked)
    return {
        name: int(size) for name, size in (line.split(" ") for line in lines.decode().splitlines())
    }


def _with_uncaptured(
    found: Sequence[Change], before: Sequence[Uncaptured], after: Sequence[Uncaptured]
) -> Iterator[Change]:
    """Yield the changes that were found, and the changes of files whose content is missing in one or both states."""
    # What changed in a directory that could not be read in one of the states is unknown.
    closed = tuple({each.path for each in (*before, *after) if each.is_closed_directory})
    old, new = (
        {each.path: each for each in noted if not each.path.startswith(closed)}
        for noted in (before, after)
    )
    for each in _outside(found, closed):
        if each.kind == "deleted" and (noted := new.pop(each.path, None)) is not None:
            old.pop(each.path, None)
            yield replace(each, kind="modified", new_bytes=noted.size, lines_removed=None)
        elif each.kind == "added" and (noted := old.pop(each.path, None)) is not None:
            new.pop(each.path, None)
            yield replace(each, kind="modified", old_bytes=noted.size, lines_added=None)
        else:
            yield each
    for path, noted in old.items():
        later = new.pop(path, None)
        if later is None:
            yield Change("deleted", path, old_bytes=noted.size)
        elif (later.size, later.mtime_ns) != (noted.size, noted.mtime_ns):
            yield Change("modified", path, old_bytes=noted.size, new_bytes=later.size)
    for path, noted in new.items():
        yield Change("added", path, new_bytes=noted.size)


def _outside(found: Sequence[Change], closed: tuple[str, ...]) -> Iterator[Change]:
    """Yield the changes outside of some directories.

    If only one path of a renamed file is outside, the file is new or deleted there, because nothing is known about the
    other path.
    """
    for each in found:
        is_inside, old_path = each.path.startswith(closed), each.old_path
        if old_path is None or old_path.startswith(closed) == is_inside:
            if not is_inside:
                yield each
        elif is_inside:
            yield Change(
                "deleted",
                old_path,
                old_blob=each.old_blob,
                old_mode=each.old_mode,
                old_bytes=each.old_bytes,
            )
        else:
            yield Change(
                "added",
                each.path,
                new_blob=each.new_blob,
                new_mode=each.new_mode,
                new_bytes=each.new_bytes,
            )


__all__ = ["EMPTY_TREE", "Change", "ChangeKind", "changes", "patch", "tree_changes", "tree_size"]
