"""The spine of a request, which identifies requests of clients whose bodies vary from run to run.

The spine of a conversation consists of its prompts, the model's responses and the answered tool calls. Reminders that
the client inserts, the tools and the system prompt are not part of it. With `match="spine"`, a live request matches the
first recorded request that has the same spine; all other differences are reported as drift.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentobs.provider.dialect import Dialect, Turn
from agentobs.provider.registry import dialect_of_body, history
from agentobs.records.canonical_json import canonical, digest
from agentobs.records.differences import Difference
from replay.comparison.placeholders import bare

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
"""Text that clients insert into prompts, in the tag that Claude Code uses."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences between a live request and the recorded request with the same spine."""

    lane: str
    request: int
    """The number of the request in the fixture."""
    out_of_order: bool
    """Whether the request was sent before it was due."""
    differences: tuple[Difference, ...]
    more: int
    """The number of differences that are not in `differences`."""


def spine_of(body: Any) -> str | None:
    """Return a digest of the spine of a parsed request body; None if the body has no messages."""
    dialect = dialect_of_body(body)
    if not isinstance(body, dict) or not isinstance(body.get(dialect.history_key), list):
        return None
    turns = [dialect.turn(entry) for entry in history(body) if isinstance(entry, dict)]
    parts = [part for turn in turns for part in _parts(turn, dialect)]
    answered = {str(result.id) for turn in turns for result in turn.results}
    continued_id = dialect.continues(body)
    return digest(
        canonical([parts, sorted(answered), continued_id]).encode("utf-8", "surrogatepass")
    )


def _parts(turn: Turn, dialect: Dialect) -> Iterator[list[str]]:
    for block in turn.blocks:
        match block.kind:
            case "text":
                text = _REMINDER.sub("", bare(block.text)).strip()
                if text:
                    yield [turn.role, "text", text]
            case "result":
                continue
            case _ if turn.role == "assistant" and not block.id:
                block_value = dialect.without_breakpoints([block.raw])
                yield [turn.role, block.type, bare(canonical(block_value))]
            case _ if turn.role == "assistant":
                yield [turn.role, block.type, str(block.id)]
            case _:
                continue
