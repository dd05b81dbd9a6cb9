"""Processes that an agent starts with `multiprocessing` in a replay.

They may compute, but their requests are refused and end the replay with a divergence that explains why. The recorded
responses belong to another process, and the agent might otherwise wait for the result forever.
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
from replay.analysis.causes import cause_of
from replay.analysis.divergence_report import report
from replay.progress.replay_state import ReplayState

POLL_SECONDS = 0.05
"""The interval between two checks for requests, after the first such process has been started. Our choice."""
WHY = (
    "a replay only answers its own process and those that are started with subprocess and the environment of "
    "agentobs.child_environment(name): start the process that way, or run its work in a thread or a task"
)


@contextlib.contextmanager
def watched_processes(state: ReplayState) -> Iterator[None]:
    """End the replay with a divergence if a process that multiprocessing starts makes a request."""
    has_ended = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    folder = Path(tempfile.mkdtemp(prefix="agentobs-"))
    file = folder / "requests"
    state.agent.foreign_requests_file, state.agent.process_id = str(file), world.process_id()
    state.findings.divergence_checks.append(lambda: _has_request(state, file))
    start: Callable[[Any], None] = BaseProcess.start
    watchers: list[threading.Thread] = []

    @functools.wraps(start)
    def start_watched(self: Any) -> None:
        if not watchers:
            watchers.append(
                threading.Thread(target=_watch, args=(state, file, has_ended, is_main), daemon=True)
            )
            watchers[0].start()
        with world.replaced_environ({VARIABLE: f"{world.process_id()} {file}"}):
            start(self)

    BaseProcess.start = start_watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseProcess.start = start  # type: ignore[method-assign, assignment]
        has_ended.set()
        for each in watchers:
            each.join()
        state.findings.divergence_checks.clear()
        shutil.rmtree(folder, ignore_errors=True)


def _has_request(state: ReplayState, file: Path) -> bool:
    """Return whether a request was made; if so, record it as a divergence."""
    if state.findings.divergence is not None or not file.exists():
        return False
    cause = cause_of("other", WHY)
    with state.lock:
        summary = (
            "a process that multiprocessing started made a request, which a replay cannot answer"
        )
        state.findings.diverge(
            report(state, "network", state.exchanges.main, summary, cause=cause, between=True)
        )
    return True


def _watch(state: ReplayState, file: Path, has_ended: threading.Event, is_main: bool) -> None:
    """Interrupt the main thread, which may wait forever; `replay.playback.hang` handles the signal."""
    while not has_ended.wait(POLL_SECONDS):
        if _has_request(state, file):
            number = getattr(signal, "SIGURG", None)
            if is_main and state.agent.active_count and number is not None:
                signal.pthread_kill(threading.main_thread().ident or 0, number)
            return
