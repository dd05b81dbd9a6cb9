"""The data of one run while it is in progress: its inputs, its progress and its totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from anthropic import AsyncAnthropic
from pydantic import BaseModel

from agentobs.agent import telemetry
from agentobs.agent.conversation_hooks import ConversationHooks
from agentobs.agent.events import Limit, ToolDone
from agentobs.agent.model import error_classes, output_limits
from agentobs.agent.model.prompt_cache import RequestMessages
from agentobs.agent.model.thinking import has_thinking
from agentobs.agent.run_result import (
    Denial,
    Result,
    Subtype,
    TerminalReason,
    Tokens,
    billed_tokens,
    sum_tokens,
)
from agentobs.agent.state import (
    AgentOptions,
    BackgroundAgent,
    Conversation,
    State,
    Tools,
    calls,
    tool_call_ids,
)
from agentobs.agent.tool_calls.dispatcher import Dispatcher
from agentobs.agent.tool_calls.trust import hand_up
from agentobs.ledger import Meter
from agentobs.provider.dialect import text_of
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource, ToolAnswer
from agentobs.records.usage import Certainty, unreported_usage
from agentobs.world import World


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The inputs of a run."""

    world: World
    options: AgentOptions
    """The options; after a fallback, they name the fallback model."""
    tools: Tools
    started_ns: int
    """Start time by the world's clock, in nanoseconds since 1970."""
    output_declaration: Json | None = None
    """The declaration of the structured output tool, as sent to the provider."""
    source: QuerySource = "main"
    """The source of the run's LLM requests: the main agent or a sub-agent."""
    parent: Run | None = None
    """The run whose tool call started this run."""
    is_background: bool = False
    """Whether the run may continue after its parent has ended."""
    level: int = 0
    """The depth of the agent below the main agent."""
    lane: str = "main"
    """The name of the agent's lane, set even if nothing is recorded."""
    refused_tools: Mapping[str, ToolAnswer] = field(default_factory=dict)
    """The results for calls of tools that the run must not use, by tool name."""


@dataclass(slots=True)
class RunProgress:
    """The progress of a run and its outcome."""

    conversation: Conversation
    state: State
    """The current state of the loop."""
    client: AsyncAnthropic
    """The world's client with its own retries disabled, because the loop handles retries."""
    tool_call_ids: frozenset[str]
    """The IDs of the tool calls in the conversation."""
    request_messages: RequestMessages = field(default_factory=RequestMessages)
    """The messages, converted to the form that requests contain."""
    depth: int = 0
    """Number of LLM requests in this turn, including maintenance requests."""
    text: str = ""
    """The text of the last response. If the response continues a cut or paused response, the text includes the earlier
    parts.
    """
    cut_response: Json | None = None
    """The cut response of this turn, which is kept while the request is repeated with a higher token limit."""
    entering_agents: list[BackgroundAgent] = field(default_factory=list)
    """Background agents whose results become part of the conversation when the conversation is next stored."""
    has_fallen_back: bool = False
    """Whether the run uses the fallback model."""
    exceeded_limits: set[Limit] = field(default_factory=set)
    """Limits that were reached and reported, but do not end the run."""
    reported_settings: set[str] = field(default_factory=set)
    """Latched settings whose change was already reported."""
    nudge_tokens: list[int] = field(default_factory=list)
    """The number of output tokens at the time of each nudge; see `AgentOptions.token_budget`."""
    output: BaseModel | None = None
    """The structured output, once it is final."""
    last_calls: list[tuple[str, Json, ToolAnswer]] = field(default_factory=list)
    """The name, the input and the result of each call of the last turn with tools."""
    repeated_turns: int = 1
    """Number of most recent turns with tools that made the same calls and got the same results."""
    limit_reason: str | None = None
    """An explanation of the limit that ended the run, if its name does not suffice."""
    next_state: State | None = None
    """The state in which the next turn starts; None if there is no next turn."""
    subtype: Subtype = "success"
    """How the run ends."""
    reason: TerminalReason = "completed"
    """Why the run ends."""
    error: Exception | None = None
    """The error that ends the run."""
    veto_reason: str | None = None
    """The reason of the hooks that ended the run; None if no hook ended it."""


