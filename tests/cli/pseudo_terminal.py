"""Run a command on a terminal of a given size, and return what it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Shown:
    code: int
    raw: str
    """The output with escape sequences."""

    @property
    def lines(self) -> list[str]:
        """The lines without escape sequences; what was overwritten after a carriage return is left out."""
        plain = _ESCAPES.sub("", self.raw)
        return [line.rpartition("\r")[2].rstrip() for line in plain.split("\n")]


def on_terminal(home: Path, *arguments: str, columns: int = 80, **variables: str) -> Shown:
    """Run a command of agentobs on a terminal with 24 lines; `variables` are added to the environment."""
    command = [sys.executable, "-m", "agentobs", "--home", str(home), *arguments]
    return program_on_terminal(command, columns=columns, **variables)


def program_on_terminal(command: Sequence[str], *, columns: int = 80, **variables: str) -> Shown:
    """Run a program on a terminal with 24 lines; `variables` are added to the environment."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    hidden = ("COLUMNS", "NO_COLOR", "FORCE_COLOR")
    environment = {name: each for name, each in os.environ.items() if name not in hidden}
    running = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**environment, "TERM": "xterm-256color", **variables},
    )  # fmt: skip
    os.close(theirs)
    shown = bytearray()
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end of the terminal was closed
            break
        if not data:
            break
        shown += data
    os.close(ours)
    return Shown(running.wait(), shown.decode().replace("\r\n", "\n"))
