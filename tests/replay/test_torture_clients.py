"""Torture case 37: every kind of client, those that nobody here made included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import anthropic
import httpx2
import pytest
from anthropic import (
    Anthropic,
    AnthropicBedrock,
    AnthropicVertex,
    AsyncAnthropic,
    AsyncAnthropicVertex,
)
from anthropic.lib.middleware import BetaRefusalFallbackMiddleware

import agentobs
from agentobs.errors import UsageError
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, MODEL, frozen, last_session
from tests.replay.on_the_wire import (
    ASK,
    async_client,
    client,
    message_json,
    recorded,
    recording,
    replayed,
)
from tests.replay.raw_provider import JSON, Call, Play, pieces, play, raw_provider


def through_aiohttp(url: str) -> str:
    async def ask() -> str:
        http = anthropic.DefaultAioHttpClient()
        async with async_client(url, http_client=http) as asked:
            async with asked.messages.stream(**ASK) as stream:
                return await stream.get_final_text()

    return asyncio.run(ask())


def through_bedrock(url: str) -> str:
    asked = AnthropicBedrock(api_key="bedrock-key-0123456789", aws_region="eu-west-1", base_url=url)
    return str(agentobs.record(asked).messages.create(**ASK).content[0].text)


def through_bedrock_streamed(url: str) -> str:
    """Bedrock streams frames of AWS; here they are taken as they come, for their decoder is not installed."""
    asked = AnthropicBedrock(api_key="bedrock-key-0123456789", aws_region="eu-west-1", base_url=url)
    raw = agentobs.record(asked).messages.with_streaming_response
    with raw.create(**ASK, stream=True) as response:
        return b"".join(response.http_response.iter_raw()).hex()


VERTEX: dict[str, Any] = {
    "access_token": "ya29.a-token-0123456789",
    "project_id": "p",
    "region": "r",
}


def through_vertex(url: str) -> str:
    asked = agentobs.record(AnthropicVertex(base_url=url, **VERTEX))
    return str(asked.messages.create(**ASK).content[0].text)


def through_async_vertex(url: str) -> str:
    async def ask() -> str:
        asked = agentobs.record(AsyncAnthropicVertex(base_url=url, **VERTEX))
        return str((await asked.messages.create(**ASK)).content[0].text)

    return asyncio.run(ask())


def through_copies(url: str) -> str:
    asked = client(url)
    copies = (asked.with_options(timeout=9), asked.copy(max_retries=0), asked.beta)
    return "".join(str(each.messages.create(**ASK).content[0].text) for each in copies)


def through_two(url: str) -> str:
    both = client(url), client(url, default_headers={"anthropic-beta": "context-1m"})
    return "".join(str(each.messages.create(**ASK).content[0].text) for each in both)


MESSAGE = pieces(200, JSON, message_json(text("hi")))
FRAMES = pieces(
    200, {"content-type": "application/vnd.amazon.eventstream"}, b"\x00\x00\xff", b"\n\x80B"
)
CLIENTS: dict[str, tuple[Callable[[str], str], list[Play], str]] = {
    "aiohttp": (through_aiohttp, [play(streamed(text("hi")))], "hi"),
    "bedrock": (through_bedrock, [MESSAGE], "hi"),
    "bedrock, streamed": (through_bedrock_streamed, [FRAMES], "0000ff0a8042"),
    "vertex": (through_vertex, [MESSAGE], "hi"),
    "async vertex": (through_async_vertex, [MESSAGE], "hi"),
    "copies": (through_copies, [MESSAGE] * 3, "hihihi"),
    "two": (through_two, [MESSAGE] * 2, "hihi"),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_37_every_client_is_recorded_and_replayed(tmp_path: Path, name: str) -> None:
    """aiohttp, Bedrock, Vertex, copies with other options, a second client: each request once, and its answer."""
    ask, plays, said = CLIENTS[name]

    def run(url: str) -> str:
        with agentobs.session("client"):
            return ask(url)

    live, fixture, raw = recorded(tmp_path, plays, run)
    assert live == said
    assert len(raw.asked) == len(fixture.asks) == len(plays)
    assert replayed(fixture, run) == live
    written = fixture.path.read_text()
    assert "bedrock-key" not in written
    assert "ya29." not in written


def test_37_a_client_that_was_there_before_the_recording(tmp_path: Path) -> None:
    """A client that was made and used before anybody recorded is recorded from then on, and replays."""
    made: list[Anthropic] = []

    def run(url: str) -> str:
        with agentobs.session("early"):
            return str(agentobs.record(made[0]).messages.create(**ASK).content[0].text)

    with raw_provider([MESSAGE, MESSAGE]) as raw:
        made.append(Anthropic(api_key=KEY, base_url=raw.url))
        made[0].messages.create(**ASK)
        with recording(tmp_path / "home"):
            live = run(raw.url)
    fixture = frozen(tmp_path, last_session(tmp_path / "home"))
    assert (len(raw.asked), len(fixture.asks)) == (2, 1)
    assert replayed(fixture, run) == live == "hi"


# Clients that nobody can hand in


def unknown(url: str) -> str:
    """Ask with clients that are made here and handed to nobody: sync, async, streamed, over aiohttp, on Vertex."""
    said = [str(Anthropic(api_key=KEY, base_url=url).messages.create(**ASK).content[0].text)]

    async def ask() -> None:
        async with AsyncAnthropic(api_key=KEY, base_url=url) as asked:
            async with asked.messages.stream(**ASK) as stream:
                said.append(await stream.get_final_text())
        http = anthropic.DefaultAioHttpClient()
        async with AsyncAnthropic(api_key=KEY, base_url=url, http_client=http) as asked:
            said.append(str((await asked.messages.create(**ASK)).content[0].text))

    asyncio.run(ask())
    vertex = AnthropicVertex(base_url=url, **VERTEX)
    said.append(str(vertex.messages.create(**ASK).content[0].text))
    return " ".join(said)


UNKNOWN = [MESSAGE, play(streamed(text("hi"))), MESSAGE, MESSAGE]


def test_37_clients_that_nobody_hands_in_are_recorded_when_asked(tmp_path: Path) -> None:
    """Within `record_all` each request of each client is recorded once, and replayed; after it none is."""

    def run(url: str) -> str:
        with agentobs.record_all(), agentobs.session("all"):
            return unknown(url)

    before = httpx2.HTTPTransport.handle_request, httpx2.AsyncHTTPTransport.handle_async_request
    live, fixture, raw = recorded(tmp_path, UNKNOWN, run)
    assert live == "hi hi hi hi"
    assert len(raw.asked) == len(fixture.asks) == 4
    assert replayed(fixture, run) == live
    after = httpx2.HTTPTransport.handle_request, httpx2.AsyncHTTPTransport.handle_async_request
    assert after == before
    with raw_provider(UNKNOWN) as again, recording(tmp_path / "home"):
        with agentobs.session("later"):
            unknown(again.url)
    assert not last_session(tmp_path / "home").exchanges


def test_37_no_client_is_recorded_twice(tmp_path: Path) -> None:
    """A client that is recorded already, and a second `record_all` inside the first: each request once."""

    def run(url: str) -> str:
        with agentobs.record_all(), agentobs.session("all"):
            with agentobs.record_all():
                said = through_two(url)
            return said + str(
                Anthropic(api_key=KEY, base_url=url).messages.create(**ASK).content[0].text
            )

    live, fixture, raw = recorded(tmp_path, [MESSAGE] * 3, run)
    assert live == "hihihi"
    assert len(raw.asked) == len(fixture.asks) == 3
    assert replayed(fixture, run) == live


def test_37_a_redirect_is_a_request_of_its_own(tmp_path: Path) -> None:
    """Both requests are recorded, each once; where it led to is not kept, for such an address may hold a key."""

    def run(url: str) -> int:
        headers = {"anthropic-version": "2023-06-01"}
        with agentobs.record_all(), agentobs.session("all"):
            ask = {"json": ASK, "headers": headers, "follow_redirects": True}
            return httpx2.post(f"{url}/v1/messages", **ask).status_code  # type: ignore[arg-type]

    elsewhere = pieces(307, {"location": "/v1/messages?moved", **JSON})
    live, fixture, raw = recorded(tmp_path, [elsewhere, MESSAGE], run)
    assert (live, len(raw.asked)) == (200, 2)
    assert [ask.answer.status for ask in fixture.asks] == [307, 200]


def test_37_what_is_not_for_a_model_is_not_recorded(tmp_path: Path) -> None:
    """Other uses of httpx2 beside the provider's are none of ours."""

    def run(url: str) -> str:
        with agentobs.record_all(), agentobs.session("all"):
            assert httpx2.get(f"{url}/weather").json() == {"sky": "clear"}
            return str(Anthropic(api_key=KEY, base_url=url).messages.create(**ASK).content[0].text)

    plays = [pieces(200, JSON, b'{"sky": "clear"}'), MESSAGE]
    _, fixture, raw = recorded(tmp_path, plays, run)
    assert (len(raw.asked), len(fixture.asks)) == (2, 1)


