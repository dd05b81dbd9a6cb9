"""The verdict of a served recording: how each live request was answered, as counts, text and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from agentobs.records.differences import Difference
from agentobs.records.display import printable

Kind = Literal["exact", "drift", "miss"]
"""How a live request compares to the recording.

`exact`: equal, apart from text that the client inserts and values with a live partner; `drift`: the same place of the
conversation, but other parts differ; `miss`: no recorded request is at this place.
"""
VALUE_MAX = 120
"""The maximum number of characters of a value that are shown. Our choice."""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A live request, and the response that it got."""

    number: int
    """The number of the live request, from 1."""
    kind: Kind
    request: int | None
    """The number of the recorded request that answered it; for a miss, of the nearest one; None if there is none."""
    is_ambiguous: bool = False
    """Whether another recorded request was equally likely, and no later request has decided between them."""
    differences: tuple[Difference, ...] = field(default=(), repr=False)
    """The differences from the recorded request, at most `DIFFERENCES_MAX`."""
    more: int = 0
    """The number of further differences."""
    is_repeated: bool = False
    """Whether an earlier request of the lane had the same differences, which are part of the conversation since."""
    is_change: bool = False
    """Whether the program took another path: the request has a new difference from the recorded one.

    A difference is not new if an earlier request of the lane had it. The text of a result does not count if the result
    is an error in both.
    """
    is_unanswered: bool = False
    """Whether it is a miss because `request`, which it repeats, was recorded without a response."""

    def line(self) -> str:
        """Return the result in one line, without content."""
        if self.is_unanswered:
            return f"request {self.number} is request {self.request} of the recording, which has no response"
        if self.kind == "miss":
            near = f"; the nearest is request {self.request}" if self.request else ""
            where = f"; first difference at {self.first}" if self.first else ""
            return f"request {self.number} was not recorded{near}{where}"
        found = f"request {self.number} is request {self.request} of the recording: {self.kind}"
        ambiguous = ", ambiguous" if self.is_ambiguous else ""
        return f"{found}{ambiguous}{f', at {self.first}' if self.first else ''}"

    @property
    def first(self) -> str:
        """The path of the first difference; empty if there is none."""
        return printable(self.differences[0].path) if self.differences else ""

    def explanation(self) -> Iterator[str]:
        """Yield the result and the differences, with their values."""
        yield self.line()
        for each in self.differences:
            yield f"  {printable(each.path)}"
            yield f"    recorded  {_shown(each.expected)}"
            yield f"    now       {_shown(each.actual)}"
        if self.more:
            yield f"  and {self.more} more differences"

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON value."""
        changes = [
            {"path": d.path, "change": d.change, "recorded": d.expected, "live": d.actual}
            for d in self.differences
        ]
        return {
            "request": self.number,
            "verdict": self.kind,
            "recorded_request": self.request,
            "ambiguous": self.is_ambiguous,
            "differences": changes,
            "more_differences": self.more,
            "repeated": self.is_repeated,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the requests of a run were answered."""

    total: int
    """The number of recorded requests that the run could send."""
    requests: tuple[ServedRequest, ...] = ()
    """The live requests, in the order in which they came."""
    unused: tuple[int, ...] = ()
    """The numbers of the recorded requests that the run did not send."""
    rejected: int = 0
    """The number of requests that the real provider would have rejected."""
    scripted: int = 0
    """The number of requests after the recorded part that got a scripted response."""
    live: int = 0
    """The number of requests after the recorded part that went to the provider."""
    live_from: int | None = None
    """The number of the first request that went to the provider; None if none did."""

    def count(self, kind: Kind) -> int:
        """Return how many requests have this result."""
        return sum(each.kind == kind for each in self.requests)

    @property
    def served(self) -> int:
        """The number of recorded requests that were answered."""
        return self.total - len(self.unused)

    @property
    def notable(self) -> list[ServedRequest]:
        """The requests that are not exact or are ambiguous, without those that only repeat earlier differences."""
        return [
            each
            for each in self.requests
            if (each.kind != "exact" or each.is_ambiguous) and not each.is_repeated
        ]

    @property
    def ambiguous(self) -> int:
        """The number of requests that two recorded requests could answer."""
        return sum(each.is_ambiguous for each in self.requests)

    def line(self) -> str:
        """Return the counts in one line."""
        counts = {
            "exact": self.count("exact"),
            "drift": self.count("drift"),
            "missed": self.count("miss"),
            "ambiguous": self.ambiguous,
            "rejected": self.rejected,
            "scripted": self.scripted,
            "live": self.live,
            "unused": len(self.unused),
        }
        shown = [f"{name} {count}" for name, count in counts.items() if count or name == "exact"]
        text = f"served {self.served} of {self.total} exchanges: {', '.join(shown)}"
        return text if self.live_from is None else f"{text}; live from request {self.live_from} on"

    def explanation(self) -> str:
        """Return the counts, and each request that is not exact, with its differences."""
        lines = [self.line()]
        for each in self.notable:
            lines += each.explanation()
        if repeated := sum(each.is_repeated for each in self.requests):
            lines.append(f"{repeated} later requests contain the same differences")
        if self.unused:
            lines.append(f"not sent: request {', '.join(map(str, self.unused))} of the recording")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as a JSON value."""
        return {
            "served": self.served,
            "total": self.total,
            "exact": self.count("exact"),
            "drift": self.count("drift"),
            "missed": self.count("miss"),
            "ambiguous": self.ambiguous,
            "rejected": self.rejected,
            "scripted": self.scripted,
            "live": self.live,
            "live_from": self.live_from,
            "unused": len(self.unused),
            "unused_requests": list(self.unused),
            "requests": [each.as_json() for each in self.requests],
        }


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return printable(text if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}...")
