"""Attribution: which tool call changed a file between two states of a workspace.

Only calls that were open between the two states are candidates. A change is attributed to one of them by the first rule
that applies:

- `content` (observed): the input of exactly one candidate names the path and contains the change;
- `path` (inferred): the input of exactly one candidate names the path, and the inputs of all other candidates name only
  other files;
- `only_call` (inferred): there is exactly one candidate, its input does not name other files only, and it was open
  before the later state was read.

Otherwise the change has no call. Nothing is guessed between several candidates, because a wrong cause is worse than
none.

A command in the background stays a candidate after its result. It does not prevent that a later call is inferred whose
input names the path, if its own input does not.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agentobs.effects.workspaces.file_changes import Change
from agentobs.recording.facts.background_commands import (
    COMMAND_CHARACTERS,
    COMMAND_KEYS,
    TEXTS_MAX,
    input_texts,
)
from agentobs.records.exchanges import child_lane

PATH_CHARACTERS = 4096
"""The maximum length of a path in the input of a call. Source: PATH_MAX of Linux."""
CONTENT_BYTES_MAX = 4 * 1024 * 1024
"""Larger files are not compared with inputs. Our choice."""

READING_TOOLS = frozenset(
    (
        *("Read", "Grep", "Glob", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoWrite"),
        *("read_file", "read_files", "view_file", "list_files", "list_dir", "list_directory"),
        *("search_files", "grep", "glob", "grep_search", "file_search", "find_files"),
    )
)
"""Tools that change no file. Source: the tools of Claude Code 2.1, and common names of other agents' tools."""
WRITING_TOOLS = frozenset(
    (
        *("Write", "Edit", "MultiEdit", "NotebookEdit"),
        *("write_file", "create_file", "edit_file", "str_replace"),
    )
)
"""Tools that change only the file that their input names, even if it does not exist yet. Source: as above."""
FILE_KEYS = frozenset(("file_path", "path", "notebook_path", "filename"))
"""The keys with which these tools name the file. Source: as above."""
EDITOR_COMMANDS = frozenset(("view", "create", "str_replace", "insert", "undo_edit"))
"""The commands of the provider's text editor, which only changes the file that its input names. Source: the tools
`text_editor_20250728` and earlier ones, platform.claude.com/docs, 2026-11.
"""
EDIT_KEYS = (
    ("old_string", "new_string"),
    ("old_str", "new_str"),
    ("old_text", "new_text"),
    ("search", "replace"),
)
"""The keys of inputs that replace one text by another; see `recording.facts.line_changes`."""

_WORDS = re.compile(r"""[^\s'"`;|&<>()=,]+""")

Rule = Literal["content", "path", "only_call"]
Certainty = Literal["observed", "inferred"]


@dataclass(slots=True)
class Call:
    """A tool call that the client runs."""

    session_id: str
    attempt_id: str
    ordinal: int
    tool_use_id: str
    name: str
    input: Any = field(repr=False)
    lane: str
    turn: int | None
    interaction_id: str | None
    opened_ns: int
    """The earliest time at which it may have run, in nanoseconds since 1970."""
    closed_ns: int | None = None
    """When it can have changed files for the last time, in nanoseconds since 1970; None if it may still do so."""
    returned_ns: int | None = None
    """When its result was known, in nanoseconds since 1970. A command in the background continues after that."""
    ended_ns: int | None = None
    """When its command has ended, in nanoseconds since 1970, if that was observed."""
    directory: str | None = None
    """Where its command has started, if that was observed: shells of agents keep the directory of a `cd`."""
    names: tuple[str | None, _Names] | None = field(default=None, repr=False, compare=False)
    """The paths that its input names, with the directory for which they were found; None until they are needed."""

    def was_open(self, start_ns: int, end_ns: int) -> bool:
        """Return whether it may have run at any time in an interval."""
        return self.opened_ns < end_ns and (self.closed_ns is None or self.closed_ns > start_ns)


class Attribution(NamedTuple):
    """The call that made a change; None if it is unknown."""

    call: Call | None
    certainty: Certainty | None = None
    rule: Rule | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """The directory whose changes are attributed."""

    root: Path
    directory: Path
    """The working directory of the agent, to which relative paths refer."""

    def relative(self, text: str, start: str | None = None) -> Iterator[str]:
        """Yield the paths in the workspace that a text may denote, relative to both directories and to `start`; "" is
        the workspace itself.
        """
        name = text.removeprefix("file://").rstrip("/")
        for base in (self.directory, self.root, *([start] if start is not None else [])):
            # `Path` would not remove "..", and raises an error for some texts.
            full = os.path.normpath(f"{base}/{name}" if not name.startswith("/") else name)
            for root in (self.root, self.root.resolve()):
                if full == str(root) or full.startswith(f"{root}/"):
                    yield full[len(str(root)) + 1 :]


@dataclass(frozen=True, slots=True)
class _Names:
    """The paths that the input of a call names."""

    paths: frozenset[str]
    """Paths that are complete texts."""
    words: frozenset[str]
    """Paths that are words of a command."""
    runs_commands: bool
    is_of_file: bool = False
    """Whether the call only changes the file that it names."""


def candidates(
    calls: Sequence[Call], lanes: Sequence[str], start_ns: int, end_ns: int
) -> list[Call]:
    """Return the calls that may have changed files in an interval.

    Args:
        calls: all known calls.
        lanes: all known lanes. A call that started a sub-agent is not a candidate, because the sub-agent has its own
            calls.
        start_ns: when the reading of the earlier state started.
        end_ns: when the later state was read.
    """
    return [
        call
        for call in calls
        if call.was_open(start_ns, end_ns)
        and not _only_reads(call)
        and not _started_lane(call, lanes)
    ]


