"""Substitutions: recorded values that are different in a replay, each with exactly one live value.

A session ID, a working directory or the ID of a background task is new in each run. The first time that a live value
is in the place of a recorded value, the two are paired. From then on, each must be where the other is: a live value
never represents two recorded values, and a recorded value never represents two live values. Live requests are compared
after their values have been replaced by the recorded ones, and recorded responses are sent after the opposite
replacement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from replay.served.client_text import slug

_TOKEN = re.compile(
    r"(?P<root>(?<![\w.~-])/[^\n\"'`<>]+?)(?=/claude-\d+/)"
    r"|(?P<user>(?<=/)claude-\d+(?=/))"
    r"|(?P<uuid>(?<![0-9A-Za-z-])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9A-Za-z-]))"
    r"|(?P<agent>\ba[0-9a-f]{16}\b)"
    r"|(?:(?<=with ID: )|(?<=<task-id>)|(?<=/tasks/)|(?<=/tool-results/)|(?<=task_id: )|(?<=\"task_id\":\")"
    r"|(?<=\"task_id\": \"))(?P<task>b[0-9a-z]{8}\b)"
    r"|(?P<tmp>(?<![\w.~-])(?:/private)?/(?:tmp|var/tmp|var/folders/\w+/\w+/T)/[^/\s\"'`:;,<>()\[\]]+)"
    r"|(?P<secret>\[redacted:[a-z0-9_]{1,40}(?::[0-9a-f]{1,16})?\])"
)
"""Finds values that a run creates: the directory for temporary files of the client and of its user, UUIDs, the IDs of
sub-agents and background tasks, the first directory in the system's directory for temporary files, and placeholders of
secrets.
"""


class Span(NamedTuple):
    """A replacement in a text."""

    start: int
    end: int
    text: str


class Substitutions:
    """The pairs of recorded and live values."""

    def __init__(self) -> None:
        """Start without pairs."""
        self._live: dict[str, str] = {}
        self._recorded: dict[str, str] = {}
        self._finders: tuple[re.Pattern[str] | None, re.Pattern[str] | None] | None = None

    @property
    def pairs(self) -> dict[str, str]:
        """The live value of each recorded value, without values that are equal."""
        return {old: new for old, new in self._live.items() if old != new}

    def pair(self, recorded: str, live: str) -> bool:
        """Pair two values. Return False if one of them already has another partner."""
        if recorded in self._live or live in self._recorded:
            return self._live.get(recorded) == live
        if "/" in (recorded, live) or not recorded or not live:
            return False
        self._live[recorded], self._recorded[live] = live, recorded
        self._finders = None
        return True

    def pair_directory(self, recorded: str, live: str) -> bool:
        """Pair two directories, and the names that are derived from them."""
        paired = self.pair(recorded, live)
        if paired and len(recorded) > 1:
            self.pair(slug(recorded), slug(live))
        return paired

    def learn(self, recorded: Any, live: Any) -> None:
        """Pair the values at the same places of two JSON values. In the live one, known values are already replaced.

        Two texts are compared only if they are equal except for values of known forms, so a changed text pairs nothing.
        """
        if isinstance(recorded, dict) and isinstance(live, dict):
            for key in recorded.keys() & live.keys():
                self.learn(recorded[key], live[key])
        elif isinstance(recorded, list) and isinstance(live, list):
            for old, new in zip(recorded, live, strict=False):
                self.learn(old, new)
        elif isinstance(recorded, str) and isinstance(live, str) and recorded != live:
            self._learn_text(recorded, live)

    def _learn_text(self, recorded: str, live: str) -> None:
        old, new = list(_TOKEN.finditer(recorded)), list(_TOKEN.finditer(live))
        if _between(recorded, old) != _between(live, new):
            return
        for one, other in zip(old, new, strict=True):
            is_recorded = other[0] in self._live and other[0] not in self._recorded
            if one[0] != other[0] and one.lastgroup == other.lastgroup and not is_recorded:
                self.pair(one[0], other[0])

    def to_recorded(self, text: str) -> str:
        """Return a live text with the recorded values."""
        finder = self._built()[1]
        return finder.sub(lambda found: self._recorded[found[0]], text) if finder else text

    def to_live(self, text: str) -> str:
        """Return a recorded text with the live values."""
        parts, at = [], 0
        for start, end, new in self.live_spans(text):
            parts += [text[at:start], new]
            at = end
        return "".join([*parts, text[at:]])

    def live_spans(self, text: str, *, is_json: bool = False) -> list[Span]:
        """Return the replacements that turn a recorded text into a live one, in order.

        Args:
            text: the recorded text.
            is_json: whether the text is the text of a JSON value, in which values are escaped.
        """
        finder = self._built()[0]
        if finder is None:
            return []
        spans = []
        for found in finder.finditer(text):
            new = self._live[found[0]]
            spans.append(Span(*found.span(), json.dumps(new)[1:-1] if is_json else new))
        return spans

    def _built(self) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        if self._finders is None:
            sides = (self._live, self._recorded)
            self._finders = (_finder(sides[0]), _finder(sides[1]))
        return self._finders


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with a function applied to each of its texts, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [mapped(inner, change) for inner in value]
    return value


def _finder(pairs: dict[str, str]) -> re.Pattern[str] | None:
    """Return the pattern of all values that change, the longest first; a value is not found inside of a longer word."""
    values = sorted((old for old, new in pairs.items() if old != new), key=len, reverse=True)
    if not values:
        return None
    return re.compile("|".join(map(_with_bounds, values)))


def _with_bounds(value: str) -> str:
    before = r"(?<![\w~.-])" if value[0] == "/" else r"(?<![\w])" if value[0].isalnum() else ""
    after = r"(?![\w-])" if value[-1].isalnum() else ""
    return f"{before}{re.escape(value)}{after}"


def _between(text: str, tokens: list[re.Match[str]]) -> list[str]:
    """Return the parts of a text between values."""
    ends = [0, *(token.end() for token in tokens)]
    starts = [*(token.start() for token in tokens), len(text)]
    return [text[end:start] for end, start in zip(ends, starts, strict=True)]
