"""`agentobs run`: the effects of its options on the agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import get_args

import pytest

import agentobs
from agentobs.agent import BudgetLevel, SubAgent
from agentobs.agent.model.thinking import Effort
from agentobs.cli.run import EFFORTS, _level
from tests.agent.provider import Provider, call, error, message, streamed, text, unstreamed
from tests.cli.test_commands import Shell

DONE = message(text("Done."))


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "made-up")
    agentobs.stop_recorder()
    yield Shell(tmp_path / "home", capsys)
    agentobs.stop_recorder()


def test_the_effort_levels_are_those_of_the_loop() -> None:
    """`--effort` offers exactly the levels that the agent loop supports."""
    assert get_args(Effort) == EFFORTS


@pytest.mark.slow
def test_hooks_of_a_file(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks of a file run around the prompt and at the end, even if one rejects the prompt; a replay runs no hooks."""
    ended, refuses = tmp_path / "ended", tmp_path / "refuses"
    hooks = {
        "user_prompt_submit": [{"command": f"test ! -e {refuses} || exit 2"}],
        "session_end": [{"command": f"echo over >> {ended}", "background": True}],
    }
    (tmp_path / "hooks.json").write_text(json.dumps(hooks))
    with Provider([streamed(DONE)]) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        assert (
            shell("run", "Hello", "--max-usd", "none", "--hooks", "project=hooks.json").out
            == "Done.\n"
        )
        refuses.write_text("")
        refused = shell(
            "run",
            "Hello",
            "--max-usd",
            "none",
            "--hooks",
            "project=hooks.json",
            "--name",
            "refused",
        )
        assert (refused.code, len(provider.requests)) == (1, 1)
    assert "hook_stopped" in refused.err
    assert ended.read_text() == "over\nover\n"
    assert agentobs.stop_recorder()
    assert shell("freeze", "run", "-o", "frozen", "--no-check").code == 0
    assert "1 of 1 requests" in shell("replay", "frozen").out
    assert ended.read_text() == "over\nover\n"


