"""Matches live requests with recorded ones by the conversation that they carry (the spine).

A request that contains a recorded response continues the lane of that response: the IDs of its calls were sent by the
replay, so they come back unchanged, and identify lane and position. A request without a response starts a lane; it is
matched by its content. Lanes that start equally (twins) are distinguished in this order: by a mark that the replay adds
to the prompt in the call that starts the lane; by the ID of the agent, once it is known; by the calls that were already
sent to the client; by the rest of the request. If several are left that overlapped and had different responses, the
match is ambiguous, until a later request that contains their results is equal to the recorded one.

A wrong match is worse than a miss: if the conversation is not the recorded one, the request is a miss.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.provider.dialect import Block
from agentobs.records.canonical_json import canonical
from agentobs.records.differences import differences, shortened
from agentobs.records.exchanges import Answer, ModelExchange, Question
from agentobs.redaction import Redactor
from replay.comparison.placeholders import without_organizations
from replay.served.answers import with_replacements
from replay.served.client_text import AGENT_HEADER, machine_values, slug
from replay.served.recorded_requests import RecordedRequests
from replay.served.request_form import RequestForm, form_of, mark, mark_in, mark_spans, parsed
from replay.served.substitutions import Span, Substitutions
from replay.served.verdict import ServedRequest

DIFFERENCES_MAX = 20
"""The maximum number of differences of a request that are kept. Our choice."""
COMPARED_MAX = 50
"""The maximum number of recorded requests that are compared to find the one nearest to a miss. Our choice."""


class SpineMatcher:
    """Answers live requests from recorded ones, each of which is used once. Not safe to share between threads."""

    def __init__(
        self, exchanges: Sequence[ModelExchange], *, masks_organizations: bool = False
    ) -> None:
        """Serve these exchanges.

        Args:
            exchanges: the recorded exchanges.
            masks_organizations: whether the recorded requests are those of a fixture and the recorded responses the
                originals, so that organization IDs in live requests must be masked before they are compared.
        """
        self.recorded = RecordedRequests.of(exchanges)
        self.substitutions = Substitutions()
        self.requests: list[ServedRequest] = []
        """The live requests so far."""
        self._unused = list(range(len(exchanges)))
        self._served: set[int] = set()
        self._redactor = Redactor(world.random_bytes(32))
        self._masks_organizations = masks_organizations
        self._agents: dict[str, int] = {}
        """The lane of each live agent ID."""
        self._doubtful: dict[int, int] = {}
        """The lanes whose match is ambiguous, with the position of the request in `requests`."""
        self._seen: dict[int, set[str]] = {}
        """The differences so far, by lane."""
        self._marks = self._marked_calls()

    @property
    def unused(self) -> list[int]:
        """The indexes of the recorded requests that were not used."""
        return list(self._unused)

    def match(self, question: Question) -> int | None:
        """Return the index of the recorded request that a live request repeats, and mark it as used; None for a miss.

        The result is added to `requests`.
        """
        body = self._redactor.redact(question.body)
        if self._masks_organizations:
            body = without_organizations(body)
        question = replace(question, body=body)
        value = parsed(question.body)
        self._learn_machine(value, question.headers)
        form = self._form(question, value)
        pool, is_ambiguous = self._choose(self._candidates(form), form, question, value)
        if not pool:
            self.requests.append(self._miss(form))
            return None
        index = pool[0]
        self._unused.remove(index)
        self._served.add(index)
        self._bind(index, question, value)
        self._note(index, question, value, is_ambiguous)
        return index

    def release(self, index: int) -> None:
        """Make a recorded request available again, because its response did not arrive completely."""
        self._unused = sorted([*self._unused, index])

    def retract(self, index: int) -> None:
        """Undo the last match, because the request gets no recorded response."""
        self.release(index)
        self._served.discard(index)
        self._doubtful.pop(self.recorded.lanes[index], None)
        self.requests.pop()

    def answer(self, index: int) -> Answer:
        """Return a recorded response with the live values, and with the marks of its calls."""
        exchange = self.recorded.exchanges[index]

        def find(text: str, call: Block | None) -> list[Span]:
            spans = self.substitutions.live_spans(text, is_json=call is not None)
            # The replayed part of a fork was recorded with the marks of its own replay.
            old = [Span(start, end, "") for start, end in mark_spans(text)]
            return _merged([*spans, *old, *self._mark_spans(text, index, call)])

        return with_replacements(exchange.answer, exchange.question.path, find)

    @cached_property
    def main_turns(self) -> dict[int, int]:
        """The turns of the requests of the main lane, from 1, by index.

        The main lane is that of the longest conversation. Its turns are counted without repeated requests.
        """
        lanes, forms = self.recorded.lanes, self.recorded.forms
        conversations = [lane for lane in dict.fromkeys(lanes) if forms[lane].spine]
        if not conversations:
            return {}
        main = max(conversations, key=lambda lane: (self._is_named_main(lane), self._length(lane)))
        members = self.recorded.members(main)
        turns: dict[tuple[str, ...], int] = {}
        for index in members:
            turns.setdefault(forms[index].spine, len(turns) + 1)
        return {index: turns[forms[index].spine] for index in members}

    def _is_named_main(self, lane: int) -> bool:
        exchange = self.recorded.exchanges[lane]
        return exchange.place.lane == "main" and self.recorded.agent(lane) is None

    def _length(self, lane: int) -> int:
        has_tools = self.recorded.forms[lane].has_tools
        return len(self.recorded.members(lane)) + has_tools

    def _form(self, question: Question, value: Any) -> RequestForm:
        return form_of(question, value, self.substitutions.to_recorded)

    # Candidates -------------------------------------------------------------------------------------------------------

    def _candidates(self, form: RequestForm) -> list[int]:
        """Return the unused recorded requests with the same conversation."""
        forms = self.recorded.forms
        same_kind = [
            index
            for index in self._unused
            if (forms[index].method, forms[index].route) == (form.method, form.route)
            and forms[index].is_conversation == form.is_conversation
            and forms[index].has_tools == form.has_tools
        ]
        if not form.is_conversation:
            return [index for index in same_kind if self.recorded.form(index).body == form.body]
        equal = [index for index in same_kind if forms[index].spine == form.spine]
        if equal or not form.is_anchored_by_id:
            return equal
        anchored = [
            index
            for index in same_kind
            if (forms[index].anchor, forms[index].tail) == (form.anchor, form.tail)
        ]
        return anchored if len({self.recorded.lanes[index] for index in anchored}) == 1 else []

    def _choose(
        self, pool: list[int], form: RequestForm, question: Question, value: Any
    ) -> tuple[list[int], bool]:
        """Return the candidates that are left, the best first, and whether the choice is ambiguous."""
        pool = self._of_agent(pool, question.headers.get(AGENT_HEADER))
        if form.is_conversation and form.anchor is None:
            pool = [index for index in pool if self._is_due(index)]
            number = _prompt_mark(value)
            if number is not None:
                pool = [index for index in pool if self.recorded.lanes[index] == number]
        if len(pool) < 2 or not form.is_conversation:
            return pool, False
        pool = self._closest(pool, form)
        lanes = list(dict.fromkeys(self.recorded.lanes[index] for index in pool))
        first, *others = lanes
        doubtful = any(
            self.recorded.may_overlap(first, other)
            and not self.recorded.answers_alike(first, other)
            for other in others
        )
        return pool, doubtful

    def _of_agent(self, pool: list[int], agent: str | None) -> list[int]:
        """Return the candidates that an agent may have sent: of its own lane, or of a lane without an agent."""
        lanes = self.recorded.lanes
        if agent is not None and agent in self._agents:
            own = [index for index in pool if lanes[index] == self._agents[agent]]
            return own or [index for index in pool if lanes[index] not in self._agents.values()]
        has_agents = any(self.recorded.agent(lane) for lane in lanes)
        return [
            index
            for index in pool
            if lanes[index] not in self._agents.values()
            and (not has_agents or (self.recorded.agent(lanes[index]) is None) == (agent is None))
        ]

    def _is_due(self, index: int) -> bool:
        """Return whether the call that started a lane was already sent to the client."""
        starter = self.recorded.starters.get(self.recorded.lanes[index])
        return starter is None or starter.exchange in self._served

    def _closest(self, pool: list[int], form: RequestForm) -> list[int]:
        """Return the candidates that share the most parts with a request, not counting the conversation."""
        forms = {index: self.recorded.form(index) for index in pool}
        equal = [index for index in pool if forms[index].body == form.body]
        if equal:
            return equal
        parts = set(form.parts())
        scores = {index: len(parts.intersection(forms[index].parts())) for index in pool}
        return [index for index in pool if scores[index] == max(scores.values())]

    # Learning ---------------------------------------------------------------------------------------------------------

    def _learn_machine(self, value: Any, headers: dict[str, str], index: int | None = None) -> None:
        """Pair the values of the machine that a live request names with those that a recorded request names.

        Args:
            value: the parsed body of the live request.
            headers: its headers.
            index: the recorded request that it repeats; None for the first recorded one that names each value.
        """
        values = machine_values(value, headers)
        known = self._first_machine if index is None else self.recorded.machine[index]
        if "directory" in values and "directory" in known:
            self._pair_directories(known, values)
        for name, live in values.items():
            if name in known and name != "directory":
                self.substitutions.pair(known[name], live)

    @cached_property
    def _first_machine(self) -> dict[str, str]:
        """The value of each label in the first recorded request that names it."""
        return {k: v for each in reversed(self.recorded.machine) for k, v in each.items()}

    def _pair_directories(self, recorded: dict[str, str], live: dict[str, str]) -> None:
        """Pair the working directories, and the repositories if the client works in a directory below them."""
        old, new = Path(recorded["directory"]), Path(live["directory"])
        self.substitutions.pair_directory(str(old), str(new))
        projects = recorded.get("project"), live.get("project")
        while old.name == new.name != "":
            old, new = old.parent, new.parent
            if (slug(str(old)), slug(str(new))) == projects:
                self.substitutions.pair_directory(str(old), str(new))
                return

    def _bind(self, index: int, question: Question, value: Any) -> None:
        """Learn what a match shows: the lane of an agent, and the values of the machine."""
        agent, lane = question.headers.get(AGENT_HEADER), self.recorded.lanes[index]
        if agent is not None:
            self._agents.setdefault(agent, lane)
            if recorded := self.recorded.agent(lane):
                self.substitutions.pair(recorded, agent)
        self._learn_machine(value, question.headers, index)

    def _note(self, index: int, question: Question, value: Any, is_ambiguous: bool) -> None:
        """Compare a live request with the recorded one, and add the result."""
        recorded = self.recorded.form(index)
        form = self._form(question, value)
        count = len(self.substitutions.pairs)
        self.substitutions.learn(recorded.body, form.body)
        if len(self.substitutions.pairs) != count:
            form = self._form(question, value)
        found = differences(recorded.body, form.body) if recorded.body != form.body else []
        kept = tuple(map(shortened, found[:DIFFERENCES_MAX]))
        seen = self._seen.setdefault(self.recorded.lanes[index], set())
        new = {canonical([each.path, each.expected, each.actual]) for each in found} - seen
        seen |= new
        if is_ambiguous:
            self._doubtful[self.recorded.lanes[index]] = len(self.requests)
        result = ServedRequest(
            number=len(self.requests) + 1,
            kind="drift" if found else "exact",
            request=index + 1,
            is_ambiguous=is_ambiguous,
            differences=kept,
            more=len(found) - len(kept),
            is_repeated=bool(found) and not new,
            is_change=any(
                canonical([each.path, each.expected, each.actual]) in new
                and not any(
                    each.path.startswith(f"{path}.") for path in recorded.errors & form.errors
                )
                for each in found
            ),
        )
        self.requests.append(result)
        if not found:
            self._settle(form)

    def _settle(self, form: RequestForm) -> None:
        """Clear the doubt about lanes whose results are in a request that is equal to the recorded one."""
        for lane, position in list(self._doubtful.items()):
            starter = self.recorded.starters.get(lane)
            if starter is not None and starter.call in form.results:
                self.requests[position] = replace(self.requests[position], is_ambiguous=False)
                del self._doubtful[lane]

    # Marks ------------------------------------------------------------------------------------------------------------

    def _marked_calls(self) -> dict[tuple[int, str], list[tuple[str, int]]]:
        """Return the prompts that get a mark, with the lane of each, by the response and the ID of the call."""
        found: dict[tuple[int, str], list[tuple[str, int]]] = {}
        for lane, starter in self.recorded.starters.items():
            if len(self.recorded.twins(lane)) > 1 and lane < MARKS_MAX:
                key = (starter.exchange, starter.call)
                found.setdefault(key, []).append((starter.prompt, lane))
        return found

    def _mark_spans(self, text: str, index: int, call: Block | None) -> list[Span]:
        """Return the insertions of marks into the input of a call, before the quote that ends a prompt."""
        if call is None:
            return []
        spans = []
        for prompt, lane in self._marks.get((index, str(call.id)), ()):
            for is_ascii in (True, False):
                at = text.find(literal := _literal(prompt, is_ascii))
                if at >= 0:
                    end = at + len(literal) - 1
                    spans.append(Span(end, end, mark(lane)))
                    break
        return spans

    # Misses -----------------------------------------------------------------------------------------------------------

    def _miss(self, form: RequestForm) -> ServedRequest:
        """Return the result for a request that was not recorded, with the nearest request and its differences."""
        number = len(self.requests) + 1
        near = self._nearest(form)
        if near is None:
            return ServedRequest(number, "miss", None)
        found = differences(self.recorded.form(near).body, form.body)
        found.sort(key=lambda each: each.path.startswith(f"$.{_CONVERSATION}") is False)
        kept = tuple(map(shortened, found[:DIFFERENCES_MAX]))
        return ServedRequest(number, "miss", near + 1, False, kept, len(found) - len(kept))

    def _nearest(self, form: RequestForm) -> int | None:
        """Return the unused request with the longest common start of the conversation, the first of several."""
        forms = self.recorded.forms
        pool = self._unused[:COMPARED_MAX]
        pool = [index for index in pool if forms[index].route == form.route] or pool
        return min(pool, key=lambda index: _distance(forms[index], form), default=None)


MARKS_MAX = 4096
"""Lanes up to this number get a mark, see `replay.served.request_form.mark`."""
_CONVERSATION = "conversation"


def _prompt_mark(value: Any) -> int | None:
    """Return the mark in a request; None if it has none."""
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, str):
            if (number := mark_in(inner)) is not None:
                return number
        elif isinstance(inner, dict):
            pending += inner.values()
        elif isinstance(inner, list):
            pending += inner
    return None


def _literal(text: str, is_ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=is_ascii)


def _merged(spans: list[Span]) -> list[Span]:
    """Return replacements in order, without those that overlap an earlier one."""
    found: list[Span] = []
    for span in sorted(spans):
        if not found or span.start >= found[-1].end:
            found.append(span)
    return found


def _distance(recorded: RequestForm, live: RequestForm) -> tuple[int, ...]:
    common = 0
    for one, other in zip(recorded.spine, live.spine, strict=False):
        if one != other:
            break
        common += 1
    is_other = recorded.has_tools != live.has_tools
    return (is_other, max(len(recorded.spine), len(live.spine)) - common, -common)
