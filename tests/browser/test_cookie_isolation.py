"""The access guard in a real browser: no other server on this machine receives the cookie."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.browser.conftest import stores
from tests.browser.tabs import Served, Tab


@contextmanager
def other_server() -> Iterator[tuple[int, list[str | None]]]:
    """Serve on another loopback port, as another user could; yield the port and the received cookies."""
    came: list[str | None] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            came.append(self.headers.get("Cookie"))
            body = b'<!doctype html><title>neighbor</title><link rel="icon" href="data:,">'
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], came
        finally:
            server.shutdown()
            thread.join()


@stores("shop")
def test_no_server_on_another_port_receives_the_cookie(
    store: Callable[[str], Served], tabs: Callable[..., Tab], kind: str
) -> None:
    """No server on another port of this machine receives the cookie, however the browser gets to that server."""
    served = store(kind)
    tab = tabs(served)
    assert tab.page.locator("#found tbody tr").count() > 0
    assert [each["domain"] for each in tab.page.context.cookies()] == [
        served.origin.removeprefix("http://").partition(":")[0]
    ]
    with other_server() as (port, came):
        for host in ("127.0.0.1", "other.localhost", "0123456789abcdef.localhost"):
            # From a typed URL, from a page of that server, and from a page of the dashboard.
            tab.page.goto(f"http://{host}:{port}/")
            tab.page.evaluate("location.href = '/again'")
            tab.page.wait_for_url("**/again")
            tab.go("/")
            tab.page.evaluate(
                "address => { location.href = address; }", f"http://{host}:{port}/led"
            )
            tab.page.wait_for_url("**/led")
        assert came == [None] * 9
    tab.requested[:] = [each for each in tab.requested if f":{port}/" not in each]
    tab.go("/")
    assert tab.page.locator("#found tbody tr").count() > 0
