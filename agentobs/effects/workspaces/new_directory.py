"""New directories: written completely, or left as they were."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def complete_or_empty(directory: Path) -> Iterator[None]:
    """Delete what the block has written into a directory if it fails, because half of the files look like all of them.

    Args:
        directory: a directory that is empty or does not exist.
    """
    existed = directory.exists()
    try:
        yield
    except BaseException:
        if not existed:
            shutil.rmtree(directory, ignore_errors=True)
        for each in [*directory.iterdir()] if existed else []:
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)
        raise


__all__ = ["complete_or_empty"]
