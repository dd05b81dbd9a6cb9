"""Partial responses: the parts of an exchange that are written before it ends, so that they survive a killed process.

The request is written as its content line early. The response is written as it arrives, in parts of complete events
without secrets, as numbered lines of the kind `partial`. At its end the line of the response says how many there are
and holds only the rest, so nothing is written twice. If that is impossible, because a secret found at the end starts
earlier, the line holds the complete response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentobs.recording.vault.body_deltas import Body
from agentobs.recording.vault.content_lines import chunk_sizes, text_of
from agentobs.recording.vault.stream_secrets import find_in_answer, settled
from agentobs.recording.vault.vault import piece_id, pieces_of, text_bytes
from agentobs.recording.wire.response_progress import Coming
from agentobs.records.exchanges import ModelExchange
from agentobs.records.facts import Attempt, Fact
from agentobs.redaction import Finding, Redactor, apply

HELD_BYTES = 4096
"""How many bytes before new data are searched again, and the smallest part that is written; `settled` decides how much
of them can be written.
"""
_BETWEEN_EVENTS = (b"\n\n", b"\r\n\r\n")


@dataclass(slots=True)
class Begun:
    """An exchange that has not ended and of which a part is written."""

    attempt_id: str
    body: Body
    asked: dict[str, Any] = field(repr=False)
    """The content line of its request."""
    redactor: Redactor = field(repr=False)
    state: tuple[bool, bool] | None = None
    """Whether the response headers, and usage, had arrived when a part was last written."""
    written: bytearray = field(default_factory=bytearray, repr=False)
    """The parts so far, without secrets."""
    taken: int = 0
    """The bytes of the response that they cover."""
    pieces: int = 0
    come: Coming = field(default_factory=Coming, repr=False)
    """Other bytes of the response that have arrived."""
    look_at: int = 0
    """How many bytes must have arrived before the next look."""

    def piece(self, exchange: ModelExchange) -> dict[str, Any] | None:
        """Return the next part of a response as a content line; None if too little has arrived since the last one."""
        size = self.come.size
        if size - self.taken <= HELD_BYTES or size < self.look_at:
            return None
        first = max(self.taken - HELD_BYTES, 0)
        window = self.come.since(first)
        findings = find_in_answer(window, exchange.secrets, self.redactor)
        start = self.taken - first
        end = _cut(window, start, settled(window, findings), findings)
        if end <= start:
            # A response that cannot be cut anywhere is looked at again when it has grown by an eighth. Our choice.
            self.look_at = size + (size - self.taken) // 8
            return None
        # The start of a secret that is longer than the waiting limit may be written already; such secrets are rare.
        own = [
            replace(each, start=max(each.start - start, 0), end=each.end - start)
            for each in findings
            if start < each.end <= end
        ]
        text = apply(window[start:end], own)
        line = self._line(exchange, text, self.taken, end - start, own)
        self.taken += end - start
        self.written += text
        return line

    @property
    def is_counted(self) -> bool:
        """Whether its usage so far is written."""
        return self.state is not None and self.state[1]

    def is_news(self, facts: Sequence[Fact]) -> bool:
        """Return whether its facts have changed since they were last written, and mark them as written."""
        state = next(
            (each.status is not None, each.message_id is not None)
            for each in facts
            if isinstance(each, Attempt)
        )
        before, self.state = self.state, state
        return before != state

    def head(self, exchange: ModelExchange) -> ModelExchange:
        """Return the exchange with the start of its response alone, as if it had broken off there."""
        answer = exchange.answer
        return replace(exchange, answer=replace(answer, chunks=tuple(self.come.head), encoding=""))

    def rest(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return the content line of its response without the bytes that its parts already hold, provided that they
        fit.
        """
        written = text_bytes(line)
        if not self.pieces or not written.startswith(self.written):
            return line
        kept = {key: value for key, value in line.items() if key not in ("text", "base64")}
        rest = text_of(written[len(self.written) :])
        return {**kept, **rest, "pieces_of": pieces_of(self.attempt_id), "pieces": self.pieces}

    def _line(
        self,
        exchange: ModelExchange,
        text: bytes,
        taken: int,
        size: int,
        findings: Sequence[Finding],
    ) -> dict[str, Any]:
        self.pieces += 1
        return {
            "content_id": piece_id(pieces_of(self.attempt_id), self.pieces),
            "session_id": exchange.place.session_id,
            "status": exchange.answer.status,
            "headers": exchange.answer.headers,
            **text_of(text),
            "chunks": chunk_sizes(self.come.between(taken, taken + size), findings),
        }


def _cut(window: bytes, start: int, end: int, findings: Sequence[Finding]) -> int:
    """Return where a part ends: after a complete event, and not within a secret."""
    while True:
        found = ((window.rfind(mark, start, end), len(mark)) for mark in _BETWEEN_EVENTS)
        end = max((at + size for at, size in found if at >= 0), default=start)
        across = [each.start for each in findings if each.start < end < each.end]
        if end <= start or not across:
            return end
        end = min(across)
