"""Generated agents: scripts drawn from a seed that define what the model requests, and the provider that follows them.

A script is a set of tasks. An agent with the prompt "Task NAME" calls the model until the response has no tool calls.
Its tool calls may start further agents, each with its own task. Several agents can receive the same task in the same
words; the agent whose first request arrives first gets the first list of turns. The provider is stateless apart from
that, like a real one: it reads the next step from the last response that a request contains.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

from agentobs.provider.anthropic.messages import request_error
from agentobs.provider.dialect import text_of
from tests.agent.provider import (
    Reply,
    call,
    cut_after,
    error,
    error_in_stream,
    message,
    streamed,
    text,
    unstreamed,
)
from tests.loopback import LoopbackServer

Kind = Literal["loop", "sync", "async", "threads"]
"""The kind of agent: an agent of the agent loop, or a kind of agent that uses only the SDK."""
KINDS: tuple[Kind, ...] = ("loop", "sync", "async", "threads")
Fault = Literal["429", "529", "500", "cut", "error in stream"]
FAULTS: tuple[Fault, ...] = ("429", "529", "500", "cut", "error in stream")
Method = Literal["stream", "create", "events", "raw"]
"""The function of the SDK that a plain agent calls."""
METHODS: tuple[Method, ...] = ("stream", "create", "events", "raw")
WORDS = (
    "box",
    "bag",
    "bin",
    "naïve",
    "1.50",
    "two  blanks",
    '"quoted"',
    "line\nbreak",
    "🦉",
    "\u2028",
)


@dataclass
class Call:
    """One tool call that the model requests."""

    tool: str
    input: dict[str, Any]
    task: str = ""
    """The task of the agent that the call starts; empty if it does not start an agent."""
    background: bool = False


@dataclass
class Turn:
    """One response of the model, and the faults before it."""

    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    words: str = ""
    thinks: bool = False
    method: Method = "stream"
    counts: bool = False
    """Whether a plain agent counts its tokens first."""
    full: bool = False
    """Whether the context window is full at this turn, so that the agent loop compacts the conversation."""


@dataclass
class Script:
    """What the model requests, and what happens outside of the agent in the meantime."""

    seed: int
    kind: Kind
    prompts: list[str] = field(default_factory=list)
    """Tasks of the main agent, one after the other, in one conversation."""
    tasks: dict[str, list[list[Turn]]] = field(default_factory=dict)
    """The turns of each agent that receives a task, by the name of the task."""
    asks_person: bool = False
    """Whether the agent requests a person's approval before it writes."""
    hooked: bool = False
    compacts: bool = False
    """Whether the context window is small."""
    output: bool = False
    """Whether the last response must contain structured output."""
    streams: bool = True
    """Whether the agent loop requests streamed responses."""
    stop_at: tuple[str, int] | None = None
    """The kind of event, and its number, at which the run is stopped."""
    steer_at: int | None = None
    """The number of the main agent's tool call at which a person steers the agent."""
    follow_up: bool = False

    def started(self) -> Iterator[Call]:
        """Yield the tool calls that start agents."""
        for copies in self.tasks.values():
            for turns in copies:
                for turn in turns:
                    yield from (each for each in turn.calls if each.task)


def depth_of(task: str) -> int:
    """Return the depth of the agents with this task: `m0` is the main agent, `m0a1` is an agent that it started."""
    return len(re.findall(r"[a-z]\d+", task)) - 1


def script_of(seed: int, kind: Kind | None = None) -> Script:
    """Return the script that is drawn from a seed."""
    chance = random.Random(seed)
    script = Script(seed, kind or KINDS[seed % len(KINDS)])
    for _ in range(chance.choice((1, 1, 2))):
        add_prompt(script)
        for _ in range(chance.choice((1, 1, 2, 3))):
            task = script.prompts[-1]
            add_turn(script, task)
            for _ in range(chance.choice((0, 1, 2, 3))):
                add_call(script, task, chance)
            if depth_of(task) < 2 and chance.random() < 0.4:
                add_agents(script, task, chance)
    for _ in range(chance.choice((0, 0, 1, 2))):
        add_fault(script, chance)
    if script.kind == "loop":
        _surround(script, chance)
    else:
        _vary(script, chance)
    return script


def _surround(script: Script, chance: random.Random) -> None:
    """Draw what happens outside of an agent of the agent loop."""
    script.asks_person, script.hooked = chance.random() < 0.5, chance.random() < 0.4
    script.output = chance.random() < 0.2
    script.streams = chance.random() < 0.8
    script.follow_up = chance.random() < 0.15
    if chance.random() < 0.25:
        script.steer_at = chance.randint(1, 3)
    if chance.random() < 0.25:
        kinds = ("Message", "ToolDispatch", "ToolDone", "RequestStart", "TextDelta")
        kind, number = chance.choice(kinds), chance.randint(1, 4)
        # An agent that is stopped at the start of its first request sends no request, so there is nothing to replay.
        script.stop_at = (kind, number + (kind == "RequestStart"))
    if chance.random() < 0.25:
        make_full(script, chance)


