"""The result of a run, and the exceptions that `Result.raise_for_error` raises for a run that failed.

A run never raises because of the provider, a limit or an abort: its result states the reason. The exceptions are for
programs that prefer them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal, Self

from agentobs.ledger import Meter
from agentobs.provider.anthropic.usage import usage_rows
from agentobs.records.canonical_json import Json
from agentobs.records.usage import Usage

Subtype = Literal[
    "success",
    "error_max_turns",
    "error_max_budget_usd",
    "error_during_execution",
    "error_max_structured_output_retries",
]
"""How a run ended: with a final response, at its turn limit, at its budget, with an error, or without the required
output.
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
"""Why a run ended. `max_output_tokens`: the response was cut at its token limit, even after the maximum number of
continuations; `too_many_pauses`: the model paused the response too often in a row; `hook_stopped`: a hook refused the
prompt or ended the run; `stop_hook_prevented`: hooks prevented the end of the run too many times; `model_error`: any
other failure of the provider; `tool_set_error`: a required tool is missing; `internal_error`: an exception that was
raised neither by the provider nor by a tool.
"""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Billed tokens of one model, in disjoint classes. The fields have the same meaning as in `Usage`."""

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
    """The name of the tool, as in the call."""
    reason: str
    """The reason that was given to the model."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run; always the last event, and emitted exactly once."""

    subtype: Subtype
    terminal_reason: TerminalReason
    text: str
    """The text of the last complete response, its text blocks joined by newlines."""
    stop_reason: str | None
    """The provider's stop reason of the last complete response."""
    num_turns: int
    """The number of turns of this run: complete responses, except those that were discarded. The turns of sub-agents
    are in their own results. A session counts turns in the same way, for all of its runs and sub-agents.
    """
    error: str | None
    """The name of the error that ended the run, as in `Retry.error`, or the terminal reason if a hook ended the run."""
    error_text: str | None
    """The message of the error, or the reason of the hook. The text is content."""
    usage: Mapping[str, Tokens]
    """The usage that the provider reported, by model. It includes the known part of responses that broke off."""
    duration_ns: int
    """The duration of the run."""
    provider_ns: int
    """The time spent waiting for and receiving responses, including failed attempts."""
    provider_ok_ns: int
    """The part of `provider_ns` that belongs to complete responses."""
    tools_ns: int
    """The sum of the durations of all tool calls, even if they ran in parallel."""
    session_id: str | None
    """The session in which the run was recorded; None outside a session."""
    denials: tuple[Denial, ...] = ()
    """The tool calls that were not permitted, in order."""
    output: Any = None
    """The structured output, an instance of the model in `AgentOptions.output`; None if there is none."""
    num_tool_calls: int = 0
    """The number of tool calls in the responses of these turns, regardless of their outcome. Calls of tools that the
    provider ran do not count.
    """
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)
    """The usage of the run, for pricing."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception that `error` names, with its traceback."""

    def raise_for_error(self) -> Self:
        """Return this result if the run succeeded, so that calls can be chained.

        For example: `(await agent.run("Hello")).raise_for_error().text`.

        Raises:
            RunFailed: the run did not succeed. Each terminal reason has a subclass, such as `ProviderError`. The
                original exception, if there is one, is the `__cause__`.
        """
        if self.terminal_reason == "completed":
            return self
        raise FAILURES[self.terminal_reason](self) from self.exception

    @property
    def total_cost_usd(self) -> Decimal | None:
        """The cost of the run in USD; None if no price is known. The first access loads the price list."""
        return self.meter.total().usd

    @property
    def cost_status(self) -> str:
        """The certainty of the cost: `exact`, `lower_bound`, `estimated` or `unknown_model`."""
        return self.meter.total().status


class RunFailed(Exception):
    """A run did not succeed: the base of the exceptions of `Result.raise_for_error`.

    The message contains `Result.error_text`, which is content. The exception can be pickled if its result can.

    Attributes:
        result: the result of the run, with its usage and the text so far.
    """

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        """Return the terminal reason, with the name and the message of the error if there is one."""
        result, reason = self.result, self.result.terminal_reason
        parts = [reason, None if result.error == reason else result.error, result.error_text]
        return "The run ended with " + ": ".join(filter(None, parts))


class TurnLimit(RunFailed):
    """The run reached `AgentOptions.max_turns`, `Budget.session_turns` or `Budget.repeated_turns`."""


class BudgetExceeded(RunFailed):
    """A cost limit was reached, or cannot be enforced because a model has no price."""


class OutputMissing(RunFailed):
    """The model did not return the required structured output."""


class Aborted(RunFailed):
    """The run was aborted from outside."""


class ContextExceeded(RunFailed):
    """The conversation does not fit the model's context window, even after a compaction."""


class ProviderError(RunFailed):
    """The provider refused the request, was unavailable, or sent an unusable response."""


class Refused(RunFailed):
    """The model refused to respond."""


class ResponseCut(RunFailed):
    """The response was cut at its token limit, even after the maximum number of continuations."""


class HookStopped(RunFailed):
    """A hook refused the prompt, ended the run, or prevented its end too many times."""


class ToolsMissing(RunFailed):
    """A required tool is not available."""


class InternalError(RunFailed):
    """An exception was raised that comes neither from the provider nor from a tool."""


FAILURES: Mapping[TerminalReason, type[RunFailed]] = MappingProxyType(
    {
        "max_turns": TurnLimit,
        "max_budget": BudgetExceeded,
        "max_structured_output_retries": OutputMissing,
        "aborted_streaming": Aborted,
        "aborted_tools": Aborted,
        "prompt_too_long": ContextExceeded,
        "image_error": ProviderError,
        "model_error": ProviderError,
        "too_many_pauses": ProviderError,
        "tool_set_error": ToolsMissing,
        "internal_error": InternalError,
        "refusal": Refused,
        "max_output_tokens": ResponseCut,
        "hook_stopped": HookStopped,
        "stop_hook_prevented": HookStopped,
    }
)
"""The exception for each terminal reason except `completed`."""


def billed_tokens(model: str, responses: Iterable[Json]) -> dict[str, Tokens]:
    """Return the billed tokens of some responses, by model. `model` is the default for responses without a model."""
    totals: dict[str, Tokens] = {}
    for response in responses:
        usage = response.get("usage")
        if not isinstance(usage, dict) or "output_tokens" not in usage:
            continue
        for row in usage_rows(response.get("model") or model, usage, "exact"):
            if row.billed:
                totals[row.model] = _sum(totals.get(row.model, Tokens()), _tokens_of(row))
    return totals


def sum_tokens(*counts: Mapping[str, Tokens]) -> dict[str, Tokens]:
    """Return the sum of several counts of billed tokens, by model."""
    totals: dict[str, Tokens] = {}
    for each in counts:
        for model, tokens in each.items():
            totals[model] = _sum(totals.get(model, Tokens()), tokens)
    return totals


def _tokens_of(row: Usage) -> Tokens:
    return Tokens(
        row.input_tokens,
        row.output_tokens,
        row.cache_read_tokens,
        row.cache_write_5m_tokens,
        row.cache_write_1h_tokens,
        row.web_search_requests,
    )


def _sum(one: Tokens, other: Tokens) -> Tokens:
    return Tokens(*(a + b for a, b in zip(astuple(one), astuple(other), strict=True)))
