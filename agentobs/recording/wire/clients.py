"""Clients: finds the client inside an object, and records clients that cannot be passed to `record`.

The models and providers of frameworks keep their client under a few usual attribute names. If a client is created
inside a call, as in `llm`, it can only be recorded by patching the HTTP libraries: the transports of httpx2 and httpx,
the sessions of aiohttp, and the connections of `http.client`. They are patched on request.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import httpx2

from agentobs.determinism.callers import follow_jobs
from agentobs.errors import UsageError, warn_once
from agentobs.provider.registry import is_provider_host
from agentobs.recording.wire.all_clients import State as AllState
from agentobs.recording.wire.all_clients import place_for
from agentobs.recording.wire.http_connections import (
    HostWatch,
    recording_connect,
    recording_getresponse,
    recording_send,
)
from agentobs.recording.wire.http_libraries import (
    NAMES,
    ImportWatch,
    described,
    imported,
    is_client,
    library_of,
)
from agentobs.recording.wire.transport import (
    AsyncRecordingTransport,
    PlaceOf,
    RecordingTransport,
    instrument,
    is_recorded,
)
from agentobs.runtime import process

CLIENT_ATTRIBUTES = (
    "_client",
    "client",
    "_async_client",
    "async_client",
    "_aclient",
    "aclient",
    "model",
    "llm",
    "provider",
    "_provider",
    "api",
)
"""The attributes in which frameworks keep their client, or an object that holds it (pydantic-ai 2.68,
langchain-anthropic 1.7, strands 1.62, instructor 1.17, crewai 1.15, llama-index-llms-anthropic 0.12,
inspect-ai 0.3).
"""
DEPTH_MAX = 3
"""The maximum depth at which clients are searched for: an agent has a model, which has a provider, which has a client.
Our choice.
"""


FACTORY = "_http_client_factory"
"""The attribute in which a provider of pydantic-ai (2.68) keeps the function that creates its HTTP client again, for
example for another event loop.
"""


SDK_AIOHTTP = "anthropic._vendor.httpx_aiohttp"
"""The module of the SDK's transport over aiohttp. It is imported only if that transport is used, and does not exist in
all versions.
"""
AIOHTTP = "aiohttp"
"""The import name of a library whose sessions are also recorded; it is an optional dependency."""
URLLIB3 = "urllib3.connection"
"""The module with the connections of urllib3, which requests and boto3 use; they subclass the connections of
`http.client` and connect themselves.
"""
OTHER_SDKS = frozenset(
    ("openai", "groq", "mistralai", "cohere", "google", "together", "cerebras", "xai_sdk")
)
"""The import names of SDKs for other providers, whose requests agentobs cannot interpret."""


def record_client(client: Any, place_of: PlaceOf) -> bool:
    """Record one client: of the SDK, httpx2, httpx or aiohttp.

    Args:
        client: the client.
        place_of: returns the place of an exchange if there is no current place.

    Returns:
        False if the client was already recorded.

    Raises:
        UsageError: the client cannot be recorded.
    """
    if _is_aiohttp(client):
        return bool(aiohttp_sessions().instrument(client, place_of))
    return instrument(client, place_of)


def record_in(holder: Any, record: Callable[[Any], None]) -> bool:
    """Call `record` for each client that an object holds, and for each client that it creates again later.

    Args:
        holder: a client, or an object that holds clients.
        record: receives an SDK client or an HTTP client.

    Returns:
        Whether the object holds any client.

    Raises:
        UsageError: it holds only clients of other providers.
    """
    found = _reachable(holder)
    clients = [each for each in found if _is_client(each)]
    others = [each for each in clients if _other_sdk(each)]
    clients = [each for each in clients if each not in others]
    if others and not clients:
        raise UsageError(
            f"cannot record {described(others[0])}: it is a client of {_other_sdk(others[0])}, and agentobs reads only "
            "requests to Anthropic's models",
            todo="Pass a client of the anthropic SDK, or a plain HTTP client that sends requests to the Messages API",
        )
    for client in clients:
        record(client)
    for each in found:
        _record_recreated(each, record)
    return bool(clients)


def _reachable(holder: Any) -> list[Any]:
    """Return an object and the objects in its usual attributes, each once; the attributes of clients are ignored."""
    found, level = {id(holder): holder}, [holder]
    for _ in range(DEPTH_MAX):
        held = [
            _attribute(each, n) for each in level if not _is_client(each) for n in CLIENT_ATTRIBUTES
        ]
        level = [each for each in held if not isinstance(each, _PLAIN) and id(each) not in found]
        found |= {id(each): each for each in level}
    return list(found.values())


_PLAIN = (str, bytes, int, float, type(None))


def _record_recreated(holder: Any, record: Callable[[Any], None]) -> None:
    """Replace the function of an object that creates HTTP clients with one whose clients are recorded."""
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
    ):  # an object that does not accept attributes keeps its factory
        setattr(holder, FACTORY, make_recorded)


def _other_sdk(client: Any) -> str | None:
    """Return the import name of the SDK of another provider that a client belongs to; None if there is none."""
    roots = [kind.__module__.partition(".")[0] for kind in type(client).__mro__]
    return next((root for root in roots if root in OTHER_SDKS), None)


class AllClients:
    """All clients of this process that send requests to the provider, recorded until `stop`; a context manager.

    Requests to the provider are recognized by their path and headers, so other uses of the HTTP libraries are not
    affected.
    """

    def __init__(self, place_of: PlaceOf) -> None:
        """Patch the transports; `place_of` returns the place of an exchange if there is no current place."""
        self._is_on = True
        self._seen_before = process.state(AllState).seen
        _patch(place_of)

    def stop(self) -> None:
        """Restore the transports, unless another caller still needs them; a second call changes nothing.

        If no request to the provider was seen, this warns, because a session without requests would look complete.
        """
        if self._is_on:
            self._restore()
            state = process.state(AllState)
            missed = state.resolved_hosts - state.seen_hosts
            if missed:
                warn_once(MISSED.format(hosts=", ".join(sorted(missed))))
            elif state.seen == self._seen_before:
                warn_once(NOTHING_SEEN)

    def _restore(self) -> None:
        self._is_on = False
        _unpatch()

    def __enter__(self) -> AllClients:
        """Return this object; the recording is already active."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the recording; after an exception, do not warn, because the program may not have reached its
        requests.
        """
        if error is None:
            self.stop()
        elif self._is_on:
            self._restore()


_lock = threading.Lock()

WAY_OUT = "To record a program with any client, run it with `agentobs record -- COMMAND`; see docs/agents.md"
NOTHING_SEEN = (
    "record_all() saw no request to the Messages API. It sees the clients of the anthropic SDK, httpx, aiohttp, "
    f"requests, urllib and boto3 in this process, but no other programs. {WAY_OUT}"
)
"""The warning of a `record_all` during which nothing was recorded."""
MISSED = (
    "record_all() did not record the requests of this process to {hosts}: the client that sent them is none of those "
    "that it sees. " + WAY_OUT
)
"""The warning of a `record_all` during which a provider was reached only outside of recorded clients."""


class State:
    """The patches of the transports in this process."""

    def __init__(self) -> None:
        self.patched: list[tuple[type, str, Callable[..., Any], Callable[..., Any]]] = []
        """The patched methods: class, name, original function, and replacement."""
        self.import_watch: ImportWatch | None = None
        """Waits for the import of an HTTP library, to patch it as well."""
        self.host_watch: HostWatch | None = None
        """Notes the hosts of providers that the program resolves."""


def _patch(place_of: PlaceOf) -> None:
    state, everyone = process.state(State), process.state(AllState)
    follow_jobs()
    with _lock:
        if not everyone.active:
            everyone.seen_hosts, everyone.resolved_hosts = set(), set()
        everyone.active, everyone.place_of = everyone.active + 1, place_of
        if state.import_watch is None:
            _patch_imported()
            names = (*NAMES, SDK_AIOHTTP, AIOHTTP, URLLIB3)
            missing = [name for name in names if name not in sys.modules]
            state.import_watch = ImportWatch(missing, _after_import)
            state.host_watch = HostWatch(is_provider_host)


def _after_import() -> None:
    with _lock:
        if process.state(AllState).active:
            _patch_imported()


def _patch_imported() -> None:
    """Patch the libraries that are imported and not patched yet."""
    state = process.state(State)
    done = {(kind, name) for kind, name, *_ in state.patched}
    for kind, name, wrap in _transports():
        if (kind, name) not in done:
            original = getattr(kind, name)
            replacement = functools.wraps(original)(wrap(original))
            setattr(kind, name, replacement)
            state.patched.append((kind, name, original, replacement))
    if AIOHTTP in sys.modules:
        aiohttp_sessions().patch()


def aiohttp_sessions() -> Any:
    """Return the module that records sessions of aiohttp, which imports aiohttp."""
    return importlib.import_module("agentobs.recording.wire.aiohttp_sessions")


def _unpatch() -> None:
    state, everyone = process.state(State), process.state(AllState)
    with _lock:
        everyone.active -= 1
        if not everyone.active:
            if state.import_watch is not None:
                state.import_watch.stop()
                state.import_watch = None
            if state.host_watch is not None:
                state.host_watch.stop()
                state.host_watch = None
            while state.patched:
                kind, name, original, replacement = state.patched.pop()
                # A later patch by other code calls the replacement, which passes everything through from now on.
                if kind.__dict__.get(name) is replacement:
                    setattr(kind, name, original)


def _transports() -> Iterator[tuple[type, str, Callable[..., Callable[..., Any]]]]:
    for library in imported():
        yield library.HTTPTransport, "handle_request", _recording
        yield library.AsyncHTTPTransport, "handle_async_request", _recording_async
        if library is not httpx2:
            # Frameworks pass their own transports to this client, for example litellm, whose transport uses aiohttp.
            yield library.AsyncClient, "_transport_for_url", _recording_transport
    if (module := sys.modules.get(SDK_AIOHTTP)) is not None:
        yield module.AiohttpTransport, "handle_async_request", _recording_async
    yield http.client.HTTPConnection, "send", recording_send
    yield http.client.HTTPConnection, "getresponse", recording_getresponse
    yield http.client.HTTPConnection, "connect", recording_connect
    yield http.client.HTTPSConnection, "connect", recording_connect
    if (module := sys.modules.get(URLLIB3)) is not None:
        yield module.HTTPConnection, "connect", recording_connect
        yield module.HTTPSConnection, "connect", recording_connect


def _recording(original: Callable[..., httpx2.Response]) -> Callable[..., httpx2.Response]:
    def handle_request(self: Any, request: httpx2.Request) -> httpx2.Response:
        if (place_of := _place_for(request)) is None:
            return original(self, request)
        inner = _Unpatched(functools.partial(original, self))
        return RecordingTransport(inner, place_of, id(self)).handle_request(request)

    return handle_request


def _recording_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def handle_async_request(self: Any, request: httpx2.Request) -> httpx2.Response:
        if (place_of := _place_for(request)) is None:
            response: httpx2.Response = await original(self, request)
            return response
        inner = _AsyncUnpatched(functools.partial(original, self))
        return await AsyncRecordingTransport(inner, place_of, id(self)).handle_async_request(
            request
        )

    return handle_async_request


def _recording_transport(original: Callable[..., Any]) -> Callable[..., Any]:
    def _transport_for_url(self: Any, url: Any) -> Any:
        inner = original(self, url)
        if isinstance(inner, AsyncRecordingTransport):
            return inner
        recording = _recording_async(type(inner).handle_async_request)
        return _AsyncUnpatched(functools.partial(recording, inner))

    return _transport_for_url


def _place_for(request: httpx2.Request) -> PlaceOf | None:
    """Return the function for the place of a request; None if it must not be recorded, or already is."""
    url = request.url
    place_of = place_for(url.host, url.path, request.headers, _known_body(request))
    return None if place_of is None or is_recorded(request) else place_of


def _known_body(request: httpx2.Request) -> bytes | None:
    try:
        return request.content
    except library_of(request).RequestNotRead:
        return None


class _Unpatched(httpx2.BaseTransport):
    """The original behavior of a patched transport."""

    def __init__(self, handle: Callable[[httpx2.Request], httpx2.Response]) -> None:
        self._handle = handle

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._handle(request)


class _AsyncUnpatched(httpx2.AsyncBaseTransport):
    """The asynchronous version of `_Unpatched`."""

    def __init__(self, handle: Callable[[httpx2.Request], Any]) -> None:
        self._handle = handle

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response: httpx2.Response = await self._handle(request)
        return response


def _is_client(value: Any) -> bool:
    """Return whether an object is an HTTP client, or holds one in the same way as the clients of the SDK."""
    return _is_http(value) or _is_http(_attribute(value, "_client"))


def _is_http(value: Any) -> bool:
    return is_client(value) or _is_aiohttp(value)


def _is_aiohttp(value: Any) -> bool:
    return AIOHTTP in sys.modules and bool(aiohttp_sessions().is_session(value))


def _attribute(holder: Any, name: str) -> Any:
    """Return an attribute; None if there is none, or reading it fails."""
    try:
        return getattr(holder, name, None)
    except Exception:  # a property may raise anything; it is then not a client
        return None
