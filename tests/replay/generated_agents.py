"""The agents that generated scripts drive: an agent of the agent loop, and plain agents that use only the SDK.

The agents do what the model requests. A `Change` is one difference at one place, as between two versions of an agent.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import random
import threading
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
    AgentDefinition,
    AgentOptions,
    Consent,
    Context,
    Conversation,
    Event,
    Hook,
    Inbox,
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
from tests.replay.generated_scripts import Script, Step, Turn, requested_step
from tests.replay.nested_agents import ANYTHING, TLS, Noise, Noisy, by_lane, noisy

ChangeKind = Literal[
    "system", "result", "schema", "option", "dropped", "added", "swapped", "model", "header",
    "denied", "text",
]  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A difference between two versions of an agent."""

    kind: ChangeKind
    step: Step | str | None = None
    """The step of a plain agent's first request that shows the change, or only its task if that request is the first of
    the task. For an agent of the agent loop: None if the complete run is affected.
    """
    call: str = ""
    """The ID of the tool call whose result changes."""
    tool: str = ""
    """The name of the tool that changes."""
    value: Any = None


@dataclass
class RunResult:
    """The observable results of a run."""

    session_id: str = ""
    results: list[str] = field(default_factory=list)
    """The return values."""
    events: dict[str, list[str]] = field(default_factory=dict)
    """Events and intermediate results, by lane or by response."""


SYSTEM = "You dig."


# Agents of the agent loop


class Found(BaseModel):
    """The structured output."""

    found: str


def _tools(change: Change | None) -> tuple[Tool, ...]:
    def changed_result(name: str, argument: str, answer: str) -> str:
        changes = (
            change and change.kind == "result" and (change.tool, change.value) == (name, argument)
        )
        return f"{answer}!" if changes else answer

    @tool(read_only=True)
    async def look(where: str) -> str:
        """Look somewhere."""
        await asyncio.sleep(0)
        return changed_result("look", where, f"nothing in {where}")

    @tool(subject="what")
    def write(what: str) -> str:
        """Write something."""
        return changed_result("write", what, f"wrote {what}")

    @tool(read_only=True)
    def count(number: int, of: str) -> str:
        """Count something."""
        return changed_result("count", of, f"{number} of {of}")

    @tool(read_only=True)
    def fall(how: str) -> str:
        """Fall."""
        raise RuntimeError(changed_result("fall", how, f"ouch {how}"))

    @tool(read_only=True)
    async def wait(what: str) -> str:
        """Wait for something."""
        await asyncio.sleep(0.002)
        return changed_result("wait", what, f"{what} came")

    tools = [look, write, count, fall, wait]
    if change and change.kind == "schema":
        tools = [_with_changed_schema(each) if each.name == change.tool else each for each in tools]
    if change and change.kind == "swapped" and change.tool:
        at = [each.name for each in tools].index(change.tool)
        tools[at], tools[at - 1] = tools[at - 1], tools[at]
    system = f"{SYSTEM} Deep." if change and change.kind == "system" and change.step else SYSTEM
    return (*tools, sub_agents([AgentDefinition("digger", "Digs.", system=system)], depth_max=3))


