"""Replay of several fixtures in parallel, each in its own process, with one table row per fixture.

The processes are forked from a server that has imported the SDK once, so that a hundred fixtures do not import it a
hundred times. An agent that hangs or crashes its process is also reported as a row.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import click

from agentobs import world
from agentobs.cli.replay.tool_choice import policy
from agentobs.cli.terminal.tables import show_table
from agentobs.errors import AgentobsError
from agentobs.records.display import printable, seconds

PRELOADED = (
    "replay.playback.replayer",
    "replay.divergence.divergence",
    "agentobs.cli.replay.batch",
    "agentobs.cli.replay.replay",
)
"""The modules that the server imports before it forks."""

ENDING_SECONDS = 8.0
"""The time in which a command ends before the limit of its process: more than its grace period. Our choice."""


@dataclass(frozen=True, slots=True)
class Job:
    """One fixture to replay, and its options."""

    path: str
    tools: str = "recorded"
    """The value of `--tools`."""
    faults: tuple[str, ...] = ()
    pace: Any = None
    compare_result: bool = True
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of one replay."""

    path: str
    name: str
    result: Literal["matched", "diverged", "error"]
    message: str = field(repr=False)
    """One line that describes the divergence or the error; empty if the replay matched."""
    requests_matched: int = 0
    requests: int = 0
    tools_matched: int = 0
    tools: int = 0
    duration_ns: int = 0
    report: str = field(default="", repr=False)
    """The full divergence report as text."""
    divergence: Any = field(default=None, repr=False)
    """The full divergence report as JSON."""


def replay_many(
    fixtures: Sequence[Job],
    jobs: int | None,
    timeout_s: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Done]:
    """Replay fixtures in parallel and return the outcomes in the same order.

    Args:
        fixtures: the fixtures.
        jobs: how many replays run at the same time; None for one per processor.
        timeout_s: the timeout of each replay, in seconds.
        progress: is called with the number of finished replays, and the total.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    _start_server()
    waiting = deque(enumerate(fixtures))
    running: dict[Connection, _Running] = {}
    done: dict[int, Done] = {}
    max_running = jobs or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else "1")
    try:
        while waiting or running:
            while waiting and len(running) < max_running:
                number, each = waiting.popleft()
                started = _start(context, number, each, timeout_s)
                running[started.receiver] = started
            progress(len(done), len(fixtures))
            for receiver in wait(list(running), timeout=_remaining_s(running.values())):
                ended = running.pop(receiver)  # type: ignore[call-overload]  # only connections are waited for
                done[ended.number] = ended.outcome()
            for receiver, overdue in list(running.items()):
                if overdue.deadline_ns <= world.monotonic():
                    done[overdue.number] = overdue.stop(timeout_s)
                    del running[receiver]
    finally:
        for unfinished in running.values():
            unfinished.process.kill()
    return [done[number] for number in range(len(fixtures))]


@dataclass(frozen=True, slots=True)
class _Running:
    number: int
    job: Job
    process: Any
    receiver: Connection
    started_ns: int
    deadline_ns: int

    def outcome(self) -> Done:
        """Return the outcome that the process sent, or an error if it ended without sending one."""
        try:
            done: Done = self.receiver.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            how = f"signal {-code}" if code and code < 0 else f"exit code {code}"
            return self._failed(f"its process ended before the replay finished: {how}")
        finally:
            self.receiver.close()
        self.process.join(1)
        self.process.kill()
        return done

    def stop(self, timeout_s: float) -> Done:
        """Stop the process after its timeout, and return the outcome."""
        self.process.kill()
        self.process.join()
        self.receiver.close()
        return self._failed(f"it did not finish within {timeout_s:g} s")

    def _failed(self, message: str) -> Done:
        duration_ns = world.monotonic() - self.started_ns
        return Done(
            self.job.path, _fixture_name(self.job.path), "error", message, duration_ns=duration_ns
        )


def _start(context: Any, number: int, job: Job, timeout_s: float) -> _Running:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, job, str(Path.cwd())), daemon=True)
    process.start()
    sender.close()
    now = world.monotonic()
    return _Running(number, job, process, receiver, now, now + int(timeout_s * 1e9))


def _start_server() -> None:
    """Start the process that forks all others. It ignores Ctrl-C, which would make it print a traceback."""
    # If the server still has to be started, it unblocks these signals afterwards.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, _CTRL_C)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _CTRL_C)


_CTRL_C = (signal.SIGINT,)


def _remaining_s(running: Iterable[_Running]) -> float:
    first_ns = min(each.deadline_ns for each in running)
    return max(first_ns - world.monotonic(), 0) / 1e9


def _run(sender: Connection, job: Job, directory: str) -> None:
    """Replay one fixture in this child process; the agent's output is discarded."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.chdir(directory)
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, 1)
    os.dup2(null_device, 2)
    # The agent may send itself SIGINT to end its process.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _CTRL_C)
    sender.send(replay_job(job))
    sender.close()
    # Do not wait for threads that the agent left running.
    os._exit(0)


