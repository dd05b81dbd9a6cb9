"""Torture cases 9 to 12: requests that are equal, asked at the same time, and answered differently."""

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
from tests.provider_script import call, streamed, text
from tests.replay.agents import KEY, MODEL, frozen, recorded
from tests.replay.meeting import met

QUESTION: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Find something."}],
}
Heard = dict[str, str]
"""What each sub-agent was told, by its name."""


class Crew:
    """Sub-agents that all ask the same; their names stand in no request."""

    def __init__(self, client: AsyncAnthropic) -> None:
        self.client = agentobs.record(client)
        self.heard: Heard = {}

    async def explore(self, name: str) -> str:
        async with self.client.messages.stream(**QUESTION) as stream:
            self.heard[name] = await stream.get_final_text()
        return name

    async def go_on(self, name: str) -> None:
        """Ask, and ask again about what it heard."""
        await self.explore(name)
        said = {"role": "assistant", "content": self.heard[name]}
        talk = [*QUESTION["messages"], said, {"role": "user", "content": "And then?"}]
        async with self.client.messages.stream(**{**QUESTION, "messages": talk}) as stream:
            self.heard[name] += ", " + await stream.get_final_text()


async def gather(crew: Crew, names: Sequence[str]) -> None:
    await asyncio.gather(*(crew.explore(name) for name in names))


async def going_on(crew: Crew, names: Sequence[str]) -> None:
    await asyncio.gather(*(crew.go_on(name) for name in names))


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
    """Functions without arguments, that know their names from around them."""

    def made(name: str) -> Callable[[], Awaitable[str]]:
        async def explore() -> str:
            async with crew.client.messages.stream(**QUESTION) as stream:
                crew.heard[name] = await stream.get_final_text()
            return name

        return explore

    await asyncio.gather(*(made(name)() for name in names))


class Explorer:
    """A sub-agent that knows its name from itself."""

    def __init__(self, crew: Crew, name: str) -> None:
        self.crew, self.name = crew, name

    async def run(self) -> None:
        async with self.crew.client.messages.stream(**QUESTION) as stream:
            self.crew.heard[self.name] = await stream.get_final_text()


async def objects(crew: Crew, names: Sequence[str]) -> None:
    await asyncio.gather(*(Explorer(crew, name).run() for name in names))


async def nested(crew: Crew, names: Sequence[str]) -> None:
    """Two groups in a group, in each of which an agent starts the others."""

    async def lead(pair: Sequence[str]) -> None:
        async with asyncio.TaskGroup() as inner:
            for name in pair:
                inner.create_task(crew.explore(name))

    half = len(names) // 2
    async with asyncio.TaskGroup() as outer:
        outer.create_task(lead(names[:half]))
        outer.create_task(lead(names[half:]))


WAYS = (gather, task_group, as_completed, anyio_group, closures, objects, nested)
NAMES = ("ann", "bob", "cid", "dan")
ORDERS = (NAMES, NAMES[::-1], ("cid", "ann", "dan", "bob"))


def crew(way: Any, names: Sequence[str], url: str | None = None) -> Heard:
    """Run a crew in its session, and return who heard what."""

    async def run() -> Heard:
        async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            made = Crew(client)
            with agentobs.session("crew"):
                await way(made, names)
        return made.heard

    return asyncio.run(run())


def recorded_crew(
    tmp_path: Path, way: Any, names: Sequence[str], rounds: int = 1
) -> tuple[Fixture, Heard]:
    heard: list[Heard] = []
    backwards = [*range(len(names), 0, -1)]
    run = met(tmp_path, lambda url: heard.append(crew(way, names, url)), [backwards] * rounds)
    return frozen(tmp_path, run, "crew"), heard[0]


def test_09_identical_concurrent_requests_in_swapped_order(tmp_path: Path) -> None:
    """Two sub-agents ask the same and start the other way round: each gets its own answers, and goes on from them."""
    fixture, heard = recorded_crew(tmp_path, going_on, NAMES[:2], rounds=2)
    assert len(set(heard.values())) == 2
    for names in (NAMES[:2], NAMES[1::-1]):
        with Replayer(fixture) as replay:
            assert replay.run(crew, going_on, names) == heard


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_10_four_sub_agents_started_in_any_way(tmp_path: Path, way: Any) -> None:
    """Whatever starts four sub-agents, and in whatever order, each gets its own answer."""
    fixture, heard = recorded_crew(tmp_path, way, NAMES)
    assert len(set(heard.values())) == 4
    for names in ORDERS:
        with Replayer(fixture) as replay:
            assert replay.run(crew, way, names) == heard