@pytest.mark.slow
def test_content_mode_traces_and_collector(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--content off` no content is recorded, a trace is written, and an unreachable collector has no effect."""
    with Provider([streamed(DONE)]) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        result = shell("run", "a canary word", "--max-usd", "none", "--content", "off",
            "--otlp", "http://127.0.0.1:9", "--otlp-profile", "openinference", "--trace-dir", "traces",
        )  # fmt: skip
    assert (result.out, result.code) == ("Done.\n", 0)
    assert agentobs.stop_recorder()
    assert [path.suffix for path in (tmp_path / "traces").iterdir()] == [".perfetto-trace"]
    written = b"".join(
        path.read_bytes()
        for place in (tmp_path / "home", tmp_path / "traces")
        for path in place.rglob("*")
        if path.is_file()
    )
    assert b"canary word" not in written
    assert b'"live_exports":{"127.0.0.1:9":"openinference"}' in written
    assert "content" in shell("freeze", "run", "-o", "frozen").err


def test_an_invalid_collector_address(shell: Shell) -> None:
    """An invalid address gives a one-line error before any request."""
    result = shell("run", "Hello", "--max-usd", "none", "--otlp", "file:///etc/passwd")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: endpoint: the address of the collector is not valid")


def test_a_file_without_hooks(shell: Shell, tmp_path: Path) -> None:
    """A file without hooks gives a one-line error before any request."""
    (tmp_path / "hooks.json").write_text('{"before_tool": []}')
    ended = shell("run", "Hello", "--max-usd", "none", "--hooks", "hooks.json")
    assert (ended.code, len(ended.err.splitlines())) == (1, 1)
    assert "'before_tool' is not a hook event" in ended.err


def test_a_classifier(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, the classifier alone decides about a call; if the classifier fails, the call is denied."""
    (tmp_path / "written.py").write_text(
        "from agentobs.agent import tool\n\n"
        "@tool\ndef put(what: str) -> str:\n    'Put.'\n    return f'put {what}'\n"
    )
    puts = streamed(message(call("a", "put", what="x"), stop_reason="tool_use"))
    allows = call("j", "answer", behavior="allow", reason="Fine.")
    judged = unstreamed(message(allows, model="small", stop_reason="tool_use"))
    fails = error(400, "invalid_request_error")
    with Provider([puts, judged, streamed(DONE), puts, fails, streamed(DONE)]) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        for _ in range(2):
            assert shell(
                "run", "Hello", "--max-usd", "none", "--tools", "written", "--classifier", "small"
            ).out.endswith("Done.\n")
    assert provider.requests[1]["model"] == "small"
    result = [provider.requests[at]["messages"][-1]["content"][0]["content"] for at in (2, 5)]
    assert result[0] == "put x"
    assert "The classifier gave no answer" in result[1]


def test_effort_and_fallback_model(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model uses the chosen effort; after three overloads in a row, the fallback model is used."""
    monkeypatch.setattr("agentobs.agent.model.retry.FIRST_WAIT_S", 0.001)
    busy = error(529, "overloaded_error")
    with Provider([busy, busy, busy, streamed(DONE)]) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        options = ("--model", "one", "--fallback-model", "two", "--effort", "high", "--unattended")
        assert shell("run", "Hello", "--max-usd", "none", *options).out == "Done.\n"
    assert [request["model"] for request in provider.requests] == ["one", "one", "one", "two"]
    first = provider.requests[0]
    assert (first["thinking"], first["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})


def test_without_a_terminal_a_budget_is_required(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal and a budget, `run` sends no request; its one-line error names the option."""
    with Provider([]) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        ended = shell("run", "Hello")
        assert provider.requests == []
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "error: --max-usd: there is no budget. Pass an amount, such as --max-usd 1.00, or "
        "--max-usd none for no limit.\n"
    )


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("\n", (0, "")),
        ("none\n", (0, "")),
        ("much\n", (1, "invalid dollar amount")),
        ("", (130, "")),
    ],
)
def test_the_budget_is_asked_for_at_a_terminal(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, typed: str, expected: tuple[int, str]
) -> None:
    """At a terminal, `run` asks for the budget; an empty line selects the suggested amount, and Ctrl-D cancels."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("agentobs.cli.run._line", lambda: typed)
    with Provider([streamed(DONE)]) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        ended = shell("run", "Hello")
    assert "Budget in USD, or none [1.00]: " in ended.err
    assert (ended.code, expected[1] in ended.err) == (expected[0], True)


def test_the_line_for_a_share_that_a_sub_agent_reports() -> None:
    """A share of the budget is printed in the same way if an agent below the main agent reports it."""
    level = BudgetLevel("day_usd", 95, Decimal("9.5"), Decimal(10))
    line = "95% of the budget day_usd is spent: $9.5000 of $10"
    assert _level(level) == _level(SubAgent("t1", "helper", "main/t1", 1, level)) == line


def test_shares_of_the_budget_and_the_window_are_printed(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a large share of the budget or of the context window is reached, one line reports this."""
    (tmp_path / "looking.py").write_text(
        "from agentobs.agent import tool\n\n"
        "@tool(read_only=True)\ndef look() -> str:\n    'Look.'\n    return 'nothing'\n\n"
        "TOOLS = [look]\n"
    )
    model = "claude-haiku-4-5"
    usage = {"input_tokens": 165_000, "output_tokens": 1}
    looks = message(call("t1", "look"), model=model, usage=usage)
    with Provider([streamed(looks), streamed(DONE)]) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        ended = shell(
            "run", "Hello", "--model", model, "--tools", "looking:TOOLS", "--max-usd", "0.2"
        )
    assert ended.out == "Done.\n"
    lines = [line for line in ended.err.splitlines() if "%" in line]
    assert lines == [
        "[80% of the budget interaction_usd is spent: $0.1650 of $0.2]",
        "[80% of the context window is used: 165,017 of 200,000 tokens]",
    ]
