"""Live runs: a marked test runs against the real provider, and can be recorded as a new fixture.

The test does not change. Nothing is answered from the fixture or compared with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentobs import runtime
from agentobs.errors import UsageError
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from agentobs.recording.options import Options
from agentobs.recording.session import start_recorder, stop_recorder
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import ModelExchange, Recording
from replay.fixture.format import FORMAT, Fixture
from replay.playback.replayer import Entry, Replayer
from replay.scenario.next_step import Next
from replay.scenario.replay_options import STRICT, ReplayOptions


class LiveRun(Replayer):
    """Has the interface of a replay, but runs the agent live."""

    def __enter__(self) -> LiveRun:
        """Start receiving records, without answering anything."""
        with self._opening() as stack:
            stack.enter_context(runtime.replaced(consumer=self._state.collect, continues_live=True))
        return self

    def run(self, function: Entry = None, /, *args: Any, **kwargs: Any) -> Any:
        """Run the agent live, and return its result or raise its exception."""
        result, error = self._run_agent(self._call(function, args, kwargs))
        return _outcome(result, error)

    async def arun(self, function: Entry = None, /, *args: Any, **kwargs: Any) -> Any:
        """Like `run`, from inside an event loop."""
        result, error = await self._arun_agent(self._call(function, args, kwargs))
        return _outcome(result, error)

    def until(self, *args: Any, **kwargs: Any) -> Next:
        """Reject the call: a test that stops at a recorded turn cannot run live.

        Raises:
            UsageError: always.
        """
        raise self._no_turns()

    async def auntil(self, *args: Any, **kwargs: Any) -> Next:
        """Reject the call, like `until`."""
        raise self._no_turns()

    def reach(self, *args: Any, **kwargs: Any) -> None:
        """Reject the call, like `until`."""
        raise self._no_turns()

    async def areach(self, *args: Any, **kwargs: Any) -> None:
        """Reject the call, like `until`."""
        raise self._no_turns()

    def until_change(self, *args: Any, **kwargs: Any) -> Next:
        """Reject the call, like `until`."""
        raise self._no_turns()

    async def auntil_change(self, *args: Any, **kwargs: Any) -> Next:
        """Reject the call, like `until`."""
        raise self._no_turns()

    def check(self) -> None:
        """Do nothing, because nothing is compared."""

    def _no_turns(self) -> UsageError:
        return UsageError(
            "a test that stops at a recorded turn cannot run live",
            where=str(self.fixture.path),
            todo="Deselect it when you use --replay-live",
        )


class RecordingRun(LiveRun):
    """Runs a test live and records it, so that its fixture can be updated.

    A test that stops at a turn is not recorded, but replayed from the fixture as usual.
    """

    def __init__(
        self, fixture: Fixture, home: Path, options: ReplayOptions = STRICT, *, is_new: bool = False
    ) -> None:
        """Prepare to record into `home`.

        Args:
            fixture: the existing fixture, or an empty one.
            home: where to record.
            options: the options of the replay.
            is_new: whether there is no fixture yet.
        """
        super().__init__(fixture, options)
        self.is_new = is_new
        self._home, self._replays = home, False

    def __enter__(self) -> RecordingRun:
        """Start recording into the home. If another recording is in progress, end it first."""
        stop_recorder()
        start_recorder(str(self._home), Options(redactors=tuple(self.options.redactors)))
        super().__enter__()
        return self

    def stop(self) -> None:
        """End the recording, or the replay if this run has become a replay."""
        is_open = self._opened is not None
        super().stop()
        if is_open and not self._replays:
            stop_recorder()

    def until(self, *args: Any, **kwargs: Any) -> Next:
        """Answer from the existing fixture, up to the turn."""
        self._replay()
        return Replayer.until(self, *args, **kwargs)

    async def auntil(self, *args: Any, **kwargs: Any) -> Next:
        """Like `until`, from inside an event loop."""
        self._replay()
        return await Replayer.auntil(self, *args, **kwargs)

    def reach(self, *args: Any, **kwargs: Any) -> None:
        """Answer from the existing fixture, up to the turn."""
        self._replay()
        Replayer.reach(self, *args, **kwargs)

    async def areach(self, *args: Any, **kwargs: Any) -> None:
        """Like `reach`, from inside an event loop."""
        self._replay()
        await Replayer.areach(self, *args, **kwargs)

    def until_change(self, *args: Any, **kwargs: Any) -> Next:
        """Answer from the existing fixture until the agent does something different."""
        self._replay()
        return Replayer.until_change(self, *args, **kwargs)

    async def auntil_change(self, *args: Any, **kwargs: Any) -> Next:
        """Like `until_change`, from inside an event loop."""
        self._replay()
        return await Replayer.auntil_change(self, *args, **kwargs)

    def check(self) -> None:
        """Compare with the recording if this run has become a replay."""
        if self._replays:
            Replayer.check(self)

    def _replay(self) -> None:
        if self.is_new:
            raise self._no_turns()
        self.stop()
        self._replays = True
        Replayer.__enter__(self)

    def recorded(self) -> Recording | None:
        """End the recording and return it; None if this run has become a replay.

        Raises:
            UsageError: no session was recorded, or it is unclear which of several sessions belongs to the fixture.
        """
        self.stop()
        if self._replays:
            return None
        recorded = [each for each in _sessions(self._home) if _has_model_calls(each)]
        same_name = [each for each in recorded if each.name == self.fixture.name]
        candidates = recorded if len(recorded) == 1 else same_name
        if len(candidates) != 1:
            names = ", ".join(sorted(each.name for each in recorded)) or "none"
            raise UsageError(
                f"the test recorded {len(recorded)} sessions with model calls ({names}), but a fixture contains "
                "only one",
                where=str(self.fixture.path),
                todo="Open one session in the test, or give one of its sessions the name of the fixture",
            )
        return candidates[0]


def empty(path: Path) -> Fixture:
    """Return an empty fixture, for a test whose fixture does not exist yet."""
    keys = ("entry", "arguments", "outcome", "reason", "signature")
    header = {"agentobs_fixture": FORMAT, "name": path.parent.name, **dict.fromkeys(keys)}
    return Fixture(path, header, [], [])


def _sessions(path: Path) -> Iterator[Recording]:
    home = existing_home(path)
    segments = segment_ids(home)
    for segment_id in segments:
        for line in read(facts_path(home, segment_id)):
            if isinstance(line, Line) and line.kind == "session_starts":
                yield read_session(home, json.loads(line.payload)["session_id"], segments)


def _has_model_calls(recording: Recording) -> bool:
    return any(isinstance(exchange, ModelExchange) for exchange in recording.exchanges)


def _outcome(result: Any, error: BaseException | None) -> Any:
    if error is not None:
        raise error
    return result
