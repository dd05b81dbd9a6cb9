"""Callers: how a replay distinguishes identical concurrent requests that received different responses."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import inspect
import random
import select
import socket
import sys
import threading
import tracemalloc
import uuid
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic

import agentobs
from agentobs import runtime
from agentobs.determinism import callers
from agentobs.recording.session import start_recorder
from agentobs.recording.wire import transport
from agentobs.records.exchanges import Answer, Origin, Place, Question
from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from replay.playback import completion_order
from tests.marks import mark_all_but_first
from tests.provider_script import call, streamed, text
from tests.replay.agents import KEY, MODEL, frozen, recorded
from tests.replay.overlapping_requests import record_overlapping

QUESTION: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Find something."}],
}
Received = dict[str, str]
"""The responses of each sub-agent, by its name."""


class Crew:
    """Sub-agents that all send the same request; the request does not contain their names."""

    def __init__(self, client: AsyncAnthropic) -> None:
        self.client = agentobs.record(client)
        self.received: Received = {}

    async def explore(self, name: str) -> str:
        async with self.client.messages.stream(**QUESTION) as stream:
            self.received[name] = await stream.get_final_text()
        return name

    async def ask_twice(self, name: str) -> None:
        """Send a request, and then a request that continues from its response."""
        await self.explore(name)
        reply = {"role": "assistant", "content": self.received[name]}
        messages = [*QUESTION["messages"], reply, {"role": "user", "content": "And then?"}]
        async with self.client.messages.stream(**{**QUESTION, "messages": messages}) as stream:
            self.received[name] += ", " + await stream.get_final_text()


async def gather(crew: Crew, names: Sequence[str]) -> None:
    await asyncio.gather(*(crew.explore(name) for name in names))


async def gather_twice(crew: Crew, names: Sequence[str]) -> None:
    await asyncio.gather(*(crew.ask_twice(name) for name in names))


async def task_group(crew: Crew, names: Sequence[str]) -> None:
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(crew.explore(name))


async def as_completed(crew: Crew, names: Sequence[str]) -> None:
    for each in asyncio.as_completed([crew.explore(name) for name in names]):
        await each


async def anyio_group(crew: Crew, names: Sequence[str]) -> None:
    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(crew.explore, name)


async def closures(crew: Crew, names: Sequence[str]) -> None:
    """Start functions without arguments that use names of the enclosing scope."""

    def explore_of(name: str) -> Callable[[], Awaitable[str]]:
        async def explore() -> str:
            async with crew.client.messages.stream(**QUESTION) as stream:
                crew.received[name] = await stream.get_final_text()
            return name

        return explore

    await asyncio.gather(*(explore_of(name)() for name in names))


class Explorer:
    """A sub-agent that has its name as an attribute."""

    def __init__(self, crew: Crew, name: str) -> None:
        self.crew, self.name = crew, name

    async def run(self) -> None:
        async with self.crew.client.messages.stream(**QUESTION) as stream:
            self.crew.received[self.name] = await stream.get_final_text()


async def objects(crew: Crew, names: Sequence[str]) -> None:
    await asyncio.gather(*(Explorer(crew, name).run() for name in names))


async def nested(crew: Crew, names: Sequence[str]) -> None:
    """Start two groups inside a group; in each of the two, one agent starts the others."""

    async def lead(pair: Sequence[str]) -> None:
        async with asyncio.TaskGroup() as inner:
            for name in pair:
                inner.create_task(crew.explore(name))

    half = len(names) // 2
    async with asyncio.TaskGroup() as outer:
        outer.create_task(lead(names[:half]))
        outer.create_task(lead(names[half:]))


STARTERS = (gather, task_group, as_completed, anyio_group, closures, objects, nested)
NAMES = ("ann", "bob", "cid", "dan")
ORDERS = (NAMES, NAMES[::-1], ("cid", "ann", "dan", "bob"))


def run_crew(start: Any, names: Sequence[str], url: str | None = None) -> Received:
    """Run a crew in a session, and return the responses by name."""

    async def run() -> Received:
        async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            crew = Crew(client)
            with agentobs.session("crew"):
                await start(crew, names)
        return crew.received

    return asyncio.run(run())


def recorded_crew(
    tmp_path: Path, start: Any, names: Sequence[str], rounds: int = 1
) -> tuple[Fixture, Received]:
    received: list[Received] = []
    backwards = [*range(len(names), 0, -1)]
    run = record_overlapping(
        tmp_path, lambda url: received.append(run_crew(start, names, url)), [backwards] * rounds
    )
    return frozen(tmp_path, run, "crew"), received[0]


def test_sub_agents_in_swapped_order_receive_their_own_responses(tmp_path: Path) -> None:
    """Two sub-agents that start in the opposite order each receive their own responses, and continue with these
    responses.
    """
    fixture, received = recorded_crew(tmp_path, gather_twice, NAMES[:2], rounds=2)
    assert len(set(received.values())) == 2
    for names in (NAMES[:2], NAMES[1::-1]):
        with Replayer(fixture) as replay:
            assert replay.run(run_crew, gather_twice, names) == received


@pytest.mark.parametrize(
    "start", mark_all_but_first(STARTERS, pytest.mark.slow), ids=lambda start: start.__name__
)
def test_sub_agents_receive_their_own_responses_however_they_start(
    tmp_path: Path, start: Any
) -> None:
    """Four sub-agents each receive their own response, however and in whatever order they are started."""
    fixture, received = recorded_crew(tmp_path, start, NAMES)
    assert len(set(received.values())) == 4
    for names in ORDERS:
        with Replayer(fixture) as replay:
            assert replay.run(run_crew, start, names) == received


def in_threads(names: Sequence[str], url: str | None = None) -> Received:
    """Run sub-agents on a synchronous client in a thread pool."""
    received: Received = {}
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)

        def explore(name: str) -> None:
            with client.messages.stream(**QUESTION) as stream:
                received[name] = stream.get_final_text()

        with agentobs.session("threads"), ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(explore, names))
    return received


@pytest.mark.slow
def test_threads_of_a_pool_receive_their_own_responses(tmp_path: Path) -> None:
    """Threads of a pool with a synchronous client are distinguished in the same way as tasks."""
    received: list[Received] = []
    run = record_overlapping(
        tmp_path, lambda url: received.append(in_threads(NAMES, url)), [[3, 1, 4, 2]]
    )
    fixture = frozen(tmp_path, run, "threads")
    assert len(set(received[0].values())) == 4
    for names in ORDERS:
        with Replayer(fixture) as replay:
            assert replay.run(in_threads, names) == received[0]


def test_tasks_of_libraries_do_not_affect_callers(tmp_path: Path) -> None:
    """A recording over sockets replays in memory, because tasks of libraries are neither identified nor counted."""
    fixture, received = recorded_crew(tmp_path, nested, NAMES)
    assert fixture.lanes == ["main"]
    with Replayer(fixture) as replay:
        assert replay.run(run_crew, nested, NAMES) == received
    assert {each.place.lane for each in replay.records if hasattr(each, "place")} == {"main"}


def lead(order: Sequence[int], url: str | None = None) -> list[str]:
    """Start a sub-agent for each of two tool calls, one after the other; return their responses."""
    texts: dict[int, str] = {}
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client, agentobs.session("lead"):
        agentobs.record(client)

        def ask(*messages: Any) -> Any:
            return client.messages.create(model=MODEL, max_tokens=9, messages=messages, stream=True)

        def work(number: int) -> None:
            messages = [{"role": "user", "content": f"Dig {number}"}]
            for turn in (1, 2):
                text_now = whole_text(ask(*messages))
                messages += [
                    {"role": "assistant", "content": text_now},
                    {"role": "user", "content": f"More {turn}"},
                ]
            texts[number] = text_now

        whole_text(ask({"role": "user", "content": "Plan"}))
        for number in order:
            work(number)
    return [texts[number] for number in sorted(texts)]


def whole_text(stream: Any) -> str:
    return "".join(
        e.delta.text for e in stream if e.type == "content_block_delta" and hasattr(e.delta, "text")
    )


def test_sequential_sub_agents_of_one_response_may_run_in_any_order(tmp_path: Path) -> None:
    """Sub-agents for the tool calls of one response may run in any order, although they ran one after the other."""
    plan = streamed(call(1, "dig", where="a"), call(2, "dig", where="b"), number=1)
    responses = [
        plan,
        *(streamed(text(f"found {number}"), number=number) for number in (2, 3, 4, 5)),
    ]
    results: list[list[str]] = []
    run = recorded(tmp_path, lambda url: results.append(lead((1, 2), url)), responses)
    fixture = frozen(tmp_path, run, "lead")
    for order in ((1, 2), (2, 1)):
        with Replayer(fixture) as replay:
            assert replay.run(lead, order) == results[0] == ["found 3", "found 5"]


class Referenced:
    """An object that the caller references."""


def test_arguments_are_not_kept_alive() -> None:
    """Reading the arguments of functions keeps no argument alive, and does not change what the functions see."""
    client = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200)))
    transport.instrument(client, lambda: Place("0" * 32))

    def ask(number: int) -> dict[str, object]:
        seen = locals()
        seen["more"] = number
        client.post("http://nowhere.test", json={})
        return dict(seen)

    with runtime.replaced(answerer=lambda question, place: Answer(200, {}, (), "complete")):
        assert ask(1).items() >= {"number": 1, "more": 1}.items()

        def weak_reference(referenced: Referenced | None) -> object:
            held = weakref.ref(referenced)
            client.post("http://nowhere.test", json={})
            referenced = None
            return held()

        reference = weak_reference(Referenced())
        assert reference is None


def test_a_session_does_not_keep_arguments_alive(tmp_path: Path) -> None:
    """Reading the arguments of the function that opens a session keeps no argument alive."""
    start_recorder(str(tmp_path / "home"))

    def weak_reference(referenced: Referenced) -> object:
        held = weakref.ref(referenced)
        with agentobs.session("agent"):
            del referenced
            return held()

    reference = weak_reference(Referenced())
    assert reference is None


def test_a_class_whose_body_opens_a_session_keeps_its_names(tmp_path: Path) -> None:
    """A class body may open a session: its namespace is not modified, although its `locals()` is not a copy."""
    start_recorder(str(tmp_path / "home"))

    class Agent:
        name = "ann"
        with agentobs.session("agent"):
            tool = "dig"

    assert (Agent.name, Agent.tool) == ("ann", "dig")


def ask_with_locals(client: httpx2.Client, question: str) -> dict[str, object]:
    """Send a request in a function that holds its own `locals()`."""
    held = locals()
    held.pop("client")
    client.post("http://nowhere.test", json=held)
    return held


def ask_in_a_nested_call(client: httpx2.Client, question: str) -> dict[str, object]:
    """Send a request in a function whose caller stores its own `locals()`."""
    held = vars()
    held.pop("client")
    ask_once(client)
    return held


def ask_in_eval(client: httpx2.Client, question: str) -> dict[str, object]:
    held: dict[str, object] = eval("locals()")
    held.pop("client")
    ask_once(client)
    return held


def ask_with_frame_locals(client: httpx2.Client, question: str) -> dict[str, object]:
    frame = inspect.currentframe()
    held = dict(frame.f_locals) if sys.version_info >= (3, 13) else frame.f_locals  # type: ignore[union-attr]
    held.pop("client")
    ask_once(client)
    return held


def ask_once(client: httpx2.Client) -> None:
    client.post("http://nowhere.test", json={})


@pytest.mark.parametrize(
    "ask",
    [ask_with_locals, ask_in_a_nested_call, ask_in_eval, ask_with_frame_locals],
    ids=lambda ask: ask.__name__,
)
def test_a_request_keeps_a_modified_locals_dict(ask: Any) -> None:
    """A modified `locals()` dict that a function holds is unchanged after a request."""
    client = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200)))
    transport.instrument(client, lambda: Place("0" * 32))
    with runtime.replaced(answerer=lambda question, place: Answer(200, {}, (), "complete")):
        held = ask(client, "hi")
    assert "client" not in held
    assert held["question"] == "hi"


def open_session(question: str, held_value: object) -> dict[str, object]:
    held = locals()
    held.pop("held_value")
    with agentobs.session("held"):
        pass
    return held


def test_a_session_keeps_a_modified_locals_dict(tmp_path: Path) -> None:
    """A modified `locals()` dict that a function holds is unchanged after the function has opened a session."""
    agentobs.stop_recorder()
    start_recorder(str(tmp_path / "home"))
    try:
        held = open_session("hi", object())
    finally:
        assert agentobs.stop_recorder()
    assert "held_value" not in held


class Settings:
    """A large object that all agents share."""

    def __init__(self, size: int) -> None:
        self.__dict__.update({f"setting_{number}": number for number in range(size)})


def origin_of(ask: Callable[[httpx2.Client], object]) -> Origin:
    """Return the recorded caller of a request."""
    client = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200)))
    transport.instrument(client, lambda: Place("0" * 32))
    received: list[Origin | None] = []

    def answer(question: Question, place: Place) -> Answer:
        received.append(question.origin)
        return Answer(200, {}, (), "complete")

    with runtime.replaced(answerer=answer):
        ask(client)
    assert received[0] is not None
    return received[0]


def test_large_arguments_are_never_copied() -> None:
    """Identifying the caller takes no more memory for an argument with a million keys than for an empty argument."""
    large = dict.fromkeys(range(1_000_000), "")

    def ask(client: httpx2.Client, large: dict[int, str]) -> int:
        tracemalloc.start()
        try:
            ask_once(client)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    most: list[int] = []
    for arguments in ({}, large):
        origin_of(lambda client, arguments=arguments: most.append(ask(client, arguments)))  # type: ignore[misc]
    assert most[1] < most[0] + 1_000_000


def test_an_object_is_described_once() -> None:
    """An object that is passed through several functions is described once, so the outermost function's arguments still
    fit within the limit.
    """
    shared = Settings(20)

    def down(client: httpx2.Client, shared: Settings, depth: int) -> None:
        down(client, shared, depth - 1) if depth else ask_once(client)

    def lead(client: httpx2.Client, name: str) -> None:
        down(client, shared, 3)

    values = origin_of(lambda client: lead(client, "ann")).values
    assert [each[1] for each in values].count("shared.setting_0") == 1
    assert "ann" in [each[2] for each in values]
    settings = [Settings(500), Settings(500)]
    many = origin_of(lambda client: down(client, settings, 3)).values  # type: ignore[arg-type]
    assert len([each for each in many if each[0] != "context"]) == callers.VALUES_MAX


@pytest.mark.slow
def test_a_very_large_number_is_ignored(tmp_path: Path) -> None:
    """An argument with more digits than Python can print does not identify a caller, and does not break the request."""
    fixture, received = recorded_crew(tmp_path, numbered, NAMES[:2])
    with Replayer(fixture) as replay:
        assert replay.run(run_crew, numbered, NAMES[1::-1]) == received


async def numbered(crew: Crew, names: Sequence[str]) -> None:
    async def explore(name: str, number: int) -> None:
        await crew.explore(name)

    await asyncio.gather(*(explore(name, 10**5000) for name in names))


async def plan_and_act(order: Sequence[str], url: str | None = None) -> list[str]:
    """Send a request, then two concurrent requests, then several in order; everything except the two runs in one
    task.
    """
    async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)

        async def ask(prompt: str) -> str:
            messages: list[Any] = [{"role": "user", "content": prompt}]
            async with client.messages.stream(
                model=MODEL, max_tokens=9, messages=messages
            ) as stream:
                return await stream.get_final_text()

        with agentobs.session("plan"):
            plan = await ask("plan")
            first = await asyncio.gather(*(ask(each) for each in order[:2]))
            return [plan, *first, *[await ask(each) for each in order[2:]]]


def in_tasks(order: Sequence[str], url: str | None = None) -> list[str]:
    return asyncio.run(plan_and_act(order, url))


def in_main_thread(order: Sequence[str], url: str | None = None) -> list[str]:
    """Do the same as `plan_and_act` with a synchronous client, and a pool for the concurrent requests."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)

        def ask(prompt: str) -> str:
            messages: list[Any] = [{"role": "user", "content": prompt}]
            with client.messages.stream(model=MODEL, max_tokens=9, messages=messages) as stream:
                return stream.get_final_text()

        with agentobs.session("plan"), ThreadPoolExecutor(2) as pool:
            plan = ask("plan")
            first = list(pool.map(ask, order[:2]))
            return [plan, *first, *map(ask, order[2:])]


