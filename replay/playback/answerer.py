"""Answering: live requests are compared with the recording and answered from it.

Requests to the provider come from the transport, all other questions from the agent loop's world. A request that is not
the recorded one is a divergence, which is raised where it happens.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from agentobs import world
from agentobs.determinism.multiprocessing_children import note
from agentobs.provider.registry import dialect_of
from agentobs.recording.wire.responses import Onward
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
from replay.analysis.divergence_report import mismatch, tool_mismatch, world_mismatch
from replay.comparison.placeholders import has_masked
from replay.divergence.divergence import (
    DivergenceError,
    NotSendableError,
    ReplayEnded,
    ReplayStopped,
)
from replay.fixture.body_parts import value_of
from replay.fixture.format import Ask, RecordedTool
from replay.matching.interaction_ends import went_beside
from replay.matching.lane import Lane, Mismatch, asked_body
from replay.matching.tool_calls import same_answer, same_call
from replay.matching.world_answers import (
    RecordedAbort,
    lane_here,
    never,
    same_question,
    silence,
)
from replay.playback.completion_order import Turn
from replay.playback.function_calls import verified_otherwise
from replay.playback.hang import out_of_turn, waits_for
from replay.progress.answer_delivery import answer_of
from replay.progress.replay_state import State, key_of
from replay.scenario.departure import is_reaction, is_refused
from replay.scenario.fork_plan import message_ids
from replay.scenario.tool_policies import Policy, policy_of

REFUSALS_MAX = 50
"""How many requests after the recorded path raise an `Exception`; no agent retries after the next one. Our choice."""


class Answering:
    """Answers for the provider, the tools and all other sources."""

    def __init__(self, state: State) -> None:
        """Answer from the recording in `state`."""
        self._state = state
        self._repeats = 0
        """How many requests were made after a divergence."""
        fork = state.options.fork
        self._replayed = message_ids(state.fixture, fork.turn) if fork else frozenset[str]()
        """The IDs of the messages that a fork replays, which cost nothing."""

    def answer(self, question: Question, place: Place) -> Answer:
        """Answer a request to the provider from the recording."""
        if world.process_id() != self._state.process_id:
            return note(self._state.stranger, question, place)
        with self._state.lock:
            self._check_divergence()
            lane = self._state.lane(place.lane)
            if self._state.has_ended(lane):
                raise self._cut_off()
            taken = self._state.take(lane, question) if not self._is_next(lane, question) else None
            if self._state.is_past(lane) and not isinstance(taken, Ask):
                return self._beyond(question)
            if isinstance(taken, Mismatch) and self._is_beyond(lane, taken.expected):
                return Answer(None, {}, (), "cancelled")
            if not isinstance(taken, Ask):
                assert taken is not None
                if self._departs(question, taken):
                    return self._beyond(question)
                raise self._state.error(mismatch(self._state, lane, question, taken))
            made = self._state.faults.answer(taken, lane) if self._state.faults.all else None
            if made is not None:
                lane.put_back(taken)
                return made
            self._state.numbers[key_of(question)] = taken.number
            self._state.move(taken, 0)
            if self._state.is_live and self._state.clock is not None:
                self._state.clock.go_live()  # the calls of this answer are the first that run for real
            # The agent loop of agentobs, which alone names its turn, waits by the world's clock: the headers decide how
            # it continues.
            answer = answer_of(
                taken,
                self._state.options,
                is_ours=place.turn is not None,
                stops=self._state.answers.stops_in(place.lane),
            )
            return self._in_turn(answer, taken, lane, is_ours=place.interaction_id is not None)

    def _check_divergence(self) -> None:
        """Raise the first divergence again; if an agent has caught it too often, raise an error that it does not catch.

        Raises:
            DivergenceError: there is a divergence.
            ReplayEnded: the divergence was raised too often.
        """
        if self._state.divergence is not None:
            self._repeats += 1
        if self._repeats > REFUSALS_MAX:
            raise ReplayEnded("the agent repeats its requests after a divergence")
        self._state.raise_divergence()

    def _in_turn(self, answer: Answer, ask: Ask, lane: Lane, *, is_ours: bool) -> Answer:
        """Return an answer that is held until the answers that ended before it have ended; most wait for none."""
        is_stopped = answer.ending == "cancelled" and not is_ours
        cancelled_at_ms = ask.cancelled_at_ms if is_stopped else None
        is_free = (
            not (ask.starts_after or ask.ends_after or ask.ended_jobs)
            and ask.last_issued_before_end is None
        )
        if is_free and cancelled_at_ms is None:
            # Another answer may be held up by the thread that reads this one.
            self._state.asked_in[ask.number] = threading.get_ident()
            return answer

        def error(missing: list[int]) -> DivergenceError:
            with self._state.lock:
                return self._state.error(out_of_turn(self._state, lane, ask, missing))

        says = functools.partial(waits_for, lane, ask)
        gate = Turn(self._state, lane, ask, cancelled_at_ms=cancelled_at_ms, says=says, error=error)
        return dataclasses.replace(answer, gate=gate)

    def _cut_off(self) -> Exception:
        return ReplayStopped(f"the session was frozen up to turn {self._state.fixture.until_turn}")

    def stopped(self) -> Exception:
        """Return the error for a client that continues to read where it had stopped in the recording."""
        return ReplayStopped("the client stopped reading here when this was recorded")

    def _is_beyond(self, lane: Lane, expected: object = None) -> bool:
        """Return whether an agent that was abandoned in the recording has come further now."""
        return expected is None and went_beside(self._state.fixture, lane.name)

    def _departs(self, question: Question, missed: Mismatch) -> bool:
        """Return whether the agent may leave the recorded path with a request that was not recorded."""
        state, due = self._state, missed.expected
        departure = state.departure
        if departure is None:
            return False
        if not departure.has_happened and state.lane("main").turns < departure.failing_turn:
            if missed.elsewhere is not None:
                return False
            if due is not None and not (
                is_refused(due) or is_reaction(due, *state.bodies(due, question))
            ):
                return False
        return state.departs(due)

    def _beyond(self, question: Question) -> Answer:
        """Answer a request after the recorded path: live, from the script, or not at all.

        Raises:
            Onward: it goes to the provider.
            ReplayStopped: there is no answer.
        """
        state = self._state
        state.beyond.append((question.path, asked_body(question, state.renaming)))
        if state.options.fork is not None:
            if has_masked(question.body):
                raise self._not_sendable(question)
            raise Onward(state.options.fork.changed(question.body))
        number = len(state.beyond)
        if number > len(state.script) + REFUSALS_MAX:
            raise ReplayEnded(
                f"the agent keeps making requests that a replay does not answer ({number} so far)"
            )
        if number > len(state.script):
            raise ReplayStopped(f"replayed until turn {state.until}")
        asked = value_of(question.body)
        return state.script[number - 1].answer(number, asked if isinstance(asked, dict) else {})

    def _not_sendable(self, question: Question) -> Exception:
        """Return the error for a request that holds sealed values whose organization IDs were removed."""
        state = self._state
        state.refused = state.refused or NotSendableError(
            f"a request to {question.path.partition('?')[0]} holds a signed or encrypted value whose organization ID "
            "was removed. It was not sent, because the provider would refuse it",
            where=str(state.fixture.path),
            todo="Fork from the home that holds the recorded session (agentobs --home DIR fork ...)",
        )
        return state.refused

    def _is_next(self, lane: Lane, question: Question) -> bool:
        """Return whether this is the request that `until` waits for: the next one for a message."""
        is_message = dialect_of(question.path).makes_turns(question.path)
        return self._state.is_past(lane) and is_message

    def world(self, live: World) -> World:
        """Return the world that answers from the recording instead of the live one."""

        def stop_tool(tool_use_id: str) -> None:
            if (lane_here(), tool_use_id) in self._state.calls.live:
                live.stop_tool(tool_use_id)

        def is_billed(message: Mapping[str, Any]) -> bool:
            known = message.get("id")
            return known not in self._replayed if known else self._state.is_live

        self._state.functions.append(live.tool_function)
        return dataclasses.replace(
            live,
            sections=self._sections,
            run_tool=self._tool_runner(live),
            tool_name=self._tool_name,
            stop_tool=stop_tool,
            ask=functools.partial(self._ask, live),
            abort=RecordedAbort(self._state.answers),
            is_billed=is_billed if self._replayed else live.is_billed,
            sleep=functools.partial(self._sleep, live),
        )

    async def _sleep(self, live: World, seconds: float) -> None:
        """Do not wait, unless everything is live."""
        await (live if self._state.is_live else self._state.given).sleep(seconds)

    async def _ask(self, live: World, question: WorldQuestion) -> Any:
        """Answer other questions of the world than those about model and tools."""
        with self._state.lock:
            self._state.raise_divergence()
            name = lane_here()
            lane, recorded = self._state.lane(name), self._state.answers.of(name, question)
            same = recorded is not None and same_question(
                recorded.question, question, self._state.renaming
            )
            if recorded is not None and same:
                return self._state.answers.give(recorded)
            is_past = self._state.is_past(lane)
            answer: Awaitable[Any]
            if is_past and self._state.options.fork is not None:
                answer = live.ask(question)
            elif recorded is None and question.kind in SILENT:
                return silence(question.kind)
            elif is_past or self._state.departs():
                # After the recorded path there is nobody to ask, in particular no person.
                answer = world.nobody(question)
            elif recorded is None and self._is_beyond(lane):
                known = functools.partial(world_mismatch, self._state, lane, question, None)
                answer = never(lambda: self._state.error(known()), self._state.raise_divergence)
            else:
                raise self._state.error(world_mismatch(self._state, lane, question, recorded))
        return await answer

    def _sections(self, sections: Sequence[tuple[str, str]]) -> None:
        """Keep the sections of the next system prompt of a lane."""
        self._state.sections[lane_here()] = sections

    def _tool_name(self, name: str, former: Sequence[str]) -> str:
        """Return the recorded name of a tool: its own, otherwise the first of its aliases."""
        if not former or name in self._state.fixture.tool_names:
            return name
        return next((old for old in former if old in self._state.fixture.tool_names), name)

    def _tool_runner(self, live: World) -> Any:
        async def run_tool(question: ToolQuestion) -> ToolAnswer:
            self._state.raise_divergence()
            lane = lane_here()
            recorded = self._state.calls.of(lane, question.tool_use_id)
            if (failed := self._failed(question, recorded)) is not None:
                return self._state.calls.ran(lane, question.tool_use_id, failed)
            policy = self._policy(live, question, recorded)
            if policy == "execute":
                return await self._ran(live, lane, question, recorded)
            missing = functools.partial(tool_mismatch, self._state, lane, question, None)
            if recorded is None and self._is_beyond(self._state.lane(lane)):
                await never(lambda: self._state.error(missing()), self._state.raise_divergence)
            if (
                recorded is None
                or recorded.answer.outcome in MADE_BY_THE_LOOP
                or not same_call(recorded.question, question, self._state.renaming)
            ):
                if self._state.departs():
                    self._state.check_departed(
                        question.name, is_mutating=live.is_mutating(question.name)
                    )
                    return await self._ran(live, lane, question, recorded)
                raise self._state.error(tool_mismatch(self._state, lane, question, recorded))
            if policy == "verify":
                answer = await self._ran(live, lane, question, recorded)
                if not same_answer(recorded.answer, answer, self._state.renaming):
                    raise self._state.error(verified_otherwise(self._state, lane, recorded, answer))
                return answer
            self._state.calls.came(recorded)
            return self._state.calls.ran(lane, question.tool_use_id, recorded.answer)

        return run_tool

    def _failed(self, question: ToolQuestion, recorded: RecordedTool | None) -> ToolAnswer | None:
        """Return the answer of a call that is made to fail; None if it is not."""
        turn = self._state.calls.turn_of(recorded) if recorded is not None else None
        if (answer := self._state.faults.tool(question.name, turn)) is not None:
            self._state.calls.came(recorded)
        return answer

    async def _ran(
        self, live: World, lane: str, question: ToolQuestion, recorded: RecordedTool | None
    ) -> ToolAnswer:
        """Run a tool live."""
        self._state.calls.live.add((lane, question.tool_use_id))
        self._state.calls.came(recorded)
        answer = await live.run_tool(question)
        return self._state.calls.ran(lane, question.tool_use_id, answer)

    def _policy(self, live: World, question: ToolQuestion, recorded: RecordedTool | None) -> Policy:
        if recorded is not None and self._state.is_before(recorded):
            return "replay"
        name = question.name
        is_mutating = live.is_mutating(name)
        if recorded is None and self._state.beyond:
            self._state.check_beyond(name, is_mutating=is_mutating)
            return "execute"  # the call of an answer that was not recorded
        return policy_of(self._state.tools, name, is_mutating=is_mutating)
