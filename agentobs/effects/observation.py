"""Observation: the observers of the effects of one agent, from its start to its end.

An observer that fails is reported once, and the agent continues without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentobs.errors import UsageError, error_kind, warn_once
from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import Place


@dataclass(frozen=True, slots=True)
class Scope:
    """The agent whose effects are observed."""

    home: Home
    """Where the agent is recorded."""
    directory: Path
    """The working directory of the agent at its start."""
    place: Callable[[], Place | None]
    """Returns where an effect that is observed now belongs; None if no session has started yet."""
    environment: dict[str, str] | None = None
    """The environment of a recorded command, which an observer may change before the command starts; None if the agent
    is this process.
    """
    command: list[str] | None = None
    """The arguments of a recorded command, which an observer may change before it starts; None as for `environment`."""
    forward: Callable[[str, Any], str] | None = None
    """Returns the URL of this machine at which a recorded command reaches an MCP server, given the server's URL and the
    receiver of its messages (`mcp.http_traffic.HttpTraffic`); None if there is no proxy.
    """
    keeps_content: bool = True
    """Whether content is recorded; with the content mode `off`, an observer reads and keeps none."""


class Observer(Protocol):
    """Observes one kind of effect."""

    def start(self, scope: Scope) -> None:
        """Start observing, before the agent runs.

        Raises:
            UsageError: the effect cannot be observed here; a recorded command is then not started.
        """
        ...

    def stop(self) -> None:
        """Stop observing, and emit what is known; the sessions of the agent are still open."""
        ...


class Observation:
    """The running observers of one agent."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Prepare to observe with these observers."""
        self._observers = observers
        self._running: list[Observer] = []

    def start(self, scope: Scope, *, is_strict: bool = True) -> None:
        """Start all observers.

        Args:
            scope: the agent.
            is_strict: whether an effect that cannot be observed is an error; else it is reported, and the others are
                observed.

        Raises:
            UsageError: an effect cannot be observed; no observer is running then.
        """
        for observer in self._observers:
            try:
                observer.start(scope)
            except UsageError as error:
                if not is_strict:
                    warn_once(f"effects are not observed: {error}")
                    continue
                self.stop()
                raise
            except Exception as error:
                _warn(observer, error)
            else:
                self._running.append(observer)

    def stop(self) -> None:
        """Stop all running observers, the last one first; never raises."""
        while self._running:
            observer = self._running.pop()
            try:
                observer.stop()
            except Exception as error:
                _warn(observer, error)


def _warn(observer: Observer, error: Exception) -> None:
    name = type(observer).__name__
    warn_once(f"effects are not observed ({name}): {error_kind(error)}", about=f"effects {name}")


__all__ = ["Observation", "Observer", "Scope"]
