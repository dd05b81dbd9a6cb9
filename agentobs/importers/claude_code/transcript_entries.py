"""Reading the logs: lines become entries, whatever version of the client wrote them.

A log is a file of JSON lines that the client appends to. What an agent that another one started did stands in a
file of its own (`agent-<id>.jsonl`), or in `agent_progress` lines of its parent's file, in older versions in both.
Format: seen in logs of versions 2.0.64 to 2.1.41; fields that are not known are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from agentobs.importers.line_files import LINE_BYTES_MAX, BadLine, instant_ns, lines_in


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a log tells."""

    session_id: str
    """The client's id of the session."""
    agent_id: str | None
    """The client's id of the agent that another one started; None for the main one."""
    started_by: str | None
    """The tool_use id of the call that started that agent, where the line says so."""
    uuid: str
    parent: str | None
    """The `uuid` of the entry that this one follows."""
    at_ns: int | None
    """When it was written, nanoseconds since 1970; None where that cannot be read."""
    kind: str
    """`user`, `assistant`, `system` or `progress`."""
    value: dict[str, Any] = field(repr=False)
    """The whole line."""

    @property
    def message(self) -> dict[str, Any]:
        """The message of a `user` or `assistant` entry."""
        return as_dict(self.value.get("message"))

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The content of the message as blocks; a text is one."""
        content = self.message.get("content")
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        listed = content if isinstance(content, list) else []
        return [block for block in listed if isinstance(block, dict)]


_TOLD = frozenset(("user", "assistant", "system", "progress"))


def read_log(path: Path) -> Iterator[Entry | BadLine]:
    """Yield what a log tells, in its order; lines that hold nothing of the conversation are passed over.

    A last line without its end may be written right now: it is passed over too where it cannot be read.

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
            yield BadLine(path, number, f"a JSON {type(value).__name__} where an object belongs")
            continue
        if (entry := _entry(value)) is not None:
            yield entry


def _entry(value: dict[str, Any]) -> Entry | None:
    kind, session_id = value.get("type"), value.get("sessionId")
    if not isinstance(kind, str) or kind not in _TOLD or not isinstance(session_id, str):
        return None
    data = as_dict(value.get("data"))
    agent_id, started_by, told = _text(value.get("agentId")), None, value
    if kind == "progress" and data.get("type") == "agent_progress":
        # What another agent did: the line around it is this agent's.
        told = as_dict(data.get("message"))
        agent_id, started_by = _text(data.get("agentId")), _text(value.get("parentToolUseID"))
        kind = told.get("type")
        if kind not in ("user", "assistant") or agent_id is None:
            return None
    uuid = _text(told.get("uuid")) or _text(value.get("uuid"))
    if uuid is None:
        return None
    return Entry(
        session_id=session_id,
        agent_id=agent_id,
        started_by=started_by,
        uuid=uuid,
        parent=_text(told.get("parentUuid")),
        at_ns=instant(told.get("timestamp")),
        kind=str(kind),
        value=told,
    )


def instant(value: object) -> int | None:
    """Return an instant as the logs write it, in nanoseconds since 1970; None where it is none, or cannot be."""
    try:
        return instant_ns(datetime.fromisoformat(str(value)))
    except (ValueError, TypeError):
        return None


def as_dict(value: object) -> dict[str, Any]:
    """Return an object, or an empty one where something else stands."""
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _short(error: BaseException) -> str:
    """Return what is wrong without any of the text."""
    if isinstance(error, UnicodeDecodeError):
        return "its bytes are not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return error.msg if isinstance(error, json.JSONDecodeError) else "a number of too many digits"
