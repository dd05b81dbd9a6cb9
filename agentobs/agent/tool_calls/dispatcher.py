"""Execute the tool calls of one response and return their results.

Calls are taken in the model's order. Adjacent concurrency-safe calls run in parallel, at most ten at a time, and start
while the response is still arriving. Any other call waits for the calls before it and runs alone. Each call always gets
exactly one result, and results are reported in the order of the calls.
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
from agentobs.agent.state import deep_copy
from agentobs.agent.tool_calls.call_decision import CallDecider, after
from agentobs.agent.tool_calls.plan import Crew, Plan
from agentobs.agent.tool_calls.rule_subject import is_concurrent
from agentobs.agent.tool_calls.sub_agent_events import SubAgentEvents
from agentobs.agent.tool_calls.trust import trust_in
from agentobs.agent.tools import structured_output as output
from agentobs.agent.tools.tool import bind, find, invalid, unknown
from agentobs.records.exchanges import Place, ToolAnswer, ToolOutcome, ToolQuestion

TOGETHER = 10
"""Maximum number of parallel calls. Our choice."""

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
    """Runs the calls of one response; discarded with that response."""

    crew: Crew
    here: Place | None
    turn: int
    deciding: CallDecider = field(init=False)
    results: list[ToolDone] = field(default_factory=list)
    """The reported results, in the order of the calls."""
    denials: list[Denial] = field(default_factory=list)
    steering: tuple[str, ...] = ()
    """Messages to the agent that arrived in the meantime; calls that had not started were skipped."""
    skipped: tuple[str, ...] = ()
    """The IDs of the skipped calls."""
    stopped_at: tuple[str, int] | None = None
    """The point where the run was stopped, as named by `Abort.reached`."""
    output: BaseModel | None = None
    """The structured output, if a call provided it."""
    _plans: dict[str, Plan] = field(default_factory=dict)
    _batch: list[Plan] = field(default_factory=list)
    """Calls that have started or have a result, and were not reported yet."""
    _rising: SubAgentEvents = field(default_factory=SubAgentEvents)
    _may_begin: bool = True
    _batches: int = 0
    tools_ns: int = 0
    """Time in tools, including those of responses that broke off."""

    def __post_init__(self) -> None:
        """Create the object that decides on its calls."""
        self.deciding = CallDecider(self.crew, self.here, self.turn, self._look_for_abort)

    async def early(self, question: ToolQuestion) -> AsyncGenerator[Step, None]:
        """Start a call while its response is still arriving, if it and all calls before it only read and are permitted.

        The response is not in the conversation yet, so if it breaks off, nothing has changed.

        Raises:
            Stopped: the run was aborted.
        """
        known = question.tool_use_id in self._plans or question.tool_use_id in self.crew.used
        if not self._may_begin or known:
            self._may_begin = False
            return
        plan = self._planned(question)
        # Count the calls that started, not those still running, so that the number does not depend
        # on the clock.
        if not plan.may_begin_early or len(self._batch) >= TOGETHER:
            self._may_begin = False
            return
        await self.deciding.look(plan)
        if plan.answer is None and not self.deciding.followed("pre_tool_use", plan):
            self.deciding.decide(plan)
        if plan.decision is None or plan.decision.behavior != "allow":
            self._may_begin = False
        else:
            for step in self._begin(plan, plan.decision, 0):
                yield step
        if self.stopped_at is not None:
            raise Stopped(*self.stopped_at)

    async def finish(
        self, questions: Sequence[ToolQuestion], doubles: Mapping[str, str]
    ) -> AsyncGenerator[Step, None]:
        """Run the remaining calls, and yield every result. A message to the agent or an abort ends it early.

        Args:
            questions: the calls of the response, in order.
            doubles: renamed calls, with their original ID that had been used before.
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
                # Hooks have changed it into a call that has to run alone.
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
            yield self._reported(plan, ABORTED if self.stopped_at else SKIPPED)
        if self.steering:
            self.skipped = tuple(question.tool_use_id for question in waiting)

    async def discard(self) -> tuple[str, ...]:
        """Stop running calls because their response broke off; return the IDs of the calls that had
        started.

        Each still gets its recorded result, because a replay starts them as well.
        """
        self._stop_others()
        begun = [plan for plan in self._plans.values() if plan.task]
        async for _ in self._ended([plan.task for plan in begun if plan.task]):
            pass  # agents do not start early
        await self.close()
        self._plans, self._may_begin = {}, True
        return tuple(plan.question.tool_use_id for plan in begun)

    async def close(self) -> None:
        """Cancel running calls and close open spans. A second call has no effect."""
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
        """Return the plan of a call, created at first use without any question to the world."""
        plan = self._plans.get(question.tool_use_id)
        if plan is None:
            plan = self._plans[question.tool_use_id] = Plan(question, question)
        if not plan.is_looked_at:
            plan.is_looked_at = True
            self._fill(plan)
        return plan

    def _queue(self, plan: Plan) -> None:
        """Open the span of a call that waits for others."""
        if plan.queued is None:
            plan.queued = telemetry.open_span("queued", plan.inside, plan.question.name)

    def _dequeue(self, plan: Plan) -> None:
        """Close the span of a call that no longer waits."""
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
        """Resolve a call, and decide on it with the rules and the hooks."""
        first = self._plans.get(doubles.get(plan.question.tool_use_id, ""))
        if first is not None and _same(first.asked, plan.asked):
            plan.answer = REPEATED
        if plan.answer is None and plan.decision is None:
            if len(self._running()) >= TOGETHER:
                self._queue(plan)
            async for event in self._room():
                yield event
            self._dequeue(plan)
            async for event in self._with_events(self.deciding.judged(plan)):
                yield event

    async def _take(self, plan: Plan) -> AsyncGenerator[Step, None]:
        """Request approval for a call if necessary, then start it or record its result."""
        if plan.answer is None and plan.decision is not None:
            decision, waited_ns = plan.decision, 0
            if decision.behavior == "ask":
                approval = self.deciding.consent(plan, decision)
                async for event in self._with_events(approval):
                    yield event
                decision, waited_ns = plan.decision, plan.waited_ns
            if decision.behavior == "deny":
                about = {"reason": decision.reason}
                async for event in self._with_events(
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
        """Start an allowed call, or record that it is denied."""
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
        elif decision.behavior != "allow":
            outcome: ToolOutcome = "blocked" if decision.resolver == "hook" else "denied"
            plan.answer = ToolAnswer(decision.reason, is_error=True, outcome=outcome)
            self.denials.append(Denial(question.tool_use_id, question.name, decision.reason))
        else:
            yield ToolDispatch(plan.shown)
            if tool.agents is not None:
                plan.abort, self._rising.is_used = world.abort.child(), True
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
            telemetry.tool(inside, started_ns, done, plan.processed(has_run=True), looking)
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
        """Execute the tool of a call. A sub-agent that it starts has its own span."""
        with telemetry.at_place(plan.inside):
            agent = self._agent(plan)
            if agent is not None:
                return await agent
        assert plan.tool is not None
        expected_s = plan.tool.timeout_s
        with (
            telemetry.span(
                "execution", plan.inside, plan.tool.name, expected_s=expected_s
            ) as inside,
            telemetry.at_place(inside),
        ):
            # A tool may modify its input; the recording has the input as requested.
            return await self.crew.world.run_tool(plan.shown)

    def _agent(self, plan: Plan) -> Awaitable[ToolAnswer] | None:
        """Return the result of the agent that a call starts; None if it starts none."""
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
        """Stop the calls of this batch, except `failed`; each still returns a result."""
        for plan in list(self._plans.values()):
            if plan is failed or plan.task is None or plan.task.done():
                continue
            if plan.abort is not None:
                plan.abort.stop()
            with telemetry.at_place(plan.inside):
                self.crew.world.stop_tool(plan.question.tool_use_id)

    async def _gather(self) -> AsyncGenerator[HookRan | SubAgent | ToolDone, None]:
        """Wait for the running calls, yield all results, and check for messages to the agent."""
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
            yield self._reported(plan, plan.answer or ABORTED)
            self.output = plan.output if plan.output is not None else self.output
        if not tasks:
            return
        self._batches += 1
        self._look_for_abort(f"{self.turn}:tools", self._batches)
        if self.stopped_at is None:
            key = f"{self.turn}:{batch[-1].question.tool_use_id}"
            texts = await telemetry.ask(self.crew.world, self.here, "steering", key)
            self.steering = tuple(texts)

    async def _with_events(self, work: Coroutine[Any, Any, Any]) -> AsyncGenerator[SubAgent, None]:
        """Wait for a coroutine, and yield events of sub-agents meanwhile, because an approval may take an hour."""
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
        """Wait until another call may run, so that the decision on it is as recent as possible."""
        while len(running := self._running()) >= TOGETHER:
            if await self._interrupted(running, asyncio.FIRST_COMPLETED):
                return  # the caller checks for the abort
            for event in self._rising.take():
                yield event

    async def _ended(
        self, tasks: Sequence[asyncio.Task[ToolDone]]
    ) -> AsyncGenerator[SubAgent, None]:
        """Wait for tasks, and yield the events of their agents; an abort stops their calls.

        An exception of a task is raised here.
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
        """Wait for tasks or for events; return whether an abort came first."""
        async with Watch(self.crew.world.abort, None) as watch:
            try:
                await watch.guard(self._rising.wait(tasks, until))
            except Interrupted:
                return True
        return False

    def _reported(self, plan: Plan, otherwise: ToolAnswer) -> ToolDone:
        """Record the result of a call, emit it to the sink if the loop produced it, and return it for consumers."""
        done = plan.task.result() if plan.task else self._made(plan, otherwise)
        done = plan.done or done
        if self.crew.starter is not None:
            self.crew.starter.collect(plan.question.tool_use_id)
        self.results.append(done)
        answer = replace(done.answer, content=deep_copy(done.answer.content))
        return replace(done, question=plan.shown, answer=answer)

    def _made(self, plan: Plan, answer: ToolAnswer) -> ToolDone:
        done = ToolDone(plan.question, answer, 0)
        self.deciding.open(plan)
        telemetry.tool(plan.inside, self.crew.world.now(), done, plan.processed(has_run=False))
        plan.close()
        return done

    def _look_for_abort(self, point: str, count: int) -> None:
        if self.stopped_at is None and self.crew.world.abort.should_stop(point, count):
            self.stopped_at = point, count


def _same(one: ToolQuestion, other: ToolQuestion) -> bool:
    return (one.name, one.input) == (other.name, other.input)
