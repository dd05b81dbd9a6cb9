"""The script of a provider server that matches requests by the conversation that they carry."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentobs import world
from agentobs.recording.wire.provider_server import Script
from agentobs.records.exchanges import Answer, ModelExchange, Question, Recording
from replay.scenario.script import Scripted
from replay.served.client_text import CLIENT_HEADERS
from replay.served.matcher import SpineMatcher
from replay.served.request_form import parsed
from replay.served.verdict import ServedRequest, Verdict


class SpineScript(Script):
    """The exchanges of a recording, each used once, for `ServedProvider`; safe to share between threads."""

    request_headers = CLIENT_HEADERS

    def __init__(
        self,
        recording: Recording,
        *,
        until_turn: int | None = None,
        until_change: int | None = None,
        then: Sequence[Scripted] = (),
        live_mark: str | None = None,
        on_end: Callable[[str], None] | None = None,
        ends_at_miss: bool = False,
        paces_tasks: bool = False,
        ends_after: Mapping[int, frozenset[int]] | None = None,
        before_turn: Callable[[int], None] | None = None,
    ) -> None:
        """Serve the model exchanges of a recording.

        A request whose response was not recorded, because the session was cut there, ends the replay.

        Args:
            recording: the recording.
            until_turn: the last turn of the main lane that is answered from the recording; None for all turns.
            until_change: the turn of the main lane after which the first request that differs ends the replay.
            then: the responses to the requests of the main lane after that turn, or after the recording.
            live_mark: the value of the header `LIVE_HEADER` in responses to requests that are for the provider, because
                they come after `until_turn`; None if no request is.
            on_end: is called when a request gets no response, with `miss`, `end` (after `until_turn`) or `change`. The
                calls are in the order of the requests, and must not use the script.
            ends_at_miss: whether nothing is answered after the first request that was not recorded.
            paces_tasks: whether only responses that arrived while a background task ran have the recorded times; all
                others have no pauses. For a server whose pace is 1. If its agent gets a report about a task, such a
                response is also held until the concurrent responses that ended before it have been sent.
            ends_after: for each exchange, by index, the concurrent ones that ended before it; None to derive them from
                the times of the recording.
            before_turn: is called with the number of a turn of the main lane before its recorded response is sent.
        """
        super().__init__(recording, "order")
        self.matcher = SpineMatcher(self.exchanges, masks_organizations=live_mark is not None)
        self._until_turn, self._until_change = until_turn, until_change
        self._then, self._live_mark = list(then), live_mark
        self._scripted = self._live = 0
        self._live_from: int | None = None
        self._on_end, self._before_turn = on_end, before_turn
        self._has_ended = False
        self._ends_at_miss = ends_at_miss
        self._paced = self.matcher.recorded.during_tasks() if paces_tasks else None
        """The exchanges whose responses have the recorded times; None for all."""
        self._ends_after = _ends_after(self.exchanges) if ends_after is None else ends_after
        with_reports = self.matcher.recorded.lanes_with_reports()
        self._held = {
            index
            for index in self._paced or ()
            if self.matcher.recorded.lanes[index] in with_reports
        }
        """The exchanges whose responses wait for concurrent responses: the exchanges of agents that get reports about
        tasks.
        """
        self._present = self.matcher.recorded.present_at_reports() if paces_tasks else {}
        """The requests that must arrive before a response that ends a background agent is sent."""
        self._taken: set[int] = set()
        self._sent: set[int] = set()
        self._sending = threading.Condition()
        self._miss_texts: dict[int, str] = {}
        """The texts for requests that get no response, by the identity of the request."""

    def take(self, question: Question) -> ModelExchange | None:
        """Return the exchange to answer a request from, with the live values; None if there is none."""
        with self._lock:
            taken, ending = self._take(question)
            if taken is None:
                self._miss_texts[id(question)] = self._miss_text(question, ending)
            self._unused = self.matcher.unused
            if ending and self._on_end is not None:
                self._on_end(ending)  # with the lock, because the first reason counts
        if taken is not None and self._paced is not None:
            self._hold(taken)
        if taken is not None and taken.answer.status == OK:
            turn = self.matcher.main_turns.get(self._index(taken))
            if self._before_turn is not None and turn is not None:
                self._before_turn(turn)
        return taken

    def _hold(self, taken: ModelExchange) -> None:
        """Wait until the responses that must precede a response have been sent and the client has seen them.

        A response that ends an agent in the background waits instead for requests, see `present_at_reports`.

        The wait is bounded, because a program that has changed may never send the requests of these responses.
        """
        index = self._index(taken)
        with self._sending:
            self._taken.add(index)
            self._sending.notify_all()
            if index in self._present:
                present = self._present[index]
                self._sending.wait_for(lambda: self._taken >= present, HOLD_SECONDS)
                return
        earlier = self._ends_after.get(index, frozenset()) if index in self._held else ()
        with self._sending:
            if not earlier or self._sent.issuperset(earlier):
                return
            self._sending.wait_for(lambda: self._sent.issuperset(earlier), HOLD_SECONDS)
        world.pause(SEEN_SECONDS)

    def note_sent(self, exchange: ModelExchange) -> None:
        """Note that the response of an exchange was sent completely."""
        with self._sending:
            self._sent.add(self._index(exchange))
            self._sending.notify_all()

    def _index(self, exchange: ModelExchange) -> int:
        """Return the index of an exchange or of its copy with another response; -1 for a scripted response."""
        places = (i for i, e in enumerate(self.exchanges) if e.question is exchange.question)
        return next(places, -1)

    def _take(self, question: Question) -> tuple[ModelExchange | None, str]:
        if self._ends_at_miss and self.missed:
            return None, "end"
        may_change = self._until_change is not None and self.has_answered(self._until_change)
        index = self.matcher.match(question)
        if may_change and (index is None or self.matcher.requests[-1].is_change):
            return None, "change"
        if index is not None and self._is_over(index):
            self.matcher.retract(index)
            if self._is_early():
                return self._unanswered(question, index)
            self._has_ended = True
            index = None
        elif index is None and self._may_continue and self._is_last_miss():
            self.matcher.requests.pop()
            self._has_ended = True
        if index is None and self._has_ended:
            return self._continued(question)
        if index is None:
            self.missed += 1
            return None, "miss"
        answer = self.matcher.answer(index)
        if self._paced is not None and index not in self._paced:
            answer = dataclasses.replace(
                answer, chunks=[c._replace(after_ns=0) for c in answer.chunks]
            )
        return dataclasses.replace(self.exchanges[index], answer=answer), ""

    @property
    def _may_continue(self) -> bool:
        """Whether a request after the recorded part is expected, so that it is not a miss."""
        is_cut = self._until_turn is not None
        return is_cut or bool(self._then) or self._live_mark is not None

    def _is_over(self, index: int) -> bool:
        """Return whether a recorded request comes after the last turn that is answered from the recording."""
        if not _is_answered(self.exchanges[index]):
            return True
        if self._until_turn is None:
            return False
        turns = self.matcher.main_turns
        if index in turns:
            return turns[index] > self._until_turn
        # After the first live request, no conversation starts that was recorded later, because its cause may differ.
        end = min((at for at, turn in turns.items() if turn > self._until_turn), default=None)
        has_gone_live = self._live_from is not None
        return has_gone_live and end is not None and self.matcher.recorded.lanes[index] > end

    def _is_early(self) -> bool:
        """Return whether recorded responses of the main lane remain, so that the provider must not continue it yet."""
        until = self._until_turn
        return self._live_mark is not None and until is not None and not self.has_answered(until)

    def _unanswered(self, question: Question, index: int) -> tuple[ModelExchange | None, str]:
        """Return the exchange for a request in the recorded part whose recorded request has no response, for example
        because the program canceled it. Only requests of other lanes, such as for a title, are for the provider.
        """
        if index not in self.matcher.main_turns:
            return self._for_provider(question), ""
        self.missed += 1
        number = len(self.matcher.requests) + 1
        self.matcher.requests.append(ServedRequest(number, "miss", index + 1, is_unanswered=True))
        return None, "miss"

    def has_answered(self, turn: int) -> bool:
        """Return whether the recorded responses of the main lane up to a turn were sent, apart from errors."""
        turns, unused = self.matcher.main_turns, set(self.matcher.unused)
        return not any(
            turns[index] <= turn and self.exchanges[index].answer.status == OK
            for index in unused & turns.keys()
        )

    def _is_last_miss(self) -> bool:
        """Return whether a miss comes after the recorded part: its turn is over, or all exchanges were used."""
        if self._has_ended or not self._answerable():
            return True
        if self._until_turn is None:
            return False
        return not self._answerable(self._until_turn)

    def _answerable(self, turn: int | None = None) -> list[int]:
        """Return the unused exchanges that have a response.

        Args:
            turn: only those of the main lane up to this turn; None for all.
        """
        found = [index for index in self.matcher.unused if _is_answered(self.exchanges[index])]
        if turn is None:
            return found
        turns = self.matcher.main_turns
        return [index for index in found if index in turns and turns[index] <= turn]

    def _continued(self, question: Question) -> tuple[ModelExchange | None, str]:
        """Return the exchange for a request after the recorded part."""
        if self._live_mark is not None:
            self._live_from = self._live_from or len(self.matcher.requests) + 1
            return self._for_provider(question), ""
        if self._scripted >= len(self._then):
            return None, "end"
        response = self._then[self._scripted]
        self._scripted += 1
        value = parsed(question.body)
        answer = response.answer(self._scripted, value if isinstance(value, dict) else {})
        return dataclasses.replace(self.exchanges[0], question=question, answer=answer), ""

    def _for_provider(self, question: Question) -> ModelExchange:
        """Count a request for the provider, and return the exchange that marks it."""
        self._live += 1
        answer = Answer(OK, {LIVE_HEADER: self._live_mark or ""}, (), "complete")
        return dataclasses.replace(self.exchanges[0], question=question, answer=answer)

    def release(self, question: Question, exchange: ModelExchange) -> None:
        """Answer a request again that is repeated because its response was cut off on purpose."""
        with self._lock:
            if (index := self._index(exchange)) >= 0:
                self.matcher.release(index)
                self._unused = self.matcher.unused

    def miss_text(self, question: Question) -> str:
        """Return what to answer to a request for which `take` found no exchange."""
        with self._lock:
            return self._miss_texts.pop(id(question), "the request was not recorded")

    def _miss_text(self, question: Question, ending: str) -> str:
        if ending == "end":
            return "the replay has ended here"
        if ending == "change":
            return "the replay has ended here, because the program differs from its recording"
        left = f"{len(self.matcher.unused)} of {len(self.exchanges)} exchanges left"
        return f"{question.method} {question.path}: {self.matcher.requests[-1].line()} ({left})"

    def result(self) -> Verdict:
        """Return the verdict so far."""
        with self._lock:
            unused = self._answerable(self._until_turn)
            used = len(self.exchanges) - len(self.matcher.unused)
            return Verdict(
                total=used + len(unused),
                requests=tuple(self.matcher.requests),
                unused=tuple(index + 1 for index in unused),
                rejected=self.rejected,
                scripted=self._scripted,
                live=self._live,
                live_from=self._live_from,
            )

    def verdict(self) -> str:
        """Return the verdict in one line."""
        return self.result().line()

    def counts(self) -> dict[str, Any]:
        """Return the verdict as a JSON value, with each request."""
        return self.result().as_json()


OK = 200
LIVE_HEADER = "x-agentobs-live"
"""The header of a response which means that the request is for the provider."""
HOLD_SECONDS = 10.0
"""The longest wait for the responses that precede a response. Our choice."""
SEEN_SECONDS = 0.5
"""How long a client may take to react to a response before the response that waited for it is sent. Our choice."""


def _ends_after(exchanges: Sequence[ModelExchange]) -> dict[int, frozenset[int]]:
    """Return for each exchange the concurrent exchanges that ended before it; empty if the times are unknown."""
    return {
        at: frozenset(
            other
            for other, earlier in enumerate(exchanges)
            if exchange.started_ns < earlier.ended_ns < exchange.ended_ns
            and earlier.started_ns < exchange.ended_ns
        )
        for at, exchange in enumerate(exchanges)
        if exchange.ended_ns > exchange.started_ns
    }


def _is_answered(exchange: ModelExchange) -> bool:
    """Return whether a response, or the failure of the connection, was recorded."""
    return exchange.answer.status is not None or exchange.answer.failure is not None
