"""Torture cases of the wire: 1, 2, 5 and 26 to 32, recorded over loopback HTTP and replayed with the server down."""

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
from tests.provider_script import cut, message_events, refused, sse, streamed, text
from tests.replay.agents import MODEL, TOOLS
from tests.replay.on_the_wire import (
    ASK,
    BOTH,
    NOWHERE,
    async_client,
    client,
    listen,
    message_json,
    recorded,
    replayed,
    seen,
)
from tests.replay.raw_provider import JSON, SSE, Call, pieces, play, raw_provider, silent

# 1 and 2: a whole session, in every form in which the SDK can be asked


def tool_call(tool_use_id: str, name: str, **arguments: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool_use_id, "name": name, "input": arguments}


def planner(call: Call) -> None:
    """Answer the crew: what comes next is told by the task and by how often was answered before."""
    asked = json.loads(call.body)
    task = asked["messages"][0]["content"]
    turn = sum(message["role"] == "assistant" for message in asked["messages"])
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
    if asked.get("stream"):
        play(streamed(*content))(call)
    else:
        pieces(200, {**JSON, "request-id": f"req_{name}{turn}"}, message_json(*content))(call)


FORMS = ("stream", "create_stream", "create", "raw", "streaming_response")


def ask(client: Anthropic, form: str, **asked: Any) -> Any:
    """Ask in one of the forms; return the content blocks."""
    messages = client.messages
    if form == "stream":
        with messages.stream(**asked) as stream:
            return stream.get_final_message().to_dict()["content"]
    if form == "create_stream":
        return joined(event.to_dict() for event in messages.create(**asked, stream=True))
    if form == "create":
        return messages.create(**asked).to_dict()["content"]
    if form == "raw":
        return messages.with_raw_response.create(**asked).parse().to_dict()["content"]
    with messages.with_streaming_response.create(**asked) as response:
        return response.parse().to_dict()["content"]


async def ask_async(client: AsyncAnthropic, form: str, **asked: Any) -> Any:
    """Do as `ask`."""
    messages = client.messages
    if form == "stream":
        async with messages.stream(**asked) as stream:
            return (await stream.get_final_message()).to_dict()["content"]
    if form == "create_stream":
        return joined([e.to_dict() async for e in await messages.create(**asked, stream=True)])
    if form == "create":
        return (await messages.create(**asked)).to_dict()["content"]
    if form == "raw":
        response = await messages.with_raw_response.create(**asked)
        return (await response.parse()).to_dict()["content"]
    async with messages.with_streaming_response.create(**asked) as response:
        return (await response.parse()).to_dict()["content"]


def joined(events: Any) -> list[Any]:
    """Return the blocks of a message from its events, as somebody would who uses no helper."""
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


def told(call: dict[str, Any], content: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call["id"], "content": content}


def crew(url: str, form: str) -> str:
    """A plain agent with two sub-agents at once, in threads."""
    asked = client(url, max_retries=0)

    def work(task: str) -> str:
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            content = ask(
                asked, form, model=MODEL, max_tokens=64, tools=TOOLS, messages=list(messages)
            )
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                return str(content[0]["text"])
            with ThreadPoolExecutor() as pool:
                results = list(pool.map(tool, calls))
            messages += [
                {"role": "assistant", "content": content},
                {"role": "user", "content": list(map(told, calls, results))},
            ]

    def tool(call: dict[str, Any]) -> str:
        return work(f"Dig {call['input']['where']}") if call["name"] == "dig" else "rain"

    with agentobs.session("crew"):
        return work("Plan it")


def async_crew(url: str, form: str) -> str:
    """The same with an async client and tasks."""

    async def main() -> str:
        asked = async_client(url, max_retries=0)

        async def work(task: str) -> str:
            messages: list[Any] = [{"role": "user", "content": task}]
            while True:
                content = await ask_async(
                    asked, form, model=MODEL, max_tokens=64, tools=TOOLS, messages=list(messages)
                )
                calls = [block for block in content if block["type"] == "tool_use"]
                if not calls:
                    return str(content[0]["text"])
                results = await asyncio.gather(*map(tool, calls))
                messages += [
                    {"role": "assistant", "content": content},
                    {"role": "user", "content": list(map(told, calls, results))},
                ]

        async def tool(call: dict[str, Any]) -> str:
            return await work(f"Dig {call['input']['where']}") if call["name"] == "dig" else "rain"

        with agentobs.session("crew"):
            return await work("Plan it")

    return asyncio.run(main())


