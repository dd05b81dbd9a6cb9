"""An agent as one object: the client, tools, hooks and sub-agents are given once, and its conversation continues.

The object creates the world and the options that `agentobs.agent.run` needs, so that they always fit together.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from anthropic import AsyncAnthropic

from agentobs import runtime, wiring
from agentobs.agent.arguments import check_list, check_prompt
from agentobs.agent.background_events import BackgroundListener
from agentobs.agent.events import Event, HookRan
from agentobs.agent.execution.classifier import Classifier
from agentobs.agent.execution.live_answers import Inbox, Person
from agentobs.agent.hooks import Hook
from agentobs.agent.lifecycle_hooks import end
from agentobs.agent.loop import check_declarations, live_world, run
from agentobs.agent.model.prompt import SystemPrompt
from agentobs.agent.run_check import check_client, check_options, check_wiring
from agentobs.agent.run_result import Result
from agentobs.agent.sessions.resumption import check_earlier, forked, resumed
from agentobs.agent.state import AgentOptions, Conversation, Prompt
from agentobs.agent.sub_agents.starter import finish, sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.agent.tools.tool import Tool
from agentobs.agent_activity import Activity
from agentobs.client_loop import client_loop
from agentobs.determinism.process_history import in_event_loop
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from agentobs.recording.session import current_recorder
from agentobs.records.canonical_json import Json
from agentobs.records.facts import Relation
from agentobs.world import Abort, World

T = TypeVar("T")


class Agent:
    """An agent with one conversation, which each run continues.

    It serves one run at a time. `fresh` returns an agent with the same parts, for a concurrent conversation. To end
    the conversation, with its background agents and the hooks for its end, use the agent as a context manager (sync or
    async), or call `end` or `end_sync`.
    """

    def __init__(
        self,
        client: AsyncAnthropic,
        *,
        options: AgentOptions,
        tools: Sequence[Tool] = (),
        hooks: Sequence[Hook] = (),
        sub_agents: Sequence[AgentDefinition] = (),
        person: Person | None = None,
        classifier: Classifier | None = None,
        hook_model: str | None = None,
        roots: Sequence[Path] = (),
        memory: Callable[[], str | None] | None = None,
        refresh: Callable[[], object] | None = None,
        background_listener: BackgroundListener | None = None,
    ) -> None:
        """Create an agent with an empty conversation. Nothing is sent.

        Args:
            client: an async client of the SDK, also for `run_sync`. To record the agent, pass
                `agentobs.record(client)` and run it in an `agentobs.session`.
            options: the model, the permissions, the budget and everything else about requests.
            tools: the tools, created with `agentobs.agent.tool`.
            hooks: the hooks, unless they are in the options.
            sub_agents: the agents that the model may start.
            person: requests an approval from a person; None if no person is available.
            classifier: answers approval requests before the person does, or if there is no person.
            hook_model: the default model for prompt and agent hooks.
            roots: the folders that must contain the paths of tools; by default the working directory.
            memory: returns the session's memory, see `agentobs.agent.live_world`.
            refresh: renews the client's credentials after a 401 or a 403, see `agentobs.agent.live_world`.
            background_listener: receives each event of a background agent when it happens, even after the run that
                started the agent has ended. It must return quickly.

        Raises:
            UsageError: the client is synchronous, closed or something else; an argument or an option is of
                the wrong kind; a tool, a hook or a sub-agent is given twice or cannot be used with the
                others; or options contradict each other.
        """
        check_client(client)
        check_options(options)
        check_list(
            tools, "tools", Tool, "Pass a list of tools, each created with @agentobs.agent.tool"
        )
        check_list(hooks, "hooks", Hook, "Pass a list of agentobs.agent.Hook")
        check_list(
            sub_agents,
            "sub_agents",
            AgentDefinition,
            "Pass a list of agentobs.agent.AgentDefinition",
        )
        check_list(roots, "roots", (Path, str), "Pass a list of folders, each a pathlib.Path")
        if hooks and options.hooks:
            raise UsageError(
                "hooks were given twice",
                where="Agent(hooks=...), AgentOptions.hooks",
                todo="Pass all hooks to one of them",
            )
        if options.budget.at_limit == "ask" and person is None:
            raise UsageError(
                "no person can be asked at a limit",
                where="Budget.at_limit",
                todo='Pass person, or set at_limit to "stop"',
            )
        self._client = client
        self._options = replace(options, hooks=tuple(hooks) or options.hooks)
        self._tools = (*tools, *_starting_tools(sub_agents))
        self._sources: dict[str, Any] = {
            "person": person,
            "classifier": classifier,
            "hook_model": hook_model,
            "roots": tuple(roots),
            "memory": memory,
            "refresh": refresh,
        }
        self._background_listener = background_listener
        self._start_over()
        check_declarations(self._tools, self._options)
        check_wiring(self._current_world(), self._options, self._tools)

    @property
    def conversation(self) -> Conversation:
        """The conversation so far."""
        return self._conversation

    @property
    def options(self) -> AgentOptions:
        """The options of its runs, including the hooks."""
        return self._options

    async def run(self, prompt: Prompt) -> Result:
        """Answer a prompt in the conversation, and return the result, even if the run failed.

        Args:
            prompt: a text, or content blocks.

        Raises:
            UsageError: the prompt is blank or neither a text nor a list of content blocks, the agent is already
                running, the client was closed, or another agent uses it in another event loop.
            RecordingError: the session to resume or fork cannot be read; see `agentobs.agent.resumed`.
            ReplayEnd: a replay differs from its recording.
        """
        return await _result_of(self._play(prompt))

    def stream(self, prompt: Prompt) -> AsyncGenerator[Event, None]:
        """Answer a prompt in the conversation, and yield the events; the last one is the `Result`.

        When the `Result` is yielded, the run has ended. If you leave the loop earlier, close the generator
        (`contextlib.aclosing`): until then, or until `async with agent` ends, the agent counts as running.

        Args:
            prompt: a text, or content blocks.

        Raises:
            UsageError, RecordingError, ReplayEnd: as for `run`.
        """
        return self._play(prompt)

    def run_sync(self, prompt: Prompt) -> Result:
        """Answer a prompt in the conversation, and wait for the result, without an event loop.

        The run takes place in a background event loop, which all agents with the same client share. Background agents
        and background hooks are awaited as well; `abort` ends this wait.

        Args:
            prompt: a text, or content blocks.

        Raises:
            UsageError: as for `run`, or an event loop is running in this thread.
            RecordingError, ReplayEnd: as for `run`.
        """
        return self._in_background(
            lambda: _result_of(self._play(prompt, settles=True)),
            "run_sync",
            "Use await agent.run(prompt)",
        )

    def resume(self, session_id: str) -> Self:
        """Continue the conversation of an earlier recorded session, which the next run reads.

        Args:
            session_id: the ID of the session, a suffix of it, or the name of the session.

        Returns:
            This agent.

        Raises:
            UsageError: the agent already has a conversation.
        """
        return self._continue("resume", session_id, None)

    def fork(self, session_id: str, *, turn: int | None = None) -> Self:
        """Start from a copy of the conversation of an earlier recorded session, which the next run reads.

        Args:
            session_id: as for `resume`.
            turn: the last turn to include, with its tool results, from 1; by default all turns.

        Returns:
            This agent.

        Raises:
            UsageError: the agent already has a conversation.
        """
        return self._continue("fork", session_id, turn)

    def fresh(self) -> Self:
        """Return an agent with the same parts and an empty conversation."""
        other = copy.copy(self)
        other._start_over()
        return other

    def abort(self) -> None:
        """Stop the current run cleanly, from any thread; without a run, do nothing.

        The run ends with a `Result`, and the next run can continue the conversation. If `run_sync` already has the
        result and waits for background agents and background hooks, the agents are stopped, and it returns.
        """
        if self._activity is not None:
            self._abort.stop()

    def steer(self, text: str) -> None:
        """Send a message to the agent, from any thread.

        The model sees it after the running tools; calls that have not started are skipped. Without a run, the next run
        delivers the message. A blank message is ignored.

        Raises:
            UsageError: the message is not a text.
        """
        self._inbox.steer(text)

    def follow_up(self, text: str) -> None:
        """Queue a message, from any thread, until the agent is about to stop; the agent then continues with it.

        Raises:
            UsageError: the message is not a text.
        """
        self._inbox.follow_up(text)

    async def end(self) -> tuple[HookRan, ...]:
        """End the conversation: stop its background agents and run the hooks for the end of a session.

        Raises:
            UsageError: the agent is running, or another agent uses the client in another event loop.
            ReplayEnd: a replay differs from its recording.
        """
        activity = await self._begin()
        try:
            return await end(self._conversation, world=self._current_world(), options=self._options)
        finally:
            await activity.close()

    def end_sync(self) -> tuple[HookRan, ...]:
        """Do the same as `end`, after `run_sync`, without an event loop.

        Raises:
            UsageError, ReplayEnd: as for `end`, or an event loop is running in this thread.
        """
        return self._in_background(self.end, "end_sync", "Use await agent.end()")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _noted(error):
            await self._leave(error)

    def __enter__(self) -> Self:
        _refuse_event_loop("__enter__", "Use async with agent")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _noted(error):
            self._in_background(lambda: self._leave(error), "__exit__", "Use async with agent")

    def _start_over(self) -> None:
        """Set everything that belongs to one conversation."""
        self._conversation = Conversation()
        self._earlier: tuple[Relation, str, int | None] | None = None
        self._inbox, self._abort = Inbox(), Abort()
        self._activity: Activity | None = None
        self._starting = threading.Lock()
        self._world: World | None = None
        self._world_runtime: runtime.Runtime | None = None

    def _current_world(self) -> World:
        """Return the live world or, in a replay, the world of the replay."""
        if self._world is None or self._world_runtime is not runtime.current():
            self._world_runtime = runtime.current()
            system = self._options.system
            self._world = live_world(
                self._client,
                self._tools,
                hooks=self._options.hooks,
                inbox=self._inbox,
                abort=self._abort,
                keep=wiring.keep_result,
                spent_today=_spent_today,
                load=_load,
                sections=system.function_sections if isinstance(system, SystemPrompt) else None,
                **self._sources,
            )
        return self._world

    async def _begin(self) -> Activity:
        """Start an activity, which the caller closes.

        Raises:
            UsageError: the agent is already running, or another agent uses the client in another event loop.
        """
        activity, loop = Activity(self._release), client_loop(self._client)
        with self._starting:
            if self._activity is not None:
                raise UsageError(
                    "the agent is already running",
                    where="Agent",
                    todo="Await the end of its run or close its events, or use agent.fresh() for a concurrent "
                    "conversation",
                )
            self._abort.clear()
            self._activity = activity
        try:
            await loop.enter(self._client)
        except BaseException:
            self._activity = None
            raise
        return activity

    def _release(self, activity: Activity) -> None:
        """Allow the next activity, because this one has ended."""
        client_loop(self._client).leave(activity.loop)
        self._activity = None

    async def _play(self, prompt: Prompt, *, settles: bool = False) -> AsyncGenerator[Event, None]:
        """Answer a prompt, and yield the events.

        Args:
            prompt: the prompt.
            settles: whether to wait for background agents and background hooks before the result is yielded.
        """
        check_prompt(prompt)
        result, activity = None, await self._begin()
        try:
            world = self._current_world()
            await self._continue_earlier(world)
            self._conversation.background_events.listener = self._background_listener
            activity.events = run(
                prompt,
                world=world,
                options=self._options,
                tools=self._tools,
                conversation=self._conversation,
            )
            async for event in activity.events:
                if isinstance(event, Result):
                    result = event
                elif not activity.is_silent:
                    activity.note_reader()
                    yield event
            if settles:
                await self._settle(world)
        finally:
            await activity.close()
        if result is not None:  # None if `async with` has closed the events
            yield result

    async def _settle(self, world: World) -> None:
        """Wait for background agents and background hooks. An abort stops the agents, and ends the wait for hooks."""

        async def wait() -> None:
            await finish(self._conversation)
            await world.settled()

        waiting = asyncio.ensure_future(wait())
        aborted = asyncio.ensure_future(self._abort.wait())
        try:
            await asyncio.wait((waiting, aborted), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
            else:
                await finish(self._conversation, cancel=True)
        finally:
            waiting.cancel()
            aborted.cancel()

    async def _leave(self, error: BaseException | None) -> None:
        """End the conversation at the end of a `with` block, which an error may have ended.

        A stream that was left before its result is closed. After an error, a run that is still executed is stopped.
        """
        activity = self._activity
        if activity is not None and activity.is_left:
            await activity.close()
        elif activity is not None and error is not None:
            self._abort.stop()
            await activity.finish()
        await self.end()

    def _continue(self, relation: Relation, session_id: str, turn: int | None) -> Self:
        check_earlier(session_id, turn, where=f"Agent.{relation}")
        if self._activity is not None or self._conversation.messages:
            raise UsageError(
                "the agent already has a conversation",
                where=f"Agent.{relation}",
                todo=f"Call it before the first run, or use agent.fresh().{relation}(...)",
            )
        self._earlier = (relation, session_id, turn)
        return self

    async def _continue_earlier(self, world: World) -> None:
        """Read the conversation that was requested with `resume` or `fork`."""
        if self._earlier is None:
            return
        relation, session_id, turn = self._earlier
        self._conversation = (
            await resumed(world, session_id)
            if relation == "resume"
            else await forked(world, session_id, turn=turn)
        )
        self._earlier = None

    def _in_background(
        self, function: Callable[[], Coroutine[Any, Any, T]], name: str, todo: str
    ) -> T:
        """Run an async function in the background event loop of the client.

        Raises:
            UsageError: an event loop is running in this thread.
        """
        _refuse_event_loop(name, todo)
        return client_loop(self._client).background().run(function())


async def _result_of(events: AsyncGenerator[Event, None]) -> Result:
    """Return the result of a run."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Result):
                return event
    raise AssertionError("a run ended without a result")


def _refuse_event_loop(name: str, todo: str) -> None:
    """Raise a UsageError if an event loop is running in this thread."""
    if in_event_loop():
        raise UsageError(
            "an event loop is running in this thread", where=f"Agent.{name}", todo=todo
        )


@contextlib.contextmanager
def _noted(error: BaseException | None) -> Iterator[None]:
    """Add a failure inside the context as a note to an error, if there is one, so that the failure does not hide it."""
    try:
        yield
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"In addition, the end of the agent failed: {failure}")


def _starting_tools(definitions: Sequence[AgentDefinition]) -> tuple[Tool, ...]:
    """Return the tool with which the model starts the sub-agents, if there are any."""
    return (sub_agents(definitions),) if definitions else ()


def _spent_today() -> Decimal:
    """Return the amount that was spent today in the home of this session."""
    return wiring.spent_today(home=_home())


def _load(request: Json) -> Json:
    """Read an earlier session from the home of this session."""
    return wiring.load_conversation(request, _home())


def _home() -> Home | None:
    """Return the home in which this process records; None if it does not record."""
    recorder = current_recorder()
    return recorder.home if recorder is not None else None
