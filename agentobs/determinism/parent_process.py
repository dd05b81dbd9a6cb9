"""Parent processes: a process that takes part in a replay is answered by the replaying one, over a Unix socket.

Each question is one connection, with one line of JSON each way. What the parent raises is raised here with the same
text: nothing retries it, and the parent keeps it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import socket
import sys
import threading
from typing import Any

from agentobs import runtime
from agentobs.determinism import session_inheritance
from agentobs.determinism.functions import Call
from agentobs.determinism.session_inheritance import Channel
from agentobs.errors import ReplaySays
from agentobs.records.exchanges import Answer, Chunk, Failure, Place, Question, ToolAnswer
from agentobs.sink import Record, sink
from agentobs.tracing.ambient import ambient_of
from agentobs.world import World

ANSWER_SECONDS = 60.0
"""How long a process waits for its parent. Our choice: the parent answers from memory."""

_lock = threading.Lock()


class State:
    """How this process is answered by its parent."""

    def __init__(self) -> None:
        self.held: contextlib.ExitStack | None = None
        """Holds the answering until the process ends; None if nothing is answered."""
        self.kinds: dict[Any, Any] = {}
        """The exceptions that are raised for the parent, by their base class."""


def ask_parent() -> bool:
    """Let the parent answer everything from now on, if it replays; return whether it does."""
    state = runtime.process.part(State)
    channel = session_inheritance.channel()
    if channel is None:
        return False
    with _lock:
        if state.held is None:
            parent = _Parent(channel)
            with contextlib.ExitStack() as stack:
                answering = runtime.replaced(
                    answerer=parent.answer,
                    stopped=parent.stopped,
                    functions=parent,
                    transform=_refuse,
                )
                stack.enter_context(answering)
                stack.enter_context(sink.redirect(_drop))
                state.held = stack.pop_all()
    return True


def _refuse(live: World) -> World:
    """Reject our own loop: its questions besides the model are not answered over the socket.

    Raises:
        ReplaySays: always.
    """
    del live
    raise says(
        "agentobs.agent runs in a process that its parent's replay started, which "
        "answers only clients and recorded functions: answer the call that starts the "
        "process from the recording"
    )


def _drop(record: Record) -> None:
    """Keep nothing: the parent knows its answers."""


class _Parent:
    """Asks the parent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def answer(self, question: Question, place: Place) -> Answer:
        told = self._ask("model", place=place_told(place), question=question_told(question))
        known = ambient_of(place.session_id)
        if known is not None:
            known.move(place.lane, int(told["clock_ms"]))
        return answer_of(told)

    def stopped(self) -> Exception:
        return says("the client stopped reading here when this was recorded")

    def begin(self, call: Call) -> tuple[Call, ToolAnswer | None]:
        told = self._ask("begin", call=call_told(call))
        renamed = dataclasses.replace(call.question, tool_use_id=told["tool_use_id"])
        given = told["answer"]
        return dataclasses.replace(call, question=renamed), None if given is None else ToolAnswer(
            **given
        )

    def ended(self, call: Call, answer: ToolAnswer) -> None:
        self._ask("ended", call=call_told(call), answer=dataclasses.asdict(answer))

    def unreadable(self, call: Call, why: str) -> BaseException:
        try:
            self._ask("unreadable", call=call_told(call), why=why)
        except ReplaySays as error:
            return error
        return says(why)

    async def cancelled(self, call: Call) -> Any:
        await asyncio.sleep(ANSWER_SECONDS)
        raise says(f"the call of {call.of.name} was cancelled when this was recorded")

    def _ask(self, kind: str, **told: Any) -> Any:
        """Return the parent's answer.

        Raises:
            ReplaySays: the path differs, or the parent is gone.
        """
        line = json.dumps({"token": self._channel.token, "kind": kind, **told}) + "\n"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
                made.settimeout(ANSWER_SECONDS)
                made.connect(self._channel.path)
                made.sendall(line.encode())
                with made.makefile("rb") as file:
                    answer = json.loads(file.readline())
        except (OSError, ValueError) as error:
            raise says(f"the replay that started this process has ended: {error}") from error
        if "raises" in answer:
            raise says(str(answer["raises"]))
        return answer["answer"]


def says(text: str) -> Exception:
    """Return the exception for a replay: one of the SDK's errors, if it is installed, so that nothing retries it."""
    state = runtime.process.part(State)
    base: Any = getattr(sys.modules.get("anthropic"), "AnthropicError", Exception)
    made: Any = state.kinds.get(base)
    if made is None:
        made = state.kinds[base] = type("ParentSays", (base, ReplaySays), {"__doc__": says.__doc__})
    error: Exception = made(text)
    return error


# The lines, as both ends of the channel write and read them.


def place_told(place: Place) -> dict[str, Any]:
    """Return a place as JSON."""
    return dataclasses.asdict(place)


def question_told(question: Question) -> dict[str, Any]:
    """Return a request as JSON, including its credentials, which the parent removes from its body."""
    return {
        "method": question.method,
        "path": question.path,
        "headers": question.headers,
        "body": base64.b64encode(question.body).decode(),
        "secrets": [base64.b64encode(each).decode() for each in question.secrets],
    }


def question_of(told: dict[str, Any]) -> Question:
    """Return the request for its JSON."""
    secrets = tuple(base64.b64decode(each) for each in told["secrets"])
    body = base64.b64decode(told["body"])
    return Question(told["method"], told["path"], told["headers"], body, secrets)


def answer_told(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON."""
    return {
        "status": answer.status,
        "headers": answer.headers,
        "chunks": [[base64.b64encode(c.data).decode(), c.after_ns] for c in answer.chunks],
        "ending": answer.ending,
        "failure": [answer.failure.name, answer.failure.message] if answer.failure else None,
        "retry_ms": answer.retry_ms,
    }


def answer_of(told: dict[str, Any]) -> Answer:
    """Return the answer for its JSON."""
    return Answer(
        told["status"],
        told["headers"],
        tuple(Chunk(base64.b64decode(data), after_ns) for data, after_ns in told["chunks"]),
        told["ending"],
        Failure(*told["failure"]) if told["failure"] else None,
        retry_ms=told["retry_ms"],
    )


def call_told(call: Call) -> dict[str, Any]:
    """Return a call of a recorded function as JSON."""
    return {
        "name": call.of.name,
        "is_mutating": call.of.is_mutating,
        "place": place_told(call.place),
        "question": dataclasses.asdict(call.question),
        "started_ns": call.started_ns,
        "started": call.started,
        "is_counted": call.is_counted,
    }
