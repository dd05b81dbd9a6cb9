"""The documented table of modes, tool classes and rules matches the decisions cell by cell."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from agentobs.agent.permissions import (
    MODES,
    SOURCES,
    Permissions,
    Rule,
    ToolClass,
    consented,
    decide,
    from_settings,
)

from .calls import CALLS, edit_call, permissions_for, write_call

DOCUMENT = Path(__file__).parents[3] / "docs" / "permissions.md"
COLUMNS = ("no rule", "allow rule", "ask rule", "deny rule")


def table() -> dict[tuple[str, str, str], str]:
    """Return the cells of the documented table by mode, class and column."""
    lines = DOCUMENT.read_text().split("| mode | tool class |")[1].split("\n\n")[0].splitlines()
    assert [cell.strip() for cell in lines[0].strip("| ").split("|")] == list(COLUMNS)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert all(len(row) == 6 for row in rows)
    return {
        (row[0], row[1], column): cell
        for row in rows
        for column, cell in zip(COLUMNS, row[2:], strict=True)
    }


CELLS = table()


def test_the_table_is_complete() -> None:
    """The table has one cell for each combination of mode, class and column, and no cell is empty."""
    wanted = set(itertools.product(MODES, get_args(ToolClass), COLUMNS))
    assert set(CELLS) == wanted
    assert len(CELLS) == 80
    assert set(CELLS.values()) == {"allow", "ask", "deny"}


@pytest.mark.parametrize(("mode", "tool_class", "column"), sorted(CELLS))
def test_each_cell_matches_the_decision(mode: Any, tool_class: str, column: str) -> None:
    """A call of the class gets the documented decision, with and without a pattern, whatever the source of the
    rule is.
    """
    call = CALLS[tool_class]()
    behavior: Any = column.removesuffix(" rule")
    patterns = ["git status", "git *"] if tool_class == "shell" else [call.subject, "**", None]
    cases: list[tuple[Rule, ...]] = [()]
    if behavior != "no":
        cases = [
            (Rule(behavior, call.tool, pattern, source),)
            for pattern in patterns
            for source in SOURCES
        ]
    for case_rules in cases:
        permissions = Permissions(mode, case_rules, bypass_confirmed=True)
        decision = decide(call, permissions)
        assert decision.behavior == CELLS[mode, tool_class, column], case_rules
        assert decision.reason.endswith(".")
        if decision.reason_type == "rule":
            assert (decision.rule, decision.source) == (case_rules[0], case_rules[0].source)


def test_plan_mode_tells_the_model_to_present_a_plan() -> None:
    """In plan mode, the reason of a denial asks the model to present a plan instead of the call."""
    decision = decide(edit_call(), permissions_for("plan", allow=("edit_file",)))
    assert (decision.behavior, decision.reason_type, decision.resolver) == ("deny", "mode", "mode")
    assert "present a plan" in decision.reason


def test_edits_without_known_paths_need_approval() -> None:
    """In the mode `acceptEdits`, an edit runs without approval only if it declares its paths and all of them are inside
    the roots.
    """
    assert decide(edit_call(), permissions_for("acceptEdits")).behavior == "allow"
    nowhere = replace(edit_call(), paths=())
    assert decide(nowhere, permissions_for("acceptEdits")).behavior == "ask"


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_needs_no_permission_runs(mode: Any) -> None:
    """A tool that declares that it needs no permission runs in every mode unless a rule denies it; in plan mode, only
    if its changes can be undone.
    """
    free = write_call(needs_permission=False)
    assert decide(free, permissions_for(mode)).behavior == "allow"
    assert decide(free, permissions_for(mode, deny=("send_mail",))).behavior == "deny"
    lasting = write_call(needs_permission=False, destructive=True)
    assert decide(lasting, permissions_for(mode)).behavior == (
        "deny" if mode == "plan" else "allow"
    )


def test_the_documented_examples_are_valid() -> None:
    """The settings and the answer in the document are parsed as the document describes."""
    settings, answer = (
        json.loads(block.split("```")[0]) for block in DOCUMENT.read_text().split("```json")[1:]
    )
    assert len(from_settings(settings, "project")) == 5
    call = write_call()
    decision, grant = consented(decide(call, Permissions()), answer, call)
    assert (decision.behavior, decision.rule) == ("allow", grant)
    assert grant is not None
    assert (grant.behavior, grant.source) == ("allow", "session")
    assert str(grant.pattern).startswith("={")
    assert answer["reason"] in decision.reason
