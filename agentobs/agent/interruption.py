"""Interrupt an await if the run is aborted or a response takes too long.

Only the awaited operation is cancelled, so a consumer that runs in the same task never receives the
cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Literal, TypeVar

from agentobs.world import Abort

T = TypeVar("T")
Cause = Literal["abort", "time"]
"""Why an await was interrupted: an abort or a timeout."""


class Interrupted(Exception):
    """The awaited operation was cancelled."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause: Cause = cause


class Stopped(Exception):
    """The run was aborted during an LLM request.

    Attributes:
        point: the name of the point, as in `Abort.should_stop`.
        count: the count at that point, as in `Abort.should_stop`.
    """

    def __init__(self, point: str, count: int) -> None:
        super().__init__(f"stopped at {point}, {count}")
        self.point, self.count = point, count


class Watch:
    """Interrupts guarded awaits while it is open; there can be one guarded await at a time."""

    def __init__(self, abort: Abort, seconds: float | None) -> None:
        """Interrupt after `abort`, or `seconds` after the watch was opened; None sets no timeout."""
        self._abort, self._seconds = abort, seconds
        self._cause: Cause | None = None
        self._guarded_task: asyncio.Task[Any] | None = None
        self._abort_waiter: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Watch:
        """Start watching."""
        if self._seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._fire, "time")
        self._abort_waiter = asyncio.create_task(self._wait_for_abort())
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
        if self._abort_waiter is not None:
            self._abort_waiter.cancel()

    async def guard(self, awaited: Awaitable[T]) -> T:
        """Return the result of an awaitable.

        Raises:
            Interrupted: the awaitable was cancelled because of an abort or a timeout.
        """
        task = asyncio.current_task()
        assert task is not None
        if self._cause is not None:
            if asyncio.iscoroutine(awaited):
                awaited.close()
            raise Interrupted(self._cause)
        self._guarded_task, cancellations = task, task.cancelling()
        try:
            return await awaited
        except asyncio.CancelledError:
            # If other code has cancelled the task as well, a cancellation remains, and propagates.
            if self._cause is not None and task.uncancel() == cancellations:
                raise Interrupted(self._cause) from None
            raise
        finally:
            self._guarded_task = None

    async def _wait_for_abort(self) -> None:
        await self._abort.wait()
        self._fire("abort")

    def _fire(self, cause: Cause) -> None:
        if self._cause is None:
            self._cause = cause
            if self._guarded_task is not None:
                self._guarded_task.cancel()
