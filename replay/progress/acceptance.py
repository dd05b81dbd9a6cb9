"""Acceptance: starting with a given request, live requests replace the recorded requests.

The fixture keeps the recorded responses, so that no request is sent to the provider. Each response is given to the live
request that replaces the recorded one, if it fits: both requests contain results for the same calls, the tools that the
response calls are still declared, and both want a stream or neither does. Unchanged lines of the fixture stay as they
are.
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
from agentobs.records.exchanges import UNRECORDED_HEADERS, Question, ToolAnswer
from replay.comparison.alignment import aligned, safe
from replay.comparison.placeholders import PLACEHOLDER, Renaming
from replay.fixture.body_parts import BodyParts, body_changes, split_body, value_of
from replay.fixture.fixture_redaction import possible_secrets
from replay.fixture.format import SHAPE, Fixture, RecordedRequest, RecordedTool
from replay.matching.lane import cleaned_body, compared_form

SHOWN = 3
"""The maximum number of differences that are shown for an accepted request."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A live request that replaced a recorded one, or a result that replaced the recorded result."""

    request: int | None
    """The number of the request in the fixture; None for the result of the session."""
    lane: str
    differences: tuple[Difference, ...]
    more: int
    """The number of new differences that are not listed."""
    repeated: int = 0
    """The number of differences that an earlier request of the lane already had, because each request repeats the
    history.
    """

    def text(self, columns: int = 100) -> str:
        """Return a description of the accepted differences, `columns` wide."""
        about = f"request {self.request} of the fixture, in {safe(self.lane)}"
        lines = ["the result of the session" if self.request is None else about]
        for each in self.differences:
            lines.append(f"  {each.path}")
            lines += [f"    {line}" for line in aligned(each, columns - 4)]
        if self.more:
            lines.append(f"  and {self.more:,} more difference{'s' * (self.more != 1)}")
        if self.repeated:
            lines.append(f"  and {self.repeated:,} that earlier requests already had")
        return "\n".join(lines)


