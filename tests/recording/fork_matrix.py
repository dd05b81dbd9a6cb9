"""Combinations of forks, threads, signals and process ends: `python -m tests.recording.fork_matrix HOME GROUP`.

Each combination runs in a forked child. Prints a JSON line for each combination: the emitted records, how the child
ended, and how long it ran after its last record.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agentobs
from agentobs.recording.session import start_recorder
from agentobs.records.exchanges import Place, ToolAnswer, ToolExchange, ToolQuestion
from agentobs.sink import sink

made = itertools.count(1)


def emit(session_id: str, kind: str, count: int = 3) -> list[str]:
    """Emit some records; return their IDs."""
    ids = []
    for _ in range(count):
        ids.append(f"toolu_{ord(kind[0]):02x}{os.getpid():014x}{next(made):08x}")
        question, answer = ToolQuestion(ids[-1], "work", {}), ToolAnswer("x" * 100)
        sink.emit(ToolExchange(Place(session_id), time.time_ns(), 1, question, answer))
    return ids


def flushed() -> None:
    recorder = start_recorder()
    assert recorder is not None
    assert recorder.flush(30)


# What happens in the middle of a session. Each function returns the IDs of the additional records.


def nothing(session_id: str) -> list[str]:
    return []


def fork_that_exits(session_id: str) -> list[str]:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return []


def fork_that_records(session_id: str) -> list[str]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        ids = emit(session_id, "child")
        flushed()
        os.write(writing, " ".join(ids).encode())
        os._exit(0)
    os.close(writing)
    output = os.read(reading, 65536)
    os.close(reading)
    os.waitpid(child, 0)
    assert output, "the child hung or died"
    return output.decode().split()


def fork_under_load(session_id: str) -> list[str]:
    """Fork while other threads record all the time, so that any lock may be held at the moment of the fork."""
    is_over, ids = threading.Event(), list[str]()

    def busy() -> None:
        while not is_over.is_set():
            ids.extend(emit(session_id, "busy", 1))
            time.sleep(0)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for each in threads:
        each.start()
    for _ in range(3):
        ids += fork_that_records(session_id)
    is_over.set()
    for each in threads:
        each.join()
    return ids


def fork_in_a_thread(session_id: str) -> list[str]:
    ids: list[str] = []
    forking = threading.Thread(target=lambda: ids.extend(fork_that_records(session_id)))
    forking.start()
    forking.join()
    return ids


def fork_in_a_loop(session_id: str) -> list[str]:
    async def main() -> list[str]:
        return fork_that_records(session_id)

    return asyncio.run(main())


def fork_of_a_fork(session_id: str) -> list[str]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        ids = emit(session_id, "child") + fork_that_records(session_id)
        flushed()
        os.write(writing, " ".join(ids).encode())
        os._exit(0)
    os.close(writing)
    ids = os.read(reading, 65536).decode().split()
    os.close(reading)
    os.waitpid(child, 0)
    return ids


def in_pool(session_id: str) -> list[str]:
    return emit(session_id, "pool")


def fork_pool(session_id: str) -> list[str]:
    """Record in `multiprocessing` processes, which exit without `atexit`."""
    with contextlib.closing(multiprocessing.get_context("fork").Pool(2)) as pool:
        ids = pool.map(in_pool, [session_id] * 4)
    pool.join()
    return [each for some in ids for each in some]


def threads(session_id: str) -> list[str]:
    ids: list[str] = []
    running = [
        threading.Thread(target=lambda: ids.extend(emit(session_id, "thread", 20)))
        for _ in range(8)
    ]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return ids


def two_loops(session_id: str) -> list[str]:
    """Wait for the recorder in two event loops of two threads; neither loop is blocked."""
    ids: list[str] = []

    async def main() -> None:
        recorder = start_recorder()
        assert recorder is not None
        for _ in range(5):
            ids.extend(emit(session_id, "loop", 2))
            assert await recorder.settle(20)

    running = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(2)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return ids


def exit_in_a_thread(session_id: str) -> list[str]:
    ids: list[str] = []

    def leave() -> None:
        ids.extend(emit(session_id, "left"))
        sys.exit(3)

    leaving = threading.Thread(target=leave)
    leaving.start()
    leaving.join()
    return ids


def garbage_collected(session_id: str) -> list[str]:
    """Emit records from the garbage collector, at any moment and on any thread."""
    ids: list[str] = []

    class Ending:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            ids.extend(emit(session_id, "collected", 1))

    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for _ in range(30):
            Ending()
            ids.extend(emit(session_id, "emitted", 1))
    finally:
        gc.set_threshold(*before)
        gc.collect()
    return ids


def signaled(session_id: str) -> list[str]:
    """Emit records from a signal handler while another record is being emitted."""
    ids: list[str] = []
    before = signal.signal(signal.SIGALRM, lambda *_: ids.extend(emit(session_id, "signal", 1)))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for _ in range(300):
            ids.extend(emit(session_id, "emitted", 1))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return ids


MIDDLES: list[Callable[[str], list[str]]] = [
    nothing,
    fork_that_exits,
    fork_that_records,
    fork_under_load,
    fork_in_a_thread,
    fork_in_a_loop,
    fork_of_a_fork,
    fork_pool,
    threads,
    two_loops,
    exit_in_a_thread,
    garbage_collected,
    signaled,
]


# How the process ends. With `flushed`, all records are acknowledged before the end.


def by_return() -> None:
    return None


def by_exit() -> None:
    sys.exit(0)


def by_error() -> None:
    raise ValueError("the agent's own")


def by_os_exit() -> None:
    os._exit(0)


def by_terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


def by_kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def by_abort() -> None:
    os.abort()


def with_a_full_queue() -> None:
    recorder = start_recorder()
    assert recorder is not None
    for _ in range(200):
        sink.emit(
            ToolExchange(
                Place("f" * 32), 1, 1, ToolQuestion("x", "work", {}), ToolAnswer("y" * 20_000)
            )
        )


ENDS = [
    by_return,
    by_exit,
    by_error,
    by_os_exit,
    by_terminate,
    by_kill,
    by_abort,
    with_a_full_queue,
]
IN_ORDER = (by_return, by_exit, by_error, with_a_full_queue)
"""Process ends that lose no records even without a flush."""
HELD = ["inside", "outside"]
"""Whether the session is open when the process ends."""


def combination(
    middle: Callable[[str], list[str]], end: Callable[[], None], held: str, pipe: int
) -> None:
    """Run one combination in a child process."""
    session = agentobs.session(middle.__name__)
    session.__enter__()
    ids = emit(session.session_id, "before") + middle(session.session_id)
    ids += emit(session.session_id, "after")
    if held == "outside":
        session.__exit__(None, None, None)
    if end not in IN_ORDER:
        flushed()
    os.write(pipe, f"{time.monotonic()} {' '.join(ids)}".encode())
    end()


def run(middle: Any, end: Any, held: str, home: Path) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # A forked child ends like an ordinary process: with `atexit`, and with its exit code.
        import atexit

        code = 0
        os.environ["AGENTOBS_HOME"] = str(home)
        try:
            combination(middle, end, held, writing)
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            code = 1
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does at exit
        atexit._run_exitfuncs()
        os._exit(code)
    os.close(writing)
    output = b""
    while data := os.read(reading, 65536):
        output += data
    os.close(reading)
    _, status = os.waitpid(child, 0)
    last, *ids = output.decode().split() or ["0"]
    return {
        "name": f"{middle.__name__}, {end.__name__}, {held}",
        "status": os.waitstatus_to_exitcode(status),
        "seconds": time.monotonic() - float(last),
        "ids": ids,
    }


def main(home: str, group: str) -> None:
    cases = list(itertools.product(MIDDLES, ENDS, HELD))
    for number, (middle, end, held) in enumerate(cases):
        if number % 4 == int(group):
            place = Path(home) / str(number)
            print(json.dumps({**run(middle, end, held, place), "home": str(place)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
