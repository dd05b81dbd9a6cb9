"""Values: arguments and results of functions as JSON that converts back to the same value, or a note of their type.

Strings, numbers, booleans, None, lists and dicts with string keys are kept unchanged. Other values become an object
with the key `$py` that names their kind: other builtins, registered classes, exceptions. A value of any other kind is
not kept, and its type is recorded. Nothing is pickled: converting a value back calls no code except that of classes
that the program itself has registered, or of exceptions.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from agentobs.errors import ReplaySays, UsageError
from agentobs.runtime import process

MARK = "$py"
"""The key that marks an object of JSON as a converted value."""
NOT_KEPT = "not kept"
"""The mark of a value that could not be kept."""
RAISED = "raised"
"""The mark of an exception."""
KEPT_BYTES = 32 * 1024 * 1024
"""The approximate maximum size of a value: its strings and bytes, and 8 for each other part. Our choice, as for HTTP
bodies.
"""
DEPTH_MAX = 200
"""The maximum nesting depth. Our choice."""

T = TypeVar("T", bound=type)


class Registry:
    """The registered classes of this process."""

    def __init__(self) -> None:
        self.classes: dict[str, type] = {}
        """By name."""


_declared: ContextVar[Mapping[str, type] | None] = ContextVar("agentobs_declared", default=None)
"""Classes that count as registered in this context, by name."""


@contextlib.contextmanager
def knowing(classes: Iterable[type]) -> Iterator[None]:
    """Treat these classes as registered as long as the context is open."""
    token = _declared.set({name_of(each): each for each in classes})
    try:
        yield
    finally:
        _declared.reset(token)


def _class_of(name: str) -> type | None:
    """Return the class with a name that is registered, or declared in this context."""
    return process.part(Registry).classes.get(name) or (_declared.get() or {}).get(name)


class ToolFailed(RuntimeError):
    """Raised in a replay in place of an exception whose class cannot be constructed; the text starts with its name."""


class NotKept(Exception):
    """A value cannot be kept; the text is the reason."""


def register_type(cls: T) -> T:
    """Let values of a class be recorded and converted back: a dataclass, a pydantic model, an enum, an exception.

    An object is created from its fields alone, without its `__init__`. Returns the class, so that it can be used as a
    decorator.

    Raises:
        UsageError: it is none of these.
    """
    registry = process.part(Registry)
    if not isinstance(cls, type) or kind_of(cls) is None:
        raise UsageError(
            f"{getattr(cls, '__qualname__', cls)!r} is not a dataclass, pydantic model, enum or exception",
            where="register_type",
            todo="Return one of these from the tool, or let it run live in a replay",
        )
    registry.classes[name_of(cls)] = cls
    return cls


def name_of(cls: type) -> str:
    """Return a class as `module:qualified.name`; a class of a script as it is imported elsewhere."""
    module = cls.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else pathlib.Path(file).stem if file else module
    return f"{module}:{cls.__qualname__}"


def kept(value: Any) -> Any:
    """Return a value as JSON, or a note of its type. Never raises."""
    try:
        return Writer().write(value, 0)
    except NotKept as error:
        return {MARK: NOT_KEPT, "type": str(error)}
    except Exception as error:  # code of its class may do anything
        return {MARK: NOT_KEPT, "type": f"{name_of(type(value))}, {type(error).__name__}"}


def kept_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name as JSON; each one that cannot be kept is noted separately."""
    return {name: kept(value) for name, value in arguments.items()}


def kept_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON: its class, its text and its arguments, as far as they can be kept."""
    try:
        text = str(error)
    except Exception:  # its text is the agent's own code, which may fail
        text = ""
    told = {MARK: RAISED, "type": name_of(type(error)), "text": text[:KEPT_BYTES]}
    arguments = [kept(each) for each in _arguments(error)]
    return told if any(map(is_not_kept, arguments)) else {**told, "args": arguments}


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments of an exception; operating system errors do not include their file names."""
    if not isinstance(error, OSError) or error.filename is None:
        return error.args
    if error.filename2 is None:
        return (*error.args[:2], error.filename)
    return (*error.args[:2], error.filename, None, error.filename2)


def is_not_kept(value: Any) -> bool:
    """Return whether JSON stands for a value that was not kept."""
    return isinstance(value, dict) and value.get(MARK) == NOT_KEPT


def not_kept_in(value: Any) -> str | None:
    """Return the type of a value that was not kept; None if it was kept."""
    return str(value.get("type")) if is_not_kept(value) else None


def is_raised(value: Any) -> bool:
    """Return whether JSON stands for an exception."""
    return isinstance(value, dict) and value.get(MARK) == RAISED


