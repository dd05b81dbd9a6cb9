"""Redact secrets from bytes before they are written, and leave a placeholder with the kind of each secret.

There are two stages: a literal is found, and then an anchored and bounded pattern is matched at its position. Every
quantifier is bounded, so hostile text takes little longer than plain text. A placeholder contains the kind of a secret
and a few keyed digits that identify it. Equal secrets have equal placeholders within a home. Without the key of the
home, a secret cannot be guessed from its placeholder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from agentobs import world
from agentobs.redaction.findings import (
    FAILED,
    FAILED_KIND,
    Finding,
    apply,
    disjoint,
    placeholder,
    tag_of,
)
from agentobs.redaction.scanner import CONTEXT, LEAD, decode_base64, scan
from agentobs.redaction.user_rules import (
    BUDGET_NS,
    OVERRUNS_MAX,
    OverrunError,
    Rule,
    expression,
    rule_findings,
)

__all__ = [
    "CONTEXT",
    "FAILED",
    "FAILED_KIND",
    "LEAD",
    "Finding",
    "Redactor",
    "Rule",
    "apply",
    "decode_base64",
    "disjoint",
    "expression",
    "find",
    "placeholder",
    "redact",
    "redact_named",
    "shifted",
]

SHORT_TEXT, SHORT_TEXTS_MAX = 256, 1024
"""The maximum length of a text whose redacted form is cached, in characters, and the maximum number of cached forms.
Our choice.
"""


class Redactor:
    """Finds secrets: first those with a known form, then those that the user's rules find.

    If an exception is raised while a text is scanned, the complete text is redacted as one finding.
    """

    def __init__(self, key: bytes = b"", rules: Sequence[Rule] = ()) -> None:
        """Create a redactor.

        Args:
            key: the key for the digits in placeholders; without a key, placeholders contain only the kind.
            rules: the user's rules.
        """
        self.rules = tuple(rules)
        self.failed = 0
        """The number of texts that could not be scanned and were replaced completely."""
        self._key = key
        self._overruns = [0] * len(self.rules)
        self._short: dict[tuple[str, tuple[bytes, ...]], str] = {}
        """The results for short texts, such as paths and headers, which recur in each request of a client."""

    def digest(self, data: bytes) -> str:
        """Return the keyed digest of content by which facts refer to it: `b2:` and 32 hex digits.

        Without the key, a guess of a short text cannot be verified with the facts.
        """
        return "b2:" + hashlib.blake2b(data, digest_size=16, key=self._key).hexdigest()

    def __repr__(self) -> str:
        """Hide the key."""
        return f"Redactor(rules={len(self.rules)}, failed={self.failed})"

    def find(
        self, text: bytes, *, start: int = 0, end: int | None = None, known: Iterable[bytes] = ()
    ) -> list[Finding]:
        """Return the secrets that start between `start` and `end`, in order and without overlap.

        `known` contains literal secrets, such as the API key of the request.
        """
        try:
            found = scan(text, start=start, end=end, known=known, key=self._key)
            if self.rules:
                found += self._rule_findings(text, start, len(text) if end is None else end)
            return disjoint(found)
        except Exception:  # any failure is counted, and redacts the complete text
            self.failed += 1
            return [Finding(0, len(text), FAILED_KIND, FAILED)] if text else []

    def redact(self, text: bytes, known: Iterable[bytes] = ()) -> bytes:
        """Return `text` without the secrets that `find` detects."""
        return apply(text, self.find(text, known=known))

    def redact_text(self, text: str, known: Iterable[bytes] = ()) -> str:
        """Redact text that may contain lone surrogates, like `redact`. Results of short texts are cached."""
        key = (text, tuple(known))
        if (done := self._short.get(key)) is not None:
            return done
        failed = self.failed
        redacted = self.redact(text.encode("utf-8", "surrogatepass"), key[1])
        result = redacted.decode("utf-8", "surrogatepass")
        if len(text) <= SHORT_TEXT and self.failed == failed:
            if len(self._short) >= SHORT_TEXTS_MAX:
                self._short.clear()
            self._short[key] = result
        return result

    def redact_named(self, value: Any) -> Any:
        """Return a JSON value in which a placeholder replaces each value whose key names a secret.

        Null, true and false are kept, because they are not secrets.
        """
        if isinstance(value, list):
            return [self.redact_named(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            key: self._argument(inner) if _is_named(key, inner) else self.redact_named(inner)
            for key, inner in value.items()
        }

    def _argument(self, value: Any) -> str:
        """Return the placeholder for the value of an argument; an existing placeholder is returned unchanged."""
        if isinstance(value, str) and _PLACEHOLDER.fullmatch(value):
            return value
        secret = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""
        return placeholder("argument", tag_of(secret, self._key) if secret else "").decode()

    def _rule_findings(self, text: bytes, start: int, stop: int) -> list[Finding]:
        """Return the findings of the user's rules, within their time limit for one text."""
        first, last = max(start - CONTEXT, 0), min(stop + CONTEXT, len(text))
        window, found = text[first:last], []
        until = world.monotonic() + BUDGET_NS
        for number, rule in enumerate(self.rules):
            if self._overruns[number] >= OVERRUNS_MAX:
                raise OverrunError
            try:
                for at, end, kind in rule_findings(rule, window, until):
                    if start <= at + first < stop:
                        tag = tag_of(window[at:end], self._key)
                        found.append(Finding(at + first, end + first, kind, tag=tag))
            except OverrunError:
                self._overruns[number] += 1
                raise
        return found


_PLAIN = Redactor()
_PLACEHOLDER = re.compile(r"\[redacted:[a-z0-9_]{1,40}(?::[0-9a-f]{1,16})?\]")


def find(
    text: bytes, *, start: int = 0, end: int | None = None, known: Iterable[bytes] = ()
) -> list[Finding]:
    """Return the secrets that start between `start` and `end`, with placeholders that contain only the kind."""
    return disjoint(scan(text, start=start, end=end, known=known))


def redact(text: bytes, known: Iterable[bytes] = ()) -> bytes:
    """Return `text` without the secrets that `find` detects, with placeholders that contain only the kind."""
    return apply(text, find(text, known=known))


def redact_named(value: Any) -> Any:
    """Return a JSON value in which `[redacted:argument]` replaces each value whose key names a secret."""
    return _PLAIN.redact_named(value)


_NAMES = re.compile(r"password|passwd|secret|apikey|authorization|credential|cookie|token\Z")


def _is_named(key: object, value: Any) -> bool:
    name = str(key).lower().replace("_", "").replace("-", "")
    return value is not None and not isinstance(value, bool) and bool(_NAMES.search(name))


def shifted(finding: Finding, by: int) -> Finding:
    """Return a finding shifted by a number of bytes."""
    return replace(finding, start=finding.start + by, end=finding.end + by)
