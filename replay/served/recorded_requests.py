"""The requests of a recording, arranged for matching: forms, lanes, and the calls that started them.

A lane is one conversation. A recorded request belongs to the lane of the longest earlier request that it continues; a
request that contains no response starts a lane, unless it repeats a request that failed. Two lanes that start with the
same conversation are twins, such as two sub-agents with the same prompt. The call that started a lane has the lane's
prompt in its input. These calls distinguish twins, see `SpineMatcher`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentobs.provider.dialect import Block
from agentobs.provider.registry import message_of
from agentobs.records.canonical_json import canonical, digest
from agentobs.records.exchanges import ModelExchange
from replay.served.client_text import (
    AGENT_HEADER,
    TASK,
    machine_values,
    without_inserted_text,
)
from replay.served.request_form import RequestForm, anchor_of, form_of, parsed, without_marks


class Starter(NamedTuple):
    """The call that started a lane."""

    exchange: int
    """The index of the response that contains the call."""
    call: str
    """The ID of the call."""
    prompt: str
    """The text in the input of the call that is the prompt of the lane."""


@dataclass(slots=True)
class RecordedRequests:
    """The model exchanges of a recording, by index."""

    exchanges: Sequence[ModelExchange]
    forms: list[RequestForm] = field(default_factory=list)
    """The form of each request, without its body, which `body` builds when it is needed."""
    lanes: list[int] = field(default_factory=list)
    """The lane of each request, named by the index of the first request of the lane."""
    starters: dict[int, Starter] = field(default_factory=dict)
    """The call that started a lane, for the lanes whose call is known."""
    machine: list[dict[str, str]] = field(default_factory=list)
    """The values of the machine that each request names."""

    @classmethod
    def of(cls, exchanges: Sequence[ModelExchange]) -> RecordedRequests:
        """Arrange the exchanges of a recording."""
        made = cls(exchanges)
        for exchange in exchanges:
            value = parsed(exchange.question.body)
            made.forms.append(_light(form_of(exchange.question, value, str)))
            made.machine.append(machine_values(value, exchange.question.headers))
        made.lanes = list(_lanes(exchanges, made.forms))
        made._find_starters()
        return made

    def form(self, index: int) -> RequestForm:
        """Return the complete form of a request."""
        question = self.exchanges[index].question
        return form_of(question, parsed(question.body), str)

    def agent(self, lane: int) -> str | None:
        """Return the recorded ID of the agent of a lane; None if it was not recorded."""
        return self.exchanges[lane].question.headers.get(AGENT_HEADER)

    def members(self, lane: int) -> list[int]:
        """Return the requests of a lane."""
        return [index for index, each in enumerate(self.lanes) if each == lane]

    def twins(self, lane: int) -> list[int]:
        """Return the lanes that start with the same conversation as a lane, itself included."""
        first = self.forms[lane]
        return [
            other
            for other in dict.fromkeys(self.lanes)
            if self.forms[other].spine == first.spine
            and self.forms[other].has_tools == first.has_tools
        ]

    def during_tasks(self) -> frozenset[int]:
        """Return the requests whose responses arrived while a background task ran, about which the client sent a
        report later: how fast these responses arrive decides which request contains the report.
        """
        found: set[int] = set()
        reported: set[bytes] = set()
        bodies = [exchange.question.body for exchange in self.exchanges]
        started = {str(call.id): at for at in range(len(bodies)) for call in self._calls_of(at)}
        for index, body in enumerate(bodies):
            for report in TASK.finditer(body):
                if report["task"] in reported:
                    continue
                reported.add(report["task"])
                start = started.get((report["call"] or b"").decode(), -1) + 1
                if start == 0:
                    start = next(
                        at for at, earlier in enumerate(bodies) if report["task"] in earlier
                    )
                found.update(range(start, index))
        return frozenset(found)

    def lanes_with_reports(self) -> frozenset[int]:
        """Return the lanes in which the client sent reports about background tasks."""
        bodies = (exchange.question.body for exchange in self.exchanges)
        return frozenset(self.lanes[at] for at, body in enumerate(bodies) if TASK.search(body))

    def present_at_reports(self) -> dict[int, frozenset[int]]:
        """For the last request of each background agent, return the requests that must arrive before its response is
        sent. The client then reports the end of the agent in the same request as in the recording.

        These are the last requests of the agents that are reported in the same request, and the earlier requests of the
        agent that gets the report.
        """
        lane_of = {starter.call: lane for lane, starter in self.starters.items()}
        reported: dict[int, int] = {}
        for index, exchange in enumerate(self.exchanges):
            for report in TASK.finditer(exchange.question.body):
                lane = lane_of.get((report["call"] or b"").decode())
                if lane is not None and lane < index:
                    last = max(each for each in self.members(lane) if each < index)
                    reported.setdefault(last, index)
        found = {}
        for last, index in reported.items():
            together = {other for other, at in reported.items() if at == index}
            before = {each for each in self.members(self.lanes[index]) if each < index}
            found[last] = frozenset(together | before)
        return found

    def _calls_of(self, index: int) -> Sequence[Block]:
        exchange = self.exchanges[index]
        return message_of(exchange.question.path, exchange.answer).calls

    def answers_alike(self, one: int, other: int) -> bool:
        """Return whether two lanes got the same responses, apart from IDs, so that either can replace the other."""
        return self._responses(one) == self._responses(other)

    def may_overlap(self, one: int, other: int) -> bool:
        """Return whether two lanes may have run at the same time."""
        first, second = sorted((self.members(one), self.members(other)))
        before, after = self.exchanges[first[-1]], self.exchanges[second[0]]
        if before.ended_ns and before.ended_ns > before.started_ns:
            return before.ended_ns > after.started_ns
        return before.place.lane != after.place.lane or first[-1] > second[0]

    def _responses(self, lane: int) -> str:
        found = []
        for index in self.members(lane):
            exchange = self.exchanges[index]
            message = message_of(exchange.question.path, exchange.answer)
            content = [[b.kind, b.name, b.text, b.value] for b in message.blocks]
            found.append([exchange.answer.status, exchange.answer.ending, content])
        return digest(canonical(found).encode("utf-8", "surrogatepass"))

    def _find_starters(self) -> None:
        """Find the call that started each lane."""
        first_requests = [i for i in dict.fromkeys(self.lanes) if self.forms[i].is_conversation]
        groups: dict[tuple[tuple[str, ...], bool], list[int]] = defaultdict(list)
        for lane in first_requests:
            if self.forms[lane].anchor is None:
                groups[self.forms[lane].spine, self.forms[lane].has_tools].append(lane)
        calls = [self._calls(index) for index in range(len(self.exchanges))]
        for lanes in groups.values():
            prompt = self.forms[lanes[0]].prompt.strip()
            if prompt:
                self._assign(
                    lanes, [s for each in calls for s in each if _cleaned(s.prompt) == prompt]
                )

    def _assign(self, lanes: Sequence[int], starters: Sequence[Starter]) -> None:
        """Assign calls to the lanes that they started: by the results of the calls, then in recorded order."""
        left = list(lanes)
        pairs = [
            (self._evidence(lane, starter), -starter.exchange, -at, lane, starter)
            for at, starter in enumerate(starters)
            for lane in lanes
            if starter.exchange < lane
        ]
        taken: set[str] = set()
        for _, _, _, lane, starter in sorted(pairs, key=lambda p: (-p[0], p[3], -p[2])):
            if lane in left and starter.call not in taken:
                left.remove(lane)
                taken.add(starter.call)
                self.starters[lane] = starter

    def _evidence(self, lane: int, starter: Starter) -> int:
        """Return how surely a call started a lane: by its name, the agent's ID, or the last response of the lane."""
        if self.exchanges[lane].place.lane.rpartition("/")[2] == starter.call:
            return 3
        result = self._result(starter.call)
        agent = self.agent(lane)
        if agent and agent in result:
            return 2
        last = self.exchanges[self.members(lane)[-1]]
        text = message_of(last.question.path, last.answer).text.strip()
        return int(bool(text) and text in result)

    def _result(self, call_id: str) -> str:
        """Return the first result of a call, as text; empty if no request contains one."""
        for index, form in enumerate(self.forms):
            if call_id in form.results:
                return _texts(self.form(index).body, call_id)
        return ""

    def _calls(self, index: int) -> list[Starter]:
        """Return the texts in the inputs of the calls of a response."""
        calls = self._calls_of(index)
        return [
            Starter(index, str(call.id), text) for call in calls for text in _strings(call.value)
        ]


