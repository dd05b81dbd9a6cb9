"""Secrets in a replay. Secrets are not recorded, so their placeholders are compared, up to a consistent renaming.

A fixture numbers its redacted secrets: `[redacted:github_token:1]`. Live requests are redacted in the same way, with
tags that are digests under a random key of this replay. When a live secret first appears in the place of a recorded
secret, the two are paired; from then on, exactly this live secret must appear wherever the recorded secret did. If an
agent copies a placeholder from a recorded answer, it uses the recorded secret itself. So a replay does not need the key
of the recording, and still detects if an agent confuses two secrets.
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
    from replay.comparison.normalizers import ActiveNormalizers, Pair

PLACEHOLDER = re.compile(r"\[redacted:([a-z0-9_]{1,40})(?::([0-9a-f]{1,16}))?\]")
"""The placeholder of a secret: its kind, and a tag or number that identifies the secret."""

SECRETS_MAX = 64
"""The maximum number of credentials of live requests that a replay remembers; the same as in the recorder."""

MASKED_ORGANIZATION = b"00000000-0000-4000-8000-000000000000"
"""The fixed ID that replaces organization IDs."""
_UUID = re.compile(
    rb"(?!00000000-0000-4000-8000-)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)


class Renaming:
    """The pairs of live and recorded secrets of one replay."""

    def __init__(
        self, rules: Sequence[Rule] = (), normalizers: ActiveNormalizers | None = None
    ) -> None:
        """Start without pairs. `rules` are the custom redaction rules, the same as in the recording."""
        self.normalizers = normalizers
        self._redactor = Redactor(world.random_bytes(32), rules)
        self._secrets: dict[bytes, None] = {}
        self._recorded: dict[str, str] = {}
        """The recorded tag, by live tag."""
        self._live: dict[str, str] = {}
        """The live tag, by recorded tag."""

    def clean(self, text: bytes, secrets: Sequence[bytes] = ()) -> bytes:
        """Redact a live text as the recorder does; paired secrets get the numbers of the fixture."""
        for secret in secrets:
            self._secrets[secret] = None
            if len(self._secrets) > SECRETS_MAX:
                del self._secrets[next(iter(self._secrets))]
        redacted = without_organizations(self._redactor.redact(text, secrets))
        if not self._recorded or b"[redacted:" not in redacted:
            return redacted
        return self._renamed(redacted.decode("utf-8", "surrogateescape"), {}).encode(
            "utf-8", "surrogateescape"
        )

    def clean_text(self, text: str) -> str:
        """Like `clean`, for text that may contain lone surrogates."""
        return self.clean(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def clean_outcome(self, text: str) -> str:
        """Like `clean_text`, but for the outcome of a session, which may also contain the credentials of requests."""
        return self.clean(text.encode("utf-8", "surrogatepass"), self.secrets).decode(
            "utf-8", "surrogatepass"
        )

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The latest credentials in requests of this replay."""
        return tuple(self._secrets)

    def note_answer(self, answer: Callable[[], str]) -> None:
        """Remember that the agent receives a recorded answer. `answer` returns its JSON text."""
        if self.normalizers is not None:
            self.normalizers.note_answer(answer)

    def matches(self, recorded: str, live: str) -> bool:
        """Return whether a cleaned live text matches a recorded text; if so, add the pairs."""
        return self.all_match([(recorded, live)])

    def all_match(self, texts: Iterable[tuple[str, str]]) -> bool:
        """Like `matches`, for several texts of one request. Pairs are added only if all texts match."""
        normalizers = self.normalizers
        if normalizers is not None:
            normalizers.forget_functions()
        values: list[Pair] = []
        olds: list[tuple[str, str]] = []
        news: list[tuple[str, str]] = []
        for recorded, live in texts:
            old, new = recorded, live
            if normalizers is not None:
                old, new, pairs = normalizers.normalized(recorded, live)
                if pairs is None:
                    return False
                values += pairs
            has_secrets = "[redacted:" in old
            if old != new and not (has_secrets and bare(old) == bare(new)):
                return False
            if has_secrets:
                olds += PLACEHOLDER.findall(old)
                news += PLACEHOLDER.findall(new)
        if normalizers is not None and not normalizers.can_pair(values):
            return False
        if olds and not self._same_secrets(olds, news):
            return False
        if normalizers is not None:
            normalizers.add_pairs(values)
        return True

    def bytes_match(self, recorded: bytes, live: bytes, *more: tuple[str, str]) -> bool:
        """Like `all_match`, for a pair of bytes and more pairs of texts of the same request."""
        may_match = recorded == live or self.normalizers is not None or b"[redacted:" in recorded
        if not may_match:
            return False
        texts = [each.decode("utf-8", "surrogateescape") for each in (recorded, live)]
        return self.all_match([*more, (texts[0], texts[1])])

    def with_recorded_names(self, recorded: str, live: str) -> str:
        """Return a cleaned live text in which unpaired secrets get the numbers of the recorded secrets they replace."""
        guessed: dict[str, str] = {}
        for old, new in zip(PLACEHOLDER.findall(recorded), PLACEHOLDER.findall(live), strict=False):
            if old[0] == new[0] and old[1] and new[1] and old[1] not in self._live:
                guessed.setdefault(new[1], old[1])
        renamed = self._renamed(live, guessed)
        if self.normalizers is None:
            return renamed
        return self.normalizers.with_recorded_values(recorded, renamed)

    def bytes_with_recorded_names(self, recorded: bytes, live: bytes) -> bytes:
        """Like `with_recorded_names`, for bytes."""
        texts = (each.decode("utf-8", "surrogateescape") for each in (recorded, live))
        return self.with_recorded_names(*texts).encode("utf-8", "surrogateescape")

    def may_match(self, recorded: str, live: str) -> bool:
        """Return whether a cleaned live text could match a recorded text; no pair is added."""
        if bare(recorded) != bare(live):
            return False
        return self._new_pairs(PLACEHOLDER.findall(recorded), PLACEHOLDER.findall(live)) is not None

    def _same_secrets(self, olds: list[tuple[str, str]], news: list[tuple[str, str]]) -> bool:
        """Return whether live secrets can be paired with recorded secrets; if so, add the pairs."""
        if (pairs := self._new_pairs(olds, news)) is None:
            return False
        recorded, live = pairs
        self._recorded.update(recorded)
        self._live.update(live)
        return True

    def _new_pairs(
        self, olds: list[tuple[str, str]], news: list[tuple[str, str]]
    ) -> tuple[dict[str, str], dict[str, str]] | None:
        """Return the entries for `_recorded` and `_live` that would pair secrets; None if they cannot be paired."""
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
                continue  # an older fixture, which does not distinguish secrets of the same kind
            if recorded.get(new) == old:
                continue
            # A suffix shorter than a tag is a number that the fixture assigned: a different recorded secret.
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
    """Return a text in which all secrets have the same placeholder, regardless of their kind."""
    return PLACEHOLDER.sub("[redacted]", text)


