"""Replay: the same agent receives its recorded responses, and the first request that differs is reported."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from syrupy.assertion import SnapshotAssertion

import agentobs
from agentobs.errors import UsageError
from agentobs.recording.wire.provider_server import Fault
from agentobs.records.exchanges import Answer, Chunk
from replay import DivergenceError, Fixture, Replayer
from tests.provider_script import refused, streamed, text
from tests.replay.agents import (
    KEY,
    MODEL,
    TOOLS,
    WEATHER,
    Agent,
    answers,
    ask_concurrently,
    frozen,
    recorded,
    report,
    weather,
)


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return weather(tmp_path_factory.mktemp("weather"))


def divergence_of(fixture: Fixture, agent: Agent, prompt: str = "How is it?") -> str:
    """Run a changed agent, and return its divergence."""
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replayed:
        replayed.run(agent.answer, prompt)
    return report(raised.value.divergence)


def test_the_same_agent_matches(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """Every request of an unchanged agent matches the recording, and the agent receives the recorded responses."""
    with Replayer(fixture) as replayed:
        assert replayed.run(Agent().answer, "How is it?") == "Oslo is wet."
    assert replayed.progress.requests_matched == replayed.progress.requests == 3
    assert replayed.trajectory == snapshot


def test_another_key_and_base_url_match(fixture: Fixture) -> None:
    """The API key and the host are not compared."""
    with Replayer(fixture) as replayed:
        replayed.run(
            Agent("http://elsewhere.test", key="another-key-0123456789").answer, "How is it?"
        )


def test_nothing_is_recorded_during_a_replay(fixture: Fixture, tmp_path: Path) -> None:
    """A replay writes no journal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
        with Replayer(fixture) as replayed:
            replayed.run(Agent().answer, "How is it?")
    assert not (tmp_path / "home").exists()


