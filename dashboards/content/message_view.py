"""Messages for display: their blocks in order, and the new part of each request.

Pure functions of the JSON of requests and responses. Reports show all content as plain text; the application also
renders Markdown and JSON. Nothing is interpreted as HTML, and links cannot be clicked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agentobs.determinism.values import error_text
from agentobs.provider import dialect as provider
from agentobs.provider.dialect import Dialect, Turn
from agentobs.provider.new_messages import new_messages
from agentobs.provider.registry import DIALECTS, dialect_of_body, history
from agentobs.records.canonical_json import Json
from agentobs.records.words import message_counts
from dashboards.content.images import Image, images_in
from dashboards.content.json_tree import parsed
from dashboards.content.visible_text import SHOWN, Text, shown, visible

MOST_BLOCKS = 100
MOST_MESSAGES = 40
"""The maximum number of blocks per message, and of messages per request, that a page shows. Our choice."""

Kind = Literal["text", "thinking", "call", "result", "other"]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a message."""

    kind: Kind
    title: str
    text: Text
    is_error: bool = False
    readable: str = ""
    """The text to read if it differs from `text`: the text parts of a result."""
    tree: Json = field(default=None, repr=False)
    """The object or list that a call or a result contains; None if there is none."""
    images: tuple[Image, ...] = ()
    call_id: str | None = None
    """The ID of a call, or of the call of a result."""

    @property
    def is_folded(self) -> bool:
        """Whether the block is collapsed: thinking is long, and blocks of unknown types are rarely read."""
        return self.kind in ("thinking", "other")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a request, or a response."""

    role: str
    blocks: tuple[Block, ...]
    more: int = 0
    """The number of blocks that are not shown."""


class NewInput(NamedTuple):
    """The new part of a request, compared with the previous one in its lane."""

    messages: tuple[Message, ...]
    rewritten: int
    """The number of messages of the previous request that are missing or changed."""
    more: int
    """The number of new messages that are not shown. The earliest messages are left out first."""
    system_and_tools: tuple[Block, ...]
    """The system prompt and the tools, if they changed."""
    unchanged: str
    """Which of the system prompt and the tools the request repeats without a change, in words; empty if neither."""
    missing: str
    """Which of the system prompt and the tools the request does not contain, in words; empty if it contains both."""
    first: int
    """The position of the first new message: the number of earlier messages."""
    counts: str
    """The number of messages of the request, and the number of new ones, in words."""


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
        side: `request` or `response`: which of them contains the message.
        keys: the path of the message in it.
        calls: the names of the called tools, by tool call ID.
        dialect: the dialect of the provider.
    """
    if not isinstance(value, dict):
        return Message("None", (Block("text", "", shown(str(value), side, keys)),))
    turn = dialect.turn(value)
    blocks = [_block(each, turn, side, keys, calls or {}) for each in turn.blocks[:MOST_BLOCKS]]
    return Message(visible(_role(turn)), tuple(blocks), len(turn.blocks) - len(blocks))


def _role(turn: Turn) -> str:
    return str(turn.raw.get("role")) if turn.role == "other" else turn.role


def response_message(value: dict[str, Any]) -> Message | None:
    """Return a response for a page; None if no part of it arrived."""
    if value.get("content"):
        return message(value, "response")
    if "error" in value:
        text = shown(value["error"], "response", ("error",))
        return Message("assistant", (Block("other", "Provider error", text, True),))
    return None


def new_input(
    previous_body: Json, previous_response: Mapping[str, Any] | None, body: Json
) -> NewInput:
    """Return the new part of a request.

    Args:
        previous_body: the previous request in its lane; None if it is the first.
        previous_response: the response to the previous request.
        body: the request.
    """
    old, new, dialect = messages_of(previous_body), messages_of(body), dialect_of_body(body)
    place = new_messages(old, previous_response, new, dialect)
    added = range(place.first, len(new))
    names, key = called(new, dialect), dialect.history_key
    messages = [
        message(new[at], "request", (key, at), names, dialect) for at in added[-MOST_MESSAGES:]
    ]
    system_and_tools = _changed_system_and_tools(
        previous_body if isinstance(previous_body, dict) else {}, body
    )
    # Logs that were imported may contain neither.
    parts: dict[bool, list[str]] = {True: [], False: []}
    for part, prompt_key in dialect.prompt_keys.items():
        is_sent = isinstance(body, dict) and bool(body.get(prompt_key))
        parts[is_sent].append({"system": "system prompt"}.get(part, part))
    return NewInput(
        tuple(messages),
        place.rewritten,
        max(len(added) - MOST_MESSAGES, 0),
        system_and_tools,
        "" if system_and_tools else " and ".join(parts[True]),
        " and ".join(parts[False]),
        place.first,
        message_counts(len(new), len(added)),
    )


