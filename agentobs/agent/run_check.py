"""Checks before the first request of a run: the client, the options, and whether world and run fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import anthropic
from pydantic import BaseModel

from agentobs.agent.arguments import check_value
from agentobs.agent.budget import Budget
from agentobs.agent.context import Context
from agentobs.agent.context.token_budget import check_token_budget
from agentobs.agent.events import Speed
from agentobs.agent.hooks import table
from agentobs.agent.model.prompt import Rendered, SystemPrompt
from agentobs.agent.model.retry import UNSTREAMED_TOKENS_MAX
from agentobs.agent.model.thinking import Adaptive, Budgeted, check_thinking
from agentobs.agent.permissions import Permissions
from agentobs.agent.state import AgentOptions
from agentobs.agent.tools.tool import Tool
from agentobs.errors import UsageError
from agentobs.world import Wiring, World

_SYNC_CLIENTS = (anthropic.Anthropic, anthropic.Anthropic.__mro__[1])
"""The sync clients of the SDK (2.12): the class and its base, which the clients of cloud platforms share."""


def check_client(client: Any) -> None:
    """Check that a client can be used by the loop.

    Raises:
        UsageError: the client is synchronous, closed, or not a client of the Messages API.
    """
    found, todo = (
        None,
        "Pass an open anthropic.AsyncAnthropic, or an async client of a cloud platform",
    )
    if isinstance(client, _SYNC_CLIENTS):
        found = f"{type(client).__name__} is a sync client"
        todo = "Pass an anthropic.AsyncAnthropic, or the async client of the same platform; run_sync needs it, too"
    elif isinstance(client, type):
        found = f"{client.__name__} is a class, not a client"
    elif not hasattr(client, "messages") or not hasattr(client, "with_options"):
        found = f"{type(client).__name__} is not a client of the Messages API"
    elif callable(is_closed := getattr(client, "is_closed", None)) and is_closed():
        found = "the client is closed"
    if found is not None:
        raise UsageError(found, where="client", todo=todo)


def check_options(options: Any) -> None:
    """Check the options of a run.

    Raises:
        UsageError: an option is invalid, or two options contradict each other.
    """
    if not isinstance(options, AgentOptions):
        raise UsageError(
            f"the options have the type {type(options).__name__}",
            where="options",
            todo='Pass agentobs.agent.AgentOptions("MODEL"), or preset.options()',
        )
    for name, is_valid, todo in _kinds(options):
        check_value(is_valid, getattr(options, name), f"AgentOptions.{name}", todo)
    table(options.hooks)
    check_thinking(options.thinking, options.max_tokens, options.betas, options.extra)
    check_token_budget(options.token_budget)
    for is_wrong, name, found, todo in _contradictions(options):
        if is_wrong:
            raise UsageError(found, where=f"AgentOptions.{name}", todo=todo)


def _kinds(options: AgentOptions) -> Sequence[tuple[str, bool, str]]:
    """Return for each option whether its value is of the right kind, and what to pass."""
    system, output, extra = options.system, options.output, options.extra
    seconds, tokens = options.answer_seconds, options.token_budget
    is_output = isinstance(output, type) and issubclass(output, BaseModel)
    is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
    prompts = (str, list, SystemPrompt, Rendered, type(None))
    return (
        ("system", isinstance(system, prompts), "Pass a text, content blocks or a SystemPrompt"),
        ("stream", isinstance(options.stream, bool), "Pass True or False"),
        ("unattended", isinstance(options.unattended, bool), "Pass True or False"),
        ("cache", options.cache in (None, "5m", "1h"), 'Pass "5m", "1h" or None'),
        (
            "thinking",
            isinstance(options.thinking, Adaptive | Budgeted | None),
            "Pass agentobs.agent.Adaptive, agentobs.agent.Budgeted or None",
        ),
        ("budget", isinstance(options.budget, Budget), "Pass an agentobs.agent.Budget"),
        ("context", isinstance(options.context, Context), "Pass an agentobs.agent.Context"),
        ("token_budget", type(tokens) in (int, type(None)), "Pass a number of tokens, or None"),
        (
            "permissions",
            isinstance(options.permissions, Permissions),
            "Pass an agentobs.agent.Permissions",
        ),
        ("output", output is None or is_output, "Pass a subclass of pydantic.BaseModel, or None"),
        ("max_output_retries", type(options.max_output_retries) is int, "Pass a number"),
        (
            "fallback_model",
            isinstance(options.fallback_model, str | None),
            "Pass the name of a model, or None",
        ),
        (
            "max_tokens_raised",
            type(options.max_tokens_raised) in (int, type(None)),
            "Pass a number of tokens, or None",
        ),
        ("answer_seconds", seconds is None or is_time, "Pass seconds above 0, or None"),
        ("betas", isinstance(options.betas, tuple | list), "Pass a tuple of names"),
        ("extra", isinstance(extra, Mapping), "Pass a mapping of names to values"),
        ("agent", isinstance(options.agent, str), "Pass a name"),
    )


def _check_unstreamed(client: Any, options: AgentOptions) -> None:
    """Check that the SDK sends a long response without streaming: its client must have its own time limit.

    Raises:
        UsageError: the client has the default time limit (SDK 2.12, `_calculate_nonstreaming_timeout`).
    """
    is_long = options.max_tokens > UNSTREAMED_TOKENS_MAX
    has_default = getattr(client, "timeout", None) == anthropic.DEFAULT_TIMEOUT
    if not options.stream and is_long and has_default:
        raise UsageError(
            f"{options.max_tokens} tokens are too many without streaming",
            where="AgentOptions.max_tokens",
            todo=f"Set stream=True, request at most {UNSTREAMED_TOKENS_MAX} tokens, or set a timeout on the client",
        )


def _contradictions(options: AgentOptions) -> Sequence[tuple[bool, str, str, str]]:
    """Return for each rule whether it is broken, the option, what was found and what to do."""
    turns, tokens, model = options.max_turns, options.max_tokens, options.model
    retries = options.max_retries
    return (
        (not isinstance(model, str) or not model.strip(), "model", "there is no model", "Name one"),
        (
            turns is not None and not _is_count(turns),
            "max_turns",
            f"{turns!r} is not a number of turns",
            "Set 1 or more, or None for no limit",
        ),
        (
            not _is_count(tokens),
            "max_tokens",
            f"{tokens!r} is not a number of tokens",
            "Set 1 or more",
        ),
        (
            type(retries) is not int or retries < 0,
            "max_retries",
            f"{retries!r} is not a number of retries",
            "Set 0 or more",
        ),
        (
            options.speed not in (None, *get_args(Speed)),
            "speed",
            f"{options.speed!r} is not a speed",
            f"Use one of {', '.join(get_args(Speed))}, or None",
        ),
        (
            options.speed is not None
            and options.extra.get("speed", options.speed) != options.speed,
            "speed",
            "AgentOptions.extra sets another speed",
            "Set only one of them",
        ),
        (
            options.fallback_model == model,
            "fallback_model",
            f"{model} is its own fallback",
            "Name another model, or none",
        ),
    )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def check_wiring(world: World, options: AgentOptions, tools: Sequence[Tool] | None) -> None:
    """Check that a world can run the tools and hooks of a run, and that the run uses those of the world.

    Args:
        world: the world. If it does not know what it can run, only the tools and hooks that it
            certainly cannot run are found.
        options: the options of the run.
        tools: the tools that are declared to the model; None if they are only known later.

    Raises:
        UsageError: the tools, the hooks, a section of the system prompt or the daily budget were
            given to one side only.
    """
    wiring = world.wiring
    if wiring is None:
        return
    _check_unstreamed(world.client, options)
    if tools is not None:
        check_tool_wiring(world, tools)
    if wiring.ask == world.ask:
        _check_answers(wiring, options)


def _check_answers(wiring: Wiring, options: AgentOptions) -> None:
    """Check that a world can answer the questions of a run."""
    _check_hook_wiring(wiring, options)
    system, where = options.system, "Use agentobs.Agent, or pass live_world"
    if isinstance(system, SystemPrompt):
        missing = sorted(set(system.function_sections) - wiring.sections)
        if missing:
            raise UsageError(
                f"the world has no function for the section {missing[0]} of the system prompt",
                where="sections",
                todo=f"{where}(..., sections=prompt.function_sections)",
            )
    if options.budget.day_usd is not None and not wiring.reads_spending:
        raise UsageError(
            "the world cannot read what was spent today",
            where="Budget.day_usd",
            todo=f"{where}(..., spent_today=agentobs.wiring.spent_today)",
        )
    if options.budget.at_limit == "ask" and not wiring.has_person:
        raise UsageError(
            "no person can be asked at a limit",
            where="Budget.at_limit",
            todo='Pass person, or set at_limit to "stop"',
        )


def check_tool_wiring(world: World, tools: Sequence[Tool]) -> None:
    """Check that a world can run the declared tools, and that a world with tools is not used without any.

    Raises:
        UsageError: the tools were given to one side only.
    """
    wiring = world.wiring
    if wiring is None or wiring.run_tool != world.run_tool:
        return
    todo = "Use agentobs.Agent, or pass the same tools to live_world(client, tools) and run(tools=tools)"
    missing = [t.name for t in tools if not t.agents and t.name not in wiring.tools]
    if missing:
        found = f"the world cannot run these tools of the run: {', '.join(missing)}"
        raise UsageError(found, where="tools", todo=todo)
    other = [t.name for t in tools if wiring.tools.get(t.name, t.declaration) != t.declaration]
    if other:
        found = f"the world has other tools with these names: {', '.join(other)}"
        raise UsageError(found, where="tools", todo=todo)
    if wiring.tools and not tools:
        found = (
            f"the model would not know these tools of the world: {', '.join(sorted(wiring.tools))}"
        )
        raise UsageError(found, where="tools", todo=todo)


def _check_hook_wiring(wiring: Wiring, options: AgentOptions) -> None:
    if wiring.hooks == options.hooks:
        return
    only_options = [hook.name for hook in options.hooks if hook not in wiring.hooks]
    only_world = [hook.name for hook in wiring.hooks if hook not in options.hooks]
    found = (
        f"the world cannot run these hooks of the options: {', '.join(only_options)}"
        if only_options
        else f"the options do not contain these hooks of the world: {', '.join(only_world)}"
        if only_world
        else "the hooks of the options and of the world have different orders"
    )
    raise UsageError(
        found,
        where="hooks",
        todo="Use agentobs.Agent, or pass the same hooks to AgentOptions(hooks=hooks) and live_world(..., hooks=hooks)",
    )
