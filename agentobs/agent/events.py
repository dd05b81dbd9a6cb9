"""Events that the loop yields to its caller, as one closed union of frozen values.

The events contain content, such as texts, tool inputs and tool outputs. They are not recorded: the
recording is made from the facts that the loop emits to the sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from agentobs.agent.permissions import Decision
from agentobs.agent.run_result import Result, Subtype
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import QuerySource, ToolAnswer, ToolQuestion

Limit = Literal[
    "interaction_usd",
    "session_usd",
    "day_usd",
    "session_turns",
    "unpriced",
    "rising_cost",
    "diminishing_output",
    "repeated_calls",
]
"""The limit that was reached. `unpriced`: a model without a price was used, so a limit in money cannot be
enforced. `rising_cost` and `diminishing_output` are signs of a runaway, see `agentobs.ledger.runaway`.
`repeated_calls`: several turns made the same calls and got the same results, see `Budget.repeated_turns`.
"""


Speed = Literal["standard", "fast"]
"""The speed of a request (SDK 2.12, `messages.create`): `fast` is the provider's fast mode."""

LevelReaction = Literal["none", "compaction", "emergency", "off"]
"""What follows when a share of the context window is reached. `none`: nothing yet; `compaction`: the conversation is
compacted before the next request; `emergency`: compaction was given up, so only the emergency method is applied; `off`:
automatic compaction is off, so nothing is done before the provider refuses a prompt.
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
"""Why an LLM request is sent. `start`: there is a new prompt; `next_turn`: there are tool results; `steering`,
`follow_up`: the agent received a message while it ran, or when it was about to stop; `structured_output_retry`: the
required output is missing; `background_result`: a background agent has ended; `stop_hook_blocking`: a hook kept the run
from ending; `token_budget`: the token budget is not spent; `max_output_tokens_continued`, `pause_turn`: the response
was cut or paused, and the model continues it. The other reasons repeat the request of the turn: with a higher token
limit (`max_output_tokens_raised`), a shorter conversation (`reactive_compaction`) or another model (`model_fallback`).
"""


@dataclass(frozen=True, slots=True)
class RequestStart:
    """An attempt of an LLM request is sent. After a `Retry`, the earlier deltas of this turn are void."""

    turn: int
    """The turn within the conversation, from 1."""
    attempt: int
    """The number of the attempt, from 1."""
    transition: Transition = "start"
    """Why the request is sent."""
    source: QuerySource = "main"
    """The source of the request."""
    model: str = ""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A chunk of the text of the response, as it arrives; emitted only if the response is streamed."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A chunk of the thinking in the response, as it arrives; emitted only if the response is streamed."""

    thinking: str


@dataclass(frozen=True, slots=True)
class Message:
    """The complete response of a turn."""

    turn: int
    message: Json
    """The assistant message as the provider sent it, with stream events folded into one object."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A response is void, for example because it broke off.

    Any of its tool calls that had already started are void as well.
    """

    turn: int
    attempt: int
    tool_use_ids: tuple[str, ...]
    """The IDs of the calls that had started, in order."""


@dataclass(frozen=True, slots=True)
class Coercion:
    """Arguments of a call were converted to the types that the tool declares, for example `"3"` to 3."""

    question: ToolQuestion
    arguments: tuple[str, ...]
    """The paths of the converted arguments."""


@dataclass(frozen=True, slots=True)
class Permission:
    """The decision on whether a tool call may run."""

    question: ToolQuestion
    decision: Decision
    waited_ns: int
    """The approval wait in nanoseconds; 0 if no approval was requested."""


@dataclass(frozen=True, slots=True)
class ToolDispatch:
    """A tool call is about to run. A concurrency-safe call may run while the response is still
    arriving.
    """

    question: ToolQuestion


@dataclass(frozen=True, slots=True)
class ToolDone:
    """A tool call has its result. Parallel calls are reported in the order in which the model requested them."""

    question: ToolQuestion
    """The executed call, possibly with an input that hooks have changed."""
    answer: ToolAnswer
    """The result that the model sees."""
    duration_ns: int
    original_result: ToolAnswer | None = None
    """The original result of the tool, if hooks have changed the result that the model sees."""


@dataclass(frozen=True, slots=True)
class Steering:
    """The agent received messages while it ran; the next LLM request contains them."""

    turn: int
    texts: tuple[str, ...]
    skipped: tuple[str, ...]
    """The IDs of the tool calls that are skipped because of the messages."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The agent received messages when it was about to stop, so it continues."""

    turn: int
    """The turn after which the messages arrived."""
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutputRetry:
    """The model stopped without the required output and is prompted again."""

    turn: int
    number: int
    """The number of times that the model was prompted again, including this time."""


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """A budget limit was reached."""

    limit: Limit
    continues: bool
    """Whether the run continues anyway, because the limit only warns or a person approved."""


@dataclass(frozen=True, slots=True)
class BudgetLevel:
    """A large share of a budget is spent. Each share is reported once."""

    limit: Limit
    percent: int
    """The share that is reached, in percent: 80 or 95."""
    spent_usd: Decimal
    limit_usd: Decimal


