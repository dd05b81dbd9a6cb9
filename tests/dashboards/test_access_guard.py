"""The access guard of the live application, tested over real sockets.

It decides which requests are accepted, and adds security headers to each response.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.types import Message

from agentobs.recording.journal.home import open_home
from dashboards.app import access_guard, server
from dashboards.app.access_guard import Guard, Keys, network_of
from dashboards.app.server import Bound, DashboardOptions
from tests.dashboards.live_app import FORM, Response

pytestmark = pytest.mark.xdist_group("dashboards_guarding")

PASSWORD = "correct horse battery staple"
OURS: dict[str, Any] = {"sec-fetch-site": "same-origin"}


@contextmanager
def served(
    home: Path, options: DashboardOptions, opened: list[str] | None = None
) -> Iterator[Bound]:
    """Serve an empty home while the context is open; add the URL after each use of a token to `opened`."""
    bound = server.bind(options)
    urls = [] if opened is None else opened
    ready, stops = threading.Event(), []

    def started(stop: Any) -> None:
        stops.append(stop)
        ready.set()

    thread = threading.Thread(
        target=server.serve,
        args=(bound, open_home(home)),
        kwargs={"started": started, "opened": lambda: urls.append(bound.address)},
        daemon=True,
    )
    thread.start()
    assert ready.wait(30)
    try:
        yield bound
    finally:
        stops[0]()
        thread.join(30)


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bound]:
    with served(tmp_path_factory.mktemp("guarded") / "home", DashboardOptions(port=0)) as bound:
        yield bound


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dash.test")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime(2026, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=36500))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, plain))
    locked = serialization.BestAvailableEncryption(b"secret")
    (folder / "locked.pem").write_bytes(key.private_bytes(pem, form, locked))
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def remote(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[Bound]:
    """A server for other machines, bound to loopback."""
    home = tmp_path_factory.mktemp("remote") / "home"
    options = DashboardOptions("127.0.0.1", 0, ("dash.test", "fd00::7"), PASSWORD, *certificate)
    with served(home, options) as bound:
        yield bound


def token_of(bound: Bound) -> str:
    """Return the token that is valid now."""
    assert bound.keys.token
    return bound.keys.token.value


def host_header(bound: Bound) -> str:
    """Return the Host header for the printed URL; for a server for other machines, the address itself."""
    return f"127.0.0.1:{bound.keys.port}" if bound.tls else urlsplit(bound.address).netloc


def request(
    bound: Bound,
    path: str = "/",
    method: str = "GET",
    body: str | None = None,
    host: str | None = None,
    *,
    opened: bool = True,
    **headers: Any,
) -> Response:
    """Send a request with exactly these headers, and the cookie if `opened` is set."""
    port = bound.keys.port
    if bound.tls:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        line: http.client.HTTPConnection = http.client.HTTPSConnection(
            "127.0.0.1", port, context=trusting, timeout=60
        )
    else:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        line.putheader("Host", host_header(bound) if host is None else host)
        if opened:
            headers.setdefault("cookie", f"{bound.keys.cookie}={bound.keys.secret}")
        for name, value in headers.items():
            line.putheader(name.replace("_", "-"), value)
        if body is not None:
            line.putheader("content-type", FORM)
            line.putheader("content-length", str(len(body)))
        line.endheaders(body.encode() if body is not None else None)
        answer = line.getresponse()
        result = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, result, answer.read())
    finally:
        line.close()


def query_form(bound: Bound, **headers: Any) -> int:
    return request(bound, "/sql", "POST", urlencode({"sql": ""}), **headers).status


@pytest.mark.slow
def test_the_token_is_exchanged_for_a_cookie(bound: Bound) -> None:
    """Opening the printed URL sets a cookie that is not the token, and redirects to the URL without the token."""
    token = token_of(bound)
    assert len(token) == 64
    assert bound.address == f"http://{host_header(bound)}/?token={token}"
    got = request(bound, f"/sessions/a%2Fb?a=1&token={token}&b=%26", opened=False)
    assert (got.status, got.headers["location"]) == (303, "/sessions/a%2Fb?a=1&b=%26")
    name, _, rest = got.headers["set-cookie"].partition("=")
    assert name == f"agentobs-{bound.keys.port}"
    assert rest == f"{bound.keys.secret}; Path=/; HttpOnly; SameSite=Strict"
    assert bound.keys.secret != token
    assert got.headers["referrer-policy"] == "no-referrer"
    assert got.body == b""
    assert request(bound).status == 200


def test_a_token_opens_the_dashboard_once(tmp_path: Path) -> None:
    """A used token opens nothing, except in the browser that has the cookie. The server reports the next URL."""
    opened: list[str] = []
    with served(tmp_path / "home", DashboardOptions(port=0), opened) as bound:
        token = token_of(bound)
        assert request(bound, f"/?token={token}", "HEAD", opened=False).status == 403
        assert request(bound, f"/?token={token}", opened=False).status == 303
        used = request(bound, f"/?token={token}", opened=False)
        assert (used.status, "set-cookie" in used.headers) == (403, False)
        assert "it was used before" in used.words
        assert request(bound, f"/fleet?token={token}").headers["location"] == "/fleet"
        assert opened == [bound.address]
        assert token_of(bound) != token
        assert request(bound, f"/?token={token_of(bound)}", opened=False).status == 303
        assert len(opened) == 2


def test_the_token_works_in_links_from_elsewhere(bound: Bound) -> None:
    """A link with the token on another page opens the dashboard.

    The response is a page that redirects, because browsers send no strict cookie after a cross-site redirect.
    """
    token = token_of(bound)
    got = request(
        bound, f"/fleet?token={token}", opened=False, **{"sec-fetch-site": "cross-site"},
        sec_fetch_mode="navigate", sec_fetch_dest="document",
    )  # fmt: skip
    assert (got.status, got.headers["refresh"]) == (200, "0; url=/fleet")
    assert "set-cookie" in got.headers
    assert token not in got.html


@pytest.mark.parametrize("path", ["//evil.test/", "/\\evil.test", "/%0d%0aset-cookie:%20a=b"])
def test_the_token_never_redirects_to_another_host(bound: Bound, path: str) -> None:
    """The redirect leads to a path of the dashboard, whatever the URL contains."""
    got = request(bound, f"{path}?token={token_of(bound)}", opened=False)
    assert got.status == 303
    assert got.headers["location"].startswith("/")
    assert not got.headers["location"].startswith(("//", "/\\"))
    assert got.headers["set-cookie"].startswith("agentobs-")


PATHS = ("/", "/?q=a", "/fleet", "/sql", "/sql/tables", "/revision", "/compare", "/sessions/abc", "/attempts/abc",
         "/login", "/nowhere", "/assets/0/app.js")  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_without_the_cookie_every_response_is_the_same(bound: Bound, path: str) -> None:
    """Without the cookie, each URL has the same response, which asks the user to open the printed URL.

    It contains nothing about the home.
    """
    for method in ("GET", "HEAD"):
        got = request(bound, path, method, opened=False)
        assert got.status == 403
        assert "set-cookie" not in got.headers
    got = request(bound, path, opened=False)
    assert "agentobs dashboard" in got.words
    assert "?token=" in got.words
    assert "guarded" not in got.html  # a part of the path of the home
    assert got.body == request(bound, "/", opened=False).body


def test_similar_cookies_and_tokens_are_rejected(bound: Bound) -> None:
    """Only the complete secret under the right name is accepted.

    The token is not a valid cookie, and the secret is not a valid token.
    """
    secret, token = bound.keys.secret, token_of(bound)
    name = bound.keys.cookie
    for cookie in (
        f"{name}=", name, f"{name}={secret[:-1]}", f"{name}={secret}0", f"{name}={secret.upper()}", f"{name}={token}",
        f"agentobs={secret}", f"x{name}={secret}", f'{name}="{secret}"', f"{name}={secret},",
    ):  # fmt: skip
        assert request(bound, cookie=cookie).status == 403, cookie
    for given in ("", token[:-1], token + "0", token.upper(), secret, "%00", "ü"):
        query = urlencode({"token": given})
        assert request(bound, f"/?{query}", opened=False).status == 403, given
    # Other programs on this host may have set further cookies, well-formed or not.
    assert request(bound, cookie=f'a={{"b": 1}}; {name}=old; c; {name}={secret}; =').status == 200


def test_other_host_names_are_rejected(bound: Bound) -> None:
    """A request with another host name is rejected, even with the cookie.

    The case of letters in the host name is ignored.
    """
    port, ours = bound.keys.port, host_header(bound)
    name = ours.partition(":")[0]
    for host in (
        "evil.test", f"evil.test:{port}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1:{port}.evil.test",
        f"localhost.evil.test:{port}", f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", name, f"{name}:1",
        f"{'0' * 16}.localhost:{port}", f"x{ours}", f"x.{ours}", f"{name}.evil.test:{port}", f"{name}.:{port}",
        f"127.0.0.2:{port}", f"0.0.0.0:{port}", "", f"{ours}@evil.test", f"user@{ours}",
    ):  # fmt: skip
        got = request(bound, host=host)
        assert got.status == 421, host
        assert "Sessions" not in got.words
        assert request(bound, f"/?token={token_of(bound)}", host=host).status == 421
    for host in (ours, ours.upper()):
        assert request(bound, host=host).status == 200, host


@pytest.mark.slow
def test_the_host_name_is_random(bound: Bound, tmp_path: Path) -> None:
    """Each server has a random host name, because cookies are shared among all ports of a host.

    With `loopback_address`, the URL contains the address, and all names of loopback are accepted.
    """
    assert re.fullmatch(r"[0-9a-f]{16}\.localhost:[0-9]+", host_header(bound))
    with served(tmp_path / "home", DashboardOptions(port=0)) as again:
        assert host_header(again).partition(":")[0] != host_header(bound).partition(":")[0]
    with served(tmp_path / "home", DashboardOptions(port=0, loopback_address=True)) as plain:
        port = plain.keys.port
        assert plain.address.startswith(f"http://127.0.0.1:{port}/?token=")
        for host in (f"127.0.0.1:{port}", f"LocalHost:{port}", f"[::1]:{port}"):
            assert request(plain, host=host).status == 200, host
        assert request(plain, host=f"evil.test:{port}").status == 421


def test_requests_with_two_hosts_or_none_are_rejected(bound: Bound) -> None:
    """A request with two Host headers, or without one, is rejected before it is processed."""
    for head in (
        f"GET / HTTP/1.1\r\nHost: {host_header(bound)}\r\nHost: evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", bound.keys.port), 30) as line:
            line.sendall(head.encode())
            assert line.recv(100).split(b" ")[1] in (b"400", b"421")


def test_forms_are_accepted_only_from_the_dashboard(bound: Bound) -> None:
    """A request that does more than open a page must come from a page of the dashboard, even if it has the cookie."""
    ours = f"http://{host_header(bound)}"
    assert query_form(bound, origin=ours, **OURS) == 200
    assert query_form(bound, origin=ours) == 200  # a browser that does not send Sec-Fetch-Site
    foreign: list[dict[str, Any]] = [
        {},
        {**OURS},
        {"origin": "null", **OURS},
        {"origin": "http://evil.test"},
        {"origin": f"http://localhost:{bound.keys.port}"},
        {"origin": f"http://127.0.0.1:{bound.keys.port}"},
        {"origin": ours.rpartition(":")[0] + ":1"},
        {"origin": f"https://{host_header(bound)}"},
        {"origin": ours + ".evil.test"},
        {"origin": ours, "sec-fetch-site": "same-site"},
        {"origin": ours, "sec-fetch-site": "cross-site"},
        {"origin": ours, "sec-fetch-site": "none"},
    ]
    for headers in foreign:
        assert query_form(bound, **headers) == 403, headers
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert request(bound, "/sql", method, origin="http://evil.test").status == 403


def test_only_forms_are_accepted(bound: Bound) -> None:
    """A body of another type is rejected, even if it comes from the dashboard and looks like a form."""
    ours = f"http://{host_header(bound)}"
    for kind in (
        "text/plain",
        "application/json",
        "",
        "text/plain; application/x-www-form-urlencoded",
    ):
        got = request(
            bound, "/sql", "POST", origin=ours, content_type=kind, content_length="0", **OURS
        )
        assert got.status == 415, kind


def test_other_sites_can_link_to_pages_but_load_nothing(bound: Bound) -> None:
    """A link from another site opens a page; images, frames, scripts and fetches of another site are rejected."""
    page: dict[str, Any] = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for site in ("none", "same-origin", "same-site", "cross-site"):
        assert request(bound, sec_fetch_site=site, **page).status == 200
    for mode, dest in (
        ("no-cors", "image"), ("no-cors", "script"), ("cors", "empty"), ("navigate", "iframe"),
        ("navigate", "object"), ("no-cors", "style"),
    ):  # fmt: skip
        for site in ("same-site", "cross-site"):
            result: dict[str, Any] = {
                "sec-fetch-mode": mode,
                "sec-fetch-dest": dest,
                "sec-fetch-site": site,
            }
            assert request(bound, **result).status == 403, result
    assert request(bound, origin="http://evil.test").status == 403
    assert request(bound, sec_fetch_mode="cors", sec_fetch_dest="empty", **OURS).status == 200


def test_cross_origin_reads_are_never_allowed(bound: Bound) -> None:
    """A preflight request is rejected, and no response gives access to another origin."""
    headers: dict[str, Any] = {
        "origin": "http://evil.test",
        "access_control_request_method": "POST",
    }
    got = request(bound, "/sql", "OPTIONS", **headers)
    assert got.status == 403
    ours = f"http://{host_header(bound)}"
    for each in (got, request(bound), request(bound, origin=ours), request(bound, "/revision")):
        assert not [name for name in each.headers if name.startswith("access-control")]


def test_each_response_has_security_headers(bound: Bound) -> None:
    """Pages, assets, errors and rejections have a policy, and forbid sniffing, framing, referrers and caching."""
    asset = next(each for each in request(bound).links("/assets/") if each.endswith(".css"))
    ours = f"http://{host_header(bound)}"
    answers = {
        "page": request(bound),
        "asset": request(bound, asset),
        "revision": request(bound, "/revision"),
        "not there": request(bound, "/nowhere"),
        "old asset": request(bound, "/assets/000000000000/app.js"),
        "wrong method": request(bound, "/fleet", "POST", "a=b", origin=ours),
        "too long": request(bound, "/sql", "POST", "x" * 2_000_000, origin=ours),
        "closed": request(bound, opened=False),
        "other host": request(bound, host="evil.test"),
        "foreign": request(bound, origin="http://evil.test"),
    }
    assert [each.status for each in answers.values()] == [200, 200, 200, 404, 404, 405, 413, 403, 421, 403]  # fmt: skip
    for name, got in answers.items():
        policy = got.headers["content-security-policy"]
        assert "default-src 'none'" in policy, name
        assert "frame-ancestors 'none'" in policy, name
        assert "base-uri 'none'" in policy, name
        assert "unsafe-inline" not in policy.replace("style-src-attr 'unsafe-inline'", ""), name
        assert "unsafe-eval" not in policy, name
        assert got.headers["x-content-type-options"] == "nosniff", name
        assert got.headers["x-frame-options"] == "DENY", name
        assert got.headers["referrer-policy"] in ("same-origin", "no-referrer"), name
        assert got.headers["cross-origin-opener-policy"] == "same-origin", name
        assert got.headers["cross-origin-resource-policy"] == "same-origin", name
        assert "server" not in got.headers, name
        kept = got.headers["cache-control"]
        expected = "private, max-age=31536000, immutable" if name == "asset" else "no-store"
        assert kept == expected, name
    assert "script-src 'self';" in answers["page"].headers["content-security-policy"]


def test_request_headers_are_bounded(bound: Bound) -> None:
    """A request whose headers are too long is rejected or dropped, and the next request gets a response."""
    for path, cookie in (("/", "a=" + "x" * 200_000), ("/" + "a" * 2_000_000, "a=b")):
        status = 0
        with contextlib.suppress(OSError, http.client.HTTPException):
            status = request(bound, path, cookie=cookie).status
        assert status in (0, 400, 431)
        assert request(bound).status == 200


@pytest.mark.slow
def test_hundreds_of_fields_are_harmless(bound: Bound, remote: Bound) -> None:
    """A URL or form with hundreds of fields gets a normal response and does not sign in."""
    many = "&".join(f"a{number}=b" for number in range(300))
    assert request(bound, f"/?{many}").status == 200
    assert request(bound, f"/?{many}", opened=False).status == 403
    assert request(bound, f"/?{many}&token={token_of(bound)}", opened=False).status == 403
    ours = f"https://127.0.0.1:{remote.keys.port}"
    form = f"{many}&{urlencode({'password': PASSWORD})}"
    assert request(remote, "/login", "POST", form, opened=False, origin=ours, **OURS).status == 403


@pytest.mark.slow
def test_idle_connections_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is closed if it stays idle without a complete request, or without a further request."""
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    with served(tmp_path / "home", DashboardOptions(port=0)) as bound:
        host = f"Host: {host_header(bound)}\r\n"
        origin = f"Origin: http://{host_header(bound)}\r\n"
        for part in (
            "",
            "GET / HTTP/1.1\r\nHost:",
            f"GET / HTTP/1.1\r\n{host}\r\nGET / HTTP/1.1\r\n",
            f"POST /sql HTTP/1.1\r\n{host}{origin}Content-Length: 9\r\n"
            f"Cookie: {bound.keys.cookie}={bound.keys.secret}\r\n\r\nsql=",
        ):
            with socket.create_connection(("127.0.0.1", bound.keys.port), 30) as line:
                line.sendall(part.encode())
                try:
                    while line.recv(65536):
                        pass
                except ConnectionResetError:
                    pass


