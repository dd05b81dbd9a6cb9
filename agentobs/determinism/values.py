"""Values: convert arguments and results of functions to JSON, and back to the same value.

Strings, numbers, booleans, None, lists and dicts with string keys are written unchanged. Other builtins, instances of
registered classes and exceptions become a JSON object with the key `$py`, whose value names the kind. All other values
are replaced by a note of their type. Nothing is pickled: a conversion back calls only code of exceptions and of classes
that the program itself has registered.
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

from agentobs.errors import ReplayEnd, UsageError
from agentobs.runtime import process

MARK = "$py"
"""The key that marks an object of JSON as a converted value."""
NOT_KEPT = "not kept"
"""The mark of a note that replaces an unsupported value."""
RAISED = "raised"
"""The mark of an exception."""
KEPT_BYTES = 32 * 1024 * 1024
"""The approximate maximum size of a value: the lengths of its strings and bytes, plus 8 for each other part. Our
choice, the same as for HTTP bodies.
"""
DEPTH_MAX = 200
"""The maximum nesting depth. Our choice."""

T = TypeVar("T", bound=type)


class Registry:
    """The registered classes of this process."""

    def __init__(self) -> None:
        self.classes: dict[str, type] = {}
        """The classes, by name."""


_declared: ContextVar[Mapping[str, type] | None] = ContextVar("agentobs_declared", default=None)
"""Classes that are treated as registered in this context, by name."""


@contextlib.contextmanager
def declared_classes(classes: Iterable[type]) -> Iterator[None]:
    """Treat classes as registered while the context is open."""
    token = _declared.set({name_of(each): each for each in classes})
    try:
        yield
    finally:
        _declared.reset(token)


def _class_of(name: str) -> type | None:
    """Return the class with a name, if it is registered or declared in this context; otherwise None."""
    return process.state(Registry).classes.get(name) or (_declared.get() or {}).get(name)


class ToolFailed(RuntimeError):
    """Raised in a replay instead of an exception whose class cannot be instantiated; the text starts with the class
    name.
    """


class NotKept(Exception):
    """A value cannot be converted; the text is its type and the reason."""


def register_type(cls: T) -> T:
    """Register a dataclass, pydantic model, enum or exception, so that its values are recorded and converted back.

    A replay creates an object from its fields, without calling `__init__`. The function returns the class, so it can be
    used as a decorator.

    Raises:
        UsageError: the class is of another kind.
    """
    registry = process.state(Registry)
    if not isinstance(cls, type) or kind_of(cls) is None:
        raise UsageError(
            f"{getattr(cls, '__qualname__', cls)!r} is not a dataclass, pydantic model, enum or exception",
            where="register_type",
            todo="Return one of these from the tool, or let it run live in a replay",
        )
    registry.classes[name_of(cls)] = cls
    return cls


def name_of(cls: type) -> str:
    """Return a class as `module:qualified.name`; the module of the running script is named as if it were imported."""
    module = cls.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else pathlib.Path(file).stem if file else module
    return f"{module}:{cls.__qualname__}"


def to_json(value: Any) -> Any:
    """Return a value as JSON, or a note of its type. Never raises."""
    try:
        return Writer().write(value, 0)
    except NotKept as error:
        return {MARK: NOT_KEPT, "type": str(error)}
    except Exception as error:  # code of its class may raise any exception
        return {MARK: NOT_KEPT, "type": f"{name_of(type(value))}, {type(error).__name__}"}


def arguments_to_json(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name as JSON; a note of the type replaces each argument that is not supported."""
    return {name: to_json(value) for name, value in arguments.items()}


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON: its class, its text, and its arguments if all of them are supported."""
    try:
        text = str(error)
    except Exception:  # `__str__` may be code of the agent, and raise any exception
        text = ""
    written = {MARK: RAISED, "type": name_of(type(error)), "text": text[:KEPT_BYTES]}
    arguments = [to_json(each) for each in _arguments(error)]
    return written if any(map(is_not_kept, arguments)) else {**written, "args": arguments}


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments of an exception; for an operating system error, the file names are added."""
    if not isinstance(error, OSError) or error.filename is None:
        return error.args
    if error.filename2 is None:
        return (*error.args[:2], error.filename)
    return (*error.args[:2], error.filename, None, error.filename2)


def is_not_kept(value: Any) -> bool:
    """Return whether JSON is a note that replaces an unsupported value."""
    return isinstance(value, dict) and value.get(MARK) == NOT_KEPT


def not_kept_in(value: Any) -> str | None:
    """Return the type in a note that replaces an unsupported value; None if the JSON is not a note."""
    return str(value.get("type")) if is_not_kept(value) else None


def is_error_json(value: Any) -> bool:
    """Return whether JSON represents an exception."""
    return isinstance(value, dict) and value.get(MARK) == RAISED


def error_text(value: Any) -> str | None:
    """Return JSON that represents an exception as text: `TimeoutError: no answer`; None if it represents none."""
    if not is_error_json(value):
        return None
    name = str(value.get("type")).rpartition(":")[2]
    text = str(value.get("text") or "")
    return f"{name}: {text}" if text else name


def from_json(value: Any) -> Any:
    """Convert JSON back to the value.

    Raises:
        NotKept: the value was not supported when it was recorded, or its class is not registered here.
    """
    match value:
        case {"$py": str(kind)}:
            return _marked(kind, value)
        case dict():
            return {key: from_json(inner) for key, inner in value.items()}
        case list():
            return [from_json(inner) for inner in value]
        case _:
            return value


