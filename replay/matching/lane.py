"""Lanes: the order in which the requests of a lane may be sent, and the matching of live with recorded requests.

Requests of a lane that never overlapped must be sent in the recorded order. The order of overlapping requests was
random, so such a request may be sent as soon as the requests whose responses it continues have been sent. Requests are
first compared byte for byte; the canonical form is built only if the bytes differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from agentobs.determinism.callers import matching_digests
from agentobs.provider.registry import dialect_of, meaningful_headers, message_of
from agentobs.records.canonical_json import canonical
from agentobs.records.differences import differences, shortened
from agentobs.records.exchanges import UNRECORDED_HEADERS, Origin, Question
from replay.comparison.placeholders import Renaming
from replay.fixture.body_parts import value_of
from replay.fixture.format import Fixture, RecordedRequest
from replay.matching.nearest_request import nearest
from replay.matching.spine import Drift, spine_of

DRIFT_SHOWN = 20
"""The maximum number of differences of a request that are reported as drift; the others are counted. Our choice."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A match of a request that could not be distinguished from identical concurrent requests of its lane."""

    chosen: int
    """The recorded request that was chosen: the first unused request."""
    others: tuple[int, ...]
    """The other recorded requests that match equally well."""

    @property
    def text(self) -> str:
        """A description of the guess, and how to make the requests distinguishable."""
        tied = sorted((self.chosen, *self.others))
        named = f"{', '.join(map(str, tied[:-1]))} and {tied[-1]}"
        return (
            f"request {self.chosen} was matched only by its position: requests {named} are identical and may be "
            "concurrent, and their callers have equal arguments. Pass each caller a different argument, or send "
            "each request inside `with agentobs.span(NAME)`, and record again"
        )


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A live request that matches no recorded request of its lane."""

    expected: RecordedRequest | None
    """The recorded request that was due; None if all requests of the lane were used."""
    elsewhere: RecordedRequest | None
    """A later recorded request of the lane that matches the live request; None if there is none."""


class Lane:
    """The requests of one lane of a fixture, and which of them were used."""

    def __init__(
        self,
        fixture: Fixture,
        name: str,
        renaming: Renaming,
        match: Literal["strict", "spine"] = "strict",
    ) -> None:
        """Create the lane with a name; a lane that was not recorded is empty."""
        self._fixture, self._renaming, self._match = fixture, renaming, match
        self._spines: dict[int, str | None] = {}
        self.drift: list[Drift] = []
        """The differences of requests that were matched by their spine."""
        self.name = name
        self.requests = [each for each in fixture.requests if each.lane == name]
        self._unused = list(self.requests)
        self._equal: set[int] = set()
        """The requests that matched byte for byte."""
        self._is_unordered = any(each.after is not None for each in self.requests)
        self.turns = 0
        """The last turn of the used requests that have a response."""
        self.guesses: list[Guess] = []
        """The matches that depend only on the order of identical requests, so their responses may be swapped.
        """

    @property
    def used_count(self) -> int:
        """The number of requests that were used."""
        return len(self.requests) - len(self._unused)

    @property
    def unused(self) -> list[RecordedRequest]:
        """The requests that were not used yet, in recorded order."""
        return list(self._unused)

    def has_unused_until(self, number: int) -> bool:
        """Return whether a request with this number, or with a lower number, is unused."""
        return bool(self._unused) and self._unused[0].number <= number

    def first_after(self, turn: int, path: str | None) -> RecordedRequest | None:
        """Return the first request to `path` after a turn; None means any path whose requests make turns."""
        last = max(at for at, each in enumerate(self.requests) if each.turn == turn)
        later = self.requests[last + 1 :]
        if path is None:
            return next((r for r in later if dialect_of(r.path).makes_turns(r.path)), None)
        return next((each for each in later if each.path == path), None)

    def due(self) -> list[RecordedRequest]:
        """Return the requests that may be sent next, in recorded order."""
        if not self._is_unordered:
            return self._unused[:1]
        unused = {each.number for each in self._unused}
        due: list[RecordedRequest] = []
        for position, each in enumerate(self._unused):
            is_due = position == 0 if each.after is None else not (each.after & unused)
            if is_due:
                due.append(each)
        return due

    def match(self, question: Question, previous: int | None = None) -> RecordedRequest | Mismatch:
        """Return the recorded request that a live request matches, and mark it as used; or return the mismatch.

        `previous` is the previous request of the same task, or the request that started the task.
        """
        due = self.due()
        for each in due:
            if self._same_bytes(each, question):
                if each.caller is None:
                    return self.use(each)
                return self.use(self._with_same_caller(each, due, question, previous))
        for each, tied in self._by_caller(due, question, previous):
            others: list[int] = []
            if tied and self._may_match(each, question):
                others = [other.number for other in tied if self._may_match(other, question)]
            if self._same_meaning(each, question):
                if others:
                    self.guesses.append(Guess(each.number, tuple(others)))
                return self.use(each)
        if self._match == "spine" and (found := self._with_same_spine(due, question)) is not None:
            return self.use(found)
        elsewhere = next((r for r in self._unused if self._same_meaning(r, question)), None)
        return Mismatch(self._nearest(due, question), elsewhere)

    def position_of(self, request: RecordedRequest) -> int:
        """Return the number of a request in this lane, from 1."""
        return [each.number for each in self.requests].index(request.number) + 1

    def put_back(self, request: RecordedRequest) -> None:
        """Mark a request as unused again."""
        unused = {each.number for each in self._unused} | {request.number}
        self._unused = [each for each in self.requests if each.number in unused]
        used = [each for each in self.requests if each.number not in unused]
        self.turns = max((each.turn or 0 for each in used if is_answered(each)), default=0)

    def use(self, request: RecordedRequest) -> RecordedRequest:
        """Mark a request as used, because a live request matches or replaces it; return the request."""
        self._unused.remove(request)
        self._renaming.note_answer(lambda: response_text(request))
        self.turns = max(self.turns, request.turn or 0) if is_answered(request) else self.turns
        return request

    def _with_same_spine(
        self, due: list[RecordedRequest], question: Question
    ) -> RecordedRequest | None:
        """Return the first request with the same spine, preferably a request that is due; None if there is none."""
        live_body = value_of(cleaned_body(question, self._renaming))
        spine = spine_of(live_body)
        if spine is None:
            return None
        for request in (*due, *(each for each in self._unused if each not in due)):
            if (request.method, request.path) != (question.method, question.path):
                continue
            number = request.number
            if number not in self._spines:
                self._spines[number] = spine_of(value_of(self._fixture.body(number)))
            if self._spines[number] == spine:
                old = compared_form(request, value_of(self._fixture.body(number)))
                found = differences(old, compared_form(question, live_body, request))
                shown, more = tuple(map(shortened, found[:DRIFT_SHOWN])), len(found) - DRIFT_SHOWN
                is_early = request not in due
                self.drift.append(Drift(self.name, number, is_early, shown, max(more, 0)))
                return request
        return None

    def _with_same_caller(
        self,
        first: RecordedRequest,
        due: list[RecordedRequest],
        question: Question,
        previous: int | None,
    ) -> RecordedRequest:
        """Return the request with the best caller match among the requests that are identical to `first`."""
        identical = [
            r for r in due if r.caller is not None and self._fixture.is_same(first.number, r.number)
        ]
        scores = _caller_scores(identical, question, previous)
        best = max(scores.values())
        tied = [each for each in identical if scores[each.number] == best]
        # Identical requests without a successful response are earlier attempts of one call.
        if sum(each.answer.status == 200 for each in tied) > 1:
            others = tuple(each.number for each in tied[1:])
            self.guesses.append(Guess(tied[0].number, others))
        return tied[0]

    def _by_caller(
        self, due: list[RecordedRequest], question: Question, previous: int | None
    ) -> Iterator[tuple[RecordedRequest, list[RecordedRequest]]]:
        """Yield candidate requests, best caller match first, each with the candidates that match equally well."""
        with_caller = [each for each in due if each.caller is not None]
        scores = _caller_scores(with_caller, question, previous)
        best_first = iter(sorted(with_caller, key=lambda each: scores[each.number], reverse=True))
        for each in due:
            if each.caller is None:
                yield each, []
            else:
                request = next(best_first)
                score = scores[request.number]
                yield (
                    request,
                    [r for r in with_caller if r is not request and scores[r.number] == score],
                )

    def _may_match(self, request: RecordedRequest, question: Question) -> bool:
        """Return whether a live request could match a recorded request, without pairing secrets."""
        if not same_headers(request, question) or request.path != question.path:
            return False
        texts = []
        for body in (self._fixture.body(request.number), cleaned_body(question, self._renaming)):
            value = value_of(body)
            texts.append(
                body.decode("utf-8", "surrogateescape") if value is None else canonical(value)
            )
        return self._renaming.may_match(*texts)

    def _nearest(self, due: list[RecordedRequest], question: Question) -> RecordedRequest | None:
        """Return the due request that a live request is compared with in a report; None if none is due.

        For the first request of a lane, only requests that were sent before the first response ended are considered.
        """
        if due and not self.used_count:
            first = next((r for r in due if not (r.starts_after or r.ends_after)), due[0])
            last_number = first.last_issued_before_end or first.number
            due = [each for each in due if each.number <= last_number]
        live_body = value_of(cleaned_body(question, self._renaming)) if len(due) > 1 else None
        return nearest(
            due, lambda each: value_of(self._fixture.body(each.number)), question.path, live_body
        )

    def _same_bytes(self, request: RecordedRequest, question: Question) -> bool:
        if not same_headers(request, question) or request.path != question.path:
            return False
        body = self._fixture.body(request.number)
        if body != question.body or not self._is_consistent(request, body):
            return False
        self._equal.add(request.number)
        return True

    def _is_consistent(self, request: RecordedRequest, body: bytes) -> bool:
        """Return whether the secrets and normalized values of equal bodies can be paired.

        If the history was already compared, only new messages are checked.
        """
        if self._renaming.normalizers is None and b"[redacted:" not in body:
            return True
        texts = [request.path, *self._new_texts(request, body)]
        return self._renaming.all_match((text, text) for text in texts)

    def _new_texts(self, request: RecordedRequest, body: bytes) -> list[str]:
        normalizers, shape = self._renaming.normalizers, request.shape
        if shape.get("based_on") in self._equal and not (normalizers and normalizers.has_functions):
            return [
                canonical(new)
                for new in (*shape.get("add_messages", ()), *shape.get("set_keys", {}).values())
            ]
        value = value_of(body)
        return [body.decode("utf-8", "surrogateescape") if value is None else canonical(value)]

    def _same_meaning(self, request: RecordedRequest, question: Question) -> bool:
        if not same_headers(request, question):
            return False
        path = self._renaming.clean(question.path.encode(), question.secrets).decode()
        paths = request.path, request.path if request.path == question.path else path
        recorded = self._fixture.body(request.number)
        live = cleaned_body(question, self._renaming)
        old_bytes = without_boundary(recorded, request.headers)
        if self._renaming.bytes_match(old_bytes, without_boundary(live, question.headers), paths):
            return True
        old, new = value_of(recorded), value_of(live)
        if old is None or new is None:
            return False
        return self._renaming.all_match([paths, (canonical(old), canonical(new))])


def _caller_scores(
    requests: list[RecordedRequest], question: Question, previous: int | None
) -> dict[int, tuple[int, bool, int, list[bool], bool]]:
    """Return, by the number of each recorded request, a score of how well its caller matches the live caller.

    The highest score is the best match. It compares, in this order: the number of values of the live caller that the
    recorded caller lacks, the job, the number of values that only the recorded caller has (some of them may be new in
    each run), the values of the nearest frames, and the previous request of the task.
    """
    matching = matching_digests(
        (digest for each in requests for digest in each.caller or ()), question.origin
    )
    jobs = {r.job for r in requests if r.job and is_recorded_job(r.job, question.origin)}
    # If the live job matches none of the recorded paths, it is the common ancestor, whose path is empty.
    jobs = jobs or {""}
    return {
        each.number: (
            -len(matching.difference(each.caller or ())),
            each.job in jobs,
            -len(set(each.caller or ()) - matching),
            [digest in matching for digest in each.caller or ()],
            each.task_previous == previous,
        )
        for each in requests
    }


def is_recorded_job(job: str, origin: Origin | None) -> bool:
    """Return whether the path to the job of a live request ends with a recorded path."""
    if origin is None or origin.job is None:
        return False
    steps = job.split("/")
    live = [element for element, _, _ in origin.job.path]
    return live[len(live) - len(steps) :] == steps


def cleaned_body(question: Question, renaming: Renaming) -> bytes:
    """Return a live body as the recorder would store it: without secrets, including the credentials of the request."""
    return renaming.clean(question.body, question.secrets)


def without_boundary(body: bytes, headers: dict[str, str]) -> bytes:
    """Return an uploaded form with a fixed boundary, because the boundary is random in each request."""
    _, is_form, boundary = headers.get("content-type", "").partition("boundary=")
    return body.replace(boundary.strip('"').encode(), b"boundary") if is_form else body


def same_headers(request: RecordedRequest, question: Question) -> bool:
    """Return whether the method and the meaningful headers of a live request match the recorded request.

    Headers that the tool from which a recording was imported did not record are not compared.
    """
    old, new = request.headers, question.headers
    unrecorded = unrecorded_headers(request)
    return request.method == question.method and all(
        old.get(n) == new.get(n) for n in meaningful_headers() if n not in unrecorded
    )


def response_text(request: RecordedRequest) -> str:
    """Return a response body as canonical JSON text, or unchanged if it is not JSON."""
    message = message_of(request.path, request.answer).raw
    if message:
        return canonical(message)
    return request.answer.body.decode("utf-8", "surrogateescape")


def compared_form(
    question: RecordedRequest | Question, body: Any, recorded: RecordedRequest | None = None
) -> Any:
    """Return the parts of a request that are compared: the body, the method, the path and the meaningful headers.

    Args:
        question: the request.
        body: its body.
        recorded: for a live request, the request with which it is compared; headers that its recording does not
            contain because another tool did not record them are left out.
    """
    line = {"method": question.method, "path": question.path}
    names = set(meaningful_headers()) - set(unrecorded_headers(recorded))
    headers = {k: v for k, v in question.headers.items() if k in names}
    return (
        {**body, "(request)": {**line, **headers}}
        if isinstance(body, dict)
        else {"body": body, **line, **headers}
    )


def unrecorded_headers(request: RecordedRequest | None) -> list[str]:
    """Return the headers that the tool from which a recording was imported did not record."""
    return request.headers.get(UNRECORDED_HEADERS, "").split(",") if request is not None else []


def is_answered(request: RecordedRequest) -> bool:
    """Return whether a request got a complete response without an error."""
    return request.answer.status == 200 and request.answer.ending == "complete"
