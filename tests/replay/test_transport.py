"""HTTP traffic that is recorded over the loopback interface, and replayed while the server is down."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import (
    Anthropic,
    AsyncAnthropic,
)

import agentobs
from agentobs.records.exchanges import ModelExchange
from replay import Replayer, ReplayOptions
from replay.divergence.divergence import ReplayStopped
from tests.marks import mark_all_but_first
from tests.provider_script import cut, message_events, refused, sse, streamed, text
from tests.replay.agents import MODEL, TOOLS
from tests.replay.raw_provider import JSON, SSE, Call, no_response, play, play_chunks, raw_provider
from tests.replay.wire_recordings import (
    BOTH,
    NOWHERE,
    REQUEST,
    async_client,
    client,
    error_facts,
    listen,
    message_json,
    recorded,
    replayed,
)

# A complete session, with every function of the SDK that sends a message


def tool_call(tool_use_id: str, name: str, **arguments: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool_use_id, "name": name, "input": arguments}


def planner(call: Call) -> None:
    """Respond to the agents of the crew according to their task and the number of earlier responses."""
    body = json.loads(call.body)
    task = body["messages"][0]["content"]
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    name = task.replace(" ", "")
    if name == "Planit" and turn == 0:
        content = [
            tool_call(f"toolu_{name}0{n}", "dig", where=place) for n, place in enumerate("ab")
        ]
    elif turn < (4 if name == "Planit" else 3):
        cities = ("Oslo", "Rome")[: 1 + turn % 2]
        content = [
            tool_call(f"toolu_{name}{turn}{n}", "weather", city=c) for n, c in enumerate(cities)
        ]
    else:
        content = [text(f"{task}: done, wörld")]
    if body.get("stream"):
        play(streamed(*content))(call)
    else:
        play_chunks(200, {**JSON, "request-id": f"req_{name}{turn}"}, message_json(*content))(call)


FORMS = ("stream", "create_stream", "create", "raw", "streaming_response")


def ask(client: Anthropic, form: str, **request: Any) -> Any:
    """Send a request with one of the SDK's functions; return the content blocks."""
    messages = client.messages
    if form == "stream":
        with messages.stream(**request) as stream:
            return stream.get_final_message().to_dict()["content"]
    if form == "create_stream":
        return joined(event.to_dict() for event in messages.create(**request, stream=True))
    if form == "create":
        return messages.create(**request).to_dict()["content"]
    if form == "raw":
        return messages.with_raw_response.create(**request).parse().to_dict()["content"]
    with messages.with_streaming_response.create(**request) as response:
        return response.parse().to_dict()["content"]


async def ask_async(client: AsyncAnthropic, form: str, **request: Any) -> Any:
    """Do the same as `ask` with an async client."""
    messages = client.messages
    if form == "stream":
        async with messages.stream(**request) as stream:
            return (await stream.get_final_message()).to_dict()["content"]
    if form == "create_stream":
        return joined([e.to_dict() async for e in await messages.create(**request, stream=True)])
    if form == "create":
        return (await messages.create(**request)).to_dict()["content"]
    if form == "raw":
        response = await messages.with_raw_response.create(**request)
        return (await response.parse()).to_dict()["content"]
    async with messages.with_streaming_response.create(**request) as response:
        return (await response.parse()).to_dict()["content"]


def joined(events: Any) -> list[Any]:
    """Assemble the content blocks of a message from its stream events, without a helper of the SDK."""
    blocks: list[Any] = []
    partial = ""
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            partial = ""
        elif event["type"] == "content_block_delta" and "text" in event["delta"]:
            blocks[-1]["text"] += event["delta"]["text"]
        elif event["type"] == "content_block_delta":
            partial += event["delta"]["partial_json"]
            blocks[-1]["input"] = json.loads(partial)
    return blocks


def tool_result(call: dict[str, Any], content: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call["id"], "content": content}


