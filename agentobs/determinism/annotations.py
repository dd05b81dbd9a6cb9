"""Annotations: the classes that a function declares for its arguments, so that their values can be recorded.

An argument is restored only to a class that the agent's own code declares, never to a class that a file names.
"""

from __future__ import annotations

import inspect
import typing
from typing import Any

from agentobs.determinism.values import kind_of

CLASSES_MAX = 200
"""The maximum number of classes that are collected. Our choice."""


def classes_in(function: Any) -> list[type]:
    """Return the dataclasses, pydantic models and enums that the parameters of a function are annotated with.

    Classes in the annotations of their fields are included. Annotations that cannot be evaluated are left out.
    `function` may be wrapped, a static or class method, or any other object, which has no annotations.
    """
    found: list[type] = []
    open_: list[Any] = list(_hints(inspect.unwrap(getattr(function, "__func__", function))))
    seen: set[int] = set()
    while open_ and len(seen) < CLASSES_MAX:
        hint = open_.pop()
        if id(hint) in seen:
            continue
        seen.add(id(hint))
        open_ += typing.get_args(hint)
        if isinstance(hint, type) and not typing.get_args(hint) and kind_of(hint) is not None:
            found.append(hint)
            open_ += _hints(hint)
    return found


def _hints(declares: Any) -> list[Any]:
    try:
        hints = typing.get_type_hints(declares)
    except (
        Exception
    ):  # code of the agent, which may need names that are only imported for type checking
        hints = {}
    return [hint for name, hint in hints.items() if name != "return"]
