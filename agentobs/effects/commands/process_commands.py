"""Commands of the agent's own process: subprocess is patched while a session observes commands.

`subprocess.Popen` starts all commands of subprocess and of asyncio. Its arguments and its exit code are always known;
its output only if the program reads it with `communicate`, as `subprocess.run` does, because reading it here would take
it away from the program.
"""

from __future__ import annotations

import asyncio.base_subprocess
import inspect
import os
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.effects.commands.command_records import (
    clean_text,
    signal_label,
    stream_content,
)
from agentobs.effects.commands.shim_files import KEPT_BYTES, SHELLS
from agentobs.effects.commands.shim_reports import Stream
from agentobs.effects.observation import Scope
from agentobs.effects.process_scopes import scope_here, session_of, spans_here
from agentobs.errors import error_kind, warn_once
from agentobs.records.effect_facts import Command, CommandOutcome, StreamKind
from agentobs.records.exchanges import ObservedEffect, Place
from agentobs.records.labels import Label, unchecked
from agentobs.runtime import process
from agentobs.sink import sink

OWN_MODULES = ("agentobs.effects.", "agentobs.recording.", "agentobs.store.")
"""The modules of agentobs that start commands. These are not commands of the agent."""


@dataclass(slots=True)
class _Started:
    """A command that has started."""

    place: Place
    spans: tuple[str, ...]
    keeps_content: bool
    command_id: str
    arguments: tuple[str, ...]
    directory: str
    streams: tuple[StreamKind, StreamKind, StreamKind]
    is_merged: bool
    started_ns: int
    clock_ns: int
    ended: tuple[int, int] | None = None
    """When it ended, and its return code."""
    is_read: bool = False
    """Whether the program is reading its output with `communicate`."""
    output: tuple[Stream | None, Stream | None] = (None, None)


@dataclass(slots=True)
class Patched:
    """The patches of this process, and the sessions that need them."""

    scopes: list[Scope] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)
    patches: list[tuple[Any, str, Any, Any]] = field(default_factory=list)
    """Each patched class, the name of its method, our function, and the original one."""
    started: weakref.WeakKeyDictionary[Any, _Started] = field(
        default_factory=weakref.WeakKeyDictionary
    )


def observe_process(scope: Scope) -> None:
    """Start observing the commands that this process starts in the session of a scope."""
    patched = process.state(Patched)
    with patched.lock:
        patched.scopes.append(scope)
        if not patched.patches:
            _patch(patched)


def leave_process(scope: Scope) -> None:
    """Stop observing the commands of a scope; commands that are running are reported."""
    patched = process.state(Patched)
    with patched.lock:
        patched.scopes = [each for each in patched.scopes if each is not scope]
        running = [
            (each, started)
            for each, started in list(patched.started.items())
            if started.place.session_id == session_of(scope)
        ]
        if not patched.scopes:
            _unpatch(patched)
    for each, started in running:
        patched.started.pop(each, None)
        _emit(started, "running")


