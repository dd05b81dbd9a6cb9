"""The columns of the fact tables, with their SQL types and defaults, derived from the classes of the facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from agentobs.records.facts import TABLES

_TYPES = {str: "VARCHAR", int: "BIGINT", bool: "BOOLEAN", float: "DOUBLE"}


@cache
def fact_columns(table: str) -> dict[str, str]:
    """Return the columns of a fact table with their types, in order, derived from the class of the fact."""
    fact = next(fact for fact, name in TABLES.items() if name == table)
    hints = get_type_hints(fact)
    own = {f.name: sql_type(hints[f.name]) for f in dataclasses.fields(fact)}
    return {"segment_id": "VARCHAR", "sequence": "BIGINT", **own, "session_sequence": "BIGINT"}


@cache
def fact_defaults(table: str) -> dict[str, str | float]:
    """Return the defaults of fields that were added later, and that are therefore missing in older records."""
    fact = next(fact for fact, name in TABLES.items() if name == table)
    fields = dataclasses.fields(fact)
    return {f.name: f.default for f in fields if isinstance(f.default, str | float | int)}


def sql_type(annotation: Any) -> str:
    """Return the column type for the annotation of a fact's field."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return sql_type(next(a for a in arguments if a is not NoneType))
    if origin is Literal:
        return "VARCHAR"
    if origin is not None and issubclass(origin, Mapping):
        return f"MAP({sql_type(arguments[0])}, {sql_type(arguments[1])})"
    if issubclass(annotation, str):
        return "VARCHAR"
    return _TYPES[annotation]
