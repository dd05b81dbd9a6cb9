"""Agents on the plain SDK whose sub-agents send identical requests from tasks, threads and jobs of a pool.

Each agent returns which responses each sub-agent received. Noise means random sleeps between the steps, during
recording and during replay.
"""

from __future__ import annotations

import asyncio
import json
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx2
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import ToolUseBlock
from pydantic import BaseModel

import agentobs
from agentobs.recording.session import start_recorder
from replay import Fixture
from tests.loopback import serving
from tests.provider_script import call, message_events, text
from tests.replay.agents import KEY, MODEL, frozen, last_session

Received = dict[str, Any]


class Provider:
    """A provider that responds to a plan with the requested number of tool calls, and to every other request with a
    unique text.
    """

    def __init__(self, delay_s: float) -> None:
        """Respond after about `delay_s` seconds, and never send two responses at the same time.

        If two responses arrived at the same time, the order in which the agent sees them would depend on chance, and
        the recording would not contain this order.
        """
        self._delay_s, self._lock, self._gap = delay_s, threading.Lock(), threading.Lock()
        self._chance, self._number = random.Random(7), 0

    def answer(self, request: dict[str, Any]) -> bytes:
        with self._lock:
            self._number += 1
            number, delay_s = self._number, self._delay_s * self._chance.uniform(0.5, 1.5)
        last = request["messages"][-1]["content"]
        time.sleep(delay_s)
        with self._gap:
            time.sleep(self._delay_s)
        if isinstance(last, str) and last.startswith("plan "):
            calls = [call(100 * number + each, "dig") for each in range(int(last.split()[1]))]
            return b"".join(message_events(*calls, number=number))
        return b"".join(message_events(text(f"answer {number}"), number=number))


@contextmanager
def serve_provider(delay_s: float) -> Iterator[str]:
    """Serve a provider on the loopback interface, and yield its URL."""
    provider = Provider(delay_s)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = provider.answer(request)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with serving(Handler) as url:
        yield url


@dataclass
class Setting:
    """How an agent runs: the URL of its provider, the number of concurrent threads or tasks, and the length of its
    sleeps.
    """

    url: str | None = None
    width: int = 8
    noise_s: float = 0.0
    changed: str | None = None
    """The sub-agent whose second request differs from the recorded request."""
    chance: random.Random = field(default_factory=random.Random)

    def pause(self) -> None:
        if self.noise_s:
            time.sleep(self.chance.uniform(0, self.noise_s))

    async def nap(self) -> None:
        if self.noise_s:
            await asyncio.sleep(self.chance.uniform(0, self.noise_s))


def ask(client: Any, messages: list[Any]) -> Any:
    with client.messages.stream(model=MODEL, max_tokens=9, messages=messages) as stream:
        return stream.get_final_message()


async def ask_async(client: Any, messages: list[Any]) -> Any:
    async with client.messages.stream(model=MODEL, max_tokens=9, messages=messages) as stream:
        return await stream.get_final_message()


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def dig(setting: Setting, client: Any, changed: bool = False) -> list[str]:
    """Send two requests whose prompts are the same for every sub-agent."""
    received: list[str] = []
    messages: list[Any] = [user("Dig.")]
    for turn in (1, 2):
        setting.pause()
        response_text = ask(client, messages).content[0].text
        setting.pause()
        received.append(response_text)
        more = "Dig elsewhere." if changed and turn == 1 else "Dig deeper."
        messages += [{"role": "assistant", "content": "ok"}, user(more)]
    return received


async def dig_async(setting: Setting, client: Any, changed: bool = False) -> list[str]:
    received: list[str] = []
    messages: list[Any] = [user("Dig.")]
    for turn in (1, 2):
        await setting.nap()
        response_text = (await ask_async(client, messages)).content[0].text
        await setting.nap()
        received.append(response_text)
        more = "Dig elsewhere." if changed and turn == 1 else "Dig deeper."
        messages += [{"role": "assistant", "content": "ok"}, user(more)]
    return received


@contextmanager
def client_of(setting: Setting) -> Iterator[Anthropic]:
    with Anthropic(api_key=KEY, base_url=setting.url, max_retries=0) as client:
        yield agentobs.record(client)


def plan(client: Any, count: int) -> list[ToolUseBlock]:
    return list(ask(client, [user(f"plan {count}")]).content)


# Only a value inside an object distinguishes the sub-agents.


class Model(BaseModel):
    block: Any


@dataclass
class Data:
    block: Any


@dataclass(slots=True)
class Slotted:
    block: Any


class Named(NamedTuple):
    block: Any


class Plain:
    def __init__(self, block: Any) -> None:
        self.block = block


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "block": lambda block: block,
    "model": lambda block: Model(block=block),
    "dataclass": Data,
    "slots": Slotted,
    "named tuple": Named,
    "object": Plain,
    "dict": lambda block: {"call": block},
    "list": lambda block: [block],
    "nested": lambda block: Data(Plain(block)),
    "library": lambda block: httpx2.Request("GET", "http://x.test", extensions={"call": block}),
}


