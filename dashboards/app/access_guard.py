"""Access control: ASGI middleware that rejects requests before they reach the application.

A server on loopback can be reached by every program and every user of the machine, and by every page open in the
browser. The browser must therefore present a token that was printed in a terminal, or a password, and gets a cookie.
The Host header must name this server, which prevents DNS rebinding. A request that does more than open a page must come
from a page of the dashboard. Pages cannot load anything from another origin, send anything to it, or be framed by it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from ipaddress import IPv6Address, ip_address
from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentobs import world

SECRET_BYTES = 32
"""The length of a token: 256 bits, too long to guess."""
LOGIN_BYTES = 4096
"""The maximum size of the login form. Our choice."""
MOST_FIELDS = 100
"""The maximum number of fields in a query string or a form. Our choice."""
PASSWORD_LENGTH = 12
"""The minimum length of a password, in characters. Our choice: at MOST_DELAYED_PER_ADDRESS attempts per second and
address, 12 letters cannot be guessed."""
DELAY_SECONDS = 1.0
"""The delay of the response to a wrong password."""
MOST_DELAYED_PER_ADDRESS = 4
"""The maximum number of delayed responses per address; meanwhile, further attempts are rejected."""
MOST_DELAYED = 1_000
"""The maximum number of delayed responses over all addresses. Our choice."""
LOGIN_SECONDS = 12 * 3600
"""The lifetime of the login cookie. Our choice: a long working day."""
FORM_SECONDS = 5.0
"""The time limit for receiving the login form. Our choice: browsers send it immediately."""
EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""The hash of an empty string: plotly.js creates an empty style element and fills it through the CSS object model."""

