"""Clients: how to find the client inside an object, and how to record clients that cannot be passed to `record`.

A framework's model or provider holds its client under a few usual names. If a client is created inside a call, as
in `llm`, only the transports of httpx2 can be wrapped: they are patched on request, and restored
afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import httpx2

from agentobs.determinism.callers import follow_jobs
from agentobs.provider.registry import is_model_call
from agentobs.recording.wire.transport import (
    AsyncRecordingTransport,
    PlaceOf,
    RecordingTransport,
    is_under_way,
)
from agentobs.runtime import process

HOLDERS = (
    "_client",
    "client",
    "_async_client",
    "async_client",
    "model",
    "provider",
    "_provider",
)
"""The attributes in which frameworks keep their client, or an object that holds it (pydantic-ai 2.68,
langchain-anthropic 1.7).
"""
DEPTH_MAX = 3
"""The search depth: an agent's model's provider's client. Our choice."""


FACTORY = "_http_client_factory"
"""Where a provider of pydantic-ai (2.68) keeps the function that creates its HTTP client again, as for another event
loop.
"""


def record_in(holder: Any, record: Callable[[Any], None]) -> bool:
    """Call `record` for each client that an object holds, now and when it is created again; return whether there are
    any.

    Args:
        holder: a client, or an object that holds clients.
        record: takes an SDK client or an httpx2 client.
    """
    found = _reached(holder)
    clients = [each for each in found if _is_client(each)]
    for client in clients:
        record(client)
    for each in found:
        _record_anew(each, record)
    return bool(clients)


def _reached(holder: Any) -> list[Any]:
    """Return an object and the objects in its usual attributes, each once; attributes of clients are not followed."""
    found, level = {id(holder): holder}, [holder]
    for _ in range(DEPTH_MAX):
        held = [_attribute(each, n) for each in level if not _is_client(each) for n in HOLDERS]
        level = [each for each in held if not isinstance(each, _PLAIN) and id(each) not in found]
        found |= {id(each): each for each in level}
    return list(found.values())


_PLAIN = (str, bytes, int, float, type(None))


def _record_anew(holder: Any, record: Callable[[Any], None]) -> None:
    make = _attribute(holder, FACTORY)
    if not callable(make) or hasattr(make, "__wrapped__"):
        return

    @functools.wraps(make)
    def make_recorded() -> Any:
        http = make()
        if _is_http(http):
            record(http)
        return http

    with contextlib.suppress(
        Exception
    ):  # an object that accepts no attributes was not copied, either
        setattr(holder, FACTORY, make_recorded)


class AllClients:
    """All clients of this process that send requests to the provider, recorded until `stop`; a context manager.

    Requests are recognized by their contents, so that other uses of httpx2 are not affected.
    """

    def __init__(self, place_of: PlaceOf) -> None:
        """Patch the transports; `place_of` returns the place of an exchange when no place is current."""
        self._is_on = True
        _patch(place_of)

    def stop(self) -> None:
        """Restore the transports, unless another caller still needs them; a second call changes nothing."""
        if self._is_on:
            self._is_on = False
            _unpatch()

    def __enter__(self) -> AllClients:
        """Be on."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()


def is_for_a_model(request: httpx2.Request) -> bool:
    """Return whether a request goes to the provider, or to a cloud platform with its models."""
    return is_model_call(request.url.path, request.headers)


_lock = threading.Lock()


class State:
    """How the transports of this process are patched."""

    def __init__(self) -> None:
        self.holders = 0
        """How many callers have started it and not stopped it."""
        self.place_of: PlaceOf | None = None
        self.patched: list[tuple[type, str, Callable[..., Any], Callable[..., Any]]] = []
        """Class, name, original function, and replacement."""


def _patch(place_of: PlaceOf) -> None:
    state = process.part(State)
    follow_jobs()
    with _lock:
        state.holders, state.place_of = state.holders + 1, place_of
        if not state.patched:
            for kind, name, made in _transports():
                before = getattr(kind, name)
                now = functools.wraps(before)(made(before))
                setattr(kind, name, now)
                state.patched.append((kind, name, before, now))


def _unpatch() -> None:
    state = process.part(State)
    with _lock:
        state.holders -= 1
        if not state.holders:
            while state.patched:
                kind, name, before, now = state.patched.pop()
                # Somebody who has patched it later calls the replacement, which passes everything through from now on.
                if kind.__dict__.get(name) is now:
                    setattr(kind, name, before)


def _transports() -> Iterator[tuple[type, str, Callable[..., Callable[..., Any]]]]:
    yield httpx2.HTTPTransport, "handle_request", _recording
    yield httpx2.AsyncHTTPTransport, "handle_async_request", _recording_async
    with contextlib.suppress(ImportError, AttributeError):
        # It does not exist without aiohttp, nor in all versions of the SDK.
        module = importlib.import_module("anthropic._vendor.httpx_aiohttp")
        yield module.AiohttpTransport, "handle_async_request", _recording_async


def _recording(before: Callable[..., httpx2.Response]) -> Callable[..., httpx2.Response]:
    def handle_request(self: Any, request: httpx2.Request) -> httpx2.Response:
        if (place_of := _place_for(request)) is None:
            return before(self, request)
        inner = _Sync(functools.partial(before, self))
        return RecordingTransport(inner, place_of, id(self)).handle_request(request)

    return handle_request


def _recording_async(before: Callable[..., Any]) -> Callable[..., Any]:
    async def handle_async_request(self: Any, request: httpx2.Request) -> httpx2.Response:
        if (place_of := _place_for(request)) is None:
            response: httpx2.Response = await before(self, request)
            return response
        inner = _Async(functools.partial(before, self))
        return await AsyncRecordingTransport(inner, place_of, id(self)).handle_async_request(
            request
        )

    return handle_async_request


def _place_for(request: httpx2.Request) -> PlaceOf | None:
    """Return the function that names the place of a request; None if it is not to be recorded, or already is."""
    state = process.part(State)
    if not state.holders or is_under_way(request) or not is_for_a_model(request):
        return None
    return state.place_of


class _Sync(httpx2.BaseTransport):
    """A transport as it was before it was patched."""

    def __init__(self, handle: Callable[[httpx2.Request], httpx2.Response]) -> None:
        self._handle = handle

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._handle(request)


class _Async(httpx2.AsyncBaseTransport):
    """Its asynchronous twin."""

    def __init__(self, handle: Callable[[httpx2.Request], Any]) -> None:
        self._handle = handle

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response: httpx2.Response = await self._handle(request)
        return response


def _is_client(value: Any) -> bool:
    """Return whether an object is an httpx2 client, or holds one like the clients of the SDK."""
    return _is_http(value) or _is_http(_attribute(value, "_client"))


def _is_http(value: Any) -> bool:
    return isinstance(value, httpx2.Client | httpx2.AsyncClient)


def _attribute(holder: Any, name: str) -> Any:
    """Return an attribute; None if there is none, or reading it fails."""
    try:
        return getattr(holder, name, None)
    except Exception:  # a property of somebody's may raise anything, and is then no client
        return None
