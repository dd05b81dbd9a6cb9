"""Torture cases of secrets and files: 43, 44 and 45."""

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
    """What an agent knows that nobody else may."""

    key: str = "sk-ant-api03-Aq3-first-key-of-this-test-0123456789AA"
    oauth: str = "sk-ant-oat01-Bq3-an-oauth-token-of-this-test-9876BB"
    cookie: str = "c00kie-0f-this-test-5550123"
    typed: str = "sk-proj-" + "Cq7Zx1" * 9
    packed: str = "ghp_" + "Dw5" * 12
    echoed: str = "sk-ant-api03-Eq3-a-key-that-a-tool-tells-012345678EE"
    said: str = "sk-ant-api03-Fq3-a-key-that-the-model-says-12345678FF"

    def forms(self) -> Iterator[bytes]:
        """Yield each as it is, and as it reads in base64 at any place."""
        for each in vars(self).values():
            yield each.encode()
            for before in range(3):
                told = base64.b64encode(b" " * before + each.encode())
                yield told[4:-4]


FIRST = Secrets()
SECOND = Secrets(
    key="sk-ant-api03-Gq3-second-key-of-this-test-9876543210GG",
    oauth="sk-ant-oat01-Hq3-other-oauth-token-of-test-1234HH",
    cookie="an0ther-c00kie-999888777",
    typed="sk-proj-" + "Jq7Zx1" * 9,
    packed="ghp_" + "Kw5" * 12,
    echoed="sk-ant-api03-Lq3-other-key-that-a-tool-tells-0123LL",
    said="sk-ant-api03-Mq3-other-key-the-model-would-say-012MM",
)


def answer(number: int, *content: dict[str, Any]) -> Answer:
    """An answer whose texts are split in the middle, over two chunks, and that sets a cookie."""
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
    answer(1, text(f"Use {FIRST.said} for it."), call("toolu_1", "weather", city="Oslo")),
    answer(2, text("Oslo is wet.")),
    answer(3, text("So it is.")),
]


def spy(url: str | None, own: Secrets = FIRST, **changes: Any) -> str:
    """Ask with a key, echo what a tool tells, and ask once more with an OAuth token."""
    cookie = {"cookie": f"session={own.cookie}"}
    client = agentobs.record(
        Anthropic(api_key=own.key, base_url=url, max_retries=0, default_headers=cookie)
    )
    other = agentobs.record(Anthropic(auth_token=own.oauth, base_url=url, max_retries=0))
    logging.getLogger("spy").warning("asking")
    packed = base64.b64encode(f"the token is {own.packed}, keep it".encode()).decode()
    prompt = f"My key is {own.typed}. {changes.get('prompt', 'How is it?')}"
    messages: list[Any] = [{"role": "user", "content": prompt}]
    ask: dict[str, Any] = {"model": MODEL, "max_tokens": 64, "tools": TOOLS}
    with agentobs.session("spy"):
        with client.messages.stream(messages=messages, **ask) as stream:
            said = stream.get_final_message()
        told = f"rain; I was called with {own.echoed} and {packed}{changes.get('told', '')}"
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": told}
        messages += [
            {"role": "assistant", "content": [block.to_dict() for block in said.content]},
            {"role": "user", "content": [result]},
        ]
        with client.messages.stream(messages=messages, **ask) as stream:
            stream.get_final_text()
        with other.messages.stream(messages=messages, **ask) as stream:
            return stream.get_final_text()


@pytest.fixture(scope="module")
def spied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fixture]:
    """The folder that it was recorded in, and the fixture."""
    folder = tmp_path_factory.mktemp("spied")
    return folder, frozen(folder, recorded(folder, spy, GIVEN), "spy")


def leaks(data: bytes, *owners: Secrets) -> list[bytes]:
    return [form for own in owners for form in own.forms() if form in data]


def test_43_no_secret_is_in_any_file(spied: tuple[Path, Fixture]) -> None:
    """A key, an OAuth token, a cookie; keys in a prompt, in base64, over two chunks, told by a tool: none is."""
    folder, fixture = spied
    for each in vars(FIRST).values():
        assert leaks(b"x" + each.encode(), FIRST)
        assert leaks(base64.b64encode(b"key " + each.encode() + b" of mine"), FIRST)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert fixture.path in files
    assert any("home" in path.parts for path in files)
    found = {str(path): leaks(path.read_bytes(), FIRST) for path in files}
    assert {path: told for path, told in found.items() if told} == {}
    told = fixture.path.read_text()
    assert told.count("[redacted:") >= 4
    assert "set-cookie" not in told


