"""`agentobs fork`: histories that a provider accepts, costs, and histories that cannot be sent."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import agentobs
from agentobs.recording.session import start_recorder, stop_recorder
from replay import Fork, Replayer, ReplayOptions, load
from tests.cli.test_commands import Shell
from tests.replay.signed_agents import SOURCE
from tests.replay.signing_provider import (
    INPUT_TOKENS,
    MODEL,
    ORGANIZATION,
    OUTPUT_TOKENS,
    SigningProvider,
    serve_signing,
)

MASKED_ORGANIZATION = "00000000-0000-4000-8000-000000000000"
PRICE = Decimal("0.000002") * INPUT_TOKENS + Decimal("0.00001") * OUTPUT_TOKENS
CLIENTS = ["sync", "sync-stream", "async", "async-stream", "raw"]
_numbers = itertools.count(1)


class Desk:
    """A folder with an agent, a home and a provider. Commands run in this folder."""

    def __init__(self, folder: Path, provider: SigningProvider, shell: Shell) -> None:
        self.folder, self.provider, self.shell = folder, provider, shell
        self.module = f"signed_agent_{next(_numbers)}"
        (folder / f"{self.module}.py").write_text(SOURCE, encoding="utf-8")
        self.agent = importlib.import_module(self.module)

    def record(self, run: Callable[[Any], Any]) -> str:
        """Run and record the agent, and return the ID of its session."""
        start_recorder(str(self.shell.home))
        try:
            run(self.agent)
        finally:
            assert stop_recorder()
        return str(self.rows("SELECT session_id FROM sessions ORDER BY started_ns")[-1][0])

    def freeze(self, session_id: str) -> Path:
        """Freeze a session into `frozen`, without the check that it replays."""
        folder = self.folder / "frozen"
        ended = self.shell("freeze", session_id, "-o", str(folder), "--no-check")
        assert ended.code == 0, ended.err
        return folder

    def rows(self, sql: str) -> list[Any]:
        with agentobs.connect(self.shell.home) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    stop_recorder()
    return Shell(tmp_path / "home", capsys)


@pytest.fixture
def desk(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with serve_signing() as provider:
        monkeypatch.setenv("SIGNING_URL", provider.url)
        yield Desk(tmp_path, provider, shell)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "source"),
    [
        ("sync", "fixture"),
        ("raw", "session"),
        *(
            pytest.param(client, "fixture", marks=pytest.mark.soak)
            for client in CLIENTS
            if client != "sync"
        ),
    ],
)
def test_a_provider_that_verifies_signatures_accepts_a_fork(
    desk: Desk, client: str, source: str
) -> None:
    """A provider that verifies signatures receives only the live requests of a fork, accepts their history, and bills
    the cost that is recorded.
    """
    parent = desk.record(lambda agent: agent.answer(client, "Where is my refund?"))
    assert desk.provider.accepted == 3
    folder = desk.freeze(parent)
    frozen = (folder / "recording.jsonl").read_text(encoding="utf-8")
    assert ORGANIZATION not in frozen
    assert MASKED_ORGANIZATION.encode() in _decoded_signature(frozen)
    ended = desk.shell("fork", str(folder) if source == "fixture" else parent, "--at", "2")
    assert ended.code == 0, ended.err
    assert ended.out == "Done after 3 turns.\n"
    assert desk.provider.refused == []
    assert len(desk.provider.requests) == 3 + 1
    [sent] = desk.provider.requests[3:]
    assert sent["messages"] == desk.provider.requests[2]["messages"]
    [row] = desk.rows(
        "SELECT name, relation, continues_session_id, forked_turn, turns, replayed_requests, cost_usd, input_tokens "
        "FROM sessions ORDER BY started_ns DESC LIMIT 1"
    )
    assert tuple(row) == ("refund-loop-fork-2", "fork", parent, 2, 3, 2, PRICE, INPUT_TOKENS)
    assert [spent.usd for spent in desk.agent.SPENT] == [3 * PRICE, PRICE]


def test_a_fork_without_a_key_names_the_variable(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an agent that reads its key from the environment finds none, the command names the variable to set."""
    root = Path(__file__).parents[2]
    shutil.copy(root / "agentobs/cli/demo/refund_agent.py", tmp_path)
    shutil.copytree(root / "fixtures/refund-loop", tmp_path / "fixture")
    # Both are undone after the test, which imports the module.
    monkeypatch.setitem(sys.modules, "refund_agent", ModuleType("refund_agent"))
    monkeypatch.delitem(sys.modules, "refund_agent")
    for variable in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    ended = shell("fork", "fixture", "--at", "1")
    assert ended.code == 1
    assert "the agent ended before turn 1 was answered" in ended.out
    assert "set ANTHROPIC_API_KEY" in ended.err


