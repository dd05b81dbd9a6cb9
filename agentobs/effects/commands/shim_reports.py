"""Shim reports: the messages of shims.

A shim connects when its command starts, and sends a message `S`; when the command has ended, it sends `E` and
disconnects. A connection that ends without `E` means that the shim was killed. Commands never wait for this process:
a shim that cannot connect or send within 250 ms runs the program without reporting it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentobs import world
from agentobs.effects.report_socket import ReportSocket

KNOWN_MAX = 10_000
"""The maximum number of shims that are remembered as possible parents of later commands. Our choice."""
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
    """The output of a command on one stream."""

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


class ShimReports:
    """Receives the reports of shims, and passes on each command when it has ended."""

    def __init__(self, path: Path, receive: Callable[[CommandReport], None]) -> None:
        """Listen at `path`, and pass each command that has ended to `receive`, in a thread.

        Raises:
            OSError: the socket cannot be created.
        """
        self.receive = receive
        self._known: OrderedDict[int, _Known] = OrderedDict()
        """The last commands, by the process of their shim."""
        self._socket = ReportSocket(path, lambda: _Shim(self), "agentobs-commands")

    def stop(self) -> None:
        """Read what has arrived, and pass on the commands that are still running."""
        self._socket.stop()

    def identify(self, start: StartReport) -> tuple[str, str | None]:
        """Return the ID of a command that has started, and that of the command that runs it, if it is known."""
        parents = (self._known[each] for each in start.ancestors if each in self._known)
        # A later process may have the number of a shim that has ended.
        parent_id = next(
            (
                each.command_id
                for each in parents
                if each.ended_ns is None or start.started_ns <= each.ended_ns
            ),
            None,
        )
        self._known.pop(start.pid, None)
        command_id = world.new_id()
        self._known[start.pid] = _Known(command_id)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return command_id, parent_id

    def note_end(self, pid: int, command_id: str, ended_ns: int) -> None:
        """Note when a command has ended."""
        known = self._known.get(pid)
        if known is not None and known.command_id == command_id:
            known.ended_ns = ended_ns


@dataclass(slots=True)
class _Known:
    """A command that may be the parent of later commands."""

    command_id: str
    ended_ns: int | None = None


@dataclass(slots=True)
class _Shim:
    """The connection of one shim."""

    reports: ShimReports
    start: StartReport | None = None
    ids: tuple[str, str | None] = ("", None)
    is_done: bool = False

    def message(self, kind: bytes, fields: list[bytes]) -> None:
        if kind == b"S":
            self.start = _start(fields)
            self.ids = self.reports.identify(self.start)
        elif kind == b"E" and self.start is not None:
            self.is_done = True
            end = _end(fields, self.start)
            self.reports.note_end(self.start.pid, self.ids[0], end.ended_ns)
            self.reports.receive(CommandReport(*self.ids, self.start, end))

    def closed(self, *, by_sender: bool) -> None:
        if self.start is not None and not self.is_done:
            self.reports.note_end(self.start.pid, self.ids[0], world.now())
            self.reports.receive(
                CommandReport(*self.ids, self.start, None, is_running=not by_sender)
            )


def _start(fields: list[bytes]) -> StartReport:
    version, name, program, pids, streams, clock, directory, *arguments = fields
    if version != VERSION:
        raise ValueError("unknown version of the report")
    pid, *ancestors = (int(each) for each in pids.split(b","))
    first, second, third = (each.decode("ascii") for each in streams.split(b","))
    return StartReport(
        _text(name),
        _text(program),
        pid,
        tuple(ancestors),
        (first, second, third),
        world.at(int(clock)) if int(clock) else world.now(),
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
