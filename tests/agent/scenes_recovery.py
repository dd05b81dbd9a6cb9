"""Scenarios of the loop: failures of the provider, answers that are cut, other models."""

from __future__ import annotations

from tests.agent.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {}
