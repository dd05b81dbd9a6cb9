"""A run while it goes on: what it is given, where it stands, and what adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from anthropic import AsyncAnthropic
from pydantic import BaseModel

from agentobs.agent import telemetry
from agentobs.agent.conversation_hooks import Hooking
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
from agentobs.provider.messages import text_of
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource, ToolAnswer
from agentobs.records.usage import Certainty, not_told
from agentobs.world import World


@dataclass(slots=True)
class Run:
    """What is known of one run beside its state: what it is given, and what adds up."""

    world: World
    options: Options
    tools: Tools
    owed: Json | None
    """What the provider is told of the tool that takes the output."""
    talk: Conversation
    state: State
    """Where it stands."""
    started_ns: int
    source: QuerySource = "main"
    """Who asks: the agent itself, or an agent that it started."""
    parent: Run | None = None
    """The run whose tool call started this one."""
    is_background: bool = False
    """Whether it goes on when that one has ended."""
    level: int = 0
    """How deep it lies below the agent itself."""
    lane: str = "main"
    """The name of its lane, also where nothing is recorded."""
    refused: Mapping[str, ToolAnswer] = field(default_factory=dict)
    """Tools that it has not got, by name, with what it is told when it calls one."""
    hooks: Hooking = field(init=False)
    client: AsyncAnthropic = field(init=False)
    """The world's client without its own retries: the loop owns them."""
    meter: Meter = field(default_factory=Meter)
    """What it used, the agents included whose results it has got."""
    purse: Meter = field(default_factory=Meter)
    """What counts against the budget of the interaction: it and all agents below it, those at work included."""
    inherited: list[Mapping[str, Tokens]] = field(default_factory=list)
    """What those agents used, by model."""
    entering: list[Background] = field(default_factory=list)
    """Agents whose results enter the conversation with what is kept next."""
    sent: Sent = field(default_factory=Sent)
    """The messages as its requests hold them."""
    answers: list[Json] = field(default_factory=list)
    """Whole answers."""
    text: str = ""
    """The text of the last one, and of its parts before it where it goes on from an answer that was cut or paused."""
    cut: Json | None = None
    """The answer of this turn that was cut, while it is asked for again with more room."""
    broken: list[Json] = field(default_factory=list)
    """What came of answers that broke off."""
    upkept: list[Json] = field(default_factory=list)
    """Answers to requests that were made for the run's upkeep."""
    depth: int = 0
    """How many requests were made in this turn, those for its upkeep included."""
    latest: list[tuple[Meter, int]] = field(default_factory=list)
    """What each turn used, failed attempts left out, and how many tokens it said."""
    used: frozenset[str] = frozenset()
    """Ids of the tool calls in the conversation."""
    provider_ns: int = 0
    provider_ok_ns: int = 0
    tools_ns: int = 0
    denials: list[Denial] = field(default_factory=list)
    nudged_at: list[int] = field(default_factory=list)
    """How many tokens the model had said each time it was asked to go on, see `Options.token_budget`."""
    goes_beyond: set[Limit] = field(default_factory=set)
    """Limits that were reached and are not to be told again."""
    held: set[str] = field(default_factory=set)
    """Settings that stay as they were, and of which that was told."""
    day_usd: Decimal = Decimal(0)
    """What was spent today, as the world last said."""
    output: BaseModel | None = None
    following: State | None = None
    """The state of the next turn; None where there is none."""
    subtype: Subtype = "success"
    reason: TerminalReason = "completed"
    error: Exception | None = None
    vetoed: str | None = None
    """Why hooks ended it, in their words; None where none did."""

    def __post_init__(self) -> None:
        """Take the client's retries away, and spend from the same purse as who started it."""
        self.client = self.world.client.with_options(max_retries=0)
        self.used = used_ids(self.talk.messages)
        if self.parent is not None:
            self.purse, self.goes_beyond = self.parent.purse, set(self.parent.goes_beyond)
        self.hooks = Hooking(self.world, self.options.hooks, self.talk, self.counted_inside)

    def asking(
        self, here: Place | None, source: QuerySource | None = None, *, lane: str | None = None
    ) -> Place | None:
        """Return the place for the next request of the turn, by default one for the agent itself.

        Requests for its upkeep are made in a `lane` of their own, see `lane_under`: in that of the agent its own
        turns alone recur.
        """
        self.depth += 1
        return telemetry.asking(here, source or self.source, depth=self.depth, lane=lane)

    @property
    def talks(self) -> tuple[Conversation, ...]:
        """Its conversation, and those of the runs above it, the agent's own last."""
        above = self.parent.talks if self.parent is not None else ()
        return (self.talk, *above)

    @property
    def meters(self) -> tuple[Meter, ...]:
        """Everything that counts what it uses, each once."""
        if self.parent is None:
            return (self.meter, self.talk.meter, self.purse)
        if not self.is_background:
            return (self.meter, self.talk.meter, *self.parent.meters)
        above = (talk.meter for talk in self.parent.talks)  # whoever gets its result counts it then
        return (self.meter, self.talk.meter, *above, self.purse)

    @property
    def shares(self) -> bool:
        """Whether others spend beside it, so that it depends on the clock when a limit is reached."""
        return self.parent is not None or bool(self.talk.background)

    @property
    def is_stopped(self) -> bool:
        """Whether somebody stopped the run on purpose."""
        return self.reason in ("aborted_streaming", "aborted_tools")

    def ended(self, subtype: Subtype, reason: TerminalReason) -> None:
        """Note how the run ends."""
        self.subtype, self.reason = subtype, reason

    def ended_by_hook(self, reason: TerminalReason, why: str) -> None:
        """Note that hooks end the run, and why."""
        self.ended("error_during_execution", reason)
        self.vetoed = why

    def failed(self, reason: TerminalReason, error: Exception) -> None:
        """Note which error ends the run."""
        self.ended("error_during_execution", reason)
        self.error = error

    def keep(self, state: State) -> None:
        """Keep the conversation as it stands, so that another run can go on from here."""
        self.talk.messages, self.talk.turns = state.messages, state.turn
        self.settle()

    def settle(self) -> None:
        """Count the agents in the background whose results are in the conversation that is kept."""
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
        """Count what tools did, and keep the conversation with their results."""
        self.denials += dispatcher.denials
        self.talk.messages = state.messages
        for talk in self.talks:
            talk.tool_turns += 1
        self.settle()

    def counted(self, message: Json, certainty: Certainty) -> None:
        """Count what an answer used, as far as it came."""
        usage = message.get("usage")
        if isinstance(usage, dict) and "output_tokens" in usage and self.world.is_billed(message):
            model, at_ns = message.get("model") or self.options.model, self.world.now()
            for meter in self.meters:
                meter.add(model, usage, at_ns, certainty)

    def counted_inside(self, used: Sequence[Json]) -> None:
        """Count what requests used that hooks made: each a `model` and the `usage` that the provider told.

        With the `certainty` of a lower bound it is what an attempt used that broke off, as far as it told.
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
        """Note when the model answered, once it has thought: what it thought goes after an hour."""
        if self.talk.thought_ns is not None or has_thinking(message):
            self.talk.thought_ns = self.world.now()

    def answered(self, message: Json) -> None:
        """Note the whole answer of a turn, and count what it used."""
        self.cut = None
        self.answers.append(message)
        self.text = self.state.said + text_of(message.get("content"))
        self.thought(message)
        self.counted(message, "exact")
        self.turn_took(message)

    def put_back(self) -> Json | None:
        """Let the answer stand that was cut and asked for again in vain; return it, or None where there is none.

        What it used is counted already.
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
        """Note what a turn used by itself, where somebody looks for a runaway."""
        usage = message.get("usage")
        if not self.options.budget.runaway or not isinstance(usage, dict):
            return
        meter, said = Meter(), usage.get("output_tokens")
        meter.add(message.get("model") or self.options.model, usage, self.world.now())
        self.latest.append((meter, said if isinstance(said, int) else 0))

    def gave_up(self, message: Json, took_ns: int, error: Exception) -> None:
        """Count an answer that broke off, also where it never said what it used."""
        self.broken.append(message)
        self.provider_ns += took_ns
        if "usage" in message:
            self.counted(message, "lower_bound")
        elif error_classes.may_have_cost(error) and self.world.is_billed(message):
            at_ns = self.world.now()
            for meter in self.meters:
                meter.add_rows([(not_told(self.options.model), at_ns)])

    def result(self, place: Place | None) -> Result:
        """Return the result."""
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
    """Adds up the time in which an answer is waited for or comes; the consumer's own is not in it."""

    def __init__(self, world: World) -> None:
        self._world, self._sum, self._since = world, 0, world.now()
        self._stands = False

    def stop(self) -> int:
        """Stop, and return the nanoseconds so far."""
        if not self._stands:
            self._sum += max(self._world.now() - self._since, 0)
            self._stands = True
        return self._sum

    def go_on(self) -> None:
        """Go on adding."""
        self._since, self._stands = self._world.now(), False
