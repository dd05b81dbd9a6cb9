"""The door of the live application, over real sockets: who is let in, and what each answer forbids."""

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
from dashboards.app.server import Bound, Options
from tests.dashboards.opening import FORM, Got

pytestmark = pytest.mark.xdist_group("dashboards_guarding")

PASSWORD = "correct horse battery staple"
OURS: dict[str, Any] = {"sec-fetch-site": "same-origin"}


@contextmanager
def served(home: Path, options: Options) -> Iterator[Bound]:
    """Serve an empty home until the context ends."""
    bound = server.bind(options)
    ready, stops = threading.Event(), []

    def started(stop: Any) -> None:
        stops.append(stop)
        ready.set()

    thread = threading.Thread(
        target=server.serve, args=(bound, open_home(home)), kwargs={"started": started}, daemon=True
    )
    thread.start()
    assert ready.wait(30)
    try:
        yield bound
    finally:
        stops[0]()
        thread.join(30)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bound]:
    with served(tmp_path_factory.mktemp("guarded") / "home", Options(port=0)) as bound:
        yield bound


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that nobody trusts, and its key."""
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
    """Served for other machines, bound to loopback all the same."""
    home = tmp_path_factory.mktemp("remote") / "home"
    options = Options("127.0.0.1", 0, ("dash.test", "fd00::7"), PASSWORD, *certificate)
    with served(home, options) as bound:
        yield bound


def host_of(bound: Bound) -> str:
    """Return what the header Host says where the printed address is open; of one for others, the address itself."""
    return f"127.0.0.1:{bound.keys.port}" if bound.tls else urlsplit(bound.address).netloc


def ask(
    bound: Bound,
    path: str = "/",
    method: str = "GET",
    body: str | None = None,
    host: str | None = None,
    *,
    opened: bool = True,
    **headers: Any,
) -> Got:
    """Ask as nobody's browser would: with exactly these headers, and the cookie where `opened`."""
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
        line.putheader("Host", host_of(bound) if host is None else host)
        if opened:
            headers.setdefault("cookie", f"{bound.keys.cookie}={bound.keys.secret}")
        for name, value in headers.items():
            line.putheader(name.replace("_", "-"), value)
        if body is not None:
            line.putheader("content-type", FORM)
            line.putheader("content-length", str(len(body)))
        line.endheaders(body.encode() if body is not None else None)
        answer = line.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Got(answer.status, told, answer.read())
    finally:
        line.close()


def asks_in_sql(bound: Bound, **headers: Any) -> int:
    return ask(bound, "/sql", "POST", urlencode({"sql": ""}), **headers).status


def test_the_token_is_changed_for_a_cookie_and_leaves_the_address(door: Bound) -> None:
    """Who opens the printed address gets a cookie that is not the token, and the address without the token."""
    token = door.keys.token
    assert token
    assert len(token) == 64
    assert door.address == f"http://{host_of(door)}/?token={token}"
    got = ask(door, f"/sessions/a%2Fb?a=1&token={token}&b=%26", opened=False)
    assert (got.status, got.headers["location"]) == (303, "/sessions/a%2Fb?a=1&b=%26")
    name, _, rest = got.headers["set-cookie"].partition("=")
    assert name == f"agentobs-{door.keys.port}"
    assert rest == f"{door.keys.secret}; Path=/; HttpOnly; SameSite=Strict"
    assert door.keys.secret != token
    assert got.headers["referrer-policy"] == "no-referrer"
    assert got.body == b""
    assert ask(door).status == 200


def test_the_token_works_where_a_page_or_a_file_leads_here(door: Bound) -> None:
    """From elsewhere a page of ours leads on, for no strict cookie reaches what that request is redirected to."""
    got = ask(
        door, f"/fleet?token={door.keys.token}", opened=False, **{"sec-fetch-site": "cross-site"},
        sec_fetch_mode="navigate", sec_fetch_dest="document",
    )  # fmt: skip
    assert (got.status, got.headers["refresh"]) == (200, "0; url=/fleet")
    assert "set-cookie" in got.headers
    assert str(door.keys.token) not in got.html


@pytest.mark.parametrize("path", ["//evil.test/", "/\\evil.test", "/%0d%0aset-cookie:%20a=b"])
def test_the_token_leads_to_no_other_host(door: Bound, path: str) -> None:
    """Whatever stands in the address, what follows the token is a path of ours."""
    got = ask(door, f"{path}?token={door.keys.token}", opened=False)
    assert got.status == 303
    assert got.headers["location"].startswith("/")
    assert not got.headers["location"].startswith(("//", "/\\"))
    assert got.headers["set-cookie"].startswith("agentobs-")


