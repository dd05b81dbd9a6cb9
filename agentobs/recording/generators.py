"""Generators as the function of a session: the session spans the iteration.

The session starts at the first `next` and ends with the generator: when it is exhausted, closed by its consumer, or
ended by an exception. Between two values the consumer runs, which is outside of the session.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any, Protocol

from agentobs import tracing
from agentobs.determinism.return_values import ReturnedItems
from agentobs.records.exchanges import Place, Returned


class Spanning(Protocol):
    """The interface of a session for its iteration; see `recording.session.Session`."""

    session_id: str

    def open(self) -> None:
        """Start the session; never raises."""
        ...

    def close(self, error: BaseException | None = None) -> None:
        """End the session; never raises."""
        ...

    def yielded(self, values: Returned) -> None:
        """Record what the generator of the session yielded, as the result of the session."""
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
        """Prepare an iteration that has not started."""
        self._session = session

    def begin(self) -> None:
        """Start the session without entering it."""
        self._session.open()
        if self._session.session_id:
            tracing.session_opened(self._session.place())

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Enter the session while the context is open."""
        session = self._session
        frame = tracing.enter(session.place()) if session.session_id else None
        session.hold()
        try:
            yield
        finally:
            session.let_go()
            if frame is not None:
                tracing.leave(frame)

    def finish(self, error: BaseException | None, values: ReturnedItems) -> None:
        """End the session.

        Args:
            error: the exception that ended the generator early, if any.
            values: the yielded values in order, which are the result of the session if no exception ended it.
        """
        if error is None:
            self._session.yielded(values.all())
        tracing.session_closed(self._session.session_id)
        self._session.close(error)


def iterating(function: Callable[..., Any], start: Callable[..., Iteration]) -> Callable[..., Any]:
    """Return a generator function that iterates within its own session, which `start` creates from the same arguments.

    Values and exceptions that the consumer sends or throws are passed to the generator.

    Args:
        function: a generator function, sync or async.
        start: returns the session of a new iteration.
    """
    return (_async if inspect.isasyncgenfunction(function) else _sync)(function, start)


def _sync(function: Callable[..., Any], start: Callable[..., Iteration]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        session = start(*args, **kwargs)
        session.begin()
        values, error = ReturnedItems(), None
        box: list[Any] = []  # a local variable would hold what was yielded
        try:
            with session.inside():
                inner = function(*args, **kwargs)
            step: Callable[[Any], Any] = inner.send
            given: Any = None
            while True:
                try:
                    with session.inside():
                        box.append(step(given))
                except StopIteration as stop:
                    return stop.value
                finally:
                    given = None
                values.add(box[0])
                try:
                    step, given = inner.send, (yield box.pop())
                except GeneratorExit:
                    with session.inside():
                        inner.close()
                    raise
                except BaseException as thrown:  # the generator may handle it and continue
                    step, given = inner.throw, thrown
        except BaseException as raised:
            error = raised
            raise
        finally:
            session.finish(error, values)
            error = given = None  # this frame is in their tracebacks: no cycle may keep it

    return run


def _async(function: Callable[..., Any], start: Callable[..., Iteration]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        session = start(*args, **kwargs)
        session.begin()
        values, error = ReturnedItems(), None
        box: list[Any] = []  # a local variable would hold what was yielded
        try:
            with session.inside():
                inner = function(*args, **kwargs)
            step: Callable[[Any], Any] = inner.asend
            given: Any = None
            while True:
                try:
                    with session.inside():
                        box.append(await step(given))
                except StopAsyncIteration:
                    return
                finally:
                    given = None
                values.add(box[0])
                try:
                    step, given = inner.asend, (yield box.pop())
                except GeneratorExit:
                    with session.inside():
                        await inner.aclose()
                    raise
                except BaseException as thrown:  # the generator may handle it and continue
                    step, given = inner.athrow, thrown
        except BaseException as raised:
            error = raised
            raise
        finally:
            session.finish(error, values)
            error = given = None  # this frame is in their tracebacks: no cycle may keep it

    return run
