"""Faults: failures that a replay injects, to test how an agent handles them.

Each replaces a recorded response once; the response is kept for the retry. An agent that handles the fault takes the
recorded path; another one diverges, or ends with an error. A tool failure changes what the model
would have received, so the replay ends with the next request of the agent.
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
from replay.fixture.format import Ask
from replay.matching.lane import Lane

Kind = Literal["status", "cut", "slow", "tool"]

GRAMMAR = "529 at turn 3, 429 x2 at request 1, cut after event 12 at turn 2, slow at turn 1, tool NAME fails at turn 2"
"""One example of each fault; the part from `at` on may be omitted, and defaults to the first opportunity."""

FAILED = "injected failure"
"""The result of a tool that is made to fail."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure."""

    kind: Kind
    turn: int | None = None
    """The turn of the main lane; None: at `request`, or at the first opportunity."""
    request: int | None = None
    """The request of the main lane, from 1."""
    times: int = 1
    """How many times in a row."""
    status: int = 529
    """The injected status, if it is an HTTP error."""
    events: int = 0
    """After how many events of the stream the connection breaks, if it does."""
    tool: str = ""
    """The tool that fails, if it is a tool failure."""

    def text(self) -> str:
        """Return the fault in its text form."""
        what = {
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
        return what + at


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
            said = {n: v for n, v in found.groupdict().items() if v is not None}
            turn, request = (int(said[n]) if n in said else None for n in ("turn", "request"))
            times, status = int(said.get("times", 1)), int(said.get("status", 529))
            events, tool = int(said.get("events", 0)), said.get("tool", "")
            return Fault(kind, turn, request, times, status, events, tool)
    raise UsageError(f"{text!r} is not a fault", where="faults", todo=f"Write one of: {GRAMMAR}")


class Faults:
    """The faults of a replay, some of which have been injected."""

    def __init__(self, given: Iterable[Fault | str]) -> None:
        """Use faults, or their texts.

        Raises:
            UsageError: a text is not a fault.
        """
        self.all = tuple(parse_fault(each) if isinstance(each, str) else each for each in given)
        self._left = {number: fault.times for number, fault in enumerate(self.all)}

    @property
    def tools(self) -> Sequence[Fault]:
        """Those of tools."""
        return [fault for fault in self.all if fault.kind == "tool"]

    @property
    def untouched(self) -> Sequence[Fault]:
        """Faults that were not injected because the replay did not reach their position."""
        return [fault for n, fault in enumerate(self.all) if self._left[n] == fault.times]

    def answer(self, ask: Ask, lane: Lane) -> Answer | None:
        """Return the response that replaces the recorded one; None if there is no fault."""
        if ask.lane != "main":
            return None
        place = lane.place_of(ask)
        for number, fault in enumerate(self.all):
            if fault.kind != "tool" and self._left[number] and _is_there(fault, ask, place):
                self._left[number] -= 1
                return _made(fault, ask.answer, ask.path)
        return None

    def tool(self, name: str, turn: int | None) -> ToolAnswer | None:
        """Return the result of a tool that is made to fail; None if it is not."""
        for number, fault in enumerate(self.all):
            is_due = fault.kind == "tool" and fault.tool == name and self._left[number]
            if is_due and fault.turn in (None, turn):
                self._left[number] -= 1
                return ToolAnswer(FAILED, is_error=True, outcome="failed")
        return None


def _is_there(fault: Fault, ask: Ask, place: int) -> bool:
    if fault.turn is not None:
        return ask.turn == fault.turn
    return fault.request is None or fault.request == place


def _made(fault: Fault, recorded: Answer, path: str) -> Answer:
    """Return the faulty form of a recorded response."""
    match fault.kind:
        case "status":
            return refusal(fault.status, "injected", path)
        case "slow":
            failure = Failure("ReadTimeout", "injected slow response")
            return Answer(None, {}, (), "error", failure)
        case _:
            failure = Failure("RemoteProtocolError", "injected cut")
            body = recorded.body
            pieces = dialect_of(path).stream_pieces(recorded.headers, body)
            if len(pieces) == 1:
                pieces = [body[: len(body) // 2]]
            kept = tuple(Chunk(piece, 0) for piece in pieces[: max(fault.events, 0)])
            return dataclasses.replace(recorded, chunks=kept, ending="cut", failure=failure)


def refusal(status: int, message: str, path: str) -> Answer:
    """Return an answer with the status of an error, as the provider words it."""
    dialect = dialect_of(path)
    body = dialect.error_body(status, message)
    headers = {"content-type": "application/json", **dialect.retry_headers(0.001)}
    return Answer(status, headers, (Chunk(body, 0),), "complete")
