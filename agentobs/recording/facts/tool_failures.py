"""Tool failures: how a tool call failed, from its recorded outcome or from the words of its result."""

from __future__ import annotations

import builtins
import re

from agentobs.provider.dialect import Block
from agentobs.recording.facts.answer_claims import error_kind
from agentobs.records.exchanges import ErrorCause, ToolAnswer, ToolOutcome
from agentobs.records.facts import ErrorOrigin
from agentobs.records.labels import Label

_ORIGINS: dict[ToolOutcome, ErrorOrigin] = {
    "executed": "returned",
    "failed": "raised",
    "invalid": "refused",
    "unknown": "refused",
    "timeout": "stopped",
    "denied": "refused",
    "skipped": "stopped",
    "aborted": "stopped",
    "deduplicated": "refused",
    "blocked": "refused",
    "substituted": "returned",
    "answered": "returned",
    "unavailable": "refused",
}
"""How a call failed, by its outcome."""

_BUILTINS = sorted(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException) and name.endswith("Error")
)
_NAMED = re.compile(rf"(?<![\w.])(?:builtins\.)?({'|'.join(_BUILTINS)})(?=[:(]|\s*\Z)")
"""Matches the class of a built-in exception where Python writes it: before the message, or at the end of the text."""

SEARCHED_CHARACTERS = 2_000
"""The maximum number of characters at the end of an error text that are searched for a class; a traceback ends with it.
Our choice.
"""


def cause_of_answer(answer: ToolAnswer) -> ErrorCause | None:
    """Return why a call failed, if it was executed in this process or read from a log; None if it did not fail."""
    if not answer.is_error:
        return None
    return answer.error or ErrorCause(_ORIGINS[answer.outcome])


def cause_of_result(result: Block) -> ErrorCause | None:
    """Return why a call failed, judging only by its result in the next request; None if it did not fail.

    A result whose words report a denial counts as `refused`, any other error as `returned`. The class is known if the
    text contains the name of a built-in exception in the form in which Python writes it.
    """
    if not result.is_error:
        return None
    origin: ErrorOrigin = "refused" if error_kind(result) == "denied" else "returned"
    return ErrorCause(origin, class_in_text(result.text))


def class_in_text(text: str) -> Label | None:
    """Return the class of the last built-in exception that an error text names, as Python writes it; None if there is
    none.
    """
    found = _NAMED.findall(text[-SEARCHED_CHARACTERS:])
    return Label(found[-1]) if found else None
