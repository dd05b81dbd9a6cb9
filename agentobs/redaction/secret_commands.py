"""Passwords in commands, and in files and statements that give them no name.

A command is searched from its name to the end of its line, so that each byte is searched at most once for each name.
"""

from __future__ import annotations

import re
from functools import cache

from agentobs.redaction.secret_context import Named, SearchStep
from agentobs.redaction.secret_values import BARE, CALLS, QUOTE, QUOTED, looks_secret

COMMAND_BYTES_MAX = 400
"""The maximum distance between the name of a command and the start of its password. Our choice."""
PASSWORD_BYTES_MIN = 8
_LINE_ENDS = (b"\n", b"\\n")
"""The end of a line, as it is and escaped in JSON; a backslash before it continues the command."""
_VALUE = rb"(?:" + QUOTE + QUOTED + rb"|" + BARE + rb")"
_USER = rb"[^\s:%'\"\\]{1,64}"
_USER_AND_VALUE = (
    rb"(?:" + QUOTE + _USER + rb"[:%]" + QUOTED + rb"|" + _USER + rb"[:%]" + _VALUE + rb")"
)
_BEFORE_OPTION = rb"(?:\s|\\[nt])"


@cache
def _compiled(source: bytes) -> re.Pattern[bytes]:
    """Return a compiled pattern; most processes never need most of them, and all of them take 10 ms."""
    return re.compile(source)


def _command(name: bytes, arguments: bytes) -> Named:
    """Return a search for the password in the arguments of a command."""
    source = _BEFORE_OPTION + arguments
    size = len(name)

    def search(text: bytes, _low: bytes, at: int) -> SearchStep:
        pattern, stop = _compiled(source), _end_of_command(text, at + size)
        match = pattern.search(text, at + size, stop)
        if match is None:
            return stop, None
        # A value may be longer than the searched bytes.
        match = pattern.match(text, match.start()) or match
        return match.end(), _password(text, match)

    return Named(name, search)


def _end_of_command(text: bytes, start: int) -> int:
    """Return where the line of a command ends, or its searched part."""
    stop = min(start + COMMAND_BYTES_MAX, len(text))
    for line_end in _LINE_ENDS:
        at = text.find(line_end, start, stop)
        while at > 0 and text[at - 1 : at] == b"\\":
            at = text.find(line_end, at + 1, stop)
        stop = at if at != -1 else stop
    return stop


def _password(text: bytes, match: re.Match[bytes]) -> tuple[int, int, str] | None:
    """Return the last group of a match if it looks like a password."""
    group = match.lastindex or 0
    start, end = match.span(group)
    is_quoted = text[end : end + 1] in (b'"', b"'", b"\\")
    if not is_quoted and text[end : end + 1] in CALLS:
        return None
    found = looks_secret(match[group], PASSWORD_BYTES_MIN, is_quoted)
    return (start, end, "named_secret") if found else None


def _at(anchor: bytes, pattern: bytes) -> Named:
    """Return a search for a password in the text that follows an anchor."""
    source = b"(?i:" + pattern + b")"

    def search(text: bytes, _low: bytes, at: int) -> SearchStep:
        match = _compiled(source).match(text, at)
        return (match.end(), _password(text, match)) if match else (at + len(anchor), None)

    return Named(anchor, search)


def _piped(anchor: bytes) -> Named:
    """Return a search for a password that `echo` or `printf` writes to a command that reads it from its input."""
    source = (
        rb"(?:echo|printf)(?:\s-n)?(?:\s'?%s(?:\\{1,4}n)?'?)?\s"
        rb"(?:"
        + QUOTE
        + rb"(?:"
        + _USER
        + rb":)?"
        + QUOTED
        + rb"|(?:[\w.-]{1,64}:)?"
        + BARE
        + rb")"
        rb"\s{0,4}\|"
    )

    def search(text: bytes, low: bytes, at: int) -> SearchStep:
        first = max(at - 240, 0)
        written = max(low.rfind(b"echo ", first, at), low.rfind(b"printf ", first, at))
        match = _compiled(source).match(text, written) if written != -1 else None
        if match is None or match.end() > at:
            return at + len(anchor), None
        return at + len(anchor), _password(text, match)

    return Named(anchor, search)


_PIPED = (b"--password-stdin", b"chpasswd", b"sudo -s")

_AZURE = re.compile(rb"[A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~-])")


def _azure(text: bytes, _low: bytes, at: int) -> SearchStep:
    """Find a client secret of Microsoft Entra ID, whose fixed characters are its fourth to sixth ones (gitleaks 8)."""
    match = _AZURE.match(text, at - 4) if at >= 4 else None
    return (match.end(), (*match.span(), "azure_secret")) if match else (at + 2, None)


COMMANDS: tuple[Named, ...] = (
    _command(b"curl", rb"(?:-u|-U|--user|--proxy-user)(?:\s|=)?" + _USER_AND_VALUE),
    _command(b"smbclient", rb"(?:-U|--user)(?:\s|=)?" + _USER_AND_VALUE),
    _command(b"sshpass", rb"-p\s?" + _VALUE),
    _command(b"mysql", rb"-p" + _VALUE),
    _command(b"mariadb", rb"-p" + _VALUE),
    _command(b"redis-cli", rb"(?:-a|--pass)\s" + _VALUE),
    _command(b" login ", rb"-p\s" + _VALUE),
    _command(b"mongo", rb"-p\s?" + _VALUE),
    _command(b"cqlsh", rb"-p\s?" + _VALUE),
    _command(b"ldap", rb"-w\s" + _VALUE),
    _command(b"htpasswd", rb"-[A-Za-z]{0,6}b[A-Za-z]{0,6}\s\S{1,128}\s[^\s:]{1,64}\s" + _VALUE),
    *(_piped(anchor) for anchor in _PIPED),
    _at(
        b"identified",
        rb"identified\s{1,4}(?:with\s{1,4}\S{1,40}\s{1,4})?(?:by|as)\s{1,4}(?:password\s{1,4})?"
        + QUOTE
        + QUOTED,
    ),
    _at(b":5432:", rb":5432:[^\s:]{1,64}:[^\s:]{1,64}:" + BARE),
    _at(b":*:", rb":\*:[^\s:]{1,64}:[^\s:]{1,64}:" + BARE),
    _at(
        b"auth",
        rb"auth\s?=?\s?\(\s{0,8}"
        + QUOTE
        + rb"[^\"'\\]{1,64}"
        + QUOTE
        + rb"\s{0,4},\s{0,8}"
        + QUOTE
        + QUOTED,
    ),
    Named(b"q~", _azure),
)
"""The commands, files and statements whose passwords are found."""