def _vary(script: Script, chance: random.Random) -> None:
    """Draw how an agent on the plain SDK sends its requests."""
    for copies in script.tasks.values():
        for turns in copies:
            for turn in turns:
                turn.method, turn.counts = chance.choice(METHODS), chance.random() < 0.15


def add_prompt(script: Script) -> None:
    """Add a task for the main agent."""
    name = f"m{len(script.prompts)}"
    script.prompts.append(name)
    script.tasks[name] = [[]]


def add_turn(script: Script, task: str) -> None:
    """Add a request to the agents with a task."""
    for copy, turns in enumerate(script.tasks[task]):
        drawn_at = len(turns) + copy + script.seed
        thinks = script.kind == "loop" and drawn_at % 7 == 0
        turns.append(Turn(words=f"on {WORDS[drawn_at % len(WORDS)]}", thinks=thinks))


def add_call(script: Script, task: str, chance: random.Random) -> None:
    """Add a tool call to the last turn of a task."""
    for copy, turns in enumerate(script.tasks[task]):
        place = f"{task} {copy} {len(turns)} {len(turns[-1].calls)} {chance.choice(WORDS)}"
        tool_inputs: dict[str, dict[str, Any]] = {
            "look": {"where": place},
            "write": {"what": place},
            "count": {"number": chance.choice((1, "3", "three", 2.0)), "of": place},
            "fall": {"how": place},
            "wait": {"what": place},
            "missing": {"what": place},
        }
        name = chance.choice(["look", "look", "look", "write", "write", "count", "fall", "wait"])
        name = "missing" if chance.random() < 0.03 else name
        turns[-1].calls.append(Call(name, tool_inputs[name]))


def add_agents(script: Script, task: str, chance: random.Random) -> None:
    """Let the last turn of a task start another agent, or several with the same task."""
    for turns in script.tasks[task]:
        count = chance.choice((1, 1, 2, 3))
        name = f"{task}{'abc'[len(turns) % 3]}{len(script.tasks)}"
        script.tasks[name] = [[] for _ in range(count)]
        can_leave = depth_of(task) == 0 and script.kind == "loop"
        in_background = can_leave and count == 1 and chance.random() < 0.5
        for _ in range(count):
            turns[-1].calls.append(Call("agent", {}, name, in_background))
        for _ in range(chance.choice((0, 1, 1))):
            add_turn(script, name)
            add_call(script, name, chance)
            if depth_of(name) < 2 and chance.random() < 0.3:
                add_agents(script, name, chance)


def add_fault(script: Script, chance: random.Random) -> None:
    """Add a fault before a response."""
    places = [turn for copies in script.tasks.values() for turns in copies for turn in turns]
    turn = chance.choice(places)
    if len(turn.faults) < 2:
        turn.faults.append(chance.choice(FAULTS))


def make_full(script: Script, chance: random.Random) -> None:
    """Let the context window be full at a turn, after a turn with a long response."""
    script.compacts = True
    task = chance.choice(script.prompts)
    add_turn(script, task)
    add_call(script, task, chance)
    add_turn(script, task)
    add_call(script, task, chance)
    for turn in script.tasks[task][0][-2:]:
        turn.full = True


# The provider

STEP = re.compile(r"Step (\w+)-(\d+)-(\d+)")
TASK = re.compile(r"Task (\w+)\.")
SUMMARY = "This conversation is too long and will continue from a summary"


@dataclass(frozen=True)
class Step:
    """A response of the model: one turn of an agent with a task."""

    task: str
    copy: int
    turn: int
    """Counted from 0."""

    def __str__(self) -> str:
        return f"{self.task}-{self.copy}-{self.turn}"


def last_step(messages: Sequence[dict[str, Any]]) -> Step | str:
    """Return the step of the last response that a request contains, or the task of its prompt if there is none."""
    for each in reversed(messages):
        message_text = text_of(each["content"])
        if each["role"] == "user" and (found := TASK.search(message_text)):
            return found[1]
        if (each["role"] == "assistant" or "So far: Step" in message_text) and (
            steps := list(STEP.finditer(message_text))
        ):
            return Step(steps[-1][1], int(steps[-1][2]), int(steps[-1][3]))
    return "nothing"


