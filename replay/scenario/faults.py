"""Faults: failures that a replay makes on demand, to find out how an agent copes with them.

Each takes the place of a recorded answer once, which stays for whoever asks again. An agent that copes takes the
recorded path all the same; one that does not diverges, or ends with an error. A tool that fails changes what the model
would have been told: so the replay ends with what the agent asks next.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agentobs.errors import UsageError
from agentobs.provider.messages import is_stream, split_events
from agentobs.records.exchanges import Answer, Chunk, Failure, ToolAnswer
from replay.fixture.format import Ask
from replay.matching.lane import Lane

Kind = Literal["status", "cut", "slow", "tool"]

GRAMMAR = "529 at turn 3, 429 x2 at request 1, cut after event 12 at turn 2, slow at turn 1, tool NAME fails at turn 2"
"""One example of each fault; what comes after `at` may be left out, and is then the first of its kind."""

FAILED = "injected failure"
"""What a tool says that is made to fail."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure."""

    kind: Kind
    turn: int | None = None
    """In which turn of the main lane; None: at `request`, or at the first chance."""
    request: int | None = None
    """At which request of the main lane, from 1."""
    times: int = 1
    """How often in a row."""
    status: int = 529
    """The status that is answered, where it is one."""
    events: int = 0
    """After how many events of the stream the connection breaks, where it does."""
    tool: str = ""
    """The tool that fails, where one does."""

    def text(self) -> str:
        """Return the fault as it is written."""
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
    """Return the fault that a text names, such as `529 at turn 3`.

    Raises:
        UsageError: it names none.
    """
    for kind, form in _FORMS:
        if found := form.fullmatch(text.strip()):
            said = {n: v for n, v in found.groupdict().items() if v is not None}
            turn, request = (int(said[n]) if n in said else None for n in ("turn", "request"))
            times, status = int(said.get("times", 1)), int(said.get("status", 529))
            events, tool = int(said.get("events", 0)), said.get("tool", "")
            return Fault(kind, turn, request, times, status, events, tool)
    raise UsageError(f"{text!r} names no fault", where="faults", todo=f"Write one of: {GRAMMAR}")


class Faults:
    """The faults of a replay, some of which have happened."""

    def __init__(self, given: Iterable[Fault | str]) -> None:
        """Take faults, or their texts.

        Raises:
            UsageError: a text names none.
        """
        self.all = tuple(parse_fault(each) if isinstance(each, str) else each for each in given)
        self._left = {number: fault.times for number, fault in enumerate(self.all)}

    @property
    def tools(self) -> Sequence[Fault]:
        """Those of tools."""
        return [fault for fault in self.all if fault.kind == "tool"]

    @property
    def untouched(self) -> Sequence[Fault]:
        """Those that have not happened: nothing came to where they were to be."""
        return [fault for n, fault in enumerate(self.all) if self._left[n] == fault.times]

    def answer(self, ask: Ask, lane: Lane) -> Answer | None:
        """Return what is answered to a recorded request in place of its answer; None where nothing is."""
        if ask.lane != "main":
            return None
        place = lane.place_of(ask)
        for number, fault in enumerate(self.all):
            if fault.kind != "tool" and self._left[number] and _is_there(fault, ask, place):
                self._left[number] -= 1
                return _made(fault, ask.answer)
        return None

    def tool(self, name: str, turn: int | None) -> ToolAnswer | None:
        """Return what a tool answers that is made to fail; None where it is not."""
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


def _made(fault: Fault, recorded: Answer) -> Answer:
    """Return the answer that a fault makes of a recorded one."""
    match fault.kind:
        case "status":
            return refusal(fault.status, "made on demand")
        case "slow":
            failure = Failure("ReadTimeout", "made slow on demand")
            return Answer(None, {}, (), "error", failure)
        case _:
            failure = Failure("RemoteProtocolError", "cut on demand")
            body = recorded.body
            pieces = split_events(body) if is_stream(recorded.headers) else [body[: len(body) // 2]]
            kept = tuple(Chunk(piece, 0) for piece in pieces[: max(fault.events, 0)])
            return dataclasses.replace(recorded, chunks=kept, ending="cut", failure=failure)


_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
"""Types of errors by status, see https://docs.anthropic.com/en/api/errors (November 2026)."""


def refusal(status: int, message: str) -> Answer:
    """Return an answer with the status of an error, as the provider words it."""
    error = {"type": _ERRORS.get(status, "api_error"), "message": message}
    body = json.dumps({"type": "error", "error": error}).encode()
    headers = {"content-type": "application/json", "retry-after-ms": "0.001"}
    return Answer(status, headers, (Chunk(body, 0),), "complete")
