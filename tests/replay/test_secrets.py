"""Secrets of a recording: a fixture contains no secret but a number for each, and replays with other secrets."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs.errors import RecordingError
from agentobs.records.exchanges import ModelExchange
from agentobs.redaction import expression
from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from replay.fixture.format import as_recording, load
from replay.fixture.writer import write
from replay.freeze.conversion import freeze
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, MODEL, Agent, answers, frozen, recorded

FIRST, SECOND, THIRD = ("ghp_" + letters * 12 for letters in ("Zz9", "Yy8", "Xx7"))
ORGANIZATION = "7f3c2a10-9b1d-4c6e-8f00-1234567890ab"


def agent(one: str, other: str, repeated: str) -> Agent:
    """Return an agent whose first tool returns two tokens, and whose second tool returns a repeated token."""
    return Agent(weather={"Oslo": f"use {one}, then {other}", "Rome": f"again {repeated}"})


@pytest.fixture(scope="module")
def two_tokens(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A recording with two tokens; the first token occurs twice."""
    folder = tmp_path_factory.mktemp("tokens")

    def run(url: str) -> None:
        Agent(url, **agent(FIRST, SECOND, FIRST).changes).answer("How is it?")

    return frozen(folder, recorded(folder, run, answers()))


def test_secrets_are_numbered_in_a_fixture(two_tokens: Fixture) -> None:
    """A fixture contains a number for each secret, in order of appearance, and equal secrets have equal numbers."""
    text = two_tokens.path.read_text()
    assert FIRST not in text
    assert SECOND not in text
    tags = re.findall(r"\[redacted:github_token:([0-9a-f]+)\]", text)
    assert list(dict.fromkeys(tags)) == ["1", "2"]
    assert "use [redacted:github_token:1], then [redacted:github_token:2]" in text
    assert "again [redacted:github_token:1]" in text


@pytest.mark.parametrize("tokens", [(FIRST, SECOND), (SECOND, FIRST), (THIRD, "ghp_" + "a1B" * 12)])
def test_a_fixture_replays_with_other_secrets(two_tokens: Fixture, tokens: tuple[str, str]) -> None:
    """Any two tokens match if each of them is at its recorded places."""
    with Replayer(two_tokens) as replayed:
        replayed.run(agent(tokens[0], tokens[1], tokens[0]).answer, "How is it?")


@pytest.mark.parametrize(
    "tokens", [(FIRST, SECOND, SECOND), (FIRST, FIRST, FIRST), (FIRST, SECOND, THIRD)]
)
def test_one_secret_in_the_place_of_another_diverges(
    two_tokens: Fixture, tokens: tuple[str, str, str]
) -> None:
    """A token in place of a different token diverges, and the report contains no token."""
    with pytest.raises(DivergenceError) as caught, Replayer(two_tokens) as replayed:
        replayed.run(agent(*tokens).answer, "How is it?")
    report = caught.value.divergence.text()
    assert not any(token in report for token in tokens)
    assert "redacted:github_token" in report


def test_a_step_does_not_differ_because_of_other_secrets(two_tokens: Fixture) -> None:
    """The step of `until` does not differ if it contains other secrets at the recorded places."""
    with Replayer(two_tokens) as replayed:
        other = agent(THIRD, FIRST, THIRD)
        assert not replayed.until(other.answer, "How is it?", turn=1).differs
    with Replayer(two_tokens) as replayed:
        assert replayed.until(agent(THIRD, THIRD, "x").answer, "How is it?", turn=1).differs


def test_a_fixture_without_numbers_replays(two_tokens: Fixture, tmp_path: Path) -> None:
    """A fixture that was frozen before secrets were numbered matches any secrets of the same kind."""
    recording = as_recording(two_tokens)
    plain = re.compile(rb"(\[redacted:[a-z_]+):[0-9a-f]+\]")
    data = write(_over_bodies(recording, lambda body: plain.sub(rb"\1]", body)), {})
    (tmp_path / "recording.jsonl").write_bytes(data)
    old = load(tmp_path)
    assert "[redacted:github_token]" in old.path.read_text()
    with Replayer(old) as replayed:
        replayed.run(agent(THIRD, THIRD, SECOND).answer, "How is it?")