@dataclass(frozen=True, slots=True)
class ContextLevel:
    """The conversation takes up a large share of the context window. Emitted when a share is reached."""

    turn: int
    """The turn of the next request."""
    percent: int
    """The share that is reached, in percent: 80 or 95."""
    tokens: int
    """Tokens of the next request."""
    window_tokens: int
    """The context window of the model."""
    reaction: LevelReaction


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
    """The HTTP status; None if no response arrived, 200 if the error arrived in a stream."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A long wait continues; emitted every 30 seconds in an unattended run."""

    turn: int
    attempt: int
    """The attempt that failed, from 1; 0 if the wait is for the circuit breaker, before the first attempt."""
    waited_s: float
    """The elapsed part of the wait, in seconds."""
    wait_s: float
    """The total length of the wait, in seconds."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """All further requests go to another model."""

    turn: int
    from_model: str
    to_model: str


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """Fast mode is suspended because its rate limit is used up, or it continues; see `AgentOptions.speed`."""

    turn: int
    speed: Speed
    """The speed of the next requests."""
    wait_s: float
    """How long fast mode is suspended, in seconds; 0 if it continues."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A response was cut at its token limit, and the model is called again."""

    turn: int
    number: int
    """The number of times that this response was continued or repeated, including this time."""
    max_tokens: int
    """The token limit of the next response."""
    is_void: bool
    """Whether the cut response is void, because the request is repeated with a higher limit. Otherwise the
    next response continues the cut response.
    """


@dataclass(frozen=True, slots=True)
class Degraded:
    """The run lost a capability."""

    capability: str
    """A label for the capability, such as `compaction`, `streaming` or `provider`."""
    reason: str
    """A label for the reason."""


@dataclass(frozen=True, slots=True)
class ToolWithdrawn:
    """A tool is no longer used in this conversation, because it failed too often in a row."""

    turn: int
    tool: str
    """The name of the tool."""
    failures: int
    """The number of consecutive failures."""
    fallback: str | None
    """The tool that gets its calls if their input fits; None if there is none."""


BreakerState = Literal["opened", "half_open", "closed"]
"""A change of a circuit breaker: it blocks all calls, lets one call through, or no longer blocks calls."""


@dataclass(frozen=True, slots=True)
class ServiceBreaker:
    """The circuit breaker of a service changed its state."""

    turn: int
    service: str
    """The name of the service."""
    state: BreakerState
    failures: int
    """The number of consecutive failures of the tools of the service."""


@dataclass(frozen=True, slots=True)
class SettingHeld:
    """A changed setting is not applied, because the change would invalidate the provider's prompt cache.

    `Conversation.unlatch` applies it. Emitted once per setting and run.
    """

    turn: int
    setting: str
    """The setting: `betas`, `cache`, `thinking`, `extra.speed` (also for `AgentOptions.speed`), `extra.thinking` or
    `section:NAME`.
    """


@dataclass(frozen=True, slots=True)
class ThinkingCleared:
    """Thinking of earlier turns was removed permanently, because there was no response for an hour."""

    turn: int
    """The first turn whose request does not contain the thinking."""
    blocks: int
    """The number of removed blocks."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The conversation was compacted: it is shorter now, and may start with a summary of the removed messages."""

    turn: int
    """The turn of the next request."""
    trigger: Literal["auto", "reactive", "manual", "emergency"]
    """`auto`: the threshold, or 95% of the window, was reached; `reactive`: the provider refused the prompt as too
    long; `manual`: the caller requested it; `emergency`: no other compaction was possible, and the window is almost
    full.
    """
    methods: tuple[str, ...]
    """The applied methods, in order: `trim`, `drop`, `memory`, `summary`."""
    tokens_before: int
    """Tokens of the conversation before the compaction, based on the provider's counts."""
    tokens_after: int
    """Tokens of the conversation after the compaction, as an estimate."""
    threshold: int
    """The token count at which a conversation is compacted."""
    messages_before: int
    messages_after: int
    kept_from: str | None
    """The start of the unchanged part: the ID of its first tool call, or, if it contains no call, `message:N` for the
    last N messages. None if nothing is unchanged.
    """
    turns_since_last: int | None
    """The number of turns since the previous compaction; None for the first compaction."""
    files: int = 0
    """The number of files that were attached again."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """The model was about to stop, and is prompted to continue because its token budget is not spent."""

    turn: int
    number: int
    """The number of nudges in this interaction, including this nudge."""
    output_tokens: int
    """The output tokens of this interaction so far."""


@dataclass(frozen=True, slots=True)
class HookRan:
    """A hook ran or failed."""

    turn: int
    event: str
    """The event for which the hook ran, such as `pre_tool_use`."""
    hook: str
    """The name of the hook."""
    outcome: Literal["success", "blocking", "non_blocking_error", "cancelled"]
    tool_use_id: str | None
    """The ID of the tool call that the event is about; None if it is not about a call."""
    reason: str
    """The reason that the hook gave. The text is content."""
    duration_ns: int


@dataclass(frozen=True, slots=True)
class SubAgent:
    """An event of a sub-agent, at any depth."""

    agent_id: str
    """The ID of the tool call that started the sub-agent."""
    agent: str
    """The name of the sub-agent."""
    lane: str
    """The lane of the sub-agent."""
    depth: int
    """The depth of the sub-agent below the main agent, from 1."""
    event: Event
    """The event of the sub-agent. Its last event is its `Result`."""


@dataclass(frozen=True, slots=True)
class BackgroundResult:
    """The result of a background agent is added to the conversation."""

    turn: int
    """The turn whose request contains the result."""
    agent_id: str
    """The ID of the tool call that started the agent."""
    agent: str
    """The name of the agent."""
    subtype: Subtype
    """How the agent ended."""


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
    | BudgetLevel
    | ContextLevel
    | Retry
    | Heartbeat
    | Fallback
    | SpeedChange
    | Continuation
    | Degraded
    | SettingHeld
    | ToolWithdrawn
    | ServiceBreaker
    | ThinkingCleared
    | Compaction
    | Nudge
    | HookRan
    | SubAgent
    | BackgroundResult
    | Result
)
