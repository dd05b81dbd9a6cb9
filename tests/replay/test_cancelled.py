"""Clients that nobody here wrote, which stopped reading when they were recorded: they replay, and never hang."""

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

GIVEN = [streamed(text("one two three"), number=1), streamed(text("four"), number=2)]


def ask(prompt: str) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": prompt}]}


def test_a_client_that_breaks_off_replays(tmp_path: Path) -> None:
    """It reads three events, goes away, and asks something else."""

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
    made = frozen(tmp_path, recorded(tmp_path, lambda url: live.append(run(url)), GIVEN))
    with Replayer(made) as replayed:
        assert [replayed.run(run, None)] == live
    assert replayed.progress.requests_matched == 2


def test_a_task_that_is_cancelled_replays(tmp_path: Path) -> None:
    """Another task stops the reader at its third event; in the replay it gets the chance to, too."""

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
    made = frozen(
        tmp_path, recorded(tmp_path, lambda url: live.append(asyncio.run(run(url))), GIVEN)
    )
    with Replayer(made) as replayed:
        assert [replayed.run(run, None)] == live
    assert replayed.progress.requests_matched == 2


def test_the_slower_of_two_replays(tmp_path: Path) -> None:
    """A request that never got an answer is given up when another one has its own: not asked again, not waited for."""

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
            told = await read(clients[1])
            first.cancel()
            await asyncio.wait([first])
            return f"{told} {first.cancelled()}"

    live: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        silent = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        recording = recorded(
            tmp_path, lambda url: live.append(asyncio.run(run(url, silent))), GIVEN[:1]
        )
    made = frozen(tmp_path, recording)
    assert sorted(each.answer.ending for each in made.asks) == ["cancelled", "complete"]
    with Replayer(made) as replayed:
        assert [replayed.run(run, None, None)] == live == ["one two three True"]


def test_a_client_that_reads_on_is_told(tmp_path: Path) -> None:
    """One that was interrupted from outside gets no answer that it never had: the replay ends there, matched."""

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

    made = frozen(tmp_path, recorded(tmp_path, interrupted, GIVEN[:1]))
    assert made.header["outcome"] == "interrupted"
    with Replayer(made) as replayed:
        assert replayed.run(run, None) is None
    assert replayed.progress.requests_matched == 1


def test_a_client_with_a_deadline_of_its_own_replays(tmp_path: Path) -> None:
    """Its own clock ends the wait for an answer that never came, as it did when it was recorded."""

    async def run(url: str | None, silent: str | None) -> str:
        first = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=silent, max_retries=2))
        other = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=2))
        with agentobs.session("deadline"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await first.messages.create(**ask("a"))
            async with other.messages.stream(**ask("b")) as stream:
                return await stream.get_final_text()

    with socket.create_server(("127.0.0.1", 0)) as nobody:
        silent = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        run_once = recorded(tmp_path, lambda url: asyncio.run(run(url, silent)), GIVEN[:1])
    made = frozen(tmp_path, run_once)
    with Replayer(made) as replayed:
        assert replayed.run(run, None, None) == "one two three"
    assert replayed.progress.requests_matched == 2


async def waits_for(asking: Awaitable[Any], seconds: float) -> None:
    await asyncio.wait_for(asking, seconds)


async def within(asking: Awaitable[Any], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await asking


async def fails_after(asking: Awaitable[Any], seconds: float) -> None:
    with anyio.fail_after(seconds):
        await asking


async def beside_a_pulse(asking: Awaitable[Any], seconds: float) -> None:
    """Something else wakes again and again meanwhile."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(seconds / 7)

    pulse = asyncio.create_task(beat())
    try:
        await within(asking, seconds)
    finally:
        pulse.cancel()


async def beside_a_socket(asking: Awaitable[Any], seconds: float) -> None:
    """Something might come from outside, so that the clock is not put on."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        asyncio.get_running_loop().add_reader(ours, lambda: None)
        try:
            await within(asking, seconds)
        finally:
            asyncio.get_running_loop().remove_reader(ours)


WAYS = (waits_for, within, fails_after, beside_a_pulse)


def patient(way: Any, seconds: float, url: str | None, silent: str | None) -> str:
    """Ask somebody who is silent, for so long, and then somebody else."""

    async def run() -> str:
        first = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=silent, max_retries=2))
        other = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=2))
        with agentobs.session("deadline"):
            with contextlib.suppress(TimeoutError):
                await way(first.messages.create(**ask("a")), seconds)
            async with other.messages.stream(**ask("b")) as stream:
                return await stream.get_final_text()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def given_up(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session whose first request was given up after 0.2 seconds."""
    path = tmp_path_factory.mktemp("given_up")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        silent = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        run = recorded(path, lambda url: patient(within, 0.2, url, silent), GIVEN[:1])
    return frozen(path, run)


@pytest.mark.parametrize("way", WAYS)
def test_time_passes_at_once_for_who_waits(given_up: Fixture, way: Any) -> None:
    """A time-out of seconds ends the wait for an answer that never came, in whatever order others are woken."""
    with Replayer(given_up) as replayed:
        assert replayed.run(patient, way, 4.0, None, None) == "one two three"
    assert replayed.progress.requests_matched == 2


def test_a_time_out_passes_where_the_clock_cannot_be_put_on(given_up: Fixture) -> None:
    """There the client has all the time that the recorded one had, and more."""
    with Replayer(given_up) as replayed:
        assert replayed.run(patient, beside_a_socket, 1.3, None, None) == "one two three"
    assert replayed.progress.requests_matched == 2


def test_a_client_that_is_far_more_patient_now_is_told(given_up: Fixture) -> None:
    """Whether an answer had come until its time-out nobody knows: the replay does not go on as if none had."""
    with pytest.raises(DivergenceError) as raised, Replayer(given_up) as replayed:
        replayed.run(patient, within, 600.0, None, None)
    assert raised.value.divergence.kind == "missing"
    assert replayed.progress.requests_matched == 1


def test_a_thread_that_nobody_waits_for_replays(given_up: Fixture) -> None:
    """A thread is held, too, so that whoever gave it up does so before it hears anything."""
    heard: list[str] = []

    def asks_apart() -> str:
        client = agentobs.record(Anthropic(api_key=KEY, max_retries=0))

        def first() -> None:
            try:
                client.messages.create(**ask("a"))
            except BaseException as error:
                heard.append(type(error).__name__)

        with agentobs.session("deadline"):
            thread = threading.Thread(target=contextvars.copy_context().run, args=(first,))
            thread.start()
            thread.join(0.3)
            assert not heard
            with client.messages.stream(**ask("b")) as stream:
                return stream.get_final_text()

    with Replayer(given_up, ReplayOptions(deadline_seconds=1)) as replayed:
        assert replayed.run(asks_apart) == "one two three"
