"""A second dialect: no other code is needed to record, price, freeze and replay sessions of another provider."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

import agentobs
import replay
from agentobs.provider import registry
from agentobs.recording.journal.home import existing_home
from agentobs.recording.session import start_recorder
from agentobs.records.exchanges import ModelExchange
from agentobs.store.backend import open_store
from replay import DivergenceError, Fixture, Replayer, calls, says
from replay.comparison.placeholders import has_masked, without_organizations
from replay.freeze.conversion import freeze
from tests.provider.tiny_chat import LINES, TinyChat, lines
from tests.replay.agents import last_session

PASS = "tiny-pass-5f0e9a77c1d24b"
PRICES = """
[[price]]
models = ["tiny-1"]
input = 3
output = 15
source = "made for this test"
checked = 2026-11-22
"""
RESPONSES: list[dict[str, Any]] = [
    {
        "bot": {
            "ref": "r1",
            "who": "tiny-1",
            "by": "bot",
            "say": "I will look.",
            "do": [{"ref": "c1", "fn": "weather", "with": {"city": "Bern"}}],
        },
        "end": "more",
        "spent": {"in": 1000, "out": 20},
    },
    {
        "bot": {"ref": "r2", "who": "tiny-1", "by": "bot", "say": "It rains in Bern.", "do": []},
        "end": "done",
        "spent": {"in": 1100, "out": 10},
    },
]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DIALECTS", (*registry.DIALECTS, TinyChat()))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()
    yield tmp_path / "home"
    agentobs.stop_recorder()


def provider(live: bool) -> httpx2.MockTransport:
    """Return a transport that answers with the responses in order, streamed or not."""
    pending = iter(RESPONSES)

    def answer(request: httpx2.Request) -> httpx2.Response:
        response = next(pending)
        assert bool(json.loads(request.content).get("live")) is live
        if live:
            content, kind = b"".join(lines(response)), LINES
        else:
            content, kind = json.dumps(response).encode(), "application/json"
        return httpx2.Response(
            200, headers={"content-type": kind, "tiny-ref": "q7"}, content=content
        )

    return httpx2.MockTransport(answer)


def agent(
    transport: httpx2.BaseTransport | None,
    live: bool,
    weather: Callable[[str], str] = lambda city: f"rain in {city}",
    prompt: str = "How is it?",
) -> str:
    """Chat until the bot calls no more functions."""
    chat: list[dict[str, Any]] = [{"by": "person", "say": prompt}]
    with agentobs.record(httpx2.Client(transport=transport)) as client:
        while True:
            body = {"who": "tiny-1", "chat": chat, "live": live}
            headers = {"tiny-pass": PASS, "tiny-edition": "4"}
            response = client.post("http://tiny.test/tiny/chat", json=body, headers=headers)
            message = TinyChat().message(response.headers, response.content)
            chat.append(dict(message.raw))
            if not message.calls:
                return message.text
            chat += [
                {"by": "tool", "ref": call.id, "got": weather(call.value["city"])}
                for call in message.calls
            ]


def recorded(home: Path, live: bool) -> Decimal | None:
    """Record one session, and return its cost."""
    start_recorder(str(home))
    try:
        with agentobs.session("tiny") as session:
            assert agent(provider(live), live) == "It rains in Bern."
            spent = session.cost()
            return spent.usd if spent is not None else None
    finally:
        assert agentobs.stop_recorder()


def frozen(home: Path, tmp_path: Path) -> Fixture:
    return replay.load(freeze(last_session(home), tmp_path / "frozen", {}).fixture)


both = pytest.mark.parametrize("live", [False, True], ids=["complete", "streamed"])


@pytest.mark.slow
@both
def test_a_session_is_recorded_with_its_facts(home: Path, live: bool) -> None:
    """Turns, tool calls, results and usage are recorded, and the credential is not written to any file."""
    recorded(home, live)
    with agentobs.connect(home) as store:
        attempts = store.execute(
            "SELECT endpoint, turn, model, outcome, stop_reason, streamed, message_count,"
            " tool_use_count, request_id FROM attempts ORDER BY turn"
        ).fetchall()
        called = store.execute("SELECT name, tool_use_id, turn FROM tool_uses").fetchall()
        results = store.execute("SELECT tool_use_id, is_error FROM tool_results").fetchall()
    assert attempts == [
        ("/tiny/chat", 1, "tiny-1", "ok", "more", live, 1, 1, "q7"),
        ("/tiny/chat", 2, "tiny-1", "ok", "done", live, 3, 0, "q7"),
    ]
    assert called == [("weather", "c1", 1)]
    assert results == [("c1", False)]
    written = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert PASS.encode() not in written


@pytest.mark.slow
@both
def test_views_and_queries_count_the_turns_of_the_dialect(home: Path, live: bool) -> None:
    """Each complete response is a turn of the session, with its context and its tokens."""
    recorded(home, live)
    with open_store(existing_home(home)) as store:
        [(session_id, total)] = store.sql("SELECT session_id, turns FROM sessions").rows
        turns = list(store.sql("SELECT turn, stop_reason FROM turns ORDER BY turn").rows)
        growth = store.rows("context_growth", session_id=session_id).dicts()
        listed = store.rows("session_turns", session_id=session_id).dicts()
        first = store.rows(
            "first_token_by_model", session_id=session_id, since_ns=None, until_ns=None
        )
        happened = store.rows("session_waterfall", session_id=session_id).dicts()
    assert total == 2
    assert turns == [(1, "more"), (2, "done")]
    assert [(row["turn"], row["context_tokens"]) for row in growth] == [(1, 1000), (2, 1100)]
    assert [(row["turn"], row["input_tokens"], row["output_tokens"]) for row in listed] == [
        (1, 1000, 20),
        (2, 1100, 10),
    ]
    assert [(row["model"], row["calls"]) for row in first.dicts()] == (
        [("tiny-1", 2)] if live else []
    )
    attempts = [row for row in happened if row["kind"] == "request" and row["turn"] is not None]
    assert [(row["turn"], row["detail"]) for row in attempts] == [(1, None), (2, None)]


@both
def test_usage_of_the_dialect_is_priced(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    """Each call has a usage row, which is priced by a price file."""
    (tmp_path / "prices.toml").write_text(PRICES)
    monkeypatch.setenv("AGENTOBS_PRICES", str(tmp_path / "prices.toml"))
    assert recorded(home, live) == Decimal("0.00675")


@both
def test_a_session_replays_from_its_fixture(home: Path, tmp_path: Path, live: bool) -> None:
    """A frozen session is replayed without calls to the provider, because its requests match the recording."""
    recorded(home, live)
    fixture = frozen(home, tmp_path)
    assert [ask.path for ask in fixture.requests] == ["/tiny/chat", "/tiny/chat"]
    assert fixture.requests[1].shape["based_on"] == 1
    recording = last_session(home)
    bodies = [e.question.body for e in recording.exchanges if isinstance(e, ModelExchange)]
    assert [fixture.body(ask.number) for ask in fixture.requests] == bodies
    with Replayer(fixture) as replayed:
        assert replayed.run(agent, None, live) == "It rains in Bern."


@both
def test_a_different_result_is_a_divergence(home: Path, tmp_path: Path, live: bool) -> None:
    """If a tool returns a different result in a replay, the report names the position and the call."""
    recorded(home, live)
    with pytest.raises(DivergenceError) as caught, Replayer(frozen(home, tmp_path)) as replayed:
        replayed.run(agent, None, live, lambda city: f"sun in {city}")
    text = str(caught.value)
    assert "$.chat[2].got" in text
    assert 'tool_result of weather(city="Bern")' in text


@both
def test_scripted_responses_have_the_shape_of_the_provider(
    home: Path, tmp_path: Path, live: bool
) -> None:
    """Responses that a test scripts after the end of the recording have the shape of the provider's responses."""
    recorded(home, live)
    with Replayer(frozen(home, tmp_path)) as replayed:
        replayed.then(calls("weather", city="Thun"), says("It snows."))
        step = replayed.until(agent, None, live, turn=1, tools="live")
    assert step.result == "It snows."
    assert [(tool.name, tool.input, tool.text) for tool in step.now.tools] == [
        ("weather", {"city": "Bern"}, "rain in Bern")
    ]


def test_retries_use_the_standard_header() -> None:
    """A dialect without its own retry headers reads and writes `retry-after`, in seconds."""
    tiny = TinyChat()
    assert tiny.retry_after_ms({"retry-after": "1.5"}) == 1500
    assert [tiny.retry_after_ms({"retry-after": value}) for value in ("soon", "inf", "")] == [
        None
    ] * 3
    assert tiny.retry_after_ms(tiny.retry_headers(20)) == 20
    assert (tiny.may_retry({}), tiny.retry_headers(None)) == (None, {})


def test_sealed_values_lose_their_organization() -> None:
    """The organization in a signed value is masked if the dialect defines where the provider puts signed values."""
    ids = b"11111111-2222-4333-8444-555555555555" * 2
    signed = base64.b64encode(ids)
    bare = without_organizations(b'{"stamp": "' + signed + b'"}')
    assert signed not in bare
    assert has_masked(bare)
    assert without_organizations(b'{"other": "' + signed + b'"}') == b'{"other": "' + signed + b'"}'
