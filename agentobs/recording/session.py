"""Sessions, and the one line that records a client.

    client = agentobs.record(AsyncAnthropic())
    with agentobs.session("refund-loop", tags={"git": "4f2a91c"}):
        ...

A session ends as `failed` if an exception leaves it, if its last interaction ended with an error, or
if the agent calls `agentobs.fail(reason)`. Ctrl-C and cancellation end it as `interrupted`.
Exchanges outside every session belong to a session of the process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from agentobs import tracing, world
from agentobs.determinism import (
    jobs,
    multiprocessing_children,
    parent_process,
    patches,
    process_history,
    session_inheritance,
)
from agentobs.determinism.callers import follow_jobs
from agentobs.determinism.entry import (
    NOWHERE,
    entry_of,
    entry_of_call,
    entry_or_nothing,
    origin,
    outside,
    version_of,
)
from agentobs.determinism.process_history import in_event_loop
from agentobs.determinism.return_values import returned
from agentobs.errors import HomeError, UsageError, error_kind, say_once
from agentobs.ledger import Meter, Spent, use_home
from agentobs.recording import lineage
from agentobs.recording.generators import Iteration, iterating
from agentobs.recording.journal.home import locate, open_home
from agentobs.recording.options import Content, Options, check_sampling, content_of, content_or_off
from agentobs.recording.recorder import Recorder
from agentobs.recording.wire import transport
from agentobs.recording.wire.clients import AllClients, record_in
from agentobs.recording.wire.sdk_spans import SdkSpan, settle
from agentobs.records.exchanges import Place, Returned, SessionCall, SessionReturn
from agentobs.records.facts import DECLARED, Outcome, Relation, SessionEnd, SessionStart
from agentobs.records.labels import Label, is_label, unchecked
from agentobs.runtime import current, process
from agentobs.sink import RETIRED_MAX, sink
from agentobs.tracing import ambient
from agentobs.tracing.ambient import Patch, note_read

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

FLUSH_SECONDS = 0.25
"""The longest wait for a session's records at its end; an event loop never waits."""

LOOP_SECONDS = 0.02
"""The longest wait of a cost reading in an event loop."""


