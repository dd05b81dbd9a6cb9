"""Tracking of jobs: it never affects the observed program, and keeps no reference to an ended session."""

from __future__ import annotations

import asyncio
import functools
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MethodType
from typing import Any

import pytest

import agentobs
from agentobs import errors
from agentobs.determinism import callers, jobs
from agentobs.recording.session import flush, start_recorder
from agentobs.runtime import process
from agentobs.tracing import place

DONE = "done"


@pytest.fixture(autouse=True)
def followed() -> Iterator[None]:
    """Track jobs during the test, and fail if a warning reports a job that is not tracked."""
    callers.follow_jobs()
    errors._reported.discard("jobs")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield
    assert [str(each.message) for each in warned if "not tracked" in str(each.message)] == []


class Retrying:
    """A class that is used as a decorator and binds itself as a method."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __get__(self, owner: Any, kind: type) -> Any:
        return MethodType(self, owner)


class Wrapping(Retrying):
    """A decorator that has the name of the decorated function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        functools.update_wrapper(self, function)


class OddName(type):
    """A metaclass whose classes have no readable name."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise OSError("no name")


class Guarded(metaclass=OddName):
    """A callable that raises an error for every operation except a call."""

    def __call__(self, *args: Any) -> str:
        return DONE

    def __getattr__(self, name: str) -> Any:
        raise OSError(f"there is no {name}")

    def __bool__(self) -> bool:
        raise OSError("neither")

    def __len__(self) -> int:
        raise OSError("no length")


class Agent:
    """A class whose methods have these decorators."""

    @Retrying
    def retried(self) -> str:
        return DONE

    @Wrapping
    def wrapped(self) -> str:
        return DONE

    def plain(self) -> str:
        return DONE

    part = functools.partialmethod(plain)


def work(*args: Any) -> str:
    return DONE


CALLABLES: dict[str, tuple[Any, str]] = {
    "function": (work, "work"),
    "method": (Agent().plain, "Agent.plain"),
    "decorator": (Agent().retried, "Retrying"),
    "named decorator": (Agent().wrapped, "Agent.wrapped"),
    "partial method": (Agent().part, "Agent.plain"),
    "method of partial": (MethodType(functools.partial(work), 1), "work"),
    "partial of method of partial": (
        functools.partial(MethodType(functools.partial(work), 1)),
        "work",
    ),
    "guarded": (Guarded(), "Guarded"),
    "method of guarded": (MethodType(Guarded(), 1), "Guarded"),
    "C function": (functools.partial(max, DONE, "a"), "builtin_function_or_method"),
    "method of C function": (MethodType(max, [DONE, "a"]), "max"),
    "method of class": (MethodType(type(DONE), DONE), "str"),
}
each_callable = pytest.mark.parametrize(
    "case", CALLABLES
)  # pytest cannot show all of these callables


@each_callable
def test_a_pool_runs_any_callable(case: str) -> None:
    function, name = CALLABLES[case]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(function).result() == DONE
    assert jobs._name_of(function) == name


@each_callable
def test_a_thread_runs_any_callable(case: str) -> None:
    function, name = CALLABLES[case]
    ran: list[str] = []

    class Runner(threading.Thread):
        def run(self) -> None:
            ran.append(self._target())  # type: ignore[attr-defined]

    thread = Runner(target=function, name="runner")
    assert jobs._name_of(jobs._target_of(thread)) == name
    thread.start()
    thread.join()
    assert ran == [DONE]
    assert thread.__dict__[jobs._ATTRIBUTE].steps[-1][0] == name


class Guest(Coroutine[Any, Any, str]):
    """A coroutine of a class that is not Python's own, like the coroutines of compiled code."""

    def send(self, value: Any) -> Any:
        raise StopIteration(DONE)

    def throw(self, *error: Any) -> Any:
        raise StopIteration(DONE)

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    def __await__(self) -> Generator[Any, Any, str]:
        yield
        return DONE

    def __getattr__(self, name: str) -> Any:
        raise OSError(f"there is no {name}")


def test_a_task_runs_any_coroutine() -> None:
    async def main() -> str:
        return await asyncio.get_running_loop().create_task(Guest())

    assert asyncio.run(main()) == DONE


class StubbornTask(asyncio.Task[Any]):
    """A task that does not accept additional attributes."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == jobs._ATTRIBUTE:
            raise OSError(f"no {name}")
        super().__setattr__(name, value)


def test_a_task_without_additional_attributes_runs() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(
            lambda loop, coro, **options: StubbornTask(coro, loop=loop, **options)
        )
        return await loop.create_task(asyncio.sleep(0, DONE))

    assert asyncio.run(main()) == DONE


@pytest.mark.parametrize("part", ["_name_of", "current", "starter_arguments"])
def test_jobs_run_if_tracking_fails(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If tracking a job fails, the job runs, and the error is reported only once."""

    def fails(*args: Any, **options: Any) -> Any:
        raise OSError("ours")

    job = jobs.Job(None, "")
    job.last_attempt = "an attempt"
    if part == "starter_arguments":
        monkeypatch.setattr(jobs, "current", lambda: job)
    monkeypatch.setattr(
        process.state(jobs.State) if part == "starter_arguments" else jobs, part, fails
    )
    ran: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with ThreadPoolExecutor(1) as pool:
            ran.append(pool.submit(work).result())
        thread = threading.Thread(target=lambda: ran.append(work()))
        thread.start()
        thread.join()
        ran.append(asyncio.run(asyncio.wait_for(asyncio.sleep(0, DONE), None)))
    assert ran == [DONE] * 3
    assert [str(w.message) for w in warned if "not tracked" in str(w.message)] == [
        "agentobs: a job is not tracked: OSError"
    ]