def test_37_record_all_ends_as_often_as_it_began(tmp_path: Path) -> None:
    """Called as a function it lasts until `stop`; a patch that somebody made over it stays theirs."""
    before = httpx2.HTTPTransport.handle_request

    def run(url: str) -> str:
        ask = Anthropic(api_key=KEY, base_url=url).messages.create
        all_clients = agentobs.record_all()
        with agentobs.session("all"):
            ours = httpx2.HTTPTransport.handle_request
            theirs = lambda *told: ours(*told)  # noqa: E731
            httpx2.HTTPTransport.handle_request = theirs  # type: ignore[method-assign]
            try:
                ask(**ASK)
                all_clients.stop()
                all_clients.stop()
                assert httpx2.HTTPTransport.handle_request is theirs
                return str(ask(**ASK).content[0].text)
            finally:
                httpx2.HTTPTransport.handle_request = before  # type: ignore[method-assign]

    live, fixture, raw = recorded(tmp_path, [MESSAGE, MESSAGE], run)
    assert (live, len(raw.asked), len(fixture.asks)) == ("hi", 2, 1)


class Framework:
    """A framework's agent: it has a model, that has a provider, that has two clients."""

    def __init__(self, url: str) -> None:
        self.model = self
        self.client = self
        self.provider = Provider(url)


