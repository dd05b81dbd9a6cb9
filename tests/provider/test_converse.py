"""Sessions of the Converse API of Bedrock: recorded, priced, frozen and replayed, for clients such as boto3."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import requests

import agentobs
from agentobs.provider.bedrock.dialect import Converse
from agentobs.provider.dialect import Block, Draft, Tokens
from agentobs.provider.registry import dialect_of, dialect_of_body
from agentobs.records.exchanges import Answer, Chunk, ModelExchange
from replay import DivergenceError
from tests.replay.agents import last_session
from tests.replay.raw_provider import Play, play_chunks
from tests.replay.wire_recordings import recorded, replayed

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
LLAMA = "us.meta.llama4-scout-17b-instruct-v1:0"
HEADERS = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20261125/us-east-1/bedrock",
    "X-Amz-Security-Token": "a-made-up-session-token-0123456789",
    "amz-sdk-request": "attempt=1; max=3",
}
TOOLS = {
    "tools": [{"toolSpec": {"name": "weather", "inputSchema": {"json": {"type": "object"}}}}],
}
TEXT = Block("text", "text", text="I look.\nDone — é")
CALL = Block("call", "toolUse", id="tooluse_1", name="weather", value={"city": "Bern"})
TOKENS = Tokens(input=1000, output=20, cache_read=100, cache_write_5m=10, has_cache=True)


def plays(live: bool, *blocks: tuple[Block, ...]) -> list[Play]:
    """Return the responses of the provider, streamed or not."""
    found = []
    for each in blocks:
        draft = Draft("", "", each, TOKENS)
        if live:
            kind, parts = Converse().response_stream(draft, deltas=3)
        else:
            kind, parts = "application/json", [Converse().response_body(draft)]
        headers = {"content-type": kind, "x-amzn-RequestId": "8e5f0a6c-1111-4222-8333-444455556666"}
        found.append(play_chunks(200, headers, *parts))
    return found


def agent(
    live: bool, model: str = CLAUDE, weather: Callable[[str], str] = lambda city: f"rain in {city}"
) -> Callable[[str], str]:
    """Return an agent that converses until the model calls no more tools."""

    def run(url: str) -> str:
        messages: list[Any] = [{"role": "user", "content": [{"text": "How is it?"}]}]
        path = f"/model/{model.replace(':', '%3A')}/converse{'-stream' if live else ''}"
        with agentobs.record_all(), agentobs.session("converse"):
            while True:
                body: Any = {
                    "messages": messages,
                    "toolConfig": TOOLS,
                    "system": [{"text": "Be short."}],
                }
                response = requests.post(url + path, json=body, headers=HEADERS)
                response.raise_for_status()
                message = Converse().message(response.headers, response.content)
                messages.append(message.raw)
                if not message.calls:
                    return message.text
                results = [
                    {
                        "toolResult": {
                            "toolUseId": call.id,
                            "content": [{"text": weather(call.value["city"])}],
                        }
                    }
                    for call in message.calls
                ]
                messages.append({"role": "user", "content": results})

    return run


both = pytest.mark.parametrize("live", [False, True], ids=["complete", "streamed"])


@pytest.mark.slow
@both
def test_a_session_is_recorded_priced_and_replayed(tmp_path: Path, live: bool) -> None:
    """Turns, tools, model, usage and money are recorded, no credential is written, and the session replays."""
    run = agent(live)
    answer, fixture, raw = recorded(tmp_path, plays(live, (TEXT, CALL), (TEXT,)), run)
    assert answer == TEXT.text
    assert len(raw.requests) == len(fixture.requests) == 2
    assert replayed(fixture, run) == answer
    with agentobs.connect(tmp_path / "home") as store:
        attempts = store.execute(
            "SELECT endpoint, turn, model, model_requested, outcome, stop_reason, streamed, tool_use_count,"
            " request_id FROM attempts ORDER BY turn"
        ).fetchall()
        called = store.execute("SELECT name, tool_use_id, turn FROM tool_uses").fetchall()
        costs = store.execute("SELECT DISTINCT cost_usd, cost_status FROM costs").fetchall()
    endpoint = "/model/:id/converse" + ("-stream" if live else "")
    facts = (endpoint, CLAUDE, CLAUDE, "ok", live, "8e5f0a6c-1111-4222-8333-444455556666")
    assert [(e, m, r, o, s, i) for e, _, m, r, o, _, s, _, i in attempts] == [facts] * 2
    assert [(turn, stop, tools) for _, turn, _, _, _, stop, _, tools, _ in attempts] == [
        (1, "tool_use", 1),
        (2, "end_turn", 0),
    ]
    assert called == [("weather", "tooluse_1", 1)]
    # The prices of a regional profile of Bedrock: 3.3, 16.5, 0.33 and 4.125 dollars per million.
    assert costs == [(Decimal("0.00370425"), "estimated")]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"made-up-session-token" not in written
    assert b"AKIAIOSFODNN7EXAMPLE" not in written


@pytest.mark.slow
def test_a_changed_tool_result_diverges(tmp_path: Path) -> None:
    """A changed result is found in the block of the request that contains it."""
    _, fixture, _ = recorded(tmp_path, plays(True, (TEXT, CALL), (TEXT,)), agent(True))
    with pytest.raises(DivergenceError) as raised:
        replayed(fixture, agent(True, weather=lambda city: f"sun in {city}"))
    assert "toolResult.content[0].text" in str(raised.value)


def test_a_model_of_another_vendor_is_not_priced_as_claude(tmp_path: Path) -> None:
    """The price is the price of that model on Bedrock: 0.17 and 0.66 dollars per million tokens."""
    recorded(tmp_path, plays(False, (TEXT,)), agent(False, LLAMA))
    with agentobs.connect(tmp_path / "home") as store:
        [(model, usd)] = store.execute(
            "SELECT u.model, cost_usd FROM costs JOIN usage AS u USING (attempt_id)"
        ).fetchall()
    assert model == LLAMA
    assert usd < Decimal("0.0003")


def facts_of(kind: str, *chunks: bytes, status: int = 200, **headers: str) -> tuple[Any, ...]:
    parts = tuple(Chunk(data, 0) for data in chunks)
    answer = Answer(status, {"content-type": kind, **headers}, parts, "complete")
    found = Converse().facts(answer)
    return found.outcome, found.error_type, found.certainty


def test_errors_and_cut_streams() -> None:
    """Errors have the name of the exception, and a stream without its last event is cut."""
    kind, frames = Converse().response_stream(Draft("", "", (CALL,), TOKENS))
    assert facts_of(kind, *frames) == ("ok", None, "exact")
    assert facts_of(kind, *frames[:-1]) == ("cut", None, "lower_bound")
    assert facts_of(kind, b"".join(frames)[:-3]) == ("cut", None, "lower_bound")
    assert Converse().stream_chunks({"content-type": kind}, b"".join(frames)) == frames
    body = b'{"message": "slow down"}'
    throttled = {"x-amzn-errortype": "ThrottlingException:http://internal.amazon.com/"}
    found = facts_of("application/json", body, status=429, **throttled)
    assert found == ("http_error", "ThrottlingException", "lower_bound")


def test_the_dialect_is_found_by_path_and_by_history() -> None:
    """Requests of `invoke` to a Claude model have the shape of the Messages API, with the same key of the history."""
    assert dialect_of("/gateway/model/x/converse-stream").name == "aws.bedrock"
    assert dialect_of("/model/x/invoke").name == dialect_of("/v1/messages").name == "anthropic"
    claude = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    converse = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    assert dialect_of_body(claude).name == "anthropic"
    assert dialect_of_body(converse).name == "aws.bedrock"
    assert dialect_of_body({"messages": [{"role": "user", "content": "hi"}]}).name == "anthropic"


def test_blocks_of_all_kinds() -> None:
    """Calls, results, reasoning and texts become neutral blocks; cache points and other kinds stay as they are."""
    content: list[Any] = [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"text": "Hi"},
        {"toolUse": {"toolUseId": "t1", "name": "f", "input": {"a": 1}}},
        {"toolResult": {"toolUseId": "t1", "status": "error", "content": [{"json": {"b": 2}}]}},
        {"cachePoint": {"type": "default", "ttl": "1h"}},
    ]
    entry = {"role": "assistant", "content": content}
    found = [
        (block.kind, block.text, block.id, block.is_error)
        for block in Converse().turn(entry).blocks
    ]
    assert found == [
        ("reasoning", "Hm.", None, False),
        ("text", "Hi", None, False),
        ("call", "", "t1", False),
        ("result", '{"b": 2}', "t1", True),
        ("other", "", None, False),
    ]
    assert Converse().breakpoint_of(content[-1]) == "1h"
    shorter = json.loads(Converse().entry_without_breakpoints(json.dumps(entry).encode()))
    assert shorter == {"role": "assistant", "content": content[:-1]}


def test_a_secret_in_a_stream_of_events_is_not_written(tmp_path: Path) -> None:
    """A secret that is split over frames is replaced, and the frames that a replay serves have correct checksums."""
    secret = "sk-ant-api03-" + "Ab9" * 30
    blocks = (Block("text", "text", text=f"Use {secret} now."), CALL)
    run = agent(True)
    live, fixture, _ = recorded(tmp_path, plays(True, blocks, (TEXT,)), run)
    assert replayed(fixture, run) == live
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret.encode() not in written
    [first, _] = [each.answer for each in read_exchanges(tmp_path / "home")]
    message = Converse().message(first.headers, first.body)
    assert message.text.startswith("Use [redacted:")
    assert message.calls[0].value == {"city": "Bern"}
    assert message.stop_reason == "tool_use"
    assert dict(message.usage or {})["inputTokens"] == 1000


def read_exchanges(home: Path) -> list[ModelExchange]:
    return [each for each in last_session(home).exchanges if isinstance(each, ModelExchange)]
