"""Custom events: a text is accepted only as a label, by the type checker and at run time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from mypy import api

import agentobs
from agentobs import runtime, tracing
from agentobs.records.event_catalog import ROW_KINDS, TABLE_KINDS, VIEW_KINDS
from agentobs.records.exchanges import Place
from agentobs.records.facts import Event
from agentobs.records.labels import Label
from agentobs.sink import Record
from tests import queries

ROOT = Path(__file__).parents[2]
WRONG = Path(__file__).parent / "wrong_calls.py"
HERE = Place("5" * 32, "1" * 32, "main/a", 3, "2" * 16, "sub_agent", "c" * 32, 2)


@pytest.fixture
def records() -> Iterator[list[Record]]:
    """The records that are emitted to the sink in a session."""
    found: list[Record] = []
    with runtime.replaced(consumer=found.append), tracing.at(HERE):
        yield found


def expected() -> dict[int, str]:
    lines = enumerate(WRONG.read_text().splitlines(), 1)
    return {number: line.split("# E: ")[1] for number, line in lines if "# E: " in line}


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_wrong_calls_fail_the_type_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    """mypy reports each expected error in the file of wrong calls, and none for the valid calls."""
    monkeypatch.chdir(ROOT)  # mypy keeps its cache in this directory
    output, errors, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), str(WRONG)])
    found = re.findall(r"wrong_calls\.py:(\d+): error: .*\[([a-z-]+)\]", output)
    assert {int(line): code for line, code in found} == expected(), output + errors
    assert len(expected()) == 18


def calls() -> list[tuple[str, bool]]:
    """Return every call in the file, and whether it is wrong."""
    tree = ast.parse(WRONG.read_text())
    nodes = [
        each
        for each in tree.body
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)
    ]
    return [(ast.unparse(node), node.lineno in expected()) for node in nodes]


@pytest.mark.parametrize(("call", "is_wrong"), calls())
def test_wrong_calls_fail_at_run_time(call: str, is_wrong: bool, records: list[Record]) -> None:
    """Each wrong call raises an exception immediately, and emits nothing.

    The error names the valid alternative and shows no value.
    """
    before = WRONG.read_text().partition("\nagentobs.event")[0]
    names: dict[str, Any] = {"__name__": "wrong_calls"}
    exec(before, names)
    if not is_wrong:
        exec(call, names)
        assert len(records) == 1
        return
    with pytest.raises(TypeError, match=r"Label\.reviewed\(.*reason=") as caught:
        exec(call, names)
    assert records == []
    assert "somebody" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), 10**400],
    ids=["nan", "inf", "-inf", "large"],
)
def test_invalid_numbers_are_rejected(value: float, records: list[Record]) -> None:
    """NaN, infinities, and integers that no column can store raise an exception."""
    with pytest.raises(ValueError, match=r"share is not a finite number.*Label\.reviewed"):
        agentobs.event("app.number", share=value)
    assert records == []


@pytest.mark.parametrize("kind", ["", "two words", "1st", "a" * 65, "retry\n", "ä"])
def test_kinds_and_names_have_no_variable_part(kind: str, records: list[Record]) -> None:
    """The kind of an event and the names of its values may not have a variable part."""
    with pytest.raises(ValueError, match="must be a constant"):
        agentobs.event(kind)
    with pytest.raises(ValueError, match="not a label"):
        agentobs.event("app.kind", **{"two words": 1})
    with pytest.raises(ValueError, match="at most 32"):
        agentobs.event("app.kind", **{f"n{number}": number for number in range(33)})
    assert records == []


@pytest.mark.parametrize("kind", [*ROW_KINDS, *TABLE_KINDS, *VIEW_KINDS])
def test_built_in_kinds_are_rejected(kind: str, records: list[Record]) -> None:
    """A custom event cannot have a built-in or reserved kind."""
    with pytest.raises(ValueError, match=f"use app.{kind}"):
        agentobs.event(kind)
    assert records == []


def test_an_event_has_its_place(records: list[Record]) -> None:
    """An event has its full place, and its numbers and labels by name; a value of None is omitted."""

    class Size(IntEnum):
        LARGE = 3

    reviewed = Label.reviewed("it was late", reason="a constant")
    agentobs.event("cart_priced", items=2, size=Size.LARGE, is_new=True, why=reviewed, who=None)
    [event] = records
    assert isinstance(event, Event)
    assert (event.session_id, event.interaction_id, event.lane, event.turn) == (
        HERE.session_id,
        HERE.interaction_id,
        "main/a",
        3,
    )
    assert (event.query_source, event.chain_id, event.depth) == ("sub_agent", HERE.chain_id, 2)
    assert (event.kind, event.label, event.rate) == ("cart_priced", None, 1.0)
    assert (event.numbers, event.labels) == (
        {"items": 2, "size": 3, "is_new": True},
        {"why": reviewed},
    )


def test_no_event_is_emitted_outside_of_sessions() -> None:
    """An event outside of every session is not emitted."""
    found: list[Record] = []
    with runtime.replaced(consumer=found.append):
        agentobs.event("cart_priced", items=2)
    assert found == []


def test_a_custom_event_is_recorded(tmp_path: Path) -> None:
    """A custom event is a row of its session, with its numbers and labels, and is in the view of all events."""
    home = tmp_path / "home"
    with agentobs.session("shop", home=str(home)):
        agentobs.event("cart.priced", items=2, is_new=False, shop=Label("berlin-2"))
    assert agentobs.stop_recorder()
    rows = queries.query(
        "SELECT kind, numbers, labels, rate, lane FROM event_log WHERE kind = 'cart.priced'",
        home=home,
    )
    assert rows == [
        ("cart.priced", {"items": 2.0, "is_new": 0.0}, {"shop": "berlin-2"}, 1.0, "main")
    ]


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("a" * 201, "r", "1 to 200 printable"),
        ("", "r", "1 to 200 printable"),
        ("two\nlines", "r", "1 to 200 printable"),
        ("a\x1b[31mred", "r", "1 to 200 printable"),
        ("fine", "  ", "needs a reason"),
    ],
)
def test_a_reviewed_label_is_short_and_has_a_reason(text: str, reason: str, message: str) -> None:
    """A reviewed label must be short, must not contain control characters, and must have a reason."""
    with pytest.raises(ValueError, match=message):
        Label.reviewed(text, reason=reason)
