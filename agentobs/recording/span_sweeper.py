"""The span sweeper: closes spans that were never ended, on the thread of the timekeeper."""

from __future__ import annotations

from agentobs import tracing, world
from agentobs.recording.options import Options
from agentobs.recording.wire import transport


class Sweeper:
    """Looks for orphaned spans periodically while any span is open."""

    def __init__(self, options: Options) -> None:
        """Use the interval and the timeout of the options."""
        self._interval_s, self._orphan_s = options.span_sweep_seconds, options.span_orphan_seconds
        self._last_sweep_ns = world.monotonic()

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next sweep, at least 0; None if no span is open."""
        return max(self._remaining_s(), 0.0) if tracing.is_any_open() else None

    def sweep_if_due(self) -> None:
        """Close orphaned spans if a sweep is due. An arriving response chunk is activity in the span of its request."""
        if tracing.is_any_open() and self._remaining_s() <= 0:
            self._last_sweep_ns = world.monotonic()
            tracing.sweep(self._orphan_s, transport.activity())

    def _remaining_s(self) -> float:
        return self._interval_s - (world.monotonic() - self._last_sweep_ns) / 1e9
