"""Torture case 42: an agent that starts another one as a process of its own, in one session."""

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
from tests.replay.test_torture_world import whole

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
    """Starts a process for each topic that the model asks for, in a recorded tool."""

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
            told = self.research(**use.input)  # type: ignore[arg-type]
            result = {"type": "tool_result", "tool_use_id": use.id, "content": told}
            messages += [{"role": "assistant", "content": [use.to_dict()]}]
            messages += [{"role": "user", "content": [result]}]
            last = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
            assert last.content[0].type == "text"
            return last.content[0].text


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fixture, Path]:
    """A session in which a tool started a process that asked twice and called a function."""
    tmp = tmp_path_factory.mktemp("library")
    given = [
        whole(call(1, "research", topic="tea")),
        whole(call(9, "shelf", row=2), number=2),
        whole(text("On shelf 2."), number=3),
        whole(text("Tea is on shelf 2."), number=4),
    ]
    run = recorded(tmp, lambda url: Library(url).run(), given)
    return frozen(tmp, run, "library"), tmp / "home"


def test_42_both_processes_record_one_session(library: tuple[Fixture, Path]) -> None:
    """Two segments, one session with one start and one end; the child's requests lie in a lane under the call."""
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
    assert [ask.lane for ask in fixture.asks] == ["main", lane, lane, "main"]
    assert [(t.lane, t.question.name) for t in fixture.tools] == [
        ("main", "research"),
        (lane, "shelf"),
    ]
    assert fixture.header["name"] == "library"


def test_42_a_tool_that_is_answered_starts_no_process(library: tuple[Fixture, Path]) -> None:
    """Its answer is the recorded one, and that the child's lane stayed empty is no divergence."""
    agent = Library(None)
    with Replayer(library[0]) as replayed:
        assert replayed.run(agent.run) == "Tea is on shelf 2."
    assert agent.started == []


def test_42_a_child_is_answered_from_its_parents_recording(library: tuple[Fixture, Path]) -> None:
    """Where the tool runs, its process asks nobody outside; its functions answer from the recording, too."""
    agent = Library(None)
    with Replayer(library[0], ReplayOptions(tools=["research"])) as replayed:
        assert replayed.run(agent.run) == "Tea is on shelf 2."
    [child] = agent.started
    assert (child.stdout, child.stderr, child.returncode) == ("On shelf 2.\n", "", 0)
    done = replayed.progress
    assert (done.requests_matched, done.requests, done.tools_matched, done.tools) == (4, 4, 2, 2)
    assert "lane main/toolu_1/researcher" in replayed.trajectory


def test_42_where_a_child_parts_the_replay_diverges(library: tuple[Fixture, Path]) -> None:
    """The child hears of it and ends; the report is of its lane, whatever the parent makes of a child that failed."""
    agent = Library(None, topic="coffee")
    with pytest.raises(DivergenceError) as raised:
        with Replayer(library[0], ReplayOptions(tools=["research"])) as replayed:
            replayed.run(agent.run)
    found = raised.value.divergence
    assert (found.lane, found.number, found.kind) == ("main/toolu_1/researcher", 1, "content")
    assert "coffee" in found.text()
    assert "DIVERGED" in agent.started[0].stderr


def test_42_nobody_else_is_answered(library: tuple[Fixture, Path]) -> None:
    """Without the word from the environment nothing is answered; the socket is its owner's and is gone afterwards."""
    with pytest.raises(DivergenceError), Replayer(library[0]):
        told = agentobs.child_environment("researcher")
        token, path = told["AGENTOBS_ANSWERS"].split(" ")
        assert Path(path).parent.stat().st_mode & 0o077 == 0
        with socket.socket(socket.AF_UNIX) as made:
            made.connect(path)
            made.sendall(json.dumps({"token": token[:-1] + "x", "kind": "model"}).encode() + b"\n")
            assert json.loads(made.makefile().readline()) == {
                "raises": "the sender is not authorized"
            }
    assert not Path(path).parent.exists()
    assert agentobs.child_environment("researcher") == {}


def test_42_nothing_is_kept_of_the_programs_of_a_session_that_has_ended(tmp_path: Path) -> None:
    """Programs of one name are numbered within their session; a server that goes on remembers none of them."""
    agentobs.stop_recorder()
    for _ in range(3):
        with agentobs.session("server", home=str(tmp_path / "home")):
            lanes = [
                agentobs.child_environment("helper")["AGENTOBS_JOIN"].split(" ")[1]
                for _ in range(2)
            ]
            assert lanes == ["main/helper", "main/helper.2"]
            assert len(process.part(session_inheritance.State).counts) == 1
        assert process.part(session_inheritance.State).counts == {}
    agentobs.stop_recorder()


QUIET = """
import agentobs

with agentobs.session("joins"):
    agentobs.record_tool(name="say")(lambda what: what)("a word that is said")
"""


@pytest.mark.parametrize("content", ["off", "vault"])
def test_42_a_child_keeps_what_is_said_where_its_parent_does(tmp_path: Path, content: Any) -> None:
    """A session without content has none of its children's either, and the child's calls count for it."""
    agentobs.stop_recorder()
    home = tmp_path / "home"
    with agentobs.session("parent", home=str(home), content=content) as opened:
        told = agentobs.child_environment("quiet")
        env = {**os.environ, "PYTHONPATH": str(ROOT), **told}
        subprocess.run([sys.executable, "-c", QUIET], env=env, check=True)
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
