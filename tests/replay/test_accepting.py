"""Accepting: what an agent asks now takes the place of what was recorded, and the recorded answers stay."""

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
from tests.replay.mailer import SEND, Mailer, made, mails

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


def test_what_is_accepted_replays(fixture: Fixture) -> None:
    """The changed agent matches then, the former one does not, and only the lines of what changed are others."""
    before = lines(fixture)
    replayed = accept(fixture, 1, Agent(**SNOW))
    assert lines(fixture) == before
    assert [(each.request, each.differences[0].actual) for each in replayed.accepted] == [
        (3, "snow")
    ]
    replayed.accept()
    again = load(fixture.path)
    with Replayer(again) as same:
        assert same.run(Agent(**SNOW).answer, "How is it?") == "Oslo is wet."
    with pytest.raises(DivergenceError, match="request 3 of 3"), Replayer(again) as other:
        other.run(Agent().answer, "How is it?")
    changed = [old for old, new in zip(before, lines(again), strict=True) if old != new]
    assert [json.loads(each).get("request", "end") for each in changed] == [3, "end"]


def test_what_people_read_is_written_with_it(fixture: Fixture) -> None:
    """The README of the folder tells what the fixture holds now; one of your own is left alone."""
    readme = fixture.path.with_name("README.md")
    assert "claude-haiku-4-5" not in readme.read_text()
    model: dict[str, Any] = {"extra": {"model": "claude-haiku-4-5"}}
    accept(fixture, 1, Agent(**model)).accept()
    assert readme.read_text().count("claude-haiku-4-5") == 3
    readme.write_text("Mine.")
    accept(load(fixture.path), 1, Agent()).accept()
    assert b"claude-haiku-4-5" not in fixture.path.read_bytes()
    assert readme.read_text() == "Mine."


def test_a_change_of_all_requests(fixture: Fixture) -> None:
    """Another prompt stands in each request; it is written once, where the history is, and shown once."""
    size = fixture.path.stat().st_size
    replayed = accept(fixture, 1, Agent(system="Be as brief as you can."))
    assert [(e.request, len(e.differences), e.repeated) for e in replayed.accepted] == [
        (1, 1, 0), (2, 0, 1), (3, 0, 1),
    ]  # fmt: skip
    assert "as in the request before it" in replayed.accepted[2].text()
    replayed.accept()
    assert fixture.path.stat().st_size < size + 40
    with Replayer(load(fixture.path)) as same:
        same.run(Agent(system="Be as brief as you can.").answer, "How is it?")


def test_what_comes_before_is_not_accepted(fixture: Fixture) -> None:
    """Requests before the number are held to what was recorded."""
    with pytest.raises(DivergenceError, match="request 1 of 3"):
        accept(fixture, 2, Agent(system="Be brief!"))
    accept(fixture, 3, Agent(**SNOW)).accept()
    with pytest.raises(UsageError, match="It has requests 1 to 3"):
        accept(fixture, 4, Agent())


def test_another_beta_is_accepted(fixture: Fixture) -> None:
    """What means something in the head is part of the question, and is written, too."""
    beta = {"extra_headers": {"anthropic-beta": "context-1m"}}
    accept(fixture, 1, Agent(extra=beta)).accept()
    with Replayer(load(fixture.path)) as same:
        same.run(Agent(extra=beta).answer, "How is it?")
    with pytest.raises(DivergenceError), Replayer(load(fixture.path)) as other:
        other.run(Agent().answer, "How is it?")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tools": TOOLS[1:]}, "the recorded answer calls weather, which it does not declare"),
        ({"ids": True}, "it answers other tool calls"),
    ],
)
def test_an_answer_that_does_not_fit(fixture: Fixture, changes: dict[str, Any], why: str) -> None:
    """Where the recorded answer would make no sense the replay diverges, says why, and nothing is written."""

    class Careless(Agent):
        def result(self, block: Any) -> dict[str, Any]:
            own = super().result(block)
            return {**own, "tool_use_id": "toolu_9"} if "ids" in changes else own

    before = fixture.path.read_bytes()
    with pytest.raises(DivergenceError, match=f"this cannot be accepted: {why}"):
        accept(fixture, 1, Careless(**changes))
    assert fixture.path.read_bytes() == before


