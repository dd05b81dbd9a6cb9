"""`agentobs record`: the command keeps its input, output, signals, terminal and exit code, and is recorded."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

import agentobs
from agentobs.errors import UsageError
from agentobs.proxy.command import CommandError, Ending, SignalsPassedOn, check, run
from agentobs.recording.journal.home import open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import ModelExchange
from tests.provider_script import message_events, streamed, text
from tests.replay.raw_provider import SSE, Call, play, raw_provider

CLIENT = """
import http.client, json, os, sys, urllib.parse
url = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
connection = http.client.HTTPConnection(url.netloc)
for line in sys.stdin:
    body = {"model": "claude-sonnet-5", "max_tokens": 9, "messages": [{"role": "user", "content": line}]}
    connection.request("POST", url.path + "/v1/messages", json.dumps(body), {"anthropic-version": "2023-06-01"})
    response = connection.getresponse()
    print(response.status, len(response.read()), flush=True)
print("done", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    agentobs.stop_recorder()


def environment(home: Path, url: str = "http://127.0.0.1:1") -> dict[str, str]:
    return {**os.environ, "AGENTOBS_HOME": str(home), "ANTHROPIC_BASE_URL": url}


def agentobs_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agentobs", *arguments]


def record(
    home: Path, url: str, *arguments: str, input: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        agentobs_command("record", *arguments),
        env=environment(home, url),
        input=input,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_a_command_is_recorded(home: Path, tmp_path: Path) -> None:
    """Its requests are a session with its name, its exit code, its arguments as content, and the names of variables."""
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    with raw_provider([play(streamed(text("ok")))] * 2) as provider:
        command = [sys.executable, "-S", str(script), "3"]
        ended = record(
            home, provider.url, "--name", "my agent", "--", *command, input="a secret\nb\n"
        )
    size = len(b"".join(message_events(text("ok"))))
    assert ended.stdout == f"200 {size}\n200 {size}\n"
    assert ended.returncode == 3
    done, line = ended.stderr.splitlines()
    assert done == "done"
    with agentobs.connect(str(home)) as store:
        [row] = store.sql("SELECT session_id, status, reason, entry FROM sessions").fetchall()
        [(usd,)] = store.sql("SELECT cost_usd FROM cost_by_session").fetchall()
    assert row[1:] == ("failed", "exit:3", f"@command:{Path(sys.executable).name}")
    assert line == f"agentobs: {row[0]} (my agent): 2 turns, ${usd:.4f}"
    opened = open_home(str(home))
    recording = read_session(opened, row[0], segment_ids(opened))
    assert recording.arguments is not None
    assert recording.arguments["argv"] == command
    assert "ANTHROPIC_BASE_URL" in recording.arguments["environment"]
    assert provider.url not in json.dumps(recording.arguments)  # names only, no values
    assert [each.body for each in provider.requests] == [
        each.question.body for each in recording.exchanges if isinstance(each, ModelExchange)
    ]


@pytest.mark.slow
def test_a_command_that_sends_nothing_gets_advice(home: Path) -> None:
    """The exit code stays, and the last line states what to try."""
    ended = record(home, "http://127.0.0.1:1", "--", "sh", "-c", "cat; exit 4", input="passed on")
    assert (ended.returncode, ended.stdout) == (4, "passed on")
    assert "no request came" in ended.stderr
    assert "--var" in ended.stderr
    assert "--node" in ended.stderr


@pytest.mark.slow
def test_a_command_that_does_not_exist(home: Path) -> None:
    """One line, and the exit code of shells."""
    ended = record(home, "http://127.0.0.1:1", "no-such-program", "-x")
    assert ended.returncode == 127
    assert ended.stderr.count("\n") == 1
    assert "'no-such-program': command not found" in ended.stderr
    assert not home.exists()


def test_a_file_that_is_not_executable(tmp_path: Path) -> None:
    """It has the exit code of shells as well."""
    file = tmp_path / "notes.txt"
    file.write_text("x")
    with pytest.raises(CommandError, match="not executable") as caught:
        check([str(file)], {})
    assert caught.value.exit_code == 126
    file.chmod(0o700)
    with pytest.raises(UsageError, match="exec format error"):
        run([str(file)], {}, SignalsPassedOn())


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", Ending(0)),
        ("exit 200", Ending(200)),
        ("kill -KILL $$", Ending(137, "SIGKILL")),
        ("kill -INT $$", Ending(130, "SIGINT")),
    ],
)
def test_endings(script: str, expected: Ending) -> None:
    """A signal becomes the exit code of shells."""
    with SignalsPassedOn() as signals:
        found = run(["sh", "-c", script], dict(os.environ), signals)
    assert found == expected
    assert found.is_interrupted == (script == "kill -INT $$")