class Acceptance:
    """Accepts live requests in place of the recorded requests, starting with a given request of the fixture."""

    def __init__(self, fixture: Fixture, renaming: Renaming, first: int) -> None:
        """Accept live requests, starting with request number `first` of the fixture.

        Raises:
            UsageError: the fixture has no such request.
        """
        if not 1 <= first <= len(fixture.requests):
            raise UsageError(
                f"the recording has no request {first}",
                where=str(fixture.path),
                todo=f"It has requests 1 to {len(fixture.requests)}",
            )
        self._fixture, self._renaming, self.first = fixture, renaming, first
        self._replacements: dict[int, tuple[bytes, dict[str, str]]] = {}
        """Body and headers of the accepted requests, by the number of the recorded request."""
        self._result: dict[str, Any] | None = None
        """The result that replaced the recorded result; None if the recorded result stays."""
        self.refusal: str = ""
        """The reason why the last request was not accepted; empty if it was accepted."""
        self.changes: list[Accepted] = []
        """The changes that were accepted so far."""
        self._known_differences: set[str] = set()
        """Digests of the differences that earlier requests of the same lane had."""

    def accept_request(self, due: RecordedRequest | None, question: Question) -> bool:
        """Accept a live request in place of the request that was due, if it fits; return whether it was accepted."""
        if due is None or due.number < self.first:
            return False
        if (due.method, due.path) != (question.method, question.path):
            return False
        old = self._fixture.body(due.number)
        new = self._renaming.bytes_with_recorded_names(old, cleaned_body(question, self._renaming))
        self.refusal = response_obstacle(value_of(old), value_of(new), due)
        if self.refusal:
            return False
        found = differences(
            compared_form(due, value_of(old)), compared_form(question, value_of(new), due)
        )
        self.changes.append(self._change(due, found))
        live = {k: v for k, v in question.headers.items() if k in meaningful_headers()}
        replaced = (*meaningful_headers(), UNRECORDED_HEADERS)
        kept = {k: v for k, v in due.headers.items() if k not in replaced}
        self._replacements[due.number] = new, {**kept, **live}
        return True

    def accept_result(self, found: Sequence[Difference], result: dict[str, Any]) -> None:
        """Accept the result of the session in place of the recorded result.

        Args:
            found: the differences between the two results.
            result: the key `result` of a fixture's first line with its value; empty if nothing was returned.
        """
        self._result = result
        shown = tuple(map(shortened, found[:SHOWN]))
        self.changes.append(Accepted(None, "main", shown, max(len(found) - SHOWN, 0)))

    def _change(self, due: RecordedRequest, found: list[Difference]) -> Accepted:
        """Return what was accepted, without differences that an earlier request of the lane already had."""
        shown: list[Difference] = []
        for each in map(shortened, found):
            difference_digest = digest(repr((due.lane, each)).encode("utf-8", "replace"))
            if difference_digest not in self._known_differences:
                self._known_differences.add(difference_digest)
                shown.append(each)
        repeated = len(found) - len(shown)
        return Accepted(
            due.number, due.lane, tuple(shown[:SHOWN]), max(len(shown) - SHOWN, 0), repeated
        )

    def fixture_bytes(self, live_calls: list[tuple[RecordedTool, ToolAnswer]]) -> bytes:
        """Return the fixture with the accepted requests, and with the results of the calls that ran live.

        Args:
            live_calls: the recorded calls that ran live, each with its new result.

        Raises:
            RecordingError: it would contain something that looks like a secret.
        """
        lines = [json.loads(line) for line in self._fixture.path.read_bytes().splitlines()]
        results = {id(tool): answer for tool, answer in live_calls}
        tools, requests = iter(self._fixture.tools), iter(self._fixture.requests)
        changed = [self._line(each, requests, tools, results) for each in lines[:-1]]
        text = b"".join(map(_json_line, changed))
        text = _with_numbered_secrets(text, set(_tags(self._fixture.path.read_bytes())))
        if found := possible_secrets([json.loads(line) for line in text.splitlines()]):
            raise RecordingError(
                f"a possible secret was not redacted: {'; '.join(each.text() for each in found)}",
                where=str(self._fixture.path),
                todo="Nothing was written. Add a redactor for it to the replay, or remove it from the request",
            )
        return text + _json_line({**lines[-1], "digest": digest(text)})

    def _line(
        self,
        line: dict[str, Any],
        requests: Iterator[RecordedRequest],
        tools: Iterator[RecordedTool],
        results: dict[int, ToolAnswer],
    ) -> dict[str, Any]:
        if "request" in line:
            return self._request_line(line, next(requests))
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

    def _request_line(self, line: dict[str, Any], request: RecordedRequest) -> dict[str, Any]:
        """Return the line of a request, which is unchanged if neither the request nor its base was replaced."""
        base = line.get("based_on")
        if request.number not in self._replacements and base not in self._replacements:
            return line
        shape, headers = self._shape(request, base), self._headers(request.number)
        start: dict[str, Any] = {k: line[k] for k in ("request", "lane", "turn") if k in line}
        if "based_on" in shape:
            start["based_on"] = shape.pop("based_on")
            start |= {"path": request.path} if "path" in line else {}
            start |= {"headers": headers} if headers != self._headers(start["based_on"]) else {}
        else:
            start |= {"method": request.method, "path": request.path, "headers": headers}
        replaced = {*start, *SHAPE, "method", "path", "headers"}
        return {**start, **shape, **{k: v for k, v in line.items() if k not in replaced}}

    def _shape(self, request: RecordedRequest, base: int | None) -> dict[str, Any]:
        body = self._body(request.number)
        parts = split_body(body)
        if parts is None:
            return {"text": body.decode("utf-8", "surrogatepass")}
        old: BodyParts | None = split_body(self._body(base)) if base is not None else None
        if old is None or list(old.keys) != list(parts.keys):
            return {"body": json.loads(body)}
        return {"based_on": base, **body_changes(old, parts)}

    def _body(self, number: int) -> bytes:
        replacement = self._replacements.get(number)
        return replacement[0] if replacement else self._fixture.body(number)

    def _headers(self, number: int) -> dict[str, str]:
        replacement = self._replacements.get(number)
        return replacement[1] if replacement else self._fixture.requests[number - 1].headers


def response_obstacle(old: Any, new: Any, due: RecordedRequest) -> str:
    """Return why the recorded response does not fit a request that replaces the recorded one; empty if it fits."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return "its body is not JSON"
    dialect = dialect_of(due.path)
    if dialect.wants_stream(old) != dialect.wants_stream(new):
        return "one request asks for a streamed response, and the other does not"
    if _answered_calls(old) != _answered_calls(new):
        return "it contains results of different tool calls"
    called = {call.name for call in calls_of(due.path, due.answer)}
    undeclared = sorted(called & (set(dialect.tool_names(old)) - set(dialect.tool_names(new))))
    if not undeclared:
        return ""
    return f"the recorded response calls tools that the new request does not declare: {', '.join(undeclared)}"


def _answered_calls(body: dict[str, Any]) -> set[str]:
    return {str(result.id) for turn in turns(body) for result in turn.results}


def _tags(text: bytes) -> list[str]:
    return [tag for _, tag in PLACEHOLDER.findall(text.decode("utf-8", "replace")) if tag]


def _with_numbered_secrets(text: bytes, known: set[str]) -> bytes:
    """Return a fixture in which new secrets are numbered as well, after the existing ones."""
    numbers: dict[str, str] = {}
    most = max((int(tag) for tag in known if tag.isdecimal() and len(tag) < 8), default=0)

    def number(match: re.Match[str]) -> str:
        tag = match[2]
        if not tag or tag in known:
            return match[0]
        next_number = numbers.setdefault(tag, str(most + len(numbers) + 1))
        return f"[redacted:{match[1]}:{next_number}]"

    decoded = text.decode("utf-8", "surrogatepass")
    return PLACEHOLDER.sub(number, decoded).encode("utf-8", "surrogatepass")


def _json_line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
