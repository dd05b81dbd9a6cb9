"""Derive a tool's description and input schema from a typed function.

Pydantic builds the schema from the signature. The docstring describes each argument. References are inlined, and titles
are omitted because they only repeat names. `docstring_parser` parses the docstrings, in Google, NumPy or reST style. It
is not an additional dependency, because the SDK uses it for its own tools.
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
    """Return a pydantic model of a function's arguments. The aliases of its fields are the names of the arguments.

    Raises:
        UsageError: an argument cannot be passed by name, or its type cannot be resolved or expressed
            as a JSON schema.
    """
    parameters = _signature(function)
    texts = parsed_docstring(function, [parameter.name for parameter in parameters]).arguments
    fields = {
        f"argument_{number}": _field(function, parameter, texts.get(parameter.name))
        for number, parameter in enumerate(parameters)
    }
    try:
        return _model(function, fields)
    except UsageError:
        for field in fields.values():
            _model(function, {"argument": field})  # raises an error that names the invalid argument
        raise


def input_schema(model: type[BaseModel]) -> Json:
    """Return a model's JSON schema without references and titles.

    Raises:
        UsageError: a type contains itself, so it cannot be inlined.
    """
    schema = model.model_json_schema()
    return _inlined(schema, schema.get("$defs", {}), ())


def argument_names(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of the arguments, in the order of the signature."""
    return tuple(str(field.alias) for field in model.model_fields.values())


def named_arguments(model: type[BaseModel], value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return validated input by argument name, once without and once with the defaults of the function.

    Raises:
        pydantic.ValidationError: the input is invalid.
    """
    validated = model.model_validate(value)
    explicit: dict[str, Any] = {}
    all_values: dict[str, Any] = {}
    for name, field in type(validated).model_fields.items():
        if name in validated.model_fields_set:
            explicit[str(field.alias)] = all_values[str(field.alias)] = getattr(validated, name)
        elif field.default is not PydanticUndefined:
            all_values[str(field.alias)] = field.default
    return explicit, all_values


_FLAT_TYPES = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Set)


def holds_only(annotation: Any, leaves: tuple[type, ...]) -> bool:
    """Return whether all values of a type are instances of some classes, or flat lists, tuples or sets of instances.

    None is accepted as a value. `Any` is accepted as a type, because its values can only be checked at runtime.
    """
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return all(holds_only(each, leaves) for each in get_args(annotation))
    underlying = _underlying_type(annotation)
    if underlying is not annotation:
        return holds_only(underlying, leaves)
    if origin in _FLAT_TYPES or annotation in _FLAT_TYPES:
        inner = [each for each in get_args(annotation) if each not in (..., ())]
        return all(each is not type(None) and _is_leaf(each, leaves) for each in inner)
    return annotation is type(None) or _is_leaf(annotation, leaves)


def _is_leaf(annotation: Any, leaves: tuple[type, ...]) -> bool:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return all(_is_leaf(each, leaves) for each in get_args(annotation))
    underlying = _underlying_type(annotation)
    if underlying is not annotation:
        return _is_leaf(underlying, leaves)
    if origin is Literal:
        return all(isinstance(each, leaves) for each in get_args(annotation))
    if annotation in (Any, object) or isinstance(annotation, TypeVar | ForwardRef | str):
        return True
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, leaves)


def _underlying_type(annotation: Any) -> Any:
    """Return the type to which an alias or `Annotated` refers; any other type unchanged."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    if isinstance(annotation, NewType):
        return annotation.__supertype__
    alias = (
        get_origin(annotation) or annotation
    )  # an alias of `type X = ...`, which Python 3.11 does not support
    return annotation if isinstance(alias, type) else getattr(alias, "__value__", annotation)


class ParsedDocstring(NamedTuple):
    """The parsed content of a docstring."""

    text: str
    """The description of the function, without the sections about arguments, results and errors."""
    arguments: dict[str, str]
    """The description of each argument, on one line."""


_STYLES = (DocstringStyle.GOOGLE, DocstringStyle.NUMPYDOC, DocstringStyle.REST)


def parsed_docstring(function: Callable[..., Any], names: Collection[str]) -> ParsedDocstring:
    """Parse a function's docstring in the style that yields descriptions for most of the named arguments.

    If no style fits, the unchanged docstring is the description, so no text is lost.
    """
    doc = inspect.getdoc(function) or ""
    best, best_score = ParsedDocstring(doc.strip(), {}), (0, 0)
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
        # In reST, a field with any name results in a plain DocstringMeta. Count only the sections
        # that the style defines.
        score = len(texts), sum(type(section) is not DocstringMeta for section in parsed.meta)
        if score > best_score:
            separator = "\n\n" if parsed.blank_after_short_description else "\n"
            parts = (parsed.short_description, parsed.long_description)
            best = ParsedDocstring(separator.join(filter(None, parts)), texts)
            best_score = score
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
            f"the type of the argument {names} of {_qualified_name(function)} cannot be described to the model: "
            f"{error.message.splitlines()[0].rstrip('.')}",
            todo="Use types that JSON can represent, or declare the tool's schema yourself",
        ) from error
    return model


