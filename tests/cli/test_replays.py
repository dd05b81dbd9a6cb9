"""`agentobs replay` of many fixtures: a table or JSON, in parallel; an agent that crashes or hangs also has a row."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from replay.freeze.conversion import freeze
from tests.cli.test_commands import Ended, Shell
from tests.provider_script import streamed, text
from tests.replay.agents import recorded

AGENT = '''
import json, os, pathlib, time
import agentobs
from anthropic import Anthropic

@agentobs.session("shop")
def answer(prompt):
    """Answer, and misbehave as modes.json says."""
    mode = json.loads(pathlib.Path("modes.json").read_text()).get(prompt, "same")
    print("said by the agent")
    if mode == "dies":
        os._exit(7)
    while mode == "hangs":
        time.sleep(1)
    client = agentobs.record(Anthropic(api_key="sk-made-up", base_url=os.environ.get("URL")))
    asked = "Eh?" if mode == "other" else prompt
    said = client.messages.create(model="m", max_tokens=9, stream=True, messages=[{"role": "user", "content": asked}])
    list(said)
    if mode == "raises":
        raise LookupError("no such order")
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with an agent, and a fixture for each prompt."""
    path = tmp_path_factory.mktemp("shop")
    (path / "shop_agent.py").write_text(AGENT)
    (path / "modes.json").write_text("{}")
    before = Path.cwd()
    os.chdir(path)
    sys.path.insert(0, str(path))
    try:
        from shop_agent import answer  # type: ignore[import-not-found]  # the agent of this project

        def ask(url: str, prompt: str) -> None:
            os.environ["URL"] = url
            answer(prompt)

        for prompt in ("a", "b", "c"):
            given = [streamed(text(prompt))]
            recording = recorded(path, lambda url, prompt=prompt: ask(url, prompt), given)  # type: ignore[misc]
            freeze(recording, path / "fixtures" / prompt, {})
        yield path
    finally:
        os.chdir(before)
        os.environ.pop("URL", None)
        sys.path.remove(str(path))
        sys.modules.pop("shop_agent", None)