@pytest.mark.slow
def test_signals_reach_the_command(home: Path, tmp_path: Path) -> None:
    """Ctrl-C of a terminal is the command's to handle, and SIGTERM for the recorder is passed on."""
    script = (
        "trap 'echo interrupted' INT; trap 'echo stopped; exit 5' TERM; echo ready; "
        "while :; do sleep 0.05; done"
    )
    process = subprocess.Popen(
        agentobs_command("record", "--", "sh", "-c", script),
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.stdout.readline() == "interrupted\n"
        process.terminate()
        assert process.stdout.readline() == "stopped\n"
    assert process.returncode == 5


@pytest.mark.slow
@pytest.mark.parametrize(("goes_on", "status"), [(False, "interrupted"), (True, "completed")])
def test_ctrl_c_ends_a_session_even_with_exit_code_0(
    home: Path, tmp_path: Path, goes_on: bool, status: str
) -> None:
    """As Claude Code ends with `-p`. A program that sends requests after it was not interrupted."""
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    client = f"echo hello | {sys.executable} -S {script} 0"
    # The recorder notes the interrupt in its main thread, which a busy machine may run late.
    rest = f"sleep 1; {client}" if goes_on else ":"
    command = f"trap 'stopped=1' INT; {client}; echo ready; while test -z $stopped; do sleep 0.05; done; {rest}"
    with raw_provider([play(streamed(text("ok")))] * 4) as provider:
        process = subprocess.Popen(
            agentobs_command("record", "--", "sh", "-c", command),
            env=environment(home, provider.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        with process:
            while process.stdout.readline() != "ready\n":
                pass
            os.killpg(process.pid, signal.SIGINT)
            process.stdout.read()
    assert process.returncode == 0
    with agentobs.connect(str(home)) as store:
        [found] = store.sql("SELECT status FROM sessions").fetchall()
    assert found == (status,)


@pytest.mark.slow
def test_the_terminal_is_the_command_s(home: Path) -> None:
    """A program that asks for its terminal finds it."""
    pid, terminal = pty.fork()
    if pid == 0:
        script = "test -t 0 && test -t 1 && test -t 2 && read line < /dev/tty && echo got $line"
        command = agentobs_command("record", "--", "sh", "-c", script)
        os.execvpe(command[0], command, environment(home))
    os.write(terminal, b"typed\n")
    output = b""
    while select.select([terminal], [], [], 60)[0]:
        try:
            data = os.read(terminal, 1024)
        except OSError:  # the end, on Linux
            break
        if not data:
            break
        output += data
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"got typed" in output


@pytest.mark.slow
def test_a_killed_recorder_loses_nothing(home: Path, tmp_path: Path) -> None:
    """What had arrived is in the journal, and the session does not stay open."""
    script = tmp_path / "client.py"
    script.write_text(CLIENT)

    def held(call: Call) -> None:
        call.send_headers(200, SSE)
        call.send(*message_events(text("one"))[:3])
        call.wait_until_gone()

    with raw_provider([play(streamed(text("ok"))), held]) as provider:
        process = subprocess.Popen(
            agentobs_command("record", "--", sys.executable, "-S", str(script), "0"),
            env=environment(home, provider.url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            process.stdin.write("a\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith("200")
            process.stdin.write("b\n")
            process.stdin.flush()
            while len(provider.requests) < 2:
                select.select([], [], [], 0.02)
            process.kill()
    with agentobs.connect(str(home)) as store:
        [(status, turns)] = store.sql("SELECT status, turns FROM sessions").fetchall()
    assert (status, turns) == ("crashed", 1)


@pytest.mark.slow
def test_a_proxy_without_a_command(home: Path) -> None:
    """It prints the variables to set, and when it ends, what it has recorded."""
    with raw_provider([play(streamed(text("ok")))]) as provider:
        process = subprocess.Popen(
            agentobs_command("proxy", "--name", "shared", "--upstream", provider.url),
            env={**environment(home), "ANTHROPIC_BASE_URL": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process:
            assert str(home) in process.stdout.readline()
            name, _, url = process.stdout.readline().strip().partition("=")
            body = {"model": "claude-sonnet-5", "messages": [{"role": "user", "content": "x"}]}
            headers = {"anthropic-version": "2023-06-01"}
            response = httpx2.post(f"{url}/v1/messages", json=body, headers=headers, timeout=60)
            process.terminate()
            _, errors = process.communicate(timeout=60)
    assert name == "export ANTHROPIC_BASE_URL"
    assert response.status_code == 200
    assert process.returncode == 130
    assert "(shared): 1 turn, " in errors
    with agentobs.connect(str(home)) as store:
        assert store.sql("SELECT name, status FROM sessions").fetchall() == [
            ("shared", "completed")
        ]


def test_inherited_files_stay_open() -> None:
    """A shell passes the output of `<(...)` as an open file descriptor."""
    reading, writing = os.pipe()
    os.write(writing, b"from the shell")
    os.close(writing)
    os.set_inheritable(reading, True)
    script = f"test \"$(cat /dev/fd/{reading})\" = 'from the shell'"
    try:
        with SignalsPassedOn() as signals:
            assert run(["sh", "-c", script], dict(os.environ), signals) == Ending(0)
    finally:
        os.close(reading)


@pytest.mark.slow
def test_the_key_of_a_gateway_in_the_arguments_is_not_written(home: Path) -> None:
    """A key of any form is recognized, because the request has it in a header."""
    key = "gateway-key-0123456789"
    with raw_provider([play(streamed(text("ok")))]) as provider:
        script = (
            "import os, sys, urllib.request as u\n"
            "url = os.environ['ANTHROPIC_BASE_URL'] + '/v1/messages'\n"
            "headers = {'x-api-key': sys.argv[1]}\n"
            'u.urlopen(u.Request(url, b\'{"model":"claude-sonnet-5","messages":[]}\', headers)).read()'
        )
        ended = record(home, provider.url, "--", sys.executable, "-c", script, key)
    assert ": 1 turn, " in ended.stderr  # even without the version of the API
    assert provider.requests[0].headers["x-api-key"] == key
    written = [each.read_bytes() for each in home.rglob("*") if each.is_file()]
    assert any(b"urllib.request" in each for each in written)
    assert not any(key.encode() in each for each in written)
