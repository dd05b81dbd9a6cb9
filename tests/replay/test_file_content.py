"""The content of files: no secret is in any file, and each message is stored once."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question, Recording
from replay import DivergenceError, Fixture, Replayer, load
from replay.fixture.writer import write
from tests.agent.provider import call, event_bytes, message, stream_events, text
from tests.replay.agents import MODEL, TOOLS, frozen, recorded


@dataclass(frozen=True)
class Secrets:
    """Secret values of an agent, which no file may contain."""

    key: str = "sk-ant-api03-Aq3-first-key-of-this-test-0123456789AA"
    oauth: str = "sk-ant-oat01-Bq3-an-oauth-token-of-this-test-9876BB"
    cookie: str = "c00kie-0f-this-test-5550123"
    typed: str = "sk-proj-" + "Cq7Zx1" * 9
    packed: str = "ghp_" + "Dw5" * 12
    echoed: str = "sk-ant-api03-Eq3-a-key-that-a-tool-tells-012345678EE"
    from_model: str = "sk-ant-api03-Fq3-a-key-that-the-model-says-12345678FF"

    def forms(self) -> Iterator[bytes]:
        """Yield each value, and its base64 form at each alignment."""
        for each in vars(self).values():
            yield each.encode()
            for before in range(3):
                encoded = base64.b64encode(b" " * before + each.encode())
                yield encoded[4:-4]


FIRST = Secrets()
SECOND = Secrets(
    key="sk-ant-api03-Gq3-second-key-of-this-test-9876543210GG",
    oauth="sk-ant-oat01-Hq3-other-oauth-token-of-test-1234HH",
    cookie="an0ther-c00kie-999888777",
    typed="sk-proj-" + "Jq7Zx1" * 9,
    packed="ghp_" + "Kw5" * 12,
    echoed="sk-ant-api03-Lq3-other-key-that-a-tool-tells-0123LL",
    from_model="sk-ant-api03-Mq3-other-key-the-model-would-say-012MM",
)


def answer(number: int, *content: dict[str, Any]) -> Answer:
    """Return a response that sets a cookie, and whose texts are split into two chunks."""
    chunks = tuple(
        Chunk(event_bytes(event), 0)
        for event in stream_events(message(*content, id=f"msg_{number}"))
    )
    headers = {
        "content-type": "text/event-stream; charset=utf-8",
        "set-cookie": f"session={FIRST.cookie}",
    }
    return Answer(200, headers, chunks, "complete")


GIVEN = [
    answer(1, text(f"Use {FIRST.from_model} for it."), call("toolu_1", "weather", city="Oslo")),
    answer(2, text("Oslo is wet.")),
    answer(3, text("So it is.")),
]


def leak_secrets(url: str | None, secrets: Secrets = FIRST, **changes: Any) -> str:
    """Send a request with a key, repeat the result of a tool, and send another request with an OAuth token."""
    cookie = {"cookie": f"session={secrets.cookie}"}
    client = agentobs.record(
        Anthropic(api_key=secrets.key, base_url=url, max_retries=0, default_headers=cookie)
    )
    other = agentobs.record(Anthropic(auth_token=secrets.oauth, base_url=url, max_retries=0))
    logging.getLogger("spy").warning("asking")
    encoded = base64.b64encode(f"the token is {secrets.packed}, keep it".encode()).decode()
    prompt = f"My key is {secrets.typed}. {changes.get('prompt', 'How is it?')}"
    messages: list[Any] = [{"role": "user", "content": prompt}]
    ask: dict[str, Any] = {"model": MODEL, "max_tokens": 64, "tools": TOOLS}
    with agentobs.session("spy"):
        with client.messages.stream(messages=messages, **ask) as stream:
            reply = stream.get_final_message()
        result_text = f"rain; I was called with {secrets.echoed} and {encoded}{changes.get('result_text', '')}"
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": result_text}
        messages += [
            {"role": "assistant", "content": [block.to_dict() for block in reply.content]},
            {"role": "user", "content": [result]},
        ]
        with client.messages.stream(messages=messages, **ask) as stream:
            stream.get_final_text()
        with other.messages.stream(messages=messages, **ask) as stream:
            return stream.get_final_text()


@pytest.fixture(scope="module")
def leaky_session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fixture]:
    """Return the folder of the recording, and the fixture."""
    folder = tmp_path_factory.mktemp("spied")
    return folder, frozen(folder, recorded(folder, leak_secrets, GIVEN), "spy")


def leaks(data: bytes, *owners: Secrets) -> list[bytes]:
    return [form for found in owners for form in found.forms() if form in data]


def test_no_secret_is_in_any_file(leaky_session: tuple[Path, Fixture]) -> None:
    """No file contains a key or token from a header, prompt, cookie or tool result, in base64, or split between
    chunks.
    """
    folder, fixture = leaky_session
    for each in vars(FIRST).values():
        assert leaks(b"x" + each.encode(), FIRST)
        assert leaks(base64.b64encode(b"key " + each.encode() + b" of mine"), FIRST)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert fixture.path in files
    assert any("home" in path.parts for path in files)
    found = {str(path): leaks(path.read_bytes(), FIRST) for path in files}
    assert {path: text for path, text in found.items() if text} == {}
    text = fixture.path.read_text()
    assert text.count("[redacted:") >= 4
    assert "set-cookie" not in text


def test_a_secret_split_between_chunks_is_one_placeholder(
    leaky_session: tuple[Path, Fixture],
) -> None:
    """A secret that is split between two chunks is replaced by one placeholder."""
    secret = FIRST.from_model.encode()
    assert not any(secret in chunk.data for chunk in GIVEN[0].chunks)
    _, fixture = leaky_session
    assert "Use [redacted:anthropic_key" in "".join(fixture.body(2).decode())


@pytest.mark.parametrize("changes", [{"prompt": "How was it?"}, {"result_text": ", today"}])
def test_no_secret_is_in_a_report_or_a_log(
    leaky_session: tuple[Path, Fixture],
    changes: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture,
) -> None:
    """If a replay diverges next to secrets, they are neither in the report (text or JSON) nor in logs or output."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DivergenceError) as raised, Replayer(leaky_session[1]) as replayed:
        replayed.run(leak_secrets, None, SECOND, **changes)
    report = raised.value.divergence
    assert report.kind == "content"
    # The SDK logs requests only on demand, and redacts its own keys.
    own_records = [
        each for each in caplog.records if not each.name.startswith(("anthropic", "httpcore"))
    ]
    logged = "\n".join(each.getMessage() for each in own_records)
    printed = "".join(capfd.readouterr())
    shown = "\n".join((report.text(), report.json(), str(raised.value), logged, printed))
    assert leaks(shown.encode(), FIRST, SECOND) == []


