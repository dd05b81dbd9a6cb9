"""An activity of an agent: one run, or the end of its conversation. There is one activity at a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Callable
from types import AsyncGeneratorType
from typing import cast

from agentobs.agent.events import Event


class Activity:
    """A run of an agent, or the end of its conversation, in one event loop."""

    def __init__(self, release: Callable[[Activity], None]) -> None:
        """Start an activity in the running event loop.

        Args:
            release: is called with this activity when it has ended.
        """
        self.events: AsyncGenerator[Event, None] | None = None
        """The events of the run; None before it starts."""
        self.is_silent = False
        """Whether the remaining events are not passed to the reader, except the result."""
        self.loop = asyncio.get_running_loop()
        """The event loop in which it takes place."""
        self._reader, self._release = asyncio.current_task(), release
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._is_closing = False

    def note_reader(self) -> None:
        """Note that the current task reads the next event."""
        self._reader = asyncio.current_task()

    @property
    def is_left(self) -> bool:
        """Whether the run was abandoned before its result: nothing executes it, and no consumer will read further
        events.
        """
        if self._is_closing:
            return True
        is_read = self._reader not in (None, asyncio.current_task()) and not self._reader.done()
        return self._is_suspended and not is_read

    async def close(self) -> None:
        """Close the events of the run, and release the agent. A concurrent second call waits for the first."""
        if self._is_closing:
            await self._wait()
            return
        self._is_closing = True
        try:
            if self.events is not None:
                await self.events.aclose()
        finally:
            self._release(self)
            self._ended.set_result(None)

    async def finish(self) -> None:
        """Wait until the run, which was stopped, has ended; close it if its reader is not reading at the moment."""
        self.is_silent = True
        if self._is_suspended:
            await self.close()
        elif self.loop.is_running():
            await self._wait()

    @property
    def _is_suspended(self) -> bool:
        """Whether the run is waiting for its reader to read the next event, in the running event loop."""
        if self.events is None or self.loop is not asyncio.get_running_loop():
            return False
        return not cast("AsyncGeneratorType[Event, None]", self.events).ag_running

    async def _wait(self) -> None:
        await asyncio.shield(asyncio.wrap_future(self._ended))
