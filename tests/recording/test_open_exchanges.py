"""Exchanges that are never closed, and errors in agentobs itself: they are visible in the recording and never reach the
agent.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic

import agentobs
from agentobs.provider.content_encoding import decoded_body
from agentobs.recording import session as sessions
from agentobs.recording.facts.interpreter import Interpreter
from agentobs.recording.journal.home import existing_home
from agentobs.recording.wire import transport
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ModelExchange, Place
from agentobs.runtime import Process, process
from agentobs.sink import sink
from tests.provider_script import message_events, script, streamed, text
from tests.recording.test_wire import ASK, KEY, client, exchanges, facts, home, recorded

__all__ = ["home"]
STREAM = {"content-type": "text/event-stream"}


def replied(*answers: httpx2.Response) -> httpx2.MockTransport:
    remaining = iter(answers)
    return httpx2.MockTransport(lambda request: next(remaining))


@pytest.mark.slow
def test_an_abandoned_stream_is_recorded(home: Path) -> None:
    """The exchange of an abandoned stream ends as cancelled when the stream is garbage collected."""
    with ServedProvider(script(streamed(text("ok"))), ServeOptions(match="order")) as provider:
        recorded_client = client(provider)
        with agentobs.session("dropped"):
            recorded_client.messages.create(**ASK, stream=True)
            gc.collect()
            assert not transport.take_open()
    [session] = recorded(home)
    [exchange] = exchanges(session)
    assert (exchange.answer.status, exchange.answer.ending) == (200, "cancelled")


@pytest.mark.slow
def test_a_stream_of_a_closed_event_loop_is_recorded(home: Path) -> None:
    """If the event loop of an open stream is closed, the chunks that were read are recorded."""
    events = message_events(text("hello"))

    async def body() -> Any:
        for event in events:
            yield event

    async def main() -> Any:
        http = httpx2.AsyncClient(
            transport=replied(httpx2.Response(200, headers=STREAM, content=body()))
        )
        recorded_client = agentobs.record(AsyncAnthropic(api_key=KEY, http_client=http))
        stream = await recorded_client.messages.create(**ASK, stream=True)
        await stream.__anext__()
        return stream

    with agentobs.session("loop"):
        stream = asyncio.run(main())
        del stream
        gc.collect()
        assert not transport.take_open()
    [session] = recorded(home)
    [exchange] = exchanges(session)
    assert (exchange.answer.body, exchange.answer.ending) == (events[0], "cancelled")


def test_an_open_stream_ends_with_its_session(home: Path) -> None:
    """When a session ends during a stream, the chunks so far are recorded; later chunks only reach the agent."""
    with ServedProvider(
        script(*[streamed(text("ok"))] * 2), ServeOptions(match="order")
    ) as provider:
        recorded_client = client(provider)
        with agentobs.session("held"):
            stream = recorded_client.messages.create(**ASK, stream=True)
        outside = recorded_client.messages.create(**ASK, stream=True)
        [session, process] = recorded(home)
        for each in (session, process):
            assert [exchange.answer.ending for exchange in exchanges(each)] == ["cancelled"]
        assert [fact["turn"] for fact in facts(existing_home(home), "attempts")] == [1, 1]
        assert len(list(outside)) == len(message_events(text("ok")))
        assert len(list(stream)) == len(message_events(text("ok")))


@pytest.mark.slow
def test_a_process_exit_ends_open_exchanges(home: Path) -> None:
    """A script that exits with an unread stream leaves a complete recording and prints nothing."""
    with ServedProvider(script(streamed(text("ok"))), ServeOptions(match="order")) as provider:
        script_text = (
            "import agentobs, anthropic\n"
            f"client = agentobs.record(anthropic.Anthropic(api_key={KEY!r}, base_url={provider.url!r}))\n"
            "with agentobs.session('script'):\n"
            f"    kept = client.messages.create(**{ASK!r}, stream=True)\n"
        )
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", script_text],
            capture_output=True,
            text=True,
            check=True,
        )
    assert run.stderr == ""
    [session] = recorded(home)
    assert len(exchanges(session)) == 1


def test_a_forked_child_does_not_record_exchanges_of_its_parent(home: Path) -> None:
    """If a process forks while it reads a stream, only the parent records the stream, and only once."""
    with ServedProvider(script(streamed(text("ok"))), ServeOptions(match="order")) as provider:
        with agentobs.session("parent"):
            stream = client(provider).messages.create(**ASK, stream=True)
            child = os.fork()
            if child == 0:
                agentobs.stop_recorder()
                os._exit(0)
            os.waitpid(child, 0)
            list(stream)
    assert agentobs.stop_recorder()
    assert [fact["outcome"] for fact in facts(existing_home(home), "attempts")] == ["ok"]


def test_warnings_as_errors_do_not_reach_the_agent(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `-W error`, neither a full disk nor an error of agentobs raises an exception in the agent, and the worker
    keeps running.
    """

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug of ours")

    with ServedProvider(
        script(*[streamed(text("ok"))] * 3), ServeOptions(match="order")
    ) as provider:
        recorded_client = client(provider)
        recorder = sessions.start_recorder()
        assert recorder is not None
        with warnings.catch_warnings(), agentobs.session("errors"):
            warnings.simplefilter("error")
            for target, name in (
                (os, "write"),
                (transport.OpenExchange, "__init__"),
                (transport, "question_of"),
            ):
                with monkeypatch.context() as patched:
                    patched.setattr(target, name, broken)
                    stream = recorded_client.messages.create(**ASK, stream=True)
                    assert len(list(stream)) == len(message_events(text("ok")))
                    assert recorder.wait(5)
        assert recorder._thread is not None
        assert recorder._thread.is_alive()
    assert recorder.statistics().dropped > 0


