"""Observed effects with real programs: `python -m tests.third_party_programs.effects_proof`.

The MCP package for Python calls a server over standard input and output and over HTTP; Claude Code runs shell commands
and calls a server of its own configuration. The proof prints the rows and checks them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.loopback import serving
from tests.provider_script import call, message_events, text
from tests.queries import query
from tests.third_party_agents.environments import environment
from tests.third_party_programs.programs import FOLDER, MCP, claude

HERE = Path(__file__).parent

COMMANDS = ("echo hello from 'the shell'; ls | wc -l", "exit 3")
STEPS = (
    call(1, "Bash", command=COMMANDS[0], description="x"),
    call(2, "mcp__calc__add", a=1, b=2),
    call(3, "Bash", command=COMMANDS[1], description="y"),
)


class Provider(BaseHTTPRequestHandler):
    """Answers requests with tools with the next step, and others with a text."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        blocks: list[Any] = [
            block
            for message in body["messages"]
            for block in (message["content"] if isinstance(message["content"], list) else ())
        ]
        done = sum(block["type"] == "tool_result" for block in blocks)
        is_step = any(tool.get("name") == "Bash" for tool in body.get("tools", [])) and done < 3
        answer = STEPS[done] if is_step else text("all done")
        data = b"".join(message_events(answer, number=done + 1, model=body["model"]))
        self._send(data, "text/event-stream")

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


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def record(home: Path, folder: Path, variables: dict[str, str], *command: str) -> str:
    """Record a command with its effects, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "agentobs", "--home", str(home), "record", "--effects", "commands,mcp", "--", *command],
        env={**os.environ, **variables, "PYTHONPATH": str(HERE.parent.parent)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )  # fmt: skip
    return done.stdout


def mcp_package(folder: Path) -> None:
    """Check the calls of the MCP package over both transports."""
    python, port = environment("mcp", (f"mcp=={MCP}",), FOLDER), free_port()
    server = str(HERE / "effects_server.py")
    config = {
        "stdio": {"command": str(python), "args": [server]},
        "http": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"},
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": config}))
    command = [str(python), server, str(port)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        while "running on" not in running.stderr.readline():
            pass
        client = [str(python), str(HERE / "effects_client.py"), "--mcp-config", "mcp.json"]
        output = record(folder / "home", folder, {}, *client)
    finally:
        running.kill()
        running.communicate()
    assert output == "3 True\n3 True\n", output
    columns = "server, transport, method, tool, outcome"
    rows = query(f"SELECT {columns} FROM mcp_calls ORDER BY started_ns", home=folder / "home")
    assert rows == [
        (transport, transport, *each)
        for transport in ("stdio", "http")
        for each in (
            ("initialize", None, "ok"),
            ("tools/list", None, "ok"),
            ("tools/call", "add", "ok"),
            ("tools/call", "fail", "tool_error"),
        )
    ], rows
    print(f"mcp {MCP}: 8 calls over stdio and HTTP")


def claude_code(folder: Path) -> None:
    """Check the commands and the MCP calls of Claude Code."""
    python = environment("mcp", (f"mcp=={MCP}",), FOLDER)
    (folder / "config").mkdir()
    own = {"calc": {"command": str(python), "args": [str(HERE / "effects_server.py")]}}
    settings = {"hasCompletedOnboarding": True, "mcpServers": own}
    (folder / "config" / ".claude.json").write_text(json.dumps(settings))
    program = claude()
    with serving(Provider) as url:
        variables = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-ant-api03-test",
            "CLAUDE_CONFIG_DIR": str(folder / "config"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
        }
        options = ("--dangerously-skip-permissions", "--model", "claude-sonnet-5", "-p", "go")
        output = record(folder / "home", folder, variables, str(program), *options)
    assert output == "all done\n", output
    columns = "tool_use_id, exit_code, link_rule"
    rows = query(
        f"SELECT {columns} FROM commands WHERE link_rule = 'contained_command' ORDER BY started_ns",
        home=folder / "home",
    )
    assert rows == [
        ("toolu_1", 0, "contained_command"),
        ("toolu_3", 3, "contained_command"),
    ], rows
    columns = "server, tool, outcome, tool_use_id, link, link_rule"
    rows = query(f"SELECT {columns} FROM mcp_calls WHERE tool IS NOT NULL", home=folder / "home")
    assert rows == [("calc", "add", "ok", "toolu_2", "observed", "named_call")], rows
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    print(f"{version.stdout.strip()}: commands and MCP calls have their tool calls")


if __name__ == "__main__":
    for proof in (mcp_package, claude_code):
        with tempfile.TemporaryDirectory() as created:
            proof(Path(created))
