"""Transcript entries: the parsed lines of a log, for all known versions of the client.

A log is a file of JSON lines to which the client appends. The entries of a sub-agent are in a separate file
(`agent-<id>.jsonl`) or in `agent_progress` lines of its parent's file; in older versions they are in both. The format
was derived from logs of versions 2.0.64 to 2.1.41. Unknown fields are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from agentobs.importers.line_files import LINE_BYTES_MAX, BadLine, instant_ns, lines_in
from agentobs.provider.dialect import Block, Message
from agentobs.provider.registry import ANTHROPIC


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
    """`user`, `assistant`, `system` or `progress`."""
    value: dict[str, Any] = field(repr=False)
    """The parsed JSON object."""

    message: Message = field(repr=False)
    """The message of a `user` or `assistant` entry; without content for other kinds."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The content of the message as blocks; a plain string is one block."""
        return self.message.blocks


_KINDS = frozenset(("user", "assistant", "system", "progress"))


def read_log(path: Path) -> Iterator[Entry | BadLine]:
    """Yield the entries of a log, in order; lines that are not part of the conversation are skipped.

    The client may still be writing a last line without a newline, so such a line is also skipped if it is not JSON.

    Raises:
        OSError: the file cannot be read.
    """
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
        if (entry := _entry(value)) is not None:
            yield entry


def _entry(value: dict[str, Any]) -> Entry | None:
    kind, session_id = value.get("type"), value.get("sessionId")
    if not isinstance(kind, str) or kind not in _KINDS or not isinstance(session_id, str):
        return None
    data = as_dict(value.get("data"))
    agent_id, started_by, inner = _text(value.get("agentId")), None, value
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
