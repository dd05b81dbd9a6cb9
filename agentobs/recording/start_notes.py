"""Start notes: facts that follow the start of a session, about its title and its git repository."""

from __future__ import annotations

from collections.abc import Iterator

from agentobs.recording.git.states import git_state
from agentobs.recording.options import git_mode
from agentobs.recording.recorder import Recorder
from agentobs.recording.titles import title_fact, title_text
from agentobs.records.facts import GitState, SessionTitle


def start_notes(
    session_id: str, title: str | None, recorder: Recorder | None
) -> Iterator[SessionTitle | GitState]:
    """Yield the facts about a session that has started.

    Args:
        session_id: the session.
        title: its title, or None.
        recorder: the recorder of this process; None if it does not record, as in a replay.
    """
    if title is not None:
        yield title_fact(session_id, title, "program")
    if recorder is not None:
        state = git_state(session_id, git_mode(recorder.options), "start")
        if state is not None:
            yield state


__all__ = ["start_notes", "title_text"]
