"""Keep the prefix of LLM requests stable, so that the provider's prompt cache stays useful.

Thinking of earlier turns is removed once its cache has expired, settings that would change the prefix are latched,
tools keep their order, and the system prompt is assembled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.events import Event, SettingHeld, ThinkingCleared
from agentobs.agent.model.prompt import Rendered, Section, SystemPrompt, rendered
from agentobs.agent.model.prompt_cache import held
from agentobs.agent.model.thinking import IDLE_SECONDS, check, cleared
from agentobs.agent.state import Conversation, Options
from agentobs.agent.tools.tool import Tool
from agentobs.records.exchanges import Place

LATCHED_EXTRA = ("speed", "thinking")
"""Fields of `Options.extra` whose change invalidates the prompt cache (provider documentation, 2026-11,
platform.claude.com/docs/en/build-with-claude/prompt-caching). `tool_choice` is another one, but is not latched, because
it is set for a single request.
"""


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """The final settings for one LLM request."""

    options: Options
    """The options with latched settings, and the system prompt as blocks."""
    tools: Sequence[Tool]
    """The tools, in order."""
    events: tuple[Event, ...]
    """Events to emit."""


async def settle(this: Run, tools: Sequence[Tool], here: Place | None) -> RequestSettings:
    """Determine the final settings of the next LLM request, and update the run's state and
    conversation.

    Raises:
        UsageError: the latched settings contradict the current ones.
    """
    turn, events = this.state.turn, await _clear(this, here)
    options, changed = _held(this.talk, this.options)
    check(options.thinking, options.max_tokens, options.betas, options.extra)
    if isinstance(this.options.system, SystemPrompt):
        system, others = await _system(this, this.options.system, here)
        options, changed = replace(options, system=system), [*changed, *others]
    if options.cache is not None:
        tools = ordered(tools, this.talk.tool_names)
        new = [tool.name for tool in tools if tool.name not in this.talk.tool_names]
        this.talk.tool_names = (*this.talk.tool_names, *new)
    for setting in changed:
        if setting not in this.held:
            this.held.add(setting)
            telemetry.event(this.world, here, "setting_held", setting, {})
            events.append(SettingHeld(turn, setting))
    return RequestSettings(options, tools, tuple(events))


async def _clear(this: Run, here: Place | None) -> list[Event]:
    """Permanently remove the thinking of earlier turns after an hour without a response."""
    if this.talk.thought_ns is None:
        return []
    messages, blocks = cleared(this.state.messages)
    if not blocks:
        return []
    turn, idle_ns = this.state.turn, max(this.world.now() - this.talk.thought_ns, 0)
    is_late = idle_ns >= IDLE_SECONDS * 10**9
    if not await telemetry.ask(this.world, here, "elapsed", f"{turn}:thinking", is_late):
        return []
    this.state = replace(this.state, messages=messages)
    telemetry.event(this.world, here, "thinking_cleared", None, {"blocks": blocks})
    return [ThinkingCleared(turn, blocks)]


def _held(talk: Conversation, options: Options) -> tuple[Options, list[str]]:
    """Return the options with the settings of the first request, and the names of changed settings.

    The effort may change, because it is not part of the prompt.
    """
    thinking = options.thinking and replace(options.thinking, effort=None)
    wanted: dict[str, Any] = {
        "betas": options.betas,
        "cache": options.cache,
        "thinking": thinking,
        **{f"extra.{name}": options.extra.get(name) for name in LATCHED_EXTRA},
    }
    talk.latched = talk.latched or wanted
    latched, changed = held(talk.latched, wanted)
    if not changed:
        return options, []
    extra = {k: v for k, v in options.extra.items() if k not in LATCHED_EXTRA}
    extra |= {k: latched[f"extra.{k}"] for k in LATCHED_EXTRA if latched[f"extra.{k}"] is not None}
    if latched["thinking"] is not None and options.thinking is not None:
        latched["thinking"] = replace(latched["thinking"], effort=options.thinking.effort)
    now = replace(
        options,
        betas=latched["betas"],
        cache=latched["cache"],
        thinking=latched["thinking"],
        extra=extra,
    )
    return now, changed


async def _system(
    this: Run, prompt: SystemPrompt, here: Place | None
) -> tuple[Rendered, list[str]]:
    """Return the system prompt of the turn, and the static sections whose change was not applied."""
    texts: dict[str, str | None] = {}
    changed: list[str] = []
    for section in prompt.speaking:
        known = this.talk.sections.get(section.name)
        if section.volatile:
            texts[section.name] = await _text(
                this, section, f"{this.state.turn}:{section.name}", here
            )
            continue
        if known is None:
            known = await _text(this, section, section.name, here)
            if known is not None:
                this.talk.sections = {**this.talk.sections, section.name: known}
        elif isinstance(section.text, str) and section.text != known:
            changed.append(f"section:{section.name}")
        texts[section.name] = known
    visible = [(name, text) for name, text in texts.items() if text]
    this.world.sections([*visible, *([("append", prompt.tail)] if prompt.tail else [])])
    return rendered(prompt, texts), changed


async def _text(this: Run, section: Section, key: str, here: Place | None) -> str | None:
    if isinstance(section.text, str):
        return section.text
    question = {"section": section.name}
    text: str | None = await telemetry.ask(this.world, here, "section", key, question)
    return text


def ordered(tools: Sequence[Tool], names: Sequence[str]) -> list[Tool]:
    """Return tools in an order that keeps the prefix: known tools in their order, then new ones.

    Of the new tools, optional ones come last, so that a change affects as little as possible after
    it.
    """
    place = {name: number for number, name in enumerate(names)}
    return sorted(tools, key=lambda t: (place.get(t.name, len(place)), t.available is not None))
