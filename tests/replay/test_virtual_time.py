"""Waits of an agent pass at once in a replay, in the order in which they would end in real time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import datetime
import os
import select
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentobs import world
from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from replay.virtual_time import time_patches
from replay.virtual_time.thread_states import (
    GIL_MARGIN_NS,
    ThreadStates,
    _system_call,
    _waits_for_mutex,
)
from tests.marks import mark_all_but_first
from tests.provider_script import streamed, text
from tests.replay import waiting_agents
from tests.replay.agents import frozen, recorded
from tests.replay.waiting_agents import WAITS, Sync, ask_before_and_after, asks_in_tasks

MINUTE = 60.0
REAL_SECONDS = 20.0
"""The real time that a minute of waits may take on a busy machine; it is much shorter than the waits."""


def real_seconds() -> float:
    return world.monotonic() / 1e9


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session with two requests and a wait between them."""
    path = tmp_path_factory.mktemp("patient")
    responses = [
        streamed(text(word), number=number) for number, word in enumerate(("one", "two"), 1)
    ]
    return frozen(
        path,
        recorded(path, lambda url: ask_before_and_after(waiting_agents.sleeps, url), responses),
    )


@pytest.mark.parametrize(
    "wait", mark_all_but_first(WAITS, pytest.mark.slow, kept=4), ids=lambda wait: wait.__name__
)
def test_a_minute_of_waits_passes_at_once(patient: Fixture, wait: Sync) -> None:
    """In a replay, a minute of waits passes on the agent's clock in almost no real time, and the replay matches."""
    started = real_seconds()
    with Replayer(patient) as replay:
        passed = replay.run(ask_before_and_after, wait, seconds=MINUTE)
    assert MINUTE <= passed < MINUTE + REAL_SECONDS
    assert real_seconds() - started < REAL_SECONDS
    assert replay.suspicions == ()


