"""Who may ask: pure ASGI around the application, which sees no request before it was proven to be one of ours.

A server on loopback is in reach of every program of this machine, of its other users, and of every page that the
browser has open. So who opens it shows a token that was printed in a terminal, or a password, and gets a cookie for it.
A request must name us as its host (a foreign name that was pointed at this address does not), and one that does more
than open a page must come from one of our own. What is answered may load, send and be framed by nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from ipaddress import IPv6Address, ip_address
from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentobs import world

SECRET_BYTES = 32
"""How long a token is: 256 bits, which nobody tries out."""
LOGIN_BYTES = 4096
"""How long the form with a password may be. Our choice."""
FIELDS = 100
"""How many names and values are looked at in an address or a form. Our choice."""
PASSWORD_LENGTH = 12
"""How short a password may be, characters. Our choice: at PARALLEL tries a second and address, 12 letters
take for ever."""
DELAY_SECONDS = 1.0
"""How long the answer to a wrong password waits."""
PARALLEL = 4
"""How many answers to wrong passwords may wait for one address; what else it tries meanwhile is not looked at."""
WAITING = 1_000
"""How many of them may wait in all, from however many addresses. Our choice."""
LOGIN_SECONDS = 12 * 3600
"""How long a browser keeps the cookie that it got for the password. Our choice: a long day of work."""
FORM_SECONDS = 5.0
"""How long the form with a password may take to come. Our choice: it is sent in one piece."""
EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""The digest of nothing: plotly.js makes an empty style element, which it fills through the object model."""

