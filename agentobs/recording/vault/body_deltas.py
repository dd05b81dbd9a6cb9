"""Body deltas: request bodies, each stored as the difference from an earlier one.

Every request of a conversation repeats the history before it. `Bodies` keeps the last few bodies of a session. For a
new body it determines which earlier body it continues, which bytes and messages are new, and where secrets are. Only
the new bytes are parsed and searched, never the repeated history.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs.provider.dialect import Dialect
from agentobs.provider.registry import DIALECTS
from agentobs.redaction import CONTEXT, LEAD, Finding, Redactor, apply, disjoint, shifted

KEPT_BODIES = 16
KEPT_BYTES = 32 * 1024 * 1024
"""The maximum number and the maximum total size of earlier bodies of a session that are kept for comparison. Our
choice.
"""

BREAKPOINT_MESSAGES_MAX = 32
BREAKPOINT_BYTES_MAX = 512
"""The maximum number of messages that are compared without cache breakpoints, and the maximum size of a breakpoint in
bytes. Our choice.
"""

_BLOCK = 65536
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Body:
    """A request body that was analyzed."""

    content_id: str
    """A digest of the request without its body and of the chain of differences that rebuilds the body."""
    base: str | None
    """The content ID of the earlier body that the difference refers to, or None."""
    prefix: int
    """The number of bytes that it shares with the start of the base (both redacted)."""
    suffix: int
    """The number of bytes that it shares with the end of the base."""
    insert: bytes = field(repr=False)
    """The bytes between prefix and suffix, redacted."""
    size: int
    """The size of the exact body in bytes, before redaction."""
    redactions: tuple[Finding, ...]
    """The redacted secrets, by their position in the exact body."""
    settings: dict[str, Any] = field(repr=False)
    """The top-level values except `messages`; empty if the body is not a JSON object."""
    message_count: int | None
    """The number of entries of `messages`, or None if there is no such list."""
    shared_messages: int
    """The number of leading messages that the base also contains."""
    new_messages: tuple[Any, ...] = field(repr=False)
    """The messages after the shared messages, parsed."""
    origin: str | None
    """The content ID of the longest earlier body whose messages this body repeats and continues.

    Cache breakpoints, which move from request to request, are ignored here.
    """
    later_messages: tuple[Any, ...] = field(repr=False)
    """The messages after those of the origin, parsed; if there is no origin, the same as `new_messages`."""
    last_message: Any = field(default=None, repr=False)
    """The last message, parsed; None if there are no messages."""


@dataclass(slots=True)
class _Kept:
    raw: bytes
    written: bytes
    findings: list[Finding]
    parts: _Parts


@dataclass(frozen=True, slots=True)
class _Parts:
    """The positions of the messages of a body, and its other values."""

    first: int
    """The offset of the list of messages; 0 if there is none."""
    ends: list[int]
    """The offset of the end of each message."""
    before: dict[str, Any]
    """The top-level values before the list."""
    after: dict[str, Any]
    """The top-level values after the list."""
    new: list[Any]
    """The messages that are not in the base, parsed."""
    shared: int
    """The number of messages that are also in the base."""


_NO_PARTS = _Parts(0, [], {}, {}, [], 0)


class Bodies:
    """The last bodies of one session."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        """Start with no bodies; `redactor` finds the secrets in them."""
        self._redactor = redactor or Redactor()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0

    def add(
        self,
        raw: bytes,
        known: Sequence[bytes] = (),
        metadata: bytes = b"",
        dialect: Dialect = DIALECTS[0],
    ) -> Body:
        """Analyze a new body.

        Args:
            raw: the exact body.
            known: secrets to redact, such as the credentials of the request.
            metadata: the rest of the request. Equal bodies with different metadata get different content IDs.
            dialect: locates the history in the body.
        """
        base_id, base, prefix = self._closest(raw)
        suffix = _common_suffix(base.raw, raw, prefix) if base else 0
        findings = _scan(raw, prefix, suffix, base, known, self._redactor)
        parts = _split(raw, prefix, base.parts if base else _NO_PARTS, dialect)
        written = apply(raw, findings)
        if base and (findings or base.findings):
            prefix = common_prefix(base.written, written)
            suffix = _common_suffix(base.written, written, prefix)
        insert = written[prefix : len(written) - suffix]
        link = b"%s %d %d " % ((base_id or "").encode(), prefix, suffix)
        content_id = self._redactor.digest(b"%d " % len(metadata) + metadata + link + insert)
        origin, repeated = self._origin(raw, parts, base_id, dialect)
        self._keep(content_id, _Kept(raw, written, findings, parts))
        return Body(
            content_id=content_id,
            base=base_id,
            prefix=prefix,
            suffix=suffix,
            insert=insert,
            size=len(raw),
            redactions=tuple(findings),
            settings={**parts.before, **parts.after},
            message_count=len(parts.ends) if parts.first else None,
            shared_messages=parts.shared,
            new_messages=tuple(parts.new),
            origin=origin,
            later_messages=tuple(_messages_after(raw, parts, repeated) if origin else parts.new),
            last_message=_last(raw, parts),
        )

    def written(self, content_id: str) -> bytes:
        """Return a body that was just added, complete and redacted."""
        return self._kept[content_id].written

    def forget(self) -> None:
        """Forget all bodies, so that later ones do not refer to them."""
        self._kept.clear()
        self._bytes = 0

    def _closest(self, raw: bytes) -> tuple[str | None, _Kept | None, int]:
        """Return the kept body with the longest common prefix, and the length of that prefix; None and 0 if it is too
        short.
        """
        best: tuple[str | None, _Kept | None, int] = (None, None, 0)
        for content_id in reversed(self._kept):
            kept = self._kept[content_id]
            near = slice(max(best[2] - 64, 0), best[2] + 1)
            if len(kept.raw) <= best[2] or kept.raw[near] != raw[near]:
                continue
            shared = common_prefix(kept.raw, raw)
            if shared > max(best[2], 64):
                best = (content_id, kept, shared)
        return best

    def _origin(
        self, raw: bytes, parts: _Parts, base_id: str | None, dialect: Dialect
    ) -> tuple[str | None, int]:
        """Return the longest kept body whose messages a new body repeats, and the number of these messages."""
        best: tuple[str | None, int] = (None, 0)
        # The base comes first, because it is nearly always the longest match. Shorter bodies are then not compared.
        for content_id in [base_id, *reversed(self._kept)] if base_id else reversed(self._kept):
            kept = self._kept[content_id]
            count = len(kept.parts.ends)
            known = parts.shared if content_id == base_id else 0
            if best[1] < count < len(parts.ends) and _repeats(kept, raw, parts, known, dialect):
                best = (content_id, count)
        return best

    def _keep(self, content_id: str, kept: _Kept) -> None:
        if content_id in self._kept:
            self._bytes -= len(self._kept.pop(content_id).raw)
        self._kept[content_id] = kept
        self._bytes += len(kept.raw)
        while len(self._kept) > KEPT_BODIES or (self._bytes > KEPT_BYTES and len(self._kept) > 1):
            _, old = self._kept.popitem(last=False)
            self._bytes -= len(old.raw)


def rebuild(base: bytes, prefix: int, suffix: int, insert: bytes) -> bytes:
    """Return the body that a difference describes; the inverse of `Bodies.add` after redaction."""
    return base[:prefix] + insert + (base[len(base) - suffix :] if suffix else b"")


def common_prefix(a: bytes, b: bytes) -> int:
    """Return the length of the common prefix of two byte strings."""
    at, view = 0, memoryview(a)
    while at < len(a) and b.startswith(view[at : at + _BLOCK], at):
        at += _BLOCK
    if at >= len(a):
        return len(a)
    return at + _bisect(
        min(len(a), len(b), at + _BLOCK) - at, lambda n: a[at : at + n] == b[at : at + n]
    )


def _common_suffix(a: bytes, b: bytes, prefix: int) -> int:
    """Return the length of the common suffix of two byte strings, without their first `prefix` bytes."""
    most = min(len(a), len(b)) - prefix
    at = 0
    while at + _BLOCK <= most and b.endswith(a[len(a) - at - _BLOCK : len(a) - at], 0, len(b) - at):
        at += _BLOCK
    end_a, end_b = len(a) - at, len(b) - at
    return at + _bisect(
        min(most - at, _BLOCK), lambda n: a[end_a - n : end_a] == b[end_b - n : end_b]
    )


def _bisect(high: int, equal: Callable[[int], bool]) -> int:
    """Return the largest length up to `high` for which `equal` is true."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if equal(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _scan(
    raw: bytes,
    prefix: int,
    suffix: int,
    base: _Kept | None,
    known: Sequence[bytes],
    redactor: Redactor,
) -> list[Finding]:
    """Return the secrets in `raw`. Only the part that differs from the base is searched, with context around it."""
    if base is None:
        return redactor.find(raw, known=known)
    start, end = max(prefix - CONTEXT, 0), min(len(raw) - suffix + CONTEXT, len(raw))
    for finding in reversed(base.findings):
        if finding.start - LEAD < start < finding.end:
            start = max(finding.start - LEAD, 0)
    shift = len(raw) - len(base.raw)
    early = [f for f in base.findings if f.end <= start]
    late = [shifted(f, shift) for f in base.findings if f.start >= len(base.raw) - suffix + CONTEXT]
    return disjoint(early + redactor.find(raw, start=start, end=end, known=known) + late)


