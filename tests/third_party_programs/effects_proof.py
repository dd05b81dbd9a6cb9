"""The proofs of observed effects with real coding agents: Claude Code, the Claude Agent SDK, and an agent with MCP.

A session of 12 turns in a git repository edits, renames and deletes files, runs a failing test, calls MCP servers over
both transports, and starts two concurrent sub-agents. The proof checks which call made each change, the files of each
turn, causes and lines, and then restores, replays, forks and compares the session.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentobs.recording.journal.home import open_home
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from tests.effects.workspaces.trees import files_of, git, write
from tests.queries import query
from tests.third_party_agents.environments import environment, own_requirements
from tests.third_party_programs.programs import (
    FOLDER,
    MCP,
    PYTHON_AGENT_SDK,
    claude,
)
from tests.third_party_programs.release_script import (
    CORRECTING_MODEL,
    DOCS,
    MESS,
    MODEL,
    RELEASE,
    SUMS,
    TESTS,
    VERIFY,
    Provider,
    call_id,
)

HERE = Path(__file__).parent
KEY = "sk-ant-api03-a-key-that-must-never-be-written-0001"
START = {
    "README.md": "# Numbers\nold text\n",
    "notes.md": "by hand\n",
    "tests/old.sh": "echo old\n",
    "docs/a.txt": "a\n",
    "windows.txt": "one\r\ntwo\r\n",
}
SECONDS_MAX = 600.0
CONTENT, PATH, ONLY = ("observed", "content"), ("inferred", "path"), ("inferred", "only_call")
NOT_KNOWN = (None, None)


def made(prompt: str, turn: int, at: int = 0) -> str:
    """Return the ID of a call of the script."""
    return call_id(prompt, turn, at)


CHANGES = {
    ("src/total.py", "added"): (made(RELEASE, 1, 0), *CONTENT),
    ("check.sh", "added"): (made(RELEASE, 1, 1), *CONTENT),
    ("src/total.py", "modified"): (made(RELEASE, 3), *CONTENT),
    ("docs/index.txt", "added"): (made(RELEASE, 4), *ONLY),
    ("docs/index.txt", "modified"): (made(RELEASE, 5), *PATH),
    ("src/sums.py", "renamed"): (made(RELEASE, 5), *PATH),
    ("docs/sums.md", "added"): (made(DOCS, 1), *CONTENT),
    ("docs/sums.md", "modified"): (made(DOCS, 2), *CONTENT),
    ("tests/sums.sh", "added"): (made(TESTS, 1), *CONTENT),
    ("tests/old.sh", "deleted"): (made(TESTS, 2), *PATH),
    ("notes.md", "deleted"): (made(RELEASE, 8, 0), *PATH),
    ("version.txt", "added"): (made(RELEASE, 8, 1), *CONTENT),
    ("data.bin", "added"): (made(RELEASE, 9), *PATH),
    ("README.md", "modified"): (made(RELEASE, 11, 0), *CONTENT),
    ("windows.txt", "modified"): (made(RELEASE, 11, 1), *CONTENT),
}
"""The call that made each change of the release, with the certainty and the rule."""
INFERRED_BY_TIME = {("docs/index.txt", "modified")}
"""Changes for which the directory of a command may be reported after the change; then the only open call is known."""
CHANGES_OF_THE_MESS = {
    ("written.txt", "added"): (made(MESS, 2), *CONTENT),
    ("x.txt", "added"): (made(MESS, 3), *PATH),
    ("here.txt", "added"): (made(MESS, 5), *PATH),
    ("written2.txt", "added"): (made(MESS, 6, 1), *CONTENT),
    **dict.fromkeys(
        (
            (each, "added")
            for each in (
                *("go", "done", "late.txt", "p1.txt", "p2.txt"),
                *("go2", "done2", "later.txt"),
            )
        ),
        (None, *NOT_KNOWN),
    ),
}
"""The same of a session with commands in the background: what two calls may have changed belongs to none of them."""
COMMANDS = [
    ("bash", 1, made(RELEASE, 2, 1), "contained_command"),
    ("sh", 1, made(RELEASE, 2, 1), "parent_command"),
    ("bash", 0, made(RELEASE, 4), "contained_command"),
    ("sh", 2, made(RELEASE, 4), "parent_command"),
    ("bash", 0, made(RELEASE, 5), "contained_command"),
    ("bash", 0, made(TESTS, 2), "contained_command"),
    ("bash", 0, made(RELEASE, 8, 0), "contained_command"),
    ("bash", 0, made(RELEASE, 9), "contained_command"),
]
"""The program, exit code, call and rule of each command that the model requested."""
COMMANDS_OF_THE_MESS = [
    (0, made(MESS, 1)),
    (0, made(MESS, 3)),
    (0, made(MESS, 4, 0)),
    (0, made(MESS, 4, 1)),
    (0, made(MESS, 5)),
    (0, made(MESS, 6, 0)),
    (0, made(MESS, 7)),
    (0, made(MESS, 8)),
    (0, made(MESS, 9)),
    (7, made(MESS, 10, 0)),
    (None, made(MESS, 10, 1)),
    (0, made(MESS, 11)),
]
CAUSES: dict[tuple[str, ...], list[tuple[str, str, int]]] = {
    ("--file", "check.sh"): [("Write", "main", 1)],
    ("--file", "src/sums.py"): [("Bash", "main", 5), ("Edit", "main", 3), ("Write", "main", 1)],
    ("--file", "src/total.py"): [("Bash", "main", 5), ("Edit", "main", 3), ("Write", "main", 1)],
    ("--file", "docs/sums.md"): [("Agent", "main", 7), ("Edit", "docs", 2), ("Write", "docs", 1)],
    ("--file", "tests/old.sh"): [("Agent", "main", 7), ("Bash", "tests", 2)],
    ("--file", "notes.md"): [("Bash", "main", 8)],
    ("--file", "data.bin"): [("Bash", "main", 9)],
    ("--file", "windows.txt"): [("Edit", "main", 11)],
    ("--line", "src/sums.py:1"): [("Edit", "main", 3)],
    ("--line", "src/sums.py:3"): [("Write", "main", 1)],
    ("--turn", "6"): [("mcp__calc__add", "main", 6), ("mcp__web__add", "main", 6)],
}
"""The calls in the chain of each question."""
LINES = {
    "src/sums.py": [("Edit", 3), ("Write", 1), ("Write", 1)],
    "docs/sums.md": [("Write", 1), ("Write", 1), ("Edit", 2)],
    "docs/index.txt": [("Bash", 4), ("Bash", 5)],
    "README.md": [(None, None), ("Edit", 11)],
    "windows.txt": [(None, None), ("Edit", 11)],
    "version.txt": [("Write", 8)],
}
"""The tool and the turn that wrote each line of a file."""


class Scene:
    """A git repository, a home, MCP servers and the environment of an agent."""

    def __init__(self, folder: Path) -> None:
        """Create the directories in an empty folder."""
        self.folder = folder.resolve()
        self.root, self.home = self.folder / "work", self.folder / "agentobs"
        self.configuration = self.folder / "configuration"
        for each in (self.root, self.configuration):
            each.mkdir()
        git(self.root, "init", "-q")
        write(self.root, START)
        git(self.root, "add", "-A")
        git(self.root, "commit", "-qm", "start")
        self.python = environment("mcp", (f"mcp=={MCP}",), FOLDER)
        self.server = str(HERE / "effects_server.py")
        self.variables: dict[str, str] = {}

    @contextlib.contextmanager
    def web_server(self) -> Iterator[str]:
        """Run the MCP server over HTTP; yield its URL."""
        log = self.folder / "mcp_server.log"
        with log.open("wb") as output:
            command = [str(self.python), self.server, "0"]
            running = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            found = None
            while found is None:
                assert running.poll() is None, f"the MCP server did not start: {log.read_text()}"
                found = re.search(r"running on (http://[0-9.:]+)", log.read_text())
                time.sleep(0.02)
            yield f"{found[1]}/mcp"
        finally:
            running.kill()
            running.wait()

    def configure(self, servers: Mapping[str, Any]) -> None:
        """Write the configuration of Claude Code."""
        settings = {"hasCompletedOnboarding": True, "mcpServers": servers}
        (self.configuration / ".claude.json").write_text(json.dumps(settings))

    def run(
        self, *arguments: str, module: str = "agentobs", cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a module of Python in the repository.

        Raises:
            RuntimeError: the exit code is not 0.
        """
        identity = {
            f"GIT_{who}_{what}": "test@example"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd or self.root,
            env={
                **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
                "PYTHONPATH": str(HERE.parent.parent),
                "HOME": str(self.folder),
                "SHELL": shutil.which("bash") or "",
                "AGENTOBS_HOME": str(self.home),
                "CLAUDE_CONFIG_DIR": str(self.configuration),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "IS_SANDBOX": "1",
                "ANTHROPIC_API_KEY": KEY,
                "GIT_CONFIG_GLOBAL": os.devnull,
                **identity,
                **self.variables,
                **variables,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def record(self, *command: str, prompt: str) -> subprocess.CompletedProcess[str]:
        """Record a session, and check its output."""
        options = ("record", "--name", "release", "--effects", "all", "--")
        done = self.run(
            str(self.folder / "copies"),
            *options,
            *command,
            prompt,
            module="tests.third_party_programs.held_recording",
        )
        equal("output", done.stdout, f"Done: {prompt}\n")
        return done

    def changes(self) -> dict[tuple[str, str], tuple[Any, ...]]:
        """Return the call of each recorded change, with certainty and rule."""
        rows = query(
            "SELECT path, change, tool_use_id, certainty, rule FROM file_changes JOIN sessions USING (session_id) "
            "WHERE name = 'release'",
            home=self.home,
        )
        with open_store(open_home(str(self.home))) as store:
            found = LabelTexts(store).replace_in_rows(rows)
        return {(path, kind): tuple(rest) for path, kind, *rest in found}

    def json(self, *arguments: str) -> Any:
        """Return what a command prints as JSON."""
        return json.loads(self.run(*arguments, "--json").stdout)

    def check_mcp(self, *expected: tuple[str, str, str, str]) -> None:
        """Compare servers, transports, calls and links of the calls of tools."""
        rows = query(
            "SELECT server, transport, tool_use_id, link_rule FROM mcp_calls WHERE tool IS NOT NULL ORDER BY 1",
            home=self.home,
        )
        equal("MCP calls", rows, list(expected))


def equal(what: str, found: object, expected: object) -> None:
    """Compare two values.

    Raises:
        AssertionError: they differ.
    """
    assert found == expected, f"{what}:\n{found!r}\nexpected:\n{expected!r}"


def claude_code_release(folder: Path) -> str:
    """Prove everything with Claude Code."""
    scene = Scene(folder)
    with scene.web_server() as web:
        scene.configure(
            {
                "calc": {"command": str(scene.python), "args": [scene.server]},
                "web": {"type": "http", "url": web},
            }
        )
        command = (str(claude()), "--dangerously-skip-permissions", "--model", MODEL, "-p")
        scene.record(*command, prompt=RELEASE)
        _check_release(scene)
        scene.check_mcp(
            ("calc", "stdio", made(RELEASE, 6, 0), "named_call"),
            ("web", "http", made(RELEASE, 6, 1), "named_call"),
        )
        _check_files(scene)
        _check_causes(scene)
        _check_replays(scene)
        _check_forks(scene, [MODEL, CORRECTING_MODEL])
        _check_undo(scene)
    return f"{len(CHANGES)} changes, 12 states, {len(CAUSES)} causes, replayed, forked, compared, restored"


def _check_release(scene: Scene) -> None:
    found = scene.changes()
    for change in INFERRED_BY_TIME:
        call, certainty, rule = found[change]
        assert rule in ("path", "only_call"), rule
        found[change] = (call, certainty, CHANGES[change][2])
    equal("changes", found, CHANGES)
    columns = "program, exit_code, tool_use_id, link_rule"
    rule = "link_rule IN ('contained_command', 'parent_command')"
    rows = query(
        f"SELECT {columns} FROM commands WHERE {rule} ORDER BY started_ns", home=scene.home
    )
    equal("commands", rows, COMMANDS)
    rows = query("SELECT DISTINCT late, failure, is_stable FROM workspace_states", home=scene.home)
    equal("states", rows, [(False, None, True)])


def _check_files(scene: Scene) -> None:
    """Compare the recorded files of each turn with the copy that was made before its tools ran."""
    copies = sorted(int(each.name) for each in (scene.folder / "copies").iterdir())
    equal("turns with copies", copies, [*range(1, 13)])
    for turn in copies:
        restored = scene.folder / "restored" / str(turn)
        scene.run("workspace", "release", "--at", str(turn), "-o", str(restored))
        expected = files_of(scene.folder / "copies" / str(turn))
        equal(f"files of turn {turn}", files_of(restored), expected)


def _check_causes(scene: Scene) -> None:
    lanes = {f"main/{made(RELEASE, 7, at)}": name for at, name in enumerate(("docs", "tests"))}
    for question, expected in CAUSES.items():
        graph = scene.json("why", "release", *question)
        calls = sorted(
            (each["name"], lanes.get(each["lane"], each["lane"]), each["turn"])
            for each in graph["nodes"]
            if each["kind"] == "tool_call"
        )
        equal(f"why {' '.join(question)}", calls, sorted(expected))
    for path, lines in LINES.items():
        found = scene.run("blame", path, "--json").stdout.splitlines()
        written = [(each["tool"], each["turn"]) for each in map(json.loads, found)]
        equal(f"blame {path}", written, lines)


def _check_replays(scene: Scene) -> None:
    """Freeze the session with its files, and replay it without a provider."""
    fixture = scene.folder / "fixture"
    frozen = scene.run("freeze", "release", "--workspace", "--output", str(fixture))
    assert "18 of 18 requests are exact" in frozen.stdout, frozen.stdout
    replayed = scene.run("replay", str(fixture)).stdout
    assert "served 18 of 18 exchanges: exact 18" in replayed, replayed
    assert "files at the end: equal to the recorded ones" in replayed, replayed


def _check_forks(scene: Scene, models: Sequence[str]) -> None:
    """Only the forks with the correcting model pass the test."""
    provider, files = Provider(), files_of(scene.root)
    with provider.serving() as url:
        target = scene.folder / "fork"
        options = ("--at", "5", "--model", CORRECTING_MODEL, "-o", str(target))
        scene.run("fork", "release", *options, ANTHROPIC_BASE_URL=url)
        codes = [
            subprocess.run(["sh", "-c", VERIFY], cwd=each, check=False).returncode
            for each in (scene.root, target)
        ]
        equal("exit codes of the test in the recorded and the forked files", codes, [1, 0])
        wanted = ("--at", "5", "--models", ",".join(models), "--runs", "2", "--max-usd", "50")
        limits = ("--verify", VERIFY, "--yes", "--json", "-o", str(scene.folder / "compared"))
        found = scene.run("compare", "release", *wanted, *limits, ANTHROPIC_BASE_URL=url)
    table = json.loads(found.stdout)
    rows = [(each["model"], each["run"], each["verdict"], each["turns"]) for each in table["rows"]]
    expected: list[tuple[str, int | None, str, int]] = [(MODEL, None, "failed", 13)]
    for run in (1, 2):
        for model in models:
            passes = model == CORRECTING_MODEL
            expected.append((model, run, "passed" if passes else "failed", 3 if passes else 13))
    equal("compared models", rows, expected)
    equal("files after the forks", files_of(scene.root), files)
    relations = query("SELECT relation, count(*) FROM sessions GROUP BY 1", home=scene.home)
    equal("sessions", sorted(relations, key=str), sorted([(None, 1), ("fork", 5)], key=str))


def _check_undo(scene: Scene) -> None:
    """All changes since turn 8 are undone, and nothing else."""
    scene.run("restore", "release", "--before-turn", "8", "--yes")
    equal("restored files", files_of(scene.root), files_of(scene.folder / "copies" / "8"))


def claude_code_mess(folder: Path) -> str:
    """Prove with Claude Code that no change is attributed to a wrong call if commands run in the background."""
    scene = Scene(folder)
    scene.configure({})
    command = (str(claude()), "--dangerously-skip-permissions", "--model", MODEL, "-p")
    scene.record(*command, prompt=MESS)
    found = scene.changes()
    # The relative paths of these refer to a directory that is known as soon as the command has ended.
    for path, call in (("docs/y.txt", made(MESS, 6, 0)), ("docs/z.txt", made(MESS, 9))):
        assert found.pop((path, "added"))[0] in (call, None)
    assert found.pop(("docs/sp ace.txt", "added"))[0] in (made(MESS, 11), None)
    equal("changes", found, CHANGES_OF_THE_MESS)
    rows = query(
        "SELECT exit_code, tool_use_id FROM commands WHERE link_rule = 'contained_command' ORDER BY started_ns",
        home=scene.home,
    )
    equal("commands", rows, COMMANDS_OF_THE_MESS)
    return f"{len(CHANGES_OF_THE_MESS) + 3} changes, none with a wrong call"


def agent_sdk_release(folder: Path) -> str:
    """Prove the main points with the Claude Agent SDK for Python, which starts its own copy of Claude Code."""
    scene = Scene(folder)
    scene.configure({})
    requirement = f"claude-agent-sdk=={PYTHON_AGENT_SDK}"
    python = environment("agent_sdk", (requirement,), FOLDER)
    tee = ["-m", "agentobs", "mcp-tee", "--server", "calc", "--", str(scene.python), scene.server]
    with scene.web_server() as web:
        servers = {
            "calc": {"command": sys.executable, "args": tee},
            "web": {"type": "http", "url": web},
        }
        scene.variables = {"AGENT_MCP_SERVERS": json.dumps(servers)}
        done = scene.record(str(python), str(HERE / "agent_sdk.py"), prompt=RELEASE)
        assert "called but not observed: web (1)." in done.stderr, done.stderr
        _check_release(scene)
        scene.check_mcp(("calc", "stdio", made(RELEASE, 6, 0), "named_call"))
        _check_files(scene)
        _check_replays(scene)
    return f"{len(CHANGES)} changes, 12 states, replayed"


def mcp_agent(folder: Path) -> str:
    """Prove the effects of a session of a Python agent with the packages anthropic and mcp."""
    scene = Scene(folder)
    python = environment("mcp_agent", (*own_requirements(), f"mcp=={MCP}"), FOLDER)
    with scene.web_server() as web, Provider().serving() as url:
        arguments = [str(HERE / "mcp_agent.py"), scene.server, web, str(scene.home)]
        variables = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY}
        done = subprocess.run(
            [str(python), *arguments],
            cwd=scene.root,
            env={**os.environ, **variables, "PYTHONPATH": str(HERE.parent.parent)},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
    equal("output", (done.returncode, done.stdout, done.stderr), (0, f"Done: {SUMS}\n", ""))
    rows = query(
        "SELECT server, method, tool, outcome, tool_use_id, turn, link_rule FROM mcp_calls ORDER BY started_ns",
        home=scene.home,
    )
    calls = [each for each in rows if each[1] == "tools/call"]
    equal(
        "MCP calls",
        sorted(calls),
        [
            ("calc", "tools/call", "add", "ok", made(SUMS, 1, 0), 1, "equal_call"),
            ("calc", "tools/call", "add", "ok", made(SUMS, 1, 1), 1, "equal_call"),
        ],
    )
    equal("servers", {each[0] for each in rows}, {"calc"})
    [row] = query("SELECT tool_use_id, certainty, rule FROM file_changes", home=scene.home)
    equal("change", row, (made(SUMS, 2), *CONTENT))
    return "2 MCP calls and 1 change"


def mcp_package(folder: Path) -> str:
    """Prove the calls of the package mcp, as client and as server, over both transports."""
    scene = Scene(folder)
    with scene.web_server() as web:
        servers = {
            "stdio": {"command": str(scene.python), "args": [scene.server]},
            "http": {"type": "http", "url": web},
        }
        (scene.root / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        client = (str(scene.python), str(HERE / "effects_client.py"), "--mcp-config", "mcp.json")
        done = scene.run("record", "--effects", "commands,mcp", "--", *client)
    equal("output", done.stdout, "3 True\n3 True\n")
    columns = "server, transport, method, tool, outcome"
    rows = query(f"SELECT {columns} FROM mcp_calls ORDER BY started_ns", home=scene.home)
    expected = [
        (transport, transport, *each)
        for transport in ("stdio", "http")
        for each in (
            ("initialize", None, "ok"),
            ("tools/list", None, "ok"),
            ("tools/call", "add", "ok"),
            ("tools/call", "fail", "tool_error"),
        )
    ]
    equal("MCP calls", rows, expected)
    return "8 calls over stdio and HTTP"


PLATFORMS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "bedrock": (
        {
            "CLAUDE_CODE_USE_BEDROCK": "1",
            "AWS_BEARER_TOKEN_BEDROCK": "a-bearer-token-0123456789",
            "AWS_REGION": "eu-west-1",
            "ANTHROPIC_MODEL": "eu.anthropic.claude-sonnet-5",
        },
        "eu.anthropic.claude-opus-5",
    ),
    "vertex": (
        {
            "CLAUDE_CODE_USE_VERTEX": "1",
            "CLAUDE_CODE_SKIP_VERTEX_AUTH": "1",
            "ANTHROPIC_VERTEX_PROJECT_ID": "p",
            "CLOUD_ML_REGION": "r",
            "ANTHROPIC_AUTH_TOKEN": "a-token-0123456789012345",
            "ANTHROPIC_MODEL": MODEL,
        },
        CORRECTING_MODEL,
    ),
}
"""The environment of Claude Code for each platform, and the name of another model there."""


def platforms(folder: Path) -> str:
    """Prove that a fork of Claude Code on Bedrock and on Vertex uses another model, and other files."""
    for name, (variables, model) in PLATFORMS.items():
        (folder / name).mkdir()
        scene, provider = Scene(folder / name), Provider()
        scene.configure({})
        with provider.serving() as url:
            address = {
                "ANTHROPIC_BEDROCK_BASE_URL": url,
                "ANTHROPIC_VERTEX_BASE_URL": f"{url}/v1",
            }
            scene.variables = {**variables, **address}
            command = (str(claude()), "--dangerously-skip-permissions", "-p", TESTS)
            scene.run("record", "--name", "release", "--effects", "files", "--", *command)
            (scene.root / "tests" / "sums.sh").write_text("mine\n")
            expected, sent = files_of(scene.root), len(provider.paths)
            target = scene.folder / "fork"
            scene.run("fork", "release", "--at", "1", "--model", model, "-o", str(target))
            options = ("--at", "1", "--models", model, "--verify", "cat tests/sums.sh", "--yes")
            table = scene.json("compare", "release", *options, "-o", str(scene.folder / "compared"))
        equal("files of the user", files_of(scene.root), expected)
        equal("new file", (target / "tests" / "sums.sh").read_text(), "echo one\necho two\n")
        named = [f"/{model}/" in each or f"/{model}:" in each for each in provider.paths[sent:]]
        equal("requests to the other model", named, [True] * 4)
        verdicts = [(each["verdict"], each["turns"], each["problem"]) for each in table["rows"]]
        equal("compared models", verdicts, [("passed", 2, None), ("passed", 2, None)])
    return "a fork and a comparison on Bedrock and on Vertex"


PROOFS: Mapping[str, Callable[[Path], str]] = {
    "effects_claude_code": claude_code_release,
    "effects_background": claude_code_mess,
    "effects_agent_sdk": agent_sdk_release,
    "effects_mcp_agent": mcp_agent,
    "effects_mcp_package": mcp_package,
    "effects_platforms": platforms,
}
"""The proofs by name; each gets an empty folder, and returns what it has checked."""
