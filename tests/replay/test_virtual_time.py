"""Waits of an agent pass at once in a replay, in the order in which they would end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import os
import select
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentobs import world
from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from replay.virtual_time import time_patches
from replay.virtual_time.thread_states import ThreadStates
from tests.provider_script import streamed, text
from tests.replay import waiting_agents
from tests.replay.agents import frozen, recorded
from tests.replay.waiting_agents import WAITS, Sync, asks_around, asks_in_tasks

MINUTE = 60.0
REAL_SECONDS = 20.0
"""What a minute of waits may cost on a machine that does a lot besides: less than the waits themselves, by far."""


def real_seconds() -> float:
    return world.monotonic() / 1e9


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session of two questions with a wait between them."""
    path = tmp_path_factory.mktemp("patient")
    given = [streamed(text(word), number=number) for number, word in enumerate(("one", "two"), 1)]
    return frozen(path, recorded(path, lambda url: asks_around(waiting_agents.sleeps, url), given))


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
def test_a_minute_of_waits_passes_at_once(patient: Fixture, wait: Sync) -> None:
    """The replay matches, the agent's clock shows that the time has passed, and no real time has."""
    started = real_seconds()
    with Replayer(patient) as replay:
        passed = replay.run(asks_around, wait, seconds=MINUTE)
    assert MINUTE <= passed < MINUTE + REAL_SECONDS
    assert real_seconds() - started < REAL_SECONDS
    assert replay.suspicions == ()


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
def test_so_it_does_if_the_system_does_not_show_what_threads_wait_for(
    patient: Fixture, wait: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On macOS and Windows threads are judged by their frames and their processor time."""
    if wait in (waiting_agents.polls_a_working_thread, waiting_agents.polls_until_a_deadline):
        seconds = 6.0  # each of several hundred looks takes some milliseconds there
    else:
        seconds = MINUTE
    monkeypatch.setattr("replay.virtual_time.thread_states._shows_system_calls", lambda: False)
    started = real_seconds()
    with Replayer(patient) as replay:
        passed = replay.run(asks_around, wait, seconds=seconds)
    assert passed >= seconds
    assert real_seconds() - started < REAL_SECONDS


def test_a_pause_longer_than_the_deadline_is_no_hang(patient: Fixture) -> None:
    """An agent that sleeps an hour between two questions is green, whatever the deadline."""
    with Replayer(patient, ReplayOptions(deadline_seconds=1)) as replay:
        replay.run(asks_around, waiting_agents.sleeps, seconds=3600)


def test_tasks_ask_in_the_order_of_their_timers(tmp_path: Path) -> None:
    """A task that sleeps a minute asks before one that sleeps two."""
    given = [streamed(text(word), number=number) for number, word in enumerate("abc", 1)]
    order: list[list[str]] = []

    def run(url: str) -> None:
        order.append(asyncio.run(asks_in_tasks(url, 0.05)))

    fixture = frozen(tmp_path, recorded(tmp_path, run, given), "tasks")
    for _ in range(5):
        with Replayer(fixture) as replay:
            assert replay.run(asks_in_tasks, seconds=MINUTE) == order[0]


# The clock by itself, without a recording.


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


@pytest.mark.parametrize("run", [in_order_of_threads, in_order_across_loops_and_threads])
def test_whoever_waits_less_goes_on_first(run: Callable[[], list[str]]) -> None:
    """Threads and event loops share one clock."""
    with time_patches.virtual_time():
        for _ in range(20):
            assert run() == ["first", "second", "third", "fourth"]


def compute() -> int:
    return sum(number * number % 7 for number in range(1_000_000))


def test_a_timeout_does_not_fire_while_somebody_computes() -> None:
    """A result that takes a tenth of a second is there before a timeout of ten, in a pool and in a task."""

    async def main() -> int:
        return await asyncio.wait_for(asyncio.to_thread(compute), 10)

    with time_patches.virtual_time() as clock:
        for _ in range(5):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                assert pool.submit(compute).result(timeout=10) > 0
            assert asyncio.run(main()) > 0
    assert clock.jumps == 0


def test_a_timeout_fires_although_somebody_computes_without_end() -> None:
    """Then its time passes with that of the processor."""
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


def test_the_winner_of_a_notification_and_a_timeout_is_who_comes_first() -> None:
    """A condition that is notified after 5 s wakes a wait of 10 s, and not one of 2 s."""
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


def test_while_a_child_process_lives_time_is_real() -> None:
    """Polling a child does not give up on it early, and waiting for a silent one ends by the real clock."""
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
    """A timeout of 20 s does not fire before a child that answers after a moment."""

    async def main() -> bytes:
        command = "import time; time.sleep(0.3); print('there')"
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", command, stdout=subprocess.PIPE
        )
        told, _ = await asyncio.wait_for(child.communicate(), 20)
        return told

    with time_patches.virtual_time():
        assert asyncio.run(main()) == b"there\n"


def test_all_clocks_that_an_agent_reads_move_together() -> None:
    """So `while datetime.now() < deadline: sleep(1)` ends, whichever clock it reads."""
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


def everything() -> list[Any]:
    """Return all that is patched."""
    return [
        *(time.sleep, time.time, time.time_ns, time.monotonic, time.monotonic_ns),
        *(time.perf_counter, time.perf_counter_ns),
        *(threading.Condition.wait, threading.Thread.join),
        *(asyncio.BaseEventLoop.time, selectors.DefaultSelector.select),
        *(datetime.datetime.__dict__["now"], datetime.date.__dict__["today"]),
        *(waiting_agents.imported_sleep, waiting_agents._retried.__defaults__),
    ]


def test_everything_is_put_back(patient: Fixture) -> None:
    """After a replay, after nested ones, and after one that did not open."""
    before = everything()
    with Replayer(patient) as outer:
        assert time.sleep is not before[0]
        with Replayer(patient) as inner:
            inner.run(asks_around, waiting_agents.sleeps, seconds=MINUTE)
        assert time.sleep is not before[0]
        outer.run(asks_around, waiting_agents.sleeps, seconds=MINUTE)
    assert everything() == before
    with (
        pytest.raises(RuntimeError, match="no patch"),
        pytest.MonkeyPatch.context() as patch,
    ):

        def fails(undo: object) -> None:
            raise RuntimeError("no patch")

        patch.setattr(time_patches, "_patch_trio", fails)
        with Replayer(patient):
            pass
    assert everything() == before
    assert time_patches.current() is None


def test_with_a_pace_time_is_real(patient: Fixture) -> None:
    """Nothing is patched then, also inside of a replay whose time is virtual."""
    before = everything()
    with Replayer(patient, ReplayOptions(pace=1.0)) as replay:
        assert everything() == before
        replay.run(asks_around, waiting_agents.sleeps)
    with Replayer(patient) as outer:
        with Replayer(patient, ReplayOptions(pace=1.0)) as inner:
            started = real_seconds()
            inner.run(asks_around, waiting_agents.sleeps, seconds=0.2)
            assert real_seconds() - started >= 0.2
        outer.run(asks_around, waiting_agents.sleeps, seconds=MINUTE)


def test_a_thread_that_outlives_the_replay_waits_on_in_real_time() -> None:
    """It does not go on early because the replay has ended."""
    ended = threading.Event()

    def sleep() -> None:
        time.sleep(MINUTE)
        ended.set()

    over = threading.Lock()
    over.acquire()
    with time_patches.virtual_time():
        # Somebody who computes keeps the clock from jumping.
        busy = threading.Thread(
            target=lambda: [compute() for _ in iter(lambda: over.acquire(False), True)]
        )
        busy.start()
        threading.Thread(target=sleep, daemon=True).start()
        while not any("a sleep" in what for what in time_patches.current().waits().values()):  # type: ignore[union-attr]
            pass
    over.release()
    busy.join()
    assert not ended.wait(0.1)


def test_the_clock_of_a_loop_that_goes_on_does_not_go_back(patient: Fixture) -> None:
    """An async test opens a replay in a loop that was there before and goes on afterwards."""

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


def test_a_loop_in_a_thread_of_its_own_serves_one_replay_after_the_other() -> None:
    """Module-level loops and pools outlive a replay; the next one finds them as they are."""
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
    await asyncio.to_thread(asks_around, waiting_agents.sleeps, None, MINUTE)


def test_threads_that_were_there_before_keep_the_real_time() -> None:
    """Their waits are not the agent's: the clock neither waits for them nor makes them go on early."""
    over, slept = threading.Event(), threading.Event()
    states: list[bool] = []

    def beside() -> None:
        slept.wait()
        frame = sys._getframe()
        states.append(clock.is_agents(None) or frame is None)

    thread = threading.Thread(target=beside)
    thread.start()
    with time_patches.virtual_time() as clock:
        time.sleep(MINUTE)
        slept.set()
        thread.join()
    over.set()
    assert states == [False]


@pytest.mark.usefixtures("no_foreign_threads")
def test_a_deadlock_is_reported_soon_and_by_name(patient: Fixture) -> None:
    """Two threads that wait for each other's lock: the report names both places, and what was recorded next."""

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
        replay.run(asks_around, deadlocks)
    assert real_seconds() - started < REAL_SECONDS
    found = raised.value.divergence
    words = " ".join(found.text().split())
    assert "the agent made no progress for 1 second: all of its threads and tasks" in words
    assert "the recorded agent continued with request 2" in words
    assert "deadline_seconds=30" in words
    assert {each.task for each in found.waiting} == {"thread MainThread", "thread other"}
    assert all(each.what.startswith("a lock") for each in found.waiting)
    assert all(each.site.function.endswith("deadlocks.takes") for each in found.waiting)


@pytest.mark.usefixtures("no_foreign_threads")
def test_a_deadlock_of_tasks_names_what_each_waits_for(patient: Fixture) -> None:
    """Tasks are reported with the queue, the event or the task they wait for."""

    def deadlocks(seconds: float) -> None:
        del seconds

        async def reads(inbox: asyncio.Queue[int]) -> int:
            return await inbox.get()

        async def main() -> None:
            reader = asyncio.create_task(reads(asyncio.Queue()), name="reader")
            await asyncio.gather(reader, asyncio.Event().wait())

        asyncio.run(main())

    with pytest.raises(DivergenceError) as raised, Replayer(patient) as replay:
        replay.run(asks_around, deadlocks)
    waits = {each.task: each.what for each in raised.value.divergence.waiting}
    assert waits["task reader"] == "a queue"
    assert len(waits) == 2


def test_a_polling_loop_that_nobody_ends_is_a_hang(patient: Fixture) -> None:
    """It wakes up for ever, and nothing comes of it: that counts as idle."""

    def polls(seconds: float) -> None:
        del seconds
        never = threading.Event()
        while not never.is_set():
            time.sleep(0.1)

    with (
        pytest.raises(DivergenceError, match="it only wakes up and waits again"),
        Replayer(patient, ReplayOptions(deadline_seconds=0.5)) as replay,
    ):
        replay.run(asks_around, polls)


def test_who_computes_has_more_than_the_deadline(patient: Fixture) -> None:
    """A computation of three times the deadline ends by itself; one without end is a divergence all the same."""

    def computes(seconds: float) -> None:
        until = world.process_cpu() + int(seconds * 1e9)
        while world.process_cpu() < until:
            compute()

    with Replayer(patient, ReplayOptions(deadline_seconds=0.3)) as replay:
        replay.run(asks_around, computes, seconds=0.9)
    with (
        pytest.raises(DivergenceError, match="it computes and does not finish"),
        Replayer(patient, ReplayOptions(deadline_seconds=0.1)) as replay,
    ):
        replay.run(asks_around, computes, seconds=600)


def test_who_waits_for_a_child_process_has_more_than_the_deadline(patient: Fixture) -> None:
    """A tool that starts a slow program is not cut off."""

    def starts(seconds: float) -> None:
        subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)

    with Replayer(patient, ReplayOptions(deadline_seconds=1)) as replay:
        replay.run(asks_around, starts, seconds=1.5)


