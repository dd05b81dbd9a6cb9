"""Selects the parameters of a test that `make test` runs; the others run only in longer test runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def mark_all_but_first(
    values: Iterable[Any], mark: pytest.MarkDecorator, *, kept: int = 1
) -> list[Any]:
    """Return values for `parametrize`, with a mark on all of them except the first.

    Args:
        values: the values of the parameter; tuples if there are several parameters.
        mark: `pytest.mark.crash`, `slow` or `soak`, whose tests `make test` does not run.
        kept: how many values get no mark.
    """
    return [value if index < kept else _marked(value, mark) for index, value in enumerate(values)]


def _marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    if isinstance(value, ParameterSet):
        return value._replace(marks=(*value.marks, mark))
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
