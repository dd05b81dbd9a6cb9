"""Run hooks that are programs, with a timeout and without leaving processes behind.

A program runs in its own session, so that it can be stopped together with all processes that it starts. A child that
starts another session escapes, because nothing links it to its parent any more.
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
    answer_only,
    failed,
    of_bytes,
    plain,
    quoted,
)
from agentobs.agent.hooks.declarations import Command
from agentobs.records.canonical_json import Json

BLOCKS = 2
"""The exit status that blocks; standard error contains the reason."""

GRACE_S = 1.0
"""How long a program may take to exit after SIGTERM, in seconds. Our choice."""

LAST_WORDS_S = 0.5
"""How long to wait for its output once it has exited and its group was killed, in seconds. Our
choice: only an escaped child can still keep it open.
"""

_CREDENTIAL = re.compile(
    r"(API_?KEY|AUTH_TOKEN|OAUTH_TOKEN|BEARER_TOKEN\w*|CUSTOM_HEADERS)\Z", re.IGNORECASE
)
"""Names of variables that hold credentials of model providers."""


async def ran(command: Command, payload: bytes, cwd: Path, facts: Mapping[str, str]) -> Json:
    """Run a program and return its answer; cancellation stops it and its group.

    Args:
        command: the program.
        payload: its standard input.
        cwd: its working directory.
        facts: additional environment variables.
    """
    try:
        transport, talk = await _started(command, cwd, facts)
    except (OSError, ValueError) as error:
        return failed(f"it cannot be started: {quoted(str(error))}")
    try:
        _write(transport, payload)
        await talk.ended.wait()
        _kill(transport, talk)  # remaining processes of its group
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await talk.silent.wait()
        return _answer(transport.get_returncode(), talk)
    finally:
        await _end(transport, talk)


def environment(command: Command, facts: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: ours without provider credentials, plus the facts and the trace context.

    The trace context is always our own, never that of our parent process.
    """
    found = {
        name: value
        for name, value in world.environment().items()
        if name in command.keep or not _CREDENTIAL.search(name)
    }
    return {**found, **tracing.trace_environment(), **facts}


async def _started(
    command: Command, cwd: Path, facts: Mapping[str, str]
) -> tuple[asyncio.SubprocessTransport, _Talk]:
    """Start a program. Starting cannot be interrupted, because a process started midway would be unknown."""
    words = ("/bin/sh", "-c", command.run) if isinstance(command.run, str) else command.run
    starting = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            _Talk, *words, cwd=cwd, env=environment(command, facts), start_new_session=True
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError, ValueError):
            await _end(*await starting)
        raise


class _Talk(asyncio.SubprocessProtocol):
    """Collects a program's output: the start of each stream is kept, the rest is read and discarded."""

    def __init__(self) -> None:
        self.kept: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self.is_cut = False
        """Whether standard output exceeded the maximum size of an answer."""
        self.is_over = False
        """Whether its group was killed, which happens once."""
        self.ended, self.silent = asyncio.Event(), asyncio.Event()
        self._open = {1, 2}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        buffer = self.kept[fd]
        room = ANSWER_BYTES_MAX - len(buffer)
        buffer += data[:room]
        self.is_cut = self.is_cut or (fd == 1 and len(data) > room)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.silent.set()

    def process_exited(self) -> None:
        self.ended.set()


def _write(transport: asyncio.SubprocessTransport, payload: bytes) -> None:
    """Write a program's input without waiting for the program to read it."""
    pipe: Any = transport.get_pipe_transport(0)
    with contextlib.suppress(OSError):
        pipe.write(payload)
        pipe.close()  # once everything is written


def _answer(status: int | None, talk: _Talk) -> Json:
    printed, complaint = bytes(talk.kept[1]), plain(bytes(talk.kept[2]).decode("utf-8", "replace"))
    if status == 0:
        if talk.is_cut:
            return failed(f"it printed more than {ANSWER_BYTES_MAX:,} bytes")
        return of_bytes(printed)
    if status == BLOCKS:
        return answer_only(
            "blocking", complaint.strip() or "It was blocked, and the hook did not say why."
        )
    if status is None:
        return failed("its exit status is unknown")
    how = f"it ended with status {status}" if status > 0 else f"it was ended by {_named(-status)}"
    return failed(f"{how}: {quoted(complaint)}" if complaint.strip() else how)


async def _end(transport: asyncio.SubprocessTransport, talk: _Talk) -> None:
    """Stop a program and its group, first with SIGTERM. A group that was already killed gets no
    signal.

    Once a group's leader was waited for, the group's ID may be reused.
    """
    try:
        if not talk.ended.is_set():
            _signal(transport, signal.SIGTERM)
            await _ended(talk)
        _kill(transport, talk)  # and the remaining processes of its group
        await _ended(talk)
    finally:
        _kill(transport, talk)
        transport.close()


async def _ended(talk: _Talk) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            await talk.ended.wait()


def _kill(transport: asyncio.SubprocessTransport, talk: _Talk) -> None:
    if not talk.is_over:
        talk.is_over = True
        _signal(transport, signal.SIGKILL)


def _signal(transport: asyncio.SubprocessTransport, number: signal.Signals) -> None:
    """Send a signal to the process group of a program, which has the program's process ID."""
    process_id = transport.get_pid()
    if process_id is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process_id, number)


def _named(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
