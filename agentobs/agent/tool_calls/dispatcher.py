"""Execute the tool calls of one response and return their results.

Calls start in the order in which the model requests them. Adjacent concurrency-safe calls run in parallel, at most ten
at a time. Calls that only read may start while the response is still arriving. A call that is not concurrency-safe
waits for the calls before it and runs alone. Each call always gets exactly one result, and results are reported in the
order of the calls.
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
    HookRan,
    Permission,
    ServiceBreaker,
    SubAgent,
    ToolDispatch,
    ToolDone,
    ToolWithdrawn,
)
from agentobs.agent.interruption import Interrupted, Stopped, Watch
from agentobs.agent.permissions import Decision
from agentobs.agent.run_result import Denial
from agentobs.agent.state import deep_copy
from agentobs.agent.tool_calls.call_decision import CallDecider, post_event
from agentobs.agent.tool_calls.plan import Crew, Plan
from agentobs.agent.tool_calls.sub_agent_events import SubAgentEvents
from agentobs.agent.tool_calls.tool_availability import ToolAvailability
from agentobs.agent.tool_calls.trust import trust_in
from agentobs.agent.tools import structured_output as output
from agentobs.agent.tools.tool import bind, find_tool, invalid_input_result, unknown_tool_result
from agentobs.records.clear_text import declared_label
from agentobs.records.exchanges import Place, ToolAnswer, ToolOutcome, ToolQuestion

PARALLEL_MAX = 10
"""Maximum number of parallel calls. Our choice."""

SKIPPED = ToolAnswer(
    "Skipped: a new message arrived before this call started. Read it, then continue.",
    is_error=True,
    outcome="skipped",
)
ABORTED = ToolAnswer(
    "The run was stopped before this call started.", is_error=True, outcome="aborted"
)
REPEATED = ToolAnswer(
    "This call has the same ID and input as another call, so it was not run again.",
    is_error=True,
    outcome="deduplicated",
)

Step = (
    Coercion
    | HookRan
    | Permission
    | ServiceBreaker
    | SubAgent
    | ToolDispatch
    | ToolDone
    | ToolWithdrawn
)


@dataclass(slots=True)
class Dispatcher:
    """Runs the calls of one response."""

    crew: Crew
    here: Place | None
    turn: int
    deciding: CallDecider = field(init=False)
    availability: ToolAvailability = field(init=False)
    results: list[ToolDone] = field(default_factory=list)
    """The reported results, in the order of the calls."""
    denials: list[Denial] = field(default_factory=list)
    steering: tuple[str, ...] = ()
    """Messages to the agent that arrived while calls ran. Calls that had not started were skipped."""
    skipped: tuple[str, ...] = ()
    """The IDs of the skipped calls."""
    stopped_at: tuple[str, int] | None = None
    """The point where the run was stopped, as name and count; see `Abort.should_stop`."""
    output: BaseModel | None = None
    """The structured output, if a call provided it."""
    _plans: dict[str, Plan] = field(default_factory=dict)
    _batch: list[Plan] = field(default_factory=list)
    """Calls that have started or already have a result, and whose result was not reported yet."""
    _agent_events: SubAgentEvents = field(init=False)
    _watcher: asyncio.Task[None] | None = None
    """Waits for a message to the agent while a call runs that such a message cancels."""
    _may_start_early: bool = True
    _batches: int = 0
    tools_ns: int = 0
    """Total time in tools, in nanoseconds, including calls of responses that were not completed."""

    def __post_init__(self) -> None:
        """Create the decider for these calls, and the queue for events of sub-agents."""
        self._agent_events = SubAgentEvents(self.crew.conversation.background_events)
        self.deciding = CallDecider(self.crew, self.here, self.turn, self._check_abort)
        self.availability = ToolAvailability(
            self.crew, self.here, self.turn, self.deciding.set_effects
        )

    async def start_early(self, question: ToolQuestion) -> AsyncGenerator[Step, None]:
        """Start a call while its response is still arriving, if it and all calls before it only read and are permitted.

        If the response breaks off, the call has changed nothing, because it only reads.

        Raises:
            Stopped: the run was aborted.
        """
        known = question.tool_use_id in self._plans or question.tool_use_id in self.crew.used
        if not self._may_start_early or known:
            self._may_start_early = False
            return
        plan = self._planned(question)
        # Count all calls that have started, not only the calls that still run, so that the number does
        # not depend on the clock.
        is_limited = self.availability.is_limited(plan.tool)
        if is_limited or not plan.may_start_early or len(self._batch) >= PARALLEL_MAX:
            self._may_start_early = False
            return
        await self.deciding.examine(plan)
        if plan.answer is None and not self.deciding.has_hooks("pre_tool_use", plan):
            self.deciding.decide(plan)
        if plan.decision is None or plan.decision.behavior != "allow":
            self._may_start_early = False
        else:
            for step in self._start(plan, plan.decision):
                yield step
        if self.stopped_at is not None:
            raise Stopped(*self.stopped_at)

    async def finish(
        self, questions: Sequence[ToolQuestion], original_ids: Mapping[str, str]
    ) -> AsyncGenerator[Step, None]:
        """Run the remaining calls, and yield every result. After a message to the agent or an abort, no more calls
        start.

        Args:
            questions: the calls of the response, in order.
            original_ids: the original ID of each call that was renamed because its ID had already been used.
        """
        started = {plan.question.tool_use_id for plan in self._batch}
        waiting = deque(q for q in questions if q.tool_use_id not in started)
        self._check_abort(f"{self.turn}:dispatch", 0)
        for count, question in enumerate(waiting):
            plan = self._plans.setdefault(question.tool_use_id, Plan(question, question))
            plan.called_id = original_ids.get(question.tool_use_id)
            self.deciding.open_span(plan)
            if count > 0:
                self._queue(plan)
        while waiting and not self._is_over:
            plan = self._planned(waiting[0])
            if not plan.concurrent and any(other.task for other in self._batch):
                self._queue(plan)
                async for done in self._gather():
                    yield done
                continue
            self._check_abort(f"{self.turn}:call:{plan.question.tool_use_id}", 0)
            if self._is_over:
                break
            async for event in self._prepare(plan, original_ids):
                yield event
            if not plan.concurrent and any(other.task for other in self._batch):
                # Hooks have changed the input, and the call must now run alone.
                self._queue(plan)
                async for done in self._gather():
                    yield done
                if self._is_over:
                    for ran in plan.take_hook_runs():
                        yield ran
                    break
            self._dequeue(plan)
            if plan.needs_approval:
                async for event in self._approve(plan):
                    yield event
            if not plan.concurrent and any(other.task for other in self._batch):
                # A person has changed the input, and the call must now run alone.
                async for done in self._gather():
                    yield done
                if self._is_over:
                    for ran in plan.take_hook_runs():
                        yield ran
                    break
            waiting.popleft()
            async for step in self._start_or_record(plan):
                yield step
            if not plan.concurrent:
                async for done in self._gather():
                    yield done
        async for done in self._gather():
            yield done
        for question in waiting:
            plan = self._planned(question)
            yield self._report(plan, ABORTED if self.stopped_at else SKIPPED)
        if self.steering:
            self.skipped = tuple(question.tool_use_id for question in waiting)

    async def discard(self) -> tuple[str, ...]:
        """Stop the running calls of a response that broke off; return the IDs of the calls that had started.

        The result of each of these calls is still recorded, because a replay starts them as well.
        """
        self._stop_others()
        started = [plan for plan in self._plans.values() if plan.task]
        async for _ in self._wait_for_tasks([plan.task for plan in started if plan.task]):
            pass  # only agents have events, and agents do not start early
        self.availability.note(started)  # a resumed session also counts these runs
        await self.close()
        self._plans, self._may_start_early = {}, True
        return tuple(plan.question.tool_use_id for plan in started)

    async def close(self) -> None:
        """Cancel running calls and close open spans. Closing again has no effect."""
        tasks = [plan.task for plan in self._plans.values() if plan.task and not plan.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._end_watch()
        for plan in self._plans.values():
            # A task that was cancelled before its first step has not closed its spans.
            plan.close(cancelled=True)
        self._batch.clear()

    @property
    def _is_over(self) -> bool:
        return self.stopped_at is not None or bool(self.steering)

    def _planned(self, question: ToolQuestion) -> Plan:
        """Return the plan of a call. It is created at the first use, without any question to the world."""
        plan = self._plans.get(question.tool_use_id)
        if plan is None:
            plan = self._plans[question.tool_use_id] = Plan(question, question)
        if not plan.is_bound:
            plan.is_bound = True
            self._bind(plan)
        return plan

    def _queue(self, plan: Plan) -> None:
        """Open the `queued` span of a call that waits for other calls."""
        if plan.queued is None:
            plan.queued = telemetry.open_span("queued", plan.inside, plan.shown_name)

    def _dequeue(self, plan: Plan) -> None:
        """Close the `queued` span of a call that no longer waits."""
        telemetry.close(plan.queued)
        plan.queued = None

    def _bind(self, plan: Plan) -> None:
        question, tools = plan.question, self.crew.tools
        if self.crew.output is not None and question.name == output.NAME:
            plan.output, plan.answer = output.parse_output(self.crew.output, question.input)
            return
        plan.tool = find_tool(tools, question.name)
        if plan.tool is None:
            refused = self.crew.refused.get(question.name)
            plan.answer = refused or unknown_tool_result(tools, question.name)
            return
        try:
            plan.bound = bind(plan.tool, question.input)
        except ValueError as error:
            plan.answer = invalid_input_result(plan.tool, str(error))
            return
        self.deciding.set_effects(plan, plan.tool, plan.bound)

    async def _prepare(
        self, plan: Plan, original_ids: Mapping[str, str]
    ) -> AsyncGenerator[SubAgent | ServiceBreaker | ToolWithdrawn, None]:
        """Decide on a call with the rules and the hooks, as soon as it may start."""
        first = self._plans.get(original_ids.get(plan.question.tool_use_id, ""))
        if first is not None and _is_same_call(first.requested, plan.requested):
            plan.answer = REPEATED
        if plan.answer is None and plan.decision is None:
            if len(self._running()) >= PARALLEL_MAX:
                self._queue(plan)
            async for event in self._wait_for_slot():
                yield event
            self._dequeue(plan)
            async for event in self._with_events(self._check_and_decide(plan)):
                yield event
            if self.availability.events:
                for changed in self.availability.take_events():
                    yield changed

    async def _check_and_decide(self, plan: Plan) -> None:
        """Check whether the tool of a call is available, and decide on the call."""
        if plan.tool is not None and plan.tool.may_be_unavailable:
            await self.availability.check(plan)
        if plan.answer is None:
            await self.deciding.decide_with_hooks(plan)

    async def _approve(self, plan: Plan) -> AsyncGenerator[SubAgent, None]:
        """Request approval for a call."""
        assert plan.decision is not None
        approval = self.deciding.request_approval(plan, plan.decision)
        async for event in self._with_events(approval):
            yield event

    async def _start_or_record(self, plan: Plan) -> AsyncGenerator[Step, None]:
        """Start a call or record its result."""
        if plan.answer is None and plan.decision is not None:
            decision = plan.decision
            if decision.behavior == "deny":
                facts = {"reason": decision.reason}
                async for event in self._with_events(
                    self.deciding.run_hooks("permission_denied", plan, facts)
                ):
                    yield event
            for ran in plan.take_hook_runs():
                yield ran
            for step in self._start(plan, decision):
                yield step
        else:
            if self.crew.hooks is not None and self.crew.hooks.hooks:
                async for event in self._with_events(self.deciding.run_refusal_hooks(plan)):
                    yield event
            self._batch.append(plan)
        for ran in plan.take_hook_runs():
            yield ran

    def _start(self, plan: Plan, decision: Decision) -> Iterator[Step]:
        """Start a call if it is allowed; otherwise set the result that reports the denial."""
        question, bound, tool = plan.question, plan.bound, plan.tool
        assert bound is not None
        assert tool is not None
        world = self.crew.world
        if bound.coerced:
            yield Coercion(plan.question_copy, bound.coerced)
        telemetry.permission(
            world,
            plan.inside,
            question,
            declared_label(tool.name),
            decision,
            plan.waited_ns if plan.approval_requested else None,
        )
        self._batch.append(plan)
        yield Permission(plan.question_copy, decision, plan.waited_ns)
        self._check_abort(f"{self.turn}:tool:{question.tool_use_id}", 0)
        if self.stopped_at is not None:
            plan.answer = ABORTED
        elif decision.behavior != "allow":
            outcome: ToolOutcome = "blocked" if decision.resolver == "hook" else "denied"
            plan.answer = ToolAnswer(decision.reason, is_error=True, outcome=outcome)
            self.denials.append(Denial(question.tool_use_id, question.name, decision.reason))
        else:
            yield ToolDispatch(plan.question_copy)
            if tool.agents is not None:
                plan.abort, self._agent_events.is_used = world.abort.child(), True
                plan.trust = trust_in(self.crew.conversation)
            plan.task = asyncio.create_task(self._run(plan))
            if tool.interrupt == "cancel":
                self._watch_for_message()

    async def _run(self, plan: Plan) -> ToolDone:
        world, question, inside = self.crew.world, plan.question, plan.inside
        try:
            started_ns = world.now()
            answer = await self._execute(plan)
            done = ToolDone(question, answer, max(world.now() - started_ns, 0))
            hooks = self.deciding.matching_hooks(post_event(done), plan)
            watching_hooks = tuple(
                hook.name for hook in hooks if not (hook.once or hook.background)
            )
            telemetry.tool(inside, started_ns, done, plan.processed(has_run=True), watching_hooks)
            self.tools_ns += done.duration_ns
        except BaseException as error:
            plan.close(error)
            raise
        if not hooks:
            plan.close()
        has_failed = answer.is_error and answer.outcome != "aborted"
        if has_failed and plan.tool is not None and plan.tool.cancels_siblings:
            self._stop_others(plan)
        return done

    async def _execute(self, plan: Plan) -> ToolAnswer:
        """Execute the tool of a call, or the sub-agent that the call starts, which has its own span."""
        with telemetry.at_place(plan.inside):
            agent = self._agent_result(plan)
            if agent is not None:
                return await agent
        assert plan.tool is not None
        expected_s = plan.tool.timeout_s
        with (
            telemetry.span(
                "execution", plan.inside, plan.shown_name, expected_s=expected_s
            ) as inside,
            telemetry.at_place(inside),
        ):
            # Pass a copy, because a tool may modify its input, and the recording must contain the original.
            return await self.crew.world.run_tool(plan.question_copy)

    def _agent_result(self, plan: Plan) -> Awaitable[ToolAnswer] | None:
        """Return an awaitable result of the agent that a call starts; None if it does not start an agent."""
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
            self._agent_events.put,
        )

    async def _stop_on_message(self) -> None:
        """Wait for a message to the agent, and stop the running calls that it cancels. Their results follow."""
        await self.crew.world.message_arrived()
        for plan in list(self._plans.values()):
            if plan.tool is not None and plan.tool.interrupt == "cancel":
                self._stop(plan)

    def _watch_for_message(self) -> None:
        """Start to wait for a message to the agent, unless this was already done."""
        if self._watcher is not None and not self._watcher.done():
            return
        if self._watcher is not None:
            self._watcher.result()  # raises the error of the wait, if it failed
        self._watcher = asyncio.create_task(self._stop_on_message())

    async def _end_watch(self) -> None:
        """Stop waiting for a message, and raise the error of the wait if it failed."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait({watcher})
            if not watcher.cancelled():
                watcher.result()

    def _stop_others(self, failed: Plan | None = None) -> None:
        """Stop all running calls except `failed`. Each of them still returns a result."""
        for plan in list(self._plans.values()):
            if plan is not failed:
                self._stop(plan)

    def _stop(self, plan: Plan) -> None:
        """Stop a call if it is running."""
        if plan.task is None or plan.task.done():
            return
        if plan.abort is not None:
            plan.abort.stop()
        with telemetry.at_place(plan.inside):
            self.crew.world.stop_tool(plan.question.tool_use_id)

    async def _gather(self) -> AsyncGenerator[Step, None]:
        """Wait for the running calls, yield all results, and check for messages to the agent."""
        if not self._batch:
            return
        batch, tasks = self._batch, [plan.task for plan in self._batch if plan.task is not None]
        async for event in self._wait_for_tasks(tasks):
            yield event
        if self._watcher is not None:
            await self._end_watch()
        await self.deciding.run_post_hooks([plan for plan in batch if plan.task is not None])
        self._batch = []
        for plan in batch:
            for ran in plan.take_hook_runs():
                yield ran
            yield self._report(plan, plan.answer or ABORTED)
            self.output = plan.output if plan.output is not None else self.output
        if any(plan.tool is not None and plan.tool.may_be_unavailable for plan in batch):
            self.availability.note(batch)
            for changed in self.availability.take_events():
                yield changed
        if not tasks:
            return
        self._batches += 1
        self._check_abort(f"{self.turn}:tools", self._batches)
        if self.stopped_at is None:
            key = f"{self.turn}:{batch[-1].question.tool_use_id}"
            texts = await telemetry.ask(self.crew.world, self.here, "steering", key)
            self.steering = tuple(texts)

    async def _with_events(
        self, coroutine: Coroutine[Any, Any, Any]
    ) -> AsyncGenerator[SubAgent, None]:
        """Wait for a coroutine. Yield events of sub-agents in the meantime, because an approval may take an hour."""
        is_agent_running = any(plan.abort and plan.task in self._running() for plan in self._batch)
        if not is_agent_running and not self.crew.conversation.background:
            await coroutine
            return
        task = asyncio.create_task(coroutine)
        try:
            while not task.done():
                await self._agent_events.wait({task}, asyncio.FIRST_COMPLETED)
                for event in self._agent_events.take():
                    yield event
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        task.result()

    def _running(self) -> set[asyncio.Task[ToolDone]]:
        return {plan.task for plan in self._batch if plan.task and not plan.task.done()}

    async def _wait_for_slot(self) -> AsyncGenerator[SubAgent, None]:
        """Wait until another call may start.

        The decision on a call is made after this wait, so that it is as recent as possible.
        """
        while len(running := self._running()) >= PARALLEL_MAX:
            if await self._interrupted(running, asyncio.FIRST_COMPLETED):
                return  # the caller checks for the abort
            for event in self._agent_events.take():
                yield event

    async def _wait_for_tasks(
        self, tasks: Sequence[asyncio.Task[ToolDone]]
    ) -> AsyncGenerator[SubAgent, None]:
        """Wait for the tasks of calls, and yield the events of sub-agents. An abort stops the calls.

        If a task raises an exception, this function raises it.
        """
        unfinished, is_stopped = set(tasks), False
        while unfinished:
            if is_stopped:
                await self._agent_events.wait(unfinished, asyncio.FIRST_EXCEPTION)
            elif await self._interrupted(unfinished, asyncio.FIRST_EXCEPTION):
                is_stopped = True
                self._stop_others()
            for event in self._agent_events.take():
                yield event
            for task in [each for each in unfinished if each.done()]:
                unfinished.discard(task)
                task.result()

    async def _interrupted(self, tasks: set[asyncio.Task[ToolDone]], return_when: str) -> bool:
        """Wait for tasks or events; return whether an abort interrupted the wait."""
        async with Watch(self.crew.world.abort, None) as watch:
            try:
                await watch.guard(self._agent_events.wait(tasks, return_when))
            except Interrupted:
                return True
        return False

    def _report(self, plan: Plan, default: ToolAnswer) -> ToolDone:
        """Add the result of a call to the results, and return a copy for consumers. `default` is the result of a call
        that has no task.
        """
        done = plan.task.result() if plan.task else self._loop_result(plan, default)
        done = plan.done or done
        if self.crew.starter is not None:
            self.crew.starter.collect(plan.question.tool_use_id)
        self.results.append(done)
        answer = replace(done.answer, content=deep_copy(done.answer.content))
        return replace(done, question=plan.question_copy, answer=answer)

    def _loop_result(self, plan: Plan, answer: ToolAnswer) -> ToolDone:
        done = ToolDone(plan.question, answer, 0)
        self.deciding.open_span(plan)
        telemetry.tool(plan.inside, self.crew.world.now(), done, plan.processed(has_run=False))
        plan.close()
        return done

    def _check_abort(self, point: str, count: int) -> None:
        if self.stopped_at is None and self.crew.world.abort.should_stop(point, count):
            self.stopped_at = point, count


def _is_same_call(first: ToolQuestion, other: ToolQuestion) -> bool:
    return (first.name, first.input) == (other.name, other.input)
