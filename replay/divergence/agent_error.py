"""Agent errors: the report of an agent that raised an exception in a replay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from agentobs.redaction import redact
from replay.agent_code.call_sites import Site, is_agents, site_at
from replay.comparison.alignment import safe
from replay.divergence.divergence_facts import Progress

VERSION = 1
"""The version of the JSON report. Within a version, keys may be added, but not changed or removed."""
MESSAGE_MAX = 200
"""The maximum number of characters of the error message that are shown. Our choice."""
FRAMES_MAX = 20
"""The maximum number of the agent's frames that are shown, from the innermost frame. Our choice."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The report of an agent that raised an exception."""

    name: str
    """The name of the fixture."""
    request: int
    """The number of requests that the main agent had sent, without requests of its sub-agents."""
    requests: int
    """The number of requests that the main agent sent in the recording."""
    error: str
    """The class of the exception."""
    message: str
    """The message of the exception, on one line and without secrets."""
    frames: tuple[Site, ...]
    """The stack of the exception: only frames of the agent's code, the innermost frame last."""
    faults: tuple[str, ...]
    """The faults that were injected before the exception."""
    progress: Progress
    """The numbers of recorded requests and tool calls that were matched."""

    def text(self) -> str:
        """Return the report as text; the first line is a summary."""
        at = f"  {self.frames[-1].file}:{self.frames[-1].line}" if self.frames else ""
        error = f"{self.error}: {self.message}" if self.message else self.error
        place = f"after request {self.request} of {self.requests}"
        lines = [f"RAISED  {safe(self.name)}  main, {place}: {error}{at}"]
        lines += [f"  fault      injected: {each}" for each in self.faults]
        lines += [
            f"  {'raised at' if not at else '':<10} {frame.text}"
            for at, frame in enumerate(reversed(self.frames))
        ]
        requests = self.progress.requests - self.progress.requests_matched
        calls = self.progress.tools - self.progress.tools_matched
        if requests or calls:
            request_text = f"{requests} recorded request{'s' * (requests != 1)}"
            lines.append(f"  unused     {request_text} and {calls} tool call{'s' * (calls != 1)}")
        return "\n".join(lines)

    def json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(
            {"version": VERSION, "kind": "raised", **asdict(self)}, ensure_ascii=False
        )


def raised_of(
    error: BaseException,
    name: str,
    counts: tuple[int, int],
    faults: tuple[str, ...],
    progress: Progress,
    secrets: Sequence[bytes] = (),
) -> Raised:
    """Build the report of an exception of the agent.

    Args:
        error: the exception.
        name: the name of the fixture.
        counts: the number of requests that the main agent had sent, and the recorded number.
        faults: the faults that were injected before the exception.
        progress: the progress of the replay.
        secrets: the credentials of the requests, which are redacted.
    """
    kind, message = (
        redact(text.encode("utf-8", "replace"), secrets).decode("utf-8", "replace")
        for text in (type(error).__name__, str(error))
    )
    return Raised(
        name,
        *counts,
        kind,
        safe(" ".join(message.split())[:MESSAGE_MAX]),
        tuple(_frames(error))[-FRAMES_MAX:],
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
