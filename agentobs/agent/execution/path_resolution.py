"""Resolve the paths that tools receive, and check whether they are inside the allowed directories.

This module gives the live answer and reads the file system. A replay uses the recorded answer. The file system may
change between the check and the moment when the tool opens the file, so a process that can swap links in this time can
bypass the check. Hard links cannot be distinguished from the original file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentobs.errors import UsageError

BYTES_MAX = 4096
"""Maximum length of a path, in bytes; longer paths are refused (PATH_MAX of Linux, limits.h)."""
SHOWN_MAX = 200
"""The maximum number of characters of a refused path in a message."""


def resolver(roots: Sequence[Path]) -> Callable[[Sequence[str]], list[dict[str, Any]]]:
    """Return a function that resolves paths to JSON: one `{"path": ..., "inside": ...}` per path, in order.

    Relative paths are resolved against the first root. A path in the first root is returned relative to this root, with
    `/` (the root itself is `.`). A path in another root is returned as an absolute path. A path outside all roots is
    returned resolved, or unchanged if it cannot be resolved. The roots are resolved once, when this function is called.

    Raises:
        UsageError: there is no root, or a root is not a directory.
    """
    if not roots:
        raise UsageError("there are no roots", todo="Pass at least one directory")
    real_roots = [_real_root(root) for root in roots]

    def resolve(paths: Sequence[str]) -> list[dict[str, Any]]:
        return [_resolve_path(path, real_roots) for path in paths]

    return resolve


def _real_root(root: Path) -> str:
    try:
        resolved = os.path.realpath(root, strict=True)
    except (OSError, ValueError) as error:
        raise UsageError("this root cannot be opened", where=str(root), todo=str(error)) from None
    if not Path(resolved).is_dir():
        raise UsageError("this root is not a directory", where=str(root), todo="Pass a directory")
    return resolved


def _resolve_path(path: str, roots: Sequence[str]) -> dict[str, Any]:
    resolved = _real_path(path, roots[0])
    if resolved is None:
        return {"path": _shortened(path), "inside": False}
    if _is_within(resolved, roots[0]):
        return {"path": os.path.relpath(resolved, roots[0]), "inside": True}
    return {"path": resolved, "inside": any(_is_within(resolved, root) for root in roots)}


def _real_path(path: str, root: str) -> str | None:
    """Return the resolved path, existing or not; None if it cannot be resolved."""
    if not isinstance(path, str) or not path or path.startswith("~") or "\0" in path:
        return None
    try:
        if len(path.encode("utf-8")) > BYTES_MAX:
            return None
        # Apply each `..` after resolving the links before it, as the operating system does.
        resolved = _follow_links(os.path.join(root, path))  # noqa: PTH118
        resolved.encode("utf-8")
    except (OSError, ValueError):
        return None
    return resolved if _is_resolved(resolved) else None


def _follow_links(path: str) -> str:
    try:
        return os.path.realpath(path, strict=True)
    except FileNotFoundError:
        return os.path.realpath(path)


def _is_resolved(resolved: str) -> bool:
    """Return whether a path contains no link. `realpath` does not resolve circular links."""
    for component in (*reversed(Path(resolved).parents), Path(resolved)):
        try:
            mode = component.lstat().st_mode
        except FileNotFoundError:
            return True
        except OSError:
            return False
        if stat.S_ISLNK(mode):
            return False
    return True


def _is_within(resolved: str, root: str) -> bool:
    return os.path.commonpath([resolved, root]) == root


def _shortened(path: Any) -> str:
    text = str(path)
    shortened = text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"
    return shortened.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