@pytest.mark.parametrize(
    "wait", mark_all_but_first(WAITS, pytest.mark.slow, kept=5), ids=lambda wait: wait.__name__
)
def test_a_minute_passes_at_once_without_system_calls_of_threads(
    patient: Fixture, wait: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits also pass at once if the system calls of threads are not visible, as on macOS and Windows."""
    if wait in (waiting_agents.polls_a_working_thread, waiting_agents.polls_until_a_deadline):
        seconds = (
            6.0  # without system calls, each of several hundred checks takes a few milliseconds
        )
    else:
        seconds = MINUTE
    monkeypatch.setattr("replay.virtual_time.thread_states._shows_system_calls", lambda: False)
    started = real_seconds()
    with Replayer(patient) as replay:
        passed = replay.run(ask_before_and_after, wait, seconds=seconds)
    assert passed >= seconds
    assert real_seconds() - started < REAL_SECONDS


def test_a_pause_longer_than_the_deadline_is_not_a_hang(patient: Fixture) -> None:
    """An agent that sleeps for an hour between two requests matches even if the deadline is a second."""
    with Replayer(patient, ReplayOptions(deadline_seconds=1)) as replay:
        replay.run(ask_before_and_after, waiting_agents.sleeps, seconds=3600)


@pytest.mark.slow
def test_tasks_send_in_the_order_of_their_timers(tmp_path: Path) -> None:
    """Tasks that sleep before they send their requests send them in the order in which their sleeps end."""
    responses = [streamed(text(word), number=number) for number, word in enumerate("abc", 1)]
    order: list[list[str]] = []

    def run(url: str) -> None:
        order.append(asyncio.run(asks_in_tasks(url, 0.05)))

    fixture = frozen(tmp_path, recorded(tmp_path, run, responses), "tasks")
    for _ in range(5):
        with Replayer(fixture) as replay:
            assert replay.run(asks_in_tasks, seconds=MINUTE) == order[0]


# The clock without a recording


def in_order_of_threads() -> list[str]:
    ended: list[str] = []

    def sleep(name: str, seconds: float) -> None:
        time.sleep(seconds)
        ended.append(name)

    waits = (("second", 20.0), ("first", 10.0), ("fourth", 40.0), ("third", 30.0))
    threads = [threading.Thread(target=sleep, args=each) for each in waits]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return ended


def in_order_across_loops_and_threads() -> list[str]:
    ended: list[str] = []

    def thread(name: str, *seconds: float) -> None:
        for each in seconds:
            time.sleep(each)
            ended.append(name)

    async def task(name: str, *seconds: float) -> None:
        for each in seconds:
            await asyncio.sleep(each)
            ended.append(name)

    async def main() -> None:
        await asyncio.gather(
            task("second", 20), asyncio.to_thread(thread, "first", 10), task("fourth", 40)
        )

    other = threading.Thread(target=thread, args=("third", 30))
    other.start()
    asyncio.run(main())
    other.join()
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("run", [in_order_of_threads, in_order_across_loops_and_threads])
def test_the_shortest_wait_ends_first(run: Callable[[], list[str]]) -> None:
    """The shortest wait ends first, because threads and event loops share one clock."""
    with time_patches.virtual_time():
        for _ in range(20):
            assert run() == ["first", "second", "third", "fourth"]


def compute() -> int:
    return sum(number * number % 7 for number in range(1_000_000))


@pytest.mark.slow
def test_a_timeout_does_not_expire_during_a_computation() -> None:
    """A timeout of ten seconds does not expire during a short computation in a pool or in a task."""

    async def main() -> int:
        return await asyncio.wait_for(asyncio.to_thread(compute), 10)

    with time_patches.virtual_time() as clock:
        for _ in range(5):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                assert pool.submit(compute).result(timeout=10) > 0
            assert asyncio.run(main()) > 0
    assert clock.jumps == 0


def test_a_timeout_expires_during_an_endless_computation() -> None:
    """During an endless computation, a timeout expires, because its time passes with the CPU time."""
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            compute()

    with time_patches.virtual_time():
        thread = threading.Thread(target=busy)
        thread.start()
        try:
            assert not threading.Event().wait(0.5)
        finally:
            over.set()
            thread.join()


def test_the_first_of_a_notification_and_a_timeout_wins() -> None:
    """A notification after 5 s ends a wait of 10 s, but not a wait of 2 s, which times out."""
    condition = threading.Condition()

    def notify() -> None:
        time.sleep(5)
        with condition:
            condition.notify_all()

    with time_patches.virtual_time():
        for seconds, is_notified in ((10, True), (2, False), (10, True)):
            thread = threading.Thread(target=notify)
            with condition:
                thread.start()
                assert condition.wait(seconds) is is_notified
            thread.join()


def test_time_is_real_while_a_child_process_runs() -> None:
    """While a child process runs, waits take real time, so an agent that polls the child does not give up early."""
    with time_patches.virtual_time() as clock:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started = real_seconds()
        time.sleep(0.3)
        assert child.poll() is None
        assert real_seconds() - started >= 0.25
        child.communicate(b"\n")
        jumps = clock.jumps
        time.sleep(MINUTE)
        assert clock.jumps == jumps + 1


def test_a_child_of_asyncio_is_waited_for() -> None:
    """A timeout of 20 s does not expire before a child process of asyncio responds after a moment."""

    async def main() -> bytes:
        command = "import time; time.sleep(0.3); print('there')"
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", command, stdout=subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(child.communicate(), 20)
        return output

    with time_patches.virtual_time():
        assert asyncio.run(main()) == b"there\n"


def test_all_clocks_advance_together() -> None:
    """All clocks advance together, so `while datetime.now() < deadline: sleep(1)` ends, whichever clock is read."""
    reads: list[Callable[[], float]] = [
        time.time,
        lambda: time.time_ns() / 1e9,
        lambda: time.monotonic_ns() / 1e9,
        lambda: time.perf_counter(),
        lambda: time.perf_counter_ns() / 1e9,
        lambda: datetime.datetime.now().timestamp(),  # noqa: DTZ005
        lambda: datetime.datetime.now(datetime.UTC).timestamp(),
    ]
    with time_patches.virtual_time():
        reads[0] = time.time
        before = [read() for read in reads]
        time.sleep(7200)
        passed = [read() - first for read, first in zip(reads, before, strict=True)]
    assert all(7200 <= each < 7200 + REAL_SECONDS for each in passed), passed


def patched_functions() -> list[Any]:
    """Return all patched functions."""
    return [
        *(time.sleep, time.time, time.time_ns, time.monotonic, time.monotonic_ns),
        *(time.perf_counter, time.perf_counter_ns),
        *(threading.Condition.wait, threading.Thread.join),
        *(asyncio.BaseEventLoop.time, selectors.DefaultSelector.select),
        *(datetime.datetime.__dict__["now"], datetime.date.__dict__["today"]),
        *(waiting_agents.imported_sleep, waiting_agents._retried.__defaults__),
    ]


def test_everything_is_restored(patient: Fixture) -> None:
    """Patched functions are restored after a replay, after nested replays, and after a replay that failed to open."""
    before = patched_functions()
    with Replayer(patient) as outer:
        assert time.sleep is not before[0]
        with Replayer(patient) as inner:
            inner.run(ask_before_and_after, waiting_agents.sleeps, seconds=MINUTE)
        assert time.sleep is not before[0]
        outer.run(ask_before_and_after, waiting_agents.sleeps, seconds=MINUTE)
    assert patched_functions() == before
    with (
        pytest.raises(RuntimeError, match="no patch"),
        pytest.MonkeyPatch.context() as patch,
    ):

        def fails(undo: object) -> None:
            raise RuntimeError("no patch")

        patch.setattr(time_patches, "_patch_trio", fails)
        with Replayer(patient):
            pass
    assert patched_functions() == before
    assert time_patches.current_clock() is None


class Library:
    """An object that counts as a module but cannot have weak references, like the libraries of cffi."""

    __slots__ = ("__dict__",)
    __class__ = property(lambda _: ModuleType)


def test_an_imported_library_of_cffi(patient: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects among the imported modules that cannot have weak references do not prevent a replay."""
    library: Any = Library()
    assert isinstance(library, ModuleType)
    with pytest.raises(TypeError):
        weakref.ref(library)
    monkeypatch.setitem(sys.modules, "a_library", library)
    for _ in range(2):
        with Replayer(patient) as replay:
            replay.run(ask_before_and_after, waiting_agents.sleeps, seconds=MINUTE)


def test_with_a_pace_time_is_real(patient: Fixture) -> None:
    """With a pace, time is real and nothing is patched, even inside a replay with virtual time."""
    before = patched_functions()
    with Replayer(patient, ReplayOptions(pace=1.0)) as replay:
        assert patched_functions() == before
        replay.run(ask_before_and_after, waiting_agents.sleeps)
    with Replayer(patient) as outer:
        with Replayer(patient, ReplayOptions(pace=1.0)) as inner:
            started = real_seconds()
            inner.run(ask_before_and_after, waiting_agents.sleeps, seconds=0.2)
            assert real_seconds() - started >= 0.2
        outer.run(ask_before_and_after, waiting_agents.sleeps, seconds=MINUTE)


def test_a_thread_that_outlives_the_replay_waits_in_real_time() -> None:
    """A thread that still waits when the replay ends continues its wait in real time."""
    ended = threading.Event()

    def sleep() -> None:
        time.sleep(MINUTE)
        ended.set()

    over = threading.Lock()
    over.acquire()
    with time_patches.virtual_time():
        # A computing thread keeps the clock from jumping.
        busy = threading.Thread(
            target=lambda: [compute() for _ in iter(lambda: over.acquire(False), True)]
        )
        busy.start()
        threading.Thread(target=sleep, daemon=True).start()
        clock = time_patches.current_clock()
        while not any("a sleep" in subject for subject in clock.wait_subjects().values()):  # type: ignore[union-attr]
            pass
    over.release()
    busy.join()
    assert not ended.wait(0.1)


def test_the_clock_of_an_outer_loop_does_not_go_back(patient: Fixture) -> None:
    """The clock of an event loop that outlives a replay does not go back when the replay ends."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with Replayer(patient) as replay:
            before = loop.time()
            await replay.arun(_asks_in_a_thread)
            after = loop.time()
            assert after - before >= MINUTE
        assert loop.time() >= after
        await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_loop_in_its_own_thread_works_in_several_replays() -> None:
    """Loops and pools of a module, which outlive a replay, work in several replays."""
    loop, pool = asyncio.new_event_loop(), concurrent.futures.ThreadPoolExecutor(2)
    pool.submit(int).result()
    serving = threading.Thread(target=loop.run_forever)
    serving.start()
    ended: list[str] = []

    async def task() -> None:
        await asyncio.sleep(20)
        ended.append("task")

    def job() -> None:
        time.sleep(10)
        ended.append("job")

    try:
        for _ in range(5):
            with time_patches.virtual_time():
                futures = [pool.submit(job), asyncio.run_coroutine_threadsafe(task(), loop)]
                for each in futures:
                    each.result(timeout=100)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        serving.join()
        loop.close()
        pool.shutdown()
    assert ended == ["job", "task"] * 5


async def _asks_in_a_thread() -> None:
    await asyncio.to_thread(ask_before_and_after, waiting_agents.sleeps, None, MINUTE)


def test_older_threads_keep_the_real_time() -> None:
    """Threads that are older than the replay are not threads of the agent, so the clock does not wait for them."""
    over, slept = threading.Event(), threading.Event()
    states: list[bool] = []

    def older_thread() -> None:
        slept.wait()
        frame = sys._getframe()
        states.append(clock.is_agent_thread(None) or frame is None)

    thread = threading.Thread(target=older_thread)
    thread.start()
    with time_patches.virtual_time() as clock:
        time.sleep(MINUTE)
        slept.set()
        thread.join()
    over.set()
    assert states == [False]


@pytest.mark.slow
@pytest.mark.usefixtures("no_foreign_threads")
def test_a_deadlock_is_reported_early_with_its_places(patient: Fixture) -> None:
    """A deadlock is reported before the deadline, with the place of each waiting thread and the next recorded
    request.
    """

    def deadlocks(seconds: float) -> None:
        del seconds
        first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

        def takes(mine: threading.Lock, other: threading.Lock) -> None:
            with mine:
                both.wait()
                with other:
                    pass

        other = threading.Thread(target=takes, args=(second, first), name="other", daemon=True)
        other.start()
        takes(first, second)

    started = real_seconds()
    with pytest.raises(DivergenceError) as raised, Replayer(patient) as replay:
        replay.run(ask_before_and_after, deadlocks)
    assert real_seconds() - started < REAL_SECONDS
    found = raised.value.divergence
    words = " ".join(found.text().split())
    assert "the agent made no progress for 1 second: all of its threads and tasks" in words
    assert "the recorded agent continued with request 2" in words
    assert "deadline_seconds=30" in words
    assert {each.task for each in found.waiting} == {"thread MainThread", "thread other"}
    assert all(each.what.startswith("a lock") for each in found.waiting)
    assert all(each.site.function.endswith("deadlocks.takes") for each in found.waiting)


@pytest.mark.slow
@pytest.mark.usefixtures("no_foreign_threads")
def test_a_deadlock_of_tasks_names_the_awaited_objects(patient: Fixture) -> None:
    """The report of a deadlock names the queue, event or task that each task waits for."""

    def deadlocks(seconds: float) -> None:
        del seconds

        async def reads(inbox: asyncio.Queue[int]) -> int:
            return await inbox.get()

        async def main() -> None:
            reader = asyncio.create_task(reads(asyncio.Queue()), name="reader")
            await asyncio.gather(reader, asyncio.Event().wait())

        asyncio.run(main())

    with pytest.raises(DivergenceError) as raised, Replayer(patient) as replay:
        replay.run(ask_before_and_after, deadlocks)
    waits = {each.task: each.what for each in raised.value.divergence.waiting}
    assert waits["task reader"] == "a queue"
    assert len(waits) == 2


@pytest.mark.slow
def test_an_endless_polling_loop_is_a_hang(patient: Fixture) -> None:
    """A loop that polls forever without any effect is a hang."""

    def polls(seconds: float) -> None:
        del seconds
        never = threading.Event()
        while not never.is_set():
            time.sleep(0.1)

    with (
        pytest.raises(DivergenceError, match="it only wakes up and waits again"),
        Replayer(patient, ReplayOptions(deadline_seconds=0.5)) as replay,
    ):
        replay.run(ask_before_and_after, polls)


@pytest.mark.slow
def test_a_computation_may_exceed_the_deadline(patient: Fixture) -> None:
    """A computation may exceed the deadline, but an endless computation is a divergence."""

    def computes(seconds: float) -> None:
        until = world.process_cpu() + int(seconds * 1e9)
        while world.process_cpu() < until:
            compute()

    with Replayer(patient, ReplayOptions(deadline_seconds=0.3)) as replay:
        replay.run(ask_before_and_after, computes, seconds=0.9)
    with (
        pytest.raises(DivergenceError, match="it computes and does not finish"),
        Replayer(patient, ReplayOptions(deadline_seconds=0.1)) as replay,
    ):
        replay.run(ask_before_and_after, computes, seconds=600)


@pytest.mark.slow
def test_a_wait_for_a_child_process_may_exceed_the_deadline(patient: Fixture) -> None:
    """A wait for a child process may exceed the deadline, because a tool can start a slow program."""

    def starts(seconds: float) -> None:
        subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)

    with Replayer(patient, ReplayOptions(deadline_seconds=1)) as replay:
        replay.run(ask_before_and_after, starts, seconds=1.5)


def states_become(states: ThreadStates, expected: str) -> bool:
    """Return whether the states equal the expected states after a while, because a new thread runs for a moment."""
    for _ in range(1000):
        if states.activity({}) == expected:
            return True
        world.pause(0.005)
    return False


def test_waits_for_locks_and_for_timeouts_are_distinguished() -> None:
    """Threads that wait only for locks are blocked; a thread that waits with a real timeout waits for something
    outside.
    """
    held = threading.Lock()
    held.acquire()
    states = ThreadStates()
    assert states_become(states, "blocked")
    threads = [
        threading.Thread(target=held.acquire, kwargs={"timeout": seconds}, daemon=True)
        for seconds in (-1, 600)
    ]
    threads[0].start()
    assert states_become(states, "blocked")
    threads[1].start()
    assert states_become(states, "outside")
    world.pause(2 * (sys.getswitchinterval() + GIL_MARGIN_NS / 1e9))
    assert states_become(states, "outside"), "a longer wait is not a wait for the GIL"
    for _ in threads:
        held.release()
        while not held.locked():  # until one of the threads has the lock
            world.pause(0.001)
    for thread in threads:
        thread.join()


def test_a_thread_that_waits_for_a_mutex_is_about_to_run() -> None:
    """A mutex, such as that of the GIL, is held only for a moment; no timer fires while a thread waits for it."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)  # zeros are an unlocked mutex

    def lock_and_unlock() -> None:
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_unlock(mutex)

    states = ThreadStates()
    libc.pthread_mutex_lock(mutex)
    thread = threading.Thread(target=lock_and_unlock)
    thread.start()
    while not _waits_for_mutex(_system_call(thread.native_id or 0) or ""):
        world.pause(0.001)
    assert states.activity({}) == "running"
    libc.pthread_mutex_unlock(mutex)
    thread.join()
    assert states_become(states, "blocked")


def test_states_are_correct_in_a_forked_process() -> None:
    """In a forked process, the main thread is recognized, although its ID differs from the ID that `threading`
    reports.
    """
    if (child := os.fork()) == 0:
        try:
            states, found = ThreadStates(), [False, False]
            found[0] = states_become(states, "blocked")
            waits, wakes = os.pipe()

            def look() -> None:
                found[1] = states_become(states, "outside")
                os.write(wakes, b"!")

            threading.Thread(target=look).start()
            select.select([waits], [], [])
            os._exit(0 if all(found) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_computing_thread_is_not_waiting_if_system_calls_are_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If system calls cannot be read, for example after a change of the user, a computing thread does not count as
    waiting.
    """

    def refuse(native: int) -> None:
        raise PermissionError(native)

    states, stops = ThreadStates(), threading.Event()
    computing = threading.Thread(target=lambda: [compute() for _ in iter(stops.is_set, True)])
    monkeypatch.setattr("replay.virtual_time.thread_states._system_call", refuse)
    computing.start()
    try:
        assert {states.activity({}) for _ in range(20)} == {"running"}
    finally:
        stops.set()
        computing.join()
