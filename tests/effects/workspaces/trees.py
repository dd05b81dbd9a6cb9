"""Directories for tests of workspaces: git repositories with everything that can go wrong, and comparison by bytes."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

FileState = tuple[str, bytes]


def files_of(directory: Path, *, skipped: tuple[str, ...] = (".git",)) -> dict[bytes, FileState]:
    """Return all files and links under a directory by path: their kind, and their content or target."""
    found: dict[bytes, FileState] = {}
    root = os.fsencode(directory)
    for folder, directories, files in os.walk(root):
        for name in [*directories, *files]:
            full = folder + b"/" + name
            status = os.lstat(full)
            if os.fsdecode(name) in skipped:
                continue
            if stat.S_ISLNK(status.st_mode):
                found[os.path.relpath(full, root)] = (
                    "link",
                    os.fsencode(Path(os.fsdecode(full)).readlink()),
                )
            elif stat.S_ISREG(status.st_mode):
                kind = "executable" if status.st_mode & 0o100 else "file"
                found[os.path.relpath(full, root)] = (kind, Path(os.fsdecode(full)).read_bytes())
        directories[:] = [each for each in directories if os.fsdecode(each) not in skipped]
    return found


def git(directory: Path, *arguments: str, check: bool = True) -> str:
    """Run git as a user would, without the settings of this machine."""
    identity = {
        f"GIT_{who}_{what}": "test@example"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    ended = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *arguments],
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": os.devnull,
            "HOME": str(directory),
            **identity,
        },
        capture_output=True,
        check=False,
    )
    assert not check or ended.returncode == 0, ended.stderr
    return ended.stdout.decode()


def write(directory: Path, files: Mapping[str, bytes | str]) -> None:
    """Write files, with their directories."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def hostile_repository(root: Path) -> None:
    """Create a repository with a submodule, filters, conversions, links, odd names, and a rebase in progress."""
    library = root.parent / "library"
    library.mkdir()
    git(library, "init", "-q")
    write(library, {"lib.py": "x = 1\r\n", "deep/inner.txt": b"\x00\xff"})
    git(library, "add", "-A")
    git(library, "commit", "-qm", "library")
    root.mkdir()
    git(root, "init", "-q")
    for name, value in (
        ("core.autocrlf", "true"),
        ("filter.lfs.clean", "false"),
        ("filter.lfs.smudge", "false"),
        ("filter.lfs.required", "true"),
        ("core.hooksPath", "hooks"),
    ):
        git(root, "config", name, value)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    attributes = (
        "* text=auto eol=crlf\n*.bin filter=lfs\n*.id ident\n"
        "*.u16 working-tree-encoding=UTF-16 text\n*.x -diff\n"
    )
    write(
        root,
        {
            "crlf.txt": b"one\r\ntwo\r\n",
            "lf.txt": b"one\ntwo\n",
            "mixed.txt": b"one\r\ntwo\nthree",
            "file.id": "$Id$ and $Id: 1234 $\n",
            "wide.u16": "not UTF-16",
            "run.sh": "#!/bin/sh\n",
            "src/a.py": "a = 1\n",
            "back\\slash": "name",
            "new\nline": "name",
            "-n": "name",
            ".git-like/HEAD": "no repository",
        },
    )
    (root / "run.sh").chmod(0o755)
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9.txt")).write_text("Latin-1 name")
    (root / "link").symlink_to("src/a.py")
    (root / "dangling").symlink_to("/no/such/file")
    (root / "folder").symlink_to("src")
    git(root, "add", "src", "run.sh")
    git(root, "commit", "-qm", "first")
    git(root, "submodule", "--quiet", "add", str(library), "vendor/library")
    git(root, "commit", "-qm", "submodule")
    # A repository in the workspace that is not a submodule and has no commit.
    (root / "plain" / "nested").mkdir(parents=True)
    git(root / "plain" / "nested", "init", "-q")
    write(
        root / "plain" / "nested",
        {"n.txt": "nested\r\n", "ignored.log": "x", ".gitignore": "*.log\n"},
    )
    git(root, "checkout", "-qb", "topic")
    write(root, {"src/a.py": "a = 2\n"})
    git(root, "commit", "-qam", "topic")
    git(root, "checkout", "-q", "main")
    write(root, {"src/a.py": "a = 3\n"})
    git(root, "commit", "-qam", "main")
    git(root, "checkout", "-q", "topic")
    git(root, "rebase", "main", check=False)  # stops with a conflict
    write(root, {".gitattributes": attributes, "big.bin": pointer})
