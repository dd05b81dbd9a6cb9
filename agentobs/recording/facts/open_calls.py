"""Open calls: tool calls without a result, and which of them a result belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Asked:
    attempt_id: str
    ordinals: list[int]
    """Their positions among the calls of the response, from 1."""


@dataclass(slots=True)
class OpenCalls:
    """The calls without a result, by lane and ID: each agent has its own IDs, and some servers use one ID for all
    calls.
    """

    most: int = 10_000
    """How many IDs are remembered."""
    _asked: dict[tuple[str, str], _Asked] = field(default_factory=dict)

    def add(self, lane: str, tool_use_id: str, attempt_id: str, ordinal: int) -> None:
        """Remember a call; results belong to the last response that contains their ID."""
        known = self._asked.pop((lane, tool_use_id), None)
        before = known.ordinals if known is not None and known.attempt_id == attempt_id else []
        self._asked[lane, tool_use_id] = _Asked(attempt_id, [*before, ordinal])
        if len(self._asked) > self.most:
            del self._asked[next(iter(self._asked))]

    def take(self, lane: str, tool_use_id: str) -> tuple[str, int] | None:
        """Close the first call with an ID, and return its attempt and its position there; None if there is none."""
        asked = self._asked.get((lane, tool_use_id))
        if asked is None:
            return None
        ordinal = asked.ordinals.pop(0)
        if not asked.ordinals:
            del self._asked[lane, tool_use_id]
        return asked.attempt_id, ordinal

    def lanes(self, tool_use_id: str) -> list[str]:
        """Return the lanes in which a call with this ID is open."""
        return [lane for lane, known in self._asked if known == tool_use_id]
