"""Test processes: a template that is forked early, and a child of it for each test.

The template is a copy of this process that only waits. For each `Template.run` it forks a child. The child starts with
the state that the template had when the template was forked, regardless of later changes in this process. A child sends
messages through its own pipe; the template reaps it and reports its exit status. When this process dies, the socket of
the template is closed, so the template kills its child and exits.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import pickle
import select
import signal
import socket
import struct
import sys
import sysconfig
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from agentobs.errors import UsageError

Send = Callable[[str, Any], None]
"""Sends a message, with a kind and a value, to the process that waits for the test."""
BLOCKED = {
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM")
    if hasattr(signal, name)
}
"""Signals that are blocked until a new process has its own handlers."""
BEGIN_SECONDS = 180.0
"""How long a child may take to send its first message. Our choice: generous even for a busy machine."""
INTERRUPT_SECONDS = (1.0, 2.0, 5.0)
"""How long an interrupted child may take to end: by itself, after SIGINT, and after SIGKILL."""
OWN_PACKAGES = ("agentobs", "replay", "exporters")
"""Packages of agentobs, which the template imports in advance like third-party packages."""
CLOSE_SECONDS, CLOSE_POLLS = 5.0, 1000
"""How long a template may take to exit, and how often this is checked during that time."""
_FRAME = struct.Struct("!I")
_COMMAND = struct.Struct("!ci")


@dataclass(frozen=True, slots=True)
class Death:
    """How a child ended."""

    status: int
    """The exit code; below 0, the signal that killed it."""
    is_late: bool = False
    """Whether the child was killed because it took too long."""

    def text(self) -> str:
        """Return the end as a predicate: `exited with code 3`, `was killed by SIGSEGV`."""
        if self.status >= 0:
            return f"exited with code {self.status}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"was killed by signal {-self.status}"


class OutputFiles:
    """Files that outlive a child and contain its captured output and its traceback."""

    def __init__(self) -> None:
        """Create the files, without names in the file system."""
        names = ("out", "err", "trace")
        self._files = {name: tempfile.TemporaryFile() for name in names}  # noqa: SIM115  # see `close`

    def descriptor(self, name: str) -> int:
        """Return the descriptor of a file: `out`, `err` or `trace`."""
        return self._files[name].fileno()

    def clear(self) -> None:
        """Empty all files."""
        for file in self._files.values():
            os.ftruncate(file.fileno(), 0)
            os.lseek(file.fileno(), 0, os.SEEK_SET)

    def text(self, name: str) -> str:
        """Return the text of a file."""
        descriptor = self.descriptor(name)
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class Template:
    """A copy of this process from which children are forked; it must be closed."""

    def __init__(
        self, work: Callable[[int, Send], None], prepare: Callable[[], None] | None = None
    ) -> None:
        """Fork the template.

        Args:
            work: runs in the child, with the number that `run` passes.
            prepare: runs in the template before the first child is forked, to save time in the children.
        """
        self._work, self._prepare = work, prepare
        self._socket, template_socket = socket.socketpair()
        _flush()
        with _blocked():
            self.process_id = _fork()
            if self.process_id == 0:
                _never_return(lambda: self._serve(template_socket))
        template_socket.close()

    def run(self, number: int, seconds: float | None) -> Generator[tuple[str, Any]]:
        """Fork a child and yield its messages, and finally `("ended", Death)`.

        If the generator is closed early, for example by Ctrl-C, it ends the child first.

        Args:
            number: the argument of `work`.
            seconds: the time without a message after which the child is killed; None for no limit.

        Raises:
            UsageError: the template process has ended.
        """
        reader, writer = os.pipe()
        messages, is_over = _Messages(reader), False
        try:
            _flush()
            try:
                socket.send_fds(self._socket, [_COMMAND.pack(b"R", number)], [writer])
            finally:
                os.close(writer)
            for message in self._messages_of_child(messages, seconds):
                is_over = message[0] == "ended"
                yield message
        except (BrokenPipeError, ConnectionError, EOFError) as error:
            is_over = True
            raise UsageError(
                "the template process of the tests has ended",
                where=f"process {self.process_id}",
                todo="Run pytest with --replay-no-fork",
            ) from error
        finally:
            if not is_over:
                self._interrupt()
            os.close(reader)

    def _messages_of_child(
        self, messages: _Messages, seconds: float | None
    ) -> Iterator[tuple[str, Any]]:
        """Yield the messages of a child; kill the child if it sends no message for too long."""
        poll = select.poll()
        for descriptor in (messages.descriptor, self._socket.fileno()):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        limit: float | None = BEGIN_SECONDS
        # SIGABRT lets faulthandler write the stack of the child; the template itself is killed last.
        steps = [signal.SIGABRT, signal.SIGKILL, None]
        while True:
            ready = dict(poll.poll(None if limit is None else limit * 1000))
            if messages.descriptor in ready:
                found, is_open = messages.read()
                if not is_open:
                    poll.unregister(messages.descriptor)
                for message in found:
                    seconds = None if message[0] == "unlimited" else seconds
                    limit = seconds
                    yield message
            elif self._socket.fileno() in ready:
                status = self._status()
                yield from messages.rest()
                yield "ended", Death(status, is_late=len(steps) < 3)
                return
            else:
                limit = INTERRUPT_SECONDS[2]
                self._kill(steps.pop(0))

    def _status(self) -> int:
        data = self._socket.recv(_COMMAND.size)
        if len(data) < _COMMAND.size:
            raise EOFError
        status: int = _COMMAND.unpack(data)[1]
        return status

    def _kill(self, number: int | None) -> None:
        """Send a signal to the child through the template; None kills a template that no longer responds."""
        if number is None:
            os.kill(self.process_id, signal.SIGKILL)
        else:
            self._socket.sendall(_COMMAND.pack(b"K", number))

    def _interrupt(self) -> None:
        """End a child: first wait for its teardown, then interrupt it, then kill it."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN | select.POLLHUP)
        steps = (None, signal.SIGINT, signal.SIGKILL)
        with contextlib.suppress(OSError, EOFError):
            for number, seconds in zip(steps, INTERRUPT_SECONDS, strict=True):
                if number is not None:
                    self._kill(number)
                if poll.poll(seconds * 1000):
                    self._status()
                    return

    def close(self) -> None:
        """End the template and its running child, if any. A second call has no effect."""
        if self._socket.fileno() < 0:
            return
        self._socket.close()
        pause = threading.Event()
        with contextlib.suppress(ChildProcessError):
            for _ in range(CLOSE_POLLS):
                if os.waitpid(self.process_id, os.WNOHANG)[0]:
                    return
                pause.wait(CLOSE_SECONDS / CLOSE_POLLS)
            os.kill(self.process_id, signal.SIGKILL)
            os.waitpid(self.process_id, 0)

    def _serve(self, template_socket: socket.socket) -> None:
        """Fork a child for each command, until the socket is closed. Runs in the template."""
        self._socket.close()
        _Server(template_socket, self._work).serve(self._prepare)


