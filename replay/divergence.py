"""The divergence: the first question that differs from the recorded one, and a report of it.

One line first: where. Then what, as aligned lines; why, as far as the value can be followed back; what
was recorded after it; and the commands to go on with.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anthropic import AnthropicError

from agentobs.errors import ReplaySays
from agentobs.redaction import redact
from replay.diff import Difference, aligned, looks_like

Kind = Literal["content", "missing", "extra", "order", "tool", "world", "outcome", "network"]
ToolUses = Callable[[str], dict[str, Any] | None]
"""Finds a tool call by its id."""
SHOWN = 6
"""How many differences a report shows; of the rest it tells the number."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the replay had come."""

    requests_matched: int
    requests: int
    tools_matched: int
    tools: int
    answers_matched: int = 0
    answers: int = 0
    """Questions to the world beside model and tools."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between a recording and its replay, with all its facts."""

    fixture: str
    """The fixture's name."""
    path: str
    """The fixture's file."""
    kind: Kind
    lane: str
    number: int
    """Which request of the lane, from 1."""
    of: int
    """How many requests the lane has in the recording."""
    turn: int | None
    summary: str
    """What happened, in one sentence."""
    differences: tuple[Difference, ...]
    more: int
    """How many differences are not in `differences`."""
    why: str
    """The probable cause, or an empty string."""
    progress: Progress
    never_asked: str
    """What was recorded and not asked for."""

    def text(self) -> str:
        """Return the report for people; secrets are taken out of it."""
        p = self.progress
        parts = [f"{p.requests_matched} of {p.requests} requests"]
        parts += [f"{p.tools_matched} of {p.tools} tool calls"] if p.tools else []
        parts += [f"{p.answers_matched} of {p.answers} other questions"] if p.answers else []
        lines = [f"DIVERGED  {self.fixture}  {self._where()}   ({listed(parts)} matched)", ""]
        if not self.differences:
            lines += [f"  {self.summary}", ""]
        for difference in self.differences:
            lines.append(f"  {difference.path}")
            lines += [f"    {line}" for line in aligned(difference)]
            lines.append("")
        if self.more:
            lines += [f"  and {self.more} more difference{'s' * (self.more != 1)}", ""]
        facts = {
            "why": self.why,
            "kind": self._kind(),
            "after it": self.never_asked,
            "next": f"agentobs replay {self.path} --tools recorded | --tools live | --json",
        }
        lines += [f"  {name:<10} {value}" for name, value in facts.items() if value]
        return redact("\n".join(lines).encode("utf-8", "replace")).decode()

    def json(self) -> str:
        """Return the same facts as JSON; secrets are taken out of it."""
        value = dataclasses.asdict(self)
        return redact(
            json.dumps(value, ensure_ascii=False, indent=2, default=str).encode()
        ).decode()

    def _where(self) -> str:
        turn = f", turn {self.turn}" if self.turn else ""
        return f"{self.lane}, request {self.number} of {self.of}{turn}"

    def _kind(self) -> str:
        looks = [looks_like(d) for d in self.differences]
        known = sorted({look for look in looks if look})
        if not known:
            return self.kind
        hint = f"{self.kind}, {'; '.join(known)}"
        return hint if all(looks) else f"{hint} (in {sum(map(bool, looks))} of {len(looks)})"


class DivergenceError(AnthropicError, ReplaySays):
    """Raised where a replay parts from its recording, and again by every later request.

    It is an `AnthropicError`, so that the SDK neither retries nor wraps it.

    Attributes:
        divergence: the facts.
    """

    def __init__(self, divergence: Divergence) -> None:
        """Carry the facts of a divergence."""
        self.divergence = divergence
        super().__init__(divergence.text())


class ReplayStopped(AnthropicError, ReplaySays):
    """Raised instead of an answer where `until` ends the recorded path; not an error of anybody."""


def explain(
    difference: Difference | None, body: Any, went: Callable[[str], str], tool_use: ToolUses
) -> str:
    """Follow a difference in a request body back to what put it there.

    Args:
        difference: the first difference, or None.
        body: the request that came, parsed.
        went: tells, of a tool_use id, how the call went otherwise in this replay.
        tool_use: finds a call in the recorded answers, for a body that does not repeat its history.
    """
    match difference.keys if difference else ():
        case ("messages", int(at), "content", int(block), *_):
            return _explain_block(body, at, block, went, tool_use)
        case ("messages", int(at), *_):
            return f"message {at} was written by the agent ({_role(body, at)})"
        case ("system", *_):
            return "the system prompt was built differently"
        case ("tools", int(at), *_):
            return f"the declaration of tool {_tool_name(body, difference, at)} changed"
        case ("tools", *_):
            return "the set of tools changed"
        case ("(request)", str(part)):
            return f"the request's {part} changed"
        case (str(option), *_):
            return f"the request option {option} changed"
        case _:
            return ""


def _explain_block(
    body: Any, at: int, block_at: int, went: Callable[[str], str], tool_use: ToolUses
) -> str:
    block = _get(body, "messages", at, "content", block_at)
    if not isinstance(block, dict):
        return f"message {at} was written by the agent ({_role(body, at)})"
    if block.get("type") != "tool_result":
        return f"a {block.get('type', 'text')} block of message {at} was written by the agent ({_role(body, at)})"
    tool_use_id = str(block.get("tool_use_id"))
    call = _call(body, at, tool_use_id) or tool_use(tool_use_id)
    name = f"{call.get('name')}({_arguments(call.get('input'))})" if call else tool_use_id
    return f"tool_result of {name}: {went(tool_use_id)}"


def listed(parts: Sequence[str]) -> str:
    """Return parts as one listing: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def _call(body: Any, before: int, tool_use_id: str) -> dict[str, Any] | None:
    for message in reversed((body.get("messages") or [])[:before]):
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else []:
            if isinstance(block, dict) and block.get("id") == tool_use_id:
                return block
    return None


def _arguments(value: Any) -> str:
    if not isinstance(value, dict):
        return "..."
    text = ", ".join(
        f"{key}={json.dumps(inner, ensure_ascii=False)}" for key, inner in value.items()
    )
    return text if len(text) <= 60 else text[:59] + "…"


def _tool_name(body: Any, difference: Difference | None, at: int) -> str:
    for value in (
        difference.actual if difference else None,
        difference.expected if difference else None,
    ):
        if isinstance(value, dict) and "name" in value:
            return str(value["name"])
    return str(_get(body, "tools", at, "name") or at)


def _role(body: Any, at: int) -> str:
    return f"role {_get(body, 'messages', at, 'role')}"


def _get(value: Any, *keys: str | int) -> Any:
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value