def crew(url: str, form: str) -> str:
    """A plain agent with two concurrent sub-agents in threads."""
    sdk = client(url, max_retries=0)

    def work(task: str) -> str:
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            content = ask(
                sdk, form, model=MODEL, max_tokens=64, tools=TOOLS, messages=list(messages)
            )
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                return str(content[0]["text"])
            with ThreadPoolExecutor() as pool:
                results = list(pool.map(tool, calls))
            messages += [
                {"role": "assistant", "content": content},
                {"role": "user", "content": list(map(tool_result, calls, results))},
            ]

    def tool(call: dict[str, Any]) -> str:
        return work(f"Dig {call['input']['where']}") if call["name"] == "dig" else "rain"

    with agentobs.session("crew"):
        return work("Plan it")


def async_crew(url: str, form: str) -> str:
    """The same agent with an async client and tasks."""

    async def main() -> str:
        sdk = async_client(url, max_retries=0)

        async def work(task: str) -> str:
            messages: list[Any] = [{"role": "user", "content": task}]
            while True:
                content = await ask_async(
                    sdk, form, model=MODEL, max_tokens=64, tools=TOOLS, messages=list(messages)
                )
                calls = [block for block in content if block["type"] == "tool_use"]
                if not calls:
                    return str(content[0]["text"])
                results = await asyncio.gather(*map(tool, calls))
                messages += [
                    {"role": "assistant", "content": content},
                    {"role": "user", "content": list(map(tool_result, calls, results))},
                ]

        async def tool(call: dict[str, Any]) -> str:
            return await work(f"Dig {call['input']['where']}") if call["name"] == "dig" else "rain"

        with agentobs.session("crew"):
            return await work("Plan it")

    return asyncio.run(main())


def assert_replays(tmp_path: Path, run: Callable[[str], str]) -> None:
    live, fixture, raw = recorded(tmp_path, [planner] * 13, run)
    assert live == "Plan it: done, wörld"
    assert len(raw.requests) == len(fixture.requests) == 13
    with Replayer(fixture) as replay:
        assert replay.run(run, NOWHERE) == live
    exchanges = [record for record in replay.records if isinstance(record, ModelExchange)]
    assert len(exchanges) == 13
    assert by_lane((m.place.lane, m.question.body) for m in exchanges) == by_lane(
        (a.lane, fixture.body(a.number)) for a in fixture.requests
    )


def by_lane(requests: Any) -> dict[str, list[bytes]]:
    """Return the sorted bodies of each lane, because the order between concurrent lanes is arbitrary."""
    lanes: dict[str, list[bytes]] = {}
    for lane, body in requests:
        lanes.setdefault(lane, []).append(body)
    return {lane: sorted(bodies) for lane, bodies in lanes.items()}


@pytest.mark.parametrize("form", mark_all_but_first(FORMS, pytest.mark.slow))
def test_an_async_session_replays(tmp_path: Path, form: str) -> None:
    """An async session with 13 requests, parallel tools and two concurrent sub-agents replays while the server is
    down.
    """
    assert_replays(tmp_path, lambda url: async_crew(url, form))


@pytest.mark.parametrize("form", mark_all_but_first(FORMS, pytest.mark.slow))
def test_a_sync_session_replays_in_each_form(tmp_path: Path, form: str) -> None:
    """A session with threads and the sync client replays while the server is down: streamed, unstreamed and raw."""
    assert_replays(tmp_path, lambda url: crew(url, form))


def test_different_json_formatting_matches(tmp_path: Path) -> None:
    """A request matches if its JSON has a different key order, separators or escapes at any depth."""
    body = {**REQUEST, "metadata": {"user_id": "ü"}, "tools": TOOLS}

    def run(write: Callable[[Any], str]) -> Callable[[str], int]:
        def send_request(url: str) -> int:
            headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
            with agentobs.session("written"):
                http = client(url)._client
                return http.post(
                    f"{url}/v1/messages", content=write(body), headers=headers
                ).status_code

        return send_request

    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(each) for each in value] if isinstance(value, list) else value

    _, fixture, _ = recorded(tmp_path, [play(streamed(text("hi")))], run(json.dumps))
    written: list[Callable[[Any], str]] = [
        lambda body: json.dumps(turned(body)),
        lambda body: json.dumps(body, indent=3),
        lambda body: json.dumps(body, separators=(",", ":"), ensure_ascii=False),
    ]
    for write in written:
        assert replayed(fixture, run(write)) == 200


# Errors of the provider


