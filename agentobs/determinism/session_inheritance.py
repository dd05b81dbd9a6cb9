"""Session inheritance: two environment variables let a child program take part in the session of its parent.

    subprocess.run([...], env={**environ, **agentobs.child_environment("researcher")})

`AGENTOBS_JOIN` contains the session, the lane, the content mode, and the start and seed of the session's clock and
random numbers. In a replay, `AGENTOBS_ANSWERS` contains a secret token and the socket over which the parent answers the
child. Both variables are read once and removed from the environment, so that processes that the child starts do not
join. A variable that does not have exactly this form is ignored.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentobs import tracing, world
from agentobs.errors import UsageError
from agentobs.records.exchanges import Place, child_lane
from agentobs.records.labels import is_label
from agentobs.runtime import process
from agentobs.tracing import ambient
from agentobs.tracing.ambient import Ambient

JOIN = "AGENTOBS_JOIN"
ANSWERS = "AGENTOBS_ANSWERS"
HOME = "AGENTOBS_HOME"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,48}")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_AMBIENT = re.compile(r"[0-9]{1,20},-?[0-9]{1,6}(,[0-9]{1,6}){1,16}")
_MODES = ("off", "vault", "export")


@dataclass(frozen=True, slots=True)
class Joined:
    """The session in which this process takes part."""

    place: Place
    content: str
    """The content mode, which is the same as in the parent's session."""


@dataclass(frozen=True, slots=True)
class Channel:
    """The socket over which a replay answers the processes that its agent starts."""

    path: str
    """The path of the Unix socket."""
    token: str
    """The secret that a client must send."""


_lock = threading.Lock()


class State:
    """The session that this process has joined, and the programs that its sessions have started."""

    def __init__(self) -> None:
        self.is_read = False
        """Whether the environment variables were read."""
        self.joined: Joined | None = None
        self.parent: Channel | None = None
        self.open_channel: Callable[[], Channel] | None = None
        self.counts: dict[str, Counter[tuple[str, str]]] = {}
        """For each open session, how many programs it has started, by lane and name."""


def variables(
    here: Place | None, name: str, home: str | None, content: str, clock: Ambient | None
) -> dict[str, str]:
    """Return the environment variables for a child program; empty outside of a session.

    Args:
        here: the current place; the program gets a child lane of its lane.
        name: the name of the child lane.
        home: the home; None to leave it out.
        content: the content mode.
        clock: the clock and random numbers of the session; None if the session uses the real ones.

    Raises:
        UsageError: the name cannot be part of a lane.
    """
    state = process.state(State)
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name[:80]!r} cannot name a lane",
            where="child_environment",
            todo="Use at most 48 letters, digits and ._-",
        )
    if here is None:
        return {}
    with _lock:
        counts = state.counts.setdefault(here.session_id, Counter())
        counts[here.lane, name] += 1
        number = counts[here.lane, name]
    lane = child_lane(here.lane, name if number == 1 else f"{name}.{number}")
    ambient_values = (
        "-"
        if clock is None
        else ",".join(map(str, (clock.started_ns, clock.utc_offset_s, *clock.seed)))
    )
    environment = {
        JOIN: f"{here.session_id} {lane} {content} {ambient_values}",
        **tracing.trace_environment(here),
    }
    if home is not None:
        environment[HOME] = home
    if state.open_channel is not None:
        channel = state.open_channel()
        environment[ANSWERS] = f"{channel.token} {channel.path}"
    return environment


@contextlib.contextmanager
def answered_over(open_channel: Callable[[], Channel]) -> Iterator[None]:
    """Answer the programs that are started while the context is open; the first one opens the channel."""
    state = process.state(State)
    before, state.open_channel = state.open_channel, open_channel
    state.counts.clear()
    try:
        yield
    finally:
        state.open_channel = before
        state.counts.clear()


def forget(session_id: str) -> None:
    """Forget which programs a session started, because it has ended."""
    state = process.state(State)
    with _lock:
        state.counts.pop(session_id, None)


def joined() -> Joined | None:
    """Return the session that this process has joined; None if there is none."""
    state = process.state(State)
    _read_variables()
    return state.joined


def channel() -> Channel | None:
    """Return the channel over which a replay answers this process; None if there is none."""
    state = process.state(State)
    _read_variables()
    return state.parent


def _read_variables() -> None:
    """Read the environment variables, once per process."""
    state = process.state(State)
    if state.is_read:
        return
    with _lock:
        if state.is_read:
            return
        join, answers = world.pop_environ(JOIN), world.pop_environ(ANSWERS)
        parts = (join or "").split(" ")
        if len(parts) == 4 and _ID.fullmatch(parts[0]) and is_label(parts[1]):
            session_id, lane, content, ambient_values = parts
            if content in _MODES:
                state.joined = Joined(
                    Place(session_id, lane=lane, query_source="sub_agent"), content
                )
                if _AMBIENT.fullmatch(ambient_values):
                    started_ns, utc_offset_s, *seed = map(int, ambient_values.split(","))
                    # In a replay the parent moves the clock.
                    known = Ambient(tuple(seed), started_ns, utc_offset_s, moves=not answers)
                    ambient.begin(session_id, known)
        token, _, path = (answers or "").partition(" ")
        if token and path and state.joined is not None:
            state.parent = Channel(path, token)
        state.is_read = True
