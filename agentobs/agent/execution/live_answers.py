"""Whom the loop asks beside the model and its tools: a person, an inbox, the file system, the ledger.

Here the live answers come from; each is JSON, so that it can be recorded, and given again in a replay.
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
from agentobs.agent.tools.results import told
from agentobs.agent.tools.tool import Tool
from agentobs.errors import AgentobsError, RecordingError, ReplaySays, UsageError, say_once
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolQuestion, WorldQuestion
from agentobs.world import nobody


@dataclass(frozen=True, slots=True)
class Consent:
    """What a person is asked: may this be done?"""

    about: Json
    """The call: `tool`, `input` and, where it has any, `paths` with links resolved. Or the `limit` that was
    reached."""
    reason: str
    """Why it is asked."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a person answers."""

    allow: bool
    scope: Literal["once", "session"] = "once"
    """For this time, or for every like call of the conversation."""
    reason: str = ""
    """Why not; the model is told."""


WITHDRAW_S = 1.0
"""How long whoever was too late to consent may take to withdraw, in seconds. Our choice."""

Person = Callable[[Consent], Reply | bool | Awaitable[Reply | bool]]
"""Asks a person. A plain function runs in a thread, which nobody can stop: where a classifier was faster its answer
is ignored, and it is asked again only when it has returned. An async one is cancelled then, and has to take its
question back."""

LOOK_S = 0.05
"""How often it is looked whether a person has answered an earlier question, in seconds. Our choice."""


