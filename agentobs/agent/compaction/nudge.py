"""Prompt a model that is about to stop to continue, if the run has tokens left to spend."""

from __future__ import annotations

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.context import token_budget
from agentobs.agent.context.token_counts import output_tokens
from agentobs.agent.events import Nudge
from agentobs.records.exchanges import Place


def nudge(this: Run, here: Place | None) -> tuple[Nudge, str] | None:
    """Record a nudge; return its event and the text for the model, or None if the model may stop."""
    budget = this.options.token_budget
    if budget is None:
        return None
    output_tokens_sum = sum(output_tokens(answer.get("usage")) for answer in this.answers)
    number = len(this.nudged_at)
    ended = token_budget.ending(budget, output_tokens_sum, this.nudged_at)
    numbers = {"output_tokens": output_tokens_sum, "budget": budget, "nudges": number}
    if ended is not None:
        telemetry.event(this.world, here, "token_budget", ended, numbers)
        return None
    this.nudged_at.append(output_tokens_sum)
    telemetry.event(this.world, here, "nudge", None, {**numbers, "nudges": number + 1})
    return Nudge(this.state.turn, number + 1, output_tokens_sum), token_budget.nudge(
        budget, output_tokens_sum
    )
