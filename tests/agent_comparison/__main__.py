"""Runs the agent of the Claude Agent SDK, in a separate environment: `make test-agents`.

The package contains its own Claude Code, which is a program of 260 MB.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile

from tests.agent_comparison.bank import PROMPT, compare
from tests.third_party_agents.environments import ROOT, environment

REQUIREMENTS = ("claude-agent-sdk==0.2.189",)


def main(arguments: list[str]) -> None:
    """Run the agent in its environment; with the argument `inside`, in this process."""
    if arguments != ["inside"]:
        python = environment("claude_agent_sdk", REQUIREMENTS)
        command = [str(python), "-m", "tests.agent_comparison", "inside"]
        subprocess.run(command, cwd=ROOT, check=True, timeout=300)
        return
    from tests.agent_comparison.with_claude_agent_sdk import answer

    with tempfile.TemporaryDirectory() as home:
        os.environ |= {
            "CLAUDE_CONFIG_DIR": home,  # settings of the user must not change the agent
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",  # the result of a sub-agent is awaited
            "ENABLE_TOOL_SEARCH": "false",  # tools are declared, not searched for
        }
        os.chdir(home)
        compare(
            lambda ask: asyncio.run(asyncio.wait_for(answer(PROMPT, ask), 120)),
            finishes_turn=True,  # Claude Code starts tools before it checks the budget
        )
        os.chdir(ROOT)
    print("the agent of the Claude Agent SDK does the same")


if __name__ == "__main__":
    main(sys.argv[1:])
