"""Aider, a program with its own environment: agentobs records the process that starts it, and not the program."""

from __future__ import annotations

import os
import subprocess
import tempfile

import agentobs
from tests.third_party_agents.environments import program
from tests.third_party_agents.provider import FINAL_TEXT, PROMPT

PROGRAM = "aider-chat"
PACKAGES = ()
RECORDED_WITH = "`with agentobs.record_all():`"
IS_RECORDED = False
OPTIONS = (
    "--model=anthropic/claude-sonnet-4-5",
    "--yes-always",
    "--no-git",
    "--no-analytics",
    "--no-check-update",
    "--no-pretty",
    "--no-show-model-warnings",
    "--no-show-release-notes",
)


def run(url: str, *, prompt: str = PROMPT) -> str:
    """Ask Aider in an empty folder; it can send requests, but it has no tools."""
    key = {"ANTHROPIC_API_BASE": url, "ANTHROPIC_API_KEY": "sk-ant-a-made-up-key-0123456789"}
    with agentobs.record_all(), agentobs.session("trip"), tempfile.TemporaryDirectory() as folder:
        command = [str(program(PROGRAM, "aider")), *OPTIONS, f"--message={prompt}"]
        environ = {**os.environ, **key, "HOME": folder}
        environ.pop("PYTHONPATH", None)
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, check=True
        )
    return FINAL_TEXT if FINAL_TEXT in done.stdout else done.stdout
