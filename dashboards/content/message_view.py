"""Messages for display: their blocks in order, and the new part of each request.

Pure functions over the JSON of requests and responses. All content is plain text in a page: nothing is interpreted as
HTML or Markdown, and a link is only text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from agentobs.provider import dialect as provider
from agentobs.provider.dialect import Dialect, Turn
from agentobs.provider.registry import DIALECTS, dialect_of_body, history
from agentobs.records.canonical_json import Json
from dashboards.content.visible_text import Text, shown, visible

MOST_BLOCKS = 100
MOST_MESSAGES = 40
"""How many blocks of a message, and how many messages of a request, are shown in a page. Our choice."""

Kind = Literal["text", "thinking", "call", "result", "other"]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a message."""

    kind: Kind
    title: str
    text: Text
    is_error: bool = False

    @property
    def is_folded(self) -> bool:
        """Whether it is collapsed: thinking is long, and blocks without a name are rarely read."""
        return self.kind in ("thinking", "other")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a request, or a response."""

    role: str
    blocks: tuple[Block, ...]
    more: int = 0
    """The number of further blocks."""


class Heard(NamedTuple):
    """The new part of a request, compared with the previous one in its lane."""

    messages: tuple[Message, ...]
    rewritten: int
    """How many messages of the previous request are missing or changed."""
    more: int
    """How many new messages are not shown; they are the earlier ones."""
    head: tuple[Block, ...]
    """System prompt and tools if they changed."""


def message(
    value: Json,
    side: str,
    keys: Sequence[str | int] = (),
    calls: Mapping[str, str] | None = None,
    dialect: Dialect = DIALECTS[0],
) -> Message:
    """Return a message for a page.

    Args:
        value: the message.
        side: `request` or `answer`: where it is.
        keys: its path there.
        calls: the tools that were called, by the ID of the call.
        dialect: the provider's.
    """
    if not isinstance(value, dict):
        return Message("None", (Block("text", "", shown(str(value), side, keys)),))
    turn = dialect.turn(value)
    told = [_block(each, turn, side, keys, calls or {}) for each in turn.blocks[:MOST_BLOCKS]]
    return Message(visible(_role(turn)), tuple(told), len(turn.blocks) - len(told))


def _role(turn: Turn) -> str:
    return str(turn.raw.get("role")) if turn.role == "other" else turn.role


def heard(before: Json, answer: Mapping[str, Any] | None, body: Json) -> Heard:
    """Return the new part of a request.

    Args:
        before: the previous request in its lane; None without one.
        answer: the response to that one.
        body: the request.
    """
    old, new, dialect = messages_of(before), messages_of(body), dialect_of_body(body)
    kept = _kept(old, new, dialect)
    added = list(range(kept, len(new)))
    if answer and added and kept == len(old) and is_echo(new[kept], answer, dialect):
        added = added[1:]
    names, key = called(new, dialect), dialect.history_key
    told = [message(new[at], "request", (key, at), names, dialect) for at in added[-MOST_MESSAGES:]]
    head = _head(before if isinstance(before, dict) else {}, body)
    return Heard(tuple(told), len(old) - kept, max(len(added) - MOST_MESSAGES, 0), head)


def messages_of(body: Json) -> list[Any]:
    """Return the messages of a request; empty if it has no list of messages."""
    return history(body)


def called(messages: Sequence[Any], dialect: Dialect) -> dict[str, str]:
    """Return the tools that messages call, by the ID of the call."""
    blocks = (block for each in messages for block in dialect.turn(each).blocks)
    return {str(b.id): b.name for b in blocks if b.kind in ("call", "provider_call")}


def is_echo(value: Json, answer: Mapping[str, Any], dialect: Dialect) -> bool:
    """Return whether a message of a request is a response without changes."""
    turn = dialect.turn(value)
    return turn.role == "assistant" and _words(turn) == _words(dialect.turn(dict(answer)))


def _kept(old: Sequence[Any], new: Sequence[Any], dialect: Dialect) -> int:
    """Return how many messages from the first on are equal."""
    without = dialect.without_breakpoints
    for at, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other and without(one) != without(other):
            return at
    return min(len(old), len(new))


def _words(turn: Turn) -> list[Any]:
    return [
        [b.type, b.text, b.name, b.value if b.kind in ("call", "provider_call") else None]
        for b in turn.blocks
    ]


def _head(before: Mapping[str, Any], body: Json) -> tuple[Block, ...]:
    """Return system prompt and tools, collapsed, if they differ from those of the previous request."""
    if not isinstance(body, dict):
        return ()
    dialect = dialect_of_body(body)
    titles = {"system": "System prompt", "tools": "Tools"}
    without = dialect.without_breakpoints
    return tuple(
        Block("other", titles[part], _head_text(key, body[key]))
        for part, key in dialect.head_keys.items()
        if body.get(key) and without(body[key]) != without(before.get(key))
    )


def _head_text(key: str, value: Json) -> Text:
    texts = (
        [each.get("text") for each in value if isinstance(each, dict)]
        if isinstance(value, list)
        else []
    )
    if len(texts) == 1 and isinstance(texts[0], str):
        return shown(texts[0], "request", (key, 0, "text"))
    return shown(value, "request", (key,))


def _block(
    block: provider.Block,
    turn: Turn,
    side: str,
    keys: Sequence[str | int],
    calls: Mapping[str, str],
) -> Block:
    text = shown(_at(turn.raw, block), side, (*keys, *block.keys))
    match block.kind:
        case "text" if block.text:
            return Block("text", "", text)
        case "reasoning" if block.text:
            return Block("thinking", "Thinking", text)
        case "call" | "provider_call":
            broken = ", whose input is incomplete" if block.is_cut else ""
            return Block("call", f"Calls {visible(block.name)}{broken}", text)
        case "result" | "provider_result":
            name = visible(calls.get(str(block.id), "a call that is not in this request"))
            title = f"{'Error' if block.is_error else 'Result'} of {name}"
            return Block("result", title, text, block.is_error)
        case _:
            return Block("other", visible(block.type), text)


def _at(message: Any, block: provider.Block) -> Any:
    for key in block.keys:
        message = message.get(key, "") if isinstance(message, dict) else message[key]
    return message
