"""Open calls: the tool calls that have no result yet."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Calls:
    """The open calls with one ID."""

    attempt_id: str
    ordinals: list[int]
    """Their positions among the calls of the response, from 1."""


@dataclass(slots=True)
class OpenCalls:
    """The calls without a result, by lane and ID. Different agents may use equal IDs, and some servers use one ID for
    all calls.
    """

    ids_max: int = 10_000
    """The number of IDs that are remembered."""
    _calls: dict[tuple[str, str], _Calls] = field(default_factory=dict)

    def add(self, lane: str, tool_use_id: str, attempt_id: str, ordinal: int) -> None:
        """Remember a call; results belong to the last response that contains their ID."""
        known = self._calls.pop((lane, tool_use_id), None)
        before = known.ordinals if known is not None and known.attempt_id == attempt_id else []
        self._calls[lane, tool_use_id] = _Calls(attempt_id, [*before, ordinal])
        if len(self._calls) > self.ids_max:
            del self._calls[next(iter(self._calls))]

    def take(self, lane: str, tool_use_id: str) -> tuple[str, int] | None:
        """Close the first open call with an ID; return its attempt and its position in the response, or None."""
        calls = self._calls.get((lane, tool_use_id))
        if calls is None:
            return None
        ordinal = calls.ordinals.pop(0)
        if not calls.ordinals:
            del self._calls[lane, tool_use_id]
        return calls.attempt_id, ordinal

    def lanes(self, tool_use_id: str) -> list[str]:
        """Return the lanes in which a call with this ID is open."""
        return [lane for lane, known in self._calls if known == tool_use_id]