@pytest.mark.slow
def test_idle_connections_do_not_lock_out_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While many connections without a complete request are open, the owner gets a response: the oldest of them
    are closed.
    """
    monkeypatch.setattr(server, "CONNECTIONS", 8)
    monkeypatch.setattr(server, "IDLE_CONNECTIONS", 4)
    with (
        served(tmp_path / "home", DashboardOptions(port=0)) as bound,
        contextlib.ExitStack() as held,
    ):
        lines = []
        for number in range(40):
            line = held.enter_context(socket.create_connection(("127.0.0.1", bound.keys.port), 30))
            line.sendall(
                (b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")[number % 3]
            )
            lines.append(line)
            assert request(bound).status == 200
        with contextlib.suppress(ConnectionResetError):
            assert lines[0].recv(100) == b""


def test_requests_in_progress_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the maximum number of requests is in progress, another one gets a 503; later requests succeed again."""
    monkeypatch.setattr(server, "CONNECTIONS", 4)
    with served(tmp_path / "home", DashboardOptions(port=0)) as bound:
        assert request(bound).status == 200
        form = (
            f"POST /sql HTTP/1.1\r\nHost: {host_header(bound)}\r\nOrigin: http://{host_header(bound)}\r\n"
            f"Content-Type: {FORM}\r\nContent-Length: 9\r\n"
            f"Cookie: {bound.keys.cookie}={bound.keys.secret}\r\n\r\nsql="
        )
        held: list[socket.socket] = []
        # Until the server has read four of them; a request of this loop may take the place of one.
        while request(bound).status != 503:
            held.append(socket.create_connection(("127.0.0.1", bound.keys.port), 30))
            held[-1].sendall(form.encode())
        for each in held:
            each.close()
        while request(bound).status != 200:
            pass


