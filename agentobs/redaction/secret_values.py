"""The values of passwords and keys without a distinctive form: where they end, and whether they look like secrets.

A value looks like a secret if it is not a word, a variable or a dummy value. Values without digits are compared with
the pairs of letters that are frequent in words.
"""

from __future__ import annotations

import re

QUOTE = rb"(?:\\{0,7}[\"']|%22|%27|&quot;|\\{1,4}u002[27])"
QUOTED = rb"([^\s\"'\\<>]{8,512}+)" + QUOTE
"""A value in quotes, after its first quote."""
BARE = (
    rb"((?:[^\s\x1b\"'\\,;&=<>(){}\[\]|`%*]{1,512}+"
    rb"|&(?:amp|lt|gt|#[0-9]{1,4});"
    # An ampersand before a name and an equals sign starts the next parameter of a form.
    rb"|&(?!(?:amp;)?[A-Za-z_][A-Za-z0-9_.-]{0,40}(?:=|%3[Dd]))"
    rb"|%(?!0[09AaDd]|2[0278C9c]|3[BCEbce]|[57][BDbd]|26[A-Za-z_][A-Za-z0-9_.-]{0,40}(?:=|%3[Dd]))"
    rb"|\*(?=[A-Za-z0-9!#%^$@&*+=?~])"
    rb"|=(?=[A-Za-z0-9!#%^$@&*+=?~/_-])"
    rb"){1,96}={0,2})"
)
"""A value without quotes: it ends at whitespace, or at a character that separates values in files and programs."""
CALLS = (b"(", b"[", b"{")
"""The characters after a bare value that is a part of an expression."""

_DUMMY_VALUES = re.compile(
    rb"\[redacted|[$<{*%]|xxx|\.\.\.|your|my[_-]|example|changeme|change[_-]me|placeholder|dummy|none$|null$|true$|https?:|file:|[./~]"
    rb"|false$|undefined|process\.env|os\.environ|optional|required|string$|secret$|password$",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(
    rb"[A-Za-z_][A-Za-z0-9_]{0,64}(?:\.[A-Za-z_][A-Za-z0-9_]{0,64}){1,8}|[a-z]{1,24}(?:[_-][a-z0-9]{1,16}){1,8}"
)
"""A dotted identifier, or words joined by hyphens or underscores, which is more likely prose or code than a secret."""
_NAME = re.compile(rb"[A-Za-z]{1,24}(?:_[A-Za-z]{1,24}){1,8}")
_DIGIT, _LETTER = re.compile(rb"[0-9]"), re.compile(rb"[A-Za-z]")

_PAIRS = """\
abcdgiklmnprstuvy baeilorsu cacehiklortu dadeiorsu eabcdefgilmnprstvwxy faefiloru gaehilnorsu haeiort iabcdefglmnoprstvz
kaeis ladeilostuy maeimops nacdefgiknostu obcdfgilmnoprstuvw paehiloprstu qu racdegiklmnorstuy sacehilopstuy
tacehilorstuy uabcegilmnprst vaei waei xpt yps ze
"""
_FREQUENT_PAIRS = frozenset(word[0] + second for word in _PAIRS.split() for second in word[1:])
"""The 230 most frequent pairs of letters, each first letter before its second letters. They are 91% of the pairs in the
words of the Python packages that the tests install and of Debian's /usr/share/doc (counted in November 2026), and a
third of the pairs in random letters.
"""
_PAIRS_MIN = 4
_FREQUENT_SHARE_MAX = 0.65
"""In random letters, a larger share of the pairs is frequent in one of 40 values with 12 letters; in identifiers of
programs, a smaller share is frequent in 1%."""


def is_dummy(value: bytes) -> bool:
    """Return whether a value is a variable, a placeholder, a path or a word that stands for a secret."""
    return bool(_DUMMY_VALUES.match(value))


def is_identifier(value: bytes) -> bool:
    """Return whether a value is a dotted identifier, or words joined by hyphens or underscores."""
    return bool(_IDENTIFIER.fullmatch(value))


def has_digit(value: bytes) -> bool:
    """Return whether a value contains a digit."""
    return bool(_DIGIT.search(value))


def looks_secret(value: bytes, least: int, is_quoted: bool) -> bool:
    """Return whether a value of at least `least` bytes looks like a secret and not like a word, a variable or a dummy
    value.
    """
    if len(value) < least or is_dummy(value) or len(set(value)) < 5:
        return False
    if is_quoted and len(value) >= 12:
        return not _NAME.fullmatch(value)
    return looks_generated(value)


def looks_generated(value: bytes) -> bool:
    """Return whether a value contains digits and letters, or letters in an order that words do not have."""
    if is_identifier(value):
        return False
    if has_digit(value):
        return bool(_LETTER.search(value))
    return not _NAME.fullmatch(value) and b"/" not in value and is_random(value)


def is_random(value: bytes) -> bool:
    """Return whether few of the pairs of letters in a value are frequent in words."""
    text = value.decode("latin-1").lower()
    pairs = [text[at : at + 2] for at in range(len(text) - 1) if text[at : at + 2].isalpha()]
    frequent = sum(pair in _FREQUENT_PAIRS for pair in pairs)
    return len(pairs) >= _PAIRS_MIN and frequent <= _FREQUENT_SHARE_MAX * len(pairs)
