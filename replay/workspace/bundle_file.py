"""The file format of git bundles (gitformat-bundle(5), version 2): references, required commits, and a pack of objects.

`git bundle unbundle` searches the history for the required commits, which a shallow clone does not have. So the file is
read and written here; `git index-pack` reads the pack, and computes the ID of each object from its content.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from agentobs.effects.workspaces.shadow_git import ShadowGit, ShadowGitError

_SIGNATURE = b"# v2 git bundle\n"
_LINES_MAX = 100_000
"""The maximum number of lines before the pack. Our choice: there is one for each different tree of a session."""
_LINE_BYTES_MAX = 1000
"""The maximum length of a line. Our choice: ours have at most 100 bytes."""


def read_bundle(shadow: ShadowGit, file: Path) -> None:
    """Copy the objects of a bundle into a repository. Required commits and references are ignored.

    Raises:
        ShadowGitError: it is not a bundle, it cannot be read, or git failed.
    """
    try:
        with file.open("rb") as opened:
            # A child reads from the position of the descriptor, which the buffer has passed.
            os.lseek(opened.fileno(), pack_position(opened), os.SEEK_SET)
            shadow.run("index-pack", "--stdin", text=opened)
    except OSError as error:
        raise ShadowGitError("git_failed", str(error).encode()) from error


def pack_position(opened: BinaryIO) -> int:
    """Return the position of the pack in an open bundle.

    Raises:
        ShadowGitError: it is not a bundle.
    """
    is_bundle = opened.readline(_LINE_BYTES_MAX) == _SIGNATURE
    header = (opened.readline(_LINE_BYTES_MAX) for _ in range(_LINES_MAX))
    if not is_bundle or not any(each == b"\n" for each in header):
        raise ShadowGitError("git_failed", b"not a bundle")
    return opened.tell()


def bundle_bytes(
    shadow: ShadowGit,
    references: Mapping[str, str],
    objects: Sequence[tuple[str, bytes]],
    required: str | None,
) -> bytes:
    """Return a bundle, which depends only on the arguments.

    Args:
        shadow: the repository with the objects.
        references: the commits of the bundle, by their names such as `refs/trees/ID`.
        objects: the ID of each object, and its path, which helps to compress similar files.
        required: a commit with the other objects, which a reader of the bundle needs; None if there is none.

    Raises:
        ShadowGitError: git failed.
    """
    listed = b"".join(b"%b %b\n" % (each.encode(), _one_line(path)) for each, path in objects)
    pack = shadow.run(
        *("pack-objects", "--stdout", "--quiet", "--no-reuse-delta", "--no-reuse-object"),
        text=listed,
        settings={"pack.threads": "1", "pack.compression": "9"},
    )
    before = [] if required is None else [f"-{required}\n"]
    lines = [*before, *(f"{commit} {name}\n" for name, commit in references.items())]
    return _SIGNATURE + "".join(lines).encode() + b"\n" + pack


def _one_line(path: bytes) -> bytes:
    return path.replace(b"\n", b" ")


__all__ = ["bundle_bytes", "pack_position", "read_bundle"]
