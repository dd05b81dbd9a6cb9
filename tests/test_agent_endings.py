"""Tests of how runs of agentobs.Agent share a client, and of how they end: early, aborted, or at the end of a block."""

from __future__ import annotations

import asyncio
import copy
import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import agentobs
from agentobs.agent import (
    AgentDefinition,
    AgentOptions,
    Conversation,
    Hook,
    RequestStart,
    Result,
    complete,
    live_world,
    run,
    tool,
)
from agentobs.errors import UsageError
from replay import Replayer, load
from replay.fixture.writer import write
from tests.agent.agent_runs import ALLOW_ALL
from tests.agent.provider import MODEL, Provider, Reply, call, message, streamed, text

DONE = streamed(message(text("Done.")))
OPTIONS = AgentOptions(MODEL, permissions=ALLOW_ALL, cache=None)
HELPER = AgentDefinition("helper", "Helps.")
WAIT_S = 10.0
"""How long a test waits for something that happens at once."""


def held() -> tuple[Reply, threading.Event]:
    """Return a response whose last bytes are sent after the event is set."""
    event = threading.Event()
    return streamed(message(text("Done.")), hold=event), event


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "the condition never held"
        time.sleep(0.005)


@contextmanager
def sync_run(
    agent: agentobs.Agent, provider: Provider, release: threading.Event
) -> Iterator[Future[Result]]:
    """Run an agent with `run_sync` in another thread; the context is entered when its first request has arrived."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(agent.run_sync, "Go")
        try:
            wait_for(lambda: provider.requests)
            yield future
        finally:
            release.set()


# --- one client, several event loops


def test_agents_with_one_client_share_its_connections() -> None:
    """Each `run_sync` sends its request once, with several agents on one client, and after another agent has ended."""
    with Provider([DONE] * 5) as provider:
        client = provider.client()
        with agentobs.Agent(client, options=OPTIONS) as first:
            assert first.run_sync("One").text == "Done."
            assert first.fresh().run_sync("Two").text == "Done."
        second = agentobs.Agent(client, options=OPTIONS)
        assert second.run_sync("Three").text == "Done."
        third = agentobs.Agent(client.with_options(max_retries=0), options=OPTIONS)
        assert third.run_sync("Four").text == "Done."
        assert first.run_sync("Five").text == "Done."
        assert len(provider.requests) == 5


@pytest.mark.parametrize("is_recorded", [False, True])
def test_one_client_in_several_event_loops(
    is_recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each event loop, one after the other, a client sends each request once."""
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    with Provider([DONE] * 5) as provider:
        client = agentobs.record(provider.client()) if is_recorded else provider.client()
        agent = agentobs.Agent(client, options=OPTIONS)
        assert asyncio.run(agent.run("One")).text == "Done."
        assert asyncio.run(agent.run("Two")).text == "Done."
        assert agent.run_sync("Three").text == "Done."
        assert asyncio.run(agent.run("Four")).text == "Done."
        assert agent.run_sync("Five").text == "Done."
        assert len(provider.requests) == 5
    agentobs.stop_recorder()


def test_a_client_that_is_not_the_sdks() -> None:
    """An object that behaves like a client can be used, even if it cannot be referenced weakly."""
    with Provider([DONE, DONE]) as provider:
        client = provider.client()
        stand_in: Any = SimpleNamespace(messages=client.messages, with_options=client.with_options)
        agent = agentobs.Agent(stand_in, options=OPTIONS)
        assert agent.run_sync("One").text == "Done."
        assert agent.fresh().run_sync("Two").text == "Done."
        assert len(provider.requests) == 2


def test_concurrent_sync_runs_with_one_client() -> None:
    """Agents with one client run at the same time in several threads."""
    (first, release_first), (second, release_second) = held(), held()
    with Provider([first, second]) as provider:
        agent = agentobs.Agent(provider.client(), options=OPTIONS)
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(each.run_sync, "Go") for each in (agent, agent.fresh())]
            wait_for(lambda: len(provider.requests) == 2)  # neither has ended
            release_first.set()
            release_second.set()
            assert [future.result().text for future in futures] == ["Done.", "Done."]
        assert len(provider.requests) == 2


def test_a_tool_that_runs_another_agent() -> None:
    """A tool may call `run_sync` of another agent with the same client."""
    with Provider([streamed(message(call("t1", "ask"), stop_reason="tool_use")), DONE, DONE]) as (
        provider
    ):
        client = provider.client()
        other = agentobs.Agent(client, options=OPTIONS)

        @tool(read_only=True)
        def ask() -> str:
            """Ask the other agent."""
            return f"It says: {other.run_sync('Well?').text}"

        agent = agentobs.Agent(client, options=OPTIONS, tools=[ask])
        assert agent.run_sync("Go").text == "Done."
        assert provider.requests[-1]["messages"][-1]["content"][0]["content"] == "It says: Done."


