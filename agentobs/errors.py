"""Exceptions of agentobs. Each error states what was found, where, and what to do next.

    AgentobsError
    ├── UsageError      the caller's request cannot be fulfilled (unknown session, invalid option)
    ├── HomeError       the home directory cannot be used (not writable, a symlink, another owner)
    ├── DamagedError    data that agentobs wrote cannot be read back (segment, fixture, store)
    ├── ForeignError    a file that agentobs did not write, or that a newer version wrote
    └── RecordingError  a session cannot be frozen or served (incomplete, content off)

    ReplayEnd           not an error: base class of the exceptions that end a replay

`DivergenceError` lives in `replay.divergence.divergence`, because it must also be an `anthropic.AnthropicError`:
the SDK then raises it once and unchanged. This module imports nothing from agentobs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings


class AgentobsError(Exception):
    """Base class of all errors of agentobs, with its parts as fields.

    Attributes:
        found: the problem, in one sentence without a final period.
        where: the file, option or ID with the problem, or an empty string.
        todo: what the user can do now, in one sentence without a final period, or an empty string.
    """

    def __init__(self, found: str, *, where: str = "", todo: str = "") -> None:
        self.found, self.where, self.todo = found, where, todo
        super().__init__(found, where, todo)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        action = f" {self.todo}." if self.todo else ""
        return f"{place}{self.found}.{action}"


class UsageError(AgentobsError):
    """The caller's request names something that does not exist, or combines options that exclude each other."""


class HomeError(AgentobsError):
    """The home directory cannot hold recordings."""


class DamagedError(AgentobsError):
    """Data that agentobs wrote cannot be read back unchanged."""


class ForeignError(AgentobsError):
    """A file that agentobs did not write, or that a newer version of agentobs wrote."""


class RecordingError(AgentobsError):
    """The recording lacks data that the request needs."""


def error_kind(error: BaseException) -> str:
    """Describe a failure without its message, because the message may contain content.

    The result is the class name, plus the system's own text for errors of the operating system. Errors of agentobs
    contain no content, so their full text is returned.
    """
    if isinstance(error, AgentobsError):
        return str(error)
    name, number = type(error).__name__, getattr(error, "errno", None)
    return f"{name} ({os.strerror(number)})" if isinstance(number, int) else name


class ReplayEnd(Exception):
    """Base class of the exceptions that end a replay, because the replay diverged or its recorded part is over.

    Code must not swallow such an exception, retry after it, or turn it into a failed tool call.
    """


_reported: set[str] = set()


def warn_once(text: str, *, about: str = "") -> None:
    """Warn once about an internal failure that must not reach the agent, with a RuntimeWarning.

    Never raises: if warnings are turned into errors, the text goes to standard error instead.

    Args:
        text: what happened, and the consequence.
        about: a key; later warnings with the same key are not shown. Default: the text.
    """
    if (about or text) in _reported:
        return
    _reported.add(about or text)
    try:
        warnings.warn(f"agentobs: {text}", RuntimeWarning, stacklevel=3)
    except Exception:
        # Warnings are errors in this process. If there is no standard error either, the text is lost.
        with contextlib.suppress(Exception):
            print(f"agentobs: {text}", file=sys.stderr)
