"""Child processes: an agent that starts another agent as a process within one session."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs.determinism import session_inheritance
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from agentobs.runtime import process
from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from tests.provider_script import call, text
from tests.replay.agents import KEY, MODEL, frozen, recorded
from tests.replay.test_tool_policies import unstreamed

ROOT = Path(__file__).parents[2]

CHILD = """
import sys
import agentobs
from anthropic import Anthropic

topic, url = sys.argv[1:3]


@agentobs.record_tool
def shelf(row: int) -> bytes:
    print("ran", file=sys.stderr)
    return b"\\xff" * row


@agentobs.session("a session that is none")
def main():
    key = "sk-ant-api03-a-key-of-the-child-0000000001"
    client = agentobs.record(Anthropic(api_key=key, base_url=url, max_retries=0))
    messages = [{"role": "user", "content": f"Look for {topic}."}]
    answer = client.messages.create(model="claude-sonnet-5", max_tokens=9, messages=messages)
    use = answer.content[0]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": repr(shelf(**use.input))}
    messages += [{"role": "assistant", "content": [use.to_dict()]}]
    messages += [{"role": "user", "content": [result]}]
    return client.messages.create(model="claude-sonnet-5", max_tokens=9, messages=messages).content[0].text


print(main())
"""


class Library:
    """An agent with a recorded tool that starts a process for each topic that the model requests."""

    def __init__(self, url: str | None, topic: str = "") -> None:
        self.url, self.topic = url or "https://provider.invalid", topic
        self.started: list[subprocess.CompletedProcess[str]] = []
        self.research = agentobs.record_tool(name="research")(self._research)

    def _research(self, topic: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **agentobs.child_environment("researcher")}
        command = [sys.executable, "-c", CHILD, self.topic or topic, self.url]
        self.started.append(subprocess.run(command, capture_output=True, text=True, env=env))
        return self.started[-1].stdout.strip()

    def run(self, prompt: str = "Find tea.") -> str:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=self.url, max_retries=0))
        messages: list[Any] = [{"role": "user", "content": prompt}]
        with agentobs.session("library"):
            answer = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
            [use] = [block for block in answer.content if block.type == "tool_use"]
            result_text = self.research(**use.input)  # type: ignore[arg-type]
            result = {"type": "tool_result", "tool_use_id": use.id, "content": result_text}
            messages += [{"role": "assistant", "content": [use.to_dict()]}]
            messages += [{"role": "user", "content": [result]}]
            last = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
            assert last.content[0].type == "text"
            return last.content[0].text


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fixture, Path]:
    """A session in which a tool started a process, which sent two requests and called a function."""
    tmp = tmp_path_factory.mktemp("library")
    responses = [
        unstreamed(call(1, "research", topic="tea")),
        unstreamed(call(9, "shelf", row=2), number=2),
        unstreamed(text("On shelf 2."), number=3),
        unstreamed(text("Tea is on shelf 2."), number=4),
    ]
    run = recorded(tmp, lambda url: Library(url).run(), responses)
    return frozen(tmp, run, "library"), tmp / "home"


@pytest.mark.slow
def test_both_processes_record_one_session(library: tuple[Fixture, Path]) -> None:
    """Parent and child record one session in two segments, and the child's requests are in a lane below the tool
    call.
    """
    fixture, path = library
    home = existing_home(path)
    kinds: dict[str, set[str]] = {}
    for segment in segment_ids(home):
        for line in read(facts_path(home, segment)):
            if isinstance(line, Line) and "session_id" in line.value():
                kinds.setdefault(segment, set()).add(line.value()["session_id"])
    assert len(kinds) == 2
    assert len(set.union(*kinds.values())) == 1
    lane = "main/toolu_1/researcher"
    assert [ask.lane for ask in fixture.requests] == ["main", lane, lane, "main"]
    assert [(t.lane, t.question.name) for t in fixture.tools] == [
        ("main", "research"),
        (lane, "shelf"),
    ]
    assert fixture.header["name"] == "library"


@pytest.mark.slow
def test_a_replayed_tool_starts_no_process(library: tuple[Fixture, Path]) -> None:
    """A replayed tool returns the recorded result without starting its process, and the missing requests of the child
    are not a divergence.
    """
    agent = Library(None)
    with Replayer(library[0]) as replayed:
        assert replayed.run(agent.run) == "Tea is on shelf 2."
    assert agent.started == []


@pytest.mark.slow
def test_a_child_replays_from_the_recording_of_its_parent(library: tuple[Fixture, Path]) -> None:
    """If the tool runs live, its process receives recorded responses, and the child's functions are replayed too."""
    agent = Library(None)
    with Replayer(library[0], ReplayOptions(tools=["research"])) as replayed:
        assert replayed.run(agent.run) == "Tea is on shelf 2."
    [child] = agent.started
    assert (child.stdout, child.stderr, child.returncode) == ("On shelf 2.\n", "", 0)
    done = replayed.progress
    assert (done.requests_matched, done.requests, done.tools_matched, done.tools) == (4, 4, 2, 2)
    assert "lane main/toolu_1/researcher" in replayed.trajectory


