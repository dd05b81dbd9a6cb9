"""The parts of a divergence: its location, the progress of the replay, and its probable causes."""

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
    "files",
]
"""The kind of divergence, in this order: the body of a request differs; a recorded request was not sent; an additional
request was sent; a later request was sent too early; the agent makes no progress; a tool call differs; another input of
the agent loop differs; the end differs; the result differs; the agent tried to open a connection; the
files at the end differ.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a replay."""

    requests_matched: int
    """The number of requests that matched recorded requests."""
    requests: int
    """The number of recorded requests."""
    tools_matched: int
    """The number of recorded tool calls that were made."""
    tools: int
    """The number of recorded tool calls. Only the agent loop of agentobs and recorded functions report tool calls."""
    answers_matched: int = 0
    """Other recorded exchanges that occurred: exchanges with the world, except model requests and tool calls."""
    answers: int = 0
    """Recorded exchanges with the world, except model requests and tool calls."""


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """The progress of one lane."""

    lane: str
    """The name of the lane."""
    asked: int
    """The number of requests of the lane that matched recorded requests."""
    of: int
    """The number of requests of the lane in the recording."""


@dataclass(frozen=True, slots=True)
class UnusedExchanges:
    """The recorded exchanges that were unused when the replay diverged, as a consequence of the divergence."""

    requests: int = 0
    """Requests that were not sent, not counting the request that was expected next."""
    tools: int = 0
    """Tool calls that were not made."""
    answers: int = 0
    """Exchanges with the world that did not occur, except model requests and tool calls."""
    following: tuple[str, ...] = ()
    """The next recorded steps, one line for each."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task or a thread that waits in the agent's code while the replay diverges."""

    task: str
    """The name of the task or thread."""
    site: Site
    """The line of the agent's code at which it waits."""
    what: str = ""
    """What it waits for, or `computes`; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """An earlier event that was accepted as part of the recorded path, but may not belong to it."""

    lane: str
    """The lane of the event."""
    request: int | None
    """The number of the request in the fixture."""
    text: str
    """A description of the event, in one sentence."""


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A package whose version has changed since the recording."""

    package: str
    """The name of the package on the package index."""
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
"""The origin of a difference: the result of a tool call; a named section of the system prompt; another part of the
system prompt; the declaration of a tool; the set of tools; a message that the agent wrote; an option of the request; a
header of the request; a different version of the SDK; the redaction rules; a decision of the agent loop; the arguments
with which the agent was started; any other origin.
"""


@dataclass(frozen=True, slots=True)
class Cause:
    """The probable origin of a divergence."""

    kind: CauseKind
    """The kind of origin."""
    text: str
    """A description of the cause, in one sentence."""
    site: Site | None = None
    """The line in the agent's code: the function of the tool if a tool is the cause, otherwise the line that sent the
    request."""
    tool: str | None = None
    """The name of the tool."""
    tool_use_id: str | None = None
    """The ID of the tool call."""
    input: Any = field(default=None, repr=False)
    """The arguments of the tool call."""
    place: str | None = None
    """The name of the prompt section, the tool property, or the option."""
    line: int | None = None
    """The line of the prompt, from 1."""
    message: int | None = None
    """The index of the message, from 0."""
    contains: str | None = None
    """The fact about the environment that the new value contains, such as `the current directory` or `today's date`."""


@dataclass(frozen=True, slots=True)
class Link:
    """One step from a difference back to its origin."""

    what: str
    """A description of the step in one line."""
    site: Site | None = None
    """The line of the agent's code for this step."""
    request: int | None = None
    """The number of the step's request in the fixture."""


@dataclass(frozen=True, slots=True)
class DivergenceFacts:
    """All facts about the first difference between a recording and its replay."""

    fixture: str
    """The fixture's name."""
    path: str
    """The fixture's folder."""
    kind: Kind
    """The kind of divergence."""
    lane: str
    """The lane of the divergence."""
    number: int
    """The number of the request in the lane, from 1."""
    of: int
    """The number of requests of the lane in the recording."""
    turn: int | None
    """The turn in the lane; None if the request does not belong to a turn."""
    summary: str
    """What happened, in one sentence."""
    differences: tuple[Difference, ...]
    """The first differences between the recorded and the new request, in reading order."""
    more: int
    """The number of differences that are not in `differences`."""
    progress: Progress
    """How much of the recorded path was completed."""
    left: UnusedExchanges
    """The recorded steps that did not occur."""
    nature: Nature = ""
    """What all the differences have in common."""
    request: int | None = None
    """The number of the request in the fixture, counted over all lanes."""
    attempt: int = 1
    """The number of the attempt of the request, from 1."""
    cause: Cause | None = None
    """The probable cause; None if it is unknown."""
    chain: tuple[Link, ...] = ()
    """The causal chain from the difference back to its origin."""
    sent: Site | None = None
    """The line of the agent's code that sent the request; None if no frame of the agent's code was on the stack."""
    lanes: tuple[LaneProgress, ...] = ()
    """The progress of each lane."""
    waiting: tuple[Waiting, ...] = ()
    """The tasks that wait in the agent's code, and, if the agent makes no progress, the threads."""
    suspicions: tuple[Suspicion, ...] = ()
    """Earlier events that may not belong to the recorded path, in order."""
    proposals: tuple[Proposal, ...] = ()
    """The rules that would hide differences."""
    versions: tuple[VersionChange, ...] = ()
    """The packages whose version has changed since the recording."""
    commands: tuple[str, ...] = ()
    """Commands to run next."""
    normalized: tuple[str, ...] = ()
    """The rules that have hidden differences so far, each with the number of hidden values."""
    file_diff: tuple[str, ...] = ()
    """The diff of the files at the end, at most 200 lines."""

    @property
    def why(self) -> str:
        """The text of the probable cause, or an empty string."""
        return self.cause.text if self.cause else ""