def in_threads(names: Sequence[str], url: str | None = None) -> Heard:
    """Sub-agents over a synchronous client, in a pool."""
    heard: Heard = {}
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)

        def explore(name: str) -> None:
            with client.messages.stream(**QUESTION) as stream:
                heard[name] = stream.get_final_text()

        with agentobs.session("threads"), ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(explore, names))
    return heard


def test_11_threads_and_synchronous_clients(tmp_path: Path) -> None:
    """A pool of threads is told apart like tasks are."""
    heard: list[Heard] = []
    run = met(tmp_path, lambda url: heard.append(in_threads(NAMES, url)), [[3, 1, 4, 2]])
    fixture = frozen(tmp_path, run, "threads")
    assert len(set(heard[0].values())) == 4
    for names in ORDERS:
        with Replayer(fixture) as replay:
            assert replay.run(in_threads, names) == heard[0]


def test_12_recorded_over_sockets_replayed_in_memory(tmp_path: Path) -> None:
    """What libraries start inside has no part in lanes and origins: no task of theirs is told or counted."""
    fixture, heard = recorded_crew(tmp_path, nested, NAMES)
    assert fixture.lanes == ["main"]
    with Replayer(fixture) as replay:
        assert replay.run(crew, nested, NAMES) == heard
    assert {each.place.lane for each in replay.records if hasattr(each, "place")} == {"main"}


def lead(order: Sequence[int], url: str | None = None) -> list[str]:
    """Start a sub-agent for each of two calls, one after the other; return what they were told."""
    told: dict[int, str] = {}
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client, agentobs.session("lead"):
        agentobs.record(client)

        def ask(*messages: Any) -> Any:
            return client.messages.create(model=MODEL, max_tokens=9, messages=messages, stream=True)

        def work(number: int) -> None:
            messages = [{"role": "user", "content": f"Dig {number}"}]
            for turn in (1, 2):
                said = whole_text(ask(*messages))
                messages += [
                    {"role": "assistant", "content": said},
                    {"role": "user", "content": f"More {turn}"},
                ]
            told[number] = said

        whole_text(ask({"role": "user", "content": "Plan"}))
        for number in order:
            work(number)
    return [told[number] for number in sorted(told)]


def whole_text(stream: Any) -> str:
    return "".join(
        e.delta.text for e in stream if e.type == "content_block_delta" and hasattr(e.delta, "text")
    )


def test_12_sub_agents_whose_requests_did_not_overlap(tmp_path: Path) -> None:
    """Those of one answer's calls may run beside each other: that they did not was chance, and so is who came first."""
    plan = streamed(call(1, "dig", where="a"), call(2, "dig", where="b"), number=1)
    given = [plan, *(streamed(text(f"found {number}"), number=number) for number in (2, 3, 4, 5))]
    told: list[list[str]] = []
    run = recorded(tmp_path, lambda url: told.append(lead((1, 2), url)), given)
    fixture = frozen(tmp_path, run, "lead")
    for order in ((1, 2), (2, 1)):
        with Replayer(fixture) as replay:
            assert replay.run(lead, order) == told[0] == ["found 3", "found 5"]


class Thing:
    """Something that the caller holds."""


def test_what_the_caller_lets_go_of_is_let_go() -> None:
    """Looking at what a function was given keeps none of it alive, and changes nothing that the function sees."""
    client = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200)))
    transport.instrument(client, lambda: Place("0" * 32))

    def ask(number: int) -> dict[str, object]:
        seen = locals()
        seen["more"] = number
        client.post("http://nowhere.test", json={})
        return dict(seen)

    with runtime.replaced(answerer=lambda question, place: Answer(200, {}, (), "complete")):
        assert ask(1).items() >= {"number": 1, "more": 1}.items()

        def let_go(thing: Thing | None) -> object:
            held = weakref.ref(thing)
            client.post("http://nowhere.test", json={})
            thing = None
            return held()

        left = let_go(Thing())
        assert left is None


