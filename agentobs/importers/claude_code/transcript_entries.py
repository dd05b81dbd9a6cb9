"""Transcript entries: the parsed lines of a log, for all known versions of the client.

A log is a file of JSON lines to which the client appends. The entries of a sub-agent are in a separate file
(`agent-<id>.jsonl`) or in `agent_progress` lines of its parent's file; in older versions they are in both. Since
2.1.300, the separate file is in the folder `subagents` of the session, and `agent-<id>.meta.json` names the
call that started it.

The format was derived from logs of versions 2.0.64 to 2.1.41 and 2.1.332. Unknown fields are ignored, and lines of
unknown types are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from agentobs.importers.line_files import (
    LINE_BYTES_MAX,
    BadLine,
    file_bytes,
    instant_ns,
    lines_in,
)
from agentobs.provider.dialect import Block, Message
from agentobs.provider.registry import ANTHROPIC

META_BYTES = 1024 * 1024
"""The maximum size of the file about a sub-agent. Our choice."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log."""

    session_id: str
    """The client's ID of the session."""
    agent_id: str | None
    """The client's ID of the sub-agent; None for the main agent."""
    started_by: str | None
    """The tool_use ID of the call that started the sub-agent, if the line contains it."""
    uuid: str
    parent: str | None
    """The `uuid` of the entry that this one follows."""
    at_ns: int | None
    """When it was written, nanoseconds since 1970; None if the timestamp is invalid."""
    kind: str
    """`user`, `assistant`, `system`, `progress`, or another type, whose entries only connect other entries."""
    value: dict[str, Any] = field(repr=False)
    """The parsed JSON object."""

    message: Message = field(repr=False)
    """The message of a `user` or `assistant` entry; without content for other kinds."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The content of the message as blocks; a plain string is one block."""
        return self.message.blocks


@dataclass(frozen=True, slots=True)
class OtherLine:
    """A line that is not part of the conversation: about a request, about the costs, or of an unknown type."""

    session_id: str
    kind: str
    """Its type, from the file."""
    value: dict[str, Any] = field(repr=False)
    at_ns: int
    """When the last entry before it was written, nanoseconds since 1970; 0 if there is none."""


_KINDS = frozenset(("user", "assistant", "system", "progress"))
_CONNECTING = frozenset(("attachment",))
"""The other known types of entries: each has an entry before it, and entries after it, but no message."""
REQUEST_KINDS = frozenset(("api-request", "api-request-blob", "api-request-shape"))
"""The types of lines with parts of requests (since 2.1.300)."""
COST_KIND = "cost-state"
"""The type of lines with the client's own count of all tokens so far (since 2.1.300)."""
_IGNORED = frozenset(
    (
        "agent-name", "ai-title", "atis-latch", "custom-title", "file-history-snapshot", "last-prompt", "mode",
        "permission-mode", "queue-operation", "summary", "tools-used",
    )
)  # fmt: skip
"""The types of lines that contain only state of the client's user interface."""


def is_known(kind: str) -> bool:
    """Return whether lines of a type are imported, or contain nothing to import."""
    return kind in (*_KINDS, *_CONNECTING, *REQUEST_KINDS, COST_KIND, *_IGNORED)


def read_log(path: Path) -> Iterator[Entry | OtherLine | BadLine]:
    """Yield the entries of a log, in order, and the other lines except those about the user interface.

    The client may still be writing a last line without a newline, so such a line is also skipped if it is not JSON.

    Raises:
        OSError: the file cannot be read.
    """
    started_by = _started_by(path)
    last_ns = 0
    for number, line, size in lines_in(path, LINE_BYTES_MAX):
        if size > LINE_BYTES_MAX:
            yield BadLine(path, number, f"a line of {size:,} bytes")
            continue
        try:
            value = json.loads(line.decode("utf-8", "surrogatepass").removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            if line.endswith(b"\n") and line.strip():
                yield BadLine(path, number, f"not JSON: {_short(error)}")
            continue
        if not isinstance(value, dict):
            yield BadLine(path, number, f"a JSON {type(value).__name__} instead of an object")
            continue
        entry = _entry(value, started_by)
        if isinstance(entry, Entry) and entry.at_ns is not None:
            last_ns = entry.at_ns
        if isinstance(entry, OtherLine):
            yield replace(entry, at_ns=last_ns)
        elif entry is not None:
            yield entry


def _started_by(path: Path) -> str | None:
    """Return the call that started the sub-agent of a file, from its `.meta.json` file; None if it is unknown."""
    if not path.name.startswith("agent-"):
        return None
    try:
        found = json.loads(file_bytes(path.with_suffix(".meta.json"), META_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return _text(as_dict(found).get("toolUseId"))


def _entry(value: dict[str, Any], agent_started_by: str | None) -> Entry | OtherLine | None:
    kind, session_id = value.get("type"), value.get("sessionId")
    if not isinstance(kind, str) or not isinstance(session_id, str):
        return None
    if kind not in _KINDS and (_text(value.get("uuid")) is None or "parentUuid" not in value):
        return None if kind in _IGNORED else OtherLine(session_id, kind, value, 0)
    data = as_dict(value.get("data"))
    agent_id, started_by, inner = _text(value.get("agentId")), agent_started_by, value
    if kind == "progress" and data.get("type") == "agent_progress":
        # The line belongs to the parent agent, and contains an entry of the sub-agent.
        inner = as_dict(data.get("message"))
        agent_id, started_by = _text(data.get("agentId")), _text(value.get("parentToolUseID"))
        kind = inner.get("type")
        if kind not in ("user", "assistant") or agent_id is None:
            return None
    uuid = _text(inner.get("uuid")) or _text(value.get("uuid"))
    if uuid is None:
        return None
    return Entry(
        session_id=session_id,
        agent_id=agent_id,
        started_by=started_by,
        uuid=uuid,
        parent=_text(inner.get("parentUuid")),
        at_ns=instant(inner.get("timestamp")),
        kind=str(kind),
        value=inner,
        message=ANTHROPIC.response(as_dict(inner.get("message"))),
    )


def instant(value: object) -> int | None:
    """Return a timestamp of the logs in nanoseconds since 1970; None if it is invalid."""
    try:
        return instant_ns(datetime.fromisoformat(str(value)))
    except (ValueError, TypeError):
        return None


def as_dict(value: object) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _short(error: BaseException) -> str:
    """Describe an error without any text from the line."""
    if isinstance(error, UnicodeDecodeError):
        return "its bytes are not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return error.msg if isinstance(error, json.JSONDecodeError) else "a number with too many digits"