def _with_changed_schema(one: Tool) -> Tool:
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
    """An agent of the agent loop."""

    def __init__(
        self,
        script: Script,
        url: str | None = None,
        change: Change | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.script, self.url, self.change, self.noise = script, url, change, noise
        self.ran = RunResult()
        self._abort, self._inbox = Abort(), Inbox()
        self._events: list[Event] = []
        self._seen: dict[str, int] = {}

    async def answer(self) -> list[str]:
        """Run the tasks of the script, one after the other, and return their results."""
        inner = DefaultAsyncHttpxClient(verify=TLS)
        async with AsyncAnthropic(api_key=KEY, base_url=self.url, http_client=inner) as client:
            agentobs.record(client)
            if self.noise is not None:
                inner._transport = Noisy(inner._transport, self.noise)
            tools, conversation = _tools(self.change), Conversation()
            world = self._world(client, tools)
            with agentobs.session("generated") as session:
                self.ran.session_id = session.session_id
                for number, task in enumerate(self._prompts()):
                    self._modify_conversation(conversation, task)
                    running = run(
                        f"Task {task}. Go.",
                        world=world,
                        options=self._options(number == len(self.script.prompts) - 1),
                        tools=tools,
                        conversation=conversation,
                    )
                    async for event in running:
                        self._events.append(event)
                        self._act_from_outside(event)
                    last = self._events[-1]
                    assert isinstance(last, Result)
                    await finish(conversation)
                    # A run does not wait for background agents, so their last events may come after its end.
                    self._events.extend(conversation.background_events.take())
                    self.ran.results.append(f"{last.terminal_reason}: {last.text} {last.output}")
        self.ran.events = by_lane(self._events)
        return self.ran.results

    def _world(self, client: AsyncAnthropic, tools: Sequence[Tool]) -> Any:
        world = live_world(
            client,
            tools,
            person=self._person if self.script.asks_person else None,
            inbox=self._inbox,
            abort=self._abort,
            hooks=HOOKS if self.script.hooked else (),
        )
        if self.url is not None:
            world = replace(world, sleep=_no_wait)
        return world if self.noise is None else noisy(world, self.noise)

    def _options(self, is_last: bool) -> AgentOptions:
        script, change = self.script, self.change
        rules: tuple[Rule, ...] = ()
        if _has_kind(change, "denied"):
            assert change is not None
            rules = (Rule("deny", change.tool, None, "user"),)
        permissions = replace(Permissions() if script.asks_person else ANYTHING, rules=rules)
        more: dict[str, Any] = {}
        if script.compacts:
            more["context"] = SMALL
        if script.output and is_last:
            more["output"] = Found
        if _has_kind(change, "option"):
            assert change is not None
            more |= change.value
        whole_system = _has_kind(change, "system") and change is not None and not change.step
        return AgentOptions(
            **{
                "model": f"{MODEL}-b" if _has_kind(change, "model") else MODEL,
                "max_tokens": 400,
                "system": f"{SYSTEM}." if whole_system else SYSTEM,
                "permissions": permissions,
                "hooks": HOOKS if script.hooked else (),
                "stream": script.streams,
                "betas": ("digging-2026-11-01",) if _has_kind(change, "header") else (),
                **more,
            }
        )

    def _prompts(self) -> list[str]:
        prompts = list(self.script.prompts)
        if _has_kind(self.change, "dropped"):
            del prompts[-1]
        if _has_kind(self.change, "added"):
            prompts.append("more")
        if _has_kind(self.change, "swapped") and self.change and not self.change.tool:
            prompts.reverse()
        return prompts

    def _modify_conversation(self, conversation: Conversation, task: str) -> None:
        """Modify the conversation if the change requires it."""
        if _has_kind(self.change, "text") and self.change and self.change.step == task:
            message = json.loads(json.dumps(conversation.messages[-1]))
            message["content"][0]["text"] += "?"
            conversation.messages = (*conversation.messages[:-1], message)

    def _person(self, consent: Consent) -> Reply:
        assert self.url is not None, "the replay requested an approval"
        draw = zlib.crc32(json.dumps(consent.about["input"]).encode()) % 3
        return Reply(draw > 0, reason="Not that." if draw == 0 else "")

    def _act_from_outside(self, event: Event) -> None:
        """Steer and stop the run as the script specifies; in a replay, these actions come from the recording."""
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


def _has_kind(change: Change | None, kind: ChangeKind) -> bool:
    return change is not None and change.kind == kind


# Agents that use only the SDK

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
Dialogue = Generator[Messages | Calls, Any, str]
"""A generator that yields messages to send or tool calls to run; its caller sends requests and waits."""


class PlainAgent:
    """An agent on the SDK, which is recorded only through `agentobs.record(client)`."""

    def __init__(
        self,
        script: Script,
        url: str | None = None,
        change: Change | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.script, self.url, self.change = script, url, change
        self.noise = noise and random.Random(noise.random())
        self.ran = RunResult()

    def answer(self) -> Any:
        """Run the tasks of the script in one conversation. For an async agent, return an awaitable."""
        return self._answer_async() if self.script.kind == "async" else self._answer()

    def _dialogue(self, tasks: Sequence[str]) -> Dialogue:
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
        if _has_kind(self.change, "dropped") and self.change and self.change.step is None:
            del prompts[-1]
        if _has_kind(self.change, "added") and self.change and self.change.step is None:
            prompts.append("more")
        if _has_kind(self.change, "swapped") and self.change and self.change.step is None:
            prompts.reverse()
        return prompts

    def _arguments(self, messages: Messages) -> dict[str, Any]:
        """Return the arguments of a request, modified if the change affects it."""
        request: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": 400,
            "system": SYSTEM,
            "messages": messages,
            "tools": DECLARED,
        }
        change = self.change
        if change is None or change.step != self._step(messages):
            return request
        match change.kind:
            case "system":
                request["system"] = f"{SYSTEM[:-1]}  now."
            case "schema":
                tools = json.loads(json.dumps(DECLARED))
                found = next(each for each in tools if each["name"] == change.tool)
                found["input_schema"]["properties"]["more"] = {"type": "string"}
                request["tools"] = tools
            case "option":
                request |= change.value
            case "model":
                request["model"] = f"{MODEL}-b"
            case "header":
                request["extra_headers"] = {"anthropic-beta": "digging-2026-11-01"}
            case "text":
                history = json.loads(json.dumps(messages))
                last = [each for each in history if each["role"] == "assistant"][-1]
                last["content"][0]["text"] += "?"
                request["messages"] = history
            case "swapped":
                history = json.loads(json.dumps(messages))
                history[-1]["content"].reverse()
                request["messages"] = history
            case _:
                pass
        return request

    def _step(self, messages: Messages) -> Step | str:
        return requested_step({"messages": messages})

    def _turn(self, messages: Messages) -> tuple[Turn, bool]:
        """Return the turn for the next request, and whether to count its tokens first."""
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

    def _executed(self, call: dict[str, Any]) -> str:
        return f"{call['name']} of {json.dumps(call['input'], ensure_ascii=False)}"

    def _task(self, call: dict[str, Any]) -> str:
        return str(call["input"]["prompt"]).removeprefix("Task ").partition(".")[0]

    def _note(self, content: list[dict[str, Any]], lines: list[str]) -> None:
        self.ran.events[str(content[0]["text"])[:24]] = lines

    def _failed(self, messages: Messages, error: Exception) -> None:
        step = self._step(messages)
        task = step if isinstance(step, str) else step.task
        line = f"{type(error).__name__} {getattr(error, 'status_code', '')} {error}"
        lines = self.ran.events.setdefault(f"failed {task}", [])
        lines.append(line)
        lines.sort()

    # Synchronous agents, with or without threads

    def _answer(self) -> list[str]:
        http = DefaultHttpxClient(verify=TLS)
        with Anthropic(api_key=KEY, base_url=self.url, http_client=http) as client:
            agentobs.record(client)
            self._client: Any = client
            with agentobs.session("generated") as session:
                self.ran.session_id = session.session_id
                self.ran.results.append(self._drive(self._dialogue(self._prompts())))
        return self.ran.results

    def _drive(self, dialogue: Dialogue) -> str:
        results: Any = None
        while True:
            try:
                yielded = dialogue.send(results)
            except StopIteration as ended:
                return str(ended.value)
            results = self._work(yielded) if "type" in yielded[0] else self._ask(yielded)

    def _ask(self, messages: Messages) -> list[dict[str, Any]]:
        for _ in range(4):
            try:
                self._pause()
                return self._ask_once(messages)
            except (APIStatusError, httpx2.TransportError) as error:
                self._failed(messages, error)
        return [{"type": "text", "text": "It failed."}]

    def _ask_once(self, messages: Messages) -> list[dict[str, Any]]:
        turn, counts = self._turn(messages)
        request, lines = self._arguments(messages), []
        if counts:
            counted = self._client.messages.count_tokens(model=MODEL, messages=messages)
            lines.append(counted.to_json())
        if turn.method == "stream":
            with self._client.messages.stream(**request) as stream:
                lines += [event.type for event in stream]
                response = stream.get_final_message()
        elif turn.method == "events":
            with self._client.messages.create(stream=True, **request) as stream:
                content = folded_content([event.to_dict() for event in stream], lines)
                self._note(content, lines)
                return content
        elif turn.method == "raw":
            raw = self._client.messages.with_raw_response.create(**request)
            response = raw.parse()
            lines.append(f"{raw.status_code} {raw.headers['content-type']}")
        else:
            response = self._client.messages.create(**request)
        content = [block.to_dict() for block in response.content]
        self._note(content, [*lines, response.to_json()])
        return content

    def _work(self, calls: Calls) -> list[dict[str, Any]]:
        return [
            self._result(call, content)
            for call, content in zip(calls, self._contents(calls), strict=True)
        ]

    def _contents(self, calls: Calls) -> list[str]:
        agents = [call for call in calls if call["name"] == "agent"]
        if self.script.kind == "threads" and len(agents) > 1:
            all_started = threading.Event()
            with ThreadPoolExecutor(len(agents)) as pool:
                running = {
                    call["id"]: pool.submit(
                        contextvars.copy_context().run, self._sub_agent_in_thread, call, all_started
                    )
                    for call in agents
                }
                all_started.set()
            ended = {name: future.result() for name, future in running.items()}
        else:
            ended = {call["id"]: self._sub_agent(call) for call in agents}
        return [ended.get(call["id"]) or self._executed(call) for call in calls]

    def _sub_agent(self, call: dict[str, Any]) -> str:
        return self._drive(self._dialogue([self._task(call)]))

    def _sub_agent_in_thread(self, call: dict[str, Any], all_started: threading.Event) -> str:
        # A recorded sub-agent takes longer than starting the others, as with a provider that is not local. If it ended
        # earlier, the recording would look as if the agent had waited for it.
        if self.noise is None:
            all_started.wait(60)
        return self._sub_agent(call)

    def _pause(self) -> None:
        if self.noise is not None and self.script.kind == "threads":
            time.sleep(self.noise.choice((0, 0, 0.001, 0.003)))

    # Asynchronous agents

    async def _answer_async(self) -> list[str]:
        http = DefaultAsyncHttpxClient(verify=TLS)
        async with AsyncAnthropic(api_key=KEY, base_url=self.url, http_client=http) as client:
            agentobs.record(client)
            self._client = client
            async with agentobs.session("generated") as session:
                self.ran.session_id = session.session_id
                self.ran.results.append(await self._drive_async(self._dialogue(self._prompts())))
        return self.ran.results

    async def _drive_async(self, dialogue: Dialogue) -> str:
        results: Any = None
        while True:
            try:
                yielded = dialogue.send(results)
            except StopIteration as ended:
                return str(ended.value)
            if "type" in yielded[0]:
                results = await self._work_async(yielded)
            else:
                results = await self._ask_async(yielded)

    async def _ask_async(self, messages: Messages) -> list[dict[str, Any]]:
        for _ in range(4):
            try:
                await self._pause_async()
                return await self._ask_once_async(messages)
            except (APIStatusError, httpx2.TransportError) as error:
                self._failed(messages, error)
        return [{"type": "text", "text": "It failed."}]

    async def _ask_once_async(self, messages: Messages) -> list[dict[str, Any]]:
        turn, counts = self._turn(messages)
        request, lines = self._arguments(messages), []
        if counts:
            counted = await self._client.messages.count_tokens(model=MODEL, messages=messages)
            lines.append(counted.to_json())
        if turn.method == "stream":
            async with self._client.messages.stream(**request) as stream:
                lines += [event.type async for event in stream]
                response = await stream.get_final_message()
        elif turn.method == "events":
            async with await self._client.messages.create(stream=True, **request) as stream:
                content = folded_content([event.to_dict() async for event in stream], lines)
                self._note(content, lines)
                return content
        elif turn.method == "raw":
            raw = await self._client.messages.with_raw_response.create(**request)
            response = await raw.parse()
            lines.append(f"{raw.status_code} {raw.headers['content-type']}")
        else:
            response = await self._client.messages.create(**request)
        content = [block.to_dict() for block in response.content]
        self._note(content, [*lines, response.to_json()])
        return content

    async def _work_async(self, calls: Calls) -> list[dict[str, Any]]:
        agents = [call for call in calls if call["name"] == "agent"]
        dialogues = [self._sub_agent_async(call["id"], self._task(call)) for call in agents]
        if self.script.seed % 2:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(dialogue) for dialogue in dialogues]
            ended = [task.result() for task in running]
        else:
            ended = list(await asyncio.gather(*dialogues))
        of = dict(zip([call["id"] for call in agents], ended, strict=True))
        return [self._result(call, of.get(call["id"]) or self._executed(call)) for call in calls]

    async def _sub_agent_async(self, tool_use_id: str, task: str) -> str:
        return await self._drive_async(self._dialogue([task]))

    async def _pause_async(self) -> None:
        if self.noise is not None:
            for _ in range(self.noise.choice((0, 0, 1, 3, 20))):
                await asyncio.sleep(0)


