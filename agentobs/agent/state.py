"""The state of the loop, and pure functions for its transitions.

A conversation is a list of messages in the provider's format. Each tool call in a response has its
result in the next message. All functions of this module preserve this.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel

from agentobs.agent.background_events import BackgroundEvents
from agentobs.agent.budget import Budget, MoneyLimit
from agentobs.agent.context import Context, ContextProgress
from agentobs.agent.events import Speed, ToolDone, Transition
from agentobs.agent.hooks import Hook, table
from agentobs.agent.model.prompt import Rendered, SystemPrompt, rendered, rendered_as_is
from agentobs.agent.model.prompt_cache import Lifetime, RequestMessages, with_breakpoints
from agentobs.agent.model.retry import CircuitBreaker
from agentobs.agent.model.thinking import Thinking, request_fields
from agentobs.agent.permissions import Denials, Permissions, Rule
from agentobs.agent.run_result import Result
from agentobs.agent.tools import structured_output as output
from agentobs.agent.tools.tool import Tool, declarations
from agentobs.agent.tools.tool_runs import ToolRuns
from agentobs.errors import UsageError
from agentobs.ledger import Meter
from agentobs.provider.anthropic.messages import is_blank, response_without_thinking, tool_uses
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from agentobs.runtime import process
from agentobs.world import Abort

Prompt = str | list[Json]
"""A text, or content blocks."""

Tools = Sequence[Tool] | Callable[[], Sequence[Tool]]
"""The tools, or a function that returns them and is called once per turn."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Configuration of a run: model, request settings and limits."""

    model: str
    """The model's name as the provider knows it."""
    max_tokens: int = 8192
    """Maximum tokens of one response. Our choice: the SDK (2.12) allows this value without streaming
    for every model.
    """
    system: Prompt | SystemPrompt | Rendered | None = None
    """The system prompt: a fixed text, or a prompt with levels and sections."""
    cache: Lifetime | None = "5m"
    """Lifetime of the provider's prompt cache; None sends no breakpoints. The default is our choice: an agent sends its
    complete conversation with each turn, and cached tokens cost a tenth of uncached tokens.
    """
    thinking: Thinking | None = None
    """The thinking configuration; None uses the provider's default."""
    max_turns: int | None = 100
    """End the run after this many turns that used tools, at least 1; None means no limit. The default is our choice:
    it bounds an agent that makes no progress.
    """
    budget: Budget = field(default_factory=Budget)
    """Spending limits."""
    context: Context = field(default_factory=Context)
    """How the conversation is kept within the model's context window."""
    token_budget: int | None = None
    """Output tokens that the model should use in one interaction. If it stops much earlier, it is
    prompted to continue. None means that it may stop at any time.
    """
    permissions: Permissions = field(default_factory=Permissions)
    """The permissions for tool calls; by default only read-only calls run."""
    hooks: tuple[Hook, ...] = ()
    """The hooks, or the table of `agentobs.agent.hooks.table`. Pass the same hooks to `live_world`; `agentobs.Agent`
    does so. Hooks without a name get the names of the table.
    """
    output: type[BaseModel] | None = None
    """The type of the structured output; None for text."""
    max_output_retries: int = 5
    """Maximum number of times that the model is prompted again for a missing structured output. Our choice."""
    stream: bool = True
    """Whether responses are streamed."""
    speed: Speed | None = None
    """The speed of responses; None for the provider's default. Some models require the beta `fast-mode-2026-02-01` in
    `betas` (SDK 2.12, `messages.create`). If the provider requests a wait of more than 20 seconds in fast mode,
    requests are sent at standard speed until the wait has passed. Requests to the fallback model, and requests of
    sub-agents with another model, have no speed, because not every model has a fast mode.
    """
    max_retries: int = 10
    """Maximum retries of one LLM request after a transient failure; at most 10."""
    unattended: bool = False
    """Whether the run is unattended, so that overloads and rate limits are retried for up to 6 hours per request."""
    fallback_model: str | None = None
    """Model for the rest of the run after three consecutive overload errors; None means no fallback."""
    max_tokens_raised: int | None = 64_000
    """`max_tokens` for repeating a request once after its response was cut. None, or a value that is not above
    `max_tokens`, disables the repetition. Without streaming, this value is capped at 21,333.
    """
    answer_seconds: float | None = 3600.0
    """Timeout of one complete response, in seconds; None means no timeout. Our choice: the SDK only
    limits each single read (10 minutes).
    """
    betas: tuple[str, ...] = ()
    """Names of beta features, sent in the `anthropic-beta` header."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of the request body, such as `temperature` or `speed`; they override the fields of the loop."""
    agent: str = "main"
    """The agent's name in the interaction's span."""

    def __post_init__(self) -> None:
        """Store the hooks as a table, in which each has a name.

        Raises:
            UsageError: an entry is not a hook, or a hook is given twice.
        """
        object.__setattr__(self, "hooks", table(self.hooks))