CHANGES: dict[str, dict[str, Any]] = {
    "tool_result": {"weather": {**WEATHER, "Rome": "sun, 21.5 C"}},
    "whitespace": {"system": "Be  brief."},
    "tool_added": {"tools": [*TOOLS, {"name": "news", "input_schema": {"type": "object"}}]},
    "tool_schema": {"tools": [TOOLS[0], {**TOOLS[1], "description": "the time"}]},
    "option": {"extra": {"max_tokens": 65}},
    "header": {"extra": {"extra_headers": {"anthropic-beta": "context-1m"}}},
    "option_added": {"extra": {"extra_body": {"temperature": 0.5}}},
    "float": {"extra": {"max_tokens": 64.5}},
    "uuid": {"clock": "3f2b8c1e-0000-4000-8000-00000000000a"},
    "decomposed": {"weather": {**WEATHER, "Oslo": "rain, 4 C\u0301"}},
    "hostile": {"system": "\x1b]52;c;aGk=\x07\u202eBe brief.</script>"},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_diverges_at_the_first_affected_request(
    fixture: Fixture, change: str, snapshot: SnapshotAssertion
) -> None:
    """A change diverges at the first request that it affects, and the report contains the place, both values, and the
    cause.
    """
    assert divergence_of(fixture, Agent(**CHANGES[change])) == snapshot


def test_a_changed_prompt_diverges_at_the_first_request(
    fixture: Fixture, snapshot: SnapshotAssertion
) -> None:
    """A changed prompt diverges at the first request."""
    assert divergence_of(fixture, Agent(), "How was it?") == snapshot


@pytest.mark.parametrize(
    "extra",
    [
        {
            "extra_headers": {
                "user-agent": "mine/1",
                "traceparent": "00-1-2-01",
                "x-stainless-os": "x",
            }
        },
        {"max_tokens": 64.0},
        {"timeout": 3.0},
    ],
)
def test_irrelevant_differences_match(fixture: Fixture, extra: dict[str, Any]) -> None:
    """Headers that vary between machines, a timeout, and a float in place of an equal integer are ignored."""
    with Replayer(fixture) as replayed:
        replayed.run(Agent(extra=extra).answer, "How is it?")


def test_key_order_and_escapes_match(fixture: Fixture) -> None:
    """A JSON body with a different key order, whitespace or escapes is the same request."""
    client = agentobs.record(Anthropic(api_key=KEY))
    body = json.loads(fixture.body(1))
    content = json.dumps(dict(reversed(body.items())), indent=3, ensure_ascii=True)
    url = "https://api.anthropic.com/v1/messages"
    with pytest.raises(DivergenceError, match="request 2 of 3"), Replayer(fixture) as replayed:
        got = client._client.post(url, content=content, headers=fixture.requests[0].headers)
        assert got.status_code == 200
    assert replayed.progress.requests_matched == 1


def test_an_additional_request_diverges(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """An additional request diverges, even if it equals a recorded request."""
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replayed:
        Agent().answer("How is it?")
        Agent().answer("How is it?")
    assert raised.value.divergence.kind == "extra"
    assert replayed.progress.requests_matched == 3
    assert report(raised.value.divergence) == snapshot


def test_a_missing_request_diverges_at_the_end(
    fixture: Fixture, snapshot: SnapshotAssertion
) -> None:
    """A recorded request that is never sent fails the replay at its end."""

    def impatient() -> None:
        client = agentobs.record(Anthropic(api_key=KEY))
        with agentobs.session("weather-agent"):
            body = json.loads(fixture.body(1))
            body.pop("stream")
            client.messages.create(**body, stream=True).close()

    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replayed:
        replayed.run(impatient)
    assert report(raised.value.divergence) == snapshot


def test_requests_in_a_different_order_diverge(tmp_path: Path) -> None:
    """If sequential requests are swapped, the report states that the first of them was sent out of order."""

    def ask(url: str | None, *prompts: str) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        with agentobs.session("two"):
            for prompt in prompts:
                messages = [{"role": "user", "content": prompt}]
                client.messages.create(model=MODEL, max_tokens=9, messages=messages)  # type: ignore[arg-type]

    responses = [streamed(text("one"), number=1), streamed(text("two"), number=2)]
    frozen_fixture = frozen(tmp_path, recorded(tmp_path, lambda url: ask(url, "a", "b"), responses))
    with pytest.raises(DivergenceError, match="request 2 of the recording, sent out of order"):
        with Replayer(frozen_fixture) as replayed:
            replayed.run(ask, None, "b", "a")


def test_a_caught_divergence_still_fails(fixture: Fixture) -> None:
    """If the agent catches the divergence, later requests and the end of the replay raise the same divergence."""

    def stubborn() -> list[str]:
        errors = []
        for prompt in ("Eh?", "How is it?"):
            try:
                Agent().answer(prompt)
            except Exception as error:
                errors.append(str(error))
        return errors

    seen: list[str] = []
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replayed:
        seen += stubborn()
    assert seen == [str(raised.value)] * 2
    assert '"Eh?"' in seen[0]
    assert replayed.progress.requests_matched == 0


def test_retries_replay_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry after a wait of 30 seconds is replayed as two attempts without a wait."""
    responses = [refused(529, retry_after="30", x_should_retry="true"), *answers()]
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    frozen_fixture = frozen(
        tmp_path, recorded(tmp_path, lambda url: Agent(url).answer("Hm?"), responses)
    )
    assert waits.count(30.0) == 1
    waits.clear()
    with Replayer(frozen_fixture) as replayed:
        replayed.run(Agent().answer, "Hm?")
    assert "-> 529" in replayed.trajectory
    assert replayed.progress.requests_matched == 4
    assert max(waits, default=0) < 0.001


def test_a_cut_stream_is_cut_at_the_same_byte(tmp_path: Path) -> None:
    """From a stream that was cut off, the agent receives the recorded events and then the recorded exception."""

    def listen(url: str | None) -> tuple[list[str], str]:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        seen: list[str] = []
        with agentobs.session("cut"):
            stream = client.messages.create(
                model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x"}], stream=True
            )
            try:
                for event in stream:
                    seen.append(event.type)
            except httpx2.TransportError as error:
                return seen, type(error).__name__
        return seen, "nothing"

    live: list[Any] = []
    frozen_fixture = frozen(
        tmp_path,
        recorded(
            tmp_path,
            lambda url: live.append(listen(url)),
            [streamed(text("hello"))],
            faults=(Fault(at=1, cut_after=3),),
        ),
    )
    with Replayer(frozen_fixture) as replayed:
        assert replayed.run(listen, None) == live[0]
    assert (len(live[0][0]), live[0][1]) == (3, "RemoteProtocolError")


def test_an_error_event_in_a_stream_is_the_same_exception(tmp_path: Path) -> None:
    """An error event in a stream with status 200 raises the same exception as in the recording."""
    error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'
    first = streamed(text("hello"))
    response = replace(first, chunks=(*first.chunks[:2], Chunk(error, 0)))

    def listen(url: str | None) -> str:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        with agentobs.session("overloaded"):
            stream = client.messages.create(
                model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x"}], stream=True
            )
            with pytest.raises(anthropic.APIStatusError) as raised:
                list(stream)
        return f"{type(raised.value).__name__} {raised.value.status_code} {raised.value.body}"

    live: list[str] = []
    frozen_fixture = frozen(
        tmp_path, recorded(tmp_path, lambda url: live.append(listen(url)), [response])
    )
    with Replayer(frozen_fixture) as replayed:
        assert [replayed.run(listen, None)] == live


def test_concurrent_requests_replay_in_any_order(tmp_path: Path) -> None:
    """Concurrent requests that arrive in a different order each receive their own response."""
    responses = [streamed(text(f"answer {n}"), number=n) for n in range(3)]
    live: list[Any] = []

    def run(url: str) -> None:
        live.append(asyncio.run(ask_concurrently(url, [0, 1, 2])))

    pace: list[Answer] = [
        replace(a, chunks=tuple(Chunk(c.data, 150_000_000) for c in a.chunks)) for a in responses
    ]
    frozen_fixture = frozen(tmp_path, recorded(tmp_path, run, pace, pace=1.0))
    with Replayer(frozen_fixture) as replayed:
        swapped = replayed.run(ask_concurrently, None, [2, 0, 1])
    assert swapped == [live[0][2], live[0][0], live[0][1]]


@pytest.mark.slow
def test_parallel_chains_replay_with_any_timing(tmp_path: Path) -> None:
    """Two parallel chains of three requests, recorded with delays, replay with immediate responses."""

    async def chains(url: str | None) -> list[str]:
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0))

        async def chain(name: str) -> str:
            messages: list[Any] = [{"role": "user", "content": name}]
            for step in range(3):
                async with client.messages.stream(
                    model=MODEL, max_tokens=9, messages=messages
                ) as stream:
                    response_text = await stream.get_final_text()
                messages.append({"role": "assistant", "content": response_text})
                messages.append({"role": "user", "content": f"{name} {step}"})
            return response_text

        with agentobs.session("chains"):
            return list(await asyncio.gather(chain("a"), chain("b")))

    responses = []
    for number in range(6):
        answer = streamed(text(f"answer {number}"), number=number)
        waits = [n * 5_000_000 * (1 + number % 3) for n, _ in enumerate(answer.chunks)]
        chunks = tuple(Chunk(c.data, w) for c, w in zip(answer.chunks, waits, strict=True))
        responses.append(replace(answer, chunks=chunks))
    live: list[Any] = []
    run = recorded(tmp_path, lambda url: live.append(asyncio.run(chains(url))), responses, pace=1.0)
    frozen_fixture = frozen(tmp_path, run)
    for _ in range(5):
        with Replayer(frozen_fixture) as replayed:
            assert replayed.run(chains, None) == live[0]


def test_a_replay_needs_no_key(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no API key is set, the SDK receives a fake key while the replay is open."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with Replayer(fixture) as replayed:
        replayed.run(Agent(key=None).answer, "How is it?")
    assert "ANTHROPIC_API_KEY" not in os.environ


def test_the_key_of_the_client_in_a_prompt_replays(tmp_path: Path) -> None:
    """A prompt that contains the client's key is redacted in the recording and in the replay, so another key
    matches.
    """
    key = "proxy-key-0123456789abcdef"

    def run(url: str | None, key: str) -> None:
        agent = Agent(url, key=key)
        agent.answer(f"my key is {key}")

    frozen_fixture = frozen(tmp_path, recorded(tmp_path, lambda url: run(url, key), answers()))
    assert key not in frozen_fixture.path.read_text()
    with Replayer(frozen_fixture) as replayed:
        replayed.run(run, None, "another-key-9876543210fedcba")
    report = divergence_of(frozen_fixture, Agent(key=key), f"my keys are {key}")
    assert key not in report


@pytest.mark.slow
def test_an_async_agent_replays_inside_an_event_loop(tmp_path: Path) -> None:
    """Inside an event loop, `arun` and `auntil` replay an async agent, and `run` raises an error that names them."""

    async def ask(url: str | None) -> str:
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url))
        with agentobs.session("async"):
            question: Any = [{"role": "user", "content": "x"}]
            async with client.messages.stream(
                model=MODEL, max_tokens=9, messages=question
            ) as stream:
                return await stream.get_final_text()

    run = recorded(tmp_path, lambda url: asyncio.run(ask(url)), [streamed(text("hi"))])
    frozen_fixture = frozen(tmp_path, run)

    async def test() -> None:
        with Replayer(frozen_fixture) as replayed:
            assert await replayed.arun(ask, None) == "hi"
        with Replayer(frozen_fixture) as replayed:
            step = await replayed.auntil(ask, None, turn=1)
            assert (step.now.outcome, step.differs) == ("completed", False)
        with (
            pytest.raises(UsageError, match="Use arun or auntil"),
            Replayer(frozen_fixture) as replayed,
        ):
            replayed.run(ask, None)

    asyncio.run(test())


def test_a_replay_that_is_not_open_sends_nothing(fixture: Fixture) -> None:
    """Running the agent without opening the replay raises an error before any request is sent."""
    with pytest.raises(UsageError, match="the replay is not open"):
        Replayer(fixture).run(Agent().answer, "How is it?")


@pytest.mark.parametrize("entry", ["os:system", "subprocess:getoutput", "shutil:rmtree", "none:x"])
def test_an_entry_outside_of_the_project_is_not_called(
    fixture: Fixture, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry outside of the project is not called, so a fixture cannot make a replay run arbitrary code."""
    header = {**fixture.header, "entry": entry, "arguments": {"command": "touch stolen"}}
    foreign = Fixture(fixture.path, header, fixture.requests, fixture.tools)
    with pytest.raises(UsageError, match=f"the recorded entry {entry} is not in a file under"):
        with Replayer(foreign) as replayed:
            replayed.run()


def test_an_upload_replays(tmp_path: Path) -> None:
    """The content of an uploaded form is compared, but not the form's random boundary."""

    def upload(url: str | None, content: bytes) -> str:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        with agentobs.session("upload"):
            return str(client.beta.files.upload(file=("a.txt", content, "text/plain")).id)

    answer = Answer(
        200, {"content-type": "application/json"}, (Chunk(b'{"id":"file_1"}', 0),), "complete"
    )
    frozen_fixture = frozen(
        tmp_path, recorded(tmp_path, lambda url: upload(url, b"hello"), [answer])
    )
    with Replayer(frozen_fixture) as replayed:
        assert replayed.run(upload, None, b"hello") == "file_1"
    with pytest.raises(DivergenceError) as raised, Replayer(frozen_fixture) as replayed:
        replayed.run(upload, None, b"hallo")
    assert "hallo" in str(raised.value)


@pytest.mark.slow
def test_the_tool_runner_of_the_sdk_replays(tmp_path: Path) -> None:
    """An agent on the SDK's tool runner is recorded and replayed without a change to its code."""

    def run(url: str | None, rome: str) -> str:
        @beta_tool
        def weather(city: str) -> str:
            """Look at the sky."""
            return {"Oslo": "rain", "Rome": rome}[city]

        @beta_tool
        def clock(zone: str) -> str:
            """Look at the clock."""
            return f"12:00 {zone}"

        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        with agentobs.session("runner"):
            runner = client.beta.messages.tool_runner(
                model=MODEL,
                max_tokens=64,
                tools=[weather, clock],
                messages=[{"role": "user", "content": "How is it?"}],
                stream=True,
            )
            last: Any = None
            for stream in runner:
                last = stream.get_final_message()
        return str(last.content[0].text)

    frozen_fixture = frozen(tmp_path, recorded(tmp_path, lambda url: run(url, "sun"), answers()))
    with Replayer(frozen_fixture) as replayed:
        assert replayed.run(run, None, "sun") == "Oslo is wet."
    with pytest.raises(DivergenceError, match=r'tool_result of weather\(city="Rome"\)'):
        with Replayer(frozen_fixture) as replayed:
            replayed.run(run, None, "fog")


def test_a_replay_makes_no_connections(fixture: Fixture) -> None:
    """A connection by a client that is not recorded, or by any socket, fails the replay, and the report names its
    address.
    """
    with pytest.raises(DivergenceError, match=r"a connection to 203\.0\.113\.7:443 was attempted"):
        with Replayer(fixture):
            socket.create_connection(("203.0.113.7", 443), timeout=1)
    with pytest.raises(DivergenceError, match=r"a connection to api\.anthropic\.com:443"):
        with Replayer(fixture):
            Anthropic(api_key=KEY, max_retries=0).models.list()


def test_until_returns_the_next_step(fixture: Fixture, snapshot: SnapshotAssertion) -> None:
    """`until` returns the step after a turn, with its tool results and its next request compared with the recording."""
    with Replayer(fixture) as replayed:
        same = replayed.until(Agent().answer, "How is it?", turn=2)
    assert not same.differs
    fixed_agent = Agent(weather={**WEATHER, "Rome": "snow"})
    with Replayer(fixture) as replayed:
        step = replayed.until(fixed_agent.answer, "How is it?", turn=2)
    assert step.differs
    assert step.tool("weather").text == "snow"
    assert step.describe() == snapshot
    with pytest.raises(
        LookupError, match=r"news was not called in this turn \(called: weather, clock\)"
    ):
        step.tool("news")


def test_until_diverges_before_its_turn(fixture: Fixture) -> None:
    """A request before the turn of `until` must match the recording."""
    with pytest.raises(DivergenceError), Replayer(fixture) as replayed:
        replayed.until(Agent(weather={"Oslo": "snow"}).answer, "How is it?", turn=2)


@pytest.mark.parametrize("broken", [RuntimeError("early"), None])
def test_until_fails_if_the_agent_does_not_reach_the_turn(
    fixture: Fixture, broken: Exception | None
) -> None:
    """An agent that ends before the turn of `until` fails the replay, whether or not it raises an error."""

    def early(prompt: str) -> None:
        if broken is not None:
            raise broken

    with pytest.raises(
        DivergenceError, match="the agent ended before turn 2 was answered"
    ) as raised:
        with Replayer(fixture) as replayed:
            replayed.until(early, "How is it?", turn=2)
    assert raised.value.__cause__ is broken


def test_until_waits_for_the_next_model_request(tmp_path: Path) -> None:
    """Requests between two turns that are not turns themselves, such as counting tokens, receive recorded responses."""

    def counting(url: str | None, second: str) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        ask: Any = client.messages.create
        with agentobs.session("counting"):
            messages: list[Any] = [{"role": "user", "content": "one"}]
            for prompt in (second, None):
                client.messages.count_tokens(model=MODEL, messages=messages)
                list(ask(model=MODEL, max_tokens=9, messages=messages, stream=True))
                messages = [*messages, {"role": "assistant", "content": "1"}]
                messages.append({"role": "user", "content": str(prompt)})

    count = Answer(
        200, {"content-type": "application/json"}, (Chunk(b'{"input_tokens":3}', 0),), "complete"
    )
    responses = [count, streamed(text("1"), number=1), count, streamed(text("2"), number=2)]
    frozen_fixture = frozen(
        tmp_path, recorded(tmp_path, lambda url: counting(url, "two"), responses)
    )
    with Replayer(frozen_fixture) as replayed:
        assert not replayed.until(counting, None, "two", turn=1).differs
    with Replayer(frozen_fixture) as replayed:
        assert replayed.until(counting, None, "three", turn=1).differs


def test_until_rejects_a_missing_turn(fixture: Fixture) -> None:
    """A turn that does not exist is rejected with an error that lists the existing turns."""
    with pytest.raises(UsageError, match=r"the recording has no turn 9\. It has turns 1 to 3"):
        with Replayer(fixture) as replayed:
            replayed.until(Agent().answer, "How is it?", turn=9)


def test_secrets_of_a_recording_replay_redacted(tmp_path: Path) -> None:
    """A secret in a tool result is redacted in the fixture, and a run with a different secret matches."""
    secret = "ghp_" + "Zz9" * 12
    agent = Agent(weather={**WEATHER, "Oslo": f"token {secret}"})

    def run(url: str) -> None:
        Agent(url, **agent.changes).answer("How is it?")

    frozen_fixture = frozen(tmp_path, recorded(tmp_path, run, answers()))
    assert secret not in frozen_fixture.path.read_text()
    other = Agent(weather={**WEATHER, "Oslo": "token ghp_" + "Yy8" * 12})
    with Replayer(frozen_fixture) as replayed:
        replayed.run(other.answer, "How is it?")
    leaking = divergence_of(frozen_fixture, Agent(weather={**WEATHER, "Oslo": f"tokens {secret}"}))
    assert secret not in leaking
    assert "[redacted:github_token:1]" in leaking


def test_a_session_that_failed_replays_as_failed(tmp_path: Path) -> None:
    """The recorded exception is compared: the same exception matches, and a session that completes instead diverges."""

    def broken(url: str | None, error: type[Exception] | None) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        with agentobs.session("broken"):
            client.messages.create(
                model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x"}], stream=True
            ).close()
            if error:
                raise error("after the answer")

    def run(url: str) -> None:
        with pytest.raises(KeyError):
            broken(url, KeyError)

    frozen_fixture = frozen(tmp_path, recorded(tmp_path, run, [streamed(text("x"))]))
    assert (frozen_fixture.header["outcome"], frozen_fixture.header["reason"]) == (
        "failed",
        "KeyError",
    )
    assert (
        frozen_fixture.header["signature"] == "exception:KeyError@tests.replay.test_replay:broken"
    )
    with Replayer(frozen_fixture) as replayed:
        replayed.run(broken, None, KeyError)
    with pytest.raises(DivergenceError, match="outcome"), Replayer(frozen_fixture) as replayed:
        replayed.run(broken, None, None)
    with pytest.raises(ValueError, match="after the answer"), Replayer(frozen_fixture) as replayed:
        replayed.run(broken, None, ValueError)
