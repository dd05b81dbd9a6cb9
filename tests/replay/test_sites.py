"""Whose code a file is, by where it lies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import agentobs
from replay.agent_code.call_sites import is_agents

ROOT = Path(agentobs.__file__).parent.parent
STANDARD = Path(asyncio.__file__).parent.parent


@pytest.mark.parametrize(
    ("file", "is_one"),
    [
        (ROOT / "agentobs-demo" / "refund_agent.py", True),
        (ROOT / "replayed.py", True),
        (STANDARD.with_name(f"{STANDARD.name}-mine") / "agent.py", True),
        (ROOT / "agentobs" / "agent" / "loop.py", False),
        (ROOT / "replay" / "plugin.py", False),
        (STANDARD / "asyncio" / "tasks.py", False),
        (ROOT / ".venv" / "lib" / "site-packages" / "anthropic" / "_client.py", False),
        ("<string>", False),
    ],
    ids=lambda value: Path(value).name if not isinstance(value, bool) else "",
)
def test_what_lies_beside_a_package_is_the_agents(file: Path | str, is_one: bool) -> None:
    """A folder whose name only begins like that of ours or a library's is the agent's, such as that of the demo."""
    assert is_agents(str(file)) is is_one
