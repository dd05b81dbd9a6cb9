"""From a typed function to what the model has to know of it: a description and the schema of its input.

Pydantic makes the schema from the signature; the docstring says what each argument means. References
are written out where they stand, and titles, which only repeat names, are left out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from agentobs.errors import UsageError
from agentobs.records.canonical import Json


def input_model(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the pydantic model of a function's arguments, under their own names as aliases.

    Raises:
        UsageError: the signature has arguments that JSON cannot name, or types that cannot be resolved.
    """
    described = parameter_texts(inspect.getdoc(function) or "")
    fields = {
        f"argument_{number}": _field(parameter, described.get(parameter.name))
        for number, parameter in enumerate(_signature(function).parameters.values())
    }
    model: type[BaseModel] = create_model("Input", __config__=ConfigDict(extra="forbid"), **fields)
    return model


def input_schema(model: type[BaseModel]) -> Json:
    """Return a model's JSON schema without references and titles.

    Raises:
        UsageError: a type contains itself, so that it cannot be written out.
    """
    schema = model.model_json_schema()
    return _plain(schema, schema.get("$defs", {}), ())


def named_arguments(model: type[BaseModel], value: Any) -> dict[str, Any]:
    """Return validated input by argument name; what was not given is left to the function's defaults.

    Raises:
        pydantic.ValidationError: the input does not fit.
    """
    fitted = model.model_validate(value)
    fields = type(fitted).model_fields
    return {
        str(fields[name].alias): getattr(fitted, name)
        for name in fields
        if name in fitted.model_fields_set
    }


_SECTION = re.compile(
    r"^(Args|Arguments|Returns|Yields|Raises|Examples?|Notes?|Attributes):\s*$", re.M
)
_PARAMETER = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


def summary(doc: str) -> str:
    """Return a docstring's text before its first section (Google style)."""
    return _SECTION.split(doc, maxsplit=1)[0].strip()


def parameter_texts(doc: str) -> dict[str, str]:
    """Return what the `Args:` section of a docstring says of each argument, on one line each."""
    parts = _SECTION.split(doc)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    lines = (sections.get("Args") or sections.get("Arguments") or "").splitlines()
    texts: dict[str, str] = {}
    indent, name = None, ""
    for line in filter(str.strip, lines):
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        found = _PARAMETER.match(line.strip()) if depth <= indent else None
        if found:
            name, texts[found[1]] = found[1], found[2]
        elif name:
            texts[name] = f"{texts[name]} {line.strip()}".strip()
    return texts


def _field(parameter: inspect.Parameter, text: str | None) -> Any:
    """Return type and field; a description inside `Annotated` stands where the docstring has none."""
    told: dict[str, Any] = {"description": text} if text else {}
    default = ... if parameter.default is parameter.empty else parameter.default
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    return annotation, Field(default=default, alias=parameter.name, **told)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise UsageError(
            f"a type in the signature of {_name(function)} is not known: {error}",
            todo="Define it at the top of its module, or declare the tool's schema yourself",
        ) from error
    allowed = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parameter in signature.parameters.values():
        if parameter.kind not in allowed:
            raise UsageError(
                f"the model cannot give `{parameter}` of {_name(function)} by name",
                todo="Give each argument of a tool a name of its own",
            )
    return signature


def _plain(schema: Json, definitions: Json, inside: tuple[str, ...]) -> Json:
    """Return a schema with its references written out; `inside` names those being written."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in inside:
            raise UsageError(
                f"the type {name} of a tool's input contains itself",
                todo="Declare the tool's schema yourself",
            )
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _plain({**definitions[name], **beside}, definitions, (*inside, name))
    return {
        key: _plain_value(key, value, definitions, inside)
        for key, value in schema.items()
        if key not in _LEFT_OUT
    }


_LEFT_OUT = ("$defs", "title", "discriminator")
"""Definitions are written out; the discriminator only points at them (and is OpenAPI's, not JSON schema's)."""
_VALUES = ("default", "const", "enum", "examples", "required")
"""Keywords that hold values, not schemas."""


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
    return getattr(function, "__name__", repr(function))