def test_a_session_keeps_nothing_that_its_function_lets_go_of(tmp_path: Path) -> None:
    """Reading the arguments of the function that opens a session keeps none of them alive."""
    start_recorder(str(tmp_path / "home"))

    def let_go(thing: Thing) -> object:
        held = weakref.ref(thing)
        with agentobs.session("agent"):
            del thing
            return held()

    left = let_go(Thing())
    assert left is None


def test_a_class_whose_body_opens_a_session_keeps_its_names(tmp_path: Path) -> None:
    """Those of a class body are no copy, and stay."""
    start_recorder(str(tmp_path / "home"))

    class Agent:
        name = "ann"
        with agentobs.session("agent"):
            tool = "dig"

    assert (Agent.name, Agent.tool) == ("ann", "dig")


def own(client: httpx2.Client, question: str) -> dict[str, object]:
    """Ask in the function whose variables are held."""
    held = locals()
    held.pop("client")
    client.post("http://nowhere.test", json=held)
    return held


def outer(client: httpx2.Client, question: str) -> dict[str, object]:
    """Ask in a function that the one calls whose variables are held."""
    held = vars()
    held.pop("client")
    ask_once(client)
    return held


def evaluated(client: httpx2.Client, question: str) -> dict[str, object]:
    held: dict[str, object] = eval("locals()")
    held.pop("client")
    ask_once(client)
    return held


def of_frame(client: httpx2.Client, question: str) -> dict[str, object]:
    frame = inspect.currentframe()
    held = dict(frame.f_locals) if sys.version_info >= (3, 13) else frame.f_locals  # type: ignore[union-attr]
    held.pop("client")
    ask_once(client)
    return held


def ask_once(client: httpx2.Client) -> None:
    client.post("http://nowhere.test", json={})


@pytest.mark.parametrize("ask", [own, outer, evaluated, of_frame], ids=lambda ask: ask.__name__)
def test_what_a_function_holds_of_its_variables_is_left_alone(ask: Any) -> None:
    """A function that took its variables from `locals()` and changed them finds them so after a request."""
    client = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200)))
    transport.instrument(client, lambda: Place("0" * 32))
    with runtime.replaced(answerer=lambda question, place: Answer(200, {}, (), "complete")):
        held = ask(client, "hi")
    assert "client" not in held
    assert held["question"] == "hi"


def opened(question: str, kept: object) -> dict[str, object]:
    held = locals()
    held.pop("kept")
    with agentobs.session("held"):
        pass
    return held


def test_what_a_function_holds_is_left_alone_where_a_session_opens(tmp_path: Path) -> None:
    """So does one that opens its session after that."""
    agentobs.stop_recorder()
    start_recorder(str(tmp_path / "home"))
    try:
        held = opened("hi", object())
    finally:
        assert agentobs.stop_recorder()
    assert "kept" not in held


class Settings:
    """Much that is the same for everybody."""

    def __init__(self, size: int) -> None:
        self.__dict__.update({f"setting_{number}": number for number in range(size)})


def origin_of(ask: Callable[[httpx2.Client], object]) -> Origin:
    """Return what a request tells of who asks."""
    client = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200)))
    transport.instrument(client, lambda: Place("0" * 32))
    heard: list[Origin | None] = []

    def answer(question: Question, place: Place) -> Answer:
        heard.append(question.origin)
        return Answer(200, {}, (), "complete")

    with runtime.replaced(answerer=answer):
        ask(client)
    assert heard[0] is not None
    return heard[0]


def test_what_a_function_was_given_is_never_copied_whole() -> None:
    """Of a dict of a million keys as few are looked at as of a small one."""
    large = dict.fromkeys(range(1_000_000), "")

    def ask(client: httpx2.Client, large: dict[int, str]) -> int:
        tracemalloc.start()
        try:
            ask_once(client)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    most: list[int] = []
    for given in ({}, large):
        origin_of(lambda client, given=given: most.append(ask(client, given)))  # type: ignore[misc]
    assert most[1] < most[0] + 1_000_000


