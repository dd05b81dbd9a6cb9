"""Convert any value that a tool returns or raises to one tool result of limited size.

Text and content blocks are passed unchanged; everything else is shown as JSON, or as a last resort
with `str`. A result that is too long is stored elsewhere if possible, and the model sees its start
and end.
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
"""Stores a whole text and returns its path; None if it cannot be stored."""

PREVIEW_CHARS_MAX = 4_000
"""How much of a stored result is shown, in characters: enough to recognize it. Our choice."""

ITEMS_MAX, ITEMS_CHARS_MAX = 100_000, 50_000_000
"""Maximum items read from an iterator, and characters in them, because it may be endless. Our choice."""

IMAGE_CHARS_MAX = 5 * 2**20
"""Maximum base64 text of one image (https://docs.claude.com/en/docs/build-with-claude/vision, 5 MB)."""
BINARY_CHARS_MAX = 24 * 2**20
"""Maximum base64 text in one result. A whole request may have 32 MB (https://docs.claude.com/en/api/overview, request
size limits), and the conversation needs part of it.
"""

RESULT_BLOCKS = {"text", "image", "document", "search_result", "tool_reference", "browser_state"}
"""Block types that a tool result may contain (anthropic 2.12, `ToolResultBlockParam`)."""


def render(value: Any) -> Content:
    """Return a tool's result as tool result content, of any size.

    Raises only what iterating over an iterator raises.
    """
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _of_bytes(bytes(value))
    if isinstance(value, Iterator | KeysView | ValuesView | ItemsView | range):
        items = Items()
        all(items.take(item) for item in value)
        value = items.taken
    if isinstance(value, set | frozenset):
        value = sorted(value, key=_text)
    blocks = _blocks(value)
    return _text(value) if blocks is None else blocks


def is_quick(value: Any) -> bool:
    """Return whether a value is plain JSON and small, so that rendering it needs no thread."""
    waiting, room = [value], PREVIEW_CHARS_MAX
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if kind is dict or kind is list:
            room -= 8 * len(item)
        elif kind is str:
            room -= len(item)
        elif not (item is None or kind is bool or kind is float):
            room -= item.bit_length() if kind is int else room
        if room <= 0:
            return False
        if kind is dict:
            waiting += (*item.keys(), *item.values())
        elif kind is list:
            waiting += item
    return True


def error_text(error: BaseException) -> str:
    """Return an exception's class and message, of any length."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as own:
        return f"{name} (its text failed with {type(own).__name__})"
    return f"{name}: {text}" if text else name


class Items:
    """The items of a possibly endless iterator, as far as they are read."""

    def __init__(self) -> None:
        """Create an empty list."""
        self.taken: list[Any] = []
        """The items, followed by a note if there were more."""
        self._room = ITEMS_CHARS_MAX

    def take(self, item: Any) -> bool:
        """Add an item, and return whether there is room for more."""
        if len(self.taken) == ITEMS_MAX or self._room <= 0:
            self.taken.append(NOT_READ)
            return False
        self.taken.append(item)
        self._room -= len(item) if isinstance(item, str | bytes) else 1
        return True


NOT_READ = "... there are more; they were not read"
"""Follows the items that were read from an iterator."""


def fit(content: Content, chars_max: int, keep: Keep) -> Content:
    """Return content limited to about `chars_max` characters that can be sent; longer content is
    reduced to its two ends.
    """
    if isinstance(content, str):
        return _fit_text(content, chars_max, keep)
    return _fit_blocks(content, chars_max, keep)


# --- showing ------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """Return a value as JSON, or else with `str`, or else its type."""
    for write in (_json, _lenient_json, _json_with_halves):
        try:
            return write(value)
        except Exception:  # nested values may raise anything
            continue
    return _shown(value)


def _shown(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:
        kind, name = type(value).__name__, type(error).__name__
        return f"a value of type {kind} that cannot be shown ({name})"


def _json(value: Any) -> str:
    return to_json(value).decode("utf-8")


def _lenient_json(value: Any) -> str:
    """Return JSON with `str` for values that JSON does not support, and bytes as base64."""
    return to_json(value, fallback=_inner(value), bytes_mode="base64").decode("utf-8")


def _json_with_halves(value: Any) -> str:
    """Return JSON with lone surrogates in it, which pydantic refuses."""
    return json.dumps(value, default=_inner(value), ensure_ascii=False)


def _inner(whole: Any) -> Callable[[Any], str]:
    def shown(value: Any) -> str:
        if value is whole:
            raise TypeError("the text around it is not JSON")
        return _text(value) if isinstance(value, set | frozenset) else _shown(value)

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
"""First bytes of common file types (https://en.wikipedia.org/wiki/List_of_file_signatures)."""


def _of_bytes(data: bytes) -> str:
    """Return text if the bytes are UTF-8, otherwise a note, because base64 would be useless to a model."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        kind = next((kind for first, kind in _KINDS.items() if data.startswith(first)), "")
        return f"{len(data):,} bytes that are not text{f' ({kind})' if kind else ''}"


# --- blocks -------------------------------------------------------------------------------------------


def _blocks(value: Any) -> list[Json] | None:
    """Return a copy of content blocks that can be sent; None for any other value."""
    if not (isinstance(value, list) and value and all(map(_is_block, value))):
        return None
    try:
        return [_plain(block) for block in value]
    except (ValueError, RecursionError):
        return None


def _is_block(block: Any) -> bool:
    if not isinstance(block, dict) or block.get("type") not in RESULT_BLOCKS:
        return False
    if block["type"] == "text":
        return isinstance(block.get("text"), str)
    return block["type"] not in ("image", "document", "search_result") or "source" in block


def _plain(value: Any) -> Json:
    """Return a copy of a JSON value.

    Raises:
        ValueError: it is not a JSON value.
    """
    match value:
        case str():
            return _sendable(value)
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {_sendable(key): _plain(inner) for key, inner in value.items()}
    raise ValueError("not a JSON value")


def _fit_blocks(blocks: list[Json], chars_max: int, keep: Keep) -> list[Json]:
    """Return blocks with limited text: if it is too long, one block holds the start and end of the whole text."""
    sized = list(_within_limits(blocks))
    words = [_words(block) for block in sized]
    if sum(map(len, words)) <= chars_max:
        return [block for block in sized if block != _EMPTY]
    whole = "\n\n".join(filter(None, words))
    preview = {"type": "text", "text": _fit_text(whole, chars_max, keep)}
    first = next(place for place, text in enumerate(words) if text)
    return [
        preview if place == first else block
        for place, block in enumerate(sized)
        if place == first or not (words[place] or block == _EMPTY)
    ]


_EMPTY = {"type": "text", "text": ""}
"""The provider refuses empty text blocks."""


def _words(block: Json) -> str:
    """Return the text of a block that counts against the limit; an image has none."""
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
    """Yield the blocks, with a note in place of each one that is too large for the provider."""
    room = BINARY_CHARS_MAX
    for block in blocks:
        size = len(_binary(block))
        if size > (min(room, IMAGE_CHARS_MAX) if block["type"] == "image" else room):
            note = f"[a block of type {block['type']} with {size * 3 // 4:,} bytes is left out: it is too large]"
            yield {"type": "text", "text": note}
        else:
            room -= size
            yield block


# --- length -------------------------------------------------------------------------------------------


def _fit_text(text: str, chars_max: int, keep: Keep) -> str:
    if len(text) <= chars_max:
        return _sendable(text)
    path = keep(text)
    room = chars_max if path is None else min(chars_max, PREVIEW_CHARS_MAX)
    room = max(0, room - len(_note(len(text), len(text), path)))
    head = _up_to_line_end(text[: room - room // 3])
    tail = _from_line_start(text[len(text) - room // 3 :])
    note = _note(len(text) - len(head) - len(tail), len(text), path)
    return _sendable(head + note + tail)


def _note(left_out: int, whole: int, path: str | None) -> str:
    found = f"{left_out:,} of {whole:,} characters"
    if path is None:
        sentence = (
            f"{found} are left out here and were not kept. Ask for less at a time to see them."
        )
    else:
        sentence = f"{found} are left out here. The whole result lies in {path}"
    return f"\n\n[{sentence}]\n\n"


def _up_to_line_end(text: str) -> str:
    end = text.rfind("\n", len(text) // 2)
    return text if end < 0 else text[:end]


def _from_line_start(text: str) -> str:
    end = text.find("\n", 0, len(text) // 2)
    return text[end + 1 :]


def _sendable(text: str) -> str:
    """Return a text without lone surrogates, as in a file name that is not UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text
