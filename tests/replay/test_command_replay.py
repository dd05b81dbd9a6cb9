"""A recorded command runs against its fixture, in a copy of its directory and without the network."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentobs import world
from agentobs.cli import main
from agentobs.cli.replay.command_output import check_command
from agentobs.determinism.entry import COMMAND
from agentobs.proxy.client_variables import PROVIDER_URL
from agentobs.proxy.recorded_sessions import command_entry
from agentobs.records.exchanges import Answer, ModelExchange, Recording, ReturnValue
from replay import CommandDivergenceError, Fixture, load, run_command, says
from replay.command import child_program
from replay.command.child_program import ChildProgram
from replay.command.command_replay import AWS_KEY_VARIABLES, AWS_REGION_VARIABLES
from replay.command.recorded_command import RecordedCommand
from replay.fixture.format import as_recording
from replay.fixture.writer import write
from replay.freeze.conversion import freeze
from tests.replay.coding_agent_provider import (
    AGENTS,
    environment,
    prepared,
    recorded,
)
from tests.replay.coding_agent_provider import (
    COMMAND as AGENT,
)

TOTAL = 7 + 2 * AGENTS


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A recording of the coding agent, as `agentobs record` writes it."""
    folder = tmp_path_factory.mktemp("command")
    return dataclasses.replace(
        recorded(folder / "recorded"),
        name="coding-agent",
        entry=f"{COMMAND}python",
        arguments={"argv": list(AGENT), "directory": str(folder / "recorded" / "work")},
        entry_obstacle={"kind": "command"},
        result=ReturnValue({"exit_code": 0}),
    )


