"""Compound, nested, quoted and disguised commands: which of them a pattern allows or denies."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentobs.agent.permissions import decide
from agentobs.agent.permissions.globs import GAP, HOLE, may_fit
from agentobs.agent.permissions.rule_matcher import CallView, forbids
from agentobs.agent.permissions.shell import read_command

from .calls import permissions_for, rules, shell_call


def outcome(command: str, mode: Any = "default", **lists: Any) -> str:
    return decide(shell_call(command), permissions_for(mode, **lists)).behavior


@pytest.mark.parametrize(
    "command",
    [
        "git",
        "git status",
        "  git   status  ",
        "git status && git log --oneline | git hash-object --stdin; git diff",
        "git status\ngit log",
        "git status & git log",
        "git status \\\n  --short",
        "git log --format='%h; %s | `x` $(y) > z'",
        'git commit -m "two words; and more"',
        'git log "$HOME"',
        "git add *.py ~/x {a,b} $FILES",
        "git log 2>&1",
        "git log >/dev/null 2> /dev/null </dev/null",
        "git log # and so on; rm -rf /",
        "'git' st\\atus",
        "git log a#b",
    ],
)
def test_commands_that_a_pattern_allows(command: str) -> None:
    """`git *` allows one or several git commands with any arguments."""
    assert outcome(command, allow=("shell(git *)",)) == "allow"


NASTY = [
    "git status; rm -rf /",
    "git status;rm -rf /",
    "git log && x",
    "git log || x",
    "git log | sh",
    "git log |& sh",
    "git log & x",
    "git log\nx",
    "git log\r\nx",
    "git log\rx",
    "git log $(rm -rf /)",
    "git log $($(x))",
    'git log "$(x)"',
    "git log `x`",
    'git log "`x`"',
    "git log <(x)",
    "git log >(x)",
    "git log > ~/.bashrc",
    "git log >> f",
    "git log 2>f",
    "git log &> f",
    "git log >| f",
    "git log >& f",
    "git log <> f",
    "git log < f",
    "git log >&$F",
    "git log > /dev/nullx",
    "git log > /dev/null/../../etc/passwd",
    "git log <<EOF\n$(x)\nEOF",
    "git log <<< x",
    "(git log)",
    "{ git log; }",
    "git() { x; }",
    "git () { x; }; git log",
    "if git log; then git log; fi",
    "for x in git; do git log; done",
    "! git log",
    "time git log",
    "coproc git log",
    "[[ git ]]",
    "A=1 git log",
    "PATH=/tmp git log",
    "LD_PRELOAD=x.so git log",
    "git=x; git log",
    "git log ${x:-$(y)}",
    "git log ${x@P}",
    "git log ${!x}",
    "git log $[x]",
    "git log $((a[$(x)]))",
    "git log $'\\'; x; \\''",
    "git log 'x",
    'git log "x',
    "git log `x",
    "git log $(x",
    "git log \\",
    "git log \0; x",
    "git log \x1b[2K",
    "git log\u2028x",
    "git log\u00a0x",
    "git\u3000log",
    "git log \ud800",
    f"git log {HOLE}",
    "git$X log",
    "$GIT log",
    "$'git' log",
    "g?t log",
    "gi[t] log",
    "{git,x} log",
    "~/git log",
    "/tmp/git log",
    "./git log",
    "=git log",
    "\\git\\ log",
    "'git log'",
    '"git log" x',
    "git\\ log",
    "gitx",
    "GIT log",
    "xgit log",
    "\u0261it log",
    "env git log",
    "sudo git log",
    "command git log",
    "bash -c 'git log'",
    "find . -exec git log ;",
    "git log $\\\n(x)",
    'git log "$\\\n(x)"',
    "git log;\\\nx",
    "git log <\\\n(x)",
    "gi\\\nt log",
    "",
    " ",
    "\n",
    ";",
    "# git log",
    "git " + "a" * 20_000,
    "git " + "$(" * 500 + "x" + ")" * 500,
    "git " + "(" * 5_000,
    "git " + "`" * 4_001,
]


@pytest.mark.parametrize("command", NASTY, ids=lambda text: ascii(text[:40]))
def test_commands_that_a_pattern_does_not_allow(command: str) -> None:
    """A command that contains another command, writes a file, or cannot be parsed reliably needs approval; in the mode
    `dontAsk` it is denied.
    """
    assert outcome(command, allow=("shell(git *)",)) == "ask"
    assert outcome(command, "acceptEdits", allow=("shell(git *)",)) == "ask"
    assert outcome(command, "dontAsk", allow=("shell(git *)",)) == "deny"


def test_each_command_needs_its_rule() -> None:
    """A compound command is allowed only if a rule allows each of its commands."""
    lists = {"allow": ("shell(git *)", "shell(wc -l)")}
    assert outcome("git log | wc -l", **lists) == "allow"
    assert outcome("git log | wc -c", **lists) == "ask"


@pytest.mark.parametrize(
    ("pattern", "allowed", "needing_approval"),
    [
        ("git status", ["git status", "git  status"], ["git status -s", "git", "git 'status -s'"]),
        ("git * main", ["git push origin main", "git a main"], ["git main", "git push $X", "git push main x"]),
        ("npm run test*", ["npm run test", "npm run test:unit -- -x"], ["npm run tes", "npm run build"]),
        ("git commit -m 'two words'", ["git commit -m 'two words'", 'git commit -m "two words"'],
         ["git commit -m two words"]),
        ("echo '*'", [], ["echo x", "echo rm", "echo '*'"]),
        ("=echo '*'", ["echo '*'"], ["echo x", "echo *"]),
        ("=echo *", ["echo *"], ["echo x", "echo  *"]),
        ("ls > out.txt", ["ls > out.txt"], ["ls > out.txt2", "ls"]),
        ("find *", ["find . -name '*.py'"], ["find . -exec rm {} +", "find . -delete", "find $X", "find *"]),
        ("*", ["anything; at all $(x)"], []),
    ],
)  # fmt: skip
def test_patterns_are_compared_word_by_word(
    pattern: str, allowed: list[str], needing_approval: list[str]
) -> None:
    """A pattern is compared word by word: quotes make no difference, and a star in quotes is literal."""
    for command in allowed:
        assert outcome(command, allow=(f"shell({pattern})",)) == "allow", command
    for command in needing_approval:
        assert outcome(command, allow=(f"shell({pattern})",)) == "ask", command


DISGUISED = [
    "rm -rf /",
    "git log; rm -rf /",
    "git log && rm x",
    "x | rm x",
    "x\nrm x",
    "echo $(rm x)",
    'echo "$(rm x)"',
    "echo `rm x`",
    "echo $(echo `rm x`)",
    "cat <(rm x)",
    "(rm x)",
    "{ rm x; }",
    "f() { rm x; }; f",
    "if true; then rm x; fi",
    "while true; do rm x; done",
    "! rm x",
    "A=1 B=2 rm x",
    "A=1 if; rm x",
    "/bin/rm x",
    "../../bin/rm x",
    "RM x",
    "\\rm x",
    "'rm' x",
    'r"m" x',
    "r\\m x",
    "rm $X",
    "rm *",
    "rm",
    "rm x > /dev/null",
    "> f rm x",
    "2>f rm x",
    "sudo rm x",
    "sudo -u root rm x",
    "sudo env A=1 nice -n 5 rm x",
    "env -i rm x",
    "timeout 5 rm x",
    "nohup rm x &",
    "xargs -0 rm",
    "find . -name x -exec rm {} +",
    "command rm x",
    "exec rm x",
    "bash -c 'rm x'",
    'sh -lc "cd /; rm x"',
    "eval 'rm x'",
    "eval rm x",
    "bash -c \"bash -c 'rm x'\"",
    "ssh host 'rm x'",
    "docker run alpine rm x",
    "echo ${x:-$(rm x)}",
    "git log 'unclosed\nrm x'; rm x",
    "fakeroot rm x",
    "setuidgid u rm x",
    "chronic rm x",
    "sshpass -p x ssh host rm x",
    "tini -- rm x",
    "numactl -N 0 rm x",
    "cgexec -g cpu:a rm x",
    "ld.so /bin/rm x",
    "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
    "/lib/ld-musl-x86_64.so.1 rm x",
    "nix-shell --run 'rm x'",
    "ls | entr rm x",
    "hyperfine 'rm x'",
    "PAGER='rm x' git log",
    "GIT_SSH_COMMAND='rm x' git fetch",
    "LESSOPEN='|rm x' less a",
    "alias a=rm; a x",
    "alias a='rm x'",
]


@pytest.mark.parametrize("command", DISGUISED, ids=lambda text: ascii(text[:40]))
@pytest.mark.parametrize("mode", ["default", "bypassPermissions"])
def test_a_deny_rule_finds_nested_commands(command: str, mode: Any) -> None:
    """A rule that denies `rm *` finds rm after operators, in nested commands, in quotes, with a folder, and as an
    argument of a command that runs it.
    """
    assert outcome(command, mode, deny=("shell(rm *)",), allow=("shell",)) == "deny"
    assert outcome(command, mode, ask=("shell(rm *)",), allow=("shell",)) == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "$X -rf /",
        "r$X -rf /",
        "{rm,-rf,/}",
        "r? -rf /",
        "$(echo rm) -rf /",
        "$E rm x",
        "`x` rm",
        "echo 'rm",
        "bash <<EOF\nx\nEOF",
        "$'\\x72m' x",
        "echo $\\\n(x)",
        "sudo $X",
        "x \0",
        "x" * 20_000,
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_a_possible_match_of_a_deny_rule_needs_approval(command: str) -> None:
    """If a command is only known at run time, a deny rule requires approval in every mode except `dontAsk`, which
    denies the call.
    """
    assert outcome(command, "bypassPermissions", deny=("shell(rm *)",)) == "ask"
    assert outcome(command, allow=("shell",), deny=("shell(rm *)",)) == "ask"
    assert outcome(command, "dontAsk", allow=("shell",), deny=("shell(rm *)",)) == "deny"


UNSEEN = [
    "printf 'rm x' | sh",
    "printf 'rm x' | /bin/bash",
    "printf 'rm x' | bash -",
    "printf 'rm x' | bash -s a",
    "printf 'rm x' | bash -eux",
    "printf 'rm x' | bash -eo pipefail",
    "printf 'rm x' | bash -o pipefail --norc",
    "printf 'rm x' | sh /dev/stdin",
    "printf 'rm x' | sh /proc/self/fd/0",
    "printf 'rm x' | . /dev/stdin",
    "printf 'rm x' | source /dev/fd/0",
    "printf 'rm x' | sudo -u bob sh",
    "printf 'rm x' | sudo -i",
    "printf 'rm x' | sudo env A=1 nice -n 5 dash",
    "printf 'rm x' | timeout 5m sh",
    "printf 'rm x' | flock /tmp/l sh",
    "printf 'rm x' | chroot /",
    "printf 'rm x' | unshare -r",
    "printf 'rm x' | fakeroot",
    "printf 'rm x' | su",
    "printf 'rm x' | su - bob",
    "printf 'rm x' | script out.txt",
    "printf 'rm x' | ssh -p 22 host",
    "printf 'rm x' | ssh host sh",
    "printf 'rm x' | docker exec -i box sh",
    "printf 'rm x' | kubectl exec -i box -- sh",
    "printf 'rm x' | xargs -n 2 env",
    "printf 'rm x' | xargs sh -c",
    "printf 'rm x' | xargs -I{} sh -c '{}'",
    "printf 'rm x' | xargs -I X sh -c X",
    "printf 'rm x' | parallel",
    "printf 'rm x' | at now",
    "printf 'rm x' | crontab -",
    "printf 'rm x' | eval sh",
    "find . -exec sh ;",
    "if true; then sh; fi",
    "BASH_ENV=x bash -c y",
    "BASH_ENV=x git log",
    "A=1 BASH_ENV=x bash -c y",
    "env BASH_ENV=x bash -c y",
    "export BASH_ENV=x; bash -c y",
    "ENV=x sh -ic y",
    "LD_PRELOAD=./x.so ls",
    "PS4='$(rm y)' bash -xc y",
    "hash -p /bin/rm ls; ls x",
    "mapfile -C rm a",
]


@pytest.mark.parametrize("command", UNSEEN)
def test_programs_that_read_commands_need_approval(command: str) -> None:
    """If a program reads its commands from an input, so that no word contains them, every deny rule requires
    approval.
    """
    assert outcome(command, "bypassPermissions", deny=("shell(reboot *)",)) == "ask"
    assert outcome(command, "dontAsk", allow=("shell",), deny=("shell(reboot *)",)) == "deny"
    assert (
        outcome("PROMPT_COMMAND='rm x' bash", "bypassPermissions", deny=("shell(rm *)",)) != "allow"
    )


@pytest.mark.parametrize(
    "command",
    [
        "git log",
        "grep rm x",
        "grep -rn bash .",
        "which sh bash",
        "sudo apt install -y zsh",
        "sudo -E pip install bash",
        "man bash",
        "docker run --rm alpine ls",
        "docker exec box grep bash x",
        "docker build .",
        "bash build.sh",
        "bash -x ./build.sh arg",
        "sh -c 'ls; echo x'",
        "bash -lc 'make test'",
        "bash -euo pipefail -c 'make'",
        "bash --version",
        "sudo -l",
        "sudo -n true",
        "env",
        "env A=1 make",
        "ENV=prod npm start",
        "export ENV=prod PATH=/x:$PATH",
        "PYTHONPATH=. python x.py",
        "BASH_ENV= bash build.sh",
        "PS4='+ ' bash -x build.sh",
        "EDITOR=vim git commit",
        "PAGER=cat git log",
        "find . -name bash",
        "find . -name '*.py' | xargs grep -l python",
        "find . | xargs",
        "ls | xargs -n 1 sudo ls",
        "find . -exec sh build.sh ;",
        "ssh host ls",
        "ssh -N -L 1:a:2 host",
        "crontab -l",
        "at -l",
        "source venv/bin/activate",
        ". ./env.sh",
        "alias ll='ls -l'",
        "timeout 5 make",
        "nice -n 5 make -j 4",
        "npx eslint .",
        "npm run bash",
        "python",
        "hash -r",
        "cat x | python -c 'import sys'",
        "tmux ls",
        "time make",
    ],
)
def test_ordinary_commands_need_no_approval(command: str) -> None:
    """A rule that denies one program does not affect commands that only mention a shell, or pass it a script."""
    assert outcome(command, "bypassPermissions", deny=("shell(rm *)", "shell(reboot *)")) == "allow"


@pytest.mark.parametrize(
    "command",
    ["echo rm", "git rm x", "echo 'rm x'", "echo $HOME; ls *", "for f in *; do cat $f; done", "x > rm", "rmdir x",
     "echo $(git log) > out", "npm run rm", "docker rm x"],
)  # fmt: skip
def test_a_deny_rule_does_not_match_other_commands(command: str) -> None:
    """A deny rule does not match a command that contains the denied word only as an argument."""
    assert outcome(command, "bypassPermissions", deny=("shell(rm *)",)) == "allow"


def test_a_variable_that_may_be_empty() -> None:
    """A variable that may be empty neither hides a command from a deny rule nor extends an allow rule."""
    [deny] = rules("deny", "shell(git push)")
    assert forbids(deny, CallView.of(shell_call("git $E push"))) == "doubt"
    assert outcome("rm $E -i", allow=("shell(rm * -i)",)) == "ask"


@pytest.mark.slow
@pytest.mark.parametrize(
    "fragment",
    ["$(", "`", "(", "'", '"', "sudo ", "sudo 'a b' ", "a;", "$x", "$x ", "<<", "{", "* ", "a=1 ", "\\\n", "a.b "],
)  # fmt: skip
def test_very_long_commands_are_parsed_quickly(fragment: str) -> None:
    """Even a very long command is decided quickly; a test that hangs is killed."""
    command = (fragment * 16_384)[:16_384]
    lists: dict[str, Any] = {
        "deny": ("shell(rm *)", "shell(*a*b*c*d*e*f*)"),
        "blocked": ("*.x.com",),
    }
    assert outcome(command, "bypassPermissions", **lists) in ("allow", "ask")


HARNESS = """
command_not_found_handle() { printf '%s\\0' "$@" $'\\1'; (( STATUS == 0 )); }
enable -n $(enable | while read -r _ n; do case $n in printf|enable) ;; *) printf '%s ' "$n";; esac; done)
enable -n enable
"""
"""A script that makes bash print each command instead of running it."""

PIECES = [
    "a", "b", "cc", " ", " ", " ", " ", ";", "&&", "|", "||", ">", "<", "2>&1", ">/dev/null", "1", "$V", "$E", "${V}",
    "'", '"', "\\", "#", "\n", "~", "*", "?", "[", "]", "{a,b}", "{", "}", "!", "=", "A=1", ",", "--x", "\t", "'a b'",
    '"$V"', "$", "\\\n", "é", "<&-",
]  # fmt: skip


@pytest.mark.slow
def test_bash_runs_only_the_parsed_commands(tmp_path: Path) -> None:
    """If the parser has no doubt about a random command, bash runs only commands that the parser found."""
    bash = shutil.which("bash")
    assert bash is not None
    chance, ran = random.Random(3), 0
    for _ in range(700):
        command = "".join(chance.choices(PIECES, k=chance.randint(2, 12)))
        reading = read_command(command)
        if reading.doubt is not None:
            continue
        known = [form.known for part in reading.parts for form in (part.form, *part.hidden)]
        script = HARNESS.replace("STATUS", str(chance.randint(0, 1))) + command + "\n"
        output = subprocess.run(
            [bash, "--norc", "--noprofile", "-c", script],
            env={"PATH": "/nonexistent", "V": "v w", "E": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            cwd=tmp_path,
        ).stdout.decode()
        for argv in filter(None, output.split("\1\0")):
            words = [re.sub("[ \t\n]", GAP, word) for word in argv.split("\0")[:-1]]
            text = " ".join(words).replace("*", "S")
            seen = [_absorb_blanks(each).replace("*", "S") for each in known]
            assert any(may_fit(text, each) for each in seen), (command, words, known)
            ran += 1
    assert ran > 50


def _absorb_blanks(known: str) -> str:
    """Let each word that consists only of holes (unknown values) absorb an adjacent blank, because the word may be
    empty.
    """
    words = known.split(" ")
    text = words[0]
    for before, word in itertools.pairwise(words):
        is_absorbed = {HOLE} in (set(word), set(before))
        text += word if is_absorbed else " " + word
    return text