_SAFE = ("GET", "HEAD")
_POLICY = (
    "default-src 'none'; script-src 'self'; "
    f"style-src 'self' {EMPTY_STYLE}; style-src-attr 'unsafe-inline'; "  # the labels of plotly have style attributes
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""What a page of the application may do. Attributes cannot be allowed by digest, and run nothing."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What proves that a request is one of ours."""

    hosts: frozenset[str]
    """What the header Host may say, in small letters, with the port where the scheme has another one."""
    scheme: str = "http"
    port: int = 0
    token: str | None = field(default=None, repr=False)
    """What stands in the address that is printed; None where a password is asked for."""
    password: str | None = field(default=None, repr=False)
    secret: str = field(default_factory=lambda: new_secret(), repr=False)
    """What the cookie holds. Not the token: that stands in the history of a terminal and of a browser."""

    @property
    def cookie(self) -> str:
        """The name of the cookie. Cookies are shared by all ports of a host, so the port is part of it."""
        # `__Host-` keeps others under the same name from setting it (RFC 6265bis 4.1.3.2); it takes TLS.
        return f"{'__Host-' if self.scheme == 'https' else ''}agentobs-{self.port}"


def new_secret() -> str:
    """Return a token that nobody guesses."""
    return world.random_bytes(SECRET_BYTES).hex()


def hosts_of(names: Iterable[str], port: int, scheme: str) -> frozenset[str]:
    """Return what the header Host may say where we are reached under these names and addresses."""
    usual = {"http": 80, "https": 443}[scheme]
    found = set()
    for name in names:
        # An address of IPv6 stands in brackets (RFC 3986 3.2.2).
        host = f"[{name}]" if ":" in name else name.lower().rstrip(".")
        found |= {f"{host}:{port}", *([host] if port == usual else [])}
    return frozenset(found)


class Guard:
    """The application behind its door."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        """Put a door before an application."""
        self._app = app
        self._keys = keys
        self._failed: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, _with_headers(send))
        else:  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        if headers.get("host", "").lower() not in self._keys.hosts:
            await _say(send, 421, "Another address", _OTHER_HOST)
        elif _is_foreign(scope["method"], headers, self._keys.scheme):
            await _say(send, 403, "From elsewhere", _FOREIGN)
        elif self._keys.token and (given := _taken_token(scope)) is not None:
            await self._open_by_token(scope, headers, given[0], given[1], send)
        elif self._keys.password and scope["path"] == "/login":
            await self._open_by_password(scope, receive, send)
        elif self._keys.password and scope["path"] == "/leave":
            await self._close(scope, send)
        elif any(
            _is_same(each, self._keys.secret) for each in _cookies(headers, self._keys.cookie)
        ):
            await self._app(scope, receive, send)
        elif self._keys.password:
            await _say(send, 403, "Password", _LOGIN.format(wrong=""))
        else:
            await _say(send, 403, "Not opened yet", _CLOSED)

    async def _open_by_token(
        self, scope: Scope, headers: Mapping[str, str], token: str, path: str, send: Send
    ) -> None:
        """Give the cookie to who has the token, and go on to the address without it."""
        if scope["method"] not in _SAFE or not _is_same(token, self._keys.token or ""):
            await _say(send, 403, "Not the token", _CLOSED)
            return
        more = [
            (b"set-cookie", self._set_cookie()),
            (b"referrer-policy", b"no-referrer"),
        ]
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            await _send(send, 303, b"", [*more, (b"location", path.encode())])
            return
        # Where another page, or a file, led here, a browser keeps a strict cookie from what is redirected to. So a
        # page of ours leads on.
        text = _ONWARD.format(path=escape(path))
        await _say(send, 200, "Opened", text, [*more, (b"refresh", b"0; url=" + path.encode())])

    async def _open_by_password(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in _SAFE:
            await _say(send, 200, "Password", _LOGIN.format(wrong=""))
            return
        if scope["method"] != "POST":
            await _say(send, 405, "Password", _LOGIN.format(wrong=""))
            return
        # Whoever is slow to send keeps nobody from being looked at, so it is read before anything is counted.
        try:
            form = await asyncio.wait_for(_form(receive), FORM_SECONDS)
        except TimeoutError:
            await _say(send, 408, "Password", _LOGIN.format(wrong=""), [(b"connection", b"close")])
            return
        whose = network_of((scope.get("client") or ("",))[0])
        if self._failed[whose] >= PARALLEL or self._failed.total() >= WAITING:
            await _say(send, 429, "Too many at once", _BUSY, [(b"retry-after", b"5")])
            return
        if not _is_same(form.get("password", ""), self._keys.password or ""):
            await self._delay(whose)
            await _say(send, 403, "Password", _LOGIN.format(wrong=_WRONG))
            return
        to_it = [(b"set-cookie", self._set_cookie(seconds=LOGIN_SECONDS)), (b"location", b"/")]
        await _send(send, 303, b"", to_it)

    async def _close(self, scope: Scope, send: Send) -> None:
        """Have the browser forget the cookie; the form comes from a page of ours, as any does."""
        if scope["method"] != "POST":
            await _say(send, 405, "Sign out", _LEAVE, [(b"allow", b"POST")])
            return
        await _say(send, 200, "Signed out", _LEFT, [(b"set-cookie", self._set_cookie("", 0))])

    async def _delay(self, whose: str) -> None:
        """Have who was wrong wait."""
        self._failed[whose] += 1
        try:
            await asyncio.sleep(DELAY_SECONDS)
        finally:
            self._failed[whose] -= 1
            if not self._failed[whose]:
                del self._failed[whose]

    def _set_cookie(self, value: str | None = None, seconds: int | None = None) -> bytes:
        """Return the cookie, or another value of it; without seconds it lasts as long as the browser runs."""
        secure = "; Secure" if self._keys.scheme == "https" else ""
        lasts = "" if seconds is None else f"; Max-Age={seconds}"
        held = self._keys.secret if value is None else value
        text = f"{self._keys.cookie}={held}; Path=/; HttpOnly; SameSite=Strict{secure}{lasts}"
        return text.encode()


def network_of(address: str) -> str:
    """Return whose an address is: of IPv6 everybody has as many as there are in 64 bits (RFC 6177)."""
    try:
        known = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(known, IPv6Address):
        mapped = known.ipv4_mapped
        return str(mapped) if mapped else known.exploded[:19]
    return str(known)


def _is_foreign(method: str, headers: Mapping[str, str], scheme: str) -> bool:
    """Return whether a request that does more than open a page comes from a page that is not ours.

    A browser says in Sec-Fetch-Site and in Origin whose page a request comes from, and no page can change that.
    """
    ours = f"{scheme}://{headers.get('host', '').lower()}"
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if method not in _SAFE:
        return origin != ours or site not in (None, "same-origin")
    if origin is not None and origin != ours:
        return True
    is_page = (
        headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )
    return not is_page and site not in (None, "none", "same-origin")


def _taken_token(scope: Scope) -> tuple[str, str] | None:
    """Return the token that the address holds, and the address without it; None where it holds none."""
    pairs = _pairs(scope["query_string"])
    tokens = [value for name, value in pairs if name == "token"]
    if not tokens:
        return None
    rest = urlencode([pair for pair in pairs if pair[0] != "token"])
    # As it was sent, and never `//elsewhere`, which a browser takes for another host.
    path = "/" + scope["raw_path"].decode("latin-1").lstrip("/\\")
    return tokens[0], path + (f"?{rest}" if rest else "")


def _is_same(given: str, kept: str) -> bool:
    """Return whether two secrets are the same, in a time that tells neither how much nor how long."""
    first, second = (
        hashlib.sha256(each.encode("utf-8", "replace")).digest() for each in (given, kept)
    )
    return hmac.compare_digest(first, second) and bool(kept)


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers; one that is there twice holds both, and so fits nothing."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        found[key] = f"{found[key]}; {text}" if key in found else text
    return found


def _cookies(headers: Mapping[str, str], name: str) -> list[str]:
    """Return the values of the cookies of a name. Read leniently: other programs of this machine set cookies, too."""
    parts = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return [value for key, _, value in parts if key == name]


async def _form(receive: Receive) -> dict[str, str]:
    """Return a short form; of one that is longer, nothing."""
    body = b""
    while len(body) <= LOGIN_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            break
    if len(body) > LOGIN_BYTES:
        return {}
    return dict(_pairs(body))


def _pairs(text: bytes) -> list[tuple[str, str]]:
    """Return the names and values of a form or an address; of one with more than anybody needs, none."""
    try:
        return parse_qsl(text.decode("latin-1"), keep_blank_values=True, max_num_fields=FIELDS)
    except ValueError:
        return []


def _with_headers(send: Send) -> Send:
    """Return a way to answer that says in each answer what may be done with it; what is said already stands."""
    always = [
        (b"content-security-policy", _POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
        # A form that is sent without a referrer says `Origin: null`; other origins are told nothing with this, too.
        (b"referrer-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"x-frame-options", b"DENY"),
        (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
        (b"cache-control", b"no-store"),
    ]

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            said = {name.lower() for name, _ in headers}
            message = {**message, "headers": headers + [h for h in always if h[0] not in said]}
        await send(message)

    return sent


async def _say(
    send: Send,
    status: int,
    title: str,
    text: str,
    more: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Answer with a page of the door: it shows nothing of the home, and loads nothing."""
    page = _PAGE.format(title=escape(title), style=_STYLE, text=text)
    hashed = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashed}'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    )
    kind = [(b"content-type", b"text/html; charset=utf-8")]
    headers = [*kind, (b"content-security-policy", policy.encode()), *more]
    await _send(send, status, page.encode(), headers)