def _over_bodies(recording: Any, change: Any) -> Any:
    exchanges = []
    for each in recording.exchanges:
        assert isinstance(each, ModelExchange)
        question = replace(each.question, body=change(each.question.body))
        exchanges.append(replace(each, question=question))
    return replace(recording, exchanges=tuple(exchanges))


def test_freeze_reports_the_redacted_secrets(two_tokens: Fixture, tmp_path: Path) -> None:
    """`freeze` reports the kinds, counts and places of redacted secrets, and freezing the result again changes no
    byte.
    """
    repeated = freeze(as_recording(two_tokens), tmp_path / "again", {})
    assert [each.kind for each in repeated.redacted] == ["github_token"]
    assert repeated.redacted[0].count == 3
    assert repeated.redacted[0].places == ("request 2", "request 3")
    frozen_twice = freeze(as_recording(load(repeated.fixture)), tmp_path / "third", {})
    assert frozen_twice.fixture.read_bytes() == repeated.fixture.read_bytes()


REMAINING = {
    "a token in base64 within binary": base64.b64encode(
        b"\x00\xff\x81" * 9 + FIRST.encode()
    ).decode(),
    "a token that is cut short": "sk-ant-aB3dE5fG7hJ9k",
    "base64 in base64": base64.b64encode(
        base64.b64encode(b"token " + FIRST.encode() + b" end of the file")
    ).decode(),
}


@pytest.mark.parametrize("remaining", REMAINING)
def test_a_remaining_secret_stops_freeze(remaining: str, tmp_path: Path) -> None:
    """If a possible secret remains, `freeze` writes nothing, and the error contains its kind and place but not its
    text.
    """

    def run(url: str) -> None:
        Agent(url, weather={"Oslo": REMAINING[remaining], "Rome": "sun"}).answer("How is it?")

    recording = recorded(tmp_path, run, answers())
    with pytest.raises(RecordingError, match="a possible secret was not redacted") as caught:
        freeze(recording, tmp_path / "frozen", {})
    assert "request 2" in str(caught.value)
    assert "Options(redactors=" in str(caught.value)
    assert REMAINING[remaining] not in str(caught.value)
    assert not (tmp_path / "frozen").exists()


def test_organization_ids_are_removed_from_signatures(tmp_path: Path) -> None:
    """Organization IDs are removed from signatures in a fixture, which still matches requests with the real
    signatures.
    """
    sealed = base64.b64encode(b"\x12\x8e\x03claude" * 8 + ORGANIZATION.encode() + b"\x12").decode()
    block = {"type": "thinking", "thinking": "hm", "signature": sealed}
    history: list[Any] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": [block, {"type": "text", "text": "1"}]},
        {"role": "user", "content": "two"},
    ]

    def run(url: str | None) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        with agentobs.session("signed"):
            client.messages.create(model=MODEL, max_tokens=9, messages=history, stream=True).close()

    fixture = frozen(tmp_path, recorded(tmp_path, run, [streamed(text("x"))]))
    signature = json.loads(fixture.body(1))["messages"][1]["content"][0]["signature"]
    assert len(signature) == len(sealed)
    assert ORGANIZATION.encode() not in base64.b64decode(signature)
    assert b"00000000-0000-4000-8000-000000000000" in base64.b64decode(signature)
    with Replayer(fixture) as replayed:
        replayed.run(run, None)


def test_a_custom_rule_is_used_in_a_replay(two_tokens: Fixture, tmp_path: Path) -> None:
    """A custom redaction rule must also be used in the replay, so that the redacted values match."""
    rule = expression("staff_number", rb"staff [0-9]{6}")
    recording = as_recording(two_tokens)
    hidden = _over_bodies(
        recording, lambda body: body.replace(b"How is it?", b"[redacted:staff_number:9]")
    )
    (tmp_path / "recording.jsonl").write_bytes(write(hidden, {}))
    with Replayer(load(tmp_path), ReplayOptions(redactors=[rule])) as replayed:
        replayed.run(agent(FIRST, SECOND, FIRST).answer, "staff 123456")
    with pytest.raises(DivergenceError), Replayer(load(tmp_path)) as replayed:
        replayed.run(agent(FIRST, SECOND, FIRST).answer, "staff 123456")
