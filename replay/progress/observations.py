"""Observations: the records that the agent emitted, and what the agent loop reported in addition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from agentobs.records.exchanges import ModelExchange, ReturnValue, SessionReturn
from agentobs.records.facts import SessionEnd, settled
from agentobs.sink import Record
from replay.agent_code.ambient_reads import Reads
from replay.matching.interaction_ends import last_own_end


class Observations:
    """The records and reports of the agent in this replay."""

    def __init__(self) -> None:
        """Start without observations."""
        self.records: list[tuple[Record, int | None]] = []
        """The emitted records, each with the number of the recorded request that has the same body, or None."""
        self._results: dict[str, ReturnValue | None] = {}
        """The results of the sessions that have ended, by session ID."""
        self.sections: dict[str, Sequence[tuple[str, str]]] = {}
        """The sections of the last system prompt of each lane, if the agent loop reported them."""
        self.function_finders: list[Callable[[str], Callable[..., Any] | None]] = []
        """Functions that return the function of a tool; one for each replayed world."""
        self.reads = Reads()
        """The reads of the real clock, IDs and random numbers, if they are reported."""

    def add(self, record: Record, number: int | None = None) -> None:
        """Keep a record. `number` is the recorded request that has the same body, so that the body need not be kept."""
        if isinstance(record, SessionReturn):
            self._results[record.end.session_id] = record.result
            record = record.end
        if isinstance(record, ModelExchange) and number is not None:
            record = with_body(record, b"")  # the bodies of 1,000 turns are a gigabyte
        self.records.append((record, number))

    @property
    def session_end(self) -> SessionEnd | None:
        """How the session ended in this replay; None if it has not ended."""
        ends = [record for record, _ in self.records if isinstance(record, SessionEnd)]
        return settled(ends[-1], last_own_end(r for r, _ in self.records)) if ends else None

    @property
    def result(self) -> ReturnValue | None:
        """The result of the session in this replay; None if it is not known, or the session has not ended."""
        end = self.session_end
        return None if end is None else self._results.get(end.session_id)


def with_body(exchange: ModelExchange, body: bytes) -> ModelExchange:
    """Return an exchange with another request body."""
    question = dataclasses.replace(exchange.question, body=body)
    return dataclasses.replace(exchange, question=question)
