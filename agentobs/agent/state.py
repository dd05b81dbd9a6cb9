"""The state of the loop, and pure functions for its transitions.

A conversation is a list of messages in the provider's format. Each tool call in a response has its
result in the next message. Every function here preserves this.
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
from agentobs.provider.anthropic.messages import is_blank, tool_uses, unthought
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from agentobs.world import Abort

Prompt = str | list[Json]
"""A text, or content blocks."""

Tools = Sequence[Tool] | Callable[[], Sequence[Tool]]
"""The tools, or a function that returns them and is called once per turn."""


@dataclass(frozen=True, slots=True)
class Options:
    """Configuration of a run: model, request settings and limits."""

    model: str
    """The model's name as the provider knows it."""
    max_tokens: int = 8192
    """Maximum tokens of one response. Our choice: the SDK (2.12) allows this without streaming for
    every model.
    """
    system: Prompt | SystemPrompt | Rendered | None = None
    """The system prompt: static, or in levels and sections."""
    cache: Lifetime | None = "5m"
    """Lifetime of the provider's prompt cache; None sends no breakpoints. Our choice: an agent sends its whole
    conversation with each turn, and reading from the cache costs a tenth.
    """
    thinking: Thinking | None = None
    """The thinking configuration; None uses the provider's default."""
    max_turns: int | None = None
    """Stop after this many turns that used tools, from 1; None means no limit."""
    budget: Budget = field(default_factory=Budget)
    """Spending limits."""
    context: Context = field(default_factory=Context)
    """How the conversation is kept within the model's context window."""
    token_budget: int | None = None
    """Output tokens that the model should use in one interaction. It is prompted to continue if it
    stops well before.
    """
    permissions: Permissions = field(default_factory=Permissions)
    """Which tool calls may run; by default only those that read."""
    hooks: tuple[Hook, ...] = ()
    """The table of hooks, as made by `agentobs.agent.hooks.table`; pass it to the live world as well.
    """
    output: type[BaseModel] | None = None
    """The type of the structured output; None for text."""
    max_output_retries: int = 5
    """How often the model may be prompted again for a missing structured output. Our choice."""
    stream: bool = True
    """Whether responses are streamed."""
    max_retries: int = 10
    """Maximum retries of one LLM request after a transient failure; at most 10."""
    unattended: bool = False
    """Whether no person attends, so that overloads and rate limits are retried for up to 6 hours per request.
    """
    fallback_model: str | None = None
    """Model for the rest of the run after three consecutive overload errors; None for no fallback."""
    max_tokens_raised: int | None = 64_000
    """`max_tokens` of the single repeated request after a response was cut. None, or a value up to
    `max_tokens`, disables it. Without streaming it is capped at 21,333.
    """
    answer_seconds: float | None = 3600.0
    """Timeout of one complete response, in seconds. Our choice; the SDK only limits each wait (10
    min).
    """
    betas: tuple[str, ...] = ()
    """Names of beta features, sent in the `anthropic-beta` header."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of the request body, such as `temperature` or `speed`; they override ours."""
    agent: str = "main"
    """The agent's name in the interaction's span."""


@dataclass(slots=True)
class Conversation:
    """The conversation so far. Pass it to a second run to continue it.

    The loop updates it after each response and each round of tool results, so that a run that was
    stopped can be continued as well. It serves one run at a time.
    """

    messages: tuple[Json, ...] = ()
    """Messages, oldest first, in the provider's format."""
    turns: int = 0
    """Turns with a complete response; the next turn continues the count."""
    tool_turns: int = 0
    """The number of those that used tools."""
    grants: frozenset[Rule] = frozenset()
    """Calls that a person allowed for the rest of the conversation."""
    denials: Denials = field(default_factory=Denials)
    """How often the classifier has denied calls."""
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)
    """Usage of all its runs, for pricing."""
    breaker: Breaker = field(default=Breaker(), compare=False, repr=False)
    """Circuit breaker that blocks requests while the provider is down."""
    most_tokens: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    """Maximum response tokens per model, as far as the provider has reported them."""
    fell_back_to: str | None = field(default=None, compare=False)
    """The model that took over after a fallback; the thinking since then has its signature."""
    is_begun: bool = False
    """Whether the hooks for its start have run."""
    hooks_done: frozenset[str] = frozenset()
    """Names of the `once` hooks that have run."""
    sections: dict[str, str | None] = field(default_factory=dict, compare=False, repr=False)
    """Texts of the system prompt sections that are fixed for the conversation, by name."""
    latched: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Settings of its first request that must not change, because a change invalidates the prompt
    cache.
    """
    tool_names: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Names of the tools declared to the model, in order."""
    thought_ns: int | None = field(default=None, compare=False, repr=False)
    """Time of the last response since the model first used thinking; nanoseconds since 1970."""
    context: Progress = field(default_factory=Progress, compare=False, repr=False)
    """Its length, and its compactions."""
    children: dict[str, Conversation] = field(default_factory=dict, repr=False)
    """The conversations of its sub-agents, by the ID of the tool call that started them."""
    background: dict[str, Background] = field(default_factory=dict, compare=False, repr=False)
    """Background agents whose results have not entered it yet, by the same ID."""

    def unlatch(self) -> None:
        """Unlatch all settings and sections, so that the next request uses the current options."""
        self.sections, self.latched, self.tool_names = {}, {}, ()


