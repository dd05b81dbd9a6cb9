"""Hooks that are programs: each program ends in time and leaves no process behind."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentobs.agent.execution.command_hooks import environment
from agentobs.agent.execution.hook_runner import LiveHooks
from agentobs.agent.hooks import Command, Hook, table
from tests.marks import mark_all_but_first

from .live_hooks import NO_CLIENT, answer, question, raw


def python(code: str) -> Command:
    return Command((sys.executable, "-c", code))


def has_ended(process_id: int) -> bool:
    """Return whether a killed process ends within a short time."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # not reaped yet
            return True
        time.sleep(0.01)
    return False


def test_a_program_reads_the_payload_and_prints_its_answer() -> None:
    """A program reads the payload from standard input and prints its answer to standard output, both as JSON."""
    code = "import json, sys; told = json.load(sys.stdin); print(json.dumps({'input': told}))"
    read = answer(python(code), tool_name="look", tool_input={"where": "ä"})
    assert read.outcome == "success"
    assert read.input == {
        "event": "pre_tool_use",
        "hook": "one",
        "turn": 1,
        "tool_name": "look",
        "tool_input": {"where": "ä"},
        "session_id": None,
        "lane": None,
        "cwd": str(Path.cwd()),
    }


def test_a_program_without_output_does_not_object() -> None:
    """A program that succeeds without output does not block the call."""
    assert raw(Command(("true",))) == {"outcome": "success"}


def test_exit_code_2_blocks_with_a_reason() -> None:
    """If a program exits with code 2, it blocks the call; its standard error is the reason, and its standard output is
    ignored.
    """
    read = answer(Command('echo \'{"decision": "allow"}\'; echo Not today. >&2; exit 2'))
    assert (read.outcome, read.reason, read.decision) == ("blocking", "Not today.", None)
    assert answer(Command("exit 2")).outcome == "blocking"


@pytest.mark.slow
def test_exit_code_2_blocks_after_100_mb_of_output() -> None:
    """Exit code 2 blocks the call even after 100 MB of output, and memory usage does not grow because excess output is
    discarded.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    much = "head -c 100000000 /dev/zero"
    read = answer(Command(f"{much}; {much} | tr '\\0' n >&2; exit 2"))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (read.outcome, len(read.reason)) == ("blocking", 10_000)
    assert after - before < 30_000  # KiB


def test_control_characters_are_removed_from_a_reason() -> None:
    """Control characters, such as ten thousand NUL bytes, are removed from a reason, because the model and users on a
    terminal read it.
    """
    found = answer(
        Command("head -c 10000 /dev/zero >&2; printf 'No\\033[2J,\\n\\tnever' >&2; exit 2")
    )
    assert (found.outcome, found.reason) == ("blocking", "No[2J,\n\tnever")
    nothing = answer(Command("head -c 10000 /dev/zero >&2; exit 2"))
    assert nothing.reason == "It was blocked, and the hook gave no reason."
    found = answer(lambda found: {"context": "mind\0 the\x9b gap", "reason": "a\x7fb"})
    assert (found.context, found.reason) == ("mind the gap", "ab")


def test_a_killed_process_group_gets_no_more_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process group is killed only once, because its ID may belong to another group afterwards.

    An escaped child process keeps the output open meanwhile.
    """
    sent: list[int] = []
    kill = os.killpg

    def record_signal(group: int, number: int) -> None:
        sent.append(number)
        kill(group, number)

    monkeypatch.setattr(os, "killpg", record_signal)
    assert raw(Command("setsid sleep 2 & exit 0"))["outcome"] == "success"
    assert sent == [signal.SIGKILL]


def test_100_mb_of_output_is_an_error() -> None:
    """If a program prints more than the maximum size, this is an error of the hook."""
    assert answer(Command("head -c 100000000 /dev/zero")).reason == (
        "it printed more than 1,000,000 bytes"
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("exit 1", "it exited with status 1"),
        ("echo ouch >&2; exit 3", "it exited with status 3: ouch"),
        ("kill -9 $$", "it was killed by SIGKILL"),
        ("kill -SEGV $$", "it was killed by SIGSEGV"),
        ("echo '{'", "not JSON"),
        ("echo yes", "not JSON"),
    ],
)
def test_a_failing_program_blocks_nothing(line: str, found: str) -> None:
    """A program that exits with an unexpected code, is killed by a signal, or prints invalid JSON causes an error with
    a description, and blocks nothing.
    """
    read = answer(Command(line))
    assert read.outcome == "non_blocking_error"
    assert found in read.reason


@pytest.mark.parametrize(
    "words", [("/no/such/program",), ("/tmp",), ("x" * 5000,), "no-such-program --check", "/tmp"]
)
def test_a_program_that_cannot_be_started(words: tuple[str, ...] | str) -> None:
    """A program that cannot be started is a veto if it is a gate; otherwise it is an error and blocks nothing."""
    read = answer(Command(words))
    assert read.outcome == "blocking"
    assert "cannot run: it cannot be started" in read.reason
    after = answer(Command(words), "post_tool_use")
    assert after.outcome == "non_blocking_error"
    assert "cannot be started" in after.reason


def test_a_program_that_does_not_read_its_input() -> None:
    """A program may ignore its input, even if the payload is larger than the buffer of the pipe."""
    assert answer(Command(("true",)), tool_input="x" * 1_000_000).outcome == "success"


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    mark_all_but_first(
        ["trap '' TERM; while :; do sleep 1; done", "sleep 60", "cat; sleep 60"], pytest.mark.crash
    ),
)
def test_a_program_that_hangs_is_killed(tmp_path: Path, line: str) -> None:
    """After the timeout, a program is terminated and then killed, with its complete process group."""
    left = tmp_path / "left"
    hook = Hook(
        "stop", Command(f"echo $$ > {left}; sleep 61 & echo $! >> {left}; {line}"), timeout_s=1.0
    )
    assert raw(hook) == {"outcome": "cancelled", "reason": "no response within 1 seconds"}
    assert [has_ended(int(each)) for each in left.read_text().split()] == [True, True]


