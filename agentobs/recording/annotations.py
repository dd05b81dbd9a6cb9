"""Annotations: the classes that a function declares for its arguments, so that values of them can be kept.

An argument is read back only into a class that the code of the agent itself declares, never into one that a file names.
"""

from __future__ import annotations

import inspect
import typing
from typing import Any

from agentobs.recording.values import kind_of

CLASSES_MAX = 200
"""How many classes are looked for. Our choice."""


def classes_in(function: Any) -> list[type]:
    """Return the dataclasses, pydantic models and enums that the parameters of a function are annotated with.

    Those that the fields of such a class are annotated with count, too. Annotations that cannot be evaluated are left
    out. `function` may be wrapped, a static or class method, or anything else, which has none.
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
    ):  # an annotation is code of the agent, which may need what is imported for type checks alone
        hints = {}
    return [hint for name, hint in hints.items() if name != "return"]