def _split(raw: bytes, prefix: int, base: _Parts, dialect: Dialect) -> _Parts:
    """Find the messages of a body, starting after those that it shares with the base."""
    try:
        shared = bisect_right(base.ends, prefix)
        if shared:
            return _split_after(raw, shared, base)
        return _split_all(raw, dialect.history_key)
    except (ValueError, RecursionError, TypeError):
        return _NO_PARTS


def _split_after(raw: bytes, shared: int, base: _Parts) -> _Parts:
    kept = base.ends[:shared]
    text = raw[kept[-1] :].decode("utf-8")
    new, ends, at = _messages(text, 0, kept[-1])
    return _Parts(base.first, kept + ends, base.before, _after(text, at), new, shared)


def _split_all(raw: bytes, history_key: str) -> _Parts:
    text = raw.decode("utf-8")
    at = _skip_whitespace(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not a JSON object")
    before: dict[str, Any] = {}
    at = _skip_whitespace(text, at + 1)
    while text[at : at + 1] != "}":
        key, at = _decoder.raw_decode(text, at)
        at = _skip_whitespace(text, _skip_whitespace(text, at) + 1)
        if key == history_key and text[at : at + 1] == "[":
            first = len(text[: at + 1].encode())
            new, ends, at = _messages(text, at + 1, first)
            return _Parts(first, ends, before, _after(text, at), new, 0)
        before[key], at = _decoder.raw_decode(text, at)
        at = _skip_whitespace(text, at)
        if text[at : at + 1] == ",":
            at = _skip_whitespace(text, at + 1)
    return _Parts(0, [], before, {}, [], 0)


def _messages(text: str, at: int, byte: int) -> tuple[list[Any], list[int], int]:
    """Parse list entries from the character `at` (the byte `byte`) on; return them, the offsets of their ends in bytes,
    and the character after the list.
    """
    found: list[Any] = []
    ends: list[int] = []
    while True:
        start = at
        at = _skip_whitespace(text, at)
        if text[at : at + 1] == "]":
            return found, ends, at + 1
        if text[at : at + 1] == ",":
            at = _skip_whitespace(text, at + 1)
        value, at = _decoder.raw_decode(text, at)
        byte += at - start if text.isascii() else len(text[start:at].encode())
        found.append(value)
        ends.append(byte)


def _after(text: str, at: int) -> dict[str, Any]:
    rest = text[at:].strip().removeprefix(",")
    parsed: dict[str, Any] = json.loads("{" + rest)
    return parsed


def _repeats(kept: _Kept, raw: bytes, parts: _Parts, known: int, dialect: Dialect) -> bool:
    """Return whether a new body starts with all messages of a kept body; the first `known` are known to match."""
    parsed = 0
    for number in reversed(range(known, len(kept.parts.ends))):
        old, new = _message(kept.raw, kept.parts, number), _message(raw, parts, number)
        if old == new:
            continue
        parsed += 1
        if parsed > BREAKPOINT_MESSAGES_MAX or abs(len(old) - len(new)) > BREAKPOINT_BYTES_MAX:
            return False
        without = dialect.without_breakpoints
        if without(json.loads(old)) != without(json.loads(new)):
            return False
    return True


def _messages_after(raw: bytes, parts: _Parts, repeated: int) -> list[Any]:
    """Return the messages after the first `repeated` ones: the new messages, and shared messages before them."""
    shared = range(max(repeated, parts.shared - BREAKPOINT_MESSAGES_MAX), parts.shared)
    before = [json.loads(_message(raw, parts, number)) for number in shared]
    return before + parts.new[max(repeated - parts.shared, 0) :]


def _last(raw: bytes, parts: _Parts) -> Any:
    if parts.new or not parts.ends:
        return parts.new[-1] if parts.new else None
    return json.loads(_message(raw, parts, len(parts.ends) - 1))


def _message(raw: bytes, parts: _Parts, number: int) -> bytes:
    start = parts.ends[number - 1] if number else parts.first
    return raw[start : parts.ends[number]].lstrip(b" \n\r\t,")


def _skip_whitespace(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\r", "\t") and at < len(text):
        at += 1
    return at
