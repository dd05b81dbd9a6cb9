"""Acceptance: from a request on, live requests replace the recorded ones.

The recorded responses stay, so that no request is sent to the provider. Each is given to the request that replaces
its own, if it fits: the same calls are answered, the tools that it calls are still declared, and it has the
same form. Unchanged lines of the fixture stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.errors import RecordingError, UsageError
from agentobs.provider.registry import calls_of, dialect_of, meaningful_headers, turns
from agentobs.records.canonical_json import digest
from agentobs.records.differences import Difference, differences, shortened
from agentobs.records.exchanges import Question, ToolAnswer
from replay.comparison.alignment import aligned, safe
from replay.comparison.placeholders import PLACEHOLDER, Renaming
from replay.fixture.body_parts import Pieces, change, pieces_of, value_of
from replay.fixture.fixture_redaction import left
from replay.fixture.format import SHAPE, Ask, Fixture, RecordedTool
from replay.matching.lane import asked_body, compared

SHOWN = 3
"""How many differences of a request are shown before it is accepted."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that replaced a recorded one, or a result."""

    request: int | None
    """Its number in the fixture; None for the result of the session."""
    lane: str
    differences: tuple[Difference, ...]
    more: int
    """How many other new differences there are."""
    repeated: int = 0
    """How many differences an earlier request of the lane already had: the history is part of each request."""

    def text(self, columns: int = 100) -> str:
        """Describe what was accepted, for people."""
        about = f"request {self.request} of the fixture, in {safe(self.lane)}"
        lines = ["what the session returned" if self.request is None else about]
        for each in self.differences:
            lines.append(f"  {each.path}")
            lines += [f"    {line}" for line in aligned(each, columns - 4)]
        if self.more:
            lines.append(f"  and {self.more:,} more difference{'s' * (self.more != 1)}")
        if self.repeated:
            lines.append(f"  and {self.repeated:,} as in the request before it")
        return "\n".join(lines)


