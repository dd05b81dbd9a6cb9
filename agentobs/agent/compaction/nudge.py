"""Prompt a model to continue if it is about to stop and the run has tokens left to spend."""

from __future__ import annotations

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.context import token_budget
from agentobs.agent.context.token_counts import output_tokens
from agentobs.agent.events import Nudge
from agentobs.records.exchanges import Place


def nudge(run: Run, here: Place | None) -> tuple[Nudge, str] | None:
    """Record a nudge; return its event and the prompt for the model, or None if the model may stop."""
    budget = run.inputs.options.token_budget
    if budget is None:
        return None
    spent = sum(output_tokens(response.get("usage")) for response in run.totals.responses)
    number = len(run.progress.nudge_tokens)
    reason = token_budget.ending_reason(budget, spent, run.progress.nudge_tokens)
    numbers = {"output_tokens": spent, "budget": budget, "nudges": number}
    if reason is not None:
        telemetry.event(run.inputs.world, here, "token_budget", reason, numbers)
        return None
    run.progress.nudge_tokens.append(spent)
    telemetry.event(run.inputs.world, here, "nudge", None, {**numbers, "nudges": number + 1})
    return Nudge(run.progress.state.turn, number + 1, spent), token_budget.nudge_text(budget, spent)
