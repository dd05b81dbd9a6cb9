"""Secrets in a replay: secrets are not recorded, so placeholders are compared, up to a consistent renaming.

A fixture numbers its redacted secrets: `[redacted:github_token:1]`. Live requests pass the same redaction, with tags
under a random key of this replay. When a live secret first appears in the place of a recorded one, the two are paired;
from then on the live one must appear wherever the recorded one did, and no other. An agent that copies a placeholder
out of a recorded answer uses the recorded secret itself. So a replay needs nobody's key, and still detects when an
agent confuses two secrets.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agentobs import world
from agentobs.provider.dialect import SealedShape
from agentobs.provider.registry import sealed_shapes
from agentobs.redaction import Redactor, Rule
from agentobs.redaction.findings import TAG_DIGITS

if TYPE_CHECKING:
    from replay.comparison.normalizers import Normalizing, Pair

PLACEHOLDER = re.compile(r"\[redacted:([a-z0-9_]{1,40})(?::([0-9a-f]{1,16}))?\]")
"""The placeholder of a secret: its kind, and which secret it is."""

SECRETS_MAX = 64
"""How many credentials of its requests a replay remembers, as in the recorder."""

NOBODY = b"00000000-0000-4000-8000-000000000000"
"""The placeholder of an organization ID."""
_UUID = re.compile(
    rb"(?!00000000-0000-4000-8000-)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)


class Renaming:
    """Which live secret is paired with which recorded one."""

    def __init__(self, rules: Sequence[Rule] = (), normalizing: Normalizing | None = None) -> None:
        """Start without pairs; `rules` are the custom rules, as in the recording."""
        self.normalizing = normalizing
        self._redactor = Redactor(world.random_bytes(32), rules)
        self._secrets: dict[bytes, None] = {}
        self._recorded: dict[str, str] = {}
        """By live tag."""
        self._live: dict[str, str] = {}
        """By recorded tag."""

    def clean(self, text: bytes, secrets: Sequence[bytes] = ()) -> bytes:
        """Return a live text as it would have been recorded; known secrets as in the fixture."""
        for secret in secrets:
            self._secrets[secret] = None
            if len(self._secrets) > SECRETS_MAX:
                del self._secrets[next(iter(self._secrets))]
        written = without_organizations(self._redactor.redact(text, secrets))
        if not self._recorded or b"[redacted:" not in written:
            return written
        return self._renamed(written.decode("utf-8", "surrogateescape"), {}).encode(
            "utf-8", "surrogateescape"
        )

    def clean_text(self, text: str) -> str:
        """Like `clean`, for text that may contain lone surrogates."""
        return self.clean(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def clean_end(self, text: str) -> str:
        """Like `clean_text`, for the end of a session, which may contain credentials of requests."""
        return self.clean(text.encode("utf-8", "surrogatepass"), self.secrets).decode(
            "utf-8", "surrogatepass"
        )

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The newest credentials in requests of this replay."""
        return tuple(self._secrets)

    def hear(self, answer: Callable[[], str]) -> None:
        """Note that the agent receives a recorded answer, whose JSON text `answer` returns."""
        if self.normalizing is not None:
            self.normalizing.hear(answer)

    def same(self, recorded: str, came: str) -> bool:
        """Return whether a clean text is the recorded one; if it is, add the pairs."""
        return self.same_all([(recorded, came)])

    def same_all(self, texts: Iterable[tuple[str, str]]) -> bool:
        """Like `same`, for several texts of one request: they match together, or no pair is added."""
        normalizing = self.normalizing
        if normalizing is not None:
            normalizing.forget()
        values: list[Pair] = []
        olds: list[tuple[str, str]] = []
        news: list[tuple[str, str]] = []
        for recorded, came in texts:
            old, new = recorded, came
            if normalizing is not None:
                old, new, pairs = normalizing.plain(recorded, came)
                if pairs is None:
                    return False
                values += pairs
            has_secrets = "[redacted:" in old
            if old != new and not (has_secrets and bare(old) == bare(new)):
                return False
            if has_secrets:
                olds += PLACEHOLDER.findall(old)
                news += PLACEHOLDER.findall(new)
        if normalizing is not None and not normalizing.fit(values):
            return False
        if olds and not self._same_secrets(olds, news):
            return False
        if normalizing is not None:
            normalizing.belong(values)
        return True

    def same_bytes(self, recorded: bytes, came: bytes, *more: tuple[str, str]) -> bool:
        """Like `same_all`, for bytes, and for other texts of the same request."""
        may_be = recorded == came or self.normalizing is not None or b"[redacted:" in recorded
        if not may_be:
            return False
        texts = [each.decode("utf-8", "surrogateescape") for each in (recorded, came)]
        return self.same_all([*more, (texts[0], texts[1])])

    def read(self, recorded: str, came: str) -> str:
        """Return a clean text in which unknown secrets have the names of the recorded ones in their places."""
        guessed: dict[str, str] = {}
        for old, new in zip(PLACEHOLDER.findall(recorded), PLACEHOLDER.findall(came), strict=False):
            if old[0] == new[0] and old[1] and new[1] and old[1] not in self._live:
                guessed.setdefault(new[1], old[1])
        named = self._renamed(came, guessed)
        return named if self.normalizing is None else self.normalizing.read(recorded, named)

    def read_bytes(self, recorded: bytes, came: bytes) -> bytes:
        """Like `read`, for bytes."""
        texts = (each.decode("utf-8", "surrogateescape") for each in (recorded, came))
        return self.read(*texts).encode("utf-8", "surrogateescape")

    def may_be(self, recorded: str, came: str) -> bool:
        """Return whether a clean text may be the recorded one, ignoring which secret is which; no pair is added."""
        if bare(recorded) != bare(came):
            return False
        return self._paired(PLACEHOLDER.findall(recorded), PLACEHOLDER.findall(came)) is not None

    def _same_secrets(self, olds: list[tuple[str, str]], news: list[tuple[str, str]]) -> bool:
        """Return whether secrets, each with its kind, may be the recorded ones; if so, add the pairs."""
        if (paired := self._paired(olds, news)) is None:
            return False
        recorded, live = paired
        self._recorded.update(recorded)
        self._live.update(live)
        return True

    def _paired(
        self, olds: list[tuple[str, str]], news: list[tuple[str, str]]
    ) -> tuple[dict[str, str], dict[str, str]] | None:
        """Return what matching secrets would add to `_recorded` and to `_live`; None if they cannot match."""
        if len(olds) != len(news):
            return None
        recorded, live = ChainMap({}, self._recorded), ChainMap({}, self._live)
        for (old_kind, old), (new_kind, new) in zip(olds, news, strict=True):
            if old == new and (old or old_kind == new_kind):
                if old:
                    live.setdefault(old, old)
                continue
            if old_kind != new_kind or not new:
                return None
            if not old:
                continue  # an older fixture: it tells no two secrets of a kind apart
            if recorded.get(new) == old:
                continue
            # Shorter than a tag is a number of the fixture: another recorded secret.
            if new in recorded or new in live or old in live or len(new) < TAG_DIGITS:
                return None
            recorded[new], live[old] = old, new
        return dict(recorded.maps[0]), dict(live.maps[0])

    def _renamed(self, text: str, guessed: dict[str, str]) -> str:
        def named(match: re.Match[str]) -> str:
            tag = match[2] or ""
            known = self._recorded.get(tag) or guessed.get(tag)
            return f"[redacted:{match[1]}:{known}]" if known else match[0]

        return PLACEHOLDER.sub(named, text)