@pytest.mark.slow
def test_a_program_may_clean_up(tmp_path: Path) -> None:
    """After the timeout, a program can clean up, because it is terminated before it is killed."""
    left = tmp_path / "left"
    line = f"trap 'echo bye > {left}; exit 0' TERM; while :; do sleep 0.05; done"
    assert answer(Hook("stop", Command(line), timeout_s=1.0)).outcome == "cancelled"
    assert left.read_text() == "bye\n"


def test_orphaned_child_processes_are_killed(tmp_path: Path) -> None:
    """Child processes that outlive the program are killed; the hook does not wait for them, although they keep the
    output open.
    """
    left = tmp_path / "left"
    assert answer(Command(f"sleep 61 & echo $! > {left}")).outcome == "success"
    assert has_ended(int(left.read_text()))


def test_an_escaped_child_process_does_not_delay_the_hook(tmp_path: Path) -> None:
    """The hook does not wait for a child process in another process session, which cannot be killed with the program
    and keeps the output open.
    """
    left = tmp_path / "left"
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    open({str(left)!r}, "w").write(str(os.getpid()))
    time.sleep(60)
while not os.path.exists({str(left)!r}) or not open({str(left)!r}).read():
    time.sleep(0.01)
print("{{}}", flush=True)
os._exit(0)
"""
    read = answer(Hook("stop", python(code), timeout_s=30.0))
    os.kill(int(left.read_text()), signal.SIGKILL)
    assert read.outcome == "success"


def test_each_program_starts_in_the_working_directory(tmp_path: Path) -> None:
    """Each program starts in the working directory, even if an earlier program has changed its own."""
    line = "pwd >> out; cd /; rm -rf /nothing-there"
    hooks = table([Hook("stop", Command(line), name=name) for name in "ab"])
    live = LiveHooks(hooks, NO_CLIENT, roots=[tmp_path])

    async def run_hooks() -> None:
        for hook in hooks:
            await live.answer(question(hook))

    asyncio.run(run_hooks())
    assert (tmp_path / "out").read_text().split() == [str(tmp_path)] * 2
    assert Path.cwd() != Path("/")


def test_credentials_are_not_passed_to_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program gets our environment without provider credentials, except for the credentials that the hook names."""
    kept = (
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "OPENAI_API_KEY",
        "CLAUDE_CODE_OAUTH_TOKEN",
    )
    for name in (*kept, "ANTHROPIC_CUSTOM_HEADERS", "HOOK_COLOR"):
        monkeypatch.setenv(name, "x")
    command = Command("env", keep=("OPENAI_API_KEY",))
    found = {name for name in environment(command, {"MORE": "1"}) if name in (*kept, "HOOK_COLOR")}
    assert found == {"OPENAI_API_KEY", "HOOK_COLOR"}
    code = "import json, os; print(json.dumps({'context': ','.join(os.environ)}))"
    names = answer(python(code)).context.split(",")
    assert not {*kept, "ANTHROPIC_CUSTOM_HEADERS"} & set(names)
    assert "HOOK_COLOR" in names


def test_facts_are_passed_in_the_environment() -> None:
    """A program gets the IDs and names of the event, and no content, in environment variables."""
    code = (
        "import json, os; print(json.dumps({'input': "
        "{n: v for n, v in os.environ.items() if n.startswith('AGENTOBS_HOOK')}}))"
    )
    facts: dict[str, Any] = {"tool_name": "look", "tool_use_id": "toolu_1", "tool_input": "secret"}
    assert answer(python(code), **facts).input == {
        "AGENTOBS_HOOK_EVENT": "pre_tool_use",
        "AGENTOBS_HOOK_NAME": "one",
        "AGENTOBS_HOOK_TURN": "1",
        "AGENTOBS_HOOK_TOOL": "look",
        "AGENTOBS_HOOK_TOOL_USE_ID": "toolu_1",
    }


def test_nan_reaches_a_program_as_text() -> None:
    """NaN, infinities and lone surrogates reach a program as valid JSON, because a guard that cannot parse its input
    would allow every call.
    """
    code = "import json, sys; print(json.dumps({'input': json.load(sys.stdin, parse_constant=int)['tool_input']}))"
    read = answer(python(code), tool_input={"a": float("nan"), "b": float("-inf"), "c": "\ud800"})
    assert read.input == {"a": "NaN", "b": "-Infinity", "c": "?"}


@pytest.mark.slow
def test_a_payload_that_is_nested_too_deeply_blocks_the_call() -> None:
    """A call whose input is nested too deeply for a hook's payload is blocked, because the hook cannot check
    the call.
    """
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert answer(Command(("true",)), tool_input=deep).outcome == "blocking"


def test_an_abort_ends_the_program(tmp_path: Path) -> None:
    """If the wait for a hook is cancelled, the program of the hook is killed."""
    left = tmp_path / "left"
    (hook,) = table([Hook("stop", Command(f"echo $$ > {left}; sleep 60"))])
    live = LiveHooks([hook], NO_CLIENT)

    async def cancel_hook() -> None:
        task = asyncio.create_task(live.answer(question(hook)))
        while not left.exists() or not left.read_text():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    asyncio.run(cancel_hook())
    assert has_ended(int(left.read_text()))
