"""Blame: which session, turn and prompt wrote each line of a file.

The recorded states of a workspace, of all sessions in the order of time, become the commits of a temporary repository,
followed by the file as it is now. `git blame` then finds the state with which each line appeared, also under a former
name of the file. The changes of that state in the facts name the tool call. A line that appeared between two sessions,
before the first one or after the last one belongs to none.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentobs.effects.workspaces.kept_states import file_content, state
from agentobs.effects.workspaces.shadow_git import (
    ShadowGit,
    ShadowGitError,
    all_shadows,
    existing_shadow,
)
from agentobs.effects.workspaces.state_facts import path_text
from agentobs.errors import UsageError
from agentobs.recording.vault.vault import Vault
from agentobs.records.labels import digest_label
from agentobs.store.label_texts import DIGEST, LabelTexts
from agentobs.store.port import Store
from agentobs.store.session_texts import prompt_of, prompt_title

BYTES_MAX = 50 * 1024 * 1024
"""Larger files have no recorded content, see docs/workspaces.md."""
BINARY_BYTES = 8000
"""The maximum number of bytes that are searched for a NUL byte, which text does not contain. Source: buffer_is_binary
of git 2.39.
"""
BEFORE = "before the first recorded state"
AFTER = "not by a recorded session: changed after the last recorded state"
BETWEEN = "not by a recorded session: changed between two sessions"
OUTSIDE = "not by a recorded session: no tool call was open"
BY_CALL = "by a tool call"
SWITCH = "Record files with `agentobs record --effects files`"

_HEADER = re.compile(rb"([0-9a-f]{40}) [0-9]+ ([0-9]+)(?: [0-9]+)?\Z")
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPED = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}


@dataclass(frozen=True, slots=True)
class BlamedLine:
    """A line of a file, with its origin."""

    number: int
    """The number of the line in the file, from 1."""
    text: str
    path: str
    """The path in the workspace when the line was written."""
    origin: str
    """Who wrote the line, or why that is not known."""
    session_id: str | None = None
    """The session that wrote the line; None if no session did."""
    state: int | None = None
    """The state of the session with which the line appeared."""
    lane: str | None = None
    turn: int | None = None
    tool: str | None = None
    """The name of the tool; None if several calls may have written the line."""
    tool_use_id: str | None = None
    certainty: str | None = None
    """`observed` or `inferred`, as in `file_changes`."""
    rule: str | None = None
    title: str = ""
    """The title of the prompt; empty if it is not known."""
    at_ns: int | None = None
    """When the change was found; None if no session wrote the line."""


@dataclass(frozen=True, slots=True)
class Blame:
    """The lines of a file."""

    lines: Sequence[BlamedLine]
    total: int
    """The number of lines of the whole file."""


@dataclass(frozen=True, slots=True)
class _State:
    """A recorded state: a commit of the history."""

    session_id: str
    number: int
    at_ns: int
    tree: str


def blame_file(store: Store, path: Path, first: int, last: int) -> Blame:
    """Return the origins of the lines of a file, as it is now.

    Args:
        store: the store.
        path: the file.
        first: the first line, from 1.
        last: the last line; it may be after the end of the file.

    Raises:
        UsageError: the file cannot be read, is not text, is in no recorded workspace, or has fewer lines.
        ShadowGitError: git failed.
        OSError: the home cannot be written.
    """
    full = Path(os.path.normpath(Path.cwd() / path))
    full = full.parent.resolve() / full.name
    content = _read(full)
    total = _line_count(content)
    if total and first > total:
        raise UsageError(
            f"the file has {total:,} lines",
            where=f"--lines {first},{last}",
            todo="Choose earlier lines",
        )
    shadow, relative = _workspace_of(store, full)
    history = _states(store, shadow)
    blamed = _blamed(shadow, history, relative, content, (first, min(last, total))) if total else []
    return Blame(_with_origins(store, shadow, history, blamed), total)


def blame_session(store: Store, session_id: str, names: Sequence[str], number: int) -> BlamedLine:
    """Return the origin of a line of a file, as a session left it.

    Args:
        store: the store.
        session_id: the session.
        names: paths in the workspace; the first one that exists is used.
        number: the number of the line, from 1.

    Raises:
        UsageError: the session recorded no files, left no such file or line, or the file is not text.
        DamagedError: the state cannot be read.
        ShadowGitError: git failed.
        OSError: the home cannot be written.
    """
    rows = [r for r in store.rows("workspace_states", session_id=session_id).dicts() if r["state"]]
    if not rows:
        raise UsageError("this session recorded no files", where=session_id, todo=SWITCH)
    workspace_id, last = str(rows[-1]["workspace_id"]), int(rows[-1]["state"])
    snapshot = state(store.home, workspace_id, session_id, last)
    found = ((name, file_content(store.home, workspace_id, snapshot, name)) for name in names)
    path, content = next(((n, c) for n, c in found if c is not None), (names[0], None))
    if content is None:
        raise UsageError(
            "the session left no file with this path", where=path, todo="Name another file"
        )
    _check_text(content, path)
    total = _line_count(content)
    if number > total:
        raise UsageError(
            f"the file has {total:,} lines", where=f"{path}:{number}", todo="Choose an earlier line"
        )
    shadow = existing_shadow(store.home, workspace_id)
    every = _states(store, shadow)
    end = max(
        i for i, each in enumerate(every) if (each.session_id, each.number) == (session_id, last)
    )
    history = every[: end + 1]
    blamed = _blamed(shadow, history, path, None, (number, number))
    return _with_origins(store, shadow, history, blamed)[0]


def _read(path: Path) -> bytes:
    """Return the content of a file of the user.

    Raises:
        UsageError: it is not a text file that can be read.
    """
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a file"
            raise UsageError(f"this is {what}", where=str(path), todo="Name a text file")
        if status.st_size > BYTES_MAX:
            raise UsageError(
                "the file is larger than 50 MB", where=str(path), todo="Such files are not recorded"
            )
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the name is not valid"
        raise UsageError(
            f"the file cannot be read: {reason}", where=str(path), todo="Name a file that exists"
        ) from error
    _check_text(content, str(path))
    return content


def _line_count(content: bytes) -> int:
    """Return the number of lines, as git counts them: only a line feed ends a line."""
    return content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))


def _check_text(content: bytes, where: str) -> None:
    if b"\0" in content[:BINARY_BYTES]:
        raise UsageError(
            "this is a binary file, which has no lines", where=where, todo="Name a text file"
        )


def _workspace_of(store: Store, path: Path) -> tuple[ShadowGit, str]:
    """Return the recorded workspace of a file, the innermost one, and the path in it."""
    found = [
        each
        for each in all_shadows(store.home)
        if path.is_relative_to(each.root) and each.sessions()
    ]
    if not found:
        raise UsageError(
            "no session in this home recorded the files of this directory",
            where=str(path.parent),
            todo=SWITCH,
        )
    shadow = max(found, key=lambda each: len(each.root.parts))
    return shadow, str(path.relative_to(shadow.root))


def _states(store: Store, shadow: ShadowGit) -> list[_State]:
    """Return the states of a workspace that are kept, oldest first; see `ShadowGit.next_number`."""
    listed = shadow.run(
        "for-each-ref", "--format=%(refname) %(tree) %(committerdate:unix)", "refs/sessions/"
    )
    lines = (line.split(" ") for line in listed.decode().splitlines())
    kept = {name: (tree, int(number)) for name, tree, number in lines}
    rows = store.rows("internal/workspace_history", workspace_id=shadow.workspace_id).dicts()
    found = [
        (known[1], _State(str(row["session_id"]), int(row["state"]), int(row["at_ns"]), known[0]))
        for row in rows
        if (known := kept.get(f"refs/sessions/{row['session_id']}/{row['state']}")) is not None
    ]
    return [each for _, each in sorted(found, key=lambda each: each[0])]


def _blamed(
    shadow: ShadowGit,
    history: Sequence[_State],
    path: str,
    content: bytes | None,
    lines: tuple[int, int],
) -> list[tuple[int, BlamedLine, str]]:
    """Return the lines with the number of the state from which each one is, and the content of the file then.

    Args:
        shadow: the repository of the states.
        history: the states, oldest first.
        path: the path in the workspace.
        content: the file as it is now, which follows the last state; None to end with that state.
        lines: the first and the last line.
    """
    with shadow.derived() as derived:
        marks = derived.path / "marks"
        derived.run(
            "fast-import",
            "--quiet",
            f"--export-marks={marks}",
            text=_stream(history, path, content),
        )
        commits = {
            commit: int(mark[1:]) - 1
            for mark, commit in (each.split() for each in marks.read_text().splitlines())
        }
        if content is not None and not derived.run(
            "rev-list", "--max-count=1", "refs/heads/history~1", "--", path
        ):
            raise UsageError(
                "no recorded state has this file",
                where=path_text(path),
                todo="Ignored files, files over 50 MB and files with credentials are not recorded",
            )
        listed = derived.run(
            *("blame", "--line-porcelain", "--no-textconv", f"-L{lines[0]},{lines[1]}"),
            *("refs/heads/history", "--", path),
        )
        blobs: dict[tuple[int, str], str] = {}
        found = []
        for commit, line in _parsed(listed):
            at = commits[commit]
            key = (at, line.path)
            if key not in blobs:
                blobs[key] = derived.run("rev-parse", f"{commit}:{line.path}").decode().strip()
            found.append((at, line, blobs[key]))
        return found


def _stream(history: Sequence[_State], path: str, content: bytes | None) -> bytes:
    """Return the states as the input of `git fast-import`; the mark of a commit is its position, from 1."""
    parts: list[bytes] = []
    for number, each in enumerate(history, 1):
        parts += [_commit(number), f"M 040000 {each.tree} \n".encode()]
    if content is not None:
        name = (
            os.fsencode(path).replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
        )
        parts += [_commit(len(history) + 1), b'M 100644 inline "%b"\n' % name]
        parts += [b"data %d\n" % len(content), content, b"\n"]
    return b"".join([*parts, b"done\n"])


def _commit(number: int) -> bytes:
    # The times only have to rise, because `blame` visits younger commits first.
    text = f"commit refs/heads/history\nmark :{number}\ncommitter a <a@localhost> {number} +0000\ndata 0\n"
    return text.encode() + (f"from :{number - 1}\n".encode() if number > 1 else b"")


def _parsed(listed: bytes) -> list[tuple[str, BlamedLine]]:
    """Return the commit and the line of each entry of `git blame --line-porcelain`."""
    found = []
    commit, number, path = "", 0, ""
    for line in listed.split(b"\n"):
        if line.startswith(b"\t"):
            text = line[1:].decode("utf-8", "backslashreplace")
            found.append((commit, BlamedLine(number, text, path, "")))
        elif (header := _HEADER.match(line)) is not None:
            commit, number = header[1].decode(), int(header[2])
        elif line.startswith(b"filename "):
            path = os.fsdecode(_unquoted(line[9:]))
    return found


def _unquoted(name: bytes) -> bytes:
    if not name.startswith(b'"'):
        return name

    def plain(found: re.Match[bytes]) -> bytes:
        text = found[1]
        return bytes([int(text, 8)]) if len(text) == 3 else _ESCAPED.get(text, text)

    return _ESCAPE.sub(plain, name[1:-1])


def _with_origins(
    store: Store,
    shadow: ShadowGit,
    history: Sequence[_State],
    blamed: Sequence[tuple[int, BlamedLine, str]],
) -> list[BlamedLine]:
    """Return the lines with their sessions, turns and prompts."""
    origins = _Origins(store, shadow, history)
    known: dict[tuple[int, str], Mapping[str, Any]] = {}
    for at, line, blob in blamed:
        if (at, line.path) not in known:
            known[at, line.path] = origins.of(at, line.path, blob)
    titles = _titles(
        store, {each["interaction_id"] for each in known.values() if "interaction_id" in each}
    )
    result = []
    for at, line, _ in blamed:
        values = dict(known[at, line.path])
        title = titles.get(values.pop("interaction_id", None), "")
        result.append(replace(line, path=path_text(line.path), title=title, **values))
    return result


class _Origins:
    """Finds the recorded change with which a state got its lines."""

    def __init__(self, store: Store, shadow: ShadowGit, history: Sequence[_State]) -> None:
        self._history = history
        self._rows = store.rows(
            "internal/workspace_changes", workspace_id=shadow.workspace_id
        ).dicts()
        self._labels = LabelTexts(store)
        self._key = store.home.key()

    def of(self, at: int, path: str, blob: str) -> dict[str, Any]:
        """Return the values of the fields of the lines that appeared in a file with a state."""
        if at >= len(self._history):
            return {"origin": AFTER}
        here, name = self._history[at], digest_label(path_text(path), self._key)
        rows = [row for row in self._rows if row["path"] == name]
        own = [
            row
            for row in rows
            if (row["session_id"], row["state"]) == (here.session_id, here.number)
        ]
        row: Mapping[str, Any] | None = own[0] if own else None
        if row is None or row["tool_use_id"] is None:
            row = self._of_another_session(rows, here, blob) or row
        if row is None:
            return {"origin": BEFORE if at == 0 else BETWEEN}
        if row["tool_use_id"] is None and not row["candidates"]:
            return {"origin": OUTSIDE}
        count = row["candidates"]
        origin = (
            BY_CALL
            if row["tool_use_id"] is not None
            else f"one of {count} tool calls may have written it"
        )
        fields = (
            "session_id",
            "state",
            "lane",
            "turn",
            "tool",
            "tool_use_id",
            "certainty",
            "rule",
            "at_ns",
        )
        values = {name: row[name] for name in (*fields, "interaction_id")}
        digests = [values["tool"]] if DIGEST.fullmatch(values["tool"] or "") else []
        values["tool"] = self._labels.texts_of(digests).get(values["tool"], values["tool"])
        return {"origin": origin, **values}

    def _of_another_session(
        self, rows: Sequence[Mapping[str, Any]], here: _State, blob: str
    ) -> Mapping[str, Any] | None:
        """Return the change by a session that recorded the same workspace at the time; None if there are several
        candidates.
        """
        found = [
            row
            for row in rows
            if row["session_id"] != here.session_id
            and row["tool_use_id"] is not None
            and row["since_ns"] is not None
            and row["since_ns"] < here.at_ns <= row["at_ns"]
            and row["blob"] is not None
            and self._labels.texts_of([row["blob"]]).get(row["blob"]) == blob
        ]
        return found[0] if len(found) == 1 else None


def _titles(store: Store, interaction_ids: set[str | None]) -> dict[str | None, str]:
    """Return the title of the prompt of each interaction."""
    wanted = sorted(each for each in interaction_ids if each is not None)
    if not wanted:
        return {}
    vaults: dict[str, Vault] = {}
    found: dict[str | None, str] = {}
    for row in store.rows("internal/interaction_prompts", interaction_ids=wanted).dicts():
        segment_id = str(row["segment_id"])
        if segment_id not in vaults:
            vaults[segment_id] = Vault(store.home, segment_id, str(row["session_id"]))
        text = prompt_of(vaults[segment_id], str(row["request_content"]))
        found[row["interaction_id"]] = prompt_title(text) if text else ""
    return found


__all__ = ["Blame", "BlamedLine", "ShadowGitError", "blame_file", "blame_session"]
