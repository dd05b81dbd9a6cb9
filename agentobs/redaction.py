"""Taking secrets out of bytes before they are written, leaving a note of what and where.

Two stages: find literal anchors, then match an anchored and bounded pattern there. Every quantifier is
bounded, so that hostile text costs no more than plain text. A placeholder names only the kind, so that
a recording replays whoever holds the key: live questions pass through the same function first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

CONTEXT = 4096
"""No secret that we look for is longer: a scan that starts so many bytes earlier misses nothing."""


LEAD = 64
"""How far before a secret the text may begin that gives it away, such as the name of its key in JSON."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A secret, or a piece of one: where it stands, of which kind it is, and what takes its place."""

    start: int
    end: int
    kind: str
    replacement: bytes | None = None
    """What is written there; None: the placeholder of its kind."""

    @property
    def written(self) -> bytes:
        """The bytes that stand in its place."""
        return placeholder(self.kind) if self.replacement is None else self.replacement


_KEY = rb"[A-Za-z0-9_-]"
_END = rb"(?![A-Za-z0-9_-])"
_QUOTE = rb'\\{0,7}"'
_VALUE = (
    _QUOTE + rb"\s{0,8}:\s{0,8}" + _QUOTE + rb"((?!\[redacted:|\$\{|\{\{|<)"
    rb'[^\s"\\]{12,256})' + _QUOTE
)
"""After the name of a key in JSON, in JSON within JSON too: its value, where it has no blank."""


def _word(anchor: bytes, before: bytes = b"A-Za-z0-9") -> bytes:
    """Return a pattern of an anchor that begins a word: what stands before may end an escape of JSON or of a URL.

    The anchor stands first, so that the search for it is one for a literal.
    """
    ends = rb"(?<=\\[bfnrt]%b)|(?<=\\u[0-9A-Fa-f]{4}%b)|(?<=%%[0-9A-Fa-f]{2}%b)"
    return rb"%b(?:(?<![%b]%b)|%b)" % (anchor, before, anchor, ends % (anchor, anchor, anchor))


_KINDS: tuple[tuple[str, bytes, bytes], ...] = (
    # kind, anchor, pattern; a group in it is the secret, else all of it. Formats: each provider's own
    # documentation of its keys.
    ("anthropic_key", b"sk-", _word(b"sk-ant-") + _KEY + rb"{16,256}"),
    ("openai_key", b"sk-", _word(b"sk-", b"A-Za-z0-9_-") + rb"[A-Za-z0-9]{32,64}" + _END),
    *(
        ("openai_key", b"sk-", _word(name) + rb"(?=[A-Za-z_-]{0,128}+[0-9])" + _KEY + rb"{20,256}")
        for name in (b"sk-proj-", b"sk-svcacct-", b"sk-admin-")
    ),
    ("aws_key_id", b"AKIA", _word(b"AKIA") + rb"[A-Z2-7]{16}" + _END),
    ("github_token", b"ghp_", rb"ghp_[A-Za-z0-9]{36,255}"),
    ("github_token", b"gho_", rb"gho_[A-Za-z0-9]{36,255}"),
    ("github_token", b"ghs_", rb"ghs_[A-Za-z0-9]{36,255}"),
    ("github_token", b"github_pat_", rb"github_pat_[A-Za-z0-9_]{22,255}"),
    ("slack_token", b"xox", rb"xoxb-[A-Za-z0-9-]{20,128}"),
    ("slack_token", b"xox", rb"xoxp-[A-Za-z0-9-]{20,128}"),
    ("google_key", b"AIza", _word(b"AIza", b"A-Za-z0-9_-") + _KEY + rb"{35}" + _END),
    ("huggingface_token", b"hf_", _word(b"hf_", b"A-Za-z0-9_-") + rb"[A-Za-z0-9]{34}" + _END),
    ("stripe_key", b"sk_live_", rb"sk_live_[A-Za-z0-9]{20,128}"),
    (
        "bearer_token",
        b"Bearer ",
        # Words joined by hyphens are prose; a token has a digit, or a capital inside a word.
        rb"Bearer (?=[A-Za-z._~+/-]{0,128}?(?:[0-9]|[a-z][A-Z]))[A-Za-z0-9._~+/-]{20,2048}=?=?",
    ),
    (
        "private_key",
        b"-----BEGIN ",
        # Five dashes end the text between: each beginning is read up to the next one, and no further.
        rb"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----(?:[A-Za-z0-9+/=\\\s:,.]|-(?!----)){32,3900}+"
        rb"-----END [A-Z ]{0,32}PRIVATE KEY-----",
    ),
    *(
        ("named_secret", name, name + _VALUE)
        for name in (b"api_key", b"apikey", b"apiKey", b"password", b"secret", b"access_token")
    ),
)
_PATTERNS = {
    anchor: [(kind, re.compile(pattern)) for kind, its, pattern in _KINDS if its == anchor]
    for _, anchor, _ in _KINDS
}