class _Claims:
    """The conversations that runs are using. They are not marked themselves, because a copy is not in use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while a conversation is claimed, because two threads could claim it at the same time."""
        self.conversations: set[int] = set()
        """The `id()` of each of them."""


@dataclass(slots=True)
class Conversation:
    """The conversation so far. Pass it to a second run to continue it.

    The loop updates it after each response and each round of tool results, so that a run that was
    stopped can be continued as well. A conversation serves one run at a time.
    """

    messages: tuple[Json, ...] = ()
    """Messages, oldest first, in the provider's format."""
    turns: int = 0
    """Number of turns with a complete response; later runs continue the count."""
    tool_turns: int = 0
    """Number of turns that used tools."""
    grants: frozenset[Rule] = frozenset()
    """Rules for the calls that a person allowed for the rest of the conversation."""
    denials: Denials = field(default_factory=Denials)
    """How often the classifier has denied calls."""
    tool_runs: ToolRuns = field(default_factory=ToolRuns)
    """The recent runs of the tools that can be withdrawn or that belong to a service."""
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)
    """Usage of all runs of the conversation, for pricing."""
    breaker: CircuitBreaker = field(default=CircuitBreaker(), compare=False, repr=False)
    """Circuit breaker that blocks requests while the provider is down."""
    budget_levels: dict[MoneyLimit, int] = field(default_factory=dict, compare=False, repr=False)
    """The share of each budget that was last reported, in percent."""
    reported_max_tokens: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    """The highest possible `max_tokens` of each model whose limit the provider has reported in an error."""
    fast_resumes_ns: int | None = field(default=None, compare=False, repr=False)
    """The time at which fast mode continues, in nanoseconds since 1970; None if it is not suspended."""
    fell_back_to: str | None = field(default=None, compare=False)
    """The model that took over after a fallback. Thinking blocks since then have its signature."""
    is_begun: bool = False
    """Whether the hooks for the start of the conversation have run."""
    hooks_done: frozenset[str] = frozenset()
    """Names of the `once` hooks that have run."""
    sections: dict[str, str | None] = field(default_factory=dict, compare=False, repr=False)
    """Texts of the system prompt sections that are fixed for the conversation, by section name."""
    latched: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Settings of the first request that must not change, because a change would invalidate the
    prompt cache.
    """
    tool_names: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Names of the tools declared to the model, in order."""
    thought_ns: int | None = field(default=None, compare=False, repr=False)
    """Time of the last response, in nanoseconds since 1970; None until the model uses thinking."""
    context: ContextProgress = field(default_factory=ContextProgress, compare=False, repr=False)
    """The length of the conversation and its compactions."""
    children: dict[str, Conversation] = field(default_factory=dict, repr=False)
    """The conversations of its sub-agents, by the ID of the tool call that started them."""
    background: dict[str, BackgroundAgent] = field(default_factory=dict, compare=False, repr=False)
    """Background agents whose results are not part of the conversation yet, by the ID of the tool call that started
    them.
    """
    background_events: BackgroundEvents = field(
        default_factory=BackgroundEvents, compare=False, repr=False
    )
    """The events of background agents that no run has yielded yet. Set its `listener` to receive them at once, also
    between runs.
    """

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Claim the conversation for one run, while the context is open.

        Raises:
            UsageError: another run is using it.
        """
        claims = process.state(_Claims)
        with claims.lock:
            if id(self) in claims.conversations:
                raise UsageError(
                    "another run of this conversation is still in progress",
                    where="conversation",
                    todo="Await its end, or close its events; use one Conversation for each concurrent run",
                )
            claims.conversations.add(id(self))
        try:
            yield
        finally:
            claims.conversations.discard(id(self))

    def unlatch(self) -> None:
        """Unlatch all settings and sections, so that the next request uses the current options."""
        self.sections, self.latched, self.tool_names = {}, {}, ()


@dataclass(slots=True, eq=False)
class BackgroundAgent:
    """An agent that runs in the background."""

    agent_id: str
    """The ID of the tool call that started it."""
    agent: str
    """The name of the agent."""
    conversation: Conversation
    abort: Abort
    """Stops only this agent."""
    task: asyncio.Task[Result]
    initial_denials: Denials = field(default_factory=Denials)
    """The denials of its starter when it was started, see `agentobs.agent.tool_calls.trust`."""
    initial_tool_runs: ToolRuns = field(default_factory=ToolRuns)
    """The recent runs of tools with which it was started."""

    @property
    def is_abandoned(self) -> bool:
        """Whether it will never finish, because its event loop has ended or is not the running event loop."""
        if not self.task.done():
            return self.task.get_loop() is not asyncio.get_running_loop()
        return self.task.cancelled() or self.task.exception() is not None

    @property
    def result(self) -> Result | None:
        """The result once the agent has ended; None before that, or if the agent was abandoned."""
        return None if self.is_abandoned or not self.task.done() else self.task.result()


@dataclass(frozen=True, slots=True)
class State:
    """The state of the loop; replaced as a whole at each step."""

    phase: Literal["awaiting_model", "dispatching_tools"]
    """The current phase."""
    messages: tuple[Json, ...]
    """The messages of the next request. While tools run, the last message is the response that calls them."""
    turn: int
    """The turn within the conversation, from 1."""
    tool_turns: int
    """Number of turns of this interaction that used tools."""
    output_retries: int
    """Number of times that the model was prompted again for its output in this interaction."""
    transition: Transition
    """The reason for the last LLM request."""
    max_tokens: int | None = None
    """The raised token limit of this response, if it was cut at the limit in the options."""
    continuations: int = 0
    """Number of times that this response was continued after it was cut."""
    pauses: int = 0
    """Number of times that this response was continued after the model paused it."""
    response_text: str = ""
    """The text of the earlier parts of this response; the text of the next part is appended without a separator."""
    stop_blocks: int = 0
    """Number of times that hooks kept this interaction from ending."""


def initial_state(conversation: Conversation, prompt: Prompt) -> State:
    """Return the state in which a prompt continues a conversation."""
    prompt_blocks = [_text(prompt)] if isinstance(prompt, str) else list(prompt)
    answered_ids = {block.get("tool_use_id") for block in prompt_blocks}
    results = [
        r for r in missing_results(conversation.messages) if r["tool_use_id"] not in answered_ids
    ]
    content = prompt if isinstance(prompt, str) and not results else [*results, *prompt_blocks]
    messages = (*conversation.messages, {"role": "user", "content": content})
    return State("awaiting_model", messages, conversation.turns + 1, 0, 0, "start")


def missing_results(
    messages: Sequence[Json], known: Mapping[str, ToolAnswer] | None = None
) -> list[Json]:
    """Return a result for each call of the last message: the result in `known`, or else `INTERRUPTED`."""
    last = messages[-1] if messages else {}
    requested = tool_uses(last) if last.get("role") == "assistant" else []
    return [tool_result(b["id"], (known or {}).get(b["id"], INTERRUPTED)) for b in requested]


def request_arguments(
    state: State,
    options: AgentOptions,
    tools: Sequence[Tool],
    output_declaration: Json | None = None,
    request_messages: RequestMessages | None = None,
) -> dict[str, Any]:
    """Return the arguments of the SDK's `messages.create` for the next request.

    Args:
        state: the current state of the loop.
        options: the options of the run. A `SystemPrompt` is rendered without the sections that
            functions write; the loop passes a rendered prompt instead.
        tools: the tools to declare.
        output_declaration: the declaration of the structured output tool, if an output is required.
        request_messages: a cache of the messages of earlier requests, so that they are not
            converted again.
    """
    request_messages = RequestMessages() if request_messages is None else request_messages
    declared = [*declarations(tools), *([output_declaration] if output_declaration else [])]
    arguments: dict[str, Any] = {
        "model": options.model,
        "max_tokens": options.max_tokens,
        "messages": request_messages.converted(state.messages, in_blocks=options.cache is not None),
    }
    system = _rendered_system(options.system)
    if isinstance(options.system, str) and options.cache is None:
        arguments["system"] = options.system
    elif system.blocks or isinstance(options.system, list):
        arguments["system"] = system.blocks
    if declared:
        arguments["tools"] = declared
    if options.stream:
        arguments["stream"] = True
    if options.speed is not None:
        arguments["speed"] = options.speed
    if options.betas:
        arguments["extra_headers"] = {"anthropic-beta": ",".join(options.betas)}
    arguments |= request_fields(options.thinking)
    if options.extra:
        arguments["extra_body"] = _extra_fields(options.extra, arguments)
    arguments = _without_unusable_thinking(arguments)
    if options.cache is None:
        return arguments
    return with_breakpoints(
        arguments, options.cache, len(system.static), request_messages.breakpoints
    )


def tool_question(block: Json) -> ToolQuestion:
    """Return a `tool_use` block as a question that shares no mutable data with the block.

    If the input was cut and is therefore not JSON, the question holds the received text, which the
    validation of the call refuses.

    Raises:
        ValueError: the block has no ID or no name.
    """
    for field_name in ("id", "name"):
        if not isinstance(block.get(field_name), str) or not block[field_name]:
            raise ValueError(f"a tool call has no {field_name}")
    call_input = block.get("partial_json") or block.get("input")
    return ToolQuestion(block["id"], block["name"], deep_copy(call_input))


def calls(message: Json) -> list[ToolQuestion]:
    """Return the tool calls of a response, in order.

    The loop continues if there are any calls, regardless of the stop reason.
    """
    return [tool_question(block) for block in tool_uses(message)]


def with_unique_ids(message: Json, used_ids: frozenset[str]) -> tuple[Json, dict[str, str]]:
    """Return a response whose tool call IDs are unique and not in `used_ids`, and the original of each changed ID.

    The provider refuses duplicates in one message, and a recording identifies each call by its ID.
    The second of two equal IDs becomes `ID_2`, and so on.
    """
    content, unavailable, original_ids = list(message["content"]), set(used_ids), {}
    for at, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "tool_use":
            continue
        unique_id, number = block["id"], 2
        while unique_id in unavailable:
            unique_id, number = f"{block['id']}_{number}", number + 1
        unavailable.add(unique_id)
        if unique_id != block["id"]:
            content[at] = {**block, "id": unique_id}
            original_ids[unique_id] = block["id"]
    return ({**message, "content": content} if original_ids else message), original_ids


def after_response(state: State, message: Json) -> State:
    """Return the state after the model's response, before any tool runs.

    A response without content, or with only blank text, is left out, because the provider would refuse it.
    """
    answer = _assistant_message(message)
    is_empty = not answer["content"] or is_blank(answer["content"])
    messages = state.messages if is_empty else (*state.messages, answer)
    return replace(state, phase="dispatching_tools", messages=messages)


def after_partial_response(state: State, message: Json) -> tuple[State, list[ToolQuestion]]:
    """Return the state after a response that was stopped midway, and its calls that require a result.

    Complete blocks and partial text are kept. Blocks that the provider would refuse are removed: a
    call with a cut input, thinking that has no signature or is the last block, and a call of a
    server tool without its result.
    """
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    answered_ids = {block.get("tool_use_id") for block in blocks if isinstance(block, dict)}
    complete_blocks = [block for block in blocks if _is_complete(block, answered_ids)]
    while complete_blocks and complete_blocks[-1].get("type") in ("thinking", "redacted_thinking"):
        complete_blocks.pop()
    partial_message = {"role": "assistant", "content": complete_blocks}
    return after_response(state, partial_message), calls(partial_message)


def next_turn(
    state: State,
    results: Sequence[ToolDone],
    steering: Sequence[str] = (),
    context: Sequence[str] = (),
) -> State:
    """Return the state after tools have run: one user message with all results, in the order of the calls.

    The results are followed by the context from hooks and the messages to the agent, in the same
    message.
    """
    content = [tool_result(done.question.tool_use_id, done.answer) for done in results]
    content += [_text(text) for text in (*context, *steering)]
    has_failed_output = any(d.question.name == output.NAME and d.answer.is_error for d in results)
    return State(
        phase="awaiting_model",
        messages=(*state.messages, {"role": "user", "content": content}),
        turn=state.turn + 1,
        tool_turns=state.tool_turns + 1,
        output_retries=state.output_retries + has_failed_output,
        transition="steering" if steering else "next_turn",
        stop_blocks=state.stop_blocks,
    )


def prompted_again(state: State, texts: Sequence[str], transition: Transition) -> State:
    """Return the state in which the model gets these texts as the next prompt, after a response without calls."""
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


def blocked_by_stop_hook(state: State, why: str) -> State:
    """Return the state in which the model continues because a hook keeps the run from ending, for the reason `why`."""
    if state.phase == "dispatching_tools":
        state = prompted_again(state, [why], "stop_hook_blocking")
    else:  # The last message already holds the results of the last tools.
        state = replace(with_context(state, [why]), transition="stop_hook_blocking")
    return replace(state, stop_blocks=state.stop_blocks + 1)


def with_context(state: State, texts: Sequence[str]) -> State:
    """Return the state with texts from hooks added to the user's last message."""
    if not texts:
        return state
    return replace(state, messages=_with_user(state.messages, [_text(text) for text in texts]))


