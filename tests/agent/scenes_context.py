"""Scenarios of the loop: conversations that get too long."""

from __future__ import annotations

from tests.agent.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {}