class Accepting:
    """Accepts different requests in place of the recorded ones, from a number on."""

    def __init__(self, fixture: Fixture, renaming: Renaming, first: int) -> None:
        """Accept from the request `first` of the fixture on.

        Raises:
            UsageError: it has no such request.
        """
        if not 1 <= first <= len(fixture.asks):
            raise UsageError(
                f"the recording has no request {first}",
                where=str(fixture.path),
                todo=f"It has requests 1 to {len(fixture.asks)}",
            )
        self._fixture, self._renaming, self.first = fixture, renaming, first
        self._came: dict[int, tuple[bytes, dict[str, str]]] = {}
        self._result: dict[str, Any] | None = None
        """The result that replaced the recorded one; None if there was none."""
        self.refused: str = ""
        """Why the last request was not accepted, or an empty string."""
        self.changes: list[Accepted] = []
        self._shown: set[str] = set()

    def takes(self, due: Ask | None, question: Question) -> bool:
        """Return whether a request replaces the one that was due, whose response it then gets."""
        if due is None or due.number < self.first:
            return False
        if (due.method, due.path) != (question.method, question.path):
            return False
        old = self._fixture.body(due.number)
        came = self._renaming.read_bytes(old, asked_body(question, self._renaming))
        self.refused = unfit(value_of(old), value_of(came), due)
        if self.refused:
            return False
        found = differences(compared(due, value_of(old)), compared(question, value_of(came)))
        self.changes.append(self._change(due, found))
        meant = {k: v for k, v in question.headers.items() if k in meaningful_headers()}
        kept = {k: v for k, v in due.headers.items() if k not in meaningful_headers()}
        self._came[due.number] = came, {**kept, **meant}
        return True

    def takes_result(self, found: Sequence[Difference], result: dict[str, Any]) -> None:
        """Accept the result of the session in place of the recorded one.

        Args:
            found: where the two differ.
            result: the key `result` of a fixture's first line with its value; empty if nothing was returned.
        """
        self._result = result
        shown = tuple(map(shortened, found[:SHOWN]))
        self.changes.append(Accepted(None, "main", shown, max(len(found) - SHOWN, 0)))

    def _change(self, due: Ask, found: list[Difference]) -> Accepted:
        """Return what was accepted; differences that an earlier request of the lane already had are not shown again."""
        shown: list[Difference] = []
        for each in map(shortened, found):
            mark = digest(repr((due.lane, each)).encode("utf-8", "replace"))
            if mark not in self._shown:
                self._shown.add(mark)
                shown.append(each)
        repeated = len(found) - len(shown)
        return Accepted(
            due.number, due.lane, tuple(shown[:SHOWN]), max(len(shown) - SHOWN, 0), repeated
        )

    def data(self, ran: list[tuple[RecordedTool, ToolAnswer]]) -> bytes:
        """Return the fixture with the accepted requests, and with the results of the calls that ran live.

        Raises:
            RecordingError: it would contain something that looks like a secret.
        """
        lines = [json.loads(line) for line in self._fixture.path.read_bytes().splitlines()]
        results = {id(tool): answer for tool, answer in ran}
        tools, asks = iter(self._fixture.tools), iter(self._fixture.asks)
        again = [self._line(each, asks, tools, results) for each in lines[:-1]]
        text = b"".join(map(_written, again))
        text = _numbered(text, set(_tags(self._fixture.path.read_bytes())))
        if found := left([json.loads(line) for line in text.splitlines()]):
            raise RecordingError(
                f"something that looks like a secret is left: {'; '.join(each.text() for each in found)}",
                where=str(self._fixture.path),
                todo="Nothing was written. Give the replay redactors that find it, or remove it from the request",
            )
        return text + _written({**lines[-1], "digest": digest(text)})

    def _line(
        self,
        line: dict[str, Any],
        asks: Iterator[Ask],
        tools: Iterator[RecordedTool],
        results: dict[int, ToolAnswer],
    ) -> dict[str, Any]:
        if "request" in line:
            return self._asked(line, next(asks))
        if "agentobs_fixture" in line and self._result is not None:
            return {
                key: self._result.get(key, line[key])
                for key in line
                if key != "result" or self._result
            }
        answer = results.get(id(next(tools))) if "tool" in line else None
        if answer is None:
            return line
        changed = {"result": answer.content, "is_error": answer.is_error, "outcome": answer.outcome}
        bare = {k: v for k, v in line.items() if k not in ("is_error", "outcome")}
        usual = {"is_error": False, "outcome": "executed"}
        return {**bare, **{k: v for k, v in changed.items() if usual.get(k) != v}}

    def _asked(self, line: dict[str, Any], ask: Ask) -> dict[str, Any]:
        """Return the line of a request; a request with the same body, headers and base keeps its line."""
        base = line.get("based_on")
        if ask.number not in self._came and base not in self._came:
            return line
        shape, headers = self._shape(ask, base), self._headers(ask.number)
        begin: dict[str, Any] = {k: line[k] for k in ("request", "lane", "turn") if k in line}
        if "based_on" in shape:
            begin["based_on"] = shape.pop("based_on")
            begin |= {"path": ask.path} if "path" in line else {}
            begin |= {"headers": headers} if headers != self._headers(begin["based_on"]) else {}
        else:
            begin |= {"method": ask.method, "path": ask.path, "headers": headers}
        gone = {*begin, *SHAPE, "method", "path", "headers"}
        return {**begin, **shape, **{k: v for k, v in line.items() if k not in gone}}

    def _shape(self, ask: Ask, base: int | None) -> dict[str, Any]:
        body = self._body(ask.number)
        pieces = pieces_of(body)
        if pieces is None:
            return {"text": body.decode("utf-8", "surrogatepass")}
        old: Pieces | None = pieces_of(self._body(base)) if base is not None else None
        if old is None or list(old.keys) != list(pieces.keys):
            return {"body": json.loads(body)}
        return {"based_on": base, **change(old, pieces)}

    def _body(self, number: int) -> bytes:
        came = self._came.get(number)
        return came[0] if came else self._fixture.body(number)

    def _headers(self, number: int) -> dict[str, str]:
        came = self._came.get(number)
        return came[1] if came else self._fixture.asks[number - 1].headers


def unfit(old: Any, new: Any, due: Ask) -> str:
    """Return why the recorded response does not fit a request that replaces its own; empty if it does."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return "its body is not JSON"
    dialect = dialect_of(due.path)
    if dialect.asks_for_stream(old) != dialect.asks_for_stream(new):
        return "only one of the two requests a stream"
    if _answered(old) != _answered(new):
        return "it answers other tool calls"
    called = {call.name for call in calls_of(due.path, due.answer)}
    gone = sorted(called & (set(dialect.tool_names(old)) - set(dialect.tool_names(new))))
    return f"the recorded answer calls {', '.join(gone)}, which it does not declare" if gone else ""


def _answered(body: dict[str, Any]) -> set[str]:
    return {str(result.id) for turn in turns(body) for result in turn.results}


def _tags(text: bytes) -> list[str]:
    return [tag for _, tag in PLACEHOLDER.findall(text.decode("utf-8", "replace")) if tag]


def _numbered(text: bytes, known: set[str]) -> bytes:
    """Return a fixture in which new secrets are numbered as well, after the existing ones."""
    numbers: dict[str, str] = {}
    most = max((int(tag) for tag in known if tag.isdecimal() and len(tag) < 8), default=0)

    def number(match: re.Match[str]) -> str:
        tag = match[2]
        if not tag or tag in known:
            return match[0]
        given = numbers.setdefault(tag, str(most + len(numbers) + 1))
        return f"[redacted:{match[1]}:{given}]"

    told = text.decode("utf-8", "surrogatepass")
    return PLACEHOLDER.sub(number, told).encode("utf-8", "surrogatepass")


def _written(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