def test_an_object_tells_once_what_it_holds() -> None:
    """What all functions pass on takes no room from what the outermost was given; and there is an end to all."""
    shared = Settings(20)

    def down(client: httpx2.Client, shared: Settings, depth: int) -> None:
        down(client, shared, depth - 1) if depth else ask_once(client)

    def lead(client: httpx2.Client, name: str) -> None:
        down(client, shared, 3)

    told = origin_of(lambda client: lead(client, "ann")).told
    assert [each[1] for each in told].count("shared.setting_0") == 1
    assert "ann" in [each[2] for each in told]
    settings = [Settings(500), Settings(500)]
    many = origin_of(lambda client: down(client, settings, 3)).told  # type: ignore[arg-type]
    assert len([each for each in many if each[0] != "context"]) == callers.VALUES_MAX


def test_a_number_of_any_size_breaks_nothing(tmp_path: Path) -> None:
    """A number with more digits than Python writes tells nothing, and the request is recorded and answered."""
    fixture, heard = recorded_crew(tmp_path, numbered, NAMES[:2])
    with Replayer(fixture) as replay:
        assert replay.run(crew, numbered, NAMES[1::-1]) == heard


async def numbered(crew: Crew, names: Sequence[str]) -> None:
    async def explore(name: str, number: int) -> None:
        await crew.explore(name)

    await asyncio.gather(*(explore(name, 10**5000) for name in names))


async def plan_and_act(order: Sequence[str], url: str | None = None) -> list[str]:
    """Ask, then two things at once, and then some in order, all in one task but for those two."""
    async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)

        async def ask(prompt: str) -> str:
            said: list[Any] = [{"role": "user", "content": prompt}]
            async with client.messages.stream(model=MODEL, max_tokens=9, messages=said) as stream:
                return await stream.get_final_text()

        with agentobs.session("plan"):
            plan = await ask("plan")
            first = await asyncio.gather(*(ask(each) for each in order[:2]))
            return [plan, *first, *[await ask(each) for each in order[2:]]]


def in_tasks(order: Sequence[str], url: str | None = None) -> list[str]:
    return asyncio.run(plan_and_act(order, url))


def in_main_thread(order: Sequence[str], url: str | None = None) -> list[str]:
    """The same over a synchronous client, with a pool for what is asked at once."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)

        def ask(prompt: str) -> str:
            said: list[Any] = [{"role": "user", "content": prompt}]
            with client.messages.stream(model=MODEL, max_tokens=9, messages=said) as stream:
                return stream.get_final_text()

        with agentobs.session("plan"), ThreadPoolExecutor(2) as pool:
            plan = ask("plan")
            first = list(pool.map(ask, order[:2]))
            return [plan, *first, *map(ask, order[2:])]


def in_other_thread(order: Sequence[str], url: str | None = None) -> list[str]:
    """The same in a thread of its own, in which the session is opened."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(in_main_thread, order, url).result()


PLANNED = ("a", "b", "check", "send")


@pytest.mark.parametrize(
    "run", [in_tasks, in_main_thread, in_other_thread], ids=lambda run: run.__name__
)
def test_14_sequential_requests_reordered_where_others_overlapped(tmp_path: Path, run: Any) -> None:
    """What one task or thread asks one after the other keeps its order, though others of the lane were at once."""
    recording = met(tmp_path, lambda url: run(PLANNED, url), [[1], [1, 2], [1], [1]])
    fixture = frozen(tmp_path, recording, "plan")
    for order in (PLANNED, ("b", "a", "check", "send")):
        with Replayer(fixture) as replay:
            replay.run(run, order)
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(run, ("a", "b", "send", "check"))
    assert raised.value.divergence.kind == "order"


