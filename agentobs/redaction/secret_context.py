"""Secrets identified by their context: the name of a key, a header, the address of a server.

Each type of secret has a lower-case anchor, for which the text is searched literally, and a bounded pattern that is
matched at its position. The value must look like a secret, because the names alone are common in programs and
documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentobs.redaction.secret_values import (
    BARE,
    CALLS,
    QUOTE,
    QUOTED,
    has_digit,
    is_dummy,
    is_identifier,
    looks_secret,
)

_SEPARATOR = rb"(?::=|=>|[:=>]|%3[DdAa]|\\{1,4}u003[dDaA])"
_COLORS = rb"(?:(?:\x1b|\\{1,4}(?:u001b|x1b|033|e))\[[0-9;]{0,12}[mK]){0,4}"
"""Terminal escapes between a name and its value, as in the output of grep."""
_REST = rb"([A-Za-z0-9_-]{0,24}+)"
"""The rest of a name after its anchor."""
_LINE_END = rb"(?:\r?\n|(?:\\{1,4}r)?\\{1,4}n)"
_VALUE = rb"(?:" + QUOTE + QUOTED + rb"|" + BARE + rb")"
"""Two groups: a value in quotes, or a bare value."""
_ASSIGNED = re.compile(
    _REST
    + rb"(?![A-Za-z0-9_-])(?:(?:"
    # `name = value`, `"name": "value"`, `["name"] = "value"`, `<name>value</name>`
    + QUOTE
    + rb"?\]?\s{0,8}"
    + _SEPARATOR
    + rb"\s{0,8}"
    + _COLORS
    + _VALUE
    # `define('name', 'value')`
    + rb")|(?:"
    + QUOTE
    + rb"\s{0,4},\s{0,4}"
    + QUOTE
    + QUOTED
    # `{"name": "name", "value": "value"}`
    + rb")|(?:"
    + QUOTE
    + rb"?(?:[\s,+]|\\{1,4}[nrt]){1,24}"
    + QUOTE
    + rb"?(?i:value)"
    + QUOTE
    + rb"?\s{0,4}[:=]\s{0,4}"
    + _VALUE
    # a part of a multipart form
    + rb")|(?:"
    + QUOTE
    + rb"(?:"
    + _LINE_END
    + rb"\+?){2}"
    + BARE
    # `--name value`
    + rb")|(?:[ =]{1,2}"
    + _VALUE
    + rb"))"
)
"""After the anchor: the rest of a name, and its value in one of these notations."""
_IN_QUOTES, _VALUE_IN_QUOTES = 2, 5
_OPTION_IN_QUOTES, _OPTION = 8, 9
"""Groups of `_ASSIGNED`: values in quotes, and values that follow a name and a blank."""
_DESCRIPTIVE_NAMES = re.compile(
    rb"(?:s$)|name|(?<![a-z])ids?$|type|polic|length|count|file|path|ur[il]|version|field|header|prefix|limit"
    rb"|size|class|manager|store|hint|reset|usage|arn$|kind|format|expir|budget|izer"
)
"""Parts of the rest of a name which show that the value only describes a secret, such as `length` or `expiry`."""
_KEY_BEFORE = (
    *(
        b"api",
        b"access",
        b"secret",
        b"private",
        b"account",
        b"signing",
        b"encryption",
        b"auth",
        b"master",
    ),
    *(b"shared", b"license", b"service", b"admin", b"deploy", b"webhook", b"subscription", b"app"),
    *(b"application", b"storage", b"integration", b"?", b"&"),
)
"""Words before "key" which show that it is a cryptographic key; `?` and `&` start a parameter in a URL."""
_OTHER_KEY_BEFORE = (
    *(b"cache", b"primary", b"foreign", b"sort", b"partition", b"idempotency", b"public", b"hash"),
    *(b"index", b"object", b"group", b"registry", b"row", b"unique", b"session", b"state"),
)
"""Words before "_KEY" in the names of variables whose values are not secret."""
_OTHER_TOKEN_BEFORE = (
    *(b"next", b"page", b"paging", b"continuation", b"input", b"output", b"change"),
    *(b"clientrequest", b"client_request", b"idempotency", b"lifecycleaction"),
)
"""Words before "token" in the names of positions in a list, of versions and of idempotent requests."""


Span = tuple[int, int, str]
"""Start, end and kind."""
SearchStep = tuple[int, Span | None]
"""The position at which to continue the search for the same anchor, and the finding; None if there is none."""


@dataclass(frozen=True, slots=True)
class Named:
    """One type of secret that is identified by its context."""

    anchor: bytes
    """A literal in lower case."""
    search: Callable[[bytes, bytes, int], SearchStep]
    """Receives the text, the text in lower case, and the position of the anchor; returns the secret at that position.
    """


def _assigned(anchor: bytes, least: int) -> Named:
    """Return a search for values of at least `least` bytes that are assigned to names with `anchor`."""
    size = len(anchor)

    def search(text: bytes, low: bytes, at: int) -> SearchStep:
        if low[at + size : at + size + 1] == b"s" and low[at + size : at + size + 2] != b"sw":
            return at + size, None  # a plural is the name of a count or a list
        # An identifier has such parts: arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME.
        if text[at - 1 : at] == b":" == text[at + size : at + size + 1]:
            return at + size, None
        match = _ASSIGNED.match(text, at + size)
        if match is None:
            return at + size, None
        group = match.lastindex or 0
        start, end = match.span(group)
        if low[slice(*match.span(1))] == b"id" or _DESCRIPTIVE_NAMES.search(low, *match.span(1)):
            return at + size, None
        is_quoted = group in (_IN_QUOTES, _VALUE_IN_QUOTES, _OPTION_IN_QUOTES)
        if group in (_OPTION, _OPTION_IN_QUOTES) and not _takes_value(low, at, is_quoted):
            return at + size, None
        if not is_quoted and text[end : end + 1] in CALLS:
            return at + size, None
        found = looks_secret(match[group], least, is_quoted)
        return end, (start, end, "named_secret") if found else None

    return Named(anchor, search)


def _takes_value(low: bytes, at: int, is_quoted: bool) -> bool:
    """Return whether the word at `at` is followed by its value after a blank: an option, a variable of a Dockerfile, an
    entry of a netrc file, or the password of a role in SQL.
    """
    before = low[max(at - 160, 0) : at]
    word = before[-24:].rpartition(b" ")[2]
    if b"--" in word or before.endswith(b"env " + word):
        return True
    if b"login " in before and (b"machine " in before or b"default" in before):
        return True
    return is_quoted and (b" role " in before or b" user " in before)


def _token(anchor: bytes) -> Named:
    """Return a search for values of tokens, which ignores tokens that give no access."""
    assigned = _assigned(anchor, 16)

    def search(text: bytes, low: bytes, at: int) -> SearchStep:
        if low[max(at - 16, 0) : at].rstrip(b"_. -").endswith(_OTHER_TOKEN_BEFORE):
            return at + len(anchor), None
        return assigned.search(text, low, at)

    return Named(anchor, search)


def _key(anchor: bytes) -> Named:
    """Return a search for values of cryptographic keys, which ignores other keys, such as those of databases."""
    assigned, variable = _assigned(anchor, 8), _assigned(anchor, 20)

    def search(text: bytes, low: bytes, at: int) -> SearchStep:
        before = low[max(at - 16, 0) : at].rstrip(b"_. -")
        if before.endswith(_KEY_BEFORE):
            return assigned.search(text, low, at)
        if text[at - 1 : at + 3] == b"_KEY" and not before.endswith(_OTHER_KEY_BEFORE):
            return variable.search(text, low, at)
        return at + len(anchor), None

    return Named(anchor, search)


_AUTH = re.compile(
    rb"auth(?:orization|orisation)?"
    + QUOTE
    + rb"?\s{0,8}"
    + _SEPARATOR
    + rb"\s{0,8}"
    + QUOTE
    + rb"?"
    rb"(?:(basic|bearer|token|apikey|bot|negotiate|digest|ssws|[a-z][a-z0-9-]{1,24}(?=\s))(?:\s|%20|\+){1,4})?"
    rb"([A-Za-z0-9._~+/-]{8,4000}+={0,2})",
    re.IGNORECASE,
)


def _authorization(text: bytes, _low: bytes, at: int) -> SearchStep:
    match = _AUTH.match(text, at)
    if match is None or is_dummy(match[2]):
        return at + 4, None
    scheme, value = (match[1] or b"").lower(), match[2]
    start, end = match.span(2)
    if scheme == b"basic" and not is_identifier(value):
        return end, (start, end, "basic_auth")
    if scheme and len(value) >= 12 and has_digit(value):
        return end, (start, end, "bearer_token" if scheme == b"bearer" else "authorization")
    if not scheme and looks_secret(value, 20, False):
        return end, (start, end, "authorization")
    return end, None


_BEARER = re.compile(
    # Words joined by hyphens are prose; a token contains a digit, or a capital letter after a lower-case one.
    rb"[Bb][Ee][Aa][Rr][Ee][Rr](?: |%20|\+)(?=[A-Za-z._~+/-]{0,128}?(?:[0-9]|[a-z][A-Z]))"
    rb"[A-Za-z0-9._~+/-]{20,4000}+={0,2}"
)


def _bearer(text: bytes, _low: bytes, at: int) -> SearchStep:
    match = _BEARER.match(text, at)
    return (match.end(), (*match.span(), "bearer_token")) if match else (at + 6, None)


_USERINFO = re.compile(
    rb"://[^\s/:@\"'<>\\{}$?#]{0,64}+:([^\s/@\"'<>\\{}$]{3,256}+)@(?=[A-Za-z0-9\[])"
)
_ADDRESS_BYTES = 3 + 64 + 1 + 256 + 1
_DSN = re.compile(rb"://([0-9a-f]{32})(?::[0-9a-f]{32})?@")
_HOOKS = re.compile(
    rb"://(?:hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/([A-Za-z0-9/_-]{20,160})"
    rb"|(?:[a-z]{1,12}\.)?discord(?:app)?\.com/api/(?:v[0-9]{1,2}/)?webhooks/([0-9]{15,21}/[A-Za-z0-9_-]{60,80})"
    rb"|[a-z0-9-]{1,48}\.webhook\.office\.com/webhookb2/([A-Za-z0-9@/-]{40,256}))"
)
_PASSWORD_NAMES = (b"pass", b"pw", b"pwd", b"port")


def _address(text: bytes, low: bytes, at: int) -> SearchStep:
    match = None
    if text.find(b"@", at, at + _ADDRESS_BYTES) != -1:
        if match := _USERINFO.match(text, at):
            if not is_dummy(match[1]) and match[1].lower() not in _PASSWORD_NAMES:
                return match.end(), (*match.span(1), "url_password")
        elif match := _DSN.match(text, at):
            return match.end(), (*match.span(1), "sentry_dsn")
    elif low.find(b"hook", at, at + 64) != -1 and (match := _HOOKS.match(text, at)):
        return match.end(), (*match.span(match.lastindex or 0), "webhook_url")
    return at + 3, None


_SIGNATURE = re.compile(
    rb"(?i:sig(?:nature)?)(?:=|%3[Dd])((?:[A-Za-z0-9+/_-]|%[0-9A-Fa-f]{2}){32,512}+={0,2})"
)


def _signature(text: bytes, low: bytes, at: int) -> SearchStep:
    if low[at + 3 : at + 4] in (b"=", b"n", b"%") and (match := _SIGNATURE.match(text, at)):
        found = has_digit(match[1])
        return match.end(), (*match.span(1), "url_signature") if found else None
    return at + 3, None


_COOKIE = re.compile(
    rb"(?i:cookie2?)" + QUOTE + rb"?\s{0,8}[:=]\s{0,8}" + QUOTE + rb"?"
    rb"([A-Za-z0-9_.%-]{1,64}+=[^\s\"'\\;]{8,2048}+(?:; ?[A-Za-z0-9_.%-]{1,64}+=[^\s\"'\\;]{1,1024}+){0,8}+)"
)


def _cookie(text: bytes, _low: bytes, at: int) -> SearchStep:
    match = _COOKIE.match(text, at)
    if match is None or is_dummy(match[1].partition(b"=")[2]):
        return at + 6, None
    return match.end(), (*match.span(1), "cookie")


_PEM = re.compile(
    # The text of a key contains no five dashes, so the search from one BEGIN line ends at the next one.
    # The quantifier of that text is not possessive, because Python before 3.11.5 then finds no match (gh-106052).
    rb"-----BEGIN[A-Z +%0-9]{0,40}PRIVATE(?: |\+|%20)KEY(?:(?: |\+|%20)BLOCK)?-----"
    rb"(?:(?:[A-Za-z0-9+/=%\\\s:,.]|-(?!----)){32,3900}-----END[A-Z +%0-9]{0,40}PRIVATE(?: |\+|%20)KEY"
    rb"(?:(?: |\+|%20)BLOCK)?-----|(?:\\|\s|n|r){0,8}+[A-Za-z0-9+/=]{40,80}+"
    rb"(?:(?:\\{1,4}[nr]|\s){1,4}+[A-Za-z0-9+/=]{1,76}+){0,44}+)"
)


def _pem(text: bytes, _low: bytes, at: int) -> SearchStep:
    match = _PEM.match(text, at)
    return (match.end(), (*match.span(), "private_key")) if match else (at + 10, None)


NAMED: tuple[Named, ...] = (
    _assigned(b"pass", 8),
    _assigned(b"pwd", 8),
    _assigned(b"secret", 8),
    _assigned(b"credential", 12),
    _token(b"token"),
    _key(b"key"),
    Named(b"auth", _authorization),
    Named(b"bearer", _bearer),
    Named(b"://", _address),
    Named(b"sig", _signature),
    Named(b"cookie", _cookie),
    Named(b"-----begin", _pem),
)
"""The types of secrets. If two of them find the same secret, the type whose anchor comes first determines its kind."""
