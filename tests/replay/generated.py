"""Generated agents: what a model makes one do, drawn from a seed, and the provider that says it.

A script is a set of tasks. An agent that is told "Task NAME" asks the model until it calls no tool any more; its calls
may start further agents, each with a task of its own. Some tasks are given to several at once, in the same words: who
of them asks first was chance, and gets the first of the scripts for it. The provider knows nothing but requests: which
step comes next it reads from the last answer that a request repeats, as the real one does.
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

from agentobs.provider.anthropic.messages import fault_of_request
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
    whole,
)
from tests.loopback import LoopbackServer

Kind = Literal["loop", "sync", "async", "threads"]
"""Whose agent it is: our own loop, or one over the SDK alone."""
KINDS: tuple[Kind, ...] = ("loop", "sync", "async", "threads")
Fault = Literal["429", "529", "500", "cut", "error in stream"]
FAULTS: tuple[Fault, ...] = ("429", "529", "500", "cut", "error in stream")
How = Literal["stream", "create", "events", "raw"]
"""By which of the SDK's ways a plain agent asks."""
HOWS: tuple[How, ...] = ("stream", "create", "events", "raw")
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
    """One call that the model makes."""

    tool: str
    input: dict[str, Any]
    task: str = ""
    """The task of the agent that it starts, where it starts one."""
    background: bool = False


@dataclass
class Turn:
    """One answer of the model, and what goes wrong before it."""

    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    words: str = ""
    thinks: bool = False
    how: How = "stream"
    counts: bool = False
    """Whether a plain agent has its tokens counted first."""
    full: bool = False
    """Whether the window is full then, so that our loop makes the conversation shorter."""


@dataclass
class Script:
    """What the model makes an agent do, and what comes from outside meanwhile."""

    seed: int
    kind: Kind
    prompts: list[str] = field(default_factory=list)
    """Tasks that are given to the agent itself, one after the other, in one conversation."""
    tasks: dict[str, list[list[Turn]]] = field(default_factory=dict)
    """By name: the turns of each agent that is given the task."""
    asks: bool = False
    """Whether the agent asks a person before it writes."""
    hooked: bool = False
    compacts: bool = False
    """Whether the window is small."""
    output: bool = False
    """Whether the last answer owes an output of a type."""
    streams: bool = True
    """Whether our loop has its answers streamed."""
    stop_at: tuple[str, int] | None = None
    """The kind of event, and which of them, at which somebody stops the run."""
    steer_at: int | None = None
    """The tool call, of the agent itself, at which somebody says something."""
    follow_up: bool = False

    def started(self) -> Iterator[Call]:
        """Yield the calls that start agents."""
        for copies in self.tasks.values():
            for turns in copies:
                for turn in turns:
                    yield from (each for each in turn.calls if each.task)


def depth_of(task: str) -> int:
    """Return how deep an agent with this task is: `m0` is the agent itself, `m0a1` one that it started."""
    return len(re.findall(r"[a-z]\d+", task)) - 1


def drawn(seed: int, kind: Kind | None = None) -> Script:
    """Return the script that a seed gives."""
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
    """Draw what comes from outside of an agent of our loop."""
    script.asks, script.hooked = chance.random() < 0.5, chance.random() < 0.4
    script.output = chance.random() < 0.2
    script.streams = chance.random() < 0.8
    script.follow_up = chance.random() < 0.15
    if chance.random() < 0.25:
        script.steer_at = chance.randint(1, 3)
    if chance.random() < 0.25:
        kinds = ("Message", "ToolDispatch", "ToolDone", "RequestStart", "TextDelta")
        kind, number = chance.choice(kinds), chance.randint(1, 4)
        # Stopped when its first request starts, an agent has asked nothing, and nothing is there to replay.
        script.stop_at = (kind, number + (kind == "RequestStart"))
    if chance.random() < 0.25:
        make_full(script, chance)


def _vary(script: Script, chance: random.Random) -> None:
    """Draw how an agent over the SDK asks."""
    for copies in script.tasks.values():
        for turns in copies:
            for turn in turns:
                turn.how, turn.counts = chance.choice(HOWS), chance.random() < 0.15


def add_prompt(script: Script) -> None:
    """Give the agent itself one more task."""
    name = f"m{len(script.prompts)}"
    script.prompts.append(name)
    script.tasks[name] = [[]]


def add_turn(script: Script, task: str) -> None:
    """Let the agents with a task ask once more."""
    for copy, turns in enumerate(script.tasks[task]):
        drawn_at = len(turns) + copy + script.seed
        thinks = script.kind == "loop" and drawn_at % 7 == 0
        turns.append(Turn(words=f"on {WORDS[drawn_at % len(WORDS)]}", thinks=thinks))


def add_call(script: Script, task: str, chance: random.Random) -> None:
    """Let the model call one more tool in the last turn of a task."""
    for copy, turns in enumerate(script.tasks[task]):
        place = f"{task} {copy} {len(turns)} {len(turns[-1].calls)} {chance.choice(WORDS)}"
        made: dict[str, dict[str, Any]] = {
            "look": {"where": place},
            "write": {"what": place},
            "count": {"number": chance.choice((1, "3", "three", 2.0)), "of": place},
            "fall": {"how": place},
            "wait": {"what": place},
            "missing": {"what": place},
        }
        name = chance.choice(["look", "look", "look", "write", "write", "count", "fall", "wait"])
        name = "missing" if chance.random() < 0.03 else name
        turns[-1].calls.append(Call(name, made[name]))


