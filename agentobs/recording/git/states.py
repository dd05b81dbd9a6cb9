"""Git states: the facts about the repository in which a session runs, at its start and when its program asks for it.

The caller's thread reads branch and commit from files. Whether there are uncommitted changes is determined by another
thread, because `git` has to look at every file; a second record with that value then completes the first one. It is
missing if the process ends before.
"""

from __future__ import annotations

import _thread
import threading
from dataclasses import replace
from pathlib import Path
from typing import Literal

from agentobs import world
from agentobs.errors import error_kind, warn_once
from agentobs.recording.git.repository import (
    Repository,
    find_repository,
    is_dirty,
    with_head_of_git,
)
from agentobs.recording.options import GitMode
from agentobs.records.exchanges import Place
from agentobs.records.facts import GitState
from agentobs.records.labels import Label, is_label, unchecked
from agentobs.runtime import process
from agentobs.sink import sink

RUNNING_MAX = 4
"""The maximum number of working trees that are examined at the same time; further ones stay unknown. Our choice."""


class Examinations:
    """The examinations of working trees that are in progress."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = 0


def git_state(
    session_id: str, mode: GitMode, source: Literal["start", "program"], here: Place | None = None
) -> GitState | None:
    """Return the state of the repository of the working directory, and start to examine its working tree.

    Args:
        session_id: the session.
        mode: whether names stay readable; with `off`, nothing is read.
        source: whether the session starts, or its program asks.
        here: the place of the caller, if its program asks.

    Returns:
        The fact; None if there is no repository, or if its branch and commit are not known yet.
    """
    if mode == "off":
        return None
    try:
        repository = find_repository(Path.cwd())
    except (OSError, ValueError) as error:
        warn_once(f"the git repository is not recorded: {error_kind(error)}", about="git")
        return None
    if repository is None:
        return None
    state = GitState(
        session_id,
        world.now(),
        None,
        None,
        None,
        None,
        source,
        unchecked(here.lane) if here is not None else None,
        here.turn if here is not None else None,
    )
    _examine_later(state, repository, mode)
    return _filled(state, repository, mode) if repository.is_complete else None


def _filled(state: GitState, repository: Repository, mode: GitMode) -> GitState:
    return replace(
        state,
        repository=_named(repository.name, mode),
        branch=_named(repository.branch, mode),
        commit=repository.commit,
    )


def _named(name: str | None, mode: GitMode) -> Label | None:
    """Return a name for the recorder, which replaces it by a digest unless it is a label."""
    if name is None:
        return None
    return Label(name) if mode == "names" and is_label(name) else unchecked(name)


def _examine_later(state: GitState, repository: Repository, mode: GitMode) -> None:
    """Emit the state again when the working tree was examined, in another thread."""
    examinations = process.state(Examinations)
    with examinations.lock:
        if examinations.running >= RUNNING_MAX:
            return
        examinations.running += 1

    def examine() -> None:
        try:
            known = repository if repository.is_complete else with_head_of_git(repository)
            dirty = is_dirty(known)
            if dirty is not None or (known.is_complete and not repository.is_complete):
                sink.emit(replace(_filled(state, known, mode), dirty=dirty))
        except Exception as error:
            warn_once(f"the git repository is not recorded: {error_kind(error)}", about="git")
        finally:
            with examinations.lock:
                examinations.running -= 1

    try:
        # Not `threading.Thread`, because threads of the program are counted as its jobs.
        _thread.start_new_thread(examine, ())
    except RuntimeError:  # no thread can be started, for example because the interpreter is exiting
        with examinations.lock:
            examinations.running -= 1


__all__ = ["git_state"]