PATHS = ("/", "/?q=a", "/fleet", "/sql", "/sql/tables", "/revision", "/compare", "/sessions/abc", "/attempts/abc",
         "/login", "/nowhere", "/assets/0/app.js")  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_without_the_cookie_nothing_is_told(door: Bound, path: str) -> None:
    """Each address answers the same without a cookie: open the printed address. Nothing of the home is told."""
    for method in ("GET", "HEAD"):
        got = ask(door, path, method, opened=False)
        assert got.status == 403
        assert "set-cookie" not in got.headers
    got = ask(door, path, opened=False)
    assert "agentobs dashboard" in got.words
    assert "?token=" in got.words
    assert "guarded" not in got.html  # where the home lies
    assert got.body == ask(door, "/", opened=False).body


def test_what_looks_like_the_cookie_or_the_token_does_not_do(door: Bound) -> None:
    """Only the whole secret opens, under its name; the token is no cookie and the secret no token."""
    secret, token = door.keys.secret, str(door.keys.token)
    name = door.keys.cookie
    for cookie in (
        f"{name}=", name, f"{name}={secret[:-1]}", f"{name}={secret}0", f"{name}={secret.upper()}", f"{name}={token}",
        f"agentobs={secret}", f"x{name}={secret}", f'{name}="{secret}"', f"{name}={secret},",
    ):  # fmt: skip
        assert ask(door, cookie=cookie).status == 403, cookie
    for given in ("", token[:-1], token + "0", token.upper(), secret, "%00", "ü"):
        query = urlencode({"token": given})
        assert ask(door, f"/?{query}", opened=False).status == 403, given
    # Cookies of other programs on this host stand beside it, well formed or not.
    assert ask(door, cookie=f'a={{"b": 1}}; {name}=old; c; {name}={secret}; =').status == 200


def test_a_host_that_is_not_ours_is_refused(door: Bound) -> None:
    """A name that somebody pointed at this address gets nothing, with the cookie, too; ours does, in any letters."""
    port, ours = door.keys.port, host_of(door)
    name = ours.partition(":")[0]
    for host in (
        "evil.test", f"evil.test:{port}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1:{port}.evil.test",
        f"localhost.evil.test:{port}", f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", name, f"{name}:1",
        f"{'0' * 16}.localhost:{port}", f"x{ours}", f"x.{ours}", f"{name}.evil.test:{port}", f"{name}.:{port}",
        f"127.0.0.2:{port}", f"0.0.0.0:{port}", "", f"{ours}@evil.test", f"user@{ours}",
    ):  # fmt: skip
        got = ask(door, host=host)
        assert got.status == 421, host
        assert "Sessions" not in got.words
        assert ask(door, f"/?token={door.keys.token}", host=host).status == 421
    for host in (ours, ours.upper()):
        assert ask(door, host=host).status == 200, host


def test_the_host_is_one_that_nobody_else_knows(door: Bound, tmp_path: Path) -> None:
    """Cookies are shared among the ports of a host: so the printed one is random, and no page is led to another.

    Where a number is asked for, the address has it, and loopback under its usual names is answered.
    """
    assert re.fullmatch(r"[0-9a-f]{16}\.localhost:[0-9]+", host_of(door))
    with served(tmp_path / "home", Options(port=0)) as again:
        assert host_of(again).partition(":")[0] != host_of(door).partition(":")[0]
    with served(tmp_path / "home", Options(port=0, loopback_address=True)) as plain:
        port = plain.keys.port
        assert plain.address.startswith(f"http://127.0.0.1:{port}/?token=")
        for host in (f"127.0.0.1:{port}", f"LocalHost:{port}", f"[::1]:{port}"):
            assert ask(plain, host=host).status == 200, host
        assert ask(plain, host=f"evil.test:{port}").status == 421


def test_two_hosts_or_none_are_no_request(door: Bound) -> None:
    """A request that names two hosts, or none, is refused before it is looked at."""
    for head in (
        f"GET / HTTP/1.1\r\nHost: {host_of(door)}\r\nHost: evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", door.keys.port), 30) as line:
            line.sendall(head.encode())
            assert line.recv(100).split(b" ")[1] in (b"400", b"421")


