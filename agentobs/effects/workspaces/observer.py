"""The observer of files: takes snapshots of the workspace while an agent runs, and emits what changed.

A snapshot is taken when the agent starts, when a request to a model is sent, and when the agent ends. It runs in its
own thread: the request is not delayed. A request carries the results of the tools of the turn before, so the snapshot
has their changes; if it could not end before the response started, it is marked as late. Requests that are sent while a
snapshot is taken share the next one.

The agent waits a moment for the first snapshot, because it may change files at once. In a large workspace, that
snapshot takes longer, and is marked as late.

Which call made a change is decided when all requests that were sent before the end of a snapshot have been recorded,
because only then all calls of that time are known.
"""

from __future__ import annotations

import _thread
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs import world
from agentobs.effects.observation import Scope
from agentobs.effects.workspaces.attribution import Workspace
from agentobs.effects.workspaces.kept_states import keep_state
from agentobs.effects.workspaces.known_calls import KnownCalls
from agentobs.effects.workspaces.repository_states import RepositoryStates
from agentobs.effects.workspaces.shadow_git import (
    FULL_DISK_NUMBERS,
    ShadowGitError,
    check_git,
    open_shadow,
    workspace_root,
)
from agentobs.effects.workspaces.snapshots import Snapshots
from agentobs.effects.workspaces.state_facts import StateFacts, failure_fact
from agentobs.effects.workspaces.windows import Request, Source, Taken, Window
from agentobs.errors import UsageError, error_kind, warn_once
from agentobs.provider.registry import dialect_of
from agentobs.records.exchanges import ModelExchange, ObservedEffect, ToolExchange
from agentobs.runtime import process, without
from agentobs.sink import sink

PLAIN_VARIABLE = "AGENTOBS_PLAIN_FILES"
"""The environment variable that permits storing files without encryption although content is encrypted."""
START_SECONDS = 1.0
"""How long the start of an agent waits for its first snapshot, in seconds. Our choice."""
STOP_SECONDS = 60.0
"""How long the end of an agent waits for its last snapshot, in seconds. Our choice."""
FLUSH_SECONDS = 10.0
"""How long the last snapshot waits until the last requests are recorded, in seconds. Our choice."""
FAILURES_MAX = 3
"""After how many failed snapshots in a row no more are taken. Our choice."""
FINAL_FAILURES = ("disk_full", "too_large", "no_git")
"""Failures after which no more snapshots are taken."""


@dataclass(slots=True)
class Track:
    """The snapshots of one session."""

    session_id: str
    last: Taken | None = None
    state: int = 0
    """The number of the last state."""
    windows: list[Window] = field(default_factory=list)
    """The windows whose facts are not emitted yet."""