@pytest.fixture(scope="module")
def fixture(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """The fixture of this recording."""
    file = tmp_path_factory.mktemp("frozen") / "fixtures" / "coding-agent" / "recording.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(write(recording, {}))
    return load(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepared(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_a_recorded_command_runs_in_a_copy_without_the_network(
    fixture: Fixture, folder: Path
) -> None:
    """All requests are exact; the files of the directory do not change; the refused host is known."""
    env = environment(folder, AGENT_LEAK="http://example.invalid/telemetry")
    ran = run_command(fixture, cwd=folder / "work", env=env, timeout=60)
    ran.check()
    assert (ran.ended_by, ran.exit_code, ran.recorded_exit_code) == ("exit", 0, 0)
    assert ran.verdict.line() == f"served {TOTAL} of {TOTAL} exchanges: exact {TOTAL}"
    assert ran.refused_hosts == ("example.invalid",)
    assert ran.stdout.startswith("no network: HTTPError\nAll files in ")
    assert sorted(path.name for path in (folder / "work").iterdir()) == [
        f"{number}.txt" for number in range(AGENTS)
    ]


def test_another_exit_code_or_file_is_a_divergence(fixture: Fixture, folder: Path) -> None:
    """The error contains the report: the exit code, and each difference once with both values."""
    (folder / "work" / "2.txt").write_text("another text\n")
    env = environment(folder, AGENT_EXIT="4")
    ran = run_command(fixture, cwd=folder / "work", env=env, timeout=60)
    with pytest.raises(CommandDivergenceError) as raised:
        ran.check(allow_drift=True)
    report = str(raised.value)
    assert "the exit code was 4, in the recording 0" in report
    assert report.count('now       "another text\\n"') == 1
    assert not ran.matched
    assert ran.problems(allow_drift=True) == ["the exit code was 4, in the recording 0"]
    assert dataclasses.replace(ran, exit_code=0).matched
    assert not dataclasses.replace(ran, exit_code=0).is_exact


LINGERING = """
import http.client, json, os, subprocess, sys, time
from urllib.parse import urlsplit
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
connection = http.client.HTTPConnection(urlsplit(os.environ["ANTHROPIC_BASE_URL"]).netloc)
body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "unknown"}]}
connection.request("POST", "/v1/messages", json.dumps(body))
response = connection.getresponse()
print(response.status, response.getheader("x-should-retry"), flush=True)
response.read()
"""


def has_ended(process_id: int) -> bool:
    """Return whether a process has ended, even if its parent has not waited for it."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process_id)], capture_output=True, text=True
    )
    return state.stdout.strip()[:1] in ("", "Z")


@pytest.mark.slow
def test_a_miss_ends_the_command_and_its_children(
    fixture: Fixture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets a 410 that it must not retry; then the complete process group ends."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setattr("replay.command.command_replay.NATURAL_SECONDS", 30.0)
    ran = run_command(fixture, [sys.executable, "-c", LINGERING], cwd=folder / "work", timeout=60)
    child, answered = ran.stdout.splitlines()
    assert (ran.ended_by, answered) == ("miss", "410 false")
    assert has_ended(int(child))
    [missed] = ran.verdict.requests
    assert ran.problems() == [missed.line()]


def test_an_interrupted_replay_leaves_no_process(
    fixture: Fixture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the command, and is raised again."""
    started: list[ChildProgram] = []

    class Interrupted(ChildProgram):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            started.append(self)
            self.has_ended.wait = _interrupt  # type: ignore[method-assign]

    def _interrupt(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("replay.command.command_replay.ChildProgram", Interrupted)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(KeyboardInterrupt):
        run_command(fixture, command, cwd=folder / "work")
    assert started[0].exit_code == 128 + 15


def test_a_program_whose_start_is_interrupted_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that arrives while the threads for the program are started leaves no process."""
    started: list[subprocess.Popen[bytes]] = []

    class Process(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    def interrupt(stream: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(child_program, "Output", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ChildProgram([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, {})
    assert started[0].returncode == -signal.SIGTERM


INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("ready", flush=True)
    sys.stdin.read()
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(7)
"""


def test_an_interrupted_program_may_end_its_own_children(tmp_path: Path) -> None:
    """A program is first interrupted as by Ctrl-C, and ended only if it does not end by itself."""
    program = ChildProgram([sys.executable, "-S", "-c", INTERRUPTIBLE], tmp_path, {}, stdin=None)
    while "ready" not in program.stdout.text():
        world.pause(0.005)
    program.interrupt()
    assert (program.exit_code, program.stdout.text()) == (7, "ready\ninterrupted\n")


@pytest.mark.slow
def test_a_run_ends_after_a_turn_or_continues_with_scripted_responses(
    fixture: Fixture, folder: Path
) -> None:
    """`until_turn` ends the run without a problem; `then` scripts the responses after that turn."""
    env = environment(folder)
    ran = run_command(fixture, cwd=folder / "work", env=env, until_turn=1, timeout=60)
    assert (ran.ended_by, ran.problems()) == ("turn", [])
    scripted = run_command(
        fixture, cwd=folder / "work", env=env, until_turn=1, then=[says("I stop.")], timeout=60
    )
    assert (scripted.stdout, scripted.verdict.scripted, scripted.ended_by) == (
        "I stop.\n",
        1,
        "exit",
    )


ENVIRONMENT = """
import json, os
names = ("ANTHROPIC_BASE_URL", "MY_URL", "NODE_OPTIONS", "AGENTOBS_NODE_ROUTES")
print(json.dumps([os.environ.get(name) for name in names]))
"""


def test_a_command_is_directed_as_in_its_recording(fixture: Fixture, folder: Path) -> None:
    """The variables of `--var` contain the address of the replay, and with `--node`, Node.js is redirected to it."""
    entry = command_entry(["agent"], {}, ["MY_URL"], redirects_node=True)
    arguments = {**(entry.arguments or {}), "directory": "/recorded"}
    recording = dataclasses.replace(as_recording(fixture), arguments=arguments)
    command = [sys.executable, "-c", ENVIRONMENT]
    env = environment(folder, ANTHROPIC_BASE_URL="https://gateway.example")
    ran = run_command(recording, command, cwd=folder / "work", env=env, timeout=60)
    url, mine, options, routes = json.loads(ran.stdout)
    assert mine == url
    assert "node_preload.cjs" in options
    assert json.loads(routes) == {PROVIDER_URL: url, "https://gateway.example": url}
    plain = run_command(fixture, command, cwd=folder / "work", env=env, timeout=60)
    assert json.loads(plain.stdout)[1:] == [None, None, None]


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["invoke", "converse"])
def test_clients_of_bedrock_get_made_up_credentials(
    fixture: Fixture, folder: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need a region and keys to sign their requests; other commands get none."""
    for name in (*AWS_KEY_VARIABLES, *AWS_REGION_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    recording = as_recording(fixture)
    first, *others = recording.exchanges
    assert isinstance(first, ModelExchange)
    question = dataclasses.replace(first.question, path=f"/model/m/{operation}")
    made = dataclasses.replace(
        recording, exchanges=(dataclasses.replace(first, question=question), *others)
    )
    source = "import os; print([os.environ.get(n) for n in ('AWS_ACCESS_KEY_ID', 'AWS_REGION')])"
    command = [sys.executable, "-c", source]
    with_keys = run_command(made, command, cwd=folder / "work", timeout=60)
    assert with_keys.stdout == "['AKIDREPLAY', 'us-east-1']\n"
    own = {"AWS_PROFILE": "mine", "AWS_DEFAULT_REGION": "eu-west-1"}
    assert run_command(made, command, cwd=folder / "work", env=own, timeout=60).stdout == (
        "[None, None]\n"
    )
    without = run_command(fixture, command, cwd=folder / "work", timeout=60)
    assert without.stdout == "[None, None]\n"


def test_the_recorded_directory_moves_in_the_arguments() -> None:
    """Only complete paths are replaced."""
    command = RecordedCommand(
        ("agent", "/a/b/x.py", "--dir=/a/b", "/a/bc", "/a/b:/c"), None, "/a/b"
    )
    assert command.in_directory("/new") == ("agent", "/new/x.py", "--dir=/new", "/a/bc", "/new:/c")
    script = "cd /a/b && cat '/a/b'/x > \"/a/b/y\"; ls /x/a/b /a/b.old file:///a/b"
    moved = "cd /new && cat '/new'/x > \"/new/y\"; ls /x/a/b /a/b.old file:///new"
    assert RecordedCommand((script,), directory="/a/b").in_directory("/new") == (moved,)


def test_the_command_line_replays_a_command(
    fixture: Fixture,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`agentobs replay` runs it in a copy of the current directory; options for Python agents are rejected."""
    for name, value in environment(folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder / "work")
    path = str(fixture.path)
    with pytest.raises(SystemExit) as ended:
        main(["replay", path, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (ended.value.code, result["result"], result["verdict"]["exact"]) == (0, "matched", TOTAL)
    with pytest.raises(SystemExit):
        main(["replay", path, "--tools", "live"])
    assert "--tools: this option is for Python agents" in capsys.readouterr().err


def test_a_command_is_frozen_with_a_test(tmp_path: Path, recording: Recording) -> None:
    """The generated test replays the command."""
    frozen = freeze(recording, tmp_path, {})
    assert frozen.test.read_text().endswith(
        '@pytest.mark.replay_command("recording.jsonl")\n'
        "def test_same_path(replay_command):\n"
        '    """The command sends the recorded requests, and ends with the recorded exit code."""\n'
        "    replay_command()\n"
    )


@pytest.mark.slow
def test_the_check_of_a_frozen_command_runs_it(
    fixture: Fixture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports how many requests are exact, or the first difference."""
    for name, value in environment(folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder / "work")
    assert check_command(fixture.path, 60) == [f"yes, {TOTAL} of {TOTAL} requests are exact"]
    monkeypatch.setenv("AGENT_EXIT", "1")
    first, more = check_command(fixture.path, 60)
    assert first == "no, because the exit code was 1, in the recording 0"
    assert more == f"agentobs replay {fixture.path.parent} shows more"


def test_a_session_that_was_cut_ends_there(recording: Recording, folder: Path) -> None:
    """The request after the last frozen turn has no response: it ends the run, which is not a problem."""
    *first, last = recording.exchanges
    assert isinstance(last, ModelExchange)
    unanswered = dataclasses.replace(last, answer=Answer(None, {}, (), "error"))
    cut = dataclasses.replace(recording, exchanges=(*first, unanswered))
    ran = run_command(cut, cwd=folder / "work", env=environment(folder), timeout=60)
    assert (ran.ended_by, ran.problems(), ran.verdict.total) == ("turn", [], TOTAL - 1)


TESTS = """
import pytest

@pytest.mark.replay_command("fixtures/coding-agent", cwd={cwd!r}, env={env!r}, timeout=60)
def test_same_path(replay_command):
    assert "All files" in replay_command().stdout

@pytest.mark.replay_command("fixtures/coding-agent", cwd={cwd!r}, env={env!r}, timeout=60)
def test_other_prompt(replay_command):
    replay_command(env={{**{env!r}, "AGENT_PROMPT": "Delete them."}})

@pytest.mark.replay_command("fixtures/coding-agent", unknown=1)
def test_unknown_option(replay_command):
    pass
"""


@pytest.mark.slow
def test_a_test_replays_a_command(
    fixture: Fixture, folder: Path, pytester: pytest.Pytester
) -> None:
    """The pytest fixture runs and checks the command; a divergence is shown as its report; the fixture is used."""
    place = pytester.path / "fixtures" / "coding-agent"
    place.mkdir(parents=True)
    (place / "recording.jsonl").write_bytes(fixture.path.read_bytes())
    names = ("CLAUDE_CONFIG_DIR", "TMPDIR")
    env = {name: environment(folder)[name] for name in names}
    pytester.makepyfile(TESTS.format(cwd=str(folder / "work"), env=env))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--replay-unused", "fail")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(["DIVERGED  coding-agent  served 1 of *missed 1*"])
    result.stdout.fnmatch_lines(["*unknown options: unknown*"])
    result.stdout.no_fnmatch_line("*unused replay fixtures*")
