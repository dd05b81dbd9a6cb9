"""An agent as one object: the client, tools, hooks and sub-agents are given once, and its conversation continues.

The object creates the world and the options that `agentobs.agent.run` needs, so that they always fit together.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anthropic import AsyncAnthropic

from agentobs import runtime, wiring
from agentobs.agent.background_events import BackgroundListener
from agentobs.agent.events import Event, HookRan, Result
from agentobs.agent.execution.classifier import Classifier
from agentobs.agent.execution.live_answers import Inbox, Person
from agentobs.agent.hooks import Hook
from agentobs.agent.lifecycle_hooks import end
from agentobs.agent.loop import check_declarations, live_world, run
from agentobs.agent.model.prompt import SystemPrompt
from agentobs.agent.run_check import check_client, check_options, check_wiring
from agentobs.agent.sessions.resumption import forked, resumed
from agentobs.agent.state import Conversation, Options, Prompt
from agentobs.agent.sub_agents.starter import finish, sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.agent.tools.tool import Tool
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from agentobs.recording.session import current_recorder
from agentobs.records.canonical_json import Json
from agentobs.records.facts import Relation
from agentobs.world import Abort, World


class Agent:
    """An agent with one conversation, which each run continues.

    It serves one run at a time. `fresh` returns another agent of the same kind, for a concurrent conversation. To end
    the conversation, with its background agents and the hooks for its end, use the agent as a context manager (sync or
    async), or call `end` or `end_sync`.
    """

    def __init__(
        self,
        client: AsyncAnthropic,
        *,
        options: Options,
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
            person: requests an approval from a person; None if nobody can be asked.
            classifier: answers approval requests before the person does, or if there is no person.
            hook_model: the default model for prompt and agent hooks.
            roots: the folders that must contain the paths of tools; by default the working directory.
            memory: returns the session's memory, see `agentobs.agent.live_world`.
            refresh: renews the client's credentials, see `agentobs.agent.live_world`.
            background_listener: receives each event of a background agent when it happens, also after the run that
                started the agent has ended. It must return quickly.

        Raises:
            UsageError: the client is synchronous, closed or something else; a tool, a hook or a sub-agent
                is given twice or cannot be used with the others; or options contradict each other.
        """
        check_client(client)
        check_options(options)
        if hooks and options.hooks:
            raise UsageError(
                "hooks were given twice",
                where="Agent(hooks=...), Options.hooks",
                todo="Pass all hooks to one of them",
            )
        if options.budget.at_limit == "ask" and person is None:
            raise UsageError(
                "nobody can be asked at a limit",
                where="Budget.at_limit",
                todo='Pass person, or set at_limit to "stop"',
            )
        _check_kinds(tools, Tool, "tools", "Create it with @agentobs.agent.tool")
        _check_kinds(sub_agents, AgentDefinition, "sub_agents", "Pass an AgentDefinition")
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
        self._runner: asyncio.Runner | None = None
        self._earlier: tuple[Relation, str, int | None] | None = None
        self._start_over(Conversation())
        check_declarations(self._tools, self._options)
        check_wiring(self._current_world(), self._options, self._tools)

    @property
    def conversation(self) -> Conversation:
        """The conversation so far."""
        return self._conversation

    @property
    def options(self) -> Options:
        """The options of its runs, including the hooks."""
        return self._options

    async def run(self, prompt: Prompt) -> Result:
        """Answer a prompt in the conversation, and return the result, also of a run that failed.

        Args:
            prompt: a text, or content blocks.

        Raises:
            UsageError: the agent is already running, or the client was closed.
            RecordingError: the session to resume or fork cannot be read; see `agentobs.agent.resumed`.
            ReplayEnd: a replay differs from its recording.
        """
        async with aclosing(self.stream(prompt)) as events:
            async for event in events:
                if isinstance(event, Result):
                    return event
        raise AssertionError("a run ended without a result")

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Event, None]:
        """Answer a prompt in the conversation, and yield the events; the last one is the `Result`.

        Close the generator (`contextlib.aclosing`) if you do not read it to its end.

        Args:
            prompt: a text, or content blocks.

        Raises:
            UsageError, RecordingError, ReplayEnd: as for `run`.
        """
        with self._running():
            world = self._current_world()
            await self._continue_earlier(world)
            self._conversation.background_events.listener = self._background_listener
            events = run(
                prompt,
                world=world,
                options=self._options,
                tools=self._tools,
                conversation=self._conversation,
            )
            async with aclosing(events) as each_event:
                async for event in each_event:
                    yield event

    def run_sync(self, prompt: Prompt) -> Result:
        """Answer a prompt in the conversation, and wait for the result, without an event loop.

        Background agents and background hooks are awaited, too, because they only run meanwhile.

        Args:
            prompt: a text, or content blocks.

        Raises:
            UsageError: as for `run`, or an event loop is running in this thread.
            RecordingError, ReplayEnd: as for `run`.
        """
        return self._run_in_own_loop(self._run_and_settle(prompt))  # type: ignore[no-any-return]

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
        """Return another agent of the same kind, with an empty conversation."""
        other = copy.copy(self)
        other._start_over(Conversation())
        return other

    def abort(self) -> None:
        """Stop the current run cleanly, from any thread; without a run, do nothing.

        The run ends with a `Result`, and the next run can continue the conversation.
        """
        if self._is_running:
            self._abort.stop()

    def steer(self, text: str) -> None:
        """Send a message to the agent, from any thread.

        The model sees it after the running tools; calls that have not started are skipped. Without a run, the next run
        delivers the message.
        """
        self._inbox.steer(text)

    def follow_up(self, text: str) -> None:
        """Queue a message, from any thread, until the agent is about to stop; the agent then continues with it."""
        self._inbox.follow_up(text)

    async def end(self) -> tuple[HookRan, ...]:
        """End the conversation: stop its background agents and run the hooks for the end of a session.

        Raises:
            UsageError: the agent is running.
            ReplayEnd: a replay differs from its recording.
        """
        if self._is_running:
            raise _busy()
        return await end(self._conversation, world=self._current_world(), options=self._options)

    def end_sync(self) -> tuple[HookRan, ...]:
        """Do the same as `end`, after `run_sync`, and close the event loop that `run_sync` used.

        Raises:
            UsageError, ReplayEnd: as for `end`, or an event loop is running in this thread.
        """
        try:
            return self._run_in_own_loop(self.end())  # type: ignore[no-any-return]
        finally:
            runner, self._runner = self._runner, None
            if runner is not None:
                runner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end_sync()

    def _start_over(self, conversation: Conversation) -> None:
        """Set everything that belongs to one conversation."""
        self._conversation: Conversation = conversation
        self._earlier = None
        self._inbox, self._abort, self._is_running = Inbox(), Abort(), False
        self._runner = None
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

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Mark the agent as running, while the context is open.

        Raises:
            UsageError: it is already running.
        """
        if self._is_running:
            raise _busy()
        self._abort.clear()
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False

    def _continue(self, relation: Relation, session_id: str, turn: int | None) -> Self:
        if self._is_running or self._conversation.messages or self._earlier is not None:
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

    async def _run_and_settle(self, prompt: Prompt) -> Result:
        result = await self.run(prompt)
        await finish(self._conversation)
        await self._current_world().settled()
        return result

    def _run_in_own_loop(self, coroutine: Any) -> Any:
        """Run a coroutine in the event loop of this agent, which lives as long as the client's connections."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._runner is None:
                self._runner = asyncio.Runner()
                weakref.finalize(self, self._runner.close)
            return self._runner.run(coroutine, context=contextvars.copy_context())
        coroutine.close()
        raise UsageError(
            "an event loop is running in this thread",
            where="Agent.run_sync",
            todo="Use await agent.run(prompt)",
        )


def _starting_tools(definitions: Sequence[AgentDefinition]) -> tuple[Tool, ...]:
    """Return the tool with which the model starts the sub-agents, if there are any."""
    return (sub_agents(definitions),) if definitions else ()


def _check_kinds(values: Sequence[Any], kind: type, where: str, todo: str) -> None:
    """Raise a UsageError if a value has another type."""
    wrong = next((value for value in values if not isinstance(value, kind)), None)
    if wrong is not None:
        name = getattr(wrong, "__name__", type(wrong).__name__)
        raise UsageError(f"{name} is not a {kind.__name__}", where=where, todo=todo)


def _busy() -> UsageError:
    return UsageError(
        "the agent is already running",
        where="Agent",
        todo="Await the end of its run or close its events, or use agent.fresh() for a concurrent conversation",
    )


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
