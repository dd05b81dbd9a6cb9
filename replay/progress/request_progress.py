"""The progress of each matched request: who sent it, whether its response is held, and whether it was read."""

from __future__ import annotations

from collections.abc import Iterable

from agentobs.determinism.jobs import Job
from agentobs.records.exchanges import Origin, Question
from replay.agent_code.call_sites import Site, call_site
from replay.fixture.format import RecordedRequest
from replay.progress.answer_delivery import is_unread


class RequestProgress:
    """The matched requests of a replay, by their numbers in the fixture."""

    def __init__(self) -> None:
        """Start without requests."""
        self._numbers: dict[str | int, int] = {}
        """The recorded request for each live request that was not emitted yet, by attempt or by identity of the body.
        """
        self._numbers_by_attempt: dict[str, int] = {}
        """The recorded request for each attempt of a client that does not name its lane."""
        self.finished: set[int] = set()
        """The requests whose responses the agent has read to the end."""
        self.held: set[int] = set()
        """The requests whose responses are being held until others have ended."""
        self.threads: dict[int, int] = {}
        """The thread that sent each request."""
        self.unread_errors: dict[int, Site | None] = {}
        """The requests whose responses are errors with an unread body, and the place in the agent's code that sent each
        request.
        """
        self._jobs: dict[int, Job] = {}
        """The task, work item or thread that made each request, if it is known."""

    def previous_number(self, origin: Origin | None) -> int | None:
        """Return the recorded request that the same task sent before, or that started this task."""
        previous = origin.task_previous if origin else None
        return self._numbers_by_attempt.get(previous) if previous else None

    def note_match(self, ask: RecordedRequest, origin: Origin | None) -> None:
        """Record that a live request has matched a recorded one."""
        if is_unread(ask.answer):
            self.unread_errors[ask.number] = call_site()
        if origin is not None:
            self._numbers_by_attempt[origin.attempt_id] = ask.number
            if origin.job is not None:
                self._jobs[ask.number] = origin.job

    def note_answered(self, question: Question, ask: RecordedRequest) -> None:
        """Record the request whose recorded response a live request gets."""
        self._numbers[_key(question)] = ask.number

    def note_emitted(self, question: Question) -> int | None:
        """Record that a request is finished; return its number, or None if its response was not recorded."""
        number = self._numbers.pop(_key(question), None)
        if number is not None:
            self.finished.add(number)
        return number

    def unfinished(self, numbers: Iterable[int]) -> set[int]:
        """Return the requests that were not sent yet, or whose jobs have not ended."""
        jobs, sent = self._jobs, self.threads
        return {n for n in numbers if n not in sent or (n in jobs and not jobs[n].is_over)}


def _key(question: Question) -> str | int:
    return question.origin.attempt_id if question.origin else id(question.body)
