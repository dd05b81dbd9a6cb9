"""Derive a tool's description and input schema from a typed function.

Pydantic builds the schema from the signature; the docstring describes each argument. References are
inlined, and titles are omitted because they only repeat names. Docstrings are parsed by
`docstring_parser`, which the SDK depends on and uses for its own tools. It reads Google, NumPy and
reST style and adds no dependency of our own.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
from collections.abc import Callable, Collection
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NamedTuple,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import docstring_parser
from docstring_parser.common import DocstringMeta, DocstringStyle
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json


def input_model(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the pydantic model of a function's arguments, with their own names as aliases.

    Raises:
        UsageError: the signature has arguments that JSON cannot name, or types that cannot be
            resolved or declared to the model.
    """
    parameters = _signature(function)
    texts = described(function, [parameter.name for parameter in parameters]).arguments
    fields = {
        f"argument_{number}": _field(function, parameter, texts.get(parameter.name))
        for number, parameter in enumerate(parameters)
    }
    try:
        return _model(function, fields)
    except UsageError:
        for field in fields.values():
            _model(function, {"argument": field})  # to name the argument at fault
        raise


def input_schema(model: type[BaseModel]) -> Json:
    """Return a model's JSON schema without references and titles.

    Raises:
        UsageError: a type contains itself, so it cannot be inlined.
    """
    schema = model.model_json_schema()
    return _plain(schema, schema.get("$defs", {}), ())


def argument_names(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of the arguments, in the order of the signature."""
    return tuple(str(field.alias) for field in model.model_fields.values())


def named_arguments(model: type[BaseModel], value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return validated input by argument name: as given, and with the function's defaults.

    Raises:
    pydantic.ValidationError: the input is invalid.
    """
    fitted = model.model_validate(value)
    explicit: dict[str, Any] = {}
    every: dict[str, Any] = {}
    for name, field in type(fitted).model_fields.items():
        if name in fitted.model_fields_set:
            explicit[str(field.alias)] = every[str(field.alias)] = getattr(fitted, name)
        elif field.default is not PydanticUndefined:
            every[str(field.alias)] = field.default
    return explicit, every


_FLAT = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Set)


def holds_only(annotation: Any, leaves: tuple[type, ...]) -> bool:
    """Return whether a type is one of some classes, or a flat list, tuple or set of them, possibly
    optional.

    `Any` is accepted, because its values can only be checked at runtime.
    """
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return all(holds_only(each, leaves) for each in get_args(annotation))
    meant = _meant(annotation)
    if meant is not annotation:
        return holds_only(meant, leaves)
    if origin in _FLAT or annotation in _FLAT:
        inner = [each for each in get_args(annotation) if each not in (..., ())]
        return all(each is not type(None) and _is_leaf(each, leaves) for each in inner)
    return annotation is type(None) or _is_leaf(annotation, leaves)


def _is_leaf(annotation: Any, leaves: tuple[type, ...]) -> bool:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return all(_is_leaf(each, leaves) for each in get_args(annotation))
    meant = _meant(annotation)
    if meant is not annotation:
        return _is_leaf(meant, leaves)
    if origin is Literal:
        return all(isinstance(each, leaves) for each in get_args(annotation))
    if annotation in (Any, object) or isinstance(annotation, TypeVar | ForwardRef | str):
        return True
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, leaves)


