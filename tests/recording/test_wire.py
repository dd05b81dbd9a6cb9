"""Recording of HTTP exchanges: what the SDK sends and receives, over real loopback HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic

import agentobs
from agentobs.errors import UsageError
from agentobs.recording import session as sessions
from agentobs.recording.journal.home import Home, existing_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.recording.wire import transport as wire
from agentobs.recording.wire.provider_server import Fault, ServedProvider, ServeOptions
from agentobs.records.exchanges import ModelExchange, Recording
from agentobs.runtime import process
from tests.agentobs_warnings import own_warnings
from tests.provider_script import message_events, refused, script, streamed, text

KEY = "sk-ant-api03-this-is-the-key-of-the-test-0123456789"
ASK: dict[str, Any] = {
    "model": "claude-sonnet-5",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Guten Tag, é"}],
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate home; `recorded` writes all waiting records before it reads."""
    path = tmp_path / "home"
    monkeypatch.setenv("AGENTOBS_HOME", str(path))
    yield path
    agentobs.stop_recorder()


def recorded(path: Path) -> list[Recording]:
    """Return all sessions of a home, in the order of their starts."""
    assert agentobs.stop_recorder()
    home = existing_home(path)
    segments = segment_ids(home)
    return [
        read_session(home, fact["session_id"], segments) for fact in facts(home, "session_starts")
    ]


def facts(home: Home, kind: str) -> list[dict[str, Any]]:
    lines = [line for each in segment_ids(home) for line in read(facts_path(home, each))]
    return [line.value() for line in lines if isinstance(line, Line) and line.kind == kind]


def client(provider: ServedProvider, **options: Any) -> Anthropic:
    return agentobs.record(Anthropic(api_key=KEY, base_url=provider.url, **options))


def exchanges(recording: Recording) -> list[ModelExchange]:
    return [e for e in recording.exchanges if isinstance(e, ModelExchange)]


def test_a_streamed_call_is_recorded_byte_for_byte(home: Path) -> None:
    """Method, path, body, status, recorded headers, and each byte of the response, in its chunks."""
    answer = streamed(text("hello"), text("wörld"))
    with ServedProvider(script(answer), ServeOptions(match="order")) as provider:
        with agentobs.session("one"), client(provider).messages.stream(**ASK) as stream:
            assert stream.get_final_text() == "hellowörld"
    [session] = recorded(home)
    [exchange] = exchanges(session)
    assert (exchange.question.method, exchange.question.path) == ("POST", "/v1/messages")
    assert json.loads(exchange.question.body) == {**ASK, "stream": True}
    assert "é".encode() in exchange.question.body
    assert exchange.answer.status == 200
    assert exchange.answer.headers == dict(sorted(answer.headers.items()))
    assert exchange.answer.body == answer.body
    assert exchange.answer.ending == "complete"
    assert [chunk.after_ns for chunk in exchange.answer.chunks] == sorted(
        chunk.after_ns for chunk in exchange.answer.chunks
    )


def test_the_agent_sees_each_byte_when_it_arrives(home: Path) -> None:
    """The agent receives the first event before the provider sends the second."""
    released = asyncio.Event()
    first, *rest = message_events(text("hello"))

    async def body() -> Any:
        yield first
        await asyncio.wait_for(released.wait(), 20)
        for chunk in rest:
            yield chunk

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body())

    async def main() -> list[str]:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        recorded_client = agentobs.record(AsyncAnthropic(api_key=KEY, http_client=http))
        seen = []
        with agentobs.session("live"):
            stream = await recorded_client.messages.create(**ASK, stream=True)
            async for event in stream:
                seen.append(event.type)
                released.set()
        return seen

    assert asyncio.run(main())[0] == "message_start"
    [session] = recorded(home)
    assert exchanges(session)[0].answer.body == b"".join([first, *rest])


def test_keys_are_never_written(home: Path) -> None:
    """Neither the client's own key nor a text that matches a key pattern is in any file."""
    other = "ghp_" + "a1B2" * 9
    ask = {**ASK, "messages": [{"role": "user", "content": f"my key is {KEY}, and {other}"}]}
    answers = script(streamed(text(f"you said {KEY} and {other}")), refused(401, KEY))
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        recorded_client = client(provider, max_retries=0)
        with agentobs.session("secrets", tags={"key": KEY}):
            with recorded_client.messages.stream(**ask) as stream:
                assert KEY in stream.get_final_text()
            with pytest.raises(anthropic.AuthenticationError):
                recorded_client.messages.create(**ask, extra_headers={"cookie": f"session={KEY}"})
    [session] = recorded(home)
    assert b"[redacted:credential:" in exchanges(session)[0].question.body
    for path in home.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
            assert other.encode() not in path.read_bytes(), path


