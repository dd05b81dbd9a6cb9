"""The lag of the event loop of an agent with four concurrent streams, with and without recording.

A timer of the loop is due every 2 ms, and notes how late it runs. The recorder works in its own threads, so it
delays the loop only while it holds the lock of the interpreter.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from statistics import median

import httpx2
from anthropic import AsyncAnthropic

import agentobs
from benchmarks.conversation import Size, history, request_body, response_chunks
from benchmarks.measure import Cost, compare
from benchmarks.provider import HEADERS, KEY, URL
from benchmarks.report import Section, Verdict

STREAMS = 4
TURNS = 4
"""The number of turns of each stream in a round."""
SIZE = Size(deltas=200, result_bytes=12_000)
CHUNK_SECONDS = 0.001
"""The time between two chunks of a stream."""
TICK_SECONDS = 0.002
ROUNDS = 7
WITHOUT, WITH = "without recording", "with recording"
ADDED_MS = 1.0
"""The target: the additional lag at the 99th percentile."""


def sections() -> Iterator[Section]:
    """Measure the lag of the loop in alternating rounds."""
    bodies = [request_body(history(turn, SIZE)) for turn in range(1, TURNS + 1)]
    responses = [response_chunks(turn, SIZE) for turn in range(1, TURNS + 1)]
    lags: dict[str, list[list[float]]] = {WITHOUT: [], WITH: []}

    def run(name: str, client: httpx2.AsyncClient) -> Cost:
        lags[name].append(sorted(asyncio.run(_round(client, bodies))))
        return Cost()

    with tempfile.TemporaryDirectory() as folder:
        agentobs.start(folder)
        plain = httpx2.AsyncClient(transport=_Paced(responses))
        recorded = httpx2.AsyncClient(transport=_Paced(responses))
        agentobs.record(AsyncAnthropic(api_key=KEY, http_client=recorded))
        with agentobs.session("lag"):
            run(WITH, recorded)
        lags[WITH].clear()

        def with_recording(_: int) -> Cost:
            with agentobs.session("lag"):
                cost = run(WITH, recorded)
            agentobs.flush()
            return cost

        compare({WITHOUT: lambda _: run(WITHOUT, plain), WITH: with_recording}, range(ROUNDS))
        agentobs.stop_recorder()
    yield _section(lags)


def _section(lags: dict[str, list[list[float]]]) -> Section:
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "maximum": 1.0}
    found = {
        name: {
            share: median(each[min(int(len(each) * of), len(each) - 1)] for each in rounds)
            for share, of in shares.items()
        }
        for name, rounds in lags.items()
    }
    added = found[WITH]["p99"] - found[WITHOUT]["p99"]
    return Section(
        "Lag of the event loop",
        f"{STREAMS} concurrent streams of {TURNS} turns with {SIZE.deltas} deltas each; a timer is due every "
        f"{TICK_SECONDS * 1000:.0f} ms. Milliseconds, median of {ROUNDS} rounds of the values of each round.",
        ("variant", *shares),
        tuple((name, *(f"{value:.2f}" for value in row.values())) for name, row in found.items()),
        (
            Verdict(
                "lag of the event loop, p99, ms more with recording",
                ADDED_MS,
                added,
                "{:.2f}",
                "On a machine with two busy cores, threads wait for a core.",
                ROUNDS,
            ),
        ),
    )


async def _round(client: httpx2.AsyncClient, bodies: list[bytes]) -> list[float]:
    """Run all streams, and return how late each tick was, in milliseconds."""
    late: list[float] = []
    streams = asyncio.gather(*(_stream(client, bodies) for _ in range(STREAMS)))
    while not streams.done():
        due = time.perf_counter() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        late.append((time.perf_counter() - due) * 1000)
    await streams
    return late


async def _stream(client: httpx2.AsyncClient, bodies: list[bytes]) -> None:
    for body in bodies:
        async with client.stream("POST", URL, content=body) as response:
            async for _ in response.aiter_bytes():
                pass


class _Paced(httpx2.AsyncBaseTransport):
    """A transport that responds in chunks, with a pause between them."""

    def __init__(self, responses: list[list[bytes]]) -> None:
        self._responses = responses
        self._requests = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        chunks = self._responses[self._requests // STREAMS % len(self._responses)]
        self._requests += 1
        return httpx2.Response(200, headers=HEADERS, stream=_PacedChunks(chunks))


class _PacedChunks(httpx2.AsyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            await asyncio.sleep(CHUNK_SECONDS)
            yield chunk