def test_a_client_that_is_in_use_in_another_event_loop() -> None:
    """While a run uses a client, an agent in another event loop is refused, and nothing is sent."""

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            agent = agentobs.Agent(client, options=OPTIONS)
            async with aclosing(agent.stream("One")) as events:
                await anext(events)
                with pytest.raises(UsageError, match="uses the client in another event loop"):
                    await asyncio.to_thread(agent.fresh().run_sync, "Two")
                assert [type(event) async for event in events][-1] is Result
            assert (await agent.run("Three")).text == "Done."

    with Provider([DONE, DONE]) as provider:
        asyncio.run(go(provider))
        assert len(provider.requests) == 2


def test_another_thread_is_refused_while_an_agent_runs() -> None:
    """While `run_sync` runs in one thread, another thread can neither run nor end the agent; the run continues."""
    reply, release = held()
    ended: list[Any] = []
    with Provider([reply]) as provider:
        hook = Hook("session_end", ended.append)
        agent = agentobs.Agent(provider.client(), options=OPTIONS, hooks=[hook])
        with sync_run(agent, provider, release) as future:
            with pytest.raises(UsageError, match="the agent is already running"):
                agent.run_sync("Two")
            with pytest.raises(UsageError, match="the agent is already running"):
                agent.end_sync()
            with pytest.raises(UsageError, match="the agent is already running"), agent:
                pass
            assert not future.done()
            release.set()
            assert (future.result().subtype, future.result().text) == ("success", "Done.")
        assert (len(provider.requests), ended) == (1, [])
        agent.end_sync()
        assert len(ended) == 1


# --- the end of a stream


def test_a_loop_that_is_left_at_the_result() -> None:
    """A loop that is left at the `Result` leaves the agent free, without closing the generator."""

    async def go(provider: Provider) -> None:
        async with provider.client() as client, agentobs.Agent(client, options=OPTIONS) as agent:
            for prompt in ("One", "Two"):
                events = agent.stream(prompt)
                async for event in events:
                    if isinstance(event, Result):
                        break
                assert isinstance(event, Result)
                assert event.text == "Done."
            conversation = Conversation()
            for prompt in ("Three", "Four"):
                world = live_world(client)
                events = run(prompt, world=world, options=OPTIONS, conversation=conversation)
                async for event in events:
                    if isinstance(event, Result):
                        break

    with Provider([DONE] * 4) as provider:
        asyncio.run(go(provider))
        assert [len(each["messages"]) for each in provider.requests] == [1, 3, 1, 3]


@pytest.mark.parametrize("keeps_generator", [False, True])
def test_a_loop_that_is_left_before_the_result(keeps_generator: bool) -> None:
    """`async with` closes a run that was left before its result, and the hooks for the end run."""
    ended: list[Any] = []
    kept: list[Any] = []

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            hook = Hook("session_end", ended.append)
            agent = agentobs.Agent(client, options=OPTIONS, hooks=[hook])
            async with agent:
                events = agent.stream("One")
                if keeps_generator:
                    kept.append(events)
                async for event in events:
                    if isinstance(event, RequestStart):
                        break
                del events
            assert len(ended) == 1
            assert (await agent.run("Two")).text == "Done."
            for each in kept:
                assert [event async for event in each] == []  # it does not end the second run
            async with aclosing(agent.stream("Three")) as events:
                await anext(events)
            assert (await agent.run("Four")).text == "Done."

    with Provider([DONE] * 4) as provider:
        asyncio.run(go(provider))


@pytest.mark.parametrize("is_read_by_another_task", [False, True])
def test_the_exception_of_a_block_is_not_hidden(is_read_by_another_task: bool) -> None:
    """An exception leaves `async with` unchanged; a run that has not ended is stopped, and the agent is ended."""
    ended: list[Any] = []
    seen: list[Any] = []

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            hook = Hook("session_end", ended.append)
            agent = agentobs.Agent(client, options=OPTIONS, hooks=[hook])
            other: asyncio.Task[None] | None = None

            async def read() -> None:
                seen.extend([event async for event in agent.stream("One")])

            with pytest.raises(ZeroDivisionError) as raised:
                async with agent:
                    if is_read_by_another_task:
                        other = asyncio.create_task(read())
                        await asyncio.to_thread(wait_for, lambda: provider.requests)
                    else:
                        async for _ in agent.stream("One"):
                            break
                    raise ZeroDivisionError
            assert not hasattr(raised.value, "__notes__")
            if other is not None:
                await other
                assert seen[-1].terminal_reason == "aborted_streaming"
            assert len(ended) == 1

    reply, release = held()
    with Provider([reply]) as provider:
        asyncio.run(go(provider))
        release.set()


