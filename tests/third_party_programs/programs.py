"""The programs: what they are, how they are installed, and how they are started.

Node.js programs share one folder with packages, and each Python program has an environment. Both are kept, and created
again if the requirements change.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.third_party_agents.environments import ROOT, environment
from tests.third_party_programs.provider import (
    BACKGROUND_PROMPT,
    FOLLOW_UP,
    OTHER_BACKGROUND_PROMPT,
    OTHER_FOLLOW_UP,
    OTHER_PROMPT,
    OTHER_RESEARCH_PROMPT,
    OTHER_SLOW_PROMPT,
    PROMPT,
    RESEARCH_PROMPT,
    SLOW_PROMPT,
)

FOLDER = ROOT / ".venv" / "programs"
NODE = FOLDER / "node"
HERE = Path(__file__).parent
NODE_PACKAGES = {
    "@anthropic-ai/claude-code": "2.1.332",
    "@anthropic-ai/sdk": "1.14.0",
    "@anthropic-ai/claude-agent-sdk": "0.3.332",
    "zod": "4.6.7",
}
"""The npm packages to install, as of November 2026."""
MODEL_OPTION = ("--model", "claude-sonnet-5")


@dataclass(frozen=True)
class Program:
    """A program; its last argument is the task."""

    title: str
    """How the table names it, with its version."""
    command: Callable[[], tuple[str, ...]]
    """Installs the program if necessary, and returns its command without the task."""
    prompt: str = PROMPT
    other_prompt: str = OTHER_PROMPT
    record_options: tuple[str, ...] = ()
    """Options of `agentobs record`."""
    changed_file: str = "more.txt"
    """The file in which the replay with another text has that text."""
    first: str | None = None
    """The program of an earlier session, which the recorded one resumes."""
    is_in_table: bool = True
    """Whether the program is tested without its name: False for programs whose number of requests depends on timing."""
    is_hard_coded: bool = False
    """Whether the program sends to the provider's own address."""


def claude() -> Path:
    """Return Claude Code. The package contains only a script that looks for this program."""
    [found] = (node() / "@anthropic-ai").glob("claude-code-*/claude")
    return found


def node() -> Path:
    """Return the folder `node_modules` with all packages; install them if necessary."""
    stamp = NODE / "requirements.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != NODE_PACKAGES:
        print(f"installing {', '.join(NODE_PACKAGES)}", file=sys.stderr)
        shutil.rmtree(NODE, ignore_errors=True)
        NODE.mkdir(parents=True)
        packages = [f"{name}@{version}" for name, version in NODE_PACKAGES.items()]
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(NODE), *packages]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        stamp.write_text(json.dumps(NODE_PACKAGES))
    return NODE / "node_modules"


def _claude_code(*options: str) -> Callable[[], tuple[str, ...]]:
    return lambda: (
        str(claude()),
        "--dangerously-skip-permissions",
        *MODEL_OPTION,
        *options,
        "-p",
    )


def _node_script(name: str) -> Callable[[], tuple[str, ...]]:
    def command() -> tuple[str, ...]:
        # Modules look for packages in the folders above their own.
        script = node().parent / name
        shutil.copyfile(HERE / name, script)
        return ("node", str(script))

    return command


def _python_script(name: str, *requirements: str) -> Callable[[], tuple[str, ...]]:
    folder = name.removesuffix(".py")
    return lambda: (str(environment(folder, requirements, FOLDER)), str(HERE / name))


def _tool_version(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]


CLAUDE_CODE = f"Claude Code {NODE_PACKAGES['@anthropic-ai/claude-code']}"
PYTHON_AGENT_SDK = "0.2.189"
MCP = "2.3.0"
LITELLM = "1.110.2"
DSPY = "3.4.1"
PROGRAMS = {
    "claude_code": Program(CLAUDE_CODE, _claude_code()),
    "claude_code_sub_agents": Program(
        f"{CLAUDE_CODE}, two parallel sub-agents with equal prompts",
        _claude_code(),
        RESEARCH_PROMPT,
        OTHER_RESEARCH_PROMPT,
    ),
    "claude_code_background_agents": Program(
        f"{CLAUDE_CODE}, two sub-agents in the background with equal prompts",
        _claude_code(),
        BACKGROUND_PROMPT,
        OTHER_BACKGROUND_PROMPT,
        is_in_table=False,
    ),
    "claude_code_slow_background_agent": Program(
        f"{CLAUDE_CODE}, two sub-agents in the background, one reported before the other ends",
        _claude_code(),
        SLOW_PROMPT,
        OTHER_SLOW_PROMPT,
    ),
    "claude_code_resumed": Program(
        f"{CLAUDE_CODE}, resumed with `--continue`",
        _claude_code("--continue"),
        FOLLOW_UP,
        OTHER_FOLLOW_UP,
        changed_file="wind.txt",
        first="claude_code",
    ),
    "claude_agent_sdk_python": Program(
        f"claude-agent-sdk {PYTHON_AGENT_SDK} (Python)",
        _python_script("agent_sdk.py", f"claude-agent-sdk=={PYTHON_AGENT_SDK}"),
    ),
    "claude_agent_sdk_node": Program(
        f"@anthropic-ai/claude-agent-sdk {NODE_PACKAGES['@anthropic-ai/claude-agent-sdk']} (Node.js)",
        _node_script("agent_sdk.mjs"),
    ),
    "sdk_tool_runner": Program(
        f"@anthropic-ai/sdk {NODE_PACKAGES['@anthropic-ai/sdk']}, tool runner (Node.js)",
        _node_script("sdk_tool_runner.mjs"),
    ),
    "hard_coded": Program(
        "a Node.js program with a fixed base URL, `--node`",
        _node_script("hard_coded_agent.mjs"),
        record_options=("--node",),
        is_hard_coded=True,
    ),
    "litellm": Program(
        f"litellm {LITELLM}", _python_script("litellm_agent.py", f"litellm=={LITELLM}")
    ),
    "dspy": Program(f"dspy {DSPY}", _python_script("dspy_agent.py", f"dspy=={DSPY}")),
    "curl": Program("a shell script with curl and jq", lambda: ("sh", str(HERE / "curl_agent.sh"))),
}
"""The programs by name."""
