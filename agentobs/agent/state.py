"""State: what the loop knows between two questions, and the pure steps from one state to the next.

A state is never changed, only replaced. Messages are parsed JSON, and the model's answers go back to it
exactly as they came, whatever kinds of blocks they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentobs.agent.events import ToolDone
from agentobs.agent.tools import Tool, declarations
from agentobs.records.canonical import Json
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from agentobs.records.messages import tool_uses

Prompt = str | list[Json]
"""What the user says: a text, or content blocks."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to ask, and when to stop asking."""

    model: str
    """The model's name, as the provider knows it."""
    max_tokens: int = 8192
    """The most tokens of one answer. Our choice: so many the SDK (2.12) lets every model answer unstreamed."""
    system: Prompt | None = None
    """The system prompt."""
    max_turns: int | None = None
    """Stop after so many turns that used tools, from 1; None never stops."""
    stream: bool = True
    """Whether answers arrive piece by piece."""
    max_retries: int = 10
    """How often one request is tried again after a failure that may pass."""
    betas: tuple[str, ...] = ()
    """Names of beta features, sent as the `anthropic-beta` header."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request body, such as `temperature` or `thinking`; they win over ours."""
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


@dataclass(frozen=True, slots=True)
class State:
    """Where the loop stands before it asks the model."""

    messages: tuple[Json, ...]
    """Everything that the next request holds."""
    turn: int
    """The number of the turn that comes next, within the conversation, from 1."""
    tool_turns: int
    """Turns of this interaction so far; each of them used tools, for the loop goes on only then."""
    transition: Literal["start", "next_turn"]
    """Why the loop is here: a prompt came, or tools have answered."""


def begin(conversation: Conversation, prompt: Prompt) -> State:
    """Return the state in which a prompt goes on from a conversation."""
    message = {"role": "user", "content": _with_interrupted(conversation.messages, prompt)}
    return State((*conversation.messages, message), conversation.turns + 1, 0, "start")


def request(state: State, options: Options, tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the arguments of the SDK's `messages.create` that ask the next question."""
    arguments: dict[str, Any] = {
        "model": options.model,
        "max_tokens": options.max_tokens,
        "messages": list(state.messages),
    }
    if options.system is not None:
        arguments["system"] = options.system
    if tools:
        arguments["tools"] = declarations(tools)
    if options.stream:
        arguments["stream"] = True
    if options.betas:
        arguments["extra_headers"] = {"anthropic-beta": ",".join(options.betas)}
    if options.extra:
        arguments["extra_body"] = dict(options.extra)
    return arguments


def calls(message: Json) -> list[ToolQuestion]:
    """Return the tool calls of an answer, in its order.

    They alone decide whether the loop goes on; the stop reason does not. Where an input was cut and is
    not JSON, the text that came stands in its place, and validation will refuse it.
    """
    return [
        ToolQuestion(block["id"], block["name"], block.get("partial_json") or block.get("input"))
        for block in tool_uses(message)
    ]


def hear(state: State, message: Json) -> tuple[Json, ...]:
    """Return the messages of a conversation once the model has answered, before any tool runs.

    An answer without content is left out: the provider refuses it anywhere but at the end.
    """
    answer = _echo(message)
    return (*state.messages, answer) if answer["content"] else state.messages


def follow_up(state: State, message: Json, results: Sequence[ToolDone]) -> State:
    """Return the state after a turn that used tools: all results in one message, in the order of the calls."""
    answered = [tool_result(done.question.tool_use_id, done.answer) for done in results]
    return State(
        messages=(*hear(state, message), {"role": "user", "content": answered}),
        turn=state.turn + 1,
        tool_turns=state.tool_turns + 1,
        transition="next_turn",
    )


def tool_result(tool_use_id: str, answer: ToolAnswer) -> Json:
    """Return the block that tells the model what a tool answered."""
    block = {"type": "tool_result", "tool_use_id": tool_use_id, "content": answer.content}
    return {**block, "is_error": True} if answer.is_error else block


_NOTES = ("partial_json", "unknown_deltas")
"""What folding a stream notes in a block. The provider did not send these fields and refuses them."""


def _echo(message: Json) -> Json:
    content = [
        {name: value for name, value in block.items() if name not in _NOTES}
        for block in message["content"]
    ]
    return {"role": "assistant", "content": content}


INTERRUPTED = ToolAnswer("The run was interrupted before this tool had finished.", is_error=True)
"""Stands for a result that a stopped run never got; without one the provider refuses the conversation."""


def _with_interrupted(messages: tuple[Json, ...], prompt: Prompt) -> Prompt:
    last = messages[-1] if messages else {}
    said = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else prompt
    answered = {block.get("tool_use_id") for block in said}
    asked = tool_uses(last) if last.get("role") == "assistant" else []
    unanswered = [block for block in asked if block["id"] not in answered]
    if not unanswered:
        return prompt
    return [*(tool_result(block["id"], INTERRUPTED) for block in unanswered), *said]
