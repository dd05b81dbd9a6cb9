"""The socket that receives reports from shims and tees in other processes.

A message is a letter, the length of its fields, and its fields, each with its length; lengths are big-endian numbers of
four bytes. The senders never wait for this process for longer than 250 ms.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentobs.errors import error_kind, warn_once

MESSAGE_MAX = 8 * 1024 * 1024
"""The longest message, in bytes. Our choice: Linux accepts at most 6 MiB of arguments. Source: execve(2), 2026-11."""
BACKLOG = 4096
"""The maximum number of connections that may wait to be accepted. Our choice: the default limit of Linux since 5.4."""
_READ_BYTES = 1 << 18


class Connection(Protocol):
    """Receives the messages of one connection."""

    def message(self, kind: bytes, fields: list[bytes]) -> None:
        """Receive a message.

        Raises:
            ValueError: the message is not one of this version; the connection is then closed.
        """
        ...

    def closed(self, *, by_sender: bool) -> None:
        """Receive the end of the connection; `by_sender` is False if the observation ends."""
        ...


@dataclass(slots=True)
class _Open:
    connection: Connection
    received: bytearray = field(default_factory=bytearray)


class ReportSocket:
    """The socket, with a thread that reads it."""

    def __init__(self, path: Path, connect: Callable[[], Connection], name: str) -> None:
        """Listen at `path`; `connect` returns the receiver of a new connection, and `name` is that of the thread.

        Raises:
            OSError: the socket cannot be created.
        """
        self._connect = connect
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Read what has arrived, close the connections, and close the socket."""
        self._wake_write.send(b"x")
        self._thread.join(seconds)
        self._wake_write.close()

    def _run(self) -> None:
        opened: dict[socket.socket, _Open] = {}
        while not self._is_stopping:
            self._read_ready(opened, None)
        while self._read_ready(opened, 0):
            pass
        for each, known in opened.items():
            _close(known.connection, by_sender=False)
            each.close()
        self._listener.close()
        self._wake_read.close()
        self._selector.close()

    def _read_ready(self, opened: dict[socket.socket, _Open], timeout: float | None) -> bool:
        """Read what has arrived; return whether something has."""
        is_any = False
        for key, _ in self._selector.select(timeout):
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if ready is self._wake_read:
                self._selector.unregister(ready)
                self._is_stopping = True
            elif ready is self._listener:
                is_any = True
                with contextlib.suppress(OSError):
                    accepted, _ = ready.accept()
                    accepted.setblocking(False)
                    opened[accepted] = _Open(self._connect())
                    self._selector.register(accepted, selectors.EVENT_READ)
            else:
                is_any = True
                if not _read(ready, opened[ready]):
                    self._selector.unregister(ready)
                    _close(opened.pop(ready).connection, by_sender=True)
                    ready.close()
        return is_any


def _read(ready: socket.socket, known: _Open) -> bool:
    """Read from a connection; return whether it stays open."""
    try:
        data = ready.recv(_READ_BYTES)
    except BlockingIOError:
        return True
    except OSError:
        return False
    known.received += data
    try:
        while (message := _take_message(known.received)) is not None:
            known.connection.message(*message)
    except (ValueError, IndexError, struct.error):
        return False  # not a sender of this version
    except Exception as error:
        _warn(error)
        return False
    return bool(data)


def _close(connection: Connection, *, by_sender: bool) -> None:
    try:
        connection.closed(by_sender=by_sender)
    except Exception as error:
        _warn(error)


def _warn(error: Exception) -> None:
    """Report an error of a receiver. The thread continues, because senders would block if the socket were not read."""
    warn_once(f"an effect is not recorded: {error_kind(error)}", about="effects report")


def packed(kind: bytes, *fields: bytes) -> bytes:
    """Return a message."""
    payload = b"".join(struct.pack(">I", len(each)) + each for each in fields)
    return kind + struct.pack(">I", len(payload)) + payload


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


__all__ = ["MESSAGE_MAX", "Connection", "ReportSocket", "packed"]
