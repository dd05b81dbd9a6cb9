"""Prefixes: what changed in a prompt before what is new in it, which is why the provider's cache misses.

A prompt is cached from its start: model, tools, system, parameters, then message after message. A request
is compared with the earlier one whose messages it repeats, else with the one that shares the most bytes.
Only values are compared that are parsed anyway; no text and no digest of it leaves this module.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentobs.recording.bodies import Body
from agentobs.records.facts import Prefix
from agentobs.records.labels import Label

Changed = Literal["model", "tools", "system", "parameters", "messages"]

KEPT = 16
"""How many earlier prompts of a session are kept to compare with: as many as there are bodies."""

_ZONES: tuple[tuple[Changed, tuple[str, ...]], ...] = (
    ("model", ("model", "speed")),
    ("tools", ("tools",)),
    ("system", ("system",)),
    ("parameters", ("tool_choice", "thinking")),
)
"""The zones before the messages, in the order in which a prompt is cached, with the fields that make them.

Source: provider documentation, 2026-11 (platform.claude.com/docs/en/build-with-claude/prompt-caching, what
invalidates the cache)."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    attempt_id: str
    lane: str
    zones: tuple[Any, ...]


class Prefixes:
    """The last prompts of one session."""

    def __init__(self) -> None:
        """Start with none."""
        self._kept: OrderedDict[str, _Prompt] = OrderedDict()

    def compare(
        self,
        body: Body,
        session_id: str,
        attempt_id: str,
        lane: str,
        message: Mapping[str, Any],
        label: Callable[[str], Label],
    ) -> Prefix | None:
        """Return what there is to say of a prompt that was answered with `message`, and keep the prompt."""
        before = self._before(body, lane)
        prompt = _Prompt(attempt_id, lane, _zones(body.head, before))
        changed, number = _difference(body, before, prompt) if before else (None, None)
        self._keep(body.content_id, prompt)
        reason, missed = _told(message)
        if changed is None and reason is None:
            return None
        return Prefix(
            session_id=session_id,
            attempt_id=attempt_id,
            compared_attempt_id=before.attempt_id if before else None,
            changed=changed,
            changed_message=number,
            miss_reason=label(reason) if reason else None,
            missed_tokens=missed,
        )

    def _before(self, body: Body, lane: str) -> _Prompt | None:
        """Return the prompt to compare with; None where a conversation begins."""
        if body.origin and body.origin in self._kept:
            return self._kept[body.origin]
        if body.base and body.shared_messages and body.base in self._kept:
            return self._kept[body.base]
        if (body.message_count or 0) < 2:
            return None
        of_lane = (prompt for prompt in reversed(self._kept.values()) if prompt.lane == lane)
        return next(of_lane, None)

    def _keep(self, content_id: str, prompt: _Prompt) -> None:
        self._kept.pop(content_id, None)
        self._kept[content_id] = prompt
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)


def _zones(head: Mapping[str, Any], before: _Prompt | None) -> tuple[Any, ...]:
    """Return the values of the zones; those that are as before are the same objects, so that they weigh once."""
    now = tuple(tuple(head.get(name) for name in names) for _, names in _ZONES)
    if before is None:
        return now
    return tuple(old if old == new else new for old, new in zip(before.zones, now, strict=True))


def _difference(body: Body, before: _Prompt, prompt: _Prompt) -> tuple[Changed | None, int | None]:
    """Return the first zone that changed, and of messages the first that did, from 1."""
    for (zone, _), old, new in zip(_ZONES, before.zones, prompt.zones, strict=True):
        if old is not new and _unmarked(old) != _unmarked(new):
            return zone, None
    if body.origin or body.shared_messages == body.message_count:
        return None, None  # it goes on from the earlier prompt, or goes back in it
    return "messages", body.shared_messages + 1


def _unmarked(value: Any) -> Any:
    """Return tools or a system prompt without the marks of the cache; a mark makes a list of what was text."""
    if isinstance(value, tuple):
        return tuple(_unmarked(each) for each in value)
    if isinstance(value, list):
        plain = [_without_mark(each) for each in value]
        only = plain[0] if len(plain) == 1 and isinstance(plain[0], dict) else {}
        return only["text"] if only.keys() == {"type", "text"} else plain
    return value


def _without_mark(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: inner for key, inner in value.items() if key != "cache_control"}


def _told(message: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Return the provider's reason of a miss and the tokens that it names."""
    diagnostics = message.get("diagnostics")
    reason = diagnostics.get("cache_miss_reason") if isinstance(diagnostics, dict) else None
    if not isinstance(reason, dict) or not isinstance(reason.get("type"), str):
        return None, None
    missed = reason.get("cache_missed_input_tokens")
    is_count = isinstance(missed, int) and not isinstance(missed, bool) and 0 <= missed <= 10**12
    return reason["type"] or None, missed if is_count else None
