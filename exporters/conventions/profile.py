"""Profiles: the vocabulary of one kind of telemetry, as a frozen value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from agentobs.records.facts import Attempt, UsageRow
from exporters.conventions import agentobs_attributes
from exporters.conventions.agentobs_attributes import BETA_SPANS, Attributes
from exporters.conventions.interval import Interval, Tokens


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric."""

    name: str
    unit: str
    description: str
    buckets: tuple[float, ...] = ()
    """The upper bounds of the histogram's buckets; empty for a sum."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a profile and their attributes: only values with few variants, no IDs."""

    token_usage: Measure
    operation_duration: Measure
    first_chunk: Measure
    tool_duration: Measure
    agent_duration: Measure
    cost: Measure
    rate_limit: Measure
    call_attributes: Callable[[Interval], Attributes]
    """The attributes of the time to first chunk of a call. The duration of a call also has the error class."""
    usage_attributes: Callable[[UsageRow, str | None], Attributes]
    """The attributes of token counts and cost, from a row of usage and the requested model."""
    token_counts: Callable[[Tokens], Iterator[tuple[Attributes, int]]]
    """The token counts, each with its distinguishing attributes."""
    limit_attributes: Callable[[Attempt, str], Attributes]
    """The attributes of the headroom of a rate limit, from an attempt and the name of the limit."""
    tool_attributes: Callable[[Interval], Attributes]
    agent_attributes: Callable[[Interval], Attributes]


@dataclass(frozen=True, slots=True)
class Profile:
    """A vocabulary for intervals, events and metrics."""

    name: str
    """The name of the profile, a label."""
    version: str
    """The version of the conventions that the profile follows."""
    span_name: Callable[[Interval], str]
    """Returns the name of a span."""
    ids: Callable[[str, str], Attributes]
    """Returns the attributes for the ID of a session and the ID of its conversation."""
    start_attributes: Callable[[Interval], Attributes]
    """Returns the attributes that are known at the start of a span, IDs first."""
    end_attributes: Callable[[Interval], Attributes]
    """Returns the attributes that are known only at the end of a span."""
    content_attributes: Callable[[Interval], Attributes]
    """Returns the content if the session opted in; otherwise an empty dict."""
    metrics: Metrics
    hidden: frozenset[str] = BETA_SPANS
    """Names of built-in spans that the profile does not export."""


def beta(profile: Profile) -> Profile:
    """Return a profile with hook spans and additional attributes; both may change at any time."""

    def end_attributes(interval: Interval) -> Attributes:
        return {
            **profile.end_attributes(interval),
            **agentobs_attributes.detail_attributes(interval),
        }

    return replace(
        profile, name=f"{profile.name}-beta", end_attributes=end_attributes, hidden=frozenset()
    )


def with_error(attributes: Attributes, interval: Interval) -> Attributes:
    """Return the attributes of a duration: the given attributes, and the class of the error if there was an error."""
    error_type = agentobs_attributes.error_of(interval)
    return {**attributes, **({"error.type": error_type} if error_type else {})}