@dataclass(slots=True)
class RunTotals:
    """The responses of a run so far, and totals of its usage and times."""

    meter: Meter = field(default_factory=Meter)
    """The usage of the run, including the usage of sub-agents whose results it has received."""
    interaction_meter: Meter = field(default_factory=Meter)
    """Usage that counts toward the budget of the interaction: that of the main agent and of all agents below it,
    including agents that are still running. All runs of an interaction share this meter.
    """
    inherited_usage: list[Mapping[str, Tokens]] = field(default_factory=list)
    """The usage of each sub-agent whose result the run has received, by model."""
    responses: list[Json] = field(default_factory=list)
    """The complete responses of the turns."""
    void_responses: list[Json] = field(default_factory=list)
    """The received parts of responses that broke off, and complete responses that were replaced. All of them count as
    usage. If the run is stopped during a response, the last item is that response.
    """
    maintenance_responses: list[Json] = field(default_factory=list)
    """Responses to maintenance requests, and the usage of requests that hooks made."""
    turn_usage: list[tuple[Meter, int]] = field(default_factory=list)
    """The usage and the output tokens of each turn, without failed attempts. Empty unless `Budget.runaway` is set."""
    provider_ns: int = 0
    """Time spent waiting for and receiving responses."""
    provider_ok_ns: int = 0
    """The part of `provider_ns` that belongs to complete responses."""
    tools_ns: int = 0
    """The sum of the durations of all tool calls."""
    denials: list[Denial] = field(default_factory=list)
    day_usd: Decimal = Decimal(0)
    """Today's spending, as the world last reported it."""


