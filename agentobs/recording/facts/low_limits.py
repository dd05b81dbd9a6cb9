"""Low limits: a warning event when little of a rate limit remains, once for each model and limit while it is low."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentobs.records.facts import Attempt, Event
from agentobs.records.labels import Label, constant_label

LOW_RATIO = 0.1
"""A limit is low if less than this share of it remains. Our choice."""

KEPT_MAX = 1_000
"""The maximum number of low limits of one session that are remembered. Our choice."""


def headroom(limits: Mapping[Label, float]) -> dict[str, float]:
    """Return the remaining share of each limit, from 0 to 1; limits without the necessary numbers are left out."""
    found = {}
    for name in sorted({each.partition(".")[0] for each in limits}):
        limit, remaining = (limits.get(Label(f"{name}.{each}")) for each in ("limit", "remaining"))
        used = limits.get(Label(f"{name}.utilization"))
        if limit and remaining is not None:
            found[name] = min(remaining / limit, 1.0)
        elif used is not None:
            found[name] = max(1.0 - used, 0.0)
    return found


@dataclass(slots=True)
class LowLimits:
    """The limits that are low in one session."""

    _low: dict[tuple[str, str], None] = field(default_factory=dict)

    def follow(self, fact: Attempt) -> Iterator[Event]:
        """Yield an event for each limit that has become low with an attempt that the provider answered."""
        if fact.rate_limits is None or fact.origin != "live":
            return
        model = fact.model or fact.model_requested
        for name, ratio in headroom(fact.rate_limits).items():
            key = str(model), name
            if ratio >= LOW_RATIO:
                self._low.pop(key, None)
            elif key not in self._low and len(self._low) < KEPT_MAX:
                self._low[key] = None
                yield _event(fact, name, ratio, model)


def _event(fact: Attempt, name: str, ratio: float, model: Label | None) -> Event:
    limits = fact.rate_limits or {}
    known = {
        each: limits.get(Label(f"{name}.{each}")) for each in ("limit", "remaining", "reset_s")
    }
    numbers = {each: value for each, value in known.items() if value is not None}
    return Event(
        session_id=fact.session_id,
        interaction_id=fact.interaction_id,
        lane=fact.lane,
        turn=fact.turn,
        at_ns=fact.started_ns + (fact.duration_ns if fact.headers_ns is None else fact.headers_ns),
        kind=Label("rate_limit_low"),
        label=constant_label(name),
        numbers={**numbers, "headroom_ratio": ratio},
        query_source=fact.query_source,
        chain_id=fact.chain_id,
        depth=fact.depth,
        labels={Label("model"): model} if model is not None else None,
    )