def earlier_messages(body: Json, before: int, most: int) -> tuple[int, list[Message]]:
    """Return up to `most` messages of a request before a position, and the position of the first of them."""
    sent, dialect = messages_of(body), dialect_of_body(body)
    end = max(min(before, len(sent)), 0)
    start, names = max(end - most, 0), called(sent, dialect)
    keys = [(dialect.history_key, at) for at in range(start, end)]
    return start, [message(sent[key[1]], "request", key, names, dialect) for key in keys]


def messages_of(body: Json) -> list[Any]:
    """Return the messages of a request; empty if it has no list of messages."""
    return history(body)


def called(messages: Sequence[Any], dialect: Dialect) -> dict[str, str]:
    """Return the names of the tools that messages call, by tool call ID."""
    blocks = (block for each in messages for block in dialect.turn(each).blocks)
    return {str(b.id): b.name for b in blocks if b.kind in ("call", "provider_call")}


def _changed_system_and_tools(previous_body: Mapping[str, Any], body: Json) -> tuple[Block, ...]:
    """Return the system prompt and the tools as collapsed blocks; a part that did not change is left out."""
    if not isinstance(body, dict):
        return ()
    dialect = dialect_of_body(body)
    titles = {"system": "System prompt", "tools": "Tools"}
    without = dialect.without_breakpoints
    return tuple(
        Block("other", titles[part], _block_text(key, body[key]))
        for part, key in dialect.prompt_keys.items()
        if body.get(key) and without(body[key]) != without(previous_body.get(key))
    )


def _block_text(key: str, value: Json) -> Text:
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
    text = shown(_value_at(turn.raw, block), side, (*keys, *block.keys))
    match block.kind:
        case "text" if block.text:
            return Block("text", "", text)
        case "reasoning" if block.text:
            return Block("thinking", "Thinking", text)
        case "call" | "provider_call":
            suffix = " (incomplete input)" if block.is_cut else ""
            title = f"Calls {visible(block.name)}{suffix}"
            return Block("call", title, text, tree=parsed(block.value), call_id=block.id)
        case "result" | "provider_result":
            name = visible(calls.get(str(block.id), "a call that is not in this request"))
            title = f"{'Error' if block.is_error else 'Result'} from {name}"
            return result_block(
                title, text, block.value, block.text, is_error=block.is_error, call_id=block.id
            )
        case _:
            images = tuple(images_in(block.raw))
            return Block("other", visible(block.type), text, images=images)


def result_block(
    title: str,
    text: Text,
    value: Json,
    readable: str,
    *,
    is_error: bool,
    call_id: str | None = None,
) -> Block:
    """Return the block of a tool result.

    Args:
        title: the title of the block.
        text: the result as recorded.
        value: the same as JSON.
        readable: the text parts of the result; empty if it has none.
        is_error: whether the result is an error.
        call_id: the ID of the call.
    """
    images = tuple(images_in(value))
    tree = parsed(readable) if readable else parsed(value)
    readable_text = visible(readable[:SHOWN]) if readable else ""
    return Block("result", title, text, is_error, readable_text, tree, images, call_id)


def recorded_result_block(title: str, value: Json, *, is_error: bool) -> Block:
    """Return the block of a result that was recorded when the tool ran: JSON, or an exception that the tool raised."""
    raised = error_text(value)
    result = value if raised is None else raised
    readable = result if isinstance(result, str) else ""
    return result_block(title, shown(result), result, readable, is_error=is_error)


def _value_at(message: Any, block: provider.Block) -> Any:
    for key in block.keys:
        message = message.get(key, "") if isinstance(message, dict) else message[key]
    return message