class Run:
    """One run of an agent, from a prompt to its result.

    Attributes:
        inputs: the inputs, which are only replaced if the run falls back to another model.
        progress: the progress and the outcome.
        totals: the responses and totals.
        hooks: the hooks of the conversation.
    """

    __slots__ = ("hooks", "inputs", "progress", "totals")

    def __init__(self, inputs: RunInputs, conversation: Conversation, state: State) -> None:
        """Start a run in a state; a sub-agent shares the budget of its parent."""
        self.inputs, self.totals = inputs, RunTotals()
        self.progress = RunProgress(
            conversation,
            state,
            inputs.world.client.with_options(max_retries=0),
            tool_call_ids(conversation.messages),
        )
        parent = inputs.parent
        if parent is None:
            conversation.budget_levels.pop("interaction_usd", None)
        else:
            self.totals.interaction_meter = parent.totals.interaction_meter
            self.progress.exceeded_limits = set(parent.progress.exceeded_limits)
            if parent.inputs.options.model == inputs.options.model:
                self.progress.has_fallen_back = parent.progress.has_fallen_back
                if conversation.fast_resumes_ns is None:
                    conversation.fast_resumes_ns = parent.progress.conversation.fast_resumes_ns
        self.hooks = ConversationHooks(
            inputs.world, inputs.options.hooks, conversation, self.count_hook_usage
        )

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        """The conversations of this run and of the runs above it, ending with the main agent's."""
        parent = self.inputs.parent
        above = parent.conversations if parent is not None else ()
        return (self.progress.conversation, *above)

    @property
    def meters(self) -> tuple[Meter, ...]:
        """Every meter that counts the usage of this run, without duplicates."""
        own_meters = (self.totals.meter, self.progress.conversation.meter)
        parent = self.inputs.parent
        if parent is None:
            return (*own_meters, self.totals.interaction_meter)
        if not self.inputs.is_background:
            return (*own_meters, *parent.meters)
        # The usage of a background agent is counted by the run that receives its result.
        above = (conversation.meter for conversation in parent.conversations)
        return (*own_meters, *above, self.totals.interaction_meter)

    @property
    def shares_budget(self) -> bool:
        """Whether other runs share the budget, so that timing determines when a limit is reached."""
        return self.inputs.parent is not None or bool(self.progress.conversation.background)

    @property
    def is_stopped(self) -> bool:
        """Whether the run was stopped on purpose."""
        return self.progress.reason in ("aborted_streaming", "aborted_tools")

    def request_place(
        self, here: Place | None, source: QuerySource | None = None, *, lane: str | None = None
    ) -> Place | None:
        """Count an LLM request of the turn, and return its place.

        Args:
            here: the place of the turn.
            source: the source of the request; by default the agent itself.
            lane: the lane of a maintenance request (see `child_lane`), so that the agent's lane
                contains only its turns; by default the lane of `here`.
        """
        self.progress.depth += 1
        return telemetry.request_place(
            here, source or self.inputs.source, depth=self.progress.depth, lane=lane
        )

    def fall_back_to(self, model: str) -> None:
        """Use another model for the rest of the run; there is no second fallback."""
        options = replace(self.inputs.options, model=model, fallback_model=None)
        self.inputs = replace(self.inputs, options=options)
        self.progress.has_fallen_back = True

    def at_current_speed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a request, at standard speed if fast mode is suspended or a fallback model is used,
        which may have no fast mode.
        """
        progress = self.progress
        if progress.conversation.fast_resumes_ns is None and not progress.has_fallen_back:
            return arguments
        return output_limits.without_field(arguments, "speed")

    def renew_client(self) -> None:
        """Use the world's current client, whose credentials may have been refreshed."""
        self.progress.client = self.inputs.world.client.with_options(max_retries=0)

    def end(self, subtype: Subtype, reason: TerminalReason) -> None:
        """Record how the run ends."""
        self.progress.subtype, self.progress.reason = subtype, reason

    def end_by_hook(self, reason: TerminalReason, why: str) -> None:
        """Record that hooks end the run, and why."""
        self.end("error_during_execution", reason)
        self.progress.veto_reason = why

    def fail(self, reason: TerminalReason, error: Exception) -> None:
        """Record the error that ends the run."""
        self.end("error_during_execution", reason)
        self.progress.error = error

    def store(self, state: State) -> None:
        """Store the state's messages in the conversation, so that another run can continue from here."""
        conversation = self.progress.conversation
        conversation.messages, conversation.turns = state.messages, state.turn
        self.count_entered_agents()

    def store_tool_results(self, dispatcher: Dispatcher, state: State) -> None:
        """Count the executed tools, and store the conversation with their results."""
        self._count_repeated_turn(dispatcher.results)
        self.totals.denials += dispatcher.denials
        self.progress.conversation.messages = state.messages
        for conversation in self.conversations:
            conversation.tool_turns += 1
        self.count_entered_agents()

    def _count_repeated_turn(self, results: Sequence[ToolDone]) -> None:
        """Count how many turns in a row made the same calls and got the same results."""
        made = [(done.question.name, done.question.input, done.answer) for done in results]
        before, self.progress.last_calls = self.progress.last_calls, made
        is_same = len(before) == len(made) and all(map(_is_same_call, before, made))
        self.progress.repeated_turns = self.progress.repeated_turns + 1 if is_same else 1

    def forget_repeated_turns(self) -> None:
        """Restart the count of repeated turns, because a person has sent a message."""
        self.progress.last_calls, self.progress.repeated_turns = [], 1

    def count_entered_agents(self) -> None:
        """Count the usage of the background agents whose results are now part of the stored conversation."""
        conversation = self.progress.conversation
        for agent in self.progress.entering_agents:
            del conversation.background[agent.agent_id]
            hand_up(
                agent.conversation, agent.initial_denials, agent.initial_tool_runs, conversation
            )
            result = agent.result
            if result is not None:
                conversation.children[agent.agent_id] = agent.conversation
                self.totals.inherited_usage.append(result.usage)
                self.totals.meter.include(result.meter)
        self.progress.entering_agents = []

    def accept_response(self, message: Json) -> None:
        """Record the complete response of a turn, and count its usage."""
        self.progress.cut_response = None
        self._add_response(message)
        self.count_usage(message, "exact")
        self._add_turn_usage(message)

    def restore_cut_response(self) -> Json | None:
        """Make the cut response the response of the turn, after the repeated request failed.

        Return the response, or None if no response was cut. The usage of the response is already counted.
        """
        message, self.progress.cut_response = self.progress.cut_response, None
        if message is not None:
            void = self.totals.void_responses
            self.totals.void_responses = [each for each in void if each is not message]
            self._add_response(message)
            self._add_turn_usage(message)
        return message

    def _add_response(self, message: Json) -> None:
        conversation = self.progress.conversation
        self.totals.responses.append(message)
        self.progress.text = self.progress.state.response_text + text_of(message.get("content"))
        # Once the model has used thinking, the time of each response matters, because thinking is
        # cleared after an hour.
        if conversation.thought_ns is not None or has_thinking(message):
            conversation.thought_ns = self.inputs.world.now()

    def _add_turn_usage(self, message: Json) -> None:
        """Record the usage of a single turn, if it is needed to detect runaways."""
        usage, options = message.get("usage"), self.inputs.options
        if not options.budget.runaway or not isinstance(usage, dict):
            return
        meter, output_tokens = Meter(), usage.get("output_tokens")
        meter.add(message.get("model") or options.model, usage, self.inputs.world.now())
        output_tokens = output_tokens if isinstance(output_tokens, int) else 0
        self.totals.turn_usage.append((meter, output_tokens))

    def count_usage(self, message: Json, certainty: Certainty) -> None:
        """Count the usage of a response, complete or partial."""
        usage, world = message.get("usage"), self.inputs.world
        if isinstance(usage, dict) and "output_tokens" in usage and world.is_billed(message):
            model, at_ns = message.get("model") or self.inputs.options.model, world.now()
            for meter in self.meters:
                meter.add(model, usage, at_ns, certainty)

    def count_hook_usage(self, responses: Sequence[Json]) -> None:
        """Count the usage of model requests that hooks made.

        Each item has a `model` and the `usage` that the provider reported. A `certainty` of
        `lower_bound` marks an attempt that broke off, whose usage is only partly known.
        """
        self.totals.maintenance_responses += responses
        for each in responses:
            is_partial = each.get("certainty") == "lower_bound"
            self.count_usage(each, "lower_bound" if is_partial else "exact")
            if is_partial and "output_tokens" not in each["usage"]:
                self._count_unreported(each, each["model"])

    def count_failed_attempt(self, message: Json, took_ns: int, error: Exception) -> None:
        """Count a response that broke off, even if its usage was never reported.

        Args:
            message: the received part of the response.
            took_ns: the duration of the attempt.
            error: why it failed.
        """
        self.totals.void_responses.append(message)
        self.totals.provider_ns += took_ns
        if "usage" in message:
            self.count_usage(message, "lower_bound")
        elif error_classes.may_have_cost(error):
            self._count_unreported(message, None)

    def _count_unreported(self, message: Json, model: str | None) -> None:
        """Count a response whose usage is unknown, if it is billed."""
        if self.inputs.world.is_billed(message):
            row = unreported_usage(model or self.inputs.options.model)
            at_ns = self.inputs.world.now()
            for meter in self.meters:
                meter.add_rows([(row, at_ns)])

    def result(self, place: Place | None) -> Result:
        """Return the result of the run."""
        inputs, progress, totals = self.inputs, self.progress, self.totals
        last = totals.responses[-1] if totals.responses else {}
        error, is_vetoed = progress.error, progress.veto_reason is not None
        counted = [*totals.responses, *totals.void_responses, *totals.maintenance_responses]
        return Result(
            subtype=progress.subtype,
            terminal_reason=progress.reason,
            text=progress.text,
            stop_reason=last.get("stop_reason"),
            num_turns=len(totals.responses),
            num_tool_calls=sum(len(calls(each)) for each in totals.responses),
            error=error_classes.name_of(error) if error else progress.reason if is_vetoed else None,
            error_text=error_classes.text_of(error)
            if error
            else progress.veto_reason or progress.limit_reason,
            usage=sum_tokens(billed_tokens(inputs.options.model, counted), *totals.inherited_usage),
            duration_ns=max(inputs.world.now() - inputs.started_ns, 0),
            provider_ns=totals.provider_ns,
            provider_ok_ns=totals.provider_ok_ns,
            tools_ns=totals.tools_ns,
            session_id=place.session_id if place else None,
            denials=tuple(totals.denials),
            output=progress.output,
            meter=totals.meter,
            exception=error,
        )


def _is_same_call(one: tuple[str, Json, ToolAnswer], other: tuple[str, Json, ToolAnswer]) -> bool:
    """Return whether two calls have the same name, input and result."""
    (name, call_input, answer), (other_name, other_input, other_answer) = one, other
    return (
        name == other_name
        and call_input == other_input
        and answer.is_error == other_answer.is_error
        and answer.content == other_answer.content
    )


class ResponseTimer:
    """Measures the time spent waiting for and receiving responses, excluding the time that the event consumer takes."""

    def __init__(self, world: World) -> None:
        """Start at the world's current time."""
        self._world, self._total_ns, self._resumed_ns = world, 0, world.now()
        self._is_stopped = False

    def stop(self) -> int:
        """Stop, and return the total in nanoseconds."""
        if not self._is_stopped:
            self._total_ns += max(self._world.now() - self._resumed_ns, 0)
            self._is_stopped = True
        return self._total_ns

    def resume(self) -> None:
        """Continue counting."""
        self._resumed_ns, self._is_stopped = self._world.now(), False
