"""Run the hooks that the loop requests, each with a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic

from agentobs import tracing, world
from agentobs.agent import telemetry
from agentobs.agent.execution import command_hooks, model_hooks
from agentobs.agent.execution.daemon_threads import in_thread
from agentobs.agent.execution.hook_output import (
    HookUnavailable,
    answer_from_value,
    crashed_answer,
    failed_answer,
    outcome_answer,
    sendable,
)
from agentobs.agent.execution.http_hooks import post
from agentobs.agent.execution.network_addresses import Resolve, resolve_host
from agentobs.agent.hooks.declarations import (
    AgentHook,
    Command,
    Hook,
    HookEvent,
    Http,
    PromptHook,
    Run,
    table,
)
from agentobs.agent.hooks.hook_verdict import is_output
from agentobs.agent.tools.results import fit, render
from agentobs.agent.tools.tool import Tool
from agentobs.errors import ReplayEnd, UsageError, warn_once
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, WorldQuestion
from agentobs.records.labels import is_label
from agentobs.runtime import process
from agentobs.world import GATED_EVENTS, missing_hook_answer

TIMEOUT_S = 60.0
"""Default timeout of a hook, in seconds. Our choice."""

AGENT_TIMEOUT_S = 600.0
"""Default timeout of an agent hook, in seconds. Our choice: it must be enough for up to fifty turns."""

CLEAN_UP_S = 3.0
"""How long a cancelled hook may take to clean up before it is abandoned, in seconds. Our choice: longer than the time
that a program has to exit (`command_hooks.GRACE_S`).
"""

BACKGROUND_MAX = 64
"""Maximum number of concurrent background hooks. Our choice."""


class LiveHooks:
    """Runs hooks. Its method `answer` is the `hooks` argument of `LiveAnswers`."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        client: AsyncAnthropic,
        *,
        model: str | None = None,
        tools: Sequence[Tool] = (),
        roots: Sequence[Path] = (),
        run: model_hooks.RunAgent | None = None,
        resolve: Resolve = resolve_host,
    ) -> None:
        """Create a runner for these hooks.

        Args:
            hooks: the table of hooks, the same as in the options of the run.
            client: the provider's client.
            model: default model for prompt and agent hooks.
            tools: the agent's tools. Agent hooks can use the read-only tools among them.
            roots: the directories that tools may access. Commands start in the first of them.
                Defaults to the working directory.
            run: the agent loop (`agentobs.agent.run`), for agent hooks.
            resolve: returns the addresses of a host.

        Raises:
            UsageError: a model, a tool or the loop that a hook needs is missing.
        """
        self._hooks = {hook.name: hook for hook in table(hooks)}
        self._client, self._model, self._run, self._resolve = client, model, run, resolve
        self._roots = tuple(Path(root).absolute() for root in roots) or (Path.cwd(),)
        self._tools = {
            tool.name: tool
            for tool in tools
            if tool.tool_class == "read" and not tool.needs_person and tool.agents is None
        }
        self._chars_max = {tool.name: tool.result_chars_max for tool in tools}
        self._background: set[asyncio.Task[Json]] = set()
        for hook in self._hooks.values():
            self._check(hook)

    async def answer(self, question: WorldQuestion) -> Json:
        """Run the hook that the loop requests and return its answer, a JSON object; see `World.ask`.

        Raises:
            ReplayEnd: a replay differs from its recording, in a hook function that calls the model.
        """
        event_facts = question.payload
        hook = self._hooks.get(event_facts["hook"])
        if hook is None:
            return missing_hook_answer(
                event_facts, f"no function is registered for the hook {event_facts['hook']}"
            )
        place = tracing.place()
        try:
            payload = _payload(event_facts, place, self._roots[0])
        except (ValueError, RecursionError):
            # A hook that cannot receive the payload must not approve it.
            return outcome_answer("blocking", "the input is nested too deep to be passed to a hook")
        inside = model_hooks.answer_place(place, "hook", question.key, "hook")
        if not hook.background:
            return self._with_fitted_output(
                event_facts, await self._run_hook(hook, payload, inside)
            )
        if len(self._background) >= BACKGROUND_MAX:
            return failed_answer(f"{BACKGROUND_MAX} hooks are already running in the background")
        task = asyncio.create_task(self._run_in_background(hook, payload, inside))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return {"outcome": "success"}

    def _with_fitted_output(self, facts: Json, answer: Json) -> Json:
        """Limit the output of an answer to the text that the model will see.

        The recording then contains the same text.
        """
        output, chars_max = answer.get("output"), self._chars_max.get(str(facts.get("tool_name")))
        if output is None or chars_max is None or not is_output(output):
            return answer
        return {**answer, "output": fit(render(output), chars_max, lambda _: None)}

    async def wait_for_background(self) -> None:
        """Wait until no background hook is running. Each of them ends within its timeout."""
        while self._background:
            await asyncio.wait(list(self._background))

    async def _run_in_background(self, hook: Hook, payload: str, place: Place | None) -> Json:
        """Run a background hook in its own trace, because it may outlive its event."""
        with telemetry.span("hook", place, hook.name, trace_id=world.new_id()) as inside:
            return await self._run_hook(hook, payload, inside)

    async def _run_hook(self, hook: Hook, payload: str, place: Place | None) -> Json:
        """Run a hook with its timeout, and return its answer. If the hook fails, the answer describes the failure."""
        timeout_s, usages = hook.timeout_s or default_timeout_s(hook.run), list[Json]()
        with telemetry.at_place(place):
            task = asyncio.create_task(self._answer_or_error(hook, payload, timeout_s, usages))
        try:
            await asyncio.wait({task}, timeout=timeout_s)
            if task.done():
                return _with_usage(task.result(), usages)
        finally:
            if not task.done():
                await _abandon(task)
        return _with_usage(
            outcome_answer("cancelled", f"no response within {timeout_s:g} seconds"), usages
        )

    async def _answer_or_error(
        self, hook: Hook, payload: str, timeout_s: float, usages: list[Json]
    ) -> Json:
        try:
            return await self._run_by_kind(hook, payload, timeout_s, usages)
        except ReplayEnd:
            raise
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return outcome_answer("cancelled", "it cancelled itself")
        except HookUnavailable as error:
            if hook.event in GATED_EVENTS and not hook.background:
                return outcome_answer("blocking", f"the hook {hook.name} cannot run: {error}")
            return failed_answer(str(error))
        except BaseException as error:  # including a SystemExit in the hook's code
            return crashed_answer(error)

    async def _run_by_kind(
        self, hook: Hook, payload: str, timeout_s: float, usages: list[Json]
    ) -> Json:
        match hook.run:
            case Command():
                data = payload.encode("utf-8")
                return await command_hooks.run_command(
                    hook.run, data, self._roots[0], _environment_variables(payload)
                )
            case Http():
                data = payload.encode("utf-8")
                return await post(hook.run, data, self._resolve, timeout_s)
            case PromptHook():
                judge = self._judge(hook.run, timeout_s, usages)
                return await model_hooks.run_prompt_hook(hook.run, judge, hook.event, payload)
            case AgentHook():
                judge = self._judge(hook.run, timeout_s, usages)
                return await self._run_agent_hook(hook.run, hook.event, payload, judge)
            case _:
                return await _call_function(hook.run, payload)

    async def _run_agent_hook(
        self, hook: AgentHook, event: HookEvent, payload: str, judge: model_hooks.Judge
    ) -> Json:
        assert self._run is not None
        names = self._tools if hook.tools is None else hook.tools
        tools = [self._tools[name] for name in names]
        return await model_hooks.run_agent_hook(
            hook, judge, event, payload, tools, self._roots, self._run
        )

    def _judge(
        self, hook: PromptHook | AgentHook, timeout_s: float, usages: list[Json]
    ) -> model_hooks.Judge:
        model = hook.model or self._model
        assert model is not None
        return model_hooks.Judge(self._client, model, timeout_s, usages)

    def _check(self, hook: Hook) -> None:
        """Raise a UsageError if a model, a tool or the loop that a hook needs is missing."""
        if not isinstance(hook.run, PromptHook | AgentHook):
            return
        where = f"hook {hook.name}"
        if hook.run.model is None and self._model is None:
            raise UsageError(
                "it needs a model, but none is set",
                where=where,
                todo="Pass hook_model to agentobs.Agent or live_world",
            )
        if not isinstance(hook.run, AgentHook):
            return
        if self._run is None:
            raise UsageError("this world cannot run agents", where=where, todo="Use live_world")
        missing = [name for name in hook.run.tools or () if name not in self._tools]
        if missing:
            raise UsageError(
                f"{missing[0]} is not a read-only tool of this agent",
                where=where,
                todo=f"Use one or more of {', '.join(self._tools) or 'none'}",
            )


