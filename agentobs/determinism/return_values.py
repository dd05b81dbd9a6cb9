"""Return values: the results of sessions as JSON, which replays compare and never convert back.

Values have the same JSON form as in `values`. In addition, the fields of dataclasses, pydantic models, named tuples and
enums are recorded even if the class is not registered. A part without such a form, such as a client or an object of an
installed library, is replaced by a note of its type, and the rest is recorded. Methods of a value's class are avoided
if possible, and their exceptions do not reach the agent. The class of a value is determined with `type(value)`, because
`isinstance` reads `__class__`, which runs code of lazy proxies.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, cast

from agentobs.determinism.callers import is_own_class
from agentobs.determinism.values import MARK, NOT_KEPT, NotKept, Writer, kind_of, name_of, text_form
from agentobs.records.exchanges import ReturnValue

RETURNED_BYTES = 1024 * 1024
"""The maximum size of a returned value: the length of its texts, plus `NODE_BYTES` for each value in it. Our choice:
the conversion runs on the agent's thread, and takes about 30 ms at most.
"""
NODE_BYTES = 64
"""The size of each value in addition to its text."""
TYPE_MAX = 100
"""The maximum number of characters of a type's name."""
RESPONSES = ("anthropic.",)
"""The prefixes of installed modules with classes that contain only data of the provider."""


def returned(value: Any) -> ReturnValue:
    """Return a value in the form that a replay compares, or a note of its type if it is unsupported. Never raises."""
    kind = type(value)
    try:
        return ReturnValue(_Plain(RETURNED_BYTES, NODE_BYTES).write(value, 0), type_name(kind))
    except NotKept as error:
        return ReturnValue(_note(str(error)), type_name(kind))
    except Exception as error:  # code of its class may raise any exception
        return ReturnValue(_note(f"{type_name(kind)}, {type(error).__name__}"), type_name(kind))


class ReturnedItems:
    """Writes the values of a generator as a list, one by one, so that no value is kept alive."""

    def __init__(self) -> None:
        """Start with an empty list; its maximum size is that of other returned values."""
        self._writer = _Plain(RETURNED_BYTES, NODE_BYTES)
        self._items: list[Any] | None = []

    def add(self, value: Any) -> None:
        """Append a value in its current state; if the list becomes too large, it is discarded. Never raises."""
        if self._items is None:
            return
        kind = type(value)
        try:
            self._items.append(self._writer.write(value, 1))
        except Exception as error:  # code of its class may raise any exception
            if self._writer.is_full(0):
                self._items = None
            else:
                is_known = isinstance(error, NotKept)
                why = str(error) if is_known else f"{type_name(kind)}, {type(error).__name__}"
                self._items.append(_note(why))

    def all(self) -> ReturnValue:
        """Return the list, or a note that it was too large."""
        name = type_name(list)
        kept = _note(f"{name}, too large") if self._items is None else self._items
        return ReturnValue(kept, name)


def type_name(kind: type) -> str:
    """Return the name of a class as `module:qualified.name`, in the form of a label."""
    try:
        return name_of(kind).replace("<locals>.", "")[:TYPE_MAX]
    except Exception:  # a metaclass may raise any exception
        return "unknown"


def _note(why: str) -> dict[str, Any]:
    return {MARK: NOT_KEPT, "type": why}


class _Plain(Writer):
    """Writes a value, including the fields of unregistered classes."""

    def plain(self, value: Any, kind: type) -> Any:
        """Return a value as a short text; for a time with a time zone, the text contains only the offset."""
        return text_form(value, kind)

    def other(self, value: Any, kind: type, depth: int) -> Any:
        """Return a value of an unregistered class, or a note of its type."""
        try:
            return self._other(value, kind, depth)
        except NotKept as error:
            if self.is_full(depth):
                raise
            return _note(str(error))
        except Exception as error:
            return _note(f"{type_name(kind)}, {type(error).__name__}")

    def _other(self, value: Any, kind: type, depth: int) -> Any:
        if issubclass(kind, enum.Enum):
            return {MARK: kind.__qualname__, "name": value.name}
        fields = _fields(value, kind)
        if fields is not None:
            written = {name: self.write(inner, depth + 1) for name, inner in fields.items()}
            return {MARK: kind.__qualname__, "fields": written}
        for base in (str, int, float, bytes, dict, list, tuple, set, frozenset):
            if issubclass(kind, base):
                return self.write(_as(base, value), depth)
        raise NotKept(type_name(kind))


def _as(base: Any, value: Any) -> Any:
    """Return a value of a subclass as its builtin base, without calling a method of the subclass."""
    if base in (int, float):
        return base.__add__(value, base(0)) if base is int else base.__pos__(value)
    if base is str:
        return str.__str__(value)
    if base is bytes:
        return bytes.__getitem__(value, slice(None))
    if base is dict:
        return dict(dict.items(value))
    return base(base.__iter__(value))


def _fields(value: Any, kind: type) -> dict[str, Any] | None:
    """Return the compared fields of a value of the caller's own class; None if the class has no fields.

    Fields that a dataclass excludes from comparison, or that a model excludes from its JSON, are left out.
    """
    module = kind.__module__
    if not (is_own_class(kind) or module == "__main__" or module.startswith(RESPONSES)):
        return None
    if issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
        return dict(zip(names, tuple.__iter__(value), strict=True)) if names else None
    match kind_of(kind):
        case "dataclass":
            compared = (each for each in dataclasses.fields(cast(Any, kind)) if each.compare)
            return {each.name: getattr(value, each.name) for each in compared}
        case "model":
            known = getattr(kind, "__pydantic_fields__", {})
            shown = {n: v for n, v in vars(value).items() if n in known and not known[n].exclude}
            return {**shown, **(value.__pydantic_extra__ or {})}
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is None:
        return None
    return {each.name: getattr(value, each.name) for each in attributes if each.eq}
