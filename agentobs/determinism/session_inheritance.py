"""Session inheritance: a program that this one starts takes part in its session, through two environment variables.

    subprocess.run([...], env={**mine, **agentobs.child_environment("researcher")})

`AGENTOBS_JOIN` names the session, the lane and the content mode; in a replay `AGENTOBS_ANSWERS` names the
socket over which the child is answered, and a secret word. Both are read once and removed from the
environment, so that processes started by the child do not join. A variable that does not have exactly this form is
ignored.
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
from agentobs.records.exchanges import Place, lane_under
from agentobs.records.labels import is_label
from agentobs.runtime import process
from agentobs.tracing import ambient
from agentobs.tracing.ambient import Ambient

JOIN = "AGENTOBS_JOIN"
ANSWERS = "AGENTOBS_ANSWERS"
HOME = "AGENTOBS_HOME"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,48}")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DRAWN = re.compile(r"[0-9]{1,20},-?[0-9]{1,6}(,[0-9]{1,6}){1,16}")
_MODES = ("off", "vault", "export")


@dataclass(frozen=True, slots=True)
class Joined:
    """What this process takes part in."""

    place: Place
    content: str
    """The content mode, as in the session of its parent."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Where a replay answers the processes that its agent starts."""

    path: str
    """The Unix socket."""
    token: str
    """The word that a client must know."""


_lock = threading.Lock()


class State:
    """The session that this process belongs to, and the programs that belong to its sessions."""

    def __init__(self) -> None:
        self.is_read = False
        """Whether the variables were read."""
        self.joined: Joined | None = None
        self.parent: Channel | None = None
        self.open_channel: Callable[[], Channel] | None = None
        self.counts: dict[str, Counter[tuple[str, str]]] = {}
        """How many programs were started under a name in a lane, by session, until the session ends."""


def variables(
    here: Place | None, name: str, home: str | None, content: str, given: Ambient | None
) -> dict[str, str]:
    """Return the variables for a program that takes part under a name in the lane at `here`.

    Raises:
        UsageError: the name cannot be part of a lane.
    """
    state = process.part(State)
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
    lane = lane_under(here.lane, name if number == 1 else f"{name}.{number}")
    drawn = (
        "-"
        if given is None
        else ",".join(map(str, (given.started_ns, given.utc_offset_s, *given.seed)))
    )
    told = {JOIN: f"{here.session_id} {lane} {content} {drawn}", **tracing.trace_environment(here)}
    if home is not None:
        told[HOME] = home
    if state.open_channel is not None:
        channel = state.open_channel()
        told[ANSWERS] = f"{channel.token} {channel.path}"
    return told


@contextlib.contextmanager
def answered_over(open_channel: Callable[[], Channel]) -> Iterator[None]:
    """Answer the programs that are started from now on over a channel, which is opened with the first one."""
    state = process.part(State)
    before, state.open_channel = state.open_channel, open_channel
    state.counts.clear()
    try:
        yield
    finally:
        state.open_channel = before
        state.counts.clear()


def forget(session_id: str) -> None:
    """Forget which programs a session started, because it has ended."""
    state = process.part(State)
    with _lock:
        state.counts.pop(session_id, None)


def joined() -> Joined | None:
    """Return what this process takes part in; None if it is independent."""
    state = process.part(State)
    _look()
    return state.joined


def channel() -> Channel | None:
    """Return where this process is answered; None if it uses the provider."""
    state = process.part(State)
    _look()
    return state.parent


def _look() -> None:
    """Read the variables once."""
    state = process.part(State)
    if state.is_read:
        return
    with _lock:
        if state.is_read:
            return
        told, asked = world.taken_environ(JOIN), world.taken_environ(ANSWERS)
        parts = (told or "").split(" ")
        if len(parts) == 4 and _ID.fullmatch(parts[0]) and is_label(parts[1]):
            session_id, lane, content, drawn = parts
            if content in _MODES:
                state.joined = Joined(
                    Place(session_id, lane=lane, query_source="sub_agent"), content
                )
                if _DRAWN.fullmatch(drawn):
                    started_ns, utc_offset_s, *seed = map(int, drawn.split(","))
                    # In a replay the parent moves the clock.
                    known = Ambient(tuple(seed), started_ns, utc_offset_s, moves=not asked)
                    ambient.begin(session_id, known)
        token, _, path = (asked or "").partition(" ")
        if token and path and state.joined is not None:
            state.parent = Channel(path, token)
        state.is_read = True
