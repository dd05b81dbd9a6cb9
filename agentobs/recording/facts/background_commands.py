"""Background commands: tool calls whose command may continue after the call has its result."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

COMMAND_KEYS = frozenset(
    ("command", "cmd", "script", "code", "shell", "args", "argv", "commands", "cell", "source_code")
)
"""Keys of inputs with which a tool can do anything, whatever else the input names. Our choice."""
BACKGROUND_KEY = "run_in_background"
"""The key of an input with which the shell of Claude Code (2.1) runs a command in the background."""
COMMAND_CHARACTERS = 20_000
"""How much of a command is searched, in characters. Our choice."""
TEXTS_MAX = 2000
"""The maximum number of texts in the input of one call that are read. Our choice."""
HERE_DOCUMENTS_MAX = 100
"""The maximum number of here-documents in a command that are left out of the search. Our choice."""

_BACKGROUND = re.compile(r"[()|;<>]*(?<![&|<>])&(?![&>])[()|;<>]*")
"""A token of shell operators with `&` that starts a job, such as `&)`, not `&&`, `>&` or `&>`."""
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\b\1")
"""The start of a here-document, with the word that ends it."""


def is_background_command(value: Any) -> bool:
    """Return whether the input of a call is a command that its tool runs in the background."""
    has_switch = isinstance(value, dict) and value.get(BACKGROUND_KEY) is True
    return has_switch and any(key in COMMAND_KEYS for key, _ in input_texts(value))


def leaves_process(value: Any) -> bool:
    """Return whether the input of a call is a shell command that starts another one with `&`, and does not wait for
    it.
    """
    commands = (text for key, text in input_texts(value) if key in COMMAND_KEYS and "&" in text)
    return any(_has_background_job(text[:COMMAND_CHARACTERS]) for text in commands)


def _has_background_job(command: str) -> bool:
    text = _without_here_documents(command)
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.commenters = ""
        words = list(lexer)
    except ValueError:  # an unbalanced quote
        return False
    return any(map(_BACKGROUND.fullmatch, words)) and "wait" not in words


def _without_here_documents(command: str) -> str:
    """Return a command without its here-documents; the time is proportional to its length."""
    kept, at = list[str](), 0
    for _ in range(HERE_DOCUMENTS_MAX):
        start = _HERE_DOCUMENT.search(command, at)
        if start is None:
            break
        line_end = command.find("\n", start.end())
        last_line = re.compile(rf"^[ \t]*{start[2]}$", re.MULTILINE)
        end = last_line.search(command, line_end) if line_end != -1 else None
        kept.append(command[at : start.start()])
        if end is None:  # such as a shift of bits
            at = start.end()
        else:
            kept.append(command[start.end() : line_end])
            at = end.end()
    return "".join(kept) + command[at:]


def input_texts(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield each text in an input with the key of the object that contains it."""
    if depth > 20:
        return
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from input_texts(inner, str(name), depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from input_texts(inner, key, depth + 1)


__all__ = [
    "COMMAND_CHARACTERS",
    "COMMAND_KEYS",
    "TEXTS_MAX",
    "input_texts",
    "is_background_command",
    "leaves_process",
]
