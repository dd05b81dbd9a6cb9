"""The cost of the recording proxy, compared with a proxy that only forwards and with no proxy."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.report import Section, Verdict

ROUNDS = 30
PAUSE_ROUNDS = 10
"""The number of rounds with pauses."""
PAUSE_SECONDS = 0.02
"""A pause before each request; agents run tools between their requests, which usually takes longer."""
REQUESTS = 20
"""The number of requests of one variant in one round."""
WARM_UP = 200
"""The number of requests before the first round: enough for the meter to load its price list."""
STREAMS = 100
"""The number of concurrent streams."""
DELTAS = 200
"""The number of events of one response."""
REQUEST_BYTES = 87_000
"""The size of a request, which is that of Claude Code."""
CPU_LIMIT_MS, FIRST_CHUNK_LIMIT_MS = 2.0, 1.0
DIRECT, PLAIN, RECORDING = "no proxy", "a proxy that only forwards", "`agentobs proxy`"
HEADERS = {"anthropic-version": "2023-06-01", "content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class _Server:
    """A server in a separate process."""

    url: str
    process_id: int

    def cpu_ms(self) -> float:
        """Return the CPU time of the process so far, in milliseconds."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Return the largest resident memory of the process so far, in MB."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process_id}/status").read_text())
        assert found is not None
        return int(found[1]) / 1000


def sections() -> Iterator[Section]:
    """Measure the proxy."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        provider = stack.enter_context(_server("provider"))
        plain = stack.enter_context(_server("plain", provider.url))
        recording = stack.enter_context(_recording_proxy(provider.url, Path(folder)))
        servers = {DIRECT: provider, PLAIN: plain, RECORDING: recording}
        yield _requests(servers, ROUNDS, 0)
        yield _requests(servers, PAUSE_ROUNDS, PAUSE_SECONDS)
        yield _streams(servers)


def _requests(servers: dict[str, _Server], rounds: int, pause_seconds: float) -> Section:
    """Measure single requests: CPU time of the proxy, and the time to the first chunk.

    Without pauses, the recorder writes one request while the next one is forwarded, so only the CPU time has a limit.
    """
    connections = {name: _Connection(server.url) for name, server in servers.items()}
    first: dict[str, list[float]] = {name: [] for name in servers}
    cpu = dict.fromkeys(servers, 0.0)
    for connection in connections.values():
        for _ in range(WARM_UP):
            connection.request()
    for _ in range(rounds):
        for name, connection in connections.items():
            before = servers[name].cpu_ms()
            for _ in range(REQUESTS):
                time.sleep(pause_seconds)
                first[name].append(connection.request())
            cpu[name] += servers[name].cpu_ms() - before
    medians = {name: median(values) for name, values in first.items()}
    each = {name: spent / (rounds * REQUESTS) for name, spent in cpu.items()}
    added = medians[RECORDING] - medians[PLAIN]
    rows = [
        (name, "-" if name == DIRECT else f"{each[name]:.2f} ms", f"{medians[name]:.2f} ms")
        for name in servers
    ]
    pauses = f"with pauses of {pause_seconds * 1000:.0f} ms" if pause_seconds else "without pauses"
    cpu_verdict = Verdict(
        f"recording proxy, CPU per request in addition to a proxy that only forwards, {pauses}",
        CPU_LIMIT_MS,
        each[RECORDING] - each[PLAIN],
        "{:.2f} ms",
    )
    first_verdict = Verdict(
        f"recording proxy, time to the first chunk in addition to a proxy that only forwards, {pauses}",
        FIRST_CHUNK_LIMIT_MS,
        added,
        "{:.2f} ms",
    )
    return Section(
        f"The recording proxy, one request at a time, {pauses}",
        f"{rounds} rounds of {REQUESTS} requests of {REQUEST_BYTES:,} bytes over one connection, each answered with "
        f"{DELTAS} events in one write. Provider and proxies are separate processes. The CPU time is that of the "
        "proxy's process, including the recorder. The plain proxy uses the same server and client libraries.",
        ("", "CPU of the proxy per request", "time to the first chunk, median"),
        tuple(rows),
        (cpu_verdict, first_verdict) if pause_seconds else (cpu_verdict,),
    )


def _streams(servers: dict[str, _Server]) -> Section:
    """Measure concurrent streams: CPU time and memory of the proxy."""
    rows = []
    for name, server in servers.items():
        before, memory = server.cpu_ms(), server.memory_mb()
        started = time.perf_counter()
        asyncio.run(_fetch_many(server.url))
        wall = (time.perf_counter() - started) * 1000
        shown = "-" if name == DIRECT else f"{server.cpu_ms() - before:.0f} ms"
        rows.append((name, shown, f"{wall:.0f} ms", f"{server.memory_mb() - memory:.1f} MB"))
    return Section(
        "The recording proxy, concurrent streams",
        f"{STREAMS} streams at the same time, each with {DELTAS} events.",
        ("", "CPU of the proxy", "wall time", "growth of the largest memory"),
        tuple(rows),
    )


class _Connection:
    """A connection that stays open."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(self._parts.netloc)

    def request(self) -> float:
        """Send a request and read its response; return the time to the first chunk, in milliseconds."""
        body = _body()
        started = time.perf_counter()
        self._connection.request("POST", self._parts.path + "/v1/messages", body, HEADERS)
        response = self._connection.getresponse()
        response.read(1)
        elapsed = (time.perf_counter() - started) * 1000
        response.read()
        assert response.status == 200, f"the server answered with status {response.status}"
        return elapsed


