"""The recorded command: runs it as if there were no recorder between it and its terminal.

The command inherits standard input, output and error, the terminal, the working directory and the process group. The
terminal therefore sends Ctrl-C and Ctrl-Z to the command directly; this process ignores them. Signals that are sent to
this process only are passed on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from agentobs.errors import UsageError

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that are passed on to the command."""
LEFT_TO_COMMAND = (signal.SIGINT, signal.SIGQUIT)
"""The signals that a terminal sends to all processes, and that are the command's to handle."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit codes of shells for a command that does not exist, or that cannot be executed."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended."""

    exit_code: int
    """Its exit code; if a signal ended it, 128 and the number of the signal, as in shells."""
    signal_name: str | None = None
    """The signal that ended it, such as `SIGKILL`."""

    @property
    def is_interrupted(self) -> bool:
        """Whether a person or another program stopped it on purpose."""
        names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
        codes = [128 + getattr(signal, name) for name in names]
        return self.signal_name in names or self.exit_code in codes


class CommandError(UsageError):
    """A command cannot be started."""

    def __init__(self, found: str, *, exit_code: int, todo: str) -> None:
        """Create the error; `exit_code` is the one that a shell would return."""
        super().__init__(found, where="the command", todo=todo)
        self.exit_code = exit_code


def check(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Check that a command exists and can be executed.

    Raises:
        CommandError: it cannot.
    """
    name = command[0]
    if shutil.which(name, path=environment.get("PATH", os.defpath)) is not None:
        return
    exists = os.sep in name and Path(name).exists()
    raise CommandError(
        f"cannot run {name[:200]!r}: {'it is not executable' if exists else 'command not found'}",
        exit_code=NOT_EXECUTABLE if exists else NOT_FOUND,
        todo="Check the spelling and the PATH; aliases and functions of a shell need `sh -c '...'`",
    )


def program(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the file of a command's program, as the PATH of an environment finds it."""
    return shutil.which(command[0], path=environment.get("PATH", os.defpath)) or command[0]


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    signals: SignalsPassedOn,
    executable: str | None = None,
) -> Ending:
    """Run a command until it ends.

    Args:
        command: the program and its arguments.
        environment: its environment variables.
        signals: passes signals on to the command; it stays active until its end was recorded.
        executable: the file of the program; default as the PATH of the environment finds it.

    Raises:
        CommandError: the operating system cannot start it.
    """
    signals.is_starting = True
    try:
        # Inherited file descriptors stay open, as those of `<(...)` in a shell.
        process = subprocess.Popen(
            list(command), executable=executable, env=dict(environment), close_fds=False
        )
    except OSError as error:
        raise CommandError(
            f"cannot run {command[0][:200]!r}: {(error.strerror or str(error)).lower()}",
            exit_code=NOT_EXECUTABLE,
            todo="Check that the file is a program for this machine, or a script with a `#!` line",
        ) from error
    signals.started(process)
    code = process.wait()
    signals.has_ended = True
    if code >= 0:
        return Ending(code)
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"SIG{-code}"
    return Ending(128 - code, name)


class SignalsPassedOn:
    """A context that forwards signals to a process, except those that the terminal sends to it directly. It stays
    active after the process has ended.
    """

    def __init__(self) -> None:
        """Prepare to pass on signals."""
        self.is_starting = False
        """Whether the command is being started, or was started; from then on, Ctrl-C is its to handle."""
        self.count_requests: Callable[[], int] = lambda: 0
        """Returns how many requests the command has sent so far."""
        self._requests_at_interrupt: int | None = None
        """The number of requests that it had sent at the last Ctrl-C."""
        self.has_ended = False
        """Whether the command has ended; a later Ctrl-C is not for it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        """The signals that arrived before the process was started."""
        self._before: dict[int, Any] = {}

    def started(self, process: subprocess.Popen[bytes]) -> None:
        """Set the process, and pass on what has arrived."""
        self._process = process
        for number in self._early:
            self._pass_on(number, None)

    def __enter__(self) -> SignalsPassedOn:
        """Replace the handlers, except those of signals that this process was started to ignore (`nohup`)."""
        handlers = dict.fromkeys(PASSED_ON, self._pass_on) | dict.fromkeys(
            LEFT_TO_COMMAND, self._leave
        )
        for number, handler in handlers.items():
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
            return
        self._process.send_signal(number)

    @property
    def ended_after_interrupt(self) -> bool:
        """Whether the command got Ctrl-C and sent no request after it. Some programs then end with exit code 0."""
        return self._requests_at_interrupt == self.count_requests()

    def _leave(self, number: int, _: FrameType | None) -> None:
        """Only note it, unless there is no command yet. Unlike SIG_IGN, the command does not inherit a handler."""
        if not self.is_starting:
            raise KeyboardInterrupt
        if not self.has_ended:
            self._requests_at_interrupt = self.count_requests()
