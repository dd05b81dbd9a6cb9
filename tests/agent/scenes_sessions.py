"""Scenarios of the loop: sessions that are resumed and forked."""

from __future__ import annotations

from tests.agent.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {}