def is_replayed_whole(tmp_path: Path, run: Callable[[str], str]) -> None:
    live, fixture, raw = recorded(tmp_path, [planner] * 13, run)
    assert live == "Plan it: done, wörld"
    assert len(raw.asked) == len(fixture.asks) == 13
    with Replayer(fixture) as replay:
        assert replay.run(run, NOWHERE) == live
    made = [record for record in replay.records if isinstance(record, ModelExchange)]
    assert len(made) == 13
    assert by_lane((m.place.lane, m.question.body) for m in made) == by_lane(
        (a.lane, fixture.body(a.number)) for a in fixture.asks
    )


def by_lane(asked: Any) -> dict[str, list[bytes]]:
    """Return the bodies of each lane; which of those beside each other came first was chance."""
    lanes: dict[str, list[bytes]] = {}
    for lane, body in asked:
        lanes.setdefault(lane, []).append(body)
    return {lane: sorted(bodies) for lane, bodies in lanes.items()}


@pytest.mark.parametrize("form", FORMS)
def test_01_a_clean_async_session_replays(tmp_path: Path, form: str) -> None:
    """13 requests, parallel tools, two sub-agents at once: the same path in each lane with the server down."""
    is_replayed_whole(tmp_path, lambda url: async_crew(url, form))


@pytest.mark.parametrize("form", FORMS)
def test_02_so_does_a_sync_one_in_each_form(tmp_path: Path, form: str) -> None:
    """The same with the sync client in threads; streamed, whole, raw: whatever way the SDK is asked."""
    is_replayed_whole(tmp_path, lambda url: crew(url, form))


def test_05_the_same_json_written_otherwise_matches(tmp_path: Path) -> None:
    """Another order of keys, other separators and escapes ask the same, at each depth."""
    body = {**ASK, "metadata": {"user_id": "ü"}, "tools": TOOLS}

    def run(write: Callable[[Any], str]) -> Callable[[str], int]:
        def asking(url: str) -> int:
            headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
            with agentobs.session("written"):
                http = client(url)._client
                return http.post(
                    f"{url}/v1/messages", content=write(body), headers=headers
                ).status_code

        return asking

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


# 26 and 27: refusals


def one(url: str, **options: Any) -> Any:
    """Ask once, and tell all that the agent can see of it, an error included."""
    asked = client(url, **options)
    with agentobs.session("one"):
        try:
            response = asked.messages.with_raw_response.create(**ASK)
        except anthropic.APIError as error:
            return seen(error)
        return response.retries_taken, response.request_id, response.parse().to_dict()


WHOLE = pieces(200, {**JSON, "request-id": "req_9"}, message_json(text("at last")))


def test_26_a_refusal_is_retried_without_its_wait(tmp_path: Path, waits: list[float]) -> None:
    """429 with `retry-after: 30`: two attempts, a retry count that the agent sees, the wait in the record, no wait."""
    limited = play(refused(429, "rate_limit_error", retry_after="30", request_id="req_8"))
    live, fixture, raw = recorded(tmp_path, [limited, WHOLE], one)
    assert live[:2] == (1, "req_9")
    assert [asked.headers["x-stainless-retry-count"] for asked in raw.asked] == ["0", "1"]
    assert waits.count(30.0) == 1
    waits.clear()
    with Replayer(fixture) as replay:
        assert replay.run(one, NOWHERE) == live
    assert max(waits, default=0) < 0.001
    first, second = (r for r in replay.records if isinstance(r, ModelExchange))
    assert first.answer.headers["retry-after"] == "30"
    assert "retry-after-ms" not in first.answer.headers
    assert second.question.headers["x-stainless-retry-count"] == "1"


def test_26_the_recorded_pace_waits_as_long(tmp_path: Path, waits: list[float]) -> None:
    """With `pace` a client waits as it waited, or a factor of it."""
    limited = play(refused(429, "rate_limit_error", retry_after="30"))
    live, fixture, _ = recorded(tmp_path, [limited, WHOLE], one)
    waits.clear()
    assert replayed(fixture, one, pace="recorded") == live
    assert waits.count(30.0) == 1
    waits.clear()
    assert replayed(fixture, one, pace=10) == live
    assert waits.count(3.0) == 1


