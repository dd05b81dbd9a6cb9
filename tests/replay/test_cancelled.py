"""Clients that nobody here wrote, which stopped reading when they were recorded: they replay, and never hang."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

from anthropic import Anthropic, AsyncAnthropic

import agentobs
from replay import Replayer
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