@pytest.mark.slow
@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9", "https://example.test:8443"])
@pytest.mark.parametrize("secrets", [FIRST, SECOND])
def test_a_redacted_recording_replays(
    leaky_session: tuple[Path, Fixture], secrets: Secrets, url: str | None
) -> None:
    """A redacted recording replays with the same or other secrets, and with any base URL."""
    with Replayer(leaky_session[1]) as replayed:
        assert replayed.run(leak_secrets, url, secrets) == "So it is."
    assert replayed.progress.requests_matched == 3


def test_one_secret_in_two_places_diverges(leaky_session: tuple[Path, Fixture]) -> None:
    """A replay diverges if two different recorded secrets are now the same secret."""
    doubled = replace(SECOND, echoed=SECOND.key.replace("Gq3", "Nq3"), packed=SECOND.typed)
    with pytest.raises(DivergenceError), Replayer(leaky_session[1]) as replayed:
        replayed.run(leak_secrets, None, doubled)


TURNS = 1000


def long_session(turns: int) -> Recording:
    """Return a session in which each request repeats the history, as agents do."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "prompt-0000"}]
    exchanges = []
    for turn in range(1, turns + 1):
        body = json.dumps(
            {"model": MODEL, "system": "the-system-prompt", "tools": TOOLS, "messages": messages},
            separators=(",", ":"),
        )
        response = message(
            text(f"said-{turn:04}."), call(f"toolu_{turn:04}", "weather", city="Oslo")
        )
        chunk = Chunk(json.dumps(response, separators=(",", ":")).encode(), 0)
        exchanges.append(
            ModelExchange(
                place=Place("long", None, "main", turn),
                attempt_id=f"{turn:032x}",
                started_ns=turn,
                headers_ns=0,
                ended_ns=0,
                question=Question("POST", "/v1/messages", {}, body.encode()),
                answer=Answer(200, {"content-type": "application/json"}, (chunk,), "complete"),
            )
        )
        result = {
            "type": "tool_result",
            "tool_use_id": f"toolu_{turn:04}",
            "content": f"result-{turn:04}.",
        }
        messages = [
            *messages,
            {"role": "assistant", "content": response["content"]},
            {"role": "user", "content": [result]},
        ]
    return Recording("long", "long", None, None, "completed", None, None, 0, tuple(exchanges))


@pytest.mark.slow
def test_each_block_is_stored_once(tmp_path: Path) -> None:
    """In a session of 1,000 turns, each request is stored as its new messages, so the file grows only with new
    content.
    """
    recording = long_session(TURNS)
    data = write(recording, {})
    (tmp_path / "recording.jsonl").write_bytes(data)
    fixture = load(tmp_path)
    assert data.count(b"the-system-prompt") == 1
    assert data.count(b"prompt-0000") == 1
    assert data.count(b'"input_schema"') == len(TOOLS)
    for turn in range(1, TURNS):
        assert data.count(b"result-%04d." % turn) == 1, turn
        # Once in the response, and once in the next request.
        assert data.count(b"said-%04d." % turn) == 2, turn
    assert data.count(b"result-%04d." % TURNS) == 0
    lines = data.splitlines(keepends=True)
    halves = [sum(map(len, half)) for half in (lines[: len(lines) // 2], lines[len(lines) // 2 :])]
    assert abs(halves[0] - halves[1]) < len(data) // 50
    for number in (1, 2, TURNS // 2, TURNS):
        exchange = recording.exchanges[number - 1]
        assert isinstance(exchange, ModelExchange)
        assert fixture.body(number) == exchange.question.body
