"""Processes that `multiprocessing` starts during a replay: their requests are refused, never sent to the provider.

Such a process is not answered by the replay, and does not know about it. The replaying process passes the information
in an environment variable, and a file reports requests back to it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from agentobs import runtime, world
from agentobs.determinism import session_inheritance
from agentobs.determinism.parent_process import says
from agentobs.records.exchanges import Answer, Place, Question

VARIABLE = "AGENTOBS_REPLAYED_BY"
"""The process that replays, and the file in which requests are noted: `4711 /tmp/.../requests`."""
REFUSED = (
    "a process that multiprocessing started made a request in a replay, which only answers its own process and those "
    "that are started with subprocess and agentobs.child_environment"
)

_lock = threading.RLock()
# If another thread holds this lock during a fork, it stays locked in the child.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class State:
    """Whether this process refuses requests."""

    def __init__(self) -> None:
        self.held = contextlib.ExitStack()
        """Holds the refusal until the process ends."""
        self.is_refusing = False


def refuse_requests() -> bool:
    """Refuse all requests from now on if a replay started this process by multiprocessing; return whether it did."""
    state = runtime.process.part(State)
    told = world.environ(VARIABLE)
    if told is None or session_inheritance.channel() is not None:
        return False
    process, _, file = told.partition(" ")
    if process == str(world.process_id()):
        return False
    with _lock:
        if not state.is_refusing:
            state.held.enter_context(
                runtime.replaced(answerer=lambda question, place: note(file, question, place))
            )
            state.is_refusing = True
    return True


def note(file: str, question: Question, place: Place) -> Answer:
    """Note a request for the replaying process, and refuse it.

    Raises:
        ReplaySays: always.
    """
    del place
    with contextlib.suppress(OSError), Path(file).open("a", encoding="utf-8") as noted:
        noted.write(f"{question.method} {question.path}\n")
    raise says(REFUSED)