class Inbox:
    """What is said to an agent while it runs; thread-safe."""

    def __init__(self) -> None:
        """Make an empty one."""
        self._waiting: dict[str, list[str]] = {"steering": [], "follow_up": []}
        self._lock = threading.Lock()

    def steer(self, text: str) -> None:
        """Say something now: it goes to the model after the tool that runs; those not yet begun are skipped."""
        self._say("steering", text)

    def follow_up(self, text: str) -> None:
        """Say something for when the agent would stop: it goes on with it."""
        self._say("follow_up", text)

    def take(self, kind: Literal["steering", "follow_up"]) -> list[str]:
        """Return what was said, and forget it."""
        with self._lock:
            said, self._waiting[kind] = self._waiting[kind], []
        return said

    def _say(self, kind: str, text: str) -> None:
        said = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate cannot be sent
        if not said.strip():
            return
        with self._lock:
            self._waiting[kind].append(said)


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
        """Answer for these tools; without a person nothing is consented to.

        `classify` answers for consent beside the person. `hooks` runs a hook, `refresh` makes the credentials
        anew, `load` reads an earlier conversation, `sections` write those of the system prompt. What they do where
        they fail is written at their cases in `ask`.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._running, self._person, self._inbox = running, person, inbox
        self._resolve = resolver(roots or (Path.cwd(),))
        self._spent_today, self._classify = spent_today, classify
        self._hooks, self._refresh, self._load = hooks, refresh, load
        self._sections = dict(sections or {})
        self._memory = memory
        self._is_asked = False
        """Whether a plain `person` has a question, also one that was withdrawn."""

    async def ask(self, question: WorldQuestion) -> Any:
        """Answer a question; see `World.ask`."""
        match question.kind:
            case "consent":
                return await self._consent(question)
            case "check":
                asked = question.asked
                call = ToolQuestion(question.key, asked["tool"], asked["input"])
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
                kept, key, text = self._running.kept, question.key, question.asked
                return await in_thread(lambda: kept(key, text))
            case "limit" | "background" | "elapsed" | "compacted" | "abort":
                return await nobody(question)
        assert_never(question.kind)

    async def _remembered(self) -> str | None:
        """Return what is remembered of the session; nothing where that fails, so that a summary is made."""
        memory = self._memory
        if memory is None:
            return None
        try:
            said = str(await in_thread(memory) or "")
            return said.encode("utf-8", "replace").decode("utf-8") or None
        except ReplaySays:
            raise
        except Exception as error:
            say_once(f"the session's memory cannot be read: {told(error)}", about="memory")
            return None

    async def _refreshed(self) -> bool:
        """Make the credentials anew; whatever goes wrong, they were not."""
        refresh = self._refresh
        if refresh is None:
            return False
        try:
            made = await in_thread(refresh)
            return bool(await made if inspect.isawaitable(made) else made)
        except ReplaySays:
            raise
        except Exception as error:
            say_once(f"the credentials were not made anew: {told(error)}", about="refresh")
            return False

    async def _section(self, name: str) -> str | None:
        """Have a section of the system prompt written; one that cannot be is left out.

        Raises:
            UsageError: nobody here writes it.
        """
        written = self._sections.get(name)
        if written is None:
            raise UsageError(
                f"the section {name} of the system prompt has to be asked for, and nobody writes it",
                todo="Pass it to live_world: sections=prompt.asked",
            )
        try:
            said = await in_thread(written)
            said = await said if inspect.isawaitable(said) else said
            return None if said is None else str(said).encode("utf-8", "replace").decode("utf-8")
        except ReplaySays:
            raise
        except Exception as error:
            say_once(
                f"the section {name} of the system prompt was left out: {told(error)}",
                about=f"section {name}",
            )
            return None

    async def _loaded(self, asked: Json) -> Json:
        """Read an earlier conversation; an error is an answer, too, so that a replay raises it as well."""
        load = self._load
        if load is None:
            return refusal(
                UsageError(
                    "this world cannot read earlier sessions",
                    todo="Make it with live_world(..., load=agentobs.wiring.load_conversation)",
                )
            )
        try:
            return await in_thread(lambda: load(asked))
        except ReplaySays:
            raise
        except AgentobsError as error:
            return refusal(error)
        except Exception as error:
            found = f"the earlier session was not read: {told(error)}"
            return refusal(RecordingError(found, todo="agentobs verify tells what is damaged"))

    async def _consent(self, question: WorldQuestion) -> Json:
        """Ask the person and the classifier together: the first who answers has decided, the other is withdrawn."""
        classify = self._classify
        if classify is None or "tool" not in question.asked["about"]:
            return await self._by_person(question)
        if question.asked.get("person_only"):
            return await self._by_person(question)
        asked = [self._by_person] if self._person is not None else []
        return await _first([asyncio.ensure_future(ask(question)) for ask in (*asked, classify)])

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
            return _not_asked(told(error))
        if isinstance(reply, bool):
            reply = Reply(reply)
        if not isinstance(reply, Reply):
            return _not_asked(f"the answer was a {type(reply).__name__}, no Reply")
        return {
            "behaviour": "allow" if reply.allow is True else "deny",
            "by": "person",
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
        except RuntimeError:  # also where no thread could begin
            self._is_asked = False
            raise
        return await replied if inspect.isawaitable(replied) else replied

    def _there(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._is_there(name)]

    def _is_there(self, name: str) -> bool:
        tool = self._tools.get(name)
        try:
            return tool is not None and (tool.available is None or bool(tool.available()))
        except BaseException as error:  # a SystemExit of the tool's own code, too
            say_once(
                f"whether the tool {name} is available cannot be told: {told(error)}. It counts as missing.",
                about=f"availability of {name}",
            )
            return False


def refusal(error: AgentobsError) -> Json:
    """Return the answer that there is no such conversation, and why."""
    facts = {"found": error.found, "where": error.where, "todo": error.todo}
    return {"error": {"kind": type(error).__name__, **facts}}


async def _first(asking: Sequence[asyncio.Future[Json]]) -> Json:
    """Return the first answer that somebody gives, and what all requests for it used; the others are cancelled.

    Of two that come together the first one counts. Where nobody answers, all reasons are told.
    """
    left, answers = set(asking), list[Json]()
    try:
        while left and all(answer["by"] == "nobody" for answer in answers):
            ended, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            answers += [dict(task.result()) for task in asking if task in ended]
    finally:
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=WITHDRAW_S)
    slow = [task for task in left if task.done() and not task.cancelled() and not task.exception()]
    given = [*answers, *(task.result() for task in slow)]
    usage = [each for answer in given for each in answer.get("usage", [])]
    reason = " ".join(filter(None, (answer.get("reason") for answer in answers)))
    nobody_did: Json = {"behaviour": "deny", "by": "nobody", "reason": reason}
    first = next((answer for answer in answers if answer["by"] != "nobody"), nobody_did)
    return {**first, "usage": usage} if usage else first


def token_refresh(client: AsyncAnthropic) -> Callable[[], bool] | None:
    """Return what makes a client ask its `credentials` for another token; None where it has a key that stays.

    The SDK (2.12, `AsyncAnthropic._should_retry`) does the same after a 401, but only where it retries itself.
    """
    cache: Any = getattr(client, "_token_cache", None)

    def refresh() -> bool:
        cache.invalidate()
        return True

    return None if cache is None else refresh


def _not_asked(why: str) -> Json:
    return {"behaviour": "deny", "by": "nobody", "reason": f"asking failed: {why}"}
