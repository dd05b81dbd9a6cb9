"""Jobs: commands that run as child processes of the dashboard. Their number, time and output are limited.

A command is a list of arguments and never passes through a shell. How a process is started is injected, because
packages that read recordings do not import each other.
"""

from __future__ import annotations

import hmac
import json
import re
import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from agentobs import world
from agentobs.errors import UsageError

MOST_RUNNING = 2
"""The maximum number of jobs that run at the same time. Our choice: each runs an agent."""
MOST_KEPT = 20
"""The number of ended jobs that are kept until the dashboard ends. Our choice."""
LIMIT_SECONDS = 900.0
"""The time after which a job is ended. Our choice: the check of `agentobs freeze` may take several minutes."""
CLOSE_SECONDS = 10.0
"""How long to wait for the jobs when the dashboard ends. Our choice."""

Action = Literal["freeze", "replay"]
State = Literal["running", "done", "diverged", "failed", "canceled", "timed out"]


class Output(Protocol):
    """An output of a program. Only its last bytes are kept."""

    def text(self) -> str:
        """Return the kept output as text."""
        ...


class Program(Protocol):
    """A running program, as `replay.command.child_program.ChildProgram`."""

    @property
    def has_ended(self) -> threading.Event:
        """Is set when the program has ended, or when it should be ended."""
        ...

    @property
    def stdout(self) -> Output:
        """The standard output."""
        ...

    @property
    def stderr(self) -> Output:
        """The standard error."""
        ...

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the program runs."""
        ...

    def interrupt(self) -> None:
        """End the program and its process group, first as Ctrl-C does."""
        ...


@dataclass(frozen=True, slots=True)
class Fixture:
    """A fixture that was frozen from a session."""

    path: Path
    is_command: bool
    """Whether the recorded agent is a program instead of a Python function."""
    entry: str
    """What a replay runs: the function or the program."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a session was imported from, if its code is not necessarily known to the user."""

    source: str
    """The origin as a noun phrase, such as `the bundle refunds.bundle`."""
    imported_ns: int | None = None
    """When it was imported; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The objects with which session pages offer commands."""

    home: Path
    directory: Path
    """The directory in which commands run, from which they import the agent."""
    fixtures: Path
    """The absolute path of the folder into which `agentobs freeze` writes."""
    start: Callable[[Sequence[str]], Program] | None
    """Starts `agentobs` with these arguments; None if this dashboard runs no commands."""
    problem: str = ""
    """Why this dashboard runs no commands, in one sentence without a final period."""
    folder_name: Callable[[str], str] = lambda name: name
    """Returns the name of the folder of a fixture, for the name of a session."""
    fixtures_of: Callable[[Path, str], Sequence[Fixture]] = lambda folder, session_id: ()
    """Returns the fixtures in a folder that were frozen from a session, given its ID."""
    origin_of: Callable[[str], Origin | None] = lambda session_id: None
    """Returns where a session was imported from, given its ID; None if it was recorded in this home."""
    program_of: Callable[[str, Path | None], str] = lambda session_id, fixture: ""
    """Returns what a command of a session runs: the function with its arguments, or the command line. Given the ID of
    the session, and the folder of the fixture, or None for the session itself.
    """

    def without_running(self, problem: str) -> Commands:
        """Return the same commands, to be copied only."""
        return replace(self, start=None, problem=problem)

    def line(self, *arguments: str) -> str:
        """Return a command as a line for a shell in `directory`."""
        home = [] if self.home == self.directory / ".agentobs" else [f"--home={self.home}"]
        return shlex.join(["agentobs", *home, *arguments])

    def freeze_folder(self, session_id: str, name: str) -> Path:
        """Return the folder for the fixture of a session. A fixture of another session is never replaced."""
        folder = self.fixtures / self.folder_name(name)
        known = {each.path for each in self.fixtures_of(self.fixtures, session_id)}
        if not folder.exists() or folder in known:
            return folder
        return folder.with_name(f"{folder.name}-{self.folder_name(session_id[-8:])}")