def folded_content(events: list[dict[str, Any]], lines: list[str]) -> list[dict[str, Any]]:
    """Return the content that results from the events of a stream, and append each event to `lines`."""
    content: list[dict[str, Any]] = []
    partial_inputs: dict[int, str] = {}
    for event in events:
        lines.append(json.dumps(event, ensure_ascii=False))
        if event["type"] == "content_block_start":
            content.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta, at = event["delta"], event["index"]
            if delta["type"] == "text_delta":
                content[at]["text"] += delta["text"]
            elif delta["type"] == "input_json_delta":
                partial_inputs[at] = partial_inputs.get(at, "") + delta["partial_json"]
    for at, partial_json in partial_inputs.items():
        content[at]["input"] = json.loads(partial_json)
    return content


AnyAgent = LoopAgent | PlainAgent


def agent_of(
    script: Script,
    url: str | None = None,
    change: Change | None = None,
    noise: Noise | None = None,
) -> AnyAgent:
    """Return the agent that runs a script."""
    agent_class = LoopAgent if script.kind == "loop" else PlainAgent
    return agent_class(script, url, change, noise)


def run_live(script: Script, url: str) -> RunResult:
    """Run an agent against a provider."""
    agent = agent_of(script, url)
    if script.kind in ("loop", "async"):
        asyncio.run(agent.answer())
    else:
        agent.answer()
    return agent.ran


@contextmanager
def recording_into(home: str) -> Iterator[None]:
    """Record everything that runs inside this context."""
    from agentobs.recording.session import start_recorder

    agentobs.stop_recorder()
    start_recorder(home)
    try:
        yield
    finally:
        assert agentobs.stop_recorder()


__all__ = ["AnyAgent", "Callable", "Change", "RunResult", "agent_of", "recording_into", "run_live"]
