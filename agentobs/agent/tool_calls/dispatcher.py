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
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from agentobs.agent import telemetry
from agentobs.agent.events import (
    Coercion,
    Denial,
    HookRan,
    Permission,
    SubAgent,
    ToolDispatch,
    ToolDone,
)
from agentobs.agent.interruption import Interrupted, Stopped, Watch
from agentobs.agent.permissions import Decision
from agentobs.agent.state import own_copy
from agentobs.agent.tool_calls.call_decision import Deciding, after
from agentobs.agent.tool_calls.plan import Crew, Plan
from agentobs.agent.tool_calls.rule_subject import is_concurrent
from agentobs.agent.tool_calls.sub_agent_events import Rising
from agentobs.agent.tool_calls.trust import trust_in
from agentobs.agent.tools import structured_output as output
from agentobs.agent.tools.tool import bind, find, invalid, unknown
from agentobs.records.exchanges import Place, ToolAnswer, ToolOutcome, ToolQuestion

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
    outcome="deduplicated",
)

Step = Coercion | HookRan | Permission | SubAgent | ToolDispatch | ToolDone


@dataclass(slots=True)
class Dispatcher:
    """Runs the calls of one answer; thrown away with that answer, and made anew for the next."""

    crew: Crew
    here: Place | None
    turn: int
    deciding: Deciding = field(init=False)
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
    _plans: dict[str, Plan] = field(default_factory=dict)
    _batch: list[Plan] = field(default_factory=list)
    """Calls that have begun, or have their answer, and were not told yet."""
    _rising: Rising = field(default_factory=Rising)
    _may_begin: bool = True
    _batches: int = 0
    tools_ns: int = 0
    """Time in tools, those of answers that broke off included."""

    def __post_init__(self) -> None:
        """Decide on what it runs."""
        self.deciding = Deciding(self.crew, self.here, self.turn, self._look_for_abort)

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
        await self.deciding.look(plan)
        if plan.answer is None and not self.deciding.followed("pre_tool_use", plan):
            self.deciding.decide(plan)
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
        for count, question in enumerate(waiting):
            plan = self._plans.setdefault(question.tool_use_id, Plan(question, question))
            plan.called_id = doubles.get(question.tool_use_id)
            self.deciding.open(plan)
            if count > 0:
                self._queue(plan)
        while waiting and not self._is_over:
            plan = self._planned(waiting[0])
            if not plan.concurrent and any(other.task for other in self._batch):
                self._queue(plan)
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
                self._queue(plan)
                async for done in self._gather():
                    yield done
                if self._is_over:
                    for ran in plan.take_hooks():
                        yield ran
                    break
            waiting.popleft()
            self._dequeue(plan)
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
            plan.close(cancelled=True)
        self._batch.clear()

    @property
    def _is_over(self) -> bool:
        return self.stopped_at is not None or bool(self.steering)

    def _planned(self, question: ToolQuestion) -> Plan:
        """Return the plan of a call, made at the first look; nothing outside is asked for it."""
        plan = self._plans.get(question.tool_use_id)
        if plan is None:
            plan = self._plans[question.tool_use_id] = Plan(question, question)
        if not plan.is_looked_at:
            plan.is_looked_at = True
            self._fill(plan)
        return plan

    def _queue(self, plan: Plan) -> None:
        """Tell that a call waits for others."""
        if plan.queued is None:
            plan.queued = telemetry.open_span("queued", plan.inside, plan.question.name)

    def _dequeue(self, plan: Plan) -> None:
        """Tell that it does not wait any more."""
        telemetry.close(plan.queued)
        plan.queued = None

    def _fill(self, plan: Plan) -> None:
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
        self, plan: Plan, doubles: Mapping[str, str]
    ) -> AsyncGenerator[SubAgent, None]:
        """Find out what a call is, and decide on it by the rules and by what hooks want."""
        first = self._plans.get(doubles.get(plan.question.tool_use_id, ""))
        if first is not None and _same(first.asked, plan.asked):
            plan.answer = REPEATED
        if plan.answer is None and plan.decision is None:
            if len(self._running()) >= TOGETHER:
                self._queue(plan)
            async for event in self._room():
                yield event
            self._dequeue(plan)
            async for event in self._beside(self.deciding.judged(plan)):
                yield event

    async def _take(self, plan: Plan) -> AsyncGenerator[Step, None]:
        """Ask for consent to a call where that is needed, and begin it or note its answer."""
        if plan.answer is None and plan.decision is not None:
            decision, waited_ns = plan.decision, 0
            if decision.behaviour == "ask":
                asking = self.deciding.consent(plan, decision)
                async for event in self._beside(asking):
                    yield event
                decision, waited_ns = plan.decision, plan.waited_ns
            if decision.behaviour == "deny":
                about = {"reason": decision.reason}
                async for event in self._beside(
                    self.deciding.hooked("permission_denied", plan, about)
                ):
                    yield event
            for ran in plan.take_hooks():
                yield ran
            for step in self._begin(plan, decision, waited_ns):
                yield step
        else:
            self._batch.append(plan)
        for ran in plan.take_hooks():
            yield ran

    def _begin(self, plan: Plan, decision: Decision, waited_ns: int) -> Iterator[Step]:
        """Begin a call that is allowed, or note that it is not."""
        question, bound, tool = plan.question, plan.bound, plan.tool
        assert bound is not None
        assert tool is not None
        world = self.crew.world
        if bound.coerced:
            yield Coercion(plan.shown, bound.coerced)
        telemetry.permission(world, plan.inside, question, tool.name, decision, waited_ns)
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

    async def _run(self, plan: Plan) -> ToolDone:
        world, question, inside = self.crew.world, plan.question, plan.inside
        try:
            started_ns = world.now()
            answer = await self._executed(plan)
            done = ToolDone(question, answer, max(world.now() - started_ns, 0))
            hooks = self.deciding.following(after(done), plan)
            looking = tuple(hook.name for hook in hooks if not (hook.once or hook.background))
            telemetry.tool(inside, started_ns, done, plan.meant(has_run=True), looking)
            self.tools_ns += done.duration_ns
        except BaseException as error:
            plan.close(error)
            raise
        if not hooks:
            plan.close()
        if answer.is_error and plan.tool is not None and plan.tool.cancels_siblings:
            self._stop_others(plan)
        return done

    async def _executed(self, plan: Plan) -> ToolAnswer:
        """Run the tool of a call. An agent that it starts has a span of its own."""
        with telemetry.at(plan.inside):
            agent = self._agent(plan)
            if agent is not None:
                return await agent
        assert plan.tool is not None
        expected_s = plan.tool.timeout_s
        with (
            telemetry.span(
                "execution", plan.inside, plan.tool.name, expected_s=expected_s
            ) as inside,
            telemetry.at(inside),
        ):
            # A tool may change what it gets; what is recorded is what was asked.
            return await self.crew.world.run_tool(plan.shown)

    def _agent(self, plan: Plan) -> Awaitable[ToolAnswer] | None:
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

    def _stop_others(self, failed: Plan | None = None) -> None:
        """Stop the calls of this batch, all or all but one; each still gives its answer."""
        for plan in list(self._plans.values()):
            if plan is failed or plan.task is None or plan.task.done():
                continue
            if plan.abort is not None:
                plan.abort.stop()
            with telemetry.at(plan.inside):
                self.crew.world.stop_tool(plan.question.tool_use_id)

    async def _gather(self) -> AsyncGenerator[HookRan | SubAgent | ToolDone, None]:
        """Wait for the calls that run, tell all results, and look whether something was said meanwhile."""
        if not self._batch:
            return
        batch, tasks = self._batch, [plan.task for plan in self._batch if plan.task is not None]
        async for event in self._ended(tasks):
            yield event
        await self.deciding.followed_up([plan for plan in batch if plan.task is not None])
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
            said = await telemetry.ask(self.crew.world, self.here, "steering", key)
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

    def _told(self, plan: Plan, otherwise: ToolAnswer) -> ToolDone:
        """Note the result of a call, telling the sink where the loop gave it, and return it for consumers."""
        done = plan.task.result() if plan.task else self._made(plan, otherwise)
        done = plan.done or done
        if self.crew.starter is not None:
            self.crew.starter.told(plan.question.tool_use_id)
        self.results.append(done)
        answer = replace(done.answer, content=own_copy(done.answer.content))
        return replace(done, question=plan.shown, answer=answer)

    def _made(self, plan: Plan, answer: ToolAnswer) -> ToolDone:
        done = ToolDone(plan.question, answer, 0)
        self.deciding.open(plan)
        telemetry.tool(plan.inside, self.crew.world.now(), done, plan.meant(has_run=False))
        plan.close()
        return done

    def _look_for_abort(self, point: str, count: int) -> None:
        if self.stopped_at is None and self.crew.world.abort.reached(point, count):
            self.stopped_at = point, count


def _same(one: ToolQuestion, other: ToolQuestion) -> bool:
    return (one.name, one.input) == (other.name, other.input)
