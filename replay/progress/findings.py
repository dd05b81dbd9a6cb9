"""Findings: the first divergence of a replay, what was rejected, and what is suspicious."""

from __future__ import annotations

from collections.abc import Callable

from replay.divergence.divergence import (
    Divergence,
    DivergenceError,
    NotAffordableError,
    NotNamedError,
    NotSendableError,
)
from replay.divergence.divergence_facts import Suspicion

Rejection = NotNamedError | NotSendableError | NotAffordableError
"""A call after the recorded path whose tool must be named, or a request of a fork that the provider would reject, or
that could cost too much.
"""


class Findings:
    """The results of comparing the agent with the recording."""

    def __init__(self) -> None:
        """Start without findings."""
        self.divergence: Divergence | None = None
        """The first divergence."""
        self.rejection: Rejection | None = None
        """The first rejection."""
        self.suspicions: list[Suspicion] = []
        """Accepted events that may not belong to the recorded path, such as responses matched by order alone."""
        self.notes: list[str] = []
        """Notes for the test report, which appear even if the test passes."""
        self.leftovers = ""
        """A hint at state that an earlier run in this process has left; see `replay.agent_code.leftover_state`."""
        self.divergence_checks: list[Callable[[], object]] = []
        """Functions, each of which records a divergence that happened elsewhere, such as in another process."""

    def diverge(self, divergence: Divergence) -> DivergenceError:
        """Record a divergence if it is the first one; return the error of the first divergence."""
        if self.divergence is None:
            self.divergence = divergence
        return DivergenceError(self.divergence)

    def reject(self, rejection: Rejection) -> Rejection:
        """Record a rejection if it is the first one; return the first rejection."""
        self.rejection = self.rejection or rejection
        return self.rejection

    def raise_first(self, cause: BaseException | None = None) -> None:
        """Raise the first divergence again, otherwise the first rejection, if there was one.

        Args:
            cause: the exception in the agent that resulted from it.
        """
        for check in self.divergence_checks:
            check()
        if self.divergence is not None:
            raise DivergenceError(self.divergence) from cause
        if self.rejection is not None:
            raise self.rejection