# References to ended sessions.

SESSIONS = [f"session-{number}" for number in range(1000)]


def start_request(session_id: str, *, is_async: bool = True) -> jobs.Job:
    """Determine the caller of a request, as the transport does."""
    origin = callers.origin_here("an attempt", session_id, is_async=is_async)
    assert origin is not None
    assert origin.job is not None
    return origin.job


def one_after_the_other(*, is_async: bool) -> jobs.Job:
    for each in SESSIONS:
        jobs.open_session(each)
        job = start_request(each, is_async=is_async)
        assert job.sessions <= {each}
        jobs.close_session(each)
    return job


def test_a_thread_keeps_no_reference_to_a_session() -> None:
    """A thread keeps no reference to a session, not even to an open one, because the end of a thread is not
    recorded.
    """
    found: list[jobs.Job] = []
    thread = threading.Thread(target=lambda: found.append(one_after_the_other(is_async=False)))
    thread.start()
    thread.join()
    jobs.open_session("open")
    before = start_request("open", is_async=False)
    assert (found[0].sessions, before.sessions) == (frozenset(), frozenset())
    assert process.state(jobs.State).sessions["open"].jobs == set()
    jobs.close_session("open")
    assert process.state(jobs.State).sessions.keys().isdisjoint(SESSIONS)


def test_a_task_keeps_no_reference_to_an_ended_session() -> None:
    """The end of a task is recorded once for each session that is still open; the task keeps no reference to other
    sessions.
    """
    serials: list[int] = []

    async def child() -> None:
        serials.append(start_request("open").serial)

    async def worker() -> None:
        job = one_after_the_other(is_async=True)
        assert job.sessions == frozenset()
        serials.append(start_request("open").serial)
        start_request("open")
        assert job.sessions == {"open"}

    async def late() -> None:
        job = start_request(SESSIONS[0])
        assert job.sessions == frozenset()

    async def main() -> None:
        for run in (child, worker, late):
            await asyncio.create_task(run())
            await asyncio.sleep(0)

    jobs.open_session("open")
    asyncio.run(main())
    assert process.state(jobs.State).sessions["open"].jobs == set()
    assert process.state(jobs.State).sessions.keys().isdisjoint(SESSIONS)
    assert [serial for serial, _ in jobs.close_session("open")] == serials
    assert jobs.close_session("open") == []


def test_the_end_of_a_work_item_is_recorded() -> None:
    jobs.open_session("open")
    with ThreadPoolExecutor(1) as pool:
        started = [pool.submit(start_request, "open", is_async=False).result() for _ in range(3)]
    assert [serial for serial, _ in jobs.close_session("open")] == [job.serial for job in started]


def test_the_end_of_an_eager_task_is_recorded() -> None:
    """The end of an eager task is recorded, even if its first request is made before `create_task` has returned."""
    serials: list[int] = []

    def eager(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task, starter = asyncio.Task(coro, loop=loop, **options), asyncio.current_task()
        assert starter is not None
        asyncio.tasks._leave_task(loop, starter)
        asyncio.tasks._enter_task(loop, task)
        serials.append(start_request("open").serial)
        asyncio.tasks._leave_task(loop, task)
        asyncio.tasks._enter_task(loop, starter)
        return task

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(eager)
        tasks = [loop.create_task(asyncio.sleep(0)) for _ in range(2)]
        loop.set_task_factory(None)
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)

    jobs.open_session("open")
    asyncio.run(main())
    assert len(set(serials)) == 2
    assert [serial for serial, _ in jobs.close_session("open")] == serials


def test_recorded_sessions_are_forgotten(tmp_path: Path) -> None:
    """Successive and nested sessions of a task are forgotten when they end."""
    start_recorder(str(tmp_path / "home"))
    kept: list[frozenset[str]] = []

    async def main() -> None:
        for _ in range(20):
            with agentobs.session("outer"):
                outer = place()
                with agentobs.session("inner"):
                    inner = place()
                    assert outer is not None
                    assert inner is not None
                    ids = {outer.session_id, inner.session_id}
                    kept.append(start_request(outer.session_id).sessions & ids)
                    kept.append(start_request(inner.session_id).sessions & ids)
        flush()
        job = jobs.current()
        assert job is not None
        assert job.sessions == frozenset()

    before = set(process.state(jobs.State).sessions)
    asyncio.run(main())
    assert [len(each) for each in kept] == [1, 2] * 20
    assert set(process.state(jobs.State).sessions) <= before


def test_unrecorded_sessions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    agentobs.stop_recorder()
    monkeypatch.setattr("agentobs.recording.session.start_recorder", lambda home=None: None)
    before = set(process.state(jobs.State).sessions)
    with agentobs.session("agent"):
        assert len(process.state(jobs.State).sessions.keys() - before) == 1
    assert set(process.state(jobs.State).sessions) <= before