def seen(states: ThreadStates, expected: str) -> bool:
    """Return whether that is what is seen in the end; a thread that has just started runs for a moment."""
    for _ in range(1000):
        if states.activity({}) == expected:
            return True
        world.pause(0.005)
    return False


def test_states_tell_what_a_thread_waits_for() -> None:
    """A lock is waited for by whoever holds it; a timeout that is not virtual, and the processor, are not."""
    held = threading.Lock()
    held.acquire()
    states = ThreadStates()
    assert seen(states, "blocked")
    threads = [threading.Thread(target=held.acquire, kwargs={"timeout": t}) for t in (-1, 600)]
    threads[0].start()
    assert seen(states, "blocked")
    threads[1].start()
    assert seen(states, "outside")
    for _ in threads:
        held.release()
        while not held.locked():  # until one of them has it
            world.pause(0.001)
    for thread in threads:
        thread.join()


def test_states_are_told_in_a_forked_process_too() -> None:
    """Its main thread has another identity than `threading` says: it is neither missed nor taken for another one."""
    if (child := os.fork()) == 0:
        try:
            states, found = ThreadStates(), [False, False]
            found[0] = seen(states, "blocked")
            waits, wakes = os.pipe()

            def look() -> None:
                found[1] = seen(states, "outside")
                os.write(wakes, b"!")

            threading.Thread(target=look).start()
            select.select([waits], [], [])
            os._exit(0 if all(found) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_that_may_not_look_at_its_threads_judges_by_their_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a change of the user the system calls cannot be read: nobody counts as ended who still computes."""

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
