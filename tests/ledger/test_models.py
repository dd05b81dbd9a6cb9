"""Model names, runaways, and the absence of floats for money."""

from __future__ import annotations

import ast
from decimal import Decimal
from pathlib import Path

import pytest

import agentobs.ledger
from agentobs.ledger import Runaway, canonical_model, runaway
from agentobs.records import usage


@pytest.mark.parametrize(
    ("canonical", "names"),
    [
        ("claude-sonnet-4-5", "claude-sonnet-4-5-20250929 claude-sonnet-4-5-latest claude-sonnet-4.5 "
         "claude-4-5-sonnet claude-4.5-sonnet us.anthropic.claude-sonnet-4-5-20250929-v1:0 "
         "global.anthropic.claude-sonnet-4-5-20250929-v1:0:200k claude-sonnet-4-5@20250929 "
         "anthropic/claude-sonnet-4.5 claude-sonnet-4-5[1m] publishers/anthropic/models/claude-sonnet-4-5@default "
         "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("claude-sonnet-4", "claude-sonnet-4-20250514 claude-sonnet-4-0 claude-sonnet-4@20250514 claude-4-sonnet"),
        ("claude-3-5-sonnet", "claude-3-5-sonnet-20241022 claude-3-5-sonnet-v2@20241022 "
         "anthropic.claude-3-5-sonnet-20241022-v2:0 claude-3.5-sonnet"),
        ("claude-3-7-sonnet", "claude-3-7-sonnet-latest anthropic/claude-3.7-sonnet claude-sonnet-3-7"),
        ("claude-3-haiku", "claude-3-haiku-20240307 anthropic.claude-3-haiku-20240307-v1:0"),
        ("claude-opus-5", "claude-opus-5 claude-opus-5-20260724 claude-opus-5-2026-07-24 claude-opus-5.0"),
        ("claude-opus-5-5", "claude-opus-5-5 claude-opus-5.5 claude-5-5-opus"),
        ("claude-2.1", "claude-2.1 anthropic.claude-v2:1"),
        ("claude-2", "claude-2 claude-2.0 anthropic.claude-v2"),
        ("claude-instant-1.2", "claude-instant-1.2 claude-instant-v1.2"),
        ("claude-1.3", "claude-v1.3 claude-v1.3-100k"),
        ("claude-1", "claude-v1 anthropic.claude-v1"),
        ("claude-mythos-preview", "claude-mythos-preview us.anthropic.claude-mythos-preview claude-mythos-preview[1m]"),
        ("claude-opus-4-6", "claude-opus-4-6[1m] anthropic/claude-opus-4.6 bedrock/us.anthropic.claude-opus-4-6-v1:0"),
        ("gpt-5", "gpt-5"),
        ("", ""),
        ("claude-", "claude-"),
    ],
)  # fmt: skip
def test_each_model_has_one_canonical_name(canonical: str, names: str) -> None:
    """Aliases, dated IDs and the IDs of cloud platforms have one canonical name, which maps to itself."""
    assert {canonical_model(name) for name in names.split() or [""]} == {canonical}
    assert canonical_model(canonical) == canonical


def test_a_long_name_is_returned_unchanged() -> None:
    """A text of ten kilobytes is not a model name, so it has no canonical name and is returned unchanged."""
    name = "claude-" + "9" * 10_000
    assert canonical_model(name) == name


@pytest.mark.parametrize(
    ("costs", "outputs", "expected"),
    [
        ("1 2 3 4 5 6", "", "rising_cost"),
        ("9 1 2 3 4 5 6", "", "rising_cost"),
        ("1 2 3 4 5", "", None),
        ("1 2 3 3 4 5", "", None),
        ("1 2 3 - 4 5", "", None),
        ("6 5 4", "400 300 200", None),
        ("4 4 5", "400 300 200", "diminishing_output"),
        ("4 4 5", "400 400 200", None),
        ("4 4 5", "500 300 200", None),
        ("4 - 5", "400 300 200", None),
        ("4 5", "300 200", None),
        ("", "", None),
    ],
)
def test_runaways_are_detected(costs: str, outputs: str, expected: Runaway | None) -> None:
    """A runaway is five consecutive increases in cost, or three turns with shrinking output and no decrease in cost."""
    money = [None if cost == "-" else Decimal(cost) for cost in costs.split()]
    assert runaway(money, [int(count) for count in outputs.split()]) == expected


def test_money_is_never_a_float() -> None:
    """No module of the ledger uses the float type, a float literal, or division."""
    folder = Path(agentobs.ledger.__file__).parent
    paths = [*sorted(folder.glob("*.py")), Path(usage.__file__)]
    assert len(paths) > 7
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            is_float = (isinstance(node, ast.Name) and node.id == "float") or (
                isinstance(node, ast.Constant) and isinstance(node.value, float)
            )
            divides = isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)
            is_path = divides and ast.unparse(node) == "home / FILE"
            assert not is_float, f"{path.name}: {ast.unparse(node)}"
            assert not divides or is_path, f"{path.name}: {ast.unparse(node)}"
