"""Events that the loop yields while it runs, as one closed union of frozen values.

They contain content (text, tool input and output) and go to the caller only. The recording is made
from the facts that the loop emits to the sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from decimal import Decimal
from typing import Any, Literal

from agentobs.agent.permissions import Decision
from agentobs.ledger import Meter
from agentobs.provider.anthropic.usage import usage_rows
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import QuerySource, ToolAnswer, ToolQuestion
from agentobs.records.usage import Usage

Subtype = Literal[
    "success",
    "error_max_turns",
    "error_max_budget_usd",
    "error_during_execution",
    "error_max_structured_output_retries",
]
"""How a run ended: with a final response, at its turn limit or budget, with an error, or without the required output.
"""

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
"""What ended a run. `max_output_tokens`: the response was cut at its token limit and continued as often as allowed;
`too_many_pauses`: the model paused the response too often in a row; `hook_stopped`: a hook refused the prompt or ended
the run; `stop_hook_prevented`: hooks kept the run from ending too often; `model_error`: any other failure of the
provider; `tool_set_error`: a required tool is missing; `internal_error`: an exception from neither the provider nor a
tool.
"""

Limit = Literal[
    "interaction_usd",
    "session_usd",
    "day_usd",
    "session_turns",
    "unpriced",
    "rising_cost",
    "diminishing_output",
]
"""The budget that was reached. `unpriced`: a model without a price was used, so a limit in money
cannot be enforced. The last two are signs of a runaway, see `agentobs.ledger.runaway`.
"""


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
"""Why an LLM request is sent: a prompt; tool results; a message to the agent during the run or at its end; a required
output is missing; a background agent has ended; a hook wants the run to continue; tokens are left to spend; a response
was cut or paused and is continued. The rest repeat a
turn: with a higher token limit, with a shorter conversation, or with another model.
"""


@dataclass(frozen=True, slots=True)
class RequestStart:
    """An LLM request is sent. After a `Retry`, this is the next attempt, and earlier deltas of this
    turn are void.
    """

    turn: int
    """The turn within the conversation, from 1."""
    attempt: int
    """The attempt of this request, from 1."""
    transition: Transition = "start"
    """Why it is sent."""
    source: QuerySource = "main"
    """The source of the request."""
    model: str = ""
    """The model."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A chunk of the response's text as it arrives; only if the response is streamed."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A chunk of the response's thinking as it arrives; only if the response is streamed."""

    thinking: str


@dataclass(frozen=True, slots=True)
class Message:
    """The complete response of a turn."""

    turn: int
    message: Json
    """The assistant message as the provider sent it, with stream events folded into one object."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A response broke off. Its content is void, and so are the tool calls that had started."""

    turn: int
    attempt: int
    tool_use_ids: tuple[str, ...]
    """The calls that had started, in order."""


@dataclass(frozen=True, slots=True)
class Coercion:
    """Arguments of a call were converted to the tool's types, such as `"3"` to 3."""

    question: ToolQuestion
    arguments: tuple[str, ...]
    """The converted arguments, as paths."""


@dataclass(frozen=True, slots=True)
class Permission:
    """It was decided whether a tool call may run."""

    question: ToolQuestion
    decision: Decision
    waited_ns: int
    """Approval wait in nanoseconds; 0 if no approval was requested."""


@dataclass(frozen=True, slots=True)
class ToolDispatch:
    """A tool call is about to run. A concurrency-safe call may run while the response is still
    arriving.
    """

    question: ToolQuestion


@dataclass(frozen=True, slots=True)
class ToolDone:
    """A tool call has its result. Calls that ran in parallel are reported in the order of the calls."""

    question: ToolQuestion
    """The executed call: as requested by the model, or as changed by hooks."""
    answer: ToolAnswer
    """The result that the model sees."""
    duration_ns: int
    came: ToolAnswer | None = None
    """The tool's own result, if hooks changed what the model sees."""


@dataclass(frozen=True, slots=True)
class Steering:
    """The agent received messages while it ran; the next LLM request contains them."""

    turn: int
    texts: tuple[str, ...]
    skipped: tuple[str, ...]
    """IDs of the tool calls that are skipped because of them."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The agent received messages when it was about to stop, so it continues."""

    turn: int
    """The turn after which they arrived."""
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutputRetry:
    """The model stopped without the required output and is prompted for it again."""

    turn: int
    number: int
    """How often it was prompted again, this time included."""


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """A budget limit was reached."""

    limit: Limit
    continues: bool
    """Whether the run continues anyway, because the limit only warns or a person approved."""


