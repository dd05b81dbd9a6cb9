"""The imported modules, and which of them are the same as at an earlier look.

A replay looks at all imported modules, which are thousands with some SDKs. Nearly always, none or only the last ones
differ from those of the previous replay, so that only these have to be examined.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Iterable
from itertools import compress
from types import ModuleType
from typing import Any

identity = object.__hash__
"""Return a number that identifies an object while it exists, like `id`.

A call of `id` is an audit event. Once a replay has installed its audit hook, it takes five times as long.
"""

_BLOCKED = object()
"""Stands for None, the value with which an import is blocked."""


class ImportedModules:
    """The modules in the order in which they were imported, compared with those of the previous look."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._references: list[Callable[[], Any]] = []
        """References to the values of `sys.modules` at the last look."""
        self._are_modules: list[bool] = []
        """Whether each of them is a module: other objects may be registered as one."""

    def look(self) -> tuple[list[str], list[ModuleType], int]:
        """Return the names of all imported modules, the modules, and how many at the start are the same as at the last
        look.
        """
        names, values, same = self._compare()
        self._names = names
        self._references[same:] = map(_reference, values[same:])
        self._are_modules[same:] = [isinstance(each, ModuleType) for each in values[same:]]
        are_modules = self._are_modules
        return (
            list(compress(names, are_modules)),
            list(compress(values, are_modules)),
            sum(are_modules[:same]),
        )

    def imported_since(self) -> list[ModuleType]:
        """Return the modules from the first one on that is not the same as at the last look."""
        _, values, same = self._compare()
        return [each for each in values[same:] if isinstance(each, ModuleType)]

    def _compare(self) -> tuple[list[str], list[Any], int]:
        """Return the names and values of `sys.modules`, and how many at the start are the same as at the last look."""
        # No list of pairs: thousands of new tuples would start the garbage collection several times.
        modules = sys.modules.copy()
        names, values = list(modules), list(modules.values())
        same = min(
            _same_at_start(self._references, values),
            _number_of_same(map(operator.eq, self._names, names)),
        )
        return names, values, same


def _same_at_start(references: list[Callable[[], Any]], values: list[Any]) -> int:
    """Return how many values at the start are the objects to which the references refer."""
    # A reference to an object that no longer exists returns None, which blocks an import if it is a value.
    found = (_BLOCKED if each is None else each for each in values)
    return _number_of_same(map(operator.is_, map(operator.call, references), found))


def _number_of_same(are_same: Iterable[bool]) -> int:
    """Return the number of results before the first that is false."""
    results = list(are_same)
    return results.index(False) if False in results else len(results)


def _reference(value: Any) -> Callable[[], Any]:
    """Return a weak reference to an object; a strong one if it cannot have weak references, like modules of cffi. For
    None, it returns a marker.
    """
    if value is None:
        return lambda: _BLOCKED
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value
