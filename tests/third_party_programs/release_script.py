"""A provider with scripted responses for a coding agent: edits, renames, deletions, a failing test, MCP, sub-agents.

The tools are those of Claude Code. The response depends on the conversation, its position and the model: the model
`claude-opus-5` corrects the error that the others leave.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from agentobs.effects.workspaces.observer import FileObserver
from agentobs.provider.anthropic.cloud_frames import FRAMES, enframe
from agentobs.provider.registry import ANTHROPIC, dialect_of
from tests.loopback import serving
from tests.provider_script import message_events, text

RELEASE = "Prepare the release of the sums."
DOCS = "Write the documents of the sums."
TESTS = "Write the tests of the sums."
MESS = "Make a mess."
WAIT = "Wait for me."
SUMS = "Add the sums."
FOLLOW_UP = "Add a license."
CORRECTING_MODEL = "claude-opus-5"
MODEL = "claude-sonnet-5"
VERIFY = "sh check.sh"
Call = tuple[str, dict[str, Any]]


def bash(command: str, **options: Any) -> Call:
    """Return a call of the shell."""
    return "Bash", {"command": command, "description": "Run a command", **options}


def write(path: str, content: str) -> Call:
    """Return a call that writes a file."""
    return "Write", {"file_path": path, "content": content}


def edit(path: str, old: str, new: str) -> Call:
    """Return a call that replaces a text in a file."""
    return "Edit", {"file_path": path, "old_string": old, "new_string": new}


def read(path: str) -> Call:
    """Return a call that reads a file, which Claude Code requires before an edit."""
    return "Read", {"file_path": path}


def agent(prompt: str) -> Call:
    """Return a call that starts a sub-agent and waits for it."""
    kind = {"subagent_type": "general-purpose", "run_in_background": False}
    return "Agent", {"description": "Write", "prompt": prompt, **kind}


def script(root: str) -> dict[str, list[list[Call]]]:
    """Return the calls of each response, by the prompt of the conversation.

    Args:
        root: the working directory, because the tools of Claude Code take absolute paths.
    """
    wait = "while ! test -e {0}; do sleep 0.02; done"
    job = f"({wait.format('../go2')}; echo late > ../later.txt; touch ../done2) > /dev/null 2>&1 &"
    return {
        RELEASE: [
            [
                write(f"{root}/src/total.py", "def total(a, b):\n    return a - b\n"),
                write(f"{root}/check.sh", "grep -rq 'a + b' src\n"),
            ],
            [read(f"{root}/src/total.py"), bash("sh check.sh")],
            [edit(f"{root}/src/total.py", "def", "# Adds.\ndef")],
            [bash("cd docs && echo 'see sums' > index.txt && sh ../check.sh; cat index.txt")],
            [
                bash(
                    f"echo more >> index.txt; cd {root} && git add -A && git mv src/total.py src/sums.py"
                )
            ],
            [("mcp__calc__add", {"a": 1, "b": 2}), ("mcp__web__add", {"a": 3, "b": 4})],
            [agent(DOCS), agent(TESTS)],
            [bash("rm notes.md"), write(f"{root}/version.txt", "2\n")],
            [bash("printf '\\000\\001' > data.bin")],
            [read(f"{root}/README.md"), read(f"{root}/windows.txt")],
            [
                edit(f"{root}/README.md", "old", "new"),
                edit(f"{root}/windows.txt", "two", "2"),
            ],
        ],
        DOCS: [
            [write(f"{root}/docs/sums.md", "# Sums\n\nAdds two numbers.\n")],
            [edit(f"{root}/docs/sums.md", "two", "2")],
        ],
        TESTS: [
            [write(f"{root}/tests/sums.sh", "echo one\necho two\n")],
            [bash("rm tests/old.sh")],
        ],
        MESS: [
            [
                bash(
                    f"{wait.format('go')}; echo late > late.txt; touch done",
                    run_in_background=True,
                )
            ],
            [write(f"{root}/written.txt", "written\n")],
            [bash(f"touch go; {wait.format('done')}; echo x > x.txt")],
            [bash("echo 1 > p1.txt"), bash("echo 2 > p2.txt")],
            [bash("cat > here.txt <<'EOF'\nfish & chips\nEOF\ncd docs && ls")],
            [bash("echo y > y.txt"), write(f"{root}/written2.txt", "written\n")],
            [bash("git stash -u -q && git stash pop -q && git checkout -q -b other")],
            [bash(f"{job} echo started")],
            [bash(f"touch ../go2; {wait.format('../done2')}; echo z > z.txt")],
            [bash("exit 7"), bash("kill -9 $$")],
            [bash("echo 'a b' > 'sp ace.txt'")],
        ],
        SUMS: [
            [("mcp__calc__add", {"a": 1, "b": 2}), ("mcp__web__add", {"a": 3, "b": 4})],
            [write(f"{root}/sum.txt", "3\n7\n")],
        ],
        WAIT: [[bash("touch started; sleep 600; touch never")]],
        FOLLOW_UP: [[write(f"{root}/LICENSE", "Free.\n")]],
    }


CORRECTION: list[Callable[[str], list[Call]]] = [
    lambda root: [read(f"{root}/src/sums.py")],
    lambda root: [edit(f"{root}/src/sums.py", "a - b", "a + b")],
]
"""The calls of the correcting model after turn 5."""


class Provider:
    """Answers requests by the script."""

    def __init__(self) -> None:
        """Start without requests."""
        self.before_response: Callable[[str, int], None] = lambda prompt, turn: None
        self.observers: list[FileObserver] = []
        """The observers of files that the recording has created, if it runs in this process."""
        self.paths: list[str] = []
        """The paths of the requests."""

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on a free port; yield the base URL."""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                named = dialect_of(self.path).model_in(self.path)
                events = provider.respond({"model": named, **body})
                provider.paths.append(self.path)
                if self.path.endswith("/invoke"):  # Bedrock
                    headers = {"content-type": "text/event-stream"}
                    message = ANTHROPIC.message(headers, b"".join(events)).raw
                    self._send(json.dumps(message).encode(), "application/json")
                elif "/model/" in self.path:
                    data = [each.partition(b"data: ")[2].strip() for each in events]
                    self._send(b"".join(enframe([each]) for each in data), FRAMES)
                else:
                    self._send(b"".join(events), "text/event-stream")

            def do_HEAD(self) -> None:
                self._send(b"", "text/plain")

            def _send(self, data: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        with serving(Handler) as url:
            yield url

    def respond(self, body: dict[str, Any]) -> list[bytes]:
        """Return the events of one response."""
        if not body.get("tools"):
            return message_events(text("A title"), model=body["model"])
        prompt, turn = position(body["messages"])
        self.before_response(prompt, turn)
        calls = self._calls(body, prompt, turn)
        blocks: list[dict[str, Any]] = [
            {"type": "tool_use", "id": call_id(prompt, turn, at), "name": name, "input": value}
            for at, (name, value) in enumerate(calls)
        ]
        return message_events(
            *(blocks or [text(f"Done: {prompt}")]),
            number=int(call_id(prompt, turn).replace("_", "")[5:]),
            model=body["model"],
            input_tokens=len(json.dumps(body)) // 4,
        )

    def _calls(self, body: dict[str, Any], prompt: str, turn: int) -> Sequence[Call]:
        root = working_directory(body)
        if prompt == RELEASE and turn > 5 and body["model"] == CORRECTING_MODEL:
            return CORRECTION[turn - 6](root) if turn - 6 < len(CORRECTION) else []
        turns = script(root)[prompt]
        return turns[turn - 1] if turn <= len(turns) else []


def call_id(prompt: str, turn: int, at: int = 0) -> str:
    """Return the ID of a call in a form of the provider's."""
    number = sum(ord(each) * (place + 7) for place, each in enumerate(prompt)) % 100_000
    return f"toolu_{number}_{turn}_{at}"


def is_sub_agent(prompt: str) -> bool:
    """Return whether a conversation is that of a sub-agent."""
    return prompt in (DOCS, TESTS)


def working_directory(body: dict[str, Any]) -> str:
    """Return the working directory that a request names."""
    found = re.search(r"orking directory: ([^\\\s\"]+)", json.dumps(body))
    assert found is not None, "the request names no working directory"
    return found[1]


def position(messages: list[dict[str, Any]]) -> tuple[str, int]:
    """Return the last prompt of a conversation, and the number of its next response, from 1."""
    turns = 1
    for message in reversed(messages):
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if message["role"] == "assistant":
            turns += 1
            continue
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        for prompt in (RELEASE, DOCS, TESTS, MESS, WAIT, SUMS, FOLLOW_UP):
            if any(each.strip() == prompt for each in texts):
                return prompt, turns
    raise AssertionError(f"no known prompt: {messages}")