def read_back(value: Any) -> Any:
    """Return the value of its JSON.

    Raises:
        NotKept: it was not kept, or its class is not registered here.
    """
    match value:
        case {"$py": str(kind)}:
            return _marked(kind, value)
        case dict():
            return {key: read_back(inner) for key, inner in value.items()}
        case list():
            return [read_back(inner) for inner in value]
        case _:
            return value


def raised_again(value: dict[str, Any], near: Iterable[object] = ()) -> BaseException:
    """Return the exception of its JSON, with the same class and text, or a `ToolFailed` that names it.

    Args:
        value: what `kept_error` returned.
        near: where a class is looked up in addition to the builtins and the registered ones: modules that were imported
            already. A fixture may come from an untrusted source, so nothing is imported because of a name in it.
    """
    name, text = str(value.get("type")), str(value.get("text"))
    cls = _exception(name, near)
    if cls is not None:
        try:
            arguments = [read_back(each) for each in value.get("args", [text])]
            for make in (cls, lambda *given: BaseException.__new__(cls, *given)):
                error = _made(make, arguments)
                if error is not None and str(error) == text:
                    return error
        except NotKept:
            pass
    return ToolFailed(f"{name.partition(':')[2]}: {text}")


def _made(make: Callable[..., Any], arguments: list[Any]) -> BaseException | None:
    try:
        error = make(*arguments)
    except Exception:  # made in another way, or `ToolFailed` stands for it
        return None
    return error if isinstance(error, Exception | SystemExit) else None


def _exception(name: str, near: Iterable[object]) -> type[BaseException] | None:
    registry = process.part(Registry)
    module, _, qualified = name.partition(":")
    found: Any = registry.classes.get(name)
    if module == "builtins":
        found = getattr(builtins, qualified, None)
    for place in near if found is None else ():
        inner: Any = place
        for part in qualified.split("."):
            inner = getattr(inner, part, None)
        if isinstance(inner, type) and name_of(inner) == name:
            found = inner
    if not isinstance(found, type) or not issubclass(found, Exception | SystemExit):
        return None
    return None if issubclass(found, ReplaySays) else found


def kind_of(cls: type) -> str | None:
    """Return the kind of class that can be kept; None if the class cannot."""
    if issubclass(cls, enum.Enum):
        return "enum"
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if hasattr(cls, "model_construct") and hasattr(cls, "__pydantic_fields__"):
        return "model"
    return "exception" if issubclass(cls, Exception) else None


class Writer:
    """Writes one value."""

    def __init__(self, most: int = KEPT_BYTES, node: int = 8) -> None:
        """Write at most this many bytes; each value counts `node` of them, or the length of its text."""
        self._left, self._node = most, node

    def is_full(self, depth: int) -> bool:
        """Return whether a value is too large, or nested too deeply, to be written."""
        return self._left < 0 or depth > DEPTH_MAX

    def write(self, value: Any, depth: int) -> Any:
        """Return a value as JSON.

        Raises:
            NotKept: a part of it cannot be kept.
        """
        kind = type(value)
        self._left -= len(value) if kind in (str, bytes, bytearray) else self._node
        if self.is_full(depth):
            raise NotKept(f"{name_of(kind)}, too {'large' if self._left < 0 else 'deep'}")
        if value is None or kind in (str, bool, int):
            return value
        if kind is float:
            return value if math.isfinite(value) else {MARK: "float", "text": repr(value)}
        if kind is list:
            return [self.write(each, depth + 1) for each in value]
        if kind is dict:
            return self._dict(value, depth)
        if kind in _PLAIN:
            return self.plain(value, kind)
        if kind is datetime.timedelta:
            return {MARK: "timedelta", "is": [value.days, value.seconds, value.microseconds]}
        if kind in (bytes, bytearray):
            return {MARK: kind.__name__, **_bytes(bytes(value))}
        if kind in _GROUPS:
            items = [self.write(each, depth + 1) for each in value]
            if kind is not tuple:
                items.sort(key=lambda each: json.dumps(each, sort_keys=True))
            return {MARK: kind.__name__, "items": items}
        return self._registered(value, kind, depth)

    def plain(self, value: Any, kind: type) -> Any:
        """Return a value that a short text represents.

        Raises:
            NotKept: the text does not represent all of it.
        """
        _check_zone(value)
        return text_form(value, kind)

    def other(self, value: Any, kind: type, depth: int) -> Any:
        """Return a value of a class that is not registered.

        Raises:
            NotKept: always; a subclass may handle more.
        """
        raise NotKept(name_of(kind))

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if all(type(key) is str for key in value) and MARK not in value:
            return {key: self.write(inner, depth + 1) for key, inner in value.items()}
        pairs = [[self.write(part, depth + 1) for part in pair] for pair in value.items()]
        return {MARK: "dict", "items": pairs}

    def _registered(self, value: Any, kind: type, depth: int) -> Any:
        name = name_of(kind)
        if _class_of(name) is not kind:
            return self.other(value, kind, depth)
        if issubclass(kind, enum.Enum):
            return {MARK: name, "name": value.name}
        if issubclass(kind, Exception):
            return {**kept_error(value), MARK: name}
        fields = _fields(value, kind)
        written = {key: self.write(inner, depth + 1) for key, inner in fields.items()}
        more = {}
        if kind_of(kind) == "model":
            more["set"] = sorted(value.model_fields_set)
            if value.__pydantic_extra__ is not None:
                more["extra"] = self._dict(value.__pydantic_extra__, depth + 1)
        return {MARK: name, "fields": written, **more}


