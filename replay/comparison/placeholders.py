"""Secrets in a replay: none was recorded, so that placeholders are compared, up to a consistent renaming.

A fixture numbers the secrets that were taken out of it: `[redacted:github_token:1]`. What is asked live goes through
the same redaction, with tags of a key that is drawn for this replay. The first time that a live secret stands where a
recorded one stood, the two belong together; from then on that one must stand wherever the other stood, and no other.
An agent that copies a placeholder out of a recorded answer says the recorded secret itself.
So a replay needs nobody's key, and still sees where an agent takes one secret for another.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from agentobs import world
from agentobs.redaction import Redactor, Rule
from agentobs.redaction.findings import TAG_DIGITS

if TYPE_CHECKING:
    from replay.comparison.normalizers import Normalising, Pair

PLACEHOLDER = re.compile(r"\[redacted:([a-z0-9_]{1,40})(?::([0-9a-f]{1,16}))?\]")
"""What stands in place of a secret: its kind, and which of them it is; older fixtures tell only kinds."""

SECRETS_MAX = 64
"""How many credentials of its requests a replay knows, as for a session that is recorded."""

NOBODY = b"00000000-0000-4000-8000-000000000000"
"""What stands in place of the id of an organisation."""
_SEALED = re.compile(
    rb'\\{0,7}"(signature|encrypted_[a-z_]{1,32}|data)\\{0,7}"\s{0,4}:\s{0,4}\\{0,7}"([A-Za-z0-9+/_-]{64,}+={0,2})'
)
"""What the provider has sealed and a client hands back as it is: base64 in which the account's own id is readable."""
_UUID = re.compile(
    rb"(?!00000000-0000-4000-8000-)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)
_HIDDEN = b"redacted_thinking"


class Renaming:
    """Which live secret stands for which recorded one."""

    def __init__(self, rules: Sequence[Rule] = (), normalising: Normalising | None = None) -> None:
        """Start with nothing known; `rules` are the user's own, as when it was recorded."""
        self.normalising = normalising
        self._redactor = Redactor(world.random_bytes(32), rules)
        self._secrets: dict[bytes, None] = {}
        self._recorded: dict[str, str] = {}
        """By live tag."""
        self._live: dict[str, str] = {}
        """By recorded tag."""

    def clean(self, text: bytes, secrets: Sequence[bytes] = ()) -> bytes:
        """Return a live text as it would have been recorded; secrets that are known by now as in the fixture."""
        for secret in secrets:
            self._secrets[secret] = None
            if len(self._secrets) > SECRETS_MAX:
                del self._secrets[next(iter(self._secrets))]
        written = without_organisations(self._redactor.redact(text, secrets))
        if not self._recorded or b"[redacted:" not in written:
            return written
        return self._renamed(written.decode("utf-8", "surrogateescape"), {}).encode(
            "utf-8", "surrogateescape"
        )

    def clean_text(self, text: str) -> str:
        """Do as `clean`, for text that may hold lone surrogates."""
        return self.clean(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def clean_end(self, text: str) -> str:
        """Do as `clean_text` for what is said at the end of a session: it may hold credentials of requests."""
        return self.clean(text.encode("utf-8", "surrogatepass"), self.secrets).decode(
            "utf-8", "surrogatepass"
        )

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The newest credentials that requests of this replay carried."""
        return tuple(self._secrets)

    def hear(self, answer: Callable[[], str]) -> None:
        """Note that the agent is given an answer out of the recording, whose JSON text `answer` returns."""
        if self.normalising is not None:
            self.normalising.hear(answer)

    def same(self, recorded: str, came: str) -> bool:
        """Return whether a clean text is the recorded one; what belongs together then does so from now on."""
        return self.same_all([(recorded, came)])

    def same_all(self, texts: Iterable[tuple[str, str]]) -> bool:
        """Do as `same`, for several texts of one question: they are the recorded ones together, or nothing is noted."""
        normalising = self.normalising
        if normalising is not None:
            normalising.forget()
        values: list[Pair] = []
        olds: list[tuple[str, str]] = []
        news: list[tuple[str, str]] = []
        for recorded, came in texts:
            old, new = recorded, came
            if normalising is not None:
                old, new, pairs = normalising.plain(recorded, came)
                if pairs is None:
                    return False
                values += pairs
            has_secrets = "[redacted:" in old
            if old != new and not (has_secrets and bare(old) == bare(new)):
                return False
            if has_secrets:
                olds += PLACEHOLDER.findall(old)
                news += PLACEHOLDER.findall(new)
        if normalising is not None and not normalising.fit(values):
            return False
        if olds and not self._same_secrets(olds, news):
            return False
        if normalising is not None:
            normalising.belong(values)
        return True

    def same_bytes(self, recorded: bytes, came: bytes, *more: tuple[str, str]) -> bool:
        """Do as `same_all`, for bytes, and for other texts of the same question."""
        may_be = recorded == came or self.normalising is not None or b"[redacted:" in recorded
        if not may_be:
            return False
        texts = [each.decode("utf-8", "surrogateescape") for each in (recorded, came)]
        return self.same_all([*more, (texts[0], texts[1])])

    def read(self, recorded: str, came: str) -> str:
        """Return a clean text in which secrets that are not known yet are named like those in their places."""
        guessed: dict[str, str] = {}
        for old, new in zip(PLACEHOLDER.findall(recorded), PLACEHOLDER.findall(came), strict=False):
            if old[0] == new[0] and old[1] and new[1] and old[1] not in self._live:
                guessed.setdefault(new[1], old[1])
        named = self._renamed(came, guessed)
        return named if self.normalising is None else self.normalising.read(recorded, named)

    def read_bytes(self, recorded: bytes, came: bytes) -> bytes:
        """Do as `read`, for bytes."""
        texts = (each.decode("utf-8", "surrogateescape") for each in (recorded, came))
        return self.read(*texts).encode("utf-8", "surrogateescape")

    def may_be(self, recorded: str, came: str) -> bool:
        """Return whether a clean text may be the recorded one, but for which secret is which; nothing is noted."""
        if bare(recorded) != bare(came):
            return False
        return self._paired(PLACEHOLDER.findall(recorded), PLACEHOLDER.findall(came)) is not None

    def _same_secrets(self, olds: list[tuple[str, str]], news: list[tuple[str, str]]) -> bool:
        """Return whether secrets, each with its kind, may be the recorded ones, which they are then from now on."""
        if (paired := self._paired(olds, news)) is None:
            return False
        recorded, live = paired
        self._recorded.update(recorded)
        self._live.update(live)
        return True

    def _paired(
        self, olds: list[tuple[str, str]], news: list[tuple[str, str]]
    ) -> tuple[dict[str, str], dict[str, str]] | None:
        """Return what secrets that are the recorded ones add to `_recorded` and to `_live`; None: they cannot be."""
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
    """Return a text in which no secret can be told from another, of whatever kind it is."""
    return PLACEHOLDER.sub("[redacted]", text)


def bare_bytes(text: bytes) -> bytes:
    """Do as `bare`, for bytes."""
    if b"[redacted:" not in text:
        return text
    return bare(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def without_organisations(text: bytes) -> bytes:
    """Return a text without the ids of organisations that are readable in what the provider has sealed.

    The length stays: an id is replaced by another one, and what holds it is base64 as before. The provider would not
    take it any more.
    """
    if b"signature" not in text and b"encrypted_" not in text and _HIDDEN not in text:
        return text
    return _SEALED.sub(_unsigned, text)


def has_masked(text: bytes) -> bool:
    """Return whether `without_organisations` has changed something in a text, which the provider then refuses."""
    if b"signature" not in text and b"encrypted_" not in text and _HIDDEN not in text:
        return False
    return any(NOBODY in _opened(match)[0] for match in _SEALED.finditer(text))


def _unsigned(match: re.Match[bytes]) -> bytes:
    data, codes = _opened(match)
    if not _UUID.search(data):
        return match[0]
    again = base64.b64encode(_UUID.sub(NOBODY, data), codes)
    return match[0][: match.start(2) - match.start()] + again[: len(match[2])]


def _opened(match: re.Match[bytes]) -> tuple[bytes, bytes]:
    """Return the bytes of a sealed value, and the two characters that its base64 has besides letters and digits; no
    bytes if it is not one.
    """
    field, told = match[1], match[2]
    codes = b"-_" if b"-" in told or b"_" in told else b"+/"
    if field == b"data":
        near = match.string[max(match.start() - 80, 0) : match.start()]
        if _HIDDEN not in near and _HIDDEN not in match.string[match.end() : match.end() + 80]:
            return b"", codes
    try:
        return base64.b64decode(told + b"=" * (-len(told) % 4), codes, validate=True), codes
    except binascii.Error:
        return b"", codes
