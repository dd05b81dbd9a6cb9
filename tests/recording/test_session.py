"""Sessions: which exchanges belong to them, how they end, and that recording never affects the agent."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic

import agentobs
from agentobs import sink as sink_module
from agentobs import tracing, world
from agentobs.errors import UsageError
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from replay import Replayer
from tests.agentobs_warnings import own_warnings
from tests.provider_script import script, streamed, text
from tests.replay.agents import Agent, weather

KEY = "sk-ant-api03-another-key-for-the-tests-0123"
ASK: dict[str, Any] = {
    "model": "claude-sonnet-5",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "x"}],
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()
    yield tmp_path / "home"
    agentobs.stop_recorder()


@pytest.fixture
def provider() -> Iterator[ServedProvider]:
    answers = script(*[streamed(text("ok"))] * 9)
    with ServedProvider(answers, ServeOptions(match="order")) as served:
        yield served


def facts(path: Path, kind: str) -> list[dict[str, Any]]:
    assert agentobs.stop_recorder()
    home = existing_home(path)
    lines = [line for each in segment_ids(home) for line in read(facts_path(home, each))]
    return [line.value() for line in lines if isinstance(line, Line) and line.kind == kind]


def calls_by_session(path: Path) -> dict[str, int]:
    names = {fact["session_id"]: fact["name"] for fact in facts(path, "session_starts")}
    counts = dict.fromkeys(names.values(), 0)
    for attempt in facts(path, "attempts"):
        counts[names[attempt["session_id"]]] += 1
    return counts


def end_of(path: Path) -> tuple[str, str | None, str | None]:
    [end] = facts(path, "session_ends")
    return end["outcome"], end["reason"], end["signature"]


def test_a_pool_thread_belongs_to_its_session(home: Path, provider: ServedProvider) -> None:
    """A thread of a pool belongs to its session, even if an earlier call outside of every session has opened the
    process session.
    """
    client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url))

    def ask() -> None:
        list(client.messages.create(**ASK, stream=True))

    ask()
    with agentobs.session("pool"), ThreadPoolExecutor(1) as pool:
        pool.submit(ask).result()
    assert calls_by_session(home) == {"process": 1, "pool": 1}


def test_unrelated_tasks_and_threads_are_not_in_a_session(
    home: Path, provider: ServedProvider
) -> None:
    """A task outside of every session, or a thread that was started before the session, does not record into the open
    session.
    """
    go, is_done = threading.Event(), threading.Event()
    client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url))

    def unrelated_thread() -> None:
        assert go.wait(20)
        list(client.messages.create(**ASK, stream=True))
        is_done.set()

    async def other_task(inside: asyncio.Event) -> None:
        await inside.wait()
        recorded_client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=provider.url))
        async with recorded_client.messages.stream(**ASK) as stream:
            await stream.get_final_text()

    async def main() -> None:
        inside = asyncio.Event()
        task = asyncio.create_task(other_task(inside))
        with agentobs.session("mine"):
            inside.set()
            await task
            go.set()
            await asyncio.to_thread(is_done.wait, 20)

    threading.Thread(target=unrelated_thread, daemon=True).start()
    asyncio.run(main())
    assert calls_by_session(home) == {"mine": 0, "process": 2}


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (None, ("completed", None, None)),
        (SystemExit(0), ("completed", None, None)),
        (SystemExit(3), ("failed", "SystemExit", "exception:SystemExit")),
        (KeyboardInterrupt(), ("interrupted", "KeyboardInterrupt", "exception:KeyboardInterrupt")),
        (ValueError("x"), ("failed", "ValueError", "exception:ValueError")),
    ],
)
def test_how_a_session_ends(
    home: Path, error: BaseException | None, ended: tuple[str, str | None, str | None]
) -> None:
    """An exception or an exit code other than 0 fails a session, an exit with code 0 completes it, and Ctrl-C
    interrupts it.
    """
    leaves = pytest.raises(type(error)) if error is not None else contextlib.nullcontext()
    with leaves, agentobs.session("ends"):
        if error is not None:
            raise error
    outcome, reason, signature = end_of(home)
    assert (outcome, reason, signature and signature.partition("@")[0]) == ended


def test_an_agent_can_declare_its_session_failed(home: Path) -> None:
    """An agent can declare its session failed, even from a thread, with a text or the class of an exception.

    The first reason counts, and a new session has none.
    """
    session = agentobs.session("says")
    with session, ThreadPoolExecutor(1) as pool:
        pool.submit(agentobs.fail, LookupError("content stays here")).result()
        session.fail("later")
    with session:
        pass
    ends = facts(home, "session_ends")
    assert [(end["outcome"], end["signature"]) for end in ends] == [
        ("failed", "declared:LookupError"),
        ("completed", None),
    ]


def session_here() -> str | None:
    place = tracing.place()
    return place.session_id if place is not None else None


def numbers(seen: list[str | None], count: int = 3) -> Iterator[int]:
    """Yield numbers, and note the current session each time; an exception that is thrown into the generator is caught
    once.
    """
    for number in range(count):
        seen.append(session_here())
        try:
            yield number
        except KeyError:
            seen.append(session_here())
            yield -1


async def anumbers(seen: list[str | None], count: int = 3) -> AsyncIterator[int]:
    for number in range(count):
        await asyncio.sleep(0)
        seen.append(session_here())
        try:
            yield number
        except KeyError:
            seen.append(session_here())
            yield -1


def iterate(kind: str, use: Callable[[Any, list[str | None]], None]) -> list[str | None]:
    """Let a consumer use a decorated generator, sync or async, with `send`, `throw` and `close`."""
    seen: list[str | None] = []
    if kind == "sync":
        use(agentobs.session("numbers")(numbers)(seen), seen)
        return seen
    with asyncio.Runner() as runner:
        use(_SyncDriver(agentobs.session("numbers")(anumbers)(seen), runner), seen)
    return seen


class _SyncDriver:
    """Wraps an async generator in the methods of a sync one."""

    def __init__(self, generator: Any, runner: asyncio.Runner) -> None:
        self._generator, self._runner = generator, runner

    def __next__(self) -> Any:
        return self._of(self._generator.__anext__())

    def throw(self, error: BaseException) -> Any:
        return self._of(self._generator.athrow(error))

    def close(self) -> None:
        self._of(self._generator.aclose())

    def _of(self, awaitable: Any) -> Any:
        async def awaited() -> Any:
            return await awaitable

        try:
            return self._runner.run(awaited())
        except StopAsyncIteration:
            raise StopIteration from None


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("ends", ["exhausted", "closed", "thrown", "handled"])
def test_a_session_spans_the_iteration_of_a_generator(home: Path, kind: str, ends: str) -> None:
    """The session of a generator starts with its first value and ends with the generator, and does not include its
    consumer.
    """

    def use(generator: Any, seen: list[str | None]) -> None:
        assert seen == []
        assert next(generator) == 0
        assert session_here() is None
        if ends == "closed":
            generator.close()
        elif ends == "thrown":
            with pytest.raises(LookupError, match="mine"):
                generator.throw(LookupError("mine"))
        elif ends == "handled":
            assert generator.throw(KeyError("yours")) == -1
        assert session_here() is None
        if ends in ("exhausted", "handled"):
            remaining = [1, 2]
            for number in remaining:
                assert next(generator) == number
                assert session_here() is None
            with pytest.raises(StopIteration):
                next(generator)

    seen = iterate(kind, use)
    [started], [ended] = facts(home, "session_starts"), facts(home, "session_ends")
    assert set(seen) == {started["session_id"]}
    assert (ended["outcome"], ended["reason"]) == {
        "exhausted": ("completed", None),
        "closed": ("interrupted", "GeneratorExit"),
        "thrown": ("failed", "LookupError"),
        "handled": ("completed", None),
    }[ends]


def test_each_iteration_is_a_session(home: Path) -> None:
    """Each iteration of a generator is a separate session, even if two are interleaved; a generator that is never
    iterated has no session.
    """
    seen: list[str | None] = []
    decorated = agentobs.session("numbers")(numbers)
    decorated(seen)
    first, second = decorated(seen, count=2), decorated(seen, count=2)
    assert [next(first), next(second), next(second), next(first)] == [0, 0, 1, 1]
    assert [list(first), list(second)] == [[], []]
    assert seen[0] == seen[3] != seen[1] == seen[2]
    assert len(facts(home, "session_starts")) == 2


def test_any_callable_can_be_decorated(home: Path) -> None:
    """Callables without a name or globals, or with an unusual signature, can be decorated, and are called as before."""

    @functools.cache
    def cached(x: int) -> int:
        return x + 1

    assert agentobs.session("cached")(cached)(1) == 2
    assert agentobs.session("partial")(functools.partial(cached, 2))() == 3
    assert len(facts(home, "session_starts")) == 2


@pytest.mark.parametrize(
    "breaks",
    [
        lambda patch: patch.setattr(world, "new_id", _boom),
        lambda patch: patch.setattr(world, "now", _boom),
        lambda patch: patch.setattr(sink_module.sink, "emit", _boom),
    ],
)
def test_an_internal_error_never_reaches_the_agent(
    home: Path, breaks: Callable[[pytest.MonkeyPatch], None], provider: ServedProvider
) -> None:
    """If starting or ending a session, or recording an exchange, raises an exception, the call of the agent still
    succeeds.
    """
    client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url, max_retries=0))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        breaks(patch)
        with agentobs.session("bug"), client.messages.stream(**ASK) as stream:
            assert stream.get_final_text() == "ok"


def _boom(*args: Any) -> Any:
    raise ZeroDivisionError("a bug of ours")


def test_a_replay_does_not_affect_later_recordings(
    home: Path, provider: ServedProvider, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After a replay with a request outside of every session, live calls are recorded completely."""
    made = weather(tmp_path_factory.mktemp("left"))
    with Replayer(made) as replayed:
        Agent().answer("How is it?")
        replayed.stop()
    assert tracing.place() is None
    agentobs.stop_recorder()
    client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url), home=str(home))
    list(client.messages.create(**ASK, stream=True))
    assert calls_by_session(home) == {"process": 1}


