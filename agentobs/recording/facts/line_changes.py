"""Line changes: how many lines a tool call adds and removes, from the input of an edit tool or from a patch.

Edit tools are recognized by the keys of their input, because agents give them any name: Claude Code's `Edit`,
`MultiEdit` and `Write` (2.1), the provider's text editor (`str_replace_based_edit_tool`), and tools with equal inputs.
Only the numbers become facts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, NamedTuple

LINES_MAX = 2_000
"""The maximum number of lines of the two texts of an edit that are compared; larger edits are not counted, because
comparing takes quadratic time. Our choice: it takes 50 ms at worst.
"""

EDITS_MAX = 1_000
"""The maximum number of edits or patch parts of one call. Our choice."""


class LineChange(NamedTuple):
    """The lines that a call adds and removes; None if a number is unknown."""

    added: int | None
    removed: int | None


def change_of_input(value: Any) -> LineChange | None:
    """Return the lines that a call adds and removes if it succeeds; None if its input does not fit an edit tool.

    If a whole file is written, the removed lines are unknown, because the earlier text is not in the input. If all
    occurrences of a text are replaced, both numbers are unknown.
    """
    if not isinstance(value, dict):
        return None
    edits = value.get("edits")
    if isinstance(edits, list) and edits and len(edits) <= EDITS_MAX:
        changes = [_edit(each) for each in edits]
        return _sum([each for each in changes if each is not None]) if None not in changes else None
    return _edit(value) or _insertion(value) or _whole_file(value)


def change_of_patch(hunks: Any) -> LineChange | None:
    """Return the lines that a patch adds and removes; None if it is not a patch.

    A patch is a list of objects with `lines`, each of which starts with `+`, `-` or a space, as in the logs of Claude
    Code (2.1, `structuredPatch`).
    """
    if not isinstance(hunks, list) or not 0 < len(hunks) <= EDITS_MAX:
        return None
    marks = list(_marks(hunks))
    return None if None in marks else LineChange(marks.count("+"), marks.count("-"))


def lines_in(text: str) -> int:
    """Return the number of lines of a text; a trailing newline starts no line."""
    return len(text.splitlines())


def _marks(hunks: list[Any]) -> Iterator[str | None]:
    """Yield the first character of each line of a patch; None for an invalid part."""
    for hunk in hunks:
        lines = hunk.get("lines") if isinstance(hunk, dict) else None
        if not isinstance(lines, list):
            yield None
            return
        for line in lines:
            yield line[:1] if isinstance(line, str) else None


def _edit(value: Any) -> LineChange | None:
    if not isinstance(value, dict):
        return None
    for old, new in (("old_string", "new_string"), ("old_str", "new_str")):
        before, after = value.get(old), value.get(new, "")
        if isinstance(before, str) and isinstance(after, str):
            return LineChange(None, None) if value.get("replace_all") else _compared(before, after)
    return None


def _insertion(value: dict[str, Any]) -> LineChange | None:
    text = value.get("insert_text", value.get("new_str"))
    is_insertion = isinstance(value.get("insert_line"), int) and isinstance(text, str)
    return LineChange(lines_in(str(text)), 0) if is_insertion else None


def _whole_file(value: dict[str, Any]) -> LineChange | None:
    for path, content in (("file_path", "content"), ("path", "file_text")):
        if isinstance(value.get(path), str) and isinstance(text := value.get(content), str):
            return LineChange(lines_in(text), None)
    return None


def _compared(before: str, after: str) -> LineChange:
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[-1] == new[-1]:
        old.pop(), new.pop()
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    old, new = old[start:], new[start:]
    if len(old) + len(new) > LINES_MAX:
        return LineChange(None, None)
    same = sum(
        block.size for block in difflib.SequenceMatcher(None, old, new, False).get_matching_blocks()
    )
    return LineChange(len(new) - same, len(old) - same)


def _sum(changes: list[LineChange]) -> LineChange:
    """Return the sum of the edits of one call; None for a number that is unknown in one of them."""
    added = [each.added for each in changes]
    removed = [each.removed for each in changes]
    return LineChange(
        None if None in added else sum(each or 0 for each in added),
        None if None in removed else sum(each or 0 for each in removed),
    )
