"""Processes that an agent starts with `multiprocessing` in a replay.

They may compute, but their requests are refused, and end the replay with a divergence that explains it: the recorded
answers belong to another process, and the agent might wait for the result forever.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.determinism.multiprocessing_children import VARIABLE
from replay.analysis.causes import plain
from replay.analysis.divergence_report import report
from replay.progress.replay_state import State

POLL_SECONDS = 0.05
"""How often requests are checked for once such a process was started. Our choice."""
WHY = (
    "a replay only answers its own process and those that are started with subprocess and the environment of "
    "agentobs.child_environment(name): start the process that way, or run its work in a thread or a task"
)


@contextlib.contextmanager
def watched_processes(state: State) -> Iterator[None]:
    """End the replay with a divergence if a process that multiprocessing starts makes a request."""
    over = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    folder = Path(tempfile.mkdtemp(prefix="agentobs-"))
    file = folder / "requests"
    state.stranger, state.process_id = str(file), world.process_id()
    state.looks.append(lambda: _look(state, file))
    start: Callable[[Any], None] = BaseProcess.start
    watchers: list[threading.Thread] = []

    @functools.wraps(start)
    def begin(self: Any) -> None:
        if not watchers:
            watchers.append(
                threading.Thread(target=_watch, args=(state, file, over, is_main), daemon=True)
            )
            watchers[0].start()
        with world.replaced_environ({VARIABLE: f"{world.process_id()} {file}"}):
            start(self)

    BaseProcess.start = begin  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseProcess.start = start  # type: ignore[method-assign, assignment]
        over.set()
        for each in watchers:
            each.join()
        state.looks.clear()
        shutil.rmtree(folder, ignore_errors=True)


def _look(state: State, file: Path) -> bool:
    """Note a divergence if a request was made; return whether one was."""
    if state.divergence is not None or not file.exists():
        return False
    cause = plain("other", WHY)
    with state.lock:
        summary = (
            "a process that multiprocessing started made a request, which a replay cannot answer"
        )
        state.error(
            report(state, "network", state.lane("main"), summary, cause=cause, between=True)
        )
    return True


def _watch(state: State, file: Path, over: threading.Event, is_main: bool) -> None:
    """Interrupt the main thread, which may wait forever; the handler is that of `replay.playback.hang`."""
    while not over.wait(POLL_SECONDS):
        if _look(state, file):
            number = getattr(signal, "SIGURG", None)
            if is_main and state.running and number is not None:
                signal.pthread_kill(threading.main_thread().ident or 0, number)
            return
