"""Detect commands that may run although no word names them, because they come from input or variables.

For example, `printf 'rm x' | sh` runs `rm`, which is not a word of any command in this text. A command that reads shell
commands in this way is therefore in doubt. A command that runs an interpreter of another language, such as Python, is
not in doubt for this reason, because the words of such a command never show what
the program does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentobs.agent.permissions.interpreters import (
    ASSIGNMENT,
    EVALUATORS,
    LANGUAGES,
    RUNNERS,
    SEARCHERS,
    SHELLS,
    command_start,
    program,
)

WORDS_MAX = 64
"""The maximum number of words of a command that are searched for another command. Our choice."""

_OPERANDS = {"cgexec": 0, "chroot": 1, "docker": 1, "envdir": 1, "envuidgid": 1, "faketime": 1, "flock": 1,
             "kubectl": 1, "mosh": 1, "podman": 1, "rsh": 1, "s6-envdir": 1, "s6-setuidgid": 1, "setlock": 1,
             "setuidgid": 1, "ssh": 1, "taskset": 1}  # fmt: skip
"""The number of operands between the options of a wrapper and the command that it runs."""

_OPEN_SHELLS = frozenset(
    {"chroot", "fakechroot", "fakeroot", "firejail", "nsenter", "proot", "rsh", "ssh", "unshare"}
)
"""Programs that start a shell if they get no command."""

_EXECUTING_OPTION = re.compile(r"-(?:exec|ok)(?:dir)?\Z|-[xX]\Z|--exec(?:-batch)?\Z")
_AMOUNT = re.compile(r"0x[0-9a-fA-F]+\Z|[0-9.,]+[a-zA-Z%]?\Z")
_INPUT_FILE = re.compile(r"-\Z|/dev/(?:stdin|tty|fd/)|/proc/[^/]+/fd/")
_OPTION_WITH_VALUE = re.compile(r"[-+][A-Za-z]*[oO]\Z|--(?:rcfile|init-file)\Z")
_CODE_OPTION = re.compile(r"-[A-Za-z]*c|--?[cC]ommand\b")

_DEFERRING_BUILTINS = {
    "bind": "-x",
    "compgen": "-[CF]",
    "complete": "-[CF]",
    "enable": "-f",
    "hash": "-p",
    "mapfile": "-C",
    "readarray": "-C",
}
"""Shell builtins that, with this option, run a command later or under another name."""

_STARTUP_VARIABLE = re.compile(
    r"(?:BASH_ENV|BASH_FUNC_\w*|PROMPT_COMMAND|ZDOTDIR|LD_PRELOAD|LD_AUDIT|DYLD_INSERT_LIBRARIES)"
    r"(?:\[[^\]]*\])?\+?=."
)
"""Variables that make a shell, or every program, run other code when it starts."""
_PROMPT_VARIABLE = re.compile(r"PS[0-4]\+?=.*[$`]", re.DOTALL)
_DECLARERS = frozenset({"declare", "export", "local", "readonly", "typeset"})
_COMMAND_VARIABLE = re.compile(
    r"(?:\w*_COMMAND|\w*EDITOR|VISUAL|\w*PAGER|\w*_ASKPASS|BROWSER|LESSOPEN|LESSCLOSE|RSYNC_RSH|GIT_EXTERNAL_DIFF)"
    r"\+?=\|?"
)


def hidden_command_reason(words: Sequence[str]) -> str | None:
    """Return why a command may run commands that its words do not name; None if nothing indicates hidden commands.

    Args:
        words: the unquoted words of the command, including the variables that are set before it.
    """
    visited: set[int] = set()
    pending = [0]
    while pending:
        index = pending.pop()
        if index in visited or index >= min(len(words), WORDS_MAX):
            continue
        visited.add(index)
        word, rest = words[index], words[index + 1 :]
        if ASSIGNMENT.match(word):
            if _runs_at_startup(word, rest):
                return f"it sets {word.partition('=')[0]}, which makes programs run another command first"
            pending.append(index + 1)
            continue
        name = program(word)
        if name in _DECLARERS and any(_runs_at_startup(each, ()) for each in rest):
            return "it sets a variable that makes programs run another command first"
        if name in _DEFERRING_BUILTINS and any(
            re.match(_DEFERRING_BUILTINS[name], each) for each in rest
        ):
            return f"{name} names commands that run later"
        if _reads_commands(name, rest):
            return f"{name} reads commands from its input here"
        pending += [index + 1 + start for start in _command_starts(name, rest)]
    return None


def commands_in_variable(word: str) -> str:
    """Return the command that a word such as `PAGER=less -R` passes to a program; empty if it passes none."""
    match = _COMMAND_VARIABLE.match(word)
    return word[match.end() :] if match else ""


def _runs_at_startup(word: str, rest: Sequence[str]) -> bool:
    if _STARTUP_VARIABLE.match(word) or _PROMPT_VARIABLE.match(word):
        return True
    # Only shells run the file in `ENV`; other programs often use this name for other purposes.
    return word.startswith("ENV=") and any(program(each) in SHELLS for each in rest)


def _command_starts(name: str, words: Sequence[str]) -> Iterator[int]:
    """Yield the indexes, in the words after a program, at which the command that it runs may start."""
    start = command_start(name, words)
    if start is None or name in SHELLS or name in LANGUAGES:
        return
    if name in SEARCHERS:
        yield from (index + 1 for index, word in enumerate(words) if _EXECUTING_OPTION.match(word))
        return
    if name in EVALUATORS and name != "eval":
        return
    operands = _OPERANDS.get(name, 0)
    for index in range(start, len(words)):
        word, before = words[index], words[index - 1] if index > start else ""
        if word.startswith("-") or _AMOUNT.match(word):
            continue
        yield index
        if ASSIGNMENT.match(word):
            return
        if _may_take_value(before):
            continue
        if not operands:
            return
        operands -= 1


def _may_take_value(option: str) -> bool:
    return option.startswith("-") and option not in ("--", "-i", "-s") and "=" not in option


def _reads_commands(name: str, words: Sequence[str]) -> bool:
    """Return whether a program reads shell commands from its input."""
    if name in SHELLS:
        return _shell_reads_commands(words)
    if name in (".", "source"):
        return bool(words) and _INPUT_FILE.match(words[0]) is not None
    if name in ("at", "batch"):
        return not any(re.match(r"-[a-zA-Z]*[cdflrV]", word) for word in words)
    if name == "crontab":
        return "-" in words
    if name in ("su", "runuser", "script"):
        has_command = any(_CODE_OPTION.match(word) for word in words)
        return not has_command and not (name == "runuser" and "-u" in words)
    if name in ("xargs", "parallel"):
        return _executes_input(name, words)
    if name in ("sudo", "doas"):
        opens_shell = any(re.match(r"-[a-zA-Z]*[is]\Z|--(?:login|shell)\Z", word) for word in words)
        return opens_shell and not _certain_starts(name, words)
    if name in ("ssh", "rsh") and any(re.match(r"-[a-zA-Z]*[NOVW]", word) for word in words):
        return False
    return name in _OPEN_SHELLS and len(_certain_starts(name, words)) <= _OPERANDS.get(name, 0)


def _certain_starts(name: str, words: Sequence[str]) -> list[int]:
    """Return the indexes of words that are certainly a command or an operand, not the value of an option."""
    return [
        index
        for index in _command_starts(name, words)
        if not index or not _may_take_value(words[index - 1])
    ]


def _shell_reads_commands(words: Sequence[str]) -> bool:
    """Return whether a shell reads commands from its input, because it gets neither code nor a script file."""
    index = 0
    while index < len(words) and words[index].startswith(("-", "+")):
        word = words[index]
        if word in ("--version", "--help") or _CODE_OPTION.match(word):
            return False
        if re.match(r"-[a-z]*s[a-z]*\Z", word):
            return True
        if word in ("-", "--"):
            index += 1
            break
        index += 2 if _OPTION_WITH_VALUE.match(word) else 1
    return index >= len(words) or _INPUT_FILE.match(words[index]) is not None


def _executes_input(name: str, words: Sequence[str]) -> bool:
    """Return whether `xargs` or `parallel` passes its input to a program that executes it."""
    starts = list(_command_starts(name, words))
    if not starts:
        return name == "parallel"
    token = next((words[index + 1] for index, word in enumerate(words[:-1]) if word == "-I"), "{}")
    for index in starts:
        if program(words[index]) not in RUNNERS - SEARCHERS:
            continue
        following = words[index + 1 :]
        if all(word.startswith("-") for word in following) or following[-1].startswith(token):
            return True
    return False