def shared_jobs(order: Sequence[str], url: str | None = None) -> list[str]:
    """Two at once, and then jobs that one thread of a pool does one after the other."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        agentobs.record(client)

        def ask(prompt: str) -> str:
            said: list[Any] = [{"role": "user", "content": prompt}]
            with client.messages.stream(model=MODEL, max_tokens=9, messages=said) as stream:
                return stream.get_final_text()

        with (
            agentobs.session("jobs"),
            ThreadPoolExecutor(2) as two,
            ThreadPoolExecutor(1) as one,
        ):
            at_once, in_turn = two.map(ask, order[:2]), one.map(ask, order[2:])
            return sorted([*at_once, *in_turn])


def test_11_what_a_thread_of_a_pool_did_before_orders_nothing(tmp_path: Path) -> None:
    """Jobs that one thread of a pool happened to do one after the other may come in any order."""
    heard: list[Any] = []
    order = ("a", "b", "c", "d")
    recording = met(tmp_path, lambda url: heard.append(shared_jobs(order, url)), [[1, 2, 3], [1]])
    fixture = frozen(tmp_path, recording, "jobs")
    for again in (order, ("b", "a", "d", "c")):
        with Replayer(fixture) as replay:
            assert replay.run(shared_jobs, again) == heard[0]


@contextmanager
def polling_thread() -> Iterator[None]:
    """Run a thread that waits for sockets again and again, as a server that a test has started does."""
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


def test_11_a_thread_of_others_that_waits_for_sockets_holds_no_answer_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that waits for one which cannot be asked any more goes on after some time."""
    heard: list[Any] = []
    order = ("a", "b", "c", "d")
    recording = met(tmp_path, lambda url: heard.append(shared_jobs(order, url)), [[1, 2, 3], [1]])
    fixture = frozen(tmp_path, recording, "jobs")
    monkeypatch.setattr(completion_order, "PAUSES_SECONDS", 0.05)
    with polling_thread(), Replayer(fixture, ReplayOptions(deadline_seconds=8)) as replay:
        assert replay.run(shared_jobs, ("b", "a", "d", "c")) == heard[0]


def one_context(order: Sequence[str], url: str | None = None) -> list[str]:
    """Start tasks that all run in one and the same context."""

    async def run() -> list[str]:
        async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            agentobs.record(client)

            async def ask(prompt: str) -> str:
                said: list[Any] = [{"role": "user", "content": prompt}]
                async with client.messages.stream(
                    model=MODEL, max_tokens=9, messages=said
                ) as stream:
                    return await stream.get_final_text()

            with agentobs.session("context"):
                context, loop = contextvars.copy_context(), asyncio.get_running_loop()
                tasks = [loop.create_task(ask(each), context=context) for each in order]
                return sorted(await asyncio.gather(*tasks))

    return asyncio.run(run())


def test_10_tasks_of_one_context_come_in_any_order(tmp_path: Path) -> None:
    """Tasks that share what is known of who asked before, and were in flight together, order nothing."""
    heard: list[list[str]] = []
    recording = met(tmp_path, lambda url: heard.append(one_context("abc", url)), [[1, 2, 3]])
    fixture = frozen(tmp_path, recording, "context")
    for order in ("abc", "cba"):
        with Replayer(fixture) as replay:
            assert replay.run(one_context, order) == heard[0]


def test_a_fixture_tells_one_byte_of_what_a_function_was_given(tmp_path: Path) -> None:
    """Of each value a fixture has as little as tells the group apart; hundreds of others have that in common."""
    fixture, _ = recorded_crew(tmp_path, gather, NAMES[:2])
    told = [each for ask in fixture.asks for each in ask.caller or ()]
    assert told
    for each in told:
        assert len(each.partition(".")[2]) <= 4
    tried = tuple(("Crew.explore", "name", f"{pin:04}") for pin in range(5000))
    names = {callers.digests(Origin("0", (each,), None))[0].partition(".")[0] for each in tried}
    for each in [each for each in told if each.partition(".")[0] in names]:
        found = [one for one in callers.digests(Origin("0", tried, None)) if one.startswith(each)]
        assert len(found) > 4


def test_digests_as_they_were_written_before_are_matched() -> None:
    """Those of fixtures that tell a name and its value by one digest are still told."""
    origin = Origin("0", (("explore", "name", "ann"), ("lead", "", None)), None)
    old = hashlib.blake2b(b"explore name='ann'", digest_size=4).hexdigest()
    other = hashlib.blake2b(b"explore name='bob'", digest_size=4).hexdigest()
    assert callers.told_of((old, other), origin) == {old}
    new = callers.digests(origin)
    short = callers.shortest(
        [*new, *callers.digests(Origin("1", (("explore", "name", "bob"),), None))]
    )
    assert all(len(each) < len(whole) for whole, each in short.items())
    assert callers.told_of(short.values(), origin) == {short[each] for each in new}


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
def test_what_looks_drawn_is_timing_source_more(value: Any, size: int) -> None:
    """An id that is new in each run meets no other agent's by chance; what could be found by trying keeps one byte."""
    [whole] = callers.digests(Origin("0", (("explore", "value", value),), None))
    [other] = callers.digests(Origin("1", (("explore", "value", "bob"),), None))
    short = callers.shortest([whole, other])[whole]
    assert len(short.partition(".")[2]) == 2 * size
    assert callers.told_of([short], Origin("2", (("explore", "value", value),), None)) == {short}


