"""Request bodies taken apart around their messages, and what one is as a change of another.

A conversation repeats its history with each request, so that a body is written as the messages it adds
to an earlier one, and is put together again byte for byte.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from agentobs.records.messages import blocks


@dataclass(slots=True)
class Pieces:
    """A JSON body taken apart around its messages, so that the next one is built by appending."""

    keys: dict[str, bytes]
    """Each top-level key with the JSON of its value; `messages` is empty."""
    messages: list[bytes]

    def body(self) -> bytes:
        """Return the body, byte for byte as it was taken apart."""
        parts = [b"{"]
        for key, value in self.keys.items():
            parts += (b"," if len(parts) > 1 else b"", compact(key), b":")
            parts += (b"[", b",".join(self.messages), b"]") if key == "messages" else (value,)
        return b"".join((*parts, b"}"))


def built(base: Pieces, shape: dict[str, Any]) -> Pieces:
    """Return the body that a `shape` makes of the one that it is like."""
    kept = base.messages[: len(base.messages) - shape.get("drop", 0)]
    for back in shape.get("unmark", []):
        kept[-back] = _unmarked(kept[-back])
    added = [compact(message) for message in shape.get("add", [])]
    changed = {key: compact(value) for key, value in shape.get("set", {}).items()}
    return Pieces({**base.keys, **changed}, kept + added)


def change(old: Pieces, new: Pieces) -> dict[str, Any]:
    """Return what makes a body of an earlier one with the same keys: a part of its shape."""
    kept, unmarked = kept_of(old.messages, new.messages)
    drop = len(old.messages) - kept
    changed = {key: json.loads(text) for key, text in new.keys.items() if old.keys[key] != text}
    return {
        **({"drop": drop} if drop else {}),
        **({"unmark": [kept - place for place in unmarked]} if unmarked else {}),
        "add": [json.loads(message) for message in new.messages[kept:]],
        **({"set": changed} if changed else {}),
    }


def kept_of(old: list[bytes], new: list[bytes]) -> tuple[int, list[int]]:
    """Return how many messages of `old` begin `new`, and the places of those that lost their marks."""
    count, unmarked = 0, []
    for a, b in zip(old, new, strict=False):
        if a != b:
            if _unmarked(a) != b:
                break
            unmarked.append(count)
        count += 1
    return count, unmarked


def _unmarked(message: bytes) -> bytes:
    """Return a message without the marks of the cache on its blocks."""
    if b'"cache_control"' not in message:
        return message
    if _is_marked_last(message):
        return message[: -len(_LAST_MARK)] + b"}]}"
    value = json.loads(message)
    for block in blocks(value) if isinstance(value, dict) else ():
        block.pop("cache_control", None)
    return compact(value)


_LAST_MARK = b',"cache_control":{"type":"ephemeral"}}]}'
"""How a message ends whose last block is marked, as agents mark it."""


def _is_marked_last(message: bytes) -> bool:
    """Return whether nothing of a message is marked but its last block; what is no longer sure is read."""
    return (
        message.endswith(_LAST_MARK)
        and message.startswith(b'{"role":"user","content":[{')
        and message.count(b"cache_control") == 1
        and b'],"' not in message
    )


def pieces_of(body: bytes, before: Pieces | None = None) -> Pieces | None:
    """Take a JSON body apart, or return None where writing it again would not give the same bytes.

    Where it goes on from the one `before`, only what is new is read.
    """
    if before is not None and (pieces := _going_on(body, before)) is not None:
        return pieces
    try:
        pieces = take_apart(json.loads(body))
        return pieces if pieces.body() == body else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _going_on(body: bytes, before: Pieces) -> Pieces | None:
    """Take a body apart that begins as another one did; of its last messages the marks may have moved."""
    known = before.messages[:-_MARKED]
    names = list(before.keys)
    if not known or "messages" not in names:
        return None
    ahead = names[: names.index("messages") + 1]
    head = Pieces({name: before.keys[name] for name in ahead}, known).body()[:-2]
    if not body.startswith(head + b","):
        return None
    try:
        rest = take_apart(json.loads(b'{"messages":[' + body[len(head) + 1 :]))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    keys = {name: before.keys[name] for name in ahead} | rest.keys
    pieces = Pieces(keys, known + rest.messages)
    return pieces if pieces.body() == body else None


_MARKED = 4
"""How many of the last messages are looked at anew: the marks of the cache move there, at most so many in a request
(https://docs.claude.com/en/docs/build-with-claude/prompt-caching)."""


def take_apart(value: Any) -> Pieces:
    """Take a parsed body apart.

    Raises:
        AttributeError: it is no object.
    """
    messages = value.get("messages")
    if not isinstance(messages, list):
        return Pieces({key: compact(inner) for key, inner in value.items()}, [])
    keys = {key: b"" if key == "messages" else compact(inner) for key, inner in value.items()}
    return Pieces(keys, [compact(message) for message in messages])


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def compact(value: Any) -> bytes:
    """Return a JSON value as clients write it: no blanks, text as it is."""
    return _encode(value).encode("utf-8", "surrogatepass")


def value_of(body: bytes) -> Any:
    """Return the parsed JSON of a body, or None where it is none."""
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