def _patch(patched: Patched) -> None:
    popen: Any = subprocess.Popen
    transport: Any = asyncio.base_subprocess.BaseSubprocessTransport
    originals: dict[str, Callable[..., Any]] = {}
    originals["init"] = popen.__init__
    originals["exit"] = popen._handle_exitstatus
    originals["communicate"] = popen.communicate
    originals["exited"] = transport._process_exited

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = _with_list(args, kwargs)
        started = _guarded(lambda: _started(patched.scopes, args, kwargs))
        try:
            originals["init"](self, *args, **kwargs)
        except BaseException:
            if started is not None:
                _guarded(lambda: _emit(started, "not_started"))
            raise
        if started is not None:
            _guarded(lambda: patched.started.__setitem__(self, started))

    def exit_status(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = originals["exit"](self, *args, **kwargs)
        _guarded(lambda: _ended(patched, self, self.returncode))
        return result

    def communicate(self: Any, *args: Any, **kwargs: Any) -> Any:
        started = _guarded(lambda: patched.started.get(self))
        if started is not None:
            started.is_read = True
        try:
            output = originals["communicate"](self, *args, **kwargs)
            if started is not None:
                _guarded(lambda: setattr(started, "output", _output(output)))
            return output
        finally:
            if started is not None:
                started.is_read = False
                _guarded(lambda: _finish(patched, self, started))

    def exited(self: Any, returncode: int) -> Any:
        popen_object = self._proc
        result = originals["exited"](self, returncode)
        _guarded(lambda: _ended(patched, popen_object, returncode))
        return result

    popen.__init__, popen._handle_exitstatus, popen.communicate = init, exit_status, communicate
    transport._process_exited = exited
    patched.patches = [
        (popen, "__init__", init, originals["init"]),
        (popen, "_handle_exitstatus", exit_status, originals["exit"]),
        (popen, "communicate", communicate, originals["communicate"]),
        (transport, "_process_exited", exited, originals["exited"]),
    ]


def _unpatch(patched: Patched) -> None:
    """Restore the original methods, unless another library has patched them since: its patch calls our functions."""
    for owner, name, own, original in patched.patches:
        if getattr(owner, name) is own:
            setattr(owner, name, original)
    patched.patches = []


def _with_list(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `Popen`; if the command is an iterator, which can be read only once, it is a list."""
    if args and isinstance(args[0], Iterator):
        args = (list(args[0]), *args[1:])
    elif isinstance(kwargs.get("args"), Iterator):
        kwargs = {**kwargs, "args": list(kwargs["args"])}
    return args, kwargs


def _guarded(work: Callable[[], Any]) -> Any:
    """Call a function; an exception is reported once, and never reaches the program."""
    try:
        return work()
    except Exception as error:
        warn_once(f"a command is not recorded: {error_kind(error)}", about="effects commands")
        return None


def _started(scopes: list[Scope], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Started | None:
    """Return a command that is about to start; None if it is not observed."""
    found = scope_here(scopes)
    if found is None or _is_own():
        return None
    scope, place = found
    names = ("args", "bufsize", "executable", "stdin", "stdout", "stderr")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    arguments = _arguments(given)
    directory = given.get("cwd")
    out, err = given.get("stdout"), given.get("stderr")
    return _Started(
        place,
        spans_here(),
        scope.keeps_content,
        world.new_id(),
        arguments,
        os.fsdecode(directory) if directory is not None else str(Path.cwd()),
        (_kind(given.get("stdin")), _kind(out), _kind(out if err == subprocess.STDOUT else err)),
        err == subprocess.STDOUT,
        world.now(),
        world.monotonic(),
    )


def _is_own() -> bool:
    """Return whether agentobs itself starts the command, such as git for the files of the workspace."""
    frame = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name not in (__name__, "subprocess"):
            return name.startswith(OWN_MODULES)
        frame = frame.f_back
    return False


def _arguments(given: dict[str, Any]) -> tuple[str, ...]:
    listed = given.get("args")
    if isinstance(listed, str | bytes | os.PathLike):
        text = os.fsdecode(listed)
        return ("sh", "-c", text) if given.get("shell") else (text,)
    words = tuple(os.fsdecode(each) for each in listed or ())
    return ("sh", "-c", *words) if given.get("shell") else words


def _kind(stream: object) -> StreamKind:
    if stream is None:
        return "inherited"
    if stream == subprocess.PIPE:
        return "captured"
    return "device" if stream == subprocess.DEVNULL else "file"


def _output(output: tuple[Any, Any]) -> tuple[Stream | None, Stream | None]:
    first, second = (_stream(each) for each in output)
    return first, second


def _stream(output: object) -> Stream | None:
    if output is None:
        return None
    data = output.encode("utf-8", "surrogateescape") if isinstance(output, str) else output
    assert isinstance(data, bytes)
    tail = data[max(KEPT_BYTES, len(data) - KEPT_BYTES) :]
    return Stream(len(data), data[:KEPT_BYTES], tail)


def _ended(patched: Patched, popen: Any, code: int | None) -> None:
    started = patched.started.get(popen)
    if started is None or started.ended is not None or code is None:
        return
    started.ended = world.monotonic(), code
    _finish(patched, popen, started)


def _finish(patched: Patched, popen: Any, started: _Started) -> None:
    """Emit a command that has ended, unless its output is still being read."""
    if started.ended is None or started.is_read or patched.started.pop(popen, None) is None:
        return
    _emit(started, "signaled" if started.ended[1] < 0 else "exited")


def _emit(started: _Started, outcome: CommandOutcome) -> None:
    place, arguments = started.place, started.arguments
    ended_ns, code = started.ended or (None, None)
    duration_ns = ended_ns - started.clock_ns if ended_ns is not None else None
    name = Path(arguments[0]).name if arguments else ""
    stdout, stderr = started.output
    fact = Command(
        session_id=place.session_id,
        interaction_id=place.interaction_id,
        lane=unchecked(place.lane),
        turn=place.turn,
        command_id=started.command_id,
        parent_command_id=None,
        span_id=place.span_id,
        program=Label(name) if name in SHELLS else unchecked(name),
        source="process",
        started_ns=started.started_ns,
        ended_ns=started.started_ns + duration_ns if duration_ns is not None else None,
        duration_ns=duration_ns,
        outcome=outcome,
        exit_code=code if outcome == "exited" else None,
        signal=signal_label(-code) if code is not None and outcome == "signaled" else None,
        argument_count=max(0, len(arguments) - 1),
        argument_bytes=sum(len(os.fsencode(each)) for each in arguments[1:]),
        stdin=started.streams[0],
        stdout=started.streams[1],
        stderr=started.streams[2],
        is_merged=started.is_merged,
        stdout_bytes=stdout.total if stdout is not None else None,
        stderr_bytes=stderr.total if stderr is not None else None,
    )
    content: dict[str, Any] | None = None
    if started.keeps_content:
        content = {
            "argv": [clean_text(each) for each in arguments],
            "directory": clean_text(started.directory),
            **({"stdout": stream_content(stdout)} if stdout is not None else {}),
            **({"stderr": stream_content(stderr)} if stderr is not None else {}),
        }
    sink.emit(ObservedEffect(fact, arguments, content=content, spans=started.spans))


__all__ = ["leave_process", "observe_process"]
