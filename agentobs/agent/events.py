"""Events: what comes out of the loop while it runs, as one closed union of frozen values.

They hold content (text, tool input and output) and go to the caller alone. What is recorded are the
facts that the loop hands to the sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Literal

from agentobs.records.canonical import Json
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from agentobs.records.usage import Usage, usage_rows

Subtype = Literal["success", "error_max_turns", "error_during_execution"]
"""How a run ended: with an answer; at `max_turns`; because the provider could not be asked."""


@dataclass(frozen=True, slots=True)
class RequestStart:
    """The model is asked. After a `Retry` it is asked again, and earlier deltas of this turn are void."""

    turn: int
    """The turn within the conversation, from 1."""
    attempt: int
    """The attempt at this request, from 1."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text, as it arrives; only where the answer is streamed."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of the answer's thinking, as it arrives; only where the answer is streamed."""

    thinking: str


@dataclass(frozen=True, slots=True)
class Message:
    """The whole answer of a turn."""

    turn: int
    message: Json
    """The assistant message as the provider sent it, stream events folded into one object."""


@dataclass(frozen=True, slots=True)
class ToolDispatch:
    """A tool call is about to run."""

    question: ToolQuestion


@dataclass(frozen=True, slots=True)
class ToolDone:
    """A tool call has its answer. Calls that ran together are told in the order of the calls."""

    question: ToolQuestion
    answer: ToolAnswer
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Retry:
    """An attempt failed and the next one follows after a wait."""

    turn: int
    attempt: int
    """The attempt that failed, from 1."""
    wait_s: float
    """The wait before the next one, in seconds."""
    error: str
    """The provider's error type such as `overloaded_error`, or the exception's class."""
    status: int | None
    """The HTTP status; None where no response came, 200 where a stream carried the error."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Billed tokens of one model, in disjoint buckets; the fields mean what they mean in `Usage`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    web_search_requests: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run; always the last event, and exactly one."""

    subtype: Subtype
    text: str
    """The text of the last whole answer, its text blocks joined by newlines."""
    stop_reason: str | None
    """Why the last whole answer stopped, in the provider's words."""
    num_turns: int
    """Turns of this interaction that the model answered."""
    error: str | None
    """The name of the error that ended the run, as in `Retry`."""
    error_text: str | None
    """What that error says; content."""
    usage: Mapping[str, Tokens]
    """What the provider counted, by model. Answers that broke off count as far as they came."""
    duration_ns: int
    session_id: str | None
    """The session that was recorded, or None outside every session."""


Event = (
    RequestStart | TextDelta | ThinkingDelta | Message | ToolDispatch | ToolDone | Retry | Result
)


def billed(model: str, answers: Iterable[Json]) -> dict[str, Tokens]:
    """Return the billed tokens of some answers by model; `model` stands where an answer names none."""
    totals: dict[str, Tokens] = {}
    for answer in answers:
        usage = answer.get("usage")
        if not isinstance(usage, dict) or "output_tokens" not in usage:
            continue
        for row in usage_rows(answer.get("model") or model, usage, "exact"):
            if row.billed:
                totals[row.model] = _plus(totals.get(row.model, Tokens()), row)
    return totals


def _plus(tokens: Tokens, row: Usage) -> Tokens:
    counted = (
        row.input_tokens,
        row.output_tokens,
        row.cache_read_tokens,
        row.cache_write_5m_tokens,
        row.cache_write_1h_tokens,
        row.web_search_requests,
    )
    return Tokens(*(a + b for a, b in zip(astuple(tokens), counted, strict=True)))