def bare_bytes(text: bytes) -> bytes:
    """Like `bare`, for bytes."""
    if b"[redacted:" not in text:
        return text
    return bare(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def without_organizations(text: bytes) -> bytes:
    """Mask the organization IDs that are readable in signed values.

    The length does not change: an ID is replaced by a fixed ID, and the value is still base64. The provider rejects
    such a value.
    """
    for shape in _shapes_in(text):
        text = shape.value.sub(partial(_masked, shape), text)
    return text


def has_masked(text: bytes) -> bool:
    """Return whether a text contains a masked organization ID, so that the provider rejects it."""
    return any(
        MASKED_ORGANIZATION in _decoded(shape, match)[0]
        for shape in _shapes_in(text)
        for match in shape.value.finditer(text)
    )


def _shapes_in(text: bytes) -> list[SealedShape]:
    """Return the shapes of the sealed values that a text may contain."""
    return [shape for shape in sealed_shapes() if any(mark in text for mark in shape.markers)]


def _masked(shape: SealedShape, match: re.Match[bytes]) -> bytes:
    data, codes = _decoded(shape, match)
    if not _UUID.search(data):
        return match[0]
    encoded = base64.b64encode(_UUID.sub(MASKED_ORGANIZATION, data), codes)
    return match[0][: match.start(2) - match.start()] + encoded[: len(match[2])]


def _decoded(shape: SealedShape, match: re.Match[bytes]) -> tuple[bytes, bytes]:
    """Decode a signed value.

    Returns:
        The bytes of the value, empty if it is not a signed value; and the two characters of its base64 alphabet that
        are neither letters nor digits.
    """
    field, value = match[1], match[2]
    codes = b"-_" if b"-" in value or b"_" in value else b"+/"
    if (mark := shape.nearby_markers.get(field)) is not None:
        before = match.string[max(match.start() - 80, 0) : match.start()]
        if mark not in before and mark not in match.string[match.end() : match.end() + 80]:
            return b"", codes
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), codes, validate=True), codes
    except binascii.Error:
        return b"", codes
