"""Answering: what the agent asks is compared with the recording and answered from it.

Questions to the provider come from the wire, all others from the agent loop's world. Whatever is not the recorded
question is a divergence, which is raised where it happens.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from agentobs import world
from agentobs.records.exchanges import (
    MADE_BY_THE_LOOP,
    SILENT,
    Answer,
    Place,
    Question,
    ToolAnswer,
    ToolQuestion,
    WorldQuestion,
)
from agentobs.world import World
from replay.divergence import ReplayStopped
from replay.ends import went_beside
from replay.fixture import Ask, RecordedTool
from replay.lanes import Lane, Mismatch, asked_body
from replay.reporting import mismatch, tool_mismatch, world_mismatch
from replay.state import State
from replay.tools import same_call
from replay.world import RecordedAbort, lane_here, never, same_question, silence, unasked

MESSAGES = "/v1/messages"
"""The path of the questions that make turns."""


class Answering:
    """Answers in the place of the provider, the tools and everybody else."""

    def __init__(self, state: State) -> None:
        """Answer from what `state` says was recorded."""
        self._state = state

    def answer(self, question: Question, place: Place) -> Answer:
        """Answer a question to the provider from the recording."""
        with self._state.lock:
            self._state.raise_divergence()
            lane = self._state.lane(place.lane)
            taken = lane.take(question) if not self._is_next(lane, question) else None
            if self._is_past(lane) and not isinstance(taken, Ask):
                came = asked_body(question, self._state.renaming)
                self._state.captured = self._state.captured or (question.path, came)
                raise ReplayStopped(f"replayed until turn {self._state.until}")
            if isinstance(taken, Mismatch) and self._is_beyond(lane, taken.expected):
                return Answer(None, {}, (), "cancelled")
            if not isinstance(taken, Ask):
                assert taken is not None
                raise self._state.error(mismatch(self._state, lane, question, taken))
            self._state.numbers[id(question.body)] = taken.number
            # Our own loop, which alone says its turn, waits by the world's clock: the headers decide how it goes on.
            return taken.answer if place.turn is not None else _without_wait(taken.answer)

    def stopped(self) -> Exception:
        """Return what a client gets that goes on reading where it had stopped when it was recorded."""
        return ReplayStopped("the client stopped reading here when this was recorded")

    def _is_beyond(self, lane: Lane, expected: object = None) -> bool:
        """Return whether an agent that was left when this was recorded has come further now."""
        return expected is None and went_beside(self._state.fixture, lane.name)

    def _is_past(self, lane: Lane) -> bool:
        """Return whether the recorded path of `until` has ended."""
        return (
            self._state.until is not None
            and lane.name == "main"
            and lane.turns >= self._state.until
        )

    def _is_next(self, lane: Lane, question: Question) -> bool:
        """Return whether this is the question that `until` waits for: the next one for a message."""
        return self._is_past(lane) and question.path.partition("?")[0] == MESSAGES

    def world(self, live: World) -> World:
        """Return the world that answers from the recording in the place of the live one."""

        def stop_tool(tool_use_id: str) -> None:
            if (lane_here(), tool_use_id) in self._state.calls.live:
                live.stop_tool(tool_use_id)

        return dataclasses.replace(
            live,
            run_tool=self._tool_runner(live),
            tool_name=self._tool_name,
            stop_tool=stop_tool,
            ask=self._ask,
            abort=RecordedAbort(self._state.answers),
            sleep=_no_wait,
        )

    async def _ask(self, question: WorldQuestion) -> Any:
        """Answer for the world beside model and tools."""
        with self._state.lock:
            self._state.raise_divergence()
            name = lane_here()
            lane, recorded = self._state.lane(name), self._state.answers.of(name, question)
            same = recorded is not None and same_question(
                recorded.question, question, self._state.renaming
            )
            if recorded is not None and same:
                return self._state.answers.give(recorded)
            if recorded is None and question.kind in SILENT:
                return silence(question.kind)
            if not self._state.fixture.asks_the_world:
                answer = unasked(question)
            elif self._is_past(lane):
                # Beyond the recorded path nobody is there to ask, least of all a person.
                answer = world.nobody(question)
            elif recorded is None and self._is_beyond(lane):
                known = functools.partial(world_mismatch, self._state, lane, question, None)
                answer = never(lambda: self._state.error(known()))
            else:
                raise self._state.error(world_mismatch(self._state, lane, question, recorded))
        return await answer

    def _tool_name(self, name: str, former: Sequence[str]) -> str:
        """Return the name that a tool had when this was recorded: its own, else the first former one."""
        if not former or name in self._state.fixture.tool_names:
            return name
        return next((old for old in former if old in self._state.fixture.tool_names), name)

    def _tool_runner(self, live: World) -> Any:
        async def run_tool(question: ToolQuestion) -> ToolAnswer:
            self._state.raise_divergence()
            lane = lane_here()
            recorded = self._state.calls.of(lane, question.tool_use_id)
            if self._runs_live(question, recorded):
                self._state.calls.live.add((lane, question.tool_use_id))
                self._state.calls.came(recorded)
                answer = await live.run_tool(question)
                return self._state.calls.ran(lane, question.tool_use_id, answer)
            missing = functools.partial(tool_mismatch, self._state, lane, question, None)
            if recorded is None and self._is_beyond(self._state.lane(lane)):
                await never(lambda: self._state.error(missing()))
            if (
                recorded is None
                or recorded.answer.outcome in MADE_BY_THE_LOOP
                or not same_call(recorded.question, question, self._state.renaming)
            ):
                raise self._state.error(tool_mismatch(self._state, lane, question, recorded))
            self._state.calls.came(recorded)
            return self._state.calls.ran(lane, question.tool_use_id, recorded.answer)

        return run_tool

    def _runs_live(self, question: ToolQuestion, recorded: RecordedTool | None) -> bool:
        if (
            self._state.until is not None
            and recorded
            and self._state.calls.turn_of(recorded) < self._state.until
        ):
            return False
        if isinstance(self._state.tools, str):
            return self._state.tools == "live"
        return question.name in self._state.tools


def _without_wait(answer: Answer) -> Answer:
    """Return an answer whose retry takes no time: the recorded wait is replaced by the shortest one."""
    if answer.status is None or answer.status < 400:
        return answer
    headers = {
        k: v for k, v in answer.headers.items() if k not in ("retry-after", "retry-after-ms")
    }
    return dataclasses.replace(answer, headers={**headers, "retry-after-ms": "0.001"})


async def _no_wait(seconds: float) -> None:
    del seconds
    await asyncio.sleep(0)
