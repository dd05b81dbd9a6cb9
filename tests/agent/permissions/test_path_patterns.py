"""Paths in rules: patterns are compared with the resolved path, never with the model's text."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.agent.permissions import MODES, ResolvedPath, decide
from agentobs.agent.permissions.globs import path_covers, path_fits

from .calls import OUTSIDE, editing, fetching, permitted, reading, running, writing


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
def test_patterns_of_paths(pattern: str, fitting: list[str], other: list[str]) -> None:
    """`*` and `?` stay within one name, `**` is any number of folders; a path is compared whole."""
    assert [path for path in fitting if not path_fits(pattern, path)] == []
    assert [path for path in other if path_fits(pattern, path)] == []


def test_the_resolved_path_counts() -> None:
    """A link that looks allowed but leads elsewhere is not allowed, and one that looks harmless but
    is not is denied.
    """
    linked = editing("docs/readme", paths=(ResolvedPath("secrets/key", True),))
    assert decide(linked, permitted(allow=("edit_file(docs/**)",))).behavior == "ask"
    assert (
        decide(linked, permitted("acceptEdits", deny=("edit_file(secrets/**)",))).behavior == "deny"
    )


def test_every_path_must_be_allowed_and_one_is_enough_to_deny() -> None:
    """A call that accesses two paths needs a rule for both."""
    both = (ResolvedPath("src/a", True), ResolvedPath("lib/b", True))
    call = editing("x", paths=both)
    for lists, expected in [
        ({"allow": ("edit_file(src/**)",)}, "ask"),
        ({"allow": ("edit_file(src/**)", "edit_file(lib/*)")}, "allow"),
        ({"allow": ("edit_file",), "deny": ("edit_file(lib/b)",)}, "deny"),
    ]:
        given: Any = lists
        assert decide(call, permitted(**given)).behavior == expected


@pytest.mark.parametrize(
    "path", ["secrets", "secrets/key", "secrets/a/b", "SECRETS/Key", "Secrets"]
)
def test_who_denies_a_folder_denies_what_lies_in_it(path: str) -> None:
    """A deny rule for a folder includes its contents, in any case; an allow rule does not."""
    assert decide(reading(path), permitted(deny=("read_file(secrets)",))).behavior == "deny"
    allowed = decide(editing(path), permitted(allow=("edit_file(secrets)",))).behavior
    assert allowed == ("allow" if path == "secrets" else "ask")


def test_two_spellings_of_an_accent_are_one_name() -> None:
    """A deny rule applies to both Unicode encodings of a letter."""
    for name in ("r\u00e9sum\u00e9.txt", "re\u0301sume\u0301.txt"):
        assert (
            decide(reading(name), permitted(deny=("read_file(r\u00e9sum\u00e9.txt)",))).behavior
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
def test_no_mode_and_no_rule_lets_a_call_out_of_the_roots(mode: Any, path: ResolvedPath) -> None:
    """A path outside denies the call, whatever its class, and the reason names the path."""
    paths = (ResolvedPath("src/a.py", True), path)
    for call in (
        reading(paths=paths),
        editing(paths=paths),
        running(paths=paths),
        writing(paths=paths),
    ):
        decision = decide(call, permitted(mode, allow=("*",)))
        assert (decision.behavior, decision.reason_type) == ("deny", "safety_check")
        assert repr(path.path) in decision.reason


@pytest.mark.parametrize("mode", MODES)
def test_nothing_runs_once_the_budget_is_used_up(mode: Any) -> None:
    """Not even a read that a rule allows."""
    for call in (reading(), running(), fetching("https://a.com"), writing(needs_permission=False)):
        decision = decide(call, permitted(mode, allow=("*",)), over_budget=True)
        assert (decision.behavior, decision.reason_type) == ("deny", "safety_check")
        assert "budget" in decision.reason


def test_a_pattern_for_a_call_without_subject_is_in_doubt() -> None:
    """If a tool has no subject, a deny rule with a pattern requests approval, and an allow rule has no effect."""
    call = writing(None)
    assert decide(call, permitted("bypassPermissions", deny=("send_mail(x)",))).behavior == "ask"
    assert decide(call, permitted(allow=("send_mail(x*)",))).behavior == "ask"
    assert decide(call, permitted(allow=("send_mail(*)",))).behavior == "allow"


def test_a_rule_for_an_older_name_holds() -> None:
    """A renamed tool still matches rules for its old name, and for a pattern of it."""
    call = writing(aliases=("mail", "post"))
    for text in ("mail", "post(a@*)", "p*t", "send_mail"):
        assert decide(call, permitted("bypassPermissions", deny=(text,))).behavior == "deny"
        assert decide(call, permitted(allow=(text,))).behavior == "allow"
    for text in ("Mail", "mai", "ost"):
        assert decide(call, permitted(allow=(text,))).behavior == "ask"
    for text in ("MAIL", "Send_Mail(a@*)"):
        assert decide(call, permitted("bypassPermissions", deny=(text,))).behavior == "deny"


def test_covering_is_never_claimed_wrongly() -> None:
    """If one pattern covers another, each path that matches the second matches the first."""
    patterns = ["**", "*", "a", "a/*", "a/**", "**/b", "*/b", "a*", "a?", "a/**/b", "**/*", "a*/b*"]
    paths = ["a", "b", "ab", "a/b", "a/c", "a/c/b", "ab/bc", "x/b", "x/y/b", "ax", "a/b/c"]
    covered = 0
    for wide in patterns:
        for narrow in patterns:
            if path_covers(wide, narrow):
                covered += wide != narrow
                assert [p for p in paths if path_fits(narrow, p) and not path_fits(wide, p)] == []
    assert covered > 20
