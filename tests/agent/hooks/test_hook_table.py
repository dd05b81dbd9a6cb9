"""The table of hooks, and which hooks match an event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentobs.agent.hooks import (
    EVENTS,
    AgentHook,
    Command,
    Hook,
    HookEvent,
    Http,
    Occasion,
    PromptHook,
    hooks_from_settings,
    matching,
    table,
)
from agentobs.agent.hooks.declarations import CONDITIONAL
from agentobs.agent.permissions import ResolvedPath
from agentobs.errors import UsageError


def nothing(payload: Any) -> None:
    pass


def call(tool: str | None = "shell", subject: str | None = "git push", **more: Any) -> Occasion:
    return Occasion("pre_tool_use", 1, "1:pre_tool_use:t1", tool=tool, subject=subject, **more)


def matches(when: str, occasion: Occasion) -> bool:
    return bool(matching(table([Hook("pre_tool_use", nothing, when)]), occasion))


def test_one_table_in_the_order_of_its_sources() -> None:
    """One table contains the hooks from code, settings and session, in that order; a hook without a name is named after
    its source.
    """
    code = [
        Hook("stop", nothing),
        Hook("stop", nothing, name="mine"),
        Hook("session_end", nothing),
    ]
    settings = hooks_from_settings({"stop": [{"command": "true"}]})
    session = [Hook("stop", nothing, source="session")]
    names = [hook.name for hook in table(code, settings, session)]
    assert names == ["code:1", "mine", "code:2", "settings:1", "session:1"]


def test_a_table_can_be_built_again() -> None:
    """The live world and the options can each build a table from the same hooks."""
    first_table = table([Hook("stop", nothing), Hook("session_end", nothing)])
    assert table(first_table) == first_table


def test_two_hooks_with_the_same_name_are_rejected() -> None:
    """Two hooks with the same name are rejected, because a name identifies one hook."""
    with pytest.raises(UsageError, match="two hooks are named a"):
        table([Hook("stop", nothing, name="a")], [Hook("session_end", nothing, name="a")])


def test_a_hook_that_is_given_twice_is_rejected() -> None:
    """The same hook in two sources is rejected, because it would run twice."""
    hook = Hook("stop", nothing)
    with pytest.raises(UsageError, match="the same hook is given twice: stop"):
        table([hook], [hook])


def test_a_value_that_is_not_a_hook_is_rejected() -> None:
    """A value other than a hook is rejected, for example a function, which does not specify its event."""
    with pytest.raises(UsageError, match="is not a hook"):
        table([nothing])  # type: ignore[list-item]


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("not a hook event", {"event": "before_tool_use"}),
    ("not a rule", {"when": "shell git"}),
    ("does not end with a closing parenthesis", {"when": "shell(git"}),
    ("syntax of another program", {"when": "shell(git:*)"}),
    ("applies only to events of tools", {"event": "stop", "when": "shell(git *)"}),
    ("not a label", {"name": "my hook"}),
    ("not a label", {"source": ""}),
    ("timeout_s is ", {"timeout_s": 0}),
    ("timeout_s is ", {"timeout_s": float("nan")}),
    ("timeout_s is ", {"timeout_s": True}),
    ("cannot run", {"run": 3}),
    ("is not a command", {"run": Command(())}),
    ("is not a command", {"run": Command("  ")}),
    ("null byte", {"run": Command(("a\0b",))}),
    ("does not name a server", {"run": Http("ftp://example.com")}),
    ("does not name a server", {"run": Http("example.com")}),
    ("does not name a server", {"run": Http("http://[::1/")}),
    ("does not name a server", {"run": Http("http://example.com:99999/")}),
    ("cannot be sent", {"run": Http("http://example.com", {"a": "b\r\nc: d"})}),
    ("prompt is empty", {"run": PromptHook(" ")}),
    ("max_turns is 51", {"run": AgentHook("Look.", max_turns=51)}),
    ("max_turns is 0", {"run": AgentHook("Look.", max_turns=0)}),
]


@pytest.mark.parametrize(("found", "changes"), WRONG)
def test_a_hook_that_could_never_run_is_rejected(found: str, changes: dict[str, Any]) -> None:
    """A hook that could never run is rejected when it is created, not only when it should block a call."""
    with pytest.raises(UsageError, match=found):
        Hook(**{"event": "pre_tool_use", "run": nothing, **changes})


def test_errors_contain_no_headers() -> None:
    """The error for an invalid hook does not contain its headers, because a header may be a credential."""
    with pytest.raises(UsageError) as raised:
        Hook("stop", Http("http://example.com", {"authorization": "secret\n"}))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("event", EVENTS)
def test_conditions_are_only_for_tool_events(event: HookEvent) -> None:
    """A condition is rejected for an event without a tool call or sub-agent, because the condition could never
    be met.
    """
    if event in CONDITIONAL:
        assert Hook(event, nothing, "shell").when == "shell"
    else:
        with pytest.raises(UsageError):
            Hook(event, nothing, "shell")


CONDITIONS: list[tuple[str, Occasion, bool]] = [
    ("shell", call(), True),
    ("SHELL", call(), True),
    ("edit", call(), False),
    ("mcp__*", call("mcp__github__push"), True),
    ("old", call("new", aliases=("old",)), True),
    ("shell(git push *)", call(tool_class="shell"), True),
    ("shell(git push *)", call(subject="cd x && git push -f", tool_class="shell"), True),
    ("shell(git push *)", call(subject="git pull", tool_class="shell"), False),
    ("shell(git push *)", call(subject="$(cat what)", tool_class="shell"), True),
    ("edit(src/**)", call("edit", "x", paths=(ResolvedPath("src/a.py", True),)), True),
    ("edit(src/**)", call("edit", "src/a", paths=(ResolvedPath("lib/a.py", True),)), False),
    ("fetch(host:*.example.com)", call("fetch", None, hosts=("a.example.com",)), True),
    ("look(src*)", call("look", None), True),
    ("look(src*)", call("look", "lib"), False),
    ("shell(git *)", call(None, None), True),
]


@pytest.mark.parametrize(("when", "occasion", "met"), CONDITIONS)
def test_hook_conditions(when: str, occasion: Occasion, met: bool) -> None:
    """A condition matches like the pattern of a deny rule, and a doubtful match counts as a match."""
    assert matches(when, occasion) is met


def test_an_event_runs_only_its_hooks() -> None:
    """An event runs its own hooks in table order, except `once` hooks that have run before."""
    hooks = table(
        [
            Hook("stop", nothing, name="other"),
            Hook("pre_tool_use", nothing, name="first", once=True),
            Hook("pre_tool_use", nothing, name="second"),
        ]
    )
    assert [hook.name for hook in matching(hooks, call())] == ["first", "second"]
    assert [hook.name for hook in matching(hooks, call(), {"first", "second"})] == ["second"]


def test_a_condition_matches_the_name_of_a_sub_agent() -> None:
    """In sub-agent events, the condition is compared with the name of the sub-agent instead of a tool name."""
    hooks = table([Hook("sub_agent_start", nothing, "explore")])
    for agent, count in (("explore", 1), ("write", 0)):
        what = Occasion("sub_agent_start", 1, "1:sub_agent_start", tool=agent)
        assert len(matching(hooks, what)) == count


def test_settings_can_declare_every_kind_of_hook(tmp_path: Path) -> None:
    """A settings file can declare command, HTTP, prompt and agent hooks, with all fields of a hook."""
    file = tmp_path / "hooks.json"
    file.write_text(
        """{
        "pre_tool_use": [
            {"when": "shell(git *)", "command": ["./check", "-q"], "timeout_s": 5, "name": "check"},
            {"command": "exit 2", "keep": ["ANTHROPIC_API_KEY"], "once": true},
            {"http": "https://example.com/hook", "headers": {"x-key": "1"}, "background": true},
            {"prompt": "Is it safe?", "model": "small"}],
        "stop": [{"agent": "Do the tests pass?", "tools": ["look"], "max_turns": 7}]}"""
    )
    hooks = hooks_from_settings(file)
    assert hooks == (
        Hook(
            "pre_tool_use",
            Command(("./check", "-q")),
            "shell(git *)",
            name="check",
            timeout_s=5,
            source="settings",
        ),
        Hook(
            "pre_tool_use",
            Command("exit 2", keep=("ANTHROPIC_API_KEY",)),
            once=True,
            source="settings",
        ),
        Hook(
            "pre_tool_use",
            Http("https://example.com/hook", {"x-key": "1"}),
            background=True,
            source="settings",
        ),
        Hook("pre_tool_use", PromptHook("Is it safe?", "small"), source="settings"),
        Hook(
            "stop",
            AgentHook("Do the tests pass?", tools=("look",), max_turns=7),
            source="settings",
        ),
    )


WRONG_SETTINGS: list[tuple[str, Any]] = [
    ("expected an object", []),
    ("'pre_tool' is not a hook event", {"pre_tool": []}),
    ("Did you mean 'stop'", {"stpo": []}),
    ("is not a list", {"stop": {"command": "true"}}),
    (r"stop\[0\]: expected an object", {"stop": ["true"]}),
    (r"stop\[1\]: it specifies nothing", {"stop": [{"command": "true"}, {"once": True}]}),
    ("command and prompt", {"stop": [{"command": "true", "prompt": "x"}]}),
    ("unknown key 'backgroud'", {"stop": [{"command": "true", "backgroud": True}]}),
    ("unknown key 'headers'", {"stop": [{"command": "true", "headers": {}}]}),
    ("'once' has the type str", {"stop": [{"command": "true", "once": "yes"}]}),
    ("'timeout_s' has the type bool", {"stop": [{"command": "true", "timeout_s": True}]}),
    ("not a list of strings", {"stop": [{"command": ["a", 1]}]}),
    ("applies only to events of tools", {"stop": [{"command": "true", "when": "shell"}]}),
]


@pytest.mark.parametrize(("found", "settings"), WRONG_SETTINGS)
def test_invalid_hook_settings_are_one_error(found: str, settings: Any) -> None:
    """Invalid hook settings raise one error with the name of the hook and the fault."""
    with pytest.raises(UsageError, match=found):
        hooks_from_settings(settings)


@pytest.mark.parametrize("text", [b"{", b'{"stop": [], "stop": []}', b"\xff", b"[" * 100_000])
def test_invalid_settings_files_are_rejected(tmp_path: Path, text: bytes) -> None:
    """An invalid settings file raises an error with the name of the file."""
    file = tmp_path / "hooks.json"
    file.write_bytes(text)
    with pytest.raises(UsageError, match=r"hooks\.json"):
        hooks_from_settings(file)
    with pytest.raises(UsageError, match="cannot be read"):
        hooks_from_settings(tmp_path / "none.json")
