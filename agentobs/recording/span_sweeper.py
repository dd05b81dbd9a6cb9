"""Sweeping: the recorder closes spans that were never ended, on an existing thread."""

from __future__ import annotations

from agentobs import tracing, world
from agentobs.recording.options import Options
from agentobs.recording.wire import transport


class Sweeper:
    """Looks for orphaned spans periodically while there are open spans."""

    def __init__(self, options: Options) -> None:
        """Use the interval and the timeout of the options."""
        self._every_s, self._silent_s = options.span_sweep_seconds, options.span_orphan_seconds
        self._swept_ns = world.monotonic()

    def patience_s(self) -> float | None:
        """Return in how many seconds to look again; None if no span is open."""
        return max(self._left_s(), 0.0) if tracing.is_any_open() else None

    def tick(self) -> None:
        """Sweep, where it is time to. What arrives of an answer happens in the span of its request."""
        if tracing.is_any_open() and self._left_s() <= 0:
            self._swept_ns = world.monotonic()
            tracing.sweep(self._silent_s, transport.activity())

    def _left_s(self) -> float:
        return self._every_s - (world.monotonic() - self._swept_ns) / 1e9