def in_other_thread(order: Sequence[str], url: str | None = None) -> list[str]:
    """Do the same as `in_main_thread` in a separate thread, which opens the session."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(in_main_thread, order, url).result()


PLANNED = ("a", "b", "check", "send")


@pytest.mark.slow
@pytest.mark.parametrize(
    "run", [in_tasks, in_main_thread, in_other_thread], ids=lambda run: run.__name__
)
def test_sequential_requests_of_one_caller_keep_their_order(tmp_path: Path, run: Any) -> None:
    """Sequential requests of one task or thread keep their order even if other requests of the lane overlapped."""
    recording = record_overlapping(tmp_path, lambda url: run(PLANNED, url), [[1], [1, 2], [1], [1]])
    fixture = frozen(tmp_path, recording, "plan")
    for order in (PLANNED, ("b", "a", "check", "send")):
        with Replayer(fixture) as replay:
            replay.run(run, order)
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(run, ("a", "b", "send", "check"))
    assert raised.value.divergence.kind == "order"


def shared_jobs(order: Sequence[str], url: str | None = None) -> list[str]:
    """Send two concurrent requests, and then run jobs in one thread of a pool."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)

        def ask(prompt: str) -> str:
            messages: list[Any] = [{"role": "user", "content": prompt}]
            with client.messages.stream(model=MODEL, max_tokens=9, messages=messages) as stream:
                return stream.get_final_text()

        with (
            agentobs.session("jobs"),
            ThreadPoolExecutor(2) as two,
            ThreadPoolExecutor(1) as one,
        ):
            at_once, in_turn = two.map(ask, order[:2]), one.map(ask, order[2:])
            return sorted([*at_once, *in_turn])