def test_the_exception_of_a_sync_block_is_not_hidden() -> None:
    """An exception leaves `with` unchanged; a run of another thread is stopped cleanly."""
    reply, release = held()
    with Provider([reply]) as provider:
        agent = agentobs.Agent(provider.client(), options=OPTIONS)
        with sync_run(agent, provider, release) as future:
            with pytest.raises(ZeroDivisionError), agent:
                raise ZeroDivisionError
            assert future.result().terminal_reason == "aborted_streaming"


def test_a_failing_end_does_not_hide_the_exception_of_the_block() -> None:
    """If the agent cannot be ended after an exception, the exception has a note of the reason."""
    reply, release = held()
    with Provider([reply]) as provider:
        client = provider.client()
        first, second = (agentobs.Agent(client, options=OPTIONS) for _ in range(2))

        async def go() -> None:
            async with second:
                raise ZeroDivisionError

        with sync_run(first, provider, release), pytest.raises(ZeroDivisionError) as raised:
            asyncio.run(go())
        assert "another agent uses the client" in raised.value.__notes__[0]


def test_a_sync_block_in_an_event_loop() -> None:
    """In an event loop, `with agent` is refused when it starts, and `end_sync` names the other method."""

    async def go(provider: Provider) -> None:
        agent = agentobs.Agent(provider.client(), options=OPTIONS)
        with pytest.raises(UsageError, match=r"an event loop is running.*Use async with agent"):
            with agent:
                raise AssertionError("the block has started")
        with pytest.raises(UsageError, match=r"an event loop is running.*Use await agent.end"):
            agent.end_sync()

    with Provider([]) as provider:
        asyncio.run(go(provider))


# --- background agents and hooks


def test_abort_ends_the_wait_for_background_agents() -> None:
    """While `run_sync` waits for a background agent, `abort` stops the agent, and `run_sync` returns its result."""
    reply, release = held()
    with Provider([BOTH, reply, DONE, DONE]) as provider:

        @tool(read_only=True)
        def wait() -> str:
            """Wait until the helper has sent its request."""
            wait_for(lambda: len(provider.requests) == 2)
            return "It has."

        agent = agentobs.Agent(
            provider.client(), options=OPTIONS, tools=[wait], sub_agents=[HELPER]
        )
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(agent.run_sync, "Go")
            try:
                # The last message is the response, so the run itself has ended.
                wait_for(lambda: agent.conversation.messages[-1:] == (ANSWER,))
                background = agent.conversation.background["s1"]
                with pytest.raises(UsageError, match="the agent is already running"):
                    agent.run_sync("Two")
                assert not future.done()
                agent.abort()
                assert (future.result().subtype, future.result().text) == ("success", "Done.")
            finally:
                release.set()
        ended = background.task.result()
        assert (ended.subtype, ended.terminal_reason) == (
            "error_during_execution",
            "aborted_streaming",
        )
        assert agent.run_sync("Two").text == "Done."
        assert "it was stopped" in str(provider.requests[-1]["messages"][-1])


BOTH = streamed(
    message(
        call("s1", "agent", agent="helper", prompt="Help", run_in_background=True),
        call("t1", "wait"),
        stop_reason="tool_use",
    )
)
ANSWER = {"role": "assistant", "content": [text("Done.")]}


def test_abort_ends_the_wait_for_background_hooks() -> None:
    """While `run_sync` waits for a background hook, `abort` ends the wait; the hook continues."""
    started, release, has_ended = (threading.Event() for _ in range(3))

    def watch(payload: dict[str, Any]) -> None:
        started.set()
        release.wait(WAIT_S)
        has_ended.set()

    with Provider([DONE]) as provider:
        hook = Hook("stop", watch, background=True)
        agent = agentobs.Agent(provider.client(), options=OPTIONS, hooks=[hook])
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(agent.run_sync, "Go")
            try:
                assert started.wait(WAIT_S)
                wait_for(lambda: agent.conversation.messages[-1:] == (ANSWER,))
                agent.abort()
                assert future.result().text == "Done."
                assert not has_ended.is_set()
            finally:
                release.set()
        agent.end_sync()  # waits for the hook
        assert has_ended.is_set()


def test_the_hooks_for_the_end_run_after_an_abort() -> None:
    """An abort concerns the run only: the hooks for the end of the conversation run."""
    ended: list[Any] = []

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            hook = Hook("session_end", ended.append)
            async with agentobs.Agent(client, options=OPTIONS, hooks=[hook]) as agent:
                async for event in agent.stream("Go"):
                    if isinstance(event, RequestStart):
                        agent.abort()
                assert isinstance(event, Result)
                assert event.terminal_reason == "aborted_streaming"

    with Provider([DONE]) as provider:
        asyncio.run(go(provider))
    assert [each["event"] for each in ended] == ["session_end"]


