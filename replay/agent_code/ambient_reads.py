"""Reads: what code got from the clock, from `uuid` and from `random` outside the session, and where, until it shows.

A replay that is asked for it (`patch="report"`) changes no such read and remembers them. Where a request differs by a
value that one of them returned, the report names the line.
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
"""How many reads are remembered. Our choice."""
TEXT_MIN = 5
"""How many characters a value must have to be known again. Our choice: shorter ones stand anywhere."""


class Reads:
    """The reads of one replay, the last ones."""

    def __init__(self) -> None:
        """Start with none."""
        self._reads: deque[tuple[str, Any, Site]] = deque(maxlen=READS_MAX)

    def note(self, name: str, value: Any, frame: FrameType) -> None:
        """Remember what a function returned, and who called it."""
        self._reads.append((name, value, site_at(frame)))

    def shown_in(self, found: Sequence[Difference]) -> str | None:
        """Return which read one of some new values holds, in words; None where none does."""
        reads = (read for each in found if (read := self._in(each)) is not None)
        return next((f"what {name}() returned at {site.text}" for name, site in reads), None)

    def _in(self, found: Difference) -> tuple[str, Site] | None:
        """Return the last read whose value is in the actual value, and not in the recorded one."""
        new, old = str(found.actual), str(found.expected)
        for name, value, site in reversed(self._reads):
            if any(text in new and text not in old for text in _texts(value)):
                return name, site
        return None


def _texts(value: Any) -> Iterator[str]:
    """Yield the forms of a value in a text."""
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
