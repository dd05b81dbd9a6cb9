"""A worker of trials: a process that has imported the SDK, and forks a process for each try.

So each try costs only the agent's own imports and its run. Only the process of the try imports the agent, so it is as
fresh as a new interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from agentobs import world


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one try ended."""

    result: Literal["matched", "differs", "diverged", "raised", "uncallable", "error"]
    """`differs`: a request is not the recorded one; `diverged`: any other divergence; `raised`: the agent raised an
    exception that was not recorded; `uncallable`: the recorded entry cannot be called from here; `error`: the
    process ended or was stopped, or the fixture cannot be read."""
    text: str = ""
    """The request that differs, else a sentence about the failure."""
    shown: Sequence[str] = ()
    """The first difference, in lines."""
    rules: Sequence[str] = ()
    """The names of the rules that would hide differences."""
    site: str = ""
    """The line of the agent's code; empty if unknown."""
    why: str = ""
    """The cause of the difference; empty if unknown."""
    cure: str = ""
    """How to fix it; empty if unknown."""
    opened: str = ""
    """The first file that was looked for outside of the project directory, and the line that did; empty if none."""


@dataclass(frozen=True, slots=True)
class Order:
    """The task of the process of a try."""

    fixture: str
    """The fixture's file."""
    project: str
    """The directory that the agent's files lie under."""
    directory: str
    """The directory to run in."""
    environment: dict[str, str]
    """Environment variables to set."""
    shift_s: int
    """How many seconds the clock is ahead."""
    rules: Sequence[str]
    """Rules besides those of the fixture."""
    deadline_s: float
    """How long the agent may make no progress, in seconds."""
    limit_s: float
    """After how many seconds the process ends itself."""
    result: str
    """The file for the `Outcome`."""
    stacks: str
    """The file for the stacks of a process that has ended itself."""


class Worker:
    """A process that runs tries one after the other; it starts with the first of them."""

    def __init__(self, project: Path, environment: dict[str, str]) -> None:
        """Prepare a worker for agents of a project, with some environment variables that differ."""
        self._environment = {**world.environment(), **environment}
        if path := self._environment.get("PYTHONPATH"):
            found = (str(project / each) for each in path.split(os.pathsep) if each)
            self._environment["PYTHONPATH"] = os.pathsep.join(found)
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._try: int | None = None

    def __enter__(self) -> Worker:
        """Return this object; nothing is started yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the process, the running try, and all processes that it has started."""
        self._stop()

    def begin(self, order: dict[str, Any]) -> None:
        """Start a try; `end` waits for it."""
        if self._process is None:
            self._start()
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # `end` finds out why it ended
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()

    def end(self, limit_s: float) -> int | None:
        """Wait for the end of the try and return its exit code, negative for a signal; None if it took too long."""
        stop_ns = world.monotonic() + int(limit_s * 1e9)
        while True:
            left_s = max(stop_ns - world.monotonic(), 0) / 1e9
            try:
                line = self._lines.get(timeout=left_s)
            except queue.Empty:
                self._stop()
                return None
            if not line:
                return self._stop()
            told = json.loads(line)
            if "pid" in told:
                self._try = told["pid"]
                continue
            _kill_group(self._try)
            self._try = None
            return int(told["code"])

    def _start(self) -> None:
        # Not `-m`: a module of the project may have the name of one of ours.
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._process, self._lines = process, queue.SimpleQueue()
        threading.Thread(target=_read, args=(process, self._lines), daemon=True).start()

    def _stop(self) -> int:
        """Stop the process and its try, and return the exit code of the process."""
        process, self._process = self._process, None
        if process is None:
            return 0
        _kill_group(self._try)
        self._try = None
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            code = process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        return code


def _read(process: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Forward the output of a process line by line, and an empty line when it ends."""
    if process.stdout is not None:
        with process.stdout as written:
            for line in written:
                lines.put(line)
    lines.put(b"")


def _kill_group(leader: int | None) -> None:
    """End the process of a try and the processes that it has started, if any are left."""
    if leader is None or not hasattr(os, "killpg"):
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


_START = (
    "import sys; "
    f"sys.path.append({str(Path(__file__).resolve().parents[2])!r}); "
    "from replay.trial.trial_main import main; main()"
)
