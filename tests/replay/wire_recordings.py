"""Helpers for tests of recorded HTTP traffic: record an agent live, and replay it while the server is down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic

import agentobs
from agentobs.recording.session import start_recorder
from replay import Fixture, Replayer, ReplayOptions
from replay.divergence.divergence import ReplayStopped
from tests.replay.agents import KEY, MODEL, frozen, last_session
from tests.replay.raw_provider import Play, RawProvider, raw_provider

BOTH = pytest.mark.parametrize("asynchronous", [False, True])
NOWHERE = "http://127.0.0.1:9"
"""An address without a server. A replay makes no connection to it."""
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Guten Tag, é"}],
}


@contextmanager
def recording(home: Path) -> Any:
    """Record into a home, after closing any earlier recorder."""
    agentobs.stop_recorder()
    start_recorder(str(home))
    try:
        yield
    finally:
        assert agentobs.stop_recorder()


def recorded(
    tmp_path: Path, plays: Sequence[Play], run: Callable[[str], Any]
) -> tuple[Any, Fixture, RawProvider]:
    """Run an agent live against `plays`; return its result, its session as a fixture, and the provider."""
    with raw_provider(plays) as raw, recording(tmp_path / "home"):
        live = run(raw.url)
    return live, frozen(tmp_path, last_session(tmp_path / "home")), raw


def replayed(fixture: Fixture, run: Callable[[str], Any], **options: Any) -> Any:
    """Replay the same agent from its recording, without a server."""
    with Replayer(fixture, ReplayOptions(**options)) as replayed:
        return replayed.run(run, NOWHERE)


def client(url: str, **options: Any) -> Anthropic:
    return agentobs.record(Anthropic(api_key=KEY, base_url=url, **options))


def async_client(url: str, **options: Any) -> AsyncAnthropic:
    return agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, **options))


def message_json(*content: dict[str, Any], number: int = 1) -> bytes:
    """Return the body of an unstreamed message."""
    stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    usage = {"input_tokens": 10, "output_tokens": 7}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": MODEL}
    return json.dumps(
        {**message, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}
    ).encode()


def error_facts(error: anthropic.APIError) -> list[Any]:
    """Return what an agent can read from an error and its cause."""
    response = getattr(error, "response", None)
    facts = [type(error).__name__, str(error), getattr(error, "status_code", None), error.body]
    if response is not None:
        facts += [response.headers.get("request-id"), response.headers.get("retry-after")]
    cause = error.__cause__
    return [*facts, type(cause).__name__ if cause else None, str(cause)]


def listen(url: str, asynchronous: bool, stop_after: int | None = None, **options: Any) -> Any:
    """Read the events of one stream; return them with the error that ended the stream."""

    async def listen_async(found: list[Any]) -> None:
        sdk = async_client(url, **options)
        async with await sdk.messages.create(**REQUEST, stream=True) as stream:
            async for event in stream:
                found.append(event.to_dict())
                if len(found) == stop_after:
                    break

    def listen_sync(found: list[Any]) -> None:
        sdk = client(url, **options)
        with sdk.messages.create(**REQUEST, stream=True) as stream:
            for event in stream:
                found.append(event.to_dict())
                if len(found) == stop_after:
                    break

    found: list[Any] = []
    with agentobs.session("listens"):
        try:
            asyncio.run(listen_async(found)) if asynchronous else listen_sync(found)
        except (httpx2.HTTPError, anthropic.APIError, ReplayStopped) as error:
            return found, type(error), str(error)
    return found, None, ""