def _end_with_parent() -> None:
    """Exit when the parent ends: a parent that was interrupted or killed may not have stopped this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def replay_job(job: Job) -> Done:
    """Replay one fixture in this process, and return the outcome."""
    from agentobs.cli.replay.command_output import command_outcome
    from agentobs.determinism.entry import is_command
    from replay import DivergenceError, Replayer, ReplayOptions, load

    started_ns = world.monotonic()
    name, message, report, divergence = _fixture_name(job.path), "", "", None
    result: Literal["matched", "diverged", "error"] = "matched"
    progress = None
    try:
        fixture = load(job.path)
        if is_command(fixture.header["entry"]):
            # End the command before this process is killed, so that the command does not outlive it.
            timeout_s = max(job.timeout_s - ENDING_SECONDS, job.timeout_s / 2)
            outcome = command_outcome(job.path, job.faults, job.pace, timeout_s)
            return Done(job.path, name, **outcome, duration_ns=world.monotonic() - started_ns)
        options = ReplayOptions(
            tools=policy(job.tools, fixture),
            faults=job.faults,
            pace=job.pace,
            compare_result=job.compare_result,
        )
        replayer = Replayer(fixture, options)
        name, progress = fixture.name, replayer.progress
        try:
            with replayer:
                replayer.run()
        finally:
            progress = replayer.progress
    except DivergenceError as error:
        result, report = "diverged", error.divergence.text()
        message, divergence = report.partition("\n")[0], json.loads(error.divergence.json())
    except AgentobsError as error:
        result, message = "error", str(error)
    except BaseException as error:
        result, message = "error", f"the agent raised {type(error).__name__}: {str(error)[:200]}"
    counts = (
        (progress.requests_matched, progress.requests, progress.tools_matched, progress.tools)
        if progress
        else (0, 0, 0, 0)
    )
    duration_ns = world.monotonic() - started_ns
    return Done(job.path, name, result, message, *counts, duration_ns, report, divergence)


def _fixture_name(path: str) -> str:
    found = Path(path)
    return found.parent.name if found.is_file() else found.name


def show(done: Sequence[Done], *, as_json: bool, verbose: bool) -> None:
    """Print the outcomes as a table, or as JSON with one object per line."""
    if as_json:
        for each in done:
            row = asdict(each)
            row.pop("report")
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    columns = ("fixture", "requests", "tools", "result", "took", "")
    show_table(columns, [_row(each) for each in done])
    failed = [each for each in done if each.result != "matched"]
    if verbose:
        for each in failed:
            click.echo(f"\n{each.report or printable(each.message)}")
    click.echo(f"\n{len(done) - len(failed)} of {len(done)} matched")
    sys.stdout.flush()


def _row(done: Done) -> tuple[Any, ...]:
    return (
        _displayed_path(done.path),
        f"{done.requests_matched} of {done.requests}",
        f"{done.tools_matched} of {done.tools}",
        done.result,
        seconds(done.duration_ns),
        done.message,
    )


def _displayed_path(path: str) -> str:
    """Return a path relative to the current directory if it is below it."""
    found = Path(path)
    folder = found.parent if found.is_file() else found
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
