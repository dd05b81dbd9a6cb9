"""The usage in Claude Code's session logs (`~/.claude/projects/*/*.jsonl`).

A response with several content blocks consists of several lines, each with a usage object. These objects repeat the
counts so far, so only the last line of each `message.id` counts. Sub-agents are in separate files or in
`agent_progress` lines of their parent's file; in older versions they are in both, and each ID still counts only once.
The logs do not contain the requests or the number of attempts of a response.

The format was derived from logs of versions 2.0.64 to 2.1.41 and 2.1.332.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentobs.provider.registry import ANTHROPIC
from agentobs.records.usage import Certainty, Usage

SYNTHETIC = "<synthetic>"
"""The model name in lines that the client wrote without a request."""


@dataclass(frozen=True, slots=True)
class Response:
    """The usage of one response of the provider, from a log."""

    session_id: str
    """The client's ID of the session."""
    message_id: str
    """The provider's ID of the response."""
    agent_id: str | None
    """The client's ID of the sub-agent that sent the request, or None for the main agent."""
    at_ns: int
    """When its last line was written, nanoseconds since 1970; 0 if the timestamp is invalid."""
    usage: tuple[Usage, ...]
    """The total usage, then the usage of each iteration. If the log contains no stop reason, these are lower bounds,
    because the final counts may be missing.
    """


def usage_of(paths: Path | Iterable[Path]) -> list[Response]:
    """Return the usage of each response, in the order in which the response IDs first appear.

    Lines that are not JSON or have no usage are skipped.

    Args:
        paths: one log, or all logs of some sessions.
    """
    found: dict[tuple[str, str], Response] = {}
    for path in [paths] if isinstance(paths, Path) else paths:
        for line in path.read_bytes().splitlines():
            for response in _responses(line):
                key = response.session_id, response.message_id
                found[key] = response
    return list(found.values())


def _responses(line: bytes) -> Iterator[Response]:
    """Yield the response in a line, which may be a progress line with an entry of a sub-agent."""
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
        response = _response(session_id, inner, progress.get("agentId"))
    else:
        response = _response(session_id, entry, entry.get("agentId"))
    if response is not None:
        yield response


def _response(session_id: str, entry: dict[str, Any], agent_id: object) -> Response | None:
    message = ANTHROPIC.response(_dict(entry.get("message")))
    usage, model, message_id = message.usage, message.model, message.id
    if entry.get("type") != "assistant" or usage is None:
        return None
    if message_id is None or model == SYNTHETIC:
        return None
    certainty: Certainty = "exact" if message.stop_reason else "lower_bound"
    return Response(
        session_id,
        message_id,
        agent_id if isinstance(agent_id, str) else None,
        _instant(entry.get("timestamp")),
        tuple(ANTHROPIC.usage_rows(str(model), usage, certainty)),
    )


def _instant(value: object) -> int:
    try:
        since = datetime.fromisoformat(str(value)) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, TypeError):
        return 0
    return since // timedelta(microseconds=1) * 1000


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
