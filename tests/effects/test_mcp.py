"""MCP servers over standard input and output: what their tee records, and what it must not change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from agentobs.effects.mcp import stdio_tee
from agentobs.effects.mcp.client_config import with_tees
from agentobs.effects.mcp.config_copies import ConfigCopies
from agentobs.effects.mcp.json_rpc import Lines, Moment, RpcExchange, StdioTraffic
from agentobs.effects.mcp.mcp_observer import McpObserver
from agentobs.effects.observation import Scope
from agentobs.errors import UsageError
from agentobs.recording.journal.home import open_home
from tests.cli.test_commands import Shell
from tests.effects.jumping_clock import ABSURD_NS, jumping_variables
from tests.effects.provider_answers import message
from tests.provider_script import call, text
from tests.queries import query
from tests.replay.raw_provider import play, raw_provider

HERE = Path(__file__).parent
SERVER = [sys.executable, "-S", str(HERE / "mcp_server.py")]
SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of an agent that called two MCP servers; the clocks of recorder and tees jump all the time."""
    folder = tmp_path_factory.mktemp("mcp")
    server = {"command": SERVER[0], "args": SERVER[1:]}
    config = {"mcpServers": {"named": server, "plain": server}}
    (folder / "mcp.json").write_text(json.dumps(config))
    answers = [
        message(call(1, "mcp__named__add", a=1, b=2), call(2, "mcp__plain__add", a=3), number=1),
        message(call(3, "mcp__plain__refuse", key=SECRET), number=2),
        message(call(4, "mcp__named__other"), number=3),
        message(call(5, "mcp__plain__vanish"), number=4),
        message(text("done"), number=5),
    ]
    with raw_provider([play(each) for each in answers]) as provider:
        done = subprocess.run(
            [
                sys.executable, "-m", "agentobs", "record", "--effects", "mcp", "--", sys.executable, "-S",
                str(HERE / "mcp_agent.py"), "--mcp-config", str(folder / "mcp.json"),
            ],
            env={
                **os.environ, **jumping_variables(folder / "clock"), "AGENTOBS_HOME": str(folder / "home"),
                "ANTHROPIC_BASE_URL": provider.url,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[0, 5]\n"), done.stderr
    assert done.stderr.startswith("server ends\n")
    assert "not observed" not in done.stderr
    assert json.loads((folder / "mcp.json").read_text()) == config
    return folder / "home"


@pytest.mark.slow
def test_servers_that_are_not_observed_are_named(tmp_path: Path) -> None:
    """The configuration in the arguments of a program that another program starts is not changed."""
    (tmp_path / "mcp.json").write_text(
        json.dumps({"mcpServers": {"plain": {"command": SERVER[0], "args": SERVER[1:]}}})
    )
    agent = f"{sys.executable} -S {HERE / 'mcp_agent.py'} --mcp-config mcp.json; echo ended"
    answers = [
        message(call(1, "mcp__plain__add", a=1), call(2, "mcp__plain__add", a=3), number=1),
        message(text("done"), number=2),
    ]
    with raw_provider([play(each) for each in answers]) as provider:
        done = subprocess.run(
            [sys.executable, "-m", "agentobs", "record", "--effects", "mcp", "--", "sh", "-c", agent],
            env={**os.environ, "AGENTOBS_HOME": str(tmp_path / "home"), "ANTHROPIC_BASE_URL": provider.url},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[0]\nended\n"), done.stderr
    assert "MCP servers that were called but not observed: plain (2)." in done.stderr
    assert query("SELECT count(*) FROM mcp_calls", home=tmp_path / "home") == [(0,)]


@pytest.mark.slow
def test_each_call_has_its_facts_and_its_tool_call(home: Path) -> None:
    """Calls, errors of both kinds, a server that ends, and the tool call of each."""
    rows = query(
        "SELECT server, tool, outcome, error_code, tool_use_id, turn, link, link_rule FROM mcp_calls "
        "WHERE method = 'tools/call' ORDER BY started_ns",
        home=home,
    )
    tools = [row[1] for row in rows]
    assert tools[:2] == ["add", "add"]
    assert all(each.startswith("digest:") for each in tools[2:])  # the servers do not list them
    assert [(row[0], *row[2:]) for row in rows] == [
        ("named", "ok", None, "toolu_1", 1, "observed", "named_call"),
        ("plain", "ok", None, "toolu_2", 1, "inferred", "equal_call"),
        ("plain", "tool_error", None, "toolu_3", 2, "inferred", "equal_call"),
        ("named", "error", -32601, "toolu_4", 3, "observed", "named_call"),
        ("plain", "no_response", None, "toolu_5", 4, "inferred", "equal_call"),
    ]
    others = query(
        "SELECT server, method, outcome, link FROM mcp_calls WHERE method <> 'tools/call' ORDER BY ALL",
        home=home,
    )
    assert others == [
        (server, method, "ok", "none")
        for server in ("named", "plain")
        for method in ("initialize", "tools/list")
    ]
    times = query("SELECT duration_ns, ended_ns - started_ns FROM mcp_calls", home=home)
    assert all(each == ended and (each is None or 0 <= each < ABSURD_NS) for each, ended in times)


@pytest.mark.slow
def test_content_is_in_the_vault_without_secrets(home: Path) -> None:
    assert query("SELECT count(*) FROM mcp_requests WHERE content IS NOT NULL", home=home) == [(9,)]
    assert all(
        SECRET.encode() not in each.read_bytes() for each in home.rglob("*") if each.is_file()
    )


@pytest.mark.slow
def test_a_server_in_the_configuration_of_the_user(tmp_path: Path) -> None:
    """`agentobs mcp-tee` records a separate session if no session is being recorded."""
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize"},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
    ]
    data = "".join(json.dumps(each) + "\n" for each in messages)
    plain = subprocess.run(SERVER, input=data, capture_output=True, text=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-m", "agentobs", "mcp-tee", "--", *SERVER],
        env={**os.environ, "AGENTOBS_HOME": str(tmp_path)},
        input=data,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr)
    rows = query("SELECT server, method, outcome FROM mcp_calls ORDER BY started_ns", home=tmp_path)
    assert rows == [("calc", "initialize", "ok"), ("calc", "ping", "error")]


def test_a_server_that_does_not_exist(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentobs.effects.mcp.stdio_tee", "--", "no-such-server"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 127
    assert done.stderr.count("\n") == 1
    assert "cannot run 'no-such-server'" in done.stderr


def test_copies_of_configurations(tmp_path: Path) -> None:
    """Each value of the option is replaced, and so are Claude Code's own servers that need no further approval."""
    (tmp_path / "a.json").write_text('{"mcpServers": {"a": {"command": "x"}}}')
    inline = '{"mcpServers": {"b": {"url": "http://x"}, "c": {"command": "y"}}}'
    own = {
        "mcpServers": {"user": {"command": "u"}},
        "projects": {
            str(tmp_path): {
                "mcpServers": {"local": {"command": "l"}},
                "enabledMcpjsonServers": ["yes"],
            }
        },
    }
    (tmp_path / ".claude.json").write_text(json.dumps(own))
    (tmp_path / ".mcp.json").write_text(
        '{"mcpServers": {"yes": {"command": "p"}, "no": {"command": "q"}}}'
    )
    written = ConfigCopies(open_home(tmp_path / "home"))
    copies = tmp_path / "home" / "mcp"

    def copied(*command: str) -> list[object]:
        changed = list(command)
        with_tees(
            changed, tmp_path, {"HOME": str(tmp_path)}, written.write,
            lambda name, server: {"tee": name} if "command" in server else None,
        )  # fmt: skip
        return [
            json.loads(Path(each.removeprefix("--mcp-config=")).read_text())["mcpServers"]
            if each.removeprefix("--mcp-config=").startswith(str(copies))
            else each
            for each in changed
        ]

    a, b = {"a": {"tee": "a"}}, {"b": {"url": "http://x"}, "c": {"tee": "c"}}
    assert copied("agent", "--mcp-config", "a.json", inline, "-p", "a.json") == [
        "agent", "--mcp-config", a, b, "-p", "a.json",
    ]  # fmt: skip
    assert copied("agent", "--mcp-config=a.json") == ["agent", a]
    assert copied("agent", "--", "--mcp-config=a.json") == ["agent", "--", "--mcp-config=a.json"]
    assert copied("agent", "--mcp-config", "missing.json") == [
        "agent",
        "--mcp-config",
        "missing.json",
    ]
    user = {name: {"tee": name} for name in ("user", "yes", "local")}
    assert copied("/bin/claude", "-p", "x") == ["/bin/claude", user, "-p", "x"]
    assert copied("claude", "--strict-mcp-config") == ["claude", "--strict-mcp-config"]
    modes = {each.stat().st_mode & 0o777 for each in copies.rglob("*.json")}
    assert (modes, next(copies.iterdir()).stat().st_mode & 0o777) == ({0o600}, 0o700)
    written.remove()
    assert list(copies.iterdir()) == []


@pytest.mark.slow
def test_copies_of_a_killed_recorder_are_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may contain credentials. The next recording and `prune` delete them, but not those that are in use."""
    home = open_home(tmp_path / "home")
    script = (
        "import os, sys\nfrom agentobs.effects.mcp.config_copies import ConfigCopies\n"
        "from agentobs.recording.journal.home import open_home\n"
        "print(ConfigCopies(open_home(sys.argv[1])).write({'key': 'secret'}), flush=True)\nos.kill(os.getpid(), 9)\n"
    )

    def killed() -> Path:
        done = subprocess.run(
            [sys.executable, "-c", script, str(home.path)], capture_output=True, text=True
        )
        assert "secret" in Path(done.stdout.strip()).read_text()
        return Path(done.stdout.strip())

    first = killed()
    used = ConfigCopies(home)
    kept, second = used.write({}), killed()
    assert [each.exists() for each in (first, second, kept)] == [False, True, True]
    shell = Shell(home.path, capsys)
    assert shell("prune", "--older-than", "1d", "--dry-run").code == 0
    assert second.exists()
    assert shell("prune", "--older-than", "1d").code == 0
    assert [each.exists() for each in (second, kept)] == [False, True]
    used.remove()
    assert not kept.exists()


def test_a_directory_of_copies_that_is_deleted_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process can take it for that of a killed recorder."""
    home = open_home(tmp_path / "home")
    deleted: list[object] = []

    def opened(path: Any, *arguments: Any, **more: Any) -> int:
        if not deleted:
            deleted.append(path)
            Path(path).rmdir()
        return real(path, *arguments, **more)

    real = os.open
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        copies = ConfigCopies(home)
    assert copies.write({}).read_text() == "{}"
    assert len(deleted) == 1
    copies.remove()


def test_a_full_disk_is_found_before_the_command_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one error, the command keeps its arguments, and nothing is left."""
    command = ["agent", '--mcp-config={"mcpServers": {"a": {"command": "x"}}}']
    given, environment = list(command), {"PATH": os.environ["PATH"]}
    home = open_home(tmp_path / "home")
    scope = Scope(home, tmp_path, lambda: None, environment, command)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ConfigCopies, "write", full)
    with pytest.raises(UsageError, match="No space left on device"):
        McpObserver().start(scope)
    assert (command, environment) == (given, {"PATH": os.environ["PATH"]})
    assert [*tmp_path.glob("agentobs-*"), *(tmp_path / "home" / "mcp").iterdir()] == []


def test_traffic_in_any_chunks() -> None:
    """Messages are paired by direction and ID, however they arrive; batches, noise and long lines do no harm."""
    found: list[RpcExchange] = []
    traffic = StdioTraffic(found.append)
    client = (
        b'{"id": 1, "method": "a"}\nnoise\n[{"id": "1", "method": "b"}, {"method": "note"}]\n'
        b'{"id": 2, "result": 0}\n'
    )
    server = (
        b'{"id": 2, "method": "c"}\n{"id": "1", "result": {}}\n{"id": 1, "error": {"code": 3}}\n'
        b'{"id": 9, "result": 1}\n'
    )
    traffic("server", server[:25], Moment(0, 0))
    for at in range(len(client)):
        traffic("client", client[at : at + 1], Moment(1, 1))
    traffic("server", server[25:], Moment(2, 2))
    traffic("client", b'{"id": 3, "method": "open"}\n', Moment(3, 3))
    traffic.close()
    assert [(each.sender, each.method, each.response is None) for each in found] == [
        ("server", "c", False),
        ("client", "b", False),
        ("client", "a", False),
        ("client", "open", True),
    ]


def test_a_line_that_is_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentobs.effects.mcp.json_rpc.LINE_MAX", 10)
    lines = Lines()
    assert [*lines.add(b"x" * 11), *lines.add(b"xx\nshort\n"), *lines.add(b"next\n")] == [
        b"short",
        b"next",
    ]


def test_the_tee_forwards_what_cannot_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that fails does not end the connection between the client and the server."""
    monkeypatch.setattr("agentobs.errors._reported", set())
    source, target = os.pipe(), os.pipe()
    os.write(source[1], b"\xff garbage")
    os.close(source[1])

    def report(*_: object) -> None:
        raise KeyError("a bug")

    with pytest.warns(RuntimeWarning, match="MCP calls are not recorded: KeyError"):
        stdio_tee._copy(source[0], target[1], "server", report, None)
    assert os.read(target[0], 100) == b"\xff garbage"
    for each in (source[0], *target):
        os.close(each)
