"""Environments with third-party frameworks: what is installed in them, and how they are created.

An environment is created once, and again if its requirements change. agentobs is not installed in it, but imported from
the work tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv" / "agents"
AGENTS: dict[str, tuple[str, ...]] = {
    "tool_runner": ("anthropic==2.12.0",),
    "pydantic_agent": ("pydantic-ai-slim[anthropic]==2.68.0",),
    "langchain_agent": ("langchain==1.4.7", "langchain-anthropic==1.7.7"),
    "llm_agent": ("llm==0.36", "llm-anthropic==0.30"),
    "raw_sdk_agent": ("anthropic==0.40.0", "httpx==0.27.2"),
    "strands_agent": ("strands-agents[anthropic]==1.62.0",),
    "litellm_agent": ("litellm==1.110.2",),
    "instructor_agent": ("instructor[anthropic]==1.17.0",),
    "crewai_agent": ("crewai[anthropic]==1.15.30",),
    # The framework passes `temperature` and creates `MessageParam`, which SDKs from 1.0 and 2.0 on do not accept.
    "llama_index_agent": (
        "llama-index-core==0.14.25",
        "llama-index-llms-anthropic==0.12.3",
        "anthropic==0.125.0",
    ),
    "agno_agent": ("agno==3.1.10", "anthropic==2.14.0"),
    "haystack_agent": ("anthropic-haystack==8.0.1",),
    "inspect_agent": ("inspect-ai==0.3.285", "anthropic==2.14.0"),
    # Of the next three, two retry with tenacity and do not require it.
    "smolagents_agent": ("smolagents[litellm]==1.26.0", "tenacity==9.1.4"),
    "openai_agents_agent": ("openai-agents[litellm]==0.24.0", "tenacity==9.1.4"),
    "google_adk_agent": ("google-adk==2.13.0", "litellm==1.110.2"),
    "dspy_litellm_agent": ("dspy==3.4.1", "litellm==1.110.2"),
    # The framework was written for mcp 1, and creates `MessageParam` as well.
    "mcp_agent_agent": ("mcp-agent[anthropic]==0.2.6", "mcp==1.30.0", "anthropic==1.17.0"),
    "dspy_agent": ("dspy==3.4.1",),
    "aider_agent": (),
}
"""The packages to install for each agent, as of November 2026."""
PROGRAMS = {"aider-chat": "aider-chat==0.86.2"}
"""Programs whose pins exclude the requirements of agentobs, so that they have a separate environment."""


def own_requirements() -> list[str]:
    """Return the requirements of agentobs and its pytest plugin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["pytest"]]


def program(name: str, command: str) -> Path:
    """Return the path of a command of a program, which is installed first if necessary."""
    return environment(name, (PROGRAMS[name],)).parent / command


def environment(
    name: str, requirements: tuple[str, ...], environments: Path = ENVIRONMENTS
) -> Path:
    """Return the Python interpreter of an environment with all `requirements`; create the environment if necessary."""
    folder = environments / name
    python, stamp = folder / "bin" / "python", folder / "requirements.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != list(requirements):
        print(f"creating {folder.relative_to(ROOT)}", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *requirements], env=unconstrained(), check=True)
        stamp.write_text(json.dumps(requirements))
    return python


def unconstrained() -> dict[str, str]:
    """Return the environment variables for pip, without the constraints of the project.

    The constraints conflict with the requirements of some agents.
    """
    return {name: value for name, value in os.environ.items() if not name.endswith("_CONSTRAINT")}