def test_headers_are_recorded_without_secrets(home: Path) -> None:
    """Clients and servers may put any text into recorded headers: secrets in the values are redacted, and the rest
    stays unchanged.
    """
    token, key = "ghp_" + "Ab1Cd2Ef3G" * 3 + "Ab1Cd2", "made-up-key-0123456789"
    headers = {
        "anthropic-ratelimit-tokens-remaining": f"99 {token}",
        "content-type": "application/json",
        "request-id": f"req_{key}",
    }
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=b"{}"))
    client = agentobs.record(httpx2.Client(transport=transport))
    sent = {"x-api-key": key, "anthropic-beta": f"beta-1,{token}", "content-type": "text/plain"}
    with agentobs.session("headers"):
        client.post("http://127.0.0.1/", headers=sent, content=b"x")
    agentobs.stop_recorder()
    written = b"".join(path.read_bytes() for path in (home / "segments").iterdir())
    assert token.encode() not in written
    assert key.encode() not in written
    [exchange] = exchanges(recorded(home)[0])
    request_headers, response_headers = exchange.question.headers, exchange.answer.headers
    assert request_headers["anthropic-beta"].startswith("beta-1,[redacted:")
    assert response_headers["request-id"].startswith("req_[redacted:credential")
    assert response_headers["anthropic-ratelimit-tokens-remaining"].startswith("99 [redacted:")
    assert (request_headers["content-type"], response_headers["content-type"]) == (
        "text/plain",
        "application/json",
    )


def test_retries_are_attempts_of_one_request(home: Path) -> None:
    """A 529 that the SDK retries makes two attempts of one LLM request, with the requested wait."""
    answers = script(refused(529, retry_after_ms="1"), streamed(text("ok")))
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        with agentobs.session("retried"):
            client(provider).messages.create(**ASK, stream=True).close()
    assert agentobs.stop_recorder()
    first, second = facts(existing_home(home), "attempts")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["llm_request_id"] == second["llm_request_id"]
    assert (first["status"], first["error_type"], first["retry_after_ms"]) == (
        529,
        "overloaded_error",
        1,
    )
    assert first["turn"] == second["turn"] == 1


@pytest.mark.parametrize("chunks", [0, 1, 4])
def test_a_broken_connection_is_recorded(home: Path, chunks: int) -> None:
    """The chunks before the break are recorded, and the exception reaches the agent unchanged."""
    answer = streamed(text("hello"))
    options = ServeOptions(match="order", faults=(Fault(at=1, cut_after=chunks),))
    with ServedProvider(script(answer), options) as provider:
        recorded_client = client(provider, max_retries=0)
        with agentobs.session("cut"):
            stream = recorded_client.messages.create(**ASK, stream=True)
            with pytest.raises(httpx2.TransportError) as raised:
                list(stream)
    [session] = recorded(home)
    [exchange] = exchanges(session)
    assert exchange.answer.ending == "cut"
    assert exchange.answer.body == b"".join(c.data for c in answer.chunks[:chunks])
    assert exchange.answer.failure is not None
    assert exchange.answer.failure.name == type(raised.value).__name__


def test_a_consumer_that_stops_is_recorded_as_cancelled(home: Path) -> None:
    """If the consumer leaves a stream, the chunks that arrived are recorded, with the ending `cancelled`."""
    with ServedProvider(script(streamed(text("a"), text("b"))), ServeOptions("order")) as provider:
        with agentobs.session("stopped"), client(provider).messages.stream(**ASK) as stream:
            next(iter(stream))
    assert agentobs.stop_recorder()
    [attempt] = facts(existing_home(home), "attempts")
    assert attempt["outcome"] in ("cancelled", "ok")
    [usage] = facts(existing_home(home), "usage")
    assert usage["certainty"] == ("exact" if attempt["outcome"] == "ok" else "lower_bound")


def test_a_refused_connection_is_an_attempt_without_response(home: Path) -> None:
    """It has no status, and the name of the httpx2 error is recorded."""
    recorded_client = agentobs.record(
        Anthropic(api_key=KEY, base_url="http://127.0.0.1:9", max_retries=1)
    )
    with agentobs.session("refused"), pytest.raises(anthropic.APIConnectionError):
        recorded_client.messages.create(**ASK)
    assert agentobs.stop_recorder()
    first, second = facts(existing_home(home), "attempts")
    assert [first["outcome"], first["error_type"], first["status"]] == [
        "no_response",
        "ConnectError",
        None,
    ]
    assert second["llm_request_id"] == first["llm_request_id"]