def test_ids_of_a_run_look_drawn() -> None:
    """Random ids are recognized, also those in which digits and letters seldom alternate."""
    chance = random.Random(7)
    ids = [str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(1000)]
    wholes = [callers.digests(Origin("0", (("f", "id", each),), None))[0] for each in ids]
    sizes = [len(callers.shortest([whole])[whole].partition(".")[2]) for whole in wholes]
    assert set(sizes) == {6}


async def with_new_ids(crew: Crew, names: Sequence[str]) -> None:
    """Agents whose inner function is given an id that is new in each run."""

    async def attempt(request_id: str) -> str:
        async with crew.client.messages.stream(**QUESTION) as stream:
            return await stream.get_final_text()

    async def explore(name: str) -> None:
        crew.heard[name] = await attempt(uuid.uuid4().hex)

    await asyncio.gather(*map(explore, names))


def test_ids_that_are_new_in_each_run_meet_nobody_by_chance(tmp_path: Path) -> None:
    """Of a dozen agents each gets its own answer, whatever stands nearest to the request."""
    names = [f"agent-{number}" for number in range(12)]
    fixture, heard = recorded_crew(tmp_path, with_new_ids, names)
    for _ in range(10):
        with Replayer(fixture) as replay:
            assert replay.run(crew, with_new_ids, names) == heard


async def with_secrets(crew: Crew, names: Sequence[str]) -> None:
    """Agents whose prompts differ by a secret alone."""

    async def explore(name: str) -> None:
        said = [{"role": "user", "content": f"Log in with ghp_{name[0] * 36}."}]
        async with crew.client.messages.stream(**{**QUESTION, "messages": said}) as stream:
            crew.heard[name] = await stream.get_final_text()

    await asyncio.gather(*map(explore, names))


def test_prompts_that_differ_by_a_secret_are_told_apart(tmp_path: Path) -> None:
    """Which secret is which is not recorded; what the functions were given tells who asks."""
    fixture, heard = recorded_crew(tmp_path, with_secrets, NAMES[:3])
    for names in (NAMES[:3], NAMES[2::-1], (NAMES[1], NAMES[0], NAMES[2])):
        with Replayer(fixture) as replay:
            assert replay.run(crew, with_secrets, names) == heard
        assert not replay.suspicions


async def with_secrets_alone(crew: Crew, names: Sequence[str]) -> None:
    """Agents that nothing but a secret tells apart."""

    waiting = iter(names)

    async def explore() -> None:
        name = next(waiting)
        said = [{"role": "user", "content": f"Log in with ghp_{name[0] * 36}."}]
        async with crew.client.messages.stream(**{**QUESTION, "messages": said}) as stream:
            crew.heard[name] = await stream.get_final_text()

    # Of tasks that are made in this way nobody knows which was made first.
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(asyncio.Task(explore(), loop=loop) for _ in names))


def test_a_guess_between_secrets_is_told(tmp_path: Path) -> None:
    """Where nothing else differs they are taken in order, and that is said."""
    fixture, _ = recorded_crew(tmp_path, with_secrets_alone, NAMES[:2])
    with Replayer(fixture) as replay:
        replay.run(crew, with_secrets_alone, NAMES[1::-1])
    [told] = replay.suspicions
    assert "matched only by its position: requests 1 and 2 are identical" in told.text
    assert "agentobs.span" in told.text


