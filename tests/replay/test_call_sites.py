"""The owner of a file: agentobs, a library or the agent, determined by its path."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import agentobs
from replay.agent_code.call_sites import is_agents

ROOT = Path(agentobs.__file__).parent.parent
STANDARD = Path(asyncio.__file__).parent.parent


@pytest.mark.parametrize(
    ("file", "is_fixture"),
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
def test_files_next_to_a_package_belong_to_the_agent(file: Path | str, is_fixture: bool) -> None:
    """A folder whose name only starts like that of a package belongs to the agent, for example the demo."""
    assert is_agents(str(file)) is is_fixture