def test_recording_twice_changes_nothing(home: Path) -> None:
    """A second `record`, a `with_options()` copy and a copy of the copy record each call once."""
    with ServedProvider(
        script(*[streamed(text("ok"))] * 3), ServeOptions(match="order")
    ) as provider:
        recorded_client = client(provider)
        assert agentobs.record(recorded_client) is recorded_client
        with agentobs.session("copies"):
            for each in (
                recorded_client,
                recorded_client.with_options(timeout=9),
                agentobs.record(recorded_client.with_options(max_retries=1).copy()),
            ):
                each.messages.create(**ASK, stream=True).close()
    [session] = recorded(home)
    assert len(exchanges(session)) == 3


def test_aiohttp_is_recorded(home: Path) -> None:
    """The SDK's aiohttp client is recorded like other clients."""

    async def main(url: str) -> str:
        http = anthropic.DefaultAioHttpClient()
        async with agentobs.record(
            AsyncAnthropic(api_key=KEY, base_url=url, http_client=http)
        ) as recorded_client:
            with agentobs.session("aiohttp"):
                async with recorded_client.messages.stream(**ASK) as stream:
                    return await stream.get_final_text()

    answer = streamed(text("hello"))
    with ServedProvider(script(answer), ServeOptions(match="order")) as provider:
        assert asyncio.run(main(provider.url)) == "hello"
    [session] = recorded(home)
    assert exchanges(session)[0].answer.body == answer.body


class _SyncObserver:
    """Stands for a recorder that syncs, and notes for how long the end of a response waits."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, float]] = []

    def opened(self) -> None:
        pass

    def wait(self, seconds: float) -> bool:
        self.waits.append(("wait", seconds))
        return True

    async def settle(self, seconds: float) -> bool:
        self.waits.append(("settle", seconds))
        return True


def test_the_end_of_a_response_waits_for_the_sync(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If syncs are requested, a sync client waits once per response, and an async client without blocking its loop."""
    observer = _SyncObserver()

    async def main(url: str) -> str:
        recorded_client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url))
        async with recorded_client.messages.stream(**ASK) as stream:
            return await stream.get_final_text()

    answers = script(streamed(text("a")), streamed(text("b")))
    with ServedProvider(answers, ServeOptions("order")) as provider, agentobs.session("always"):
        recorded_client = client(provider)
        monkeypatch.setattr(process, "exchange_observer", observer)
        monkeypatch.setattr(process, "wait_seconds", 0.25)
        with recorded_client.messages.stream(**ASK) as stream:
            assert stream.get_final_text() == "a"
        assert observer.waits == [("wait", 0.25)]
        assert asyncio.run(main(provider.url)) == "b"
        assert observer.waits == [("wait", 0.25), ("settle", 0.25)]
        monkeypatch.undo()


def test_a_custom_client_keeps_its_settings(home: Path) -> None:
    """Timeouts, mounts and hooks of a client stay; mounted transports are recorded as well."""
    seen: list[str] = []
    mounted = httpx2.MockTransport(lambda _: httpx2.Response(200, json={"type": "message"}))
    http = httpx2.Client(
        timeout=httpx2.Timeout(3.5),
        mounts={"all://mounted.test": mounted},
        event_hooks={"request": [lambda request: seen.append(request.url.host)]},
    )
    recorded_client = agentobs.record(
        Anthropic(api_key=KEY, http_client=http, base_url="http://mounted.test")
    )
    with agentobs.session("custom"):
        recorded_client.messages.create(**ASK)
    assert (http.timeout.read, seen) == (3.5, ["mounted.test"])
    [session] = recorded(home)
    assert exchanges(session)[0].answer.body == b'{"type":"message"}'


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_encoded_bodies_are_recorded_decoded(home: Path, encoding: str) -> None:
    """The agent gets an encoded response decoded as usual, and the recording contains it decoded."""
    plain = b"".join(message_events(text("hello")))
    packed = _packed(plain, encoding)
    chunks = [packed[at : at + 40] for at in range(0, len(packed), 40)]

    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream", "content-encoding": encoding}
        return httpx2.Response(200, headers=headers, content=iter(chunks))

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    recorded_client = agentobs.record(Anthropic(api_key=KEY, http_client=http))
    with agentobs.session("encoded"), recorded_client.messages.stream(**ASK) as stream:
        assert stream.get_final_text() == "hello"
    [session] = recorded(home)
    assert exchanges(session)[0].answer.body == plain


def _packed(data: bytes, encoding: str) -> bytes:
    import brotli
    from backports import zstd

    pack: dict[str, Any] = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": brotli.compress,
        "zstd": zstd.compress,
    }
    packed: bytes = pack[encoding](data)
    return packed


