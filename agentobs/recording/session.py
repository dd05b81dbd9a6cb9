"""Sessions, and the functions that start to record.

    client = agentobs.record(AsyncAnthropic())
    with agentobs.session("refund-loop", tags={"git": "4f2a91c"}):
        ...

A session ends as `failed` if an exception leaves it, if its last interaction ended with an error, or if the agent calls
`agentobs.fail(reason)`. Ctrl-C and cancellation end it as `interrupted`. Exchanges outside every session belong to the
session of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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
    Entry,
    entry_of,
    entry_of_call,
    entry_or_nothing,
    outside,
    version_of,
)
from agentobs.determinism.process_history import in_event_loop
from agentobs.determinism.return_values import returned
from agentobs.effects.observation import Observation, Scope
from agentobs.effects.switches import checked_effects, observed
from agentobs.errors import HomeError, UsageError, error_kind, warn_once
from agentobs.ledger import Meter, Spent, use_home
from agentobs.recording import lineage
from agentobs.recording.decorator import decorated
from agentobs.recording.journal.home import locate, open_home
from agentobs.recording.options import (
    Content,
    Options,
    check_interpreter,
    check_sampling,
    content_mode,
    content_mode_or_off,
)
from agentobs.recording.recorder import Recorder
from agentobs.recording.session_card import session_card
from agentobs.recording.session_end import Failure, declared_failure, session_end
from agentobs.recording.start_notes import start_notes, title_text
from agentobs.recording.wire.clients import AllClients, record_client, record_in
from agentobs.recording.wire.sdk_spans import SdkSpan, configure
from agentobs.records import clear_text
from agentobs.records.exchanges import Place, ReturnValue, SessionCall, SessionReturn
from agentobs.records.facts import Relation, SessionStart
from agentobs.records.labels import Label, unchecked
from agentobs.runtime import current, process
from agentobs.sink import RETIRED_MAX, sink
from agentobs.tracing import ambient
from agentobs.tracing.ambient import Patch, note_read

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

FLUSH_SECONDS = 0.25
"""The longest wait for the records of a session at its end. In an event loop there is no wait. Our choice."""
LOOP_SECONDS = 0.02
"""The longest wait of `Session.cost` in an event loop. Our choice."""


class State:
    """The recorder of this process and its sessions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: dict[str, Session] = {}
        """The open sessions by ID."""
        self.started: dict[str, None] = {}
        """The sessions that were started with this recorder, oldest first; as many as the sink remembers."""
        self.recorder: Recorder | None = None
        self.process_session: Session | None = None
        """The session of the process, to which exchanges outside every other session belong."""


def start(home: str | None = None, options: Options | None = None) -> bool:
    """Start recording with these options. Call it before the first session and the first `record`.

    Args:
        home: where to record; default `AGENTOBS_HOME`, else `.agentobs`.
        options: how to record; default `Options()`.

    Returns:
        Whether this call started the recorder: False if this process already records, cannot record, or replays.

    Raises:
        UsageError: the sampling options contain an unknown event kind or an invalid share.
    """
    if options is not None:
        check_sampling(options)
    before = process.state(State).recorder
    return start_recorder(home, options) is not None and before is None


def record(client: C, *, home: str | None = None, sdk_span: SdkSpan | None = None) -> C:
    """Record every exchange of an Anthropic client, and return the same client.

    This wraps the transports of the client in place; a second call changes nothing. Sync and async clients,
    `with_options()` copies, custom HTTP clients and the aiohttp transport are all recorded.

    Args:
        client: an `Anthropic`, `AsyncAnthropic` or platform client, a client of httpx2 or httpx, a session of aiohttp,
            or an object that holds one: an agent, a model or a provider of a framework.
        home: where to record; default `AGENTOBS_HOME`, else `.agentobs`.
        sdk_span: how to handle the OpenTelemetry span that the SDK creates for each call. `off`: no span. `adopt`: the
            span has no content, and the record refers to it. `leave`: the client's own setting applies. Default `off`
            if a backend exports spans, else `adopt`.

    Raises:
        UsageError: `client` does not contain a client that can be recorded, or only one of another provider's SDK.
    """
    recorder = start_recorder(home)

    def instrument(each: Any) -> None:
        record_client(each, _process_place)
        configure(each, sdk_span, recorder.options.backends if recorder else ())

    if not record_in(client, instrument):
        instrument(client)  # raises an error that describes the problem
    return client


