"""Dispatch: from the tool calls of one answer to their results.

Calls are taken in the model's order. Neighbours that are safe beside each other run together, at most
ten at once, and begin while the answer is still coming; any other call waits for those before it and runs
alone. Whatever happens each call gets one result, and the results are told in the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import BaseModel

from agentobs.agent import output, telling
from agentobs.agent.events import (
    Coercion,
    Denial,
    HookRan,
    Permission,
    SubAgent,
    ToolDispatch,
    ToolDone,
)
from agentobs.agent.gate import call_of, is_concurrent, raw_paths, resolved_paths
from agentobs.agent.hooking import (
    Hooking,
    answered_by_hook,
    denied_by_hook,
    objection,
    occasion,
    wished,
)
from agentobs.agent.hooks import Hook, HookEvent, Occasion, Verdict, usage_in
from agentobs.agent.interrupt import Interrupted, Stopped, Watch
from agentobs.agent.permissions import (
    Behaviour,
    Call,
    Decision,
    Permissions,
    consented,
    decide,
    needs_person,
)
from agentobs.agent.results import fit, render
from agentobs.agent.rising import Rising
from agentobs.agent.state import Conversation, own_copy
from agentobs.agent.tools import Bound, Tool, bind, find, invalid, unknown
from agentobs.agent.trust import Trust, trust_in
from agentobs.records.canonical import Json
from agentobs.records.exchanges import Place, ToolAnswer, ToolOutcome, ToolQuestion
from agentobs.world import Abort, World

TOGETHER = 10
"""The most calls that run at once. Our choice."""

SKIPPED = ToolAnswer(
    "Skipped: something was said to you before this call began. Read it, then go on.",
    is_error=True,
    outcome="skipped",
)
ABORTED = ToolAnswer(
    "The run was stopped before this call began.", is_error=True, outcome="aborted"
)
REPEATED = ToolAnswer(
    "This call has the id and the input of another one, and was not run again.",
    is_error=True,
    outcome="duplicate",
)

Step = Coercion | HookRan | Permission | SubAgent | ToolDispatch | ToolDone

Tell = Callable[[SubAgent], Awaitable[None]]
"""Takes an event of an agent that was started."""


class Starts(Protocol):
    """Starts the agents that calls ask for."""

    async def start(
        self,
        question: ToolQuestion,
        used: Tool,
        arguments: Mapping[str, Any],
        inside: Place | None,
        abort: Abort,
        trust: Trust,
        tell: Tell,
    ) -> ToolAnswer:
        """Start an agent and return what it found, or that it works in the background."""

    def told(self, tool_use_id: str) -> None:
        """Take over what an agent used, and what was granted to it: its result is told now."""


@dataclass(frozen=True, slots=True)
class Crew:
    """What the calls of one answer are run with."""

    world: World
    tools: Sequence[Tool]
    permissions: Permissions
    talk: Conversation
    """Where the grants of a person are kept."""
    used: frozenset[str] = frozenset()
    """Ids of the calls in the conversation so far."""
    output: type[BaseModel] | None = None
    """The output that is owed, if any."""
    hooks: Hooking | None = None
    """The hooks that are fired around calls."""
    starter: Starts | None = None
    """What starts agents; None where no tool does."""
    refused: Mapping[str, ToolAnswer] = field(default_factory=dict)
    """What is answered to calls of tools that were taken away, by name."""


@dataclass(slots=True)
class _Plan:
    """A call on its way to its result."""

    asked: ToolQuestion
    """What the model asked."""
    question: ToolQuestion
    """The same, or with the input that hooks want."""
    tool: Tool | None = None
    bound: Bound | None = None
    answer: ToolAnswer | None = None
    """The result, where the loop gives it itself."""
    concurrent: bool = True
    """Whether it may run beside others; a call that the loop answers disturbs nobody."""
    inside: Place | None = None
    """Inside its span, once that is open."""
    call: Call | None = None
    decision: Decision | None = None
    waited_ns: int = 0
    """How long a person was asked for it."""
    task: asyncio.Task[ToolDone] | None = None
    output: BaseModel | None = None
    """The structured output that it gives."""
    wish: Behaviour | None = None
    """What hooks want to be done with it."""
    hooks_ran: list[HookRan] = field(default_factory=list)
    """What consumers have not yet been told of its hooks."""
    done: ToolDone | None = None
    """How it was done, where hooks changed what the model sees of it."""
    abort: Abort | None = None
    """Stops the agent that it started."""
    trust: Trust | None = None
    """What that agent begins with."""

    @property
    def may_begin_early(self) -> bool:
        """Whether it only reads, spends nothing, and nothing has to be asked for that takes long."""
        tool = self.tool
        if tool is None or tool.check or tool.agents is not None:
            return False
        return tool.tool_class == "read" and self.concurrent and self.answer is None

    def take_hooks(self) -> list[HookRan]:
        """Return what consumers have not been told of its hooks, and forget it."""
        told, self.hooks_ran = self.hooks_ran, []
        return told

    @property
    def shown(self) -> ToolQuestion:
        """The question for consumers, who may change what they get."""
        return replace(self.question, input=own_copy(self.question.input))


@dataclass(slots=True)
class Dispatcher:
    """Runs the calls of one answer; thrown away with that answer, and made anew for the next."""

    crew: Crew
    here: Place | None
    turn: int
    over_budget: bool = False
    """Whether nothing may run any more because too much was spent."""
    results: list[ToolDone] = field(default_factory=list)
    """What was told, in the order of the calls."""
    denials: list[Denial] = field(default_factory=list)
    steering: tuple[str, ...] = ()
    """What was said to the agent meanwhile; the calls that had not begun were skipped."""
    skipped: tuple[str, ...] = ()
    """Their ids."""
    stopped_at: tuple[str, int] | None = None
    """The point where the run was stopped, as `Abort.reached` names it."""
    output: BaseModel | None = None
    """The structured output, where a call gave it."""
    context: list[str] = field(default_factory=list)
    """What hooks add to the results."""
    hook_stops: bool = False
    """Whether a hook ends the run after these calls."""
    hook_reasons: list[str] = field(default_factory=list)
    """Why, as those hooks say."""
    _plans: dict[str, _Plan] = field(default_factory=dict)
    _batch: list[_Plan] = field(default_factory=list)
    """Calls that have begun, or have their answer, and were not told yet."""
    _rising: Rising = field(default_factory=Rising)
    _may_begin: bool = True
    _batches: int = 0
    tools_ns: int = 0
    """Time in tools, those of answers that broke off included."""

    async def early(self, question: ToolQuestion) -> AsyncGenerator[Step, None]:
        """Begin a call while its answer is still coming, if it and all before it only read and are permitted.

        Such an answer is not in the conversation yet: where it breaks off, nothing has been changed.

        Raises:
            Stopped: the run was aborted.
        """
        known = question.tool_use_id in self._plans or question.tool_use_id in self.crew.used
        if not self._may_begin or known:
            self._may_begin = False
            return
        plan = self._planned(question)
        # Counted are those that began, not those that run: how many, no clock shall decide.
        if not plan.may_begin_early or len(self._batch) >= TOGETHER:
            self._may_begin = False
            return
        await self._look(plan)
        if plan.answer is None and not self._followed("pre_tool_use", plan):
            self._decide(plan)
        if plan.decision is None or plan.decision.behaviour != "allow":
            self._may_begin = False
        else:
            for step in self._begin(plan, plan.decision, 0):
                yield step
        if self.stopped_at is not None:
            raise Stopped(*self.stopped_at)

    async def finish(
        self, questions: Sequence[ToolQuestion], doubles: Mapping[str, str]
    ) -> AsyncGenerator[Step, None]:
        """Run what has not begun, and tell every result. What is said meanwhile, or an abort, ends it early.

        Args:
            questions: the calls of the answer, in its order.
            doubles: calls that were renamed because their id was used before, with that id.
        """
        begun = {plan.question.tool_use_id for plan in self._batch}
        waiting = deque(q for q in questions if q.tool_use_id not in begun)
        self._look_for_abort(f"{self.turn}:dispatch", 0)
        while waiting and not self._is_over:
            plan = self._planned(waiting[0])
            if not plan.concurrent and any(other.task for other in self._batch):
                async for done in self._gather():
                    yield done
                continue
            self._look_for_abort(f"{self.turn}:call:{plan.question.tool_use_id}", 0)
            if self._is_over:
                break
            async for event in self._prepare(plan, doubles):
                yield event
            if not plan.concurrent and any(other.task for other in self._batch):
                # Hooks have changed it into one that has to run alone.
                async for done in self._gather():
                    yield done
                if self._is_over:
                    for ran in plan.take_hooks():
                        yield ran
                    break
            waiting.popleft()
            async for step in self._take(plan):
                yield step
            if not plan.concurrent:
                async for done in self._gather():
                    yield done
        async for done in self._gather():
            yield done
        for question in waiting:
            plan = self._planned(question)
            yield self._told(plan, ABORTED if self.stopped_at else SKIPPED)
        if self.steering:
            self.skipped = tuple(question.tool_use_id for question in waiting)

    async def discard(self) -> tuple[str, ...]:
        """Stop what runs, for its answer broke off, and return the ids of the calls that had begun.

        Each still gets its recorded result: a replay begins them, too.
        """
        self._stop_others()
        begun = [plan for plan in self._plans.values() if plan.task]
        async for _ in self._ended([plan.task for plan in begun if plan.task]):
            pass  # agents do not begin early
        await self.close()
        self._plans, self._may_begin = {}, True
        return tuple(plan.question.tool_use_id for plan in begun)

    async def close(self) -> None:
        """Leave nothing behind: cancel what runs, close what is open. A second call changes nothing."""
        tasks = [plan.task for plan in self._plans.values() if plan.task and not plan.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for plan in self._plans.values():
            # A task that was cancelled before its first step has closed nothing.
            telling.close(plan.inside, cancelled=True)
            plan.inside = None
        self._batch.clear()

    @property
    def _is_over(self) -> bool:
        return self.stopped_at is not None or bool(self.steering)

    def _planned(self, question: ToolQuestion) -> _Plan:
        """Return the plan of a call, made at the first look; nothing outside is asked for it."""
        plan = self._plans.get(question.tool_use_id)
        if plan is None:
            plan = self._plans[question.tool_use_id] = _Plan(question, question)
            self._fill(plan)
        return plan

    def _fill(self, plan: _Plan) -> None:
        question, tools = plan.question, self.crew.tools
        if self.crew.output is not None and question.name == output.NAME:
            plan.output, plan.answer = output.taken(self.crew.output, question.input)
            return
        plan.tool = find(tools, question.name)
        if plan.tool is None:
            refused = self.crew.refused.get(question.name)
            plan.answer = refused or unknown(tools, question.name)
            return
        try:
            plan.bound = bind(plan.tool, question.input)
        except ValueError as error:
            plan.answer = invalid(plan.tool, str(error))
            return
        plan.concurrent = is_concurrent(plan.tool, plan.bound.arguments)

    async def _prepare(
        self, plan: _Plan, doubles: Mapping[str, str]
    ) -> AsyncGenerator[SubAgent, None]:
        """Find out what a call is, and decide on it by the rules and by what hooks want."""
        first = self._plans.get(doubles.get(plan.question.tool_use_id, ""))
        if first is not None and _same(first.asked, plan.asked):
            plan.answer = REPEATED
        if plan.answer is None and plan.decision is None:
            async for event in self._room():
                yield event
            async for event in self._beside(self._decided(plan)):
                yield event

    async def _decided(self, plan: _Plan) -> None:
        if plan.call is None:
            await self._look(plan)
        if plan.answer is None:
            await self._before(plan)
        if plan.answer is None and plan.decision is None:
            self._decide(plan)

    async def _take(self, plan: _Plan) -> AsyncGenerator[Step, None]:
        """Ask for consent to a call where that is needed, and begin it or note its answer."""
        if plan.answer is None and plan.decision is not None:
            decision, waited_ns = plan.decision, 0
            if decision.behaviour == "ask":
                asking = self._consent(plan, decision)
                async for event in self._beside(asking):
                    yield event
                decision, waited_ns = plan.decision, plan.waited_ns
            if decision.behaviour == "deny":
                about = {"reason": decision.reason}
                async for event in self._beside(self._hooked("permission_denied", plan, about)):
                    yield event
            for ran in plan.take_hooks():
                yield ran
            for step in self._begin(plan, decision, waited_ns):
                yield step
        else:
            self._batch.append(plan)
        for ran in plan.take_hooks():
            yield ran

    async def _before(self, plan: _Plan) -> None:
        """Fire the hooks before a call: they may deny it, change its input, or want it allowed or asked about."""
        verdict = await self._hooked("pre_tool_use", plan, {})
        if verdict is None:
            return
        assert plan.tool is not None
        if verdict.blocked or verdict.decision == "deny":
            plan.decision = denied_by_hook(plan.tool.name, verdict.reason)
            return
        plan.wish = verdict.decision
        if verdict.input is not None:
            await self._rewrite(plan, plan.tool, verdict.input)

    async def _rewrite(self, plan: _Plan, tool: Tool, value: Any) -> None:
        """Go on with the input that hooks want; what the model asked for stands in its answer."""
        plan.question = replace(plan.question, input=own_copy(value))
        telling.event(self.crew.world, plan.inside, "rewritten", "input", {})
        try:
            plan.bound = bind(tool, plan.question.input)
        except ValueError as error:
            plan.answer = invalid(tool, f"a hook changed the input. {error}")
        else:
            plan.concurrent = is_concurrent(tool, plan.bound.arguments)
            await self._look(plan)

    def _occasion(self, event: HookEvent, plan: _Plan, more: Mapping[str, Any]) -> Occasion:
        question, call = plan.question, plan.call
        assert call is not None
        facts = {
            "tool_name": call.tool,
            "tool_use_id": question.tool_use_id,
            "tool_input": question.input,
            **more,
        }
        return occasion(
            event,
            self.turn,
            question.tool_use_id,
            facts,
            tool=call.tool,
            aliases=call.aliases,
            subject=call.subject,
            tool_class=call.tool_class,
            paths=call.paths,
            hosts=call.hosts,
        )

    def _followed(self, event: HookEvent, plan: _Plan) -> bool:
        """Return whether hooks wait for an event of a call."""
        return bool(self._following(event, plan))

    def _following(self, event: HookEvent, plan: _Plan) -> tuple[Hook, ...]:
        """Return the hooks that wait for an event of a call."""
        hooks = self.crew.hooks
        return () if hooks is None else hooks.matching(self._occasion(event, plan, {}))

    async def _hooked(
        self, event: HookEvent, plan: _Plan, more: Mapping[str, Any]
    ) -> Verdict | None:
        """Fire the hooks of an event of a call, inside its span; None where there are none."""
        if self.crew.hooks is None:
            return None
        what = self._occasion(event, plan, more)
        hooks = self.crew.hooks.claimed(what)
        if not hooks:
            return None
        verdict = await self._fired(plan, hooks, what)
        self.context += verdict.context
        return verdict

    async def _fired(self, plan: _Plan, hooks: Sequence[Hook], what: Occasion) -> Verdict:
        assert self.crew.hooks is not None
        self._open(plan)
        verdict, ran = await self.crew.hooks.fire_these(hooks, what, plan.inside)
        plan.hooks_ran += ran
        if verdict.stop:
            self.hook_stops = True
            self.hook_reasons += [verdict.reason] if verdict.reason else []
        key = f"{what.event}:{plan.question.tool_use_id}"
        self._look_for_abort(f"{self.turn}:hook:{key}", 0)
        return verdict

    def _open(self, plan: _Plan) -> None:
        """Open the span of a call, where it is not open."""
        if plan.inside is None:
            name = plan.tool.name if plan.tool is not None else plan.question.name
            plan.inside = telling.open_span("tool", self.here, name)

    async def _look(self, plan: _Plan) -> None:
        """Let the tool check the input, and find out where its paths lead."""
        tool, bound, question = plan.tool, plan.bound, plan.question
        assert tool is not None
        assert bound is not None
        self._open(plan)
        world, key = self.crew.world, question.tool_use_id
        if tool.check is not None:
            asked = {"tool": question.name, "input": question.input}
            complaint = await telling.ask(world, plan.inside, "check", key, asked)
            if complaint is not None:
                plan.answer = invalid(tool, str(complaint))
                self._look_for_abort(f"{self.turn}:tool:{key}", 0)
                return
        paths, leads_to = raw_paths(tool, bound.arguments), None
        if paths:
            leads_to = await telling.ask(world, plan.inside, "path", key, list(paths))
        plan.call = call_of(tool, question, bound.arguments, resolved_paths(paths, leads_to))

    def _decide(self, plan: _Plan) -> None:
        """Decide on a call by the rules, and by what hooks want."""
        assert plan.call is not None
        decision = decide(
            plan.call,
            self.crew.permissions,
            grants=self.crew.talk.grants,
            over_budget=self.over_budget,
        )
        mode = self.crew.permissions.mode
        plan.decision = wished(decision, plan.wish, plan.call.tool, mode)

    async def _consent(self, plan: _Plan, asked: Decision) -> None:
        """Ask hooks, then a person, who may be interrupted by an abort; note the decision and the wait."""
        world, key = self.crew.world, plan.question.tool_use_id
        assert plan.call is not None
        verdict = await self._hooked("permission_request", plan, {"reason": asked.reason})
        if verdict is not None and (answer := answered_by_hook(asked, verdict, plan.call.tool)):
            plan.decision = answer
            return
        facts = {"kind": "permission", "reason": asked.reason}
        await self._hooked("notification", plan, facts)
        about: Json = {"tool": plan.call.tool, "input": plan.question.input}
        if plan.call.paths:
            about["paths"] = [path.path for path in plan.call.paths]
        with telling.span("blocked_on_user", plan.inside, plan.call.tool) as blocked:
            started_ns = world.now()
            question: Json = {"about": about, "reason": asked.reason}
            if self.crew.talk.denials.escalates or needs_person(asked):
                question["person_only"] = True
            answer = await telling.ask(world, blocked, "consent", key, question)
            plan.waited_ns = max(world.now() - started_ns, 0)
        self.crew.talk.denials = self.crew.talk.denials.after(answer)
        if self.crew.hooks is not None:
            self.crew.hooks.count(usage_in(answer))
        plan.decision, grant = consented(asked, answer, plan.call)
        if grant is not None:
            self.crew.talk.grants |= {grant}
        self._look_for_abort(f"{self.turn}:consent:{key}", 0)

    def _begin(self, plan: _Plan, decision: Decision, waited_ns: int) -> Iterator[Step]:
        """Begin a call that is allowed, or note that it is not."""
        question, bound, tool = plan.question, plan.bound, plan.tool
        assert bound is not None
        assert tool is not None
        world = self.crew.world
        if bound.coerced:
            numbers = {"arguments": len(bound.coerced)}
            telling.event(world, plan.inside, "coercion", tool.name, numbers)
            yield Coercion(plan.shown, bound.coerced)
        telling.permission(world, plan.inside, question, tool.name, decision, waited_ns)
        self._batch.append(plan)
        yield Permission(plan.shown, decision, waited_ns)
        self._look_for_abort(f"{self.turn}:tool:{question.tool_use_id}", 0)
        if self.stopped_at is not None:
            plan.answer = ABORTED
        elif decision.behaviour != "allow":
            outcome: ToolOutcome = "blocked" if decision.resolver == "hook" else "denied"
            plan.answer = ToolAnswer(decision.reason, is_error=True, outcome=outcome)
            self.denials.append(Denial(question.tool_use_id, question.name, decision.reason))
        else:
            yield ToolDispatch(plan.shown)
            if tool.agents is not None:
                plan.abort, self._rising.is_used = world.abort.under(), True
                plan.trust = trust_in(self.crew.talk)
            plan.task = asyncio.create_task(self._run(plan))

    async def _run(self, plan: _Plan) -> ToolDone:
        world, question, inside = self.crew.world, plan.question, plan.inside
        try:
            started_ns = world.now()
            with telling.at(inside):
                # A tool may change what it gets; what is recorded is what was asked.
                answer = await (self._agent(plan) or world.run_tool(plan.shown))
            done = ToolDone(question, answer, max(world.now() - started_ns, 0))
            after = self._following(_after(done), plan)
            looking = tuple(hook.name for hook in after if not (hook.once or hook.background))
            telling.tool(inside, started_ns, done, looking)
            self.tools_ns += done.duration_ns
        except BaseException as error:
            telling.close(inside, error)
            plan.inside = None
            raise
        plan.inside = inside
        if not after:
            telling.close(inside)
            plan.inside = None
        if answer.is_error and plan.tool is not None and plan.tool.cancels_siblings:
            self._stop_others(plan)
        return done

    def _agent(self, plan: _Plan) -> Awaitable[ToolAnswer] | None:
        """Return the answer of the agent that a call starts; None where it starts none."""
        starter = self.crew.starter
        if starter is None or plan.abort is None or plan.trust is None:
            return None
        assert plan.tool is not None
        assert plan.bound is not None
        return starter.start(
            plan.question,
            plan.tool,
            plan.bound.arguments,
            plan.inside,
            plan.abort,
            plan.trust,
            self._rising.tell,
        )

    def _stop_others(self, failed: _Plan | None = None) -> None:
        """Stop the calls of this batch, all or all but one; each still gives its answer."""
        for plan in list(self._plans.values()):
            if plan is failed or plan.task is None or plan.task.done():
                continue
            if plan.abort is not None:
                plan.abort.stop()
            with telling.at(plan.inside):
                self.crew.world.stop_tool(plan.question.tool_use_id)

    async def _followed_up(self, plans: Sequence[_Plan]) -> None:
        """Fire the hooks after these calls, all together: which of them takes a `once` hook, their order decides."""
        hooks = self.crew.hooks
        if hooks is None:
            return
        after = []
        for plan in plans:
            assert plan.task is not None
            done = plan.task.result()
            answer = done.answer
            facts = {
                "tool_output": answer.content,
                "is_error": answer.is_error,
                "outcome": answer.outcome,
            }
            what = self._occasion(_after(done), plan, facts)
            if claimed := hooks.claimed(what):
                after.append(self._follow_up(plan, done, claimed, what))
            else:
                telling.close(plan.inside)
                plan.inside = None
        for texts in await asyncio.gather(*after):
            self.context += texts

    async def _follow_up(
        self, plan: _Plan, done: ToolDone, hooks: Sequence[Hook], what: Occasion
    ) -> list[str]:
        """Fire the hooks after a call, which may change what the model sees of its result; return what they add."""
        verdict = await self._fired(plan, hooks, what)
        assert plan.tool is not None
        texts = list(verdict.context)
        if verdict.blocked:
            texts.append(objection(plan.tool.name, verdict.reason))
        if verdict.output is not None:
            content = fit(render(verdict.output), plan.tool.result_chars_max, lambda _: None)
            plan.done = replace(
                done, answer=replace(done.answer, content=content), came=done.answer
            )
            telling.event(self.crew.world, plan.inside, "rewritten", "output", {})
        telling.close(plan.inside)
        plan.inside = None
        return texts

    async def _gather(self) -> AsyncGenerator[HookRan | SubAgent | ToolDone, None]:
        """Wait for the calls that run, tell all results, and look whether something was said meanwhile."""
        if not self._batch:
            return
        batch, tasks = self._batch, [plan.task for plan in self._batch if plan.task is not None]
        async for event in self._ended(tasks):
            yield event
        await self._followed_up([plan for plan in batch if plan.task is not None])
        self._batch = []
        for plan in batch:
            for ran in plan.take_hooks():
                yield ran
            yield self._told(plan, plan.answer or ABORTED)
            self.output = plan.output if plan.output is not None else self.output
        if not tasks:
            return
        self._batches += 1
        self._look_for_abort(f"{self.turn}:tools", self._batches)
        if self.stopped_at is None:
            key = f"{self.turn}:{batch[-1].question.tool_use_id}"
            said = await telling.ask(self.crew.world, self.here, "steering", key)
            self.steering = tuple(said)

    async def _beside(self, work: Coroutine[Any, Any, Any]) -> AsyncGenerator[SubAgent, None]:
        """Wait for something, and yield what agents tell meanwhile: a person may take an hour."""
        if not any(plan.abort and plan.task in self._running() for plan in self._batch):
            await work
            return
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await self._rising.wait({task}, asyncio.FIRST_COMPLETED)
                for event in self._rising.take():
                    yield event
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        task.result()

    def _running(self) -> set[asyncio.Task[ToolDone]]:
        return {plan.task for plan in self._batch if plan.task and not plan.task.done()}

    async def _room(self) -> AsyncGenerator[SubAgent, None]:
        """Wait until another call may run: a decision shall not be older than it has to be."""
        while len(running := self._running()) >= TOGETHER:
            if await self._interrupted(running, asyncio.FIRST_COMPLETED):
                return  # who goes on looks for the abort
            for event in self._rising.take():
                yield event

    async def _ended(
        self, tasks: Sequence[asyncio.Task[ToolDone]]
    ) -> AsyncGenerator[SubAgent, None]:
        """Wait for tasks, and yield what their agents tell; an abort stops their calls.

        What one of them raises is raised here.
        """
        left, is_stopped = set(tasks), False
        while left:
            if is_stopped:
                await self._rising.wait(left, asyncio.FIRST_EXCEPTION)
            elif await self._interrupted(left, asyncio.FIRST_EXCEPTION):
                is_stopped = True
                self._stop_others()
            for event in self._rising.take():
                yield event
            for task in [each for each in left if each.done()]:
                left.discard(task)
                task.result()

    async def _interrupted(self, tasks: set[asyncio.Task[ToolDone]], until: str) -> bool:
        """Wait for tasks, or for what is told meanwhile; return whether an abort came first."""
        async with Watch(self.crew.world.abort, None) as watch:
            try:
                await watch.guard(self._rising.wait(tasks, until))
            except Interrupted:
                return True
        return False

    def _told(self, plan: _Plan, otherwise: ToolAnswer) -> ToolDone:
        """Note the result of a call, telling the sink where the loop gave it, and return it for consumers."""
        done = plan.task.result() if plan.task else self._made(plan, otherwise)
        done = plan.done or done
        if self.crew.starter is not None:
            self.crew.starter.told(plan.question.tool_use_id)
        self.results.append(done)
        answer = replace(done.answer, content=own_copy(done.answer.content))
        return replace(done, question=plan.shown, answer=answer)

    def _made(self, plan: _Plan, answer: ToolAnswer) -> ToolDone:
        done = ToolDone(plan.question, answer, 0)
        if plan.inside is None:
            plan.inside = telling.open_span("tool", self.here, plan.question.name)
        telling.tool(plan.inside, self.crew.world.now(), done)
        telling.close(plan.inside)
        plan.inside = None
        return done

    def _look_for_abort(self, point: str, count: int) -> None:
        if self.stopped_at is None and self.crew.world.abort.reached(point, count):
            self.stopped_at = point, count


def _after(done: ToolDone) -> HookEvent:
    return "post_tool_use_failure" if done.answer.is_error else "post_tool_use"


def _same(one: ToolQuestion, other: ToolQuestion) -> bool:
    return (one.name, one.input) == (other.name, other.input)