def find(
    text: bytes, *, start: int = 0, end: int | None = None, known: Iterable[bytes] = ()
) -> list[Finding]:
    """Return the secrets between `start` and `end`, in order and without overlap.

    `known` holds literal secrets, such as the key that the request itself carried.
    """
    stop = len(text) if end is None else end
    found = [
        Finding(at, at + len(secret), "credential")
        for secret in known
        if len(secret) >= 8
        for at in _occurrences(text, secret, start, stop)
    ]
    for anchor, kinds in _PATTERNS.items():
        # Most texts hold no anchor, and this search is much faster than that for a pattern.
        first = text.find(anchor, start, stop)
        if first >= 0:
            found += _matches(text, kinds, first, stop)
    return disjoint(found)


def apply(text: bytes, findings: list[Finding]) -> bytes:
    """Return `text` with each finding replaced; the same object where there is none."""
    if not findings:
        return text
    parts: list[bytes] = []
    last = 0
    for finding in findings:
        parts += (text[last : finding.start], finding.written)
        last = finding.end
    return b"".join((*parts, text[last:]))


def redact(text: bytes, known: Iterable[bytes] = ()) -> bytes:
    """Return `text` without the secrets that `find` sees in it."""
    return apply(text, find(text, known=known))


_NAMES = re.compile(r"password|passwd|secret|apikey|authorization|credential|token\Z")


def redact_named(value: Any) -> Any:
    """Return a JSON value in which whatever stands under a name of a secret is `[redacted:argument]`.

    Null, true and false stay: they hold no secret.
    """
    if isinstance(value, list):
        return [redact_named(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: "[redacted:argument]" if _is_named(key, inner) else redact_named(inner)
        for key, inner in value.items()
    }


def _is_named(key: object, value: Any) -> bool:
    name = str(key).lower().replace("_", "").replace("-", "")
    return value is not None and not isinstance(value, bool) and bool(_NAMES.search(name))


def placeholder(kind: str) -> bytes:
    """Return what stands in place of a secret."""
    return b"[redacted:" + kind.encode() + b"]"


def _matches(
    text: bytes, kinds: list[tuple[str, re.Pattern[bytes]]], start: int, stop: int
) -> Iterator[Finding]:
    for kind, pattern in kinds:
        for match in pattern.finditer(text, start, stop + CONTEXT):
            if match.start() < stop:
                yield Finding(*match.span(match.lastindex or 0), kind)


def _occurrences(text: bytes, needle: bytes, start: int, stop: int) -> Iterable[int]:
    at = text.find(needle, start, stop)
    while at != -1:
        yield at
        at = text.find(needle, at + 1, stop)


def disjoint(found: list[Finding]) -> list[Finding]:
    """Return findings in order, those that overlap merged into the first of them."""
    kept: list[Finding] = []
    for finding in sorted(found, key=lambda f: (f.start, -f.end)):
        if not kept or finding.start >= kept[-1].end:
            kept.append(finding)
        elif finding.end > kept[-1].end:
            kept[-1] = replace(kept[-1], end=finding.end)
    return kept
