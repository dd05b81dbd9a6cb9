"""Commands that execute their arguments, and allow rules that therefore permit any program.

`shell(python *)` looks like a narrow permission, but it allows every program that can be written.
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
"""They run a program from their arguments or their input."""

EVALUATORS = frozenset({".", "alias", "at", "batch", "crontab", "eval", "source", "trap"})
"""They run their arguments, or a file, as shell commands."""

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
"""They run the command in their arguments."""

PACKAGERUNNERS = frozenset({"bunx", "npx", "pnpx", "uvx"})
"""They download a package and run it."""

REMOTE = frozenset({"mosh", "rsh", "ssh", "telnet"})
"""They run commands on another machine."""

SEARCHERS = frozenset({"fd", "find", "rg"})
"""They can run a command for each match, if an option asks for it."""

SUBCOMMANDS = frozenset(
    {("bundle", "exec"), ("conda", "run"), ("docker", "exec"), ("docker", "run"), ("go", "run"),
     ("hatch", "run"), ("kubectl", "exec"), ("kubectl", "run"), ("mise", "exec"), ("nix", "run"),
     ("nix", "shell"), ("npm", "exec"), ("npm", "x"), ("pdm", "run"), ("pipenv", "run"),
     ("pipx", "run"), ("pixi", "run"), ("pnpm", "dlx"), ("pnpm", "exec"), ("podman", "exec"),
     ("podman", "run"), ("poetry", "run"), ("rye", "run"), ("uv", "run"), ("uv", "tool"),
     ("yarn", "dlx"), ("yarn", "exec")}
)  # fmt: skip
"""Commands with one subcommand that runs its arguments."""

_SUBCOMMAND_HEADS = frozenset(head for head, _ in SUBCOMMANDS)
_INTERPRETERS = SHELLS | LANGUAGES | EVALUATORS | REMOTE
RUNNERS = _INTERPRETERS | WRAPPERS | PACKAGERUNNERS | SEARCHERS | _SUBCOMMAND_HEADS

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
"""The start of a word that sets a variable before a command."""

_CODE = re.compile(r"-[A-Za-z]*[ceEprs]|--(?:command|eval|exec|print|run|init-command)\b|-\Z|--?i")
"""An option that is followed by code, or that makes the program read code from its input. Also
matches some options that only look similar.
"""


_LOADER = re.compile(r"ld(?:-[a-z][\w-]*)?(?:-[\d.]+)?\.so[\d.]*\Z")
"""The dynamic loader, such as `ld-linux-x86-64.so.2`, which runs the program that it is given."""


def program(word: str) -> str:
    """Return a command's bare name: no folder, version or capitals (`/bin/python3.11` becomes
    `python`).
    """
    name = PurePosixPath(word).name.lower().removesuffix(".exe")
    if _LOADER.match(name):
        return "ld.so"
    return re.sub(r"(?<=[a-z])[-\d.]+\Z", "", name) or word


def runs_from(name: str, words: Sequence[str]) -> int | None:
    """Return the index of the first word that may be a command run by `name`; None if it runs no
    others.
    """
    if name not in _SUBCOMMAND_HEADS:
        return 0 if name in RUNNERS else None
    parts = (at + 1 for at, word in enumerate(words) if (name, word) in SUBCOMMANDS)
    return next(parts, None)


def is_wide(pattern: str | None) -> bool:
    """Return whether an allow rule with this pattern lets a shell tool run any program."""
    if pattern is None:
        return True
    if pattern.startswith("="):
        return False
    return _wide([word for word in pattern.split() if not ASSIGNMENT.match(word)])


def _wide(words: list[str]) -> bool:
    if not words:
        return True
    head, rest = words[0], words[1:]
    if "*" in head:
        return _may_name_a_runner(head)
    name = program(head)
    if name in EVALUATORS or name in REMOTE:
        return not rest or _starred(rest)
    if name in SHELLS or name in LANGUAGES:
        return _open_program(rest)
    if name in PACKAGERUNNERS:
        return _wide_behind(rest)
    if name in WRAPPERS:
        return _wide_behind(rest) or any(
            program(word) in _INTERPRETERS and _wide(rest[at:]) for at, word in enumerate(rest)
        )
    if name in _SUBCOMMAND_HEADS:
        after = next((at for at, word in enumerate(rest) if not word.startswith("-")), None)
        if after is None:
            return _starred(rest)
        if "*" in rest[after]:
            return True
        return (name, rest[after]) in SUBCOMMANDS and _wide(["env", *rest[after + 1 :]])
    return False


def _may_name_a_runner(head: str) -> bool:
    start = program(head.partition("*")[0]) if not head.startswith("*") else ""
    return any(name.startswith(start) for name in RUNNERS - SEARCHERS)


def _wide_behind(words: list[str]) -> bool:
    """Return whether the command that a wrapper runs is left open; skips options, numbers and
    durations.
    """
    for at, word in enumerate(words):
        if re.match(r"-|\d", word) and "*" not in word:
            continue
        if at and words[at - 1].startswith("-") and words[at + 1 : at + 2] == ["*"]:
            return True  # the word may be the value of the option
        return "*" in word or _wide(words[at:])
    return True


def _open_program(words: list[str]) -> bool:
    """Return whether the program that an interpreter runs is left open."""
    for at, word in enumerate(words):
        if word == "-m":
            return at + 1 == len(words) or "*" in words[at + 1]
        if word.startswith("-"):
            if _CODE.match(word):
                return _starred(words[at:]) or at + 1 == len(words)
            if "*" in word:
                return True
            continue
        return "*" in word
    return not words


def _starred(words: list[str]) -> bool:
    return any("*" in word for word in words)
