"""Images in messages, for display: only formats that browsers decode without running anything, and only small ones."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

MOST_IMAGES = 8
"""The maximum number of images of a block that are shown. Our choice."""
MOST_BYTES = 1_500_000
"""The maximum size of an image that is shown, in bytes; providers accept up to 5 MB. Our choice: a page with some
images stays below 10 MB."""
_SHORTEST = 60
"""The minimum length of an encoded image, in characters."""
_STARTS: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""The first bytes of the formats. Source: the PNG, JPEG and GIF specifications. SVG is left out, because it can contain
scripts."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a message."""

    url: str
    """A `data:` URL; empty if the image is too large to be shown."""
    kind: str
    size: int
    """The size in bytes."""


def images_in(value: Any) -> list[Image]:
    """Return the images in a value of JSON, in order: texts that are the base64 of an image, in any dialect."""
    found: list[Image] = []
    for text in _texts(value):
        if len(found) == MOST_IMAGES:
            break
        if (kind := _kind(text)) is None:
            continue
        size = len(text) * 3 // 4
        is_shown = size <= MOST_BYTES and _is_base64(text)
        found.append(Image(f"data:{kind};base64,{text}" if is_shown else "", kind, size))
    return found


def _texts(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            if len(each) >= _SHORTEST:
                yield each
        elif isinstance(each, dict):
            pending.extend(reversed(list(each.values())))
        elif isinstance(each, list):
            pending.extend(reversed(each))


def _kind(text: str) -> str | None:
    """Return the media type of an encoded image; None if the text is not an image."""
    try:
        start = base64.b64decode(text[:24], validate=True)
    except (ValueError, binascii.Error):
        return None
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for first, kind in _STARTS.items() if start.startswith(first)), None)


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return False
    return True
