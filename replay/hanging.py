"""Hanging: an agent from which nothing comes any more is a divergence, never a test that hangs.

A thread watches how long the agent has neither asked nor told anything. After the deadline the divergence is raised in
the main thread wherever that is, also in a wait, by a signal; again and again, until the replay has ended, for what is
raised may be swallowed, and what was hung may hang again on its way out. Other threads and other lanes meet the
divergence at their next question.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from replay.arriving import factor
from replay.divergence import Divergence
from replay.fixture import Ask
from replay.lanes import Lane
from replay.loops import WATCH
from replay.reporting import report
from replay.state import State

SIGNAL: int | None = getattr(signal, "SIGURG", None)
"""What interrupts the main thread: nobody else uses it in Python, and by default it does nothing. Not on Windows."""
AGAIN_SECONDS = 0.5
"""How long after an interruption the next one comes. Our choice."""


def out_of_turn(state: State, lane: Lane, ask: Ask, missing: list[int]) -> Divergence:
    """Describe an answer that waits for others to end which do not come."""
    summary = waits_for(lane, ask, missing)
    why = (
        "requests that were in flight together are started otherwise, or one waits for another, now"
    )
    return report(state, "timing", lane, summary, why=why, between=True, live=True)


def waits_for(lane: Lane, ask: Ask, missing: list[int]) -> str:
    """Say which ends an answer waits for."""
    due = lane.place_of(ask)
    asked = {each.number for each in lane.asks} - {each.number for each in lane.left}
    told = " and ".join(_described(lane, number, number in asked) for number in missing)
    return f"the answer to request {due} waits for {told}; it ended after it when this was recorded"


def _described(lane: Lane, number: int, was_asked: bool) -> str:
    place = next(at for at, ask in enumerate(lane.asks, 1) if ask.number == number)
    return f"request {place} to end" if was_asked else f"request {place}, which was not asked"


def hung(state: State) -> Divergence:
    """Describe an agent from which nothing comes any more."""
    lane = max(state.lanes.values(), key=lambda lane: (bool(lane.left), lane.asked > 0))
    seconds = _seconds(state)
    summary = f"nothing came from the agent for {seconds:g} seconds"
    why = "it waits for something that does not come in a replay"
    return report(state, "timing", lane, summary, why=why, between=not lane.left, live=True)


@contextlib.contextmanager
def deadline(state: State) -> Iterator[None]:
    """Raise a divergence where nothing comes from the agent for as long as the options say."""
    over = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    before: Any = None

    def interrupted(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not over.is_set():
            with state.lock:
                raise state.error(hung(state) if state.divergence is None else state.divergence)

    def watch() -> None:
        seconds = _seconds(state)
        while not over.wait(max(seconds - state.idle_ns() / 1e9, 0.01)):
            if state.idle_ns() >= seconds * 1e9 and _is_due(state):
                _interrupt(state, is_main)
                before = _stands()
                over.wait(AGAIN_SECONDS)
                while not state.running and before != (before := _stands()):
                    over.wait(AGAIN_SECONDS)

    if is_main and SIGNAL is not None:
        before = signal.signal(SIGNAL, interrupted)
    watcher = threading.Thread(target=watch, name=WATCH, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        if is_main and SIGNAL is not None:
            signal.signal(SIGNAL, before if before is not None else signal.SIG_DFL)


def _is_due(state: State) -> bool:
    """Return whether something is still to come from the agent, and not from the provider."""
    is_live = state.options.fork is not None and state.beyond
    is_over = is_live or state.has_stopped
    return not is_over and bool(state.running or any(lane.left for lane in state.lanes.values()))


def _seconds(state: State) -> float:
    """Return the deadline; where answers take their time, the longest one comes on top."""
    pace = factor(state.options)
    longest = max((ask.pieces[-1][1] for ask in state.fixture.asks if ask.pieces), default=0)
    return state.options.deadline_seconds + (longest / 1000 / pace if pace else 0)


def _stands() -> tuple[int, int]:
    """Return where the main thread is; outside of `run`, it is hung as long as it stays there."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)


def _interrupt(state: State, is_main: bool) -> None:
    if is_main and SIGNAL is not None:
        signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
    elif state.divergence is None:
        with state.lock:
            state.error(hung(state))