def response_facts(url: str, **options: Any) -> Any:
    """Send one request, and return everything that the agent can read from the response or the error."""
    sdk = client(url, **options)
    with agentobs.session("one"):
        try:
            response = sdk.messages.with_raw_response.create(**REQUEST)
        except anthropic.APIError as error:
            return error_facts(error)
        return response.retries_taken, response.request_id, response.parse().to_dict()


WHOLE = play_chunks(200, {**JSON, "request-id": "req_9"}, message_json(text("at last")))


def test_a_rate_limit_is_retried_without_a_wait(tmp_path: Path, waits: list[float]) -> None:
    """A rate limit with `retry-after: 30` replays as two attempts without a wait, and the recorded header is kept."""
    limited = play(refused(429, "rate_limit_error", retry_after="30", request_id="req_8"))
    live, fixture, raw = recorded(tmp_path, [limited, WHOLE], response_facts)
    assert live[:2] == (1, "req_9")
    assert [request.headers["x-stainless-retry-count"] for request in raw.requests] == ["0", "1"]
    assert waits.count(30.0) == 1
    waits.clear()
    with Replayer(fixture) as replay:
        assert replay.run(response_facts, NOWHERE) == live
    assert max(waits, default=0) < 0.001
    first, second = (r for r in replay.records if isinstance(r, ModelExchange))
    assert first.answer.headers["retry-after"] == "30"
    assert "retry-after-ms" not in first.answer.headers
    assert second.question.headers["x-stainless-retry-count"] == "1"


def test_the_pace_determines_the_wait(tmp_path: Path, waits: list[float]) -> None:
    """With `pace`, a client waits as long as in the recording, or the recorded time divided by the pace."""
    limited = play(refused(429, "rate_limit_error", retry_after="30"))
    live, fixture, _ = recorded(tmp_path, [limited, WHOLE], response_facts)
    waits.clear()
    assert replayed(fixture, response_facts, pace="recorded") == live
    assert waits.count(30.0) == 1
    waits.clear()
    assert replayed(fixture, response_facts, pace=10) == live
    assert waits.count(3.0) == 1


def overloaded_requests(url: str, asynchronous: bool) -> list[Any]:
    """Send three streamed requests, and return their results."""

    def stream_facts(events: list[Any], error: anthropic.APIError | None = None) -> Any:
        return [event.to_dict() for event in events], error and error_facts(error)

    async def ask_async() -> list[Any]:
        found = []
        sdk = async_client(url, max_retries=1)
        with agentobs.session("overloads"):
            for _ in range(3):
                events: list[Any] = []
                try:
                    async for event in await sdk.messages.create(**REQUEST, stream=True):
                        events.append(event)
                except anthropic.APIStatusError as error:
                    found.append(stream_facts(events, error))
                else:
                    found.append(stream_facts(events))
        return found

    def ask() -> list[Any]:
        found = []
        sdk = client(url, max_retries=1)
        with agentobs.session("overloads"):
            for _ in range(3):
                events: list[Any] = []
                try:
                    for event in sdk.messages.create(**REQUEST, stream=True):
                        events.append(event)
                except anthropic.APIStatusError as error:
                    found.append(stream_facts(events, error))
                else:
                    found.append(stream_facts(events))
        return found

    return asyncio.run(ask_async()) if asynchronous else ask()


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_overloads_raise_the_same_exceptions(
    tmp_path: Path, asynchronous: bool, waits: list[float]
) -> None:
    """Repeated overloads, and an overload inside a stream with status 200, raise the same exceptions live and in a
    replay.
    """
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    broken = play_chunks(200, SSE, *message_events(text("hello"))[:3], *sse(error))
    twice = play(refused(529, request_id="req_529"))
    plays = [twice, twice, broken, play(streamed(text("at last")))]
    live, fixture, raw = recorded(
        tmp_path, plays, lambda url: overloaded_requests(url, asynchronous)
    )
    kinds = [error and (error[0], error[2]) for _, error in live]
    assert kinds == [("OverloadedError", 529), ("APIStatusError", 200), None]
    assert [len(events) for events, _ in live] == [0, 3, 6]
    assert len(raw.requests) == 4
    waits.clear()
    assert replayed(fixture, lambda url: overloaded_requests(url, asynchronous)) == live
    assert max(waits, default=0) < 0.001