class State:
    """The recorder of this process and its sessions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: dict[str, Session] = {}
        self.begun: dict[str, None] = {}
        """The sessions that the recorder has started, oldest first; as many as the sink remembers."""
        self.recorder: Recorder | None = None
        self.process_session: Session | None = None
        """Holds the exchanges outside every other session."""


def start(home: str | None = None, options: Options | None = None) -> bool:
    """Start recording with these options, before the first session or `record`; the first call applies.

    Args:
        home: where to record; default `AGENTOBS_HOME`, else `.agentobs`.
        options: how; default `Options()`.

    Returns:
        Whether this call started the recorder: False if this process records already, cannot record, or replays.

    Raises:
        UsageError: the options contain unknown event kinds or invalid shares.
    """
    if options is not None:
        check_sampling(options)
    before = process.part(State).recorder
    return start_recorder(home, options) is not None and before is None


def record(client: C, *, home: str | None = None, sdk_span: SdkSpan | None = None) -> C:
    """Record every exchange of an Anthropic client, and return the same client.

    Wraps the client's transport and mounts in place; a second call changes nothing. Sync and async
    clients, `with_options()` copies, custom HTTP clients and the aiohttp transport are all recorded.

    Args:
        client: an `Anthropic`, `AsyncAnthropic` or platform client, an `httpx2` client, or an object that holds one: an
            agent, a model or a provider of a framework.
        home: where to record; default `AGENTOBS_HOME`, else `.agentobs`.
        sdk_span: how to handle the OpenTelemetry span that the SDK creates for each call. `off`: no span. `adopt`: it
            has no content, and the record refers to it. `leave`: as the client was created. Default `off` if a backend
            exports spans, else `adopt`.

    Raises:
        UsageError: `client` is none of these.
    """
    recorder = start_recorder(home)

    def take(each: Any) -> None:
        transport.instrument(each, _process_place)
        settle(each, sdk_span, recorder.options.backends if recorder else ())

    if not record_in(client, take):
        take(client)  # which says what is wrong with it
    return client


def record_all(*, home: str | None = None) -> AllClients:
    """Record every client of this process that sends requests to the provider, however it was created, until it is
    stopped.

        with agentobs.record_all():
            ...

    This is for clients that cannot be passed to `record`. The transports of httpx2, which the SDK and frameworks share,
    are patched for this time. Other traffic of httpx2 is not recorded, and no client is recorded twice. The SDK's own
    spans are not changed, because no client is known that could switch them off.

    Args:
        home: where to record; default `AGENTOBS_HOME`, else `.agentobs`.

    Returns:
        A context manager that is already active; its `stop()` ends it as well.
    """
    start_recorder(home)
    return AllClients(_process_place)


def start_recorder(home: str | None = None, options: Options | None = None) -> Recorder | None:
    """Start this process's recorder, and return it; a second call returns the same one.

    If the home cannot be used, this warns and returns None, and the agent continues unrecorded. During a
    replay nothing is started.
    """
    state = process.part(State)
    if (
        parent_process.ask_parent()
        or multiprocessing_children.refuse_requests()
        or current().is_answered
    ):
        return None
    with state.lock:
        if state.recorder is None:
            try:
                state.recorder = Recorder(open_home(home), options)
            except (HomeError, UsageError, OSError) as error:
                sink.give_up()
                say_once(f"not recording: {error}")
                return None
            sink.attach(state.recorder)
            process.span_place_outside = _process_place
            process.propagates = state.recorder.options.propagate
            use_home(state.recorder.home.path)
            if (joined := session_inheritance.joined()) is not None:
                state.recorder.join(joined.place.session_id, joined.content)
            atexit.register(stop_recorder)
        elif home is not None and locate(home) != state.recorder.home.path:
            say_once(f"this process records into {state.recorder.home.path}; {home} is not used")
        if options is not None and options is not state.recorder.options:
            say_once("this process is already recording; other options are ignored")
        return state.recorder


def stop_recorder() -> bool:
    """Write waiting records, seal the segment and detach; return whether everything was written in time.

    Open sessions end here, `interrupted` by `stop_recorder`. Their later records are dropped and
    counted; they belong to no recording, not even to one that is started later.
    """
    state = process.part(State)
    tracing.sweep(0)
    process.span_place_outside = None
    for opened in reversed(list(state.open.values())):
        if opened is not state.process_session:
            opened.stop()
    if state.process_session is not None:
        state.process_session.close()
        state.process_session = None
    sink.flush(FLUSH_SECONDS)
    with state.lock:
        recorder, state.recorder = state.recorder, None
        atexit.unregister(stop_recorder)
    sink.retire(list(state.begun))
    state.begun.clear()
    sink.detach()
    return recorder.close() if recorder is not None else True


def current_recorder() -> Recorder | None:
    """Return this process's recorder; None if it does not record."""
    return process.part(State).recorder


def child_environment(name: str) -> dict[str, str]:
    """Return environment variables that let another program take part in this session, as an agent of its own.

        subprocess.run(command, env={**mine, **agentobs.child_environment("researcher")})

    Everything that the program records with agentobs belongs to this session, in a lane under the caller's lane; its
    own `session` starts no new one. A replay answers it as well. Outside every session the result is empty.

    Args:
        name: the name of its lane; a second program with the same name in the same lane gets a number.

    Raises:
        UsageError: the name has characters other than letters, digits and `._-`, or is too long.
    """
    state = process.part(State)
    here = place_here()
    known = state.open.get(here.session_id) if here is not None else None
    given = ambient.ambient_of(here.session_id) if here is not None else None
    home = str(state.recorder.home.path) if state.recorder is not None else None
    content = known.content if known is not None else "vault"
    return session_inheritance.variables(here, name, home, content, given)


def flush(seconds: float = 5.0) -> bool:
    """Wait until everything that this process has recorded is in the journal, at most `seconds`; return whether it
    is.

    If there is no recorder, this does not wait; it returns False if records were expected.
    """
    state = process.part(State)
    is_handed_over = sink.flush(seconds)
    return (state.recorder is None or state.recorder.flush(seconds)) and is_handed_over


