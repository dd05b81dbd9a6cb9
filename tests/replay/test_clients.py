"""Every kind of client, including third-party clients."""

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
from tests.marks import mark_all_but_first
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, MODEL, frozen, last_session
from tests.replay.raw_provider import JSON, Call, Play, play, play_chunks, raw_provider
from tests.replay.wire_recordings import (
    REQUEST,
    async_client,
    client,
    message_json,
    recorded,
    recording,
    replayed,
)


def through_aiohttp(url: str) -> str:
    async def ask() -> str:
        http = anthropic.DefaultAioHttpClient()
        async with async_client(url, http_client=http) as sdk:
            async with sdk.messages.stream(**REQUEST) as stream:
                return await stream.get_final_text()

    return asyncio.run(ask())


def through_bedrock(url: str) -> str:
    sdk = AnthropicBedrock(api_key="bedrock-key-0123456789", aws_region="eu-west-1", base_url=url)
    return str(agentobs.record(sdk).messages.create(**REQUEST).content[0].text)


def through_bedrock_streamed(url: str) -> str:
    """Stream from Bedrock in AWS frames. The raw bytes are read because the decoder is not installed."""
    sdk = AnthropicBedrock(api_key="bedrock-key-0123456789", aws_region="eu-west-1", base_url=url)
    raw = agentobs.record(sdk).messages.with_streaming_response
    with raw.create(**REQUEST, stream=True) as response:
        return b"".join(response.http_response.iter_raw()).hex()


VERTEX: dict[str, Any] = {
    "access_token": "ya29.a-token-0123456789",
    "project_id": "p",
    "region": "r",
}


def through_vertex(url: str) -> str:
    sdk = agentobs.record(AnthropicVertex(base_url=url, **VERTEX))
    return str(sdk.messages.create(**REQUEST).content[0].text)


def through_async_vertex(url: str) -> str:
    async def ask() -> str:
        sdk = agentobs.record(AsyncAnthropicVertex(base_url=url, **VERTEX))
        return str((await sdk.messages.create(**REQUEST)).content[0].text)

    return asyncio.run(ask())


def through_copies(url: str) -> str:
    sdk = client(url)
    copies = (sdk.with_options(timeout=9), sdk.copy(max_retries=0), sdk.beta)
    return "".join(str(each.messages.create(**REQUEST).content[0].text) for each in copies)


def through_two(url: str) -> str:
    both = client(url), client(url, default_headers={"anthropic-beta": "context-1m"})
    return "".join(str(each.messages.create(**REQUEST).content[0].text) for each in both)