class Provider:
    def __init__(self, url: str) -> None:
        self._url = url
        self._async_client = AsyncAnthropic(api_key=KEY, base_url=url)

    @cached_property
    def _client(self) -> Anthropic:
        return Anthropic(api_key=KEY, base_url=self._url)

    @property
    def model(self) -> Any:
        raise RuntimeError("there is none here")


def test_37_what_holds_a_client_can_be_handed_in(tmp_path: Path) -> None:
    """An agent, a model or a provider of a framework: all its clients are found, and what holds none is refused."""

    def run(url: str) -> str:
        agent = agentobs.record(Framework(url))

        async def ask() -> str:
            return str((await agent.provider._async_client.messages.create(**ASK)).content[0].text)

        with agentobs.session("held"):
            said = str(agent.provider._client.messages.create(**ASK).content[0].text)
            return said + asyncio.run(ask())

    live, fixture, raw = recorded(tmp_path, [MESSAGE, MESSAGE], run)
    assert (live, len(raw.asked), len(fixture.asks)) == ("hihi", 2, 2)
    assert replayed(fixture, run) == live
    with recording(tmp_path / "nothing"):
        for nothing in (object(), None, MagicMock()):
            with pytest.raises(UsageError, match="it contains no httpx2 client"):
                agentobs.record(nothing)


# Whatever else the SDK asks


def count(url: str) -> Any:
    return client(url).messages.count_tokens(model=MODEL, messages=ASK["messages"]).to_dict()


def beta(url: str) -> Any:
    asked = client(url).beta.messages
    with asked.stream(**ASK, betas=["context-management-2025-06-27"]) as stream:
        first = stream.get_final_message().to_dict()
    counted = asked.count_tokens(model=MODEL, messages=ASK["messages"], betas=["token-2026"])
    return first, counted.to_dict()