class FileObserver:
    """Observes the files of the workspace of one agent; an `Observer`."""

    def __init__(self) -> None:
        """Prepare to observe."""
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_running = False
        self._has_started = False
        """Whether the agent may be running."""
        self._has_ended = threading.Event()
        self._process_id = 0
        self._tracks: dict[str, Track] = {}
        self._calls = KnownCalls()
        self._failures = 0
        self._failed: str | None = None
        """Why no more snapshots are taken."""
        self._last_failure = "git_failed"
        self._baseline: Taken | None = None
        """The snapshot of the start, for a session that starts later."""
        self._pending = 0
        self._idle = threading.Condition()

    def start(self, scope: Scope) -> None:
        """Start to take snapshots of the workspace of the agent's working directory.

        Raises:
            UsageError: there is no git, content is not recorded or is encrypted, or the directory cannot be a
                workspace.
        """
        if not scope.keeps_content:
            raise UsageError(
                "files are content, and this session records no content",
                where="effects: files",
                todo="Record content, or leave out `files`",
            )
        is_encrypted = getattr(process.exchange_observer, "is_sealed", False)
        if is_encrypted and world.environ(PLAIN_VARIABLE) != "1":
            raise UsageError(
                "content is encrypted, but recorded files cannot be",
                where="effects: files",
                todo=f"Leave out `files`, or set {PLAIN_VARIABLE}=1 to store them without encryption",
            )
        check_git()
        root = workspace_root(scope.directory)
        try:
            self._shadow = open_shadow(scope.home, root)
        except (ShadowGitError, OSError) as error:
            raise UsageError(
                f"the files cannot be recorded: {error_kind(error)}",
                where=str(root),
                todo="Check the disk and the permissions of the home, or leave out `files`",
            ) from error
        self._snapshots = Snapshots(self._shadow, skipped=scope.home.path)
        self._repositories = RepositoryStates(root)
        self._facts = StateFacts(self._shadow, Workspace(root, scope.directory))
        self._process_id = world.process_id()
        place = scope.place()
        self._owner = place.session_id if scope.environment is None and place is not None else None
        """The only session whose files are observed; None for all sessions of a recorded command."""
        self._scope = scope
        self._put(("start", place.session_id if place is not None else None))
        process.request_listeners += (self._request_sent,)
        process.record_listeners += (self._recorded,)
        # Not `threading.Thread`, because threads of the program are counted as its jobs.
        _thread.start_new_thread(self._work, ())
        self._is_running = True
        self.settle(START_SECONDS)
        self._has_started = True

    def stop(self) -> None:
        """Take the last snapshot, and emit the remaining facts; waits for this at most a minute."""
        process.request_listeners = without(process.request_listeners, self._request_sent)
        was_running, self._is_running = self._is_running, False
        if not was_running or self._process_id != world.process_id():
            return
        place = self._scope.place()
        self._put(("stop", place.session_id if place is not None else None))
        in_time = self._has_ended.wait(STOP_SECONDS)
        process.record_listeners = without(process.record_listeners, self._recorded)
        if not in_time:
            warn_once(
                "the last state of the workspace is not recorded: git takes too long",
                about="files end",
            )

    def settle(self, seconds: float) -> bool:
        """Wait until all requests that were sent have their snapshot, at most `seconds`; return whether they have."""
        with self._idle:
            return self._idle.wait_for(lambda: self._pending == 0, seconds)

    def _put(self, item: tuple[str, Any]) -> None:
        with self._idle:
            self._pending += item[0] != "record"
        self._items.put(item)

    def _request_sent(self, exchange: Any) -> None:
        """Note that a request was sent; called in the agent's thread."""
        if self._process_id != world.process_id():
            return
        place = exchange.place
        request = Request(exchange.attempt_id, place.session_id, exchange.started_ns, place.lane)
        if not dialect_of(exchange.request.url.path).makes_turns(exchange.request.url.path):
            return
        self._put(("request", request))

    def _recorded(self, record: object, facts: Sequence[Any]) -> None:
        """Note the facts of a record; called in the recorder's thread."""
        if (
            isinstance(record, ModelExchange | ToolExchange | ObservedEffect)
            and self._process_id == world.process_id()
        ):
            self._put(("record", (record, facts)))

    # Methods of the observer's thread.

    def _work(self) -> None:
        while True:
            items = [self._items.get()]
            while not self._items.empty():
                items.append(self._items.get())
            is_over = any(kind == "stop" for kind, _ in items)
            try:
                self._handle(items, is_over)
            except Exception as error:
                warn_once(
                    f"the files of a workspace are not recorded: {error_kind(error)}", about="files"
                )
            with self._idle:
                self._pending -= sum(kind != "record" for kind, _ in items)
                self._idle.notify_all()
            if is_over:
                self._has_ended.set()
                return

    def _handle(self, items: Sequence[tuple[str, Any]], is_over: bool) -> None:
        requests = [item for kind, item in items if kind == "request"]
        for request in requests:
            self._calls.sent(request.attempt_id, request.started_ns)
        owned = [each for each in requests if self._owner in (None, each.session_id)]
        started = [item for kind, item in items if kind == "start"]
        if owned or started:
            self._snapshot([(each.session_id, "request", each) for each in owned], started)
        for kind, item in items:
            if kind == "record":
                self._calls.record(*item)
        if is_over:
            # A command that sent no request has one session, which starts at its end.
            last = [item for kind, item in items if kind == "stop" and item is not None]
            ended = [*self._tracks] or last
            self._snapshot([(each, "end", None) for each in ended], [])
            sink.flush(FLUSH_SECONDS)
            if (recorder := process.exchange_observer) is not None:
                recorder.wait(FLUSH_SECONDS)
            while not self._items.empty():
                kind, item = self._items.get()
                if kind == "record":
                    self._calls.record(*item)
        self._emit(is_over)

    def _snapshot(
        self,
        wanted: Sequence[tuple[str, Source, Request | None]],
        started: Sequence[str | None],
    ) -> None:
        """Take one snapshot for all requests and sessions that wait for one."""
        wanted = [*((each, "start", None) for each in started if each is not None), *wanted]
        taken, failure = self._take(), self._failed
        if taken is None:
            for session_id, source, request in wanted:
                self._emit_failure(session_id, source, request, failure or self._last_failure)
            return
        if started:
            taken.is_late = self._has_started
            self._baseline = taken
        by_session: dict[str, list[tuple[Source, Request | None]]] = {}
        for session_id, source, request in wanted:
            by_session.setdefault(session_id, []).append((source, request))
        for session_id, rows in by_session.items():
            try:
                self._add(session_id, taken, rows)
            except ShadowGitError as error:
                self._note_failure(error.reason)
                for source, request in rows:
                    self._emit_failure(session_id, source, request, error.reason)

    def _take(self) -> Taken | None:
        """Return a new snapshot; None if it fails."""
        if self._failed is not None:
            return None
        try:
            snapshot = self._snapshots.take()
        except ShadowGitError as error:
            self._note_failure(error.reason)
        except OSError as error:
            self._note_failure("disk_full" if error.errno in FULL_DISK_NUMBERS else "unreadable")
        else:
            self._failures = 0
            return Taken(snapshot, self._repositories.read(snapshot.tree))
        return None

    def _note_failure(self, reason: str) -> None:
        self._last_failure = reason
        self._failures += 1
        if reason in FINAL_FAILURES or self._failures >= FAILURES_MAX:
            self._failed = reason
        warn_once(
            f"the files of the workspace are not recorded: {reason.replace('_', ' ')}. The agent and the "
            "recording of its requests continue.",
            about=f"files {reason}",
        )

    def _add(
        self, session_id: str, taken: Taken, rows: list[tuple[Source, Request | None]]
    ) -> None:
        """Add a snapshot to a session."""
        track = self._tracks.get(session_id)
        if track is None:
            track = Track(session_id)
            if all(source != "start" for source, _ in rows):
                if self._baseline is not None and self._baseline is not taken:
                    self._keep(track, self._baseline, [("start", None)])
                else:
                    rows = [("start", None), *rows]
            self._tracks[session_id] = track
        self._keep(track, taken, rows)

    def _keep(self, track: Track, taken: Taken, rows: list[tuple[Source, Request | None]]) -> None:
        before, previous = track.last, track.state
        is_same = before is not None and taken.snapshot.is_same_state(before.snapshot)
        number = previous if is_same else previous + 1
        if not is_same:
            keep_state(self._shadow, track.session_id, number, taken.snapshot)
        track.last, track.state = taken, number
        track.windows.append(Window(before, taken, previous or None, number, rows))

    def _emit(self, is_over: bool) -> None:
        """Emit the facts of all windows about which everything is known."""
        for track in self._tracks.values():
            while track.windows:
                window = track.windows[0]
                ended_ns = window.after.snapshot.ended_ns
                if not is_over and (
                    not self._items.empty() or self._calls.is_unknown_before(ended_ns)
                ):
                    break
                track.windows.pop(0)
                try:
                    for fact in self._facts.of(track.session_id, window, self._calls):
                        sink.emit(fact)
                except ShadowGitError as error:
                    self._note_failure(error.reason)
        waiting = [
            window.before.snapshot.started_ns if window.before else 0
            for track in self._tracks.values()
            for window in track.windows
        ]
        lasts = [track.last.snapshot.started_ns for track in self._tracks.values() if track.last]
        self._calls.forget_before(min([*waiting, *lasts], default=0))

    def _emit_failure(
        self, session_id: str, source: Source, request: Request | None, reason: str
    ) -> None:
        attempt_id = request.attempt_id if request is not None else None
        sink.emit(failure_fact(session_id, source, attempt_id, self._shadow.workspace_id, reason))


__all__ = ["FileObserver"]
