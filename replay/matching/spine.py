"""The spine: identifies requests of clients whose bodies vary from run to run.

The spine of a conversation consists of its prompts, the model's responses and the answered tool calls. Reminders that
the client inserts, and the order and wording of tools and system prompts, are not part of it. A replay that matches by
spine takes a request for the first recorded one with the same spine; other differences are reported as drift.
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
"""Text that clients insert into prompts; this is Claude Code's tag for it."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences of a request that was matched by its spine."""

    lane: str
    request: int
    """The number of the request in the fixture."""
    out_of_order: bool
    """Whether it came before it was due."""
    differences: tuple[Difference, ...]
    more: int
    """How many differences are not in `differences`."""


def spine_of(body: Any) -> str | None:
    """Return the spine of a parsed request body; None if it has none."""
    dialect = dialect_of_body(body)
    if not isinstance(body, dict) or not isinstance(body.get(dialect.history_key), list):
        return None
    listed = [dialect.turn(entry) for entry in history(body) if isinstance(entry, dict)]
    said = [each for turn in listed for each in _said(turn, dialect)]
    answered = {str(result.id) for turn in listed for result in turn.results}
    before = dialect.continues(body)
    return digest(canonical([said, sorted(answered), before]).encode("utf-8", "surrogatepass"))


def _said(turn: Turn, dialect: Dialect) -> Iterator[list[str]]:
    for block in turn.blocks:
        match block.kind:
            case "text":
                text = _REMINDER.sub("", bare(block.text)).strip()
                if text:
                    yield [turn.role, "text", text]
            case "result":
                continue
            case _ if turn.role == "assistant" and not block.id:
                rest = dialect.without_breakpoints([block.raw])
                yield [turn.role, block.type, bare(canonical(rest))]
            case _ if turn.role == "assistant":
                yield [turn.role, block.type, str(block.id)]
            case _:
                continue
