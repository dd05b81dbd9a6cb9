"""Calls to the operating system that fail as told: what the tests of faults put under a recorder."""

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
"""What happens to a call, by its operation and which of these it is, from 1: the name of an error; `short`, half of a
write is taken; `hang`; or None, it works."""


class Faulty:
    """The operating system, but for what a plan says."""

    def __init__(self, plan: Plan = lambda operation, number: None) -> None:
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self.failed = 0
        self.free = threading.Event()
        """What hangs goes on when this is set."""
        self.files = Files(**{name: self._call(name) for name in OPERATIONS})

    def _call(self, name: str) -> Any:
        real = getattr(OS, name)

        def call(*given: Any) -> Any:
            self.counts[name] += 1
            fault = self.plan(name, self.counts[name])
            if fault is None:
                return real(*given)
            self.failed += 1
            if fault == "hang":
                self.free.wait(60)
                return real(*given)
            if fault == "short" and name == "write" and len(given[1]) > 1:
                return real(given[0], given[1][: len(given[1]) // 2])
            if fault == "EINTR":
                raise InterruptedError(errno.EINTR, "interrupted")
            if name == "close":
                real(*given)  # a descriptor is closed even where that is said to have failed
            code = getattr(errno, "EIO" if fault == "short" else fault)
            raise OSError(code, os.strerror(code))

        return call


def once(operation: str, number: int, fault: str) -> Plan:
    """One call fails."""
    return lambda name, count: fault if (name, count) == (operation, number) else None


def for_good(operation: str, number: int, fault: str) -> Plan:
    """From one call on, all of an operation fail."""
    return lambda name, count: fault if name == operation and count >= number else None
