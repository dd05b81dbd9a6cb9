"""The results about ended sessions that are slow to compute, cached until the data of the session changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sized
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from agentobs.recording.journal.home import Home
from agentobs.runtime import process
from dashboards.app.store_view import View

T = TypeVar("T")

MOST_RESULTS = 40
"""The number of cached results about ended sessions: figures, trees, steps and diagnoses of 8 sessions. The figures
of a session take about 400 kB, a thousand steps 2 MB. Our choice."""
MOST_RESULT_ROWS = 10_000
"""Results with more rows than this are not cached. Our choice."""


class CachedResults:
    """The cached results about ended sessions, least recently used first."""

    def __init__(self) -> None:
        self.results: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


_cache_lock = Lock()


@dataclass(frozen=True, slots=True)
class EndedSessionCache:
    """A cache of slow results about an ended session. Without it, live updates would compute them again each time
    another agent records something.
    """

    key: tuple[Any, ...] | None
    """The home, the session and its fingerprint. None if the session is running; in that case nothing is cached."""

    @classmethod
    def of(cls, home: Home, view: View, session_id: str) -> EndedSessionCache:
        """Return the cache for a session."""
        rows = view.named("listing/fingerprint", session_id=session_id)
        if not rows or rows[0]["status"] == "running":
            return cls(None)
        return cls((home.path, session_id, rows[0]["fingerprint"]))

    def get(self, name: Any, compute: Callable[[], T]) -> T:
        """Return the cached result with this name, or compute it; long results are not cached."""
        cached = process.state(CachedResults)
        if self.key is None:
            return compute()
        key = (*self.key, name)
        with _cache_lock:
            if key in cached.results:
                cached.results.move_to_end(key)
                cached_result: T = cached.results[key]
                return cached_result
        result = compute()
        if isinstance(result, Sized) and len(result) > MOST_RESULT_ROWS:
            return result
        with _cache_lock:
            cached.results[key] = result
            while len(cached.results) > MOST_RESULTS:
                cached.results.popitem(last=False)
        return result
