"""Decide on tool calls with rules, hooks and approvals, and run the hooks after a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
from agentobs.agent.permissions import (
    Call,
    Decision,
    Rule,
    consented,
    decide,
    needs_person,
    updated_input,
)
from agentobs.agent.state import deep_copy
from agentobs.agent.tool_calls.call_effects import effects_of
from agentobs.agent.tool_calls.plan import Crew, Plan
from agentobs.agent.tool_calls.rule_subject import call_of, raw_paths, resolved_paths
from agentobs.agent.tools.results import fit, render
from agentobs.agent.tools.tool import Bound, Tool, bind, find_tool, invalid_input_result
from agentobs.errors import warn_once
from agentobs.records.canonical_json import Json, size
from agentobs.records.clear_text import declared_label
from agentobs.records.exchanges import Place, ToolAnswer

Author = Literal["hook", "person"]
"""Who changed the input or the result of a call."""


@dataclass(slots=True)
class CallDecider:
    """Decides on the calls of one response, and runs the hooks before and after them."""

    crew: Crew
    here: Place | None
    turn: int
    check_abort: Callable[[str, int], None]
    """Checks whether the run must stop at a point. The arguments are those of `Abort.should_stop`."""
    over_budget: bool = False
    """Whether no further call may run because the budget is exceeded."""
    context: list[str] = field(default_factory=list)
    """Context that hooks add to the results."""
    hook_stops: bool = False
    """Whether a hook ends the run after these calls."""
    hook_reasons: list[str] = field(default_factory=list)
    """The reasons of the hooks that end the run."""

    async def decide_with_hooks(self, plan: Plan) -> None:
        """Examine a call, run the hooks before it, and decide on it, unless this was already done."""
        if plan.call is None:
            await self.examine(plan)
        if plan.answer is None:
            await self._run_pre_hooks(plan)
        if plan.answer is None and plan.decision is None:
            self.decide(plan)

    async def _run_pre_hooks(self, plan: Plan, key_suffix: str = "") -> None:
        """Run the hooks before a call, which may deny or answer it, change its input, allow it, or require approval.

        `key_suffix` distinguishes this run of the hooks from an earlier run for the same call.
        """
        verdict = await self.run_hooks("pre_tool_use", plan, {}, key_suffix)
        if verdict is None:
            return
        assert plan.tool is not None
        if verdict.blocked or verdict.decision == "deny":
            plan.decision = denied_by_hook(plan.tool.name, verdict.reason)
            return
        plan.hook_decision = verdict.decision
        if verdict.output is not None:
            content = fit(render(verdict.output), plan.tool.result_chars_max, lambda _: None)
            plan.answer = ToolAnswer(content, is_error=verdict.is_error, outcome="answered")
            plan.concurrent = True
        elif verdict.input is not None:
            await self._apply_rewrite(plan, plan.tool, verdict.input, "hook")

    async def _apply_rewrite(self, plan: Plan, tool: Tool, value: Any, author: Author) -> None:
        """Replace the input of a call. The response still contains the model's input."""
        before, plan.question = plan.question, replace(plan.question, input=deep_copy(value))
        self._emit_rewrite(plan, "input", before.input, plan.question.input, author)
        try:
            plan.bound = bind(tool, plan.question.input)
        except ValueError as error:
            plan.answer = invalid_input_result(tool, f"a {author} changed the input. {error}")
        else:
            self.set_effects(plan, tool, plan.bound)
            await self.examine(plan)

    def set_effects(self, plan: Plan, tool: Tool, bound: Bound) -> None:
        """Determine the effects of a call with its current input, and report functions of the tool that failed."""
        plan.effects = effects_of(tool, bound.arguments)
        plan.concurrent = plan.effects.concurrent
        for failure in plan.effects.failures:
            labels = {
                "tool": declared_label(tool.name),
                "tool_use_id": plan.question.tool_use_id,
                "error": failure.error,
            }
            here = plan.inside or self.here
            telemetry.event(self.crew.world, here, "tool_setting", failure.setting, {}, labels)
            warn_once(
                f"the function for `{failure.setting}` of the tool {tool.name} failed with {failure.error}, so the "
                "stricter value applies",
                about=f"{failure.setting} of {tool.name}",
            )

    def _occasion(
        self, event: HookEvent, plan: Plan, extra_facts: Mapping[str, Any], key_suffix: str = ""
    ) -> Occasion:
        question, call = plan.question, plan.call
        name = question.name if plan.tool is None else plan.tool.name
        facts = {
            "tool_name": name,
            "tool_use_id": question.tool_use_id,
            "tool_input": question.input,
            **extra_facts,
        }
        key = f"{question.tool_use_id}:{key_suffix}" if key_suffix else question.tool_use_id
        if call is None:  # The call was refused before it was examined.
            aliases = () if plan.tool is None else plan.tool.aliases
            return turn_occasion(event, self.turn, key, facts, tool=name, aliases=aliases)
        return turn_occasion(
            event,
            self.turn,
            key,
            facts,
            tool=name,
            aliases=call.aliases,
            subject=call.subject,
            tool_class=call.tool_class,
            paths=call.paths,
            hosts=call.hosts,
        )

    def has_hooks(self, event: HookEvent, plan: Plan) -> bool:
        """Return whether any hooks match an event of a call."""
        return bool(self.matching_hooks(event, plan))

    def matching_hooks(self, event: HookEvent, plan: Plan) -> tuple[Hook, ...]:
        """Return the hooks that match an event of a call."""
        hooks = self.crew.hooks
        return () if hooks is None else hooks.matching(self._occasion(event, plan, {}))

    async def run_hooks(
        self, event: HookEvent, plan: Plan, extra_facts: Mapping[str, Any], key_suffix: str = ""
    ) -> Verdict | None:
        """Run the hooks for an event of a call, inside the span of the call; return None if no hooks match."""
        if self.crew.hooks is None:
            return None
        occasion = self._occasion(event, plan, extra_facts, key_suffix)
        hooks = self.crew.hooks.claim(occasion)
        if not hooks:
            return None
        verdict = await self._run_claimed(plan, hooks, occasion)
        self._note(verdict, verdict.context)
        return verdict

    def _note(self, verdict: Verdict, texts: Sequence[str]) -> None:
        """Record the context that hooks add to the results, and whether they end the run."""
        self.context += texts
        if verdict.stop:
            self.hook_stops = True
            self.hook_reasons += [verdict.reason] if verdict.reason else []

    async def _run_claimed(self, plan: Plan, hooks: Sequence[Hook], occasion: Occasion) -> Verdict:
        assert self.crew.hooks is not None
        self.open_span(plan)
        verdict, ran = await self.crew.hooks.fire_claimed(hooks, occasion, plan.inside)
        plan.hooks_ran += ran
        key = f"{occasion.event}:{plan.question.tool_use_id}"
        self.check_abort(f"{self.turn}:hook:{key}", 0)
        return verdict

    def open_span(self, plan: Plan) -> None:
        """Open the span of a call, unless it is already open."""
        if plan.span is None:
            tool = plan.tool or find_tool(self.crew.tools, plan.question.name)
            name = plan.question.name if tool is None else declared_label(tool.name)
            plan.span = telemetry.open_span("tool", self.here, name)

    async def examine(self, plan: Plan) -> None:
        """Run the tool's own check of the input, and resolve the call's paths."""
        tool, bound, question = plan.tool, plan.bound, plan.question
        assert tool is not None
        assert bound is not None
        self.open_span(plan)
        world, key = self.crew.world, question.tool_use_id
        if tool.check is not None:
            question_facts = {"tool": question.name, "input": question.input}
            complaint = await telemetry.ask(world, plan.inside, "check", key, question_facts)
            if complaint is not None:
                plan.answer = invalid_input_result(tool, str(complaint))
                self.check_abort(f"{self.turn}:tool:{key}", 0)
                return
        paths, resolutions = raw_paths(tool, bound.arguments), None
        if paths:
            resolutions = await telemetry.ask(world, plan.inside, "path", key, list(paths))
        assert plan.effects is not None
        resolved = resolved_paths(paths, resolutions)
        plan.call = call_of(tool, question, bound.arguments, resolved, plan.effects)

    def decide(self, plan: Plan) -> None:
        """Decide on a call with the rules and the hooks' decision."""
        assert plan.call is not None
        decision = self._rule_decision(plan.call)
        mode = self.crew.permissions.mode
        plan.decision = apply_hook_decision(decision, plan.hook_decision, plan.call.tool, mode)

    def _rule_decision(self, call: Call) -> Decision:
        return decide(
            call,
            self.crew.permissions,
            grants=self.crew.conversation.grants,
            over_budget=self.over_budget,
        )

    async def request_approval(self, plan: Plan, pending: Decision, changes: int = 0) -> None:
        """Request approval from hooks, then from a person or the classifier; set the decision and the wait of the plan.

        An abort ends the wait. `changes` is how often a person has changed the input of the call so far.
        """
        world, suffix = self.crew.world, _suffix(changes)
        key = f"{plan.question.tool_use_id}:{suffix}" if suffix else plan.question.tool_use_id
        assert plan.call is not None
        facts = {"reason": pending.reason}
        verdict = await self.run_hooks("permission_request", plan, facts, suffix)
        if verdict is not None and (answer := approval_decision(pending, verdict, plan.call.tool)):
            plan.decision = answer
            return
        await self.run_hooks("notification", plan, {"kind": "permission", **facts}, suffix)
        about: Json = {"tool": plan.call.tool, "input": plan.question.input}
        if plan.call.paths:
            about["paths"] = [path.path for path in plan.call.paths]
        with telemetry.span(
            "blocked_on_user", plan.inside, plan.shown_name, expected_s=telemetry.APPROVAL_SECONDS
        ) as wait_span:
            started_ns, plan.approval_requested = world.now(), True
            question: Json = {"about": about, "reason": pending.reason}
            if self.crew.conversation.denials.escalates or needs_person(pending):
                question["person_only"] = True
            answer = await telemetry.ask(world, wait_span, "consent", key, question)
            plan.waited_ns += max(world.now() - started_ns, 0)
        self.crew.conversation.denials = self.crew.conversation.denials.after_answer(answer)
        if self.crew.hooks is not None:
            self.crew.hooks.count_usage(usage_in(answer))
        plan.decision, grant = consented(pending, answer, plan.call)
        changed = updated_input(answer) if plan.decision.behavior == "allow" else None
        if changed is not None and changed != plan.question.input:
            grant = await self._approve_changed(plan, pending, answer, changed, changes + 1)
        if grant is not None:
            self.crew.conversation.grants |= {grant}
        self.check_abort(f"{self.turn}:consent:{key}", 0)

    async def _approve_changed(
        self, plan: Plan, pending: Decision, answer: Json, changed: Json, changes: int
    ) -> Rule | None:
        """Check a call whose input a person has changed like a new call; set its decision, and return the granted rule.

        The person has approved the changed call, so no approval is requested again, unless hooks change the input again
        and a rule requires approval. However, the person may not know what the hooks, the rules and the safety checks
        deny.
        """
        assert plan.tool is not None
        await self._apply_rewrite(plan, plan.tool, changed, "person")
        if plan.answer is not None:
            return None
        plan.decision = None
        await self._run_pre_hooks(plan, _suffix(changes))
        if plan.answer is not None or plan.decision is not None:
            return None
        assert plan.call is not None
        of_rules = self._rule_decision(plan.call)
        if of_rules.behavior == "deny":
            reason = f"A person approved this call with a changed input. {of_rules.reason}"
            plan.decision = replace(of_rules, reason=reason)
            return None
        has_seen = plan.question.input == changed
        if of_rules.behavior == "ask":
            if of_rules.rule is not None and not has_seen:
                plan.decision = of_rules
                await self.request_approval(plan, of_rules, changes)
                return None
            pending, facts = of_rules, {"reason": of_rules.reason}
            verdict = await self.run_hooks("permission_request", plan, facts, _suffix(changes))
            of_hooks = approval_decision(pending, verdict or Verdict(), plan.call.tool)
            if of_hooks is not None and of_hooks.behavior == "deny":
                plan.decision = of_hooks
                return None
        if not has_seen:  # A person cannot approve further calls that they have not seen.
            answer = {**answer, "scope": "once"}
        plan.decision, grant = consented(pending, answer, plan.call)
        return grant

    async def run_refusal_hooks(self, plan: Plan) -> None:
        """Run the hooks for a call that was refused because there is no such tool, or because its input is invalid."""
        answer = plan.answer
        if answer is None or answer.outcome not in ("unknown", "invalid"):
            return
        facts = {"tool_output": answer.content, "outcome": answer.outcome}
        await self.run_hooks("invalid_tool_call", plan, facts)

    async def run_post_hooks(self, plans: Sequence[Plan]) -> None:
        """Run the hooks after these calls in parallel. The first matching call in order gets a `once` hook."""
        hooks = self.crew.hooks
        if hooks is None:
            return
        hook_runs = []
        for plan in plans:
            assert plan.task is not None
            done = plan.task.result()
            answer = done.answer
            facts = {
                "tool_output": answer.content,
                "is_error": answer.is_error,
                "outcome": answer.outcome,
            }
            occasion = self._occasion(post_event(done), plan, facts)
            if claimed := hooks.claim(occasion):
                hook_runs.append(self._run_post_hooks(plan, done, claimed, occasion))
            else:
                plan.close()
        for verdict, texts in await asyncio.gather(*hook_runs):
            self._note(verdict, texts)

    async def _run_post_hooks(
        self, plan: Plan, done: ToolDone, hooks: Sequence[Hook], occasion: Occasion
    ) -> tuple[Verdict, list[str]]:
        """Run the hooks after a call, which may change the output that the model sees.

        Return the verdict, and the texts to add for the model.
        """
        verdict = await self._run_claimed(plan, hooks, occasion)
        assert plan.tool is not None
        texts = list(verdict.context)
        if verdict.blocked:
            texts.append(objection(plan.tool.name, verdict.reason))
        if verdict.output is not None:
            content = fit(render(verdict.output), plan.tool.result_chars_max, lambda _: None)
            answer = replace(done.answer, content=content, outcome="substituted")
            plan.done = replace(done, answer=answer, original_result=done.answer)
            self._emit_rewrite(plan, "output", done.answer.content, content, "hook")
        plan.close()
        return verdict, texts

    def _emit_rewrite(self, plan: Plan, part: str, before: Any, after: Any, author: Author) -> None:
        numbers = {"before_bytes": size(before), "after_bytes": size(after)}
        labels = {"tool_use_id": plan.question.tool_use_id, "by": author}
        telemetry.event(self.crew.world, plan.inside, "rewritten", part, numbers, labels)


def _suffix(changes: int) -> str:
    """Return the suffix of the keys of questions about a call whose input a person has changed this often."""
    return ("", "changed")[changes] if changes < 2 else f"changed:{changes}"


def post_event(done: ToolDone) -> HookEvent:
    """Return the hook event that follows a call."""
    return "post_tool_use_failure" if done.answer.is_error else "post_tool_use"
