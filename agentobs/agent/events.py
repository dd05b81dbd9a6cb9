"""Events: what comes out of the loop while it runs, as one closed union of frozen values.

They hold content (text, tool input and output) and go to the caller alone. What is recorded are the
facts that the loop hands to the sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from decimal import Decimal
from typing import Any, Literal

from agentobs.agent.permissions import Decision
from agentobs.ledger import Meter
from agentobs.records.canonical import Json
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from agentobs.records.usage import Usage, usage_rows

Subtype = Literal[
    "success",
    "error_max_turns",
    "error_max_budget_usd",
    "error_during_execution",
    "error_max_structured_output_retries",
]
"""How a run ended: with an answer; at its turns or its budget; at an error; without the output it owed."""

TerminalReason = Literal[
    "completed",
    "max_turns",
    "max_budget",
    "max_structured_output_retries",
    "aborted_streaming",
    "aborted_tools",
    "prompt_too_long",
    "image_error",
    "model_error",
    "tool_set_error",
    "internal_error",
    "refusal",
]
"""What ended a run. `model_error` is every other failure of the provider; `tool_set_error` a tool that has
to be there and is not; `internal_error` an exception that is neither the provider's nor a tool's."""

Limit = Literal[
    "interaction_usd",
    "session_usd",
    "day_usd",
    "session_turns",
    "unpriced",
    "rising_cost",
    "diminishing_output",
]
"""Which budget was reached. `unpriced`: a model was used that has no price, so that no money can be held;
the last two are the signs of a runaway, see `agentobs.ledger.runaway`."""


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
class Tombstone:
    """An answer broke off: what came of it is void, and so are the tool calls that had begun."""

    turn: int
    attempt: int
    tool_use_ids: tuple[str, ...]
    """The calls that had begun, in their order."""


@dataclass(frozen=True, slots=True)
class Coercion:
    """Arguments of a call were changed to fit the tool's types, such as `"3"` to 3."""

    question: ToolQuestion
    arguments: tuple[str, ...]
    """Which ones, as paths."""


@dataclass(frozen=True, slots=True)
class Permission:
    """It was decided whether a tool call may run."""

    question: ToolQuestion
    decision: Decision
    waited_ns: int
    """How long somebody was waited for, in nanoseconds; 0 where nobody was asked."""


@dataclass(frozen=True, slots=True)
class ToolDispatch:
    """A tool call is about to run; one that is safe may run while the answer is still coming."""

    question: ToolQuestion


@dataclass(frozen=True, slots=True)
class ToolDone:
    """A tool call has its answer. Calls that ran together are told in the order of the calls."""

    question: ToolQuestion
    answer: ToolAnswer
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Steering:
    """Something was said to the agent while it ran; it goes to the model with the next request."""

    turn: int
    texts: tuple[str, ...]
    skipped: tuple[str, ...]
    """The ids of the tool calls that are not run because of it."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Something was said to the agent when it would have stopped, so it goes on."""

    turn: int
    """The turn after which it came."""
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutputRetry:
    """The model ended without the output that it owes, and is asked for it again."""

    turn: int
    number: int
    """How often it was asked again, this time included."""


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """As much was spent as the budget allows."""

    limit: Limit
    goes_on: bool
    """Whether the run goes on all the same: it is only to warn, or a person said so."""


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
class Denial:
    """A tool call that was not permitted."""

    tool_use_id: str
    name: str
    """The tool, as the model named it."""
    reason: str
    """What the model was told."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run; always the last event, and exactly one."""

    subtype: Subtype
    terminal_reason: TerminalReason
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
    """Wall time of the run."""
    provider_ns: int
    """The part of it in which an answer was waited for or came, failed attempts included."""
    provider_ok_ns: int
    """The part of it that belongs to whole answers alone."""
    tools_ns: int
    """Time in tools, each call for itself: calls that ran together count each."""
    session_id: str | None
    """The session that was recorded, or None outside every session."""
    denials: tuple[Denial, ...] = ()
    """The tool calls that were not permitted, in their order."""
    output: Any = None
    """The structured output, where `Options.output` asks for one: an instance of that model."""
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)
    """What was used, to be priced."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception behind `error`, with its traceback."""

    @property
    def total_cost_usd(self) -> Decimal | None:
        """What the run cost in USD; None where no price is known. The first look loads the price list."""
        return self.meter.total().usd

    @property
    def cost_status(self) -> str:
        """How sure that is: `exact`, `lower_bound`, `estimated` or `unknown_model`."""
        return self.meter.total().status


Event = (
    RequestStart
    | TextDelta
    | ThinkingDelta
    | Message
    | Tombstone
    | Coercion
    | Permission
    | ToolDispatch
    | ToolDone
    | Steering
    | FollowUp
    | OutputRetry
    | BudgetReached
    | Retry
    | Result
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