def session(
    name: str,
    *,
    tags: Mapping[str, str] | None = None,
    home: str | None = None,
    resume: str | None = None,
    fork: str | None = None,
    content: Content | None = None,
    patch: Sequence[Patch] = (),
) -> Session:
    """Return a session to enter with `with` or `async with`, or to decorate the agent's function with.

    Args:
        name: any text. This machine shows it as it was written. Facts and exports contain it only if it is a label
            (`[A-Za-z0-9._:/@-]`, at most 128 characters), otherwise a keyed digest of it.
        tags: labels for searching, such as the git commit or the agent's version.
        home: where to record; default `AGENTOBS_HOME`, else `.agentobs`.
        resume: the full ID of the session that this one resumes: it becomes part of the same conversation. The agent
            loop of agentobs sets it by itself, see `agentobs.agent.resumed`.
        fork: the full ID of the session that this one starts like; it becomes a separate conversation.
        content: where content may go. `off`: nowhere; `vault`: into the recording; `export`: also to the backends.
            Default: the options, else `AGENTOBS_CONTENT`, else `vault`.
        patch: parts of the standard library that return recorded values inside the session, so that a replay returns
            the same: `time` (with `datetime`), `uuid`, `random`. See docs/replaying.md; `agentobs.world_here` needs no
            patch.

    Raises:
        UsageError: both `resume` and `fork` are set, or `content` or `patch` is invalid.
    """
    if resume and fork:
        raise UsageError(
            "a session cannot both resume and fork an earlier one",
            where=name[:80],
            todo="Resume to continue the same conversation, or fork to start a copy of it",
        )
    link: Link = ("resume", resume) if resume else ("fork", fork) if fork else None
    if content is not None:
        content_of(content, Options())
    patched = patches.check_patch(patch)
    return Session(name, tags or {}, home, sys._getframe(1), link, content, patched)


Link = tuple[Relation, str] | None
"""The earlier session that a session continues, and how."""


