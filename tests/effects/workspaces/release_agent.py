"""A recorded agent of twelve turns: edits, a renaming, deletions, a failing test, a call of an MCP server, and two
concurrent sub-agents in the same tree.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import agentobs
from tests.effects.workspaces.scripted_agent import Agent, Provider, Script, observed
from tests.effects.workspaces.trees import FileState, files_of, git, write

PROMPT = "Prepare the release of the sums"
DOCS, TESTS = "Write the documents of the sums", "Write the tests of the sums"
SCRIPT: Script = {
    PROMPT: [
        [
            ("write", {"path": "src/total.py", "content": "def total(a, b):\n    return a - b\n"}),
            ("write", {"path": "check.sh", "content": "grep -q 'a + b' src/total.py\n"}),
        ],
        [
            (
                "edit",
                {"path": "src/total.py", "old_string": "def", "new_string": "# Adds.\ndef"},
            )
        ],
        [("run", {"command": "sh check.sh"})],
        [("edit", {"path": "src/total.py", "old_string": "a - b", "new_string": "a + b"})],
        [("run", {"command": "sh check.sh && echo passed > result.txt"})],
        [("mcp__calc__add", {"a": 1, "b": 2})],
        [("move", {"path": "src/total.py", "to": "src/sums.py"})],
        [("task", {"prompt": DOCS}), ("task", {"prompt": TESTS})],
        [("remove", {"path": "notes.md"})],
        [("run", {"command": "printf '\\000\\001' > data.bin"})],
        [("edit", {"path": "README.md", "old_string": "old", "new_string": "new"})],
    ],
    DOCS: [
        [("write", {"path": "docs/sums.md", "content": "# Sums\n\nAdds two numbers.\n"})],
        [("edit", {"path": "docs/sums.md", "old_string": "two", "new_string": "2"})],
    ],
    TESTS: [
        [("write", {"path": "tests/sums.sh", "content": "echo one\necho two\n"})],
        [("remove", {"path": "tests/old.sh"})],
    ],
}
MESS = "Make a mess"
MESS_SCRIPT: Script = {
    MESS: [
        [
            ("look", {}),
            ("run", {"command": "for each in mi*.txt; do echo messy >> $each; done"}),
            ("run", {"command": "true"}),
        ],
        [("edit", {"path": "README.md", "old_string": "# Numbers", "new_string": "# Sums"})],
    ]
}
"""A session after the other one; several of its calls may have changed a file."""
START = {
    "README.md": "# Numbers\nold text\n",
    "notes.md": "by hand\n",
    "tests/old.sh": "echo old\n",
}


class Release(NamedTuple):
    """What was recorded."""

    home: Path
    root: Path
    at_turn: dict[int, dict[bytes, FileState]]
    """The files before the tools of each turn of the main agent."""


class ClientSession:
    """Stands for the client of the package mcp: a server that adds."""

    async def send_request(self, request: Any, result_type: Any = None) -> Any:
        """Return the result of a call."""
        del result_type
        return Model(
            {
                "content": [
                    {
                        "type": "text",
                        "text": str(sum(request.value["params"]["arguments"].values())),
                    }
                ]
            }
        )


class Model:
    """Stands for a model of pydantic."""

    def __init__(self, value: dict[str, Any]) -> None:
        """Hold a value."""
        self.value = value

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return the value."""
        del options
        return self.value


def call_server(tool: str, arguments: dict[str, Any]) -> str:
    """Call a tool with the client of this process."""
    client = sys.modules["mcp.client.session"].ClientSession
    request = Model({"method": "tools/call", "params": {"name": tool, "arguments": arguments}})
    return str(asyncio.run(client().send_request(request)).value)


def record_release(folder: Path) -> Release:
    """Record the session `release` in a home under `folder`."""
    agentobs.stop_recorder()
    root, home = folder / "workspace", folder / "home"
    root.mkdir()
    git(root, "init", "-q")
    write(root, START)
    at_turn: dict[int, dict[bytes, FileState]] = {}
    provider = Provider(SCRIPT)

    def note(prompt: str, turn: int) -> None:
        if prompt == PROMPT:
            at_turn[turn] = files_of(root)

    provider.before_response = note
    module = ModuleType("mcp.client.session")
    module.ClientSession = ClientSession  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch, observed(patch, provider):
        patch.setitem(sys.modules, module.__name__, module)
        patch.chdir(root)
        agentobs.start(str(home))
        agent = Agent(root, provider)
        agent.servers["calc"] = call_server
        with agentobs.session("release", effects=["files", "commands", "mcp"]):
            agent.run(PROMPT)
    agentobs.stop_recorder()
    return Release(home, root, at_turn)


def record_mess(release: Release) -> None:
    """Record the session `mess` in the same workspace; a person changes files before, during and after it."""
    agentobs.stop_recorder()
    root = release.root
    write(root, {"mix.txt": "by a person\n"})
    with (root / "README.md").open("a") as file:
        file.write("between\n")
    provider = Provider(MESS_SCRIPT)

    def interfere(prompt: str, turn: int) -> None:
        if turn == 2:
            write(root, {"person.txt": "during\n"})

    provider.before_response = interfere
    with pytest.MonkeyPatch.context() as patch, observed(patch, provider):
        patch.chdir(root)
        agentobs.start(str(release.home))
        with agentobs.session("mess", effects=["files", "commands"]):
            Agent(root, provider).run(MESS)
    agentobs.stop_recorder()
    with (root / "README.md").open("a") as file:
        file.write("after\n")