def _decoded_signature(text: str) -> bytes:
    """Return the signatures in a text, decoded from base64."""
    import base64
    import re

    found = re.findall(r"[A-Za-z0-9+/]{300,}={0,2}", text)
    return b"".join(base64.b64decode(each) for each in found)


def parent_session(desk: Desk, client: str = "sync-stream") -> tuple[str, Path]:
    """Record and freeze a session whose signatures contain an organization ID."""
    parent = desk.record(lambda agent: agent.answer(client, "Where is my refund?"))
    return parent, desk.freeze(parent)


@pytest.mark.slow
def test_views_and_commands_distinguish_a_fork_from_its_parent(desk: Desk) -> None:
    """In views and commands, the replayed calls of a fork cost nothing, and the fork names its parent session."""
    parent, folder = parent_session(desk)
    assert desk.shell("fork", str(folder), "--at", "2").code == 0
    [(forked,)] = desk.rows("SELECT session_id FROM sessions WHERE relation = 'fork'")
    origins = desk.rows(f"SELECT origin FROM turns WHERE session_id = '{forked}' ORDER BY turn")
    assert [row[0] for row in origins] == ["replayed", "replayed", "live"]
    money = "SELECT session_id, sum(cost_usd), count(*) FROM {} GROUP BY session_id"
    for view in ("costs", "audited_costs", "call_costs"):
        found = {row[0]: tuple(row[1:]) for row in desk.rows(money.format(view))}
        assert found == {parent: (3 * PRICE, 3), forked: (PRICE, 1)}
    [(billed,)] = desk.rows("SELECT sum(cost_usd) FROM cost_by_day")
    assert billed == desk.provider.accepted * PRICE
    assert f"fork of {parent[-8:]} at turn 2" in desk.shell("sessions").out
    shown = desk.shell("show", forked).out
    assert parent in shown
    assert "2 requests replayed" in " ".join(shown.split())
    assert "replayed requests    2" in desk.shell("show", forked, "--facts").out
    compared = desk.shell("diff", parent, forked).out
    assert f"B is a fork of {parent}: turns up to 2 were replayed at no cost" in compared
    assert "refund-loop-fork-2" in desk.shell("cost", "--by", "session").out


@pytest.mark.soak
def test_a_fork_can_be_frozen_and_forked(desk: Desk) -> None:
    """The session of a fork can be frozen, replayed without a provider, and forked again."""
    _, folder = parent_session(desk)
    assert desk.shell("fork", str(folder), "--at", "1").code == 0
    [(first,)] = desk.rows("SELECT session_id FROM sessions WHERE relation = 'fork'")
    shutil.rmtree(folder)
    refrozen = desk.freeze(first)
    assert (
        json.loads((refrozen / "recording.jsonl").read_text().partition("\n")[0])["session_id"]
        == first
    )
    request_count = len(desk.provider.requests)
    replayed = desk.shell("replay", str(refrozen))
    assert replayed.code == 0, replayed.out
    assert len(desk.provider.requests) == request_count
    assert desk.shell("fork", str(refrozen), "--at", "2").code == 0
    found = desk.rows(
        "SELECT continues_session_id, forked_turn FROM sessions WHERE relation = 'fork' ORDER BY ALL"
    )
    assert {row[1] for row in found} == {1, 2}
    assert (first, 2) in [tuple(row) for row in found]
    assert desk.provider.refused == []


@pytest.mark.soak
def test_a_fork_of_an_agent_that_reads_time_and_ids_can_be_frozen(desk: Desk) -> None:
    """A fork reads the time and IDs of its parent, so it can be frozen and replayed."""
    parent = desk.record(lambda agent: agent.answer("sync", "Where is my refund?", stamps=True))
    assert desk.shell("fork", parent, "--at", "1").code == 0
    [(forked,)] = desk.rows("SELECT session_id FROM sessions WHERE relation = 'fork'")
    folder = desk.freeze(forked)
    replayed = desk.shell("replay", str(folder))
    assert replayed.code == 0, replayed.out
    assert len(desk.provider.requests) == 5


def without_home(desk: Desk, parent: str, folder: Path) -> str:
    shutil.rmtree(desk.shell.home)
    return f"session {parent}, which cannot be read: "


def pruned(desk: Desk, parent: str, folder: Path) -> str:
    assert desk.shell("prune", "--session", parent).code == 0
    return "pruned"


def without_content(desk: Desk, parent: str, folder: Path) -> str:
    assert desk.shell("prune", "--session", parent, "--content-only").code == 0
    return "was pruned"


def imported_from_bundle(desk: Desk, parent: str, folder: Path) -> str:
    file = desk.folder / "one.bundle"
    assert desk.shell("bundle", parent, "-o", str(file), "--with-content").code == 0
    shutil.rmtree(desk.shell.home)
    assert desk.shell("import", "bundle", str(file)).code == 0
    return "was not read or lacks the original values"


