"""Third-party clients that canceled a request during the recording: their sessions replay and never hang."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic import Anthropic, AsyncAnthropic

import agentobs
from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, MODEL, frozen, recorded

RESPONSES = [streamed(text("one two three"), number=1), streamed(text("four"), number=2)]


def ask(prompt: str) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": prompt}]}


def test_an_abandoned_stream_replays(tmp_path: Path) -> None:
    """A session replays in which the client closes a stream after three events and sends another request."""

    def run(url: str | None) -> list[str]:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=2))
        with agentobs.session("breaks"):
            seen = []
            with client.messages.create(**ask("a"), stream=True) as stream:
                for event in stream:
                    seen.append(event.type)
                    if len(seen) == 3:
                        break
            with client.messages.stream(**ask("b")) as second:
                return [*seen, second.get_final_text()]

    live: list[list[str]] = []
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: live.append(run(url)), RESPONSES))
    with Replayer(fixture) as replayed:
        assert [replayed.run(run, None)] == live
    assert replayed.progress.requests_matched == 2


def test_a_canceled_task_replays(tmp_path: Path) -> None:
    """A session replays in which another task cancels the reader of a stream at its third event."""

    async def run(url: str | None) -> list[str]:
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=2))
        enough, seen = asyncio.Event(), []

        async def read() -> None:
            async for event in await client.messages.create(**ask("a"), stream=True):
                seen.append(event.type)
                if len(seen) == 3:
                    enough.set()
                    await asyncio.sleep(0)

        with agentobs.session("cancels"):
            reader = asyncio.create_task(read())
            await enough.wait()
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
            async with client.messages.stream(**ask("b")) as second:
                return [*seen, await second.get_final_text()]

    live: list[list[str]] = []
    fixture = frozen(
        tmp_path, recorded(tmp_path, lambda url: live.append(asyncio.run(run(url))), RESPONSES)
    )
    with Replayer(fixture) as replayed:
        assert [replayed.run(run, None)] == live
    assert replayed.progress.requests_matched == 2


def test_the_canceled_request_of_two_concurrent_requests_replays(tmp_path: Path) -> None:
    """A request that is canceled because another request completed first is neither retried nor waited for in the
    replay.
    """

    async def run(url: str | None, silent: str | None) -> str:
        clients = [
            agentobs.record(AsyncAnthropic(api_key=KEY, base_url=each, max_retries=2))
            for each in (silent, url)
        ]

        async def read(client: AsyncAnthropic) -> str:
            async with client.messages.stream(**ask("a")) as stream:
                return await stream.get_final_text()

        with agentobs.session("hedges"):
            first = asyncio.create_task(read(clients[0]))
            await asyncio.sleep(0.3 if url else 0)
            events = await read(clients[1])
            first.cancel()
            await asyncio.wait([first])
            return f"{events} {first.cancelled()}"

    live: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        silent = f"http://127.0.0.1:{silent_server.getsockname()[1]}"
        recording = recorded(
            tmp_path, lambda url: live.append(asyncio.run(run(url, silent))), RESPONSES[:1]
        )
    fixture = frozen(tmp_path, recording)
    assert sorted(each.answer.ending for each in fixture.requests) == ["cancelled", "complete"]
    with Replayer(fixture) as replayed:
        assert [replayed.run(run, None, None)] == live == ["one two three True"]


def test_a_client_that_continues_after_an_interruption_is_stopped(tmp_path: Path) -> None:
    """If a client was interrupted from outside while it read a stream, the replay ends at that point and matches."""

    def run(url: str | None) -> str:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=2))
        with agentobs.session("interrupted"):
            for number, _ in enumerate(client.messages.create(**ask("a"), stream=True)):
                if url and number == 2:
                    raise KeyboardInterrupt
        return "read to the end"

    def interrupted(url: str) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            run(url)

    fixture = frozen(tmp_path, recorded(tmp_path, interrupted, RESPONSES[:1]))
    assert fixture.header["outcome"] == "interrupted"
    with Replayer(fixture) as replayed:
        assert replayed.run(run, None) is None
    assert replayed.progress.requests_matched == 1


@pytest.mark.slow
def test_a_client_with_its_own_deadline_replays(tmp_path: Path) -> None:
    """A session replays in which the client's own timer ended the wait for a response that never came."""

    async def run(url: str | None, silent: str | None) -> str:
        first = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=silent, max_retries=2))
        other = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=2))
        with agentobs.session("deadline"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await first.messages.create(**ask("a"))
            async with other.messages.stream(**ask("b")) as stream:
                return await stream.get_final_text()

    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        silent = f"http://127.0.0.1:{silent_server.getsockname()[1]}"
        run_once = recorded(tmp_path, lambda url: asyncio.run(run(url, silent)), RESPONSES[:1])
    fixture = frozen(tmp_path, run_once)
    with Replayer(fixture) as replayed:
        assert replayed.run(run, None, None) == "one two three"
    assert replayed.progress.requests_matched == 2


async def waits_for(request: Awaitable[Any], seconds: float) -> None:
    await asyncio.wait_for(request, seconds)


async def within(request: Awaitable[Any], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await request


async def fails_after(request: Awaitable[Any], seconds: float) -> None:
    with anyio.fail_after(seconds):
        await request


async def next_to_a_timer(request: Awaitable[Any], seconds: float) -> None:
    """Send the request while another task wakes up periodically."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(seconds / 7)

    timer = asyncio.create_task(tick())
    try:
        await within(request, seconds)
    finally:
        timer.cancel()


async def next_to_a_socket(request: Awaitable[Any], seconds: float) -> None:
    """Send the request while the loop reads a socket: input may arrive, so the clock is not advanced."""
    reader, writer = socket.socketpair()
    with reader, writer:
        asyncio.get_running_loop().add_reader(reader, lambda: None)
        try:
            await within(request, seconds)
        finally:
            asyncio.get_running_loop().remove_reader(reader)


TIMEOUTS = (waits_for, within, fails_after, next_to_a_timer)


def patient(timeout: Any, seconds: float, url: str | None, silent: str | None) -> str:
    """Send a request to a silent server until a timeout, then send a request to another server."""

    async def run() -> str:
        first = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=silent, max_retries=2))
        other = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=2))
        with agentobs.session("deadline"):
            with contextlib.suppress(TimeoutError):
                await timeout(first.messages.create(**ask("a")), seconds)
            async with other.messages.stream(**ask("b")) as stream:
                return await stream.get_final_text()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def abandoned(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session whose first request was canceled after 0.2 seconds."""
    path = tmp_path_factory.mktemp("given_up")
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        silent = f"http://127.0.0.1:{silent_server.getsockname()[1]}"
        run = recorded(path, lambda url: patient(within, 0.2, url, silent), RESPONSES[:1])
    return frozen(path, run)


@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_timeouts_expire_at_once(abandoned: Fixture, timeout: Any) -> None:
    """A timeout of several seconds ends the wait for a missing response at once, whatever else wakes up in the
    meantime.
    """
    with Replayer(abandoned) as replayed:
        assert replayed.run(patient, timeout, 4.0, None, None) == "one two three"
    assert replayed.progress.requests_matched == 2


@pytest.mark.slow
def test_a_timeout_expires_if_the_clock_cannot_be_advanced(abandoned: Fixture) -> None:
    """If the clock cannot be advanced, a timeout that is somewhat longer than the recorded wait still expires, in real
    time.
    """
    with Replayer(abandoned) as replayed:
        assert replayed.run(patient, next_to_a_socket, 1.3, None, None) == "one two three"
    assert replayed.progress.requests_matched == 2


def test_a_much_longer_timeout_diverges(abandoned: Fixture) -> None:
    """A timeout that is much longer than the recorded wait diverges, because a response might have arrived by then."""
    with pytest.raises(DivergenceError) as raised, Replayer(abandoned) as replayed:
        replayed.run(patient, within, 600.0, None, None)
    assert raised.value.divergence.kind == "missing"
    assert replayed.progress.requests_matched == 1


def test_an_abandoned_thread_replays(abandoned: Fixture) -> None:
    """A thread whose request has no response is blocked until the agent has abandoned the thread, and only then
    receives an error.
    """
    errors: list[str] = []

    def asks_in_a_thread() -> str:
        client = agentobs.record(Anthropic(api_key=KEY, max_retries=0))

        def first() -> None:
            try:
                client.messages.create(**ask("a"))
            except BaseException as error:
                errors.append(type(error).__name__)

        with agentobs.session("deadline"):
            thread = threading.Thread(target=contextvars.copy_context().run, args=(first,))
            thread.start()
            thread.join(0.3)
            assert not errors
            with client.messages.stream(**ask("b")) as stream:
                return stream.get_final_text()

    with Replayer(abandoned, ReplayOptions(deadline_seconds=1)) as replayed:
        assert replayed.run(asks_in_a_thread) == "one two three"
