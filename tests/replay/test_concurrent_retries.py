"""Retries of concurrent requests: each attempt is assigned to the request that it repeats."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import agentobs
from tests.provider_script import text
from tests.replay.raw_provider import JSON, Call, play_chunks, raw_provider
from tests.replay.wire_recordings import REQUEST, async_client, message_json, recording

CALLS = 10


class Overloaded:
    """A provider that rejects the first `CALLS` requests at the same time, and accepts all later requests."""

    def __init__(self) -> None:
        self._all_here = threading.Barrier(CALLS)
        self._lock, self._requests = threading.Lock(), 0

    def play(self, call: Call) -> None:
        with self._lock:
            self._requests += 1
            number = self._requests
        if number > CALLS:
            play_chunks(200, JSON, message_json(text("hi"), number=number))(call)
            return
        self._all_here.wait()
        play_chunks(529, {**JSON, "retry-after-ms": "1"}, b'{"type": "error"}')(call)


def test_equal_concurrent_requests_are_retried_separately(tmp_path: Path) -> None:
    """Ten identical concurrent requests that are each rejected once are recorded as ten requests with two attempts
    each.
    """

    async def run(url: str) -> None:
        client = async_client(url, max_retries=3)
        with agentobs.session("gather"):
            await asyncio.gather(*(client.messages.create(**REQUEST) for _ in range(CALLS)))

    provider = Overloaded()
    plays = [provider.play] * (2 * CALLS)
    with raw_provider(plays) as raw, recording(tmp_path / "home"):
        asyncio.run(run(raw.url))
    with agentobs.connect(tmp_path / "home") as store:
        attempts = store.execute(
            "SELECT attempts FROM (SELECT count(*) AS attempts FROM attempts GROUP BY llm_request_id)"
        ).fetchall()
        negative = store.execute(
            "SELECT count(*) FROM interactions WHERE ended_ns < started_ns"
        ).fetchall()
    assert attempts == [(2,)] * CALLS
    assert negative == [(0,)]
