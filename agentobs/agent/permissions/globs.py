"""Match texts against glob patterns, even if parts of the text are unknown.

No pattern is compiled to a regular expression, so none can cause exponential backtracking.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

HOLE = "\ufdd0"
"""Placeholder (a Unicode noncharacter) for text that only the running shell knows: any characters,
including blanks.
"""

GAP = "\ufdd1"
"""Placeholder for a blank inside a word of a command. Only `*` matches it, a blank in a pattern does not.
"""


def fits(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern for all values of its holes; `*` matches any
    characters.

    Only `*` matches a hole. The same function therefore tells whether one pattern covers another:
    pass the narrower pattern as the text, with holes in place of its stars.
    """
    first, *others = pattern.split("*")
    if not others:
        return text == first
    *middle, last = others
    if not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, at, max(end, at))
        if found < 0:
            return False
        at = found + len(piece)
    return at <= end


def may_fit(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern for at least one value of its holes."""
    if HOLE not in text:
        return fits(pattern, text)
    states = _over_stars(pattern, {0})
    for letter in text:
        if letter == HOLE:
            states = set(range(min(states), len(pattern) + 1))
        else:
            moved = {at + 1 for at in states if at < len(pattern) and pattern[at] == letter}
            states = _over_stars(
                pattern, moved | {at for at in states if pattern[at : at + 1] == "*"}
            )
        if not states:
            return False
    return len(pattern) in states


def path_fits(pattern: str, path: str) -> bool:
    """Return whether a path matches: `*` and `?` stay within one name, `**` matches any number of
    names.
    """
    return _names_fit(_names(pattern), _names(path))


def path_or_parent_fits(pattern: str, path: str) -> bool:
    """Return whether a path, or a folder above it, matches a pattern, ignoring case.

    For rules that forbid: a forbidden folder includes its contents, and many file systems do not
    distinguish `.ENV` from `.env`, or two Unicode encodings of one accented letter.
    """
    wanted, names = _names(alike(pattern)), _names(alike(path))
    return any(_names_fit(wanted, names[:end]) for end in range(len(names), 0, -1)) or (
        not names and _names_fit(wanted, names)
    )


def path_covers(wide: str, narrow: str) -> bool:
    """Return whether every path that matches `narrow` matches `wide`. False may be wrong, True is
    not.
    """
    return _names_fit(_names(wide), [_as_text(name) for name in _names(narrow)])


def alike(text: str) -> str:
    """Return a text in a form that is equal for all spellings that a file system may treat as
    identical.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _as_text(name: str) -> str:
    return name if name == "**" else name.replace("*", HOLE).replace("?", HOLE)


def _over_stars(pattern: str, states: set[int]) -> set[int]:
    """Add the states that are reachable if a star matches the empty string."""
    for at in sorted(states):
        while pattern[at : at + 1] == "*":
            at += 1
            states.add(at)
    return states


def _names(path: str) -> list[str]:
    rooted = ["/"] if path.startswith("/") else []
    return rooted + [name for name in path.split("/") if name not in ("", ".")]


def _names_fit(pattern: Sequence[str], names: Sequence[str]) -> bool:
    states = _over_deep(pattern, {0})
    for name in names:
        moved = set()
        for at in states:
            if at == len(pattern):
                continue
            if pattern[at] == "**":
                moved.add(at) if name != "/" else None
            elif name != "**" and _name_fits(pattern[at], name):
                moved.add(at + 1)
        states = _over_deep(pattern, moved)
        if not states:
            return False
    return len(pattern) in states


def _over_deep(pattern: Sequence[str], states: set[int]) -> set[int]:
    for at in sorted(states):
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            states.add(at)
    return states


def _name_fits(pattern: str, name: str) -> bool:
    """Match one name, backtracking to the last star on each mismatch."""
    at = star = tried = 0
    starred = False
    for_pattern = 0
    while at < len(name):
        wanted = pattern[for_pattern : for_pattern + 1]
        if wanted == "*":
            starred, star, tried = True, for_pattern + 1, at
            for_pattern += 1
        elif wanted and (wanted == name[at] or (wanted == "?" and name[at] != HOLE)):
            at, for_pattern = at + 1, for_pattern + 1
        elif starred:
            tried += 1
            at, for_pattern = tried, star
        else:
            return False
    return not pattern[for_pattern:].strip("*")
