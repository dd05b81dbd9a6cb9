"""The tee of an MCP server over standard input and output: forwards all bytes, and reports a copy of them.

    python -m agentobs.effects.mcp.stdio_tee --socket PATH --server NAME -- COMMAND ARGUMENTS...

It runs between the client and the server. The server inherits everything except standard input and output. If the
recorder does not listen, or does not read for 250 ms, the tee only forwards.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO

from agentobs import world
from agentobs.effects.mcp.json_rpc import Moment, Sender
from agentobs.effects.report_socket import packed
from agentobs.errors import error_kind, warn_once

CHUNK_BYTES = 64 * 1024
SEND_MILLISECONDS = 250
VERSION = b"2"
"""The version of the messages to a recorder."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

Report = Callable[[Sender, bytes, Moment], None]
"""Receives a copy of the data of each direction, in order within a direction."""


class SocketReport:
    """Reports to the socket of a recorder."""

    def __init__(self, path: str, server: str) -> None:
        """Connect; if that is not possible, nothing is reported."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        timeout = struct.pack("ll", 0, SEND_MILLISECONDS * 1000)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
            self._socket.connect(path)
        except OSError:
            self._socket = None
        self._send(packed(b"M", VERSION, server.encode("utf-8", "surrogateescape")))

    def __call__(self, sender: Sender, data: bytes, at: Moment) -> None:
        """Report data of one direction."""
        kind = b"c" if sender == "client" else b"s"
        self._send(packed(kind, str(at.clock_ns).encode(), data))

    def _send(self, message: bytes) -> None:
        with self._lock:
            if self._socket is None:
                return
            try:
                self._socket.sendall(message)
            except OSError:
                self._socket.close()
                self._socket = None


def run_tee(command: Sequence[str], report: Report) -> int:
    """Run a server between the standard input and output of this process; return its exit code as in shells.

    Raises:
        OSError: the server cannot be started.
    """
    process = subprocess.Popen(
        list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: process.send_signal(received))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal also sends it to the server
    assert process.stdin is not None
    assert process.stdout is not None
    # The thread may wait for input forever, so that the process does not wait for it.
    client = threading.Thread(
        target=_copy, args=(0, process.stdin.fileno(), "client", report, process.stdin), daemon=True
    )
    client.start()
    _copy(process.stdout.fileno(), 1, "server", report, None)
    process.stdout.close()
    code = process.wait()
    return code if code >= 0 else 128 - code


def _copy(
    source: int, target: int, sender: Sender, report: Report, closes: IO[bytes] | None
) -> None:
    """Copy until the end of the source, or until the reader of the target has closed it."""
    try:
        while data := os.read(source, CHUNK_BYTES):
            # Reported first, so that no response is reported before its request.
            _reported(report, sender, data)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(target, rest) :]
    except OSError:
        pass  # the other side has ended
    finally:
        if closes is not None:
            closes.close()


def _reported(report: Report, sender: Sender, data: bytes) -> None:
    try:
        report(sender, data, Moment(world.now(), world.monotonic()))
    except Exception as error:
        warn_once(f"MCP calls are not recorded: {error_kind(error)}", about="effects mcp")


def main(arguments: Sequence[str]) -> int:
    """Run the tee with the arguments of the command line."""
    options, command = list(arguments), []
    if "--" in options:
        at = options.index("--")
        options, command = options[:at], options[at + 1 :]
    given = dict(zip(options[::2], options[1::2], strict=False))
    if not command:
        print("error: no server: write -- COMMAND ARGUMENTS...", file=sys.stderr)
        return 2
    try:
        return run_tee(command, SocketReport(given.get("--socket", ""), given.get("--server", "")))
    except OSError as error:
        message, code = start_error(command[0], error)
        print(message, file=sys.stderr)
        return code


def start_error(program: str, error: OSError) -> tuple[str, int]:
    """Return the message and the exit code for a server that cannot be started; the code is that of shells."""
    why = (error.strerror or str(error)).lower()
    code = 127 if isinstance(error, FileNotFoundError) else 126
    return f"error: cannot run {program[:200]!r}: {why} (check the command of the MCP server)", code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