def by_gateway(waits: dict[str, float], url: str | None = None) -> Heard:
    """Let one task ask for two agents, one request at a time."""

    async def run() -> Heard:
        async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            agentobs.record(client)
            asked: asyncio.Queue[tuple[Any, asyncio.Future[str]]] = asyncio.Queue()

            async def gateway() -> None:
                while True:
                    said, told = await asked.get()
                    async with client.messages.stream(**{**QUESTION, "messages": said}) as stream:
                        told.set_result(await stream.get_final_text())

            async def agent(name: str) -> str:
                said = [{"role": "user", "content": f"I am {name}."}]
                for _ in range(3):
                    told = asyncio.get_running_loop().create_future()
                    asked.put_nowait((list(said), told))
                    said.append({"role": "assistant", "content": await told})
                    said.append({"role": "user", "content": "And then?"})
                    await asyncio.sleep(waits.get(name, 0))
                return said[-2]["content"]

            with agentobs.session("gateway"):
                serving = asyncio.create_task(gateway())
                heard = await asyncio.gather(*map(agent, "AB"))
                serving.cancel()
            return dict(zip("AB", heard, strict=True))

    return asyncio.run(run())


def test_who_comes_first_through_one_task_is_chance(tmp_path: Path) -> None:
    """Agents that share a task which asks for them keep each its own order, and none with the other."""
    heard: list[Heard] = []
    given = [streamed(text(f"answer {number}")) for number in range(6)]
    recording = recorded(tmp_path, lambda url: heard.append(by_gateway({}, url)), given)
    fixture = frozen(tmp_path, recording, "gateway")
    for waits in ({}, {"A": 0.1}, {"B": 0.1}):
        with Replayer(fixture) as replay:
            assert replay.run(by_gateway, waits) == heard[0]


def asking_at_once(prompts: Sequence[str], url: str | None = None) -> None:
    """Ask several things at once."""

    async def run() -> None:
        async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            agentobs.record(client)

            async def ask(prompt: str) -> str:
                said = [{"role": "user", "content": prompt}]
                async with client.messages.stream(**{**QUESTION, "messages": said}) as stream:
                    return await stream.get_final_text()

            with agentobs.session("at-once"):
                await asyncio.gather(*map(ask, prompts))

    asyncio.run(run())


def test_a_changed_question_is_compared_with_the_likest_of_all_that_began(tmp_path: Path) -> None:
    """Also where the one that was asked first was answered last."""
    prompts = ["Translate the report.", "Count the words of chapter four.", "Draw a map."]
    recording = met(tmp_path, lambda url: asking_at_once(prompts, url), [[2, 3, 1]])
    fixture = frozen(tmp_path, recording, "at-once")
    changed = ["Count the words of chapter five.", *prompts]
    with pytest.raises(DivergenceError) as diverged, Replayer(fixture) as replay:
        replay.run(asking_at_once, changed)
    assert 'recorded  "Count the words of chapter four."' in diverged.value.divergence.text()


def in_threads_of_a_task(is_early: bool, url: str | None = None) -> list[str]:
    """Ask, and then have threads ask the same that are given the context of the task; or the other way round."""

    async def run() -> list[str]:
        with Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            agentobs.record(client)

            def ask(prompt: str) -> str:
                said: list[Any] = [{"role": "user", "content": prompt}]
                with client.messages.stream(**{**QUESTION, "messages": said}) as stream:
                    return stream.get_final_text()

            with agentobs.session("threads-of-a-task"):
                heard = [] if is_early else [ask("Plan.")]
                heard += await asyncio.gather(
                    *(asyncio.to_thread(ask, each) for each in ("Look left.", "Look right."))
                )
                return heard if not is_early else [ask("Plan."), *heard]

    return asyncio.run(run())


def test_what_a_task_gives_to_threads_comes_after_what_it_asked(tmp_path: Path) -> None:
    """`asyncio.to_thread` brings the context along: what a thread asks comes after what its task had asked."""
    heard: list[list[str]] = []
    recording = met(
        tmp_path, lambda url: heard.append(in_threads_of_a_task(False, url)), [[1], [2, 1]]
    )
    fixture = frozen(tmp_path, recording, "threads-of-a-task")
    with Replayer(fixture) as replay:
        assert replay.run(in_threads_of_a_task, False) == heard[0]
    with pytest.raises(DivergenceError) as diverged, Replayer(fixture) as replay:
        replay.run(in_threads_of_a_task, True)
    assert diverged.value.divergence.number == 1
