"""Live answers to the loop's questions except model and tool calls: approvals, messages, file system, spending.

Each answer is JSON, so that it can be recorded and returned in a replay.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, assert_never

from anthropic import AsyncAnthropic

from agentobs.agent.execution.daemon_threads import in_thread
from agentobs.agent.execution.path_resolution import resolver
from agentobs.agent.execution.tool_runner import LiveTools
from agentobs.agent.model.prompt import Written
from agentobs.agent.tools.results import error_text
from agentobs.agent.tools.tool import Tool
from agentobs.errors import AgentobsError, RecordingError, ReplaySays, UsageError, say_once
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolQuestion, WorldQuestion
from agentobs.world import nobody


@dataclass(frozen=True, slots=True)
class Consent:
    """An approval request to a person."""

    about: Json
    """The call: `tool`, `input` and, if it has any, `paths` with links resolved. Or the `limit` that was reached."""
    reason: str
    """Why approval is requested."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A person's answer."""

    allow: bool
    scope: Literal["once", "session"] = "once"
    """For this call only, or for every identical call of the conversation."""
    reason: str = ""
    """The reason for a denial, which the model sees."""


WITHDRAW_S = 1.0
"""How long the slower of person and classifier may take to withdraw, in seconds. Our choice."""

Person = Callable[[Consent], Reply | bool | Awaitable[Reply | bool]]
"""Requests approval from a person. A sync function runs in a thread, which cannot be stopped: if a
classifier was faster, its answer is ignored, and it is not called again until it has returned. An
async function is cancelled and must withdraw its prompt.
"""

LOOK_S = 0.05
"""Polling interval for a pending answer to an earlier approval request, in seconds. Our choice."""


class Inbox:
    """Messages to an agent while it runs; thread-safe."""

    def __init__(self) -> None:
        """Create an empty inbox."""
        self._waiting: dict[str, list[str]] = {"steering": [], "follow_up": []}
        self._lock = threading.Lock()

    def steer(self, text: str) -> None:
        """Send a message now: the model sees it after the running tools; calls that have not started are skipped."""
        self._say("steering", text)

    def follow_up(self, text: str) -> None:
        """Queue a message for when the agent is about to stop; the agent then continues with it."""
        self._say("follow_up", text)

    def take(self, kind: Literal["steering", "follow_up"]) -> list[str]:
        """Return and clear the messages of a kind."""
        with self._lock:
            texts, self._waiting[kind] = self._waiting[kind], []
        return texts

    def _say(self, kind: str, text: str) -> None:
        sendable = text.encode("utf-8", "replace").decode(
            "utf-8"
        )  # a lone surrogate cannot be sent
        if not sendable.strip():
            return
        with self._lock:
            self._waiting[kind].append(sendable)


