"""The main program of a trial's worker: it reads orders, one JSON object per line, and forks a process for each."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import sys
import threading
import time
from typing import Any

from agentobs import world
from replay.trial.clock_shift import shift_clock


def main() -> None:
    """Run the orders from standard input, one after the other, and write their exit codes to standard output."""
    run = importlib.import_module("replay.trial.trial_process").run
    reads, writes = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    gc.freeze()
    while line := _line(reads):
        order = json.loads(line)
        if hasattr(os, "fork"):
            _tell(writes, code=_forked(run, order, reads, writes))
        else:
            _tried(run, order)


def _forked(run: Any, order: dict[str, Any], reads: int, writes: int) -> int:
    """Run an order in a process of its own, and return its exit code, negative for a signal."""
    child = os.fork()
    if child:
        _tell(writes, pid=child)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.setsid()
        os.close(writes)
        threading.Thread(target=_end_with, args=(reads,), name="trial parent", daemon=True).start()
        _tried(run, order)
    finally:
        os._exit(1)


def _tried(run: Any, order: dict[str, Any]) -> None:
    """Set up the environment of an order, run it, and end the process."""
    stacks = open(order["stacks"], "w")  # noqa: SIM115 - stays open until the process ends
    faulthandler.dump_traceback_later(order["limit_s"], exit=True, file=stacks)
    with world.replaced_environ(order["environment"]):
        if hasattr(time, "tzset"):
            time.tzset()
        os.chdir(order["directory"])
        if order["shift_s"]:
            shift_clock(order["shift_s"])
        run(order)
    # Do not wait for threads that the agent left behind.
    os._exit(0)


def _line(descriptor: int) -> bytes:
    """Return the input up to the first line feed; empty if the input has ended."""
    read = bytearray()
    while not read.endswith(b"\n"):
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b""
        read += part
    return bytes(read)


def _tell(descriptor: int, **told: int) -> None:
    """Write a line for the process that waits; exit if that process has ended."""
    try:
        os.write(descriptor, json.dumps(told).encode() + b"\n")
    except BrokenPipeError:
        sys.exit(1)


def _end_with(parent: int) -> None:
    """End this process when the process that sends the orders has ended or has closed the pipe."""
    while os.read(parent, 1):
        pass
    os._exit(1)
