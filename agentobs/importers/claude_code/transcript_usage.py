"""Claude Code's own session logs (`~/.claude/projects/*/*.jsonl`), read for what they say was used.

One response with several content blocks is several lines, each with a usage object of its own: they repeat
what was counted so far, so the last line of a `message.id` stands and the others count nothing. Sub-agents
stand in files of their own or in `agent_progress` lines of their parent's file, in older versions in both:
an id counts once there, too. Requests are not in the logs, nor how many tries a response took.

Format: seen in logs of versions 2.0.64 to 2.1.41.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentobs.records.usage import Certainty, Usage, usage_rows

SYNTHETIC = "<synthetic>"
"""The model of lines that the client wrote itself; nothing was asked."""


@dataclass(frozen=True, slots=True)
class Response:
    """What one response of the provider used, as a log tells it."""

    session_id: str
    """The client's id of the session."""
    message_id: str
    """The provider's id of the response."""
    agent_id: str | None
    """The client's id of the sub-agent that asked, or None for the main agent."""
    at_ns: int
    """When its last line was written, nanoseconds since 1970; 0 where that cannot be read."""
    usage: tuple[Usage, ...]
    """The whole, then its iterations. A lower bound where the log does not say why the model stopped: its
    last counts may not have been written."""


def usage_of(paths: Path | Iterable[Path]) -> list[Response]:
    """Return what was used, once for each response, in the order in which the ids came first.

    Lines that are no JSON or tell no usage are passed over.

    Args:
        paths: one log, or all the logs of some sessions.
    """
    found: dict[tuple[str, str], Response] = {}
    for path in [paths] if isinstance(paths, Path) else paths:
        for line in path.read_bytes().splitlines():
            for response in _responses(line):
                key = response.session_id, response.message_id
                found[key] = response
    return list(found.values())


def _responses(line: bytes) -> Iterator[Response]:
    """Yield what a line tells: a line of the main agent's or a sub-agent's log, or of a sub-agent's progress."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return
    if not isinstance(entry, dict):
        return
    session_id = str(entry.get("sessionId", ""))
    progress = _dict(entry.get("data"))
    if progress.get("type") == "agent_progress":
        inner = _dict(progress.get("message"))
        told = _response(session_id, inner, progress.get("agentId"))
    else:
        told = _response(session_id, entry, entry.get("agentId"))
    if told is not None:
        yield told


def _response(session_id: str, entry: dict[str, Any], agent_id: object) -> Response | None:
    message = _dict(entry.get("message"))
    usage, model, message_id = message.get("usage"), message.get("model"), message.get("id")
    is_told = entry.get("type") == "assistant" and isinstance(usage, dict)
    if not is_told or not isinstance(message_id, str) or model == SYNTHETIC:
        return None
    certainty: Certainty = "exact" if message.get("stop_reason") else "lower_bound"
    return Response(
        session_id,
        message_id,
        agent_id if isinstance(agent_id, str) else None,
        _instant(entry.get("timestamp")),
        tuple(usage_rows(str(model), _dict(usage), certainty)),
    )


def _instant(value: object) -> int:
    try:
        since = datetime.fromisoformat(str(value)) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, TypeError):
        return 0
    return since // timedelta(microseconds=1) * 1000


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
