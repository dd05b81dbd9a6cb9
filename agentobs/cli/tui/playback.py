"""Playback of a recorded session: its steps one after the other, at the recorded pace or at a chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
"""The speeds, as multiples of the recorded pace. Our choice."""
FIXED_SECONDS = 1.0
"""The time between two steps at the fixed pace."""


@dataclass(frozen=True, slots=True)
class Playback:
    """A position in the steps of a session, and the pace. It reads no clock."""

    times_ns: Sequence[int]
    """When each step started, in nanoseconds since 1970, in order."""
    position: int = 0
    """The number of steps that are shown."""
    speed: float | None = 1.0
    """The multiple of the recorded pace; None for one step per second."""
    is_playing: bool = False

    @property
    def is_at_end(self) -> bool:
        """Whether all steps are shown."""
        return self.position >= len(self.times_ns)

    @property
    def delay_seconds(self) -> float:
        """The time until the next step; 0 if there is none, or before the first step."""
        if self.is_at_end or self.position == 0:
            return 0.0
        if self.speed is None:
            return FIXED_SECONDS
        waited_ns = self.times_ns[self.position] - self.times_ns[self.position - 1]
        return max(waited_ns, 0) / 1e9 / self.speed

    @property
    def elapsed_ns(self) -> int:
        """The recorded time from the first step to the last one that is shown."""
        return self.times_ns[self.position - 1] - self.times_ns[0] if self.position else 0

    @property
    def pace(self) -> str:
        """The pace as a text."""
        if self.speed is None:
            return "one step per second"
        return "recorded pace" if self.speed == 1 else f"{self.speed:g}x recorded pace"

    def forward(self) -> Playback:
        """Show one more step; at the end, playback stops."""
        position = min(self.position + 1, len(self.times_ns))
        is_playing = self.is_playing and position < len(self.times_ns)
        return replace(self, position=position, is_playing=is_playing)

    def back(self) -> Playback:
        """Go back one step, and stop."""
        return replace(self, position=max(self.position - 1, 0), is_playing=False)

    def toggled(self) -> Playback:
        """Start or stop; at the end, start from the beginning."""
        if not self.is_playing and self.is_at_end:
            return replace(self, position=0, is_playing=bool(self.times_ns))
        return replace(self, is_playing=not self.is_playing)

    def faster(self) -> Playback:
        """Take the next higher speed."""
        return replace(self, speed=next((s for s in SPEEDS if s > (self.speed or 1)), SPEEDS[-1]))

    def slower(self) -> Playback:
        """Take the next lower speed."""
        lower = [s for s in SPEEDS if s < (self.speed or 1)]
        return replace(self, speed=lower[-1] if lower else SPEEDS[0])

    def at_recorded_pace(self) -> Playback:
        """Play at the recorded pace."""
        return replace(self, speed=1.0)

    def at_fixed_pace(self) -> Playback:
        """Play one step per second."""
        return replace(self, speed=None)
