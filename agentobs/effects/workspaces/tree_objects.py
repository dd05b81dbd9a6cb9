"""Git trees: the directory listings of recorded files, as `git cat-file` prints them."""

from __future__ import annotations

from collections.abc import Iterator

from agentobs.effects.workspaces.shadow_git import ShadowGitError

_ID_BYTES = 20
_TREE_MODE = b"40000"
_SUBMODULE_MODE = b"160000"


def tree_entries(listing: bytes) -> Iterator[tuple[bool, str]]:
    """Yield the entries of a tree object: whether the entry is a directory, and its object ID.

    Submodules are left out, because their commits are in another repository.

    Args:
        listing: for each entry `MODE NAME`, a NUL byte, and 20 bytes of the object ID.

    Raises:
        ShadowGitError: it is not a tree object.
    """
    at = 0
    while at < len(listing):
        end = listing.find(b"\0", at) + 1
        if end == 0 or end + _ID_BYTES > len(listing):
            raise ShadowGitError("git_failed", b"not a tree object")
        mode = listing[at:end].partition(b" ")[0].lstrip(b"0")
        if mode != _SUBMODULE_MODE:
            yield mode == _TREE_MODE, listing[end : end + _ID_BYTES].hex()
        at = end + _ID_BYTES


__all__ = ["tree_entries"]
