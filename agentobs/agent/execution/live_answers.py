"""Live answers to the loop's questions: approvals, messages, file system, spending.

Model and tool calls are not questions in this sense. Each answer is JSON, so that it can be recorded and returned in a
replay.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, assert_never

from anthropic import AsyncAnthropic

from agentobs.agent.arguments import check_value
from agentobs.agent.execution.daemon_threads import in_thread
from agentobs.agent.execution.hook_output import sendable
from agentobs.agent.execution.path_resolution import resolver
from agentobs.agent.execution.tool_runner import LiveTools
from agentobs.agent.hooks.declarations import as_json
from agentobs.agent.model.prompt import SectionFunction
from agentobs.agent.tools.results import error_text
from agentobs.agent.tools.tool import Tool
from agentobs.errors import AgentobsError, RecordingError, ReplayEnd, UsageError, warn_once
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolQuestion, WorldQuestion
from agentobs.world import answer_unattended


@dataclass(frozen=True, slots=True)
class Consent:
    """An approval request to a person."""

    about: Json
    """The call: `tool`, `input`, and, if the call has paths, `paths` with links resolved. If the agent reached a limit,
    this object contains the `limit` instead.
    """
    reason: str
    """Why approval is requested."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A person's answer."""

    allow: bool
    scope: Literal["once", "session"] = "once"
    """`once` for this call only, `session` for every identical call of the conversation."""
    reason: str = ""
    """The reason, which the model sees."""
    updated_input: Mapping[str, Any] | None = None
    """The complete input with which the call runs instead, if it is allowed. It is checked like the input of a new
    call: by the schema, the tool's own check, the hooks before the call, and the deny rules. None keeps the input.
    """


WITHDRAW_S = 1.0
"""How long the slower of person and classifier may take to handle its cancellation, in seconds. Our choice."""

Person = Callable[[Consent], Reply | bool | Awaitable[Reply | bool]]
"""Requests approval from a person. If the classifier answers first, an async function is cancelled and must withdraw
its prompt. A sync function runs in a thread, which cannot be stopped: its answer is ignored, and the function is not
called again until it has returned.
"""

POLL_S = 0.05
"""How often to check whether a person has answered an earlier approval request, in seconds. Our choice."""