def requested_step(body: dict[str, Any]) -> Step | str:
    """Return the step of the response to a request; for the first request of a task, only the task is known."""
    last = last_step(body["messages"])
    return last if isinstance(last, str) else Step(last.task, last.copy, last.turn + 1)


class Model:
    """A model that follows a script; safe to share between threads."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.steps: list[Step] = []
        """The steps of all responses, in order."""
        self._begun: dict[str, int] = {}
        self._failed: dict[Step, int] = {}
        self._lock, self._chance = threading.Lock(), random.Random(script.seed)

    def reply(self, path: str, body: dict[str, Any]) -> tuple[Reply, float]:
        """Return the reply to a request, and its delay in seconds."""
        with self._lock:
            takes_s = self._chance.choice((0, 0, 0.001, 0.003))
            if path.endswith("/count_tokens"):
                return _json({"input_tokens": len(json.dumps(body))}), takes_s
            if refused := request_error(body):
                return error(400, "invalid_request_error", text=refused), takes_s
            return self._model_reply(body), takes_s

    def _model_reply(self, body: dict[str, Any]) -> Reply:
        is_streamed = bool(body.get("stream"))
        if SUMMARY in text_of(body["messages"][-1]["content"]):
            summary = message(
                text(f"So far: Step {last_step(body['messages'])}"), usage=_usage(400)
            )
            return streamed(summary) if is_streamed else unstreamed(summary)
        step = requested_step(body)
        if isinstance(step, str):
            step = Step(step, self._begun.get(step, 0), 0)
        copies = self.script.tasks.get(step.task, [])
        turns = copies[step.copy] if step.copy < len(copies) else []
        turn = turns[step.turn] if step.turn < len(turns) else Turn()
        failed = self._failed.get(step, 0)
        answer = self._message(step, turn, body)
        if failed < len(turn.faults):
            self._failed[step] = failed + 1
            return _failure(turn.faults[failed], answer, is_streamed)
        if step.turn == 0:
            self._begun[step.task] = step.copy + 1
        self.steps.append(step)
        return streamed(answer) if is_streamed else unstreamed(answer)

    def _message(self, step: Step, turn: Turn, body: dict[str, Any]) -> dict[str, Any]:
        filler = " filled" * 500 if turn.full else ""
        content = [text(f"Step {step} {turn.words}{filler}")]
        if turn.thinks:
            content.insert(0, {"type": "thinking", "thinking": "Hm", "signature": "c2lnbmVkIQ=="})
        for number, each in enumerate(turn.calls):
            tool_input = dict(each.input)
            if each.task:
                tool_input = {"agent": "digger", "prompt": f"Task {each.task}. Go."}
                tool_input |= {"run_in_background": True} if each.background else {}
            content.append(call(f"toolu_{step}-{number}", each.tool, **tool_input))
        needs_output = any(tool["name"] == "structured_output" for tool in body.get("tools", []))
        if not turn.calls and needs_output:
            content.append(call(f"toolu_{step}-out", "structured_output", found=str(step)))
        is_called = len(content) > 1 + turn.thinks
        stop = "tool_use" if is_called else "end_turn"
        tokens = 2400 if turn.full else 100 + 10 * step.turn
        return message(*content, stop_reason=stop, usage=_usage(tokens), id=f"msg_{step}")


def _usage(tokens: int) -> dict[str, int]:
    return {"input_tokens": tokens - 10, "output_tokens": 10}


def _json(value: Any) -> Reply:
    return Reply((json.dumps(value).encode(),))


def _failure(fault: Fault, answer: dict[str, Any], is_streamed: bool) -> Reply:
    match fault:
        case "429":
            return error(429, "rate_limit_error", retry_after_ms="1")
        case "529":
            return error(529, "overloaded_error", retry_after_ms="1")
        case "cut" if is_streamed:
            return cut_after(answer, 4)
        case "error in stream" if is_streamed:
            return error_in_stream("overloaded_error")
        case _:
            return error(500, "api_error", retry_after_ms="1")


class ModelServer:
    """A loopback HTTP server that serves one model after another."""

    def __init__(self) -> None:
        self.model = Model(Script(0, "loop"))
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                reply, takes_s = server.model.reply(self.path.partition("?")[0], body)
                time.sleep(takes_s)
                data = b"".join(reply.chunks)
                size = len(data) + (100 if reply.cut else 0)
                self.send_response(reply.status)
                for name, value in {**reply.headers, "content-length": str(size)}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = reply.cut

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = LoopbackServer(Handler)
        self.url = self._server.base_url

    def close(self) -> None:
        """Stop serving."""
        self._server.stop()


@contextmanager
def model_server() -> Iterator[ModelServer]:
    """Serve models over HTTP on the loopback interface."""
    server = ModelServer()
    server._server.start()
    try:
        yield server
    finally:
        server.close()