def deep_copy(value: Any) -> Any:
    """Return a deep copy of a JSON value, without recursion."""
    root: list[Any] = [value]
    pending: list[tuple[Any, Any]] = [(root, 0)]
    while pending:
        container, at = pending.pop()
        child = container[at]
        if isinstance(child, dict | list):
            container[at] = child = child.copy()
            pending += [
                (child, key) for key in (child if isinstance(child, dict) else range(len(child)))
            ]
    return root[0]


def tool_result(tool_use_id: str, answer: ToolAnswer) -> Json:
    """Return the block with which the model gets a tool result."""
    content = deep_copy(answer.content)
    block = {"type": "tool_result", "tool_use_id": tool_use_id, "content": content}
    return {**block, "is_error": True} if answer.is_error else block


def tool_call_ids(messages: Sequence[Json]) -> frozenset[str]:
    """Return the IDs of all tool calls in a conversation."""
    return frozenset(block["id"] for message in messages for block in tool_uses(message))


INTERRUPTED = ToolAnswer(
    "The run was interrupted before this tool finished.", is_error=True, outcome="aborted"
)
"""Result for a call that a stopped run did not finish. The provider refuses a conversation in which a
call has no result.
"""

_FOLD_FIELDS = ("partial_json", "unknown_deltas")
"""Fields that `streams.fold` adds to a block. The provider does not accept them in a request."""