def record_all(*, home: str | None = None) -> AllClients:
    """Record all clients of this process that send requests to the provider, until the recording is stopped.

        with agentobs.record_all():
            ...

    For clients that cannot be passed to `record`. httpx2, httpx, aiohttp and `http.client` (urllib, requests, boto3)
    are patched until then, even if they are imported later. Other traffic is not recorded, and no request is recorded
    twice. The SDK's own spans are not changed. If a provider was reached only by another client, this warns at the end.

    Args:
        home: where to record; default `AGENTOBS_HOME`, else `.agentobs`.

    Returns:
        A context manager that is already active. Leave it, or call its `stop()`, to stop the recording.
    """
    start_recorder(home)
    return AllClients(_process_place)


def start_recorder(home: str | None = None, options: Options | None = None) -> Recorder | None:
    """Start the recorder of this process, and return it; later calls return the same recorder.

    If the home cannot be used, this warns and returns None, and the agent is not recorded. During a replay, no recorder
    is started.
    """
    state = process.state(State)
    if (
        parent_process.connect_to_parent()
        or multiprocessing_children.refuse_requests()
        or current().is_answered
    ):
        return None
    with state.lock:
        if state.recorder is None:
            try:
                check_interpreter()
                state.recorder = Recorder(open_home(home), options)
            except (HomeError, UsageError, OSError) as error:
                sink.give_up()
                warn_once(f"not recording: {error}")
                return None
            sink.attach(state.recorder)
            process.span_place_outside = _process_place
            process.propagates = state.recorder.options.propagate
            use_home(state.recorder.home.path)
            if (joined := session_inheritance.joined()) is not None:
                state.recorder.join(joined.place.session_id, joined.content)
            atexit.register(stop_recorder)
        elif home is not None and locate(home) != state.recorder.home.path:
            warn_once(f"this process records into {state.recorder.home.path}; {home} is not used")
        if options is not None and options is not state.recorder.options:
            warn_once("this process is already recording; other options are ignored")
        return state.recorder


def stop_recorder() -> bool:
    """Write waiting records, seal the segment and detach; return whether everything was written in time.

    Open sessions end as `interrupted`, with the reason `stop_recorder`. Their later records are dropped and counted,
    even if another recorder is started.
    """
    state = process.state(State)
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
    sink.retire(list(state.started))
    state.started.clear()
    sink.detach()
    return recorder.close() if recorder is not None else True


def current_recorder() -> Recorder | None:
    """Return the recorder of this process; None if it does not record."""
    return process.state(State).recorder


def child_environment(name: str) -> dict[str, str]:
    """Return environment variables that let another program take part in this session as a separate agent.

        subprocess.run(command, env={**environ, **agentobs.child_environment("researcher")})

    Everything that the program records with agentobs belongs to this session, in a lane under the caller's lane. If the
    program uses `agentobs.session`, this does not start a new session. A replay of this session answers the requests of
    the program as well. Outside a session, the result is empty.

    Args:
        name: the name of its lane; a second program with the same name in the same lane gets a number.

    Raises:
        UsageError: the name has characters other than letters, digits and `._-`, or is too long.
    """
    state = process.state(State)
    here = place_here()
    session = state.open.get(here.session_id) if here is not None else None
    sources = ambient.ambient_of(here.session_id) if here is not None else None
    home = str(state.recorder.home.path) if state.recorder is not None else None
    content = session.content if session is not None else "vault"
    return session_inheritance.variables(here, name, home, content, sources)


def flush(seconds: float = 5.0) -> bool:
    """Wait at most `seconds` until all records of this process are in the journal; return whether they are.

    If records were dropped since the previous call, for example because the disk was full, this returns False. Without
    a recorder, this does not wait; it returns False if records are waiting for a recorder.
    """
    state = process.state(State)
    is_delivered = sink.flush(seconds)
    return (state.recorder is None or state.recorder.flush(seconds)) and is_delivered