def test_web_sockets_are_rejected(bound: Bound) -> None:
    """A WebSocket handshake is rejected like any request from elsewhere, and never reaches the application."""
    upgrade: dict[str, Any] = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
               "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="}  # fmt: skip
    assert request(bound, "/revision", origin="http://evil.test", **upgrade).status == 403
    sent: list[Message] = []

    async def handshake() -> None:
        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await Guard(_unreached, bound.keys)({"type": "websocket"}, receive, send)

    asyncio.run(handshake())
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def _unreached(*_: Any) -> None:
    raise AssertionError("the application was reached")


def test_remote_access_requires_the_password(
    remote: Bound, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server for other machines, a form over TLS requires the password, and no token is printed."""
    monkeypatch.setattr(access_guard, "DELAY_SECONDS", 0.0)
    assert remote.address == f"https://dash.test:{remote.keys.port}/"
    assert remote.keys.token is None
    ours = f"https://127.0.0.1:{remote.keys.port}"
    closed = request(remote, opened=False)
    assert (closed.status, 'type="password"' in closed.html) == (403, True)
    assert request(remote, "/?token=", opened=False).status == 403
    for wrong in ("", PASSWORD[:-1], PASSWORD + " ", "x" * 5000):
        form = urlencode({"password": wrong})
        got = request(remote, "/login", "POST", form, opened=False, origin=ours, **OURS)
        assert got.status == 403, wrong
        assert "Wrong password." in got.words
        assert "set-cookie" not in got.headers
    right = urlencode({"password": PASSWORD})
    foreign = request(remote, "/login", "POST", right, opened=False, origin="https://evil.test")
    assert (foreign.status, "set-cookie" in foreign.headers) == (403, False)
    got = request(remote, "/login", "POST", right, opened=False, origin=ours, **OURS)
    assert (got.status, got.headers["location"]) == (303, "/")
    name = f"__Host-agentobs-{remote.keys.port}"
    expected = (
        f"{name}={remote.keys.secret}; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=43200"
    )
    assert got.headers["set-cookie"] == expected
    assert request(remote).status == 200
    for host in (f"dash.test:{remote.keys.port}", f"[fd00::7]:{remote.keys.port}"):
        assert request(remote, host=host).status == 200
    assert request(remote, host=f"other.test:{remote.keys.port}").status == 421


def test_wrong_passwords_are_delayed_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong password gets a delayed response.

    While MOST_DELAYED_PER_ADDRESS attempts wait, others are rejected. The right password from another address is
    accepted immediately.
    """
    waited: list[float] = []
    over = asyncio.Event()
    sleep_truly = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds != access_guard.DELAY_SECONDS:  # a server of another test, in a separate thread
            await sleep_truly(seconds)
            return
        waited.append(seconds)
        await over.wait()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    keys = Keys(hosts=frozenset({"dash.test"}), scheme="https", password=PASSWORD)

    async def attempt(password: str, address: str = "192.0.2.1") -> int:
        body = [{"type": "http.request", "body": urlencode({"password": password}).encode()}]
        headers = [
            (b"host", b"dash.test"),
            (b"origin", b"https://dash.test"),
            (b"content-type", FORM.encode()),
        ]
        asked = {"method": "POST", "path": "/login", "raw_path": b"/login", "query_string": b""}
        scope = {"type": "http", "headers": headers, "client": (address, 1), **asked}
        sent: list[Message] = []

        async def receive() -> Message:
            return body.pop()

        async def send(message: Message) -> None:
            sent.append(message)

        await guard(scope, receive, send)
        return int(sent[0]["status"])

    async def many() -> tuple[int, int, int, int, list[int], int]:
        waiting = [
            asyncio.create_task(attempt("wrong"))
            for _ in range(access_guard.MOST_DELAYED_PER_ADDRESS)
        ]
        while len(waited) < access_guard.MOST_DELAYED_PER_ADDRESS:
            await asyncio.wait(waiting, timeout=0)
        beside = await attempt("wrong"), await attempt(PASSWORD)
        others = await attempt(PASSWORD, "192.0.2.2"), await attempt(PASSWORD, "2001:db8::1")
        over.set()
        return *beside, *others, await asyncio.gather(*waiting), await attempt(PASSWORD)

    guard = Guard(_unreached, keys)
    assert asyncio.run(many()) == (
        429,
        429,
        303,
        303,
        [403] * access_guard.MOST_DELAYED_PER_ADDRESS,
        303,
    )
    assert waited == [access_guard.DELAY_SECONDS] * access_guard.MOST_DELAYED_PER_ADDRESS
    assert access_guard.DELAY_SECONDS >= 1


def test_signing_out_deletes_the_cookie(bound: Bound, remote: Bound) -> None:
    """If the server has a password, each page has a button that deletes the cookie.

    A link or another site cannot delete it.
    """
    page = request(remote)
    assert ("form", {"method": "post", "action": "/leave"}) in page.tags
    assert "Sign out" not in request(bound).words
    ours = f"https://127.0.0.1:{remote.keys.port}"
    led = request(remote, "/leave")
    assert (led.status, "set-cookie" in led.headers) == (405, False)
    foreign = request(remote, "/leave", "POST", "", origin="https://evil.test")
    assert (foreign.status, "set-cookie" in foreign.headers) == (403, False)
    left = request(remote, "/leave", "POST", "", origin=ours, **OURS)
    name = f"__Host-agentobs-{remote.keys.port}"
    expected = f"{name}=; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=0"
    assert (left.status, left.headers["set-cookie"]) == (200, expected)
    assert request(remote, cookie=f"{name}=").status == 403


def test_the_network_of_an_address() -> None:
    """Of an IPv6 address the first 64 bits count; an IPv4 address counts as itself, in any notation."""
    same = {
        network_of(each)
        for each in ("2001:db8:1:2::3", "2001:db8:1:2:ffff::", "2001:db8:1:2::3%eth0")
    }
    assert len(same) == 1
    assert network_of("2001:db8:1:3::3") not in same
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of("") == ""


def login(bound: Bound, body: bytes, length: int, source: str = "127.0.0.1") -> ssl.SSLSocket:
    """Send the password form, or a part of it, from an address of this machine."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    port = bound.keys.port
    line = trusting.wrap_socket(socket.create_connection(("127.0.0.1", port), 30, (source, 0)))
    head = f"POST /login HTTP/1.1\r\nHost: dash.test:{port}\r\nOrigin: https://dash.test:{port}\r\n"
    head += f"Content-Type: {FORM}\r\nContent-Length: {length}\r\n\r\n"
    line.sendall(head.encode() + body)
    return line


def test_slow_forms_do_not_block_other_clients(
    remote: Bound, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While other clients send forms slowly, the right password is accepted immediately.

    A form that takes too long is rejected.
    """
    form = urlencode({"password": PASSWORD}).encode()
    with contextlib.ExitStack() as held:
        for _ in range(2 * access_guard.MOST_DELAYED_PER_ADDRESS):
            held.enter_context(login(remote, b"password=", 1000))
        with login(remote, form, len(form)) as line:
            assert line.recv(100).split(b" ")[1] == b"303"
    monkeypatch.setattr(access_guard, "FORM_SECONDS", 0.1)
    with login(remote, b"password=", 1000) as line:
        assert line.recv(100).split(b" ")[1] == b"408"


@pytest.mark.slow
def test_connections_per_address_are_bounded(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further connections of an address above its maximum are closed, while other addresses get a response."""
    monkeypatch.setattr(server, "CONNECTIONS", 6)
    monkeypatch.setattr(server, "PER_ADDRESS", 4)
    form = urlencode({"password": PASSWORD}).encode()
    options = DashboardOptions("127.0.0.1", 0, ("dash.test",), PASSWORD, *certificate)
    with served(tmp_path / "home", options) as bound, contextlib.ExitStack() as held:
        lines = [held.enter_context(login(bound, b"", 1000)) for _ in range(4)]
        for _ in range(6):
            with contextlib.suppress(OSError):
                assert held.enter_context(login(bound, b"", 1000)).recv(100) == b""
        with login(bound, form, len(form), "127.0.0.2") as line:
            assert line.recv(100).split(b" ")[1] == b"303"
        lines[0].close()


def test_representations_contain_no_secret(bound: Bound, remote: Bound) -> None:
    """The repr of keys and options contains neither the token, nor the password, nor the value of the cookie."""
    result = repr(bound.keys) + repr(remote.keys) + repr(DashboardOptions(password=PASSWORD))
    for secret in (token_of(bound), bound.keys.secret, remote.keys.secret, PASSWORD):
        assert str(secret) not in result
