"""The difference of what two sessions were made with: program, versions, code and tags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agentobs.records.labels import is_digest

_FACTS = {
    "name": "name",
    "source": "source",
    "entry": "entry",
    "sdk_version": "version of anthropic",
    "agentobs_version": "version of agentobs",
    "python_version": "version of Python",
    "platform": "platform",
    "repository": "git repository",
    "branch": "git branch",
    "commit": "git commit",
    "dirty": "uncommitted changes",
    "directory": "working directory",
}
"""The facts in the order in which they are shown, and their names for people."""
_WITHOUT_CONTENT = ("repository", "branch", "directory", "tags")
"""The facts whose values a report without content leaves out, because people chose them."""
_COMMIT_LENGTH = 12
"""The number of characters of a commit that is shown, as in the head of a session."""
_RARE = ("directory", "dirty")
"""The facts that only some recordings contain: the directory that of an imported log, the other one with a commit."""
NOT_RECORDED = "not recorded"


class SetupChange(NamedTuple):
    """A fact about how two sessions were made that differs."""

    name: str
    """The name of the fact, such as `git branch`, or `tag` and its key."""
    a: str
    """Its value in the first session, or `not recorded`."""
    b: str
    note: str
    """Why the values may be equal after all; empty if they differ."""


def setup_changes(
    a: Mapping[str, Any], b: Mapping[str, Any], *, has_values: bool = True
) -> list[SetupChange]:
    """Return what differs between what two sessions were made with, in the order in which it is shown.

    A fact that the recording of one side cannot contain is left out: a fixture has no branch.

    Args:
        a: the first session or fixture: its `setup`, as in the output of `agentobs diff --json`.
        b: the second one.
        has_values: whether values that people chose, such as those of tags, are shown.
    """
    one, other = (side.get("setup") or {} for side in (a, b))
    from_bundle = bool(one.get("from_bundle") or other.get("from_bundle"))
    return [
        SetupChange(
            name,
            _shown(key, before, has_values),
            _shown(key, now, has_values),
            _note((before, now), from_bundle),
        )
        for key, name, (before, now) in _facts(one, other)
        if before != now
    ]


def setup_unknown(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts that were recorded in neither session, so that they may differ.

    Args:
        a: the first session or fixture, as in `setup_changes`.
        b: the second one.
    """
    one, other = (side.get("setup") or {} for side in (a, b))
    return [
        name
        for key, name, values in _facts(one, other)
        if values == (None, None) and key not in _RARE
    ]


def _note(values: tuple[Any, Any], from_bundle: bool) -> str:
    """Return why two values may be equal: digests of two homes differ even if the texts are equal."""
    has_digest = None not in values and any(is_digest(str(each)) for each in values)
    return "may be equal: recorded in different homes" if from_bundle and has_digest else ""


def _facts(
    a: Mapping[str, Any], b: Mapping[str, Any]
) -> Iterator[tuple[str, str, tuple[Any, Any]]]:
    """Yield the facts that both sides can contain: the key, the name and both values."""
    for key, name in _FACTS.items():
        if key in a and key in b:
            yield key, name, (a[key], b[key])
    if "tags" in a and "tags" in b:
        tags = a["tags"] or {}, b["tags"] or {}
        for tag in dict.fromkeys([*tags[0], *tags[1]]):
            yield "tags", f"tag {tag}", (tags[0].get(tag), tags[1].get(tag))


def _shown(key: str, value: Any, has_values: bool) -> str:
    if value is None:
        return NOT_RECORDED
    if not has_values and key in _WITHOUT_CONTENT:
        return "value omitted"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)[:_COMMIT_LENGTH] if key == "commit" else str(value)
