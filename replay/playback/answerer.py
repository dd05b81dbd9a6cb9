"""The answerer: compares live requests with the recording and answers them from it.

Requests to the provider come from the transport, all other questions from the agent loop's world. A request that does
not match the recorded one is a divergence, which is raised in the code that made the request.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from agentobs import world
from agentobs.determinism.multiprocessing_children import refuse
from agentobs.errors import UsageError
from agentobs.provider.registry import dialect_of
from agentobs.recording.wire.responses import ForwardRequest
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
from agentobs.runtime import ServedAnswer
from agentobs.world import World, no_message
from replay.analysis.divergence_report import mismatch, tool_mismatch, world_mismatch
from replay.comparison.placeholders import has_masked
from replay.divergence.divergence import (
    DivergenceError,
    NotAffordableError,
    NotSendableError,
    ReplayEnded,
    ReplayStopped,
)
from replay.fixture.body_parts import value_of
from replay.fixture.format import RecordedRequest, RecordedTool
from replay.matching.interaction_ends import is_of_abandoned_agent
from replay.matching.lane import Lane, Mismatch, cleaned_body
from replay.matching.tool_calls import same_answer, same_call
from replay.matching.world_answers import (
    RecordedAbort,
    current_lane,
    missing_answer,
    same_question,
    wait_for_cancellation,
)
from replay.playback.completion_order import ResponseGate
from replay.playback.function_calls import verified_result_mismatch
from replay.playback.hang import awaited_ends, ended_out_of_order
from replay.progress.answer_delivery import delivered_response
from replay.progress.replay_state import ReplayState
from replay.scenario.departure import is_reaction, is_refused
from replay.scenario.fork_plan import message_ids
from replay.scenario.live_changes import LiveChanges
from replay.scenario.tool_policies import Policy, policy_of

REFUSALS_MAX = 50
"""The number of unanswered requests that raise an `Exception`; the next request raises `ReplayEnded`. Our choice."""


class Answerer:
    """Answers requests to the provider, tool calls, and all other questions of the agent loop."""

    def __init__(self, state: ReplayState) -> None:
        """Answer from the recording in `state`."""
        self._state = state
        self._setup, self._exchanges = state.setup, state.exchanges
        self._path, self._findings = state.path, state.findings
        self._repetitions = 0
        """The number of requests that were made after a divergence."""
        self._recorded_paths = {
            dialect_of(each.path).route(each.path): each.path
            for each in reversed(state.setup.fixture.requests)
        }
        """The recorded paths by their route; of several paths with the same route, the first one."""
        fork = state.setup.options.fork
        self._changes = LiveChanges(fork, state.setup.fixture) if fork else None
        self._replayed_messages = (
            message_ids(state.setup.fixture, fork.turn) if fork else frozenset[str]()
        )
        """The IDs of the messages that a fork replays, which cost nothing."""

    def answer(self, question: Question, place: Place) -> Answer:
        """Answer a request to the provider from the recording."""
        if world.process_id() != self._state.agent.process_id:
            return refuse(self._state.agent.foreign_requests_file, question, place)
        with self._state.lock:
            self._check_divergence()
            question = self._with_recorded_path(question)
            lane = self._exchanges.lane(place.lane)
            if self._path.is_cut_off(lane):
                raise self._cut_off()
            found = (
                None if self._is_later_turn(lane, question) else self._state.match(lane, question)
            )
            if self._path.has_ended(lane) and not isinstance(found, RecordedRequest):
                return self._later_response(question)
            if isinstance(found, Mismatch) and self._is_past_abandonment(lane, found.expected):
                return Answer(None, {}, (), "cancelled")
            if not isinstance(found, RecordedRequest):
                assert found is not None
                if self._departs(question, found):
                    return self._later_response(question)
                raise self._findings.diverge(mismatch(self._state, lane, question, found))
            faults = self._exchanges.faults
            faulty = faults.response(found, lane) if faults.all else None
            if faulty is not None:
                lane.put_back(found)
                return faulty
            self._state.requests.note_answered(question, found)
            self._setup.move_clock(found, 0)
            if self._path.is_live:
                # The tool calls in this response are the first that run live.
                self._state.agent.go_live()
            # Only the agent loop of agentobs names its turn. It waits by the world's clock, so that the recorded
            # headers determine its retries.
            response = delivered_response(
                found,
                self._setup.options,
                is_agent_loop=place.turn is not None,
                is_stopped=self._exchanges.answers.was_stopped_in(place.lane),
            )
            return self._with_gate(
                response, found, lane, is_agent_loop=place.interaction_id is not None
            )

    def _with_recorded_path(self, question: Question) -> Question:
        """Return a request with its recorded path; the recording may have another base URL."""
        path = question.path
        recorded = self._recorded_paths.get(dialect_of(path).route(path), path)
        if recorded == path or any(each.path == path for each in self._setup.fixture.requests):
            return question
        note = (
            f"{self._setup.fixture.name}: the path of the base URL differs from the recording: requests to {path} are "
            f"compared with those to {recorded}"
        )
        if note not in self._findings.notes:
            self._findings.notes.append(note)
        return dataclasses.replace(question, path=recorded)

    def _check_divergence(self) -> None:
        """Raise the first divergence again, or, if the agent has caught it too often, `ReplayEnded`.

        Raises:
            DivergenceError: there is a divergence.
            ReplayEnded: the divergence was raised too often.
        """
        if self._findings.divergence is not None:
            self._repetitions += 1
        if self._repetitions > REFUSALS_MAX:
            raise ReplayEnded("the agent repeats its requests after a divergence")
        self._findings.raise_first()

    def _with_gate(
        self, response: ServedAnswer, ask: RecordedRequest, lane: Lane, *, is_agent_loop: bool
    ) -> ServedAnswer:
        """Return a response, held until the responses that ended before it have ended; most responses are not held."""
        was_cancelled = response.ending == "cancelled" and not is_agent_loop
        cancelled_at_ms = ask.cancelled_at_ms if was_cancelled else None
        is_free = (
            not (ask.starts_after or ask.ends_after or ask.ended_jobs)
            and ask.last_issued_before_end is None
        )
        if is_free and cancelled_at_ms is None:
            # The thread that reads this response may block the reader of another response.
            self._state.requests.threads[ask.number] = threading.get_ident()
            return response

        def error(missing: list[int]) -> DivergenceError:
            with self._state.lock:
                return self._findings.diverge(ended_out_of_order(self._state, lane, ask, missing))

        gate = ResponseGate(
            self._state,
            lane,
            ask,
            cancelled_at_ms=cancelled_at_ms,
            describe=functools.partial(awaited_ends, lane, ask),
            error=error,
        )
        return dataclasses.replace(response, gate=gate)

    def _cut_off(self) -> Exception:
        return ReplayStopped(f"the session was frozen up to turn {self._setup.fixture.until_turn}")

    def stopped(self) -> Exception:
        """Return the error for a client that reads past the point where it stopped reading in the recording."""
        return ReplayStopped("in the recording, the client stopped reading here")

    def _is_past_abandonment(self, lane: Lane, expected: object = None) -> bool:
        """Return whether an agent that was abandoned in the recording is now past that point."""
        return expected is None and is_of_abandoned_agent(self._setup.fixture, lane.name)

    def _departs(self, question: Question, mismatch: Mismatch) -> bool:
        """Record that the agent leaves the recorded path with this request, if it may; return whether it leaves."""
        departure, due = self._path.departure, mismatch.expected
        if departure is None:
            return False
        if not departure.has_happened and self._exchanges.main.turns < departure.failing_turn:
            if mismatch.elsewhere is not None:
                return False
            if due is not None and not (
                is_refused(due) or is_reaction(due, *self._setup.parsed_bodies(due, question))
            ):
                return False
        return self._path.depart(due)

    def _later_response(self, question: Question) -> Answer:
        """Return the scripted response to a request after the recorded path.

        Raises:
            ForwardRequest: a fork sends the request to the provider.
            ReplayStopped: the script has no response for the request.
        """
        path, fork = self._path, self._setup.options.fork
        path.later_requests.append((question.path, cleaned_body(question, self._setup.renaming)))
        if fork is not None:
            if has_masked(question.body):
                raise self._not_sendable(question)
            assert self._changes is not None
            raise ForwardRequest(self._changed(question), self._changes.path)
        number = len(path.later_requests)
        if number > len(path.script) + REFUSALS_MAX:
            raise ReplayEnded(
                f"the agent keeps making requests that a replay does not answer ({number} so far)"
            )
        if number > len(path.script):
            raise ReplayStopped(f"replayed until turn {path.last_turn}")
        body = value_of(question.body)
        return path.script[number - 1].answer(number, body if isinstance(body, dict) else {})

    def _changed(self, question: Question) -> bytes | None:
        """Return the changed body of a live request; None if it is not changed.

        Raises:
            NotAffordableError: its cost could exceed the limit.
        """
        assert self._changes is not None
        try:
            return self._changes.applied(question.path, question.body)
        except UsageError as error:
            text = {"where": error.where, "todo": error.todo}
            raise self._findings.reject(NotAffordableError(error.found, **text)) from error

    def _not_sendable(self, question: Question) -> Exception:
        """Return the error for a request that contains sealed values whose organization IDs were removed."""
        return self._findings.reject(
            NotSendableError(
                f"a request to {question.path.partition('?')[0]} contains a signed or encrypted value whose "
                "organization ID was removed. It was not sent, because the provider would reject it",
                where=str(self._setup.fixture.path),
                todo="Fork from the home that holds the recorded session (agentobs --home DIR fork ...)",
            )
        )

    def _is_later_turn(self, lane: Lane, question: Question) -> bool:
        """Return whether a request starts a turn after the end of the recorded path."""
        is_message = dialect_of(question.path).makes_turns(question.path)
        return self._path.has_ended(lane) and is_message

    def world(self, live: World) -> World:
        """Return the world that answers from the recording instead of the live one."""

        def stop_tool(tool_use_id: str) -> None:
            if (current_lane(), tool_use_id) in self._exchanges.calls.live:
                live.stop_tool(tool_use_id)

        async def message_arrived() -> None:
            # The recording has the results of calls that a message has stopped.
            await (live.message_arrived if self._path.is_live else no_message)()

        def is_billed(message: Mapping[str, Any]) -> bool:
            message_id = message.get("id")
            if not message_id:
                return self._path.is_live
            return message_id not in self._replayed_messages

        self._state.observations.function_finders.append(live.tool_function)
        return dataclasses.replace(
            live,
            sections=self._keep_sections,
            run_tool=self._tool_runner(live),
            tool_name=self._recorded_tool_name,
            stop_tool=stop_tool,
            ask=functools.partial(self._ask, live),
            message_arrived=message_arrived,
            abort=RecordedAbort(self._exchanges.answers),
            is_billed=is_billed if self._replayed_messages else live.is_billed,
            sleep=functools.partial(self._sleep, live),
            wiring=None,
        )

    async def _sleep(self, live: World, seconds: float) -> None:
        """Sleep in virtual time, or in real time after everything has gone live."""
        await (live if self._path.is_live else self._setup.ambient).sleep(seconds)

    async def _ask(self, live: World, question: WorldQuestion) -> Any:
        """Answer a question of the agent loop that is neither a model request nor a tool call."""
        with self._state.lock:
            self._findings.raise_first()
            name = current_lane()
            lane = self._exchanges.lane(name)
            recorded = self._exchanges.answers.find(name, question)
            if recorded is not None and same_question(
                recorded.question, question, self._setup.renaming
            ):
                return self._exchanges.answers.use(recorded)
            has_ended = self._path.has_ended(lane)
            answer: Awaitable[Any]
            if has_ended and self._setup.options.fork is not None:
                answer = live.ask(question)
            elif recorded is None and question.kind in SILENT:
                return missing_answer(question.kind)
            elif has_ended or self._path.depart():
                # After the recorded path, no question is answered, in particular no request for approval.
                answer = world.answer_unattended(question)
            elif recorded is None and self._is_past_abandonment(lane):
                describe = functools.partial(world_mismatch, self._state, lane, question, None)
                answer = wait_for_cancellation(
                    lambda: self._findings.diverge(describe()), self._findings.raise_first
                )
            else:
                raise self._findings.diverge(world_mismatch(self._state, lane, question, recorded))
        return await answer

    def _keep_sections(self, sections: Sequence[tuple[str, str]]) -> None:
        """Keep the sections of the next system prompt of a lane."""
        self._state.observations.sections[current_lane()] = sections

    def _recorded_tool_name(self, name: str, former: Sequence[str]) -> str:
        """Return the recorded name of a tool: its name if that was recorded, otherwise the first recorded alias."""
        recorded = self._setup.fixture.tool_names
        if not former or name in recorded:
            return name
        return next((old for old in former if old in recorded), name)

    def _tool_runner(self, live: World) -> Any:
        async def run_tool(question: ToolQuestion) -> ToolAnswer:
            self._findings.raise_first()
            lane, calls = current_lane(), self._exchanges.calls
            recorded = calls.find(lane, question.tool_use_id)
            if (failed := self._injected_failure(question, recorded)) is not None:
                return calls.note_answer(lane, question.tool_use_id, failed)
            policy = self._policy(live, question, recorded)
            if policy == "execute":
                return await self._run_live(live, lane, question, recorded)
            describe = functools.partial(tool_mismatch, self._state, lane, question)
            if recorded is None and self._is_past_abandonment(self._exchanges.lane(lane)):
                await wait_for_cancellation(
                    lambda: self._findings.diverge(describe(None)), self._findings.raise_first
                )
            if (
                recorded is None
                or recorded.answer.outcome in MADE_BY_THE_LOOP
                or not same_call(recorded.question, question, self._setup.renaming)
            ):
                if self._path.depart():
                    self._path.check_call_after_departure(
                        question.name, is_mutating=live.is_mutating(question.name)
                    )
                    return await self._run_live(live, lane, question, recorded)
                raise self._findings.diverge(describe(recorded))
            if policy == "verify":
                result = await self._run_live(live, lane, question, recorded)
                if not same_answer(recorded.answer, result, self._setup.renaming):
                    raise self._findings.diverge(
                        verified_result_mismatch(self._state, lane, recorded, result)
                    )
                return result
            calls.mark_matched(recorded)
            return calls.note_answer(lane, question.tool_use_id, recorded.answer)

        return run_tool

    def _injected_failure(
        self, question: ToolQuestion, recorded: RecordedTool | None
    ) -> ToolAnswer | None:
        """Return the failure that an injected fault causes for a call; None if there is no such fault."""
        turn = self._exchanges.calls.turn_of(recorded) if recorded is not None else None
        if (answer := self._exchanges.faults.tool_result(question.name, turn)) is not None:
            self._exchanges.calls.mark_matched(recorded)
        return answer

    async def _run_live(
        self, live: World, lane: str, question: ToolQuestion, recorded: RecordedTool | None
    ) -> ToolAnswer:
        """Run a tool live, and return its result."""
        calls = self._exchanges.calls
        calls.live.add((lane, question.tool_use_id))
        calls.mark_matched(recorded)
        return calls.note_answer(lane, question.tool_use_id, await live.run_tool(question))

    def _policy(self, live: World, question: ToolQuestion, recorded: RecordedTool | None) -> Policy:
        if recorded is not None and self._path.is_before_live_turns(recorded):
            return "replay"
        name = question.name
        is_mutating = live.is_mutating(name)
        if recorded is None and self._path.later_requests:
            self._state.check_later_call(name, is_mutating=is_mutating)
            return "execute"  # a call in a response that was not recorded
        return policy_of(self._path.tools, name, is_mutating=is_mutating)