@pytest.mark.slow
def test_an_endless_stream_needs_limited_memory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a limit, bytes only pass through to the agent and are counted in an event; the session is incomplete."""
    monkeypatch.setattr(wire, "KEPT_BYTES", 1000)
    chunks = [b": padding %03d\n\n" % number for number in range(500)]

    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=iter(chunks))

    http = agentobs.record(httpx2.Client(transport=httpx2.MockTransport(answer)))
    with agentobs.session("endless"):
        assert http.get("http://provider.test/").content == b"".join(chunks)
    [session] = recorded(home)
    [exchange] = exchanges(session)
    assert len(exchange.answer.body) == 990
    assert session.dropped == 1
    rows = agentobs.query(
        "SELECT label, numbers['kept_bytes'], numbers['lost_bytes'] FROM events "
        "WHERE kind = 'body_truncated'"
    )
    assert rows == [(exchange.attempt_id, 990, 500 * 15 - 990)]


def test_a_line_above_the_limit_passes_through(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets all bytes of a response that is a single line; what is recorded ends at the limit."""
    monkeypatch.setattr(wire, "KEPT_BYTES", 1_000_000)
    line = [b'data: {"text": "', *[b"The wind is cold. " * 5_000] * 40, b'"}\n\n']

    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=iter(line))

    http = agentobs.record(httpx2.Client(transport=httpx2.MockTransport(answer)))
    with agentobs.session("one line"):
        assert http.get("http://provider.test/").content == b"".join(line)
    [session] = recorded(home)
    assert exchanges(session)[0].answer.body == b"".join(line[:12])
    assert session.dropped == 1


def test_an_object_without_a_client_is_rejected(home: Path) -> None:
    """The error states that there is no HTTP client, and names the alternatives."""
    with pytest.raises(
        UsageError, match=r"cannot record dict: it contains no client of .*record_all"
    ):
        agentobs.record({})


def test_a_client_is_found_in_the_api_of_a_model(home: Path) -> None:
    """A model of Inspect AI holds its client in the attribute `api`."""
    with ServedProvider(script(streamed(text("ok"))), ServeOptions(match="order")) as provider:
        sdk = Anthropic(api_key=KEY, base_url=provider.url)
        agentobs.record(SimpleNamespace(api=SimpleNamespace(client=sdk)))
        with agentobs.session("api"), sdk.messages.stream(**ASK) as stream:
            assert stream.get_final_text() == "ok"
    [session] = recorded(home)
    assert len(exchanges(session)) == 1


def test_an_unusable_home_does_not_affect_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one warning, and the call of the agent succeeds without being recorded."""
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "file" / "home"))
    with ServedProvider(script(streamed(text("ok"))), ServeOptions(match="order")) as provider:
        with pytest.warns(RuntimeWarning, match="not recording") as warned:
            recorded_client = client(provider)
            with agentobs.session("none"), recorded_client.messages.stream(**ASK) as stream:
                assert stream.get_final_text() == "ok"
    [warning] = own_warnings(warned)
    assert "Not a directory" in warning


def test_a_full_disk_does_not_affect_the_agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing can be written, the call succeeds, there is one warning, and the loss is counted."""

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with ServedProvider(script(streamed(text("ok"))), ServeOptions(match="order")) as provider:
        recorded_client = client(provider)
        recorder = sessions.start_recorder()
        assert recorder is not None
        monkeypatch.setattr(os, "write", full)
        with pytest.warns(RuntimeWarning, match="No space left"):
            with agentobs.session("full"), recorded_client.messages.stream(**ASK) as stream:
                assert stream.get_final_text() == "ok"
            assert recorder.flush()
        monkeypatch.undo()
    assert recorder.statistics().dropped == 3
    assert recorder.statistics().written == 0


def test_threads_belong_to_the_open_session(home: Path) -> None:
    """A thread without a context records into the only open session."""
    with ServedProvider(script(*[streamed(text("ok"))] * 3), ServeOptions("order")) as provider:
        recorded_client = client(provider)
        with agentobs.session("threads"), ThreadPoolExecutor(2) as pool:
            ask: Any = recorded_client.messages.create
            calls = [pool.submit(ask, **ASK, stream=True) for _ in range(2)]
            assert all(list(call.result()) for call in calls)
            list(recorded_client.messages.create(**ASK, stream=True))
    [session] = recorded(home)
    assert (session.name, len(exchanges(session))) == ("threads", 3)


def test_calls_outside_every_session_belong_to_the_process(home: Path) -> None:
    """Without a session, exchanges are recorded in the session of the process."""
    with ServedProvider(
        script(*[streamed(text("ok"))] * 2), ServeOptions(match="order")
    ) as provider:
        recorded_client = client(provider)
        for _ in range(2):
            recorded_client.messages.create(**ASK, stream=True).close()
    [session] = recorded(home)
    assert (session.name, len(exchanges(session))) == ("process", 2)
    assert session.outcome == "completed"
