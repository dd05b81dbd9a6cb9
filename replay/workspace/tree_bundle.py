"""Writing the recorded files of a session into a git bundle, which is committed with a fixture.

A secret in a file is refused, not redacted: with other bytes, a replay would not start from the recorded files, and its
tools would return other results. The user can leave the file out. Files whose names are those of files with credentials
are never recorded.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentobs.effects.workspaces.shadow_git import ShadowGit
from agentobs.errors import RecordingError, UsageError
from replay.fixture.fixture_redaction import secret_kinds
from replay.workspace.file_difference import shown_path
from replay.workspace.recorded_workspace import RecordedWorkspace
from replay.workspace.scratch import TreeRepository

BYTES_MAX = 20 * 1024 * 1024
"""The default maximum size of the files, in bytes: each version of a file counts. Our choice."""
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
) -> RecordedWorkspace:
    """Write the recorded files of a session into a bundle; return the workspace that reads them from there.

    Args:
        workspace: the recorded files.
        file: the bundle to write; its folder is created.
        left_out: patterns of files to leave out; see `is_left_out`.
        bytes_max: the maximum size of the files, in bytes.

    Raises:
        UsageError: the files are too large, or the bundle cannot be written.
        RecordingError: a file contains a possible secret; nothing is written.
        ShadowGitError: git failed.
    """
    repository = TreeRepository(workspace, file.parent)
    try:
        trees = {each: repository.without(each, left_out) for each in workspace.trees}
        blobs = _blobs(repository.shadow, list(dict.fromkeys(trees.values())))
        _check_size(blobs, bytes_max)
        _check_secrets(repository.shadow, blobs, workspace.ignored)
        for tree in dict.fromkeys(trees.values()):
            commit = repository.shadow.run(
                *("hash-object", "-t", "commit", "-w", "--stdin"), text=_COMMIT % tree.encode()
            )
            repository.shadow.run("update-ref", f"refs/trees/{tree}", commit.decode().strip())
        draft = file.absolute().with_name(f".{file.name}.{os.getpid()}")
        try:
            draft.parent.mkdir(parents=True, exist_ok=True)
            repository.shadow.run(
                *("bundle", "create", "--quiet", draft, "--all"),
                settings={"pack.threads": "1", "core.compression": "9"},
            )
            draft.replace(file)
        except OSError as error:
            raise UsageError(
                f"cannot write the files of the workspace: {error.strerror}", where=str(file)
            ) from error
        finally:
            draft.unlink(missing_ok=True)
    finally:
        repository.close()
    return dataclasses.replace(
        workspace,
        source=file,
        start=trees[workspace.start],
        end=None if workspace.end is None else trees[workspace.end],
        turns={turn: trees[tree] for turn, tree in workspace.turns.items()},
        left_out=tuple(left_out),
    )


_Blobs = Mapping[str, tuple[int, dict[bytes, None]]]
"""The size and the paths of each content."""


def _blobs(shadow: ShadowGit, trees: Sequence[str]) -> _Blobs:
    found: dict[str, tuple[int, dict[bytes, None]]] = {}
    for tree in trees:
        for entry in shadow.run("ls-tree", "-r", "-z", "-l", tree).split(b"\0"):
            if entry:
                about, path = entry.split(b"\t", 1)
                _, _, blob, size = about.split()
                found.setdefault(blob.decode(), (int(size), {}))[1][path] = None
    return found


def _check_size(blobs: _Blobs, bytes_max: int) -> None:
    total = sum(size for size, _ in blobs.values())
    if total <= bytes_max:
        return
    sizes = ((size, next(iter(paths))) for size, paths in blobs.values())
    largest = sorted(sizes, reverse=True)[:NAMED_MAX]
    named = ", ".join(f"{_shown(path)} ({_size(size)})" for size, path in largest)
    raise UsageError(
        f"the files of the workspace have {_size(total)}, but a fixture stores at most {_size(bytes_max)}. "
        f"The largest: {named}",
        where="--workspace",
        todo="Leave files out with --leave-out PATTERN, or raise the limit with --workspace-mib N",
    )


def _check_secrets(shadow: ShadowGit, blobs: _Blobs, ignored: Sequence[str]) -> None:
    """Raise if the name or the content of a file contains a possible secret. Binary files are also searched."""
    found = [
        f"{_shown(path)} line {line} ({kind})"
        for blob, content in _contents(shadow, list(blobs))
        for line, kind, path in _secrets(list(blobs[blob][1]), content)
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


def _secrets(paths: Sequence[bytes], content: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Yield the line, the kind and the path of each possible secret in files with equal content; line 0 is a name."""
    yield from ((0, kind, path) for path in paths for kind in secret_kinds(path))
    if not any(True for _ in secret_kinds(content)):
        return
    lines = [
        (number, kind)
        for number, line in enumerate(content.splitlines(), 1)
        for kind in secret_kinds(line)
    ]
    # A secret may only be recognized by the lines around it, such as a private key.
    found = lines or [(1, kind) for kind in dict.fromkeys(secret_kinds(content))]
    yield from ((number, kind, paths[0]) for number, kind in found)


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
