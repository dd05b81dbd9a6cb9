"""Decide on tool calls with the rules, hooks and approvals, and run the hooks after a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentobs.agent import telemetry
from agentobs.agent.conversation_hooks import (
    apply_hook_decision,
    approval_decision,
    denied_by_hook,
    objection,
    turn_occasion,
)
from agentobs.agent.events import ToolDone
from agentobs.agent.hooks import Hook, HookEvent, Occasion, Verdict, usage_in
from agentobs.agent.permissions import Decision, consented, decide, needs_person
from agentobs.agent.state import deep_copy
from agentobs.agent.tool_calls.plan import Crew, Plan
from agentobs.agent.tool_calls.rule_subject import call_of, is_concurrent, raw_paths, resolved_paths
from agentobs.agent.tools.results import fit, render
from agentobs.agent.tools.tool import Tool, bind, find, invalid
from agentobs.records.canonical_json import Json, size
from agentobs.records.exchanges import Place


@dataclass(slots=True)
class CallDecider:
    """Decides on the calls of one response, and runs the hooks around them."""

    crew: Crew
    here: Place | None
    turn: int
    look_for_abort: Callable[[str, int], None]
    """Checks whether the run is to stop at a point, as named by `Abort.reached`."""
    over_budget: bool = False
    """Whether no further call may run because the budget is exceeded."""
    context: list[str] = field(default_factory=list)
    """Context that hooks add to the results."""
    hook_stops: bool = False
    """Whether a hook ends the run after these calls."""
    hook_reasons: list[str] = field(default_factory=list)
    """The reasons given by those hooks."""

    async def judged(self, plan: Plan) -> None:
        """Resolve a call, and decide on it with the rules and the hooks."""
        if plan.call is None:
            await self.look(plan)
        if plan.answer is None:
            await self._before(plan)
        if plan.answer is None and plan.decision is None:
            self.decide(plan)

    async def _before(self, plan: Plan) -> None:
        """Run the hooks before a call: they may deny it, change its input, allow it, or require approval."""
        verdict = await self.hooked("pre_tool_use", plan, {})
        if verdict is None:
            return
        assert plan.tool is not None
        if verdict.blocked or verdict.decision == "deny":
            plan.decision = denied_by_hook(plan.tool.name, verdict.reason)
            return
        plan.wish = verdict.decision
        if verdict.input is not None:
            await self._rewrite(plan, plan.tool, verdict.input)

    async def _rewrite(self, plan: Plan, tool: Tool, value: Any) -> None:
        """Continue with the hooks' input; the model's own input stays in the response."""
        before, plan.question = plan.question, replace(plan.question, input=deep_copy(value))
        self._rewritten(plan, "input", before.input, plan.question.input)
        try:
            plan.bound = bind(tool, plan.question.input)
        except ValueError as error:
            plan.answer = invalid(tool, f"a hook changed the input. {error}")
        else:
            plan.concurrent = is_concurrent(tool, plan.bound.arguments)
            await self.look(plan)

    def _occasion(self, event: HookEvent, plan: Plan, more: Mapping[str, Any]) -> Occasion:
        question, call = plan.question, plan.call
        assert call is not None
        facts = {
            "tool_name": call.tool,
            "tool_use_id": question.tool_use_id,
            "tool_input": question.input,
            **more,
        }
        return turn_occasion(
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

    def followed(self, event: HookEvent, plan: Plan) -> bool:
        """Return whether hooks match an event of a call."""
        return bool(self.following(event, plan))

    def following(self, event: HookEvent, plan: Plan) -> tuple[Hook, ...]:
        """Return the hooks that match an event of a call."""
        hooks = self.crew.hooks
        return () if hooks is None else hooks.matching(self._occasion(event, plan, {}))

    async def hooked(self, event: HookEvent, plan: Plan, more: Mapping[str, Any]) -> Verdict | None:
        """Run the hooks for an event of a call, inside its span; None if there are none."""
        if self.crew.hooks is None:
            return None
        what = self._occasion(event, plan, more)
        hooks = self.crew.hooks.claim(what)
        if not hooks:
            return None
        verdict = await self._fired(plan, hooks, what)
        self._note(verdict, verdict.context)
        return verdict

    def _note(self, verdict: Verdict, texts: Sequence[str]) -> None:
        """Record the context that hooks add to the results, and whether they end the run."""
        self.context += texts
        if verdict.stop:
            self.hook_stops = True
            self.hook_reasons += [verdict.reason] if verdict.reason else []

    async def _fired(self, plan: Plan, hooks: Sequence[Hook], what: Occasion) -> Verdict:
        assert self.crew.hooks is not None
        self.open(plan)
        verdict, ran = await self.crew.hooks.fire_claimed(hooks, what, plan.inside)
        plan.hooks_ran += ran
        key = f"{what.event}:{plan.question.tool_use_id}"
        self.look_for_abort(f"{self.turn}:hook:{key}", 0)
        return verdict

    def open(self, plan: Plan) -> None:
        """Open the span of a call, unless it is already open."""
        if plan.span is None:
            used = plan.tool or find(self.crew.tools, plan.question.name)
            name = used.name if used is not None else plan.question.name
            plan.span = telemetry.open_span("tool", self.here, name)

    async def look(self, plan: Plan) -> None:
        """Run the tool's own check of the input, and resolve the call's paths."""
        tool, bound, question = plan.tool, plan.bound, plan.question
        assert tool is not None
        assert bound is not None
        self.open(plan)
        world, key = self.crew.world, question.tool_use_id
        if tool.check is not None:
            question_facts = {"tool": question.name, "input": question.input}
            complaint = await telemetry.ask(world, plan.inside, "check", key, question_facts)
            if complaint is not None:
                plan.answer = invalid(tool, str(complaint))
                self.look_for_abort(f"{self.turn}:tool:{key}", 0)
                return
        paths, leads_to = raw_paths(tool, bound.arguments), None
        if paths:
            leads_to = await telemetry.ask(world, plan.inside, "path", key, list(paths))
        plan.call = call_of(tool, question, bound.arguments, resolved_paths(paths, leads_to))

    def decide(self, plan: Plan) -> None:
        """Decide on a call with the rules and the hooks' wish."""
        assert plan.call is not None
        decision = decide(
            plan.call,
            self.crew.permissions,
            grants=self.crew.talk.grants,
            over_budget=self.over_budget,
        )
        mode = self.crew.permissions.mode
        plan.decision = apply_hook_decision(decision, plan.wish, plan.call.tool, mode)

    async def consent(self, plan: Plan, pending: Decision) -> None:
        """Request approval from hooks, then from a person, interruptible by an abort; record the
        decision and the wait.
        """
        world, key = self.crew.world, plan.question.tool_use_id
        assert plan.call is not None
        verdict = await self.hooked("permission_request", plan, {"reason": pending.reason})
        if verdict is not None and (answer := approval_decision(pending, verdict, plan.call.tool)):
            plan.decision = answer
            return
        facts = {"kind": "permission", "reason": pending.reason}
        await self.hooked("notification", plan, facts)
        about: Json = {"tool": plan.call.tool, "input": plan.question.input}
        if plan.call.paths:
            about["paths"] = [path.path for path in plan.call.paths]
        with telemetry.span(
            "blocked_on_user", plan.inside, plan.call.tool, expected_s=telemetry.APPROVAL_SECONDS
        ) as blocked:
            started_ns = world.now()
            question: Json = {"about": about, "reason": pending.reason}
            if self.crew.talk.denials.escalates or needs_person(pending):
                question["person_only"] = True
            answer = await telemetry.ask(world, blocked, "consent", key, question)
            plan.waited_ns = max(world.now() - started_ns, 0)
        self.crew.talk.denials = self.crew.talk.denials.after(answer)
        if self.crew.hooks is not None:
            self.crew.hooks.count_usage(usage_in(answer))
        plan.decision, grant = consented(pending, answer, plan.call)
        if grant is not None:
            self.crew.talk.grants |= {grant}
        self.look_for_abort(f"{self.turn}:consent:{key}", 0)

    async def followed_up(self, plans: Sequence[Plan]) -> None:
        """Run the hooks after these calls in parallel; call order decides which call gets a `once` hook."""
        hooks = self.crew.hooks
        if hooks is None:
            return
        firing = []
        for plan in plans:
            assert plan.task is not None
            done = plan.task.result()
            answer = done.answer
            facts = {
                "tool_output": answer.content,
                "is_error": answer.is_error,
                "outcome": answer.outcome,
            }
            what = self._occasion(after(done), plan, facts)
            if claimed := hooks.claim(what):
                firing.append(self._follow_up(plan, done, claimed, what))
            else:
                plan.close()
        for verdict, texts in await asyncio.gather(*firing):
            self._note(verdict, texts)

    async def _follow_up(
        self, plan: Plan, done: ToolDone, hooks: Sequence[Hook], what: Occasion
    ) -> tuple[Verdict, list[str]]:
        """Run the hooks after a call, which may change the output that the model sees; return their context."""
        verdict = await self._fired(plan, hooks, what)
        assert plan.tool is not None
        texts = list(verdict.context)
        if verdict.blocked:
            texts.append(objection(plan.tool.name, verdict.reason))
        if verdict.output is not None:
            content = fit(render(verdict.output), plan.tool.result_chars_max, lambda _: None)
            answer = replace(done.answer, content=content, outcome="substituted")
            plan.done = replace(done, answer=answer, original_result=done.answer)
            self._rewritten(plan, "output", done.answer.content, content)
        plan.close()
        return verdict, texts

    def _rewritten(self, plan: Plan, what: str, before: Any, now: Any) -> None:
        numbers = {"before_bytes": size(before), "after_bytes": size(now)}
        labels = {"tool_use_id": plan.question.tool_use_id}
        telemetry.event(self.crew.world, plan.inside, "rewritten", what, numbers, labels)


def after(done: ToolDone) -> HookEvent:
    """Return the hook event that follows a call."""
    return "post_tool_use_failure" if done.answer.is_error else "post_tool_use"