class Inbox:
    """Messages to an agent while it runs; thread-safe."""

    def __init__(self) -> None:
        """Create an empty inbox."""
        self._waiting: dict[str, list[str]] = {"steering": [], "follow_up": []}
        self._lock = threading.Lock()
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        """The futures that are resolved when a steering message arrives."""

    def steer(self, text: str) -> None:
        """Send a message now. The model sees it after the running tools; calls that have not started are skipped.

        Running calls of tools with `interrupt="cancel"` are stopped. A blank message is ignored.

        Raises:
            UsageError: the message is not a text.
        """
        self._add("steering", text)

    def follow_up(self, text: str) -> None:
        """Queue a message until the agent is about to stop. The agent then continues with this message.

        Raises:
            UsageError: the message is not a text.
        """
        self._add("follow_up", text)

    def take(self, kind: Literal["steering", "follow_up"]) -> list[str]:
        """Return and clear the messages of a kind."""
        with self._lock:
            texts, self._waiting[kind] = self._waiting[kind], []
        return texts

    async def message_arrived(self) -> None:
        """Wait until there is a steering message, which stays in the inbox; see `World.message_arrived`."""
        loop = asyncio.get_running_loop()
        listener = loop, loop.create_future()
        with self._lock:
            if self._waiting["steering"]:
                return
            self._listeners.add(listener)
        try:
            await listener[1]
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def _add(self, kind: str, text: str) -> None:
        check_value(isinstance(text, str), text, "text", "Pass a text")
        sendable_text = sendable(text)
        if not sendable_text.strip():
            return
        with self._lock:
            self._waiting[kind].append(sendable_text)
            listeners = list(self._listeners) if kind == "steering" else []
        for loop, future in listeners:
            with contextlib.suppress(RuntimeError):  # the loop was closed, so nothing waits in it
                loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class LiveAnswers:
    """Answers the loop's questions in the live world."""

    def __init__(
        self,
        tools: Sequence[Tool],
        live_tools: LiveTools,
        *,
        person: Person | None = None,
        inbox: Inbox | None = None,
        roots: Sequence[Path] = (),
        spent_today: Callable[[], Decimal] | None = None,
        classify: Callable[[WorldQuestion], Awaitable[Json]] | None = None,
        hooks: Callable[[WorldQuestion], Awaitable[Json]] | None = None,
        refresh: Callable[[], object] | None = None,
        load: Callable[[Json], Json] | None = None,
        sections: Mapping[str, SectionFunction] | None = None,
        memory: Callable[[], str | None] | None = None,
    ) -> None:
        """Create the answers for these tools.

        Exceptions that the passed functions raise are handled in `ask`, unless a description states that they are
        raised.

        Args:
            tools: the agent's tools.
            live_tools: runs the checks of the tools, and stores results that are too long.
            person: requests approval from a person; if neither `person` nor `classify` is set, every call that needs
                approval is denied.
            inbox: messages to the agent.
            roots: the directories that tools may access; defaults to the working directory.
            spent_today: returns the amount spent today; its exceptions are raised.
            classify: answers approval requests in addition to the person.
            hooks: runs one hook.
            refresh: renews the credentials.
            load: reads an earlier conversation.
            sections: functions that write sections of the system prompt, by name.
            memory: returns the session's memory.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._live_tools, self._person, self._inbox = live_tools, person, inbox
        self._resolve = resolver(roots or (Path.cwd(),))
        self._spent_today, self._classify = spent_today, classify
        self._hooks, self._refresh, self._load = hooks, refresh, load
        self._sections = dict(sections or {})
        self._memory = memory
        self._is_person_busy = False
        """Whether a sync `person` function is running, possibly for a request that no longer needs an answer."""

    async def ask(self, question: WorldQuestion) -> Any:
        """Answer a question; see `World.ask`."""
        match question.kind:
            case "consent":
                return await self._request_approval(question)
            case "check":
                details = question.payload
                call = ToolQuestion(question.key, details["tool"], details["input"])
                return await self._live_tools.check(call)
            case "path":
                return self._resolve(question.payload)
            case "tool_set":
                return await in_thread(lambda: self._available_tools(question.payload))
            case "steering" | "follow_up":
                return self._inbox.take(question.kind) if self._inbox else []
            case "spent_today":
                spent_today = self._spent_today
                return None if spent_today is None else str(await in_thread(spent_today))
            case "hook":
                return await (self._hooks or answer_unattended)(question)
            case "refresh":
                return await self._refresh_credentials()
            case "conversation":
                return await self._load_conversation(question.payload)
            case "section":
                return await self._write_section(question.payload["section"])
            case "memory":
                return await self._read_memory()
            case "keep":
                keep, key, text = self._live_tools.keep_full_result, question.key, question.payload
                return await in_thread(lambda: keep(key, text))
            case (
                "limit"
                | "background"
                | "elapsed"
                | "threshold"
                | "compacted"
                | "stored_messages"
                | "abort"
            ):
                return await answer_unattended(question)
        assert_never(question.kind)

    async def _read_memory(self) -> str | None:
        """Return the session's memory, or None if it cannot be read. A summary is then created instead."""
        memory = self._memory
        if memory is None:
            return None
        try:
            memory_text = str(await in_thread(memory) or "")
            return memory_text.encode("utf-8", "replace").decode("utf-8") or None
        except ReplayEnd:
            raise
        except Exception as error:
            warn_once(f"the session's memory cannot be read: {error_text(error)}", about="memory")
            return None

    async def _refresh_credentials(self) -> bool:
        """Renew the credentials; return whether that succeeded."""
        refresh = self._refresh
        if refresh is None:
            return False
        try:
            refreshed = await in_thread(refresh)
            return bool(await refreshed if inspect.isawaitable(refreshed) else refreshed)
        except ReplayEnd:
            raise
        except Exception as error:
            warn_once(f"the credentials were not renewed: {error_text(error)}", about="refresh")
            return False

    async def _write_section(self, name: str) -> str | None:
        """Return a section of the system prompt, or None if its function fails.

        Raises:
            UsageError: the section has no function.
        """
        write_section = self._sections.get(name)
        if write_section is None:
            raise UsageError(
                f"the section {name} of the system prompt is dynamic, and this world has no function for it",
                todo="Pass it to live_world: sections=prompt.function_sections",
            )
        try:
            section_text = await in_thread(write_section)
            section_text = await section_text if inspect.isawaitable(section_text) else section_text
            return (
                None
                if section_text is None
                else str(section_text).encode("utf-8", "replace").decode("utf-8")
            )
        except ReplayEnd:
            raise
        except Exception as error:
            warn_once(
                f"the section {name} of the system prompt was left out: {error_text(error)}",
                about=f"section {name}",
            )
            return None

    async def _load_conversation(self, request: Json) -> Json:
        """Read an earlier conversation.

        An error is also returned as an answer, so that a replay raises the same error.
        """
        load = self._load
        if load is None:
            return refusal(
                UsageError(
                    "this world cannot read earlier sessions",
                    todo="Create it with live_world(..., load=agentobs.wiring.load_conversation)",
                )
            )
        try:
            return await in_thread(lambda: load(request))
        except ReplayEnd:
            raise
        except AgentobsError as error:
            return refusal(error)
        except Exception as error:
            found = f"the earlier session could not be read: {error_text(error)}"
            return refusal(RecordingError(found, todo="agentobs verify lists all damage"))

    async def _request_approval(self, question: WorldQuestion) -> Json:
        """Request approval from the person and the classifier in parallel.

        The first answer counts, and the other request is cancelled.
        """
        classify = self._classify
        if classify is None or "tool" not in question.payload["about"]:
            return await self._person_answer(question)
        if question.payload.get("person_only"):
            return await self._person_answer(question)
        approvers = [self._person_answer] if self._person is not None else []
        return await _first_answer(
            [asyncio.ensure_future(ask(question)) for ask in (*approvers, classify)]
        )

    async def _person_answer(self, question: WorldQuestion) -> Json:
        if self._person is None:
            answer: Json = await answer_unattended(question)
            return answer
        consent = Consent(question.payload["about"], question.payload["reason"])
        try:
            reply = await self._reply_of(self._person, consent)
        except ReplayEnd:
            raise
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return _unanswered("it was cancelled")
        except BaseException as error:
            return _unanswered(error_text(error))
        if isinstance(reply, bool):
            reply = Reply(reply)
        if not isinstance(reply, Reply):
            return _unanswered(f"the answer was a {type(reply).__name__}, not a Reply")
        found: Json = {
            "behavior": "allow" if reply.allow is True else "deny",
            "resolver": "person",
            "scope": reply.scope,
            "reason": sendable(str(reply.reason)),
        }
        if reply.updated_input is None:
            return found
        try:
            return {**found, "updated_input": _json_object(reply.updated_input)}
        except ValueError as error:
            return _unanswered(f"the updated_input is not a JSON object: {error}")

    async def _reply_of(self, person: Person, consent: Consent) -> Any:
        if inspect.iscoroutinefunction(person):
            return await person(consent)
        while self._is_person_busy:  # noqa: ASYNC110 - the event loop may be closed when the thread ends
            await asyncio.sleep(POLL_S)
        self._is_person_busy = True

        def ask() -> Any:
            try:
                return person(consent)
            finally:
                self._is_person_busy = False

        try:
            reply: Any = await in_thread(ask)
        except RuntimeError:  # for example, no thread could be started
            self._is_person_busy = False
            raise
        return await reply if inspect.isawaitable(reply) else reply

    def _available_tools(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._is_available(name)]

    def _is_available(self, name: str) -> bool:
        tool = self._tools.get(name)
        try:
            return tool is not None and (tool.available is None or bool(tool.available()))
        except BaseException as error:  # including a SystemExit in the tool's code
            warn_once(
                f"cannot determine whether the tool {name} is available: {error_text(error)}. It counts as missing.",
                about=f"availability of {name}",
            )
            return False


