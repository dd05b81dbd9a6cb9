"""The main program of a trial worker: it reads run specs, one JSON object per line, and forks a process for each."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import sys
import threading
import time
from typing import Any, NoReturn

from agentobs import world
from replay.playback.warmup import warm_up
from replay.trial.clock_shift import shift_clock


def main() -> NoReturn:
    """Execute the run specs from standard input one after the other, and write their exit codes to standard output.

    The process then exits without deleting its modules, which would only take time.
    """
    gc.disable()  # imports leave little garbage, but make the collector run often
    run = importlib.import_module("replay.trial.trial_process").run
    # The first client of an agent imports these modules, so each forked process would import them again.
    for name in ("agentobs.recording.session", "httpcore2"):
        importlib.import_module(name)
    warm_up()
    reads, writes = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    gc.freeze()
    gc.enable()
    while line := _line(reads):
        spec = json.loads(line)
        if hasattr(os, "fork"):
            _write_message(writes, code=_run_in_child(run, spec, reads, writes))
        else:
            _run_and_exit(run, spec)
    os._exit(0)


def _run_in_child(run: Any, spec: dict[str, Any], reads: int, writes: int) -> int:
    """Execute a run spec in a forked process; return the exit code, negative for a signal."""
    child = os.fork()
    if child:
        _write_message(writes, pid=child)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.setsid()
        os.close(writes)
        threading.Thread(
            target=_exit_with_parent, args=(reads,), name="trial parent", daemon=True
        ).start()
        _run_and_exit(run, spec)
    finally:
        os._exit(1)


def _run_and_exit(run: Any, spec: dict[str, Any]) -> None:
    """Set up the environment of a run spec, execute it, and exit the process."""
    stacks = open(spec["stacks"], "w")  # noqa: SIM115 - stays open until the process ends
    faulthandler.dump_traceback_later(spec["limit_s"], exit=True, file=stacks)
    with world.replaced_environ(spec["environment"]):
        if hasattr(time, "tzset"):
            time.tzset()
        os.chdir(spec["directory"])
        if spec["shift_s"]:
            shift_clock(spec["shift_s"])
        run(spec)
    # Exit without waiting for threads that the agent has not ended.
    os._exit(0)


def _line(descriptor: int) -> bytes:
    """Return the next line of the input; empty if the input has ended."""
    read = bytearray()
    while not read.endswith(b"\n"):
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b""
        read += part
    return bytes(read)


def _write_message(descriptor: int, **message: int) -> None:
    """Write a message to the process that sent the specs; exit if that process has ended."""
    try:
        os.write(descriptor, json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        sys.exit(1)


def _exit_with_parent(parent: int) -> None:
    """Exit this process when the process that sends the specs has ended or has closed the pipe."""
    while os.read(parent, 1):
        pass
    os._exit(1)