def in_objects(setting: Setting, wrapper: str, order: int = 1) -> Received:
    """Pass each sub-agent an object that contains its tool call, and start the sub-agents in either order."""
    received: Received = {}
    with client_of(setting) as client, agentobs.session("agent"):

        def work(thing: Any) -> list[str]:
            return dig(setting, client)

        calls = plan(client, 3)
        with ThreadPoolExecutor(setting.width) as pool:
            wrapped = [(each.id, WRAPPERS[wrapper](each)) for each in calls][::order]
            jobs = {name: pool.submit(work, thing) for name, thing in wrapped}
            received = {name: job.result() for name, job in jobs.items()}
    return {name: received[name] for name in sorted(received)}


# Only the place in the code distinguishes the sub-agents.


def with_map(setting: Setting) -> Received:
    with client_of(setting) as client, agentobs.session("agent"):
        plan(client, 1)
        with ThreadPoolExecutor(setting.width) as pool:
            found = pool.map(lambda each: dig(setting, client, str(each) == setting.changed), "abc")
            return {"found": list(found)}


def with_submit(setting: Setting) -> Received:
    """Start all sub-agents from one line with identical arguments."""
    with client_of(setting) as client, agentobs.session("agent"):
        plan(client, 1)
        with ThreadPoolExecutor(setting.width) as pool:
            jobs = [pool.submit(dig, setting, client) for _ in range(3)]
            return {"found": [job.result() for job in jobs]}


@dataclass
class Counts:
    """Shared mutable state, which is an argument of every sub-agent."""

    started: int = 0
    last: str = ""
    received: dict[str, str] = field(default_factory=dict)


def with_shared_counts(setting: Setting) -> Received:
    counts = Counts()
    with client_of(setting) as client, agentobs.session("agent"):
        plan(client, 1)

        def work(shared: Counts) -> list[str]:
            setting.pause()
            shared.started += 1
            shared.last = f"agent {shared.started}"
            found = dig(setting, client)
            shared.received[found[0]] = found[1]
            return found

        with ThreadPoolExecutor(setting.width) as pool:
            jobs = [pool.submit(work, counts) for _ in range(3)]
            return {"found": [job.result() for job in jobs]}


def follow(client: Any, found: list[str]) -> str:
    return str(ask(client, [user(f"follow {found[-1]}")]).content[0].text)


def with_as_completed(setting: Setting) -> Received:
    """Continue with each result in the order of completion."""
    with client_of(setting) as client, agentobs.session("agent"):
        plan(client, 1)
        with ThreadPoolExecutor(setting.width) as pool:
            jobs = [pool.submit(dig, setting, client) for _ in range(4)]
            order = [jobs.index(job) for job in futures.as_completed(jobs)]
            found = [follow(client, jobs[each].result()) for each in order]
            return {"order": order, "found": found, "each": [job.result() for job in jobs]}


def with_refining(setting: Setting) -> Received:
    """Submit another job with the same prompt whenever a job ends."""
    with client_of(setting) as client, agentobs.session("agent"):
        calls = plan(client, 3)
        with ThreadPoolExecutor(setting.width) as pool:
            jobs = {pool.submit(dig, setting, client): each.id for each in calls}
            more = {}
            for job in futures.as_completed(jobs):
                more[jobs[job]] = pool.submit(dig, setting, client)
            found = {jobs[job]: job.result() for job in jobs}
            return {name: [found[name], more[name].result()] for name in sorted(found)}


def with_callbacks(setting: Setting) -> Received:
    with client_of(setting) as client, agentobs.session("agent"):
        plan(client, 1)
        order: list[int] = []
        with ThreadPoolExecutor(setting.width) as pool:
            for number in range(3):
                job = pool.submit(dig, setting, client)
                job.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
        found = ask(client, [user(f"They ended as {order}.")])
        return {"order": order, "found": found.content[0].text}


def with_wait(setting: Setting) -> Received:
    """Send another request as soon as the first job has ended."""
    with client_of(setting) as client, agentobs.session("agent"):
        plan(client, 1)
        with ThreadPoolExecutor(setting.width) as pool:
            jobs = [pool.submit(dig, setting, client) for _ in range(3)]
            done, _ = futures.wait(jobs, return_when=futures.FIRST_COMPLETED)
            first = min(jobs.index(each) for each in done)
            more = follow(client, jobs[first].result())
            return {"first": first, "more": more, "each": [job.result() for job in jobs]}


def with_threads(setting: Setting) -> Received:
    received: Received = {}
    with client_of(setting) as client, agentobs.session("agent"):
        plan(client, 1)
        room = threading.Semaphore(setting.width)

        def work(number: int) -> None:
            with room:
                received[str(number)] = dig(setting, client)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    return {name: received[name] for name in sorted(received)}


