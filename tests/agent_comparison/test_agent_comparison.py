"""The same agent with agentobs, pydantic-ai and the SDK's tool runner; `make test-agents` adds the Claude Agent SDK."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent_comparison.bank import FOLDER, PROMPT, compare, lines

AGENTS = ("with_agentobs", "with_pydantic_ai", "with_claude_agent_sdk", "with_tool_runner")
PAGE = Path(__file__).parents[2] / "docs" / "agent_object.md"


@pytest.mark.parametrize("name", ["with_agentobs", "with_pydantic_ai", "with_tool_runner"])
def test_the_agent_does_the_same(name: str) -> None:
    """The agents do the same if the person agrees or refuses, and if the agent or its sub-agent exceeds the budget."""

    def answer(ask: Callable[[str], bool]) -> str:
        # A module may read the URL of the provider when it is imported.
        agent = importlib.import_module(f"tests.agent_comparison.{name}")
        return str(asyncio.run(agent.answer(PROMPT, ask)))

    compare(answer)


def test_ours_needs_no_more_lines() -> None:
    """With agentobs, the agent takes no more lines than with each other framework."""
    counts = {name: lines(name) for name in AGENTS}
    assert counts["with_agentobs"] == min(counts.values())


@pytest.mark.parametrize("name", AGENTS)
def test_the_page_shows_the_tested_agents(name: str) -> None:
    """The page contains the tested code, and the number of its lines."""
    code = (FOLDER / f"{name}.py").read_text().split('"""', 2)[2].strip()
    page = PAGE.read_text()
    assert code in page
    assert f"({lines(name)} lines)" in page
