"""The public call that records the state of the git repository."""

from __future__ import annotations

from agentobs import tracing
from agentobs.recording.git.states import git_state
from agentobs.recording.options import git_mode
from agentobs.recording.session import current_recorder
from agentobs.runtime import current
from agentobs.sink import sink


def record_git() -> None:
    """Record branch, commit and uncommitted changes of the git repository of the working directory.

    The start of a session records them as well. Call this after the agent has made a commit or checked out another
    branch. Facts contain digests of the names, unless `Options(git="names")` is set. Outside a session, outside a
    repository, during a replay and with `Options(git="off")`, nothing is recorded.
    """
    here, recorder = tracing.place(), current_recorder()
    if here is None or recorder is None or current().is_answered:
        return
    state = git_state(here.session_id, git_mode(recorder.options), "program", here)
    if state is not None:
        sink.emit(state)


__all__ = ["record_git"]