def with_queue(setting: Setting) -> Received:
    """Start workers that take jobs from one queue."""
    received: Received = {}
    waiting: queue.Queue[ToolUseBlock] = queue.Queue()
    with client_of(setting) as client, agentobs.session("agent"):
        for each in plan(client, 4):
            waiting.put(each)

        def worker() -> None:
            while True:
                setting.pause()
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                received[job.id] = dig(setting, client)

        threads = [threading.Thread(target=worker) for _ in range(min(setting.width, 2))]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    return {name: received[name] for name in sorted(received)}


# The same agents with asyncio.


def run_async(setting: Setting, main: Callable[[Any], Any]) -> Received:
    async def run() -> Received:
        async with AsyncAnthropic(api_key=KEY, base_url=setting.url, max_retries=0) as client:
            agentobs.record(client)
            with agentobs.session("agent"):
                await ask_async(client, [user("plan 1")])
                found: Received = await main(client)
                return found

    return asyncio.run(run())


def limited(setting: Setting) -> Callable[[Any], Any]:
    """Return a sub-agent whose concurrency is limited by a semaphore, first come, first served."""
    room = asyncio.Semaphore(setting.width)

    async def work(client: Any) -> list[str]:
        async with room:
            return await dig_async(setting, client)

    return work


def with_gather(setting: Setting) -> Received:
    async def main(client: Any) -> Received:
        work = limited(setting)
        return {"found": await asyncio.gather(*(work(client) for _ in range(3)))}

    return run_async(setting, main)


def with_task_group(setting: Setting) -> Received:
    async def main(client: Any) -> Received:
        work = limited(setting)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(client)) for _ in range(3)]
        return {"found": [task.result() for task in tasks]}

    return run_async(setting, main)


def with_anyio(setting: Setting) -> Received:
    async def main(client: Any) -> Received:
        work, received = limited(setting), {}

        async def keep(number: int) -> None:
            received[str(number)] = await work(client)

        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(keep, number)
        return {name: received[name] for name in sorted(received)}

    return run_async(setting, main)


def with_async_as_completed(setting: Setting) -> Received:
    async def main(client: Any) -> Received:
        work, found = limited(setting), []
        for each in asyncio.as_completed([work(client) for _ in range(3)]):
            received = await each
            found.append(
                [received, (await ask_async(client, [user(f"follow {received}")])).content[0].text]
            )
        return {"found": found}

    return run_async(setting, main)


def with_to_thread(setting: Setting) -> Received:
    """Start tasks that send their requests in threads."""

    async def run() -> Received:
        with client_of(setting) as client, agentobs.session("agent"):
            plan(client, 1)
            room = asyncio.Semaphore(setting.width)

            async def work() -> list[str]:
                async with room:
                    return await asyncio.to_thread(dig, setting, client)

            return {"found": await asyncio.gather(*(work() for _ in range(3)))}

    return asyncio.run(run())


def with_anyio_threads(setting: Setting) -> Received:
    async def run() -> Received:
        received: Received = {}
        with client_of(setting) as client, agentobs.session("agent"):
            plan(client, 1)

            async def work(number: int) -> None:
                received[str(number)] = await anyio.to_thread.run_sync(dig, setting, client)

            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(work, number)
        return {name: received[name] for name in sorted(received)}

    return anyio.run(run)


def with_async_queue(setting: Setting) -> Received:
    async def main(client: Any) -> Received:
        waiting: asyncio.Queue[str] = asyncio.Queue()
        received: Received = {}

        async def worker() -> None:
            while True:
                name = await waiting.get()
                await setting.nap()
                received[name] = await dig_async(setting, client)
                waiting.task_done()

        for name in "abcd":
            waiting.put_nowait(name)
        workers = [asyncio.create_task(worker()) for _ in range(min(setting.width, 2))]
        await waiting.join()
        for each in workers:
            each.cancel()
        return {name: received[name] for name in sorted(received)}

    return run_async(setting, main)


AGENTS: dict[str, Callable[[Setting], Received]] = {
    **{f"in a {name}": partial(in_objects, wrapper=name) for name in WRAPPERS},
    **{
        each.__name__: each
        for each in (
            with_map, with_submit, with_shared_counts,
            with_as_completed, with_refining, with_callbacks, with_wait, with_threads,
            with_queue, with_gather, with_task_group, with_anyio, with_async_as_completed, with_to_thread,
            with_anyio_threads, with_async_queue,
        )
    },
}  # fmt: skip


def recorded_agent(
    tmp_path: Path, agent: Callable[[Setting], Received], *, overlaps: bool, noise_s: float = 0.0
) -> tuple[Fixture, Received]:
    """Record an agent whose sub-agents run concurrently or one after the other; return its fixture and its results."""
    home = tmp_path / "home"
    agentobs.stop_recorder()
    with serve_provider(0.02 if overlaps else 0.0) as url:
        start_recorder(str(home))
        try:
            received = agent(Setting(url, width=8 if overlaps else 1, noise_s=noise_s))
        finally:
            assert agentobs.stop_recorder()
    return frozen(tmp_path, last_session(home), "agent"), received
