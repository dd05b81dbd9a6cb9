"""A new git repository for recorded files, so that git commands of an agent work as in its recorded session."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from agentobs import world
from agentobs.errors import UsageError

BRANCH = "main"
MESSAGE = "files at the start of a recorded session"
_DATE = "2000-01-01T00:00:00+0000"
"""The date of the commit, so that its ID depends only on the files."""
_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "agentobs"), ("EMAIL", "agentobs@localhost"), ("DATE", _DATE))
}


def create_repository(root: Path, ignored: str) -> None:
    """Create a git repository in a directory, with one commit of its files; the user's settings of git do not apply.

    Args:
        root: the directory.
        ignored: patterns of ignored files, in addition to those in `.gitignore` files, one per line.

    Raises:
        UsageError: git failed.
    """
    environment = {
        "PATH": world.environ("PATH") or os.defpath,
        "HOME": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "LC_ALL": "C",
        **_IDENTITY,
    }
    for arguments in (
        ("init", "--quiet", "--template=", f"--initial-branch={BRANCH}"),
        ("add", "--all"),
        ("commit", "--quiet", "--allow-empty", "--no-verify", f"--message={MESSAGE}"),
    ):
        ended = subprocess.run(
            ["git", "-c", "gc.auto=0", "-c", "core.safecrlf=false", *arguments],
            cwd=root,
            env=environment,
            capture_output=True,
            check=False,
        )
        if arguments[0] == "init" and not ended.returncode:
            info = root / ".git" / "info"
            info.mkdir(exist_ok=True)
            (info / "exclude").write_text(ignored, "utf-8", "surrogateescape")
        if ended.returncode:
            raise UsageError(
                f"git cannot create a repository: {ended.stderr.decode('utf-8', 'replace').strip()[-200:]}",
                where=str(root),
                todo="Check the directory and the installation of git",
            )


__all__ = ["create_repository"]