def pruned_next_to_another_session(desk: Desk, parent: str, folder: Path) -> str:
    assert desk.shell("prune", "--session", parent).code == 0
    desk.record(lambda agent: agent.answer("sync", "Something else"))
    return parent


def without_session_id(desk: Desk, parent: str, folder: Path) -> str:
    from agentobs.records.canonical_json import digest

    file = folder / "recording.jsonl"
    first, *others = file.read_bytes().splitlines(keepends=True)
    header = {key: value for key, value in json.loads(first).items() if key != "session_id"}
    data = json.dumps(header).encode() + b"\n" + b"".join(others[:-1])
    end = {**json.loads(others[-1]), "digest": digest(data)}
    file.chmod(0o600)
    file.write_bytes(data + json.dumps(end).encode() + b"\n")
    return "does not name the session"


LONG = [
    pytest.param(each, marks=pytest.mark.soak)
    for each in (
        pruned,
        without_session_id,
        without_content,
        imported_from_bundle,
        pruned_next_to_another_session,
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("remove_originals", [without_home, *LONG])
def test_a_fork_without_the_original_signatures_is_rejected(
    desk: Desk, remove_originals: Callable[[Desk, str, Path], str]
) -> None:
    """If the original signatures cannot be read, the fork is rejected with the changed turn, the reason and a
    solution.
    """
    parent, folder = parent_session(desk)
    why = remove_originals(desk, parent, folder)
    request_count = len(desk.provider.requests)
    ended = desk.shell("fork", str(folder), "--at", "2")
    assert ended.code != 0
    assert ended.out == ""
    assert "turn 1 (organization IDs were removed)" in ended.err
    assert why in ended.err
    assert "agentobs fork SESSION --at N" in ended.err
    assert len(desk.provider.requests) == request_count


@pytest.mark.soak
def test_masked_signatures_are_not_sent_from_python_either(desk: Desk) -> None:
    """From Python, a fork whose original signatures are unavailable is rejected when it is created."""
    _, folder = parent_session(desk)
    with pytest.raises(agentobs.errors.RecordingError, match="would reject the history"):
        Replayer(load(folder), ReplayOptions(fork=Fork(2)))


@pytest.mark.soak
def test_a_history_without_ids_needs_no_session(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If freezing changed no signature, the fixture can be forked without the original session."""
    with serve_signing(organization=None) as provider:
        monkeypatch.setenv("SIGNING_URL", provider.url)
        desk = Desk(tmp_path, provider, shell)
        parent, folder = parent_session(desk)
        shutil.rmtree(shell.home)
        ended = shell("fork", str(folder), "--at", "2")
        assert ended.code == 0, ended.err
        assert provider.refused == []
        found = desk.rows("SELECT continues_session_id, relation FROM sessions")
        assert [tuple(row) for row in found] == [(parent, "fork")]


@pytest.mark.soak
def test_signatures_split_into_several_events(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature that was streamed in several events is sent back complete, as it was issued."""
    for chunks in (2, 3, 7):
        with serve_signing(chunks=chunks) as provider:
            monkeypatch.setenv("SIGNING_URL", provider.url)
            desk = Desk(tmp_path, provider, shell)
            _, folder = parent_session(desk, "events")
            ended = shell("fork", str(folder), "--at", "2")
            assert ended.code == 0, ended.err
            assert provider.refused == []
            assert len(provider.requests) == 4
            shutil.rmtree(folder)


@pytest.mark.soak
def test_an_imported_session_is_not_forked(desk: Desk) -> None:
    """A session that was imported from a bundle cannot be forked, and freezing it proposes no fork."""
    parent, folder = parent_session(desk)
    imported_from_bundle(desk, parent, folder)
    output = desk.shell("freeze", parent, "-o", str(desk.folder / "again")).out
    assert "pytest" in output
    assert "agentobs fork" not in output
    ended = desk.shell("fork", parent, "--at", "2")
    assert ended.code != 0
    assert "turn 1 (organization IDs were removed)" in ended.err


@pytest.mark.slow
def test_a_fork_of_the_agent_loop_with_a_sub_agent(desk: Desk) -> None:
    """In a fork, the responses of a sub-agent are replayed too, and cost nothing in the store and in the loop's
    totals.
    """
    parent = desk.record(lambda agent: asyncio.run(agent.manage("Where is my refund?")))
    assert desk.provider.accepted == 5
    folder = desk.freeze(parent)
    ended = desk.shell("fork", str(folder), "--at", "2")
    assert ended.code == 0, ended.err
    assert desk.provider.refused == []
    assert len(desk.provider.requests) == 6
    [row] = desk.rows(
        "SELECT name, turns, replayed_requests, cost_usd FROM sessions WHERE relation = 'fork'"
    )
    assert tuple(row) == ("manager-fork-2", 5, 4, PRICE)
    assert desk.agent.SPENT == [5 * PRICE, PRICE]


def exchanges(provider: SigningProvider, prompt: str) -> list[dict[str, Any]]:
    """Return a conversation as another tool would have recorded it, without request headers."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    found = []
    for _ in range(3):
        body = {"model": MODEL, "max_tokens": 99, "tools": [{"name": "lookup"}]}
        body |= {"messages": list(messages)}
        status, message = provider.answer(body)
        request = {"method": "POST", "path": "/v1/messages", "headers": {}, "body": body}
        kind = {"content-type": "application/json"}
        answered = {"status": status, "headers": kind, "body_text": json.dumps(message)}
        found.append({"request": request, "response": answered})
        use = message["content"][-1]
        result = {"type": "tool_result", "tool_use_id": use.get("id"), "content": "open"}
        messages += [
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": [result]},
        ]
    return found


AGENT = """
import json, os
import agentobs, httpx2

def answer(prompt):
    messages = [{"role": "user", "content": prompt}]
    with agentobs.record(httpx2.Client(base_url="http://127.0.0.1:9")) as client:
        while True:
            body = {"model": "claude-sonnet-5", "max_tokens": 99, "tools": [{"name": "lookup"}], "messages": messages}
            content = client.post("/v1/messages", content=json.dumps(body, separators=(",", ":"))).json()["content"]
            if content[-1]["type"] == "text":
                return content[-1]["text"]
            result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "open"}
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
"""


@pytest.mark.slow
def test_the_next_steps_for_imported_exchanges_work(
    pytester: pytest.Pytester, desk: Desk, warm_process: None
) -> None:
    """For imported exchanges, whose agent is unknown, `freeze` prints the two lines to add to the test, and no fork
    command.
    """
    file = desk.folder / "theirs.jsonl"
    lines = map(json.dumps, exchanges(desk.provider, "Where is my refund?"))
    file.write_text("\n".join(lines), encoding="utf-8")
    assert desk.shell("import", "wire", str(file)).code == 0
    [(session_id,)] = desk.rows("SELECT session_id FROM sessions")
    output = desk.shell("freeze", session_id, "-o", "frozen", "--no-check").out
    steps = output[output.index("next   ") :].replace("next   ", "       ", 1).splitlines()
    assert [line.strip() for line in steps] == [
        "edit frozen/test_frozen.py: add this import, and replace `...` in replay.run(...) with these arguments:",
        "from my_agent import my_function",
        "my_function",
        "pytest frozen",
        "agentobs serve frozen   acts as the provider for any client",
    ]
    (desk.folder / "my_agent.py").write_text(AGENT, encoding="utf-8")
    test = desk.folder / "frozen" / "test_frozen.py"
    text = test.read_text(encoding="utf-8")
    call = 'answer, "Where is my refund?"'
    assert "replay.run(...)" in text
    text = text.replace("...", call)
    test.write_text(f"from my_agent import answer\n{text}", encoding="utf-8")
    options = ("-p", "no:cacheprovider", "-p", "no:xdist")
    pytester.runpytest_inprocess(*options, "frozen").assert_outcomes(passed=1)
    serve = [sys.executable, "-m", "agentobs", "serve", "frozen"]
    with subprocess.Popen(serve, cwd=desk.folder, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        assert served.stdout.readline().startswith("serving 3 exchanges")
        served.terminate()


@pytest.mark.slow
def test_secrets_in_the_history_stay_placeholders_with_a_warning(
    desk: Desk,
) -> None:
    """A fork with placeholders of secrets in its history prints a warning; the provider accepts them except in signed
    thinking.
    """
    secret = "ghp_" + "a1B2c3D4" * 4 + "e5F6"
    block = {"type": "text", "text": f"The token is {secret}."}
    desk.provider.first_blocks = [block]
    parent, folder = parent_session(desk)
    ended = desk.shell("fork", str(folder), "--at", "2")
    assert ended.code == 0, ended.err
    assert (
        "note    the recorded responses contain placeholders instead of secrets (1 github_token), "
        "and the provider and live tools get these placeholders" in ended.err
    )
    [sent] = desk.provider.requests[3:]
    assert "[redacted:github_token:1]" in json.dumps(sent["messages"])
    desk.provider.thinking = f"Use {secret}."
    parent = desk.record(lambda agent: agent.answer("sync", "Where is my refund?"))
    request_count = len(desk.provider.requests)
    ended = desk.shell("fork", parent, "--at", "2")
    assert ended.code != 0
    assert "a secret was redacted in signed thinking" in ended.err
    assert len(desk.provider.requests) == request_count
