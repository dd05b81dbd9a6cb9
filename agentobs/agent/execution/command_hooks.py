"""Commands: hooks that are programs. Whatever one does, it ends in time and leaves no one of its group behind.

It runs in a session of its own, so that it and all that it starts can be ended together. A child that begins
another session for itself gets away: nothing ties it to its parent any more.
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
    failed,
    of_bytes,
    plain,
    quoted,
    said,
)
from agentobs.agent.hooks.declarations import Command
from agentobs.records.canonical_json import Json

BLOCKS = 2
"""The exit status that blocks; standard error says why."""

GRACE_S = 1.0
"""How long a program may take to end after it was asked to (SIGTERM), in seconds. Our choice."""

LAST_WORDS_S = 0.5
"""How long its output is waited for once it has ended and its group was killed, in seconds. Our choice: only a
child that got away can still hold it open."""

_CREDENTIAL = re.compile(
    r"(API_?KEY|AUTH_TOKEN|OAUTH_TOKEN|BEARER_TOKEN\w*|CUSTOM_HEADERS)\Z", re.IGNORECASE
)
"""Names of variables that hold the credentials of model providers."""


async def ran(command: Command, payload: bytes, cwd: Path, facts: Mapping[str, str]) -> Json:
    """Run a program and return its answer; cancelling this ends it and its group.

    Args:
        command: the program.
        payload: what it reads from standard input.
        cwd: the folder it starts in.
        facts: further environment variables.
    """
    try:
        transport, talk = await _started(command, cwd, facts)
    except (OSError, ValueError) as error:
        return failed(f"it cannot be started: {quoted(str(error))}")
    try:
        _write(transport, payload)
        await talk.ended.wait()
        _kill(transport, talk)  # those whom it has left behind
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await talk.silent.wait()
        return _answer(transport.get_returncode(), talk)
    finally:
        await _end(transport, talk)


def environment(command: Command, facts: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: ours without the credentials of providers, the facts, and where it stands.

    What that says of traces is of ours, never of the one that started us.
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
    """Start a program. A start cannot be stopped half-way: whom it has started already, nobody would know."""
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
    """What a program prints: the beginning of each of its two outputs is kept, the rest is read and dropped."""

    def __init__(self) -> None:
        self.kept: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self.is_cut = False
        """Whether standard output was longer than an answer may be."""
        self.is_over = False
        """Whether its group was killed, once and for all."""
        self.ended, self.silent = asyncio.Event(), asyncio.Event()
        self._open = {1, 2}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        kept = self.kept[fd]
        room = ANSWER_BYTES_MAX - len(kept)
        kept += data[:room]
        self.is_cut = self.is_cut or (fd == 1 and len(data) > room)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.silent.set()

    def process_exited(self) -> None:
        self.ended.set()


def _write(transport: asyncio.SubprocessTransport, payload: bytes) -> None:
    """Give a program its input; one that does not read it is not waited for."""
    pipe: Any = transport.get_pipe_transport(0)
    with contextlib.suppress(OSError):
        pipe.write(payload)
        pipe.close()  # once all is written


def _answer(status: int | None, talk: _Talk) -> Json:
    printed, complaint = bytes(talk.kept[1]), plain(bytes(talk.kept[2]).decode("utf-8", "replace"))
    if status == 0:
        if talk.is_cut:
            return failed(f"it printed more than {ANSWER_BYTES_MAX:,} bytes")
        return of_bytes(printed)
    if status == BLOCKS:
        return said(
            "blocking", complaint.strip() or "It was blocked, and the hook did not say why."
        )
    if status is None:
        return failed("nobody knows how it ended")
    how = f"it ended with status {status}" if status > 0 else f"it was ended by {_named(-status)}"
    return failed(f"{how}: {quoted(complaint)}" if complaint.strip() else how)


async def _end(transport: asyncio.SubprocessTransport, talk: _Talk) -> None:
    """End a program and its group: it is asked to first. Nothing is sent to a group that was killed already.

    The id of a group whose leader has been waited for may be given to another one.
    """
    try:
        if not talk.ended.is_set():
            _signal(transport, signal.SIGTERM)
            await _ended(talk)
        _kill(transport, talk)  # and whoever it has left behind
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
    """Send a signal to the group of a program, which has the program's own id."""
    process_id = transport.get_pid()
    if process_id is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process_id, number)


def _named(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
