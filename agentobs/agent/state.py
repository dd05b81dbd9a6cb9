"""The state of the loop, and the pure functions that take it from one step to the next.

A conversation is a list of messages as the provider wants them: each call that an answer makes has its
result in the message after it. Every function here keeps that true.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel

from agentobs.agent.budget import Budget
from agentobs.agent.context import Context, Progress
from agentobs.agent.events import Result, SubAgent, ToolDone, Transition
from agentobs.agent.hooks import Hook
from agentobs.agent.model.prompt import Rendered, SystemPrompt, as_given, rendered
from agentobs.agent.model.prompt_cache import Lifetime, Sent, marked
from agentobs.agent.model.retry import Breaker
from agentobs.agent.model.thinking import Thinking, request_fields
from agentobs.agent.permissions import Denials, Permissions, Rule
from agentobs.agent.tools import structured_output as output
from agentobs.agent.tools.tool import Tool, declarations
from agentobs.ledger import Meter
from agentobs.provider.messages import is_blank, tool_uses, unthought
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from agentobs.world import Abort

Prompt = str | list[Json]
"""A text, or content blocks."""

Tools = Sequence[Tool] | Callable[[], Sequence[Tool]]
"""The tools, or a function that gives them; it is asked once a turn."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to ask the model, and how far to go."""

    model: str
    """The model's name, as the provider knows it."""
    max_tokens: int = 8192
    """The most tokens of one answer. Our choice: so many the SDK (2.12) lets every model answer unstreamed."""
    system: Prompt | SystemPrompt | Rendered | None = None
    """The system prompt: what stays, or levels and sections."""
    cache: Lifetime | None = "5m"
    """How long the provider is to keep the prompt for the next request; None sends no marks. Our choice: an agent
    sends its whole conversation with each turn, and what is read from the cache costs a tenth."""
    thinking: Thinking | None = None
    """How the model thinks; None leaves that to the provider."""
    max_turns: int | None = None
    """Stop after so many turns that used tools, from 1; None never stops."""
    budget: Budget = field(default_factory=Budget)
    """How much may be spent."""
    context: Context = field(default_factory=Context)
    """How the conversation is kept within the model's window."""
    token_budget: int | None = None
    """How many tokens the model is to say in one interaction: it is asked to go on when it would stop long before."""
    permissions: Permissions = field(default_factory=Permissions)
    """Which tool calls may run; by default those that only read."""
    hooks: tuple[Hook, ...] = ()
    """The table of hooks, as `agentobs.agent.hooks.table` makes it; the live world has to know them, too."""
    output: type[BaseModel] | None = None
    """What the answer has to be; None lets it be text."""
    max_output_retries: int = 5
    """How often the model may be asked again for an output that it owes. Our choice."""
    stream: bool = True
    """Whether answers arrive piece by piece."""
    max_retries: int = 10
    """How often one request is tried again after a failure that may pass; at most 10."""
    unattended: bool = False
    """Whether nobody attends, so that overloads and rate limits are waited for, up to 6 hours for one request."""
    fallback_model: str | None = None
    """The model to ask for the rest of the run after three overloads in a row; None: no other one."""
    max_tokens_raised: int | None = 64_000
    """`max_tokens` of the one more try after an answer was cut; None, or no more than `max_tokens`: there is none.
    Where answers come in one piece it is 21,333 at most."""
    answer_seconds: float | None = 3600.0
    """How long one answer may take to its end, in seconds. Our choice; the SDK bounds only each wait (10 min)."""
    betas: tuple[str, ...] = ()
    """Names of beta features, sent as the `anthropic-beta` header."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request body, such as `temperature` or `speed`; they win over ours."""
    agent: str = "main"
    """The agent's name, as the interaction's span shows it."""


