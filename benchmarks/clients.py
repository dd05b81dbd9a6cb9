"""The cost of recording one streamed call with each HTTP library, against the same client without recording."""

from __future__ import annotations

import asyncio
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import aiohttp
import httpx
import httpx2

import agentobs
from agentobs.recording.session import start_recorder
from benchmarks.conversation import Size, history, request_body, response_chunks
from benchmarks.measure import PARTS, Cost, compare, cost_of, milliseconds, ratio
from benchmarks.provider import KEY
from benchmarks.report import Section, ratio_rows

SIZE = Size(deltas=300, result_bytes=12_000)
"""About the size of a turn of a coding agent."""
TURNS = 100
"""The number of turns before the call."""
ROUNDS = 80
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
RECORDED = ", recorded"
"""The suffix of the name of a recorded variant."""

Call = Callable[[bytes], object]


def sections() -> Iterator[Section]:
    """Measure one streamed call with each HTTP library."""
    with _provider() as url, tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        recorder = start_recorder(home)
        assert recorder is not None, "the home cannot be used"
        stack.callback(agentobs.stop_recorder)
        calls = _calls(url, home, stack)
        flush = partial(recorder.flush, 60.0)

        def call(name: str, body: bytes) -> Cost:
            settle = flush if name.endswith(RECORDED) else None
            return cost_of(partial(calls[name], body), settle)

        bodies = [request_body(history(TURNS + more, SIZE)) for more in range(ROUNDS)]
        with agentobs.session("clients"):
            for name in calls:
                call(name, bodies[0])
            measured = compare({name: partial(call, name) for name in calls}, bodies)
    libraries = [name for name in calls if not name.endswith(RECORDED)]
    rows = [
        (name, [ratio(measured, name + RECORDED, name, part) for part in PARTS])
        for name in libraries
    ]
    alone = ", ".join(
        f"{name} {milliseconds(measured, name, 'thread_ns'):.1f} ms" for name in libraries
    )
    yield Section(
        f"One streamed call by HTTP library, after {TURNS} turns",
        f"{ROUNDS} rounds. A server on the loopback interface, in another thread, sends {SIZE.deltas} deltas in "
        "separate chunks. Each row compares a recorded client with the same client without recording, in the same "
        f"round. CPU of the caller's thread without recording: {alone}. The CPU of the process includes the server.",
        ("", "wall", "CPU, caller's thread", "CPU, process"),
        ratio_rows(rows),
    )


def _calls(url: str, home: str, stack: ExitStack) -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for name, library in (("httpx2", httpx2), ("httpx", httpx)):
        for suffix in ("", RECORDED):
            client = stack.enter_context(library.Client(headers=HEADERS))
            if suffix:
                agentobs.record(client, home=home)
            calls[name + suffix] = partial(_stream, client, url)
    loop = stack.enter_context(closing(asyncio.new_event_loop()))
    for suffix in ("", RECORDED):
        session = loop.run_until_complete(_session())
        stack.callback(_close, loop, session)
        if suffix:
            agentobs.record(session, home=home)
        calls["aiohttp" + suffix] = partial(_run, loop, session, url)
    return calls


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers=HEADERS)


def _close(loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
    loop.run_until_complete(session.close())


def _stream(client: Any, url: str, body: bytes) -> int:
    with client.stream("POST", url, content=body) as response:
        return sum(len(chunk) for chunk in response.iter_raw())


def _run(
    loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession, url: str, body: bytes
) -> int:
    return loop.run_until_complete(_stream_aiohttp(session, url, body))


async def _stream_aiohttp(session: aiohttp.ClientSession, url: str, body: bytes) -> int:
    async with session.post(url, data=body) as response:
        return sum([len(chunk) async for chunk in response.content.iter_any()])


@contextmanager
def _provider() -> Iterator[str]:
    """Serve one response for each request, and yield the URL."""
    chunks = [b"%x\r\n%s\r\n" % (len(each), each) for each in response_chunks(1, SIZE)]
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
                elif line == b"\r\n":
                    self.rfile.read(length)
                    for part in (head, *chunks, b"0\r\n\r\n"):
                        self.wfile.write(part)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1/messages"
        finally:
            server.shutdown()
