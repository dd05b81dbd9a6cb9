"""Which parameters of a test `make test` runs, and which only a longer run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def but_first(values: Iterable[Any], mark: pytest.MarkDecorator, *, kept: int = 1) -> list[Any]:
    """Return values for `parametrize`, with a mark on each but the first.

    Args:
        values: the value of the parameter; a tuple for several parameters.
        mark: `pytest.mark.crash` or `pytest.mark.soak`: what `make test` leaves out.
        kept: how many values stay without the mark.
    """
    return [
        value
        if index < kept
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
        for index, value in enumerate(values)
    ]
