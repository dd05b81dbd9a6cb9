"""The parts of a divergence: where it is, the progress of the replay, and its likely causes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from agentobs.records.differences import Difference
from replay.agent_code.call_sites import Site
from replay.comparison.difference_kinds import Nature
from replay.comparison.rule_proposals import Proposal

Kind = Literal[
    "content",
    "missing",
    "extra",
    "order",
    "timing",
    "tool",
    "world",
    "outcome",
    "result",
    "network",
]
"""What differs: the body of a request; a recorded request that never came; an additional request; a
later request, too early; a request that came too late or too soon; a tool call; another question of the loop; the end;
the result; a connection.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the replay."""

    requests_matched: int
    """Requests that matched the recorded ones."""
    requests: int
    """Requests of the recording."""
    tools_matched: int
    """Recorded tool calls that were made."""
    tools: int
    """Tool calls of the recording; only the agent loop of agentobs and recorded functions report them."""
    answers_matched: int = 0
    """Other recorded questions that were asked: those to the world besides model and tools."""
    answers: int = 0
    """Questions to the world besides model and tools."""


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """The progress of one lane."""

    lane: str
    """Its name."""
    asked: int
    """How many of its requests matched the recorded ones."""
    of: int
    """How many were recorded."""


@dataclass(frozen=True, slots=True)
class Left:
    """The recorded exchanges that were unused at the divergence, all of them a consequence."""

    requests: int = 0
    """Requests, except the one that was due."""
    tools: int = 0
    """Tool calls."""
    answers: int = 0
    """Questions to the world besides model and tools."""
    following: tuple[str, ...] = ()
    """The next recorded steps, one short line each."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task or a thread that waits in the agent's code while the replay diverges."""

    task: str
    """Its name."""
    site: Site
    """Where it waits."""
    what: str = ""
    """What it waits for, or `computes`; empty if that is unknown."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """An earlier event that was accepted as the recorded path but may not have been."""

    lane: str
    """The lane in which it happened."""
    request: int | None
    """The number of the request in the fixture."""
    text: str
    """What it was, in one sentence."""


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A package with another version than in the recording."""

    package: str
    """Its name on the package index."""
    recorded: str
    """The recorded version."""
    now: str
    """The installed version."""


CauseKind = Literal[
    "tool_result",
    "prompt_section",
    "system_prompt",
    "tool_schema",
    "tool_set",
    "agent_message",
    "option",
    "header",
    "sdk_version",
    "redaction",
    "decision",
    "arguments",
    "other",
]
"""The origin of a difference: the result of a tool call; a named section of the system prompt; another part of it;
the declaration of a tool; the set of tools; a message that the agent wrote; an option, or the headers, of the request;
another version of the SDK; what counts as a secret; a decision of the agent loop; the arguments that the agent was
started with.
"""


@dataclass(frozen=True, slots=True)
class Cause:
    """The probable origin of a divergence."""

    kind: CauseKind
    """The kind of origin."""
    text: str
    """In one sentence."""
    site: Site | None = None
    """The line of the agent's code: of the tool's function if a tool is the cause, otherwise of the request."""
    tool: str | None = None
    """The tool, by name."""
    tool_use_id: str | None = None
    """The ID of its call."""
    input: Any = field(default=None, repr=False)
    """The arguments of the call."""
    place: str | None = None
    """The section of a prompt, property of a tool, or option."""
    line: int | None = None
    """The line of the prompt, from 1."""
    message: int | None = None
    """Which message, from 0."""
    contains: str | None = None
    """The fact about the machine, the process or the moment in the new value, by name: `the current directory`."""


@dataclass(frozen=True, slots=True)
class Link:
    """One step from a difference back to its origin."""

    what: str
    """A description in one line."""
    site: Site | None = None
    """Where it is in the agent's code."""
    request: int | None = None
    """The request of the fixture that it belongs to."""


@dataclass(frozen=True, slots=True)
class DivergenceFacts:
    """The first difference between a recording and its replay, with all its facts."""

    fixture: str
    """The fixture's name."""
    path: str
    """The fixture's folder."""
    kind: Kind
    """What differs."""
    lane: str
    """The lane in which it happened."""
    number: int
    """The number of the request in the lane, from 1."""
    of: int
    """How many requests the lane has in the recording."""
    turn: int | None
    """The turn of the lane; None if the request makes none."""
    summary: str
    """What happened, in one sentence."""
    differences: tuple[Difference, ...]
    """The first places where they differ, in reading order."""
    more: int
    """How many differences are not in `differences`."""
    progress: Progress
    """How much of the recorded path was completed."""
    left: Left
    """What was never asked."""
    nature: Nature = ""
    """What all the differences have in common."""
    request: int | None = None
    """The number of that request in the fixture, counted over all lanes."""
    attempt: int = 1
    """Which attempt of that request, from 1."""
    cause: Cause | None = None
    """Its probable origin; None if that is unknown."""
    chain: tuple[Link, ...] = ()
    """The trace from the difference to its origin."""
    sent: Site | None = None
    """The line of the agent's code that sent the request; None if there was no frame of it."""
    lanes: tuple[LaneProgress, ...] = ()
    """The progress of each lane."""
    waiting: tuple[Waiting, ...] = ()
    """The tasks, and if the agent makes no progress the threads, that wait in its code."""
    suspicions: tuple[Suspicion, ...] = ()
    """What was suspicious earlier, in order."""
    proposals: tuple[Proposal, ...] = ()
    """The rules that would hide differences."""
    versions: tuple[VersionChange, ...] = ()
    """The packages with other versions than in the recording."""
    commands: tuple[str, ...] = ()
    """Commands to continue with, each ready to type."""
    normalized: tuple[str, ...] = ()
    """The rules that have hidden differences so far, each with the number of values."""

    @property
    def why(self) -> str:
        """The probable cause in a sentence, or an empty string."""
        return self.cause.text if self.cause else ""