def _field(
    function: Callable[..., Any], parameter: inspect.Parameter, text: str | None
) -> tuple[Any, Any]:
    """Return the type and the field of an argument.

    If `text` is None or empty, the description in `Annotated` is used.
    """
    if isinstance(parameter.default, FieldInfo):
        raise UsageError(
            f"the default of the argument {parameter.name} of {_qualified_name(function)} is a pydantic Field",
            todo="Write Annotated[type, Field(...)] and pass the default itself",
        )
    description: dict[str, Any] = {"description": text} if text else {}
    default = ... if parameter.default is parameter.empty else parameter.default
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    return annotation, Field(default=default, alias=parameter.name, **description)


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function with resolved types."""
    allowed = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = _globals(function)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in allowed:
            raise UsageError(
                f"the model cannot pass `{parameter.replace(annotation=parameter.empty)}` "
                f"of {_qualified_name(function)} by name",
                todo="Use only arguments that can be passed by name",
            )
        annotation = parameter.annotation
        try:
            if isinstance(annotation, str):
                annotation = eval(annotation, names)
        except Exception as error:
            raise UsageError(
                f"the type of the argument {parameter.name} of {_qualified_name(function)} is unknown: {error}",
                todo="Define it at the top of its module, or declare the tool's schema yourself",
            ) from error
        parameters.append(parameter.replace(annotation=annotation))
    return parameters


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals in which the annotations of a function, method, partial or callable object are evaluated."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    inner = inner if inspect.isroutine(inner) else type(inner).__call__
    return getattr(getattr(inner, "__func__", inner), "__globals__", {})


def _inlined(schema: Json, definitions: Json, inside: tuple[str, ...]) -> Json:
    """Return a schema with its references inlined. `inside` lists the types that contain this schema."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in inside:
            raise UsageError(
                f"the type {name} of a tool's input contains itself",
                todo="Declare the tool's schema yourself",
            )
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        return _inlined({**definitions[name], **siblings}, definitions, (*inside, name))
    return {
        key: _inlined_value(key, value, definitions, inside)
        for key, value in schema.items()
        if key not in _OMITTED_KEYS
    }


_OMITTED_KEYS = ("$defs", "title", "discriminator")
"""Keys that are omitted. Definitions are inlined, titles repeat names, and the discriminator (from OpenAPI, not JSON
Schema) only refers to definitions.
"""
_VALUES = ("default", "const", "enum", "examples", "required")
"""Keys that contain values, not schemas."""


def _inlined_value(key: str, value: Any, definitions: Json, inside: tuple[str, ...]) -> Any:
    if key in _VALUES:
        return value
    if key in ("properties", "patternProperties"):
        return {name: _inlined(inner, definitions, inside) for name, inner in value.items()}
    if isinstance(value, dict):
        return _inlined(value, definitions, inside)
    if isinstance(value, list):
        return [_inlined(v, definitions, inside) if isinstance(v, dict) else v for v in value]
    return value


def _qualified_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