def _rendered_system(system: Prompt | SystemPrompt | Rendered | None) -> Rendered:
    match system:
        case None:
            return Rendered()
        case Rendered():
            return system
        case SystemPrompt():
            return rendered(system, {})
        case _:
            return rendered_as_is(system)


def _extra_fields(extra: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the additional fields; an `output_config` among them is merged with the effort in the arguments."""
    effort, output_config = arguments.get("output_config"), extra.get("output_config")
    if effort and isinstance(output_config, Mapping):
        return {**extra, "output_config": {**effort, **output_config}}
    return dict(extra)


def _without_unusable_thinking(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments without a thinking budget if the provider would refuse a budget.

    The provider refuses a budget if the thinking before the last calls was removed, for example
    because another model signed it: the model cannot start to think between its calls and their
    results.
    """
    extra = arguments.get("extra_body", {})
    settings = (arguments.get("thinking"), extra.get("thinking"))
    if (
        not any(map(_is_budget, settings))
        or response_without_thinking(arguments["messages"]) is None
    ):
        return arguments
    changed = dict(arguments)
    if _is_budget(changed.get("thinking")):
        del changed["thinking"]
    if _is_budget(extra.get("thinking")):
        changed["extra_body"] = {name: extra[name] for name in extra if name != "thinking"}
    return changed


def _is_budget(thinking: Any) -> bool:
    return isinstance(thinking, Mapping) and thinking.get("type") == "enabled"


def _assistant_message(message: Json) -> Json:
    content = [
        {name: value for name, value in block.items() if name not in _FOLD_FIELDS}
        if isinstance(block, dict)
        else block
        for block in message["content"]
        if not _is_empty(block)
    ]
    return {"role": "assistant", "content": content}


def _is_empty(block: Any) -> bool:
    """Return whether a block is an empty text. The provider sends such blocks, but refuses them in requests."""
    return isinstance(block, dict) and block.get("type") == "text" and block.get("text") == ""


def _is_complete(block: Any, answered_ids: set[Any]) -> bool:
    match block:
        case {"partial_json": _}:
            return False
        case {"type": "text", "text": text}:
            return bool(text and text.strip())
        case {"type": "thinking"}:
            return bool(block.get("signature"))
        case {"type": "server_tool_use" | "mcp_tool_use", "id": block_id}:
            return block_id in answered_ids
        case dict():
            return True
        case _:
            return False


def _with_user(messages: tuple[Json, ...], blocks: Sequence[Json]) -> tuple[Json, ...]:
    """Add blocks to the last message if it is from the user, or else in a new message; return all messages."""
    if not messages or messages[-1].get("role") != "user":
        return (*messages, {"role": "user", "content": list(blocks)})
    content = messages[-1]["content"]
    before = [_text(content)] if isinstance(content, str) else content
    return (*messages[:-1], {**messages[-1], "content": [*before, *blocks]})


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
