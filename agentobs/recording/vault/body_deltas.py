"""Request bodies, each as a difference from an earlier one.

Every request of a conversation repeats the history before it. `Bodies` keeps the last few bodies of a
session and determines for a new one which earlier body it continues, which bytes and messages are
new, and where secrets are. Only new bytes are parsed and scanned, never the repeated history.
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
from agentobs.redaction import CONTEXT, LEAD, Finding, Redactor, apply, disjoint, moved

KEPT_BODIES = 16
KEPT_BYTES = 32 * 1024 * 1024
"""How many earlier bodies of a session are kept for comparison, and their total size."""

MARKED_MESSAGES = 32
MARK_BYTES = 512
"""How many messages are compared without cache breakpoints, and how much a breakpoint may add to one."""

_BLOCK = 65536
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Body:
    """A request body, understood."""

    content_id: str
    """A digest of the request without its body and of the chain of differences that rebuilds the body."""
    base: str | None
    """The content ID of the body that this one differs from, or None."""
    prefix: int
    """Bytes that it shares with the start of the base (both redacted)."""
    suffix: int
    """Bytes that it shares with the end of the base."""
    insert: bytes = field(repr=False)
    """The bytes between, redacted."""
    size: int
    """Bytes of the exact body, before redaction."""
    redactions: tuple[Finding, ...]
    """The redacted secrets, by their position in the exact body."""
    head: dict[str, Any] = field(repr=False)
    """The top-level values except `messages`; empty if the body is not a JSON object."""
    message_count: int | None
    """Entries of `messages`, or None if there is no such list."""
    shared_messages: int
    """How many of them, from the first, are also in the base."""
    new_messages: tuple[Any, ...] = field(repr=False)
    """The messages after the shared ones, parsed."""
    origin: str | None
    """The content ID of the longest earlier body whose messages this one repeats and continues.

    Cache breakpoints, which move from request to request, are ignored here.
    """
    later_messages: tuple[Any, ...] = field(repr=False)
    """The messages after those of the origin, parsed; the new ones if there is no origin."""


@dataclass(slots=True)
class _Kept:
    raw: bytes
    written: bytes
    findings: list[Finding]
    parts: _Parts


@dataclass(frozen=True, slots=True)
class _Parts:
    """Where the messages of a body end, and what surrounds them."""

    first: int
    """The offset of their list; 0 if there is none."""
    ends: list[int]
    before: dict[str, Any]
    after: dict[str, Any]
    new: list[Any]
    shared: int


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
        head: bytes = b"",
        dialect: Dialect = DIALECTS[0],
    ) -> Body:
        """Analyze a new body; `known` holds literal secrets to redact.

        `head` is the rest of the request: equal bodies with different heads get different content IDs. `dialect`
        locates its history.
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
        content_id = self._redactor.digest(b"%d " % len(head) + head + link + insert)
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
            head={**parts.before, **parts.after},
            message_count=len(parts.ends) if parts.first else None,
            shared_messages=parts.shared,
            new_messages=tuple(parts.new),
            origin=origin,
            later_messages=tuple(_later(raw, parts, repeated) if origin else parts.new),
        )

    def written(self, content_id: str) -> bytes:
        """Return a body that was just added, complete and redacted."""
        return self._kept[content_id].written

    def forget(self) -> None:
        """Start again: later bodies do not refer to earlier ones."""
        self._kept.clear()
        self._bytes = 0

    def _closest(self, raw: bytes) -> tuple[str | None, _Kept | None, int]:
        """Return the kept body with the longest common start, if that is long enough to be useful."""
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
        """Return the kept body with the most messages that are all at the start of a new one."""
        best: tuple[str | None, int] = (None, 0)
        # The base first: it is nearly always the right one, and then no shorter body is compared.
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
    """Return the length of the common start of two byte strings."""
    at, whole = 0, memoryview(a)
    while at < len(a) and b.startswith(whole[at : at + _BLOCK], at):
        at += _BLOCK
    if at >= len(a):
        return len(a)
    return at + _bisect(
        min(len(a), len(b), at + _BLOCK) - at, lambda n: a[at : at + n] == b[at : at + n]
    )


def _common_suffix(a: bytes, b: bytes, prefix: int) -> int:
    most = min(len(a), len(b)) - prefix
    at = 0
    while at + _BLOCK <= most and b.endswith(a[len(a) - at - _BLOCK : len(a) - at], 0, len(b) - at):
        at += _BLOCK
    end_a, end_b = len(a) - at, len(b) - at
    return at + _bisect(
        min(most - at, _BLOCK), lambda n: a[end_a - n : end_a] == b[end_b - n : end_b]
    )