@dataclass(slots=True)
class Conversation:
    """What was said so far. Hand the same one to a second run, and that run goes on from there.

    The loop writes to it with each answer and each round of tool results, so that a run that was stopped
    half-way can be continued, too. It serves one run at a time.
    """

    messages: tuple[Json, ...] = ()
    """Messages, oldest first, as they go to the provider."""
    turns: int = 0
    """Turns that the model has answered; the next one counts on."""
    tool_turns: int = 0
    """Those of them that used tools."""
    grants: frozenset[Rule] = frozenset()
    """What a person permitted for the rest of the conversation."""
    denials: Denials = field(default_factory=Denials)
    """How often the classifier has denied calls."""
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)
    """What all its runs used, to be priced."""
    breaker: Breaker = field(default=Breaker(), compare=False, repr=False)
    """Keeps its requests from a provider that is down."""
    most_tokens: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    """The most tokens that an answer of a model may have, by model, as far as the provider has told it."""
    fell_back_to: str | None = field(default=None, compare=False)
    """The model that another one fell back to: what it thought is signed by it."""
    is_begun: bool = False
    """Whether the hooks of its beginning have been fired."""
    hooks_done: frozenset[str] = frozenset()
    """The names of the `once` hooks that have run."""
    sections: dict[str, str | None] = field(default_factory=dict, compare=False, repr=False)
    """What the sections of the system prompt say that stay for the conversation, by name."""
    latched: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The settings of its first request that have to stay, or the provider's cache misses."""
    tool_names: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The tools that the model was told of, in their order."""
    thought_ns: int | None = field(default=None, compare=False, repr=False)
    """When the model last answered, once it has thought; nanoseconds since 1970."""
    context: Progress = field(default_factory=Progress, compare=False, repr=False)
    """How long it is, and how often it was made shorter."""
    children: dict[str, Conversation] = field(default_factory=dict, repr=False)
    """The conversations of the agents that it has started, by the id of the tool call that did."""
    background: dict[str, Background] = field(default_factory=dict, compare=False, repr=False)
    """The agents that it started in the background and whose result has not entered it yet, by the same id."""

    def unlatch(self) -> None:
        """Let the next request go as its options say, and ask for all sections anew: for a change that is wanted."""
        self.sections, self.latched, self.tool_names = {}, {}, ()


@dataclass(slots=True, eq=False)
class Background:
    """An agent that works in the background."""

    agent_id: str
    """The id of the call that started it."""
    agent: str
    """Its name."""
    talk: Conversation
    abort: Abort
    """Stops it alone."""
    task: asyncio.Task[Result]
    events: deque[SubAgent]
    """What has happened in it, to be told when its result enters the conversation."""
    began: Denials = field(default_factory=Denials)
    """The denials that it began with, see `agentobs.agent.tool_calls.trust`."""

    @property
    def is_left(self) -> bool:
        """Whether it will not get to its end: the event loop that it worked in has ended, or is another one."""
        if not self.task.done():
            return self.task.get_loop() is not asyncio.get_running_loop()
        return self.task.cancelled() or self.task.exception() is not None

    @property
    def result(self) -> Result | None:
        """Its result, once it has ended; None where it was left."""
        return None if self.is_left or not self.task.done() else self.task.result()


@dataclass(frozen=True, slots=True)
class State:
    """Where the loop stands; replaced whole at each step."""

    phase: Literal["awaiting_model", "dispatching_tools"]
    """What is under way."""
    messages: tuple[Json, ...]
    """The conversation: what the next request holds, or, while tools run, with the answer that calls them."""
    turn: int
    """The turn, within the conversation, from 1."""
    tool_turns: int
    """Turns of this interaction that used tools so far."""
    output_retries: int
    """How often the model was asked again for its output in this interaction."""
    transition: Transition
    """Why the model was asked last."""
    max_tokens: int | None = None
    """The raised limit of this answer, where it was cut at that of the options."""
    continuations: int = 0
    """How often the model went on from this answer, which was cut."""
    pauses: int = 0
    """How often it went on from this answer, which it had paused."""
    said: str = ""
    """The text of the parts of this answer so far; the next one goes on right after it."""
    stop_blocks: int = 0
    """How often hooks kept this interaction from ending."""


def begin(conversation: Conversation, prompt: Prompt) -> State:
    """Return the state in which a prompt goes on from a conversation."""
    said = [_text(prompt)] if isinstance(prompt, str) else list(prompt)
    given = {block.get("tool_use_id") for block in said}
    results = [r for r in owed_results(conversation.messages) if r["tool_use_id"] not in given]
    content = prompt if isinstance(prompt, str) and not results else [*results, *said]
    messages = (*conversation.messages, {"role": "user", "content": content})
    return State("awaiting_model", messages, conversation.turns + 1, 0, 0, "start")


def owed_results(
    messages: Sequence[Json], known: Mapping[str, ToolAnswer] | None = None
) -> list[Json]:
    """Return a result for each call that the last message makes: the known one, else that it was interrupted."""
    last = messages[-1] if messages else {}
    asked = tool_uses(last) if last.get("role") == "assistant" else []
    return [tool_result(b["id"], (known or {}).get(b["id"], INTERRUPTED)) for b in asked]


def request(
    state: State,
    options: Options,
    tools: Sequence[Tool],
    owed: Json | None = None,
    sent: Sent | None = None,
) -> dict[str, Any]:
    """Return the arguments of the SDK's `messages.create` that ask the next question.

    `owed` declares the tool that takes the output, where one is owed. `sent` knows the messages of earlier requests,
    which then cost next to nothing. Of a system prompt in levels the texts are sent that it holds itself; the loop
    asks for the others first.
    """
    sent = Sent() if sent is None else sent
    declared = [*declarations(tools), *([owed] if owed else [])]
    arguments: dict[str, Any] = {
        "model": options.model,
        "max_tokens": options.max_tokens,
        "messages": sent.ready(state.messages, in_blocks=options.cache is not None),
    }
    system = _system(options.system)
    if isinstance(options.system, str) and options.cache is None:
        arguments["system"] = options.system
    elif system.blocks or isinstance(options.system, list):
        arguments["system"] = system.blocks
    if declared:
        arguments["tools"] = declared
    if options.stream:
        arguments["stream"] = True
    if options.betas:
        arguments["extra_headers"] = {"anthropic-beta": ",".join(options.betas)}
    arguments |= request_fields(options.thinking)
    if options.extra:
        arguments["extra_body"] = _extra(options.extra, arguments)
    arguments = _thinkable(arguments)
    if options.cache is None:
        return arguments
    return marked(arguments, options.cache, len(system.static), sent.marks)


def question_of(block: Json) -> ToolQuestion:
    """Return a `tool_use` block as a question of its own, which shares nothing with the block.

    Where an input was cut and is not JSON, the text that came stands in its place, and validation will
    refuse it.

    Raises:
        ValueError: it has no id, or no name.
    """
    for field_name in ("id", "name"):
        if not isinstance(block.get(field_name), str) or not block[field_name]:
            raise ValueError(f"a tool call has no {field_name}")
    given = block.get("partial_json") or block.get("input")
    return ToolQuestion(block["id"], block["name"], own_copy(given))


def calls(message: Json) -> list[ToolQuestion]:
    """Return the tool calls of an answer, in its order.

    They alone decide whether the loop goes on; the stop reason does not.
    """
    return [question_of(block) for block in tool_uses(message)]


def told_apart(message: Json, used: frozenset[str]) -> tuple[Json, dict[str, str]]:
    """Return an answer in which no tool call has an id that was used before, and which ids were changed.

    The provider refuses two in one message, and a recording knows each call by its id. The second of two
    becomes `ID_2`, and so on.
    """
    content, taken, doubles = list(message["content"]), set(used), {}
    for at, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "tool_use":
            continue
        free, number = block["id"], 2
        while free in taken:
            free, number = f"{block['id']}_{number}", number + 1
        taken.add(free)
        if free != block["id"]:
            content[at] = {**block, "id": free}
            doubles[free] = block["id"]
    return ({**message, "content": content} if doubles else message), doubles


def answered(state: State, message: Json) -> State:
    """Return the state once the model has answered, before any tool runs.

    An answer without content, or of blank text alone, is left out: the provider refuses it.
    """
    answer = _echo(message)
    is_nothing = not answer["content"] or is_blank(answer["content"])
    heard = state.messages if is_nothing else (*state.messages, answer)
    return replace(state, phase="dispatching_tools", messages=heard)


def broken_off(state: State, message: Json) -> tuple[State, list[ToolQuestion]]:
    """Return the state after an answer that was stopped half-way, and the calls in it that owe a result.

    What is whole stays, and text as far as it came. What the provider would refuse is left out: a call
    whose input was cut, thinking without its signature or at the end, a server's tool without its result.
    """
    listed = message.get("content")
    came = listed if isinstance(listed, list) else []
    served = {block.get("tool_use_id") for block in came if isinstance(block, dict)}
    kept = [block for block in came if _is_whole(block, served)]
    while kept and kept[-1].get("type") in ("thinking", "redacted_thinking"):
        kept.pop()
    part = {"role": "assistant", "content": kept}
    return answered(state, part), calls(part)


def next_turn(
    state: State,
    results: Sequence[ToolDone],
    steering: Sequence[str] = (),
    context: Sequence[str] = (),
) -> State:
    """Return the state after tools have answered: all results in one message, in the order of the calls.

    What hooks add, and then what was said to the agent meanwhile, follows them in the same message.
    """
    content = [tool_result(done.question.tool_use_id, done.answer) for done in results]
    content += [_text(text) for text in (*context, *steering)]
    missed = any(d.question.name == output.NAME and d.answer.is_error for d in results)
    return State(
        phase="awaiting_model",
        messages=(*state.messages, {"role": "user", "content": content}),
        turn=state.turn + 1,
        tool_turns=state.tool_turns + 1,
        output_retries=state.output_retries + missed,
        transition="steering" if steering else "next_turn",
        stop_blocks=state.stop_blocks,
    )


def go_on(state: State, texts: Sequence[str], transition: Transition) -> State:
    """Return the state in which the model is asked again after an answer without calls, with these texts."""
    retries = state.output_retries + (transition == "structured_output_retry")
    return State(
        phase="awaiting_model",
        messages=_with_user(state.messages, [_text(text) for text in texts]),
        turn=state.turn + 1,
        tool_turns=state.tool_turns,
        output_retries=retries,
        transition=transition,
        stop_blocks=state.stop_blocks,
    )


def kept_from_ending(state: State, why: str) -> State:
    """Return the state in which the model is asked again because a hook does not let it end."""
    if state.phase == "dispatching_tools":
        state = go_on(state, [why], "stop_hook_blocking")
    else:  # its last tools have answered
        state = replace(with_context(state, [why]), transition="stop_hook_blocking")
    return replace(state, stop_blocks=state.stop_blocks + 1)


def with_context(state: State, texts: Sequence[str]) -> State:
    """Return the state with texts that hooks add to what the user said last."""
    if not texts:
        return state
    return replace(state, messages=_with_user(state.messages, [_text(text) for text in texts]))


def own_copy(value: Any) -> Any:
    """Return a copy of a JSON value, however deep it is nested."""
    top: list[Any] = [value]
    left: list[tuple[Any, Any]] = [(top, 0)]
    while left:
        inside, at = left.pop()
        found = inside[at]
        if isinstance(found, dict | list):
            inside[at] = found = found.copy()
            left += [
                (found, key) for key in (found if isinstance(found, dict) else range(len(found)))
            ]
    return top[0]


def tool_result(tool_use_id: str, answer: ToolAnswer) -> Json:
    """Return the block that tells the model what a tool answered."""
    content = own_copy(answer.content)
    block = {"type": "tool_result", "tool_use_id": tool_use_id, "content": content}
    return {**block, "is_error": True} if answer.is_error else block


def used_ids(messages: Sequence[Json]) -> frozenset[str]:
    """Return the ids of all tool calls in a conversation."""
    return frozenset(block["id"] for message in messages for block in tool_uses(message))


INTERRUPTED = ToolAnswer(
    "The run was interrupted before this tool had finished.", is_error=True, outcome="aborted"
)
"""Stands for a result that a stopped run never got; without one the provider refuses the conversation."""

_NOTES = ("partial_json", "unknown_deltas")
"""What folding a stream notes in a block. The provider did not send these fields and refuses them."""


def _system(system: Prompt | SystemPrompt | Rendered | None) -> Rendered:
    match system:
        case None:
            return Rendered()
        case Rendered():
            return system
        case SystemPrompt():
            return rendered(system, {})
        case _:
            return as_given(system)


def _extra(extra: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return further fields; what the output has to be like does not hide the effort."""
    ours, theirs = arguments.get("output_config"), extra.get("output_config")
    if ours and isinstance(theirs, Mapping):
        return {**extra, "output_config": {**ours, **theirs}}
    return dict(extra)