# Connections


LONG = streamed(*(text(f"part {n}, wörld") for n in range(4)))


def unrecorded(url: str, asynchronous: bool) -> Any:
    """Listen with a client that is not recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agentobs, "record", lambda client: client)
        return listen(url, asynchronous)


@BOTH
def test_a_dropped_connection_drops_at_the_same_event(tmp_path: Path, asynchronous: bool) -> None:
    """A connection that drops after eight events raises the same error after the same events: unrecorded, recorded and
    replayed.
    """
    with raw_provider([play(cut(LONG, 8))]) as plain:
        bare = unrecorded(plain.url, asynchronous)
    live, fixture, raw = recorded(tmp_path, [play(cut(LONG, 8))], lambda u: listen(u, asynchronous))
    assert live == bare
    assert (len(live[0]), live[1]) == (8, httpx2.RemoteProtocolError)
    assert len(raw.requests) == len(plain.requests) == 1
    assert replayed(fixture, lambda url: listen(url, asynchronous)) == live
    [request] = fixture.requests
    assert request.answer.ending == "cut"


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("at", [1, 600, sum(len(chunk.data) for chunk in LONG.chunks[:6])])
def test_an_early_end_of_a_stream_is_at_the_same_byte(
    tmp_path: Path, asynchronous: bool, at: int
) -> None:
    """A stream that the provider ends early, inside an event or between events, ends at the same byte in a replay."""
    body = LONG.body[:at]

    def closes(call: Call) -> None:
        call.send_headers(framed=False)
        call.send(body)
        call.end()

    live, fixture, _ = recorded(tmp_path, [closes], lambda url: listen(url, asynchronous))
    assert live[1] is None
    assert fixture.requests[0].answer.body == body
    assert fixture.requests[0].answer.ending == "complete"
    assert replayed(fixture, lambda url: listen(url, asynchronous)) == live


@BOTH
def test_an_abandoned_stream_is_recorded_as_canceled(tmp_path: Path, asynchronous: bool) -> None:
    """A stream that the agent abandons after three events is recorded as canceled, with all chunks that were
    received.
    """
    client_stopped = threading.Event()

    def stops(call: Call) -> None:
        call.send_headers()
        call.send(*(chunk.data for chunk in LONG.chunks[:5]))
        client_stopped.wait(20)
        call.end()

    def run(url: str) -> Any:
        try:
            return listen(url, asynchronous, stop_after=3)
        finally:
            client_stopped.set()

    live, fixture, _ = recorded(tmp_path, [stops], run)
    assert (len(live[0]), live[1]) == (3, None)
    [request] = fixture.requests
    assert request.answer.ending == "cancelled"
    received_events = request.answer.body.count(b"\n\n")
    assert 3 <= received_events <= 5
    assert replayed(fixture, run) == live
    with Replayer(fixture, ReplayOptions(serve_rest=True)) as replay:
        events, error, _ = replay.run(listen, NOWHERE, asynchronous)
    assert (len(events), error) == (received_events, None)
    with Replayer(fixture) as replay:
        events, error, message = listen(NOWHERE, asynchronous)
        assert (len(events), error) == (received_events, ReplayStopped)
        assert "the client stopped reading here" in message


@BOTH
def test_an_abandoned_stream_does_not_block_others(tmp_path: Path, asynchronous: bool) -> None:
    """If a stream is abandoned, another stream that is open at the same time continues."""

    def pair(url: str) -> list[str]:
        sdk = client(url)
        first, second = ({**REQUEST, "max_tokens": n} for n in (1, 2))
        event_types: list[str] = []
        with agentobs.session("pair"):
            abandoned = sdk.messages.create(**first, stream=True)
            with sdk.messages.create(**second, stream=True) as stream:
                for number, event in enumerate(stream):
                    event_types.append(event.type)
                    if number == 1:
                        event_types.append(next(iter(abandoned)).type)
                        abandoned.close()
        return event_types

    async def pair_async(url: str) -> list[str]:
        sdk = async_client(url)
        first, second = ({**REQUEST, "max_tokens": n} for n in (1, 2))
        event_types: list[str] = []
        with agentobs.session("pair"):
            abandoned = await sdk.messages.create(**first, stream=True)
            async with await sdk.messages.create(**second, stream=True) as stream:
                async for event in stream:
                    event_types.append(event.type)
                    if len(event_types) == 2:
                        event_types.append((await anext(aiter(abandoned))).type)
                        await abandoned.close()
        return event_types

    def run(url: str) -> list[str]:
        return asyncio.run(pair_async(url)) if asynchronous else pair(url)

    live, fixture, _ = recorded(tmp_path, [play(LONG), play(LONG)], run)
    assert len(live) == 1 + len(LONG.chunks)
    assert replayed(fixture, run) == live


def test_timeouts_and_refused_connections_raise_the_same_errors(
    tmp_path: Path, waits: list[float]
) -> None:
    """A read timeout and a refused connection raise the same errors after the same number of attempts, without
    waits.
    """

    def patient(url: str) -> Any:
        return response_facts(url, max_retries=2, timeout=httpx2.Timeout(5, read=0.05))

    live, fixture, raw = recorded(tmp_path, [no_response] * 3, patient)
    assert live[0] == "APITimeoutError"
    assert len(raw.requests) == len(fixture.requests) == 3
    assert sum(waits) > 1
    waits.clear()
    with Replayer(fixture) as replay:
        assert replay.run(patient, NOWHERE) == live
    assert replay.progress.requests_matched == 3
    assert sum(waits) == 0

    def without_provider(url: str) -> Any:
        return response_facts(NOWHERE, max_retries=2)

    live, fixture, _ = recorded(tmp_path / "without_provider", [], without_provider)
    assert live[0] == "APIConnectionError"
    assert len(fixture.requests) == 3
    waits.clear()
    with Replayer(fixture) as replay:
        assert replay.run(without_provider, NOWHERE) == live
    assert replay.progress.requests_matched == 3
    assert sum(waits) == 0
    responses = [record.answer for record in replay.records if isinstance(record, ModelExchange)]
    assert [(a.status, a.ending, a.failure and a.failure.name) for a in responses] == [
        (None, "error", "ConnectError")
    ] * 3


def test_a_successful_retry_ends_the_attempts(tmp_path: Path, waits: list[float]) -> None:
    """A timeout that is followed by a successful retry replays without a wait."""

    def run(url: str) -> Any:
        async def ask() -> Any:
            sdk = async_client(url, timeout=httpx2.Timeout(5, read=0.2))
            with agentobs.session("late"):
                response = await sdk.messages.with_raw_response.create(**REQUEST)
                return response.retries_taken, (await response.parse()).to_dict()

        return asyncio.run(ask())

    live, fixture, raw = recorded(tmp_path, [no_response, WHOLE], run)
    assert (live[0], len(raw.requests)) == (1, 2)
    waits.clear()
    assert replayed(fixture, run) == live
    assert sum(waits) == 0


@pytest.mark.slow
@BOTH
def test_recording_does_not_buffer(tmp_path: Path, asynchronous: bool) -> None:
    """A recorded agent receives each event before the provider sends the next event."""
    had = threading.Semaphore(0)
    order: list[str] = []

    def waits_for_the_agent(call: Call) -> None:
        call.send_headers()
        for number, chunk in enumerate(LONG.chunks):
            order.append(f"sent {number}")
            call.send(chunk.data)
            assert had.acquire(timeout=20)
        call.end()

    def run(url: str) -> int:
        def note(number: int) -> None:
            order.append(f"had {number}")
            had.release()

        async def ask() -> int:
            stream = await async_client(url).messages.create(**REQUEST, stream=True)
            number = -1
            async for _ in stream:
                note(number := number + 1)
            return number

        with agentobs.session("live"):
            if asynchronous:
                return asyncio.run(ask())
            number = -1
            for number, _ in enumerate(client(url).messages.create(**REQUEST, stream=True)):
                note(number)
            return number

    live, fixture, _ = recorded(tmp_path, [waits_for_the_agent], run)
    assert live == len(LONG.chunks) - 1
    assert order == [f"{what} {n}" for n in range(live + 1) for what in ("sent", "had")]
    assert replayed(fixture, run) == live
