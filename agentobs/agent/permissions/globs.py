"""Match texts against glob patterns, even if parts of the text are unknown.

Patterns are not compiled to regular expressions, so no pattern can cause exponential backtracking.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

HOLE = "\ufdd0"
"""Placeholder (a Unicode noncharacter) for text that only the running shell knows. It may represent any text, including
blanks.
"""

GAP = "\ufdd1"
"""Placeholder (a Unicode noncharacter) for a blank inside a word of a command. `*` matches it; a blank in a pattern
does not.
"""


def fits(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern for all values of its holes. `*` matches any characters.

    Only `*` matches a hole. This function can therefore also check whether one pattern covers another: pass the
    narrower pattern as the text, with its stars replaced by holes.
    """
    first, *others = pattern.split("*")
    if not others:
        return text == first
    *middle, last = others
    if not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, position, max(end, position))
        if found < 0:
            return False
        position = found + len(part)
    return position <= end


def may_fit(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern for at least one value of its holes."""
    if HOLE not in text:
        return fits(pattern, text)
    states = _skip_stars(pattern, {0})
    for letter in text:
        if letter == HOLE:
            states = set(range(min(states), len(pattern) + 1))
        else:
            next_states = {
                position + 1
                for position in states
                if position < len(pattern) and pattern[position] == letter
            }
            states = _skip_stars(
                pattern,
                next_states
                | {position for position in states if pattern[position : position + 1] == "*"},
            )
        if not states:
            return False
    return len(pattern) in states


def path_fits(pattern: str, path: str) -> bool:
    """Return whether a path matches a pattern.

    `*` and `?` match within one name, and `**` matches any number of names.
    """
    return _names_fit(_names(pattern), _names(path))


def path_or_parent_fits(pattern: str, path: str) -> bool:
    """Return whether a path, or a directory that contains it, matches a pattern, ignoring case.

    This function is for rules that forbid. Such a rule for a directory includes its contents, and many file systems do
    not distinguish `.ENV` from `.env`, or two Unicode encodings of an accented letter.
    """
    wanted, names = _names(normalized(pattern)), _names(normalized(path))
    return any(_names_fit(wanted, names[:end]) for end in range(len(names), 0, -1)) or (
        not names and _names_fit(wanted, names)
    )


def path_covers(wide: str, narrow: str) -> bool:
    """Return whether every path that matches `narrow` also matches `wide`.

    True is always correct. False may be wrong.
    """
    return _names_fit(_names(wide), [_as_text(name) for name in _names(narrow)])


def normalized(text: str) -> str:
    """Normalize a text, so that all spellings that a file system may treat as identical become equal."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _as_text(name: str) -> str:
    return name if name == "**" else name.replace("*", HOLE).replace("?", HOLE)


def _skip_stars(pattern: str, states: set[int]) -> set[int]:
    """Add the states that are reachable if stars match the empty string."""
    for position in sorted(states):
        while pattern[position : position + 1] == "*":
            position += 1
            states.add(position)
    return states


def _names(path: str) -> list[str]:
    rooted = ["/"] if path.startswith("/") else []
    return rooted + [name for name in path.split("/") if name not in ("", ".")]


def _names_fit(pattern: Sequence[str], names: Sequence[str]) -> bool:
    states = _skip_double_stars(pattern, {0})
    for name in names:
        next_states = set()
        for position in states:
            if position == len(pattern):
                continue
            if pattern[position] == "**":
                next_states.add(position) if name != "/" else None
            elif name != "**" and _name_fits(pattern[position], name):
                next_states.add(position + 1)
        states = _skip_double_stars(pattern, next_states)
        if not states:
            return False
    return len(pattern) in states


def _skip_double_stars(pattern: Sequence[str], states: set[int]) -> set[int]:
    for position in sorted(states):
        while position < len(pattern) and pattern[position] == "**":
            position += 1
            states.add(position)
    return states


def _name_fits(pattern: str, name: str) -> bool:
    """Return whether one name matches; backtracks to the last star after each mismatch."""
    position = star = retry_position = 0
    starred = False
    pattern_position = 0
    while position < len(name):
        wanted = pattern[pattern_position : pattern_position + 1]
        if wanted == "*":
            starred, star, retry_position = True, pattern_position + 1, position
            pattern_position += 1
        elif wanted and (wanted == name[position] or (wanted == "?" and name[position] != HOLE)):
            position, pattern_position = position + 1, pattern_position + 1
        elif starred:
            retry_position += 1
            position, pattern_position = retry_position, star
        else:
            return False
    return not pattern[pattern_position:].strip("*")
