"""Paths in rules: patterns are compared with the resolved path, never with the path as the model wrote it."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.agent.permissions import MODES, ResolvedPath, decide
from agentobs.agent.permissions.globs import path_covers, path_fits

from .calls import (
    OUTSIDE,
    edit_call,
    fetch_call,
    permissions_for,
    read_call,
    shell_call,
    write_call,
)


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("src/a.py", ["src/a.py"], ["src/b.py", "a.py", "x/src/a.py", "src/a.pyc", "src/a.py/x", "src"]),
        ("./src//a.py", ["src/a.py"], []),
        ("*.py", ["a.py", ".py"], ["src/a.py"]),
        ("src/*", ["src/a", "src/.env"], ["src", "src/a/b"]),
        ("src/**", ["src", "src/a", "src/a/b/c"], ["srcx/a", "a/src/b"]),
        ("**", [".", "a", "a/b"], ["/etc/passwd"]),
        ("**/.env", [".env", "a/.env", "a/b/.env"], ["a/.env/b", "x.env"]),
        ("src/**/test_*.py", ["src/test_a.py", "src/a/b/test_.py"], ["src/a/xtest_a.py", "test_a.py"]),
        ("**/a/**/b/**", ["a/b", "x/a/y/b/z"], ["b/a", "a"]),
        ("a?c", ["abc"], ["ac", "a/c", "abbc"]),
        ("a*b*c", ["abc", "aXbYc", "abbcc"], ["ab", "acb"]),
        ("[id].tsx", ["[id].tsx"], ["i.tsx"]),
        ("/other/root/*", ["/other/root/x"], ["other/root/x", "/other/root"]),
        ("*" * 50 + "b", ["ab"], ["a" * 500]),
        ("**/" * 50 + "b", ["a/b"], ["a/" * 500]),
    ],
)  # fmt: skip
def test_path_patterns(pattern: str, fitting: list[str], other: list[str]) -> None:
    """`*` and `?` match within one name, `**` matches any number of folders, and a pattern must match the complete
    path.
    """
    assert [path for path in fitting if not path_fits(pattern, path)] == []
    assert [path for path in other if path_fits(pattern, path)] == []


def test_rules_match_the_resolved_path() -> None:
    """A link in an allowed folder is not allowed if it leads elsewhere, and a link is denied if its target is
    denied.
    """
    linked = edit_call("docs/readme", paths=(ResolvedPath("secrets/key", True),))
    assert decide(linked, permissions_for(allow=("edit_file(docs/**)",))).behavior == "ask"
    assert (
        decide(linked, permissions_for("acceptEdits", deny=("edit_file(secrets/**)",))).behavior
        == "deny"
    )


def test_a_call_with_two_paths_needs_rules_for_both() -> None:
    """A call that accesses two paths needs an allow rule for each of them, and is denied if one of them is denied."""
    both = (ResolvedPath("src/a", True), ResolvedPath("lib/b", True))
    call = edit_call("x", paths=both)
    for lists, expected in [
        ({"allow": ("edit_file(src/**)",)}, "ask"),
        ({"allow": ("edit_file(src/**)", "edit_file(lib/*)")}, "allow"),
        ({"allow": ("edit_file",), "deny": ("edit_file(lib/b)",)}, "deny"),
    ]:
        rule_lists: Any = lists
        assert decide(call, permissions_for(**rule_lists)).behavior == expected


@pytest.mark.parametrize(
    "path", ["secrets", "secrets/key", "secrets/a/b", "SECRETS/Key", "Secrets"]
)
def test_a_deny_rule_for_a_folder_includes_its_contents(path: str) -> None:
    """A deny rule for a folder also matches its contents, in upper or lower case; an allow rule matches only the folder
    itself.
    """
    assert decide(read_call(path), permissions_for(deny=("read_file(secrets)",))).behavior == "deny"
    allowed = decide(edit_call(path), permissions_for(allow=("edit_file(secrets)",))).behavior
    assert allowed == ("allow" if path == "secrets" else "ask")


def test_both_unicode_forms_of_a_letter_match() -> None:
    """A deny rule matches both the composed and the decomposed Unicode form of a letter."""
    for name in ("r\u00e9sum\u00e9.txt", "re\u0301sume\u0301.txt"):
        assert (
            decide(
                read_call(name), permissions_for(deny=("read_file(r\u00e9sum\u00e9.txt)",))
            ).behavior
            == "deny"
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "path",
    [
        *OUTSIDE,
        ResolvedPath("../x", inside=True),
        ResolvedPath("src/../../x", inside=True),
        ResolvedPath("src/a\0b", inside=True),
        ResolvedPath("src/a", inside=1),  # type: ignore[arg-type]
    ],
)
def test_no_mode_and_no_rule_allows_a_path_outside_the_roots(mode: Any, path: ResolvedPath) -> None:
    """A path outside of the roots denies a call of any class, and the reason names the path."""
    paths = (ResolvedPath("src/a.py", True), path)
    for call in (
        read_call(paths=paths),
        edit_call(paths=paths),
        shell_call(paths=paths),
        write_call(paths=paths),
    ):
        decision = decide(call, permissions_for(mode, allow=("*",)))
        assert (decision.behavior, decision.reason_type) == ("deny", "safety_check")
        assert repr(path.path) in decision.reason


@pytest.mark.parametrize("mode", MODES)
def test_no_call_is_allowed_after_the_budget_is_exhausted(mode: Any) -> None:
    """After the budget is exhausted, every call is denied, even a read that a rule allows."""
    for call in (
        read_call(),
        shell_call(),
        fetch_call("https://a.com"),
        write_call(needs_permission=False),
    ):
        decision = decide(call, permissions_for(mode, allow=("*",)), over_budget=True)
        assert (decision.behavior, decision.reason_type) == ("deny", "safety_check")
        assert "budget" in decision.reason


def test_a_pattern_for_a_call_without_a_subject() -> None:
    """If a call has no subject, a deny rule with a pattern requires approval, and an allow rule has an effect only with
    the pattern `*`.
    """
    call = write_call(None)
    assert (
        decide(call, permissions_for("bypassPermissions", deny=("send_mail(x)",))).behavior == "ask"
    )
    assert decide(call, permissions_for(allow=("send_mail(x*)",))).behavior == "ask"
    assert decide(call, permissions_for(allow=("send_mail(*)",))).behavior == "allow"


def test_a_rule_for_a_former_name_matches() -> None:
    """A rule for the former name of a renamed tool still matches, even if the name in the rule is a pattern."""
    call = write_call(aliases=("mail", "post"))
    for text in ("mail", "post(a@*)", "p*t", "send_mail"):
        assert decide(call, permissions_for("bypassPermissions", deny=(text,))).behavior == "deny"
        assert decide(call, permissions_for(allow=(text,))).behavior == "allow"
    for text in ("Mail", "mai", "ost"):
        assert decide(call, permissions_for(allow=(text,))).behavior == "ask"
    for text in ("MAIL", "Send_Mail(a@*)"):
        assert decide(call, permissions_for("bypassPermissions", deny=(text,))).behavior == "deny"


def test_a_covering_pattern_matches_all_paths_of_the_other_pattern() -> None:
    """If one pattern covers another, it matches every path that the other pattern matches."""
    patterns = ["**", "*", "a", "a/*", "a/**", "**/b", "*/b", "a*", "a?", "a/**/b", "**/*", "a*/b*"]
    paths = ["a", "b", "ab", "a/b", "a/c", "a/c/b", "ab/bc", "x/b", "x/y/b", "ax", "a/b/c"]
    covered = 0
    for wide in patterns:
        for narrow in patterns:
            if path_covers(wide, narrow):
                covered += wide != narrow
                assert [p for p in paths if path_fits(narrow, p) and not path_fits(wide, p)] == []
    assert covered > 20
