"""Withdraw tools that keep failing, and open the circuit breakers of their services.

The declarations of tools stay in the requests, because they are the start of the prompt: removing one would write the
complete prompt to the cache again. A call of an unavailable tool goes to its fallback, or gets an answer that explains
the situation. The results of a batch of calls count in the order of the calls, so that a replay makes the same
decisions; whether a cool-down has passed is a question to the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from agentobs.agent import telemetry
from agentobs.agent.events import BreakerState, ServiceBreaker, ToolWithdrawn
from agentobs.agent.tool_calls.plan import Crew, Plan
from agentobs.agent.tools.tool import Bound, Tool, bind, find_tool
from agentobs.agent.tools.tool_runs import Service, Streak, ToolRun, has_failed
from agentobs.records.clear_text import declared_label
from agentobs.records.exchanges import Place, ToolAnswer


@dataclass(slots=True)
class ToolAvailability:
    """Decides for the calls of one response which tools are available."""

    crew: Crew
    here: Place | None
    turn: int
    use_tool: Callable[[Plan, Tool, Bound], None]
    """Makes a call use a tool, see `CallDecider.set_effects`."""
    events: list[ServiceBreaker | ToolWithdrawn] = field(default_factory=list)
    """Events that were not passed to consumers yet."""
    _are_cool: dict[str, bool] = field(default_factory=dict)
    """Whether the cool-down of a service has passed in this turn, by its name."""
    _probed: set[str] = field(default_factory=set)
    """The services with a call that was let through to see whether the service works again."""

    def is_limited(self, tool: Tool | None) -> bool:
        """Return whether a tool is withdrawn, or the breaker of its service is open or lets one call through."""
        if tool is None or not tool.may_be_unavailable:
            return False
        return self._is_withdrawn(tool) or (
            tool.service is not None and self._is_open(tool.service)
        )

    async def check(self, plan: Plan) -> None:
        """Give the call of an unavailable tool to the fallback; without a fallback that fits, set its answer."""
        tool = plan.tool
        if tool is None or not tool.may_be_unavailable:
            return
        reasons: list[str] = []
        seen: list[Tool] = []
        bound = plan.bound
        while (reason := await self._obstacle(tool)) is not None:
            seen.append(tool)
            reasons.append(reason)
            following = find_tool(self.crew.tools, tool.fallback) if tool.fallback else None
            if following is None or following in seen:
                plan.answer = _unavailable(reasons)
                break
            try:
                bound = bind(following, plan.question.input)
            except ValueError as error:
                reasons.append(
                    f"{following.name} would be used instead, but not for this input:\n{error}\n"
                )
                plan.answer = _unavailable(reasons)
                break
            tool = following
        if plan.answer is not None:
            plan.concurrent = True
        elif tool is not plan.tool:
            assert bound is not None
            plan.tool, plan.bound = tool, bound
            plan.call = plan.decision = None  # Both are about the called tool.
            plan.question = replace(plan.question, name=tool.name)
            self.use_tool(plan, tool, bound)

    def note(self, plans: Iterable[Plan]) -> None:
        """Count the results of calls, in order, and report tools and services whose state has changed."""
        limited = [
            plan for plan in plans if plan.task and plan.tool and plan.tool.may_be_unavailable
        ]
        runs = list(self._runs(limited))
        if not runs:
            return
        conversation = self.crew.conversation
        tools = list({plan.tool.name: plan.tool for plan in limited if plan.tool}.values())
        services = list(
            {tool.service.name: tool.service for tool in tools if tool.service}.values()
        )
        withdrawn = {tool.name for tool in tools if self._is_withdrawn(tool)}
        before = {service.name: self._streak(service) for service in services}
        conversation.tool_runs = conversation.tool_runs.after(runs)
        for tool in tools:
            if self._is_withdrawn(tool) and tool.name not in withdrawn:
                self._report_withdrawal(tool)
        for service in services:
            now, was_open = self._streak(service), before[service.name].count >= service.failures
            if now.count >= service.failures and now != before[service.name]:
                self._report(service, "opened", now.count)
            elif was_open and now.count < service.failures:
                self._report(service, "closed", now.count)
            self._probed.discard(service.name)

    def take_events(self) -> Iterator[ServiceBreaker | ToolWithdrawn]:
        """Yield and clear the events that were not passed to consumers yet."""
        events, self.events = self.events, []
        yield from events

    def _runs(self, plans: Iterable[Plan]) -> Iterator[ToolRun]:
        for plan in plans:
            assert plan.task is not None
            assert plan.tool is not None
            failed = has_failed(plan.task.result().answer.outcome)
            if failed is not None:
                yield ToolRun(plan.tool.name, failed, self.turn, self.crew.world.now())

    async def _obstacle(self, tool: Tool) -> str | None:
        """Return why a tool cannot be used, as a sentence for the model; None if it can."""
        if self._is_withdrawn(tool):
            count = self.crew.conversation.tool_runs.failures_of(tool.names).count
            return (
                f"{tool.name} was withdrawn for the rest of this conversation, because it failed {count} times in a "
                "row."
            )
        service = tool.service
        if service is None or not self._is_open(service):
            return None
        streak = self._streak(service)
        if service.name in self._probed or not await self._is_cool(service, streak):
            return (
                f"{tool.name} is not available at the moment, because the service {service.name} failed "
                f"{streak.count} times in a row."
            )
        self._probed.add(service.name)
        self._report(service, "half_open", streak.count)
        return None

    async def _is_cool(self, service: Service, streak: Streak) -> bool:
        """Return whether the cool-down of a service has passed; in a replay, whether it had passed in the recording."""
        assert streak.last is not None
        if service.cool_down_turns is not None:
            return self.turn > streak.last.turn + service.cool_down_turns
        assert service.cool_down_s is not None
        if service.name not in self._are_cool:
            elapsed_s = (self.crew.world.now() - streak.last.at_ns) / 1e9
            payload = True if elapsed_s >= service.cool_down_s else None
            key = f"{self.turn}:service:{service.name}"
            answer = await telemetry.ask(self.crew.world, self.here, "elapsed", key, payload)
            self._are_cool[service.name] = answer is True
        return self._are_cool[service.name]

    def _is_withdrawn(self, tool: Tool) -> bool:
        limit = tool.withdraw_after
        runs = self.crew.conversation.tool_runs
        return limit is not None and runs.failures_of(tool.names).count >= limit

    def _is_open(self, service: Service) -> bool:
        return self._streak(service).count >= service.failures

    def _streak(self, service: Service) -> Streak:
        names = {
            name
            for tool in self.crew.tools
            if tool.service is not None and tool.service.name == service.name
            for name in tool.names
        }
        return self.crew.conversation.tool_runs.failures_of(names)

    def _report_withdrawal(self, tool: Tool) -> None:
        count = self.crew.conversation.tool_runs.failures_of(tool.names).count
        fallback = None if tool.fallback is None else declared_label(tool.fallback)
        telemetry.event(
            self.crew.world,
            self.here,
            "tool_withdrawn",
            declared_label(tool.name),
            {"failures": count},
            {"fallback": fallback},
        )
        self.events.append(ToolWithdrawn(self.turn, tool.name, count, tool.fallback))

    def _report(self, service: Service, state: BreakerState, failures: int) -> None:
        labels = {"service": declared_label(service.name)}
        numbers = {"failures": failures}
        telemetry.event(self.crew.world, self.here, "service_breaker", state, numbers, labels)
        self.events.append(ServiceBreaker(self.turn, service.name, state, failures))


def _unavailable(reasons: Iterable[str]) -> ToolAnswer:
    text = " ".join((*reasons, "Continue without it, or report what you could not do."))
    return ToolAnswer(text, is_error=True, outcome="unavailable")
