"""Rules: their text form, the settings that contain them, and rules that have no effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.agent.permissions import Permissions, Rule, from_settings
from agentobs.errors import UsageError

from .calls import permissions_for, rules


@given(
    tool=st.from_regex(r"[A-Za-z0-9_.*-]{1,128}", fullmatch=True),
    pattern=st.none() | st.text(min_size=1),
)
def test_the_text_of_a_rule_parses_to_the_same_rule(tool: str, pattern: str | None) -> None:
    """A rule that is formatted and parsed is unchanged."""
    try:
        rule = Rule("ask", tool, pattern, "project")
    except UsageError:
        assert pattern is not None
        assert not pattern.strip() or pattern.endswith(":*")
        return
    assert Rule.parse(str(rule), "ask", "project") == rule


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shell", ("shell", None)),
        ("shell(git *)", ("shell", "git *")),
        ("shell(echo (a) b)", ("shell", "echo (a) b")),
        ("shell(=ls *.py)", ("shell", "=ls *.py")),
        ("mcp__github__*", ("mcp__github__*", None)),
        ("fetch(host:*)", ("fetch", "host:*")),
    ],
)
def test_rule_texts_are_parsed(text: str, expected: tuple[str, str | None]) -> None:
    """In the text of a rule, the tool name ends at the first parenthesis, and the pattern ends at the last
    parenthesis.
    """
    rule = Rule.parse(text, "allow", "user")
    assert (rule.tool, rule.pattern) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("shell(git *", "does not end with a closing parenthesis"),
        ("shell git *", "is not a rule"),
        ("shell)", "is not a rule"),
        ("", "is not a rule"),
        ("(git *)", "not a tool name"),
        ("shell()", "empty pattern"),
        ("shell( )", "empty pattern"),
        ("shell(git *) ", "does not end with a closing parenthesis"),
        ("shell(git:*)", "syntax of another program"),
        ("shell\n", "is not a rule"),
        (7, "is not a rule"),
        (None, "is not a rule"),
    ],
)
def test_an_invalid_rule_is_one_error(text: Any, found: str) -> None:
    """A text that is not a rule raises one error, which describes what was expected."""
    with pytest.raises(UsageError) as caught:
        Rule.parse(text, "allow", "user")
    assert found in caught.value.found
    assert "`" in caught.value.todo


def test_an_unknown_source_or_behavior_is_rejected() -> None:
    """A rule with an unknown source or behavior is rejected."""
    for behavior, source in [("allows", "user"), ("deny", "users"), (None, "user")]:
        with pytest.raises(UsageError, match="is no"):
            Rule(behavior, "shell", None, source)  # type: ignore[arg-type]


def test_settings_are_read_from_a_mapping_and_from_a_file(tmp_path: Path) -> None:
    """Each list in the settings becomes rules with the source of the settings; a missing list is empty."""
    settings = {"deny": ["shell(rm *)"], "allow": ["read_file", "shell(git *)"]}
    expected = (
        Rule("allow", "read_file", None, "project"),
        Rule("allow", "shell", "git *", "project"),
        Rule("deny", "shell", "rm *", "project"),
    )
    assert from_settings(settings, "project") == expected
    file = tmp_path / "settings.json"
    file.write_text("\ufeff" + json.dumps(settings))
    assert from_settings(file, "project") == expected
    assert from_settings({}, "user") == ()


@pytest.mark.parametrize(
    ("text", "where", "found", "todo"),
    [
        ('{"alow": []}', "", "unknown key 'alow'", "Did you mean 'allow'?"),
        ('{"permissions": {}}', "", "unknown key 'permissions'", "Write {"),
        ('{"deny": "shell"}', "", "'deny' is not a list", "Write {"),
        ('{"deny": null}', "", "'deny' is not a list", "Write {"),
        (
            '{"deny": ["read_file", "shell(rm *"]}',
            ", deny[1]",
            "does not end with a closing parenthesis",
            "Write a rule",
        ),
        ('{"ask": [["shell"]]}', ", ask[0]", "is not a rule", "Write a rule"),
        ('{"deny": ["a"], "deny": []}', "", "the key 'deny' appears twice", "Write {"),
        ('["shell"]', "", "expected an object", "Write {"),
        ('{"deny": [', "", "not JSON", "Write {"),
        ("", "", "not JSON", "Write {"),
        ("[" * 100_000, "", "nested too deep", "Write {"),
        ('{"deny": ["' + "a" * 1_000_000 + '"]}', "", "longer than", "Write {"),
    ],
)
def test_invalid_settings_are_one_error(
    tmp_path: Path, text: str, where: str, found: str, todo: str
) -> None:
    """The error for invalid settings contains the file, the list, the position in the list, the fault and what was
    expected.
    """
    file = tmp_path / "settings.json"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        from_settings(file, "user")
    assert caught.value.where == f"{file}{where}"
    assert found in caught.value.found
    assert todo in caught.value.todo


def test_unreadable_settings_are_an_error(tmp_path: Path) -> None:
    """A missing file, or a file that is not text, raises an error instead of returning no rules."""
    for name, content in [("missing", None), ("latin", b'{"deny": ["\xff"]}')]:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=name):
            from_settings(tmp_path / name, "policy")
    with pytest.raises(UsageError, match="cannot be read"):
        from_settings(tmp_path, "policy")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"mode": "yolo"}, "not a permission mode"),
        ({"mode": "bypassPermissions"}, "must be confirmed"),
        ({"mode": "bypassPermissions", "bypass_confirmed": 1}, "must be confirmed"),
        ({"rules": ["shell"]}, "not a rule"),
        ({"rules": "shell"}, "a single string"),
        ({"blocked_hosts": "evil.com"}, "a single string"),
        ({"blocked_hosts": ["evil .com"]}, "not a host"),
        ({"blocked_hosts": ["*.*.com"]}, "not a host"),
        ({"blocked_hosts": ["evil*.com"]}, "not a host"),
        ({"blocked_hosts": ["10.0.0.0/33"]}, "not a host"),
        ({"blocked_hosts": [""]}, "not a host"),
        ({"blocked_hosts": [None]}, "not a host"),
    ],
)
def test_invalid_permissions_are_rejected(changes: Any, found: str) -> None:
    """An unknown mode, an unconfirmed bypass, an invalid rule and an invalid host are rejected."""
    with pytest.raises(UsageError) as caught:
        Permissions(**changes)
    assert found in caught.value.found
    assert caught.value.todo


WIDE = (
    "shell", "shell(*)", "shell(**)", "shell(* *)", "shell(python *)", "shell(python3.11 *)", "shell(py*)",
    "shell(python -c *)", "shell(python -u -c *)", "shell(python)", "shell(python -m *)", "shell(/usr/bin/python3 *)",
    "shell(bash -c*)", "shell(bash -lc *)", "shell(sh)", "shell(sh *)", "shell(node *)", "shell(node --eval *)",
    "shell(node -e *)", "shell(perl -ne *)", "shell(ruby *)", "shell(eval *)", "shell(source *)", "shell(. *)",
    "shell(sudo *)", "shell(sudo -u root *)", "shell(sudo bash *)", "shell(env *)", "shell(env A=1 python *)",
    "shell(A=1 python *)", "shell(xargs *)", "shell(xargs -0 *)", "shell(ssh *)", "shell(ssh host *)", "shell(npx *)",
    "shell(npx -y *)", "shell(npm *)", "shell(npm exec *)", "shell(uv run *)", "shell(uv *)", "shell(uv run python *)",
    "shell(docker run *)", "shell(timeout 5 *)", "shell(nohup *)", "shell(nice -n 5 bash *)", "shell(awk *)",
    "shell(exec *)", "shell(command *)", "shell(busybox *)", "s*", "*", "BASH(*)",
)  # fmt: skip
NARROW = (
    "shell(git *)", "shell(git status)", "shell(ls *)", "shell(npm test)", "shell(npm run build)", "shell(make *)",
    "shell(python -m pytest *)", "shell(python --version)", "shell(python tools/check.py *)", "shell(npx eslint *)",
    "shell(uv run pytest *)", "shell(sudo systemctl status)", "shell(timeout 60 pytest *)", "shell(=python *)",
    "shell(bash build.sh)", "read_file", "edit_file(**)", "fetch(*)",
)  # fmt: skip


@pytest.mark.parametrize("mode", ["acceptEdits", "bypassPermissions"])
def test_rules_that_allow_an_interpreter_are_ignored(mode: Any) -> None:
    """In permissive modes, exactly the allow rules that permit an interpreter are ignored and reported, and no deny or
    ask rules.
    """
    permissions = permissions_for(mode, allow=WIDE + NARROW, deny=WIDE, ask=WIDE)
    stripped = permissions.stripped
    assert {str(rule) for rule in stripped} == set(WIDE)
    assert {rule.behavior for rule in stripped} == {"allow"}


@pytest.mark.parametrize("mode", ["default", "plan", "dontAsk"])
def test_other_modes_ignore_no_rules(mode: Any) -> None:
    """No rules are ignored in modes in which each call needs approval or a rule, because the author of a rule made that
    decision.
    """
    assert permissions_for(mode, allow=WIDE).stripped == ()


@pytest.mark.parametrize(
    ("deny", "ask", "allow", "shadowed"),
    [
        (["shell"], [], ["shell(git *)"], {"shell(git *)": "shell"}),
        (["shell(git *)"], [], ["shell(git push *)"], {"shell(git push *)": "shell(git *)"}),
        (["shell(git push *)"], [], ["shell(git *)"], {}),
        ([], ["shell(git *)"], ["shell(git log)"], {"shell(git log)": "shell(git *)"}),
        (["shell"], ["shell(rm *)"], [], {"shell(rm *)": "shell"}),
        ([], [], ["shell(git *)", "shell(git log *)"], {"shell(git log *)": "shell(git *)"}),
        ([], [], ["shell(git log)", "shell(git *)"], {"shell(git log)": "shell(git *)"}),
        (["edit(src/**)"], [], ["edit(src/a/*.py)", "edit(src2/*)"], {"edit(src/a/*.py)": "edit(src/**)"}),
        (["edit(src/*)"], [], ["edit(src/**)"], {}),
        (["mcp__*"], [], ["mcp__github__read"], {"mcp__github__read": "mcp__*"}),
        (["edit"], [], ["read(**)"], {}),
        (["fetch(host:*.a.com)"], [], ["fetch(host:b.a.com)"], {}),
        (["shell(=git log)"], [], ["shell(git log)"], {}),
    ],
)  # fmt: skip
def test_shadowed_rules_are_found(
    deny: list[str], ask: list[str], allow: list[str], shadowed: dict[str, str]
) -> None:
    """Each rule that can never have an effect is listed with the rule that takes precedence over it."""
    found = permissions_for(deny=tuple(deny), ask=tuple(ask), allow=tuple(allow)).shadowed()
    assert {str(each.rule): str(each.by) for each in found} == shadowed
    for each in found:
        assert str(each.rule) in each.sentence
        assert str(each.by) in each.sentence


def test_a_rule_is_shadowed_by_an_equal_rule() -> None:
    """Of two equal rules, the rule with the weaker source is shadowed; a repeated rule counts once."""
    policy, user = rules("deny", "shell", source="policy"), rules("deny", "shell")
    (found,) = Permissions(rules=user + policy + user).shadowed()
    assert ((found.rule,), (found.by,)) == (user, policy)
    assert "is equivalent" in found.sentence


def test_a_rule_for_an_unknown_tool_is_reported() -> None:
    """A rule for an unknown tool is reported with its source and the probably intended tool, because a misspelled rule
    forbids nothing.
    """
    permissions = permissions_for(
        allow=("Shell(git *)", "shell(ls)", "mcp__x__*"),
        deny=("shel(rm *)", "SHELL(rm *)", "old_name", "sh*", "*"),
    )
    assert permissions.unknown(["shell", "edit_file", "old_name"]) == [
        "The user rule to allow Shell(git *) has no effect: there is no tool Shell. Did you mean shell?",
        "The user rule to allow mcp__x__* has no effect: there is no tool mcp__x__*.",
        "The user rule to deny shel(rm *) has no effect: there is no tool shel. Did you mean shell?",
    ]
    assert permissions_for().unknown([]) == []
    assert len(permissions_for(deny=("*",)).unknown([])) == 1
