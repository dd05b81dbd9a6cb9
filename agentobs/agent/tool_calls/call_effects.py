"""Determine the effects of a call: whether it only reads, is destructive, and may run in parallel.

A tool may declare each of them as a function of the input. A replay evaluates the function again, so the function must
depend only on its arguments. If it fails, the stricter value applies: not read-only, destructive, or not concurrent.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentobs.agent.tools.tool import InputPredicate, Tool


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one call."""

    read_only: bool
    destructive: bool
    concurrent: bool
    failures: tuple[PredicateFailure, ...] = ()
    """The functions of the tool that failed for this input."""


@dataclass(frozen=True, slots=True)
class PredicateFailure:
    """A function of the input that failed. The stricter value applies instead."""

    setting: str
    """The setting of the tool: `read_only`, `destructive` or `concurrent`."""
    error: str
    """The class of the exception, or `ContradictionError` if the functions contradict each other."""


_CONSTANT = {
    (read_only, destructive, concurrent): Effects(read_only, destructive, concurrent)
    for read_only, destructive, concurrent in itertools.product((True, False), repeat=3)
}
"""The effects of tools without functions of the input, by value, because most calls have one of them."""

_FAILED = object()
"""The value of a function that raised an exception."""


def effects_of(tool: Tool, arguments: Mapping[str, Any]) -> Effects:
    """Return the effects of a call with these validated arguments."""
    destructive, concurrent = tool.destructive, tool.concurrent
    are_constant = isinstance(destructive, bool) and isinstance(concurrent, bool)
    if are_constant and tool.read_only_if is None:
        return _CONSTANT[tool.tool_class == "read", destructive is True, concurrent is True]
    failures: list[PredicateFailure] = []
    read_only = tool.read_only
    if tool.read_only_if is not None:
        read_only = _value(tool.read_only_if, arguments, "read_only", failures) is True
    is_destructive: object = destructive is not False and not read_only
    if callable(destructive):
        is_destructive = _value(destructive, arguments, "destructive", failures)
        if read_only and is_destructive is not False:
            # If either function is wrong, it is not known which, so neither is trusted.
            read_only = False
            if is_destructive is not _FAILED:
                failures.append(PredicateFailure("read_only", "ContradictionError"))
    is_concurrent: object = concurrent
    if tool.read_only_if is not None and concurrent is tool.read_only_if:
        is_concurrent = read_only
    elif callable(concurrent):
        is_concurrent = _value(concurrent, arguments, "concurrent", failures)
    return Effects(read_only, is_destructive is not False, is_concurrent is True, tuple(failures))


def _value(
    function: InputPredicate,
    arguments: Mapping[str, Any],
    setting: str,
    failures: list[PredicateFailure],
) -> object:
    """Return the value of a function of the input; `_FAILED` if it raises an exception, which is then noted."""
    try:
        return function(dict(arguments))
    except BaseException as error:  # any exception of the tool's own code, even SystemExit
        failures.append(PredicateFailure(setting, type(error).__name__))
        return _FAILED