def test_a_form_is_taken_from_our_own_pages_alone(door: Bound) -> None:
    """What does more than open a page must say that it comes from a page of ours, whatever cookie it has."""
    ours = f"http://{host_of(door)}"
    assert asks_in_sql(door, origin=ours, **OURS) == 200
    assert asks_in_sql(door, origin=ours) == 200  # a browser that knows no Sec-Fetch-Site
    foreign: list[dict[str, Any]] = [
        {},
        {**OURS},
        {"origin": "null", **OURS},
        {"origin": "http://evil.test"},
        {"origin": f"http://localhost:{door.keys.port}"},
        {"origin": f"http://127.0.0.1:{door.keys.port}"},
        {"origin": ours.rpartition(":")[0] + ":1"},
        {"origin": f"https://{host_of(door)}"},
        {"origin": ours + ".evil.test"},
        {"origin": ours, "sec-fetch-site": "same-site"},
        {"origin": ours, "sec-fetch-site": "cross-site"},
        {"origin": ours, "sec-fetch-site": "none"},
    ]
    for headers in foreign:
        assert asks_in_sql(door, **headers) == 403, headers
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert ask(door, "/sql", method, origin="http://evil.test").status == 403


def test_a_page_can_be_led_to_and_nothing_else_be_loaded(door: Bound) -> None:
    """A link from elsewhere opens a page; an image, a frame, a script or a fetch of another page gets nothing."""
    page: dict[str, Any] = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for site in ("none", "same-origin", "same-site", "cross-site"):
        assert ask(door, sec_fetch_site=site, **page).status == 200
    for mode, dest in (
        ("no-cors", "image"), ("no-cors", "script"), ("cors", "empty"), ("navigate", "iframe"),
        ("navigate", "object"), ("no-cors", "style"),
    ):  # fmt: skip
        for site in ("same-site", "cross-site"):
            told: dict[str, Any] = {
                "sec-fetch-mode": mode,
                "sec-fetch-dest": dest,
                "sec-fetch-site": site,
            }
            assert ask(door, **told).status == 403, told
    assert ask(door, origin="http://evil.test").status == 403
    assert ask(door, sec_fetch_mode="cors", sec_fetch_dest="empty", **OURS).status == 200


def test_nobody_is_allowed_to_read_across_origins(door: Bound) -> None:
    """A preflight is refused, and no answer allows another origin anything."""
    got = ask(door, "/sql", "OPTIONS", origin="http://evil.test", access_control_request_method="POST")  # fmt: skip
    assert got.status == 403
    ours = f"http://{host_of(door)}"
    for each in (got, ask(door), ask(door, origin=ours), ask(door, "/revision")):
        assert not [name for name in each.headers if name.startswith("access-control")]


def test_each_answer_says_what_may_be_done_with_it(door: Bound) -> None:
    """Page, asset, error and refusal: each has a policy, no sniffing, no frames, no referrer, and no copy kept."""
    asset = next(each for each in ask(door).links("/assets/") if each.endswith(".css"))
    ours = f"http://{host_of(door)}"
    answers = {
        "page": ask(door),
        "asset": ask(door, asset),
        "revision": ask(door, "/revision"),
        "not there": ask(door, "/nowhere"),
        "old asset": ask(door, "/assets/000000000000/app.js"),
        "wrong method": ask(door, "/fleet", "POST", "a=b", origin=ours),
        "too long": ask(door, "/sql", "POST", "x" * 2_000_000, origin=ours),
        "closed": ask(door, opened=False),
        "other host": ask(door, host="evil.test"),
        "foreign": ask(door, origin="http://evil.test"),
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


def test_a_request_that_is_too_long_is_not_read(door: Bound) -> None:
    """The head of a request is bounded: one that is longer is refused or left, and the next is answered."""
    for path, cookie in (("/", "a=" + "x" * 200_000), ("/" + "a" * 2_000_000, "a=b")):
        status = 0
        with contextlib.suppress(OSError, http.client.HTTPException):
            status = ask(door, path, cookie=cookie).status
        assert status in (0, 400, 431)
        assert ask(door).status == 200


def test_many_fields_are_no_token_and_no_fault(door: Bound, remote: Bound) -> None:
    """An address or a form with hundreds of fields is answered like any other, and opens nothing."""
    many = "&".join(f"a{number}=b" for number in range(300))
    assert ask(door, f"/?{many}").status == 200
    assert ask(door, f"/?{many}", opened=False).status == 403
    assert ask(door, f"/?{many}&token={door.keys.token}", opened=False).status == 403
    ours = f"https://127.0.0.1:{remote.keys.port}"
    form = f"{many}&{urlencode({'password': PASSWORD})}"
    assert ask(remote, "/login", "POST", form, opened=False, origin=ours, **OURS).status == 403


def test_who_sends_no_request_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection on which no whole request comes, or none more, is closed."""
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.2)
    with served(tmp_path / "home", Options(port=0)) as bound:
        host = f"Host: {host_of(bound)}\r\n"
        origin = f"Origin: http://{host_of(bound)}\r\n"
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


def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While as many connections are held as there may be, any more is told to come later; then it is answered again."""
    monkeypatch.setattr(server, "CONNECTIONS", 4)
    with served(tmp_path / "home", Options(port=0)) as bound:
        assert ask(bound).status == 200
        held = [socket.create_connection(("127.0.0.1", bound.keys.port), 30) for _ in range(4)]
        while ask(bound).status != 503:
            pass  # until all of them were noticed
        for each in held:
            each.close()
        while ask(bound).status != 200:
            pass


def test_there_is_no_web_socket(door: Bound) -> None:
    """A handshake is answered like any request from elsewhere, and the application never hears of it."""
    upgrade: dict[str, Any] = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
               "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="}  # fmt: skip
    assert ask(door, "/revision", origin="http://evil.test", **upgrade).status == 403
    sent: list[Message] = []

    async def handshake() -> None:
        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await Guard(_unreached, door.keys)({"type": "websocket"}, receive, send)

    asyncio.run(handshake())
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def _unreached(*_: Any) -> None:
    raise AssertionError("the application was reached")


def test_others_must_know_the_password(remote: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other machines may open it, a form asks for the password, over TLS; a token is not printed."""
    monkeypatch.setattr(access_guard, "DELAY_SECONDS", 0.0)
    assert remote.address == f"https://dash.test:{remote.keys.port}/"
    assert remote.keys.token is None
    ours = f"https://127.0.0.1:{remote.keys.port}"
    closed = ask(remote, opened=False)
    assert (closed.status, 'type="password"' in closed.html) == (403, True)
    assert ask(remote, "/?token=", opened=False).status == 403
    for wrong in ("", PASSWORD[:-1], PASSWORD + " ", "x" * 5000):
        form = urlencode({"password": wrong})
        got = ask(remote, "/login", "POST", form, opened=False, origin=ours, **OURS)
        assert got.status == 403, wrong
        assert "Wrong password." in got.words
        assert "set-cookie" not in got.headers
    right = urlencode({"password": PASSWORD})
    foreign = ask(remote, "/login", "POST", right, opened=False, origin="https://evil.test")
    assert (foreign.status, "set-cookie" in foreign.headers) == (403, False)
    got = ask(remote, "/login", "POST", right, opened=False, origin=ours, **OURS)
    assert (got.status, got.headers["location"]) == (303, "/")
    name = f"__Host-agentobs-{remote.keys.port}"
    expected = (
        f"{name}={remote.keys.secret}; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=43200"
    )
    assert got.headers["set-cookie"] == expected
    assert ask(remote).status == 200
    for host in (f"dash.test:{remote.keys.port}", f"[fd00::7]:{remote.keys.port}"):
        assert ask(remote, host=host).status == 200
    assert ask(remote, host=f"other.test:{remote.keys.port}").status == 421


def test_passwords_are_tried_slowly_and_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong password is answered after a wait, and while PARALLEL of an address wait, its others are sent away.

    The right one from another address passes at once, whoever waits.
    """
    waited: list[float] = []
    over = asyncio.Event()
    sleep_truly = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if (
            seconds != access_guard.DELAY_SECONDS
        ):  # a server of another test, in a thread of its own
            await sleep_truly(seconds)
            return
        waited.append(seconds)
        await over.wait()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    keys = Keys(hosts=frozenset({"dash.test"}), scheme="https", password=PASSWORD)

    async def attempt(password: str, address: str = "192.0.2.1") -> int:
        body = [{"type": "http.request", "body": urlencode({"password": password}).encode()}]
        headers = [(b"host", b"dash.test"), (b"origin", b"https://dash.test")]
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
        waiting = [asyncio.create_task(attempt("wrong")) for _ in range(access_guard.PARALLEL)]
        while len(waited) < access_guard.PARALLEL:
            await asyncio.wait(waiting, timeout=0)
        beside = await attempt("wrong"), await attempt(PASSWORD)
        others = await attempt(PASSWORD, "192.0.2.2"), await attempt(PASSWORD, "2001:db8::1")
        over.set()
        return *beside, *others, await asyncio.gather(*waiting), await attempt(PASSWORD)

    guard = Guard(_unreached, keys)
    assert asyncio.run(many()) == (429, 429, 303, 303, [403] * access_guard.PARALLEL, 303)
    assert waited == [access_guard.DELAY_SECONDS] * access_guard.PARALLEL
    assert access_guard.DELAY_SECONDS >= 1


def test_who_signs_out_is_forgotten(door: Bound, remote: Bound) -> None:
    """Where a password is asked for each page has a button that takes the cookie back; no link or other site has."""
    page = ask(remote)
    assert ("form", {"method": "post", "action": "/leave"}) in page.tags
    assert "Sign out" not in ask(door).words
    ours = f"https://127.0.0.1:{remote.keys.port}"
    led = ask(remote, "/leave")
    assert (led.status, "set-cookie" in led.headers) == (405, False)
    foreign = ask(remote, "/leave", "POST", "", origin="https://evil.test")
    assert (foreign.status, "set-cookie" in foreign.headers) == (403, False)
    left = ask(remote, "/leave", "POST", "", origin=ours, **OURS)
    name = f"__Host-agentobs-{remote.keys.port}"
    expected = f"{name}=; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=0"
    assert (left.status, left.headers["set-cookie"]) == (200, expected)
    assert ask(remote, cookie=f"{name}=").status == 403


def test_an_address_is_that_of_who_may_have_many() -> None:
    """Of IPv6 the first 64 bits count; an address of IPv4 is itself, however it is written."""
    same = {
        network_of(each)
        for each in ("2001:db8:1:2::3", "2001:db8:1:2:ffff::", "2001:db8:1:2::3%eth0")
    }
    assert len(same) == 1
    assert network_of("2001:db8:1:3::3") not in same
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of("") == ""


def login(bound: Bound, body: bytes, length: int, source: str = "127.0.0.1") -> ssl.SSLSocket:
    """Send the form of a password, or a part of it, from an address of this machine."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    port = bound.keys.port
    line = trusting.wrap_socket(socket.create_connection(("127.0.0.1", port), 30, (source, 0)))
    head = f"POST /login HTTP/1.1\r\nHost: dash.test:{port}\r\nOrigin: https://dash.test:{port}\r\n"
    line.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
    return line


def test_who_sends_half_a_form_keeps_nobody_out(
    remote: Bound, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While forms are sent slowly the right password passes at once; what does not come in time is not waited for."""
    form = urlencode({"password": PASSWORD}).encode()
    with contextlib.ExitStack() as held:
        for _ in range(2 * access_guard.PARALLEL):
            held.enter_context(login(remote, b"password=", 1000))
        with login(remote, form, len(form)) as line:
            assert line.recv(100).split(b" ")[1] == b"303"
    monkeypatch.setattr(access_guard, "FORM_SECONDS", 0.1)
    with login(remote, b"password=", 1000) as line:
        assert line.recv(100).split(b" ")[1] == b"408"


def test_no_address_takes_all_connections(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address that holds as many connections as it may loses any more, and others are answered."""
    monkeypatch.setattr(server, "CONNECTIONS", 6)
    monkeypatch.setattr(server, "PER_ADDRESS", 4)
    form = urlencode({"password": PASSWORD}).encode()
    options = Options("127.0.0.1", 0, ("dash.test",), PASSWORD, *certificate)
    with served(tmp_path / "home", options) as bound, contextlib.ExitStack() as held:
        lines = [held.enter_context(login(bound, b"", 1000)) for _ in range(4)]
        for _ in range(6):
            with contextlib.suppress(OSError):
                assert held.enter_context(login(bound, b"", 1000)).recv(100) == b""
        with login(bound, form, len(form), "127.0.0.2") as line:
            assert line.recv(100).split(b" ")[1] == b"303"
        lines[0].close()


def test_no_secret_is_shown_by_accident(door: Bound, remote: Bound) -> None:
    """The representation of keys and options shows neither token nor password nor what a cookie holds."""
    told = repr(door.keys) + repr(remote.keys) + repr(Options(password=PASSWORD))
    for secret in (door.keys.token, door.keys.secret, remote.keys.secret, PASSWORD):
        assert str(secret) not in told