@pytest.mark.slow
def test_a_divergence_in_a_child_fails_the_replay(library: tuple[Fixture, Path]) -> None:
    """A divergence in a child ends the child and fails the replay of the parent, and the report names the child's
    lane.
    """
    agent = Library(None, topic="coffee")
    with pytest.raises(DivergenceError) as raised:
        with Replayer(library[0], ReplayOptions(tools=["research"])) as replayed:
            replayed.run(agent.run)
    found = raised.value.divergence
    assert (found.lane, found.number, found.kind) == ("main/toolu_1/researcher", 1, "content")
    assert "coffee" in found.text()
    assert "DIVERGED" in agent.started[0].stderr


def test_other_processes_receive_no_responses(library: tuple[Fixture, Path]) -> None:
    """A process that does not send the token receives no responses, and the socket's folder is private and removed
    afterwards.
    """
    with pytest.raises(DivergenceError), Replayer(library[0]):
        environment = agentobs.child_environment("researcher")
        token, path = environment["AGENTOBS_ANSWERS"].split(" ")
        assert Path(path).parent.stat().st_mode & 0o077 == 0
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(
                json.dumps({"token": token[:-1] + "x", "kind": "model"}).encode() + b"\n"
            )
            assert json.loads(client.makefile().readline()) == {
                "raises": "the sender is not authorized"
            }
    assert not Path(path).parent.exists()
    assert agentobs.child_environment("researcher") == {}


def test_no_programs_of_ended_sessions_are_kept(tmp_path: Path) -> None:
    """Child programs with the same name are numbered per session, and a process forgets them when the session ends."""
    agentobs.stop_recorder()
    for _ in range(3):
        with agentobs.session("server", home=str(tmp_path / "home")):
            lanes = [
                agentobs.child_environment("helper")["AGENTOBS_JOIN"].split(" ")[1]
                for _ in range(2)
            ]
            assert lanes == ["main/helper", "main/helper.2"]
            assert len(process.state(session_inheritance.State).counts) == 1
        assert process.state(session_inheritance.State).counts == {}
    agentobs.stop_recorder()


CHILD_WITH_TOOL = """
import agentobs

with agentobs.session("joins"):
    agentobs.record_tool(name="say")(lambda what: what)("a word that is said")
"""


@pytest.mark.slow
@pytest.mark.parametrize("content", ["off", "vault"])
def test_a_child_records_content_if_its_parent_does(tmp_path: Path, content: Any) -> None:
    """If the parent's session records no content, the child records none either, but its calls still count."""
    agentobs.stop_recorder()
    home = tmp_path / "home"
    with agentobs.session("parent", home=str(home), content=content) as opened:
        environment = agentobs.child_environment("quiet")
        env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        subprocess.run([sys.executable, "-c", CHILD_WITH_TOOL], env=env, check=True)
    assert agentobs.stop_recorder()
    files = b"".join(path.read_bytes() for path in (home / "segments").glob("*.content"))
    assert (b"a word that is said" in files) is (content == "vault")
    lines = [
        line
        for each in segment_ids(existing_home(home))
        for line in read(facts_path(existing_home(home), each))
    ]
    facts = [
        line.value() for line in lines if isinstance(line, Line) and line.kind == "tool_results"
    ]
    assert [(f["session_id"], f["lane"]) for f in facts] == [(opened.session_id, "main/quiet")]
