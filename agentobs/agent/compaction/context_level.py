"""Report when the conversation takes up a large share of the context window."""

from __future__ import annotations

from collections.abc import Sequence

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.compaction.compaction import FAILURES_MAX, automatic_task, window
from agentobs.agent.context.window_policy import FORCED_PERCENT, NOTICE_PERCENT, reached_level
from agentobs.agent.conversation_hooks import turn_occasion
from agentobs.agent.events import ContextLevel, HookRan, LevelReaction
from agentobs.agent.tools.tool import Tool
from agentobs.records.exchanges import Place


async def report_level(
    run: Run, tools: Sequence[Tool], tokens: int, here: Place | None
) -> tuple[ContextLevel | HookRan, ...]:
    """Report that a conversation of `tokens` tokens has reached a share of the window. Report it again only after the
    conversation has become shorter.

    Returns the events that the caller has to yield.

    The world confirms the share, so a recording without this report replays without it, and without its consequences.
    """
    progress, window_tokens = run.progress.conversation.context, window(run)
    level, turn = reached_level(tokens, window_tokens), run.progress.state.turn
    if level <= progress.level:
        progress.level = level
        return ()
    key = f"{turn}:context"
    confirmed = await telemetry.ask(run.inputs.world, here, "threshold", key, level)
    if confirmed not in (NOTICE_PERCENT, FORCED_PERCENT):
        return ()
    progress.level = confirmed
    reaction = _reaction(run, tools, tokens)
    numbers = {"percent": confirmed, "tokens": tokens, "window": window_tokens}
    telemetry.event(run.inputs.world, here, "context_level", reaction, numbers)
    reason = f"The conversation takes up {confirmed}% of the context window."
    occasion = turn_occasion("notification", turn, key, {"kind": "context", "reason": reason})
    _, hook_events = await run.hooks.fire(occasion, here)
    return (ContextLevel(turn, confirmed, tokens, window_tokens, reaction), *hook_events)


def _reaction(run: Run, tools: Sequence[Tool], tokens: int) -> LevelReaction:
    progress = run.progress.conversation.context
    if not run.inputs.options.context.is_automatic:
        return "off"
    if progress.failures >= FAILURES_MAX:
        return "emergency" if progress.level == FORCED_PERCENT else "none"
    return "none" if automatic_task(run, tools, tokens, progress.level) is None else "compaction"