def _body() -> bytes:
    """Return a request body."""
    content = "x" * REQUEST_BYTES
    messages = [{"role": "user", "content": content}]
    body = {"model": "claude-sonnet-5", "max_tokens": 9, "stream": True, "messages": messages}
    return json.dumps(body).encode()


async def _fetch_many(url: str) -> None:
    import httpx2

    async with httpx2.AsyncClient(
        timeout=120, limits=httpx2.Limits(max_connections=None)
    ) as client:

        async def fetch() -> None:
            response = await client.post(f"{url}/v1/messages", content=_body(), headers=HEADERS)
            assert response.status_code == 200

        await asyncio.gather(*(fetch() for _ in range(STREAMS)))


@contextmanager
def _server(role: str, *arguments: str) -> Iterator[_Server]:
    """Run this module as a server."""
    with _process([sys.executable, "-m", "benchmarks.proxy", role, *arguments]) as (process, line):
        yield _Server(line.strip(), process.pid)


@contextmanager
def _recording_proxy(upstream: str, home: Path) -> Iterator[_Server]:
    """Run `agentobs proxy`."""
    command = [
        sys.executable,
        "-m",
        "agentobs",
        "--home",
        str(home),
        "proxy",
        "--upstream",
        upstream,
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ANTHROPIC_")}
    with _process(command, environment) as (process, _):
        assert process.stdout is not None
        url = process.stdout.readline().strip().partition("=")[2]
        yield _Server(url, process.pid)


@contextmanager
def _process(
    command: list[str], environment: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command until the end of the context; yield it with its first line of output."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.terminate()
        process.wait()


def _serve(application: Any) -> None:
    import socket

    import uvicorn

    # asyncio only disables Nagle's algorithm if the socket names its protocol.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(1024)
        print(f"http://127.0.0.1:{bound.getsockname()[1]}", flush=True)
        config = uvicorn.Config(
            application, log_level="critical", access_log=False, timeout_keep_alive=300
        )
        asyncio.run(uvicorn.Server(config).serve(sockets=[bound]))


def _provider() -> Any:
    """Return a provider that answers each request with the same stream."""
    delta: Any = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "word "},
    }
    start = {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant",
             "model": "claude-sonnet-5", "content": [], "usage": {"input_tokens": 9, "output_tokens": 1}}}  # fmt: skip
    opened = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    stop = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": DELTAS},
    }
    events: list[Any] = [
        start,
        opened,
        *[delta] * DELTAS,
        {"type": "content_block_stop", "index": 0},
        stop,
    ]
    events.append({"type": "message_stop"})
    stream = "".join(
        f"event: {each['type']}\ndata: {json.dumps(each, separators=(',', ':'))}\n\n"
        for each in events
    ).encode()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": stream})

    return application


def _plain_proxy(upstream: str) -> Any:
    """Return a proxy that forwards bodies as they arrive, with the libraries of the recording proxy."""
    import httpx2
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    client = httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=None))

    async def forward(request: Request) -> StreamingResponse:
        headers = [(k, v) for k, v in request.headers.raw if k != b"host"]
        target = f"{upstream}{request.url.path}"
        sent = httpx2.Request(request.method, target, headers=headers, content=await request.body())
        sent.extensions = {**sent.extensions, "timeout": client.timeout.as_dict()}
        response = await client.send(sent, stream=True)
        kept = {k: v for k, v in response.headers.items() if k != "transfer-encoding"}
        return StreamingResponse(response.aiter_raw(), response.status_code, kept)

    return Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])])


if __name__ == "__main__":
    _serve(_provider() if sys.argv[1] == "provider" else _plain_proxy(sys.argv[2]))
