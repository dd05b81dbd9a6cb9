"""Decorator: turns a function, a coroutine function or a generator into one whose calls are sessions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from agentobs.recording.generators import IteratedSession, Iteration, session_generator

P = ParamSpec("P")
R = TypeVar("R")


class CalledSession(IteratedSession, AbstractContextManager[Any], Protocol):
    """The methods of a session that a decorated function uses; see `recording.session.Session`."""

    def __enter__(self) -> Self:
        """Start the session and make it current."""
        ...

    def set_default_result(self, value: Any) -> None:
        """Record the return value of the function, unless it has recorded a result itself."""
        ...


def decorated(function: Callable[P, R], begin: Callable[..., CalledSession]) -> Callable[P, R]:
    """Return a function that records each call as a session.

    Args:
        function: the decorated function.
        begin: returns the session of a call, given the arguments of the call.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return session_generator(
            function, lambda *args, **kwargs: Iteration(begin(*args, **kwargs))
        )

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            with begin(*args, **kwargs) as opened:
                value = await function(*args, **kwargs)
                opened.set_default_result(value)
                return value

        return run_async  # type: ignore[return-value]  # a coroutine function with the signature of the decorated one

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with begin(*args, **kwargs) as opened:
            value = function(*args, **kwargs)
            opened.set_default_result(value)
            return value

    return run


__all__ = ["decorated"]
