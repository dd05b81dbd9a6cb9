"""Resolve the paths that tools receive, and check whether they are inside the allowed folders.

This is the live answer and reads the file system. A replay uses the recorded answer. The result may
change before the tool opens the file, so a process that can swap links in between can bypass the
check. Hard links cannot be distinguished from the file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentobs.errors import UsageError

BYTES_MAX = 4096
"""Longer paths are refused (PATH_MAX of Linux, limits.h)."""
SHOWN_MAX = 200
"""Maximum characters of a refused path in a message."""


def resolver(roots: Sequence[Path]) -> Callable[[Sequence[str]], list[dict[str, Any]]]:
    """Return a function that resolves paths to JSON: `[{"path": ..., "inside": ...}]`, one per
    path, in order.

    Paths are relative to the first root. A path in the first root is returned relative to it, with
    `/` (the root itself is `.`). A path in another root is absolute. A path outside is returned
    resolved, or as written if it cannot be resolved. The roots are resolved once, now.

    Raises:
        UsageError: there is no root, or a root is not a folder.
    """
    if not roots:
        raise UsageError("there are no roots", todo="Pass at least one directory")
    real_roots = [_real_root(root) for root in roots]

    def resolve(paths: Sequence[str]) -> list[dict[str, Any]]:
        return [_resolved(path, real_roots) for path in paths]

    return resolve


def _real_root(root: Path) -> str:
    try:
        real = os.path.realpath(root, strict=True)
    except (OSError, ValueError) as error:
        raise UsageError("this root cannot be opened", where=str(root), todo=str(error)) from None
    if not Path(real).is_dir():
        raise UsageError("this root is not a directory", where=str(root), todo="Name a folder")
    return real


def _resolved(path: str, roots: Sequence[str]) -> dict[str, Any]:
    real = _real(path, roots[0])
    if real is None:
        return {"path": _shown(path), "inside": False}
    if _lies_in(real, roots[0]):
        return {"path": os.path.relpath(real, roots[0]), "inside": True}
    return {"path": real, "inside": any(_lies_in(real, root) for root in roots)}


def _real(path: str, root: str) -> str | None:
    """Return the resolved path, existing or not; None if it cannot be resolved."""
    if not isinstance(path, str) or not path or path.startswith("~") or "\0" in path:
        return None
    try:
        if len(path.encode("utf-8")) > BYTES_MAX:
            return None
        # Apply each `..` after resolving the links before it, as the operating system does.
        real = _followed(os.path.join(root, path))  # noqa: PTH118
        real.encode("utf-8")
    except (OSError, ValueError):
        return None
    return real if _is_resolved(real) else None


def _followed(path: str) -> str:
    try:
        return os.path.realpath(path, strict=True)
    except FileNotFoundError:
        return os.path.realpath(path)


def _is_resolved(real: str) -> bool:
    """Return whether a path contains no link; a circular link is left unresolved."""
    for folder in (*reversed(Path(real).parents), Path(real)):
        try:
            mode = folder.lstat().st_mode
        except FileNotFoundError:
            return True
        except OSError:
            return False
        if stat.S_ISLNK(mode):
            return False
    return True


def _lies_in(real: str, root: str) -> bool:
    return os.path.commonpath([real, root]) == root


def _shown(path: Any) -> str:
    text = str(path)
    cut = text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"
    return cut.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
