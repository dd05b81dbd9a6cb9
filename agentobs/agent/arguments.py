"""Checks of arguments, so that a value of the wrong kind raises one error that names the argument and what to pass."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from agentobs.errors import UsageError


def described(value: Any) -> str:
    """Describe a value by its type, and by its name if it has one; its content is left out."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', '')}".rstrip()
    name = getattr(value, "name", None)
    kind = type(value).__name__
    return f"the {kind} {name}" if isinstance(name, str) and name else f"a value of type {kind}"


def check_list(values: Any, name: str, kind: type | tuple[type, ...], todo: str) -> None:
    """Check that an argument is a list or tuple of values of a kind.

    Args:
        values: the argument.
        name: the name of the argument.
        kind: the type of each value, or several types.
        todo: what to pass.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise UsageError(f"expected a list, got {described(values)}", where=name, todo=todo)
    for each in values:
        if not isinstance(each, kind):
            raise UsageError(f"the list contains {described(each)}", where=name, todo=todo)


def check_value(is_valid: bool, value: Any, name: str, todo: str) -> None:
    """Check an argument.

    Raises:
        UsageError: it is not valid.
    """
    if not is_valid:
        raise UsageError(f"got {described(value)}", where=name, todo=todo)


def check_prompt(prompt: Any) -> None:
    """Check that a prompt is a text that is not blank, or a list of content blocks.

    Raises:
        UsageError: it is not.
    """
    todo = "Pass a text, or a list of content blocks"
    if isinstance(prompt, str):
        if not prompt.strip():
            raise UsageError("the prompt is blank", where="prompt", todo=todo)
        return
    check_list(prompt, "prompt", Mapping, todo)
    if not prompt:
        raise UsageError("the list is empty", where="prompt", todo=todo)


def check_functions(**values: Any) -> None:
    """Check that arguments are functions or None.

    Args:
        values: the arguments by name.

    Raises:
        UsageError: one of them is something else.
    """
    for name, value in values.items():
        check_value(value is None or callable(value), value, name, "Pass a function, or None")