@dataclass(slots=True)
class Job:
    """One command that was started from a page."""

    number: int
    session_id: str
    action: Action
    line: str
    """The command as it is typed in a terminal."""
    target: Path
    """The folder of the fixture."""
    started_ns: int
    program: Program = field(repr=False)
    ended_ns: int | None = None
    stop: Literal["", "canceled", "timed out"] = ""
    """Why the dashboard ended the program; empty if it did not."""

    @property
    def state(self) -> State:
        """The state of the job."""
        if self.ended_ns is None:
            return "running"
        if self.stop:
            return self.stop
        if self.program.exit_code == 0:
            return "done"
        return "diverged" if self.divergence is not None else "failed"

    @property
    def divergence(self) -> dict[str, Any] | None:
        """The divergence of a replay, as `agentobs replay --json` prints it; None if there is none."""
        if self.action != "replay" or self.ended_ns is None:
            return None
        try:
            found = json.loads(self.program.stdout.text())
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and "agentobs_divergence" in found else None

    @property
    def replays(self) -> str | None:
        """Whether the fixture replays: `yes`, `no` or `not tried`; None if `agentobs freeze` did not check it."""
        if self.action != "freeze":
            return None
        found = re.search(
            r"^replays: (yes|no|not tried)\b", self.program.stdout.text(), re.MULTILINE
        )
        return found[1] if found else None

    @property
    def output_lines(self) -> int:
        """The number of lines of the output so far."""
        return self.program.stdout.text().count("\n") + self.program.stderr.text().count("\n")


class JobRunner:
    """Starts jobs, ends them after a time limit, and ends all of them when the dashboard ends."""

    def __init__(self, commands: Commands | None, limit_seconds: float = LIMIT_SECONDS) -> None:
        """Store the commands; None if the dashboard offers none."""
        self.commands = commands
        self._limit_seconds = limit_seconds
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._threads: list[threading.Thread] = []
        self._number = 0
        self._is_closed = False
        self._secret = world.random_bytes(32)

    def confirmation(self, *parts: str) -> str:
        """Return the proof that a page of this dashboard has shown these texts for confirmation."""
        message = json.dumps(parts).encode()
        return hmac.new(self._secret, message, "sha256").hexdigest()

    def start(
        self, session_id: str, action: Action, target: Path, arguments: Sequence[str], line: str
    ) -> Job:
        """Start a command.

        Raises:
            UsageError: this dashboard runs no commands, too many run, or the same command runs.
        """
        commands = self.commands
        if commands is None or commands.start is None:
            raise UsageError(
                commands.problem if commands else "this dashboard runs no commands",
                todo="Run the command in a terminal",
            )
        with self._lock:
            running = [job for job in self._jobs.values() if job.ended_ns is None]
            if self._is_closed:
                raise UsageError("the dashboard is shutting down")
            if any(job.target == target for job in running):
                raise UsageError(
                    "a command for this fixture is running",
                    where=str(target),
                    todo="Wait until it ends, or cancel it",
                )
            if len(running) >= MOST_RUNNING:
                raise UsageError(
                    f"{MOST_RUNNING} commands are running",
                    todo="Wait until one ends, or cancel it on the page of its session",
                )
            program = commands.start(arguments)
            self._number += 1
            job = Job(self._number, session_id, action, line, target, world.now(), program)
            self._jobs[job.number] = job
            self._forget_old()
            thread = threading.Thread(target=self._watch, args=(job,), daemon=True)
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()
        return job

    def jobs_of(self, session_id: str) -> list[Job]:
        """Return the jobs of a session, newest first."""
        with self._lock:
            found = [job for job in self._jobs.values() if job.session_id == session_id]
        return found[::-1]

    def job(self, session_id: str, number: str) -> Job:
        """Return a job of a session.

        Raises:
            UsageError: the session has no such job.
        """
        for job in self.jobs_of(session_id):
            if str(job.number) == number:
                return job
        raise UsageError(
            "no such command", where=number[:20], todo="It may have been removed from the list"
        )

    def cancel(self, job: Job) -> None:
        """End a job; its thread waits for the end."""
        with self._lock:
            if job.ended_ns is None and not job.stop:
                job.stop = "canceled"
        job.program.has_ended.set()

    def close(self) -> None:
        """Cancel all jobs without waiting; no job can be started afterwards."""
        with self._lock:
            self._is_closed = True
            running = [job for job in self._jobs.values() if job.ended_ns is None]
        for job in running:
            self.cancel(job)

    def wait(self) -> None:
        """Wait until the canceled jobs have ended."""
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def _watch(self, job: Job) -> None:
        """Wait for the end of a job, or end it."""
        if not job.program.has_ended.wait(self._limit_seconds):
            with self._lock:
                job.stop = job.stop or "timed out"
        job.program.interrupt()
        with self._lock:
            job.ended_ns = world.now()

    def _forget_old(self) -> None:
        ended = [job.number for job in self._jobs.values() if job.ended_ns is not None]
        for number in ended[:-MOST_KEPT]:
            del self._jobs[number]
