"""Faults: failures that a replay injects, to test how an agent handles them.

Each fault replaces a recorded response once; the retry then gets the recorded response. An agent that handles the fault
follows the recorded path; otherwise it diverges, or ends with an error. A tool failure changes the input of the model,
so the replay ends with the next request of the agent.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agentobs.errors import UsageError
from agentobs.provider.registry import dialect_of
from agentobs.records.exchanges import Answer, Chunk, Failure, ToolAnswer
from replay.fixture.format import RecordedRequest
from replay.matching.lane import Lane

Kind = Literal["status", "cut", "slow", "tool"]

GRAMMAR = "529 at turn 3, 429 x2 at request 1, cut after event 12 at turn 2, slow at turn 1, tool NAME fails at turn 2"
"""An example of each fault. A fault whose text has no part that starts with `at` happens at the first opportunity."""

FAILED = "injected failure"
"""The result of a tool that is made to fail."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure."""

    kind: Kind
    turn: int | None = None
    """The turn of the main lane. If it is None, the fault happens at `request`, or at the first opportunity."""
    request: int | None = None
    """The request of the main lane, from 1."""
    times: int = 1
    """The number of consecutive times that the fault happens."""
    status: int = 529
    """The injected status, if it is an HTTP error."""
    events: int = 0
    """The number of events of the stream after which the connection breaks, if the fault is a broken connection."""
    tool: str = ""
    """The tool that fails, if it is a tool failure."""

    def text(self) -> str:
        """Return the fault in its text form."""
        failure = {
            "status": f"{self.status}{f' x{self.times}' if self.times > 1 else ''}",
            "cut": f"cut after event {self.events}",
            "slow": "slow",
            "tool": f"tool {self.tool} fails",
        }[self.kind]
        at = (
            f" at turn {self.turn}"
            if self.turn
            else f" at request {self.request}"
            if self.request
            else ""
        )
        return failure + at


_AT = r"(?: at (?:turn (?P<turn>\d{1,6})|request (?P<request>\d{1,6})))?"
_FORMS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("status", re.compile(rf"(?P<status>[45]\d\d)(?: x(?P<times>\d{{1,3}}))?{_AT}")),
    ("cut", re.compile(rf"cut after event (?P<events>\d{{1,6}}){_AT}")),
    ("slow", re.compile(rf"slow(?: x(?P<times>\d{{1,3}}))?{_AT}")),
    ("tool", re.compile(rf"tool (?P<tool>\S{{1,128}}) fails{_AT}")),
)


def parse_fault(text: str) -> Fault:
    """Return the fault for a text such as `529 at turn 3`.

    Raises:
        UsageError: the text is not a fault.
    """
    for kind, form in _FORMS:
        if found := form.fullmatch(text.strip()):
            parts = {n: v for n, v in found.groupdict().items() if v is not None}
            turn, request = (int(parts[n]) if n in parts else None for n in ("turn", "request"))
            times, status = int(parts.get("times", 1)), int(parts.get("status", 529))
            events, tool = int(parts.get("events", 0)), parts.get("tool", "")
            return Fault(kind, turn, request, times, status, events, tool)
    raise UsageError(f"{text!r} is not a fault", where="faults", todo=f"Write one of: {GRAMMAR}")


class Faults:
    """The faults of a replay, some of which have been injected."""

    def __init__(self, faults: Iterable[Fault | str]) -> None:
        """Create a set of faults from values or texts.

        Raises:
            UsageError: a text is not a fault.
        """
        self.all = tuple(parse_fault(each) if isinstance(each, str) else each for each in faults)
        self._remaining = {number: fault.times for number, fault in enumerate(self.all)}

    @property
    def tools(self) -> Sequence[Fault]:
        """The tool failures."""
        return [fault for fault in self.all if fault.kind == "tool"]

    @property
    def untouched(self) -> Sequence[Fault]:
        """Faults that were not injected because the replay did not reach their position."""
        return [fault for n, fault in enumerate(self.all) if self._remaining[n] == fault.times]

    def response(self, request: RecordedRequest, lane: Lane) -> Answer | None:
        """Return the response that replaces the recorded response; None if there is no fault."""
        if request.lane != "main":
            return None
        place = lane.position_of(request)
        for number, fault in enumerate(self.all):
            if fault.kind != "tool" and self._remaining[number] and _is_at(fault, request, place):
                self._remaining[number] -= 1
                return _faulty(fault, request.answer, request.path)
        return None

    def tool_result(self, name: str, turn: int | None) -> ToolAnswer | None:
        """Return the result of a tool call that a fault makes fail; None if there is no fault."""
        for number, fault in enumerate(self.all):
            is_due = fault.kind == "tool" and fault.tool == name and self._remaining[number]
            if is_due and fault.turn in (None, turn):
                self._remaining[number] -= 1
                return ToolAnswer(FAILED, is_error=True, outcome="failed")
        return None


def _is_at(fault: Fault, request: RecordedRequest, place: int) -> bool:
    if fault.turn is not None:
        return request.turn == fault.turn
    return fault.request is None or fault.request == place


def _faulty(fault: Fault, recorded: Answer, path: str) -> Answer:
    """Return the faulty form of a recorded response."""
    match fault.kind:
        case "status":
            return error_response(fault.status, "injected", path)
        case "slow":
            failure = Failure("ReadTimeout", "injected slow response")
            return Answer(None, {}, (), "error", failure)
        case _:
            failure = Failure("RemoteProtocolError", "injected cut")
            body = recorded.body
            chunks = dialect_of(path).stream_chunks(recorded.headers, body)
            if len(chunks) == 1:
                chunks = [body[: len(body) // 2]]
            kept = tuple(Chunk(chunk, 0) for chunk in chunks[: max(fault.events, 0)])
            return dataclasses.replace(recorded, chunks=kept, ending="cut", failure=failure)


def error_response(status: int, message: str, path: str) -> Answer:
    """Return an error response with a status, in the format of the provider."""
    dialect = dialect_of(path)
    body = dialect.error_body(status, message)
    headers = {"content-type": "application/json", **dialect.retry_headers(0.001)}
    return Answer(status, headers, (Chunk(body, 0),), "complete")