class LiveAnswers:
    """Answers the loop's questions in the live world."""

    def __init__(
        self,
        tools: Sequence[Tool],
        running: LiveTools,
        *,
        person: Person | None = None,
        inbox: Inbox | None = None,
        roots: Sequence[Path] = (),
        spent_today: Callable[[], Decimal] | None = None,
        classify: Callable[[WorldQuestion], Awaitable[Json]] | None = None,
        hooks: Callable[[WorldQuestion], Awaitable[Json]] | None = None,
        refresh: Callable[[], object] | None = None,
        load: Callable[[Json], Json] | None = None,
        sections: Mapping[str, Written] | None = None,
        memory: Callable[[], str | None] | None = None,
    ) -> None:
        """Create the answers for these tools; without a person, every approval is denied.

        `classify` answers approval requests in addition to the person. `hooks` runs a hook,
        `refresh` renews the credentials, `load` reads an earlier conversation, `sections` write
        sections of the system prompt. Their failures are handled in `ask`.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._running, self._person, self._inbox = running, person, inbox
        self._resolve = resolver(roots or (Path.cwd(),))
        self._spent_today, self._classify = spent_today, classify
        self._hooks, self._refresh, self._load = hooks, refresh, load
        self._sections = dict(sections or {})
        self._memory = memory
        self._is_asked = False
        """Whether a sync `person` is busy with a question, possibly a withdrawn one."""

    async def ask(self, question: WorldQuestion) -> Any:
        """Answer a question; see `World.ask`."""
        match question.kind:
            case "consent":
                return await self._consent(question)
            case "check":
                details = question.asked
                call = ToolQuestion(question.key, details["tool"], details["input"])
                return await self._running.check(call)
            case "path":
                return self._resolve(question.asked)
            case "tool_set":
                return await in_thread(lambda: self._there(question.asked))
            case "steering" | "follow_up":
                return self._inbox.take(question.kind) if self._inbox else []
            case "spent_today":
                spent = self._spent_today
                return None if spent is None else str(await in_thread(spent))
            case "hook":
                return await (self._hooks or nobody)(question)
            case "refresh":
                return await self._refreshed()
            case "conversation":
                return await self._loaded(question.asked)
            case "section":
                return await self._section(question.asked["section"])
            case "memory":
                return await self._remembered()
            case "keep":
                keep, key, text = self._running.kept, question.key, question.asked
                return await in_thread(lambda: keep(key, text))
            case "limit" | "background" | "elapsed" | "compacted" | "abort":
                return await nobody(question)
        assert_never(question.kind)

    async def _remembered(self) -> str | None:
        """Return the session's memory; None if that fails, so that a summary is made."""
        memory = self._memory
        if memory is None:
            return None
        try:
            remembered = str(await in_thread(memory) or "")
            return remembered.encode("utf-8", "replace").decode("utf-8") or None
        except ReplaySays:
            raise
        except Exception as error:
            say_once(f"the session's memory cannot be read: {error_text(error)}", about="memory")
            return None

    async def _refreshed(self) -> bool:
        """Renew the credentials; return False if anything goes wrong."""
        refresh = self._refresh
        if refresh is None:
            return False
        try:
            made = await in_thread(refresh)
            return bool(await made if inspect.isawaitable(made) else made)
        except ReplaySays:
            raise
        except Exception as error:
            say_once(f"the credentials were not renewed: {error_text(error)}", about="refresh")
            return False

    async def _section(self, name: str) -> str | None:
        """Write a section of the system prompt; a section that fails is left out.

        Raises:
            UsageError: the section has no function.
        """
        written = self._sections.get(name)
        if written is None:
            raise UsageError(
                f"the section {name} of the system prompt is dynamic, and no function returns it",
                todo="Pass it to live_world: sections=prompt.asked",
            )
        try:
            section_text = await in_thread(written)
            section_text = await section_text if inspect.isawaitable(section_text) else section_text
            return (
                None
                if section_text is None
                else str(section_text).encode("utf-8", "replace").decode("utf-8")
            )
        except ReplaySays:
            raise
        except Exception as error:
            say_once(
                f"the section {name} of the system prompt was left out: {error_text(error)}",
                about=f"section {name}",
            )
            return None

    async def _loaded(self, request: Json) -> Json:
        """Read an earlier conversation; errors are answers as well, so that a replay raises them too."""
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
        except ReplaySays:
            raise
        except AgentobsError as error:
            return refusal(error)
        except Exception as error:
            found = f"the earlier session was not read: {error_text(error)}"
            return refusal(RecordingError(found, todo="agentobs verify lists all damage"))

    async def _consent(self, question: WorldQuestion) -> Json:
        """Request approval from the person and the classifier in parallel; the first answer counts,
        the other is withdrawn.
        """
        classify = self._classify
        if classify is None or "tool" not in question.asked["about"]:
            return await self._by_person(question)
        if question.asked.get("person_only"):
            return await self._by_person(question)
        approvers = [self._by_person] if self._person is not None else []
        return await _first(
            [asyncio.ensure_future(ask(question)) for ask in (*approvers, classify)]
        )

    async def _by_person(self, question: WorldQuestion) -> Json:
        if self._person is None:
            answer: Json = await nobody(question)
            return answer
        consent = Consent(question.asked["about"], question.asked["reason"])
        try:
            reply = await self._replied(self._person, consent)
        except ReplaySays:
            raise
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return _not_asked("it was cancelled")
        except BaseException as error:
            return _not_asked(error_text(error))
        if isinstance(reply, bool):
            reply = Reply(reply)
        if not isinstance(reply, Reply):
            return _not_asked(f"the answer was a {type(reply).__name__}, not a Reply")
        return {
            "behavior": "allow" if reply.allow is True else "deny",
            "resolver": "person",
            "scope": reply.scope,
            "reason": str(reply.reason).encode("utf-8", "replace").decode("utf-8"),
        }

    async def _replied(self, person: Person, consent: Consent) -> Any:
        if inspect.iscoroutinefunction(person):
            return await person(consent)
        while self._is_asked:  # noqa: ASYNC110 - a thread that ends may find the event loop gone
            await asyncio.sleep(LOOK_S)
        self._is_asked = True

        def ask() -> Any:
            try:
                return person(consent)
            finally:
                self._is_asked = False

        try:
            replied: Any = await in_thread(ask)
        except RuntimeError:  # also if no thread could be started
            self._is_asked = False
            raise
        return await replied if inspect.isawaitable(replied) else replied

    def _there(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._is_there(name)]

    def _is_there(self, name: str) -> bool:
        tool = self._tools.get(name)
        try:
            return tool is not None and (tool.available is None or bool(tool.available()))
        except BaseException as error:  # including a SystemExit of the tool's own code
            say_once(
                f"whether the tool {name} is available is unknown: {error_text(error)}. It counts as missing.",
                about=f"availability of {name}",
            )
            return False


def refusal(error: AgentobsError) -> Json:
    """Return the answer that a conversation cannot be loaded, with the reason."""
    facts = {"found": error.found, "where": error.where, "todo": error.todo}
    return {"error": {"kind": type(error).__name__, **facts}}


async def _first(pending: Sequence[asyncio.Future[Json]]) -> Json:
    """Return the first real answer, with the usage of all requests; the others are cancelled.

    If two arrive at the same time, the first in order counts. If there is no answer, all reasons are combined.
    """
    left, answers = set(pending), list[Json]()
    try:
        while left and all(answer["resolver"] == "unattended" for answer in answers):
            ended, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            answers += [dict(task.result()) for task in pending if task in ended]
    finally:
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=WITHDRAW_S)
    slow = [task for task in left if task.done() and not task.cancelled() and not task.exception()]
    every_answer = [*answers, *(task.result() for task in slow)]
    usage = [each for answer in every_answer for each in answer.get("usage", [])]
    reason = " ".join(filter(None, (answer.get("reason") for answer in answers)))
    nobody_did: Json = {"behavior": "deny", "resolver": "unattended", "reason": reason}
    first = next((answer for answer in answers if answer["resolver"] != "unattended"), nobody_did)
    return {**first, "usage": usage} if usage else first


def token_refresh(client: AsyncAnthropic) -> Callable[[], bool] | None:
    """Return a function that makes a client request a new token from its `credentials`; None for a
    fixed key.

    The SDK (2.12, `AsyncAnthropic._should_retry`) does the same after a 401, but only if it handles
    retries itself.
    """
    cache: Any = getattr(client, "_token_cache", None)

    def refresh() -> bool:
        cache.invalidate()
        return True

    return None if cache is None else refresh


def _not_asked(why: str) -> Json:
    return {"behavior": "deny", "resolver": "unattended", "reason": f"the call failed: {why}"}
