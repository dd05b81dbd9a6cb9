"""Counted cases: each key refers to tests that exist, so no figure loses its cases when a test is renamed."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

from tests.soak.counted_cases import CASES
from tests.soak.figures import BY_NAME

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("start", CASES)
def test_a_key_refers_to_existing_tests(start: str) -> None:
    """The file of a key exists, and at least one test in it has a name that starts with the rest of the key."""
    path, _, prefix = start.partition("::")
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    assert [name for name in names if name.startswith(prefix or "test_")]
    assert CASES[start][0] in BY_NAME


def test_no_test_is_counted_twice() -> None:
    """No key is the start of another key, because a test would be counted for both."""
    starts = sorted(CASES)
    assert not [pair for pair in itertools.pairwise(starts) if pair[1].startswith(pair[0])]