def overloads(url: str, asynchronous: bool) -> list[Any]:
    """Ask three times, streamed, and tell what came of it."""

    def told(events: list[Any], error: anthropic.APIError | None = None) -> Any:
        return [event.to_dict() for event in events], error and seen(error)

    async def ask_async() -> list[Any]:
        found = []
        asked = async_client(url, max_retries=1)
        with agentobs.session("overloads"):
            for _ in range(3):
                events: list[Any] = []
                try:
                    async for event in await asked.messages.create(**ASK, stream=True):
                        events.append(event)
                except anthropic.APIStatusError as error:
                    found.append(told(events, error))
                else:
                    found.append(told(events))
        return found

    def ask() -> list[Any]:
        found = []
        asked = client(url, max_retries=1)
        with agentobs.session("overloads"):
            for _ in range(3):
                events: list[Any] = []
                try:
                    for event in asked.messages.create(**ASK, stream=True):
                        events.append(event)
                except anthropic.APIStatusError as error:
                    found.append(told(events, error))
                else:
                    found.append(told(events))
        return found

    return asyncio.run(ask_async()) if asynchronous else ask()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_27_overloads_are_the_same_exceptions(
    tmp_path: Path, asynchronous: bool, waits: list[float]
) -> None:
    """529 twice, then an error event in a stream of status 200, then success: types, statuses, bodies, texts."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    broken = pieces(200, SSE, *message_events(text("hello"))[:3], *sse(error))
    twice = play(refused(529, request_id="req_529"))
    plays = [twice, twice, broken, play(streamed(text("at last")))]
    live, fixture, raw = recorded(tmp_path, plays, lambda url: overloads(url, asynchronous))
    kinds = [error and (error[0], error[2]) for _, error in live]
    assert kinds == [("OverloadedError", 529), ("APIStatusError", 200), None]
    assert [len(events) for events, _ in live] == [0, 3, 6]
    assert len(raw.asked) == 4
    waits.clear()
    assert replayed(fixture, lambda url: overloads(url, asynchronous)) == live
    assert max(waits, default=0) < 0.001


# 28 to 32: connections


LONG = streamed(*(text(f"part {n}, wörld") for n in range(4)))


def unrecorded(url: str, asynchronous: bool) -> Any:
    """Listen with a client that nobody records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agentobs, "record", lambda client: client)
        return listen(url, asynchronous)


@BOTH
def test_28_a_dropped_connection_drops_at_the_same_event(
    tmp_path: Path, asynchronous: bool
) -> None:
    """Eight events, then `RemoteProtocolError`, live and replayed; the recorder changes nothing of the live run."""
    with raw_provider([play(cut(LONG, 8))]) as plain:
        bare = unrecorded(plain.url, asynchronous)
    live, fixture, raw = recorded(tmp_path, [play(cut(LONG, 8))], lambda u: listen(u, asynchronous))
    assert live == bare
    assert (len(live[0]), live[1]) == (8, httpx2.RemoteProtocolError)
    assert len(raw.asked) == len(plain.asked) == 1
    assert replayed(fixture, lambda url: listen(url, asynchronous)) == live
    [asked] = fixture.asks
    assert asked.answer.ending == "cut"


@BOTH
@pytest.mark.parametrize("at", [1, 600, sum(len(chunk.data) for chunk in LONG.chunks[:6])])
def test_29_a_clean_end_without_message_stop_ends_at_the_same_byte(
    tmp_path: Path, asynchronous: bool, at: int
) -> None:
    """The provider closes in the middle of an event, or between two: the SDK takes it, live and replayed."""
    body = LONG.body[:at]

    def closes(call: Call) -> None:
        call.head(framed=False)
        call.send(body)
        call.end()

    live, fixture, _ = recorded(tmp_path, [closes], lambda url: listen(url, asynchronous))
    assert live[1] is None
    assert fixture.asks[0].answer.body == body
    assert fixture.asks[0].answer.ending == "complete"
    assert replayed(fixture, lambda url: listen(url, asynchronous)) == live


@BOTH
def test_30_a_consumer_that_stops_is_recorded_as_such(tmp_path: Path, asynchronous: bool) -> None:
    """After three of the events the agent breaks: the recording says so; the rest is there for who wants it."""
    gone = threading.Event()

    def stops(call: Call) -> None:
        call.head()
        call.send(*(chunk.data for chunk in LONG.chunks[:5]))
        gone.wait(20)
        call.end()

    def run(url: str) -> Any:
        try:
            return listen(url, asynchronous, stop_after=3)
        finally:
            gone.set()

    live, fixture, _ = recorded(tmp_path, [stops], run)
    assert (len(live[0]), live[1]) == (3, None)
    [asked] = fixture.asks
    assert asked.answer.ending == "cancelled"
    there = asked.answer.body.count(b"\n\n")
    assert 3 <= there <= 5
    assert replayed(fixture, run) == live
    with Replayer(fixture, ReplayOptions(serve_rest=True)) as replay:
        events, error, _ = replay.run(listen, NOWHERE, asynchronous)
    assert (len(events), error) == (there, None)
    with Replayer(fixture) as replay:
        events, error, said = listen(NOWHERE, asynchronous)
        assert (len(events), error) == (there, ReplayStopped)
        assert "the client stopped reading here" in said