def test_a_session_cannot_both_resume_and_fork(home: Path) -> None:
    """A session that should resume one session and fork another raises an error, and nothing is recorded."""
    with pytest.raises(UsageError, match="both resume and fork"):
        agentobs.session("both", resume="1" * 32, fork="2" * 32)
    assert not home.exists()


def test_each_call_of_a_decorated_function_has_the_link(home: Path) -> None:
    """Each call of a function that is decorated with a fork is a session with this link; an invalid ID is recorded as a
    digest.
    """

    @agentobs.session("again", fork="no id, but what somebody typed")
    def run() -> None:
        pass

    run()
    run()
    links = [
        (fact["continues_session_id"].partition(":")[0], fact["relation"])
        for fact in facts(home, "session_starts")
    ]
    assert links == [("digest", "fork")] * 2


def test_an_invalid_content_mode_is_a_warning(
    home: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """If the variable names no content mode, there is one warning, and the content of the session is not recorded."""
    monkeypatch.setenv("AGENTOBS_CONTENT", "everything")
    with agentobs.session("quiet"):
        pass
    [start] = facts(home, "session_starts")
    assert start["content"] == "off"
    [warning] = [each for each in own_warnings(recwarn) if "content" in each]
    assert "AGENTOBS_CONTENT: invalid content mode: 'everything'" in warning
    assert "Use off, vault or export" in warning


def test_all_clients_can_be_named_in_a_with_statement(home: Path) -> None:
    """`with agentobs.record_all() as clients` gives the object whose `stop` ends the recording."""
    with agentobs.record_all() as clients, pytest.warns(RuntimeWarning, match="agentobs"):
        clients.stop()
