"""The spine: by what a request of a client is known whose bodies vary from run to run.

What a person said, what the model answered and which calls were answered is the backbone of a conversation; reminders
that the client weaves in, the order and the wording of tools and prompts are not. A replay that matches by the spine
takes a request for the first one that was recorded with the same; what differs all the same is drift, which is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentobs.provider.messages import blocks, tool_results
from agentobs.records.canonical_json import canonical, digest
from agentobs.records.differences import Difference
from replay.comparison.placeholders import bare

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
"""What clients weave into what a person said; Claude Code calls it so."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What differs in a request that was taken for a recorded one by its spine."""

    lane: str
    request: int
    """The number of the request in the fixture."""
    out_of_order: bool
    """Whether it came earlier than it was due."""
    differences: tuple[Difference, ...]
    more: int
    """How many differences are not in `differences`."""


def spine_of(body: Any) -> str | None:
    """Return the spine of a request body, parsed; None where it has none."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list):
        return None
    listed = [message for message in messages if isinstance(message, dict)]
    said = [each for message in listed for each in _said(message)]
    answered = {str(r.get("tool_use_id")) for message in listed for r in tool_results(message)}
    thread = body.get("thread")
    before = thread.get("previous_message_id") if isinstance(thread, dict) else None
    return digest(canonical([said, sorted(answered), before]).encode("utf-8", "surrogatepass"))


def _said(message: dict[str, Any]) -> Iterator[list[str]]:
    role = str(message.get("role"))
    for block in blocks(message):
        match block.get("type"):
            case "text":
                text = _REMINDER.sub("", bare(str(block.get("text", "")))).strip()
                if text:
                    yield [role, "text", text]
            case "tool_result":
                continue
            case kind if role == "assistant" and not block.get("id"):
                rest = {k: v for k, v in block.items() if k != "cache_control"}
                yield [role, str(kind), bare(canonical(rest))]
            case kind if role == "assistant":
                yield [role, str(kind), str(block.get("id"))]