def batches(url: str) -> Any:
    asked = client(url).messages.batches
    one: Any = {"custom_id": "one", "params": ASK}
    made = asked.create(requests=[one])
    polled = asked.retrieve(made.id)
    return polled.processing_status, [each.to_dict() for each in asked.results(made.id)]


def files(url: str) -> Any:
    asked = client(url).beta.files
    made = asked.upload(file=("a.txt", b"hello \xff", "text/plain"))
    listed = [each.id for each in asked.list()]
    return made.id, listed, asked.download(made.id).read(), asked.delete(made.id).id


def fallback(url: str) -> Any:
    middleware = BetaRefusalFallbackMiddleware([{"model": "claude-haiku-5"}])
    asked = client(url).with_middleware(middleware)
    return asked.beta.messages.create(**ASK).to_dict()


def paused(url: str) -> Any:
    async def ask() -> Any:
        pages = async_client(url, max_retries=0).models.list(limit=1)
        return [model.id async for model in pages]

    return asyncio.run(ask())


BATCH: dict[str, Any] = {
    "id": "msgbatch_1",
    "type": "message_batch",
    "processing_status": "in_progress",
    "request_counts": dict.fromkeys(
        ("canceled", "errored", "expired", "processing", "succeeded"), 0
    ),
    "created_at": "2026-11-22T00:00:00Z",
    "expires_at": "2026-11-23T00:00:00Z",
}
FILE = {
    "id": "file_1",
    "type": "file",
    "filename": "a.txt",
    "mime_type": "text/plain",
    "size_bytes": 7,
    "created_at": "2026-11-22T00:00:00Z",
}


def json_answer(value: Any) -> Play:
    return pieces(200, JSON, json.dumps(value).encode())


def ended(url: str) -> dict[str, Any]:
    return {**BATCH, "processing_status": "ended", "results_url": f"{url}/v1/messages/batches/x"}


def results(call: Call) -> None:
    """The batch has ended; its results are at an address of the provider's own."""
    json_answer(ended(f"http://{call.headers['host']}"))(call)


LINE = {
    "custom_id": "one",
    "result": {"type": "succeeded", "message": json.loads(message_json(text("hi")))},
}
REFUSAL = {
    **json.loads(message_json(text(""))),
    "stop_reason": "refusal",
    "content": [],
    "stop_details": {"type": "refusal", "category": "cyber", "explanation": None},
}
PAGE = {"data": [FILE], "has_more": False, "first_id": "file_1", "last_id": "file_1"}


def model_page(name: str, *, has_more: bool) -> Play:
    found = {"id": name, "type": "model", "display_name": name, "created_at": BATCH["created_at"]}
    return json_answer({"data": [found], "has_more": has_more, "first_id": name, "last_id": name})


ENDPOINTS: dict[str, tuple[Callable[[str], Any], list[Play]]] = {
    "count_tokens": (count, [json_answer({"input_tokens": 3})]),
    "beta": (beta, [play(streamed(text("hi"))), json_answer({"input_tokens": 3})]),
    "batches": (
        batches,
        [
            json_answer(BATCH),
            results,
            results,
            pieces(200, {"content-type": "application/x-jsonl"}, json.dumps(LINE).encode()),
        ],
    ),
    "files": (
        files,
        [
            json_answer(FILE),
            json_answer(PAGE),
            pieces(200, {"content-type": "application/octet-stream"}, b"hello \xff\x00"),
            json_answer({"id": "file_1", "type": "file_deleted"}),
        ],
    ),
    "fallback middleware": (fallback, [json_answer(REFUSAL), MESSAGE]),
    "pages": (paused, [model_page("one", has_more=True), model_page("two", has_more=False)]),
}


@pytest.mark.parametrize("name", ENDPOINTS)
def test_02_every_endpoint_replays(tmp_path: Path, name: str) -> None:
    """Counting tokens, betas, batches, files, pages, and middleware that asks again: all is one road."""
    ask, plays = ENDPOINTS[name]

    def run(url: str) -> Any:
        with agentobs.session("endpoint"):
            return ask(url)

    live, fixture, raw = recorded(tmp_path, plays, run)
    assert len(raw.asked) == len(fixture.asks) == len(plays)
    assert replayed(fixture, run) == live
