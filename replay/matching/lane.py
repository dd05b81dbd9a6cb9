"""Lanes: the order in which recorded requests may be sent, and which of them a live request is.

Requests of a lane that never overlapped come in the recorded order. The order of requests that overlapped was chance:
such a request may come as soon as the requests have been sent whose responses it continues. Requests are compared byte
for byte first; the canonical form is built only if that fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from agentobs.determinism.callers import told_of
from agentobs.provider.registry import dialect_of, meaningful_headers, message_of
from agentobs.records.canonical_json import canonical
from agentobs.records.differences import differences, shortened
from agentobs.records.exchanges import Origin, Question
from replay.comparison.placeholders import Renaming
from replay.fixture.body_parts import value_of
from replay.fixture.format import Ask, Fixture
from replay.matching.nearest_request import nearest
from replay.matching.spine import Drift, spine_of

DRIFT_SHOWN = 20
"""How many differences of a request are reported as drift; of the rest, only the number. Our choice."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A request that concurrent requests of its lane are identical to, so that nothing distinguished them."""

    taken: int
    """The recorded request that was chosen: the first unused one."""
    others: tuple[int, ...]
    """The other requests that match as well."""

    @property
    def text(self) -> str:
        """Return what happened, and how to make the requests distinguishable, in two sentences."""
        tied = sorted((self.taken, *self.others))
        named = f"{', '.join(map(str, tied[:-1]))} and {tied[-1]}"
        return (
            f"request {self.taken} was matched only by its position: requests {named} are identical and may be "
            "concurrent, and their callers have equal arguments. Pass each caller a different argument, or send "
            "each request inside `with agentobs.span(NAME)`, and record again"
        )


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A live request that matches no recorded request of its lane."""

    expected: Ask | None
    """The request that was due; None if the lane had no more."""
    elsewhere: Ask | None
    """A later request of the lane that is identical to this one."""


class Lane:
    """The requests of one lane of a fixture, some of them used."""

    def __init__(
        self,
        fixture: Fixture,
        name: str,
        renaming: Renaming,
        match: Literal["strict", "spine"] = "strict",
    ) -> None:
        """Use the lane called `name`; a lane that was not recorded is empty."""
        self._fixture, self._renaming, self._match = fixture, renaming, match
        self._spines: dict[int, str | None] = {}
        self.drift: list[Drift] = []
        """Differences in requests that were matched by their spine."""
        self.name = name
        self.asks = [ask for ask in fixture.asks if ask.lane == name]
        self._left = list(self.asks)
        self._equal: set[int] = set()
        """The requests that matched byte for byte."""
        self._is_free = any(ask.after is not None for ask in self.asks)
        self.turns = 0
        self.guesses: list[Guess] = []
        """The requests that were distinguished from identical ones by their order only, and may get the responses of
        others.
        """

    @property
    def asked(self) -> int:
        """How many requests were used."""
        return len(self.asks) - len(self._left)

    @property
    def left(self) -> list[Ask]:
        """The requests that were not used yet."""
        return list(self._left)

    def lacks(self, number: int) -> bool:
        """Return whether this request or one before it is unused."""
        return bool(self._left) and self._left[0].number <= number

    def asked_after(self, turn: int, path: str | None) -> Ask | None:
        """Return the first request to a path that was recorded after a turn; None stands for any turn."""
        last = max(at for at, ask in enumerate(self.asks) if ask.turn == turn)
        later = self.asks[last + 1 :]
        if path is None:
            return next((a for a in later if dialect_of(a.path).makes_turns(a.path)), None)
        return next((ask for ask in later if ask.path == path), None)

    def due(self) -> list[Ask]:
        """Return the requests that may come now, in recorded order."""
        if not self._is_free:
            return self._left[:1]
        left = {ask.number for ask in self._left}
        due: list[Ask] = []
        for place, ask in enumerate(self._left):
            ready = not place if ask.after is None else not (ask.after & left)
            if ready:
                due.append(ask)
        return due

    def take(self, question: Question, since: int | None = None) -> Ask | Mismatch:
        """Return the recorded request that `question` matches, and mark it as used; or the mismatch.

        `since` is the request that the same task sent before, or the one that started it.
        """
        due = self.due()
        for ask in due:
            if self._same_bytes(ask, question):
                if ask.caller is not None:
                    ask = self._of_origin(ask, due, question, since)
                return self._taken(ask)
        for ask, alike in self._by_origin(due, question, since):
            others: list[int] = []
            if alike and self._may_be(ask, question):
                others = [each.number for each in alike if self._may_be(each, question)]
            if self._same_meaning(ask, question):
                if others:
                    self.guesses.append(Guess(ask.number, tuple(others)))
                return self._taken(ask)
        if self._match == "spine" and (known := self._of_spine(due, question)) is not None:
            return self._taken(known)
        elsewhere = next((ask for ask in self._left if self._same_meaning(ask, question)), None)
        return Mismatch(self._nearest(due, question), elsewhere)

    def settle(self, ask: Ask) -> Ask:
        """Mark a request as used that another one has replaced."""
        return self._taken(ask)

    def place_of(self, ask: Ask) -> int:
        """Return the number of a request in this lane, from 1."""
        return [each.number for each in self.asks].index(ask.number) + 1

    def put_back(self, ask: Ask) -> None:
        """Mark a request as unused again."""
        left = {each.number for each in self._left} | {ask.number}
        self._left = [each for each in self.asks if each.number in left]
        asked = [each for each in self.asks if each.number not in left]
        self.turns = max((each.turn or 0 for each in asked if is_answered(each)), default=0)

    def _taken(self, ask: Ask) -> Ask:
        self._left.remove(ask)
        self._renaming.hear(lambda: said_in(ask))
        self.turns = max(self.turns, ask.turn or 0) if is_answered(ask) else self.turns
        return ask

    def _of_spine(self, due: list[Ask], question: Question) -> Ask | None:
        """Return the first request with the same spine, preferably one that is due."""
        came = value_of(asked_body(question, self._renaming))
        spine = spine_of(came)
        if spine is None:
            return None
        for ask in (*due, *(each for each in self._left if each not in due)):
            if (ask.method, ask.path) != (question.method, question.path):
                continue
            if ask.number not in self._spines:
                self._spines[ask.number] = spine_of(value_of(self._fixture.body(ask.number)))
            if self._spines[ask.number] == spine:
                old = compared(ask, value_of(self._fixture.body(ask.number)))
                found = differences(old, compared(question, came))
                shown, more = tuple(map(shortened, found[:DRIFT_SHOWN])), len(found) - DRIFT_SHOWN
                self.drift.append(Drift(self.name, ask.number, ask not in due, shown, max(more, 0)))
                return ask
        return None

    def _of_origin(self, first: Ask, due: list[Ask], question: Question, since: int | None) -> Ask:
        """Return which of several identical requests this one is: the one sent from the same place, otherwise the
        first.
        """
        equal = [
            a for a in due if a.caller is not None and self._fixture.is_same(first.number, a.number)
        ]
        likeness = _likenesses(equal, question, since)
        best = max(likeness.values())
        nearest = [ask for ask in equal if likeness[ask.number] == best]
        answered = [ask for ask in nearest if ask.answer.status == 200]
        if len(answered) > 1:  # else the others are tries of the same
            others = tuple(ask.number for ask in nearest[1:])
            self.guesses.append(Guess(nearest[0].number, others))
        return nearest[0]

    def _by_origin(
        self, due: list[Ask], question: Question, since: int | None
    ) -> Iterator[tuple[Ask, list[Ask]]]:
        """Yield candidate requests, best caller match first; each with the candidates that tie with it."""
        told = [ask for ask in due if ask.caller is not None]
        likeness = _likenesses(told, question, since)
        likest = iter(sorted(told, key=lambda ask: likeness[ask.number], reverse=True))
        for each in due:
            if each.caller is None:
                yield each, []
            else:
                ask = next(likest)
                like = likeness[ask.number]
                yield ask, [o for o in told if o is not ask and likeness[o.number] == like]

    def _may_be(self, ask: Ask, question: Question) -> bool:
        """Return whether a live request may be a recorded one, ignoring secrets; nothing is recorded."""
        if not same_head(ask, question) or ask.path != question.path:
            return False
        texts = []
        for body in (self._fixture.body(ask.number), asked_body(question, self._renaming)):
            value = value_of(body)
            texts.append(
                body.decode("utf-8", "surrogateescape") if value is None else canonical(value)
            )
        return self._renaming.may_be(*texts)

    def _nearest(self, due: list[Ask], question: Question) -> Ask | None:
        """Return the due request to compare with; at the start, one that was sent before the first was answered."""
        if due and not self.asked:
            first = next((ask for ask in due if not (ask.starts_after or ask.ends_after)), due[0])
            due = [
                ask for ask in due if ask.number <= (first.last_issued_before_end or first.number)
            ]
        came = value_of(asked_body(question, self._renaming)) if len(due) > 1 else None
        return nearest(
            due, lambda ask: value_of(self._fixture.body(ask.number)), question.path, came
        )

    def _same_bytes(self, ask: Ask, question: Question) -> bool:
        if not same_head(ask, question) or ask.path != question.path:
            return False
        body = self._fixture.body(ask.number)
        if body != question.body or not self._fits(ask, body):
            return False
        self._equal.add(ask.number)
        return True

    def _fits(self, ask: Ask, body: bytes) -> bool:
        """Return whether equal bytes may match at this position; in a known history, only new messages are checked."""
        if self._renaming.normalizing is None and b"[redacted:" not in body:
            return True
        texts = [ask.path, *self._new_in(ask, body)]
        return self._renaming.same_all((text, text) for text in texts)

    def _new_in(self, ask: Ask, body: bytes) -> list[str]:
        normalizing, shape = self._renaming.normalizing, ask.shape
        if shape.get("based_on") in self._equal and not (normalizing and normalizing.has_functions):
            return [
                canonical(new)
                for new in (*shape.get("add_messages", ()), *shape.get("set_keys", {}).values())
            ]
        value = value_of(body)
        return [body.decode("utf-8", "surrogateescape") if value is None else canonical(value)]

    def _same_meaning(self, ask: Ask, question: Question) -> bool:
        if not same_head(ask, question):
            return False
        asked = self._renaming.clean(question.path.encode(), question.secrets).decode()
        paths = ask.path, ask.path if ask.path == question.path else asked
        recorded, came = self._fixture.body(ask.number), asked_body(question, self._renaming)
        bare = without_boundary(came, question.headers)
        if self._renaming.same_bytes(without_boundary(recorded, ask.headers), bare, paths):
            return True
        old, new = value_of(recorded), value_of(came)
        if old is None or new is None:
            return False
        return self._renaming.same_all([paths, (canonical(old), canonical(new))])


def _likenesses(
    asks: list[Ask], question: Question, since: int | None
) -> dict[int, tuple[int, bool, int, list[bool], bool]]:
    """Return a score for each recorded request, by its number, of how well its caller matches that of the live one.

    The greatest score matches best. It compares, in this order: the values of the caller that the recorded one lacks,
    the job, the values that only the recorded one has (which include values that are new in each run), the values of
    the nearest frames, and the previous request.
    """
    told = told_of((digest for ask in asks for digest in ask.caller or ()), question.origin)
    started = {ask.job for ask in asks if ask.job and is_of_job(ask.job, question.origin)}
    # The common ancestor of the jobs is the one that matches none of the others.
    own = started or {""}
    return {
        ask.number: (
            -len(told.difference(ask.caller or ())),
            ask.job in own,
            -len(set(ask.caller or ()) - told),
            [digest in told for digest in ask.caller or ()],
            ask.task_previous == since,
        )
        for ask in asks
    }


def is_of_job(job: str, origin: Origin | None) -> bool:
    """Return whether the path to the job of a request is the recorded one."""
    if origin is None or origin.job is None:
        return False
    steps = job.split("/")
    own = [element for element, _, _ in origin.job.path]
    return own[len(own) - len(steps) :] == steps


def asked_body(question: Question, renaming: Renaming) -> bytes:
    """Return a body as it would have been recorded: without secrets, its own credentials first."""
    return renaming.clean(question.body, question.secrets)


def without_boundary(body: bytes, headers: dict[str, str]) -> bytes:
    """Return an uploaded form with a fixed boundary, because the boundary is random in each request."""
    _, is_form, boundary = headers.get("content-type", "").partition("boundary=")
    return body.replace(boundary.strip('"').encode(), b"boundary") if is_form else body


def same_head(ask: Ask, question: Question) -> bool:
    """Return whether the method and the relevant headers are the recorded ones."""
    old, new = ask.headers, question.headers
    return ask.method == question.method and all(
        old.get(n) == new.get(n) for n in meaningful_headers()
    )


def said_in(ask: Ask) -> str:
    """Return a response body as JSON text, or unchanged if it is not JSON."""
    message = message_of(ask.path, ask.answer).raw
    return canonical(message) if message else ask.answer.body.decode("utf-8", "surrogateescape")


def compared(question: Ask | Question, body: Any) -> Any:
    """Return the compared form of a request; the headers are included only if they differ."""
    head = {"method": question.method, "path": question.path}
    meant = {k: v for k, v in question.headers.items() if k in meaningful_headers()}
    return (
        {**body, "(request)": {**head, **meant}}
        if isinstance(body, dict)
        else {"body": body, **head, **meant}
    )


def is_answered(ask: Ask) -> bool:
    """Return whether the response to a request was received completely, without an error."""
    return ask.answer.status == 200 and ask.answer.ending == "complete"
