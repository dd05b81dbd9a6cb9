"""Agents under each concurrency model: `python -m tests.recording.concurrency_models HOME MODEL`.

Prints the IDs of the recorded tool calls as a JSON list. Each ID must be in the journal exactly once.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

if __name__ == "__main__" and sys.argv[2] == "gevent":
    import gevent.monkey

    gevent.monkey.patch_all()

import asyncio

import agentobs
from agentobs.recording.session import start_recorder
from agentobs.records.exchanges import Place, ToolAnswer, ToolExchange, ToolQuestion
from agentobs.sink import sink

WORKERS = 3
CALLS = 20


def calls(session_id: str, worker: int, first: int = 0, count: int = CALLS) -> list[str]:
    """Record tool calls; return their IDs."""
    ids = [f"toolu_{worker:08x}{number:016x}" for number in range(first, first + count)]
    for each in ids:
        question = ToolQuestion(each, "work", {})
        sink.emit(
            ToolExchange(Place(session_id), time.time_ns(), 1, question, ToolAnswer("x" * 100))
        )
    return ids


def written() -> None:
    """Wait until all records are in the journal."""
    recorder = start_recorder()
    assert recorder is not None
    assert recorder.flush(30)


def in_child(home: str, worker: int) -> list[str]:
    """Record a session in a process of a pool."""
    agentobs.start(home)
    with agentobs.session(f"child {worker}") as session:
        ids = calls(session.session_id, worker)
    written()
    return ids


def with_processes(method: str) -> Callable[[str], list[str]]:
    """Return a model: a pool of processes, in the middle of a session of the parent."""

    def run(home: str) -> list[str]:
        with agentobs.session("parent") as session:
            ids = calls(session.session_id, 1)
            with multiprocessing.get_context(method).Pool(WORKERS) as pool:
                for found in pool.starmap(
                    in_child, [(home, 10 + number) for number in range(WORKERS)]
                ):
                    ids += found
            return ids + calls(session.session_id, 2)

    return run


async def _concurrent(session_id: str, step: Callable[[], Any]) -> list[str]:
    async def agent(worker: int) -> list[str]:
        ids = []
        for number in range(CALLS):
            ids += calls(session_id, worker, number, 1)
            await step()
        return ids

    return [each for ids in await asyncio.gather(*map(agent, range(WORKERS))) for each in ids]


def with_uvloop(home: str) -> list[str]:
    """Run concurrent tasks in a loop of uvloop."""
    import uvloop

    with agentobs.session("uvloop") as session:
        return uvloop.run(_concurrent(session.session_id, lambda: asyncio.sleep(0.001)))


def with_gevent(home: str) -> list[str]:
    """Run concurrent greenlets, after the standard library was patched."""
    import gevent

    def agent(worker: int) -> list[str]:
        with agentobs.session(f"greenlet {worker}") as session:
            ids = []
            for number in range(CALLS):
                ids += calls(session.session_id, worker, number, 1)
                gevent.sleep(0.001)
            return ids

    jobs = [gevent.spawn(agent, number) for number in range(WORKERS)]
    gevent.joinall(jobs, raise_error=True)
    return [each for job in jobs for each in job.value]


def with_subinterpreter(home: str) -> list[str]:
    """Record a session, while an isolated subinterpreter also tries to record."""
    # The name of the module since Python 3.13, and before.
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    interpreters = importlib.import_module(name)

    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import agentobs
with agentobs.session("inner", home={home!r}):
    with agentobs.span("work"):
        pass
agentobs.flush()
"""
    with agentobs.session("outer") as session:
        ids = calls(session.session_id, 1)
        inner = interpreters.create()
        interpreters.run_string(inner, code)
        interpreters.destroy(inner)
        return ids + calls(session.session_id, 2)


MODELS: dict[str, Callable[[str], list[str]]] = {
    "fork": with_processes("fork"),
    "spawn": with_processes("spawn"),
    "forkserver": with_processes("forkserver"),
    "uvloop": with_uvloop,
    "gevent": with_gevent,
    "subinterpreter": with_subinterpreter,
}


def main(home: str, model: str) -> None:
    """Run one model, and print the IDs."""
    os.environ["AGENTOBS_HOME"] = home
    agentobs.start(home)
    ids = MODELS[model](home)
    written()
    agentobs.stop_recorder()
    print(json.dumps(ids))


if __name__ == "__main__":
    main(*sys.argv[1:])