@pytest.mark.slow
def test_jobs_of_one_pool_thread_may_run_in_any_order(tmp_path: Path) -> None:
    """Jobs that ran one after the other in one thread of a pool may send their requests in any order."""
    received: list[Any] = []
    order = ("a", "b", "c", "d")
    recording = record_overlapping(
        tmp_path, lambda url: received.append(shared_jobs(order, url)), [[1, 2, 3], [1]]
    )
    fixture = frozen(tmp_path, recording, "jobs")
    for jobs in (order, ("b", "a", "d", "c")):
        with Replayer(fixture) as replay:
            assert replay.run(shared_jobs, jobs) == received[0]


@contextmanager
def polling_thread() -> Iterator[None]:
    """Run a thread that repeatedly waits for sockets, like a server that a test has started."""
    here, there = socket.socketpair()
    is_over = threading.Event()

    def wait() -> None:
        select.select([here], [], [], 0.05)

    def poll() -> None:
        while not is_over.is_set():
            wait()
            select.select([here], [], [], 0.05)

    with here, there, ThreadPoolExecutor(1) as pool:
        pool.submit(poll)
        yield
        is_over.set()


@pytest.mark.slow
def test_a_foreign_thread_does_not_block_a_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response that waits in vain for another request is released after a pause, even if a thread outside of the
    agent keeps polling.
    """
    received: list[Any] = []
    order = ("a", "b", "c", "d")
    recording = record_overlapping(
        tmp_path, lambda url: received.append(shared_jobs(order, url)), [[1, 2, 3], [1]]
    )
    fixture = frozen(tmp_path, recording, "jobs")
    monkeypatch.setattr(completion_order, "PAUSES_SECONDS", 0.05)
    with polling_thread(), Replayer(fixture, ReplayOptions(deadline_seconds=8)) as replay:
        assert replay.run(shared_jobs, ("b", "a", "d", "c")) == received[0]


@contextmanager
def idle_threads(count: int) -> Iterator[None]:
    """Run threads that wait for sockets until the context closes, as in a large test run."""
    here, there = socket.socketpair()
    threads = [threading.Thread(target=here.recv, args=(1,)) for _ in range(count)]
    with here, there:
        for each in threads:
            each.start()
        yield
        there.shutdown(socket.SHUT_RDWR)
        for each in threads:
            each.join()


@pytest.mark.slow
def test_many_idle_threads_do_not_block_a_response(tmp_path: Path) -> None:
    """A response that waits in vain for another request is released even if the process has hundreds of threads, whose
    check takes longer than the pause between two checks of the response.
    """
    received: list[Any] = []
    order = ("a", "b", "c", "d")
    recording = record_overlapping(
        tmp_path, lambda url: received.append(shared_jobs(order, url)), [[1, 2, 3], [1]]
    )
    fixture = frozen(tmp_path, recording, "jobs")
    with idle_threads(300), Replayer(fixture) as replay:
        assert replay.run(shared_jobs, ("b", "a", "d", "c")) == received[0]


def one_context(order: Sequence[str], url: str | None = None) -> list[str]:
    """Start tasks that share one context."""

    async def run() -> list[str]:
        async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            agentobs.record(client)

            async def ask(prompt: str) -> str:
                messages: list[Any] = [{"role": "user", "content": prompt}]
                async with client.messages.stream(
                    model=MODEL, max_tokens=9, messages=messages
                ) as stream:
                    return await stream.get_final_text()

            with agentobs.session("context"):
                context, loop = contextvars.copy_context(), asyncio.get_running_loop()
                tasks = [loop.create_task(ask(each), context=context) for each in order]
                return sorted(await asyncio.gather(*tasks))

    return asyncio.run(run())


@pytest.mark.slow
def test_tasks_of_one_context_may_run_in_any_order(tmp_path: Path) -> None:
    """Concurrent tasks that share one context may send their requests in any order."""
    received: list[list[str]] = []
    recording = record_overlapping(
        tmp_path, lambda url: received.append(one_context("abc", url)), [[1, 2, 3]]
    )
    fixture = frozen(tmp_path, recording, "context")
    for order in ("abc", "cba"):
        with Replayer(fixture) as replay:
            assert replay.run(one_context, order) == received[0]


def test_a_fixture_contains_short_prefixes_of_argument_digests(tmp_path: Path) -> None:
    """A fixture contains only a short prefix of each argument's digest, which many other possible values share."""
    fixture, _ = recorded_crew(tmp_path, gather, NAMES[:2])
    digests = [each for ask in fixture.requests for each in ask.caller or ()]
    assert digests
    for each in digests:
        assert len(each.partition(".")[2]) <= 4
    tried = tuple(("Crew.explore", "name", f"{pin:04}") for pin in range(5000))
    names = {callers.digests(Origin("0", (each,), None))[0].partition(".")[0] for each in tried}
    for each in [each for each in digests if each.partition(".")[0] in names]:
        found = [one for one in callers.digests(Origin("0", tried, None)) if one.startswith(each)]
        assert len(found) > 4


