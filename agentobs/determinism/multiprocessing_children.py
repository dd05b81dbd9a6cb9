"""Refuse the requests of processes that `multiprocessing` starts during a replay, instead of sending them.

The replay does not answer such a process. The replaying process sets an environment variable, from which the child
learns about the replay. The child writes its requests to a file, which the replaying process reads.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from agentobs import runtime, world
from agentobs.determinism import session_inheritance
from agentobs.determinism.parent_process import replay_error
from agentobs.records.exchanges import Answer, Place, Question

VARIABLE = "AGENTOBS_REPLAYED_BY"
"""The environment variable with the ID of the replaying process and the file for requests: `4711 /tmp/.../requests`."""
REFUSED = (
    "a process that multiprocessing started made a request in a replay, which only answers its own process and "
    "processes that are started with subprocess and agentobs.child_environment"
)

_lock = threading.RLock()
# Without this, the lock would stay locked in a forked child if another thread held it during the fork.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class State:
    """Whether this process refuses requests."""

    def __init__(self) -> None:
        self.held = contextlib.ExitStack()
        """Keeps the refusal active until the process ends."""
        self.is_refusing = False


def refuse_requests() -> bool:
    """Refuse all further requests if a replay started this process with multiprocessing; return whether it did."""
    state = runtime.process.state(State)
    value = world.environ(VARIABLE)
    if value is None or session_inheritance.channel() is not None:
        return False
    process, _, file = value.partition(" ")
    if process == str(world.process_id()):
        return False
    with _lock:
        if not state.is_refusing:
            state.held.enter_context(
                runtime.replaced(answerer=lambda question, place: refuse(file, question, place))
            )
            state.is_refusing = True
    return True


def refuse(file: str, question: Question, place: Place) -> Answer:
    """Report a request to the replaying process, and refuse it.

    Raises:
        ReplayEnd: always.
    """
    del place
    with contextlib.suppress(OSError), Path(file).open("a", encoding="utf-8") as requests:
        requests.write(f"{question.method} {question.path}\n")
    raise replay_error(REFUSED)
