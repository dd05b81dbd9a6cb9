"""Annotations: find the classes in the annotations of a function's parameters, so that arguments can be recorded.

When a recorded argument is converted back, only classes in the annotations of the agent's own code are used, never a
class whose name appears only in a file.
"""

from __future__ import annotations

import inspect
import typing
from typing import Any

from agentobs.determinism.values import kind_of

CLASSES_MAX = 200
"""The maximum number of classes that are collected. Our choice."""


def classes_in(function: Any) -> list[type]:
    """Return the dataclasses, pydantic models and enums in the annotations of a function's parameters.

    Classes in the annotations of their fields are included. Annotations that cannot be evaluated are ignored.
    `function` may be wrapped, a static method or a class method. For any other object, the result is empty.
    """
    found: list[type] = []
    pending: list[Any] = list(_hints(inspect.unwrap(getattr(function, "__func__", function))))
    seen: set[int] = set()
    while pending and len(seen) < CLASSES_MAX:
        hint = pending.pop()
        if id(hint) in seen:
            continue
        seen.add(id(hint))
        pending += typing.get_args(hint)
        if isinstance(hint, type) and not typing.get_args(hint) and kind_of(hint) is not None:
            found.append(hint)
            pending += _hints(hint)
    return found


def _hints(annotated: Any) -> list[Any]:
    try:
        hints = typing.get_type_hints(annotated)
    except Exception:  # the annotations may need names that are only imported for type checking
        hints = {}
    return [hint for name, hint in hints.items() if name != "return"]