def test_digests_of_old_fixtures_are_matched() -> None:
    """Older fixtures, which have a single digest for a name and its value, still match."""
    origin = Origin("0", (("explore", "name", "ann"), ("lead", "", None)), None)
    old = hashlib.blake2b(b"explore name='ann'", digest_size=4).hexdigest()
    other = hashlib.blake2b(b"explore name='bob'", digest_size=4).hexdigest()
    assert callers.matching_digests((old, other), origin) == {old}
    new = callers.digests(origin)
    short = callers.shortened_digests(
        [*new, *callers.digests(Origin("1", (("explore", "name", "bob"),), None))]
    )
    assert all(len(each) < len(full) for full, each in short.items())
    assert callers.matching_digests(short.values(), origin) == {short[each] for each in new}


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("0b6c1f0e9a2d4c7f8b3e5a1d2c4f6e8a", 3),
        ("637c6999-ecdb-4701-887e-0b7195130581", 3),
        ("toolu_01AbC3xYz9QwE12rt", 3),
        ("9f86d081884c7d65", 3),
        (uuid.UUID("637c6999-ecdb-4701-887e-0b7195130581"), 3),
        (1763849123.25, 1),
        (4155550123, 1),
        ("4155550123", 1),
        ("415-555-0123", 1),
        ("ada-415-555-0123", 1),
        ("4111-1111-1111-1111", 1),
        ("1763849123250000000", 1),
        ("2026-11-23", 1),
        ("2026-11-23-042011", 1),
        ("2026-11-23T04:20:11.123456+00:00", 1),
        ("20261123T042011Z", 1),
        ("backup20261123T042011Zdone", 1),
        (1234, 1),
        ("ann", 1),
        ("john.smith@example.com", 1),
        ("192.168.100.100", 1),
        ("customer_order_2024", 1),
        ("well-known-and-long-words", 1),
    ],
)
def test_random_values_keep_a_longer_prefix(value: Any, size: int) -> None:
    """Of the digest of a random ID, three bytes are kept, so that IDs never match by chance; of a guessable value, one
    byte.
    """
    [full] = callers.digests(Origin("0", (("explore", "value", value),), None))
    [other] = callers.digests(Origin("1", (("explore", "value", "bob"),), None))
    short = callers.shortened_digests([full, other])[full]
    assert len(short.partition(".")[2]) == 2 * size
    assert callers.matching_digests([short], Origin("2", (("explore", "value", value),), None)) == {
        short
    }


