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
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import QuerySource, ToolAnswer, ToolQuestion
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
    "max_output_tokens",
    "too_many_pauses",
    "hook_stopped",
    "stop_hook_prevented",
]
"""What ended a run. `max_output_tokens`: the answer was cut at its limit as often as it may go on;
`too_many_pauses`: the model paused it so often in a row;
`hook_stopped`: a hook refused the prompt, or ended the run; `stop_hook_prevented`: hooks kept it from ending
too often; `model_error` is every other failure of the provider; `tool_set_error` a tool that has
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


Transition = Literal[
    "start",
    "next_turn",
    "steering",
    "follow_up",
    "structured_output_retry",
    "background_result",
    "stop_hook_blocking",
    "token_budget",
    "max_output_tokens_raised",
    "max_output_tokens_continued",
    "pause_turn",
    "reactive_compaction",
    "model_fallback",
]
"""Why the model is asked: a prompt came; tools have answered; somebody said something meanwhile, or when
the run would have stopped; an output is owed; a background agent has ended; a hook wants it to go on; so do
the tokens that are to be spent; an answer was cut, or paused, and the rest of it is wanted. And why the same turn
is asked again: with more room for its answer, with a shorter conversation, of another model."""


@dataclass(frozen=True, slots=True)
class RequestStart:
    """The model is asked. After a `Retry` it is asked again, and earlier deltas of this turn are void."""

    turn: int
    """The turn within the conversation, from 1."""
    attempt: int
    """The attempt at this request, from 1."""
    transition: Transition = "start"
    """Why it is asked."""
    source: QuerySource = "main"
    """Who asks."""
    model: str = ""
    """Whom it asks."""


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
    """What ran: what the model asked for, or what hooks made of it."""
    answer: ToolAnswer
    """What the model sees."""
    duration_ns: int
    came: ToolAnswer | None = None
    """What the tool itself answered, where hooks changed what the model sees."""


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
class Heartbeat:
    """A long wait goes on; told every 30 seconds of it where nobody attends."""

    turn: int
    attempt: int
    """The attempt that failed, from 1; 0 where none was made, for the circuit breaker is open."""
    waited_s: float
    """So much of the wait is over, in seconds."""
    wait_s: float
    """The whole wait, in seconds."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """Another model is asked from now on."""

    turn: int
    from_model: str
    to_model: str


@dataclass(frozen=True, slots=True)
class Continuation:
    """An answer was cut at its limit of tokens, and the model is asked again."""

    turn: int
    number: int
    """How often for this answer, this time included."""
    max_tokens: int
    """The limit of the next answer."""
    is_void: bool
    """Whether the cut answer is void, because all of it is asked again with more room; else the next one goes on
    from it."""


@dataclass(frozen=True, slots=True)
class Degraded:
    """Something that the run could do it cannot do any more."""

    capability: str
    """What, as a label, such as `compaction`, `streaming` or `provider`."""
    reason: str
    """Why, as a label."""


@dataclass(frozen=True, slots=True)
class SettingHeld:
    """A setting was changed that would make the provider read the whole prompt anew; it stays as it was.

    `Conversation.unlatch` lets it change. Told once a run.
    """

    turn: int
    setting: str
    """Which: `betas`, `cache`, `thinking`, `extra.speed`, `extra.thinking` or `section:NAME`."""


@dataclass(frozen=True, slots=True)
class ThinkingCleared:
    """The thinking of earlier turns was taken out of the conversation for good: nobody asked for an hour."""

    turn: int
    """The turn whose request is the first without it."""
    blocks: int
    """How many blocks."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The conversation was made shorter: what the model knows of before this boundary lies in its first message."""

    turn: int
    """The turn that is asked next."""
    trigger: Literal["auto", "reactive", "manual"]
    """The threshold was reached; the provider refused the prompt as too long; somebody asked for it."""
    methods: tuple[str, ...]
    """What was done, in its order: `trim`, `drop`, `memory`, `summary`."""
    tokens_before: int
    tokens_after: int
    """Tokens of the conversation, counted before, estimated after."""
    threshold: int
    """Tokens from which on it is compacted."""
    messages_before: int
    messages_after: int
    kept_from: str | None
    """What stays as it was said: the id of the first tool call in it, or, where it holds none, `message:N` for the
    last N messages. None where nothing does."""
    turns_since_last: int | None
    """Turns since the compaction before; None for the first one."""
    files: int = 0
    """Files that were attached again."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """The model would stop, and is asked to go on, for there are tokens left that it is to spend."""

    turn: int
    number: int
    """How often in this interaction, this time included."""
    output_tokens: int
    """What it has said in this interaction so far."""


@dataclass(frozen=True, slots=True)
class HookRan:
    """A hook has answered, or has not."""

    turn: int
    event: str
    """What it was asked about, such as `pre_tool_use`."""
    hook: str
    """Its name."""
    outcome: Literal["success", "blocking", "non_blocking_error", "cancelled"]
    tool_use_id: str | None
    reason: str
    """What it says; content."""
    duration_ns: int


@dataclass(frozen=True, slots=True)
class SubAgent:
    """Something happened in an agent that this one started, or in one below it."""

    agent_id: str
    """The id of the tool call that started it."""
    agent: str
    """Its name."""
    lane: str
    depth: int
    """How deep it lies below the agent itself, from 1."""
    event: Event
    """What happened; its `Result` comes last."""


@dataclass(frozen=True, slots=True)
class BackgroundResult:
    """What a background agent found enters the conversation."""

    turn: int
    """The turn whose request holds it."""
    agent_id: str
    agent: str
    subtype: Subtype


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
    | Heartbeat
    | Fallback
    | Continuation
    | Degraded
    | SettingHeld
    | ThinkingCleared
    | Compaction
    | Nudge
    | HookRan
    | SubAgent
    | BackgroundResult
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
                totals[row.model] = _plus(totals.get(row.model, Tokens()), _counted(row))
    return totals


def together(*counted: Mapping[str, Tokens]) -> dict[str, Tokens]:
    """Return billed tokens by model, those of several added up."""
    totals: dict[str, Tokens] = {}
    for each in counted:
        for model, tokens in each.items():
            totals[model] = _plus(totals.get(model, Tokens()), tokens)
    return totals


def _counted(row: Usage) -> Tokens:
    return Tokens(
        row.input_tokens,
        row.output_tokens,
        row.cache_read_tokens,
        row.cache_write_5m_tokens,
        row.cache_write_1h_tokens,
        row.web_search_requests,
    )


def _plus(one: Tokens, other: Tokens) -> Tokens:
    return Tokens(*(a + b for a, b in zip(astuple(one), astuple(other), strict=True)))
