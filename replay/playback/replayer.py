"""The replayer: runs an agent in a world that answers from a fixture, and finds where it diverges.

While a `Replayer` is open, every instrumented client of the process gets its responses from the fixture, and so do the
tools of the agent loop. Waits take no time, records go to the replay instead of a journal, and network connections are
not allowed. The first divergence is kept: every later request raises it again, and so does the end of the replay, even
if the agent swallowed the exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import EllipsisType, TracebackType
from typing import Any, get_args

from agentobs import runtime, world
from agentobs.determinism import patches
from agentobs.determinism.process_history import in_event_loop
from agentobs.errors import UsageError
from agentobs.recording.lineage import Parent
from agentobs.records.exchanges import ModelExchange
from agentobs.sink import Record
from agentobs.tracing.ambient import Patch
from replay.agent_code import leftover_state
from replay.agent_code.call_sites import Site
from replay.agent_code.entry_call import (
    as_coroutine,
    close_coroutine,
    drain,
    drain_async,
    recorded_call,
)
from replay.analysis.divergence_report import end_reason, missing, network_divergence, report
from replay.analysis.outcome import (
    compared_results,
    is_recorded_error,
    judge_faults,
    judge_outcome,
    judge_path,
    judge_refusal,
    judge_result,
    reason_now,
)
from replay.divergence.agent_error import Raised, raised_of
from replay.divergence.divergence import DivergenceError, ReplayEnded, ReplayStopped
from replay.divergence.divergence_facts import Progress, Suspicion
from replay.fixture.body_parts import value_of
from replay.fixture.failing_turn import failure_of
from replay.fixture.fixture_folder import write_fixture
from replay.fixture.format import Fixture, RecordedRequest
from replay.fixture.trajectory import trajectory
from replay.matching.lane import is_answered
from replay.matching.spine import Drift
from replay.playback.answerer import Answerer
from replay.playback.child_processes import answered_children
from replay.playback.foreign_processes import watched_processes
from replay.playback.function_calls import FunctionCalls
from replay.playback.hang import deadline
from replay.playback.network_guard import no_network
from replay.playback.open_replays import Opened
from replay.playback.retry_delay import backoff
from replay.playback.workspace_run import WorkspaceRun
from replay.progress.acceptance import Accepted
from replay.progress.answer_delivery import speed_factor
from replay.progress.observations import with_body
from replay.progress.replay_state import ReplayState
from replay.scenario.departure import Departure, repeats
from replay.scenario.next_step import Expectation, Next, Step, decisions_of, step_of
from replay.scenario.replay_options import STRICT, ReplayOptions, ToolPolicy
from replay.scenario.script import Scripted
from replay.virtual_time.time_patches import real_time, virtual_time

Entry = Callable[..., Any] | EllipsisType | None
"""How to start the agent: a function; None for the recorded entry point; or `...` from an incomplete generated test."""
KEYS = ("ANTHROPIC_API_KEY",)
"""The variables for the API key. The SDK sends nothing without a key, so a replay sets a dummy key."""


class Replayer:
    """One replay of a fixture; a context manager."""

    def __init__(self, fixture: Fixture, options: ReplayOptions = STRICT) -> None:
        """Prepare to answer from `fixture`."""
        self.fixture, self.options = fixture, options
        self._state = ReplayState(fixture, options)
        self._answerer = Answerer(self._state)
        self.workspace = WorkspaceRun(fixture, options, self._state)
        self._opened: Opened | None = None
        self.notes = self._state.findings.notes
        """Notes for the test report, which appear even if the test passes."""

    def __enter__(self) -> Replayer:
        """Start answering from the fixture.

        Raises:
            UsageError: it is already open, or a replay is open in another thread or task of this process.
        """
        with self._opening() as stack:
            stack.enter_context(self.workspace.opened())
            self._state.findings.leftovers = leftover_state.begin(self.fixture)
            forks = self.options.fork is not None
            functions = FunctionCalls(self._state)
            stack.enter_context(self._answering(functions))
            if not speed_factor(self.options):
                self._state.agent.clock = stack.enter_context(virtual_time())
            else:
                stack.enter_context(real_time())
            patch = get_args(Patch) if self._reports_reads else self._state.setup.ambient.patch
            stack.enter_context(patches.patched(patch))
            stack.enter_context(
                answered_children(self._answerer.answer, functions, self._state.collect)
            )
            stack.enter_context(backoff(speed_factor(self.options)))
            for key in () if forks else KEYS:
                stack.enter_context(world.default_environ(key, "a-made-up-key"))
            if not (forks or self.options.network):
                stack.enter_context(no_network(self._refuse))
            stack.enter_context(deadline(self._state))
            if not forks:
                stack.enter_context(watched_processes(self._state))
        return self

    def _answering(self, functions: FunctionCalls) -> contextlib.AbstractContextManager[object]:
        """Return the context in which everything is answered from the fixture."""
        fork = self.options.fork
        forks = fork is not None
        return runtime.replaced(
            fork_parent=None if fork is None else Parent(self.fixture.session_id, fork.turn),
            answerer=self._answerer.answer,
            overread_error=self._answerer.stopped,
            continues_live=forks,
            consumer=self._state.collect,
            identifies_callers=forks
            or any(each.caller is not None or each.ended_jobs for each in self.fixture.requests),
            functions=functions,
            ambient=self._state.setup.ambient,
            transform=self._answerer.world,
            read_observer=self._state.observations.reads.note
            if self._reports_reads
            else runtime.current().read_observer,
        )

    @property
    def _reports_reads(self) -> bool:
        """Whether reads of clock, IDs and random numbers return real values and are reported."""
        return self.options.patch == "report"

    @contextlib.contextmanager
    def _opening(self) -> Iterator[ExitStack]:
        """Open the replay, and undo all changes if opening it fails."""
        if self._opened is not None:
            raise UsageError(
                "this replay is already open", todo="Create a new Replayer for each use"
            )
        self._opened = Opened()
        try:
            yield self._opened.stack
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop answering; if there was a divergence, raise it in place of any other exception."""
        self.stop()
        if error is None or (
            self._state.findings.divergence is not None and not isinstance(error, DivergenceError)
        ):
            self.check()
            self.workspace.check()

    def stop(self) -> None:
        """Stop answering, without raising a divergence. If replays are nested, all of them stop with the last one."""
        opened, self._opened = self._opened, None
        if opened is not None:
            self._state.agent.is_stopping = True
            opened.end()

    def set_test_id(self, test: str) -> None:
        """Set the pytest ID of the test that runs this replay."""
        self._state.agent.test_id = test

    def run(self, function: Entry = None, /, *args: Any, **kwargs: Any) -> Any:
        """Run the agent as it was run in the recording, and return its result.

        Without a function, the recorded entry point is imported and called with the recorded arguments. If the recorded
        session ended with an exception, the same exception is expected and is not raised.

        Raises:
            DivergenceError: the path differs from the recorded one, or ends at a different point.
            UsageError: the recording does not contain an entry point that can be called.
        """
        result, error = self._run_agent(self._call(function, args, kwargs))
        return self._judge(result, error)

    async def arun(self, function: Entry = None, /, *args: Any, **kwargs: Any) -> Any:
        """Like `run`, from inside an event loop."""
        result, error = await self._arun_agent(self._call(function, args, kwargs))
        return self._judge(result, error)

    def then(self, *answers: Scripted) -> None:
        """Set the model's responses after the turn of `until`; see `replay.scenario.script`."""
        self._state.path.script = answers

    def until(
        self,
        function: Entry = None,
        /,
        *args: Any,
        turn: int,
        tools: ToolPolicy = "recorded",
        expect: Expectation | None = None,
        **kwargs: Any,
    ) -> Next:
        """Replay up to the response of a turn, let the agent continue, and return the next step of the agent.

        The last recorded response that the agent gets is the response of turn `turn` of the main lane. The agent's next
        request to the model is kept, and gets a response only if `then` has defined one.

        Args:
            function: the function that starts the agent; by default the recorded entry point.
            args: its arguments.
            turn: the turn, from 1.
            tools: which tools of the agent loop, and which recorded functions, run live in that turn. In earlier turns,
                no tools run live. The calls of a scripted response run, except calls of mutating tools that are not
                named here. All other tools of foreign agents are part of the agent's code, and always run.
            expect: a condition on the step: it asserts, or returns False if it does not hold.
            kwargs: its arguments by name.

        Raises:
            AssertionError: `expect` does not hold; the message contains the recorded and the live step.
            DivergenceError: the path differs before that turn ends, or the agent ends before it.
            UsageError: the recording has no such turn, or a tool must be named.
        """
        self._state.path.stop_after(turn, tools)
        return self._next_step(turn, *self._run_agent(self._call(function, args, kwargs)), expect)

    async def auntil(
        self,
        function: Entry = None,
        /,
        *args: Any,
        turn: int,
        tools: ToolPolicy = "recorded",
        expect: Expectation | None = None,
        **kwargs: Any,
    ) -> Next:
        """Like `until`, from inside an event loop."""
        self._state.path.stop_after(turn, tools)
        return self._next_step(
            turn, *await self._arun_agent(self._call(function, args, kwargs)), expect
        )

    def reach(self, function: Entry = None, /, *args: Any, turn: int, **kwargs: Any) -> None:
        """Replay up to the response of a turn, and ignore everything that the agent does after it.

        The agent gets the recorded responses as long as it makes the recorded requests. If its prompt or its tool
        results differ, a note states this (see `notes`). If it does something else before that turn, the recorded
        responses no longer apply, and the replay ends there with a note. If no request of the session was answered, the
        agent must make all recorded requests.

        Args:
            function: the function that starts the agent; by default the recorded entry point.
            args: its arguments.
            turn: the turn, from 1.
            kwargs: its arguments by name.

        Raises:
            DivergenceError: the agent ends before that turn, or uses the network.
            Exception: the exception that the agent raised before that turn.
        """
        self._watch_until(turn)
        self._check_reached(turn, *self._run_agent(self._call(function, args, kwargs)))

    async def areach(self, function: Entry = None, /, *args: Any, turn: int, **kwargs: Any) -> None:
        """Like `reach`, from inside an event loop."""
        self._watch_until(turn)
        self._check_reached(turn, *await self._arun_agent(self._call(function, args, kwargs)))

    def until_change(
        self,
        function: Entry = None,
        /,
        *args: Any,
        turn: int,
        tools: ToolPolicy = "live",
        expect: Expectation | None = None,
        **kwargs: Any,
    ) -> Next:
        """Replay until the agent does something that differs from the recording, and return that step.

        The agent gets the recorded responses as long as it makes the recorded requests. From turn `turn` on, its tools
        run live. The returned step is the first request that was not recorded, or the end of the agent. `step.differs`
        is False if the agent does the same as recorded until its end. If a tool result is an error both times, it
        counts as the same even if the text differs. If the prompt differs, or tool results before that turn, a note
        states this (see `notes`), and the agent gets the recorded responses anyway.

        Args:
            function: the function that starts the agent; by default the recorded entry point.
            args: its arguments.
            turn: the turn where the session failed, from 1.
            tools: which tools of the agent loop, and which recorded functions, run live from that turn on. Other tools
                of foreign agents are part of the agent's code, and always run.
            expect: a condition on the step: it asserts, or returns False if it does not hold.
            kwargs: its arguments by name.

        Raises:
            AssertionError: `expect` does not hold.
            DivergenceError: the agent makes no request at all, or uses the network.
            Exception: the exception that the agent raised, unless the recorded session ended with the same one.
        """
        self._state.path.allow_departure(turn, tools)
        return self._departure_step(*self._run_agent(self._call(function, args, kwargs)), expect)

    async def auntil_change(
        self,
        function: Entry = None,
        /,
        *args: Any,
        turn: int,
        tools: ToolPolicy = "live",
        expect: Expectation | None = None,
        **kwargs: Any,
    ) -> Next:
        """Like `until_change`, from inside an event loop."""
        self._state.path.allow_departure(turn, tools)
        return self._departure_step(
            *await self._arun_agent(self._call(function, args, kwargs)), expect
        )

    def _watch_until(self, turn: int) -> None:
        """Set the end of the replayed path: a turn, or the end of the recording if no request was answered."""
        answered = (each for each in self.fixture.requests if is_answered(each))
        if any(each.turn for each in answered if each.lane == "main"):
            self._state.path.stop_after(turn, "recorded")
        self._state.path.allow_departure(turn, "recorded")

    def _check_reached(self, turn: int, result: Any, error: BaseException | None) -> None:
        """Raise if the agent did not reach the response of a turn although it received the recorded responses."""
        del result
        state = self._state
        main, departure = state.exchanges.main, state.path.departure
        has_arrived = main.turns >= turn or not (main.unused or main.turns)
        assert departure is not None
        if not has_arrived:
            self._depart_if_fixed_early(departure, error)
        self._add_notes(departure)
        if not (departure.has_happened or has_arrived):
            state.findings.raise_first(error)
            if error is not None:
                raise error
            summary = f"the agent ended before turn {turn} was answered"
            raise state.findings.diverge(
                report(state, "missing", main, summary, why=end_reason(state))
            )
        self._end_path_here()

    def _depart_if_fixed_early(self, departure: Departure, error: BaseException | None) -> None:
        """If the agent ended successfully before the failing turn, which a fix may cause, treat this as a departure."""
        state, end = self._state, self._state.observations.session_end
        failed = (
            error is not None
            or state.findings.divergence is not None
            or (end and end.outcome != "completed")
        )
        if not failed and state.exchanges.main.turns:
            state.path.depart()

    def _departure_step(
        self, result: Any, error: BaseException | None, expect: Expectation | None
    ) -> Next:
        state, departure = self._state, self._state.path.departure
        assert departure is not None
        found = state.findings.divergence
        if not departure.has_happened or (found and found.kind in ("network", "timing")):
            state.findings.raise_first(error)
        if state.findings.rejection is not None:
            raise state.findings.rejection
        judge_faults(self._state)
        is_expected = bool(state.path.later_requests) or error is None
        if error is not None and not (is_expected or is_recorded_error(state, error)):
            raise error
        main = state.exchanges.main
        if not departure.has_happened and main.unused and not main.used_count:
            raise state.findings.diverge(missing(state, main))
        step = self._changed_step(departure, result, error)
        self._add_notes(departure)
        self._end_path_here()
        if expect is not None:
            step.require(expect)
        return step

    def _changed_step(self, departure: Departure, result: Any, error: BaseException | None) -> Next:
        """Return the step at which the agent left the recorded path; if it never left it, the end of the session."""
        main, turn = self._state.exchanges.main, departure.turn or self._state.exchanges.main.turns
        due = departure.expected
        if due is None and not departure.has_happened:
            due = next(iter(main.unused), None)
        elif due is None and departure.turn:
            due = self._recorded_after(departure.turn)
        failure, recorded = failure_of(self.fixture), self._recorded_end()
        if due is not None:
            recorded = step_of(value_of(self.fixture.body(due.number)))
        return Next(
            self._live_step_instead_of(due, error, is_stopped=departure.is_stopped),
            recorded,
            result=result,
            decisions=tuple(decisions_of(self._state.observations.records, turn)),
            held=tuple(self._state.exchanges.calls.skipped_functions),
            turn=turn,
            failure=failure.text if failure else "",
            remarks=tuple(departure.remarks()),
            is_early=departure.is_early(),
            repeats=due is None
            and bool(self._state.path.later_requests)
            and repeats(self._state.path.later_requests[0][1]),
        )

    def _live_step_instead_of(
        self, due: RecordedRequest | None, error: BaseException | None, *, is_stopped: bool = False
    ) -> Step:
        """Return what the agent does instead of making a recorded request."""
        state = self._state
        if state.path.later_requests:
            body = self.fixture.body(due.number) if due else b""
            return step_of(
                value_of(
                    state.setup.renaming.bytes_with_recorded_names(
                        body, state.path.later_requests[0][1]
                    )
                )
            )
        if is_stopped:
            return step_of(None)
        end, name = state.observations.session_end, type(error).__name__ if error else None
        outcome = end.outcome if end else "failed" if error else "completed"
        reason = reason_now(state, end) if end else name
        return step_of(None, outcome, reason, compared_results(state)[1])

    def _add_notes(self, departure: Departure) -> None:
        """Add notes about a departure, which readers should see even if the test passes."""
        self.notes += [f"{self.fixture.name}: {remark}" for remark in departure.remarks()]
        is_known = leftover_state.NAMED_STATE in self._state.findings.leftovers
        if is_known and (departure.keys or departure.has_happened):
            self.notes.append(f"{self.fixture.name}: {self._state.findings.leftovers}")
        if departure.has_happened and self.suspicions:
            self.notes.append(
                f"{self.fixture.name}: this change may be caused by a response to the wrong one of several identical "
                f"requests: {self.suspicions[0].text}"
            )

    def _end_path_here(self) -> None:
        """End the replay here, without requiring the remaining recorded requests."""
        self._state.findings.divergence = None
        self._state.path.end_here()

    def _next_step(
        self, turn: int, result: Any, error: BaseException | None, expect: Expectation | None
    ) -> Next:
        self._check_arrival(turn, error)
        judge_faults(self._state)
        step = Next(
            self._live_step(turn, error),
            self._recorded_step(turn),
            result=result,
            later=tuple(step_of(value_of(body)) for _, body in self._state.path.later_requests[1:]),
            decisions=tuple(decisions_of(self._state.observations.records, turn)),
            held=tuple(self._state.exchanges.calls.skipped_functions),
            turn=turn,
        )
        if expect is not None:
            step.require(expect)
        return step

    def _check_arrival(self, turn: int, error: BaseException | None) -> None:
        """Raise if the agent did not get the response of a turn."""
        self._state.findings.raise_first(error)
        if self._state.exchanges.main.turns < turn:
            summary = f"the agent ended before turn {turn} was answered"
            raised = (
                f"it raised {type(error).__name__}: {error}" if error else end_reason(self._state)
            )
            lane = self._state.exchanges.main
            short = report(self._state, "missing", lane, summary, why=raised)
            raise self._state.findings.diverge(short) from error

    def _judge(self, result: Any, error: BaseException | None) -> Any:
        """Return the result of a run; raise if its path, end or result differs from the recording."""
        if self.options.fork is not None:
            self._check_arrival(self.options.fork.turn, error)
        self._state.findings.raise_first(error)
        judge_faults(self._state)
        if self._state.path.last_turn is not None:
            if error is not None:
                raise error
            return result
        if error is not None and not is_recorded_error(self._state, error):
            judge_refusal(self._state, error)
            raise error
        self.check()
        judge_outcome(self._state)
        judge_result(self._state)
        self.workspace.note_complete()
        return result

    def _run_agent(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Call the agent, and return its result or the exception with which it ended."""
        self._state.agent.active_count += 1
        try:
            result = call()
            if self._is_generator_value(result):
                return result, None
            if inspect.isgenerator(result):
                result = drain(result, self._consumer_stopped)
            elif inspect.isawaitable(result) or inspect.isasyncgen(result):
                if in_event_loop():
                    close_coroutine(result)
                    raise UsageError(
                        "the agent is async, and an event loop is running",
                        todo="Use arun or auntil",
                    )
                result = asyncio.run(self._await_result(result))
        except (DivergenceError, ReplayStopped, ReplayEnded):
            return None, None
        except UsageError:
            raise
        except (Exception, SystemExit) as error:
            return None, error
        finally:
            self._state.agent.active_count -= 1
        return result, None

    async def _arun_agent(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        self._state.agent.active_count += 1
        try:
            result = call()
            if self._is_generator_value(result):
                return result, None
            if inspect.isgenerator(result):
                return drain(result, self._consumer_stopped), None
            return await self._await_result(result), None
        except (DivergenceError, ReplayStopped, ReplayEnded):
            return None, None
        except (Exception, SystemExit) as error:
            return None, error
        finally:
            self._state.agent.active_count -= 1

    def _is_generator_value(self, result: Any) -> bool:
        """Return whether the result is a generator that the agent returned after its session had ended."""
        if not (inspect.isgenerator(result) or inspect.isasyncgen(result)):
            return False
        return self._state.observations.session_end is not None

    async def _await_result(self, result: Any) -> Any:
        """Return the awaited result of an agent; for an async generator, the list of its values."""
        if inspect.isasyncgen(result):
            return await drain_async(result, self._consumer_stopped)
        return await as_coroutine(result) if inspect.isawaitable(result) else result

    def _consumer_stopped(self) -> bool:
        """Return whether the recorded consumer of a generator stopped here: it stopped, and all requests were made."""
        if self.fixture.header.get("reason") != GeneratorExit.__name__:
            return False
        return not self._state.exchanges.has_unused_requests

    def check(self) -> None:
        """Raise the first divergence, or the first recorded exchange that was not used."""
        self.raise_divergence()
        if self._state.path.last_turn is None:
            judge_path(self._state)

    def raise_divergence(self, cause: BaseException | None = None) -> None:
        """Raise the first divergence again, if there was one. `cause` is the exception that resulted from it."""
        self._state.findings.raise_first(cause)

    def raised(self, error: BaseException) -> Raised:
        """Describe the end of an agent that raised an error: its progress, and the injected faults."""
        lane, faults = self._state.exchanges.main, self._state.exchanges.faults
        injected = tuple(each.text() for each in faults.all if each not in faults.untouched)
        requests = lane.used_count, len(lane.requests)
        secrets = self._state.setup.renaming.secrets
        return raised_of(error, self.fixture.name, requests, injected, self.progress, secrets)

    @property
    def trajectory(self) -> str:
        """The actions of the agent, one line per step, to be compared with a snapshot."""
        return trajectory(self.records)

    @property
    def records(self) -> Iterator[Record]:
        """The records that the agent emitted, in order; a request has the recorded body."""
        for record, number in self._state.observations.records:
            if isinstance(record, ModelExchange) and number is not None:
                yield with_body(record, self.fixture.body(number))
            else:
                yield record

    @property
    def later_requests(self) -> int:
        """The number of requests that were sent after the recorded path."""
        return len(self._state.path.later_requests)

    @property
    def accepted(self) -> tuple[Accepted, ...]:
        """The requests that replaced recorded ones, see `ReplayOptions.accept_from`."""
        acceptance = self._state.path.acceptance
        return () if acceptance is None else tuple(acceptance.changes)

    def accept(self) -> None:
        """Write the fixture with the accepted requests.

        Raises:
            RecordingError: the fixture would contain something that looks like a secret; nothing is written.
            UsageError: the fixture cannot be written.
        """
        if (acceptance := self._state.path.acceptance) is not None:
            write_fixture(
                self.fixture.path, acceptance.fixture_bytes(self._state.exchanges.calls.ran_live())
            )

    @property
    def normalized(self) -> dict[str, int]:
        """The number of values that each normalizer has hidden."""
        return self._state.setup.normalized

    @property
    def drift(self) -> list[Drift]:
        """The differences in requests that were matched by their spine."""
        return [each for lane in self._state.exchanges.lanes.values() for each in lane.drift]

    @property
    def suspicions(self) -> tuple[Suspicion, ...]:
        """Accepted events that may not belong to the recorded path, such as responses matched by order alone."""
        return tuple(self._state.findings.suspicions)

    @property
    def progress(self) -> Progress:
        """The number of recorded requests, tool calls and other questions that were used."""
        return self._state.exchanges.progress

    def _call(
        self, function: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        if self._opened is None:
            raise UsageError("the replay is not open", todo="Write `with replayed:` around it")
        if isinstance(function, EllipsisType):
            raise UsageError(
                "the test does not specify how the agent is started",
                where=str(self.fixture.path),
                todo="Put the function that starts it, and its arguments, in place of the dots",
            )
        if function is None:
            call = recorded_call(self.fixture, kwargs)
            call = functools.partial(call, *args) if args else call
        else:
            call = functools.partial(function, *args, **kwargs)
        leftover_state.observe()
        self._state.agent.call = None if function is None and not (args or kwargs) else call
        return call

    def _refuse(self, address: str, caller: Site | None) -> BaseException:
        return self._state.findings.diverge(network_divergence(self._state, address, caller))

    def _live_step(self, turn: int, error: BaseException | None) -> Step:
        return self._live_step_instead_of(
            self._recorded_after(turn) if self.later_requests else None, error
        )

    def _recorded_step(self, turn: int) -> Step:
        """Return the recorded step after a turn."""
        later = self._recorded_after(turn)
        if later is not None:
            return step_of(value_of(self.fixture.body(later.number)))
        return self._recorded_end()

    def _recorded_after(self, turn: int) -> RecordedRequest | None:
        """Return the next recorded request after a turn, if possible one with the same path as the live request."""
        later = self._state.path.later_requests
        return self._state.exchanges.main.first_after(turn, later[0][0] if later else None)

    def _recorded_end(self) -> Step:
        """Return the end of the recorded session, with its result if results are compared."""
        header = self.fixture.header
        returned = compared_results(self._state)[0]
        return step_of(None, header.get("outcome"), header.get("reason"), returned)
