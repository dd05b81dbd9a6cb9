"""Writing the recorded files of a session into a git bundle, which is committed with a fixture.

A secret in a file is refused, not redacted: with other bytes, a replay would not start from the recorded files, and its
tools would return other results. The user can leave the file out. Files whose names are those of files with credentials
are never recorded.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentobs.effects.workspaces.shadow_git import ShadowGit
from agentobs.errors import RecordingError, UsageError
from replay.fixture.fixture_redaction import secret_kinds
from replay.workspace.base_commit import Base
from replay.workspace.bundle_file import bundle_bytes
from replay.workspace.file_difference import shown_path
from replay.workspace.recorded_workspace import RecordedWorkspace
from replay.workspace.scratch import TreeRepository

BYTES_MAX = 20 * 1024 * 1024
"""The default maximum size of the files in a bundle, in bytes: each version of a file counts. Our choice."""
NAMED_MAX = 5
"""The maximum number of files that an error names. Our choice."""
_COMMIT = b"""tree %b
author agentobs <agentobs@localhost> 0 +0000
committer agentobs <agentobs@localhost> 0 +0000

files of a recorded session
"""
"""A commit whose ID depends only on its files."""


def write_bundle(
    workspace: RecordedWorkspace,
    file: Path,
    left_out: Sequence[str] = (),
    bytes_max: int = BYTES_MAX,
    base: Base | None = None,
) -> RecordedWorkspace:
    """Write the recorded files of a session into a bundle; return the workspace that reads them from there.

    Args:
        workspace: the recorded files.
        file: the bundle to write; its folder is created.
        left_out: patterns of files to leave out; see `is_left_out`.
        bytes_max: the maximum size of the files in the bundle, in bytes.
        base: a commit whose files are not written into the bundle; it is not used if no file is in it, or if its
            repository lacks one of them.

    Raises:
        UsageError: the files are too large, or the bundle cannot be written.
        RecordingError: a file contains a possible secret; nothing is written.
        ShadowGitError: git failed.
    """
    repository = TreeRepository(workspace)
    try:
        shadow = repository.shadow
        trees = {each: repository.without(each, left_out) for each in workspace.trees}
        listed = _listed(shadow, list(dict.fromkeys(trees.values())))
        used = _usable(base, listed)
        stored = {
            name: each for name, each in listed.items() if used is None or name not in used.objects
        }
        blobs = {name: each for name, each in stored.items() if each.size is not None}
        _check_size(blobs, bytes_max)
        _check_secrets(shadow, blobs, _names(listed), workspace.ignored)
        _write(shadow, file, trees.values(), stored, used)
    finally:
        repository.close()
    return dataclasses.replace(
        workspace,
        source=file,
        start=trees[workspace.start],
        end=None if workspace.end is None else trees[workspace.end],
        turns={turn: trees[tree] for turn, tree in workspace.turns.items()},
        left_out=tuple(left_out),
        base=None if used is None else used.commit,
    )


def _write(
    shadow: ShadowGit,
    file: Path,
    trees: Iterable[str],
    stored: Mapping[str, _Listed],
    base: Base | None,
) -> None:
    """Write objects into a bundle, with a commit for each tree."""
    references: dict[str, str] = {}
    for tree in dict.fromkeys(trees):
        commit = shadow.run(
            *("hash-object", "-t", "commit", "-w", "--stdin"), text=_COMMIT % tree.encode()
        )
        references[f"refs/trees/{tree}"] = commit.decode().strip()
    objects = [
        *((each, b"") for each in references.values()),
        *((name, next(iter(each.paths))) for name, each in stored.items()),
    ]
    data = bundle_bytes(shadow, references, objects, None if base is None else base.commit)
    draft = file.absolute().with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.replace(file)
    except OSError as error:
        raise UsageError(
            f"cannot write the files of the workspace: {error.strerror}", where=str(file)
        ) from error
    finally:
        draft.unlink(missing_ok=True)


@dataclass(slots=True)
class _Listed:
    """A file or a directory in some trees."""

    size: int | None
    """The size of the file, in bytes; None for a directory."""
    paths: dict[bytes, None] = field(default_factory=dict)
    """Where it is; the path of a tree itself is empty."""


def _listed(shadow: ShadowGit, trees: Sequence[str]) -> dict[str, _Listed]:
    """Return the files and directories of some trees by their object IDs."""
    found: dict[str, _Listed] = {}
    for tree in trees:
        found.setdefault(tree, _Listed(None)).paths[b""] = None
        for entry in shadow.run("ls-tree", "-r", "-t", "-z", "-l", tree).split(b"\0"):
            if entry:
                about, path = entry.split(b"\t", 1)
                _, kind, name, size = about.split()
                each = _Listed(int(size) if kind == b"blob" else None)
                found.setdefault(name.decode(), each).paths[path] = None
    return found


def _usable(base: Base | None, listed: Mapping[str, _Listed]) -> Base | None:
    """Return the base if it has some of the files, and if its repository has all of these."""
    if base is None:
        return None
    shared = [name for name in listed if name in base.objects]
    has_files = any(listed[name].size is not None for name in shared)
    return base if has_files and base.has_all(shared) else None


def _names(listed: Mapping[str, _Listed]) -> set[bytes]:
    """Return the paths of all files."""
    return {path for each in listed.values() if each.size is not None for path in each.paths}


def _check_size(blobs: Mapping[str, _Listed], bytes_max: int) -> None:
    total = sum(each.size or 0 for each in blobs.values())
    if total <= bytes_max:
        return
    sizes = ((each.size or 0, next(iter(each.paths))) for each in blobs.values())
    largest = sorted(sizes, reverse=True)[:NAMED_MAX]
    named = ", ".join(f"{_shown(path)} ({_size(size)})" for size, path in largest)
    raise UsageError(
        f"the files of the workspace have {_size(total)}, but a fixture stores at most {_size(bytes_max)}. "
        f"The largest: {named}",
        where="--workspace",
        todo="Leave files out with --leave-out PATTERN, or raise the limit with --workspace-mib N",
    )


def _check_secrets(
    shadow: ShadowGit,
    blobs: Mapping[str, _Listed],
    names: Iterable[bytes],
    ignored: Sequence[str],
) -> None:
    """Raise if the name or the content of a file contains a possible secret. Binary files are also searched.

    Args:
        shadow: the repository with the files.
        blobs: the files that are stored.
        names: the paths of all files, because the listing of a directory is stored if one of its files is.
        ignored: the patterns of ignored files.
    """
    found = [
        f"{_shown(path)} line 0 ({kind})" for path in sorted(names) for kind in secret_kinds(path)
    ]
    found += [
        f"{_shown(next(iter(blobs[blob].paths)))} line {line} ({kind})"
        for blob, content in _contents(shadow, list(blobs))
        for line, kind in _secrets(content)
    ]
    found += [
        f"a pattern of ignored files ({kind})" for kind in secret_kinds("\n".join(ignored).encode())
    ]
    if not found:
        return
    more = [f"and {len(found) - NAMED_MAX} more"] if len(found) > NAMED_MAX else []
    raise RecordingError(
        f"the workspace contains possible secrets: {', '.join([*found[:NAMED_MAX], *more])}",
        where="--workspace",
        todo="Nothing was written. Leave the files out with --leave-out PATTERN, or remove the secrets and record the "
        "session again",
    )


def _secrets(content: bytes) -> list[tuple[int, str]]:
    """Return the line and the kind of each possible secret in a file."""
    if not any(True for _ in secret_kinds(content)):
        return []
    lines = [
        (number, kind)
        for number, line in enumerate(content.splitlines(), 1)
        for kind in secret_kinds(line)
    ]
    # A secret may only be recognized by the lines around it, such as a private key.
    return lines or [(1, kind) for kind in dict.fromkeys(secret_kinds(content))]


def _contents(shadow: ShadowGit, blobs: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the content of each blob."""
    if not blobs:
        return
    text = "".join(f"{each}\n" for each in blobs).encode()
    output, at = shadow.run("cat-file", "--batch", text=text), 0
    for each in blobs:
        end = output.index(b"\n", at)
        size = int(output[at:end].split()[2])
        yield each, output[end + 1 : end + 1 + size]
        at = end + size + 2


def _shown(path: bytes) -> str:
    return shown_path(os.fsdecode(path))


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count} bytes"


__all__ = ["BYTES_MAX", "write_bundle"]
