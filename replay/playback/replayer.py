"""The replayer: runs an agent in a world that answers from a fixture, and finds where it diverges.

While a `Replayer` is open, every instrumented client of the process is answered from the fixture, tools of
the agent loop answer from it too, waits take no time, records go to the replay instead of a journal,
and no network connection is allowed. The first divergence is kept: every later request raises it again, and
so does the end of the replay, even if the agent swallowed it.
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
from agentobs.recording import lineage
from agentobs.records.exchanges import ModelExchange
from agentobs.sink import Record, sink
from agentobs.tracing.ambient import Patch
from replay.agent_code import leftover_state
from replay.agent_code.call_sites import Site
from replay.agent_code.entry_call import adrained, awaited, drained, let_go, recorded_call
from replay.analysis.divergence_report import end_reason, missing, refused, report
from replay.analysis.outcome import (
    compared_results,
    is_recorded_error,
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
from replay.fixture.fixture_folder import keep
from replay.fixture.format import Ask, Fixture
from replay.fixture.trajectory import trajectory
from replay.matching.lane import is_answered
from replay.matching.spine import Drift
from replay.playback.answerer import Answering
from replay.playback.child_processes import children
from replay.playback.foreign_processes import watched_processes
from replay.playback.function_calls import Functions
from replay.playback.hang import deadline
from replay.playback.network_guard import no_network
from replay.playback.open_replays import Opened
from replay.playback.retry_delay import backoff
from replay.progress.acceptance import Accepted
from replay.progress.answer_delivery import factor
from replay.progress.replay_state import State, with_body
from replay.scenario.departure import Departure, repeats
from replay.scenario.next_step import Expectation, Next, Step, decisions_of, step_of
from replay.scenario.replay_options import STRICT, ReplayOptions, ToolPolicy
from replay.scenario.script import Scripted
from replay.virtual_time.time_patches import real_time, virtual_time

Entry = Callable[..., Any] | EllipsisType | None
"""How to start the agent: a function, the `...` of a frozen test that was not filled in, or the recorded entry point.
"""
KEYS = ("ANTHROPIC_API_KEY",)
"""The SDK requires a key before it sends anything; a replay provides a dummy."""


class Replayer:
    """One replay of a fixture; a context manager."""

    def __init__(self, fixture: Fixture, options: ReplayOptions = STRICT) -> None:
        """Prepare to answer from `fixture`."""
        self.fixture, self.options = fixture, options
        self._state = State(fixture, options)
        self._answering = Answering(self._state)
        self._opened: Opened | None = None
        self.notes: list[str] = []
        """Notes for the reader of the test report, which appear even if the test passes."""

    def __enter__(self) -> Replayer:
        """Start answering from the fixture.

        Raises:
            UsageError: it is open already, or another one is in another thread or task of this process.
        """
        with self._opening() as stack:
            self._state.leftovers = leftover_state.begin(self.fixture)
            forks = self.options.fork is not None
            if self.options.fork is not None:
                parent = lineage.Parent(self.fixture.session_id, self.options.fork.turn)
                stack.enter_context(lineage.forking(parent))
            called = Functions(self._state)
            stack.enter_context(self._answers(called))
            hears = sink.overheard if forks else sink.redirect
            stack.enter_context(hears(self._state.collect))
            if not factor(self.options):
                self._state.clock = stack.enter_context(virtual_time())
            else:
                stack.enter_context(real_time())
            patch = get_args(Patch) if self._is_noting else self._state.given.patch
            stack.enter_context(patches.patched(patch))
            stack.enter_context(children(self._answering.answer, called, self._state.collect))
            stack.enter_context(backoff(factor(self.options)))
            for key in () if forks else KEYS:
                stack.enter_context(world.lent_environ(key, "a-made-up-key"))
            if not (forks or self.options.network):
                stack.enter_context(no_network(self._refuse))
            stack.enter_context(deadline(self._state))
            if not forks:
                stack.enter_context(watched_processes(self._state))
        return self

    def _answers(self, called: Functions) -> contextlib.AbstractContextManager[object]:
        """Return the context in which everything is answered from the fixture."""
        forks = self.options.fork is not None
        return runtime.replaced(
            answerer=self._answering.answer,
            stopped=self._answering.stopped,
            continues_live=forks,
            identifies_callers=forks
            or any(ask.caller is not None or ask.ended_jobs for ask in self.fixture.asks),
            functions=called,
            ambient=self._state.given,
            transform=self._answering.world,
            noted=self._state.reads.note if self._is_noting else runtime.current().noted,
        )

    @property
    def _is_noting(self) -> bool:
        """Whether reads of patched code are reported, and return their real values."""
        return self.options.patch == "report"

    @contextlib.contextmanager
    def _opening(self) -> Iterator[ExitStack]:
        """Open the replay, and close it again if that fails halfway."""
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
        """Stop answering; raises the divergence if there was one, whatever else was raised."""
        self.stop()
        if error is None or (
            self._state.divergence is not None and not isinstance(error, DivergenceError)
        ):
            self.check()

    def stop(self) -> None:
        """Stop answering without judging; at the latest when all nested replays have stopped."""
        opened, self._opened = self._opened, None
        if opened is not None:
            self._state.has_stopped = True
            opened.end()

    def runs_in(self, test: str) -> None:
        """Set the pytest ID of the test in which this replay runs."""
        self._state.test = test

    def run(self, function: Entry = None, /, *args: Any, **kwargs: Any) -> Any:
        """Run the agent as it was run in the recording, and return its result.

        Without a function this imports the recorded entry point and calls it with the recorded arguments. An
        exception with which the recording ended as well is part of the path and is not raised.

        Raises:
            DivergenceError: the path differs from the recorded one, or ends elsewhere.
            UsageError: the recording does not say how to start the agent.
        """
        result, error = self._ran(self._call(function, args, kwargs))
        return self._judged(result, error)

    async def arun(self, function: Entry = None, /, *args: Any, **kwargs: Any) -> Any:
        """Like `run`, from inside an event loop."""
        result, error = await self._aran(self._call(function, args, kwargs))
        return self._judged(result, error)

    def then(self, *answers: Scripted) -> None:
        """Set the model's responses after the turn of `until`; see `replay.scenario.script`."""
        self._state.script = answers

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
        """Replay up to the response of a turn, let the agent continue, and return what it does next.

        The recorded responses lead up to and include that of turn `turn` of the main lane. The agent's next
        request to the model is kept, and answered only from the script of `then`.

        Args:
            function: how to start the agent, with its arguments; default the recorded entry point.
            args: its arguments.
            turn: the turn, from 1.
            tools: which tools of the agent loop, and which recorded functions, run live in that turn; those of earlier
                turns never do. The calls of a scripted response run, but mutating tools only if they are named here.
                Other tools of foreign agents are their own code, and always run.
            expect: a condition on the step: it asserts, or returns False if it does not hold.
            kwargs: its arguments by name.

        Raises:
            AssertionError: `expect` does not hold; with both steps, recorded and live.
            DivergenceError: the path differs before that turn ends, or the agent never gets there.
            UsageError: the recording has no such turn, or a tool must be named.
        """
        self._state.stop_after(turn, tools)
        return self._stepped(turn, *self._ran(self._call(function, args, kwargs)), expect)

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
        self._state.stop_after(turn, tools)
        return self._stepped(turn, *await self._aran(self._call(function, args, kwargs)), expect)

    def reach(self, function: Entry = None, /, *args: Any, turn: int, **kwargs: Any) -> None:
        """Replay up to the response of a turn; what the agent does after it does not matter.

        The agent gets the recorded responses as long as it makes the recorded requests. Another prompt, or other tool
        results, are noted (see `notes`). If it does something else before that turn, the recorded responses no longer
        apply, and the replay ends there with a note. If no request of the session was answered, all recorded requests
        must come.

        Args:
            function: how to start the agent, with its arguments; default the recorded entry point.
            args: its arguments.
            turn: the turn, from 1.
            kwargs: its arguments by name.

        Raises:
            DivergenceError: the agent ends before that turn, or uses the network.
            Exception: what the agent raised before it got there.
        """
        self._watch_until(turn)
        self._reached(turn, *self._ran(self._call(function, args, kwargs)))

    async def areach(self, function: Entry = None, /, *args: Any, turn: int, **kwargs: Any) -> None:
        """Like `reach`, from inside an event loop."""
        self._watch_until(turn)
        self._reached(turn, *await self._aran(self._call(function, args, kwargs)))

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

        The agent gets the recorded responses as long as it makes the recorded requests. From turn `turn` on its tools
        run live. The first request that was not recorded, or the end of the agent, is the step that is returned;
        `step.differs` is False if the agent did the same as in the recording to its end. A tool result that is an error
        in both counts as the same, whatever its text. Another prompt, and other tool results before that turn, are
        noted (see `notes`): the recorded responses are replayed anyway.

        Args:
            function: how to start the agent, with its arguments; default the recorded entry point.
            args: its arguments.
            turn: the turn where the session failed, from 1.
            tools: which tools of the agent loop, and which recorded functions, run live from that turn on. Other tools
                of foreign agents are their own code, and always run.
            expect: a condition on the step: it asserts, or returns False if it does not hold.
            kwargs: its arguments by name.

        Raises:
            AssertionError: `expect` does not hold.
            DivergenceError: the agent makes no request at all, or uses the network.
            Exception: what the agent raised, unless the recording ended with the same exception.
        """
        self._state.watch(turn, tools)
        return self._changed(*self._ran(self._call(function, args, kwargs)), expect)

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
        self._state.watch(turn, tools)
        return self._changed(*await self._aran(self._call(function, args, kwargs)), expect)

    def _watch_until(self, turn: int) -> None:
        """Set the end of the replayed path: a turn, or the end of the recording if no request was answered."""
        if any(ask.turn for ask in self.fixture.asks if ask.lane == "main" and is_answered(ask)):
            self._state.stop_after(turn, "recorded")
        self._state.watch(turn, "recorded")

    def _reached(self, turn: int, result: Any, error: BaseException | None) -> None:
        """Raise if the agent did not get to the response of a turn although it got the recorded responses."""
        del result
        state = self._state
        main, departure = state.lane("main"), state.departure
        is_there = main.turns >= turn or not (main.left or main.turns)
        assert departure is not None
        if not is_there:
            self._end_early(departure, error)
        self._note(departure)
        if not (departure.has_happened or is_there):
            state.raise_divergence(error)
            if error is not None:
                raise error
            summary = f"the agent ended before turn {turn} was answered"
            raise state.error(report(state, "missing", main, summary, why=end_reason(state)))
        self._settle()

    def _end_early(self, departure: Departure, error: BaseException | None) -> None:
        """Count it as a departure if the agent ended well before the failing turn, which a fix may bring about."""
        state, end = self._state, self._state.session_end
        failed = (
            error is not None
            or state.divergence is not None
            or (end and end.outcome != "completed")
        )
        if not failed and state.lane("main").turns:
            state.departs()

    def _changed(
        self, result: Any, error: BaseException | None, expect: Expectation | None
    ) -> Next:
        state, departure = self._state, self._state.departure
        assert departure is not None
        found = state.divergence
        if not departure.has_happened or (found and found.kind in ("network", "timing")):
            state.raise_divergence(error)
        if state.refused is not None:
            raise state.refused
        self._check_faults()
        if error is not None and not state.beyond and not is_recorded_error(state, error):
            raise error
        main = state.lane("main")
        if not departure.has_happened and main.left and not main.asked:
            raise state.error(missing(state, main))
        step = self._change(departure, result, error)
        self._note(departure)
        self._settle()
        if expect is not None:
            step.require(expect)
        return step

    def _change(self, departure: Departure, result: Any, error: BaseException | None) -> Next:
        """Return the step at which the agent left the recorded path, or its end."""
        main, turn = self._state.lane("main"), departure.turn or self._state.lane("main").turns
        due = departure.expected
        if due is None and not departure.has_happened:
            due = next(iter(main.left), None)
        elif due is None and departure.turn:
            path = self._state.beyond[0][0] if self._state.beyond else None
            due = main.asked_after(departure.turn, path)
        failure, recorded = failure_of(self.fixture), self._recorded_end()
        if due is not None:
            recorded = step_of(value_of(self.fixture.body(due.number)))
        return Next(
            self._now_beside(due, error, is_stopped=departure.is_stopped),
            recorded,
            result=result,
            decisions=tuple(decisions_of(self._state.records, turn)),
            held=tuple(self._state.calls.held),
            turn=turn,
            failure=failure.text if failure else "",
            remarks=tuple(departure.remarks()),
            is_early=departure.is_early(),
            repeats=due is None and bool(self._state.beyond) and repeats(self._state.beyond[0][1]),
        )

    def _now_beside(
        self, due: Ask | None, error: BaseException | None, *, is_stopped: bool = False
    ) -> Step:
        """Return what the agent does now instead of making a recorded request."""
        state = self._state
        if state.beyond:
            body = self.fixture.body(due.number) if due else b""
            return step_of(value_of(state.renaming.read_bytes(body, state.beyond[0][1])))
        if is_stopped:
            return step_of(None)
        end, name = state.session_end, type(error).__name__ if error else None
        outcome = end.outcome if end else "failed" if error else "completed"
        reason = reason_now(state, end) if end else name
        return step_of(None, outcome, reason, compared_results(state)[1])

    def _note(self, departure: Departure) -> None:
        """Note what a reader should know of a departure, although the test may pass."""
        self.notes += [f"{self.fixture.name}: {remark}" for remark in departure.remarks()]
        is_known = leftover_state.NAMED_STATE in self._state.leftovers
        if is_known and (departure.keys or departure.has_happened):
            self.notes.append(f"{self.fixture.name}: {self._state.leftovers}")
        if departure.has_happened and self.suspicions:
            self.notes.append(
                f"{self.fixture.name}: this change may be caused by an answer that went to the wrong one of several "
                f"identical requests: {self.suspicions[0].text}"
            )

    def _settle(self) -> None:
        """End the replay here: the remaining recorded requests are not required."""
        self._state.divergence = None
        self._state.until = self._state.until or max(self._state.lane("main").turns, 1)

    def _stepped(
        self, turn: int, result: Any, error: BaseException | None, expect: Expectation | None
    ) -> Next:
        self._check_arrival(turn, error)
        self._check_faults()
        step = Next(
            self._now(turn, error),
            self._recorded(turn),
            result=result,
            later=tuple(step_of(value_of(body)) for _, body in self._state.beyond[1:]),
            decisions=tuple(decisions_of(self._state.records, turn)),
            held=tuple(self._state.calls.held),
            turn=turn,
        )
        if expect is not None:
            step.require(expect)
        return step

    def _check_faults(self) -> None:
        """Raise if a requested fault was never injected."""
        if untouched := [fault.text() for fault in self._state.faults.untouched]:
            raise UsageError(
                f"{', '.join(untouched)} never happened",
                where=str(self.fixture.path),
                todo="Nothing arrived there: name a turn, a request or a tool that the recording has",
            )

    def _check_arrival(self, turn: int, error: BaseException | None) -> None:
        """Raise if the agent did not come to the end of a turn."""
        self._state.raise_divergence(error)
        if self._state.lane("main").turns < turn:
            summary = f"the agent ended before turn {turn} was answered"
            raised = (
                f"it raised {type(error).__name__}: {error}" if error else end_reason(self._state)
            )
            lane = self._state.lane("main")
            short = report(self._state, "missing", lane, summary, why=raised)
            raise self._state.error(short) from error

    def _judged(self, result: Any, error: BaseException | None) -> Any:
        """Return the result of a run, or raise its difference; an exception may be the recorded one."""
        if self.options.fork is not None:
            self._check_arrival(self.options.fork.turn, error)
        self._state.raise_divergence(error)
        self._check_faults()
        if self._state.until is not None:
            if error is not None:
                raise error
            return result
        if error is not None and not is_recorded_error(self._state, error):
            judge_refusal(self._state, error)
            raise error
        self.check()
        judge_outcome(self._state)
        judge_result(self._state)
        return result

    def _ran(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Call the agent; return its result, or the exception that it ended with."""
        self._state.running += 1
        try:
            result = call()
            if self._is_over(result):
                return result, None
            if inspect.isgenerator(result):
                result = drained(result, self._consumer_stopped)
            elif inspect.isawaitable(result) or inspect.isasyncgen(result):
                if in_event_loop():
                    let_go(result)
                    raise UsageError(
                        "the agent is async, and an event loop is running",
                        todo="Use arun or auntil",
                    )
                result = asyncio.run(self._finished(result))
        except (DivergenceError, ReplayStopped, ReplayEnded):
            return None, None
        except UsageError:
            raise
        except (Exception, SystemExit) as error:
            return None, error
        finally:
            self._state.running -= 1
        return result, None

    async def _aran(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        self._state.running += 1
        try:
            result = call()
            if self._is_over(result):
                return result, None
            if inspect.isgenerator(result):
                return drained(result, self._consumer_stopped), None
            return await self._finished(result), None
        except (DivergenceError, ReplayStopped, ReplayEnded):
            return None, None
        except (Exception, SystemExit) as error:
            return None, error
        finally:
            self._state.running -= 1

    def _is_over(self, result: Any) -> bool:
        """Return whether an agent has returned a generator after the end of its session: a value, not its iteration."""
        if not (inspect.isgenerator(result) or inspect.isasyncgen(result)):
            return False
        return self._state.session_end is not None

    async def _finished(self, result: Any) -> Any:
        """Return the result of an agent: that of an awaitable, or the list of the values of an async generator."""
        if inspect.isasyncgen(result):
            return await adrained(result, self._consumer_stopped)
        return await awaited(result) if inspect.isawaitable(result) else result

    def _consumer_stopped(self) -> bool:
        """Return whether the recorded consumer of a generator stopped early, and all requests up to there were made."""
        if self.fixture.header.get("reason") != GeneratorExit.__name__:
            return False
        return not any(lane.left for lane in self._state.lanes.values())

    def check(self) -> None:
        """Raise the first divergence, or the first recorded exchange that was not used."""
        self.raise_divergence()
        if self._state.until is None:
            judge_path(self._state)

    def raise_divergence(self, cause: BaseException | None = None) -> None:
        """Raise the first divergence again, if there was one; `cause` is the resulting exception."""
        self._state.raise_divergence(cause)

    def raised(self, error: BaseException) -> Raised:
        """Describe how an agent with an error ended: its progress, and the injected faults."""
        lane, faults = self._state.lane("main"), self._state.faults
        made = tuple(each.text() for each in faults.all if each not in faults.untouched)
        asked = lane.asked, len(lane.asks)
        secrets = self._state.renaming.secrets
        return raised_of(error, self.fixture.name, asked, made, self.progress, secrets)

    @property
    def trajectory(self) -> str:
        """What the agent did, one line per step; made to be compared with a snapshot."""
        return trajectory(self.records)

    @property
    def records(self) -> Iterator[Record]:
        """What the agent recorded, in order; a request's body is the recorded one."""
        for record, number in self._state.records:
            if isinstance(record, ModelExchange) and number is not None:
                yield with_body(record, self.fixture.body(number))
            else:
                yield record

    @property
    def beyond(self) -> int:
        """How many requests were sent after the recorded path."""
        return len(self._state.beyond)

    @property
    def accepted(self) -> tuple[Accepted, ...]:
        """The requests that replaced recorded ones, see `ReplayOptions.accept_from`."""
        accepting = self._state.accepting
        return () if accepting is None else tuple(accepting.changes)

    def accept(self) -> None:
        """Write the fixture with the accepted requests.

        Raises:
            RecordingError: it would contain something that looks like a secret; nothing is written.
            UsageError: it cannot be written.
        """
        if (accepting := self._state.accepting) is not None:
            keep(self.fixture.path, accepting.data(self._state.calls.ran_live()))

    @property
    def normalized(self) -> dict[str, int]:
        """How many values each normalizer has hidden."""
        return self._state.normalized

    @property
    def drift(self) -> list[Drift]:
        """The differences in requests that were matched by their spine."""
        return [each for lane in self._state.lanes.values() for each in lane.drift]

    @property
    def suspicions(self) -> tuple[Suspicion, ...]:
        """What was accepted as the recorded path but may not be, such as responses given by order alone."""
        return tuple(self._state.suspicions)

    @property
    def progress(self) -> Progress:
        """How many of the recorded requests, tool calls and other questions were used."""
        return self._state.progress

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
        self._state.started = None if function is None and not (args or kwargs) else call
        return call

    def _refuse(self, address: str, who: Site | None) -> BaseException:
        return self._state.error(refused(self._state, address, who))

    def _now(self, turn: int, error: BaseException | None) -> Step:
        beyond = self._state.beyond
        later = self._state.lane("main").asked_after(turn, beyond[0][0]) if beyond else None
        return self._now_beside(later, error)

    def _recorded(self, turn: int) -> Step:
        """Return the recorded exchange after a turn: the next one of the same kind as the live one."""
        later = self._state.lane("main").asked_after(
            turn, self._state.beyond[0][0] if self._state.beyond else None
        )
        if later is not None:
            return step_of(value_of(self.fixture.body(later.number)))
        return self._recorded_end()

    def _recorded_end(self) -> Step:
        """Return the end of the recorded session, with its result if results are compared."""
        header = self.fixture.header
        returned = compared_results(self._state)[0]
        return step_of(None, header.get("outcome"), header.get("reason"), returned)
