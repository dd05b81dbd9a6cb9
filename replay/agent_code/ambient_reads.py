"""Ambient reads: values of the clock, `uuid` and `random` that the agent read without the session.

A replay with `patch="report"` does not change these reads, but remembers them. If a request differs because it contains
a value that was read in this way, the report names the line that read the value.
"""

from __future__ import annotations

import datetime
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from agentobs.records.differences import Difference
from replay.agent_code.call_sites import Site, site_at

READS_MAX = 10_000
"""The maximum number of reads that are remembered. Our choice."""
TEXT_MIN = 5
"""The minimum number of characters of a value that is searched for. Our choice: shorter values occur by chance."""


class Reads:
    """The last reads of a replay."""

    def __init__(self) -> None:
        """Start without reads."""
        self._reads: deque[tuple[str, Any, Site]] = deque(maxlen=READS_MAX)

    def note(self, name: str, value: Any, frame: FrameType) -> None:
        """Remember the return value of a function, and the place of the caller."""
        self._reads.append((name, value, site_at(frame)))

    def source_of(self, found: Sequence[Difference]) -> str | None:
        """Describe the first read whose value appears in the differences; None if there is no such read."""
        reads = (read for each in found if (read := self._read_in(each)) is not None)
        return next((f"the return value of {name}() at {site.text}" for name, site in reads), None)

    def _read_in(self, found: Difference) -> tuple[str, Site] | None:
        """Return the last read whose value is part of the new, but not of the recorded value; None if there is none."""
        new, old = str(found.actual), str(found.expected)
        for name, value, site in reversed(self._reads):
            if any(text in new and text not in old for text in _texts(value)):
                return name, site
        return None


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in which a value may appear."""
    texts = [str(value)]
    if isinstance(value, uuid.UUID):
        texts += [value.hex]
    elif isinstance(value, float):
        texts += [str(int(value)), f"{value:.0f}"]
    elif isinstance(value, datetime.datetime):
        texts += [
            value.isoformat(),
            value.isoformat()[:19],
            f"{value:%H:%M:%S}",
            f"{value:%Y-%m-%d}",
        ]
    elif isinstance(value, time.struct_time):
        texts = [time.strftime("%Y-%m-%d %H:%M:%S", value), time.strftime("%H:%M:%S", value)]
    elif isinstance(value, bytes):
        texts = [value.hex()]
    yield from (text for text in texts if len(text) >= TEXT_MIN)
