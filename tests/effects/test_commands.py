"""Commands of a recorded program: what is recorded about them, and what the shim must not change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentobs.recording.journal.home import open_home
from agentobs.recording.vault.vault import Vault, text_bytes
from agentobs.records.exchanges import Answer
from tests.cli.test_commands import Shell
from tests.effects.jumping_clock import ABSURD_NS, jumping_variables
from tests.effects.provider_answers import message
from tests.provider_script import call, text
from tests.queries import query
from tests.replay.raw_provider import play, raw_provider

AGENT = Path(__file__).with_name("command_agent.py")
SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
FAILING = f"echo {SECRET}; echo problem >&2; exit 3"
KILLED = "kill -TERM $$"
NESTED = "sh -c 'echo inner'; echo outer"
LONG = "head -c 200000 /dev/zero | tr '\\0' x"


def recorded(
    home: Path, *arguments: str, answers: list[Answer], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Record the agent with these responses of the provider."""
    with raw_provider([play(each) for each in answers]) as provider:
        return subprocess.run(
            [
                sys.executable, "-m", "agentobs", "record", "--effects", "commands", *arguments, "--", sys.executable,
                "-S", str(AGENT),
            ],
            env={**os.environ, **variables, "AGENTOBS_HOME": str(home), "ANTHROPIC_BASE_URL": provider.url},
            capture_output=True,
            text=True,
            timeout=60,
        )  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of an agent that ran five commands; the clock of the recorder jumps all the time."""
    home = tmp_path_factory.mktemp("effects") / "home"
    done = recorded(
        home,
        answers=[
            message(call(1, "Bash", command=FAILING), call(2, "Bash", command=KILLED), number=1),
            message(call(3, "Wrapped", command=NESTED), number=2),
            message(call(4, "Bash", command=LONG), number=3),
            message(text("done"), number=4),
        ],
        **jumping_variables(home.with_name("clock")),
    )
    assert (done.returncode, done.stdout) == (0, "finished\n"), done.stderr
    assert "redacted" not in done.stderr  # only the effect `files` stores content without redaction
    return home


def contents(home: Path) -> list[dict[str, object]]:
    """Return the content of all commands, in the order of their starts."""
    rows = query(
        "SELECT segment_id, content FROM command_runs ORDER BY started_ns",
        home=home,
    )
    opened = open_home(str(home))
    return [
        json.loads(text_bytes(Vault(opened, segment).value(content))) for segment, content in rows
    ]


@pytest.mark.slow
def test_each_command_has_its_facts_and_its_tool_call(home: Path) -> None:
    """Exit code, signal, sizes and the tool call of each command; a command of a command has the same call."""
    rows = query(
        "SELECT program, outcome, exit_code, signal, stdout_bytes, stderr_bytes, tool_use_id, turn, lane, link, "
        "link_rule FROM commands ORDER BY started_ns",
        home=home,
    )
    assert rows == [
        ("bash", "exited", 3, None, len(SECRET) + 1, 8, "toolu_1", 1, "main", "inferred", "equal_command"),
        ("bash", "signaled", None, "SIGTERM", 0, 0, "toolu_2", 1, "main", "inferred", "equal_command"),
        ("bash", "exited", 0, None, 12, 0, "toolu_3", 2, "main", "inferred", "contained_command"),
        ("sh", "exited", 0, None, 6, 0, "toolu_3", 2, "main", "inferred", "parent_command"),
        ("bash", "exited", 0, None, 200_000, 0, "toolu_4", 3, "main", "inferred", "equal_command"),
    ]  # fmt: skip
    times = query("SELECT duration_ns, ended_ns - started_ns FROM commands", home=home)
    assert all(0 <= each == ended < ABSURD_NS for each, ended in times)


@pytest.mark.slow
def test_content_is_in_the_vault_without_secrets(home: Path) -> None:
    """Arguments, directory and the ends of the streams; a long stream is cut in the middle."""
    first, _, _, inner, long = contents(home)
    assert first["directory"] == str(Path.cwd())
    assert first["argv"][:2] == ["bash", "-c"]  # type: ignore[index]
    assert first["stderr"] == {"bytes": 8, "text": "problem\n"}
    assert inner["stdout"] == {"bytes": 6, "text": "inner\n"}
    assert set(long["stdout"]) == {"bytes", "start", "end"}  # type: ignore[call-overload]
    assert all(
        SECRET.encode() not in each.read_bytes() for each in home.rglob("*") if each.is_file()
    )


@pytest.mark.slow
def test_commands_are_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` lists each command under its tool call, with `--content` also what it wrote; `tail` has one line each."""
    shell = Shell(home, capsys)
    [(session_id,)] = query("SELECT session_id FROM sessions", home=home)
    shown = shell("show", session_id, "--content").out
    lines = [line.split() for line in shown.splitlines()]
    what = [line[2:4] for line in lines if line[2:3] in (["call"], ["command"])]
    assert what == [
        ["call", "Bash"], ["command", "bash"], ["call", "Bash"], ["command", "bash"], ["call", "Wrapped"],
        ["command", "bash"], ["command", "sh"], ["call", "Bash"], ["command", "bash"],
    ]  # fmt: skip
    assert "  stderr  problem\n" in shown
    assert "$ sh -c 'echo inner'\n" in shown
    assert SECRET not in shown
    followed = shell("tail", session_id, "--no-follow", "-n", "100").out
    steps = [line.split()[2:5] for line in followed.splitlines() if "command  " in line]
    assert steps == [
        ["bash", "exited", "3"],
        ["bash", "signaled", "SIGTERM"],
        ["bash", "exited", "0"],
        ["bash", "exited", "0"],
    ]


@pytest.mark.slow
def test_a_command_without_requests_is_told_what_to_try(tmp_path: Path) -> None:
    """Its commands are recorded, and the last line states that no request came."""
    arguments = ["record", "--effects", "commands", "--", "sh", "-c", "sh -c 'exit 4'; exit 3"]
    done = subprocess.run(
        [sys.executable, "-m", "agentobs", "--home", str(tmp_path / "home"), *arguments],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert "agentobs: no request came, so only effects were recorded; the command" in done.stderr
    assert query("SELECT exit_code FROM commands", home=tmp_path / "home") == [(4,)]