def _meant(annotation: Any) -> Any:
    """Return the type behind an alias or `Annotated`; otherwise the type itself."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    if isinstance(annotation, NewType):
        return annotation.__supertype__
    alias = (
        get_origin(annotation) or annotation
    )  # of `type X = ...`, which Python 3.11 does not have
    return annotation if isinstance(alias, type) else getattr(alias, "__value__", annotation)


class Described(NamedTuple):
    """The content of a docstring."""

    text: str
    """What the function does, without the sections about arguments, results and errors."""
    arguments: dict[str, str]
    """The description of each argument, on one line."""


_STYLES = (DocstringStyle.GOOGLE, DocstringStyle.NUMPYDOC, DocstringStyle.REST)


def described(function: Callable[..., Any], names: Collection[str]) -> Described:
    """Return a function's parsed docstring, in the style that describes most of the named arguments.

    A docstring in no known style is used as the description unchanged, so no text is lost.
    """
    doc = inspect.getdoc(function) or ""
    best, most = Described(doc.strip(), {}), (0, 0)
    for style in _STYLES:
        try:
            parsed = docstring_parser.parse(doc, style)
        except Exception:  # a malformed section: the docstring is not in this style
            continue
        texts = {
            param.arg_name: " ".join((param.description or "").split())
            for param in parsed.params
            if param.arg_name in names
        }
        # A reST field of any name produces bare metadata; count only sections that the style
        # defines.
        found = len(texts), sum(type(section) is not DocstringMeta for section in parsed.meta)
        if found > most:
            between = "\n\n" if parsed.blank_after_short_description else "\n"
            parts = (parsed.short_description, parsed.long_description)
            best = Described(between.join(filter(None, parts)), texts)
            most = found
    return best


def _model(function: Callable[..., Any], fields: dict[str, Any]) -> type[BaseModel]:
    try:
        model: type[BaseModel] = create_model(
            "Input", __config__=ConfigDict(extra="forbid"), **fields
        )
        model.model_json_schema()
    except PydanticUserError as error:
        names = ", ".join(str(field.alias) for _, field in fields.values())
        raise UsageError(
            f"the type of the argument {names} of {_name(function)} cannot be described to the model: "
            f"{error.message.splitlines()[0].rstrip('.')}",
            todo="Use types that JSON can represent, or declare the tool's schema yourself",
        ) from error
    return model


def _field(
    function: Callable[..., Any], parameter: inspect.Parameter, text: str | None
) -> tuple[Any, Any]:
    """Return type and field; a description in `Annotated` is used if the docstring has none."""
    if isinstance(parameter.default, FieldInfo):
        raise UsageError(
            f"the default of the argument {parameter.name} of {_name(function)} is a pydantic Field",
            todo="Write Annotated[type, Field(...)] and pass the default itself",
        )
    description: dict[str, Any] = {"description": text} if text else {}
    default = ... if parameter.default is parameter.empty else parameter.default
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    return annotation, Field(default=default, alias=parameter.name, **description)


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function with their types; the model does not see the return type."""
    allowed = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = _globals(function)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in allowed:
            raise UsageError(
                f"the model cannot pass `{parameter.replace(annotation=parameter.empty)}` "
                f"of {_name(function)} by name",
                todo="Give each argument of a tool a unique name",
            )
        annotation = parameter.annotation
        try:
            if isinstance(annotation, str):
                annotation = eval(annotation, names)
        except Exception as error:
            raise UsageError(
                f"the type of the argument {parameter.name} of {_name(function)} is unknown: {error}",
                todo="Define it at the top of its module, or declare the tool's schema yourself",
            ) from error
        parameters.append(parameter.replace(annotation=annotation))
    return parameters


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals that the annotations of a function, method, partial or callable object refer to."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    inner = inner if inspect.isroutine(inner) else type(inner).__call__
    return getattr(getattr(inner, "__func__", inner), "__globals__", {})


def _plain(schema: Json, definitions: Json, inside: tuple[str, ...]) -> Json:
    """Return a schema with its references inlined; `inside` names the ones in progress."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in inside:
            raise UsageError(
                f"the type {name} of a tool's input contains itself",
                todo="Declare the tool's schema yourself",
            )
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        return _plain({**definitions[name], **siblings}, definitions, (*inside, name))
    return {
        key: _plain_value(key, value, definitions, inside)
        for key, value in schema.items()
        if key not in _LEFT_OUT
    }


_LEFT_OUT = ("$defs", "title", "discriminator")
"""Definitions are inlined; the discriminator only refers to them (and is from OpenAPI, not JSON Schema)."""
_VALUES = ("default", "const", "enum", "examples", "required")
"""Keywords whose content is values, not schemas."""


def _plain_value(key: str, value: Any, definitions: Json, inside: tuple[str, ...]) -> Any:
    if key in _VALUES:
        return value
    if key in ("properties", "patternProperties"):
        return {name: _plain(inner, definitions, inside) for name, inner in value.items()}
    if isinstance(value, dict):
        return _plain(value, definitions, inside)
    if isinstance(value, list):
        return [_plain(v, definitions, inside) if isinstance(v, dict) else v for v in value]
    return value


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