def refusal(error: AgentobsError) -> Json:
    """Return the answer for a conversation that cannot be loaded, with the error."""
    facts = {"found": error.found, "where": error.where, "todo": error.todo}
    return {"error": {"kind": type(error).__name__, **facts}}


async def _first_answer(pending: Sequence[asyncio.Future[Json]]) -> Json:
    """Return the first answer that allows or denies the call, and cancel the other requests.

    The result contains the usage of all requests. If two answers arrive at the same time, the first in the order of
    `pending` counts. If every request remains unanswered, the result combines the reasons.
    """
    unfinished, answers = set(pending), list[Json]()
    try:
        while unfinished and all(answer["resolver"] == "unattended" for answer in answers):
            finished, unfinished = await asyncio.wait(
                unfinished, return_when=asyncio.FIRST_COMPLETED
            )
            answers += [dict(task.result()) for task in pending if task in finished]
    finally:
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=WITHDRAW_S)
    late = [
        task for task in unfinished if task.done() and not task.cancelled() and not task.exception()
    ]
    every_answer = [*answers, *(task.result() for task in late)]
    usage = [each for answer in every_answer for each in answer.get("usage", [])]
    reason = " ".join(filter(None, (answer.get("reason") for answer in answers)))
    unattended: Json = {"behavior": "deny", "resolver": "unattended", "reason": reason}
    first = next((answer for answer in answers if answer["resolver"] != "unattended"), unattended)
    return {**first, "usage": usage} if usage else first


def token_refresh(client: AsyncAnthropic) -> Callable[[], bool] | None:
    """Return a function that makes a client request a new token, or None if the client has a fixed key.

    The SDK (2.12, `AsyncAnthropic._should_retry`) does the same after a 401, but only if it handles the retries itself.
    The loop also does so after a 403.
    """
    cache: Any = getattr(client, "_token_cache", None)

    def refresh() -> bool:
        cache.invalidate()
        return True

    return None if cache is None else refresh


def _json_object(value: Any) -> Json:
    """Return a mapping as a JSON object that can be sent.

    Raises:
        ValueError: it is not a mapping, or contains something that is not JSON.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"it is a {type(value).__name__}")
    return json.loads(sendable(as_json(dict(value))))


def _unanswered(why: str) -> Json:
    return {"behavior": "deny", "resolver": "unattended", "reason": f"the call failed: {why}"}