MESSAGE = play_chunks(200, JSON, message_json(text("hi")))
FRAMES = play_chunks(
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


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_is_recorded_and_replayed(tmp_path: Path, name: str) -> None:
    """With every kind of client, each request is recorded once with its response, and replayed."""
    ask, plays, expected = CLIENTS[name]

    def run(url: str) -> str:
        with agentobs.session("client"):
            return ask(url)

    live, fixture, raw = recorded(tmp_path, plays, run)
    assert live == expected
    assert len(raw.requests) == len(fixture.requests) == len(plays)
    assert replayed(fixture, run) == live
    written = fixture.path.read_text()
    assert "bedrock-key" not in written
    assert "ya29." not in written


def test_a_client_that_is_older_than_the_recorder_is_recorded(tmp_path: Path) -> None:
    """A client that was created and used before the recorder started is recorded from then on, and its session
    replays.
    """
    clients: list[Anthropic] = []

    def run(url: str) -> str:
        with agentobs.session("early"):
            return str(agentobs.record(clients[0]).messages.create(**REQUEST).content[0].text)

    with raw_provider([MESSAGE, MESSAGE]) as raw:
        clients.append(Anthropic(api_key=KEY, base_url=raw.url))
        clients[0].messages.create(**REQUEST)
        with recording(tmp_path / "home"):
            live = run(raw.url)
    fixture = frozen(tmp_path, last_session(tmp_path / "home"))
    assert (len(raw.requests), len(fixture.requests)) == (2, 1)
    assert replayed(fixture, run) == live == "hi"


# Clients that the caller cannot pass to `record`


def use_local_clients(url: str) -> str:
    """Send requests with clients that the caller cannot reach: sync, async, streamed, with aiohttp, and on Vertex."""
    texts = [str(Anthropic(api_key=KEY, base_url=url).messages.create(**REQUEST).content[0].text)]

    async def ask() -> None:
        async with AsyncAnthropic(api_key=KEY, base_url=url) as sdk:
            async with sdk.messages.stream(**REQUEST) as stream:
                texts.append(await stream.get_final_text())
        http = anthropic.DefaultAioHttpClient()
        async with AsyncAnthropic(api_key=KEY, base_url=url, http_client=http) as sdk:
            texts.append(str((await sdk.messages.create(**REQUEST)).content[0].text))

    asyncio.run(ask())
    vertex = AnthropicVertex(base_url=url, **VERTEX)
    texts.append(str(vertex.messages.create(**REQUEST).content[0].text))
    return " ".join(texts)


LOCAL_CLIENTS = [MESSAGE, play(streamed(text("hi"))), MESSAGE, MESSAGE]


def test_record_all_records_local_clients(tmp_path: Path) -> None:
    """Inside `record_all`, each request of every client is recorded once and replayed; after it, no request is
    recorded.
    """

    def run(url: str) -> str:
        with agentobs.record_all(), agentobs.session("all"):
            return use_local_clients(url)

    before = httpx2.HTTPTransport.handle_request, httpx2.AsyncHTTPTransport.handle_async_request
    live, fixture, raw = recorded(tmp_path, LOCAL_CLIENTS, run)
    assert live == "hi hi hi hi"
    assert len(raw.requests) == len(fixture.requests) == 4
    assert replayed(fixture, run) == live
    after = httpx2.HTTPTransport.handle_request, httpx2.AsyncHTTPTransport.handle_async_request
    assert after == before
    with raw_provider(LOCAL_CLIENTS) as unrecorded, recording(tmp_path / "home"):
        with agentobs.session("later"):
            use_local_clients(unrecorded.url)
    assert not last_session(tmp_path / "home").exchanges


def test_no_client_is_recorded_twice(tmp_path: Path) -> None:
    """Each request is recorded once, even by a client that is already recorded and inside nested `record_all`
    blocks.
    """

    def run(url: str) -> str:
        with agentobs.record_all(), agentobs.session("all"):
            with agentobs.record_all():
                response_text = through_two(url)
            return response_text + str(
                Anthropic(api_key=KEY, base_url=url).messages.create(**REQUEST).content[0].text
            )

    live, fixture, raw = recorded(tmp_path, [MESSAGE] * 3, run)
    assert live == "hihihi"
    assert len(raw.requests) == len(fixture.requests) == 3
    assert replayed(fixture, run) == live


def test_a_redirect_is_a_separate_request(tmp_path: Path) -> None:
    """A redirected request and the request that follows it are each recorded once."""

    def run(url: str) -> int:
        headers = {"anthropic-version": "2023-06-01"}
        with agentobs.record_all(), agentobs.session("all"):
            ask = {"json": REQUEST, "headers": headers, "follow_redirects": True}
            return httpx2.post(f"{url}/v1/messages", **ask).status_code  # type: ignore[arg-type]

    elsewhere = play_chunks(307, {"location": "/v1/messages?moved", **JSON})
    live, fixture, raw = recorded(tmp_path, [elsewhere, MESSAGE], run)
    assert (live, len(raw.requests)) == (200, 2)
    assert [ask.answer.status for ask in fixture.requests] == [307, 200]


def test_requests_to_other_servers_are_not_recorded(tmp_path: Path) -> None:
    """Inside `record_all`, requests over httpx2 to other servers are not recorded."""

    def run(url: str) -> str:
        with agentobs.record_all(), agentobs.session("all"):
            assert httpx2.get(f"{url}/weather").json() == {"sky": "clear"}
            return str(
                Anthropic(api_key=KEY, base_url=url).messages.create(**REQUEST).content[0].text
            )

    plays = [play_chunks(200, JSON, b'{"sky": "clear"}'), MESSAGE]
    _, fixture, raw = recorded(tmp_path, plays, run)
    assert (len(raw.requests), len(fixture.requests)) == (2, 1)


def test_record_all_is_active_until_stop(tmp_path: Path) -> None:
    """If `record_all` is called as a function, it is active until `stop`, which keeps a patch that was applied
    later.
    """
    before = httpx2.HTTPTransport.handle_request

    def run(url: str) -> str:
        ask = Anthropic(api_key=KEY, base_url=url).messages.create
        all_clients = agentobs.record_all()
        with agentobs.session("all"):
            recorded_handler = httpx2.HTTPTransport.handle_request
            later_patch = lambda *arguments: recorded_handler(*arguments)  # noqa: E731
            httpx2.HTTPTransport.handle_request = later_patch  # type: ignore[method-assign]
            try:
                ask(**REQUEST)
                all_clients.stop()
                all_clients.stop()
                assert httpx2.HTTPTransport.handle_request is later_patch
                return str(ask(**REQUEST).content[0].text)
            finally:
                httpx2.HTTPTransport.handle_request = before  # type: ignore[method-assign]

    live, fixture, raw = recorded(tmp_path, [MESSAGE, MESSAGE], run)
    assert (live, len(raw.requests), len(fixture.requests)) == ("hi", 2, 1)


class Framework:
    """An agent of a framework. The agent has a model, and the model has a provider with two clients."""

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


@pytest.mark.slow
def test_an_object_that_holds_clients_can_be_recorded(tmp_path: Path) -> None:
    """All clients in a framework's agent, model or provider are found and recorded; an object without clients is
    rejected.
    """

    def run(url: str) -> str:
        agent = agentobs.record(Framework(url))

        async def ask() -> str:
            return str(
                (await agent.provider._async_client.messages.create(**REQUEST)).content[0].text
            )

        with agentobs.session("held"):
            response_text = str(agent.provider._client.messages.create(**REQUEST).content[0].text)
            return response_text + asyncio.run(ask())

    live, fixture, raw = recorded(tmp_path, [MESSAGE, MESSAGE], run)
    assert (live, len(raw.requests), len(fixture.requests)) == ("hihi", 2, 2)
    assert replayed(fixture, run) == live
    with recording(tmp_path / "nothing"):
        for nothing in (object(), None, MagicMock()):
            with pytest.raises(UsageError, match="it contains no client of the anthropic SDK"):
                agentobs.record(nothing)


# Other requests of the SDK


def count(url: str) -> Any:
    return client(url).messages.count_tokens(model=MODEL, messages=REQUEST["messages"]).to_dict()


def beta(url: str) -> Any:
    messages = client(url).beta.messages
    with messages.stream(**REQUEST, betas=["context-management-2025-06-27"]) as stream:
        first = stream.get_final_message().to_dict()
    counted = messages.count_tokens(model=MODEL, messages=REQUEST["messages"], betas=["token-2026"])
    return first, counted.to_dict()


def batches(url: str) -> Any:
    api = client(url).messages.batches
    one: Any = {"custom_id": "one", "params": REQUEST}
    batch = api.create(requests=[one])
    polled = api.retrieve(batch.id)
    return polled.processing_status, [each.to_dict() for each in api.results(batch.id)]


def files(url: str) -> Any:
    api = client(url).beta.files
    uploaded = api.upload(file=("a.txt", b"hello \xff", "text/plain"))
    listed = [each.id for each in api.list()]
    return uploaded.id, listed, api.download(uploaded.id).read(), api.delete(uploaded.id).id


def fallback(url: str) -> Any:
    middleware = BetaRefusalFallbackMiddleware([{"model": "claude-haiku-5"}])
    sdk = client(url).with_middleware(middleware)
    return sdk.beta.messages.create(**REQUEST).to_dict()


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
    return play_chunks(200, JSON, json.dumps(value).encode())


def ended(url: str) -> dict[str, Any]:
    return {**BATCH, "processing_status": "ended", "results_url": f"{url}/v1/messages/batches/x"}


def results(call: Call) -> None:
    """Return a completed batch with the address of its results, which has a different path on the provider."""
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
            play_chunks(200, {"content-type": "application/x-jsonl"}, json.dumps(LINE).encode()),
        ],
    ),
    "files": (
        files,
        [
            json_answer(FILE),
            json_answer(PAGE),
            play_chunks(200, {"content-type": "application/octet-stream"}, b"hello \xff\x00"),
            json_answer({"id": "file_1", "type": "file_deleted"}),
        ],
    ),
    "fallback middleware": (fallback, [json_answer(REFUSAL), MESSAGE]),
    "pages": (paused, [model_page("one", has_more=True), model_page("two", has_more=False)]),
}


@pytest.mark.parametrize("name", mark_all_but_first(ENDPOINTS, pytest.mark.slow))
def test_every_endpoint_replays(tmp_path: Path, name: str) -> None:
    """Token counts, betas, batches, files, pages, and middleware that retries are recorded and replayed like
    messages.
    """
    ask, plays = ENDPOINTS[name]

    def run(url: str) -> Any:
        with agentobs.session("endpoint"):
            return ask(url)

    live, fixture, raw = recorded(tmp_path, plays, run)
    assert len(raw.requests) == len(fixture.requests) == len(plays)
    assert replayed(fixture, run) == live
