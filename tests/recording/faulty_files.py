"""Calls to the operating system that fail according to a plan; tests pass them to a recorder."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from agentobs.recording.journal.file_system import OS, Files

OPERATIONS = [each.name for each in dataclasses.fields(Files)]
ERRORS = ("ENOSPC", "EIO", "EROFS", "EDQUOT", "ESTALE", "EMFILE", "ENOENT", "EACCES")

Plan = Callable[[str, int], str | None]
"""Given an operation and the number of the call (from 1), returns what happens to the call.

This is the name of an error, `short` (only half of the data is written), `hang`, or None (the call works).
"""


class Faulty:
    """Wraps the calls to the operating system; some of them fail according to a plan."""

    def __init__(self, plan: Plan = lambda operation, number: None) -> None:
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self.failed = 0
        self.free = threading.Event()
        """Hanging calls continue when this is set."""
        self.files = Files(**{name: self._call(name) for name in OPERATIONS})

    def _call(self, name: str) -> Any:
        real = getattr(OS, name)

        def call(*args: Any) -> Any:
            self.counts[name] += 1
            fault = self.plan(name, self.counts[name])
            if fault is None:
                return real(*args)
            self.failed += 1
            if fault == "hang":
                self.free.wait(60)
                return real(*args)
            if fault == "short" and name == "write" and len(args[1]) > 1:
                return real(args[0], args[1][: len(args[1]) // 2])
            if fault == "EINTR":
                raise InterruptedError(errno.EINTR, "interrupted")
            if name == "close":
                real(*args)  # a descriptor is closed even if `close` reports an error
            code = getattr(errno, "EIO" if fault == "short" else fault)
            raise OSError(code, os.strerror(code))

        return call


def once(operation: str, number: int, fault: str) -> Plan:
    """Return a plan in which one call fails."""
    return lambda name, count: fault if (name, count) == (operation, number) else None


def permanently(operation: str, number: int, fault: str) -> Plan:
    """Return a plan in which all calls of an operation fail, starting with call `number`."""
    return lambda name, count: fault if name == operation and count >= number else None