@dataclass(frozen=True, slots=True)
class Retry:
    """An attempt failed, and the next one follows after a backoff."""

    turn: int
    attempt: int
    """The attempt that failed, from 1."""
    wait_s: float
    """The backoff in seconds."""
    error: str
    """The provider's error type such as `overloaded_error`, or the exception's class."""
    status: int | None
    """The HTTP status; None if no response arrived, 200 if a stream carried the error."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A long wait continues; emitted every 30 seconds in unattended mode."""

    turn: int
    attempt: int
    """The attempt that failed, from 1; 0 if none was made because the circuit breaker is open."""
    waited_s: float
    """Elapsed part of the wait, in seconds."""
    wait_s: float
    """Total length of the wait, in seconds."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """Further requests go to another model."""

    turn: int
    from_model: str
    to_model: str


@dataclass(frozen=True, slots=True)
class Continuation:
    """A response was cut at its token limit, and the model is called again."""

    turn: int
    number: int
    """How often for this response, this time included."""
    max_tokens: int
    """The token limit of the next response."""
    is_void: bool
    """Whether the cut response is void because the whole request is repeated with a higher limit;
    otherwise the next response continues it.
    """


@dataclass(frozen=True, slots=True)
class Degraded:
    """The run lost a capability."""

    capability: str
    """The capability as a label, such as `compaction`, `streaming` or `provider`."""
    reason: str
    """The reason as a label."""


@dataclass(frozen=True, slots=True)
class SettingHeld:
    """A changed setting was not applied, because it would invalidate the provider's prompt cache.

    `Conversation.unlatch` applies it. Emitted once per run.
    """

    turn: int
    setting: str
    """The setting: `betas`, `cache`, `thinking`, `extra.speed`, `extra.thinking` or `section:NAME`."""


@dataclass(frozen=True, slots=True)
class ThinkingCleared:
    """Thinking of earlier turns was permanently removed, because there was no LLM request for an
    hour.
    """

    turn: int
    """The turn whose request is the first without it."""
    blocks: int
    """Number of removed blocks."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The conversation was compacted: its first message now holds what the model knows of everything before."""

    turn: int
    """The turn of the next request."""
    trigger: Literal["auto", "reactive", "manual"]
    """Threshold reached; prompt refused by the provider as too long; requested by the caller."""
    methods: tuple[str, ...]
    """The applied methods, in order: `trim`, `drop`, `memory`, `summary`."""
    tokens_before: int
    tokens_after: int
    """Tokens of the conversation: counted before, estimated after."""
    threshold: int
    """Token count at which compaction starts."""
    messages_before: int
    messages_after: int
    kept_from: str | None
    """The start of the unchanged part: the ID of its first tool call, or `message:N` for the last N
    messages if it has no call. None if nothing is unchanged.
    """
    turns_since_last: int | None
    """Turns since the previous compaction; None for the first."""
    files: int = 0
    """Number of files that were attached again."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """The model was about to stop and is prompted to continue, because its token budget is not spent."""

    turn: int
    number: int
    """How often in this interaction, this time included."""
    output_tokens: int
    """Output tokens of this interaction so far."""


@dataclass(frozen=True, slots=True)
class HookRan:
    """A hook ran, or failed to."""

    turn: int
    event: str
    """The event that it ran on, such as `pre_tool_use`."""
    hook: str
    """The hook's name."""
    outcome: Literal["success", "blocking", "non_blocking_error", "cancelled"]
    tool_use_id: str | None
    reason: str
    """The reason that it gave; content."""
    duration_ns: int


@dataclass(frozen=True, slots=True)
class SubAgent:
    """An event of a sub-agent, at any depth."""

    agent_id: str
    """The ID of the tool call that started it."""
    agent: str
    """The sub-agent's name."""
    lane: str
    depth: int
    """Its depth below the main agent, from 1."""
    event: Event
    """The event; the sub-agent's `Result` is the last one."""


@dataclass(frozen=True, slots=True)
class BackgroundResult:
    """The result of a background agent enters the conversation."""

    turn: int
    """The turn whose request contains it."""
    agent_id: str
    agent: str
    subtype: Subtype


@dataclass(frozen=True, slots=True)
class Tokens:
    """Billed tokens of one model, in disjoint buckets; the fields are defined as in `Usage`."""

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
    """The tool, as named by the model."""
    reason: str
    """The reason as shown to the model."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run; always the last event, emitted exactly once."""

    subtype: Subtype
    terminal_reason: TerminalReason
    text: str
    """The text of the last complete response, its text blocks joined by newlines."""
    stop_reason: str | None
    """The provider's stop reason of the last complete response."""
    num_turns: int
    """Turns of this interaction with a complete response."""
    error: str | None
    """The name of the error that ended the run, as in `Retry`."""
    error_text: str | None
    """The message of that error; content."""
    usage: Mapping[str, Tokens]
    """Usage reported by the provider, by model, including the known part of responses that broke off.
    """
    duration_ns: int
    """Wall time of the run."""
    provider_ns: int
    """The part spent waiting for and receiving responses, failed attempts included."""
    provider_ok_ns: int
    """The part of that which belongs to complete responses."""
    tools_ns: int
    """Sum of the durations of all tool calls, parallel calls counted separately."""
    session_id: str | None
    """The recorded session, or None outside a session."""
    denials: tuple[Denial, ...] = ()
    """The tool calls that were not permitted, in order."""
    output: Any = None
    """The structured output, an instance of the model in `Options.output`, if set."""
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)
    """The usage, for pricing."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception behind `error`, with its traceback."""

    @property
    def total_cost_usd(self) -> Decimal | None:
        """The cost of the run in USD; None if no price is known. The first access loads the price
        list.
        """
        return self.meter.total().usd

    @property
    def cost_status(self) -> str:
        """The certainty of the cost: `exact`, `lower_bound`, `estimated` or `unknown_model`."""
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
    """Return the billed tokens of some responses by model; `model` is used if a response names none."""
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
    """Return the sum of several counts of billed tokens, by model."""
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