@pytest.fixture
def shell(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    monkeypatch.chdir(project)
    monkeypatch.setenv("COLUMNS", "200")
    yield Shell(project / "home", capsys)
    (project / "modes.json").write_text("{}")


def modes(**given: str) -> None:
    Path("modes.json").write_text(json.dumps(given))


def rows(ended: Ended) -> dict[str, dict[str, object]]:
    return {Path(row["path"]).name: row for row in map(json.loads, ended.out.splitlines())}


@pytest.mark.slow
def test_all_fixtures_of_a_folder_match(shell: Shell) -> None:
    """The table has one row per fixture and no output of the agents, and the exit code is 0."""
    ended = shell("replay", "fixtures", "-j", "2")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert [" ".join(line.split()[:8]) for line in lines[1:4]] == [
        f"fixtures/{name} 1 of 1 0 of 0 matched" for name in "abc"
    ]
    assert lines[-1] == "3 of 3 matched"
    assert "said by" not in ended.out


@pytest.mark.slow
def test_each_failing_replay_is_a_row(shell: Shell) -> None:
    """A fixture that diverges, crashes its process or is damaged has a row, and the exit code is 1.

    All other fixtures are replayed.
    """
    modes(a="other", b="dies")
    damaged = Path("fixtures/d")
    damaged.mkdir()
    (damaged / "recording.jsonl").write_bytes(Path("fixtures/c/recording.jsonl").read_bytes()[:99])
    try:
        ended = shell("replay", "fixtures", "--json")
        result = shell("replay", "fixtures/a", "fixtures/c", "--verbose")
    finally:
        (damaged / "recording.jsonl").unlink()
        damaged.rmdir()
    assert (ended.code, result.code) == (1, 1)
    found = rows(ended)
    assert {name: row["result"] for name, row in found.items()} == {
        "a": "diverged",
        "b": "error",
        "c": "matched",
        "d": "error",
    }
    assert found["a"]["divergence"]["kind"] == "content"  # type: ignore[index]  # JSON
    assert str(found["a"]["message"]).startswith("DIVERGED  shop  main, request 1 of 1")
    assert found["b"]["message"] == "its process ended before the replay finished: exit code 7"
    assert "fixture" in str(found["d"]["message"])
    assert result.out.count("DIVERGED  shop") == 2
    assert 'now       "Eh?"' in result.out
    assert result.out.endswith("1 of 2 matched\n")


@pytest.mark.slow
def test_agents_that_raise_or_hang_are_reported(shell: Shell) -> None:
    """An agent that raises is reported with its error; an agent that hangs is stopped, and no process remains."""
    modes(a="raises")
    assert rows(shell("replay", "fixtures", "--json"))["a"]["message"] == (
        "the agent raised LookupError: no such order"
    )
    modes(a="hangs", b="hangs")
    found = rows(shell("replay", "fixtures/a", "fixtures/b", "--json", "--timeout", "0.2"))
    assert {row["message"] for row in found.values()} == {"it did not finish within 0.2 s"}


def imports_the_sdk(process: str) -> bool:
    return "pydantic_core" in Path(f"/proc/{process}/maps").read_text()


@pytest.mark.slow
def test_an_interrupt_prints_one_word(shell: Shell) -> None:
    """Ctrl-C while the processes start prints one word without tracebacks, and the exit code is 130."""
    modes(a="hangs", b="hangs")
    command = [sys.executable, "-m", "agentobs", "replay", "fixtures/a", "fixtures/b"]
    replays = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    children = Path(f"/proc/{replays.pid}/task/{replays.pid}/children")
    while not any(map(imports_the_sdk, children.read_text().split())):
        time.sleep(0.005)
    os.killpg(replays.pid, signal.SIGINT)
    _, result = replays.communicate(timeout=60)
    assert (replays.returncode, result.split()) == (130, ["interrupted"])


def test_a_single_fixture_prints_one_line(shell: Shell) -> None:
    """The replay of a single fixture prints one line, and the output of the agent is shown."""
    ended = shell("replay", "fixtures/a")
    assert ended.out == "said by the agent\nMATCHED  shop  1 of 1 requests, 0 of 0 tool calls\n"


def test_a_single_fixture_whose_agent_raises(shell: Shell) -> None:
    """One line contains the error and the line in the agent; then only the frames of the agent follow; exit code 1."""
    modes(a="raises")
    ended = shell("replay", "fixtures/a")
    agent_output, first, *rest = ended.out.splitlines()
    assert (ended.code, ended.err, agent_output) == (1, "", "said by the agent")
    verdict = (
        r"RAISED  shop  main, after request 1 of 1: LookupError: no such order  shop_agent.py:\d+"
    )
    assert re.fullmatch(verdict, first)
    assert rest
    assert all("shop_agent.py" in line for line in rest)
    result = json.loads(shell("replay", "fixtures/a", "--json").out.splitlines()[-1])
    assert (result["kind"], result["error"], result["message"]) == (
        "raised",
        "LookupError",
        "no such order",
    )
    assert [frame["file"] for frame in result["frames"]] == ["shop_agent.py"] * len(rest)


def test_the_injected_fault_is_named(shell: Shell) -> None:
    """The verdict names the injected fault."""
    ended = shell("replay", "fixtures/a", "--fault", "400 at request 1")
    assert ended.code == 1
    assert ended.out.splitlines()[1].startswith(
        "RAISED  shop  main, after request 0 of 1: BadRequest"
    )
    assert ended.out.endswith("  unused     1 recorded request and 0 tool calls\n")
    assert "  fault      injected: 400 at request 1\n" in ended.out
    assert "anthropic/" not in ended.out
    result = json.loads(
        shell("replay", "fixtures/a", "--json", "--fault", "400 at request 1").out.splitlines()[-1]
    )
    assert result["faults"] == ["400 at request 1"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fixtures", "--explain"], "--explain: this option requires exactly one fixture"),
        (
            ["fixtures/a", "fixtures/b", "--accept-from", "1"],
            "--accept-from: this option requires exactly one fixture",
        ),
        (
            ["fixtures/a", "--pace", "fast"],
            "--pace: expected `recorded` or a number, got 'fast'. Pass recorded",
        ),
        (["fixtures/none"], "fixtures/none: this is not a fixture"),
    ],
)
def test_invalid_options_give_a_one_line_error(
    shell: Shell, arguments: list[str], expected: str
) -> None:
    """Invalid options give a non-zero exit code and one line that states what was found and what to do."""
    ended = shell("replay", *arguments)
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert ended.err.startswith(f"error: {expected}")
