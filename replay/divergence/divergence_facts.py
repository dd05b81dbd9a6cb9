"""The parts of a divergence: where it is, how far the replay came, and its likely causes."""

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
"""What sort of question differs: the body of a request; one that was recorded and never came; one more than recorded; a
later one, too early; one that came too late or too soon; a tool call; another question of the loop; how it ended; what
it returned; a connection."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the replay had come."""

    requests_matched: int
    """Requests that were the recorded ones."""
    requests: int
    """Requests of the recording."""
    tools_matched: int
    """Recorded tool calls that came."""
    tools: int
    """Tool calls of the recording; only our own loop and recorded functions tell of any."""
    answers_matched: int = 0
    """Other recorded questions that came: those to the world beside model and tools."""
    answers: int = 0
    """Questions to the world beside model and tools."""


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """How far one lane had come."""

    lane: str
    """Its name."""
    asked: int
    """How many of its requests were the recorded ones."""
    of: int
    """How many were recorded."""


@dataclass(frozen=True, slots=True)
class Left:
    """What was recorded and not asked for when the paths parted, all of it a consequence."""

    requests: int = 0
    """Requests, the one that was due left out."""
    tools: int = 0
    """Tool calls."""
    answers: int = 0
    """Questions to the world beside model and tools."""
    following: tuple[str, ...] = ()
    """What came next in the recording, one short line each."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task or a thread that waits in the agent's code while the replay diverges."""

    task: str
    """Its name."""
    site: Site
    """Where it waits."""
    what: str = ""
    """What it waits for, or `computes`; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Something earlier that was taken for the recorded path and may not have been."""

    lane: str
    """The lane in which it happened."""
    request: int | None
    """The number of the request in the fixture."""
    text: str
    """What it was, in one sentence."""


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A package that is of another version than when the session was recorded."""

    package: str
    """Its name on the package index."""
    recorded: str
    """The version that it was recorded with."""
    now: str
    """The version that is installed."""


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
"""What a difference stems from: the result of a tool call; a named section of the system prompt; another part of it;
what one tool declares; which tools there are; a message that the agent wrote; an option, or the head, of the request;
another version of the SDK; what counts as a secret; a decision of the agent loop; the arguments that the agent was
started with."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What a divergence probably stems from."""

    kind: CauseKind
    """What sort of thing it is."""
    text: str
    """In one sentence."""
    site: Site | None = None
    """The line of the agent's code: of the tool's function where a tool is the cause, else of the request."""
    tool: str | None = None
    """The tool, by name."""
    tool_use_id: str | None = None
    """The id of its call."""
    input: Any = field(default=None, repr=False)
    """What the tool was called with."""
    place: str | None = None
    """Which section of a prompt, property of a tool, or option."""
    line: int | None = None
    """Which line of the prompt, from 1."""
    message: int | None = None
    """Which message, from 0."""
    contains: str | None = None
    """What of the machine, the process or the moment the new value holds, by name: `the current directory`."""


@dataclass(frozen=True, slots=True)
class Link:
    """One step back from a difference to what it comes from."""

    what: str
    """What it is, in one line."""
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
    """What sort of question differs."""
    lane: str
    """The lane in which it was asked."""
    number: int
    """Which request of the lane, from 1."""
    of: int
    """How many requests the lane has in the recording."""
    turn: int | None
    """The turn of the lane; None where the request makes none."""
    summary: str
    """What happened, in one sentence."""
    differences: tuple[Difference, ...]
    """The first places where they differ, in reading order."""
    more: int
    """How many differences are not in `differences`."""
    progress: Progress
    """How much had come that was the recorded path."""
    left: Left
    """What was never asked."""
    nature: Nature = ""
    """What all the differences have in common."""
    request: int | None = None
    """The number of that request in the fixture, which counts those of all lanes."""
    attempt: int = 1
    """Which attempt of that request, from 1."""
    cause: Cause | None = None
    """What it probably stems from; None where nothing can be said."""
    chain: tuple[Link, ...] = ()
    """The way back from the difference to what it comes from."""
    sent: Site | None = None
    """The line of the agent's code that asked; None where no frame of it was there."""
    lanes: tuple[LaneProgress, ...] = ()
    """How far each lane had come."""
    waiting: tuple[Waiting, ...] = ()
    """The tasks, and if nothing comes from the agent the threads, that wait in its code meanwhile."""
    suspicions: tuple[Suspicion, ...] = ()
    """What was suspicious earlier, in order."""
    proposals: tuple[Proposal, ...] = ()
    """The rules that would hide differences."""
    versions: tuple[VersionChange, ...] = ()
    """The packages that are others than when it was recorded."""
    commands: tuple[str, ...] = ()
    """Commands to go on with, each as it is to be typed."""
    normalised: tuple[str, ...] = ()
    """The rules that have hidden differences so far, each with how many values."""

    @property
    def why(self) -> str:
        """The probable cause in a sentence, or an empty string."""
        return self.cause.text if self.cause else ""
