"""Run hooks that are HTTP servers. A request is sent only to an address that was checked.

A host name is resolved once, all of its addresses are checked, and the request is sent to one of them. A second DNS
answer therefore cannot redirect the request. This module follows redirects itself, and checks each of them like the
first request.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from agentobs.agent.execution.hook_output import (
    ANSWER_BYTES_MAX,
    HookUnavailable,
    answer_from_bytes,
    excerpt,
    failed_answer,
)
from agentobs.agent.execution.network_addresses import (
    Resolve,
    is_loopback,
    refusal_reason,
    resolve_host,
)
from agentobs.agent.hooks.declarations import Http
from agentobs.agent.tools.results import error_text
from agentobs.errors import ReplayEnd
from agentobs.records.canonical_json import Json

REDIRECTS_MAX = 3
"""Maximum number of redirects. Our choice."""
CONNECT_S = 5.0
"""Timeout of a connection, in seconds; shorter if the hook has a shorter timeout. Our choice."""

_NOT_REACHED = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.InvalidURL,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)

_KEEPS_METHOD = (307, 308)
_REDIRECTS = (301, 302, 303, *_KEEPS_METHOD)


@dataclass(frozen=True, slots=True)
class _Hop:
    """One request of a chain of redirects."""

    url: httpx2.URL
    method: str
    body: bytes
    headers: Mapping[str, str]
    loopback: bool
    """Whether the request may connect to this machine."""
    connect_s: float
    """Timeout of a connection, in seconds."""


async def post(
    http: Http, payload: bytes, resolve: Resolve = resolve_host, timeout_s: float = CONNECT_S
) -> Json:
    """Send the payload to a server and return its answer. Cancellation closes the connection.

    Args:
        http: the server.
        payload: the body of the request.
        resolve: returns the addresses of a host.
        timeout_s: after which time the caller cancels this, in seconds; a connection fails earlier.

    Raises:
        HookUnavailable: no permitted server can be reached.
    """
    headers = {
        "accept": "application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        **{name.lower(): value for name, value in http.headers.items()},
    }
    connect_s = min(CONNECT_S, timeout_s / 2)
    hop = _Hop(httpx2.URL(http.url), "POST", payload, headers, True, connect_s)
    try:
        for _ in range(REDIRECTS_MAX + 1):
            received = await _send_hop(hop, http.proxy, resolve)
            if not isinstance(received, _Hop):
                return received
            if http.proxy is not None:
                raise HookUnavailable(
                    "it redirects, and the redirect target cannot be checked behind a proxy"
                )
            hop = received
        raise HookUnavailable(f"it redirects more than {REDIRECTS_MAX} times")
    except (ReplayEnd, HookUnavailable):
        raise
    except _NOT_REACHED as error:
        raise HookUnavailable(f"the request failed: {excerpt(error_text(error))}") from error
    except (httpx2.HTTPError, OSError, ValueError, RuntimeError) as error:
        return failed_answer(f"the request failed: {excerpt(error_text(error))}")


async def _send_hop(hop: _Hop, proxy: str | None, resolve: Resolve) -> _Hop | Json:
    """Send one request. Return the answer, or the next request if the server redirects."""
    if proxy is not None:
        return await _send_to_address(hop, None, loopback=True, proxy=proxy)
    host, port = hop.url.raw_host.decode("ascii").strip("[]"), _port(hop.url)
    try:
        addresses = await resolve(host, port)
    except (OSError, UnicodeError) as error:
        raise HookUnavailable(f"{host} cannot be resolved: {excerpt(str(error))}") from None
    problem = refusal_reason(addresses, loopback=hop.loopback)
    if problem is not None:
        raise HookUnavailable(f"{host} is not allowed: {problem}")
    loopback = all(is_loopback(ipaddress.ip_address(address)) for address in addresses)
    *others, last = addresses
    for address in others:
        try:
            return await _send_to_address(hop, address, loopback=loopback)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            continue
    return await _send_to_address(hop, last, loopback=loopback)


async def _send_to_address(
    hop: _Hop, address: str | None, *, loopback: bool, proxy: str | None = None
) -> _Hop | Json:
    """Send a request to an address, with the host name of the URL in the header and for TLS."""
    url, extensions = hop.url, {}
    headers = {**hop.headers, "host": url.netloc.decode("ascii")}
    if address is not None:
        extensions = {"sni_hostname": url.raw_host.decode("ascii").strip("[]")}
        url = url.copy_with(host=address)
    # Use a new client for each request, because a kept-alive connection could be reused for another host name.
    client = httpx2.AsyncClient(
        verify=_tls_context(hop, proxy),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx2.Timeout(None, connect=hop.connect_s),
        proxy=proxy,
    )
    async with client:
        request = client.build_request(
            hop.method, url, headers=headers, content=hop.body or None, extensions=extensions
        )
        response = await client.send(request, stream=True)
        try:
            return await _read_response(hop, response, loopback=loopback)
        finally:
            await response.aclose()


async def _read_response(hop: _Hop, response: httpx2.Response, *, loopback: bool) -> _Hop | Json:
    status = response.status_code
    if status in _REDIRECTS and "location" in response.headers:
        return _redirected_hop(hop, response, loopback=loopback)
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        return failed_answer(
            "its response is compressed, although the request did not accept compression"
        )
    body = bytearray()
    async for data in response.aiter_raw():
        body += data
        if len(body) > ANSWER_BYTES_MAX:
            return failed_answer(f"its response is longer than {ANSWER_BYTES_MAX:,} bytes")
    if not 200 <= status < 300:
        return failed_answer(
            f"it responded with status {status}: {excerpt(body.decode('utf-8', 'replace'))}"
        )
    return answer_from_bytes(bytes(body))


def _redirected_hop(hop: _Hop, response: httpx2.Response, *, loopback: bool) -> _Hop:
    """Return the request for a redirect.

    Raises:
        HookUnavailable: the target is not a server, or the redirect leads from https to http.
    """
    url = hop.url.join(response.headers["location"])
    if url.scheme not in ("http", "https") or not url.host:
        raise HookUnavailable("it redirects to an address that is not a server")
    if hop.url.scheme == "https" and url.scheme == "http":
        raise HookUnavailable("it redirects from https to http")
    keeps_method = response.status_code in _KEEPS_METHOD
    is_same_origin = (url.scheme, url.raw_host, _port(url)) == (
        hop.url.scheme,
        hop.url.raw_host,
        _port(hop.url),
    )
    kept_headers = ("accept", "accept-encoding", *(("content-type",) if keeps_method else ()))
    headers = {
        name: value for name, value in hop.headers.items() if is_same_origin or name in kept_headers
    }
    if not keeps_method:
        headers.pop("content-type", None)
    return _Hop(
        url if is_same_origin else url.copy_with(userinfo=b""),
        hop.method if keeps_method else "GET",
        hop.body if keeps_method else b"",
        headers,
        loopback,
        hop.connect_s,
    )


def _port(url: httpx2.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _tls_context(hop: _Hop, proxy: str | None) -> ssl.SSLContext:
    """Return the TLS context for a request: the default one, or an empty one if TLS is not used."""
    if hop.url.scheme == "https" or (proxy or "").startswith("https:"):
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