def _with_usage(answer: Json, usages: list[Json]) -> Json:
    """Add the usage of requests to an answer, after any usage that a hook function reported."""
    reported = answer.get("usage")
    return (
        {**answer, "usage": [*(reported if isinstance(reported, list) else []), *usages]}
        if usages
        else answer
    )


def default_timeout_s(run: Run) -> float:
    """Return the default timeout for a kind of hook, in seconds."""
    return AGENT_TIMEOUT_S if isinstance(run, AgentHook) else TIMEOUT_S


def _payload(facts: Json, place: Place | None, cwd: Path) -> str:
    """Return a hook's payload as JSON text: the facts of the event, and the values that differ in each run.

    Raises:
        ValueError: the payload cannot be serialized.
        RecursionError: the payload is nested too deeply.
    """
    run_values = {
        "session_id": place.session_id if place else None,
        "lane": place.lane if place else None,
        "cwd": str(cwd),
    }
    visible = {name: value for name, value in facts.items() if name != "background"}
    text = json.dumps({**visible, **run_values}, ensure_ascii=False)
    # NaN is not valid JSON. It is passed as a string, so that every program can parse its input.
    strict = json.loads(text, parse_constant=str)
    return sendable(json.dumps(strict, ensure_ascii=False, allow_nan=False))


