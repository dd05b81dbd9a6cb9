"""State facts: the rows of a snapshot of a session, and of the files that differ from the snapshot before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from agentobs import world
from agentobs.effects.workspaces.attribution import (
    Attribution,
    Call,
    Workspace,
    attribute,
    candidates,
)
from agentobs.effects.workspaces.file_changes import Change, changes, tree_size
from agentobs.effects.workspaces.known_calls import KnownCalls, response_start_ns
from agentobs.effects.workspaces.shadow_git import ShadowGit
from agentobs.effects.workspaces.windows import Source, Taken, Window
from agentobs.records.facts import FileChange, WorkspaceState
from agentobs.records.labels import Label, unchecked


class StateFacts:
    """Derives the facts of the snapshots of one workspace."""

    def __init__(self, shadow: ShadowGit, workspace: Workspace) -> None:
        """Derive facts from the states in a shadow repository."""
        self._shadow, self._workspace = shadow, workspace

    def of(
        self, session_id: str, window: Window, known: KnownCalls
    ) -> Iterator[WorkspaceState | FileChange]:
        """Yield the facts of a window of a session: one state for each request, then the changes.

        Raises:
            ShadowGitError: git failed.
        """
        before = window.before.snapshot if window.before is not None else None
        found = changes(self._shadow, before, window.after.snapshot) if before is not None else []
        self._measure(window.before, window.after, found)
        rows = [
            self._state(session_id, window, row, known, len(found))
            for row in range(len(window.rows))
        ]
        yield from rows
        if before is None:
            return
        open_calls = candidates(
            known.calls(),
            list(known.lanes),
            before.started_ns,
            window.after.snapshot.ended_ns,
        )
        contents: dict[str, bytes] = {}

        def content(blob: str) -> bytes:
            if blob not in contents:
                contents.clear()
                contents[blob] = self._shadow.run("cat-file", "blob", blob)
            return contents[blob]

        touched = {path for each in found for path in (each.path, each.old_path) if path}
        for change in found:
            made = attribute(
                change,
                open_calls,
                self._workspace,
                lambda path: self._is_file(path, touched),
                content,
                before.started_ns,
                window.after.snapshot.started_ns,
            )
            yield self._change(
                session_id, window, change, made, open_calls, is_late=any(e.late for e in rows)
            )

    def _is_file(self, path: str, touched: set[str]) -> bool:
        if path in touched:
            return True
        try:
            return not stat.S_ISDIR(os.lstat(self._workspace.root / path).st_mode)
        except (OSError, ValueError):
            return False

    def _measure(self, before: Taken | None, after: Taken, found: Sequence[Change]) -> None:
        """Set the size of a snapshot; it is counted completely only for the first one."""
        if after.size is not None:
            return
        if before is None or before.size is None:
            after.size = tree_size(self._shadow, after.snapshot.tree)
            return
        files, total = before.size
        for each in found:
            if each.old_blob is not None:
                files, total = files - 1, total - (each.old_bytes or 0)
            if each.new_blob is not None:
                files, total = files + 1, total + (each.new_bytes or 0)
        after.size = files, total

    def _state(
        self, session_id: str, window: Window, row: int, known: KnownCalls, changed: int
    ) -> WorkspaceState:
        source, request = window.rows[row]
        taken, snapshot = window.after, window.after.snapshot
        attempt = known.attempt(request.attempt_id) if request is not None else None
        is_turn = attempt is not None and attempt.makes_turns
        repository, size = taken.repository, taken.size or (None, None)
        late = (source == "start" and taken.is_late) or (
            attempt is not None
            and attempt.outcome == "ok"
            and response_start_ns(attempt) < snapshot.ended_ns
        )
        return WorkspaceState(
            session_id=session_id,
            interaction_id=attempt.interaction_id if attempt is not None else None,
            lane=attempt.lane if attempt is not None else None,
            turn=attempt.turn if attempt is not None and is_turn else None,
            attempt_id=request.attempt_id if request is not None else None,
            at_ns=snapshot.started_ns,
            duration_ns=snapshot.ended_ns - snapshot.started_ns,
            source=source,
            workspace_id=self._shadow.workspace_id,
            state=window.state,
            tree=unchecked(snapshot.tree),
            files=size[0],
            bytes=size[1],
            uncaptured=snapshot.uncaptured_count,
            changes=changed if window.before is not None else None,
            is_stable=snapshot.is_stable,
            late=late,
            failure=None,
            repository=unchecked(repository.name) if repository is not None else None,
            branch=unchecked(repository.branch) if repository and repository.branch else None,
            commit=repository.commit if repository is not None else None,
            dirty=repository.dirty if repository is not None else None,
        )

    def _change(
        self,
        session_id: str,
        window: Window,
        change: Change,
        made: Attribution,
        open_calls: Sequence[Call],
        *,
        is_late: bool,
    ) -> FileChange:
        # A call of another session of this process may have made the change; it has no row here.
        call = made.call if made.call is not None and made.call.session_id == session_id else None
        turns = {
            (each.session_id, each.lane, each.turn, each.interaction_id) for each in open_calls
        }
        shared = next(iter(turns)) if len(turns) == 1 else None
        if call is None and shared is not None and shared[0] == session_id:
            place: tuple[str | None, int | None, str | None] = shared[1:]
        elif call is not None:
            place = call.lane, call.turn, call.interaction_id
        else:
            place = None, None, None
        lane, turn, interaction_id = place
        return FileChange(
            session_id=session_id,
            interaction_id=interaction_id,
            lane=unchecked(lane) if lane is not None else None,
            turn=turn,
            at_ns=window.after.snapshot.started_ns,
            state=window.state,
            previous_state=window.previous_state or 0,
            path=unchecked(path_text(change.path)),
            previous_path=unchecked(path_text(change.old_path)) if change.old_path else None,
            change=change.kind,
            previous_blob=unchecked(change.old_blob) if change.old_blob else None,
            blob=unchecked(change.new_blob) if change.new_blob else None,
            previous_mode=unchecked(change.old_mode) if change.old_mode else None,
            mode=unchecked(change.new_mode) if change.new_mode else None,
            previous_bytes=change.old_bytes,
            bytes=change.new_bytes,
            lines_added=change.lines_added,
            lines_removed=change.lines_removed,
            tool_use_id=unchecked(call.tool_use_id) if call is not None else None,
            attempt_id=call.attempt_id if call is not None else None,
            ordinal=call.ordinal if call is not None else None,
            certainty=made.certainty if call is not None else None,
            rule=made.rule if call is not None else None,
            candidates=len(open_calls),
            late=is_late,
        )


def failure_fact(
    session_id: str, source: Source, attempt_id: str | None, workspace_id: str, reason: str
) -> WorkspaceState:
    """Return the fact that the files of a workspace could not be read now."""
    return WorkspaceState(
        session_id=session_id,
        interaction_id=None,
        lane=None,
        turn=None,
        attempt_id=attempt_id,
        at_ns=world.now(),
        duration_ns=0,
        source=source,
        workspace_id=workspace_id,
        state=None,
        tree=None,
        files=None,
        bytes=None,
        uncaptured=None,
        changes=None,
        is_stable=None,
        late=False,
        failure=Label(reason),
        repository=None,
        branch=None,
        commit=None,
        dirty=None,
    )


def path_text(path: str) -> str:
    r"""Return a path as text: bytes that are not UTF-8 become `\xNN`, and a backslash is doubled then."""
    raw = os.fsencode(path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


__all__ = ["StateFacts", "failure_fact", "path_text"]
