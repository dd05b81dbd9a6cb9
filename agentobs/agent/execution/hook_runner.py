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
from agentobs.agent.execution.hook_output import answer_only, crashed, failed, of_value, sendable
from agentobs.agent.execution.http_hooks import posted
from agentobs.agent.execution.network_addresses import Resolve, resolved
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
from agentobs.errors import ReplaySays, UsageError, say_once
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, WorldQuestion
from agentobs.records.labels import is_label
from agentobs.runtime import process

SECONDS = 60.0
"""Default timeout of a hook. Our choice."""

AGENT_SECONDS = 600.0
"""Default timeout of an agent hook. Our choice: up to fifty turns need time."""

CLEAN_UP_S = 3.0
"""How long a cancelled hook may take to clean up before it is abandoned. Our choice; longer than a
program gets to exit (`command_hooks.GRACE_S`).
"""

BACKGROUND_MAX = 64
"""Maximum number of concurrent background hooks. Our choice."""


class LiveHooks:
    """Runs hooks; `answer` is what a `LiveAnswers` needs."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        client: AsyncAnthropic,
        *,
        model: str | None = None,
        tools: Sequence[Tool] = (),
        roots: Sequence[Path] = (),
        run: model_hooks.RunAgent | None = None,
        resolve: Resolve = resolved,
    ) -> None:
        """Create a runner for these hooks.

        Args:
            hooks: the table; the same as in the run's options.
            client: the provider's client.
            model: default model for prompt and agent hooks.
            tools: the agent's tools; agent hooks get those that only read.
            roots: the folders that must contain their paths; commands start in the first. Defaults
                to the working directory.
            run: the loop, `agentobs.agent.run`, for agent hooks.
            resolve: finds the addresses of a host.

        Raises:
            UsageError: something that a hook needs is missing.
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
        """Answer the loop's question about one hook with a JSON object; see `World.ask`.

        Raises:
            ReplaySays: a replay differs from its recording, in a function that calls the model.
        """
        payload_facts = question.asked
        hook = self._hooks.get(payload_facts["hook"])
        if hook is None:
            return answer_only(
                "cancelled", f"no function is registered for the hook {payload_facts['hook']}"
            )
        here = tracing.place()
        try:
            payload = _payload(payload_facts, here, self._roots[0])
        except (ValueError, RecursionError):
            # A hook that cannot receive the payload must not approve it.
            return answer_only("blocking", "the input is nested too deep to be passed to a hook")
        inside = model_hooks.inside(here, "hook", question.key, "hook")
        if not hook.background:
            return self._fitted(payload_facts, await self._ran(hook, payload, inside))
        if len(self._background) >= BACKGROUND_MAX:
            return failed(f"{BACKGROUND_MAX} hooks are already running in the background")
        task = asyncio.create_task(self._apart(hook, payload, inside))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return {"outcome": "success"}

    def _fitted(self, facts: Json, answer: Json) -> Json:
        """Return an answer with its output as the model will see it, so that exactly this is recorded."""
        output, chars_max = answer.get("output"), self._chars_max.get(str(facts.get("tool_name")))
        if output is None or chars_max is None or not is_output(output):
            return answer
        return {**answer, "output": fit(render(output), chars_max, lambda _: None)}

    async def settled(self) -> None:
        """Return when no background hook is running; each ends within its timeout."""
        while self._background:
            await asyncio.wait(list(self._background))

    async def _apart(self, hook: Hook, payload: str, here: Place | None) -> Json:
        """Run a background hook: it may outlive its event, so it has its own trace."""
        with telemetry.span("hook", here, hook.name, trace_id=world.new_id()) as inside:
            return await self._ran(hook, payload, inside)

    async def _ran(self, hook: Hook, payload: str, here: Place | None) -> Json:
        """Run a hook with its timeout; always returns an answer."""
        seconds, used = hook.timeout_s or usual_seconds(hook.run), list[Json]()
        with telemetry.at(here):
            task = asyncio.create_task(self._answered(hook, payload, seconds, used))
        try:
            await asyncio.wait({task}, timeout=seconds)
            if task.done():
                return _with(task.result(), used)
        finally:
            if not task.done():
                await _give_up(task)
        return _with(answer_only("cancelled", f"no response within {seconds:g} seconds"), used)

    async def _answered(self, hook: Hook, payload: str, seconds: float, used: list[Json]) -> Json:
        try:
            return await self._of_kind(hook, payload, seconds, used)
        except ReplaySays:
            raise
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return answer_only("cancelled", "it cancelled itself")
        except BaseException as error:  # including a SystemExit of the hook's own code
            return crashed(error)

    async def _of_kind(self, hook: Hook, payload: str, seconds: float, used: list[Json]) -> Json:
        match hook.run:
            case Command():
                data = payload.encode("utf-8")
                return await command_hooks.ran(hook.run, data, self._roots[0], _facts(payload))
            case Http():
                return await posted(hook.run, payload.encode("utf-8"), self._resolve)
            case PromptHook():
                judge = self._judge(hook.run, seconds, used)
                return await model_hooks.prompted(hook.run, judge, hook.event, payload)
            case AgentHook():
                judge = self._judge(hook.run, seconds, used)
                return await self._by_agent(hook.run, hook.event, payload, judge)
            case _:
                return await _called(hook.run, payload)

    async def _by_agent(
        self, hook: AgentHook, event: HookEvent, payload: str, judge: model_hooks.Judge
    ) -> Json:
        assert self._run is not None
        names = self._tools if hook.tools is None else hook.tools
        tools = [self._tools[name] for name in names]
        return await model_hooks.by_agent(
            hook, judge, event, payload, tools, self._roots, self._run
        )

    def _judge(
        self, hook: PromptHook | AgentHook, seconds: float, used: list[Json]
    ) -> model_hooks.Judge:
        model = hook.model or self._model
        assert model is not None
        return model_hooks.Judge(self._client, model, seconds, used)

    def _check(self, hook: Hook) -> None:
        """Refuse a hook if something that it needs is missing."""
        if not isinstance(hook.run, PromptHook | AgentHook):
            return
        where = f"hook {hook.name}"
        if hook.run.model is None and self._model is None:
            raise UsageError(
                "it needs a model, but names none",
                where=where,
                todo="Pass hook_model to live_world",
            )
        if not isinstance(hook.run, AgentHook):
            return
        if self._run is None:
            raise UsageError("this world cannot run agents", where=where, todo="Use live_world")
        missing = [name for name in hook.run.tools or () if name not in self._tools]
        if missing:
            raise UsageError(
                f"there is no tool {missing[0]} that only reads",
                where=where,
                todo=f"Use one or more of {', '.join(self._tools) or 'none'}",
            )


