"""Which files belong to the agent, and not to agentobs or a library, as determined by their paths."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import agentobs
from replay.agent_code.call_sites import is_agents

ROOT = Path(agentobs.__file__).parent.parent
STANDARD = Path(asyncio.__file__).parent.parent


@pytest.mark.parametrize(
    ("file", "is_agent_code"),
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
def test_files_next_to_a_package_belong_to_the_agent(file: Path | str, is_agent_code: bool) -> None:
    """A file belongs to the agent even if its name or folder starts with the name of a package, as `agentobs-demo`
    does.
    """
    assert is_agents(str(file)) is is_agent_code
