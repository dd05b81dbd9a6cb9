"""Sessions, and the one line that records a client.

    client = agentobs.record(AsyncAnthropic())
    with agentobs.session("refund-loop", tags={"git": "4f2a91c"}):
        ...

A session ends `failed` when an exception leaves it, when its last interaction ended in an error, or
when the agent says so with `session.fail(reason)`. Exchanges outside every session belong to a session
of the process.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from agentobs import tracing, world
from agentobs.errors import HomeError
from agentobs.recording import wire
from agentobs.recording.home import open_home
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import Place, SessionCall
from agentobs.records.facts import SessionEnd, SessionStart
from agentobs.records.labels import Label
from agentobs.sink import sink

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

FLUSH_SECONDS = 0.25
"""How long the end of a session waits at most for its records to be in the journal."""

_lock = threading.Lock()
_current: ContextVar[Session | None] = ContextVar("agentobs_session", default=None)
_recorder: Recorder | None = None
_process_session: Session | None = None


def record(client: C, *, home: str | None = None) -> C:
    """Record every exchange of an Anthropic client, and return the same client.

    Wraps the client's transport and mounts in place; a second call changes nothing. Sync and async
    clients, `with_options()` copies, custom http clients and the aiohttp transport are all recorded.

    Args:
        client: an `Anthropic`, `AsyncAnthropic` or platform client, or an `httpx2` client.
        home: where to record; default `AGENTOBS_HOME`, else `.agentobs`.

    Raises:
        UsageError: `client` is none of these.
    """
    start_recorder(home)
    wire.instrument(client, _process_place)
    return client


def start_recorder(home: str | None = None) -> Recorder | None:
    """Start this process's recorder, and return it; a second call returns the same one.

    Where the home cannot be used this warns and returns None: the agent goes on unrecorded. During a
    replay nothing is started.
    """
    global _recorder
    if wire.is_answered():
        return None
    with _lock:
        if _recorder is None:
            try:
                _recorder = Recorder(open_home(home))
            except (HomeError, OSError) as error:
                warnings.warn(f"agentobs: not recording: {error}", RuntimeWarning, stacklevel=3)
                return None
            sink.attach(_recorder)
            atexit.register(stop_recorder)
        return _recorder


def stop_recorder() -> bool:
    """Write what waits, seal the segment and detach; returns whether all was written in time."""
    global _recorder, _process_session
    if _process_session is not None:
        _process_session.close()
        _process_session = None
    with _lock:
        recorder, _recorder = _recorder, None
        atexit.unregister(stop_recorder)
    sink.detach()
    return recorder.close() if recorder is not None else True


def session(
    name: str, *, tags: Mapping[str, str] | None = None, home: str | None = None
) -> Session:
    """Return a session to enter with `with` or `async with`, or to decorate the agent's function with.

    Args:
        name: what to call it; a label (`[A-Za-z0-9._:/@-]`), else the store shows its digest.
        tags: labels to find it by, such as the git commit or the agent's version.
        home: where to record; default `AGENTOBS_HOME`, else `.agentobs`.
    """
    return Session(name, tags or {}, home, sys._getframe(1))


class Session:
    """One session; see `session`."""

    def __init__(
        self, name: str, tags: Mapping[str, str], home: str | None, caller: FrameType | None = None
    ) -> None:
        """Prepare a session; it starts when it is entered."""
        self.name = name
        self.session_id = ""
        self._tags = {str(key): str(value) for key, value in tags.items()}
        self._home = home
        self._entry, self._arguments = _entry_of(caller) if caller else (None, None)
        self._failure: tuple[str, str] | None = None
        self._token: object = None
        self._outer: Session | None = None

    def fail(self, reason: str) -> None:
        """Say that this session failed, and why, in a word or a label; the first reason stands."""
        if self._failure is None:
            self._failure = (reason, f"declared:{reason}")

    def open(self) -> None:
        """Start the session without making it the current place."""
        start_recorder(self._home)
        self.session_id = world.new_id()
        start = SessionStart(
            session_id=self.session_id,
            name=Label(self.name),
            started_ns=world.now(),
            entry=Label(self._entry) if self._entry else None,
            agentobs_version=Label(_version("agentobs-kit") or "unknown"),
            sdk_version=_version("anthropic"),
            python_version=Label(world.python_version()),
            platform=Label(world.platform()),
            tags=self._tags,
            arguments_content=None,
        )
        sink.emit(SessionCall(start, self._arguments))
        tracing.session_opened(Place(self.session_id))

    def close(self, error: BaseException | None = None) -> None:
        """End the session; with an error it failed."""
        if error is not None and self._failure is None:
            self._failure = (type(error).__name__, f"exception:{_origin(error)}")
        tracing.session_closed(self.session_id)
        reason, signature = self._failure or (None, None)
        sink.emit(
            SessionEnd(
                session_id=self.session_id,
                ended_ns=world.now(),
                outcome="failed" if self._failure else "completed",
                reason=Label(reason) if reason else None,
                signature=signature,
                dropped=0,
            )
        )
        if _recorder is not None:
            _recorder.flush(FLUSH_SECONDS)

    def __enter__(self) -> Session:
        """Start the session and be in it."""
        self.open()
        self._token = tracing.enter(Place(self.session_id))
        self._outer = _current.get()
        _current.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the session, failed where an exception leaves it."""
        tracing.leave(self._token)
        _current.set(self._outer)
        self.close(error)

    async def __aenter__(self) -> Session:
        """Start the session and be in it."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the session, failed where an exception leaves it."""
        self.__exit__(kind, error, traceback)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async: each call of it is a session of its own.

        The function's name and its arguments are recorded, so that a replay can call it again.
        """

        def begin(*args: P.args, **kwargs: P.kwargs) -> Session:
            opened = Session(self.name, self._tags, self._home)
            opened._entry = _name_of(
                function.__module__, function.__qualname__, function.__globals__
            )
            bound = inspect.signature(function).bind(*args, **kwargs)
            opened._arguments = _json_arguments(bound.arguments)
            return opened

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with begin(*args, **kwargs):
                    return await function(*args, **kwargs)

            return run_async  # type: ignore[return-value]  # a coroutine function like the one decorated

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with begin(*args, **kwargs):
                return function(*args, **kwargs)

        return run


def fail(reason: str) -> None:
    """Say that the session which the caller is in failed, and why; outside every session this does nothing."""
    opened = _current.get()
    if opened is not None:
        opened.fail(reason)


def _process_place() -> Place:
    """Return the place of exchanges outside every session, opening the process's own at the first."""
    global _process_session
    with _lock:
        if _process_session is None:
            _process_session = Session("process", {}, None)
            opening: Session | None = _process_session
        else:
            opening = None
    if opening is not None:
        opening.open()
    return Place(_process_session.session_id)


