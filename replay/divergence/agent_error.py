"""Agent errors: the report of an agent that ended with an error in a replay: its progress, and where it raised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from agentobs.redaction import redact
from replay.agent_code.call_sites import Site, is_agents, site_at
from replay.comparison.alignment import safe
from replay.divergence.divergence_facts import Progress

VERSION = 1
"""The version of its JSON. Within a version, keys are only added."""
MESSAGE_MAX = 200
"""Characters of the error message that are shown. Our choice."""
FRAMES_TOLD = 20
"""How many of the agent's frames are shown, the innermost ones. Our choice."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An agent that raised."""

    name: str
    """The fixture's name."""
    request: int
    """How many requests the agent itself had sent, without those of agents that it started."""
    requests: int
    """How many it sent in the recording."""
    error: str
    """The type of the error."""
    message: str
    """Its message, on one line and without secrets."""
    frames: tuple[Site, ...]
    """Where it was raised: only the agent's own frames, the innermost last."""
    faults: tuple[str, ...]
    """The faults that were injected before."""
    progress: Progress
    """How many of the recorded requests and tool calls were used."""

    def text(self) -> str:
        """Return the report for people; the first line is the verdict."""
        told = self.progress
        at = f"  {self.frames[-1].file}:{self.frames[-1].line}" if self.frames else ""
        error = f"{self.error}: {self.message}" if self.message else self.error
        place = f"after request {self.request} of {self.requests}"
        lines = [f"RAISED  {safe(self.name)}  main, {place}: {error}{at}"]
        lines += [f"  fault      injected: {each}" for each in self.faults]
        lines += [
            f"  {'raised at' if not at else '':<10} {frame.text}"
            for at, frame in enumerate(reversed(self.frames))
        ]
        asked, called = told.requests - told.requests_matched, told.tools - told.tools_matched
        if asked or called:
            left = f"{asked} recorded request{'s' * (asked != 1)} and {called} tool call{'s' * (called != 1)}"
            lines.append(f"  after it   {left} never made")
        return "\n".join(lines)

    def json(self) -> str:
        """Return it for programs."""
        return json.dumps(
            {"version": VERSION, "kind": "raised", **asdict(self)}, ensure_ascii=False
        )


def raised_of(
    error: BaseException,
    name: str,
    asked: tuple[int, int],
    faults: tuple[str, ...],
    progress: Progress,
    secrets: Sequence[bytes] = (),
) -> Raised:
    """Return the report of an exception of the agent.

    Args:
        error: the exception.
        name: the name of the fixture.
        asked: how many requests it had sent itself, and the recorded number.
        faults: the faults that were injected before.
        progress: how far it came.
        secrets: the credentials of its requests.
    """
    kind, message = (
        redact(text.encode("utf-8", "replace"), secrets).decode("utf-8", "replace")
        for text in (type(error).__name__, str(error))
    )
    return Raised(
        name,
        *asked,
        kind,
        safe(" ".join(message.split())[:MESSAGE_MAX]),
        tuple(_frames(error))[-FRAMES_TOLD:],
        faults,
        progress,
    )


def _frames(error: BaseException) -> Iterator[Site]:
    trace = error.__traceback__
    while trace is not None:
        if is_agents(trace.tb_frame.f_code.co_filename):
            site = site_at(trace.tb_frame)
            yield Site(site.file, trace.tb_lineno, site.function)
        trace = trace.tb_next
