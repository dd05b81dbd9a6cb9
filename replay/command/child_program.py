"""A child program in its own process group, with bounded output; it always ends with all its descendants.

Descendants that have left the process group, such as daemons, are not ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

from agentobs import world
from agentobs.errors import UsageError

OUTPUT_MAX = 1 << 20
"""The number of bytes that are kept at the end of each output. Our choice."""
NATURAL_SECONDS = 1.0
"""How long a program may take to end by itself before it is terminated. Our choice."""
GRACE_SECONDS = 3.0
"""How long a terminated program may take to end before it is killed. Our choice."""
KILLED_SECONDS = 1.0
"""How long to wait for killed processes. They end immediately, but their parent may not wait for them. Our choice."""
_POLL_SECONDS = 0.02


class ChildProgram:
    """A running program."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        stdin: bytes | None = b"",
    ) -> None:
        """Start the program.

        Args:
            command: the program and its arguments.
            directory: its working directory.
            environment: all its environment variables.
            stdin: its input. None keeps it open until the program ends, so that the program can notice the end of this
                process.

        Raises:
            UsageError: the program cannot be started.
        """
        self.has_ended = threading.Event()
        """Is set when the program has ended, or when it should be ended."""
        try:
            self._process = subprocess.Popen(
                list(command),
                cwd=directory,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(
                f"the command cannot be started: {error.strerror or error}",
                where=command[0],
                todo="Check the path of the program, and the directory in which it runs",
            ) from error
        self._outputs: list[Output] = []
        try:
            self._start_threads(stdin)
        except BaseException:  # such as a signal of the program to this process
            self.stop()
            raise

    def _start_threads(self, stdin: bytes | None) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for stream in (process.stdout, process.stderr):
            self._outputs.append(Output(stream))
        self.stdout, self.stderr = self._outputs
        threading.Thread(target=self._wait, daemon=True).start()
        if stdin is not None:
            writes = (process.stdin, stdin)
            threading.Thread(target=_write, args=writes, daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        """The exit code, or 128 and the number of the signal, as in a shell; None while the program runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def stop(self, natural_seconds: float = 0.0) -> None:
        """End the program and its process group: by SIGTERM, and after a grace period by SIGKILL.

        Args:
            natural_seconds: how long to wait first for the program to end by itself.
        """
        if natural_seconds:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(natural_seconds)
        if self._signal(signal.SIGTERM) and not self._is_gone(GRACE_SECONDS):
            self._signal(signal.SIGKILL)
            self._is_gone(KILLED_SECONDS)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        for output in self._outputs:
            output.close()

    def interrupt(self) -> None:
        """End the program and its process group: by SIGINT, so that it can end its own children, then as `stop` does.

        A program that has ended by itself is not signaled, but the rest of its process group is ended.
        """
        if self._process.poll() is None and self._signal(signal.SIGINT):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
        self.stop()

    def _is_gone(self, seconds: float) -> bool:
        """Wait until the process group has no process; return whether that was so within a number of seconds."""
        deadline = world.monotonic() + int(seconds * 1e9)
        while self._signal(0):
            if world.monotonic() >= deadline:
                return False
            self._process.poll()
            world.pause(_POLL_SECONDS)
        return True

    def _signal(self, number: int) -> bool:
        """Send a signal to the process group; return whether the group has a process."""
        try:
            os.killpg(self._process.pid, number)
        except (
            ProcessLookupError,
            PermissionError,
        ):  # macOS refuses a group that only has a zombie
            return False
        return True

    def _wait(self) -> None:
        self._process.wait()
        self.has_ended.set()


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """End this process in order on SIGTERM and SIGHUP, so that its child programs are ended."""

    def stop(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) == signal.SIG_DFL:
                before[each] = signal.signal(each, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Output:
    """An output of a program. Only its last bytes are kept."""

    def __init__(self, stream: IO[bytes]) -> None:
        """Start to read."""
        self._stream = stream
        self._data = bytearray()
        self._lock = threading.Lock()
        self.skipped = 0
        """The number of bytes at the start that were not kept."""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read the rest; if a process outside of the group keeps the output open, only what has arrived."""
        self._thread.join(GRACE_SECONDS)

    def text(self) -> str:
        """Return the kept bytes as text, after a note if bytes are missing."""
        with self._lock:
            text = self._data.decode("utf-8", "replace")
            return f"[{self.skipped} bytes skipped]\n{text}" if self.skipped else text

    def _read(self) -> None:
        with self._stream:
            while data := os.read(self._stream.fileno(), 1 << 16):
                with self._lock:
                    self._data += data
                    if (excess := len(self._data) - OUTPUT_MAX) > 0:
                        del self._data[:excess]
                        self.skipped += excess


def _write(stream: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError):  # the program need not read its input
        with stream:
            stream.write(data)