def test_random_ids_are_recognized() -> None:
    """IDs are recognized as random even if digits and letters rarely alternate in them."""
    chance = random.Random(7)
    ids = [str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(1000)]
    full_digests = [callers.digests(Origin("0", (("f", "id", each),), None))[0] for each in ids]
    sizes = [
        len(callers.shortened_digests([full])[full].partition(".")[2]) for full in full_digests
    ]
    assert set(sizes) == {6}


async def with_new_ids(crew: Crew, names: Sequence[str]) -> None:
    """Start agents whose inner function receives an ID that is new in each run."""

    async def attempt(request_id: str) -> str:
        async with crew.client.messages.stream(**QUESTION) as stream:
            return await stream.get_final_text()

    async def explore(name: str) -> None:
        crew.received[name] = await attempt(uuid.uuid4().hex)

    await asyncio.gather(*map(explore, names))


@pytest.mark.slow
def test_random_ids_do_not_match_by_chance(tmp_path: Path) -> None:
    """Each of twelve agents receives its own response even if the argument nearest to the request is a random ID."""
    names = [f"agent-{number}" for number in range(12)]
    fixture, received = recorded_crew(tmp_path, with_new_ids, names)
    for _ in range(10):
        with Replayer(fixture) as replay:
            assert replay.run(run_crew, with_new_ids, names) == received


