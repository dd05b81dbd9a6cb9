"""Child processes: the requests of programs that the agent starts in a replay are answered from the same recording.

When the agent starts the first program, the replay opens a Unix socket in a new directory. A client must send a random
token, which only the environment of the child contains. Each child has its own lane, and its divergence is the
divergence of the whole replay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import inspect
import json
import shutil
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.determinism import session_inheritance
from agentobs.determinism.functions import Call, RecordedFunction
from agentobs.determinism.parent_process import answer_json, question_of
from agentobs.determinism.session_inheritance import Channel
from agentobs.errors import ReplayEnd
from agentobs.records.exchanges import (
    Answer,
    ModelExchange,
    Place,
    Question,
    ToolAnswer,
    ToolExchange,
    ToolQuestion,
)
from agentobs.sink import Record
from agentobs.tracing.ambient import ambient_of
from replay.playback.function_calls import FunctionCalls
from replay.virtual_time.thread_states import CHILDREN

AnswerRequest = Callable[[Question, Place], Answer]
"""Answers a model request from the recording."""


@contextlib.contextmanager
def answered_children(
    answer: AnswerRequest, functions: FunctionCalls, collect: Callable[[Record], None]
) -> Iterator[None]:
    """Answer programs that are started with `agentobs.child_environment` while the context is open."""
    with contextlib.ExitStack() as stack:
        lock = threading.Lock()
        opened: list[Channel] = []

        def open_channel() -> Channel:
            with lock:
                if not opened:
                    opened.append(stack.enter_context(_server(answer, functions, collect)))
                return opened[0]

        stack.enter_context(session_inheritance.answered_over(open_channel))
        yield


@contextlib.contextmanager
def _server(
    answer: AnswerRequest, functions: FunctionCalls, collect: Callable[[Record], None]
) -> Iterator[Channel]:
    folder = tempfile.mkdtemp(prefix="agentobs-")
    channel = Channel(str(Path(folder) / "answers"), world.random_bytes(16).hex())
    answerer = _ChildAnswerer(channel.token, answer, functions, collect)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            response = answerer.respond(self.rfile.readline())
            self.wfile.write(json.dumps(response).encode() + b"\n")

    server = _Server(channel.path, Handler)
    serve = server.serve_forever
    thread = threading.Thread(target=serve, args=(0.02,), name=CHILDREN, daemon=True)
    thread.start()
    try:
        yield channel
    finally:
        server.shutdown()
        server.server_close()
        shutil.rmtree(folder, ignore_errors=True)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a child that disconnects, because its missing requests are reported at the end."""


class _ChildAnswerer:
    """Answers the messages of child processes. Each message is a line of JSON."""

    def __init__(
        self,
        token: str,
        answer: AnswerRequest,
        functions: FunctionCalls,
        collect: Callable[[Record], None],
    ) -> None:
        self._token, self._answer = token, answer
        self._functions, self._collect = functions, collect
        self._running: dict[tuple[str, str], Call] = {}

    def respond(self, line: bytes) -> dict[str, Any]:
        """Return the response to a line."""
        try:
            message = json.loads(line)
            if not hmac.compare_digest(str(message["token"]), self._token):
                return {"raises": "the sender is not authorized"}
            return {"answer": self._answer_to(message)}
        except ReplayEnd as error:
            return {"raises": str(error)}
        except Exception as error:
            # The child raises the error, because this thread has no caller that could handle it.
            return {"raises": f"the replay cannot answer: {type(error).__name__}: {error}"}

    def _answer_to(self, message: dict[str, Any]) -> Any:
        if message["kind"] == "model":
            question, place = question_of(message["question"]), Place(**message["place"])
            answer = self._answer(question, place)
            self._collect(_model_exchange(question, place, answer))
            ambient = ambient_of(place.session_id)
            return {
                **answer_json(answer),
                "clock_ms": ambient.offset_ms(place.lane) if ambient is not None else 0,
            }
        call = _call(message["call"])
        key = call.place.lane, call.question.tool_use_id
        if message["kind"] == "begin":
            call, result = self._functions.begin(call)
            if result is None:
                self._running[call.place.lane, call.question.tool_use_id] = call
            else:
                self._collect(_tool_exchange(call, result))
            return {
                "tool_use_id": call.question.tool_use_id,
                "answer": None if result is None else dataclasses.asdict(result),
            }
        if message["kind"] == "unreadable":
            raise self._functions.unreadable(call, str(message["why"]))
        ended = ToolAnswer.from_json(message["answer"])
        call = self._running.pop(key, call)
        self._functions.ended(call, ended)
        self._collect(_tool_exchange(call, ended))
        return None


def _model_exchange(question: Question, place: Place, answer: Answer) -> ModelExchange:
    return ModelExchange(place, world.new_id(), world.now(), None, 0, question, answer)


def _tool_exchange(call: Call, answer: ToolAnswer) -> ToolExchange:
    return ToolExchange(
        call.place,
        call.started_ns,
        0,
        call.question,
        answer,
        tool=call.recorded.name,
        is_function=True,
    )


def _call(message: dict[str, Any]) -> Call:
    signature = inspect.Signature()
    function = RecordedFunction(
        message["name"], bool(message["is_mutating"]), _foreign_function, signature
    )
    question = ToolQuestion(**message["question"])
    place = Place(**message["place"])
    return Call(
        function, place, question, message["started_ns"], message["started"], message["is_counted"]
    )


def _foreign_function() -> None:
    """Represent a function of another process, which this process cannot call."""
