"""The agent of dspy, which sends requests through litellm."""

from __future__ import annotations

import functools

from tests.third_party_agents import dspy_agent

PACKAGES = ("dspy", "litellm", "httpx")
RECORDED_WITH = dspy_agent.RECORDED_WITH
run = functools.partial(dspy_agent.run, engine="litellm", path="")
