"""File formats: what kind of recording a file is, for errors that name the right command."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from agentobs.errors import ForeignError

Format = Literal["vcr", "har", "agent-rewind", "orca", "wire", "claude-code", "bundle"]
"""The formats that can be imported, by the names of their commands."""

NAMES: dict[Format, str] = {
    "vcr": "a cassette",
    "har": "a HAR file",
    "agent-rewind": "a trace of agent-rewind",
    "orca": "the events of an OrcaReplay trace",
    "wire": "a file of exchanges, one per line",
    "claude-code": "a log of Claude Code",
    "bundle": "a bundle",
}
"""The name of a file of each format in errors."""

_MAGIC = (
    (b"PK\x03\x04", "a ZIP archive; unpack it first"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x28\xb5\x2f\xfd", "a file that is compressed with zstd; decompress it first"),
    (b"BZh", "a file that is compressed with bzip2; decompress it first"),
    (b"\xfd7zXZ", "a file that is compressed with xz; decompress it first"),
    (b"PAR1", "a Parquet file"),
    (b"%PDF", "a PDF file"),
    (b"\xff\xfe", "text in UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16; save it as UTF-8"),
)
_LINE_BYTES = 64 * 1024 * 1024
_HEAD_BYTES = 64 * 1024
_YAML_CASSETTE = re.compile(rb"^(?:(?:http_)?interactions|requests)[ \t]*:", re.MULTILINE)
_JSON_CASSETTE = re.compile(
    rb'\A\s*\{(?:[^{}\[\]]*,)?\s*"(?:(?:http_)?interactions|requests)"\s*:\s*\['
)
_JSON_HAR = re.compile(rb'\A\s*\{\s*"log"\s*:\s*\{')


def format_of(data: bytes) -> Format | None:
    """Return the format of a file by its content; None if it is none of the known formats."""
    head = data[:_HEAD_BYTES]
    if _JSON_HAR.match(head):
        return "har"
    if _JSON_CASSETTE.match(head):
        return "vcr"
    if head.lstrip().startswith(b"{"):
        return _format_of_line(data)
    # A key may follow a long list of another key, such as `requests` before `responses`.
    return "vcr" if b"\0" not in head and _YAML_CASSETTE.search(head) else None


def described(data: bytes) -> str:
    """Describe what a file is, with an article, without any text from it."""
    if not data.strip():
        return "an empty file"
    if (found := format_of(data)) is not None:
        return NAMES[found]
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    head = data[:_HEAD_BYTES]
    if b"\0" in head:
        return "binary data"
    start = head.lstrip()
    if start.startswith(b"<"):
        return "HTML or XML"
    if start.startswith((b"{", b"[")):
        return "other JSON"
    return "other text" if _is_utf8(head) else "data that is not UTF-8"


def foreign_content(data: bytes, expected: Format) -> ForeignError | None:
    """Return the error for a file that clearly has another format, or is not text; None if its reader should try it.

    Args:
        data: the file, or its start.
        expected: the format that the user named.
    """
    found = format_of(data)
    if found == expected:
        return None
    if found is not None:
        return ForeignError(described(data), todo=f"Run: agentobs import {found}")
    name = described(data)
    return None if name in ("other JSON", "other text") else ForeignError(name)


def _format_of_line(data: bytes) -> Format | None:
    """Return the format of a file by the keys of its first line."""
    end = data.find(b"\n", 0, _LINE_BYTES)
    try:
        value: Any = json.loads(data[: end if end != -1 else _LINE_BYTES])
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if "rewind_format" in value:
        return "agent-rewind"
    if "mono_us" in value and "seq" in value:
        return "orca"
    if "request" in value and "response" in value:
        return "wire"
    if "sessionId" in value or ("type" in value and "uuid" in value):
        return "claude-code"
    return None


def _is_utf8(head: bytes) -> bool:
    """Return whether data is UTF-8. A character may be cut at its end."""
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3
    return True
