"""Interrupt an await when the run is aborted or a response takes too long.

The waiting code keeps its own task. Only the awaited operation is cancelled, so no cancellation can
reach a consumer that runs in the same task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Literal, TypeVar

from agentobs.world import Abort

T = TypeVar("T")
Cause = Literal["abort", "time"]


class Interrupted(Exception):
    """The awaited operation was cancelled."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause: Cause = cause


class Stopped(Exception):
    """The run was aborted during an LLM request.

    Attributes:
        point: where, as named by `Abort.reached`.
        count: number of stream events received so far.
    """

    def __init__(self, point: str, count: int) -> None:
        super().__init__(f"stopped at {point}, {count}")
        self.point, self.count = point, count


class Watch:
    """Guards awaits, one at a time, while it is open."""

    def __init__(self, abort: Abort, seconds: float | None) -> None:
        """Interrupt on `abort`, or `seconds` after it was opened; None sets no timeout."""
        self._abort, self._seconds = abort, seconds
        self._cause: Cause | None = None
        self._inside: asyncio.Task[Any] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Watch:
        """Start watching."""
        if self._seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._fire, "time")
        self._waiting = asyncio.create_task(self._wait())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()

    async def guard(self, awaited: Awaitable[T]) -> T:
        """Return the result of an awaitable.

        Raises:
            Interrupted: it was cancelled because of an abort or a timeout.
        """
        task = asyncio.current_task()
        assert task is not None
        if self._cause is not None:
            if asyncio.iscoroutine(awaited):
                awaited.close()
            raise Interrupted(self._cause)
        self._inside, before = task, task.cancelling()
        try:
            return await awaited
        except asyncio.CancelledError:
            # If another party cancelled the task as well, one cancellation remains and propagates.
            if self._cause is not None and task.uncancel() == before:
                raise Interrupted(self._cause) from None
            raise
        finally:
            self._inside = None

    async def _wait(self) -> None:
        await self._abort.wait()
        self._fire("abort")

    def _fire(self, cause: Cause) -> None:
        if self._cause is None:
            self._cause = cause
            if self._inside is not None:
                self._inside.cancel()