@BOTH
def test_30_other_streams_go_on(tmp_path: Path, asynchronous: bool) -> None:
    """A stream that is left does not hold up the one that was opened beside it."""

    def pair(url: str) -> list[str]:
        asked = client(url)
        first, second = ({**ASK, "max_tokens": n} for n in (1, 2))
        seen: list[str] = []
        with agentobs.session("pair"):
            left = asked.messages.create(**first, stream=True)
            with asked.messages.create(**second, stream=True) as stream:
                for number, event in enumerate(stream):
                    seen.append(event.type)
                    if number == 1:
                        seen.append(next(iter(left)).type)
                        left.close()
        return seen

    async def pair_async(url: str) -> list[str]:
        asked = async_client(url)
        first, second = ({**ASK, "max_tokens": n} for n in (1, 2))
        seen: list[str] = []
        with agentobs.session("pair"):
            left = await asked.messages.create(**first, stream=True)
            async with await asked.messages.create(**second, stream=True) as stream:
                async for event in stream:
                    seen.append(event.type)
                    if len(seen) == 2:
                        seen.append((await anext(aiter(left))).type)
                        await left.close()
        return seen

    def run(url: str) -> list[str]:
        return asyncio.run(pair_async(url)) if asynchronous else pair(url)

    live, fixture, _ = recorded(tmp_path, [play(LONG), play(LONG)], run)
    assert len(live) == 1 + len(LONG.chunks)
    assert replayed(fixture, run) == live


def test_31_time_outs_and_refused_connections_are_the_same_errors(
    tmp_path: Path, waits: list[float]
) -> None:
    """A read that times out, and a host that is not there: the same exception after as many attempts, at once."""

    def patient(url: str) -> Any:
        return one(url, max_retries=2, timeout=httpx2.Timeout(5, read=0.05))

    live, fixture, raw = recorded(tmp_path, [silent] * 3, patient)
    assert live[0] == "APITimeoutError"
    assert len(raw.asked) == len(fixture.asks) == 3
    assert sum(waits) > 1
    waits.clear()
    with Replayer(fixture) as replay:
        assert replay.run(patient, NOWHERE) == live
    assert replay.progress.requests_matched == 3
    assert sum(waits) == 0

    def lonely(url: str) -> Any:
        return one(NOWHERE, max_retries=2)

    live, fixture, _ = recorded(tmp_path / "lonely", [], lonely)
    assert live[0] == "APIConnectionError"
    assert len(fixture.asks) == 3
    waits.clear()
    with Replayer(fixture) as replay:
        assert replay.run(lonely, NOWHERE) == live
    assert replay.progress.requests_matched == 3
    assert sum(waits) == 0
    made = [record.answer for record in replay.records if isinstance(record, ModelExchange)]
    assert [(a.status, a.ending, a.failure and a.failure.name) for a in made] == [
        (None, "error", "ConnectError")
    ] * 3


def test_31_a_try_that_succeeds_ends_the_row(tmp_path: Path, waits: list[float]) -> None:
    """A time-out in the async client, then an answer: the retry is replayed, and does not wait."""

    def run(url: str) -> Any:
        async def ask() -> Any:
            asked = async_client(url, timeout=httpx2.Timeout(5, read=0.2))
            with agentobs.session("late"):
                response = await asked.messages.with_raw_response.create(**ASK)
                return response.retries_taken, (await response.parse()).to_dict()

        return asyncio.run(ask())

    live, fixture, raw = recorded(tmp_path, [silent, WHOLE], run)
    assert (live[0], len(raw.asked)) == (1, 2)
    waits.clear()
    assert replayed(fixture, run) == live
    assert sum(waits) == 0


@BOTH
def test_32_recording_does_not_buffer(tmp_path: Path, asynchronous: bool) -> None:
    """The provider sends each event only after the agent had the one before."""
    had = threading.Semaphore(0)
    order: list[str] = []

    def waits_for_the_agent(call: Call) -> None:
        call.head()
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
            stream = await async_client(url).messages.create(**ASK, stream=True)
            number = -1
            async for _ in stream:
                note(number := number + 1)
            return number

        with agentobs.session("live"):
            if asynchronous:
                return asyncio.run(ask())
            number = -1
            for number, _ in enumerate(client(url).messages.create(**ASK, stream=True)):
                note(number)
            return number

    live, fixture, _ = recorded(tmp_path, [waits_for_the_agent], run)
    assert live == len(LONG.chunks) - 1
    assert order == [f"{what} {n}" for n in range(live + 1) for what in ("sent", "had")]
    assert replayed(fixture, run) == live