async def with_secrets(crew: Crew, names: Sequence[str]) -> None:
    """Start agents whose prompts differ only in a secret."""

    async def explore(name: str) -> None:
        messages = [{"role": "user", "content": f"Log in with ghp_{name[0] * 36}."}]
        async with crew.client.messages.stream(**{**QUESTION, "messages": messages}) as stream:
            crew.received[name] = await stream.get_final_text()

    await asyncio.gather(*map(explore, names))


@pytest.mark.slow
def test_prompts_that_differ_in_a_secret_are_distinguished(tmp_path: Path) -> None:
    """Concurrent prompts that differ only in a secret, which is not recorded, are distinguished by the arguments of
    functions.
    """
    fixture, received = recorded_crew(tmp_path, with_secrets, NAMES[:3])
    for names in (NAMES[:3], NAMES[2::-1], (NAMES[1], NAMES[0], NAMES[2])):
        with Replayer(fixture) as replay:
            assert replay.run(run_crew, with_secrets, names) == received
        assert not replay.suspicions


async def with_secrets_alone(crew: Crew, names: Sequence[str]) -> None:
    """Start agents that differ only in a secret."""

    waiting = iter(names)

    async def explore() -> None:
        name = next(waiting)
        messages = [{"role": "user", "content": f"Log in with ghp_{name[0] * 36}."}]
        async with crew.client.messages.stream(**{**QUESTION, "messages": messages}) as stream:
            crew.received[name] = await stream.get_final_text()

    # For tasks that are created this way, the order of creation is unknown.
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(asyncio.Task(explore(), loop=loop) for _ in names))


