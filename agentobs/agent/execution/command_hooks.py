"""Run hooks that are programs, and leave no processes behind.

Each program runs in its own session, so that it can be stopped together with all processes that it starts. A child
process that starts another session cannot be stopped, because nothing links it to its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentobs import tracing, world
from agentobs.agent.execution.hook_output import (
    ANSWER_BYTES_MAX,
    HookUnavailable,
    answer_from_bytes,
    excerpt,
    failed_answer,
    outcome_answer,
    printable,
)
from agentobs.agent.hooks.declarations import Command
from agentobs.records.canonical_json import Json

BLOCKING_STATUS = 2
"""The exit status of a program that blocks the event. Its standard error contains the reason."""

NOT_STARTED_STATUSES = (126, 127)
"""The exit statuses of a shell that cannot execute, or does not find, a command (POSIX, section 2.8.2)."""

GRACE_S = 1.0
"""How long a program may take to exit after SIGTERM, in seconds. Our choice."""

OUTPUT_WAIT_S = 0.5
"""How long to wait for the rest of a program's output after its process group was killed, in seconds. Our choice: at
this point, only a child process in another session can keep the output open.
"""

_CREDENTIAL = re.compile(
    r"(API_?KEY|AUTH_TOKEN|OAUTH_TOKEN|BEARER_TOKEN\w*|CUSTOM_HEADERS)\Z", re.IGNORECASE
)
"""Names of environment variables that contain credentials of model providers."""


async def run_command(
    command: Command, payload: bytes, cwd: Path, facts: Mapping[str, str]
) -> Json:
    """Run a program and return its answer. Cancellation stops the program and its process group.

    Args:
        command: the program.
        payload: its standard input.
        cwd: its working directory.
        facts: additional environment variables.

    Raises:
        HookUnavailable: the program cannot be started, or the shell does not find it.
    """
    try:
        transport, output = await _start(command, cwd, facts)
    except (OSError, ValueError) as error:
        raise HookUnavailable(f"it cannot be started: {excerpt(str(error))}") from error
    try:
        _write_input(transport, payload)
        await output.exited.wait()
        _kill(transport, output)  # kills the remaining processes of its group
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OUTPUT_WAIT_S):
                await output.closed.wait()
        status = transport.get_returncode()
        if isinstance(command.run, str) and status in NOT_STARTED_STATUSES:
            why = output.error_text() or f"the shell exited with status {status}"
            raise HookUnavailable(f"it cannot be started: {excerpt(why)}")
        return _answer_from_exit(status, output)
    finally:
        await _stop(transport, output)


def environment(command: Command, facts: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without provider credentials, plus the facts and the trace context.

    The trace context is always the current one, never the context that this process inherited from its parent.
    """
    kept = {
        name: value
        for name, value in world.environment().items()
        if name in command.keep or not _CREDENTIAL.search(name)
    }
    return {**kept, **tracing.trace_environment(), **facts}


async def _start(
    command: Command, cwd: Path, facts: Mapping[str, str]
) -> tuple[asyncio.SubprocessTransport, _ProgramOutput]:
    """Start a program. Cancellation waits until it has started, because otherwise nothing could stop the process."""
    words = ("/bin/sh", "-c", command.run) if isinstance(command.run, str) else command.run
    start_task = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            _ProgramOutput, *words, cwd=cwd, env=environment(command, facts), start_new_session=True
        )
    )
    try:
        return await asyncio.shield(start_task)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError, ValueError):
            await _stop(*await start_task)
        raise


class _ProgramOutput(asyncio.SubprocessProtocol):
    """Collects a program's output. It keeps the start of each stream, and reads and discards the rest."""

    def __init__(self) -> None:
        self.buffers: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self.is_truncated = False
        """Whether standard output exceeded the maximum size of an answer."""
        self.is_killed = False
        """Whether its process group was already killed, which must happen only once."""
        self.exited, self.closed = asyncio.Event(), asyncio.Event()
        self._open = {1, 2}

    def error_text(self) -> str:
        """Return the standard error."""
        return printable(bytes(self.buffers[2]).decode("utf-8", "replace"))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        buffer = self.buffers[fd]
        space = ANSWER_BYTES_MAX - len(buffer)
        buffer += data[:space]
        self.is_truncated = self.is_truncated or (fd == 1 and len(data) > space)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.closed.set()

    def process_exited(self) -> None:
        self.exited.set()


def _write_input(transport: asyncio.SubprocessTransport, payload: bytes) -> None:
    """Write a program's input without waiting for the program to read it."""
    pipe: Any = transport.get_pipe_transport(0)
    with contextlib.suppress(OSError):
        pipe.write(payload)
        pipe.close()  # the pipe stays open until all data is written


def _answer_from_exit(status: int | None, output: _ProgramOutput) -> Json:
    stdout, stderr = bytes(output.buffers[1]), output.error_text()
    if status == 0:
        if output.is_truncated:
            return failed_answer(f"it printed more than {ANSWER_BYTES_MAX:,} bytes")
        return answer_from_bytes(stdout)
    if status == BLOCKING_STATUS:
        return outcome_answer(
            "blocking", stderr.strip() or "It was blocked, and the hook gave no reason."
        )
    if status is None:
        return failed_answer("its exit status is unknown")
    ending = (
        f"it exited with status {status}"
        if status > 0
        else f"it was killed by {_signal_name(-status)}"
    )
    return failed_answer(f"{ending}: {excerpt(stderr)}" if stderr.strip() else ending)


async def _stop(transport: asyncio.SubprocessTransport, output: _ProgramOutput) -> None:
    """Stop a program and its process group with SIGTERM, then with SIGKILL.

    SIGKILL is sent to a group only once: after the program has been waited for, the group's ID may be reused.
    """
    try:
        if not output.exited.is_set():
            _signal(transport, signal.SIGTERM)
            await _wait_for_exit(output)
        _kill(transport, output)  # also kills the remaining processes of its group
        await _wait_for_exit(output)
    finally:
        _kill(transport, output)
        transport.close()


async def _wait_for_exit(output: _ProgramOutput) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            await output.exited.wait()


def _kill(transport: asyncio.SubprocessTransport, output: _ProgramOutput) -> None:
    if not output.is_killed:
        output.is_killed = True
        _signal(transport, signal.SIGKILL)


def _signal(transport: asyncio.SubprocessTransport, number: signal.Signals) -> None:
    """Send a signal to the process group of a program. The group has the same ID as the program's process."""
    process_id = transport.get_pid()
    if process_id is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process_id, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