def _entry_of(frame: FrameType) -> tuple[str | None, dict[str, Any] | None]:
    """Return the function that a frame runs, as `module:name`, and its arguments where they are JSON."""
    code = frame.f_code
    name = _name_of(str(frame.f_globals.get("__name__")), code.co_qualname, frame.f_globals)
    if name is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return name, None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = {key: frame.f_locals[key] for key in names if key in frame.f_locals}
    return name, _json_arguments(values)


def _name_of(module: str, qualified: str, variables: Mapping[str, Any]) -> str | None:
    if "<" in qualified:
        return None
    if module == "__main__":
        spec, file = variables.get("__spec__"), variables.get("__file__")
        module = spec.name if spec else Path(file).stem if file else ""
    return f"{module}:{qualified}" if module else None


def _json_arguments(values: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        parsed: dict[str, Any] = json.loads(json.dumps(dict(values)))
    except (TypeError, ValueError, RecursionError):
        return None
    return parsed if parsed == dict(values) else None


def _origin(error: BaseException) -> str:
    """Return where an exception came from: its class, and the innermost function that is not a library's."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "site-packages" not in code.co_filename and "/agentobs/" not in code.co_filename:
            place = f"@{trace.tb_frame.f_globals.get('__name__')}:{code.co_name}"
        trace = trace.tb_next
    return type(error).__name__ + place


@functools.cache
def _version(distribution: str) -> Label | None:
    try:
        return Label(version(distribution))
    except PackageNotFoundError:
        return None


__all__ = ["Session", "fail", "record", "session", "start_recorder", "stop_recorder"]