def session(
    name: str,
    *,
    tags: Mapping[str, str] | None = None,
    home: str | None = None,
    resume: str | None = None,
    fork: str | None = None,
    content: Content | None = None,
    patch: Sequence[Patch] = (),
    title: str | None = None,
    effects: Sequence[str] = (),
) -> Session:
    """Return a session, which is used as a context manager (sync or async) or as a decorator of the agent's function.

    Args:
        name: any text. Commands and pages on this machine show it unchanged. Facts and exports contain it only if it is
            a name (`[A-Za-z0-9_.:-]`, at most 128 characters); otherwise they contain a keyed digest.
        tags: texts for searching, such as the git commit or a customer. Facts contain digests of the values; pass an
            `agentobs.Label` for a value that is safe to share, such as the agent's version.
        home: where to record; default `AGENTOBS_HOME`, else `.agentobs`.
        resume: the full ID of an earlier session whose conversation this session continues. The agent loop of agentobs
            sets it automatically, see `agentobs.agent.resumed`.
        fork: the full ID of an earlier session whose conversation this session copies and continues separately.
        content: where content is written. `off`: nowhere; `vault`: into the recording; `export`: also to the backends.
            Default: the options, else `AGENTOBS_CONTENT`, else `vault`.
        patch: parts of the standard library that return recorded values inside the session, so that a replay returns
            the same: `time` (with `datetime`), `uuid`, `random`. `agentobs.world_here` needs no patch.
        title: a text that local commands and pages show to distinguish sessions; default the first prompt. It is
            content, and never exported.
        effects: the effects outside the requests that are observed: `commands`, `mcp`, `files`, or `all`; see
            docs/effects.md. `files` stores the content of files unredacted. Default none. A replay observes none.

    Raises:
        UsageError: both `resume` and `fork` are set, or `content`, `patch`, `title` or `effects` is invalid.
    """
    if resume and fork:
        raise UsageError(
            "a session cannot both resume and fork an earlier one",
            where=name[:80],
            todo="Resume to continue the same conversation, or fork to start a copy of it",
        )
    link: Link = ("resume", resume) if resume else ("fork", fork) if fork else None
    if content is not None:
        content_mode(content, Options())
    patched = patches.check_patch(patch)
    shown = title_text(title) if title is not None else None
    names, caller = checked_effects(effects), sys._getframe(1)
    return Session(
        name, tags or {}, home, caller, link, content, patched, title=shown, effects=names
    )


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
        entry: Entry | None = None,
        title: str | None = None,
        *,
        effects: Sequence[str] = (),
        may_join: bool = True,
    ) -> None:
        """Prepare a session; it starts when it is entered. `entry` overrides the entry that `caller` shows.

        With `may_join=False`, it is a separate session even if this process takes part in the session of its parent.
        """
        self.name = name
        self.session_id = ""
        self.content: Content = "vault"
        """Where its content is written; valid when the session has started."""
        self._tags = clear_text.declared_tags(tags)
        self._home = home
        self._link, self._content, self._patch, self._title = link, content, patch, title
        self._entry = entry or (entry_or_nothing(lambda: entry_of(caller)) if caller else NOWHERE)
        self._effects, self._may_join = effects, may_join
        self._observation: Observation | None = None
        self._failure: Failure | None = None
        self._result: ReturnValue | None = None
        self._is_stopped = False
        self._process_id = 0
        self._token: tracing.Frame | None = None
        self._meter: Meter | None = None
        self._patches = contextlib.ExitStack()
        """The active patches of the standard library."""
        self._joined: Place | None = None
        """The place in the session, if another process has started it."""

    def cost(self) -> Spent | None:
        """Return the cost of this session so far, in total and by model; None if it is not recorded, as in a replay.

        All attempts count, including those of sub-agents. This waits a moment for attempts that have just ended; if
        that was too short, the result is a lower bound. The first call loads the prices, which takes half a second.
        """
        state = process.state(State)
        if self._meter is None:
            return None
        in_time = flush(LOOP_SECONDS if in_event_loop() else FLUSH_SECONDS)
        spent = self._meter.total()
        if in_time or state.recorder is None:
            return spent
        return dataclasses.replace(spent, lost=spent.lost + state.recorder.statistics().waiting)

    def fail(self, reason: str | BaseException) -> None:
        """Declare that this session failed, and why. Only the first call has an effect.

        Args:
            reason: any text, or an exception, whose class name is the reason. The reason is content: commands and pages
                on this machine show it unchanged, and a replay compares it. Facts and exports contain its keyed digest,
                unless it is an `agentobs.Label`, a constant of your program.
        """
        if self._failure is None:
            self._failure = declared_failure(reason)

    def result(self, value: Any) -> None:
        """Record the result of this session; the last call replaces earlier ones.

        This is necessary in a `with` block. The return value of a decorated function is recorded automatically unless
        this method was called. A replay compares the result, see `ReplayOptions.compare_result`.

        Args:
            value: JSON values, dataclasses, pydantic models, enums, named tuples, and containers of these. It is read
                immediately and not kept. For other objects, and for values over 1 MB, only the type is recorded.
        """
        try:
            self._result = returned(value)
        except Exception as error:
            warn_once(f"a result is not recorded: {error_kind(error)}", about="session result")

    def set_default_result(self, value: Any) -> None:
        """Record the return value of the decorated function, unless the function has called `result` itself."""
        if self._result is None and self.session_id:
            self.result(value)

    def set_yielded_values(self, values: ReturnValue) -> None:
        """Record the values that the decorated generator yielded, unless it has called `result` itself."""
        if self._result is None and self.session_id:
            self._result = values

    def _repr_html_(self) -> str:
        """Return the session as HTML for notebooks: its name, ID, state and cost, without content."""
        is_open = self.session_id in process.state(State).open
        state = "failed" if self._failure else "ended"
        return session_card(
            self.name, self.session_id, "running" if is_open else state, self.cost()
        )

    def open(self) -> None:
        """Start the session without making it current; never raises."""
        try:
            self._open()
        except Exception as error:
            warn_once(f"a session is not recorded: {error_kind(error)}", about="session start")

    def close(self, error: BaseException | None = None) -> None:
        """End the session, as failed if `error` is an exception that left it; never raises."""
        try:
            self._close(error)
        except Exception as failure:
            warn_once(
                f"the end of a session is not recorded: {error_kind(failure)}", about="session end"
            )

    def stop(self) -> None:
        """End the session because the recorder is stopped, if this process has opened it; never raises."""
        if self._process_id == world.process_id():
            tracing.session_closed(self.session_id)
            self._is_stopped = True
            self.close()

    def _open(self) -> None:
        state = process.state(State)
        follow_jobs()
        jobs.begin()
        recorder = start_recorder(self._home)
        if self._may_join and (joined := session_inheritance.joined()) is not None:
            self._joined, self.session_id = joined.place, joined.place.session_id
            self.content = content_mode(joined.content, Options())  # type: ignore[arg-type]
            self._process_id = world.process_id()
            if (sources := ambient.ambient_of(self.session_id)) is not None:
                sources.patch, sources.on_first_use = self._patch, note_read
            state.open[self.session_id] = self
            world.hold_clock()
            return
        options = recorder.options if recorder else Options()
        self.session_id = world.new_id()
        jobs.open_session(self.session_id)
        tracing.started_by(self.session_id)
        self._meter = recorder.meter(self.session_id) if recorder else None
        self._failure, self._result, self._is_stopped = None, None, False
        self._process_id = world.process_id()
        _note_started(self.session_id)
        process_history.note(self._entry.name)
        self.content = content_mode_or_off(self._content, options)
        state.open[self.session_id] = self
        world.hold_clock()
        parent = lineage.take_parent()
        link: Link = self._link
        if parent is not None:
            link = ("fork", parent.session_id) if parent.session_id else None
        start = SessionStart(
            session_id=self.session_id,
            name=clear_text.declared_label(parent.fork_name(self.name) if parent else self.name),
            started_ns=world.now(),
            entry=clear_text.entry_label(self._entry.name) if self._entry.name else None,
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
        sources = ambient.Ambient(
            ambient.new_seed(), start.started_ns, world.zone_seconds(), self._patch, note_read
        )
        ambient.begin(self.session_id, sources)
        recorded = sources.to_json()
        if parent is not None and (shared := ambient.ambient_of(self.session_id)) is not None:
            # A fork uses the seed of its parent, and its clock starts with the parent's clock.
            recorded = {**shared.to_json(), "clock_ns": shared.started_ns}
            shared.on_first_use = note_read
        entry = self._entry
        sink.emit(SessionCall(start, entry.arguments, recorded, entry.obstacle))
        for note in start_notes(self.session_id, self._title, recorder):
            sink.emit(note)
        if self._effects and recorder is not None:
            keeps = self.content != "off"
            scope = Scope(recorder.home, Path.cwd(), self._place_inside, keeps_content=keeps)
            self._observation = observed(self._effects, scope)

    def _place_inside(self) -> Place:
        here = tracing.place()
        return here if here and here.session_id == self.session_id else self.place()

    def patch(self) -> None:
        """Patch the standard library if the session requests that; never raises."""
        try:
            self._patches.enter_context(patches.patched(self._patch))
        except Exception as error:
            warn_once(f"nothing is patched: {error_kind(error)}", about="patching")

    def unpatch(self) -> None:
        """Undo what `patch` did."""
        self._patches.close()

    def _close(self, error: BaseException | None) -> None:
        if process.state(State).open.pop(self.session_id, None) is None:
            return
        if self._joined is not None:
            world.release_clock()
            flush(LOOP_SECONDS if in_event_loop() else FLUSH_SECONDS)
            return
        session_inheritance.forget(self.session_id)
        if self._observation is not None:
            self._observation.stop()
        end = session_end(self.session_id, error, self._failure, is_stopped=self._is_stopped)
        world.release_clock()
        result, self._result = self._result if error is None else None, None
        raised = type(error).__name__ if error is not None and self._failure is not None else None
        is_plain = (
            result is None and raised is None and (end.reason is None or type(end.reason) is Label)
        )
        sink.emit(end if is_plain else SessionReturn(end, result, raised))
        if self._meter is None:  # otherwise the recorder does this
            jobs.close_session(self.session_id)
        if not in_event_loop():
            flush(FLUSH_SECONDS)

    def __enter__(self) -> Session:
        """Start the session and make it current."""
        self.open()
        if self.session_id:
            self._token = tracing.enter(self.place())
            tracing.session_opened(self.place())
        self.patch()
        return self

    def place(self) -> Place:
        """Return a place in this session."""
        return self._joined or Place(self.session_id)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the session, as failed if an exception leaves it."""
        self.unpatch()
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
        """Decorate a function, sync or async, so that each call is a separate session.

        For a generator, sync or async, each iteration is a session. It starts when the first value is requested and
        ends with the generator, even if the consumer stops early or throws an exception into it. Only the code of the
        generator is in the session, not the code of its consumer.

        The function's name and arguments are recorded so that a replay can call the function again. Its return value is
        recorded so that a replay can compare it; see `result`. The result of a generator is the list of its values.
        """

        def begin(*args: P.args, **kwargs: P.kwargs) -> Session:
            return Session(
                self.name,
                self._tags,
                self._home,
                link=self._link,
                content=self._content,
                patch=self._patch,
                entry=entry_or_nothing(lambda: entry_of_call(function, args, kwargs)),
                title=self._title,
                effects=self._effects,
            )

        return decorated(function, begin)


def place_here() -> Place | None:
    """Return the current place; outside every session, a place in the process session, or None if not recording."""
    here = tracing.place()
    if here is None and (current_recorder() is not None or current().is_answered):
        return _process_place()
    return here


def opened(session_id: str) -> Session | None:
    """Return the open session with an ID; None if this process has no such session."""
    return process.state(State).open.get(session_id)


def fail(reason: str | BaseException) -> None:
    """Declare that the caller's session failed, and why; does nothing outside a session.

    Args:
        reason: any text, or an exception, whose class name is the reason; see `Session.fail`.
    """
    here = tracing.place()
    if here is not None and (session := opened(here.session_id)) is not None:
        session.fail(reason)


def result(value: Any) -> None:
    """Record the result of the caller's session; does nothing outside a session.

    Args:
        value: see `Session.result`.
    """
    here = tracing.place()
    if here is not None and (session := opened(here.session_id)) is not None:
        session.result(value)


def _process_place() -> Place:
    """Return the place of exchanges outside every session; the first call opens the process session."""
    state = process.state(State)
    if (joined := session_inheritance.joined()) is not None:
        return joined.place
    if current().is_answered:
        return Place("replay")
    stopped = state.process_session if _is_stopped(state.process_session) else None
    with state.lock:
        if state.process_session is None or state.process_session is stopped:
            state.process_session = Session("process", {}, None, entry=entry_or_nothing(outside))
            opening: Session | None = state.process_session
        else:
            opening = None
    if stopped is not None:
        stopped.close()
    if opening is not None:
        opening.open()
    return Place(state.process_session.session_id)


def _note_started(session_id: str) -> None:
    state = process.state(State)
    state.started[session_id] = None
    if len(state.started) > RETIRED_MAX:
        state.started.pop(next(iter(state.started), ""), None)


def _is_stopped(session: Session | None) -> bool:
    """Return whether the recording of a session has ended because a record could not be written."""
    recorder = process.state(State).recorder
    return bool(session and recorder and recorder.is_stopped(session.session_id))


def _reset_in_child() -> None:
    """In a child process, replace the lock, which another thread of the parent may have held."""
    process.state(State).lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_in_child)
process.place_outside = place_here


__all__ = [
    "Session", "child_environment", "fail", "flush", "record", "record_all", "result", "session", "start",
    "start_recorder", "stop_recorder",
]  # fmt: skip
