"""Scan a text for secrets: first for literals, then with an anchored and bounded pattern at each hit.

Every token contains a long run of letters and digits, and most bytes of a text are not in such runs. Therefore the runs
are found first, by a literal search in a copy of the text in which all letters and digits are the same character.
Patterns are matched only in these runs. Secrets that are identified by a name need one search for each name, in a
lower-case copy. A run that is base64 of plain text is decoded and scanned as well, one level deep.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from agentobs.redaction.anchors import position_search
from agentobs.redaction.findings import Finding, tag_of
from agentobs.redaction.secret_commands import COMMANDS
from agentobs.redaction.secret_context import NAMED, SearchStep, Span
from agentobs.redaction.secret_kinds import (
    ALPHANUMERIC,
    DISCORD,
    KINDS,
    MAILGUN,
    REFRESH,
    TELEGRAM,
    Kind,
)

CONTEXT = 4096
"""Maximum length of a secret. A scan that starts this many bytes earlier misses nothing."""
LEAD = 512
"""The maximum number of bytes between the start of a context (such as a JSON key or a command name) and its secret."""
RUN = 16
"""Every token contains a run of letters, digits, `-` and `_` of at least this length."""
DECODED_BYTES_MIN = 20
"""Shorter runs are not decoded as base64."""
KNOWN_BYTES_MIN = 8
"""Shorter literal secrets are not searched for, because they would match ordinary words."""
BASE64_BYTES_MAX = 65536
"""Maximum length of a base64 run that is decoded at once; a longer run is decoded in parts. Our choice."""

BLOCK_BYTES = 256 * 1024
"""A longer text is searched in blocks, so that memory stays flat and no single call takes long. Our choice."""
WORD_BYTES_MAX = 48
"""Longer runs are rarely repeated. Our choice."""
_BEFORE_WORD = frozenset(bytes((each,)) for each in b"\"' \n\t(,{=")
_AFTER_WORD = frozenset(bytes((each,)) for each in b"\"' \n\t(),]}")
"""Separators that belong to no token, so that the text beyond them does not matter."""
_CLASSES = bytes(
    0x61 if (chr(byte).isalnum() and byte < 128) or byte in b"-_" else 0x20 for byte in range(256)
)
_NEEDLE = b"a" * RUN
_DELIMITER = re.compile(rb"[-_](?<=[A-Za-z0-9].)(?=[A-Za-z0-9_-])")
_ENDS_ESCAPE = re.compile(
    rb"(?:\\[abfnrtv0]|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|%[0-9A-Fa-f]{2}|\[[0-9;]{0,12}[mK])\Z"
)
"""Matches text that ends in an escape of JSON, of a URL or of terminal colors: the last letters or digits of the escape
do not belong to the word that follows.
"""
_ESCAPE_END_BYTES = frozenset(b"0123456789abcdefABCDEFKmnrtv")
"""The last characters of such escapes."""
_AFTER_ESCAPE = re.compile(rb"u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[abfnrtv]|[0-9A-Fa-f]{2}")
_AFTER_COLOR = re.compile(rb"[0-9]{0,3}[mK]")
"""Matches the end of a terminal escape after its last `[` or `;`: a color, or the deletion of a line."""
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{24,%d}+={0,2}" % BASE64_BYTES_MAX)
_PLAIN_BASE64 = re.compile(rb"(?:[A-Za-f][A-Za-z0-9+/_-]{3}){6}")
"""Matches base64 of ASCII text, in which the first bit of each third byte is 0."""
_PLAIN = re.compile(rb"[\t\n\r -~]*")
_BLOB = re.compile(rb"[A-Za-z0-9+/]{256,%d}+" % BASE64_BYTES_MAX)
"""Matches base64 that is so long that an apparent token in it is a coincidence."""
_PUNCTUATION = (b"+", b"/")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def _by_delimiter() -> dict[bytes, list[tuple[int, Kind]]]:
    """Return the kinds, by the last three bytes of their anchor up to and including its last delimiter."""
    found: dict[bytes, list[tuple[int, Kind]]] = {}
    for kind in KINDS:
        at = max(kind.anchor.rfind(mark) for mark in (b"-", b"_", b".", b"/"))
        if at >= 2:
            found.setdefault(kind.anchor[at - 2 : at + 1], []).append((at, kind))
    return found


_BY_DELIMITER = _by_delimiter()
_BY_START: dict[bytes, list[Kind]] = {}
for _kind in KINDS:
    if not re.search(rb"[-_./]", _kind.anchor):
        _BY_START.setdefault(_kind.anchor[:2], []).append(_kind)


def scan(
    text: bytes,
    *,
    start: int = 0,
    end: int | None = None,
    known: Iterable[bytes] = (),
    key: bytes = b"",
    depth: int = 1,
) -> list[Finding]:
    """Return the secrets that start between `start` and `end`, unordered and possibly overlapping."""
    stop = len(text) if end is None else end
    secrets = [secret for secret in known if len(secret) >= KNOWN_BYTES_MIN]
    found: list[Finding] = []
    while stop - start > BLOCK_BYTES:
        block_end = _block_end(text, start + BLOCK_BYTES)
        found += _scan_block(text, start, block_end, secrets, key, depth)
        start = block_end
    return found + _scan_block(text, start, stop, secrets, key, depth)


def _block_end(text: bytes, at: int) -> int:
    """Return the end of the last word before a position, so that no token and no base64 continues after it."""
    first = at - BASE64_BYTES_MAX
    return max(text.rfind(mark, first, at) for mark in (b" ", b"\n", b'"')) + 1 or at


def _scan_block(
    text: bytes, start: int, stop: int, secrets: Sequence[bytes], key: bytes, depth: int
) -> list[Finding]:
    first, last = max(start - LEAD, 0), min(stop + CONTEXT, len(text))
    window = text if first == 0 and last == len(text) else text[first:last]
    found = [*_literals(window, secrets), *_tokens(window, secrets, depth), *_named(window)]
    return [
        Finding(at + first, until + first, kind, tag=tag_of(window[at:until], key))
        for at, until, kind in found
        if start <= at + first < stop
    ]


def _literals(text: bytes, secrets: Sequence[bytes]) -> Iterator[Span]:
    for secret in secrets:
        at = text.find(secret)
        while at != -1:
            yield at, at + len(secret), "credential"
            at = text.find(secret, at + 1)


def _named(text: bytes) -> Iterator[Span]:
    """Yield the secrets that are identified by their context, and those that may have no long run of letters."""
    low = text.lower()
    is_redacted = b"[redacted:" in text
    searched_to = [0] * len(_SEARCHES)
    for number, at in anchor_positions(low):
        if at < searched_to[number]:
            continue
        search = _SEARCHES[number]
        if is_redacted and _in_placeholder(text, at):
            searched_to[number] = at + 1
            continue
        searched_to[number], found = search(text, low, at)
        if found is not None:
            yield found


def _search_interrupted(kind: Kind) -> Callable[[bytes, bytes, int], SearchStep]:
    """Return a search for tokens that may have no long run of letters and digits."""

    def search(text: bytes, _low: bytes, at: int) -> SearchStep:
        if _may_start(text, at, kind) and (match := kind.pattern.match(text, at)):
            return match.end(), (*match.span(), kind.name)
        return at + 1, None

    return search


def _in_placeholder(text: bytes, at: int) -> bool:
    opened = text.rfind(b"[redacted:", max(at - 48, 0), at)
    return opened != -1 and b"]" not in text[opened:at]


def _tokens(text: bytes, secrets: Sequence[bytes], depth: int) -> list[Span]:
    """Return the secrets in runs of letters and digits: tokens, and base64 that contains secrets."""
    found: list[Span] = []
    classes = text.translate(_CLASSES)
    decoded_to = 0
    at = classes.find(_NEEDLE)
    while at != -1:
        end = classes.find(b" ", at + RUN)
        if end == -1:
            end = len(text)
        if (
            end - at <= WORD_BYTES_MAX
            and text[at - 1 : at] in _BEFORE_WORD
            and text[end : end + 1] in _AFTER_WORD
            and _is_harmless(text[at:end])
        ):
            at = classes.find(_NEEDLE, end)
            continue
        _add_run_tokens(text, at, end, found)
        if text[end : end + 1] in _PUNCTUATION and (blob := _BLOB.match(text, at)):
            end = blob.end()
        if depth and at >= decoded_to and end - at >= DECODED_BYTES_MIN:
            decoded_to = _add_decoded(text, at, end, secrets, found)
        at = classes.find(_NEEDLE, end)
    return found


@lru_cache(maxsize=4096)
def _is_harmless(word: bytes) -> bool:
    """Return whether a run between separators is neither a token nor base64 of text; names recur in most texts."""
    found: list[Span] = []
    _add_run_tokens(b'"%s"' % word, 1, len(word) + 1, found)
    return not found and not _PLAIN_BASE64.match(word)


def _add_run_tokens(text: bytes, start: int, end: int, found: list[Span]) -> None:
    """Add the tokens that start in a run, or at the character before it."""
    covered_to = start
    if text[start : start + 2] in _BY_START or text[end : end + 1] == b".":
        covered_to = _add_starting_token(text, start, found)
    before = text[start - 1] if start else 0
    if before in _PRECEDING_BYTES:
        covered_to = max(covered_to, _add_preceded_token(text, start, end, before, found))
    if end - start == 50 and (m := MAILGUN.match(text, start)):
        found.append((*m.span(), "mailgun_key"))
    for mark in _DELIMITER.finditer(text, start, end):
        at = mark.start()
        if at < covered_to:
            continue
        if text[at - 2 : at + 1] in _BY_DELIMITER:
            covered_to = _add_delimited_token(text, at, found)
        if text[at + 1 : at + 3] in _BY_START:
            covered_to = max(covered_to, _add_starting_token(text, at + 1, found))


_PRECEDING_BYTES = frozenset(b"./\\%[;:")
"""Bytes before a run that may belong to a token, or to an escape that ends in the run."""


def _add_preceded_token(text: bytes, start: int, end: int, before: int, found: list[Span]) -> int:
    """Add the token that starts before a run, or after an escape that ends in the run; return the end of the token."""
    if before in b"." and text[start - 3 : start] in _BY_DELIMITER:
        return _add_delimited_token(text, start - 1, found)
    at = start
    if before in b"\\%[;":
        ending = _AFTER_COLOR if before in b"[;" else _AFTER_ESCAPE
        escape = ending.match(text, start, end)
        at = escape.end() if escape else start
    for continuation, pattern, name in _WITH_BEFORE:
        if text.startswith(continuation, at) and (
            m := pattern.search(text, max(at - 14, 0), at + 320)
        ):
            found.append((*m.span(), name))
            return m.end()
    return _add_starting_token(text, at, found) if at > start else start


_WITH_BEFORE = ((b"AA", TELEGRAM, "telegram_token"), (b"0", REFRESH, "google_oauth"))
"""For tokens that start before a run: the bytes at the start of the run, the pattern and the kind."""


_DISCORD_STARTS = (b"M", b"N", b"O")


def _add_starting_token(text: bytes, at: int, found: list[Span]) -> int:
    """Add a token that starts at `at` and whose anchor has no delimiter; return its end."""
    if text[at : at + 1] in _DISCORD_STARTS and (m := DISCORD.match(text, at)):
        found.append((*m.span(), "discord_token"))
        return m.end()
    for kind in _BY_START.get(text[at : at + 2], ()):
        if (match := kind.pattern.match(text, at)) and _may_start(text, at, kind):
            found.append((*match.span(), kind.name))
            return match.end()
    return at


def _add_delimited_token(text: bytes, delimiter: int, found: list[Span]) -> int:
    """Add a token whose anchor has its last delimiter at `delimiter`; return its end."""
    is_alphanumeric = text[delimiter + 1 : delimiter + 1 + ALPHANUMERIC].isalnum()
    for back, kind in _BY_DELIMITER[text[delimiter - 2 : delimiter + 1]]:
        if kind.is_alphanumeric and not is_alphanumeric:
            continue
        at = delimiter - back
        if at < 0 or not text.startswith(kind.anchor, at):
            continue
        if (match := kind.pattern.match(text, at)) and _may_start(text, at, kind):
            found.append((*match.span(), kind.name))
            return match.end()
    return delimiter


def _may_start(text: bytes, at: int, kind: Kind) -> bool:
    """Return whether a token may start at `at`, given the bytes before it, which may be the end of an escape."""
    if kind.before == "any" or at == 0:
        return True
    before = text[at - 1]
    is_word = chr(before).isalnum() and before < 128
    if not is_word and (kind.before == "word" or before not in b"-_"):
        return True
    if before not in _ESCAPE_END_BYTES:
        return False
    preceding = text[max(at - 16, 0) : at]
    escaped = b"\\" in preceding or b"%" in preceding or b"[" in preceding
    return escaped and bool(_ENDS_ESCAPE.search(preceding))


def _add_decoded(
    text: bytes, start: int, end: int, secrets: Sequence[bytes], found: list[Span]
) -> int:
    """Add the complete base64 text around a run if it contains a secret; return its end."""
    first = start
    if start and text[start - 1] in b"+/":
        before = text[max(start - 256, 0) : start]
        first = start - (len(before) - len(before.rstrip(_ALPHABET)))
    covered_to = end
    for each in {first, start}:
        if not _PLAIN_BASE64.match(text, each) or not (match := _BASE64.match(text, each)):
            continue
        covered_to = max(covered_to, match.end())
        if not _PLAIN.fullmatch(decode_base64(match[0][:24])):
            continue
        inner = scan(decode_base64(match[0]), known=secrets, depth=0)
        if inner:
            kind = min(inner, key=lambda each: each.start).kind
            found.append((*match.span(), kind))
            break
    return covered_to


_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/"


def decode_base64(text: bytes) -> bytes:
    """Decode base64 in either alphabet, with or without padding; return empty bytes if it is invalid."""
    bare = text.rstrip(b"=").translate(_URL_SAFE)
    if len(bare) % 4 == 1:
        bare = bare[:-1]
    try:
        return binascii.a2b_base64(bare + b"=" * (-len(bare) % 4))
    except binascii.Error:
        return b""


_INTERRUPTED = tuple(
    kind
    for kind in KINDS
    if b"+/" in kind.rest or kind.anchor in (b"sha256~", b"snyk_uat.", b"snyk_sat.")
)
"""Kinds without a long run of letters and digits at their start, so they are searched for by their anchor."""
_SEARCHES = (
    *(named.search for named in (*NAMED, *COMMANDS)),
    *(_search_interrupted(kind) for kind in _INTERRUPTED),
)
anchor_positions = position_search(
    [
        *(named.anchor for named in (*NAMED, *COMMANDS)),
        *(kind.anchor.lower() for kind in _INTERRUPTED),
    ]
)
"""Yields the number of a search and the position of its anchor in a text in lower case, in the order of positions."""
