"""Child processes: programs that the agent starts in a replay are answered from the same recording.

The replay opens a Unix socket when the first one starts, in a directory of its own; a client must know a random word
that only the child's environment contains. A child has a lane of its own, and its divergence is the divergence of
the whole replay.
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
from agentobs.determinism.functions import Call, Function
from agentobs.determinism.parent_process import answer_told, question_of
from agentobs.determinism.session_inheritance import Channel
from agentobs.errors import ReplaySays
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
from replay.playback.function_calls import Functions
from replay.virtual_time.thread_states import CHILDREN

Answers = Callable[[Question, Place], Answer]


@contextlib.contextmanager
def children(
    answer: Answers, functions: Functions, collect: Callable[[Record], None]
) -> Iterator[None]:
    """Answer programs that are started with `agentobs.child_environment`, as long as the context is open."""
    with contextlib.ExitStack() as stack:
        lock = threading.Lock()
        opened: list[Channel] = []

        def open_channel() -> Channel:
            with lock:
                if not opened:
                    opened.append(stack.enter_context(_served(answer, functions, collect)))
                return opened[0]

        stack.enter_context(session_inheritance.answered_over(open_channel))
        yield


@contextlib.contextmanager
def _served(
    answer: Answers, functions: Functions, collect: Callable[[Record], None]
) -> Iterator[Channel]:
    folder = tempfile.mkdtemp(prefix="agentobs-")
    channel = Channel(str(Path(folder) / "answers"), world.random_bytes(16).hex())
    asked = _Asked(channel.token, answer, functions, collect)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(json.dumps(asked.answered(self.rfile.readline())).encode() + b"\n")

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
        """A child that disconnects is not an error: its missing requests are reported at the end."""


class _Asked:
    """Answers the lines of child processes."""

    def __init__(
        self,
        token: str,
        answer: Answers,
        functions: Functions,
        collect: Callable[[Record], None],
    ) -> None:
        self._token, self._answer = token, answer
        self._functions, self._collect = functions, collect
        self._running: dict[tuple[str, str], Call] = {}

    def answered(self, line: bytes) -> dict[str, Any]:
        """Return the answer to a line."""
        try:
            told = json.loads(line)
            if not hmac.compare_digest(str(told["token"]), self._token):
                return {"raises": "the sender is not authorized"}
            return {"answer": self._of(told)}
        except ReplaySays as error:
            return {"raises": str(error)}
        except Exception as error:  # the child is to hear of it, and this thread is nobody's
            return {"raises": f"the replay cannot answer: {type(error).__name__}: {error}"}

    def _of(self, told: dict[str, Any]) -> Any:
        if told["kind"] == "model":
            question, place = question_of(told["question"]), Place(**told["place"])
            given = self._answer(question, place)
            self._collect(_exchange(question, place, given))
            known = ambient_of(place.session_id)
            return {
                **answer_told(given),
                "clock_ms": known.offset_ms(place.lane) if known is not None else 0,
            }
        call = _call(told["call"])
        key = call.place.lane, call.question.tool_use_id
        if told["kind"] == "begin":
            call, answer = self._functions.begin(call)
            if answer is None:
                self._running[call.place.lane, call.question.tool_use_id] = call
            else:
                self._collect(_called(call, answer))
            given_back = None if answer is None else dataclasses.asdict(answer)
            return {"tool_use_id": call.question.tool_use_id, "answer": given_back}
        if told["kind"] == "unreadable":
            raise self._functions.unreadable(call, str(told["why"]))
        ended = ToolAnswer(**told["answer"])
        call = self._running.pop(key, call)
        self._functions.ended(call, ended)
        self._collect(_called(call, ended))
        return None


def _exchange(question: Question, place: Place, answer: Answer) -> ModelExchange:
    return ModelExchange(place, world.new_id(), world.now(), None, 0, question, answer)


def _called(call: Call, answer: ToolAnswer) -> ToolExchange:
    return ToolExchange(
        call.place, call.started_ns, 0, call.question, answer, tool=call.of.name, is_function=True
    )


def _call(told: dict[str, Any]) -> Call:
    signature = inspect.Signature()
    of = Function(told["name"], bool(told["is_mutating"]), _elsewhere, signature)
    question = ToolQuestion(**told["question"])
    place = Place(**told["place"])
    return Call(of, place, question, told["started_ns"], told["started"], told["is_counted"])


def _elsewhere() -> None:
    """Stands for a function of another process."""
