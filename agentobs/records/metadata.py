"""Metadata: attributes of an event or a span without content, checked by type checkers and at run time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from agentobs.records.clear_text import is_declared_name
from agentobs.records.labels import Label, constant_label

Metadata = bool | int | float | Label | None
"""One value: a number, a boolean or a label. None means that there is no value. A plain string is not allowed."""


def numbers_and_labels(
    metadata: Mapping[str, Metadata],
) -> tuple[dict[str, float] | None, dict[str, Label] | None]:
    """Return the numbers and the labels of metadata, by name; each is None if it is empty.

    An integer that does not fit in 64 bits becomes the nearest float, which all consumers support.

    Raises:
        TypeError: a value has another type, and may contain content.
        ValueError: a number is not finite, or a name is not a label.
    """
    if not metadata:
        return None, None
    numbers: dict[str, float] = {}
    labels: dict[str, Label] = {}
    for name, value in metadata.items():
        try:
            known = constant_label(name)
            if not is_declared_name(name):
                raise ValueError
        except ValueError:
            text = f"a name of {len(name)} characters is not a label for a value: [A-Za-z0-9._:+-]{{1,128}}"
            raise ValueError(text) from None
        if isinstance(value, Label):
            labels[known] = value
        elif value is not None:
            numbers[known] = _number(name, value)
    return numbers or None, labels or None


def _number(name: str, value: object) -> float:
    if not isinstance(value, bool | int | float):
        raise TypeError(
            f"{name} is a {type(value).__name__}, which may contain content: pass a bool, an int, a float or None. "
            "Wrap a word in agentobs.Label(text), a constant sentence in "
            "agentobs.Label.reviewed(text, reason=...)"
        )
    try:
        is_finite = math.isfinite(value)
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise ValueError(
            f"{name} is not a finite number: pass None for an unknown value, or a word "
            "with agentobs.Label.reviewed(text, reason=...)"
        )
    return value if isinstance(value, float) or is_long(value) else float(value)


def is_long(value: int) -> bool:
    """Return whether an integer fits in 64 bits, the limit of OTLP, Perfetto and the store's BIGINT."""
    return -(2**63) <= value < 2**63