_PLAIN: dict[type, tuple[str, Callable[[Any], str]]] = {
    complex: ("complex", repr),
    decimal.Decimal: ("decimal", str),
    datetime.datetime: ("datetime", datetime.datetime.isoformat),
    datetime.date: ("date", datetime.date.isoformat),
    datetime.time: ("time", datetime.time.isoformat),
    uuid.UUID: ("uuid", str),
    pathlib.PosixPath: ("path", str),
    pathlib.PurePosixPath: ("pure_path", str),
}
_GROUPS = (tuple, set, frozenset)
_READ: dict[str, Callable[[str], Any]] = {
    "float": float,
    "complex": complex,
    "decimal": decimal.Decimal,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "uuid": uuid.UUID,
    "path": pathlib.Path,
    "pure_path": pathlib.PurePosixPath,
}


def _marked(kind: str, value: dict[str, Any]) -> Any:
    """Return the value of an object with a mark."""
    try:
        if kind in _READ:
            return _READ[kind](value["text"])
        if kind in ("bytes", "bytearray"):
            data = value["text"].encode() if "text" in value else base64.b64decode(value["base64"])
            return data if kind == "bytes" else bytearray(data)
        if kind == "timedelta":
            return datetime.timedelta(*value["is"])
        if kind == "dict":
            return {read_back(key): read_back(inner) for key, inner in value["items"]}
        for group in _GROUPS:
            if kind == group.__name__:
                return group(read_back(each) for each in value["items"])
        if kind in (NOT_KEPT, RAISED):
            raise NotKept(str(value.get("type")))
        return _instance(kind, value)
    except (KeyError, ValueError, TypeError, AttributeError, decimal.InvalidOperation) as error:
        raise NotKept(f"{kind}, {type(error).__name__}") from error


def _instance(name: str, value: dict[str, Any]) -> Any:
    cls: Any = _class_of(name)
    if cls is None:
        raise NotKept(name)
    match kind_of(cls):
        case "enum":
            return cls[value["name"]]
        case "exception":
            return raised_again({**value, MARK: RAISED})
    fields = {key: read_back(inner) for key, inner in value["fields"].items()}
    if kind_of(cls) == "model":
        made = cls.model_construct(_fields_set=set(value["set"]), **fields)
        if "extra" in value:
            object.__setattr__(made, "__pydantic_extra__", read_back(value["extra"]))
        return made
    made = object.__new__(cls)
    for key, inner in fields.items():
        object.__setattr__(made, key, inner)
    return made


def _fields(value: Any, kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass or a model.

    Raises:
        NotKept: it holds more than its fields.
    """
    if kind_of(kind) == "model":
        if getattr(value, "__pydantic_private__", None):
            raise NotKept(f"{name_of(kind)}, with private attributes")
        return dict(vars(value))
    fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(kind)}
    if vars(value).keys() - fields.keys() if hasattr(value, "__dict__") else ():
        raise NotKept(f"{name_of(kind)}, with attributes that are not fields")
    return fields


def text_form(value: Any, kind: type) -> dict[str, Any]:
    """Return a number, a time, a uuid or a path as an object with its text."""
    return {MARK: _PLAIN[kind][0], "text": _PLAIN[kind][1](value)}


def _check_zone(value: Any) -> None:
    """Reject times that ISO 8601 does not represent completely: with a zone that has rules, or in the hour that occurs
    twice.

    Raises:
        NotKept: it is such a time.
    """
    zone = getattr(value, "tzinfo", None)
    if getattr(value, "fold", 0) or not isinstance(zone, datetime.timezone | None):
        raise NotKept(f"{name_of(type(value))} with {type(zone).__name__}")


def _bytes(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
