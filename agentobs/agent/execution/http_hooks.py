"""Run hooks that are HTTP servers. A request only goes to an address that was checked.

A name is resolved once, all of its addresses are checked, and one of them is used, so that a second
DNS answer cannot lead elsewhere. Redirects are followed here, each checked like the first request.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from agentobs.agent.execution.hook_output import ANSWER_BYTES_MAX, failed, of_bytes, quoted
from agentobs.agent.execution.network_addresses import Resolve, is_loopback, refused, resolved
from agentobs.agent.hooks.declarations import Http
from agentobs.agent.tools.results import error_text
from agentobs.errors import ReplaySays
from agentobs.records.canonical_json import Json

REDIRECTS_MAX = 3
"""Maximum number of redirects. Our choice."""

_KEEPS_METHOD = (307, 308)
_REDIRECTS = (301, 302, 303, *_KEEPS_METHOD)


class _Refused(Exception):
    """A request must not be sent."""


@dataclass(frozen=True, slots=True)
class _Hop:
    """One request on the way to the response."""

    url: httpx2.URL
    method: str
    body: bytes
    headers: Mapping[str, str]
    loopback: bool
    """Whether it may connect to this machine."""


async def posted(http: Http, payload: bytes, resolve: Resolve = resolved) -> Json:
    """Send the payload to a server and return its answer; cancellation closes the connection."""
    headers = {
        "accept": "application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        **{name.lower(): value for name, value in http.headers.items()},
    }
    hop = _Hop(httpx2.URL(http.url), "POST", payload, headers, loopback=True)
    try:
        for _ in range(REDIRECTS_MAX + 1):
            found = await _send_hop(hop, http.proxy, resolve)
            if not isinstance(found, _Hop):
                return found
            if http.proxy is not None:
                return failed("it redirects, and the target cannot be checked behind a proxy")
            hop = found
        return failed(f"it redirects more than {REDIRECTS_MAX} times")
    except ReplaySays:
        raise
    except _Refused as refusal:
        return failed(str(refusal))
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RuntimeError) as error:
        return failed(f"the request failed: {quoted(error_text(error))}")


async def _send_hop(hop: _Hop, proxy: str | None, resolve: Resolve) -> _Hop | Json:
    """Send one request; return the answer, or the next request."""
    if proxy is not None:
        return await _sent(hop, None, loopback=True, proxy=proxy)
    host, port = hop.url.raw_host.decode("ascii").strip("[]"), _port(hop.url)
    try:
        addresses = await resolve(host, port)
    except (OSError, UnicodeError) as error:
        raise _Refused(f"{host} cannot be resolved: {quoted(str(error))}") from None
    why = refused(addresses, loopback=hop.loopback)
    if why is not None:
        raise _Refused(f"{host} is not allowed: {why}")
    loopback = all(is_loopback(ipaddress.ip_address(address)) for address in addresses)
    *others, last = addresses
    for address in others:
        try:
            return await _sent(hop, address, loopback=loopback)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            continue
    return await _sent(hop, last, loopback=loopback)


async def _sent(
    hop: _Hop, address: str | None, *, loopback: bool, proxy: str | None = None
) -> _Hop | Json:
    """Send a request to an address, with the original host name."""
    url, extensions = hop.url, {}
    headers = {**hop.headers, "host": url.netloc.decode("ascii")}
    if address is not None:
        extensions = {"sni_hostname": url.raw_host.decode("ascii").strip("[]")}
        url = url.copy_with(host=address)
    # One client per request, because a kept-alive connection could be reused under another name.
    client = httpx2.AsyncClient(
        verify=_trusted(hop, proxy),
        trust_env=False,
        follow_redirects=False,
        timeout=None,
        proxy=proxy,
    )
    async with client:
        request = client.build_request(
            hop.method, url, headers=headers, content=hop.body or None, extensions=extensions
        )
        response = await client.send(request, stream=True)
        try:
            return await _read(hop, response, loopback=loopback)
        finally:
            await response.aclose()


async def _read(hop: _Hop, response: httpx2.Response, *, loopback: bool) -> _Hop | Json:
    status = response.status_code
    if status in _REDIRECTS and "location" in response.headers:
        return _next(hop, response, loopback=loopback)
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        return failed("its response is compressed, although the request did not accept compression")
    body = bytearray()
    async for data in response.aiter_raw():
        body += data
        if len(body) > ANSWER_BYTES_MAX:
            return failed(f"its response is longer than {ANSWER_BYTES_MAX:,} bytes")
    if not 200 <= status < 300:
        return failed(f"it answered {status}: {quoted(body.decode('utf-8', 'replace'))}")
    return of_bytes(bytes(body))


def _next(hop: _Hop, response: httpx2.Response, *, loopback: bool) -> _Hop:
    """Return the request for a redirect.

    Raises:
        _Refused: the target is not a server, or the redirect leads from https to http.
    """
    url = hop.url.join(response.headers["location"])
    if url.scheme not in ("http", "https") or not url.host:
        raise _Refused("it redirects to an address that is not a server")
    if hop.url.scheme == "https" and url.scheme == "http":
        raise _Refused("it redirects from https to http")
    keeps = response.status_code in _KEEPS_METHOD
    same = (url.scheme, url.raw_host, _port(url)) == (
        hop.url.scheme,
        hop.url.raw_host,
        _port(hop.url),
    )
    known = ("accept", "accept-encoding", *(("content-type",) if keeps else ()))
    headers = {name: value for name, value in hop.headers.items() if same or name in known}
    if not keeps:
        headers.pop("content-type", None)
    return _Hop(
        url if same else url.copy_with(userinfo=b""),
        hop.method if keeps else "GET",
        hop.body if keeps else b"",
        headers,
        loopback=loopback,
    )


def _port(url: httpx2.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _trusted(hop: _Hop, proxy: str | None) -> ssl.SSLContext:
    """Return the TLS context from the environment; without TLS, an empty one."""
    if hop.url.scheme == "https" or (proxy or "").startswith("https:"):
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