def _with(answer: Json, used: list[Json]) -> Json:
    """Return an answer with the usage of its requests, added to the usage that a function reports."""
    reported = answer.get("usage")
    return (
        {**answer, "usage": [*(reported if isinstance(reported, list) else []), *used]}
        if used
        else answer
    )


def usual_seconds(run: Run) -> float:
    """Return the default timeout of a hook."""
    return AGENT_SECONDS if isinstance(run, AgentHook) else SECONDS


def _payload(facts: Json, here: Place | None, cwd: Path) -> str:
    """Return a hook's payload as JSON text: the question, and the values that differ in each run.

    Raises:
        ValueError: it cannot be serialized.
        RecursionError: it is nested too deeply.
    """
    more = {
        "session_id": here.session_id if here else None,
        "lane": here.lane if here else None,
        "cwd": str(cwd),
    }
    visible = {name: value for name, value in facts.items() if name != "background"}
    text = json.dumps({**visible, **more}, ensure_ascii=False)
    # NaN is not valid JSON; it is passed as a text, because a program might otherwise fail to parse
    # its input.
    exact = json.loads(text, parse_constant=str)
    return sendable(json.dumps(exact, ensure_ascii=False, allow_nan=False))


def _facts(payload: str) -> dict[str, str]:
    """Return the environment variables for a program: IDs and labels of the event."""
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
    found = {
        name: str(values.get(key)) for name, key in names.items() if values.get(key) is not None
    }
    return {f"AGENTOBS_HOOK_{name}": value for name, value in found.items() if is_label(value)}


async def _called(function: Callable[[Json], Any], payload: str) -> Json:
    """Call a function, a sync one in a thread, and restore the working directory if it changes."""
    with _same_folder():
        argument = json.loads(payload)
        if inspect.iscoroutinefunction(function):
            value = await function(argument)
        else:
            value = await in_thread(functools.partial(function, argument))
            if inspect.isawaitable(value):
                value = await _awaited(value)
        return await in_thread(functools.partial(of_value, value))


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


@contextlib.contextmanager
def _same_folder() -> Iterator[None]:
    before = _folder()
    try:
        yield
    finally:
        if before is not None and _folder() != before:
            with contextlib.suppress(OSError):
                os.chdir(before)
            say_once(f"a hook changed the working directory, which was restored: {before}")


def _folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it was deleted
        return None


async def _give_up(task: asyncio.Task[Json]) -> None:
    process.part(State).left.add(task)
    task.add_done_callback(_forget)
    task.cancel()
    await asyncio.wait({task}, timeout=CLEAN_UP_S)


def _forget(task: asyncio.Task[Json]) -> None:
    process.part(State).left.discard(task)
    if not task.cancelled():
        task.exception()  # mark as retrieved, because nothing waits for it any more


class State:
    """Cancelled work that is still cleaning up."""

    def __init__(self) -> None:
        self.left: set[asyncio.Task[Any]] = set()
        """An event loop holds only weak references to tasks."""