def error_from_json(value: dict[str, Any], modules: Iterable[object] = ()) -> BaseException:
    """Convert JSON back to an exception with the same class and text, or to a `ToolFailed` with the name of that class.

    Args:
        value: the JSON of the exception.
        modules: modules in which a class is looked up if it is neither a builtin nor registered. Nothing is imported
            for a name in a fixture, because a fixture may come from an untrusted source.
    """
    name, text = str(value.get("type")), str(value.get("text"))
    cls = _exception(name, modules)
    if cls is not None:
        try:
            arguments = [from_json(each) for each in value.get("args", [text])]
            for make in (cls, lambda *args: BaseException.__new__(cls, *args)):
                error = _instantiate(make, arguments)
                if error is not None and str(error) == text:
                    return error
        except NotKept:
            pass
    return ToolFailed(f"{name.partition(':')[2]}: {text}")


def _instantiate(make: Callable[..., Any], arguments: list[Any]) -> BaseException | None:
    try:
        error = make(*arguments)
    except Exception:  # the caller tries another way, or uses `ToolFailed`
        return None
    return error if isinstance(error, Exception | SystemExit) else None


def _exception(name: str, modules: Iterable[object]) -> type[BaseException] | None:
    registry = process.state(Registry)
    module, _, qualified = name.partition(":")
    found: Any = registry.classes.get(name)
    if module == "builtins":
        found = getattr(builtins, qualified, None)
    for place in modules if found is None else ():
        inner: Any = place
        for part in qualified.split("."):
            inner = getattr(inner, part, None)
        if isinstance(inner, type) and name_of(inner) == name:
            found = inner
    if not isinstance(found, type) or not issubclass(found, Exception | SystemExit):
        return None
    return None if issubclass(found, ReplayEnd) else found


def kind_of(cls: type) -> str | None:
    """Return the kind of a class whose values can be written: enum, dataclass, model or exception; None for others."""
    if issubclass(cls, enum.Enum):
        return "enum"
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if hasattr(cls, "model_construct") and hasattr(cls, "__pydantic_fields__"):
        return "model"
    return "exception" if issubclass(cls, Exception) else None


class Writer:
    """Writes one value as JSON."""

    def __init__(self, max_bytes: int = KEPT_BYTES, node_bytes: int = 8) -> None:
        """Create a writer.

        Args:
            max_bytes: the maximum total size.
            node_bytes: the size of a value that is neither a text nor bytes; the size of texts and bytes is their
                length.
        """
        self._bytes_left, self._node_bytes = max_bytes, node_bytes

    def is_full(self, depth: int) -> bool:
        """Return whether a value is too large, or nested too deeply, to be written."""
        return self._bytes_left < 0 or depth > DEPTH_MAX

    def write(self, value: Any, depth: int) -> Any:
        """Return a value as JSON.

        Raises:
            NotKept: a part of the value is not supported.
        """
        kind = type(value)
        self._bytes_left -= len(value) if kind in (str, bytes, bytearray) else self._node_bytes
        if self.is_full(depth):
            raise NotKept(f"{name_of(kind)}, too {'large' if self._bytes_left < 0 else 'deep'}")
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
        """Return a value that can be written as a short text.

        Raises:
            NotKept: the text would not represent the complete value.
        """
        _check_zone(value)
        return text_form(value, kind)

    def other(self, value: Any, kind: type, depth: int) -> Any:
        """Return a value of a class that is not registered.

        Raises:
            NotKept: always; a subclass may support more classes.
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
            return {**error_to_json(value), MARK: name}
        fields = _fields(value, kind)
        written = {key: self.write(inner, depth + 1) for key, inner in fields.items()}
        extra = {}
        if kind_of(kind) == "model":
            extra["set"] = sorted(value.model_fields_set)
            if value.__pydantic_extra__ is not None:
                extra["extra"] = self._dict(value.__pydantic_extra__, depth + 1)
        return {MARK: name, "fields": written, **extra}


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
    """Convert a JSON object with a mark back to the value."""
    try:
        if kind in _READ:
            return _READ[kind](value["text"])
        if kind in ("bytes", "bytearray"):
            data = value["text"].encode() if "text" in value else base64.b64decode(value["base64"])
            return data if kind == "bytes" else bytearray(data)
        if kind == "timedelta":
            return datetime.timedelta(*value["is"])
        if kind == "dict":
            return {from_json(key): from_json(inner) for key, inner in value["items"]}
        for group in _GROUPS:
            if kind == group.__name__:
                return group(from_json(each) for each in value["items"])
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
            return error_from_json({**value, MARK: RAISED})
    fields = {key: from_json(inner) for key, inner in value["fields"].items()}
    if kind_of(cls) == "model":
        made = cls.model_construct(_fields_set=set(value["set"]), **fields)
        if "extra" in value:
            object.__setattr__(made, "__pydantic_extra__", from_json(value["extra"]))
        return made
    made = object.__new__(cls)
    for key, inner in fields.items():
        object.__setattr__(made, key, inner)
    return made


def _fields(value: Any, kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass or a model.

    Raises:
        NotKept: the value has data that is not in its fields.
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
    """Return a number, a time, a UUID or a path as a JSON object with its text."""
    return {MARK: _PLAIN[kind][0], "text": _PLAIN[kind][1](value)}


def _check_zone(value: Any) -> None:
    """Reject times that ISO 8601 does not represent completely.

    These are times with a time zone that has rules, and times in the hour that occurs twice at the end of daylight
    saving time.

    Raises:
        NotKept: the value is such a time.
    """
    zone = getattr(value, "tzinfo", None)
    if getattr(value, "fold", 0) or not isinstance(zone, datetime.timezone | None):
        raise NotKept(f"{name_of(type(value))} with {type(zone).__name__}")


def _bytes(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