def test_one_request_more_is_not_accepted(fixture: Fixture) -> None:
    """There is no answer to it."""

    class Twice(Agent):
        def answer(self, prompt: str) -> str:
            super().answer(prompt)
            return super().answer(prompt)

    with pytest.raises(DivergenceError, match="one more request"):
        accept(fixture, 1, Twice())


def test_secrets_of_what_is_accepted_are_taken_out(fixture: Fixture) -> None:
    """A new secret gets a number of its own, and the fixture replays with another one in its place."""
    tokens = ["ghp_" + part * 9 for part in ("Zz9Q", "Yy8R")]
    accept(fixture, 1, Agent(system=f"Use {tokens[0]}.")).accept()
    told = fixture.path.read_text()
    assert tokens[0] not in told
    assert "[redacted:github_token:1]" in told
    with Replayer(load(fixture.path)) as same:
        same.run(Agent(system=f"Use {tokens[1]}.").answer, "How is it?")


def test_results_of_live_tools_are_accepted(tmp_path: Path) -> None:
    """What a tool says now stands in its own line, too: the fixture then replays with recorded tools."""
    fixture, _, _ = made(tmp_path, mails("ann"), options=ALLOWED)
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
    """A folder with an agent in it and a fixture of its session; it is the current directory."""
    (tmp_path / "looker.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(url: str) -> None:
        agent: Any = importlib.import_module("looker")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ANTHROPIC_BASE_URL", url)
            agent.answer("Look.")

    given = [streamed(call(1, "look", at="sky"), number=1), streamed(text("Fine."), number=2)]
    frozen(tmp_path, recorded(tmp_path, run, given), "fixture")
    yield tmp_path
    sys.modules.pop("looker", None)


def shell(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command line as it is printed; return its exit status and what it says."""
    leftover_state.forget()  # each command has a process of its own elsewhere
    name, *arguments = command.split()
    assert name == "agentobs"
    status = 0
    try:
        main(arguments)
    except SystemExit as end:
        status = int(end.code or 0)
    told = capsys.readouterr()
    return status, told.out + told.err


def test_every_printed_command_works(
    looker: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind `next` can be typed as it is: each runs, and does what it says."""
    monkeypatch.setenv("TONE", "Be brief.")
    status, told = shell("agentobs replay fixture", capsys)
    assert status == 1
    printed = [line.split("next")[-1].strip() for line in told.splitlines() if "agentobs " in line]
    assert printed == [
        "agentobs replay fixture --explain",
        "agentobs replay fixture --json",
        "agentobs replay fixture --accept-from 1",
    ]
    status, explained = shell(printed[0], capsys)
    assert (status, explained.startswith(told)) == (1, True)
    assert "causal chain" in explained
    status, as_json = shell(printed[1], capsys)
    assert (status, json.loads(as_json)["commands"]) == (1, printed)
    before = (looker / "fixture" / "recording.jsonl").read_bytes()
    status, shown = shell(printed[2], capsys)
    assert status == 0
    assert "pass --yes to write without a prompt" in shown
    assert (looker / "fixture" / "recording.jsonl").read_bytes() == before
    status, wrote = shell(f"{printed[2]} --yes", capsys)
    assert status == 0
    assert "wrote  2 requests of fixture" in wrote
    status, matched = shell("agentobs replay fixture", capsys)
    assert (status, matched.startswith("MATCHED")) == (0, True)


def test_a_fork_is_offered_where_a_turn_was_answered(
    looker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind the last answer that was recorded, and as the command takes it."""
    (looker / "looker.py").write_text(AGENT.replace("a cloud", "a balloon"))
    del sys.modules["looker"]
    status, told = shell("agentobs replay fixture", capsys)
    assert status == 1
    assert "agentobs fork fixture --at 1" in told
    status, said = shell("agentobs fork --help", capsys)
    assert status == 0
    assert "--at" in said


def test_a_fixture_that_does_not_say_its_entry_offers_no_command(fixture: Fixture) -> None:
    """A command that would not work is not printed."""
    header = {**fixture.header, "entry": None}
    other = Fixture(fixture.path, header, fixture.asks, fixture.tools)
    with pytest.raises(DivergenceError) as raised, Replayer(other) as replayed:
        replayed.run(Agent(system="Hm.").answer, "How is it?")
    assert raised.value.divergence.commands == ()
    assert "agentobs " not in raised.value.divergence.text()
