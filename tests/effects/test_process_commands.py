"""Commands of the agent's own process: what `session(effects=["commands"])` records, and what stays unchanged."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.agent import AgentOptions, tool
from agentobs.errors import UsageError
from tests.agent.provider import MODEL, Provider, call, message, streamed, text
from tests.queries import query


def rows(home: Path) -> list[tuple[object, ...]]:
    assert agentobs.flush()
    return query(
        "SELECT outcome, exit_code, signal, stdout, stdout_bytes, stderr_bytes, is_merged "
        "FROM commands ORDER BY started_ns",
        home=home,
    )


def test_commands_of_subprocess_and_asyncio(tmp_path: Path) -> None:
    """All ways to start a command give one row; output is known if the program reads it with `communicate`."""
    init = subprocess.Popen.__init__
    with agentobs.session("s", home=str(tmp_path), effects=["commands"]):
        done = subprocess.run(["sh", "-c", "echo hi; exit 3"], capture_output=True, text=True)
        subprocess.run("echo shell >&2", shell=True, stderr=subprocess.PIPE)
        merged = subprocess.check_output(
            ["sh", "-c", "echo a; echo b >&2"], stderr=subprocess.STDOUT
        )
        process = subprocess.Popen(["sh", "-c", "kill -9 $$"], stdout=subprocess.DEVNULL)
        process.wait()
        with pytest.raises(FileNotFoundError):
            subprocess.run(["no-such-program"])

        async def run() -> bytes:
            started = await asyncio.create_subprocess_exec(
                "sh", "-c", "echo async; exit 5", stdout=asyncio.subprocess.PIPE
            )
            out, _ = await started.communicate()
            return out

        assert asyncio.run(run()) == b"async\n"
        running = subprocess.Popen(["sleep", "60"])
    running.kill()
    running.wait()
    assert (done.returncode, done.stdout, merged) == (3, "hi\n", b"a\nb\n")
    assert rows(tmp_path) == [
        ("exited", 3, None, "captured", 3, 0, False),
        ("exited", 0, None, "inherited", None, 6, False),
        ("exited", 0, None, "captured", 4, None, True),
        ("signaled", None, "SIGKILL", "device", None, None, False),
        ("not_started", None, None, "inherited", None, None, False),
        ("exited", 5, None, "captured", None, None, False),
        ("running", None, None, "inherited", None, None, False),
    ]
    assert subprocess.Popen.__init__ is init


def test_observing_does_not_change_what_programs_may_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iterator of arguments is read once; a subclass that cannot be hashed works, and is reported."""
    monkeypatch.setattr("agentobs.errors._reported", set())

    class Unhashable(subprocess.Popen[bytes]):
        def __eq__(self, other: object) -> bool:
            return self is other

        __hash__ = None  # type: ignore[assignment]

    with agentobs.session("s", home=str(tmp_path), effects=["commands"]):
        first: Any = iter(["echo", "hi"])
        second: Any = iter(["echo", "ho"])
        assert subprocess.check_output(first) == b"hi\n"
        assert subprocess.check_output(args=second) == b"ho\n"
        with pytest.warns(RuntimeWarning, match="a command is not recorded"):
            process = Unhashable(["echo", "bare"], stdout=subprocess.PIPE)
        assert process.communicate()[0] == b"bare\n"
    assert len(rows(tmp_path)) == 2


def test_a_later_patch_of_another_library_stays(tmp_path: Path) -> None:
    original: Any = subprocess.Popen.communicate
    calls: list[object] = []
    with agentobs.session("s", home=str(tmp_path), effects=["commands"]):
        inner: Any = subprocess.Popen.communicate

        def communicate(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(self)
            return inner(self, *args, **kwargs)

        subprocess.Popen.communicate = communicate  # type: ignore[method-assign]
    try:
        assert subprocess.check_output(["echo", "hi"], timeout=60) == b"hi\n"
    finally:
        subprocess.Popen.communicate = original  # type: ignore[method-assign]
    assert len(calls) == 1


@pytest.mark.slow
def test_own_commands_are_not_those_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The git commands that observe files and describe the repository are not recorded."""
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.chdir(root)
    with agentobs.session("s", home=str(tmp_path / "home"), effects=["commands", "files"]):
        (root / "a").write_text("a")
        subprocess.run(["sh", "-c", "exit 3"])
    found = query("SELECT program, exit_code FROM commands", home=tmp_path / "home")
    assert found == [("sh", 3)]
    assert query("SELECT count(*) FROM workspace_states", home=tmp_path / "home") == [(2,)]


@pytest.mark.slow
def test_observers_are_not_loaded_without_effects(tmp_path: Path) -> None:
    code = (
        f"import agentobs, sys\nwith agentobs.session('s', home={str(tmp_path)!r}): pass\n"
        "names = ('agentobs.effects.commands', 'agentobs.effects.mcp', 'agentobs.effects.workspaces')\n"
        "assert not [each for each in names if each in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_nothing_is_observed_by_default(tmp_path: Path) -> None:
    init = subprocess.Popen.__init__
    with agentobs.session("s", home=str(tmp_path)):
        assert subprocess.Popen.__init__ is init
        subprocess.run([sys.executable, "-S", "-c", ""])
    assert rows(tmp_path) == []


def test_an_unknown_effect_is_one_error() -> None:
    with pytest.raises(UsageError, match="'nets' is not an effect"):
        agentobs.session("s", effects=["commands", "nets"])


@tool(read_only=True)
def shell(command: str) -> str:
    """Run a command."""
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout


def test_a_command_of_a_tool_belongs_to_its_call(tmp_path: Path) -> None:
    """Each command of concurrent calls of the agent loop has the call of its span, even if the commands are equal."""
    calls = [call(f"t{number}", "shell", command="echo same") for number in (1, 2)]
    answers = [
        streamed(message(*calls, stop_reason="tool_use")),
        streamed(message(text("Done."))),
    ]

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            agentobs.record(client)
            options = AgentOptions(model=MODEL, max_tokens=100)
            await agentobs.Agent(client, options=options, tools=[shell]).run("Go")

    with (
        Provider(answers) as provider,
        agentobs.session("s", home=str(tmp_path), effects=["commands"]),
    ):
        asyncio.run(go(provider))
    assert agentobs.flush()
    found = query(
        "SELECT tool_use_id, lane, turn, link, link_rule, interaction_id IS NOT NULL FROM commands "
        "ORDER BY tool_use_id",
        home=tmp_path,
    )
    assert found == [
        ("t1", "main", 1, "observed", "same_span", True),
        ("t2", "main", 1, "observed", "same_span", True),
    ]


def test_without_content_nothing_of_a_command_is_written(tmp_path: Path) -> None:
    """With the content mode `off`, there are facts only, and an undeclared program is a digest."""
    program = tmp_path / "secretive-program"
    program.write_text("#!/bin/sh\necho confidential-output\n")
    program.chmod(0o700)
    home = tmp_path / "home"
    with agentobs.session("s", home=str(home), content="off", effects=["commands"]):
        subprocess.run([str(program), "confidential-argument"], capture_output=True)
    assert agentobs.flush()
    columns = "program LIKE 'digest:%', argument_count, stdout_bytes, content"
    assert query(f"SELECT {columns} FROM commands", home=home) == [(True, 1, 20, None)]
    texts = b"".join(each.read_bytes() for each in home.rglob("*") if each.is_file())
    assert b"confidential" not in texts
    assert b"secretive" not in texts