def _light(form: RequestForm) -> RequestForm:
    """Return a form without its body, so that the forms of a long recording need little memory."""
    values = {name: getattr(form, name) for name in form.__slots__}
    return RequestForm(**{**values, "body": None})


def _lanes(exchanges: Sequence[ModelExchange], forms: Sequence[RequestForm]) -> Iterator[int]:
    """Yield the lane of each request."""
    lanes: list[int] = []
    answered: dict[tuple[str, ...], list[int]] = defaultdict(list)
    asked: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, form in enumerate(forms):
        exchange = exchanges[index]
        repeated = [at for at in asked[form.spine] if form.spine and _failed(exchanges[at])]
        continued = [at for at in answered[form.anchor or ()] if _continues(form, forms[at])]
        found = _same_name(exchange, exchanges, repeated) or _same_name(
            exchange, exchanges, continued
        )
        lanes.append(lanes[found[-1]] if found else index)
        asked[form.spine].append(index)
        response = message_of(exchange.question.path, exchange.answer)
        answered[anchor_of(response)].append(index)
        yield lanes[-1]


def _same_name(
    exchange: ModelExchange, exchanges: Sequence[ModelExchange], found: Sequence[int]
) -> list[int]:
    """Return the requests of the same recorded agent."""
    return [at for at in found if _name(exchanges[at]) == _name(exchange)]


def _continues(form: RequestForm, earlier: RequestForm) -> bool:
    """Return whether a request contains the conversation of an earlier one."""
    length = len(earlier.spine)
    return 0 < length < len(form.spine) and form.spine[:length] == earlier.spine


def _failed(exchange: ModelExchange) -> bool:
    return exchange.answer.status != 200 or exchange.answer.ending != "complete"


def _name(exchange: ModelExchange) -> tuple[str, str]:
    return exchange.place.lane, exchange.question.headers.get(AGENT_HEADER, "")


def _cleaned(text: str) -> str:
    return without_inserted_text(without_marks(text)).strip()


def _strings(value: Any) -> Iterator[str]:
    """Yield the texts in the input of a call, three levels deep."""
    pending = [(value, 0)]
    while pending:
        inner, depth = pending.pop()
        if isinstance(inner, str):
            yield inner
        elif isinstance(inner, dict) and depth < 3:
            pending += [(each, depth + 1) for each in inner.values()]
        elif isinstance(inner, list) and depth < 3:
            pending += [(each, depth + 1) for each in inner]


def _texts(body: Any, call_id: str) -> str:
    """Return the block of a body that contains the result of a call, as JSON text."""
    pending = [body]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if call_id in value.values() and "content" in value:
                return canonical(value)
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return ""
