"""A recorded session of twelve turns that edits, renames, deletes and runs a failing test, and its provider."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.cli import main
from agentobs.effects.switches import OBSERVERS
from agentobs.effects.workspaces.observer import FileObserver
from tests.effects.workspaces.trees import FileState, files_of, git, write

AGENT = Path(__file__).with_name("file_agent.py")
KEY = "sk-ant-made-up-0123456789"
RECORDED, OTHER, HALTING = "claude-sonnet-5", "claude-opus-5", "claude-haiku-4-5"
Call = tuple[str, dict[str, str]]
CHECK: Call = ("shell", {"command": "sh check.sh"})
START = {
    "src/calc.py": "def add(a, b):\n    return a - b\n",
    "legacy.py": "import calc\n",
    "check.sh": "grep -q 'a + b' src/sums.py && test ! -e legacy.py\n",
}
RECORDED_TURNS: Sequence[Sequence[Call]] = [
    [("edit", {"path": "src/calc.py", "old": "def add", "new": "# adds\ndef add"})],
    [("move", {"path": "src/calc.py", "to": "src/sums.py"})],
    [("write", {"path": "notes.md", "content": "renamed\n"})],
    [("remove", {"path": "legacy.py"})],
    [CHECK],
    [("edit", {"path": "src/sums.py", "old": "a - b", "new": "a * b"})],
    [CHECK],
    [("write", {"path": "src/util.py", "content": "x = 1\n"})],
    [("edit", {"path": "notes.md", "old": "renamed", "new": "tried"})],
    [CHECK],
    [("remove", {"path": "src/util.py"})],
    [],
]
OTHER_TURNS: Sequence[Sequence[Call]] = [
    *RECORDED_TURNS[:5],
    [("edit", {"path": "src/sums.py", "old": "a - b", "new": "a + b"})],
    [CHECK],
    [],
]


class FileProvider:
    """Answers by the model of a request and the number of responses in it."""

    def __init__(self, scripts: Mapping[str, Sequence[Sequence[Call]]]) -> None:
        self.scripts = scripts
        self.url = ""
        self.observers: list[FileObserver] = []
        self.requests: list[dict[str, Any]] = []
        self.before_response: Callable[[str, int], None] = lambda model, turn: None
        """Is called with the model and the turn; an exception is status 529."""

    def response(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a response."""
        model, messages = body["model"], body["messages"]
        self.requests.append(body)
        turn = sum(each["role"] == "assistant" for each in messages) + 1
        for observer in self.observers:
            assert observer.settle(60)
        try:
            self.before_response(model, turn)
            calls = self.scripts[model][turn - 1]
        except Exception:
            headers = {"type": "overloaded_error", "message": "down"}
            return 529, {"type": "error", "error": headers}
        content: list[dict[str, Any]] = [
            {"type": "tool_use", "id": f"toolu_{turn}_{at}", "name": name, "input": value}
            for at, (name, value) in enumerate(calls)
        ]
        return 200, {
            "id": f"msg_{model}_{turn}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content or [{"type": "text", "text": f"{model} is done."}],
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 100, "output_tokens": 10},
        }


@contextmanager
def serving(provider: FileProvider) -> Iterator[FileProvider]:
    """Serve a provider on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            status, body = provider.response(json.loads(self.rfile.read(length)))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    provider.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def record_session(
    folder: Path, provider: FileProvider, *, is_committed: bool = False
) -> dict[int, dict[bytes, FileState]]:
    """Record the agent in `folder/project` with files; return the files before the tools of each turn.

    Args:
        folder: the directory of the project and its home.
        provider: the provider.
        is_committed: whether the repository of the project has a commit with the files at the start.
    """
    with observed_project(folder, provider, has_repository=True) as at_turn:
        if is_committed:
            git(folder / "project", "add", "--all")
            git(folder / "project", "commit", "-qm", "start")
        command = [sys.executable, "-S", "-E", str(AGENT)]
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    *(
                        "--home",
                        str(folder / "home"),
                        "record",
                        "--name",
                        "fix",
                        "--effects",
                        "files",
                    ),
                    *("--", *command),
                ]
            )
    assert ended.value.code == 0
    return at_turn


@contextmanager
def observed_project(
    folder: Path, provider: FileProvider, *, has_repository: bool
) -> Iterator[dict[int, dict[bytes, FileState]]]:
    """Write the files into `folder/project`, and make it the current directory.

    Yields the files before the tools of each turn. Each response waits for the snapshot of its request.
    """
    root, at_turn = folder / "project", dict[int, dict[bytes, FileState]]()
    write(root, START)
    (root / "check.sh").chmod(0o755)
    if has_repository:
        git(root, "init", "-q")
    provider.before_response = lambda _, turn: at_turn.__setitem__(turn, files_of(root))

    def observer() -> FileObserver:
        provider.observers.append(FileObserver())
        return provider.observers[-1]

    agentobs.stop_recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OBSERVERS, "files", observer)
        patch.setenv("ANTHROPIC_BASE_URL", provider.url)
        patch.setenv("ANTHROPIC_API_KEY", KEY)
        patch.chdir(root)
        yield at_turn
    agentobs.stop_recorder()
    provider.observers.clear()
    provider.before_response = lambda model, turn: None


PYTHON_AGENT = """
import agentobs
from anthropic import Anthropic
from tests.effects.workspaces.file_agent import NAMES, run


@agentobs.session("py-fix", effects=["files"])
def main():
    client = agentobs.record(Anthropic(max_retries=0))
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in NAMES]
    messages = [{"role": "user", "content": "Fix the tests."}]
    while True:
        response = client.messages.create(
            model="claude-sonnet-5", max_tokens=100, messages=messages, tools=tools
        )
        messages.append({"role": "assistant", "content": [e.model_dump() for e in response.content]})
        calls = [each for each in response.content if each.type == "tool_use"]
        if not calls:
            return response.content[0].text
        results = [
            {"type": "tool_result", "tool_use_id": each.id, "content": run(each.name, each.input)}
            for each in calls
        ]
        messages.append({"role": "user", "content": results})
"""
"""The agent in Python: its tools run in its own code, so they run for real in each replay."""


def record_python_session(folder: Path, provider: FileProvider, module: str) -> None:
    """Record the agent in Python, as a module in `folder/project`."""
    opened = observed_project(folder, provider, has_repository=False)
    with opened, pytest.MonkeyPatch.context() as patch:
        (folder / "project" / f"{module}.py").write_text(PYTHON_AGENT)
        patch.syspath_prepend(str(folder / "project"))
        agentobs.start(str(folder / "home"))
        importlib.import_module(module).main()
