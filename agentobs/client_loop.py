"""The event loop in which a client is used, because its open connections belong to one event loop.

A request over a connection of another event loop is sent, but its response cannot be read, so that the SDK sends the
request again. Therefore, all agents with the same client share one background event loop for `run_sync`, and the
connections are closed before the client is used in another event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import httpx2

from agentobs.errors import UsageError
from agentobs.recording.wire.transport import AsyncRecordingTransport
from agentobs.runtime import process

T = TypeVar("T")

CLOSE_S = 5.0
"""Timeout for closing connections in another event loop, and for ending a background event loop when the interpreter
exits, in seconds. Our choice.
"""


class BackgroundLoop:
    """An event loop that runs in its own thread until it is stopped, even between calls of `run`."""

    def __init__(self) -> None:
        """Start the thread."""
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop, self._is_stopped = self._runner.get_loop(), False
        self._thread = threading.Thread(target=self._serve, name="agentobs-run-sync", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the context of the caller, and return its result. It is cancelled on Ctrl-C."""
        ended: concurrent.futures.Future[T] = concurrent.futures.Future()
        started: list[asyncio.Task[T]] = []

        def start() -> None:
            started.append(self._loop.create_task(coroutine))
            started[0].add_done_callback(lambda task: _pass_outcome(task, ended))

        self._loop.call_soon_threadsafe(start)
        try:
            return ended.result()
        except BaseException:
            if not ended.done():  # the exception was raised in this thread, for example by Ctrl-C
                self._loop.call_soon_threadsafe(lambda: started[0].cancel())
                concurrent.futures.wait([ended])
            raise

    def stop(self) -> None:
        """Cancel all tasks and close the loop, from any thread, without waiting for it."""
        self._is_stopped = True
        if self._thread.is_alive():  # it is not alive in a forked process
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._loop.stop)

    def join(self) -> None:
        """Wait until the loop has been closed, but not longer than `CLOSE_S`."""
        self._thread.join(CLOSE_S)

    def _serve(self) -> None:
        with self._runner:
            while not self._is_stopped:
                # A task has raised it, and `run` raises it in the thread of the caller.
                with contextlib.suppress(KeyboardInterrupt, SystemExit):
                    self._loop.run_forever()


def _pass_outcome(task: asyncio.Task[T], ended: concurrent.futures.Future[T]) -> None:
    if task.cancelled():
        ended.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


class ClientLoop:
    """The event loop in which a client is used."""

    def __init__(self) -> None:
        """Start without any event loop."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._uses = 0
        self._background: BackgroundLoop | None = None

    def background(self) -> BackgroundLoop:
        """Return the background event loop for this client; it is started at the first use."""
        with self._lock:
            if self._background is None:
                self._background = BackgroundLoop()
            return self._background

    async def enter(self, client: Any) -> None:
        """Use the client in the running event loop, until `leave` is called.

        Raises:
            UsageError: the client is in use in another event loop.
        """
        here = asyncio.get_running_loop()
        with self._lock:
            earlier = self._loop
            if earlier not in (None, here) and self._uses and not earlier.is_closed():
                raise UsageError(
                    "another agent uses the client in another event loop",
                    where="client",
                    todo="Pass a separate client to this agent, or run both agents in one event loop",
                )
            self._uses = self._uses + 1 if earlier is here else 1
            self._loop = here
        if earlier not in (None, here):
            try:
                await _close_connections(client, earlier)
            except BaseException:
                with self._lock:
                    self._loop, self._uses = earlier, 0
                raise

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """End one use of the client in an event loop."""
        with self._lock:
            if self._loop is loop:
                self._uses -= 1

    def stop(self) -> BackgroundLoop | None:
        """Stop the background event loop, without waiting for it, and return it; None if there is none."""
        background, self._background = self._background, None
        if background is not None:
            background.stop()
        return background


async def _close_connections(client: Any, earlier: asyncio.AbstractEventLoop) -> None:
    """Close the open connections of a client, which belong to an earlier event loop.

    Raises:
        UsageError: the earlier event loop runs, but is blocked.
    """
    for transport in _transports(client):
        if not earlier.is_running():
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                await transport.aclose()
            continue
        closing = asyncio.run_coroutine_threadsafe(transport.aclose(), earlier)
        try:
            await asyncio.wait_for(asyncio.wrap_future(closing), CLOSE_S)
        except TimeoutError:
            raise UsageError(
                "the client has connections of another event loop, which is blocked",
                where="client",
                todo="Use the client in one event loop",
            ) from None


def _transports(client: Any) -> Iterator[httpx2.AsyncHTTPTransport]:
    """Yield the transports of a client that can be used again after they were closed."""
    http = getattr(client, "_client", None)
    if not isinstance(http, httpx2.AsyncClient):
        return
    for transport in (http._transport, *http._mounts.values()):
        inner = transport.inner if isinstance(transport, AsyncRecordingTransport) else transport
        if isinstance(inner, httpx2.AsyncHTTPTransport):
            yield inner


class State:
    """The event loops of the clients of this process."""

    def __init__(self) -> None:
        """Start without clients."""
        self.reset()
        atexit.register(self.close)

    def reset(self) -> None:
        """Forget all clients."""
        self.lock = threading.Lock()
        self.loops: weakref.WeakKeyDictionary[Any, ClientLoop] = weakref.WeakKeyDictionary()
        self.shared = ClientLoop()

    def close(self) -> None:
        """End all background event loops, because the interpreter exits."""
        stopped = [each.stop() for each in (self.shared, *self.loops.values())]
        for background in filter(None, stopped):
            background.join()


def client_loop(client: Any) -> ClientLoop:
    """Return the event loop in which a client is used. Copies that share its connections also share the event loop.

    Objects that cannot be referenced weakly, such as a client that a test has written, share one event loop.
    """
    owner = getattr(client, "_client", client)
    state = process.state(State)
    with state.lock:
        try:
            found = state.loops.get(owner)
        except TypeError:
            return state.shared
        if found is None:
            found = state.loops[owner] = ClientLoop()
            weakref.finalize(owner, found.stop).atexit = False
        return found


def _reset_after_fork() -> None:
    """Reset the state in a forked process, because only the parent has the threads."""
    process.state(State).reset()


os.register_at_fork(after_in_child=_reset_after_fork)
