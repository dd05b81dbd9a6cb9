"""Texts without secrets: installed packages and the documents of the operating system."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

FILE_BYTES_MAX = 300_000
CODE = frozenset({".py", ".pyi", ".js", ".ts", ".c", ".h"})
PACKAGES = Path(sysconfig.get_paths()["purelib"])
DOCUMENTS = Path("/usr/share/doc")


def corpora(bytes_max: int) -> dict[str, list[bytes]]:
    """Return texts by kind: code, other files of packages, lists of files with hashes, and prose.

    Each kind has at most about `bytes_max` bytes, from files that a fixed seed selects. Prose is empty on systems
    without /usr/share/doc.
    """
    # The examples of botocore contain made-up passwords and tokens, which must be found.
    files = sorted(
        path for path in PACKAGES.rglob("*") if path.is_file() and "botocore" not in path.parts
    )
    files = [path for path in files if "agentobs" not in path.as_posix().lower()]
    documents = sorted(path for path in DOCUMENTS.rglob("*") if path.is_file())
    return {
        "code": _texts([p for p in files if p.suffix in CODE], bytes_max),
        "other files of packages": _texts(
            [p for p in files if p.suffix not in CODE and p.name != "RECORD"], bytes_max
        ),
        "lists of files with hashes": _texts([p for p in files if p.name == "RECORD"], bytes_max),
        "prose": _texts(documents, bytes_max),
    }


def _texts(files: list[Path], bytes_max: int) -> list[bytes]:
    random.Random(7).shuffle(files)
    return list(_read(files, bytes_max))


def _read(files: list[Path], bytes_max: int) -> Iterator[bytes]:
    total = 0
    for path in files:
        text = path.read_bytes()[:FILE_BYTES_MAX]
        if b"\0" in text[:4000]:
            continue
        yield text
        total += len(text)
        if total > bytes_max:
            return
