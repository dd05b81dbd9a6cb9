"""A process that records a command with the provider of a script, and copies the workspace before each response.

`python -m tests.third_party_programs.held_recording COPIES ARGUMENTS...` runs `agentobs ARGUMENTS`. The provider runs
in the process that records, so that it can hold each response until the snapshot of its request has ended. Otherwise,
the speed of the machine would decide whether a state is late. The copy for turn N of the main agent is `COPIES/N`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from agentobs.cli import main
from tests.effects.workspaces.scripted_agent import observed
from tests.third_party_programs.release_script import Provider, is_sub_agent

SNAPSHOT_SECONDS = 60.0


def run(copies: Path, arguments: list[str]) -> None:
    """Run agentobs with `arguments`; copy the workspace before the tools of turn N to `copies/N`."""
    root, provider = Path.cwd(), Provider()

    def before_response(prompt: str, turn: int) -> None:
        for each in provider.observers:
            assert each.settle(SNAPSHOT_SECONDS)
        if not is_sub_agent(prompt):
            ignored = shutil.ignore_patterns(".git")
            shutil.copytree(root, copies / str(turn), symlinks=True, ignore=ignored)

    provider.before_response = before_response
    with (
        pytest.MonkeyPatch.context() as patch,
        observed(patch, provider),
        provider.serving() as url,
    ):
        os.environ["ANTHROPIC_BASE_URL"] = url
        main(arguments)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
