"""Shim reports: the messages of shims, and the socket that receives them.

A shim connects when its command starts, and sends a message `S`; when the command has ended, it sends `E` and
disconnects. A connection that ends without `E` means that the shim was killed. Commands never wait for this process:
a shim that cannot connect or send within 250 ms runs the program without reporting it.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentobs import world

MESSAGE_MAX = 4 * 1024 * 1024
"""The longest message. Our choice: twice the longest list of arguments of Linux."""
KNOWN_MAX = 10_000
"""How many shims are remembered as possible parents of later commands. Our choice."""
VERSION = b"1"


@dataclass(frozen=True, slots=True)
class StartReport:
    """A command has started."""

    name: str
    """The name of the shim."""
    program: str
    """The file of the program."""
    pid: int
    """The process of the shim, which is the parent of the program."""
    ancestors: tuple[int, ...]
    """The processes above, nearest first."""
    streams: tuple[str, str, str]
    """What standard input, output and error were: `pipe`, `socket`, `file`, `terminal`, `device` or `closed`."""
    started_ns: int
    """When it started, nanoseconds since 1970."""
    directory: str
    arguments: tuple[str, ...] = field(repr=False)
    """The arguments, with the program's name first."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What a command wrote into one stream."""

    total: int
    """The number of bytes until the command ended."""
    head: bytes = field(repr=False)
    """The first bytes that were kept."""
    tail: bytes = field(repr=False)
    """The last bytes that were kept and are not in `head`."""


@dataclass(frozen=True, slots=True)
class EndReport:
    """A command has ended."""

    ended_ns: int
    """When it ended, nanoseconds since 1970."""
    duration_ns: int
    exit_code: int
    signal: int
    """The number of the signal that ended it, or 0."""
    is_merged: bool
    """Whether both streams were the same pipe, so that `stdout` contains both."""
    stdout: Stream
    stderr: Stream


@dataclass(frozen=True, slots=True)
class CommandReport:
    """A command, when it has ended or is no longer observed."""

    command_id: str
    parent_id: str | None
    """The ID of the observed command that ran it; None if there is none, or if it is unknown."""
    start: StartReport
    end: EndReport | None
    """Its end; None if it is running, or if its shim was killed."""
    is_running: bool = False
    """Whether the observation ended before the command."""


@dataclass(slots=True)
class _Connection:
    received: bytearray = field(default_factory=bytearray)
    start: StartReport | None = None
    command_id: str = ""
    parent_id: str | None = None
    is_done: bool = False


class ShimReports:
    """The socket of the recorder, with a thread that reads it."""

    def __init__(self, path: Path, receive: Callable[[CommandReport], None]) -> None:
        """Listen at `path`, and pass each command that has ended to `receive`, in the thread.

        Raises:
            OSError: the socket cannot be created.
        """
        self._receive = receive
        self._ids: OrderedDict[int, str] = OrderedDict()
        """The IDs of the last commands, by the process of their shim."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="agentobs-commands", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Read what has arrived, pass on the commands that are still running, and close the socket."""
        self._is_stopping = True
        self._wake_write.send(b"x")
        self._thread.join(seconds)

    def _run(self) -> None:
        connections: dict[socket.socket, _Connection] = {}
        while not self._is_stopping:
            self._read_ready(connections, None)
        while self._read_ready(connections, 0):
            pass
        for each, connection in connections.items():
            if connection.start is not None and not connection.is_done:
                self._pass_on(connection, None, is_running=True)
            each.close()
        for each in (self._listener, self._wake_read, self._wake_write):
            each.close()
        self._selector.close()

    def _read_ready(
        self, connections: dict[socket.socket, _Connection], timeout: float | None
    ) -> bool:
        """Read what has arrived; return whether something has."""
        is_any = False
        for key, _ in self._selector.select(timeout):
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if ready is self._wake_read:
                self._selector.unregister(ready)
            elif ready is self._listener:
                with contextlib.suppress(OSError):
                    accepted, _ = ready.accept()
                    accepted.setblocking(False)
                    connections[accepted] = _Connection()
                    self._selector.register(accepted, selectors.EVENT_READ)
                is_any = True
            else:
                is_any = True
                if not self._read(ready, connections[ready]):
                    self._selector.unregister(ready)
                    del connections[ready]
                    ready.close()
        return is_any

    def _read(self, ready: socket.socket, connection: _Connection) -> bool:
        """Read from a connection; return whether it stays open."""
        try:
            data = ready.recv(1 << 18)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        connection.received += data
        try:
            while (message := _take_message(connection.received)) is not None:
                kind, fields = message
                if kind == b"S":
                    self._start(connection, _start(fields))
                elif kind == b"E" and connection.start is not None:
                    connection.is_done = True
                    self._pass_on(connection, _end(fields, connection.start))
        except (ValueError, IndexError, struct.error):
            return False  # not a shim of this version
        if not data and connection.start is not None and not connection.is_done:
            self._pass_on(connection, None)
        return bool(data)

    def _start(self, connection: _Connection, start: StartReport) -> None:
        connection.start, connection.command_id = start, world.new_id()
        above = (self._ids[each] for each in start.ancestors if each in self._ids)
        connection.parent_id = next(above, None)
        self._ids.pop(start.pid, None)
        self._ids[start.pid] = connection.command_id
        if len(self._ids) > KNOWN_MAX:
            self._ids.popitem(last=False)

    def _pass_on(
        self, connection: _Connection, end: EndReport | None, *, is_running: bool = False
    ) -> None:
        assert connection.start is not None
        self._receive(
            CommandReport(
                connection.command_id, connection.parent_id, connection.start, end, is_running
            )
        )


def _take_message(received: bytearray) -> tuple[bytes, list[bytes]] | None:
    """Remove and return the first complete message; None if there is none.

    Raises:
        ValueError: the message is too long.
    """
    if len(received) < 5:
        return None
    (length,) = struct.unpack_from(">I", received, 1)
    if length > MESSAGE_MAX:
        raise ValueError("message too long")
    if len(received) < 5 + length:
        return None
    kind, payload = bytes(received[:1]), bytes(received[5 : 5 + length])
    del received[: 5 + length]
    fields, at = [], 0
    while at < len(payload):
        (size,) = struct.unpack_from(">I", payload, at)
        fields.append(payload[at + 4 : at + 4 + size])
        at += 4 + size
    return kind, fields


def _start(fields: list[bytes]) -> StartReport:
    version, name, program, pids, streams, wall, directory, *arguments = fields
    if version != VERSION:
        raise ValueError("another version")
    pid, *ancestors = (int(each) for each in pids.split(b","))
    first, second, third = (each.decode("ascii") for each in streams.split(b","))
    return StartReport(
        _text(name),
        _text(program),
        pid,
        tuple(ancestors),
        (first, second, third),
        int(wall) or world.now(),
        _text(directory),
        tuple(_text(each) for each in arguments),
    )


def _end(fields: list[bytes], start: StartReport) -> EndReport:
    code, number, duration, merged, *streams = fields
    duration_ns = int(duration) if duration else max(0, world.now() - start.started_ns)
    stdout, stderr = (Stream(int(streams[at]), streams[at + 1], streams[at + 2]) for at in (0, 3))
    return EndReport(
        start.started_ns + duration_ns,
        duration_ns,
        int(code),
        int(number),
        merged == b"1",
        stdout,
        stderr,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


__all__ = ["CommandReport", "EndReport", "ShimReports", "StartReport", "Stream"]
