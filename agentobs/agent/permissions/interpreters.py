"""Commands that execute their arguments or input, and a check for allow rules that therefore permit any program.

For example, the rule `shell(python *)` looks narrow, but it allows any Python program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

SHELLS = frozenset(
    {"ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "pwsh", "sh", "tcsh", "zsh"}
)

LANGUAGES = frozenset(
    {"awk", "bun", "deno", "ed", "elixir", "emacs", "erl", "expect", "gawk", "gdb", "ghci", "groovy",
     "guile", "ipython", "irb", "jshell", "julia", "lua", "luajit", "mawk", "nawk", "node", "nodejs",
     "ocaml", "osascript", "perl", "php", "pypy", "python", "pythonw", "racket", "r", "rscript", "ruby",
     "scala", "swift", "tclsh", "tsx", "ts-node", "vi", "vim", "nvim", "ex"}
)  # fmt: skip
"""Interpreters that run a program from their arguments or their input."""

EVALUATORS = frozenset({".", "alias", "at", "batch", "crontab", "eval", "source", "trap"})
"""Commands that run their arguments, or a file, as shell commands."""

WRAPPERS = frozenset(
    {"arch", "authbind", "builtin", "busybox", "bwrap", "caffeinate", "capsh", "catchsegv", "cgexec", "choom",
     "chpst", "chronic", "chroot", "chrt", "command", "coproc", "cpulimit", "daemon", "daemonize", "dbus-launch",
     "dbus-run-session", "direnv", "doas", "dumb-init", "eatmydata", "entr", "env", "envdir", "envuidgid", "exec",
     "fakechroot", "fakeroot", "faketime", "firejail", "flock", "function", "gosu", "gtime", "hyperfine", "ifne",
     "ionice", "ld.so", "ltrace", "mispipe", "nice", "nix-shell", "nocorrect", "noglob", "nohup", "nsenter", "numactl",
     "parallel", "pee", "pkexec", "prlimit", "proot", "proxychains", "rlwrap", "runuser", "s6-envdir",
     "s6-setuidgid", "screen", "script", "sem", "setarch", "setlock", "setpriv", "setsid", "setuidgid", "softlimit",
     "sshpass", "start-stop-daemon", "stdbuf", "strace", "su", "su-exec", "sudo", "systemd-inhibit",
     "systemd-nspawn", "systemd-run", "taskset", "time", "timeout", "tini", "tmux", "torify", "torsocks", "toybox",
     "trickle", "ts", "tsocks", "unbuffer", "unshare", "valgrind", "watch", "watchexec", "with-contenv", "xargs",
     "xvfb-run"}
)  # fmt: skip
"""Commands that run another command, given in their arguments."""

PACKAGE_RUNNERS = frozenset({"bunx", "npx", "pnpx", "uvx"})
"""Commands that download a package and run it."""

REMOTE = frozenset({"mosh", "rsh", "ssh", "telnet"})
"""Commands that run commands on another machine."""

SEARCHERS = frozenset({"fd", "find", "rg"})
"""Search commands that have an option to run a command for each match."""

SUBCOMMANDS = frozenset(
    {("bundle", "exec"), ("conda", "run"), ("docker", "exec"), ("docker", "run"), ("go", "run"),
     ("hatch", "run"), ("kubectl", "exec"), ("kubectl", "run"), ("mise", "exec"), ("nix", "run"),
     ("nix", "shell"), ("npm", "exec"), ("npm", "x"), ("pdm", "run"), ("pipenv", "run"),
     ("pipx", "run"), ("pixi", "run"), ("pnpm", "dlx"), ("pnpm", "exec"), ("podman", "exec"),
     ("podman", "run"), ("poetry", "run"), ("rye", "run"), ("uv", "run"), ("uv", "tool"),
     ("yarn", "dlx"), ("yarn", "exec")}
)  # fmt: skip
"""Commands with a subcommand that runs its arguments, as pairs of command and subcommand."""

_SUBCOMMAND_HEADS = frozenset(head for head, _ in SUBCOMMANDS)
_INTERPRETERS = SHELLS | LANGUAGES | EVALUATORS | REMOTE
RUNNERS = _INTERPRETERS | WRAPPERS | PACKAGE_RUNNERS | SEARCHERS | _SUBCOMMAND_HEADS

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
"""The start of a word that sets a variable for the command after it."""

_CODE_OPTION = re.compile(
    r"-[A-Za-z]*[ceEprs]|--(?:command|eval|exec|print|run|init-command)\b|-\Z|--?i"
)
"""An option that is followed by code, or that makes the program read code from its input. It also matches some similar
options that do neither.
"""

_LOADER = re.compile(r"ld(?:-[a-z][\w-]*)?(?:-[\d.]+)?\.so[\d.]*\Z")
"""The dynamic loader, such as `ld-linux-x86-64.so.2`, which runs the program in its arguments."""


def program(word: str) -> str:
    """Return the bare name of a command: without directory, version and capitals.

    For example, `/bin/python3.11` becomes `python`.
    """
    name = PurePosixPath(word).name.lower().removesuffix(".exe")
    if _LOADER.match(name):
        return "ld.so"
    return re.sub(r"(?<=[a-z])[-\d.]+\Z", "", name) or word


def command_start(name: str, words: Sequence[str]) -> int | None:
    """Return the index of the first word that may be a command run by the program `name`.

    Returns None if this program does not run other commands.
    """
    if name not in _SUBCOMMAND_HEADS:
        return 0 if name in RUNNERS else None
    starts = (index + 1 for index, word in enumerate(words) if (name, word) in SUBCOMMANDS)
    return next(starts, None)


def is_wide(pattern: str | None) -> bool:
    """Return whether an allow rule with this pattern would let a shell tool run any program."""
    if pattern is None:
        return True
    if pattern.startswith("="):
        return False
    return _is_wide_command([word for word in pattern.split() if not ASSIGNMENT.match(word)])


def _is_wide_command(words: list[str]) -> bool:
    if not words:
        return True
    head, rest = words[0], words[1:]
    if "*" in head:
        return _may_name_a_runner(head)
    name = program(head)
    if name in EVALUATORS or name in REMOTE:
        return not rest or _has_star(rest)
    if name in SHELLS or name in LANGUAGES:
        return _leaves_program_open(rest)
    if name in PACKAGE_RUNNERS:
        return _leaves_command_open(rest)
    if name in WRAPPERS:
        return _leaves_command_open(rest) or any(
            program(word) in _INTERPRETERS and _is_wide_command(rest[index:])
            for index, word in enumerate(rest)
        )
    if name in _SUBCOMMAND_HEADS:
        subcommand_index = next(
            (index for index, word in enumerate(rest) if not word.startswith("-")), None
        )
        if subcommand_index is None:
            return _has_star(rest)
        if "*" in rest[subcommand_index]:
            return True
        return (name, rest[subcommand_index]) in SUBCOMMANDS and _is_wide_command(
            ["env", *rest[subcommand_index + 1 :]]
        )
    return False


def _may_name_a_runner(head: str) -> bool:
    start = program(head.partition("*")[0]) if not head.startswith("*") else ""
    return any(name.startswith(start) for name in RUNNERS - SEARCHERS)


def _leaves_command_open(words: list[str]) -> bool:
    """Return whether a pattern for a wrapper allows any command.

    `words` are the words after the wrapper. AgentOptions, numbers and durations before the command are skipped.
    """
    for index, word in enumerate(words):
        if re.match(r"-|\d", word) and "*" not in word:
            continue
        if index and words[index - 1].startswith("-") and words[index + 1 : index + 2] == ["*"]:
            return True  # the word may be the value of the option
        return "*" in word or _is_wide_command(words[index:])
    return True


def _leaves_program_open(words: list[str]) -> bool:
    """Return whether a pattern for an interpreter allows any program; `words` are the words after the interpreter."""
    for index, word in enumerate(words):
        if word == "-m":
            return index + 1 == len(words) or "*" in words[index + 1]
        if word.startswith("-"):
            if _CODE_OPTION.match(word):
                return _has_star(words[index:]) or index + 1 == len(words)
            if "*" in word:
                return True
            continue
        return "*" in word
    return not words


def _has_star(words: list[str]) -> bool:
    return any("*" in word for word in words)
