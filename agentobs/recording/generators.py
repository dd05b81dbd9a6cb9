"""Generators as the function of a session: the session spans the iteration.

It starts at the first `next` and ends when the generator does: exhausted, closed by its consumer, or by an exception.
Between two values the consumer runs, which is not in the session.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any, Protocol

from agentobs import tracing
from agentobs.records.exchanges import Place

VALUES_MAX = 10_000
"""How many values are kept as the result of a generator. One that yields more has no result. Our choice."""


class Spanning(Protocol):
    """What a session does for its iteration; see `recording.session.Session`."""

    session_id: str

    def open(self) -> None:
        """Start the session; never raises."""
        ...

    def close(self, error: BaseException | None = None) -> None:
        """End the session; never raises."""
        ...

    def came_to(self, value: Any) -> None:
        """Record what the function of the session returned."""
        ...

    def place(self) -> Place:
        """Return the place of the caller when it is in the session."""
        ...

    def hold(self) -> None:
        """Patch what the session patches."""
        ...

    def let_go(self) -> None:
        """End what `hold` began."""
        ...


class Iteration:
    """The session of one iteration over a generator."""

    def __init__(self, session: Spanning) -> None:
        """Span an iteration that has not begun."""
        self._session = session

    def begin(self) -> None:
        """Start the session, without being in it."""
        self._session.open()
        if self._session.session_id:
            tracing.session_opened(self._session.place())

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Be in the session for as long as the context is open."""
        session = self._session
        frame = tracing.enter(session.place()) if session.session_id else None
        session.hold()
        try:
            yield
        finally:
            session.let_go()
            if frame is not None:
                tracing.leave(frame)

    def finish(self, error: BaseException | None, values: list[Any] | None) -> None:
        """End the session.

        Args:
            error: what ended the generator before its end.
            values: what it yielded, in order, which is the result of the session; None if that was too much, or if
                not all of it was asked for.
        """
        if error is None and values is not None:
            self._session.came_to(values)
        tracing.session_closed(self._session.session_id)
        self._session.close(error)


class _Values:
    """The values that were yielded."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._count = 0

    def add(self, value: Any) -> None:
        self._count += 1
        if self._count <= VALUES_MAX:
            self._kept.append(value)

    def all(self, error: BaseException | None) -> list[Any] | None:
        return self._kept if error is None and self._count <= VALUES_MAX else None


def iterating(function: Callable[..., Any], start: Callable[..., Iteration]) -> Callable[..., Any]:
    """Return a generator function that iterates within a session of its own, made by `start` with the same arguments.

    What the consumer sends or throws goes to the generator.

    Args:
        function: a generator function, sync or async.
        start: returns the session of an iteration that begins.
    """
    return (_async if inspect.isasyncgenfunction(function) else _sync)(function, start)


def _sync(function: Callable[..., Any], start: Callable[..., Iteration]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        session = start(*args, **kwargs)
        session.begin()
        values, error = _Values(), None
        try:
            with session.inside():
                inner = function(*args, **kwargs)
            step: Callable[[Any], Any] = inner.send
            given: Any = None
            while True:
                try:
                    with session.inside():
                        value = step(given)
                except StopIteration as stop:
                    return stop.value
                values.add(value)
                try:
                    step, given = inner.send, (yield value)
                except GeneratorExit:
                    with session.inside():
                        inner.close()
                    raise
                except BaseException as thrown:  # the generator may handle it and go on
                    step, given = inner.throw, thrown
        except BaseException as raised:
            error = raised
            raise
        finally:
            session.finish(error, values.all(error))

    return run


def _async(function: Callable[..., Any], start: Callable[..., Iteration]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        session = start(*args, **kwargs)
        session.begin()
        values, error = _Values(), None
        try:
            with session.inside():
                inner = function(*args, **kwargs)
            step: Callable[[Any], Any] = inner.asend
            given: Any = None
            while True:
                try:
                    with session.inside():
                        value = await step(given)
                except StopAsyncIteration:
                    return
                values.add(value)
                try:
                    step, given = inner.asend, (yield value)
                except GeneratorExit:
                    with session.inside():
                        await inner.aclose()
                    raise
                except BaseException as thrown:  # the generator may handle it and go on
                    step, given = inner.athrow, thrown
        except BaseException as raised:
            error = raised
            raise
        finally:
            session.finish(error, values.all(error))

    return run
