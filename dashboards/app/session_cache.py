"""The results about sessions that are slow to compute, cached until the data of the session changes."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sized
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
MOST_RUNNING_RESULTS = 20
"""The number of cached results about running sessions, per state of the store. Our choice."""
MOST_ROWS = 100_000
"""The maximum number of rows of all cached results about ended sessions, and of those about running sessions; a result
with more than half of them is not cached. Our choice: they take about 200 MB, and the results about a session of 5,000
turns have 50,000 rows.
"""


class CachedResults:
    """The cached results about ended sessions, least recently used first."""

    def __init__(self) -> None:
        self.results: dict[tuple[Any, ...], Any] = {}


_cache_lock = Lock()


@dataclass(frozen=True, slots=True)
class SessionCache:
    """A cache of slow results about a session.

    Without it, live updates would compute the results about an ended session again each time another agent records
    something.
    """

    key: tuple[Any, ...] | None
    """The home, the session and its fingerprint; None if the session is running."""
    session_id: str
    running: MutableMapping[Any, Any]
    """The results about running sessions, which are valid for one state of the store."""

    @classmethod
    def of(cls, home: Home, view: View, session_id: str) -> SessionCache:
        """Return the cache for a session."""
        rows = view.named("listing/fingerprint", session_id=session_id)
        if not rows or rows[0]["status"] == "running":
            return cls(None, session_id, view.results)
        return cls((home.path, session_id, rows[0]["fingerprint"]), session_id, view.results)

    def get(self, name: Any, compute: Callable[[], T]) -> T:
        """Return the cached result with this name, or compute it; very long results are not cached."""
        if self.key is None:
            results, key, most = self.running, (self.session_id, name), MOST_RUNNING_RESULTS
        else:
            results = process.state(CachedResults).results
            key, most = (*self.key, name), MOST_RESULTS
        with _cache_lock:
            if key in results:
                cached: T = results.pop(key)
                results[key] = cached
                return cached
        result = compute()
        if _row_count(result) <= MOST_ROWS // 2:
            with _cache_lock:
                results[key] = result
                while len(results) > most or sum(map(_row_count, results.values())) > MOST_ROWS:
                    results.pop(next(iter(results)), None)
        return result


def _row_count(result: object) -> int:
    return len(result) if isinstance(result, Sized) else 0