def test_a_guess_between_secrets_is_reported(tmp_path: Path) -> None:
    """Requests that differ only in a secret are matched by their order, and a note reports this."""
    fixture, _ = recorded_crew(tmp_path, with_secrets_alone, NAMES[:2])
    with Replayer(fixture) as replay:
        replay.run(run_crew, with_secrets_alone, NAMES[1::-1])
    [suspicion] = replay.suspicions
    assert "matched only by its position: requests 1 and 2 are identical" in suspicion.text
    assert "agentobs.span" in suspicion.text


def by_gateway(waits: dict[str, float], url: str | None = None) -> Received:
    """Let one task send the requests of two agents, one request at a time."""

    async def run() -> Received:
        async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            agentobs.record(client)
            pending: asyncio.Queue[tuple[Any, asyncio.Future[str]]] = asyncio.Queue()

            async def gateway() -> None:
                while True:
                    messages, response = await pending.get()
                    async with client.messages.stream(
                        **{**QUESTION, "messages": messages}
                    ) as stream:
                        response.set_result(await stream.get_final_text())

            async def agent(name: str) -> str:
                messages = [{"role": "user", "content": f"I am {name}."}]
                for _ in range(3):
                    response = asyncio.get_running_loop().create_future()
                    pending.put_nowait((list(messages), response))
                    messages.append({"role": "assistant", "content": await response})
                    messages.append({"role": "user", "content": "And then?"})
                    await asyncio.sleep(waits.get(name, 0))
                return messages[-2]["content"]

            with agentobs.session("gateway"):
                serving = asyncio.create_task(gateway())
                received = await asyncio.gather(*map(agent, "AB"))
                serving.cancel()
            return dict(zip("AB", received, strict=True))

    return asyncio.run(run())


