"""Detect commands that run although no word names them, because they come from input or variables.

`printf 'rm x' | sh` runs `rm`, which a parser of words cannot see. A program that reads shell
commands in this way is therefore in doubt. An interpreter of another language is not: its program is not known from its
words either.
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
    program,
    runs_from,
)

WORDS_MAX = 64
"""How many words of a command are searched for a further command. Our choice."""

_OPERANDS = {"cgexec": 0, "chroot": 1, "docker": 1, "envdir": 1, "envuidgid": 1, "faketime": 1, "flock": 1,
             "kubectl": 1, "mosh": 1, "podman": 1, "rsh": 1, "s6-envdir": 1, "s6-setuidgid": 1, "setlock": 1,
             "setuidgid": 1, "ssh": 1, "taskset": 1}  # fmt: skip
"""How many operands stand between a wrapper's options and the command that it runs."""

_OPEN_SHELLS = frozenset(
    {"chroot", "fakechroot", "fakeroot", "firejail", "nsenter", "proot", "rsh", "ssh", "unshare"}
)
"""Programs that start a shell if no command is named."""

_EXECUTING = re.compile(r"-(?:exec|ok)(?:dir)?\Z|-[xX]\Z|--exec(?:-batch)?\Z")
_AMOUNT = re.compile(r"0x[0-9a-fA-F]+\Z|[0-9.,]+[a-zA-Z%]?\Z")
_INPUT = re.compile(r"-\Z|/dev/(?:stdin|tty|fd/)|/proc/[^/]+/fd/")
_VALUED = re.compile(r"[-+][A-Za-z]*[oO]\Z|--(?:rcfile|init-file)\Z")
_CODE = re.compile(r"-[A-Za-z]*c|--?[cC]ommand\b")

_LATER = {"bind": "-x", "compgen": "-[CF]", "complete": "-[CF]", "enable": "-f", "hash": "-p", "mapfile": "-C",
          "readarray": "-C"}  # fmt: skip
"""Shell builtins that, with an option, run something later or under another name."""

_LOADED = re.compile(r"(?:BASH_ENV|BASH_FUNC_\w*|PROMPT_COMMAND|ZDOTDIR|LD_PRELOAD|LD_AUDIT|DYLD_INSERT_LIBRARIES)"
                     r"(?:\[[^\]]*\])?\+?=.")  # fmt: skip
"""Variables that make a shell, or every program, run something first."""
_PROMPT = re.compile(r"PS[0-4]\+?=.*[$`]", re.DOTALL)
_DECLARERS = frozenset({"declare", "export", "local", "readonly", "typeset"})
_COMMAND_VARIABLE = re.compile(
    r"(?:\w*_COMMAND|\w*EDITOR|VISUAL|\w*PAGER|\w*_ASKPASS|BROWSER|LESSOPEN|LESSCLOSE|RSYNC_RSH|GIT_EXTERNAL_DIFF)"
    r"\+?=\|?"
)


def unseen(words: Sequence[str]) -> str | None:
    """Return why a command may run others that its words do not name; None if there is no sign of it.

    Args:
        words: its unquoted words, including the variables that are set before it.
    """
    looked: set[int] = set()
    waiting = [0]
    while waiting:
        at = waiting.pop()
        if at in looked or at >= min(len(words), WORDS_MAX):
            continue
        looked.add(at)
        word, rest = words[at], words[at + 1 :]
        if ASSIGNMENT.match(word):
            if _is_loaded(word, rest):
                return f"it sets {word.partition('=')[0]}, with which programs run something first"
            waiting.append(at + 1)
            continue
        name = program(word)
        if name in _DECLARERS and any(_is_loaded(each, ()) for each in rest):
            return "it sets a variable with which programs run something first"
        if name in _LATER and any(re.match(_LATER[name], each) for each in rest):
            return f"{name} names commands that run later"
        if _reads(name, rest):
            return f"{name} reads commands from its input here"
        waiting += [at + 1 + head for head in _heads(name, rest)]
    return None


