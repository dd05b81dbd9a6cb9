"""Profiles: what a language of telemetry is, as one frozen value."""

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
    """The metrics of a language, and what stands on them: things of bounded variety, no ids."""

    token_usage: Measure
    operation_duration: Measure
    first_chunk: Measure
    tool_duration: Measure
    agent_duration: Measure
    cost: Measure
    on_call: Callable[[Interval], Attributes]
    """What stands on a model call's time to its first chunk; with the error, on its duration."""
    on_usage: Callable[[UsageRow, str | None], Attributes]
    """What stands on tokens and on cost: the model is the one that is billed."""
    on_tokens: Callable[[Tokens], Iterator[tuple[Attributes, int]]]
    """The counts of tokens, each with what tells it from the others."""
    on_tool: Callable[[Interval], Attributes]
    on_agent: Callable[[Interval], Attributes]


@dataclass(frozen=True, slots=True)
class Profile:
    """One language for intervals, events and metrics."""

    name: str
    """What it is called: a label."""
    version: str
    """The conventions that it follows."""
    span_name: Callable[[Interval], str]
    """The name of a span, when it ends."""
    ids: Callable[[str, str], Attributes]
    """The ids of a session and of the conversation that it goes on with."""
    starting: Callable[[Interval], Attributes]
    """What is known when a span starts: ids first."""
    ending: Callable[[Interval], Attributes]
    """What is known when it ends."""
    said: Callable[[Interval], Attributes]
    """What was said, where the session opted in; else nothing."""
    metrics: Metrics
    hidden: frozenset[str] = BETA_SPANS
    """Names of our spans that it does not have."""


def beta(profile: Profile) -> Profile:
    """Return a profile with the spans of hooks, and more attributes; both may change at any time."""

    def ending(interval: Interval) -> Attributes:
        return {**profile.ending(interval), **agentobs_attributes.closer(interval)}

    return replace(profile, name=f"{profile.name}-beta", ending=ending, hidden=frozenset())


def with_error(attributes: Attributes, interval: Interval) -> Attributes:
    """Return what stands on a duration: the same, and the class of the error where there was one."""
    error_type = agentobs_attributes.error_of(interval)
    return {**attributes, **({"error.type": error_type} if error_type else {})}
