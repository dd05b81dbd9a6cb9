"""A mapping with a maximum number of entries."""

from __future__ import annotations

from typing import Generic, TypeVar

REMEMBERED_MAX = 10_000
"""The default maximum. Our choice: the tables of a `Follower` then take about 20 MB."""

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V], Generic[K, V]):
    """A mapping that drops its oldest entry above a maximum number of entries."""

    def __init__(self, max_entries: int = REMEMBERED_MAX) -> None:
        """Keep `max_entries` entries at most."""
        super().__init__()
        self._max_entries = max_entries

    def put(self, key: K, value: V) -> V | None:
        """Set a key as the newest entry; return the value of the entry that was dropped, or None."""
        self.pop(key, None)
        self[key] = value
        return self.pop(next(iter(self))) if len(self) > self._max_entries else None