class _Server:
    """Runs in the template and forks its children."""

    def __init__(self, template_socket: socket.socket, work: Callable[[int, Send], None]) -> None:
        self._socket, self._work = template_socket, work
        self._child = 0
        self._imported: set[str] = set()
        self._names_file = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process

    def serve(self, prepare: Callable[[], None] | None) -> None:
        self._wake_reader, wake_writer = os.pipe()
        for descriptor in (self._wake_reader, wake_writer):
            os.set_blocking(descriptor, False)
        before = {number: signal.getsignal(number) for number in (*BLOCKED, signal.SIGCHLD)}
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        previous_writer = signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN | select.POLLHUP)
        poll.register(self._wake_reader, select.POLLIN)
        # Garbage collection would copy the memory pages of all inherited objects.
        gc.freeze()
        if prepare is not None:
            with _quiet(), contextlib.suppress(Exception):
                prepare()
            _freeze()
        while True:
            ready = dict(poll.poll())
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
                self._reap()
            if self._socket.fileno() in ready:
                data, received, *_ = socket.recv_fds(self._socket, _COMMAND.size, 1)
                if len(data) < _COMMAND.size:
                    self._kill_child()
                    return
                command, number = _COMMAND.unpack(data)
                if command == b"K":
                    if self._child:
                        os.kill(self._child, number)
                    continue
                [writer] = received
                with _blocked():
                    self._child = _fork()
                    if self._child == 0:
                        for descriptor in (self._wake_reader, wake_writer):
                            os.close(descriptor)
                        signal.set_wakeup_fd(previous_writer)
                        for each, handler in before.items():
                            signal.signal(each, signal.SIG_DFL if handler is None else handler)
                        self._socket.close()
                        _never_return(lambda: self._run(number, writer))  # noqa: B023
                os.close(writer)

    def _run(self, number: int, writer: int) -> None:
        """Do the work; runs in the child."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
        os.set_inheritable(writer, False)
        known = set(sys.modules)

        def send(kind: str, value: Any) -> None:
            data = pickle.dumps((kind, value))
            _write(writer, _FRAME.pack(len(data)) + data)

        try:
            self._work(number, send)
        finally:
            names = [
                name for name in list(sys.modules) if name not in known and _is_third_party(name)
            ]
            self._names_file.seek(0)
            self._names_file.truncate()
            self._names_file.write(json.dumps(names).encode())
            self._names_file.flush()
            _flush()

    def _reap(self) -> None:
        if not self._child:
            return
        found, status = os.waitpid(self._child, os.WNOHANG)
        if not found:
            return
        self._child = 0
        self._socket.sendall(_COMMAND.pack(b"E", os.waitstatus_to_exitcode(status)))
        self._names_file.seek(0)
        data = self._names_file.read()
        self._names_file.seek(0)
        self._names_file.truncate()
        self._import_for_children(json.loads(data) if data else ())

    def _import_for_children(self, names: Sequence[str]) -> None:
        """Import third-party modules that a child has imported, so that the next child has them already."""
        new = [name for name in names if name not in self._imported]
        self._imported.update(new)
        with _quiet():
            for name in new:
                # If an import fails, the next child that needs the module reports the error.
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        if new:
            _freeze()

    def _kill_child(self) -> None:
        self._names_file.close()
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)


class _Messages:
    """Assembles the messages of one child from the bytes of its pipe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._data = b""
        os.set_blocking(descriptor, False)

    def read(self) -> tuple[list[tuple[str, Any]], bool]:
        """Return the complete messages that have arrived, and whether more may follow."""
        is_open = True
        try:
            data = os.read(self.descriptor, 1 << 16)
            self._data += data
            is_open = bool(data)
        except BlockingIOError:
            pass
        return list(self._complete()), is_open

    def rest(self) -> Iterator[tuple[str, Any]]:
        """Yield the last messages of a child that has ended, except an incomplete one."""
        while True:
            before = len(self._data)
            try:
                self._data += os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                break
            if len(self._data) == before:
                break
        yield from self._complete()

    def _complete(self) -> Iterator[tuple[str, Any]]:
        while len(self._data) >= _FRAME.size:
            [size] = _FRAME.unpack_from(self._data)
            if len(self._data) < _FRAME.size + size:
                return
            message = self._data[_FRAME.size : _FRAME.size + size]
            self._data = self._data[_FRAME.size + size :]
            yield pickle.loads(message)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discard output and warnings, because a child that does the same work shows them again."""
    dropped = io.StringIO()
    with (
        contextlib.redirect_stdout(dropped),
        contextlib.redirect_stderr(dropped),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _freeze() -> None:
    """Exclude existing objects from garbage collection in children, so that their memory pages are not copied."""
    gc.collect()
    gc.freeze()


def _fork() -> int:
    """Fork this process.

    Other threads do not exist in the child, where the standard library and agentobs create their locks again. So the
    warning of Python 3.12 and later about forking a process with threads is suppressed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Block signals, so that a new process gets no signal before it has installed its own handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _never_return(work: Callable[[], None]) -> NoReturn:
    """Do the work of a forked process and exit, without `atexit` handlers and without returning to the caller."""
    status = 70
    try:
        work()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def _flush() -> None:
    """Flush the buffers that a fork would copy, or that an exit would lose."""
    for stream in {
        id(each): each for each in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    }.values():
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


_LIBRARY = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


def _is_third_party(name: str) -> bool:
    """Return whether a module belongs to the standard library or an installed package, and not to the user."""
    if name.partition(".")[0] in OWN_PACKAGES:
        return True
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    if not isinstance(origin, str):
        return False
    if origin in ("built-in", "frozen"):
        return True
    parts = Path(origin).parts
    return "site-packages" in parts or "dist-packages" in parts or origin.startswith(_LIBRARY)


def can_fork() -> bool:
    """Return whether this platform supports forked test processes."""
    return all(
        hasattr(module, name)
        for module, name in ((os, "fork"), (select, "poll"), (socket, "send_fds"))
    )
