"""Open calls: tool calls that have no result yet, and which one a result with their id belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Asked:
    attempt_id: str
    ordinals: list[int]
    """Their places among the calls of the answer, from 1."""


@dataclass(slots=True)
class OpenCalls:
    """The calls without a result, by lane and id: agents have ids of their own, and some servers have one for all."""

    most: int = 10_000
    """How many ids are kept in mind."""
    _asked: dict[tuple[str, str], _Asked] = field(default_factory=dict)

    def add(self, lane: str, tool_use_id: str, attempt_id: str, ordinal: int) -> None:
        """Keep a call in mind; the last answer with an id is the one that its results answer."""
        known = self._asked.pop((lane, tool_use_id), None)
        before = known.ordinals if known is not None and known.attempt_id == attempt_id else []
        self._asked[lane, tool_use_id] = _Asked(attempt_id, [*before, ordinal])
        if len(self._asked) > self.most:
            del self._asked[next(iter(self._asked))]

    def take(self, lane: str, tool_use_id: str) -> tuple[str, int] | None:
        """Close the first call of an id, and return its attempt and its place there; None where there is none."""
        asked = self._asked.get((lane, tool_use_id))
        if asked is None:
            return None
        ordinal = asked.ordinals.pop(0)
        if not asked.ordinals:
            del self._asked[lane, tool_use_id]
        return asked.attempt_id, ordinal

    def lanes(self, tool_use_id: str) -> list[str]:
        """Return the lanes in which a call of this id is open."""
        return [lane for lane, known in self._asked if known == tool_use_id]
