"""MCP servers over HTTP: the proxy forwards their requests unchanged, and their messages are recorded."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentobs.effects.mcp.http_traffic import HttpTraffic
from agentobs.effects.mcp.json_rpc import RpcExchange
from agentobs.effects.mcp.mcp_observer import needs_no_oauth
from tests.proxy.proxies import proxied

QUESTION = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "add", "arguments": {}},
}
ANSWER = {"jsonrpc": "2.0", "id": 7, "result": {"content": []}}
ASKED = {"jsonrpc": "2.0", "id": 1, "method": "roots/list"}


class Server(BaseHTTPRequestHandler):
    """Answers with JSON, with a stream of events, or with an error, by path."""

    seen: list[tuple[str, dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        path = urlsplit(self.path).path
        kind, data = "application/json", json.dumps(ANSWER).encode()
        if path == "/stream":
            kind = "text/event-stream"
            events = [json.dumps(ASKED), json.dumps(ANSWER).replace(" ", "\n", 1)]
            lines = ["\r\n".join(f"data: {each}" for each in event.split("\n")) for event in events]
            data = "".join(f"event: message\r\n{each}\r\n\r\n" for each in lines).encode()
        elif path == "/refused":
            data = b"no"
        self.send_response(403 if path == "/refused" else 200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    Server.seen = []
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_requests_are_forwarded_and_reported(server: str, tmp_path: Path) -> None:
    """JSON, a stream with a request of the server, and a status of an error; the path and the query stay."""
    found: list[RpcExchange] = []
    traffic = HttpTraffic(found.append)
    with proxied("http://127.0.0.1:1", tmp_path) as proxy:
        for path in ("/json?key=1", "/stream", "/refused"):
            url = urlsplit(proxy.proxy.forward_mcp(server + path, traffic))
            connection = http.client.HTTPConnection(url.netloc)
            target = url.path + (f"?{url.query}" if url.query else "")
            headers = {
                "authorization": "Bearer x",
                "mcp-session-id": "s",
                "accept-encoding": "gzip",
            }
            connection.request("POST", target, json.dumps(QUESTION), headers)
            response = connection.getresponse()
            assert response.status == (403 if path == "/refused" else 200)
            assert response.read()
            connection.close()
    traffic.close()
    assert [(path, json.loads(body)) for path, _, body in Server.seen] == [
        (path, QUESTION) for path in ("/json?key=1", "/stream", "/refused")
    ]
    assert {headers["authorization"] for _, headers, _ in Server.seen} == {"Bearer x"}
    assert [(each.sender, each.method, each.response) for each in found] == [
        ("client", "tools/call", ANSWER),
        ("client", "tools/call", ANSWER),
        ("client", "tools/call", {
            "jsonrpc": "2.0", "id": 7, "error": {"code": 403, "message": "HTTP status 403"},
        }),
        ("server", "roots/list", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({"url": "http://localhost:3000/mcp"}, True),
        ({"url": "http://[::1]/mcp", "type": "http"}, True),
        ({"url": "https://mcp.example.com/", "headers": {"Authorization": "Bearer x"}}, True),
        ({"url": "https://mcp.example.com/"}, False),
        ({"url": "http://localhost/sse", "type": "sse"}, False),
        ({"url": "http://localhost:port/"}, False),
        ({"url": "file:///x"}, False),
    ],
)
def test_servers_that_may_need_oauth_are_left_alone(
    server: dict[str, object], expected: bool
) -> None:
    assert needs_no_oauth(str(server["url"]), server) is expected