class Session:
    """One session; see `session`."""

    def __init__(
        self,
        name: str,
        tags: Mapping[str, str],
        home: str | None,
        caller: FrameType | None = None,
        link: Link = None,
        content: Content | None = None,
        patch: frozenset[str] = frozenset(),
    ) -> None:
        """Prepare a session; it starts when it is entered."""
        self.name = name
        self.session_id = ""
        self.content: Content = "vault"
        """Where its content may go, once it has started."""
        self._tags = {str(key): str(value) for key, value in tags.items()}
        self._home = home
        self._link, self._content, self._patch = link, content, patch
        self._entry = entry_or_nothing(lambda: entry_of(caller)) if caller else NOWHERE
        self._failure: tuple[str, str] | None = None
        self._result: Returned | None = None
        self._is_stopped = False
        self._process_id = 0
        self._token: tracing.Frame | None = None
        self._meter: Meter | None = None
        self._held = contextlib.ExitStack()
        """What is patched while it is active."""
        self._joined: Place | None = None
        """Its place, if another process has started it."""

    def cost(self) -> Spent | None:
        """Return what this session has spent so far, in total and by model; None if it is not recorded, as in a
        replay.

        Every attempt of a call counts, including those of sub-agents. This waits a moment for attempts that have just
        ended; if that was too short, the result is a lower bound. The first call loads the prices, which takes half a
        second.
        """
        state = process.part(State)
        if self._meter is None:
            return None
        in_time = flush(LOOP_SECONDS if in_event_loop() else FLUSH_SECONDS)
        spent = self._meter.total()
        if in_time or state.recorder is None:
            return spent
        return dataclasses.replace(spent, lost=spent.lost + state.recorder.statistics().waiting)

    def fail(self, reason: str | BaseException) -> None:
        """Declare that this session failed, and why. The first reason counts.

        Args:
            reason: any text, or an exception, of which the class name is kept. A text is content: this machine shows it
                as it was written, and a replay compares it. Facts and exports contain it only if it is a label
                (`[A-Za-z0-9._:/@-]`, at most 128 characters), otherwise a keyed digest of it.
        """
        told = reason if isinstance(reason, str) else type(reason).__name__
        if self._failure is None:
            self._failure = (told, f"{DECLARED}{told}")

    def result(self, value: Any) -> None:
        """Record the result of this session. A `with` block needs this because it returns nothing. The last call
        counts.

        A decorated function does not need this: its return value is recorded unless this was called. A replay compares
        the value, see `ReplayOptions.compare_result`.

        Args:
            value: JSON values, dataclasses, pydantic models, enums, named tuples, and containers of these. It is read
                immediately and not kept. Of other objects, and of values over 1 MB, only the type is recorded.
        """
        try:
            self._result = returned(value)
        except Exception as error:
            say_once(f"a result is not recorded: {error_kind(error)}", about="session result")

    def came_to(self, value: Any) -> None:
        """Record the return value of the decorated function, unless the function has called `result` itself."""
        if self._result is None and self.session_id:
            self.result(value)

    def yielded(self, values: Returned) -> None:
        """Record the values that the decorated generator yielded, unless it has called `result` itself."""
        if self._result is None and self.session_id:
            self._result = values

    def open(self) -> None:
        """Start the session without making it current; never raises."""
        try:
            self._open()
        except Exception as error:
            say_once(f"a session is not recorded: {error_kind(error)}", about="session start")

    def close(self, error: BaseException | None = None) -> None:
        """End the session, as failed if an exception left it; never raises."""
        try:
            self._close(error)
        except Exception as own:
            say_once(
                f"the end of a session is not recorded: {error_kind(own)}", about="session end"
            )

    def stop(self) -> None:
        """End the session because its recording ends, if this process has opened it; never raises."""
        if self._process_id == world.process_id():
            tracing.session_closed(self.session_id)
            self._is_stopped = True
            self.close()

    def _open(self) -> None:
        state = process.part(State)
        follow_jobs()
        jobs.begin()
        recorder = start_recorder(self._home)
        if (joined := session_inheritance.joined()) is not None:
            self._joined, self.session_id = joined.place, joined.place.session_id
            self.content = content_of(joined.content, Options())  # type: ignore[arg-type]
            self._process_id = world.process_id()
            if (known := ambient.ambient_of(self.session_id)) is not None:
                known.patch, known.asked = self._patch, note_read
            state.open[self.session_id] = self
            return
        options = recorder.options if recorder else Options()
        self.session_id = world.new_id()
        jobs.open_session(self.session_id)
        tracing.started_by(self.session_id)
        self._meter = recorder.meter(self.session_id) if recorder else None
        self._failure, self._result, self._is_stopped = None, None, False
        self._process_id = world.process_id()
        _note_begun(self.session_id)
        process_history.note(self._entry.name)
        self.content = content_or_off(self._content, options)
        state.open[self.session_id] = self
        parent = lineage.take_parent()
        link: Link = self._link
        if parent is not None:
            link = ("fork", parent.session_id) if parent.session_id else None
        start = SessionStart(
            session_id=self.session_id,
            name=unchecked(parent.name_of(self.name) if parent else self.name),
            started_ns=world.now(),
            entry=unchecked(self._entry.name) if self._entry.name else None,
            agentobs_version=version_of("agentobs-kit") or Label("unknown"),
            sdk_version=version_of("anthropic"),
            python_version=unchecked(world.python_version()),
            platform=unchecked(world.platform()),
            tags=self._tags,
            arguments_content=None,
            continues_session_id=unchecked(link[1]) if link else None,
            relation="fork" if parent else link[0] if link else None,
            content=Label(self.content),
            options=options.digest(),
            live_exports=options.live_exports(),
            forked_turn=parent.turn if parent else None,
        )
        given = ambient.Ambient(
            ambient.new_seed(), start.started_ns, world.zone_seconds(), self._patch, note_read
        )
        ambient.begin(self.session_id, given)
        told = given.told()
        if parent is not None and (shared := ambient.ambient_of(self.session_id)) is not None:
            # A fork uses the seed of its parent, and its clock starts with the parent's clock.
            told, shared.asked = {**shared.told(), "clock_ns": shared.started_ns}, note_read
        entry = self._entry
        sink.emit(SessionCall(start, entry.arguments, told, entry.obstacle))

    def hold(self) -> None:
        """Patch the standard library for the session if that was requested; never raises."""
        try:
            self._held.enter_context(patches.patched(self._patch))
        except Exception as error:
            say_once(f"nothing is patched: {error_kind(error)}", about="patching")

    def let_go(self) -> None:
        """End what `hold` began."""
        self._held.close()

    def _close(self, error: BaseException | None) -> None:
        if process.part(State).open.pop(self.session_id, None) is None:
            return
        if self._joined is not None:
            flush(LOOP_SECONDS if in_event_loop() else FLUSH_SECONDS)
            return
        session_inheritance.forget(self.session_id)
        outcome, reason, signature = self._end(error)
        end = SessionEnd(
            session_id=self.session_id,
            ended_ns=world.now(),
            outcome=outcome,
            reason=unchecked(reason) if reason else None,
            signature=unchecked(signature) if signature else None,
            dropped=0,
        )
        came_to, self._result = self._result if error is None else None, None
        raised = type(error).__name__ if error is not None and self._failure is not None else None
        is_plain = came_to is None and raised is None and (reason is None or is_label(reason))
        sink.emit(end if is_plain else SessionReturn(end, came_to, raised))
        if self._meter is None:  # no recorder takes them
            jobs.take_ended(self.session_id)
        if not in_event_loop():
            flush(FLUSH_SECONDS)

    def _end(self, error: BaseException | None) -> tuple[Outcome, str | None, str | None]:
        """Return outcome, reason and signature; values that the agent has set take precedence."""
        if self._failure is not None:
            return "failed", *self._failure
        if self._is_stopped:
            return "interrupted", "stop_recorder", None
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            return "completed", None, None
        stopped = isinstance(error, KeyboardInterrupt | asyncio.CancelledError | GeneratorExit)
        outcome: Outcome = "interrupted" if stopped else "failed"
        return outcome, type(error).__name__, f"exception:{origin(error)}"

    def __enter__(self) -> Session:
        """Start the session and make it current."""
        self.open()
        if self.session_id:
            self._token = tracing.enter(self.place())
            tracing.session_opened(self.place())
        self.hold()
        return self

    def place(self) -> Place:
        """Return the place of a caller in this session."""
        return self._joined or Place(self.session_id)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the session, as failed if an exception leaves it."""
        self.let_go()
        if self._token is not None:
            tracing.leave(self._token)
        tracing.session_closed(self.session_id)
        self.close(error)

    async def __aenter__(self) -> Session:
        """Start the session and make it current."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the session, as failed if an exception leaves it."""
        self.__exit__(kind, error, traceback)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async: each call of it is a separate session.

        For a generator, sync or async, each iteration is a session, from the first value to the end, also if the
        consumer stops early or throws into it. Only the code of the generator is in the session, not its consumer.

        The function's name and arguments are recorded, so that a replay can call it again, and its return value, so
        that a replay can compare it; see `result`. The result of a generator is the list of its values.
        """

        def begin(*args: P.args, **kwargs: P.kwargs) -> Session:
            opened = Session(
                self.name,
                self._tags,
                self._home,
                link=self._link,
                content=self._content,
                patch=self._patch,
            )
            opened._entry = entry_or_nothing(lambda: entry_of_call(function, args, kwargs))
            return opened

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return iterating(function, lambda *args, **kwargs: Iteration(begin(*args, **kwargs)))

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with begin(*args, **kwargs) as opened:
                    value = await function(*args, **kwargs)
                    opened.came_to(value)
                    return value

            return run_async  # type: ignore[return-value]  # a coroutine function like the one decorated

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with begin(*args, **kwargs) as opened:
                value = function(*args, **kwargs)
                opened.came_to(value)
                return value

        return run


def place_here() -> Place | None:
    """Return the caller's place: outside every session, a place in the process session; None if nothing is recorded."""
    here = tracing.place()
    if here is None and (current_recorder() is not None or current().is_answered):
        return _process_place()
    return here