def bare(text: str) -> str:
    """Return a text in which all secrets look the same, whatever their kind."""
    return PLACEHOLDER.sub("[redacted]", text)


def bare_bytes(text: bytes) -> bytes:
    """Like `bare`, for bytes."""
    if b"[redacted:" not in text:
        return text
    return bare(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def without_organizations(text: bytes) -> bytes:
    """Return a text without the organization IDs that are readable in signed values.

    The length stays: an ID is replaced by another one, and the value stays base64. The provider does not accept it any
    more.
    """
    for shape in _shapes_in(text):
        text = shape.value.sub(partial(_unsigned, shape), text)
    return text


def has_masked(text: bytes) -> bool:
    """Return whether `without_organizations` has changed a text, which the provider then rejects."""
    return any(
        NOBODY in _opened(shape, match)[0]
        for shape in _shapes_in(text)
        for match in shape.value.finditer(text)
    )


def _shapes_in(text: bytes) -> list[SealedShape]:
    """Return the shapes of the sealed values that a text may hold."""
    return [shape for shape in sealed_shapes() if any(mark in text for mark in shape.marks)]


def _unsigned(shape: SealedShape, match: re.Match[bytes]) -> bytes:
    data, codes = _opened(shape, match)
    if not _UUID.search(data):
        return match[0]
    again = base64.b64encode(_UUID.sub(NOBODY, data), codes)
    return match[0][: match.start(2) - match.start()] + again[: len(match[2])]


def _opened(shape: SealedShape, match: re.Match[bytes]) -> tuple[bytes, bytes]:
    """Return the bytes of a signed value, and the two characters that its base64 has besides letters and digits; no
    bytes if it is not one.
    """
    field, told = match[1], match[2]
    codes = b"-_" if b"-" in told or b"_" in told else b"+/"
    if (mark := shape.marks_near.get(field)) is not None:
        before = match.string[max(match.start() - 80, 0) : match.start()]
        if mark not in before and mark not in match.string[match.end() : match.end() + 80]:
            return b"", codes
    try:
        return base64.b64decode(told + b"=" * (-len(told) % 4), codes, validate=True), codes
    except binascii.Error:
        return b"", codes