_SAFE = ("GET", "HEAD")
_POLICY = (
    "default-src 'none'; script-src 'self'; "
    f"style-src 'self' {EMPTY_STYLE}; style-src-attr 'unsafe-inline'; "  # the labels of plotly have style attributes
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""The content security policy of pages. Style attributes cannot be allowed by hash, but they cannot run code either."""


class OneTimeToken:
    """The token in the printed URL: it opens the dashboard once, and is then replaced by another one.

    A URL that remains in the history of a terminal or a browser is therefore worthless to others. If others use it
    first, the user notices.
    """

    def __init__(self) -> None:
        """Create a token."""
        self.value = new_secret()

    def use(self, presented: str) -> bool:
        """Return whether a token is the current one; if so, replace it."""
        if not _is_same(presented, self.value):
            return False
        self.value = new_secret()
        return True


@dataclass(frozen=True, slots=True)
class Keys:
    """The values that a request must contain to be accepted."""

    hosts: frozenset[str]
    """Accepted values of the Host header, in lower case. The port may be missing if it is the default of the scheme."""
    scheme: str = "http"
    port: int = 0
    token: OneTimeToken | None = field(default=None, repr=False)
    """The token in the printed URL; None if a password is required."""
    password: str | None = field(default=None, repr=False)
    secret: str = field(default_factory=lambda: new_secret(), repr=False)
    """The value of the cookie. It differs from the token, because the token is in the history of the terminal and of
    the browser.
    """

    @property
    def cookie(self) -> str:
        """The name of the cookie. Cookies are shared by all ports of a host, so the port is part of it."""
        # The prefix `__Host-` prevents other servers on this host from setting the cookie (RFC 6265bis 4.1.3.2), and
        # requires TLS.
        return f"{'__Host-' if self.scheme == 'https' else ''}agentobs-{self.port}"


def new_secret() -> str:
    """Return a random token."""
    return world.random_bytes(SECRET_BYTES).hex()


def hosts_of(names: Iterable[str], port: int, scheme: str) -> frozenset[str]:
    """Return the accepted values of the Host header for a server with these names and addresses."""
    usual = {"http": 80, "https": 443}[scheme]
    found = set()
    for name in names:
        # IPv6 addresses are in brackets (RFC 3986 3.2.2).
        host = f"[{name}]" if ":" in name else name.lower().rstrip(".")
        found |= {f"{host}:{port}", *([host] if port == usual else [])}
    return frozenset(found)


class Guard:
    """The middleware that protects the application."""

    def __init__(self, app: ASGIApp, keys: Keys, opened: Callable[[], None] = lambda: None) -> None:
        """Wrap an application; `opened` is called each time when a token was used, and another one is valid."""
        self._app = app
        self._keys = keys
        self._opened = opened
        self._delayed: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request, or pass it to the application."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._respond(scope, receive, _with_headers(send))
        else:  # web sockets are not supported
            await send({"type": "websocket.close", "code": 1008})

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        if headers.get("host", "").lower() not in self._keys.hosts:
            await _send_page(send, 421, "Unknown host name", _UNKNOWN_HOST)
        elif _is_cross_site(scope["method"], headers, self._keys.scheme):
            await _send_page(send, 403, "Cross-site request", _CROSS_SITE)
        elif scope["method"] == "POST" and not _is_form(headers):
            await _send_page(send, 415, "Unsupported media type", _NOT_A_FORM)
        elif self._keys.token and (token_and_path := _token_in_url(scope)) is not None:
            await self._sign_in_by_token(scope, headers, token_and_path[0], token_and_path[1], send)
        elif self._keys.password and scope["path"] == "/login":
            await self._sign_in_by_password(scope, receive, send)
        elif self._keys.password and scope["path"] == "/leave":
            await self._sign_out(scope, send)
        elif any(
            _is_same(each, self._keys.secret) for each in _cookies(headers, self._keys.cookie)
        ):
            await self._app(scope, receive, send)
        elif self._keys.password:
            await _send_page(send, 403, "Password", _PASSWORD_FORM.format(wrong=""))
        else:
            await _send_page(send, 403, "Sign-in link required", _SIGN_IN_REQUIRED)

    async def _sign_in_by_token(
        self, scope: Scope, request_headers: Mapping[str, str], token: str, path: str, send: Send
    ) -> None:
        """Set the cookie if the token is valid, and redirect to the URL without the token.

        A used token redirects as well if the client has the cookie, such as after the back button of a browser.
        """
        is_open = any(
            _is_same(each, self._keys.secret)
            for each in _cookies(request_headers, self._keys.cookie)
        )
        current = self._keys.token
        if scope["method"] != "GET" or current is None or not (is_open or current.use(token)):
            await _send_page(send, 403, "Invalid token", _TOKEN_USED)
            return
        if not is_open:
            self._opened()
        headers_to_set = [
            (b"set-cookie", self._set_cookie()),
            (b"referrer-policy", b"no-referrer"),
        ]
        if request_headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            await _send(send, 303, b"", [*headers_to_set, (b"location", path.encode())])
            return
        # If the user follows a link on another page or in a file, the browser does not send a strict cookie after a
        # redirect. So a page of the dashboard does the redirect.
        text = _CONTINUE.format(path=escape(path))
        await _send_page(
            send, 200, "Opened", text, [*headers_to_set, (b"refresh", b"0; url=" + path.encode())]
        )

    async def _sign_in_by_password(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in _SAFE:
            await _send_page(send, 200, "Password", _PASSWORD_FORM.format(wrong=""))
            return
        if scope["method"] != "POST":
            await _send_page(send, 405, "Password", _PASSWORD_FORM.format(wrong=""))
            return
        # Read the form before counting, so that slow clients do not block other clients.
        try:
            form = await asyncio.wait_for(_form(receive), FORM_SECONDS)
        except TimeoutError:
            await _send_page(
                send, 408, "Password", _PASSWORD_FORM.format(wrong=""), [(b"connection", b"close")]
            )
            return
        network = network_of((scope.get("client") or ("",))[0])
        if (
            self._delayed[network] >= MOST_DELAYED_PER_ADDRESS
            or self._delayed.total() >= MOST_DELAYED
        ):
            await _send_page(
                send, 429, "Too many attempts", _TOO_MANY_ATTEMPTS, [(b"retry-after", b"5")]
            )
            return
        if not _is_same(form.get("password", ""), self._keys.password or ""):
            await self._delay(network)
            await _send_page(send, 403, "Password", _PASSWORD_FORM.format(wrong=_WRONG_PASSWORD))
            return
        response_headers = [
            (b"set-cookie", self._set_cookie(seconds=LOGIN_SECONDS)),
            (b"location", b"/"),
        ]
        await _send(send, 303, b"", response_headers)

    async def _sign_out(self, scope: Scope, send: Send) -> None:
        """Delete the cookie in the browser. As for every POST, the form must come from a page of the dashboard."""
        if scope["method"] != "POST":
            await _send_page(send, 405, "Sign out", _SIGN_OUT_FORM, [(b"allow", b"POST")])
            return
        await _send_page(
            send, 200, "Signed out", _SIGNED_OUT, [(b"set-cookie", self._set_cookie("", 0))]
        )

    async def _delay(self, network: str) -> None:
        """Delay the response to a wrong password."""
        self._delayed[network] += 1
        try:
            await asyncio.sleep(DELAY_SECONDS)
        finally:
            self._delayed[network] -= 1
            if not self._delayed[network]:
                del self._delayed[network]

    def _set_cookie(self, value: str | None = None, seconds: int | None = None) -> bytes:
        """Return the value of the Set-Cookie header; without `seconds`, the cookie ends with the browser session."""
        secure = "; Secure" if self._keys.scheme == "https" else ""
        max_age = "" if seconds is None else f"; Max-Age={seconds}"
        cookie_value = self._keys.secret if value is None else value
        text = f"{self._keys.cookie}={cookie_value}; Path=/; HttpOnly; SameSite=Strict{secure}{max_age}"
        return text.encode()


def network_of(address: str) -> str:
    """Return the network of an address. For IPv6 it is the /64 prefix, which one subscriber owns (RFC 6177)."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped else parsed.exploded[:19]
    return str(parsed)


def _is_cross_site(method: str, headers: Mapping[str, str], scheme: str) -> bool:
    """Return whether a request that does more than open a page comes from a page of another site.

    Browsers describe the origin of the page in the headers Sec-Fetch-Site and Origin, and pages cannot change them.
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


def _is_form(headers: Mapping[str, str]) -> bool:
    """Return whether the body has a type of the dashboard's own forms, and is not text that only looks like a form."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in ("application/x-www-form-urlencoded", "multipart/form-data")


def _token_in_url(scope: Scope) -> tuple[str, str] | None:
    """Return the token in the URL, and the URL without the token. Return None if the URL contains no token."""
    pairs = _pairs(scope["query_string"])
    tokens = [value for name, value in pairs if name == "token"]
    if not tokens:
        return None
    rest = urlencode([pair for pair in pairs if pair[0] != "token"])
    # Use the raw path, but never `//other`, because a browser would interpret it as another host.
    path = "/" + scope["raw_path"].decode("latin-1").lstrip("/\\")
    return tokens[0], path + (f"?{rest}" if rest else "")


def _is_same(presented: str, expected: str) -> bool:
    """Compare two secrets. The time depends neither on their content nor on their length."""
    first, second = (
        hashlib.sha256(each.encode("utf-8", "replace")).digest() for each in (presented, expected)
    )
    return hmac.compare_digest(first, second) and bool(expected)


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers. The values of a repeated header are joined, so that they match no valid value."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        found[key] = f"{found[key]}; {text}" if key in found else text
    return found


def _cookies(headers: Mapping[str, str], name: str) -> list[str]:
    """Return the values of the cookies with this name. Malformed cookies of other programs are ignored."""
    parts = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return [value for key, _, value in parts if key == name]


async def _form(receive: Receive) -> dict[str, str]:
    """Return the fields of a form; empty if it is too long."""
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
    """Return the names and values of a form or a query string; empty if it has too many fields."""
    try:
        return parse_qsl(text.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return []


def _with_headers(send: Send) -> Send:
    """Return a `send` that adds the security headers to each response; headers that are already set are kept."""
    security_headers = [
        (b"content-security-policy", _POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
        # With `no-referrer`, forms would send `Origin: null`. With `same-origin`, other origins receive no referrer
        # either.
        (b"referrer-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"x-frame-options", b"DENY"),
        (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
        (b"cache-control", b"no-store"),
    ]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            already_set = {name.lower() for name, _ in headers}
            message = {
                **message,
                "headers": headers + [h for h in security_headers if h[0] not in already_set],
            }
        await send(message)

    return send_with_headers


async def _send_page(
    send: Send,
    status: int,
    title: str,
    text: str,
    extra_headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Respond with a minimal page: it shows no recorded data and loads nothing."""
    page = _PAGE.format(title=escape(title), style=_STYLE, text=text)
    hashed = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashed}'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    )
    kind = [(b"content-type", b"text/html; charset=utf-8")]
    headers = [*kind, (b"content-security-policy", policy.encode()), *extra_headers]
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
_UNKNOWN_HOST = (
    "<p>This address does not match the host name of the agentobs dashboard. "
    "Open the URL that <code>agentobs dashboard</code> printed.</p>"
)
_CROSS_SITE = (
    "<p>This request was rejected, because it comes from a page of another site. "
    "Open the URL that <code>agentobs dashboard</code> printed.</p>"
)
_NOT_A_FORM = "<p>The dashboard accepts only forms.</p>"
_SIGN_IN_REQUIRED = (
    "<p>This dashboard shows recordings, so it requires a sign-in. Open the URL that "
    "<code>agentobs dashboard</code> printed last in its terminal: it ends in <code>?token=…</code>. A new "
    "URL is printed each time the dashboard starts or is opened.</p>"
)
_TOKEN_USED = (
    "<p>The token in this URL is wrong, or it was used before: each token opens the dashboard once. Open the last URL "
    "that <code>agentobs dashboard</code> printed in its terminal. If you did not use this URL "
    "before, another person did.</p>"
)
_CONTINUE = '<p><a href="{path}">Continue to the dashboard</a></p>'
_PASSWORD_FORM = (
    '<p>Enter the password of this dashboard.</p>{wrong}<form method="post" action="/login">'
    '<label>Password <input type="password" name="password" autocomplete="current-password" required autofocus>'
    "</label> "
    "<button>Sign in</button></form>"
)
_SIGN_OUT_FORM = '<form method="post" action="/leave"><button>Sign out</button></form>'
_SIGNED_OUT = '<p>You are signed out. <a href="/">Sign in again</a></p>'
_WRONG_PASSWORD = '<p class="wrong" role="alert">Wrong password.</p>'
_TOO_MANY_ATTEMPTS = "<p>Too many sign-in attempts. Retry in a few seconds.</p>"