def opened(session_id: str) -> Session | None:
    """Return an open session of this process; None if there is none with that ID."""
    return process.part(State).open.get(session_id)


def fail(reason: str | BaseException) -> None:
    """Declare that the caller's session failed, and why; does nothing outside a session.

    Args:
        reason: any text, or an exception, of which the class name is kept; see `Session.fail`.
    """
    state = process.part(State)
    here = tracing.place()
    opened = state.open.get(here.session_id) if here else None
    if opened is not None:
        opened.fail(reason)


def result(value: Any) -> None:
    """Record the result of the caller's session; does nothing outside a session.

    Args:
        value: see `Session.result`.
    """
    state = process.part(State)
    here = tracing.place()
    opened = state.open.get(here.session_id) if here else None
    if opened is not None:
        opened.result(value)


def _process_place() -> Place:
    """Return the place of exchanges outside every session; opens the process session at the first call."""
    state = process.part(State)
    if (joined := session_inheritance.joined()) is not None:
        return joined.place
    if current().is_answered:
        return Place("replay")
    stopped = state.process_session if _is_stopped(state.process_session) else None
    with state.lock:
        if state.process_session is None or state.process_session is stopped:
            state.process_session = Session("process", {}, None)
            state.process_session._entry = entry_or_nothing(outside)
            opening: Session | None = state.process_session
        else:
            opening = None
    if stopped is not None:
        stopped.close()
    if opening is not None:
        opening.open()
    return Place(state.process_session.session_id)


def _note_begun(session_id: str) -> None:
    state = process.part(State)
    state.begun[session_id] = None
    if len(state.begun) > RETIRED_MAX:
        state.begun.pop(next(iter(state.begun), ""), None)


def _is_stopped(session: Session | None) -> bool:
    """Return whether recording of a session has stopped because a record could not be written."""
    recorder = process.part(State).recorder
    return bool(session and recorder and recorder.is_stopped(session.session_id))


def _forked() -> None:
    """In a child process: another thread of the parent may have held the lock."""
    process.part(State).lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
process.place_outside = place_here


__all__ = [
    "Session",
    "child_environment",
    "fail",
    "flush",
    "record",
    "record_all",
    "result",
    "session",
    "start",
    "start_recorder",
    "stop_recorder",
]
