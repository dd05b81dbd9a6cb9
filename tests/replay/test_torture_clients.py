"""Torture case 37: every kind of client, those that nobody here made included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import (
    Anthropic,
    AnthropicBedrock,
    AnthropicVertex,
    AsyncAnthropicVertex,
)

import agentobs
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, frozen, last_session
from tests.replay.on_the_wire import (
    ASK,
    async_client,
    client,
    message_json,
    recorded,
    recording,
    replayed,
)
from tests.replay.raw_provider import JSON, Play, pieces, play, raw_provider


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
CLIENTS: dict[str, tuple[Callable[[str], str], list[Play], str]] = {
    "aiohttp": (through_aiohttp, [play(streamed(text("hi")))], "hi"),
    "bedrock": (through_bedrock, [MESSAGE], "hi"),
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
