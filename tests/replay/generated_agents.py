"""The agents that generated scripts drive: one of our own loop, and plain ones over the SDK alone.

They do what the model says. What a later version of them might do otherwise is a `Change`: one, at one place.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import random
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx2
from anthropic import (
    Anthropic,
    APIStatusError,
    AsyncAnthropic,
    DefaultAsyncHttpxClient,
    DefaultHttpxClient,
)
from pydantic import BaseModel

import agentobs
from agentobs.agent import (
    Abort,
    Agent,
    Consent,
    Context,
    Conversation,
    Event,
    Hook,
    Inbox,
    Options,
    Permissions,
    Reply,
    Result,
    Rule,
    SubAgent,
    Tool,
    ToolDispatch,
    finish,
    live_world,
    run,
    sub_agents,
    tool,
)
from agentobs.agent.hooks import table
from tests.agent.provider import MODEL
from tests.replay.agents import KEY
from tests.replay.crowd import ANYTHING, TLS, Noise, Noisy, by_lane, noisy
from tests.replay.generated import Script, Step, Turn, step_asked

ChangeKind = Literal[
    "system", "result", "schema", "option", "dropped", "added", "swapped", "model", "header",
    "denied", "text",
]  # fmt: skip


@dataclass(frozen=True)
class Change:
    """What another version of an agent does otherwise."""

    kind: ChangeKind
    step: Step | str | None = None
    """The first request of a plain agent that it is seen in, or the task that it begins; of our loop, where it is not
    the whole run."""
    call: str = ""
    """The tool call, by its id, whose result is another one."""
    tool: str = ""
    """The tool that it is about."""
    value: Any = None


@dataclass
class Ran:
    """What a run let be seen."""

    session_id: str = ""
    told: list[str] = field(default_factory=list)
    """What it returned."""
    events: dict[str, list[str]] = field(default_factory=dict)
    """What came of it on the way, by lane or by answer."""


SYSTEM = "You dig."


# Of our loop


class Found(BaseModel):
    """What was found."""

    found: str


def _tools(change: Change | None) -> tuple[Tool, ...]:
    def told(name: str, given: str, answer: str) -> str:
        changes = (
            change and change.kind == "result" and (change.tool, change.value) == (name, given)
        )
        return f"{answer}!" if changes else answer

    @tool(read_only=True)
    async def look(where: str) -> str:
        """Look somewhere."""
        await asyncio.sleep(0)
        return told("look", where, f"nothing in {where}")

    @tool(subject="what")
    def write(what: str) -> str:
        """Write something."""
        return told("write", what, f"wrote {what}")

    @tool(read_only=True)
    def count(number: int, of: str) -> str:
        """Count something."""
        return told("count", of, f"{number} of {of}")

    @tool(read_only=True)
    def fall(how: str) -> str:
        """Fall."""
        raise RuntimeError(told("fall", how, f"ouch {how}"))

    @tool(read_only=True)
    async def wait(what: str) -> str:
        """Wait for something."""
        await asyncio.sleep(0.002)
        return told("wait", what, f"{what} came")

    made = [look, write, count, fall, wait]
    if change and change.kind == "schema":
        made = [_otherwise(each) if each.name == change.tool else each for each in made]
    if change and change.kind == "swapped" and change.tool:
        at = [each.name for each in made].index(change.tool)
        made[at], made[at - 1] = made[at - 1], made[at]
    system = f"{SYSTEM} Deep." if change and change.kind == "system" and change.step else SYSTEM
    return (*made, sub_agents([Agent("digger", "Digs.", system=system)], depth_max=3))


def _otherwise(one: Tool) -> Tool:
    schema = json.loads(json.dumps(one.declaration["input_schema"]))
    schema["properties"]["more"] = {"type": "string"}
    return replace(one, declaration={**one.declaration, "input_schema": schema})


HOOKS = table(
    [
        Hook("user_prompt_submit", lambda payload: {"context": "Be quick."}, name="prompt"),
        Hook("post_tool_use", lambda payload: {"context": "Look closer."}, when="look", once=True),
        Hook(
            "pre_tool_use",
            lambda payload: (
                {"outcome": "blocking", "reason": "Not there."}
                if zlib.crc32(str(payload["input"]).encode()) % 3 == 0
                else None
            ),
            when="wait",
            name="guard",
        ),
        Hook("sub_agent_stop", lambda payload: None, name="end"),
    ]
)
SMALL = Context(window_tokens=3000, summary_tokens=500, reserve_tokens=500, kept_results=1)


class LoopAgent:
    """An agent of our own loop."""

    def __init__(
        self,
        script: Script,
        url: str | None = None,
        change: Change | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.script, self.url, self.change, self.noise = script, url, change, noise
        self.ran = Ran()
        self._abort, self._inbox = Abort(), Inbox()
        self._events: list[Event] = []
        self._seen: dict[str, int] = {}

    async def answer(self) -> list[str]:
        """Do the tasks of the script, one after the other; return what came of them."""
        inner = DefaultAsyncHttpxClient(verify=TLS)
        async with AsyncAnthropic(api_key=KEY, base_url=self.url, http_client=inner) as client:
            agentobs.record(client)
            if self.noise is not None:
                inner._transport = Noisy(inner._transport, self.noise)
            tools, talk = _tools(self.change), Conversation()
            world = self._world(client, tools)
            with agentobs.session("generated") as session:
                self.ran.session_id = session.session_id
                for number, task in enumerate(self._prompts()):
                    self._enter(talk, task)
                    running = run(
                        f"Task {task}. Go.",
                        world=world,
                        options=self._options(number == len(self.script.prompts) - 1),
                        tools=tools,
                        conversation=talk,
                    )
                    async for event in running:
                        self._events.append(event)
                        self._meanwhile(event)
                    await finish(talk)
                    last = self._events[-1]
                    assert isinstance(last, Result)
                    self.ran.told.append(f"{last.terminal_reason}: {last.text} {last.output}")
        self.ran.events = by_lane(self._events)
        return self.ran.told

    def _world(self, client: AsyncAnthropic, tools: Sequence[Tool]) -> Any:
        world = live_world(
            client,
            tools,
            person=self._person if self.script.asks else None,
            inbox=self._inbox,
            abort=self._abort,
            hooks=HOOKS if self.script.hooked else (),
        )
        if self.url is not None:
            world = replace(world, sleep=_no_wait)
        return world if self.noise is None else noisy(world, self.noise)

    def _options(self, is_last: bool) -> Options:
        script, change = self.script, self.change
        rules: tuple[Rule, ...] = ()
        if _is(change, "denied"):
            assert change is not None
            rules = (Rule("deny", change.tool, None, "user"),)
        permissions = replace(Permissions() if script.asks else ANYTHING, rules=rules)
        more: dict[str, Any] = {}
        if script.compacts:
            more["context"] = SMALL
        if script.output and is_last:
            more["output"] = Found
        if _is(change, "option"):
            assert change is not None
            more |= change.value
        whole_system = _is(change, "system") and change is not None and not change.step
        return Options(
            **{
                "model": f"{MODEL}-b" if _is(change, "model") else MODEL,
                "max_tokens": 400,
                "system": f"{SYSTEM}." if whole_system else SYSTEM,
                "permissions": permissions,
                "hooks": HOOKS if script.hooked else (),
                "stream": script.streams,
                "betas": ("digging-2026-11-01",) if _is(change, "header") else (),
                **more,
            }
        )

    def _prompts(self) -> list[str]:
        prompts = list(self.script.prompts)
        if _is(self.change, "dropped"):
            del prompts[-1]
        if _is(self.change, "added"):
            prompts.append("more")
        if _is(self.change, "swapped") and self.change and not self.change.tool:
            prompts.reverse()
        return prompts

    def _enter(self, talk: Conversation, task: str) -> None:
        """Change what was said before, where that is the change."""
        if _is(self.change, "text") and self.change and self.change.step == task:
            said = json.loads(json.dumps(talk.messages[-1]))
            said["content"][0]["text"] += "?"
            talk.messages = (*talk.messages[:-1], said)

    def _person(self, consent: Consent) -> Reply:
        assert self.url is not None, "a person was asked in a replay"
        draw = zlib.crc32(json.dumps(consent.about["input"]).encode()) % 3
        return Reply(draw > 0, reason="Not that." if draw == 0 else "")

    def _meanwhile(self, event: Event) -> None:
        """Say and stop from outside what the script says; in a replay nobody is outside."""
        if self.url is None:
            return
        script, inner = self.script, event.event if isinstance(event, SubAgent) else event
        name = type(inner).__name__
        self._seen[name] = self._seen.get(name, 0) + 1
        if (name, self._seen[name]) == script.stop_at:
            self._abort.stop()
        if isinstance(event, ToolDispatch) and self._seen[name] == script.steer_at:
            self._inbox.steer("Mind the time.")
        if script.follow_up and isinstance(event, ToolDispatch) and self._seen[name] == 1:
            self._inbox.follow_up("And then?")
        if isinstance(event, Result):
            self._abort.clear()


async def _no_wait(seconds: float) -> None:
    await asyncio.sleep(0)


def _is(change: Change | None, kind: ChangeKind) -> bool:
    return change is not None and change.kind == kind


# Over the SDK alone

DECLARED: list[dict[str, Any]] = [
    {
        "name": name,
        "description": f"Have it: {name}.",
        "input_schema": {"type": "object", "properties": {argument: {"type": "string"}}},
    }
    for name, argument in (
        ("look", "where"), ("write", "what"), ("count", "of"), ("fall", "how"), ("wait", "what"),
        ("agent", "prompt"),
    )
]  # fmt: skip
Messages = list[dict[str, Any]]
Calls = list[dict[str, Any]]
Talk = Generator[Messages | Calls, Any, str]
"""An agent that yields what it asks the model, or the calls whose results it wants; driven by whoever can wait."""


class PlainAgent:
    """An agent over the SDK, recorded by `agentobs.record(client)` and nothing else."""

    def __init__(
        self,
        script: Script,
        url: str | None = None,
        change: Change | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.script, self.url, self.change = script, url, change
        self.noise = noise and random.Random(noise.random())
        self.ran = Ran()

    def answer(self) -> Any:
        """Do the tasks of the script in one conversation; of an async one, return what is to be awaited."""
        return self._answer_async() if self.script.kind == "async" else self._answer()

    def _talk(self, tasks: Sequence[str]) -> Talk:
        messages: Messages = []
        for task in tasks:
            messages.append({"role": "user", "content": f"Task {task}. Go."})
            while True:
                answer = yield list(messages)
                messages.append({"role": "assistant", "content": answer})
                calls = [block for block in answer if block["type"] == "tool_use"]
                if not calls:
                    break
                results = yield calls
                messages.append({"role": "user", "content": results})
        return str(messages[-1]["content"][0]["text"]) if messages else ""

    def _prompts(self) -> list[str]:
        prompts = list(self.script.prompts)
        if _is(self.change, "dropped") and self.change and self.change.step is None:
            del prompts[-1]
        if _is(self.change, "added") and self.change and self.change.step is None:
            prompts.append("more")
        if _is(self.change, "swapped") and self.change and self.change.step is None:
            prompts.reverse()
        return prompts

    def _arguments(self, messages: Messages) -> dict[str, Any]:
        """Return the body of a request, otherwise than it was where that is the change."""
        asked: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": 400,
            "system": SYSTEM,
            "messages": messages,
            "tools": DECLARED,
        }
        change = self.change
        if change is None or change.step != self._step(messages):
            return asked
        match change.kind:
            case "system":
                asked["system"] = f"{SYSTEM[:-1]}  now."
            case "schema":
                tools = json.loads(json.dumps(DECLARED))
                found = next(each for each in tools if each["name"] == change.tool)
                found["input_schema"]["properties"]["more"] = {"type": "string"}
                asked["tools"] = tools
            case "option":
                asked |= change.value
            case "model":
                asked["model"] = f"{MODEL}-b"
            case "header":
                asked["extra_headers"] = {"anthropic-beta": "digging-2026-11-01"}
            case "text":
                told = json.loads(json.dumps(messages))
                last = [each for each in told if each["role"] == "assistant"][-1]
                last["content"][0]["text"] += "?"
                asked["messages"] = told
            case "swapped":
                told = json.loads(json.dumps(messages))
                told[-1]["content"].reverse()
                asked["messages"] = told
            case _:
                pass
        return asked

    def _step(self, messages: Messages) -> Step | str:
        return step_asked({"messages": messages})

    def _turn(self, messages: Messages) -> tuple[Turn, bool]:
        """Return how to ask, and whether to have the tokens counted before."""
        step = self._step(messages)
        copies = self.script.tasks.get(step if isinstance(step, str) else step.task, [])
        turn = Turn()
        if isinstance(step, Step):
            turns = copies[step.copy] if step.copy < len(copies) else []
            turn = turns[step.turn] if step.turn < len(turns) else turn
        elif len(copies) == 1:
            turn = (copies[0] or [turn])[0]
        counts = turn.counts
        if self.change and self.change.step == step:
            counts = counts or self.change.kind == "added"
            counts = counts and self.change.kind != "dropped"
        return turn, counts

    def _result(self, call: dict[str, Any], content: str) -> dict[str, Any]:
        change = self.change
        is_error = call["name"] == "fall"
        if change is not None and change.call == call["id"]:
            if change.kind == "denied":
                content, is_error = "You may not.", True
            elif change.kind == "result":
                content += "!"
        return {
            "type": "tool_result",
            "tool_use_id": call["id"],
            "content": content,
            **({"is_error": True} if is_error else {}),
        }

    def _worked(self, call: dict[str, Any]) -> str:
        return f"{call['name']} of {json.dumps(call['input'], ensure_ascii=False)}"

    def _task(self, call: dict[str, Any]) -> str:
        return str(call["input"]["prompt"]).removeprefix("Task ").partition(".")[0]

    def _note(self, content: list[dict[str, Any]], lines: list[str]) -> None:
        self.ran.events[str(content[0]["text"])[:24]] = lines

    def _failed(self, messages: Messages, error: Exception) -> None:
        step = self._step(messages)
        task = step if isinstance(step, str) else step.task
        told = f"{type(error).__name__} {getattr(error, 'status_code', '')} {error}"
        lines = self.ran.events.setdefault(f"failed {task}", [])
        lines.append(told)
        lines.sort()

    # In threads, or in none

    def _answer(self) -> list[str]:
        http = DefaultHttpxClient(verify=TLS)
        with Anthropic(api_key=KEY, base_url=self.url, http_client=http) as client:
            agentobs.record(client)
            self._client: Any = client
            with agentobs.session("generated") as session:
                self.ran.session_id = session.session_id
                self.ran.told.append(self._drive(self._talk(self._prompts())))
        return self.ran.told

    def _drive(self, talk: Talk) -> str:
        given: Any = None
        while True:
            try:
                wanted = talk.send(given)
            except StopIteration as ended:
                return str(ended.value)
            given = self._work(wanted) if "type" in wanted[0] else self._ask(wanted)

    def _ask(self, messages: Messages) -> list[dict[str, Any]]:
        for _ in range(4):
            try:
                self._rest()
                return self._ask_once(messages)
            except (APIStatusError, httpx2.TransportError) as error:
                self._failed(messages, error)
        return [{"type": "text", "text": "It failed."}]

    def _ask_once(self, messages: Messages) -> list[dict[str, Any]]:
        turn, counts = self._turn(messages)
        asked, lines = self._arguments(messages), []
        if counts:
            counted = self._client.messages.count_tokens(model=MODEL, messages=messages)
            lines.append(counted.to_json())
        if turn.how == "stream":
            with self._client.messages.stream(**asked) as stream:
                lines += [event.type for event in stream]
                said = stream.get_final_message()
        elif turn.how == "events":
            with self._client.messages.create(stream=True, **asked) as stream:
                content = folded([event.to_dict() for event in stream], lines)
                self._note(content, lines)
                return content
        elif turn.how == "raw":
            raw = self._client.messages.with_raw_response.create(**asked)
            said = raw.parse()
            lines.append(f"{raw.status_code} {raw.headers['content-type']}")
        else:
            said = self._client.messages.create(**asked)
        content = [block.to_dict() for block in said.content]
        self._note(content, [*lines, said.to_json()])
        return content

    def _work(self, calls: Calls) -> list[dict[str, Any]]:
        return [
            self._result(call, content)
            for call, content in zip(calls, self._contents(calls), strict=True)
        ]

    def _contents(self, calls: Calls) -> list[str]:
        agents = [call for call in calls if call["name"] == "agent"]
        if self.script.kind == "threads" and len(agents) > 1:
            with ThreadPoolExecutor(len(agents)) as pool:
                running = {
                    call["id"]: pool.submit(contextvars.copy_context().run, self._sub_agent, call)
                    for call in agents
                }
            ended = {name: future.result() for name, future in running.items()}
        else:
            ended = {call["id"]: self._sub_agent(call) for call in agents}
        return [ended.get(call["id"]) or self._worked(call) for call in calls]

    def _sub_agent(self, call: dict[str, Any]) -> str:
        return self._drive(self._talk([self._task(call)]))

    def _rest(self) -> None:
        if self.noise is not None and self.script.kind == "threads":
            time.sleep(self.noise.choice((0, 0, 0.001, 0.003)))

    # In an event loop

    async def _answer_async(self) -> list[str]:
        http = DefaultAsyncHttpxClient(verify=TLS)
        async with AsyncAnthropic(api_key=KEY, base_url=self.url, http_client=http) as client:
            agentobs.record(client)
            self._client = client
            async with agentobs.session("generated") as session:
                self.ran.session_id = session.session_id
                self.ran.told.append(await self._drive_async(self._talk(self._prompts())))
        return self.ran.told

    async def _drive_async(self, talk: Talk) -> str:
        given: Any = None
        while True:
            try:
                wanted = talk.send(given)
            except StopIteration as ended:
                return str(ended.value)
            if "type" in wanted[0]:
                given = await self._work_async(wanted)
            else:
                given = await self._ask_async(wanted)

    async def _ask_async(self, messages: Messages) -> list[dict[str, Any]]:
        for _ in range(4):
            try:
                await self._rest_async()
                return await self._ask_once_async(messages)
            except (APIStatusError, httpx2.TransportError) as error:
                self._failed(messages, error)
        return [{"type": "text", "text": "It failed."}]

    async def _ask_once_async(self, messages: Messages) -> list[dict[str, Any]]:
        turn, counts = self._turn(messages)
        asked, lines = self._arguments(messages), []
        if counts:
            counted = await self._client.messages.count_tokens(model=MODEL, messages=messages)
            lines.append(counted.to_json())
        if turn.how == "stream":
            async with self._client.messages.stream(**asked) as stream:
                lines += [event.type async for event in stream]
                said = await stream.get_final_message()
        elif turn.how == "events":
            async with await self._client.messages.create(stream=True, **asked) as stream:
                content = folded([event.to_dict() async for event in stream], lines)
                self._note(content, lines)
                return content
        elif turn.how == "raw":
            raw = await self._client.messages.with_raw_response.create(**asked)
            said = await raw.parse()
            lines.append(f"{raw.status_code} {raw.headers['content-type']}")
        else:
            said = await self._client.messages.create(**asked)
        content = [block.to_dict() for block in said.content]
        self._note(content, [*lines, said.to_json()])
        return content

    async def _work_async(self, calls: Calls) -> list[dict[str, Any]]:
        agents = [call for call in calls if call["name"] == "agent"]
        talks = [self._sub_agent_async(call["id"], self._task(call)) for call in agents]
        if self.script.seed % 2:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(talk) for talk in talks]
            ended = [task.result() for task in running]
        else:
            ended = list(await asyncio.gather(*talks))
        of = dict(zip([call["id"] for call in agents], ended, strict=True))
        return [self._result(call, of.get(call["id"]) or self._worked(call)) for call in calls]

    async def _sub_agent_async(self, tool_use_id: str, task: str) -> str:
        return await self._drive_async(self._talk([task]))

    async def _rest_async(self) -> None:
        if self.noise is not None:
            for _ in range(self.noise.choice((0, 0, 1, 3, 20))):
                await asyncio.sleep(0)


def folded(events: list[dict[str, Any]], lines: list[str]) -> list[dict[str, Any]]:
    """Return the content that events of the provider add up to; notes each as a line."""
    content: list[dict[str, Any]] = []
    typed: dict[int, str] = {}
    for event in events:
        lines.append(json.dumps(event, ensure_ascii=False))
        if event["type"] == "content_block_start":
            content.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta, at = event["delta"], event["index"]
            if delta["type"] == "text_delta":
                content[at]["text"] += delta["text"]
            elif delta["type"] == "input_json_delta":
                typed[at] = typed.get(at, "") + delta["partial_json"]
    for at, told in typed.items():
        content[at]["input"] = json.loads(told)
    return content


AnyAgent = LoopAgent | PlainAgent


def agent_of(
    script: Script,
    url: str | None = None,
    change: Change | None = None,
    noise: Noise | None = None,
) -> AnyAgent:
    """Return the agent that a script is for."""
    made = LoopAgent if script.kind == "loop" else PlainAgent
    return made(script, url, change, noise)


def run_live(script: Script, url: str) -> Ran:
    """Run an agent against a provider."""
    agent = agent_of(script, url)
    if script.kind in ("loop", "async"):
        asyncio.run(agent.answer())
    else:
        agent.answer()
    return agent.ran


@contextmanager
def recording_into(home: str) -> Iterator[None]:
    """Record what runs meanwhile."""
    from agentobs.recording.session import start_recorder

    agentobs.stop_recorder()
    start_recorder(home)
    try:
        yield
    finally:
        assert agentobs.stop_recorder()


__all__ = ["AnyAgent", "Callable", "Change", "Ran", "agent_of", "recording_into", "run_live"]
