"""The stacks of all threads are read without running foreign code, because the garbage collector is disabled
meanwhile.
"""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from replay.agent_code import thread_stacks
from replay.agent_code.thread_stacks import python_threads, thread_frames
from tests.marks import mark_all_but_first

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Restore the state of the garbage collector."""
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_only_one_module_reads_the_frames_of_threads() -> None:
    """Only `thread_stacks` reads the frames of threads directly; all other modules use `thread_frames`."""
    names = ("_current_frames", "_current_exceptions")
    sources = {
        path: path.read_text()
        for package in ("agentobs", "replay", "exporters", "dashboards")
        for path in (ROOT / package).rglob("*.py")
    }
    users = {
        path.relative_to(ROOT).as_posix()
        for path, source in sources.items()
        if any(name in source for name in names)  # parsing all sources is slow
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in names
    }
    assert users == {"replay/agent_code/thread_stacks.py"}


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_disabled_during_the_call(
    is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector is disabled while frames are read, and enabled afterwards only if it was enabled before."""
    seen: list[bool] = []
    real = sys._current_frames

    def current_frames() -> object:
        seen.append(gc.isenabled())
        return real()

    monkeypatch.setattr(sys, "_current_frames", current_frames)
    (gc.enable if is_on else gc.disable)()
    assert threading.get_ident() in thread_frames()
    assert seen == [False]
    assert gc.isenabled() is is_on


def test_the_collector_is_restored_if_the_call_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """If reading the frames raises an error, the garbage collector is restored to its previous state."""

    def fails() -> object:
        raise MemoryError

    monkeypatch.setattr(sys, "_current_frames", fails)
    gc.enable()
    with pytest.raises(MemoryError):
        thread_frames()
    assert gc.isenabled()


def test_concurrent_callers_do_not_enable_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If two threads or a signal handler read frames at the same time, the garbage collector stays disabled until all
    are done.
    """
    inside, go_on = threading.Event(), threading.Event()
    states: list[bool] = []
    real = sys._current_frames

    def current_frames() -> object:
        first = not inside.is_set()
        inside.set()
        if first:
            nested = thread_frames()  # as if a signal handler ran during the call
            assert nested
            go_on.wait()
        states.append(gc.isenabled())
        return real()

    monkeypatch.setattr(sys, "_current_frames", current_frames)
    gc.enable()
    threads = [threading.Thread(target=thread_frames) for _ in range(2)]
    threads[0].start()
    inside.wait()
    threads[1].start()
    go_on.set()
    for each in threads:
        each.join()
    assert states == [False] * 3
    assert gc.isenabled()


def test_threads_are_listed_without_a_lock() -> None:
    """Threads can be listed while `threading` holds its own lock, as in a signal handler."""
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        assert python_threads()[threading.get_ident()] is threading.current_thread()


HANG = """
import gc, sys, threading, time
from replay.agent_code.thread_stacks import thread_frames

class Garbage:
    def __init__(self): self.me = self
    def __del__(self): time.sleep(0)  # lets go of the GIL, as a finalizer does that closes a file

over = time.monotonic() + float(sys.argv[1])
def ends_soon(): pass
def starts():
    while time.monotonic() < over:
        threads = [threading.Thread(target=ends_soon) for _ in range(20)]
        for each in threads: each.start()
        for each in threads: each.join()
gc.set_threshold(1, 1, 1)
for _ in range(2): threading.Thread(target=starts).start()
calls = 0
while time.monotonic() < over:
    Garbage()
    READ()
    calls += 1
print(calls)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", mark_all_but_first(["0.5", "3"], pytest.mark.crash))
def test_threads_that_end_and_finalizers_do_not_stop_the_interpreter(seconds: str) -> None:
    """The interpreter does not hang while threads end and finalizers run, as CPython up to 3.11.7 otherwise does
    (gh-106883).
    """
    command = [sys.executable, "-c", HANG.replace("READ", "thread_frames"), seconds]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, check=True)
    assert int(ran.stdout) > 0
    assert thread_stacks._lock.acquire(blocking=False)
    thread_stacks._lock.release()


FORKS = """
import gc, os, sys, threading
from agentobs.determinism import multiprocessing_children
from agentobs.recording import lineage
from replay.agent_code import thread_stacks

over = False
def looks():
    while not over:
        thread_stacks.thread_frames()
def takes(lock):
    while not over:
        with lock: sum(range(100))
sys.setswitchinterval(1e-5)
locks = (lineage._lock, multiprocessing_children._lock)
threads = [threading.Thread(target=looks), *(threading.Thread(target=takes, args=(lock,)) for lock in locks)]
for each in threads: each.start()
bad = []
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        free = [lock.acquire(timeout=1) for lock in (thread_stacks._lock, *locks)]
        os._exit(0 if all(free) and gc.isenabled() else 1)
    bad.append(os.waitpid(child, 0)[1])
over = True
for each in threads: each.join()
assert gc.isenabled()
print(sum(map(bool, bad)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("forks", mark_all_but_first(["30", "300"], pytest.mark.crash))
def test_a_fork_during_the_call_leaves_the_child_usable(forks: str) -> None:
    """After a fork during the call, the child can acquire each lock, and its garbage collector is enabled."""
    command = [sys.executable, "-c", FORKS, forks]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, check=True)
    assert ran.stdout == b"0\n"