def add_agents(script: Script, task: str, chance: random.Random) -> None:
    """Let the last turn of a task start one more agent, or several with the very same task."""
    for turns in script.tasks[task]:
        count = chance.choice((1, 1, 2, 3))
        name = f"{task}{'abc'[len(turns) % 3]}{len(script.tasks)}"
        script.tasks[name] = [[] for _ in range(count)]
        can_leave = depth_of(task) == 0 and script.kind == "loop"
        beside = can_leave and count == 1 and chance.random() < 0.5
        for _ in range(count):
            turns[-1].calls.append(Call("agent", {}, name, beside))
        for _ in range(chance.choice((0, 1, 1))):
            add_turn(script, name)
            add_call(script, name, chance)
            if depth_of(name) < 2 and chance.random() < 0.3:
                add_agents(script, name, chance)


def add_fault(script: Script, chance: random.Random) -> None:
    """Let something go wrong before an answer."""
    places = [turn for copies in script.tasks.values() for turns in copies for turn in turns]
    turn = chance.choice(places)
    if len(turn.faults) < 2:
        turn.faults.append(chance.choice(FAULTS))


def make_full(script: Script, chance: random.Random) -> None:
    """Let the window be full at a turn, after one of many words."""
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
SUMMARY = "This conversation has got too long and will go on from a summary"


@dataclass(frozen=True)
class Step:
    """An answer of the model: the turn of an agent with a task."""

    task: str
    copy: int
    turn: int
    """From 0."""

    def __str__(self) -> str:
        return f"{self.task}-{self.copy}-{self.turn}"


def last_step(messages: Sequence[dict[str, Any]]) -> Step | str:
    """Return the last answer that a request repeats, or the task that it begins with."""
    for each in reversed(messages):
        told = text_of(each["content"])
        if each["role"] == "user" and (found := TASK.search(told)):
            return found[1]
        if (each["role"] == "assistant" or "So far: Step" in told) and (
            steps := list(STEP.finditer(told))
        ):
            return Step(steps[-1][1], int(steps[-1][2]), int(steps[-1][3]))
    return "nothing"


def step_asked(body: dict[str, Any]) -> Step | str:
    """Return the step that a request asks for; of its first one only the task is known."""
    last = last_step(body["messages"])
    return last if isinstance(last, str) else Step(last.task, last.copy, last.turn + 1)


class Model:
    """Says what a script says; safe to share between threads."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.steps: list[Step] = []
        """What was said, in its order."""
        self._begun: dict[str, int] = {}
        self._failed: dict[Step, int] = {}
        self._lock, self._chance = threading.Lock(), random.Random(script.seed)

    def reply(self, path: str, body: dict[str, Any]) -> tuple[Reply, float]:
        """Return what is sent for a request, and how long it takes."""
        with self._lock:
            takes_s = self._chance.choice((0, 0, 0.001, 0.003))
            if path.endswith("/count_tokens"):
                return _json({"input_tokens": len(json.dumps(body))}), takes_s
            if refused := fault_of_request(body):
                return error(400, "invalid_request_error", text=refused), takes_s
            return self._said(body), takes_s

    def _said(self, body: dict[str, Any]) -> Reply:
        is_streamed = bool(body.get("stream"))
        if SUMMARY in text_of(body["messages"][-1]["content"]):
            told = message(text(f"So far: Step {last_step(body['messages'])}"), usage=_usage(400))
            return streamed(told) if is_streamed else whole(told)
        step = step_asked(body)
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
        return streamed(answer) if is_streamed else whole(answer)

    def _message(self, step: Step, turn: Turn, body: dict[str, Any]) -> dict[str, Any]:
        filler = " filled" * 500 if turn.full else ""
        content = [text(f"Step {step} {turn.words}{filler}")]
        if turn.thinks:
            content.insert(0, {"type": "thinking", "thinking": "Hm", "signature": "c2lnbmVkIQ=="})
        for number, each in enumerate(turn.calls):
            given = dict(each.input)
            if each.task:
                given = {"agent": "digger", "prompt": f"Task {each.task}. Go."}
                given |= {"run_in_background": True} if each.background else {}
            content.append(call(f"toolu_{step}-{number}", each.tool, **given))
        owes = any(tool["name"] == "structured_output" for tool in body.get("tools", []))
        if not turn.calls and owes:
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


class Serving:
    """A loopback HTTP server for one model after the other."""

    def __init__(self) -> None:
        self.model = Model(Script(0, "loop"))
        serving = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                reply, takes_s = serving.model.reply(self.path.partition("?")[0], body)
                time.sleep(takes_s)
                data = b"".join(reply.pieces)
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
def serving() -> Iterator[Serving]:
    """Serve models over HTTP on the loopback interface."""
    server = Serving()
    server._server.start()
    try:
        yield server
    finally:
        server.close()
