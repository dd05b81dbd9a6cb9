"""Scenarios of the loop: prompts, their cache, and thinking."""

from __future__ import annotations

from tests.agent.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {}