def _thinkable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a request without a budget of thinking where the provider refuses one.

    Between calls and their results the model cannot begin to think: what another model thought is gone, say.
    """
    extra = arguments.get("extra_body", {})
    asked = (arguments.get("thinking"), extra.get("thinking"))
    if not any(map(_is_budget, asked)) or unthought(arguments["messages"]) is None:
        return arguments
    kept = dict(arguments)
    if _is_budget(kept.get("thinking")):
        del kept["thinking"]
    if _is_budget(extra.get("thinking")):
        kept["extra_body"] = {name: extra[name] for name in extra if name != "thinking"}
    return kept


def _is_budget(thinking: Any) -> bool:
    return isinstance(thinking, Mapping) and thinking.get("type") == "enabled"


def _echo(message: Json) -> Json:
    content = [
        {name: value for name, value in block.items() if name not in _NOTES}
        if isinstance(block, dict)
        else block
        for block in message["content"]
        if not _is_empty(block)
    ]
    return {"role": "assistant", "content": content}


def _is_empty(block: Any) -> bool:
    """Return whether a block is a text without any; the provider sends such, and refuses to get them back."""
    return isinstance(block, dict) and block.get("type") == "text" and block.get("text") == ""


def _is_whole(block: Any, served: set[Any]) -> bool:
    match block:
        case {"partial_json": _}:
            return False
        case {"type": "text", "text": text}:
            return bool(text and text.strip())
        case {"type": "thinking"}:
            return bool(block.get("signature"))
        case {"type": "server_tool_use" | "mcp_tool_use", "id": block_id}:
            return block_id in served
        case dict():
            return True
        case _:
            return False


def _with_user(messages: tuple[Json, ...], blocks: Sequence[Json]) -> tuple[Json, ...]:
    """Return the messages with these blocks said by the user, in the user's last message where that is last."""
    if not messages or messages[-1].get("role") != "user":
        return (*messages, {"role": "user", "content": list(blocks)})
    content = messages[-1]["content"]
    before = [_text(content)] if isinstance(content, str) else content
    return (*messages[:-1], {**messages[-1], "content": [*before, *blocks]})


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
