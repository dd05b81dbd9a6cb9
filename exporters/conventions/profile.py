"""Profiles: the vocabulary of one kind of telemetry, as a frozen value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from agentobs.records.facts import UsageRow
from exporters.conventions import agentobs_attributes
from exporters.conventions.agentobs_attributes import BETA_SPANS, Attributes
from exporters.conventions.intervals import Interval, Tokens


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric."""

    name: str
    unit: str
    about: str
    buckets: tuple[float, ...] = ()
    """The upper bounds of its histogram; none for a sum."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a profile and their attributes: only values with few variants, no IDs."""

    token_usage: Measure
    operation_duration: Measure
    first_chunk: Measure
    tool_duration: Measure
    agent_duration: Measure
    cost: Measure
    on_call: Callable[[Interval], Attributes]
    """The attributes of a model call's time to first chunk; with the error, of its duration."""
    on_usage: Callable[[UsageRow, str | None], Attributes]
    """The attributes of tokens and cost; the model is the billed one."""
    on_tokens: Callable[[Tokens], Iterator[tuple[Attributes, int]]]
    """The token counts, each with its distinguishing attributes."""
    on_tool: Callable[[Interval], Attributes]
    on_agent: Callable[[Interval], Attributes]


@dataclass(frozen=True, slots=True)
class Profile:
    """A vocabulary for intervals, events and metrics."""

    name: str
    """Its name: a label."""
    version: str
    """The conventions that it follows."""
    span_name: Callable[[Interval], str]
    """The name of a span, at its end."""
    ids: Callable[[str, str], Attributes]
    """The IDs of a session and of the conversation that it continues."""
    starting: Callable[[Interval], Attributes]
    """The attributes known at the start of a span: IDs first."""
    ending: Callable[[Interval], Attributes]
    """The attributes known at its end."""
    said: Callable[[Interval], Attributes]
    """The content, if the session opted in; else nothing."""
    metrics: Metrics
    hidden: frozenset[str] = BETA_SPANS
    """Names of our spans that it does not have."""


def beta(profile: Profile) -> Profile:
    """Return a profile with the spans of hooks, and more attributes; both may change at any time."""

    def ending(interval: Interval) -> Attributes:
        return {**profile.ending(interval), **agentobs_attributes.closer(interval)}

    return replace(profile, name=f"{profile.name}-beta", ending=ending, hidden=frozenset())


def with_error(attributes: Attributes, interval: Interval) -> Attributes:
    """Return the attributes of a duration: the same, and the class of the error if there was one."""
    error_type = agentobs_attributes.error_of(interval)
    return {**attributes, **({"error.type": error_type} if error_type else {})}
