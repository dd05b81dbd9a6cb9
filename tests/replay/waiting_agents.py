"""Agents that wait in the ways that real agents do, and send a request before and after the wait."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
import time
from collections.abc import Callable
from time import sleep as _imported_sleep
from typing import Any

import anyio
from anthropic import Anthropic, AsyncAnthropic

import agentobs
from tests.replay.agents import KEY, MODEL

imported_sleep = _imported_sleep
Sync = Callable[[float], Any]


def question(prompt: str) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": prompt}]}


def ask_before_and_after(wait: Sync, url: str | None = None, seconds: float = 0.001) -> float:
    """Send a request, wait, and send another request; return the number of seconds that the agent's clock advanced."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("patient"):
            client.messages.create(**question("before"))
            started = time.monotonic()
            wait(seconds)
            passed = time.monotonic() - started
            client.messages.create(**question("after"))
    return passed


def sleeps(seconds: float) -> None:
    time.sleep(seconds)


def sleeps_by_an_imported_name(seconds: float) -> None:
    imported_sleep(seconds)


def _retried(wait: float, sleep: Callable[[float], None] = time.sleep) -> None:
    sleep(wait)


def sleeps_by_a_default_argument(seconds: float) -> None:
    _retried(seconds)


def retries_with_backoff(seconds: float) -> None:
    """Fail five times and double the wait each time, as `tenacity` and `backoff` do."""
    failures, waits = 5, 2**5 - 1
    for attempt in range(failures + 1):
        try:
            if attempt < failures:
                raise ConnectionError(attempt)
            break
        except ConnectionError:
            time.sleep(seconds * 2**attempt / waits)


def sleeps_in_asyncio(seconds: float) -> None:
    asyncio.run(asyncio.sleep(seconds))


def times_out_in_wait_for(seconds: float) -> None:
    async def main() -> None:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), seconds)
        except TimeoutError:
            return
        raise AssertionError("the timeout did not fire")

    asyncio.run(main())


def times_out_in_a_timeout_block(seconds: float) -> None:
    async def main() -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()
        except TimeoutError:
            return
        raise AssertionError("the timeout did not fire")

    asyncio.run(main())


def schedules_a_call(seconds: float) -> None:
    async def main() -> None:
        called = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, called.set)
        await called.wait()

    asyncio.run(main())


def runs_an_anyio_group(seconds: float) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, seconds)
            group.start_soon(anyio.sleep, seconds / 2)
            with anyio.move_on_after(seconds / 3) as scope:
                await anyio.sleep_forever()
            assert scope.cancelled_caught

    anyio.run(main)


def sleeps_in_a_pool(seconds: float) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(time.sleep, seconds / n) for n in (1, 2, 3, 4)]
        assert [each.result(timeout=2 * seconds) for each in waits] == [None] * 4


def sleeps_in_threads_of_a_loop(seconds: float) -> None:
    async def main() -> None:
        await asyncio.gather(*(asyncio.to_thread(time.sleep, seconds / n) for n in (1, 2)))

    asyncio.run(main())


def polls_a_working_thread(seconds: float) -> None:
    done = threading.Event()

    def work() -> None:
        time.sleep(seconds)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        time.sleep(seconds / 600)
    thread.join()


def polls_until_a_deadline(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(seconds / 60)


def waits_for_an_event(seconds: float) -> None:
    assert not threading.Event().wait(seconds)


def waits_for_a_queue(seconds: float) -> None:
    try:
        queue.Queue[int]().get(timeout=seconds)
    except queue.Empty:
        return
    raise AssertionError("the queue was not empty")


def waits_for_a_timer(seconds: float) -> None:
    timer = threading.Timer(seconds, lambda: None)
    timer.start()
    timer.join()


def joins_with_a_timeout(seconds: float) -> None:
    finished = threading.Event()
    thread = threading.Thread(target=finished.wait)
    thread.start()
    thread.join(seconds)
    assert thread.is_alive()
    finished.set()
    thread.join()


def waits_for_futures(seconds: float) -> None:
    finished = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        unfinished = concurrent.futures.wait([pool.submit(finished.wait)], timeout=seconds).not_done
        finished.set()
    assert len(unfinished) == 1


def holds_a_lock(seconds: float) -> None:
    """Sleep while holding a lock for which another thread waits, as a rate limiter does."""
    lock = threading.Lock()

    def limited() -> None:
        with lock:
            time.sleep(seconds / 3)

    threads = [threading.Thread(target=limited) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


WAITS: list[Sync] = [
    sleeps,
    sleeps_by_an_imported_name,
    sleeps_by_a_default_argument,
    retries_with_backoff,
    sleeps_in_asyncio,
    times_out_in_wait_for,
    times_out_in_a_timeout_block,
    schedules_a_call,
    runs_an_anyio_group,
    sleeps_in_a_pool,
    sleeps_in_threads_of_a_loop,
    polls_a_working_thread,
    polls_until_a_deadline,
    waits_for_an_event,
    waits_for_a_queue,
    waits_for_a_timer,
    joins_with_a_timeout,
    waits_for_futures,
    holds_a_lock,
]


async def asks_in_tasks(url: str | None = None, seconds: float = 0.001) -> list[str]:
    """Send requests in three tasks whose waits end one after the other; return the order of the responses."""
    answered: list[str] = []

    async def one(client: AsyncAnthropic, number: int) -> None:
        await asyncio.sleep(seconds * number)
        await client.messages.create(**question(f"task {number}"))
        answered.append(f"task {number}")

    async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)
        with agentobs.session("tasks"):
            await asyncio.gather(*(one(client, number) for number in (3, 1, 2)))
    return answered
