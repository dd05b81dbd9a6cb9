"""Let the replaying parent process answer the requests of a child process, over a Unix socket.

Each question is one connection, with one line of JSON in each direction. If the parent raises an exception, an
exception with the same text is raised in the child. The child does not retry the request, and the parent keeps the
exception as its result.
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
from agentobs.errors import ReplayEnd
from agentobs.records.exchanges import Answer, Chunk, Failure, Place, Question, ToolAnswer
from agentobs.runtime import ServedAnswer
from agentobs.sink import Record
from agentobs.tracing.ambient import ambient_of
from agentobs.world import World

ANSWER_SECONDS = 60.0
"""How long a process waits for an answer of its parent. Our choice: the parent answers from memory."""

_lock = threading.Lock()


class State:
    """The connection of this process to its replaying parent."""

    def __init__(self) -> None:
        self.held: contextlib.ExitStack | None = None
        """Keeps the parent's answers active until the process ends; None if the parent does not answer."""
        self.error_classes: dict[Any, Any] = {}
        """The classes of exceptions from the parent, by base class."""


def connect_to_parent() -> bool:
    """If the parent replays, let it answer all questions from now on; return whether it replays."""
    state = runtime.process.state(State)
    channel = session_inheritance.channel()
    if channel is None:
        return False
    with _lock:
        if state.held is None:
            parent = _Parent(channel)
            with contextlib.ExitStack() as stack:
                answering = runtime.replaced(
                    answerer=parent.answer,
                    overread_error=parent.overread_error,
                    functions=parent,
                    transform=_refuse,
                    consumer=_drop,
                )
                stack.enter_context(answering)
                state.held = stack.pop_all()
    return True


def _refuse(live: World) -> World:
    """Reject the agent loop of agentobs, because its questions to the world are not answered over the socket.

    Raises:
        ReplayEnd: always.
    """
    del live
    raise replay_error(
        "agentobs.agent cannot run in a child process of a replay, because the replay answers "
        "only clients and recorded functions there. Record the call that starts the process, "
        "so that it is answered from the recording"
    )


def _drop(record: Record) -> None:
    """Discard a record, because the parent records the answers that it gives."""


class _Parent:
    """Sends questions to the parent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def answer(self, question: Question, place: Place) -> Answer:
        response = self._ask("model", place=place_json(place), question=question_json(question))
        known = ambient_of(place.session_id)
        if known is not None:
            known.move(place.lane, int(response["clock_ms"]))
        return answer_of(response)

    def overread_error(self) -> Exception:
        return replay_error("the client stopped reading here when this was recorded")

    def begin(self, call: Call) -> tuple[Call, ToolAnswer | None]:
        response = self._ask("begin", call=call_json(call))
        renamed = dataclasses.replace(call.question, tool_use_id=response["tool_use_id"])
        answer = response["answer"]
        return dataclasses.replace(call, question=renamed), (
            None if answer is None else ToolAnswer.from_json(answer)
        )

    def ended(self, call: Call, answer: ToolAnswer) -> None:
        self._ask("ended", call=call_json(call), answer=dataclasses.asdict(answer))

    def unreadable(self, call: Call, why: str) -> BaseException:
        try:
            self._ask("unreadable", call=call_json(call), why=why)
        except ReplayEnd as error:
            return error
        return replay_error(why)

    async def cancelled(self, call: Call) -> Any:
        await asyncio.sleep(ANSWER_SECONDS)
        raise replay_error(f"the call of {call.recorded.name} was cancelled when this was recorded")

    def _ask(self, kind: str, **arguments: Any) -> Any:
        """Return the parent's answer.

        Raises:
            ReplayEnd: the replay diverged, or the parent has ended.
        """
        line = json.dumps({"token": self._channel.token, "kind": kind, **arguments}) + "\n"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_SECONDS)
                connection.connect(self._channel.path)
                connection.sendall(line.encode())
                with connection.makefile("rb") as file:
                    answer = json.loads(file.readline())
        except (OSError, ValueError) as error:
            raise replay_error(
                f"the replay that started this process has ended: {error}"
            ) from error
        if "raises" in answer:
            raise replay_error(str(answer["raises"]))
        return answer["answer"]


def replay_error(text: str) -> Exception:
    """Return an exception of a replay. It is an error of the SDK, if the SDK is imported, so that it is not retried."""
    state = runtime.process.state(State)
    base: Any = getattr(sys.modules.get("anthropic"), "AnthropicError", Exception)
    error_class: Any = state.error_classes.get(base)
    if error_class is None:
        error_class = state.error_classes[base] = type(
            "ParentSays", (base, ReplayEnd), {"__doc__": replay_error.__doc__}
        )
    error: Exception = error_class(text)
    return error


# The JSON that both ends of the channel exchange.


def place_json(place: Place) -> dict[str, Any]:
    """Return a place as a JSON object."""
    return dataclasses.asdict(place)


def question_json(question: Question) -> dict[str, Any]:
    """Return a request as a JSON object, including its credentials, which the parent redacts in its body."""
    return {
        "method": question.method,
        "path": question.path,
        "headers": question.headers,
        "body": base64.b64encode(question.body).decode(),
        "secrets": [base64.b64encode(each).decode() for each in question.secrets],
    }


def question_of(data: dict[str, Any]) -> Question:
    """Return the request in a JSON object."""
    secrets = tuple(base64.b64decode(each) for each in data["secrets"])
    body = base64.b64decode(data["body"])
    return Question(data["method"], data["path"], data["headers"], body, secrets)


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return a response as a JSON object."""
    return {
        "status": answer.status,
        "headers": answer.headers,
        "chunks": [[base64.b64encode(c.data).decode(), c.after_ns] for c in answer.chunks],
        "ending": answer.ending,
        "failure": [answer.failure.name, answer.failure.message] if answer.failure else None,
        "retry_ms": answer.retry_ms if isinstance(answer, ServedAnswer) else None,
    }


def answer_of(data: dict[str, Any]) -> ServedAnswer:
    """Return the response in a JSON object."""
    return ServedAnswer(
        data["status"],
        data["headers"],
        tuple(Chunk(base64.b64decode(data), after_ns) for data, after_ns in data["chunks"]),
        data["ending"],
        Failure(*data["failure"]) if data["failure"] else None,
        retry_ms=data["retry_ms"],
    )


def call_json(call: Call) -> dict[str, Any]:
    """Return a call of a recorded function as a JSON object."""
    return {
        "name": call.recorded.name,
        "is_mutating": call.recorded.is_mutating,
        "place": place_json(call.place),
        "question": dataclasses.asdict(call.question),
        "started_ns": call.started_ns,
        "started": call.started,
        "is_counted": call.is_counted,
    }