def test_43_a_secret_over_two_chunks_is_one(spied: tuple[Path, Fixture]) -> None:
    """The split was there: neither chunk held the key, and the fixture tells that it was one."""
    whole = FIRST.said.encode()
    assert not any(whole in chunk.data for chunk in GIVEN[0].chunks)
    _, fixture = spied
    assert "Use [redacted:anthropic_key" in "".join(fixture.body(2).decode())


@pytest.mark.parametrize("changes", [{"prompt": "How was it?"}, {"told": ", today"}])
def test_43_no_secret_is_in_a_report_or_a_log(
    spied: tuple[Path, Fixture],
    changes: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture,
) -> None:
    """Where the path parts beside secrets, the report as text and JSON, and what is logged and printed, hold none."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DivergenceError) as raised, Replayer(spied[1]) as replayed:
        replayed.run(spy, None, SECOND, **changes)
    report = raised.value.divergence
    assert report.kind == "content"
    # What the SDK itself logs of its requests on demand is its own, and it hides its keys.
    ours = [each for each in caplog.records if not each.name.startswith(("anthropic", "httpcore"))]
    logged = "\n".join(each.getMessage() for each in ours)
    printed = "".join(capfd.readouterr())
    shown = "\n".join((report.text(), report.json(), str(raised.value), logged, printed))
    assert leaks(shown.encode(), FIRST, SECOND) == []


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9", "https://example.test:8443"])
@pytest.mark.parametrize("own", [FIRST, SECOND])
def test_44_the_scrubbed_recording_replays(
    spied: tuple[Path, Fixture], own: Secrets, url: str | None
) -> None:
    """With the same secrets, with others in their places, and at another address: the same path."""
    with Replayer(spied[1]) as replayed:
        assert replayed.run(spy, url, own) == "So it is."
    assert replayed.progress.requests_matched == 3


def test_44_one_secret_in_two_places_diverges(spied: tuple[Path, Fixture]) -> None:
    """Other secrets will do, but the one that a tool told is not the one that was typed."""
    doubled = replace(SECOND, echoed=SECOND.key.replace("Gq3", "Nq3"), packed=SECOND.typed)
    with pytest.raises(DivergenceError), Replayer(spied[1]) as replayed:
        replayed.run(spy, None, doubled)


TURNS = 1000


def long_session(turns: int) -> Recording:
    """A session that repeats its history with each request, as agents do."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "prompt-0000"}]
    exchanges = []
    for turn in range(1, turns + 1):
        body = json.dumps(
            {"model": MODEL, "system": "the-system-prompt", "tools": TOOLS, "messages": messages},
            separators=(",", ":"),
        )
        said = message(text(f"said-{turn:04}."), call(f"toolu_{turn:04}", "weather", city="Oslo"))
        chunk = Chunk(json.dumps(said, separators=(",", ":")).encode(), 0)
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
            {"role": "assistant", "content": said["content"]},
            {"role": "user", "content": [result]},
        ]
    return Recording("long", "long", None, None, "completed", None, None, 0, tuple(exchanges))


def test_45_each_block_stands_once(tmp_path: Path) -> None:
    """Of 1,000 turns each request is its new messages alone, and the file grows with what is new."""
    recording = long_session(TURNS)
    data = write(recording, {})
    (tmp_path / "recording.jsonl").write_bytes(data)
    fixture = load(tmp_path)
    assert data.count(b"the-system-prompt") == 1
    assert data.count(b"prompt-0000") == 1
    assert data.count(b'"input_schema"') == len(TOOLS)
    for turn in range(1, TURNS):
        assert data.count(b"result-%04d." % turn) == 1, turn
        # As it came, and as the next request says it again.
        assert data.count(b"said-%04d." % turn) == 2, turn
    assert data.count(b"result-%04d." % TURNS) == 0
    lines = data.splitlines(keepends=True)
    halves = [sum(map(len, half)) for half in (lines[: len(lines) // 2], lines[len(lines) // 2 :])]
    assert abs(halves[0] - halves[1]) < len(data) // 50
    for number in (1, 2, TURNS // 2, TURNS):
        asked = recording.exchanges[number - 1]
        assert isinstance(asked, ModelExchange)
        assert fixture.body(number) == asked.question.body