def _environment_variables(payload: str) -> dict[str, str]:
    """Return the environment variables for a program, which contain the IDs and labels of the event."""
    values = json.loads(payload)
    names = {
        "EVENT": "event",
        "NAME": "hook",
        "TURN": "turn",
        "TOOL": "tool_name",
        "TOOL_USE_ID": "tool_use_id",
        "SESSION_ID": "session_id",
        "LANE": "lane",
    }
    variables = {
        name: str(values.get(key)) for name, key in names.items() if values.get(key) is not None
    }
    return {f"AGENTOBS_HOOK_{name}": value for name, value in variables.items() if is_label(value)}


async def _call_function(function: Callable[[Json], Any], payload: str) -> Json:
    """Call a hook function, in a thread if it is sync. Restore the working directory if the function changes it."""
    with _restored_directory():
        argument = json.loads(payload)
        if inspect.iscoroutinefunction(function):
            value = await function(argument)
        else:
            value = await in_thread(functools.partial(function, argument))
            if inspect.isawaitable(value):
                value = await _await_value(value)
        return await in_thread(functools.partial(answer_from_value, value))


async def _await_value(value: Awaitable[Any]) -> Any:
    return await value


@contextlib.contextmanager
def _restored_directory() -> Iterator[None]:
    original = _working_directory()
    try:
        yield
    finally:
        if original is not None and _working_directory() != original:
            with contextlib.suppress(OSError):
                os.chdir(original)
            warn_once(f"a hook changed the working directory, which was restored: {original}")


def _working_directory() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # the directory was deleted
        return None


async def _abandon(task: asyncio.Task[Json]) -> None:
    process.state(State).abandoned.add(task)
    task.add_done_callback(_discard)
    task.cancel()
    await asyncio.wait({task}, timeout=CLEAN_UP_S)


def _discard(task: asyncio.Task[Json]) -> None:
    process.state(State).abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # mark the exception as retrieved, because nothing else waits for the task


class State:
    """Cancelled hooks that are still cleaning up."""

    def __init__(self) -> None:
        self.abandoned: set[asyncio.Task[Any]] = set()
        """Strong references to their tasks, because an event loop holds only weak ones."""