def test_no_exception_ends_the_worker(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception while a record is written drops only that record, which is counted as dropped."""
    threads: list[str] = []

    def leaving(self: Interpreter, *_: Any) -> None:
        threads.append(threading.current_thread().name)
        raise SystemExit(1)

    with ServedProvider(script(streamed(text("ok"))), ServeOptions(match="order")) as provider:
        recorded_client = client(provider)
        with pytest.warns(RuntimeWarning, match="SystemExit"), agentobs.session("leaving"):
            with monkeypatch.context() as patched:
                patched.setattr(Interpreter, "_attempt", leaving)
                list(recorded_client.messages.create(**ASK, stream=True))
                recorder = sessions.start_recorder()
                assert recorder is not None
                assert recorder.flush() is False, "the record was dropped"
    [session] = recorded(home)
    assert (threads, session.dropped) == (["agentobs-recorder"], 1)


def test_encodings_are_decoded_by_the_recorder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's thread emits the encoded bytes as they arrived, and leaves decoding to the recorder."""
    emitted: list[ModelExchange] = []
    monkeypatch.setattr(sink, "emit", emitted.append)
    packed = gzip.compress(b"".join(message_events(text("hello"))))
    answer = httpx2.Response(
        200, headers={**STREAM, "content-encoding": "gzip"}, content=iter([packed])
    )
    http = httpx2.Client(transport=replied(answer))
    transport.instrument(http, lambda: Place("s"))
    with http.stream("POST", "http://provider.test/v1/messages") as response:
        assert b"".join(response.iter_raw()) == packed
    assert (emitted[0].answer.body, emitted[0].answer.encoding) == (packed, "gzip")


def test_context_methods_of_the_inner_transport_are_called(home: Path) -> None:
    """`__enter__` and `__exit__` of the inner transport are called, sync and async."""
    seen: list[str] = []

    class Inner(httpx2.MockTransport):
        def __enter__(self) -> Any:
            seen.append("enter")
            return self

        def __exit__(self, *_: Any) -> None:
            seen.append("exit")

        async def __aenter__(self) -> Any:
            seen.append("aenter")
            return self

        async def __aexit__(self, *_: Any) -> None:
            seen.append("aexit")

    def inner() -> Inner:
        return Inner(lambda request: httpx2.Response(200))

    async def main() -> None:
        async with agentobs.record(httpx2.AsyncClient(transport=inner())):
            pass

    with agentobs.record(httpx2.Client(transport=inner())):
        pass
    asyncio.run(main())
    assert seen == ["enter", "exit", "aenter", "aexit"]


def test_a_closed_unread_response_is_passed_on(home: Path) -> None:
    """If a transport returns a closed response that was never read, the agent gets it unchanged."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        response = httpx2.Response(204, stream=httpx2.ByteStream(b"never read"))
        response.close()
        return response

    http = agentobs.record(httpx2.Client(transport=httpx2.MockTransport(answer)))
    with agentobs.session("closed"):
        with http.stream("GET", "http://provider.test/v1/files") as response:
            assert response.status_code == 204
    [session] = recorded(home)
    assert [each.answer.status for each in exchanges(session)] == [204]


@pytest.mark.parametrize(
    ("value", "known"),
    [
        ("anything", False),
        ("not-a-key", False),
        ("key-of-test-1", True),
        ("x" * 16, True),
        ("a1", False),
    ],
)
def test_a_dummy_key_is_not_redacted(value: str, known: bool) -> None:
    """A short word that is used in place of a key does not count as a secret, so it is not redacted in texts."""
    request = httpx2.Request("POST", "http://provider.test", headers={"x-api-key": value})
    assert bool(transport.question_of(request).secrets) is known


def test_a_compressed_request_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is known when it is sent, so the parts of its response do not decode it again."""
    decoded: list[bytes] = []

    def counted(body: bytes, encoding: str) -> bytes:
        decoded.append(body)
        return decoded_body(body, encoding)

    monkeypatch.setattr(transport, "decoded_body", counted)
    request = httpx2.Request(
        "POST",
        "http://provider.test",
        headers={"content-encoding": "gzip"},
        content=gzip.compress(b"plain"),
    )
    exchange = transport.OpenExchange(request, Place("s"), 1)
    for _ in range(3):
        part = exchange.partial_exchange()
        assert part is not None
        assert part.question.body == b"plain"
    assert len(decoded) == 1


@agentobs.session("named")
def named(question: str, password: str, options: dict[str, str]) -> None:
    """Does nothing; a session with arguments, which a replay can call."""


def test_arguments_with_the_name_of_a_secret_are_not_written(home: Path) -> None:
    """Arguments with the name of a secret are redacted, whatever their values look like."""

    named("hello", "my dog's name", {"Api-Key": "letmein", "unit": "km"})
    [session] = recorded(home)
    assert session.arguments is not None
    hidden = session.arguments["password"], session.arguments["options"].pop("Api-Key")
    assert all(re.fullmatch(r"\[redacted:argument:[0-9a-f]{8}\]", each) for each in hidden)
    assert hidden[0] != hidden[1]
    assert {**session.arguments, "password": 0} == {
        "question": "hello",
        "password": 0,
        "options": {"unit": "km"},
    }


def test_a_request_without_tools_names_the_requests_in_flight(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange of a request that ends while others are in flight contains their bodies, unless it has tools."""
    found: list[ModelExchange] = []
    monkeypatch.setattr(process, "listener", found.append)

    async def main() -> None:
        is_done = asyncio.Event()

        async def answer(request: httpx2.Request) -> httpx2.Response:
            if b"first" in request.content:
                await is_done.wait()
            return httpx2.Response(
                200, headers=STREAM, content=b"".join(message_events(text("ok")))
            )

        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        recorded_client = agentobs.record(AsyncAnthropic(api_key=KEY, http_client=http))

        async def ask(prompt: str, **more: Any) -> None:
            messages = [{"role": "user", "content": prompt}]
            async for _ in await recorded_client.messages.create(
                **{**ASK, "messages": messages, **more}, stream=True
            ):
                pass

        async def others() -> None:
            await ask("second")
            await ask("third", tools=[{"name": "a", "input_schema": {"type": "object"}}])
            is_done.set()

        await asyncio.gather(ask("first"), others())

    with agentobs.session("parallel"):
        asyncio.run(main())
    assert [[b"first" in body for body in each.in_flight] for each in found] == [[True], [], []]


def test_a_listener_that_fails_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exception reaches neither the request nor the recorder, and the other listeners continue."""
    monkeypatch.setattr("agentobs.errors._reported", set())
    state, got = Process(), list[object]()

    def fails(*_: object) -> None:
        raise KeyError("a bug")

    state.request_listeners = (fails, got.append)
    state.record_listeners = (fails, lambda record, facts: got.append((record, facts)))
    with pytest.warns(RuntimeWarning, match="a listener is removed, because it failed: KeyError"):
        state.note_request("request")
    state.note_record("record", ())
    assert got == ["request", ("record", ())]
    assert (len(state.request_listeners), len(state.record_listeners)) == (1, 1)