@pytest.mark.slow
def test_an_interrupted_run_sync() -> None:
    """An exception that interrupts the waiting thread, such as Ctrl-C, cancels the run; then the agent is free."""
    script = """
        import signal, threading
        import agentobs
        from tests.test_agent_endings import OPTIONS, DONE, Provider, held, wait_for

        reply, release = held()
        with Provider([reply, DONE]) as provider:
            agent = agentobs.Agent(provider.client(), options=OPTIONS)

            def interrupt():
                wait_for(lambda: provider.requests)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

            threading.Thread(target=interrupt).start()
            try:
                agent.run_sync("One")
            except KeyboardInterrupt:
                print("interrupted")
            release.set()
            print(agent.run_sync("Two").text)
    """
    assert run_script(script) == "interrupted\nDone.\n"


def test_sync_runs_are_recorded_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording of `run_sync`, with a background agent and a second agent of the same client, replays."""
    from agentobs.recording.journal.home import open_home
    from agentobs.recording.journal.segments import segment_ids
    from agentobs.recording.vault.vault import read_session

    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()

    @tool(read_only=True)
    def wait() -> str:
        """Wait until the helper has sent its request."""
        wait_for(lambda: len(provider.requests) == 2)
        return "It has."

    def go() -> str:
        client = agentobs.record(provider.client())
        agent = agentobs.Agent(client, options=OPTIONS, tools=[wait], sub_agents=[HELPER])
        with agentobs.session("sync") as session, agent:
            ended = [agent.run_sync("Go"), agent.run_sync("Two"), agent.fresh().run_sync("Three")]
            assert [each.text for each in ended] == ["Done."] * 3, ended
        return session.session_id

    # If the report arrives when a run is about to end, the run continues with one more request.
    with Provider([BOTH, *[DONE] * 5]) as provider:
        session_id = go()
        assert agentobs.stop_recorder()
        assert any("agent_report" in str(each["messages"]) for each in provider.requests[2:])
    home = open_home(str(tmp_path / "home"))
    (tmp_path / "fixture").mkdir()
    written = write(read_session(home, session_id, segment_ids(home)), {})
    (tmp_path / "fixture" / "recording.jsonl").write_bytes(written)
    with Provider([]) as provider, Replayer(load(tmp_path / "fixture")) as replayed:
        replayed.run(go)


# --- copies, collection and exit


@pytest.mark.parametrize("copied", [copy.copy, replace])
def test_a_copy_of_a_running_conversation(copied: Callable[[Conversation], Conversation]) -> None:
    """A copy of a conversation that is in use is not in use itself."""

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            world, conversation = live_world(client), Conversation()
            events = run("One", world=world, options=OPTIONS, conversation=conversation)
            async with aclosing(events):
                await anext(events)
                other = copied(conversation)
                await complete("Two", world=world, options=OPTIONS, conversation=other)
                with pytest.raises(UsageError, match="another run of this conversation"):
                    await complete("Three", world=world, options=OPTIONS, conversation=conversation)

    with Provider([DONE, DONE]) as provider:
        asyncio.run(go(provider))


@pytest.mark.slow
def test_an_agent_that_is_collected_in_another_thread(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """An agent and its client may be collected in any thread: the thread of `run_sync` ends, and nothing is printed."""
    with Provider([DONE]) as provider:
        agents = [agentobs.Agent(provider.client(), options=OPTIONS)]
        before = set(threading.enumerate())
        agents[0].run_sync("Go")
        (thread,) = (
            each for each in set(threading.enumerate()) - before if "run-sync" in each.name
        )

        def collect() -> None:
            agents.clear()
            gc.collect()

        collector = threading.Thread(target=collect)
        collector.start()
        collector.join()
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_the_exit_of_the_interpreter() -> None:
    """At the exit of the interpreter, agents, their connections and a background hook that is running print nothing."""
    script = """
        import asyncio, threading
        import agentobs
        from agentobs.agent import Hook
        from tests.test_agent_endings import OPTIONS, DONE, Provider

        started = threading.Event()

        async def watch(payload):
            started.set()
            await asyncio.sleep(3600)

        def abort():
            started.wait()
            other.abort()

        with Provider([DONE, DONE, DONE]) as provider:
            client = provider.client()
            agent = agentobs.Agent(client, options=OPTIONS)
            hook = Hook("stop", watch, background=True)
            other = agentobs.Agent(provider.client(), options=OPTIONS, hooks=[hook])
            threading.Thread(target=abort).start()
            print(agent.run_sync("One").text, other.run_sync("Two").text)
            print(asyncio.run(agent.fresh().run("Three")).text)
    """
    assert run_script(script) == "Done. Done.\nDone.\n"


def run_script(script: str) -> str:
    """Run a script in another interpreter, and return what it prints, after checking that it prints no error."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout
