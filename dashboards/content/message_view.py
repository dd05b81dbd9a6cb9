"""Messages as people read them: their blocks one after another, and what of a request was not said before.

Pure functions over the JSON of requests and answers. Whatever they hold is text in a page: nothing is read as HTML or
as Markdown, and a link is its letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from agentobs.provider.messages import blocks
from agentobs.records.canonical_json import Json
from dashboards.content.visible_text import Text, shown, visible

MOST_BLOCKS = 100
MOST_MESSAGES = 40
"""How many blocks of a message, and how many messages of a request, stand in a page. Our choice."""

Kind = Literal["text", "thinking", "call", "result", "other"]
_SAME = ("type", "text", "thinking", "name", "input")
"""What of a block is the same where a request repeats an answer."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a message."""

    kind: Kind
    title: str
    text: Text
    is_error: bool = False

    @property
    def is_folded(self) -> bool:
        """Whether it is shown on demand: thinking is long, and what has no name of its own is seldom read."""
        return self.kind in ("thinking", "other")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a request, or an answer."""

    role: str
    blocks: tuple[Block, ...]
    more: int = 0
    """How many blocks it has beyond those."""


class Heard(NamedTuple):
    """What a request says that the one before it in its lane did not."""

    messages: tuple[Message, ...]
    rewritten: int
    """How many messages of the one before are not in it as they were."""
    more: int
    """How many messages are new beyond those that are shown; they are the earlier ones."""
    head: tuple[Block, ...]
    """System prompt and tools, where they are others now."""


def message(
    value: Json,
    side: str,
    keys: Sequence[str | int] = (),
    calls: Mapping[str, str] | None = None,
) -> Message:
    """Return a message for a page.

    Args:
        value: the message.
        side: `request` or `answer`: where it stands.
        keys: its place there.
        calls: the tools that were called, by the id of the call.
    """
    value = value if isinstance(value, dict) else {"content": str(value)}
    content = value.get("content")
    if isinstance(content, str):
        told = (Block("text", "", shown(content, side, (*keys, "content"))),)
        return Message(visible(str(value.get("role"))), told)
    listed = content if isinstance(content, list) else []
    made = [
        _block(each, side, (*keys, "content", at), calls or {})
        for at, each in enumerate(listed[:MOST_BLOCKS])
    ]
    return Message(visible(str(value.get("role"))), tuple(made), len(listed) - len(made))


def heard(before: Json, answer: Mapping[str, Any] | None, body: Json) -> Heard:
    """Return what a request says that was not said before.

    Args:
        before: the request before it in its lane; None where there was none.
        answer: what that was answered.
        body: the request.
    """
    old, new = messages_of(before), messages_of(body)
    kept = _kept(old, new)
    added = list(range(kept, len(new)))
    if answer and added and kept == len(old) and is_echo(new[kept], answer):
        added = added[1:]
    names = called(new)
    told = [message(new[at], "request", ("messages", at), names) for at in added[-MOST_MESSAGES:]]
    head = _head(before if isinstance(before, dict) else {}, body)
    return Heard(tuple(told), len(old) - kept, max(len(added) - MOST_MESSAGES, 0), head)


def messages_of(body: Json) -> list[Any]:
    """Return the messages of a request; none where it has no list of them."""
    found = body.get("messages") if isinstance(body, dict) else None
    return found if isinstance(found, list) else []


def called(messages: Sequence[Any]) -> dict[str, str]:
    """Return the tools that messages call, by the id of the call."""
    return {
        str(block.get("id")): str(block.get("name"))
        for each in messages
        if isinstance(each, dict)
        for block in blocks(each)
        if str(block.get("type")).endswith("tool_use")
    }


def is_echo(value: Json, answer: Mapping[str, Any]) -> bool:
    """Return whether a message of a request is an answer as it was given."""
    if not isinstance(value, dict) or value.get("role") != "assistant":
        return False
    return _words(value) == _words(dict(answer))


def unmarked(value: Json) -> Json:
    """Return a message without its marks of the cache, which move from request to request and may make a list of what
    was a string.
    """
    if isinstance(value, dict):
        bare = {key: unmarked(inner) for key, inner in value.items() if key != "cache_control"}
        if "role" in bare and isinstance(bare.get("content"), str):
            bare["content"] = [{"type": "text", "text": bare["content"]}]
        return bare
    return [unmarked(each) for each in value] if isinstance(value, list) else value


def _kept(old: Sequence[Any], new: Sequence[Any]) -> int:
    """Return how many messages from the first are the same."""
    for at, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other and unmarked(one) != unmarked(other):
            return at
    return min(len(old), len(new))


def _words(value: dict[str, Any]) -> list[Any]:
    return [{key: block[key] for key in _SAME if key in block} for block in blocks(value)]


def _head(before: Mapping[str, Any], body: Json) -> tuple[Block, ...]:
    """Return system prompt and tools, folded, where they are not those of the request before."""
    if not isinstance(body, dict):
        return ()
    named = (("system", "System prompt"), ("tools", "Tools"))
    return tuple(
        Block("other", title, _head_text(key, body[key]))
        for key, title in named
        if body.get(key) and unmarked(body[key]) != unmarked(before.get(key))
    )


def _head_text(key: str, value: Json) -> Text:
    texts = (
        [each.get("text") for each in value if isinstance(each, dict)]
        if key == "system" and isinstance(value, list)
        else []
    )
    if len(texts) == 1 and isinstance(texts[0], str):
        return shown(texts[0], "request", (key, 0, "text"))
    return shown(value, "request", (key,))


def _block(block: Json, side: str, keys: Sequence[str | int], calls: Mapping[str, str]) -> Block:
    if not isinstance(block, dict):
        return Block("other", "", shown(block, side, keys))
    kind = visible(str(block.get("type")))
    if kind == "text" and isinstance(block.get("text"), str):
        return Block("text", "", shown(block["text"], side, (*keys, "text")))
    if kind == "thinking" and isinstance(block.get("thinking"), str):
        return Block("thinking", "Thinking", shown(block["thinking"], side, (*keys, "thinking")))
    if kind.endswith("tool_use"):
        part = "partial_json" if "partial_json" in block else "input"
        broken = ", whose input broke off" if part == "partial_json" else ""
        title = f"Calls {visible(str(block.get('name')))}{broken}"
        return Block("call", title, shown(block.get(part), side, (*keys, part)))
    if kind.endswith("tool_result"):
        return _result(block, side, keys, calls)
    return Block("other", kind, shown(block, side, keys))


def _result(
    block: dict[str, Any], side: str, keys: Sequence[str | int], calls: Mapping[str, str]
) -> Block:
    failed = bool(block.get("is_error"))
    name = visible(calls.get(str(block.get("tool_use_id")), "a call that is not in this request"))
    title = f"{'Error' if failed else 'Result'} of {name}"
    content = block.get("content", "")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        inner = content[0].get("text")
        if isinstance(inner, str):
            at = (*keys, "content", 0, "text")
            return Block("result", title, shown(inner, side, at), failed)
    return Block("result", title, shown(content, side, (*keys, "content")), failed)
