"""The exception tree: each error says what was found, where, and what to do next.

    AgentobsError
    ├── UsageError          the caller asked for something that cannot be (unknown session, bad option)
    ├── HomeError           the home directory cannot be used (not writable, a symlink, another owner)
    ├── DamagedError        bytes that we wrote do not read back (segment, fixture, store)
    ├── ForeignError        a file that is not ours, or of a newer version than this code reads
    └── RecordingError      a session cannot be frozen or served (incomplete, content off)

    ReplaySays              not an error of anybody: marks what a replay raises

`DivergenceError` lives in `replay.divergence.divergence`: it must also be an `anthropic.AnthropicError`, so that
the SDK raises it once and as it is, and this module imports nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings


class AgentobsError(Exception):
    """An error of ours, with its facts as fields.

    Attributes:
        found: what was found, in one sentence without a final stop.
        where: the file, option or id that it was found in, or an empty string.
        todo: what the reader can do now, in one sentence, or an empty string.
    """

    def __init__(self, found: str, *, where: str = "", todo: str = "") -> None:
        self.found, self.where, self.todo = found, where, todo
        super().__init__(found, where, todo)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        after = f" {self.todo}." if self.todo else ""
        return f"{place}{self.found}.{after}"


class UsageError(AgentobsError):
    """The caller asked for something that does not exist or does not fit together."""


class HomeError(AgentobsError):
    """The home directory cannot hold recordings."""


class DamagedError(AgentobsError):
    """Bytes that were written by us do not read back as they were written."""


class ForeignError(AgentobsError):
    """A file that we did not write, or that a newer version of us wrote."""


class RecordingError(AgentobsError):
    """A recording that lacks what the request needs."""


def error_kind(error: BaseException) -> str:
    """Return what kind of failure it is, without its text, which may hold what was said: its class, and for one of the
    operating system the system's own words. An error of ours is told whole.
    """
    if isinstance(error, AgentobsError):
        return str(error)
    name, number = type(error).__name__, getattr(error, "errno", None)
    return f"{name} ({os.strerror(number)})" if isinstance(number, int) else name


class ReplaySays(Exception):
    """Raised by a replay: the path parts from the recorded one, or its recorded part has ended.

    Nothing may swallow it, retry it or make a tool's failure of it.
    """


_said: set[str] = set()


def say_once(text: str, *, about: str = "") -> None:
    """Tell people about a failure of ours that must not reach the agent: a RuntimeWarning, once.

    Never raises: where warnings are errors the text goes to standard error instead.

    Args:
        text: what happened, and what follows.
        about: what counts as the same failure; default the text itself.
    """
    if (about or text) in _said:
        return
    _said.add(about or text)
    try:
        warnings.warn(f"agentobs: {text}", RuntimeWarning, stacklevel=3)
    except (
        Exception
    ):  # warnings are errors here; where there is no standard error either, nobody can be told
        with contextlib.suppress(Exception):
            print(f"agentobs: {text}", file=sys.stderr)
