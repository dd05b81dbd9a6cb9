"""A trial worker: a process that has imported the SDK, and forks a new process for each run.

So a run takes only the time to import and run the agent. Only the forked process imports the agent, so
the agent starts in the same state as in a new interpreter.
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
    """How a run ended."""

    result: Literal["matched", "differs", "diverged", "raised", "uncallable", "error"]
    """`differs`: a request differs from the recorded one; `diverged`: any other divergence; `raised`: the agent raised
    an exception that was not recorded; `uncallable`: the recorded entry cannot be called from this project; `error`:
    the process ended or was stopped, or the fixture cannot be read."""
    text: str = ""
    """The request that differs; for other failures, a sentence."""
    difference_lines: Sequence[str] = ()
    """The first difference, as lines of text."""
    rules: Sequence[str] = ()
    """The names of the rules that would hide the differences."""
    site: str = ""
    """The line of the agent's code; empty if unknown."""
    why: str = ""
    """The cause of the difference; empty if unknown."""
    remedy: str = ""
    """How to fix the failure; empty if unknown."""
    missing_file: str = ""
    """The first file that was not found in the current directory but is in the project directory, with the line of code
    that read it; empty if there is none."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The description of a run."""

    fixture: str
    """The path of the fixture's file."""
    project: str
    """The directory that contains the agent's files."""
    directory: str
    """The working directory."""
    environment: dict[str, str]
    """Environment variables to set."""
    shift_s: int
    """The number of seconds by which the clock is set forward."""
    rules: Sequence[str]
    """The names of rules in addition to those of the fixture."""
    deadline_s: float
    """The time limit for an agent that makes no progress, in seconds."""
    limit_s: float
    """The number of seconds after which the process exits."""
    result: str
    """The path of the file for the `Outcome`."""
    stacks: str
    """The path of the file for the stacks of a process that exited because of its time limit."""


class Worker:
    """A process that executes runs one after the other. The first run starts it."""

    def __init__(self, project: Path, environment: dict[str, str]) -> None:
        """Prepare a worker for the agents of a project, with additional environment variables."""
        self._environment = {**world.environment(), **environment}
        if path := self._environment.get("PYTHONPATH"):
            found = (str(project / each) for each in path.split(os.pathsep) if each)
            self._environment["PYTHONPATH"] = os.pathsep.join(found)
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._run_pid: int | None = None

    def __enter__(self) -> Worker:
        """Return this object; no process is started yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the worker process, the current run, and all processes that the run has started."""
        self._stop()

    def start(self, spec: dict[str, Any]) -> None:
        """Start a run; `wait` waits for its end."""
        if self._process is None:
            self._start()
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # `wait` returns the exit code
                process.stdin.write(json.dumps(spec).encode() + b"\n")
                process.stdin.flush()

    def wait(self, limit_s: float) -> int | None:
        """Wait for the end of the run; return its exit code, negative for a signal, or None if it took too long."""
        deadline_ns = world.monotonic() + int(limit_s * 1e9)
        while True:
            remaining_s = max(deadline_ns - world.monotonic(), 0) / 1e9
            try:
                line = self._lines.get(timeout=remaining_s)
            except queue.Empty:
                self._stop()
                return None
            if not line:
                return self._stop()
            message = json.loads(line)
            if "pid" in message:
                self._run_pid = message["pid"]
                continue
            _kill_group(self._run_pid)
            self._run_pid = None
            return int(message["code"])

    def _start(self) -> None:
        # Without `-m`, because a module of the project may have the same name as one of our modules.
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
        """Stop the worker process and the current run; return the exit code of the worker process."""
        process, self._process = self._process, None
        if process is None:
            return 0
        _kill_group(self._run_pid)
        self._run_pid = None
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
    """Put each line of the output of a process into a queue, and an empty line when the output ends."""
    if process.stdout is not None:
        with process.stdout as output:
            for line in output:
                lines.put(line)
    lines.put(b"")


def _kill_group(leader: int | None) -> None:
    """Kill the process of a run and the processes that it has started, if they are still running."""
    if leader is None or not hasattr(os, "killpg"):
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


_START = (
    "import sys; "
    f"sys.path.append({str(Path(__file__).resolve().parents[2])!r}); "
    "from replay.trial.trial_main import main; main()"
)
