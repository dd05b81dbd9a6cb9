"""Generators that are decorated with a session: each iteration is a session.

The session starts at the first `next` and ends with the generator: when it is exhausted, closed by its consumer, or
ended by an exception. The consumer, which runs between two values, is outside the session.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any, Protocol

from agentobs import tracing
from agentobs.determinism.return_values import ReturnedItems
from agentobs.records.exchanges import Place, ReturnValue


class IteratedSession(Protocol):
    """The methods of a session that an iteration uses; see `recording.session.Session`."""

    session_id: str

    def open(self) -> None:
        """Start the session; never raises."""
        ...

    def close(self, error: BaseException | None = None) -> None:
        """End the session; never raises."""
        ...

    def set_yielded_values(self, values: ReturnValue) -> None:
        """Record the yielded values as the result of the session."""
        ...

    def place(self) -> Place:
        """Return a place in the session."""
        ...

    def patch(self) -> None:
        """Patch the standard library if the session requests that."""
        ...

    def unpatch(self) -> None:
        """Undo what `patch` did."""
        ...


class Iteration:
    """The session of one iteration over a generator."""

    def __init__(self, session: IteratedSession) -> None:
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
        session.patch()
        try:
            yield
        finally:
            session.unpatch()
            if frame is not None:
                tracing.leave(frame)

    def finish(self, error: BaseException | None, values: ReturnedItems) -> None:
        """End the session.

        Args:
            error: the exception that ended the generator early, if any.
            values: the yielded values in order; they are the result of the session if no exception ended it.
        """
        if error is None:
            self._session.set_yielded_values(values.all())
        tracing.session_closed(self._session.session_id)
        self._session.close(error)


def session_generator(
    function: Callable[..., Any], start: Callable[..., Iteration]
) -> Callable[..., Any]:
    """Return a generator function whose iterations are sessions, which `start` creates from the same arguments.

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
        box: list[
            Any
        ] = []  # emptied at each `yield`, because a local variable would keep the value alive
        try:
            with session.inside():
                inner = function(*args, **kwargs)
            step: Callable[[Any], Any] = inner.send
            sent: Any = None
            while True:
                try:
                    with session.inside():
                        box.append(step(sent))
                except StopIteration as stop:
                    return stop.value
                finally:
                    sent = None
                values.add(box[0])
                try:
                    step, sent = inner.send, (yield box.pop())
                except GeneratorExit:
                    with session.inside():
                        inner.close()
                    raise
                except BaseException as thrown:  # the generator may handle it and continue
                    step, sent = inner.throw, thrown
        except BaseException as raised:
            error = raised
            raise
        finally:
            session.finish(error, values)
            error = sent = (
                None  # their tracebacks refer to this frame, which would be a reference cycle
            )

    return run


def _async(function: Callable[..., Any], start: Callable[..., Iteration]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        session = start(*args, **kwargs)
        session.begin()
        values, error = ReturnedItems(), None
        box: list[
            Any
        ] = []  # emptied at each `yield`, because a local variable would keep the value alive
        try:
            with session.inside():
                inner = function(*args, **kwargs)
            step: Callable[[Any], Any] = inner.asend
            sent: Any = None
            while True:
                try:
                    with session.inside():
                        box.append(await step(sent))
                except StopAsyncIteration:
                    return
                finally:
                    sent = None
                values.add(box[0])
                try:
                    step, sent = inner.asend, (yield box.pop())
                except GeneratorExit:
                    with session.inside():
                        await inner.aclose()
                    raise
                except BaseException as thrown:  # the generator may handle it and continue
                    step, sent = inner.athrow, thrown
        except BaseException as raised:
            error = raised
            raise
        finally:
            session.finish(error, values)
            error = sent = (
                None  # their tracebacks refer to this frame, which would be a reference cycle
            )

    return run
