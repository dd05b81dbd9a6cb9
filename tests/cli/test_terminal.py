"""`agentobs run` at a terminal: the user is prompted for approval, and can interrupt."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.provider import Provider, call, message, streamed, text

TOOLS = """
from agentobs.agent import tool

@tool(subject="what")
def write(what: str) -> str:
    return "wrote " + what
"""
DONE = streamed(message(text("Done.")))


def at_terminal(provider: Provider, home: Path, answer: Callable[[int], None]) -> tuple[int, str]:
    """Run the agent on a separate terminal; `answer` receives the file descriptor when the prompt appears."""
    (home / "mytools.py").write_text(TOOLS)
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "ANTHROPIC_API_KEY": "made-up",
        "ANTHROPIC_BASE_URL": provider.base_url,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [
        sys.executable,
        "-c",
        _LEADER,
        "--home",
        "home",
        "run",
        "Go",
        "--tools",
        "mytools",
        "--max-usd",
        "none",
    ]
    running = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=home
    )
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        asked = False
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # the other end of the terminal was closed
                return
            if not data:
                return
            shown.extend(data)
            if not asked and b"Run it?" in shown:
                asked = True
                time.sleep(0.1)
                answer(ours)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    code = running.wait(60)
    reading.join(10)
    os.close(ours)
    return code, shown.decode()


_LEADER = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from agentobs.cli import main
sys.argv[0] = "agentobs"
main()
"""
"""Makes the process the leader of its terminal, so that Ctrl-C reaches it."""


@pytest.mark.slow
def test_the_user_is_prompted_once(tmp_path: Path) -> None:
    """If the user allows a call for the session, an identical later call runs without a prompt."""
    asking = [streamed(message(call(each, "write", what="x"))) for each in "ab"]
    with Provider([*asking, DONE]) as provider:
        code, shown = at_terminal(provider, tmp_path, lambda fd: void(os.write(fd, b"s\n")))
    assert (code, shown.count("Run it?")) == (0, 1)
    results = [r["messages"][-1]["content"][0]["content"] for r in provider.requests[1:]]
    assert results == ["wrote x", "wrote x"]
    assert '{"tool": "write", "input": {"what": "x"}}' in shown


@pytest.mark.slow
def test_ctrl_c_at_the_prompt(tmp_path: Path) -> None:
    """Ctrl-C at the approval prompt ends the run and its process without a traceback."""
    with Provider([streamed(message(call("a", "write", what="x")))]) as provider:
        code, shown = at_terminal(provider, tmp_path, lambda fd: void(os.write(fd, b"\x03")))
    assert code == 1
    assert "error: error_during_execution: aborted_tools" in shown
    assert "Traceback" not in shown
    assert "Fatal" not in shown


def void(_: object) -> None:
    """Discard a value, so that a lambda returns None."""
