"""Partial responses: the parts of an exchange that are written before it ends, so that they survive a killed process.

The content line of the request is written early. The response is written as it arrives, in parts of complete events
without secrets, as numbered lines of the kind `partial`. When it ends, its content line contains the number of these
parts and only the remaining bytes, so nothing is written twice. If that is impossible, because a secret that was found
at the end starts in an earlier part, the line contains the complete response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentobs.provider.registry import dialect_of
from agentobs.recording.vault.body_deltas import Body
from agentobs.recording.vault.content_lines import chunk_sizes, text_of
from agentobs.recording.vault.stream_secrets import find_in_answer, writable_length
from agentobs.recording.vault.vault import part_id, parts_id, text_bytes
from agentobs.recording.wire.response_progress import ResponseProgress
from agentobs.records.exchanges import ModelExchange
from agentobs.records.facts import Attempt, Fact
from agentobs.redaction import Finding, Redactor, apply

PART_BYTES_MIN = 4096
"""The minimum size of a part, and how many bytes before new data are searched again. `writable_length` decides where a
part may end. Our choice.
"""
_BETWEEN_EVENTS = (b"\n\n", b"\r\n\r\n")


@dataclass(slots=True)
class PartialExchange:
    """An exchange that has not ended, and whose first part is written."""

    attempt_id: str
    body: Body
    request_line: dict[str, Any] = field(repr=False)
    """The content line of its request."""
    redactor: Redactor = field(repr=False)
    state: tuple[bool, bool] | None = None
    """Whether the response headers, and usage, had arrived when drafts of its facts were last written."""
    drafted_start: tuple[int | None, int] | None = None
    """The status, and the number of first chunks, from which drafts of its facts were last derived."""
    written: bytearray = field(default_factory=bytearray, repr=False)
    """The bytes of all parts, without secrets."""
    covered_bytes: int = 0
    """The number of bytes of the response that the parts cover."""
    parts: int = 0
    """The number of parts."""
    response: ResponseProgress = field(default_factory=ResponseProgress, repr=False)
    """The bytes of the response that have arrived."""
    next_search_bytes: int = 0
    """The number of bytes that must have arrived before the next search for a part."""

    def next_part(self, exchange: ModelExchange) -> dict[str, Any] | None:
        """Return the next part of a response as a content line; None if too little has arrived since the last one."""
        size = self.response.size
        if size - self.covered_bytes <= PART_BYTES_MIN or size < self.next_search_bytes:
            return None
        if dialect_of(exchange.question.path).is_binary(exchange.answer.headers):
            return None  # it can only be redacted as a whole
        first = max(self.covered_bytes - PART_BYTES_MIN, 0)
        window = self.response.since(first)
        findings = find_in_answer(window, exchange.secrets, self.redactor)
        start = self.covered_bytes - first
        end = _part_end(window, start, writable_length(window, findings), findings)
        if end <= start:
            # A response that cannot be cut anywhere is searched again when it has grown by an eighth. Our choice.
            self.next_search_bytes = size + (size - self.covered_bytes) // 8
            return None
        # The start of a secret that is longer than the limit of held bytes may be written already; such secrets are
        # rare.
        in_part = [
            replace(each, start=max(each.start - start, 0), end=each.end - start)
            for each in findings
            if start < each.end <= end
        ]
        text = apply(window[start:end], in_part)
        line = self._line(exchange, text, self.covered_bytes, end - start, in_part)
        self.covered_bytes += end - start
        self.written += text
        return line

    def may_have_new_drafts(self, exchange: ModelExchange) -> bool:
        """Return whether drafts of its facts may have changed since the last call. They cannot have if a draft of the
        usage was written, or if the start of the response is the same.
        """
        start = exchange.answer.status, len(self.response.first_chunks)
        has_usage = self.state is not None and self.state[1]
        before, self.drafted_start = self.drafted_start, start
        return not has_usage and start != before

    def note_drafts(self, facts: Sequence[Fact]) -> bool:
        """Return whether drafts of its facts have changed since they were last written, and note them as written."""
        state = next(
            (each.status is not None, each.message_id is not None)
            for each in facts
            if isinstance(each, Attempt)
        )
        before, self.state = self.state, state
        return before != state

    def with_first_chunks(self, exchange: ModelExchange) -> ModelExchange:
        """Return the exchange with only the start of its response, as if the response had broken off there."""
        chunks = tuple(self.response.first_chunks)
        return replace(exchange, answer=replace(exchange.answer, chunks=chunks, encoding=""))

    def without_parts(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return the content line of its response without the bytes of the written parts.

        If the response does not start with these bytes, the line is returned unchanged.
        """
        written = text_bytes(line)
        if not self.parts or not written.startswith(self.written):
            return line
        kept = {key: value for key, value in line.items() if key not in ("text", "base64")}
        rest = text_of(written[len(self.written) :])
        return {**kept, **rest, "pieces_of": parts_id(self.attempt_id), "pieces": self.parts}

    def _line(
        self,
        exchange: ModelExchange,
        text: bytes,
        start: int,
        size: int,
        findings: Sequence[Finding],
    ) -> dict[str, Any]:
        self.parts += 1
        return {
            "content_id": part_id(parts_id(self.attempt_id), self.parts),
            "session_id": exchange.place.session_id,
            "status": exchange.answer.status,
            "headers": exchange.answer.headers,
            **text_of(text),
            "chunks": chunk_sizes(self.response.between(start, start + size), findings),
        }


def _part_end(window: bytes, start: int, end: int, findings: Sequence[Finding]) -> int:
    """Return where a part ends: after a complete event, and not within a secret."""
    while True:
        found = ((window.rfind(each, start, end), len(each)) for each in _BETWEEN_EVENTS)
        end = max((at + size for at, size in found if at >= 0), default=start)
        cut_secrets = [each.start for each in findings if each.start < end < each.end]
        if end <= start or not cut_secrets:
            return end
        end = min(cut_secrets)
