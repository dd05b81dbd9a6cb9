"""The end of a session: its outcome, and why it failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agentobs import world
from agentobs.errors import error_kind, warn_once
from agentobs.records.clear_text import error_label, exception_label
from agentobs.records.exchanges import ErrorCause
from agentobs.records.facts import DECLARED, Outcome, SessionEnd
from agentobs.records.labels import Label, prefixed, unchecked
from agentobs.tracing.raised_errors import origin, raised_error


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure that the agent has declared."""

    reason: Label
    """The text, which may be content; for an exception, the name of its class."""
    error: ErrorCause | None = None
    """The class and the place of the exception; None if the reason is a text."""


def declared_failure(reason: str | BaseException) -> Failure:
    """Return the failure that an agent declares with a text or an exception."""
    if isinstance(reason, str):
        return Failure(unchecked(reason))
    return Failure(error_label(reason), _cause(reason))


def session_end(
    session_id: str, error: BaseException | None, failure: Failure | None, *, is_stopped: bool
) -> SessionEnd:
    """Return the end of a session now.

    Args:
        session_id: the session.
        error: the exception that leaves the session, or None.
        failure: the failure that the agent has declared, which takes precedence; None if it has declared none.
        is_stopped: whether the session ends because the recorder is stopped.
    """
    outcome, reason, signature = _outcome(error, failure, is_stopped)
    raised = (failure.error if failure and failure.error else None) or (
        _cause(error) if error is not None and outcome == "failed" else None
    )
    return SessionEnd(
        session_id=session_id,
        ended_ns=world.now(),
        outcome=outcome,
        reason=reason,
        signature=signature,
        dropped=0,
        error_class=raised.name if raised else None,
        error_file=raised.file if raised else None,
        error_line=raised.line if raised else None,
    )


def _outcome(
    error: BaseException | None, failure: Failure | None, is_stopped: bool
) -> tuple[Outcome, Label | None, Label | None]:
    """Return outcome, reason and failure signature."""
    if failure is not None:
        return "failed", failure.reason, prefixed(DECLARED, failure.reason)
    if is_stopped:
        return "interrupted", Label("stop_recorder"), None
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "completed", None, None
    stopped = isinstance(error, KeyboardInterrupt | asyncio.CancelledError | GeneratorExit)
    outcome: Outcome = "interrupted" if stopped else "failed"
    return outcome, error_label(error), exception_label(origin(error))


def _cause(error: BaseException) -> ErrorCause | None:
    """Return the class and the place of an exception; None if they cannot be read."""
    try:
        return raised_error(error)
    except Exception as failure:
        warn_once(f"the place of an error is not recorded: {error_kind(failure)}", about="cause")
        return None
