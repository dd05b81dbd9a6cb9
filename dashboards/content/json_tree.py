"""JSON as a tree for a page: objects and lists that can be collapsed, with bounds for their size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from dashboards.content.visible_text import TOO_DEEP, visible

MOST_VALUES = 300
"""The maximum number of values of a tree. Our choice: some screens; the raw text shows the rest."""
MOST_DEPTH = 12
"""The maximum depth of a tree; deeper values are text. Our choice."""
MOST_CHARACTERS = 2_000
"""The maximum length of a text in a tree, in characters. Our choice."""
MOST_PARSED = 200_000
"""The maximum length of a text that is parsed as JSON, in characters. Our choice."""
OPEN_DEPTH = 2
"""Down to this depth, a tree is expanded at first. Our choice."""


def parsed(value: Any) -> Any:
    """Return the object or the list in a text; None if the value is neither of both and contains none."""
    if isinstance(value, dict | list):
        return value
    if (
        not isinstance(value, str)
        or len(value) > MOST_PARSED
        or value.lstrip()[:1] not in ("{", "[")
    ):
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def json_tree(value: Any) -> Markup:
    """Return an object or a list as nested HTML lists."""
    return Markup("").join(_Tree().items(value, 0))


class _Tree:
    """The tree of one value, which counts the values that it contains."""

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def items(self, value: Any, depth: int) -> Iterator[Markup]:
        """Yield the HTML of the items of an object or a list."""
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        yield Markup('<ul class="json">')
        for at, (key, each) in enumerate(pairs):
            if self._left <= 0:
                yield Markup('<li class="faint">{:,} more</li>').format(len(pairs) - at)
                break
            self._left -= 1
            yield Markup("<li>")
            yield from self._item(visible(str(key)[:MOST_CHARACTERS]), each, depth + 1)
            yield Markup("</li>")
        yield Markup("</ul>")

    def _item(self, key: str, value: Any, depth: int) -> Iterator[Markup]:
        name = Markup('<span class="key">{}</span>').format(key)
        if isinstance(value, dict | list) and value and depth < MOST_DEPTH:
            size = f"{len(value):,} {'field' if isinstance(value, dict) else 'item'}{'' if len(value) == 1 else 's'}"
            state = Markup(" open") if depth < OPEN_DEPTH else Markup("")
            yield Markup('<details{}><summary>{} <span class="faint">{}</span></summary>').format(
                state, name, size
            )
            yield from self.items(value, depth)
            yield Markup("</details>")
        else:
            yield Markup("{} {}").format(name, _leaf(value))


def _leaf(value: Any) -> Markup:
    if isinstance(value, str):
        cut = value[:MOST_CHARACTERS]
        more = (
            Markup(' <span class="faint">({:,} characters)</span>').format(len(value))
            if len(value) > MOST_CHARACTERS
            else ""
        )
        return Markup('<span class="text">{}</span>{}').format(visible(cut), more)
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)[:MOST_CHARACTERS]
    except RecursionError:  # JSON can be read at a nesting at which it cannot be written
        text = TOO_DEEP
    return Markup('<span class="value">{}</span>').format(visible(text))