def attribute(
    change: Change,
    candidates: Sequence[Call],
    workspace: Workspace,
    is_file: Callable[[str], bool],
    content: Callable[[str], bytes],
    before_ns: int = 0,
    after_ns: int | None = None,
) -> Attribution:
    """Return the call that made a change.

    Args:
        change: the change.
        candidates: the calls that may have made it, from `candidates`.
        workspace: where it was made.
        is_file: returns whether a path was a file in one of the two states.
        content: returns the content of a blob.
        before_ns: when the reading of the earlier state started. A candidate with a result before is in the background.
        after_ns: when the reading of the later state started; None if that does not matter. A candidate of a response
            that started later may be too late.
    """
    wanted = {each for each in (change.path, change.old_path) if each is not None}
    names = [(call, _known_names(call, workspace)) for call in candidates]
    naming = [(call, found) for call, found in names if wanted & (found.paths | found.words)]
    proven = [call for call, _ in naming if _explains(call.input, change, content)]
    if len(proven) == 1:
        return Attribution(proven[0], "observed", "content")
    if proven:
        return Attribution(None)
    others = [
        found
        for call, found in names
        if not wanted & (found.paths | found.words) and not _is_in_background(call, before_ns)
    ]
    if len(naming) == 1 and all(_is_elsewhere(each, wanted, is_file) for each in others):
        return Attribution(naming[0][0], "inferred", "path")
    if not naming and len(names) == 1 and not _is_elsewhere(names[0][1], wanted, is_file):
        call = names[0][0]
        if after_ns is None or call.opened_ns < after_ns:
            return Attribution(call, "inferred", "only_call")
    return Attribution(None)


def _is_in_background(call: Call, before_ns: int) -> bool:
    return call.returned_ns is not None and call.returned_ns <= before_ns


def _only_reads(call: Call) -> bool:
    is_view = isinstance(call.input, dict) and call.input.get("command") == "view"
    return call.name in READING_TOOLS or (is_view and "path" in call.input)


def _started_lane(call: Call, lanes: Sequence[str]) -> bool:
    own = child_lane(call.lane, call.tool_use_id)
    return any(lane == own or lane.startswith((f"{own}/", f"{own}.")) for lane in lanes)


def _known_names(call: Call, workspace: Workspace) -> _Names:
    """Return the paths that the input of a call names; they are found once for all changes."""
    if call.names is None or call.names[0] != call.directory:
        call.names = call.directory, _names(call, workspace)
    return call.names[1]


def _names(call: Call, workspace: Workspace) -> _Names:
    texts = list(input_texts(call.input))[:TEXTS_MAX]
    paths = {
        path
        for _, text in texts
        if 0 < len(text) <= PATH_CHARACTERS and "\n" not in text
        for path in workspace.relative(text, call.directory)
    }
    commands = [text for key, text in texts if key in COMMAND_KEYS and text not in EDITOR_COMMANDS]
    words = {
        path
        for text in commands
        for word in _words(text[:COMMAND_CHARACTERS])
        for path in workspace.relative(word, call.directory)
    }
    writes = call.name in WRITING_TOOLS and any(key in FILE_KEYS for key, _ in texts)
    return _Names(frozenset(paths), frozenset(words), bool(commands), writes)


def _words(command: str) -> set[str]:
    """Return the words of a command, including those in quotes, and without operators around them."""
    found = set(_WORDS.findall(command))
    with contextlib.suppress(ValueError):  # an unbalanced quote
        found |= set(shlex.split(command))
    return found


def _is_elsewhere(names: _Names, wanted: set[str], is_file: Callable[[str], bool]) -> bool:
    """Return whether a call only changes files that its input names, and these are other files."""
    if names.runs_commands or any(_contains(each, path) for each in names.paths for path in wanted):
        return False
    return names.is_of_file or any(is_file(path) for path in names.paths)


def _contains(directory: str, path: str) -> bool:
    return not directory or path.startswith(f"{directory}/")


def _explains(value: Any, change: Change, content: Callable[[str], bytes]) -> bool:
    """Return whether the input of a call contains a change: the whole new content, or the texts of an edit."""
    if change.new_blob is None or (change.new_bytes or 0) > CONTENT_BYTES_MAX:
        return False
    if change.kind == "renamed" and change.old_blob == change.new_blob:
        return False
    new = content(change.new_blob)
    if new and any(text.encode("utf-8", "surrogatepass") == new for _, text in input_texts(value)):
        return True
    if change.old_blob is None or (change.old_bytes or 0) > CONTENT_BYTES_MAX:
        return False
    return content(change.old_blob) != new and new in _edited(value, content(change.old_blob))


def _edited(value: Any, old: bytes) -> Iterator[bytes]:
    """Yield the possible results of an edit of a content: with one occurrence or with all occurrences replaced."""
    edits = value.get("edits") if isinstance(value, dict) else None
    listed = edits if isinstance(edits, list) else [value]
    result = old
    for each in listed[:TEXTS_MAX]:
        pair = _edit_of(each)
        if pair is None or pair[0] not in result:
            return
        if len(listed) == 1:
            yield result.replace(*pair)
        result = result.replace(*pair, 1)
    yield result


def _edit_of(value: Any) -> tuple[bytes, bytes] | None:
    if not isinstance(value, dict):
        return None
    for old, new in EDIT_KEYS:
        before, after = value.get(old), value.get(new, "")
        if isinstance(before, str) and before and isinstance(after, str):
            return before.encode("utf-8", "surrogatepass"), after.encode("utf-8", "surrogatepass")
    return None


__all__ = ["Attribution", "Call", "Workspace", "attribute", "candidates"]