@pytest.mark.slow
def test_agents_that_share_a_sending_task_are_independent(tmp_path: Path) -> None:
    """If one task sends the requests of two agents, each agent keeps its own order, and the order between them is
    arbitrary.
    """
    received: list[Received] = []
    responses = [streamed(text(f"answer {number}")) for number in range(6)]
    recording = recorded(tmp_path, lambda url: received.append(by_gateway({}, url)), responses)
    fixture = frozen(tmp_path, recording, "gateway")
    for waits in ({}, {"A": 0.1}, {"B": 0.1}):
        with Replayer(fixture) as replay:
            assert replay.run(by_gateway, waits) == received[0]


def send_concurrently(prompts: Sequence[str], url: str | None = None) -> None:
    """Send several requests concurrently."""

    async def run() -> None:
        async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            agentobs.record(client)

            async def ask(prompt: str) -> str:
                messages = [{"role": "user", "content": prompt}]
                async with client.messages.stream(**{**QUESTION, "messages": messages}) as stream:
                    return await stream.get_final_text()

            with agentobs.session("at-once"):
                await asyncio.gather(*map(ask, prompts))

    asyncio.run(run())


def test_a_changed_request_is_compared_with_the_most_similar_one(tmp_path: Path) -> None:
    """A changed concurrent request is compared with the most similar recorded request, whatever the order of completion
    was.
    """
    prompts = ["Translate the report.", "Count the words of chapter four.", "Draw a map."]
    recording = record_overlapping(
        tmp_path, lambda url: send_concurrently(prompts, url), [[2, 3, 1]]
    )
    fixture = frozen(tmp_path, recording, "at-once")
    changed = ["Count the words of chapter five.", *prompts]
    with pytest.raises(DivergenceError) as diverged, Replayer(fixture) as replay:
        replay.run(send_concurrently, changed)
    assert 'recorded  "Count the words of chapter four."' in diverged.value.divergence.text()


def in_threads_of_a_task(is_early: bool, url: str | None = None) -> list[str]:
    """Send a request, and identical requests from threads in the context of the task, in this order or, with
    `is_early`, reversed.
    """

    async def run() -> list[str]:
        with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            agentobs.record(client)

            def ask(prompt: str) -> str:
                messages: list[Any] = [{"role": "user", "content": prompt}]
                with client.messages.stream(**{**QUESTION, "messages": messages}) as stream:
                    return stream.get_final_text()

            with agentobs.session("threads-of-a-task"):
                received = [] if is_early else [ask("Plan.")]
                received += await asyncio.gather(
                    *(asyncio.to_thread(ask, each) for each in ("Look left.", "Look right."))
                )
                return received if not is_early else [ask("Plan."), *received]

    return asyncio.run(run())


def test_threads_of_a_task_keep_their_place_after_its_requests(tmp_path: Path) -> None:
    """A request from `asyncio.to_thread` comes after the earlier requests of the task that started the thread."""
    received: list[list[str]] = []
    recording = record_overlapping(
        tmp_path, lambda url: received.append(in_threads_of_a_task(False, url)), [[1], [2, 1]]
    )
    fixture = frozen(tmp_path, recording, "threads-of-a-task")
    with Replayer(fixture) as replay:
        assert replay.run(in_threads_of_a_task, False) == received[0]
    with pytest.raises(DivergenceError) as diverged, Replayer(fixture) as replay:
        replay.run(in_threads_of_a_task, True)
    assert diverged.value.divergence.number == 1
