"""Joining: a program that this one starts takes part in its session, by two variables of the environment.

    subprocess.run([...], env={**mine, **agentobs.child_environment("researcher")})

`AGENTOBS_JOIN` names the session, the lane and where what is said may go; in a replay `AGENTOBS_ANSWERS` names the
socket over which the child is answered, and a word that only it knows. Both are read once and taken out of the
environment, so that what the child starts by itself does not join. What is not exactly of this form is not there.
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
    """Where what is said may go, as in the session of its parent."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Where a replay answers the processes that its agent starts."""

    path: str
    """The Unix socket."""
    token: str
    """What whoever asks must know."""


_lock = threading.Lock()
_read = False
_joined: Joined | None = None
_asked: Channel | None = None
_open_channel: Callable[[], Channel] | None = None
_counts: dict[str, Counter[tuple[str, str]]] = {}
"""How many programs were started under a name in a lane, by session, until that ends."""


def variables(
    here: Place | None, name: str, home: str | None, content: str, given: Ambient | None
) -> dict[str, str]:
    """Return the variables for a program that takes part under a name in the lane at `here`.

    Raises:
        UsageError: the name does not fit into one of a lane.
    """
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name[:80]!r} cannot name a lane",
            where="child_environment",
            todo="Use at most 48 letters, digits and ._-",
        )
    if here is None:
        return {}
    with _lock:
        counts = _counts.setdefault(here.session_id, Counter())
        counts[here.lane, name] += 1
        number = counts[here.lane, name]
    lane = lane_under(here.lane, name if number == 1 else f"{name}.{number}")
    drawn = (
        "-" if given is None else ",".join(map(str, (given.started_ns, given.zone_s, *given.seed)))
    )
    told = {JOIN: f"{here.session_id} {lane} {content} {drawn}", **tracing.trace_environment(here)}
    if home is not None:
        told[HOME] = home
    if _open_channel is not None:
        channel = _open_channel()
        told[ANSWERS] = f"{channel.token} {channel.path}"
    return told


@contextlib.contextmanager
def answered_over(open_channel: Callable[[], Channel]) -> Iterator[None]:
    """Have the programs that are started from now on be answered over a channel, opened with the first."""
    global _open_channel
    before, _open_channel = _open_channel, open_channel
    _counts.clear()
    try:
        yield
    finally:
        _open_channel = before
        _counts.clear()


def forget(session_id: str) -> None:
    """Forget which programs a session started: it has ended."""
    with _lock:
        _counts.pop(session_id, None)


def joined() -> Joined | None:
    """Return what this process takes part in; None where it is alone."""
    _look()
    return _joined


def channel() -> Channel | None:
    """Return where this process is answered; None where it asks the provider."""
    _look()
    return _asked


def _look() -> None:
    """Read the variables once."""
    global _read, _joined, _asked
    if _read:
        return
    with _lock:
        if _read:
            return
        told, asked = world.taken_environ(JOIN), world.taken_environ(ANSWERS)
        parts = (told or "").split(" ")
        if len(parts) == 4 and _ID.fullmatch(parts[0]) and is_label(parts[1]):
            session_id, lane, content, drawn = parts
            if content in _MODES:
                _joined = Joined(Place(session_id, lane=lane, query_source="sub_agent"), content)
                if _DRAWN.fullmatch(drawn):
                    started_ns, zone_s, *seed = map(int, drawn.split(","))
                    # In a replay the parent moves the clock.
                    known = Ambient(tuple(seed), started_ns, zone_s, moves=not asked)
                    ambient.begin(session_id, known)
        token, _, path = (asked or "").partition(" ")
        if token and path and _joined is not None:
            _asked = Channel(path, token)
        _read = True