def commands_in_variable(word: str) -> str:
    """Return the commands that a word such as `PAGER=less -R` passes to a program; empty if it sets
    none.
    """
    found = _COMMAND_VARIABLE.match(word)
    return word[found.end() :] if found else ""


def _is_loaded(word: str, rest: Sequence[str]) -> bool:
    if _LOADED.match(word) or _PROMPT.match(word):
        return True
    # Only shells read `ENV`, and the name is common for other purposes.
    return word.startswith("ENV=") and any(program(each) in SHELLS for each in rest)


def _heads(name: str, words: Sequence[str]) -> Iterator[int]:
    """Yield the possible start indexes of the command that a program runs, within the words after the program."""
    start = runs_from(name, words)
    if start is None or name in SHELLS or name in LANGUAGES:
        return
    if name in SEARCHERS:
        yield from (at + 1 for at, word in enumerate(words) if _EXECUTING.match(word))
        return
    if name in EVALUATORS and name != "eval":
        return
    operands = _OPERANDS.get(name, 0)
    for at in range(start, len(words)):
        word, before = words[at], words[at - 1] if at > start else ""
        if word.startswith("-") or _AMOUNT.match(word):
            continue
        yield at
        if ASSIGNMENT.match(word):
            return
        if _may_take_value(before):
            continue
        if not operands:
            return
        operands -= 1


def _may_take_value(option: str) -> bool:
    return option.startswith("-") and option not in ("--", "-i", "-s") and "=" not in option


def _reads(name: str, words: Sequence[str]) -> bool:
    """Return whether a program reads commands from its input."""
    if name in SHELLS:
        return _shell_reads(words)
    if name in (".", "source"):
        return bool(words) and _INPUT.match(words[0]) is not None
    if name in ("at", "batch"):
        return not any(re.match(r"-[a-zA-Z]*[cdflrV]", word) for word in words)
    if name == "crontab":
        return "-" in words
    if name in ("su", "runuser", "script"):
        is_told = any(_CODE.match(word) for word in words)
        return not is_told and not (name == "runuser" and "-u" in words)
    if name in ("xargs", "parallel"):
        return _feeds(name, words)
    if name in ("sudo", "doas"):
        opens = any(re.match(r"-[a-zA-Z]*[is]\Z|--(?:login|shell)\Z", word) for word in words)
        return opens and not _plain_heads(name, words)
    if name in ("ssh", "rsh") and any(re.match(r"-[a-zA-Z]*[NOVW]", word) for word in words):
        return False
    return name in _OPEN_SHELLS and len(_plain_heads(name, words)) <= _OPERANDS.get(name, 0)


def _plain_heads(name: str, words: Sequence[str]) -> list[int]:
    """Return the indexes that are certainly a command or an operand, not the value of an option."""
    return [at for at in _heads(name, words) if not at or not _may_take_value(words[at - 1])]


def _shell_reads(words: Sequence[str]) -> bool:
    """Return whether a shell gets neither code nor a script."""
    at = 0
    while at < len(words) and words[at].startswith(("-", "+")):
        word = words[at]
        if word in ("--version", "--help") or _CODE.match(word):
            return False
        if re.match(r"-[a-z]*s[a-z]*\Z", word):
            return True
        if word in ("-", "--"):
            at += 1
            break
        at += 2 if _VALUED.match(word) else 1
    return at >= len(words) or _INPUT.match(words[at]) is not None


def _feeds(name: str, words: Sequence[str]) -> bool:
    """Return whether `xargs` or `parallel` passes its input to a program that executes it."""
    heads = list(_heads(name, words))
    if not heads:
        return name == "parallel"
    token = next((words[at + 1] for at, word in enumerate(words[:-1]) if word == "-I"), "{}")
    for at in heads:
        if program(words[at]) not in RUNNERS - SEARCHERS:
            continue
        behind = words[at + 1 :]
        if all(word.startswith("-") for word in behind) or behind[-1].startswith(token):
            return True
    return False
