"""The data of one run while it is in progress: its inputs, its state and its totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from anthropic import AsyncAnthropic
from pydantic import BaseModel

from agentobs.agent import telemetry
from agentobs.agent.conversation_hooks import ConversationHooks
from agentobs.agent.events import (
    Denial,
    Limit,
    Result,
    Subtype,
    TerminalReason,
    Tokens,
    billed,
    together,
)
from agentobs.agent.model import error_classes
from agentobs.agent.model.prompt_cache import Sent
from agentobs.agent.model.thinking import has_thinking
from agentobs.agent.state import Background, Conversation, Options, State, Tools, used_ids
from agentobs.agent.tool_calls.dispatcher import Dispatcher
from agentobs.agent.tool_calls.trust import hand_up
from agentobs.ledger import Meter
from agentobs.provider.dialect import text_of
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource, ToolAnswer
from agentobs.records.usage import Certainty, not_told
from agentobs.world import World


@dataclass(slots=True)
class Run:
    """The inputs and running totals of one run, and its current state."""

    world: World
    options: Options
    tools: Tools
    owed: Json | None
    """The declaration of the structured output tool, as sent to the provider."""
    talk: Conversation
    state: State
    """The current state of the loop."""
    started_ns: int
    source: QuerySource = "main"
    """The source of its LLM requests: the agent itself, or a sub-agent."""
    parent: Run | None = None
    """The run whose tool call started this one."""
    is_background: bool = False
    """Whether it continues after its parent has ended."""
    level: int = 0
    """Its depth below the main agent."""
    lane: str = "main"
    """The name of its lane, set even if nothing is recorded."""
    refused: Mapping[str, ToolAnswer] = field(default_factory=dict)
    """Results to return for calls of tools that it does not have, by tool name."""
    hooks: ConversationHooks = field(init=False)
    client: AsyncAnthropic = field(init=False)
    """The world's client without its own retries, because the loop handles retries."""
    meter: Meter = field(default_factory=Meter)
    """Its usage, including sub-agents whose results it has received."""
    purse: Meter = field(default_factory=Meter)
    """Usage that counts against the interaction's budget: this run and all agents below it, running
    ones included.
    """
    inherited: list[Mapping[str, Tokens]] = field(default_factory=list)
    """Usage of those sub-agents, by model."""
    entering: list[Background] = field(default_factory=list)
    """Background agents whose results enter the conversation when it is next kept."""
    sent: Sent = field(default_factory=Sent)
    """The messages in the form in which requests contain them."""
    answers: list[Json] = field(default_factory=list)
    """Complete responses."""
    text: str = ""
    """The text of the last response, including earlier parts if it continues a response that was cut or paused.
    """
    cut: Json | None = None
    """This turn's response that was cut, while the request is repeated with a higher token limit."""
    broken: list[Json] = field(default_factory=list)
    """Partial messages of responses that broke off."""
    upkept: list[Json] = field(default_factory=list)
    """Responses to maintenance requests of the run."""
    depth: int = 0
    """Number of LLM requests in this turn, maintenance requests included."""
    latest: list[tuple[Meter, int]] = field(default_factory=list)
    """Usage of each turn without failed attempts, and its output tokens."""
    used: frozenset[str] = frozenset()
    """IDs of the tool calls in the conversation."""
    provider_ns: int = 0
    provider_ok_ns: int = 0
    tools_ns: int = 0
    denials: list[Denial] = field(default_factory=list)
    nudged_at: list[int] = field(default_factory=list)
    """The model's output tokens at the time of each nudge, see `Options.token_budget`."""
    goes_beyond: set[Limit] = field(default_factory=set)
    """Limits that were reached and already reported."""
    held: set[str] = field(default_factory=set)
    """Latched settings that were already reported."""
    day_usd: Decimal = Decimal(0)
    """Today's spending, as the world last reported it."""
    output: BaseModel | None = None
    following: State | None = None
    """The state of the next turn; None if there is none."""
    subtype: Subtype = "success"
    reason: TerminalReason = "completed"
    error: Exception | None = None
    vetoed: str | None = None
    """The reason given by the hooks that ended the run; None if no hook did."""

    def __post_init__(self) -> None:
        """Disable the client's retries, and share the parent's budget meter."""
        self.client = self.world.client.with_options(max_retries=0)
        self.used = used_ids(self.talk.messages)
        if self.parent is not None:
            self.purse, self.goes_beyond = self.parent.purse, set(self.parent.goes_beyond)
        self.hooks = ConversationHooks(
            self.world, self.options.hooks, self.talk, self.counted_inside
        )

    def asking(
        self, here: Place | None, source: QuerySource | None = None, *, lane: str | None = None
    ) -> Place | None:
        """Return the place for the next LLM request of the turn, by default a request of the agent
        itself.

        Maintenance requests have a `lane` of their own (see `lane_under`), so that the agent's lane
        contains only its turns.
        """
        self.depth += 1
        return telemetry.asking(here, source or self.source, depth=self.depth, lane=lane)

    @property
    def talks(self) -> tuple[Conversation, ...]:
        """Its conversation and those of the runs above it, the main agent's last."""
        above = self.parent.talks if self.parent is not None else ()
        return (self.talk, *above)

    @property
    def meters(self) -> tuple[Meter, ...]:
        """Every meter that counts its usage, each once."""
        if self.parent is None:
            return (self.meter, self.talk.meter, self.purse)
        if not self.is_background:
            return (self.meter, self.talk.meter, *self.parent.meters)
        above = (
            talk.meter for talk in self.parent.talks
        )  # the run that receives the result counts it then
        return (self.meter, self.talk.meter, *above, self.purse)

    @property
    def shares(self) -> bool:
        """Whether other runs share its budget, so that the clock decides when a limit is reached."""
        return self.parent is not None or bool(self.talk.background)

    @property
    def is_stopped(self) -> bool:
        """Whether the run was stopped on purpose."""
        return self.reason in ("aborted_streaming", "aborted_tools")

    def ended(self, subtype: Subtype, reason: TerminalReason) -> None:
        """Record how the run ends."""
        self.subtype, self.reason = subtype, reason

    def ended_by_hook(self, reason: TerminalReason, why: str) -> None:
        """Record that hooks end the run, and why."""
        self.ended("error_during_execution", reason)
        self.vetoed = why

    def failed(self, reason: TerminalReason, error: Exception) -> None:
        """Record the error that ends the run."""
        self.ended("error_during_execution", reason)
        self.error = error

    def keep(self, state: State) -> None:
        """Store the state's messages in the conversation, so that another run can continue from here."""
        self.talk.messages, self.talk.turns = state.messages, state.turn
        self.settle()

    def settle(self) -> None:
        """Count the background agents whose results are now in the stored conversation."""
        for each in self.entering:
            del self.talk.background[each.agent_id]
            hand_up(each.talk, each.began, self.talk)
            result = each.result
            if result is not None:
                self.talk.children[each.agent_id] = each.talk
                self.inherited.append(result.usage)
                self.meter.include(result.meter)
        self.entering = []

    def ran(self, dispatcher: Dispatcher, state: State) -> None:
        """Count the executed tools, and store the conversation with their results."""
        self.denials += dispatcher.denials
        self.talk.messages = state.messages
        for talk in self.talks:
            talk.tool_turns += 1
        self.settle()

    def counted(self, message: Json, certainty: Certainty) -> None:
        """Count the usage of a response, complete or partial."""
        usage = message.get("usage")
        if isinstance(usage, dict) and "output_tokens" in usage and self.world.is_billed(message):
            model, at_ns = message.get("model") or self.options.model, self.world.now()
            for meter in self.meters:
                meter.add(model, usage, at_ns, certainty)

    def counted_inside(self, used: Sequence[Json]) -> None:
        """Count the usage of model requests made inside hooks: each a `model` and the `usage`
        reported by the provider.

        A `certainty` of lower bound marks the known usage of an attempt that broke off.
        """
        self.upkept += used
        for each in used:
            is_broken = each.get("certainty") == "lower_bound"
            self.counted(each, "lower_bound" if is_broken else "exact")
            is_untold = is_broken and "output_tokens" not in each["usage"]
            if is_untold and self.world.is_billed(each):
                row, at_ns = not_told(each["model"] or self.options.model), self.world.now()
                for meter in self.meters:
                    meter.add_rows([(row, at_ns)])

    def thought(self, message: Json) -> None:
        """Record the time of the response once the model has used thinking, because thinking is
        cleared after an hour.
        """
        if self.talk.thought_ns is not None or has_thinking(message):
            self.talk.thought_ns = self.world.now()

    def answered(self, message: Json) -> None:
        """Record the complete response of a turn, and count its usage."""
        self.cut = None
        self.answers.append(message)
        self.text = self.state.said + text_of(message.get("content"))
        self.thought(message)
        self.counted(message, "exact")
        self.turn_took(message)

    def put_back(self) -> Json | None:
        """Restore the cut response if the repeated request failed; return it, or None if there is
        none.

        Its usage is already counted.
        """
        message, self.cut = self.cut, None
        if message is None:
            return None
        self.broken = [each for each in self.broken if each is not message]
        self.answers.append(message)
        self.text = self.state.said + text_of(message.get("content"))
        self.thought(message)
        self.turn_took(message)
        return message

    def turn_took(self, message: Json) -> None:
        """Record the usage of a single turn if runaway detection is enabled."""
        usage = message.get("usage")
        if not self.options.budget.runaway or not isinstance(usage, dict):
            return
        meter, output_tokens = Meter(), usage.get("output_tokens")
        meter.add(message.get("model") or self.options.model, usage, self.world.now())
        self.latest.append((meter, output_tokens if isinstance(output_tokens, int) else 0))

    def gave_up(self, message: Json, took_ns: int, error: Exception) -> None:
        """Count a response that broke off, even if it never reported usage."""
        self.broken.append(message)
        self.provider_ns += took_ns
        if "usage" in message:
            self.counted(message, "lower_bound")
        elif error_classes.may_have_cost(error) and self.world.is_billed(message):
            at_ns = self.world.now()
            for meter in self.meters:
                meter.add_rows([(not_told(self.options.model), at_ns)])

    def result(self, place: Place | None) -> Result:
        """Return the result of the run."""
        last = self.answers[-1] if self.answers else {}
        error, by_hook = self.error, self.vetoed is not None
        return Result(
            subtype=self.subtype,
            terminal_reason=self.reason,
            text=self.text,
            stop_reason=last.get("stop_reason"),
            num_turns=len(self.answers),
            error=error_classes.name_of(error) if error else self.reason if by_hook else None,
            error_text=error_classes.text_of(error) if error else self.vetoed or None,
            usage=together(
                billed(self.options.model, [*self.answers, *self.broken, *self.upkept]),
                *self.inherited,
            ),
            duration_ns=max(self.world.now() - self.started_ns, 0),
            provider_ns=self.provider_ns,
            provider_ok_ns=self.provider_ok_ns,
            tools_ns=self.tools_ns,
            session_id=place.session_id if place else None,
            denials=tuple(self.denials),
            output=self.output,
            meter=self.meter,
            exception=error,
        )


class Clock:
    """Sums the time spent waiting for and receiving responses, without the time of the event
    consumer.
    """

    def __init__(self, world: World) -> None:
        self._world, self._sum, self._since = world, 0, world.now()
        self._stands = False

    def stop(self) -> int:
        """Stop, and return the total in nanoseconds."""
        if not self._stands:
            self._sum += max(self._world.now() - self._since, 0)
            self._stands = True
        return self._sum

    def go_on(self) -> None:
        """Resume counting."""
        self._since, self._stands = self._world.now(), False