@dataclass(slots=True, eq=False)
class Background:
    """An agent that runs in the background."""

    agent_id: str
    """The ID of the call that started it."""
    agent: str
    """Its name."""
    talk: Conversation
    abort: Abort
    """Stops only this agent."""
    task: asyncio.Task[Result]
    events: deque[SubAgent]
    """Its events so far, to be emitted when its result enters the conversation."""
    began: Denials = field(default_factory=Denials)
    """The denials that it started with, see `agentobs.agent.tool_calls.trust`."""

    @property
    def is_left(self) -> bool:
        """Whether it will never finish, because its event loop has ended or is not the running one."""
        if not self.task.done():
            return self.task.get_loop() is not asyncio.get_running_loop()
        return self.task.cancelled() or self.task.exception() is not None

    @property
    def result(self) -> Result | None:
        """Its result once it has ended; None if it was abandoned."""
        return None if self.is_left or not self.task.done() else self.task.result()


@dataclass(frozen=True, slots=True)
class State:
    """The state of the loop; replaced as a whole at each step."""

    phase: Literal["awaiting_model", "dispatching_tools"]
    """The current phase."""
    messages: tuple[Json, ...]
    """The conversation: the messages of the next request or, while tools run, including the response that calls them.
    """
    turn: int
    """The turn within the conversation, from 1."""
    tool_turns: int
    """Turns of this interaction that used tools so far."""
    output_retries: int
    """How often the model was prompted again for its output in this interaction."""
    transition: Transition
    """The reason for the last LLM request."""
    max_tokens: int | None = None
    """The raised token limit of this response, if it was cut at the limit of the options."""
    continuations: int = 0
    """How often this response was continued after it was cut."""
    pauses: int = 0
    """How often this response was continued after the model paused it."""
    said: str = ""
    """The text of this response's parts so far; the next part follows it directly."""
    stop_blocks: int = 0
    """How often hooks kept this interaction from ending."""


def begin(conversation: Conversation, prompt: Prompt) -> State:
    """Return the state in which a prompt continues a conversation."""
    prompt_blocks = [_text(prompt)] if isinstance(prompt, str) else list(prompt)
    answered_ids = {block.get("tool_use_id") for block in prompt_blocks}
    results = [
        r for r in owed_results(conversation.messages) if r["tool_use_id"] not in answered_ids
    ]
    content = prompt if isinstance(prompt, str) and not results else [*results, *prompt_blocks]
    messages = (*conversation.messages, {"role": "user", "content": content})
    return State("awaiting_model", messages, conversation.turns + 1, 0, 0, "start")


def owed_results(
    messages: Sequence[Json], known: Mapping[str, ToolAnswer] | None = None
) -> list[Json]:
    """Return a result for each call of the last message: the known one, or else one that says it was interrupted."""
    last = messages[-1] if messages else {}
    requested = tool_uses(last) if last.get("role") == "assistant" else []
    return [tool_result(b["id"], (known or {}).get(b["id"], INTERRUPTED)) for b in requested]


def request(
    state: State,
    options: Options,
    tools: Sequence[Tool],
    owed: Json | None = None,
    sent: Sent | None = None,
) -> dict[str, Any]:
    """Return the arguments of the SDK's `messages.create` for the next request.

    `owed` is the declaration of the structured output tool, if an output is required. `sent` caches
    the messages of earlier requests, so that they are not converted again. Of a system prompt in
    levels, only its static texts are sent; the loop requests the other sections first.
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
    """Return a `tool_use` block as an independent question that shares no data with the block.

    If the input was cut and is not JSON, the received text is used instead; validation will refuse
    it.

    Raises:
        ValueError: it has no ID, or no name.
    """
    for field_name in ("id", "name"):
        if not isinstance(block.get(field_name), str) or not block[field_name]:
            raise ValueError(f"a tool call has no {field_name}")
    call_input = block.get("partial_json") or block.get("input")
    return ToolQuestion(block["id"], block["name"], own_copy(call_input))


def calls(message: Json) -> list[ToolQuestion]:
    """Return the tool calls of a response, in order.

    Only these calls decide whether the loop continues, not the stop reason.
    """
    return [question_of(block) for block in tool_uses(message)]


def told_apart(message: Json, used: frozenset[str]) -> tuple[Json, dict[str, str]]:
    """Return a response whose tool call IDs are all unused so far, and a map of the changed IDs.

    The provider refuses duplicates in one message, and a recording identifies each call by its ID.
    The second of two equal IDs becomes `ID_2`, and so on.
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
    """Return the state after the model's response, before any tool runs.

    A response without content, or with only blank text, is left out because the provider refuses it.
    """
    answer = _echo(message)
    is_nothing = not answer["content"] or is_blank(answer["content"])
    messages = state.messages if is_nothing else (*state.messages, answer)
    return replace(state, phase="dispatching_tools", messages=messages)


