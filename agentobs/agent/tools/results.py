"""Convert any value that a tool returns or raises to one tool result of limited size.

Text and content blocks stay unchanged. Any other value becomes JSON, or the result of `str` if JSON is not possible. A
result that is too long is stored in a file if possible, and the model sees only its start and end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any

from pydantic_core import to_json

from agentobs.records.canonical_json import Json

Content = str | list[Json]
"""The content of a tool result."""

Keep = Callable[[str], str | None]
"""Stores a complete text and returns its path; None if it cannot be stored."""

PREVIEW_CHARS_MAX = 4_000
"""The number of characters of a stored result that the model sees. Our choice: enough to recognize the result."""

ITEMS_MAX, ITEMS_CHARS_MAX = 100_000, 50_000_000
"""Maximum number of items, and of characters in them, that are read from an iterator, which may be endless. Our choice.
"""

IMAGE_CHARS_MAX = 5 * 2**20
"""Maximum base64 characters of one image (https://docs.claude.com/en/docs/build-with-claude/vision, 5 MB)."""
BINARY_CHARS_MAX = 24 * 2**20
"""Maximum base64 characters in one result. A request may have 32 MB (https://docs.claude.com/en/api/overview, request
size limits), and the rest of the conversation needs part of that.
"""

RESULT_BLOCKS = {"text", "image", "document", "search_result", "tool_reference", "browser_state"}
"""Block types that a tool result may contain (anthropic 2.12, `ToolResultBlockParam`)."""


def render(value: Any) -> Content:
    """Convert the return value of a tool to the content of a tool result, of any size.

    If the value is an iterator, its exceptions propagate. No other exceptions are raised.
    """
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _text_of_bytes(bytes(value))
    if isinstance(value, Iterator | KeysView | ValuesView | ItemsView | range):
        items = Items()
        all(items.add(item) for item in value)
        value = items.values
    if isinstance(value, set | frozenset):
        value = sorted(value, key=_text)
    blocks = _blocks(value)
    return _text(value) if blocks is None else blocks


def is_quick(value: Any) -> bool:
    """Return whether a value is small, plain JSON, so that rendering it does not need a thread."""
    pending, chars_left = [value], PREVIEW_CHARS_MAX
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is dict or kind is list:
            chars_left -= 8 * len(item)
        elif kind is str:
            chars_left -= len(item)
        elif not (item is None or kind is bool or kind is float):
            chars_left -= item.bit_length() if kind is int else chars_left
        if chars_left <= 0:
            return False
        if kind is dict:
            pending += (*item.keys(), *item.values())
        elif kind is list:
            pending += item
    return True


def error_text(error: BaseException) -> str:
    """Return an exception's class and message, of any length."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as failure:
        return f"{name} (its message is unavailable: str() raised {type(failure).__name__})"
    return f"{name}: {text}" if text else name


class Items:
    """The first items of an iterator, which may be endless."""

    def __init__(self) -> None:
        """Create an empty list."""
        self.values: list[Any] = []
        """The items, followed by a note if there are more."""
        self._chars_left = ITEMS_CHARS_MAX

    def add(self, item: Any) -> bool:
        """Add an item, or the note if the limit is reached; return whether the item was added."""
        if len(self.values) == ITEMS_MAX or self._chars_left <= 0:
            self.values.append(NOT_READ)
            return False
        self.values.append(item)
        self._chars_left -= len(item) if isinstance(item, str | bytes) else 1
        return True


NOT_READ = "... there are more items; they were not read"
"""The note after the items that were read from an iterator."""


def fit(content: Content, chars_max: int, keep: Keep) -> Content:
    """Return content that can be sent, with at most about `chars_max` characters.

    Longer content is reduced to its start and its end.
    """
    if isinstance(content, str):
        return _fit_text(content, chars_max, keep)
    return _fit_blocks(content, chars_max, keep)


# --- rendering ------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """Return a value as JSON; if that fails, the result of `str`; if that fails, a note with its type."""
    for write in (_json, _lenient_json, _json_with_surrogates):
        try:
            return write(value)
        except Exception:  # nested values may raise any exception
            continue
    return _as_string(value)


def _as_string(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:
        kind, name = type(value).__name__, type(error).__name__
        return f"a value of type {kind} that cannot be shown ({name})"


def _json(value: Any) -> str:
    return to_json(value).decode("utf-8")


def _lenient_json(value: Any) -> str:
    """Return JSON, with `str` for values that JSON does not support, and base64 for bytes."""
    return to_json(value, fallback=_fallback(value), bytes_mode="base64").decode("utf-8")


def _json_with_surrogates(value: Any) -> str:
    """Return JSON that may contain lone surrogates, which pydantic does not support."""
    return json.dumps(value, default=_fallback(value), ensure_ascii=False)


def _fallback(complete: Any) -> Callable[[Any], str]:
    def shown(value: Any) -> str:
        if value is complete:
            raise TypeError("the value is not JSON")
        return _text(value) if isinstance(value, set | frozenset) else _as_string(value)

    return shown


_KINDS = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "gzip",
    b"\x7fELF": "a program",
}
"""The first bytes of common file types (https://en.wikipedia.org/wiki/List_of_file_signatures)."""


def _text_of_bytes(data: bytes) -> str:
    """Decode bytes as UTF-8, or return a note if that fails, because base64 would be useless to a model."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        kind = next((kind for first, kind in _KINDS.items() if data.startswith(first)), "")
        return f"{len(data):,} bytes that are not text{f' ({kind})' if kind else ''}"


# --- blocks -------------------------------------------------------------------------------------------


def _blocks(value: Any) -> list[Json] | None:
    """Return a copy of content blocks that can be sent; None if the value is not a list of content blocks."""
    if not (isinstance(value, list) and value and all(map(_is_block, value))):
        return None
    try:
        return [_copied(block) for block in value]
    except (ValueError, RecursionError):
        return None


def _is_block(block: Any) -> bool:
    if not isinstance(block, dict) or block.get("type") not in RESULT_BLOCKS:
        return False
    if block["type"] == "text":
        return isinstance(block.get("text"), str)
    return block["type"] not in ("image", "document", "search_result") or "source" in block


def _copied(value: Any) -> Json:
    """Return a copy of a JSON value.

    Raises:
        ValueError: the value is not a JSON value.
    """
    match value:
        case str():
            return _sendable(value)
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            return [_copied(inner) for inner in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {_sendable(key): _copied(inner) for key, inner in value.items()}
    raise ValueError("not a JSON value")


def _fit_blocks(blocks: list[Json], chars_max: int, keep: Keep) -> list[Json]:
    """Return blocks with limited text.

    If the text is too long, one block contains the start and end of the complete text.
    """
    sized = list(_within_limits(blocks))
    texts = [_counted_text(block) for block in sized]
    if sum(map(len, texts)) <= chars_max:
        return [block for block in sized if block != _EMPTY]
    complete = "\n\n".join(filter(None, texts))
    preview = {"type": "text", "text": _fit_text(complete, chars_max, keep)}
    first = next(index for index, text in enumerate(texts) if text)
    return [
        preview if index == first else block
        for index, block in enumerate(sized)
        if index == first or not (texts[index] or block == _EMPTY)
    ]


_EMPTY = {"type": "text", "text": ""}
"""An empty text block, which the provider refuses."""


def _counted_text(block: Json) -> str:
    """Return the text of a block that counts toward the limit; empty for an image."""
    if block["type"] == "text":
        text: str = block["text"]
        return text
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") == "text":
        return str(source.get("data", ""))
    return "" if _binary(block) or block["type"] == "image" else _text(block)


def _binary(block: Json) -> str:
    source = block.get("source")
    data = source.get("data") if isinstance(source, dict) else None
    return data if isinstance(data, str) and source.get("type") == "base64" else ""


def _within_limits(blocks: list[Json]) -> Iterator[Json]:
    """Yield the blocks, with a note in place of each block that is too large for the provider."""
    chars_left = BINARY_CHARS_MAX
    for block in blocks:
        size = len(_binary(block))
        if size > (min(chars_left, IMAGE_CHARS_MAX) if block["type"] == "image" else chars_left):
            note = f"[a block of type {block['type']} with {size * 3 // 4:,} bytes was omitted: it is too large]"
            yield {"type": "text", "text": note}
        else:
            chars_left -= size
            yield block


# --- length -------------------------------------------------------------------------------------------


def _fit_text(text: str, chars_max: int, keep: Keep) -> str:
    if len(text) <= chars_max:
        return _sendable(text)
    path = keep(text)
    chars_left = chars_max if path is None else min(chars_max, PREVIEW_CHARS_MAX)
    chars_left = max(0, chars_left - len(_note(len(text), len(text), path)))
    head = _up_to_line_end(text[: chars_left - chars_left // 3])
    tail = _from_line_start(text[len(text) - chars_left // 3 :])
    note = _note(len(text) - len(head) - len(tail), len(text), path)
    return _sendable(head + note + tail)


def _note(omitted: int, complete: int, path: str | None) -> str:
    found = f"{omitted:,} of {complete:,} characters"
    if path is None:
        sentence = (
            f"{found} were omitted and not stored. Request less data at a time to see everything."
        )
    else:
        sentence = f"{found} were omitted. The complete result is in {path}"
    return f"\n\n[{sentence}]\n\n"


def _up_to_line_end(text: str) -> str:
    end = text.rfind("\n", len(text) // 2)
    return text if end < 0 else text[:end]


def _from_line_start(text: str) -> str:
    end = text.find("\n", 0, len(text) // 2)
    return text[end + 1 :]


def _sendable(text: str) -> str:
    """Replace lone surrogates, which occur in file names that are not UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text
