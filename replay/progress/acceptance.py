"""Accepting: from a request on, what the agent asks now takes the place of what it asked when it was recorded.

The recorded answers stay, so that nothing is asked of the provider; each is given to the request that now stands in the
place of its own, as long as it fits: the same calls are answered, what it calls is still declared, and it comes in the
same form. Lines of the fixture that nothing has changed stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.errors import RecordingError, UsageError
from agentobs.provider.messages import assemble, blocks, tool_uses
from agentobs.records.canonical_json import MEANINGFUL_HEADERS, digest
from agentobs.records.differences import Difference, differences, shortened
from agentobs.records.exchanges import Question, ToolAnswer
from replay.comparison.alignment import aligned, safe
from replay.comparison.placeholders import PLACEHOLDER, Renaming
from replay.fixture.body_parts import Pieces, change, pieces_of, value_of
from replay.fixture.fixture_redaction import left
from replay.fixture.format import Ask, Fixture, RecordedTool
from replay.matching.lane import asked_body, compared

SHAPE = ("body", "text", "base64", "like", "drop", "unmark", "add", "set")
"""The keys of a request's line that say what its body is, see `replay.fixture.format.Ask.shape`."""
SHOWN = 3
"""How many differences of a request are shown before it is accepted."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that took the place of a recorded one, or a result."""

    request: int | None
    """Its number in the fixture; None for what the session returned."""
    lane: str
    differences: tuple[Difference, ...]
    more: int
    """How many other new differences there are."""
    repeated: int = 0
    """How many differences an earlier request of the lane had, too: the history comes with each request."""

    def text(self, columns: int = 100) -> str:
        """Return what is accepted, for people."""
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
    """Takes requests for recorded ones that they are not, from a number on."""

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
        """The result that took the place of the recorded one; None if none did."""
        self.refused: str = ""
        """Why the last request was not taken, or an empty string."""
        self.changes: list[Accepted] = []
        self._shown: set[str] = set()

    def takes(self, due: Ask | None, question: Question) -> bool:
        """Return whether a request takes the place of the one that was due, whose answer it then gets."""
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
        meant = {k: v for k, v in question.headers.items() if k in MEANINGFUL_HEADERS}
        kept = {k: v for k, v in due.headers.items() if k not in MEANINGFUL_HEADERS}
        self._came[due.number] = came, {**kept, **meant}
        return True

    def takes_result(self, found: Sequence[Difference], result: dict[str, Any]) -> None:
        """Take what the session returned in the place of what it returned when it was recorded.

        Args:
            found: where the two differ.
            result: the key `result` of a fixture's first line with its value; empty if nothing was returned.
        """
        self._result = result
        shown = tuple(map(shortened, found[:SHOWN]))
        self.changes.append(Accepted(None, "main", shown, max(len(found) - SHOWN, 0)))

    def _change(self, due: Ask, found: list[Difference]) -> Accepted:
        """Return what is accepted; what an earlier request of the lane repeats to this one is not shown again."""
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
        """Return the fixture with what was accepted in it, and with the results of the calls that ran live.

        Raises:
            RecordingError: something that looks like a secret would be in it.
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
                todo="Nothing was written. Give the replay redactors that find it, or take it out of the request",
            )
        return text + _written({**lines[-1], "digest": digest(text)})

    def _line(
        self,
        line: dict[str, Any],
        asks: Iterator[Ask],
        tools: Iterator[RecordedTool],
        results: dict[int, ToolAnswer],
    ) -> dict[str, Any]:
        if "ask" in line:
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
        """Return the line of a request; one whose body, head and base are what they were stays as it is."""
        base = line.get("like")
        if ask.number not in self._came and base not in self._came:
            return line
        shape, headers = self._shape(ask, base), self._headers(ask.number)
        begin: dict[str, Any] = {k: line[k] for k in ("ask", "lane", "turn") if k in line}
        if "like" in shape:
            begin["like"] = shape.pop("like")
            begin |= {"path": ask.path} if "path" in line else {}
            begin |= {"headers": headers} if headers != self._headers(begin["like"]) else {}
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
        return {"like": base, **change(old, pieces)}

    def _body(self, number: int) -> bytes:
        came = self._came.get(number)
        return came[0] if came else self._fixture.body(number)

    def _headers(self, number: int) -> dict[str, str]:
        came = self._came.get(number)
        return came[1] if came else self._fixture.asks[number - 1].headers


def unfit(old: Any, new: Any, due: Ask) -> str:
    """Return why the recorded answer does not fit a request that came in the place of its own; empty where it does."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return "its body is no JSON"
    if bool(old.get("stream")) != bool(new.get("stream")):
        return "one of the two asks for a stream, the other does not"
    if _answered(old) != _answered(new):
        return "it answers other tool calls"
    called = {str(c.get("name")) for c in tool_uses(assemble(due.answer.headers, due.answer.body))}
    gone = sorted(called & (_declared(old) - _declared(new)))
    return f"the recorded answer calls {', '.join(gone)}, which it does not declare" if gone else ""


def _answered(body: dict[str, Any]) -> set[str]:
    messages = body.get("messages")
    listed = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    results = (b for m in listed for b in blocks(m) if b.get("type") == "tool_result")
    return {str(each.get("tool_use_id")) for each in results}


def _declared(body: dict[str, Any]) -> set[str]:
    tools = body.get("tools")
    listed = tools if isinstance(tools, list) else []
    return {str(tool.get("name")) for tool in listed if isinstance(tool, dict)}


def _tags(text: bytes) -> list[str]:
    return [tag for _, tag in PLACEHOLDER.findall(text.decode("utf-8", "replace")) if tag]


def _numbered(text: bytes, known: set[str]) -> bytes:
    """Return a fixture in which secrets that were new have numbers, too, after those that it had."""
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
