"""Finding fixtures: which of them a path, a folder of many, or a pattern names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from replay.fixture import FILE


def fixtures_in(named: Path) -> dict[str, Path]:
    """Return the fixtures that a path names, by a name that tells them apart: none where there is none.

    A folder with a recording, or its file, names one; any other folder all that lie in it, at any depth; a pattern,
    as in `fixtures/*`, those that match. Folders whose names begin with a dot are left out.
    """
    if is_one(named):
        folder = named.parent if named.name == FILE else named
        return {folder.name: folder}
    base, pattern = split_pattern(named)
    found = base.glob(pattern) if pattern else base.rglob(FILE)
    folders = {path.parent if path.name == FILE else path for path in found}
    listed = ((folder.relative_to(base), folder) for folder in sorted(folders) if is_one(folder))
    return {str(name): folder for name, folder in listed if not _is_hidden(name.parts)}


def is_one(path: Path) -> bool:
    """Return whether a path is one fixture: its folder, or its file."""
    return path.is_file() or (path / FILE).is_file()


def split_pattern(path: Path) -> tuple[Path, str]:
    """Return the part of a path before its first wildcard, and the rest as a pattern; it may be empty."""
    plain = 0
    while plain < len(path.parts) and not set("*?[") & set(path.parts[plain]):
        plain += 1
    return Path(*path.parts[:plain]), "/".join(path.parts[plain:])


def folder_named(path: Path) -> Path | None:
    """Return the folder of fixtures that the words of a mark name; None where they name one file beside the test."""
    base, pattern = split_pattern(path)
    if pattern:
        return base
    if path.name == FILE:
        path = path.parent
    return path.parent if len(path.parts) > 1 else None


def unused(folders: Iterable[Path], used: Iterable[Path]) -> list[Path]:
    """Return the fixtures right in some folders that are not among those that are used."""
    known = set(used)
    found = {path.parent for folder in folders for path in folder.glob(f"*/{FILE}")}
    return sorted(found - known)


def _is_hidden(parts: Sequence[str]) -> bool:
    return any(part.startswith(".") for part in parts)
