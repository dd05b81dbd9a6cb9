"""Scenarios of the loop: hooks and automatic approval."""

from __future__ import annotations

from tests.agent.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {}