def broken_off(state: State, message: Json) -> tuple[State, list[ToolQuestion]]:
    """Return the state after a response that was stopped midway, and its calls that require a result.

    Complete blocks and partial text are kept. Parts that the provider would refuse are removed: a
    call with a cut input, thinking that has no signature or is last, a server tool without its
    result.
    """
    listed = message.get("content")
    blocks = listed if isinstance(listed, list) else []
    served = {block.get("tool_use_id") for block in blocks if isinstance(block, dict)}
    whole_blocks = [block for block in blocks if _is_whole(block, served)]
    while whole_blocks and whole_blocks[-1].get("type") in ("thinking", "redacted_thinking"):
        whole_blocks.pop()
    part = {"role": "assistant", "content": whole_blocks}
    return answered(state, part), calls(part)


def next_turn(
    state: State,
    results: Sequence[ToolDone],
    steering: Sequence[str] = (),
    context: Sequence[str] = (),
) -> State:
    """Return the state after tools have run: all results in one message, in the order of the calls.

    The context from hooks and then the messages to the agent follow in the same message.
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
    """Return the state in which the model is called again with these texts, after a response without calls."""
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
    """Return the state in which the model is called again because a hook does not let the run end."""
    if state.phase == "dispatching_tools":
        state = go_on(state, [why], "stop_hook_blocking")
    else:  # its last tools have results
        state = replace(with_context(state, [why]), transition="stop_hook_blocking")
    return replace(state, stop_blocks=state.stop_blocks + 1)


def with_context(state: State, texts: Sequence[str]) -> State:
    """Return the state with texts from hooks added to the user's last message."""
    if not texts:
        return state
    return replace(state, messages=_with_user(state.messages, [_text(text) for text in texts]))


def own_copy(value: Any) -> Any:
    """Return a deep copy of a JSON value, without recursion."""
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
    """Return the tool result block for the model."""
    content = own_copy(answer.content)
    block = {"type": "tool_result", "tool_use_id": tool_use_id, "content": content}
    return {**block, "is_error": True} if answer.is_error else block


def used_ids(messages: Sequence[Json]) -> frozenset[str]:
    """Return the IDs of all tool calls in a conversation."""
    return frozenset(block["id"] for message in messages for block in tool_uses(message))


INTERRUPTED = ToolAnswer(
    "The run was interrupted before this tool had finished.", is_error=True, outcome="aborted"
)
"""Result for a call that a stopped run never finished; without it the provider refuses the
conversation.
"""

_NOTES = ("partial_json", "unknown_deltas")
"""Fields that folding a stream adds to a block. The provider did not send them and refuses them."""


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
    """Return the additional fields; an output format does not override an effort setting."""
    ours, theirs = arguments.get("output_config"), extra.get("output_config")
    if ours and isinstance(theirs, Mapping):
        return {**extra, "output_config": {**ours, **theirs}}
    return dict(extra)


def _thinkable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a request without a thinking budget if the provider would refuse one.

    The model cannot start thinking between calls and their results, for example if another model's
    thinking was removed.
    """
    extra = arguments.get("extra_body", {})
    settings = (arguments.get("thinking"), extra.get("thinking"))
    if not any(map(_is_budget, settings)) or unthought(arguments["messages"]) is None:
        return arguments
    changed = dict(arguments)
    if _is_budget(changed.get("thinking")):
        del changed["thinking"]
    if _is_budget(extra.get("thinking")):
        changed["extra_body"] = {name: extra[name] for name in extra if name != "thinking"}
    return changed


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
    """Return whether a block is an empty text. The provider sends such blocks, but refuses to receive them."""
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
    """Return the messages with these blocks added as user content, merged into the last message if it is the user's."""
    if not messages or messages[-1].get("role") != "user":
        return (*messages, {"role": "user", "content": list(blocks)})
    content = messages[-1]["content"]
    before = [_text(content)] if isinstance(content, str) else content
    return (*messages[:-1], {**messages[-1], "content": [*before, *blocks]})


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
