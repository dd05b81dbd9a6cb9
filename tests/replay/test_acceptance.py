"""Acceptance of a change: current requests replace the recorded requests, and the recorded responses stay."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentobs.agent import Permissions
from agentobs.cli import main
from agentobs.errors import UsageError
from replay import DivergenceError, Fixture, Replayer, ReplayOptions, load
from replay.agent_code import leftover_state
from tests.provider_script import call, streamed, text
from tests.replay.agents import KEY, MODEL, TOOLS, WEATHER, Agent, frozen, recorded, weather
from tests.replay.mailer import SEND, Mailer, mails, recorded_fixture

ALLOWED = {"permissions": Permissions(mode="bypassPermissions", bypass_confirmed=True)}
SNOW: dict[str, Any] = {"weather": {**WEATHER, "Rome": "snow"}}


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    return weather(tmp_path)


def accept(fixture: Fixture, first: int, agent: Agent, **options: Any) -> Replayer:
    with Replayer(fixture, ReplayOptions(accept_from=first, **options)) as replayed:
        replayed.run(agent.answer, "How is it?")
    return replayed


def lines(fixture: Fixture) -> list[str]:
    return fixture.path.read_text().splitlines()


@pytest.mark.slow
def test_an_accepted_change_replays(fixture: Fixture) -> None:
    """After a change is accepted, the changed agent matches and the old agent does not; only lines of changed requests
    differ.
    """
    before = lines(fixture)
    replayed = accept(fixture, 1, Agent(**SNOW))
    assert lines(fixture) == before
    assert [(each.request, each.differences[0].actual) for each in replayed.accepted] == [
        (3, "snow")
    ]
    replayed.accept()
    updated = load(fixture.path)
    with Replayer(updated) as same:
        assert same.run(Agent(**SNOW).answer, "How is it?") == "Oslo is wet."
    with pytest.raises(DivergenceError, match="request 3 of 3"), Replayer(updated) as other:
        other.run(Agent().answer, "How is it?")
    changed = [old for old, new in zip(before, lines(updated), strict=True) if old != new]
    assert [json.loads(each).get("request", "end") for each in changed] == [3, "end"]


def test_accepting_a_change_updates_the_generated_readme(fixture: Fixture) -> None:
    """Accepting a change updates the generated README of the fixture's folder, but never a README that the user
    wrote.
    """
    readme = fixture.path.with_name("README.md")
    assert "claude-haiku-4-5" not in readme.read_text()
    model: dict[str, Any] = {"extra": {"model": "claude-haiku-4-5"}}
    accept(fixture, 1, Agent(**model)).accept()
    assert readme.read_text().count("claude-haiku-4-5") == 3
    readme.write_text("Mine.")
    accept(load(fixture.path), 1, Agent()).accept()
    assert b"claude-haiku-4-5" not in fixture.path.read_bytes()
    assert readme.read_text() == "Mine."


def test_a_change_in_all_requests_is_written_once(fixture: Fixture) -> None:
    """A changed prompt that all requests contain is written once in the fixture, and shown once."""
    size = fixture.path.stat().st_size
    replayed = accept(fixture, 1, Agent(system="Be as brief as you can."))
    assert [(e.request, len(e.differences), e.repeated) for e in replayed.accepted] == [
        (1, 1, 0), (2, 0, 1), (3, 0, 1),
    ]  # fmt: skip
    assert "that earlier requests already had" in replayed.accepted[2].text()
    replayed.accept()
    assert fixture.path.stat().st_size < size + 40
    with Replayer(load(fixture.path)) as same:
        same.run(Agent(system="Be as brief as you can.").answer, "How is it?")


def test_earlier_changes_are_not_accepted(fixture: Fixture) -> None:
    """Requests before the first accepted request number must match the recording."""
    with pytest.raises(DivergenceError, match="request 1 of 3"):
        accept(fixture, 2, Agent(system="Be brief!"))
    accept(fixture, 3, Agent(**SNOW)).accept()
    with pytest.raises(UsageError, match="It has requests 1 to 3"):
        accept(fixture, 4, Agent())


def test_a_changed_beta_header_is_accepted(fixture: Fixture) -> None:
    """A header that affects the response is part of the request, so its new value is written too."""
    beta = {"extra_headers": {"anthropic-beta": "context-1m"}}
    accept(fixture, 1, Agent(extra=beta)).accept()
    with Replayer(load(fixture.path)) as same:
        same.run(Agent(extra=beta).answer, "How is it?")
    with pytest.raises(DivergenceError), Replayer(load(fixture.path)) as other:
        other.run(Agent().answer, "How is it?")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"tools": TOOLS[1:]},
            "the recorded response calls tools that the new request does not declare: weather",
        ),
        ({"ids": True}, "it contains results of different tool calls"),
    ],
)
def test_a_response_that_does_not_fit_is_not_accepted(
    fixture: Fixture, changes: dict[str, Any], reason: str
) -> None:
    """If the recorded response does not fit the new request, the replay diverges with the reason, and nothing is
    written.
    """

    class Careless(Agent):
        def result(self, block: Any) -> dict[str, Any]:
            result = super().result(block)
            return {**result, "tool_use_id": "toolu_9"} if "ids" in changes else result

    before = fixture.path.read_bytes()
    wrapped = rf"this cannot be accepted: {reason}".replace(" ", r"\s+")
    with pytest.raises(DivergenceError, match=wrapped):
        accept(fixture, 1, Careless(**changes))
    assert fixture.path.read_bytes() == before


def test_an_additional_request_is_not_accepted(fixture: Fixture) -> None:
    """An additional request is not accepted, because the recording contains no response to it."""

    class Twice(Agent):
        def answer(self, prompt: str) -> str:
            super().answer(prompt)
            return super().answer(prompt)

    with pytest.raises(DivergenceError, match="one more request"):
        accept(fixture, 1, Twice())


def test_secrets_in_accepted_requests_are_redacted(fixture: Fixture) -> None:
    """A new secret in an accepted request gets its own number, and the fixture also replays with a different secret."""
    tokens = ["ghp_" + part * 9 for part in ("Zz9Q", "Yy8R")]
    accept(fixture, 1, Agent(system=f"Use {tokens[0]}.")).accept()
    text = fixture.path.read_text()
    assert tokens[0] not in text
    assert "[redacted:github_token:1]" in text
    with Replayer(load(fixture.path)) as same:
        same.run(Agent(system=f"Use {tokens[1]}.").answer, "How is it?")


def test_results_of_live_tools_are_accepted(tmp_path: Path) -> None:
    """The new result of a live tool is written into the fixture, which then replays with recorded tools."""
    fixture, _, _ = recorded_fixture(tmp_path, mails("ann"), options=ALLOWED)
    tools = (replace(SEND, function=_other_words), *Mailer().tools[1:])
    with Replayer(fixture, ReplayOptions(accept_from=1, tools="live")) as replayed:
        replayed.run(Mailer(tools=tools, options=ALLOWED).answer, "Mail them.")
    replayed.accept()
    [line] = [json.loads(each) for each in lines(fixture) if '"tool": ' in each[:9]]
    assert line["result"] == "ann has it"
    with Replayer(load(fixture.path)) as same:
        same.run(Mailer(options=ALLOWED).answer, "Mail them.")


def _other_words(to: str, body: str = "") -> str:
    return f"{to} has it{body}"


AGENT = f'''
import os
from anthropic import Anthropic
import agentobs

@agentobs.session("looker")
def answer(prompt: str) -> None:
    client = agentobs.record(Anthropic(api_key="{KEY}", max_retries=0))
    messages = [{{"role": "user", "content": prompt}}]
    for _ in range(2):
        with client.messages.stream(
            model="{MODEL}", max_tokens=64, system=os.environ.get("TONE", "Be kind."), messages=messages
        ) as stream:
            reply = stream.get_final_message()
        result = {{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a cloud"}}
        messages += [
            {{"role": "assistant", "content": [block.to_dict() for block in reply.content]}},
            {{"role": "user", "content": [result]}},
        ]
'''


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a folder with an agent and a fixture of its session, and make it the current directory."""
    (tmp_path / "looker.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(url: str) -> None:
        agent: Any = importlib.import_module("looker")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ANTHROPIC_BASE_URL", url)
            agent.answer("Look.")

    responses = [streamed(call(1, "look", at="sky"), number=1), streamed(text("Fine."), number=2)]
    frozen(tmp_path, recorded(tmp_path, run, responses), "fixture")
    yield tmp_path
    sys.modules.pop("looker", None)


def shell(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command line as it is printed; return its exit status and its output."""
    leftover_state.forget()  # outside of this test, each command runs in its own process
    name, *arguments = command.split()
    assert name == "agentobs"
    status = 0
    try:
        main(arguments)
    except SystemExit as end:
        status = int(end.code or 0)
    output = capsys.readouterr()
    return status, output.out + output.err


@pytest.mark.slow
def test_every_printed_command_works(
    looker: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command that is printed after `next` runs as printed, and does what its description states."""
    monkeypatch.setenv("TONE", "Be brief.")
    status, report = shell("agentobs replay fixture", capsys)
    assert status == 1
    printed = [
        line.split("next")[-1].strip() for line in report.splitlines() if "agentobs " in line
    ]
    assert printed == [
        "agentobs replay fixture --explain",
        "agentobs replay fixture --json",
        "agentobs replay fixture --accept-from 1",
    ]
    status, explained = shell(printed[0], capsys)
    assert (status, explained.startswith(report)) == (1, True)
    assert "causal chain" in explained
    status, as_json = shell(printed[1], capsys)
    assert (status, json.loads(as_json)["commands"]) == (1, printed)
    before = (looker / "fixture" / "recording.jsonl").read_bytes()
    status, shown = shell(printed[2], capsys)
    assert status == 0
    assert "pass --yes to write without confirmation" in shown
    assert (looker / "fixture" / "recording.jsonl").read_bytes() == before
    status, wrote = shell(f"{printed[2]} --yes", capsys)
    assert status == 0
    assert "wrote  2 requests to fixture/recording.jsonl" in wrote
    status, matched = shell("agentobs replay fixture", capsys)
    assert (status, matched.startswith("MATCHED")) == (0, True)


def test_a_fork_is_offered_at_the_last_turn_with_a_response(
    looker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The proposed fork starts at the last turn with a recorded response, in a form that the command accepts."""
    (looker / "looker.py").write_text(AGENT.replace("a cloud", "a balloon"))
    del sys.modules["looker"]
    status, report = shell("agentobs replay fixture", capsys)
    assert status == 1
    assert "agentobs fork fixture --at 1" in report
    status, help_text = shell("agentobs fork --help", capsys)
    assert status == 0
    assert "--at" in help_text


def test_no_command_is_offered_without_an_entry(fixture: Fixture) -> None:
    """A command that would not work is not printed if the fixture has no entry."""
    header = {**fixture.header, "entry": None}
    other = Fixture(fixture.path, header, fixture.requests, fixture.tools)
    with pytest.raises(DivergenceError) as raised, Replayer(other) as replayed:
        replayed.run(Agent(system="Hm.").answer, "How is it?")
    assert raised.value.divergence.commands == ()
    assert "agentobs " not in raised.value.divergence.text()