def _bisect(high: int, equal: Callable[[int], bool]) -> int:
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
    """Return the secrets in `raw`; only the parts that differ from the base are searched, with context around them."""
    if base is None:
        return redactor.find(raw, known=known)
    start, end = max(prefix - CONTEXT, 0), min(len(raw) - suffix + CONTEXT, len(raw))
    for finding in reversed(base.findings):
        if finding.start - LEAD < start < finding.end:
            start = max(finding.start - LEAD, 0)
    by = len(raw) - len(base.raw)
    early = [f for f in base.findings if f.end <= start]
    late = [moved(f, by) for f in base.findings if f.start >= len(base.raw) - suffix + CONTEXT]
    return disjoint(early + redactor.find(raw, start=start, end=end, known=known) + late)


def _split(raw: bytes, prefix: int, base: _Parts, dialect: Dialect) -> _Parts:
    """Find the messages of a body, starting after those that it shares with the base."""
    try:
        shared = bisect_right(base.ends, prefix)
        if shared:
            return _split_after(raw, shared, base)
        return _split_whole(raw, dialect.history_key)
    except (ValueError, RecursionError, TypeError):
        return _NO_PARTS


def _split_after(raw: bytes, shared: int, base: _Parts) -> _Parts:
    kept = base.ends[:shared]
    text = raw[kept[-1] :].decode("utf-8")
    new, ends, at = _messages(text, 0, kept[-1])
    return _Parts(base.first, kept + ends, base.before, _after(text, at), new, shared)


def _split_whole(raw: bytes, history_key: str) -> _Parts:
    text = raw.decode("utf-8")
    at = _blank(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not a JSON object")
    before: dict[str, Any] = {}
    at = _blank(text, at + 1)
    while text[at : at + 1] != "}":
        key, at = _decoder.raw_decode(text, at)
        at = _blank(text, _blank(text, at) + 1)
        if key == history_key and text[at : at + 1] == "[":
            first = len(text[: at + 1].encode())
            new, ends, at = _messages(text, at + 1, first)
            return _Parts(first, ends, before, _after(text, at), new, 0)
        before[key], at = _decoder.raw_decode(text, at)
        at = _blank(text, at)
        if text[at : at + 1] == ",":
            at = _blank(text, at + 1)
    return _Parts(0, [], before, {}, [], 0)


def _messages(text: str, at: int, byte: int) -> tuple[list[Any], list[int], int]:
    """Parse list entries from `at` (byte `byte`) on; return them, their ends, and the position after them."""
    found: list[Any] = []
    ends: list[int] = []
    while True:
        start = at
        at = _blank(text, at)
        if text[at : at + 1] == "]":
            return found, ends, at + 1
        if text[at : at + 1] == ",":
            at = _blank(text, at + 1)
        value, at = _decoder.raw_decode(text, at)
        byte += at - start if text.isascii() else len(text[start:at].encode())
        found.append(value)
        ends.append(byte)


def _after(text: str, at: int) -> dict[str, Any]:
    rest = text[at:].strip().removeprefix(",")
    parsed: dict[str, Any] = json.loads("{" + rest)
    return parsed


def _repeats(kept: _Kept, raw: bytes, parts: _Parts, known: int, dialect: Dialect) -> bool:
    """Return whether a new body contains all messages of a kept body; the first `known` are known to match."""
    parsed = 0
    for number in reversed(range(known, len(kept.parts.ends))):
        old, new = _message(kept.raw, kept.parts, number), _message(raw, parts, number)
        if old == new:
            continue
        parsed += 1
        if parsed > MARKED_MESSAGES or abs(len(old) - len(new)) > MARK_BYTES:
            return False
        without = dialect.without_breakpoints
        if without(json.loads(old)) != without(json.loads(new)):
            return False
    return True


def _later(raw: bytes, parts: _Parts, repeated: int) -> list[Any]:
    """Return the messages after those that a body repeats: the new ones, and shared ones before them."""
    shared = range(max(repeated, parts.shared - MARKED_MESSAGES), parts.shared)
    before = [json.loads(_message(raw, parts, number)) for number in shared]
    return before + parts.new[max(repeated - parts.shared, 0) :]


def _message(raw: bytes, parts: _Parts, number: int) -> bytes:
    start = parts.ends[number - 1] if number else parts.first
    return raw[start : parts.ends[number]].lstrip(b" \n\r\t,")


def _blank(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\r", "\t") and at < len(text):
        at += 1
    return at
