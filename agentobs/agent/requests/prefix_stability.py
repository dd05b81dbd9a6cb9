"""Keep the prefix of LLM requests stable, so that the provider's prompt cache stays useful.

Before each request, thinking of earlier turns is removed if its cache has expired, settings that would change the
prefix are latched, tools are put into their previous order, and the system prompt is assembled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.events import Event, SettingHeld, SpeedChange, ThinkingCleared
from agentobs.agent.model.prompt import Rendered, Section, SystemPrompt, rendered
from agentobs.agent.model.prompt_cache import latched_settings
from agentobs.agent.model.thinking import IDLE_SECONDS, check_thinking, without_earlier_thinking
from agentobs.agent.state import AgentOptions, Conversation
from agentobs.agent.tools.tool import Tool
from agentobs.records.exchanges import Place

LATCHED_EXTRA = ("speed", "thinking")
"""Fields of `AgentOptions.extra` whose change invalidates the prompt cache (provider documentation, 2026-11,
platform.claude.com/docs/en/build-with-claude/prompt-caching). `tool_choice` is another such field, but is not latched,
because it is set for a single request.
"""


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """The settings for one LLM request."""

    options: AgentOptions
    """The options, with latched settings and the system prompt as blocks."""
    tools: Sequence[Tool]
    """The tools, in the order for the request."""
    events: tuple[Event, ...]
    """Events that the caller has to yield."""


async def prepare_settings(run: Run, tools: Sequence[Tool], here: Place | None) -> RequestSettings:
    """Return the settings for the next LLM request, and update the state and the conversation of the run.

    Raises:
        UsageError: the latched settings contradict the current ones.
    """
    turn, events = run.progress.state.turn, await _clear_thinking(run, here)
    options, changed = _latched_options(run.progress.conversation, run.inputs.options)
    events += await _resume_fast_mode(run, options, here)
    check_thinking(options.thinking, options.max_tokens, options.betas, options.extra)
    if isinstance(run.inputs.options.system, SystemPrompt):
        system, others = await _system(run, run.inputs.options.system, here)
        options, changed = replace(options, system=system), [*changed, *others]
    if options.cache is not None:
        tools = ordered(tools, run.progress.conversation.tool_names)
        new = [tool.name for tool in tools if tool.name not in run.progress.conversation.tool_names]
        run.progress.conversation.tool_names = (*run.progress.conversation.tool_names, *new)
    for setting in changed:
        if setting not in run.progress.reported_settings:
            run.progress.reported_settings.add(setting)
            telemetry.event(run.inputs.world, here, "setting_held", setting, {})
            events.append(SettingHeld(turn, setting))
    return RequestSettings(options, tools, tuple(events))


async def _clear_thinking(run: Run, here: Place | None) -> list[Event]:
    """Remove the thinking of earlier turns permanently if there was no response for an hour."""
    if run.progress.conversation.thought_ns is None:
        return []
    messages, blocks = without_earlier_thinking(run.progress.state.messages)
    if not blocks:
        return []
    turn, idle_ns = (
        run.progress.state.turn,
        max(run.inputs.world.now() - run.progress.conversation.thought_ns, 0),
    )
    is_late = idle_ns >= IDLE_SECONDS * 10**9
    if not await telemetry.ask(run.inputs.world, here, "elapsed", f"{turn}:thinking", is_late):
        return []
    run.progress.state = replace(run.progress.state, messages=messages)
    telemetry.event(run.inputs.world, here, "thinking_cleared", None, {"blocks": blocks})
    return [ThinkingCleared(turn, blocks)]


async def _resume_fast_mode(run: Run, options: AgentOptions, here: Place | None) -> list[Event]:
    """Continue in fast mode if it was suspended and the wait that the provider requested has passed."""
    world, conversation = run.inputs.world, run.progress.conversation
    if conversation.fast_resumes_ns is None:
        return []
    turn, has_passed = run.progress.state.turn, world.now() >= conversation.fast_resumes_ns
    if not await telemetry.ask(world, here, "elapsed", f"{turn}:speed", has_passed):
        return []
    conversation.fast_resumes_ns = None
    if run.progress.has_fallen_back or options.extra.get("speed", options.speed) != "fast":
        return []
    telemetry.event(world, here, "speed", "fast", {})
    return [SpeedChange(turn, "fast", 0.0)]


def _latched_options(
    conversation: Conversation, options: AgentOptions
) -> tuple[AgentOptions, list[str]]:
    """Return the options with the settings of the first request, and the names of the settings that have changed.

    The effort may change, because it is not part of the prompt.
    """
    thinking = options.thinking and replace(options.thinking, effort=None)
    wanted: dict[str, Any] = {
        "betas": options.betas,
        "cache": options.cache,
        "thinking": thinking,
        "extra.speed": options.extra.get("speed", options.speed),
        "extra.thinking": options.extra.get("thinking"),
    }
    conversation.latched = conversation.latched or wanted
    latched, changed = latched_settings(conversation.latched, wanted)
    if not changed:
        return options, []
    extra = {k: v for k, v in options.extra.items() if k not in LATCHED_EXTRA}
    extra |= {k: latched[f"extra.{k}"] for k in LATCHED_EXTRA if latched[f"extra.{k}"] is not None}
    if latched["thinking"] is not None and options.thinking is not None:
        latched["thinking"] = replace(latched["thinking"], effort=options.thinking.effort)
    latched_options = replace(
        options,
        betas=latched["betas"],
        cache=latched["cache"],
        thinking=latched["thinking"],
        speed=None,  # It is part of `extra`.
        extra=extra,
    )
    return latched_options, changed


async def _system(run: Run, prompt: SystemPrompt, here: Place | None) -> tuple[Rendered, list[str]]:
    """Return the system prompt of the turn, and the names of static sections whose change is not applied."""
    texts: dict[str, str | None] = {}
    changed: list[str] = []
    for section in prompt.active_sections:
        known = run.progress.conversation.sections.get(section.name)
        if section.volatile:
            texts[section.name] = await _text(
                run, section, f"{run.progress.state.turn}:{section.name}", here
            )
            continue
        if known is None:
            known = await _text(run, section, section.name, here)
            if known is not None:
                run.progress.conversation.sections = {
                    **run.progress.conversation.sections,
                    section.name: known,
                }
        elif isinstance(section.text, str) and section.text != known:
            changed.append(f"section:{section.name}")
        texts[section.name] = known
    visible = [(name, text) for name, text in texts.items() if text]
    run.inputs.world.sections([*visible, *([("append", prompt.tail)] if prompt.tail else [])])
    return rendered(prompt, texts), changed


async def _text(run: Run, section: Section, key: str, here: Place | None) -> str | None:
    if isinstance(section.text, str):
        return section.text
    question = {"section": section.name}
    text: str | None = await telemetry.ask(run.inputs.world, here, "section", key, question)
    return text


def ordered(tools: Sequence[Tool], names: Sequence[str]) -> list[Tool]:
    """Return the tools in an order that keeps the prefix stable: known tools in their order, then new tools.

    Optional tools come last among the new tools, because adding or removing a tool invalidates the cache of all tools
    after it.

    Args:
        tools: the tools to sort.
        names: the names of the known tools, in order.
    """
    position = {name: number for number, name in enumerate(names)}
    return sorted(
        tools, key=lambda t: (position.get(t.name, len(position)), t.available is not None)
    )