async def _send(
    send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:36rem;margin:12vh auto;"
    "padding:0 1rem}h1{font-size:1.3rem}input,button{font:inherit;padding:.4rem .6rem}.wrong{color:#b02a21}"
    "@media(prefers-color-scheme:dark){.wrong{color:#ff9a8c}}"
)
_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>{title} · agentobs</title><style>{style}</style></head>"
    "<body><main><h1>{title}</h1>{text}</main></body></html>"
)
_OTHER_HOST = (
    "<p>This is the agentobs dashboard, and it is not reached under the name in this address. "
    "Open the address that <code>agentobs dashboard</code> printed.</p>"
)
_FOREIGN = (
    "<p>This request comes from a page that is not of this dashboard, so it was not answered. "
    "Open the address that <code>agentobs dashboard</code> printed.</p>"
)
_CLOSED = (
    "<p>This dashboard shows recordings, so a browser must show that it may see them. Open the address that "
    "<code>agentobs dashboard</code> printed in its terminal: it ends in <code>?token=…</code>. Each start prints "
    "another one.</p>"
)
_ONWARD = '<p><a href="{path}">Go on to the dashboard</a></p>'
_LOGIN = (
    '<p>The password of this dashboard:</p>{wrong}<form method="post" action="/login">'
    '<label>Password <input type="password" name="password" autocomplete="current-password" required autofocus>'
    "</label> "
    "<button>Open</button></form>"
)
_LEAVE = '<form method="post" action="/leave"><button>Sign out</button></form>'
_LEFT = '<p>This browser has forgotten the dashboard. <a href="/">Sign in again</a></p>'
_WRONG = '<p class="wrong" role="alert">That is not the password.</p>'
_BUSY = "<p>Too many passwords are being looked at. Try again in a few seconds.</p>"
